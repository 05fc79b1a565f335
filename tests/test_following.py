"""The host follows a device: what waits for it is seen by nobody, and lost by nothing that fails."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any
from unittest import mock

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, random_history
from test_device_programs import MAKERS, STAY, Both, values_of
from test_device_side import KINDS, apply, assert_same_report, assert_sides_agree
from waiting import until

from graphtide.compute.engine import Engine
from graphtide.compute.walks.pagerank import PageRank
from graphtide.compute.walks.ppr import PersonalisedPageRank
from graphtide.gpma.edges import ChangeReport, EdgeBatch
from graphtide.gpma.gate import BeforeWriting, Gate
from graphtide.partition import behind, host_side, whole
from graphtide.partition.behind import Behind
from graphtide.partition.graph import Graph, NoMemory
from graphtide.partition.host_side import HostPlan

# Those that read no rows of the host while they are on the device.
FOLLOWED = {id: make for id, make in MAKERS.items() if id not in ("triangles", "lcc")}


@pytest.fixture
def on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host takes what waits only when its rows are needed: no thread does."""
    monkeypatch.setattr(Behind, "begin", lambda _: True)
    monkeypatch.setattr(whole, "SECONDS_MAX", 3600.0)


def ask(graph: Graph, alone: Graph, rng: np.random.Generator) -> None:
    """Anything that reads rows; ``alone``: the graph that has no device."""
    n = graph.n_vertices
    if n == 0:
        return
    vertex = int(rng.integers(n))
    keys = alone.export().keys[:20]
    questions: list[Callable[[Graph], Any]] = [
        lambda of: of.degrees("out")[:n],
        lambda of: of.neighbors(vertex, "out", 0, 9)[0],
        lambda of: of.has_edge(np.append(keys, np.uint64(vertex))),
        lambda of: of.weights_of(keys),
        lambda of: of.export().keys,
        lambda of: of.out_rows().degrees[:n],
        lambda of: of.rows_between("out", 0, n).degrees[:n],
        lambda of: of.views_ahead(["out"], np.arange(n, dtype=np.uint32))[0][0].degrees[:n],
        lambda of: np.array(of.check()),
    ]
    question = questions[int(rng.integers(len(questions)))]
    assert np.array_equal(question(graph), question(alone), equal_nan=True)
    assert graph.lag.updates == 0


def counts(graph: Graph) -> tuple[int, ...]:
    return graph.n_arcs, graph.n_edges, graph.n_vertices, graph.n_alive, graph.self_loops


@pytest.mark.sample(1, of="threaded")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threaded", [False, True], ids=["on demand", "by its thread"])
def test_nobody_sees_that_the_host_is_behind(
    cupy: ModuleType,
    graphs: list[Graph],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    seed: int,
    threaded: bool,
) -> None:
    """Reports, counts, questions and copies of the edges are those of a graph without a device, whenever the host
    is let follow."""
    cuda_emulator.seed(seed)
    rng = np.random.default_rng(seed)
    if not threaded:
        monkeypatch.setattr(Behind, "begin", lambda _: True)
    graph, alone = Graph(**KINDS[kind], device=True), Graph(**KINDS[kind])
    graphs += [graph, alone]
    history = random_history(seed, directed=alone.directed, epochs=40, vertex_share=0.1)
    copy, behind = None, 0
    for epoch in history.epochs:
        graph.let_follow(bool(rng.random() < 0.8))
        change, wanted = apply(graph, epoch), apply(alone, epoch)
        behind = max(behind, graph.lag.updates)
        assert counts(graph) == counts(alone)
        told = ("inserted", "overwritten", "deleted", "absent", "n_arcs", "absent_vertices")
        assert [getattr(change, name) for name in told] == [getattr(wanted, name) for name in told]
        assert np.array_equal(change.deleted_vertices, wanted.deleted_vertices)
        if rng.random() < 0.3:
            assert_same_report(change.arcs, wanted.arcs)
        if rng.random() < 0.3:
            ask(graph, alone, rng)
        if copy is None and rng.random() < 0.3:
            copy = graph.begin_copy()
        elif copy is not None and not copy.through:
            copy.copy_piece()
        elif copy is not None:
            graph.end_copy(copy)
            pieces = copy.edges()
            assert np.array_equal(np.concatenate([piece.keys for piece in pieces]), alone.export().keys)
            if alone.weighted:
                weights = np.concatenate([piece.weights for piece in pieces if piece.weights is not None])
                assert np.array_equal(weights, alone.export().weights)
            copy = None
    assert behind > 0 or threaded
    assert_sides_agree(graph)
    found, wanted_edges = graph.export(), alone.export()
    assert np.array_equal(found.keys, wanted_edges.keys)
    assert found.weights is None or np.array_equal(found.weights, wanted_edges.weights)


