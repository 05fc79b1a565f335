"""Personalised PageRank's numbers on the device, in fixed point, and the structures that its kernels take.

**The point.** The exact solution adds up to at most 1 / (1 - damping) for each source, and so does what a pass
makes of any values that are not negative: its factor balances what is lost, at least 1 - damping of all values,
and what is given. Bits behind the point are as many as leave all values below 2^60 together, so that no sum of
int64 overflows, whatever it is of; how many vertices there are does not matter.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from ...gpma.device.state import DeviceArray, allocate, pinned, zeros
from ...gpma.edges import Vertices
from .narrowed import F32
from .walk_runs import bits_behind

COLUMNS = ("values", "sums", "shares", "is_source")
LISTS = ("stamps", "moved", "moved_stamps", "differences", "degree_changes", "short_rows")

PPR_JOB: Final = np.dtype(
    [
        *((name, np.uint64) for name in COLUMNS),
        ("candidates", np.uint64, 2),
        *((name, np.uint64) for name in LISTS),
        *((name, np.uint64) for name in ("long_rows", "counters", "status", "estimates", "changes", "entries")),
        *((name, np.float64) for name in ("damping", "unit", "limit", "goal")),
        ("restart", np.int64),
        *((name, np.uint32) for name in ("room", "changes_room")),
        *((name, np.uint64) for name in ("keys", "outcomes", "edges_max")),
        ("cells", np.float64),
        ("before", np.uint64, 3),
        *((name, np.uint32) for name in ("n_updates", "n_entries", "n_vertices")),
        *((name, np.uint32) for name in ("stamp", "passes_max", "sequence", "stride", "part")),
    ]
)
"""struct PprJob of ``ppr.cuh``."""

PPR_COUNTERS: Final = np.dtype(
    [
        ("rows", np.uint64, 8),
        ("passes", np.uint64, 14),
        ("grown", np.uint64, 3),
        ("candidates", np.uint32, 2),
        ("moved", np.uint32),
        ("barrier", np.uint32),
        ("n_passes", np.uint32),
        ("goes_on", np.uint32),
    ]
)
"""struct PprCounters of ``ppr.cuh``."""

# The queue of short rows has room for one vertex in so many, and for so many at least; with more, a run gives up.
QUEUE_SHARE, QUEUE_LEAST = 8, 4096
# The list of changes has room for one vertex in so many, and for so many at least; else all estimates changed.
CHANGES_SHARE, CHANGES_LEAST = 16, 4096
ENTRY_BYTES = 16


class Sums(NamedTuple):
    """Of all values, of the sizes of residuals, and of residuals; in units."""

    norm: int
    size: int
    total: int


class PprRun(NamedTuple):
    """What a run told: the words of ``ppr.cuh``, in that order.

    ``is_solved``: 0 when pushes were given up, and sums are no longer exact, or when passes do not get there.
    ``moved``: the vertices whose estimates pushes changed; of passes, whether estimates are others than those that
    were copied between their kernels.
    """

    is_solved: int
    rounds: int
    edges: int
    moved: int
    norm: int
    size: int
    total: int

    @property
    def sums(self) -> Sums:
        return Sums(self.norm, self.size, self.total)


class Numbers(NamedTuple):
    """Of so many vertices, each ``stride`` behind the one before it."""

    values: DeviceArray
    sums: DeviceArray
    shares: DeviceArray
    is_source: DeviceArray
    stride: int = 1

    @classmethod
    def none(cls, room: int) -> Numbers:
        values, sums, shares = (zeros(room, np.int64) for _ in range(3))
        return cls(values, sums, shares, zeros(room, np.uint8))

    def take(self, others: Numbers) -> None:
        """Be theirs, as far as both have room: no vertex beyond has anything."""
        for name in COLUMNS:
            to, column = getattr(self, name), getattr(others, name)
            n = min(to.size, column.size)
            to[:n] = column[:n]


class ByVertex(NamedTuple):
    """``room`` entries each, but for lists that may run over; see struct PprJob."""

    room: int
    queue_room: int
    numbers: Numbers
    candidates: DeviceArray
    stamps: DeviceArray
    moved: DeviceArray
    moved_stamps: DeviceArray
    differences: DeviceArray
    degree_changes: DeviceArray
    short_rows: DeviceArray
    estimates: F32
    changes: Vertices


def columns_for(room: int) -> ByVertex:
    """Of so many vertices, which have nothing; on the current stream.

    Raises:
        MemoryError: there is not enough.
    """
    queue_room = min(room, max(QUEUE_LEAST, room // QUEUE_SHARE))
    estimates: F32 = pinned(room, np.float32)
    estimates[:] = 0
    changes: Vertices = pinned(min(room, max(CHANGES_LEAST, room // CHANGES_SHARE)), np.uint32)
    return ByVertex(
        room,
        queue_room,
        numbers=Numbers.none(room),
        candidates=allocate(2 * room, np.uint32),
        stamps=zeros(room, np.uint32),
        moved=allocate(room, np.uint32),
        moved_stamps=zeros(room, np.uint32),
        differences=allocate(room, np.int64),
        degree_changes=zeros(room, np.int32),
        short_rows=allocate(queue_room * ENTRY_BYTES, np.uint8),
        estimates=estimates,
        changes=changes,
    )


def point(n_sources: int, damping: float) -> int:
    """How many bits the numbers have behind the point, for so many sources."""
    return bits_behind(max(1, n_sources) / (1 - damping))
