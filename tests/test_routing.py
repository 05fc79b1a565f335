"""Parts of a batch by owner, and both directions of one: every update in its order, whoever writes it."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from crews import THREADS, crew
from crews import crews as crews
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from graphtide.gpma.edges import EdgeBatch, destinations, pack, sources, transpose
from graphtide.partition import routing, scanning, turning
from graphtide.partition.placement import Placement
from graphtide.partition.routing import RoutedBatch, route
from graphtide.partition.weights import in_domain

VERTICES = 12
Row = tuple[int, ...]

ends = st.integers(0, VERTICES - 1)
update = st.tuples(ends, ends, st.integers(0, 1), st.integers(1, 9))
kinds = pytest.mark.parametrize("kind", ["out-rows", "both", "undirected"])


def of_rows(batch: EdgeBatch) -> list[Row]:
    """The updates of a batch as tuples."""
    parts = [sources(batch.keys).tolist(), destinations(batch.keys).tolist(), batch.ops.tolist()]
    if batch.weights is not None:
        parts.append(batch.weights.tolist())
    return list(zip(*parts, strict=True))


def turned(row: Row) -> Row:
    return (row[1], row[0], *row[2:])


def model(rows: list[Row], owner: list[int], side: int, kind: str) -> tuple[list[Row], list[Row] | None]:
    """What a side gets, update by update."""
    out, in_ = [], []
    for row in rows:
        out += [row] * (owner[row[0]] == side)
        if owner[row[1]] == side:
            (in_ if kind == "both" else out if kind == "undirected" else []).append(turned(row))
    return out, in_ if kind == "both" else None


def check(part: RoutedBatch, wanted: tuple[list[Row], list[Row] | None], *, in_weights: bool) -> None:
    out, in_ = wanted
    assert of_rows(part.out) == out
    assert (part.in_ is None) == (in_ is None)
    if part.in_ is not None and in_ is not None:
        assert of_rows(part.in_) == (in_ if in_weights else [row[:3] for row in in_])


@kinds
@given(
    owner=st.lists(st.integers(0, 3), min_size=VERTICES, max_size=VERTICES),
    chosen=st.sets(st.integers(0, 3)),
    weighted=st.booleans(),
    in_weights=st.booleans(),
    chunk=st.sampled_from([1, 3, 1 << 14]),
    threads=st.sampled_from(THREADS),
    updates=st.lists(update, max_size=60),
)
@settings(deadline=None, max_examples=examples(80))
def test_every_update_is_in_order_at_its_owner(
    kind: str,
    owner: list[int],
    chosen: set[int],
    weighted: bool,
    in_weights: bool,
    chunk: int,
    threads: int,
    updates: list[Row],
) -> None:
    placement = Placement(4)
    placement.place(np.array(owner, np.uint8))
    rows = updates if weighted else [row[:3] for row in updates]
    src, dst, ops, weights = np.array(updates, np.int64).reshape(-1, 4).T
    batch = EdgeBatch.of(src, dst, ops, weights if weighted else None)
    how = {"in_edges": kind == "both", "mirrored": kind == "undirected"}
    with mock.patch.object(routing, "CHUNK_UPDATES_MIN", chunk):
        found = route(batch, placement, crew(threads), **how)
    wanted = [model(rows, owner, side, kind) for side in range(4)]
    assert [found.of(side) for side in range(4)] == [(len(out), len(in_ or ())) for out, in_ in wanted]
    parts = found.parts(chosen, in_weights=in_weights)
    assert [part.side for part in parts] == [side for side in sorted(chosen) if any(wanted[side])]
    for part in parts:
        check(part, wanted[part.side], in_weights=in_weights or not weighted)


@kinds
def test_large_batches_are_routed_alike_by_any_threads(kind: str) -> None:
    rng = np.random.default_rng(7)
    n_vertices, n = 5000, 3 * routing.CHUNK_UPDATES_MIN + 17
    placement = Placement(3)
    placement.place(rng.integers(0, 3, n_vertices).astype(np.uint8))
    batch = EdgeBatch.of(
        *rng.integers(0, n_vertices, (2, n)), rng.integers(0, 2, n), rng.random(n).astype(np.float32)
    )
    how = {"in_edges": kind == "both", "mirrored": kind == "undirected"}
    owner, rows = placement.owner.tolist(), of_rows(batch)
    for threads in THREADS:
        parts = route(batch, placement, crew(threads), **how).parts(range(3), in_weights=True)
        assert len(parts) == 3
        for part in parts:
            check(part, model(rows, owner, part.side, kind), in_weights=True)


@pytest.mark.parametrize("key", [pack(3, 12), pack(12, 3), pack(2**32 - 2, 0), pack(0, 2**32 - 2)])
@pytest.mark.parametrize("at", [0, 20, 39])
@kinds
def test_ends_that_are_not_there_are_refused(kind: str, at: int, key: np.uint64) -> None:
    placement = Placement(2)
    placement.place((np.arange(VERTICES) % 2).astype(np.uint8))
    batch = EdgeBatch.of(np.arange(40) % VERTICES, np.arange(40) // 4)
    batch.keys[at] = key
    how = {"in_edges": kind == "both", "mirrored": kind == "undirected"}
    wrong = max(int(sources(batch.keys).max()), int(destinations(batch.keys).max()))
    with (
        mock.patch.object(routing, "CHUNK_UPDATES_MIN", 8),
        pytest.raises(ValueError, match=f"an update names vertex {wrong} of 12"),
    ):
        route(batch, placement, crew(2), **how)


# Columns that are looked at, and turned, as a whole.

SIZES = [0, 1, 5, scanning.CHUNK_MIN - 1, scanning.CHUNK_MIN + 1, 3 * scanning.CHUNK_MIN + 5]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("n", SIZES)
def test_a_batch_is_turned(n: int, threads: int) -> None:
    rng = np.random.default_rng(n)
    batch = EdgeBatch.of(
        *rng.integers(0, 2**32 - 1, (2, n)), rng.integers(0, 2, n), rng.random(n).astype(np.float32)
    )
    found = turning.turned(batch, crew(threads))
    assert np.array_equal(found.keys, transpose(batch.keys))
    assert found.ops is batch.ops and found.weights is batch.weights
    for given_ in (batch, EdgeBatch(batch.keys, batch.ops)):
        both = turning.both_directions(given_, crew(threads))
        assert np.array_equal(both.keys[0::2], batch.keys)
        assert np.array_equal(both.keys[1::2], transpose(batch.keys))
        assert np.array_equal(both.ops, np.repeat(batch.ops, 2))
        assert (both.weights is None) == (given_.weights is None)
        assert both.weights is None or np.array_equal(both.weights, np.repeat(batch.weights, 2))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("n", SIZES)
def test_every_entry_is_looked_at(n: int, threads: int) -> None:
    rng = np.random.default_rng(n)
    keys = pack(*rng.integers(0, 50, (2, n)))
    assert scanning.largest_word(keys, crew(threads)) == max([0, *sources(keys), *destinations(keys)])
    assert scanning.count_loops(keys, crew(threads)) == int((sources(keys) == destinations(keys)).sum())
    assert scanning.count_loops(keys[::2], crew(threads)) == int((sources(keys) == destinations(keys))[::2].sum())
    for at in {0, n // 2, n - 1} if n else ():
        changed = keys.copy()
        changed[at] = pack(7, 2**32 - 1)
        assert scanning.largest_word(changed, crew(threads)) == 2**32 - 1
        weights = rng.random(n).astype(np.float32)
        assert in_domain(weights, "non-negative", crew(threads)) is weights
        weights[at] = -1
        with pytest.raises(ValueError, match=r"weight is -1\.0"):
            in_domain(weights, "non-negative", crew(threads))
        weights[at] = -0.0
        assert not np.signbit(in_domain(weights, "non-negative", crew(threads))).any()
