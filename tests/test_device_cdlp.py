"""Communities on a device: after every batch the host's state, bit for bit, which its audit proves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, deletes, epoch_of, inserts, random_history, rmat_history
from test_cdlp import names, numbers
from test_cuda_compiles import ARCHITECTURES, check_compiles
from test_cuda_compiles import nvrtc as nvrtc
from test_device_structures import check_structures
from walk_twins import MirroredRun, failing_runs, runs

from graphtide.compute.device import NoTwin, twin
from graphtide.compute.program import Refresh
from graphtide.compute.rounds import Cdlp, cdlp
from graphtide.gpma.edges import Op
from graphtide.gpma.index.ids import IdColumn, StringColumn
from graphtide.gpma.index.kinds import LENGTH, LENGTH_BITS
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

both_ways = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
both_kinds = pytest.mark.parametrize("ids", [numbers, names], ids=["integers", "strings"])


class CdlpRun(MirroredRun):
    """A graph on host and device, and communities twice: ``program`` on the device, and ``host``."""

    def __init__(
        self,
        *,
        directed: bool = True,
        owned: bool = False,
        ids: Callable[..., list[Any]] = numbers,
        rounds: int = 4,
    ) -> None:
        self.ids = ids(6000)
        self.index = VertexIndex.create("string" if ids is names else "int")
        super().__init__(lambda: Cdlp("cdlp", rounds, self.index), directed=directed, owned=owned)

    @property
    def labels(self) -> np.ndarray:
        column: np.ndarray = self.program.columns()["label"][: self.graph.n_vertices].copy()
        return column

    def name(self, n: int) -> None:
        """Give external ids to the vertices up to n."""
        if n > self.index.n_vertices:
            new = self.ids[self.index.n_vertices : n]
            self.index.insert(column_of(new))

    def refresh(self, epoch: Epoch) -> Refresh:
        """Apply an epoch; exactly what changed is reported, and the host starts over where this did."""
        self.name(epoch.n_vertices)
        before = self.labels
        change = self.graph.apply(epoch.batch(), epoch.n_vertices, epoch.vertex_ops())
        self.report = self.program.refresh(self.graph, change)
        on_host = self.host.refresh(self.graph, change)
        if self.program.on_device:
            work = [(run.started_over, run.edges_read, run.active) for run in (self.report, on_host)]
            assert work[0] == work[1]
        reported = self.report.changed.get("label", np.empty(0, np.uint32))
        assert (reported is None) == self.report.started_over
        if reported is not None:
            differs = np.flatnonzero(self.labels[: before.size] != before).tolist()
            assert reported.tolist() == [*differs, *range(before.size, self.labels.size)]
        return self.report

    def check_results(self) -> None:
        fresh = self.make()
        fresh.start(self.graph)
        assert self.labels.tolist() == fresh.columns()["label"][: self.graph.n_vertices].tolist()
        assert self.program.audit(self.graph) == []


@pytest.fixture
def run_of(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CdlpRun]]:
    yield from runs(CdlpRun, monkeypatch)


@pytest.fixture
def emulated_run_of(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., CdlpRun]]:
    yield from runs(CdlpRun, monkeypatch)


@both_kinds
@both_ways
def test_any_history(
    run_of: Callable[..., CdlpRun],
    ids: Any,
    directed: bool,
    seed: int,
    run_long: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where rounds are told of, and where everybody votes; rows that warps count, and the whole grid, in waves."""
    from graphtide.compute.device import cdlp_runs

    for own_seed in range(seed, seed + (60 if run_long else 4)):
        cuda_emulator.seed(own_seed)
        rng = np.random.default_rng(own_seed)
        with monkeypatch.context() as patched:
            patched.setattr(cdlp, "_TELL_FLOOR", int(rng.choice([8, 1 << 10])))
            patched.setattr(cdlp_runs, "SHORT_MAX", [128, 2, 128, 0][own_seed % 4])
            patched.setattr(cdlp_runs, "POOL_LEAST", int(rng.choice([512, 1 << 12])))
            patched.setattr(cdlp_runs, "CHANGES_LEAST", int(rng.choice([2, 4096])))
            run = run_of(directed=directed, ids=ids, rounds=int(rng.integers(1, 6)))
            share = 0.1 if rng.random() < 0.5 else 0.0
            for epoch in random_history(own_seed, directed=directed, epochs=9, vertex_share=share).epochs:
                run.step(epoch)


