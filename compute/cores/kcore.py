"""The core of every vertex, kept true under changes by an order of all vertices.

Two counts a vertex prove every core by looking at its own links. ``high`` >= core: vertices of at least that
core have that many links among each other, so no core is too large. ``after`` <= core: in any set with more
links inside, the vertex that is first in order would have too many behind it, so no core is too small.
``sweep.py`` keeps both.

One thread takes changes. That is cheap beside what other programs do, and a batch where it is not starts over,
by all threads (``peel.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ...gpma.edges import NO_VERTEX, Vertices, destinations, sources
from ...gpma.memory import Memory
from ...partition.graph import Graph, GraphChange
from ..links import Links, all_entries, changed_links
from ..ordering import clear, no_order, relinked, with_room
from ..program import (
    Answer,
    Column,
    Program,
    Published,
    Refresh,
    Violation,
    grown,
    marked_violations,
    require_saved,
    size_violations,
)
from . import peel as peeling
from . import sweep
from .peel import Cores, Reader

# A change of more links than this share of all starts over: from there on a start is cheaper. So does one that has
# read more than this share of the entries of all rows, which takes up to half as long as a start; neither where it
# comes to so few. Both are for one thread. More threads make a start shorter, but for what one of them does, and
# no change: with them, these shares are as much smaller.
_LINK_SHARE = 0.005
_LINKS_FLOOR = 256
_READ_SHARE = 0.2
_READ_FLOOR = 1 << 14
_BY_ONE_THREAD = 0.2
# Within a change, a level that has read so much is given up where it, and all above, are computed sooner; if those
# have more than this share of the entries of all rows, a start is better, which all threads take part in.
_LEVEL_FLOOR = 1 << 12
_ABOVE_SHARE = 0.5
_NO_END = 1 << 62
# Of the entries of all rows, room for so many links of rows that a change has read: about as many as half of all
# rows have to vertices whose cores are not smaller. What finds no room is read again.
_KEPT_SHARE = 0.25
_KEPT_FLOOR = 1 << 12

_RULES = (
    ("high", peeling.WRONG_HIGH, "another number of links to the same core and above"),
    ("after", peeling.WRONG_AFTER, "another number of links to what comes later in order"),
    ("too-large", peeling.TOO_LARGE, "fewer links to the same core and above than the core says"),
    ("too-small", peeling.TOO_SMALL, "more links to what comes later in order than the core says"),
    ("order", peeling.WRONG_ORDER, "the order of the vertices of one core is broken here"),
)


class KCore(Program):
    """The largest k for which a vertex is in a set of vertices with k links each into the set. Column ``core``:
    uint32.

    Directions, loops and a second arc between two vertices make no difference. Scalars ``degeneracy``: the largest
    core, and ``main_core_size``: how many vertices have it.
    """

    kind: ClassVar[str] = "kcore"
    summary: ClassVar[str] = "core number: the largest k with a set around it in which each has k neighbours"
    family: ClassVar[str] = "peel"
    value = np.uint32
    needs_in_edges: ClassVar[bool] = True
    value_scalars: ClassVar[tuple[str, ...] | None] = ()
    nested: ClassVar[bool] = True

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._n = self._n_dead = 0
        self._degeneracy = 0
        none = np.empty(0, np.uint32)
        self._cores = Cores(none, none, none)
        self._order = no_order()
        self._scratch = sweep.no_scratch()
        # When it was asked whether there is memory for a start, and whether there was.
        self._asked, self._has_memory = -math.inf, True
        # Room for a row: two lists of vertices, and their arcs.
        self._room = np.empty(0, np.uint32), np.empty(0, np.uint32), np.empty(0, np.uint8)

    # -- runs -------------------------------------------------------------------------------------------

    def start(self, graph: Graph) -> Refresh:
        Memory().require(_bytes_to_start(graph))
        n = graph.n_vertices
        self._grow(graph)
        self._empty()
        self._make_room(graph, np.arange(n, dtype=np.uint32))
        entries, most = all_entries(graph), self._room[0].size
        rows = graph.out_rows(), graph.in_rows(), graph.directed
        peeling.peel(self._cores, self._order, *rows, n, most, graph.crew)
        self._degeneracy = int(self._cores.core[:n].max(initial=0))
        return Refresh({"core": None}, iterations=1, edges_read=entries, active=n)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        before = self._n
        self._grow(graph)
        sweep.add_vertices(self._order, before, self._n)
        links = changed_links(graph, change).made_or_ended()
        changed, read, visited = np.empty(0, np.uint32), 0, 0
        # Loops and second arcs are no links, but they lengthen rows too.
        inserted = change.arcs.inserted.keys
        self._make_room(graph, np.concatenate([sources(inserted), destinations(inserted)]), links.keys.size // 2)
        if links.keys.size:
            counts = self._scratch.counts
            start = _share_of_a_start(graph.crew.threads)
            read_max = max(_READ_FLOOR, int(_READ_SHARE * start * all_entries(graph)))
            if links.keys.size > 2 * max(_LINKS_FLOOR, _LINK_SHARE * start * all_entries(graph) / 2):
                if Memory().allows(_bytes_to_start(graph)):
                    return replace(self.start(graph), started_over=True)
                # There is no room for a start to give up for.
                read_max = _NO_END
            elif not self._may_start_over(graph):
                read_max = _NO_END
            if not self._take(graph, links, read_max):
                fresh = self.start(graph)
                return replace(fresh, edges_read=int(counts[sweep.N_READ]) + fresh.edges_read, started_over=True)
            read, visited = int(counts[sweep.N_READ]), int(counts[sweep.N_VISITED])
            changed = self._changed(self._scratch.logged[: counts[sweep.N_LOGGED]], before)
        changed = np.concatenate([changed, np.arange(before, self._n, dtype=np.uint32)])
        return Refresh(
            {"core": changed} if changed.size else {},
            iterations=int(links.keys.size > 0),
            edges_read=read,
            active=visited,
        )

    def _may_start_over(self, graph: Graph) -> bool:
        """Whether a start would find memory. The system is asked once a second, which takes as long as a small
        change."""
        now = time.monotonic()
        if now >= self._asked + 1.0:
            self._asked, self._has_memory = now, Memory().allows(_bytes_to_start(graph))
        return self._has_memory

    def _take(self, graph: Graph, links: Links, read_max: int) -> bool:
        """Take the changed links; whether that was cheap enough. Otherwise nothing of it is of use."""
        state = self._cores, self._order, self._scratch
        reader, counts = self._reader(graph), self._scratch.counts
        counts[:] = 0
        n_ended = int(np.count_nonzero(links.after == 0))
        n_new = links.keys.size - n_ended
        rises_first = n_new > n_ended
        level_floor = _LEVEL_FLOOR if read_max < _NO_END else _NO_END
        for rises in (rises_first, not rises_first):
            is_first = rises == rises_first
            if rises and n_new:
                overlay = sweep.WITH_ENDED if is_first and n_ended else sweep.AS_IT_IS
                level = sweep.rise(*state, reader, links, overlay, read_max, level_floor, self._degeneracy)
                if level != sweep.DONE:
                    # Where more is to come, no more than a change may read; about half of these rows are kept.
                    most = int(_ABOVE_SHARE * all_entries(graph))
                    if is_first and n_ended:
                        most = min(most, 2 * (read_max - int(counts[sweep.N_READ])))
                    if not self._compute_from(level, graph, reader, links, overlay, most):
                        return False
            elif not rises and n_ended:
                overlay = sweep.WITHOUT_NEW if is_first and n_new else sweep.AS_IT_IS
                if not sweep.drop(*state, reader, links, overlay, read_max):
                    return False
        sweep.finish(*state)
        return True

    def _compute_from(
        self, level: int, graph: Graph, reader: Reader, links: Links, overlay: int, most: int
    ) -> bool:
        """Compute all cores from this level on anew; false: that would read more entries than ``most``."""
        top = max(level, self._degeneracy)
        entries = int(sweep.entries_above(self._order, reader, level, top, most))
        if entries > most:
            return False
        entries += links.keys.size
        Memory().require(_bytes_for(entries, int(self._order.size[level : top + 1].sum())))
        sweep.compute_from(
            self._cores, self._order, self._scratch, reader, links, overlay, level, top, entries, graph.crew
        )
        return True

    def warm_up(self, graph: Graph) -> None:
        """Compile what a small graph has no need of."""
        self.start(graph)
        none = np.empty(0, np.uint64)
        links = Links(none, np.empty(0, np.uint8), np.empty(0, np.uint8))
        self._compute_from(self._degeneracy, graph, self._reader(graph), links, sweep.AS_IT_IS, graph.n_arcs)
        sweep.finish(self._cores, self._order, self._scratch)

    def _changed(self, logged: Vertices, before: int) -> Vertices:
        """Those of before with another core, ascending; the largest core is known from then on."""
        core, size = self._cores.core, self._order.size
        self._degeneracy = max(self._degeneracy, int(core[logged].max(initial=0)))
        while self._degeneracy and not size[self._degeneracy]:
            self._degeneracy -= 1
        return np.sort(logged[(core[logged] != self._scratch.was[logged]) & (logged < before)])

    def _reader(self, graph: Graph) -> Reader:
        return Reader(graph.out_rows(), graph.in_rows(), graph.directed, *self._room)

    # -- columns and state ------------------------------------------------------------------------------

    def columns(self) -> dict[str, Column]:
        return {"core": self._cores.core}

    def scalars(self) -> dict[str, float]:
        size = int(self._order.size[self._degeneracy]) if self._n else 0
        dead = 0 if self._degeneracy else self._n_dead
        return {"degeneracy": float(self._degeneracy), "main_core_size": float(size - dead)}

    def state(self) -> dict[str, Column]:
        return {name: column[: self._n] for name, column in self._columns.items()}

    @property
    def _columns(self) -> dict[str, Column]:
        """What is saved, by name."""
        return {**self._cores._asdict(), "label": self._order.label}

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        n = graph.n_vertices
        require_saved(state, self._columns, n)
        if n and int(state["core"].max()) >= n:
            raise ValueError(f"saved core: {int(state['core'].max())}, with {n} vertices")
        self._grow(graph)
        self._empty()
        for name, column in self._cores._asdict().items():
            column[:n] = state[name]
        self._order.label[:n] = state["label"]
        if not relinked(self._order, self._cores.core[:n]):
            raise ValueError("saved labels: two vertices of one core have the same")
        self._degeneracy = int(self._cores.core[:n].max(initial=0))
        self._make_room(graph, np.arange(n, dtype=np.uint32))

    def memory_bytes(self) -> int:
        held = (*self._cores, *self._order, *self._scratch, *self._room)
        return sum(column.nbytes for column in held if isinstance(column, np.ndarray))

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        values = published.columns["core"][vertices]
        return Answer(values, np.zeros(values.size, bool))

    # -- arrays -----------------------------------------------------------------------------------------

    def _grow(self, graph: Graph) -> None:
        """Have an entry for each vertex; new ones have no links, and are in no list yet."""
        self._n, self._n_dead = graph.n_vertices, graph.n_vertices - graph.n_alive
        if self._n > self._cores.core.size:
            core, after, high = self._cores
            core = grown(core, self._n, 0)
            size = core.size
            self._cores = Cores(core, grown(after, size, 0), grown(high, size, 0))
            # One may rise above all cores that there are.
            self._order = with_room(self._order, size, size + 1)
            self._scratch = sweep.with_room(self._scratch, size)
        links = max(_KEPT_FLOOR, int(_KEPT_SHARE * all_entries(graph)))
        if links > self._scratch.links.size:
            self._scratch = self._scratch._replace(links=grown(self._scratch.links, links))

    def _empty(self) -> None:
        """No vertex is in any list, and none has links."""
        for column in self._cores:
            column[:] = 0
        self._scratch.role[:] = 0
        self._scratch.extra[:] = 0
        clear(self._order)

    def _make_room(self, graph: Graph, vertices: Vertices, more: int = 0) -> None:
        """Have room for the row of each of these vertices, as for those of all others, with so many links more."""
        most = more + int(graph.out_rows().degrees[vertices].max(initial=0))
        if graph.directed:
            most += int(graph.in_rows().degrees[vertices].max(initial=0))
        if most > self._room[0].size:
            tails, row, arcs = self._room
            self._room = grown(tails, most), grown(row, most), grown(arcs, most)

    # -- audit ------------------------------------------------------------------------------------------

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        """Both counts, both rules and the order of these vertices; all slices together prove every core."""
        if missed := size_violations(self._n, graph):
            return missed, 0
        self._make_room(graph, np.arange(begin, end, dtype=np.uint32))
        wrong = np.zeros(end - begin, np.uint8)
        edges = peeling.audit(self._cores, self._order, self._reader(graph), self._n, begin, end, wrong)
        return marked_violations(_RULES, wrong, begin), int(edges)

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        """How many vertices each core has, which of them none, and which is the largest."""
        core, size = self._cores.core[: self._n], self._order.size
        cores, members = np.unique(core, return_counts=True)
        held = np.flatnonzero(size)
        ends = np.minimum(self._order.first, self._order.last)[size == 0]
        if np.array_equal(cores, held) and np.array_equal(members, size[held]) and (ends == NO_VERTEX).all():
            if self._degeneracy == int(core.max(initial=0)):
                return [], 0
            problem = f"the largest core is {core.max(initial=0)}, not {self._degeneracy}"
            return [Violation("degeneracy", problem)], 0
        problem = f"{cores.size} cores have vertices, and lists of {held.size} are kept otherwise"
        return [Violation("sizes", problem)], 0


def _share_of_a_start(threads: int) -> float:
    """How long a start takes with so many threads, one of them taking 1."""
    return _BY_ONE_THREAD + (1 - _BY_ONE_THREAD) / threads


def _bytes_to_start(graph: Graph) -> int:
    """What a start needs beside what is kept."""
    return _bytes_for(all_entries(graph), graph.n_vertices)


def _bytes_for(entries: int, vertices: int) -> int:
    """What computing so many vertices needs: all links, and of each vertex about seven words."""
    return 4 * entries + 56 * vertices
