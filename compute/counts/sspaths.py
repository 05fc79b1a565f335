"""The number of shortest paths from a source to every vertex, kept true under changes.

A shortest path is one with the fewest edges. The count of a vertex is the sum of those of its predecessors: the
in-neighbours one hop nearer to the source. Counts stand on hops, which a breadth-first search of our own keeps
(``paths/bfs.py``). After a change (``recount.py``):

1. hops: the search is brought up to date, and names the vertices whose word it touched. Those that are on
   another level than before, the **moved** ones, are seeds: they will be counted by their in-edges.
2. seeds: the head of a deleted or inserted arc loses or gains the count of its tail, where that is a predecessor;
   by counts and levels of before.
3. leave: what moves farther away takes its count back from its successors.
4. recount, level by level: the count of a seed is that of before and what it gained. Where this is another, its
   successors gain the difference, and have their turn on the next level; those of a moved vertex gain all of it.

So only out-edges of what changed are read, and in-edges of what moved. Moving costs one reading of a row:

- What moves nearer has nothing to take back. A successor of before, over an arc that is still there, is nearer now
  by as much at least, so it has moved, too, and is counted by its in-edges.
- What moves farther has nothing to add. A successor of now, over an arc that was there before, was at most one
  level below it then, so it has moved, too. Heads of new arcs from there are counted by their in-edges.

Counts are those of Brandes ("A faster algorithm for betweenness centrality", 2001), as float64: exact below 2^53;
there they stop. A value of 2^53 therefore says "so many or more", and the answer marks it (``Answer.saturated``);
the scalar ``saturated`` is the number of such vertices.

So a count is the sum of the predecessors' counts, or 2^53 if that is less; all are whole numbers. Below 2^53 it is
the sum itself, and with the differences of those counts, added in int64, that of now, exactly. A count that has
stopped is not the sum, and nothing is ever taken away from it: that vertex is counted by its in-edges, read up to
the limit, and so is one whose differences add up to 2^53 in size on the way, long before int64 overflows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...gpma.edges import HALF, HIGH, NO_VERTEX, Vertices, distinct
from ...partition.graph import Graph, GraphChange
from ..paths.bfs import BFS
from ..program import (
    EVIDENCE,
    Answer,
    Column,
    ExternalId,
    Parameter,
    Program,
    Published,
    Refresh,
    Violation,
    grown,
    marked_violations,
    size_violations,
)
from . import kernels
from . import recount as steps
from .kernels import LIMIT, UNREACHED, Counts

_STATE_PREFIX = "hops_"
# Recounting gives way to counting everything, before it has begun, at this share of all arcs (and this floor). Of
# its cost the edges of moved vertices are known, which are read whole, and the changed arcs, each worth so many
# edges of a row; the rest is about what counting everything reads at most. The two cost the same at a share of 0.4
# (RMAT scale 18, one thread).
_WORK_SHARE = 0.3
_WORK_FLOOR = 4096
_ARC_EDGES = 4
_NONE = np.empty(0, np.uint32)

_RULES = (
    ("source", kernels.WRONG_SOURCE, "a source without zero hops or with a parent"),
    ("value", kernels.WRONG_HOPS, "hops are not one more than the least of the in-neighbours'"),
    ("parent-edge", kernels.WRONG_PARENT, "the parent is no in-neighbour one hop nearer to the source"),
    ("count", kernels.WRONG_COUNT, "the count is not the sum of the predecessors'"),
    ("level", kernels.WRONG_WORD, "counted on another level than the search says"),
)


class SSPaths(Program):
    """Shortest paths from the nearest source. Column ``count``: float64, 0 where there is no path.

    Scalar ``saturated``: the vertices with 2^53 paths or more. Of several sources each counts as one path to
    itself.
    """

    kind: ClassVar[str] = "sspaths"
    summary: ClassVar[str] = "number of shortest (fewest-edge) paths from the source, exact below 2^53"
    family: ClassVar[str] = "recount"
    value = np.float64
    value_scalars: ClassVar[tuple[str, ...] | None] = ()
    parameters: ClassVar[tuple[Parameter, ...]] = BFS.parameters
    needs_in_edges: ClassVar[bool] = True

    def __init__(self, id: str, source: tuple[ExternalId, ...]) -> None:
        super().__init__(id)
        self.sources = source
        self._hops = BFS(f"{id}.hops", source)
        self._bound = _NONE
        self._n = 0
        self._saturated = 0
        self._counts = kernels.no_counts()

    def bind(self, sources: Vertices) -> None:
        self._bound = distinct(sources[sources != NO_VERTEX])
        self._hops.bind(sources)

    # -- runs -------------------------------------------------------------------------------------------

    def start(self, graph: Graph) -> Refresh:
        return self._count_all(graph, self._hops.start(graph))

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        hops = self._hops.refresh(graph, change)
        moved = hops.changed.get("word", _NONE)
        if moved is None:
            return self._count_all(graph, hops)
        before, n = self._n, graph.n_vertices
        if n > before:
            self._add_vertices(n)
        counts, word, arcs = self._counts, self._hops.columns()["word"], change.arcs
        deleted, inserted = arcs.deleted.keys, arcs.inserted.keys
        n_moved, work = 0, _ARC_EDGES * (deleted.size + inserted.size)
        if moved.size:
            n_moved, edges = steps.seed_moved(
                counts, word, moved, graph.out_rows().degrees, graph.in_rows().degrees
            )
            work += edges
        if work > max(_WORK_FLOOR, int(_WORK_SHARE * graph.n_arcs)):
            return self._count_all(graph, replace(hops, started_over=True))
        n_seeds = steps.seed_heads(counts, word, deleted, inserted, n_moved)
        edges = counted = n_changed = 0
        if n_seeds:
            n_changed, edges, counted = self._recount(graph, n_moved, n_seeds)
        changed = counts.changed[:n_changed]
        if n > before:
            changed = np.concatenate([changed[changed < before], np.arange(before, n, dtype=np.uint32)])
        return Refresh(
            {"count": changed.copy()} if changed.size else {},
            iterations=hops.iterations,
            edges_read=hops.edges_read + edges,
            active=hops.active + counted,
        )

    def _recount(self, graph: Graph, n_moved: int, n_seeds: int) -> tuple[int, int, int]:
        """Count anew what these seeds, in the queue, lead to: (changed vertices, edges read, counted vertices)."""
        counts, word = self._counts, self._hops.columns()["word"]
        out, in_, crew = graph.out_rows(), graph.in_rows(), graph.crew
        left = 0
        if n_moved:
            n_seeds, left = steps.leave(counts, out, n_moved, n_seeds, crew)
        seeds = counts.queue[:n_seeds]
        by_level = word[seeds]
        by_level &= HIGH
        by_level |= seeds
        by_level.sort()
        n_changed, edges, counted, saturated = steps.recount(counts, word, by_level, out, in_, self._n, crew)
        self._saturated += saturated
        return n_changed, left + edges, counted

    def _count_all(self, graph: Graph, hops: Refresh) -> Refresh:
        """Count from scratch, on hops that are right."""
        self._add_vertices(graph.n_vertices)
        counts, n = self._counts, self._n
        counts.delta[:n] = 0
        counts.role[:n] = steps.LEADS
        edges, counted, self._saturated = kernels.count_all(
            counts,
            counts.delta.view(np.float64),
            graph.out_rows(),
            graph.in_rows(),
            n,
            self._take_levels(graph),
            graph.crew,
        )
        return Refresh(
            {"count": None},
            iterations=hops.iterations,
            edges_read=hops.edges_read + edges,
            active=max(hops.active, counted),
            started_over=hops.started_over,
        )

    def _take_levels(self, graph: Graph) -> int:
        """Take over the levels of the search: how many there are."""
        return int(kernels.take_levels(self._counts.level, self._hops.columns()["word"], self._n, graph.crew))

    # -- what another processor needs that keeps the counts (compute/device/counts.py) ------------------------

    @property
    def hops(self) -> BFS:
        """The search, which that processor keeps, too."""
        return self._hops

    @property
    def levels(self) -> Vertices:
        """uint32[room]: those on which the counts stand, UNREACHED for none."""
        return self._counts.level

    @property
    def counts(self) -> npt.NDArray[np.float64]:
        """float64[room]; written there."""
        return self._counts.paths

    def take_levels(self, graph: Graph, vertices: Vertices) -> None:
        """Take over the levels of these vertices from the search, and make room for the graph's."""
        self._add_vertices(graph.n_vertices)
        self._counts.level[vertices] = self._hops.columns()["word"][vertices] >> HALF

    def count_saturated(self, n: int) -> None:
        """So many more counts are at the limit."""
        self._saturated += n

    def take_all(self, graph: Graph, counts: npt.NDArray[np.float64], saturated: int) -> None:
        """Take over all counts, and all levels from the search; so many counts are at the limit."""
        self._add_vertices(graph.n_vertices)
        self._take_levels(graph)
        self._counts.paths[: self._n] = counts
        self._saturated = saturated

    # -- columns and state ------------------------------------------------------------------------------

    def columns(self) -> dict[str, Column]:
        return {"count": self._counts.paths}

    def scalars(self) -> dict[str, float]:
        return {"saturated": float(self._saturated)}

    def state(self) -> dict[str, Column]:
        hops = {_STATE_PREFIX + name: column for name, column in self._hops.state().items()}
        return {"count": self._counts.paths[: self._n], **hops}

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        count, n = state["count"], graph.n_vertices
        if count.dtype != np.float64 or count.shape != (n,):
            raise ValueError(f"saved counts: {count.dtype}{count.shape}, expected float64({n},)")
        hops = {
            name.removeprefix(_STATE_PREFIX): column
            for name, column in state.items()
            if name.startswith(_STATE_PREFIX)
        }
        self._hops.restore(hops, graph)
        self._add_vertices(n)
        self._counts.paths[:n] = count
        self._take_levels(graph)
        self._counts.delta[:n] = 0
        self._counts.role[:n] = steps.LEADS
        self._bound = np.flatnonzero(self._counts.level[:n] == 0).astype(np.uint32)
        self._saturated = int(np.count_nonzero(count >= LIMIT))

    def memory_bytes(self) -> int:
        return sum(column.nbytes for column in self._counts) + self._hops.memory_bytes()

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        counts = published.columns["count"][vertices]
        return Answer(counts, counts == 0, saturated=counts >= LIMIT)

    # -- audit ------------------------------------------------------------------------------------------

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        """Hops, parents and counts of these vertices; all slices together prove every hop and every count."""
        if missed := size_violations(self._n, graph):
            return missed, 0
        is_source = np.zeros(end - begin, bool)
        is_source[self._bound[(self._bound >= begin) & (self._bound < end)] - begin] = True
        wrong = np.zeros(end - begin, np.uint8)
        word, rows = self._hops.columns()["word"], graph.rows_between("in", begin, end)
        edges = kernels.audit(self._counts.level, self._counts.paths, word, is_source, rows, begin, end, wrong)
        return marked_violations(_RULES, wrong, begin), int(edges)

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        found, edges = self._hops.audit_whole(graph)
        saturated = np.flatnonzero(self._counts.paths[: self._n] >= LIMIT)
        if saturated.size != self._saturated:
            problem = f"{saturated.size} counts are saturated, not {self._saturated}"
            found = [*found, Violation("saturated", problem, tuple(int(v) for v in saturated[:EVIDENCE]))]
        return found, edges

    # -- arrays -----------------------------------------------------------------------------------------

    def _add_vertices(self, n_vertices: int) -> None:
        """Make room for so many vertices; those that are new have no path."""
        if n_vertices > self._counts.level.size:
            held = self._counts
            level = grown(held.level, n_vertices)
            self._counts = Counts(
                level,
                grown(held.paths, level.size),
                grown(held.delta, level.size, 0),
                grown(held.role, level.size, 0),
                *(grown(listed, level.size) for listed in held[4:]),
            )
        self._counts.level[self._n : n_vertices] = UNREACHED
        self._counts.paths[self._n : n_vertices] = 0
        self._n = n_vertices
