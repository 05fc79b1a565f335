"""Breadth-first search: every epoch against a fresh search, an independent oracle, and the audit."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from histories import (
    History,
    deletes,
    inserts,
    random_history,
    real_history,
    rmat_edges,
    rmat_history,
    small_histories,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from path_runs import PathRun, epochs_of
from sampling import examples

from graphtide.compute.paths import program as module
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.paths.mend import PARENT, UNREACHED
from graphtide.compute.paths.search import _LONG_ROW
from graphtide.compute.program import Published, parse_sources
from graphtide.gpma.edges import NO_VERTEX, EdgeBatch
from graphtide.partition.graph import Graph

SOURCE_WORD = np.uint64(NO_VERTEX)
on_both_homes = pytest.mark.usefixtures("home")


class Run(PathRun):
    """A search, moved epoch by epoch."""

    def __init__(self, directed: bool, sources: tuple[int, ...] = (0,), *, threads: int | None = None) -> None:
        super().__init__(BFS, directed, sources, threads=threads)

    @property
    def hops(self) -> list[int]:
        return self.results(self.program)

    def expected(self) -> list[int]:
        graph = nx.DiGraph()
        graph.add_nodes_from(range(self.edges.n_vertices))
        graph.add_edges_from((u, v) for u, v, _ in self.edges.arcs())
        known = set(self.known_sources())
        hops = nx.multi_source_dijkstra_path_length(graph, known, weight=lambda *_: 1) if known else {}
        return [hops.get(v, int(NO_VERTEX)) for v in range(self.edges.n_vertices)]

    def check_against_oracle(self) -> None:
        expected = self.expected()
        assert self.hops == expected
        hops = [h for h in expected if h != NO_VERTEX]
        found = {"reached": len(hops), "eccentricity": max(hops, default=0), "sum_of_hops": sum(hops)}
        assert self.program.scalars() == found


@settings(deadline=None, max_examples=examples(150))
@given(small_histories(), st.sets(st.integers(0, 9), min_size=1, max_size=3))
def test_any_history(history: History, sources: set[int]) -> None:
    run = Run(history.directed, tuple(sources))
    for _ in epochs_of(history, run):
        run.check_against_oracle()


@pytest.mark.sample(6)
@on_both_homes
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_long_histories(seed: int, directed: bool) -> None:
    history = random_history(seed, directed=directed)
    run = Run(directed)
    for _ in epochs_of(history, run):
        pass
    run.check_against_oracle()


@pytest.mark.sample(6)
@on_both_homes
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_rmat_histories(seed: int, directed: bool) -> None:
    history = rmat_history(seed, directed=directed)
    hub = int(np.bincount(history.epochs[0].src).argmax())
    run = Run(directed, (hub,))
    for _ in epochs_of(history, run):
        pass
    run.check_against_oracle()


@pytest.mark.sample(1)
@on_both_homes
@pytest.mark.parametrize(("name", "updates"), [("as733-21days", 150), ("highschool2012", 500)])
def test_real_deletions(name: str, updates: int) -> None:
    run = Run(directed=False)
    for k, _ in enumerate(epochs_of(real_history(name, directed=False, updates=updates), run)):
        if k % 16 == 0:
            run.check_against_oracle()


@pytest.mark.sample(1, of="directed")
@on_both_homes
@pytest.mark.parametrize("directed", [True, False])
def test_starting_over_when_settling_costs_too_much(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphtide.compute.device import paths as on_device  # the one of this emulated device

    monkeypatch.setattr(module, "_SETTLE_FLOOR", 0)
    monkeypatch.setattr(on_device, "SETTLE_LEAST", 0)
    monkeypatch.setattr(on_device, "LOST_LEAST", 0)
    started_over = 0
    for seed in range(6):
        run = Run(directed)
        for refresh in epochs_of(random_history(seed, directed=directed), run):
            started_over += refresh.started_over
    assert started_over > 5


def test_a_subclass_that_counts_from_one_has_its_own_scalars() -> None:
    class FromOne(BFS):
        at_source = 1

    run = PathRun(FromOne, True, (0,))
    run.step(inserts(path(5), 7))  # values below that count
    run.program.start(run.graph)
    assert run.program.scalars() == {"reached": 5, "eccentricity": 5, "sum_of_hops": 15}
    run.step(deletes([(3, 4)], 7))
    assert run.program.scalars() == {"reached": 4, "eccentricity": 4, "sum_of_hops": 10}
    assert run.program.audit(run.graph) == []
    run.graph.close()


# -- shapes that hurt ---------------------------------------------------------------------------------------


def path(n: int) -> list[tuple[int, int]]:
    return [(v, v + 1) for v in range(n - 1)]


def test_the_bridge_of_a_long_path_goes_and_comes_back() -> None:
    n = 30_000
    run = Run(directed=True)
    run.step(inserts(path(n), n))
    assert run.hops == list(range(n))
    run.step(deletes([(n // 2, n // 2 + 1)], n))
    assert run.hops == [*range(n // 2 + 1), *[int(NO_VERTEX)] * (n - n // 2 - 1)]
    run.step(inserts([(n // 2, n // 2 + 1)], n))
    assert run.hops == list(range(n))
    run.step(inserts([(0, n - 1)], n))  # the far end comes near, nothing else does
    assert run.hops[-2:] == [n - 2, 1]
    run.check()


def test_scalars_follow_a_path_that_is_cut_and_shortened() -> None:
    n = 30_000
    run = Run(directed=True)
    assert run.program.scalars() == {"reached": 0, "eccentricity": 0, "sum_of_hops": 0}
    run.step(inserts(path(n), n))
    whole = {"reached": n, "eccentricity": n - 1, "sum_of_hops": n * (n - 1) // 2}
    assert run.program.scalars() == whole
    m = n - 100
    cut = run.step(deletes([(m - 1, m)], n))
    assert not cut.started_over and cut.active == 100
    assert run.program.scalars() == {"reached": m, "eccentricity": m - 1, "sum_of_hops": m * (m - 1) // 2}
    run.step(inserts([(m - 1, m)], n))
    assert run.program.scalars() == whole
    run.step(inserts([(0, n - 1)], n))  # the last level has no vertex any more, the one before it has
    assert run.program.scalars() == {
        "reached": n,
        "eccentricity": n - 2,
        "sum_of_hops": n * (n - 1) // 2 - (n - 2),
    }
    run.step(inserts([], n + 7))
    run.check()
    assert run.program.scalars()["reached"] == n


def test_scalars_are_counted_by_threads_as_by_one() -> None:
    """More vertices than a thread takes at a time, on levels that are counted by each and by all together."""
    n = 70_000
    run = Run(directed=False, sources=(0, 40_000))
    many = Run(directed=False, sources=(0, 40_000), threads=3)
    edges = [*((v, v + 1) for v in range(100)), *((40_000, v) for v in range(40_001, n))]
    for each in (run, many):
        each.step(inserts(edges, n))
        each.program.start(each.graph)
    expected = {"reached": 101 + n - 40_000, "eccentricity": 100, "sum_of_hops": 5_050 + n - 40_001}
    assert run.program.scalars() == many.program.scalars() == expected
    many.check()


@pytest.mark.parametrize("crowded", [False, True], ids=["room", "no-room"])
def test_wide_levels_of_a_push_leave_the_same_words_for_any_number_of_threads(crowded: bool) -> None:
    """A shortcut brings thousands nearer, whose heads have several parents to choose from: the first one is it.

    Where more edges improve than there is room for, they are pushed one by one, which leaves the same, too.
    """
    rng = np.random.default_rng(3)
    near, far = np.arange(5, 3_005), np.arange(3_005, 9_005)
    chain = [(v, v + 1) for v in range(4)]
    fans = [(4, v) for v in near.tolist()]
    crossing = [(int(u), int(v)) for v in far for u in rng.choice(near, 4, replace=False)]
    extra = [(u, int(v)) for u in near[:40].tolist() for v in far[:2_000]] if crowded else []
    words = []
    for threads in (1, 2, 5):
        run = Run(directed=True, threads=threads)
        run.step(inserts(chain + fans + crossing + extra, 9_005))
        if crowded:
            loss = run.program._loss
            run.program._loss = loss._replace(offers=loss.offers[:9_005])
            run.program._crew = None  # it is written down anew
        assert run.step(inserts([(0, 4)], 9_005)).iterations > 2
        run.check()
        run.step(deletes([(0, 4)], 9_005))
        run.check()
        words.append(run.program.state()["word"].copy())
    assert all(np.array_equal(word, words[0]) for word in words[1:])


def test_scalars_need_nothing_of_a_checkpoint() -> None:
    """States have the words alone, as those of before there were scalars; the first change goes on from there."""
    run = Run(directed=False)
    run.step(inserts([*path(20), (3, 30), (30, 31)], 40))
    restored = BFS("kept", (0,))
    assert set(run.program.state()) == {"word", "made_by"}
    restored.restore(run.program.state(), run.graph)
    assert (
        restored.scalars()
        == run.program.scalars()
        == {
            "reached": 22,
            "eccentricity": 19,
            "sum_of_hops": 199,
        }
    )
    change = run.graph.apply(deletes([(10, 11)], 40).batch(), 40)
    restored.bind(np.zeros(1, np.uint32))
    restored.refresh(run.graph, change)
    assert restored.scalars() == {"reached": 13, "eccentricity": 10, "sum_of_hops": 64}


@on_both_homes
def test_a_hub_is_deleted() -> None:
    n = 2_000
    rng = np.random.default_rng(1)
    star = [(0, v) for v in range(1, n)]
    chords = [(int(a), int(b)) for a, b in rng.integers(1, n, (3 * n, 2))]
    run = Run(directed=False, sources=(1,))
    run.step(inserts(star + chords, n))
    run.step(deletes(star, n))
    run.check()
    run.check_against_oracle()


@on_both_homes
def test_a_whole_frontier_is_deleted() -> None:
    """Three layers of a hundred; every edge between the first two goes, but one."""
    layer = [list(range(100 * k + 1, 100 * k + 101)) for k in range(3)]
    first = [(0, v) for v in layer[0]]
    between = [(u, v) for u in layer[0] for v in layer[1][:20]] + [
        (layer[0][k], layer[1][k]) for k in range(20, 100)
    ]
    last = [(u, v) for k, u in enumerate(layer[1]) for v in (layer[2][k], layer[1][(k + 1) % 100])]
    n = 301
    run = Run(directed=True)
    run.step(inserts(first + between + last, n))
    run.check()
    run.step(deletes(between[1:], n))
    run.check()
    run.check_against_oracle()
    assert max(run.hops) > 90  # the values climb round the ring of the second layer
    run.step(deletes(between[:1], n))
    assert run.hops.count(int(NO_VERTEX)) == 200


def test_both_ways_of_searching_reach_the_same() -> None:
    """Dense enough to pull, with a tail that must be pushed again."""
    src, dst = rmat_edges(3, 11, 40_000)
    tail = [(2048 + k, 2049 + k) for k in range(50)]
    edges = [*zip(src.tolist(), dst.tolist(), strict=True), (int(dst[0]), 2048), *tail]
    run = Run(directed=True, sources=(int(np.bincount(src).argmax()),))
    run.step(inserts(edges, 2100))
    run.program.start(run.graph)
    run.check()
    run.check_against_oracle()


# -- work -----------------------------------------------------------------------------------------------------


def random_graph(n: int = 20_000, degree: int = 8) -> tuple[Run, np.ndarray]:
    rng = np.random.default_rng(5)
    pairs = rng.integers(0, n, (n * degree, 2))
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    run = Run(directed=True)
    run.step(inserts([(int(a), int(b)) for a, b in pairs], n))
    return run, pairs


def test_work_is_in_proportion_to_the_change() -> None:
    run, pairs = random_graph()
    n = run.graph.n_vertices
    parent = run.column.astype(np.uint32)
    hops = run.column >> np.uint64(32)
    rng = np.random.default_rng(6)
    is_tree = parent[pairs[:, 1]] == pairs[:, 0]
    safe = run.step(deletes([tuple(pair) for pair in pairs[~is_tree][:500].tolist()], n))
    assert safe.edges_read == 0 and safe.active == 0 and safe.changed == {}
    level = [(int(a), int(b)) for a, b in rng.integers(0, n, (2_000, 2)) if hops[b] <= hops[a] + 1]
    assert run.step(inserts(level, n)).edges_read == 0
    assert run.step(inserts([], n)).edges_read == 0
    # A tree edge to a leaf: only the rows of the leaf are of interest.
    leaves = np.setdiff1d(np.flatnonzero(parent != NO_VERTEX), parent)
    victim = int(leaves[0])
    one = run.step(deletes([(int(parent[victim]), victim)], n))
    assert 0 < one.edges_read < 200
    run.check()


# -- sources ------------------------------------------------------------------------------------------------


@on_both_homes
def test_a_source_that_appears_later() -> None:
    run = Run(directed=True, sources=(3, 0))
    run.step(inserts([(1, 2)], 3))
    assert run.hops == [0, int(NO_VERTEX), int(NO_VERTEX)]
    run.step(inserts([(3, 1)], 4))
    assert run.hops == [0, 1, 2, 0]
    run.check()


@on_both_homes
def test_a_source_that_is_one_no_longer() -> None:
    run = Run(directed=True, sources=(0,))
    run.step(inserts([(0, 1), (1, 2), (3, 2)], 4))
    run.sources = (3,)
    refresh = run.step(inserts([], 4))
    assert refresh.started_over
    assert run.hops == [int(NO_VERTEX), int(NO_VERTEX), 1, 0]


@pytest.mark.parametrize(
    ("value", "expected"), [(1, (1,)), ("a", ("a",)), ([3, 1, 3], (3, 1)), (["a", "b"], ("a", "b"))]
)
def test_sources_are_parsed(value: object, expected: tuple[object, ...]) -> None:
    assert parse_sources(value) == expected


@pytest.mark.parametrize("value", [[], True, 1.5, None, [1, "a"], [True], 2**63, {"a": 1}])
def test_bad_sources_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_sources(value)


# -- reading, saving, the audit -----------------------------------------------------------------------------


@on_both_homes
def test_reading() -> None:
    run = Run(directed=True)
    run.step(inserts([(0, 1), (1, 2)], 4))
    published = Published(run.program.columns(), run.program.scalars(), 4)
    asked = np.array([2, 0, 3], np.uint32)
    answer = BFS.read(published, asked)
    assert answer.values[:2].tolist() == [2, 0] and answer.null.tolist() == [False, False, True]
    assert BFS.parents(published, asked).tolist() == [1, NO_VERTEX, NO_VERTEX]


def word(hops: int, parent: int) -> np.uint64:
    return np.uint64(hops << 32 | parent)


@pytest.mark.sample(6)
@on_both_homes
@pytest.mark.parametrize(
    ("vertex", "value", "rule"),
    [
        (2, UNREACHED, "improvable"),
        (2, word(3, 1), "improvable"),
        (2, word(1, 0), "parent-edge"),
        (2, word(1, 1), "value"),
        (2, word(2, int(NO_VERTEX)), "no-parent"),
        (0, word(0, 1), "source"),
        (0, UNREACHED, "source"),
        (5, word(0xFFFF_FFFF, 0), "half-reached"),
        (5, SOURCE_WORD, "no-parent"),
    ],
)
def test_the_audit_finds_a_broken_value(vertex: int, value: np.uint64, rule: str) -> None:
    run = Run(directed=True)
    run.step(inserts([*path(4), (4, 5), (5, 4)], 6))
    assert run.program.audit(run.graph) == []
    run.column[vertex] = value
    assert rule in {violation.rule for violation in run.program.audit(run.graph)}


@on_both_homes
def test_the_audit_finds_values_that_support_each_other() -> None:
    run = Run(directed=True)
    run.step(inserts([*path(4), (4, 5), (5, 4)], 6))
    run.column[4], run.column[5] = word(7, 5), word(8, 4)
    assert "forest" in {violation.rule for violation in run.program.audit(run.graph)}


@on_both_homes
def test_what_a_change_missed_is_found() -> None:
    """The graph moved on without the program."""
    run = Run(directed=False)
    run.step(inserts(path(10), 10))
    run.graph.apply(deletes([(4, 5)], 10).batch(), 10)
    assert {violation.rule for violation in run.program.audit(run.graph)} == {"parent-edge"}


@pytest.mark.parametrize("directed", [True, False])
def test_a_search_gives_parents_their_role(directed: bool) -> None:
    """And nobody else: who has none is not looked at when it is lost."""
    history = rmat_history(3, directed=directed, scale=16, degree=8, epochs=0)
    (load,) = history.epochs
    hub = int(np.bincount(load.src).argmax())
    for threads in (1, 2, 5):
        graph = Graph(directed=directed, weighted=False, threads=threads)
        graph.apply(load.batch(), load.n_vertices)
        program = BFS("hops", (hub,))
        program.bind(np.array([hub], np.uint32))
        for _ in range(2):
            assert program.start(graph).edges_read < graph.n_arcs // 2  # most vertices looked for a parent
            parents = np.unique(program.state()["word"].astype(np.uint32))
            np.testing.assert_array_equal(np.flatnonzero(program._role & PARENT), parents[parents != NO_VERTEX])
        graph.close()


@pytest.mark.parametrize("directed", [True, False])
def test_rows_that_threads_push_in_pieces_leave_the_smallest_parents(directed: bool) -> None:
    """Two sources lead to two hubs, the larger one first, whose long rows overlap; most is out of reach."""
    length, n = _LONG_ROW + 1000, 40 * _LONG_ROW
    sources, hubs = (0, 1), (9, 8)
    rows = [np.arange(first, first + length, dtype=np.uint32) for first in (10, 10 + length // 2)]
    tails = [np.full(length, hub, np.uint32) for hub in hubs]
    src = np.concatenate([np.array(sources, np.uint32), *tails])
    dst = np.concatenate([np.array(hubs, np.uint32), *rows])
    expected = np.full(n, UNREACHED)
    for value, parent, vertices in (
        (2, 9, rows[0]),
        (2, 8, rows[1]),
        (1, 0, [9]),
        (1, 1, [8]),
        (0, int(NO_VERTEX), [0, 1]),
    ):
        expected[vertices] = value << 32 | parent
    for threads in (1, 2, 5):
        graph = Graph(directed=directed, weighted=False, threads=threads)
        graph.apply(EdgeBatch.of(src, dst), n)
        program = BFS("hops", sources)
        program.bind(np.array(sources, np.uint32))
        refresh = program.start(graph)
        np.testing.assert_array_equal(program.state()["word"], expected)
        assert refresh.edges_read == graph.n_arcs
        assert program.audit(graph) == []
        graph.close()
