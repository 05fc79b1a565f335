"""The arrays of the vertex index: a hash table (``hash_table.py``), and the ids themselves in dense order, which
are also the reverse map.

``IntTable`` and ``StringTable`` are one generation of these arrays, as readers hold them. ``GrowingTable`` is
the writer's: it replaces arrays by others, each time as a new generation, and without a pause. The table moves
cell by cell (``hash_table.py``), into pages that a thread asks for ahead; what a move needs is made before, one
thing with one batch. Of what holds the ids, once it is five eighths full, a copy with more room is filled beside
it as ids come in, and takes over when it has caught up. The copy of an arena leaves behind what no vertex has as
its id any more. An array that was replaced is never written again, but for an old table while it is being moved.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from mmap import PAGESIZE
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ..address_space import LARGE_PAGE, POPULATE_WRITE, advise
from ..edges import Keys, Vertices, frozen
from ..team import ALONE, Crew
from ..threads import start_thread
from ..written import Words as Written
from ..written import keeping, new_words, write
from .hash_table import (
    COVERED,
    EVERYTHING,
    GENERATION,
    HEADER_WORDS,
    MOVED,
    NO_CELLS,
    START,
    capacity,
    cells_for,
    first_empty,
    move,
    size_after,
)
from .hashing import Bytes, Words
from .id_kernels import (
    ARENA_LIVE,
    ARENA_USED,
    COUNTS,
    FILLED,
    FREE,
    IDS,
    INT_ARRAYS,
    STRING_ARRAYS,
    VERTICES,
    Counts,
    TableArrays,
    copy_strings,
    insert,
    look_up_edges,
    lookup,
    lookup_shared,
    remove,
    smallest_string,
)
from .ids import MAX_STRING_ID_BYTES, IdColumn, IntColumn, StringColumn
from .kinds import LENGTH, LENGTH_BITS

Allocate = Callable[[str, int, Any], npt.NDArray[Any]]
"""(name, size, dtype) -> a new array of that size, all zero."""

ARENA_BYTES_MIN = 1 << 14

PIECE_IDS = 1 << 12
"""So many ids a thread looks up at a time, and fewer are not divided."""

# To get pages ahead pays for a thread from so many bytes on.
_PAGES_MIN = 4 << 20

# What a move needs is made ahead when a table has this share of the ids that it has room for.
_AHEAD_NUMERATOR, _AHEAD_DENOMINATOR = 31, 32

# A copy begins when this share of an array is in use, and goes on by so many items for each that comes: it is
# done before the rest is used up. Where a large batch has used up most of that, it goes on by more.
_COPY_NUMERATOR, _COPY_DENOMINATOR = 5, 8
_COPIED_PER_ITEM = 4
_COPIED_MIN = 1024


class _Copy(Protocol):
    """A copy of what holds the ids, in the making."""

    done: int
    """Below which vertex it is complete."""

    def advance(self, n_vertices: int, ids: int, ids_bytes: int) -> None:
        """Copy at least so many more ids, and of strings so many bytes; or all that are left."""
        ...

    def again(self, dense: Vertices) -> None:
        """These vertices have other ids now."""
        ...

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that take over."""
        ...

    def count(self, counts: Counts) -> None:
        """Count what is in them, as they take over."""
        ...

    @property
    def nbytes(self) -> int: ...


@dataclass(slots=True)
class _Ahead:
    """What the next generations will need: a header, and a table of so many cells as the present one will move to,
    with the place where that begins. None, or -1: not yet."""

    header: Words | None = None
    cells: Words | None = None
    has_pages: bool = False
    start: int = -1

    @property
    def nbytes(self) -> int:
        cells = self.cells
        return 0 if cells is None else cells.nbytes


