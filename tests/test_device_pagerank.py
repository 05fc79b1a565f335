"""PageRank on a device: after every batch within its certified bound, exact in every bit, proven by the host."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from histories import check_hubs, deletes, epoch_of, inserts, random_history, rmat_history
from test_cuda_compiles import ARCHITECTURES, check_compiles
from test_cuda_compiles import nvrtc as nvrtc
from test_device_structures import check_structures
from walk_twins import WalkRun, runs

from graphtide.compute.audit.auditor import Auditor
from graphtide.compute.device import NoTwin, twin
from graphtide.compute.engine import Engine
from graphtide.compute.homes import Homes
from graphtide.compute.program import Published
from graphtide.compute.walks.pagerank import PageRank
from graphtide.gpma.edges import Op, destinations, sources
from graphtide.partition.graph import Graph


class RanksRun(WalkRun):
    """A graph on host and device, and PageRank on the device."""

    def __init__(self, *, directed: bool = True, damping: float = 0.85, tolerance: float = 1e-3) -> None:
        super().__init__(
            lambda: PageRank("ranks", damping=damping, tolerance=tolerance),
            directed=directed,
            weighted=True,
            sources=(),
        )

    def check_values(self) -> None:
        program, graph = self.program, self.graph
        n, alive = graph.n_vertices, graph.alive
        published = Published(program.columns(), program.scalars(), n)
        answer = type(program).read(published, np.arange(n, dtype=np.uint32))
        assert np.array_equal(answer.null, ~alive)
        if alive.any():
            exact = solved(graph, program.host.damping)
            assert np.abs(answer.values[alive] / exact[alive] - 1).max() <= program.scalars()["error_bound"]

    def check_bits(self) -> None:
        """The sums that are kept are the right-hand side and the shares of all in-neighbours, in every bit; shares
        are next to what they stand for."""
        from graphtide.compute.device.walk_runs import WalkRuns

        runs: WalkRuns = self.program._runs
        there, n = self.there, self.graph.n_vertices
        keys = self.graph.export().keys
        tails, heads = sources(keys).astype(int), destinations(keys).astype(int)
        degrees = np.bincount(tails, minlength=n)
        weights = there.weights.get()[:n]
        assert np.array_equal(self.estimates(), (there.ranks.values.get()[:n] / runs.units[0]).astype(np.float32))
        assert np.array_equal(weights >= 1, self.graph.alive)
        assert np.array_equal(weights == 0, ~self.graph.alive)
        for system, unit, rhs in zip(
            (there.ranks, there.majorant), runs.units, (weights > 0, weights), strict=True
        ):
            values, sums, shares = (column.get()[:n] for column in system)
            wanted = (rhs.astype(np.float64) * unit).astype(np.int64)
            np.add.at(wanted, heads, shares.astype(np.int64)[tails])
            assert np.array_equal(sums, wanted)
            assert int(values.astype(object).sum() if n else 0) < 1 << 60
            exact = self.program.host.damping * values / np.maximum(1, degrees)
            off = np.abs(shares.astype(np.float64) - exact)[degrees > 0]
            assert (off <= 1 + exact[degrees > 0] * 2.0**-24 * (1 + 1e-6)).all()

    def bits(self) -> list[list[int]]:
        """All that is kept of every vertex."""
        there, n = self.there, self.graph.n_vertices
        columns = (*there.ranks[:2], *there.majorant[:2], there.weights)
        return [column.get()[:n].view(np.uint32).tolist() for column in columns]


def solved(graph: Graph, damping: float) -> np.ndarray:
    """What a random walk with restarts at every vertex that exists comes to, to the last digits."""
    keys, n = graph.export().keys, graph.n_vertices
    tails, heads = sources(keys).astype(int), destinations(keys).astype(int)
    shares = damping / np.maximum(1, np.bincount(tails, minlength=n))
    values = rhs = graph.alive.astype(float)
    for _ in range(math.ceil(math.log(1e-15) / math.log(damping))):
        values = rhs + np.bincount(heads, (values * shares)[tails], n)
    return np.asarray(values / values.sum())


@pytest.fixture
def run_of(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RanksRun]]:
    yield from runs(RanksRun, monkeypatch)


@pytest.fixture
def emulated_run_of(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RanksRun]]:
    yield from runs(RanksRun, monkeypatch)


@pytest.mark.parametrize("directed", [True, False])
def test_every_epoch_of_any_history_is_within_its_bound(
    run_of: Callable[..., RanksRun], directed: bool, seed: int, run_long: bool
) -> None:
    for own_seed in range(seed, seed + (40 if run_long else 2)):
        cuda_emulator.seed(own_seed)
        rng = np.random.default_rng(own_seed)
        run = run_of(
            directed=directed,
            damping=float(rng.choice([0.85, 0.85, 0.5])),
            tolerance=float(rng.choice([0.1, 1e-2, 1e-3, 1e-4])),
        )
        run.check()
        share = 0.15 if own_seed % 2 else 0.0
        history = random_history(own_seed, directed=directed, epochs=20 if run_long else 8, vertex_share=share)
        for epoch in history.epochs:
            run.step(epoch)
        assert run.graph.check() == []


class Pushed:
    """Counts the runs of pushes: those that solved, those that were given up, and those that only edited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from graphtide.compute.device.push_runs import PushRuns

        self.solved = self.given_up = self.looked = self.rounds = self.edited = self.again = self.ordinary = 0
        push: Any = PushRuns.push
        push_again: Any = PushRuns.push_again
        edit: Any = PushRuns.edit

        def counted_edit(runs: Any, *given: Any) -> None:
            self.edited += 1
            edit(runs, *given)

        def counted(runs: Any, *given: Any, looks: bool) -> Any:
            run = push(runs, *given, looks=looks)
            self.looked += looks
            self.count(run)
            return run

        def counted_again(runs: Any, *given: Any) -> Any:
            done = push_again(runs, *given)
            if done is not None:
                self.again += 1
                self.ordinary += done[1] > 0  # else Python goes on from there
                self.count(done[0])
            return done

        monkeypatch.setattr(PushRuns, "push", counted)
        monkeypatch.setattr(PushRuns, "push_again", counted_again)
        monkeypatch.setattr(PushRuns, "edit", counted_edit)

    def count(self, run: Any) -> None:
        self.solved += run.is_solved
        self.given_up += not run.is_solved
        self.rounds += run.rounds