@pytest.mark.sample(1)
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_programs_on_the_device_need_no_rows_of_the_host(
    emulated_cupy: ModuleType, graphs: list[Graph], on_demand: None, directed: bool, seed: int
) -> None:
    """While all are there the host stays behind, and results are right all the same."""
    cuda_emulator.seed(seed)
    makers = FOLLOWED | {"pagerank": PageRank, "ppr": lambda id: PersonalisedPageRank(id, (0,))}
    pair = Both(graphs, directed=directed, makers=makers)
    try:
        pair.start()
        assert not pair.engine.reads_host
        pair.graph.let_follow(True)
        waiting = 0
        for epoch in random_history(seed, directed=directed, epochs=10, vertex_share=0.0).epochs:
            waiting += len(epoch)
            pair.host.refresh(apply(pair.host_graph, epoch))
            runs = pair.engine.refresh(apply(pair.graph, epoch))
            assert all(run.error is None and run.on_device for run in runs)
            assert pair.graph.lag.updates == waiting
            for id in FOLLOWED:
                found, wanted = pair.engine_program(id), pair.host.programs[list(makers).index(id)]
                assert values_of(found, pair.graph.n_vertices) == values_of(wanted, pair.graph.n_vertices), id
        assert not any(pair.engine.audit().values())
        assert pair.graph.lag.updates == 0
    finally:
        pair.close()


@pytest.fixture(params=[True, False], ids=["directed", "undirected"])
def pair(
    request: pytest.FixtureRequest, emulated_cupy: ModuleType, graphs: list[Graph], seed: int
) -> Iterator[Both]:
    cuda_emulator.seed(seed)
    made = Both(graphs, directed=request.param, makers=FOLLOWED, judge=STAY)
    yield made
    made.close()


def step(pair: Both, epoch: Epoch) -> None:
    """As the daemon does it."""
    pair.graph.let_follow(not pair.engine.reads_host)
    pair.host.refresh(apply(pair.host_graph, epoch))
    runs = pair.engine.refresh(apply(pair.graph, epoch))
    assert all(run.error is None for run in runs), runs
    pair.check_values()


