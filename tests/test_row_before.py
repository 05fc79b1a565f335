"""Rows as they were before a batch of which any part is written by now."""

from __future__ import annotations

import itertools

import numba as nb
import numpy as np
import pytest

from graphtide.gpma.edges import EdgeBatch, EdgeList, pack
from graphtide.gpma.gate import (
    ALL_NOTED,
    GATE_WORDS,
    Gate,
    go_on_to,
    is_open_beside,
    let_beside,
    move_in,
    rows_are,
    updates_of,
)
from graphtide.gpma.host.array import PackedMemoryArray
from graphtide.gpma.host.committing import other_leaf
from graphtide.gpma.host.crowds import plan
from graphtide.gpma.host.merge import merge_leaves, note_rows, redistribute
from graphtide.gpma.intrinsics import address_of
from graphtide.gpma.row_before import WAITS, copy_row_before, degree_before, was_in_row

N = 60


@nb.njit(cache=False)
def begin_batch(task, gate, n, n_parts):  # type: ignore[no-untyped-def]
    rows, updates, side = task.rows, task.updates, np.int64(0)
    let_beside(gate, side, updates.keys, updates.status, updates.old_weights, n, rows.leaf, n_parts)


@nb.njit(cache=False)
def note_all(task, gate, n):  # type: ignore[no-untyped-def]
    note_rows(task.updates, np.int64(0), n, task.rows, task.pending.rows)
    rows_are(gate, np.int64(0), ALL_NOTED)


@nb.njit(cache=False)
def write_some(task, gate, part, first, now, end, held):  # type: ignore[no-untyped-def]
    """Write a part's updates now..end, of whole leaves; ``held``: it is at their leaves, and has not begun."""
    slots, updates, pending = task.slots, task.updates, task.pending
    if held:
        begin_leaf, end_leaf = np.int64(updates.leaf[now]), np.int64(updates.leaf[end - 1]) + 1
        go_on_to(gate, np.int64(0), part, begin_leaf, end_leaf, first, now)
        return
    merge_leaves(slots, updates, now, end, end, pending, first, first, False)
    go_on_to(gate, np.int64(0), part, np.int64(0), np.int64(0), first, end)


@nb.njit(cache=False)
def plan_windows(task, n):  # type: ignore[no-untyped-def]
    """All updates are written but for what must be spread; how many windows there are."""
    merged = merge_leaves(
        task.slots, task.updates, np.int64(0), n, n, task.pending, np.int64(0), np.int64(0), False
    )
    lower, upper = task.bounds
    how = task.n_updates, task.hot_for, task.crowded_leaves
    return plan(task.slots, lower, upper, task.pending, merged[0], task.windows, *how)[0]


@nb.njit(cache=False)
def move_window(task, gate, window, held):  # type: ignore[no-untyped-def]
    windows = task.windows
    begin = min(windows.begin[window], windows.new_begin[window])
    end = max(windows.end[window], windows.new_end[window])
    if held:
        move_in(gate, np.int64(0), np.int64(0), begin, end)
        return
    redistribute(task.slots, task.rows.leaf, task.pending, windows, window, window + 1)
    move_in(gate, np.int64(0), np.int64(0), np.int64(0), np.int64(0))


@nb.njit(cache=False)
def leaf_ends(task, begin, n):  # type: ignore[no-untyped-def]
    return other_leaf(task.updates.leaf, begin, n)


@nb.njit(cache=False)
def row_of(gate, rows, u, first, neighbors, weights, asked, found):  # type: ignore[no-untyped-def]
    """(degree, how many were copied), and whether some keys were there; (-1, -1): the row may not be read."""
    side = np.int64(0)
    if not is_open_beside(gate, side, np.int64(address_of(rows.row_leaf))):
        return -1, -1
    begin, end = updates_of(gate, side, u)
    degree = degree_before(gate, side, rows, u, begin, end)
    copied = np.int64(0)
    if degree > 0:
        copied = copy_row_before(gate, side, rows, u, end, first, neighbors, weights)
    for i in range(asked.size):
        found[i] = was_in_row(gate, side, rows, u, asked[i], begin, end) if degree > 0 else 0
    return degree, copied


