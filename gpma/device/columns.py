"""Columns of updates on the device that are made there, and used again and again."""

from __future__ import annotations

import numpy as np

from .module import import_cupy
from .staging import DeviceBatch
from .state import DeviceArray, allocate

# Columns grow by this factor.
ROOM = 1.5


class Columns:
    """Room for the columns of one batch."""

    def __init__(self) -> None:
        self._keys: DeviceArray = allocate(0, np.uint64)
        self._ops: DeviceArray = allocate(0, np.uint8)
        self._weights: DeviceArray = allocate(0, np.float32)

    def take(self, n: int, weighted: bool) -> DeviceBatch:
        """Columns for ``n`` updates, to be filled; good until the next call.

        Raises:
            MemoryError: there is not enough.
        """
        self._keys, self._ops = with_room(self._keys, n), with_room(self._ops, n)
        if weighted:
            self._weights = with_room(self._weights, n)
        return DeviceBatch.of(
            _first(self._keys, n), _first(self._ops, n), _first(self._weights, n) if weighted else None
        )

    def memory_bytes(self) -> int:
        """Bytes held on the device."""
        return int(self._keys.nbytes + self._ops.nbytes + self._weights.nbytes)


def with_room(column: DeviceArray, n: int) -> DeviceArray:
    """The column, or a longer one, not filled, where it has no room for ``n``.

    Raises:
        MemoryError: there is not enough.
    """
    return column if n <= column.size else allocate(max(n, int(ROOM * column.size)), column.dtype)


def _first(column: DeviceArray, n: int) -> DeviceArray:
    """The first ``n`` entries: as a slice, which takes three times as long."""
    return import_cupy().ndarray(n, column.dtype, column.data)
