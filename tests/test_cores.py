"""Cores, against NetworkX and fresh starts, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from histories import (
    EdgeSet,
    Epoch,
    History,
    LinkChurn,
    deletes,
    epoch_of,
    inserts,
    random_history,
    real_history,
    rmat_history,
    small_histories,
)
from hypothesis import given, settings
from sampling import examples

from graphtide.compute import registry
from graphtide.compute.cores import KCore, kcore, peel, sweep, waves
from graphtide.compute.ordering import GAP
from graphtide.compute.program import Refresh
from graphtide.gpma.edges import NO_VERTEX, EdgeBatch, Op, Vertices
from graphtide.gpma.memory import Memory
from graphtide.gpma.team import Team
from graphtide.partition.graph import Graph

both_ways = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])


class Run:
    """A graph with cores on it, moved epoch by epoch."""

    def __init__(self, directed: bool, *, gap: int = GAP, threads: int = 1) -> None:
        self.graph = Graph(directed=directed, weighted=False, threads=threads)
        self.edges = EdgeSet(directed=directed)
        self.program = KCore("kept")
        self.program._order = self.program._order._replace(gap=gap)
        self.program.start(self.graph)
        self.renewed = 0

    def step(self, epoch: Epoch) -> Refresh:
        change = self.graph.apply(epoch.batch(), epoch.n_vertices, epoch.vertex_ops())
        self.edges.apply(epoch)
        refresh = self.program.refresh(self.graph, change)
        self.renewed += int(self.program._scratch.counts[sweep.N_RENEWED])
        return refresh

    @property
    def cores(self) -> list[int]:
        cores: list[int] = self.program.columns()["core"][: self.graph.n_vertices].tolist()
        return cores

    def check(self) -> None:
        """Equal to NetworkX and to a fresh start, and proven; what a change uses is left as it must be."""
        expected = nx.core_number(self.edges.simple())
        assert self.cores == [expected[v] for v in range(self.graph.n_vertices)]
        fresh = KCore("fresh")
        fresh.start(self.graph)
        assert self.program.scalars() == fresh.scalars()
        largest = max(self.cores, default=0)
        alive = self.graph.alive.tolist()
        main = sum(core == largest and is_alive for core, is_alive in zip(self.cores, alive, strict=True))
        assert self.program.scalars() == {"degeneracy": largest, "main_core_size": main}
        for program in (self.program, fresh):
            assert program.audit(self.graph) == []
        assert not self.program._scratch.role.any() and not self.program._scratch.extra.any()

    def close(self) -> None:
        self.graph.close()


class Spent(Memory):
    def require(self, n_bytes: int) -> None:
        raise MemoryError(f"{n_bytes} bytes more are needed, and none are left")


def clique(vertices: Sequence[int]) -> list[tuple[int, int]]:
    return [(u, v) for u in vertices for v in vertices if u < v]


def mixed(rng: np.random.Generator, run: Run, n: int) -> Epoch:
    """Some insertions, some deletions of edges that are there: by turns few, as many as vertices, and more."""
    size = int(rng.choice([1, 2, 5, n // 2, 3 * n]))
    share = rng.choice([0.2, 0.5, 0.9])
    near = n if rng.random() < 0.5 else max(2, n // 4)
    moves = []
    for _ in range(size):
        if rng.random() < share or not run.edges.edges:
            moves.append((int(Op.INSERT), int(rng.integers(0, near)), int(rng.integers(0, n)), 1.0))
        else:
            pairs = list(run.edges.edges)
            moves.append((int(Op.DELETE), *pairs[rng.integers(0, len(pairs))], 1.0))
    return epoch_of(moves, n)


@settings(deadline=None, max_examples=examples(100))
@given(history=small_histories())
def test_any_history(history: History) -> None:
    run = Run(history.directed)
    for epoch in history.epochs:
        run.step(epoch)
        run.check()
    run.close()


@both_ways
@pytest.mark.parametrize("gap", [GAP, 2])
@pytest.mark.parametrize("seed", range(6))
def test_mixed_histories(directed: bool, gap: int, seed: int) -> None:
    """With gaps of 2 between labels, they are used up all the time."""
    rng = np.random.default_rng(seed)
    run = Run(directed, gap=gap)
    n = (8, 20, 60)[seed % 3]
    for _ in range(25):
        assert not run.step(mixed(rng, run, n)).started_over
        run.check()
    assert (run.renewed > 0) == (gap == 2)
    run.close()


@pytest.mark.sample(2)
@both_ways
@pytest.mark.parametrize("kept", [0, 30])
def test_levels_are_computed_anew_at_any_moment(
    directed: bool, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as one reads anything, or a little more; with insertions first and last; with rows read again."""
    monkeypatch.setattr(kcore, "_ABOVE_SHARE", 10.0)
    monkeypatch.setattr(kcore, "_KEPT_FLOOR", kept)
    monkeypatch.setattr(kcore, "_KEPT_SHARE", 0.0)
    computed = []
    whole = sweep.compute_from

    def counted(*arguments: Any) -> None:
        computed.append(arguments[6])
        whole(*arguments)

    monkeypatch.setattr(sweep, "compute_from", counted)
    for seed in range(6):
        monkeypatch.setattr(kcore, "_LEVEL_FLOOR", 12 * (seed % 3) - 1)
        rng = np.random.default_rng(seed)
        run = Run(directed)
        run.program._scratch = run.program._scratch._replace(links=np.empty(kept, np.uint32))
        for _ in range(20):
            assert not run.step(mixed(rng, run, (12, 40)[seed % 2])).started_over
            run.check()
        run.close()
    assert len(computed) > 15 and len(set(computed)) > 3  # at so many levels