@dataclass(frozen=True, slots=True)
class _Table:
    """What the tables of both kinds have in common: ``header`` uint64[HEADER_WORDS], ``table`` uint64[cells], and
    ``old``, the table that is being moved, or ``NO_CELLS``.

    Where they are is written down once, for kernels.
    """

    header: Words
    table: Words
    old: Words
    written: Written = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        limit, (words, arena) = capacity(self.table.size), self.kept()
        written = new_words(INT_ARRAYS if arena is None else STRING_ARRAYS)
        # Those of another process may be there to be read only, and ``write`` is compiled for one form.
        header, cells, old, words = map(frozen, (self.header, self.table, self.old, words))
        arena = None if arena is None else frozen(arena)
        arrays = TableArrays(header, cells, old, limit, words, arena)
        write(written, arrays)
        object.__setattr__(self, "written", keeping(written, arrays))

    def kept(self) -> tuple[IntColumn | Words, Bytes | None]:
        """The ids by dense vertex, as kernels take them (``kinds.py``)."""
        raise NotImplementedError

    def column(self, ids: IdColumn) -> tuple[IntColumn, Bytes | None]:
        """Ids that come, as kernels take them.

        Raises:
            TypeError: they are of the other kind.
        """
        raise NotImplementedError

    def lookup(self, ids: IdColumn, n_vertices: int, crew: Crew = ALONE) -> Vertices:
        """The vertex of each id, ``NO_VERTEX`` where it is unknown or not below ``n_vertices``.

        ``crew``: whose threads share the work, if it is much.
        """
        column, data = self.column(ids)
        out = np.empty(len(ids), np.uint32)
        if out.size > PIECE_IDS:
            lookup_shared(self.written, n_vertices, column, data, PIECE_IDS, out, crew)
        else:
            lookup(self.written, n_vertices, column, data, out)
        return out

    def insert(self, ids: IdColumn, half: int, begin: int, free: Vertices, counts: Counts, out: Vertices) -> int:
        """The visit at which room ran out; ``out.size`` when all are in."""
        column, data = self.column(ids)
        return int(insert(self.written, free, counts, column, data, half, begin, out))

    def remove(self, dense: Vertices, counts: Counts) -> None:
        """Take the ids of these vertices out of the table."""
        remove(self.written, counts, frozen(dense), self.kept()[1])


@dataclass(frozen=True, slots=True)
class IntTable(_Table):
    """int64 ids: ``external`` int64[room] in dense order."""

    kind: ClassVar[str] = "int"
    external: IntColumn

    @classmethod
    def create(cls, allocate: Allocate, n_vertices: int, generation: int) -> IntTable:
        """An empty table with room for at least ``n_vertices``."""
        header, table = _empty(allocate, n_vertices, generation)
        external = allocate("external", _room(max(n_vertices, capacity(table.size))), np.dtype(np.int64))
        return cls(header, table, NO_CELLS, external)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of ids."""
        return {"external": self.external}

    def kept(self) -> tuple[IntColumn, None]:
        return self.external, None

    def column(self, ids: IdColumn) -> tuple[IntColumn, None]:
        if isinstance(ids, StringColumn):
            raise TypeError("this graph's ids are integers, not strings")
        return frozen(np.asarray(ids, np.int64)), None

    def forget(self, dense: Vertices, counts: Counts) -> None:
        """These vertices have no id any more."""

    def ids(self, dense: Vertices) -> IdColumn:
        return self.external[dense]

    def smallest(self, dense: Vertices) -> int:
        """The position of the vertex (of at least one) with the smallest id."""
        return int(self.external[dense].argmin())

    def state(self, n_vertices: int, counts: Counts) -> dict[str, npt.NDArray[Any]]:
        """What the first vertices' ids are read from, not copied."""
        return {"ids": self.external[:n_vertices]}

    def is_filling(self, counts: Counts) -> bool:
        """It is time to begin a copy."""
        return _is_filling(int(counts[VERTICES]), self.external.size)

    def is_full(self, counts: Counts) -> bool:
        """There may be no room for one more id."""
        return int(counts[VERTICES]) >= self.external.size

    def room(self, counts: Counts) -> float:
        """How many more ids there is room for."""
        return float(self.external.size - int(counts[VERTICES]))

    def begin_copy(self, allocate: Allocate, counts: Counts) -> _Copy:
        """A copy with more room, nothing in it yet."""
        return _IntCopy(self, allocate("external", _room(self.external.size), np.dtype(np.int64)))


@dataclass(slots=True)
class _IntCopy:
    table: IntTable
    external: IntColumn
    done: int = 0

    def advance(self, n_vertices: int, ids: int, ids_bytes: int) -> None:
        stop = min(self.done + ids, n_vertices)
        self.external[self.done : stop] = self.table.external[self.done : stop]
        self.done = stop

    def again(self, dense: Vertices) -> None:
        self.external[dense] = self.table.external[dense]

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        return {"external": self.external}

    def count(self, counts: Counts) -> None: ...

    @property
    def nbytes(self) -> int:
        return self.external.nbytes


