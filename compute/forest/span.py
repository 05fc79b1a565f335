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
from ...gpma.drawing import drawn_by
from ...gpma.edges import LOW, NO_VERTEX, Keys, Vertices
from ...gpma.intrinsics import lowest_bit, prefetch, prefetch_to_read, uncounted_inner
from ...gpma.rows import (
    NEAR,
    SWEEP_PIECE,
    ask_for_leaf,
    count_edges,
    cut_row,
    first_held,
    first_held_of_all,
    open_rows,
    runs,
    runs_on,
)
from ...gpma.splice import spliced
from ...gpma.team import at_most, for_much, share
from .forest import LEVEL_STEP, N_FREE, N_USED, bits_of

_ONE = np.uint64(1)

# Pull where the frontier has more than one in so many of the edges that the vertices in no tree have: pulling
# reads few of those when most of them have a neighbour on the frontier, and all when none has. So at most three
# times all edges are read, whatever the shape.
_PULL_SHARE = 2
# Passing a vertex in a sweep costs this share of pushing an edge.
_SWEEP_SHARE = 16

# To find a row takes as long as to read so many edges as they come.
_ROW_EDGES = 16
# So many vertices' rows are asked for before the first of them is read.
_TOGETHER = 256
# So many vertices of a sweep are worth sharing.
_PARALLEL_MIN = 1 << 15
# So many edges of one row are worth pushing by all threads; and so far ahead a push asks for what it will read.
_LONG_ROW = 1 << 14
_AHEAD = 16

# As in ``forest.py``, they allocate nothing.
_inner: Any = uncounted_inner
# For what runs once per vertex: a call that hands over these tuples of arrays costs more than its work.
_inline = nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")


class Reach(NamedTuple):
    """What spanning works on.

    ``queue`` and ``found`` uint32[n]; ``held`` uint64[(n + 63) // 64]: a bitmap of the tree, and ``fresh``, what
    a pull makes of it; ``counts`` and ``edges`` int64 by piece of a sweep: vertices found, and the edges that they
    have; ``left`` likewise: those that still look for a tree, and some that one holds by now, -1 before they are
    listed; ``slots`` likewise, where each piece of a long row begins, and the handles of a piece's vertices
    without edges; ``cursor`` int64[32]: the next piece, the edges read, and those of them that were read as they
    come. Of each thread, for vertices that are looked at together: ``opens`` int64[threads, NEAR * _TOGETHER],
    where their rows begin, and ``near`` uint32[threads, SWEEP_PIECE], which neighbour each vertex of a piece
    found, or ``NO_VERTEX``. (The lists of those that look take the room of the forest's free handles, of which
    there are none in the end.)
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
    near: Vertices


NEXT, READ, IN_ORDER = 0, 16, 17


def new_reach(n: int, threads: int, queue: Vertices, found: Vertices) -> Reach:
    """For so many vertices, in columns that have room for them."""
    counts, edges, left, slots = np.full((4, -(-n // SWEEP_PIECE)), -1, np.int64)
    held, fresh = np.empty((2, (n + 63) // 64), np.uint64)
    cursor = np.zeros(32, np.int64)
    opens, near = np.empty((threads, NEAR * _TOGETHER), np.int64), np.empty((threads, SWEEP_PIECE), np.uint32)
    return Reach(queue, found, held, fresh, counts, edges, left, slots, cursor, opens, near)


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
    n_pieces = cut_row(rows, u, reach.slots)
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
    """A neighbour of v, whose row begins at ``slot``, that the bitmap holds, or ``NO_VERTEX``; and the
    edges read."""
    degree = np.int64(rows.degrees[v])
    if degree == 0:
        return np.int64(NO_VERTEX), np.int64(0)
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
    return np.int64(NO_VERTEX), read


@_inner
def _hold(held, queue, begin, end):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        v = np.uint64(queue[i])
        held[v >> np.uint64(6)] |= _ONE << (v & np.uint64(63))


@_inner
def _count_waiting(handle, near, degrees):  # type: ignore[no-untyped-def]
    """How many of a piece's vertices look along such rows: in no tree, nothing near yet, and with edges."""
    n_waiting = np.int64(0)
    for j in range(handle.size):
        n_waiting += np.int64((handle[j] == NO_VERTEX) & (near[j] == NO_VERTEX) & (degrees[j] > 0))
    return n_waiting


