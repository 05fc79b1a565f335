"""Small batches, which go by one compiled call: what comes of them is what comes of any batch, bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numba as nb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import NaiveGraph
from packed_array_machine import as_dict
from sampling import examples

from graphtide.gpma.changed import changed_in
from graphtide.gpma.edges import EdgeBatch, EdgeList, Op, destinations, pack, sources
from graphtide.gpma.host import slot_memory
from graphtide.gpma.host.array import PackedMemoryArray
from graphtide.gpma.host.divided import apply_divided
from graphtide.gpma.host.shared import apply_shared
from graphtide.gpma.host.small import MOVED, WRITING, Did, apply_small
from graphtide.gpma.host.snapshot import EdgeCopy
from graphtide.gpma.team import ALONE
from graphtide.partition import graph as graph_module
from graphtide.partition import host_side
from graphtide.partition.changes import Report
from graphtide.partition.existence import VertexOps
from graphtide.partition.graph import Graph, GraphChange, NoMemory

SMALL_MAX = host_side.SMALL_UPDATES_MAX
VERTICES = 300

OPTIONS = st.fixed_dictionaries(
    {
        "directed": st.booleans(),
        "weighted": st.booleans(),
        "in_edges": st.booleans(),
        "in_weights": st.booleans(),
        "negative_weights": st.booleans(),
    }
)


@contextmanager
def both_ways(**options: Any) -> Iterator[tuple[Graph, Graph]]:
    """A graph whose small batches go by one call, and one in which all go the ordinary way."""
    small, ordinary = Graph(**options), Graph(**options)
    with mock.patch.object(ordinary, "_apply_small", return_value=None):
        try:
            yield small, ordinary
        finally:
            small.close()
            ordinary.close()


def went_small(graph: Graph, batch: EdgeBatch, n_vertices: int, vertex_ops: VertexOps | None = None) -> Any:
    """What ``apply`` gives, and whether one call did it."""
    with mock.patch.object(graph.host, "prepare_rows", wraps=graph.host.prepare_rows) as ordinary:
        change = graph.apply(batch, n_vertices, vertex_ops)
    return change, not ordinary.called


def assert_same_columns(one: Any, other: Any) -> None:
    assert (one is None) == (other is None)
    if one is not None:
        assert one.dtype == other.dtype and one.flags.carray
        assert one.tobytes() == other.tobytes()


@nb.njit
def edges_in(words: Any) -> Any:
    """The columns of ``ChangedEdges``, as a kernel finds them."""
    came, weights, new, new_weights, gone = changed_in(words)
    return came.copy(), weights.copy(), new.copy(), new_weights.copy(), gone.copy()


def assert_words_tell(change: GraphChange) -> None:
    """What kernels are told of a change is what its report says."""
    came, new, gone = change.arcs.inserted, change.arcs.overwritten, change.arcs.deleted
    no_weights = np.empty(0, np.float32)
    columns = came.keys, came.weights, new.keys, new.weights, gone.keys
    for told, column in zip(edges_in(change.report.changed()), columns, strict=True):
        assert_same_columns(told, no_weights if column is None else column)


def assert_same_change(one: GraphChange, other: GraphChange) -> None:
    assert_words_tell(one)
    assert_words_tell(other)
    for name in ("inserted", "overwritten", "deleted"):
        here, there = getattr(one.arcs, name), getattr(other.arcs, name)
        assert_same_columns(here.keys, there.keys)
        assert_same_columns(here.weights, there.weights)
    assert_same_columns(one.arcs.overwritten_old, other.arcs.overwritten_old)
    assert_same_columns(one.arcs.absent, other.arcs.absent)
    assert_same_columns(one.deleted_vertices, other.deleted_vertices)
    assert_same_columns(one.revived_vertices, other.revived_vertices)
    counts = ("inserted", "overwritten", "deleted", "absent", "absent_vertices", "n_vertices_before", "n_vertices")
    assert {name: getattr(one, name) for name in counts} == {name: getattr(other, name) for name in counts}
    assert one.arcs.slots_moved == other.arcs.slots_moved


def state_of(array: PackedMemoryArray) -> dict[str, Any]:
    """All that an array holds, and what it knows of its migration; what lies in gaps means nothing."""
    now, migration = array._contents, array._migration
    slots, rows, n = now.slots, now.rows, now.n_vertices
    leaves = np.arange(slots.counts.size)
    live = np.arange(slots.keys.size) % 32 < np.repeat(slots.counts, 32)
    outside = (leaves < slots.stretch_begin) | (leaves >= slots.stretch_end)
    degrees = rows.degrees[:n]
    return {
        "keys": slots.keys[live].tobytes(),
        "weights": slots.weights[live].tobytes() if array.weighted else b"",
        "counts": slots.counts.tobytes(),
        "heads": slots.heads[outside].tobytes(),
        "stretch": (slots.stretch_begin, slots.stretch_end),
        "degrees": degrees.tobytes(),
        "rows": rows.leaf[:n][degrees > 0].tobytes(),
        "edges": now.n_edges,
        "layout": now.layout,
        "way": (migration.shrinks, migration.carried, migration.edges_left if array.migrating else 0),
        "hot spot": migration.hot_spot.__dict__,
    }


def assert_same_graphs(one: Graph, other: Graph) -> None:
    assert (one.n_vertices, one.n_edges, one.self_loops) == (other.n_vertices, other.n_edges, other.self_loops)
    for here, there in zip(one.host.arrays, other.host.arrays, strict=True):
        assert state_of(here) == state_of(there)


def assert_by_threads_as_ordinary(batch: EdgeBatch, n_vertices: int, small: Graph, ordinary: Graph) -> None:
    """Both take the batch alike, one of them by one call, but not that for a thread alone."""
    with mock.patch.object(host_side, "apply_small", side_effect=AssertionError):
        change = small.apply(batch, n_vertices)
    assert_same_change(change, ordinary.apply(batch, n_vertices))
    assert_same_graphs(small, ordinary)


@dataclass
class Source:
    """Random edges and batches that a graph with these options takes."""

    rng: np.random.Generator
    options: dict[str, bool]
    n_vertices: int = VERTICES

    def weights(self, n: int) -> Any:
        weights = self.rng.choice(np.array([0, 0.5, 1, 2, 1e-40, 1e30], np.float32), n)
        signs = self.rng.choice([-1, 1], n) if self.options["negative_weights"] else 1
        return (weights * np.float32(signs) + np.float32(0)).astype(np.float32)

    def batch(self, n: int, *, inserts: float, among: int | None = None, first: int = 0) -> EdgeBatch:
        """Updates of edges from ``among`` vertices from ``first`` on to any, a fifth of them several times."""
        src = first + self.rng.integers(0, among or self.n_vertices - first, n)
        dst = self.rng.integers(0, self.n_vertices, n)
        again = self.rng.random(n) < 0.2
        src[again], dst[again] = src[:1].sum(), dst[:1].sum()
        ops = (self.rng.random(n) < inserts).astype(np.uint8)
        return EdgeBatch.of(src, dst, ops, self.weights(n) if self.rng.random() < 0.8 else None)

    def next_batch(self, n: int, inserts: float, among: int | None, new: int) -> EdgeBatch:
        """As ``batch``, from anywhere, once there are so many new vertices."""
        self.n_vertices += new
        return self.batch(n, inserts=inserts, among=among, first=int(self.rng.integers(0, 250)))

    def loaded(self, n: int, *graphs: Graph) -> None:
        """Let the graphs hold about so many edges that are evenly spread."""
        edges = self.batch(n, inserts=1)
        for graph in graphs:
            graph.apply(edges, self.n_vertices)
            graph.load(graph.export(), self.n_vertices)


@given(
    options=OPTIONS,
    seed=st.integers(0, 2**32),
    held=st.sampled_from([0, 700, 3000, 9000]),
    shapes=st.lists(
        st.tuples(
            st.sampled_from([1, 2, 7, 40, 41, 150, SMALL_MAX // 2, SMALL_MAX]),
            st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]),
            st.sampled_from([1, 5, None]),
            st.sampled_from([0, 0, 3]),
        ),
        min_size=1,
        max_size=25,
    ),
)
@settings(deadline=None, max_examples=examples(120))
def test_contents_and_reports_are_those_of_the_ordinary_way(
    options: dict[str, bool], seed: int, held: int, shapes: list[tuple[int, float, int | None, int]]
) -> None:
    source = Source(np.random.default_rng(seed), options)
    with both_ways(**options) as (small, ordinary):
        source.loaded(held, small, ordinary)
        for n, inserts, among, new in shapes:
            batch = source.next_batch(n, inserts, among, new)
            keys = batch.keys.copy()
            change = small.apply(batch, source.n_vertices)
            assert batch.keys.tobytes() == keys.tobytes()
            assert_same_change(change, ordinary.apply(batch, source.n_vertices))
            assert_same_graphs(small, ordinary)
        assert small.check() == []


@pytest.mark.parametrize("threads", [2, 5])
@given(
    options=OPTIONS,
    seed=st.integers(0, 2**32),
    held=st.sampled_from([0, 700, 3000, 9000]),
    shapes=st.lists(
        st.tuples(
            st.sampled_from([1, 2, 7, 40, 150, SMALL_MAX // 2]),
            st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]),
            st.sampled_from([1, 5, None]),
            st.sampled_from([0, 0, 3]),
            st.sampled_from([1, 3, 16, 128]),
        ),
        min_size=1,
        max_size=20,
    ),
)
@settings(deadline=None, max_examples=examples(60))
def test_divided_among_threads_it_is_the_same(
    threads: int,
    options: dict[str, bool],
    seed: int,
    held: int,
    shapes: list[tuple[int, float, int | None, int, int]],
) -> None:
    source = Source(np.random.default_rng(seed), options)
    with (
        both_ways(**options, threads=threads) as (small, ordinary),
        pytest.MonkeyPatch.context() as patch,
    ):
        source.loaded(held, small, ordinary)
        patch.setattr(host_side, "DIVIDED_UPDATES_MIN", 1)
        patch.setattr(host_side, "DIVIDED_THREADS_MIN", 2)
        for n, inserts, among, new, piece in shapes:
            patch.setattr(host_side, "DIVIDED_PIECE", piece)
            batch = source.next_batch(n, inserts, among, new)
            assert_by_threads_as_ordinary(batch, source.n_vertices, small, ordinary)
        assert small.check() == []


@pytest.mark.parametrize("threads", [1, 2, 5])
@given(
    options=OPTIONS,
    seed=st.integers(0, 2**32),
    held=st.sampled_from([700, 3000, 9000]),
    shapes=st.lists(
        st.tuples(
            st.sampled_from([1, 2, 9, 40, 150, 900]),
            st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]),
            st.sampled_from([1, 5, None]),
            st.sampled_from([0, 0, 3]),
            st.sampled_from([(1, 128), (8, 16), (60, 4)]),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
)
@settings(deadline=None, max_examples=examples(40))
def test_in_pieces_that_threads_share_it_is_the_same(
    threads: int,
    options: dict[str, bool],
    seed: int,
    held: int,
    shapes: list[tuple[int, float, int | None, int, tuple[int, int], bool]],
) -> None:
    source = Source(np.random.default_rng(seed), options)
    with (
        both_ways(**options, threads=threads) as (small, ordinary),
        pytest.MonkeyPatch.context() as patch,
    ):
        source.loaded(held, small, ordinary)
        patch.setattr(host_side, "SMALL_UPDATES_MAX", 0)
        for n, inserts, among, new, (piece, pieces), comes_in_order in shapes:
            patch.setattr(host_side, "PIECE_UPDATES_MIN", piece)
            patch.setattr(host_side, "PIECES_MAX", pieces)
            batch = source.next_batch(n, inserts, among, new)
            if comes_in_order:
                batch = in_order(batch)
            assert_by_threads_as_ordinary(batch, source.n_vertices, small, ordinary)
        assert small.check() == []


def in_order(batch: EdgeBatch) -> EdgeBatch:
    """The same updates by key, those of one as they stood."""
    order = np.argsort(batch.keys, kind="stable")
    weights = None if batch.weights is None else batch.weights[order]
    return EdgeBatch(batch.keys[order], batch.ops[order], weights)


@pytest.mark.parametrize("n", [700, 1500])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_arrays_that_grow_go_on_in_pieces(threads: int, n: int) -> None:
    options = options_of(True, True)
    source = Source(np.random.default_rng(12), options, n_vertices=3000)
    moving, alone = 0, 0
    with both_ways(**options, threads=threads) as (small, ordinary):
        source.loaded(60_000, small, ordinary)
        while small.n_edges < 100_000:
            batch = source.batch(n, inserts=0.98)
            change, one_call = went_small(small, batch, source.n_vertices)
            moving += one_call and small.host.out.migrating
            alone += one_call
            assert_same_change(change, ordinary.apply(batch, source.n_vertices))
        assert_same_graphs(small, ordinary)
        assert small.check() == []
        assert alone > 15 and moving > 3


def test_words_of_rows_stay_while_a_stretch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_memory.Pages, "done", property(lambda self: False))  # the stretch waits for them
    source = Source(np.random.default_rng(13), options_of(True, True), n_vertices=3000)
    stayed = 0
    with contextlib.closing(Graph(weighted=True, threads=2)) as graph:
        source.loaded(60_000, graph)
        for _ in range(60):
            array = graph.host.out
            words, slots = array.row_words(), array._contents.slots
            moved = graph.apply(source.batch(1500, inserts=0.7), source.n_vertices).slots_moved
            now = array._contents.slots
            if array.migrating and now[-2:] == slots[-2:] and now.counts.size == slots.counts.size:
                assert array.row_words() is words
                stayed += moved > 0
        assert graph.check() == [] and stayed > 0


@given(
    options=OPTIONS,
    batches=st.lists(
        st.lists(
            st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 1), st.integers(0, 9)),
            min_size=1,
            max_size=30,
        ),
        min_size=1,
        max_size=5,
    ),
)
@settings(deadline=None, max_examples=examples(60))
def test_one_call_gives_what_the_model_gives(
    options: dict[str, bool], batches: list[list[tuple[int, int, int, int]]]
) -> None:
    model = NaiveGraph(options["directed"])
    first = np.array([(u, v, 1, u + v) for u in range(40) for v in range(40)], np.int64).T
    graph = Graph(**options)
    try:
        for updates in (first, *(np.array(batch, np.int64).T for batch in batches)):
            src, dst, ops, weights = updates
            weights = weights if options["weighted"] else np.ones_like(weights)
            change, small = went_small(graph, EdgeBatch.of(src, dst, ops, weights), VERTICES)
            assert small == (src.size < 40)
            expected = model.apply(src, dst, ops, weights)
            assert change.inserted == len(expected.inserted)
            assert change.overwritten == len(expected.overwritten)
            assert change.deleted == len(expected.deleted)
            assert change.absent == len(expected.absent)
            mirrored = (
                {} if options["directed"] else {(v, u): weight for (u, v), weight in expected.deleted.items()}
            )
            assert arcs_of(change.arcs.deleted) == expected.deleted | mirrored
            assert arcs_of(graph.export()) == model.contents()
            assert graph.n_edges == len(model.edges())
            assert graph.check() == []
    finally:
        graph.close()


def arcs_of(edges: EdgeList) -> dict[tuple[int, int], float]:
    return as_dict(edges.keys, edges.weights)


DIRECTIONS = pytest.mark.parametrize(
    ("directed", "in_edges"), [(True, True), (True, False), (False, False)], ids=["both", "out", "undirected"]
)


def options_of(directed: bool, in_edges: bool, **others: bool) -> dict[str, bool]:
    usual = {"weighted": True, "in_weights": True, "negative_weights": False}
    return usual | others | {"directed": directed, "in_edges": in_edges}


@DIRECTIONS
def test_arrays_that_grow_and_shrink_meanwhile(directed: bool, in_edges: bool) -> None:
    """Until they are three times as large, and back: migrations, stretches, windows beside them, other layouts."""
    options = options_of(directed, in_edges)
    source = Source(np.random.default_rng(5), options, n_vertices=3000)
    moving, alone = 0, 0
    with both_ways(**options) as (small, ordinary):
        source.loaded(12_000, small, ordinary)
        largest = 3 * small.n_edges
        growing = True
        while growing or small.n_edges > largest / 3:
            if growing:
                batch = source.batch(100, inserts=0.98)
            else:
                batch = EdgeBatch.of(*edges_of(small, source.rng, 100), np.zeros(100, np.uint8))
            change, one_call = went_small(small, batch, source.n_vertices)
            moving += one_call and small.host.out.migrating
            alone += one_call
            assert_same_change(change, ordinary.apply(batch, source.n_vertices))
            growing &= small.n_edges < largest
        assert_same_graphs(small, ordinary)
        assert small.check() == []
        assert alone > 100 and moving > 20


def edges_of(graph: Graph, rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    """Some edges of the graph, at random."""
    keys = graph.export().keys
    chosen = keys[rng.integers(0, keys.size, n)]
    return sources(chosen), destinations(chosen)


def test_a_hot_spot_is_noticed_alike() -> None:
    """One row of a large array gets ascending keys until the widest windows around it overflow."""
    options = options_of(True, True)
    source = Source(np.random.default_rng(7), options, n_vertices=90_000)
    with both_ways(**options) as (small, ordinary):
        source.loaded(80_000, small, ordinary)
        hot = 0
        for first in range(0, 45_000, 250):
            heads = np.arange(first, first + 250)
            batch = EdgeBatch.of(np.full(250, 40_000), heads)
            change, one_call = went_small(small, batch, source.n_vertices)
            assert_same_change(change, ordinary.apply(batch, source.n_vertices))
            hot += one_call and small.host.out._migration.hot_spot.there
        assert_same_graphs(small, ordinary)
        assert small.check() == []
        assert hot > 5


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({"weighted": True}, -1.0),
        ({"weighted": True}, np.nan),
        ({"weighted": True}, np.inf),
        ({"weighted": True, "negative_weights": True}, -np.inf),
        ({"weighted": True, "negative_weights": True}, np.nan),
    ],
)
def test_a_weight_that_is_none_changes_nothing(options: dict[str, bool], weight: float) -> None:
    source = Source(np.random.default_rng(2), {"negative_weights": False})
    with both_ways(**options) as (small, ordinary):
        source.loaded(3000, small, ordinary)
        batch = EdgeBatch.of([1, 2, 3], [4, 5, 6], weights=[1, weight, 2])
        for graph in (small, ordinary):
            with pytest.raises(ValueError, match="weight is"):
                graph.apply(batch, VERTICES + 9)
        assert_same_graphs(small, ordinary)
        assert small.n_vertices == VERTICES


@pytest.mark.parametrize("negative", [True, False])
def test_minus_zero_is_zero(negative: bool) -> None:
    source = Source(np.random.default_rng(3), {"negative_weights": negative})
    with both_ways(negative_weights=negative) as (small, ordinary):
        source.loaded(3000, small, ordinary)
        batch = EdgeBatch.of([1, 2], [4, 5], weights=[-0.0, 0.0])
        assert_same_change(small.apply(batch, VERTICES), ordinary.apply(batch, VERTICES))
        assert not np.signbit(small.weights_of(batch.keys)).any()


@DIRECTIONS
@pytest.mark.parametrize("edge", [(VERTICES, 1), (1, VERTICES)], ids=["tail", "head"])
def test_a_vertex_that_is_not_there_changes_nothing(directed: bool, in_edges: bool, edge: tuple[int, int]) -> None:
    source = Source(np.random.default_rng(4), {"negative_weights": False})
    options = options_of(directed, in_edges)
    with both_ways(**options) as (small, ordinary):
        source.loaded(3000, small, ordinary)
        batch = EdgeBatch.of([1, edge[0]], [2, edge[1]], weights=[1, 1])
        for graph in (small, ordinary):
            with pytest.raises(ValueError, match=f"{VERTICES} of {VERTICES}"):
                graph.apply(batch, VERTICES)
        assert_same_graphs(small, ordinary)


def test_without_memory_it_is_as_before() -> None:
    source = Source(np.random.default_rng(6), {"negative_weights": False})
    with both_ways() as (small, ordinary):
        source.loaded(3000, small, ordinary)
        batch = source.batch(30, inserts=0.5)
        with (
            mock.patch.object(host_side, "apply_small", side_effect=MemoryError),
            pytest.raises(NoMemory, match="not enough memory"),
        ):
            small.apply(batch, VERTICES + 5)
        assert_same_graphs(small, ordinary)
        assert_same_change(small.apply(batch, VERTICES + 5), ordinary.apply(batch, VERTICES + 5))


@pytest.mark.parametrize("had_begun", [False, True])
def test_memory_that_is_lacking_once_threads_write_is_no_excuse(had_begun: bool) -> None:
    def lacking(*given: Any) -> Any:
        did = next(one for one in given if isinstance(one, Did))
        did.counts[0, MOVED] = WRITING if had_begun else did.counts[0, MOVED]
        raise MemoryError

    n = host_side.SMALL_UPDATES_MAX + 1
    with contextlib.closing(Graph()) as graph:
        keys = (
            np.arange(100_000, dtype=np.uint64) // 10 << np.uint64(32) | np.arange(100_000, dtype=np.uint64) % 10
        )
        graph.load(EdgeList(keys, np.ones(keys.size, np.float32)), 10_000)
        batch = EdgeBatch.of(sources(keys[:n]), destinations(keys[:n]))  # which are there: nothing has to grow
        with (
            mock.patch.object(host_side, "apply_shared", lacking),
            pytest.raises(RuntimeError if had_begun else NoMemory),
        ):
            graph.apply(batch, 10_000)
        assert graph.check() == ([host_side.UNFINISHED] if had_begun else [])


@pytest.mark.parametrize("error", [IndexError("a mistake"), MemoryError("too late")], ids=["mistake", "memory"])
@pytest.mark.parametrize("n_updates", [3, host_side.SMALL_UPDATES_MAX + 1, host_side.ONE_CALL_UPDATES_MAX + 1])
def test_an_error_behind_what_was_written_is_never_taken_for_nothing(n_updates: int, error: Exception) -> None:
    """By whichever way a batch goes: rows are not hidden, nobody goes on from them, and a load puts it right. Nor
    is it said that memory was lacking, after which all would go on."""
    with contextlib.closing(Graph()) as graph:
        graph.apply(EdgeBatch.of([0], [1]), 2)
        before = graph.export()
        heads = np.arange(n_updates, dtype=np.uint32)
        begun = graph.begin_copy()
        with (
            failing_behind_what_was_written(n_updates, error),
            pytest.raises((IndexError, RuntimeError)),
        ):
            graph.apply(EdgeBatch.of(np.full(n_updates, 5), heads), n_updates + 6)
        refused = pytest.raises(RuntimeError, match="failed in its middle")
        for use in (
            graph.export,
            graph.begin_copy,
            begun.copy_piece,
            lambda: graph.apply(EdgeBatch.of([0], [1]), n_updates + 6),
        ):
            with refused:
                use()
        graph.end_copy(begun)
        assert graph.check() == [host_side.UNFINISHED]
        graph.load(before, n_updates + 6)
        assert graph.check() == [] and np.array_equal(graph.export().keys, before.keys)
        graph.apply(EdgeBatch.of([5], [0]), n_updates + 6)
        assert graph.n_arcs == 2 and graph.check() == []


@pytest.mark.parametrize("error", [MemoryError("too late"), KeyboardInterrupt()], ids=["memory", "interrupt"])
@pytest.mark.parametrize("what", ["loops", "copies"])
@pytest.mark.parametrize("n_updates", [3, host_side.ONE_CALL_UPDATES_MAX])
def test_a_change_of_which_not_all_could_hear_is_none_that_was_not_begun(
    n_updates: int, what: str, error: BaseException
) -> None:
    """It is written: who takes it for one without memory, and tries again, would tell programs of other edges."""
    with contextlib.closing(Graph(directed=False)) as graph:
        graph.apply(EdgeBatch.of([0], [1]), 2)
        before, copy = graph.export(), graph.begin_copy()
        heads = np.arange(n_updates, dtype=np.uint32)
        ops = VertexOps(np.zeros(1, np.uint32), np.full(1, Op.INSERT_VERTEX, np.uint8), np.zeros(1, np.int64))
        fails: Any = mock.Mock(side_effect=error)
        with (
            mock.patch.object(*{"loops": (Report, "loops"), "copies": (EdgeCopy, "note")}[what], fails),
            pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else RuntimeError),
        ):
            graph.apply(EdgeBatch.of(heads, heads), n_updates, ops if what == "loops" else None)
        graph.end_copy(copy)
        assert graph.check() == [host_side.UNFINISHED]
        for use in (graph.export, graph.begin_copy, lambda: graph.apply(EdgeBatch.of([0], [1]), n_updates)):
            with pytest.raises(RuntimeError, match="failed in its middle"):
                use()
        graph.load(before, n_updates)
        assert graph.check() == [] and graph.n_edges == 1 and graph.self_loops == 0


def test_a_load_that_is_written_and_fails_then_is_none_that_was_not_begun() -> None:
    with contextlib.closing(Graph(directed=False)) as graph:
        graph.apply(EdgeBatch.of([0, 1], [1, 1]), 2)
        edges = graph.export()
        fails = mock.patch.object(graph.existence, "load", side_effect=MemoryError)
        with fails, pytest.raises(RuntimeError, match="failed in its middle"):
            graph.load(edges, 9)
        assert graph.check() == [host_side.UNFINISHED]
        graph.load(edges, 9)
        assert graph.check() == [] and graph.n_vertices == 9 and graph.self_loops == 1


@contextmanager
def failing_behind_what_was_written(n_updates: int, error: Exception) -> Iterator[None]:
    after = "after_small" if n_updates <= host_side.ONE_CALL_UPDATES_MAX else "commit"
    with (
        mock.patch.object(PackedMemoryArray, after, side_effect=error),
        mock.patch.object(PackedMemoryArray, "committed", side_effect=error),
    ):
        yield


def test_who_tries_again_what_failed_in_its_middle_does_not_make_it_whole() -> None:
    """As the host does that follows a device, whose memory was lacking; or rows that move."""
    host = host_side.HostSide(weighted=False, in_edges=True, in_weights=False, crew=ALONE)
    with contextlib.closing(host):
        host.ensure_vertices(4)
        batch = EdgeBatch.of([0, 1], [2, 3])
        plan = host.prepare_rows(batch, EdgeBatch.of([2, 3], [0, 1]))
        with (
            mock.patch.object(host.out, "commit", side_effect=MemoryError),
            pytest.raises(MemoryError),
        ):
            host.commit(plan)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="failed in its middle"):
                host.commit(plan)
        assert host.unfinished


def test_vertices_that_are_deleted_or_revived_go_the_ordinary_way() -> None:
    source = Source(np.random.default_rng(8), {"negative_weights": False})
    with both_ways() as (small, ordinary):
        source.loaded(3000, small, ordinary)
        gone = VertexOps(np.array([5], np.uint32), np.array([3], np.uint8), np.array([1], np.int64))
        around, elsewhere = EdgeBatch.of([5, 5], [6, 7]), EdgeBatch.of([8, 9], [9, 5], [1, 0])
        for batch, ops, is_small in ((elsewhere, None, True), (around, gone, False), (elsewhere, None, True)):
            change, one_call = went_small(small, batch, VERTICES, ops)
            assert one_call == is_small
            assert_same_change(change, ordinary.apply(batch, VERTICES, ops))
        small.apply(EdgeBatch.of([], []), VERTICES, gone), ordinary.apply(EdgeBatch.of([], []), VERTICES, gone)
        change, one_call = went_small(small, around, VERTICES)
        assert not one_call and change.revived_vertices.tolist() == [5]
        assert_same_change(change, ordinary.apply(around, VERTICES))
        assert_same_graphs(small, ordinary)


def test_nothing_is_compiled_for_them_after_the_warm_up() -> None:
    """Whatever the graph is like, and wherever its columns lie, there is one form of the call."""
    with (
        mock.patch.object(host_side, "apply_small", wraps=apply_small) as call,
        mock.patch.object(host_side, "apply_divided", wraps=apply_divided) as divided,
        mock.patch.object(host_side, "apply_shared", wraps=apply_shared) as shared,
    ):
        graph_module.warm_up()
        assert call.called and divided.called and shared.called
    calls = apply_small, apply_divided, apply_shared
    before = [len(compiled.signatures) for compiled in calls]
    for options in ({}, {"weighted": False}, {"in_weights": False}, {"in_edges": False}, {"directed": False}):
        source = Source(np.random.default_rng(11), {"negative_weights": False})
        with both_ways(**options, threads=host_side.DIVIDED_THREADS_MIN) as (graph, _):
            source.loaded(60_000, graph)
            for _ in range(30):
                graph.apply(source.batch(60, inserts=0.9), source.n_vertices)
            graph.apply(source.batch(SMALL_MAX, inserts=0.9), source.n_vertices)
            graph.apply(source.batch(SMALL_MAX + 1, inserts=0.9), source.n_vertices)
    assert [len(compiled.signatures) for compiled in calls] == before


def test_a_copy_that_is_being_made_gets_small_batches_too() -> None:
    source = Source(np.random.default_rng(9), {"negative_weights": False})
    with both_ways() as (graph, _):
        source.loaded(9000, graph)
        copy = graph.begin_copy()
        assert not copy.copy_piece()
        for _ in range(20):
            _, one_call = went_small(graph, source.batch(50, inserts=0.5), VERTICES)
            assert one_call
        graph.end_copy(copy)
        (edges,) = copy.edges()
        now = graph.export()
        assert edges.keys.tobytes() == now.keys.tobytes()
        assert edges.weights is not None and now.weights is not None
        assert edges.weights.tobytes() == now.weights.tobytes()


def test_columns_may_be_of_any_memory() -> None:
    """Read-only, with steps between entries, or unaligned."""
    with both_ways() as (small, ordinary):
        source = Source(np.random.default_rng(10), {"negative_weights": False})
        source.loaded(3000, small, ordinary)
        keys, weights = pack([1, 9, 2, 9, 3, 9], [4, 9, 5, 9, 6, 9]), np.arange(6, dtype=np.float32)
        ops = np.array([1, 0, 1, 0, 1, 0], np.uint8)
        unaligned = np.frombuffer(b"x" + keys[::2].tobytes(), np.uint64, offset=1)
        for batch in (EdgeBatch(keys[::2], ops[::2], weights[::2]), EdgeBatch(unaligned, ops[::2], weights[::2])):
            change, one_call = went_small(small, batch, VERTICES)
            assert one_call
            assert_same_change(change, ordinary.apply(batch, VERTICES))
