"""Personalised PageRank: the certified error in sum against exact solves, and work that stays local."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from histories import real_history
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples
from walks import (
    SHAPES,
    Edges,
    WalkHistory,
    apply,
    check_changed,
    halves,
    matrix,
    new_graph,
    rmat_epochs,
    skewed,
    solved,
    walk_histories,
    with_peer,
)

from graphtide.compute.program import Published, Refresh
from graphtide.compute.walks import ppr
from graphtide.compute.walks.ppr import DRIFT, EXPLAINED, PersonalisedPageRank
from graphtide.compute.walks.ppr_pushes import NORM, PUSH_EDGES, SIZE
from graphtide.gpma.edges import NO_VERTEX, Op
from graphtide.partition.graph import Graph


class Walker(PersonalisedPageRank):
    """The program under test; its sources are dense ids."""

    def __init__(self, sources: list[int], damping: float = 0.85, tolerance: float = 1e-3) -> None:
        super().__init__("p", tuple(sources), damping, tolerance)

    def learn(self, graph: Graph) -> None:
        """What the engine does before each run."""
        known = [v if v < graph.n_vertices and graph.alive[v] else NO_VERTEX for v in self.sources]
        self.bind(np.array(known, np.uint32))

    def begin(self, graph: Graph) -> Refresh:
        self.learn(graph)
        return self.start(graph)


def results(program: PersonalisedPageRank, graph: Graph) -> np.ndarray | None:
    """The values of all vertices; None where there is no distribution."""
    n = graph.n_vertices
    published = Published(program.columns(), program.scalars(), n)
    answer = program.read(published, np.arange(n, dtype=np.uint32))
    assert answer.null.all() or not answer.null.any()
    return None if answer.null.all() else np.asarray(answer.values)


def check(program: Walker, graph: Graph, report: Refresh) -> None:
    """Everything that must hold after any run."""
    assert program.audit(graph) == []
    assert report.error_bound is not None
    assert report.error_bound <= program.tolerance
    sources = [v for v in program.sources if v < graph.n_vertices and graph.alive[v]]
    values = results(program, graph)
    if not sources:
        assert values is None
        return
    assert values is not None
    assert (values >= 0).all()
    assert values.sum() == pytest.approx(1, abs=1e-9)
    rhs = np.zeros(graph.n_vertices)
    rhs[sources] = 1
    assert np.abs(values - solved(graph, rhs, program.damping)).sum() <= report.error_bound + 1e-12
    assert not values[~graph.alive].any()


@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(walk_histories(), st.lists(st.integers(0, 14), min_size=1, max_size=3, unique=True))
def test_every_epoch_of_any_history_is_within_its_bound(history: WalkHistory, sources: list[int]) -> None:
    """Sources become known late, are deleted and come back, and dangle, among everything else."""
    graph = new_graph(directed=history.directed)
    program = Walker(sources, history.damping, history.tolerance)
    check(program, graph, program.begin(graph))
    for updates, n in history.steps:
        before = program.columns()["estimate"][: graph.n_vertices].copy()
        change = apply(graph, updates, n)
        program.learn(graph)
        report = program.refresh(graph, change)
        check(program, graph, report)
        check_changed(before, program, n, report)
    graph.close()


@pytest.mark.sample(24)
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5])
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_awkward_shapes_come_and_go(
    shape: str,
    directed: bool,
    tolerance: float,
    dense: bool,
    graphs: list[Graph],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By pushes and by dense passes: built half by half, then taken down, then its hub is deleted."""
    if dense:
        monkeypatch.setattr(ppr, "PUSH_MIN", 0)
        monkeypatch.setattr(ppr, "PUSH_SHARE", 0)
    edges = SHAPES[shape]
    n = 1 + max(max(edge) for edge in edges) + 3
    graph = new_graph(directed=directed)
    graphs.append(graph)
    program = Walker([0, n - 1], tolerance=tolerance)
    check(program, graph, program.begin(graph))
    earlier, later = halves(edges)
    hub = int(np.bincount(np.array(edges).ravel()).argmax())
    steps = (
        [(u, v, int(Op.INSERT)) for u, v in earlier],
        [(u, v, int(Op.INSERT)) for u, v in later],
        [(hub, hub, int(Op.DELETE_VERTEX))],
        [(u, v, int(Op.INSERT)) for u, v in earlier],
        [(u, v, int(Op.DELETE)) for u, v in earlier],
        [(u, v, int(Op.DELETE)) for u, v in later],
    )
    for updates in steps:
        change = apply(graph, updates, n)
        program.learn(graph)
        check(program, graph, program.refresh(graph, change))


