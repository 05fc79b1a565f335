"""The graph over its arrays: orientations agree, edges are counted once, batches are split by owner."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import NaiveGraph
from packed_array_machine import as_dict
from sampling import examples

from graphtide.gpma.edges import MAX_UPDATES, EdgeBatch, EdgeList, Op, destinations, pack, sources
from graphtide.gpma.gate import NO_GATE, BeforeWriting, Gate
from graphtide.gpma.host import array as array_module
from graphtide.gpma.host.array import PackedMemoryArray, warm_up
from graphtide.gpma.rows import RowView
from graphtide.partition.existence import VertexOps
from graphtide.partition.graph import Graph
from graphtide.partition.placement import HOST, Placement

VERTICES = 12


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()


@contextmanager
def opened(**options: Any) -> Iterator[Graph]:
    graph = Graph(**options)
    try:
        yield graph
    finally:
        graph.close()


def arcs_of(edges: EdgeList) -> dict[tuple[int, int], float]:
    return as_dict(edges.keys, edges.weights)


def rows_of(rows: RowView) -> dict[tuple[int, int], float]:
    """The arcs of a view, read leaf by leaf."""
    leaf_slots = 1 << rows.leaf_shift
    live = np.arange(rows.keys.size) % leaf_slots < np.repeat(rows.counts, leaf_slots)
    return arcs_of(EdgeList(rows.keys[live], rows.weights[live] if rows.weights.size else None))


def flipped(arcs: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    return {(v, u): weight for (u, v), weight in arcs.items()}


update = st.tuples(
    st.integers(0, VERTICES - 1), st.integers(0, VERTICES - 1), st.integers(0, 1), st.integers(1, 9)
)


@given(
    directed=st.booleans(),
    weighted=st.booleans(),
    in_edges=st.booleans(),
    in_weights=st.booleans(),
    batches=st.lists(st.lists(update, max_size=60), min_size=1, max_size=6),
)
@settings(deadline=None, max_examples=examples(120))
def test_histories_match_the_oracle(
    directed: bool,
    weighted: bool,
    in_edges: bool,
    in_weights: bool,
    batches: list[list[tuple[int, int, int, int]]],
) -> None:
    model = NaiveGraph(directed)
    with opened(directed=directed, weighted=weighted, in_edges=in_edges, in_weights=in_weights) as graph:
        assert graph.in_weighted == (weighted and (not directed or (in_edges and in_weights)))
        for updates in batches:
            src, dst, ops, weights = np.array(updates, np.int64).reshape(-1, 4).T
            if not weighted:
                weights = np.ones_like(weights)
            batch = EdgeBatch.of(src, dst, ops, weights if weighted else None)
            change = graph.apply(batch, VERTICES)
            expected = model.apply(src, dst, ops, weights)
            assert change.inserted == len(expected.inserted)
            assert change.overwritten == len(expected.overwritten)
            assert change.deleted == len(expected.deleted)
            assert change.absent == len(expected.absent)
            assert change.updates == len(
                {tuple(sorted(p)) if not directed else p for p in zip(src, dst, strict=True)}
            )
            inserted = arcs_of(change.arcs.inserted)
            assert inserted == (expected.inserted | ({} if directed else flipped(expected.inserted)))
            assert graph.check() == []
            assert arcs_of(graph.export()) == model.contents()
            assert rows_of(graph.out_rows()) == model.contents()
            assert graph.n_edges == len(model.edges())
            assert graph.n_arcs == len(model.contents())
            if not directed or in_edges:
                arcs = flipped(model.contents())
                assert rows_of(graph.in_rows()) == (arcs if graph.in_weighted else dict.fromkeys(arcs, 1.0))
                # Whoever asks for in-neighbours gets the weights, wherever they are kept.
                for vertex in range(VERTICES):
                    neighbors, found = graph.neighbors(vertex, "in", 0, VERTICES)
                    assert (found is not None) == weighted
                    row = dict(zip(neighbors.tolist(), [1.0] * VERTICES if found is None else found, strict=False))
                    assert row == model.in_neighbors(vertex)
        if directed and not in_edges:
            with pytest.raises(LookupError, match="keeps no in-rows"):
                graph.in_rows()


@pytest.mark.parametrize("in_weights", [True, False])
@pytest.mark.parametrize("directed", [True, False])
def test_what_is_exported_can_be_loaded(directed: bool, in_weights: bool) -> None:
    rng = np.random.default_rng(1)
    options = {"directed": directed, "in_weights": in_weights}
    with opened(**options) as graph, opened(**options) as copy:
        batch = EdgeBatch.of(rng.integers(0, 50, 400), rng.integers(0, 50, 400), weights=rng.random(400))
        graph.apply(batch, 50)
        copy.load(graph.export(), 50)
        assert copy.check() == []
        assert arcs_of(copy.export()) == arcs_of(graph.export())
        assert rows_of(copy.in_rows()) == rows_of(graph.in_rows())
        assert (copy.n_edges, copy.self_loops, copy.n_vertices) == (graph.n_edges, graph.self_loops, 50)
        assert copy.memory_bytes()["slots"] > 0
        # A loop that goes is counted as one edge gone, in either kind of graph.
        loops = sources(graph.export().keys) == destinations(graph.export().keys)
        loop = sources(graph.export().keys[loops][:1])
        assert copy.apply(EdgeBatch.of(loop, loop, [0]), 50).deleted == 1
        assert copy.n_edges == graph.n_edges - 1


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("n_updates", [1, 5000])
def test_readers_see_what_there_was_until_a_change_is_about_to_be_written(directed: bool, n_updates: int) -> None:
    rng = np.random.default_rng(n_updates)
    batches = [
        EdgeBatch.of(*rng.integers(0, 500, (2, n)), np.where(rng.random(n) < 0.2, Op.DELETE, Op.INSERT))
        for n in (20_000, n_updates)
    ]
    seen: list[list[list[int]]] = []

    with opened(directed=directed, weighted=False) as graph:

        class Looks(BeforeWriting):
            def __call__(self) -> None:
                look()

            def but_for_gate(self) -> Gate:
                look()
                return NO_GATE

        def look() -> None:
            assert graph.n_vertices == 500
            rows = [graph.neighbors(vertex, way, 0, 500)[0] for vertex in range(500) for way in ("out", "in")]
            seen.append([row.tolist() for row in rows])

        graph.apply(batches[0], 500)
        look()
        graph.apply(batches[1], 600, before_writing=Looks())
        assert len(seen) == 2 and seen[1] == seen[0]


def test_what_is_refused_is_never_about_to_be_written() -> None:
    class Fails(BeforeWriting):
        def __call__(self) -> None:
            pytest.fail("it was about to be written")

    with opened(directed=True, weighted=False) as graph:
        missing = EdgeBatch.of([700] * 5000, [1] * 5000)
        with pytest.raises(ValueError, match="700 of 600"):
            graph.apply(missing, 600, before_writing=Fails())
        assert graph.n_vertices == 0


def test_in_an_undirected_graph_the_last_update_wins_whichever_way_it_is_written() -> None:
    with opened(directed=False) as graph:
        change = graph.apply(EdgeBatch.of([1, 2, 1], [2, 1, 1], weights=[5.0, 7.0, 3.0]), 3)
        assert arcs_of(graph.export()) == {(1, 1): 3.0, (1, 2): 7.0, (2, 1): 7.0}
        assert (change.inserted, graph.n_edges, graph.self_loops) == (2, 2, 1)
        change = graph.apply(EdgeBatch.of([1, 2], [2, 1], [1, 0]), 3)
        assert (change.deleted, change.inserted, graph.n_edges) == (1, 0, 1)


def test_in_rows_without_weights_are_smaller() -> None:
    edges = EdgeBatch.of(np.arange(1000) % 50, np.arange(1000) // 50, weights=np.ones(1000))
    sizes = []
    for in_weights in (True, False):
        with opened(in_weights=in_weights) as graph:
            graph.apply(edges, 50)
            sizes.append(graph.memory_bytes()["slots"] / graph.out_rows().keys.size)
    assert sizes == [24, 20]


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("negative", [True, False])
def test_weights_outside_the_domain_are_refused_and_change_nothing(directed: bool, negative: bool) -> None:
    with opened(directed=directed, negative_weights=negative) as graph:
        assert graph.weight_domain == ("any" if negative else "non-negative")
        graph.apply(EdgeBatch.of([0, 1, 2], [1, 2, 0], weights=[2.0, -0.0, 0.0]), 3)
        assert not np.signbit(graph.export().weights).any(), "minus zero is zero"
        before = graph.export()
        for wrong in (np.nan, np.inf, -np.inf, -1.5):
            batch = EdgeBatch.of([0, 3], [1, 4], weights=[1.0, wrong])
            if negative and wrong == -1.5:
                assert graph.apply(batch, 5).inserted == 1
                continue
            with pytest.raises(ValueError, match=rf"weight is {wrong}; it must be a finite float32"):
                graph.apply(batch, 5)
            with pytest.raises(ValueError, match=rf"weight is {wrong}"):
                graph.load(EdgeList(before.keys, np.full(before.keys.size, wrong, np.float32)), 5)
            assert (graph.n_vertices, arcs_of(graph.export())) == (3, arcs_of(before))
    with opened(weighted=False) as graph:
        assert graph.weight_domain == "unweighted"


def test_vertices_are_added_and_never_taken_away() -> None:
    with opened() as graph:
        change = graph.apply(EdgeBatch.of([0], [1]), 2)
        assert (change.n_vertices_before, change.n_vertices) == (0, 2)
        change = graph.apply(EdgeBatch.of([], []), 5)
        assert (change.n_vertices_before, change.n_vertices, change.updates) == (2, 5, 0)
        with pytest.raises(ValueError, match="never taken away"):
            graph.apply(EdgeBatch.of([0], [1]), 4)


# Placement.


def test_one_side_owns_everything_and_stores_nothing() -> None:
    placement = Placement()
    placement.ensure_vertices(1000)
    assert (placement.owners(np.arange(1000, dtype=np.uint32)) == HOST).all()
    assert placement.sole == HOST


@pytest.mark.parametrize("n_sides", [0, 256])
def test_the_number_of_sides_is_bounded(n_sides: int) -> None:
    with pytest.raises(ValueError, match="n_sides"):
        Placement(n_sides)


def test_vertices_stay_where_they_are_until_they_are_moved() -> None:
    placement = Placement(3)
    placement.ensure_vertices(1000)
    assert (placement.sole, placement.owned) == (HOST, (1000, 0, 0))
    placement.newcomers = 2
    assert placement.sole is None
    placement.ensure_vertices(30_000)
    placement.ensure_vertices(10)
    assert placement.owned == (1000, 0, 29_000)
    placement.move(np.array([5, 1005], np.uint32), 1)
    assert placement.owned == (999, 2, 28_999)
    assert np.flatnonzero(placement.owner == 1).tolist() == [5, 1005]
    placement.withdraw_vertices(1003)
    assert placement.owned == (999, 1, 3)
    with pytest.raises(ValueError, match="read-only"):
        placement.owner[0] = 1


def test_more_updates_than_positions_are_refused_and_change_nothing() -> None:
    keys = np.broadcast_to(np.uint64(1), MAX_UPDATES + 1)
    batch = EdgeBatch(keys, np.broadcast_to(np.uint8(1), keys.size))
    half = EdgeBatch(keys[: keys.size // 2], batch.ops[: keys.size // 2])
    with opened() as graph, pytest.raises(ValueError, match=f"at most {MAX_UPDATES} updates"):
        graph.apply(batch, 2)
    with opened(directed=False) as graph, pytest.raises(ValueError, match=f"at most {MAX_UPDATES} updates"):
        graph.apply(half, 2)
    assert (graph.n_vertices, graph.n_edges) == (0, 0)
    array = PackedMemoryArray(weighted=False)
    array.ensure_vertices(2)
    with pytest.raises(ValueError, match=f"at most {MAX_UPDATES} updates"):
        array.prepare(batch)


@pytest.mark.parametrize("op", [0, 1])
@pytest.mark.parametrize("in_edges", [True, False])
def test_edges_to_vertices_that_are_not_there_are_refused_with_and_without_in_rows(
    in_edges: bool, op: int
) -> None:
    with opened(in_edges=in_edges) as graph:
        graph.apply(EdgeBatch.of([0, 1], [1, 2]), 3)
        before = arcs_of(graph.export())
        with pytest.raises(ValueError, match="3 of 3"):
            graph.apply(EdgeBatch.of([0, 2], [2, 3], [1, op]), 3)
        with pytest.raises(ValueError, match=r"of 3|does not exist"):
            graph.load(EdgeList(pack([0, 2], [2, 3]), np.ones(2, np.float32)), 3)
        assert arcs_of(graph.export()) == before
        assert graph.check() == []


@pytest.mark.parametrize("directed", [True, False])
def test_a_refused_batch_leaves_no_vertices_behind(directed: bool) -> None:
    """Rows that it made room for are none of the graph's, and no later batch may write into them."""
    with opened(directed=directed) as graph:
        graph.apply(EdgeBatch.of([0], [1]), 2)
        with pytest.raises(ValueError, match="5 of 5"):
            graph.apply(EdgeBatch.of([0], [5]), 5)
        with pytest.raises(ValueError, match="4 of 2"):
            graph.apply(EdgeBatch.of([4], [0]), 2)
        assert (graph.n_vertices, graph.n_edges) == (2, 1)
        assert graph.check() == []


