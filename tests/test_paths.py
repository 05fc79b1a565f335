"""Path programs, built-in and a user's: every epoch against a fresh run, a naive oracle, and the audit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import networkx as nx
import numpy as np
import pytest
from histories import (
    Epoch,
    History,
    deletes,
    epoch_of,
    failing,
    inserts,
    random_history,
    real_history,
    rmat_edges,
    rmat_history,
    small_histories,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import best_values
from own_programs import Fading, Reached, Within
from path_runs import Invalidated, PathRun, epochs_of
from sampling import examples
from written_records import assert_written_records_hold

from graphtide.compute import pieces
from graphtide.compute.paths import form as path_form
from graphtide.compute.paths import loss as path_loss
from graphtide.compute.paths import mend as path_mend
from graphtide.compute.paths import program as module
from graphtide.compute.paths import search as path_search
from graphtide.compute.paths import spread as path_spread
from graphtide.compute.paths import wide as path_wide
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.paths.form import Functors
from graphtide.compute.paths.mend import UNREACHED
from graphtide.compute.paths.program import PathProgram
from graphtide.compute.paths.sssp import SSSP
from graphtide.compute.paths.sswp import SSWP
from graphtide.compute.program import Published
from graphtide.gpma.edges import NO_VERTEX, Op
from graphtide.partition.graph import Graph

INFINITY = np.float32(np.inf)


class Signed(PathProgram):
    """Everything reached is zero, heavy edges making it a negative one."""

    kind: ClassVar[str] = "test-signed"
    needs_weights: ClassVar[bool] = True
    weight_domains: ClassVar[tuple[str, ...]] = ("non-negative",)
    value = np.float32
    at_source = -0.0

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        def gather(value, weight):  # type: ignore[no-untyped-def]
            return -value * weight if weight > 5 else value * weight

        def better(new, old):  # type: ignore[no-untyped-def]
            return new > old

        return Functors(gather, better)


class Budget(PathProgram):
    """Shortest paths, as far as they are no longer than 4."""

    kind: ClassVar[str] = "test-budget"
    needs_weights: ClassVar[bool] = True
    weight_domains: ClassVar[tuple[str, ...]] = ("non-negative",)
    value = np.float32
    at_source = 0.0

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        def gather(far, weight):  # type: ignore[no-untyped-def]
            return far + weight if far + weight <= 4 else np.nan

        def better(new, old):  # type: ignore[no-untyped-def]
            return new < old

        return Functors(gather, better)


@dataclass(frozen=True)
class Case:
    """A program, and what it should compute, said again in other words."""

    make: Callable[[str, tuple[int, ...]], PathProgram]
    gather: Callable[[Any, Any], Any]
    better: Callable[[Any, Any], bool]
    at_source: Any


CASES = {
    "bfs": Case(BFS, lambda hops, _: hops + 1, lambda a, b: a < b, np.uint32(0)),
    "sssp": Case(SSSP, lambda far, weight: far + weight, lambda a, b: a < b, np.float32(0)),
    "sswp": Case(SSWP, lambda wide, weight: min(wide, weight), lambda a, b: a > b, INFINITY),
    "within": Case(
        lambda id, sources: Within(id, sources, hops=3),
        lambda hops, _: hops + 1 if hops < 3 else None,
        lambda a, b: a < b,
        np.uint32(0),
    ),
    "reached": Case(Reached, lambda value, _: value, lambda a, b: a < b, np.uint32(7)),
    "fading": Case(
        Fading,
        lambda wide, weight: np.float32(min(wide, weight)) * np.float32(0.9),
        lambda a, b: a > b,
        np.float32(1000),
    ),
}
every_case = pytest.mark.parametrize("name", list(CASES))
weighted_cases = pytest.mark.parametrize("name", ["sssp", "sswp", "fading"])
both_ways = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
on_both_homes = pytest.mark.usefixtures("home")


class Run(PathRun):
    """A program on a weighted graph, moved epoch by epoch."""

    def __init__(
        self, name: str, directed: bool, sources: tuple[int, ...] = (0,), threads: int | None = None
    ) -> None:
        self.case = CASES[name]
        super().__init__(self.case.make, directed, sources, weighted=True, threads=threads)

    @property
    def bits(self) -> list[int]:
        return self.results(self.program)

    def expected(self) -> list[int]:
        case, arcs, n = self.case, self.edges.arcs(), self.edges.n_vertices
        best = best_values(arcs, n, self.known_sources(), case.at_source, case.gather, case.better)
        return [int(NO_VERTEX) if value is None else int(value.view(np.uint32)) for value in best]

    def values(self) -> list[float | None]:
        published = Published(self.program.columns(), {}, self.graph.n_vertices)
        answer = type(self.program).read(published, np.arange(self.graph.n_vertices, dtype=np.uint32))
        pairs = zip(answer.values.tolist(), answer.null.tolist(), strict=True)
        return [None if null else value for value, null in pairs]


# -- histories ------------------------------------------------------------------------------------------------


@every_case
@settings(deadline=None, max_examples=examples(40))
@given(history=small_histories(), sources=st.sets(st.integers(0, 9), min_size=1, max_size=3))
def test_any_history(name: str, history: History, sources: set[int]) -> None:
    run = Run(name, history.directed, tuple(sources))
    for _ in epochs_of(history, run):
        run.check_against_oracle()


@pytest.mark.sample(2)
@every_case
@pytest.mark.parametrize("home", ["device"], indirect=True)
@settings(deadline=None, max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=small_histories(), sources=st.sets(st.integers(0, 9), min_size=1, max_size=3))
def test_any_history_on_a_device(home: str, name: str, history: History, sources: set[int]) -> None:
    run = Run(name, history.directed, tuple(sources))
    for _ in epochs_of(history, run):
        run.check_against_oracle()


@pytest.mark.sample(6)
@on_both_homes
@every_case
@both_ways
@pytest.mark.parametrize("seed", range(3))
def test_long_histories(name: str, directed: bool, seed: int) -> None:
    run = Run(name, directed)
    for _ in epochs_of(random_history(seed, directed=directed), run):
        pass
    run.check_against_oracle()


@pytest.mark.sample(3)
@on_both_homes
@every_case
@both_ways
def test_rmat_histories(name: str, directed: bool) -> None:
    history = rmat_history(3, directed=directed)
    run = Run(name, directed, (int(np.bincount(history.epochs[0].src).argmax()),))
    for _ in epochs_of(history, run):
        pass
    run.check_against_oracle()


@pytest.mark.sample(1, of="name")
@on_both_homes
@weighted_cases
def test_real_deletions(name: str) -> None:
    """Real edges come and go; their weights are drawn, so that many are overwritten."""
    rng = np.random.default_rng(1)
    run = Run(name, directed=False)
    for epoch in real_history("as733-21days", directed=False, updates=300, events_max=20_000).epochs:
        weights = rng.integers(0, 8, len(epoch)).astype(np.float32)
        run.step(Epoch(epoch.src, epoch.dst, epoch.ops, weights, epoch.n_vertices))
        run.check()


@on_both_homes
def test_distances_are_networkx() -> None:
    rng = np.random.default_rng(2)
    run = Run("sssp", directed=True)
    n = 300
    for _ in range(8):
        pairs = rng.integers(0, n, (400, 2))
        ops = np.where(rng.random(400) < 0.8, Op.INSERT, Op.DELETE)
        weights = rng.integers(0, 20, 400)
        updates = zip(ops.tolist(), pairs[:, 0].tolist(), pairs[:, 1].tolist(), weights.tolist(), strict=True)
        run.step(epoch_of(list(updates), n))
        graph = nx.DiGraph()
        graph.add_nodes_from(range(n))
        graph.add_weighted_edges_from(run.edges.arcs())
        expected = nx.single_source_dijkstra_path_length(graph, 0)
        assert run.values() == [expected.get(v) for v in range(n)]


def test_an_epoch_may_improve_a_vertex_many_times() -> None:
    """More edges that improve their heads than there are vertices; no memory past the heap is written."""
    near, far, guard = range(1, 33), range(33, 64), np.uint64(0xABCD)
    run = Run("sssp", directed=True)
    run.step(weighted([(0, v, 1.0 if v in near else 1e6) for v in range(1, 64)], 64))
    improving = [(u, v, 1000.0 - u) for u in near for v in far]
    held = np.full(4096, guard)
    entries = run.program._entries = held[: 64 + 1 + len(improving)]  # vertices, sources, edges
    run.program._hold(run.graph.crew)
    run.step(weighted(improving, 64))
    run.check()
    assert run.program._entries is entries
    assert (held[entries.size :] == guard).all()


# -- weights --------------------------------------------------------------------------------------------------


def weighted(edges: list[tuple[int, int, float]], n: int) -> Epoch:
    return epoch_of([(Op.INSERT, u, v, weight) for u, v, weight in edges], n)


@on_both_homes
def test_absorbed_sums_support_nothing_in_a_circle() -> None:
    """1e8 + 1 = 1e8 in float32: 1, 2 and 3 have one value, and must not keep it for each other."""
    run = Run("sssp", directed=True)
    run.step(weighted([(0, 1, 1e8), (1, 2, 1), (2, 3, 1), (3, 1, 1), (0, 3, 2e8)], 4))
    assert run.values() == [0, 1e8, 1e8, 1e8]
    run.step(deletes([(0, 1)], 4))
    run.check()
    assert run.values() == [0, 2e8, 2e8, 2e8]
    run.step(deletes([(0, 3)], 4))
    assert run.values() == [0, None, None, None]


@on_both_homes
def test_a_plateau_of_zeros_is_cut_off() -> None:
    n = 50
    ring = [(v, v % (n - 1) + 1, 0.0) for v in range(1, n)]
    run = Run("sssp", directed=False)
    run.step(weighted([(0, 1, 3.0), (0, 7, 3.0), *ring], n))
    run.step(deletes([(0, 1)], n))
    run.check()
    assert run.values() == [0.0, *[3.0] * (n - 1)]
    run.step(deletes([(0, 7)], n))
    run.check()
    assert run.values() == [0.0, *[None] * (n - 1)]


@pytest.mark.sample(among="a user's path program")
@on_both_homes
def test_a_zero_has_one_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither sign is better: the first to come would stay, and a fresh start may meet the other first."""
    monkeypatch.setitem(CASES, "signed", Case(Signed, max, max, None))
    run = Run("signed", directed=True)
    run.step(weighted([(0, 1, 1.0), (1, 2, 1.0), (3, 4, 7.0), (4, 5, 7.0)], 6))
    run.step(weighted([(0, 2, 7.0), (0, 3, 7.0)], 6))
    run.check()
    assert run.bits == [0] * 6
    run.step(deletes([(1, 2), (0, 3)], 6))
    run.check()
    assert run.bits == [0, 0, 0, *[int(NO_VERTEX)] * 3]


