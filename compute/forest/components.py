"""Weakly connected components, named by their smallest external id, kept true under changes.

State is a rooted spanning forest (``forest*.py``) with a dense handle per tree. A batch is taken in two
steps. Insertions first: an edge between two trees hangs the smaller on the larger. Then deletions: deleted
links of the forest are cut, all at once, and the pieces search for replacements in turn; a piece that is
exhausted becomes a component of its own, the last one keeps the handle and is never read to the end. The
search by turns is the known way to keep one deletion from costing the giant component; it is cheap where
replacements are near or pieces are small.

In a directed graph (u, v) and (v, u) are two supports of one link: it is cut when both are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...gpma.edges import NO_VERTEX, Vertices, distinct, pack
from ...gpma.rows import RowView
from ...gpma.team import Crew
from ...gpma.written import Written
from ...partition.graph import Graph, GraphChange
from ..hopeless import Hopeless
from ..pieces import pieces_of
from ..program import (
    EVIDENCE,
    Answer,
    Column,
    ExternalId,
    ExternalOrder,
    Program,
    Published,
    Refresh,
    Violation,
    grown,
    require_saved,
    size_violations,
)
from . import cut as cutting
from . import forest as kernels
from . import taken
from .cut import Pieces, Search
from .external_order import SortedVertices
from .forest import Changes, Forest
from .members import list_free, name_all, relink
from .refresh import HELD, Held, Room, cut_links, list_changed, take_in
from .span import new_reach, span
from .taken import Told, add_own, depths, differing, take, take_all

# A change that takes more edges and steps than this share of what a fresh start reads gives way to one; up to so
# many never. (Each costs ten times what it costs a start, which goes through memory in order on all threads.)
_WORK_SHARE = 12
_WORK_FLOOR = 1 << 14
# Trees larger than this are named without sorting their members.
_SORTED_MAX = 4096
# Passes over all vertices, in search of one large tree's label, that take as long as sorting all vertices.
_PASSES_PER_SORT = 8

# So many cuts are sorted by insertion, and have work space that is kept.
_CUTS = 32
# Work space for what is not safe of so many updates is kept; pages of it that are never written take no memory.
_ROOM = 1 << 16

_SLICE_RULES = (
    ("handle", kernels.WRONG_HANDLE, "a handle that was never given out"),
    ("split-edge", kernels.SPLIT_EDGE, "an edge joins different handles"),
    ("link", kernels.WRONG_LINK, "the link to the parent is no edge, or joins different handles"),
    ("forest", kernels.WRONG_LEVEL, "the parent's level is not below its own: parents may lead to no root"),
    ("list", kernels.WRONG_LIST, "the list of the component's members is broken here"),
    ("representative", kernels.WRONG_NAME, "the component is named by no member"),
)


class Components(Program):
    """The component of every vertex.

    Columns: ``handle`` uint32[vertices], the component's dense handle; by handle, ``representative``
    (uint32, the dense vertex whose external id is the label; ``NO_VERTEX`` for a free handle) and ``size``
    (uint32, 0 for a free handle). Scalar ``components``: how many there are. A deleted vertex has no edges, and
    so a handle to itself, which is not counted.
    """

    kind: ClassVar[str] = "components"
    summary: ClassVar[str] = "weakly connected component, labelled by the smallest external id in it"
    family: ClassVar[str] = "forest"
    value = ExternalId
    needs_in_edges: ClassVar[bool] = True
    needs_order: ClassVar[bool] = True
    value_scalars: ClassVar[tuple[str, ...] | None] = ()

    def __init__(self, id: str, order: ExternalOrder) -> None:
        """``order`` compares vertices by external id (the vertex index)."""
        super().__init__(id)
        self._order = order
        self._sorted = SortedVertices(order)
        self._n = 0
        self._n_dead = 0
        self._run = 0
        self._passes = 0
        # What the last start took, in edges of rows that are looked for.
        self._start_edges: int | None = None
        # By joins and cuts.
        self._hopeless = Hopeless()
        empty = [np.empty(0, np.uint32) for _ in range(7)]
        self._place = empty[0]  # of free handles in their list, where the forest is computed elsewhere
        self._forest = Forest._make([*empty, np.empty(0, np.int64), np.zeros(2, np.int64)])
        self._changes = Changes._make([*empty, np.zeros(2, np.int64), 0])
        self._search = Search._make([np.empty(0, np.uint64), *empty[:4], np.zeros(4, np.int64)])
        self._cursor = np.zeros(1, np.int64)
        self._room = _new_room(_ROOM)
        self._pieces = _new_pieces(_CUTS)
        # All that as kernels take it, and the threads with which it is written there; None: it is to be written.
        self._held = Written(HELD)
        self._crew: Crew | None = None

    # -- runs -------------------------------------------------------------------------------------------

    def start(self, graph: Graph) -> Refresh:
        n = graph.n_vertices
        self._grow(n)
        self._n, self._n_dead = n, n - graph.n_alive
        self._sorted = SortedVertices(self._order)  # a program that stood still has not heard who was renamed
        out, in_, both = _rows(graph)
        reach = new_reach(n, graph.crew.threads, self._search.members, self._search.queue_next)
        edges, self._start_edges = span(self._forest, n, graph.n_arcs, out, in_, both, reach, graph.crew)
        self._name_all(graph)
        everything = dict.fromkeys(("handle", "representative", "size"))
        return Refresh(everything, iterations=1, edges_read=edges, active=n)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        before, n = self._n, graph.n_vertices
        self._n, self._n_dead = n, n - graph.n_alive
        self._grow(n)
        if change.revived_vertices.size:
            self._sorted.renamed(change.revived_vertices)
        n_inserted, _, n_deleted, _ = change.report.totals
        n_updates = n_inserted + n_deleted
        room = self._room
        if n_updates > _ROOM:
            room = self._room = _new_room(n_updates)
            self._crew = None
        self._new_run(n_deleted)
        if self._crew is not graph.crew:
            self._hold(graph.crew)
        read = graph.n_arcs if self._start_edges is None else self._start_edges
        work_max = max(_WORK_FLOOR, (read + n) // _WORK_SHARE)
        n_joining, n_links, n_candidates, steps, n_cuts = take_in(
            self._held.words,
            *graph.row_words(),
            int(graph.directed),
            self._run,
            before,
            n,
            change.report.changed(),
            pieces_of(max(n_inserted, n_deleted)),
            self._hopeless.from_size,
            work_max,
        )
        if n_updates > _ROOM:  # the large one is given back at once, and not at the next run
            self._room = _new_room(_ROOM)
            self._hold(graph.crew)
        if n_joining + n_links == 0 and n == before:
            return Refresh({})
        if n_joining + n_links >= self._hopeless.from_size and self._hopeless.is_one(n_joining + n_links):
            return self._start_over(graph, 0)
        iterations = bool(n_joining) + bool(n_links)
        if n_candidates + n_cuts == 0 and n == before:  # links were cut, and every one has another in its place
            return Refresh({}, iterations, int(self._search.counts[cutting.N_EDGES]), steps)
        is_done = steps <= work_max
        if is_done and n_candidates:
            self._name(self._search.members[:n_candidates])
        if is_done and n_cuts:
            is_done = self._settle(graph, room, n_cuts, work_max - steps)
        if not is_done:
            self._hopeless.gave_up(n_joining + n_links)
            return self._start_over(graph, steps)
        edges, more_steps, *_ = self._search.counts.tolist()
        return Refresh(self._changed(before), iterations, edges, steps + more_steps)

    def _start_over(self, graph: Graph, steps: int) -> Refresh:
        """Start, after so many steps of joining and what ``settle`` has counted."""
        fresh, counts = self.start(graph), self._search.counts
        edges = fresh.edges_read + int(counts[cutting.N_EDGES])
        active = fresh.active + steps + int(counts[cutting.N_STEPS])
        return Refresh(fresh.changed, iterations=1, edges_read=edges, active=active, started_over=True)

    def _settle(self, graph: Graph, room: Room, n_cuts: int, work_max: int) -> bool:
        """Cut these links, the first in the room, and find what replaces them; False: it would be too much."""
        children, above = room.children[:n_cuts], room.above[:n_cuts]
        if graph.directed and (room.left[:n_cuts] == cutting.UNSEEN).any():
            unseen = np.flatnonzero(room.left[:n_cuts] == cutting.UNSEEN)
            there = self._has_link(graph, children[unseen], above[unseen])
            cut = np.delete(np.arange(n_cuts), unseen[there])  # the others have a second support
            children, above = children[cut], above[cut]
            n_cuts = children.size
        if n_cuts > _CUTS:
            by_level = self._forest.level[children].argsort()[::-1]
            children, above = children[by_level], above[by_level]
            self._pieces = _new_pieces(n_cuts)
            self._hold(graph.crew)
        run = self._run
        self._run += n_cuts + 1  # whatever fails from here on, no other run may use these stamps
        settled: bool = cut_links(
            self._held.words, *graph.row_words(), int(graph.directed), run, children, above, work_max
        )
        pieces, search = self._pieces, self._search
        if n_cuts > _CUTS:
            self._pieces = _new_pieces(_CUTS)
            self._hold(graph.crew)
        if settled:
            self._name(search.members[: search.counts[cutting.N_MEMBERS]])
            for k in range(search.counts[cutting.N_ORPHANS]):
                self._name_orphan(int(pieces.orphans[k]), int(pieces.survivors[k]), int(pieces.leavers[k]))
        return settled

    @staticmethod
    def _has_link(graph: Graph, one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether there is an edge between these vertices, either way."""
        there: npt.NDArray[np.bool_] = graph.has_edge(np.concatenate([pack(one, other), pack(other, one)]))
        return there[: one.size] | there[one.size :]

    def _changed(self, before: int) -> dict[str, Vertices | None]:
        """What differs from before the run, and everything that is new."""
        search = self._search
        found = list_changed(self._held.words, before, self._n)
        lists = search.queue_next, search.members, search.rest
        names = "handle", "representative", "size"
        return {name: list[:n].copy() for name, list, n in zip(names, lists, found, strict=True) if n}

    def require_publishable(self, changed: Mapping[str, Vertices | None], n: int) -> None:
        """Its columns, and what is said to have changed, are its kernels' own; of a subclass nobody knows."""
        if type(self) is not Components:
            super().require_publishable(changed, n)

    # -- what was computed elsewhere --------------------------------------------------------------------

    def forest_of(self, graph: Graph) -> Told:
        """The whole forest as it is, which belongs to the graph, for another to go on with.

        That one tells then what it makes of it, by ``take`` and ``take_all``.
        """
        n = graph.n_vertices
        self._place = grown(self._place, n)
        forest = self._forest
        list_free(forest, n, self._place, graph.crew)
        vertices = np.arange(n, dtype=np.uint32)
        return Told(vertices, forest.parent[:n], forest.handle[:n], depths(forest, n))

    def differing(self, nodes: npt.NDArray[np.uint32], crew: Crew) -> Told:
        """What ``take`` is to be told, where all nodes of the graph are at hand (``taken.differing``)."""
        return differing(self._forest, self._n, nodes, crew)

    def take_all(self, graph: Graph, nodes: taken.Pieces, members: taken.Pieces) -> dict[str, Vertices | None]:
        """Take over the forest of a fresh start (``taken.take_all``); what changed."""
        n = graph.n_vertices
        self._grow(n)
        self._place = grown(self._place, n)
        self._n, self._n_dead = n, n - graph.n_alive
        self._sorted = SortedVertices(self._order)
        take_all(self._forest, nodes, members, self._place, graph.crew)
        self._name_all(graph)
        return dict.fromkeys(("handle", "representative", "size"))

    def take(self, graph: Graph, change: GraphChange, told: Told) -> dict[str, Vertices | None]:
        """Take over what a change made of some vertices, each once; what changed."""
        before, self._n = self._n, graph.n_vertices
        self._n_dead = self._n - graph.n_alive
        self._grow(self._n)
        self._place = grown(self._place, self._n)
        self._sorted.renamed(change.revived_vertices)
        self._new_run(0)
        if self._crew is not graph.crew:
            self._hold(graph.crew)
        forest, changes, n = self._forest, self._changes._replace(run=self._run), told.vertices.size
        changes.counts[:] = 0
        if self._n > before:
            add_own(forest, changes, self._place, before, self._n)
        candidates, orphans = np.empty(3 * n, np.uint32), np.empty((n, 2), np.uint32)
        n_candidates, n_orphans = take(forest, changes, self._place, before, told, candidates, orphans)
        self._name(candidates[:n_candidates])
        for h, leaver in orphans[:n_orphans].tolist():
            self._name_orphan(h, int(forest.representative[h]), leaver)
        return self._changed(before)

    # -- labels -----------------------------------------------------------------------------------------

    def _name(self, candidates: Vertices) -> None:
        """Name the representatives of the candidates' trees; each tree's true one is among them."""
        if candidates.size:
            forest = self._forest
            ordered = self._order.sort_by_external(candidates)
            kernels.name_representatives(forest.handle, forest.representative, ordered)

    def _name_all(self, graph: Graph) -> None:
        """Name every tree's representative, as after a fresh start."""
        name_all(self._forest, self._n, self._order.comparable(self._n), graph.crew)

    def _name_orphan(self, h: int, member: int, leaver: int) -> None:
        """Find the representative of tree h after ``leaver``, which was it.

        ``member`` is a member now, and the smallest of those that are new."""
        forest = self._forest
        size = int(forest.size[h])
        if size <= _SORTED_MAX // 16 or size * size <= self._n:
            members = np.empty(size, np.uint32)
            kernels.list_members(forest, member, members)
            forest.representative[h] = self._order.smallest(members)
            return
        if self._passes < _PASSES_PER_SORT and self._sorted.must_sort(self._n):
            self._passes += 1
            members = np.flatnonzero(forest.handle[: self._n] == h).astype(np.uint32)
            forest.representative[h] = self._order.smallest(members)
            return
        # Whatever is left of it has a larger external id than the one that went.
        self._passes = 0
        ordered = self._sorted.prepare(self._n)
        begin = self._sorted.position(leaver)
        first = kernels.first_of_handle(forest, ordered, begin, h)
        tail = np.flatnonzero(forest.handle[ordered.size : self._n] == h).astype(np.uint32)
        loose = self._sorted.loose()
        here = np.array([member, first] if first >= 0 else [member], np.uint32)
        candidates = np.concatenate([tail + np.uint32(ordered.size), loose[forest.handle[loose] == h], here])
        forest.representative[h] = self._order.smallest(candidates)

    # -- columns and state ------------------------------------------------------------------------------

    def columns(self) -> dict[str, Column]:
        forest = self._forest
        return {"handle": forest.handle, "representative": forest.representative, "size": forest.size}

    def scalars(self) -> dict[str, float]:
        counts = self._forest.counts
        return {"components": float(counts[kernels.N_USED] - counts[kernels.N_FREE] - self._n_dead)}

    def state(self) -> dict[str, Column]:
        forest, n = self._forest, self._n
        return {
            "parent": forest.parent[:n],
            "handle": forest.handle[:n],
            "representative": forest.representative[:n],
        }

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        n = graph.n_vertices
        require_saved(state, self.state(), n)
        handle, parent = state["handle"], state["parent"]
        if n and (int(handle.max()) >= n or ((parent >= n) & (parent != NO_VERTEX)).any()):
            raise ValueError("saved handles or parents point outside the graph")
        named = state["representative"][handle]
        if (named >= n).any() or not np.array_equal(handle[named], handle):
            raise ValueError("saved representatives are no members of what they represent")
        self._grow(n)
        self._n, self._n_dead = n, n - graph.n_alive
        forest = self._forest
        forest.parent[:n] = state["parent"]
        forest.handle[:n] = state["handle"]
        forest.representative[:n] = state["representative"]
        relink(forest, n, graph.crew)
        list_free(forest, int(handle.max()) + 1 if n else 0, np.empty(0, np.uint32), graph.crew)
        if not kernels.relevel(forest, n):
            raise ValueError("saved parents form no forest")

    def memory_bytes(self) -> int:
        held: list[Column] = [*self._forest, *self._changes[:-1], *self._search, self._place]
        return sum(column.nbytes for column in held) + self._sorted.memory_bytes()

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        handles = published.columns["handle"][vertices]
        labels = published.columns["representative"][handles]
        return Answer(labels, np.zeros(labels.size, bool), vertex_valued=True)

    @staticmethod
    def touched(changed: Mapping[str, Vertices | None], published: Published) -> Vertices | None:
        """Those with another handle, and all members of trees with another label: a look at every handle."""
        none = np.empty(0, np.uint32)
        moved, labelled = changed.get("handle", none), changed.get("representative", none)
        if moved is None or labelled is None:
            return None
        if not labelled.size:
            return moved
        relabelled = np.zeros(published.n_vertices, bool)
        relabelled[labelled[labelled < published.n_vertices]] = True
        members = np.flatnonzero(relabelled[published.columns["handle"]])
        return np.concatenate([moved, members.astype(np.uint32)])

    # -- audit ------------------------------------------------------------------------------------------

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        """What the edges and entries of these vertices tell; that trees have one root each is for the whole."""
        if missed := size_violations(self._n, graph):
            return missed, 0
        n, forest = graph.n_vertices, self._forest
        out, in_ = (graph.rows_between(direction, begin, end) for direction in ("out", "in"))
        wrong = np.zeros(end - begin, np.uint8)
        edges = kernels.audit_slice(forest, n, out, in_, graph.directed, begin, end, wrong)
        found: list[Violation] = []
        for rule, bit, detail in _SLICE_RULES if wrong.any() else ():
            _report(found, rule, detail, np.flatnonzero(wrong & bit) + begin)
        if not found:
            vertices = np.arange(begin, end, dtype=np.uint32)
            named = forest.representative[forest.handle[begin:end]]
            wrong_name = ~self._in_order(named, vertices)
            _report(found, "representative", "an external id below that of the component's", vertices[wrong_name])
        return found, int(edges)

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        """That every handle has one tree with one root, and that sizes, lists and free handles are right."""
        if missed := size_violations(self._n, graph):
            return missed, 0
        n, forest = graph.n_vertices, self._forest
        parent = forest.parent[:n]
        used = int(forest.counts[kernels.N_USED])
        beyond = np.flatnonzero(forest.handle[:n] >= used) if used <= n else np.arange(n)
        found: list[Violation] = []
        _report(found, "handle", "a handle that was never given out", beyond)
        if not found:
            found.extend(self._audit_handles(n, used, parent == NO_VERTEX))
        return found, 0

    def _in_order(self, first: Vertices, second: Vertices) -> npt.NDArray[np.bool_]:
        """Whether the external id of first[i] is not above that of second[i]."""
        vertices = distinct(np.concatenate([first, second]))
        rank = np.empty(vertices.size, np.int64)
        rank[np.searchsorted(vertices, self._order.sort_by_external(vertices))] = np.arange(vertices.size)
        ordered: npt.NDArray[np.bool_]
        ordered = rank[np.searchsorted(vertices, first)] <= rank[np.searchsorted(vertices, second)]
        return ordered

    def _audit_handles(self, n: int, used: int, root: npt.NDArray[np.bool_]) -> list[Violation]:
        """The tables by handle; evidence are the vertices that represent the handles."""
        found: list[Violation] = []
        forest = self._forest
        handle, size = forest.handle[:n], forest.size[:used]
        live = np.bincount(handle, minlength=used)
        roots = np.bincount(handle[root], minlength=used)
        free = np.sort(forest.free[: forest.counts[kernels.N_FREE]])
        named = forest.representative[:used]
        _report(found, "one-root", "of handles without exactly one root", named[(live > 0) & (roots != 1)])
        _report(found, "size", "of handles with a wrong size", named[live != size])
        if not np.array_equal(free, np.flatnonzero(live == 0)) or (named[free] != NO_VERTEX).any():
            found.append(Violation("free", "the free handles are not those without members and name"))
        broken = kernels.audit_lists(forest, n, np.zeros(n, bool))
        if broken:
            found.append(Violation("list", f"{broken} handles whose list is not their members"))
        return found

    # -- arrays -----------------------------------------------------------------------------------------

    def _grow(self, n: int) -> None:
        if n <= self._forest.parent.size:
            return
        self._crew = None
        parent = grown(self._forest.parent, n)
        n = parent.size
        # What free handles hold, and stamps that no run bears.
        none = int(NO_VERTEX)
        forest = self._forest._replace(**_grown(self._forest, n, {"size": 0, "representative": none}))
        stamps = {"vertex_stamp": 0, "handle_stamp": 0}
        self._changes = self._changes._replace(**_grown(self._changes, n, stamps))
        self._search = self._search._replace(**_grown(self._search, n, {"mark": 0, "rest_stamp": 0}))
        # Last: it tells how large all columns are, also after a call that ran out of memory.
        self._forest = forest._replace(parent=parent)

    def _new_run(self, cuts_max: int) -> None:
        """Begin a run with stamps that nothing bears, and two more than ``cuts_max`` of them."""
        self._run += 1
        if self._run + cuts_max + 1 >= 2**32:  # stamps are 32 bits: begin again
            stamps = (self._changes.vertex_stamp, self._changes.handle_stamp, self._search.rest_stamp)
            for stamp in stamps:
                stamp[:] = 0
            self._search.mark[:] = 0
            self._run = 1

    def _hold(self, crew: Crew) -> None:
        """Write down what is held for kernels, which go on with these threads."""
        self._crew = None  # if this fails, it is to be written before the next run
        self._held.write(self._record(crew))
        self._crew = crew

    def _record(self, crew: Crew) -> Held:
        return Held(self._forest, self._changes, self._search, self._pieces, self._cursor, self._room, crew)


def _new_room(n_updates: int) -> Room:
    return Room(
        np.empty(n_updates, np.uint64),
        np.empty(n_updates, np.int64),
        np.empty(n_updates, np.int64),
        np.empty(n_updates, np.uint8),
    )


def _new_pieces(n_cuts: int) -> Pieces:
    return Pieces(*np.empty((len(Pieces._fields), 2 * n_cuts), np.int64))


def _rows(graph: Graph) -> tuple[RowView, RowView, bool]:
    """Out-rows, in-rows, and whether both must be read to see all neighbours."""
    return graph.out_rows(), graph.in_rows(), graph.directed


def _grown(columns: Forest | Changes | Search, n: int, fills: Mapping[str, int]) -> dict[str, Any]:
    """The columns of a state, each with room for n entries."""
    fields = [name for name in columns._fields if name not in ("counts", "run")]
    return {name: grown(getattr(columns, name), n, fills.get(name)) for name in fields}


def _report(found: list[Violation], rule: str, detail: str, where: npt.NDArray[Any]) -> None:
    """Add a violation if there are vertices (or handles) that show it."""
    if where.size:
        evidence = tuple(int(v) for v in where[:EVIDENCE])
        found.append(Violation(rule, f"{where.size}: {detail}", evidence))