@pytest.mark.parametrize("failing", ["in-rows", "memory", "dead", "order"])
def test_a_load_that_fails_leaves_the_graph_as_it_was(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as graph:
        graph.apply(EdgeBatch.of([0, 1, 2], [1, 2, 0], weights=[1, 2, 3]), 3)
        graph.apply(
            EdgeBatch.of([], []), 3, VertexOps(np.ones(1, np.uint32), np.full(1, 3, np.uint8), np.zeros(1, int))
        )
        before, alive = arcs_of(graph.export()), graph.alive.tolist()
        edges = EdgeList(pack([0, 1, 3], [3, 0, 2]), np.ones(3, np.float32))
        dead = None
        if failing == "in-rows":
            edges = EdgeList(pack([0, 1, 3], [3, 0, 9]), np.ones(3, np.float32))
        elif failing == "order":
            edges = EdgeList(pack([1, 0, 3], [3, 0, 2]), np.ones(3, np.float32))
        elif failing == "dead":
            dead = np.array([4], np.uint32)
        elif failing == "memory":
            monkeypatch.setattr(graph.host.in_, "_other_memory", mock.Mock(side_effect=MemoryError))
        with pytest.raises((ValueError, MemoryError)):
            graph.load(edges, 4, dead)
        monkeypatch.undo()
        assert arcs_of(graph.export()) == before
        assert (graph.n_vertices, graph.alive.tolist()) == (3, alive)
        assert graph.check() == []


@pytest.mark.parametrize(
    ("options", "threads"),
    [
        ({"threads": 1}, [1, 1]),
        ({"threads": 2}, [1, 1]),
        ({"threads": 7}, [3, 3]),
        ({"threads": 7, "storage_threads": 4}, [2, 2]),
        ({"threads": 4, "storage_threads": 64}, [2, 2]),
        ({"threads": 4, "in_edges": False}, [4]),
        ({"threads": 4, "directed": False, "storage_threads": 1}, [1]),
    ],
)
def test_orientations_share_the_threads_of_storage(options: dict[str, Any], threads: list[int]) -> None:
    with opened(**options) as graph:
        assert [array._crew.threads for array in graph.host.arrays] == threads
        assert graph.crew.threads == options["threads"]


@pytest.mark.parametrize("directed", [True, False])
def test_any_number_of_threads_makes_the_same_graph(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both orientations at once, on one team; deleted vertices among them."""
    monkeypatch.setattr(array_module, "PIECE_UPDATES", 50)
    monkeypatch.setattr(array_module, "SHORT_PIECE_UPDATES", 30)
    rng = np.random.default_rng(11)
    steps = []
    for n in rng.integers(1, 6000, 12).tolist():
        src, dst, ops = rng.integers(0, 300, n), rng.integers(0, 300, n), rng.integers(0, 4, n) > 0
        gone = np.unique(rng.integers(0, 300, 3)).astype(np.uint32)
        kinds = np.full(gone.size, Op.DELETE_VERTEX, np.uint8)
        steps.append(
            (
                EdgeBatch.of(src, dst, ops, rng.random(n)),
                VertexOps(gone, kinds, np.sort(rng.integers(0, n, gone.size))),
            )
        )
    seen = []
    for threads in (1, 2, 5, 20):
        with opened(directed=directed, threads=threads) as graph:
            changes = [graph.apply(batch, 300, vertices) for batch, vertices in steps]
            assert graph.check() == []
            columns = [change.arcs.inserted.keys for change in changes] + [
                change.arcs.deleted.weights for change in changes
            ]
            views = [graph.out_rows(), graph.in_rows()]
            seen.append([column.tobytes() for column in columns if column is not None])
            seen[-1] += [view.counts.tobytes() + view.degrees.tobytes() for view in views]
            seen[-1] += [repr(rows_of(view)).encode() for view in views]
    assert all(other == seen[0] for other in seen[1:])


@pytest.mark.parametrize("weighted", [False, True])
def test_a_graph_that_nobody_has_gives_its_memory_back_at_once(weighted: bool) -> None:
    """Those of programs that are run once are as large as the daemon's own; no circle keeps them."""
    graph = Graph(weighted=weighted, threads=2)
    graph.apply(EdgeBatch.of([0, 1], [1, 2], weights=[1.0, 1.0] if weighted else None), 3)
    arrays = [weakref.ref(array) for array in graph.host.arrays]
    assert len(arrays) == 2
    gc.collect()
    gc.disable()
    try:
        graph.close()
        del graph
        assert not any(array() for array in arrays)
    finally:
        gc.enable()
