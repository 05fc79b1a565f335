"""Breadth-first search: the fewest edges from the nearest source, and a parent, kept true under changes.

State is one word per vertex, ``hops << 32 | parent``; all ones means unreached, and a source has no hops and
no parent. Hops and parent therefore always change together.

From scratch the search is level-synchronous and direction-optimising (Beamer, Asanovic, Patterson,
"Direction-Optimizing Breadth-First Search", SC 2012). After a change only dependants are touched, in the
manner of Ramalingam and Reps ("An incremental algorithm for a generalization of the shortest-path problem",
1996), and most updates are recognised as safe in O(1) (Feng et al., "RisGraph", SIGMOD 2021):

1. trim: heads of deleted parent edges, by ascending hops, adopt an in-neighbour one level up or lose their
   value; whoever loses it passes the question on to its children. Nothing else happens before this ends.
2. pull: vertices without a value take the best that their in-neighbours offer.
3. relax: inserted edges that improve their heads.
4. push: what improved is pushed on, by ascending hops, so that each vertex is pushed once.

An adopted parent is one level nearer to the source, so it never is a descendant; every parent edge leads
exactly one level down, so parents form a forest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..gpma.edges import NO_VERTEX, Vertices
from ..partition.graph import Graph, GraphChange
from . import bfs_kernels as kernels
from .bfs_kernels import SOURCE_WORD, UNREACHED, Log
from .forest_audit import vertices_without_root
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
)

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)
_ONE = np.uint64(1)

# Trimming is given up, in favour of a fresh start, past this share of all arcs (and this floor).
_TRIM_SHARE = 8
_TRIM_FLOOR = 4096
# How many vertices a violation names.
_EVIDENCE = 5


def parse_sources(value: Any) -> tuple[ExternalId, ...]:
    """One vertex id or a list of them, as a tuple without repetitions.

    Raises:
        ValueError: it is neither, is empty, or mixes integers and strings.
    """
    items = list(value) if isinstance(value, list | tuple) else [value]
    wrong = [item for item in items if isinstance(item, bool) or not isinstance(item, int | str)]
    if wrong or not items:
        raise ValueError("a vertex id (an integer or a string), or a list of at least one")
    if len({type(item) for item in items}) > 1:
        raise ValueError("ids of one kind, all integers or all strings")
    if any(isinstance(item, int) and not -(2**63) <= item < 2**63 for item in items):
        raise ValueError("integers of 64 bits, from -2^63 to 2^63 - 1")
    return tuple(dict.fromkeys(items))


class BFS(Program):
    """Fewest edges from the nearest source. Column ``word``: uint64, ``hops << 32 | parent``."""

    kind: ClassVar[str] = "bfs"
    summary: ClassVar[str] = "fewest edges from the source (or the nearest of several), and a parent on the way"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("source", "vertex to start from, or a list of them", parse_sources, required=True),
    )
    needs_in_edges: ClassVar[bool] = True
    has_parents: ClassVar[bool] = True

    def __init__(self, id: str, source: tuple[ExternalId, ...]) -> None:
        super().__init__(id)
        self.sources = source
        self._bound = np.empty(0, np.uint32)
        self._source_moved = False
        self._n = 0
        self._run = 0
        self._word = np.empty(0, np.uint64)
        self._queue = np.empty(0, np.uint32)
        self._lost = np.empty(0, np.uint32)
        self._log = Log(
            np.zeros(0, np.uint32),
            np.empty(0, np.uint32),
            np.empty(0, np.uint64),
            np.zeros(1, np.int64),
            0,
        )

    def bind(self, sources: Vertices) -> None:
        known = np.unique(sources[sources != NO_VERTEX]).astype(np.uint32)
        # A source that is one no longer would keep its word of zero hops.
        self._source_moved |= not np.isin(self._bound, known).all()
        self._bound = known

    def start(self, graph: Graph) -> Refresh:
        n = graph.n_vertices
        self._grow(n)
        self._n = n
        self._source_moved = False
        self._word[:n] = UNREACHED
        bits = np.empty((2, (n + 63) // 64), np.uint64)
        sources = self._bound[self._bound < n]
        levels, edges, reached = kernels.search(
            self._word, sources, graph.out_rows(), graph.in_rows(), n, graph.n_arcs, self._queue, bits[0], bits[1]
        )
        return Refresh({"word": None}, iterations=levels, edges_read=edges, active=reached)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        if self._source_moved:
            return self._start_over(graph, 0)
        new = np.arange(self._n, graph.n_vertices, dtype=np.uint32)
        self._grow(graph.n_vertices)
        self._word[self._n : graph.n_vertices] = UNREACHED
        self._n = graph.n_vertices
        word, deleted, inserted = self._word, change.arcs.deleted.keys, change.arcs.inserted.keys
        lost = np.empty(deleted.size, np.uint64)
        n_lost, n_better = kernels.classify(word, deleted, inserted, lost)
        sources = self._bound[self._bound < self._n]
        if n_lost == 0 and n_better == 0 and (word[sources] == SOURCE_WORD).all():
            return Refresh({"word": new} if new.size else {})
        log = self._new_log()
        edges = 0
        if n_lost:
            edges_max = max(_TRIM_FLOOR, graph.n_arcs // _TRIM_SHARE)
            lost = np.sort(lost[:n_lost])
            n_lost, edges = kernels.trim(
                word, log, lost, graph.out_rows(), graph.in_rows(), self._queue, self._lost, edges_max
            )
            if n_lost < 0:
                return self._start_over(graph, edges)
        seeds = np.empty(n_lost + inserted.size + sources.size, np.uint64)
        n_seeds = 0
        if n_lost:
            n_seeds, read = kernels.pull(word, log, self._lost[:n_lost], graph.in_rows(), seeds)
            edges += read
        n_seeds = kernels.relax(word, log, inserted, sources, seeds, n_seeds)
        _pushed, read, levels = kernels.push(word, log, np.sort(seeds[:n_seeds]), graph.out_rows(), self._queue)
        touched = log.vertices[: log.counted[0]]
        differs = (word[touched] != log.old[: touched.size]) & (touched < self._n - new.size)
        return Refresh(
            {"word": np.concatenate([touched[differs], new])},
            iterations=levels,
            edges_read=edges + read,
            active=touched.size,
        )

    def columns(self) -> dict[str, Column]:
        return {"word": self._word}

    def state(self) -> dict[str, Column]:
        return {"word": self._word[: self._n]}

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        word = state["word"]
        if word.dtype != np.uint64 or word.shape != (graph.n_vertices,):
            raise ValueError(f"saved words: {word.dtype}{word.shape}, expected uint64({graph.n_vertices},)")
        self._n = 0
        self._grow(word.size)
        self._n = word.size
        self._word[: self._n] = word

    def memory_bytes(self) -> int:
        log = self._log
        held: list[Column] = [self._word, self._queue, self._lost, log.stamp, log.vertices, log.old]
        return sum(column.nbytes for column in held)

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        hops = (published.columns["word"][vertices] >> _HALF).astype(np.uint32)
        return Answer(hops, hops == NO_VERTEX)

    @staticmethod
    def parents(published: Published, vertices: Vertices) -> Vertices:
        return published.columns["word"][vertices].astype(np.uint32)

    def audit(self, graph: Graph) -> list[Violation]:
        """Every rule of a right search, in O(vertices + edges); see semantics.md, "The audit"."""
        n = graph.n_vertices
        word = self._word[:n]
        hops = word >> _HALF
        parent = word.astype(np.uint32)
        reached = word != UNREACHED
        is_source = np.zeros(n, bool)
        is_source[self._bound[self._bound < n]] = True
        supported = np.zeros(n, bool)
        better, example = kernels.audit_edges(word, graph.out_rows(), n, supported)
        found = []
        if better:
            ends = (int(example >> _HALF), int(example & _LOW))
            found.append(Violation("improvable", f"{better} edges would improve their head", ends))
        child = reached & ~is_source
        no_parent = child & (parent >= n)
        above = hops[np.where(parent < n, parent, 0)] if n else hops
        rules = (
            ("source", "a source without zero hops or with a parent", is_source & (word != SOURCE_WORD)),
            ("half-reached", "an unreached vertex with a parent", (hops == _LOW) & reached),
            ("no-parent", "reached without a parent", no_parent),
            ("parent-edge", "the parent edge is not in the graph", child & ~no_parent & ~supported),
            ("value", "not one hop more than the parent", child & ~no_parent & (hops != above + _ONE)),
        )
        for rule, detail, broken in rules:
            _report(found, rule, detail, np.flatnonzero(broken))
        _report(found, "forest", "parents lead to no root", vertices_without_root(parent))
        return found

    def _start_over(self, graph: Graph, edges_read: int) -> Refresh:
        fresh = self.start(graph)
        return Refresh(
            fresh.changed,
            iterations=fresh.iterations,
            edges_read=fresh.edges_read + edges_read,
            active=fresh.active,
            started_over=True,
        )

    def _grow(self, n_vertices: int) -> None:
        self._word = grown(self._word, n_vertices)
        self._queue = grown(self._queue, n_vertices)
        self._lost = grown(self._lost, n_vertices)
        log = self._log
        self._log = Log(
            grown(log.stamp, n_vertices, 0),
            grown(log.vertices, n_vertices),
            grown(log.old, n_vertices),
            log.counted,
            log.run,
        )

    def _new_log(self) -> Log:
        self._run += 1
        if self._run == 2**32:  # stamps are 32 bits: begin again
            self._log.stamp[:] = 0
            self._run = 1
        self._log = self._log._replace(run=self._run)
        self._log.counted[0] = 0
        return self._log


def _report(found: list[Violation], rule: str, detail: str, vertices: npt.NDArray[Any]) -> None:
    """Add a violation if there are vertices that show it."""
    if vertices.size:
        evidence = tuple(int(v) for v in vertices[:_EVIDENCE])
        found.append(Violation(rule, f"{vertices.size} vertices: {detail}", evidence))
