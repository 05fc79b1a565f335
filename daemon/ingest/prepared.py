"""What waits at the engine's door: updates between dense vertices, in a bounded queue."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...gpma.edges import EdgeBatch
from ...partition.existence import VertexOps
from ..records.event_time import EventState
from ..records.stream import Decided, LateBarrier, Partition
from .dense import DenseBatch

ITEMS_MAX = 1024
"""The most items of a queue, since one without updates (bad records, tombstones) takes room as well."""

PAUSE_MIN_S, PAUSE_MAX_S = 0.002, 0.02
"""Shorter pauses bring nothing together, and longer ones are not worth being later."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Updates between dense vertices, and where the source stands after them.

    ``batches``: in order; ``updates``: how many they came from; ``n_vertices``: vertices known after these
    updates; ``record_times_ms`` and ``record_updates``: the time of each record and how many updates it brought,
    for freshness; ``together``: their order between partitions can matter; ``recorded``: the order log has it
    already; ``late``: the barriers that nobody waits for any more from there on; ``item``: its number, rising;
    ``event``: how far event time has come, where edges expire by it, and ``decided``, what the clock on the wall
    did about that; ``prepared_at``: ``time.perf_counter`` when it began to wait for the engine.
    """

    batches: Sequence[DenseBatch]
    updates: int
    n_vertices: int
    offsets: dict[Partition, int]
    record_times_ms: npt.NDArray[np.int64]
    record_updates: npt.NDArray[np.int64]
    together: bool = False
    recorded: bool = False
    late: tuple[LateBarrier, ...] = ()
    item: int = 0
    event: EventState | None = None
    decided: Decided | None = None
    prepared_at: float = field(default_factory=time.perf_counter)


class PreparedQueue:
    """A queue bounded by updates, and by ``ITEMS_MAX`` items; closing it wakes everybody."""

    def __init__(self, updates_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.updates_max = updates_max
        self._clock = clock
        self._items: deque[Prepared] = deque()
        self._updates = 0
        self._closed = False
        self._woken = False
        self._held_back = False  # somebody waits for room: nothing more comes before something is taken
        self._taken_at, self._epoch_s = -math.inf, 0.0  # when something was, and how long before that
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
        """Everything that waits, up to ``updates_max`` updates (at least one item); empty after the timeout, or
        after ``wake``.

        Once there is an item, up to ``linger_s`` is waited for more of them, as long as there is room for more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed or self._woken, timeout_s)
            self._woken = False
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
            if taken:
                before, self._taken_at = self._taken_at, self._clock()
                self._epoch_s = self._taken_at - before
            self._changed.notify_all()
            return taken

    def pause(self) -> float:
        """While items wait for the end of an epoch that takes long, let a sixteenth of it go by
        (``PAUSE_MAX_S`` at most), or less if they are taken; how many seconds that were.

        What comes meanwhile comes together, and each look at the source costs as much as thousands of updates.
        How long epochs take is told by how long passed between the last two times that something was taken.
        """
        with self._changed:
            pause_s = min(self._epoch_s / 16, PAUSE_MAX_S)
            if pause_s < PAUSE_MIN_S or not self._items or self._closed:
                return 0.0
            begun, taken_at = self._clock(), self._taken_at
            self._changed.wait_for(lambda: self._taken_at != taken_at or self._closed, pause_s)
            return self._clock() - begun

    def wake(self) -> None:
        """Let whoever takes, now or next, not wait for items: there is something else to do."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Let nothing more in; what waits can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Columns(Protocol):
    """Makes columns for ``n`` updates, to be filled."""

    def __call__(self, n: int, *, weighted: bool) -> EdgeBatch: ...


def one_batch(
    prepared: Sequence[Prepared], *, weighted: bool, columns: Columns = EdgeBatch.empty
) -> tuple[EdgeBatch, VertexOps | None]:
    """One batch of all updates, in order, in columns of its own; weights only where the graph keeps them."""
    dense = [batch for item in prepared for batch in item.batches]
    batches = [batch.edges for batch in dense]
    weighted = weighted and any(batch.weights is not None for batch in batches)
    edges = columns(sum(len(batch) for batch in batches), weighted=weighted)
    if batches:
        np.concatenate([batch.keys for batch in batches], out=edges.keys)
        np.concatenate([batch.ops for batch in batches], out=edges.ops)
    if edges.weights is not None:
        begin = 0
        for batch in batches:
            edges.weights[begin : begin + len(batch)] = 1 if batch.weights is None else batch.weights
            begin += len(batch)
    return edges, _concatenated_vertex_ops(dense)


def row_keys_of(prepared: Sequence[Prepared]) -> npt.NDArray[np.uint64]:
    """uint64[n, 2]: the keys of the edge updates in ``one_batch``, where keys of records name rows."""
    found = [batch.row_keys for item in prepared for batch in item.batches if batch.row_keys is not None]
    return np.concatenate(found) if found else np.empty((0, 2), np.uint64)


def times_of(prepared: Sequence[Prepared]) -> npt.NDArray[np.int64]:
    """int64[n]: the times of the edge updates in ``one_batch``, milliseconds since 1970."""
    batches = [batch for item in prepared for batch in item.batches]
    times = np.empty(sum(len(batch.edges) for batch in batches), np.int64)
    begin = 0
    for batch in batches:
        times[begin : begin + len(batch.edges)] = batch.times
        begin += len(batch.edges)
    return times


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
