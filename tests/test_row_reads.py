"""What programs on a device count of the rows that they read, beside plain models of what that is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cuda_emulator
import numpy as np
import pytest
import test_device_cdlp as cdlp
import test_device_triangles as triangles
from histories import inserts, random_history
from test_device_remote_rows import Make, PathRun, PprRun, RanksRun, place, runs, step
from walk_twins import FEW_THREADS, set_threads

from graphtide.gpma.edges import destinations, sources
from graphtide.gpma.row_reads import CLASSES, LINE_BYTES, RowReads
from graphtide.partition import classes, policies
from graphtide.partition.graph import Graph
from graphtide.partition.placement import HOST

DEVICE = 1


@pytest.fixture
def run_of(emulated_cupy: Any) -> Iterator[Make]:
    yield from runs()


def reached(graph: Graph, start: int) -> np.ndarray:
    """bool by vertex: what paths from there lead to."""
    keys = graph.export().keys
    tails, heads = sources(keys), destinations(keys)
    found = np.arange(graph.n_vertices) == start
    while True:
        more = found.copy()
        more[heads[found[tails]]] = True
        if np.array_equal(more, found):
            return found
        found = more


def rows_read(graph: Graph, is_read: np.ndarray, of: np.ndarray, direction: Any = "out") -> RowReads:
    """What it is to walk these rows once each, on the host one leaf after the other."""
    by_class, lines = np.zeros((2, CLASSES), np.int64), 0
    degrees, owner = graph.degrees(direction), graph.placement.owner
    side = graph.hosts[0]
    view = (side.out if direction == "out" or side.in_ is None else side.in_).view()
    for v in np.flatnonzero(is_read & (degrees > 0)):
        by_class[owner[v], of[v]] += degrees[v]
        if owner[v] == HOST:
            leaves = np.flatnonzero((view.keys >> np.uint64(32)) == v) >> view.leaf_shift
            live = {leaf for leaf in leaves.tolist() if first_live(view, leaf, v)}
            lines += 3 + 2 * (max(live) - int(view.row_leaf[v]) + 1)
    return RowReads(by_class, np.zeros(2, np.int64), lines)


def first_live(view: Any, leaf: int, v: int) -> bool:
    """Whether a live slot of a leaf is of the row of v."""
    begin = leaf << view.leaf_shift
    return bool((sources(view.keys[begin : begin + int(view.counts[leaf])]) == v).any())


def test_what_is_agreed_on() -> None:
    assert (CLASSES, LINE_BYTES) == (classes.CLASSES, policies.LINE_BYTES)


@pytest.mark.parametrize("directed", [True, False])
def test_walked_rows_count_by_class_and_side(run_of: Make, directed: bool, seed: int) -> None:
    """A new edge leads to what was out of reach: each row there is walked once, and no other one."""
    rng = np.random.default_rng(seed)
    cuda_emulator.seed(seed)
    run = run_of(PathRun, "bfs", directed=directed)
    graph, n = run.graph, 300
    edges = np.unique(rng.integers(2, n, (900, 2)), axis=0)
    hub = [(7, 5), *((5, v) for v in range(2, n, 3))]  # a row that warps share, and a way to it
    run.step(inserts([(0, 1), *edges.tolist(), *hub], n))
    place(graph, rng.random(n) < 0.6)
    of = rng.integers(0, CLASSES, n).astype(np.uint8)
    assert graph.device is not None
    graph.device.classify(of)
    found = run.step(inserts([(0, 7)], n)).reads
    is_read = reached(graph, 7) & (np.arange(n) > 1)
    if not directed:
        is_read[0] = False
    assert is_read.sum() > 100 and set(graph.placement.owner[is_read].tolist()) == {HOST, DEVICE}
    wanted = rows_read(graph, is_read, of)
    np.testing.assert_array_equal(found.by_class, wanted.by_class)
    assert found.others.tolist() == [0, 0]
    n_long = int((is_read & (graph.placement.owner == HOST) & (graph.degrees("out") >= 64)).sum())
    assert found.lines >= wanted.lines if n_long else found.lines == wanted.lines
    assert found.bus_bytes == 128 * found.lines
    assert run.step(inserts([(0, 7)], n)).reads.by_class.sum() == 0, "nothing gets nearer"


@pytest.mark.parametrize("kind", [RanksRun, PprRun])
@pytest.mark.parametrize("directed", [True, False])
def test_ranks_read_what_they_say(
    run_of: Make, kind: Any, directed: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_threads(monkeypatch, FEW_THREADS)
    cuda_emulator.seed(seed)
    run = run_of(kind, directed=directed)
    n_runs = 0
    for epoch in random_history(seed, directed=directed, epochs=8).epochs:
        done = step(run, epoch, seed)
        device = run.graph.device
        assert (done.reads is None) == (device is None or device.remote is None) or not run.program.on_device
        if done.reads is not None:
            n_runs += 1
            assert done.reads.host_edges + done.reads.device_edges == done.edges_read
            assert (done.reads.lines > 0) == (done.reads.host_edges > 0)
    assert n_runs > 0


def test_runs_are_told_what_they_have_read_however_late_they_ask(
    run_of: Make, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_threads(monkeypatch, FEW_THREADS)
    monkeypatch.setattr("graphtide.gpma.device.remote._COUNTED_MAX", 3)
    cuda_emulator.seed(seed)
    run = run_of(RanksRun)
    done = [step(run, epoch, seed) for epoch in random_history(seed, directed=True, epochs=24).epochs]
    counted = [refresh for refresh in done if refresh.counted is not None]
    assert len(counted) > 3
    for refresh in reversed(counted):
        assert refresh.reads.host_edges + refresh.reads.device_edges == refresh.edges_read


def test_a_card_that_fails_before_a_run_asks_has_counted_nothing_for_it(
    run_of: Make, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it asks."""
    set_threads(monkeypatch, FEW_THREADS)
    cuda_emulator.seed(seed)
    run = run_of(RanksRun)
    done = [step(run, epoch, seed) for epoch in random_history(seed, directed=True, epochs=10).epochs]
    last = [refresh for refresh in done if refresh.counted is not None][-1]
    with cuda_emulator.failing_card(0, quiet=True) as fault:
        for _ in range(2):
            assert last.reads is not None
            assert (last.reads.host_edges, last.reads.device_edges, last.reads.lines) == (0, 0, 0)
        assert fault.broken


