"""Triangles and local clustering on a device: after every batch the host's state, bit for bit, which is proven."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, deletes, epoch_of, inserts, random_history, rmat_history
from test_cuda_compiles import ARCHITECTURES, check_compiles
from test_cuda_compiles import nvrtc as nvrtc
from test_device_structures import check_structures
from test_triangles import clique
from walk_twins import MirroredRun, failing_runs, runs

from graphtide.compute.device import NoTwin, twin
from graphtide.compute.program import Refresh
from graphtide.compute.triangles import LocalClustering, Triangles, tally
from graphtide.gpma.edges import Op
from graphtide.partition.graph import Graph

MEMBERS = {kind.kind: kind for kind in (Triangles, LocalClustering)}
both_members = pytest.mark.parametrize("kind", list(MEMBERS))
both_ways = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])


class TallyRun(MirroredRun):
    """A graph on host and device, and a tally twice: ``program`` on the device, and ``host``."""

    def __init__(self, kind: str = "lcc", *, directed: bool = True, owned: bool = False) -> None:
        super().__init__(lambda: MEMBERS[kind]("tally"), directed=directed, owned=owned)
        from graphtide.compute.device import tally as device_tally

        steps_max, share = self.host.steps_max, device_tally._START_SHARE
        self.host.steps_max = lambda graph, _: steps_max(graph, share)  # it starts over where the device does

    def columns(self) -> dict[str, np.ndarray]:
        return {name: column[: self.graph.n_vertices].copy() for name, column in self.program.columns().items()}

    def refresh(self, epoch: Epoch) -> Refresh:
        """Apply an epoch; exactly what changed is reported, and the host starts over where this did."""
        before = self.columns()
        change = self.graph.apply(epoch.batch(), epoch.n_vertices, epoch.vertex_ops())
        self.report = self.program.refresh(self.graph, change)
        on_host = self.host.refresh(self.graph, change)
        if self.program.on_device:
            assert self.report.started_over == on_host.started_over
        for name, column in self.columns().items():
            reported = self.report.changed.get(name, np.empty(0, np.uint32))
            if self.report.started_over:
                assert reported is None
                continue
            n = before[name].size
            differs = np.flatnonzero(column[:n] != before[name]).tolist()
            assert reported is not None
            assert reported.tolist() == [*differs, *range(n, column.size)]
        return self.report

    def check_results(self) -> None:
        fresh = self.make()
        fresh.start(self.graph)
        for name, column in self.columns().items():
            assert column.tolist() == fresh.columns()[name][: column.size].tolist(), name
        assert self.program.scalars() == fresh.scalars()
        assert self.program.audit(self.graph) == []


@pytest.fixture
def run_of(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TallyRun]]:
    yield from runs(TallyRun, monkeypatch)


@pytest.fixture
def emulated_run_of(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., TallyRun]]:
    yield from runs(TallyRun, monkeypatch)


@both_members
@both_ways
def test_any_history(
    run_of: Callable[..., TallyRun],
    kind: str,
    directed: bool,
    seed: int,
    run_long: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where changes are taken link by link, and where they start over; lists of changes that run over."""
    from graphtide.compute.device import tally_runs

    for own_seed in range(seed, seed + (60 if run_long else 3)):
        cuda_emulator.seed(own_seed)
        rng = np.random.default_rng(own_seed)
        with monkeypatch.context() as patched:
            patched.setattr(tally, "_STEPS_FLOOR", [1 << 14, 100, 1 << 14][own_seed % 3])
            patched.setattr(tally_runs, "CHANGES_LEAST", int(rng.choice([2, 4096])))
            run = run_of(kind=kind, directed=directed)
            share = 0.1 if rng.random() < 0.5 else 0.0
            for epoch in random_history(own_seed, directed=directed, epochs=9, vertex_share=share).epochs:
                run.step(epoch)


