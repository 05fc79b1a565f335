"""PageRank on a device: after every batch within its certified bound, exact in every bit, proven by the host."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, deletes, epoch_of, inserts, random_history, rmat_history
from test_cuda_compiles import ARCHITECTURES, AS_CUPY, compiled
from test_cuda_compiles import nvrtc as nvrtc
from test_device_structures import differences, to_host

from graphtide.compute.audit.auditor import Auditor
from graphtide.compute.device import NoTwin, twin
from graphtide.compute.engine import Engine
from graphtide.compute.homes import Homes
from graphtide.compute.program import Published, Refresh
from graphtide.compute.walks.pagerank import PageRank
from graphtide.gpma.edges import Op, destinations, sources
from graphtide.partition.graph import Graph

# Threads of a block here: the emulated device takes as long as there are threads.
FEW_THREADS = 64


class RanksRun:
    """A graph on host and device, and PageRank on the device."""

    def __init__(self, *, directed: bool = True, damping: float = 0.85, tolerance: float = 1e-3) -> None:
        self.graph = self.new_graph(directed=directed, weighted=True)
        self.make = lambda: PageRank("ranks", damping=damping, tolerance=tolerance)
        self.program: Any = twin(self.make(), self.graph)
        self.report: Refresh = self.program.start(self.graph)

    def new_graph(self, *, directed: bool, weighted: bool) -> Graph:
        return Graph(directed=directed, weighted=weighted, device=True, threads=1)

    def step(self, epoch: Epoch) -> Refresh:
        """Apply an epoch, and check everything."""
        self.refresh(epoch)
        self.check()
        return self.report

    def refresh(self, epoch: Epoch) -> Refresh:
        """Apply an epoch; what is not reported is as before."""
        graph = self.graph
        before = self.program.columns()["estimate"][: graph.n_vertices].copy()
        change = graph.apply(epoch.batch(weighted=True), epoch.n_vertices, epoch.vertex_ops())
        self.report = self.program.refresh(graph, change)
        check_changed(before, self.program.columns()["estimate"][: graph.n_vertices], self.report)
        return self.report

    def check(self) -> None:
        """The program is on the device still, and right."""
        assert self.graph.device_lost is None
        assert self.program.on_device
        assert self.report.error_bound == self.program.scalars()["error_bound"]
        if self.program._kept is None:  # a state was brought, and nothing has happened since
            assert self.report.changed == {}
        else:
            self.check_bits()
        self.check_results()

    def check_results(self) -> None:
        """What is published is within its bound, wherever it was computed, and proven."""
        program, graph = self.program, self.graph
        n, alive = graph.n_vertices, graph.alive
        published = Published(program.columns(), program.scalars(), n)
        answer = type(program).read(published, np.arange(n, dtype=np.uint32))
        assert np.array_equal(answer.null, ~alive)
        bound = program.scalars()["error_bound"]
        assert bound <= program.host.tolerance
        if alive.any():
            exact = solved(graph, program.host.damping)
            assert np.abs(answer.values[alive] / exact[alive] - 1).max() <= bound
        before = program.columns()["estimate"][:n].copy()
        assert program.audit(graph) == []
        assert np.array_equal(program.columns()["estimate"][:n], before)

    def check_bits(self) -> None:
        """The sums that are kept are the right-hand side and the shares of all in-neighbours, in every bit; shares
        are next to what they stand for."""
        from graphtide.compute.device.walk_runs import WalkRuns

        runs: WalkRuns = self.program._runs
        there, n = runs._there, self.graph.n_vertices
        keys = self.graph.export().keys
        tails, heads = sources(keys).astype(int), destinations(keys).astype(int)
        degrees = np.bincount(tails, minlength=n)
        weights = there.weights.get()[:n]
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
        there, n = self.program._runs._there, self.graph.n_vertices
        columns = (*there.ranks[:2], *there.majorant[:2], there.weights)
        return [column.get()[:n].view(np.uint32).tolist() for column in columns]


def check_changed(before: np.ndarray, after: np.ndarray, report: Refresh) -> None:
    """Whoever has what was there before, and what was reported, has what is there after."""
    reported = report.changed.get("estimate", np.empty(0, np.uint32))
    if reported is None:
        return
    assert np.unique(reported).size == reported.size
    told = np.zeros(after.size, bool)
    told[reported] = True
    assert told[before.size :].all()
    assert np.array_equal(before[~told[: before.size]], after[: before.size][~told[: before.size]])


def solved(graph: Graph, damping: float) -> np.ndarray:
    """What a random walk with restarts at every vertex that exists comes to, to the last digits."""
    keys, n = graph.export().keys, graph.n_vertices
    tails, heads = sources(keys).astype(int), destinations(keys).astype(int)
    shares = damping / np.maximum(1, np.bincount(tails, minlength=n))
    values = rhs = graph.alive.astype(float)
    for _ in range(math.ceil(math.log(1e-15) / math.log(damping))):
        values = rhs + np.bincount(heads, (values * shares)[tails], n)
    return np.asarray(values / values.sum())


def set_threads(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    from graphtide.compute.device import kernels

    monkeypatch.setattr(kernels, "BLOCK_THREADS", threads)


def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RanksRun]]:
    """What makes runs, of blocks of few threads; then their graphs are closed."""
    set_threads(monkeypatch, FEW_THREADS)
    made: list[RanksRun] = []

    def make(**how: Any) -> RanksRun:
        made.append(RanksRun(**how))
        return made[-1]

    yield make
    for run in made:
        run.graph.close()


@pytest.fixture
def run_of(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RanksRun]]:
    yield from runs(monkeypatch)


@pytest.fixture
def emulated_run_of(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RanksRun]]:
    yield from runs(monkeypatch)


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


def test_hubs_of_a_larger_graph(run_of: Callable[..., RanksRun], seed: int, run_long: bool) -> None:
    cuda_emulator.seed(seed)
    scale = 11 if run_long else 8
    # What it takes is compared below, and not left to chance: the order of threads alone is drawn.
    history = rmat_history(1, directed=True, scale=scale, degree=12, updates=(200, 200, 5), vertex_share=0.02)
    run = run_of()
    for k, epoch in enumerate(history.epochs):
        report = run.step(epoch)
        assert k or int(run.graph.out_rows().degrees.max()) > 64
    # From estimates, it takes less than from nothing.
    run.report = run.program.start(run.graph)
    assert report.edges_read < run.report.edges_read
    run.check()


def test_any_order_of_threads_gives_the_same_bits(
    run_of: Callable[..., RanksRun], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = random_history(seed, directed=True, epochs=5, vertex_share=0.1)
    found = []
    for threads, order in ((FEW_THREADS, seed), (FEW_THREADS, seed + 1), (32, seed + 2)):
        set_threads(monkeypatch, threads)
        cuda_emulator.seed(order)
        run = run_of()
        for epoch in history.epochs:
            run.refresh(epoch)
        found.append((run.bits(), run.program.scalars()))
    assert found[0] == found[1] == found[2]


class Pushed:
    """Counts the runs of pushes: those that solved, and those that were given up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from graphtide.compute.device.push_runs import PushRuns

        self.solved = self.given_up = self.looked = self.rounds = 0
        push: Any = PushRuns.push

        def counted(runs: Any, *given: Any, looks: bool) -> Any:
            run = push(runs, *given, looks=looks)
            self.solved += run.is_solved
            self.given_up += not run.is_solved
            self.looked += looks
            self.rounds += run.rounds
            return run

        monkeypatch.setattr(PushRuns, "push", counted)


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
    """Queues and lists run over, long rows are those of few edges, stamps begin anew."""
    from graphtide.compute.device import push_runs
    from graphtide.gpma.device import constants

    monkeypatch.setattr(constants, "LONG_ROW", 4)
    monkeypatch.setattr(push_runs, "LONG_ROW", 4)
    monkeypatch.setattr(push_runs, "STAMP_MAX", 60)
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


