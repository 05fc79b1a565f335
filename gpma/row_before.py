"""Rows as they were before a batch that is being written: what lies in their leaves, with its updates undone.

A leaf holds what was there before the batch, or what is there after it, and is not read just while it is written
(``gate.py``). What the batch does to each edge is known since it was looked up: one that it inserts was not there,
wherever it is by now, and one that it deletes was. So a row is read along its leaves, each of them as before or as
after, and comes out as it was. All of this is for who holds the gate's second lock, of rows that may be read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .edges import DELETED, HALF, INSERTED, LOW, OVERWRITTEN, Int, Vertices, Weights
from .gate import (
    NOT_YET,
    Gate,
    how_noted,
    is_update_written,
    is_written,
    update_key,
    update_status,
    updates_from,
    weight_before,
)
from .intrinsics import uncounted_inner
from .rows import RowView, live_runs
from .splice import spliced

WAITS = -1
"""It lies in a leaf that is being written, or is longer than whoever keeps the writer waiting may read."""
LEAVES_MAX = 128
"""So many leaves are read at most."""


@uncounted_inner
def degree_before(gate: Gate, side: Int, rows: RowView, u: Int, begin: Int, end: Int) -> Int:
    """How many edges row u had, of which these are the updates (``updates_of``); not while rows are noted."""
    degree = np.int64(rows.degrees[u])
    if how_noted(gate, side) == NOT_YET:
        return degree
    for i in range(begin, end):
        status = update_status(gate, side, i)
        degree += np.int64(status == DELETED) - np.int64(status == INSERTED)
    return degree


@uncounted_inner
@spliced
def copy_row_before(
    gate: Gate, side: Int, rows: RowView, u: Int, end: Int, first: Int, neighbors: Vertices, weights: Weights
) -> Int:
    """As ``copy_row``, of the row that u had, which was not empty; its updates end before ``end``. ``WAITS``: it
    cannot be read now, and what was copied means nothing."""
    first_key = np.uint64(u) << HALF | np.uint64(first)
    last_key = np.uint64(u) << HALF | LOW
    update = updates_from(gate, side, first_key)
    size = np.int64(neighbors.size)
    copied, n_leaves = np.int64(0), np.int64(0)
    is_over: Any = False
    for slot, stop in live_runs(rows, np.int64(rows.row_leaf[u])):
        n_leaves += 1
        if n_leaves > LEAVES_MAX or is_written(gate, side, slot >> rows.leaf_shift):
            return np.int64(WAITS)
        at = slot
        while at < stop and copied < size and not is_over:
            key = rows.keys[at]
            at += 1
            is_over = key > last_key
            if first_key <= key <= last_key:
                # What is deleted, and gone by now, stood before it.
                while update < end and copied < size and update_key(gate, side, update) < key:
                    copied += _copy_deleted(gate, side, update, neighbors, weights, copied)
                    update += 1
                is_updated = update < end and update_key(gate, side, update) == key
                was_there = not is_updated or update_status(gate, side, update) != INSERTED
                if was_there and copied < size:
                    neighbors[copied] = np.uint32(key & LOW)
                    if weights.size:
                        weights[copied] = rows.weights[at - 1]
                        if is_updated and is_update_written(gate, side, update):
                            weights[copied] = weight_before(gate, side, update)
                    copied += 1
                update += np.int64(is_updated)
        if is_over or copied == size:
            break
    while update < end and copied < size:
        copied += _copy_deleted(gate, side, update, neighbors, weights, copied)
        update += 1
    return copied


@uncounted_inner
def _copy_deleted(gate: Gate, side: Int, i: Int, neighbors: Vertices, weights: Weights, to: Int) -> Int:
    """Copy the edge of an update that has deleted it by now; how many that is."""
    if update_status(gate, side, i) != DELETED:
        return np.int64(0)
    neighbors[to] = np.uint32(update_key(gate, side, i) & LOW)
    if weights.size:
        weights[to] = weight_before(gate, side, i)
    return np.int64(1)


@uncounted_inner
@spliced
def was_in_row(gate: Gate, side: Int, rows: RowView, u: Int, key: Int, begin: Int, end: Int) -> Int:
    """Whether a key was in the row that u had, which was not empty and has these updates: 0 or 1, or ``WAITS``;
    not while rows are noted."""
    update = updates_from(gate, side, key)
    if begin <= update < end and update_key(gate, side, update) == key:
        status = update_status(gate, side, update)
        return np.int64(status in (DELETED, OVERWRITTEN))
    n_leaves = np.int64(0)
    for slot, stop in live_runs(rows, np.int64(rows.row_leaf[u])):
        n_leaves += 1
        if n_leaves > LEAVES_MAX or is_written(gate, side, slot >> rows.leaf_shift):
            return np.int64(WAITS)
        if stop > slot and rows.keys[stop - 1] >= key:
            while rows.keys[slot] < key:
                slot += 1
            return np.int64(rows.keys[slot] == key)
    return np.int64(0)
