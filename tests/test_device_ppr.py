"""Personalised PageRank on a device: after every batch within its certified bound, exact in every bit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from histories import check_hubs, deletes, epoch_of, hubs, inserts, random_history, rmat_history
from test_cuda_compiles import ARCHITECTURES, check_compiles
from test_cuda_compiles import nvrtc as nvrtc
from test_device_structures import check_structures
from walk_twins import WalkRun, runs
from walks import solved as exact

from graphtide.compute.device import NoTwin, twin
from graphtide.compute.engine import Engine
from graphtide.compute.homes import Homes
from graphtide.compute.program import Published, Refresh
from graphtide.compute.walks.ppr import PersonalisedPageRank
from graphtide.gpma.edges import NO_VERTEX, Op, Vertices, destinations, sources
from graphtide.partition.graph import Graph


class PprRun(WalkRun):
    """A graph on host and device, and personalised PageRank on the device."""

    def __init__(
        self,
        *,
        directed: bool = True,
        damping: float = 0.85,
        tolerance: float = 1e-3,
        at: tuple[int, ...] = (0, 7),
    ) -> None:
        super().__init__(
            lambda: PersonalisedPageRank("ppr", at, damping, tolerance),
            directed=directed,
            weighted=True,
            sources=at,
        )

    def check_values(self) -> None:
        program, graph = self.program, self.graph
        n = graph.n_vertices
        published = Published(program.columns(), program.scalars(), n)
        answer = type(program).read(published, np.arange(n, dtype=np.uint32))
        known = self.bound()
        assert (answer.null == (known == NO_VERTEX).all()).all()
        if not answer.null.any() and n:
            rhs = np.zeros(n)
            rhs[known[known != NO_VERTEX]] = 1
            off = np.abs(answer.values - exact(graph, rhs, program.host.damping)).sum()
            assert off <= program.scalars()["error_bound"]
            assert not answer.values[~graph.alive].any()

    def check_bits(self) -> None:
        """Sums are the right-hand side and the shares of all in-neighbours, in every bit, and those over all
        vertices are theirs; shares are next to what they stand for."""
        runs, n = self.program._runs, self.graph.n_vertices
        there = self.there
        keys = self.graph.export().keys
        tails, heads = sources(keys).astype(int), destinations(keys).astype(int)
        degrees = np.bincount(tails, minlength=n)
        values, sums, shares = (column.get()[:n] for column in there.numbers[:3])
        known = self.bound()
        wanted = np.zeros(n, np.int64)
        wanted[known[known != NO_VERTEX]] = int(runs.unit)
        assert np.array_equal(there.numbers.is_source.get()[:n], wanted > 0)
        np.add.at(wanted, heads, shares[tails])
        assert np.array_equal(sums, wanted)
        residuals = sums - values
        kept = self.program._kept
        assert kept == (int(values.sum()), int(np.abs(residuals).sum()), int(residuals.sum()))
        assert kept.norm < 1 << 60
        assert (values >= 0).all()
        off = np.abs(shares - self.program.host.damping * values / np.maximum(1, degrees))[degrees > 0]
        assert (off <= 1 + 2.0**-50 * values[degrees > 0]).all()
        estimates = self.program.columns()["estimate"]
        assert estimates.dtype == np.float32
        assert np.array_equal(estimates[:n], (values / runs.unit).astype(np.float32))

    def bits(self) -> list[list[int]]:
        """All that is kept of every vertex."""
        there, n = self.there, self.graph.n_vertices
        return [column.get()[:n].tolist() for column in there.numbers[:3]]


@pytest.fixture
def run_of(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PprRun]]:
    yield from runs(PprRun, monkeypatch)


@pytest.fixture
def emulated_run_of(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PprRun]]:
    yield from runs(PprRun, monkeypatch)


class Solving:
    """Counts what solves: pushes that did, those that had nothing to solve, those given up, and passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from graphtide.compute.device.ppr_runs import PprRuns

        self.pushed = self.edited = self.given_up = self.passes = self.rounds = 0
        push: Any = PprRuns.push
        solve: Any = PprRuns.solve

        def pushed(*given: Any) -> Any:
            run = yield from push(*given)
            self.pushed += bool(run.is_solved and run.rounds)
            self.edited += bool(run.is_solved and not run.rounds)
            self.given_up += not run.is_solved
            self.rounds += run.rounds
            return run

        def passed(*given: Any) -> Any:
            self.passes += 1
            return solve(*given)

        monkeypatch.setattr(PprRuns, "push", pushed)
        monkeypatch.setattr(PprRuns, "solve", passed)


