"""Counting triangles from scratch, and for the audit.

From scratch each vertex keeps those of its links that lead *forward*, to a vertex of larger (degree, id), of which
it has at most the square root of twice the edges. A triangle is found once, at the smallest of its three vertices
(Schank, Wagner, "Finding, counting and listing all triangles in large graphs", 2005; Latapy, "Main-memory triangle
computations for very large (sparse (power-law)) graphs", 2008).
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import fetch_add
from ...gpma.edges import HALF, LOW, Int, Keys, Offsets, Vertices
from ...gpma.intrinsics import uncounted
from ...gpma.rows import RowView, find_on, runs
from ...gpma.splice import spliced
from ...gpma.team import at_most, share
from ..links import NOW_SHIFT, Arcs, list_links
from .common import SEARCH_STEPS, Room, degree, new_room

# How many vertices a thread takes at a time, to list their rows, and to count their triangles.
_ROWS = 256
_CORNERS = 64

NEXT, STEPS = 0, 16
"""What is where in a cursor (int64, a cache line apart): the next piece, and the entries read."""

# What the audit knows of a vertex: it is near; it is, and the row has led there.
_NEAR, _MET_SHIFT = np.uint8(1), np.uint8(1)

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
    # Each thread has an entry for every vertex: all together have not many more than the links.
    counting = at_most(crew, min(n // _CORNERS, 2 * (offsets[n] // max(n, 1))) + 1)
    share(counting, _count_pieces, (n, widest, weigh, offsets, heads, arcs, tally, cursor))
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


class Corner(NamedTuple):
    """What a thread needs to count the triangles of a vertex u that lead forward.

    ``place`` uint32[vertices]: of those that u leads to the place among them, counted from 1; zeros between
    vertices. ``own`` uint64: by place, what they get; zeros likewise. ``hits`` uint32 and ``hit_arcs`` uint8:
    places that one of them leads to, and the arcs on the way.
    """

    place: Vertices
    own: npt.NDArray[np.uint64]
    hits: Vertices
    hit_arcs: Arcs


@_jit
def _count_pieces(t, n, widest, weigh, offsets, heads, arcs, tally, cursor):  # type: ignore[no-untyped-def]
    corner = Corner(
        np.zeros(n, np.uint32),
        np.zeros(widest + 1, np.uint64),
        np.empty(widest + 1, np.uint32),
        np.empty(widest + 1, np.uint8),
    )
    steps = np.int64(0)
    while True:
        begin = fetch_add(cursor, NEXT, np.int64(_CORNERS))
        if begin >= n:
            break
        for u in range(begin, min(begin + _CORNERS, n)):
            if offsets[u + 1] - offsets[u] > 1:
                steps += _count_corner(u, weigh, offsets, heads, arcs, tally, corner)
    fetch_add(cursor, STEPS, steps)


@uncounted
def _count_corner(
    u: Int,
    weigh: bool,
    offsets: Offsets,
    heads: Vertices,
    arcs: Arcs,
    tally: npt.NDArray[np.uint64],
    corner: Corner,
) -> Int:
    """Count the triangles of which u is the smallest vertex: the entries looked at."""
    place, own, hits, hit_arcs = corner.place, corner.own, corner.hits, corner.hit_arcs
    first, end = offsets[u], offsets[u + 1]
    total, steps = np.uint64(0), np.int64(0)
    for p in range(first, end):
        place[heads[p]] = p - first + 1
    for p in range(first, end):
        begin, stop = offsets[heads[p]], offsets[heads[p] + 1]
        steps += stop - begin
        # Without branches, since a third of them would be wrong.
        found = np.int64(0)
        if weigh:
            for j in range(begin, stop):
                at = place[heads[j]]
                hits[found] = at
                hit_arcs[found] = arcs[j]
                found += at != 0
            mine = np.uint64(0)
            for h in range(found):
                own[hits[h]] += np.uint64(arcs[p])
                mine += np.uint64(arcs[first + np.int64(hits[h]) - 1])
                total += np.uint64(hit_arcs[h])
            own[p - first + 1] += mine
        else:
            for j in range(begin, stop):
                at = place[heads[j]]
                hits[found] = at
                found += at != 0
            for h in range(found):
                own[hits[h]] += np.uint64(1)
            own[p - first + 1] += np.uint64(found)
            total += np.uint64(found)
    if total:
        fetch_add(tally, u, total)
    for p in range(first, end):
        place[heads[p]] = 0
        k = p - first + 1
        if own[k]:
            fetch_add(tally, np.int64(heads[p]), own[k])
            own[k] = 0
    return steps


# -- the audit ----------------------------------------------------------------------------------------------------


@_jit
def audit(out, in_, both, weigh, near, tally, neighbors, begin, end, wrong):  # type: ignore[no-untyped-def]
    """Count the triangles of vertices begin .. end - 1 one by one; bits to ``wrong``; the entries read.

    ``near`` uint8, of all vertices: zeros, and so left.
    """
    most = np.int64(1)
    for v in range(begin, end):
        most = max(most, degree(out, in_, both, v))
    room = new_room(most, np.int64(0))
    ranked = np.empty(most, np.uint64)
    read = np.int64(0)
    for v in range(begin, end):
        n = list_links(out, in_, both, v, room.tails, room.row, room.arcs)
        for k in range(n):
            its = np.uint64(degree(out, in_, both, np.int64(room.row[k])))
            ranked[k] = its << HALF | np.uint64(room.row[k])
        ranked[:n].sort()
        counted, more = _recount(ranked, n, out, in_, both, weigh, near)
        read += more + degree(out, in_, both, v)
        flags = WRONG_TALLY if counted != tally[v] else 0
        flags |= WRONG_NEIGHBORS if neighbors.size and np.int64(neighbors[v]) != n else 0
        wrong[v - begin] = flags
    return read


@uncounted
def _recount(
    ranked: Keys, n: Int, out: RowView, in_: RowView, both: bool, weigh: bool, near: npt.NDArray[np.uint8]
) -> tuple[Int, Int]:
    """What the links among the n neighbours of a vertex add up to; and the entries read.

    ``ranked``: ``degree << 32 | vertex`` of each, ascending. A link is looked for at the end that comes first: in
    its whole row, or, where few neighbours come later, by looking these up. So the row of a hub is not read for
    every neighbour that it has.
    """
    for k in range(n):
        near[ranked[k] & LOW] = _NEAR
    total, read = np.uint64(0), np.int64(0)
    for k in range(n):
        u, its = np.int64(ranked[k] & LOW), np.int64(ranked[k] >> HALF)
        near[u] = 0  # what is near from here on comes later
        if SEARCH_STEPS * (n - 1 - k) < its:
            read += n - 1 - k
            total += _arcs_to(ranked, k + 1, n, u, out, in_, both, weigh)
        else:
            read += its
            total += _arcs_near(u, out, in_, both, weigh, near)
    return total, read


@uncounted
@spliced
def _arcs_near(u: Int, out: RowView, in_: RowView, both: bool, weigh: bool, near: npt.NDArray[np.uint8]) -> Int:
    """How many links, or if ``weigh`` arcs, u has with the vertices that are near."""
    found = np.int64(0)
    for slot, stop in runs(out, u):
        for i in range(slot, stop):
            found += near[out.keys[i] & LOW]
    if not both:
        return np.uint64(2 * found if weigh else found)
    if weigh:
        for slot, stop in runs(in_, u):
            for i in range(slot, stop):
                found += near[in_.keys[i] & LOW]
        return np.uint64(found)
    for slot, stop in runs(out, u):
        for i in range(slot, stop):
            w = out.keys[i] & LOW
            near[w] |= near[w] << _MET_SHIFT
    for slot, stop in runs(in_, u):
        for i in range(slot, stop):
            found += near[in_.keys[i] & LOW] == _NEAR
    for slot, stop in runs(out, u):
        for i in range(slot, stop):
            near[out.keys[i] & LOW] &= _NEAR
    return np.uint64(found)


@uncounted
def _arcs_to(
    ranked: Keys, begin: Int, end: Int, u: Int, out: RowView, in_: RowView, both: bool, weigh: bool
) -> Int:
    """The same with the vertices ranked[begin:end]."""
    found = np.int64(0)
    for k in range(begin, end):
        key = np.uint64(u) << HALF | ranked[k] & LOW
        arcs = np.int64(0)
        if out.degrees[u] > 0:
            arcs += find_on(out, np.int64(out.row_leaf[u]), key)[1] >= 0
        if both and in_.degrees[u] > 0:
            arcs += find_on(in_, np.int64(in_.row_leaf[u]), key)[1] >= 0
        if weigh:
            found += arcs if both else 2 * arcs
        else:
            found += arcs > 0
    return np.uint64(found)
