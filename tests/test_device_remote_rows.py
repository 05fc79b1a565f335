"""Programs on a device whose rows live on the host in part: what they give with all rows on the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import cuda_emulator
import numpy as np
import pytest
import test_device_components as components
import test_device_counts as counts
import test_device_pagerank as pagerank
import test_device_paths as paths
import test_device_ppr as ppr
from histories import Epoch, deletes, epoch_of, inserts, random_history
from test_cuda_compiles import check_compiles
from test_cuda_compiles import nvrtc as nvrtc
from walk_twins import FEW_THREADS, set_threads

from graphtide.compute.program import Refresh
from graphtide.gpma import vertex_columns
from graphtide.gpma.address_space import reservation_of
from graphtide.gpma.device.calling import DONE
from graphtide.gpma.device.structures import STATE
from graphtide.gpma.edges import EdgeBatch, EdgeList, Op, destinations, sources
from graphtide.gpma.host import slot_memory
from graphtide.gpma.host.slot_memory import SlotMemory
from graphtide.gpma.rows import RowView
from graphtide.partition.graph import Graph
from graphtide.partition.placement import HOST

if TYPE_CHECKING:
    from graphtide.compute.device.kernels import Source

DEVICE = 1


class Splitting:
    """A run of a program on a graph whose rows are on the host or on the device, and move before each epoch."""

    graph: Graph
    n_steps = 0

    def new_graph(self, *, directed: bool, weighted: bool) -> Graph:
        return Graph(directed=directed, weighted=weighted, device=True, host_rows="owned", threads=1)

    def move(self, seed: int) -> None:
        """Have other rows on the host, and new vertices on one of both sides."""
        rng = np.random.default_rng([seed, self.n_steps])
        if self.graph.n_vertices:
            place(self.graph, subset(self.n_steps + seed, self.graph.degrees("out"), rng))
        self.graph.placement.newcomers = int(rng.integers(2))
        self.n_steps += 1


def place(graph: Graph, is_remote: np.ndarray) -> None:
    """Have exactly these rows on the host; bool by vertex."""
    for side in (HOST, DEVICE):
        leaving = (graph.placement.owner != side) & (is_remote == (side == HOST))
        graph.migrate(np.flatnonzero(leaving).astype(np.uint32), side)


def subset(k: int, degrees: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows to be remote, bool by vertex, by ``k``: half, the longest alone, all others, none, all, few."""
    n = degrees.size
    hub = np.arange(n) == np.argmax(degrees)
    return (rng.random(n) < 0.5, hub, ~hub, hub & ~hub, hub | ~hub, rng.random(n) < 0.1)[k % 6]


class PathRun(Splitting, paths.TwinRun):
    pass


class ComponentsRun(Splitting, components.TwinRun):
    pass


class RanksRun(Splitting, pagerank.RanksRun):
    pass


class PprRun(Splitting, ppr.PprRun):
    pass


class CountsRun(Splitting, counts.CountsRun):
    pass


Run = TypeVar("Run", bound=Splitting)
Make = Callable[..., Any]


def runs() -> Iterator[Make]:
    """Makes runs of a class, and closes their graphs."""
    made: list[Any] = []

    def make(kind: type[Run], *given: Any, **how: Any) -> Run:
        made.append(kind(*given, **how))
        return made[-1]  # type: ignore[no-any-return]

    yield make
    for run in made:
        run.graph.close()


@pytest.fixture
def run_of(cupy: ModuleType) -> Iterator[Make]:
    yield from runs()


@pytest.fixture
def emulated_run_of(emulated_cupy: ModuleType) -> Iterator[Make]:
    yield from runs()


def step(run: Any, epoch: Epoch, seed: int) -> Refresh:
    run.move(seed)
    done: Refresh = run.step(epoch)
    return done


