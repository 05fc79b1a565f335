"""Rows that are each on one side only: to all others the same graph, whoever owns what and wherever rows move."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, random_history

from graphtide.gpma.device_failure import DeviceFailed
from graphtide.gpma.edges import EdgeBatch, EdgeList, SubCSR
from graphtide.partition import owned as owned_rows
from graphtide.partition import split_rows
from graphtide.partition.changes import GraphChange
from graphtide.partition.graph import Graph, NoMemory, RowsLost
from graphtide.partition.host_side import UNFINISHED
from graphtide.partition.placement import HOST

SHAPES = {
    "directed": {},
    "undirected": {"directed": False},
    "unweighted": {"weighted": False},
    "unweighted in-rows": {"in_weights": False},
    "no in-rows": {"in_edges": False},
}


@contextmanager
def opened(**options: Any) -> Iterator[Graph]:
    graph = Graph(**{"threads": 1, **options})
    try:
        yield graph
    finally:
        graph.close()


def same_columns(a: EdgeList, b: EdgeList) -> bool:
    if (a.weights is None) != (b.weights is None) or not np.array_equal(a.keys, b.keys):
        return False
    return a.weights is None or b.weights is None or np.array_equal(a.weights, b.weights)


def assert_same_change(one: GraphChange, other: GraphChange) -> None:
    for name in ("n_vertices_before", "n_vertices", "inserted", "overwritten", "deleted", "absent", "n_arcs"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.absent_vertices == other.absent_vertices
    assert np.array_equal(one.deleted_vertices, other.deleted_vertices)
    assert np.array_equal(one.revived_vertices, other.revived_vertices)
    for name in ("inserted", "overwritten", "deleted"):
        assert same_columns(getattr(one.arcs, name), getattr(other.arcs, name)), name
    assert np.array_equal(one.arcs.absent, other.arcs.absent)
    old, other_old = one.arcs.overwritten_old, other.arcs.overwritten_old
    assert (old is None) == (other_old is None)
    assert old is None or other_old is None or np.array_equal(old, other_old)


def assert_same_graph(one: Graph, other: Graph) -> None:
    """``one``: the host has every row."""
    n = one.n_vertices
    assert (one.n_vertices, one.n_alive, one.n_arcs, one.n_edges, one.self_loops) == (
        other.n_vertices,
        other.n_alive,
        other.n_arcs,
        other.n_edges,
        other.self_loops,
    )
    assert other.check() == []
    edges = one.export()
    assert same_columns(edges, other.export())
    directions = ("out", "in") if one.mirror is not None else ("out",)
    for direction in directions:
        assert np.array_equal(one.degrees(direction)[:n], other.degrees(direction)[:n])
        assert one.n_stored(direction) == other.n_stored(direction)
        for vertex in range(0, n, max(1, n // 7)):
            for first, limit in ((0, n), (n // 2, 3)):
                found, wanted = (graph.neighbors(vertex, direction, first, limit) for graph in (other, one))
                assert np.array_equal(found[0], wanted[0])
                assert (found[1] is None) == (wanted[1] is None)
                assert found[1] is None or np.array_equal(found[1], wanted[1])
    asked = np.concatenate([edges.keys, edges.keys ^ np.uint64(1)])
    assert np.array_equal(one.has_edge(asked), other.has_edge(asked))
    assert np.array_equal(one.weights_of(asked), other.weights_of(asked), equal_nan=True)
    whole = SubCSR(np.arange(n, dtype=np.uint32), *rows_of(other))
    assert np.array_equal(whole.neighbors, edges.keys.astype(np.uint32))


def rows_of(graph: Graph) -> tuple[Any, Any, None]:
    """The out-rows as a walk on the host finds them."""
    rows = graph.out_rows()
    slots = 1 << rows.leaf_shift
    live = np.arange(rows.keys.size) % slots < np.repeat(rows.counts, slots)
    offsets = np.concatenate([[0], np.cumsum(rows.degrees[: graph.n_vertices], dtype=np.int64)])
    return offsets, rows.keys[live].astype(np.uint32), None


class Twins:
    """A graph whose host has every row, and one where each row is on one side, through the same history."""

    def __init__(self, whole: Graph, owned: Graph, seed: int) -> None:
        self.whole, self.owned = whole, owned
        self.rng = np.random.default_rng(seed)

    def move_some(self) -> None:
        """Move some rows to some side; new vertices may come to any."""
        owned, rng = self.owned, self.rng
        owned.placement.newcomers = int(rng.integers(len(owned.sides)))
        for _ in range(int(rng.integers(0, 3))):
            n = int(rng.integers(0, owned.n_vertices + 1))
            vertices = rng.permutation(owned.n_vertices)[:n].astype(np.uint32)
            to = int(rng.integers(len(owned.sides)))
            degrees = owned.degrees("out").copy()
            in_degrees = owned.degrees("in").copy() if owned.directed and owned.mirror is not None else 0 * degrees
            leaving = vertices[owned.placement.owners(vertices) != to]
            moved = owned.migrate(vertices, to)
            assert moved.vertices == leaving.size
            assert moved.edges == int(degrees[leaving].sum()) + int(in_degrees[leaving].sum())
            assert (owned.placement.owners(vertices) == to).all()

    def step(self, epoch: Epoch) -> None:
        batch = epoch.batch(weighted=self.whole.weighted)
        given = batch, epoch.n_vertices, epoch.vertex_ops()
        wanted, found = self.whole.apply(*given), self.owned.apply(*given)
        if self.owned.device is not None and self.rng.integers(2):  # as programs there hear of it
            with self.owned.device.stream:
                told = self.owned.device.report.sorted()
            for name in ("inserted", "overwritten", "deleted"):
                assert same_columns(getattr(wanted.arcs, name), getattr(told, name)), name
            assert np.array_equal(wanted.arcs.absent, told.absent)
        if self.rng.integers(2):  # else it is read when the next change is under way
            assert_same_change(wanted, found)
        self.last = wanted, found

    def check_last(self) -> None:
        assert_same_change(*self.last)


def run_history(whole: Graph, owned: Graph, seed: int, *, epochs: int = 12) -> None:
    """Updates and moves in turns; copies of the edges begin and end among them."""
    twins = Twins(whole, owned, seed)
    history = random_history(seed, directed=whole.directed, epochs=epochs, vertex_share=0.1)
    copy = None
    for number, epoch in enumerate(history.epochs):
        twins.step(epoch)
        twins.move_some()
        if copy is None and twins.rng.integers(2):
            copy = owned.begin_copy()
        elif copy is not None:
            copy.copy_piece()
            twins.move_some()
            if twins.rng.integers(3) == 0:
                copy.finish()
                keys = np.concatenate([piece.keys for piece in copy.edges()])
                owned.end_copy(copy)
                copy = None
                assert np.array_equal(keys, whole.export().keys)
        if number % 3 == 0:
            assert_same_graph(whole, owned)
        twins.check_last()
    assert_same_graph(whole, owned)


@pytest.mark.parametrize("n_sides", [2, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_hosts_that_share_the_rows_are_one_graph(
    shape: str, n_sides: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed:  # rows move in parts, or one by one
        monkeypatch.setattr(owned_rows, "PART_EDGES", (20, 1)[seed - 1])
    options = SHAPES[shape]
    with opened(**options) as whole, opened(**options, host_rows="owned", host_sides=n_sides) as owned:
        run_history(whole, owned, seed)


@pytest.mark.sample(4)
@pytest.mark.parametrize("n_hosts", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_device_and_hosts_that_share_the_rows_are_one_graph(cupy: ModuleType, shape: str, n_hosts: int) -> None:
    options = SHAPES[shape]
    how = {"host_rows": "owned", "host_sides": n_hosts, "device": True}
    with opened(**options) as whole, opened(**options, **how) as owned:
        run_history(whole, owned, n_hosts, epochs=8)


def of_rmat(graph: Graph, seed: int, n: int, *, n_vertices: int = 500) -> tuple[EdgeBatch, int]:
    rng = np.random.default_rng(seed)
    ends = (rng.random((2, n)) ** 2 * n_vertices).astype(np.uint32)
    weights = rng.random(n).astype(np.float32) if graph.weighted else None
    return EdgeBatch.of(*ends, rng.random(n) < 0.8, weights), n_vertices


@pytest.mark.parametrize("shape", ["directed", "undirected"])
def test_rows_leave_a_device_that_is_full(emulated_cupy: ModuleType, shape: str) -> None:
    """A batch that finds no memory there changes nothing; rows can leave for all that, and then it is applied."""
    options = SHAPES[shape]
    pool = emulated_cupy.get_default_memory_pool()
    with opened(**options) as whole, opened(**options, host_rows="owned", device=True) as owned:
        for graph in (whole, owned):
            graph.apply(*of_rmat(graph, 0, 2000))
        assert owned.placement.owned == (0, 500)
        pool.set_limit(pool.used_bytes() + 100_000)
        refused = 0
        for seed in range(1, 12):
            given = of_rmat(whole, seed, 2000, n_vertices=500 + 20 * seed)
            wanted = whole.apply(*given)
            for _ in range(50):
                try:
                    found = owned.apply(*given)
                    break
                except NoMemory:
                    assert owned.n_vertices == 500 + 20 * (seed - 1)
                    refused += 1
                    there = np.flatnonzero(owned.placement.owner != HOST)
                    owned.placement.newcomers = HOST
                    owned.migrate(there[: there.size // 2 + 1].astype(np.uint32), HOST)
            assert_same_change(wanted, found)
        pool.set_limit()
        assert refused
        assert owned.device is not None
        assert_same_graph(whole, owned)


@pytest.mark.parametrize("where", ["load_rows", "rows_moved"])
@pytest.mark.parametrize("owner", ["host", "device"])
def test_nobody_goes_on_from_a_load_that_an_interrupt_broke_off(
    emulated_cupy: ModuleType, where: str, owner: str
) -> None:
    """``rows_moved``: what a device hears once all rows are there."""
    with opened(host_rows="owned", device=True, directed=False) as graph, opened(directed=False) as other:
        other.apply(*of_rmat(other, 1, 300, n_vertices=550))
        graph.apply(*of_rmat(graph, 0, 300))
        if owner == "host":
            graph.migrate(np.arange(500, dtype=np.uint32), HOST)
            graph.placement.newcomers = HOST
        side = graph.host if (owner, where) == ("host", "load_rows") else graph.device
        with (
            mock.patch.object(side, where, mock.Mock(side_effect=[KeyboardInterrupt, None])),
            pytest.raises(KeyboardInterrupt),
        ):
            graph.load(other.export(), 550)
        for work in (graph.export, lambda: graph.apply(*of_rmat(graph, 2, 9, n_vertices=550))):
            with pytest.raises(RuntimeError, match=r"failed in its middle|KeyboardInterrupt"):
                work()
        if owner == "host":
            graph.load(other.export(), 550)
            assert graph.check() == []
            assert_same_graph(other, graph)


@pytest.mark.parametrize("where", ["forget_report", "hear"])
def test_nobody_goes_on_from_a_batch_that_a_device_did_not_hear_of_for_an_interrupt(
    emulated_cupy: ModuleType, where: str
) -> None:
    """A small one, which the host alone has applied."""
    with opened(host_rows="owned", device=True) as graph:
        graph.placement.newcomers = HOST
        graph.apply(*of_rmat(graph, 0, 300))
        before = graph.export()
        with (
            mock.patch.object(graph.device, where, mock.Mock(side_effect=KeyboardInterrupt)),
            pytest.raises(KeyboardInterrupt),
        ):
            graph.apply(*of_rmat(graph, 1, 9, n_vertices=550))
        assert graph.check() == [UNFINISHED]
        graph.load(before, 550)
        assert graph.check() == []


@pytest.mark.sample(among="a card that has rows fails")
@pytest.mark.parametrize("shape", ["directed", "undirected"])
def test_any_want_of_memory_changes_nothing(emulated_cupy: ModuleType, shape: str) -> None:
    """Whichever allocation fails, the batch is applied whole or not at all, and no row is lost."""
    options = SHAPES[shape]
    refused = 0
    for at in range(0, 100, 3):
        with opened(**options) as whole, opened(**options, host_rows="owned", device=True) as owned:
            for graph in (whole, owned):
                graph.apply(*of_rmat(graph, 0, 300))
            owned.migrate(np.arange(0, 500, 2, dtype=np.uint32), HOST)
            with cuda_emulator.failing_allocation(at) as left:
                try:
                    owned.apply(*of_rmat(owned, 1, 3000, n_vertices=900))
                except NoMemory:
                    refused += 1
                else:
                    whole.apply(*of_rmat(whole, 1, 3000, n_vertices=900))
                is_through = bool(left)
            assert_same_graph(whole, owned)
            if is_through:
                break
    assert refused > 3
    assert is_through


def test_a_card_that_fails_takes_its_rows_with_it_and_says_so(emulated_cupy: ModuleType) -> None:
    with opened(host_rows="owned", device=True) as graph:
        graph.apply(*of_rmat(graph, 0, 300))
        with cuda_emulator.failing_card(3, quiet=False), pytest.raises(RowsLost, match="made to fail"):
            graph.apply(*of_rmat(graph, 1, 300))
        assert graph.rows_lost
        assert graph.device is None
        for work in (
            graph.export,
            lambda: graph.neighbors(0, "out", 0, 9),
            lambda: graph.apply(*of_rmat(graph, 2, 9)),
        ):
            with pytest.raises(RowsLost, match="made to fail"):
                work()


@pytest.mark.parametrize("where", ["launch", "finish"])
def test_nobody_goes_on_from_sides_of_which_an_interrupt_left_one_behind(
    emulated_cupy: ModuleType, where: str
) -> None:
    with opened(host_rows="owned", device=True) as graph:
        graph.apply(*of_rmat(graph, 0, 300))
        graph.migrate(np.arange(0, 500, 2, dtype=np.uint32), HOST)
        with (
            mock.patch.object(graph.device, where, mock.Mock(side_effect=KeyboardInterrupt)),
            pytest.raises(KeyboardInterrupt),
        ):
            graph.apply(*of_rmat(graph, 1, 300))
        for work in (graph.export, lambda: graph.apply(*of_rmat(graph, 2, 9))):
            with pytest.raises(RowsLost, match="KeyboardInterrupt"):
                work()


@pytest.mark.sample(among="a card that has rows fails")
@pytest.mark.parametrize("newcomers", ["host", "device"])
def test_wherever_a_card_fails_its_rows_are_lost_and_nothing_else(
    emulated_cupy: ModuleType, newcomers: str
) -> None:
    """While it picks its updates, too, with vertices that are new in the batch."""
    for at in range(100):
        with opened(host_rows="owned", device=True) as graph:
            graph.apply(*of_rmat(graph, 0, 300))
            graph.migrate(np.arange(0, 500, 2, dtype=np.uint32), HOST)
            graph.placement.newcomers = HOST if newcomers == "host" else 1
            with cuda_emulator.failing_card(at, quiet=at % 2 == 1) as fault:
                try:
                    graph.apply(*of_rmat(graph, 1, 300, n_vertices=550))
                except RowsLost:
                    assert graph.device is None
                    continue
            assert not fault.broken
            assert graph.check() == []
            break
    assert 5 < at < 99


def test_nothing_is_left_to_compile_for_a_device_that_shares_the_rows(emulated_cupy: ModuleType) -> None:
    """What the first batch of rows on both sides needs is there before it."""
    with opened(host_rows="owned", device=True) as graph, pytest.MonkeyPatch.context() as patched:
        for module in ("joining", "picking", "turning"):
            compiles = mock.Mock(side_effect=AssertionError("it compiles"))
            patched.setattr(f"graphtide.gpma.device.{module}.load", compiles)
        graph.apply(*of_rmat(graph, 0, 300))
        graph.migrate(np.arange(0, 500, 2, dtype=np.uint32), HOST)
        graph.apply(*of_rmat(graph, 1, 300))
        assert graph.device is not None
        assert len(graph.device.report) > 200


@pytest.mark.parametrize("pinned", [False, True])
def test_columns_that_a_device_has_no_memory_for_are_the_host_s(emulated_cupy: ModuleType, pinned: bool) -> None:
    """What it has not is found out by the batch, which changes nothing then. Pinned memory is no different:
    of that CuPy says it by another error."""
    with opened() as whole, opened(host_rows="owned", device=True) as owned:
        for graph in (whole, owned):
            graph.apply(*of_rmat(graph, 0, 300))
        owned.migrate(np.arange(0, 500, 2, dtype=np.uint32), HOST)
        given = of_rmat(whole, 1, 3000)
        no_memory = emulated_cupy.cuda.runtime.CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        no_memory.status = 2
        with pytest.MonkeyPatch.context() as patched:
            if pinned:
                patched.setattr(emulated_cupy.cuda, "alloc_pinned_memory", mock.Mock(side_effect=no_memory))
            else:
                patched.setattr("graphtide.gpma.device.staging.allocate", mock.Mock(side_effect=MemoryError))
            columns = owned.columns(3000, weighted=True)
            for column, values in zip(
                (columns.keys, columns.ops, columns.weights),
                (given[0].keys, given[0].ops, given[0].weights),
                strict=True,
            ):
                column[:] = values
            with pytest.raises(NoMemory) as refused:
                owned.apply(columns, given[1])
            assert isinstance(refused.value.__cause__, split_rows.SideFull) and refused.value.__cause__.side == 1
        assert owned.device is not None
        assert_same_graph(whole, owned)
        assert_same_change(whole.apply(*given), owned.apply(*given))
        assert_same_graph(whole, owned)


@pytest.mark.sample(among="a card that has rows fails")
@pytest.mark.parametrize("shape", ["directed", "undirected"])
def test_wherever_a_card_fails_at_its_report_its_rows_are_lost(emulated_cupy: ModuleType, shape: str) -> None:
    """Its part is read after the batch was written: the loops of it by the graph, all of it by whoever asks."""
    for at in range(100):
        with opened(host_rows="owned", device=True, **SHAPES[shape]) as graph:
            graph.apply(*of_rmat(graph, 0, 300))
            graph.migrate(np.arange(0, 500, 2, dtype=np.uint32), HOST)
            with cuda_emulator.failing_card(at, quiet=at % 2 == 1) as fault:
                try:
                    change = graph.apply(*of_rmat(graph, 1, 300))
                    assert len(change.arcs.inserted) > 0
                except RowsLost:
                    assert graph.rows_lost and graph.device is None
                    continue
            assert not fault.broken
            break
    assert 5 < at < 99


def test_a_card_that_fails_without_rows_is_left_behind(emulated_cupy: ModuleType) -> None:
    with opened() as whole, opened(host_rows="owned", device=True) as owned:
        for graph in (whole, owned):
            graph.apply(*of_rmat(graph, 0, 300))
        owned.migrate(np.arange(500, dtype=np.uint32), HOST)
        owned.placement.newcomers = HOST
        owned.drop_device("it was unplugged")
        assert not owned.rows_lost
        changes = [graph.apply(*of_rmat(graph, 1, 3000, n_vertices=900)) for graph in (whole, owned)]
        assert_same_change(*changes)
        assert_same_graph(whole, owned)


def test_a_vertex_that_is_not_there_is_no_failure_of_the_card(emulated_cupy: ModuleType) -> None:
    with opened() as whole, opened(host_rows="owned", device=True) as owned:
        for graph in (whole, owned):
            graph.apply(*of_rmat(graph, 0, 300))
            with pytest.raises(IndexError):
                graph.neighbors(1 << 20, "out", 0, 9)
        assert_same_graph(whole, owned)


def test_rows_move_only_where_each_is_on_one_side() -> None:
    with opened() as graph:
        graph.apply(*of_rmat(graph, 0, 300))
        with pytest.raises(ValueError, match="side 1 of 1"):
            graph.migrate(np.arange(5, dtype=np.uint32), 1)
    with opened(host_rows="owned", host_sides=2) as graph:
        graph.apply(*of_rmat(graph, 0, 300))
        with pytest.raises(ValueError, match="side 2 of 2"):
            graph.migrate(np.arange(5, dtype=np.uint32), 2)
        with pytest.raises(ValueError, match="vertex 500 of 500"):
            graph.migrate(np.array([500], np.uint32), 1)


def test_copied_rows_last_as_long_as_the_words_in_which_they_are_written() -> None:
    """Two programs that run side by side may each have them copied; neither must lose its own."""
    with opened(host_rows="owned", host_sides=2) as graph:
        graph.apply(*of_rmat(graph, 0, 300))
        graph.migrate(np.arange(0, 300, 2, dtype=np.uint32), 1)
        copies = []
        real = graph._rows.view

        def view(direction: Any) -> Any:
            graph._rows._split._views.clear()  # as if another had not yet seen what one has copied
            copied = real(direction)
            copies.append(weakref.ref(copied.keys))
            return copied

        with mock.patch.object(graph._rows, "view", view):
            one, other = graph.row_words(), graph.row_words()
        graph._rows._split._views.clear()
        gc.collect()
        assert [copy() is not None for copy in copies] == [True] * 4
        del one
        assert [copy() is not None for copy in copies] == [False, False, True, True]
        del other
        assert all(copy() is None for copy in copies), "nobody needs them any more"


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_loaded_is_divided(emulated_cupy: ModuleType, shape: str) -> None:
    options = SHAPES[shape]
    asked = []

    def halves(out: Any, in_: Any) -> Any:
        asked.append((int(out.sum()), int(in_.sum())))
        return (np.arange(out.size) % 2).astype(np.uint8)

    with opened(**options) as whole, opened(**options, host_rows="owned", device=True) as owned:
        whole.apply(*of_rmat(whole, 0, 2000))
        owned.divide_by(halves)
        owned.load(whole.export(), 500)
        assert owned.placement.owned == (250, 250)
        kept = whole.directed and whole.mirror is not None
        assert asked == [(whole.n_arcs, whole.n_arcs if kept else 0)]
        assert_same_graph(whole, owned)
        pool = emulated_cupy.get_default_memory_pool()
        pool.set_limit(pool.used_bytes())
        whole.apply(*of_rmat(whole, 1, 6000))
        owned.load(whole.export(), 500)
        pool.set_limit()
        assert owned.placement.owned == (500, 0), "the device has no memory for its half"
        assert_same_graph(whole, owned)


def test_a_copy_never_sees_rows_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread copies while owners change: it waits until rows are where their owners are said to be."""
    with opened(host_rows="owned", host_sides=2) as graph:
        graph.apply(*of_rmat(graph, 0, 2000))
        wanted = graph.export().keys
        copy = graph.begin_copy()
        copying = threading.Thread(target=copy.finish)
        move = graph.placement.move

        def slowly(vertices: Any, to: int) -> None:
            copying.start()
            copying.join(0.3)
            move(vertices, to)

        monkeypatch.setattr(graph.placement, "move", slowly)
        graph.migrate(np.arange(500, dtype=np.uint32), 1)
        copying.join()
        assert np.array_equal(np.concatenate([piece.keys for piece in copy.edges()]), wanted)


