"""The life of the daemon: startup, main loop, shutdown."""

from __future__ import annotations

import logging
import os
import queue
import reprlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np

from .. import __version__
from ..compute import registry
from ..compute.audit import storage as audit_storage
from ..compute.audit.auditor import Auditor
from ..compute.device import NoTwin, twin
from ..compute.engine import Engine
from ..compute.homes import Homes
from ..compute.program import ExternalId, Program, ProgramError, require_publishable
from ..gpma import runtime
from ..gpma.device.card import Card
from ..gpma.edges import EdgeList, Vertices
from ..gpma.index.ids import INTEGER, MAX_STRING_ID_BYTES, IdColumn, StringColumn
from ..gpma.index.vertex_index import VertexIndex
from ..gpma.memory import Memory
from ..ops.metrics import Metrics
from ..partition.graph import Graph, RowsLost
from . import kernels, systemd
from .again import LostDevice, StartAgain, lost_before
from .client.wire import LATENCY_BUCKETS_SECONDS
from .config.settings import Config, TlsConfig
from .engine import rebalancing
from .engine.ad_hoc import AdHoc
from .engine.asked import EngineAsked
from .engine.auditing import BackgroundAudit
from .engine.beside import Beside, GivenUp, ReadyKernels
from .engine.host_rows import Extent, HostRows, host_rows_of
from .engine.keeping import Keeping
from .engine.keyed import KeyedRows
from .engine.pipeline import Pipeline
from .engine.rebalancing import Rebalancing, Room
from .engine.recording import Recording
from .engine.sides import card_of, refused
from .engine.standing import Standing
from .engine.steering import Steering
from .engine.storage import Storage
from .engine.topology import EngineTopology
from .engine.vertex_memory import require_vertices
from .engine.window import CountWindow, TimeWindow, Window
from .errors import (
    CheckpointError,
    ConfigError,
    GraphtideError,
    NotWritten,
    SourceReplaced,
    SourceUnavailable,
)
from .health import Health
from .ingest import decode
from .ingest.decode import Decoder
from .ingest.event_time import EventTime, EventTimeRules
from .ingest.loop import Ingest, IngestReport
from .ingest.named_columns import named_columns
from .ingest.prepared import PreparedQueue
from .ingest.reuse import IdReuse
from .ingest.row_keys import KeyHash
from .ingest.sources import make_dead_letters, make_registry, make_source
from .memory import INDEX, MemoryGuard, WithinBudget
from .outgoing.make import make_writer, resume_of
from .outgoing.writer import Resume, Writer
from .priority import give_way
from .records.position import Position
from .records.stream import Offsets, Partition, offsets_from_wire
from .serve.endpoint import Exposition
from .serve.listening import Doors, TlsFiles
from .serve.shared_memory import allocate_within
from .serve.supervisor import ServerLink
from .serve.template import Template
from .state.checkpoint import Checkpoint, CheckpointStore, require_same
from .state.checkpointer import Checkpointer, Newest
from .state.kept import KeptPrograms, Spec, parameters_of
from .state.order_log import OrderLog
from .state.renumbering import well_numbered
from .state.requested import RequestedCheckpoints

log = logging.getLogger(__name__)

LAG_INTERVAL_S = 1.0
RETRY_S = 5.0
"""Until what could not be written is tried again, where nothing goes on without it."""
TELL_EVERY_SECONDS = 60.0
"""What goes on to be wrong is said again so often."""

KEYED = "source.keyed"
"""The part of a checkpoint's identity that says that keys of records stand for its edges."""

GIVING_WAY = ("team-", "results")
"""Threads of these names are begun by the first thread, which does not give way."""
HOLD_SECONDS = 10.0
"""So long may who writes results wait for the end of an epoch, where these come too fast to be read."""

SWITCH_SECONDS = 0.001
"""So long may a thread that runs Python keep the interpreter from the others: the engine wants it back after each
kernel, while ingest decodes (``benchmarks/switching.py``)."""