@both_ways
def test_the_larger_part_of_a_change_comes_first(directed: bool) -> None:
    """A clique loses a link, and more links make up for that: nobody drops, to rise again."""
    run = Run(directed)
    run.step(inserts([*clique(range(30)), *((30, v) for v in range(2, 28))], 31))
    run.check()
    ended, made = [(0, 1)], [(0, 30), (1, 30), (28, 30)]
    moves = [(int(Op.DELETE), *pair, 1.0) for pair in ended] + [(int(Op.INSERT), *pair, 1.0) for pair in made]
    report = run.step(epoch_of(moves, 31))
    assert report.changed["core"] is not None and report.changed["core"].tolist() == [30]
    assert run.program._scratch.counts[sweep.N_LOGGED] == 1
    run.check()
    run.step(epoch_of([(1 - op, u, v, weight) for op, u, v, weight in moves], 31))
    run.check()
    assert set(run.cores) == {29, 26}
    run.close()


@both_ways
def test_rows_that_no_link_lengthens_have_room(directed: bool) -> None:
    """A loop and second arcs are no links, but a row is read with them."""
    hub, spokes = 0, range(1, 1_301)
    run = Run(directed)
    load = inserts([(hub, v) for v in spokes], 1_301)
    run.graph.apply(load.batch(), load.n_vertices)
    run.edges.apply(load)
    run.program = KCore("fresh")
    run.program.start(run.graph)
    for epoch in (
        inserts([(hub, hub)], 1_301),
        inserts([(v, hub) for v in spokes], 1_301),
        inserts([(1, 2)], 1_301),
    ):
        run.step(epoch)
        rows = [run.graph.out_rows()] + [run.graph.in_rows()] * directed
        longest = sum(view.degrees.astype(np.int64) for view in rows).max()
        assert all(column.size >= longest for column in run.program._room)
    run.check()
    run.close()


def test_both_arcs_of_a_link_in_one_batch() -> None:
    """They come and go together, one after the other, and one for the other: it is one link."""
    run = Run(directed=True)
    run.step(inserts([*clique(range(5)), (4, 5), (5, 3)], 7))
    run.check()
    for moves, changed in (
        ([(Op.INSERT, 5, 0), (Op.INSERT, 0, 5)], [5]),
        ([(Op.DELETE, 5, 0), (Op.DELETE, 0, 5)], [5]),
        ([(Op.INSERT, 5, 0), (Op.INSERT, 0, 5), (Op.DELETE, 5, 0)], [5]),
        ([(Op.DELETE, 0, 5), (Op.INSERT, 5, 0)], []),
        ([(Op.INSERT, 0, 5), (Op.DELETE, 0, 5)], []),
    ):
        report = run.step(epoch_of([(int(op), u, v, 1.0) for op, u, v in moves], 7))
        named = report.changed.get("core", np.empty(0, np.uint32))
        assert named is not None and named.tolist() == changed
        run.check()
    run.close()


