"""The hash tables of the vertex index: from external id to dense vertex, and back.

Open addressing with linear probing in a power-of-two table of 64-bit slots. A slot holds the upper half of the
id's hash and the dense vertex plus one; 0 is empty. The ids themselves stand in dense order in arrays of their
own, which are also the reverse map. Batches are taken in blocks: hash and prefetch all, then look.

One writer and any number of readers share the arrays without locks. An id is written first and its slot
afterwards with a release store, so whoever sees the slot (acquire load) sees the id. Nothing is ever removed.
A table that is full is copied into a larger one as a whole, and the old arrays are never written again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numba as nb
import numpy as np
import numpy.typing as npt

from .edges import NO_VERTEX, Vertices
from .hashing import Bytes, Words, hash_bytes, hash_int, load_acquire, prefetch, store_release
from .ids import IdColumn, IntColumn, StringColumn

Allocate = Callable[[str, int, Any], npt.NDArray[Any]]
"""(name, size, dtype) -> a new array of that size, whatever its content."""

SLOTS_MIN = 1024
LOAD_NUMERATOR, LOAD_DENOMINATOR = 3, 5
ARENA_BYTES_MIN = 1 << 14

_BLOCK = 128
_DENSE = np.uint64(0xFFFF_FFFF)
_TAG = np.uint64(0xFFFF_FFFF_0000_0000)
_ONE = np.uint64(1)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _element(visit: int, half: int) -> int:
    """Which element is visited next: in order, or, with ``half`` > 0, each beside its partner ``half`` later."""
    if half == 0:
        return visit
    return (visit >> 1) + (visit & 1) * half


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _find_int(
    table: Words, external: IntColumn, bound: np.int64, hashed: np.uint64, value: np.int64
) -> tuple[np.int64, np.int64]:
    """(dense vertex, its slot), or (-1, the empty slot where the search ended)."""
    mask = np.uint64(table.size - 1)
    at = hashed & mask
    while True:
        slot = load_acquire(table, np.int64(at))
        if slot == np.uint64(0):
            return np.int64(-1), np.int64(at)
        if slot & _TAG == hashed & _TAG:
            dense = np.int64(slot & _DENSE) - np.int64(1)
            if dense < bound and external[dense] == value:
                return dense, np.int64(at)
        at = (at + _ONE) & mask


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _lookup_ints(header: Words, table: Words, external: IntColumn, n: int, ids: IntColumn, out: Vertices) -> None:
    mask = np.uint64(table.size - 1)
    bound = min(np.int64(n), np.int64(external.size))
    hashes = np.empty(_BLOCK, np.uint64)
    for base in range(0, ids.size, _BLOCK):
        count = min(_BLOCK, ids.size - base)
        for j in range(count):
            hashes[j] = hash_int(ids[base + j], header[0], header[1])
            prefetch(table, np.int64(hashes[j] & mask))
        for j in range(count):
            slot = load_acquire(table, np.int64(hashes[j] & mask))
            if slot != np.uint64(0):
                prefetch(external, np.int64(slot & _DENSE) - np.int64(1))
        for j in range(count):
            dense, _ = _find_int(table, external, bound, hashes[j], ids[base + j])
            out[base + j] = NO_VERTEX if dense < 0 else np.uint32(dense)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _insert_ints(
    header: Words,
    table: Words,
    external: IntColumn,
    n: int,
    ids: IntColumn,
    half: int,
    begin: int,
    out: Vertices,
) -> tuple[np.int64, np.int64]:
    """Insert from visit ``begin`` on until all are in or no room is left: (vertices, next visit)."""
    mask = np.uint64(table.size - 1)
    n_vertices = np.int64(n)
    hashes = np.empty(_BLOCK, np.uint64)
    for base in range(begin, ids.size, _BLOCK):
        count = min(_BLOCK, ids.size - base)
        for j in range(count):
            hashes[j] = hash_int(ids[_element(base + j, half)], header[0], header[1])
            prefetch(table, np.int64(hashes[j] & mask))
        for j in range(count):
            slot = table[np.int64(hashes[j] & mask)]
            if slot != np.uint64(0):
                prefetch(external, np.int64(slot & _DENSE) - np.int64(1))
        for j in range(count):
            element = _element(base + j, half)
            dense, at = _find_int(table, external, n_vertices, hashes[j], ids[element])
            if dense < 0:
                if n_vertices == external.size:
                    return n_vertices, np.int64(base + j)
                dense = n_vertices
                external[dense] = ids[element]
                store_release(table, at, (hashes[j] & _TAG) | np.uint64(dense + 1))
                n_vertices += np.int64(1)
            out[element] = np.uint32(dense)
    return n_vertices, np.int64(ids.size)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _place(table: Words, hashed: np.uint64, dense: int) -> None:
    """Take the first empty slot, for an id that is known not to be there."""
    mask = np.uint64(table.size - 1)
    at = hashed & mask
    while table[np.int64(at)] != np.uint64(0):
        at = (at + _ONE) & mask
    table[np.int64(at)] = (hashed & _TAG) | np.uint64(dense + 1)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _rehash_ints(header: Words, table: Words, external: IntColumn, n: int) -> None:
    mask = np.uint64(table.size - 1)
    hashes = np.empty(_BLOCK, np.uint64)
    for base in range(0, n, _BLOCK):
        count = min(_BLOCK, n - base)
        for j in range(count):
            hashes[j] = hash_int(external[base + j], header[0], header[1])
            prefetch(table, np.int64(hashes[j] & mask))
        for j in range(count):
            _place(table, hashes[j], base + j)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _find_string(
    table: Words,
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
    at = hashed & mask
    while True:
        slot = load_acquire(table, np.int64(at))
        if slot == np.uint64(0):
            return np.int64(-1), np.int64(at)
        if slot & _TAG == hashed & _TAG:
            dense = np.int64(slot & _DENSE) - np.int64(1)
            if dense < bound and offsets[dense + 1] - offsets[dense] == end - start:
                first = offsets[dense]
                i = np.int64(0)
                while i < end - start and arena[first + i] == data[start + i]:
                    i += np.int64(1)
                if i == end - start:
                    return dense, np.int64(at)
        at = (at + _ONE) & mask


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _lookup_strings(
    header: Words,
    table: Words,
    offsets: IntColumn,
    arena: Bytes,
    n: int,
    data: Bytes,
    bounds: IntColumn,
    out: Vertices,
) -> None:
    mask = np.uint64(table.size - 1)
    known = min(np.int64(n), np.int64(offsets.size - 1))
    hashes = np.empty(_BLOCK, np.uint64)
    for base in range(0, out.size, _BLOCK):
        count = min(_BLOCK, out.size - base)
        for j in range(count):
            hashes[j] = hash_bytes(data, bounds[base + j], bounds[base + j + 1], header[0], header[1])
            prefetch(table, np.int64(hashes[j] & mask))
        for j in range(count):
            start, end = bounds[base + j], bounds[base + j + 1]
            dense, _ = _find_string(table, offsets, arena, known, hashes[j], data, start, end)
            out[base + j] = NO_VERTEX if dense < 0 else np.uint32(dense)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _insert_strings(
    header: Words,
    table: Words,
    offsets: IntColumn,
    arena: Bytes,
    n: int,
    data: Bytes,
    bounds: IntColumn,
    half: int,
    begin: int,
    out: Vertices,
) -> tuple[np.int64, np.int64]:
    """Insert from visit ``begin`` on until all are in or no room is left: (vertices, next visit)."""
    mask = np.uint64(table.size - 1)
    n_vertices = np.int64(n)
    hashes = np.empty(_BLOCK, np.uint64)
    for base in range(begin, out.size, _BLOCK):
        count = min(_BLOCK, out.size - base)
        for j in range(count):
            element = _element(base + j, half)
            hashes[j] = hash_bytes(data, bounds[element], bounds[element + 1], header[0], header[1])
            prefetch(table, np.int64(hashes[j] & mask))
        for j in range(count):
            element = _element(base + j, half)
            start, end = bounds[element], bounds[element + 1]
            dense, at = _find_string(table, offsets, arena, n_vertices, hashes[j], data, start, end)
            if dense < 0:
                first = offsets[n_vertices]
                if n_vertices == offsets.size - 1 or first + end - start > arena.size:
                    return n_vertices, np.int64(base + j)
                dense = n_vertices
                arena[first : first + end - start] = data[start:end]
                offsets[dense + 1] = first + end - start
                store_release(table, at, (hashes[j] & _TAG) | np.uint64(dense + 1))
                n_vertices += np.int64(1)
            out[element] = np.uint32(dense)
    return n_vertices, np.int64(out.size)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _rehash_strings(header: Words, table: Words, offsets: IntColumn, arena: Bytes, n: int) -> None:
    mask = np.uint64(table.size - 1)
    hashes = np.empty(_BLOCK, np.uint64)
    for base in range(0, n, _BLOCK):
        count = min(_BLOCK, n - base)
        for j in range(count):
            hashes[j] = hash_bytes(arena, offsets[base + j], offsets[base + j + 1], header[0], header[1])
            prefetch(table, np.int64(hashes[j] & mask))
        for j in range(count):
            _place(table, hashes[j], base + j)


def _slots_for(n_vertices: int) -> int:
    """The smallest table in which so many ids stay under the greatest load."""
    slots = SLOTS_MIN
    while slots * LOAD_NUMERATOR // LOAD_DENOMINATOR < n_vertices:
        slots *= 2
    return slots


def _capacity(slots: int) -> int:
    return slots * LOAD_NUMERATOR // LOAD_DENOMINATOR


def _header(allocate: Allocate, seeds: Words | None, generation: int) -> Words:
    """uint64[3]: the two seeds of the hash, and the generation."""
    header = allocate("header", 3, np.dtype(np.uint64))
    header[:2] = np.frombuffer(os.urandom(16), np.uint64) if seeds is None else seeds
    header[2] = generation
    return header


def _empty_table(allocate: Allocate, slots: int) -> Words:
    table = allocate("table", slots, np.dtype(np.uint64))
    table.fill(0)
    return table


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A contiguous read-only view: the one form of input for which the kernels are compiled."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True)
class IntTable:
    """int64 ids: ``header`` uint64[3], ``table`` uint64[slots], ``external`` int64[capacity] in dense order."""

    kind: ClassVar[str] = "int"
    header: Words
    table: Words
    external: IntColumn

    @classmethod
    def create(cls, allocate: Allocate, n_vertices: int, generation: int, seeds: Words | None = None) -> IntTable:
        """An empty table with room for at least ``n_vertices``."""
        slots = _slots_for(n_vertices)
        external = allocate("external", _capacity(slots), np.dtype(np.int64))
        return cls(_header(allocate, seeds, generation), _empty_table(allocate, slots), external)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {"header": self.header, "table": self.table, "external": self.external}

    def lookup(self, ids: IdColumn, n_vertices: int) -> Vertices:
        column = _int_column(ids)
        out = np.empty(column.size, np.uint32)
        _lookup_ints(_frozen(self.header), _frozen(self.table), _frozen(self.external), n_vertices, column, out)
        return out

    def insert(self, ids: IdColumn, half: int, begin: int, n_vertices: int, out: Vertices) -> tuple[int, int]:
        """(vertices afterwards, the visit at which room ran out; ``out.size`` when all are in)."""
        column = _int_column(ids)
        header = _frozen(self.header)
        n, visit = _insert_ints(header, self.table, self.external, n_vertices, column, half, begin, out)
        return int(n), int(visit)

    def grown(self, allocate: Allocate, n_vertices: int) -> IntTable:
        """A copy with room for more."""
        larger = IntTable.create(allocate, _capacity(self.table.size) + 1, _next(self.header), self.header[:2])
        larger.external[:n_vertices] = self.external[:n_vertices]
        _rehash_ints(_frozen(larger.header), larger.table, _frozen(larger.external), n_vertices)
        return larger

    def ids(self, dense: Vertices) -> IdColumn:
        return self.external[dense]

    def first_ids(self, n_vertices: int) -> IdColumn:
        return self.external[:n_vertices]


@dataclass(frozen=True, slots=True)
class StringTable:
    """String ids: vertex d is ``arena[offsets[d]:offsets[d + 1]]`` (uint8[], int64[capacity + 1])."""

    kind: ClassVar[str] = "string"
    header: Words
    table: Words
    offsets: IntColumn
    arena: Bytes

    @classmethod
    def create(
        cls,
        allocate: Allocate,
        n_vertices: int,
        generation: int,
        seeds: Words | None = None,
        arena_bytes: int = 0,
    ) -> StringTable:
        """An empty table with room for at least ``n_vertices`` of ``arena_bytes`` together."""
        slots = _slots_for(n_vertices)
        offsets = allocate("offsets", _capacity(slots) + 1, np.dtype(np.int64))
        offsets[0] = 0
        arena = allocate("arena", max(arena_bytes, ARENA_BYTES_MIN), np.dtype(np.uint8))
        return cls(_header(allocate, seeds, generation), _empty_table(allocate, slots), offsets, arena)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {"header": self.header, "table": self.table, "offsets": self.offsets, "arena": self.arena}

    def lookup(self, ids: IdColumn, n_vertices: int) -> Vertices:
        data, bounds = _string_column(ids)
        out = np.empty(bounds.size - 1, np.uint32)
        offsets, arena = _frozen(self.offsets), _frozen(self.arena)
        _lookup_strings(_frozen(self.header), _frozen(self.table), offsets, arena, n_vertices, data, bounds, out)
        return out

    def insert(self, ids: IdColumn, half: int, begin: int, n_vertices: int, out: Vertices) -> tuple[int, int]:
        """(vertices afterwards, the visit at which room ran out; ``out.size`` when all are in)."""
        data, bounds = _string_column(ids)
        header = _frozen(self.header)
        n, visit = _insert_strings(
            header, self.table, self.offsets, self.arena, n_vertices, data, bounds, half, begin, out
        )
        return int(n), int(visit)

    def grown(self, allocate: Allocate, n_vertices: int) -> StringTable:
        """A copy with room for more: more ids where those ran out, else more bytes."""
        capacity = self.offsets.size - 1
        used = int(self.offsets[n_vertices])
        if n_vertices == capacity:
            capacity = _capacity(2 * self.table.size)
            # Bytes for so many ids of about the present mean length, so that both run out together.
            arena_bytes = max(self.arena.size, used * capacity // n_vertices * 9 // 8)
        else:
            arena_bytes = 2 * self.arena.size
        larger = StringTable.create(allocate, capacity, _next(self.header), self.header[:2], arena_bytes)
        larger.offsets[: n_vertices + 1] = self.offsets[: n_vertices + 1]
        larger.arena[:used] = self.arena[:used]
        offsets, arena = _frozen(larger.offsets), _frozen(larger.arena)
        _rehash_strings(_frozen(larger.header), larger.table, offsets, arena, n_vertices)
        return larger

    def ids(self, dense: Vertices) -> IdColumn:
        return StringColumn(self.arena, self.offsets)[dense]

    def first_ids(self, n_vertices: int) -> IdColumn:
        offsets = self.offsets[: n_vertices + 1]
        return StringColumn(self.arena[: offsets[-1]], offsets)


IdTable = IntTable | StringTable


def table_of(kind: str, arrays: Mapping[str, npt.NDArray[Any]]) -> IdTable:
    """The table over arrays that ``arrays()`` gave, as another process sees them."""
    if kind == "int":
        return IntTable(arrays["header"], arrays["table"], arrays["external"])
    return StringTable(arrays["header"], arrays["table"], arrays["offsets"], arrays["arena"])


def _next(header: Words) -> int:
    return int(header[2]) + 1


def _int_column(ids: IdColumn) -> IntColumn:
    if isinstance(ids, StringColumn):
        raise TypeError("this graph's ids are integers, not strings")
    return _frozen(np.asarray(ids, np.int64))


def _string_column(ids: IdColumn) -> tuple[Bytes, IntColumn]:
    if not isinstance(ids, StringColumn):
        raise TypeError("this graph's ids are strings, not integers")
    return _frozen(ids.data), _frozen(ids.offsets)
