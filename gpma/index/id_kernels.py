"""Looking ids up, and inserting them, in tables as in ``hash_table.py``: kernels for integers and for strings.

Batches are taken in blocks: hash and prefetch all, then look. Readers share the arrays with the one writer
without locks. An id is written first and its cell afterwards with a release store, so whoever sees the cell
(acquire load) sees the id. A vertex whose id was removed may get another one, in the same way: who meets a cell
compares the id itself, which is then either, and right for either.

``counts`` is the writer's own: what ``VERTICES`` .. ``REMOVED`` name. The first ``counts[FREE]`` of ``free``
(uint32[]) are vertices that new ids get before others are added, the last one first.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from ..edges import NO_VERTEX, Int, Vertices
from ..intrinsics import load_acquire, prefetch_to_read, store_release
from .hash_table import (
    COVERED,
    DENSE,
    MOVED_PER_ID,
    SEED_0,
    SEED_1,
    START,
    TAG,
    is_in_old,
    move,
    moved_of,
    shift_of,
    vacant_before,
    vacate,
)
from .hashing import Bytes, Words, equal_bytes, hash_bytes, hash_int
from .ids import IntColumn

VERTICES, FREE, IDS, FILLED, ARENA_USED, ARENA_LIVE, REMOVED = range(7)
"""Vertices, and those of them that are free; ids in the table; cells that are not empty, of the table that will
hold all ids once it has grown; bytes of the arena in use, and those of them that belong to vertices that are not
free; ids that were ever removed."""
COUNTS = 7

LENGTH_BITS = np.uint64(9)
LENGTH = np.uint64(0x1FF)
"""A string's place is one word, so that a reader sees all of it or nothing: where it begins in the arena << 9, and
its length in bytes."""

Counts = npt.NDArray[np.int64]

_BLOCK = 128
_AHEAD = 16
_ONE = np.uint64(1)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _element(visit: int, half: int) -> int:
    """Which element is visited next: in order, or, with ``half`` > 0, each beside its partner ``half`` later."""
    if half == 0:
        return visit
    return (visit >> 1) + (visit & 1) * half


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _find_int(
    header: Words,
    table: Words,
    shift: np.uint64,
    external: IntColumn,
    bound: np.int64,
    hashed: np.uint64,
    value: np.int64,
) -> tuple[np.int64, np.int64]:
    """(dense vertex, its cell), or (-1, the empty cell where the search ended)."""
    mask = np.uint64(table.size - 1)
    at = hashed >> shift
    while True:
        cell = load_acquire(table, np.int64(at))
        if cell == np.uint64(0):
            return np.int64(-1), np.int64(at)
        if cell & TAG == hashed & TAG:
            dense = np.int64(cell & DENSE) - np.int64(1)
            covered = np.uint64(dense) < load_acquire(header, COVERED)
            if covered and dense < bound and external[dense] == value:
                return dense, np.int64(at)
        at = (at + _ONE) & mask


@nb.njit(cache=True, nogil=True, error_model="numpy")
def lookup_ints(
    header: Words, table: Words, old: Words, external: IntColumn, n: int, ids: IntColumn, out: Vertices
) -> None:
    bound = min(np.int64(n), np.int64(external.size))
    shift, old_shift = shift_of(table), shift_of(old)
    start, moved = np.uint64(header[START]), moved_of(header, old)
    moving = moved < np.uint64(old.size)
    hashes = np.empty(_BLOCK, np.uint64)
    aside = np.zeros(_BLOCK, np.bool_)
    for base in range(0, ids.size, _BLOCK):
        count = min(_BLOCK, ids.size - base)
        for j in range(count):
            hashed = hash_int(ids[base + j], header[SEED_0], header[SEED_1])
            hashes[j] = hashed
            if moving:
                aside[j] = is_in_old(hashed, old, old_shift, start, moved)
            if aside[j]:
                prefetch_to_read(old, np.int64(hashed >> old_shift))
            else:
                prefetch_to_read(table, np.int64(hashed >> shift))
        for j in range(count):
            if aside[j]:
                cell = load_acquire(old, np.int64(hashes[j] >> old_shift))
            else:
                cell = load_acquire(table, np.int64(hashes[j] >> shift))
            if cell != np.uint64(0):
                prefetch_to_read(external, np.int64(cell & DENSE) - np.int64(1))
        for j in range(count):
            if aside[j]:
                dense, _ = _find_int(header, old, old_shift, external, bound, hashes[j], ids[base + j])
            else:
                dense, _ = _find_int(header, table, shift, external, bound, hashes[j], ids[base + j])
            out[base + j] = NO_VERTEX if dense < 0 else np.uint32(dense)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _next_vertex(free: Vertices, n_free: Int, n_vertices: Int) -> tuple[Int, Int, Int]:
    """The vertex of a new id, the last free one if there are any; and the numbers of free ones and of all then."""
    if n_free > 0:
        return np.int64(free[n_free - np.int64(1)]), n_free - np.int64(1), n_vertices
    return n_vertices, n_free, n_vertices + np.int64(1)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def insert_ints(
    header: Words,
    table: Words,
    old: Words,
    external: IntColumn,
    free: Vertices,
    counts: Counts,
    limit: int,
    ids: IntColumn,
    half: int,
    begin: int,
    out: Vertices,
) -> np.int64:
    """Insert from visit ``begin`` on until all are in or no room is left; the next visit.

    ``limit``: the most cells of the table that may be filled.
    """
    shift, old_shift = shift_of(table), shift_of(old)
    start = header[START]
    n_vertices, n_free, filled = counts[VERTICES], counts[FREE], counts[FILLED]
    n_ids, vacancies = counts[IDS], counts[REMOVED] > 0
    hashes = np.empty(_BLOCK, np.uint64)
    aside = np.zeros(_BLOCK, np.bool_)
    visit = np.int64(ids.size)
    for base in range(begin, ids.size, _BLOCK):
        count = min(_BLOCK, ids.size - base)
        moved = moved_of(header, old)
        if moved < np.uint64(old.size):
            move(header, table, old, MOVED_PER_ID * count)
            moved = moved_of(header, old)
        moving = moved < np.uint64(old.size)
        for j in range(count):
            hashed = hash_int(ids[_element(base + j, half)], header[SEED_0], header[SEED_1])
            hashes[j] = hashed
            aside[j] = moving and is_in_old(hashed, old, old_shift, start, moved)
            if aside[j]:
                prefetch_to_read(old, np.int64(hashed >> old_shift))
            else:
                prefetch_to_read(table, np.int64(hashed >> shift))
        for j in range(count):
            if aside[j]:
                cell = old[np.int64(hashes[j] >> old_shift)]
            else:
                cell = table[np.int64(hashes[j] >> shift)]
            if cell != np.uint64(0):
                prefetch_to_read(external, np.int64(cell & DENSE) - np.int64(1))
        for j in range(count):
            element = _element(base + j, half)
            if aside[j]:
                dense, at = _find_int(header, old, old_shift, external, n_vertices, hashes[j], ids[element])
            else:
                dense, at = _find_int(header, table, shift, external, n_vertices, hashes[j], ids[element])
            if dense < 0:
                if vacancies:
                    if aside[j]:
                        at = vacant_before(old, old_shift, hashes[j], at)
                    else:
                        at = vacant_before(table, shift, hashes[j], at)
                fills = aside[j] or table[at] == np.uint64(0)
                if (fills and filled >= limit) or (n_free == 0 and n_vertices >= external.size):
                    visit = np.int64(base + j)
                    break
                dense, n_free, n_vertices = _next_vertex(free, n_free, n_vertices)
                external[dense] = ids[element]
                cell = (hashes[j] & TAG) | np.uint64(dense + 1)
                if aside[j]:
                    store_release(old, at, cell)
                else:
                    store_release(table, at, cell)
                n_ids += np.int64(1)
                if fills:
                    filled += np.int64(1)
            out[element] = np.uint32(dense)
        if visit < ids.size:
            break
    counts[VERTICES], counts[FREE], counts[FILLED], counts[IDS] = n_vertices, n_free, filled, n_ids
    return visit


@nb.njit(cache=True, nogil=True, error_model="numpy")
def remove_ints(
    header: Words, table: Words, old: Words, external: IntColumn, counts: Counts, dense: Vertices
) -> None:
    """Take the ids of these vertices out of the table; of those that have one there."""
    shift, old_shift = shift_of(table), shift_of(old)
    start, moved = header[START], moved_of(header, old)
    moving = moved < np.uint64(old.size)
    for i in range(dense.size):
        hashed = hash_int(external[dense[i]], header[SEED_0], header[SEED_1])
        if moving and is_in_old(hashed, old, old_shift, start, moved):
            _count_removed(counts, vacate(old, old_shift, hashed, np.uint64(dense[i])), True)
        else:
            _count_removed(counts, vacate(table, shift, hashed, np.uint64(dense[i])), False)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _count_removed(counts: Counts, emptied: np.int64, is_old: bool) -> None:
    """``is_old``: the id was not in the new table yet, and will not come."""
    if emptied >= 0:
        counts[IDS] -= 1
        counts[REMOVED] += 1
        counts[FILLED] -= np.int64(1) if is_old else emptied


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _find_string(
    header: Words,
    table: Words,
    shift: np.uint64,
    places: Words,
    arena: Bytes,
    bound: np.int64,
    hashed: np.uint64,
    data: Bytes,
    start: np.int64,
    end: np.int64,
) -> tuple[np.int64, np.int64]:
    """(dense vertex, its cell), or (-1, the empty cell where the search ended)."""
    mask = np.uint64(table.size - 1)
    at = hashed >> shift
    while True:
        cell = load_acquire(table, np.int64(at))
        if cell == np.uint64(0):
            return np.int64(-1), np.int64(at)
        if cell & TAG == hashed & TAG:
            dense = np.int64(cell & DENSE) - np.int64(1)
            covered = np.uint64(dense) < load_acquire(header, COVERED)
            if covered and dense < bound:
                place = load_acquire(places, dense)
                first = np.int64(place >> LENGTH_BITS)
                same_length = np.int64(place & LENGTH) == end - start
                if same_length and equal_bytes(arena, first, data, start, end - start):  # type: ignore[arg-type]
                    return dense, np.int64(at)
        at = (at + _ONE) & mask


@nb.njit(cache=True, nogil=True, error_model="numpy")
def lookup_strings(
    header: Words,
    table: Words,
    old: Words,
    places: Words,
    arena: Bytes,
    n: int,
    data: Bytes,
    bounds: IntColumn,
    out: Vertices,
) -> None:
    bound = min(np.int64(n), np.int64(places.size))
    shift, old_shift = shift_of(table), shift_of(old)
    start, moved = np.uint64(header[START]), moved_of(header, old)
    moving = moved < np.uint64(old.size)
    hashes = np.empty(_BLOCK, np.uint64)
    aside = np.zeros(_BLOCK, np.bool_)
    for base in range(0, out.size, _BLOCK):
        count = min(_BLOCK, out.size - base)
        for j in range(count):
            hashed = hash_bytes(data, bounds[base + j], bounds[base + j + 1], header[SEED_0], header[SEED_1])
            hashes[j] = hashed
            if moving:
                aside[j] = is_in_old(hashed, old, old_shift, start, moved)
            if aside[j]:
                prefetch_to_read(old, np.int64(hashed >> old_shift))
            else:
                prefetch_to_read(table, np.int64(hashed >> shift))
        for stage in range(2):
            for j in range(count):
                if aside[j]:
                    cell = load_acquire(old, np.int64(hashes[j] >> old_shift))
                else:
                    cell = load_acquire(table, np.int64(hashes[j] >> shift))
                dense = np.int64(cell & DENSE) - np.int64(1)
                if 0 <= dense < bound:
                    if stage == 0:
                        prefetch_to_read(places, dense)
                    else:
                        prefetch_to_read(arena, np.int64(places[dense] >> LENGTH_BITS))
        for j in range(count):
            first, end = bounds[base + j], bounds[base + j + 1]
            if aside[j]:
                dense, _ = _find_string(header, old, old_shift, places, arena, bound, hashes[j], data, first, end)
            else:
                dense, _ = _find_string(header, table, shift, places, arena, bound, hashes[j], data, first, end)
            out[base + j] = NO_VERTEX if dense < 0 else np.uint32(dense)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def insert_strings(
    header: Words,
    table: Words,
    old: Words,
    places: Words,
    arena: Bytes,
    free: Vertices,
    counts: Counts,
    limit: int,
    data: Bytes,
    bounds: IntColumn,
    half: int,
    begin: int,
    out: Vertices,
) -> np.int64:
    """Insert from visit ``begin`` on until all are in or no room is left; the next visit.

    ``limit``: the most cells of the table that may be filled.
    """
    shift, old_shift = shift_of(table), shift_of(old)
    start = header[START]
    n_vertices, n_free, filled = counts[VERTICES], counts[FREE], counts[FILLED]
    n_ids, vacancies = counts[IDS], counts[REMOVED] > 0
    used, live = counts[ARENA_USED], counts[ARENA_LIVE]
    hashes = np.empty(_BLOCK, np.uint64)
    aside = np.zeros(_BLOCK, np.bool_)
    visit = np.int64(out.size)
    for base in range(begin, out.size, _BLOCK):
        count = min(_BLOCK, out.size - base)
        moved = moved_of(header, old)
        if moved < np.uint64(old.size):
            move(header, table, old, MOVED_PER_ID * count)
            moved = moved_of(header, old)
        moving = moved < np.uint64(old.size)
        for j in range(count):
            element = _element(base + j, half)
            hashed = hash_bytes(data, bounds[element], bounds[element + 1], header[SEED_0], header[SEED_1])
            hashes[j] = hashed
            aside[j] = moving and is_in_old(hashed, old, old_shift, start, moved)
            if aside[j]:
                prefetch_to_read(old, np.int64(hashed >> old_shift))
            else:
                prefetch_to_read(table, np.int64(hashed >> shift))
        for stage in range(2):
            for j in range(count):
                if aside[j]:
                    cell = old[np.int64(hashes[j] >> old_shift)]
                else:
                    cell = table[np.int64(hashes[j] >> shift)]
                dense = np.int64(cell & DENSE) - np.int64(1)
                if 0 <= dense < n_vertices:
                    if stage == 0:
                        prefetch_to_read(places, dense)
                    else:
                        prefetch_to_read(arena, np.int64(places[dense] >> LENGTH_BITS))
        for j in range(count):
            element = _element(base + j, half)
            first, end = bounds[element], bounds[element + 1]
            if aside[j]:
                dense, at = _find_string(
                    header, old, old_shift, places, arena, n_vertices, hashes[j], data, first, end
                )
            else:
                dense, at = _find_string(
                    header, table, shift, places, arena, n_vertices, hashes[j], data, first, end
                )
            if dense < 0:
                if vacancies:
                    if aside[j]:
                        at = vacant_before(old, old_shift, hashes[j], at)
                    else:
                        at = vacant_before(table, shift, hashes[j], at)
                fills = aside[j] or table[at] == np.uint64(0)
                if (
                    (fills and filled >= limit)
                    or (n_free == 0 and n_vertices >= places.size)
                    or used + end - first > arena.size
                ):
                    visit = np.int64(base + j)
                    break
                dense, n_free, n_vertices = _next_vertex(free, n_free, n_vertices)
                arena[used : used + end - first] = data[first:end]
                store_release(places, dense, (np.uint64(used) << LENGTH_BITS) | np.uint64(end - first))
                used += end - first
                live += end - first
                cell = (hashes[j] & TAG) | np.uint64(dense + 1)
                if aside[j]:
                    store_release(old, at, cell)
                else:
                    store_release(table, at, cell)
                n_ids += np.int64(1)
                if fills:
                    filled += np.int64(1)
            out[element] = np.uint32(dense)
        if visit < out.size:
            break
    counts[VERTICES], counts[FREE], counts[FILLED], counts[IDS] = n_vertices, n_free, filled, n_ids
    counts[ARENA_USED], counts[ARENA_LIVE] = used, live
    return visit


@nb.njit(cache=True, nogil=True, error_model="numpy")
def remove_strings(
    header: Words, table: Words, old: Words, places: Words, arena: Bytes, counts: Counts, dense: Vertices
) -> None:
    """Take the ids of these vertices out of the table; of those that have one there."""
    shift, old_shift = shift_of(table), shift_of(old)
    start, moved = header[START], moved_of(header, old)
    moving = moved < np.uint64(old.size)
    for i in range(dense.size):
        place = places[dense[i]]
        first, length = np.int64(place >> LENGTH_BITS), np.int64(place & LENGTH)
        hashed = hash_bytes(arena, first, first + length, header[SEED_0], header[SEED_1])  # type: ignore[arg-type]
        if moving and is_in_old(hashed, old, old_shift, start, moved):
            _count_removed(counts, vacate(old, old_shift, hashed, np.uint64(dense[i])), True)
        else:
            _count_removed(counts, vacate(table, shift, hashed, np.uint64(dense[i])), False)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def copy_strings(
    places: Words, arena: Bytes, to_places: Words, to_arena: Bytes, used: int, dense: Vertices
) -> np.int64:
    """Copy the ids of these vertices to the end of another arena, of which so many bytes are used; those then.

    Strings that lie side by side are copied together.
    """
    end = np.int64(used)
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
        to_arena[end : end + first - begin] = arena[begin:first]
        end += first - begin
    return end
