"""Path programs on a device: after every batch the host's values, bit for bit, and words that its audit proves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, deletes, epoch_of, inserts, random_history, rmat_history
from host_twins import Twice, failing_allocations, failing_cards, runs
from own_programs import Fading, Reached, Within
from test_cuda_compiles import ARCHITECTURES, check_compiles
from test_cuda_compiles import nvrtc as nvrtc
from test_device_structures import check_structures

from graphtide.compute.paths.bfs import BFS
from graphtide.compute.paths.program import PathProgram
from graphtide.compute.paths.sssp import SSSP
from graphtide.compute.paths.sswp import SSWP
from graphtide.compute.program import Refresh
from graphtide.compute.steps import alone
from graphtide.gpma.edges import NO_VERTEX, Op, Vertices

KINDS: dict[str, Callable[[str, tuple[int, ...]], PathProgram]] = {
    "bfs": BFS,
    "sssp": SSSP,
    "sswp": SSWP,
    "within": lambda id, source: Within(id, source, hops=3),
    "fading": Fading,
    "reached": Reached,
}
HALF = np.uint64(32)


class TwinRun(Twice):
    """A graph on host and device, and a program twice: the host's own, and a twin on the device."""

    def __init__(self, kind: str, *, directed: bool = True, sources: tuple[int, ...] = (0,)) -> None:
        from graphtide.compute.device.paths import DevicePathProgram

        self.graph = self.new_graph(directed=directed, weighted=True)
        self.sources = sources
        self.make = KINDS[kind]
        self.host = self.make("host", sources)
        self.twin = DevicePathProgram(self.make("twin", sources))
        self.started_over = 0
        self.behind: list[int] = []  # the reports of batches behind which a run was launched, by number
        self.by_steps = False
        self.unresolved = True
        self.bind()
        for program in (self.host, self.twin):
            program.start(self.graph)

    def bind(self) -> None:
        """As the engine does: until all sources are known, and again when vertices were deleted."""
        if self.unresolved:
            sources = self.bound()
            self.unresolved = bool((sources == NO_VERTEX).any())
            for program in (self.host, self.twin):
                program.bind(sources)

    def bound(self) -> Vertices:
        graph = self.graph
        alive = [s < graph.n_vertices and bool(graph.alive[s]) for s in self.sources]
        return np.array(
            [s if lives else NO_VERTEX for s, lives in zip(self.sources, alive, strict=True)], np.uint32
        )

    def step(self, epoch: Epoch) -> Refresh:
        """Apply an epoch; check the twin against the host's program, and that it reports exactly what changed."""
        batch, vertex_ops = epoch.batch(weighted=True), epoch.vertex_ops()
        change = self.graph.apply(batch, epoch.n_vertices, vertex_ops)
        if self.twin._runs is not None and self.twin._runs._behind:
            self.behind.append(self.twin._runs._behind)
        before = self.twin.state()["word"].copy()
        self.unresolved |= change.deleted_vertices.size > 0
        self.bind()
        self.host.refresh(self.graph, change)
        if self.by_steps:
            refresh = alone(self.twin.refreshing(self.graph, change))
        else:
            refresh = self.twin.refresh(self.graph, change)
        self.started_over += refresh.started_over
        after = self.twin.state()["word"]
        if refresh.started_over:
            assert refresh.changed == {"word": None}
        else:
            differs = np.flatnonzero(after[: before.size] != before).tolist() + list(
                range(before.size, after.size)
            )
            reported = refresh.changed.get("word")
            assert sorted([] if reported is None else reported.tolist()) == differs
        self.check()
        return refresh

    def check_results(self) -> None:
        host, twin = self.host.state()["word"], self.twin.state()["word"]
        assert np.array_equal(host >> HALF, twin >> HALF)
        assert self.twin.audit(self.graph) == []


@pytest.fixture
def run_of(cupy: ModuleType) -> Iterator[Callable[..., TwinRun]]:
    """Makes runs, and closes their graphs."""
    yield from runs(TwinRun)


