"""External ids on a device, for kernels that compare vertices by them (``id_order.cuh``).

They are brought once for each vertex, and again where a dense id may have changed hands. So bytes of strings that
are gone are left behind, until they are more than those that are not: then all strings are brought anew.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...gpma.device.module import import_cupy
from ...gpma.device.state import DeviceArray, address, allocate
from ...gpma.edges import Vertices
from ...gpma.index.id_order import IdOrder
from ...gpma.index.kinds import LENGTH, LENGTH_BITS
from .room import grown

ID_ORDER: Final = np.dtype([(name, np.uint64) for name in ("numbers", "places", "arena")])
"""struct IdOrder of ``id_order.cuh``."""

MACROS: Final = (f"-DLENGTH_BITS={int(LENGTH_BITS)}u",)


class DeviceIdOrder:
    """The external ids of the first vertices, on the device; all on one stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._n = 0
        with stream:
            self._ids = allocate(0, np.uint64)  # numbers, as their bits, or places
            self._arena = allocate(0, np.uint8)
        self._used = self._left_behind = 0
        self._lengths = np.empty(0, np.uint16)
        self._are_numbers = False

    def bring(self, order: IdOrder, n: int, renamed: Vertices) -> None:
        """Have the ids of n vertices. ``renamed``: of those that there were before, which may have others now.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it; what is here is void.
        """
        self._are_numbers = order.numbers.size >= n > 0
        if not self._are_numbers and order.places.size < n:
            return  # there are no ids
        ids = order.numbers.view(np.uint64) if self._are_numbers else order.places
        renamed = renamed[renamed < self._n]
        if not self._are_numbers:
            gone = int(self._lengths[renamed].sum(dtype=np.int64))
            if 2 * (self._left_behind + gone) > self._used:
                self._n = self._used = self._left_behind = 0
                renamed = renamed[:0]
            else:
                self._left_behind += gone
        vertices = np.concatenate([renamed, np.arange(self._n, n, dtype=np.uint32)])
        if not vertices.size:
            return
        brought = ids[vertices] if self._are_numbers else self._bring_strings(order, vertices, n)
        with self._stream:
            self._ids = self._grown(self._ids, self._n, n)
            if renamed.size:
                self._ids[import_cupy().asarray(renamed)] = import_cupy().asarray(brought[: renamed.size])
            if n > self._n:
                self._ids[self._n : n].set(np.ascontiguousarray(brought[renamed.size :]), stream=self._stream)
        self._n = n

    def _bring_strings(self, order: IdOrder, vertices: Vertices, n: int) -> npt.NDArray[np.uint64]:
        """Put the strings of these vertices behind those that are there; their places."""
        places = order.places[vertices]
        begins, lengths = (places >> LENGTH_BITS).astype(np.int64), (places & LENGTH).astype(np.int64)
        ends = np.cumsum(lengths)
        total = int(ends[-1])
        # Of each byte where it stands in the host's arena.
        at = np.repeat(begins - (ends - lengths), lengths) + np.arange(total)
        with self._stream:
            self._arena = self._grown(self._arena, self._used, self._used + total)
            if total:
                self._arena[self._used : self._used + total].set(order.arena[at], stream=self._stream)
        made: npt.NDArray[np.uint64] = (self._used + ends - lengths).astype(np.uint64) << LENGTH_BITS
        self._used += total
        if n > self._lengths.size:
            self._lengths = np.resize(self._lengths, grown(n, self._lengths.size))
        self._lengths[vertices] = lengths
        return made | lengths.astype(np.uint64)

    @staticmethod
    def _grown(column: DeviceArray, n: int, room: int) -> DeviceArray:
        """The column with so much room, its first n entries being kept."""
        if room <= column.size:
            return column
        made = allocate(grown(room, column.size), column.dtype)
        made[:n] = column[:n]
        return made

    @property
    def addresses(self) -> tuple[int, int, int]:
        """What struct IdOrder has."""
        if self._are_numbers:
            return address(self._ids), 0, 0
        return (0, address(self._ids), address(self._arena)) if self._n else (0, 0, 0)
