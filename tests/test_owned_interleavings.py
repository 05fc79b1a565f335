"""Whatever happens to a graph whose rows are on several sides, in any order: updates, deletions of vertices, rows
that move by hand or as a policy with some memory says, other policies, checkpoints, crashes and restores, onto
other sides.

Beside it a graph with all rows in one place takes the same updates and has nothing else happen to it. Contents,
change reports, and results of every program are to be the same bits after each epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, random_history
from test_engine import DenseIds
from test_owned_programs import APPROXIMATE, DEVICE_KINDS, OrderedIds, assert_same_values, running
from test_owned_rows import assert_same_change, assert_same_graph
from walk_twins import FEW_THREADS, set_threads

from graphtide.compute import registry
from graphtide.compute.engine import Engine
from graphtide.compute.program import Answer, Column, Program, Published
from graphtide.gpma.edges import EdgeList, Vertices
from graphtide.partition.classes import DEVICE, Stock
from graphtide.partition.division import divide
from graphtide.partition.graph import Graph
from graphtide.partition.measures import Measures
from graphtide.partition.policies import POLICIES
from graphtide.partition.rebalancing import Rebalancer

Kinds = dict[str, dict[str, Any]]
EDGE_BYTES = 20
EPOCHS = 60
KINDS = dict(registry.least_programs(weighted=True))


class Saved:
    """A checkpoint: the graph and the programs' states at the end of an epoch."""

    def __init__(self, edges: EdgeList, graph: Graph, engine: Engine, epoch: int) -> None:
        self.edges, self.n_vertices, self.epoch = edges, graph.n_vertices, epoch
        self.dead: Vertices = np.flatnonzero(~graph.alive[: graph.n_vertices]).astype(np.uint32)
        self.states: dict[str, dict[str, Column]] = {
            program.id: {name: np.array(column) for name, column in program.state().items()}
            for program in engine.programs
        }