@both_ways
def test_vertices_that_go_and_come_back(directed: bool) -> None:
    for seed in range(4):
        run = Run(directed)
        for epoch in random_history(
            seed, directed=directed, vertices=12, updates_max=60, vertex_share=0.05
        ).epochs:
            run.step(epoch)
            run.check()
        run.close()


@pytest.mark.sample(1)
@both_ways
def test_skewed_histories(directed: bool) -> None:
    run = Run(directed)
    for epoch in rmat_history(
        3, directed=directed, scale=12, degree=8, updates=[1, 1, 40, 300, 2_000], epochs=5
    ).epochs:
        started_over = run.step(epoch).started_over
        assert started_over == (len(epoch) >= 2_000)
        run.check()
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


@both_ways
def test_vertices_rise_and_drop_by_many_levels_at_once(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clique of 60 in one epoch, by a start and by one sweep; and out of it again."""
    rng = np.random.default_rng(1)
    sparse = [(int(u), int(v)) for u, v in rng.integers(0, 400, (500, 2))]
    members = rng.permutation(400)[:60].tolist()
    for start_over in (True, False):
        if not start_over:
            for floor in ("_LINKS_FLOOR", "_READ_FLOOR", "_LEVEL_FLOOR"):
                monkeypatch.setattr(kcore, floor, 1 << 40)
        run = Run(directed)
        run.step(inserts(sparse, 400))
        for epoch in (inserts(clique(members), 400), deletes(clique(members), 400)):
            assert run.step(epoch).started_over == start_over
            run.check()
        run.close()


@both_ways
def test_what_rises_by_many_levels_is_computed_anew_by_itself(
    directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clique of 60 beside much that it does not concern, which a start would read."""
    monkeypatch.setattr(kcore, "_LINKS_FLOOR", 1 << 40)
    n = 40_000
    run = Run(directed)
    run.step(inserts([(v, (v + 1) % n) for v in range(n)], n))
    report = run.step(inserts(clique(range(0, 60 * 600, 600)), n))
    start = KCore("fresh").start(run.graph).edges_read
    assert not report.started_over and report.changed["core"] is not None
    assert report.edges_read < 0.75 * start
    assert run.program.scalars() == {"degeneracy": 59, "main_core_size": 60}
    assert run.program.audit(run.graph) == []
    run.close()


@both_ways
def test_the_top_core_is_broken_by_one_deletion(directed: bool) -> None:
    """Of 40, whose members all drop; and made whole by one insertion."""
    run = Run(directed)
    top = [*clique(range(41)), *((u, v) for u in range(0, 40, 4) for v in range(41, 60))]
    run.step(inserts(top, 60))
    run.check()
    for epoch in (deletes([(0, 1)], 60), inserts([(1, 0)], 60), deletes([(1, 0)] if directed else [(0, 1)], 60)):
        assert not run.step(epoch).started_over
        run.check()
    assert run.program.scalars()["degeneracy"] == 39
    run.close()


def test_a_change_that_reads_too_much_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of deletions as of insertions; what was begun leaves nothing behind."""
    monkeypatch.setattr(kcore, "_READ_FLOOR", 40)
    run = Run(directed=False)
    run.step(inserts(clique(range(12)), 40))
    started_over = 0
    rng = np.random.default_rng(4)
    for k in range(60):
        started_over += run.step(mixed(rng, run, 40)).started_over
        run.check()
        if k % 20 == 0:
            run.step(inserts(clique(range(k % 7, 10 + k % 7)), 40))
    assert 5 < started_over < 60
    run.close()


def test_without_memory_for_a_start_a_change_is_taken_link_by_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However large it is, and however much it reads; a start that is no choice fails, and leaves all as it is."""
    run = Run(directed=False)
    run.step(inserts([(v, (v + 1) % 2_000) for v in range(2_000)], 2_000))
    monkeypatch.setattr(kcore, "Memory", Spent)
    monkeypatch.setattr(kcore, "_READ_FLOOR", 0)
    for epoch in (inserts(clique(range(0, 120, 2)), 2_000), deletes(clique(range(0, 120, 2)), 2_000)):
        assert not run.step(epoch).started_over
        assert run.program.audit(run.graph) == []
    with pytest.raises(MemoryError):
        run.program.start(run.graph)
    assert run.program.audit(run.graph) == []
    monkeypatch.undo()
    run.check()
    run.close()


def test_without_memory_for_a_start_a_small_change_reads_what_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known before that a start is no choice: nothing is given up half way."""
    run = Run(directed=False)
    run.step(inserts([(v, (v + 1) % 2_000) for v in range(2_000)], 2_000))
    monkeypatch.setattr(kcore, "_READ_SHARE", 0.0)
    monkeypatch.setattr(kcore, "_READ_FLOOR", 0)
    assert run.step(deletes([(7, 8)], 2_000)).started_over  # every vertex drops
    monkeypatch.setattr(kcore, "Memory", Spent)
    run.program._asked = -np.inf  # as a second later
    for epoch in (inserts([(7, 8)], 2_000), deletes([(1_000, 1_001)], 2_000)):
        report = run.step(epoch)
        assert not report.started_over and report.edges_read > 2_000
        assert run.program.audit(run.graph) == []
    monkeypatch.undo()
    run.check()
    run.close()


def links_of(pairs: npt.NDArray[np.int64], n: int) -> tuple[npt.NDArray[np.int64], Vertices, Vertices]:
    """(offsets, heads, sizes) of these pairs without loops and doubles."""
    graph: Any = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((u, v) for u, v in pairs.tolist() if u != v)
    sizes = np.array([graph.degree(v) for v in range(n)], np.uint32)
    heads = np.array([u for v in range(n) for u in graph.neighbors(v)], np.uint32)
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]), heads, sizes


@pytest.mark.parametrize("shape", ["none", "path", "clique", "random", "hubs"])
def test_waves_are_the_same_for_any_number_of_threads(shape: str) -> None:
    """An order in which nobody has more links behind it than its core, whoever takes a wave away."""
    rng = np.random.default_rng(5)
    n = 4_000
    pairs = {
        "none": np.empty((0, 2), np.int64),
        "path": np.stack([np.arange(n - 1), np.arange(1, n)], 1),
        "clique": np.array(clique(range(0, n, n // 150))),
        "random": rng.integers(0, n, (60_000, 2)),
        "hubs": (n * rng.random((60_000, 2)) ** 4).astype(np.int64),
    }[shape]
    offsets, heads, sizes = links_of(pairs, n)
    seen = []
    for threads in (1, 2, 5):
        team = Team(threads)
        found = [np.empty(n, np.uint32) for _ in range(3)]
        ranked = waves.take_away(offsets, heads, sizes, n, *found, team.crew())
        seen.append([column.tolist() for column in (ranked, *found)])
        team.close()
    assert seen[0] == seen[1] == seen[2]
    order, core, after, high = seen[0]
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    tails = np.repeat(np.arange(n), sizes)
    assert np.array_equal(np.bincount(tails[place[heads] > place[tails]], minlength=n), after)
    assert np.array_equal(np.bincount(tails[np.take(core, heads) >= np.take(core, tails)], minlength=n), high)
    assert (np.diff(np.take(core, order)) >= 0).all()
    assert (np.array(after) <= core).all() and (np.array(high) >= core).all()


@pytest.mark.sample(among="work is in proportion")
@both_ways
def test_work_is_in_proportion_to_the_change(directed: bool) -> None:
    """On RMAT 16: a link that moves no counter over its rule reads no row; few are read in the median and mean."""
    churn = LinkChurn(16, 16)
    n = churn.n
    graph = Graph(directed=directed, weighted=False, threads=2)
    graph.apply(EdgeBatch(churn.live, np.full(churn.live.size, Op.INSERT, np.uint8)), n)
    program = KCore("kept")
    start = program.start(graph).edges_read
    assert start == graph.n_arcs * (2 if directed else 1)

    def step(batch: EdgeBatch) -> Refresh:
        return program.refresh(graph, graph.apply(batch, n))

    singles = [step(churn.batch(1)).edges_read for _ in range(200)]
    hundreds = [step(churn.batch(100)).edges_read for _ in range(10)]
    assert np.median(singles) <= 100
    assert np.mean(hundreds) <= start / 10
    cores, columns = program.columns()["core"][:n], program._cores
    # Between a vertex that may have one more behind it, and one of a larger core.
    slack = np.flatnonzero((columns.after[:n] < cores) & (columns.high[:n] > cores) & (cores > 2))
    low = int(slack[cores[slack].argmin()])
    linked = {v for way in ("out", "in") for v in graph.neighbors(low, way, 0, n)[0].tolist()}
    high = next(v for v in cores.argsort()[::-1].tolist() if v not in linked and cores[v] > cores[low])
    for op in (Op.INSERT, Op.DELETE):
        report = step(epoch_of([(op, low, high, 1.0)], n).batch())
        assert (report.edges_read, report.changed) == (0, {})
    assert program.audit(graph) == []
    graph.close()


@pytest.mark.sample(among="work is in proportion")
@both_ways
def test_no_batch_reads_much_more_than_a_start(directed: bool) -> None:
    """Of any size, also where it gives up half way."""
    load, *epochs = rmat_history(
        6, directed=directed, scale=13, degree=8, updates=[1, 10, 100, 300, 1_000, 2_000, 5_000, 20_000]
    ).epochs
    run = Run(directed)
    run.step(load)
    started_over = []
    for epoch in epochs:
        report = run.step(epoch)
        started_over.append(report.started_over)
        assert report.edges_read <= 1.5 * max(KCore("fresh").start(run.graph).edges_read, kcore._READ_FLOOR)
    assert not started_over[0] and started_over[-1]
    run.check()
    run.close()


@pytest.mark.sample(among="threads change nothing")
@both_ways
@pytest.mark.parametrize("share", [None, 1.0], ids=["by-threads", "alike"])
def test_threads_change_nothing(directed: bool, share: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No core; nor the order, from scratch and after changes, but where only more threads start over."""
    monkeypatch.setattr(kcore, "_READ_SHARE", 0.5)
    if share is not None:
        monkeypatch.setattr(kcore, "_share_of_a_start", lambda threads: share)
    history = rmat_history(6, directed=directed, scale=13, degree=8, updates=[300, 3_000], epochs=2)
    seen, started_over = [], []
    for threads in (1, 2, 5):
        run = Run(directed, threads=threads)
        said = []
        for epoch in history.epochs:
            report = run.step(epoch)
            state = {name: column.tolist() for name, column in run.program.state().items()}
            said.append((state["core"], (report.started_over, report.edges_read, state) if share else None))
            started_over.append(report.started_over)
        seen.append(said)
        run.close()
    assert started_over[:3] == [True, False, True] and any(over for over in started_over[3:])
    assert seen[0] == seen[1] == seen[2]


def test_more_threads_start_over_sooner() -> None:
    """What a start costs, of one by one thread, and so what may be read before it."""
    shares = [kcore._share_of_a_start(threads) for threads in (1, 2, 4, 16, 1024)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1 and shares[1] == pytest.approx(0.6) and shares[-1] > 0.2


def test_one_compiled_form_does_for_every_graph() -> None:
    """What is compiled before the first epoch, on a handful of edges, is all that a daemon needs."""
    kernels = (sweep.drop, sweep.rise, sweep.finish, sweep.compute_from, sweep.add_vertices, peel.peel, peel.audit)
    registry.warm_up(directed=True, weighted=True, programs=[("kcore", {})])
    before = [len(kernel.signatures) for kernel in kernels]
    for directed in (True, False):
        run = Run(directed)
        for epoch in rmat_history(1, directed=directed, scale=15, degree=4, updates=[1, 500], epochs=2).epochs:
            run.step(epoch)
        run.step(inserts([(0, 1)], 1 << 15))
        run.program.audit(run.graph)
        run.program.restore({name: column.copy() for name, column in run.program.state().items()}, run.graph)
        run.close()
        run = Run(directed)
        run.step(inserts([(0, 1), (1, 2)], 3))
        run.step(deletes([(0, 1)], 3))
        run.close()
    assert [len(kernel.signatures) for kernel in kernels] == before


# -- the audit ------------------------------------------------------------------------------------------------


def found(run: Run) -> set[str]:
    """The rules that are broken, by slices and what is beside them, which is what the whole audit finds."""
    program, n = run.program, run.graph.n_vertices
    violations = program.audit_whole(run.graph)[0]
    for begin in range(0, n, 5):
        violations += program.audit_slice(run.graph, begin, min(begin + 5, n))[0]
    rules = {violation.rule for violation in violations}
    assert {violation.rule for violation in program.audit(run.graph)} == rules
    return rules


def test_the_audit_finds_each_rule_broken() -> None:
    run = Run(directed=True)
    run.step(inserts([*clique(range(5)), (4, 5), (5, 6), (6, 7), (7, 5), (7, 8), (9, 9)], 12))
    run.check()
    columns, order = run.program._cores, run.program._order
    assert found(run) == set()
    for column, rule in ((columns.high, "high"), (columns.after, "after")):
        for vertex in (0, 6, 11):
            column[vertex] += 1
            assert found(run) == {rule}
            column[vertex] -= 1
    for vertex, wrong, rule in ((0, 5, "too-large"), (11, 1, "too-large"), (2, 3, "after")):
        kept = int(columns.core[vertex])
        columns.core[vertex] = wrong
        assert rule in found(run)
        columns.core[vertex] = kept
    # A core that is one too small for a whole clique: only the order tells.
    columns.core[:5] -= 1
    assert {"too-small", "order"} & found(run)
    columns.core[:5] += 1
    first = int(order.first[4])
    behind = int(order.following[first])
    kept = int(order.label[behind])
    order.label[behind] = order.label[first]
    assert "order" in found(run)
    order.label[behind] = kept
    order.preceding[behind] = 7
    assert found(run) == {"order"}
    order.preceding[behind] = first
    last = int(order.last[4])
    for wrong in (first, 7, int(NO_VERTEX)):
        order.last[4] = wrong
        assert found(run) == {"order"}
        order.following[last] = 7
        assert found(run) == {"order"}
        order.following[last] = NO_VERTEX
    order.last[4] = last
    order.following[first] = NO_VERTEX
    assert found(run) == {"order"}
    order.following[first] = behind
    for ends in (order.first, order.last):
        ends[3] = first
        assert found(run) == {"sizes"}
        ends[3] = NO_VERTEX
    order.size[4] += 1
    assert found(run) == {"sizes"}
    order.size[4] -= 1
    run.program._degeneracy = 5
    assert found(run) == {"degeneracy"}
    run.program._degeneracy = 4
    assert found(run) == set()
    run.close()


def test_cores_that_are_all_too_small_are_found_by_the_order() -> None:
    """With counts that agree: every vertex of a ring in core 1, as if it were a path."""
    run = Run(directed=False)
    run.step(inserts([(v, (v + 1) % 9) for v in range(9)], 9))
    columns, order = run.program._cores, run.program._order
    columns.core[:9] = 1
    order.first[1], order.last[1], order.size[1] = order.first[2], order.last[2], order.size[2]
    order.size[2] = 0
    order.first[2] = order.last[2] = NO_VERTEX
    run.program._degeneracy = 1
    assert found(run) == {"too-small"}
    run.close()


@both_ways
def test_what_a_change_missed_is_found(directed: bool) -> None:
    run = Run(directed)
    run.step(inserts(clique(range(5)), 6))
    run.graph.apply(deletes([(0, 1)], 6).batch(), 6)
    assert "high" in found(run)
    run.close()


@both_ways
def test_a_restored_program_goes_on(directed: bool) -> None:
    rng = np.random.default_rng(9)
    run = Run(directed)
    for k in range(40):
        run.step(mixed(rng, run, 20))
        if k % 5 == 0:
            restored = KCore("restored")
            restored.restore({name: column.copy() for name, column in run.program.state().items()}, run.graph)
            assert restored.scalars() == run.program.scalars() and restored.audit(run.graph) == []
            run.program = restored
        run.check()
    state = {name: column.copy() for name, column in run.program.state().items()}
    state["label"][:] = 0
    with pytest.raises(ValueError, match="saved labels"):
        run.program.restore(state, run.graph)
    run.close()
