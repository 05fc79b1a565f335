"""Triangles and local clustering, against NetworkX and LDBC's definition, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np
import pytest
from histories import (
    EdgeSet,
    Epoch,
    History,
    deletes,
    epoch_of,
    inserts,
    random_history,
    real_history,
    rmat_history,
    small_histories,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from graphtide.compute import registry
from graphtide.compute.program import Published, Refresh
from graphtide.compute.triangles import LocalClustering, Triangles, change, start, tally
from graphtide.gpma.edges import Op
from graphtide.gpma.memory import Memory
from graphtide.partition.graph import Graph

both_ways = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])


def arcs_among_neighbors(edges: EdgeSet) -> list[int]:
    """By LDBC's definition, and by nothing but loops over sets."""
    arcs = {(u, v) for u, v, _ in edges.arcs() if u != v}
    near: list[set[int]] = [set() for _ in range(edges.n_vertices)]
    for u, v in arcs:
        near[u].add(v)
        near[v].add(u)
    heads: list[set[int]] = [set() for _ in range(edges.n_vertices)]
    for u, v in arcs:
        heads[u].add(v)
    return [sum(len(heads[u] & mine) for u in mine) for mine in near]


class Run:
    """A graph with both programs on it, moved epoch by epoch, and what they should say."""

    def __init__(self, directed: bool, *, threads: int = 1) -> None:
        self.graph = Graph(directed=directed, weighted=False, threads=threads)
        self.edges = EdgeSet(directed=directed)
        self.triangles, self.lcc = Triangles("kept"), LocalClustering("kept lcc")
        for program in (self.triangles, self.lcc):
            program.start(self.graph)

    def step(self, epoch: Epoch) -> tuple[Refresh, Refresh]:
        change = self.graph.apply(epoch.batch(), epoch.n_vertices, epoch.vertex_ops())
        self.edges.apply(epoch)
        return self.triangles.refresh(self.graph, change), self.lcc.refresh(self.graph, change)

    def values(self, program: Triangles | LocalClustering) -> list[float]:
        n = self.graph.n_vertices
        published = Published(program.columns(), program.scalars(), n)
        answer = type(program).read(published, np.arange(n, dtype=np.uint32))
        assert not answer.null.any()
        values: list[float] = answer.values.tolist()
        return values

    def check(self) -> None:
        """Equal to NetworkX, to the definition, and to fresh starts."""
        simple, n = self.edges.simple(), self.graph.n_vertices
        counted = nx.triangles(simple)
        assert self.values(self.triangles) == [counted[v] for v in range(n)]
        assert self.triangles.scalars() == {"triangles": sum(counted.values()) // 3}
        columns = self.lcc.columns()
        arcs, degrees = arcs_among_neighbors(self.edges), [simple.degree[v] for v in range(n)]
        assert columns["arcs"][:n].tolist() == arcs
        assert columns["neighbors"][:n].tolist() == degrees
        shares = [among / (d * (d - 1)) if d > 1 else 0.0 for among, d in zip(arcs, degrees, strict=True)]
        assert self.values(self.lcc) == shares
        if not self.graph.directed and n:
            clustering = nx.clustering(simple)
            np.testing.assert_allclose(shares, [clustering[v] for v in range(n)], rtol=1e-15)
        mean = sum(shares) / self.graph.n_alive if self.graph.n_alive else 0.0
        assert self.lcc.scalars()["mean"] == pytest.approx(mean, rel=1e-14)
        self.check_fresh()

    def check_fresh(self) -> None:
        """Fresh starts say the same, to the last bit."""
        n = self.graph.n_vertices
        for program in (self.triangles, self.lcc):
            fresh = type(program)("fresh")
            fresh.start(self.graph)
            for name, column in program.columns().items():
                assert column[:n].tolist() == fresh.columns()[name][:n].tolist()
            assert program.scalars() == fresh.scalars()

    def close(self) -> None:
        self.graph.close()


class Spent(Memory):
    def require(self, n_bytes: int) -> None:
        raise MemoryError(f"{n_bytes} bytes more are needed, and none are left")


def clique(vertices: Sequence[int]) -> list[tuple[int, int]]:
    return [(u, v) for u in vertices for v in vertices if u < v]


@settings(deadline=None, max_examples=examples(150))
@given(history=small_histories())
def test_any_history(history: History) -> None:
    run = Run(history.directed)
    for epoch in history.epochs:
        run.step(epoch)
        run.check()
    run.close()


@both_ways
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("vertex_share", [0.0, 0.05])
def test_long_histories(directed: bool, seed: int, vertex_share: float) -> None:
    """Of few vertices, so that there are triangles, some of which are deleted and come back."""
    run = Run(directed)
    most = 0
    for epoch in random_history(
        seed, directed=directed, vertices=10, updates_max=80, vertex_share=vertex_share
    ).epochs:
        run.step(epoch)
        run.check()
        most = max(most, int(run.triangles.scalars()["triangles"]))
    assert most > 0
    run.close()


@both_ways
def test_dense_histories(directed: bool) -> None:
    """Each epoch gives every third pair of 16 vertices another fate: triangles with three changed links, of all
    kinds, are the rule."""
    rng = np.random.default_rng(7)
    run = Run(directed)
    pairs = [(u, v) for u in range(16) for v in range(16)]
    for _ in range(40):
        chosen = [pairs[k] for k in rng.permutation(len(pairs))[: len(pairs) // 3]]
        run.step(epoch_of([(int(rng.random() < 0.6), u, v, 1.0) for u, v in chosen], 16))
        run.check()
    assert run.triangles.scalars()["triangles"] > 100
    run.close()


@pytest.mark.sample(1)
@both_ways
def test_skewed_histories(directed: bool) -> None:
    run = Run(directed, threads=2)
    started_over = []
    for epoch in rmat_history(
        3, directed=directed, scale=12, degree=8, updates=[1, 40, 300, 3_000], epochs=4
    ).epochs:
        started_over.append([report.started_over for report in run.step(epoch)])
        run.check()
    assert started_over[1:3] == [[False, False]] * 2
    run.close()


@pytest.mark.parametrize(("name", "updates"), [("as733-21days", 150), ("highschool2012", 500)])
def test_real_deletions(name: str, updates: int) -> None:
    run = Run(directed=False)
    for k, epoch in enumerate(real_history(name, directed=False, updates=updates).epochs):
        run.step(epoch)
        if k % 16 == 0:
            run.check()
    run.check()
    run.close()


# -- batches that mix -----------------------------------------------------------------------------------------


def test_both_arcs_of_a_link_in_one_batch() -> None:
    run = Run(directed=True)
    run.step(inserts([(0, 1), (1, 2), (2, 0), (1, 0)], 3))
    run.check()
    assert run.lcc.columns()["arcs"][:3].tolist() == [1, 1, 2]
    # Turned round: the link stays, with as many arcs.
    silent = run.step(epoch_of([(Op.DELETE, 1, 2, 1.0), (Op.INSERT, 2, 1, 1.0)], 3))
    assert [report.changed for report in silent] == [{}, {}] and [report.edges_read for report in silent] == [0, 0]
    run.check()
    one, both = run.step(deletes([(1, 0)], 3))
    assert one.changed == {} and one.edges_read == 0 and list(both.changed) == ["arcs"]
    run.check()
    run.step(deletes([(0, 1)], 3))
    run.check()
    assert run.values(run.triangles) == [0, 0, 0]
    run.step(inserts([(0, 1), (1, 0)], 3))
    run.check()
    run.close()


@both_ways
def test_a_triangle_with_three_changed_links_of_different_kinds(directed: bool) -> None:
    """One made, one ended, one with another arc or back again; every order of the three vertices."""
    for a, b, c in ((0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)):
        run = Run(directed)
        run.step(inserts([(a, b), (b, c), (a, 3), (b, 3), (c, 3)], 4))
        run.check()
        ops = [(Op.DELETE, a, b, 1.0), (Op.INSERT, c, a, 1.0), (Op.INSERT, c, b, 1.0)]
        run.step(epoch_of(ops, 4))
        run.check()
        run.step(epoch_of([(1 - op, u, v, w) for op, u, v, w in reversed(ops)], 4))
        run.check()
        run.step(inserts([(a, b), (b, c), (c, a)], 4))
        run.check()
        assert run.triangles.scalars() == {"triangles": 4}
        run.step(epoch_of([(Op.DELETE_VERTEX, a, 0, 1.0), (Op.INSERT, a, b, 1.0), (Op.INSERT, 3, a, 1.0)], 4))
        run.check()
        assert run.triangles.scalars() == {"triangles": 2}
        run.close()


@both_ways
def test_a_clique_comes_and_goes_at_once(directed: bool) -> None:
    """Beside a sparse graph, for which a start is so cheap that this is one; and link by link, without."""
    rng = np.random.default_rng(1)
    run = Run(directed)
    run.step(inserts([(int(u), int(v)) for u, v in rng.integers(0, 400, (500, 2))], 400))
    members = rng.permutation(400)[:60].tolist()
    beside = run.triangles.scalars()["triangles"]
    for _ in range(2):
        run.step(inserts(clique(members), 400))
        run.check()
        assert run.triangles.scalars()["triangles"] >= 60 * 59 * 58 // 6
        run.step(deletes(clique(members), 400))
        run.check()
    assert run.triangles.scalars()["triangles"] <= beside
    run.close()


@both_ways
def test_a_clique_is_taken_link_by_link_where_that_is_cheaper(
    directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "_STEPS_FLOOR", 1 << 40)
    run = Run(directed, threads=2)
    members = list(range(0, 120, 2))
    reports = run.step(inserts([*clique(members), (0, 1), (1, 2), (5, 7)], 120))
    run.check()
    assert [report.started_over for report in reports] == [False, False]
    assert run.triangles.scalars()["triangles"] == 60 * 59 * 58 // 6 + 1
    reports = run.step(deletes(clique(members), 120))
    run.check()
    assert [report.started_over for report in reports] == [False, False]
    assert run.triangles.scalars() == {"triangles": 0} and run.lcc.scalars() == {"mean": 0}
    run.close()


@both_ways
def test_without_memory_for_a_start_a_change_is_taken_link_by_link(
    directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large it is; a start that is no choice fails, and leaves all as it was."""
    run = Run(directed)
    run.step(inserts([(v, v + 1) for v in range(119)], 120))
    with monkeypatch.context() as scarce:
        scarce.setattr(tally, "Memory", Spent)
        reports = run.step(inserts(clique(range(0, 120, 2)), 120))
        assert [report.started_over for report in reports] == [False, False]
        for program in (run.triangles, run.lcc):
            with pytest.raises(MemoryError):
                program.start(run.graph)
    run.check()
    run.close()


@pytest.mark.sample(2)
@both_ways
@pytest.mark.parametrize("hub", [0, 700, 1_500], ids=["smallest", "between", "largest"])
def test_links_of_a_hub(directed: bool, hub: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Much larger rows, which are not listed but searched, in place and where they are listed for another link.

    With a loop; and neighbours that the batch gives to the hub and takes from it, and to each other.
    """
    monkeypatch.setattr(tally, "_STEPS_FLOOR", 1 << 40)
    rng = np.random.default_rng(2)
    run = Run(directed)
    others = [v for v in range(1_501) if v != hub]
    spokes = [(hub, v) if rng.random() < 0.5 else (v, hub) for v in others[:1_200]]
    rim = [(int(u), int(v)) for u, v in rng.integers(0, 1_501, (1_500, 2)) if hub not in (u, v)]
    run.step(inserts([*spokes, *rim, (hub, hub)], 1_501))
    run.check()
    for _ in range(12):
        moves = []
        for _ in range(int(rng.integers(1, 12))):
            v, w = (int(x) for x in rng.choice(others, 2))
            moves += [(int(rng.integers(0, 2)), *pair, 1.0) for pair in ((hub, v), (v, hub), (v, w), (w, hub))]
        reports = run.step(epoch_of(moves, 1_501))
        assert not any(report.started_over for report in reports)
        run.check()
    run.close()


@both_ways
def test_two_hubs(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose link closes a thousand triangles at once."""
    monkeypatch.setattr(tally, "_STEPS_FLOOR", 1 << 40)
    run = Run(directed)
    run.step(inserts([(hub, v) for v in range(2, 1_002) for hub in (0, 1)], 1_002))
    for epoch in (inserts([(0, 1)], 1_002), deletes([(0, 1)], 1_002), inserts([(1, 0)], 1_002)):
        run.step(epoch)
        run.check()
    assert run.triangles.scalars() == {"triangles": 1_000}
    run.step(epoch_of([(Op.DELETE_VERTEX, 1, 0, 1.0)], 1_002))
    run.check()
    assert run.triangles.scalars() == {"triangles": 0}
    run.close()


# -- work -----------------------------------------------------------------------------------------------------


@pytest.mark.sample(among="work is in proportion")
@both_ways
def test_work_is_what_the_changed_links_rows_have(directed: bool) -> None:
    """On RMAT 16: at most both rows of a link where they are merged, the smaller one where it is looked up."""
    load, *epochs = rmat_history(
        5, directed=directed, scale=16, degree=12, updates=[1, 1, 100, 100, 1_000], epochs=5
    ).epochs
    run = Run(directed)
    run.step(load)
    searched = 0
    for epoch in epochs:
        change = run.graph.apply(epoch.batch(), epoch.n_vertices)
        report = run.triangles.refresh(run.graph, change)
        clustering = run.lcc.refresh(run.graph, change)
        rows = [run.graph.out_rows()] + [run.graph.in_rows()] * directed
        degrees = sum(view.degrees.astype(np.int64) for view in rows)
        touched = {*change.arcs.inserted.keys.tolist(), *change.arcs.deleted.keys.tolist()}
        links = {tuple(sorted((key >> 32, key & 0xFFFF_FFFF))) for key in touched}
        overlay = {vertex: sum(vertex in link for link in links) for link in links for vertex in link}
        merged = 0
        for u, v in links - {(u, u) for u, _ in links}:
            few, many = sorted(int(degrees[vertex]) + overlay[vertex] for vertex in (u, v))
            searched += 12 * few < many
            merged += few if 12 * few < many else few + many
        assert not report.started_over and report.edges_read <= merged
        # An arc more of a link that was there, or is left, changes how many arcs its triangles have, too.
        assert not clustering.started_over and clustering.edges_read <= merged
    assert searched > 20
    run.check_fresh()
    run.close()


@both_ways
def test_no_batch_reads_much_more_than_a_start(directed: bool) -> None:
    """Of any size, also where it cannot be told beforehand which is cheaper."""
    load, *epochs = rmat_history(
        6, directed=directed, scale=13, degree=8, updates=[1, 10, 100, 500, 1_000, 2_000, 5_000, 20_000]
    ).epochs
    run = Run(directed)
    run.step(load)
    started_over = []
    for epoch in epochs:
        reports = run.step(epoch)
        started_over.append(reports[0].started_over)
        for report, kind in zip(reports, (Triangles, LocalClustering), strict=True):
            assert report.edges_read <= 1.5 * kind("fresh").start(run.graph).edges_read
    assert not started_over[0] and started_over[-1]
    run.close()


@both_ways
def test_a_hub_that_is_deleted_costs_what_its_neighbors_have(
    directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row of now is empty, but the links that ended are as many as ever."""
    monkeypatch.setattr(tally, "_STEPS_FLOOR", 1 << 40)
    run = Run(directed)
    n = 3_001
    run.step(inserts([*((0, v) for v in range(1, n)), *((v, v + 1) for v in range(1, n - 1))], n))
    for report in run.step(epoch_of([(Op.DELETE_VERTEX, 0, 0, 1.0)], n)):
        assert not report.started_over and report.edges_read < 10 * n
    run.check()
    run.close()


@pytest.mark.sample(among="threads change nothing")
@both_ways
def test_threads_change_nothing(directed: bool) -> None:
    """Neither the counts nor what is said to have changed, from scratch and link by link."""
    history = rmat_history(6, directed=directed, scale=14, degree=8, updates=[500, 500], epochs=2)
    seen = []
    for threads in (1, 2, 5):
        run = Run(directed, threads=threads)
        said = []
        for epoch in history.epochs:
            for report, program in zip(run.step(epoch), (run.triangles, run.lcc), strict=True):
                named = (
                    {name: vertices and vertices.tolist() for name, vertices in report.changed.items()}
                    if (report.started_over)
                    else {name: vertices.tolist() for name, vertices in report.changed.items()}
                )
                columns = [column[: run.graph.n_vertices].tolist() for column in program.columns().values()]
                said.append((report.started_over, named, columns, program.scalars()))
        seen.append(said)
        run.check_fresh()
        run.close()
    assert [started_over for started_over, *_ in seen[0]] == [True] * 2 + [False] * 4
    assert seen[0] == seen[1] == seen[2]


def test_a_start_that_was_cheap_does_not_make_every_change_one() -> None:
    """A graph that grows from nothing by batches starts over now and then, and knows what that costs by then."""
    load = rmat_history(8, directed=False, scale=12, degree=8, epochs=0).epochs[0]
    run = Run(directed=False)
    n, size = load.n_vertices, len(load) // 200
    started_over = sum(
        run.step(
            inserts(list(zip(load.src[k : k + size].tolist(), load.dst[k : k + size].tolist(), strict=True)), n)
        )[0].started_over
        for k in range(0, len(load), size)
    )
    assert 0 < started_over < 40  # of 200
    run.check_fresh()
    run.close()


def test_a_graph_that_grew_far_by_small_changes_starts_over_for_a_large_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ring, of which a start from one link gives no idea: it never has a triangle."""
    n = 8_000
    run = Run(directed=False)
    run.step(inserts([(0, 1)], n))
    for program in (run.triangles, run.lcc):
        program.start(run.graph)
    with monkeypatch.context() as growing:
        growing.setattr(tally, "_STEPS_FLOOR", 1 << 40)
        for first in range(1, n, 500):
            reports = run.step(inserts([(v, (v + 1) % n) for v in range(first, min(first + 500, n))], n))
            assert not any(report.started_over for report in reports)
    assert all(report.started_over for report in run.step(deletes([(v, v + 1) for v in range(0, n, 2)], n)))
    run.check_fresh()
    run.close()


def test_one_compiled_form_does_for_every_graph() -> None:
    """What is compiled before the first epoch, on a handful of edges, is all that a daemon needs."""
    kernels = (change.survey, change.tally, start.count_all, start.audit)
    registry.warm_up(directed=True, weighted=True, programs=[("triangles", {}), ("lcc", {})])
    before = [len(kernel.signatures) for kernel in kernels]
    for directed in (True, False):
        run = Run(directed)
        for epoch in rmat_history(1, directed=directed, scale=15, degree=4, updates=[1, 500], epochs=2).epochs:
            run.step(epoch)
        for program in (run.triangles, run.lcc):
            program.audit_slice(run.graph, 0, 100)
            program.restore({name: column.copy() for name, column in program.state().items()}, run.graph)
        run.close()
        run = Run(directed)
        run.step(inserts([(0, 1), (1, 2)], 3))
        run.step(deletes([(0, 1)], 3))
        run.close()
    assert [len(kernel.signatures) for kernel in kernels] == before


@both_ways
def test_a_start_after_a_change_that_failed_half_way(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the change had added up by then is not taken by the next one."""

    def fail(program: tally.Tally, touched: int) -> None:
        raise MemoryError("no room to collect")

    run = Run(directed)
    run.step(inserts(clique(range(6)), 7))
    with monkeypatch.context() as failing:
        failing.setattr(tally.Tally, "_collect", fail)
        for program in (run.triangles, run.lcc):
            with pytest.raises(MemoryError):
                program.refresh(run.graph, run.graph.apply(inserts([(0, 6), (6, 1)], 7).batch(), 7))
            run.graph.apply(deletes([(0, 6), (6, 1)], 7).batch(), 7)
            program.start(run.graph)
    for epoch in (inserts([(6, 0), (6, 1), (6, 2)], 7), deletes([(0, 1)], 7)):
        run.step(epoch)
        run.check()
    run.close()


# -- the audit ------------------------------------------------------------------------------------------------


def audited(run: Run, program: Triangles | LocalClustering) -> set[str]:
    """The rules that are broken, by slices and what is beside them, which is what the whole audit finds."""
    found = program.audit_whole(run.graph)[0]
    for begin in range(0, run.graph.n_vertices, 5):
        found += program.audit_slice(run.graph, begin, min(begin + 5, run.graph.n_vertices))[0]
    rules = {violation.rule for violation in found}
    assert {violation.rule for violation in program.audit(run.graph)} == rules
    return rules


@both_ways
def test_the_audit_finds_each_rule_broken(directed: bool) -> None:
    run = Run(directed)
    wheel = [(0, v) for v in range(1, 30)] + [(v, v + 1) for v in range(1, 29)]
    run.step(inserts([*wheel, (0, 0), (30, 31)], 32))
    run.check()
    assert audited(run, run.triangles) == audited(run, run.lcc) == set()
    for vertex in (0, 7, 31):
        run.triangles.columns()["triangles"][vertex] += 1
        assert audited(run, run.triangles) >= {"tally"}
        run.triangles.columns()["triangles"][vertex] -= 1
        run.triangles.columns()["triangles"][vertex] ^= np.uint64(1 << 63)
        assert audited(run, run.triangles) >= {"tally"}
        run.triangles.columns()["triangles"][vertex] ^= np.uint64(1 << 63)
        run.lcc.columns()["arcs"][vertex] += 1
        assert audited(run, run.lcc) >= {"tally"}
        run.lcc.columns()["arcs"][vertex] -= 1
        run.lcc.columns()["neighbors"][vertex] += 1
        assert audited(run, run.lcc) >= {"neighbors"}
        run.lcc.columns()["neighbors"][vertex] -= 1
    run.triangles._total += 1
    assert audited(run, run.triangles) == {"total"}
    run.triangles._total -= 1
    run.lcc._sum += 1
    assert audited(run, run.lcc) == {"mean"}
    run.lcc._sum -= 1
    assert not run.triangles._near.any() and not run.lcc._near.any()
    assert audited(run, run.triangles) == audited(run, run.lcc) == set()
    run.close()


@pytest.mark.sample(among="work is in proportion")
@both_ways
def test_a_pass_of_the_audit_reads_what_a_few_starts_read(directed: bool) -> None:
    """Not the row of every hub once for each of its neighbours. It finds a wrong tally at hubs and beside them."""
    (load,) = rmat_history(4, directed=directed, scale=14, degree=16, updates=[]).epochs
    run = Run(directed, threads=2)
    run.step(load)
    degrees = run.graph.out_rows().degrees
    for program in (run.triangles, run.lcc):
        fresh = program.start(run.graph)
        slices = [
            program.audit_slice(run.graph, begin, min(begin + 1_000, load.n_vertices))
            for begin in range(0, load.n_vertices, 1_000)
        ]
        assert [found for found, _ in slices] == [[]] * len(slices)
        assert 0 < sum(edges for _, edges in slices) <= 4 * fresh.edges_read
        for vertex in (int(degrees.argmax()), int(np.flatnonzero(degrees == 2)[0])):
            column = next(iter(program.columns().values()))
            column[vertex] += np.uint64(1)
            (violation,) = program.audit_slice(run.graph, vertex, vertex + 1)[0]
            assert (violation.rule, violation.vertices) == ("tally", (vertex,))
            column[vertex] -= np.uint64(1)
    run.close()


@both_ways
def test_what_a_change_missed_is_found(directed: bool) -> None:
    """At both ends and at the third corner; an arc that makes no link, by the arcs alone."""
    run = Run(directed)
    run.step(inserts([(0, 1), (1, 2), (2, 0), (3, 4)], 5))
    run.graph.apply(deletes([(0, 1)], 5).batch(), 5)
    for vertex in range(3):
        assert run.triangles.audit_slice(run.graph, vertex, vertex + 1)[0]
        assert run.lcc.audit_slice(run.graph, vertex, vertex + 1)[0]
    run.graph.apply(inserts([(0, 1), (2, 1)], 5).batch(), 5)
    assert audited(run, run.triangles) == set()
    assert audited(run, run.lcc) == ({"tally"} if directed else set())
    run.close()


@both_ways
@settings(deadline=None, max_examples=examples(30))
@given(seed=st.integers(0, 2**32))
def test_a_restored_program_goes_on(directed: bool, seed: int) -> None:
    """And starts over where the one that never stopped does."""
    run = Run(directed)
    epochs = random_history(seed, directed=directed, vertices=14, epochs=16, vertex_share=0.05).epochs
    for epoch in epochs[:8]:
        run.step(epoch)
    for name in ("triangles", "lcc"):
        before = getattr(run, name)
        restored = type(before)("restored")
        restored.restore({key: column.copy() for key, column in before.state().items()}, run.graph)
        assert restored.scalars() == before.scalars() and restored.audit(run.graph) == []
        assert restored._steps_of_start(run.graph) == before._steps_of_start(run.graph)
        setattr(run, name, restored)
    for epoch in epochs[8:]:
        run.step(epoch)
    run.check()
    run.close()