@pytest.mark.parametrize("shape", ["directed", "unweighted"])
def test_a_full_device_is_copied_all_the_same(emulated_cupy: ModuleType, shape: str) -> None:
    """A checkpoint must not want memory of a device that has none left."""
    pool = emulated_cupy.get_default_memory_pool()
    with opened(**SHAPES[shape], host_rows="owned", device=True) as graph:
        graph.apply(*of_rmat(graph, 0, 3000))
        graph.migrate(np.arange(0, 500, 3, dtype=np.uint32), HOST)
        wanted = graph.export()
        pool.set_limit(1)
        copy = graph.begin_copy()
        copy.finish()
        pieces = copy.edges()
        pool.set_limit()
        assert np.array_equal(np.concatenate([piece.keys for piece in pieces]), wanted.keys)
        if wanted.weights is not None:
            assert np.array_equal(np.concatenate([piece.weights for piece in pieces]), wanted.weights)


@pytest.mark.parametrize("place", ["hear", "set_remote"])
def test_a_card_that_fails_without_rows_fails_no_change(emulated_cupy: ModuleType, place: str) -> None:
    """What is written on the host by then is there, and the graph goes on."""

    def fails(*_: Any) -> None:
        raise DeviceFailed("the card fell out")

    with opened() as whole, opened(host_rows="owned", device=True) as owned:
        for graph in (whole, owned):
            graph.apply(*of_rmat(graph, 0, 300))
        owned.placement.newcomers = HOST
        owned.migrate(np.arange(500, dtype=np.uint32), HOST)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(owned.device, place, fails)
            changes = [graph.apply(*of_rmat(graph, 1, 900, n_vertices=900)) for graph in (whole, owned)]
        assert owned.device_lost == "DeviceFailed: the card fell out"
        assert_same_change(*changes)
        assert_same_graph(whole, owned)
        with pytest.raises(ValueError, match="side 1 of 2"):
            owned.migrate(np.arange(5, dtype=np.uint32), 1)
        assert_same_graph(whole, owned)


