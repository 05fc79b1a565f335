"""Long seeded histories through the whole engine, with every program that is registered.

After every epoch everything is audited in full, and the background audit takes a step of a pass that spans many
epochs; now and then each program is compared with a fresh start of its own and with libraries that share no code
with it (``oracles.py``). A sample runs by default, its seed printed with a failure; ``--run-long`` runs a hundred
thousand epochs on small graphs and a thousand each on two large ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from histories import Epoch, mixed_sizes, random_history, rmat_history
from oracles import ORACLES, UNREACHED, Snapshot, assert_close, assert_right

from graphtide.compute.audit.auditor import Auditor
from graphtide.compute.engine import Engine
from graphtide.compute.program import ExternalId, Program, Published
from graphtide.compute.registry import KINDS, make_program
from graphtide.daemon.ingest.dense import dense_batch
from graphtide.daemon.records.stream import UpdateBlock
from graphtide.gpma.edges import NO_VERTEX, Vertices, destinations, sources
from graphtide.gpma.index.ids import IntColumn
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

pytestmark = [pytest.mark.long, pytest.mark.timeout(36_000)]
SOURCE = 3
TOLERANCE = 1e-3
SHAPES = ((8, 3), (40, 24), (40, 6), (150, 120))
"""Vertices, and the most updates of an epoch, of the small graphs in turn."""
VERTEX_SHARES = (0.0, 0.08, 0.3)
"""How many of their moves delete or insert vertices, in turn."""
RESTART_EVERY, THREADS_MAX = 50, 5


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
    """A graph with every program kept, by so many threads (None: as many as there are cores)."""

    def __init__(self, *, directed: bool, threads: int | None = None) -> None:
        self.index = VertexIndex.create("int")
        self.graph = Graph(directed=directed, threads=threads)
        self.engine = Engine(self.graph, [made(kind, self.index) for kind in KINDS], self.resolve)
        self.auditor = Auditor(self.graph, self.engine)
        self.epochs = self.reused = 0
        assert not [run.error for run in self.engine.start() if run.error]

    def close(self) -> None:
        self.engine.close()
        self.graph.close()

    def restarted(self, threads: int) -> Keeper:
        """One that goes on, on so many threads, from what a checkpoint would hold of this one, which is closed."""
        other = Keeper(directed=self.graph.directed, threads=threads)
        n, dead = self.graph.n_vertices, np.flatnonzero(~self.graph.alive).astype(np.uint32)
        other.index.restore({name: column.copy() for name, column in self.index.state(n).items()}, dead)
        other.graph.load(self.graph.export(), n, dead)
        for program, saved in zip(other.engine.programs, self.engine.programs, strict=True):
            program.restore({name: column.copy() for name, column in saved.state().items()}, other.graph)
        other.epochs, other.reused = self.epochs, self.reused
        self.close()
        assert not any(other.engine.audit().values()), other.engine.audit()
        return other

    def resolve(self, ids: Sequence[ExternalId]) -> Vertices:
        return self.index.lookup(np.array(ids, np.int64))

    def step(self, epoch: Epoch) -> None:
        """Apply an epoch as ingest would, refresh, audit in full and by a slice. Ids of the dead go to others."""
        self.epochs += 1
        block = UpdateBlock(external(epoch.src), external(epoch.dst), epoch.ops, epoch.weights, 0)
        dense = dense_batch(block, self.index)
        change = self.graph.apply(dense.edges, self.index.n_vertices, dense.vertices)
        self.reused += self.index.take_reused().size
        assert not [run.error for run in self.engine.refresh(change) if run.error]
        assert not any(self.engine.audit().values()), self.engine.audit()
        assert self.auditor.step(25e-3, (1, self.epochs)).violations == ()
        if self.epochs % 3 == 0:  # nobody but this thread refers to them
            gone = np.setdiff1d(np.flatnonzero(~self.graph.alive), self.index.free_vertices)[::2].astype(np.uint32)
            self.index.remove(gone)
            self.index.free(gone)

    def everybody(self) -> Vertices:
        """The dense ids of all vertices; in a snapshot each is named by its place among them."""
        return np.flatnonzero(self.graph.alive).astype(np.uint32)

    def snapshot(self) -> Snapshot:
        arcs, everybody = self.graph.export(), self.everybody()
        assert arcs.weights is not None
        ids = self.index.external(everybody)
        assert isinstance(ids, np.ndarray)
        place = np.cumsum(self.graph.alive) - 1
        source = self.living_sources([SOURCE_ID])[0]
        src, dst = place[sources(arcs.keys)], place[destinations(arcs.keys)]
        return Snapshot(ids, src, dst, arcs.weights, None if source == NO_VERTEX else int(place[source]))

    def living_sources(self, ids: Sequence[ExternalId]) -> Vertices:
        """As the engine binds them."""
        dense = self.resolve(ids)
        known = np.flatnonzero(dense != NO_VERTEX)
        dense[known[~self.graph.alive[dense[known]]]] = NO_VERTEX
        return dense

    def values(self, program: Program) -> np.ndarray:
        """What the program publishes, vertices as ranks of their external ids; ``UNREACHED`` where null."""
        n, everybody = self.graph.n_vertices, self.everybody()
        answer = type(program).read(Published(program.columns(), program.scalars(), n), everybody)
        values = answer.values
        if answer.vertex_valued:
            rank = np.empty(n, np.int64)
            rank[self.index.sort_by_external(everybody)] = np.arange(everybody.size)
            values = rank[values]
        return np.where(answer.null, UNREACHED, values.astype(np.float64))

    def compare(self) -> None:
        """Every program with a fresh start of its own, bit for bit where it is exact, and with its oracles."""
        state = self.snapshot()
        for program in self.engine.programs:
            kept = self.values(program)
            fresh = made(program.kind, self.index)
            if fresh.sources:
                fresh.bind(self.living_sources(fresh.sources))
            fresh.start(self.graph)
            assert_close(program.kind, kept, self.values(fresh), 2 * TOLERANCE)
            for oracle in ORACLES[program.kind]:
                assert_right(program.kind, kept, oracle, state, TOLERANCE)


def play(directed: bool, epochs: Iterable[Epoch], compare_every: int, seed: int) -> int:
    """How many ids went to other vertices. There are restarts, each with another number of threads."""
    rng = np.random.default_rng(seed)
    keeper = Keeper(directed=directed)
    try:
        for number, epoch in enumerate(epochs, 1):
            keeper.step(epoch)
            if rng.random() < 1 / RESTART_EVERY:
                keeper = keeper.restarted(int(rng.integers(1, THREADS_MAX + 1)))
            if number % compare_every == 0 and keeper.graph.n_alive:
                keeper.compare()
        while not keeper.auditor.passes:  # where it is slow, the epochs did not suffice
            assert keeper.auditor.step(1.0, (1, keeper.epochs)).violations == ()
        return keeper.reused
    finally:
        keeper.close()


def test_every_kind_has_two_oracles() -> None:
    assert set(KINDS) <= set(ORACLES) and min(map(len, ORACLES.values())) >= 2


@pytest.mark.sample(among="a long time")
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_small_graphs_for_a_long_time(directed: bool, seed: int, run_long: bool) -> None:
    """A sample: half of all shapes with their shares of vertices, one after the other, from any of them on."""
    histories, reused = 500 if run_long else len(SHAPES) * len(VERTEX_SHARES) // 2, 0
    for k in range(begin := seed % 12, begin + histories):
        vertices, updates_max = SHAPES[k % len(SHAPES)]
        history = random_history(
            seed + k,
            directed=directed,
            vertices=vertices,
            epochs=100,
            updates_max=updates_max,
            vertex_share=VERTEX_SHARES[k % len(VERTEX_SHARES)],
        )
        reused += play(directed, history.epochs, 20, seed + k)
    assert reused > histories


@pytest.mark.sample(among="a long time")
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_a_skewed_graph_for_a_long_time(directed: bool, seed: int, run_long: bool) -> None:
    scale, epochs, most = (16, 1_000, 100_000) if run_long else (12, 40, 15_000)
    sizes = mixed_sizes(seed, epochs, most)
    history = rmat_history(
        seed, directed=directed, scale=scale, degree=8, updates=sizes, vertex_share=3e-3, source=SOURCE
    )
    assert play(directed, history.epochs, max(epochs // 10, 1), seed) > 2
