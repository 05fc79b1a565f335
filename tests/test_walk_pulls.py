"""Dense passes: the same with any number of threads, and a step of the power method."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numba as nb
import numpy as np
import numpy.typing as npt
import pytest
from walks import matrix, new_graph, random_edges

from graphtide.compute.walks import passes as walk_pulls
from graphtide.compute.walks import shared_sweeps, sweeps, weighing
from graphtide.compute.walks.edits import ROUNDOFF
from graphtide.compute.walks.pagerank import PageRank
from graphtide.compute.walks.passes import BLOCK, Estimate, Goal, Limits, Pulls
from graphtide.compute.walks.ranges import Mail, Ranges
from graphtide.compute.walks.sweeps import NORM, SIZE, SLIPPED, STRETCH, SUMS, WORK_SLOTS, System
from graphtide.gpma.atomics import fetch_add
from graphtide.gpma.edges import EdgeBatch, destinations, sources
from graphtide.gpma.team import BrokenOff, Crew, Team
from graphtide.gpma.threads import Pair
from graphtide.partition.graph import Graph

N = 5000
CAPACITY = 5120


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Every tenth vertex without in-edges."""
    edges = random_edges(np.random.default_rng(3), N, 120_000)
    return new_graph(edges=[(u, v) for u, v in edges if v % 10], n=N)


