"""When the dense id of a deleted vertex goes to another vertex, so that streams whose vertices come and go for
ever need no more ids than they have vertices.

Results, queues and requests name vertices by dense id, so an id may change hands only when nobody refers to it:

1. The engine published an epoch in which the vertex is dead (``IdReuse.published``). While a checkpoint is being
   written that has it alive, the engine keeps that to itself.
2. The query server has ended all requests that it had begun when it learned of that (a *grace period*). Until
   then some read an epoch before, in which the vertex is to be found under its external id.
3. No update that waits for the engine inserts the vertex: those are looked through. Its external id is then taken
   out of the vertex index, and another insert of it finds another vertex.
4. Another grace period is over: whoever looked the dense id up before is gone.
5. The id is free, and the next new vertex gets it. To everything below this is a dead vertex that came back.

It begins when dead vertices are a certain share, or there is little room for others, and goes in pieces: one
waits for its first grace period while the one before waits for its second. Nothing of it is saved: after a restart
every dead vertex is free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.edges import Keys, Op, Ops, Vertices, distinct, frozen
from ...gpma.index.vertex_index import VertexIndex
from ...gpma.vertex_columns import grown
from ...partition.existence import Flags
from ...partition.graph import GraphChange
from .dense import DenseBatch

Grace = Callable[[], bool]
"""Whether everybody has gone who was there when it began."""

DEAD_MIN, DEAD_SHARE = 4096, 32
"""Dead vertices are left alone up to this number, and up to one of so many dense ids."""
PIECE, PIECE_SHARE = 1 << 15, 4
"""The most that change hands together: this number, for which the ingest thread stops for milliseconds; of more
dead vertices one in so many, to keep up with streams of which more die meanwhile."""
LOOKED_THROUGH_PER_ID = 8
"""At most about so many waiting updates are looked through for each id."""

_SCANNED = 1 << 20
_INSERT = np.uint8(Op.INSERT)

_LIVES, _DEAD, _GIVEN, _LEFT, _ASKED = range(5)
"""What ingest knows of a dense id: it names a vertex; a deleted one (of the epoch published last); it was given to
another vertex, which waits for the engine; nobody finds it; a deleted one that is about to leave the index, unless
somebody inserts it until then."""

States = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Report:
    """After an epoch: the last item that it took, and which vertices died and came back."""

    item: int
    died: Vertices
    revived: Vertices


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An item that the engine has not published: its number, its updates, and the ids given out for it."""

    item: int
    batches: Sequence[DenseBatch]
    given: Vertices


