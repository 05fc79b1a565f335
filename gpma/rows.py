"""Walking the rows of a packed array in place, from Numba kernels.

A packed array keeps its live keys packed to the left of each leaf, in ascending order over all leaves. The
row of a vertex is therefore a run of live slots that may span several leaves (some of them empty). A kernel
walks it so::

    remaining = np.int64(rows.degrees[u])
    if remaining:
        leaf, slot = first_slot(rows, u)
        while remaining > 0:
            end = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
            for i in range(slot, end):
                v = rows.keys[i] & LOW          # and rows.weights[i], where the graph is weighted
                ...
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << rows.leaf_shift
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from .edges import HALF, LOW, Keys, Vertices, Weights
from .intrinsics import prefetch

# Keys of one cache line, and how many lines of a leaf ``ask_for_row`` asks for: most rows end there.
_LINE = 8
_LINES = 4


class RowView(NamedTuple):
    """The arrays of a packed array, as a kernel reads them; valid until the next ``apply``.

    ``keys`` uint64[slots]; ``weights`` float32[slots], or float32[0] when unweighted; ``counts`` int32[leaves],
    the live slots of each leaf; ``row_leaf`` uint32[>= n], the leaf in which the row of a vertex begins (never
    later than its first key; meaningless for degree 0); ``degrees`` uint32[>= n]; ``leaf_shift``: a leaf has
    ``1 << leaf_shift`` slots.
    """

    keys: Keys
    weights: Weights
    counts: npt.NDArray[np.int32]
    row_leaf: Vertices
    degrees: Vertices
    leaf_shift: int


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def first_slot(rows: RowView, u: int) -> tuple[np.int64, np.int64]:
    """(leaf, slot) of the first key of row u; the row must not be empty."""
    first_key = np.uint64(u) << HALF
    leaf = np.int64(rows.row_leaf[u])
    while True:
        slot = leaf << rows.leaf_shift
        end = slot + np.int64(rows.counts[leaf])
        span = end - slot
        # Halving without branches: rows begin anywhere in a leaf, so that a guess is wrong half the time.
        while span > 1:
            half = span >> 1
            slot += half if rows.keys[slot + half - 1] < first_key else 0
            span -= half
        if slot < end and rows.keys[slot] >= first_key:
            return leaf, slot
        leaf += np.int64(1)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def ask_for_row(rows: RowView, u: int) -> None:
    """Have the beginning of row u, of any degree, fetched from memory: its leaf's count, and lines of its keys."""
    leaf = np.int64(rows.row_leaf[u])
    prefetch(rows.counts, leaf)
    for line in range(_LINES):
        prefetch(rows.keys, (leaf << rows.leaf_shift) + line * _LINE)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def copy_row(rows: RowView, u: int, first: int, neighbors: Vertices, weights: Weights) -> int:
    """Copy the neighbours of u from vertex ``first`` on until ``neighbors`` is full; returns how many.

    ``weights`` has the same length, or none when the array is unweighted.
    """
    remaining = np.int64(rows.degrees[u])
    copied = 0
    if remaining == 0:
        return copied
    first_key = (np.uint64(u) << HALF) | np.uint64(first)
    leaf, slot = first_slot(rows, u)
    while remaining > 0 and copied < neighbors.size:
        end = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
        if end > slot and rows.keys[end - 1] >= first_key:
            for i in range(slot, end):
                if rows.keys[i] >= first_key and copied < neighbors.size:
                    neighbors[copied] = rows.keys[i] & LOW
                    if weights.size:
                        weights[copied] = rows.weights[i]
                    copied += 1
        remaining -= end - slot
        leaf += np.int64(1)
        slot = leaf << rows.leaf_shift
    return copied
