"""Other libraries on the same graph: NetworKit (from scratch and dynamic), SciPy and igraph.

Each takes the edges once, and then answers a kind of program with the milliseconds that its algorithm took;
loading, and changing the graph before a dynamic update, are not counted. A kind that a library does not have is
not in its ``kinds``. PageRank is asked for the accuracy that graphtide promises: the loosest tolerance of
NetworKit that reaches it is looked for first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import igraph
import networkit
import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DAMPING = 0.85


@dataclass(frozen=True)
class Edges:
    """A directed graph: distinct edges between vertices 0 .. n - 1."""

    n: int
    src: Ints
    dst: Ints
    weights: npt.NDArray[np.float32]

    def matrix(self, *, weighted: bool = False) -> Any:
        """As SciPy's CSR."""
        values = self.weights.astype(np.float64) if weighted else np.ones(self.src.size)
        return sparse.csr_matrix((values, (self.src, self.dst)), shape=(self.n, self.n))


@dataclass(frozen=True)
class Question:
    """What a program is asked: its kind, the vertex it starts from, the relative error it may have."""

    kind: str
    root: int
    tolerance: float = 1e-3


def milliseconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def exact_pagerank(edges: Edges) -> Floats:
    """PageRank to the last digits but three, by power iteration."""
    rank, _ = _power_iteration(edges, 1e-13)
    return rank


def _power_iteration(edges: Edges, tolerance: float) -> tuple[Floats, float]:
    """Ranks within a relative error of ``tolerance`` at every vertex, and the milliseconds of the iteration."""
    transposed = edges.matrix().T.tocsr()
    out = np.bincount(edges.src, minlength=edges.n)
    share = np.divide(1.0, out, out=np.zeros(edges.n), where=out > 0)
    rank = np.full(edges.n, 1.0 / edges.n)
    started = time.perf_counter()
    while True:
        spread = transposed @ (rank * share) + rank[out == 0].sum() / edges.n
        new = (1 - DAMPING) / edges.n + DAMPING * spread
        change = float(np.max(np.abs(new - rank) / new))
        rank = new
        if change * DAMPING / (1 - DAMPING) <= tolerance:
            return rank, (time.perf_counter() - started) * 1e3


class SciPy:
    """scipy.sparse.csgraph, and power iteration over its matrix."""

    name = "SciPy"
    kinds = ("bfs", "sssp", "components", "pagerank")

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self._matrix = edges.matrix()

    def run(self, question: Question) -> float:
        if question.kind == "pagerank":
            return _power_iteration(self._edges, question.tolerance)[1]
        if question.kind == "bfs":
            return milliseconds(lambda: csgraph.breadth_first_order(self._matrix, question.root))
        if question.kind == "components":
            return milliseconds(lambda: csgraph.connected_components(self._matrix, connection="weak"))
        weighted = self._edges.matrix(weighted=True)
        return milliseconds(lambda: csgraph.dijkstra(weighted, indices=question.root))


class Igraph:
    """igraph; its answers become Python lists, which is part of what a call costs."""

    name = "igraph"
    kinds = ("bfs", "sssp", "components", "pagerank", "ppr")

    def __init__(self, edges: Edges) -> None:
        self._graph = igraph.Graph(n=edges.n, edges=np.stack([edges.src, edges.dst], axis=1), directed=True)
        self._weights = edges.weights

    def run(self, question: Question) -> float:
        graph, root = self._graph, question.root
        calls: dict[str, Callable[[], Any]] = {
            "bfs": lambda: graph.distances(source=[root]),
            "sssp": lambda: graph.distances(source=[root], weights=self._weights),
            "components": lambda: graph.connected_components(mode="weak"),
            "pagerank": lambda: graph.pagerank(damping=DAMPING),
            "ppr": lambda: graph.personalized_pagerank(damping=DAMPING, reset_vertices=root),
        }
        return milliseconds(calls[question.kind])


class NetworKit:
    """NetworKit on as many threads as it is given."""

    name = "NetworKit"
    kinds = ("bfs", "sssp", "sspaths", "components", "pagerank")

    def __init__(self, edges: Edges, threads: int) -> None:
        networkit.setNumberOfThreads(threads)
        self._edges = edges
        self._graph = _loaded(edges, weighted=False)
        self._weighted: Any = None
        self._exact: Floats | None = None
        self._rank_tolerances: dict[float, float] = {}

    def run(self, question: Question) -> float:
        return milliseconds(self._algorithm(question).run)

    def _algorithm(self, question: Question) -> Any:
        if question.kind == "pagerank":
            return self._pagerank(self._rank_tolerance(question.tolerance))
        if question.kind == "components":
            return networkit.components.WeaklyConnectedComponents(self._graph)
        if question.kind == "sssp":
            if self._weighted is None:
                self._weighted = _loaded(self._edges, weighted=True)
            return networkit.distance.Dijkstra(self._weighted, question.root, False)
        return networkit.distance.BFS(self._graph, question.root, question.kind == "sspaths")

    def _pagerank(self, tolerance: float) -> Any:
        sinks = networkit.centrality.SinkHandling.DistributeSinks
        return networkit.centrality.PageRank(self._graph, DAMPING, tolerance, distributeSinks=sinks)

    def _ranked(self, tolerance: float) -> Any:
        algorithm = self._pagerank(tolerance)
        algorithm.run()
        return algorithm

    def _rank_tolerance(self, error: float) -> float:
        """The loosest tolerance, by powers of ten, that keeps every vertex within this relative error."""
        if self._exact is None:
            self._exact = exact_pagerank(self._edges)
        if error not in self._rank_tolerances:
            for exponent in range(3, 13):
                scores = np.array(self._ranked(10.0**-exponent).scores())
                if np.max(np.abs(scores / scores.sum() - self._exact) / self._exact) <= error:
                    break
            self._rank_tolerances[error] = 10.0**-exponent
        return self._rank_tolerances[error]


def _loaded(edges: Edges, *, weighted: bool) -> Any:
    values = edges.weights.astype(np.float64) if weighted else np.ones(edges.src.size)
    ends = (edges.src.astype(np.uint64), edges.dst.astype(np.uint64))
    return networkit.GraphFromCoo((values, ends), n=edges.n, weighted=weighted, directed=True)


class DynamicNetworKit:
    """A dynamic algorithm of NetworKit on a graph of its own, run once, then fed with updates."""

    kinds = ("bfs", "sssp", "components")

    def __init__(self, edges: Edges, question: Question) -> None:
        """``edges.n`` must have room for the vertices that updates will bring."""
        self._graph = graph = _loaded(edges, weighted=question.kind == "sssp")
        self._algorithm = {
            "bfs": lambda: networkit.distance.DynBFS(graph, question.root),
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
