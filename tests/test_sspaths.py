"""Shortest-path counts: every epoch against a fresh run, naive counting, and the audit; saturation on a ladder."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from typing import ClassVar

import networkx as nx
import numpy as np
import pytest
from histories import (
    Epoch,
    History,
    deletes,
    inserts,
    random_history,
    real_history,
    rmat_history,
    small_histories,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from path_runs import PathRun, epochs_of
from sampling import examples

from graphtide.compute.counts import sspaths
from graphtide.compute.counts.kernels import LIMIT
from graphtide.compute.counts.sspaths import SSPaths
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.program import Program, Published
from graphtide.gpma.edges import NO_VERTEX


def count_naively(n: int, arcs: Iterable[tuple[int, int]], sources: Iterable[int]) -> list[int]:
    """Shortest paths to each of n vertices in whole numbers of any size, by a queue and nothing else."""
    heads: dict[int, list[int]] = {}
    for u, v in arcs:
        heads.setdefault(u, []).append(v)
    hops = {s: 0 for s in sources if s < n}
    paths = dict.fromkeys(hops, 1)
    queue = deque(hops)
    while queue:
        u = queue.popleft()
        for v in heads.get(u, ()):
            if v not in hops:
                hops[v], paths[v] = hops[u] + 1, 0
                queue.append(v)
            if hops[v] == hops[u] + 1:
                paths[v] += paths[u]
    return [paths.get(v, 0) for v in range(n)]


class Run(PathRun):
    """Counts, moved epoch by epoch."""

    name: ClassVar[str] = "count"

    def __init__(self, directed: bool, sources: tuple[int, ...] = (0,), threads: int | None = None) -> None:
        super().__init__(SSPaths, directed, sources, threads=threads)

    def results(self, program: Program) -> list[float]:
        counts: list[float] = program.state()["count"].tolist()
        return counts

    def expected(self) -> list[float]:
        arcs = ((u, v) for u, v, _ in self.edges.arcs())
        paths = count_naively(self.edges.n_vertices, arcs, self.sources)
        return [float(min(count, 2**53)) for count in paths]


@settings(deadline=None, max_examples=examples(200))
@given(small_histories(), st.sets(st.integers(0, 9), min_size=1, max_size=3))
def test_any_history(history: History, sources: set[int]) -> None:
    run = Run(history.directed, tuple(sources))
    for _ in epochs_of(history, run):
        run.check_against_oracle()


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_long_histories(seed: int, directed: bool) -> None:
    run = Run(directed)
    for _ in epochs_of(random_history(seed, directed=directed), run):
        run.check_against_oracle()


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_rmat_histories(seed: int, directed: bool) -> None:
    history = rmat_history(seed, directed=directed)
    run = Run(directed, (int(np.bincount(history.epochs[0].src).argmax()),))
    for _ in epochs_of(history, run):
        run.check_against_oracle()


@pytest.mark.parametrize(("name", "updates"), [("as733-21days", 150), ("highschool2012", 500)])
def test_real_deletions(name: str, updates: int) -> None:
    run = Run(directed=False)
    for k, _ in enumerate(epochs_of(real_history(name, directed=False, updates=updates), run)):
        if k % 16 == 0:
            run.check_against_oracle()


def test_networkx_lists_as_many_paths() -> None:
    run = Run(directed=True)
    for _ in epochs_of(random_history(3, directed=True), run):
        pass
    graph = nx.DiGraph((u, v) for u, v, _ in run.edges.arcs())
    graph.add_nodes_from(range(run.edges.n_vertices))
    listed = [
        len(list(nx.all_shortest_paths(graph, 0, v))) if nx.has_path(graph, 0, v) else 0
        for v in range(run.edges.n_vertices)
    ]
    assert run.column.tolist() == listed


def test_starting_over_with_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[BFS.refresh.__module__], "_SETTLE_FLOOR", 0)
    started_over = 0
    for seed in range(6):
        run = Run(seed % 2 == 0)
        started_over += sum(
            refresh.started_over for refresh in epochs_of(random_history(seed, directed=True), run)
        )
    assert started_over > 5


@pytest.mark.parametrize("directed", [True, False])
def test_counting_everything_where_recounting_costs_more(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sspaths, "_WORK_FLOOR", 4)
    started_over = 0
    for seed in range(6):
        run = Run(directed)
        started_over += sum(
            refresh.started_over for refresh in epochs_of(random_history(seed, directed=directed), run)
        )
        run.check_against_oracle()
    assert 20 < started_over < 200


# -- saturation ---------------------------------------------------------------------------------------------


def ladder(diamonds: int) -> list[tuple[int, int]]:
    """Diamonds in a row, 3 k -> 3 k + 1, 3 k + 2 -> 3 k + 3: 2^k shortest paths from 0 to 3 k."""
    corners = range(0, 3 * diamonds, 3)
    return [edge for k in corners for edge in ((k, k + 1), (k, k + 2), (k + 1, k + 3), (k + 2, k + 3))]


@pytest.mark.parametrize("directed", [True, False])
def test_counts_stop_at_the_limit_and_say_so(directed: bool) -> None:
    run = Run(directed)
    run.step(inserts(ladder(60), 181))
    run.check()
    expected = [min(2.0**k, LIMIT) for k in range(61)]
    assert run.column[::3].tolist() == expected
    run.check_against_oracle()
    saturated = int((run.column >= LIMIT).sum())
    assert run.program.scalars() == {"saturated": saturated} and saturated == 3 * 7 + 1
    published = Published(run.program.columns(), run.program.scalars(), 181)
    answer = SSPaths.read(published, np.array([3 * 52, 3 * 53, 180], np.uint32))
    assert answer.values.tolist() == [2.0**52, 2.0**53, 2.0**53]
    assert answer.saturated is not None and answer.saturated.tolist() == [False, True, True]


@pytest.mark.parametrize("directed", [True, False])
def test_saturated_counts_come_down_again(directed: bool) -> None:
    """What saturated holds nothing to subtract from: it must be counted anew."""
    run = Run(directed)
    run.step(inserts(ladder(60), 181))
    cut = [(3 * k + 1, 3 * k + 3) for k in range(0, 60, 2)]
    for begin in range(0, len(cut), 3):
        run.step(deletes(cut[begin : begin + 3], 181))
        run.check()
        run.check_against_oracle()
    assert run.column[180] == 2.0**30 and run.program.scalars() == {"saturated": 0}
    run.step(inserts(cut, 181))
    run.check()
    assert run.column[180] == LIMIT
    run.step(inserts([(0, 180)], 181))  # a shortcut: one path, and two ways round for those that are near
    run.check()
    run.check_against_oracle()
    assert run.column[180] == 1


def test_an_odd_count_above_the_limit_is_not_rounded_to_an_even_one() -> None:
    """2^53 + 1 is no float64: the sum must stop at the limit whatever the order."""
    run = Run(directed=True)
    extra = [(0, 200), *((200 + k, 201 + k) for k in range(104)), (304, 158)]
    run.step(inserts([*ladder(53), *extra, (159, 158), (157, 305), (158, 305)], 306))
    run.check()
    run.check_against_oracle()


def layers(depth: int) -> list[tuple[int, int]]:
    """0, then layers of three, each joined to all of the next: 3^k shortest paths to the k-th from 0 on."""
    first = [(0, v) for v in (1, 2, 3)]
    return [*first, *((3 * k + a, 3 * k + 3 + b) for k in range(depth - 1) for a in (1, 2, 3) for b in (1, 2, 3))]


@settings(deadline=None, max_examples=examples(150))
@given(small_histories(vertices_max=15, epochs_max=6), st.integers(28, 33))
def test_any_history_around_the_limit(history: History, first: int) -> None:
    """3^33 is below 2^53 and 3^34 above: layers near these lose edges and get others; some leave, and saturate."""
    n = 3 * 40 + 1
    run = Run(history.directed)
    run.step(inserts(layers(40), n))
    at = np.uint32(3 * first + 1)
    for epoch in history.epochs:
        run.step(Epoch(epoch.src + at, epoch.dst + at, epoch.ops, epoch.weights, n))
        run.check()
        run.check_against_oracle()


# -- work -----------------------------------------------------------------------------------------------------


@pytest.mark.sample(among="work is in proportion")
def test_work_is_in_proportion_to_the_change() -> None:
    rng = np.random.default_rng(5)
    n = 20_000
    pairs = rng.integers(0, n, (8 * n, 2))
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    run = Run(directed=True)
    run.step(inserts([(int(a), int(b)) for a, b in pairs], n))
    hops = run.program.state()["hops_word"] >> np.uint64(32)
    across = [tuple(pair) for pair in pairs.tolist() if hops[pair[1]] <= hops[pair[0]]][:500]
    safe = run.step(deletes(across, n))
    assert safe.edges_read == 0 and safe.active == 0 and safe.changed == {}
    assert run.step(inserts(across, n)).edges_read == 0
    deepest = int(np.where(hops == int(NO_VERTEX), 0, hops).argmax())
    parent = next(u for u, v in pairs.tolist() if v == deepest and hops[u] == hops[v] - 1)
    one = run.step(deletes([(parent, deepest)], n))
    assert 0 < one.edges_read < 200
    run.check()


def test_hubs_are_pushed_and_pulled_on_all_threads() -> None:
    """1 hands its paths on to hubs, which get more by 2, and with them all below. First the hubs have wide rows of
    vertices below, then mostly of each other; what is read is the cheaper side."""
    n, hubs, wide = 80_000, 300, 600
    run = Run(directed=True)
    below = [(3 + k, 3 + hubs + (k * wide + j) % 60_000) for k in range(hubs) for j in range(wide)]
    run.step(inserts([(0, 1), (0, 2), *((1, 3 + k) for k in range(hubs)), *below], n))
    run.check()
    more = [(2, 3 + k) for k in range(hubs)]
    pushed = run.step(inserts(more, n))
    run.check()
    assert pushed.edges_read == len(below) and pushed.active == hubs + 60_000
    few = 3 + hubs + 10
    run.step(deletes([(u, v) for u, v in below if v >= few], n))
    run.step(inserts([(3 + k, 3 + j) for k in range(hubs) for j in range(hubs)], n))
    run.check()
    pulled = run.step(deletes(more, n))
    run.check()
    assert pulled.edges_read == sum(v < few for _, v in below) and pulled.active == hubs + 10


@pytest.mark.sample(among="threads change nothing")
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_threads_change_nothing(directed: bool) -> None:
    """Neither the counts nor the search below them, on a graph that is large enough for several."""
    history = rmat_history(6, directed=directed, scale=16, degree=8, updates=4_000, epochs=1)
    hub = int(np.bincount(history.epochs[0].src).argmax())
    seen: list[list[np.ndarray]] = []
    for threads in (1, 2, 5):
        run = Run(directed, (hub,), threads=threads)
        columns = []
        for epoch in history.epochs:
            run.step(epoch)
            run.fresh.bind(run._bound())
            run.fresh.start(run.graph)
            states = [run.program.state(), run.fresh.state()]
            columns += [state[name].copy() for state in states for name in ("count", "hops_word")]
        seen.append(columns)
        if threads == 5:
            run.check()
        run.graph.close()
    for columns in seen[1:]:
        for one, other in zip(columns, seen[0], strict=True):
            np.testing.assert_array_equal(one, other)


# -- sources, reading, saving ---------------------------------------------------------------------------------


def test_a_source_that_appears_later() -> None:
    run = Run(directed=True, sources=(3, 0))
    run.step(inserts([(0, 1), (0, 2), (1, 4), (2, 4)], 3 + 2))
    assert run.column.tolist() == [1, 1, 1, 1, 2]
    run = Run(directed=True, sources=(5, 0))
    run.step(inserts([(0, 1), (0, 2), (1, 4), (2, 4)], 5))
    run.step(inserts([(5, 4)], 6))
    assert run.column.tolist() == [1, 1, 1, 0, 1, 1]
    run.check()


def test_a_source_that_is_one_no_longer() -> None:
    run = Run(directed=True, sources=(0,))
    run.step(inserts([(0, 1), (1, 2), (3, 2)], 4))
    run.sources = (3,)
    run.step(inserts([], 4))
    assert run.column.tolist() == [0, 0, 1, 1]
    run.check()


def test_no_path_is_null() -> None:
    run = Run(directed=True)
    run.step(inserts(ladder(1), 5))
    answer = SSPaths.read(Published(run.program.columns(), {}, 5), np.array([3, 4, 0], np.uint32))
    assert answer.values[[0, 2]].tolist() == [2, 1] and answer.null.tolist() == [False, True, False]


def test_a_saved_state_knows_what_was_saturated() -> None:
    run = Run(directed=True)
    run.step(inserts(ladder(60), 181))
    saved = {name: column.copy() for name, column in run.program.state().items()}
    restored = SSPaths("paths", (0,))
    restored.restore(saved, run.graph)
    assert restored.scalars() == run.program.scalars() != {"saturated": 0}


# -- the audit ------------------------------------------------------------------------------------------------


def broken(vertex: int, column: str, value: float) -> set[str]:
    """The rules that the audit names after one entry was overwritten."""
    run = Run(directed=True)
    run.step(inserts([*ladder(3), (10, 11), (11, 10)], 12))
    assert run.program.audit(run.graph) == []
    held = {
        "count": run.program._counts.paths,
        "level": run.program._counts.level,
        "word": run.program._hops.columns()["word"],
    }
    held[column][vertex] = value
    found = run.program.audit(run.graph)
    assert all(vertex in v.vertices or v.rule != "count" for v in found[:1])
    sliced = set()
    for begin in range(0, 12, 5):
        more, read = run.program.audit_slice(run.graph, begin, min(begin + 5, 12))
        sliced |= {violation.rule for violation in more}
        assert read > 0 or begin > 5
    assert sliced <= {violation.rule for violation in found}
    return sliced


@pytest.mark.parametrize(
    ("vertex", "column", "value", "rule"),
    [
        (3, "count", 3.0, "count"),
        (0, "count", 2.0, "count"),
        (10, "count", 1.0, "count"),
        (9, "count", LIMIT, "count"),
        (3, "level", 3, "level"),
        (3, "level", 1, "value"),
        (3, "word", 2 << 32 | 0, "parent-edge"),
        (3, "word", 3 << 32 | 1, "level"),
        (0, "word", 1 << 32 | 1, "source"),
        (11, "word", 5, "parent-edge"),
    ],
)
def test_the_audit_finds_a_broken_value(vertex: int, column: str, value: float, rule: str) -> None:
    assert rule in broken(vertex, column, value)


def test_the_audit_finds_vertices_that_reach_each_other_only() -> None:
    run = Run(directed=True)
    run.step(inserts([*ladder(3), (10, 11), (11, 10)], 12))
    word = run.program._hops.columns()["word"]
    for vertex, hops, parent in ((10, 7, 11), (11, 8, 10)):
        word[vertex] = hops << 32 | parent
        run.program._counts.level[vertex] = hops
        run.program._counts.paths[vertex] = 1
    found, _ = run.program.audit_slice(run.graph, 0, 12)
    assert "value" in {violation.rule for violation in found}


def test_the_audit_finds_a_wrong_number_of_saturated_counts() -> None:
    run = Run(directed=True)
    run.step(inserts(ladder(2), 7))
    run.program._saturated = 1
    assert [violation.rule for violation in run.program.audit(run.graph)] == ["saturated"]
    assert [violation.rule for violation in run.program.audit_whole(run.graph)[0]] == ["saturated"]


def test_what_a_change_missed_is_found() -> None:
    run = Run(directed=False)
    run.step(inserts(ladder(3), 10))
    run.graph.apply(deletes([(4, 6)], 10).batch(), 10)
    slices = [run.program.audit_slice(run.graph, begin, begin + 2)[0] for begin in range(0, 10, 2)]
    assert "count" in {violation.rule for found in slices for violation in found}
