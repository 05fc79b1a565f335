"""The daemon moves rows between two sides, both the host's here: epochs in, moves out, contents as they were."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from test_memory import System, edges, pipeline_of, prepared

from graphtide.daemon.config.load import from_tables
from graphtide.daemon.config.sections.storage import PartitionConfig
from graphtide.daemon.contents import Contents
from graphtide.daemon.engine import rebalancing as module
from graphtide.daemon.engine.rebalancing import Epoch, Rebalancing, Room
from graphtide.daemon.engine.sides import Sides
from graphtide.daemon.engine.storage import StorageGate
from graphtide.daemon.errors import ConfigError
from graphtide.daemon.ingest.prepared import PreparedQueue
from graphtide.gpma.edges import EdgeBatch, EdgeList
from graphtide.ops.areas.sides import MOVE_REASONS
from graphtide.ops.metrics import Metrics
from graphtide.partition.classes import DEVICE
from graphtide.partition.graph import Graph, NoMemory
from graphtide.partition.moves import Move, Reason
from graphtide.partition.placement import HOST
from graphtide.partition.split_rows import SideFull

N = 2000
EPOCHS_MAX = 3000
"""Far more than any decision takes."""


class Setting:
    """A graph on two sides, epochs of it, and the memory of the second side as the test wants it."""

    def __init__(self, seed: int, **config: Any) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph = Graph(host_rows="owned", host_sides=2)
        self.graph.sides[1].name = "device"
        self.limit: int | None = 1 << 30
        self.metrics = Metrics()
        self.moves = Rebalancing(self.graph, StorageGate(), self.room, self.metrics, PartitionConfig(**config))

    def room(self) -> Room | None:
        held = 20 * sum(array.n_edges for array in self.graph.sides[1].arrays)
        return None if self.limit is None else Room(held, self.limit)

    def epoch(self, updates: int = 500, seconds: float = 1.0) -> None:
        keys = self.rng.integers(0, N, updates) << 32 | self.rng.integers(0, N, updates)
        ops = (self.rng.random(updates) < 0.7).astype(np.uint8)
        batch = EdgeBatch(keys.astype(np.uint64), ops, np.ones(updates, np.float32))
        self.graph.apply(batch, N)
        before = self.graph.export()
        self.moves.after(Epoch(batch, [], seconds))
        assert self.graph.export().keys.tobytes() == before.keys.tobytes()

    def until(self, done: Any) -> int:
        """Epochs until it is done; how many those were."""
        for number in range(EPOCHS_MAX):
            if done():
                return number
            self.epoch(20)
        pytest.fail(str(self.moves.stats()))

    def all_to_the_device(self) -> None:
        self.graph.migrate(np.arange(N, dtype=np.uint32), 1)

    def owned(self) -> tuple[int, ...]:
        return self.graph.placement.owned

    def value(self, name: str, **labels: str) -> float:
        found = self.metrics.registry.get_sample_value(f"graphtide_placement_{name}", labels)
        assert found is not None
        return found


def no_memory(side: int) -> NoMemory:
    """What a batch raises for which a side has no memory."""
    error = NoMemory("it is full")
    error.__cause__ = SideFull(side, "it is full")
    return error


@pytest.fixture
def setting(seed: int) -> Iterator[Setting]:
    made = Setting(seed)
    yield made
    made.graph.close()


def test_reasons_are_those_of_the_rebalancer() -> None:
    assert get_args(Reason) == MOVE_REASONS


def test_a_request_moves_rows_and_all_of_it_is_told(setting: Setting) -> None:
    setting.epoch()
    assert setting.owned() == (N, 0)
    setting.moves.request()
    assert setting.until(lambda: setting.owned()[1] > 0) <= 2
    edges = setting.value("moved_edges_total", reason="request", to="device")
    assert edges == sum(array.n_edges for array in setting.graph.sides[1].arrays) > 0
    vertices = setting.value("moved_vertices_total", reason="request", to="device")
    stats = setting.moves.stats()
    assert (
        (stats["moved"]["vertices"], stats["moved"]["edges"]) == (vertices, edges) == (setting.owned()[1], edges)
    )
    assert stats["newcomers"] == "device" == setting.graph.sides[setting.graph.placement.newcomers].name
    decision = stats["decisions"][-1]
    assert (decision["reason"], decision["to_host"], decision["epochs_ago"]) == ("request", 0, 0)
    moved = np.flatnonzero(setting.graph.placement.owner == 1).astype(np.uint32)
    stayed = np.flatnonzero(setting.graph.placement.owner == 0).astype(np.uint32)
    assert set(setting.moves.why(moved)) == {"request"}
    assert set(setting.moves.why(stayed)) | {"placed"} == {"placed"}
    assert setting.moves.why(np.array([10**6], np.uint32)) == ["placed"]
    setting.epoch()  # takes what moves cost
    assert setting.moves.stats()["decisions"][-1]["moved_edges"] == edges


def test_rows_leave_when_memory_is_short_and_newcomers_go_to_the_host(setting: Setting) -> None:
    setting.epoch()
    setting.all_to_the_device()
    setting.limit = 20 * sum(array.n_edges for array in setting.graph.sides[1].arrays)
    setting.until(lambda: setting.value("moved_edges_total", reason="headroom", to="host") > 0)
    assert setting.graph.placement.newcomers == 0
    assert setting.owned()[0] > 0


def test_a_move_that_finds_no_memory_is_counted_and_not_tried_again_at_once(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []

    def migrate(vertices: Any, to: int, edges: int) -> None:
        tried.append(to)
        raise NoMemory("it is full")

    with monkeypatch.context() as patched:
        patched.setattr(setting.graph, "migrate", migrate)
        setting.epoch()
        setting.moves.request()
        setting.until(lambda: tried)
        with caplog.at_level(logging.WARNING):
            for _ in range(30):
                setting.epoch(20)
    assert tried == [1] and setting.owned() == (N, 0)
    assert setting.value("move_failures_total") == 1
    assert setting.moves.stats()["moved"]["last_failure"] == "request: it is full"
    assert setting.moves.stats()["decisions"][-1]["state"] == "dropped"
    setting.moves.request()
    setting.until(lambda: setting.owned()[1] > 0)


def test_no_memory_for_a_batch_has_rows_leave_more_of_them_each_time_and_at_last_all(setting: Setting) -> None:
    full = no_memory(1)
    assert not setting.moves.make_room(full, 10, 0), "there are none"
    setting.epoch()
    setting.all_to_the_device()
    left = []
    assert not setting.moves.make_room(no_memory(0), 1, 0), "it is the host that is full"
    assert not setting.moves.make_room(NoMemory("somewhere"), 1, 0)
    for tries in range(3):
        assert setting.moves.make_room(full, 1, tries)
        left.append(setting.owned()[1])
    assert N > left[0] > left[1] > left[2] == 0
    assert not setting.moves.make_room(full, 1, 3)
    assert setting.value("moved_vertices_total", reason="evict", to="host") == N
    setting.limit = None
    assert not setting.moves.make_room(full, 1, 0), "the device is gone"
    setting.epoch()


def test_rows_leave_for_want_of_memory_though_they_are_frozen(setting: Setting) -> None:
    """And stay frozen: what left does not come back, and new vertices are the host's, until they may move."""
    setting.epoch()
    setting.all_to_the_device()
    setting.moves.freeze(thaw=False)
    setting.moves.request()
    before = setting.graph.export()
    assert setting.moves.make_room(no_memory(1), 10, 0)
    owned = setting.owned()
    assert 0 < owned[0] < N and setting.moves.frozen
    for _ in range(100):
        setting.epoch(20)
        assert setting.owned() == owned
    assert setting.moves.make_room(no_memory(1), 10, module.ALL_LEAVE)
    assert setting.owned() == (N, 0) and setting.moves.frozen
    assert [one["reason"] for one in setting.moves.stats()["decisions"]] == ["evict", "evict"]
    assert setting.graph.n_edges > 0 and len(before) > 0
    setting.moves.freeze(thaw=True)
    setting.until(lambda: setting.owned()[1] > 0)


