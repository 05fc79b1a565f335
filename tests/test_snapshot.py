"""Copies that are taken while the graph changes show exactly the graph after the last change."""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import NaiveGraph
from numba.core.dispatcher import Dispatcher
from sampling import examples
from waiting import PATIENCE_S, until

from graphtide.gpma.edges import EdgeBatch, EdgeList, destinations, sources
from graphtide.gpma.host import array as pma
from graphtide.gpma.host import snapshot
from graphtide.gpma.host.snapshot import EdgeCopy, Turnstile
from graphtide.gpma.rows import RowView
from graphtide.partition.graph import Graph

VERTICES = 16


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    pma.warm_up()
    snapshot.warm_up()


@contextmanager
def opened(**options: bool):
    graph = Graph(**options)
    try:
        yield graph
    finally:
        graph.close()


def arcs_of(pieces: list[EdgeList], weighted: bool) -> dict[tuple[int, int], float]:
    keys = np.concatenate([piece.keys for piece in pieces])
    assert (keys[1:] > keys[:-1]).all()
    weights = np.concatenate([piece.weights for piece in pieces if piece.weights is not None])
    assert weights.size == (keys.size if weighted else 0)
    values = weights.tolist() if weighted else [1.0] * keys.size
    return dict(zip(zip(sources(keys).tolist(), destinations(keys).tolist(), strict=True), values, strict=True))


class Mirrored:
    """A graph, and the model that it must equal."""

    def __init__(self, graph: Graph, rng: np.random.Generator, n_vertices: int = VERTICES) -> None:
        self.graph, self.rng, self.n_vertices = graph, rng, n_vertices
        self.model = NaiveGraph(graph.directed)

    def apply(self, updates: int, inserts: float) -> None:
        n_deletes = int(updates * (1 - inserts))
        src, dst = self.rng.integers(0, self.n_vertices, (2, updates))
        present = np.array(list(self.model.contents()), np.int64).reshape(-1, 2)
        if n_deletes and present.size:  # deletes of what is there, so that it can come back
            src[:n_deletes], dst[:n_deletes] = self.rng.choice(present, n_deletes).T
        ops = np.ones(updates, np.uint8)
        ops[:n_deletes] = 0
        order = self.rng.permutation(updates)
        src, dst, ops = src[order], dst[order], ops[order]
        weights = self.rng.integers(1, 10, updates) if self.graph.weighted else np.ones(updates)
        batch = EdgeBatch.of(src, dst, ops, weights if self.graph.weighted else None)
        self.graph.apply(batch, self.n_vertices)
        self.model.apply(src, dst, ops, weights)


step = st.one_of(
    st.tuples(st.just("pieces"), st.integers(1, 4)),
    st.tuples(st.just("insert"), st.sampled_from([1, 8, 60])),
    st.tuples(st.just("mixed"), st.sampled_from([1, 8, 60, 200])),
    st.tuples(st.just("delete"), st.sampled_from([1, 8, 60, 200])),
)


@given(
    directed=st.booleans(),
    weighted=st.booleans(),
    piece=st.sampled_from([1, 2, 7, 32, 1000]),
    loaded=st.sampled_from([0, 1, 30, 300]),
    steps=st.lists(step, max_size=12),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=examples(300))
def test_a_copy_among_batches_is_the_graph_after_the_last(
    directed: bool, weighted: bool, piece: int, loaded: int, steps: list[tuple[str, int]], seed: int
) -> None:
    shares = {"insert": 1.0, "mixed": 0.5, "delete": 0.0}
    with (
        opened(directed=directed, weighted=weighted, in_edges=False) as graph,
        mock.patch.object(snapshot, "PIECE_EDGES", piece),
    ):
        mirrored = Mirrored(graph, np.random.default_rng(seed))
        mirrored.apply(loaded, 1.0)
        copy = graph.begin_copy()
        for what, amount in steps:
            if what == "pieces":
                for _ in range(amount):
                    copy.copy_piece()
            else:
                mirrored.apply(amount, shares[what])
        copy.finish()
        mirrored.apply(5, 0.5)  # an epoch may end after the last piece
        graph.end_copy(copy)
        expected = mirrored.model.contents()
        mirrored.apply(5, 0.5)  # the next one is none of the copy's business
        assert copy.through
        assert arcs_of(copy.edges(), weighted) == expected


