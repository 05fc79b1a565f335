"""Other libraries on the same graph: NetworKit (from scratch and dynamic), SciPy and igraph.

Each takes the edges once, and then answers a kind of program with the milliseconds that its algorithm took;
loading, and changing the graph before a dynamic update, are not counted. A kind that a library does not have is
not in its ``kinds``. PageRank is asked for the accuracy that graphtide promises: the loosest tolerance of
NetworKit that reaches it is looked for first.

Every class is made, and its methods are called, in a process of its own (``isolated.py``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import igraph
import networkit
import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

UNDIRECTED = ("triangles", "lcc", "kcore")
"""Kinds of programs that are asked of the graph without directions."""

DAMPING = 0.85
TOLERANCE_EXPONENT_MAX = 13
BY_PROCESSOR_TIME = "BENCHMARK_BY_PROCESSOR_TIME"


@dataclass(frozen=True)
class Edges:
    """A directed graph: distinct edges between vertices 0 .. n - 1, ascending by src, then dst.

    Of an undirected graph both directions are there.
    """

    n: int
    src: Ints
    dst: Ints
    weights: npt.NDArray[np.float32]

    def matrix(self, *, weighted: bool = False) -> Any:
        """As SciPy's CSR; zeros are edges of weight zero."""
        values = self.weights.astype(np.float64) if weighted else np.ones(self.src.size)
        offsets = np.zeros(self.n + 1, np.int64)
        np.cumsum(np.bincount(self.src, minlength=self.n), out=offsets[1:])
        return sparse.csr_matrix((values, self.dst.astype(np.int32), offsets), shape=(self.n, self.n))


@dataclass(frozen=True)
class Question:
    """What a program is asked: its kind, the vertex it starts from, the relative error it may have."""

    kind: str
    root: int
    tolerance: float = 1e-3


def clock() -> float:
    """Seconds: of this process's processor time where ``BY_PROCESSOR_TIME`` is in the environment, else as they
    pass."""
    return time.process_time() if BY_PROCESSOR_TIME in os.environ else time.perf_counter()


def milliseconds(work: Callable[[], Any]) -> float:
    started = clock()
    work()
    return (clock() - started) * 1e3


def simple(edges: Edges) -> tuple[Ints, Ints]:
    """The ends of each pair of vertices with an edge between them, without directions and loops."""
    keys = np.minimum(edges.src, edges.dst) * edges.n + np.maximum(edges.src, edges.dst)
    ends = np.unique(keys[edges.src != edges.dst])
    return ends // edges.n, ends % edges.n


def simple_igraph(edges: Edges) -> Any:
    """igraph's graph of these pairs."""
    return igraph.Graph(n=edges.n, edges=np.stack(simple(edges), axis=1))


def clustering(edges: Edges) -> Floats:
    """LDBC's local clustering coefficient of each vertex, by products of matrices: for small graphs."""
    low, high = simple(edges)
    shape = edges.n, edges.n
    linked = sparse.csr_matrix((np.ones(low.size), (low, high)), shape=shape)
    linked += linked.T
    proper = edges.src != edges.dst
    arcs = sparse.csr_matrix((np.ones(int(proper.sum())), (edges.src[proper], edges.dst[proper])), shape=shape)
    between = (linked @ (arcs + arcs.T)).multiply(linked).sum(axis=1).A1 / 2
    degrees = np.bincount(np.concatenate([low, high]), minlength=edges.n).astype(np.float64)
    return np.divide(between, degrees * (degrees - 1), out=np.zeros(edges.n), where=degrees > 1)


def propagated_labels(edges: Edges, ids: Ints, rounds: int) -> Ints:
    """The label of each vertex after so many rounds of LDBC's label propagation, by sorting all votes in each.

    ``ids``: of the vertices; of several labels that are as frequent the smallest is taken. In a directed graph
    in- and out-neighbours vote; where both directions of all edges are there that changes nothing.
    """
    rank = np.empty(edges.n, np.int64)
    rank[ids.argsort()] = np.arange(edges.n)
    proper = edges.src != edges.dst
    voter = np.concatenate([edges.src[proper], edges.dst[proper]])
    hearer = np.concatenate([edges.dst[proper], edges.src[proper]])
    label = rank
    for _ in range(rounds):
        votes, counts = np.unique(hearer * edges.n + label[voter], return_counts=True)
        vertex, voted = np.divmod(votes, edges.n)
        order = np.lexsort((-voted, counts, vertex))
        label = label.copy()
        label[vertex[order]] = voted[order]  # the last one of each stays
    return np.asarray(ids.argsort()[label])


