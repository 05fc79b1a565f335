"""What must be true of a device array between batches, checked on the host; slow, for tests and diagnosis."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..edges import EMPTY_KEY, HALF, Keys, sources
from ..layout import Layout
from .geometry import LEAF_LEAST, LEAF_SLOTS
from .module import import_cupy
from .state import RowIndex, Slots


def violations(
    slots: Slots, rows: RowIndex, layout: Layout, n_edges: int, n_vertices: int, leaf_least: int
) -> list[str]:
    """Violated invariants, in words; ``leaf_least``: keys that each leaf holds at least, if there are several."""
    asnumpy = import_cupy().asnumpy
    counts, heads = asnumpy(slots.counts), asnumpy(slots.heads)
    if counts.size != layout.n_leaves or slots.keys.size != layout.n_slots or heads.size != layout.n_leaves + 1:
        return ["the arrays do not have the size that the layout says"]
    if counts.max() > LEAF_SLOTS or int(counts.sum(dtype=np.int64)) != n_edges:
        return [f"leaf counts are impossible, or do not add up to {n_edges} edges"]
    problems = []
    live = np.arange(LEAF_SLOTS) < counts[:, None]
    keys = asnumpy(slots.keys).reshape(-1, LEAF_SLOTS)[live]
    if not (keys[1:] > keys[:-1]).all():
        problems.append("keys are not in strictly ascending order")
    if layout.n_leaves > 1 and counts.min() < leaf_least:
        problems.append(f"leaf {int(counts.argmin())} holds {int(counts.min())} keys, too few")
    sparse_by_need = leaf_least < LEAF_LEAST
    if n_edges > layout.edges_max or (n_edges < layout.edges_min and not sparse_by_need):
        problems.append(f"{n_edges} edges are out of bounds for {layout.n_leaves} leaves")
    for name, array in (("pending", slots.pending), ("marks", slots.marks)):
        if asnumpy(array).any():
            problems.append(f"{name} is not zero between batches")
    return problems + _check_heads(keys, counts, heads) + _check_rows(keys, heads, rows, n_vertices)


def _check_heads(keys: Keys, counts: npt.NDArray[Any], heads: Keys) -> list[str]:
    if heads[0] != 0 or heads[-1] != EMPTY_KEY or (heads[1:] < heads[:-1]).any():
        return ["heads do not ascend from 0 to EMPTY_KEY"]
    leaf = np.searchsorted(heads[:-1], keys, side="right") - 1
    if not np.array_equal(leaf, np.repeat(np.arange(counts.size), counts)):
        return ["a key stands in another leaf than the heads say"]
    return []


def _check_rows(keys: Keys, heads: Keys, rows: RowIndex, n_vertices: int) -> list[str]:
    asnumpy = import_cupy().asnumpy
    row, length = np.unique(sources(keys), return_counts=True)
    degrees = np.zeros(rows.degrees.size, np.uint32)
    degrees[row] = length
    if not np.array_equal(degrees, asnumpy(rows.degrees)) or (row >= n_vertices).any():
        return ["degrees are not the lengths of the rows"]
    leaf = np.searchsorted(heads[:-1], row.astype(np.uint64) << HALF, side="right") - 1
    wrong = np.flatnonzero(asnumpy(rows.leaf)[row] != leaf)
    return [f"row {row[wrong[0]]} does not begin where its index says"] if wrong.size else []
