"""The window: edges that are to go by themselves, some time after their last upserts or for want of room.

What goes are deletes that the engine adds to the stream, behind the epoch that made them due: with the updates of
the next one, before these, or in an epoch of its own, at most as many as an epoch may have. So an edge goes just
as if its producer had deleted it, and everything above the storage knows only that.

Each edge of the graph has a time (``edge_times.py``), and an entry in the order of what is due (``due.py``), which
is not touched when an upsert makes the time a later one: an entry that comes out too early goes in again. So the
window costs what comes and what goes, and memory for each edge, however often it is repeated.

What is due follows from the updates that were applied and, for ``length``, from event time
(``ingest/event_time.py``): the same ones come to the same graph, in whatever epochs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...gpma.edges import EMPTY_KEY, HALF, LOW, EdgeBatch, Keys, Op, Vertices, destinations, distinct, sources
from ...gpma.memory import Memory
from ...partition.existence import Deletions, VertexOps
from ...partition.graph import Graph, GraphChange, NoMemory
from ..ingest.dense import DenseBatch
from ..ingest.prepared import Prepared, times_of
from ..records.event_time import NO_TIME, EventState
from .due import DueEntries
from .edge_times import NEVER, EdgeTimes, Times, canonical

LOOKED_AT_PER_EDGE = 4
"""At most so many entries are looked at for each edge that an epoch has room for."""
STALE_MIN = 1 << 16
"""Entries that nobody needs any more are left until there are so many, and as many as edges."""
ENTRY_BYTES = 2 * 16
"""What an entry of the order takes, in columns that double."""
FOREVER = (1 << 63) - 1


class Window(ABC):
    """For the engine's thread: ``expiring`` before an epoch, ``make_room`` before it is applied, ``note`` then."""

    kind: str
    """What a checkpoint calls it: its times mean nothing to another one."""

    def __init__(self, graph: Graph, span: int, *, isolated: bool) -> None:
        """``span``: how far times usually lie apart; ``isolated``: whether vertices go with their last edges."""
        self.expired = 0
        self._graph = graph
        self._span = span
        self._memory = Memory()
        self._times = EdgeTimes(self._memory)
        self._due = DueEntries(span)
        self._with_vertices = isolated
        self._isolated: Vertices = np.empty(0, np.uint32)
        self._given = (0, 0)  # what ``expiring`` gave: edges, and vertices

    # -- what is to go ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def is_due(self) -> bool:
        """Whether edges, or vertices, are to go."""

    @abstractmethod
    def _oldest(self, n: int) -> Keys:
        """At most so many of the edges that are to go."""

    def expiring(self, n: int, offsets: Mapping[Any, int], item: int) -> Prepared | None:
        """What is to go, at most so many edges, for the epoch that is next; None: nothing. ``offsets`` and
        ``item``: of the epoch before. Until ``note`` it is not to be asked again."""
        if not self.is_due:
            return None
        # Deleted and inserted again before it was due, an edge has several entries.
        keys, vertices = distinct(self._oldest(n)), self._isolated
        self._isolated = vertices[:0]
        self._given = keys.size, vertices.size
        self.expired += keys.size
        ops = np.full(vertices.size, Op.DELETE_VERTEX, np.uint8)
        batch = DenseBatch(
            EdgeBatch(keys, np.full(keys.size, Op.DELETE, np.uint8)),
            VertexOps(vertices, ops, np.zeros(vertices.size, np.int64)) if vertices.size else None,
        )
        none = np.empty(0, np.int64)
        return Prepared([batch], batch.updates, self._graph.n_vertices, dict(offsets), none, none, item=item)

    def _expired_of(self, times: Times, keys: Keys) -> Keys:
        """Of entries that came out, the edges whose times they have; others that have a later one go in again."""
        now, known = self._times.of(keys)
        later = known & (now > times)
        self._due.add(now[later], keys[later])
        expired: Keys = keys[known & (now == times)]
        return expired

    # -- what came ----------------------------------------------------------------------------------------

    def make_room(self, batch: EdgeBatch) -> None:
        """Have memory for what a batch may add.

        Raises:
            NoMemory: there is none, and all is as before.
        """
        try:
            n = int(np.count_nonzero(batch.ops))
            self._memory.require(ENTRY_BYTES * n)
            self._times.ensure(n)
        except MemoryError as error:
            raise NoMemory(f"the window: {error}") from error

    def note(
        self, taken: Sequence[Prepared], batch: EdgeBatch, ops: VertexOps | None, change: GraphChange | None
    ) -> None:
        """An epoch was applied: what it took, as one batch, with what ``expiring`` gave in front."""
        (first, n_alone), self._given = self._given, (0, 0)
        keys = batch.keys if self._graph.directed else canonical(batch.keys)
        times = self._times_for(taken)
        self._times.note(keys[:first], batch.ops[:first], times[:first])
        keys, ops_of_rows, times = keys[first:], batch.ops[first:], times[first:]
        named = [_named(batch, ops)]
        deletions = None if ops is None else _deletions(ops, n_alone)
        if deletions is not None and change is not None:
            # What stands before the last deletion of an end goes with it.
            ends = _ends(batch.keys[first:])
            stays = np.arange(first, len(batch)) >= np.maximum(*map(Deletions.of(deletions).cut, ends))
            before = np.flatnonzero(~stays)
            self._noted(
                keys[before],
                ops_of_rows[before],
                times[before],
                self._begins(deletions, keys[before], first + before),
            )
            lost = self._lost_with(deletions, change)
            gone = np.concatenate([lost, keys[before]])
            self._noted(gone, np.full(gone.size, Op.DELETE, np.uint8), np.zeros(gone.size, np.int64))
            named += _ends(lost)
            keys, ops_of_rows, times = keys[stays], ops_of_rows[stays], times[stays]
        self._noted(keys, ops_of_rows, times)
        if len(self._due) > 2 * (len(self._times) + self._n_places_left) + STALE_MIN:
            self._order_anew()
        self._went_on(taken)
        if self._with_vertices and change is not None:
            self._isolated = self._alone(np.concatenate(named))

    def _noted(self, keys: Keys, ops: npt.NDArray[np.uint8], times: Times, begins: Times = NEVER) -> None:
        """Updates of producers in order. ``begins``: see ``EdgeTimes.note``."""
        fresh, fresh_times, left = self._times.note(keys, ops, times, begins)
        self._due.add(fresh_times, fresh)
        self._left(left)

    def _lost_with(self, deletions: VertexOps, change: GraphChange) -> Keys:
        """The edges that were there and went with a deleted vertex, whether they came back or not."""
        arcs = change.arcs
        keys = np.concatenate([arcs.deleted.keys, arcs.overwritten.keys])
        lost = np.logical_or(*(np.isin(end, deletions.vertices) for end in _ends(keys)))
        return keys[lost] if self._graph.directed else canonical(keys[lost])

    def _alone(self, vertices: Vertices) -> Vertices:
        """Those that are there and have no edge."""
        graph = self._graph
        alone = graph.alive[vertices] & (graph.degrees("out")[vertices] == 0)
        if graph.directed:
            alone &= graph.degrees("in")[vertices] == 0
        return distinct(vertices[alone])

    def _begins(self, deletions: VertexOps, keys: Keys, rows: npt.NDArray[np.int64]) -> Times:
        """From which time on an edge that these updates (rows of the batch) find is the one that they mean, and
        not one that went with a vertex before; ``NEVER``: it makes no difference."""
        return NEVER

    @abstractmethod
    def _times_for(self, taken: Sequence[Prepared]) -> Times:
        """int64[n]: the time of each edge update of a batch."""

    @abstractmethod
    def _left(self, times: Times) -> None:
        """Edges that had these times were deleted by others."""

    @abstractmethod
    def _went_on(self, taken: Sequence[Prepared]) -> None:
        """All of it was noted."""

    @property
    def _n_places_left(self) -> int:
        """How many entries are of no edge, and count all the same."""
        return 0

    def _order_anew(self) -> None:
        keys, times = self._times.all()
        self._due = DueEntries(self._span)
        self._due.add(times, keys)

    # -- being kept ---------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of it, as JSON can."""
        return {"kind": self.kind}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What a checkpoint keeps: ``keys`` (uint64[n]) of the edges that have times, and ``times`` (int64[n])."""
        keys, times = self._times.all()
        return {"keys": keys, "times": times}

    def restore(self, facts: Mapping[str, Any] | None, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from what a checkpoint kept; the graph is loaded. Without it (None), or where another kind of
        window made it, every edge counts as if it had come now."""
        self._times.ensure(self._graph.n_edges)
        if facts is None or facts["kind"] != self.kind:
            self._adopt()
        else:
            self._take_over(facts, arrays)
        if self._with_vertices:
            self._isolated = self._alone(np.arange(self._graph.n_vertices, dtype=np.uint32))

    def _take_over(self, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        keys = arrays["keys"]
        self._give(keys if self._graph.directed else canonical(keys), arrays["times"])

    @abstractmethod
    def _adopt(self) -> None:
        """No edge of the graph has a time."""

    def _give(self, keys: Keys, times: Times) -> None:
        """These edges get these times, where they have none."""
        _, known = self._times.of(keys)
        keys, times = keys[~known], times[~known]
        self._times.note(keys, np.full(keys.size, Op.INSERT, np.uint8), times)
        self._due.add(times, keys)

    def _edges(self) -> Keys:
        edges = self._graph.export()
        return edges.keys if self._graph.directed else edges.each_once().keys

    # -- being looked at ----------------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        return self._times.memory_bytes() + self._due.memory_bytes() + self._isolated.nbytes

    def shown(self) -> dict[str, Any]:
        """What metrics show."""
        return {"edges": len(self._times)}

    def stats(self) -> dict[str, Any]:
        """What the ``stats`` request shows."""
        return {"edges": len(self._times), "expired": self.expired, "is_due": self.is_due}


class TimeWindow(Window):
    """Edges last for some time after the newest of their upserts, in event time."""

    kind = "length"

    def __init__(self, graph: Graph, length_ms: int, *, isolated: bool) -> None:
        super().__init__(graph, length_ms, isolated=isolated)
        self.event = EventState()
        self._length_ms = length_ms
        self._adopts = False  # edges that have no time get the first one that event time has

    @property
    def is_due(self) -> bool:
        return bool(self._isolated.size) or self._due.is_due(self._limit)

    @property
    def _limit(self) -> int:
        time_ms = self.event.time_ms
        return NO_TIME if time_ms == NO_TIME else time_ms - self._length_ms

    def _oldest(self, n: int) -> Keys:
        found = [np.empty(0, np.uint64)]
        left = LOOKED_AT_PER_EDGE * n
        while n > 0 and left > 0:
            times, keys = self._due.take(self._limit, n)
            if not keys.size:
                break
            left -= keys.size
            found.append(self._expired_of(times, keys))
            n -= found[-1].size
        return np.concatenate(found)

    def _times_for(self, taken: Sequence[Prepared]) -> Times:
        return times_of(taken)

    def _left(self, times: Times) -> None:
        pass  # when their entries come out, they are not found

    def _went_on(self, taken: Sequence[Prepared]) -> None:
        states = [item.event for item in taken if item.event is not None]
        if not states:
            return
        self.event = states[-1]
        if self._adopts and self.event.time_ms > NO_TIME:
            began = next(state.time_ms for state in states if state.time_ms > NO_TIME)
            self._adopts = False
            keys = self._edges()
            self._times.ensure(keys.size - len(self._times))
            self._give(keys, np.full(keys.size, began, np.int64))

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "event": self.event.to_wire(), "adopts": self._adopts}

    def _take_over(self, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        super()._take_over(facts, arrays)
        self.event = EventState.from_wire(facts["event"])
        self._adopts = facts["adopts"]

    def _adopt(self) -> None:
        self._adopts = self._graph.n_edges > 0

    def shown(self) -> dict[str, Any]:
        time_ms = self.event.time_ms
        return {**super().shown(), "event_time_seconds": time_ms / 1000 if time_ms > NO_TIME else 0.0}

    def stats(self) -> dict[str, Any]:
        event = self.event
        begun = event.time_ms > NO_TIME
        return {
            **super().stats(),
            "length_seconds": self._length_ms / 1000,
            "event_time_ms": event.time_ms if begun else None,
            "newest_ms": max(event.newest.values(), default=None),
            "idle_partitions": len(event.idle),
        }


class CountWindow(Window):
    """The newest edges last: so many *places* there are, and each upsert of an edge takes it to the newest one.

    The place of an edge that a producer deletes stays taken, until so many newer ones are: otherwise it would
    matter in which epochs updates come whether an older edge is still there to stay for it.
    """

    kind = "count"

    def __init__(self, graph: Graph, count: int, *, isolated: bool) -> None:
        super().__init__(graph, count, isolated=isolated)
        self._count = count
        self._next = 0  # the time of the next update
        self._noting = 0  # how many updates the batch had that was noted last
        self._empty_places = 0

    @property
    def is_due(self) -> bool:
        return bool(self._isolated.size) or self._n_over > 0

    @property
    def _n_over(self) -> int:
        return len(self._times) + self._empty_places - self._count

    @property
    def _n_places_left(self) -> int:
        return self._empty_places

    def _oldest(self, n: int) -> Keys:
        found = [np.empty(0, np.uint64)]
        over, left = self._n_over, LOOKED_AT_PER_EDGE * n
        while min(n, over) > 0 and left > 0:
            times, keys = self._due.take(FOREVER, min(n, over))
            left -= keys.size
            empty = keys == EMPTY_KEY
            n_empty = int(np.count_nonzero(empty))
            self._empty_places -= n_empty
            found.append(self._expired_of(times[~empty], keys[~empty]))
            n -= found[-1].size
            over -= found[-1].size + n_empty
        return np.concatenate(found)

    def _times_for(self, taken: Sequence[Prepared]) -> Times:
        n = sum(len(batch.edges) for item in taken for batch in item.batches)
        first, self._next, self._noting = self._next, self._next + n, n
        return np.arange(first, first + n)

    def _begins(self, deletions: VertexOps, keys: Keys, rows: npt.NDArray[np.int64]) -> Times:
        last = np.maximum(*(_last_before(deletions, end, rows) for end in _ends(keys)))
        first = self._next - self._noting
        return np.where(last >= 0, first + last, -1)

    def _left(self, times: Times) -> None:
        self._empty_places += times.size
        self._due.add(times, np.full(times.size, EMPTY_KEY, np.uint64))

    def _went_on(self, taken: Sequence[Prepared]) -> None:
        pass

    def _order_anew(self) -> None:
        empty = self._due.times_of(EMPTY_KEY)
        super()._order_anew()
        self._due.add(empty, np.full(empty.size, EMPTY_KEY, np.uint64))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {**super().arrays(), "empty": self._due.times_of(EMPTY_KEY)}

    def _take_over(self, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        super()._take_over(facts, arrays)
        empty = arrays["empty"]
        self._left(empty)
        self._next = 1 + max(int(times.max(initial=-1)) for times in (arrays["times"], empty))

    def _adopt(self) -> None:
        keys = self._edges()
        self._give(keys, np.arange(keys.size))
        self._next = keys.size

    def stats(self) -> dict[str, Any]:
        return {**super().stats(), "count": self._count}


def _deletions(ops: VertexOps, n_alone: int) -> VertexOps | None:
    """The deletions of vertices that may have edges: those behind so many that have none; None: there are none."""
    deletes = Op.DELETE_VERTEX.among(ops.ops)
    deletes[:n_alone] = False
    return VertexOps(ops.vertices[deletes], ops.ops[deletes], ops.positions[deletes]) if deletes.any() else None


def _last_before(deletions: VertexOps, vertices: Vertices, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many edge updates stand before the last deletion of each vertex that stands before this one; -1:
    none."""
    known = np.sort((deletions.vertices.astype(np.uint64) << HALF) | deletions.positions.astype(np.uint64))
    wanted = (vertices.astype(np.uint64) << HALF) | rows.astype(np.uint64)
    at = np.searchsorted(known, wanted, side="right") - 1
    found = known[np.maximum(at, 0)]
    return np.where((at >= 0) & (found >> HALF == vertices), (found & LOW).astype(np.int64), -1)


def _ends(keys: Keys) -> tuple[Vertices, Vertices]:
    return sources(keys), destinations(keys)


def _named(batch: EdgeBatch, ops: VertexOps | None) -> Vertices:
    """Every vertex that a batch names, some more than once."""
    alone = [] if ops is None else [ops.vertices]
    return np.concatenate([*_ends(batch.keys), *alone])
