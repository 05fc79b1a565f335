"""The arrays of the vertex index: the hash table of ``slots.py``, and the ids themselves in dense order, which
are also the reverse map.

``IntTable`` and ``StringTable`` are one generation of these arrays, as readers hold them. ``GrowingTable`` is the
writer's: it replaces arrays by larger ones, each time as a new generation, and without a pause. The table moves
slot by slot (``slots.py``); of every other array, once it is five eighths full, a larger copy is
filled beside it as ids come in, and takes over when it has caught up. An array that was replaced is never written
again, but for an old table while it is being moved.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .edges import Vertices
from .hashing import Bytes, Words
from .id_kernels import insert_ints, insert_strings, lookup_ints, lookup_strings
from .ids import MAX_STRING_ID_BYTES, IdColumn, IntColumn, StringColumn
from .slots import (
    COVERED,
    EVERYTHING,
    GENERATION,
    HEADER_WORDS,
    MOVED,
    NO_SLOTS,
    START,
    capacity,
    first_empty,
    slots_for,
)

Allocate = Callable[[str, int, Any], npt.NDArray[Any]]
"""(name, size, dtype) -> a new array of that size, all zero."""

ARENA_BYTES_MIN = 1 << 14

# A copy begins when this share of an array is in use, and goes on by so many items for each that comes: it is
# done before the rest is used up.
_COPY_NUMERATOR, _COPY_DENOMINATOR = 5, 8
_COPIED_PER_ITEM = 4
_COPIED_MIN = 1024


@dataclass(frozen=True, slots=True)
class IntTable:
    """int64 ids: ``header`` uint64[HEADER_WORDS], ``table`` uint64[slots], ``old`` the table that is being moved,
    or ``NO_SLOTS``; ``external`` int64[room] in dense order."""

    kind: ClassVar[str] = "int"
    header: Words
    table: Words
    old: Words
    external: IntColumn

    @classmethod
    def create(cls, allocate: Allocate, n_vertices: int, generation: int) -> IntTable:
        """An empty table with room for at least ``n_vertices``."""
        header, table = _empty(allocate, n_vertices, generation)
        external = allocate("external", _room(max(n_vertices, capacity(table.size))), np.dtype(np.int64))
        return cls(header, table, NO_SLOTS, external)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of ids."""
        return {"external": self.external}

    def used(self, n_vertices: int) -> dict[str, int]:
        """How many items of each of them are in use."""
        return {"external": n_vertices}

    def needed(self, ids: IdColumn) -> dict[str, int]:
        """How many items of each of them these ids take at most."""
        return {"external": len(ids)}

    def lookup(self, ids: IdColumn, n_vertices: int) -> Vertices:
        column = _int_column(ids)
        out = np.empty(column.size, np.uint32)
        header, table, old, external = map(_frozen, (self.header, self.table, self.old, self.external))
        lookup_ints(header, table, old, external, n_vertices, column, out)
        return out

    def insert(self, ids: IdColumn, half: int, begin: int, n_vertices: int, out: Vertices) -> tuple[int, int]:
        """(vertices afterwards, the visit at which room ran out; ``out.size`` when all are in)."""
        limit = capacity(self.table.size)
        column = _int_column(ids)
        n, visit = insert_ints(
            self.header,
            self.table,
            _writable(self.old),
            self.external,
            n_vertices,
            limit,
            column,
            half,
            begin,
            out,
        )
        return int(n), int(visit)

    def ids(self, dense: Vertices) -> IdColumn:
        return self.external[dense]

    def first_ids(self, n_vertices: int) -> IdColumn:
        return self.external[:n_vertices]


