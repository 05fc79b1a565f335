"""Dense passes: the same with one thread and with two, and a step of the power method."""

from __future__ import annotations

import itertools
import threading

import numba as nb
import numpy as np
import pytest
from walks import matrix, new_graph, random_edges

from graphtide.compute.walks import passes as walk_pulls
from graphtide.compute.walks.passes import BLOCK, Estimate, Limits, Pulls
from graphtide.gpma.atomics import fetch_add
from graphtide.gpma.threads import Pair
from graphtide.partition.graph import Graph

N = 5000
CAPACITY = 5120


@pytest.fixture(scope="module")
def graph() -> Graph:
    return new_graph(edges=random_edges(np.random.default_rng(3), N, 120_000), n=N)


def estimate(seed: int) -> Estimate:
    rng = np.random.default_rng(seed)
    columns = [np.zeros(CAPACITY) for _ in range(2)]
    for column in columns:
        column[:N] = rng.random(N)
    rhs = np.zeros(CAPACITY, np.float32)
    rhs[:N] = rng.random(N) < 0.3
    weight = 1 + rng.random(CAPACITY).astype(np.float32)
    return Estimate(columns[0], columns[1], rhs, weight, np.ones(CAPACITY // BLOCK, np.uint8))


def passes(graph: Graph, solved: Estimate, count: int) -> Pulls:
    pulls = Pulls("test", 0.85)
    degrees = graph.out_rows().degrees
    pulls.begin(graph.in_rows(), degrees, N, solved)
    for _ in range(count):
        pulls.step(graph.in_rows(), degrees, solved, Limits(0.2, 0.1))
    return pulls


def test_results_do_not_depend_on_the_threads(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    assert graph.n_arcs > walk_pulls._ALONE
    together = estimate(1)
    passes(graph, together, 5)
    monkeypatch.setattr(walk_pulls, "_ALONE", graph.n_arcs + 1)
    alone = estimate(1)
    passes(graph, alone, 5)
    for mine, theirs in zip(together, alone, strict=True):
        assert np.array_equal(mine, theirs)


def test_a_pass_is_a_step_of_the_power_method_and_leaves_exact_residuals(graph: Graph) -> None:
    solved = estimate(2)
    start = solved.value[:N] + solved.residual[:N]
    pulls = passes(graph, solved, 1)
    links = matrix(graph)
    dangling = graph.out_rows().degrees[:N] == 0
    rhs = solved.rhs[:N].astype(float)
    lost = start.sum() - 0.85 * start[~dangling].sum()
    value = start * rhs.sum() / lost
    residual = rhs + 0.85 * (links @ value) - value
    assert solved.value[:N] == pytest.approx(value, rel=1e-12)
    assert solved.residual[:N] == pytest.approx(residual, abs=1e-11)
    assert residual.sum() == pytest.approx(0, abs=1e-9)
    assert pulls.size == pytest.approx(np.abs(residual).sum())
    over = (solved.residual > 0.1 * solved.weight) | (solved.residual < -0.2 * solved.weight)
    degrees = graph.out_rows().degrees[:N]
    assert pulls.over == (over.sum(), degrees[over[:N]].sum())
    blocks = -(-N // BLOCK)
    assert np.array_equal(solved.flags[:blocks] != 0, over.reshape(-1, BLOCK).any(axis=1)[:blocks])


def test_passes_shrink_residuals_by_the_damping_at_least() -> None:
    """Even on a ring, where nothing mixes."""
    ring = new_graph(edges=[(v, (v + 1) % N) for v in range(N)], n=N)
    solved = estimate(3)
    pulls = passes(ring, solved, 1)
    degrees = ring.out_rows().degrees
    sizes = [pulls.size]
    for _ in range(20):
        pulls.step(ring.in_rows(), degrees, solved, Limits(1.0, 1.0))
        sizes.append(pulls.size)
    assert all(after <= 0.85 * before * (1 + 1e-9) for before, after in itertools.pairwise(sizes))
    ring.close()


def test_a_pair_shares_a_counter_and_waits_for_no_thread_that_has_not_begun() -> None:
    pair = Pair(2, "test")
    busy = threading.Event()
    assert pair._other is not None
    pair._other.submit(busy.wait)
    ran: list[int] = []
    pair.share(lambda: ran.append(1))  # returns although the other thread is busy
    assert ran == [1]
    assert pair.run(lambda: 2, lambda: 3) == (2, 3)
    busy.set()
    assert pair.run(lambda: 4, lambda: 5) == (4, 5)

    def fail() -> None:
        raise RuntimeError("both fail")

    with pytest.raises(RuntimeError, match="both fail"):
        pair.share(fail)


def test_no_two_takers_get_the_same_number() -> None:
    @nb.njit(nogil=True)
    def drain(counter, mine):  # type: ignore[no-untyped-def]
        count = 0
        while True:
            number = fetch_add(counter, 0, 1)
            if number >= mine.size:
                return count
            mine[number] += 1
            count += 1

    counter = np.zeros(1, np.int64)
    taken = np.zeros(200_000, np.int64)
    counts = []
    threads = [threading.Thread(target=lambda: counts.append(drain(counter, taken))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (taken == 1).all()
    assert sum(counts) == taken.size