@dataclass(frozen=True, slots=True)
class StringTable(_Table):
    """String ids: ``places`` uint64[room] says where in ``arena`` uint8[] each vertex's lies and how long it is
    (``kinds.LENGTH_BITS``)."""

    kind: ClassVar[str] = "string"
    places: Words
    arena: Bytes

    @classmethod
    def create(cls, allocate: Allocate, n_vertices: int, generation: int, arena_bytes: int = 0) -> StringTable:
        """An empty table with room for at least ``n_vertices`` of ``arena_bytes`` together."""
        header, table = _empty(allocate, n_vertices, generation)
        places = allocate("places", _room(max(n_vertices, capacity(table.size))), np.dtype(np.uint64))
        arena = allocate("arena", max(_room(arena_bytes), ARENA_BYTES_MIN), np.dtype(np.uint8))
        return cls(header, table, NO_CELLS, places, arena)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of ids."""
        return {"places": self.places, "arena": self.arena}

    def kept(self) -> tuple[Words, Bytes]:
        return self.places, self.arena

    def column(self, ids: IdColumn) -> tuple[IntColumn, Bytes]:
        if not isinstance(ids, StringColumn):
            raise TypeError("this graph's ids are strings, not integers")
        return frozen(ids.offsets), frozen(ids.data)

    def look_up_edges(
        self, src: IdColumn, dst: IdColumn, n_vertices: int, crew: Crew
    ) -> tuple[Keys, npt.NDArray[np.bool_], int]:
        """The edges between the vertices of these ids, each as ``lookup`` finds it (uint64[n]), where both are
        known (bool[n]), and how many are not."""
        keys, known = np.empty(len(src), np.uint64), np.empty(len(src), np.bool_)
        columns = *self.column(src), *self.column(dst)
        unknown = look_up_edges(self.written, n_vertices, *columns, PIECE_IDS // 2, keys, known, crew)
        return keys, known, int(unknown)

    def forget(self, dense: Vertices, counts: Counts) -> None:
        """These vertices have no id any more."""
        counts[ARENA_LIVE] -= int((self.places[dense] & LENGTH).sum())
        self.places[dense] = 0

    def ids(self, dense: Vertices) -> IdColumn:
        return strings_at(self.places[dense], self.arena)

    def smallest(self, dense: Vertices) -> int:
        """The position of the vertex (of at least one) with the smallest id."""
        return int(smallest_string(frozen(self.places), frozen(self.arena), frozen(dense)))

    def state(self, n_vertices: int, counts: Counts) -> dict[str, npt.NDArray[Any]]:
        """What the first vertices' ids are read from, not copied."""
        return {"places": self.places[:n_vertices], "arena": self.arena[: int(counts[ARENA_USED])]}

    def is_filling(self, counts: Counts) -> bool:
        """It is time to begin a copy."""
        return _is_filling(int(counts[VERTICES]), self.places.size) or _is_filling(
            int(counts[ARENA_USED]), self.arena.size
        )

    def is_full(self, counts: Counts) -> bool:
        """There may be no room for one more id."""
        if int(counts[VERTICES]) >= self.places.size:
            return True
        return int(counts[ARENA_USED]) + MAX_STRING_ID_BYTES > self.arena.size

    def room(self, counts: Counts) -> float:
        """About how many more ids there is room for, if they are as long as those that are there."""
        rest, live = self.arena.size - int(counts[ARENA_USED]) - MAX_STRING_ID_BYTES, int(counts[ARENA_LIVE])
        return min(self.places.size - int(counts[VERTICES]), rest * int(counts[IDS]) / max(live, 1))

    def begin_copy(self, allocate: Allocate, counts: Counts) -> _Copy:
        """A copy with more room, nothing in it yet. What may come until it takes over fits, too."""
        live, rest = int(counts[ARENA_LIVE]), self.arena.size - int(counts[ARENA_USED])
        ids = max(self.places.size, _room_beyond(int(counts[VERTICES])))
        ids_bytes = max(live + rest + MAX_STRING_ID_BYTES, _room_beyond(live), ARENA_BYTES_MIN)
        places = allocate("places", ids, np.dtype(np.uint64))
        return _StringCopy(self, places, allocate("arena", ids_bytes, np.dtype(np.uint8)))