def copied_with_changes(graph: Graph) -> tuple[Mirrored, EdgeCopy]:
    """A copy of all edges, behind whose last piece there were changes."""
    mirrored = Mirrored(graph, np.random.default_rng(1))
    mirrored.apply(60, 1.0)
    copy = graph.begin_copy()
    copy.finish()
    mirrored.apply(60, 0.5)
    graph.end_copy(copy)
    return mirrored, copy


@pytest.mark.parametrize("where", ["argsort", "empty"])
def test_a_copy_that_lacks_memory_for_its_changes_is_asked_again(where: str) -> None:
    """Nothing of it is forgotten: neither changes that were put in order, nor pieces that have theirs."""
    with opened(weighted=True, in_edges=False) as graph, mock.patch.object(snapshot, "PIECE_EDGES", 7):
        mirrored, copy = copied_with_changes(graph)
        real, calls = getattr(np, where), 0

        def lacking(*arguments: Any, **how: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == {"argsort": 1, "empty": 8}[where]:
                raise MemoryError("made to fail")
            return real(*arguments, **how)

        with mock.patch.object(np, where, lacking), pytest.raises(MemoryError, match="made to fail"):
            copy.edges()
        assert arcs_of(copy.edges(), True) == mirrored.model.contents()


def test_a_copy_holds_no_changes_any_more_once_its_edges_are_taken() -> None:
    """Who takes them may have the copy for long: to the end of a program that runs beside the stream, say."""
    with opened(weighted=True, in_edges=False) as graph:
        mirrored, copy = copied_with_changes(graph)
        in_order, held = EdgeCopy._last_changes, list[weakref.ref[Any]]()

        def noted(copy: EdgeCopy) -> Any:
            changes = in_order(copy)
            held.extend(map(weakref.ref, changes))
            return changes

        with mock.patch.object(EdgeCopy, "_last_changes", noted):
            edges = copy.edges()
        assert len(held) == 3 and all(changes() is None for changes in held)
        assert arcs_of(edges, True) == mirrored.model.contents()


def test_the_graph_may_grow_and_shrink_many_times_while_it_is_copied() -> None:
    rng = np.random.default_rng(1)
    with opened(in_edges=True) as graph, mock.patch.object(snapshot, "PIECE_EDGES", 200):
        keys = rng.permutation(1 << 17)[:20_000].astype(np.int64)
        model: dict[int, float] = {}

        def apply(chosen: npt.NDArray[np.int64], op: int) -> None:
            weights = rng.random(chosen.size, np.float32)
            ops = np.full(chosen.size, op, np.uint8)
            graph.apply(EdgeBatch.of(chosen >> 8, chosen & 255, ops, weights), 512)
            for key, weight in zip(chosen.tolist(), weights.tolist(), strict=True):
                if op:
                    model[key] = weight
                else:
                    model.pop(key, None)

        apply(keys[:5_000], 1)
        leaves = {graph.out_rows().counts.size}
        copy = graph.begin_copy()
        for begin in range(5_000, 20_000, 1_000):
            copy.copy_piece()
            apply(keys[begin : begin + 1_000], 1)
            leaves.add(graph.out_rows().counts.size)
        for begin in range(0, 18_000, 1_000):
            copy.copy_piece()
            apply(keys[begin : begin + 1_000], 0)
            leaves.add(graph.out_rows().counts.size)
        assert not copy.through
        copy.finish()
        graph.end_copy(copy)
        assert len(leaves) > 6
        assert graph.check() == []
        arcs = arcs_of(copy.edges(), True)
        assert {(u << 8) | v: weight for (u, v), weight in arcs.items()} == model


def test_threads_copy_and_write_at_once() -> None:
    """A real thread copies piece after piece while batches are applied, over and over."""

    def copy_slowly(copy: EdgeCopy, begun: threading.Semaphore) -> None:
        """A few pieces for each batch that is begun meanwhile."""
        while copy.copy_piece():
            begun.acquire(timeout=PATIENCE_S)

    rng = np.random.default_rng(2)
    with opened() as graph, mock.patch.object(snapshot, "PIECE_EDGES", 4):
        mirrored = Mirrored(graph, rng, 64)
        n_batches_between = 0
        for _ in range(10):
            mirrored.apply(1000, 0.7)
            copy = graph.begin_copy()
            begun = threading.Semaphore(0)
            copier = threading.Thread(target=copy_slowly, args=(copy, begun))
            copier.start()
            while not copy.through:
                begun.release(10)
                mirrored.apply(30, 0.5)
                n_batches_between += 1
            copier.join()
            graph.end_copy(copy)
            assert arcs_of(copy.edges(), True) == mirrored.model.contents()
        assert n_batches_between > 10


def test_pieces_begin_anywhere_even_beside_leaves_that_hold_nothing() -> None:
    """Keys use all 64 bits, and an array may keep empty leaves anywhere."""
    rng = np.random.default_rng(6)
    for _ in range(200):
        counts = rng.integers(0, 5, rng.integers(1, 30)) * rng.integers(0, 2)
        counts = np.where(rng.random(counts.size) < 0.4, 0, counts).astype(np.int32)
        live = np.unique(rng.integers(0, 2**64 - 1, counts.sum(), np.uint64))
        if live.size < counts.sum():
            continue
        slots = np.full((counts.size, 4), 2**64 - 1, np.uint64)
        slots[np.arange(4) < counts[:, None]] = live
        nothing = np.zeros(0, np.uint32)
        rows = RowView(
            slots.ravel(), np.empty(0, np.float32), counts, nothing, nothing, 2, counts.size, counts.size
        )
        size = int(rng.integers(1, 9))
        for first in (0, 2**64 - 2, *live.tolist(), *(live + np.uint64(1)).tolist()):
            out = np.empty(size, np.uint64)
            copied = snapshot.export_from(rows, np.uint64(first), out, np.empty(0, np.float32))
            assert out[:copied].tolist() == live[live >= np.uint64(first)][:size].tolist()


def test_too_many_changes_ask_for_the_rest_at_once() -> None:
    with (
        opened() as graph,
        mock.patch.object(snapshot, "PIECE_EDGES", 10),
        mock.patch.object(snapshot, "CHANGES_MIN", 100),
    ):
        mirrored = Mirrored(graph, np.random.default_rng(3))
        mirrored.apply(200, 1.0)
        copy = graph.begin_copy()
        copy.copy_piece()
        assert not copy.overfull
        mirrored.apply(300, 0.6)
        assert copy.overfull and not copy.through
        copy.finish()
        graph.end_copy(copy)
        assert copy.through
        assert arcs_of(copy.edges(), True) == mirrored.model.contents()


def test_a_piece_without_memory_can_be_tried_again() -> None:
    with opened() as graph, mock.patch.object(snapshot, "PIECE_EDGES", 10):
        mirrored = Mirrored(graph, np.random.default_rng(4))
        mirrored.apply(100, 1.0)
        copy = graph.begin_copy()
        copy.copy_piece()
        with mock.patch.object(snapshot.np, "full", side_effect=MemoryError), pytest.raises(MemoryError):
            copy.copy_piece()
        copy.finish()
        assert arcs_of(copy.edges(), True) == mirrored.model.contents()


def test_who_waits_to_write_goes_before_the_next_reader() -> None:
    turnstile, order = Turnstile(), list[str]()

    def write() -> None:
        with turnstile.writing():
            order.append("write")

    writer = threading.Thread(target=write)
    with turnstile.reading():
        writer.start()
        until(turnstile.entrance.locked)
        assert order == []
    with turnstile.reading():
        order.append("read")
    writer.join()
    assert order == ["write", "read"]


def test_who_is_interrupted_before_he_writes_lets_others_in() -> None:
    turnstile = Turnstile()
    with (
        mock.patch.object(turnstile, "inside", mock.Mock(acquire=mock.Mock(side_effect=KeyboardInterrupt))),
        pytest.raises(KeyboardInterrupt),
        turnstile.writing(),
    ):
        pass
    assert not turnstile.entrance.locked()
    with turnstile.writing():
        pass


def test_nothing_compiles_after_the_warm_up() -> None:
    kernels = [kernel for kernel in vars(snapshot).values() if isinstance(kernel, Dispatcher)]
    before = [len(kernel.signatures) for kernel in kernels]
    for options in ({"weighted": True}, {"weighted": False}, {"directed": False}):
        with opened(**options) as graph:
            mirrored = Mirrored(graph, np.random.default_rng(5))
            for batch in (0, 100, 3):
                copy = graph.begin_copy()
                mirrored.apply(batch, 0.8)
                copy.finish()
                mirrored.apply(10, 0.5)
                copy.edges()
    assert [len(kernel.signatures) for kernel in kernels] == before
    assert len(before) >= 3
