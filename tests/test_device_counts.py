"""Path counts on a device: after every batch the host's counts, bit for bit, which its audit proves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, deletes, epoch_of, inserts, random_history, rmat_history
from test_cuda_compiles import ARCHITECTURES, check_compiles
from test_cuda_compiles import nvrtc as nvrtc
from test_device_structures import check_structures
from test_sspaths import ladder, layers
from walk_twins import TwinRun, failing_runs, runs

from graphtide.compute.counts.kernels import LIMIT
from graphtide.compute.counts.sspaths import SSPaths
from graphtide.compute.device import NoTwin, twin
from graphtide.compute.program import Refresh
from graphtide.gpma.edges import Op
from graphtide.partition.graph import Graph

# What counters keep from run to run.
KEPT = {"barrier", "told", "deep", "handed", "left"}


class CountsRun(TwinRun):
    """A graph on host and device, and counts twice: ``program`` on the device, and ``host`` from scratch."""

    def __init__(self, *, directed: bool = True, sources: tuple[int, ...] = (0,)) -> None:
        super().__init__(lambda: SSPaths("counts", sources), directed=directed, weighted=False, sources=sources)
        self.host = self.make()

    @property
    def column(self) -> np.ndarray:
        column: np.ndarray = self.program.columns()["count"][: self.graph.n_vertices]
        return column

    def apply(self, epoch: Epoch) -> Refresh:
        """As an engine does: sources are told anew only when they are others."""
        graph, before = self.graph, self.bound()
        change = graph.apply(epoch.batch(weighted=graph.weighted), epoch.n_vertices, epoch.vertex_ops())
        if not np.array_equal(before, self.bound()):
            self.program.bind(self.bound())
        self.report = self.program.refresh(graph, change)
        return self.report

    def refresh(self, epoch: Epoch) -> Refresh:
        """Apply an epoch; exactly what changed is reported."""
        before = self.column.copy()
        self.apply(epoch)
        if self.report.started_over:
            assert self.report.changed == {"count": None}
        else:
            differs = np.flatnonzero(self.column[: before.size] != before).tolist()
            differs += range(before.size, self.column.size)
            reported = self.report.changed.get("count")
            assert sorted([] if reported is None else reported.tolist()) == differs
        return self.report

    def check_results(self) -> None:
        self.host.bind(self.bound())
        self.host.start(self.graph)
        n = self.graph.n_vertices
        assert self.column.tolist() == self.host.columns()["count"][:n].tolist()
        assert self.program.scalars() == self.host.scalars()
        assert self.program.audit(self.graph) == []
        if self.program.on_device:
            self.check_scratch()

    def check_scratch(self) -> None:
        """What runs begin with is as they expect it, and levels are those of the search."""
        from graphtide.compute.device.count_runs import COUNT_COUNTERS

        runs, n = self.program._runs, self.graph.n_vertices
        if runs is None or runs._by_vertex is None:
            return
        there = runs._by_vertex
        for name in ("deltas", "roles", "ends"):
            assert not getattr(there, name).get(stream=self.graph.device.stream).any(), name
        levels = there.levels.get(stream=self.graph.device.stream)
        assert np.array_equal(levels[:n], self.program.host.levels[:n]) and (levels[n:] == 0xFFFF_FFFF).all()
        counters = runs._counters.get(stream=self.graph.device.stream).view(COUNT_COUNTERS)[0]
        for name in COUNT_COUNTERS.names or ():
            assert name in KEPT or not np.any(counters[name]), name


@pytest.fixture
def run_of(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CountsRun]]:
    yield from runs(CountsRun, monkeypatch)


@pytest.fixture
def emulated_run_of(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., CountsRun]]:
    yield from runs(CountsRun, monkeypatch)


@pytest.mark.parametrize("directed", [True, False])
def test_any_history(
    run_of: Callable[..., CountsRun],
    directed: bool,
    seed: int,
    run_long: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where all is recounted by differences, and where that is given up in the midst of it; lists that run over,
    long rows that are those of few edges, and rows that lanes go along by themselves, or never do."""
    from graphtide.compute.device import count_runs, path_runs
    from graphtide.gpma.device import constants

    for own_seed in range(seed, seed + (80 if run_long else 4)):
        cuda_emulator.seed(own_seed)
        rng = np.random.default_rng(own_seed)
        long_row = 4 if own_seed % 4 == 1 else 64
        forget_kernels()  # they know how long a long row is
        with monkeypatch.context() as patched:
            if long_row == 4:
                for module in (constants, path_runs, count_runs):
                    patched.setattr(module, "LONG_ROW", long_row)
            patched.setattr(count_runs, "MOST_LEAST", [1 << 30, 0, 10, 40][own_seed % 4])
            patched.setattr(count_runs, "CHANGES_LEAST", int(rng.choice([3, 4096])))
            patched.setattr(count_runs, "FOLLOWED_LEAST", int(rng.choice([0, 3, 1 << 15])))
            if rng.random() < 0.6:  # every level is long, or none
                dense, apart = rng.choice([0, 1_000_000]), rng.choice([0, 64])
                macros = (
                    f"-DDENSE_LEVEL={dense}",
                    f"-DEDGES_APART={apart}",
                    "-DROWS_TOGETHER=0",
                    "-DFORESEEN_FROM=1",
                    "-DDEEP_UPDATES=1",
                    f"-DDEEP_SHARE={rng.choice([1, 4])}",
                )
                patched.setattr(count_runs, "SOURCES", with_macros(macros))
            run = run_of(directed=directed, sources=tuple(rng.integers(0, 12, int(rng.integers(1, 3))).tolist()))
            share = 0.1 if rng.random() < 0.5 else 0.0
            for epoch in random_history(own_seed, directed=directed, epochs=10, vertex_share=share).epochs:
                run.step(epoch)
    forget_kernels()


