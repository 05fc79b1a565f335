"""The life of the daemon: startup, main loop, shutdown."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from .. import __version__
from ..compute import registry
from ..compute.audit import storage as audit_storage
from ..compute.audit.auditor import Auditor
from ..compute.engine import Engine
from ..compute.program import ExternalId, Program, ProgramError
from ..gpma import runtime
from ..gpma.edges import EdgeList, Vertices
from ..gpma.index.ids import IdColumn, StringColumn
from ..gpma.index.vertex_index import VertexIndex
from ..ops.metrics import Metrics
from ..partition.graph import Graph
from . import kernels, terminal
from .client.wire import LATENCY_BUCKETS_SECONDS
from .config.settings import Config
from .engine.auditing import BackgroundAudit
from .engine.pipeline import Pipeline
from .engine.standing import Standing
from .engine.storage import Storage
from .engine.topology import EngineTopology
from .errors import CheckpointError, ConfigError, GraphtideError, SourceUnavailable
from .ingest import decode
from .ingest.decode import Decoder
from .ingest.loop import Ingest, IngestReport
from .ingest.prepared import PreparedQueue
from .ingest.reuse import IdReuse
from .ingest.sources import make_dead_letters, make_source
from .records.position import Position
from .records.stream import Offsets, offsets_from_wire
from .records.topology import Topology
from .serve.endpoint import Exposition
from .serve.listening import TlsFiles
from .serve.shared_memory import allocate
from .serve.supervisor import ServerLink
from .state.checkpoint import Checkpoint, CheckpointStore, require_same
from .state.checkpointer import Checkpointer

log = logging.getLogger(__name__)

LAG_INTERVAL_S = 1.0


def serve(config: Config, *, progress: bool) -> int:
    """Run the daemon until SIGTERM or SIGINT; returns the exit status.

    Raises:
        GraphtideError: it could not start, or could not go on.
    """
    if config.device.enabled == "on":
        raise ConfigError("device.enabled = 'on': this version has no GPU side; allowed are 'auto' and 'off'")
    with ExitStack() as stack:
        service = Service(config, stack)
        with _stop_on_signal(service.stop):
            try:
                warm_up(config, service.stopping, progress=progress)
            except kernels.Stopped:
                log.info("stopped before the first epoch, while kernels were compiled")
                return 0
            service.startup()
            service.run()
            service.shutdown()
    return 0


def warm_up(config: Config, stop: threading.Event, *, progress: bool) -> None:
    """Have every kernel that this configuration uses, from the cache or compiled, before anybody waits.

    Raises:
        ConfigError: a program cannot be compiled.
        kernels.Stopped: ``stop`` was set.
    """
    started = time.monotonic()
    with terminal.progress(shown=progress) as bar:
        task = bar.add_task("compiling kernels (once; cached afterwards)", total=None)
        reported = started

        def report(now: kernels.Progress) -> None:
            nonlocal reported
            bar.update(task, total=now.total, completed=now.done, description=f"compiling kernels ({now.kernels})")
            if not progress and time.monotonic() > reported + kernels.REPORT_SECONDS:
                reported = time.monotonic()
                log.info("compiling kernels: %s", now)

        kernels.prepare(kernels.Needs.of(config), stop, report)
    log.info(
        "kernels are ready after %.1f s (threading layer %s, cache %s)",
        time.monotonic() - started,
        runtime.threading_layer(),
        runtime.cache_directory(),
    )


class Service:
    """All parts of one daemon. What must be closed is on the stack, last opened first closed."""

    def __init__(self, config: Config, stack: ExitStack) -> None:
        self.config = config
        self._stack = stack
        self.stopping = self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._engine_failed = False
        self._threads: list[threading.Thread] = []
        self.weighted = config.graph.weights != "unweighted"

    # -- startup ------------------------------------------------------------------------------------------

    def startup(self) -> None:
        """Take the checkpoint folder, restore, publish the first epoch, begin to answer, begin to read.

        1. Lock the checkpoint folder and read the newest good checkpoint; refuse one of another graph.
        2. Build graph, index and programs, from the checkpoint or empty.
        3. Start the query server, publish the first epoch: from here on queries are answered.
        4. Start to read the source (an outage there delays only fresh data).
        """
        config = self.config
        store = CheckpointStore(config.checkpoint.path, keep=config.checkpoint.keep)
        self._stack.callback(store.close)
        self._identity: dict[str, Any] = {"graph": _graph_identity(config)}
        checkpoint = self._restorable(store)
        self._saved_source: dict[str, Any] | None = None if checkpoint is None else checkpoint.identity["source"]
        self._build(store.next_incarnation(), checkpoint)
        del checkpoint  # as large as the graph
        self.metrics = Metrics(
            version=__version__, bad_record_reasons=decode.REASONS, storage_rules=audit_storage.RULES
        )
        self._build_source()
        storage = Storage(self.graph, self.position)
        self.link = self._make_link(EngineTopology(storage))
        self.pipeline = self._make_pipeline(storage, store)
        self.link.start()
        self._stack.callback(self.link.stop)
        self.pipeline.start(self._restored)
        self._serve_metrics()
        self.link.wait_ready()
        self._start("ingest", self._read_source)
        self._start("engine", self.pipeline.run)
        self.metrics.ready(True)
        _notify_systemd("READY=1")
        log.info(
            "epoch %s is published: %d vertices, %d edges; queries at %s",
            self.position.epoch,
            self.graph.n_alive,
            self.graph.n_edges,
            ", ".join(map(str, self.link.addresses)),
        )

    def _restorable(self, store: CheckpointStore) -> Checkpoint | None:
        checkpoint = store.newest_good()
        if checkpoint is None:
            return None
        try:
            require_same({"graph": checkpoint.identity["graph"]}, self._identity, store.path)
        except CheckpointError:
            if self.config.checkpoint.on_mismatch != "discard":
                raise
            log.warning("the checkpoint of epoch %s belongs to another graph and is not used", checkpoint.epoch)
            return None
        return checkpoint

    def _build(self, incarnation: int, checkpoint: Checkpoint | None) -> None:
        """Graph, index and programs, from the checkpoint where there is one."""
        config = self.config
        self.index = VertexIndex.create(config.graph.vertex_ids, allocate, config.graph.vertices_max)
        self.position = Position(incarnation)
        programs = [self._program(item.name, item.id, item.parameters) for item in config.program]
        self.specs = {item.id: {"name": item.name, **item.parameters} for item in config.program}
        self.graph = Graph(
            directed=config.graph.directed,
            weighted=self.weighted,
            negative_weights=config.graph.weights == "any",
            in_edges=any(program.needs_in_edges for program in programs),
            in_weights=any(program.needs_in_edges and program.needs_weights for program in programs),
        )
        self._stack.callback(self.graph.close)
        self._restored: frozenset[str] = frozenset()
        if checkpoint is not None:
            self._restore(checkpoint, programs)
        self.engine = Engine(self.graph, programs, self._resolve, threads=config.compute.thread_count())
        self._stack.callback(self.engine.close)

    def _program(self, name: str, id: str, parameters: dict[str, Any]) -> Program:
        try:
            return registry.make_program(name, id, parameters, order=self.index)
        except ProgramError as error:
            raise ConfigError(f"program {id!r}: {error}") from error

    def _restore(self, checkpoint: Checkpoint, programs: Sequence[Program]) -> None:
        started = time.perf_counter()
        edges = checkpoint.part("graph")
        self.index.restore(checkpoint.part("index"), edges.get("dead"))
        edge_list = EdgeList(edges["keys"], edges.get("weights"))
        self.graph.load(edge_list, checkpoint.facts["n_vertices"], edges.get("dead"))
        restored = set()
        for program in programs:
            if checkpoint.programs.get(program.id) != self.specs[program.id]:
                continue
            try:
                program.restore(checkpoint.state_of(program), self.graph)
            except Exception as error:  # of an older version, say: the graph is what counts
                log.warning("program %s: its saved state is of no use and it starts over: %s", program.id, error)
            else:
                restored.add(program.id)
        self._restored = frozenset(restored)
        self.position.number = checkpoint.epoch[1]
        self.position.updates = checkpoint.facts["updates"]
        self.position.offsets = offsets_from_wire(checkpoint.offsets)
        log.info(
            "restored epoch %s (%d edges) in %.1f s",
            checkpoint.epoch,
            self.graph.n_edges,
            time.perf_counter() - started,
        )

    def _resolve(self, sources: Sequence[ExternalId]) -> Vertices:
        return self.index.lookup(id_column(sources, self.config.graph.vertex_ids))

    def _external(self, vertices: Sequence[int]) -> list[ExternalId]:
        known = np.array([vertex for vertex in vertices if vertex < self.index.n_vertices], np.uint32)
        ids = self.index.external(known)
        return list(ids.to_list() if isinstance(ids, StringColumn) else ids.tolist())

    def _build_source(self) -> None:
        config = self.config
        self.source = make_source(config)
        self._stack.callback(self.source.close)
        self.dead_letters = make_dead_letters(config, self._stop)
        self._stack.callback(self.dead_letters.close)
        self.queue = PreparedQueue(config.epoch.queue_updates_max)
        self.reuse = IdReuse(self.index, lambda: self.link.begin_grace())
        self.ingest = Ingest(
            source=self.source,
            decoder=Decoder(
                vertex_ids=config.graph.vertex_ids,
                weights=config.graph.weights,
                self_loops=config.graph.self_loops,
                csv_columns=config.source.csv_columns or None,
                csv_delimiter=config.source.csv_delimiter,
            ),
            index=self.index,
            reuse=self.reuse,
            dead_letters=self.dead_letters,
            queue=self.queue,
            report=self._ingested,
            poll_bytes_max=config.source.fetch_bytes_max,
            directed=config.graph.directed,
        )

    def _make_pipeline(self, storage: Storage, store: CheckpointStore) -> Pipeline:
        config = self.config
        standing = Standing(self.engine.programs, self.specs)
        checkpoints = Checkpointer(
            graph=self.graph,
            index=self.index,
            programs=standing.fresh,
            program_specs=self.specs,
            position=self.position,
            identity=self._identity,
            dead_letters=self.dead_letters,
            store=store,
            metrics=self.metrics,
            interval_s=config.checkpoint.interval,
            on_checkpoint=self.ingest.commit_soon,
        )
        background_audit = BackgroundAudit(
            Auditor(self.graph, self.engine, self.link.published),
            self.metrics,
            self._external,
            share=config.audit.share,
            repair=config.audit.repair,
        )
        return Pipeline(
            storage=storage,
            engine=self.engine,
            standing=standing,
            index=self.index,
            reuse=self.reuse,
            queue=self.queue,
            source=self.source,
            link=self.link,
            metrics=self.metrics,
            checkpoints=checkpoints,
            background_audit=background_audit,
            epochs=config.epoch,
            full_audit=config.audit.full_every_epoch,
        )

    def _make_link(self, topology: Topology) -> ServerLink:
        server = self.config.server
        tls = None
        if server.tls.certificate is not None and server.tls.key is not None:
            tls = TlsFiles(str(server.tls.certificate), str(server.tls.key))
        return ServerLink(
            listen=server.listen,
            graph={
                "directed": self.config.graph.directed,
                "weighted": self.weighted,
                "vertex_ids": self.config.graph.vertex_ids,
            },
            index=self.index,
            topology=topology,
            limits=server.limits,
            token=server.read_token(),
            tls=tls,
            insecure=server.insecure,
            python_modules=self.config.compute.python_modules,
        )

    def _serve_metrics(self) -> None:
        self.metrics.watch_queries(self.link.latency_snapshot, LATENCY_BUCKETS_SECONDS)
        self.metrics.watch_server_process(lambda: self.link.pid or 0)  # no process has the number 0
        address = self.config.metrics.address()
        if address is None:
            return
        exposition = Exposition(
            address,
            self.metrics.registry,
            live=lambda: self._failure is None,
            ready=lambda: not self._stop.is_set(),
        )
        self._stack.callback(exposition.close)
        log.info("metrics at http://%s:%d/metrics", exposition.address.host, exposition.address.port)

    # -- main loop ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Wait until stopped or until a thread fails, keeping the lag's metrics fresh."""
        while not self._stop.wait(LAG_INTERVAL_S):
            lag = self.source.lag()
            self.metrics.source_lag(unit=self.source.unit, amount=sum(lag.amount.values()), seconds=lag.seconds)
            self.metrics.source_outages(self.source.outages)

    def stop(self) -> None:
        """Ask for the end; may be called from a signal handler."""
        self._stop.set()

    def _start(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._guarded, args=(name, work), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failure = self._failure or error
            if not isinstance(error, GraphtideError):
                log.exception("the %s thread failed", name)
            if name == "engine":
                self._engine_failed = True
                self.queue.close()
            self._stop.set()

    def _read_source(self) -> None:
        """Reach the source, make sure it is the checkpoint's, and read it."""
        if self._open_source():
            self.ingest.run()

    def _open_source(self) -> bool:
        """True once the source is open; False when we were stopped before."""
        saved = self._saved_source
        offsets: Offsets | None = self.position.offsets if saved is not None else None
        while not self._stop.is_set():
            try:
                self.source.open(offsets)
                identity = self.source.identity()
            except SourceUnavailable as error:
                log.warning("%s; trying again", error)
                self._stop.wait(1.0)
                continue
            if saved is not None:
                require_same({"source": saved}, {"source": identity}, self.config.checkpoint.path)
            self._identity["source"] = identity
            return True
        return False

    def _ingested(self, report: IngestReport) -> None:
        self.metrics.ingested(
            records=report.records,
            bytes=report.bytes,
            tombstones=report.tombstones,
            inserts=report.inserts,
            deletes=report.deletes,
            vertex_inserts=report.vertex_inserts,
            vertex_deletes=report.vertex_deletes,
            self_loops_dropped=report.self_loops_dropped,
            ids_reused=report.ids_reused,
            poll_seconds=report.poll_seconds,
            decode_seconds=report.decode_seconds,
            index_seconds=report.index_seconds,
        )
        self.metrics.misrouted(report.misrouted)
        for letter in report.bad:
            self.metrics.bad_records(letter.reason)

    # -- shutdown -----------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Drain, write a last checkpoint, tell the source, close.

        1. Stop reading; what was read is still applied and published.
        2. Unless the engine failed, write a checkpoint of the last epoch and commit its offsets.
        3. Close everything, in reverse order of opening (the caller's stack).

        Raises:
            BaseException: what made a thread fail.
        """
        _notify_systemd("STOPPING=1")
        self.metrics.ready(False)
        ingest, engine = self._threads
        self.ingest.stop.set()
        ingest.join()
        self.queue.close()
        engine.join()
        # An engine that failed may have left an epoch half done: nothing of it may be kept.
        if not self._engine_failed and "source" in self._identity:
            self.pipeline.close()
            self.ingest.commit_pending()
        if self._failure is not None:
            raise self._failure
        log.info("stopped after epoch %s", self.position.epoch)


def id_column(ids: Sequence[ExternalId], kind: str) -> IdColumn:
    """External ids as the column that the vertex index takes."""
    return StringColumn.of(map(str, ids)) if kind == "string" else np.array(ids, np.int64)


def _graph_identity(config: Config) -> dict[str, Any]:
    graph = config.graph
    return {
        "directed": graph.directed,
        "vertex_ids": graph.vertex_ids,
        "weights": graph.weights,
        "self_loops": graph.self_loops,
    }


@contextmanager
def _stop_on_signal(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a clean stop; a second one ends the process at once."""
    asked = False
    # ``stop`` takes locks, which the thread that the signal interrupts may hold: it gets a thread of its own,
    # and the handler only what is safe in it (``SimpleQueue.put`` is reentrant).
    wishes: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def handle(number: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        wishes.put(True)

    def stop_when_wished() -> None:
        if wishes.get():
            stop()

    threading.Thread(target=stop_when_wished, name="signals", daemon=True).start()
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        wishes.put(False)


def _notify_systemd(state: str) -> None:
    """Tell systemd, where it asked for it (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect("\0" + address[1:] if address.startswith("@") else address)
            notify.sendall(state.encode())
    except OSError as error:
        log.warning("systemd cannot be told %s: %s", state, error)
