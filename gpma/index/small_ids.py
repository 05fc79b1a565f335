"""The vertices of small integer ids, in an array by id: where the writer looks the ends of edges up first.

Producers often count their ids from 0. One below four times the number of vertices costs a read of four bytes
there, where the table (``hash_table.py``) takes a hash and reads a cell and the id itself, out of several times
the memory. It is no state: an entry that is not there is looked up in the table, and kept. So the array may begin
anew at any time, which it does when it is to hold larger ids.

Threads that look up beside each other may keep the same entry, with the same vertex. Nobody else reads it.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from ..drawing import drawn
from ..edges import HALF, LOW, NO_VERTEX, Int, Keys, Offsets, Vertices
from ..intrinsics import inner, prefetch_to_read
from ..team import Crew, at_most, share
from ..vertex_columns import new_column
from ..written import Words as Written
from .id_kernels import Bools, lookup
from .id_table import PIECE_IDS, IntTable, let_go
from .ids import IdColumn, IntColumn

SPREAD = 4
"""Ids below so many times the number of vertices are small: an entry is 4 bytes, and a vertex takes 25 to 50 in
the other arrays."""
ENTRIES_MIN = 1 << 12

_BLOCK = 128
# So many edges ahead the entries of both ends are asked for.
_AHEAD = 64
_ONE = np.uint32(1)
_NONE = np.uint64(NO_VERTEX)


class SmallIds:
    """For the one thread that inserts into an index of integers, and those that look up for it."""

    def __init__(self) -> None:
        self._vertices: Vertices = np.zeros(0, np.uint32)  # by id: its vertex plus 1; 0: not known here

    @property
    def nbytes(self) -> int:
        return self._vertices.nbytes

    def forget(self, ids: IntColumn) -> None:
        """The table does not have these ids any more."""
        small = ids[(ids >= 0) & (ids < self._vertices.size)]
        self._vertices[small] = 0

    def look_up_edges(
        self, table: IntTable, src: IdColumn, dst: IdColumn, n_vertices: int, crew: Crew
    ) -> tuple[Keys, npt.NDArray[np.bool_], int]:
        """As ``StringTable.look_up_edges``; all that the table knows has a vertex below ``n_vertices``."""
        (tails, _), (heads, _) = table.column(src), table.column(dst)
        keys, known = np.empty(tails.size, np.uint64), np.empty(tails.size, np.bool_)
        small = SPREAD * n_vertices
        unknown, largest = look_up_small_edges(
            table.written, n_vertices, self._vertices, small, tails, heads, PIECE_IDS // 2, keys, known, crew
        )
        if largest >= self._vertices.size:
            self._begin_anew(int(largest) + 1)
        return keys, known, int(unknown)

    def _begin_anew(self, n: int) -> None:
        """With room for n ids at least, and none in it."""
        size = max(1 << (n - 1).bit_length(), ENTRIES_MIN)
        before: list[object] = [self._vertices]
        try:
            self._vertices = new_column(size, np.uint32)
        except MemoryError:  # it does without
            return
        let_go(before)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def look_up_small_edges(
    table: Written,
    n: int,
    vertices: Vertices,
    small: int,
    src: IntColumn,
    dst: IntColumn,
    piece: int,
    keys: Keys,
    known: Bools,
    crew: Crew,
) -> tuple[np.int64, np.int64]:
    """keys[i] = the edge between the vertices of src[i] and dst[i]; known[i], whether the table has both. How many
    it has not, and the largest id below ``small`` for which ``vertices`` has no entry; -1: none."""
    n_pieces: Int = (keys.size + np.int64(piece) - 1) // np.int64(piece)
    unknown, largest = np.zeros(n_pieces, np.int64), np.full(n_pieces, np.int64(-1))
    cursor = np.zeros(1, np.int64)
    ends = vertices, np.int64(small), src, dst
    work = table, np.int64(n), ends, np.int64(piece), cursor, keys, known, unknown, largest
    share(at_most(crew, n_pieces), _small_edges_of_pieces, work)
    return np.int64(unknown.sum()), np.int64(largest.max()) if n_pieces else np.int64(-1)


@inner
def _small_edges_of_pieces(
    thread: Int,
    table: Written,
    n: Int,
    ends: tuple[Vertices, Int, IntColumn, IntColumn],
    piece: Int,
    cursor: Offsets,
    keys: Keys,
    known: Bools,
    unknown: Offsets,
    largest: Offsets,
) -> None:
    vertices, _, src, dst = ends
    entries = np.uint64(vertices.size)
    last = np.int64(keys.size) - 1
    lacking = np.empty(_BLOCK + 1, np.int64)  # edges of a block of which an end has no entry
    for number in drawn(cursor, unknown.size):
        for begin in range(piece * number, min(piece * (number + 1), keys.size), _BLOCK):
            n_lacking = 0
            for j in range(begin, min(begin + _BLOCK, keys.size)):
                ahead: Int = min(j + _AHEAD, last)
                one, other = np.uint64(src[np.uintp(ahead)]), np.uint64(dst[np.uintp(ahead)])
                if one < entries:
                    prefetch_to_read(vertices, np.int64(one))
                if other < entries:
                    prefetch_to_read(vertices, np.int64(other))
                one, other = np.uint64(src[np.uintp(j)]), np.uint64(dst[np.uintp(j)])
                tail = vertices[np.uintp(one)] if one < entries else np.uint32(0)
                head = vertices[np.uintp(other)] if other < entries else np.uint32(0)
                # One that has no entry becomes NO_VERTEX, of 32 bits: differences have 64.
                one, other = np.uint64(np.uint32(tail - _ONE)), np.uint64(np.uint32(head - _ONE))
                keys[np.uintp(j)] = one << HALF | other
                both = (tail != np.uint32(0)) & (head != np.uint32(0))
                known[np.uintp(j)] = both
                lacking[np.uintp(n_lacking)] = j
                n_lacking += not both
            if n_lacking:
                edges = lacking[:n_lacking]
                largest[number] = max(largest[number], _look_up_lacking(table, n, ends, edges, keys))
                for k in range(n_lacking):
                    j = lacking[k]
                    known[j] = keys[j] >> HALF != _NONE and keys[j] & LOW != _NONE
                    unknown[number] += not known[j]


@inner
def _look_up_lacking(
    table: Written, n: Int, ends: tuple[Vertices, Int, IntColumn, IntColumn], lacking: Offsets, keys: Keys
) -> Int:
    """Have the table find the ends of these edges (numbers into ``keys``) that are NO_VERTEX, and keep entries of
    them. Returns the largest small id for which there is none to keep; -1: there is none."""
    vertices, small, src, dst = ends
    entries = np.uint64(vertices.size)
    # Twice the number of the edge, and 1 for its dst.
    places, ids = np.empty(2 * lacking.size, np.int64), np.empty(2 * lacking.size, np.int64)
    missing = 0
    for k in range(lacking.size):
        j = lacking[k]
        if keys[j] >> HALF == _NONE:
            places[missing], ids[missing] = 2 * j, src[j]
            missing += 1
        if keys[j] & LOW == _NONE:
            places[missing], ids[missing] = 2 * j + 1, dst[j]
            missing += 1
    found = np.empty(missing, np.uint32)
    lookup(table, n, ids[:missing], None, found)
    largest = np.int64(-1)
    for k in range(missing):
        j, id, vertex = places[k] >> 1, ids[k], found[k]
        if vertex == NO_VERTEX:
            continue
        if places[k] & 1:
            keys[j] = keys[j] & ~LOW | np.uint64(vertex)
        else:
            keys[j] = keys[j] & LOW | np.uint64(vertex) << HALF
        if np.uint64(id) < entries:
            vertices[id] = vertex + _ONE
        elif np.int64(0) <= id < small:
            largest = max(largest, id)
    return largest