def test_awkward_graphs(run_of: Callable[..., RanksRun]) -> None:
    """No vertices, none with edges, none without a loop, a cycle, a star both ways, and none that is left."""
    for directed in (True, False):
        run = run_of(directed=directed)
        run.check()
        run.step(epoch_of([], 5))
        run.step(inserts([(v, v) for v in range(5)], 5))
        run.step(inserts([(v, (v + 1) % 5) for v in range(5)], 5))
        run.step(inserts([(0, v) for v in range(100)], 100))
        run.step(inserts([(v, 0) for v in range(100)], 100))
        run.step(epoch_of([(Op.DELETE_VERTEX, 0, 0, 0.0)], 100))
        run.step(epoch_of([(Op.INSERT, 0, 0, 1.0), (Op.INSERT, 7, 0, 1.0)], 100))
        run.step(epoch_of([(Op.DELETE_VERTEX, v, 0, 0.0) for v in range(100)], 100))
        run.step(inserts([(3, 4)], 100))


def test_nothing_happens_without_updates(run_of: Callable[..., RanksRun]) -> None:
    run = run_of()
    assert run.step(epoch_of([], 0)).changed == {}
    run.step(inserts([(0, 3)], 5))
    for epoch in (epoch_of([], 5), deletes([(1, 2)], 5), inserts([(0, 3)], 5)):
        report = run.step(epoch)
        assert report.changed == {}
        assert report.edges_read == 0


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


