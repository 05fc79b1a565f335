"""Vertices that come and go: the graph with vertex operations against the oracle, and what they cost."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import NaiveGraph, NaiveReport
from sampling import examples

from graphtide.gpma.edges import EdgeBatch, EdgeList, Op, destinations, sources
from graphtide.gpma.host import array as pma
from graphtide.gpma.team import Team
from graphtide.partition import existence, scanning
from graphtide.partition import graph as graph_module
from graphtide.partition.existence import VertexOps
from graphtide.partition.graph import Graph, GraphChange

Update = tuple[int, int, int, float]
"""op, src, dst, weight; of an operation on a vertex only op and src count."""

VERTICES = 7
updates = st.lists(
    st.tuples(
        st.sampled_from((Op.INSERT, Op.INSERT, Op.INSERT, Op.DELETE, Op.INSERT_VERTEX, Op.DELETE_VERTEX)),
        st.integers(0, VERTICES - 1),
        st.integers(0, VERTICES - 1),
        st.sampled_from((0.0, 1.0, 2.5)),
    ),
    max_size=14,
)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    pma.warm_up()
    graph_module.warm_up()


class Both:
    """A graph and its oracle. Vertices are numbered when an insert first names them, as ingest does."""

    def __init__(self, *, directed: bool = True, weighted: bool = True, in_edges: bool = True) -> None:
        self.graph = Graph(directed=directed, weighted=weighted, in_edges=in_edges)
        self.model = NaiveGraph(directed)
        self.dense: dict[int, int] = {}

    def __enter__(self) -> Both:
        return self

    def __exit__(self, *_: object) -> None:
        self.graph.close()

    def batch(self, batch: Sequence[Update]) -> tuple[EdgeBatch, VertexOps | None, int]:
        """The batch between dense vertices: deletions of what was never named are left out."""
        for op, u, v, _ in batch:
            for vertex in (u, v) if op == Op.INSERT else (u,) if op == Op.INSERT_VERTEX else ():
                self.dense.setdefault(vertex, len(self.dense))
        edges: list[tuple[int, int, int, float]] = []
        vertices: list[tuple[int, int, int]] = []
        for op, u, v, weight in batch:
            if op >= Op.INSERT_VERTEX and u in self.dense:
                vertices.append((self.dense[u], op, len(edges)))
            elif op <= Op.INSERT and u in self.dense and v in self.dense:
                edges.append((self.dense[u], self.dense[v], op, weight))
        src, dst, ops, weights = zip(*edges, strict=True) if edges else ((),) * 4
        columns = list(zip(*vertices, strict=True)) if vertices else [()] * 3
        made = VertexOps(
            np.array(columns[0], np.uint32), np.array(columns[1], np.uint8), np.array(columns[2], np.int64)
        )
        weighted = weights if self.graph.weighted else None
        return EdgeBatch.of(src, dst, ops, weighted), made if vertices else None, len(self.dense)

    def apply(self, batch: Sequence[Update]) -> tuple[GraphChange, NaiveReport]:
        change = self.graph.apply(*_arguments(self.batch(batch)))
        ops, src, dst, weights = zip(*batch, strict=True) if batch else ((),) * 4
        report = self.model.apply(src, dst, ops, weights if self.graph.weighted else [1.0] * len(batch))
        return change, report

    def check(self) -> None:
        assert self.graph.check() == []
        name = {dense: vertex for vertex, dense in self.dense.items()}
        exported = self.graph.export()
        assert _arcs(exported, name) == self.model.contents()
        assert {name[int(v)] for v in np.flatnonzero(self.graph.alive)} == self.model.alive
        assert self.graph.n_alive == len(self.model.alive)
        assert self.graph.n_edges == len(self.model.edges())


def _arguments(batch: tuple[EdgeBatch, VertexOps | None, int]) -> tuple[EdgeBatch, int, VertexOps | None]:
    edges, vertex_ops, n_vertices = batch
    return edges, n_vertices, vertex_ops


def _arcs(edges: EdgeList, name: dict[int, int]) -> dict[tuple[int, int], float]:
    weights = [1.0] * len(edges) if edges.weights is None else edges.weights.tolist()
    pairs = zip(sources(edges.keys).tolist(), destinations(edges.keys).tolist(), strict=True)
    return {(name[u], name[v]): w for (u, v), w in zip(pairs, weights, strict=True)}


@given(
    directed=st.booleans(),
    weighted=st.booleans(),
    in_edges=st.booleans(),
    batches=st.lists(updates, min_size=1, max_size=8),
)
@settings(deadline=None, max_examples=examples(300))
def test_histories_with_vertex_operations_match_the_oracle(
    directed: bool, weighted: bool, in_edges: bool, batches: list[list[Update]]
) -> None:
    with Both(directed=directed, weighted=weighted, in_edges=in_edges) as both:
        for batch in batches:
            before = len(both.dense)
            change, expected = both.apply(batch)
            both.check()
            name = {dense: vertex for vertex, dense in both.dense.items()}
            assert (change.n_vertices_before, change.n_vertices) == (before, len(both.dense))
            assert change.inserted == len(expected.inserted)
            assert change.overwritten == len(expected.overwritten)
            assert change.deleted == len(expected.deleted)
            unknown = {edge for edge in expected.absent if not set(edge) <= both.dense.keys()}
            assert change.absent == len(expected.absent - unknown)
            for found, right in (
                (change.deleted_vertices, expected.deleted_vertices),
                (change.revived_vertices, expected.revived_vertices),
            ):
                assert found.dtype == np.uint32
                assert (np.diff(found.astype(np.int64)) > 0).all()
                assert {name[v] for v in found.tolist()} == right
            assert change.absent_vertices == len(expected.absent_vertices & both.dense.keys())
            gone = _arcs(change.arcs.deleted, name)
            flipped = {} if directed else {(v, u): weight for (u, v), weight in expected.deleted.items()}
            assert gone == expected.deleted | flipped


@given(directed=st.booleans(), history=updates, cuts=st.lists(st.integers(0, 14), max_size=4))
@settings(deadline=None, max_examples=examples(200))
def test_cutting_a_history_otherwise_gives_the_same_graph(
    directed: bool, history: list[Update], cuts: list[int]
) -> None:
    with Both(directed=directed) as whole, Both(directed=directed) as pieces, Both(directed=directed) as single:
        whole.apply(history)
        bounds = sorted({0, *(min(cut, len(history)) for cut in cuts), len(history)})
        for start, stop in itertools.pairwise(bounds):
            pieces.apply(history[start:stop])
        for one in history:
            single.apply([one])
        for both in (whole, pieces, single):
            both.check()
            assert both.model.contents() == whole.model.contents()
            assert both.model.alive == whole.model.alive
            assert both.dense == whole.dense


def _ops(*ops: tuple[int, Op, int]) -> VertexOps:
    """(vertex, op, position) each."""
    vertices, codes, positions = zip(*ops, strict=True)
    return VertexOps(np.array(vertices, np.uint32), np.array(codes, np.uint8), np.array(positions, np.int64))


@pytest.mark.parametrize(("directed", "in_edges"), [(True, True), (True, False), (False, True)])
def test_a_hub_of_a_million_edges_goes_in_one_batch(directed: bool, in_edges: bool) -> None:
    leaves = np.arange(1, 1_000_001, dtype=np.uint32)
    hub = np.zeros_like(leaves)
    graph = Graph(directed=directed, in_edges=in_edges)
    n = leaves.size + 1
    graph.apply(EdgeBatch.of(hub, leaves), n)
    graph.apply(EdgeBatch.of(leaves[:1000], hub[:1000]), n)
    graph.apply(EdgeBatch.of(leaves[:10], leaves[1:11]), n)
    change = graph.apply(EdgeBatch.of([], []), n, _ops((0, Op.DELETE_VERTEX, 0)))
    assert change.deleted == (1_001_000 if directed else 1_000_000)
    assert change.deleted_vertices.tolist() == [0]
    assert (graph.n_edges, graph.n_alive, graph.n_vertices) == (10, n - 1, n)
    assert graph.check() == []
    graph.close()


def test_a_vertex_deleted_and_inserted_again_is_neither_deleted_nor_revived() -> None:
    graph = Graph()
    graph.apply(EdgeBatch.of([0, 1, 2], [1, 0, 2]), 3)
    change = graph.apply(
        EdgeBatch.of([0, 0], [2, 1]),
        3,
        _ops(
            (0, Op.DELETE_VERTEX, 1), (2, Op.DELETE_VERTEX, 1), (2, Op.DELETE_VERTEX, 2), (2, Op.INSERT_VERTEX, 2)
        ),
    )
    assert (change.inserted, change.overwritten, change.deleted, change.absent) == (0, 1, 2, 0)
    assert change.deleted_vertices.size == change.revived_vertices.size == change.absent_vertices == 0
    assert graph.alive.tolist() == [True] * 3
    assert graph.export().keys.tolist() == [1]
    graph.close()


def test_without_memory_nothing_happens_to_vertices_either(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph()
    graph.apply(EdgeBatch.of(np.arange(500), np.arange(500)[::-1]), 500)
    graph.apply(EdgeBatch.of([], []), 500, _ops((3, Op.DELETE_VERTEX, 0)))
    ops = VertexOps(
        np.arange(400, dtype=np.uint32), np.full(400, Op.DELETE_VERTEX, np.uint8), np.zeros(400, np.int64)
    )
    before, dead = graph.export().keys, np.flatnonzero(~graph.alive)

    def fail(*_: object, weighted: bool) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(pma, "report_columns", fail)
        with pytest.raises(MemoryError):
            graph.apply(EdgeBatch.of([3], [3]), 501, ops)
    assert graph.check() == []
    assert graph.n_vertices == 500
    assert np.array_equal(graph.export().keys, before)
    assert np.array_equal(np.flatnonzero(~graph.alive), dead)
    change = graph.apply(EdgeBatch.of([3], [3]), 501, ops)
    assert change.revived_vertices.tolist() == [3]
    assert change.deleted_vertices.size == 399
    graph.close()


def test_nothing_is_left_to_compile_after_the_warm_up() -> None:
    kernels = (existence._names_dead, existence._count_into, existence._list_into)
    before = [len(kernel.signatures) for kernel in kernels]
    assert all(before)
    for directed, in_edges, weighted in itertools.product((True, False), repeat=3):
        graph = Graph(directed=directed, in_edges=in_edges, weighted=weighted)
        graph.apply(EdgeBatch.of([0, 1], [1, 2], weights=[1.0, 2.0]), 3)
        graph.apply(EdgeBatch.of([], []), 3, _ops((1, Op.DELETE_VERTEX, 0)))
        batch = EdgeBatch.of([0], [2])
        batch.ops.flags.writeable = False
        graph.apply(batch, 3)
        graph.apply(EdgeBatch.of([1], [2]), 3)
        graph.close()
    assert [len(kernel.signatures) for kernel in kernels] == before


def test_what_is_loaded_has_its_dead_vertices() -> None:
    graph, copy = Graph(), Graph()
    graph.apply(EdgeBatch.of([0, 1, 2], [1, 2, 0]), 3)
    graph.apply(EdgeBatch.of([], []), 3, _ops((1, Op.DELETE_VERTEX, 0)))
    copy.apply(EdgeBatch.of([], []), 3, _ops((0, Op.DELETE_VERTEX, 0)))
    copy.load(graph.export(), 3, np.flatnonzero(~graph.alive).astype(np.uint32))
    assert copy.check() == []
    assert copy.alive.tolist() == [True, False, True]
    assert copy.n_alive == 2
    assert copy.apply(EdgeBatch.of([1], [1]), 3).revived_vertices.tolist() == [1]
    for each in (graph, copy):
        each.close()


def test_isolated_vertices_cost_a_batch_nothing() -> None:
    """Neither slots moved nor memory taken depends on ten million vertices without edges."""
    spent = []
    for isolated in (10, 10_000_000):
        graph = Graph()
        n = 1000 + isolated
        graph.apply(EdgeBatch.of(np.arange(999), np.arange(1, 1000)), n)
        ops = _ops((n - 1, Op.DELETE_VERTEX, 0), (5, Op.DELETE_VERTEX, 1), (n - 2, Op.DELETE_VERTEX, 2))
        for _ in range(2):  # the second time all work arrays are there
            batch = EdgeBatch.of([5, 7, n - 1, 6], [9, 8, n - 3, 5])
            tracemalloc.start()
            change = graph.apply(batch, n, ops)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        spent.append((change.arcs.slots_moved, change.updates))
        assert peak < 1 << 20
        assert graph.n_alive == n - 1
        graph.close()
    assert spent[0] == spent[1]


@pytest.mark.parametrize("in_edges", [True, False], ids=["with in-rows", "without"])
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_who_revives_a_vertex_and_names_one_that_is_not_there_is_refused(directed: bool, in_edges: bool) -> None:
    """As without dead vertices: nothing was applied, and the graph goes on."""
    n, unknown = 40_000, 1 << 20
    graph = Graph(directed=directed, in_edges=in_edges, weighted=False)
    delete = VertexOps(np.array([7], np.uint32), np.array([Op.DELETE_VERTEX], np.uint8), np.zeros(1, np.int64))
    try:
        graph.apply(EdgeBatch.of([7, 1], [1, 2]), n, delete)
        graph.apply(EdgeBatch.of([], []), n, delete)
        assert not graph.alive[7]
        for size in (1, 1_100, 33_000):
            for end in range(2):
                ends = np.full((2, size + 1), 3)
                ends[0, 0] = 7
                ends[end, size] = unknown
                with pytest.raises(ValueError, match=f"an update names vertex {unknown} of {n}"):
                    graph.apply(EdgeBatch.of(*ends), n)
        strange = VertexOps(np.array([unknown], np.uint32), delete.ops, delete.positions)
        with pytest.raises(ValueError, match=f"an update names vertex {unknown} of {n}"):
            graph.apply(EdgeBatch.of([1], [2]), n, strange)
        assert not graph.alive[7] and graph.n_vertices == n and graph.check() == []
        assert graph.apply(EdgeBatch.of([7], [1]), n).revived_vertices.tolist() == [7]
    finally:
        graph.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_dead_vertex_is_found_wherever_a_large_batch_names_it(threads: int) -> None:
    n = 3 * scanning.CHUNK_MIN + 7
    existing = existence.Existence()
    existing.ensure_vertices(100)
    existing.load(np.array([13], np.uint32))
    src, dst = np.full(n, 5, np.uint32), np.full(n, 99, np.uint32)
    team = Team(threads)
    try:
        for at in (0, n // 2, n - 1):
            for ends in ((13, 5), (5, 13)):
                src[at], dst[at] = ends
                for op, revived in ((Op.INSERT, [13]), (Op.DELETE, None)):
                    ops = np.full(n, Op.INSERT, np.uint8)
                    ops[at] = op
                    plan = existing.plan(EdgeBatch.of(src, dst, ops), None, 100, 100, team.crew())
                    assert (None if plan is None else plan.revived.tolist()) == revived
            src[at], dst[at] = 5, 99
        assert existing.plan(EdgeBatch.of(src, dst), None, 100, 100, team.crew()) is None
    finally:
        team.close()
