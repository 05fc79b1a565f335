"""Cores from scratch, and their audit.

From scratch, vertices are taken away (``waves.py``) in the order of how many links they have left. That order is
the one that is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import fetch_add
from ...gpma.edges import NO_VERTEX, Int, Offsets, Vertices
from ...gpma.intrinsics import prefetch, prefetch_to_read, uncounted
from ...gpma.rows import RowView
from ...gpma.team import at_most, share
from ..links import Arcs, entries_of, list_links
from ..ordering import Order, push_back
from .waves import take_away

# How many vertices a thread takes at a time, to copy their links.
_ROWS = 256

# How far ahead memory is asked for, of vertices that are put in order.
_AHEAD = 12

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")

# Bits of what ``audit`` finds at a vertex.
WRONG_HIGH, WRONG_AFTER, TOO_LARGE, TOO_SMALL, WRONG_ORDER = 1, 2, 4, 8, 16


class Cores(NamedTuple):
    """What is kept of each vertex; columns of one size, at least that of the graph.

    ``core`` uint32. ``after`` uint32: its links to vertices of larger cores, and to those behind it in the order
    of its own. ``high`` uint32: its links to vertices of cores that are not smaller.
    """

    core: Vertices
    after: Vertices
    high: Vertices


class Reader(NamedTuple):
    """Rows, and room for one of them, as ``list_links`` has it."""

    out: RowView
    in_: RowView
    both: bool
    tails: Vertices
    row: Vertices
    arcs: Arcs


@uncounted
def listed(reader: Reader, v: Int) -> Int:
    """List the links of v to ``reader.row``: how many there are."""
    return list_links(reader.out, reader.in_, reader.both, v, reader.tails, reader.row, reader.arcs)


@uncounted
def is_later(cores: Cores, order: Order, v: Int, u: Int) -> bool:
    """Whether v comes behind u in the order of all vertices."""
    mine, its = cores.core[u], cores.core[v]
    return bool(its > mine or (its == mine and order.label[v] > order.label[u]))


@_jit
def peel(cores, order, out, in_, both, n, most, crew):  # type: ignore[no-untyped-def]
    """Compute n vertices from scratch, into lists that are empty.

    ``both``: as in ``list_links``; ``most``: the entries of the longest list. Threads copy the links of all
    vertices, and take these away.
    """
    offsets = np.zeros(n + 1, np.int64)
    for v in range(n):
        offsets[v + 1] = offsets[v] + entries_of(out, in_, both, v)
    heads, sizes = np.empty(offsets[n], np.uint32), np.empty(n, np.uint32)
    cursor = np.zeros(1, np.int64)
    share(at_most(crew, n // _ROWS + 1), _copy_pieces, (out, in_, both, n, most, offsets, heads, sizes, cursor))
    ranked = take_away(offsets, heads, sizes, n, cores.core, cores.after, cores.high, crew)
    _put_in_order(cores, order, ranked)


@_jit
def _copy_pieces(t, out, in_, both, n, most, offsets, heads, sizes, cursor):  # type: ignore[no-untyped-def]
    reader = Reader(out, in_, both, np.empty(most, np.uint32), np.empty(most, np.uint32), np.empty(most, np.uint8))
    while True:
        begin = fetch_add(cursor, np.int64(0), np.int64(_ROWS))
        if begin >= n:
            break
        _copy(begin, min(begin + _ROWS, n), reader, offsets, heads, sizes)


@uncounted
def _copy(begin: Int, end: Int, reader: Reader, offsets: Offsets, heads: Vertices, sizes: Vertices) -> None:
    """Copy the links of vertices begin .. end - 1, each list to its offset; how many they are to ``sizes``."""
    for v in range(begin, end):
        size, to = listed(reader, v), offsets[v]
        for k in range(size):
            heads[to + k] = reader.row[k]
        sizes[v] = size


@uncounted
def _put_in_order(cores: Cores, order: Order, ranked: Vertices) -> None:
    """Put vertices in order as they were taken away."""
    for i in range(ranked.size):
        v = np.int64(ranked[i])
        if i + _AHEAD < ranked.size:
            next_ = np.int64(ranked[i + _AHEAD])
            prefetch_to_read(cores.core, next_)
            prefetch(order.label, next_)
            prefetch(order.preceding, next_)
            prefetch(order.following, next_)
        push_back(order, np.int64(cores.core[v]), v)


@uncounted
def audit(
    cores: Cores, order: Order, reader: Reader, n: Int, begin: Int, end: Int, wrong: npt.NDArray[np.uint8]
) -> Int:
    """Check vertices begin .. end - 1 of n by their own links; bits to ``wrong``; the entries read."""
    read = np.int64(0)
    for v in range(begin, end):
        size = listed(reader, v)
        read += entries_of(reader.out, reader.in_, reader.both, v)
        after: Int = np.int64(0)
        high: Int = np.int64(0)
        flags = 0
        core = cores.core[v]
        for k in range(size):
            u = np.int64(reader.row[k])
            after += is_later(cores, order, u, v)
            high += cores.core[u] >= core
            flags |= WRONG_ORDER if cores.core[u] == core and order.label[u] == order.label[v] else 0
        flags |= WRONG_AFTER if after != np.int64(cores.after[v]) else 0
        flags |= WRONG_HIGH if high != np.int64(cores.high[v]) else 0
        flags |= TOO_LARGE if high < np.int64(core) else 0
        flags |= TOO_SMALL if after > np.int64(core) else 0
        before = order.preceding[v]
        if before == NO_VERTEX:
            # A vertex whose core is none that there can be has no list.
            flags |= WRONG_ORDER if core >= order.first.size or np.int64(order.first[core]) != v else 0
        elif (
            np.int64(before) >= n
            or np.int64(order.following[before]) != v
            or cores.core[before] != core
            or order.label[before] >= order.label[v]
        ):
            flags |= WRONG_ORDER
        behind = order.following[v]
        if behind == NO_VERTEX:
            flags |= WRONG_ORDER if core >= order.last.size or np.int64(order.last[core]) != v else 0
        elif np.int64(behind) >= n or np.int64(order.preceding[behind]) != v:
            flags |= WRONG_ORDER
        wrong[v - begin] = flags
    return read
