"""What every kind of program must answer, by libraries that share no code with it.

A snapshot is the graph as stored, between dense vertices. An oracle gives float64[n], ``UNREACHED`` where there
is no value. ``ORACLES`` names those of each kind; ``assert_right`` says how near an answer must be.
"""

from __future__ import annotations

import heapq
from collections import Counter
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

from graphtide.daemon.tools.verify import FinalGraph

Floats = npt.NDArray[np.float64]
UNREACHED = -1.0
COUNTED_MAX = 2.0**53
VERTICES_LISTED_MAX = 2_000
"""Oracles in plain Python that take long leave out larger graphs."""
WIDTHS_MAX = 16
"""An oracle that takes a search for each width leaves out graphs that have more."""


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

    @cached_property
    def networkit(self) -> Any:
        return self._networkit(np.ones(self.src.size), weighted=False)

    @cached_property
    def networkit_weighted(self) -> Any:
        return self._networkit(self.weights.astype(np.float64), weighted=True)

    def _networkit(self, weights: Floats, *, weighted: bool) -> Any:
        ends = (self.src.astype(np.uint64), self.dst.astype(np.uint64))
        return networkit.GraphFromCoo((weights, ends), n=self.n, weighted=weighted, directed=True)

    @cached_property
    def heads(self) -> dict[int, list[tuple[int, np.float32]]]:
        """By vertex, where its edges lead, and their weights."""
        heads: dict[int, list[tuple[int, np.float32]]] = {}
        for u, v, weight in zip(self.src.tolist(), self.dst.tolist(), self.weights, strict=True):
            heads.setdefault(u, []).append((v, weight))
        return heads

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


def networkit_hops(state: Snapshot) -> Floats:
    if state.source is None:
        return _nothing(state)
    return _networkit_distances(networkit.distance.BFS(state.networkit, state.source, False))


def _networkit_distances(search: Any) -> Floats:
    search.run()
    found = np.array(search.getDistances(asarray=True))
    return np.where(found == np.finfo(np.float64).max, UNREACHED, found)


def scipy_distances(state: Snapshot) -> Floats:
    if state.source is None:
        return _nothing(state)
    return _distances(csgraph.dijkstra(state.by_weight(), indices=state.source))


def igraph_distances(state: Snapshot) -> Floats:
    if state.source is None:
        return _nothing(state)
    weights = state.weights.astype(np.float64)
    return _distances(state.igraph.distances(source=[state.source], weights=weights)[0])


def networkit_distances(state: Snapshot) -> Floats:
    if state.source is None:
        return _nothing(state)
    return _networkit_distances(networkit.distance.Dijkstra(state.networkit_weighted, state.source, False))


def listed_distances(state: Snapshot) -> Floats:
    """Dijkstra's search with sums that are rounded to float32 at each edge, as they are defined."""
    distances = _nothing(state)
    if state.source is None:
        return distances
    nearest = {state.source: np.float32(0)}
    queue = [(nearest[state.source], state.source)]
    while queue:
        distance, u = heapq.heappop(queue)
        if distance > nearest[u]:
            continue
        distances[u] = distance
        for v, weight in state.heads.get(u, ()):
            further = distance + weight
            if v not in nearest or further < nearest[v]:
                nearest[v] = further
                heapq.heappush(queue, (further, v))
    return distances


def scipy_widths(state: Snapshot) -> Floats | None:
    """By what is reached over edges that are at least so wide, for each width that there is."""
    if state.source is None:
        return _nothing(state)
    different = np.unique(state.weights)[::-1]
    if different.size > WIDTHS_MAX:
        return None
    widths = _nothing(state)
    for width in different:
        wide = state.weights >= width
        ends = (state.src[wide], state.dst[wide])
        matrix = sparse.csr_matrix((np.ones(np.count_nonzero(wide)), ends), shape=(state.n, state.n))
        reached = csgraph.breadth_first_order(matrix, state.source, return_predecessors=False)
        widths[reached[widths[reached] == UNREACHED]] = width
    widths[state.source] = np.inf
    return widths


def listed_widths(state: Snapshot) -> Floats | None:
    """Dijkstra's search with the smallest weight on the way in place of the sum."""
    if state.n > VERTICES_LISTED_MAX:
        return None
    widths = _nothing(state)
    queue = [] if state.source is None else [(-np.inf, state.source)]
    while queue:
        width, u = heapq.heappop(queue)
        if widths[u] != UNREACHED:
            continue
        widths[u] = -width
        for v, weight in state.heads.get(u, ()):
            heapq.heappush(queue, (-min(-width, weight), v))
    return widths


