"""A batch's updates in both directions, made on the device (``turn.cu``), so that one upload serves both."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from .columns import with_room
from .constants import RUN_THREADS
from .launching import Launcher
from .module import load
from .staging import DeviceBatch
from .state import DeviceArray, address, allocate
from .structures import TURN

# struct Turn, packed: a fraction of what it costs to assign a tuple to a structured array.
_TURN = struct.Struct("=6Q2I")
assert _TURN.size == TURN.itemsize


class Turning:
    """Kernels that turn batches, and room for one that they made; everything runs on ``stream``."""

    def __init__(self, stream: Any) -> None:
        module = load("turn.cu", weighted=True)
        self._function = module.get_function("mirror_updates")
        self._mirror: int = self._function.kernel.ptr  # the driver's handle, which the function keeps alive
        self._structure = np.zeros(1, TURN)
        self._packed = memoryview(self._structure.view(np.uint8))
        self._stream = stream
        self._launcher = Launcher(stream, (self._structure,))
        self._keys: DeviceArray = allocate(0, np.uint64)
        self._ops: DeviceArray = allocate(0, np.uint8)
        self._weights: DeviceArray = allocate(0, np.float32)
        self._turned = 0, 0, 0  # where they are

    def both(self, batch: DeviceBatch) -> DeviceBatch:
        """Each update followed by its mirror image; a self-loop's image says the same twice, harmlessly.

        Good until the next call.

        Raises:
            MemoryError: there is not enough.
        """
        n, weighted = 2 * batch.n, batch.addresses[2] != 0
        self._make_room(n, weighted=weighted)
        _TURN.pack_into(self._packed, 0, *batch.addresses, *self._turned, batch.n, 0)
        self._launcher.start(self._mirror, -(-batch.n // RUN_THREADS), RUN_THREADS)
        keys, ops, weights = self._keys, self._ops, self._weights
        at_keys, at_ops, at_weights = self._turned
        return DeviceBatch(
            n,
            (at_keys, at_ops, at_weights if weighted else 0),
            lambda: (keys[:n], ops[:n], weights[:n] if weighted else None),
        )

    def memory_bytes(self) -> int:
        """Bytes held on the device."""
        return int(self._keys.nbytes + self._ops.nbytes + self._weights.nbytes)

    def _make_room(self, n: int, *, weighted: bool) -> None:
        n_weights = n if weighted else 0
        if n <= min(self._keys.size, self._ops.size) and n_weights <= self._weights.size:
            return
        with self._stream:
            self._keys, self._ops = with_room(self._keys, n), with_room(self._ops, n)
            self._weights = with_room(self._weights, n_weights)
        self._turned = address(self._keys), address(self._ops), address(self._weights)
