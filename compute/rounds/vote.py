"""The vote of a row: which label most of the neighbours of a vertex have, and by how much it leads."""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.edges import LOW, Int, Vertices
from ...gpma.index.id_order import IdOrder, comes_before
from ...gpma.intrinsics import uncounted
from ...gpma.rows import RowView, runs
from ...gpma.splice import spliced

TABLE_MIN = 64
"""Slots of the smallest table."""

# Knuth's multiplier: labels of neighbours may lie close together, or in steps.
_SCATTER = np.uint32(2_654_435_769)

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


class Table(NamedTuple):
    """Counts by label, by open addressing: ``labels`` and ``counts``, uint32 of one size, a power of two.

    ``used`` int32, of half the size: the slots whose counts are not 0. Between two rows all counts are 0.
    """

    labels: Vertices
    counts: Vertices
    used: npt.NDArray[np.int32]


def table_bytes(entries: int) -> int:
    """What a table for rows of so many entries takes, at most."""
    return 10 * max(TABLE_MIN, 4 * entries)


@_jit
def new_table(entries):  # type: ignore[no-untyped-def]
    """A table for rows of so many entries."""
    size = TABLE_MIN
    while size < 2 * entries:
        size *= 2
    return Table(np.empty(size, np.uint32), np.zeros(size, np.uint32), np.empty(size // 2, np.int32))


@uncounted
def fits(table: Table, entries: Int) -> bool:
    """Whether the table is large enough for rows of so many entries."""
    return bool(entries <= table.used.size)


@uncounted
def elected(
    out: RowView, in_: RowView, both: bool, v: Int, labels: Vertices, table: Table, order: IdOrder
) -> tuple[Int, Int]:
    """(the most frequent label among the neighbours of v, how many more have it than any other).

    Of several as frequent that with the smallest external id, which leads by 0. Without neighbours v itself, by
    0. ``both``: out- and in-neighbours vote, one that is both twice. ``table`` has room for the row.
    """
    n_used = _count(out, v, labels, table, np.int64(0))
    if both:
        n_used = _count(in_, v, labels, table, n_used)
    best, most, next_most = np.int64(v), np.int64(0), np.int64(0)
    for k in range(n_used):
        slot = table.used[k]
        count, label = np.int64(table.counts[slot]), np.int64(table.labels[slot])
        table.counts[slot] = 0
        if count > most:
            best, most, next_most = label, count, most
        elif count == most:
            next_most = count
            best = label if comes_before(order, label, best) else best
        else:
            next_most = max(next_most, count)
    return best, most - next_most


@uncounted
@spliced
def _count(rows: RowView, v: Int, labels: Vertices, table: Table, n_used: Int) -> Int:
    """Count the labels of a row, loops left out; returns how many slots of the table are used then."""
    mask = np.uint32(table.labels.size - 1)
    n = np.int64(n_used)
    for first, stop in runs(rows, v):
        for i in range(first, stop):
            u = np.int64(rows.keys[i] & LOW)
            if u != v:
                label = labels[u]
                scattered = np.uint32(label * _SCATTER)
                slot = np.int64((scattered ^ (scattered >> np.uint32(15))) & mask)
                while table.counts[slot] != 0 and table.labels[slot] != label:
                    slot = (slot + 1) & np.int64(mask)
                if table.counts[slot] == 0:
                    table.labels[slot] = label
                    table.used[n] = slot
                    n += 1
                table.counts[slot] += np.uint32(1)
    return n