@dataclass(frozen=True, slots=True)
class StringTable:
    """String ids: vertex d is ``arena[offsets[d]:offsets[d + 1]]`` (uint8[], int64[room + 1]); the other arrays
    are those of ``IntTable``."""

    kind: ClassVar[str] = "string"
    header: Words
    table: Words
    old: Words
    offsets: IntColumn
    arena: Bytes

    @classmethod
    def create(cls, allocate: Allocate, n_vertices: int, generation: int, arena_bytes: int = 0) -> StringTable:
        """An empty table with room for at least ``n_vertices`` of ``arena_bytes`` together."""
        header, table = _empty(allocate, n_vertices, generation)
        offsets = allocate("offsets", _room(max(n_vertices, capacity(table.size))) + 1, np.dtype(np.int64))
        arena = allocate("arena", max(_room(arena_bytes), ARENA_BYTES_MIN), np.dtype(np.uint8))
        return cls(header, table, NO_SLOTS, offsets, arena)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of ids."""
        return {"offsets": self.offsets, "arena": self.arena}

    def used(self, n_vertices: int) -> dict[str, int]:
        """How many items of each of them are in use."""
        return {"offsets": n_vertices + 1, "arena": int(self.offsets[n_vertices])}

    def needed(self, ids: IdColumn) -> dict[str, int]:
        """How many items of each of them these ids take at most."""
        assert isinstance(ids, StringColumn)
        return {"offsets": len(ids), "arena": int(ids.offsets[-1] - ids.offsets[0])}

    def lookup(self, ids: IdColumn, n_vertices: int) -> Vertices:
        data, bounds = _string_column(ids)
        out = np.empty(bounds.size - 1, np.uint32)
        header, table, old = map(_frozen, (self.header, self.table, self.old))
        offsets, arena = _frozen(self.offsets), _frozen(self.arena)
        lookup_strings(header, table, old, offsets, arena, n_vertices, data, bounds, out)
        return out

    def insert(self, ids: IdColumn, half: int, begin: int, n_vertices: int, out: Vertices) -> tuple[int, int]:
        """(vertices afterwards, the visit at which room ran out; ``out.size`` when all are in)."""
        data, bounds = _string_column(ids)
        header, table, old, limit = self.header, self.table, _writable(self.old), capacity(self.table.size)
        n, visit = insert_strings(
            header, table, old, self.offsets, self.arena, n_vertices, limit, data, bounds, half, begin, out
        )
        return int(n), int(visit)

    def ids(self, dense: Vertices) -> IdColumn:
        return StringColumn(self.arena, self.offsets)[dense]

    def first_ids(self, n_vertices: int) -> IdColumn:
        offsets = self.offsets[: n_vertices + 1]
        return StringColumn(self.arena[: offsets[-1]], offsets)


IdTable = IntTable | StringTable


def arrays_of(table: IdTable) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a table by name, for ``table_of``; ``old`` is left out where nothing is being moved."""
    arrays = {"header": table.header, "table": table.table, **table.columns()}
    return arrays if table.old is NO_SLOTS else {**arrays, "old": table.old}


def table_of(kind: str, arrays: Mapping[str, npt.NDArray[Any]]) -> IdTable:
    """The table over arrays that ``arrays_of`` gave, as another process sees them."""
    header, table, old = arrays["header"], arrays["table"], arrays.get("old", NO_SLOTS)
    if kind == "int":
        return IntTable(header, table, old, arrays["external"])
    return StringTable(header, table, old, arrays["offsets"], arrays["arena"])


