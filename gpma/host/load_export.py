"""Moving whole arrays: loading sorted edges, exporting; in pieces that the threads of a crew draw."""

from __future__ import annotations

import numba as nb
import numpy as np

from ..drawing import drawn, drawn_by
from ..edges import EMPTY_KEY, HALF, LOW, Int, Keys, Offsets, Vertices, Weights
from ..intrinsics import copy, inner
from ..layout import LEAF_SHIFT
from ..sorted_keys import first_behind
from ..team import Crew, at_most, begin_behind, share
from .arrays import RowIndex, Slots
from .search import set_head

# A thread takes so many leaves at a time, or as many edges as they have slots.
PIECE_LEAVES = 1 << 11
_PIECE_KEYS = PIECE_LEAVES << LEAF_SHIFT


@inner
def _finish_leaf(slots: Slots, leaf: Int, count: Int, row: Int, row_leaf: Vertices) -> Int:
    """Set the count, the head and the index of a written leaf; ``row`` is the row before it; returns its last."""
    base = leaf << LEAF_SHIFT
    slots.counts[leaf] = np.int32(count)
    set_head(slots.heads, slots.tops, leaf, slots.keys[base] if count > 0 else EMPTY_KEY)
    for slot in range(base, base + count):
        u = slots.keys[np.uintp(slot)] >> HALF
        if u != row:
            row_leaf[np.uintp(u)] = np.uint32(leaf)
            row = u
    return row


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _pieces(n: Int, size: Int) -> Int:
    return (np.int64(n) + size - 1) // size


@nb.njit(cache=True, nogil=True, error_model="numpy")
def first_bad_key(keys: Keys, n_vertices: Int, crew: Crew) -> Int:
    """The position of the first key that is not above the one before it or names a row too many; -1: none."""
    n_pieces = _pieces(keys.size, _PIECE_KEYS)
    bad = np.full(n_pieces, -1, np.int64)
    share(at_most(crew, n_pieces), _find_bad, (keys, np.uint64(n_vertices), np.zeros(1, np.int64), bad))
    for piece in range(n_pieces):
        if bad[piece] >= 0:
            return bad[piece]
    return np.int64(-1)


@inner
def _find_bad(thread: Int, keys: Keys, n_vertices: Int, cursor: Offsets, bad: Offsets) -> None:
    for piece in drawn(cursor, bad.size):
        begin = piece * _PIECE_KEYS
        end = min(begin + _PIECE_KEYS, keys.size)
        # Of ascending keys the last one has the largest row. Without branches many are compared at a time.
        good = keys[np.uintp(end - 1)] >> HALF < n_vertices
        for i in range(max(begin, np.int64(1)), end):
            good &= keys[np.uintp(i - 1)] < keys[np.uintp(i)]
        if not good:
            bad[piece] = _first_bad(keys, begin, n_vertices)


@inner
def _first_bad(keys: Keys, begin: Int, n_vertices: Int) -> Int:
    """Which of the keys from ``begin`` on is bad, where one is."""
    at = begin
    while (at == 0 or keys[at - 1] < keys[at]) and keys[at] >> HALF < n_vertices:
        at += 1
    return at


@nb.njit(cache=True, nogil=True, error_model="numpy")
def load(keys: Keys, weights: Weights, slots: Slots, rows: RowIndex, crew: Crew) -> None:
    """Spread ascending keys evenly over the leaves, and let the rows know; those without edges have degree 0."""
    cursor = np.zeros(1, np.int64)
    share(at_most(crew, _pieces(rows.degrees.size, _PIECE_KEYS)), _clear, (rows.degrees, cursor))
    cursor[0] = 0
    crew = at_most(crew, _pieces(slots.counts.size, PIECE_LEAVES))
    share(crew, _load_leaves, (keys, weights, slots, rows, cursor))
    set_head(slots.heads, slots.tops, np.int64(0), np.uint64(0))


@inner
def _clear(thread: Int, degrees: Vertices, cursor: Offsets) -> None:
    for begin in drawn_by(cursor, degrees.size, _PIECE_KEYS):
        degrees[begin : begin + _PIECE_KEYS] = np.uint32(0)


@inner
def _count_degrees(keys: Keys, begin: Int, end: Int, degrees: Vertices) -> None:
    """The degrees of the rows that begin among ascending keys begin..end."""
    i = begin
    while i < end and i > 0 and keys[i] >> HALF == keys[i - 1] >> HALF:
        i += 1
    while i < end:
        row, first = keys[i] >> HALF, i
        while i < end and keys[i] >> HALF == row:
            i += 1
        if i == end:  # it may end in another piece
            i = first_behind(keys, end, keys.size, (row << HALF) | LOW)
        degrees[np.uintp(row)] = np.uint32(i - first)


@inner
def _load_leaves(thread: Int, keys: Keys, weights: Weights, slots: Slots, rows: RowIndex, cursor: Offsets) -> None:
    n_leaves = np.int64(slots.counts.size)
    each, extra = keys.size // n_leaves, keys.size % n_leaves
    for begin in drawn_by(cursor, n_leaves, PIECE_LEAVES):
        last = min(begin + PIECE_LEAVES, n_leaves)
        read = begin * each + min(begin, extra)
        _count_degrees(keys, read, last * each + min(last, extra), rows.degrees)
        row = keys[read - 1] >> HALF if read > 0 else np.uint64(EMPTY_KEY)
        for leaf in range(begin, last):
            count = each + (1 if leaf < extra else 0)
            copy(slots.keys, leaf << LEAF_SHIFT, keys, read, count)
            if weights.size:
                copy(slots.weights, leaf << LEAF_SHIFT, weights, read, count)
            read += count
            row = _finish_leaf(slots, leaf, count, row, rows.leaf)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def export(slots: Slots, keys: Keys, weights: Weights, crew: Crew) -> None:
    """Copy all edges out, without gaps."""
    n_pieces = _pieces(slots.counts.size, PIECE_LEAVES)
    crew = at_most(crew, n_pieces)
    starts = np.zeros(n_pieces, np.int64)
    cursor = np.zeros(1, np.int64)
    share(crew, _count_edges, (slots.counts, cursor, starts))
    begin_behind(starts)
    cursor[0] = 0
    share(crew, _copy_edges, (slots, keys, weights, cursor, starts))


@inner
def _count_edges(thread: Int, counts: Int, cursor: Offsets, sums: Offsets) -> None:
    for piece in drawn(cursor, sums.size):
        total = np.int64(0)
        for leaf in range(piece * PIECE_LEAVES, min((piece + 1) * PIECE_LEAVES, counts.size)):
            total += np.int64(counts[np.uintp(leaf)])
        sums[piece] = total


@inner
def _copy_edges(thread: Int, slots: Slots, keys: Keys, weights: Weights, cursor: Offsets, starts: Offsets) -> None:
    for piece in drawn(cursor, starts.size):
        to = starts[piece]
        for leaf in range(piece * PIECE_LEAVES, min((piece + 1) * PIECE_LEAVES, slots.counts.size)):
            count = np.int64(slots.counts[leaf])
            copy(keys, to, slots.keys, leaf << LEAF_SHIFT, count)
            if weights.size:
                copy(weights, to, slots.weights, leaf << LEAF_SHIFT, count)
            to += count