@pytest.mark.parametrize("directed", [True, False])
def test_every_epoch_of_any_history_is_within_its_bound(
    run_of: Callable[..., PprRun], directed: bool, seed: int, run_long: bool
) -> None:
    """By pushes and by passes; sources are known late, deleted, and come back."""
    from graphtide.compute.device import ppr, ppr_runs

    with pytest.MonkeyPatch.context() as patched:
        for own_seed in range(seed, seed + (60 if run_long else 3)):
            cuda_emulator.seed(own_seed)
            rng = np.random.default_rng(own_seed)
            patched.setattr(ppr_runs, "MOST_LEAST", int(rng.choice([10, 1000, 1 << 20])))
            patched.setattr(ppr, "PUSH_LEAST", int(rng.choice([0, 5, 1024])))
            run = run_of(
                directed=directed,
                damping=float(rng.choice([0.85, 0.85, 0.5, 0.99])),
                tolerance=float(rng.choice([0.1, 1e-2, 1e-3, 1e-6])),
                at=tuple(rng.integers(0, 20, int(rng.integers(1, 4))).tolist()),
            )
            run.check()
            share = 0.2 if own_seed % 2 else 0.0
            history = random_history(own_seed, directed=directed, epochs=20 if run_long else 8, vertex_share=share)
            for epoch in history.epochs:
                run.step(epoch)
            assert run.graph.check() == []


