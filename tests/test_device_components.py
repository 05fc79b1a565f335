"""Components on a device: after every batch the host's names, and a forest that the host's audit proves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, deletes, epoch_of, inserts, random_history, rmat_history
from host_twins import Twice, failing_allocations, failing_cards, runs
from test_components import Ids
from test_cuda_compiles import ARCHITECTURES, check_compiles
from test_cuda_compiles import nvrtc as nvrtc
from test_device_structures import check_structures

from graphtide.compute.forest.components import Components
from graphtide.compute.program import Published, Refresh
from graphtide.gpma.edges import Op

# What counters keep from run to run: what was handed over, among others.
KEPT = {"n_free", "barrier", "handed"}
# The phases of mend_forest.cu in which a block that worked alone called the others, and where it need not.
SETTLE, HANG, JOIN, HANG_JOINED, END = *range(1, 5), 0xFFFF_FFFF


class TwinRun(Twice):
    """A graph on host and device, and components twice: the host's own, and a twin on the device."""

    def __init__(self, *, directed: bool = True, seed: int = 0) -> None:
        from graphtide.compute.device.components import DeviceComponents

        self.graph = self.new_graph(directed=directed, weighted=False)
        self.ids = Ids(seed)
        self.host = Components("host", self.ids)
        self.twin = DeviceComponents(Components("twin", self.ids))
        self.started_over = 0
        for program in (self.host, self.twin):
            program.start(self.graph)

    def step(self, epoch: Epoch) -> Refresh:
        """Apply an epoch; check the twin against the host's program, and that it reports exactly what changed."""
        change = self.graph.apply(epoch.batch(), epoch.n_vertices, epoch.vertex_ops())
        n_before = change.n_vertices_before
        before = {name: column[:n_before].copy() for name, column in self.twin.columns().items()}
        self.host.refresh(self.graph, change)
        refresh = self.twin.refresh(self.graph, change)
        self.started_over += refresh.started_over
        n = self.graph.n_vertices
        for name, column in self.twin.columns().items():
            if refresh.started_over:
                assert refresh.changed[name] is None
                continue
            reported = refresh.changed.get(name)
            listed = [] if reported is None else reported.tolist()
            assert len(listed) == len(set(listed))
            differs = np.flatnonzero(column[:n_before] != before[name]).tolist()
            assert sorted(v for v in listed if v < n_before) == differs, name
            assert {v for v in listed if v >= n_before} == set(range(n_before, n)) or name != "handle"
        self.check()
        return refresh

    def check_results(self) -> None:
        n = self.graph.n_vertices
        labels = []
        for program in (self.host, self.twin):
            published = Published(program.columns(), program.scalars(), n)
            labels.append(type(program).read(published, np.arange(n, dtype=np.uint32)).values.tolist())
        assert labels[0] == labels[1]
        assert self.host.scalars() == self.twin.scalars()
        assert self.twin.audit(self.graph) == []
        assert self.twin.audit_slice(self.graph, 0, n)[0] == []
        if self.twin.on_device:
            self.check_device(n)

    def check_device(self, n: int) -> None:
        """What the device keeps is what the host has of it, and what must be so between runs."""
        runs = self.twin._runs
        nodes = runs.read(n)
        state = self.twin.state()
        assert np.array_equal(nodes[:, 0], state["parent"])
        assert np.array_equal(nodes[:, 2], state["handle"])
        assert (nodes[:, 3] == 0xFFFF_FFFF).all()
        size, boss = runs._vertices.trees.get()[: 2 * n].reshape(-1, 2).T
        assert np.array_equal(size, np.bincount(nodes[:, 2], minlength=n))
        assert np.array_equal(boss, np.arange(n))
        from graphtide.compute.device.forest_runs import FOREST_COUNTERS

        counters = runs._counters.get().view(FOREST_COUNTERS)[0]
        n_free = int(counters["n_free"])
        free = np.flatnonzero(size == 0)
        assert sorted(runs._vertices.free.get()[:n_free].tolist()) == free.tolist()
        for name in FOREST_COUNTERS.names:
            assert name in KEPT or not np.any(counters[name]), name


