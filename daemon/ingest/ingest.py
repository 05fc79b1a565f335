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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.edges import NO_VERTEX, EdgeBatch, Op, Vertices, pack
from ...gpma.index.ids import IdColumn, concatenate_ids
from ...gpma.index.vertex_index import VertexIndex
from ...partition.existence import VertexOps
from ..engine.reuse import IdReuse
from ..errors import IdSpaceFull
from ..failpoints import point
from ..records.stream import BadRecord, DeadLetters, Decoded, Partition, RawRecord, Source, UpdateBlock
from ..tools.produce import Columns, canonical, partition_of
from .decode import Decoder
from .decode_columns import on_vertices

log = logging.getLogger(__name__)

ITEMS_MAX = 1024
"""The most items of a queue, since one without updates (bad records, tombstones) takes room as well."""

SAMPLED_EDGES = 8
"""How many edges of a record are checked to have come through their own partition."""

ROOM_PATIENCE_S = 300.0
"""How long ids that are on their way back are waited for while none comes; a checkpoint may hold them until it is
written."""
ROOM_PAUSE_S = 0.01
FULL_LOGGED_S = 60.0
"""That the id space is full is logged so often at most."""


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


class DenseBatch(NamedTuple):
    """A block of updates between dense vertices.

    ``vertices``: the operations on vertices, None where there are none. Deletions that named a vertex which
    never existed are left out, and counted: ``unknown`` of edges, ``unknown_vertices`` of vertices.
    """

    edges: EdgeBatch
    vertices: VertexOps | None = None
    unknown: int = 0
    unknown_vertices: int = 0

    @property
    def updates(self) -> int:
        """How many updates the block had."""
        named = 0 if self.vertices is None else len(self.vertices)
        return len(self.edges) + named + self.unknown + self.unknown_vertices


@dataclass(frozen=True, slots=True)
class Prepared:
    """Updates between dense vertices, and where the source stands after them.

    ``batches``: in order; ``updates``: how many they came from; ``n_vertices``: vertices known after these
    updates; ``record_times_ms`` and ``record_updates``: the time of each record and how many updates it brought,
    for freshness; ``item``: its number, rising; ``prepared_at``: ``time.perf_counter`` when it began to wait for
    the engine.
    """

    batches: Sequence[DenseBatch]
    updates: int
    n_vertices: int
    offsets: dict[Partition, int]
    record_times_ms: npt.NDArray[np.int64]
    record_updates: npt.NDArray[np.int64]
    item: int = 0
    prepared_at: float = field(default_factory=time.perf_counter)


