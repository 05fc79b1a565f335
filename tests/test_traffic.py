"""What crosses the bus is counted by way, and rows are exchanged by what programs on the device read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest

from graphtide.compute.engine import Engine, ProgramRun
from graphtide.compute.homes import Homes
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.program import Refresh
from graphtide.daemon.config.sections.storage import PartitionConfig
from graphtide.daemon.engine.rebalancing import Epoch, Rebalancing, Room
from graphtide.daemon.engine.sides import Sides
from graphtide.daemon.engine.storage import StorageGate
from graphtide.daemon.engine.traffic import NOTHING, Traffic
from graphtide.gpma.edges import EdgeBatch
from graphtide.gpma.row_reads import CLASSES, RowReads
from graphtide.ops.metrics import Metrics
from graphtide.partition import moves, run_costs
from graphtide.partition.graph import Graph, RowsLost
from graphtide.partition.placement import HOST

DEVICE = 1
BUS_BYTE_S = 5e-6
"""Of a slow bus: what a few rows take over it counts for something in an epoch of a second."""


def value(metrics: Metrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(f"graphtide_{name}_total", labels)
    assert found is not None, name
    return found


def run_of(reads: RowReads | None, seconds: float = 1e-3, edges: int = 0, **changed: Any) -> ProgramRun:
    counted = None if reads is None else lambda: reads
    return ProgramRun("hops", Refresh(changed, edges_read=edges, counted=counted), seconds, None, True)


def test_runs_of_an_epoch_add_up(graphs: list[Graph]) -> None:
    graphs.append(Graph())
    metrics = Metrics()
    traffic = Traffic(graphs[0], metrics)
    by_class = np.zeros((2, CLASSES), np.int64)
    by_class[HOST, 3], by_class[DEVICE, 3], by_class[DEVICE, 9] = 5, 6, 7
    reads = RowReads(by_class, np.array([10, 20]), 4)
    programs = [BFS("hops", (0,))]
    found = traffic.ran([run_of(reads, edges=60), run_of(reads, edges=0)], programs)
    assert found.by_class is not None
    assert found.by_class[[3, 9]].tolist() == [22, 14] and found.by_class.sum() == 36
    assert found.others == 60 and 0 < found.bus_s < 2e-3
    assert value(metrics, "bus_bytes", way="zero_copy") == 2 * 4 * 128
    assert value(metrics, "program_remote_edges_read", program="hops") == 30
    stats = traffic.stats()
    # What a program says it has read counts where kernels counted less.
    assert stats["edges_read"]["hops"] == {"device": 45 + 33, "zero_copy": 30}
    measured = [stats["seconds"][way]["measured"] for way in ("device", "zero_copy")]
    assert sum(measured) == pytest.approx(2e-3) and measured[1] == pytest.approx(found.bus_s)
    for way, seconds in zip(("device", "zero_copy"), measured, strict=True):
        assert value(metrics, "read_seconds", way=way) == pytest.approx(seconds)
    traffic.ran([], [])
    gone = traffic.stats()
    assert gone["gigabytes_per_second"] == gone["edges_read"] == {}, "the program is gone"
    assert gone["bytes"] == stats["bytes"] and gone["seconds"] == stats["seconds"]


def test_what_was_told_stays_as_it_was(graphs: list[Graph]) -> None:
    """Another thread sends it while the next epochs are counted."""
    graphs.append(Graph())
    traffic, programs = Traffic(graphs[0], Metrics()), [BFS("hops", (0,)), BFS("others", (0,))]
    reads = RowReads(np.zeros((2, CLASSES), np.int64), np.array([10, 20]), 4)
    traffic.ran([run_of(reads)], programs)
    told, before = traffic.stats(), deepcopy(traffic.stats())
    traffic.ran([run_of(reads), run_of(reads)._replace(id="others")], programs)
    assert told == before != traffic.stats()


def test_epochs_in_which_no_rows_are_remote_say_nothing(graphs: list[Graph]) -> None:
    graphs.append(Graph())
    graph, metrics = graphs[0], Metrics()
    graph.apply(EdgeBatch(np.array([1], np.uint64), np.ones(1, np.uint8)), 100)
    traffic, hops = Traffic(graph, metrics), BFS("hops", (0,))
    hops.start(graph)
    at_home = ProgramRun("hops", Refresh({"word": None}), 1.0, None, False)
    assert traffic.ran([at_home, ProgramRun("hops", None, 1.0, "it failed")], [hops]) == NOTHING
    assert traffic.stats()["bytes"] == {"zero_copy": 0, "upload": 0, "download": 0}
    assert (
        traffic.ran([run_of(None, word=np.arange(7, dtype=np.uint32)), run_of(None, word=None)], [hops]) == NOTHING
    )
    assert traffic.stats()["bytes"]["download"] == 7 * (4 + 8) + 100 * 8


def test_without_classes_reads_are_of_any(graphs: list[Graph]) -> None:
    graphs.append(Graph())
    reads = RowReads(np.zeros((2, CLASSES), np.int64), np.array([10, 20]), 4)
    found = Traffic(graphs[0], Metrics()).ran([run_of(reads)], [])
    assert found.by_class is None and found.others == 30


class Living:
    """A graph on the host and on an emulated device, a search on it, and a rebalancer that sees what it reads.

    An edge from the source comes and goes: then the rows of ``READ`` are read, which are the host's at first;
    those of ``OTHERS``, which the device has, are not.
    """

    READ, OTHERS = np.arange(1, 61), np.arange(100, 140)
    N = 200

    def __init__(self, policy: str = "cost") -> None:
        self.graph = Graph(device=True, host_rows="owned", threads=1)
        self.metrics = Metrics()
        self.engine = Engine(
            self.graph, [BFS("hops", (0,))], lambda ids: np.array(ids, np.uint32), judge=Homes(lambda _: False)
        )
        self.sides = Sides(self.graph, self.metrics, programs=lambda: self.engine.programs)
        config = PartitionConfig(policy=policy)  # type: ignore[arg-type]
        self.moves = Rebalancing(self.graph, StorageGate(), self.room, self.metrics, config)
        rng = np.random.default_rng(7)
        chain = np.column_stack([self.READ[:-1], self.READ[1:]])
        self.engine.start()
        self.apply(np.concatenate([chain, rows(rng, self.READ, 8), rows(rng, self.OTHERS, 40)]))
        self.graph.migrate(self.READ.astype(np.uint32), HOST)

    def room(self) -> Room | None:
        """As much is free as neither has rows come nor go."""
        if self.graph.device is None:
            return None
        held = 20 * sum(array.n_edges for array in self.graph.device.arrays)
        return Room(held, int(held / 0.77))

    def apply(self, pairs: np.ndarray, op: int = 1) -> tuple[EdgeBatch, ProgramRun]:
        keys = pairs[:, 0].astype(np.uint64) << np.uint64(32) | pairs[:, 1].astype(np.uint64)
        batch = EdgeBatch(keys, np.full(keys.size, op, np.uint8))
        (run,) = self.engine.refresh(self.graph.apply(batch, self.N))
        assert run.error is None and run.on_device
        return batch, run

    def epoch(self, op: int) -> ProgramRun:
        """One that takes a second; the bus is so slow that reads over it take most of that."""
        batch, run = self.apply(np.array([[0, 1]]), op)
        reads = None if run.refresh is None else run.refresh.reads
        run = run._replace(seconds=0.01 + (0 if reads is None else BUS_BYTE_S * reads.bus_bytes))
        self.moves.after(Epoch(batch, [run], 1.0, self.sides.ran([run])))
        return run

    def reasons(self) -> list[str]:
        return [decision["reason"] for decision in self.moves.stats()["decisions"]]


def rows(rng: np.random.Generator, tails: np.ndarray, degree: int) -> np.ndarray:
    """So many edges of each, to vertices among them."""
    return np.unique(np.column_stack([np.repeat(tails, degree), rng.choice(tails, tails.size * degree)]), axis=0)


@pytest.fixture
def living(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Living]]:
    monkeypatch.setattr(moves, "EDGES_LEAST", 1)
    monkeypatch.setattr(run_costs, "BUS_BYTE_S", BUS_BYTE_S / 2)  # what is supposed is not so far off
    made: list[Living] = []

    def make(**how: Any) -> Living:
        made.append(Living(**how))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()
        one.graph.close()


def test_rows_that_are_read_come_to_the_device(living: Callable[..., Living], seed: int) -> None:
    """Classes are told, reads are counted by them, and what is read changes places with what is not."""
    cuda_emulator.seed(seed)
    there = living()
    before: list[int] = []
    for k in range(120):
        reads = there.epoch(k % 2).refresh.reads  # type: ignore[union-attr]
        before.append(0 if reads is None else reads.host_edges)
        if "gain" in there.reasons() and before[-1] == 0:
            break
    assert before[1] > 400, "all that is read is the host's"
    assert there.reasons() == ["gain"], there.moves.stats()
    owner = there.graph.placement.owner
    assert (owner[there.READ] == DEVICE).mean() > 0.9
    assert (owner[there.OTHERS] == HOST).any()
    assert there.graph.check() == []
    bus = there.sides.placement()["bus"]
    assert bus["bytes"]["zero_copy"] > 0 and bus["bytes"]["upload"] > 0 and bus["bytes"]["download"] > 0
    assert bus["edges_read"]["hops"]["zero_copy"] == sum(before)
    (decision,) = there.moves.stats()["decisions"]
    assert decision["gain_s"] > 0 and decision["moved_edges"] > 0


def test_rows_stay_where_all_are_worth_the_same(living: Callable[..., Living]) -> None:
    there = living(policy="hash")
    for k in range(60):
        there.epoch(k % 2)
    assert there.reasons() == []


def test_a_card_that_fails_when_it_is_told_classes_is_lost(living: Callable[..., Living]) -> None:
    there = living()
    there.moves.request()
    assert there.graph.device is not None
    classify = there.graph.device.classify

    def fail(classes: Any) -> None:
        with cuda_emulator.failing_card(0, quiet=True):
            classify(classes)

    there.graph.device.classify = fail  # type: ignore[method-assign]
    there.epoch(1)
    assert there.graph.device_lost is not None and there.graph.rows_lost


@pytest.mark.sample(among="a card that has rows fails")
def test_wherever_a_card_fails_while_rows_move_its_rows_are_lost_and_nothing_else(
    living: Callable[..., Living],
) -> None:
    """In the batch, in the run, when its reads are asked for, in a move, or when classes are told."""
    lost = 0
    for at in range(0, 400, 3):
        there = living()
        there.epoch(1)
        there.moves.request()
        with cuda_emulator.failing_card(at, quiet=at % 2 == 1) as fault:
            try:
                there.epoch(0)
            except RowsLost:
                assert there.graph.device is None
            is_broken = fault.broken
        if is_broken:
            assert there.graph.device_lost is not None and there.graph.rows_lost
            lost += 1
            continue
        assert there.graph.check() == []
        assert "request" in there.reasons()
        break
    assert lost > 5 and not is_broken