@pytest.mark.sample(1, of="directed")
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("kind", ["bfs", "sssp"])
def test_paths_of_any_history(
    run_of: Make, kind: str, directed: bool, seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for own_seed in range(seed, seed + (60 if run_long else 1)):
        rng = np.random.default_rng(own_seed)
        cuda_emulator.seed(own_seed)
        if own_seed % 2:
            paths.tiny(monkeypatch, rng)
        run = run_of(PathRun, kind, directed=directed)
        history = random_history(own_seed, directed=directed, epochs=14, vertex_share=0.1 * (own_seed % 3 > 0))
        for epoch in history.epochs:
            step(run, epoch, own_seed)
        assert run.graph.check() == []


@pytest.mark.parametrize("kind", ["bfs", "sssp", "components"])
def test_small_refreshes_are_one_call_beside_rows_on_the_host(
    emulated_run_of: Make, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like the last one, while the host's array grows and batches change rows of both sides; and another program
    of the epoch finds the report there, and where rows are."""
    from graphtide.compute.device import forest_calls, path_runs
    from graphtide.gpma.device.joining import Joined
    from graphtide.gpma.device.remote import RemoteRows

    cuda_emulator.seed(seed)
    module = forest_calls if kind == "components" else path_runs
    mend, statuses, written = module.mend_again, [], []
    monkeypatch.setattr(module, "mend_again", lambda *given: statuses.append(mend(*given)) or statuses[-1])
    write, join = RemoteRows.write, Joined.of
    monkeypatch.setattr(RemoteRows, "write", lambda *given: written.append("rows") or write(*given))
    monkeypatch.setattr(Joined, "of", lambda *given: written.append("report") or join(*given))
    run = emulated_run_of(ComponentsRun) if kind == "components" else emulated_run_of(PathRun, kind)
    rng, n = np.random.default_rng(seed), 64
    run.step(inserts(np.unique(rng.integers(0, n, (200, 2)), axis=0).tolist(), n))
    place(run.graph, rng.random(n) < 0.5)
    graph = run.graph
    for k in range(12):
        edges = np.unique(rng.integers(0, n, (1 + 4 * k, 2)), axis=0).tolist()
        written.clear()
        run.step(deletes(edges, n) if k % 4 == 3 else inserts(edges, n))
        assert graph.device.remote is not None
        assert written.count("rows") <= 1 and written.count("report") <= 1
        n_before = len(written)
        graph.device.be_ready()
        assert graph.device.states() is graph.device.states() and len(written) == n_before
    assert statuses.count(DONE) >= 6


def test_rows_are_not_read_where_they_were_after_a_want_of_memory(
    emulated_cupy: ModuleType, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which only the in-rows' index knew, when that of the out-rows had a new place."""
    graphs.append(graph := Graph(device=True, host_rows="owned", threads=1))
    graph.apply(EdgeBatch.of([0, 1, 2], [1, 2, 0]), 3)
    place(graph, np.array([True, False, False]))
    graph.apply(EdgeBatch.of([0, 1], [2, 0]), 3)
    device = graph.device
    assert device is not None and device.remote is not None
    device.be_ready()

    def fails(n_vertices: int) -> None:
        raise MemoryError(n_vertices)

    with monkeypatch.context() as patch:
        patch.setattr(device.in_rows, "ensure_vertices", fails)
        with pytest.raises(MemoryError):
            device.ensure_vertices(1000)
    assert device.states().reads_remote
    assert device._joint[0].view(STATE)["rows"] == device.out.kernels.state["rows"]


@pytest.mark.parametrize("directed", [True, False])
def test_components_of_any_history(
    run_of: Make, directed: bool, seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for own_seed in range(seed, seed + (60 if run_long else 1)):
        rng = np.random.default_rng(own_seed)
        cuda_emulator.seed(own_seed)
        if own_seed % 2:
            components.tiny(monkeypatch, rng)
        run = run_of(ComponentsRun, directed=directed, seed=own_seed)
        history = random_history(own_seed, directed=directed, epochs=14, vertex_share=0.1 * (own_seed % 3 > 0))
        for epoch in history.epochs:
            step(run, epoch, own_seed)
        assert run.graph.check() == []


@pytest.mark.sample(1, of="directed")
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("kind", [RanksRun, PprRun, CountsRun])
def test_ranks_and_counts_of_any_history(
    run_of: Make,
    kind: type[Splitting],
    directed: bool,
    seed: int,
    run_long: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_threads(monkeypatch, FEW_THREADS)
    for own_seed in range(seed, seed + (40 if run_long else 1)):
        cuda_emulator.seed(own_seed)
        run = run_of(kind, directed=directed)
        history = random_history(own_seed, directed=directed, epochs=8, vertex_share=0.1 * (own_seed % 3 > 0))
        for epoch in history.epochs:
            step(run, epoch, own_seed)
        assert run.graph.check() == []


def run_of_many_leaves(run: RanksRun, seed: int) -> list[int]:
    """Runs from scratch and after batches, most rows being remote; the edges of each range that is packed at last,
    -1 where it is not."""
    from graphtide.compute.device.packed_rows import RANGE

    rng = np.random.default_rng(seed)
    n = 257 + int(rng.integers(200))
    sparse, dense = rng.integers(0, n, (2000, 2)), rng.integers(n // 2, n // 2 + 9, (60, 2))
    run.step(inserts([*sparse.tolist(), *dense.tolist()], n))
    for share in (0.7, 0.95):
        place(run.graph, rng.random(n) < share)
        run.report = run.program.start(run.graph)
        run.check()
        more = rng.integers(0, n, (60, 2)).tolist()
        run.step(inserts(more, n))
        run.step(deletes(more[::2], n))
    run.report = run.program.start(run.graph)
    run.check()
    packed = run.program._runs._packed_rows.packed
    if packed is None:
        return []
    n_ranges = -(-run.graph.device.remote.n_leaves_in // RANGE)
    return [int(np.int32(np.uint32(int(word) & 0xFFFF_FFFF))) for word in packed.ranges.get()[:n_ranges]]


def pack_in(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let words of packed rows have so many."""
    from graphtide.compute.device import walk_runs

    sources = dict(walk_runs.SOURCES)
    for name in ("passes", "settle"):
        origin = sources[name]
        sources[name] = origin._replace(macros=(*origin.macros, f"-DPACKED_BITS={bits}"))
    monkeypatch.setattr(walk_runs, "SOURCES", sources)


@pytest.mark.sample(among="rows that passes pack")
@pytest.mark.parametrize("bits", [9, 10, 11, 12, 32])
def test_ranks_of_rows_that_passes_pack(
    run_of: Make, bits: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where words have few bits some ranges of leaves cannot be packed, or none: sums are the same bits."""
    set_threads(monkeypatch, FEW_THREADS)
    cuda_emulator.seed(seed)
    pack_in(bits, monkeypatch)
    run = run_of(RanksRun)
    edges = run_of_many_leaves(run, seed)
    assert len(edges) > 4
    runs = run.program._runs
    assert (runs._packed_rows.packed.is_of == run.graph.device.version) == (min(edges) >= 0)
    if bits == 32:
        assert sum(edges) > 0.8 * run.graph.host.in_.n_edges and min(edges) > 0
    elif bits == 9:
        assert max(edges) == -1


def test_rows_that_lie_far_apart_are_packed(run_of: Make, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of a range there are more vertices than a word has bits for."""
    from graphtide.compute.device import packed_rows

    set_threads(monkeypatch, FEW_THREADS)
    cuda_emulator.seed(seed)
    pack_in(13, monkeypatch)
    rng = np.random.default_rng(seed)
    n = 1000
    run = run_of(RanksRun)
    heads = rng.choice(np.array([3, 10, 11, 18, 40, 41, 42, 300, 999]), 2500)
    run.step(inserts(np.stack([rng.integers(0, n, 2500), heads], axis=1).tolist(), n))
    place(run.graph, np.isin(np.arange(n), heads))
    for _ in range(2):  # packed, and as it was packed
        run.report = run.program.start(run.graph)
        run.check()
        packed = run.program._runs._packed_rows.packed
        assert packed.is_of == run.graph.device.version
    words = packed.ranges.get()[: -(-run.graph.device.remote.n_leaves_in // packed_rows.RANGE)]
    assert int((words & np.uint64(0xFFFF_FFFF)).sum()) > run.graph.host.in_.n_edges


def passes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is pushed first."""
    from graphtide.compute.device import pagerank

    monkeypatch.setattr(pagerank, "PUSH_SHARE", 0.0)
    monkeypatch.setattr(pagerank, "PUSH_LEAST", -1)


@pytest.mark.sample(among="rows that passes pack")
@pytest.mark.parametrize("words_an_edit", [6, 40])
@pytest.mark.parametrize("directed", [True, False])
def test_what_passes_packed_is_kept_from_batch_to_batch(
    run_of: Make,
    directed: bool,
    words_an_edit: int,
    seed: int,
    run_long: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While edges come and go, the host's leaves are divided and vertices appear and go: sums are right in every
    bit. Packed anew when there is no room for more edits, those of rows that have moved among them."""
    from graphtide.compute.device import packed_rows

    set_threads(monkeypatch, FEW_THREADS)
    monkeypatch.setattr(packed_rows, "_WORDS_AN_EDIT", words_an_edit)
    kept = anew = 0
    for own_seed in range(seed, seed + (30 if run_long else 1)):
        rng = np.random.default_rng(own_seed)
        cuda_emulator.seed(own_seed)
        run = run_of(RanksRun, directed=directed)
        n = 200 + int(rng.integers(200))
        run.step(inserts(rng.integers(0, n, (3000, 2)).tolist(), n))
        place(run.graph, rng.random(n) < 0.9)
        run.report = run.program.start(run.graph)
        run.check()
        n_moved = 0
        for batch in range(10):
            with monkeypatch.context() as patch:
                if batch % 4 != 2:
                    passes_alone(patch)
                n += int(rng.integers(2))
                size = int(rng.choice([3, 40, 150]))
                ops = rng.integers(0, 2, size)
                src = rng.integers(0, rng.choice([5, n]), size)  # a few rows change much
                edges = list(zip(ops, src, rng.integers(0, n, size), np.ones(size), strict=True))
                gone = [(Op.DELETE_VERTEX, int(rng.integers(n)), 0, 0.0)] if batch == 5 else []
                run.step(epoch_of(edges + gone, n))
            packed = run.program._runs._packed_rows.packed
            if batch % 4 != 2 and run.report.iterations:  # else nobody may have packed anew
                assert packed.is_of == run.graph.device.version
                is_kept = packed.n_edits > 0
                assert n_moved <= packed.edits.size or not is_kept
                assert run.program._runs._packed_rows._n_listed() <= packed.n_edits <= packed.edits.size
                kept, anew = kept + is_kept, anew + (not is_kept)
            n_moved = 0
            if batch == 7:
                owner = run.graph.placement.owner.copy()
                place(run.graph, rng.random(n) < 0.8)
                n_moved = int(run.graph.degrees("in")[run.graph.placement.owner != owner].sum())
        before = run.program._runs._packed_rows.packed.is_of == run.graph.device.version
        run.step(epoch_of([], n))  # of nothing
        assert (run.program._runs._packed_rows.packed.is_of == run.graph.device.version) == before
        assert run.graph.check() == []
    assert anew and (kept or words_an_edit > 6)


def test_only_edges_of_rows_on_the_host_take_room_among_edits(
    run_of: Make, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that little is packed anew where most batches are about other rows."""
    from graphtide.compute.device import packed_rows

    set_threads(monkeypatch, FEW_THREADS)
    cuda_emulator.seed(seed)
    passes_alone(monkeypatch)
    monkeypatch.setattr(packed_rows, "_WORDS_AN_EDIT", 12)
    rng = np.random.default_rng(seed)
    n = 300
    run = run_of(RanksRun)
    run.step(inserts(rng.integers(0, n, (3000, 2)).tolist(), n))
    place(run.graph, np.arange(n) < 30)
    run.report = run.program.start(run.graph)
    packed = run.program._runs._packed_rows.packed
    before = run.graph.n_arcs
    while run.graph.n_arcs - before <= 2 * packed.edits.size:
        run.step(inserts(rng.integers(0, n, (packed.edits.size // 3, 2)).tolist(), n))
        assert packed.is_of == run.graph.device.version and packed.n_edits, "packed anew"
        assert run.program._runs._packed_rows._n_listed() <= packed.n_edits
        run.check()


@pytest.mark.sample(among="rows that passes pack")
@pytest.mark.parametrize("directed", [True, False])
def test_what_was_packed_follows_rows_that_change_sides(
    run_of: Make, directed: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two batches; what moves before the program has heard of one is packed anew."""
    set_threads(monkeypatch, FEW_THREADS)
    cuda_emulator.seed(seed)
    passes_alone(monkeypatch)
    rng = np.random.default_rng(seed)
    n = 300
    run = run_of(RanksRun, directed=directed)
    run.step(inserts(rng.integers(0, n, (6000, 2)).tolist(), n))
    place(run.graph, rng.random(n) < 0.8)
    run.report = run.program.start(run.graph)
    listed = 0
    for k in range(5):
        for side in (HOST, DEVICE):
            there = np.flatnonzero(run.graph.placement.owner != side).astype(np.uint32)
            run.graph.migrate(rng.permutation(there)[:3], side)
        more = run.program._runs._packed_rows._n_listed()
        keys = rng.choice(run.graph.export().keys, 5)
        there = list(zip(sources(keys).tolist(), destinations(keys).tolist(), strict=True))
        run.step(inserts([(k, 7 * k + v) for v in range(6)], n) if k % 2 else deletes(there, n))
        more = run.program._runs._packed_rows._n_listed() - more
        listed += more > 0
        assert run.program._runs._packed_rows.packed.is_of == run.graph.device.version
    assert listed >= 3
    late = inserts(rng.integers(0, n, (20, 2)).tolist(), n)
    before = run.graph.device.version
    run.graph.migrate(np.arange(7, dtype=np.uint32), HOST)
    run.graph.apply(late.batch(weighted=run.graph.weighted), n, late.vertex_ops())
    assert run.graph.device.moved_since(before) is not None
    run.graph.migrate(np.arange(9, dtype=np.uint32), DEVICE)
    assert run.graph.device.moved_since(before) is None
    run.report = run.program.start(run.graph)
    assert run.program._runs._packed_rows.packed.n_edits == 0
    run.check()


def without_heads(edges: np.ndarray, heads: list[int]) -> list[list[int]]:
    """Edges but those that lead there: what is inserted later and was there already would change nothing."""
    return edges[~np.isin(edges[:, 1], heads)].tolist()


def test_a_pass_over_packed_rows_reads_half_of_what_they_take(
    run_of: Make, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its first one on, where an earlier run has packed them."""
    from graphtide.compute.device import pagerank as pagerank_of_device

    set_threads(monkeypatch, FEW_THREADS)
    cuda_emulator.seed(seed)
    passes_alone(monkeypatch)
    monkeypatch.setattr(pagerank_of_device, "DUE_SHARE", 0.0)  # nor at the end
    rng = np.random.default_rng(seed)
    run = run_of(RanksRun)
    run.step(inserts(without_heads(rng.integers(0, 300, (6000, 2)), [7, 8]), 300))
    place(run.graph, np.ones(300, np.bool_))
    read = []
    for vertex in range(3):
        run.step(inserts([(vertex, 7), (vertex, 8)], 300))
        read.append(run.report.reads.bus_bytes / run.report.iterations)
    assert max(read[1:]) < read[0]
    n_ranges = run.program._runs._calls.job["n_packed"]
    assert max(read[1:]) <= 4 * run.graph.n_arcs + 128 * (n_ranges + 10)


def keep_at_most(run: RanksRun, n_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of packed rows on the device, which is asked for that before each run's passes."""
    from graphtide.compute.device import packed_rows

    def free_bytes() -> int:
        packed = run.program._runs._packed_rows.packed
        return n_bytes - (0 if packed is None else packed.cache.nbytes)

    monkeypatch.setattr(packed_rows, "ASKED_EVERY_S", -1.0)
    monkeypatch.setattr(packed_rows, "CACHE_SHARE", 1.0)
    monkeypatch.setattr(packed_rows, "free_bytes", free_bytes)


@pytest.mark.sample(among="rows that passes pack")
@pytest.mark.parametrize("room", [0.0, 0.3, 2.0])
def test_packed_rows_that_passes_read_are_kept_on_the_device(
    run_of: Make, room: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as it has memory; sums are the same bits."""
    from graphtide.compute.device import pagerank as pagerank_of_device

    set_threads(monkeypatch, FEW_THREADS)
    cuda_emulator.seed(seed)
    passes_alone(monkeypatch)
    monkeypatch.setattr(pagerank_of_device, "DUE_SHARE", 0.0)
    rng, n = np.random.default_rng(seed), 300
    run = run_of(RanksRun)
    run.step(inserts(without_heads(rng.integers(0, n, (6000, 2)), [7, 8]), n))
    place(run.graph, np.ones(n, np.bool_))
    all_bytes = 4 * run.graph.n_arcs
    keep_at_most(run, int(room * all_bytes), monkeypatch)
    read = []
    for vertex in range(4):
        run.step(inserts([(vertex, 7), (vertex, 8)], n))
        read.append(run.report.reads.bus_bytes / run.report.iterations)
    if room == 0:
        assert min(read) >= 0.9 * all_bytes
    elif room < 1:
        assert (1 - room) * 0.9 * all_bytes <= min(read[2:]) <= max(read[2:]) <= (1 - room / 2) * 1.2 * all_bytes
    else:
        assert max(read[2:]) <= 0.1 * all_bytes
    place(run.graph, rng.random(n) < 0.9)
    for _ in range(4):
        run.step(inserts(rng.integers(0, n, (40, 2)).tolist(), n))
        run.step(deletes(rng.integers(0, n, (40, 2)).tolist(), n))


def test_packed_rows_on_the_device_go_for_others(
    emulated_run_of: Make, emulated_cupy: ModuleType, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads them on the host then, and keeps some again when there is memory."""
    from graphtide.gpma.device.state import allocate

    set_threads(monkeypatch, FEW_THREADS)
    cuda_emulator.seed(seed)
    passes_alone(monkeypatch)
    rng, n = np.random.default_rng(seed), 300
    run = emulated_run_of(RanksRun)
    run.step(inserts(rng.integers(0, n, (6000, 2)).tolist(), n))
    place(run.graph, np.ones(n, np.bool_))
    keep_at_most(run, 8 * run.graph.n_arcs, monkeypatch)
    pool = emulated_cupy.get_default_memory_pool()
    for batch in range(6):
        run.step(inserts(rng.integers(0, n, (3, 2)).tolist(), n))
        packed = run.program._runs._packed_rows.packed
        assert packed.is_of == run.graph.device.version and packed.cache.array is not None
        if batch % 2:
            pool.set_limit(pool.used_bytes())
            try:
                assert allocate(packed.cache.nbytes // 2, np.uint8).size
            finally:
                pool.set_limit(0)
            assert packed.cache.array is None and packed.cache.nbytes == 0
    assert packed._share < 0.7, "less the next time"


def test_what_was_packed_is_void_for_a_graph_that_is_loaded(
    run_of: Make, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for a batch that the program did not hear of."""
    set_threads(monkeypatch, FEW_THREADS)
    cuda_emulator.seed(seed)
    rng = np.random.default_rng(seed)
    run = run_of(RanksRun)
    run.step(inserts(rng.integers(0, 200, (2000, 2)).tolist(), 200))
    place(run.graph, rng.random(200) < 0.9)
    run.report = run.program.start(run.graph)
    for change in ("batch", "load"):
        packed = run.program._runs._packed_rows.packed
        assert packed.is_of == run.graph.device.version
        if change == "batch":
            epoch = inserts(rng.integers(0, 200, (100, 2)).tolist(), 200)
            run.graph.apply(epoch.batch(weighted=run.graph.weighted), 200, epoch.vertex_ops())
        else:
            edges = run.graph.export()
            some = np.flatnonzero(rng.random(edges.keys.size) < 0.7)
            run.graph.load(EdgeList(edges.keys[some], edges.weights[some]), 200)
        assert packed.is_of != run.graph.device.version
        run.report = run.program.start(run.graph)
        run.check()


@pytest.mark.sample(among="rows that passes pack")
@pytest.mark.parametrize("refusal", ["allows", "pinned", "device"])
def test_ranks_without_memory_to_pack_rows(
    emulated_run_of: Make, refusal: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.compute.device import packed_rows

    def none(*given: Any) -> Any:
        raise MemoryError("there is none")

    allocate = packed_rows.allocate
    if refusal == "allows":
        monkeypatch.setattr(packed_rows.Memory, "allows", lambda memory, n_bytes: False)
    elif refusal == "pinned":
        monkeypatch.setattr(packed_rows, "pinned_by_itself", none)
    else:
        refused = lambda n, dtype: (none if dtype is np.uint64 else allocate)(n, dtype)  # noqa: E731
        monkeypatch.setattr(packed_rows, "allocate", refused)
    set_threads(monkeypatch, FEW_THREADS)
    cuda_emulator.seed(seed)
    assert run_of_many_leaves(emulated_run_of(RanksRun), seed) == []


@pytest.mark.sample(among="rows that passes pack")
def test_memory_of_packed_rows_is_given_back(
    emulated_run_of: Make, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the host gets short of it, and when no rows are remote any more."""
    from graphtide.compute.device import packed_rows

    set_threads(monkeypatch, FEW_THREADS)
    monkeypatch.setattr(packed_rows, "ASKED_EVERY_S", -1.0)
    cuda_emulator.seed(seed)
    run = emulated_run_of(RanksRun)
    asked = list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(packed_rows.Memory, "allows", lambda memory, n_bytes: not asked.append(n_bytes))
        assert run_of_many_leaves(run, seed)
    runs = run.program._runs
    first = weakref.ref(runs._packed_rows.packed.words)
    assert max(asked) >= 2 * first().nbytes, "as much is left to the host's rows as is taken"

    def start() -> None:
        run.report = run.program.start(run.graph)
        run.check()

    with monkeypatch.context() as patch:
        patch.setattr(packed_rows.Memory, "allows", lambda memory, n_bytes: False)
        patch.setattr(packed_rows, "ASKED_EVERY_S", 3600.0)
        start()
        assert runs._packed_rows.packed is not None, "it has just been asked"
        patch.setattr(packed_rows, "ASKED_EVERY_S", -1.0)
        start()
    assert runs._packed_rows.packed is None and first() is None and runs._calls.job["packed"] == 0
    start()
    second = weakref.ref(runs._packed_rows.packed.words)
    place(run.graph, np.zeros(run.graph.n_vertices, np.bool_))
    start()
    assert runs._packed_rows.packed is None and second() is None


# -- which rows are remote ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_marks_are_on_the_device_as_vertices_come(
    cupy: ModuleType, graphs: list[Graph], seed: int, share: float
) -> None:
    graph = Graph(device=True, host_rows="owned", threads=1)
    graphs.append(graph)
    side = graph.device
    assert side is not None
    rng = np.random.default_rng(seed)
    marked = np.zeros(0, np.bool_)
    for n in (1, 31, 33, 500, 3000, 3001):
        side.ensure_vertices(n)
        marked = np.append(marked, np.zeros(n - marked.size, np.bool_))
        for is_remote in (True, True, False):
            some = np.flatnonzero(rng.random(n) < share).astype(np.uint32)
            side.set_remote(rng.permutation(some), is_remote)
            marked[some] = is_remote
            remote = side._remote
            assert remote is not None and remote.n_rows == np.count_nonzero(marked)
            words = remote._bits.get(stream=side.stream)  # which others do not wait for
            bits = np.unpackbits(words.view(np.uint8), bitorder="little")
            assert np.array_equal(bits[:n], marked) and not bits[n:].any()
    with pytest.raises(IndexError):
        side.set_remote(np.array([1 << 20], np.uint32), True)


def test_rows_without_edges_make_nothing_remote(emulated_run_of: Make) -> None:
    run = emulated_run_of(PathRun, "bfs")
    graph = run.graph
    side = graph.device
    run.step(inserts([(0, 1), (1, 2), (2, 0)], 5))
    assert side.remote is None and side.n_arcs == 3
    place(graph, np.array([False, False, False, True, True]))
    assert side.remote is None and not graph.host.out.n_edges
    place(graph, np.array([True, False, False, True, True]))
    assert side.remote is not None and side.n_arcs == 3 and side.out.n_edges == 2
    assert side.remote.registered_bytes == 0, "no program has run yet"
    run.step(inserts([(0, 3)], 5))
    assert side.remote.registered_bytes > 0
    side.read_remote(None)
    assert side.remote is None and not cuda_emulator.registered()


@pytest.mark.parametrize("has_address_space", [True, False])
def test_graphs_in_one_process_share_no_registered_page(
    emulated_run_of: Make, has_address_space: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their small columns lie side by side in memory."""
    if not has_address_space:
        for module in (slot_memory, vertex_columns):
            monkeypatch.setattr(module, "reserve", lambda n_bytes: None)
    several = [emulated_run_of(PathRun, "bfs") for _ in range(3)]
    for epoch in random_history(seed, directed=True, epochs=4).epochs:
        for run in several:
            step(run, epoch, seed)
            place(run.graph, np.ones(run.graph.n_vertices, np.bool_))
            run.twin.start(run.graph)
            run.check()
    assert bool(cuda_emulator.registered()) == has_address_space


# -- arrays that grow and shrink ----------------------------------------------------------------------------------


class Pages:
    """Watches that kernels read what is registered alone, and that no page goes while it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from graphtide.partition.device_side import DeviceSide

        self.gone = self.launched = 0
        states: Any = DeviceSide.states
        release, give_back = SlotMemory.release, SlotMemory.give_back

        def states_of_registered(device: Any) -> Any:
            """Asked for before each launch."""
            found = states(device)
            if device.remote is not None:
                for array in device.remote._arrays:
                    parts = [part for part in live(array.view()) if reservation_of(part) is not None]
                    assert parts and not any(map(self.is_outside, parts))
                self.launched += 1
            return found

        def go(memory: SlotMemory, first: int, last: int) -> None:
            for opens, end in memory.pages(first, last):
                for piece, piece_end in cuda_emulator.registered():
                    assert opens >= end or opens >= piece_end or piece >= end, "pages go that are registered"
                self.gone += opens < end

        def watched_release(memory: SlotMemory, n_leaves: int, before: int) -> None:
            go(memory, n_leaves, before)
            release(memory, n_leaves, before)

        def watched_give_back(memory: SlotMemory, first: int, last: int) -> bool:
            go(memory, first, last)
            return give_back(memory, first, last)

        monkeypatch.setattr(DeviceSide, "states", states_of_registered)
        monkeypatch.setattr(SlotMemory, "release", watched_release)
        monkeypatch.setattr(SlotMemory, "give_back", watched_give_back)
        monkeypatch.setattr(slot_memory, "_PIECE_LEAVES", 1)

    @staticmethod
    def is_outside(part: np.ndarray) -> bool:
        """Whether kernels may not read all of this."""
        opens, end = part.ctypes.data, part.ctypes.data + part.nbytes
        for piece, piece_end in cuda_emulator.registered():
            if piece <= opens < piece_end:
                opens = piece_end
        return opens < end


def live(rows: RowView) -> list[np.ndarray]:
    """The parts of columns that may be read."""
    leaves = slice(0, rows.stretch_begin), slice(rows.stretch_end, rows.counts.size)
    slots = [slice(part.start << rows.leaf_shift, part.stop << rows.leaf_shift) for part in leaves]
    by_leaf = [(rows.counts, leaves), (rows.keys, slots), (rows.weights, slots)]
    return [rows.row_leaf, rows.degrees, *(column[part] for column, parts in by_leaf for part in parts)]


@pytest.mark.sample(among="rows that passes pack")
@pytest.mark.parametrize("family", ["bfs", "components", "pagerank"])
def test_while_the_host_s_array_grows_and_shrinks(
    emulated_run_of: Make, family: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.compute.device import forest_runs, path_runs, push_runs
    from graphtide.gpma.device import constants

    cuda_emulator.seed(seed)
    set_threads(monkeypatch, FEW_THREADS)
    pages = Pages(monkeypatch)
    for module in (constants, path_runs, forest_runs, push_runs):
        monkeypatch.setattr(module, "LONG_ROW", 12)  # some are, some are not
    if family == "pagerank":
        run = emulated_run_of(RanksRun, tolerance=0.1)
    else:
        run = emulated_run_of(ComponentsRun) if family == "components" else emulated_run_of(PathRun, family)
    program = run.program if family == "pagerank" else run.twin

    def step(epoch: Epoch) -> bool:
        """Whether a stretch lies amid the host's leaves now; then from scratch, too."""
        run.step(epoch)
        rows = array.view()
        if not 0 < rows.stretch_begin < rows.stretch_end < rows.counts.size:
            return False
        run.report = program.start(run.graph)
        run.check()
        return True

    array, n = run.graph.host.out, 300
    few = 40 if family == "pagerank" else 15  # updates of a step, so that it takes several
    rng = np.random.default_rng(seed)
    edges = rng.permutation(np.unique(rng.integers(0, n, (9000, 2)), axis=0))
    at = 4500
    # The last row is long, and none comes behind it.
    run.step(inserts([*edges[:at].tolist(), *((n, v) for v in range(150)), (0, n)], n + 1))
    place(run.graph, np.append(rng.random(n) < 0.7, True))
    n_amid = 0
    while not n_amid or array.migrating:
        more = few if array.migrating else 250
        n_amid += step(inserts(edges[at : at + more].tolist(), n + 1))
        at += more
    n_amid = 0
    while not n_amid or array.migrating or not pages.gone:
        fewer = 250 if array.n_edges > 0.52 * array.view().keys.size else few
        n_amid += step(deletes(edges[at - fewer : at].tolist(), n + 1))
        at -= fewer
    run.step(inserts(edges[at : at + 30].tolist(), n + 1))
    run.step(deletes(edges[100:at].tolist(), n + 1))  # so few are left that they move to fewer leaves at once
    assert pages.launched > 10
    assert run.graph.check() == []


# -- kernels ------------------------------------------------------------------------------------------------------


# What takes longest to compile, and reads rows as others do.
LARGE = "mend_forest.cu", "mend.cu", "span.cu"


def origins(run_long: bool) -> Iterator[tuple[Source, str, bool]]:
    """(source, what stands before it, weighted) of kernels of programs."""
    from graphtide.compute.device import (
        cdlp_runs,
        count_runs,
        forest_runs,
        path_runs,
        ppr_runs,
        push_runs,
        tally_runs,
        walk_runs,
    )
    from graphtide.compute.device.functor import cuda_text

    for kind in ("bfs", "sssp"):
        form = paths.KINDS[kind]("x", (0,)).form
        for name in path_runs.kernels_of(weighted=form.weighted):
            origin = path_runs.SOURCES[name]
            if run_long or origin.file not in LARGE:
                yield origin, cuda_text(form), form.weighted
    sources = (forest_runs.SOURCES, walk_runs.SOURCES, ppr_runs.SOURCES, tally_runs.SOURCES)
    others = [origin for known in sources for origin in known.values()]
    for origin in (*others, push_runs.SOURCE, *count_runs.SOURCES.values(), cdlp_runs.SOURCE):
        if run_long or origin.file not in LARGE:
            yield origin, "", False


@pytest.mark.long
def test_kernels_compile_without_warnings(nvrtc: object, seed: int, run_long: bool) -> None:
    from graphtide.compute.device.kernels import REMOTE

    every = [*origins(run_long)]
    chosen = np.random.default_rng(seed).choice(len(every), len(every) if run_long else 2, replace=False)
    for origin, head, weighted in (every[which] for which in chosen):
        check_compiles(nvrtc, origin, "sm_90", weighted=weighted, head=head, more=REMOTE)


def test_what_is_marked_of_each_vertex_counts_as_memory(emulated_cupy: ModuleType) -> None:
    """Of a million vertices a bit and a class, besides their rows."""
    n = 1_000_000
    held = []
    for host_rows in ("all", "owned"):
        graph = Graph(device=True, host_rows=host_rows, threads=1)
        try:
            graph.apply(EdgeBatch.of([0], [n - 1]), n)
            assert graph.device is not None
            held.append(graph.device.memory_bytes()["rows"])
        finally:
            graph.close()
    assert held[1] - held[0] >= n + n // 8
