"""Which dense vertex an external id is, and which external id a vertex has.

Dense ids are given in order of first appearance, so the same updates number the vertices alike however they were
cut into batches, as long as none is given a second time; a saved state may be put into another order
(``state_of``). ``VertexIndex`` has one writer; ``VertexIndexReader`` looks ids up from other threads or, through
shared memory, from other processes, while the writer goes on (``id_kernels`` says why that is safe).

A vertex goes to another id in three steps. ``remove`` makes its id unknown, though ``external`` still tells it.
Then the caller waits until nobody refers to the vertex who looked it up before. ``free`` lets the next new id
have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..edges import MAX_VERTICES, NO_VERTEX, Keys, Vertices, distinct, pack
from ..team import ALONE, Crew
from .hash_table import CELLS_MAX, CELLS_MIN, GENERATION, MOVED_PER_ID, capacity
from .id_order import IdOrder, order_of
from .id_table import (
    PIECE_IDS,
    Allocate,
    GrowingTable,
    IdTable,
    IntTable,
    StringTable,
    arrays_of,
    strings_at,
    table_of,
)
from .ids import MAX_STRING_ID_BYTES, IdColumn, StringColumn, concatenate_ids
from .small_ids import SmallIds

Kind = Literal["int", "string"]

SAMPLED_MIN = 1 << 14
"""Of so many edges a sample tells whether most of their ends are known: then all are looked up first, on all
threads, and the ids of the rest twice."""
SAMPLED_EDGES = 128
KNOWN_SHARE_MIN = 0.875
# So many vertices are few.
_FEW = 64


def in_memory(name: str, size: int, dtype: Any) -> npt.NDArray[Any]:
    """An array in this process's own memory: the default of ``VertexIndex.create``."""
    return np.zeros(size, dtype)