@pytest.mark.sample(among="a larger graph on a device")
@both_ways
@pytest.mark.parametrize("piece_leaves", [1, 4])
def test_hubs_of_a_larger_graph(
    run_of: Callable[..., TallyRun],
    directed: bool,
    piece_leaves: int,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Links between rows of many leaves, in one piece or in several; batches that start over."""
    from graphtide.compute.device import tally_runs

    cuda_emulator.seed(seed)
    monkeypatch.setattr(tally_runs, "PIECE_LEAVES", piece_leaves)
    monkeypatch.setattr(tally, "_STEPS_FLOOR", 1 << 12)
    history = rmat_history(1, directed=directed, scale=8, degree=8, updates=(20, 200, 3), vertex_share=0.02)
    run = run_of(directed=directed)
    for epoch in history.epochs:
        run.step(epoch)
        assert run.columns()["arcs"].max() > 10
    run.step(inserts([(u, v) for u in (0, 1, 2) for v in range(3, 253, u + 1)], 256))
    run.step(inserts([(0, 1), (2, 1)], 256))
    run.step(epoch_of([(Op.DELETE, 0, 1, 1.0), (Op.INSERT, 2, 0, 1.0), (Op.DELETE, 1, 8, 1.0)], 256))
    assert not run.report.started_over


@both_ways
def test_short_rows_that_begin_in_one_leaf_and_end_in_another(
    run_of: Callable[..., TallyRun], directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece each, however many leaves a piece has."""
    from graphtide.compute.device import tally_runs

    monkeypatch.setattr(tally_runs, "PIECE_LEAVES", 1)
    run = run_of(directed=directed)
    links = [(5 * k + u, 5 * k + v) for k in range(80) for u, v in clique(range(5))]
    run.step(inserts(links, 400))
    for changed in (links[3::10], links[7::10]):
        run.step(deletes(changed, 400))
        assert not run.report.started_over
        run.step(inserts(changed, 400))


@pytest.mark.sample(among="rows on both sides")
@both_members
@both_ways
def test_rows_on_both_sides(
    run_of: Callable[..., TallyRun], kind: str, directed: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ones live on the host after each epoch, where kernels read them; also in pieces."""
    from graphtide.compute.device import tally_runs

    cuda_emulator.seed(seed)
    monkeypatch.setattr(tally_runs, "PIECE_LEAVES", 1)
    rng = np.random.default_rng(seed)
    run = run_of(kind=kind, directed=directed, owned=True)
    first = rmat_history(2, directed=directed, scale=6, degree=9, updates=(1,)).epochs[0]
    hubs = inserts([edge for hub in (0, 1) for v in range(2, 80) for edge in ((hub, v), (v, hub))], 80)
    later = random_history(seed, directed=directed, epochs=6, vertices=64, vertex_share=0.05).epochs
    for k, epoch in enumerate((first, hubs, inserts([(0, 1)], 80), *later)):
        n = max(epoch.n_vertices, run.graph.n_vertices)
        run.step(Epoch(epoch.src, epoch.dst, epoch.ops, epoch.weights, n))
        run.graph.migrate(np.flatnonzero(rng.random(n) < 0.4).astype(np.uint32), k % 2)
        assert run.graph.split
    run.begin()
    run.host.start(run.graph)
    run.check()


@both_members
def test_batches_that_mix(run_of: Callable[..., TallyRun], kind: str) -> None:
    """Both arcs of a link at once, one for the other, three sides of a triangle in different ways, cliques."""
    run = run_of(kind=kind)
    run.step(inserts([(0, 1), (1, 0), (1, 2), (2, 0), (0, 0)], 4))
    run.step(epoch_of([(Op.DELETE, 0, 1, 1.0), (Op.DELETE, 1, 0, 1.0)], 4))
    run.step(epoch_of([(Op.INSERT, 1, 0, 1.0), (Op.DELETE, 2, 0, 1.0), (Op.INSERT, 0, 2, 1.0)], 4))
    run.step(epoch_of([(Op.DELETE, 1, 2, 1.0), (Op.INSERT, 2, 1, 1.0), (Op.INSERT, 0, 1, 1.0)], 4))
    run.step(epoch_of([(Op.DELETE, 2, 1, 1.0), (Op.INSERT, 3, 0, 1.0), (Op.INSERT, 1, 3, 1.0)], 4))
    run.step(inserts(clique(range(5, 30)), 40))
    run.step(deletes(clique(range(5, 30, 2)), 40))
    run.step(epoch_of([(Op.DELETE_VERTEX, 6, 0, 0.0), (Op.DELETE_VERTEX, 1, 0, 0.0)], 40))
    run.step(epoch_of([(Op.INSERT, 6, 8, 1.0), (Op.INSERT, 10, 6, 1.0), (Op.INSERT, 1, 0, 1.0)], 5000))


@both_ways
def test_work_is_in_proportion_to_the_change(run_of: Callable[..., TallyRun], directed: bool) -> None:
    """Of each changed link the shorter rows are read, and what the change ended there; nothing without a link."""
    run = run_of(directed=directed)
    run.step(inserts([(0, v) for v in range(1, 200)] + [(v, v + 1) for v in range(300, 306)], 310))
    run.step(inserts([(300, 0), (302, 302)], 310))
    assert run.report.edges_read == 2 + 1  # the rows of vertex 300, and its changed link
    run.step(deletes([(300, 0)], 310))
    assert run.report.edges_read == 1 + 1
    run.step(epoch_of([(Op.INSERT, 300, 301, 1.0), (Op.DELETE, 5, 6, 1.0)], 310))  # it is there; it is not
    assert (run.report.edges_read, run.report.active, run.report.changed) == (0, 0, {})
    assert not run.report.started_over


@both_members
def test_a_program_moves_between_processors(run_of: Callable[..., TallyRun], kind: str, seed: int) -> None:
    run = run_of(kind=kind)
    for k, epoch in enumerate(random_history(seed, directed=True, epochs=9, vertex_share=0.1).epochs):
        if run.program.on_device != (k % 4 < 2):
            before = run.columns()
            run.program.move(run.graph)
            assert all(np.array_equal(column, before[name]) for name, column in run.columns().items())
        run.refresh(epoch)
        run.check_results()
        restored = run.make()
        restored.restore({name: column.copy() for name, column in run.program.state().items()}, run.graph)
        assert restored.audit(run.graph) == []
        if k % 4 == 1:
            run.program = twin(restored, run.graph)
            run.program.restore(run.host.state(), run.graph)
    assert run.program.on_device
    run.step(inserts([(0, 1), (4, 1)], run.graph.n_vertices))


def test_a_refresh_allocates_nothing(emulated_run_of: Callable[..., TallyRun]) -> None:
    run = emulated_run_of()
    run.step(inserts([(v, (3 * v + 1) % 50) for v in range(50)], 50))
    run.step(deletes([(0, 1), (7, 22)], 50))
    change = run.graph.apply(inserts([(0, 1), (7, 22)], 50).batch(), 50)
    with cuda_emulator.failing_allocation(0):  # the first one would fail, and the program go home
        run.program.refresh(run.graph, change)
    assert run.program.on_device
    run.check_results()


# Whether the run that fails starts over or takes the change.
starts_or_not = pytest.mark.parametrize("floor", [0, 1 << 14], ids=["start", "change"])


@pytest.mark.sample(among="a card that fails")
@starts_or_not
def test_without_memory_it_goes_on_at_the_host(
    emulated_run_of: Callable[..., TallyRun], monkeypatch: pytest.MonkeyPatch, floor: int
) -> None:
    monkeypatch.setattr(tally, "_STEPS_FLOOR", floor)
    failed = failing_runs(emulated_run_of, cuda_emulator.failing_allocation, lambda left: not left)
    assert failed >= (4 if floor else 8)


@pytest.mark.sample(among="a card that fails")
@starts_or_not
@pytest.mark.parametrize("quiet", [True, False])
def test_a_card_that_fails_is_dropped_within_the_run(
    emulated_run_of: Callable[..., TallyRun], monkeypatch: pytest.MonkeyPatch, quiet: bool, floor: int
) -> None:
    monkeypatch.setattr(tally, "_STEPS_FLOOR", floor)
    failed = failing_runs(
        emulated_run_of, lambda at: cuda_emulator.failing_card(at, quiet=quiet), lambda fault: bool(fault.broken)
    )
    assert failed >= (1 if floor else 2)


@both_members
def test_which_have_a_twin(cupy: ModuleType, graphs: list[Graph], kind: str) -> None:
    graphs.append(Graph(device=True))
    host = MEMBERS[kind]("id")
    made = twin(host, graphs[0])
    for name in ("kind", "summary", "value", "family", "parameters", "value_scalars", "needs_in_edges"):
        assert getattr(made, name) == getattr(host, name)
    assert type(made).read == type(host).read
    with pytest.raises(NoTwin):
        twin(type("Own", (MEMBERS[kind],), {})("id"), graphs[0])


# -- kernels -----------------------------------------------------------------------------------------------------


def test_structures_are_the_same_to_kernels(cupy: ModuleType, tmp_path: Path) -> None:
    from graphtide.compute.device.tally_runs import FORWARD, TALLY_COUNTERS, TALLY_JOB

    dtypes = {"TallyJob": TALLY_JOB, "TallyCounters": TALLY_COUNTERS, "Forward": FORWARD}
    check_structures(cupy, tmp_path, dtypes, "../../compute/device/tally.cuh")


def test_kernels_compile_without_warnings(nvrtc: object, run_long: bool) -> None:
    """For the oldest architecture; test_device_remote_rows.py has a newer one."""
    from graphtide.compute.device.tally_runs import SOURCES

    for architecture in ARCHITECTURES if run_long else ARCHITECTURES[:1]:
        for origin in SOURCES.values():
            check_compiles(nvrtc, origin, architecture)
