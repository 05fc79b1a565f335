"""The arrays behind a device array, whose addresses kernels find in structures (``structures.py``).

Kernels take structures by value: CuPy passes a NumPy array of one element so, and a launch costs by the
argument. ``State`` changes only when an array moved, so that it is filled in once for many batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..layout import Layout
from .constants import BUCKET, CHUNK_SHIFT, ROWS_BEYOND
from .module import import_cupy
from .pool import memory_pool, release_blocks
from .structures import ITEM, RECORD, ROW, SPILL

# Kernels number vertices by 32 bits, and go over them in steps of as many as a launch has threads. That is so many
# at most for cooperative ones, and as many numbers are left free: so none wraps round behind the last vertex.
THREADS_MAX = 1 << 20
VERTICES_MAX = (1 << 32) - THREADS_MAX

# An array on the device: CuPy ships no types that a checker could use.
DeviceArray = Any

# ``cudaErrorMemoryAllocation``.
_MEMORY_ALLOCATION = 2
# The words of a row in the row index.
_ROW_WORDS = ROW.names or ()
_LEAF, _DEGREE = _ROW_WORDS.index("leaf"), _ROW_WORDS.index("degree")


class Slots(NamedTuple):
    """The packed array itself, and work arrays by leaf; all of them on the device.

    ``keys`` uint64[slots]; ``weights`` float32[slots], or None; ``counts`` uint32[leaves]; ``heads``
    uint64[leaves + 1]; ``lower`` and ``upper`` float64[height + 1]; ``pending`` and ``marks`` uint32[leaves],
    zero between batches; ``chunks`` uint64, for sums over leaves.
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
    """Where each row begins, and its length: struct Row by vertex, and ROWS_BEYOND empty ones, on the device.

    ``pairs`` uint32[2 * (vertices + ROWS_BEYOND)]: leaf and degree in turn; a leaf is valid where the degree is
    not 0.
    """

    pairs: DeviceArray

    @property
    def room(self) -> int:
        """How many vertices there is room for."""
        return int(self.pairs.size) // len(_ROW_WORDS) - ROWS_BEYOND

    @property
    def leaf(self) -> DeviceArray:
        return self._column(_LEAF)

    @property
    def degrees(self) -> DeviceArray:
        return self._column(_DEGREE)

    def _column(self, word: int) -> DeviceArray:
        n_words = len(_ROW_WORDS)
        return self.pairs[word : n_words * self.room : n_words]


class Work(NamedTuple):
    """Work arrays for batches of up to ``room`` updates (``items`` are zero where kernels rely on it), and
    the report of the last one: ``outcome`` uint8[room], ``old_weights`` float32[room] or None."""

    records: DeviceArray
    update_leaf: DeviceArray
    update_rank: DeviceArray
    items: DeviceArray
    unfit: DeviceArray
    tall: DeviceArray
    window_begin: DeviceArray
    window_height: DeviceArray
    spills: DeviceArray
    outcome: DeviceArray
    old_weights: DeviceArray | None


def new_slots(layout: Layout, *, weighted: bool) -> Slots:
    """Room for an array of this layout; keys, weights, counts and heads are not initialised.

    Raises:
        MemoryError: the device has not enough (CuPy's ``OutOfMemoryError`` is one).
    """
    n_leaves = layout.n_leaves
    return Slots(
        keys=allocate(layout.n_slots, np.uint64),
        weights=allocate(layout.n_slots, np.float32) if weighted else None,
        counts=allocate(n_leaves, np.uint32),
        heads=allocate(n_leaves + 1, np.uint64),
        lower=_uploaded(layout.lower),
        upper=_uploaded(layout.upper),
        pending=zeros(n_leaves, np.uint32),
        marks=zeros(n_leaves, np.uint32),
        chunks=allocate((n_leaves >> CHUNK_SHIFT) + 1, np.uint64),
    )