def test_rows_of_all_sides_leave_where_one_has_no_memory_to_copy_any() -> None:
    """That one gives up all rows, and the others those that were named."""
    with opened() as whole, opened(host_rows="owned", host_sides=3) as owned:
        for graph in (whole, owned):
            graph.apply(*of_rmat(graph, 0, 2000))
        owned.migrate(np.arange(0, 300, dtype=np.uint32), 1)
        with pytest.MonkeyPatch.context() as patched:

            def refuses(*_: Any) -> None:
                raise MemoryError("full")

            patched.setattr(owned.sides[1], "rows", refuses)
            owned.migrate(np.arange(399, 199, -1).astype(np.uint32), 2)
        assert owned.placement.owned == (100, 0, 400)
        assert_same_graph(whole, owned)


def test_where_a_load_finds_no_memory_there_are_no_edges(emulated_cupy: ModuleType) -> None:
    with opened(directed=False) as whole, opened(directed=False, host_rows="owned", device=True) as owned:
        for graph in (whole, owned):
            graph.apply(*of_rmat(graph, 0, 3000))
        owned.migrate(np.arange(0, 500, 2, dtype=np.uint32), HOST)
        owned.divide_by(lambda out, _: (np.arange(out.size) % 2).astype(np.uint8))
        assert whole.self_loops
        edges = whole.export()
        with pytest.MonkeyPatch.context() as patched:
            load_rows = owned.host.load_rows

            def refuses_all(out: EdgeList, in_: EdgeList | None) -> None:
                if len(out) == len(edges):
                    raise MemoryError("full")
                load_rows(out, in_)

            pool = emulated_cupy.get_default_memory_pool()
            pool.set_limit(pool.used_bytes())
            patched.setattr(owned.host, "load_rows", refuses_all)
            with pytest.raises(NoMemory, match="full"):
                owned.load(edges, 500)
            pool.set_limit()
        whole.load(EdgeList(edges.keys[:0], np.empty(0, np.float32)), 500)
        assert_same_graph(whole, owned)
        device = owned.device
        assert device is not None
        assert device._remote is not None
        assert device._remote.n_rows == 500
        for graph in (whole, owned):
            graph.load(edges, 700)
        assert owned.placement.owned == (350, 350)
        assert_same_graph(whole, owned)


