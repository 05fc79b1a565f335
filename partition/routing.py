"""Which side gets which updates of a batch: those of an out-row its owner, those of an in-row the owner of that.

In two passes over the batch, by the threads of a crew. The first one looks at both ends of each edge, keeps their
owners, a byte each, and counts what each chunk of the batch has for whom. Sums of these say where every part of a
chunk goes, and the second pass writes it there. Parts keep the order of the batch, so that the last update of a
pair still is its last, and depend neither on chunks nor on threads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..gpma.drawing import drawn
from ..gpma.edges import HALF, LOW, EdgeBatch, Int, Keys, Offsets, frozen
from ..gpma.host.sorting import Arrivals
from ..gpma.host.work import arrivals_of, column
from ..gpma.intrinsics import uncounted_inner
from ..gpma.team import Crew, at_most, share
from .placement import Owners, Placement
from .scanning import require_known

# A batch is cut into so many chunks at most, each of so many updates at least.
CHUNKS_MAX, CHUNK_UPDATES_MIN = 64, 1 << 14
# Threads count into rows of whole cache lines.
_LINE_WORDS = 8
# Where an update goes that is written nowhere.
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class RoutedBatch:
    """One side's part of a batch: what its out-rows and its in-rows (None: not kept) must apply."""

    side: int
    out: EdgeBatch
    in_: EdgeBatch | None


class _Ends(NamedTuple):
    """Owners of the tails of updates (uint8[n]), and of their heads (none where these have no rows).
    ``heads_slot``: the first of the slots of in-rows; 0 where heads have out-rows."""

    tails: Owners
    heads: Owners
    heads_slot: int


@dataclass(frozen=True, slots=True)
class Routing:
    """What each side gets of a batch, counted and not yet written.

    ``out`` and ``in_``: int64[n_sides], how many updates of out-rows and of in-rows (0 where none are kept).
    The rest is for ``parts``: the owners of all ends, and int64[chunks, slots] counts, a slot for each side and,
    behind all those, for its in-rows.
    """

    batch: EdgeBatch
    in_edges: bool
    out: Offsets
    in_: Offsets
    _ends: _Ends
    _counts: npt.NDArray[np.int64]
    _crew: Crew

    def of(self, side: int) -> tuple[int, int]:
        """How many updates of out-rows and of in-rows a side gets."""
        return int(self.out[side]), int(self.in_[side])

    def parts(self, sides: Collection[int], *, in_weights: bool) -> list[RoutedBatch]:
        """The parts of these sides, by side; those without any are left out.

        ``in_weights``: whether the weights of the batch go along to in-rows, too.

        Raises:
            MemoryError: there is not enough.
        """
        n_sides, in_edges = self.out.size, self.in_edges
        wanted = np.zeros(self._counts.shape[1], bool)
        for side in sides:
            wanted[side] = True
            wanted[n_sides + side] = in_edges
        cursors, ends = np.empty_like(self._counts), np.empty(wanted.size + 1, np.int64)
        _lay_out(self._counts, wanted, cursors, ends)
        weighted = self.batch.weights is not None
        all_parts = EdgeBatch.empty(int(ends[-1]), weighted=weighted)
        _write_parts(
            arrivals_of(self.batch, weighted=weighted),
            self._ends,
            cursors,
            arrivals_of(all_parts, weighted=weighted),
            ends[n_sides] if in_edges and not in_weights else ends[-1],
            self._crew,
        )

        def part(slot: int, weights: bool) -> EdgeBatch:
            own = slice(ends[slot], ends[slot + 1])
            kept = all_parts.weights if weights else None
            return EdgeBatch(all_parts.keys[own], all_parts.ops[own], None if kept is None else kept[own])

        return [
            RoutedBatch(side, part(side, True), part(n_sides + side, in_weights) if in_edges else None)
            for side in sorted(sides)
            if any(self.of(side))
        ]


