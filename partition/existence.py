"""Which vertices exist, and what operations on vertices among edge updates come to.

A vertex keeps its dense id when it is deleted: the id is *dead* until an insert names it again, and whether it
then is the same vertex or another one makes no difference here, nor to programs: it is one without edges. So a
batch with operations on vertices is, for the storage, a plain batch of edges: the stored edges of a deleted
vertex are deleted first, and what the batch said of its edges before the deletion is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba as nb
import numpy as np
import numpy.typing as npt

from ..gpma.atomics import fetch_add
from ..gpma.drawing import drawn
from ..gpma.edges import (
    HALF,
    LOW,
    NO_VERTEX,
    EdgeBatch,
    Int,
    Keys,
    Op,
    Ops,
    Vertices,
    destinations,
    distinct,
    frozen,
    sources,
)
from ..gpma.intrinsics import uncounted_inner
from ..gpma.rows import RowView, live_runs
from ..gpma.splice import spliced
from ..gpma.team import ALONE, Crew, at_most, share
from ..gpma.vertex_columns import grown
from .scanning import chunks_of, largest_word, require_known

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def living(dense: Vertices, alive: Flags) -> Vertices:
    """These dense ids, with ``NO_VERTEX`` for those that are not ``alive``; a copy, where there are such.

    All are below ``alive.size``, or ``NO_VERTEX``.
    """
    if not alive.size:
        return dense
    there = alive.take(dense, mode="clip")
    if np.count_nonzero(there) == there.size:  # as nearly always
        return dense
    known = dense.copy()
    known[~there] = NO_VERTEX  # which is itself whatever stands at the end
    return known


_INSERT = np.uint8(Op.INSERT)


@dataclass(frozen=True, slots=True)
class VertexOps:
    """Operations on vertices among the edge updates of a batch, in the order in which they were read.

    ``vertices``: uint32[k]; ``ops``: uint8[k], ``Op.INSERT_VERTEX`` or ``Op.DELETE_VERTEX``; ``positions``:
    int64[k], never falling, how many edge updates of the batch stand before each.
    """

    vertices: Vertices
    ops: Ops
    positions: Positions

    def __post_init__(self) -> None:
        assert self.vertices.dtype == np.uint32 and self.ops.dtype == np.uint8
        assert self.vertices.shape == self.ops.shape == self.positions.shape

    def __len__(self) -> int:
        return int(self.ops.size)


@dataclass(frozen=True, slots=True)
class VertexChange:
    """What a batch does to vertices. All uint32, ascending, each vertex once.

    ``deleted``: do not exist after the batch, but did before or are new in it; ``revived``: known and dead
    before, alive after; ``stripped``: existed before and are deleted somewhere in the batch, also where they
    come back, so that every edge they had goes; ``absent``: how many deletions found no vertex, counting the
    last one of each; ``overridden``: int64, positions of the edge updates that a later deletion of an end
    makes void.
    """

    deleted: Vertices
    revived: Vertices
    stripped: Vertices
    absent: int
    overridden: Positions


class Existence:
    """The flag ``alive`` of every vertex. What is not a vertex yet counts as alive: it exists once it comes."""

    def __init__(self) -> None:
        self.n_dead = 0
        self._alive: Flags = np.ones(0, bool)
        self._marked: Flags = np.zeros(0, bool)  # work space: all False between calls

    def ensure_vertices(self, n_vertices: int) -> None:
        """Take memory for vertices 0 .. n_vertices - 1."""
        if n_vertices > self._alive.size:
            self._marked = grown(self._marked, n_vertices, False)
            self._alive = grown(self._alive, n_vertices, True)

    def alive(self, n_vertices: int) -> Flags:
        """bool[n_vertices], in place."""
        return self._alive[:n_vertices]

    def load(self, dead: Vertices) -> None:
        """Exactly these vertices (each once, below the number ensured) are dead."""
        self._alive[:] = True
        self._alive[dead] = False
        self.n_dead = dead.size

    def plan(
        self, batch: EdgeBatch, ops: VertexOps | None, n_before: int, n_vertices: int, crew: Crew = ALONE
    ) -> VertexChange | None:
        """What a batch does to vertices, of which ``n_before`` were known; None: nothing. Changes nothing.

        ``n_vertices``: how many there are after it. ``crew``: who looks at a large one.

        Without operations on vertices it costs a constant where no vertex is dead, and one look at the batch where
        none of those is named.

        Raises:
            ValueError: it does something, and names a vertex that is not there.
        """
        if ops is None:
            if self.n_dead == 0:
                return None
            keys, n_chunks = frozen(batch.keys), chunks_of(len(batch))
            if not _names_dead(keys, frozen(batch.ops), self._alive, n_chunks, crew):
                return None
            ops = _NO_OPS
        for named in (batch.keys, ops.vertices):
            if named.size:
                require_known(largest_word(named, crew), n_vertices)
        deletions = Deletions.of(ops)
        named, overridden = self._named(batch, deletions)
        inserting = np.flatnonzero(Op.INSERT_VERTEX.among(ops.ops))
        inserted = ops.vertices[inserting]
        inserted = inserted[inserting > deletions.last(inserted)]
        living = distinct(np.concatenate([named, inserted]))
        doomed = deletions.vertices
        dying = np.setdiff1d(doomed, living, assume_unique=True)
        existed = self._existed(dying, n_before)
        return VertexChange(
            deleted=dying[existed | (dying >= n_before)],
            revived=living[~self._alive[living] & (living < n_before)],
            stripped=doomed[self._existed(doomed, n_before)],
            absent=int(np.count_nonzero(~existed)),
            overridden=overridden,
        )

    def commit(self, change: VertexChange) -> None:
        """Make it so. Takes no memory that grows with anything but the change."""
        self._alive[change.deleted] = False
        self._alive[change.revived] = True
        self.n_dead += change.deleted.size - change.revived.size

    def memory_bytes(self) -> int:
        return self._alive.nbytes + self._marked.nbytes

    def arcs_into(self, rows: RowView, vertices: Vertices) -> Keys:
        """The arcs (keys as they stand in ``rows``) whose heads are among the vertices: reads every arc."""
        self._marked[vertices] = True
        try:
            found = np.empty(_count_into(rows, self._marked), np.uint64)
            _list_into(rows, self._marked, found)
        finally:
            self._marked[vertices] = False
        return found

    def _existed(self, vertices: Vertices, n_before: int) -> Flags:
        return self._alive[vertices] & (vertices < n_before)

    def _named(self, batch: EdgeBatch, deletions: Deletions) -> tuple[Vertices, Positions]:
        """The vertices, of those that are dead or deleted, that edge inserts name after their last deletion;
        and the positions of the edge updates that a later deletion overrides."""
        ends = sources(batch.keys), destinations(batch.keys)
        inserts = Op.INSERT.among(batch.ops)
        named, overridden = [], []
        self._marked[deletions.vertices] = True
        try:
            for end in ends:
                is_deleted = self._marked[end]
                watched = is_deleted | ~self._alive[end] if self.n_dead else is_deleted
                rows = np.flatnonzero(watched & inserts)
                named.append(end[rows][rows >= deletions.cut(end[rows])])
                rows = np.flatnonzero(is_deleted)
                overridden.append(rows[rows < deletions.cut(end[rows])])
        finally:
            self._marked[deletions.vertices] = False
        return np.concatenate(named), np.concatenate(overridden)


@dataclass(frozen=True, slots=True)
class Deletions:
    """The last deletion of each vertex that has one: ``vertices`` uint32[k] ascending, ``rows`` int64[k] where
    it stands among the operations, ``positions`` int64[k] how many edge updates stand before it."""

    vertices: Vertices
    rows: Positions
    positions: Positions

    @classmethod
    def of(cls, ops: VertexOps) -> Deletions:
        rows = np.flatnonzero(Op.DELETE_VERTEX.among(ops.ops))[::-1]
        vertices, first = np.unique(ops.vertices[rows], return_index=True)
        return cls(vertices, rows[first], ops.positions[rows[first]])

    def last(self, vertices: Vertices) -> Positions:
        """Where the last deletion of each of these stands among the operations; -1: there is none."""
        return self._find(vertices, self.rows, -1)

    def cut(self, vertices: Vertices) -> Positions:
        """How many edge updates stand before the last deletion of each of these; 0: there is none."""
        return self._find(vertices, self.positions, 0)

    def _find(self, vertices: Vertices, column: Positions, absent: int) -> Positions:
        if self.vertices.size == 0:
            return np.full(vertices.size, absent, np.int64)
        at = np.minimum(np.searchsorted(self.vertices, vertices), self.vertices.size - 1)
        return np.where(self.vertices[at] == vertices, column[at], absent)


_NO_OPS = VertexOps(np.empty(0, np.uint32), np.empty(0, np.uint8), np.empty(0, np.int64))


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _names_dead(keys: Keys, ops: Ops, alive: Flags, n_chunks: int, crew: Crew) -> bool:
    """Whether an insert names a vertex that is dead."""
    cursor, found = np.zeros(1, np.int64), np.zeros(n_chunks, np.bool_)
    share(at_most(crew, n_chunks), _look_for_dead, (keys, ops, alive, cursor, found))
    return bool(found.any())


@uncounted_inner
def _look_for_dead(thread: Int, keys: Keys, ops: Ops, alive: Flags, cursor: Positions, found: Flags) -> None:
    """Which chunks have such an insert; once there is one, others need not be looked at."""
    n, n_chunks, known = np.int64(keys.size), np.int64(found.size), np.uint64(alive.size)
    for chunk in drawn(cursor, n_chunks):
        for i in range(n * chunk // n_chunks, n * (chunk + 1) // n_chunks):
            key = keys[np.uintp(i)]
            src, dst = key >> HALF, key & LOW
            there = src < known and dst < known and ops[np.uintp(i)] == _INSERT
            if there and not (alive[np.uintp(src)] and alive[np.uintp(dst)]):
                found[np.uintp(chunk)] = True
                fetch_add(cursor, 0, n_chunks)
                return


@nb.njit(cache=True, nogil=True, error_model="numpy")
@spliced
def _count_into(rows: RowView, marked: Flags) -> int:
    keys = rows.keys
    n = 0
    for slot, stop in live_runs(rows, 0):
        for i in range(slot, stop):
            n += marked[np.uintp(keys[np.uintp(i)] & LOW)]
    return n


@nb.njit(cache=True, nogil=True, error_model="numpy")
@spliced
def _list_into(rows: RowView, marked: Flags, found: Keys) -> None:
    keys = rows.keys
    n = 0
    for slot, stop in live_runs(rows, 0):
        for i in range(slot, stop):
            if marked[np.uintp(keys[np.uintp(i)] & LOW)]:
                found[n] = keys[i]
                n += 1