class PreparedQueue:
    """A queue bounded by updates, and by ``ITEMS_MAX`` items; closing it wakes everybody."""

    def __init__(self, updates_max: int) -> None:
        self.updates_max = updates_max
        self._items: deque[Prepared] = deque()
        self._updates = 0
        self._closed = False
        self._held_back = False  # somebody waits for room: nothing more comes before something is taken
        self._changed = threading.Condition()

    @property
    def updates(self) -> int:
        """Updates that wait."""
        return self._updates

    @property
    def closed(self) -> bool:
        """Closed and empty: nothing will come any more."""
        with self._changed:
            return self._closed and not self._items

    def put(self, item: Prepared) -> bool:
        """Wait for room, then queue; False when the queue was closed instead.

        One item larger than the bound is let in alone: refusing it for ever would stop the stream.
        """
        with self._changed:
            while not self._closed and self._is_full_for(item):
                self._held_back = True
                self._changed.notify_all()
                self._changed.wait()
            if self._closed:
                return False
            self._items.append(item)
            self._updates += item.updates
            self._changed.notify_all()
            return True

    def _is_full_for(self, item: Prepared) -> bool:
        if len(self._items) >= ITEMS_MAX:
            return True
        return self._updates > 0 and self._updates + item.updates > self.updates_max

    def take(self, updates_max: int, timeout_s: float, linger_s: float = 0.0) -> list[Prepared]:
        """Everything that waits, up to ``updates_max`` updates (at least one item); empty after the timeout.

        Once there is an item, up to ``linger_s`` is waited for more of them, as long as there is room for more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed, timeout_s)
            if linger_s and self._items:
                self._changed.wait_for(
                    lambda: self._updates >= updates_max or self._held_back or self._closed, linger_s
                )
            self._held_back = False
            taken: list[Prepared] = []
            total = 0
            while self._items and (not taken or total + self._items[0].updates <= updates_max):
                taken.append(self._items.popleft())
                total += taken[-1].updates
            self._updates -= total
            self._changed.notify_all()
            return taken

    def close(self) -> None:
        """Let nothing more in; what waits can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class PlacementSample:
    """Checks a few edges of each record against the partition in which producers must place them.

    Between two partitions there is no order: updates of one pair that come through both can end either way.
    """

    def __init__(self, source: Source, *, directed: bool) -> None:
        self._source = source
        self._directed = directed
        self._warned: set[Partition] = set()

    def misrouted(self, decoded: Sequence[Decoded]) -> int:
        """How many of the sampled edges belong to another partition; logged once for each partition."""
        by_topic: dict[str, list[tuple[Partition, UpdateBlock]]] = {}
        for item in decoded:
            if item.block is not None and len(item.block) and item.record.partition.number is not None:
                by_topic.setdefault(item.record.partition.name, []).append((item.record.partition, item.block))
        total = 0
        for topic, blocks in by_topic.items():
            n_partitions = self._source.partition_count(topic)
            if n_partitions > 1:
                total += self._misrouted(blocks, n_partitions)
        return total

    def _misrouted(self, blocks: Sequence[tuple[Partition, UpdateBlock]], n_partitions: int) -> int:
        rows = [np.arange(0, len(block), -(-len(block) // SAMPLED_EDGES)) for _, block in blocks]
        src = concatenate_ids([block.src[some] for (_, block), some in zip(blocks, rows, strict=True)])
        if not self._directed:
            dst = concatenate_ids([block.dst[some] for (_, block), some in zip(blocks, rows, strict=True)])
            ops = np.concatenate([block.ops[some] for (_, block), some in zip(blocks, rows, strict=True)])
            src = canonical(Columns(src, dst, ops)).src
        came_through = np.repeat([partition.number for partition, _ in blocks], [some.size for some in rows])
        belongs_to = partition_of(src, n_partitions)
        wrong = np.flatnonzero(came_through != belongs_to)
        topic = blocks[0][0].name
        for number, owner in dict(
            zip(came_through[wrong].tolist(), belongs_to[wrong].tolist(), strict=True)
        ).items():
            if Partition(topic, number) not in self._warned:
                self._warned.add(Partition(topic, number))
                log.warning(
                    "%s/%d holds edges that belong to other partitions (one to %d): updates of one pair have no "
                    "order between partitions; producers must place edges by their src",
                    topic,
                    number,
                    owner,
                )
        return int(wrong.size)


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
    _placement: PlacementSample = field(init=False)

    def __post_init__(self) -> None:
        self._placement = PlacementSample(self.source, directed=self.directed)

    def run(self) -> None:
        """Poll until stopped.

        Raises:
            SourceError: the source cannot go on without losing or repeating records.
            IdSpaceFull: a new vertex found no id left, and none came back.
        """
        self._position = self.source.position()
        while not self.stop.is_set():
            self.commit_pending()
            self.reuse.step()
            started = time.perf_counter()
            raw = self.source.poll(self.poll_bytes_max, timeout_s=0.1)
            if raw:
                point("ingest.polled")
                self._handle(raw, time.perf_counter() - started)
            elif self._moved():
                self._queue(self._prepared([], [], self.source.position()))
        self.commit_pending()

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
            self.dead_letters.write(bad)
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

    def _moved(self) -> bool:
        """The source passed what is no record (an aborted transaction, say); somebody may wait for that."""
        return any(
            offset > self._position.get(partition, 0) for partition, offset in self.source.position().items()
        )

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


def dense_batch(block: UpdateBlock, index: VertexIndex) -> DenseBatch:
    """The block between dense vertices.

    Only inserts make vertices. Deletes are looked up after the whole block's inserts: whether a vertex was
    made before or after the delete of an edge that is not there, or of itself, makes no difference to the graph.

    Raises:
        IdSpaceFull: a new vertex found no id left.
    """
    if int(block.ops.max(initial=0)) > Op.INSERT:
        return _with_vertex_ops(block, index)
    inserts = block.ops == Op.INSERT
    if inserts.all():
        src, dst = _inserted(index, block.src, block.dst)
        return DenseBatch(EdgeBatch(pack(src, dst), block.ops, block.weights))
    _inserted(index, block.src[inserts], block.dst[inserts])
    src, dst = index.lookup(block.src), index.lookup(block.dst)
    known = (src != NO_VERTEX) & (dst != NO_VERTEX)
    unknown = int(known.size - np.count_nonzero(known))
    if unknown == 0:
        return DenseBatch(EdgeBatch(pack(src, dst), block.ops, block.weights))
    weights = None if block.weights is None else block.weights[known]
    return DenseBatch(EdgeBatch(pack(src[known], dst[known]), block.ops[known], weights), unknown=unknown)


def _with_vertex_ops(block: UpdateBlock, index: VertexIndex) -> DenseBatch:
    """``dense_batch`` where some updates are operations on vertices."""
    n = len(block)
    vertex_op = on_vertices(block.ops)
    # A vertex alone stands for both ends, so that new ones are numbered in order of first appearance.
    heads = concatenate_ids([block.src, block.dst])[np.where(vertex_op, np.arange(n), np.arange(n, 2 * n))]
    inserts = (block.ops == Op.INSERT) | (block.ops == Op.INSERT_VERTEX)
    _inserted(index, block.src[inserts], heads[inserts])
    src, dst = index.lookup(block.src), index.lookup(heads)
    known = (src != NO_VERTEX) & (dst != NO_VERTEX)
    edge, vertex = known & ~vertex_op, known & vertex_op
    weights = None if block.weights is None else block.weights[edge]
    positions = np.cumsum(edge, dtype=np.int64)
    unknown_vertices = int(np.count_nonzero(vertex_op & ~known))
    return DenseBatch(
        EdgeBatch(pack(src[edge], dst[edge]), block.ops[edge], weights),
        VertexOps(src[vertex], block.ops[vertex], positions[vertex]),
        unknown=int(np.count_nonzero(~known)) - unknown_vertices,
        unknown_vertices=unknown_vertices,
    )


def _inserted(index: VertexIndex, src: IdColumn, dst: IdColumn) -> tuple[Vertices, Vertices]:
    try:
        return index.insert_edges(src, dst)
    except OverflowError as error:
        raise IdSpaceFull(str(error)) from error


def concatenate(prepared: Sequence[Prepared], *, weighted: bool) -> tuple[EdgeBatch, VertexOps | None]:
    """One batch of all updates, in order; weights only where the graph keeps them."""
    dense = [batch for item in prepared for batch in item.batches]
    batches = [batch.edges for batch in dense]
    if not batches:
        return EdgeBatch(np.empty(0, np.uint64), np.empty(0, np.uint8)), None
    weights = None
    if weighted and any(batch.weights is not None for batch in batches):
        weights = np.concatenate(
            [np.ones(len(batch), np.float32) if batch.weights is None else batch.weights for batch in batches]
        )
    keys = np.concatenate([batch.keys for batch in batches])
    edges = EdgeBatch(keys, np.concatenate([batch.ops for batch in batches]), weights)
    return edges, _concatenated_vertex_ops(dense)


def _concatenated_vertex_ops(batches: Sequence[DenseBatch]) -> VertexOps | None:
    parts, start = [], 0
    for batch in batches:
        if batch.vertices is not None:
            parts.append((batch.vertices, start))
        start += len(batch.edges)
    if not parts:
        return None
    return VertexOps(
        np.concatenate([part.vertices for part, _ in parts]),
        np.concatenate([part.ops for part, _ in parts]),
        np.concatenate([part.positions + before for part, before in parts]),
    )
