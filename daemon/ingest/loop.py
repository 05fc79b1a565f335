"""From the source to the engine's door: poll, decode, give dense ids, queue.

This runs ahead of the engine on a thread of its own. The queue between them is bounded by updates, so that a
slow engine holds the source back instead of filling memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...gpma.edges import Op
from ...gpma.index.vertex_index import VertexIndex
from ..errors import IdSpaceFull
from ..failpoints import point
from ..records.stream import (
    BadRecord,
    DeadLetters,
    DeadLettersFull,
    Decoded,
    Lag,
    Partition,
    RawRecord,
    Source,
    UpdateBlock,
)
from .decode import Decoder
from .dense import DenseBatch, dense_batch
from .misrouted import PlacementSample
from .prepared import Prepared, PreparedQueue
from .refusals import RefusalLog
from .reuse import IdReuse

log = logging.getLogger(__name__)

ROOM_PATIENCE_S = 300.0
"""How long ids that are on their way back are waited for while none comes; a checkpoint may hold them until it is
written."""
ROOM_PAUSE_S = 0.01
FULL_LOGGED_S = 60.0
"""That the id space is full is logged so often at most."""
LETTERS_RETRY_S = 1.0
"""Bad records that find no room are tried again so often. When we fall further behind meanwhile, an epoch without
updates says so."""


@dataclass(frozen=True, slots=True)
class _Held:
    """Why nothing is read for now, and how far behind that leaves us."""

    why: str
    lag: Lag


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What one poll came to, for the metrics; times in seconds. ``misrouted``: of the edges that were sampled."""

    records: int
    bytes: int
    tombstones: int
    inserts: int
    deletes: int
    vertex_inserts: int
    vertex_deletes: int
    self_loops_dropped: int
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
    stop: threading.Event = field(default_factory=threading.Event)
    clock: Callable[[], float] = time.monotonic
    _safe: deque[dict[Partition, int]] = field(default_factory=deque)
    _position: dict[Partition, int] = field(default_factory=dict)
    _items: int = 0
    _full_logged_at: float = -FULL_LOGGED_S
    _held: _Held | None = None
    _placement: PlacementSample = field(init=False)
    _refusals: RefusalLog = field(init=False)

    def __post_init__(self) -> None:
        self._placement = PlacementSample(self.source, directed=self.directed)
        self._refusals = RefusalLog(self.clock)

    @property
    def unit(self) -> str:
        """What ``Lag.amount`` counts."""
        return self.source.unit

    @property
    def waiting(self) -> str | None:
        """What keeps us from reading on, in words; None while nothing does. Any thread may ask."""
        held = self._held
        return None if held is None else held.why

    def lag(self) -> Lag:
        """How far behind its end the source is, and what was read of it but waits here. Any thread may ask."""
        held = self._held
        return self.source.lag() if held is None else held.lag

    def run(self) -> None:
        """Poll until stopped.

        Raises:
            SourceError: the source cannot go on without losing or repeating records.
            IdSpaceFull: a new vertex found no id left, and none came back.
        """
        self._position = self.source.position()
        try:
            self._read_on()
        finally:
            self._refusals.say(now=True)
        self.commit_pending()

    def _read_on(self) -> None:
        while not self.stop.is_set():
            self.commit_pending()
            self.reuse.step()
            self._refusals.say()
            started = time.perf_counter()
            raw = self.source.poll(self.poll_bytes_max, timeout_s=0.1)
            if raw:
                point("ingest.polled")
                self._handle(raw, time.perf_counter() - started)
            elif self._moved():
                self._queue(self._prepared([], [], self.source.position()))

    def commit_soon(self, offsets: dict[Partition, int]) -> None:
        """A checkpoint holds these offsets: tell the source, on the one thread that may call it."""
        self._safe.append(offsets)

    def commit_pending(self) -> None:
        """Pass on what ``commit_soon`` was told."""
        while self._safe:
            self.source.checkpointed(self._safe.popleft())
            point("source.committed")

    def _handle(self, raw: list[RawRecord], poll_seconds: float) -> None:
        started = time.perf_counter()
        decoded = [self.decoder.decode(record) for record in raw]
        decode_seconds = time.perf_counter() - started
        point("ingest.decoded")
        bad = [letter for item in decoded for letter in item.bad]
        if bad:
            if not self._set_aside(bad, decoded):
                return
            self._refusals.note(bad)
            point("ingest.dead_letter")
        started = time.perf_counter()
        reused_before = self.reuse.reused
        prepared = self._prepare(decoded)
        if prepared is None:
            return
        index_seconds = time.perf_counter() - started
        blocks = [item.block for item in decoded if item.block is not None]
        ops = {op: sum(int(np.count_nonzero(block.ops == op)) for block in blocks) for op in Op}
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
                misrouted=self._placement.misrouted(decoded),
                ids_reused=self.reuse.reused - reused_before,
                bad=bad,
                poll_seconds=poll_seconds,
                decode_seconds=decode_seconds,
                index_seconds=index_seconds,
            )
        )
        self._queue(prepared)

    def _set_aside(self, bad: Sequence[BadRecord], decoded: Sequence[Decoded]) -> bool:
        """Write the bad ones of these records to the dead letters, once they find room; False: stopped before.

        While they wait nothing is read, and whoever looks is told so.
        """
        waits_since: float | None = None
        try:
            while True:
                try:
                    self.dead_letters.write(bad)
                except DeadLettersFull as full:
                    if waits_since is None:
                        waits_since = self.clock()
                        log.error(full.message)
                    bad = bad[full.taken :]
                    self._hold(full.message, self.clock() - waits_since, decoded)
                else:
                    if waits_since is not None:
                        log.info("bad records find room again after %.0f s", self.clock() - waits_since)
                    return True
                if self.stop.wait(LETTERS_RETRY_S):
                    return False
                self.commit_pending()
                self.reuse.step()
        finally:
            self._held = None

    def _hold(self, why: str, seconds: float, decoded: Sequence[Decoded]) -> None:
        """Show that these records have waited for so many seconds, and how far behind we are meanwhile."""
        self.source.refresh_lag()
        lag = self.source.lag()
        amount = dict(lag.amount)
        queued = self._before(decoded)
        for partition, offset in self.source.position().items():
            amount[partition] = amount.get(partition, 0) + offset - queued[partition]
        before, self._held = self._held, _Held(why, Lag(amount, max(lag.seconds, seconds)))
        if before is None or before.lag.amount != amount:
            self._queue(self._prepared([], [], self._position))

    def _moved(self) -> bool:
        """The source passed what is no record (an aborted transaction, say), for which somebody may wait; or it is
        done with a file, which answers need not name any more.
        """
        position = self.source.position()
        if self._position.keys() - position.keys():
            return True
        return any(offset > self._position.get(partition, 0) for partition, offset in position.items())

    def _queue(self, prepared: Prepared) -> None:
        for gone in self._position.keys() - prepared.offsets.keys():
            self.decoder.forget(gone)
        self._position = prepared.offsets
        if self.queue.put(prepared):
            point("ingest.queued")

    def _prepare(self, decoded: Sequence[Decoded]) -> Prepared | None:
        """The updates of these records between dense vertices; None: it was stopped while it waited for ids.

        What stands before a record that finds no ids is queued first: vertices that it deletes may make room.
        """
        begin, batches = 0, list[DenseBatch]()
        for number, item in enumerate(decoded):
            if item.block is None:
                continue
            try:
                batch = dense_batch(item.block, self.index)
            except IdSpaceFull as full:
                if batches:
                    self._queue(self._prepared(decoded[begin:number], batches, self._before(decoded[number:])))
                    begin, batches = number, []
                found = self._dense_with_room(item.block, full)
                if found is None:
                    return None
                batch = found
            batches.append(batch)
        return self._prepared(decoded[begin:], batches, self.source.position())

    def _prepared(
        self, decoded: Sequence[Decoded], batches: Sequence[DenseBatch], offsets: dict[Partition, int]
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
            item=self._items,
        )

    def _before(self, decoded: Sequence[Decoded]) -> dict[Partition, int]:
        """Where the source stood before the first of these, which are the last that it gave."""
        first = {item.record.partition: item.record.offset for item in reversed(decoded)}
        return self.source.position() | first

    def _dense_with_room(self, block: UpdateBlock, full: IdSpaceFull) -> DenseBatch | None:
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
                    return dense_batch(block, self.index)
                except IdSpaceFull as still_full:
                    full = still_full
            elif not self.reuse.expects_ids or self.clock() - waited_from > ROOM_PATIENCE_S:
                raise full
        return None