def route(
    batch: EdgeBatch, placement: Placement, crew: Crew, *, in_edges: bool = False, mirrored: bool = False
) -> Routing:
    """Find out who gets which updates of a batch, of which every one is of an out-row.

    ``in_edges``: and of an in-row, in an array of its own. ``mirrored``: and, as its mirror image right behind it,
    of another row of the same array; of a loop this says the same thing twice, harmlessly.

    Raises:
        ValueError: an edge names a vertex that is not there.
        MemoryError: there is not enough.
    """
    n, n_sides = len(batch), placement.n_sides
    tails, heads = np.empty(n, np.uint8), np.empty(n if in_edges or mirrored else 0, np.uint8)
    n_chunks = min(max(1, n // CHUNK_UPDATES_MIN), CHUNKS_MAX)
    counts = np.zeros((n_chunks, -(-2 * n_sides // _LINE_WORDS) * _LINE_WORDS), np.int64)
    ends = _Ends(tails, heads, n_sides if in_edges else 0)
    largest = _count_parts(column(batch.keys, np.uint64), frozen(placement.owner), ends, counts, crew)
    if n:
        require_known(largest, placement.owner.size)
    totals = counts.sum(axis=0)
    out, in_ = totals[:n_sides], totals[n_sides : 2 * n_sides]
    return Routing(batch, in_edges, out, in_, ends, counts, crew)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _count_parts(keys: Keys, owner: Owners, ends: _Ends, counts: npt.NDArray[np.int64], crew: Crew) -> Int:
    """Fill the ends and ``counts``; returns the largest end of an edge. Where that is not there,
    what was filled is of no use."""
    cursor = np.zeros(1, np.int64)
    largest = np.zeros(counts.shape[0], np.int64)
    share(at_most(crew, counts.shape[0]), _count_chunks, (keys, owner, ends, cursor, counts, largest))
    return largest.max()


@uncounted_inner
def _count_chunks(
    thread: Int,
    keys: Keys,
    owner: Owners,
    ends: _Ends,
    cursor: Offsets,
    counts: npt.NDArray[np.int64],
    largest: Offsets,
) -> None:
    tails, heads, heads_slot = ends
    n, n_chunks, n_vertices = np.int64(keys.size), np.int64(counts.shape[0]), np.uint64(owner.size)
    for chunk in drawn(cursor, n_chunks):
        own = counts[chunk]
        found = np.uint64(0)
        for i in range(n * chunk // n_chunks, n * (chunk + 1) // n_chunks):
            key = keys[np.uintp(i)]
            src, dst = key >> HALF, key & LOW
            end = max(src, dst)
            found = max(found, end)
            if end >= n_vertices:
                break
            side = owner[np.uintp(src)]
            tails[np.uintp(i)] = side
            own[np.uintp(side)] += np.int64(1)
            if heads.size:
                side = owner[np.uintp(dst)]
                heads[np.uintp(i)] = side
                own[np.uintp(heads_slot) + np.uintp(side)] += np.int64(1)
        largest[chunk] = np.int64(found)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _lay_out(
    counts: npt.NDArray[np.int64], wanted: npt.NDArray[np.bool_], cursors: npt.NDArray[np.int64], ends: Offsets
) -> None:
    """Where each chunk's updates of each slot go: slot after slot, those that nobody wants nowhere. Slot ``s``
    then is from ``ends[s]`` to ``ends[s + 1]``."""
    n_chunks, n_slots = counts.shape
    ends[0] = before = np.int64(0)
    for slot in range(n_slots):
        for chunk in range(n_chunks):
            cursors[chunk, slot] = before if wanted[slot] else _NOWHERE
            before += counts[chunk, slot] if wanted[slot] else np.int64(0)
        ends[slot + 1] = before


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _write_parts(
    batch: Arrivals, ends: _Ends, cursors: npt.NDArray[np.int64], to: Arrivals, n_weights: Int, crew: Crew
) -> None:
    """Write each update where the cursors of its chunk say, by slot; what comes to the first ``n_weights`` places
    with its weight."""
    cursor = np.zeros(1, np.int64)
    share(at_most(crew, cursors.shape[0]), _write_chunks, (batch, ends, cursor, cursors, to, n_weights))


@uncounted_inner
def _write_chunks(
    thread: Int,
    batch: Arrivals,
    ends: _Ends,
    cursor: Offsets,
    cursors: npt.NDArray[np.int64],
    to: Arrivals,
    n_weights: Int,
) -> None:
    tails, heads, heads_slot = ends
    keys, ops, weights = batch.keys, batch.ops, batch.weights
    to_keys, to_ops, to_weights = to.keys, to.ops, to.weights
    n, n_chunks = np.int64(keys.size), np.int64(cursors.shape[0])
    for chunk in drawn(cursor, n_chunks):
        own = cursors[chunk]
        for i in range(n * chunk // n_chunks, n * (chunk + 1) // n_chunks):
            slot = np.uintp(tails[np.uintp(i)])
            at = own[slot]
            if at >= 0:
                own[slot] = at + np.int64(1)
                to_keys[np.uintp(at)] = keys[np.uintp(i)]
                to_ops[np.uintp(at)] = ops[np.uintp(i)]
                if weights.size and at < n_weights:
                    to_weights[np.uintp(at)] = weights[np.uintp(i)]
            if heads.size:
                slot = np.uintp(heads_slot) + np.uintp(heads[np.uintp(i)])
                at = own[slot]
                if at >= 0:
                    own[slot] = at + np.int64(1)
                    key = keys[np.uintp(i)]
                    to_keys[np.uintp(at)] = key << HALF | key >> HALF
                    to_ops[np.uintp(at)] = ops[np.uintp(i)]
                    if weights.size and at < n_weights:
                        to_weights[np.uintp(at)] = weights[np.uintp(i)]


def warm_up(crew: Crew) -> None:
    """Compile the kernels, or load them from the cache."""
    placement = Placement(2)
    placement.ensure_vertices(2)
    route(EdgeBatch.of([0], [1]), placement, crew).parts((0,), in_weights=False)
