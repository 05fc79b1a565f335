"""The engine's loop: take what was prepared, apply it, bring every program up to date, publish, checkpoint.

One pass of the loop is one epoch. Epochs size themselves: while one is computed the next one's updates
gather, so a slow stream is answered at once and a fast one in large batches, within ``updates_max``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...compute.engine import Engine, ProgramRun
from ...compute.program import Program, Published, Violation
from ...gpma.device.card import Card
from ...gpma.edges import EdgeBatch, Vertices
from ...gpma.index.vertex_index import VertexIndex
from ...ops.metrics import Metrics
from ...partition.existence import VertexOps
from ...partition.graph import GraphChange, NoMemory, RowsLost
from ..again import LostDevice
from ..config.sections.graph import EpochConfig
from ..failpoints import point
from ..health import Health
from ..ingest.prepared import Prepared, PreparedQueue, one_batch, row_keys_of
from ..ingest.reuse import IdReuse
from ..memory import MemoryGuard
from ..records.stream import Progress, offsets_to_wire
from ..serve.publication import Publication
from ..serve.supervisor import ServerLink
from ..state.checkpointer import Checkpointer, Newest
from .asking import Asking
from .auditing import BackgroundAudit
from .between import BetweenEpochs
from .follower import Since
from .host_rows import HostRows
from .keyed import KeyedRows
from .rebalancing import Epoch, Rebalancing
from .recording import Recording
from .sides import Sides
from .standing import Standing, bytes_of
from .storage import Storage
from .vertex_memory import require_updates, require_vertices
from .window import Window

if TYPE_CHECKING:
    from ...compute.device.program import DeviceProgram

log = logging.getLogger(__name__)

MEMORY_PAUSE_S = 1.0
"""So often the graph is asked again to take what it found no memory for."""

TIMES_INTERVAL_S = 1.0
"""What an epoch took is known once it is published: it is shown with the next one, or so long after it. So is what
could not be published."""

STATISTICS_INTERVAL_S = 5.0
"""Without epochs, what the audit has found, and what was written of results, is published so often at most."""


class Transactions(Protocol):
    """What was written so far."""

    @property
    def transactions(self) -> int: ...


class Outgoing(Protocol):
    """Who writes changed results; neither waits."""

    def told(self, epoch: tuple[int, int]) -> None:
        """An epoch is published."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written now, in words."""
        ...

    @property
    def written(self) -> Transactions: ...

    def stats(self) -> dict[str, Any]:
        """What the ``stats`` request shows."""
        ...


class AuditFailure(AssertionError):
    """The full audit (a test's setting) found results that contradict the graph."""


@dataclass(frozen=True, slots=True)
class _Applied:
    """How an epoch changed the graph: by these updates, as one batch, to this effect (None: they named nothing).

    ``at``: when it was done, by ``time.perf_counter``; ``waited``: seconds for the order log, from then on.
    """

    batch: EdgeBatch
    vertex_ops: VertexOps | None
    change: GraphChange | None
    updates: int
    at: float
    apply_seconds: float
    waited: float