def test_a_state_moves_between_processors(run_of: Callable[..., RanksRun], seed: int) -> None:
    run = run_of()
    for k, epoch in enumerate(random_history(seed, directed=True, epochs=9, vertex_share=0.1).epochs):
        if epoch.n_vertices == 0:
            continue
        run.step(epoch)
        saved = {name: column.copy() for name, column in run.program.state().items()}
        host = run.make()
        host.restore(saved, run.graph)
        assert host.audit(run.graph) == []
        assert host.error_bound == run.report.error_bound
        assert np.array_equal(host.columns()["estimate"][: run.graph.n_vertices], saved["estimate"])
        if k % 3 == 0:  # on at the host, and back to one that has run, or to a new one
            n = run.graph.n_vertices
            change = run.graph.apply(inserts([(k % n, (k + 1) % n)], n).batch(weighted=True), n)
            host.refresh(run.graph, change)
            assert host.audit(run.graph) == []
            if k % 2:
                run.program.restore(host.state(), run.graph)
            else:
                run.program = twin(host, run.graph)
                run.program.restore(host.state(), run.graph)
            assert run.program.scalars() == host.scalars()
            assert run.program.audit(run.graph) == []


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


def test_a_program_moves_with_what_the_device_has(run_of: Callable[..., RanksRun], seed: int) -> None:
    run = run_of()
    for k, epoch in enumerate(random_history(seed, directed=True, epochs=8, vertex_share=0.1).epochs):
        on_device = k % 5 < 3
        if run.program.on_device != on_device:
            before = run.program.columns()["estimate"][: run.graph.n_vertices].copy(), run.program.scalars()
            run.program.move(run.graph)
            assert np.array_equal(run.program.columns()["estimate"][: run.graph.n_vertices], before[0])
            assert run.program.scalars() == before[1]
            run.check_results()
        run.refresh(epoch)
        assert run.program.on_device == on_device
        run.check_results()
    run.check()