def new_rows(n_vertices: int) -> RowIndex:
    """Empty rows.

    Raises:
        MemoryError: the device has not enough, or there would be more than VERTICES_MAX.
    """
    if n_vertices > VERTICES_MAX:
        raise MemoryError(f"a device has room for {VERTICES_MAX} vertices, not {n_vertices}")
    return RowIndex(zeros(len(_ROW_WORDS) * (n_vertices + ROWS_BEYOND), np.uint32))


def new_work(room: int, small_max: int, *, weighted: bool) -> Work:
    """Work arrays for batches of up to ``room`` updates; those of up to ``small_max`` get buckets of records.

    Raises:
        MemoryError: the device has not enough.
    """
    n_records = max(room, BUCKET * min(room, small_max))
    return Work(
        records=allocate(n_records * RECORD.itemsize, np.uint8),
        update_leaf=allocate(room, np.uint32),
        update_rank=allocate(room, np.uint32),
        items=zeros(room * ITEM.itemsize, np.uint8),
        unfit=allocate(room, np.uint32),
        tall=allocate(room, np.uint32),
        window_begin=allocate(room, np.uint32),
        window_height=allocate(room, np.uint32),
        spills=allocate((room + 1) * SPILL.itemsize, np.uint8),
        outcome=allocate(room, np.uint8),
        old_weights=allocate(room, np.float32) if weighted else None,
    )


def point_at(structure: npt.NDArray[np.void], arrays: NamedTuple) -> None:
    """Write the addresses of these arrays into the fields of the same names."""
    for name, array in zip(arrays._fields, arrays, strict=True):
        structure[name] = address(array)


def plain(structure: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """A structure as plain bytes: CuPy passes those on as they are, and takes 30 us to look at fields first."""
    return structure.view(f"V{structure.itemsize}")


def address(array: DeviceArray | None) -> int:
    """Where an array begins on the device; 0 for None."""
    return 0 if array is None else int(array.data.ptr)


def allocate(n: int, dtype: npt.DTypeLike) -> DeviceArray:
    """Every device array of this package comes from here, so that a test can let any one of them fail.

    Raises:
        MemoryError: there is not enough (CuPy's ``OutOfMemoryError`` is one).
    """
    cupy = import_cupy()
    try:
        return cupy.empty(n, dtype)
    except MemoryError:
        # Where there are spare arrays, ``pool._malloc`` has released blocks by then, and none are left. CuPy's own
        # arrays come by that alone, and where there are none this alone is asked.
        if memory_pool().free_bytes() == 0:
            raise
        release_blocks()  # those of other sizes count against a limit, too
        return cupy.empty(n, dtype)


def zeros(n: int, dtype: npt.DTypeLike) -> DeviceArray:
    array = allocate(n, dtype)
    array.fill(0)
    return array


def pinned(n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """So many entries, one at least, of host memory that kernels reach at the same address; the array keeps it.

    Raises:
        MemoryError: there is not enough.
        RuntimeError: the device fails (as CuPy says it).
    """
    return _pinned(import_cupy().cuda.alloc_pinned_memory, n, dtype)


def pinned_by_itself(n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """As ``pinned``, for much memory: it is the system's again when the array goes.

    Otherwise CuPy keeps what is let go, for whoever wants exactly as much again.
    """
    cuda = import_cupy().cuda
    return _pinned(lambda n_bytes: cuda.PinnedMemoryPointer(cuda.PinnedMemory(n_bytes), 0), n, dtype)


def _pinned(take: Callable[[int], Any], n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    room = max(1, n)
    n_bytes = room * np.dtype(dtype).itemsize
    try:
        memory = take(n_bytes)
    except RuntimeError as error:  # of the device's own memory CuPy says it by a MemoryError, of this it does not
        if getattr(error, "status", None) != _MEMORY_ALLOCATION:
            raise
        raise MemoryError(f"there are no {n_bytes:,} bytes of pinned memory") from error
    return np.frombuffer(memory, dtype, room)


def _uploaded(values: npt.NDArray[Any]) -> DeviceArray:
    array = allocate(values.size, values.dtype)
    array.set(values)
    return array
