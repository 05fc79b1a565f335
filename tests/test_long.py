"""Long seeded histories through the whole engine, with every program that is registered.

After every epoch everything is audited in full, and the background audit takes a step of a pass that spans many
epochs; now and then each program is compared with a fresh start of its own and with libraries that share no code
with it (``oracles.py``). A sample runs by default, its seed printed with a failure; ``--run-long`` runs a hundred
thousand epochs on small graphs and a thousand on a large one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from histories import Epoch, mixed_sizes, random_history, rmat_history
from oracles import ORACLES, UNREACHED, Snapshot, assert_close

from graphtide.compute.audit import Auditor
from graphtide.compute.engine import Engine
from graphtide.compute.program import ExternalId, Program, Published
from graphtide.compute.registry import KINDS, make_program
from graphtide.gpma.edges import NO_VERTEX, EdgeBatch, Vertices, destinations, pack, sources
from graphtide.gpma.ids import IntColumn
from graphtide.gpma.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

pytestmark = [pytest.mark.long, pytest.mark.timeout(36_000)]
SOURCE = 3
TOLERANCE = 1e-3
SHAPES = ((8, 3), (40, 24), (40, 6), (150, 120))
"""Vertices, and the most updates of an epoch, of the small graphs in turn."""


def external(vertices: np.ndarray) -> IntColumn:
    """A fixed scattering of the history's vertices over all 64-bit integers, so that dense order never helps."""
    return (vertices.astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)).view(np.int64)


SOURCE_ID = int(external(np.array([SOURCE]))[0])
GIVEN: dict[str, Any] = {"source": SOURCE_ID, "sources": SOURCE_ID, "tolerance": TOLERANCE}
"""What programs are given, by the names of their parameters."""


def made(kind: str, index: VertexIndex) -> Program:
    parameters = {p.name: GIVEN[p.name] for p in KINDS[kind].parameters if p.name in GIVEN}
    return make_program(kind, None, parameters, index)


class Keeper:
    """A graph with every program kept."""

    def __init__(self, *, directed: bool) -> None:
        self.index = VertexIndex.create("int")
        self.graph = Graph(directed=directed)
        self.engine = Engine(self.graph, [made(kind, self.index) for kind in KINDS], self.resolve)
        self.auditor = Auditor(self.graph, self.engine)
        self.epochs = 0
        assert not [run.error for run in self.engine.start() if run.error]

    def close(self) -> None:
        self.engine.close()
        self.graph.close()

    def resolve(self, ids: Sequence[ExternalId]) -> Vertices:
        return self.index.lookup(np.array(ids, np.int64))

    def step(self, epoch: Epoch) -> None:
        """Apply an epoch as ingest would, refresh, audit in full and by a slice."""
        self.epochs += 1
        inserts = epoch.ops == 1
        self.index.insert_edges(external(epoch.src[inserts]), external(epoch.dst[inserts]))
        src, dst = self.index.lookup(external(epoch.src)), self.index.lookup(external(epoch.dst))
        known = (src != NO_VERTEX) & (dst != NO_VERTEX)
        batch = EdgeBatch(pack(src[known], dst[known]), epoch.ops[known], epoch.weights[known])
        change = self.graph.apply(batch, self.index.n_vertices)
        assert not [run.error for run in self.engine.refresh(change) if run.error]
        assert not any(self.engine.audit().values()), self.engine.audit()
        assert self.auditor.step(4e-3, (1, self.epochs)).violations == ()

    def snapshot(self) -> Snapshot:
        arcs = self.graph.export()
        assert arcs.weights is not None
        ids = self.index.external(np.arange(self.graph.n_vertices, dtype=np.uint32))
        assert isinstance(ids, np.ndarray)
        source = int(self.resolve([SOURCE_ID])[0])
        src, dst = sources(arcs.keys).astype(np.int64), destinations(arcs.keys).astype(np.int64)
        return Snapshot(ids, src, dst, arcs.weights, source if source < ids.size else None)

    def values(self, program: Program) -> np.ndarray:
        """What the program publishes, vertices as ranks of their external ids; ``UNREACHED`` where null."""
        n = self.graph.n_vertices
        everybody = np.arange(n, dtype=np.uint32)
        answer = type(program).read(Published(program.columns(), program.scalars(), n), everybody)
        values = answer.values
        if answer.vertex_valued:
            rank = np.empty(n, np.int64)
            rank[self.index.sort_by_external(everybody)] = np.arange(n)
            values = rank[values]
        return np.where(answer.null, UNREACHED, values.astype(np.float64))

    def compare(self) -> None:
        """Every program with a fresh start of its own, bit for bit where it is exact, and with its oracles."""
        state = self.snapshot()
        for program in self.engine.programs:
            kept = self.values(program)
            fresh = made(program.kind, self.index)
            if fresh.sources:
                fresh.bind(self.resolve(fresh.sources))
            fresh.start(self.graph)
            if any(parameter.name == "tolerance" for parameter in program.parameters):
                assert_close(program.kind, kept, self.values(fresh), 2 * TOLERANCE)
            else:
                np.testing.assert_array_equal(kept, self.values(fresh))
            for oracle in ORACLES[program.kind]:
                expected = oracle(state)
                if expected is not None:
                    assert_close(program.kind, kept, expected, TOLERANCE)


def play(directed: bool, epochs: Iterable[Epoch], compare_every: int) -> None:
    keeper = Keeper(directed=directed)
    try:
        for number, epoch in enumerate(epochs, 1):
            keeper.step(epoch)
            if number % compare_every == 0 and keeper.graph.n_vertices:
                keeper.compare()
        assert keeper.auditor.passes > 0
    finally:
        keeper.close()


def test_every_kind_has_an_oracle() -> None:
    assert set(KINDS) <= set(ORACLES)


@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_small_graphs_for_a_long_time(directed: bool, seed: int, run_long: bool) -> None:
    histories = 500 if run_long else 100
    for k in range(histories):
        vertices, updates_max = SHAPES[k % len(SHAPES)]
        history = random_history(
            seed + k, directed=directed, vertices=vertices, epochs=100, updates_max=updates_max
        )
        play(directed, history.epochs, compare_every=20)


@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_a_skewed_graph_for_a_long_time(directed: bool, seed: int, run_long: bool) -> None:
    scale, epochs, most = (16, 500, 100_000) if run_long else (13, 120, 30_000)
    sizes = mixed_sizes(seed, epochs, most)
    history = rmat_history(seed, directed=directed, scale=scale, degree=8, updates=sizes)
    play(directed, history.epochs, compare_every=max(epochs // 10, 1))