def test_new_vertices_that_the_device_has_no_memory_for_are_the_hosts_at_once(setting: Setting) -> None:
    setting.graph.placement.newcomers = 1
    assert setting.moves.make_room(no_memory(1), 10, 0), "the batch is tried again"
    setting.graph.apply(EdgeBatch.of([0], [1], weights=[1.0]), N)
    assert setting.owned() == (N, 0)


def test_a_device_without_rows_that_has_no_memory_is_given_up(emulated_cupy: ModuleType) -> None:
    graph = Graph(host_rows="owned", device=True)

    def room() -> Room | None:
        return None if graph.device is None else Room(0, 1)

    pool = emulated_cupy.get_default_memory_pool()
    try:
        moves = Rebalancing(graph, StorageGate(), room, Metrics(), PartitionConfig())
        pool.set_limit(pool.used_bytes())
        for tries in range(2):
            with pytest.raises(NoMemory) as refused:
                graph.apply(EdgeBatch.of([0], [1], weights=[1.0]), 1 << 20)
            assert moves.make_room(refused.value, 1, tries)
        assert graph.apply(EdgeBatch.of([0], [1], weights=[1.0]), 1 << 20).inserted == 1
        assert graph.device is None and not graph.rows_lost
        assert graph.device_lost is not None and "it has no memory" in graph.device_lost
    finally:
        pool.set_limit()
        graph.close()