class GrowingTable:
    """The writer's table. ``table`` is its present generation, which other threads may take at any time."""

    def __init__(self, table: IdTable, allocate: Allocate) -> None:
        self.table = table
        self.n_vertices = 0
        self._allocate = allocate
        self._copies: dict[str, npt.NDArray[Any]] = {}
        self._copied: dict[str, int] = {}
        self._replaced: list[object] = []

    def insert(self, ids: IdColumn, half: int, out: Vertices) -> None:
        """Give every id its dense vertex; ``half``: see ``VertexIndex.insert_edges``."""
        visit = 0
        while True:
            # Kept at each step: should there be no memory to grow, the table and the count still agree.
            self.n_vertices, visit = self.table.insert(ids, half, visit, self.n_vertices, out)
            if visit == out.size:
                break
            self._make_room()
        self._grow_on(ids)
        if self._replaced:  # now that no frame holds them any more
            let_go(self._replaced)
            self._replaced = []

    def memory_bytes(self) -> int:
        """Bytes of the arrays, of the copies being made too."""
        held = [*arrays_of(self.table).values(), *self._copies.values()]
        return sum(array.nbytes for array in held)

    def _make_room(self) -> None:
        """Let at least one more id in: begin to move to a larger table, or finish a copy at once."""
        table = self.table
        if self.n_vertices >= capacity(table.table.size):
            # The move before is done: it takes an eighth of the ids that the larger table had room for.
            old = table.table
            larger = self._allocate("table", 2 * old.size, np.dtype(np.uint64))
            self._renew({"table": larger, "old": old}, first_empty(old))
            return
        for name, used in table.used(self.n_vertices).items():
            spare = MAX_STRING_ID_BYTES if name == "arena" else 1
            if used + spare > table.columns()[name].size:
                self._copy_on(name, used, used)

    def _grow_on(self, ids: IdColumn) -> None:
        """After a batch: copy a little further what is filling up, and let go of a table that has been moved."""
        table = self.table
        if table.old is not NO_SLOTS and int(table.header[MOVED]) == table.old.size:
            self._renew({"old": NO_SLOTS})
        needed = table.needed(ids)
        for name, used in table.used(self.n_vertices).items():
            size = table.columns()[name].size
            if name in self._copies or used * _COPY_DENOMINATOR >= size * _COPY_NUMERATOR:
                self._copy_on(name, used, max(needed[name] * _COPIED_PER_ITEM, _COPIED_MIN))

    def _copy_on(self, name: str, used: int, budget: int) -> None:
        """Copy so many more items of an array into a larger one, which takes over when it has all in use."""
        array = self.table.columns()[name]
        copy = self._copies.get(name)
        if copy is None:
            copy = self._copies[name] = self._allocate(name, _room(array.size), array.dtype)
            self._copied[name] = 0
        done = self._copied[name]
        stop = min(done + budget, used)
        copy[done:stop] = array[done:stop]
        self._copied[name] = stop
        if stop == used:
            del self._copies[name], self._copied[name]
            self._renew({name: copy})

    def _renew(self, arrays: Mapping[str, npt.NDArray[Any]], start: int | None = None) -> None:
        """Go on with these arrays as another generation; whoever holds the one before sees nothing newer in it."""
        table = self.table
        header = self._allocate("header", HEADER_WORDS, np.dtype(np.uint64))
        header[:] = table.header
        header[GENERATION] += np.uint64(1)
        if start is not None:
            header[START], header[MOVED] = start, 0
        table.header[COVERED] = self.n_vertices
        changed: dict[str, Any] = {"header": header, **arrays}
        self.table = replace(table, **changed)
        self._replaced.append(table)


def let_go(objects: list[object]) -> None:
    """Empty this list on a thread of its own: where it holds the last reference, to unmap takes milliseconds."""
    try:
        threading.Thread(target=objects.clear, name="let-go").start()
    except RuntimeError:  # no more threads, or the process ends
        objects.clear()


def _empty(allocate: Allocate, n_vertices: int, generation: int) -> tuple[Words, Words]:
    """The header and the table for at least so many ids."""
    header = allocate("header", HEADER_WORDS, np.dtype(np.uint64))
    header[:2] = np.frombuffer(os.urandom(16), np.uint64)
    header[GENERATION], header[COVERED] = generation, EVERYTHING
    return header, allocate("table", slots_for(n_vertices), np.dtype(np.uint64))


def _room(items: int) -> int:
    """The size of an array that is to hold so many items without having to grow soon."""
    return items * 3 // 2


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A contiguous read-only view: the one form of input for which the kernels are compiled."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _writable(old: Words) -> Words:
    """The old table, in the one form for which inserting is compiled."""
    return _NO_SLOTS_WRITABLE if old is NO_SLOTS else old


_NO_SLOTS_WRITABLE = np.zeros(2, np.uint64)
"""Never written: where nothing is moved, every id is in the table."""


def _int_column(ids: IdColumn) -> IntColumn:
    if isinstance(ids, StringColumn):
        raise TypeError("this graph's ids are integers, not strings")
    return _frozen(np.asarray(ids, np.int64))


def _string_column(ids: IdColumn) -> tuple[Bytes, IntColumn]:
    if not isinstance(ids, StringColumn):
        raise TypeError("this graph's ids are strings, not integers")
    return _frozen(ids.data), _frozen(ids.offsets)
