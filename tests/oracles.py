"""What every kind of program must answer, by libraries that share no code with it.

A snapshot is the graph as stored, between dense vertices. An oracle gives float64[n], ``UNREACHED`` where there
is no value. ``ORACLES`` names those of each kind; ``close`` says how near an answer must be.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import igraph
import networkit
import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from graphtide.daemon.verify import FinalGraph

Floats = npt.NDArray[np.float64]
UNREACHED = -1.0
COUNTED_MAX = 2.0**53
VERTICES_LISTED_MAX = 2_000
"""Oracles that work in plain Python leave out larger graphs."""


@dataclass(frozen=True)
class Snapshot:
    """Arcs (both directions of an undirected edge), external ids by vertex, and the source or None if unknown."""

    ids: npt.NDArray[np.int64]
    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    source: int | None

    @property
    def n(self) -> int:
        return int(self.ids.size)

    @cached_property
    def final(self) -> FinalGraph:
        return FinalGraph(np.arange(self.n), self.src, self.dst)

    @cached_property
    def igraph(self) -> Any:
        return igraph.Graph(n=self.n, edges=np.stack([self.src, self.dst], axis=1), directed=True)

    def by_weight(self) -> Any:
        """The adjacency with weights; explicit zeros are edges of weight zero."""
        return sparse.csr_matrix((self.weights.astype(np.float64), (self.src, self.dst)), shape=(self.n, self.n))


Oracle = Callable[[Snapshot], Floats | None]


def _distances(distance: Any) -> Floats:
    found = np.asarray(distance, np.float64)
    return np.where(np.isinf(found), UNREACHED, found)


def _nothing(state: Snapshot) -> Floats:
    return np.full(state.n, UNREACHED)


def scipy_hops(state: Snapshot) -> Floats:
    return _nothing(state) if state.source is None else state.final.hops(state.source).astype(np.float64)


def igraph_hops(state: Snapshot) -> Floats:
    if state.source is None:
        return _nothing(state)
    return _distances(state.igraph.distances(source=[state.source])[0])


def scipy_distances(state: Snapshot) -> Floats:
    if state.source is None:
        return _nothing(state)
    return _distances(csgraph.dijkstra(state.by_weight(), indices=state.source))


def igraph_distances(state: Snapshot) -> Floats:
    if state.source is None:
        return _nothing(state)
    weights = state.weights.astype(np.float64)
    return _distances(state.igraph.distances(source=[state.source], weights=weights)[0])


def listed_widths(state: Snapshot) -> Floats | None:
    """Dijkstra's search with the smallest weight on the way in place of the sum."""
    if state.n > VERTICES_LISTED_MAX:
        return None
    widths = _nothing(state)
    heads: dict[int, list[tuple[int, float]]] = {}
    for u, v, weight in zip(state.src.tolist(), state.dst.tolist(), state.weights.tolist(), strict=True):
        heads.setdefault(u, []).append((v, weight))
    queue = [] if state.source is None else [(-np.inf, state.source)]
    while queue:
        width, u = heapq.heappop(queue)
        if widths[u] != UNREACHED:
            continue
        widths[u] = -width
        for v, weight in heads.get(u, ()):
            heapq.heappush(queue, (-min(-width, weight), v))
    return widths


def networkit_path_counts(state: Snapshot) -> Floats:
    if state.source is None:
        return _nothing(state)
    ends = (state.src.astype(np.uint64), state.dst.astype(np.uint64))
    graph = networkit.GraphFromCoo((np.ones(state.src.size), ends), n=state.n, weighted=False, directed=True)
    search = networkit.distance.BFS(graph, state.source, True)
    search.run()
    counts = np.array([search.numberOfPaths(v) for v in range(state.n)])
    return np.where(counts == 0, UNREACHED, np.minimum(counts, COUNTED_MAX))


def _smallest_ids(state: Snapshot, part: npt.NDArray[np.int64]) -> Floats:
    """The smallest external id of each part, as its rank among all ids: those are too large for float64."""
    rank = np.empty(state.n, np.int64)
    rank[np.argsort(state.ids)] = np.arange(state.n)
    smallest = np.full(int(part.max(initial=-1)) + 1, state.n)
    np.minimum.at(smallest, part, rank)
    return smallest[part].astype(np.float64)


def scipy_components(state: Snapshot) -> Floats:
    _, part = csgraph.connected_components(state.final.matrix(), directed=True, connection="weak")
    return _smallest_ids(state, part)


def igraph_components(state: Snapshot) -> Floats:
    return _smallest_ids(state, np.array(state.igraph.connected_components(mode="weak").membership, np.int64))


def scipy_pagerank(state: Snapshot) -> Floats:
    return state.final.pagerank()


def igraph_pagerank(state: Snapshot) -> Floats:
    return np.array(state.igraph.pagerank(damping=0.85))


def igraph_personalised(state: Snapshot) -> Floats | None:
    if state.source is None:
        return None
    return np.array(state.igraph.personalized_pagerank(damping=0.85, reset_vertices=state.source))


ORACLES: Mapping[str, tuple[Oracle, ...]] = {
    "bfs": (scipy_hops, igraph_hops),
    "sssp": (scipy_distances, igraph_distances),
    "sswp": (listed_widths,),
    "sspaths": (networkit_path_counts,),
    "components": (scipy_components, igraph_components),
    "pagerank": (scipy_pagerank, igraph_pagerank),
    "ppr": (igraph_personalised,),
}


def assert_close(kind: str, values: Floats, expected: Floats, tolerance: float) -> None:
    """An answer against an oracle's, or against another answer that is as good."""
    if kind == "pagerank":
        np.testing.assert_allclose(values, expected, rtol=tolerance)
    elif kind == "ppr":
        assert np.abs(values - expected).sum() <= tolerance
    elif kind == "sssp":  # sums of float32 against sums of float64
        np.testing.assert_allclose(values, expected, rtol=1e-5)
    else:
        np.testing.assert_array_equal(values, expected)