@_inner
def _list_waiting(handle, near, degrees, begin, waiting):  # type: ignore[no-untyped-def]
    """Those of ``_count_waiting`` to ``waiting``. It takes no branch, as whether a vertex waits is a toss-up."""
    n_waiting = np.int64(0)
    for j in range(handle.size):
        waiting[n_waiting] = begin + j
        n_waiting += np.int64((handle[j] == NO_VERTEX) & (near[j] == NO_VERTEX) & (degrees[j] > 0))


@_inner
def _take_near(handle, parent, level, near, h, height, fresh):  # type: ignore[no-untyped-def]
    """Of a piece's vertices those in no tree go to that of what is near them, and to the bitmap ``fresh``: how
    many.

    A loop for each column, so that many vertices are done by one instruction.
    """
    n_taken = np.int64(0)
    for j in range(near.size):
        near[j] = near[j] if handle[j] == NO_VERTEX else NO_VERTEX
    for j in range(near.size):
        n_taken += np.int64(near[j] != NO_VERTEX)
    for j in range(near.size):
        handle[j] = np.uint32(h) if near[j] != NO_VERTEX else handle[j]
    for j in range(near.size):
        parent[j] = near[j] if near[j] != NO_VERTEX else parent[j]
    for j in range(near.size):
        level[j] = height if near[j] != NO_VERTEX else level[j]
    for k in range(fresh.size):
        taken = np.uint64(0)
        of_word = near[k << 6 : (k + 1) << 6]
        for bit in range(of_word.size):
            taken |= np.uint64(of_word[bit] != NO_VERTEX) << np.uint64(bit)
        fresh[k] |= taken
    return n_taken


@_inner
def _count_taken_edges(near, degrees):  # type: ignore[no-untyped-def]
    edges = np.int64(0)
    for j in range(near.size):
        edges += np.int64(degrees[j]) if near[j] != NO_VERTEX else np.int64(0)
    return edges


@_inner
def _list_left(fresh, begin, end, out, in_, both, waiting):  # type: ignore[no-untyped-def]
    """Vertices begin .. end - 1 that have edges and are not in the bitmap, to ``waiting[begin:]``: how many."""
    n_left = np.int64(0)
    for k in range(begin >> 6, (end + 63) >> 6):
        outside = ~fresh[k]
        while outside:
            v = (k << 6) + lowest_bit(outside)
            outside &= outside - _ONE
            if v < end:
                waiting[begin + n_left] = v
                n_left += np.int64(_edges_of(out, in_, both, v) > 0)
    return n_left


@_inner
def _look_along(rows, vertices, held, near, begin, opens):  # type: ignore[no-untyped-def]
    """The first neighbour in the bitmap of each of these vertices, whose rows are looked for, to ``near``, which
    has those from ``begin`` on: the edges read."""
    read_all = np.int64(0)
    for first in range(0, vertices.size, _TOGETHER):
        last = min(first + _TOGETHER, vertices.size)
        open_rows(rows, vertices, first, last, opens)
        for k in range(first, last):
            v = np.int64(vertices[k])
            u, read = _find_held(rows, opens[k - first], v, held)
            near[v - begin] = u
            read_all += read
    return read_all


@_inner
def _pull_all(forest, out, in_, both, begin, end, h, level, held, fresh, near, waiting, opens):  # type: ignore[no-untyped-def]
    """Of vertices begin .. end - 1 those in no tree look for a neighbour in the bitmap: (how many find one, the
    edges that these have, the edges read, those of them read as they come)."""
    read = in_order = np.int64(0)
    handle = forest.handle[begin:end]
    near[:] = NO_VERTEX
    for side in range(2 if both else 1):
        rows = out if side == 0 else in_
        degrees = rows.degrees[begin:end]
        n_waiting = _count_waiting(handle, near, degrees)
        n_edges = count_edges(rows, begin, end) if n_waiting > 0 else np.int64(0)
        if n_edges < n_waiting * _ROW_EDGES:
            first_held_of_all(rows, begin, end, n_edges, held, near)
            in_order += n_edges
        else:
            _list_waiting(handle, near, degrees, begin, waiting)
            read += _look_along(rows, waiting[:n_waiting], held, near, begin, opens)
    words = fresh[begin >> 6 : (end + 63) >> 6]
    taken = _take_near(handle, forest.parent[begin:end], forest.level[begin:end], near, h, level, words)
    edges = _count_taken_edges(near, out.degrees[begin:end])
    if both:
        edges += _count_taken_edges(near, in_.degrees[begin:end])
    return taken, edges, read + in_order, in_order