@dataclass(kw_only=True, eq=False)
class Pipeline:
    """Owns the epoch. ``start`` publishes the first one; ``run`` makes the others until the queue is closed."""

    storage: InitVar[Storage]
    engine: Engine
    standing: Standing
    index: VertexIndex
    reuse: IdReuse
    queue: PreparedQueue
    source: Progress
    """How reading goes on, which is shown."""
    recording: Recording
    link: ServerLink
    metrics: Metrics
    checkpoints: Checkpointer
    memory: MemoryGuard
    background_audit: BackgroundAudit
    epochs: EpochConfig
    health: Health
    stop: threading.Event
    """Ends a wait for memory."""
    dead_letters: Mapping[str, int]
    """What was refused by reason, which is shown."""
    numbering: Mapping[str, Any] | None = None
    """How vertices were numbered at the start, which is shown, too."""
    card: InitVar[Card | None] = None
    """The graph's device, if it has one."""
    lost: InitVar[LostDevice | None] = None
    """The one that this start does without."""
    host_rows: InitVar[HostRows | None] = None
    """Which rows the host keeps beside a device."""
    host_follows: bool = True
    """Whether it may take batches later than that does."""
    rebalancing: Rebalancing | None = None
    """Who moves rows between sides."""
    results: Outgoing | None = None
    """Who writes what changed; None: nobody."""
    window: Window | None = None
    """What has edges expire; None: nothing."""
    keyed: KeyedRows | None = None
    """What keys of records stand for; None: records name their edges."""
    full_audit: bool = False
    """Check everything after every epoch."""

    def __post_init__(
        self, storage: Storage, card: Card | None, lost: LostDevice | None, host_rows: HostRows | None
    ) -> None:
        self.graph, self.gate, self.position = storage.graph, storage.gate, storage.position
        self.sides = Sides(self.graph, self.metrics, card, lambda: self.engine.programs, lost, host_rows)
        if self.rebalancing is not None:
            self.engine.make_room = self.rebalancing.make_room_for_program
        self.between = BetweenEpochs(self.queue.wake)
        self.asked: Callable[[], Mapping[str, Any]] = dict
        """What to show of programs that are asked for at run time."""
        self._followed: list[Since] = []
        self._asking = Asking(lambda: self.gate.questions)
        self._item = 0  # the last one that came from the queue
        self._published_at = 0.0
        self._untold = self._is_hidden = False
        self._passes_published = 0
        self._written_published = 0
        self._wait_published: tuple[str | None, ...] = (None, None, None)
        self._shown: tuple[int, Mapping[str, Any]] = (0, {})  # vertices and statistics as published

    # -- life -------------------------------------------------------------------------------------------

    def start(self, restored: frozenset[str]) -> None:
        """Compute the programs that no checkpoint restored, and publish the first epoch.

        Raises:
            MemoryError: there is not enough for their columns.
        """
        computed = [program for program in self.engine.programs if program.id not in restored]
        require_vertices(self.graph, computed, self.graph.n_vertices)
        missing = [program.id for program in computed]
        runs = self.engine.start(missing)
        everything = [
            ProgramRun(id=program.id, refresh=None, seconds=0.0, error=None)
            for program in self.engine.programs
            if program.id in restored
        ]
        self._audit()
        self._publish([*runs, *everything], None, whole=True)
        self._record_state()

    def run(self) -> None:
        """Make epochs until the queue is closed and empty."""
        while True:
            self.health.turn()
            self._require_rows()
            expiring = None if self.queue.closed else self._expiring()
            room = self.epochs.updates_max - (0 if expiring is None else expiring.updates)
            timeout_s = 0.1 if expiring is None else 0.0
            taken = self.queue.take(room, timeout_s=timeout_s, linger_s=self.epochs.linger_ms / 1000)
            if taken or expiring is not None:
                point("epoch.taken")
                if not self._epoch(taken, expiring):
                    self.queue.close()  # whoever waits there for room need not
                    return
                if taken:
                    self._item = taken[-1].item
                    self.health.recovery.published(self._item)
            elif self.queue.closed:
                return
            else:
                self._show_rows()
            self._publish_wait()
            self.between.turn()
            self.sides.follow()
            self.metrics.queue_depth(self.queue.updates)
            if self.health.recovery.ends():
                log.info("epoch %s holds all that lay in the source at the start", self.position.epoch)
                self._tell()
            self._audit_in_background()
            self.checkpoints.step()
            self.reuse.let_go(self.graph.alive, hold=self._holds_names)

    def close(self) -> None:
        """Write a last checkpoint if anything happened since the newest one, and wait for it."""
        self.checkpoints.close()

    # -- between two epochs, for the engine's thread (``between``) -----------------------------------------

    def follow(self, since: Since) -> None:
        """Note what changes from the next epoch on, and let vertices keep their dense ids, until ``unfollow``."""
        self._followed.append(since)

    def unfollow(self, since: Since) -> None:
        """Harmless to repeat."""
        self._followed = [other for other in self._followed if other is not since]

    def expect(
        self, id: str, kind: str, spec: Mapping[str, Any], *, state: str = "computing", reason: str | None = None
    ) -> None:
        """Show that a program is to come, and how it stands."""
        self.standing.expect(id, kind, spec, state, reason)
        self._publish([], None)
        self._record_state()

    def join(self, program: Program, spec: Mapping[str, Any], *, start: bool) -> None:
        """Keep a program up to date from now on: a new epoch of the same graph and offsets.

        ``start``: whether it must be computed; else it holds a state of this graph.

        Raises:
            ProgramError: it cannot be taken in.
            Exception: it cannot be published, for want of memory or by a mistake of its own; it is not taken in.
        """
        self.engine.require(program)
        self._next_epoch()
        try:
            self.standing.join(self.engine.add(program), spec, self.position.epoch)
            runs = self.engine.start([program.id]) if start else []
            self._audit()
            self._publish(runs, None)
        except Exception as error:
            self.engine.remove(program.id)
            self.standing.remove(program.id)
            reason = f"{type(error).__name__}: {error}"
            self.standing.expect(program.id, program.kind, spec, "waiting", reason)  # whoever had it join goes on
            self.gate.settle()
            raise
        self._record_state()

    def run_there(self, program: DeviceProgram) -> tuple[ProgramRun, Published] | None:
        """Run a program once on the graph's device, as it is, which changes nothing (``Engine.run_there``).

        Raises:
            Exception: as that.
        """
        try:
            return self.engine.run_there(program)
        finally:
            self.sides.release()

    def drop(self, id: str) -> None:
        """Keep a program up to date no more, or expect it no more: a new epoch of the same graph and offsets."""
        self._next_epoch()
        self.engine.remove(id)
        self.standing.remove(id)
        self.background_audit.dropped()
        self.metrics.program_dropped(id)
        try:
            self._publish([], None)
        finally:
            self.gate.settle()  # what is published is still of this graph
        self._record_state()

    def _next_epoch(self) -> None:
        """One of the same graph and offsets begins, after a checkpoint of this one if one is asked for."""
        self.checkpoints.step()
        with self.gate.apply():
            self.position.number += 1

    # -- one epoch --------------------------------------------------------------------------------------

    @property
    def _holds_names(self) -> bool:
        """A checkpoint that is being written, or a program computed beside us, has vertices alive that died."""
        return self.checkpoints.writing or bool(self._followed)

    def _let_follow(self) -> None:
        """Have the host's rows follow the device's if nobody reads them, or the host's report of a change, in
        every epoch."""
        is_asked = self._asking.turn()
        wanted = self.graph.device is not None and self.host_follows
        others_read = self.full_audit or self._followed or self.window is not None
        self.graph.let_follow(wanted and not (others_read or self.engine.reads_host or is_asked))

    def _show_rows(self) -> None:
        """While nothing comes: where the host's rows have followed the device's meanwhile, lanes see them."""
        if self.gate.shown.may_be_shown and self.graph.rows_in_place() is not None:
            self.gate.show_again()

    def _expiring(self) -> Prepared | None:
        """What goes by itself, for the next epoch."""
        if self.window is None:
            return None
        return self.window.expiring(self.epochs.updates_max, self.position.offsets, self._item)

    def _epoch(self, came: Sequence[Prepared], expiring: Prepared | None = None) -> bool:
        """``came``: from the queue; ``expiring``: what goes by itself, before that. At least one of the two.

        False: the end came while the graph waited for memory; nothing of this was taken.
        """
        started = time.perf_counter()
        for item in came:
            self.metrics.stage("queue", started - item.prepared_at)
        self.recording.begin(self.position.offsets, came, in_trouble=lambda: self._publish([], None))
        taken = came if expiring is None else [expiring, *came]
        done = self._apply(taken, started)
        if done is None:
            return False
        change = done.change
        if self.window is not None:
            self.window.note(taken, done.batch, done.vertex_ops, change)
            self.metrics.expired(0 if expiring is None else len(expiring.batches[0].edges))
        runs: list[ProgramRun] = []
        if change is not None:
            for since in self._followed:
                since.note(change)
            runs = self.engine.refresh(change, done.apply_seconds)
            self._require_rows()
            point("epoch.computed")
            self.position.updates += done.updates
        computed = time.perf_counter()
        self._audit()
        publishing = time.perf_counter()
        self._publish(runs, change)
        point("epoch.published")
        self.reuse.published(taken[-1].item, change, self.graph.alive, hold=self._holds_names)
        published = time.perf_counter()
        read = self.sides.ran(runs)
        if self.rebalancing is not None:
            self.rebalancing.after(Epoch(done.batch, runs, published - started, read))
        self._record(taken, change, runs)
        self.metrics.epoch(
            updates=done.updates,
            apply_seconds=done.at - started,
            order_log_seconds=done.waited,
            compute_seconds=computed - done.at - done.waited,
            publish_seconds=published - publishing,
        )
        self._untold = True
        return True

    def _apply(self, taken: Sequence[Prepared], started: float) -> _Applied | None:
        """Change the graph by what was taken, as soon as there is memory for it; None: the end came before."""
        columns = self.graph.columns if self.keyed is None else EdgeBatch.empty
        records, vertex_ops = one_batch(taken, weighted=self.graph.weighted, columns=columns)
        updates = len(records) + (0 if vertex_ops is None else len(vertex_ops))
        self._let_follow()
        tries = 0
        while True:
            try:
                done = self._apply_once(taken, records, vertex_ops, updates, started)
                break
            except NoMemory as error:
                self.gate.settle()
                if self.keyed is not None:
                    self.keyed.undo()  # a checkpoint that is taken meanwhile is of the epoch before
                if self.rebalancing is not None and self.rebalancing.make_room(error, updates, tries):
                    tries += 1
                    continue
                self._ask_for_memory(error)
            self.health.turn()
            if self.stop.wait(MEMORY_PAUSE_S):
                return None
        self.memory.granted()
        if self.keyed is not None:
            self.keyed.done()
        return done

    def _apply_once(
        self,
        taken: Sequence[Prepared],
        records: EdgeBatch,
        vertex_ops: VertexOps | None,
        updates: int,
        started: float,
    ) -> _Applied:
        """
        Raises:
            NoMemory: there is none, and the graph is as before.
        """
        n_vertices = taken[-1].n_vertices
        self._require_memory(updates, n_vertices)
        batch = records
        if self.keyed is not None:
            batch = self.keyed.settle(records, row_keys_of(taken), self.graph.columns)
        if self.window is not None:
            self.window.make_room(batch)
        change: GraphChange | None = None
        begun = applied = started
        with self.gate.change() as begin_writing:
            if len(batch) or vertex_ops is not None or n_vertices > self.graph.n_vertices:
                begun = time.perf_counter()
                change = self.graph.apply(batch, n_vertices, vertex_ops, before_writing=begin_writing)
                applied = time.perf_counter()
                self.sides.applied(len(batch), applied - begun)
                point("epoch.applied")
            begin_writing()
            waited = self.recording.finish(in_trouble=self._publish_halt)
            self.position.number += 1
            self.position.offsets = dict(taken[-1].offsets)
        return _Applied(batch, vertex_ops, change, updates, applied, applied - begun, waited)

    def _ask_for_memory(self, error: NoMemory) -> None:
        """Tell that updates wait for memory, and have others give it back."""
        self.memory.refused(str(error))
        self._publish_wait()
        self.checkpoints.go_on()  # its copy of the edges may be what is missing
        for since in self._followed:
            since.give_way()
        self.between.turn()  # nothing of this epoch was taken; who gives way needs us for it

    def _require_memory(self, updates: int, n_vertices: int) -> None:
        """
        Raises:
            NoMemory: there is none for so many updates or vertices, and all is as before.
        """
        try:
            require_updates(self.graph, updates)
        except MemoryError as error:
            raise NoMemory(f"{updates} updates: {error}") from error
        n_new = n_vertices - self.graph.n_vertices
        if n_new <= 0:
            return
        try:
            require_vertices(self.graph, self.standing.fresh(), n_new)
        except MemoryError as error:
            raise NoMemory(f"new vertices: {error}") from error

    def _publish_wait(self) -> None:
        """Let answers tell what is waited for, or no longer is: there may be no epoch for long."""
        if self._waits != self._wait_published:
            self._tell()

    def _tell(self) -> None:
        """Publish what no epoch brings. What cannot be shown now is tried again soon: it is no reason to end."""
        waits = self._waits
        try:
            self._publish([], None)
        except (MemoryError, OSError) as error:
            self._published_at, self._wait_published = time.monotonic(), waits
            if not self._is_hidden:
                log.warning("how things stand cannot be shown now: %s: %s", type(error).__name__, error)
            self._is_hidden = True

    def _publish_halt(self) -> None:
        """Let answers tell that the order log is waited for, in the midst of an epoch: the storage is ahead
        already, so that all else is shown as it was, and questions about edges are refused."""
        reason = self.recording.trouble or "the order log is waited for"
        self.gate.halt(reason)
        n_vertices, stats = self._shown
        none = np.empty(0, np.uint32)
        programs = {
            program.id: self.standing.publication(program, None, self.graph, None, whole=False)
            for program in self.engine.programs
        }
        self.link.publish(
            Publication(
                epoch=self.position.epoch,
                n_vertices=n_vertices,
                offsets=offsets_to_wire(self.position.offsets),
                programs=programs,
                coming=self.standing.coming,
                stats={**stats, "order": {**self.source.order, "trouble": reason}},
                alive=self.graph.alive,
                alive_changed=none,
            )
        )

    @property
    def _waits(self) -> tuple[str | None, ...]:
        return self.memory.waits_for, self.source.waiting, None if self.results is None else self.results.trouble

    def _publish(self, runs: Sequence[ProgramRun], change: GraphChange | None, *, whole: bool = False) -> None:
        waits, written = self._waits, self._written
        self._untold = True  # if anything here fails
        for run in runs:
            self.standing.note(run, self.position.epoch)
        latest = {run.id: run for run in runs}
        programs = {
            program.id: self.standing.publication(program, latest.get(program.id), self.graph, change, whole=whole)
            for program in self.engine.programs
        }
        stats = self.stats()
        self.link.publish(
            Publication(
                epoch=self.position.epoch,
                n_vertices=self.graph.n_vertices,
                offsets=offsets_to_wire(self.position.offsets),
                programs=programs,
                coming=self.standing.coming,
                stats=stats,
                alive=self.graph.alive,
                alive_changed=None if whole else _alive_changed(change),
            )
        )
        if self.results is not None:
            self.results.told(self.position.epoch)
        self.gate.settle()
        self._shown = self.graph.n_vertices, stats
        self._published_at = time.monotonic()
        self._untold = self._is_hidden = False
        self._wait_published = waits
        self._passes_published = self.background_audit.passes
        self._written_published = written

    @property
    def _written(self) -> int:
        """How many transactions of results were written."""
        return 0 if self.results is None else self.results.written.transactions

    def _audit_in_background(self) -> None:
        """A turn of the background audit; what it found wrong is put right, or at least shown."""
        wrong = self.background_audit.run(self.position.epoch, lambda: self.queue.updates > 0)
        if wrong:
            self._repair(wrong)
        elif not self.queue.updates and self._has_news(time.monotonic() - self._published_at):
            self._tell()

    def _has_news(self, seconds: float) -> bool:
        """Whether there is something to show that no epoch brings, so long after the last publication."""
        if seconds >= TIMES_INTERVAL_S and self._untold:
            return True
        told = self.background_audit.passes == self._passes_published and self._written == self._written_published
        return seconds >= STATISTICS_INTERVAL_S and not told

    def _repair(self, programs: Sequence[str]) -> None:
        """Compute programs from scratch and publish them: a new epoch of the same graph and offsets."""
        self._next_epoch()
        runs = self.engine.start(programs)
        self._audit()
        self._publish(runs, None)
        self.background_audit.repaired(programs)
        self._record_state()

    def _require_rows(self) -> None:
        """
        Raises:
            RowsLost: the device is lost, and the host has not its rows.
        """
        if self.graph.rows_lost:
            raise RowsLost(self.graph.device_lost)

    def _audit(self) -> None:
        if not self.full_audit:
            return
        if self.keyed is not None and self.keyed.n_edges != self.graph.n_edges:
            found_edges = f"keys stand for {self.keyed.n_edges} edges, and there are {self.graph.n_edges}"
            raise AuditFailure(f"epoch {self.position.epoch}: {found_edges}")
        found: dict[str, list[Violation]] = {id: found for id, found in self.engine.audit().items() if found}
        if found:
            raise AuditFailure(f"epoch {self.position.epoch}: {found}")

    def _record(self, taken: Sequence[Prepared], change: GraphChange | None, runs: Sequence[ProgramRun]) -> None:
        times = np.concatenate([item.record_times_ms for item in taken])
        # What lay there at the start came while nobody was there, or was shown before.
        if self.health.recovery.over:
            updates = np.concatenate([item.record_updates for item in taken])
            self.metrics.observe_freshness(np.maximum(time.time() * 1000 - times, 0) / 1000, updates)
        if times.size:
            self.metrics.applied_up_to(float(times.max()) / 1000)
        batches = [batch for item in taken for batch in item.batches]
        unknown = 0 if self.keyed is None else self.keyed.unknown
        if change is not None:
            self.metrics.changes(
                inserted=change.inserted,
                overwritten=change.overwritten,
                deleted=change.deleted,
                absent=change.absent + sum(batch.unknown for batch in batches) + unknown,
                slots_moved=change.slots_moved,
            )
            # Ids that are new and dead came and went within the epoch.
            new = change.n_vertices - change.n_vertices_before
            passing = int(np.count_nonzero(change.deleted_vertices >= change.n_vertices_before))
            self.metrics.vertex_changes(
                inserted=new - passing + change.revived_vertices.size,
                deleted=change.deleted_vertices.size - passing,
                absent=change.absent_vertices + sum(batch.unknown_vertices for batch in batches),
            )
        elif unknown:
            self.metrics.changes(inserted=0, overwritten=0, deleted=0, absent=unknown, slots_moved=0)
        for run in runs:
            if run.refresh is not None:
                self.metrics.program_run(
                    run.id,
                    seconds=run.seconds,
                    active=run.refresh.active,
                    edges_read=run.refresh.edges_read,
                    iterations=run.refresh.iterations,
                    started_over=run.refresh.started_over,
                    applied_up_to_seconds=float(times.max()) / 1000 if times.size else None,
                )
            if run.moved:
                self.metrics.program_moved(run.id)
        self._record_state()

    def _record_state(self) -> None:
        """What the published epoch is, rather than what made it."""
        for id, state in self.standing.states().items():
            self.metrics.program_state(id, state)
        for id, bound in self.standing.error_bounds().items():
            self.metrics.program_error_bound(id, bound)
        self.metrics.graph(
            vertices=self.graph.n_alive,
            dead_vertices=self.graph.n_vertices - self.graph.n_alive,
            edges=self.graph.n_edges,
            density=self.graph.density,
            memory_bytes=self.memory_bytes(),
        )
        self.sides.look()
        if self.window is not None:
            self.metrics.window(**self.window.shown())
        if self.keyed is not None:
            self.metrics.row_keys(len(self.keyed))
        self.metrics.published(self.position.incarnation, self.position.number)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes by structure: the graph's, the index's, each program's, and the buffers of checkpoints."""
        sizes = {f"graph_{name}": size for name, size in self.graph.memory_bytes().items()}
        sizes["index"] = self.index.memory_bytes() + self.reuse.memory_bytes()
        for program in self.engine.programs:
            sizes[f"program_{program.id}"] = bytes_of(program)
        sizes["checkpoint"] = self.checkpoints.memory_bytes()
        if self.window is not None:
            sizes["window"] = self.window.memory_bytes()
        if self.keyed is not None:
            sizes["row_keys"] = self.keyed.memory_bytes()
        return sizes

    def stats(self) -> dict[str, Any]:
        """What the ``stats`` request shows of the engine."""
        lag = self.source.lag()
        newest = self.checkpoints.newest
        recovery = self.health.recovery
        return {
            "stage": recovery.stage,
            "recovery": recovery.stats(),
            "vertices": self.graph.n_alive,
            "dead_vertices": self.graph.n_vertices - self.graph.n_alive,
            "edges": self.graph.n_edges,
            "directed": self.graph.directed,
            "weighted": self.graph.weighted,
            "updates_applied": self.position.updates,
            "queue_updates": self.queue.updates,
            "memory_bytes": self.memory_bytes(),
            "memory": self.memory.stats(),
            "numbering": self.numbering,
            "placement": self.sides.stats(),
            "lag": {"unit": self.source.unit, "amount": offsets_to_wire(lag.amount), "seconds": lag.seconds},
            "order": {**self.source.order, "trouble": self.recording.trouble},
            "waiting": self.source.waiting,
            "dead_letters": dict(self.dead_letters),
            "programs": self.standing.states(),
            **self.asked(),
            "audit": self.background_audit.stats(),
            **self.metrics.times(),
            "checkpoint": None if newest is None else self._covered(newest),
            **({} if self.results is None else {"results": self.results.stats()}),
            **({} if self.window is None else {"window": self.window.stats() | self._late()}),
            **({} if self.keyed is None else {"keyed": self.keyed.stats()}),
        }

    def _late(self) -> dict[str, int]:
        late = self.source.late
        return {} if late is None else {"late": late}

    def _covered(self, newest: Newest) -> dict[str, Any]:
        margin = self.source.log_margin(newest.offsets)
        return {
            "epoch": newest.epoch,
            "offsets": offsets_to_wire(newest.offsets),
            "log_margin_records": int(margin) if math.isfinite(margin) else None,
        }


def _alive_changed(change: GraphChange | None) -> Vertices:
    """The vertices that came to exist or ceased to; new ones need no mention."""
    if change is None:
        return np.empty(0, np.uint32)
    return np.concatenate([change.deleted_vertices, change.revived_vertices])
