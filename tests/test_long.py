"""Long seeded histories through the whole engine: audited after every epoch, compared with SciPy now and then.

A sample runs by default, its seed printed with a failure; ``--run-long`` runs a hundred thousand epochs on
small graphs and a thousand on a large one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from histories import Epoch, History, random_history, rmat_history

from graphtide.compute.engine import Engine
from graphtide.compute.program import ExternalId, Published
from graphtide.compute.registry import make_program
from graphtide.daemon.verify import UNREACHED, FinalGraph
from graphtide.gpma.edges import NO_VERTEX, EdgeBatch, Vertices, destinations, pack, sources
from graphtide.gpma.ids import IntColumn
from graphtide.gpma.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

pytestmark = [pytest.mark.long, pytest.mark.timeout(36_000)]
TOLERANCE = 1e-3
SOURCE = 3


class Keeper:
    """A graph with every program kept, its external ids scattered so that dense order never helps."""

    def __init__(self, *, directed: bool, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.index = VertexIndex.create("int")
        self.graph = Graph(directed=directed)
        programs = [
            make_program("bfs", None, {"source": int(self.external(np.array([SOURCE]))[0])}, self.index),
            make_program("sssp", None, {"source": int(self.external(np.array([SOURCE]))[0])}, self.index),
            make_program("sswp", None, {"source": int(self.external(np.array([SOURCE]))[0])}, self.index),
            make_program("components", None, {}, self.index),
            make_program("pagerank", None, {"tolerance": TOLERANCE}, self.index),
        ]
        self.engine = Engine(self.graph, programs, self.resolve)
        assert [run.error for run in self.engine.start()] == [None] * len(programs)

    def external(self, vertices: np.ndarray) -> IntColumn:
        """A fixed scattering of the history's vertices over all 64-bit integers."""
        return (vertices.astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)).view(np.int64)

    def resolve(self, ids: Sequence[ExternalId]) -> Vertices:
        return self.index.lookup(np.array(ids, np.int64))

    def step(self, epoch: Epoch) -> None:
        """Apply an epoch as ingest would, refresh, audit in full."""
        inserts = epoch.ops == 1
        self.index.insert_edges(self.external(epoch.src[inserts]), self.external(epoch.dst[inserts]))
        src, dst = self.index.lookup(self.external(epoch.src)), self.index.lookup(self.external(epoch.dst))
        known = (src != NO_VERTEX) & (dst != NO_VERTEX)
        batch = EdgeBatch(pack(src[known], dst[known]), epoch.ops[known], epoch.weights[known])
        change = self.graph.apply(batch, self.index.n_vertices)
        assert [run.error for run in self.engine.refresh(change)] == [None] * len(self.engine.programs)
        assert not any(self.engine.audit().values()), self.engine.audit()

    def compare(self) -> None:
        """Every program's published values against SciPy on the storage's edges."""
        arcs = self.graph.export().keys
        n = self.graph.n_vertices
        ids = self.index.external(np.arange(n, dtype=np.uint32))
        assert isinstance(ids, np.ndarray)
        order = np.argsort(ids)
        rank = np.argsort(order)
        final = FinalGraph(ids[order], rank[sources(arcs)], rank[destinations(arcs)])
        values = {}
        for program in self.engine.programs:
            published = Published(program.columns(), program.scalars(), n)
            answer = type(program).read(published, order.astype(np.uint32))
            values[program.kind] = np.where(answer.null, UNREACHED, answer.values.astype(np.float64))
            if answer.vertex_valued:
                values[program.kind] = ids[answer.values]
        source = int(self.external(np.array([SOURCE]))[0])
        if source in ids:
            np.testing.assert_array_equal(values["bfs"], final.hops(source))
        np.testing.assert_array_equal(values["components"], final.component_labels())
        np.testing.assert_allclose(values["pagerank"], final.pagerank(), rtol=TOLERANCE)


def play(keeper: Keeper, epochs: Iterable[Epoch], compare_every: int) -> None:
    for number, epoch in enumerate(epochs, 1):
        keeper.step(epoch)
        if number % compare_every == 0 and keeper.graph.n_vertices:
            keeper.compare()


@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_small_graphs_for_a_long_time(directed: bool, seed: int, run_long: bool) -> None:
    histories = 500 if run_long else 4
    for k in range(histories):
        history: History = random_history(seed + k, directed=directed, epochs=100)
        play(Keeper(directed=directed, seed=seed + k), history.epochs, compare_every=20)


@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_a_skewed_graph_for_a_long_time(directed: bool, seed: int, run_long: bool) -> None:
    scale, epochs = (16, 500) if run_long else (10, 30)
    history = rmat_history(seed, directed=directed, scale=scale, degree=8, epochs=epochs, updates=300)
    play(Keeper(directed=directed, seed=seed), history.epochs, compare_every=max(epochs // 10, 1))
