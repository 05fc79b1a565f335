"""Filling and emptying whole device arrays, the twin of gpma/host/load_export.py (kernels: ``load_export.cu``).

Every function takes all memory that it needs before it writes anything that was there. All of them run on the
current stream; columns are CuPy arrays.
"""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np

from ..edges import EdgeList
from .constants import LOAD_THREADS
from .geometry import LEAF_LEAST, LEAF_SHIFT, LEAF_SLOTS
from .module import import_cupy
from .module import load as load_module
from .state import DeviceArray, RowIndex, Slots, address, allocate, plain
from .structures import TARGET

# More blocks than this gain nothing: each thread then takes several edges.
BLOCKS_MAX = 1 << 14


def first_bad_key(keys: DeviceArray, n_vertices: int) -> int:
    """The position of the first key that is not above the one before it or names a row too many; -1: none."""
    bad = allocate(1, np.uint64)
    bad.fill(keys.size)
    _launch("find_bad_key", keys.size, (keys, np.uint64(keys.size), np.uint32(n_vertices), bad), weighted=False)
    position = int(bad[0])
    return position if position < keys.size else -1


def sorted_last_wins(keys: DeviceArray, weights: DeviceArray | None) -> tuple[DeviceArray, DeviceArray | None]:
    """Unsorted columns in ascending order, each key once with the weight that stood last in the columns."""
    cupy = import_cupy()
    if weights is None:
        keys = cupy.sort(keys)
    else:
        order = cupy.argsort(keys)  # stable: it is a radix sort
        keys = keys[order]
    last = cupy.empty(keys.size, bool)
    last[-1:] = True
    cupy.not_equal(keys[1:], keys[:-1], out=last[:-1])
    return keys[last], None if weights is None else weights[order[last]]


def load(slots: Slots, rows: RowIndex, keys: DeviceArray, weights: DeviceArray | None) -> None:
    """Replace all contents by these edges (strictly ascending keys of existing rows), spread evenly."""
    weighted = slots.weights is not None
    target = _target(slots, rows, keys.size)
    rows.pairs.fill(0)
    _launch("count_degrees", keys.size, (keys, np.uint64(keys.size), rows.pairs), weighted=weighted)
    _launch("begin_leaves", slots.counts.size + 1, (target,), weighted=weighted)
    _launch("load_columns", keys.size, (target, keys, weights), weighted=weighted)


def leaf_ends(slots: Slots) -> DeviceArray:
    """uint64[leaves]: the live keys in each leaf and in those before it."""
    return import_cupy().cumsum(slots.counts, dtype=np.uint64)


def export(slots: Slots, n_edges: int) -> EdgeList:
    """All edges in ascending order, as device columns."""
    keys = allocate(n_edges, np.uint64)
    weights = None if slots.weights is None else allocate(n_edges, np.float32)
    _empty_into("export_columns", slots, keys, weights)
    return EdgeList(keys, weights)


def copied_from(slots: Slots, first_key: int, n: int) -> EdgeList:
    """The first ``n`` edges from ``first_key`` on, ascending, as NumPy columns; fewer only at the end.

    Leaves are copied as they lie: it takes no memory on the device, which may have none left.
    """
    n_leaves = int(slots.counts.size)
    leaf = max(0, bisect.bisect_right(_Elements(slots.heads), first_key, 0, n_leaves) - 1)
    keys, weights, found = [np.empty(0, np.uint64)], [np.empty(0, np.float32)], 0
    while found < n and leaf < n_leaves:
        end = min(n_leaves, leaf + -(-(n - found) // LEAF_LEAST) + 1)
        block = slice(leaf << LEAF_SHIFT, end << LEAF_SHIFT)
        chosen = (np.arange(LEAF_SLOTS) < slots.counts[leaf:end].get()[:, None]).reshape(-1)
        of_leaves = slots.keys[block].get()
        chosen &= of_leaves >= np.uint64(first_key)
        keys.append(of_leaves[chosen])
        if slots.weights is not None:
            weights.append(slots.weights[block].get()[chosen])
        found += keys[-1].size
        leaf = end
    return EdgeList(np.concatenate(keys)[:n], None if slots.weights is None else np.concatenate(weights)[:n])


class _Elements:
    """The elements of an array on the device, brought one by one as they are asked for."""

    def __init__(self, array: DeviceArray) -> None:
        self._array = array

    def __len__(self) -> int:
        return int(self._array.size)

    def __getitem__(self, index: int) -> int:
        return int(self._array[index : index + 1].get()[0])


def export_csr(
    slots: Slots, rows: RowIndex, n_vertices: int, n_edges: int
) -> tuple[DeviceArray, DeviceArray, DeviceArray | None]:
    """The whole array as a CSR: offsets uint64[n_vertices + 1], neighbours uint32, weights float32 or None."""
    offsets = allocate(n_vertices + 1, np.uint64)
    offsets[:1] = 0
    import_cupy().cumsum(rows.degrees[:n_vertices], dtype=np.uint64, out=offsets[1:])
    neighbors = allocate(n_edges, np.uint32)
    weights = None if slots.weights is None else allocate(n_edges, np.float32)
    _empty_into("export_neighbors", slots, neighbors, weights)
    return offsets, neighbors, weights


def _empty_into(kernel: str, slots: Slots, column: DeviceArray, weights: DeviceArray | None) -> None:
    n_leaves = slots.counts.size
    source = (slots.keys, slots.weights, slots.counts, leaf_ends(slots), np.uint32(n_leaves))
    _launch(kernel, 32 * n_leaves, (*source, column, weights), weighted=weights is not None)


def _target(slots: Slots, rows: RowIndex, n_edges: int) -> Any:
    target = np.zeros(1, TARGET)
    for name, array in (
        ("keys", slots.keys),
        ("weights", slots.weights),
        ("counts", slots.counts),
        ("heads", slots.heads),
        ("rows", rows.pairs),
    ):
        target[name] = address(array)
    target["n_edges"] = n_edges
    target["n_leaves"] = slots.counts.size
    return plain(target)


def _launch(kernel: str, n_threads: int, arguments: tuple[Any, ...], *, weighted: bool) -> None:
    """Launch a kernel whose threads go round until about ``n_threads`` pieces of work are done."""
    n_blocks = min(-(-n_threads // LOAD_THREADS), BLOCKS_MAX)
    if n_blocks == 0:
        return
    # CuPy knows no null pointer: an address goes in as a number.
    values = tuple(np.uint64(0) if value is None else value for value in arguments)
    load_module("load_export.cu", weighted=weighted).get_function(kernel)((n_blocks,), (LOAD_THREADS,), values)