@_inner
def _pull_left(forest, out, in_, both, begin, h, level, held, fresh, near, waiting, opens):  # type: ignore[no-untyped-def]
    """``_pull_all`` of those in ``waiting`` alone, some of whom may be in a tree by now: (how many find one, the
    edges that these have, the edges read, how many still look, who come to the front)."""
    read = taken = edges = np.int64(0)
    kept: Any = np.int64(0)
    for k in range(waiting.size):
        waiting[kept] = waiting[k]
        kept += np.int64(forest.handle[waiting[k]] == NO_VERTEX)
    for side in range(2 if both else 1):
        rows = out if side == 0 else in_
        looking: Any = kept
        read += _look_along(rows, waiting[:looking], held, near, begin, opens)
        kept = np.int64(0)
        for k in range(looking):
            v = np.int64(waiting[k])
            waiting[kept] = v
            if near[v - begin] == NO_VERTEX:
                kept += 1
                continue
            _take(forest, v, h, near[v - begin], level)
            fresh[v >> 6] |= _ONE << np.uint64(v & 63)
            taken += 1
            edges += _edges_of(out, in_, both, v)
    return taken, edges, read, kept


@_inner
def _pull_pieces(t, forest, n, out, in_, both, h, level, held, fresh, reach, waiting):  # type: ignore[no-untyped-def]
    """Vertices in no tree, in pieces drawn from the cursor, look for a neighbour in the bitmap.

    Those that find one go to ``fresh``, with what the bitmap holds; those that still look to the begin of their
    piece's part of ``waiting``.
    """
    opens = reach.opens[t]
    read_all = in_order_all = np.int64(0)
    for begin in drawn_by(reach.cursor, n, SWEEP_PIECE):
        piece = begin // SWEEP_PIECE
        end = min(begin + SWEEP_PIECE, n)
        for k in range(begin >> 6, (end + 63) >> 6):
            fresh[k] = held[k]
        near, left = reach.near[t, : end - begin], reach.left[piece]
        if left < 0:
            taken, edges, read, in_order = _pull_all(
                forest, out, in_, both, begin, end, h, level, held, fresh, near, waiting[begin:end], opens
            )
            in_order_all += in_order
            left = _list_left(fresh, begin, end, out, in_, both, waiting)
        else:
            taken, edges, read, left = _pull_left(
                forest, out, in_, both, begin, h, level, held, fresh, near, waiting[begin : begin + left], opens
            )
        reach.counts[piece], reach.edges[piece], reach.left[piece] = taken, edges, left
        read_all += read
    fetch_add(reach.cursor, READ, read_all)
    fetch_add(reach.cursor, IN_ORDER, in_order_all)


