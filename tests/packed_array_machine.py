"""One random history for every packed array, of the host or of a device, against the plain model in naive.py.

A ``Side`` makes arrays and brings what they answer to the host; ``ArrayMachine`` makes up batches of every shape
that breaks packed arrays, and looks at the whole array after each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from naive import NaiveGraph, NaiveReport

from graphtide.gpma.edges import ChangeReport, EdgeBatch, EdgeList, SubCSR, destinations, pack, sources

VERTICES = 40


class Side(Protocol):
    """Where arrays are. ``largest``: updates of the largest batches. What comes back is NumPy's."""

    largest: int
    settings: settings

    def array(self, *, weighted: bool) -> Any: ...
    def apply(self, array: Any, batch: EdgeBatch) -> ChangeReport: ...
    def load(self, array: Any, edges: EdgeList) -> None: ...
    def load_unsorted(self, array: Any, keys: Any, weights: Any) -> None: ...
    def export(self, array: Any) -> EdgeList: ...
    def rows(self, array: Any, vertices: Any) -> SubCSR: ...
    def has_edge(self, array: Any, keys: Any) -> Any: ...
    def weights_of(self, array: Any, keys: Any) -> Any: ...
    def leaves(self, array: Any) -> Leaves: ...


@dataclass
class Leaves:
    """The leaves' heads and counts, and the density bounds of windows by height; of the root also in edges."""

    heads: Any
    counts: Any
    slots: int
    lower: Any
    upper: Any
    edges_min: int
    edges_max: int


def as_dict(keys: Any, values: Any = None) -> dict[tuple[int, int], float]:
    pairs = zip(sources(keys).tolist(), destinations(keys).tolist(), strict=True)
    return dict(zip(pairs, np.ones(keys.size).tolist() if values is None else values.tolist(), strict=True))


def assert_same_report(report: ChangeReport, expected: NaiveReport, weighted: bool) -> None:
    """Each part in ascending order, with weights exactly where there are any."""
    for part in (report.inserted, report.overwritten, report.deleted):
        assert (part.keys[1:] > part.keys[:-1]).all()
        assert (part.weights is not None) == weighted
    assert (report.overwritten_old is not None) == weighted
    assert (report.absent[1:] > report.absent[:-1]).all()
    assert as_dict(report.inserted.keys, report.inserted.weights) == expected.inserted
    new = as_dict(report.overwritten.keys, report.overwritten.weights)
    old = as_dict(report.overwritten.keys, report.overwritten_old)
    assert {edge: (old[edge], new[edge]) for edge in new} == expected.overwritten
    assert as_dict(report.deleted.keys, report.deleted.weights) == expected.deleted
    assert set(as_dict(report.absent)) == expected.absent


def assert_moved_leaves_are_within_bounds(before: Leaves | None, after: Leaves | None) -> None:
    """A leaf whose head moved lies in a window that is evenly spread, as dense as its height allows.

    Nothing of the kind is promised of an array that was or is on the move into other leaves.
    """
    if before is None or after is None or before.counts.size != after.counts.size:
        return
    n = after.counts.size
    waiting = np.flatnonzero(before.heads[:n] != after.heads[:n])
    ends = np.concatenate([[0], np.cumsum(after.counts, dtype=np.int64)])
    for height in range(1, after.upper.size):
        begin = waiting >> height << height
        end = np.minimum(begin + (1 << height), n)
        edges = ends[end] - ends[begin]
        least, most = (bounds[height] * (end - begin) * after.slots for bounds in (after.lower, after.upper))
        if height == after.upper.size - 1:  # a small root may be a little sparser
            least, most = after.edges_min, after.edges_max
        starts = np.arange(0, n, 1 << height)
        uneven = np.maximum.reduceat(after.counts, starts) - np.minimum.reduceat(after.counts, starts) > 1
        waiting = waiting[(edges < least) | (edges > most) | uneven[waiting >> height]]
    assert waiting.size == 0, f"leaves {waiting[:9]} of {n} moved, but no even window within its bounds is around"


