"""Both PageRanks on a device: what holds of either, whatever its bound is of."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType

import cuda_emulator
import numpy as np
import pytest
from histories import deletes, epoch_of, inserts, random_history, rmat_history
from test_device_pagerank import RanksRun
from test_device_ppr import PprRun
from walk_twins import FEW_THREADS, WalkRun, failing_runs, runs, set_threads

from graphtide.compute.device import twin
from graphtide.compute.device.narrowed import Narrowed
from graphtide.compute.program import Published
from graphtide.compute.walks.walk import NARROWED
from graphtide.gpma.edges import Op

KINDS: dict[str, type[WalkRun]] = {"pagerank": RanksRun, "ppr": PprRun}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> type[WalkRun]:
    return KINDS[request.param]


@pytest.fixture
def run_of(
    kind: type[WalkRun], cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., WalkRun]]:
    yield from runs(kind, monkeypatch)


@pytest.fixture
def emulated_run_of(
    kind: type[WalkRun], emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., WalkRun]]:
    yield from runs(kind, monkeypatch)


def test_any_order_of_threads_gives_the_same_bits(
    run_of: Callable[..., WalkRun], seed: int, monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.sample(among="a larger graph on a device")
def test_hubs_of_a_larger_graph(run_of: Callable[..., WalkRun], seed: int, run_long: bool) -> None:
    cuda_emulator.seed(seed)
    scale = 11 if run_long else 8
    # What it takes is compared below, and not left to chance: the order of threads alone is drawn.
    history = rmat_history(1, directed=True, scale=scale, degree=12, updates=(200, 200, 5), vertex_share=0.02)
    run = run_of()
    for k, epoch in enumerate(history.epochs):
        run.sources = (int(epoch.src[0]),) if k == 0 else run.sources
        report = run.step(epoch)
        assert k or int(run.graph.out_rows().degrees.max()) > 64
    # From estimates, it takes less than from nothing.
    started = run.begin()
    assert report.edges_read < started.edges_read
    run.check()


def test_nothing_happens_without_updates(run_of: Callable[..., WalkRun]) -> None:
    run = run_of()
    assert run.step(epoch_of([], 0)).changed == {}
    run.step(inserts([(0, 3)], 5))
    for epoch in (epoch_of([], 5), deletes([(1, 2)], 5), inserts([(0, 3)], 5)):
        report = run.step(epoch)
        assert report.changed == {}
        assert report.edges_read == 0


def test_a_program_moves_with_what_the_device_has(run_of: Callable[..., WalkRun], seed: int) -> None:
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


def test_results_are_published_as_float32_on_either_processor(run_of: Callable[..., WalkRun], seed: int) -> None:
    """And their bound counts it."""
    run = run_of()
    for k, epoch in enumerate(random_history(seed, directed=True, epochs=8, vertex_share=0.1).epochs):
        if k in (3, 6):
            run.program.move(run.graph)
        run.refresh(epoch)
        program, n = run.program, run.graph.n_vertices
        assert program.on_device == (k not in (3, 4, 5))
        saved = {name: column.copy() for name, column in program.state().items()}
        assert np.array_equal(program.columns()["estimate"][:n], saved["estimate"].astype(np.float32))
        # A batch that changes nothing leaves a program that came back with what the host had.
        assert bool(program._narrowed.nbytes) != program._is_ahead
        published = Published(program.columns(), program.scalars(), n)
        assert type(program).read(published, np.arange(n, dtype=np.uint32)).values.dtype == np.float64
        assert type(program).read_run(published, slice(0, n)).values.dtype == np.float64
        host = run.make()
        host.restore(saved, run.graph)
        if host.error_bound:
            assert program.scalars()["error_bound"] == host.error_bound + NARROWED
        run.check_results()


def test_a_narrowed_column_follows_what_is_said_to_have_changed() -> None:
    column, narrowed = np.arange(5) / 3, Narrowed()
    first = narrowed.of(column)
    assert np.array_equal(first, column.astype(np.float32))
    column[:] += 1
    narrowed.note(np.array([1, 4], np.uint32))
    narrowed.note(np.array([2], np.uint32))
    assert narrowed.of(column) is first
    assert (first == column.astype(np.float32)).tolist() == [False, True, True, False, True]
    narrowed.note(None)
    assert np.array_equal(narrowed.of(column), column.astype(np.float32))
    column[:] += 1
    narrowed.forget()
    assert np.array_equal(narrowed.of(column), column.astype(np.float32))
    longer = np.ones(9)
    assert np.array_equal(narrowed.of(longer), longer)


def test_a_refresh_allocates_nothing(emulated_run_of: Callable[..., WalkRun]) -> None:
    run = emulated_run_of()
    run.step(inserts([(v, (3 * v + 1) % 50) for v in range(50)], 50))
    change = run.graph.apply(deletes([(0, 1), (7, 22)], 50).batch(weighted=True), 50)
    with cuda_emulator.failing_allocation(0):  # the first one would fail, and the program go home
        run.report = run.program.refresh(run.graph, change)
    run.check()


def test_what_it_has_on_the_device_goes_as_soon_as_it_leaves(emulated_run_of: Callable[..., WalkRun]) -> None:
    """And not when garbage is collected, since others wait for the memory."""
    run = emulated_run_of()
    run.step(inserts([(v, (3 * v + 1) % 50) for v in range(50)], 50))
    runs_there = weakref.ref(run.program._runs)
    assert runs_there() is not None
    gc.disable()
    try:
        run.program.leave()
        assert runs_there() is None
    finally:
        gc.enable()


@pytest.mark.sample(among="a card that fails")
def test_without_memory_it_goes_on_at_the_host(emulated_run_of: Callable[..., WalkRun]) -> None:
    failed = failing_runs(emulated_run_of, cuda_emulator.failing_allocation, lambda left: not left)
    assert failed >= 7  # every column of the new vertices


@pytest.mark.sample(among="a card that fails")
@pytest.mark.parametrize("quiet", [True, False])
def test_a_card_that_fails_is_dropped_within_the_run(emulated_run_of: Callable[..., WalkRun], quiet: bool) -> None:
    failed = failing_runs(
        emulated_run_of, lambda at: cuda_emulator.failing_card(at, quiet=quiet), lambda fault: bool(fault.broken)
    )
    assert failed >= 2  # it solves, and fetches


def test_a_start_that_fails_is_made_by_the_host(emulated_run_of: Callable[..., WalkRun]) -> None:
    failed, broken = 0, True
    while broken:
        run = emulated_run_of()
        run.refresh(inserts([(0, 1), (1, 2), (2, 0)], 3))
        with cuda_emulator.failing_card(failed, quiet=bool(failed % 2)) as fault:
            run.begin()
            broken = fault.broken
        assert run.program.on_device != broken
        run.check_results()
        failed += broken
    assert failed >= 1


def test_what_could_not_be_fetched_is_reported_anew(emulated_run_of: Callable[..., WalkRun]) -> None:
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


@pytest.mark.sample(among="awkward graphs on a device")
def test_awkward_graphs(run_of: Callable[..., WalkRun]) -> None:
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
        run.step(inserts([(7, 4)], 5000))


def test_sizes_of_a_state_are_known_without_fetching_it(
    emulated_run_of: Callable[..., WalkRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the device has more vertices than the host ever had."""
    run = emulated_run_of()
    run.sources = (0, 2900)
    run.step(inserts([(0, 1), (1, 2)], 3))
    run.refresh(inserts([(2, v) for v in range(3, 3000)], 3000))
    with monkeypatch.context() as patched:
        patched.delattr(type(run.program._runs), "read")
        ahead = run.program.state_sizes()
    assert ahead == {name: column.nbytes for name, column in run.program.state().items()}
    run.program.move(run.graph)
    assert run.program.state_sizes() == ahead


