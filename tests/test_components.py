"""Weakly connected components: every epoch against a fresh run, an independent oracle, and the audit."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from crews import crew
from crews import crews as crews
from histories import (
    EdgeSet,
    Epoch,
    History,
    deletes,
    failing,
    inserts,
    random_history,
    real_history,
    rmat_history,
    road_batches,
    small_histories,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from written_records import assert_written_records_hold

from graphtide.compute.forest import components as module
from graphtide.compute.forest import external_order
from graphtide.compute.forest import forest as kernels
from graphtide.compute.forest.components import Components
from graphtide.compute.forest.cut import TURN_EDGES
from graphtide.compute.forest.external_order import SortedVertices
from graphtide.compute.forest.span import _LONG_ROW
from graphtide.compute.program import Published, Refresh
from graphtide.gpma.edges import HALF, NO_VERTEX, EdgeBatch, Vertices, destinations, sources
from graphtide.gpma.index.id_order import IdOrder, order_of
from graphtide.gpma.index.ids import IdColumn, StringColumn
from graphtide.gpma.index.vertex_index import Kind, VertexIndex
from graphtide.gpma.written import Written
from graphtide.partition.graph import Graph


class Ids:
    """External ids given by a permutation."""

    def __init__(self, seed: int, n: int = 100_000) -> None:
        self.ids = np.random.default_rng(seed).permutation(n)
        self.asked = 0

    def smallest(self, dense: Vertices) -> int:
        self.asked += dense.size
        return int(dense[self.ids[dense].argmin()])

    def sort_by_external(self, dense: Vertices) -> Vertices:
        self.asked += dense.size
        return dense[self.ids[dense].argsort()]

    def comparable(self, n_vertices: int) -> IdOrder:
        return order_of(self.ids)


class Run:
    """A graph and its components, moved epoch by epoch."""

    def __init__(self, directed: bool, seed: int = 0, threads: int | None = None) -> None:
        self.ids = Ids(seed)
        self.graph = Graph(directed=directed, weighted=False, threads=threads)
        self.edges = EdgeSet(directed=directed)
        self.program = Components("components", self.ids)
        self.fresh = Components("fresh", Ids(seed))
        self.program.start(self.graph)

    def step(self, epoch: Epoch) -> Refresh:
        """Apply an epoch and check that exactly what changed is reported."""
        change = self.graph.apply(epoch.batch(), epoch.n_vertices)
        self.edges.apply(epoch)
        n = change.n_vertices_before
        before = {name: column[:n].copy() for name, column in self.program.columns().items()}
        refresh = self.program.refresh(self.graph, change)
        assert_written_records_hold(self.program)
        for name, column in self.program.columns().items():
            if refresh.started_over:
                assert refresh.changed[name] is None
                continue
            reported = refresh.changed.get(name)
            listed = [] if reported is None else reported.tolist()
            assert len(listed) == len(set(listed))
            assert {v for v in listed if v < n} == set(np.flatnonzero(column[:n] != before[name]).tolist())
            if name == "handle":
                assert {v for v in listed if v >= n} == set(range(n, epoch.n_vertices))
        return refresh

    @property
    def labels(self) -> list[int]:
        """The dense vertex that names each vertex's component."""
        n = self.graph.n_vertices
        published = Published(self.program.columns(), self.program.scalars(), n)
        answer = Components.read(published, np.arange(n, dtype=np.uint32))
        assert answer.vertex_valued and not answer.null.any()
        labels: list[int] = answer.values.tolist()
        return labels

    def sizes(self) -> list[int]:
        """Sizes of all components, ascending."""
        size = self.program.columns()["size"][: self.graph.n_vertices]
        return sorted(size[size > 0].tolist())

    def check(self) -> None:
        """Against a fresh run, and both audits."""
        assert self.program.audit(self.graph) == []
        read = self.fresh.start(self.graph).edges_read
        assert read <= 3 * self.graph.n_arcs * (2 if self.graph.directed else 1)
        assert self.fresh.audit(self.graph) == []
        mine, other = self.labels, self.fresh
        published = Published(other.columns(), other.scalars(), self.graph.n_vertices)
        assert mine == Components.read(published, np.arange(len(mine), dtype=np.uint32)).values.tolist()
        assert self.program.scalars() == self.fresh.scalars() == {"components": len(set(mine))}

    def check_against_oracle(self) -> None:
        n = self.edges.n_vertices
        if n == 0:
            return
        pairs = np.array([(u, v) for u, v, _ in self.edges.arcs()], np.int64).reshape(-1, 2)
        matrix = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
        _, part = connected_components(matrix, directed=False)
        by_id = self.ids.ids[:n].argsort()
        first = dict(zip(part[by_id][::-1].tolist(), by_id[::-1].tolist(), strict=True))
        assert self.labels == [first[p] for p in part.tolist()]


