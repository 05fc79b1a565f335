"""PageRank: the certified bound against exact solves, over histories of every awkward shape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import networkx as nx
import numpy as np
import pytest
from histories import real_history, road_batches
from hypothesis import HealthCheck, given, settings
from sampling import examples
from walks import (
    SHAPES,
    WalkHistory,
    apply,
    check_changed,
    halves,
    matrix,
    new_graph,
    random_edges,
    rmat_epochs,
    skewed,
    solved,
    walk_histories,
    with_peer,
)

from graphtide.compute.program import Published, Refresh
from graphtide.compute.walks import pagerank, passes, solving
from graphtide.compute.walks.certificate import DRIFT, SLACK, SLACK_TIGHT
from graphtide.compute.walks.pagerank import PageRank
from graphtide.compute.walks.sweeps import PUSH_EDGES, SIZE, STRETCH, TOTAL
from graphtide.compute.walks.walk import parse_damping, parse_tolerance
from graphtide.gpma.edges import Op
from graphtide.partition.graph import Graph


def exact(graph: Graph, damping: float = 0.85) -> np.ndarray:
    return solved(graph, graph.alive.astype(float), damping)


def results(program: PageRank, graph: Graph) -> np.ndarray:
    n = graph.n_vertices
    published = Published(program.columns(), program.scalars(), n)
    answer = PageRank.read(published, np.arange(n, dtype=np.uint32))
    assert np.array_equal(answer.null, ~graph.alive)
    return np.asarray(answer.values)


def error(program: PageRank, graph: Graph) -> float:
    """The largest relative error of any vertex."""
    alive = graph.alive
    return float(np.abs(results(program, graph)[alive] / exact(graph, program.damping)[alive] - 1).max())


def check(program: PageRank, graph: Graph, report: Refresh) -> None:
    """Everything that must hold after any run."""
    assert program.audit(graph) == []
    assert report.error_bound is not None
    assert report.error_bound <= program.tolerance
    assert program.scalars()["error_bound"] == report.error_bound
    if graph.alive.any():
        assert error(program, graph) <= report.error_bound
        assert results(program, graph).sum() == pytest.approx(1, rel=1e-9)


def residual(program: PageRank, graph: Graph) -> np.ndarray:
    """1 - M estimate."""
    estimate = program.state()["estimate"]
    return np.asarray(1 - estimate + program.damping * (matrix(graph) @ estimate))


@contextmanager
def pushing(way: str) -> Iterator[None]:
    """Have large sweeps, which all are then, go this way, and edits go with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solving, "WAVES_THREADS", 1 if way == "waves" else 1 << 40)
        if way != "one thread":
            for name in ("PUSH_ALONE", "WAVES_MIN", "EDIT_ALONE"):
                patch.setattr(solving, name, 0)
        if way == "waves":
            patch.setattr(solving, "WAVE", 64)
        yield


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", ["one thread", "two parts", "waves"])
@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(history=walk_histories())
def test_every_epoch_of_any_history_is_within_its_bound(way: str, history: WalkHistory) -> None:
    """Edges, and vertices that are deleted and come back."""
    with pushing(way):
        check_history(history)


def check_history(history: WalkHistory) -> None:
    graph = new_graph(directed=history.directed)
    damping, tolerance = history.damping, history.tolerance
    program = PageRank("p", damping=damping, tolerance=tolerance)
    check(program, graph, program.start(graph))
    for updates, n in history.steps:
        before = program.columns()["estimate"][: graph.n_vertices].copy()
        report = program.refresh(graph, apply(graph, updates, n))
        check(program, graph, report)
        check_changed(before, program, n, report)
        fresh = PageRank("q", damping=damping, tolerance=tolerance)
        fresh.start(graph)
        alive = graph.alive
        if alive.any():
            ratio = results(program, graph)[alive] / results(fresh, graph)[alive]
            assert np.abs(ratio - 1).max() <= 2.1 * tolerance
    graph.close()