def array_of(rng: np.random.Generator, weighted: bool) -> tuple[PackedMemoryArray, np.ndarray, np.ndarray]:
    """An array of random edges, which go round a few rows or many, with these keys and weights."""
    array = PackedMemoryArray(weighted=weighted)
    array.ensure_vertices(N)
    n_rows = int(rng.integers(2, N))
    keys = np.unique(pack(rng.integers(0, n_rows, 4000) * N // n_rows, rng.integers(0, 2000, 4000)))
    weights = rng.random(keys.size, np.float32) if weighted else np.empty(0, np.float32)
    array.load(EdgeList(keys, weights if weighted else None))
    return array, keys, weights


def batch_of(rng: np.random.Generator, keys: np.ndarray, weighted: bool) -> EdgeBatch:
    """Edges that come, that go, that are written over, and that are not there to go."""
    some = rng.choice(keys, int(rng.integers(1, 500)), replace=False)
    others = pack(rng.integers(0, N, 300), rng.integers(0, 2000, 300))
    all_keys = np.concatenate([some, others])
    if rng.random() < 0.3:  # a row of which nothing is left, or nearly
        all_keys = np.concatenate([all_keys, keys[keys >> np.uint64(32) == keys[0] >> np.uint64(32)]])
    ops = (rng.random(all_keys.size) < rng.random()).astype(np.uint8)
    return EdgeBatch(all_keys, ops, rng.random(all_keys.size, np.float32) if weighted else None)


def check(
    gate: Gate, array: PackedMemoryArray, keys: np.ndarray, weights: np.ndarray, first: int
) -> tuple[int, int]:
    """Compare all rows with what they were; how many were read, and how many must wait."""
    rows, read, waits = array.view(), 0, 0
    for u in range(N):
        begin, end = np.searchsorted(keys, [(u << 32) + first, (u + 1) << 32])
        whole = end - np.searchsorted(keys, u << 32)
        neighbors = np.empty(int(whole), np.uint32)
        some = np.empty(neighbors.size if weights.size else 0, np.float32)
        asked = pack(np.full(40, u), np.arange(0, 2000, 50)).astype(np.uint64)
        found = np.empty(asked.size, np.int64)
        degree, copied = row_of(gate, rows, u, first, neighbors, some, asked, found)
        assert degree == whole
        there = np.isin(asked, keys)
        assert np.all((found == there) | (found == WAITS))
        if copied == WAITS or WAITS in found:
            waits += 1
        if copied == WAITS:
            continue
        read += 1
        assert copied == end - begin
        assert np.array_equal(neighbors[:copied], keys[begin:end].astype(np.uint32))
        if weights.size:
            assert np.array_equal(some[:copied], weights[begin:end])
    return read, waits


@pytest.mark.parametrize("weighted", [True, False])
def test_rows_are_as_before_whatever_is_written_by_now(weighted: bool, seed: int) -> None:
    """Several parts, in any order, some leaves at a time: after each of them, and while it is being written."""
    for each in range(6):
        rng = np.random.default_rng([seed, each])
        array, keys, weights = array_of(rng, weighted)
        planned = array.prepare(batch_of(rng, keys, weighted))
        gate = np.zeros(GATE_WORDS, np.int64)
        task = array.task(planned, gate)
        assert task is not None and planned.parts is not None
        n = int(planned.parts[-1, 1])
        ends = sorted({0, n, *(leaf_ends(task, int(at), n) for at in rng.integers(1, n, 3))})
        parts = list(itertools.pairwise(ends))
        begin_batch(task, gate, n, len(parts))
        now = [first for first, _ in parts]
        assert check(gate, array, keys, weights, 0) == (N, 0)
        note_all(task, gate, n)
        seen = [check(gate, array, keys, weights, 0)]
        assert seen[0] == (N, 0)
        while any(at < end for at, (_, end) in zip(now, parts, strict=True)):
            part = int(rng.choice([p for p, (_, end) in enumerate(parts) if now[p] < end]))
            first, end = parts[part]
            stop = min(leaf_ends(task, min(now[part] + int(rng.integers(1, 200)), end), n), end)
            stop = end if stop == now[part] else stop
            write_some(task, gate, part, first, now[part], stop, True)
            seen.append(check(gate, array, keys, weights, 0))
            write_some(task, gate, part, first, now[part], stop, False)
            now[part] = stop
            assert check(gate, array, keys, weights, int(rng.choice([0, 700]))) == (N, 0)
        assert any(waits for _, waits in seen[1:]) and any(read for read, _ in seen[1:])


@pytest.mark.parametrize("weighted", [True, False])
def test_rows_are_as_before_whichever_windows_have_moved(weighted: bool, seed: int) -> None:
    """Windows one after the other, in any order: after each of them, and while it is being moved."""
    n_windows = n_waits = 0
    for each in range(4):
        rng = np.random.default_rng([seed, each])
        array, keys, weights = array_of(rng, weighted)
        fresh = pack(np.repeat(rng.integers(0, N, 8), 40), rng.integers(0, 2000, 320))
        some = batch_of(rng, keys, weighted)
        more = None if some.weights is None else np.concatenate([some.weights, rng.random(320, np.float32)])
        ops = np.concatenate([some.ops, np.ones(320, np.uint8)])
        planned = array.prepare(EdgeBatch(np.concatenate([some.keys, fresh.astype(np.uint64)]), ops, more))
        gate = np.zeros(GATE_WORDS, np.int64)
        task = array.task(planned, gate)
        assert task is not None and planned.parts is not None
        n = int(planned.parts[-1, 1])
        begin_batch(task, gate, n, 1)
        note_all(task, gate, n)
        write_some(task, gate, 0, 0, 0, n, True)
        n_here = plan_windows(task, n)
        write_none(gate, n)
        assert check(gate, array, keys, weights, 0) == (N, 0)
        for window in rng.permutation(n_here):
            move_window(task, gate, int(window), True)
            n_waits += check(gate, array, keys, weights, 0)[1]
            move_window(task, gate, int(window), False)
            assert check(gate, array, keys, weights, int(rng.choice([0, 700]))) == (N, 0)
        n_windows += n_here
    assert n_windows > 4 and n_waits > 0


@nb.njit(cache=False)
def write_none(gate, n):  # type: ignore[no-untyped-def]
    """All n updates of the only part are written."""
    go_on_to(gate, np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0), n)