@pytest.mark.sample(among="residuals over thousands of batches")
def test_residuals_stay_those_of_the_graph_over_thousands_of_batches(graphs: list[Graph]) -> None:
    rng = np.random.default_rng(21)
    graph = new_graph()
    graphs.append(graph)
    program = Walker([0, 2], tolerance=1e-5)
    program.begin(graph)
    n = 3
    for batch in range(2000):
        n += int(rng.random() < 0.02)
        size = int(rng.integers(1, 12))
        src = rng.integers(0, min(n, 4) if batch % 3 else n, size)
        updates = list(zip(src, rng.integers(0, n, size), rng.integers(0, 2, size), strict=True))
        change = apply(graph, updates, n)
        program.learn(graph)
        program.refresh(graph, change)
        state = program.state()
        rhs = state["scalars"]["level"] * np.isin(np.arange(n), [0, 2])
        true = rhs - state["estimate"] + 0.85 * (matrix(graph) @ state["estimate"])
        assert np.abs(state["residual"] - true).max() < 1e-12


@pytest.mark.parametrize("damping", [0.5, 0.85])
def test_agrees_with_networkx(damping: float, graphs: list[Graph]) -> None:
    graph, peer = with_peer(graphs)
    program = Walker([7, 11, 250], damping, 1e-7)
    program.begin(graph)
    share = {7: 1 / 3, 11: 1 / 3, 250: 1 / 3}
    expected = nx.pagerank(peer, alpha=damping, personalization=share, tol=1e-13, max_iter=2000)
    values = results(program, graph)
    assert values is not None
    assert np.abs(values - [expected[v] for v in range(300)]).sum() <= 1e-7


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "directed", "updates"), [("web-cnr2000", True, 60_000), ("mathoverflow", True, 20_000)]
)
def test_real_graphs(name: str, directed: bool, updates: int, graphs: list[Graph]) -> None:
    graph = new_graph(directed=directed)
    graphs.append(graph)
    program = Walker([17, 170])
    program.begin(graph)
    for k, epoch in enumerate(real_history(name, directed=directed, updates=updates, events_max=300_000).epochs):
        change = graph.apply(epoch.batch(), epoch.n_vertices)
        program.learn(graph)
        report = program.refresh(graph, change)
        if k % 3 == 0:
            assert program.audit(graph) == []
            rhs = np.zeros(graph.n_vertices)
            rhs[[17, 170]] = 1
            values = results(program, graph)
            assert values is not None
            assert np.abs(values - solved(graph, rhs, 0.85)).sum() <= (report.error_bound or 0)


def test_a_source_alone_has_everything(graphs: list[Graph]) -> None:
    """Isolated, with a loop alone, and with edges into it only."""
    for edges in ([], [(0, 0)], [(1, 0), (2, 0)]):
        graph = new_graph(edges=edges, n=3)
        graphs.append(graph)
        program = Walker([0], tolerance=1e-6)
        check(program, graph, program.begin(graph))
        assert results(program, graph) == pytest.approx([1, 0, 0], abs=1e-6)


def test_a_source_that_becomes_known_shares_the_restarts(graphs: list[Graph]) -> None:
    graph = new_graph(edges=[(0, 1)])
    graphs.append(graph)
    program = Walker([0, 2], tolerance=1e-6)
    check(program, graph, program.begin(graph))
    assert results(program, graph) == pytest.approx([1 / 1.85, 0.85 / 1.85], abs=1e-6)
    change = apply(graph, [], 3)
    program.learn(graph)
    report = program.refresh(graph, change)
    check(program, graph, report)
    assert results(program, graph) == pytest.approx([1 / 2.85, 0.85 / 2.85, 1 / 2.85], abs=1e-6)


def islands(rng: np.random.Generator, count: int, size: int) -> Edges:
    """Random graphs of ``size`` vertices with no edges between them."""
    src = rng.integers(0, size, (count, 6 * size)) + size * np.arange(count)[:, None]
    dst = rng.integers(0, size, (count, 6 * size)) + size * np.arange(count)[:, None]
    return list(zip(src.ravel().tolist(), dst.ravel().tolist(), strict=True))


@pytest.mark.sample(among="work is in proportion")
def test_work_stays_where_the_sources_reach(graphs: list[Graph]) -> None:
    rng = np.random.default_rng(8)
    graph = new_graph(edges=islands(rng, 500, 100), n=50_000)
    graphs.append(graph)
    program = Walker([5])
    report = program.begin(graph)
    check(program, graph, report)
    assert 0 < report.edges_read < graph.n_arcs / 20
    elsewhere = program.refresh(graph, apply(graph, [(40_000, 40_001, 1), (40_002, 40_003, 1)], 50_000))
    assert elsewhere.changed == {} and elsewhere.edges_read == 0
    for _ in range(20):
        updates = [(int(u), int(v), 1) for u, v in rng.integers(0, 100, (20, 2))]
        report = program.refresh(graph, apply(graph, updates, 50_000))
        check(program, graph, report)
        changed = report.changed.get("estimate", np.empty(0, np.uint32))
        assert changed is not None and (changed < 100).all()
        assert report.edges_read < 20_000


