"""Counting triangles from scratch, and for the audit.

From scratch vertices are called by *rank*: those with more entries first, and of as many the larger id. Each
keeps those of its links that lead *forward*, to smaller ranks, of which it has at most the square root of twice
the edges. A triangle is found once, at the largest of its three ranks, as two forward links whose ends are linked
(Schank, Wagner, "Finding, counting and listing all triangles in large graphs", 2005; Latapy, "Main-memory
triangle computations for very large (sparse (power-law)) graphs", 2008). Whether these are is a bit where the
larger of both ends is a *hub*, which most are. Where it is not, its forward links are gone through, with the
others' marked.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import fetch_add
from ...gpma.drawing import drawn_by
from ...gpma.edges import HALF, LOW, NO_VERTEX, Int, Keys, Offsets, Vertices
from ...gpma.intrinsics import uncounted
from ...gpma.rows import RowView, find_on, runs, runs_in_order
from ...gpma.splice import spliced
from ...gpma.team import at_most, begin_behind, share
from ..links import Arcs, entries_of, list_links
from .common import SEARCH_STEPS, new_room

# How many vertices a thread takes at a time: to list their rows, to count their triangles, and to add up.
_ROWS = 256
_CORNERS = 64
_SUMS = 1 << 14

# Ranks below this are hubs; where links are few, those below so many times the root of their number, so that the
# bits take no more memory than the links.
_HUBS_MAX = 8192
_HUBS_BY_ROOT = 8.0

# Indices are unsigned: Numba looks whether others are negative, in the innermost loops.
_0, _1, _2 = np.uint64(0), np.uint64(1), np.uint64(2)
_WORD_SHIFT, _WORD_MASK = np.uint64(6), np.uint64(63)

NEXT, STEPS = 0, 16
"""What is where in a cursor (int64, a cache line apart): the next piece, and the entries read."""

# What the audit knows of a vertex: it is near; it is, and the row has led there.
_NEAR, _MET_SHIFT = np.uint8(1), np.uint8(1)

# Bits of what ``audit`` finds at a vertex.
WRONG_TALLY, WRONG_NEIGHBORS = 1, 2

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


class Forward(NamedTuple):
    """The links that lead forward, by ranks.

    Those of rank r are ``heads[begins[r] : begins[r] + sizes[r]]``, ascending, with their ``arcs`` beside them
    where these differ, else of size 0. ``begins`` int64[n + 1], ``sizes`` uint32[n], ``heads`` uint32, ``arcs``
    uint8. Of the first ``n_hubs`` ranks bit w of the words (uint64) from ``_word_of(r)`` on says that r leads to
    w: in ``linked``, and in ``paired`` that it does so by two arcs, where they differ.
    """

    begins: Offsets
    sizes: Vertices
    heads: Vertices
    arcs: Arcs
    n_hubs: Int
    linked: Keys
    paired: Keys


class Corner(NamedTuple):
    """What a thread counts with.

    ``own`` uint64, by rank: what it has counted. ``marks`` uint8, by rank: of those that a vertex leads to their
    arcs, zeros between vertices. ``hits`` uint32: the places of forward links that close a triangle.
    """

    own: Keys
    marks: Arcs
    hits: Vertices


def bytes_to_count(n: int, n_entries: int, weigh: bool, threads: int) -> int:
    """What ``count_all`` needs for n vertices whose rows have so many entries."""
    columns = 20 * n + (5 if weigh else 4) * (n_entries + n)
    bits = min(_HUBS_MAX**2 // 16, 2 * n_entries) * (2 if weigh else 1)
    # Of each thread what it counts, the marks, and how many links lead to each vertex.
    by_thread = (13 if weigh else 9) * n
    return columns + bits + min(threads * by_thread, 13 * n_entries // 2 + by_thread)


@_jit
def count_all(out, in_, both, weigh, n, tally, neighbors, crew):  # type: ignore[no-untyped-def]
    """Count the triangles of n vertices into ``tally`` (uint64): what it costs, in steps.

    These are what a device reads: the entries of all rows, twice, and the forward links at the ends of each
    vertex's forward links. Less is read here, but a state says the same wherever it comes from.

    ``weigh``: as in ``change.py``. ``neighbors`` (uint32) gets how many links each vertex has; it may be of size
    0.
    """
    arcs_differ = weigh and both
    most = np.int64(0)
    for v in range(n):
        most = max(most, entries_of(out, in_, both, v))
    rank, vertex, begins = np.empty(n, np.uint32), np.empty(n, np.uint32), np.zeros(n + 1, np.int64)
    _rank(out, in_, both, np.zeros(most + 1, np.int64), rank, vertex, begins)
    n_entries = begins[n] - n
    n_hubs = np.int64(min(n, _HUBS_MAX, _HUBS_BY_ROOT * np.sqrt(n_entries / 2)))
    n_words = np.int64(_word_of(np.uint64(n_hubs)))
    forward = Forward(
        begins,
        np.zeros(n, np.uint32),
        np.empty(begins[n], np.uint32),
        np.empty(begins[n] if arcs_differ else 0, np.uint8),
        n_hubs,
        np.zeros(n_words, np.uint64),
        np.zeros(n_words if arcs_differ else 0, np.uint64),
    )
    cursor = np.zeros(32, np.int64)
    share(at_most(crew, n // _ROWS + 1), _list_pieces, (out, in_, both, n, most, rank, forward, cursor))
    widest = np.int64(0)
    for r in range(n):
        widest = max(widest, np.int64(forward.sizes[r]))
    cursor[NEXT] = 0
    # Each thread has a number for every vertex: all together take not much more memory than the entries.
    counting = at_most(crew, min(n // _CORNERS, n_entries // max(2 * n, 1)) + 1)
    own = np.zeros((counting.threads, n), np.uint64)
    links = np.zeros((counting.threads, n if neighbors.size else 0), np.uint32)
    share(counting, _count_pieces, (n, widest, arcs_differ, forward, own, links, cursor))
    cursor[NEXT] = 0
    weight = np.uint64(2 if weigh and not both else 1)
    adding = at_most(crew, n // _SUMS + 1)
    share(adding, _add_pieces, (n, weight, vertex, forward.sizes, own, links, tally, neighbors, cursor))
    return cursor[STEPS]


@uncounted
def _rank(
    out: RowView, in_: RowView, both: bool, places: Offsets, rank: Vertices, vertex: Vertices, begins: Offsets
) -> None:
    """Find the rank of each vertex, the vertex of each rank, and where its forward links begin.

    ``places``: zeros, one for each number of entries that a vertex has. ``begins``: zeros.
    """
    n, most = rank.size, places.size - 1
    for v in range(n):
        places[most - entries_of(out, in_, both, v)] += 1
    begin_behind(places)
    for v in range(n - 1, -1, -1):
        entries = entries_of(out, in_, both, v)
        r = places[most - entries]
        places[most - entries] += 1
        rank[v] = r
        vertex[r] = v
        # One more, for an entry that does not lead forward, while it stands where the next one will.
        begins[r + 1] = entries + 1
    for r in range(n):
        begins[r + 1] += begins[r]


@_jit
def _list_pieces(t, out, in_, both, n, most, rank, forward, cursor):  # type: ignore[no-untyped-def]
    row = np.empty(most, np.uint32)
    read = np.int64(0)
    for begin in drawn_by(cursor, n, _ROWS):
        end = min(begin + _ROWS, n)
        read += _list_forward(begin, end, out, rank, forward)
        if both:
            read += _list_forward(begin, end, in_, rank, forward)
        for v in range(begin, end):
            _put_in_order(np.int64(rank[v]), row, forward)
    fetch_add(cursor, STEPS, 2 * read)


@uncounted
@spliced
def _list_forward(begin: Int, end: Int, rows: RowView, rank: Vertices, forward: Forward) -> Int:
    """Append those entries of each vertex that lead forward to its links. Returns the entries read."""
    begins, sizes, heads = forward.begins, forward.sizes, forward.heads
    read = np.int64(0)
    for v, slot, stop, _ in runs_in_order(rows, begin, end):
        mine = rank[v]
        first = np.uint64(begins[mine]) + np.uint64(sizes[mine])
        to = first
        # Without branches, since half of them would be wrong.
        for i in range(slot, stop):
            its = rank[rows.keys[i] & LOW]
            heads[to] = its
            to += np.uint64(its < mine)
        sizes[mine] += np.uint32(to - first)
        read += stop - slot
    return read


@uncounted
def _put_in_order(r: Int, row: Vertices, forward: Forward) -> None:
    """Put the forward links of a rank in order, each once, and set its bits.

    Each goes behind as many as are smaller. They are counted by comparing all with all, which a processor does
    with many at a time: it takes less than to look up all pairs of them, as they will be.
    """
    begins, sizes, heads, arcs = forward.begins, forward.sizes, forward.heads, forward.arcs
    first, size = np.uint64(begins[r]), np.uint64(sizes[r])
    for k in range(size):
        row[k] = heads[first + k]
        heads[first + k] = NO_VERTEX
    for k in range(size):
        its, smaller = row[k], np.uint32(0)
        for other in range(size):
            smaller = np.uint32(smaller + np.uint32(row[other] < its))
        heads[first + np.uint64(smaller)] = its
    n = _0
    # Of two arcs the second has left a gap behind the first.
    for k in range(size):
        head = heads[first + k]
        heads[first + n] = head
        if arcs.size:
            arcs[first + n] = 2 if k + _1 < size and heads[first + k + _1] == NO_VERTEX else 1
        n += np.uint64(head != NO_VERTEX)
    sizes[r] = n
    if r < forward.n_hubs:
        linked, paired = forward.linked, forward.paired
        word = _word_of(np.uint64(r))
        for k in range(n):
            w = np.uint64(heads[first + k])
            bit = _1 << (w & _WORD_MASK)
            linked[word + (w >> _WORD_SHIFT)] |= bit
            if arcs.size and arcs[first + k] == 2:
                paired[word + (w >> _WORD_SHIFT)] |= bit


@uncounted
def _word_of(r: Int) -> Int:
    """Where the words of a rank begin, each of which has bits for all smaller ones, and its own."""
    whole = r >> _WORD_SHIFT
    return r + (whole * whole - whole) // _2 * np.uint64(64) + whole * (r & _WORD_MASK)


@_jit
def _count_pieces(t, n, widest, weigh, forward, own, links, cursor):  # type: ignore[no-untyped-def]
    corner = Corner(own[t], np.zeros(n, np.uint8), np.empty(widest + 1, np.uint32))
    linked = links[t]
    steps = np.uint64(0)
    for begin in drawn_by(cursor, n, _CORNERS):
        for r in range(begin, min(begin + _CORNERS, n)):
            if forward.sizes[r] > 1:
                steps += _led_on(r, forward)
                _count_corner(r, weigh, forward, corner)
            if linked.size:
                _count_links(r, forward, linked)
    fetch_add(cursor, STEPS, np.int64(steps))


@uncounted
def _count_links(r: Int, forward: Forward, linked: Vertices) -> None:
    first = np.uint64(forward.begins[r])
    for p in range(first, first + np.uint64(forward.sizes[r])):
        linked[forward.heads[p]] += np.uint32(1)


@uncounted
def _led_on(r: Int, forward: Forward) -> Int:
    """How many forward links there are at the ends of a rank's forward links."""
    steps = _0
    first = np.uint64(forward.begins[r])
    for p in range(first, first + np.uint64(forward.sizes[r])):
        steps += np.uint64(forward.sizes[forward.heads[p]])
    return steps


