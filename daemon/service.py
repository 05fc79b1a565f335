"""The life of the daemon: startup, main loop, shutdown."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from .. import __version__
from ..compute.audit import storage as audit_storage
from ..compute.audit.auditor import Auditor
from ..gpma.device.card import Card
from ..gpma.team import BrokenOff, Team
from ..ops.metrics import Metrics
from ..partition.graph import RowsLost
from . import kernels, systemd
from .again import LostDevice, StartAgain, lost_before
from .beginning import Beginning
from .client.wire import LATENCY_BUCKETS_SECONDS
from .config.settings import Config
from .contents import Contents, kernels_of
from .engine.ad_hoc import AdHoc
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
from .ingest.loop import Ingest
from .ingest.named_columns import named_columns
from .ingest.prepared import PreparedQueue
from .ingest.registry import Registry
from .ingest.reuse import IdReuse
from .ingest.row_keys import KeyHash
from .ingest.sources import make_dead_letters, make_registry, make_source
from .kernels import Stopped
from .memory import INDEX, MemoryGuard, WithinBudget, telling
from .observing import Observing, ingested
from .outgoing.make import make_writer
from .outgoing.writer import Writer
from .places import require_places
from .priority import give_way
from .records.asked import AnswerAside
from .records.stream import Partition, offsets_from_wire
from .serve.endpoint import Exposition
from .serve.listening import Doors, TlsFiles
from .serve.supervisor import ServerLink
from .serve.template import Template
from .signals import handled_signals
from .state.checkpoint import Checkpoint, CheckpointStore
from .state.checkpointer import Checkpointer
from .state.kept import KeptPrograms
from .state.order_log import OrderLog
from .state.requested import RequestedCheckpoints
from .warm_up import warm_up

log = logging.getLogger(__name__)

LAG_INTERVAL_S = 1.0

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
            warm_up(config, service.stopping, service.health.advance, progress=progress)
            service.startup()
            service.run()
            service.shutdown()
        except Stopped:
            log.info("stopped before the first epoch, while %s", service.health.stage)
        except RowsLost as error:
            service.rows_lost(error)
    return 0


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
        self._computing: Team | None = None  # while programs are computed whose outcome a stop makes useless
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
            tls=TlsFiles.of(self.config.metrics.tls),
        )
        self._stack.callback(exposition.close)
        self._renewals.append(exposition.renew_tls)
        log.info("metrics at %s", exposition.url)

    def reserve(self) -> None:
        """Take what only one daemon can have: the checkpoint folder, and the addresses.

        Whoever cannot have them, or whose places or files of secrets cannot be used, is told so before kernels are
        compiled and a graph is restored; so is whose newest checkpoint is of other settings.

        Raises:
            CheckpointError: the folder cannot be used, another daemon has it, or its newest checkpoint may not be
                used.
            NotWritten: the disk of checkpoints is full.
            ConfigError: an address, a folder, a certificate or a file of tokens cannot be used.
        """
        server, checkpoint = self.config.server, self.config.checkpoint
        server.read_tokens(), server.read_admin_tokens()
        require_places(self.config)
        self.store = CheckpointStore(checkpoint.path, keep=checkpoint.keep)
        self._stack.callback(self.store.close)
        self.doors = Doors(
            listen=server.listen,
            http=server.http,
            tls=TlsFiles.of(server.tls),
            insecure=server.insecure,
            socket_group=server.socket_group,
        )
        self._stack.callback(self.doors.close)
        self.source = make_source(self.config)
        self._stack.callback(self.source.close)
        self.beginning = Beginning(self.config, self.store, self.source, self.health, self._stop)
        self.beginning.foresee(self.within_budget)
        self.incarnation = self.store.next_incarnation()  # which a full disk does not take

    def startup(self) -> None:
        """Restore, publish the first epoch, begin to answer, begin to read.

        1. Read the newest good checkpoint; refuse one of another graph. Where one of another source is to be
           discarded, the source must be reached first.
        2. Build graph, index and programs, from the checkpoint or empty.
        3. Start the query server, publish the first epoch: from here on queries are answered.
        4. Start to read the source (an outage there delays only fresh data).
        """
        config, store = self.config, self.store
        self.card = card_of(config.device) if config.uses_device and self._lost is None else None
        if self._lost is not None:
            log.error(
                "the device %s is not used any more, for it was lost: %s", self._lost.name, self._lost.reason
            )
            self.metrics.device_lost()
        self.health.enter("reading")
        checkpoint = self.beginning.restorable(self.within_budget)
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
        self.observing = Observing(self.metrics, self.source, self.ingest, self.link, self.results, self.pipeline)
        self.link.asked = self._make_asked()
        self.link.start()
        self._stack.callback(self.link.stop)
        with telling("the programs cannot be computed"):
            self._compute_programs()
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
        self._stack.callback(self._stop.set)  # also where nobody asked for the end
        kernels.look_after_cache(self._stop)

    def _compute_programs(self) -> None:
        """Have those that no checkpoint restored, and the first epoch.

        Raises:
            MemoryError: there is not enough for their columns.
            Stopped: we were stopped meanwhile.
        """
        self._computing = self.graph.team
        try:
            if self._stop.is_set():
                raise Stopped
            self.pipeline.start(self._contents.restored)
        except BrokenOff:
            raise Stopped from None
        finally:
            self._computing = None
        if self._stop.is_set():  # what is broken off stays so: nothing can be computed from here on
            raise Stopped

    def _waits(self) -> str | None:
        """What keeps updates from being seen, in words."""
        memory = self.memory.waits_for
        short = None if memory is None else f"updates wait for memory ({memory}): stats says more"
        return self.pipeline.recording.trouble or short or self.ingest.waiting

    def _hold(self, checkpoint: Checkpoint | None) -> None:
        """Have graph, index and programs.

        Raises:
            Stopped: we were stopped meanwhile.
        """
        self._kept = KeptPrograms(self.store.path, self.store.require_folder)
        self.store.made_anew = self._kept.write_again
        contents = Contents(
            self.config,
            checkpoint,
            self.incarnation,
            card=self.card,
            kept=self._kept,
            stop=self._stop,
            stack=self._stack,
        )
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
        registry = make_registry(config, given_up=stop.is_set)
        self._renewals.append(lambda: _renew_registry(registry, config))
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
                registry=registry,
                compacted=config.source.compacted == "accept",
                keyed=None if self.keyed is None else KeyHash(self.keyed.secret),
                memory=self.within_budget,
            ),
            index=self.index,
            reuse=self.reuse,
            dead_letters=self.dead_letters,
            queue=self.queue,
            report=lambda report: ingested(self.metrics, report),
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
            checkpoints=self._make_checkpointer(standing, store, requested),
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

    def _make_checkpointer(
        self, standing: Standing, store: CheckpointStore, requested: RequestedCheckpoints
    ) -> Checkpointer:
        return Checkpointer(
            graph=self.graph,
            index=self.index,
            programs=standing.fresh,
            program_specs=self._contents.specs,
            position=self.position,
            identity=self.beginning.identity,
            dead_letters=self.dead_letters,
            store=store,
            metrics=self.metrics,
            interval_s=self.config.checkpoint.interval,
            on_checkpoint=lambda offsets: self._checkpointed(offsets, store),
            has_beginning=self.beginning.newest is not None,
            source_state=self.source.state,
            newest=self.beginning.newest,
            facts=self._facts,
            requested=requested,
            window=self.window,
            keyed=self.keyed,
        )

    def _make_rebalancing(self, storage: Storage) -> Rebalancing | None:
        """Who moves rows between the host and the device, where each row is on one side."""
        if self._contents.room() is None:
            return None
        return Rebalancing(self.graph, storage.gate, self._contents.room, self.metrics, self.config.partition)

    def _make_asked(self) -> Mapping[str, AnswerAside]:
        """What answers each request about programs at run time, and about the placement of rows."""
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
        ad_hoc = AdHoc(beside, self.metrics, limits.ad_hoc_max, limits.ad_hoc_compiled_max)
        may_try = config.uses_device and config.device.enabled != "off"
        try_device = self._wants_device.set if may_try else None
        steering = Steering(self.pipeline, self.index, config.partition, try_device)
        self.pipeline.asked = lambda: {"ad_hoc": ad_hoc.stats()}
        configured = [program.id for program in config.program]
        keeping = Keeping(beside, self._kept, configured, self.metrics, limits.kept_max)
        return {
            "compute": ad_hoc.compute,
            "keep": keeping.keep,
            "drop": keeping.drop,
            "placement": steering.placement,
            "rebalance": steering.rebalance,
            "freeze": steering.freeze,
            "device": steering.device,
        }

    def _prepare(self, kind: str, given: Mapping[str, Any], given_up: threading.Event) -> None:
        """Have the kernels of a program that comes at run time.

        Raises:
            GivenUp: the event was set.
            ProgramError: it cannot be compiled or run.
        """
        try:
            kernels.prepare_program(kernels_of(self.config, kind, given), given_up)
        except Stopped:
            raise GivenUp("nobody waits for this any more") from None

    def _engine_waits(self) -> bool:
        """Epochs wait for memory or for a disk, and nothing comes back from them until then."""
        return self.memory.waits_for is not None or self.pipeline.recording.trouble is not None

    def _checkpointed(self, offsets: dict[Partition, int], store: CheckpointStore) -> None:
        self.ingest.commit_soon(offsets)
        oldest = store.oldest_offsets(self.beginning.identity)
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
            self.observing.look()

    def stop(self) -> None:
        """Ask for the end; may be called from any thread."""
        self._asked_to_stop = True
        self._stop.set()
        if (team := self._computing) is not None:
            team.break_off()
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
            self.beginning.open(self.pipeline.checkpoints, self.ingest, self.metrics)
            self.ingest.reader.follow(self.order.open(self.beginning.identity))
            self.health.recovery.read(self.ingest.reader.backlog(), item=0)
            self.ingest.run(self.position.offsets)
        except Stopped:
            pass
        except SourceReplaced as error:
            if self.config.checkpoint.on_mismatch == "discard":
                raise SourceUnavailable(f"{error.message}. The next start begins anew with it") from error
            advice = "To begin anew with it, start with checkpoint.on_mismatch = 'discard'"
            raise SourceReplaced(f"{error.message}. {advice}", error.detail) from error
        except RecordsLost as error:
            advice = "To begin anew with what is there, give it an empty checkpoint.path (see graphtide load, too)"
            raise RecordsLost(f"{error.message}. {advice}", error.detail) from error

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


def _renew_registry(registry: Registry | None, config: Config) -> None:
    """Have the password and the certificates of the schema registry read again.

    Raises:
        ConfigError: one of the files cannot be used.
    """
    now = make_registry(config)
    if registry is not None and now is not None:
        registry.renew(now)