class Visits:
    """Moves programs at random between a few epochs, and home to the device before the next ones."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.epoch = self.moves = 0

    def leaving(self, updates: int, seconds: float, on_device: Mapping[str, bool]) -> list[str]:
        phase = self.epoch % 6
        if phase == 5:
            return [id for id, is_there in on_device.items() if not is_there]
        return [id for id in on_device if phase > 1 and self._rng.random() < 0.4]

    def moved(self, id: str, seconds: float) -> None:
        self.moves += 1

    def forget(self, id: str) -> None:
        pass


class Recorder:
    """Moves these programs to the host after their first epoch, and notes what it is told."""

    def __init__(self, ids: set[str]) -> None:
        self.ids = set(ids)
        self.told: list[tuple[float, dict[str, bool]]] = []

    def leaving(self, updates: int, seconds: float, on_device: Mapping[str, bool]) -> set[str]:
        self.told.append((seconds, dict(on_device)))
        leaving, self.ids = self.ids, set()
        return leaving

    def moved(self, id: str, seconds: float) -> None: ...

    def forget(self, id: str) -> None: ...


def test_homes_are_judged_by_whole_epochs(emulated_cupy: ModuleType, graphs: list[Graph], on_demand: None) -> None:
    """With what applying took, which is longer where the host's rows cannot follow."""
    graph, judge = following(graphs), Recorder({"bfs", "components"})
    programs = [FOLLOWED["bfs"]("bfs"), FOLLOWED["components"]("components"), PageRank("pagerank")]
    ticks = iter(range(1 << 20))
    engine = Engine(
        graph,
        programs,
        lambda ids: np.zeros(len(ids), np.uint32),
        clock=lambda: float(next(ticks)),
        judge=judge,
    )
    try:
        engine.start()
        for epoch in range(3):
            graph.let_follow(not engine.reads_host)
            change = graph.apply(batch_of(epoch), 500)
            assert (graph.lag.updates > 0) == (epoch == 0), "it follows until two have left"
            before = next(ticks)
            runs = engine.refresh(change, 0.25)
            seconds, homes = judge.told[-1]
            assert homes == dict.fromkeys(("bfs", "components"), epoch == 0) | {"pagerank": True}
            assert max(run.seconds for run in runs) < seconds - 0.25 < next(ticks) - before
            assert seconds % 1 == 0.25 and [run.moved for run in runs] == 2 * [epoch == 0] + [False]
    finally:
        engine.close()


@pytest.mark.sample(1)
def test_programs_that_move_find_the_rows_of_their_epoch(pair: Both, seed: int) -> None:
    """Whenever no program is at home on the host, the host follows."""
    rng = np.random.default_rng(seed)
    pair.engine._judge = judge = Visits(seed)
    pair.start()
    follows = 0
    for judge.epoch, epoch in enumerate(random_history(seed, directed=pair.graph.directed, epochs=18).epochs):
        follows += not pair.engine.reads_host
        step(pair, epoch)
        if rng.random() < 0.2:
            assert not any(pair.engine.audit().values())
    assert follows >= 6 and judge.moves > 10
    assert not any(pair.engine.audit().values())


@pytest.mark.sample(among="a card that has rows fails")
def test_a_card_that_fails_while_the_host_is_behind_loses_nothing(pair: Both, seed: int) -> None:
    """Wherever it fails: the host catches up, and programs start over there in the same epoch."""
    rng = np.random.default_rng(seed)
    pair.start()
    with mock.patch.object(Behind, "begin", return_value=True):
        epochs = random_history(seed, directed=pair.graph.directed, epochs=12, vertex_share=0.05).epochs
        for epoch in epochs[:5]:
            step(pair, epoch)
        assert pair.graph.device is not None
        with cuda_emulator.failing_card(int(rng.integers(0, 120)), quiet=True):
            for epoch in epochs[5:10]:
                step(pair, epoch)
        for epoch in epochs[10:]:
            step(pair, epoch)
    assert not any(pair.engine.audit().values())
    assert np.array_equal(pair.graph.export().keys, pair.host_graph.export().keys)


@pytest.mark.sample(among="a card that has rows fails")
def test_a_card_may_fail_at_any_call_while_a_copy_is_made(
    emulated_cupy: ModuleType, graphs: list[Graph], on_demand: None, seed: int
) -> None:
    """What the copy must hear of a batch is the device's report, or else the host's."""
    lost = 0
    for at in range(0, 60, 3):
        graph, alone = Graph(directed=at % 2 == 0, device=True), Graph(directed=at % 2 == 0)
        graphs += [graph, alone]
        graph.let_follow(True)
        with cuda_emulator.failing_card(10**9, quiet=True) as card:
            for number in range(6):
                if number == 2:
                    copy = graph.begin_copy()
                    card.calls_left = at
                for each in (graph, alone):
                    each.apply(batch_of(seed + number, 300, 60), 60)
                assert counts(graph) == counts(alone)
        copy.finish()
        graph.end_copy(copy)
        found = np.concatenate([piece.keys for piece in copy.edges()])
        assert np.array_equal(found, alone.export().keys)
        assert np.array_equal(graph.export().weights, alone.export().weights)
        lost += graph.device is None
    assert lost > 10


