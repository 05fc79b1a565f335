"""From the source to the engine's door: read a step, decode, give dense ids, queue.

This runs ahead of the engine on a thread of its own. The queue between them is bounded by updates, so that a
slow engine holds the source back instead of filling memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ...gpma.edges import Op, Ops
from ...gpma.index.vertex_index import VertexIndex
from ..backoff import Backoff
from ..errors import IdSpaceFull
from ..failpoints import point
from ..health import Recovery
from ..long_waits import LongWaits
from ..records.event_time import UNLIMITED, EventState
from ..records.stream import (
    BadRecord,
    DeadLetters,
    DeadLettersFull,
    Decoded,
    Lag,
    Offsets,
    Partition,
    RawRecord,
    Source,
    UpdateBlock,
)
from .barriers import Barriers
from .decode import Decoder
from .dense import DenseBatch, dense_batch, dense_batches
from .event_time import EventTime
from .misrouted import PlacementSample
from .ordered import OrderedReader, Step
from .prepared import Prepared, PreparedQueue
from .refusals import LateLog, RefusalLog
from .registry import RegistryAway
from .reuse import IdReuse

log = logging.getLogger(__name__)

ROOM_PATIENCE_S = 300.0
"""How long ids that are on their way back are waited for while none comes; a checkpoint may hold them until it is
written."""
ROOM_PAUSE_S = 0.01
MEMORY_PAUSE_S = 0.1
INDEX_PAUSE_S = 1.0
"""So often the vertex index is asked again to take ids that it found no memory for."""
FULL_LOGGED_S = 60.0
"""That the id space is full is logged so often at most."""
LETTERS_RETRY_S = 1.0
"""Bad records that find no room are tried again so often. When we fall further behind meanwhile, an epoch without
updates says so."""


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Held:
    """Why nothing is read for now, and how far behind that leaves us."""

    why: str
    lag: Lag


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What one step came to, for the metrics; times in seconds. ``late``: upserts that came too late for their
    edges to last; ``misrouted``: of the edges that were sampled."""

    records: int
    bytes: int
    tombstones: int
    inserts: int
    deletes: int
    vertex_inserts: int
    vertex_deletes: int
    self_loops_dropped: int
    late: int
    misrouted: int
    ids_reused: int
    bad: Sequence[BadRecord]
    poll_seconds: float
    decode_seconds: float
    index_seconds: float