def test_a_card_that_fails_when_asked_for_its_memory_is_lost(emulated_cupy: ModuleType) -> None:
    """That is what the process starts again for, and no mistake of its own."""

    class Failing:
        held_bytes = 0

        @property
        def available_bytes(self) -> int:
            raise RuntimeError("cudaErrorIllegalAddress")

    graph = Graph(host_rows="owned", device=True)
    try:
        graph.apply(EdgeBatch.of([0], [1], weights=[1.0]), 2)
        running: Any = SimpleNamespace(graph=graph, card=Failing())
        assert Contents.room(running) is None
        assert graph.rows_lost and graph.device_lost == "RuntimeError: cudaErrorIllegalAddress"
        Sides(graph, Metrics()).look()  # the epoch at hand is told to its end
        assert graph.n_edges == 1 and graph.memory_bytes() and 0 <= graph.density <= 1
    finally:
        graph.close()


def test_memory_that_a_pool_keeps_free_has_room_for_rows(emulated_cupy: ModuleType) -> None:
    """Else rows that leave would make no room: what they give back is kept there."""
    graph = Graph(host_rows="owned", device=True)
    try:
        rows = sum(graph.sides[1].memory_bytes().values())
        memory = {"available_bytes": 10**9, "held_bytes": 9 * 10**8, "used_bytes": rows + 10**8}
        for spare in (0, 10**7):  # what goes as soon as it is needed is as free
            card: Any = SimpleNamespace(**memory, spare_bytes=spare)
            running: Any = SimpleNamespace(graph=graph, card=card)
            assert Contents.room(running) == Room(rows, 9 * 10**8 + spare, spare)
    finally:
        graph.close()


def test_imbalance_ends_with_the_device(setting: Setting) -> None:
    setting.metrics.imbalance(0.9)
    setting.limit = None
    setting.epoch()
    assert setting.value("imbalance_ratio") == 0


def test_rows_without_edges_leave_where_no_others_can(setting: Setting) -> None:
    setting.graph.placement.newcomers = 1
    setting.graph.apply(EdgeBatch.of([], [], weights=[]), N)
    assert setting.owned() == (0, N)
    for tries in range(3):
        setting.moves.make_room(no_memory(1), 10, tries)
    assert setting.owned() == (N, 0)


