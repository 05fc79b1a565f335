"""Bringing batches to the device: pinned memory that is used again and again, one transfer for all columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..edges import HALF, EdgeBatch
from .launching import Copier
from .module import import_cupy
from .state import DeviceArray, address, allocate, pinned

DeviceColumns = tuple[DeviceArray, DeviceArray, DeviceArray | None]
"""Keys, ops, and weights or None."""

# Buffers grow by this factor.
ROOM = 1.5
# Bytes of an update: key, weight, op.
UPDATE_BYTES = 8 + 4 + 1
# To compare a type with np.uint64 itself takes as long as all else that is looked at here.
_KEY, _OP, _WEIGHT = np.dtype(np.uint64), np.dtype(np.uint8), np.dtype(np.float32)


class DeviceBatch:
    """A batch on the device: ``keys`` uint64[n], ``ops`` uint8[n], ``weights`` float32[n] or None.

    ``addresses``: where kernels find them, 0 for None; ``is_turned``: there the keys are those of the other
    direction. As arrays they are made when somebody asks, which small batches have no time for.
    """

    __slots__ = ("_columns", "_make", "addresses", "is_turned", "n")

    def __init__(
        self,
        n: int,
        addresses: tuple[int, int, int],
        make: Callable[[], DeviceColumns],
        *,
        is_turned: bool = False,
    ) -> None:
        self.n, self.addresses, self.is_turned = n, addresses, is_turned
        self._make: Callable[[], DeviceColumns] | None = make
        self._columns: DeviceColumns | None = None

    @classmethod
    def of(cls, keys: DeviceArray, ops: DeviceArray, weights: DeviceArray | None) -> DeviceBatch:
        """Of arrays that there are."""
        return cls(int(keys.size), (address(keys), address(ops), address(weights)), lambda: (keys, ops, weights))

    def __len__(self) -> int:
        return self.n

    @property
    def columns(self) -> DeviceColumns:
        if self._columns is None:
            assert self._make is not None
            self._columns, self._make = self._make(), None
        return self._columns

    @property
    def keys(self) -> DeviceArray:
        return self.columns[0]

    @property
    def ops(self) -> DeviceArray:
        return self.columns[1]

    @property
    def weights(self) -> DeviceArray | None:
        return self.columns[2]

    def unweighted(self) -> DeviceBatch:
        """The same without weights."""
        keys, ops, _ = self.addresses
        return DeviceBatch(self.n, (keys, ops, 0), lambda: (self.keys, self.ops, None), is_turned=self.is_turned)

    def turned(self) -> DeviceBatch:
        """The same updates, seen from the heads of their edges. To make its keys an array takes memory."""

        def make() -> DeviceColumns:
            return self.keys << HALF | self.keys >> HALF, self.ops, self.weights

        return DeviceBatch(self.n, self.addresses, make, is_turned=not self.is_turned)


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
        self._device_address = 0
        self._copier = Copier(stream)
        self._filled: EdgeBatch | None = None  # what ``columns`` gave last
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
        keys, *weights, ops = (self._host[begin:end].view(dtype) for begin, end, dtype in _places(n, weighted))
        self._filled = EdgeBatch(keys, ops, *weights)
        return self._filled

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
        return DeviceBatch.of(
            self._straight(batch.keys, _KEY),
            self._straight(batch.ops, _OP),
            None if weights is None else self._straight(weights, _WEIGHT),
        )

    def fill(self, batch: EdgeBatch) -> None:
        """Have NumPy columns, with the weights that they have, in pinned memory, where a kernel on the stream may
        read them until ``arrived``.

        Raises:
            MemoryError: there is not enough.
        """
        if batch is not self._filled or self._under_way:
            self._take(len(batch))
            if batch is not self._filled:
                self._write(batch, batch.weights)
        self._under_way = True

    @property
    def addresses(self) -> tuple[int, int]:
        """Where a batch begins, in pinned memory and on the device: keys, weights if there are any, ops, one
        column behind the other."""
        return self._address, self._device_address

    def placed(self, batch: EdgeBatch, *, weighted: bool) -> DeviceBatch:
        """A batch that ``fill`` had, and that a kernel on the stream has taken to the device."""
        return self._at(batch.keys.size, weighted=weighted)

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
        n, weighted = len(batch), weights is not None
        self._take(n)
        if batch is not self._filled or weighted != (batch.weights is not None):
            self._write(batch, weights)
        placed = self._at(n, weighted=weighted)
        if n:
            self._copier.copy(self._device_address, self._address, _places(n, weighted)[-1][1])
        return placed

    def _write(self, batch: EdgeBatch, weights: Any) -> None:
        columns: list[Any] = [batch.keys, *([] if weights is None else [weights]), batch.ops]
        for column, (begin, end, dtype) in zip(columns, _places(len(batch), weights is not None), strict=True):
            at = column.__array_interface__["data"][0]
            if at != self._address + begin or not column.flags.c_contiguous:  # not one of ``columns``
                self._host[begin:end].view(dtype)[:] = column

    def _at(self, n: int, *, weighted: bool) -> DeviceBatch:
        self._under_way = True
        device, at = self._device, self._device_address
        at_ops = at + (12 if weighted else 8) * n
        self.uploaded_bytes += at_ops + n - at

        def arrays() -> DeviceColumns:
            keys, *of_weights, ops = (device[begin:end].view(dtype) for begin, end, dtype in _places(n, weighted))
            return keys, ops, of_weights[0] if of_weights else None

        return DeviceBatch(n, (at, at_ops, at + 8 * n if weighted else 0), arrays)

    def _take(self, n: int) -> None:
        """Have room for ``n`` updates, of which none is being copied."""
        if self._under_way:  # whoever brought a batch gave it up
            self._stream.synchronize()
            self._under_way = False
        if n <= self._room:
            return
        room = max(n, int(self._room * ROOM))
        with self._stream:  # whoever fills columns may be on another one
            device = allocate(room * UPDATE_BYTES, np.uint8)
        self._host = pinned(room * UPDATE_BYTES, np.uint8)
        self._address = self._host.ctypes.data
        self._device, self._device_address, self._room = device, address(device), room
        self._filled = None

    def give_back(self) -> None:
        """Have no room until the next batch. Columns that somebody has stay theirs, and are copied then."""
        self._take(0)
        self._host, self._address, self._device, self._room = np.empty(0, np.uint8), 0, None, 0
        self._filled = None

    def memory_bytes(self) -> int:
        """Bytes held on the device."""
        return self._room * UPDATE_BYTES


def _places(n: int, weighted: bool) -> list[tuple[int, int, np.dtype[Any]]]:
    """Where the columns of ``n`` updates begin and end, in bytes, and their types: keys, weights, ops."""
    if not weighted:
        return [(0, 8 * n, _KEY), (8 * n, 9 * n, _OP)]
    return [(0, 8 * n, _KEY), (8 * n, 12 * n, _WEIGHT), (12 * n, 13 * n, _OP)]