def with_macros(macros: tuple[str, ...]) -> dict[str, Any]:
    from graphtide.compute.device import count_runs

    return {name: origin._replace(macros=(*origin.macros, *macros)) for name, origin in count_runs.SOURCES.items()}


def forget_kernels() -> None:
    from graphtide.compute.device import count_runs, path_runs

    count_runs.count_kernels.cache_clear()
    path_runs._kernels.cache_clear()


def test_hubs_of_a_larger_graph(run_of: Callable[..., CountsRun], seed: int) -> None:
    cuda_emulator.seed(seed)
    # What is counted is compared below, and not left to chance: the order of threads alone is drawn.
    history = rmat_history(1, directed=True, scale=8, degree=8, updates=(20, 200, 3), vertex_share=0.02)
    run = run_of(sources=(int(np.bincount(history.epochs[0].src).argmax()),))
    for epoch in history.epochs:
        run.step(epoch)
        assert run.column.max() > 1


def test_work_is_in_proportion_to_the_change(run_of: Callable[..., CountsRun]) -> None:
    """Edges that lead no farther cost nothing; one to a vertex without successors what its row has."""
    run = run_of()
    levels = [(0, v) for v in range(1, 21)] + [(u, v) for u in range(1, 21) for v in range(21, 61)]
    run.step(inserts(levels, 70))
    for epoch in (inserts([(30, 31), (21, 0), (5, 6)], 70), deletes([(30, 31), (5, 6)], 70)):
        run.step(epoch)
        assert (run.report.edges_read, run.report.changed, run.report.started_over) == (0, {}, False)
    run.step(inserts([(21, 65), (22, 65)], 70))
    assert run.column[65] == 40
    run.step(deletes([(2, 21)], 70))
    assert run.column[[21, 65]].tolist() == [19, 39]
    assert not run.report.started_over
    assert run.report.changed["count"].tolist() == [21, 65]
    assert run.report.edges_read < 25