def test_an_epoch_that_the_device_has_no_memory_for_goes_on_when_rows_have_left(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setting.epoch()
    setting.all_to_the_device()
    queue, waited, refusals = PreparedQueue(100), list[Any](), [no_memory(1), no_memory(1)]
    pipeline = pipeline_of(setting.graph, queue, setting.metrics, System(tmp_path), waited)
    pipeline.rebalancing = setting.moves
    apply = setting.graph.apply

    def refusing(*given: Any, **named: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return apply(*given, **named)

    monkeypatch.setattr(setting.graph, "apply", refusing)
    before = setting.graph.n_edges
    queue.put(prepared(edges(8), N))
    assert pipeline._epoch(queue.take(100, timeout_s=60))
    assert not refusals and setting.graph.n_edges > before
    assert 0 < setting.owned()[1] < N and set(waited) <= {None}
    assert [one["reason"] for one in setting.moves.stats()["decisions"]][-2:] == ["evict", "evict"]


def test_nothing_moves_to_a_side_that_is_gone(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails when the last rows have left it: they are on the host, and no others may go the other way."""
    setting.epoch()
    setting.all_to_the_device()
    everything, some = np.arange(N, dtype=np.uint32), np.arange(5, dtype=np.uint32)
    ordered = [Move(everything, HOST, "balance", 1), Move(some, DEVICE, "balance", 1)]
    monkeypatch.setattr(setting.moves._rebalancer, "observe", lambda measures: ordered)
    monkeypatch.setattr(setting.moves._rebalancer, "newcomers", DEVICE)
    migrate = setting.graph.migrate

    def moves_and_fails(vertices: Any, to: int, edges: int) -> Any:
        moved = migrate(vertices, to, edges)
        setting.limit = None
        setting.graph.placement.newcomers = HOST
        return moved

    monkeypatch.setattr(setting.graph, "migrate", moves_and_fails)
    setting.epoch()
    assert setting.graph.placement.owned == (N, 0)
    assert setting.graph.placement.newcomers == HOST


def test_what_is_frozen_stays(seed: int) -> None:
    setting = Setting(seed, rebalance=False)
    try:
        assert setting.moves.frozen and setting.value("frozen") == 1
        setting.epoch()
        setting.moves.request()
        for _ in range(5):
            setting.epoch(20)
        assert setting.owned() == (N, 0)
        setting.moves.freeze(thaw=True)
        assert not setting.moves.stats()["frozen"] and setting.value("frozen") == 0
        setting.until(lambda: setting.owned()[1] > 0)
        setting.moves.freeze(thaw=False)
        owned = setting.owned()
        for _ in range(5):
            setting.epoch(20)
        assert setting.owned() == owned
    finally:
        setting.graph.close()


def test_imbalance_is_of_two_sides_that_both_have_rows(setting: Setting) -> None:
    setting.epoch()
    assert setting.value("imbalance_ratio") == 0
    setting.moves.request()
    setting.until(lambda: setting.owned()[1] > 0)
    setting.graph.migrate(np.arange(N // 2, dtype=np.uint32), 0)
    setting.graph.migrate(np.arange(N // 2, N, dtype=np.uint32), 1)
    setting.epoch()
    times = sorted(side.seconds for side in setting.graph.applied)
    assert setting.value("imbalance_ratio") == pytest.approx(1 - times[0] / times[1])


def test_stats_by_side_are_by_owner(setting: Setting) -> None:
    sides = Sides(setting.graph, setting.metrics)
    setting.epoch()
    setting.graph.migrate(np.arange(100, dtype=np.uint32), 1)
    sides.look()
    stats = sides.stats()
    assert (stats["host_rows"], stats["vertices"]) == ("owned", [N - 100, 100])
    assert sum(stats["edges"]) == setting.graph.n_edges and 0 < stats["edges"][1] < stats["edges"][0]
    assert min(stats["bytes"]) > 0
    shown = setting.metrics.registry.get_sample_value("graphtide_side_vertices", {"side": "host"})
    assert shown == N - 100


def test_a_device_that_is_lost_without_rows_is_no_side_any_more(emulated_cupy: ModuleType) -> None:
    graph = Graph(host_rows="owned", device=True)
    try:
        sides = Sides(graph, Metrics())
        graph.drop_device("it was unplugged")
        graph.apply(EdgeBatch.of([0], [1], weights=[1.0]), 2)
        sides.look()
        stats = sides.stats()
        assert (stats["sides"], stats["vertices"], stats["edges"]) == (["host"], [2], [1])
    finally:
        graph.close()


@pytest.mark.parametrize("fits", [True, False])
def test_a_load_divides_rows_as_there_is_room(setting: Setting, fits: bool) -> None:
    keys = np.unique(setting.rng.integers(0, N, 20_000) << 32 | setting.rng.integers(0, N, 20_000)).astype(
        np.uint64
    )
    edges = EdgeList(keys, np.ones(keys.size, np.float32))
    limit = 1 << 30 if fits else keys.size * 2 * 17 // 2
    module.load(setting.graph, edges, N + 1, np.array([N], np.uint32), Room(0, limit), "cost")
    assert setting.graph.n_alive == N
    assert setting.graph.export().keys.tobytes() == keys.tobytes()
    host, device = setting.owned()
    assert host + device == N + 1 and device > 0
    assert (host == 0) == fits


# -- the setting ----------------------------------------------------------------------------------------------


def test_wrong_settings_of_the_partition_are_named() -> None:
    with pytest.raises(ConfigError, match=r"partition\.policy.*cost"):
        from_tables({"partition": {"policy": "random"}})
    with pytest.raises(ConfigError, match=r"partition\.host_rows"):
        from_tables({"partition": {"host_rows": "both"}})