class ArrayMachine(RuleBasedStateMachine):
    """Batches of every shape, each checked whole."""

    def __init__(self, side: Side) -> None:
        super().__init__()
        self.side = side

    @initialize(weighted=st.booleans())
    def start(self, weighted: bool) -> None:
        self.weighted = weighted
        self.array = self.side.array(weighted=weighted)
        self.array.ensure_vertices(VERTICES)
        self.model = NaiveGraph()

    def apply(self, src: Any, dst: Any, ops: Any, seed: int) -> None:
        weights = np.random.default_rng(seed).integers(-5, 6, len(src)).astype(np.float32)
        if not self.weighted:
            weights[:] = 1
        batch = EdgeBatch.of(src, dst, ops, weights if self.weighted else None)
        before = self.side.leaves(self.array)
        report = self.side.apply(self.array, batch)
        assert_same_report(report, self.model.apply(src, dst, ops, weights), self.weighted)
        assert_moved_leaves_are_within_bounds(before, self.side.leaves(self.array))

    @rule(
        updates=st.lists(
            st.tuples(st.integers(0, VERTICES - 1), st.integers(0, 90), st.integers(0, 1)), max_size=80
        )
    )
    def any_updates(self, updates: list[tuple[int, int, int]]) -> None:
        src, dst, ops = np.array(updates, np.int64).reshape(-1, 3).T
        self.apply(src, dst, ops.astype(np.uint8), len(updates))

    @rule(
        seed=st.integers(0, 2**32),
        size=st.sampled_from([0.001, 0.03, 0.2, 1.0]),
        rows=st.sampled_from([1, 3, VERTICES]),
        inserts=st.sampled_from([0.1, 0.5, 0.8, 1.0]),
    )
    def random_updates(self, seed: int, size: float, rows: int, inserts: float) -> None:
        rng = np.random.default_rng(seed)
        n = max(1, int(size * self.side.largest))
        first = rng.integers(0, VERTICES - rows + 1)
        src, dst = rng.integers(first, first + rows, n), rng.integers(0, max(200, n // rows), n)
        self.apply(src, dst, (rng.random(n) < inserts).astype(np.uint8), seed)

    @rule(
        row=st.integers(0, VERTICES - 1),
        begin=st.integers(0, 2**31),
        size=st.floats(0, 0.5),
        descending=st.booleans(),
    )
    def run_of_keys(self, row: int, begin: int, size: float, descending: bool) -> None:
        dst = begin + np.arange(1 + int(size * self.side.largest))
        self.apply(np.full(dst.size, row), dst[::-1] if descending else dst, np.ones(dst.size, np.uint8), dst.size)

    @rule(seed=st.integers(0, 2**32), inserts=st.sampled_from([0.5, 1.0]))
    def many_updates_of_one_edge(self, seed: int, inserts: float) -> None:
        rng = np.random.default_rng(seed)
        n = max(20, self.side.largest // 20)
        src, dst = rng.integers(7, 9, n), rng.integers(5, 8, n)
        self.apply(src, dst, (rng.random(n) < inserts).astype(np.uint8), seed)

    @rule(
        keep_every=st.sampled_from([2, 10, 1000]), begin=st.floats(0, 1), share=st.sampled_from([0.05, 0.5, 1.0])
    )
    def delete_most_of_a_stretch(self, keep_every: int, begin: float, share: float) -> None:
        keys = self.side.export(self.array).keys
        keys = keys[int(begin * keys.size) :][: int(share * keys.size) + 1]
        keys = keys[np.arange(keys.size) % keep_every != 0]
        self.apply(sources(keys), destinations(keys), np.zeros(keys.size, np.uint8), 0)

    @rule()
    def reload(self) -> None:
        self.side.load(self.array, self.side.export(self.array))

    @rule(seed=st.integers(0, 2**32))
    def load_unsorted_columns_that_repeat(self, seed: int) -> None:
        edges = self.side.export(self.array)
        chosen = np.random.default_rng(seed).permutation(2 * len(edges)) % max(1, len(edges))
        weights = None if edges.weights is None else np.arange(chosen.size, dtype=np.float32)
        self.side.load_unsorted(self.array, edges.keys[chosen], weights)
        keys = edges.keys[chosen]
        self.model = NaiveGraph()
        self.model.apply(sources(keys).tolist(), destinations(keys).tolist(), None, weights)

    @rule(more=st.integers(0, 100))
    def add_vertices(self, more: int) -> None:
        self.array.ensure_vertices(self.array.n_vertices + more)

    @invariant()
    def agrees(self) -> None:
        assert self.array.check() == []
        contents = self.model.contents()
        edges = self.side.export(self.array)
        assert as_dict(edges.keys, edges.weights) == contents
        assert (edges.weights is not None) == self.weighted
        assert self.array.n_edges == len(contents)
        self.rows_agree()
        self.looked_up_edges_agree(contents)

    def rows_agree(self) -> None:
        vertices = np.arange(self.array.n_vertices, dtype=np.uint32)[::-1]
        vertices = np.append(vertices, vertices[:3])
        rows = self.side.rows(self.array, vertices)
        assert rows.offsets[0] == 0
        assert (rows.weights is not None) == self.weighted
        for x, u in enumerate(vertices.tolist()):
            span = slice(rows.offsets[x], rows.offsets[x + 1])
            expected = self.model.out_neighbors(u)
            assert rows.neighbors[span].tolist() == list(expected)
            if rows.weights is not None:
                assert rows.weights[span].tolist() == list(expected.values())

    def looked_up_edges_agree(self, contents: dict[tuple[int, int], float]) -> None:
        asked = [*list(contents)[::7], *[(u, v) for u in (0, VERTICES - 1, 2**32 - 2) for v in (0, 2**32 - 2)]]
        src, dst = np.array(asked, np.int64).T
        assert self.side.has_edge(self.array, pack(src, dst)).tolist() == [edge in contents for edge in asked]
        if self.weighted:
            found = self.side.weights_of(self.array, pack(src, dst))
            assert np.array_equal(found, [contents.get(edge, np.nan) for edge in asked], equal_nan=True)