def test_what_cannot_be_loaded_changes_nothing() -> None:
    with opened() as whole, opened(host_rows="owned", host_sides=2) as owned:
        for graph in (whole, owned):
            graph.apply(*of_rmat(graph, 0, 300))
        owned.migrate(np.arange(0, 500, 2, dtype=np.uint32), 1)
        weights = np.ones(2, np.float32)
        for keys, given in (
            ([7, 5], weights),
            ([5, 500 << 32], weights),
            ([5, 5 << 32 | 700], weights),
            ([5, 7], None),
        ):
            with pytest.raises(ValueError, match=r"order|700 of 500|one weight"):
                owned.load(EdgeList(np.array(keys, np.uint64), given), 500)
            assert_same_graph(whole, owned)


def test_an_update_of_a_vertex_that_is_not_there_changes_nothing(emulated_cupy: ModuleType) -> None:
    for how in ({"device": True}, {"host_sides": 2}):
        with opened() as whole, opened(host_rows="owned", **how) as owned:
            for graph in (whole, owned):
                graph.apply(*of_rmat(graph, 0, 300))
            for _ in range(2):
                for edge in ([3, 500], [500, 3]):
                    batch = EdgeBatch.of([edge[0]], [edge[1]], [True], np.ones(1, np.float32))
                    with pytest.raises(ValueError, match="500 of 500"):
                        whole.apply(batch, 500)
                    with pytest.raises(ValueError, match="500 of 500"):
                        owned.apply(batch, 500)
                    assert_same_graph(whole, owned)
                owned.migrate(np.arange(0, 500, 2, dtype=np.uint32), HOST)