def networkit_path_counts(state: Snapshot) -> Floats:
    if state.source is None:
        return _nothing(state)
    search = networkit.distance.BFS(state.networkit, state.source, True)
    search.run()
    counts = np.array([search.numberOfPaths(v) for v in range(state.n)])
    return np.where(counts == 0, UNREACHED, np.minimum(counts, COUNTED_MAX))


def listed_path_counts(state: Snapshot) -> Floats:
    """Level by level, in integers that know no limit."""
    counts = _nothing(state)
    level = {} if state.source is None else {state.source: 1}
    while level:
        for v, count in level.items():
            counts[v] = min(count, COUNTED_MAX)
        below: dict[int, int] = {}
        for u, count in level.items():
            for v, _ in state.heads.get(u, ()):
                if counts[v] == UNREACHED:
                    below[v] = below.get(v, 0) + count
        level = below
    return counts


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


def networkit_components(state: Snapshot) -> Floats:
    search = networkit.components.WeaklyConnectedComponents(state.networkit)
    search.run()
    part = np.empty(state.n, np.int64)
    for k, members in enumerate(search.getComponents()):
        part[members] = k
    return _smallest_ids(state, part)


def scipy_pagerank(state: Snapshot) -> Floats:
    return state.final.pagerank()


def igraph_pagerank(state: Snapshot) -> Floats:
    return np.array(state.igraph.pagerank(damping=0.85))


def networkit_pagerank(state: Snapshot) -> Floats:
    sinks = networkit.centrality.SinkHandling.DistributeSinks
    ranks = networkit.centrality.PageRank(state.networkit, 0.85, 1e-12, distributeSinks=sinks)
    ranks.run()
    scores = np.array(ranks.scores())
    return np.asarray(scores / scores.sum())


def scipy_personalised(state: Snapshot) -> Floats | None:
    """By iteration until it moves no more; what dangles restarts at the source."""
    if state.source is None:
        return None
    out = np.bincount(state.src, minlength=state.n)
    links = sparse.csr_matrix((1 / out[state.src], (state.dst, state.src)), shape=(state.n, state.n))
    restart = np.zeros(state.n)
    restart[state.source] = 1
    rank, before = restart, np.zeros(state.n)
    while np.abs(rank - before).sum() > 1e-9:
        before, rank = rank, 0.85 * (links @ rank) + (0.15 + 0.85 * rank[out == 0].sum()) * restart
    return rank


def igraph_personalised(state: Snapshot) -> Floats | None:
    if state.source is None:
        return None
    return np.array(state.igraph.personalized_pagerank(damping=0.85, reset_vertices=state.source))


def _simple(state: Snapshot) -> tuple[Any, Any]:
    """The arcs without loops, and the links: which of the vertices are neighbours in either direction."""
    loops = state.src == state.dst
    src, dst = state.src[~loops], state.dst[~loops]
    arcs = sparse.csr_matrix((np.ones(src.size), (src, dst)), shape=(state.n, state.n))
    return arcs, ((arcs + arcs.T) > 0).astype(np.float64)


def scipy_triangles(state: Snapshot) -> Floats:
    _, links = _simple(state)
    return np.asarray((links @ links).multiply(links).sum(axis=1)).ravel() / 2


def igraph_triangles(state: Snapshot) -> Floats:
    simple = state.igraph.as_undirected().simplify()
    corners = np.array(simple.list_triangles(), np.int64).ravel()
    return np.bincount(corners, minlength=state.n).astype(np.float64)


def scipy_clustering(state: Snapshot) -> Floats:
    """By LDBC's definition: arcs between the neighbours of a vertex, over all that there could be."""
    arcs, links = _simple(state)
    among = np.asarray((links @ arcs).multiply(links).sum(axis=1)).ravel()
    degrees = np.asarray(links.sum(axis=1)).ravel()
    possible = degrees * (degrees - 1)
    return np.divide(among, possible, out=np.zeros(state.n), where=possible > 0)


