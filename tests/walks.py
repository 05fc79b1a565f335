"""What the tests of PageRank and personalised PageRank share: exact solves, histories with vertices that go."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from hypothesis import strategies as st

from graphtide.compute.program import Refresh
from graphtide.compute.walks.walk import RandomWalk
from graphtide.daemon.tools.generate import Churn
from graphtide.gpma.edges import EdgeBatch, Op, destinations, pack, sources
from graphtide.partition.existence import VertexOps
from graphtide.partition.graph import Graph, GraphChange

Edges = list[tuple[int, int]]
# (src, dst, op), or for operations on vertices (vertex, vertex, Op.INSERT_VERTEX or Op.DELETE_VERTEX).
Update = tuple[int, int, int]
Floats = npt.NDArray[np.float64]
ELIMINATED_MAX = 1_000
"""Systems of more vertices are iterated."""


def new_graph(
    *,
    directed: bool = True,
    edges: Edges = (),  # type: ignore[assignment]
    n: int = 0,
    threads: int | None = None,
) -> Graph:
    graph = Graph(directed=directed, weighted=False, threads=threads)
    if edges or n:
        src, dst = zip(*edges, strict=True) if edges else ((), ())
        graph.apply(EdgeBatch.of(src, dst), max(n, 1 + max((*src, *dst), default=-1)))
    return graph


def apply(graph: Graph, updates: list[Update], n: int) -> GraphChange:
    """Apply edge updates and operations on vertices in the order in which they stand."""
    edges = [update for update in updates if update[2] in (Op.INSERT, Op.DELETE)]
    columns = list(zip(*edges, strict=True)) if edges else [(), (), ()]
    vertices, ops, positions = [], [], []
    before = 0
    for u, _, op in updates:
        if op in (Op.INSERT, Op.DELETE):
            before += 1
        else:
            vertices.append(u)
            ops.append(op)
            positions.append(before)
    vertex_ops = VertexOps(np.array(vertices, np.uint32), np.array(ops, np.uint8), np.array(positions, np.int64))
    return graph.apply(EdgeBatch.of(*columns), n, vertex_ops if vertices else None)


def matrix(graph: Graph) -> sp.csr_array:
    """P^T of the graph as it is, from its exported edges."""
    keys = graph.export().keys
    src, dst = sources(keys).astype(int), destinations(keys).astype(int)
    n = graph.n_vertices
    degrees = np.bincount(src, minlength=n)
    return sp.csr_array((1 / degrees[src], (dst, src)), shape=(n, n))


def solved(graph: Graph, rhs: Floats, damping: float) -> Floats:
    """The y of (I - d P^T) y = rhs over its sum, to the last digits.

    Elimination would fill up the matrix of a larger graph; that is iterated.
    """
    links = damping * matrix(graph)
    if graph.n_vertices <= ELIMINATED_MAX:
        y = np.asarray(spla.spsolve(sp.csc_array(sp.eye_array(graph.n_vertices) - links), rhs))
    else:
        y = rhs
        for _ in range(math.ceil(math.log(1e-14) / math.log(damping))):
            y = rhs + links @ y
    return np.asarray(y / y.sum())


def check_changed(before: np.ndarray, program: RandomWalk, n: int, report: Refresh) -> None:
    """Entries that were not reported are bit for bit those of before."""
    after = program.columns()["estimate"][:n]
    changed = report.changed.get("estimate", np.empty(0, np.uint32))
    if changed is None:
        return
    assert np.unique(changed).size == changed.size
    kept = np.setdiff1d(np.arange(n), changed)
    assert np.array_equal(np.r_[before, np.zeros(n - before.size)][kept], after[kept])


def chain_below_a_hub(leaves: int, length: int) -> Edges:
    spokes = [(leaf, 0) for leaf in range(1, leaves + 1)]
    chain = leaves + 1
    links = [(v, v + 1) for v in range(chain, chain + length - 1)]
    return [*spokes, (0, chain), *links]


SHAPES: dict[str, Edges] = {
    "chain below a hub": chain_below_a_hub(400, 60),
    "chain against the order": [(500 - u, 500 - v) for u, v in chain_below_a_hub(400, 60)],
    "cycle": [(v, (v + 1) % 100) for v in range(100)],
    "star inwards": [(v, 0) for v in range(1, 300)],
    "star outwards": [(0, v) for v in range(1, 300)],
    "self-loops": [(v, v) for v in range(20)] + [(0, 1), (1, 2)],
    "two hubs in a loop": [(v, v % 2) for v in range(2, 200)] + [(0, 1), (1, 0)],
    "dangling": [(0, v) for v in range(1, 5)] + [(5, 6)],
    "plateaus": [(v, 20 * (v // 20 + 1) + k) for v in range(100) for k in range(20)],
}


def random_edges(rng: np.random.Generator, n: int, m: int) -> Edges:
    """Skewed both ways: a few hubs, many vertices without out-edges."""
    src = (n * rng.random(m) ** 3).astype(int)
    dst = (n * rng.random(m) ** 2).astype(int)
    return list(zip(src.tolist(), dst.tolist(), strict=True))


def skewed(graphs: list[Graph], n: int = 400) -> Graph:
    graph = new_graph(edges=random_edges(np.random.default_rng(9), n, 4 * n), n=n)
    graphs.append(graph)
    return graph


def with_peer(graphs: list[Graph], n: int = 300) -> tuple[Graph, nx.DiGraph]:
    """A graph, and the same one for networkx."""
    edges = sorted(set(random_edges(np.random.default_rng(4), n, 5 * n)))
    graphs.append(new_graph(edges=edges, n=n))
    peer = nx.DiGraph(edges)
    peer.add_nodes_from(range(n))
    return graphs[-1], peer


def halves(edges: Edges) -> tuple[Edges, Edges]:
    """The edges in two parts, at random."""
    order = np.random.default_rng(1).permutation(len(edges))
    one, other = ([edges[i] for i in half] for half in np.array_split(order, 2))
    return one, other


def rmat_epochs(scale: int, sizes: tuple[int, ...]) -> Iterator[tuple[Graph, GraphChange]]:
    """A skewed graph that churns, and each change of it, of one size after the other; the first is its making."""
    churn = Churn(scale=scale, pool=16 << scale)
    graph = Graph(weighted=False)
    for updates in itertools.chain(churn.load(churn.settles_at), (churn.next(size) for size in sizes)):
        yield graph, graph.apply(EdgeBatch(pack(updates.src, updates.dst), updates.ops, None), 1 << scale)
    graph.close()


@dataclass(frozen=True)
class WalkHistory:
    directed: bool
    damping: float
    tolerance: float
    steps: list[tuple[list[Update], int]]


@st.composite
def walk_histories(draw: st.DrawFn) -> WalkHistory:
    """Few vertices, so that rows empty, fill and loop; some vertices are deleted and come back."""
    n = draw(st.integers(0, 12))
    steps = []
    for _ in range(draw(st.integers(1, 8))):
        n += draw(st.integers(0, 3))
        updates: list[Update] = []
        if n:
            vertex = st.integers(0, n - 1)
            edge = st.tuples(vertex, vertex, st.sampled_from([Op.INSERT, Op.DELETE]))
            alone = vertex.flatmap(
                lambda v: st.tuples(st.just(v), st.just(v), st.sampled_from([Op.INSERT_VERTEX, Op.DELETE_VERTEX]))
            )
            updates = draw(st.lists(st.one_of(edge, edge, edge, alone), max_size=20))
        steps.append((updates, n))
    damping = draw(st.sampled_from([0.85, 0.85, 0.5, 0.99]))
    return WalkHistory(draw(st.booleans()), damping, draw(st.sampled_from([0.1, 1e-2, 1e-3, 1e-5, 1e-8])), steps)
