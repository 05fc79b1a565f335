"""The number of shortest paths from a source to every vertex, kept true under changes.

A shortest path is one with the fewest edges. The count of a vertex is the sum of those of its predecessors: the
in-neighbours one hop nearer to the source. Counts stand on hops, which a breadth-first search of our own keeps
(``bfs.py``). After a change:

1. hops: the search is brought up to date; it names the vertices whose word it touched.
2. seeds: vertices on another level than before, and those whose set of predecessors changed, by an inserted or
   deleted edge or by a predecessor that came or went.
3. recount, level by level: the count of a seed is summed anew over its in-edges; where it differs from before,
   the vertices below it are taken, too.

Nothing is ever subtracted: a sum that has saturated holds nothing that could be taken away again. The counts
are those of Brandes ("A faster algorithm for betweenness centrality", 2001); taking levels in order is what
makes one recount of each vertex enough.

Counts are float64 and exact below 2^53; there they stop. A value of 2^53 therefore says "so many or more", and
the answer marks it (``Answer.saturated``); the scalar ``saturated`` is the number of such vertices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ..gpma.edges import NO_VERTEX, Vertices
from ..partition.graph import Graph, GraphChange
from . import sspaths_kernels as kernels
from .bfs import BFS
from .program import (
    Answer,
    Column,
    ExternalId,
    Parameter,
    Program,
    Published,
    Refresh,
    Violation,
    grown,
    size_violations,
)
from .sspaths_kernels import LIMIT, UNREACHED

_HALF = np.uint64(32)
_STATE_PREFIX = "hops_"
# Recounting gives way to counting everything past this share of all arcs (and this floor): that reads each arc
# once, and at a quarter of the price, having no level to ask for.
_WORK_SHARE = 3
_WORK_FLOOR = 4096
# How many vertices a violation names.
_EVIDENCE = 5
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
    parameters: ClassVar[tuple[Parameter, ...]] = BFS.parameters
    needs_in_edges: ClassVar[bool] = True

    def __init__(self, id: str, source: tuple[ExternalId, ...]) -> None:
        super().__init__(id)
        self.sources = source
        self._hops = BFS(f"{id}.hops", source)
        self._bound = _NONE
        self._n = 0
        self._run = 0
        self._saturated = 0
        self._level = np.empty(0, np.uint32)
        self._count = np.empty(0, np.float64)
        self._stamp = np.empty(0, np.uint32)
        self._queue = np.empty(0, np.uint32)
        # First the seeds of a run, then the vertices whose count it changed.
        self._touched = np.empty(0, np.uint32)

    def bind(self, sources: Vertices) -> None:
        self._bound = np.unique(sources[sources != NO_VERTEX])
        self._hops.bind(sources)

    # -- runs -------------------------------------------------------------------------------------------

    def start(self, graph: Graph) -> Refresh:
        return self._count_all(graph, self._hops.start(graph))

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        hops = self._hops.refresh(graph, change)
        moved = hops.changed.get("word", _NONE)
        if moved is None:
            return self._count_all(graph, hops)
        before, self._n = self._n, graph.n_vertices
        self._grow(self._n)
        self._level[before : self._n] = UNREACHED
        self._count[before : self._n] = 0
        self._new_run()
        arcs, word = change.arcs, self._hops.columns()["word"]
        level, stamp, run, touched = self._level, self._stamp, self._run, self._touched
        n_seeds = kernels.seed_heads(level, arcs.deleted.keys, stamp, run, touched, 0)
        out = graph.out_rows()
        n_seeds, edges = kernels.move_levels(level, word, moved, stamp, run, out, touched, n_seeds)
        n_seeds = kernels.seed_heads(level, arcs.inserted.keys, stamp, run, touched, n_seeds)
        new = np.arange(before, self._n, dtype=np.uint32)
        changed: Vertices = new
        counted = 0
        if n_seeds:
            seeds = touched[:n_seeds]
            ordered = np.sort((level[seeds].astype(np.uint64) << _HALF) | seeds)
            in_ = graph.in_rows()
            edges_max = max(_WORK_FLOOR, graph.n_arcs // _WORK_SHARE)
            n_changed = -1
            # A seed whose count changes has its out-row read, too.
            if 2 * int(in_.degrees[seeds].sum(dtype=np.int64)) <= edges_max:
                n_changed, read, counted, saturated = kernels.recount(
                    level, self._count, stamp, run, ordered, out, in_, self._queue, touched, edges_max
                )
                edges += read
            if n_changed < 0:
                return self._count_all(graph, replace(hops, edges_read=hops.edges_read + edges, started_over=True))
            self._saturated += saturated
            other = touched[:n_changed]
            changed = np.concatenate([other[other < before], new])
        return Refresh(
            {"count": changed} if changed.size else {},
            iterations=hops.iterations,
            edges_read=hops.edges_read + edges,
            active=hops.active + counted,
        )

    def _count_all(self, graph: Graph, hops: Refresh) -> Refresh:
        """Count from scratch, on hops that are right."""
        n = self._n = graph.n_vertices
        self._grow(n)
        self._take_levels()
        level = self._level[:n]
        reached = level[level != UNREACHED]
        levels = np.zeros(int(reached.max()) + 2 if reached.size else 1, np.int64)
        edges, self._saturated = kernels.count_all(
            self._level, self._count, graph.in_rows(), n, self._queue, levels, np.zeros(n)
        )
        return Refresh(
            {"count": None},
            iterations=hops.iterations,
            edges_read=hops.edges_read + edges,
            active=max(hops.active, reached.size),
            started_over=hops.started_over,
        )

    def _take_levels(self) -> None:
        n = self._n
        self._level[:n] = self._hops.columns()["word"][:n] >> _HALF

    # -- columns and state ------------------------------------------------------------------------------

    def columns(self) -> dict[str, Column]:
        return {"count": self._count}

    def scalars(self) -> dict[str, float]:
        return {"saturated": float(self._saturated)}

    def state(self) -> dict[str, Column]:
        hops = {_STATE_PREFIX + name: column for name, column in self._hops.state().items()}
        return {"count": self._count[: self._n], **hops}

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
        self._n = 0
        self._grow(n)
        self._n = n
        self._count[:n] = count
        self._take_levels()
        self._bound = np.flatnonzero(self._level[:n] == 0).astype(np.uint32)
        self._saturated = int(np.count_nonzero(count >= LIMIT))

    def memory_bytes(self) -> int:
        held: list[Column] = [self._level, self._count, self._stamp, self._queue, self._touched]
        return sum(column.nbytes for column in held) + self._hops.memory_bytes()

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        counts = published.columns["count"][vertices]
        return Answer(counts, counts == 0, saturated=counts >= LIMIT)

    # -- audit ------------------------------------------------------------------------------------------

    def audit(self, graph: Graph) -> list[Violation]:
        """Every rule of the search and of the counts, in O(vertices + edges)."""
        if missed := size_violations(self._n, graph):
            return missed
        found, _ = self.audit_slice(graph, 0, self._n)
        return [*self._hops.audit(graph), *found, *self._audit_saturated()]

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        """Hops, parents and counts of these vertices; all slices together prove every hop and every count."""
        if missed := size_violations(self._n, graph):
            return missed, 0
        is_source = np.zeros(end - begin, bool)
        is_source[self._bound[(self._bound >= begin) & (self._bound < end)] - begin] = True
        wrong = np.zeros(end - begin, np.uint8)
        word = self._hops.columns()["word"]
        edges = kernels.audit(self._level, self._count, word, is_source, graph.in_rows(), begin, end, wrong)
        found = []
        for rule, bit, detail in _RULES if wrong.any() else ():
            vertices = np.flatnonzero(wrong & bit) + begin
            if vertices.size:
                evidence = tuple(int(v) for v in vertices[:_EVIDENCE])
                found.append(Violation(rule, f"{vertices.size} vertices: {detail}", evidence))
        return found, int(edges)

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        return self._audit_saturated(), 0

    def _audit_saturated(self) -> list[Violation]:
        saturated = np.flatnonzero(self._count[: self._n] >= LIMIT)
        if saturated.size == self._saturated:
            return []
        evidence = tuple(int(v) for v in saturated[:_EVIDENCE])
        return [Violation("saturated", f"{saturated.size} counts are saturated, not {self._saturated}", evidence)]

    # -- arrays -----------------------------------------------------------------------------------------

    def _grow(self, n_vertices: int) -> None:
        self._level = grown(self._level, n_vertices)
        self._count = grown(self._count, n_vertices)
        self._stamp = grown(self._stamp, n_vertices, 0)
        self._queue = grown(self._queue, n_vertices)
        self._touched = grown(self._touched, n_vertices)

    def _new_run(self) -> None:
        self._run += 1
        if self._run == 2**32:  # stamps are 32 bits: begin again
            self._stamp[:] = 0
            self._run = 1