def test_small_batches_like_the_last_one_are_left_to_compiled_code(
    run_of: Callable[..., RanksRun], seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which comes to what Python comes to, in every bit, also where a limit changes, and whatever is between."""
    from graphtide.compute.device import push_runs

    for name, value in (("FIRST_SHARE", 10.0), ("MOST_SHARE", 1e6)):  # never given up
        monkeypatch.setattr(push_runs, name, value)
    rng = np.random.default_rng(seed)
    cuda_emulator.seed(seed)
    run = run_of(tolerance=float(rng.choice([1e-2, 1e-3, 1e-4])))
    (load,) = rmat_history(seed, directed=True, scale=6, degree=5, epochs=0).epochs
    run.step(load)
    run.begin()
    n = load.n_vertices
    other: Any = twin(run.make(), run.graph)
    other.start(run.graph)
    other._refresh_again = lambda *_: None
    pushed = Pushed(monkeypatch)
    for batch in range(200 if run_long else 30):
        n += batch % 11 == 7
        size = 40 if batch % 17 == 12 else int(rng.integers(0, 4))
        edges = [*zip(*(rng.integers(0, high, size).tolist() for high in (2, n, n)), [1.0] * size, strict=True)]
        if batch % 13 == 9:
            edges.append((Op.DELETE_VERTEX, int(rng.integers(n)), 0, 1.0))
        epoch = epoch_of(edges, n)
        change = run.graph.apply(epoch.batch(weighted=True), n, epoch.vertex_ops())
        reports = [program.refresh(run.graph, change) for program in (run.program, other)]
        changed = [
            {
                name: vertices if vertices is None else sorted(vertices.tolist())
                for name, vertices in report.changed.items()
            }
            for report in reports
        ]
        assert changed[0] == changed[1]
        # How many rounds there are depends on the order of threads.
        alike = [replace(report, changed={}, iterations=0) for report in reports]
        assert alike[0] == alike[1]
        assert run.program.scalars() == other.scalars()
        if batch % 5 == 4:
            assert run.program.audit(run.graph) == []
    assert pushed.again and (pushed.ordinary or not run_long)
    states = [program.state() for program in (run.program, other)]
    for name, column in states[0].items():
        assert column.tobytes() == states[1][name].tobytes(), name
    assert run.program._kept == other._kept


def test_few_updates_are_pushed(
    run_of: Callable[..., RanksRun], seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rows come to be, some empty, some change a little against their degree, and some much."""
    from graphtide.compute.device import push_runs

    rng = np.random.default_rng(seed)
    for directed in (True, False):
        for name, value in (("FIRST_SHARE", 10.0), ("MOST_SHARE", 1e6)):  # never given up
            monkeypatch.setattr(push_runs, name, value)
        cuda_emulator.seed(seed)
        pushed = Pushed(monkeypatch)
        run = run_of(directed=directed, tolerance=float(rng.choice([1e-2, 1e-3, 1e-4])))
        (load,) = rmat_history(seed, directed=directed, scale=7, degree=6, epochs=0).epochs
        n = load.n_vertices
        run.step(load)
        wholes = 0
        for batch in range(200 if run_long else 8):
            n += int(rng.random() < 0.2)
            size = int(rng.integers(1, 12))
            src = rng.integers(0, 4 if batch % 3 else n, size)
            edges = zip(rng.integers(0, 2, size), src, rng.integers(0, n, size), np.ones(size), strict=True)
            run.step(epoch_of(list(edges), n))
            wholes += run.report.changed.get("estimate", load.src) is None
        assert wholes <= 2  # columns grew, and the point moved
        assert pushed.solved >= 4
        assert pushed.given_up == 0


def test_pushes_that_are_given_up_end_in_passes(
    run_of: Callable[..., RanksRun], seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues and lists run over, long rows are those of few edges, stamps begin anew; later ones are not tried."""
    from graphtide.compute.device import pagerank, push_runs
    from graphtide.gpma.device import constants

    monkeypatch.setattr(constants, "LONG_ROW", 4)
    monkeypatch.setattr(push_runs, "LONG_ROW", 4)
    monkeypatch.setattr(push_runs, "STAMP_MAX", 60)
    monkeypatch.setattr(pagerank, "EDITED_MAX", 2)
    pushed = Pushed(monkeypatch)
    for own_seed in range(seed, seed + (40 if run_long else 3)):
        rng = np.random.default_rng(own_seed)
        for name, values in (
            ("QUEUE_LEAST", [2, 20, 1000]),
            ("CHANGES_LEAST", [1, 10, 1000]),
            ("FIRST_LEAST", [3, 50, 1000]),
            ("MOST_LEAST", [20, 300, 10000]),
        ):
            # The first has the least room, so that some are given up.
            monkeypatch.setattr(push_runs, name, values[0] if own_seed == seed else int(rng.choice(values)))
        monkeypatch.setattr(push_runs, "QUEUE_SHARE", 1 << 20)
        monkeypatch.setattr(push_runs, "CHANGES_SHARE", 1 << 20)
        cuda_emulator.seed(own_seed)
        run = run_of(directed=bool(own_seed % 2))
        history = random_history(own_seed, directed=True, epochs=8, vertices=60, vertex_share=0.05)
        for epoch in history.epochs:
            run.step(epoch)
    assert pushed.solved
    assert pushed.given_up
    assert pushed.looked


def test_batches_of_which_too_much_was_to_be_pushed_are_edited(
    run_of: Callable[..., RanksRun], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So often; then one is tried again. Smaller ones are pushed."""
    from graphtide.compute.device import pagerank, push_runs

    monkeypatch.setattr(pagerank, "EDITED_MAX", 3)
    monkeypatch.setattr(push_runs, "FIRST_SHARE", 0.0)
    monkeypatch.setattr(push_runs, "FIRST_LEAST", 0)
    cuda_emulator.seed(seed)
    pushed = Pushed(monkeypatch)
    run = run_of()
    (load,) = rmat_history(seed, directed=True, scale=7, degree=6, epochs=0).epochs
    run.step(load)
    pushed.given_up = pushed.edited = 0
    rng = np.random.default_rng(seed)
    for _ in range(5):
        run.step(inserts(rng.integers(0, load.n_vertices, (60, 2)).tolist(), load.n_vertices))
    assert pushed.edited == 3
    assert pushed.given_up == 2


@pytest.mark.parametrize("edited", [False, True])
def test_what_is_not_traded_for_want_of_room_is_not_given_away(
    run_of: Callable[..., RanksRun], edited: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pushes are given up then, and passes begin with no more than 64 bits hold; so they do behind edits alone."""
    from graphtide.compute.device import push_runs

    monkeypatch.setattr(push_runs, "QUEUE_SHARE", 1 << 20)
    monkeypatch.setattr(push_runs, "QUEUE_LEAST", 1)
    cuda_emulator.seed(seed)
    run = run_of()
    n = 300
    drawn = np.random.default_rng(1).integers(2, n, (600, 2))
    run.step(inserts([(0, 1), (1, 0), *((k, 0) for k in range(2, n)), *map(tuple, drawn.tolist())], n))
    begun: list[int] = []
    solve = push_runs.PushRuns.solve

    def noted(pushes: Any, *given: Any) -> Any:
        there = pushes._walks._there
        begun.extend(sum(map(int, system.sums.get())) for system in (there.ranks, there.majorant))
        return solve(pushes, *given)

    monkeypatch.setattr(push_runs.PushRuns, "solve", noted)
    if edited:
        run.program._too_many = 0
    many, few = [(0, k) for k in range(2, n)], [(tail, k) for tail in (5, 6, 8, 9) for k in range(20)]
    run.step(inserts([*many, *few], n))
    assert begun
    assert max(begun) < 1 << 61


@pytest.mark.sample(1)
@pytest.mark.parametrize("due_share", [0.3, 3.0])
def test_what_passes_leave_is_pushed(
    run_of: Callable[..., RanksRun], due_share: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or given up, where there is no room for it; or left for more passes, where it is more than was expected."""
    from graphtide.compute.device import pagerank, push_runs

    monkeypatch.setattr(pagerank, "DUE_SHARE", due_share)
    monkeypatch.setattr(pagerank, "PUSH_LEAST", -1)
    monkeypatch.setattr(pagerank, "PUSH_SHARE", 0.0)
    monkeypatch.setattr(push_runs, "STAMP_MAX", 200)
    ended: list[tuple[bool, bool]] = []
    solve: Any = push_runs.PushRuns.solve

    def noted(runs: Any, *given: Any) -> Any:
        run = solve(runs, *given)
        ended.append((bool(run.is_solved), run.rounds > 0))
        return run

    monkeypatch.setattr(push_runs.PushRuns, "solve", noted)
    cuda_emulator.seed(seed)
    for queue, most in ((4096, 16384), (2, 16384), (4096, 40)):
        for name, value in (("QUEUE_LEAST", queue), ("MOST_LEAST", most)):
            monkeypatch.setattr(push_runs, name, value)
        for name in ("QUEUE_SHARE", "MOST_SHARE"):
            monkeypatch.setattr(push_runs, name, 1e6 if name == "QUEUE_SHARE" else 0.0)
        run = run_of(tolerance=1e-3)
        for epoch in rmat_history(seed, directed=True, scale=7, degree=6, updates=(60, 7)).epochs:
            run.step(epoch)
    assert (True, True) in ended
    if due_share > 1:
        assert (False, True) in ended


@pytest.mark.sample(among="a larger graph on a device")
def test_rows_of_many_leaves_are_added_up_beside_short_ones(run_of: Callable[..., RanksRun], seed: int) -> None:
    for own_seed in range(seed, seed + 3):
        rng = np.random.default_rng(own_seed)
        cuda_emulator.seed(own_seed)
        check_hubs(run_of(), rng)


def test_the_point_moves_as_vertices_come(run_of: Callable[..., RanksRun]) -> None:
    run = run_of()
    points = []
    for n in (3, 5, 40, 90, 700):
        run.step(inserts([(v, v // 2) for v in range(n // 2, n)] + [(0, n - 1)], n))
        points.append(run.program._runs._there.bits)
    assert len(set(points)) > 3
    assert points == sorted(points, reverse=True)
    # Into columns that are as yet unused, too: what a start makes needs no moving.
    run.refresh(epoch_of([], 5000))
    run.report = run.program.start(run.graph)
    run.check()


def test_the_point_leaves_room_for_all_values() -> None:
    """The largest that a system may add up to: all mass in one loop that is never left."""
    from graphtide.compute.device.program import Unfit
    from graphtide.compute.device.walk_runs import BITS_MIN, point

    for damping in (0.01, 0.5, 0.85, 0.99):
        for room in (1, 7, 1 << 20, 1 << 25):
            bits, majorant_bits = point(room, damping)
            largest = room / (1 - damping)
            assert 1.1 * largest * 2.0**bits <= 2.0**60 < 2.25 * largest * 2.0**bits
            weights = room + 1.3 * largest / 4
            assert 1.1 * weights / (1 - damping) * 2.0**majorant_bits <= 2.0**60
            assert majorant_bits >= BITS_MIN
    with pytest.raises(Unfit, match="too few bits"):
        point(1 << 32, 0.99)


def test_one_that_was_restored_before_it_got_a_twin_runs_on_the_host_once(
    run_of: Callable[..., RanksRun],
) -> None:
    run = run_of()
    run.step(inserts([(0, 1), (1, 2), (2, 0), (3, 0)], 4))
    restored = run.make()
    restored.restore(run.program.state(), run.graph)
    run.program = twin(restored, run.graph)
    for epoch in (inserts([(1, 3)], 4), deletes([(0, 1)], 4)):
        run.refresh(epoch)
        run.check_results()
    run.check()


def test_it_moves_between_processors_under_an_engine(run_of: Callable[..., RanksRun], seed: int) -> None:
    """What is reported leads from column to column, wherever they are; audits and saving change nothing."""
    run = run_of()
    engine = Engine(run.graph, [run.make()], lambda ids: np.empty(0, np.uint32), judge=Homes(lambda _: False))
    engine.start()
    for k, epoch in enumerate(random_history(seed, directed=True, epochs=6, vertex_share=0.1).epochs):
        change = run.graph.apply(epoch.batch(weighted=True), epoch.n_vertices, epoch.vertex_ops())
        (made,) = engine.refresh(change)
        assert made.error is None
        assert made.on_device == (k < 4)
        assert engine.audit() == {"storage": [], "ranks": []}
        if k == 3:
            run.graph.drop_device("taken away")
    engine.close()


def test_audits_get_on_however_long_it_takes_to_fetch_what_they_read(
    run_of: Callable[..., RanksRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a change between any two slices, each of which then fetches everything."""
    from graphtide.compute.device.walk_runs import WalkRuns

    now = 0.0

    def slow(method: Callable[..., Any], seconds: Callable[..., float]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            nonlocal now
            now += seconds(*given)
            return method(*given)

        return called

    monkeypatch.setattr(WalkRuns, "read", slow(WalkRuns.read, lambda *_: 1.0))
    audit_slice = slow(PageRank.audit_slice, lambda *given: 1e-3 * (given[3] - given[2]))
    monkeypatch.setattr(PageRank, "audit_slice", audit_slice)
    run = run_of()
    engine = Engine(run.graph, [run.make()], lambda ids: np.empty(0, np.uint32), judge=Homes(lambda _: False))
    engine.refresh(run.graph.apply(inserts([(v, (v + 1) % 50) for v in range(50)], 50).batch(weighted=True), 50))
    engine.start()
    auditor = Auditor(run.graph, engine, clock=lambda: now)
    steps = puts_off = 0
    while auditor.passes < 3 and steps < 60:
        epoch = (inserts if steps % 2 else deletes)([(3, 4)], 50)
        engine.refresh(run.graph.apply(epoch.batch(weighted=True), 50))
        puts_off += auditor.next_is_whole(0.002)
        assert not auditor.step(0.002, (0, steps)).violations
        steps += 1
    assert auditor.passes == 3
    assert puts_off > 0
    assert now > 3.0
    engine.close()


# -- what fails --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("next_is", ["refresh", "state", "audit"])
def test_a_host_that_cannot_start_when_the_device_is_lost_is_tried_again(
    run_of: Callable[..., RanksRun], monkeypatch: pytest.MonkeyPatch, next_is: str
) -> None:
    """Both fail while a checkpoint asks for the state: nothing goes on from what is left of it."""
    from graphtide.compute.device.walk_runs import WalkRuns

    def fails(*given: Any) -> Any:
        raise MemoryError("made to fail")

    run = run_of()
    run.refresh(inserts([(v, (v + 1) % 20) for v in range(19)], 20))
    with monkeypatch.context() as patched:
        patched.setattr(WalkRuns, "read", fails)
        patched.setattr(run.program.host, "start", fails)
        for _ in range(2):
            with pytest.raises(MemoryError):
                run.program.state()
    if next_is == "state":
        host = run.make()
        host.restore(run.program.state(), run.graph)
        assert host.audit(run.graph) == []
    elif next_is == "audit":
        assert run.program.audit(run.graph) == []
    run.refresh(inserts([(0, 5), (7, 3)], 20))
    run.check_results()
    assert not run.program.on_device


@pytest.mark.parametrize("reason", ["get no smaller", "do not reach a tolerance of 1e-06"])
def test_what_the_numbers_of_a_device_do_not_hold_goes_on_at_the_host(
    run_of: Callable[..., RanksRun], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    from graphtide.compute.device import pagerank

    run = run_of()
    run.step(inserts([(v, (7 * v + 1) % 40) for v in range(40)], 40))
    if "tolerance" in reason:
        monkeypatch.setattr(pagerank, "_ROUNDS_MAX", 1)
        run.program.host.tolerance = 1e-6
        run.program._is_small = False  # it was for another tolerance
    else:
        monkeypatch.setattr(pagerank, "DUE_SHARE", 0)
        monkeypatch.setattr(pagerank, "PUSH_LEAST", 0)
        run.program._runs._passes_max = 1
    with caplog.at_level(logging.WARNING):
        report = run.refresh(deletes([(0, 1), (3, 22), (5, 36)], 40))
    assert reason in caplog.text
    assert report.started_over
    assert not run.program.on_device
    assert run.graph.device is not None
    assert run.program.audit(run.graph) == []


def test_which_have_a_twin(cupy: ModuleType, graphs: list[Graph]) -> None:
    graphs.append(Graph(device=True))
    host = PageRank("id")
    made = twin(host, graphs[0])
    for name in ("kind", "summary", "value", "family", "parameters", "value_scalars"):
        assert getattr(made, name) == getattr(host, name)
    own = type("Own", (PageRank,), {})
    for program in (PageRank("id", tolerance=1e-5), own("id")):
        with pytest.raises(NoTwin):
            twin(program, graphs[0])


# -- kernels -----------------------------------------------------------------------------------------------------


def test_structures_are_the_same_to_kernels(cupy: ModuleType, tmp_path: Path) -> None:
    from graphtide.compute.device.push_runs import PUSH_COUNTERS, PUSH_JOB
    from graphtide.compute.device.walk_runs import WALK_COUNTERS, WALK_JOB

    dtypes = {"WalkJob": WALK_JOB, "WalkCounters": WALK_COUNTERS}
    dtypes |= {"PushJob": PUSH_JOB, "PushCounters": PUSH_COUNTERS}
    check_structures(cupy, tmp_path, dtypes, "../../compute/device/pushes.cuh")


@pytest.mark.sample(1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile_without_warnings(nvrtc: object, architecture: str) -> None:
    from graphtide.compute.device import push_runs, walk_runs

    for origin in (*walk_runs.SOURCES.values(), push_runs.SOURCE):
        check_compiles(nvrtc, origin, architecture)


def test_kernels_are_kept_by_the_constants_that_they_are_compiled_with(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one for other queues might write behind the end of these."""
    from graphtide.gpma.device import constants
    from graphtide.gpma.device.module import load_cooperative_text

    text = 'extern "C" __global__ void nothing() {}'
    made = load_cooperative_text(text, weighted=False)
    assert load_cooperative_text(text, weighted=False) is made
    monkeypatch.setattr(constants, "LONG_ROW", 4)
    assert load_cooperative_text(text, weighted=False) is not made
