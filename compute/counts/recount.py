"""Shortest-path counts after a change: what is to be counted anew, and how far that goes; see ``sspaths.py``.

A vertex that is **moved** is on another level than before; ``level`` holds the one of before until its turn comes,
and the search's words the one of now.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from ...gpma.atomics import compare_swap, fetch_add, load
from ...gpma.drawing import drawn_by
from ...gpma.edges import HALF, LOW
from ...gpma.intrinsics import inner, prefetch, prefetch_to_read
from ...gpma.rows import ask_for_leaf, runs
from ...gpma.splice import spliced
from ...gpma.team import for_much, share
from .kernels import LIMIT, PARALLEL_MIN, UNREACHED, pulling_is_cheaper

# Bits of a vertex's role; between runs only LEADS is set.
QUEUED = np.uint8(1)  # it is a seed or in the queue
RECOUNT = np.uint8(2)  # its in-edges must be summed: what it is to grow by is not known
FARTHER = np.uint8(4)  # it moves to a deeper level, or to none
PUSHING = np.uint8(8)  # its successors learn of its change now
LEADS = np.uint8(16)  # it may have successors; without this it has none

_LIMIT = np.int64(LIMIT)
# With this, what a count is to grow by reaches the limit, whatever it was.
_UNKNOWN = 2 * _LIMIT

# How many vertices before its turn a row is asked for.
_AHEAD = 16
# How many vertices a thread takes at a time: to push, and of all, to pull. What they queue is gathered first.
_PUSH_PIECE = 32
_PULL_PIECE = 4096
_GATHERED = 128
# Passing a vertex in search of those of a level costs this share of pulling an edge; finding the row of one costs
# so many edges more than in a pass over all levels, since they lie scattered.
_SWEEP_SHARE = 4
_SCATTERED_EDGES = 16

_NEXT, _TAIL, _READ = 0, 16, 32
"""What is where in a cursor (int64, a cache line apart): the next piece, the end of the queue, the edges read."""

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
_inner: Any = inner


@_inner
def _grow(delta, role, v, difference):  # type: ignore[no-untyped-def]
    """Let the count of v grow by a difference; whether v must be queued. Any thread may do so.

    Where differences add up to the limit in size, v is counted by its in-edges: more might not fit.
    """
    seen = load(role, v)
    if seen & RECOUNT:
        return False
    mark = QUEUED
    if abs(fetch_add(delta, v, difference) + difference) >= _LIMIT:
        mark = QUEUED | RECOUNT
    while seen & mark != mark:
        was = compare_swap(role, v, seen, seen | mark)
        if was == seen:
            return seen & QUEUED == 0
        seen = was
    return False


# -- seeds --------------------------------------------------------------------------------------------------------


@_jit
def seed_moved(counts, word, touched, out_degrees, in_degrees):  # type: ignore[no-untyped-def]
    """Queue those of the vertices ``touched`` that are moved: (their number, of their edges)."""
    level, role, queue = counts.level, counts.role, counts.queue
    n_seeds = np.int64(0)
    edges = np.int64(0)
    for k in range(touched.size):
        v = np.int64(touched[k])
        at = np.uint32(word[v] >> HALF)
        if at != level[v]:
            role[v] |= QUEUED | RECOUNT
            if at > level[v]:
                role[v] |= FARTHER
            edges += np.int64(out_degrees[v]) + np.int64(in_degrees[v])
            queue[n_seeds] = v
            n_seeds += 1
    return n_seeds, edges


@_jit
def seed_heads(counts, word, deleted, inserted, n_seeds):  # type: ignore[no-untyped-def]
    """Heads lose and gain the counts of the tails of these arcs: the new number of seeds."""
    level, count, delta, role, queue = counts.level, counts.paths, counts.delta, counts.role, counts.queue
    for i in range(deleted.size):
        if i + _AHEAD < deleted.size:
            prefetch(level, np.int64(deleted[i + _AHEAD] >> HALF))
            prefetch(level, np.int64(deleted[i + _AHEAD] & LOW))
        u, v = np.int64(deleted[i] >> HALF), np.int64(deleted[i] & LOW)
        if np.int64(level[u]) + 1 == np.int64(level[v]) and _grow(delta, role, v, -np.int64(count[u])):
            queue[n_seeds] = v
            n_seeds += 1
    for i in range(inserted.size):
        if i + _AHEAD < inserted.size:
            prefetch(level, np.int64(inserted[i + _AHEAD] >> HALF))
            prefetch(level, np.int64(inserted[i + _AHEAD] & LOW))
        u, v = np.int64(inserted[i] >> HALF), np.int64(inserted[i] & LOW)
        difference = np.int64(0)
        if np.int64(level[u]) + 1 == np.int64(level[v]):
            role[u] |= LEADS
            difference = np.int64(count[u])
        if role[u] & FARTHER and (word[u] >> HALF) + 1 == word[v] >> HALF:
            difference = _UNKNOWN
        if difference and _grow(delta, role, v, difference):
            queue[n_seeds] = v
            n_seeds += 1
    return n_seeds


@_jit
def leave(counts, out, n_moved, n_seeds, crew):  # type: ignore[no-untyped-def]
    """Of the first ``n_moved`` seeds those that move farther take their counts back: (seeds, edges read)."""
    count, delta, role, queue, leaving = counts.paths, counts.delta, counts.role, counts.queue, counts.changed
    n_leaving = np.int64(0)
    edges = np.int64(0)
    for k in range(n_moved):
        u = queue[k]
        if role[u] & FARTHER and role[u] & LEADS:
            delta[u] = -np.int64(count[u])
            leaving[n_leaving] = u
            n_leaving += 1
            edges += np.int64(out.degrees[u])
    cursor = np.zeros(48, np.int64)
    cursor[_TAIL] = n_seeds
    _push(counts, out, leaving, n_leaving, edges, cursor, crew)
    return cursor[_TAIL], edges


# -- level by level -----------------------------------------------------------------------------------------------


@_jit
def recount(counts, word, seeds, out, in_, n, crew):  # type: ignore[no-untyped-def]
    """Count the seeds anew, and whatever is below a count that changed.

    ``seeds``: level of now << 32 | vertex, ascending. Levels are taken in order, so that all predecessors of a
    vertex are final before it. ``counts.changed`` gets the vertices with another count, each once: (their number,
    edges read, vertices counted, by how many more are saturated).
    """
    queue, role, delta = counts.queue, counts.role, counts.delta
    cursor = np.zeros(48, np.int64)
    n_changed = np.int64(0)
    saturated = np.int64(0)
    seed = np.int64(0)
    head = np.int64(0)
    tail = np.int64(0)
    at = np.int64(0)
    while seed < seeds.size or head < tail:
        # What was queued lies one level below those that queued it.
        at = at + 1 if head < tail else np.int64(seeds[seed] >> HALF)
        while seed < seeds.size and np.int64(seeds[seed] >> HALF) == at:
            queue[tail] = seeds[seed] & LOW
            tail += 1
            seed += 1
        n_pushing, ahead, read, n_changed, more = _settle(counts, word, out, in_, at, head, tail, n_changed)
        saturated += more
        cursor[_READ] += read
        cursor[_TAIL] = tail
        pushing = queue[head : head + n_pushing]
        head = tail
        if ahead > n and _pulling_is_cheaper(counts.level, in_, n, at + 1, ahead, n_pushing):
            _pull(counts, in_, n, at + 1, cursor, crew)
        else:
            cursor[_READ] += ahead
            _push(counts, out, pushing, n_pushing, ahead, cursor, crew)
        for k in range(n_pushing):
            delta[pushing[k]] = 0
            role[pushing[k]] &= LEADS
        tail = cursor[_TAIL]
    return n_changed, cursor[_READ], tail, saturated


@_inner
@spliced
def _settle(counts, word, out, in_, at, head, tail, n_changed):  # type: ignore[no-untyped-def]
    """Count queue[head:tail], all of which are on level ``at`` now.

    (The number of those whose successors must learn of a change: they come to the front of that stretch, with the
    difference in ``delta``; their out-edges; edges read; ``n_changed`` with those that changed here; by how many
    more are saturated.)
    """
    level, count, delta, role, queue = counts.level, counts.paths, counts.delta, counts.role, counts.queue
    keys = in_.keys
    n_pushing = np.int64(0)
    ahead = np.int64(0)
    edges = np.int64(0)
    saturated = np.int64(0)
    for k in range(head, tail):
        if k + _AHEAD < tail:
            prefetch(level, np.int64(queue[k + _AHEAD]))
            prefetch(count, np.int64(queue[k + _AHEAD]))
            prefetch(delta, np.int64(queue[k + _AHEAD]))
            prefetch_to_read(out.degrees, np.int64(queue[k + _AHEAD]))
        v = np.int64(queue[k])
        moved = np.int64(level[v]) != at
        farther = role[v] & FARTHER
        before = count[v]
        after = before + np.float64(delta[v])
        if role[v] & RECOUNT or before >= LIMIT:
            after = 1.0 if at == 0 else 0.0
            above = np.uint64(at - 1)
            if 0 < at < UNREACHED:
                for slot, stop in runs(in_, v):
                    for i in range(slot, stop):
                        u = np.int64(keys[i] & LOW)
                        if word[u] >> HALF == above:
                            after += count[u]
                            role[u] |= LEADS
                    edges += stop - slot
                    # If those read suffice for the limit, only they must tell of their changes.
                    if after >= LIMIT:
                        break
        after = min(after, LIMIT)
        level[v] = at
        delta[v] = 0
        role[v] = LEADS if moved else role[v] & LEADS
        if after != before:
            count[v] = after
            saturated += np.int64(after >= LIMIT) - np.int64(before >= LIMIT)
            counts.changed[n_changed] = v
            n_changed += 1
        if role[v] & LEADS and not farther and (moved or after != before):
            role[v] |= PUSHING
            delta[v] = np.int64(after) - (np.int64(0) if moved else np.int64(before))
            queue[head + n_pushing] = v
            n_pushing += 1
            ahead += np.int64(out.degrees[v])
    return n_pushing, ahead, edges, n_changed, saturated


@_inner
def _push(counts, out, vertices, n_vertices, edges, cursor, crew):  # type: ignore[no-untyped-def]
    """Let the successors of these vertices grow by the ``delta`` of each; ``edges``: how many they have.

    Those that turn out to have no successors lose LEADS.
    """
    cursor[_NEXT] = 0
    if edges < PARALLEL_MIN:
        _push_pieces(np.int64(0), counts, out, vertices, n_vertices, cursor, n_vertices)
    else:
        share(crew, _push_pieces, (counts, out, vertices, n_vertices, cursor, np.int64(_PUSH_PIECE)))


@_inner
@spliced
def _push_pieces(t, counts, out, vertices, n_vertices, cursor, piece):  # type: ignore[no-untyped-def]
    level, delta, role, queue = counts.level, counts.delta, counts.role, counts.queue
    keys, fill, degrees, row_leaf = out.keys, out.counts, out.degrees, out.row_leaf
    gathered = np.empty(_GATHERED, np.uint32)
    n_gathered = np.int64(0)
    for begin in drawn_by(cursor, n_vertices, piece):
        for k in range(begin, min(begin + piece, n_vertices)):
            if k + _AHEAD < n_vertices:
                prefetch_to_read(degrees, np.int64(vertices[k + _AHEAD]))
                prefetch_to_read(row_leaf, np.int64(vertices[k + _AHEAD]))
                leaf = np.int64(row_leaf[vertices[k + _AHEAD // 2]])
                prefetch_to_read(fill, leaf)
                ask_for_leaf(keys, leaf, out.leaf_shift)
            u = np.int64(vertices[k])
            below = np.int64(level[u]) + 1
            difference = delta[u]
            leads = False
            for slot, stop in runs(out, u):
                for i in range(slot, stop):
                    v = np.int64(keys[i] & LOW)
                    if np.int64(level[v]) == below:
                        leads = True
                        if _grow(delta, role, v, difference):
                            gathered[n_gathered] = v
                            n_gathered += 1
                            if n_gathered == _GATHERED:
                                _publish(gathered, n_gathered, queue, cursor)
                                n_gathered = np.int64(0)
            if not leads:
                role[u] &= ~LEADS
    _publish(gathered, n_gathered, queue, cursor)


@_inner
def _publish(gathered, size, queue, cursor):  # type: ignore[no-untyped-def]
    """Append what a thread has gathered to the queue that all share."""
    place = fetch_add(cursor, _TAIL, size)
    for k in range(size):
        queue[place + k] = gathered[k]


@_inner
def _pulling_is_cheaper(level, in_, n, at, ahead, n_pushing):  # type: ignore[no-untyped-def]
    """Whether the vertices of a level should look for those that push, rather than these walk ``ahead`` edges."""
    edges = np.int64(0)
    rows = np.int64(0)
    for v in range(n):
        here = np.int64(np.int64(level[v]) == at)
        rows += here
        edges += here * np.int64(in_.degrees[v])
    edges += n // _SWEEP_SHARE + _SCATTERED_EDGES * rows
    return pulling_is_cheaper(ahead, n_pushing, edges, rows, 1)


@_inner
def _pull(counts, in_, n, at, cursor, crew):  # type: ignore[no-untyped-def]
    """Let the vertices of a level grow by those that push: what ``_push`` does, from the other side."""
    cursor[_NEXT] = 0
    share(for_much(crew, n >= PARALLEL_MIN), _pull_pieces, (counts, in_, n, at, cursor))


@_inner
@spliced
def _pull_pieces(t, counts, in_, n, at, cursor):  # type: ignore[no-untyped-def]
    level, delta, role, queue = counts.level, counts.delta, counts.role, counts.queue
    keys, degrees = in_.keys, in_.degrees
    edges = np.int64(0)
    listed = np.empty(_PULL_PIECE, np.uint32)
    for begin in drawn_by(cursor, n, _PULL_PIECE):
        # Without a branch: whether a vertex is on the level is a toss-up.
        size = np.int64(0)
        for each in range(begin, min(begin + _PULL_PIECE, n)):
            listed[size] = each
            size += np.int64(np.int64(level[each]) == at)
        n_queued = np.int64(0)
        for k in range(size):
            v = np.int64(listed[k])
            queued = False
            edges += np.int64(degrees[v])
            for slot, stop in runs(in_, v):
                for i in range(slot, stop):
                    u = np.int64(keys[i] & LOW)
                    if role[u] & PUSHING:
                        queued |= _grow(delta, role, v, delta[u])
            if queued:
                listed[n_queued] = v
                n_queued += 1
        _publish(listed, n_queued, queue, cursor)
    fetch_add(cursor, _READ, edges)