def exact_pagerank(edges: Edges) -> Floats:
    """PageRank to nine digits, by power iteration."""
    return _Links(edges).rank(1e-9)[0]


class _Links:
    """What power iteration needs of a graph."""

    def __init__(self, edges: Edges) -> None:
        self.n = edges.n
        self.transposed = edges.matrix().T.tocsr()
        out = np.bincount(edges.src, minlength=edges.n)
        self.share = np.divide(1.0, out, out=np.zeros(edges.n), where=out > 0)
        self.dangling = out == 0

    def rank(self, tolerance: float) -> tuple[Floats, float]:
        """Ranks within a relative error of ``tolerance`` at every vertex, and the milliseconds it took."""
        rank = np.full(self.n, 1.0 / self.n)
        started = clock()
        while True:
            spread = self.transposed @ (rank * self.share) + rank[self.dangling].sum() / self.n
            new = (1 - DAMPING) / self.n + DAMPING * spread
            change = float(np.max(np.abs(new - rank) / new))
            rank = new
            if change * DAMPING / (1 - DAMPING) <= tolerance:
                return rank, (clock() - started) * 1e3


class SciPy:
    """scipy.sparse.csgraph, and power iteration over its matrix."""

    name = "SciPy"
    kinds = ("bfs", "sssp", "components", "pagerank")

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self._matrix = edges.matrix()

    @cached_property
    def _links(self) -> _Links:
        return _Links(self._edges)

    @cached_property
    def _weighted(self) -> Any:
        return self._edges.matrix(weighted=True)

    def prepare(self, question: Question) -> None:
        """Make what a run needs of the graph, which is not counted."""
        if question.kind == "pagerank":
            self._links  # noqa: B018
        elif question.kind == "sssp":
            self._weighted  # noqa: B018

    def run(self, question: Question) -> float:
        if question.kind == "pagerank":
            return self._links.rank(question.tolerance)[1]
        if question.kind == "bfs":
            return milliseconds(lambda: csgraph.breadth_first_order(self._matrix, question.root))
        if question.kind == "components":
            return milliseconds(lambda: csgraph.connected_components(self._matrix, connection="weak"))
        weighted = self._weighted
        return milliseconds(lambda: csgraph.dijkstra(weighted, indices=question.root))


class Igraph:
    """igraph; its answers become Python lists, which is part of what a call costs."""

    name = "igraph"
    kinds = ("bfs", "sssp", "components", "pagerank", "ppr", "triangles", "lcc", "kcore")

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self._graph = igraph.Graph(n=edges.n, edges=np.stack([edges.src, edges.dst], axis=1), directed=True)
        self._weights = edges.weights

    @cached_property
    def _simple(self) -> Any:
        return simple_igraph(self._edges)

    def prepare(self, question: Question) -> None:
        """Make what a run needs of the graph, which is not counted."""
        if question.kind in UNDIRECTED:
            self._simple  # noqa: B018

    def run(self, question: Question) -> float:
        graph, root = self._graph, question.root
        calls: dict[str, Callable[[], Any]] = {
            "bfs": lambda: graph.distances(source=[root]),
            "sssp": lambda: graph.distances(source=[root], weights=self._weights),
            "components": lambda: graph.connected_components(mode="weak"),
            "pagerank": lambda: graph.pagerank(damping=DAMPING),
            "ppr": lambda: graph.personalized_pagerank(damping=DAMPING, reset_vertices=root),
        }
        if question.kind in UNDIRECTED:
            without_directions = self._simple
            # Of each vertex, which is to count its triangles; on the graph without directions for both.
            calls["triangles"] = calls["lcc"] = lambda: without_directions.transitivity_local_undirected(
                mode="zero"
            )
            calls["kcore"] = lambda: without_directions.coreness()
        return milliseconds(calls[question.kind])