class Sided:
    """A graph with rows on several sides, its programs, and all that may happen to it."""

    def __init__(
        self, n_sides: int, directed: bool, rng: np.random.Generator, kinds: Kinds, *, device: bool
    ) -> None:
        """``device``: that one is a side, the last."""
        self.rng, self.directed, self.kinds, self.device = rng, directed, kinds, device
        self.copy: Any = None
        self.saved: Saved | None = None
        self.happened: dict[str, int] = {}
        self._open(n_sides)
        self.engine.start()

    def _open(self, n_sides: int) -> None:
        ids: DenseIds = OrderedIds()
        owned = n_sides > 1 or self.device
        self.graph = Graph(
            directed=self.directed,
            threads=1,
            host_rows="owned" if owned else "all",
            host_sides=n_sides - self.device,
            device=self.device,
        )
        made = [registry.make_program(kind, kind, given, ids) for kind, given in self.kinds.items()]
        self.engine = Engine(self.graph, made, ids.resolve, threads=1)
        self._other_policy()

    def close(self) -> None:
        self.engine.close()
        self.graph.close()

    @property
    def n_sides(self) -> int:
        return len(self.graph.sides)

    def step(self, epoch: Epoch) -> Any:
        change = self.graph.apply(epoch.batch(weighted=True), epoch.n_vertices, epoch.vertex_ops())
        assert [run.error for run in self.engine.refresh(change)] == [None] * len(self.engine.programs)
        if self.rebalancer is not None:
            self.rebalancer.ages.changed(np.unique(np.append(epoch.src, epoch.dst)).astype(np.uint32))
        return change

    # -- what may happen between two epochs -----------------------------------------------------------------------

    def something(self, number: int) -> str | None:
        """One of them; "crash" is for the caller, who knows the updates."""
        for _ in range(int(self.rng.integers(self.device, 3 + self.device))):
            done = str(self.rng.choice(["moves", "decides", "policy", "saves", "crash"]))
            if self.n_sides == 1 and done in ("moves", "decides", "policy"):
                continue
            if done == "crash" and self.saved is None:
                continue
            self.happened[done] = self.happened.get(done, 0) + 1
            if done == "crash":
                return done
            if done == "saves":
                self._save(number)
            else:
                {"moves": self._move, "decides": self._decide, "policy": self._other_policy}[done]()
        return None

    def _move(self) -> None:
        n = self.graph.n_vertices
        vertices = self.rng.permutation(n)[: int(self.rng.integers(0, n + 1))].astype(np.uint32)
        self.graph.migrate(vertices, int(self.rng.integers(self.n_sides)))
        self.graph.placement.newcomers = int(self.rng.integers(self.n_sides))

    def _other_policy(self) -> None:
        """As if the daemon had been started with another one: what was learnt before is forgotten."""
        self.policy = str(self.rng.choice(list(POLICIES)))
        self.rebalancer = Rebalancer(self._stock, self.policy) if self.n_sides > 1 else None

    def _stock(self) -> Stock:
        n, graph = self.graph.n_vertices, self.graph
        in_degrees = graph.degrees("in")[:n] if graph.directed else np.zeros(0, np.uint32)
        return Stock(graph.placement.owner[:n], graph.degrees("out")[:n], in_degrees)

    def _stored(self) -> tuple[int, int]:
        edges = [sum(array.n_edges for array in side.arrays) for side in self.graph.sides]
        return edges[0], edges[DEVICE]

    def _decide(self) -> None:
        """What a rebalancer makes of some epochs, with memory for none of the rows, for all, or for some."""
        assert self.rebalancer is not None
        limit = EDGE_BYTES * sum(self._stored()) * float(self.rng.choice([0, 0.3, 0.7, 1, 3]))
        if self.rng.random() < 0.2:
            move = self.rebalancer.evict(EDGE_BYTES * int(self.rng.integers(1, 500)))
            if move is not None:
                self.graph.migrate(move.vertices, move.to)
        for _ in range(int(self.rng.integers(1, 8))):
            self.rebalancer.request()
            host, device = self._stored()
            measures = Measures(float(self.rng.choice([1e-4, 1.0])), EDGE_BYTES * device, int(limit), host, device)
            for move in self.rebalancer.observe(measures) or []:
                assert move.edges == self._edges_of(move.vertices)
                self.graph.migrate(move.vertices, move.to)

    def _edges_of(self, vertices: Vertices) -> int:
        stock = self._stock()
        edges = int(stock.out_degrees[vertices].sum())
        return edges + (int(stock.in_degrees[vertices].sum()) if stock.in_degrees.size else 0)

    def _save(self, number: int) -> None:
        """Begin a copy, go on with it, or end it, by which there is a checkpoint of the present epoch."""
        if self.copy is None:
            self.copy = self.graph.begin_copy()
        elif self.rng.random() < 0.5:
            self.copy.copy_piece()
        else:
            self.copy.finish()
            pieces = list(self.copy.edges())
            self.graph.end_copy(self.copy)
            self.copy = None
            weights = np.concatenate([piece.weights for piece in pieces])
            edges = EdgeList(np.concatenate([piece.keys for piece in pieces]), weights)
            self.saved = Saved(edges, self.graph, self.engine, number)

    def crash(self, n_sides: int, epochs: Sequence[Epoch]) -> None:
        """And a start, which replays what came after the newest checkpoint; ``epochs``: all there were."""
        for epoch in epochs[self.restore(n_sides) :]:
            self.step(epoch)

    def restore(self, n_sides: int) -> int:
        """What a start makes of the newest checkpoint, with so many sides; the epoch that comes next."""
        assert self.saved is not None
        saved = self.saved
        self.close()
        self._open(n_sides)
        limit = int(EDGE_BYTES * 2 * len(saved.edges) * float(self.rng.choice([0, 0.3, 0.7, 3])))
        if n_sides > 1:
            self.graph.divide_by(lambda out, in_: divide(out, in_, EDGE_BYTES, limit, POLICIES[self.policy]))
        self.graph.load(saved.edges, saved.n_vertices, saved.dead)
        for program in self.engine.programs:
            program.restore({name: column.copy() for name, column in saved.states[program.id].items()}, self.graph)
        self.copy = None
        return saved.epoch + 1