@on_both_homes
def test_a_sum_that_overflows_is_a_distance() -> None:
    most = float(np.finfo(np.float32).max)
    run = Run("sssp", directed=True)
    run.step(weighted([(0, 1, most), (1, 2, most), (2, 3, 1.0)], 5))
    assert run.values() == [0, most, np.inf, np.inf, None]
    run.check()
    run.check_against_oracle()
    run.step(deletes([(1, 2)], 5))
    assert run.values() == [0, most, None, None, None]


def test_a_plateau_keeps_its_values_where_it_has_other_support() -> None:
    """1 hands its width on to many. Another of that width offers it, not below it: nothing below 1 is read."""
    many = range(10, 200)
    run = Run("sswp", directed=True)
    run.step(weighted([(0, 1, 5.0), (0, 2, 5.0), (2, 3, 5.0), (3, 1, 9.0), *[(1, v, 7.0) for v in many]], 200))
    before = run.values()
    refresh = run.step(deletes([(0, 1)], 200))
    run.check()
    assert run.values() == before and refresh.changed["word"].tolist() == [1] and refresh.edges_read < 10
    # 3 is below 2 now, and 1 below 3: nobody on the plateau is left but those that lost.
    run.step(deletes([(0, 2)], 200))
    run.check()
    assert run.values() == [np.inf, *[None] * 199]