@uncounted
def _count_corner(r: Int, weigh: bool, forward: Forward, corner: Corner) -> None:
    """Count the triangles of which r is the largest rank."""
    begins, sizes, heads, arcs = forward.begins, forward.sizes, forward.heads, forward.arcs
    linked, paired, n_hubs = forward.linked, forward.paired, np.uint64(forward.n_hubs)
    own, marks, hits = corner.own, corner.marks, corner.hits
    first, end = np.uint64(begins[r]), np.uint64(begins[r]) + np.uint64(sizes[r])
    marked = False
    total = _0
    q: Int
    k: Int
    for p in range(first + _1, end):
        v = np.uint64(heads[p])
        # What v leads to, among what r does; without branches, since many of them would be wrong.
        found, mine = _0, _0
        if v < n_hubs:
            word = _word_of(v)
            for q in range(first, p):
                w = np.uint64(heads[q])
                hits[found] = np.uint32(q - first)
                found += linked[word + (w >> _WORD_SHIFT)] >> (w & _WORD_MASK) & _1
            for h in range(found):
                q = first + np.uint64(hits[h])
                w = np.uint64(heads[q])
                if weigh:
                    own[w] += np.uint64(arcs[p])
                    mine += np.uint64(arcs[q])
                    total += _1 + (paired[word + (w >> _WORD_SHIFT)] >> (w & _WORD_MASK) & _1)
                else:
                    own[w] += _1
        else:
            if not marked:
                marked = True
                for q in range(first, end):
                    marks[heads[q]] = arcs[q] if weigh else 1
            begin, size = np.uint64(begins[v]), np.uint64(sizes[v])
            for k in range(size):
                hits[found] = np.uint32(k)
                found += np.uint64(marks[heads[begin + k]] != 0)
            for h in range(found):
                k = np.uint64(hits[h])
                w = np.uint64(heads[begin + k])
                if weigh:
                    own[w] += np.uint64(arcs[p])
                    mine += np.uint64(marks[w])
                    total += np.uint64(arcs[begin + k])
                else:
                    own[w] += _1
        if not weigh:
            mine = found
            total += found
        own[v] += mine
    own[r] += total
    if marked:
        for q in range(first, end):
            marks[heads[q]] = 0