@contextmanager
def sided(*given: Any, **how: Any) -> Iterator[Sided]:
    made = Sided(*given, **how)
    try:
        yield made
    finally:
        made.close()


def run(
    n_sides: int, directed: bool, seed: int, epochs: int, kinds: Kinds = KINDS, *, device: bool = False
) -> dict[str, int]:
    """What happened, and how often."""
    rng = np.random.default_rng(seed)
    history = random_history(seed, directed=directed, epochs=epochs, vertex_share=0.08)
    how = {"kinds": kinds, "device": device}
    with running(kinds, directed=directed) as (whole, engine), sided(n_sides, directed, rng, **how) as other:
        for number, epoch in enumerate(history.epochs):
            wanted = whole.apply(epoch.batch(weighted=True), epoch.n_vertices, epoch.vertex_ops())
            engine.refresh(wanted)
            assert_same_change(wanted, other.step(epoch))
            assert_same(whole, engine, other, thorough=number % 5 == 0)
            crashed = other.something(number) == "crash"
            if crashed:
                other.crash(2 if device else int(rng.integers(1, 4)), history.epochs[: number + 1])
            assert_same(whole, engine, other, thorough=crashed or number % 7 == 0)
        while other.saved is None:
            other._save(number)
        other.happened["crash"] = other.happened.get("crash", 0) + 1  # one at least, after a copy that is whole
        other.crash(other.n_sides, history.epochs)
        assert_same(whole, engine, other, thorough=True)
        assert [found for found in other.engine.audit().values() if found] == []
        return other.happened


def assert_same(whole: Graph, engine: Engine, other: Sided, *, thorough: bool) -> None:
    if thorough:
        assert_same_graph(whole, other.graph)
    for wanted, found in zip(engine.programs, other.engine.programs, strict=True):
        if not other.happened.get("crash") or found.on_device:
            assert_same_values(wanted, found, whole.n_vertices)
        else:  # columns that nobody reads may number things in another order
            answers = [read(program, whole.n_vertices) for program in (wanted, found)]
            assert answers[0].null.tobytes() == answers[1].null.tobytes(), wanted.id
            if wanted.kind in APPROXIMATE:  # what it remembers of costs is not saved: it may solve at another time
                assert_within_bounds(wanted, found, *(answer.values for answer in answers))
                continue
            assert answers[0].values.tobytes() == answers[1].values.tobytes(), wanted.id
            assert wanted.scalars() == found.scalars(), wanted.id


def assert_within_bounds(wanted: Program, found: Program, one: Any, other: Any) -> None:
    """Both are as near to the exact values as they say."""
    bound = sum(program.scalars()["error_bound"] for program in (wanted, found)) * (1 + 1e-9)
    if wanted.kind == "ppr":
        assert np.abs(one - other).sum() <= bound, wanted.id
    else:
        assert (np.abs(one - other) <= bound * np.maximum(one, other)).all(), wanted.id


def read(program: Program, n: int) -> Answer:
    """What clients read of all vertices."""
    published = Published(program.columns(), program.scalars(), n)
    return type(program).read(published, np.arange(n, dtype=np.uint32))


@pytest.mark.sample(2)
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("n_sides", [1, 2, 3])
def test_whatever_happens_to_rows_on_several_sides(
    n_sides: int, directed: bool, seed: int, run_long: bool
) -> None:
    happened: dict[str, int] = {}
    for own_seed in range(seed, seed + (40 if run_long else 1)):
        for name, n in run(n_sides, directed, own_seed, EPOCHS).items():
            happened[name] = happened.get(name, 0) + n
    print(happened)


def test_whatever_happens_to_rows_on_a_host_and_a_device(
    cupy: ModuleType, seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All programs are there, and their rows on both sides."""
    set_threads(monkeypatch, FEW_THREADS)
    kinds = {**DEVICE_KINDS, **APPROXIMATE}
    for own_seed in range(seed, seed + (20 if run_long else 1)):
        cuda_emulator.seed(own_seed)
        print(run(2, own_seed % 2 == 1, own_seed, 40 if run_long else 12, kinds, device=True))
