"""Memory of the host that kernels read at the same address: registered with the driver, which pins its pages.

Columns of the host's arrays grow and shrink where they lie, are at times replaced, and keep stretches of leaves
that nobody reads (``gpma/host/migration.py``). So memory is registered piece by piece, as it comes to be read, and
what is new alone. Columns whose memory is registered are held, so that it stays theirs. Pages within a column that
stays must not go before ``let_go``. No page may be registered twice in a process.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from bisect import bisect
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy.typing as npt

from ..device_failure import DeviceFailed
from .module import import_cupy

# Pieces end at multiples of the one: so much is registered anew where an array becomes a little shorter. Parts of
# a column end at multiples of the other, or with the column: those that grow by little do not come to many pieces.
PIECE_BYTES, PART_BYTES = 64 << 20, 4 << 20
# For every context of the process; at an address that kernels know.
_PORTABLE, _MAPPED = 1, 2
# cudaDevAttrCanUseHostPointerForRegisteredMem
_SAME_ADDRESS = 91


# From one address to another.
Range = tuple[int, int]


class Extent(NamedTuple):
    """A column of an array, and which parts of it are read: entries from one number to another."""

    column: npt.NDArray[Any]
    parts: Sequence[tuple[int, int]]


class Registered:
    """What is registered of the host's memory for the current device. Any thread may call."""

    def __init__(self) -> None:
        """Registers nothing yet.

        Raises:
            DeviceFailed: the device does not know the host's memory by the host's addresses.
            RuntimeError: it fails (as CuPy says it).
        """
        runtime = import_cupy().cuda.runtime
        if not runtime.deviceGetAttribute(_SAME_ADDRESS, runtime.getDevice()):
            raise DeviceFailed("this device does not read the host's memory at the host's addresses")
        # Where each registered piece begins, and where it ends.
        self._pieces: dict[int, int] = {}
        self._held: list[npt.NDArray[Any]] = []
        # Of what was covered last: the pages of the columns, and those that are read.
        self._whole: list[Range] = []
        self._read: list[Range] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _unregister_all, self._pieces, runtime)

    @property
    def n_bytes(self) -> int:
        """How much is registered."""
        return sum(end - begin for begin, end in self._pieces.items())

    def cover(self, extents: Sequence[Extent]) -> None:
        """Have these parts registered, and nothing outside of these columns.

        Raises:
            DeviceFailed: the driver refuses; what it took is registered.
        """
        whole = _joined(_pages(extent.column, 0, extent.column.size, mmap.PAGESIZE) for extent in extents)
        read = _joined(_pages(extent.column, *part, PART_BYTES) for extent in extents for part in extent.parts)
        with self._lock:
            if whole != self._whole:
                for piece in self._outside(whole):
                    self._unregister(piece)
                self._held, self._whole = [extent.column for extent in extents], whole
            if read != self._read:
                self._read = []
                for begin, end in self._missing(read):
                    self._register(begin, end)
                self._read = read

    def let_go(self, ranges: Iterable[Range]) -> None:
        """Unregister whatever touches these addresses: pages there are about to go."""
        with self._lock:
            for begin, end in ranges:
                for piece in [piece for piece, its_end in self._pieces.items() if piece < end and begin < its_end]:
                    self._unregister(piece)
            self._read = []

    def close(self) -> None:
        """Unregister everything; harmless to repeat. It also happens when nobody holds this any more."""
        with self._lock:
            _unregister_all(self._pieces, import_cupy().cuda.runtime)
            self._held, self._whole, self._read = [], [], []

    def _outside(self, whole: list[Range]) -> list[int]:
        """Pieces that do not lie in one of these ranges."""
        found = []
        for begin, end in self._pieces.items():
            at = bisect(whole, begin, key=lambda one: one[0]) - 1
            if at < 0 or whole[at][1] < end:
                found.append(begin)
        return found

    def _missing(self, read: list[Range]) -> list[Range]:
        """What of these ranges is in no piece, cut where pieces are to end."""
        there = sorted(self._pieces.items())
        found = []
        for begin, end in read:
            at = max(0, bisect(there, begin, key=lambda piece: piece[0]) - 1)
            while begin < end:
                while at < len(there) and there[at][1] <= begin:
                    at += 1
                piece = there[at] if at < len(there) else (end, end)
                if piece[0] <= begin:
                    begin = piece[1]
                    continue
                stop = min(end, piece[0], (begin // PIECE_BYTES + 1) * PIECE_BYTES)
                found.append((begin, stop))
                begin = stop
        return found

    def _register(self, begin: int, end: int) -> None:
        try:
            import_cupy().cuda.runtime.hostRegister(begin, end - begin, _PORTABLE | _MAPPED)
        except RuntimeError as error:
            raise DeviceFailed(
                f"the driver does not let kernels read {end - begin} bytes of the host's memory: {error}"
            ) from error
        self._pieces[begin] = end

    def _unregister(self, piece: int) -> None:
        del self._pieces[piece]
        _unregister(piece, import_cupy().cuda.runtime)


def _unregister_all(pieces: dict[int, int], runtime: Any) -> None:
    while pieces:
        _unregister(pieces.popitem()[0], runtime)


def _unregister(piece: int, runtime: Any) -> None:
    with suppress(runtime.CUDARuntimeError):  # a device that is lost reads nothing any more
        runtime.hostUnregister(piece)


def _pages(column: npt.NDArray[Any], first: int, last: int, step: int) -> Range:
    """Addresses of the pages with these entries, out to multiples of ``step`` as far as the column goes."""
    if first >= last:
        return 0, 0
    begin, size = column.ctypes.data, column.itemsize
    low = max(begin, (begin + first * size) // step * step)
    high = min(begin + column.nbytes, -(-(begin + last * size) // step) * step)
    return low // mmap.PAGESIZE * mmap.PAGESIZE, -(-high // mmap.PAGESIZE) * mmap.PAGESIZE


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """The same, in order, those that touch or overlap made one, and without empty ones."""
    found: list[Range] = []
    for begin, end in sorted(pair for pair in ranges if pair[0] < pair[1]):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found