@pytest.mark.parametrize("kind", [RanksRun, PprRun])
def test_passes_read_all_rows_of_both_sides(
    run_of: Make, kind: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_threads(monkeypatch, FEW_THREADS)
    run = run_of(kind)
    rng = np.random.default_rng(seed)
    n = 200
    run.step(inserts(np.unique(rng.integers(0, n, (2000, 2)), axis=0).tolist(), n))
    place(run.graph, rng.random(n) < 0.5)
    run.graph.device.classify(np.zeros(n, np.uint8))
    reads = run.program.start(run.graph).reads
    host, device = run.graph.host.in_.n_edges, run.graph.device.in_.n_edges
    n_passes, rest = divmod(int(reads.others[HOST]), host)
    assert n_passes > 0 and rest == 0
    assert reads.others[DEVICE] == n_passes * device


@pytest.mark.parametrize("directed", [True, False])
def test_runs_read_the_host_s_rows_where_all_are_there_and_none_where_none_are(
    run_of: Make, directed: bool, seed: int
) -> None:
    cuda_emulator.seed(seed)
    for kind in ("bfs", "sssp"):
        run = run_of(PathRun, kind, directed=directed)
        for k, epoch in enumerate(random_history(seed, directed=directed, epochs=6).epochs):
            place(run.graph, np.full(run.graph.n_vertices, k % 2 == 0))
            run.graph.placement.newcomers = k % 2
            done = run.step(epoch)
            if run.graph.device.remote is None:
                assert done.reads is None
            elif run.graph.device.out.n_edges == 0:
                assert done.reads.device_edges == 0
                assert (done.reads.host_edges > 0) == (done.reads.lines > 0)


def test_a_search_reads_no_more_than_there_is(run_of: Make, seed: int) -> None:
    """From scratch, pulling too: each level looks along rows of those who are not reached yet."""
    rng = np.random.default_rng(seed)
    run = run_of(PathRun, "bfs")
    n = 400
    run.step(inserts(np.unique(rng.integers(0, n, (6000, 2)), axis=0).tolist(), n))
    place(run.graph, rng.random(n) < 0.5)
    done = run.twin.start(run.graph)
    assert done.reads.others.sum() > 0, "it has pulled"
    assert 0 < done.reads.host_edges <= done.iterations * run.graph.host.in_.n_edges + run.graph.host.out.n_edges
    assert done.reads.by_class.sum() == 0, "nobody has said which vertex is in which class"
    run.graph.device.classify(np.full(n, 63, np.uint8))
    classed = run.twin.start(run.graph).reads
    assert classed.by_class[:, 63].sum() == classed.by_class.sum() > 0
    assert classed.host_edges == done.reads.host_edges or classed.by_class.sum() < done.reads.others.sum()


def test_classes_are_of_vertices_that_there_are(run_of: Make) -> None:
    run = run_of(PathRun, "bfs")
    run.step(inserts([(0, 1), (1, 2)], 3))
    device = run.graph.device
    with pytest.raises(IndexError):
        device.classify(np.zeros(1 << 16, np.uint8))
    device.classify(np.array([1, 2, 3], np.uint8))
    n = 5000  # so that the column is another one
    place(run.graph, np.array([False, True, False]))
    run.step(inserts([(2, v) for v in range(3, n)], n))
    assert device._remote._classes.get()[:4].tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize("module", [cdlp, triangles])
def test_rows_that_warps_walk_alone_count(emulated_cupy: Any, module: Any, seed: int) -> None:
    """Communities and triangles: all that is read of a graph that is all on the host is the host's."""
    cuda_emulator.seed(seed)
    made = module.CdlpRun(owned=True) if module is cdlp else module.TallyRun(owned=True)
    try:
        rng = np.random.default_rng(seed)
        n = 60
        made.step(inserts(np.unique(rng.integers(0, n, (500, 2)), axis=0).tolist(), n))
        place(made.graph, np.ones(n, np.bool_))
        made.graph.device.classify(np.zeros(n, np.uint8))
        reads = made.program.start(made.graph).reads
        assert reads.by_class[HOST, 0] > 0 and reads.device_edges == 0
        assert reads.lines >= 3 * n
        place(made.graph, np.arange(n) > 0)
        assert made.program.start(made.graph).reads.by_class[DEVICE, 0] > 0
    finally:
        made.graph.close()


def test_sums_of_reads() -> None:
    some = RowReads(np.eye(2, CLASSES, dtype=np.int64), np.array([3, 4]), 5)
    both = some + some
    assert (both.host_edges, both.device_edges, both.lines, both.bus_bytes) == (8, 10, 10, 1280)
    bare = some.without_classes()
    assert (bare.host_edges, bare.device_edges, int(bare.by_class.sum())) == (4, 5, 0)