class VertexIndexReader:
    """Look-ups in the arrays of a ``VertexIndex``, which may belong to another process.

    Ids that the writer added after it moved on to other arrays are unknown here, never wrong; those that it
    removed may still be known.
    """

    def __init__(self, kind: Kind, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """``arrays``: those of ``VertexIndex.arrays()``, mapped by whatever means."""
        self._table = table_of(kind, arrays)

    @property
    def generation(self) -> int:
        """The generation of the arrays."""
        return int(self._table.header[GENERATION])

    def lookup(self, ids: IdColumn, n_vertices: int) -> Vertices:
        """The dense vertex of each id (uint32[n]); ``NO_VERTEX`` where it is unknown or not below n_vertices.

        Raises:
            TypeError: the ids are not of the graph's kind.
        """
        return self._table.lookup(ids, n_vertices)

    def external(self, dense: Vertices) -> IdColumn:
        """The external id of each vertex. All must be vertices of an epoch that these arrays cover."""
        return self._table.ids(dense)


class VertexIndex:
    """The writer's side. Make one with ``create``; one thread inserts.

    ``crew``: whose threads share large look-ups and insertions; the caller's alone, until it is set.
    """

    def __init__(self, table: IdTable, allocate: Allocate, vertices_max: int) -> None:
        self._growing = GrowingTable(table, allocate)
        self._small = SmallIds()
        self.crew: Crew = ALONE
        self._allocate = allocate
        self._vertices_max = min(vertices_max, capacity(CELLS_MAX))

    @classmethod
    def create(cls, kind: Kind, allocate: Allocate = in_memory, vertices_max: int = MAX_VERTICES) -> VertexIndex:
        """An empty index.

        ``allocate(name, size, dtype)`` makes every array, all zero, so that they can lie in shared memory; what
        was allocated before stays readable for those who hold it. There is room for 15/16 of 2^32 vertices.
        """
        if not 0 < vertices_max <= MAX_VERTICES:
            raise ValueError(f"vertices_max must be 1 to {MAX_VERTICES}, not {vertices_max}")
        table: IdTable
        if kind == "int":
            table = IntTable.create(allocate, 0, generation=1)
        else:
            table = StringTable.create(allocate, 0, generation=1)
        return cls(table, allocate, vertices_max)

    @property
    def _table(self) -> IdTable:
        return self._growing.table

    @property
    def kind(self) -> str:
        """``"int"`` or ``"string"``."""
        return self._table.kind

    @property
    def n_vertices(self) -> int:
        """Dense ids are below it; some may be free."""
        return self._growing.n_vertices

    @property
    def free_vertices(self) -> Vertices:
        """The dense ids that wait for an id, in place."""
        return self._growing.free

    @property
    def room(self) -> int:
        """How many new ids are still allowed."""
        return self._vertices_max - self.n_vertices + self._growing.n_free

    @property
    def generation(self) -> int:
        """Rises whenever the arrays are replaced by larger ones."""
        return int(self._table.header[GENERATION])

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of one generation, for a reader; ``header[2]`` is the generation."""
        return arrays_of(self._table)

    def memory_bytes(self) -> int:
        """Bytes of the present arrays, room to grow included."""
        return self._growing.memory_bytes() + self._small.nbytes

    def insert(self, ids: IdColumn) -> Vertices:
        """The dense vertex of each id (uint32[n]); new ones get free vertices, then are numbered in order.

        Raises:
            OverflowError: there would be more vertices than allowed; nothing was changed.
            TypeError: the ids are not of the graph's kind.
            ValueError: a string is longer than 256 bytes.
        """
        return self._insert(ids, half=0)

    def insert_edges(self, src: IdColumn, dst: IdColumn) -> tuple[Vertices, Vertices]:
        """The dense ends of edges; new ones are numbered in the order src[0], dst[0], src[1], dst[1], ...

        Raises:
            OverflowError, TypeError, ValueError: as ``insert``.
        """
        n = len(src)
        if len(dst) != n:
            raise ValueError(f"src and dst must have one length, not {n} and {len(dst)}")
        dense = self._insert(concatenate_ids([src, dst]), half=n)
        return dense[:n], dense[n:]

    def edge_keys(
        self, src: IdColumn, dst: IdColumn, inserts: npt.NDArray[np.bool_]
    ) -> tuple[Keys, npt.NDArray[np.bool_] | None]:
        """The keys of edges (uint64[n]), and where both ends are known (bool[n]; None: everywhere).

        The ends of ``inserts`` are inserted as by ``insert_edges``, those of others looked up after all of these.

        Raises:
            OverflowError, TypeError, ValueError: as ``insert``.
        """
        n = len(src)
        if len(dst) != n or inserts.size != n:
            raise ValueError(f"src, dst and inserts must have one length, not {n}, {len(dst)} and {inserts.size}")
        if n < SAMPLED_MIN or self._knows_most(src, dst):
            keys, known, unknown = self._look_up_edges(src, dst, self.crew)
            if unknown == 0:
                return keys, None
            new = np.flatnonzero(~known)
        else:
            keys, known, new = np.empty(n, np.uint64), np.empty(n, np.bool_), np.arange(n)
        added, asked = new[inserts[new]], new[~inserts[new]]
        if added.size:
            keys[added], known[added] = pack(*self.insert_edges(src[added], dst[added])), True
        if asked.size == 0:
            return keys, None
        found = self._look_up_edges(src[asked], dst[asked], self.crew)
        keys[asked], known[asked], unknown = found
        return keys, known if unknown else None

    def remove(self, dense: Vertices) -> None:
        """Make the ids of these vertices (each once) unknown; ``external`` still tells them.

        Raises:
            ValueError: one of them has none any more.
        """
        if isinstance(self._table, IntTable):
            self._small.forget(self._table.external[dense])  # first: some may be gone where one has none
        self._growing.remove(dense)

    def free(self, dense: Vertices) -> None:
        """New ids may have these vertices, whose own were removed: nothing may be read from them until then."""
        self._growing.give_back(dense)

    def take_reused(self) -> Vertices:
        """The vertices that were free and got an id since the last call."""
        return self._growing.take_given()

    def lookup(self, ids: IdColumn, n_vertices: int | None = None) -> Vertices:
        """The dense vertex of each id (uint32[n]); ``NO_VERTEX`` where it is unknown or not below n_vertices.

        Raises:
            TypeError: the ids are not of the graph's kind.
        """
        return self._table.lookup(ids, self.n_vertices if n_vertices is None else n_vertices, self.crew)

    def external(self, dense: Vertices) -> IdColumn:
        """The external id of each vertex.

        Raises:
            IndexError: one is not a vertex.
        """
        self._check(dense)
        return self._table.ids(dense)

    def smallest(self, dense: Vertices) -> int:
        """Of these vertices (at least one) the one with the smallest external id.

        Raises:
            IndexError: one is not a vertex.
        """
        self._check(dense)
        return int(dense[self._table.smallest(dense)])

    def sort_by_external(self, dense: Vertices) -> Vertices:
        """These vertices in ascending order of their external ids: integers by value, strings by bytes."""
        ids = self.external(dense)
        return dense[ids.argsort()]

    def comparable(self, n_vertices: int) -> IdOrder:
        """What kernels compare two of the first vertices by; as with ``state``, the index may grow meanwhile."""
        state = self.state(n_vertices)
        return order_of(state["ids"]) if self.kind == "int" else order_of(None, state["places"], state["arena"])

    def state(self, n_vertices: int | None = None) -> dict[str, npt.NDArray[Any]]:
        """The external ids of the first vertices, in dense order: what ``restore`` takes (not copied).

        Those of vertices that are neither removed nor freed from now on never change, so the arrays may be read
        while the index grows; what is read of the others means nothing. Any thread may call this.
        """
        n = self.n_vertices if n_vertices is None else n_vertices
        if n > self.n_vertices:
            raise IndexError(f"there are {self.n_vertices} vertices, not {n}")
        while True:
            table = self._table
            state = table.state(n, self._growing.counts)
            if table is self._table:  # else the counts, which follow the arrays, may be those of others
                return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]], without: Vertices | None = None) -> None:
        """Hold exactly these ids, numbered as they were; the vertices ``without`` (each once) are free instead.

        Raises:
            ValueError: the state is of the other kind, or damaged.
            OverflowError: it has more vertices than allowed.
        """
        ids, dense, n = self._saved(state, without)
        if n > self._vertices_max:
            raise OverflowError(f"the state has {n} vertices; at most {self._vertices_max} are allowed")
        growing = GrowingTable(self._empty_table(n, ids), self._allocate)
        growing.load(ids, dense, n)
        if without is not None:
            growing.give_back(np.sort(without)[::-1])
        self._growing, self._small = growing, SmallIds()

    def _saved(
        self, state: Mapping[str, npt.NDArray[Any]], without: Vertices | None
    ) -> tuple[IdColumn, Vertices, int]:
        """Of a state: the ids, their vertices, and how many vertices there are."""
        expected = {"ids"} if self.kind == "int" else {"places", "arena"}
        if set(state) != expected:
            raise ValueError(
                f"the state of an index of {self.kind} ids holds {sorted(expected)}, not {sorted(state)}"
            )
        if self.kind == "int":
            numbers = np.asarray(state["ids"], np.int64)
            dense = _all_but(without, numbers.size)
            return (numbers if without is None else numbers[dense]), dense, numbers.size
        places = np.asarray(state["places"], np.uint64)
        dense = _all_but(without, places.size)
        return strings_at(places[dense], np.asarray(state["arena"], np.uint8)), dense, places.size

    def _empty_table(self, n_vertices: int, ids: IdColumn) -> IdTable:
        generation = self.generation + 1
        if isinstance(ids, StringColumn):
            return StringTable.create(self._allocate, n_vertices, generation, arena_bytes=ids.data.size)
        return IntTable.create(self._allocate, n_vertices, generation)

    def _insert(self, ids: IdColumn, half: int) -> Vertices:
        if isinstance(ids, StringColumn) and len(ids) and ids.lengths.max() > MAX_STRING_ID_BYTES:
            raise ValueError(f"a string id has at most {MAX_STRING_ID_BYTES} bytes")
        self._check_room(ids)
        out = np.empty(len(ids), np.uint32)
        self._growing.insert(ids, half, out)
        return out

    def _look_up_edges(self, src: IdColumn, dst: IdColumn, crew: Crew) -> tuple[Keys, npt.NDArray[np.bool_], int]:
        table = self._table
        if isinstance(table, StringTable):
            return table.look_up_edges(src, dst, self.n_vertices, crew)
        return self._small.look_up_edges(table, src, dst, self.n_vertices, crew)

    def _knows_most(self, src: IdColumn, dst: IdColumn) -> bool:
        some = np.arange(0, len(src), len(src) // SAMPLED_EDGES)
        *_, unknown = self._look_up_edges(src[some], dst[some], ALONE)
        return unknown <= (1 - KNOWN_SHARE_MIN) * some.size

    def _check(self, dense: Vertices) -> None:
        if not dense.size:
            return
        # Of a few a list is ready before NumPy has begun.
        last = int(dense.max()) if dense.size > _FEW else max(dense.tolist())
        if last >= self.n_vertices:
            raise IndexError(f"vertex {last} is not below {self.n_vertices}")

    def _check_room(self, ids: IdColumn) -> None:
        """Refuse a batch that would pass the limit; counting exactly only where it could."""
        if len(ids) <= self.room:
            return
        new = ids[self._table.lookup(ids, self.n_vertices) == NO_VERTEX]
        n_new = len(set(new.to_list())) if isinstance(new, StringColumn) else distinct(new).size
        if n_new > self.room:
            taken = self._vertices_max - self.room
            raise OverflowError(f"{n_new} new vertices beside {taken} would pass the {self._vertices_max} allowed")


def state_of(state: Mapping[str, npt.NDArray[Any]], chosen: Vertices) -> dict[str, npt.NDArray[Any]]:
    """The state of an index of these vertices alone (each once), numbered as they stand here."""
    numbered = "ids" if "ids" in state else "places"
    return {**state, numbered: state[numbered][chosen]}


def _all_but(without: Vertices | None, n_vertices: int) -> Vertices:
    kept = np.ones(n_vertices, bool)
    if without is not None:
        kept[without] = False
    return np.flatnonzero(kept).astype(np.uint32)


def warm_up(kind: Kind) -> None:
    """Compile every kernel, or load it from the cache."""
    index = VertexIndex.create(kind)
    for base in range(0, capacity(CELLS_MIN) + CELLS_MIN // MOVED_PER_ID + 1, 100):  # until it has grown
        numbers = np.arange(base, base + 100)
        ids = numbers if kind == "int" else StringColumn.of(map(str, numbers))
        index.edge_keys(ids, ids, np.ones(100, np.bool_))
    index.lookup(ids)
    index.lookup(ids[np.arange(PIECE_IDS + 1) % 100])
    index.sort_by_external(np.arange(100, dtype=np.uint32))
    index.smallest(np.arange(100, dtype=np.uint32))
    index.remove(np.arange(100, dtype=np.uint32))
    index.free(np.arange(100, dtype=np.uint32))
    index.insert(ids)
