"""Counting triangles from scratch, and for the audit.

From scratch each vertex keeps those of its links that lead *forward*, to a vertex of larger (degree, id), of which
it has at most the square root of twice the edges. A triangle is found once, at the smallest of its three vertices
(Schank, Wagner, "Finding, counting and listing all triangles in large graphs", 2005; Latapy, "Main-memory triangle
computations for very large (sparse (power-law)) graphs", 2008).
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import fetch_add
from ...gpma.edges import Int, Offsets, Vertices
from ...gpma.intrinsics import uncounted
from ...gpma.rows import RowView
from ...gpma.team import at_most, share
from ..links import NOW_SHIFT, Arcs, Links, list_links
from .common import SEARCH_STEPS, Room, degree, halve, look_up, merge, new_room

# How many vertices a thread takes at a time, to list their rows, and to count their triangles.
_ROWS = 256
_CORNERS = 64

NEXT, STEPS = 0, 16
"""What is where in a cursor (int64, a cache line apart): the next piece, and the entries read and merged."""

# Bits of what ``audit`` finds at a vertex.
WRONG_TALLY, WRONG_NEIGHBORS = 1, 2

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


@_jit
def count_all(out, in_, both, weigh, n, tally, neighbors, crew):  # type: ignore[no-untyped-def]
    """Count the triangles of n vertices into ``tally`` (uint64), whose entries are all 0: the entries read and
    merged.

    ``weigh``: as in ``change.py``. ``neighbors`` (uint32) gets how many links each vertex has; it may be of size
    0.
    """
    most = np.int64(0)
    for v in range(n):
        most = max(most, degree(out, in_, both, v))
    offsets = np.zeros(n + 1, np.int64)
    cursor = np.zeros(32, np.int64)
    heads, arcs = np.empty(0, np.uint32), np.empty(0, np.uint8)
    listing = at_most(crew, n // _ROWS + 1)
    share(listing, _list_pieces, (out, in_, both, n, most, neighbors, offsets, heads, arcs, cursor))
    widest = np.int64(0)
    for v in range(n):
        widest = max(widest, offsets[v + 1])
        offsets[v + 1] += offsets[v]
    heads = np.empty(offsets[n], np.uint32)
    arcs = np.empty(offsets[n] if weigh else 0, np.uint8)
    cursor[NEXT] = 0
    share(listing, _list_pieces, (out, in_, both, n, most, neighbors, offsets, heads, arcs, cursor))
    cursor[NEXT] = 0
    share(at_most(crew, n // _CORNERS + 1), _count_pieces, (n, widest, weigh, offsets, heads, arcs, tally, cursor))
    return cursor[STEPS]


@_jit
def _list_pieces(t, out, in_, both, n, most, neighbors, offsets, heads, arcs, cursor):  # type: ignore[no-untyped-def]
    room = new_room(most, np.int64(0))
    read = np.int64(0)
    while True:
        begin = fetch_add(cursor, NEXT, np.int64(_ROWS))
        if begin >= n:
            break
        end = min(begin + _ROWS, n)
        read += _list_forward(begin, end, out, in_, both, room, neighbors, offsets, heads, arcs)
    fetch_add(cursor, STEPS, read)


@uncounted
def _list_forward(
    begin: Int,
    end: Int,
    out: RowView,
    in_: RowView,
    both: bool,
    room: Room,
    neighbors: Vertices,
    offsets: Offsets,
    heads: Vertices,
    arcs: Arcs,
) -> Int:
    """Of each vertex the links that lead forward: to ``heads`` and ``arcs``; while those are empty, their number
    to ``offsets``, behind the vertex. Returns the entries read."""
    read = np.int64(0)
    for u in range(begin, end):
        mine = degree(out, in_, both, u)
        n = list_links(out, in_, both, u, room.tails, room.row, room.arcs)
        read += mine
        if neighbors.size:
            neighbors[u] = n
        forward, to = np.int64(0), offsets[u]
        for k in range(n):
            v = np.int64(room.row[k])
            its = degree(out, in_, both, v)
            if its > mine or (its == mine and v > u):
                if heads.size:
                    heads[to + forward] = v
                if arcs.size:
                    arcs[to + forward] = room.arcs[k] >> NOW_SHIFT
                forward += 1
        if heads.size == 0:
            offsets[u + 1] = forward
    return read


@_jit
def _count_pieces(t, n, widest, weigh, offsets, heads, arcs, tally, cursor):  # type: ignore[no-untyped-def]
    own = np.zeros(widest, np.uint64)
    steps = np.int64(0)
    while True:
        begin = fetch_add(cursor, NEXT, np.int64(_CORNERS))
        if begin >= n:
            break
        for u in range(begin, min(begin + _CORNERS, n)):
            if weigh:
                steps += _weigh_triangles(u, offsets, heads, arcs, tally, own)
            else:
                steps += _count_triangles(u, offsets, heads, tally, own)
    fetch_add(cursor, STEPS, steps)


@uncounted
def _count_triangles(
    u: Int, offsets: Offsets, heads: Vertices, tally: npt.NDArray[np.uint64], own: npt.NDArray[np.uint64]
) -> Int:
    """Count the triangles of which u is the smallest vertex: the entries merged.

    ``own``: zeros, and so left. What the other vertices get is added up there, by their places.
    """
    first, end = offsets[u], offsets[u + 1]
    total: Int = np.uint64(0)
    steps: Int = np.int64(0)
    for p in range(first, end):
        v = heads[p]
        i, j, stop = first, offsets[v], offsets[v + 1]
        steps += end - first + stop - j
        found: Int = np.uint64(0)
        while i < end and j < stop:
            x, y = heads[i], heads[j]
            same = np.uint64(x == y)
            own[i - first] += same
            found += same
            i += x <= y
            j += y <= x
        own[p - first] += found
        total += found
    if total:
        fetch_add(tally, u, total)
        _hand_out(first, end, heads, tally, own)
    return steps


@uncounted
def _weigh_triangles(
    u: Int,
    offsets: Offsets,
    heads: Vertices,
    arcs: Arcs,
    tally: npt.NDArray[np.uint64],
    own: npt.NDArray[np.uint64],
) -> Int:
    """As ``_count_triangles``, each as often for a vertex as its opposite side has arcs."""
    first, end = offsets[u], offsets[u + 1]
    total: Int = np.uint64(0)
    steps: Int = np.int64(0)
    for p in range(first, end):
        v = heads[p]
        i, j, stop = first, offsets[v], offsets[v + 1]
        steps += end - first + stop - j
        found: Int = np.uint64(0)
        while i < end and j < stop:
            x, y = heads[i], heads[j]
            same = np.uint64(x == y)
            own[i - first] += same * arcs[p]
            found += same * arcs[i]
            total += same * arcs[j]
            i += x <= y
            j += y <= x
        own[p - first] += found
    if total:
        fetch_add(tally, u, total)
        _hand_out(first, end, heads, tally, own)
    return steps


@uncounted
def _hand_out(
    first: Int, end: Int, heads: Vertices, tally: npt.NDArray[np.uint64], own: npt.NDArray[np.uint64]
) -> None:
    for i in range(first, end):
        if own[i - first]:
            fetch_add(tally, np.int64(heads[i]), own[i - first])
            own[i - first] = 0


# -- the audit ----------------------------------------------------------------------------------------------------


@_jit
def audit(links, out, in_, both, weigh, tally, neighbors, begin, end, wrong):  # type: ignore[no-untyped-def]
    """Count the triangles of vertices begin .. end - 1 one by one; bits to ``wrong``; the entries read.

    ``links``: none, as if nothing had changed.
    """
    most = np.int64(1)
    for v in range(begin, end):
        most = max(most, degree(out, in_, both, v))
    room = new_room(most, SEARCH_STEPS * most)
    read = np.int64(0)
    for v in range(begin, end):
        n, twice, more = _recount(v, links, out, in_, both, weigh, room)
        read += more
        flags = WRONG_TALLY if twice != 2 * tally[v] else 0
        flags |= WRONG_NEIGHBORS if neighbors.size and np.int64(neighbors[v]) != n else 0
        wrong[v - begin] = flags
    return read


@uncounted
def _recount(
    v: Int, links: Links, out: RowView, in_: RowView, both: bool, weigh: bool, room: Room
) -> tuple[Int, Int, Int]:
    """(the links of v; its tally, twice, since each triangle is found by two neighbours; the entries read)."""
    n = list_links(out, in_, both, v, room.tails, room.row, room.arcs)
    read: Int = degree(out, in_, both, v)
    twice: Int = np.uint64(0)
    for k in range(n):
        u = np.int64(room.row[k])
        its = degree(out, in_, both, u)
        if SEARCH_STEPS * n < its:
            read += n
            found = look_up(
                room.row, room.arcs, n, u, links, out, in_, both, room.hits, room.hit_arcs, room.hit_others
            )
        else:
            read += its
            m = list_links(out, in_, both, u, room.tails, room.other, room.other_arcs)
            if SEARCH_STEPS * its < n:
                found = halve(
                    room.other,
                    room.other_arcs,
                    m,
                    room.row,
                    room.arcs,
                    n,
                    room.hits,
                    room.hit_others,
                    room.hit_arcs,
                )
            else:
                found = merge(
                    room.row,
                    room.arcs,
                    n,
                    room.other,
                    room.other_arcs,
                    m,
                    room.hits,
                    room.hit_arcs,
                    room.hit_others,
                )
        if weigh:
            for h in range(found):
                twice += np.uint64(room.hit_others[h] >> NOW_SHIFT)
        else:
            twice += np.uint64(found)
    return n, twice, read