@_jit
def _add_pieces(t, n, weight, vertex, sizes, own, links, tally, neighbors, cursor):  # type: ignore[no-untyped-def]
    for begin in drawn_by(cursor, n, _SUMS):
        for r in range(begin, min(begin + _SUMS, n)):
            total, size = np.uint64(0), sizes[r]
            for k in range(own.shape[0]):
                total += own[k, r]
            tally[vertex[r]] = weight * total
            if neighbors.size:
                for k in range(links.shape[0]):
                    size += links[k, r]
                neighbors[vertex[r]] = size


# -- the audit ----------------------------------------------------------------------------------------------------


@_jit
def audit(out, in_, both, weigh, near, tally, neighbors, begin, end, wrong):  # type: ignore[no-untyped-def]
    """Count the triangles of vertices begin .. end - 1 one by one; bits to ``wrong``; the entries read.

    ``near`` uint8, of all vertices: zeros, and so left.
    """
    most = np.int64(1)
    for v in range(begin, end):
        most = max(most, entries_of(out, in_, both, v))
    room = new_room(most, np.int64(0))
    ranked = np.empty(most, np.uint64)
    read = np.int64(0)
    for v in range(begin, end):
        n = list_links(out, in_, both, v, room.tails, room.row, room.arcs)
        for k in range(n):
            its = np.uint64(entries_of(out, in_, both, np.int64(room.row[k])))
            ranked[k] = its << HALF | np.uint64(room.row[k])
        ranked[:n].sort()
        counted, more = _recount(ranked, n, out, in_, both, weigh, near)
        read += more + entries_of(out, in_, both, v)
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