@pytest.fixture
def emulated_run_of(emulated_cupy: ModuleType) -> Iterator[Callable[..., TwinRun]]:
    """Likewise, on the emulated device only, which can be told to fail."""
    yield from runs(TwinRun)


def tiny(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """Rows are long, and vertices asked, from few edges on; queues and lists run over; little may be lost."""
    from graphtide.compute.device import path_runs, paths, taking
    from graphtide.gpma.device import constants

    monkeypatch.setattr(constants, "LONG_ROW", 4)
    monkeypatch.setattr(path_runs, "LONG_ROW", 4)
    monkeypatch.setattr(path_runs, "QUEUE_SHARE", 1 << 20)
    monkeypatch.setattr(path_runs, "CHANGES_SHARE", 1 << 20)
    mends_with(monkeypatch, f"-DASKED_FROM={rng.integers(5)}")
    monkeypatch.setattr(path_runs, "QUEUE_LEAST", int(rng.choice([1, 2, 5, 1000])))
    monkeypatch.setattr(path_runs, "CHANGES_LEAST", int(rng.choice([1, 5, 1000])))
    monkeypatch.setattr(taking, "TAKEN_MAX", int(rng.choice([1, 3, 1000])))
    monkeypatch.setattr(paths, "LOST_LEAST", int(rng.choice([0, 3, 1000])))
    monkeypatch.setattr(paths, "SETTLE_LEAST", int(rng.choice([5, 4096])))
    monkeypatch.setattr(path_runs, "TIES_MIN", float(rng.choice([0.0, 0.25, 2.0])))
    monkeypatch.setattr(path_runs, "STEP_SHARE", 1 << 20)
    monkeypatch.setattr(path_runs, "STEP_LEAST", int(rng.choice([1, 30, 1000])))


@pytest.mark.sample(1, of="directed")
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_any_history_gives_the_host_s_values(
    run_of: Callable[..., TwinRun],
    kind: str,
    directed: bool,
    seed: int,
    run_long: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from graphtide.compute.device import path_runs

    for own_seed in range(seed, seed + (40 if run_long else 1)):
        cuda_emulator.seed(own_seed)
        run = run_of(kind, directed=directed)
        share = 0.15 if own_seed % 2 else 0.0
        monkeypatch.setattr(path_runs, "TIES_MIN", float(np.random.default_rng(own_seed).choice([0.0, 0.25, 2.0])))
        for epoch in random_history(own_seed, directed=directed, epochs=20, vertex_share=share).epochs:
            run.step(epoch)
        assert run.graph.check() == []


@pytest.mark.sample(among="lists on a device run over")
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("kind", ["bfs", "sssp", "sswp", "reached"])
def test_queues_that_run_over_change_nothing(
    run_of: Callable[..., TwinRun],
    kind: str,
    directed: bool,
    seed: int,
    run_long: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for own_seed in range(seed, seed + (40 if run_long else 1)):
        rng = np.random.default_rng(own_seed)
        cuda_emulator.seed(own_seed)
        tiny(monkeypatch, rng)
        run = run_of(kind, directed=directed)
        vertices, most = int(rng.choice([12, 40, 150])), int(rng.choice([10, 40, 200]))
        share = 0.1 if own_seed % 2 else 0.0
        history = random_history(
            own_seed, directed=directed, vertices=vertices, epochs=15, updates_max=most, vertex_share=share
        )
        for epoch in history.epochs:
            run.step(epoch)


# The phases of mend.cu in which a block that worked alone called the others, and where it need not.
SETTLE, PASS_ON, TAKE, PUSH, END = *range(1, 5), 0xFFFF_FFFF


def mends_with(monkeypatch: pytest.MonkeyPatch, *macros: str) -> None:
    """Compile what mends words with these options."""
    from graphtide.compute.device import path_runs

    for name in ("settle", "trim", "few"):
        source = path_runs.SOURCES[name]
        monkeypatch.setitem(path_runs.SOURCES, name, source._replace(macros=(*source.macros, *macros)))


@pytest.mark.sample(among="blocks of a device work together")
@pytest.mark.parametrize(("kind", "settles"), [("bfs", True), ("sssp", True), ("sssp", False)])
def test_a_block_that_works_alone_calls_the_others_wherever_it_is(
    run_of: Callable[..., TwinRun], kind: str, settles: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.compute.device import path_runs

    cuda_emulator.seed(seed)
    mends_with(monkeypatch, "-DALONE_ROWS=2")
    monkeypatch.setattr(path_runs, "TIES_MIN", 0.0 if settles else 2.0)
    run, n = run_of(kind), 400
    hub, chain = [(0, 1), *((1, v) for v in range(200, 400))], [(0, 2), *((v, v + 1) for v in range(2, 9))]
    pairs = [edge for v in range(20, 30) for edge in ((0, v), (v, v + 20))]
    run.step(inserts(hub + chain + pairs, n))

    def phase(epoch: Epoch) -> int:
        run.step(epoch)
        counters = run.twin.runs._counters.get(stream=run.graph.device.stream)
        return int(counters.view(path_runs.PATH_COUNTERS)["handed"]["phase"][0])

    assert phase(inserts([(0, 300)], n)) == END
    assert phase(deletes([(0, 1)], n)) == PASS_ON, "a row of many leaves"
    assert phase(deletes([(0, 2)], n)) == TAKE, "one lost after the other"
    assert phase(deletes(pairs[::2], n)) == (SETTLE if settles else PASS_ON)
    assert phase(inserts(pairs[::2], n)) == PUSH
    assert phase(inserts([(0, 1), (0, 2)], n)) == PUSH
    run = run_of(kind)
    for epoch in random_history(seed, directed=True, epochs=10, vertex_share=0.1).epochs:
        run.step(epoch)


@pytest.mark.parametrize("kind", ["bfs", "sssp"])
def test_few_updates_that_change_nothing_touch_nothing(run_of: Callable[..., TwinRun], kind: str) -> None:
    """The first block finds that out by itself, for each outcome; and what comes after is right."""
    from graphtide.compute.device import path_runs

    run, n = run_of(kind), 100
    tree, others = [(0, v) for v in range(1, 40)], [(v, v + 1) for v in range(1, 39)]
    run.step(inserts(tree + others, n))

    def touched(epoch: Epoch) -> bool:
        refresh = run.step(epoch)
        stored = run.twin.runs._counters.get(stream=run.graph.device.stream)
        counters = stored.view(path_runs.PATH_COUNTERS)[0]
        assert counters["handed"]["phase"] == END
        assert not any(counters[name].any() for name in ("logged", "lost", "outgoing", "asked", "pulling"))
        return refresh.active > 0

    assert not touched(deletes(others[::6], n)), "edges that nobody hangs on"
    assert not touched(inserts(others[::6], n)), "and they come back"
    assert not touched(inserts(tree[:5], n)), "weights as they were"
    assert not touched(deletes([(50, 51), (60, 1)], n)), "edges that are not there"
    assert not touched(inserts([(50, 51), (60, 1)], n)), "from vertices that are not reached"
    assert touched(inserts([(1, 50)], n))
    assert touched(deletes([(1, 50)], n))
    assert touched(deletes(tree[-1:], n))


@pytest.mark.sample(among="blocks of a device work together")
@pytest.mark.parametrize(("kind", "settles"), [("bfs", True), ("sssp", True), ("sssp", False)])
def test_all_blocks_work_from_the_beginning(
    run_of: Callable[..., TwinRun], kind: str, settles: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after many updates."""
    from graphtide.compute.device import path_runs

    cuda_emulator.seed(seed)
    monkeypatch.setitem(path_runs.SOURCES, "few", path_runs.SOURCES["settle" if settles else "trim"])
    tiny(monkeypatch, np.random.default_rng(seed))
    monkeypatch.setattr(path_runs, "TIES_MIN", 0.0 if settles else 2.0)
    run = run_of(kind)
    for epoch in random_history(seed, directed=True, vertices=40, epochs=20, vertex_share=0.1).epochs:
        run.step(epoch)


def test_hubs_may_have_more_edges_together_than_32_bits_hold(
    run_of: Callable[..., TwinRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of half as many each, which a warp queues at once: their sum is not 0."""
    from graphtide.compute.device import path_runs

    monkeypatch.setitem(path_runs.SOURCES, "few", path_runs.SOURCES["settle"])
    run, n, hubs = run_of("bfs"), 300, [(0, 1), (0, 2)]
    run.step(inserts([(1, v) for v in range(10, 110)] + [(2, v) for v in range(110, 210)] + [(0, 3)], n))
    with run.graph.device.stream:
        run.graph.device.out._rows.degrees[1:3] = 1 << 31  # as if they had them: long rows are walked by leaves
    assert run.step(inserts(hubs, n)).edges_read >= 2 << 25
    assert run.step(deletes(hubs, n)).started_over, "more than settling may come to"


@pytest.mark.sample(among="a larger graph on a device")
@pytest.mark.parametrize("kind", ["bfs", "sssp"])
def test_hubs_of_a_larger_graph(run_of: Callable[..., TwinRun], kind: str, seed: int, run_long: bool) -> None:
    cuda_emulator.seed(seed)
    scale = 11 if run_long else 8
    history = rmat_history(seed, directed=True, scale=scale, degree=12, epochs=6, updates=200, vertex_share=0.02)
    run = run_of(kind)
    for k, epoch in enumerate(history.epochs):
        run.step(epoch)
        assert k or int(run.graph.out_rows().degrees.max()) > 64


@pytest.mark.sample(among="a larger graph on a device")
@pytest.mark.parametrize("kind", ["bfs", "sssp", "sswp", "reached"])
def test_fresh_starts_on_a_larger_graph(
    run_of: Callable[..., TwinRun], kind: str, seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.compute.device import path_runs

    if kind == "sssp":
        seed = 1  # how many rounds it takes is compared below, and not left to chance
    cuda_emulator.seed(seed)
    scale = 12 if run_long else 9
    (load,) = rmat_history(seed, directed=True, scale=scale, degree=10, epochs=0).epochs
    rounds = {}
    # Pushes between pulls, few and many; steps of few edges, and of many.
    for share, edges, room in (("0.5f", 1, 1 << 20), ("0.0f", 300, 1 << 20), ("0.002f", 1 << 18, 20)):
        monkeypatch.setitem(
            path_runs.SOURCES, "search", path_runs.Source("search.cu", (f"-DPUSH_SHARE={share}",), 3)
        )
        monkeypatch.setattr(path_runs, "STEP_LEAST", edges)
        monkeypatch.setattr(path_runs, "STEP_SHARE", 1 << 20)
        monkeypatch.setattr(path_runs, "QUEUE_LEAST", room)
        monkeypatch.setattr(path_runs, "QUEUE_SHARE", 1 << 20)
        sources = tuple(np.unique(load.src)[:: 1 << (scale - 2)].tolist())
        run = run_of(kind, sources=sources)
        run.step(load)
        for program in (run.host, run.twin):
            refresh = program.start(run.graph)
        run.check()
        rounds[edges] = refresh.iterations
    if kind == "sssp":
        assert rounds[1] > rounds[1 << 18]


@pytest.mark.sample(among="blocks of a device work together")
@pytest.mark.parametrize("settles", [True, False])
@pytest.mark.parametrize("kind", ["bfs", "sssp"])
def test_blocks_that_lag_read_the_counts_that_they_are_to_read(
    run_of: Callable[..., TwinRun], seed: int, monkeypatch: pytest.MonkeyPatch, kind: str, settles: bool
) -> None:
    from graphtide.compute.device import path_runs

    monkeypatch.setattr(path_runs, "TIES_MIN", 0.0 if settles else 2.0)
    rng = np.random.default_rng(seed)
    run = run_of(kind)
    n, heads = 600, range(1, 200)
    rows = [(v, int(w)) for v in heads for w in rng.integers(200, n - 1, 3)]
    run.step(inserts([(0, n - 1), *rows], n))
    # No vertex comes, so no source is bound anew: nothing parts finding that nobody is lost from what follows.
    first = [(0, v) for v in heads]
    run.step(inserts(first, n))
    run.step(deletes(first[:60], n))
    run.step(inserts(first[:60], n))


@pytest.mark.sample(among="blocks of a device work together")
@pytest.mark.parametrize(("kind", "settles"), [("bfs", True), ("sssp", True), ("sssp", False)])
def test_a_warp_finds_more_than_it_sees_to_at_a_time(
    run_of: Callable[..., TwinRun], monkeypatch: pytest.MonkeyPatch, kind: str, settles: bool
) -> None:
    from graphtide.compute.device import path_runs, paths

    monkeypatch.setattr(path_runs, "TIES_MIN", 0.0 if settles else 2.0)
    monkeypatch.setattr(paths, "SETTLE_LEAST", 1 << 20)
    monkeypatch.setattr(paths, "LOST_LEAST", 1 << 20)
    run, heads = run_of(kind), range(3, 4000)  # queues have room for 4,096
    n = heads.stop
    run.step(inserts([(0, 2), *((1, v) for v in heads)], n))
    run.started_over = 0  # sources were bound
    run.step(inserts([(0, 1)], n))  # found along a row, ...
    run.step(deletes([(0, 1)], n))
    run.step(inserts([(2, v) for v in heads], n))  # ... and in a batch
    run.step(deletes([(2, v) for v in heads[::2]], n))
    assert not run.started_over


@pytest.mark.parametrize("kind", ["bfs", "sssp"])
def test_a_run_that_loses_too_much_starts_over(
    run_of: Callable[..., TwinRun], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.compute.device import paths

    n = 300
    star = [(0, 1), *((1, v) for v in range(2, n)), *((v, v + 1) for v in range(2, n - 1))]
    run = run_of(kind)
    run.step(inserts(star, n))
    monkeypatch.setattr(paths, "LOST_LEAST", 10)
    monkeypatch.setattr(paths, "SETTLE_LEAST", 100)
    assert run.step(deletes([(0, 1)], n)).started_over
    assert not run.step(inserts([(0, 1)], n)).started_over
    assert not run.step(deletes([(1, 7), (1, 70)], n)).started_over


def test_a_chain_that_lost_its_head_finds_another_way(run_of: Callable[..., TwinRun]) -> None:
    n = 60
    run = run_of("sssp")
    run.step(inserts([*((v, v + 1) for v in range(n - 1)), (0, n - 1), (n - 1, 30)], n))
    for v in (0, 10, 29, 45):
        assert not run.step(deletes([(v, v + 1)], n)).started_over
    run.step(inserts([(0, 1), (10, 11)], n))


def test_weights_are_overwritten_both_ways(run_of: Callable[..., TwinRun]) -> None:
    edges = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 1), (1, 3)]
    for kind in ("sssp", "sswp", "bfs"):
        run = run_of(kind)
        for weights in (
            [1, 1, 5, 1, 0, 2],
            [1, 9, 5, 1, 0, 2],
            [0, 0, 0, 0, 0, 0],
            [1e8, 1, 1e8, 1, 1, 1],
            [3] * 6,
        ):
            updates = [(Op.INSERT, u, v, float(w)) for (u, v), w in zip(edges, weights, strict=True)]
            run.step(epoch_of(updates, 4))
        run.step(epoch_of([(Op.INSERT, 0, 1, 7.0)], 4))


def test_sources_appear_go_and_come_back(run_of: Callable[..., TwinRun]) -> None:
    for kind in ("bfs", "sssp", "reached"):
        run = run_of(kind, sources=(3, 9))
        run.step(inserts([(0, 1), (1, 2)], 3))
        run.step(inserts([(2, 3), (3, 4), (4, 0)], 5))
        run.step(inserts([(4, 8), (8, 9), (9, 1)], 10))
        assert run.step(epoch_of([(Op.DELETE_VERTEX, 3, 0, 0.0)], 10)).started_over
        run.step(epoch_of([(Op.INSERT, 3, 4, 1.0)], 10))
        assert run.step(epoch_of([(Op.DELETE_VERTEX, 9, 0, 0.0), (Op.DELETE_VERTEX, 3, 0, 0.0)], 10)).started_over
        assert (run.twin.state()["word"] == ~np.uint64(0)).all()
        run.step(epoch_of([(Op.INSERT, 9, 1, 1.0)], 10))


def test_nothing_happens_without_updates(run_of: Callable[..., TwinRun]) -> None:
    run = run_of("bfs")
    assert run.step(epoch_of([], 0)).changed == {}
    assert run.step(epoch_of([], 5)).changed["word"].tolist() == [0, 1, 2, 3, 4]
    run.step(inserts([(0, 3)], 5))
    assert run.step(epoch_of([], 5)).changed == {}
    assert run.step(deletes([(1, 2)], 5)).changed == {}


def test_whether_to_settle_is_told_by_a_sample(run_of: Callable[..., TwinRun]) -> None:
    rng = np.random.default_rng(5)
    n = 64
    layers = [(0, v) for v in range(1, 20)] + [(u, v) for u in range(1, 20) for v in range(20, n)]
    for weights, settles in ((np.ones(len(layers)), True), (rng.random(len(layers)), False)):
        run = run_of("sssp")
        run.step(epoch_of([(Op.INSERT, u, v, float(w)) for (u, v), w in zip(layers, weights, strict=True)], n))
        fresh = run.make("twin", run.sources)
        fresh.restore(run.twin.state(), run.graph)
        run.twin.restore(fresh.state(), run.graph)
        run.step(deletes([(1, 30)], n))
        run.step(deletes([(1, 31), (2, 31), (0, 3)], n))
        runs = run.twin.runs
        assert runs._mends == (runs._kernels["settle" if settles else "trim"], runs._kernels["few"])
        assert runs._calls.job["settles"] == settles


def test_stamps_begin_anew(run_of: Callable[..., TwinRun], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphtide.compute.device import path_runs

    monkeypatch.setattr(path_runs, "STAMP_MAX", 30)
    run = run_of("sssp")
    stamps = []
    for epoch in random_history(seed, directed=True, epochs=25).epochs:
        run.step(epoch)
        stamps.append(run.twin._runs._stamp)
    assert max(stamps) < 60
    assert any(later < earlier for earlier, later in itertools.pairwise(stamps))


def test_a_state_moves_between_processors(run_of: Callable[..., TwinRun], seed: int) -> None:
    from graphtide.compute.device.paths import DevicePathProgram

    for kind in ("bfs", "sssp"):
        run = run_of(kind)
        for k, epoch in enumerate(random_history(seed, directed=True, epochs=24, vertex_share=0.1).epochs):
            run.step(epoch)
            saved = {name: column.copy() for name, column in run.twin.state().items()}
            if k % 8 == 3:  # from the device to the host, and on there
                moved = run.make("host", run.sources)
                moved.bind(run.bound())
                moved.restore(saved, run.graph)
                run.host = moved
            elif k % 8 == 5:  # from the host to the device, into one that has run, or a new one
                run.twin.restore(saved, run.graph)
            elif k % 8 == 7:
                fresh = run.make("twin", run.sources)
                fresh.restore(saved, run.graph)
                run.twin = DevicePathProgram(fresh)


def test_a_refresh_allocates_nothing_and_reads_what_changed(emulated_run_of: Callable[..., TwinRun]) -> None:
    parts, length = 500, 8
    n = 1 + parts * length
    chains = [(v, v + 1) for v in range(1, n) if v % length]
    heads = [(0, v) for v in range(1, n, length)]
    changes = [
        deletes([(41, 42), (801, 802)], n),
        inserts([(41, 42), (802, 46), (5, 9)], n),
        deletes([(0, 41), (0, 801), (3, 4)], n),
        inserts([(45, 801), (0, 44)], n),
    ]
    for kind in ("bfs", "sssp"):
        run = emulated_run_of(kind)
        run.step(inserts([*chains, *heads], n))
        run.step(inserts([(1, 4)], n))
        for epoch in changes:
            change = run.graph.apply(epoch.batch(weighted=True), epoch.n_vertices)
            run.host.refresh(run.graph, change)
            with cuda_emulator.failing_allocation(0):  # the first one would fail, and the program go home
                refresh = run.twin.refresh(run.graph, change)
            run.check()
            assert not refresh.started_over
            assert refresh.edges_read < 100 < run.graph.n_arcs / 30


def test_without_memory_a_program_goes_on_at_the_host(emulated_run_of: Callable[..., TwinRun]) -> None:
    assert failing_allocations(lambda: emulated_run_of("sssp")) >= 6


@pytest.mark.sample(among="a card that fails")
@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("kind", ["bfs", "sssp"])
def test_a_card_that_fails_is_dropped_within_the_run(
    emulated_run_of: Callable[..., TwinRun], kind: str, quiet: bool
) -> None:
    assert failing_cards(lambda: emulated_run_of(kind), quiet=quiet) >= 1


def test_structures_are_the_same_to_kernels(cupy: ModuleType, tmp_path: Path) -> None:
    from graphtide.compute.device.functor import cuda_text
    from graphtide.compute.device.path_runs import PATH_COUNTERS, PATH_HANDED, PATH_JOB

    dtypes = {"PathJob": PATH_JOB, "PathHanded": PATH_HANDED, "PathCounters": PATH_COUNTERS}
    head = cuda_text(SSSP("x", (0,)).form)
    check_structures(cupy, tmp_path, dtypes, "../../compute/device/paths.cuh", head=head)


WEIGHTED = "sssp", "sswp", "fading"
# By their file: kernels, and the programs that need them.
COMPILED = {
    "mend.cu": {"settle": (*KINDS,), "few": (*KINDS,), "trim": WEIGHTED},
    "ties.cu": {"ties": WEIGHTED},
    "spread.cu": {"spread": WEIGHTED},
    "search.cu": {"search": tuple({*KINDS} - {*WEIGHTED})},
}


@pytest.mark.sample(1, of="name,kind,architecture")  # each file
@pytest.mark.parametrize(
    ("file", "name", "kind", "architecture"),
    [
        (file, name, kind, architecture)
        for file, names in COMPILED.items()
        for name, kinds in names.items()
        for kind in sorted(kinds)
        for architecture in (ARCHITECTURES if kind == "sssp" else ["sm_90"])
    ],
)
def test_kernels_compile_without_warnings(
    nvrtc: object, file: str, name: str, kind: str, architecture: str
) -> None:
    from graphtide.compute.device.functor import cuda_text
    from graphtide.compute.device.path_runs import SOURCES

    form = KINDS[kind]("x", (0,)).form
    assert SOURCES[name].file == file
    check_compiles(nvrtc, SOURCES[name], architecture, weighted=form.weighted, head=cuda_text(form))


def test_all_that_programs_need_is_compiled() -> None:
    from graphtide.compute.device.path_runs import SOURCES, kernels_of

    assert {name: SOURCES[name].file for name in SOURCES} == {
        n: file for file, names in COMPILED.items() for n in names
    }
    for kind, make in KINDS.items():
        needed = {name for names in COMPILED.values() for name, kinds in names.items() if kind in kinds}
        assert needed == {*kernels_of(weighted=make("x", (0,)).form.weighted)}, kind


# -- runs behind their batches --------------------------------------------------------------------------------


def any_updates(rng: np.random.Generator, n_vertices: int, n: int, *, inserts_share: float = 0.5) -> Epoch:
    """Updates of edges anywhere, with weights 1 to 8."""
    src, dst = (rng.integers(0, n_vertices, n).astype(np.uint32) for _ in range(2))
    ops = (rng.random(n) < inserts_share).astype(np.uint8)
    return Epoch(src, dst, ops, rng.integers(1, 9, n).astype(np.float32), n_vertices)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["bfs", "sssp"])
def test_runs_are_launched_behind_their_batches(run_of: Callable[..., TwinRun], kind: str, seed: int) -> None:
    """Of few updates and of many; also where a vertex goes, comes back or is new."""
    rng, n = np.random.default_rng(seed), 200
    run = run_of(kind)
    run.step(any_updates(rng, n, 8000, inserts_share=1.0))
    for size in (3, 40, 700):
        launched = len(run.behind)
        for _ in range(4):
            run.step(any_updates(rng, n, size))
        assert len(run.behind) >= launched + 2
    for _ in range(3):
        gone, others = int(rng.integers(1, n)), rng.integers(0, n, 3).tolist()
        for epoch in (
            epoch_of([(Op.DELETE_VERTEX, gone, 0, 0.0)], n),
            any_updates(rng, n, 3),
            epoch_of([(Op.INSERT, v, gone, 2.0) for v in others], n),
            epoch_of([(Op.INSERT, v, n, 3.0) for v in others], n + 1),
        ):
            n = epoch.n_vertices
            run.step(epoch)
            run.by_steps = not run.by_steps
            run.step(any_updates(rng, n, 3))


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_head", [False, True])
@pytest.mark.parametrize("kind", ["bfs", "sssp"])
def test_a_run_behind_a_batch_that_one_array_gives_up(
    run_of: Callable[..., TwinRun], kind: str, is_head: bool, seed: int
) -> None:
    """Of one vertex there are so many updates that the kernel gives up its row, but not those of the others."""
    rng, n = np.random.default_rng(seed), 700
    run = run_of(kind)
    run.step(any_updates(rng, n, 3000, inserts_share=1.0))
    given_up = 0
    for op in (Op.INSERT, Op.DELETE, Op.INSERT, Op.DELETE):
        run.step(any_updates(rng, n, 5))
        launched = len(run.behind)
        others = rng.permutation(n)[:200].tolist()
        run.step(epoch_of([(op, v, 1, 1.0 + v % 8) if is_head else (op, 1, v, 1.0 + v % 8) for v in others], n))
        device = run.graph.device
        assert device is not None
        given_up += len(run.behind) > launched and run.behind[-1] != device.report_number
        for array in device.arrays:
            array._untried = 0
    assert given_up >= 2


@pytest.fixture
def small_to_40(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of more updates than 40 are applied as large ones are."""
    for module in ("array", "both"):
        monkeypatch.setattr(f"graphtide.gpma.device.{module}.SMALL_MAX", 40)


@pytest.mark.usefixtures("small_to_40")
def test_runs_are_launched_behind_large_batches(run_of: Callable[..., TwinRun], seed: int) -> None:
    rng, n = np.random.default_rng(seed), 200
    run = run_of("bfs")
    run.step(any_updates(rng, n, 8000, inserts_share=1.0))
    run.step(any_updates(rng, n, 600))
    launched = len(run.behind)
    for size in (700, 600, 800, 600, 700):
        run.step(any_updates(rng, n, size))
    assert len(run.behind) >= launched + 2
    assert run.graph.check() == []


@pytest.mark.usefixtures("small_to_40")
def test_a_run_behind_a_large_batch_that_one_array_gives_up_is_void(
    run_of: Callable[..., TwinRun], seed: int
) -> None:
    """One leaf gets more updates than a block can sort, of some edges two: it is inserted, and deleted."""
    rng, n = np.random.default_rng(seed), 2600
    run = run_of("bfs")
    src, dst = rng.integers(2300, 2340, 30_000).astype(np.uint32), rng.integers(0, n, 30_000).astype(np.uint32)
    run.step(Epoch(src, dst, np.ones(30_000, np.uint8), np.ones(30_000, np.float32), n))
    run.step(epoch_of([(Op.INSERT, 0, 1, 1.0), (Op.INSERT, 0, 2310, 1.0)], n))
    for _ in range(2):
        run.step(any_updates(rng, n, 600))
    launched, started_over = len(run.behind), run.started_over
    heads = rng.permutation(n)[:2200].tolist()
    gone = heads[:80]
    run.step(epoch_of([(Op.INSERT, 1, v, 1.0) for v in heads] + [(Op.DELETE, 1, v, 0.0) for v in gone], n))
    device = run.graph.device
    assert device is not None
    assert len(run.behind) == launched + 1 and run.behind[-1] != device.report_number
    assert run.started_over == started_over + 1
    assert run.graph.check() == []
    run.step(any_updates(rng, n, 600))