@_inner
def _append_pieces(t, n, held, before, reach):  # type: ignore[no-untyped-def]
    """What a bitmap holds that it did not hold before goes to the queue, from where ``edges`` says of each
    piece."""
    for begin in drawn_by(reach.cursor, n, SWEEP_PIECE):
        tail = reach.edges[begin // SWEEP_PIECE]
        for k in range(begin >> 6, (min(begin + SWEEP_PIECE, n) + 63) >> 6):
            added = held[k] & ~before[k]
            for v in range(k << 6, (k + 1) << 6 if added else k << 6):
                if (added >> np.uint64(v & 63)) & _ONE:
                    reach.queue[tail] = v
                    tail += 1


@_inner
def _pull_sweep(forest, n, out, in_, both, h, level, held, fresh, reach, tail, crew):  # type: ignore[no-untyped-def]
    """Every vertex in no tree looks for a neighbour in the bitmap, of tree h: (new tail, edges of the new).

    The queue does not have those that were found before ``_append`` takes them there.
    """
    counts, edges = reach.counts, reach.edges
    reach.cursor[NEXT] = 0
    work = forest, n, out, in_, both, h, level, held, fresh, reach, forest.free
    share(for_much(crew, n >= _PARALLEL_MIN), _pull_pieces, work)
    ahead = np.int64(0)
    for piece in range(counts.size):
        ahead += edges[piece]
        edges[piece] = tail
        tail += counts[piece]
    return tail, ahead


@_inner
def _append(n, held, before, reach, crew):  # type: ignore[no-untyped-def]
    """Take what the last pull found to the queue."""
    reach.cursor[NEXT] = 0
    shared = at_most(for_much(crew, n >= _PARALLEL_MIN), reach.counts.size)
    share(shared, _append_pieces, (n, held, before, reach))


@_inner
def _link_pieces(t, forest, queue, begin, end, cursor):  # type: ignore[no-untyped-def]
    """Link the members of a tree, queue[begin:end], in pieces drawn from the cursor."""
    for first in drawn_by(cursor, end, SWEEP_PIECE):
        for i in range(first, min(first + SWEEP_PIECE, end)):
            v = queue[i]
            forest.next[v] = queue[i + 1] if i + 1 < end else queue[begin]
            forest.prev[v] = queue[i - 1] if i > begin else queue[end - 1]


@_inner
def _link_within(t, forest, n, h, reach):  # type: ignore[no-untyped-def]
    """Link the members of tree h within pieces of all vertices, drawn from the cursor, as they ascend.

    ``counts`` and ``edges`` of each piece get the first of its members, -1: none, and the last.
    """
    for begin in drawn_by(reach.cursor, n, SWEEP_PIECE):
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
    shared = at_most(for_much(crew, n >= _PARALLEL_MIN), reach.counts.size)
    share(shared, _link_within, (forest, n, h, reach))
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
                _append(n, held, fresh, reach, crew)
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
    else:
        linking = for_much(crew, tail - begin >= _PARALLEL_MIN)
        share(linking, _link_pieces, (forest, queue, begin, tail, reach.cursor))
    return tail, unheld


@_inner
def _clear_pieces(t, forest, n, out, reach):  # type: ignore[no-untyped-def]
    """No vertex is in a tree any more; ``counts`` of each piece gets the most out-edges that one of it has."""
    for begin in drawn_by(reach.cursor, n, SWEEP_PIECE):
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
    """Of the vertices in no tree, those without edges go to the begin of their piece's part of ``queue``, as many
    as ``counts`` then says, the others to that of ``found``, as many as ``edges`` says."""
    for begin in drawn_by(reach.cursor, n, SWEEP_PIECE):
        end = min(begin + SWEEP_PIECE, n)
        n_lone = n_roots = np.int64(0)
        for first in range(begin, end, 64):
            outside = bits_of(forest.handle[first : min(first + 64, end)], NO_VERTEX)
            while outside:
                v = first + lowest_bit(outside)
                outside &= outside - _ONE
                is_lone = np.int64(_edges_of(out, in_, both, v) == 0)
                reach.queue[begin + n_lone] = v
                n_lone += is_lone
                reach.found[begin + n_roots] = v
                n_roots += 1 - is_lone
        reach.counts[begin // SWEEP_PIECE] = n_lone
        reach.edges[begin // SWEEP_PIECE] = n_roots


@_inner
def _lone_pieces(t, forest, n, reach):  # type: ignore[no-untyped-def]
    """Vertices without edges, which ``_part_pieces`` has listed, are trees of their own, with handles from where
    ``slots`` says of each piece."""
    for begin in drawn_by(reach.cursor, n, SWEEP_PIECE):
        piece = begin // SWEEP_PIECE
        for k in range(reach.counts[piece]):
            v, h = reach.queue[begin + k], reach.slots[piece] + k
            _take(forest, v, h, NO_VERTEX, 0)
            forest.next[v] = v
            forest.prev[v] = v
            forest.size[h] = 1
            forest.representative[h] = v


@nb.njit(cache=True, nogil=True, error_model="numpy")
def span(forest, n, n_arcs, out, in_, both, reach, crew):  # type: ignore[no-untyped-def]
    """Span the whole graph, first the component of the vertex with the most out-edges: (the edges read, what that
    took, in edges of rows that are looked for).

    Representatives of trees of two and more are not set.
    """
    cursor = reach.cursor
    shared = for_much(crew, n >= _PARALLEL_MIN)
    cursor[NEXT] = 0
    cursor[READ] = cursor[IN_ORDER] = 0
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
        reach.slots[piece] = h
        h += reach.counts[piece]
        n_roots += reach.edges[piece]
    roots = np.empty(n_roots, np.uint32)
    n_roots = np.int64(0)
    for piece in range(reach.counts.size):
        for i in range(reach.edges[piece]):
            roots[n_roots] = reach.found[piece * SWEEP_PIECE + i]
            n_roots += 1
    cursor[NEXT] = 0
    share(shared, _lone_pieces, (forest, n, reach))
    for k in range(n_roots):
        root = np.int64(roots[k])
        if forest.handle[root] == NO_VERTEX:
            begin, unheld = _span_tree(forest, n, unheld, root, h, out, in_, both, reach, begin, crew)
            h += 1
    forest.counts[N_FREE] = 0
    forest.counts[N_USED] = h
    in_order = cursor[IN_ORDER]
    return cursor[READ], cursor[READ] - in_order + in_order // _ROW_EDGES