def test_sizes_of_a_state_are_known_without_fetching_it(
    emulated_run_of: Callable[..., RanksRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the device has more vertices than the host ever had."""
    from graphtide.compute.device.walk_runs import WalkRuns

    run = emulated_run_of()
    run.step(inserts([(0, 1), (1, 2)], 3))
    run.refresh(inserts([(2, v) for v in range(3, 3000)], 3000))
    with monkeypatch.context() as patched:
        patched.delattr(WalkRuns, "read")
        ahead = run.program.state_sizes()
    assert ahead == {name: column.nbytes for name, column in run.program.state().items()}
    run.program.move(run.graph)
    assert run.program.state_sizes() == ahead


def test_a_refresh_allocates_nothing(emulated_run_of: Callable[..., RanksRun]) -> None:
    run = emulated_run_of()
    run.step(inserts([(v, (3 * v + 1) % 50) for v in range(50)], 50))
    change = run.graph.apply(deletes([(0, 1), (7, 22)], 50).batch(weighted=True), 50)
    with cuda_emulator.failing_allocation(0):  # the first one would fail, and the program go home
        run.report = run.program.refresh(run.graph, change)
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


def failing_runs(run_of: Callable[..., RanksRun], fails: Callable[[int], Any], sees: Callable[[Any], bool]) -> int:
    """Let call after call fail, of a refresh with new vertices and of what a checkpoint asks; how many did."""
    for at in range(60):
        run = run_of()
        run.step(inserts([(0, 1), (1, 2)], 3))
        change = run.graph.apply(inserts([(2, v) for v in range(3, 50)], 50).batch(weighted=True), 50)
        with fails(at) as fault:
            run.report = run.program.refresh(run.graph, change)
            saved = run.program.state()
            broken = sees(fault)
        run.check_results()
        host = run.make()
        host.restore(saved, run.graph)
        assert host.audit(run.graph) == []
        assert run.program.on_device != broken
        if not broken:
            return at
        run.refresh(deletes([(1, 2)], 50))
        run.check_results()
    pytest.fail("every call failed")


def test_without_memory_it_goes_on_at_the_host(emulated_run_of: Callable[..., RanksRun]) -> None:
    failed = failing_runs(emulated_run_of, cuda_emulator.failing_allocation, lambda left: not left)
    assert failed >= 7  # every column of the new vertices


@pytest.mark.parametrize("quiet", [True, False])
def test_a_card_that_fails_is_dropped_within_the_run(
    emulated_run_of: Callable[..., RanksRun], quiet: bool
) -> None:
    failed = failing_runs(
        emulated_run_of, lambda at: cuda_emulator.failing_card(at, quiet=quiet), lambda fault: bool(fault.broken)
    )
    assert failed >= 3  # it lets vertices arrive, solves, and fetches


def test_a_start_that_fails_is_made_by_the_host(emulated_run_of: Callable[..., RanksRun]) -> None:
    failed, broken = 0, True
    while broken:
        run = emulated_run_of()
        run.refresh(inserts([(0, 1), (1, 2), (2, 0)], 3))
        with cuda_emulator.failing_card(failed, quiet=bool(failed % 2)) as fault:
            run.report = run.program.start(run.graph)
            broken = fault.broken
        assert run.program.on_device != broken
        run.check_results()
        failed += broken
    assert failed >= 2  # it begins, and goes on to tighter limits


def test_what_could_not_be_fetched_is_reported_anew(emulated_run_of: Callable[..., RanksRun]) -> None:
    run = emulated_run_of()
    run.step(inserts([(v, (7 * v + 1) % 40) for v in range(40)], 40))
    run.refresh(deletes([(0, 1)], 40))
    published = run.program.columns()["estimate"][:40].copy()
    with cuda_emulator.failing_card(0, quiet=False):
        state = run.program.state()
    assert "made to fail" in str(run.graph.device_lost)
    host = run.make()
    host.restore(state, run.graph)
    assert host.audit(run.graph) == []
    # An audit of what readers see finds what was published.
    assert np.array_equal(run.program.columns()["estimate"][:40], published)
    assert run.program.scalars()["error_bound"] == run.report.error_bound
    run.check_results()
    assert run.refresh(epoch_of([], 40)).changed == {"estimate": None}
    assert run.refresh(epoch_of([], 40)).changed == {}


@pytest.mark.parametrize("reason", ["get no smaller", "do not reach a tolerance of 1e-12"])
def test_what_the_numbers_of_a_device_do_not_hold_goes_on_at_the_host(
    run_of: Callable[..., RanksRun], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    from graphtide.compute.device import pagerank

    run = run_of()
    run.step(inserts([(v, (7 * v + 1) % 40) for v in range(40)], 40))
    if "tolerance" in reason:
        monkeypatch.setattr(pagerank, "_ROUNDS_MAX", 1)
        run.program.host.tolerance = 1e-12
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
    for name in ("kind", "summary", "value", "family", "parameters", "value_scalars", "positional_scalars"):
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
    for name, dtype in dtypes.items():
        assert sum(size for field, (_, size) in to_host(dtype).items() if field) == dtype.itemsize, name
    assert differences(cupy, tmp_path, dtypes, "../../compute/device/pushes.cu") == {}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile_without_warnings(nvrtc: object, architecture: str) -> None:
    from graphtide.compute.device import push_runs, walk_runs
    from graphtide.gpma.device import module

    options = [*module.options(weighted=False), *AS_CUPY, f"-arch={architecture}"]
    folder = Path(module.__file__).parents[2] / "compute" / "device"
    for origin in (*walk_runs.SOURCES.values(), push_runs.SOURCE):
        done, log, _ = compiled(nvrtc, module.source(folder / origin.file), origin.file, options)
        assert done and not log, log


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