@pytest.mark.parametrize(
    ("name", "weights"), [("sssp", (2.0, 3.0, 0.0, 0.0, 5.0)), ("sswp", (9.0, 5.0, 7.0, 9.0, 5.0))]
)
def test_an_equal_offer_from_below_hides_no_other(name: str, weights: tuple[float, ...]) -> None:
    """2 is offered its value by 3, which depends on it, and then by 4, which is seen: nothing below 2 is read."""
    first, second, circle, beside, other = weights
    edges = [(0, 1, first), (1, 2, second), (2, 3, circle), (3, 2, circle), (0, 4, beside)]
    run = Run(name, directed=True)
    run.step(weighted([*edges, *[(2, v, 7.0) for v in range(10, 200)]], 200))
    run.step(weighted([(4, 2, other)], 200))
    before = run.values()
    refresh = run.step(deletes([(1, 2)], 200))
    run.check()
    assert run.values() == before and refresh.changed["word"].tolist() == [2] and refresh.edges_read < 10


@pytest.mark.sample(among="a user's path program")
def test_what_no_source_would_offer_nobody_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges too long even from a source, and sources that come and go."""
    shorter = CASES["sssp"]

    def gather(far: Any, weight: Any) -> Any:
        return shorter.gather(far, weight) if shorter.gather(far, weight) <= 4 else None

    monkeypatch.setitem(CASES, "budget", Case(Budget, gather, shorter.better, shorter.at_source))
    for directed in (True, False):
        run = Run("budget", directed)
        history = random_history(seed, directed=directed, vertices=30, epochs=24)
        for k, epoch in enumerate(history.epochs):
            run.sources = [(0, 3, 7), (3,), (7, 29), (0,)][k // 3 % 4]
            run.step(epoch)
            run.check()
            run.check_against_oracle()


@on_both_homes
def test_equals_that_lose_support_together_do_not_support_each_other() -> None:
    for name in ("sswp", "sssp"):
        weight = 5.0 if name == "sswp" else 0.0
        run = Run(name, directed=True)
        run.step(weighted([(0, 1, 5.0), (0, 2, 5.0), (1, 2, weight), (2, 1, weight), (1, 1, weight)], 4))
        run.step(deletes([(0, 1), (0, 2)], 4))
        run.check()
        assert run.values()[1:] == [None] * 3


@on_both_homes
def test_equals_far_along_a_plateau_are_given_up() -> None:
    """Following parents has an end; the values are the same without."""
    n = 3 * path_loss._STEPS
    run = Run("sswp", directed=True)
    chain = [(v, v + 1, 5.0) for v in range(2, n - 1)]
    run.step(weighted([(0, 1, 5.0), (0, 2, 5.0), *chain, (n - 1, 1, 5.0)], n))
    before = run.values()
    run.step(deletes([(0, 1)], n))
    run.check()
    assert run.values() == before


@pytest.mark.parametrize("name", ["bfs", "sssp"])
def test_work_space_for_a_large_change_is_given_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is written down for kernels keeps none of it until there is another change."""
    monkeypatch.setattr(module, "_FOUND", 8)
    run = Run(name, directed=True)
    for _ in epochs_of(random_history(1, directed=True, vertices=30), run):
        record = run.program._held.record
        assert record.found.size == run.program._found.size == 8