@pytest.mark.sample(among="a larger graph on a device")
@both_ways
def test_hubs_of_a_larger_graph(
    run_of: Callable[..., CdlpRun], directed: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of many leaves, which all warps count together, in several waves."""
    from graphtide.compute.device import cdlp_runs

    cuda_emulator.seed(seed)
    monkeypatch.setattr(cdlp_runs, "POOL_LEAST", 512)
    monkeypatch.setattr(cdlp_runs, "SHORT_MAX", 32)
    history = rmat_history(1, directed=directed, scale=8, degree=8, updates=(20, 200, 3), vertex_share=0.02)
    run = run_of(directed=directed)
    for epoch in history.epochs:
        run.step(epoch)
        degrees = run.graph.degrees("out").astype(np.int64)
        assert np.count_nonzero(degrees > 32) > 1
        assert np.unique(run.labels).size < run.labels.size


@pytest.mark.sample(among="rows on both sides")
@both_ways
def test_rows_on_both_sides(
    run_of: Callable[..., CdlpRun], directed: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ones live on the host after each epoch, where kernels read them."""
    from graphtide.compute.device import cdlp_runs

    cuda_emulator.seed(seed)
    monkeypatch.setattr(cdlp_runs, "SHORT_MAX", 8)
    rng = np.random.default_rng(seed)
    run = run_of(directed=directed, owned=True)
    first = rmat_history(2, directed=directed, scale=6, degree=9, updates=(1,)).epochs[0]
    later = random_history(seed, directed=directed, epochs=8, vertices=64, vertex_share=0.05).epochs
    for k, epoch in enumerate((first, *later)):
        n = max(epoch.n_vertices, run.graph.n_vertices)
        run.step(Epoch(epoch.src, epoch.dst, epoch.ops, epoch.weights, n))
        run.graph.migrate(np.flatnonzero(rng.random(n) < 0.4).astype(np.uint32), k % 2)
        assert run.graph.split
    run.begin()
    run.host.start(run.graph)
    run.check()


@both_kinds
def test_ties_go_by_the_ids_that_vertices_have_now(run_of: Callable[..., CdlpRun], ids: Any) -> None:
    """Vertices 1 and 2 tie at vertex 0; then their dense ids go to others, time and again."""
    run = run_of(ids=ids, rounds=1)
    run.ids[:3] = ["m", "a", "b"] if ids is names else [50, 10, 20]
    run.step(inserts([(1, 0), (2, 0)], 3))
    assert run.labels[0] == 1
    made = iter([(2, "aa", 15), (1, "x" * 40, 99), (2, "y" * 60, 70), (1, "", -5), (2, "é" * 30, 3), (1, "c", 80)])
    for vertex, word, number in made:
        run.step(epoch_of([(Op.DELETE_VERTEX, vertex, 0, 0.0)], 3))
        gone = np.array([vertex], np.uint32)
        run.index.remove(gone)
        run.index.free(gone)
        run.ids[vertex] = word if ids is names else number
        given = run.index.insert(column_of([word if ids is names else number]))
        assert np.asarray(given).tolist() == [vertex]
        run.step(inserts([(vertex, 0)], 3))
        first, second = run.ids[1:3]
        assert run.labels[0] == (1 if first < second else 2)


@both_kinds
def test_ids_that_are_brought_are_those_of_the_index(cupy: ModuleType, ids: Any, seed: int) -> None:
    """As vertices come, and dense ids go to others, until the bytes of strings that are gone are left out."""
    from graphtide.compute.device.id_order import DeviceIdOrder

    rng = np.random.default_rng(seed)
    order, made = DeviceIdOrder(cupy.cuda.Stream(non_blocking=True)), iter(ids(2000, seed))
    index = VertexIndex.create("string" if ids is names else "int")
    held: list[Any] = []
    for _ in range(100):
        renamed = rng.permutation(len(held))[: rng.integers(0, 3)].astype(np.uint32)
        for vertex in renamed:
            index.remove(np.array([vertex], np.uint32))
            index.free(np.array([vertex], np.uint32))
            held[vertex] = next(made)
            index.insert(column_of([held[vertex]]))
        new = [next(made) for _ in range(int(rng.integers(0, 3)))]
        held += new
        if new:
            index.insert(column_of(new))
        order.bring(index.comparable(len(held)), len(held), renamed)
        order._stream.synchronize()
        found = order._ids[: len(held)].get()
        if ids is numbers:
            assert found.view(np.int64).tolist() == held
            continue
        arena = order._arena.get().tobytes()
        begins, lengths = (found >> LENGTH_BITS).tolist(), (found & LENGTH).tolist()
        assert [arena[at : at + n].decode() for at, n in zip(begins, lengths, strict=True)] == held
        assert order._used <= 2 * sum(lengths)


def column_of(ids: list[Any]) -> IdColumn:
    return StringColumn.of(ids) if isinstance(ids[0], str) else np.array(ids, np.int64)


@pytest.mark.sample(among="awkward graphs on a device")
def test_awkward_graphs(run_of: Callable[..., CdlpRun], monkeypatch: pytest.MonkeyPatch) -> None:
    """No vertices, loops, a star of one label and of many, a clique that comes and goes, many new vertices."""
    from graphtide.compute.device import cdlp_runs

    monkeypatch.setattr(cdlp_runs, "SHORT_MAX", 16)
    run = run_of()
    run.step(epoch_of([], 2))
    run.step(inserts([(0, 1), (1, 1), (0, 0)], 3))
    run.step(inserts([(0, v) for v in range(1, 300)], 300))
    run.step(inserts([(v, 0) for v in range(1, 300, 2)], 300))
    run.step(deletes([(0, v) for v in range(1, 300, 3)], 300))
    run.step(inserts([(u, v) for u in range(40, 60) for v in range(40, 60)], 300))
    run.step(deletes([(u, v) for u in range(40, 60) for v in range(40, 60, 2)], 300))
    run.step(epoch_of([(Op.DELETE_VERTEX, 0, 0, 0.0)], 300))
    run.step(epoch_of([(Op.INSERT, 0, 5, 1.0)], 5000))


def test_work_is_in_proportion_to_the_change(run_of: Callable[..., CdlpRun]) -> None:
    """A vote for a label that is well ahead, or one behind, is heard of, and no row is read."""
    run = run_of()
    clique = [(u, v) for u in range(20) for v in range(20) if u != v]
    run.step(inserts([*clique, (30, 31), (31, 30)], 40))
    assert run.labels[:20].tolist() == [run.labels[0]] * 20
    for epoch in (deletes([(3, 4)], 40), inserts([(3, 4), (5, 5)], 40)):
        run.step(epoch)
        assert (run.report.changed, run.report.started_over) == ({}, False)
        assert run.report.edges_read < 3 * 40  # of the first round, in which all labels tie
    run.step(deletes([(30, 30), (0, 39)], 40))
    assert (run.report.edges_read, run.report.active, run.report.changed) == (0, 0, {})


def test_a_program_moves_between_processors(run_of: Callable[..., CdlpRun], seed: int) -> None:
    run = run_of()
    for k, epoch in enumerate(random_history(seed, directed=True, epochs=9, vertex_share=0.1).epochs):
        if run.program.on_device != (k % 4 < 2):
            before = run.labels
            run.program.move(run.graph)
            assert np.array_equal(run.labels, before)
            run.check_results()
        run.refresh(epoch)
        if k % 3:
            run.check_results()
            restored = run.make()
            restored.restore({name: column.copy() for name, column in run.program.state().items()}, run.graph)
            assert restored.audit(run.graph) == []
        if k % 4 == 1:
            run.program = twin(run.make(), run.graph)
            run.program.restore(run.host.state(), run.graph)
    assert run.program.on_device
    run.step(inserts([(0, 1), (4, 1)], run.graph.n_vertices))


def test_a_refresh_allocates_nothing(emulated_run_of: Callable[..., CdlpRun]) -> None:
    run = emulated_run_of()
    run.step(inserts([(v, (3 * v + 1) % 50) for v in range(50)], 50))
    change = run.graph.apply(deletes([(0, 1), (7, 22)], 50).batch(), 50)
    with cuda_emulator.failing_allocation(0):  # the first one would fail, and the program go home
        run.program.refresh(run.graph, change)
    assert run.program.on_device
    run.check_results()


def test_room_grows_with_what_needs_it(
    emulated_run_of: Callable[..., CdlpRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More vertices leave lists for entries as they are, and have larger tables; what suffices stays."""
    from graphtide.compute.device import cdlp_runs

    monkeypatch.setattr(cdlp_runs, "POOL_LEAST", 512)
    runs = emulated_run_of().program._runs
    runs.make_room(300, 5000)
    pool = runs._for_long_rows.pool_room
    for n in (1000, 3000):
        runs.make_room(n, 5000)
        assert runs._for_long_rows.n_entries == 2 * 5000
        assert runs._for_long_rows.pool_room > pool
        pool = runs._for_long_rows.pool_room
    there = runs._by_vertex, runs._for_long_rows
    runs.make_room(3000, 4000)
    assert runs._by_vertex is there[0] and runs._for_long_rows is there[1]
    runs.make_room(3000, 5001)
    assert runs._for_long_rows.n_entries == 3 * 5000


class Named(CdlpRun):
    """With external ids for all the vertices that there will be."""

    def new_graph(self, *, directed: bool, weighted: bool) -> Graph:
        self.name(50)
        return super().new_graph(directed=directed, weighted=weighted)


@pytest.fixture
def named_run_of(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Named]]:
    yield from runs(Named, monkeypatch)


@pytest.mark.sample(among="a card that fails")
@both_kinds
def test_without_memory_it_goes_on_at_the_host(named_run_of: Callable[..., Named], ids: Any) -> None:
    failed = failing_runs(lambda: named_run_of(ids=ids), cuda_emulator.failing_allocation, lambda left: not left)
    assert failed >= 17


@pytest.mark.sample(among="a card that fails")
@pytest.mark.parametrize("quiet", [True, False])
def test_a_card_that_fails_is_dropped_within_the_run(named_run_of: Callable[..., Named], quiet: bool) -> None:
    """And so is one that fails when its rounds are asked for."""
    failed = failing_runs(
        named_run_of, lambda at: cuda_emulator.failing_card(at, quiet=quiet), lambda fault: bool(fault.broken)
    )
    assert failed >= 3


def test_a_host_that_cannot_start_for_a_lost_card_is_asked_again(
    emulated_run_of: Callable[..., CdlpRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels stay, and the rounds that were lost with the card are never told of."""
    run = emulated_run_of()
    run.step(inserts([(0, 1), (1, 2)], 3))
    run.refresh(inserts([(2, 0), (0, 2)], 3))
    before = run.labels

    def fails(graph: Graph) -> Refresh:
        raise MemoryError("of the host")

    with monkeypatch.context() as patched, cuda_emulator.failing_card(0, quiet=False):
        patched.setattr(run.program.host, "start", fails)
        for _ in range(2):
            with pytest.raises(MemoryError, match="of the host"):
                run.program.state()
    assert not run.program.on_device
    assert np.array_equal(run.labels, before)
    run.refresh(inserts([(1, 0)], 3))
    assert run.report.started_over
    run.check_results()
    run.refresh(inserts([(2, 1)], 3))
    run.check_results()


def test_which_have_a_twin(cupy: ModuleType, graphs: list[Graph]) -> None:
    graphs.append(Graph(device=True))
    index = VertexIndex.create("int")
    host = Cdlp("id", 3, index)
    made = twin(host, graphs[0])
    for name in (
        "kind",
        "summary",
        "value",
        "family",
        "parameters",
        "value_scalars",
        "needs_in_edges",
        "needs_order",
    ):
        assert getattr(made, name) == getattr(host, name)
    assert type(made).read == type(host).read
    with pytest.raises(NoTwin):
        twin(type("Own", (Cdlp,), {})("id", 3, index), graphs[0])


# -- kernels -----------------------------------------------------------------------------------------------------


def test_structures_are_the_same_to_kernels(cupy: ModuleType, tmp_path: Path) -> None:
    from graphtide.compute.device.cdlp_runs import CDLP_COUNTERS, CDLP_JOB, SOURCE
    from graphtide.compute.device.id_order import ID_ORDER

    dtypes = {"CdlpJob": CDLP_JOB, "CdlpCounters": CDLP_COUNTERS, "IdOrder": ID_ORDER}
    head = "\n".join(f"#define {macro[2:].replace('=', ' ')}" for macro in SOURCE.macros)
    check_structures(cupy, tmp_path, dtypes, "../../compute/device/cdlp.cu", head)


def test_kernels_compile_without_warnings(nvrtc: object, run_long: bool) -> None:
    """For the oldest architecture; test_device_remote_rows.py has a newer one."""
    from graphtide.compute.device.cdlp_runs import SOURCE

    for architecture in ARCHITECTURES if run_long else ARCHITECTURES[:1]:
        check_compiles(nvrtc, SOURCE, architecture)
