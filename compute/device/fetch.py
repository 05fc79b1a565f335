"""Columns of a device that come to the host whole, and what a program's own columns take over of them.

Where a run wrote more vertices than its list of changes holds, all of a column is fetched: at the full speed of
the bus, into pinned memory, and compared by all threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.device.module import import_cupy
from ...gpma.device.state import DeviceArray, pinned
from ...gpma.drawing import drawn
from ...gpma.edges import Int, Offsets, Vertices
from ...gpma.intrinsics import inner
from ...gpma.team import ALONE, Crew, at_most, share
from ..pieces import PIECE

Values = npt.NDArray[Any]

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


# Of a column that is used while the rest of it is on its way: what the bus takes some 150 us for.
_PIECE_BYTES = 8 << 20


class Fetch:
    """Pinned memory that columns of the device are copied to, one at a time."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._room = np.empty(0, np.uint8)

    def reserve(self, n_bytes: int) -> None:
        """Have room for a column.

        Raises:
            MemoryError, RuntimeError: there is not enough, or the device fails (as CuPy says it).
        """
        if n_bytes > self._room.size:
            self._room = pinned(n_bytes, np.uint8)

    def read(self, column: DeviceArray) -> Values:
        """A column of the device, for which there is room; good until the next call.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        copied = self._room_for(column)
        column.get(stream=self._stream, out=copied)
        return copied

    def pieces(self, column: DeviceArray) -> Iterator[tuple[int, Values]]:
        """A column of the device, for which there is room, in pieces and where each begins.

        Those that follow are on their way while one is used. Good until the next call.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        n, n_piece = len(column), max(1, _PIECE_BYTES * len(column) // max(1, int(column.nbytes)))
        copied = self._room_for(column)
        arrived = []
        for begin in range(0, n, n_piece):
            place = slice(begin, begin + n_piece)
            column[place].get(stream=self._stream, out=copied[place], blocking=False)
            arrived.append(import_cupy().cuda.Event(disable_timing=True))
            arrived[-1].record(self._stream)
        for begin, event in zip(range(0, n, n_piece), arrived, strict=True):
            event.synchronize()
            yield begin, copied[begin : begin + n_piece]

    def _room_for(self, column: DeviceArray) -> Values:
        room: Values = self._room[: int(column.nbytes)].view(column.dtype).reshape(column.shape)
        return room

    @property
    def memory_bytes(self) -> int:
        """Of the host, pinned."""
        return self._room.nbytes


@_jit
def take_all(kept: Values, found: Values, nothing: Int, crew: Crew) -> Int:
    """Make the first entries of ``kept`` those that were found; how many of them are not ``nothing``, which is of
    their type."""
    n_pieces = np.int64((found.size + PIECE - 1) // PIECE)
    counts, cursor = np.zeros(n_pieces, np.int64), np.zeros(1, np.int64)
    share(at_most(crew, n_pieces), _take_pieces, (kept, found, nothing, cursor, counts))
    return counts.sum()


@inner
def _take_pieces(thread: int, kept: Values, found: Values, nothing: Int, cursor: Offsets, counts: Offsets) -> None:
    for piece in drawn(cursor, counts.size):
        count = np.int64(0)
        for v in range(piece * PIECE, min((piece + 1) * PIECE, np.int64(found.size))):
            value = found[v]
            kept[v] = value
            count += np.int64(value != nothing)
        counts[piece] = count


@_jit
def take_differing(kept: Values, found: Values, crew: Crew) -> tuple[Vertices, Values]:
    """Make the first entries of ``kept`` those that were found.

    Returns the vertices whose entry is another now, ascending, and what it was.
    """
    n_pieces = np.int64((found.size + PIECE - 1) // PIECE)
    ends, cursor = np.zeros(n_pieces + 1, np.int64), np.zeros(1, np.int64)
    crew = at_most(crew, n_pieces)
    share(crew, _count_differing, (kept, found, cursor, ends))
    for piece in range(n_pieces):
        ends[piece + 1] += ends[piece]
    vertices, old = np.empty(ends[n_pieces], np.uint32), np.empty(ends[n_pieces], kept.dtype)
    cursor[0] = 0
    share(crew, _take_differing, (kept, found, cursor, ends, vertices, old))
    return vertices, old


@inner
def _count_differing(thread: int, kept: Values, found: Values, cursor: Offsets, ends: Offsets) -> None:
    """Of each piece, behind where it begins."""
    for piece in drawn(cursor, ends.size - 1):
        count = np.int64(0)
        for v in range(piece * PIECE, min((piece + 1) * PIECE, np.int64(found.size))):
            count += np.int64(kept[np.uintp(v)] != found[np.uintp(v)])
        ends[piece + 1] = count


@inner
def _take_differing(
    thread: int, kept: Values, found: Values, cursor: Offsets, ends: Offsets, vertices: Vertices, old: Values
) -> None:
    for piece in drawn(cursor, ends.size - 1):
        at, end = ends[piece], ends[piece + 1]
        for v in range(piece * PIECE, min((piece + 1) * PIECE, np.int64(found.size))):
            if at == end:
                break
            # Whether an entry differs is a toss-up, and no branch.
            was, now = kept[np.uintp(v)], found[np.uintp(v)]
            vertices[np.uintp(at)], old[np.uintp(at)] = np.uint32(v), was
            kept[np.uintp(v)] = now
            at += np.int64(was != now)


def warm_up(dtype: npt.DTypeLike) -> None:
    """Compile all kernels for columns of this type."""
    kept, found = np.zeros(2, dtype), np.ones(1, dtype)
    take_differing(kept, found, ALONE)
    take_all(kept, found, kept[1], ALONE)