@pytest.mark.parametrize("shape", SHAPES)
def test_updates_of_rows_are_counted_alike_by_all_sides(emulated_cupy: ModuleType, shape: str) -> None:
    """Whether one of them has all rows or several have some."""
    counted = []
    for remote in (0, 250, 500):
        with opened(host_rows="owned", device=True, **SHAPES[shape]) as graph:
            graph.apply(*of_rmat(graph, 0, 1300))
            graph.migrate(np.arange(remote, dtype=np.uint32), HOST)
            graph.apply(*of_rmat(graph, 1, 1300))
            assert len(graph.applied) == (2 if 0 < remote < 500 else 1)
            counted.append(sum(side.updates for side in graph.applied))
    assert counted == [1300 * (1 if shape == "no in-rows" else 2)] * 3


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_both_processors_prepare_large_batches_at_once(
    emulated_cupy: ModuleType, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In threads of their own: what either finds wrong, the graph is as before."""
    monkeypatch.setattr(split_rows, "AT_ONCE_MIN", 1)
    how = {"threads": 2, "host_rows": "owned", "device": True}
    with opened(**SHAPES[shape]) as whole, opened(**SHAPES[shape], **how) as owned:
        run_history(whole, owned, 5, epochs=6)
        assert owned.device is not None
        vertices = np.arange(whole.n_vertices, dtype=np.uint32)
        owned.migrate(vertices[1::2], 1)
        owned.migrate(vertices[0::2], HOST)
        given = of_rmat(whole, 1, 700, n_vertices=900)
        for number in range(2):
            side = owned.sides[number]
            with monkeypatch.context() as patch:
                patch.setattr(side, "prepare_rows", mock.Mock(side_effect=MemoryError))
                with pytest.raises(NoMemory):
                    owned.apply(*given)
            assert_same_graph(whole, owned)
        assert_same_change(whole.apply(*given), owned.apply(*given))
        assert_same_graph(whole, owned)
