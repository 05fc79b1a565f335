"""The life of the daemon: startup, main loop, shutdown."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from typing import Any

from .. import __version__
from ..compute.audit import storage as audit_storage
from ..compute.audit.auditor import Auditor
from ..gpma.device.card import Card
from ..ops.metrics import Metrics
from ..partition.graph import RowsLost
from . import kernels, systemd
from .again import LostDevice, StartAgain, lost_before
from .client.wire import LATENCY_BUCKETS_SECONDS
from .config.sections.server import TlsConfig
from .config.settings import Config
from .contents import Contents, kernels_of
from .engine.ad_hoc import AdHoc
from .engine.asked import EngineAsked
from .engine.auditing import BackgroundAudit
from .engine.beside import Beside, GivenUp, ReadyKernels
from .engine.keeping import Keeping
from .engine.pipeline import Pipeline
from .engine.rebalancing import Rebalancing
from .engine.recording import Recording
from .engine.sides import card_of
from .engine.standing import Standing
from .engine.steering import Steering
from .engine.storage import Storage
from .engine.topology import EngineTopology
from .engine.window import CountWindow
from .errors import (
    CheckpointError,
    ConfigError,
    GraphtideError,
    NotWritten,
    RecordsLost,
    SourceReplaced,
    SourceUnavailable,
)
from .health import Health
from .ingest import decode
from .ingest.decode import Decoder
from .ingest.loop import Ingest, IngestReport
from .ingest.named_columns import named_columns
from .ingest.prepared import PreparedQueue
from .ingest.reuse import IdReuse
from .ingest.row_keys import KeyHash
from .ingest.sources import make_dead_letters, make_registry, make_source
from .memory import INDEX, MemoryGuard, WithinBudget, telling
from .os_errors import why
from .outgoing.make import make_writer
from .outgoing.writer import Writer
from .priority import give_way
from .records.stream import Offsets, Partition, offsets_from_wire
from .serve.endpoint import Exposition
from .serve.listening import Doors, TlsFiles
from .serve.supervisor import ServerLink
from .serve.template import Template
from .signals import handled_signals
from .state.checkpoint import Checkpoint, CheckpointStore, require_same
from .state.checkpointer import Checkpointer, Newest
from .state.kept import KeptPrograms
from .state.order_log import OrderLog
from .state.requested import RequestedCheckpoints
from .warm_up import warm_up

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
    with ExitStack() as around, ExitStack() as stack:
        service = Service(config, stack, template)
        # Until all is closed: what takes long there is what a second signal is for.
        around.enter_context(handled_signals(service.stop, service.reload))
        try:
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
        except _Stopped:
            log.info("stopped before the first epoch, while %s", service.health.stage)
        except RowsLost as error:
            service.rows_lost(error)
    return 0


class _Stopped(Exception):
    """It was stopped before it had anything to shut down."""


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
        self._newest: Newest | None = None
        self._source_state = b""
        if checkpoint is not None:
            self._identity["source"] = checkpoint.identity["source"]
            self._newest = Newest(checkpoint.epoch, offsets_from_wire(checkpoint.offsets))
            self._source_state = checkpoint.arrays["source/state"].tobytes()
        self.health.enter("loading")
        self._hold(checkpoint)
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
        with telling("the programs cannot be computed"):
            self.pipeline.start(self._contents.restored)
        if self.results is not None:
            self._stack.callback(self.results.close)
            self.results.start()
        give_way(config.compute.nice, [one for one in threading.enumerate() if one.name.startswith(GIVING_WAY)])
        self._watch_server()
        self.link.wait_ready(given_up=self._stop.is_set)
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
            _Stopped: we were stopped while it was read, or the source was away.
        """
        checkpoint = store.newest_good(self._advance_unless_stopped, self.within_budget)
        if checkpoint is None:
            return None
        if checkpoint.is_empty:  # whatever was meant to come of it
            return checkpoint if "source" in checkpoint.identity else None
        discard = self.config.checkpoint.on_mismatch == "discard"
        present = dict(self._identity)
        if discard:
            self.health.enter("waiting")
            present["source"] = self._source_identity(self.health.wait_for)
        try:
            _require_source(checkpoint, store)
            # Its kind is known before anybody is reached, and no answers are given until then of another graph.
            of = {"source": {"kind": checkpoint.identity["source"].get("kind")}}
            require_same(of, {"source": {"kind": self.config.source.kind}}, store.path)
            saved = {part: is_ for part, is_ in checkpoint.identity.items() if part != "source" or part in present}
            require_same(saved, present, store.path)
        except CheckpointError as error:
            if not discard:
                raise
            log.warning("the checkpoint of epoch %s is not used: %s", checkpoint.epoch, error.message)
            return None
        return checkpoint

    def _advance_unless_stopped(self, progress: float) -> None:
        self.health.advance(progress)
        if self._stop.is_set():
            raise _Stopped

    def _source_identity(self, show: Callable[[str | None], None]) -> dict[str, Any]:
        """What the source says that it is, as soon as it can be reached. ``show``: why that is waited for.

        Raises:
            _Stopped: we were stopped before.
        """
        told, tell_again = "", 0.0
        while not self._stop.is_set():
            try:
                identity = self.source.identity()
            except SourceUnavailable as error:
                show(error.message)
                if error.message != told or time.monotonic() >= tell_again:
                    log.warning("%s; trying again", error)
                    told, tell_again = error.message, time.monotonic() + TELL_EVERY_SECONDS
                self._stop.wait(1.0)
            else:
                show(None)
                return identity
        raise _Stopped

    def _withhold(self, reason: str | None) -> None:
        """Show why reading does not begin; None: it may."""
        self.ingest.withheld = reason

    def _waits(self) -> str | None:
        """What keeps updates from being seen, in words."""
        memory = self.memory.waits_for
        short = None if memory is None else f"updates wait for memory ({memory}): stats says more"
        return self.pipeline.recording.trouble or short or self.ingest.waiting

    def _hold(self, checkpoint: Checkpoint | None) -> None:
        """Have graph, index and programs.

        Raises:
            _Stopped: we were stopped meanwhile.
        """
        self._kept = KeptPrograms(self.store.path, self.store.require_folder)
        self.store.made_anew = self._kept.write_again
        try:
            contents = Contents(
                self.config,
                checkpoint,
                self.store.next_incarnation(),
                card=self.card,
                kept=self._kept,
                stop=self._stop,
                stack=self._stack,
            )
        except kernels.Stopped:
            raise _Stopped from None
        self._contents, self.card = contents, contents.card
        self.graph, self.index, self.engine = contents.graph, contents.index, contents.engine
        self.position, self.window, self.keyed = contents.position, contents.window, contents.keyed

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
            event_time=self._contents.event_time(),
            # Of two keys of one edge, whose partitions may differ, the last has the weight.
            counts_order=isinstance(self.window, CountWindow) or (self.keyed is not None and self.weighted),
        )
        self.order = OrderLog(config.checkpoint.path / "order", self.store.require_folder)
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

        return make_writer(self.config, self.link, self.index, hold, self._contents.resume)

    def _facts(self) -> dict[str, Any]:
        """What a checkpoint of the epoch at hand says besides."""
        results = {} if self.results is None else {"results": self.results.fact()}
        return {"numbering": self._contents.numbering, **results}

    def _make_pipeline(
        self, storage: Storage, store: CheckpointStore, requested: RequestedCheckpoints
    ) -> Pipeline:
        config = self.config
        standing = Standing(self.engine.programs, self._contents.specs, self._kept.programs)
        for id, (spec, reason) in self._contents.left_out.items():
            standing.expect(id, spec["name"], spec, "quarantined", reason)
        checkpoints = Checkpointer(
            graph=self.graph,
            index=self.index,
            programs=standing.fresh,
            program_specs=self._contents.specs,
            position=self.position,
            identity=self._identity,
            dead_letters=self.dead_letters,
            store=store,
            metrics=self.metrics,
            interval_s=config.checkpoint.interval,
            on_checkpoint=lambda offsets: self._checkpointed(offsets, store),
            has_beginning=self._newest is not None,
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
            self._contents.external,
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
            numbering=self._contents.numbering,
            card=self.card,
            lost=self._lost,
            host_rows=self._contents.host_rows,
            host_follows=config.partition.host_follows,
            rebalancing=self._make_rebalancing(storage),
            results=self.results,
            window=self.window,
            keyed=self.keyed,
            full_audit=config.audit.full_every_epoch,
        )

    def _make_rebalancing(self, storage: Storage) -> Rebalancing | None:
        """Who moves rows between the host and the device, where each row is on one side."""
        if self._contents.room() is None:
            return None
        return Rebalancing(self.graph, storage.gate, self._contents.room, self.metrics, self.config.partition)

    def _make_asked(self) -> EngineAsked:
        """Who answers for programs at run time, and for the placement of rows."""
        config, limits = self.config, self.config.server.limits
        beside = Beside(
            self.pipeline,
            self.index,
            self._contents.resolve,
            self.memory,
            ReadyKernels(self._prepare, self._contents.specs.values()),
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
            kernels.prepare_program(kernels_of(self.config, kind, given), given_up)
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
        self.health.waiting = self._waits
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
            self.ingest.tell_long_waits()
            self.pipeline.recording.watch()
            self.metrics.waits_for_order_log(self.pipeline.recording.trouble is not None)
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
        """Ask for the end; may be called from any thread."""
        self._asked_to_stop = True
        self._stop.set()
        log.info("asked to stop, while %s; a second signal ends the process at once", self.health.stage)

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
        except RecordsLost as error:
            advice = "To begin anew with what is there, give it an empty checkpoint.path (see graphtide load, too)"
            raise RecordsLost(f"{error.message}. {advice}", error.detail) from error

    def _open_source(self, offsets: Offsets | None) -> None:
        """Begin at these offsets of a checkpoint, else where the settings say, and make that durable.

        Raises:
            CheckpointError: the checkpoint is of another source.
            _Stopped: we were stopped before.
        """
        identity = self._source_identity(self._withhold)
        if offsets is not None:
            saved = self._identity["source"]
            if self.position.updates:
                require_same({"source": saved}, {"source": identity}, self.config.checkpoint.path)
            elif saved != identity:  # of which nothing was taken
                offsets = None
        if offsets is None:
            self.pipeline.checkpoints.begin_anew()  # before they would be taken for those of this source
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
        tell_again = 0.0
        while True:
            try:
                self.pipeline.checkpoints.write_beginning(self.source.position())
            except OSError as error:
                self.metrics.checkpoint_failed(type(error).__name__)
                folder = str(self.config.checkpoint.path)
                trouble = f"the first checkpoint cannot be written to {folder!r}: {why(error)}"
                if trouble != self.ingest.withheld or time.monotonic() >= tell_again:
                    log.error("nothing is read, since %s; trying again", trouble)
                    tell_again = time.monotonic() + TELL_EVERY_SECONDS
                self._withhold(trouble)
                if self._stop.wait(RETRY_S):
                    raise _Stopped from None
            else:
                self._withhold(None)
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
        while ingest.is_alive():
            ingest.join(LAG_INTERVAL_S)
            self.ingest.tell_long_waits()
        self.queue.close()
        while engine.is_alive():
            engine.join(LAG_INTERVAL_S)
            self.pipeline.recording.watch()
        self.pipeline.between.close()
        if self.results is not None:
            self.results.drain()  # the last checkpoint knows what was written
        # An engine that failed may have left an epoch half done: nothing of it may be kept.
        try:
            if not self._engine_failed:
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
