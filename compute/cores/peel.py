"""Cores from scratch, and their audit.

From scratch, vertices are taken away in the order of how many links they have left (Batagelj, Zaversnik, "An O(m)
algorithm for cores decomposition of networks", 2003). That order is the one that is kept.
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
from ..links import Arcs, list_links
from ..ordering import Order, push_back

# How many vertices a thread takes at a time, to copy their links.
_ROWS = 256

# How far ahead memory is asked for: of vertices that are taken away, and of links.
_AHEAD, _HEADS_AHEAD = 4, 12

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
    vertices; one thread then takes these away.
    """
    offsets = np.zeros(n + 1, np.int64)
    for v in range(n):
        entries = np.int64(out.degrees[v]) + (np.int64(in_.degrees[v]) if both else np.int64(0))
        offsets[v + 1] = offsets[v] + entries
    heads, sizes = np.empty(offsets[n], np.uint32), np.empty(n, np.uint32)
    cursor = np.zeros(1, np.int64)
    share(at_most(crew, n // _ROWS + 1), _copy_pieces, (out, in_, both, n, most, offsets, heads, sizes, cursor))
    places, ranked = take_away(offsets, heads, sizes, n, most, cores.after, cores.high)
    _put_in_order(cores, order, n, places, ranked)


@_jit
def take_away(offsets, heads, sizes, n, most, after, high):  # type: ignore[no-untyped-def]
    """Take n vertices away, one with the fewest links left first: (places, ranked), as ``_take_away`` has them.

    The ``sizes[v]`` links of v are at ``heads[offsets[v]:]``; nobody has more than ``most``. Of each vertex
    ``after`` and ``high`` are found, as in ``Cores``.
    """
    begins, places, ranked = np.zeros(most + 2, np.int64), np.empty(2 * n, np.uint32), np.empty(n, np.uint32)
    _rank(sizes, n, begins, places, ranked)
    _take_away(offsets, heads, sizes, n, begins, places, ranked, np.empty(most + 1, np.uint32), after, high)
    return places, ranked


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
def _rank(sizes: Vertices, n: Int, begins: Offsets, places: Vertices, ranked: Vertices) -> None:
    """Put n vertices in order of their numbers of links, as ``_take_away`` has it; ``begins`` are zeros."""
    v: Int
    for v in range(n):
        begins[np.int64(sizes[v]) + 1] += 1
    for k in range(begins.size - 1):
        begins[k + 1] += begins[k]
    for v in range(n):
        size = np.int64(sizes[v])
        places[2 * v] = size
        places[2 * v + 1] = begins[size]
        ranked[begins[size]] = v
        begins[size] += 1
    for back in range(begins.size - 1):
        k = begins.size - 1 - back
        begins[k] = begins[k - 1]
    begins[0] = 0


@uncounted
def _take_away(
    offsets: Offsets,
    heads: Vertices,
    sizes: Vertices,
    n: Int,
    begins: Offsets,
    places: Vertices,
    ranked: Vertices,
    losing: Vertices,
    after: Vertices,
    high: Vertices,
) -> None:
    """``ranked``: vertices by links left; those with k begin at ``begins[k]``. ``places``: of each vertex, side by
    side, the links that it has left and where it stands in ``ranked``; what is taken away keeps both, the first
    being its core. No vertex falls below the core of one that was taken away. ``losing``: room for a list.
    """
    end = offsets[n]
    for i in range(n):
        if i + _AHEAD < n:
            # What stands there now will mostly be what is taken away then.
            next_ = np.int64(ranked[i + _AHEAD])
            prefetch_to_read(heads, offsets[next_])
            prefetch(after, next_)
            prefetch(high, next_)
        v = np.int64(ranked[i])
        core = places[2 * v]
        n_after, n_high, n_losing = np.int64(0), np.int64(0), np.int64(0)
        # First without branches, since half of them would be wrong.
        for e in range(offsets[v], offsets[v] + np.int64(sizes[v])):
            ahead = e + _HEADS_AHEAD
            prefetch(places, 2 * np.int64(heads[ahead if ahead < end else end - 1]))
            u = np.int64(heads[e])
            left, at = places[2 * u], np.int64(places[2 * u + 1])
            # Who is there still has at least as many left, and who was taken away had no more.
            n_after += at > i
            n_high += left >= core
            losing[n_losing] = u
            n_losing += left > core
        for k in range(n_losing):
            # It changes places with the first of those that have as many left, and has one less.
            u = np.int64(losing[k])
            left, at = places[2 * u], np.int64(places[2 * u + 1])
            to = begins[left]
            w = np.int64(ranked[to])
            ranked[at] = w
            places[2 * w + 1] = at
            ranked[to] = u
            places[2 * u + 1] = to
            begins[left] += 1
            places[2 * u] = left - np.uint32(1)
        after[v] = n_after
        high[v] = n_high


@uncounted
def _put_in_order(cores: Cores, order: Order, n: Int, places: Vertices, ranked: Vertices) -> None:
    """Give vertices their cores, and put them in order as they were taken away."""
    for i in range(n):
        v = np.int64(ranked[i])
        if i + _HEADS_AHEAD < n:
            next_ = np.int64(ranked[i + _HEADS_AHEAD])
            prefetch(cores.core, next_)
            prefetch(order.label, next_)
            prefetch(order.preceding, next_)
            prefetch(order.following, next_)
            prefetch_to_read(places, 2 * next_)
        cores.core[v] = places[2 * v]
        push_back(order, np.int64(places[2 * v]), v)


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