def test_more_threads_take_no_more_memory_for_each_vertex() -> None:
    def bytes_of(n: int, threads: int) -> int:
        return sum(array.nbytes for array in path_loss.new_loss(n, threads))

    few, many = (bytes_of(1 << 16, threads) - bytes_of(0, threads) for threads in (2, 64))
    assert many <= few


@every_case
def test_inner_edges_without_room_are_pushed_along(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = path_loss.new_loss

    def small(n: int, threads: int) -> path_loss.Loss:
        return made(n, threads)._replace(inner=np.empty((2, 2), np.uint64))

    monkeypatch.setattr(path_loss, "new_loss", small)
    for seed in range(3):
        run = Run(name, directed=seed != 1)
        for _ in epochs_of(random_history(seed, directed=seed != 1), run):
            pass
        run.check_against_oracle()


@on_both_homes
@pytest.mark.parametrize(
    ("name", "worse", "expected"), [("sssp", 9.0, [0, 1, 9, 10]), ("sswp", 0.5, [np.inf, 1, 0.5, 0.5])]
)
def test_a_tree_edge_gets_worse_and_better_again(name: str, worse: float, expected: list[float]) -> None:
    run = Run(name, directed=True)
    run.step(weighted([(0, 1, 1.0), (1, 2, 1.0), (2, 3, 1.0)], 4))
    before = run.values()
    run.step(weighted([(1, 2, worse)], 4))
    run.check()
    assert run.values() == ([0, 1, 10, 11] if name == "sssp" else expected)
    run.step(weighted([(1, 2, 1.0)], 4))
    run.check()
    assert run.values() == before


@on_both_homes
@weighted_cases
def test_every_tree_edge_gets_worse_at_once(name: str) -> None:
    """Each vertex waits twice then: for its own edge, and as the child of another."""
    n = 64
    edges = [(0, 1), *[(1, v) for v in range(2, n)]]
    run = Run(name, directed=True)
    run.step(weighted([(u, v, 10.0) for u, v in edges], n))
    run.step(weighted([(u, v, 90.0 if name == "sssp" else 1.0) for u, v in edges], n))
    run.check()


def test_a_weight_that_changes_no_value_reads_nothing() -> None:
    run = Run("sswp", directed=True)
    run.step(weighted([(0, 1, 2.0), (1, 2, 5.0)], 3))
    refresh = run.step(weighted([(1, 2, 4.0)], 3))
    assert refresh.edges_read == 0 and refresh.changed == {}
    run.check()


# -- shapes that hurt -----------------------------------------------------------------------------------------


@on_both_homes
@every_case
@pytest.mark.sample(2)
def test_the_bridge_of_a_long_path(name: str) -> None:
    n = 1_200
    path = [(v, v + 1, 1.0) for v in range(n - 1)]
    run = Run(name, directed=False)
    run.step(weighted(path, n))
    run.check()
    run.step(deletes([(n // 2, n // 2 + 1)], n))
    run.check()
    run.step(weighted([(n // 2, n // 2 + 1, 2.0), (0, n - 1, 1.0)], n))
    run.check()


@pytest.mark.sample(1, of="name")
@on_both_homes
@every_case
def test_leaves_on_a_long_chain_below_a_hub(name: str) -> None:
    """0 -> hub -> many, many -> chain -> leaves; the hub is cut off but for one long way round."""
    hub, first, length = 1, 100, 200
    many = [(hub, v, float(v % 5)) for v in range(2, first)] + [(v, first, float(v % 7)) for v in range(2, first)]
    chain = [(v, v + 1, 1.0) for v in range(first, first + length)]
    leaves = [(v, v + 500, 2.0) for v in range(first, first + length)]
    n = 1_000
    run = Run(name, directed=True)
    run.step(weighted([(0, hub, 4.0), *many, *chain, *leaves], n))
    run.check()
    run.step(epoch_of([(Op.DELETE, 0, hub, 0.0), (Op.INSERT, 0, n - 1, 9.0), (Op.INSERT, n - 1, hub, 9.0)], n))
    run.check()
    run.check_against_oracle()
    run.step(deletes([(hub, v) for v in range(2, first)], n))
    run.check()


@pytest.mark.sample(2, of="name")
@on_both_homes
@every_case
def test_a_whole_frontier_is_deleted(name: str) -> None:
    layers = [list(range(100 * k + 1, 100 * k + 101)) for k in range(3)]
    first = [(0, v, 1.0) for v in layers[0]]
    between = [(u, v, float((u * v) % 4)) for u in layers[0] for v in layers[1][:20]]
    ring = [(u, layers[1][(k + 1) % 100], 1.0) for k, u in enumerate(layers[1])]
    last = [(u, layers[2][k], 0.0) for k, u in enumerate(layers[1])]
    run = Run(name, directed=True)
    run.step(weighted([*first, *between, *ring, *last], 301))
    run.step(deletes([(u, v) for u, v, _ in between[1:]], 301))
    run.check()
    run.check_against_oracle()
    run.step(deletes([(u, v) for u, v, _ in first], 301))
    run.check()


@pytest.mark.sample(2, of="name")
@on_both_homes
@every_case
def test_a_hub_is_deleted(name: str) -> None:
    n = 1_000
    rng = np.random.default_rng(1)
    star = [(0, v, float(v % 3)) for v in range(1, n)]
    chords = [(int(a), int(b), float(a % 9)) for a, b in rng.integers(1, n, (3 * n, 2))]
    run = Run(name, directed=False, sources=(1,))
    run.step(weighted(star + chords, n))
    run.step(deletes([(u, v) for u, v, _ in star], n))
    run.check()
    run.check_against_oracle()


# -- much work, on threads ------------------------------------------------------------------------------------


@pytest.fixture
def always_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """All work that can be shared is, in small pieces, and steps of a push are small, and soon broken off."""
    for where in (path_mend, path_loss):
        monkeypatch.setattr(where, "SHARED_MIN", 0)
        monkeypatch.setattr(where, "PIECE_MAX", 2)
    for constant, value in (("GATHERED", 3), ("_INNER", 5), ("_TAKEN", 2)):
        monkeypatch.setattr(path_loss, constant, value)
    monkeypatch.setattr(path_wide, "GATHERED", 3)
    for where in (path_mend, pieces):  # of the templates, and of who says how many pieces there are
        monkeypatch.setattr(where, "PIECE", 3)
    for constant, value in (
        ("PARALLEL_EDGES", 0),
        ("PARALLEL_SWEEP", 0),
        ("SWEEP_PIECE", 64),
        ("PIECE", 2),
        ("GATHERED", 3),
    ):
        monkeypatch.setattr(path_search, constant, value)
        monkeypatch.setattr(path_spread, constant, value)
    monkeypatch.setattr(path_search, "_PIECES", 1 << 20)
    for constant, value in (("_PARALLEL_MIN", 0), ("_STEP_EDGES", 0), ("_AGAIN", 1), ("_AGAIN_MIN", 0)):
        monkeypatch.setattr(path_spread, constant, value)
    monkeypatch.setattr(path_form, "_known", {})


def side_by_side(
    histories: Iterable[tuple[History, tuple[int, ...]]], make: Callable[..., Run]
) -> Iterator[list[Run]]:
    """Runs with teams of 1, 2 and 5 threads through histories, after every epoch; each is checked."""
    for history, sources in histories:
        runs = [make(history.directed, sources, threads=threads) for threads in (1, 2, 5)]
        for epoch in history.epochs:
            for run in runs:
                run.step(epoch)
                run.fresh.bind(run._bound())
                run.fresh.start(run.graph)
            yield runs
        runs[-1].check()
        runs[-1].check_against_oracle()
        for run in runs:
            run.graph.close()


@pytest.mark.sample(among="threads change nothing", alike="name")  # what is shared so is compiled for each
@pytest.mark.usefixtures("always_shared")
@every_case
@both_ways
def test_threads_change_nothing(
    name: str, directed: bool, seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what improved is pushed on by one thread, for which it has room here, parents are the same, too."""
    if not run_long and seed % 2:
        pytest.skip("one in two, drawn; --run-long takes all")

    def roomy(*arguments: Any, **options: Any) -> Run:
        run = Run(name, *arguments, **options)
        for program in (run.program, run.fresh):
            program._entries = np.empty(1 << 18, np.uint64)
        return run

    for steps in ("_STEPS", "_STEPS_FROM_SCRATCH"):
        monkeypatch.setattr(module, steps, (1 << 30, 20, 1 << 30))
    monkeypatch.setattr(module, "_SETTLE_FLOOR", 1 << 60)
    history = rmat_history(4, directed=directed, scale=10, degree=8, updates=3_000, epochs=5)
    hub = int(np.bincount(history.epochs[0].src).argmax())
    histories = [(random_history(seed, directed=directed), (0,)) for seed in range(2)]
    for runs in side_by_side([*histories, (history, (hub,))], roomy):
        for run in runs[1:]:
            np.testing.assert_array_equal(run.column, runs[0].column)
            np.testing.assert_array_equal(run.fresh.state()["word"], runs[0].fresh.state()["word"])


@pytest.mark.usefixtures("always_shared")
@every_case
@both_ways
@pytest.mark.sample(2, alike="name")
def test_pushing_on_all_threads(name: str, directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEPS", (0, 20, 40))  # what is broken off goes to the heap, and back from there
    monkeypatch.setattr(module, "_STEPS_FROM_SCRATCH", (0, 20, 0))
    history = rmat_history(4, directed=directed, scale=10, degree=8, updates=3_000, epochs=5)
    hub = int(np.bincount(history.epochs[0].src).argmax())
    histories = [(random_history(seed, directed=directed), (0,)) for seed in range(2)]
    for runs in side_by_side([*histories, (history, (hub,))], partial(Run, name)):
        for run in runs:
            assert run.bits == runs[0].bits
            assert run.results(run.fresh) == runs[0].bits
            assert run.program.audit(run.graph) == []


@pytest.mark.sample(1)
@weighted_cases
def test_a_large_graph_from_scratch(name: str) -> None:
    """Large enough for threads as they are."""
    src, dst = rmat_edges(3, 15, 400_000)
    weights = np.random.default_rng(4).integers(0, 255, src.size).astype(np.float32)
    run = Run(name, directed=True, sources=(int(np.bincount(src).argmax()),))
    run.step(Epoch(src, dst, np.ones(src.size, np.uint8), weights, 1 << 15))
    run.program.start(run.graph)
    run.check()


# -- work -----------------------------------------------------------------------------------------------------


@pytest.mark.sample(2, of="name")
@every_case
@both_ways
@pytest.mark.parametrize("updates", [1, 30, 1_000])
def test_work_is_in_proportion_to_the_change(
    name: str, directed: bool, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most four times the batch and the rows of what was invalidated or changed; and only dependants are."""
    monkeypatch.setattr(module, "_SETTLE_FLOOR", 2**60)
    history = rmat_history(5, directed=directed, scale=12, degree=12, updates=updates, epochs=12)
    run = Run(name, directed, (int(np.bincount(history.epochs[0].src).argmax()),))
    run.step(history.epochs[0])
    invalidated = Invalidated(run.program, monkeypatch)
    for epoch in history.epochs[1:]:
        before = run.column.copy()
        invalidated.forget()
        rows_before = run.graph.out_rows().degrees[: before.size].astype(np.int64)
        rows_before += run.graph.in_rows().degrees[: before.size]
        refresh = run.step(epoch)
        rows = run.graph.out_rows().degrees[: before.size].astype(np.int64)
        rows += run.graph.in_rows().degrees[: before.size]
        touched = np.union1d(invalidated.vertices, np.flatnonzero(run.column != before)).astype(np.int64)
        allowed = 4 * (len(epoch) + int(np.maximum(rows, rows_before)[touched].sum())) + 1000
        assert refresh.edges_read <= allowed
        assert set(invalidated.vertices.tolist()) <= descendants_of_lost(run, epoch, before)
    run.check()


def descendants_of_lost(run: Run, epoch: Epoch, before: np.ndarray) -> set[int]:
    """The vertices below the heads of parent edges that the epoch named, in the forest before."""
    parent = before.astype(np.uint32)
    named = set(zip(epoch.src.tolist(), epoch.dst.tolist(), strict=True))
    if not run.graph.directed:
        named |= {(v, u) for u, v in named}
    below = {v for u, v in named if parent[v] == u}
    children: dict[int, list[int]] = {}
    for v, u in enumerate(parent.tolist()):
        children.setdefault(u, []).append(v)
    waiting = list(below)
    while waiting:
        for v in children.get(waiting.pop(), []):
            if v not in below:
                below.add(v)
                waiting.append(v)
    return below


@every_case
@pytest.mark.sample(1)
def test_starting_over_is_rare(name: str) -> None:
    history = rmat_history(6, directed=True, scale=16, degree=12, updates=1_000, epochs=50)
    run = Run(name, True, (int(np.bincount(history.epochs[0].src).argmax()),))
    run.step(history.epochs[0])
    assert sum(run.step(epoch).started_over for epoch in history.epochs[1:]) == 0


@on_both_homes
@every_case
@both_ways
@pytest.mark.sample(1, of="name")
def test_starting_over_when_settling_costs_too_much(
    name: str, directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.compute.device import paths as on_device  # the one of this emulated device

    monkeypatch.setattr(module, "_SETTLE_FLOOR", 0)
    monkeypatch.setattr(on_device, "SETTLE_LEAST", 0)
    monkeypatch.setattr(on_device, "LOST_LEAST", 0)
    started_over = 0
    for seed in range(3):
        for refresh in epochs_of(random_history(seed, directed=directed), Run(name, directed)):
            started_over += refresh.started_over
    assert started_over > 2


@every_case
def test_a_change_as_hopeless_as_one_before_starts_over_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One deletion takes the support of half of a ring; the next such change reads what a fresh start does."""
    monkeypatch.setattr(module, "_SETTLE_FLOOR", 0)
    monkeypatch.setattr(module, "_HOPELESS_TRIES", 1)
    monkeypatch.setattr(module, "_HOPELESS_FLOOR", 1)
    n = 400
    ring = [(v, (v + 1) % n, 1.0) for v in range(n)]
    run = Run(name, directed=False)
    run.step(weighted(ring, n))
    read = []
    for _ in range(3):
        refresh = run.step(deletes([(0, 1)], n))
        if not refresh.started_over:  # all that a value offers is itself, and so little was lost
            return
        read.append(refresh.edges_read)
        run.check()
        run.step(weighted([(0, 1, 1.0)], n))
    # The third one tries again: the bound rises with each that starts over.
    assert read[1] < read[0] == read[2]


# -- the audit ------------------------------------------------------------------------------------------------


def word(value: float, parent: int) -> np.uint64:
    return np.uint64(int(np.float32(value).view(np.uint32)) << 32 | parent)


@pytest.mark.sample(6)
@on_both_homes
@pytest.mark.parametrize(
    ("vertex", "value", "rule"),
    [
        (2, UNREACHED, "improvable"),
        (2, word(9, 1), "improvable"),
        (2, word(9, 1), "value"),
        (2, word(2.5, 1), "value"),
        (2, word(2, 0), "parent-edge"),
        (2, word(3, int(NO_VERTEX)), "no-parent"),
        (0, word(0, 1), "source"),
        (0, UNREACHED, "source"),
        (5, np.uint64(0xFFFF_FFFF_0000_0000), "half-reached"),
    ],
)
def test_the_audit_finds_a_broken_value(vertex: int, value: np.uint64, rule: str) -> None:
    run = Run("sssp", directed=True)
    run.step(weighted([(0, 1, 1.0), (1, 2, 2.0), (4, 5, 0.0), (5, 4, 0.0)], 6))
    assert run.program.audit(run.graph) == []
    run.column[vertex] = value
    found = {violation.rule: violation for violation in run.program.audit(run.graph)}
    assert rule in found
    assert vertex in found[rule].vertices


@on_both_homes
def test_the_audit_finds_values_that_support_each_other() -> None:
    run = Run("sssp", directed=True)
    run.step(weighted([(0, 1, 1.0), (4, 5, 0.0), (5, 4, 0.0)], 6))
    run.column[4], run.column[5] = word(7, 5), word(7, 4)
    assert [violation.rule for violation in run.program.audit(run.graph)] == ["forest"]


@pytest.mark.sample(2, of="name")
@on_both_homes
@every_case
def test_slices_of_the_audit_are_the_whole(name: str) -> None:
    history = rmat_history(7, directed=True, epochs=1)
    run = Run(name, True, (int(np.bincount(history.epochs[0].src).argmax()),))
    for epoch in history.epochs:
        run.step(epoch)
    n = run.graph.n_vertices
    rng = np.random.default_rng(1)
    run.column[rng.integers(0, n, 40)] ^= np.uint64(1) << rng.integers(32, 63, 40).astype(np.uint64)
    whole, edges = run.program.audit_slice(run.graph, 0, n)
    cuts = [0, 1, n // 3, n // 3, n - 5, n]
    parts = [run.program.audit_slice(run.graph, a, b) for a, b in itertools.pairwise(cuts)]
    assert edges == run.graph.n_arcs == sum(read for _, read in parts)

    def counts(found: list[Any]) -> dict[str, int]:
        total: dict[str, int] = {}
        for violation in found:
            total[violation.rule] = total.get(violation.rule, 0) + int(violation.detail.split()[0])
        return total

    assert whole
    assert counts(whole) == counts([violation for found, _ in parts for violation in found])


# -- state ----------------------------------------------------------------------------------------------------


def test_a_state_of_other_functions_is_refused() -> None:
    graph = Graph()
    state = Within("made", (0,), hops=3).state()
    Within("same", (0,), hops=3).restore(state, graph)
    for other in (Within("other", (0,), hops=4), BFS("other", (0,))):
        with pytest.raises(ValueError, match="other functions made them"):
            other.restore(state, graph)
    graph.close()


@pytest.mark.parametrize("name", ["bfs", "sssp"])
def test_a_start_after_memory_ran_out_has_room_for_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 5000
    path = inserts([(u, u + 1) for u in range(n - 1)], n)
    whole = Run(name, directed=True)
    whole.step(path)
    for at in range(6):
        run = Run(name, directed=True)
        with monkeypatch.context() as patch:
            patch.setattr(module, "grown", failing(module.grown, at))
            with pytest.raises(MemoryError):
                run.step(path)
        run.program._add_vertices(run.graph)
        assert run.program.memory_bytes() >= whole.program.memory_bytes() - whole.program._entries.nbytes
        run.program.start(run.graph)
        run.check()


@on_both_homes
def test_reading() -> None:
    run = Run("sssp", directed=True)
    run.step(weighted([(0, 1, 1.5), (1, 2, 2.0)], 4))
    published = Published(run.program.columns(), run.program.scalars(), 4)
    asked = np.array([2, 0, 3], np.uint32)
    answer = SSSP.read(published, asked)
    assert answer.values.dtype == np.float32
    assert answer.values[:2].tolist() == [3.5, 0] and answer.null.tolist() == [False, False, True]
    assert SSSP.parents(published, asked).tolist() == [1, NO_VERTEX, NO_VERTEX]


@every_case
def test_what_is_written_down_holds_whatever_happens_in_between(name: str) -> None:
    """Starts, restored states, and vertices that come by many."""
    rng = np.random.default_rng(31)
    run = Run(name, True, (0,))
    n = 50
    for k in range(12):
        n += (0, 3, 400, 20_000)[k % 4]
        src, dst = rng.integers(0, 50, 40), rng.integers(0, n, 40)
        updates = [(Op.INSERT, u, v, 1.0) for u, v in zip(src.tolist(), dst.tolist(), strict=True)]
        run.step(epoch_of(updates, n))
        if k % 3 == 0:
            run.program.start(run.graph)
        elif k % 3 == 1:
            run.program.restore({key: part.copy() for key, part in run.program.state().items()}, run.graph)
            run.program.bind(np.zeros(1, np.uint32))
        assert_written_records_hold(run.program)
    run.check()


@every_case
def test_more_updates_than_entries_and_other_threads_are_written_down(name: str) -> None:
    run = Run(name, True, (0,))
    run.step(epoch_of([(Op.INSERT, 0, 1, 1.0)], 60))
    every = [(Op.INSERT, u, v, 1.0) for u in range(60) for v in range(60)]
    run.step(epoch_of(every, 60))
    assert_written_records_hold(run.program, run.graph)
    run.check()
    for threads in (1, 3):
        graph = Graph(threads=threads)
        try:
            graph.apply(epoch_of(every, 60).batch(weighted=True), 60)
            run.program.start(graph)
            change = graph.apply(epoch_of([(Op.DELETE, 0, 1, 1.0)], 60).batch(weighted=True), 60)
            run.program.refresh(graph, change)
            assert_written_records_hold(run.program, graph)
            assert run.program.audit(graph) == []
        finally:
            graph.close()
