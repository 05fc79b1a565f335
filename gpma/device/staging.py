"""Bringing batches to the device: pinned memory that is used again and again, one transfer for all columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..edges import EdgeBatch
from .module import import_cupy
from .state import DeviceArray, allocate, pinned

# Buffers grow by this factor.
ROOM = 1.5
# Bytes of an update: key, weight, op.
UPDATE_BYTES = 8 + 4 + 1
# To compare a type with np.uint64 itself takes as long as all else that is looked at here.
_KEY, _OP, _WEIGHT = np.dtype(np.uint64), np.dtype(np.uint8), np.dtype(np.float32)


class DeviceBatch(NamedTuple):
    """A batch on the device: ``keys`` uint64[n], ``ops`` uint8[n], ``weights`` float32[n] or None."""

    keys: DeviceArray
    ops: DeviceArray
    weights: DeviceArray | None


class Staging:
    """Room for one batch in pinned host memory, and as much on the device."""

    def __init__(self, stream: Any) -> None:
        self._cupy = import_cupy()
        self._stream = stream
        self._event: Any = None
        self._room = 0
        self._host = np.empty(0, np.uint8)
        self._address = 0
        self._device: Any = None
        self._under_way = False
        self.uploaded_bytes = 0
        """Since the beginning, of what was the host's."""

    def columns(self, n: int, *, weighted: bool) -> EdgeBatch:
        """Columns for ``n`` updates, to be filled, in pinned memory: ``bring`` need not copy them.

        Good until the next call of either, but for that ``bring``.

        Raises:
            MemoryError: there is not enough.
        """
        self._take(n)
        keys, *weights, ops = (self._host[part].view(dtype) for part, dtype in _places(n, weighted))
        return EdgeBatch(keys, ops, *weights)

    def bring(self, batch: EdgeBatch, *, weighted: bool) -> DeviceBatch:
        """The batch on the device, in the order of the stream. NumPy columns are copied, by way of pinned memory;
        good until the next call, which waits for the stream unless ``arrived`` was called.

        Raises:
            MemoryError: there is not enough.
        """
        weights = batch.weights if weighted else None
        if isinstance(batch.keys, np.ndarray):
            return self._copied(batch, weights)
        current = self._cupy.cuda.get_current_stream()
        if current.ptr != self._stream.ptr:
            if self._event is None:
                self._event = self._cupy.cuda.Event(disable_timing=True)
            self._event.record(current)
            self._stream.wait_event(self._event)
        return DeviceBatch(
            self._straight(batch.keys, _KEY),
            self._straight(batch.ops, _OP),
            None if weights is None else self._straight(weights, _WEIGHT),
        )

    def arrived(self) -> None:
        """What came after the last batch on the stream has been waited for, and so the batch has been copied."""
        self._under_way = False

    def _straight(self, column: DeviceArray, dtype: np.dtype[Any]) -> DeviceArray:
        """The column without gaps and of this type: itself, as a rule."""
        if column.dtype == dtype and column.flags.c_contiguous:
            return column
        with self._stream:
            return self._cupy.ascontiguousarray(column, dtype)

    def _copied(self, batch: EdgeBatch, weights: Any) -> DeviceBatch:
        n = len(batch)
        self._take(n)
        columns: list[Any] = [batch.keys, *([] if weights is None else [weights]), batch.ops]
        places = _places(n, weights is not None)
        for column, (part, dtype) in zip(columns, places, strict=True):
            at = column.__array_interface__["data"][0]
            if at != self._address + part.start or not column.flags.c_contiguous:  # not one of ``columns``
                self._host[part].view(dtype)[:] = column
        self._under_way = True
        self._device.data.copy_from_host_async(self._address, places[-1][0].stop, self._stream)
        self.uploaded_bytes += places[-1][0].stop
        keys, *of_weights, ops = (
            self._cupy.ndarray(n, dtype, self._device.data + part.start) for part, dtype in places
        )
        return DeviceBatch(keys, ops, of_weights[0] if of_weights else None)

    def _take(self, n: int) -> None:
        """Have room for ``n`` updates, of which none is being copied."""
        if self._under_way:  # whoever brought a batch gave it up
            self._stream.synchronize()
            self._under_way = False
        self._reserve(n)

    def _reserve(self, n: int) -> None:
        if n <= self._room:
            return
        room = max(n, int(self._room * ROOM))
        with self._stream:  # whoever fills columns may be on another one
            device = allocate(room * UPDATE_BYTES, np.uint8)
        self._host = pinned(room * UPDATE_BYTES, np.uint8)
        self._address = self._host.ctypes.data
        self._device, self._room = device, room

    def give_back(self) -> None:
        """Have no room until the next batch. Columns that somebody has stay theirs, and are copied then."""
        self._take(0)
        self._host, self._address, self._device, self._room = np.empty(0, np.uint8), 0, None, 0

    def memory_bytes(self) -> int:
        """Bytes held on the device."""
        return self._room * UPDATE_BYTES


def _places(n: int, weighted: bool) -> list[tuple[slice, np.dtype[Any]]]:
    """Where the columns of ``n`` updates lie, in bytes, and of which type they are: keys, weights, ops."""
    if not weighted:
        return [(slice(0, 8 * n), _KEY), (slice(8 * n, 9 * n), _OP)]
    return [(slice(0, 8 * n), _KEY), (slice(8 * n, 12 * n), _WEIGHT), (slice(12 * n, 13 * n), _OP)]
