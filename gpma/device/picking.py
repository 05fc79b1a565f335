"""The updates of a batch whose rows are on the device, where others have rows, too: they are found there
(``pick.cu``), so that the batch is uploaded as it came, once, for both directions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .columns import Columns
from .constants import BLOCK_THREADS, PICK_UPDATES, RUN_THREADS
from .launching import Launcher
from .module import load
from .staging import DeviceBatch
from .state import DeviceArray, address, allocate
from .structures import PICK


class Picking:
    """Kernels that pick updates, and room for those of one batch; everything runs on ``stream``."""

    def __init__(self, stream: Any) -> None:
        module = load("pick.cu", weighted=True)
        self._functions = [module.get_function(name) for name in ("count_picked", "sum_picked", "write_picked")]
        self._count, self._sum, self._write = (kernel.kernel.ptr for kernel in self._functions)
        self._structure = np.zeros(1, PICK)
        self._launcher = Launcher(stream, (self._structure,))
        self._tiles: DeviceArray = allocate(0, np.uint64)
        self._out, self._in = Columns(), Columns()

    def of_both(
        self, batch: DeviceBatch, remote_bits: DeviceArray, n_out: int, n_in: int, *, in_weights: bool
    ) -> tuple[DeviceBatch, DeviceBatch]:
        """The updates of out-rows and, seen from the heads of their edges, of in-rows that are here.

        ``remote_bits``: uint32 words, of each vertex whether its rows are elsewhere; every end of an edge has one.
        ``n_out`` and ``n_in``: how many they are, which the caller knows. Good until the next call of any method.

        Raises:
            MemoryError: there is not enough.
        """
        weighted = batch.addresses[2] != 0
        out, in_ = self._out.take(n_out, weighted), self._in.take(n_in, weighted and in_weights)
        self._pick(batch, remote_bits, out, in_, mirrored=False)
        return out, in_

    def of_out(self, batch: DeviceBatch, remote_bits: DeviceArray, n_out: int, *, mirrored: bool) -> DeviceBatch:
        """The updates of out-rows alone; ``mirrored``: each edge is followed by its mirror image, as far as either
        is of a row that is here. The rest as ``of_both`` has it."""
        out = self._out.take(n_out, batch.addresses[2] != 0)
        self._pick(batch, remote_bits, out, None, mirrored=mirrored)
        return out

    def memory_bytes(self) -> int:
        """Bytes held on the device."""
        return int(self._tiles.nbytes) + self._out.memory_bytes() + self._in.memory_bytes()

    def _pick(
        self,
        batch: DeviceBatch,
        remote_bits: DeviceArray,
        out: DeviceBatch,
        in_: DeviceBatch | None,
        *,
        mirrored: bool,
    ) -> None:
        n = batch.n
        n_tiles = -(-n // PICK_UPDATES)
        if n_tiles > self._tiles.size:
            self._tiles = allocate(n_tiles, np.uint64)
        to_in = (0, 0, 0) if in_ is None else in_.addresses
        columns = (*batch.addresses, address(remote_bits), address(self._tiles), *out.addresses, *to_in)
        self._structure[0] = (*columns, n, mirrored)
        blocks = -(-n_tiles * 32 // RUN_THREADS)
        self._launcher.start(self._count, blocks, RUN_THREADS)
        self._launcher.start(self._sum, 1, BLOCK_THREADS)
        self._launcher.start(self._write, blocks, RUN_THREADS)
