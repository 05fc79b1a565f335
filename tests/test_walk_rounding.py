"""What random-walk programs keep about rounding, against residuals in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from sampling import examples
from walks import Update, WalkHistory, apply, new_graph, random_edges, solved, walk_histories

from graphtide.compute.walks import certificate, pagerank, ppr, solving, systems
from graphtide.compute.walks.certificate import SLACK_DRIFT
from graphtide.compute.walks.edits import ROUNDOFF
from graphtide.compute.walks.pagerank import PageRank
from graphtide.compute.walks.ppr import PersonalisedPageRank
from graphtide.compute.walks.sweeps import NORM, ROUNDED, SIZE, SLIPPED, TOTAL
from graphtide.gpma.edges import Op, destinations, sources
from graphtide.partition.graph import Graph

Steps = list[tuple[list[Update], int]]


def long_history(seed: int) -> tuple[bool, Steps]:
    """Whether directed, and a history of up to 40 steps on up to 16 vertices: residuals live long."""
    rng = np.random.default_rng(seed)
    n = 0
    steps: Steps = []
    kinds = [Op.INSERT, Op.DELETE, Op.INSERT_VERTEX, Op.DELETE_VERTEX]
    for _ in range(int(rng.integers(4, 40))):
        n += int(rng.integers(0, 4)) if n < 14 else 0
        updates: list[Update] = []
        if n:
            for _ in range(int(rng.integers(0, 20))):
                u, v = (int(vertex) for vertex in rng.integers(0, n, 2))
                kind = kinds[int(np.searchsorted([0.45, 0.85, 0.93], rng.random(), side="right"))]
                alone = kind in (Op.INSERT_VERTEX, Op.DELETE_VERTEX)
                updates.append((u, u if alone else v, int(kind)))
        steps.append((updates, n))
    return bool(rng.random() < 0.5), steps


def off(graph: Graph, damping: float, value: np.ndarray, rhs: np.ndarray, kept: np.ndarray) -> list[Fraction]:
    """By how much each kept residual differs from rhs - M value, exactly."""
    keys = graph.export().keys
    degrees = graph.out_rows().degrees
    true = [Fraction(float(b)) - Fraction(float(y)) for b, y in zip(rhs, value, strict=True)]
    for u, v in zip(sources(keys).tolist(), destinations(keys).tolist(), strict=True):
        true[v] += Fraction(damping) * Fraction(float(value[u])) / int(degrees[u])
    return [abs(r - Fraction(float(k))) for r, k in zip(true, kept, strict=True)]


def check_pagerank(program: PageRank, graph: Graph) -> None:
    """Residuals, slack and sums are off by no more than is kept, and that is within what the bound leaves."""
    n = graph.n_vertices
    ranks, majorant = program._systems.ranks, program._systems.majorant
    weight = ranks.weight[:n]
    for system, each in ((ranks, program._systems.rounding), (majorant, ROUNDOFF * majorant.sums[ROUNDED])):
        apart = off(graph, program.damping, system.value[:n], system.rhs[:n], system.residual[:n])
        assert all(x <= Fraction(each) * Fraction(float(w)) for x, w in zip(apart, weight, strict=True))
    assert program._systems.rounding <= program._systems.certificate.reserve
    assert program._systems.certificate.bound + program._systems.certificate.reserve <= program.tolerance
    norm = sum(Fraction(float(y)) for y in ranks.value[:n])
    size = sum(abs(Fraction(float(r))) for r in ranks.residual[:n])
    slipped = Fraction(ROUNDOFF * ranks.sums[SLIPPED])
    assert abs(norm - Fraction(float(ranks.sums[NORM]))) <= slipped
    assert size - Fraction(float(ranks.sums[SIZE])) <= slipped
    total = sum(Fraction(float(r)) for r in ranks.residual[:n])
    assert abs(total - Fraction(float(ranks.sums[TOTAL]))) <= Fraction(program._systems.sums_rounded)
    assert program.audit(graph) == []
    assert program.error_bound <= program.tolerance


def run_pagerank(directed: bool, damping: float, tolerance: float, steps: Steps, *, divided: bool = False) -> None:
    graph = new_graph(directed=directed)
    program = PageRank("p", damping=damping, tolerance=tolerance)
    if divided:
        program._push_alone = 0
    program.start(graph)
    for updates, n in steps:
        report = program.refresh(graph, apply(graph, updates, n))
        check_pagerank(program, graph)
        alive = graph.alive
        if alive.any():
            values = program.columns()["estimate"][:n] / program.scalars()["norm"]
            exact = solved(graph, alive.astype(float), damping)
            assert np.abs(values[alive] / exact[alive] - 1).max() <= (report.error_bound or 0)
    graph.close()


# With a fixed share of the bound for rounding, residuals of each of these drifted out of it.
@pytest.mark.sample(4)
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("seed", [59, 93, 127, 139, 175])
def test_histories_that_drifted_out_of_the_bound(seed: int, divided: bool) -> None:
    directed, steps = long_history(seed)
    run_pagerank(directed, 0.99, 1e-8, steps, divided=divided)


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(history=walk_histories())
def test_residuals_are_off_by_no_more_than_is_kept(history: WalkHistory) -> None:
    run_pagerank(history.directed, history.damping, history.tolerance, history.steps)


@pytest.mark.parametrize("size", [40, 2000])
def test_passes_and_pushes_on_a_larger_graph(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "PUSH_MIN", 1000)
    rng = np.random.default_rng(7)
    n = 1500
    graph = new_graph(edges=random_edges(rng, n, 9000), n=n)
    program = PageRank("p", tolerance=1e-5)
    program.start(graph)
    check_pagerank(program, graph)
    for _ in range(3):
        edges = random_edges(rng, n, size)
        program.refresh(graph, apply(graph, [(u, v, int(rng.random() < 0.6)) for u, v in edges], n))
        check_pagerank(program, graph)
    graph.close()


def test_rounding_over_its_reserve_is_taken_away_by_a_pass() -> None:
    graph = new_graph(edges=random_edges(np.random.default_rng(8), 300, 1500), n=300)
    program = PageRank("p", tolerance=1e-5)
    program.start(graph)
    program._systems.ranks.sums[ROUNDED] = 2 * program._systems.certificate.reserve / ROUNDOFF
    report = program.refresh(graph, apply(graph, [(299, 298, 1), (298, 297, 1)], 300))
    assert report.edges_read >= graph.n_arcs
    assert program._systems.rounding < 1e-3 * program._systems.certificate.reserve
    check_pagerank(program, graph)
    program._systems.majorant.sums[ROUNDED] = 2 * SLACK_DRIFT / ROUNDOFF
    report = program.refresh(graph, apply(graph, [(299, 296, 1), (298, 295, 1)], 300))
    assert report.edges_read >= graph.n_arcs
    check_pagerank(program, graph)
    graph.close()


def test_a_tolerance_out_of_the_reach_of_floats_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound that is published holds, and is over the tolerance."""
    for module in (certificate, pagerank, solving, systems):
        monkeypatch.setattr(module, "ROUNDOFF", 2.0**-30)
    graph = new_graph(edges=random_edges(np.random.default_rng(9), 300, 1500), n=300)
    program = PageRank("p", tolerance=1e-8)
    assert (program.start(graph).error_bound or 0) > 1e-8
    report = program.refresh(graph, apply(graph, [(1, 2, 1), (2, 290, 1)], 300))
    assert 1e-8 < (report.error_bound or 0) < 1e-4
    assert "pagerank-tolerance" in {violation.rule for violation in program.audit(graph)}
    graph.close()