def following(graphs: list[Graph]) -> Graph:
    """One whose host may follow; it is closed with the others."""
    graphs.append(graph := Graph(device=True))
    graph.let_follow(True)
    return graph


def batch_of(seed: int, n: int = 3000, n_vertices: int = 500) -> EdgeBatch:
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, n_vertices, (2, n))
    return EdgeBatch.of(*ends, rng.integers(0, 2, n), rng.random(n).astype(np.float32))


def test_rows_lie_in_no_place_while_the_host_is_behind(
    emulated_cupy: ModuleType, graphs: list[Graph], on_demand: None
) -> None:
    """Threads that read them where they lie wait for nothing."""
    graph, alone = following(graphs), Graph()
    graphs.append(alone)
    assert graph.rows_in_place() is not None
    for each in (graph, alone):
        each.apply(batch_of(1), 500)
    assert graph.rows_in_place() is None and graph.lag.updates == 3000
    graph.catch_up()
    found, expected = graph.rows_in_place(), alone.rows_in_place()
    assert found is not None and expected is not None
    for rows, others in zip(found, expected, strict=True):
        assert rows is not None and others is not None
        assert np.array_equal(rows.degrees[:500], others.degrees[:500])
    owned = Graph(device=True, host_rows="owned")
    graphs.append(owned)
    assert owned.rows_in_place() is None


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("n_updates", [50, 3000])
def test_readers_are_kept_out_once_a_batch_is_looked_up_where_the_host_keeps_up(
    emulated_cupy: ModuleType, graphs: list[Graph], on_demand: None, follows: bool, n_updates: int
) -> None:
    graph = following(graphs)
    graph.apply(batch_of(1), 500)
    assert graph.lag.updates == 3000
    seen: list[tuple[int, list[int]]] = []

    class Looks(BeforeWriting):
        def __call__(self) -> None:
            rows = graph.rows_in_place()
            seen.append((graph.lag.updates, [] if rows is None else rows[0].degrees[:500].tolist()))

    graph.let_follow(follows)
    graph.apply(batch_of(2, n_updates), 500, before_writing=Looks())
    assert seen.pop(0) == (3000, []), "it may have to catch up after that"
    seen.clear()
    degrees = graph.degrees("out")[:500].tolist()
    graph.apply(batch_of(3, n_updates), 600, before_writing=Looks())
    assert seen == [(0, degrees)]
    assert graph.lag.updates == (n_updates if follows else 0)
    assert graph.degrees("out")[:500].tolist() != degrees


@pytest.mark.parametrize("where", ["prepare_rows", "ensure_vertices"])
def test_a_host_without_memory_takes_it_later_and_no_batch_before(
    emulated_cupy: ModuleType, graphs: list[Graph], on_demand: None, where: str
) -> None:
    graph, alone = Graph(device=True), Graph()
    graphs += [graph, alone]
    graph.let_follow(True)
    for number in range(3):
        for each in (graph, alone):
            each.apply(batch_of(number), 500 + number)
    graph.let_follow(False)
    before = counts(graph)
    with mock.patch.object(graph.host, where, mock.Mock(side_effect=MemoryError("full"))):
        for _ in range(2):
            with pytest.raises(NoMemory, match="full"):
                graph.apply(batch_of(3), 510)
            with pytest.raises(NoMemory, match="full"):
                graph.begin_copy()
            with pytest.raises(MemoryError):
                graph.degrees("out")
            assert counts(graph) == before and graph.lag.updates == 9000
    for each in (graph, alone):
        each.apply(batch_of(3), 510)
    assert_sides_agree(graph)
    assert np.array_equal(graph.export().keys, alone.export().keys)


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("where", ["launch", "finish", "wait"])
def test_after_an_interrupt_host_and_device_hold_the_same_or_one_is_let_go(
    emulated_cupy: ModuleType, graphs: list[Graph], on_demand: None, where: str, follows: bool
) -> None:
    """``wait``: of the host, before it writes, for whoever copies its rows."""
    graph, n = Graph(device=True), host_side.ONE_CALL_UPDATES_MAX + 1
    graphs.append(graph)
    graph.apply(batch_of(0), 500)
    graph.let_follow(follows)
    before, device = graph.export(), graph.device
    if where == "wait":
        patched = mock.patch.object(graph.host._turnstile, "inside", mock.Mock())
    else:
        patched = mock.patch.object(device, where, mock.Mock(side_effect=KeyboardInterrupt))
    with patched as interrupts, contextlib.suppress(KeyboardInterrupt):
        if where == "wait":
            interrupts.acquire.side_effect = KeyboardInterrupt
        graph.apply(batch_of(1, n), 500)
        assert where == "wait" and follows, "only then nothing is waited for"
        return
    assert graph.device is None and "KeyboardInterrupt" in (graph.device_lost or "")
    if where == "finish" and not follows:  # the host has it by then, and nobody has heard of it
        assert graph.check() == [host_side.UNFINISHED]
        return
    assert graph.lag.updates == 0
    assert np.array_equal(graph.export().keys, before.keys)
    graph.apply(batch_of(1, n), 500)
    assert graph.check() == []


