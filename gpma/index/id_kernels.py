"""Looking ids up, and inserting them, in tables as in ``hash_table.py``: written once for integers and for strings
(``kinds.py``).

Batches are taken in blocks: hash and prefetch all, then look. Readers share the arrays with the one writer
without locks. An id is written first and its cell afterwards with a release store, so whoever sees the cell
(acquire load) sees the id. A vertex whose id was removed may get another one, in the same way: who meets a cell
compares the id itself, which is then either, and right for either.

``counts`` is the writer's own: what ``VERTICES`` .. ``REMOVED`` name. The first ``counts[FREE]`` of ``free``
(uint32[]) are vertices that new ids get before others are added, the last one first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..drawing import drawn, drawn_by
from ..edges import HALF, NO_VERTEX, Int, Keys, Offsets, Vertices
from ..intrinsics import address_of, ask_for_byte, copy_bytes, inner, load_acquire, prefetch_to_read, store_release
from ..team import Crew, at_most, share
from ..written import Words as Written
from ..written import record_type, taking
from .hash_table import (
    COVERED,
    DENSE,
    MOVED_PER_ID,
    START,
    TAG,
    is_in_old,
    move,
    moved_of,
    shift_of,
    vacant_before,
    vacate,
)
from .hashing import Bytes, Words, less_bytes
from .ids import IntColumn
from .kinds import (
    LENGTH,
    LENGTH_BITS,
    address,
    ask_for,
    by_kind,
    bytes_of,
    hash_kept,
    hash_of,
    is_id,
    keep,
    size_of,
    strides_to,
)

VERTICES, FREE, IDS, FILLED, ARENA_USED, ARENA_LIVE, REMOVED = range(7)
"""Vertices, and those of them that are free; ids in the table; cells that are not empty, of the table that will
hold all ids once it has grown; bytes of the arena in use, and those of them that belong to vertices that are not
free; ids that were ever removed."""
COUNTS = 7

Counts = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_BLOCK = 128
_AHEAD = 16
_ONE = np.uint64(1)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _element(visit: int, half: int) -> int:
    """Which element is visited next: in order, or, with ``half`` > 0, each beside its partner ``half`` later."""
    if half == 0:
        return visit
    return (visit >> 1) + (visit & 1) * half


class TableArrays(NamedTuple):
    """A table: header, cells, and those of the ``old`` one that is being moved (or none); the ``limit`` of cells
    that may be filled; and the ids by dense vertex (``kinds.py``). Kernels take it from words: ``written.py``."""

    header: Words
    cells: Words
    old: Words
    limit: int
    words: IntColumn | Words
    arena: Bytes | None


_words = nb.uint64[::1]
INT_ARRAYS = record_type(TableArrays, _words, _words, _words, nb.int64, nb.int64[::1], nb.none)
STRING_ARRAYS = record_type(TableArrays, _words, _words, _words, nb.int64, _words, nb.uint8[::1])
_int_arrays_in: Any = taking(INT_ARRAYS)
_string_arrays_in: Any = taking(STRING_ARRAYS)


def _arrays_of_ints(written: Written, none: None) -> TableArrays:
    arrays: TableArrays = _int_arrays_in(written)
    return arrays


def _arrays_of_strings(written: Written, more: Bytes) -> TableArrays:
    arrays: TableArrays = _string_arrays_in(written)
    return arrays


_arrays_in = by_kind(_arrays_of_ints, _arrays_of_strings)


@inner
def _find(
    header: Words,
    cells: Words,
    shift: np.uint64,
    words: IntColumn | Words,
    arena: Int | None,
    column: IntColumn,
    data: Int | None,
    wanted: tuple[Int, Int, Int],
) -> tuple[np.int64, np.int64]:
    """(dense vertex, its cell), or (-1, the empty cell where the search ended).

    ``wanted``: which id of the column; its hash; below which vertex it must be.
    """
    i, hashed, bound = wanted
    mask = np.uint64(cells.size - 1)
    at = hashed >> shift
    while True:
        cell = load_acquire(cells, np.int64(at))
        if cell == np.uint64(0):
            return np.int64(-1), np.int64(at)
        if cell & TAG == hashed & TAG:
            dense = np.int64(cell & DENSE) - np.int64(1)
            covered = np.uint64(dense) < load_acquire(header, COVERED)
            if covered and dense < bound and is_id(words, arena, dense, column, data, i):
                return dense, np.int64(at)
        at = (at + _ONE) & mask


@nb.njit(cache=True, nogil=True, error_model="numpy")
def lookup(table: Written, n: int, column: IntColumn, more: Bytes | None, out: Vertices) -> None:
    """out[i] = the vertex of each id, ``NO_VERTEX`` where it is unknown or not below n."""
    header, cells, old, _, words, kept = _arrays_in(table, more)
    arena, data = address(words, kept), address(column, more)
    bound = min(np.int64(n), np.int64(words.size))
    shift, old_shift = shift_of(cells), shift_of(old)
    start, moved = np.uint64(header[START]), moved_of(header, old)
    moving = moved < np.uint64(old.size)
    hashes = np.empty(_BLOCK, np.uint64)
    aside = np.zeros(_BLOCK, np.bool_)
    for base in range(0, out.size, _BLOCK):
        count = min(_BLOCK, out.size - base)
        for j in range(count):
            hashed = hash_of(column, data, base + j, header)
            hashes[j] = hashed
            if moving:
                aside[j] = is_in_old(hashed, old, old_shift, start, moved)
            if aside[j]:
                prefetch_to_read(old, np.int64(hashed >> old_shift))
            else:
                prefetch_to_read(cells, np.int64(hashed >> shift))
        for stride in range(strides_to(words, arena)):
            for j in range(count):
                if aside[j]:
                    cell = load_acquire(old, np.int64(hashes[j] >> old_shift))
                else:
                    cell = load_acquire(cells, np.int64(hashes[j] >> shift))
                dense = np.int64(cell & DENSE) - np.int64(1)
                if 0 <= dense < bound:
                    ask_for(words, arena, dense, stride)
        for j in range(count):
            wanted = base + j, hashes[j], bound
            if aside[j]:
                dense, _ = _find(header, old, old_shift, words, arena, column, data, wanted)
            else:
                dense, _ = _find(header, cells, shift, words, arena, column, data, wanted)
            out[base + j] = NO_VERTEX if dense < 0 else np.uint32(dense)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def lookup_shared(
    table: Written, n: int, column: IntColumn, more: Bytes | None, piece: int, out: Vertices, crew: Crew
) -> None:
    """``lookup``, so many ids at a time, by the threads of the crew."""
    n_pieces: Int = (out.size + np.int64(piece) - 1) // np.int64(piece)
    share(
        at_most(crew, n_pieces),
        _look_up_pieces,
        (table, np.int64(n), column, more, np.int64(piece), np.zeros(1, np.int64), out),
    )


@inner
def _look_up_pieces(
    thread: Int,
    table: Written,
    n: Int,
    column: IntColumn,
    more: Bytes | None,
    piece: Int,
    cursor: Offsets,
    out: Vertices,
) -> None:
    # A string ends where the next one begins.
    ends = column.size - out.size
    for begin in drawn_by(cursor, out.size, piece):
        end = min(begin + piece, out.size)
        lookup(table, n, column[begin : end + ends], more, out[begin:end])


@nb.njit(cache=True, nogil=True, error_model="numpy")
def look_up_edges(
    table: Written,
    n: int,
    src: IntColumn,
    src_more: Bytes,
    dst: IntColumn,
    dst_more: Bytes,
    piece: int,
    keys: Keys,
    known: Bools,
    crew: Crew,
) -> np.int64:
    """keys[i] = the edge between the vertices of strings src[i] and dst[i], each as ``lookup`` finds it; known[i],
    whether both are; how many are not. The threads of the crew take ``piece`` edges at a time. (Of integers:
    ``small_ids.py``.)"""
    n_pieces: Int = (keys.size + np.int64(piece) - 1) // np.int64(piece)
    unknown = np.zeros(n_pieces, np.int64)
    cursor = np.zeros(1, np.int64)
    ends = src, src_more, dst, dst_more
    work = table, np.int64(n), ends, np.int64(piece), cursor, keys, known, unknown
    share(at_most(crew, n_pieces), _edges_of_pieces, work)
    return np.int64(unknown.sum())


@inner
def _edges_of_pieces(
    thread: Int,
    table: Written,
    n: Int,
    ends: tuple[IntColumn, Bytes, IntColumn, Bytes],
    piece: Int,
    cursor: Offsets,
    keys: Keys,
    known: Bools,
    unknown: Offsets,
) -> None:
    src, src_more, dst, dst_more = ends
    tails, heads = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    for number in drawn(cursor, unknown.size):
        for begin in range(piece * number, min(piece * (number + 1), keys.size), _BLOCK):
            count = min(_BLOCK, keys.size - begin)
            end = begin + count + 1  # a string ends where the next one begins
            lookup(table, n, src[begin:end], src_more, tails[:count])
            lookup(table, n, dst[begin:end], dst_more, heads[:count])
            for j in range(count):
                keys[begin + j] = np.uint64(tails[j]) << HALF | np.uint64(heads[j])
                known[begin + j] = tails[j] != NO_VERTEX and heads[j] != NO_VERTEX
                unknown[number] += not known[begin + j]


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _next_vertex(free: Vertices, n_free: Int, n_vertices: Int) -> tuple[Int, Int, Int]:
    """The vertex of a new id, the last free one if there are any; and the numbers of free ones and of all then."""
    if n_free > 0:
        return np.int64(free[n_free - np.int64(1)]), n_free - np.int64(1), n_vertices
    return n_vertices, n_free, n_vertices + np.int64(1)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def insert(
    table: Written,
    free: Vertices,
    counts: Counts,
    column: IntColumn,
    more: Bytes | None,
    half: int,
    begin: int,
    out: Vertices,
) -> np.int64:
    """Insert from visit ``begin`` on until all are in or no room is left; the next visit. ``more``: the data."""
    header, cells, old, limit, words, kept = _arrays_in(table, more)
    arena, data = address(words, kept), address(column, more)
    arena_bytes = np.int64(size_of(words, kept))
    shift, old_shift = shift_of(cells), shift_of(old)
    start = header[START]
    n_vertices, n_free, filled = counts[VERTICES], counts[FREE], counts[FILLED]
    n_ids, vacancies = counts[IDS], counts[REMOVED] > 0
    used, vertices_max = counts[ARENA_USED], np.int64(words.size)
    hashes = np.empty(_BLOCK, np.uint64)
    aside = np.zeros(_BLOCK, np.bool_)
    visit = np.int64(out.size)
    for base in range(begin, out.size, _BLOCK):
        count = min(_BLOCK, out.size - base)
        moved = moved_of(header, old)
        if moved < np.uint64(old.size):
            move(header, cells, old, MOVED_PER_ID * count)
            moved = moved_of(header, old)
        moving = moved < np.uint64(old.size)
        for j in range(count):
            hashed = hash_of(column, data, _element(base + j, half), header)
            hashes[j] = hashed
            aside[j] = moving and is_in_old(hashed, old, old_shift, start, moved)
            if aside[j]:
                prefetch_to_read(old, np.int64(hashed >> old_shift))
            else:
                prefetch_to_read(cells, np.int64(hashed >> shift))
        for stride in range(strides_to(words, arena)):
            for j in range(count):
                if aside[j]:
                    cell = old[np.int64(hashes[j] >> old_shift)]
                else:
                    cell = cells[np.int64(hashes[j] >> shift)]
                dense = np.int64(cell & DENSE) - np.int64(1)
                if 0 <= dense < n_vertices:
                    ask_for(words, arena, dense, stride)
        for j in range(count):
            element = _element(base + j, half)
            wanted = element, hashes[j], n_vertices
            if aside[j]:
                dense, at = _find(header, old, old_shift, words, arena, column, data, wanted)
            else:
                dense, at = _find(header, cells, shift, words, arena, column, data, wanted)
            if dense < 0:
                if vacancies:
                    if aside[j]:
                        at = vacant_before(old, old_shift, hashes[j], at)
                    else:
                        at = vacant_before(cells, shift, hashes[j], at)
                fills = aside[j] or cells[at] == np.uint64(0)
                no_vertex = n_free == 0 and n_vertices >= vertices_max
                used_then = used + bytes_of(column, data, element)
                if (fills and filled >= limit) or no_vertex or used_then > arena_bytes:
                    visit = np.int64(base + j)
                    break
                dense, n_free, n_vertices = _next_vertex(free, n_free, n_vertices)
                keep(words, arena, dense, used, column, data, element)
                used = used_then
                cell = (hashes[j] & TAG) | np.uint64(dense + 1)
                if aside[j]:
                    store_release(old, at, cell)
                else:
                    store_release(cells, at, cell)
                n_ids += np.int64(1)
                if fills:
                    filled += np.int64(1)
            out[element] = np.uint32(dense)
        if visit < out.size:
            break
    counts[VERTICES], counts[FREE], counts[FILLED], counts[IDS] = n_vertices, n_free, filled, n_ids
    counts[ARENA_LIVE] += used - counts[ARENA_USED]
    counts[ARENA_USED] = used
    return visit


@nb.njit(cache=True, nogil=True, error_model="numpy")
def remove(table: Written, counts: Counts, dense: Vertices, more: Bytes | None) -> None:
    """Take the ids of these vertices out of the table; of those that have one. ``more``: of strings, any bytes."""
    header, cells, old, _, words, kept = _arrays_in(table, more)
    shift, old_shift = shift_of(cells), shift_of(old)
    start, moved = header[START], moved_of(header, old)
    moving = moved < np.uint64(old.size)
    arena = address(words, kept)
    for i in range(dense.size):
        hashed = hash_kept(words, arena, dense[i], header)
        if moving and is_in_old(hashed, old, old_shift, start, moved):
            _count_removed(counts, vacate(old, old_shift, hashed, np.uint64(dense[i])), True)
        else:
            _count_removed(counts, vacate(cells, shift, hashed, np.uint64(dense[i])), False)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _count_removed(counts: Counts, emptied: np.int64, is_old: bool) -> None:
    """``is_old``: the id was not in the new table yet, and will not come."""
    if emptied >= 0:
        counts[IDS] -= 1
        counts[REMOVED] += 1
        counts[FILLED] -= np.int64(1) if is_old else emptied


@nb.njit(cache=True, nogil=True, error_model="numpy")
def copy_strings(
    places: Words, arena: Bytes, to_places: Words, to_arena: Bytes, used: int, dense: Vertices
) -> np.int64:
    """Copy the ids of these vertices to the end of another arena, of which so many bytes are used; those then.

    Strings that lie side by side are copied together.
    """
    end = np.int64(used)
    source, target = address_of(arena), address_of(to_arena)
    i = 0
    while i < dense.size:
        begin = first = np.int64(places[dense[i]] >> LENGTH_BITS)
        while i < dense.size:
            place = places[dense[i]]
            if np.int64(place >> LENGTH_BITS) != first:
                break
            if i + _AHEAD < dense.size:
                prefetch_to_read(arena, np.int64(places[dense[i + _AHEAD]] >> LENGTH_BITS))
            length = np.int64(place & LENGTH)
            to_places[dense[i]] = (np.uint64(end + first - begin) << LENGTH_BITS) | np.uint64(length)
            first += length
            i += 1
        copy_bytes(target + np.uint64(end), source + np.uint64(begin), first - begin)
        end += first - begin
    return end


@nb.njit(cache=True, nogil=True, error_model="numpy")
def smallest_string(places: Words, arena: Bytes, dense: Vertices) -> np.int64:
    """The position of the vertex (of at least one) whose string is the smallest."""
    start = address_of(arena)
    best, best_place = np.int64(0), places[dense[0]]
    for i in range(1, dense.size):
        if i + 2 * _AHEAD < dense.size:
            prefetch_to_read(places, np.int64(dense[i + 2 * _AHEAD]))
            ask_for_byte(start + (places[dense[i + _AHEAD]] >> LENGTH_BITS))
        place = places[dense[i]]
        if less_bytes(
            start + (place >> LENGTH_BITS),
            np.int64(place & LENGTH),
            start + (best_place >> LENGTH_BITS),
            np.int64(best_place & LENGTH),
        ):
            best, best_place = np.int64(i), place
    return best