def test_a_state_moves_between_processors(run_of: Callable[..., WalkRun], seed: int) -> None:
    run = run_of()
    for k, epoch in enumerate(random_history(seed, directed=True, epochs=9, vertex_share=0.1).epochs):
        if epoch.n_vertices == 0:
            continue
        run.step(epoch)
        saved = {name: column.copy() for name, column in run.program.state().items()}
        host = run.make()
        host.narrowed = NARROWED  # as it is for the twin
        host.restore(saved, run.graph)
        host.bind(run.bound())
        assert host.audit(run.graph) == []
        assert host.error_bound == run.report.error_bound
        assert np.array_equal(host.columns()["estimate"][: run.graph.n_vertices], saved["estimate"])
        if k % 3 == 0:  # on at the host, and back to one that has run, or to a new one
            n = run.graph.n_vertices
            change = run.graph.apply(inserts([(k % n, (k + 1) % n)], n).batch(weighted=True), n)
            host.bind(run.bound())
            host.refresh(run.graph, change)
            assert host.audit(run.graph) == []
            if k % 2 == 0:
                run.program = twin(host, run.graph)
            run.program.restore(host.state(), run.graph)
            run.program.bind(run.bound())
            assert run.program.scalars() == host.scalars()
            assert run.program.audit(run.graph) == []