@dataclass(slots=True)
class _StringCopy:
    table: StringTable
    places: Words
    arena: Bytes
    done: int = 0
    used: int = 0

    def advance(self, n_vertices: int, ids: int, ids_bytes: int) -> None:
        goal = self.used + ids_bytes
        while self.done < n_vertices and (ids > 0 or self.used < goal):
            stop = min(self.done + max(ids, _COPIED_MIN), n_vertices)
            self._copy(np.arange(self.done, stop, dtype=np.uint32))
            self.done, ids = stop, 0

    def again(self, dense: Vertices) -> None:
        self._copy(dense)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        return {"places": self.places, "arena": self.arena}

    def count(self, counts: Counts) -> None:
        counts[ARENA_USED] = self.used

    @property
    def nbytes(self) -> int:
        return self.places.nbytes + self.arena.nbytes

    def _copy(self, dense: Vertices) -> None:
        places, arena = frozen(self.table.places), frozen(self.table.arena)
        self.used = int(copy_strings(places, arena, self.places, self.arena, self.used, dense))


def strings_at(places: Words, arena: Bytes) -> StringColumn:
    """The strings at these places of an arena, as one column.

    Raises:
        ValueError: a place is not within the arena.
    """
    lengths = (places & LENGTH).astype(np.int64)
    if places.size and int(((places >> LENGTH_BITS) + (places & LENGTH)).max()) > arena.size:
        raise ValueError("the places of the vertex index's state do not fit its arena")
    offsets = np.zeros(places.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    copied = np.empty(places.size, np.uint64)
    copy_strings(frozen(places), frozen(arena), copied, data, 0, np.arange(places.size, dtype=np.uint32))
    return StringColumn(data, offsets)


IdTable = IntTable | StringTable


def arrays_of(table: IdTable) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a table by name, for ``table_of``; ``old`` is left out where nothing is being moved."""
    arrays = {"header": table.header, "table": table.table, **table.columns()}
    return arrays if table.old is NO_CELLS else {**arrays, "old": table.old}


def table_of(kind: str, arrays: Mapping[str, npt.NDArray[Any]]) -> IdTable:
    """The table over arrays that ``arrays_of`` gave, as another process sees them."""
    header, table, old = arrays["header"], arrays["table"], arrays.get("old", NO_CELLS)
    if kind == "int":
        return IntTable(header, table, old, arrays["external"])
    return StringTable(header, table, old, arrays["places"], arrays["arena"])


class GrowingTable:
    """The writer's table. ``table`` is its present generation, which other threads may take at any time."""

    def __init__(self, table: IdTable, allocate: Allocate) -> None:
        """``table`` is empty."""
        self.table = table
        self.counts: Counts = np.zeros(COUNTS, np.int64)
        # Those that were given to ids lie behind those that are left, up to ``_n_kept``, until written over.
        self._free = np.empty(0, np.uint32)
        self._n_kept = 0
        self._given: list[Vertices] = []
        self._allocate = allocate
        self._copy: _Copy | None = None
        self._ahead = _Ahead()
        self._replaced: list[object] = []

    @property
    def n_vertices(self) -> int:
        """Dense ids are below it."""
        return int(self.counts[VERTICES])

    @property
    def n_free(self) -> int:
        """How many vertices are without an id."""
        return int(self.counts[FREE])

    @property
    def free(self) -> Vertices:
        """Vertices without an id, in the order in which they are given out from the last one on."""
        return self._free[: int(self.counts[FREE])]

    def load(self, ids: IdColumn, dense: Vertices, n_vertices: int) -> None:
        """Give these ids (each once) these vertices, ascending, of so many; there is room for them all.

        Raises:
            ValueError: an id comes twice.
        """
        self.counts[VERTICES] = n_vertices
        self.give_back(dense[::-1])
        out = np.empty(dense.size, np.uint32)
        self.table.insert(ids, 0, 0, self._free, self.counts, out)
        if int(self.counts[IDS]) != dense.size:
            raise ValueError(f"the state of the vertex index names {dense.size - int(self.counts[IDS])} ids twice")
        self._free, self._n_kept = np.empty(0, np.uint32), 0

    def insert(self, ids: IdColumn, half: int, out: Vertices) -> None:
        """Give every id its dense vertex (``half``: see ``VertexIndex.insert_edges``).

        Should there be no memory to grow, those that have theirs keep it, and ``take_given`` knows of them.
        """
        visit, counts = 0, self.counts
        replaced, self._replaced = self._replaced, []
        while True:
            before = int(counts[FREE])
            visit = self.table.insert(ids, half, visit, self._free, counts, out)
            if self._copy is not None and counts[FREE] < before:
                self._copy_again(self._free[int(counts[FREE]) : before])
            if visit == out.size:
                break
            self._make_room()
        did_more = self._grow_on(ids)
        if self._replaced or did_more:  # enough for one batch
            self._replaced += replaced
        elif replaced:
            let_go(replaced)
        else:
            self._make_ahead()

    def take_given(self) -> Vertices:
        """The vertices that were free and got an id since the last call."""
        self._keep_given()
        given = np.concatenate(self._given) if self._given else np.empty(0, np.uint32)
        self._given = []
        return given

    def remove(self, dense: Vertices) -> None:
        """Take the ids of these vertices out of the table."""
        before = int(self.counts[IDS])
        self.table.remove(dense, self.counts)
        if int(self.counts[IDS]) != before - dense.size:
            raise ValueError(f"of {dense.size} vertices {before - int(self.counts[IDS])} had an id")

    def give_back(self, dense: Vertices) -> None:
        """These vertices, which have no id in the table, may be given to others."""
        self._keep_given()
        n = int(self.counts[FREE])
        if n + dense.size > self._free.size:
            larger = np.empty(max(2 * self._free.size, n + dense.size), np.uint32)
            larger[:n] = self._free[:n]
            self._free = larger
        self.table.forget(dense, self.counts)
        if self._copy is not None:
            self._copy_again(dense)
        self._free[n : n + dense.size] = dense
        self.counts[FREE] = self._n_kept = n + dense.size

    def memory_bytes(self) -> int:
        """Bytes of the arrays, of the copy being made too. Any thread may call this."""
        held = sum(array.nbytes for array in arrays_of(self.table).values()) + self._free.nbytes
        held += self._ahead.nbytes
        copy = self._copy  # taken once: the writer may be through with it at any time
        return held if copy is None else held + copy.nbytes

    def _keep_given(self) -> None:
        """Note which of the free vertices were given to ids, before others are written over them."""
        n = int(self.counts[FREE])
        if n < self._n_kept:
            self._given.append(self._free[n : self._n_kept].copy())
            self._n_kept = n

    def _copy_again(self, dense: Vertices) -> None:
        """These vertices have other ids now: the copy that is being made must have them, or begin anew."""
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.again(dense[dense < copy.done])
            self._copy = copy

    def _make_room(self) -> None:
        """Let at least one more id in: begin to move to another table, or finish a copy at once."""
        table = self.table
        if self.counts[FILLED] >= capacity(table.table.size):
            self._move()
        if table.is_full(self.counts):
            self._copy_on(self.n_vertices, table.arena.size if isinstance(table, StringTable) else 0)

    def _move(self) -> None:
        # The move before is done: it takes fewer ids than the table has had room for since.
        old = self.table.table
        n_ids = int(self.counts[IDS])
        size = size_after(old.size, n_ids)
        ahead = self._ahead
        cells, has_pages, start = ahead.cells, ahead.has_pages, ahead.start
        if cells is None or cells.size != size:  # ids were removed since, or many came at once
            cells, has_pages = self._allocate("table", size, np.dtype(np.uint64)), False
        if not has_pages:
            get_pages(cells)
        if start < 0 or old[start]:
            start = first_empty(old)
        self._renew({"table": cells, "old": old}, start)
        ahead.cells, ahead.has_pages, ahead.start = None, False, -1
        self.counts[FILLED] = n_ids
        if 2 * n_ids > capacity(size):
            # The largest table of all: what comes while it moves may have no room in the old one.
            move(self.table.header, self.table.table, old, old.size)

    def _make_ahead(self) -> None:
        """After a batch in which nothing else was done: one thing of what the next generations will need.

        Nothing is wrong if there is no memory for it: it may come until it is needed.
        """
        ahead, table = self._ahead, self.table
        may_move = table.old is NO_CELLS and ahead.start < 0
        if ahead.header is not None and not (may_move and self._is_nearly_full()):
            return
        with suppress(MemoryError, OSError):
            if ahead.header is None:
                ahead.header = self._allocate("header", HEADER_WORDS, np.dtype(np.uint64))
                ahead.header[:] = table.header  # its page comes with it
            elif ahead.cells is None:
                size = size_after(table.table.size, int(self.counts[IDS]))
                ahead.cells = self._allocate("table", size, np.dtype(np.uint64))
            elif not ahead.has_pages:
                get_pages(ahead.cells)
                ahead.has_pages = True
            else:
                ahead.start = first_empty(table.table)

    def _is_nearly_full(self) -> bool:
        room = capacity(self.table.table.size)
        return int(self.counts[FILLED]) * _AHEAD_DENOMINATOR >= room * _AHEAD_NUMERATOR

    def _grow_on(self, ids: IdColumn) -> bool:
        """After a batch: let go of a table that has been moved, begin to copy what is filling up, or copy it a
        little further. Whether that was more than a little."""
        table, did_more = self.table, False
        if table.old is not NO_CELLS and int(table.header[MOVED]) == table.old.size:
            self._renew({"old": NO_CELLS})
            did_more = True
        if self._copy is None:
            if not table.is_filling(self.counts):
                return did_more
            if not table.is_full(self.counts):
                if not self._replaced:  # enough for one batch
                    self._copy = table.begin_copy(self._allocate, self.counts)
                return True
        ids_bytes = int(ids.offsets[-1] - ids.offsets[0]) if isinstance(ids, StringColumn) else 0
        each = self._copied_per_item
        self._copy_on(max(len(ids) * each, _COPIED_MIN), ids_bytes * each)
        return did_more

    @property
    def _copied_per_item(self) -> int:
        """How many ids are copied for each that comes: all of them by the time that there is no room left."""
        copy, room = self._copy, self.table.room(self.counts)
        left = self.n_vertices - (0 if copy is None else copy.done)
        return max(_COPIED_PER_ITEM, 1 + math.ceil(left / max(room, 1)))

    def _copy_on(self, ids: int, ids_bytes: int) -> None:
        """Copy so much more of the ids into arrays with more room, which take over when they have all."""
        if self._copy is None:
            self._copy = self.table.begin_copy(self._allocate, self.counts)
        copy = self._copy
        copy.advance(self.n_vertices, ids, ids_bytes)
        if copy.done == self.n_vertices:
            self._renew(copy.columns())
            copy.count(self.counts)
            self._copy = None
            self._replaced.append(copy)  # it holds the arrays of when it began

    def _renew(self, arrays: Mapping[str, npt.NDArray[Any]], start: int | None = None) -> None:
        """Go on with these arrays as another generation; whoever holds the one before sees nothing newer in it."""
        table = self.table
        header = self._ahead.header
        if header is None:
            header = self._allocate("header", HEADER_WORDS, np.dtype(np.uint64))
        self._ahead.header = None
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
        start_thread(threading.Thread(target=objects.clear, name="let-go"))
    except RuntimeError:  # no more threads, or the process ends
        objects.clear()


def get_pages(array: npt.NDArray[Any]) -> None:
    """Begin to get the pages of a large array, all of which will be written soon, on a thread of its own.

    Never fails: without it pages come when they are touched.
    """
    if array.nbytes >= _PAGES_MIN:
        with suppress(RuntimeError):  # no more threads, or the process ends
            start_thread(threading.Thread(target=_get_in_pieces, args=(array,), name="get-pages"))


def _get_in_pieces(array: npt.NDArray[Any]) -> None:
    begin, end = (-(-at // PAGESIZE) * PAGESIZE for at in (array.ctypes.data, array.ctypes.data + array.nbytes))
    for at in range(begin, end - PAGESIZE, LARGE_PAGE):
        if not advise(at, min(at + LARGE_PAGE, end - PAGESIZE), POPULATE_WRITE):
            return


def _empty(allocate: Allocate, n_vertices: int, generation: int) -> tuple[Words, Words]:
    """The header and the table for at least so many ids."""
    header = allocate("header", HEADER_WORDS, np.dtype(np.uint64))
    header[:2] = np.frombuffer(os.urandom(16), np.uint64)
    header[GENERATION], header[COVERED] = generation, EVERYTHING
    return header, allocate("table", cells_for(n_vertices), np.dtype(np.uint64))


def _room(items: int) -> int:
    """The size of an array that is to hold so many items without having to grow soon."""
    return items * 3 // 2


def _room_beyond(items: int) -> int:
    """The same for an array that is copied when so many items are in it: another half of what that one had."""
    return _room(items * _COPY_DENOMINATOR // _COPY_NUMERATOR)


def _is_filling(used: int, size: int) -> bool:
    return used * _COPY_DENOMINATOR >= size * _COPY_NUMERATOR
