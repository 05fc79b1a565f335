"""The device keeps the host's rows: both hold the same after every change; and where it fails the host goes on."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, mixed_sizes, random_history, rmat_history

from graphtide.gpma.device.update import SMALL_MAX
from graphtide.gpma.edges import ChangeReport, EdgeBatch, EdgeList, Op, destinations, pack, sources
from graphtide.partition.existence import VertexOps
from graphtide.partition.graph import Graph, GraphChange, NoMemory

# What a graph keeps, by name: those whose sides differ in what they do.
KINDS: dict[str, dict[str, bool]] = {
    "directed": {},
    "in-rows without weights": {"in_weights": False},
    "out-rows alone": {"in_edges": False},
    "unweighted": {"weighted": False},
    "undirected": {"directed": False},
    "undirected, unweighted": {"directed": False, "weighted": False},
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, bool]:
    return KINDS[request.param]


def apply(graph: Graph, epoch: Epoch) -> GraphChange:
    return graph.apply(epoch.batch(weighted=graph.weighted), epoch.n_vertices, epoch.vertex_ops())


def assert_same_report(found: ChangeReport, wanted: ChangeReport) -> None:
    for part in ("inserted", "overwritten", "deleted"):
        here, there = getattr(found, part), getattr(wanted, part)
        assert np.array_equal(here.keys, there.keys), part
        assert (here.weights is None) == (there.weights is None)
        assert here.weights is None or np.array_equal(here.weights, there.weights), part
    assert np.array_equal(found.absent, wanted.absent)
    assert (found.overwritten_old is None) == (wanted.overwritten_old is None)
    assert found.overwritten_old is None or np.array_equal(found.overwritten_old, wanted.overwritten_old)


def assert_sides_agree(graph: Graph) -> None:
    """``check`` compares their edges and weights."""
    assert graph.device is not None, graph.device_lost
    assert graph.check() == []
    assert graph.device.n_vertices == graph.n_vertices
    assert [array.n_edges for array in graph.device.arrays] == [array.n_edges for array in graph.host.arrays]


def reload(graph: Graph) -> None:
    dead = np.flatnonzero(~graph.alive).astype(np.uint32)
    graph.load(graph.export(), graph.n_vertices + 3, dead)


@pytest.mark.sample(1, of="way")
@pytest.mark.parametrize("way", ["random", "rmat"])
def test_histories_leave_both_sides_equal(
    cupy: ModuleType, graphs: list[Graph], kind: dict[str, bool], seed: int, way: str, run_long: bool
) -> None:
    cuda_emulator.seed(seed)
    directed = kind.get("directed", True)
    for number in range(20 if run_long else 2):
        if way == "random":
            history = random_history(seed + number, directed=directed, epochs=30, vertex_share=0.2)
        else:  # small ones, which the host applies by one call, and others
            sizes = mixed_sizes(seed + number, 12, 3000)
            history = rmat_history(seed + number, directed=directed, scale=6, updates=sizes, vertex_share=0.01)
        graph = Graph(**kind, device=True)
        graphs.append(graph)
        for epoch in history.epochs:
            more = graph.n_vertices  # a load came with vertices of its own
            change = apply(
                graph, Epoch(epoch.src, epoch.dst, epoch.ops, epoch.weights, max(epoch.n_vertices, more))
            )
            assert_sides_agree(graph)
            assert_same_report(graph.device.report.sorted(), change.arcs)
            if len(epoch) % 7 == 3:
                reload(graph)
                assert_sides_agree(graph)
                assert len(graph.device.report) == 0


def test_minus_zero_is_zero_on_both_sides(emulated_cupy: ModuleType, graphs: list[Graph]) -> None:
    graphs.append(graph := Graph(device=True))
    for n in (1, 2000):  # by one call, and not
        graph.apply(EdgeBatch.of(np.arange(n), np.arange(n), weights=np.full(n, -0.0)), n)
        assert not np.signbit(emulated_cupy.asnumpy(graph.device.out.export().weights)).any()
        assert_sides_agree(graph)


def test_a_batch_in_one_leaf_that_the_kernels_give_up(emulated_cupy: ModuleType, graphs: list[Graph]) -> None:
    graphs.append(graph := Graph(device=True))
    rng = np.random.default_rng(1)
    graph.apply(EdgeBatch.of(rng.integers(0, 40, 5000), rng.integers(0, 3000, 5000)), 3000)
    for n in (100, 100, 2100):
        batch = EdgeBatch.of(np.full(n, 7), rng.permutation(3000)[:n], weights=rng.random(n))
        change = graph.apply(batch, 3000)
        assert_sides_agree(graph)
        assert_same_report(graph.device.report.sorted(), change.arcs)


def test_the_ways_of_a_batch_to_both_arrays(
    emulated_cupy: ModuleType, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Read where it lies, transferred before, and by other kernels; from columns of the device's and others."""
    cuda_emulator.seed(seed)
    kinds = {name: kind for name, kind in KINDS.items() if kind.get("in_edges", True)}
    for kind in kinds.values():
        graphs.append(graph := Graph(**kind, device=True))
        device = graph.device
        assert device is not None
        for most in (SMALL_MAX, 40):
            monkeypatch.setattr("graphtide.gpma.device.array.SMALL_MAX", most)
            if device._both is not None:
                device._both.small_max = most
            rng = np.random.default_rng(seed)
            for n in (2000, 30, 700, 1, 1500, 60):
                weights = rng.random(n) if graph.weighted else None
                batch = EdgeBatch.of(rng.integers(0, 90, n), rng.integers(0, 90, n), weights=weights)
                batch.ops[:] = rng.random(n) < 0.6
                if n % 20 == 0:
                    own = device.columns(n, weighted=graph.weighted)
                    own.keys[:], own.ops[:] = batch.keys, batch.ops
                    if own.weights is not None:
                        own.weights[:] = batch.weights
                    batch = own
                change = graph.apply(batch, 90)
                assert_sides_agree(graph)
                assert_same_report(device.report.sorted(), change.arcs)


