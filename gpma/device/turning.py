"""The other direction of a batch's updates, made on the device (``turn.cu``), so that one upload serves both."""

from __future__ import annotations

from typing import Any

import numpy as np

from .columns import with_room
from .constants import RUN_THREADS
from .module import load
from .staging import DeviceBatch
from .state import DeviceArray, address, allocate
from .structures import TURN
from .update import Launcher


class Turning:
    """Kernels that turn batches, and room for one that they made; everything runs on ``stream``."""

    def __init__(self, stream: Any) -> None:
        module = load("turn.cu", weighted=True)
        self._functions = [module.get_function(name) for name in ("transpose_updates", "mirror_updates")]
        self._transpose, self._mirror = (kernel.kernel.ptr for kernel in self._functions)
        self._structure = np.zeros(1, TURN)
        self._launcher = Launcher(stream, (self._structure,))
        self._keys: DeviceArray = allocate(0, np.uint64)
        self._ops: DeviceArray = allocate(0, np.uint8)
        self._weights: DeviceArray = allocate(0, np.float32)

    def transposed(self, batch: DeviceBatch) -> DeviceBatch:
        """The same updates, seen from the heads of their edges. Good until the next call of either.

        Raises:
            MemoryError: there is not enough.
        """
        n = int(batch.keys.size)
        self._keys = with_room(self._keys, n)
        self._launch(self._transpose, batch, n)
        return DeviceBatch(self._keys[:n], batch.ops, batch.weights)

    def both(self, batch: DeviceBatch) -> DeviceBatch:
        """Each update followed by its mirror image; a self-loop's image says the same twice, harmlessly.

        Good until the next call of either.

        Raises:
            MemoryError: there is not enough.
        """
        n = 2 * int(batch.keys.size)
        self._keys, self._ops = with_room(self._keys, n), with_room(self._ops, n)
        if batch.weights is not None:
            self._weights = with_room(self._weights, n)
        self._launch(self._mirror, batch, n // 2)
        return DeviceBatch(self._keys[:n], self._ops[:n], None if batch.weights is None else self._weights[:n])

    def memory_bytes(self) -> int:
        """Bytes held on the device."""
        return int(self._keys.nbytes + self._ops.nbytes + self._weights.nbytes)

    def _launch(self, kernel: Any, batch: DeviceBatch, n: int) -> None:
        turned = (address(self._keys), address(self._ops), address(self._weights))
        self._structure[0] = (*(address(column) for column in batch), *turned, n, 0)
        self._launcher.start(kernel, -(-n // RUN_THREADS), RUN_THREADS)