def listed_clustering(state: Snapshot) -> Floats | None:
    if state.n > VERTICES_LISTED_MAX:
        return None
    heads = {u: {v for v, _ in edges} - {u} for u, edges in state.heads.items()}
    near: list[set[int]] = [set(heads.get(v, ())) for v in range(state.n)]
    for u, found in heads.items():
        for v in found:
            near[v].add(u)
    values = np.zeros(state.n)
    for v, mine in enumerate(near):
        if len(mine) > 1:
            among = sum(len(heads.get(u, set()) & mine) for u in mine)
            values[v] = among / (len(mine) * (len(mine) - 1))
    return values


def igraph_cores(state: Snapshot) -> Floats:
    return np.array(state.igraph.as_undirected().simplify().coreness(), np.float64)


def networkit_cores(state: Snapshot) -> Floats:
    _, links = _simple(state)
    ends = sparse.triu(links).tocoo()
    columns = np.ones(ends.nnz), (ends.row.astype(np.uint64), ends.col.astype(np.uint64))
    cores = networkit.centrality.CoreDecomposition(networkit.GraphFromCoo(columns, n=state.n, directed=False))
    cores.run()
    return np.array(cores.scores(), np.float64)


CDLP_ROUNDS = 10


def counted_labels(state: Snapshot) -> Floats:
    """LDBC's label propagation by sorting: labels are ranks of external ids, so that the smaller wins a tie."""
    rank = np.empty(state.n, np.int64)
    rank[np.argsort(state.ids)] = np.arange(state.n)
    proper = state.src != state.dst
    voter = np.concatenate([state.src[proper], state.dst[proper]])
    hearer = np.concatenate([state.dst[proper], state.src[proper]])
    label = rank
    for _ in range(CDLP_ROUNDS):
        votes, count = np.unique(hearer * state.n + label[voter], return_counts=True)
        vertex, voted = np.divmod(votes, max(state.n, 1))
        order = np.lexsort((-voted, count, vertex))
        label = label.copy()
        label[vertex[order]] = voted[order]  # of several the last one stays: the largest count, the smallest rank
    return label.astype(np.float64)


def listed_labels(state: Snapshot) -> Floats | None:
    """The same, one vertex after the other."""
    if state.n > VERTICES_LISTED_MAX:
        return None
    near: list[list[int]] = [[] for _ in range(state.n)]
    for u, v in zip(state.src.tolist(), state.dst.tolist(), strict=True):
        if u != v:
            near[u].append(v)
            near[v].append(u)
    label = state.ids.tolist()
    for _ in range(CDLP_ROUNDS):
        counts = [Counter(label[u] for u in mine) for mine in near]
        label = [
            min(votes, key=lambda id: (-votes[id], id)) if votes else own
            for votes, own in zip(counts, label, strict=True)
        ]
    return np.searchsorted(np.sort(state.ids), label).astype(np.float64)


ORACLES: Mapping[str, tuple[Oracle, ...]] = {
    "bfs": (scipy_hops, igraph_hops, networkit_hops),
    "sssp": (listed_distances, scipy_distances, igraph_distances, networkit_distances),
    "sswp": (listed_widths, scipy_widths),
    "sspaths": (listed_path_counts, networkit_path_counts),
    "components": (scipy_components, igraph_components, networkit_components),
    "pagerank": (scipy_pagerank, igraph_pagerank, networkit_pagerank),
    "ppr": (igraph_personalised, scipy_personalised),
    "triangles": (scipy_triangles, igraph_triangles),
    "lcc": (scipy_clustering, listed_clustering),
    "kcore": (igraph_cores, networkit_cores),
    "cdlp": (counted_labels, listed_labels),
}
IN_FLOAT64 = (scipy_distances, igraph_distances, networkit_distances)
"""Oracles whose sums are of float64, where those of float32 are asked for."""


def assert_right(kind: str, values: Floats, oracle: Oracle, state: Snapshot, tolerance: float) -> None:
    """An answer against an oracle's, if that has one: bit for bit where the answer is exact."""
    expected = oracle(state)
    if expected is None:
        return
    if oracle in IN_FLOAT64:
        np.testing.assert_allclose(values, expected, rtol=1e-5)
    else:
        assert_close(kind, values, expected, tolerance)


def assert_close(kind: str, values: Floats, expected: Floats, tolerance: float) -> None:
    """An answer against another that is as good."""
    if kind == "pagerank":
        np.testing.assert_allclose(values, expected, rtol=tolerance)
    elif kind == "ppr":
        assert np.abs(values - expected).sum() <= tolerance
    else:
        np.testing.assert_array_equal(values, expected)