def run_ppr(directed: bool, damping: float, tolerance: float, steps: Steps) -> None:
    graph = new_graph(directed=directed)
    program = PersonalisedPageRank("p", (0, 5), damping, tolerance)
    program.start(graph)
    for updates, n in steps:
        change = apply(graph, updates, n)
        program.bind(np.array([v for v in (0, 5) if v < n and graph.alive[v]], np.uint32))
        program.refresh(graph, change)
        walks = program._walks
        apart = off(graph, damping, walks.value[:n], walks.rhs[:n], walks.residual[:n])
        size = sum(abs(Fraction(float(r))) for r in walks.residual[:n])
        slipped = max(Fraction(0), size - Fraction(float(walks.sums[ppr.SIZE])))
        rounded = ROUNDOFF * walks.sums[ppr.ROUNDED]
        assert sum(apart) + slipped <= rounded
        assert program.error_bound <= tolerance
        if program._active.size:
            assert rounded <= ppr.DRIFT * program._size_max()
        assert program.audit(graph) == []
    graph.close()


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(history=walk_histories())
def test_ppr_residuals_are_off_by_no_more_than_is_kept(history: WalkHistory) -> None:
    run_ppr(history.directed, history.damping, history.tolerance, history.steps)


@pytest.mark.parametrize("seed", [59, 93, 127])
def test_ppr_over_long_histories(seed: int) -> None:
    directed, steps = long_history(seed)
    run_ppr(directed, 0.99, 1e-8, steps)