@pytest.mark.sample(among="residuals over thousands of batches")
def test_residuals_stay_those_of_the_graph_over_thousands_of_batches(graphs: list[Graph]) -> None:
    """With a tolerance that leaves no room for shares of float32."""
    rng = np.random.default_rng(20)
    for directed in (True, False):
        graph = new_graph(directed=directed)
        graphs.append(graph)
        program = PageRank("p", tolerance=1e-5)
        program.start(graph)
        n = 1
        for batch in range(2000):
            n += int(rng.random() < 0.02)
            size = int(rng.integers(1, 12))
            # Many updates of few rows: rows come to be, empty, and change a little against their degree.
            src = rng.integers(0, min(n, 4) if batch % 3 else n, size)
            updates = list(zip(src, rng.integers(0, n, size), rng.integers(0, 2, size), strict=True))
            program.refresh(graph, apply(graph, updates, n))
            kept = program.state()["residual"]
            assert np.abs(kept - residual(program, graph)).max() < 1e-11


@pytest.mark.sample(1, of="tolerance,directed")
@pytest.mark.parametrize("way", ["pushes", "divided pushes", "waves", "passes"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5])
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_awkward_shapes_come_and_go(
    shape: str,
    directed: bool,
    tolerance: float,
    way: str,
    graphs: list[Graph],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Built at once, then half by half, then collapsed: the amplification moves as far as it can.

    By pushes alone after the start, on one thread, two or all, and by dense passes wherever there is work.
    """
    dense = way == "passes"
    if way in ("divided pushes", "waves"):
        monkeypatch.setattr(solving, "PUSH_ALONE", 0)
    if way == "waves":
        for module, name, value in (
            (solving, "WAVES_THREADS", 1),
            (solving, "WAVES_PUSH_COST", 1 << 40),
            (solving, "EDIT_ALONE", 0),
            (solving, "WAVE", 64),
        ):
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(solving, "PUSH_MIN", 0 if dense else 1 << 40)
    monkeypatch.setattr(solving, "PUSH_COST", 1 << 40)
    monkeypatch.setattr(solving, "PUSH_MOST", 0 if dense else solving.PUSH_MOST)
    edges = SHAPES[shape]
    n = 1 + max(max(edge) for edge in edges) + 3
    whole = new_graph(directed=directed, edges=edges, n=n)
    graphs.append(whole)
    program = PageRank("p", tolerance=tolerance)
    check(program, whole, program.start(whole))

    grown = new_graph(directed=directed)
    graphs.append(grown)
    program = PageRank("p", tolerance=tolerance)
    program.start(grown)
    for op in (1, 0):
        for part in halves(edges):
            report = program.refresh(grown, apply(grown, [(u, v, op) for u, v in part], n))
            check(program, grown, report)
    assert results(program, grown) == pytest.approx(1 / n, rel=2 * tolerance)
    hub = int(np.bincount(np.array(edges).ravel()).argmax())
    for updates in ([(u, v, 1) for u, v in edges], [(hub, hub, int(Op.DELETE_VERTEX))], [(hub, 0, 1)]):
        check(program, grown, program.refresh(grown, apply(grown, updates, n)))


@pytest.mark.parametrize("damping", [0.5, 0.85, 0.95])
def test_agrees_with_networkx(damping: float, graphs: list[Graph]) -> None:
    graph, peer = with_peer(graphs)
    program = PageRank("p", damping=damping, tolerance=1e-7)
    program.start(graph)
    expected = nx.pagerank(peer, alpha=damping, tol=1e-13, max_iter=2000)
    assert results(program, graph) == pytest.approx([expected[v] for v in range(300)], rel=2e-7)


@pytest.mark.parametrize("directed", [True, False])
def test_large_batches_on_a_larger_graph(
    directed: bool, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edits on two threads, dense passes, and changes of the whole column."""
    monkeypatch.setattr(solving, "EDIT_ALONE", 100)
    monkeypatch.setattr(pagerank, "EDIT_SHARE", 0.2)
    rng = np.random.default_rng(6)
    n = 3000
    graph = new_graph(directed=directed, edges=random_edges(rng, n, 20_000), n=n)
    graphs.append(graph)
    program = PageRank("p")
    check(program, graph, program.start(graph))
    wholes = 0
    for size in (1, 10, 200, 4000, 20_000, 3):
        n += size // 100
        edges = random_edges(rng, n, size)
        before = program.columns()["estimate"][: graph.n_vertices].copy()
        report = program.refresh(graph, apply(graph, [(u, v, int(rng.random() < 0.7)) for u, v in edges], n))
        check(program, graph, report)
        check_changed(before, program, n, report)
        wholes += report.changed.get("estimate", 0) is None
    assert wholes > 0


@pytest.mark.sample(among="threads change nothing")
@pytest.mark.parametrize("way", ["two parts", "waves", "passes"])
def test_the_number_of_threads_changes_no_bit(
    way: str, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And certified: by sweeps in parts that push to each other all the time, or in waves, and by passes.

    What a pass costs on so many threads decides when one is made, and how they push: that is fixed here.
    """
    pushing = way != "passes"
    monkeypatch.setattr(solving, "WAVES_THREADS", 1 if way == "waves" else 1 << 40)
    monkeypatch.setattr(solving, "WAVE", 1 << 12)
    monkeypatch.setattr(solving, "PUSH_MIN", 1 << 40 if pushing else 0)
    monkeypatch.setattr(solving, "EDIT_ALONE", 0)
    monkeypatch.setattr(solving, "SHARED_VERTICES_MIN", 0)
    monkeypatch.setattr(pagerank, "SHARED_MOVES_MIN", 0)
    monkeypatch.setattr(passes, "_ALONE", 0)
    monkeypatch.setattr(solving, "PASS_SPEED", 0)
    n = 4 * STRETCH
    edges = random_edges(np.random.default_rng(11), n, 10 * n)
    ours = [new_graph(edges=edges, n=n, threads=threads) for threads in (1, 2, 5)]
    graphs += ours
    programs = [PageRank("p", tolerance=1e-5) for _ in ours]
    alone = PageRank("alone", tolerance=1e-5)
    for program, graph in zip(programs, ours, strict=True):
        program._push_alone = 0
        program.start(graph)
    alone.start(ours[0])
    for k in range(4):
        updates = [
            (u, v, int(u % 3 > 0))
            for u, v in random_edges(np.random.default_rng(20 + k), n, 300 if pushing else 9000)
        ]
        changes = [apply(graph, updates, n) for graph in ours]
        undivided = alone.refresh(ours[0], changes[0])
        reports = [
            program.refresh(graph, change) for program, graph, change in zip(programs, ours, changes, strict=True)
        ]
        for program, graph, report in zip(programs, ours, reports, strict=True):
            check(program, graph, report)
            assert report.edges_read == reports[0].edges_read
            for name, column in programs[0].state().items():
                assert np.array_equal(column, program.state()[name]), name
            assert not program._solver._outbox.sent.any()
            assert not program._solver._outbox.marks.any()
        if way == "two parts":
            assert reports[0].active != undivided.active, "nothing was divided"


def test_more_threads_pass_earlier() -> None:
    """Passes are faster by them, and pushes of two parts are not; those of all threads are."""
    costs = [solving.Budget(10_000_000, 1_000_000, threads).cost_max for threads in (1, 2, 3, 4, 16)]
    assert costs[0] == costs[1] > costs[2] > solving.PUSH_MIN
    assert costs[3] == costs[4] > costs[2]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "directed", "updates"), [("web-cnr2000", True, 60_000), ("as733-21days", False, 2_000)]
)
def test_real_graphs(name: str, directed: bool, updates: int, graphs: list[Graph]) -> None:
    graph = new_graph(directed=directed)
    graphs.append(graph)
    program = PageRank("p")
    program.start(graph)
    for k, epoch in enumerate(real_history(name, directed=directed, updates=updates, events_max=400_000).epochs):
        report = program.refresh(graph, graph.apply(epoch.batch(), epoch.n_vertices))
        if k % 3 == 0:
            assert program.audit(graph) == []
            expected = solved(graph, graph.alive.astype(float), 0.85)
            assert np.abs(results(program, graph) / expected - 1).max() <= (report.error_bound or 0)


def test_many_small_changes_tighten_the_certificate_and_a_large_one_loosens_it(graphs: list[Graph]) -> None:
    """Residuals may be larger where the majorant is solved closely, and fewer vertices are pushed."""
    rng = np.random.default_rng(12)
    n = 3000
    graph = new_graph(edges=random_edges(rng, n, 60_000), n=n)
    graphs.append(graph)
    program = PageRank("p")
    program.start(graph)
    slacks, bounds = [], []
    for size in [10] * (pagerank.SMALLS + 2) + [400] + [10] * (pagerank.SMALLS + 1):
        edges = random_edges(rng, n, size)
        check(program, graph, program.refresh(graph, apply(graph, [(u, v, u % 2) for u, v in edges], n)))
        certificate = program._systems.certificate
        slacks.append(certificate.slack)
        bounds.append(certificate.bound)
        # Nothing changes: nothing is solved, and nothing else may be claimed.
        check(program, graph, program.refresh(graph, apply(graph, [], n)))
        weight, slack = program.state()["weight"].astype(float), program.state()["slack"]
        assert (slack <= certificate.slack * weight * (1 + 1e-6)).all()
    loose, tight = [SLACK] * pagerank.SMALLS, [SLACK_TIGHT]
    assert slacks == [*loose, *tight * 2, SLACK, *loose, *tight]
    assert bounds[pagerank.SMALLS] > 1.1 * bounds[0]


def test_the_sum_of_errors_is_bounded_by_more_than_the_sizes_of_residuals(graphs: list[Graph]) -> None:
    program, graph = started(graphs)
    true = residual(program, graph)
    estimate = program.state()["estimate"]
    y = solved(graph, np.ones(400), 0.85)
    total = np.linalg.solve(np.eye(400) - 0.85 * matrix(graph).toarray(), np.ones(400)).sum()
    assert y == pytest.approx(estimate / estimate.sum(), rel=1e-5)
    off = abs(total - estimate.sum()) / estimate.sum()
    assert off <= program._systems.sum_error < 0.6 * np.abs(true).sum() / (0.15 * estimate.sum())


@pytest.mark.sample(among="work is in proportion")
def test_one_edge_in_a_big_graph_reads_few_edges(graphs: list[Graph]) -> None:
    rng = np.random.default_rng(8)
    n, per_vertex = 50_000, 8
    src = np.repeat(np.arange(n), per_vertex)
    graph = new_graph(edges=list(zip(src, rng.integers(0, n, src.size), strict=True)), n=n)
    graphs.append(graph)
    program = PageRank("p", tolerance=1e-2)
    program.start(graph)
    for k in range(5):
        report = program.refresh(graph, apply(graph, [(100 + k, 7, 1)], n))
        changed = report.changed["estimate"]
        assert changed is not None
        assert 0 < changed.size <= report.active + 1 < n / 20
        assert report.edges_read < graph.n_arcs / 20


@pytest.mark.parametrize("scale", [10, 13])
def test_a_refresh_costs_no_more_than_solving_anew(scale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From nothing, and from the estimates that there are: in edges read, pushes at their price."""
    program, warm, cold = (PageRank(name) for name in ("refreshed", "warm", "cold"))
    for graph, change in rmat_epochs(scale, (1, 10, 10, 100, 100, 1000, 1000, 10_000, 10_000)):
        if not program.columns()["estimate"].any():
            for each in (program, warm):
                each.start(graph)
            continue
        reports = [program.refresh(graph, change)]
        with monkeypatch.context() as patch:
            patch.setattr(pagerank, "EDIT_SHARE", -math.inf)
            reports.append(warm.refresh(graph, change))
        reports.append(cold.start(graph))
        costs = [report.edges_read + PUSH_EDGES * report.active for report in reports]
        assert costs[0] <= min(costs[1:])


def test_where_edits_cost_more_than_a_start_changes_of_that_size_start_over(
    graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until some have; smaller ones do not. On a path, where half of a start is enough here."""
    monkeypatch.setattr(solving, "PUSH_MIN", 0)
    monkeypatch.setattr(pagerank, "DEAR", 0.5)
    n = 6000
    graph = new_graph(directed=False, edges=[(v, v + 1) for v in range(n - 1)], n=n)
    graphs.append(graph)
    program, anew = PageRank("p"), PageRank("anew")
    program.start(graph)
    rng = np.random.default_rng(5)

    def cuts(size: int) -> Refresh:
        """So many links go, and those that went before come back."""
        nonlocal gone
        there = np.setdiff1d(np.arange(n - 1), gone)
        now = rng.choice(there, size, replace=False)
        report = program.refresh(
            graph, apply(graph, [(v, v + 1, 1) for v in gone] + [(v, v + 1, 0) for v in now], n)
        )
        check(program, graph, report)
        gone = now
        return report

    gone = np.empty(0, np.int64)
    first = cuts(500)
    assert not first.started_over
    assert first.edges_read > pagerank.DEAR * anew.start(graph).edges_read, "dear, or this test says nothing"
    over = [cuts(250).started_over for _ in range(12)]
    assert over[0], "no cheaper the second time"
    assert not all(over), "it is tried again"
    assert not cuts(10).started_over


def test_overwritten_absent_and_repeated_edges_change_nothing(graphs: list[Graph]) -> None:
    graph = new_graph(edges=[(0, 1), (1, 2), (2, 0), (2, 1)])
    graphs.append(graph)
    program = PageRank("p")
    program.start(graph)
    before = program.columns()["estimate"].copy()
    report = program.refresh(graph, apply(graph, [(0, 1, 1), (1, 0, 0), (0, 2, 1), (0, 2, 0)], 3))
    assert report.changed == {}
    assert np.array_equal(program.columns()["estimate"], before)


def test_isolated_vertices_are_reported_and_ranked(graphs: list[Graph]) -> None:
    graph = new_graph(edges=[(0, 1), (1, 0)])
    graphs.append(graph)
    program = PageRank("p")
    program.start(graph)
    report = program.refresh(graph, apply(graph, [], 300))
    assert report.changed["estimate"] is None or set(report.changed["estimate"]) == set(range(2, 300))
    check(program, graph, report)


def started(graphs: list[Graph], n: int = 400, tolerance: float = 1e-5) -> tuple[PageRank, Graph]:
    """Of a tolerance with which no shares are rounded to float32: residuals are known to the last digits."""
    graph = skewed(graphs, n)
    program = PageRank("p", tolerance=tolerance)
    program.start(graph)
    assert program.audit(graph) == []
    return program, graph


@pytest.mark.parametrize(
    ("column", "rule"),
    [
        ("estimate", "pagerank-residual"),
        ("residual", "pagerank-residual"),
        ("majorant", "pagerank-slack"),
        ("weight", "pagerank-slack"),
    ],
)
@pytest.mark.parametrize("factor", [1.02, 0.5, np.nan])
def test_the_audit_finds_a_broken_entry(column: str, rule: str, factor: float, graphs: list[Graph]) -> None:
    program, graph = started(graphs)
    state = program.state()
    broken = state[column]
    victim = int(np.argmax(np.abs(broken)))
    if column != "estimate":
        factor = 8 * factor  # these have room to spare: what stays within it breaks nothing
    broken[victim] *= factor
    found = program.audit(graph)
    assert rule in {violation.rule for violation in found}
    assert any(victim in violation.vertices for violation in found)


def test_the_audit_finds_a_missed_update_a_wrong_norm_and_a_wrong_bound(graphs: list[Graph]) -> None:
    program, graph = started(graphs)
    apply(graph, [(0, 399, 1), (1, 398, 1)], 400)
    assert "pagerank-residual" in {violation.rule for violation in program.audit(graph)}

    for name, rule in (
        ("norm", "pagerank-norm"),
        ("size", "pagerank-sum"),
        ("total", "pagerank-total"),
        ("ratio", "pagerank-ratio"),
        ("ratio_allowed", None),
    ):
        program, graph = started(graphs)
        state = program.state()
        state["scalars"][name] *= 0.9
        if name == "total":  # there may be next to none after a pass
            state["scalars"][name] += 0.02 * state["scalars"]["size"]
        program.restore(state, graph)
        assert ({violation.rule for violation in program.audit(graph)} == {rule}) == (rule is not None)

    program, graph = started(graphs)
    state = program.state()
    state["scalars"]["bound"] *= 3
    program.restore(state, graph)
    assert {violation.rule for violation in program.audit(graph)} == {"pagerank-tolerance"}


def test_slices_together_are_the_audit(graphs: list[Graph]) -> None:
    program, graph = started(graphs)
    degrees = graph.in_rows().degrees
    assert program.audit_slice(graph, 30, 90) == ([], 2 * int(degrees[30:90].sum()))
    program.state()["estimate"][[5, 200]] *= 1.1
    victims = set()
    for begin in range(0, 400, 7):
        end = min(400, begin + 7)
        found, _ = program.audit_slice(graph, begin, end)
        assert all(begin <= v < end for violation in found for v in violation.vertices)
        victims |= {v for violation in found if violation.rule == "pagerank-residual" for v in violation.vertices}
    assert {5, 200} <= victims
    assert "pagerank-residual" in {violation.rule for violation in program.audit(graph)}


@pytest.mark.parametrize("seed", range(5))
def test_a_graph_that_dwindles_leaves_no_rounding_behind(graphs: list[Graph], seed: int) -> None:
    """The sums of nothing are nothing, however large they were."""
    rng = np.random.default_rng(seed)
    graph = new_graph(edges=random_edges(rng, 400, 3000), n=400)
    graphs.append(graph)
    program = PageRank("pagerank", tolerance=1e-8)
    program.start(graph)
    for gone in np.array_split(rng.permutation(400), 40):
        program.refresh(graph, apply(graph, [(int(v), int(v), int(Op.DELETE_VERTEX)) for v in gone], 400))
        assert program.audit(graph) == []
    assert program.scalars()["norm"] == 0


@pytest.mark.parametrize("push_min", [0, solving.PUSH_MIN])
def test_deleted_vertices_leave_and_revived_ones_return(
    push_min: int, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where so much goes that residuals are computed anew."""
    monkeypatch.setattr(solving, "PUSH_MIN", push_min)
    program, graph = started(graphs)
    hub = int(graph.in_rows().degrees[:400].argmax())
    report = program.refresh(graph, apply(graph, [(hub, hub, int(Op.DELETE_VERTEX))], 400))
    check(program, graph, report)
    assert program.columns()["estimate"][hub] == 0
    report = program.refresh(graph, apply(graph, [(hub, hub, int(Op.INSERT_VERTEX)), (7, 9, 1)], 400))
    check(program, graph, report)
    assert results(program, graph)[hub] > 0
    # All go: nothing is left to rank.
    gone = [(v, v, int(Op.DELETE_VERTEX)) for v in range(400)]
    report = program.refresh(graph, apply(graph, gone, 400))
    assert program.audit(graph) == []
    check(program, graph, program.refresh(graph, apply(graph, [(3, 5, 1)], 400)))


def test_the_audit_measures_the_drift_of_residuals(graphs: list[Graph]) -> None:
    program, graph = started(graphs)
    assert program.drift < 1e-6
    state = program.state()
    light = int(np.argmin(state["weight"]))
    assert state["weight"][light] == 1
    drift = 0.5 * DRIFT * state["scalars"]["bound"]
    state["residual"][light] += drift
    program._systems.ranks.sums[[SIZE, TOTAL]] += drift
    # Within the reserve of the vertex, but no rounding.
    assert [violation.rule for violation in program.audit(graph)] == ["pagerank-drift"]
    assert 0.4 < program.drift < 0.6


@pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
@pytest.mark.parametrize("share", [0.9, 0.1, 1e-3, 1e-6, 1e-14, 0.0])
def test_a_state_that_passes_the_audit_keeps_to_its_bound(
    share: float, tolerance: float, graphs: list[Graph]
) -> None:
    """Residuals are kept too small, by that share of what each may be off: the bound must not follow them down."""
    program, graph = started(graphs, tolerance=tolerance)
    certificate = program._systems.certificate
    true = residual(program, graph)
    kept, weight = program.state()["residual"], program.state()["weight"].astype(float)
    kept[:] = np.sign(true) * np.maximum(0, np.abs(true) - share * certificate.reserve * weight)
    program._systems.ranks.sums[[SIZE, TOTAL]] = np.abs(kept).sum(), kept.sum()
    a = float((np.abs(true) / weight).max()) * certificate.amplification
    largest = 1 / (1 - program.damping)
    off = (largest + 1) / 2 * abs(true.sum()) + (largest - 1) / 2 * np.abs(true).sum()
    b = float(off / program.state()["estimate"].sum())
    assert program.audit(graph) or (a + min(a, b)) / (1 - a) <= program.error_bound
    # What shares of float32 may have done to residuals, the audit takes for rounding.
    assert bool(program.audit(graph)) == (share > (1e-9 if tolerance == 1e-5 else 0.5))


def test_parameters() -> None:
    assert parse_damping(0.5) == 0.5
    assert parse_tolerance(0.1) == 0.1
    for parse, low, high in ((parse_damping, "0.01", "0.99"), (parse_tolerance, "1e-08", "0.1")):
        for wrong in (0, 1, -0.5, "0.5", None, True, float("nan"), 1e-9):
            with pytest.raises(ValueError, match=f"a number from {low} to {high}"):
                parse(wrong)


def test_large_changes_of_a_road_network_cost_no_more_than_fresh_starts() -> None:
    """Old estimates are wrong over long distances there: after the first change nothing is begun with them."""
    graph = Graph(directed=False, weighted=False)
    program, fresh = PageRank("kept"), PageRank("fresh")
    read = []
    for change, undone in road_batches(120, 1 / 4, 3, seed=5):
        for epoch in (change, undone):
            report = program.refresh(graph, graph.apply(epoch.batch(), epoch.n_vertices))
            check(program, graph, report)
            if len(epoch):
                assert report.started_over
                read.append(report.edges_read / fresh.start(graph).edges_read)
    assert max(read[2:]) < 1.02