def test_nobody_goes_on_from_a_load_that_an_interrupt_broke_off(
    emulated_cupy: ModuleType, graphs: list[Graph]
) -> None:
    """The host has it by then, and nobody has heard of it."""
    graphs += (graph := Graph(device=True, directed=False)), (other := Graph(directed=False))
    graph.apply(batch_of(0), 500)
    other.apply(batch_of(1), 600)
    with (
        mock.patch.object(graph.device, "load", mock.Mock(side_effect=KeyboardInterrupt)),
        pytest.raises(KeyboardInterrupt),
    ):
        graph.load(other.export(), 600)
    assert graph.check() == [host_side.UNFINISHED]
    graph.load(other.export(), 600)
    assert graph.check() == [] and counts(graph) == counts(other)


def test_where_memory_is_short_the_host_refuses_before_the_device_has_it(
    emulated_cupy: ModuleType, graphs: list[Graph], on_demand: None
) -> None:
    graph = following(graphs)
    graph.apply(batch_of(0), 500)
    assert graph.lag.updates == 3000
    with (
        mock.patch.object(graph.memory, "allows", return_value=False),
        mock.patch.object(graph.host, "prepare_rows", mock.Mock(side_effect=MemoryError)),
        mock.patch.object(whole, "ASKED_EVERY_S", -1.0),
    ):
        edges = graph.n_edges
        with pytest.raises(NoMemory):
            graph.apply(batch_of(1), 500)
        assert graph.device is not None and graph.device.out.n_edges == edges == graph.n_edges
    graph.apply(batch_of(1), 500)
    assert_sides_agree(graph)


def test_a_batch_that_is_wrong_is_refused_by_both(
    emulated_cupy: ModuleType, graphs: list[Graph], on_demand: None
) -> None:
    graph = following(graphs)
    graph.apply(batch_of(0), 500)
    for ends in (([3], [700]), ([700], [3])):
        with pytest.raises(ValueError, match="vertex 700"):
            graph.apply(EdgeBatch.of(*ends), 500)
    with pytest.raises(ValueError, match="weight"):
        graph.apply(EdgeBatch.of([1], [2], weights=np.array([-1.0], np.float32)), 500)
    assert graph.lag.updates == 3000
    assert_sides_agree(graph)