@pytest.mark.sample(among="residuals over thousands of batches")
def test_residuals_are_those_of_the_graph_in_every_bit_after_many_epochs(
    run_of: Callable[..., PprRun], seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rows come to be, some empty, some change a little against their degree, and some much; vertices go."""
    from graphtide.compute.device import ppr_runs

    monkeypatch.setattr(ppr_runs, "MOST_LEAST", 1 << 30)  # never given up
    # What is pushed is counted below, and not left to chance: the order of threads alone is drawn.
    rng = np.random.default_rng(1)
    cuda_emulator.seed(seed)
    solving = Solving(monkeypatch)
    run = run_of(at=(0, 3), tolerance=1e-2)
    (load,) = rmat_history(1, directed=True, scale=7, degree=6, epochs=0).epochs
    n = load.n_vertices
    run.step(load)
    for batch in range(3_000 if run_long else 60):
        n += int(rng.random() < 0.05)
        size = int(rng.integers(1, 12))
        src = rng.integers(0, 4 if batch % 3 else n, size)
        # Without a source, or what it leads to, residuals are too large to be pushed.
        ops = np.where((src > 10) & (rng.random(size) < 0.1), Op.DELETE_VERTEX, rng.integers(0, 2, size))
        updates = list(zip(ops, src, rng.integers(0, n, size), np.ones(size), strict=True))
        run.refresh(epoch_of(updates, n))
        run.check_bits()
    run.check()
    assert solving.pushed >= 4
    assert solving.edited
    assert solving.given_up == 0
    assert solving.passes == 0


def test_pushes_that_are_given_up_end_in_passes(
    run_of: Callable[..., PprRun], seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues and lists run over, long rows are those of few edges, stamps begin anew."""
    from graphtide.compute.device import ppr_numbers, ppr_runs
    from graphtide.gpma.device import constants

    monkeypatch.setattr(constants, "LONG_ROW", 4)
    monkeypatch.setattr(ppr_runs, "LONG_ROW", 4)
    monkeypatch.setattr(ppr_runs, "STAMP_MAX", 60)
    solving = Solving(monkeypatch)
    for own_seed in range(seed, seed + 40):
        if own_seed >= seed + 3 and solving.pushed and solving.given_up and not run_long:
            break
        rng = np.random.default_rng(own_seed)
        for name, values in (
            ("QUEUE_LEAST", [2, 20, 1000]),
            ("CHANGES_LEAST", [1, 10, 1000]),
            ("MOST_LEAST", [20, 300, 10000]),
        ):
            # The first has the least room, so that some are given up.
            module = ppr_runs if name == "MOST_LEAST" else ppr_numbers
            monkeypatch.setattr(module, name, values[0] if own_seed == seed else int(rng.choice(values)))
        monkeypatch.setattr(ppr_numbers, "QUEUE_SHARE", 1 << 20)
        monkeypatch.setattr(ppr_numbers, "CHANGES_SHARE", 1 << 20)
        cuda_emulator.seed(own_seed)
        run = run_of(directed=bool(own_seed % 2), at=(1, 2))
        history = random_history(own_seed, directed=True, epochs=8, vertices=60, vertex_share=0.05)
        for epoch in history.epochs:
            run.step(epoch)
    assert solving.pushed
    assert solving.given_up
    assert solving.passes >= solving.given_up


def test_what_was_given_up_twice_is_not_pushed_again_at_once(
    emulated_run_of: Callable[..., PprRun], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.compute.device import ppr, ppr_runs

    monkeypatch.setattr(ppr_runs, "MOST_LEAST", 0)
    monkeypatch.setattr(ppr_runs, "MOST_SHARE", 0.0)
    monkeypatch.setattr(ppr, "UNTRIED_MAX", 3)
    rng = np.random.default_rng(seed)
    run = emulated_run_of(tolerance=1e-6)
    run.apply(hubs(rng, 400, 2))
    run.begin()
    solving = Solving(monkeypatch)
    tried, solved = [], []
    n = 400
    for _ in range(2 * ppr.IN_VAIN_MAX + ppr.UNTRIED_MAX):
        given_up, passes = solving.given_up, solving.passes
        # Shares of a source change, which is more than residuals may come to.
        run.step(inserts([(0, int(v)) for v in rng.integers(0, 400, 20)], n))
        tried.append(solving.given_up - given_up)
        # Smaller ones between, which change nothing that is reached, say nothing of those.
        n += 2
        run.step(inserts([(n - 2, n - 1)], n))
        solved.append(solving.passes - passes)
    assert solved == [1] * len(solved)
    assert tried == [1] * ppr.IN_VAIN_MAX + [0] * ppr.UNTRIED_MAX + [1] + [0] * (ppr.IN_VAIN_MAX - 1)


def test_batches_that_are_not_pushed_are_edited_before_passes(
    run_of: Callable[..., PprRun], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes are fewer then; whatever queues hold, and whoever comes and goes, the numbers are exact."""
    from graphtide.compute.device import ppr, ppr_numbers, ppr_runs
    from graphtide.gpma.device import constants

    monkeypatch.setattr(ppr, "PUSH_LEAST", -1)
    monkeypatch.setattr(ppr, "PUSH_SHARE", 0.0)
    monkeypatch.setattr(constants, "LONG_ROW", 8)
    monkeypatch.setattr(ppr_runs, "LONG_ROW", 8)
    monkeypatch.setattr(ppr_runs, "STAMP_MAX", 9)
    monkeypatch.setattr(ppr_numbers, "QUEUE_SHARE", 1 << 20)
    passes = []
    for share in (0.0, 1e9):
        monkeypatch.setattr(ppr, "EDIT_SHARE", share)
        # Both of the same graph, and the order of threads alone is drawn.
        cuda_emulator.seed(seed)
        rng = np.random.default_rng(1)
        monkeypatch.setattr(ppr_numbers, "QUEUE_LEAST", 1000)
        run = run_of(at=(0, 3), tolerance=1e-3)
        (load,) = rmat_history(1, directed=True, scale=9, degree=8, epochs=0).epochs
        run.step(load)
        rounds = 0
        for _ in range(6):
            src, dst = (rng.integers(0, load.n_vertices, 4) for _ in range(2))
            rounds += run.step(
                inserts(list(zip(src.tolist(), dst.tolist(), strict=True)), load.n_vertices)
            ).iterations
        passes.append(rounds)
    assert passes[1] < passes[0]
    for own_seed in range(seed, seed + 3):
        monkeypatch.setattr(ppr_numbers, "QUEUE_LEAST", 1 + own_seed % 3)
        run = run_of(at=(1, 2), directed=bool(own_seed % 2))
        for epoch in random_history(own_seed, directed=True, epochs=8, vertices=60, vertex_share=0.1).epochs:
            run.step(epoch)


def test_what_one_with_few_edges_has_is_not_given_away_for_each_of_many_new_ones(
    run_of: Callable[..., PprRun], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sums together would be more than 64 bits hold, and passes begin with anything but what is nearer."""
    from graphtide.compute.device import ppr

    monkeypatch.setattr(ppr.DevicePersonalisedPageRank, "_tries", lambda *_: False)
    passes = []
    for share in (0.0, 1e9):
        monkeypatch.setattr(ppr, "EDIT_SHARE", share)
        cuda_emulator.seed(seed)
        run = run_of(at=(0, 7))
        drawn = np.random.default_rng(1).integers(1, 300, (600, 2))
        run.step(inserts([(0, 1), (7, 0), *map(tuple, drawn.tolist())], 300))
        passes.append(run.step(inserts([(0, k) for k in range(2, 202)], 300)).iterations)
    assert passes[1] <= passes[0]


def test_what_is_not_traded_for_want_of_room_is_not_given_away(
    run_of: Callable[..., PprRun], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pushes are given up then, and passes begin with no more than 64 bits hold."""
    from graphtide.compute.device import ppr_numbers, ppr_runs

    monkeypatch.setattr(ppr_numbers, "QUEUE_SHARE", 1 << 20)
    begun, solve = [], ppr_runs.PprRuns.solve

    def noted(runs: Any, *given: Any) -> Any:
        begun.append(sum(map(int, runs._there.numbers.sums.get())))
        return solve(runs, *given)

    monkeypatch.setattr(ppr_runs.PprRuns, "solve", noted)
    drawn = np.random.default_rng(1).integers(1, 300, (600, 2))
    passes = []
    for queue in (4096, 1):
        monkeypatch.setattr(ppr_numbers, "QUEUE_LEAST", queue)
        cuda_emulator.seed(seed)
        run = run_of(at=(0, 7))
        run.step(inserts([(0, 1), (1, 0), (7, 0), *map(tuple, drawn.tolist())], 300))
        begun.clear()
        many = [(0, k) for k in range(2, 202)]
        few = [(tail, k) for tail in (5, 6, 8, 9) for k in range(20)]
        passes.append(run.step(inserts([*many, *few], 300)).iterations)
        assert max(begun) < 1 << 61
    assert passes[1] <= passes[0] + 4


@pytest.mark.sample(among="a larger graph on a device")
def test_rows_of_many_leaves_are_added_up_beside_short_ones(run_of: Callable[..., PprRun], seed: int) -> None:
    for own_seed in range(seed, seed + 3):
        rng = np.random.default_rng(own_seed)
        cuda_emulator.seed(own_seed)
        check_hubs(run_of(), rng)


def test_work_stays_where_the_sources_reach(
    run_of: Callable[..., PprRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many islands, of which the source reaches one: no pass over all of them, and nothing for the others'."""
    run = run_of(at=(5,))
    cycles = [(10 * k + v, 10 * k + (v + 1) % 10) for k in range(300) for v in range(10)]
    chords = [(10 * k + v, 10 * k + (v + 3) % 10) for k in range(300) for v in range(10)]
    run.step(inserts([*cycles, *chords], 3000))
    solving = Solving(monkeypatch)
    run.begin()
    run.check()
    assert 0 < run.report.edges_read < 20 * 40
    assert solving.passes == 0
    report = run.step(deletes([(10 * k, 10 * k + 1) for k in range(1, 300)], 3000))
    assert (report.edges_read, report.changed) == (0, {})


def test_sources_come_and_go(run_of: Callable[..., PprRun], monkeypatch: pytest.MonkeyPatch) -> None:
    """By pushes, and by passes; also those to which no edge leads, and all at once."""
    from graphtide.compute.device import ppr

    for least in (1024, -1):
        monkeypatch.setattr(ppr, "PUSH_LEAST", least)
        run = run_of(at=(3, 4, 60, 61))
        run.step(inserts([(v, (3 * v + 1) % 50) for v in range(50)], 50))
        run.step(inserts([(60, 3)], 62))
        run.step(epoch_of([(Op.DELETE_VERTEX, 3, 0, 0.0), (Op.INSERT, 61, 5, 1.0)], 62))
        run.step(epoch_of([(Op.DELETE_VERTEX, v, 0, 0.0) for v in (4, 60, 61)], 62))
        assert run.program.columns()["estimate"][:62].sum() == 0
        run.step(epoch_of([(Op.INSERT, 4, 3, 1.0), (Op.INSERT, 3, 4, 1.0)], 62))


def test_the_point_leaves_room_for_all_values(emulated_cupy: ModuleType) -> None:
    """The largest that values may add up to: all mass in loops that are never left."""
    from graphtide.compute.device.ppr_numbers import point

    for damping in (0.01, 0.5, 0.85, 0.99):
        for n_sources in (1, 7, 1 << 20):
            largest = n_sources / (1 - damping)
            assert 1.1 * largest * 2.0 ** point(n_sources, damping) <= 2.0**60
            assert 2.25 * largest * 2.0 ** point(n_sources, damping) > 2.0**60


def test_restarts_of_another_strength_are_brought(run_of: Callable[..., PprRun]) -> None:
    """The host lets them follow; on the device they are 1."""
    run = run_of(at=(0,))
    run.step(inserts([(v, (3 * v + 1) % 20) for v in range(20)], 20))
    host = run.make()
    host.restore(run.program.state(), run.graph)
    host._walks.value[:20] *= 3
    host._walks.residual[:20] *= 3
    host._walks.rhs[0] *= 3
    host._walks.sums[:] *= 3
    assert host.audit(run.graph) == []
    run.program.restore(host.state(), run.graph)
    run.step(inserts([(0, 5)], 20))


def test_an_engine_with_half_of_its_programs_on_each_processor(run_of: Callable[..., PprRun], seed: int) -> None:
    """What is reported leads from column to column; audits change nothing; then the device is lost."""
    run = run_of()
    graph = run.graph

    def resolved(ids: Any) -> Vertices:
        return np.array([v if v < graph.n_vertices else NO_VERTEX for v in ids], np.uint32)

    made = [PersonalisedPageRank(str(k), (k, 2 * k), tolerance=1e-2) for k in range(4)]

    def placed(program: Any, graph: Graph) -> Any:
        if int(program.id) % 2:
            raise NoTwin("it stays")
        return twin(program, graph)

    engine = Engine(graph, made, resolved, place=placed, judge=Homes(lambda _: False))
    engine.start()
    for k, epoch in enumerate(random_history(seed, directed=True, epochs=6, vertex_share=0.1).epochs):
        change = graph.apply(epoch.batch(weighted=True), epoch.n_vertices, epoch.vertex_ops())
        for done in engine.refresh(change):
            assert done.error is None
            assert done.on_device == (k < 4 and int(done.id) % 2 == 0)
        assert all(found == [] for found in engine.audit().values())
        if k == 3:
            graph.drop_device("taken away")
    engine.close()


# -- what fails --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["get no smaller", "do not reach a tolerance of 1e-17"])
def test_what_the_numbers_of_a_device_do_not_hold_goes_on_at_the_host(
    run_of: Callable[..., PprRun], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    from graphtide.compute.device import ppr

    run = run_of()
    run.step(inserts([(v, (7 * v + 1) % 40) for v in range(40)], 40))
    monkeypatch.setattr(ppr, "PUSH_LEAST", -1)
    if "tolerance" in reason:
        monkeypatch.setattr(run.program.host, "tolerance", 1e-17)
    else:
        run.program._runs._passes_max = 1
        run.program._runs._calls.job["goal"] = 1e-9
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patched:
        if "tolerance" in reason:  # the host cannot either
            patched.setattr(run.program.host, "start", lambda _: Refresh({"estimate": None}))
        report = run.refresh(deletes([(0, 1), (3, 22), (5, 36)], 40))
    assert reason in caplog.text
    assert report.started_over
    assert not run.program.on_device
    assert run.graph.device is not None
    if "tolerance" not in reason:
        run.check_results()


def test_which_have_a_twin(cupy: ModuleType, graphs: list[Graph]) -> None:
    graphs.append(Graph(device=True))
    host = PersonalisedPageRank("id", (0,))
    made = twin(host, graphs[0])
    for name in ("kind", "summary", "value", "family", "parameters", "value_scalars"):
        assert getattr(made, name) == getattr(host, name)
    own = type("Own", (PersonalisedPageRank,), {})
    for program in (PersonalisedPageRank("id", (0,), tolerance=1e-7), own("id", (0,))):
        with pytest.raises(NoTwin):
            twin(program, graphs[0])


# -- kernels -----------------------------------------------------------------------------------------------------


def test_structures_are_the_same_to_kernels(cupy: ModuleType, tmp_path: Path) -> None:
    from graphtide.compute.device.ppr_groups import PPR_SWEEP
    from graphtide.compute.device.ppr_numbers import PPR_COUNTERS, PPR_JOB

    dtypes = {"PprJob": PPR_JOB, "PprCounters": PPR_COUNTERS, "PprSweep": PPR_SWEEP}
    check_structures(cupy, tmp_path, dtypes, "../../compute/device/ppr.cuh")


def test_kernels_compile_without_warnings(nvrtc: object, run_long: bool) -> None:
    """For the oldest architecture; test_device_remote_rows.py has a newer one."""
    from graphtide.compute.device.ppr_runs import SOURCES

    for architecture in ARCHITECTURES if run_long else ARCHITECTURES[:1]:
        for origin in SOURCES.values():
            check_compiles(nvrtc, origin, architecture)
