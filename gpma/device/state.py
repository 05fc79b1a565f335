"""The arrays behind a device array, and the structures in which kernels find them (``array.cuh``).

Kernels take one pointer to a ``State`` in device memory instead of two dozen arguments: a launch through CuPy
costs by the argument. It is written anew only when an array moved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .geometry import DeviceLayout
from .module import import_cupy

# An array on the device: CuPy ships no types that a checker could use.
DeviceArray = Any

_POINTERS = (
    *("keys", "weights", "counts", "heads", "row_leaf", "degrees", "lower", "upper"),
    *("pending", "marks"),
    *("records", "update_leaf", "update_rank", "item_leaf", "item_begin", "item_count"),
    *("unfit", "window_begin", "window_height", "tall", "outcome", "old_weights"),
    *("partials", "chunks", "counters", "status"),
)
_NUMBERS = ("n_leaves", "height", "leaf_least", "n_blocks")
# struct State of array.cuh.
STATE = np.dtype([*((name, np.uint64) for name in _POINTERS), *((name, np.uint32) for name in _NUMBERS)])
# struct Status of array.cuh.
STATUS = np.dtype(
    [
        ("sequence", np.uint32),
        ("flags", np.uint32),
        ("totals", np.uint32, 4),
        ("heavy_records", np.uint32),
        ("n_heavy", np.uint32),
        ("bad_row", np.uint32),
        ("n_windows", np.uint32),
        ("slots_moved", np.uint64),
    ]
)
COUNTERS_BYTES = 80


class Slots(NamedTuple):
    """The packed array itself, and work arrays of the same size; all of them on the device.

    ``keys`` uint64[slots]; ``weights`` float32[slots], or None; ``counts`` uint32[leaves]; ``heads``
    uint64[leaves + 1]; ``lower`` and ``upper`` float64[height + 1]; ``pending`` and ``marks`` uint32[leaves],
    zero between batches.
    """

    keys: DeviceArray
    weights: DeviceArray | None
    counts: DeviceArray
    heads: DeviceArray
    lower: DeviceArray
    upper: DeviceArray
    pending: DeviceArray
    marks: DeviceArray
    chunks: DeviceArray


class RowIndex(NamedTuple):
    """``leaf`` and ``degrees``, uint32 by vertex, on the device; ``leaf`` is valid where ``degrees`` is not 0."""

    leaf: DeviceArray
    degrees: DeviceArray


# Counts are summed over runs of so many leaves for windows taller than that (CHUNK in rebalance.cuh).
CHUNK_SHIFT = 10


def new_slots(layout: DeviceLayout, *, weighted: bool) -> Slots:
    """Room for an array of this layout; keys, weights, counts and heads are not initialised.

    Raises:
        MemoryError: the device has not enough (CuPy's ``OutOfMemoryError`` is one).
    """
    n_leaves = layout.n_leaves
    return Slots(
        keys=_allocate(layout.n_slots, np.uint64),
        weights=_allocate(layout.n_slots, np.float32) if weighted else None,
        counts=_allocate(n_leaves, np.uint32),
        heads=_allocate(n_leaves + 1, np.uint64),
        lower=_uploaded(layout.lower),
        upper=_uploaded(layout.upper),
        pending=_zeros(n_leaves, np.uint32),
        marks=_zeros(n_leaves, np.uint32),
        chunks=_allocate((n_leaves >> CHUNK_SHIFT) + 1, np.uint64),
    )


def new_rows(n_vertices: int) -> RowIndex:
    """Empty rows.

    Raises:
        MemoryError: the device has not enough.
    """
    return RowIndex(_zeros(n_vertices, np.uint32), _zeros(n_vertices, np.uint32))


def address(array: DeviceArray | None) -> int:
    """Where an array begins on the device; 0 for None and for an empty one."""
    return 0 if array is None else int(array.data.ptr)


def _allocate(n: int, dtype: npt.DTypeLike) -> DeviceArray:
    """Every device array of this module comes from here, so that a test can let any one of them fail."""
    return import_cupy().empty(n, dtype)


def _zeros(n: int, dtype: npt.DTypeLike) -> DeviceArray:
    array = _allocate(n, dtype)
    array.fill(0)
    return array


def _uploaded(values: npt.NDArray[Any]) -> DeviceArray:
    array = _allocate(values.size, values.dtype)
    array.set(values)
    return array
