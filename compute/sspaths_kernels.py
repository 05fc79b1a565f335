"""Kernels of shortest-path counting on rows in place: the steps that ``sspaths.py`` explains."""

from __future__ import annotations

import numba as nb
import numpy as np

from ..gpma.rows import first_slot

UNREACHED = np.uint32(0xFFFF_FFFF)
LIMIT = 2.0**53
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)
# No level is so deep: with one added it still equals none.
_NOWHERE = np.int64(1 << 40)

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
# For what runs once per vertex: a call that hands over the tuple of rows costs more than its work.
_inline = nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")


@_inline
def _counted(level, count, in_, v):  # type: ignore[no-untyped-def]
    """The count of v by those of its predecessors."""
    if level[v] == 0:
        return 1.0
    total = 0.0
    remaining = np.int64(in_.degrees[v])
    if remaining and level[v] != UNREACHED:
        wanted = np.int64(level[v]) - 1
        leaf, slot = first_slot(in_, v)
        while remaining > 0:
            end = min((leaf << in_.leaf_shift) + np.int64(in_.counts[leaf]), slot + remaining)
            for i in range(slot, end):
                u = in_.keys[i] & _LOW
                if np.int64(level[u]) == wanted:
                    total += count[u]
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << in_.leaf_shift
    # Sums of whole numbers are exact up to the limit, and never fall below it again: any order gives this.
    return min(total, LIMIT)


@_jit
def count_all(level, count, in_, n, order, levels, above):  # type: ignore[no-untyped-def]
    """Count from scratch, level by level: (edges read, saturated vertices).

    ``order``: uint32[n] scratch; ``levels``: int64[deepest level + 2], zeros; ``above``: float64[n], zeros. It
    holds the counts of the level above and nothing else, so that sums over in-edges need to ask for no level.
    """
    for v in range(n):
        count[v] = 0.0
        if level[v] != UNREACHED:
            levels[np.int64(level[v]) + 1] += 1
    for k in range(1, levels.size):
        levels[k] += levels[k - 1]
    for v in range(n):
        if level[v] != UNREACHED:
            place = levels[level[v]]
            levels[level[v]] = place + 1
            order[place] = v
    # Each entry has moved on to where its level ends.
    edges = np.int64(0)
    saturated = np.int64(0)
    before = np.int64(0)
    begin = np.int64(0)
    for k in range(levels.size - 1):
        for i in range(begin, levels[k]):
            u = np.int64(order[i])
            total = 1.0 if k == 0 else 0.0
            remaining = np.int64(in_.degrees[u]) if k else np.int64(0)
            edges += remaining
            if remaining:
                leaf, slot = first_slot(in_, int(u))
                while remaining > 0:
                    end = min((leaf << in_.leaf_shift) + np.int64(in_.counts[leaf]), slot + remaining)
                    for e in range(slot, end):
                        total += above[in_.keys[e] & _LOW]
                    remaining -= end - slot
                    leaf += np.int64(1)
                    slot = leaf << in_.leaf_shift
            count[u] = min(total, LIMIT)
            saturated += count[u] >= LIMIT
        for i in range(before, begin):
            above[order[i]] = 0.0
        for i in range(begin, levels[k]):
            above[order[i]] = count[order[i]]
        before = begin
        begin = levels[k]
    return edges, saturated


@_inline
def _add(seeds, n_seeds, stamp, run, v):  # type: ignore[no-untyped-def]
    if np.int64(stamp[v]) != run:
        stamp[v] = run
        seeds[n_seeds] = v
        n_seeds += 1
    return n_seeds


@_jit
def seed_heads(level, arcs, stamp, run, seeds, n_seeds):  # type: ignore[no-untyped-def]
    """The heads of these arcs whose tail is (or was) a predecessor: the new number of seeds."""
    for i in range(arcs.size):
        v = np.int64(arcs[i] & _LOW)
        if level[v] != UNREACHED and np.int64(level[arcs[i] >> _HALF]) + 1 == np.int64(level[v]):
            n_seeds = _add(seeds, n_seeds, stamp, run, v)
    return n_seeds


@_jit
def move_levels(level, word, touched, stamp, run, out, seeds, n_seeds):  # type: ignore[no-untyped-def]
    """Take over the hops of vertices whose word changed; seeds are those on another level now, and the vertices
    that have or had one of them as a predecessor: (seeds, edges read)."""
    edges = np.int64(0)
    for k in range(touched.size):
        v = np.int64(touched[k])
        old = level[v]
        new = np.uint32(word[v] >> _HALF)
        if old == new:
            continue
        level[v] = new
        n_seeds = _add(seeds, n_seeds, stamp, run, v)
        below_old = np.int64(old) + 1 if old != UNREACHED else _NOWHERE
        below_new = np.int64(new) + 1 if new != UNREACHED else _NOWHERE
        remaining = np.int64(out.degrees[v])
        edges += remaining
        if remaining:
            leaf, slot = first_slot(out, int(v))
            while remaining > 0:
                end = min((leaf << out.leaf_shift) + np.int64(out.counts[leaf]), slot + remaining)
                for i in range(slot, end):
                    w = np.int64(out.keys[i] & _LOW)
                    if np.int64(level[w]) == below_old or np.int64(level[w]) == below_new:
                        n_seeds = _add(seeds, n_seeds, stamp, run, w)
                remaining -= end - slot
                leaf += np.int64(1)
                slot = leaf << out.leaf_shift
    return n_seeds, edges


