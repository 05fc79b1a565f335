"""Breadth-first searches and edges between sets of vertices, in pieces of any size, against plain Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import NaiveGraph
from sampling import examples

from graphtide.gpma.edges import EdgeBatch, EdgeList, Vertices, pack
from graphtide.partition.exploring import (
    LOOKUP_READS,
    EdgesFound,
    Search,
    edges_between,
    search,
    warm_up,
)
from graphtide.partition.graph import Graph

VERTICES = 14


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()


def column(vertices: Iterable[int]) -> Vertices:
    return np.array(sorted(set(vertices)), np.uint32)


def searched(graph: Graph, vertex: int, direction: str, hops_max: int, limit: int, reads_max: int) -> Search:
    """A whole search, in pieces."""
    directions = ("out", "in") if direction == "both" else (direction,)
    state = Search.begin(vertex)
    while state.place is not None:
        before = state
        state = search(
            partial(graph.views_ahead, directions),
            graph.n_vertices,
            state,
            hops_max=hops_max,
            limit=limit,
            reads_max=reads_max,
        )
        assert state.place != before.place or state.place is None
    return state


def hops_in(model: NaiveGraph, vertex: int, direction: str, hops_max: int) -> dict[int, int]:
    """How far each vertex is, by the book."""
    forth = {u: set(row) for u, row in model.arcs.items()}
    back: dict[int, set[int]] = {}
    for u, row in model.arcs.items():
        for v in row:
            back.setdefault(v, set()).add(u)
    found, front = {vertex: 0}, {vertex}
    for hop in range(1, hops_max + 1):
        ahead: set[int] = set()
        for u in front:
            ahead |= (forth.get(u, set()) if direction != "in" else set()) | (
                back.get(u, set()) if direction != "out" else set()
            )
        front = ahead - found.keys()
        found |= dict.fromkeys(front, hop)
    return found


def all_edges(
    graph: Graph, src: Vertices, dst: Vertices, limit: int, reads_max: int
) -> tuple[dict[tuple[int, int], float], int]:
    """The edges between two sets, in pieces, and how many there are."""
    common = None if graph.directed else np.intersect1d(src, dst)
    found: dict[tuple[int, int], float] = {}
    size, place = 0, None
    while True:
        part: EdgesFound = edges_between(
            partial(graph.views_ahead, ("out",)),
            graph.n_vertices,
            src,
            dst,
            common,
            weighted=graph.weighted,
            limit=limit - len(found),
            reads_max=reads_max,
            place=place,
        )
        weights = np.ones(part.src.size) if part.weights is None else part.weights
        pairs = zip(part.src.tolist(), part.dst.tolist(), strict=True)
        found |= dict(zip(pairs, weights.tolist(), strict=True))
        size += part.size
        assert part.place is None or part.place != place
        place = part.place
        if place is None:
            return found, size


edge = st.tuples(st.integers(0, VERTICES - 1), st.integers(0, VERTICES - 1), st.integers(1, 9))
some = st.sets(st.integers(0, VERTICES + 2), max_size=VERTICES)


@given(
    directed=st.booleans(),
    weighted=st.booleans(),
    edges=st.lists(edge, max_size=60),
    doomed=st.sets(st.integers(0, VERTICES - 1), max_size=2),
    direction=st.sampled_from(["out", "in", "both"]),
    hops_max=st.integers(0, 5),
    limit=st.integers(1, VERTICES + 1),
    reads_max=st.sampled_from([2, 3, 7, 1000]),
    sources=some,
    targets=some,
    on_two_sides=st.booleans(),
)
@settings(deadline=None, max_examples=examples(150))
def test_what_is_found_is_what_the_oracle_finds(
    directed: bool,
    weighted: bool,
    edges: list[tuple[int, int, int]],
    doomed: set[int],
    direction: str,
    hops_max: int,
    limit: int,
    reads_max: int,
    sources: set[int],
    targets: set[int],
    on_two_sides: bool,
) -> None:
    model = NaiveGraph(directed)
    src, dst, weights = ([e[k] for e in edges] for k in range(3))
    kept = [u not in doomed and v not in doomed for u, v in zip(src, dst, strict=True)]
    model.apply(src, dst, None, weights if weighted else None)
    model.apply(doomed, doomed, [3] * len(doomed))
    how = {"host_rows": "owned", "host_sides": 2} if on_two_sides else {}
    with contextlib.closing(Graph(directed=directed, weighted=weighted, in_edges=True, **how)) as graph:
        batch = EdgeBatch.of(src, dst, kept, weights if weighted else None)
        graph.apply(batch, VERTICES)
        if on_two_sides:
            graph.migrate(np.arange(0, VERTICES, 2, dtype=np.uint32), 1)
        root = next(v for v in range(VERTICES) if v not in doomed)
        expected = hops_in(model, root, direction, hops_max)
        found = searched(graph, root, direction, hops_max, limit, reads_max)
        whole = searched(graph, root, direction, hops_max, limit, 10_000)
        assert found.found.tolist() == whole.found.tolist() and found.truncated == whole.truncated
        assert found.truncated == (len(expected) > limit) and found.found.size == min(len(expected), limit)
        assert (np.diff(found.hops.astype(int)) >= 0).all()
        assert {v: expected[v] for v in found.found.tolist()} == dict(
            zip(found.found.tolist(), found.hops.tolist(), strict=True)
        )
        between = {
            (u, v): weight
            for u, row in model.arcs.items()
            for v, weight in row.items()
            if u in sources and v in targets
        }
        if not directed:
            between = {(u, v): weight for (u, v), weight in between.items() if u <= v or (v, u) not in between}
        listed, size = all_edges(graph, column(sources), column(targets), 10_000, reads_max)
        assert listed == between and size == len(between)
        few, size = all_edges(graph, column(sources), column(targets), 2, reads_max)
        assert list(few) == sorted(between)[:2] and size == len(between)


def test_few_targets_are_looked_up_in_a_long_row() -> None:
    n = 5000
    with contextlib.closing(Graph(directed=True, weighted=False)) as graph:
        graph.load(EdgeList(pack(np.zeros(n // 2), np.arange(1, n, 2))), n)
        targets = column([0, 3, 4, 1001, n - 1, n + 7])
        found = edges_between(
            partial(graph.views_ahead, ("out",)), n, column([0]), targets, weighted=False, limit=10, reads_max=1000
        )
        assert found.dst.tolist() == [3, 1001, n - 1] and found.place is None
        assert found.reads == 1 + LOOKUP_READS * 5  # what is no vertex is not looked for
        assert all_edges(graph, column([0]), targets, 10, 2) == ({(0, 3): 1, (0, 1001): 1, (0, n - 1): 1}, 3)


def test_a_search_that_has_found_enough_does_not_read_on() -> None:
    n = 100_000
    with contextlib.closing(Graph(directed=True, weighted=False, in_edges=False)) as graph:
        graph.load(EdgeList(pack(np.zeros(n - 1), np.arange(1, n))), n)
        found = search(
            partial(graph.views_ahead, ("out",)), n, Search.begin(0), hops_max=3, limit=10, reads_max=10**6
        )
        assert found.truncated and found.found.tolist() == list(range(10)) and found.reads < 100