def play(history: History, run: Run, *, oracle: bool = False) -> list[Refresh]:
    done = []
    for epoch in history.epochs:
        done.append(run.step(epoch))
        run.check()
        if oracle:
            run.check_against_oracle()
    return done


@settings(deadline=None, max_examples=examples(200))
@given(small_histories(), st.integers(0, 50))
def test_any_history(history: History, seed: int) -> None:
    play(history, Run(history.directed, seed), oracle=True)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_long_histories(seed: int, directed: bool) -> None:
    run = Run(directed, seed)
    play(random_history(seed, directed=directed, vertices=30), run)
    run.check_against_oracle()


@pytest.mark.parametrize("directed", [True, False])
def test_work_space_for_a_large_change_is_given_back(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is written down for kernels keeps none of it until there is another change."""
    monkeypatch.setattr(module, "_ROOM", 8)
    run = Run(directed)
    for epoch in random_history(1, directed=directed, vertices=30).epochs:
        run.step(epoch)
        run.check()
        record = run.program._held.record
        assert record.room.found.size == run.program._room.found.size == 8


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("degree", [1, 4])
def test_rmat_histories(degree: int, directed: bool) -> None:
    run = Run(directed)
    play(rmat_history(degree, directed=directed, degree=degree), run)
    run.check_against_oracle()


@pytest.mark.parametrize(("name", "updates"), [("as733-21days", 150), ("highschool2012", 500)])
def test_real_deletions(name: str, updates: int) -> None:
    run = Run(directed=False)
    play(real_history(name, directed=False, updates=updates), run)
    run.check_against_oracle()


@pytest.mark.parametrize("directed", [True, False])
def test_many_cuts_at_once(directed: bool) -> None:
    """A grid loses a random quarter of its edges, epoch after epoch, and gets them back: large searches."""
    side = 24
    n = side * side
    across = [(v, v + 1) for v in range(n) if (v + 1) % side]
    down = [(v, v + side) for v in range(n - side)]
    edges = np.array(across + down)
    rng = np.random.default_rng(8)
    run = Run(directed)
    run.step(inserts([tuple(e) for e in edges.tolist()], n))
    for _ in range(12):
        gone = [tuple(e) for e in edges[rng.random(len(edges)) < rng.choice([0.02, 0.25, 0.6])].tolist()]
        run.step(deletes(gone, n))
        run.check()
        run.check_against_oracle()
        run.step(inserts(gone, n))
        run.check()
    assert run.sizes() == [n]


@pytest.mark.parametrize("directed", [True, False])
def test_cuts_below_each_other(directed: bool) -> None:
    """Two long rails with a rung now and then lose links all along: most pieces are large, below another, and find
    what replaces their link only far away, or not at all."""
    half = 1_000
    n = 2 * half
    name = np.random.default_rng(4).permutation(n)
    rails = [(v, v + 1) for v in range(n - 1) if v != half - 1]
    rungs = [(v, v + half) for v in range(0, half, 70)]
    edges = name[np.array(rails + rungs)]
    rng = np.random.default_rng(9)
    run = Run(directed)
    run.step(inserts([tuple(e) for e in edges.tolist()], n))
    for cuts in (1, 2, 3, 5, 9, 20, 60):
        for _ in range(4):
            gone = [tuple(e) for e in edges[rng.choice(len(edges), cuts, replace=False)].tolist()]
            assert not run.step(deletes(gone, n)).started_over
            run.check()
            run.check_against_oracle()
            run.step(inserts(gone, n))
            run.check()
    assert run.sizes() == [n]


def test_a_large_change_of_a_road_network_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """First after a share of what a fresh start costs, then at once; and small changes never do."""
    monkeypatch.setattr(module, "_WORK_FLOOR", 1 << 12)  # the network is a small one
    run = Run(directed=False)
    active = []
    for change, undone in road_batches(120, 1 / 7, 3, seed=5):
        refresh = run.step(change)
        run.check_against_oracle()
        assert refresh.started_over
        active.append(refresh.active)
        run.step(undone)
        u, v = int(change.src[0]), int(change.dst[0])
        assert not run.step(deletes([(u, v)], run.graph.n_vertices)).started_over
        run.step(inserts([(u, v)], run.graph.n_vertices))
    n = run.graph.n_vertices
    assert n < active[1] < 2 * n
    assert active[3] == n


def test_starting_over_when_the_search_costs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORK_FLOOR", 0)
    monkeypatch.setattr(module, "_WORK_SHARE", 8)
    started_over = 0
    for seed in range(6):
        run = Run(seed % 2 == 0, seed)
        started_over += sum(r.started_over for r in play(random_history(seed, directed=seed % 2 == 0), run))
    assert started_over > 5


@pytest.mark.sample(among="threads change nothing")
@pytest.mark.parametrize("directed", [True, False])
def test_threads_change_nothing(directed: bool) -> None:
    """A graph large enough for several spans to the same forest with one; also one of many small trees."""
    for degree in (1, 4):
        history = rmat_history(3, directed=directed, scale=16, degree=degree, epochs=0)
        forests = []
        for threads in (1, 2, 5):
            run = Run(directed, threads=threads)
            run.step(history.epochs[0])
            run.fresh.start(run.graph)
            forest = run.fresh._forest
            used = forest.counts[1]
            vertices = (forest.parent, forest.handle, forest.next, forest.prev, forest.level)
            forests.append(
                [
                    *(column[: 1 << 16].copy() for column in vertices),
                    *(column[:used].copy() for column in (forest.size, forest.representative)),
                ]
            )
            run.graph.close()
        for forest in forests[1:]:
            for one, other in zip(forests[0], forest, strict=True):
                np.testing.assert_array_equal(one, other)
        run.check()
        run.check_against_oracle()


@pytest.mark.parametrize("directed", [True, False])
def test_a_row_that_threads_push_is_pushed_in_its_order(directed: bool) -> None:
    """A hub with more neighbours than one thread pushes; some point back to it, and half of them are in pairs."""
    n = 3 * _LONG_ROW
    ends = np.arange(1, n, dtype=np.uint32)
    hub = np.zeros_like(ends)
    src, dst = (hub, ends[::3], ends[:-1:2]), (ends, hub[::3], ends[1::2])
    batch = EdgeBatch.of(np.concatenate(src), np.concatenate(dst))
    forests = []
    for threads in (1, 2, 5):
        graph = Graph(directed=directed, weighted=False, threads=threads)
        graph.apply(batch, n)
        program = Components("labels", Ids(3))
        program.start(graph)
        assert program.audit(graph) == []
        forest = program._forest
        forests.append([column[:n].copy() for column in (forest.parent, forest.level, forest.next, forest.prev)])
        graph.close()
    assert (forests[0][0][1:] == 0).all()
    for forest in forests[1:]:
        for one, other in zip(forests[0], forest, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("directed", [True, False])
def test_cuts_by_threads_are_those_by_one(directed: bool) -> None:
    """Many links of the forest are cut at once, which several threads look at: all leave the same forest."""
    history = rmat_history(7, directed=directed, scale=13, degree=8, updates=20_000, epochs=3)
    forests = []
    for threads in (1, 2, 5):
        run = Run(directed, threads=threads)
        for epoch in history.epochs:
            assert not run.step(epoch).started_over
        run.check()
        forest, n = run.program._forest, run.graph.n_vertices
        columns = forest.parent, forest.handle, forest.next, forest.prev, forest.level, forest.size
        forests.append([*(column[:n].copy() for column in columns), forest.free[: forest.counts[0]].copy()])
        run.graph.close()
    for forest in forests[1:]:
        for one, other in zip(forests[0], forest, strict=True):
            np.testing.assert_array_equal(one, other)


def test_large_batches_are_told_apart_by_threads_as_by_one() -> None:
    """What is not safe comes in the order of the batch, whoever found it, and however long its two parts are."""
    rng = np.random.default_rng(5)
    n = 1 << 14
    handle = rng.integers(0, 40, n).astype(np.uint32)
    parent = rng.integers(0, n, n).astype(np.uint32)
    tree = parent.astype(np.uint64) << HALF | np.arange(n, dtype=np.uint64)
    for n_inserted, n_deleted in ((20_000, 30_000), (50_000, 0), (0, 17_000), (kernels.PIECE, 3 * kernels.PIECE)):
        inserted, deleted = (
            rng.integers(0, n, size).astype(np.uint64) << HALF | rng.integers(0, n, size).astype(np.uint64)
            for size in (n_inserted, n_deleted)
        )
        chosen = rng.random(n_deleted) < 0.3
        deleted[chosen] = rng.choice(tree, int(chosen.sum()))
        u, v = sources(inserted), destinations(inserted)
        wanted = inserted[handle[u] != handle[v]]
        u, v = sources(deleted), destinations(deleted)
        cut = deleted[(parent[v] == u) | (parent[u] == v)]
        for threads in (1, 2, 5):
            joining, links = np.empty_like(inserted), np.empty_like(deleted)
            pieces = np.zeros(1 - (-max(n_inserted, n_deleted) // kernels.PIECE), np.int64)
            n_joining, n_links = kernels.classify(
                handle, parent, inserted, deleted, joining, links, pieces, crew(threads)
            )
            np.testing.assert_array_equal(joining[:n_joining], wanted)
            np.testing.assert_array_equal(links[:n_links], cut)


# -- shapes that hurt ---------------------------------------------------------------------------------------


def path(n: int) -> list[tuple[int, int]]:
    return [(v, v + 1) for v in range(n - 1)]


@pytest.mark.parametrize("directed", [True, False])
def test_the_bridge_of_a_long_path(directed: bool) -> None:
    n = 50_000
    run = Run(directed)
    run.step(inserts(path(n), n))
    assert run.sizes() == [n]
    # Near one end: the small side is exhausted, the long one is not read.
    refresh = run.step(deletes([(30, 31)], n))
    assert run.sizes() == [31, n - 31] and refresh.edges_read < 400 and refresh.active < 400
    run.step(inserts([(0, n - 1)], n))
    assert run.sizes() == [n]
    run.step(deletes([(n // 2, n // 2 + 1)], n))
    run.check()
    assert run.sizes() == [n // 2 - 30, n - (n // 2 - 30)]


def test_a_hub_loses_everything_and_one_edge() -> None:
    n = 3_000
    star = [(0, v) for v in range(1, n)]
    run = Run(directed=False)
    run.step(inserts(star, n))
    refresh = run.step(deletes([(0, 7)], n))  # the leaf is exhausted before the hub's row is read
    assert run.sizes() == [1, n - 1] and refresh.edges_read <= 2 * TURN_EDGES
    run.step(deletes(star, n))
    run.check()
    assert run.sizes() == [1] * n
    run.step(inserts(star, n))
    run.check()
    assert run.sizes() == [n]


def test_two_cliques_and_their_bridge() -> None:
    left = [(a, b) for a in range(60) for b in range(a)]
    right = [(a + 60, b + 60) for a, b in left]
    run = Run(directed=True)
    run.step(inserts([*left, *right, (3, 70), (90, 5)], 120))
    run.step(deletes([(3, 70)], 120))
    assert run.sizes() == [120]
    run.step(deletes([(90, 5)], 120))
    run.check()
    assert run.sizes() == [60, 60]


def test_both_directions_of_an_edge_support_one_link() -> None:
    run = Run(directed=True)
    run.step(inserts([(0, 1), (1, 0), (1, 2)], 3))
    for gone, sizes in (([(0, 1)], [3]), ([(1, 0)], [1, 2])):
        run.step(deletes(gone, 3))
        assert run.sizes() == sizes
        run.check()
    run.step(inserts([(0, 1), (1, 0)], 3))
    run.step(deletes([(1, 0), (0, 1)], 3))
    assert run.sizes() == [1, 2]
    run.check()


def test_a_replacement_in_the_same_epoch() -> None:
    run = Run(directed=True)
    run.step(inserts(path(100), 100))
    epoch = deletes([(50, 51)], 100)
    one = inserts([(60, 20)], 100)
    joined = Epoch(
        np.concatenate([one.src, epoch.src]),
        np.concatenate([one.dst, epoch.dst]),
        np.concatenate([one.ops, epoch.ops]),
        np.concatenate([one.weights, epoch.weights]),
        100,
    )
    run.step(joined)
    run.check()
    assert run.sizes() == [100]


# -- work -----------------------------------------------------------------------------------------------------


@pytest.mark.sample(among="work is in proportion")
def test_work_is_in_proportion_to_the_change() -> None:
    """Deleting links of a giant component reads a few rows each, and edges inside it read nothing."""
    n = 20_000
    rng = np.random.default_rng(5)
    pairs = [(int(a), int(b)) for a, b in rng.integers(0, n, (n * 8, 2)) if a != b]
    run = Run(directed=True)
    run.step(inserts(pairs, n))
    run.ids.asked = 0
    inside = run.step(inserts([(int(a), int(b)) for a, b in rng.integers(0, n, (2_000, 2))], n))
    assert inside.edges_read == 0 and inside.active == 0 and inside.changed == {}
    parent = run.program.state()["parent"]
    present = set(run.edges.edges)
    links = [(u, v) for u, v in present if (parent[u] == v or parent[v] == u) and (v, u) not in present]
    others = [(u, v) for u, v in present if parent[u] != v and parent[v] != u]
    safe = run.step(deletes(others[:500], n))
    assert safe.edges_read == 0 and safe.changed == {}
    for link in links[:30]:
        one = run.step(deletes([link], n))
        assert 0 < one.edges_read < 500 and one.active < 500
    run.step(deletes(links[30:400], n))
    assert run.ids.asked < 100
    run.check()


# -- labels ---------------------------------------------------------------------------------------------------


def test_the_smallest_id_leaves_a_large_component_again_and_again() -> None:
    """The next label comes from the order of vertices, not from a pass over the component, once that pays."""
    n = 3_000
    run = Run(directed=True)
    rng = np.random.default_rng(2)
    pairs = sorted({(int(a), int(b)) for a, b in rng.integers(0, n, (n * 4, 2)) if a != b})
    run.step(inserts(pairs, n))
    asked = []
    for _ in range(25):
        giant = max(set(run.labels), key=run.labels.count)
        cut = [(u, v) for u, v in run.edges.edges if giant in (u, v)]
        # New vertices with small ids join meanwhile: they wait in the tail of the order.
        total = run.graph.n_vertices
        run.step(inserts([(total, (giant + 1) % n)], total + 1))
        run.ids.asked = 0
        run.step(deletes(cut, total + 1))
        asked.append(run.ids.asked)
    # So many passes as one sort is worth; the sort of all; from then on a few new vertices each.
    passes, rest = asked[: module._PASSES_PER_SORT], asked[module._PASSES_PER_SORT :]
    assert all(n // 2 < once <= total for once in passes)
    assert rest[0] > n and max(rest[1:]) < 200
    run.check()
    run.check_against_oracle()


def test_the_order_sorts_its_tail_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_order, "_TAIL_FLOOR", 4)
    ids = Ids(3)
    order = SortedVertices(ids)
    for n in (2, 10, 11, 12, 40, 44, 200):
        ordered = order.prepare(n)
        assert n - ordered.size <= max(4, ordered.size // 8)
        assert np.array_equal(ordered, ids.sort_by_external(np.arange(ordered.size, dtype=np.uint32)))
        assert all(ordered[order.position(v)] == v for v in range(ordered.size))
    assert order.position(200) == 0


@pytest.mark.parametrize("kind", ["int", "string"])
def test_labels_by_a_vertex_index(kind: Kind) -> None:
    """Integers are compared by value, strings by their bytes."""
    names = [-5, 10, 9, 2**40, -(2**63), 7]
    columns: IdColumn = np.array(names)
    if kind == "string":
        columns = StringColumn.of(["b", "ab", "é", "B", "a", ""])
    index = VertexIndex.create(kind)
    dense = index.insert(columns)
    graph = Graph(weighted=False)
    program = Components("parts", index)
    program.start(graph)
    joined = [(0, 1), (1, 2), (3, 4), (4, 5)]
    program.refresh(graph, graph.apply(inserts([(int(dense[a]), int(dense[b])) for a, b in joined], 6).batch(), 6))
    published = Published(program.columns(), program.scalars(), 6)
    expected = [0, 0, 0, 4, 4, 4] if kind == "int" else [1, 1, 1, 5, 5, 5]
    assert Components.read(published, dense).values.tolist() == dense[expected].tolist()
    assert program.audit(graph) == []
    graph.close()


# -- saving, the audit --------------------------------------------------------------------------------------


def test_a_state_that_is_no_forest_is_refused() -> None:
    run = Run(directed=True)
    for epoch in random_history(7, directed=True).epochs:
        run.step(epoch)
    saved = {name: column.copy() for name, column in run.program.state().items()}
    with pytest.raises(ValueError, match="outside"):
        run.program.restore(dict(saved, handle=saved["handle"] + np.uint32(1000)), run.graph)
    with pytest.raises(ValueError, match="no members"):
        run.program.restore(dict(saved, representative=saved["representative"][::-1].copy()), run.graph)
    round_and_round = np.roll(np.arange(run.graph.n_vertices, dtype=np.uint32), 1)
    with pytest.raises(ValueError, match="no forest"):
        run.program.restore(dict(saved, parent=round_and_round), run.graph)


def test_stamps_run_out() -> None:
    run = Run(directed=False)
    run.step(inserts(path(6), 6))
    run.program._run = 2**32 - 2
    for _ in range(3):
        run.step(deletes([(2, 3)], 6))
        run.check()
        run.step(inserts([(2, 3)], 6))
        run.check()
    assert run.program._run < 20


def broken_run() -> Run:
    """Vertices 0 to 5 on a ring with a chord, 6 to 8 on a path, 9 alone; external ids are the dense ones."""
    run = Run(directed=True)
    run.ids.ids = np.arange(100)
    run.step(inserts([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (6, 7), (7, 8)], 10))
    assert run.program.audit(run.graph) == []
    return run


def rules(run: Run) -> set[str]:
    return {violation.rule for violation in run.program.audit(run.graph)}


def test_the_audit_finds_a_cycle_that_supports_itself() -> None:
    """Every link is an edge and every edge joins equal handles; only levels show the cycle."""
    run = broken_run()
    parent = run.program.state()["parent"]
    root = int(np.flatnonzero(parent[:6] == NO_VERTEX)[0])
    parent[:6] = [1, 2, 3, 4, 5, 0]
    assert root < 6 and rules(run) == {"forest", "one-root"}


def test_the_audit_finds_a_missed_split() -> None:
    run = broken_run()
    parent = run.program.state()["parent"]
    link = (6, 7) if parent[7] == 6 or parent[6] == 7 else (7, 8)
    run.graph.apply(deletes([link], 10).batch(), 10)
    assert rules(run) == {"link"}


def test_the_audit_finds_a_missed_join() -> None:
    run = broken_run()
    run.graph.apply(inserts([(8, 9)], 10).batch(), 10)
    assert rules(run) == {"split-edge"}


@pytest.mark.parametrize(
    ("column", "vertex", "value", "expected"),
    [
        ("representative", 0, 3, {"representative"}),
        ("size", 0, 5, {"size", "list"}),
        ("handle", 4, None, {"split-edge", "link", "size", "representative", "list"}),
        ("parent", 9, 0, {"link", "one-root"}),
        ("level", 8, -1, {"forest"}),
        ("level", 7, 1 << 40, {"forest"}),
        ("next", 2, 2, {"list"}),
        ("prev", 7, 7, {"list"}),
        ("handle", 9, 1 << 20, {"handle"}),
    ],
)
def test_the_audit_finds_a_broken_entry(column: str, vertex: int, value: int | None, expected: set[str]) -> None:
    run = broken_run()
    forest = run.program._forest
    handle = forest.handle
    at = int(handle[vertex]) if column in ("representative", "size") else vertex
    getattr(forest, column)[at] = handle[6] if value is None else value
    assert rules(run) & expected and rules(run) <= expected | {"free", "forest", "one-root"}


def test_the_audit_finds_a_lost_handle() -> None:
    run = broken_run()
    run.step(inserts([(5, 6)], 10))
    run.program._forest.counts[0] -= 1
    assert rules(run) == {"free"}


def test_the_audit_finds_a_free_handle_that_still_has_a_name() -> None:
    run = broken_run()
    run.step(inserts([(5, 6)], 10))
    forest = run.program._forest
    forest.representative[forest.free[0]] = 3
    assert [violation.rule for violation in run.program.audit_whole(run.graph)[0]] == ["free"]


def test_a_start_after_memory_ran_out_has_room_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 5000
    path = inserts([(u, u + 1) for u in range(n - 1)], n)
    whole = Run(directed=True)
    whole.step(path)
    for at in range(3):
        run = Run(directed=True)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_grown", failing(module._grown, at))
            with pytest.raises(MemoryError):
                run.step(path)
        run.program._grow(n)
        assert run.program.memory_bytes() >= whole.program.memory_bytes() - whole.program._sorted.memory_bytes()
        run.program.start(run.graph)
        run.check()


@pytest.mark.parametrize("call", ["_new_room", "_new_pieces", "write"])
@pytest.mark.parametrize("at", range(4))
def test_work_space_for_many_cuts_that_could_not_be_had_or_given_back(
    call: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts anew goes on with what is written down, in work space for few cuts or many."""
    monkeypatch.setattr(module, "_CUTS", 1)
    monkeypatch.setattr(module, "_ROOM", 4)
    links = [(v, v + 1) for v in range(39)]
    run = Run(directed=False)
    run.step(inserts(links, 40))
    with monkeypatch.context() as patch:
        where: Any = Written if call == "write" else module
        patch.setattr(where, call, failing(getattr(where, call), at))
        with contextlib.suppress(MemoryError):
            run.step(deletes(links[::7], 40))
    run.program.start(run.graph)
    for u, v in (*links[1::7], *links[2::7]):
        run.step(deletes([(u, v)], 40))
        run.check()


def test_what_is_written_down_holds_whatever_happens_in_between() -> None:
    """Starts, restored states, vertices that come by many, and threads of another graph."""
    rng = np.random.default_rng(31)
    run = Run(True, seed=31, threads=2)
    n = 50
    for k in range(12):
        n += (0, 3, 400, 20_000)[k % 4]
        src, dst = rng.integers(0, n, 40), rng.integers(0, n, 40)
        run.step(inserts(list(zip(src.tolist(), dst.tolist(), strict=True)), n))
        if k % 3 == 0:
            run.program.start(run.graph)
        elif k % 3 == 1:
            run.program.restore({name: part.copy() for name, part in run.program.state().items()}, run.graph)
        assert_written_records_hold(run.program)
    run.check()