def serve(config: Config, template: Template, *, progress: bool) -> int:
    """Run the daemon until SIGTERM or SIGINT; returns the exit status.

    ``template``: of the query server; it is the caller's to end.

    Raises:
        StartAgain: it ended for the process to replace itself.
        GraphtideError: it could not start, or could not go on.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    with ExitStack() as stack, suppress(_Stopped):
        service = Service(config, stack, template)
        try:
            with _signals(service.stop, service.reload):
                service.open_probes()
                service.reserve()
                try:
                    warm_up(config, service.stopping, service.health.advance, progress=progress)
                except kernels.Stopped:
                    log.info("stopped before the first epoch, while kernels were compiled")
                    return 0
                service.startup()
                service.run()
                service.shutdown()
        except RowsLost as error:
            service.rows_lost(error)
    return 0


class _Stopped(Exception):
    """It was stopped before it had anything to shut down."""


def warm_up(config: Config, stop: threading.Event, advance: Callable[[float], None], *, progress: bool) -> None:
    """Have every kernel that this configuration uses, from the cache or compiled, before anybody waits.

    ``advance`` gets the share that is done.

    Raises:
        ConfigError: a program cannot be compiled.
        kernels.Stopped: ``stop`` was set.
    """
    started = time.monotonic()
    with _shown_progress() if progress else _logged_progress() as show:

        def report(now: kernels.Progress) -> None:
            advance(now.done / now.total if now.total else 0.0)
            show(now)

        kernels.prepare(kernels.Needs.of(config), stop, report)
    log.info(
        "kernels are ready after %.1f s (cache %s)",
        time.monotonic() - started,
        runtime.cache_directory(),
    )


@contextmanager
def _shown_progress() -> Iterator[Callable[[kernels.Progress], None]]:
    """Shows on a terminal how compiling goes on."""
    from .terminal import progress  # loads Rich, which a daemon that nobody looks at does without

    with progress() as bar:
        task = bar.add_task("compiling kernels (once; cached afterwards)", total=None)

        def show(now: kernels.Progress) -> None:
            bar.update(task, total=now.total, completed=now.done, description=f"compiling kernels ({now.kernels})")

        yield show


@contextmanager
def _logged_progress() -> Iterator[Callable[[kernels.Progress], None]]:
    """Logs now and then how compiling goes on."""
    reported = time.monotonic()

    def show(now: kernels.Progress) -> None:
        nonlocal reported
        if time.monotonic() > reported + kernels.REPORT_SECONDS:
            reported = time.monotonic()
            log.info("compiling kernels: %s", now)

    yield show


class Service:
    """All parts of one daemon. What must be closed is on the stack, last opened first closed."""

    def __init__(self, config: Config, stack: ExitStack, template: Template | None = None) -> None:
        """``template``: the query server's, where it runs already."""
        self.config = config
        self._template = template
        self._stack = stack
        self.stopping = self._stop = threading.Event()
        self._reload = threading.Event()
        self._asked_to_stop = False
        self._wants_device = threading.Event()
        self._lost = lost_before()
        self.card: Card | None = None
        self._renewals: list[Callable[[], None]] = [
            lambda: self.link.renew_access(
                self.config.server.read_tokens(), self.config.server.read_admin_tokens()
            )
        ]
        self._failure: BaseException | None = None
        self._engine_failed = False
        self._threads: list[threading.Thread] = []
        self.metrics = Metrics(
            version=__version__, bad_record_reasons=decode.REASONS, storage_rules=audit_storage.RULES
        )
        self.health = Health(config.metrics.stuck_after)
        self.within_budget = WithinBudget(config.memory.budget)
        self.weighted = config.graph.weights != "unweighted"

    # -- startup ------------------------------------------------------------------------------------------

    def open_probes(self) -> None:
        """Serve metrics and probes, which tell how the start goes on, and speak to systemd's watchdog.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        health = self.health
        self.metrics.watch_health(
            ready=lambda: health.ready().good,
            stage=lambda: health.stage,
            progress=lambda: health.progress,
            heartbeat_seconds=health.heartbeat_seconds,
        )
        self._stack.enter_context(systemd.watchdog(lambda: health.live().good))
        address = self.config.metrics.address()
        if address is None:
            return
        exposition = Exposition(
            address,
            self.metrics.registry,
            live=health.live,
            ready=health.ready,
            tls=_tls_files(self.config.metrics.tls),
        )
        self._stack.callback(exposition.close)
        self._renewals.append(exposition.renew_tls)
        log.info("metrics at %s", exposition.url)

    def reserve(self) -> None:
        """Take what only one daemon can have: the checkpoint folder, and the addresses.

        Whoever cannot have them, or whose files of secrets cannot be used, is told so before kernels are compiled
        and a graph is restored.

        Raises:
            CheckpointError: the folder cannot be used, or another daemon has it.
            ConfigError: an address, a certificate or a file of tokens cannot be used.
        """
        server, checkpoint = self.config.server, self.config.checkpoint
        server.read_tokens(), server.read_admin_tokens()
        self.store = CheckpointStore(checkpoint.path, keep=checkpoint.keep)
        self._stack.callback(self.store.close)
        self.doors = Doors(
            listen=server.listen,
            http=server.http,
            tls=_tls_files(server.tls),
            insecure=server.insecure,
            socket_group=server.socket_group,
        )
        self._stack.callback(self.doors.close)

    def startup(self) -> None:
        """Restore, publish the first epoch, begin to answer, begin to read.

        1. Read the newest good checkpoint; refuse one of another graph. Where one of another source is to be
           discarded, the source must be reached first.
        2. Build graph, index and programs, from the checkpoint or empty.
        3. Start the query server, publish the first epoch: from here on queries are answered.
        4. Start to read the source (an outage there delays only fresh data).
        """
        config, store = self.config, self.store
        self.source = make_source(config)
        self._stack.callback(self.source.close)
        self._identity: dict[str, Any] = {"graph": config.graph.identity()}
        if config.source.keyed:
            self._identity[KEYED] = True
        self.card = card_of(config.device) if config.uses_device and self._lost is None else None
        if self._lost is not None:
            log.error(
                "the device %s is not used any more, for it was lost: %s", self._lost.name, self._lost.reason
            )
            self.metrics.device_lost()
        self.health.enter("reading")
        checkpoint = self._restorable(store)
        self._source_state = b""
        self.health.enter("loading")
        self._kept = KeptPrograms(store.path)
        store.made_anew = self._kept.write_again
        self._left_out: dict[str, tuple[Spec, str]] = {}
        self._build(store.next_incarnation(), checkpoint)
        del checkpoint  # as large as the graph
        self.health.enter("computing")
        self.memory = MemoryGuard(config.memory.budget, self.metrics)
        self._build_ingest()
        storage = Storage(self.graph, self.position)
        requested = RequestedCheckpoints(store.path)
        self.link = self._make_link(EngineTopology(storage, self.source, requested, lambda: self.index.generation))
        self.results = self._make_results(storage)
        self.pipeline = self._make_pipeline(storage, store, requested)
        self._stack.callback(self.pipeline.between.close)
        self.link.asked = self._make_asked()
        self.link.start()
        self._stack.callback(self.link.stop)
        with _telling("the programs cannot be computed"):
            self.pipeline.start(self._restored)
        if self.results is not None:
            self._stack.callback(self.results.close)
            self.results.start()
        give_way(config.compute.nice, [one for one in threading.enumerate() if one.name.startswith(GIVING_WAY)])
        self._watch_server()
        self.link.wait_ready()
        self.health.enter("running")
        self._start("ingest", self._read_source)
        self._start("engine", self.pipeline.run)
        systemd.notify("READY=1")
        log.info(
            "epoch %s is published: %d vertices, %d edges; queries at %s",
            self.position.epoch,
            self.graph.n_alive,
            self.graph.n_edges,
            ", ".join([*self.link.addresses, *self.link.http_addresses]),
        )

    def _restorable(self, store: CheckpointStore) -> Checkpoint | None:
        """The checkpoint to go on from. Unless one of another source is to be discarded, ``_open_source`` will see
        whether it is of this one.

        Raises:
            CheckpointError: there are checkpoints, and none may be used.
            MemoryError: it does not fit into what is left of the machine, its control group or ``memory.budget``.
            _Stopped: we were stopped while the source was away.
        """
        checkpoint = store.newest_good(self.health.advance, self.within_budget)
        if checkpoint is None:
            return None
        if checkpoint.is_empty:  # whatever was meant to come of it
            return checkpoint if "source" in checkpoint.identity else None
        discard = self.config.checkpoint.on_mismatch == "discard"
        present = dict(self._identity)
        if discard:
            self.health.enter("waiting")
            present["source"] = self._source_identity()
        try:
            _require_source(checkpoint, store)
            saved = {part: is_ for part, is_ in checkpoint.identity.items() if part != "source" or part in present}
            require_same(saved, present, store.path)
        except CheckpointError as error:
            if not discard:
                raise
            log.warning("the checkpoint of epoch %s is not used: %s", checkpoint.epoch, error.message)
            return None
        return checkpoint

    def _source_identity(self) -> dict[str, Any]:
        """What the source says that it is, as soon as it can be reached.

        Raises:
            _Stopped: we were stopped before.
        """
        told, tell_again = "", 0.0
        while not self._stop.is_set():
            try:
                return self.source.identity()
            except SourceUnavailable as error:
                if error.message != told or time.monotonic() >= tell_again:
                    log.warning("%s; trying again", error)
                    told, tell_again = error.message, time.monotonic() + TELL_EVERY_SECONDS
                self._stop.wait(1.0)
        raise _Stopped

    def _build(self, incarnation: int, checkpoint: Checkpoint | None) -> None:
        """Graph, index and programs, from the checkpoint where there is one."""
        config = self.config
        allocate = allocate_within(Memory())
        self.index = VertexIndex.create(config.graph.vertex_ids, allocate, config.graph.vertices_max)
        self.position = Position(incarnation)
        programs = [self._program(item.name, item.id, item.parameters) for item in config.program]
        self.specs = {item.id: {"name": item.name, **item.parameters} for item in config.program}
        for id, spec in self._usable_kept().items():
            programs.append(self._program(spec["name"], id, parameters_of(spec)))
            self.specs[id] = spec
        self.graph = self._empty_graph(programs, checkpoint)
        self._stack.callback(self.graph.close)
        self.index.crew = self.graph.crew
        self.window = self._make_window()
        self.keyed = KeyedRows(directed=config.graph.directed) if config.source.keyed else None
        self._restored: frozenset[str] = frozenset()
        self._newest: Newest | None = None
        self._resume: Resume | None = None
        self._numbering: dict[str, Any] | None = None
        if checkpoint is not None:
            self._identity["source"] = checkpoint.identity["source"]
            self._newest = Newest(checkpoint.epoch, offsets_from_wire(checkpoint.offsets))
            if "source/state" in checkpoint.arrays:
                self._source_state = checkpoint.arrays["source/state"].tobytes()
            if not checkpoint.is_empty:  # else answers are of no source yet
                with _telling("the graph of the checkpoint cannot be loaded"):
                    self._restored = self._load(checkpoint, programs)
                self._resume = resume_of(checkpoint, self._restored)
                self.position.number = checkpoint.epoch[1]
                self.position.updates = checkpoint.facts["updates"]
                self.position.offsets = dict(self._newest.offsets)
        try:
            self.engine = Engine(
                self.graph,
                programs,
                self._resolve,
                place=self._placed,
                judge=Homes(lambda id: config.place_of(id) == "auto"),
            )
        except ProgramError as error:
            raise ConfigError(str(error)) from error
        self._stack.callback(self.engine.close)

    def _placed(self, program: Program, graph: Graph) -> Program:
        """What stands for a program on a graph with a device.

        Raises:
            NoTwin: it stays on the host.
        """
        if self.config.place_of(program.id) == "host":
            raise NoTwin("its place is the host, by the configuration")
        return twin(program, graph)

    def _usable_kept(self) -> dict[str, Spec]:
        """The programs that were kept at run time, but for those whose ids the configuration has by now, and those
        that cannot be made any more: these stay in the list, and are shown as quarantined."""
        usable = {}
        for id, spec in self._kept.programs.items():
            if id in self.specs:
                log.warning(
                    "program %s was kept at run time; the configuration has one, which takes its place", id
                )
                self._kept.remove(id)
                continue
            try:
                registry.make_program(spec["name"], id, parameters_of(spec), order=self.index).require_weights(
                    self.config.graph.weights
                )
                kernels.prepare_program(self._kernels_of(spec["name"], parameters_of(spec)), self._stop)
            except ProgramError as error:
                log.error("program %s was kept at run time, and is left out: %s", id, error)
                self._left_out[id] = (spec, str(error))
            except kernels.Stopped:
                raise _Stopped from None
            else:
                usable[id] = spec
        return usable

    def _kernels_of(self, kind: str, given: Mapping[str, Any]) -> kernels.Needs:
        """What a program that came at run time needs."""
        return replace(kernels.Needs.of(self.config), programs=[(kind, dict(given))])

    def _empty_graph(self, programs: Sequence[Program], checkpoint: Checkpoint | None) -> Graph:
        """A graph that keeps what these programs need, on the device, too, where there is one that works.

        ``checkpoint``: what it is to be loaded from.

        Raises:
            ConfigError: there is none that works, and the settings insist on it; or a program needs all rows on
                the host, which is not to keep them.
        """
        config = self.config
        kept: dict[str, Any] = {
            "directed": config.graph.directed,
            "weighted": self.weighted,
            "in_edges": any(program.needs_in_edges for program in programs) or self._watches_in_edges,
            "in_weights": any(program.needs_in_edges and program.needs_weights for program in programs),
        }

        self._host_rows: HostRows | None = None

        def made(*, device: bool, host_rows: Literal["all", "owned"] = "all") -> Graph:
            return Graph(
                **kept,
                negative_weights=config.graph.weights == "any",
                threads=config.compute.thread_count(),
                storage_threads=config.storage.thread_count(),
                device=device,
                host_rows=host_rows,
            )

        if self.card is not None:
            from ..partition import classes, device_side

            arrays = 2 if kept["directed"] and kept["in_edges"] else 1
            extent = _extent(checkpoint, self.card, arrays=arrays, weighted=self.weighted)
            found = host_rows_of(config, programs, extent)
            try:
                device_side.warm_up(**kept)
                graph = made(device=True, host_rows=found.rows)
            except Exception as error:  # the compiler's and the driver's own types
                refused(config.device, f"{type(error).__name__}: {error}")
                self.card = None
            else:
                if graph.owned:
                    classes.warm_up()  # where that was not known before
                self._host_rows = found
                shares = "each row is on one side" if graph.owned else "the host keeps all rows"
                log.info("a device keeps the graph beside the host: %s; %s: %s", self.card, shares, found.reason)
                return graph
        return made(device=False)

    @property
    def _watches_in_edges(self) -> bool:
        """Whether it is asked of every vertex that loses an edge whether it has any."""
        window = self.config.window
        return window.is_on and window.isolated == "delete"

    def _make_window(self) -> Window | None:
        """What has edges expire; the graph is there."""
        window = self.config.window
        isolated = window.isolated == "delete"
        if window.length is not None:
            return TimeWindow(self.graph, milliseconds(window.length), isolated=isolated)
        if window.count is not None:
            return CountWindow(self.graph, window.count, isolated=isolated)
        return None

    def _make_event_time(self) -> EventTime | None:
        """How far event time has come, where edges expire by it."""
        window = self.config.window
        if window.length is None or not isinstance(self.window, TimeWindow):
            return None
        rules = EventTimeRules(
            length_ms=milliseconds(window.length),
            lateness_ms=milliseconds(window.allowed_lateness),
            idle_s=window.idle_timeout,
            ahead_ms=milliseconds(window.max_future_skew),
        )
        return EventTime(rules, self.window.event)

    def _program(self, name: str, id: str, parameters: dict[str, Any]) -> Program:
        try:
            return registry.make_program(name, id, parameters, order=self.index)
        except ProgramError as error:
            raise ConfigError(f"program {id!r}: {error}") from error

    def _load(self, checkpoint: Checkpoint, programs: Sequence[Program]) -> frozenset[str]:
        """Take over graph, index and states; returns the programs whose states were of use."""
        started = time.perf_counter()
        checkpoint, self._numbering = well_numbered(checkpoint, self.graph)
        edges = checkpoint.part("graph")
        try:
            self.index.restore(checkpoint.part("index"), edges.get("dead"))
        except OverflowError as error:
            raise ConfigError(
                f"graph.vertices_max is {self.config.graph.vertices_max}, and the graph of the checkpoint in "
                f"'{self.config.checkpoint.path}' needs more: {error}"
            ) from None
        edge_list = EdgeList(edges["keys"], edges.get("weights"))
        n_vertices = checkpoint.facts["n_vertices"]
        require_vertices(self.graph, programs, n_vertices)  # the graph asks for its edges
        if (room := self._room()) is None:
            self.graph.load(edge_list, n_vertices, edges.get("dead"))
        else:
            policy = self.config.partition.policy
            dead = edges.get("dead")
            rebalancing.load(self.graph, edge_list, n_vertices, dead, room, policy, len(programs))
        if self.window is not None:
            self.window.restore(checkpoint.facts.get("window"), checkpoint.part("window"))
        if self.keyed is not None:
            self.keyed.restore(checkpoint.part("keyed"))
        restored = set()
        for program in [] if self._numbering["renumbered"] else programs:
            saved, present = checkpoint.programs.get(program.id), self.specs[program.id]
            if saved != present:
                what = "is new" if saved is None else f"was {_shown(saved)} and is now {_shown(present)}"
                log.info("program %s %s: it is computed from scratch", program.id, what)
                continue
            try:
                program.restore(checkpoint.state_of(program), self.graph)
                require_publishable(program, self.graph.n_vertices)
            except MemoryError:  # to start over would take more
                raise
            except Exception as error:  # of an older version, say: the graph is what counts
                log.warning("program %s: its saved state is of no use and it starts over: %s", program.id, error)
            else:
                restored.add(program.id)
        log.info(
            "restored epoch %s (%d edges) in %.1f s",
            checkpoint.epoch,
            self.graph.n_edges,
            time.perf_counter() - started,
        )
        return frozenset(restored)

    def _resolve(self, sources: Sequence[ExternalId]) -> Vertices:
        kind = self.config.graph.vertex_ids
        try:
            ids = id_column(sources, kind)
        except (ValueError, OverflowError) as error:
            shown = reprlib.repr(list(sources))[1:-1]
            raise ProgramError(f"{shown}: no ids of this graph, where graph.vertex_ids = {kind!r}") from error
        return self.index.lookup(ids)

    def _external(self, vertices: Sequence[int]) -> list[ExternalId]:
        known = np.array([vertex for vertex in vertices if vertex < self.index.n_vertices], np.uint32)
        ids = self.index.external(known)
        return list(ids.to_list() if isinstance(ids, StringColumn) else ids.tolist())

    def _build_ingest(self) -> None:
        config = self.config
        self.dead_letters = make_dead_letters(config)
        self._stack.callback(self.dead_letters.close)
        self.queue = PreparedQueue(config.epoch.queue_updates_max)
        self.reuse = IdReuse(self.index, self._begin_grace)
        stop = threading.Event()
        self.ingest = Ingest(
            source=self.source,
            decoder=Decoder(
                directed=self.config.graph.directed,
                vertex_ids=config.graph.vertex_ids,
                weights=config.graph.weights,
                self_loops=config.graph.self_loops,
                csv_columns=config.source.csv_columns or None,
                csv_delimiter=config.source.csv_delimiter,
                columns=named_columns(config.source.columns),
                registry=make_registry(config, given_up=stop.is_set),
                compacted=config.source.compacted == "accept",
                keyed=None if self.keyed is None else KeyHash(self.keyed.secret),
                memory=self.within_budget,
            ),
            index=self.index,
            reuse=self.reuse,
            dead_letters=self.dead_letters,
            queue=self.queue,
            report=self._ingested,
            poll_bytes_max=config.source.fetch_bytes_max,
            directed=config.graph.directed,
            barrier_timeout_s=config.source.barrier_timeout,
            recovery=self.health.recovery,
            has_memory=self.memory.has_room,
            memory_refused=lambda reason: self.memory.refused(reason, INDEX),
            memory_granted=lambda: self.memory.granted(INDEX),
            engine_waits=self._engine_waits,
            stop=stop,
            event_time=self._make_event_time(),
            # Of two keys of one edge, whose partitions may differ, the last has the weight.
            counts_order=isinstance(self.window, CountWindow) or (self.keyed is not None and self.weighted),
        )
        self.order = OrderLog(config.checkpoint.path / "order")
        self._stack.callback(self.order.close)

    def _begin_grace(self) -> Callable[[], bool]:
        """Of all who look vertices up outside of the engine."""
        graces = [self.link.begin_grace()]
        if self.results is not None:
            graces.append(self.results.begin_grace())
        return lambda: all(is_over() for is_over in graces)

    def _make_results(self, storage: Storage) -> Writer | None:
        def hold() -> AbstractContextManager[None]:
            return storage.gate.read(settled=True, timeout_s=HOLD_SECONDS, about_rows=False)

        return make_writer(self.config, self.link, self.index, hold, self._resume)

    def _facts(self) -> dict[str, Any]:
        """What a checkpoint of the epoch at hand says besides."""
        results = {} if self.results is None else {"results": self.results.fact()}
        return {"numbering": self._numbering, **results}

    def _make_pipeline(
        self, storage: Storage, store: CheckpointStore, requested: RequestedCheckpoints
    ) -> Pipeline:
        config = self.config
        standing = Standing(self.engine.programs, self.specs, self._kept.programs)
        for id, (spec, reason) in self._left_out.items():
            standing.expect(id, spec["name"], spec, "quarantined", reason)
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
            on_checkpoint=lambda offsets: self._checkpointed(offsets, store),
            source_state=self.source.state,
            newest=self._newest,
            facts=self._facts,
            requested=requested,
            window=self.window,
            keyed=self.keyed,
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
            source=self.ingest,
            recording=Recording(self.order, self._stop, self.health.turn),
            link=self.link,
            metrics=self.metrics,
            checkpoints=checkpoints,
            memory=self.memory,
            background_audit=background_audit,
            health=self.health,
            stop=self._stop,
            epochs=config.epoch,
            dead_letters=self.ingest.dead_letters_by_reason,
            numbering=self._numbering,
            card=self.card,
            lost=self._lost,
            host_rows=self._host_rows,
            host_follows=config.partition.host_follows,
            rebalancing=self._make_rebalancing(storage),
            results=self.results,
            window=self.window,
            keyed=self.keyed,
            full_audit=config.audit.full_every_epoch,
        )

    def _make_rebalancing(self, storage: Storage) -> Rebalancing | None:
        """Who moves rows between the host and the device, where each row is on one side."""
        if self._room() is None:
            return None
        return Rebalancing(self.graph, storage.gate, self._room, self.metrics, self.config.partition)

    def _room(self) -> Room | None:
        """What rows hold of the device's memory, and could hold; None: there is none, or the host has all rows."""
        card, device = self.card, self.graph.device
        if card is None or device is None or not self.graph.owned:
            return None
        try:
            return rebalancing.room_of(device, card)
        except Exception as error:  # the driver's own types: it may be here that it tells of a failure
            self.graph.drop_device(f"{type(error).__name__}: {error}")
            return None

    def _make_asked(self) -> EngineAsked:
        """Who answers for programs at run time, and for the placement of rows."""
        config, limits = self.config, self.config.server.limits
        beside = Beside(
            self.pipeline,
            self.index,
            self._resolve,
            self.memory,
            ReadyKernels(self._prepare, self.specs.values()),
            max(1, config.compute.thread_count() // 2),
            config.compute.nice,
            config.compute.place,
        )
        ad_hoc = AdHoc(beside, self.metrics, limits.ad_hoc_max)
        may_try = config.uses_device and config.device.enabled != "off"
        try_device = self._wants_device.set if may_try else None
        steering = Steering(self.pipeline, self.index, config.partition, try_device)
        self.pipeline.asked = lambda: {"ad_hoc": ad_hoc.stats()}
        configured = [program.id for program in config.program]
        keeping = Keeping(beside, self._kept, configured, self.metrics, limits.kept_max)
        return EngineAsked(ad_hoc, keeping, steering)

    def _prepare(self, kind: str, given: Mapping[str, Any], given_up: threading.Event) -> None:
        """Have the kernels of a program that comes at run time.

        Raises:
            GivenUp: the event was set.
            ProgramError: it cannot be compiled or run.
        """
        try:
            kernels.prepare_program(self._kernels_of(kind, given), given_up)
        except kernels.Stopped:
            raise GivenUp("nobody waits for this any more") from None

    def _engine_waits(self) -> bool:
        """Epochs wait for memory or for a disk, and nothing comes back from them until then."""
        return self.memory.waits_for is not None or self.pipeline.recording.trouble is not None

    def _checkpointed(self, offsets: dict[Partition, int], store: CheckpointStore) -> None:
        self.ingest.commit_soon(offsets)
        oldest = store.oldest_offsets(self._identity)
        if oldest is not None:
            self.order.cut(offsets_from_wire(oldest))

    def _make_link(self, topology: EngineTopology) -> ServerLink:
        server = self.config.server
        return ServerLink(
            doors=self.doors,
            http_hosts=server.http_hosts,
            graph={
                "directed": self.config.graph.directed,
                "weighted": self.weighted,
                "vertex_ids": self.config.graph.vertex_ids,
            },
            index=self.index,
            topology=topology,
            open_lane=topology.open_lane,
            limits=server.limits,
            tokens=server.read_tokens(),
            admin_tokens=server.read_admin_tokens(),
            tls=_tls_files(server.tls),
            python_modules=self.config.compute.python_modules,
            template=self._template,
            crew=self.graph.crew,
        )

    def _watch_server(self) -> None:
        self.health.is_answering = lambda: self.link.is_answering
        self.metrics.watch_queries(self.link.latency_snapshot, LATENCY_BUCKETS_SECONDS)
        self.metrics.watch_server_process(lambda: self.link.pid or 0)  # no process has the number 0

    # -- main loop ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Wait until stopped or until a thread fails, keeping fresh the metrics that are asked for."""
        while not self._stop.wait(LAG_INTERVAL_S):
            if self._reload.is_set():
                self._reload.clear()
                self._renew_secrets()
            if self._wants_device.is_set():
                self._stop.set()
            self.metrics.connections_refused(self.link.refused())
            lag = self.ingest.lag()
            barriers = self.ingest.reader.barriers
            self.metrics.barriers(barriers.outcomes, barriers.waiting_partitions)
            self.metrics.source_lag(unit=self.source.unit, amount=sum(lag.amount.values()), seconds=lag.seconds)
            self.metrics.source_outages(self.source.outages)
            self.metrics.ingest_waiting(self.ingest.waiting is not None)
            self.metrics.schema_lookups(self.ingest.decoder.lookups)
            link = self.link
            self.metrics.server(restarts=link.restarts, connections=link.connections, waiting=link.waiting)
            self.metrics.subscriptions(link.subscriptions, link.told())
            if self.results is not None:
                results = self.results
                self.metrics.results(
                    asdict(results.written), lag_epochs=results.lag_epochs, lag_seconds=results.lag_seconds
                )
            self.metrics.requests_by_door(link.requests_by_door())
            if (newest := self.pipeline.checkpoints.newest) is not None:
                offsets = {str(partition): offset for partition, offset in newest.offsets.items()}
                self.metrics.checkpoint_covers(offsets, self.source.log_margin(newest.offsets))

    def stop(self) -> None:
        """Ask for the end; may be called from a signal handler."""
        self._asked_to_stop = True
        self._stop.set()

    def reload(self) -> None:
        """Ask for tokens and certificates to be read again; may be called from any thread."""
        self._reload.set()

    def _renew_secrets(self) -> None:
        """Read tokens and certificates again; what cannot be used leaves all as it was."""
        systemd.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        done = 0
        for renew in self._renewals:
            try:
                renew()
                done += 1
            except ConfigError as error:
                log.error("not reloaded: %s", error)
        if done == len(self._renewals):
            log.info("tokens and certificates were read again")
        systemd.notify("READY=1")

    def _start(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._guarded, args=(name, work), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        try:
            give_way(self.config.compute.nice)  # and with it whoever it begins
            work()
        except BaseException as error:
            self._failure = self._failure or error
            self.health.failed = True
            if not isinstance(error, GraphtideError | MemoryError | RowsLost):
                log.exception("the %s thread failed", name)
            if name == "engine":
                self._engine_failed = True
                self.queue.close()
            self._stop.set()

    def _read_source(self) -> None:
        """Reach the source, make sure it is the checkpoint's, and read it, first in the order of before."""
        try:
            self._open_source(None if self._newest is None else self._newest.offsets)
            self.ingest.reader.follow(self.order.open(self._identity))
            self.health.recovery.read(self.ingest.reader.backlog(), item=0)
            self.ingest.run(self.position.offsets)
        except _Stopped:
            pass
        except SourceReplaced as error:
            if self.config.checkpoint.on_mismatch == "discard":
                raise SourceUnavailable(f"{error.message}. The next start begins anew with it") from error
            advice = "To begin anew with it, start with checkpoint.on_mismatch = 'discard'"
            raise SourceReplaced(f"{error.message}. {advice}", error.detail) from error

    def _open_source(self, offsets: Offsets | None) -> None:
        """Begin at these offsets of a checkpoint, else where the settings say, and make that durable.

        Raises:
            CheckpointError: the checkpoint is of another source.
            _Stopped: we were stopped before.
        """
        identity = self._source_identity()
        if offsets is not None:
            saved = self._identity["source"]
            if self.position.updates:
                require_same({"source": saved}, {"source": identity}, self.config.checkpoint.path)
            elif saved != identity:  # of which nothing was taken
                offsets = None
        self._identity["source"] = identity
        self.source.open(offsets, b"" if offsets is None else self._source_state)
        while (backlog := self.source.backlog()) is None:
            if self._stop.is_set():
                raise _Stopped
            self.source.poll(0, timeout_s=0.1)
        if backlog:  # else the order of before tells whether there is anything
            self.health.recovery.read(backlog, item=0)
        if offsets is None:
            self._keep_beginning()

    def _keep_beginning(self) -> None:
        while True:
            try:
                self.pipeline.checkpoints.write_beginning(self.source.position())
            except OSError as error:
                log.error("nothing is read before the first checkpoint: %s; trying again", error)
                if self._stop.wait(RETRY_S):
                    raise _Stopped from None
            else:
                return

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
            late=report.late,
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
            StartAgain: the process is to replace itself, with the device.
            BaseException: what made a thread fail, or that the last checkpoint could not be written.
        """
        if not self._starts_again:  # for systemd it goes on all the time
            systemd.notify("STOPPING=1")
        self.health.enter("stopping")
        ingest, engine = self._threads
        self.ingest.stop.set()
        ingest.join()
        self.queue.close()
        engine.join()
        self.pipeline.between.close()
        if self.results is not None:
            self.results.drain()  # the last checkpoint knows what was written
        # An engine that failed may have left an epoch half done: nothing of it may be kept.
        try:
            if not self._engine_failed and "source" in self._identity:
                self.pipeline.close()
        except NotWritten as error:
            self._failure = self._failure or error
        self.ingest.commit_pending()
        if self._failure is not None:
            raise self._failure
        log.info("stopped after epoch %s", self.position.epoch)
        if self._starts_again:
            raise StartAgain(None)

    @property
    def _starts_again(self) -> bool:
        wanted = isinstance(self._failure, RowsLost) or self._wants_device.is_set()
        return wanted and not self._asked_to_stop

    def rows_lost(self, error: RowsLost) -> None:
        """What follows when rows are gone with their device: all is closed, and another start goes on without it
        from the newest checkpoint, which knows nothing of what was applied since; unless we were to stop anyhow.

        Raises:
            StartAgain: the process is to replace itself.
        """
        log.error("the device is lost with rows that nobody else had: %s", error)
        if not self._asked_to_stop:
            raise StartAgain(LostDevice("device" if self.card is None else self.card.name, str(error))) from error
        log.warning("stopped without a last checkpoint: the next start goes on from the one before")


def _tls_files(tls: TlsConfig) -> TlsFiles | None:
    if tls.certificate is None or tls.key is None:
        return None
    return TlsFiles(str(tls.certificate), str(tls.key), None if tls.client_ca is None else str(tls.client_ca))


def milliseconds(seconds: float) -> int:
    """A setting as event time has it."""
    return round(seconds * 1000)


def id_column(ids: Sequence[ExternalId], kind: str) -> IdColumn:
    """External ids as the column that the vertex index takes.

    Raises:
        ValueError, OverflowError: one can be no id of this kind.
    """
    if kind == "int":
        if not all(isinstance(id, int) or INTEGER.fullmatch(id) for id in ids):
            raise ValueError("an id is an integer")
        return np.array(list(map(int, ids)), np.int64)
    column = StringColumn.of(map(str, ids))
    if (column.lengths > MAX_STRING_ID_BYTES).any():
        raise ValueError(f"an id has at most {MAX_STRING_ID_BYTES} bytes")
    return column


def _extent(checkpoint: Checkpoint | None, card: Card, *, arrays: int, weighted: bool) -> Extent:
    """What a checkpoint tells of the graph that is to be, kept in so many arrays, and what a card has for it."""
    entries = None
    if checkpoint is not None and not checkpoint.is_empty:
        entries = arrays * int(checkpoint.part("graph")["keys"].size)
    return Extent(entries, card.memory_bytes if card.limit_bytes is None else card.limit_bytes, weighted)


@contextmanager
def _telling(what: str) -> Iterator[None]:
    """Says of an error about memory what it keeps from being done."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"{what}: {error}" if str(error) else what) from error


def _require_source(checkpoint: Checkpoint, store: CheckpointStore) -> None:
    """
    Raises:
        CheckpointError: it does not name the source that its offsets belong to.
    """
    if "source" not in checkpoint.identity:
        incarnation, number = checkpoint.epoch
        raise CheckpointError(
            f"checkpoint-{incarnation}-{number} in {str(store.path)!r} does not say of which source its offsets "
            f"are. Delete it to go on from the one before it, or start anew (checkpoint.on_mismatch = 'discard')"
        )


def _shown(spec: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in spec.items())


@contextmanager
def _signals(stop: Callable[[], None], reload: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a clean stop; a second one ends the process at once. SIGHUP asks to reload.

    A SIGHUP because our terminal is gone asks for a stop. One that comes after the block is ignored if the process
    is to replace itself: it is running all the time to whoever sends it, and reads everything again anyhow.
    """
    asked = False
    had_terminal = _has_terminal()
    # These take locks, which the thread that the signal interrupts may hold: they get a thread of their own,
    # and the handler only what is safe in it (``SimpleQueue.put`` is reentrant).
    wishes: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def handle(number: int, _frame: object) -> None:
        nonlocal asked
        if number == signal.SIGHUP and _has_terminal() >= had_terminal:
            wishes.put(reload)
            return
        if asked:
            os._exit(128 + number)
        asked = True
        wishes.put(stop)

    def grant() -> None:
        while (wish := wishes.get()) is not None:
            wish()

    threading.Thread(target=grant, name="signals", daemon=True).start()
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    except (RowsLost, StartAgain):
        before[signal.SIGHUP] = signal.SIG_IGN
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        wishes.put(None)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
