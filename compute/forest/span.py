"""Spanning a whole graph: the forest of ``components`` from scratch.

Breadth first by levels, pushing small frontiers and pulling to large ones (Beamer, Asanovic, Patterson,
"Direction-Optimizing Breadth-First Search", SC 2012). Levels keep the trees shallow, on which the climbs of later
deletions depend. Pulls, rows of hubs that are pushed, and passes over all vertices or the members of a tree are
shared by pieces; the forest does not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import fetch_add
from ...gpma.edges import LOW, NO_VERTEX, Keys, Vertices
from ...gpma.intrinsics import prefetch, prefetch_to_read, uncounted, uncounted_inner
from ...gpma.rows import NEAR, SWEEP_PIECE, ask_for_leaf, cut_row, first_held, open_rows, runs, runs_on
from ...gpma.splice import spliced
from ...gpma.team import at_most, share
from .forest import LEVEL_STEP, N_FREE, N_USED

_ONE = np.uint64(1)

# Pull where the frontier has more than one in so many of the edges that the vertices in no tree have: pulling
# reads few of those when most of them have a neighbour on the frontier, and all when none has. So at most three
# times all edges are read, whatever the shape.
_PULL_SHARE = 2
# Passing a vertex in a sweep costs this share of pushing an edge.
_SWEEP_SHARE = 16

# So many vertices' rows are asked for before the first of them is read.
_TOGETHER = 256
# So many vertices of a sweep are worth sharing.
_PARALLEL_MIN = 1 << 15
# So many edges of one row are worth pushing by all threads; and so far ahead a push asks for what it will read.
_LONG_ROW = 1 << 14
_AHEAD = 16

# As in ``forest.py``, they allocate nothing.
_jit: Any = uncounted
_inner: Any = uncounted_inner
# For what runs once per vertex: a call that hands over these tuples of arrays costs more than its work.
_inline = nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")


class Reach(NamedTuple):
    """What spanning works on.

    ``queue`` and ``found`` uint32[n]; ``held`` uint64[(n + 63) // 64]: a bitmap of the tree, and ``fresh``, what
    a pull makes of it; ``counts`` and ``edges`` int64 by piece of a sweep: vertices found, and the edges that they
    have; ``left`` likewise: those that still look for a tree, and some that one holds by now, -1 before they are
    listed; ``slots`` likewise, where each piece of a long row begins; ``cursor`` int64[32]: the next piece, the
    edges read. Of each thread, for vertices that are looked at together: ``opens`` int64[threads,
    NEAR * _TOGETHER], where their rows begin, and ``looking`` uint32[threads, _TOGETHER]. (The lists of those that
    look take the room of the forest's free handles, of which there are none in the end.)
    """

    queue: Vertices
    found: Vertices
    held: Keys
    fresh: Keys
    counts: npt.NDArray[np.int64]
    edges: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    cursor: npt.NDArray[np.int64]
    opens: npt.NDArray[np.int64]
    looking: Vertices


NEXT, READ = 0, 16


def new_reach(n: int, threads: int, queue: Vertices, found: Vertices) -> Reach:
    """For so many vertices, in columns that have room for them."""
    counts, edges, left, slots = np.full((4, -(-n // SWEEP_PIECE)), -1, np.int64)
    held, fresh = np.empty((2, (n + 63) // 64), np.uint64)
    cursor = np.zeros(32, np.int64)
    opens, looking = np.empty((threads, NEAR * _TOGETHER), np.int64), np.empty((threads, _TOGETHER), np.uint32)
    return Reach(queue, found, held, fresh, counts, edges, left, slots, cursor, opens, looking)


@_inline
def _edges_of(out, in_, both, v):  # type: ignore[no-untyped-def]
    return np.int64(out.degrees[v]) + (np.int64(in_.degrees[v]) if both else 0)


@_inline
def _take(forest, v, h, parent, level):  # type: ignore[no-untyped-def]
    """Take v into tree h."""
    forest.handle[v] = h
    forest.parent[v] = parent
    forest.level[v] = level


@_inline
@spliced
def _push_row(forest, rows, u, h, level, queue, tail):  # type: ignore[no-untyped-def]
    """Take the neighbours of u in this row that no tree holds yet into tree h: the new tail."""
    for slot, stop in runs(rows, u):
        for i in range(slot, stop):
            v = np.int64(rows.keys[i] & LOW)
            if forest.handle[v] == NO_VERTEX:
                _take(forest, v, h, u, level)
                queue[tail] = v
                tail += 1
    return tail


@_inline
def _ask_for_rows(rows, queue, i, end):  # type: ignore[no-untyped-def]
    """Ask for rows that will be pushed soon, where that of queue[i] is, the last being that of queue[end - 1]."""
    place = np.int64(queue[min(i + _AHEAD, end - 1)])
    prefetch_to_read(rows.degrees, place)
    prefetch_to_read(rows.row_leaf, place)
    leaf = np.int64(rows.row_leaf[queue[min(i + _AHEAD // 2, end - 1)]])
    prefetch_to_read(rows.counts, leaf)
    ask_for_leaf(rows.keys, leaf, rows.leaf_shift)


@_inner
@spliced
def _push_pieces(t, forest, rows, out, in_, both, u, h, level, reach):  # type: ignore[no-untyped-def]
    """Take the neighbours of u that no tree holds yet, in pieces of its row drawn from the cursor.

    A row names each once, so that no two threads take one. Those of a piece go to its part of ``found``.
    """
    keys, found, degree = rows.keys, reach.found, np.int64(rows.degrees[u])
    while True:
        piece = fetch_add(reach.cursor, NEXT, np.int64(1))
        begin = piece * SWEEP_PIECE
        if begin >= degree:
            break
        end = begin
        for slot, stop in runs_on(rows, reach.slots[piece], min(np.int64(SWEEP_PIECE), degree - begin)):
            for i in range(slot, stop):
                prefetch(forest.handle, np.int64(keys[i] & LOW))
            for i in range(slot, stop):
                v = np.int64(keys[i] & LOW)
                if forest.handle[v] == NO_VERTEX:
                    _take(forest, v, h, u, level)
                    found[end] = v
                    end += 1
        reach.counts[piece] = end - begin
        reach.edges[piece] = _edges_of_all(out, in_, both, found, begin, end)


@_inner
def _edges_of_all(out, in_, both, vertices, begin, end):  # type: ignore[no-untyped-def]
    """The edges of vertices[begin:end]."""
    edges = np.int64(0)
    for k in range(begin, end):
        ahead = np.int64(vertices[min(k + _AHEAD, end - 1)])
        prefetch_to_read(out.degrees, ahead)
        if both:
            prefetch_to_read(in_.degrees, ahead)
        edges += _edges_of(out, in_, both, vertices[k])
    return edges


@_inner
def _push_long(forest, rows, out, in_, both, u, h, level, reach, tail, crew):  # type: ignore[no-untyped-def]
    """``_push_row`` by all threads: (the new tail, the edges of those that were taken)."""
    queue = reach.queue
    n_pieces = cut_row(rows, u, SWEEP_PIECE, reach.slots)
    reach.cursor[NEXT] = 0
    share(at_most(crew, n_pieces), _push_pieces, (forest, rows, out, in_, both, u, h, level, reach))
    edges = np.int64(0)
    for piece in range(n_pieces):
        begin = piece * SWEEP_PIECE
        for i in range(begin, begin + reach.counts[piece]):
            queue[tail] = reach.found[i]
            tail += 1
        edges += reach.edges[piece]
    return tail, edges


@_inline
@spliced
def _find_held(rows, slot, v, held):  # type: ignore[no-untyped-def]
    """A neighbour of v, whose row begins at ``slot``, that the bitmap holds, or -1; and the edges read."""
    degree = np.int64(rows.degrees[v])
    if degree == 0:
        return np.int64(-1), np.int64(0)
    # Most find one right away, and need not know where their row ends.
    first, _ = first_held(rows.keys, slot, slot + 1, held)
    read = np.int64(1)
    if first >= 0:
        return first, read
    for begin, stop in runs_on(rows, slot + 1, degree - 1):
        u, behind = first_held(rows.keys, begin, stop, held)
        read += behind - begin
        if u >= 0:
            return u, read
    return np.int64(-1), read


@_inner
def _hold(held, queue, begin, end):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        v = np.uint64(queue[i])
        held[v >> np.uint64(6)] |= _ONE << (v & np.uint64(63))


@_inner
def _list_waiting(forest, begin, end, out, in_, both, waiting):  # type: ignore[no-untyped-def]
    """Vertices begin .. end - 1 that have edges and are in no tree stand in ``waiting[begin:]``: their end there.

    Listing them takes no branch, as whether a vertex waits is a toss-up.
    """
    end_waiting = np.int64(begin)
    for v in range(begin, end):
        waiting[end_waiting] = v
        end_waiting += np.int64(forest.handle[v] == NO_VERTEX) & np.int64(_edges_of(out, in_, both, v) > 0)
    return end_waiting


@_inner
def _pull_pieces(t, forest, n, out, in_, both, h, level, held, fresh, reach, waiting):  # type: ignore[no-untyped-def]
    """Vertices in no tree, in pieces drawn from the cursor, look for a neighbour in the bitmap.

    Those that find one go to ``fresh``, with what the bitmap holds, and to the begin of their piece's part of
    ``found``; those that still look to the begin of its part of ``waiting``.
    """
    opens, looking = reach.opens[t], reach.looking[t]
    read_all = np.int64(0)
    while True:
        begin = fetch_add(reach.cursor, NEXT, np.int64(SWEEP_PIECE))
        if begin >= n:
            break
        piece = begin // SWEEP_PIECE
        piece_end = min(begin + SWEEP_PIECE, n)
        for k in range(begin >> 6, (piece_end + 63) >> 6):
            fresh[k] = held[k]
        end_waiting = begin + reach.left[piece]
        if reach.left[piece] < 0:
            end_waiting = _list_waiting(forest, begin, piece_end, out, in_, both, waiting)
        end = begin
        kept = begin
        edges = np.int64(0)
        for first in range(begin, end_waiting, _TOGETHER):
            n_looking: Any = np.int64(0)
            for k in range(first, min(first + _TOGETHER, end_waiting)):
                looking[n_looking] = waiting[k]
                n_looking += np.int64(forest.handle[waiting[k]] == NO_VERTEX)
            for side in range(2 if both else 1):
                if n_looking == 0:
                    break
                rows = out if side == 0 else in_
                open_rows(rows, looking, np.int64(0), n_looking, opens)
                missed: Any = np.int64(0)
                for k in range(n_looking):
                    v = np.int64(looking[k])
                    u, read = _find_held(rows, opens[k], v, held)
                    read_all += read
                    # Whether it finds one is a toss-up, and no branch: the link of one in no tree is nothing yet.
                    finds = np.int64(u >= 0)
                    tree = np.uint32(h) if finds else NO_VERTEX
                    _take(forest, v, tree, u, level)
                    fresh[v >> 6] |= np.uint64(finds) << np.uint64(v & 63)
                    reach.found[end] = v
                    end += finds
                    edges += finds * _edges_of(out, in_, both, v)
                    looking[missed] = v
                    missed += 1 - finds
                n_looking = missed
            for k in range(n_looking):
                waiting[kept] = looking[k]
                kept += 1
        reach.left[piece] = kept - begin
        reach.counts[piece] = end - begin
        reach.edges[piece] = edges
    fetch_add(reach.cursor, READ, read_all)


@_inner
def _append_pieces(t, n, reach):  # type: ignore[no-untyped-def]
    """What was found goes to the queue, from where ``edges`` says of each piece."""
    while True:
        begin = fetch_add(reach.cursor, NEXT, np.int64(SWEEP_PIECE))
        if begin >= n:
            break
        piece = begin // SWEEP_PIECE
        tail = reach.edges[piece]
        for i in range(reach.counts[piece]):
            reach.queue[tail + i] = reach.found[begin + i]


@_inner
def _pull_sweep(forest, n, out, in_, both, h, level, held, fresh, reach, tail, crew):  # type: ignore[no-untyped-def]
    """Every vertex in no tree looks for a neighbour in the bitmap, of tree h: (new tail, edges of the new).

    The queue does not have those that were found before ``_append`` takes them there.
    """
    counts, edges = reach.counts, reach.edges
    reach.cursor[NEXT] = 0
    if n < _PARALLEL_MIN:
        _pull_pieces(np.int64(0), forest, n, out, in_, both, h, level, held, fresh, reach, forest.free)
    else:
        share(crew, _pull_pieces, (forest, n, out, in_, both, h, level, held, fresh, reach, forest.free))
    ahead = np.int64(0)
    for piece in range(counts.size):
        ahead += edges[piece]
        edges[piece] = tail
        tail += counts[piece]
    return tail, ahead


@_inner
def _append(n, reach, crew):  # type: ignore[no-untyped-def]
    """Take what the last pull found to the queue."""
    reach.cursor[NEXT] = 0
    if n < _PARALLEL_MIN:
        _append_pieces(np.int64(0), n, reach)
    else:
        share(at_most(crew, reach.counts.size), _append_pieces, (n, reach))


@_inner
def _link_pieces(t, forest, queue, begin, end, cursor):  # type: ignore[no-untyped-def]
    """Link the members of a tree, queue[begin:end], in pieces drawn from the cursor."""
    while True:
        first = fetch_add(cursor, NEXT, np.int64(SWEEP_PIECE))
        if first >= end:
            break
        for i in range(first, min(first + SWEEP_PIECE, end)):
            v = queue[i]
            forest.next[v] = queue[i + 1] if i + 1 < end else queue[begin]
            forest.prev[v] = queue[i - 1] if i > begin else queue[end - 1]


@_inner
def _link_within(t, forest, n, h, reach):  # type: ignore[no-untyped-def]
    """Link the members of tree h within pieces of all vertices, drawn from the cursor, as they ascend.

    ``counts`` and ``edges`` of each piece get the first of its members, -1: none, and the last.
    """
    while True:
        begin = fetch_add(reach.cursor, NEXT, np.int64(SWEEP_PIECE))
        if begin >= n:
            break
        end = min(begin + SWEEP_PIECE, n)
        first = np.int64(begin)
        while first < end and forest.handle[first] != h:
            first += 1
        last: Any = first
        for v in range(first + 1, end):
            # A toss-up, and no branch: the last one's next is right when all have been there.
            is_member = forest.handle[v] == h
            forest.next[last] = v
            forest.prev[v] = np.uint32(last) if is_member else forest.prev[v]
            last = v if is_member else last
        reach.counts[begin // SWEEP_PIECE] = first if first < end else np.int64(-1)
        reach.edges[begin // SWEEP_PIECE] = last


@_inner
def _link_all(forest, n, h, root, reach, crew):  # type: ignore[no-untyped-def]
    """Link the members of tree h, of whom there are many; ``root`` is one."""
    reach.cursor[NEXT] = 0
    if n < _PARALLEL_MIN:
        _link_within(np.int64(0), forest, n, h, reach)
    else:
        share(at_most(crew, reach.counts.size), _link_within, (forest, n, h, reach))
    first = last = np.int64(root)
    linked = False
    for piece in range(reach.counts.size):
        if reach.counts[piece] >= 0:
            if linked:
                forest.next[last] = reach.counts[piece]
                forest.prev[reach.counts[piece]] = last
            else:
                first = reach.counts[piece]
                linked = True
            last = reach.edges[piece]
    forest.next[last] = first
    forest.prev[first] = last


@_inner
def _span_tree(forest, n, unheld, root, h, out, in_, both, reach, begin, crew):  # type: ignore[no-untyped-def]
    """Span the component of ``root`` by levels, pushing small frontiers and pulling to large ones.

    ``unheld``: the edges of all vertices in no tree, both ways. The vertices of this one go to ``queue[begin:]``:
    (end, ``unheld`` without them).
    """
    queue, held, fresh = reach.queue, reach.held, reach.fresh
    _take(forest, root, h, NO_VERTEX, 0)
    queue[begin] = root
    head = begin
    tail = begin + np.int64(1)
    level = np.int64(0)
    ahead = _edges_of(out, in_, both, root)
    held_end = np.int64(-1)  # up to here what was queued is in the bitmap
    is_listed = True  # the queue has all of the frontier
    while head < tail:
        level_end = tail
        level += LEVEL_STEP
        unheld -= ahead
        if unheld == 0:
            break
        if ahead * _PULL_SHARE > unheld and ahead * _SWEEP_SHARE > n:
            if held_end < 0:
                held[:] = np.uint64(0)
                held_end = begin
            _hold(held, queue, held_end, level_end)
            tail, ahead = _pull_sweep(forest, n, out, in_, both, h, level, held, fresh, reach, tail, crew)
            held, fresh = fresh, held
            held_end = tail
            is_listed = False
        else:
            if not is_listed:
                _append(n, reach, crew)
                is_listed = True
            reach.cursor[READ] += ahead
            ahead = np.int64(0)
            for i in range(head, level_end):
                u = np.int64(queue[i])
                for side in range(2 if both else 1):
                    rows = out if side == 0 else in_
                    _ask_for_rows(rows, queue, i, level_end)
                    if rows.degrees[u] >= _LONG_ROW:
                        tail, edges = _push_long(forest, rows, out, in_, both, u, h, level, reach, tail, crew)
                        ahead += edges
                        continue
                    before = tail
                    tail = _push_row(forest, rows, u, h, level, queue, tail)
                    for k in range(before, tail):
                        ahead += _edges_of(out, in_, both, queue[k])
        head = level_end
    forest.size[h] = tail - begin
    if tail - begin == 1:
        forest.representative[h] = root
    reach.cursor[NEXT] = begin
    if held_end >= 0:
        _link_all(forest, n, h, root, reach, crew)
    elif tail - begin < _PARALLEL_MIN:
        _link_pieces(np.int64(0), forest, queue, begin, tail, reach.cursor)
    else:
        share(crew, _link_pieces, (forest, queue, begin, tail, reach.cursor))
    return tail, unheld


@_inner
def _clear_pieces(t, forest, n, out, reach):  # type: ignore[no-untyped-def]
    """No vertex is in a tree any more; ``counts`` of each piece gets the most out-edges that one of it has."""
    while True:
        begin = fetch_add(reach.cursor, NEXT, np.int64(SWEEP_PIECE))
        if begin >= n:
            break
        end = min(begin + SWEEP_PIECE, n)
        forest.handle[begin:end] = NO_VERTEX
        forest.size[begin:end] = 0
        forest.representative[begin:end] = NO_VERTEX
        most = np.uint32(0)
        for v in range(begin, end):
            most = max(most, out.degrees[v])
        reach.counts[begin // SWEEP_PIECE] = most


@_inner
def _hub(n, out, counts):  # type: ignore[no-untyped-def]
    """The first vertex of those with the most out-edges, of which ``counts`` has the most of each piece."""
    best: Any = np.int64(0)
    for piece in range(counts.size):
        best = piece if counts[piece] > counts[best] else best
    hub = best * SWEEP_PIECE
    while hub < n - 1 and np.int64(out.degrees[hub]) < counts[best]:
        hub += 1
    return hub


@_inner
def _part_pieces(t, forest, n, out, in_, both, reach):  # type: ignore[no-untyped-def]
    """Of the vertices in no tree, ``counts`` of each piece gets how many have no edges; the others go to the begin
    of its part of ``found``, as many as ``edges`` then says."""
    while True:
        begin = fetch_add(reach.cursor, NEXT, np.int64(SWEEP_PIECE))
        if begin >= n:
            break
        n_lone = np.int64(0)
        end = begin
        for v in range(begin, min(begin + SWEEP_PIECE, n)):
            if forest.handle[v] == NO_VERTEX:
                lone = _edges_of(out, in_, both, v) == 0
                n_lone += np.int64(lone)
                reach.found[end] = v
                end += np.int64(not lone)
        reach.counts[begin // SWEEP_PIECE] = n_lone
        reach.edges[begin // SWEEP_PIECE] = end - begin


@_inner
def _lone_pieces(t, forest, n, out, in_, both, reach):  # type: ignore[no-untyped-def]
    """Vertices without edges are trees of their own, with handles from where ``counts`` says of each piece."""
    while True:
        begin = fetch_add(reach.cursor, NEXT, np.int64(SWEEP_PIECE))
        if begin >= n:
            break
        h = reach.counts[begin // SWEEP_PIECE]
        for v in range(begin, min(begin + SWEEP_PIECE, n)):
            if forest.handle[v] == NO_VERTEX and _edges_of(out, in_, both, v) == 0:
                _take(forest, v, h, NO_VERTEX, 0)
                forest.next[v] = v
                forest.prev[v] = v
                forest.size[h] = 1
                forest.representative[h] = v
                h += 1


@nb.njit(cache=True, nogil=True, error_model="numpy")
def span(forest, n, n_arcs, out, in_, both, reach, crew):  # type: ignore[no-untyped-def]
    """Span the whole graph, first the component of the vertex with the most out-edges; the edges read.

    Representatives of trees of two and more are not set.
    """
    cursor = reach.cursor
    shared = at_most(crew, np.int64(1) if n < _PARALLEL_MIN else crew.threads)
    cursor[NEXT] = 0
    cursor[READ] = 0
    share(shared, _clear_pieces, (forest, n, out, reach))
    # Where the edges are, the largest component most likely is.
    first_root = _hub(n, out, reach.counts)
    h = np.int64(0)
    begin = np.int64(0)
    unheld = 2 * n_arcs if both else n_arcs
    if first_root < n and _edges_of(out, in_, both, first_root) > 0:
        begin, unheld = _span_tree(forest, n, unheld, first_root, h, out, in_, both, reach, begin, crew)
        h += 1
    cursor[NEXT] = 0
    share(shared, _part_pieces, (forest, n, out, in_, both, reach))
    n_roots = np.int64(0)
    for piece in range(reach.counts.size):
        n_lone = reach.counts[piece]
        reach.counts[piece] = h
        h += n_lone
        n_roots += reach.edges[piece]
    roots = np.empty(n_roots, np.uint32)
    n_roots = np.int64(0)
    for piece in range(reach.counts.size):
        for i in range(reach.edges[piece]):
            roots[n_roots] = reach.found[piece * SWEEP_PIECE + i]
            n_roots += 1
    cursor[NEXT] = 0
    share(shared, _lone_pieces, (forest, n, out, in_, both, reach))
    for k in range(n_roots):
        root = np.int64(roots[k])
        if forest.handle[root] == NO_VERTEX:
            begin, unheld = _span_tree(forest, n, unheld, root, h, out, in_, both, reach, begin, crew)
            h += 1
    forest.counts[N_FREE] = 0
    forest.counts[N_USED] = h
    return cursor[READ]