@pytest.fixture
def run_of(cupy: ModuleType) -> Iterator[Callable[..., TwinRun]]:
    """Makes runs, and closes their graphs."""
    yield from runs(TwinRun)


@pytest.fixture
def emulated_run_of(emulated_cupy: ModuleType) -> Iterator[Callable[..., TwinRun]]:
    """Likewise, on the emulated device only, which can be told to fail."""
    yield from runs(TwinRun)


@pytest.mark.parametrize("directed", [True, False])
def test_any_history_gives_the_host_s_names(
    run_of: Callable[..., TwinRun], directed: bool, seed: int, run_long: bool
) -> None:
    for own_seed in range(seed, seed + (60 if run_long else 2)):
        cuda_emulator.seed(own_seed)
        run = run_of(directed=directed, seed=own_seed)
        share = 0.15 if own_seed % 2 else 0.0
        for epoch in random_history(own_seed, directed=directed, epochs=20, vertex_share=share).epochs:
            run.step(epoch)
        assert run.graph.check() == []


def tiny(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """Rows are long from few edges on, lists run over, and little is lost or joined before a run starts over."""
    from graphtide.compute.device import components, forest_runs
    from graphtide.gpma.device import constants

    monkeypatch.setattr(constants, "LONG_ROW", 4)
    monkeypatch.setattr(forest_runs, "LONG_ROW", 4)
    monkeypatch.setattr(forest_runs, "QUEUE_SHARE", 1 << 20)
    monkeypatch.setattr(forest_runs, "CHANGES_SHARE", 1 << 20)
    monkeypatch.setattr(forest_runs, "QUEUE_LEAST", int(rng.choice([1, 1000])))
    monkeypatch.setattr(forest_runs, "CHANGES_LEAST", int(rng.choice([1, 5, 1000])))
    monkeypatch.setattr(forest_runs, "ROUNDS_LEAST", int(rng.choice([1, 4, 64])))
    monkeypatch.setattr(components, "LOST_LEAST", int(rng.choice([0, 3, 1000])))
    monkeypatch.setattr(components, "MOVED_LEAST", int(rng.choice([0, 3, 1000])))
    monkeypatch.setattr(components, "SETTLE_LEAST", int(rng.choice([5, 4096])))


@pytest.mark.sample(among="lists on a device run over")
@pytest.mark.parametrize("directed", [True, False])
def test_lists_that_run_over_change_nothing(
    run_of: Callable[..., TwinRun],
    directed: bool,
    seed: int,
    run_long: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for own_seed in range(seed, seed + (60 if run_long else 2)):
        rng = np.random.default_rng(own_seed)
        cuda_emulator.seed(own_seed)
        tiny(monkeypatch, rng)
        run = run_of(directed=directed, seed=own_seed)
        vertices, most = int(rng.choice([12, 40, 150])), int(rng.choice([10, 40, 200]))
        share = 0.1 if own_seed % 2 else 0.0
        history = random_history(
            own_seed, directed=directed, vertices=vertices, epochs=12, updates_max=most, vertex_share=share
        )
        for epoch in history.epochs:
            run.step(epoch)


@pytest.mark.sample(among="a larger graph on a device")
@pytest.mark.parametrize("directed", [True, False])
def test_hubs_of_a_larger_graph(run_of: Callable[..., TwinRun], directed: bool, seed: int, run_long: bool) -> None:
    cuda_emulator.seed(seed)
    scale = 11 if run_long else 8
    history = rmat_history(
        seed, directed=directed, scale=scale, degree=12, epochs=5, updates=100, vertex_share=0.02
    )
    run = run_of(directed=directed)
    for k, epoch in enumerate(history.epochs):
        run.step(epoch)
        assert k or int(run.graph.out_rows().degrees.max()) > 64


@pytest.mark.sample(among="a larger graph on a device")
@pytest.mark.parametrize(
    ("push_share", "pull_share", "room"), [("0.5f", "0.0f", 32), ("0.002f", "0.07f", 1 << 20)]
)
def test_fresh_starts_on_a_larger_graph(
    run_of: Callable[..., TwinRun],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    push_share: str,
    pull_share: str,
    room: int,
) -> None:
    """Of one large component and many others: with few pulls and many, and queues that the others run over."""
    from graphtide.compute.device import forest_runs

    cuda_emulator.seed(seed)
    macros = (f"-DPUSH_SHARE={push_share}", f"-DPULL_SHARE={pull_share}")
    monkeypatch.setitem(forest_runs.SOURCES, "span", forest_runs.Source("span.cu", macros))
    monkeypatch.setattr(forest_runs, "QUEUE_LEAST", room)
    monkeypatch.setattr(forest_runs, "QUEUE_SHARE", 1 << 20)
    (load,) = rmat_history(seed, directed=True, scale=7, degree=6, epochs=0).epochs
    n = load.n_vertices
    rng = np.random.default_rng(seed)
    others = rng.integers(n, n + 200, (120, 2)).tolist()
    star = [(n + 200, v) for v in range(n + 201, n + 300)]
    chain = [(v, v + 1) for v in range(n + 300, n + 330)]
    run = run_of()
    run.step(inserts([*zip(load.src.tolist(), load.dst.tolist(), strict=True), *others, *star, *chain], n + 9000))
    for program in (run.host, run.twin):
        program.start(run.graph)
    run.check()


def test_pieces_split_and_join_at_once(run_of: Callable[..., TwinRun]) -> None:
    """Cycles that are cut twice and whose pieces are tied to each other, and to other trees, in one batch."""
    n, length = 60, 10
    cycles = [(v, v + 1 if (v + 1) % length else v + 1 - length) for v in range(n)]
    run = run_of()
    run.step(inserts(cycles, n + 5))
    cuts = [(Op.DELETE, *cycles[c + k], 1.0) for c in range(0, n, length) for k in (2, 6)]
    ties = [(Op.INSERT, 4, 14, 1.0), (Op.INSERT, 17, 28, 1.0), (Op.INSERT, 24, 63, 1.0), (Op.INSERT, 3, 9, 1.0)]
    assert not run.step(epoch_of([*cuts, *ties], n + 5)).started_over
    assert run.twin.scalars()["components"] == len(cuts) + 5 - 4
    back = [(Op.INSERT, u, v, 1.0) for _, u, v, _ in cuts]
    away = [(Op.DELETE, u, v, 1.0) for _, u, v, _ in ties]
    assert not run.step(epoch_of([*away, *back], n + 8)).started_over
    assert run.twin.scalars()["components"] == 6 + 8


def test_a_link_of_two_arcs_holds_until_both_are_gone(run_of: Callable[..., TwinRun]) -> None:
    run = run_of()
    run.step(inserts([(0, 1), (1, 0), (1, 2), (2, 1), (0, 0)], 4))
    assert run.step(deletes([(0, 1), (2, 1)], 4)).changed == {}
    assert run.twin.scalars()["components"] == 2
    run.step(deletes([(1, 0), (0, 0)], 4))
    assert run.twin.scalars()["components"] == 3


def test_vertices_go_and_come_back(run_of: Callable[..., TwinRun]) -> None:
    """The root, the one that names the component, and all of them; others take their places."""
    for directed in (True, False):
        run = run_of(directed=directed, seed=3)
        wheel = [*((0, v) for v in range(1, 9)), *((v, v + 1) for v in range(1, 8))]
        run.step(inserts(wheel, 12))
        smallest = int(run.twin.columns()["representative"][run.twin.columns()["handle"][0]])
        for gone in (smallest, 0, 5):
            run.step(epoch_of([(Op.DELETE_VERTEX, gone, 0, 0.0)], 12))
            run.step(epoch_of([(Op.INSERT, gone, (gone + 3) % 9, 1.0), (Op.INSERT, gone, 11, 1.0)], 12))
        everyone = [(Op.DELETE_VERTEX, v, 0, 0.0) for v in range(12)]
        run.step(epoch_of(everyone, 12))
        assert run.twin.scalars() == {"components": 0.0}
        run.step(inserts(wheel, 13))


@pytest.mark.sample(among="a larger graph on a device")
def test_a_deep_path_is_mended_or_started_over(run_of: Callable[..., TwinRun]) -> None:
    n = 150
    path = [(v, v + 1) for v in range(n - 1)]
    run = run_of()
    run.step(inserts(path, n))
    assert run.step(deletes([(n - 5, n - 4)], n)).iterations > 4
    run.step(deletes([(n // 2, n // 2 + 1), (3, 4)], n))
    run.step(inserts([(n // 2, n // 2 + 1), (n - 5, n - 4)], n))
    run.step(inserts([(3, 4), (0, n - 1)], n))
    run.step(deletes([(70, 71)], n))


def test_a_run_that_moves_too_much_starts_over(
    run_of: Callable[..., TwinRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.compute.device import components, forest_runs

    n = 300
    star = [*((1, v) for v in range(2, n // 2)), *((0, v) for v in range(n // 2, n))]
    run = run_of()
    run.step(inserts([*star, *((v, v + 1) for v in range(22, 40))], n))
    assert not run.step(inserts([(1, 0)], n)).started_over
    assert not run.step(deletes([(1, 0)], n)).started_over
    monkeypatch.setattr(components, "MOVED_LEAST", 10)
    assert run.step(inserts([(1, 0)], n)).started_over
    # Who has no edges left is not lost: it is a component by itself.
    monkeypatch.setattr(components, "LOST_LEAST", 0)
    monkeypatch.setattr(components, "LOST_SHARE", 0.0)
    assert not run.step(deletes(star[:10], n)).started_over
    assert run.step(deletes(star[20:25], n)).started_over
    monkeypatch.setattr(components, "LOST_LEAST", 1000)
    run.step(inserts(star[20:25], n))
    run.twin.start(run.graph)  # they hang on the star again
    assert not run.step(deletes(star[20:25], n)).started_over
    run.step(inserts(star[20:25], n))
    run.twin.start(run.graph)  # they hang on the star again
    monkeypatch.setattr(components, "SETTLE_LEAST", 3)
    monkeypatch.setattr(components, "SETTLE_SHARE", 0.0)
    assert run.step(deletes(star[20:25], n)).started_over
    monkeypatch.setattr(components, "SETTLE_LEAST", 4096)
    run.step(inserts([(22, 0)], n))
    monkeypatch.setattr(forest_runs, "ROUNDS_SHARE", 0)
    for rounds, is_over in ((64, False), (3, True)):  # the limit is that of the last fresh start
        monkeypatch.setattr(forest_runs, "ROUNDS_LEAST", rounds)
        run.twin.start(run.graph)
        assert run.step(deletes([(22, 0)], n)).started_over is is_over
        run.step(inserts([(22, 0)], n))
    monkeypatch.setattr(forest_runs, "LEVEL_MAX", 0)
    assert run.step(inserts([star[25]], n)).started_over


@pytest.mark.sample(among="blocks of a device work together")
def test_blocks_that_lag_read_the_counts_that_they_are_to_read(run_of: Callable[..., TwinRun], seed: int) -> None:
    """Many vertices in each phase, of which the next ones follow at once: lost, hung, cut off and joined."""
    rng = np.random.default_rng(seed)
    run = run_of()
    n, heads = 600, range(1, 200)
    rows = [(v, int(w)) for v in heads for w in rng.integers(200, n - 1, 2)]
    first = [(0, v) for v in heads]
    run.step(inserts([*rows, *first], n))
    run.step(deletes(first[:120], n))
    run.step(deletes(rows[:150], n))
    run.step(
        epoch_of([*((Op.INSERT, *e, 1.0) for e in rows[:150]), *((Op.DELETE, *e, 1.0) for e in rows[200:])], n)
    )
    run.step(inserts(rows[200:], n + 40))


def test_nothing_happens_without_updates(run_of: Callable[..., TwinRun]) -> None:
    run = run_of()
    assert run.step(epoch_of([], 0)).changed == {}
    assert run.step(epoch_of([], 5)).changed["handle"].tolist() == [0, 1, 2, 3, 4]
    run.step(inserts([(0, 3)], 5))
    assert run.step(epoch_of([], 5)).changed == {}
    assert run.step(deletes([(1, 2)], 5)).changed == {}
    assert run.step(inserts([(3, 0)], 5)).changed == {}


def test_stamps_begin_anew(run_of: Callable[..., TwinRun], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphtide.compute.device import forest_runs

    monkeypatch.setattr(forest_runs, "STAMP_MAX", 4)
    run = run_of()
    stamps = []
    for epoch in random_history(seed, directed=True, epochs=20).epochs:
        run.step(epoch)
        stamps.append(run.twin._runs._stamp)
    assert set(stamps) <= {1, 2, 3, 4}
    assert {1, 4} <= set(stamps)


def test_a_state_moves_between_processors(run_of: Callable[..., TwinRun], seed: int) -> None:
    from graphtide.compute.device.components import DeviceComponents

    run = run_of(seed=seed % 7)
    for k, epoch in enumerate(random_history(seed, directed=True, epochs=32, vertex_share=0.1).epochs):
        run.step(epoch)
        saved = {name: column.copy() for name, column in run.twin.state().items()}
        if k % 8 == 3:  # from the device to the host, and on there
            run.host = Components("host", run.ids)
            run.host.restore(saved, run.graph)
        elif k % 8 == 5:  # from the host to the device, into one that has run, or a new one
            run.twin.restore({name: column.copy() for name, column in run.host.state().items()}, run.graph)
        elif k % 8 == 7:
            fresh = Components("twin", run.ids)
            fresh.restore({name: column.copy() for name, column in run.host.state().items()}, run.graph)
            run.twin = DeviceComponents(fresh)
            assert run.twin.audit(run.graph) == []
            break_in(run)


def break_in(run: TwinRun) -> None:
    """The first refresh of a program that was given a state runs at the host, and moves then."""
    n = run.graph.n_vertices
    change = run.graph.apply(inserts([(0, n - 1)], n).batch(), n)
    for program in (run.host, run.twin):
        program.refresh(run.graph, change)
    run.check()


@pytest.mark.sample(among="a larger graph on a device")
def test_large_trees_are_named_anew_wherever_the_forest_is(
    run_of: Callable[..., TwinRun], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Trees too large to list lose the vertex that names them, while others that are smaller join them."""
    from graphtide.compute.forest import components as module

    monkeypatch.setattr(module, "_SORTED_MAX", 0)
    rng = np.random.default_rng(seed)
    n = 80
    for passes in (8, 0):
        monkeypatch.setattr(module, "_PASSES_PER_SORT", passes)
        run = run_of(seed=seed % 100)
        edges = [(0, v) for v in range(1, 40)] + [(v, v + 1) for v in range(1, 39)]
        run.step(inserts(edges, n))
        for _ in range(8):
            columns = run.twin.columns()
            name = int(columns["representative"][columns["handle"][int(rng.integers(1, 40))]])
            other = int(rng.integers(40, n))
            away = [(Op.DELETE, *edge, 1.0) for edge in edges if name in edge]
            joins = [(Op.INSERT, int(rng.integers(0, 40)), other, 1.0)]
            run.step(epoch_of([*away, *joins], n))
            run.step(inserts([edge for edge in edges if name in edge], n))


# -- what fails --------------------------------------------------------------------------------------------------


def test_a_refresh_allocates_nothing_and_reads_what_changed(emulated_run_of: Callable[..., TwinRun]) -> None:
    parts, length = 400, 8
    n = 1 + parts * length
    chains = [(v, v + 1) for v in range(1, n) if v % length]
    heads = [(0, v) for v in range(1, n - length, length)]
    run = emulated_run_of()
    run.step(inserts([*chains, *heads], n))
    changes = [
        deletes([(41, 42), (801, 802)], n),
        inserts([(41, 42), (802, 46), (5, 9)], n),
        deletes([(0, 41), (0, 801), (3, 4)], n),
        inserts([(45, 801), (0, 44), (n - 2, 17)], n),
    ]
    for epoch in changes:
        change = run.graph.apply(epoch.batch(), epoch.n_vertices)
        run.host.refresh(run.graph, change)
        with cuda_emulator.failing_allocation(0):  # the first one would fail, and the program go home
            refresh = run.twin.refresh(run.graph, change)
        run.check()
        assert not refresh.started_over
        assert refresh.edges_read < 300 < run.graph.n_arcs / 10


@pytest.mark.sample(among="a card that fails")
def test_without_memory_the_program_goes_on_at_the_host(emulated_run_of: Callable[..., TwinRun]) -> None:
    assert failing_allocations(emulated_run_of) >= 10


@pytest.mark.sample(among="blocks of a device work together")
@pytest.mark.parametrize("directed", [True, False])
def test_a_block_that_works_alone_calls_the_others_wherever_it_is(
    run_of: Callable[..., TwinRun], directed: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.compute.device import forest_runs

    cuda_emulator.seed(seed)
    source = forest_runs.SOURCES["mend"]
    monkeypatch.setitem(forest_runs.SOURCES, "mend", source._replace(macros=("-DALONE_ROWS=4",)))
    run, n = run_of(directed=directed), 200
    star, ring = [(0, v) for v in range(1, 80)], [(v, v + 1) for v in range(1, 79)]
    path = [(0, 80), *((v, v + 1) for v in range(80, 90))]
    few, more = [(100, 101)], [(v, v + 1) for v in range(110, 120)]
    pairs = [(v, v + 1) for v in range(130, 150, 2)]
    run.step(inserts(star + ring + path + few + more + pairs, n))
    for program in (run.host, run.twin):
        program.start(run.graph)  # whose tree has its root in the middle of the star

    def phase(epoch: Epoch) -> int:
        run.step(epoch)
        counters = run.twin._runs._counters.get(stream=run.graph.device.stream)
        return int(counters.view(forest_runs.FOREST_COUNTERS)["handed"]["phase"][0])

    assert phase(inserts([(1, 3)], n)) == END
    assert phase(deletes(star[10:30], n)) == SETTLE
    assert phase(deletes(path[:1], n)) == HANG, "one lost after the other"
    assert phase(inserts([(0, 100)], n)) == END
    assert phase(inserts([(0, 110)], n)) == HANG_JOINED
    assert phase(inserts([(0, v) for v, _ in pairs], n)) == JOIN
    run = run_of(directed=directed)
    for epoch in random_history(seed, directed=directed, epochs=15, vertex_share=0.1).epochs:
        run.step(epoch)


@pytest.mark.parametrize("quiet", [True, False])
def test_a_card_that_fails_is_dropped_within_the_run(emulated_run_of: Callable[..., TwinRun], quiet: bool) -> None:
    assert failing_cards(emulated_run_of, quiet=quiet) >= 1


# -- host and kernels --------------------------------------------------------------------------------------------


def test_structures_are_the_same_to_kernels(cupy: ModuleType, tmp_path: Path) -> None:
    from graphtide.compute.device.forest_runs import (
        FOREST_COUNTERS,
        FOREST_HANDED,
        FOREST_JOB,
        MEMBER,
        MEMBERS,
        NODE,
        TREE,
    )

    dtypes = {"ForestJob": FOREST_JOB, "ForestCounters": FOREST_COUNTERS, "ForestHanded": FOREST_HANDED}
    dtypes |= {"Node": NODE, "Tree": TREE, "Member": MEMBER, "Members": MEMBERS}
    check_structures(cupy, tmp_path, dtypes, "../../compute/device/forest.cuh")


@pytest.mark.sample(1, of="architecture")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", ["mend", "span", "members"])
def test_kernels_compile_without_warnings(nvrtc: object, name: str, architecture: str) -> None:
    from graphtide.compute.device.forest_runs import SOURCES

    assert set(SOURCES) == {"mend", "span", "members"}
    check_compiles(nvrtc, SOURCES[name], architecture)