class IdReuse:
    """``published`` and ``let_go`` are for the engine's thread, everything else for that of ingest."""

    def __init__(self, index: VertexIndex, begin_grace: Callable[[], Grace]) -> None:
        """``begin_grace``: begins a grace period of all who look vertices up outside of the engine."""
        self.reused = 0
        self._index = index
        self._begin_grace = begin_grace
        self._reports: deque[_Report] = deque()
        self._item = 0  # the engine's: the last one that it published
        self._missed = False  # the engine's: some died that were not reported
        self._waiting: deque[_Waiting] = deque()
        self._waiting_updates = 0
        self._states: States = np.zeros(0, np.uint8)
        self._n_dead = 0
        self._scanned = 0
        self._asked: Vertices = np.empty(0, np.uint32)
        self._leaving: Vertices = self._asked
        self._is_over: Grace | None = None  # the grace period that both wait for
        self._make_room()
        self._states[index.free_vertices] = _LEFT

    def published(self, item: int, change: GraphChange | None, alive: Flags, *, hold: bool) -> None:
        """An epoch is published, whose last item was this one. ``alive``: of all dense ids.

        ``hold``: something that goes on refers to vertices of an epoch before, which may have died in this one.
        """
        none = np.empty(0, np.uint32)
        died = none if change is None else change.deleted_vertices
        if hold:
            # First, since ingest may ask at any moment whether there are ids that it does not hear of yet.
            self._missed = self._missed or died.size > 0
            died = none
        elif self._missed:
            died = np.flatnonzero(~alive).astype(np.uint32)
        self._item = item
        self._reports.append(_Report(item, died, none if change is None else change.revived_vertices))
        if not hold:
            self._missed = False

    def let_go(self, alive: Flags, *, hold: bool) -> None:
        """Between two epochs: report who died while something held them; ingest may wait for just these ids."""
        if self._missed and not hold:
            self.published(self._item, None, alive, hold=False)

    def queued(self, item: int, batches: Sequence[DenseBatch]) -> None:
        """This item is about to wait for the engine; its vertices were just indexed."""
        given = self._index.take_reused()
        self._make_room()
        self._states[given] = _GIVEN
        self.reused += given.size
        self._waiting.append(_Waiting(item, batches, given))
        self._waiting_updates += sum(len(batch.edges) for batch in batches)

    @property
    def expects_ids(self) -> bool:
        """Ids are on their way back, or may be: a deletion waits for the engine, perhaps."""
        known = self._n_dead > 0 or self._asked.size > 0 or self._leaving.size > 0
        return known or bool(self._waiting) or bool(self._reports) or self._missed

    def step(self, *, eager: bool = False) -> None:
        """Do what can be done now; often, between two items. ``eager``: leave no dead vertex alone."""
        while self._reports:
            self._take(self._reports.popleft())
        if self._is_over is not None and not self._is_over():
            return
        if self._leaving.size:
            self._index.free(self._leaving)
        self._leaving = self._removed(self._asked)
        wanted = self._n_dead > (0 if eager else self._left_alone())
        self._asked = self._next_dead() if wanted else np.empty(0, np.uint32)
        self._states[self._asked] = _ASKED
        self._is_over = self._begin_grace() if self._asked.size or self._leaving.size else None

    def memory_bytes(self) -> int:
        return self._states.nbytes

    # -- inside -------------------------------------------------------------------------------------------

    def _take(self, report: _Report) -> None:
        states = self._states
        while self._waiting and self._waiting[0].item <= report.item:
            done = self._waiting.popleft()
            self._waiting_updates -= sum(len(batch.edges) for batch in done.batches)
            states[done.given] = _DEAD  # unless it is among those that came back
            self._n_dead += done.given.size
        before = states[report.revived]
        self._n_dead -= int(np.count_nonzero((before == _DEAD) | (before == _ASKED)))
        states[report.revived] = _LIVES
        died = report.died[states[report.died] == _LIVES]
        states[died] = _DEAD
        self._n_dead += died.size

    def _left_alone(self) -> int:
        """How many dead vertices are not worth the work."""
        wanted = max(
            DEAD_MIN, self._index.n_vertices // DEAD_SHARE, self._waiting_updates // LOOKED_THROUGH_PER_ID
        )
        return min(wanted, self._index.room // 2)

    def _removed(self, asked: Vertices) -> Vertices:
        """Take those of these vertices that nobody inserts out of the index; which they are."""
        states = self._states
        if asked.size == 0:
            return asked
        for waiting in self._waiting:
            for batch in waiting.batches:
                _spare(frozen(batch.edges.keys), frozen(batch.edges.ops), states)
                if batch.vertices is not None:
                    named = batch.vertices.vertices[Op.INSERT_VERTEX.among(batch.vertices.ops)]
                    states[named[states[named] == _ASKED]] = _DEAD
        leaving: Vertices = asked[states[asked] == _ASKED]
        self._index.remove(leaving)
        states[leaving] = _LEFT
        self._n_dead -= leaving.size
        return leaving

    def _next_dead(self) -> Vertices:
        """Some of the dead vertices; others the next time, all of them in turn."""
        found: list[npt.NDArray[np.int64]] = []
        n_found, n_vertices = 0, self._index.n_vertices
        most = max(PIECE, self._n_dead // PIECE_SHARE)
        for _ in range(n_vertices // _SCANNED + 2):
            if self._scanned >= n_vertices:
                self._scanned = 0
            end = min(self._scanned + _SCANNED, n_vertices)
            here = np.flatnonzero(self._states[self._scanned : end] == _DEAD)[: most - n_found] + self._scanned
            found.append(here)
            n_found += here.size
            self._scanned = end if n_found < most else int(here[-1]) + 1
            if n_found == most:
                break
        return distinct(np.concatenate(found)).astype(np.uint32)

    def _make_room(self) -> None:
        self._states = grown(self._states, self._index.n_vertices, 0)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _spare(keys: Keys, ops: Ops, states: States) -> None:
    """Whom an edge insert names stays with its id."""
    for i in range(keys.size):
        if ops[i] == _INSERT:
            src, dst = np.int64(keys[i] >> np.uint64(32)), np.int64(keys[i] & np.uint64(0xFFFF_FFFF))
            if states[src] == _ASKED:
                states[src] = _DEAD
            if states[dst] == _ASKED:
                states[dst] = _DEAD


def warm_up() -> None:
    """Compile the kernel, or load it from the cache."""
    _spare(frozen(np.zeros(1, np.uint64)), frozen(np.ones(1, np.uint8)), np.zeros(1, np.uint8))