@_jit
def recount(level, count, stamp, run, seeds, out, in_, queue, changed, edges_max):  # type: ignore[no-untyped-def]
    """Count the seeds anew, and whatever is below a count that changed.

    ``seeds``: level << 32 | vertex, ascending, all stamped. Vertices are taken by ascending level, so that all
    predecessors of one are final before it; one that is queued lies a level below the one that queued it, so
    the queue itself is in order. ``changed`` (uint32) gets the vertices with another count, each once: (their
    number, edges read, vertices counted, by how many more are saturated); -1 of them when it read more than
    ``edges_max`` edges: counts are then good for nothing.
    """
    edges = np.int64(0)
    counted = np.int64(0)
    n_changed = np.int64(0)
    saturated = np.int64(0)
    seed = np.int64(0)
    head = np.int64(0)
    tail = np.int64(0)
    while seed < seeds.size or head < tail:
        if head < tail and (seed >= seeds.size or np.uint64(level[queue[head]]) <= seeds[seed] >> _HALF):
            v = np.int64(queue[head])
            head += 1
        else:
            v = np.int64(seeds[seed] & _LOW)
            seed += 1
        counted += 1
        edges += np.int64(in_.degrees[v])
        if edges > edges_max:
            return np.int64(-1), edges, counted, saturated
        before = count[v]
        after = _counted(level, count, in_, v)
        if after == before:
            continue
        count[v] = after
        saturated += np.int64(after >= LIMIT) - np.int64(before >= LIMIT)
        changed[n_changed] = v
        n_changed += 1
        if level[v] == UNREACHED:
            continue  # what it counted for was found when it left its level
        below = np.int64(level[v]) + 1
        remaining = np.int64(out.degrees[v])
        edges += remaining
        if remaining:
            leaf, slot = first_slot(out, int(v))
            while remaining > 0:
                end = min((leaf << out.leaf_shift) + np.int64(out.counts[leaf]), slot + remaining)
                for i in range(slot, end):
                    w = np.int64(out.keys[i] & _LOW)
                    if np.int64(level[w]) == below:
                        tail = _add(queue, tail, stamp, run, w)
                remaining -= end - slot
                leaf += np.int64(1)
                slot = leaf << out.leaf_shift
    return n_changed, edges, counted, saturated


# Bits of what ``audit`` finds at a vertex.
WRONG_SOURCE, WRONG_HOPS, WRONG_PARENT, WRONG_COUNT, WRONG_WORD = 1, 2, 4, 8, 16


@_jit
def audit(level, count, word, is_source, in_, begin, end_vertex, wrong):  # type: ignore[no-untyped-def]
    """Check vertices begin .. end_vertex - 1 by their in-edges; bits to ``wrong``; the edges read.

    Levels are proven, not only consistent: a level is one more than the least of the in-neighbours', so it
    falls on the way up and can end in nothing but a source.
    """
    edges = np.int64(0)
    for v in range(begin, end_vertex):
        flags = 0
        parent = word[v] & _LOW
        least = np.int64(UNREACHED)
        parent_level = np.int64(UNREACHED)
        total = 0.0
        wanted = np.int64(level[v]) - 1
        remaining = np.int64(in_.degrees[v])
        edges += remaining
        if remaining:
            leaf, slot = first_slot(in_, v)
            while remaining > 0:
                end = min((leaf << in_.leaf_shift) + np.int64(in_.counts[leaf]), slot + remaining)
                for i in range(slot, end):
                    u = in_.keys[i] & _LOW
                    at = np.int64(level[u])
                    least = min(least, at)
                    if u == parent:
                        parent_level = at
                    if at == wanted and at != np.int64(UNREACHED):
                        total += count[u]
                remaining -= end - slot
                leaf += np.int64(1)
                slot = leaf << in_.leaf_shift
        reached = least != np.int64(UNREACHED)
        if is_source[v - begin]:
            flags |= WRONG_SOURCE if level[v] != 0 or parent != _LOW else 0
            flags |= WRONG_COUNT if count[v] != 1.0 else 0
        else:
            expected = least + 1 if reached else np.int64(UNREACHED)
            flags |= WRONG_HOPS if np.int64(level[v]) != expected else 0
            flags |= WRONG_PARENT if reached and parent_level != wanted else 0
            flags |= WRONG_PARENT if not reached and parent != _LOW else 0
            flags |= WRONG_COUNT if count[v] != (min(total, LIMIT) if reached else 0.0) else 0
        flags |= WRONG_WORD if np.uint64(level[v]) != word[v] >> _HALF else 0
        wrong[v - begin] = flags
    return edges
