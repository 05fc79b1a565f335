"""What many edge changes do to the residuals of two systems, shared by all threads.

It is what ``edits.edit_rows`` does to each, bit by bit: values are rescaled and contributions found by pieces of
the changed rows, and added to residuals by ranges of the vertices (``ranges.py``), each in the order of the rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.drawing import drawn
from ...gpma.edges import HALF, LOW, Vertices
from ...gpma.intrinsics import inner, prefetch, prefetch_to_read, uncounted_inner
from ...gpma.rows import runs
from ...gpma.sorted_keys import first_at
from ...gpma.splice import spliced
from ...gpma.team import at_most, share
from .edits import GROWN, ROUNDED, ROW_EDIT_FACTOR, SIZE, SLIPPED, TOTAL, TOUCHED_PER_EDGE
from .passes import BLOCK_SHIFT
from .ranges import GRAIN_SHIFT, PARTS, PIECES, RANGES, begin_parts

F64 = npt.NDArray[np.float64]

# A piece has about so many changes, at least.
_PIECE_MIN = 1 << 10
# Pieces begin at multiples of this vertex: threads then share no word of bits.
_WORD = 64
# What an entry of ``Told`` takes.
ENTRY_BYTES = 40
# So many changes ahead, what they are about is asked for; and so many receivers.
_AHEAD = 16
_RECEIVERS_AHEAD = 16

_NO_ROW = np.int64(1) << np.int64(40)
_ONE = np.uint64(1)

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
_uncounted: Any = uncounted_inner
_inner: Any = inner


class Edited(NamedTuple):
    """The columns of a system that is edited (``sweeps.System``), and what is told of it.

    ``sums``: float64[5], as ``edits.Editing.sums``.
    """

    value: F64
    residual: F64
    flags: npt.NDArray[np.uint8]
    moved: npt.NDArray[np.uint64]
    sums: F64


class Told(NamedTuple):
    """Room for what residuals are told, which lasts from one use to the next.

    ``heads``: uint32, whose residuals, as pieces come to them, and ``by``: float64[, 2], by how much those of
    either system grow; ``sorted_heads`` and ``sorted_by``: the same, by range.
    """

    heads: Vertices
    by: F64
    sorted_heads: Vertices
    sorted_by: F64

    @classmethod
    def with_room(cls, changes: int) -> Told:
        """For so many changed edges: most of it stays unused, and takes no memory (see ``ENTRY_BYTES``)."""
        room = TOUCHED_PER_EDGE * changes
        return cls(np.empty(room, np.uint32), np.empty((room, 2)), np.empty(room, np.uint32), np.empty((room, 2)))

    def has_room(self, changes: int) -> bool:
        """Whether so many edges may change."""
        return self.heads.size >= TOUCHED_PER_EDGE * changes


@_uncounted
def _first(keys, row):  # type: ignore[no-untyped-def]
    """How many keys are of rows before this one."""
    return first_at(keys, np.int64(0), np.int64(keys.size), np.uint64(row) << HALF)


@_uncounted
def _begin_of(inserted, deleted, n, wanted):  # type: ignore[no-untyped-def]
    """The last multiple of ``_WORD`` before which no more than ``wanted`` changes are; of all of them, the end."""
    if wanted >= inserted.size + deleted.size:
        return n
    low = np.int64(0)
    high = n // _WORD
    while low < high:
        middle = (low + high + 1) >> 1
        if _first(inserted, middle * _WORD) + _first(deleted, middle * _WORD) <= wanted:
            low = middle
        else:
            high = middle - 1
    return low * _WORD


@_uncounted
@spliced
def _edit_pieces(  # type: ignore[no-untyped-def]
    thread,
    rows,
    inserted,
    deleted,
    damping,
    n,
    pieces,
    first,
    second,
    of,
    heads,
    by,
    sorted_heads,
    sorted_by,
    begins,
    places,
    sums,
    edges,
    cursor,
):
    """A thread's part of the changed rows; ``sums``: float64[pieces, 2, 5]; ``edges``: int64[pieces], read."""
    value = first.value
    other_value = second.value
    degrees = rows.degrees
    total = np.int64(inserted.size + deleted.size)
    moved = first.moved
    other_moved = second.moved
    keys = rows.keys
    for piece in drawn(cursor, pieces):
        begin = _begin_of(inserted, deleted, n, total * piece // pieces)
        end = _begin_of(inserted, deleted, n, total * (piece + 1) // pieces)
        i = _first(inserted, begin)
        j = _first(deleted, begin)
        i_last = _first(inserted, end)
        j_last = _first(deleted, end)
        start = TOUCHED_PER_EDGE * (i + j)
        at = start
        read = np.int64(0)
        grown_by = 0.0
        total_by = 0.0
        rounded = 0.0
        slipped = 0.0
        other_rounded = 0.0
        parts = piece * PARTS
        for r in range(RANGES):
            places[parts + r] = 0
        while i < i_last or j < j_last:
            row_in = np.int64(inserted[i] >> HALF) if i < i_last else _NO_ROW
            row_out = np.int64(deleted[j] >> HALF) if j < j_last else _NO_ROW
            u = min(row_in, row_out)
            i_end = i
            while i_end < i_last and np.int64(inserted[i_end] >> HALF) == u:
                i_end += 1
            j_end = j
            while j_end < j_last and np.int64(deleted[j_end] >> HALF) == u:
                j_end += 1
            if i + _AHEAD < i_last:
                ahead = np.int64(inserted[i + _AHEAD] >> HALF)
                prefetch(value, ahead)
                prefetch(other_value, ahead)
                prefetch_to_read(degrees, ahead)
            if j + _AHEAD < j_last:
                ahead = np.int64(deleted[j + _AHEAD] >> HALF)
                prefetch(value, ahead)
                prefetch(other_value, ahead)
                prefetch_to_read(degrees, ahead)
            y = value[u]
            z = other_value[u]
            if y != 0.0 or z != 0.0:
                changed = i_end - i + j_end - j
                after = np.int64(degrees[u])
                before = after - (i_end - i) + (j_end - j)
                if before > 0 and after > 0 and after != before:
                    if after > ROW_EDIT_FACTOR * changed:
                        grows = after / before - 1.0
                        own = y * grows
                        value[u] = y + own
                        other_own = z * grows
                        other_value[u] = z + other_own
                        if y > 0.0:
                            grown_by += own
                        total_by -= own
                        rounded += 6.0 * abs(value[u])
                        other_rounded += 6.0 * abs(other_value[u])
                        slipped += 2.0 * (abs(grown_by) + abs(total_by))
                        bit = _ONE << np.uint64(u & 63)
                        moved[u >> 6] |= bit
                        other_moved[u >> 6] |= bit
                        heads[at] = np.uint32(u)
                        by[at, 0] = -own
                        by[at, 1] = -other_own
                        at += 1
                        places[parts + np.int64(of[u >> GRAIN_SHIFT])] += 1
                    else:
                        traded = damping / after - damping / before
                        own = y * traded
                        other_own = z * traded
                        rounded += 3.0 * abs(y) * (1.0 + after / before)
                        other_rounded += 3.0 * abs(z) * (1.0 + after / before)
                        for slot, stop in runs(rows, u):
                            for k in range(slot, stop):
                                v = np.uint32(keys[k] & LOW)
                                heads[at] = v
                                by[at, 0] = own
                                by[at, 1] = other_own
                                at += 1
                                places[parts + np.int64(of[v >> np.uint32(GRAIN_SHIFT)])] += 1
                        read += after
                        total_by += own * after
                degree = np.float64(before if before > 0 else after)
                own = y * damping / degree
                other_own = z * damping / degree
                total_by += own * ((i_end - i) - (j_end - j))
                rounded += 2.0 * abs(own) * changed
                other_rounded += 2.0 * abs(other_own) * changed
                slipped += 4.0 * abs(total_by)
                for k in range(i, i_end):
                    v = np.uint32(inserted[k] & LOW)
                    heads[at] = v
                    by[at, 0] = own
                    by[at, 1] = other_own
                    at += 1
                    places[parts + np.int64(of[v >> np.uint32(GRAIN_SHIFT)])] += 1
                for k in range(j, j_end):
                    v = np.uint32(deleted[k] & LOW)
                    heads[at] = v
                    by[at, 0] = -own
                    by[at, 1] = -other_own
                    at += 1
                    places[parts + np.int64(of[v >> np.uint32(GRAIN_SHIFT)])] += 1
            i = i_end
            j = j_end
        begin_parts(start, parts, begins, places)
        for k in range(start, at):
            v = heads[k]
            to = parts + np.int64(of[v >> np.uint32(GRAIN_SHIFT)])
            place = places[to]
            places[to] = place + 1
            sorted_heads[place] = v
            sorted_by[place, 0] = by[k, 0]
            sorted_by[place, 1] = by[k, 1]
        sums[piece, 0, GROWN] = grown_by
        sums[piece, 0, TOTAL] = total_by
        sums[piece, 0, ROUNDED] = rounded
        sums[piece, 0, SLIPPED] = slipped
        sums[piece, 1, ROUNDED] = other_rounded
        edges[piece] = read


@_uncounted
def _add_ranges(thread, pieces, first, second, heads, by, begins, sums, cursor):  # type: ignore[no-untyped-def]
    """A thread's part of what residuals are told; ``sums``: float64[RANGES, 2, 5]."""
    residual = first.residual
    other_residual = second.residual
    flags = first.flags
    other_flags = second.flags
    for of_range in drawn(cursor, RANGES):
        size_by = 0.0
        rounded = 0.0
        slipped = 0.0
        other_rounded = 0.0
        for piece in range(pieces):
            end = begins[piece * PARTS + of_range + 1]
            for k in range(begins[piece * PARTS + of_range], end):
                if k + _RECEIVERS_AHEAD < end:
                    ahead = np.int64(heads[k + _RECEIVERS_AHEAD])
                    prefetch(residual, ahead)
                    prefetch(other_residual, ahead)
                v = np.int64(heads[k])
                before = residual[v]
                r = before + by[k, 0]
                residual[v] = r
                size_by += abs(r) - abs(before)
                rounded += abs(r)
                slipped += 2.0 * abs(size_by)
                r = other_residual[v] + by[k, 1]
                other_residual[v] = r
                other_rounded += abs(r)
                flags[v >> BLOCK_SHIFT] = np.uint8(1)
                other_flags[v >> BLOCK_SHIFT] = np.uint8(1)
        sums[of_range, 0, SIZE] = size_by
        sums[of_range, 0, ROUNDED] = rounded
        sums[of_range, 0, SLIPPED] = slipped
        sums[of_range, 1, ROUNDED] = other_rounded


@_inner
def _put_together(parts, first, second):  # type: ignore[no-untyped-def]
    """Add up what parts have found."""
    for part in range(parts.shape[0]):
        for slot in range(parts.shape[2]):
            first.sums[slot] += parts[part, 0, slot]
            second.sums[slot] += parts[part, 1, slot]
        # Every sum may be rounded at every step.
        first.sums[SLIPPED] += 2.0 * (abs(first.sums[GROWN]) + abs(first.sums[SIZE]) + abs(first.sums[TOTAL]))


@_jit
def edit_both(crew, rows, inserted, deleted, damping, n, ranges, told, first, second):  # type: ignore[no-untyped-def]
    """Make the residuals of two systems those of the changed graph; (edges read, entries of ``told`` in use).

    ``inserted``, ``deleted``: the changed keys, ascending; ``rows``: the out-rows of the n vertices after the
    change; ``told`` has room for so many changes. Blocks whose residuals changed are flagged, vertices whose value
    did have moved. Of the second system's sums only ``ROUNDED`` is told.
    """
    changes = np.int64(inserted.size + deleted.size)
    pieces = max(min(changes // _PIECE_MIN, np.int64(PIECES)), np.int64(1))
    begins = np.empty(pieces * PARTS, np.int64)
    places = np.empty(pieces * PARTS, np.int64)
    sums = np.zeros((pieces, 2, 5))
    range_sums = np.zeros((RANGES, 2, 5))
    edges = np.zeros(pieces, np.int64)
    cursor = np.zeros(1, np.int64)
    few = at_most(crew, pieces)
    share(
        few,
        _edit_pieces,
        (
            rows,
            inserted,
            deleted,
            damping,
            n,
            pieces,
            first,
            second,
            ranges.of,
            told.heads,
            told.by,
            told.sorted_heads,
            told.sorted_by,
            begins,
            places,
            sums,
            edges,
            cursor,
        ),
    )
    cursor[0] = 0
    share(few, _add_ranges, (pieces, first, second, told.sorted_heads, told.sorted_by, begins, range_sums, cursor))
    _put_together(sums, first, second)
    _put_together(range_sums, first, second)
    entries = np.int64(0)
    for piece in range(pieces):
        entries += begins[piece * PARTS + RANGES] - begins[piece * PARTS]
    return edges.sum(), entries