@pytest.mark.parametrize("scale", [10, 13])
def test_a_refresh_costs_no_more_than_a_start(scale: int) -> None:
    program, cold = Walker([0]), Walker([0])
    for graph, change in rmat_epochs(scale, (1, 10, 10, 100, 100, 1000, 1000, 10_000, 10_000)):
        if not program.columns()["estimate"].any():
            program.begin(graph)
            continue
        reports = program.refresh(graph, change), cold.begin(graph)
        costs = [report.edges_read + PUSH_EDGES * report.active for report in reports]
        assert costs[0] <= costs[1]


def started(graphs: list[Graph], n: int = 400) -> tuple[Walker, Graph]:
    graph = skewed(graphs, n)
    program = Walker([1, 3])
    program.begin(graph)
    assert program.audit(graph) == []
    return program, graph


@pytest.mark.parametrize("column", ["estimate", "residual"])
@pytest.mark.parametrize("factor", [1.01, 0.5, np.nan])
def test_the_audit_finds_a_broken_entry(column: str, factor: float, graphs: list[Graph]) -> None:
    program, graph = started(graphs)
    broken = program.state()[column]
    victim = int(np.argmax(np.abs(broken)))
    if column == "residual":
        factor = 64 * factor  # these have room to spare: what stays within it breaks nothing
    broken[victim] *= factor
    n = graph.n_vertices
    by_slices = [v for begin in range(0, n, 7) for v in program.audit_slice(graph, begin, min(n, begin + 7))[0]]
    for found in (program.audit(graph), by_slices):
        assert found
        assert any(victim in violation.vertices for violation in found)


@pytest.mark.parametrize("share", [1.5, 0.99, 0.5, 0.0])
def test_a_state_that_passes_the_audit_keeps_to_its_bound(share: float, graphs: list[Graph]) -> None:
    """Residuals are kept too small, and their sum again, by that share of what each may be off."""
    program, graph = started(graphs)
    may = share * DRIFT * program._size_max()
    kept, sums = program.state()["residual"], program._walks.sums
    true = float(np.abs(kept).sum())
    assert true > 2 * may
    kept *= (true - may) / true
    sums[SIZE] = true - 2 * may
    error_max = 2 * true / ((1 - program.damping) * sums[NORM])
    assert program.audit(graph) or error_max <= program.error_bound
    assert bool(program.audit(graph)) == (share > 1)


@pytest.mark.parametrize("share", [0.99, 1.5])
def test_what_rounding_explains_is_in_the_bound_too(share: float, graphs: list[Graph]) -> None:
    """At the least tolerance, where it counts: every residual is off by that share of what the audit explains.

    Beside that the residuals and their sum are off by what they may.
    """
    graph = skewed(graphs, 400)
    program = Walker([1, 3], damping=0.98, tolerance=1e-8)
    program.begin(graph)
    assert program.audit(graph) == []
    kept, sums, n = program.state()["residual"], program._walks.sums, graph.n_vertices
    may = 0.99 * DRIFT * program._size_max()
    true = float(np.abs(kept).sum())
    y, restart = program.state()["estimate"], program._walks.rhs[:n]
    explained = share * EXPLAINED * (np.abs(y) + np.abs(kept) + restart)
    assert explained.sum() > 0.01 * program._size_max(), "it would not show"
    kept *= (true - may) / true
    kept -= np.sign(kept) * explained
    sums[SIZE] = float(np.abs(kept).sum()) - may
    error_max = 2 * true / ((1 - program.damping) * sums[NORM])
    found = program.audit(graph)
    assert bool(found) == (share > 1)
    assert found or error_max <= program.error_bound


def test_the_sum_of_residuals_is_off_by_no_more_than_the_bound_counts(graphs: list[Graph]) -> None:
    graph = skewed(graphs, 400)
    program = Walker([1, 3], damping=0.98, tolerance=1e-8)
    program.begin(graph)
    program._walks.sums[SIZE] -= DRIFT * program._size_max() + 5e-14 * program._walks.sums[NORM]
    assert [violation.rule for violation in program.audit(graph)] == ["ppr-sum"]


def test_slices_read_the_in_edges_of_their_vertices(graphs: list[Graph]) -> None:
    program, graph = started(graphs)
    degrees = graph.in_rows().degrees
    assert program.audit_slice(graph, 30, 90) == ([], int(degrees[30:90].sum()))


def test_the_audit_finds_a_missed_update_a_wrong_source_and_wrong_sums(graphs: list[Graph]) -> None:
    program, graph = started(graphs)
    apply(graph, [(1, 399, 1), (3, 398, 1)], 400)
    assert "ppr-residual" in {violation.rule for violation in program.audit(graph)}

    program, graph = started(graphs)
    program.bind(np.array([1, 4], np.uint32))
    assert "ppr-sources" in {violation.rule for violation in program.audit(graph)}

    for name, rule in (("size", "ppr-sum"), ("norm", "ppr-norm")):
        program, graph = started(graphs)
        state = program.state()
        state["scalars"][name] *= 0.9
        program.restore(state, graph)
        program.learn(graph)
        assert {violation.rule for violation in program.audit(graph)} == {rule}