def estimate(seed: int) -> Estimate:
    rng = np.random.default_rng(seed)
    columns = [np.zeros(CAPACITY) for _ in range(2)]
    for column in columns:
        column[:N] = rng.random(N)
    rhs = np.zeros(CAPACITY, np.float32)
    rhs[:N] = rng.random(N) < 0.3
    weight = 1 + rng.random(CAPACITY).astype(np.float32)
    return Estimate(columns[0], columns[1], rhs, weight, np.ones(CAPACITY // BLOCK, np.uint8))


def passes(
    graph: Graph, solved: Estimate, count: int, *, roughly: bool = False, crew: Crew | None = None
) -> Pulls:
    pulls = Pulls(0.85)
    goal = Goal(Limits(0.2, 0.1), passes_min=count, roughly=roughly)
    rows, degrees = graph.in_rows(), graph.out_rows().degrees
    assert pulls.run(crew or graph.crew, rows, degrees, graph.n_vertices, solved, goal) == count
    return pulls


def true_residual(graph: Graph, solved: Estimate) -> np.ndarray:
    n = graph.n_vertices
    return np.asarray(solved.rhs[:n] + 0.85 * (matrix(graph) @ solved.value[:n]) - solved.value[:n])


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("roughly", [False, True])
def test_results_do_not_depend_on_the_threads(roughly: bool, threads: int, graph: Graph) -> None:
    assert graph.n_arcs > walk_pulls._ALONE
    team = Team(threads)
    together, alone = estimate(1), estimate(1)
    ours = passes(graph, together, 5, roughly=roughly, crew=team.crew())
    other = passes(graph, alone, 5, roughly=roughly, crew=team.crew(1))
    team.close()
    for mine, theirs in zip(together, alone, strict=True):
        assert np.array_equal(mine, theirs)
    assert (ours.size, ours.over, ours.rounded) == (other.size, other.over, other.rounded)


def test_a_pass_is_a_step_of_the_power_method_and_leaves_exact_residuals(graph: Graph) -> None:
    """Of the vertices with in-edges, what the others give them being a part of their right-hand side."""
    solved = estimate(2)
    rhs = solved.rhs[:N].astype(float)
    fixed = graph.in_rows().degrees[:N] == 0
    assert 0 < fixed.sum() < N
    start = np.where(fixed, rhs, solved.value[:N] + solved.residual[:N])
    pulls = passes(graph, solved, 1)
    links = matrix(graph)
    scaled = np.where(fixed, 0, start)
    given = np.where(fixed, 0, rhs) + 0.85 * (links @ (start - scaled))
    factor = given.sum() / (scaled - 0.85 * (links @ scaled)).sum()
    value = np.where(fixed, rhs, factor * start)
    residual = rhs + 0.85 * (links @ value) - value
    assert solved.value[:N] == pytest.approx(value, rel=1e-12)
    assert solved.residual[:N] == pytest.approx(residual, abs=1e-11)
    assert residual.sum() == pytest.approx(0, abs=1e-9)
    assert not solved.residual[:N][fixed].any()
    assert pulls.size == pytest.approx(np.abs(residual).sum())
    over = (solved.residual > 0.1 * solved.weight) | (solved.residual < -0.2 * solved.weight)
    degrees = graph.out_rows().degrees[:N]
    assert pulls.over == (over.sum(), degrees[over[:N]].sum())
    blocks = -(-N // BLOCK)
    assert np.array_equal(solved.flags[:blocks] != 0, over.reshape(-1, BLOCK).any(axis=1)[:blocks])


def test_a_sequence_that_never_ends_is_broken_off_between_two_passes(graph: Graph) -> None:
    team, passed = Team(2), threading.Event()
    solved, outcome = estimate(1), list[BaseException]()
    before = solved.value.copy()

    def endless() -> None:
        try:
            passes(graph, solved, 1 << 60, crew=team.crew())
        except BaseException as error:
            outcome.append(error)
        passed.set()

    thread = threading.Thread(target=endless, daemon=True)
    thread.start()
    while np.array_equal(solved.value, before) and not passed.is_set():  # it has begun
        time.sleep(0.001)
    team.break_off()
    assert passed.wait(60)
    thread.join()
    assert [type(error) for error in outcome] == [BrokenOff]
    with pytest.raises(BrokenOff):
        passes(graph, solved, 1, crew=team.crew())
    team.close()


def test_no_chunk_has_most_of_the_vertices() -> None:
    """Most of them have few in-edges, or none: of a chunk of so many edges one thread would take long."""
    rng = np.random.default_rng(7)
    n = 200_000
    heads = np.minimum(rng.integers(0, n, 100_000), rng.integers(0, 5000, 100_000))
    edges = list(zip(rng.integers(0, n, 100_000).tolist(), heads.tolist(), strict=True))
    with closing(new_graph(edges=edges, n=n)) as skewed:
        capacity = -(-n // 128) * 128
        ones = np.ones(capacity, np.float32)
        flags = np.zeros(capacity // BLOCK, np.uint8)
        each = Estimate(np.ones(capacity), np.zeros(capacity), ones, ones, flags)
        pulls = Pulls(0.85)
        degrees = skewed.out_rows().degrees
        pulls.run(skewed.crew, skewed.in_rows(), degrees, n, each, Goal(Limits(1.0, 1.0)))
        in_degrees = skewed.in_rows().degrees[:n]
    parts = walk_pulls.CHUNKS // 2
    vertices = np.diff(pulls._cuts)
    assert vertices.sum() == n
    assert vertices.max() <= n / parts + 2 * 128
    of_chunks = [in_degrees[begin:end].sum() for begin, end in itertools.pairwise(pulls._cuts)]
    assert max(of_chunks) <= 2 * 100_000 / parts + 2 * 128 * in_degrees.max()


def test_passes_at_once_are_those_one_by_one(graph: Graph) -> None:
    """Where another pass follows, none of what the last one keeps is missed."""
    together, single = estimate(4), estimate(4)
    passes(graph, together, 4)
    for _ in range(4):
        last = passes(graph, single, 1)
    assert together.value == pytest.approx(single.value, rel=1e-12)
    assert together.residual == pytest.approx(single.residual, abs=1e-12 * single.value.max())
    assert last.edges == graph.n_arcs


def test_passes_go_on_until_sizes_are_small(graph: Graph) -> None:
    solved, fewer = estimate(5), estimate(5)
    for each in (solved, fewer):  # with residuals of their own
        passes(graph, each, 1)
    pulls = Pulls(0.85)
    goal = Goal(Limits(1.0, 1.0), size_max=1e-3)
    count = pulls.run(graph.crew, graph.in_rows(), graph.out_rows().degrees, N, solved, goal)
    assert count > 3
    assert passes(graph, fewer, count - 2).size > goal.size_max
    # One pass more or less than needed: how far the last one gets is a guess.
    assert pulls.size < 10 * goal.size_max
    assert np.abs(true_residual(graph, solved)).sum() == pytest.approx(pulls.size, rel=1e-6)


def test_rounded_shares_are_off_by_what_is_told(graph: Graph) -> None:
    solved = estimate(6)
    pulls = passes(graph, solved, 12, roughly=True)
    off = np.abs(true_residual(graph, solved) - solved.residual[:N])
    size = np.abs(solved.value[:N]) + np.abs(solved.residual[:N])
    assert 2.0**-30 * size.max() < off.max() <= ROUNDOFF * pulls.rounded_max < 2.0**-22 * size.max()
    assert (off / solved.weight[:N]).max() <= ROUNDOFF * pulls.weighed_max
    assert off.sum() <= ROUNDOFF * pulls.rounded


def test_vertices_without_edges_slow_nothing(graph: Graph) -> None:
    """However many there are, residuals of the others shrink as fast."""
    lonely = new_graph(edges=[], n=0)
    keys = graph.export().keys
    lonely.apply(EdgeBatch.of(sources(keys), destinations(keys)), 3 * N)
    sizes = []
    for each in (graph, lonely):
        n = each.n_vertices
        capacity = -(-n // 128) * 128
        ones = np.ones(capacity, np.float32)
        solved = Estimate(np.ones(capacity), np.zeros(capacity), ones, ones, np.zeros(capacity // BLOCK, np.uint8))
        sizes.append([passes(each, solved, count).size for count in (4, 8)])
    lonely.close()
    assert sizes[1] == pytest.approx(sizes[0])
    assert sizes[0][1] < sizes[0][0] / 3**4


def test_passes_shrink_residuals_by_the_damping_at_least() -> None:
    """Even on a ring, where nothing mixes."""
    ring = new_graph(edges=[(v, (v + 1) % N) for v in range(N)], n=N)
    solved = estimate(3)
    sizes = [passes(ring, solved, 1).size for _ in range(20)]
    assert all(after <= 0.85 * before * (1 + 1e-9) for before, after in itertools.pairwise(sizes))
    ring.close()


@pytest.fixture(scope="module")
def grid() -> Iterator[Graph]:
    """A graph that does not mix, with more slots than one thread goes over alone."""
    side = 180
    vertices = np.arange(side * side).reshape(side, side)
    links = [(vertices[:, :-1], vertices[:, 1:]), (vertices[:-1], vertices[1:])]
    both = np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in links])
    with closing(new_graph(edges=np.concatenate([both, both[:, ::-1]]).tolist(), n=side * side)) as made:
        yield made


def ones_of(n: int) -> Estimate:
    """As a start begins, but for one vertex, which far more is at."""
    capacity = -(-n // 128) * 128
    ones = np.ones(capacity, np.float32)
    value = np.ones(capacity)
    value[n // 3] = n
    return Estimate(value, np.zeros(capacity), ones, ones, np.zeros(capacity // BLOCK, np.uint8))


@pytest.mark.parametrize("roughly", [False, True])
def test_mixtures_of_passes_save_passes_where_a_graph_does_not_mix(roughly: bool, grid: Graph) -> None:
    n, rows, degrees = grid.n_vertices, grid.in_rows(), grid.out_rows().degrees
    solved, plain, pulls = ones_of(n), ones_of(n), Pulls(0.85)
    goal = Goal(Limits(1.0, 1.0), size_max=1e-3 * n, passes_min=2, roughly=roughly)
    count = pulls.run(grid.crew, rows, degrees, n, solved, goal)
    assert pulls.size <= 2 * goal.size_max
    assert np.abs(true_residual(grid, solved)).sum() == pytest.approx(pulls.size, rel=1e-3)
    needed, one_by_one = 0, Pulls(0.85)
    while needed == 0 or one_by_one.size > pulls.size:  # nothing is kept of a pass that is the last
        needed += one_by_one.run(grid.crew, rows, degrees, n, plain, goal._replace(size_max=np.inf, passes_min=1))
    assert 3 < count < 0.7 * needed
    assert pulls.memory_bytes > 2 * one_by_one.memory_bytes


def test_a_sequence_without_memory_for_what_is_kept_leaves_nothing_half_made(
    grid: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, rows, degrees = grid.n_vertices, grid.in_rows(), grid.out_rows().degrees
    goal = Goal(Limits(1.0, 1.0), passes_min=6, shrinks=0.9)
    pulls, empty = Pulls(0.85), np.empty

    def no_more(shape: object, *kind: type) -> npt.NDArray[np.float64]:
        if isinstance(shape, tuple):
            raise MemoryError
        return empty(shape, *kind)  # type: ignore[call-overload, no-any-return]

    with monkeypatch.context() as patched:
        patched.setattr(walk_pulls.np, "empty", no_more)
        with pytest.raises(MemoryError):
            pulls.run(grid.crew, rows, degrees, n, ones_of(n), goal)
    assert pulls.memory_bytes == 0
    pulls.run(grid.crew, rows, degrees, n, ones_of(n), goal)
    assert pulls.memory_bytes >= 68 * n


@pytest.mark.parametrize("roughly", [False, True])
def test_mixtures_do_not_depend_on_the_threads(roughly: bool, grid: Graph) -> None:
    n, rows, degrees = grid.n_vertices, grid.in_rows(), grid.out_rows().degrees
    assert rows.counts.size << rows.leaf_shift >= walk_pulls._ALONE
    goal = Goal(Limits(1e-3, 1e-3), passes_min=15, roughly=roughly, shrinks=0.9)
    with closing(Team(5)) as team:
        alone, *others = (ones_of(n) for _ in range(3))
        for each, crew in ((alone, team.crew(1)), (others[0], team.crew(2)), (others[1], team.crew())):
            Pulls(0.85).run(crew, rows, degrees, n, each, goal)
    for other in others:
        for mine, theirs in zip(other, alone, strict=True):
            assert np.array_equal(mine, theirs)


def test_a_pair_waits_for_no_thread_that_has_not_begun() -> None:
    pair = Pair(2, "test")
    busy = threading.Event()
    assert pair._other is not None
    pair._other.submit(busy.wait)
    assert pair.run(lambda: 2, lambda: 3) == (2, 3)  # although the other thread is busy
    busy.set()
    assert pair.run(lambda: 4, lambda: 5) == (4, 5)
    pair.close()


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


def test_sums_of_values_keep_to_their_bound_however_many_pieces_there_are() -> None:
    """Each piece but the first is half of what an addition to the first would round off."""
    piece, pieces = 1 << 14, 200
    values = np.zeros(pieces * piece)
    values[0], values[piece::piece] = 1.0, ROUNDOFF
    with closing(Team(2)) as team:
        off = (1.0 - weighing.total(team.crew(), values)) + (pieces - 1) * ROUNDOFF
        assert abs(off) < 64 * ROUNDOFF
        assert weighing.total(team.crew(), np.array([np.inf, 1.0])) == np.inf


def test_whatever_a_wave_pushes_is_known_to_have_moved() -> None:
    """Its pieces begin in the midst of words of bits, which two threads may write at once."""
    n = 64 * STRETCH
    rng = np.random.default_rng(8)
    tails = np.repeat(np.arange(n, dtype=np.uint32), 2)
    heads = rng.integers(0, n, tails.size).astype(np.uint32)
    limits = Limits(1e-9, 1e-9)
    with closing(Graph(weighted=False, threads=4)) as graph:
        graph.apply(EdgeBatch.of(tails, heads), n)
        rows, ranges = graph.out_rows(), Ranges.by_in_edges(graph.in_rows(), n)
        ones, mail, queue = np.ones(n, np.float32), Mail.with_room(tails.size), np.empty(n, np.uint32)
        flags, moved = np.ones(n // BLOCK, np.uint8), np.zeros(n // 64, np.uint64)
        system = System(np.ones(n), np.ones(n), ones, ones, flags, moved, np.zeros(SUMS))
        for _ in range(200):
            system.residual[:], system.flags[:], system.moved[:] = 1, 1, 0
            found, work = np.zeros((n // STRETCH, 2), np.int64), np.zeros(WORK_SLOTS, np.int64)
            count, edges = shared_sweeps.choose(graph.crew, rows, limits, 1.0, system, queue, found)
            assert count == n
            shared_sweeps.push_in_waves(
                graph.crew, rows, limits, 0.85, system, ranges, queue, count, edges, edges, mail, work
            )
            assert (system.moved == np.uint64(2**64 - 1)).all()


@pytest.mark.sample(1)
@pytest.mark.parametrize("level", [1.0, 8.0])
def test_a_sweep_is_divided_in_the_middle_of_what_it_pushes(level: float) -> None:
    """And not of all that is over its limits; a large one, undivided, pushes that, and leaves no flag out."""
    n = 64 * STRETCH
    rng = np.random.default_rng(9)
    limits = Limits(0.5, 0.25)
    tails = rng.integers(0, n, 4 * n).astype(np.uint32)
    with closing(new_graph(edges=np.stack([tails, rng.permutation(tails)], 1).tolist(), n=n, threads=2)) as graph:
        rows, crew = graph.out_rows(), graph.team.crew()
        residual = rng.uniform(-0.6, 0.3, n)  # in the first half a bit over, and some of the second half far over
        residual[n // 2 :] = rng.choice([0.0, -6.0, 6.0], n // 2, p=[0.8, 0.1, 0.1])
        ones = np.ones(n, np.float32)
        flags, moved = np.ones(n // BLOCK, np.uint8), np.zeros(n // 64, np.uint64)
        system = System(np.ones(n), residual, ones, ones, flags, moved, np.zeros(SUMS))
        costs, work = np.empty((2, n // STRETCH), np.int64), np.zeros(WORK_SLOTS, np.int64)
        outbox = sweeps.Outbox(np.empty(0), np.empty(0, np.uint8))

        def over(by: float) -> np.ndarray:
            return np.asarray((residual > by * limits.above) | (residual < -by * limits.below))

        degrees = graph.degrees("out").astype(np.int64)
        due, following = (over(by) * sweeps.push_cost(1, degrees) for by in (1.0, level))
        sweeps.look_all(crew, rows, limits, level, system, costs)
        assert costs.sum(1).tolist() == [due.sum(), following.sum()]
        arguments = (crew, rows, limits, level, 0.85, 1 << 40)
        outcome, _, cut = sweeps.solve(*arguments, 0, costs, system, outbox, work)
        assert outcome == sweeps.DIVIDE
        before, within = following[:cut].sum(), following[cut : cut + STRETCH].sum()
        assert before <= following.sum() / 2 <= before + within
        sums = np.zeros(SUMS)
        sweeps.sweep(rows, limits, level, 0.85, 1 << 40, 0, n, system, outbox, sums, work)
        assert work[sweeps.PUSHES] == (system.value != 1).sum() > 0
        assert (np.repeat(flags, BLOCK) >= over(1.0)).all()


def test_vertices_without_out_edges_are_pushed_many_at_a_time() -> None:
    """Each wave adds to what sums may be off by: there is next to none."""
    n = 16 * STRETCH
    with closing(Graph(weighted=False, threads=4)) as graph:
        graph.apply(EdgeBatch.of(np.zeros(1, np.uint32), np.ones(1, np.uint32)), n)
        program = PageRank("p")
        program.start(graph)
        system = program._systems.ranks
        system.residual[:n], system.flags[:] = 1, 1
        system.sums[[NORM, SIZE, SLIPPED]] = n, n, 0
        program._solver._sweep_in_waves(graph, system, Limits(1e-9, 1e-9), 1.0, np.zeros(WORK_SLOTS, np.int64))
        assert (system.residual[2:n] == 0).all()
        assert system.sums[SLIPPED] < 8 * n * n