def test_columns_that_a_kernel_may_still_read_are_waited_for(
    emulated_cupy: ModuleType, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where whoever began a batch did not come to its end."""
    graphs.append(graph := Graph(device=True))
    rng = np.random.default_rng(2)
    device = graph.device
    assert device is not None
    graph.apply(EdgeBatch.of(rng.integers(0, 300, 5000), rng.integers(0, 300, 5000)), 300)
    waits: list[int] = []
    monkeypatch.setattr(device.stream, "synchronize", lambda: waits.append(1), raising=False)
    for batch in (device.columns(20, weighted=True), EdgeBatch.of([1, 2], [3, 4], weights=[0.5, 0.25])):
        for column in (batch.keys, batch.ops, batch.weights):
            column[:] = 1
        waits.clear()
        plan = device.prepare(batch)
        assert device._both is not None and device._both.takes(batch)
        device.launch(plan)
        waits.clear()
        device.columns(20, weighted=True)
        assert waits


def test_programs_find_the_rows_to_pull_from(emulated_cupy: ModuleType, graphs: list[Graph]) -> None:
    for kind in KINDS.values():
        graphs.append(graph := Graph(**kind, device=True))
        device = graph.device
        assert device is not None
        if not graph.directed:
            assert device.in_ is None and device.in_rows is device.out
        elif kind.get("in_edges", True):
            assert device.in_rows is device.in_
            assert device.in_.weighted == graph.in_weighted
        else:
            with pytest.raises(LookupError, match="keeps no in-rows"):
                _ = device.in_rows


@pytest.mark.sample(2)
def test_columns_of_the_graph_are_uploaded_from_where_they_are(
    emulated_cupy: ModuleType, graphs: list[Graph], kind: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs.append(graph := Graph(**kind, device=True))
    rng = np.random.default_rng(4)
    for n in (3, 0, 2500, 40, 2600):
        batch = graph.columns(n, weighted=graph.weighted)
        batch.keys[:] = pack(rng.integers(0, 300, n), rng.integers(0, 300, n))
        batch.ops[:] = rng.integers(0, 2, n)
        if batch.weights is not None:
            batch.weights[:] = rng.integers(1, 9, n)
        graph.device._staging._host.flags.writeable = False  # whoever copies into it fails
        with monkeypatch.context() as patched:  # the same columns, once more
            patched.setattr(graph.host, "prepare_rows", mock.Mock(side_effect=MemoryError))
            patched.setattr(graph.host, "apply_small", mock.Mock(side_effect=MemoryError))
            if n:
                with pytest.raises(NoMemory):
                    graph.apply(batch, 3000)
        change = graph.apply(batch, 3000)
        assert_sides_agree(graph)
        assert_same_report(graph.device.report.sorted(), change.arcs)
        graph.device._staging._host.flags.writeable = True
        graph.apply(anywhere(50), 3000)  # others, which are copied
        assert_sides_agree(graph)


def test_the_device_works_while_the_host_writes(emulated_cupy: ModuleType, graphs: list[Graph]) -> None:
    graphs.append(graph := Graph(device=True))
    order = mock.Mock()
    for owner, names in (
        (graph.host, ("prepare_rows", "commit")),
        (graph.device, ("prepare", "launch", "finish")),
    ):
        for name in names:
            side = "host" if owner is graph.host else "device"
            spy = mock.Mock(wraps=getattr(owner, name))
            setattr(owner, name, spy)
            order.attach_mock(spy, f"{side}_{name}")
    graph.apply(EdgeBatch.of(np.arange(2000), np.arange(2000)), 2000)
    names = [name for name, *_ in order.mock_calls if not name.startswith("().")]
    assert names == ["host_prepare_rows", "device_prepare", "device_launch", "host_commit", "device_finish"]
    assert_sides_agree(graph)


# Tried before it is used.


@pytest.mark.sample(1)
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_device_is_tried_before_it_is_used(cupy: ModuleType, directed: bool, weighted: bool) -> None:
    from graphtide.partition import device_side

    for in_edges, in_weights in ((False, False), (True, False), (True, True)):
        kept = {"directed": directed, "weighted": weighted, "in_edges": in_edges, "in_weights": in_weights}
        device_side.warm_up(**kept)


def test_a_device_that_computes_wrong_is_found_out(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.partition import device_side

    finish = device_side.DeviceSide.finish

    def forgetful(side: Any, plan: Any) -> None:
        finish(side, plan)
        side.out.load(side.out.export().__class__(side.out.export().keys[1:], side.out.export().weights[1:]))

    monkeypatch.setattr(device_side.DeviceSide, "finish", forgetful)
    with pytest.raises(RuntimeError, match="out-rows are not the host's"):
        device_side.warm_up(directed=True, weighted=True, in_edges=True, in_weights=True)


# What goes wrong.


def base(graphs: list[Graph], kind: dict[str, bool], *, device: bool) -> Graph:
    """A graph of 3,000 edges in 40 rows."""
    graph = Graph(**kind, device=device)
    graphs.append(graph)
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, 40, 3000), rng.integers(0, 400, 3000)
    graph.apply(EdgeBatch.of(src, dst, weights=rng.integers(1, 9, 3000)), 400)
    return graph


def anywhere(n: int, seed: int = 3) -> EdgeBatch:
    rng = np.random.default_rng(seed)
    return EdgeBatch.of(
        rng.integers(0, 450, n), rng.integers(0, 450, n), rng.integers(0, 2, n), rng.integers(1, 9, n)
    )


def hub() -> EdgeBatch:
    """Updates of which many fall into one leaf."""
    return EdgeBatch.of(np.full(300, 3), 100 + np.arange(300), weights=np.full(300, 2.0))


def shrink(graph: Graph) -> GraphChange:
    keys = graph.export().keys
    keys = keys[: keys.size * 9 // 10]
    return graph.apply(EdgeBatch.of(sources(keys), destinations(keys), np.zeros(keys.size)), 450)


def vertices_go(graph: Graph) -> GraphChange:
    ops = VertexOps(
        np.array([3, 7], np.uint32), np.full(2, Op.DELETE_VERTEX, np.uint8), np.array([0, 20], np.int64)
    )
    return graph.apply(anywhere(40), 450, ops)


CHANGES: dict[str, Callable[[Graph], Any]] = {
    "small": lambda graph: graph.apply(anywhere(30), 450),
    "large": lambda graph: graph.apply(anywhere(1500), 450),
    "growth": lambda graph: graph.apply(anywhere(6000), 450),
    "into one leaf": lambda graph: graph.apply(hub(), 450),
    "shrink": shrink,
    "vertices go": vertices_go,
    "load": lambda graph: graph.load(EdgeList(pack([0, 1, 2], [1, 0, 2]), np.ones(3, np.float32)), 500),
}


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest) -> Callable[[Graph], Any]:
    return CHANGES[request.param]


def edges_of(graph: Graph) -> tuple[list[int], list[float]]:
    edges = graph.export()
    return edges.keys.tolist(), [] if edges.weights is None else edges.weights.tolist()


def assert_host_went_on(graph: Graph, alone: Graph) -> None:
    """Without the device, as a graph that never had one."""
    assert graph.device is None
    assert (edges_of(graph), graph.n_vertices) == (edges_of(alone), alone.n_vertices)
    assert graph.check() == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["directed", "undirected"])
def test_a_device_without_memory_is_dropped_and_the_host_goes_on(
    emulated_cupy: ModuleType, graphs: list[Graph], change: Callable[[Graph], Any], name: str
) -> None:
    alone = base(graphs, KINDS[name], device=False)
    change(alone)
    dropped = 0
    for at in itertools.count():
        graph = base(graphs, KINDS[name], device=True)
        with cuda_emulator.failing_allocation(at) as left:
            change(graph)
            failed = not left
        if graph.device is None:
            dropped += 1
            assert graph.device_lost == "OutOfMemoryError: this allocation was made to fail"
            assert_host_went_on(graph, alone)
        else:  # it could do without
            assert graph.device_lost is None
            assert_sides_agree(graph)
        if not failed:
            break
    assert dropped or at == 0
    assert edges_of(graph) == edges_of(alone)


@pytest.mark.sample(3)
@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("name", ["directed", "undirected"])
def test_a_card_that_fails_at_any_launch_or_wait_is_dropped_and_the_host_goes_on(
    emulated_cupy: ModuleType,
    graphs: list[Graph],
    change: Callable[[Graph], Any],
    name: str,
    quiet: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from graphtide.gpma.device import waiting

    monkeypatch.setattr(waiting, "LOOKS_MAX", 10)
    alone = base(graphs, KINDS[name], device=False)
    change(alone)
    for at in itertools.count():
        graph = base(graphs, KINDS[name], device=True)
        with cuda_emulator.failing_card(at, quiet=quiet) as card:
            change(graph)
            if not card.broken:
                break
            assert (
                graph.device_lost
                == "CUDARuntimeError: cudaErrorIllegalAddress: the emulated card was made to fail"
            )
            assert_host_went_on(graph, alone)
            graph.apply(anywhere(50, seed=9), 500)
        assert graph.check() == []
    assert at >= 3
    assert_sides_agree(graph)


def test_a_host_without_memory_leaves_both_sides_as_they_were(
    emulated_cupy: ModuleType, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = base(graphs, {}, device=True)
    device, before = graph.device, edges_of(graph)
    for change in (CHANGES["growth"], CHANGES["vertices go"], CHANGES["load"]):
        with monkeypatch.context() as patched:
            for array in graph.host.arrays:
                patched.setattr(array, "_other_memory", mock.Mock(side_effect=MemoryError))
            with pytest.raises(NoMemory):
                change(graph)
        assert graph.device is device
        assert (edges_of(graph), graph.n_vertices) == (before, 400)
        assert_sides_agree(graph)
    for change in CHANGES.values():
        change(graph)
        assert_sides_agree(graph)
        graph.load(EdgeList(np.array(before[0], np.uint64), np.array(before[1], np.float32)), graph.n_vertices)


def test_a_refused_batch_changes_neither_side(emulated_cupy: ModuleType, graphs: list[Graph]) -> None:
    graph = base(graphs, {}, device=True)
    before = edges_of(graph)
    for n in (1, 2000):
        for wrong in ({"dst": 450}, {"weights": -1.0}, {"weights": np.nan}):
            columns = {"src": np.zeros(n), "dst": np.zeros(n), "weights": np.ones(n)}
            for name, value in wrong.items():
                columns[name][-1] = value
            with pytest.raises(ValueError, match=r"450|weight"):
                graph.apply(EdgeBatch.of(columns["src"], columns["dst"], None, columns["weights"]), 450)
            assert (edges_of(graph), graph.n_vertices) == (before, 400)
            assert_sides_agree(graph)


def test_the_first_reason_is_kept(emulated_cupy: ModuleType, graphs: list[Graph]) -> None:
    graph = base(graphs, {}, device=True)
    graph.drop_device("the first")
    graph.drop_device("the second")
    assert (graph.device, graph.device_lost) == (None, "the first")


def test_check_finds_sides_that_differ(emulated_cupy: ModuleType, graphs: list[Graph]) -> None:
    for name, problem in (("out", "the device's out-rows"), ("in_", "the device's in-rows")):
        graph = base(graphs, {}, device=True)
        array = getattr(graph.device, name)
        array.apply(EdgeBatch.of([0], [399], weights=[77.0]))
        assert graph.check() == [f"{problem} are not the host's"]


# Where there is no device.


def test_a_device_without_cupy_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match=r"install graphtide\[cuda13\]"):
        Graph(device=True)


def test_without_a_device_nothing_of_it_is_imported(monkeypatch: pytest.MonkeyPatch, graphs: list[Graph]) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "graphtide.partition.device_side", None)
    graph = base(graphs, {}, device=False)
    assert (graph.device, graph.device_lost) == (None, None)


def test_construction_that_fails_leaves_nothing(emulated_cupy: ModuleType) -> None:
    for at in itertools.count():
        with cuda_emulator.failing_allocation(at) as left:
            try:
                Graph(device=True).close()
            except MemoryError:
                continue
            assert left
            break
    assert at > 10


def test_columns_to_be_filled_are_memory_of_the_stream_that_uses_them(cupy: ModuleType) -> None:
    """What is freed goes back to the stream it was taken on, which others must not be given while it is read."""
    from graphtide.gpma.device import staging
    from graphtide.gpma.device.state import allocate
    from graphtide.partition.device_side import DeviceSide

    side = DeviceSide(directed=True, weighted=True, in_edges=True, in_weights=True)
    taken: list[int] = []

    def noted(n: int, dtype: Any) -> Any:
        taken.append(cupy.cuda.get_current_stream().ptr)
        return allocate(n, dtype)

    with mock.patch.object(staging, "allocate", noted):
        for n in (10, 1000):
            side.columns(n, weighted=True)
    assert taken == [side.stream.ptr] * 2