class NetworKit:
    """NetworKit on as many threads as it is given."""

    name = "NetworKit"
    kinds = ("bfs", "sssp", "sspaths", "components", "pagerank", "triangles", "lcc", "kcore")

    def __init__(self, edges: Edges, threads: int) -> None:
        networkit.setNumberOfThreads(threads)
        self._edges = edges
        self._graph = _loaded(edges, weighted=False)
        self._rank_tolerances: dict[float, float] = {}

    @cached_property
    def _weighted(self) -> Any:
        return _loaded(self._edges, weighted=True)

    @cached_property
    def _simple(self) -> Any:
        src, dst = simple(self._edges)
        ends = np.ones(src.size), (src.astype(np.uint64), dst.astype(np.uint64))
        return networkit.GraphFromCoo(ends, n=self._edges.n, weighted=False, directed=False)

    def prepare(self, question: Question) -> None:
        """Make what a run needs of the graph, which is not counted."""
        if question.kind in UNDIRECTED:
            self._simple  # noqa: B018
        elif question.kind == "sssp":
            self._weighted  # noqa: B018

    def run(self, question: Question) -> float:
        return milliseconds(self._algorithm(question).run)

    def _algorithm(self, question: Question) -> Any:
        if question.kind == "pagerank":
            return self._pagerank(self._rank_tolerances[question.tolerance])
        if question.kind == "components":
            return networkit.components.WeaklyConnectedComponents(self._graph)
        if question.kind in ("triangles", "lcc"):  # on the graph without directions for both
            return networkit.centrality.LocalClusteringCoefficient(self._simple, True)
        if question.kind == "kcore":
            return networkit.centrality.CoreDecomposition(self._simple)
        if question.kind == "sssp":
            return networkit.distance.Dijkstra(self._weighted, question.root, False)
        return networkit.distance.BFS(self._graph, question.root, question.kind == "sspaths")

    def _pagerank(self, tolerance: float) -> Any:
        sinks = networkit.centrality.SinkHandling.DistributeSinks
        return networkit.centrality.PageRank(self._graph, DAMPING, tolerance, distributeSinks=sinks)

    def find_rank_tolerance(self, error: float, exact: Floats) -> float:
        """Find the loosest tolerance, by powers of ten, that keeps every vertex within this relative error.

        It bounds the change of all ranks together; the search begins where an even distribution would end it.
        """
        exponent = round(-np.log10(error / np.sqrt(self._edges.n)))
        good = self._keeps(exponent, error, exact)
        if good:
            while self._keeps(exponent - 1, error, exact):
                exponent -= 1
        while not good and exponent < TOLERANCE_EXPONENT_MAX:
            exponent += 1
            good = self._keeps(exponent, error, exact)
        self._rank_tolerances[error] = 10.0**-exponent
        return self._rank_tolerances[error]

    def _keeps(self, exponent: int, error: float, exact: Floats) -> bool:
        algorithm = self._pagerank(10.0**-exponent)
        algorithm.run()
        scores = np.array(algorithm.scores())
        return bool(np.max(np.abs(scores / scores.sum() - exact) / exact) <= error)


def _loaded(edges: Edges, *, weighted: bool) -> Any:
    values = edges.weights.astype(np.float64) if weighted else np.ones(edges.src.size)
    ends = (edges.src.astype(np.uint64), edges.dst.astype(np.uint64))
    return networkit.GraphFromCoo((values, ends), n=edges.n, weighted=weighted, directed=True)


class DynamicNetworKit:
    """A dynamic algorithm of NetworKit on a graph of its own, run once, then fed with updates."""

    kinds = ("bfs", "sssp", "sspaths", "components")

    def __init__(self, edges: Edges, question: Question, threads: int) -> None:
        """``edges.n`` must have room for the vertices that updates will bring."""
        networkit.setNumberOfThreads(threads)
        self._graph = graph = _loaded(edges, weighted=question.kind == "sssp")
        self._algorithm = {
            "bfs": lambda: networkit.distance.DynBFS(graph, question.root),
            "sspaths": lambda: networkit.distance.DynBFS(graph, question.root),  # counts them, too
            "sssp": lambda: networkit.distance.DynDijkstra(graph, question.root),
            "components": lambda: networkit.components.DynWeaklyConnectedComponents(graph),
        }[question.kind]()
        self._algorithm.run()

    def update(self, src: Ints, dst: Ints, inserts: npt.NDArray[np.bool_], weights: Any) -> float:
        """Change the graph, then the milliseconds in which the algorithm follows. Weights only of new edges."""
        graph, event = self._graph, networkit.dynamics.GraphEvent
        events = []
        for u, v, insert, weight in zip(
            src.tolist(), dst.tolist(), inserts.tolist(), weights.tolist(), strict=True
        ):
            if insert == graph.hasEdge(u, v):
                continue
            if insert:
                graph.addEdge(u, v, weight if graph.isWeighted() else 1.0)
                events.append(event(event.EDGE_ADDITION, u, v, weight))
            else:
                graph.removeEdge(u, v)
                events.append(event(event.EDGE_REMOVAL, u, v, 1.0))
        return milliseconds(lambda: self._algorithm.updateBatch(events))
