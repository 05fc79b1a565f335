"""Moving whole arrays: loading sorted edges, exporting."""

from __future__ import annotations

import numba as nb
import numpy as np

from ..edges import EMPTY_KEY, HALF, Int, Keys, Vertices, Weights
from ..intrinsics import copy
from ..layout import LEAF_SHIFT
from .arrays import Slots
from .search import set_head


@nb.njit(cache=True, nogil=True, error_model="numpy")
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


@nb.njit(cache=True, nogil=True, error_model="numpy")
def first_bad_key(keys: Keys, n_vertices: Int) -> Int:
    """The position of the first key that is not above the one before it or names a row too many; -1: none."""
    for i in range(keys.size):
        if (i > 0 and keys[i] <= keys[i - 1]) or keys[i] >> HALF >= np.uint64(n_vertices):
            return np.int64(i)
    return np.int64(-1)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def count_degrees(keys: Keys, degrees: Vertices) -> None:
    """Add the length of each row to ``degrees``; keys ascending."""
    begin = np.int64(0)
    n = keys.size
    for i in range(1, n + 1):
        if i == n or (keys[i] >> HALF) != (keys[begin] >> HALF):
            degrees[np.uintp(keys[begin] >> HALF)] += np.uint32(i - begin)
            begin = np.int64(i)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def load(keys: Keys, weights: Weights, slots: Slots, row_leaf: Vertices) -> None:
    """Spread ascending keys evenly over the leaves."""
    n_leaves = np.int64(slots.counts.size)
    share, extra = keys.size // n_leaves, keys.size % n_leaves
    row = np.uint64(EMPTY_KEY)
    read = np.int64(0)
    for leaf in range(n_leaves):
        count = share + (1 if leaf < extra else 0)
        copy(slots.keys, leaf << LEAF_SHIFT, keys, read, count)
        if weights.size:
            copy(slots.weights, leaf << LEAF_SHIFT, weights, read, count)
        read += count
        row = _finish_leaf(slots, leaf, count, row, row_leaf)
    set_head(slots.heads, slots.tops, np.int64(0), np.uint64(0))


@nb.njit(cache=True, nogil=True, error_model="numpy")
def export(slots: Slots, keys: Keys, weights: Weights) -> None:
    """Copy all edges out, without gaps."""
    to = np.int64(0)
    for leaf in range(slots.counts.size):
        count = np.int64(slots.counts[leaf])
        copy(keys, to, slots.keys, leaf << LEAF_SHIFT, count)
        if weights.size:
            copy(weights, to, slots.weights, leaf << LEAF_SHIFT, count)
        to += count
