"""Cores from scratch, and their audit.

From scratch, vertices are taken away in the order of how many links they have left (Batagelj, Zaversnik, "An O(m)
algorithm for cores decomposition of networks", 2003). That order is the one that is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.edges import NO_VERTEX, Int, Vertices
from ...gpma.intrinsics import uncounted
from ...gpma.rows import RowView
from ..links import Arcs, list_links
from ..ordering import Order, push_back

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
def peel(cores, order, reader, n, arcs):  # type: ignore[no-untyped-def]
    """Compute n vertices from scratch, into lists that are empty. ``arcs``: entries of all rows that are read."""
    offsets = np.zeros(n + 1, np.int64)
    heads = np.empty(arcs, np.uint32)
    most = _copy(reader, n, offsets, heads)
    left = np.empty(n, np.int64)
    begins = np.zeros(most + 2, np.int64)
    ranked, rank = np.empty(n, np.uint32), np.empty(n, np.int64)
    _peel(cores, order, offsets, heads, n, left, begins, ranked, rank)


@uncounted
def _copy(reader: Reader, n: Int, offsets: npt.NDArray[np.int64], heads: Vertices) -> Int:
    """Copy the links of all vertices: the most that one has."""
    most = np.int64(0)
    for v in range(n):
        size = listed(reader, v)
        to = offsets[v]
        for k in range(size):
            heads[to + k] = reader.row[k]
        offsets[v + 1] = to + size
        most = max(most, size)
    return most


@uncounted
def _peel(
    cores: Cores,
    order: Order,
    offsets: npt.NDArray[np.int64],
    heads: Vertices,
    n: Int,
    left: npt.NDArray[np.int64],
    begins: npt.NDArray[np.int64],
    ranked: Vertices,
    rank: npt.NDArray[np.int64],
) -> None:
    """``left``: the links that a vertex has left. ``ranked``: vertices by that; those with k begin at
    ``begins[k]``; ``rank``: where each stands there."""
    v: Int
    for v in range(n):
        left[v] = offsets[v + 1] - offsets[v]
        begins[left[v] + 1] += 1
    for k in range(begins.size - 1):
        begins[k + 1] += begins[k]
    for v in range(n):
        rank[v] = begins[left[v]]
        ranked[rank[v]] = v
        begins[left[v]] += 1
    for back in range(begins.size - 1):
        k = begins.size - 1 - back
        begins[k] = begins[k - 1]
    begins[0] = 0
    for i in range(n):
        v = np.int64(ranked[i])
        cores.core[v] = left[v]
        push_back(order, left[v], v)
        for e in range(offsets[v], offsets[v + 1]):
            u = np.int64(heads[e])
            if left[u] > left[v]:
                # It changes places with the first of those that have as many left, and has one less.
                to = begins[left[u]]
                w = np.int64(ranked[to])
                ranked[rank[u]] = w
                rank[w] = rank[u]
                ranked[to] = u
                rank[u] = to
                begins[left[u]] += 1
                left[u] -= 1
    for v in range(n):
        after: Int = np.uint32(0)
        high: Int = np.uint32(0)
        mine, at = cores.core[v], rank[v]
        for e in range(offsets[v], offsets[v + 1]):
            u = np.int64(heads[e])
            after += np.uint32(rank[u] > at)
            high += np.uint32(cores.core[u] >= mine)
        cores.after[v] = after
        cores.high[v] = high


@uncounted
def audit(
    cores: Cores, order: Order, reader: Reader, n: Int, begin: Int, end: Int, wrong: npt.NDArray[np.uint8]
) -> Int:
    """Check vertices begin .. end - 1 of n by their own links; bits to ``wrong``; the entries read."""
    read = np.int64(0)
    for v in range(begin, end):
        size = listed(reader, v)
        read += np.int64(reader.out.degrees[v]) + (np.int64(reader.in_.degrees[v]) if reader.both else np.int64(0))
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