def test_what_would_be_told_too_often_is_not_told_first(
    run_of: Callable[..., CountsRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose counts are others have many out-edges, nearly all of which lead back: the levels below are counted
    anew, along short rows and one that a warp goes along."""
    from graphtide.compute.device import count_runs

    monkeypatch.setattr(count_runs, "MOST_LEAST", 100)
    monkeypatch.setattr(count_runs, "MOST_SHARE", 0.0)
    monkeypatch.setattr(count_runs, "SOURCES", with_macros(("-DFORESEEN_FROM=1",)))
    forget_kernels()
    run = run_of()
    n = 400
    middle, last = range(10, 60), range(60, 100)
    edges = [(0, 1), (0, 2), *((1, v) for v in middle), *((v, u) for v in middle for u in middle if u != v)]
    edges += [(10 + v % 50, v) for v in last] + [(u, 60) for u in middle] + [(v, 300 + v % 7) for v in last]
    run.step(inserts(edges, n))
    told = 50 * 49
    run.step(inserts([(2, v) for v in middle], n))
    assert run.column[[10, 60, 61, 304]].tolist() == [2, 100, 2, 100 + 2 * len(range(67, 100, 7))]
    assert not run.report.started_over and run.report.edges_read < told / 2

    def ways() -> tuple[int, int]:
        """How the last run left levels: the one above half counted, the first one counted by itself."""
        counters = run.program._runs._counters.get(stream=run.graph.device.stream)
        there = counters.view(count_runs.COUNT_COUNTERS)["left"][0]
        return int(there["is_half"]), int(there["is_apart"])

    assert ways() == (1, 1), (
        "it is known how many edges the middle ones tell of; the last ones are many, but fewer"
    )
    run.step(deletes([(2, v) for v in middle], n))
    assert ways() == (1, 1)
    assert run.column[[10, 60, 61, 304]].tolist() == [1, 50, 1, 50 + len(range(67, 100, 7))]
    run.step(inserts([(2, v) for v in middle] + [(300, 310), (10, 320)], n))
    assert ways() == (1, 1)
    forget_kernels()


def counters_of(run: CountsRun) -> Any:
    from graphtide.compute.device import count_runs

    counters = run.program._runs._counters.get(stream=run.graph.device.stream)
    return counters.view(count_runs.COUNT_COUNTERS)[0]


def middle_ones(n: int) -> list[tuple[int, int]]:
    """From 0 to 1 and 2, from 1 to 10 to 59, which lead to each other."""
    middle = range(10, 60)
    return [(0, 1), (0, 2), *((1, v) for v in middle), *((v, u) for v in middle for u in middle if u != v)]


def test_levels_that_told_of_too_much_are_tried_again_some_time(
    run_of: Callable[..., CountsRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was known of them need not hold any more, and is not found out where it is taken to be so."""
    from graphtide.compute.device import count_runs

    monkeypatch.setattr(count_runs, "MOST_LEAST", 300)
    monkeypatch.setattr(count_runs, "MOST_SHARE", 0.0)
    monkeypatch.setattr(count_runs, "SOURCES", with_macros(("-DFORESEEN_FROM=1", "-DAGES=2")))
    forget_kernels()
    run, n, middle = run_of(), 400, range(10, 60)
    edges = middle_ones(n)
    run.step(inserts([*edges, *((v, v + 100) for v in middle)], n))
    for change in (inserts, deletes):
        run.step(change([(2, v) for v in middle], n))
    assert counters_of(run)["left"]["is_half"], "of each level it is known how many edges it tells of"
    run.step(deletes([(v, u) for v in middle for u in middle if u != v], n))
    left = []
    for k in range(10):
        run.step((deletes if k % 2 else inserts)([(2, v) for v in middle], n))
        left.append(int(counters_of(run)["left"]["sequence"]))
    assert left[0] < left[1] and left[-4] == left[-1], "as it tells of few by now, nothing is left"
    forget_kernels()


def test_what_is_below_a_long_level_is_counted_whole(
    run_of: Callable[..., CountsRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that are few vertices: nobody tells of differences then."""
    from graphtide.compute.device import count_runs

    monkeypatch.setattr(count_runs, "SOURCES", with_macros(("-DDEEP_UPDATES=2", "-DDEEP_SHARE=40")))
    forget_kernels()
    run, n, middle = run_of(), 400, range(10, 60)
    below = [*((v, 60 + v % 4) for v in middle), (60, 70), (61, 70), (70, 71)]
    run.step(inserts([*middle_ones(n), *below], n))
    assert counters_of(run)["deep"] == 0, "levels were not counted whole"
    run.begin()
    assert counters_of(run)["deep"] == 3
    run.step(inserts([(2, v) for v in middle], n))
    assert run.column[[10, 60, 70, 71]].tolist() == [2, 24, 48, 48]
    assert run.report.edges_read < 200, "the 50 edges of each are not told of"
    run.step(deletes([(2, 10)], n))
    assert run.column[10] == 1 and run.report.edges_read == 50, "one update is told of"
    run.step(deletes([(2, v) for v in middle[1:]], n))
    assert run.report.edges_read < 200
    # Vertices go to deep levels, from them, and to none.
    run.step(inserts([(71, 80), (80, 81), (0, 61), (12, 90), (90, 91)], n))
    run.step(deletes([(70, 71), (60, 70), (0, 61), *((v, 62) for v in middle if v % 4 == 2)], n))
    run.step(inserts([(1, 62), (62, 12), (81, 82)], n + 50))
    assert counters_of(run)["deep"] == 3 and not run.report.started_over
    # With ever more levels it would be worse than telling.
    chain = [(v, v + 1) for v in range(91, 140)]
    run.step(inserts([*chain, (2, 20)], n + 50))
    assert counters_of(run)["deep"] == 0
    run.step(deletes(chain[30:], n + 50))
    run.begin()
    assert counters_of(run)["deep"] == 0, "there are more deep levels than are counted whole"
    run.step(deletes(chain, n + 50))
    run.begin()
    assert counters_of(run)["deep"] == 3
    monkeypatch.setattr(count_runs, "_DEEP_SHARE", 40)
    for _ in range(2):
        run.program.move(run.graph)
    assert counters_of(run)["deep"] == 3, "it is known of counts that were brought, too"
    run.step(inserts([(2, v) for v in middle], n + 50))
    forget_kernels()


@pytest.mark.sample(among="lists on a device run over")
@pytest.mark.parametrize("directed", [True, False])
def test_counts_stop_at_the_limit_and_come_down_again(run_of: Callable[..., CountsRun], directed: bool) -> None:
    run = run_of(directed=directed)
    run.step(inserts(ladder(60), 181))
    assert run.column[::3].tolist() == [min(2.0**k, LIMIT) for k in range(61)]
    cut = [(3 * k + 1, 3 * k + 3) for k in range(0, 60, 2)]
    for first in range(0, len(cut), 6):
        run.step(deletes(cut[first : first + 6], 181))
    assert run.column[180] == 2.0**30
    run.step(inserts(cut, 181))
    assert run.column[180] == LIMIT
    run.step(inserts([(0, 180)], 181))
    assert run.column[180] == 1


def test_any_history_around_the_limit(run_of: Callable[..., CountsRun], seed: int, run_long: bool) -> None:
    """3^33 is below 2^53 and 3^34 above: layers near these lose edges and get others; some leave, and saturate."""
    n = 3 * 40 + 1
    for own_seed in range(seed, seed + (40 if run_long else 2)):
        cuda_emulator.seed(own_seed)
        run = run_of(directed=bool(own_seed % 2))
        run.step(inserts(layers(40), n))
        at = np.uint32(3 * (28 + own_seed % 6) + 1)
        for epoch in random_history(own_seed, directed=True, epochs=4, vertices=14).epochs:
            run.step(Epoch(epoch.src + at, epoch.dst + at, epoch.ops, epoch.weights, n))


def test_a_block_that_works_alone_calls_the_others_wherever_it_is(
    run_of: Callable[..., CountsRun], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.compute.device import count_runs

    heads, order, recount, end = 1, 2, 3, 0xFFFF_FFFF  # of counting.cuh
    cuda_emulator.seed(seed)
    macros = ("-DALONE_ROWS=3", "-DALONE_UPDATES=9")
    monkeypatch.setitem(count_runs.SOURCES, "recount", count_runs.SOURCES["recount"]._replace(macros=macros))
    forget_kernels()
    try:
        run, n = run_of(), 50
        tails, many = range(1, 10), range(20, 31)
        run.step(inserts([*((0, v) for v in tails), (1, 16), *((16, v) for v in many)], n))
        run.step(inserts([(15, v) for v in many], n))
        run.step(inserts([(v, w) for v in range(3, 8) for w in (40, 41)], n))

        def phase(epoch: Epoch) -> int:
            run.step(epoch)
            counters = run.program._runs._counters.get(stream=run.graph.device.stream)
            return int(counters.view(count_runs.COUNT_COUNTERS)["handed"]["phase"][0])

        assert phase(inserts([(20, 0)], n)) == end, "it leads no farther"
        assert phase(inserts([(1, 15)], n)) == recount
        assert phase(deletes([(1, 15)], n)) == order, "it has more successors than suit a block"
        assert phase(deletes([(0, v) for v in range(3, 7)], n)) == heads, "four leave"
        run = run_of()
        for epoch in random_history(seed, directed=True, epochs=15, vertex_share=0.1).epochs:
            run.step(epoch)
    finally:
        forget_kernels()


def test_small_batches_like_the_last_one_are_left_to_compiled_code(
    run_of: Callable[..., CountsRun], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.compute.device import count_calls

    count_calls.warm_up()  # kernels that are compiled later would call what stands there then
    told, again = [], count_calls.count_again

    def noted(*given: Any) -> Any:
        told.append(again(*given))
        return told[-1]

    monkeypatch.setattr(count_calls, "count_again", noted)
    cuda_emulator.seed(seed)
    run, n = run_of(), 30
    run.step(inserts([(0, v) for v in range(1, 9)], n))
    for v in range(10, 20):
        run.step(inserts([(v - 9, v), (v, v + 10)], n))
    assert told.count(count_calls.DONE) >= 5


def test_counting_is_launched_behind_a_search_that_gives_up(
    run_of: Callable[..., CountsRun], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.compute.device import paths
    from graphtide.compute.device.count_runs import CountRuns

    began, begin = [], CountRuns.begin_again

    def noted(runs: CountRuns, *given: Any) -> None:
        begin(runs, *given)
        began.append(runs._begun)

    monkeypatch.setattr(CountRuns, "begin_again", noted)
    cuda_emulator.seed(seed)
    run, n = run_of(), 60
    run.step(inserts([(v, v + 1) for v in range(50)], n))
    for v in range(6):
        run.step(inserts([(v, v + 53)], n))
    assert began[-1:] == [True], "it is like the last one"
    began.clear()
    with monkeypatch.context() as patched:
        patched.setattr(paths, "LOST_LEAST", 0)
        run.step(inserts([(6, 59)], n))  # a search behind its batch has the limits of the one before
        run.step(deletes([(2, 3)], n))
    assert run.report.started_over and began == [True, True]
    for v in range(5, 9):
        run.step(inserts([(v, v + 50), (v, v + 41)], n))
    assert not run.report.started_over


def test_search_and_counting_are_launched_in_one_call(
    run_of: Callable[..., CountsRun], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the search was not launched behind its batch; also where it gives up."""
    from graphtide.compute.device import count_calls, count_runs, paths
    from graphtide.partition.device_side import DeviceSide

    told, together = [], count_runs.mend_and_count

    def noted(*given: Any) -> Any:
        told.append(together(*given))
        return told[-1]

    monkeypatch.setattr(count_runs, "mend_and_count", noted)
    monkeypatch.setattr(DeviceSide, "follow", lambda side, program: None)
    cuda_emulator.seed(seed)
    run, n = run_of(), 60
    run.step(inserts([(v, v + 1) for v in range(50)], n))
    for v in range(8):
        run.step(inserts([(v, v + 50)], n))
    done = count_calls.DONE
    assert told.count(done) >= 5
    with monkeypatch.context() as patched:
        patched.setattr(paths, "LOST_LEAST", 0)
        run.step(deletes([(2, 3)], n))
    assert run.report.started_over and told[-1] == done
    for v in range(5, 9):
        run.step(inserts([(v, v + 50), (v, v + 41)], n))
    assert not run.report.started_over


def test_counting_that_was_launched_ends_where_the_host_fails_meanwhile(
    run_of: Callable[..., CountsRun], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels that are left are counted by a second call, whose rows may be elsewhere after the next batch."""
    from graphtide.compute.device import count_runs
    from graphtide.compute.device.paths import DevicePathProgram

    def fails(*given: Any) -> Any:
        assert run.program._runs._begun, "it is like the last one"
        raise ZeroDivisionError

    monkeypatch.setattr(count_runs, "MOST_LEAST", 0)
    cuda_emulator.seed(seed)
    run, n = run_of(), 60
    run.step(inserts([(v, v + 1) for v in range(50)], n))
    for v in range(6):
        run.step(inserts([(v, v + 53)], n))
    with monkeypatch.context() as patched:
        patched.setattr(DevicePathProgram, "_take", fails)
        with pytest.raises(ZeroDivisionError):
            run.apply(inserts([(0, 20)], n))
    runs = run.program._runs
    assert not runs._begun and runs._told().left == 0
    run.begin()
    run.check()
    run.step(inserts([(v, 59) for v in range(3)], 200))


@pytest.mark.sample(among="awkward graphs on a device")
def test_awkward_graphs(run_of: Callable[..., CountsRun]) -> None:
    """No vertices, a source that comes, loops, a long path, a star, a source that goes."""
    run = run_of(sources=(3, 80))
    run.step(epoch_of([], 2))
    run.step(inserts([(0, 1), (1, 1)], 3))
    run.step(inserts([(3, 3), (3, 0)], 5))
    run.step(inserts([(v, v + 1) for v in range(3, 75)], 76))
    run.step(inserts([(80, v) for v in range(75)], 90))
    run.step(deletes([(80, v) for v in range(0, 75, 2)], 90))
    run.step(epoch_of([(Op.DELETE_VERTEX, 3, 0, 0.0)], 90))
    run.step(epoch_of([(Op.DELETE_VERTEX, 80, 0, 0.0)], 90))
    run.step(epoch_of([(Op.INSERT, 3, 5, 1.0)], 5000))


def test_a_source_comes_back_with_other_edges(run_of: Callable[..., CountsRun]) -> None:
    """The search reaches what it can behind the batch, and from the source in a run after that."""
    run = run_of(sources=(0, 4))
    run.step(inserts([(v, v + 1) for v in range(4, 99)], 100))
    run.step(epoch_of([(Op.DELETE_VERTEX, 0, 0, 0.0)], 100))
    run.step(inserts([(5, 60)], 100))
    run.step(inserts([(5, 61)], 100))
    run.step(inserts([(0, 1), (4, 1)], 100))
    run.step(inserts([(0, 3), (1, 3)], 100))


def test_a_program_moves_between_processors(run_of: Callable[..., CountsRun], seed: int) -> None:
    run = run_of(sources=(0, 4))
    for k, epoch in enumerate(random_history(seed, directed=True, epochs=11, vertex_share=0.1).epochs):
        if run.program.on_device != (k % 5 < 3):
            before = run.column.copy()
            run.program.move(run.graph)
            assert np.array_equal(run.column, before)
            run.check_results()
        run.refresh(epoch)
        run.check_results()
        state = {name: column.copy() for name, column in run.program.state().items()}
        restored = run.make()
        restored.restore(state, run.graph)
        assert restored.audit(run.graph) == []
        if k % 4 == 3 and run.program.on_device:
            run.program = twin(restored, run.graph)
            run.program.restore(state, run.graph)
    run.step(inserts([(0, 1), (4, 1)], run.graph.n_vertices))


def test_a_refresh_allocates_nothing(emulated_run_of: Callable[..., CountsRun]) -> None:
    run = emulated_run_of()
    run.step(inserts([(v, (3 * v + 1) % 50) for v in range(50)], 50))
    change = run.graph.apply(deletes([(0, 1), (7, 22)], 50).batch(), 50)
    with cuda_emulator.failing_allocation(0):  # the first one would fail, and the program go home
        run.program.refresh(run.graph, change)
    assert run.program.on_device
    run.check_results()


@pytest.mark.sample(among="a card that fails")
def test_without_memory_it_goes_on_at_the_host(emulated_run_of: Callable[..., CountsRun]) -> None:
    assert failing_runs(emulated_run_of, cuda_emulator.failing_allocation, lambda left: not left) >= 10


@pytest.mark.parametrize("quiet", [True, False])
def test_a_card_that_fails_is_dropped_within_the_run(
    emulated_run_of: Callable[..., CountsRun], quiet: bool
) -> None:
    failed = failing_runs(
        emulated_run_of, lambda at: cuda_emulator.failing_card(at, quiet=quiet), lambda fault: bool(fault.broken)
    )
    assert failed >= 2  # it searches, and counts


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_card_that_fails_as_search_and_counting_begin(
    emulated_run_of: Callable[..., CountsRun], at: int, quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one call: at the launch of either."""
    from graphtide.partition.device_side import DeviceSide

    monkeypatch.setattr(DeviceSide, "follow", lambda side, program: None)
    run, n = emulated_run_of(), 60
    for v in range(8):
        run.step(inserts([(v, v + 1), (v, v + 50)], n))
    epoch = inserts([(3, 40), (40, 41)], n)
    change = run.graph.apply(epoch.batch(weighted=False), n, epoch.vertex_ops())
    with cuda_emulator.failing_card(at, quiet=quiet):
        run.program.refresh(run.graph, change)
    assert (run.graph.device_lost is None) == (at == 2), "it launches two kernels"
    run.check_results()


def test_which_have_a_twin(cupy: ModuleType, graphs: list[Graph]) -> None:
    graphs.append(Graph(device=True))
    host = SSPaths("id", (0,))
    made = twin(host, graphs[0])
    for name in ("kind", "summary", "value", "family", "parameters", "value_scalars", "needs_in_edges"):
        assert getattr(made, name) == getattr(host, name)
    with pytest.raises(NoTwin):
        twin(type("Own", (SSPaths,), {})("id", (0,)), graphs[0])


# -- kernels -----------------------------------------------------------------------------------------------------


def test_structures_are_the_same_to_kernels(cupy: ModuleType, tmp_path: Path) -> None:
    from graphtide.compute.device.count_runs import COUNT_COUNTERS, COUNT_HANDED, COUNT_JOB, COUNT_LEFT

    dtypes = {"CountJob": COUNT_JOB, "CountCounters": COUNT_COUNTERS}
    dtypes |= {"CountHanded": COUNT_HANDED, "CountLeft": COUNT_LEFT}
    check_structures(cupy, tmp_path, dtypes, "../../compute/device/recount.cu")


def test_kernels_compile_without_warnings(nvrtc: object, run_long: bool) -> None:
    """For the oldest architecture; test_device_remote_rows.py has a newer one."""
    from graphtide.compute.device.count_runs import SOURCES

    for architecture in ARCHITECTURES if run_long else ARCHITECTURES[:1]:
        for origin in SOURCES.values():
            check_compiles(nvrtc, origin, architecture)
