"""Going along the rows of a packed array in place.

A packed array keeps its live keys packed to the left of each leaf, in ascending order over all leaves. The row of
a vertex is therefore a sequence of **runs** of live slots, each within one leaf. How they are found stands here
and nowhere else, as generators: plain Python goes through them, ``splice.spliced`` makes them a part of kernels::

    for slot, stop in runs(rows, u):
        for i in range(slot, stop):
            v = rows.keys[i] & LOW          # and rows.weights[i], where the graph is weighted
            ...

A run may be empty. While an array grows or shrinks, a row may lie on both sides of a **stretch** of empty leaves
(``host/migration.py``), which may be most of the array: all that goes from leaf to leaf leaps over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt
from numba.extending import overload

from .edges import HALF, LOW, NO_VERTEX, Int, Keys, Offsets, Vertices, Weights
from .intrinsics import choose, prefetch_to_read, uncounted, uncounted_inner
from .splice import spliced
from .written import Words, keeping, new_words, record_type, taking, write

# Keys of one cache line, and how many lines of a leaf are asked for: most rows end there.
_LINE = 8
_LINES = 4

# Where rows are walked one after the other, keys are asked for so many leaves ahead; and where any are, the row of
# the vertex so many places ahead.
_LEAVES_AHEAD = 8
_ROWS_AHEAD = 12

# To go past so many rows, or full leaves, costs what it costs to find a row.
NEAR = 8

SWEEP_PIECE = 4096
"""How many vertices of a sweep, or edges of a long row, a thread takes at a time: a multiple of 64, so that no two
threads write one word of a bitmap."""


class RowView(NamedTuple):
    """The arrays of a packed array, as a kernel reads them; valid until the next ``apply``.

    ``keys`` uint64[slots]; ``weights`` float32[slots], or float32[0] when unweighted; ``counts`` int32[leaves],
    the live slots of each leaf; ``row_leaf`` uint32[>= n], the leaf in which the row of a vertex begins (never
    later than its first key; meaningless for degree 0); ``degrees`` uint32[>= n]; ``leaf_shift``: a leaf has
    ``1 << leaf_shift`` slots. Leaves ``stretch_begin`` to ``stretch_end`` are empty; where there is no such
    stretch, both are the number of leaves.
    """

    keys: Keys
    weights: Weights
    counts: npt.NDArray[np.int32]
    row_leaf: Vertices
    degrees: Vertices
    leaf_shift: int
    stretch_begin: int
    stretch_end: int


_vertices, _number = nb.uint32[::1], nb.int64
ROW_VIEW = record_type(
    RowView, nb.uint64[::1], nb.float32[::1], nb.int32[::1], _vertices, _vertices, _number, _number, _number
)
rows_in: Any = taking(ROW_VIEW)


def words_of(rows: RowView) -> Words:
    """The rows as kernels take them from words, which keep them."""
    words = new_words(ROW_VIEW)
    write(words, rows)
    return keeping(words, rows)


# -- the rows of single vertices ----------------------------------------------------------------------------------


def runs(rows: RowView, u: Int) -> Iterator[tuple[Int, Int]]:
    """The runs of row u: (first slot, the slot behind the last)."""
    remaining = np.int64(rows.degrees[u])
    if remaining > 0:
        first_key = np.uint64(u) << HALF
        leaf = np.int64(rows.row_leaf[u])
        while True:
            begin = leaf << rows.leaf_shift
            end = begin + np.int64(rows.counts[leaf])
            span = end - begin
            # Halving without branches: rows begin anywhere in a leaf, so that a guess is wrong half the time.
            while span > 1:
                half = span >> 1
                begin += half if rows.keys[begin + half - 1] < first_key else 0
                span -= half
            if begin < end and rows.keys[begin] >= first_key:
                break
            leaf += np.int64(1)
            leaf = np.int64(rows.stretch_end) if leaf == rows.stretch_begin else leaf
        while remaining > 0:
            slot = begin
            stop = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
            remaining -= stop - slot
            leaf += np.int64(1)
            leaf = np.int64(rows.stretch_end) if leaf == rows.stretch_begin else leaf
            begin = leaf << rows.leaf_shift
            yield slot, stop


def runs_on(rows: RowView, slot: Int, left: Int) -> Iterator[tuple[Int, Int]]:
    """The runs of the next ``left`` live slots, from where a walk stopped: at ``slot``, or right behind it."""
    remaining = np.int64(left)
    begin = np.int64(slot)
    leaf = begin >> rows.leaf_shift
    if leaf == rows.stretch_begin:
        leaf = np.int64(rows.stretch_end)
        begin = leaf << rows.leaf_shift
    while remaining > 0:
        first = begin
        stop = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), first + remaining)
        remaining -= stop - first
        leaf += np.int64(1)
        leaf = np.int64(rows.stretch_end) if leaf == rows.stretch_begin else leaf
        begin = leaf << rows.leaf_shift
        yield first, stop


@uncounted_inner
@spliced
def cut_row(rows: RowView, u: Int, opens: Offsets) -> Int:
    """Cut row u into pieces of ``SWEEP_PIECE`` edges: how many, and where each begins, for ``runs_on``."""
    n_pieces, before = np.int64(0), np.int64(0)
    for slot, stop in runs(rows, u):
        while n_pieces * SWEEP_PIECE < before + (stop - slot):
            opens[n_pieces] = slot + n_pieces * SWEEP_PIECE - before
            n_pieces += 1
        before += stop - slot
    return n_pieces


def _ask_for(array: npt.NDArray[Any], index: Int) -> None:
    """Have an element fetched from memory, in kernels; plain Python reads what it needs when it needs it."""


@overload(_ask_for, inline="always")
def _ask_for_in_kernels(array: Any, index: Any) -> Any:
    def ask(array: Any, index: Any) -> None:
        prefetch_to_read(array, index)

    return ask


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def ask_for_leaf(keys: Keys, leaf: Int, leaf_shift: Int) -> None:
    """Have the keys of a leaf fetched from memory.

    Where leaves are read one after the other, too: their gaps keep the processor from doing so by itself.
    """
    for line in range(_LINES):
        prefetch_to_read(keys, (leaf << leaf_shift) + line * _LINE)


@nb.njit(cache=True, nogil=True, error_model="numpy")
@spliced
def copy_row(rows: RowView, u: int, first: int, neighbors: Vertices, weights: Weights) -> int:
    """Copy the neighbours of u from vertex ``first`` on until ``neighbors`` is full; returns how many.

    ``weights`` has the same length, or none when the array is unweighted.
    """
    copied = 0
    first_key = (np.uint64(u) << HALF) | np.uint64(first)
    for slot, stop in runs(rows, u):
        if copied == neighbors.size:
            break
        if stop > slot and rows.keys[stop - 1] >= first_key:
            for i in range(slot, stop):
                if rows.keys[i] >= first_key and copied < neighbors.size:
                    neighbors[copied] = rows.keys[i] & LOW
                    if weights.size:
                        weights[copied] = rows.weights[i]
                    copied += 1
    return copied


def leaves_of(rows: RowView, u: Int, wanted: Int) -> Iterator[tuple[Int, Int]]:
    """The leaves in which the first ``wanted`` edges of row u lie, and how many of those lie no earlier: each
    before anything of it is read. Whoever finds that one must not be, or that there is none, goes no further."""
    first_key = np.uint64(u) << HALF
    remaining = np.int64(wanted)
    leaf, here = np.int64(rows.row_leaf[u]), np.int64(-1)
    while remaining > 0:
        if here >= 0:
            begin = here << rows.leaf_shift
            stop = begin + np.int64(rows.counts[here])
            while begin < stop and rows.keys[begin] < first_key:
                begin += 1
            remaining -= stop - begin
            if remaining <= 0:
                break
        here = leaf
        leaf += np.int64(1)
        leaf = np.int64(rows.stretch_end) if leaf == rows.stretch_begin else leaf
        yield here, remaining


@nb.njit(cache=True, error_model="numpy")
def copy_short_row(rows: RowView, u: int, first: int, neighbors: Vertices, weights: Weights) -> int:
    """``copy_row``, for rows of which that takes less than a handover of the interpreter: it is not let go."""
    return copy_row(rows, u, first, neighbors, weights)


@uncounted
def find_on(rows: RowView, leaf: Int, key: Int) -> tuple[Int, Int]:
    """Look for a key from a leaf on, by doubling and then by halving: (the leaf to go on at, its slot or -1).

    ``leaf``: the one in which the row of the key begins, or where a smaller key of that row was looked for.
    """
    keys, counts = rows.keys, rows.counts
    low, end = np.int64(leaf), np.int64(rows.counts.size)
    if low < rows.stretch_begin:
        # The other side of a stretch begins with the first leaf that is not empty there.
        right = np.int64(rows.stretch_end)
        while right < end and counts[right] == 0:
            right += 1
        if right < end and keys[right << rows.leaf_shift] <= key:
            low = right
        else:
            end = np.int64(rows.stretch_begin)
    # No leaf from ``behind`` on begins with the key or a smaller one; those without keys say nothing.
    step = np.int64(1)
    behind = end
    while low + step < end:
        at = low + step
        while at < end and counts[at] == 0:
            at += 1
        if at == end or keys[at << rows.leaf_shift] > key:
            behind = low + step
            break
        low = at
        step <<= 1
    while behind - low > 1:
        middle = (low + behind) >> 1
        at = middle
        while at < behind and counts[at] == 0:
            at += 1
        if at < behind and keys[at << rows.leaf_shift] <= key:
            low = at
        else:
            behind = middle
    slot = low << rows.leaf_shift
    span = np.int64(counts[low])
    while span > 1:
        half = span >> 1
        slot += half if keys[slot + half] <= key else 0
        span -= half
    return low, slot if span == 1 and keys[slot] == key else np.int64(-1)


# -- many rows ----------------------------------------------------------------------------------------------------


def runs_in_order(rows: RowView, begin: Int, end: Int) -> Iterator[tuple[Int, Int, Int, bool]]:
    """The runs of rows begin .. end - 1: (vertex, first slot, slot behind the last, whether the row ends here).

    There is one at least for each vertex. Keys are asked for some leaves ahead.
    """
    first = begin
    while first < end and rows.degrees[first] == 0:
        first += 1
    place = np.int64(0)
    if first < end:
        for slot, _ in runs(rows, first):
            place = slot
            break
    leaf = place >> rows.leaf_shift
    leaf_end = (leaf << rows.leaf_shift) + np.int64(rows.counts[leaf])
    for v in range(begin, end):
        remaining = np.int64(rows.degrees[v])
        is_last = False
        while not is_last:
            start = place
            if remaining > 0:
                place = min(leaf_end, start + remaining)
                remaining -= place - start
            stop = place
            is_last = bool(remaining == 0)
            if place == leaf_end:
                following = leaf + np.int64(1)
                following = np.int64(rows.stretch_end) if following == rows.stretch_begin else following
                if following < rows.counts.size:
                    leaf = following
                    place = leaf << rows.leaf_shift
                    leaf_end = place + np.int64(rows.counts[leaf])
                    for line in range(_LINES):
                        _ask_for(rows.keys, ((leaf + _LEAVES_AHEAD) << rows.leaf_shift) + line * _LINE)
            yield v, start, stop, is_last


def runs_of(rows: RowView, vertices: Vertices, begin: Int, end: Int) -> Iterator[tuple[Int, Int, Int, bool]]:
    """The runs of the rows of vertices[begin:end], existing ones in any order, as ``runs_in_order`` has them.

    Instead of the vertex there is its place in ``vertices``. Rows are asked for some places ahead.
    """
    next_vertex = np.int64(-1)
    leaf = np.int64(0)
    place = np.int64(0)
    leaf_end = np.int64(rows.counts[0])
    for x in range(begin, end):
        if x + _ROWS_AHEAD < vertices.size:
            ahead = np.int64(rows.row_leaf[vertices[x + _ROWS_AHEAD]])
            _ask_for(rows.counts, ahead)
            for line in range(_LINES):
                _ask_for(rows.keys, (ahead << rows.leaf_shift) + line * _LINE)
        u = np.int64(vertices[x])
        remaining = np.int64(rows.degrees[u])
        # The row of the next vertex begins where this one's ends.
        if remaining > 0 and u != next_vertex:
            for slot, _ in runs(rows, u):
                place = slot
                break
            leaf = place >> rows.leaf_shift
            leaf_end = (leaf << rows.leaf_shift) + np.int64(rows.counts[leaf])
        if remaining > 0 or u == next_vertex:
            next_vertex = u + np.int64(1)
        is_last = False
        while not is_last:
            start = place
            if remaining > 0:
                place = min(leaf_end, start + remaining)
                remaining -= place - start
            stop = place
            is_last = bool(remaining == 0)
            if place == leaf_end:
                following = leaf + np.int64(1)
                following = np.int64(rows.stretch_end) if following == rows.stretch_begin else following
                if following < rows.counts.size:
                    leaf = following
                    place = leaf << rows.leaf_shift
                    leaf_end = place + np.int64(rows.counts[leaf])
            yield x, start, stop, is_last


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
@spliced
def open_rows(rows: RowView, vertices: Vertices, begin: Int, end: Int, opens: Offsets) -> None:
    """Find the rows of vertices[begin:end], which ascend, and have their first edges fetched from memory.

    ``opens`` (int64[>= NEAR * (end - begin)]) gets the slots in which these rows begin: for ``runs_on``. Of rows
    without edges that is anything.
    """
    start, stop = np.int64(begin), np.int64(end) - 1  # the outermost rows that have edges
    while start < stop and rows.degrees[vertices[start]] == 0:
        start += 1
    while start < stop and rows.degrees[vertices[stop]] == 0:
        stop -= 1
    first, last, base = np.int64(vertices[start]), np.int64(vertices[stop]), np.int64(vertices[begin])
    if rows.degrees[first] == 0:
        return
    n_rows = last - base + 1
    low = np.int64(rows.row_leaf[first])
    high = max(low, np.int64(rows.row_leaf[last]))
    if n_rows + high - low < NEAR * (end - begin):
        # How many edges the rows on the way have, and how many the leaves, tells where each row begins in its
        # leaf: two sums, where a walk from leaf to leaf would ask at each row whether it ends there, a toss-up.
        place = low << rows.leaf_shift
        for slot, _ in runs(rows, first):
            place = slot
            break
        low = place >> rows.leaf_shift
        high = max(low, high)
        held = np.int64(0)
        for passed in range(low, high + 1):
            opens[n_rows + passed - low] = held
            held += np.int64(rows.counts[passed])
        rank = place - (low << rows.leaf_shift)
        for row in range(first, last + 1):
            opens[row - base] = rank
            rank += np.int64(rows.degrees[row])
        for k in range(start, stop + 1):
            v = np.int64(vertices[k])
            at = min(max(np.int64(rows.row_leaf[v]), low), high)
            # Where a row has no edges the index says nothing, and it is not looked for.
            behind = opens[v - base] - opens[n_rows + at - low] if rows.degrees[v] > 0 else np.int64(-1)
            while behind >= np.int64(rows.counts[at]):  # the index may point at a leaf before it
                behind -= np.int64(rows.counts[at])
                at += np.int64(1)
                at = np.int64(rows.stretch_end) if at == rows.stretch_begin else at
            opening = (at << rows.leaf_shift) + behind
            opens[k - begin] = opening
            _ask_for(rows.keys, opening)
        return
    for k in range(begin, end):
        leaf = np.int64(rows.row_leaf[vertices[k]])
        _ask_for(rows.counts, leaf)
        for line in range(_LINES):
            _ask_for(rows.keys, (leaf << rows.leaf_shift) + line * _LINE)
    for k in range(begin, end):
        opens[k - begin] = 0
        for slot, _ in runs(rows, vertices[k]):
            opens[k - begin] = slot
            break


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def first_held(keys: Keys, slot: Int, stop: Int, held: Keys) -> tuple[Int, Int]:
    """The first neighbour in keys[slot:stop] that a bitmap (uint64 words) holds, or -1; and the slot behind it, or
    ``stop``."""
    for i in range(slot, stop):
        u = keys[i] & LOW
        if (held[u >> np.uint64(6)] >> (u & np.uint64(63))) & np.uint64(1):
            return np.int64(u), i + 1
    return np.int64(-1), stop


@uncounted_inner
def count_edges(rows: RowView, begin: Int, end: Int) -> Int:
    """How many edges rows begin .. end - 1 have."""
    degrees = rows.degrees[begin:end]
    edges = np.int64(0)
    for j in range(degrees.size):
        edges += np.int64(degrees[j])
    return edges


@uncounted_inner
@spliced
def first_held_of_all(rows: RowView, begin: Int, end: Int, n_edges: Int, held: Keys, near: Vertices) -> None:
    """The first neighbour that a bitmap (uint64 words) holds of each of rows begin .. end - 1, which have so many
    edges, to ``near`` (uint32[end - begin]), whose other entries are left as they are.

    All edges are read, as they come: an edge takes a fraction of what it takes to find a row, so that this is the
    faster way where rows are short and most are looked at. Whether one is held is a toss-up, and no branch.
    """
    first = np.int64(begin)
    while first < end and rows.degrees[first] == 0:
        first += 1
    if n_edges > 0:
        place = np.int64(0)
        for slot, _ in runs(rows, first):
            place = slot
            break
        none = np.int64(NO_VERTEX)
        for slot, stop in runs_on(rows, place, n_edges):
            ahead = (slot >> rows.leaf_shift) + _LEAVES_AHEAD
            for line in range(_LINES):
                _ask_for(rows.keys, (ahead << rows.leaf_shift) + line * _LINE)
            for i in range(slot, stop):
                row, u = np.int64(rows.keys[i] >> HALF) - begin, rows.keys[i] & LOW
                is_held = (held[u >> np.uint64(6)] >> (u & np.uint64(63))) & np.uint64(1)
                first_u = np.int64(near[row])
                near[row] = choose((is_held != 0) & (first_u == none), np.int64(u), first_u)


def live_runs(rows: RowView, first_leaf: Int) -> Iterator[tuple[Int, Int]]:
    """The runs of all rows from a leaf on, a leaf each: (first slot, the slot behind the last)."""
    leaf = np.int64(first_leaf)
    leaf = np.int64(rows.stretch_end) if rows.stretch_begin <= leaf < rows.stretch_end else leaf
    while leaf < rows.counts.size:
        slot = leaf << rows.leaf_shift
        stop = slot + np.int64(rows.counts[leaf])
        leaf += np.int64(1)
        leaf = np.int64(rows.stretch_end) if leaf == rows.stretch_begin else leaf
        yield slot, stop


def live_runs_before(rows: RowView, first_leaf: Int) -> Iterator[tuple[Int, Int]]:
    """The runs of all rows before a leaf, a leaf each, the last one first."""
    leaf = np.int64(first_leaf) - np.int64(1)
    leaf = np.int64(rows.stretch_begin) - np.int64(1) if rows.stretch_begin <= leaf < rows.stretch_end else leaf
    while leaf >= 0:
        slot = leaf << rows.leaf_shift
        stop = slot + np.int64(rows.counts[leaf])
        leaf -= np.int64(1)
        leaf = np.int64(rows.stretch_begin) - np.int64(1) if leaf == rows.stretch_end - 1 else leaf
        yield slot, stop