@dataclass(slots=True)
class Ingest:
    """The loop from source to queue; ``run`` returns when ``stop`` is set or the source cannot go on."""

    source: Source
    decoder: Decoder
    index: VertexIndex
    reuse: IdReuse
    dead_letters: DeadLetters
    queue: PreparedQueue
    report: Callable[[IngestReport], None]
    poll_bytes_max: int
    directed: bool = True
    barrier_timeout_s: float = 60.0
    recovery: Recovery = field(default_factory=Recovery)
    has_memory: Callable[[], bool] = lambda: True
    memory_refused: Callable[[str], None] = lambda reason: None
    memory_granted: Callable[[], None] = lambda: None
    engine_waits: Callable[[], bool] = lambda: False
    stop: threading.Event = field(default_factory=threading.Event)
    dead_letters_by_reason: Counter[str] = field(default_factory=Counter)
    clock: Callable[[], float] = time.monotonic
    event_time: EventTime | None = None
    counts_order: bool = False
    withheld: str | None = None
    """Why reading does not begin, in words, as whoever keeps us from it says."""
    long_waits: LongWaits = field(default_factory=lambda: LongWaits("nothing is read meanwhile"))
    reader: OrderedReader = field(init=False)
    _safe: deque[dict[Partition, int]] = field(default_factory=deque)
    _position: dict[Partition, int] = field(default_factory=dict)
    _items: int = 0
    _full_logged_at: float = -FULL_LOGGED_S
    _held: _Held | None = None
    _placement: PlacementSample = field(init=False)
    _refusals: RefusalLog = field(init=False)
    _late: LateLog = field(init=False)

    def __post_init__(self) -> None:
        self.reader = OrderedReader(self.source, Barriers(self.barrier_timeout_s, self.clock), self.clock)
        self._placement = PlacementSample(self.source, directed=self.directed)
        self._refusals = RefusalLog(self.clock)
        self._late = LateLog(self.clock)

    @property
    def unit(self) -> str:
        """What ``Lag.amount`` counts."""
        return self.source.unit

    @property
    def waiting(self) -> str | None:
        """What keeps us from reading on, in words; None while nothing does. Any thread may ask."""
        return self._why_waiting or self.long_waits.now

    @property
    def _why_waiting(self) -> str | None:
        """As somebody knows it who does not only see that it takes long."""
        held = self._held
        return self.withheld or (self.reader.waiting if held is None else held.why)

    def tell_long_waits(self) -> None:
        """To be called now and then by another thread: log what takes long, unless it is known why."""
        self.long_waits.tell(known=self._why_waiting is not None)

    @property
    def late(self) -> int | None:
        """How many upserts came too late; None where edges do not expire by time. Any thread may ask."""
        return None if self.event_time is None else self._late.total

    def lag(self) -> Lag:
        """How far behind its end the source is, and what was read of it but waits here. Any thread may ask."""
        held = self._held
        return self.reader.lag() if held is None else held.lag

    def log_margin(self, offsets: Offsets) -> float:
        """See ``Source.log_margin``."""
        return self.source.log_margin(offsets)

    @property
    def order(self) -> dict[str, Any]:
        """Whether the order of before is gone along, and which barriers wait. Any thread may ask."""
        return self.reader.state()

    def run(self, published: Offsets | None = None) -> None:
        """Poll until stopped. ``published``: the offsets that answers show so far (None: the source's position).

        Raises:
            SourceError: the source cannot go on without losing or repeating records.
            IdSpaceFull: a new vertex found no id left, and none came back.
        """
        self._position = self.reader.position() if published is None else dict(published)
        try:
            self._read_on()
        finally:
            self._refusals.say(now=True)
            self._late.say(now=True)
        self.commit_pending()

    def _read_on(self) -> None:
        order, polled_at = self.order, self.clock()
        while not self.stop.is_set():
            self.commit_pending()
            self.reuse.step()
            self._refusals.say()
            self._late.say()
            if not self.has_memory():
                self.stop.wait(MEMORY_PAUSE_S)
                continue
            # While we waited for room, for memory or for ids, nothing could reach a barrier.
            self.reader.barriers.postpone(self.clock() - polled_at)
            started = time.perf_counter()
            with self.long_waits.during("reading from the source"):
                step = self.reader.poll(self.poll_bytes_max, timeout_s=0.1)
            polled_at = self.clock()
            if self.event_time is not None:
                self.event_time.looked(self.source.outages, came=bool(step.records))
            if step.records:
                point("ingest.polled")
                self._handle(step, time.perf_counter() - started)
                if self.recovery.over and not any(self.reader.lag().amount.values()):  # all that came is read
                    self.queue.pause()
            elif self._moved(step) or order != self.order:
                self._queue(self._prepared([], [], step.offsets, step, self._event))
            order = self.order
            if not self.recovery.over:
                self.recovery.read(self.reader.backlog(), self._items)

    def commit_soon(self, offsets: dict[Partition, int]) -> None:
        """A checkpoint holds these offsets: tell the source, on the one thread that may call it."""
        self._safe.append(offsets)

    def commit_pending(self) -> None:
        """Pass on what ``commit_soon`` was told."""
        while self._safe:
            with self.long_waits.during("telling the source of a checkpoint"):
                self.source.checkpointed(self._safe.popleft())
            point("source.committed")

    def _handle(self, step: Step, poll_seconds: float) -> None:
        raw = step.records
        latest_ms = UNLIMITED
        if self.event_time is not None:
            latest_ms = self.event_time.latest_ms(step)
            self.decoder.accept_until(latest_ms)
        done = self._decoded(step)
        if done is None:
            return
        decoded, decode_seconds = done
        point("ingest.decoded")
        bad = [letter for item in decoded for letter in item.bad]
        if bad:
            if not self._set_aside(bad, step):
                return
            self._refusals.note(bad)
            self.dead_letters_by_reason.update(letter.reason for letter in bad)
            point("ingest.dead_letter")
        started = time.perf_counter()
        reused_before = self.reuse.reused
        late, began = 0, self._event
        if self.event_time is not None:
            timed = self.event_time.take(step, decoded, latest_ms, self.reader.lag().amount)
            decoded, late = timed.decoded, timed.late
            self._late.note(late, timed.example)
            step = step._replace(decided=timed.decided, ordered=step.ordered or timed.together)
        prepared = self._prepare(decoded, step, began)
        if prepared is None:
            return
        index_seconds = time.perf_counter() - started
        ops = counted([item.block.ops for item in decoded if item.block is not None])
        self.report(
            IngestReport(
                records=len(raw),
                bytes=sum(len(record.value or b"") for record in raw),
                tombstones=sum(record.value is None for record in raw),
                inserts=ops[Op.INSERT],
                deletes=ops[Op.DELETE],
                vertex_inserts=ops[Op.INSERT_VERTEX],
                vertex_deletes=ops[Op.DELETE_VERTEX],
                self_loops_dropped=sum(item.self_loops_dropped for item in decoded),
                late=late,
                misrouted=self._placement.misrouted(decoded),
                ids_reused=self.reuse.reused - reused_before,
                bad=bad,
                poll_seconds=poll_seconds,
                decode_seconds=decode_seconds,
                index_seconds=index_seconds,
            )
        )
        self._queue(prepared)

    def _decoded(self, step: Step) -> tuple[Sequence[Decoded], float] | None:
        """The decoded records of a step, and the seconds that it took, once their schemas can be had, and the
        memory for what is bad of them; None: stopped before.

        While that is waited for nothing is read, and whoever looks is told so.
        """
        return self._within_memory(lambda: self._decoded_once_known(step), step, "decoding")

    def _decoded_once_known(self, step: Step) -> tuple[Sequence[Decoded], float] | None:
        """As ``_decoded``, once their schemas can be had.

        Raises:
            MemoryError: there is none for what is bad of them.
        """
        waits_since: float | None = None
        backoff = Backoff()
        try:
            while True:
                started = time.perf_counter()
                try:
                    decoded = self.decoder.decode_all(step.records)
                    if self.index.room < 2 * sum(len(item.block) for item in decoded if item.block is not None):
                        # Ids may run out: what stands before a record that finds none may give some back.
                        decoded = self.decoder.each_alone(decoded, step.records)
                except RegistryAway as away:
                    if self.stop.is_set():
                        return None
                    if waits_since is None:
                        waits_since = self.clock()
                        log.error("%s; reading waits for it", away.message)
                    self._hold(away.message, self.clock() - waits_since, step)
                else:
                    if waits_since is not None:
                        log.info("the schema registry answers again after %.0f s", self.clock() - waits_since)
                    return decoded, time.perf_counter() - started
                if self.stop.wait(backoff.wait_s()):
                    return None
                self.reuse.step()
        finally:
            self._held = None

    def _set_aside(self, bad: Sequence[BadRecord], step: Step) -> bool:
        """Write the bad ones of these records to the dead letters, once they find room; False: stopped before.

        While they wait nothing is read, and whoever looks is told so.
        """
        waits_since: float | None = None
        try:
            while True:
                try:
                    with self.long_waits.during("writing dead letters"):
                        self.dead_letters.write(bad)
                except DeadLettersFull as full:
                    if waits_since is None:
                        waits_since = self.clock()
                        log.error(full.message)
                    bad = bad[full.taken :]
                    self._hold(full.message, self.clock() - waits_since, step)
                else:
                    if waits_since is not None:
                        log.info("bad records find room again after %.0f s", self.clock() - waits_since)
                    return True
                if self.stop.wait(LETTERS_RETRY_S):
                    return False
                # Nothing is committed meanwhile: the source may be done with a file whose letter waits here.
                self.reuse.step()
        finally:
            self._held = None

    def _within_memory(self, work: Callable[[], _T], step: Step, whose: str = "the vertex index") -> _T | None:
        """What decodes the records of a step, or gives them dense ids, as soon as it finds memory for them; None:
        stopped before. ``whose``: who asks, in words.

        While they wait nothing is read, and whoever looks is told so. Some new ids may have got their vertices
        already, and keep them: so nothing is queued meanwhile, which would make these part of an epoch before
        theirs. Nor does a dense id change hands, since what else of the step has its own is not queued yet.

        Raises:
            IdSpaceFull: as ``work`` does.
        """
        waits_since: float | None = None
        try:
            while True:
                try:
                    return work()
                except MemoryError as error:
                    if waits_since is None:
                        waits_since = self.clock()
                    why = f"{whose}: {error}"
                    self.memory_refused(why)
                    self._show_held(why, self.clock() - waits_since, step)
                if self.stop.wait(INDEX_PAUSE_S):
                    return None
        finally:
            if waits_since is not None:
                self._held = None
                self.memory_granted()

    def _hold(self, why: str, seconds: float, step: Step) -> None:
        """Show that the records of a step have waited for so many seconds, and how far behind we are meanwhile; if
        that is another state than before, by an epoch without updates."""
        before, queued = self._held, self._before(step.records, step)
        held = self._show_held(why, seconds, step)
        if before is None or before.lag.amount != held.lag.amount:
            unread = Step([], queued, step.late, recorded=step.recorded)
            self._queue(self._prepared([], [], queued, unread, self._event))

    def _show_held(self, why: str, seconds: float, step: Step) -> _Held:
        self.source.refresh_lag()
        lag = self.reader.lag()
        amount = dict(lag.amount)
        queued = self._before(step.records, step)
        for partition, offset in step.offsets.items():
            amount[partition] = amount.get(partition, 0) + offset - queued[partition]
        self._held = _Held(why, Lag(amount, max(lag.seconds, seconds)))
        return self._held

    def _moved(self, step: Step) -> bool:
        """The source passed what is no record (an aborted transaction, say), for which somebody may wait; or it is
        done with a file, which answers need not name any more.
        """
        if self._position.keys() - step.offsets.keys():
            return True
        return any(offset > self._position.get(partition, 0) for partition, offset in step.offsets.items())

    def _queue(self, prepared: Prepared) -> None:
        for gone in self._position.keys() - prepared.offsets.keys():
            self.decoder.forget(gone)
        self._position = prepared.offsets
        if self.queue.put(prepared):
            point("ingest.queued")

    @property
    def _event(self) -> EventState | None:
        return None if self.event_time is None else self.event_time.state

    def _prepare(self, decoded: Sequence[Decoded], step: Step, began: EventState | None) -> Prepared | None:
        """The updates of these records between dense vertices; None: it was stopped while it waited for ids.

        ``began``: how far event time had come before them. What stands before a record that finds no ids is queued
        first: vertices that it deletes may make room.
        """
        blocks = [item.block for item in decoded if item.block is not None]
        if self.index.room >= 2 * sum(map(len, blocks)):
            all_batches = self._within_memory(lambda: dense_batches(blocks, self.index), step)
            if all_batches is None:
                return None
            return self._prepared(decoded, all_batches, step.offsets, step, self._event)
        begin, batches = 0, list[DenseBatch]()
        for number, item in enumerate(decoded):
            if item.block is None:
                continue
            block: UpdateBlock = item.block
            try:
                batch = self._within_memory(partial(dense_batch, block, self.index), step)
            except IdSpaceFull as full:
                if batches:
                    before = self._before([item.record for item in decoded[number:]], step)
                    event, first = None, step
                    if self.event_time is not None and began is not None:
                        event, decided = self.event_time.part_way(began, decoded, number, step, before)
                        first = step._replace(decided=decided)
                    self._queue(self._prepared(decoded[begin:number], batches, before, first, event))
                    begin, batches = number, []
                batch = self._dense_with_room(block, full, step)
            if batch is None:
                return None
            batches.append(batch)
        return self._prepared(decoded[begin:], batches, step.offsets, step, self._event)

    def _prepared(
        self,
        decoded: Sequence[Decoded],
        batches: Sequence[DenseBatch],
        offsets: dict[Partition, int],
        step: Step,
        event: EventState | None,
    ) -> Prepared:
        blocks = [(item.record, item.block) for item in decoded if item.block is not None]
        self._items += 1
        self.reuse.queued(self._items, batches)
        return Prepared(
            batches=batches,
            updates=sum(batch.updates for batch in batches),
            n_vertices=self.index.n_vertices,
            offsets=offsets,
            record_times_ms=np.array([record.timestamp_ms for record, _ in blocks], np.int64),
            record_updates=np.array([len(block) for _, block in blocks], np.int64),
            # Edges of one pair are in one partition; only deletions of vertices meet updates of others.
            together=step.ordered
            or (self.counts_order and bool(blocks))
            or any(
                int(block.ops.max(initial=0)) == Op.DELETE_VERTEX
                for (_, block), batch in zip(blocks, batches, strict=True)
                if batch.vertices is not None
            ),
            recorded=step.recorded,
            late=step.late,
            item=self._items,
            event=event,
            decided=step.decided,
        )

    def _before(self, records: Sequence[RawRecord], step: Step) -> dict[Partition, int]:
        """Where the reader stood before the first of these, which are the last of the step."""
        first = {record.partition: record.offset for record in reversed(records)}
        return step.offsets | first

    def _dense_with_room(self, block: UpdateBlock, full: IdSpaceFull, step: Step) -> DenseBatch | None:
        """``dense_batch``, as soon as ids of deleted vertices have come back; None: stopped before.

        Everything that refers to dense ids must be queued. Epochs go on meanwhile.

        Raises:
            IdSpaceFull: no more of them can come back, or none did for long.
        """
        waited_from = self.clock()
        if waited_from - self._full_logged_at >= FULL_LOGGED_S:
            self._full_logged_at = waited_from
            log.warning("%s: waiting for the ids of deleted vertices", full)
        while not self.stop.wait(ROOM_PAUSE_S):
            self.commit_pending()
            room = self.index.room
            self.reuse.step(eager=True)
            if self.index.room > room:
                waited_from = self.clock()
                try:
                    return self._within_memory(lambda: dense_batch(block, self.index), step)
                except IdSpaceFull as still_full:
                    full = still_full
            elif self.engine_waits():
                waited_from = self.clock()
            elif not self.reuse.expects_ids or self.clock() - waited_from > ROOM_PATIENCE_S:
                raise full
        return None


def counted(columns: Sequence[Ops]) -> list[int]:
    """How many of the updates in these columns are of each ``Op``."""
    counts = [0] * len(Op)
    for column in columns:
        if int(column.max(initial=0)) <= Op.INSERT:  # all but a few columns: and what is not 0 is soon counted
            inserts = int(np.count_nonzero(column))
            counts[Op.INSERT] += inserts
            counts[Op.DELETE] += column.size - inserts
        else:
            for op, n in enumerate(np.bincount(column, minlength=len(Op)).tolist()):
                counts[op] += n
    return counts
