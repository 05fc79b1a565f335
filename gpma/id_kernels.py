"""Looking ids up, and inserting them, in the tables of ``slots.py``: the kernels, for integers and for strings.

Batches are taken in blocks: hash and prefetch all, then look. Readers share the arrays with the one writer
without locks. An id is written first and its slot afterwards with a release store, so whoever sees the slot
(acquire load) sees the id. Nothing is ever removed.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from .edges import NO_VERTEX, Vertices
from .hashing import Bytes, Words, equal_bytes, hash_bytes, hash_int, load_acquire, prefetch, store_release
from .ids import IntColumn
from .slots import (
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
)

_BLOCK = 128
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
    """(dense vertex, its slot), or (-1, the empty slot where the search ended)."""
    mask = np.uint64(table.size - 1)
    at = hashed >> shift
    while True:
        slot = load_acquire(table, np.int64(at))
        if slot == np.uint64(0):
            return np.int64(-1), np.int64(at)
        if slot & TAG == hashed & TAG:
            dense = np.int64(slot & DENSE) - np.int64(1)
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
                prefetch(old, np.int64(hashed >> old_shift))
            else:
                prefetch(table, np.int64(hashed >> shift))
        for j in range(count):
            if aside[j]:
                slot = load_acquire(old, np.int64(hashes[j] >> old_shift))
            else:
                slot = load_acquire(table, np.int64(hashes[j] >> shift))
            if slot != np.uint64(0):
                prefetch(external, np.int64(slot & DENSE) - np.int64(1))
        for j in range(count):
            if aside[j]:
                dense, _ = _find_int(header, old, old_shift, external, bound, hashes[j], ids[base + j])
            else:
                dense, _ = _find_int(header, table, shift, external, bound, hashes[j], ids[base + j])
            out[base + j] = NO_VERTEX if dense < 0 else np.uint32(dense)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def insert_ints(
    header: Words,
    table: Words,
    old: Words,
    external: IntColumn,
    n: int,
    limit: int,
    ids: IntColumn,
    half: int,
    begin: int,
    out: Vertices,
) -> tuple[np.int64, np.int64]:
    """Insert from visit ``begin`` on until all are in or no room is left: (vertices, next visit).

    ``limit``: the most ids that the table may hold.
    """
    room = min(np.int64(limit), np.int64(external.size))
    shift, old_shift = shift_of(table), shift_of(old)
    start = header[START]
    n_vertices = np.int64(n)
    hashes = np.empty(_BLOCK, np.uint64)
    aside = np.zeros(_BLOCK, np.bool_)
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
                prefetch(old, np.int64(hashed >> old_shift))
            else:
                prefetch(table, np.int64(hashed >> shift))
        for j in range(count):
            if aside[j]:
                slot = old[np.int64(hashes[j] >> old_shift)]
            else:
                slot = table[np.int64(hashes[j] >> shift)]
            if slot != np.uint64(0):
                prefetch(external, np.int64(slot & DENSE) - np.int64(1))
        for j in range(count):
            element = _element(base + j, half)
            if aside[j]:
                dense, at = _find_int(header, old, old_shift, external, n_vertices, hashes[j], ids[element])
            else:
                dense, at = _find_int(header, table, shift, external, n_vertices, hashes[j], ids[element])
            if dense < 0:
                if n_vertices >= room:
                    return n_vertices, np.int64(base + j)
                dense = n_vertices
                external[dense] = ids[element]
                slot = (hashes[j] & TAG) | np.uint64(dense + 1)
                if aside[j]:
                    store_release(old, at, slot)
                else:
                    store_release(table, at, slot)
                n_vertices += np.int64(1)
            out[element] = np.uint32(dense)
    return n_vertices, np.int64(ids.size)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _find_string(
    header: Words,
    table: Words,
    shift: np.uint64,
    offsets: IntColumn,
    arena: Bytes,
    bound: np.int64,
    hashed: np.uint64,
    data: Bytes,
    start: np.int64,
    end: np.int64,
) -> tuple[np.int64, np.int64]:
    """(dense vertex, its slot), or (-1, the empty slot where the search ended)."""
    mask = np.uint64(table.size - 1)
    at = hashed >> shift
    while True:
        slot = load_acquire(table, np.int64(at))
        if slot == np.uint64(0):
            return np.int64(-1), np.int64(at)
        if slot & TAG == hashed & TAG:
            dense = np.int64(slot & DENSE) - np.int64(1)
            covered = np.uint64(dense) < load_acquire(header, COVERED)
            if covered and dense < bound:
                first = offsets[dense]
                same_length = offsets[dense + 1] - first == end - start
                if same_length and equal_bytes(arena, first, data, start, end - start):  # type: ignore[arg-type]
                    return dense, np.int64(at)
        at = (at + _ONE) & mask


@nb.njit(cache=True, nogil=True, error_model="numpy")
def lookup_strings(
    header: Words,
    table: Words,
    old: Words,
    offsets: IntColumn,
    arena: Bytes,
    n: int,
    data: Bytes,
    bounds: IntColumn,
    out: Vertices,
) -> None:
    bound = min(np.int64(n), np.int64(offsets.size - 1))
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
                prefetch(old, np.int64(hashed >> old_shift))
            else:
                prefetch(table, np.int64(hashed >> shift))
        for stage in range(2):
            for j in range(count):
                if aside[j]:
                    slot = load_acquire(old, np.int64(hashes[j] >> old_shift))
                else:
                    slot = load_acquire(table, np.int64(hashes[j] >> shift))
                dense = np.int64(slot & DENSE) - np.int64(1)
                if 0 <= dense < bound:
                    if stage == 0:
                        prefetch(offsets, dense)
                    else:
                        prefetch(arena, offsets[dense])
        for j in range(count):
            first, end = bounds[base + j], bounds[base + j + 1]
            if aside[j]:
                dense, _ = _find_string(header, old, old_shift, offsets, arena, bound, hashes[j], data, first, end)
            else:
                dense, _ = _find_string(header, table, shift, offsets, arena, bound, hashes[j], data, first, end)
            out[base + j] = NO_VERTEX if dense < 0 else np.uint32(dense)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def insert_strings(
    header: Words,
    table: Words,
    old: Words,
    offsets: IntColumn,
    arena: Bytes,
    n: int,
    limit: int,
    data: Bytes,
    bounds: IntColumn,
    half: int,
    begin: int,
    out: Vertices,
) -> tuple[np.int64, np.int64]:
    """Insert from visit ``begin`` on until all are in or no room is left: (vertices, next visit).

    ``limit``: the most ids that the table may hold.
    """
    room = min(np.int64(limit), np.int64(offsets.size - 1))
    shift, old_shift = shift_of(table), shift_of(old)
    start = header[START]
    n_vertices = np.int64(n)
    hashes = np.empty(_BLOCK, np.uint64)
    aside = np.zeros(_BLOCK, np.bool_)
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
                prefetch(old, np.int64(hashed >> old_shift))
            else:
                prefetch(table, np.int64(hashed >> shift))
        for stage in range(2):
            for j in range(count):
                if aside[j]:
                    slot = old[np.int64(hashes[j] >> old_shift)]
                else:
                    slot = table[np.int64(hashes[j] >> shift)]
                dense = np.int64(slot & DENSE) - np.int64(1)
                if dense >= 0:
                    if stage == 0:
                        prefetch(offsets, dense)
                    else:
                        prefetch(arena, offsets[dense])
        for j in range(count):
            element = _element(base + j, half)
            first, end = bounds[element], bounds[element + 1]
            if aside[j]:
                dense, at = _find_string(
                    header, old, old_shift, offsets, arena, n_vertices, hashes[j], data, first, end
                )
            else:
                dense, at = _find_string(
                    header, table, shift, offsets, arena, n_vertices, hashes[j], data, first, end
                )
            if dense < 0:
                place = offsets[n_vertices]
                if n_vertices >= room or place + end - first > arena.size:
                    return n_vertices, np.int64(base + j)
                dense = n_vertices
                arena[place : place + end - first] = data[first:end]
                offsets[dense + 1] = place + end - first
                slot = (hashes[j] & TAG) | np.uint64(dense + 1)
                if aside[j]:
                    store_release(old, at, slot)
                else:
                    store_release(table, at, slot)
                n_vertices += np.int64(1)
            out[element] = np.uint32(dense)
    return n_vertices, np.int64(out.size)