def test_the_host_is_never_further_behind_than_it_may_be(
    emulated_cupy: ModuleType, graphs: list[Graph], on_demand: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = following(graphs)
    monkeypatch.setattr(whole, "WAITING_MIN", 7000)
    found = []
    for number in range(5):
        graph.apply(batch_of(number), 500)
        found.append(graph.lag.updates)
    assert found == [3000, 6000, 3000, 6000, 3000]
    assert graph.lag.n_bytes == 13 * 3000 and graph.memory_bytes()["scratch"] >= 13 * 3000
    monkeypatch.setattr(whole, "SECONDS_MAX", 0.0)
    until(lambda: graph.lag.seconds > 0)
    graph.apply(batch_of(5), 500)
    assert graph.lag.updates == 3000
    assert_sides_agree(graph)


def test_small_batches_gather_before_the_thread_takes_them(
    emulated_cupy: ModuleType, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(behind, "GATHER_S", 3600.0)
    monkeypatch.setattr(behind, "GATHERED", 8192)
    monkeypatch.setattr(whole, "SECONDS_MAX", 3600.0)
    graph, sizes = following(graphs), []
    prepare = graph.host.prepare_rows

    def noted(out: EdgeBatch, in_: EdgeBatch | None) -> Any:
        sizes.append(len(out))
        return prepare(out, in_)

    with mock.patch.object(graph.host, "prepare_rows", noted):
        for number in range(1, 4):
            graph.apply(EdgeBatch.of([number, 2], [3, 4]), 500)
            assert graph.lag.updates == 2 * number
        assert graph.neighbors(1, "out", 0, 9)[0].tolist() == [3], "whoever asks waits for nothing"
        assert sizes == [6] and graph.lag.updates == 0
        for number in range(3):
            graph.apply(batch_of(number), 500)
        until(lambda: graph.lag.updates == 0)
    assert sum(sizes) == 6 + 9000
    assert_sides_agree(graph)


def test_the_thread_takes_what_waits_as_one_batch_and_tries_again(
    emulated_cupy: ModuleType,
    graphs: list[Graph],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole, "SECONDS_MAX", 3600.0)  # else a batch would wait for the thread that is held
    graph = following(graphs)
    held, sizes = threading.Event(), []
    prepare = graph.host.prepare_rows
    refusals = [MemoryError("full"), MemoryError("full")]

    def slow(out: EdgeBatch, in_: EdgeBatch | None) -> Any:
        sizes.append(len(out))
        held.wait()
        if refusals:
            raise refusals.pop()
        return prepare(out, in_)

    with mock.patch.object(graph.host, "prepare_rows", slow), mock.patch.object(behind, "RETRY_S", 0.01):
        try:
            for number in range(4):
                graph.apply(batch_of(number), 500)
                until(lambda: sizes)
            assert graph.lag.updates == 12000
        finally:
            held.set()
        until(lambda: graph.lag.updates == 0)
    assert sizes == [3000, 12000, 12000]
    assert caplog.text.count("for want of memory") == 1
    assert_sides_agree(graph)


@pytest.mark.parametrize("n_updates", [10, 3000])
def test_the_device_takes_batches_while_the_host_writes_earlier_ones(
    emulated_cupy: ModuleType, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch, n_updates: int
) -> None:
    monkeypatch.setattr(behind, "GATHER_S", 0.0)
    monkeypatch.setattr(whole, "SECONDS_MAX", 3600.0)
    graph, alone = following(graphs), Graph()
    graphs.append(alone)
    writes, held = threading.Event(), threading.Event()
    commit = graph.host._commit

    def slow(plan: HostPlan, gate: Gate) -> ChangeReport:
        writes.set()
        held.wait()
        return commit(plan, gate)

    with mock.patch.object(graph.host, "_commit", slow):
        graph.apply(batch_of(0), 500)
        assert writes.wait(60)
        try:
            for number in range(1, 4):
                graph.apply(batch_of(number, n_updates), 500 + number)
                assert not graph.host.unfinished
            assert graph.lag.updates == 3000 + 3 * n_updates
        finally:
            held.set()
        until(lambda: graph.lag.updates == 0)
    for number in range(4):
        alone.apply(batch_of(number, n_updates if number else 3000), 500 + number)
    assert np.array_equal(graph.export().keys, alone.export().keys)
    assert_sides_agree(graph)


def test_a_mistake_is_told_to_whoever_needs_the_rows(
    emulated_cupy: ModuleType, graphs: list[Graph], on_demand: None
) -> None:
    graph = following(graphs)
    graph.apply(batch_of(0), 500)
    with (
        mock.patch.object(graph.host, "commit", mock.Mock(side_effect=IndexError("oh"))),
        pytest.raises(IndexError),
    ):
        graph.export()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="could not take"):
            graph.export()
