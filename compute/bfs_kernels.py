"""Kernels of breadth-first search on rows in place: the steps that ``bfs.py`` explains."""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..gpma.edges import Keys, Vertices
from ..gpma.rows import first_slot

UNREACHED = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
SOURCE_WORD = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)
_ONE = np.uint64(1)

# Beamer et al.: pull when the frontier's edges exceed a share of those unexplored; push again when it shrank.
_PULL_SHARE = 15
_PUSH_SHARE = 18


class Log(NamedTuple):
    """The vertices whose word was written since the run began, each once, with the word before.

    ``stamp`` uint32[cap] (equal to ``run``: listed), ``vertices`` uint32[cap], ``old`` uint64[cap],
    ``counted`` int64[1].
    """

    stamp: npt.NDArray[np.uint32]
    vertices: Vertices
    old: Keys
    counted: npt.NDArray[np.int64]
    run: int


_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


@_jit
def _set(word, log, v, value):  # type: ignore[no-untyped-def]
    if np.int64(log.stamp[v]) != log.run:
        log.stamp[v] = log.run
        k = log.counted[0]
        log.vertices[k] = v
        log.old[k] = word[v]
        log.counted[0] = k + 1
    word[v] = value


@_jit
def classify(word, deleted, inserted, lost):  # type: ignore[no-untyped-def]
    """The safe updates in one pass: (heads of deleted parent edges, written to ``lost`` as hops << 32 | head;
    inserted edges that improve their head as things stand)."""
    n_lost = 0
    for i in range(deleted.size):
        head = deleted[i] & _LOW
        at_head = word[head]
        if at_head != UNREACHED and (at_head & _LOW) == deleted[i] >> _HALF:
            lost[n_lost] = ((at_head >> _HALF) << _HALF) | head
            n_lost += 1
    n_better = 0
    for i in range(inserted.size):
        hops = word[inserted[i] >> _HALF] >> _HALF
        if hops + _ONE < word[inserted[i] & _LOW] >> _HALF:
            n_better += 1
    return n_lost, n_better


@_jit
def _adopt(word, log, rows, v):  # type: ignore[no-untyped-def]
    """Give v an in-neighbour one level up as its parent: (found, edges read)."""
    wanted = (word[v] >> _HALF) - _ONE
    remaining = np.int64(rows.degrees[v])
    read = np.int64(0)
    if remaining:
        leaf, slot = first_slot(rows, v)
        while remaining > 0:
            end = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
            for i in range(slot, end):
                u = rows.keys[i] & _LOW
                read += 1
                if word[u] >> _HALF == wanted:
                    _set(word, log, v, ((wanted + _ONE) << _HALF) | u)
                    return True, read
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << rows.leaf_shift
    return False, read


@_jit
def trim(word, log, seeds, out, in_, queue, lost, edges_max):  # type: ignore[no-untyped-def]
    """Step 1: (vertices written to ``lost``, edges read), with -1 vertices when it read too many edges.

    ``seeds``: hops << 32 | vertex, ascending. Seeds and queued children are taken by ascending hops; children
    are queued one level below their parent, so the queue itself is in order.
    """
    n_lost = np.int64(0)
    edges = np.int64(0)
    seed = np.int64(0)
    head = np.int64(0)
    tail = np.int64(0)
    while seed < seeds.size or head < tail:
        if head < tail and (seed >= seeds.size or word[queue[head]] >> _HALF <= seeds[seed] >> _HALF):
            v = np.uint64(queue[head])
            head += 1
        else:
            v = seeds[seed] & _LOW
            seed += 1
        found, read = _adopt(word, log, in_, v)
        edges += read
        if found:
            continue
        _set(word, log, v, UNREACHED)
        lost[n_lost] = v
        n_lost += 1
        remaining = np.int64(out.degrees[v])
        edges += remaining
        if edges > edges_max:
            return np.int64(-1), edges
        if remaining:
            leaf, slot = first_slot(out, int(v))
            while remaining > 0:
                end = min((leaf << out.leaf_shift) + np.int64(out.counts[leaf]), slot + remaining)
                for i in range(slot, end):
                    w = out.keys[i] & _LOW
                    if (word[w] & _LOW) == v:
                        queue[tail] = w
                        tail += 1
                remaining -= end - slot
                leaf += np.int64(1)
                slot = leaf << out.leaf_shift
    return n_lost, edges


@_jit
def pull(word, log, lost, in_, seeds):  # type: ignore[no-untyped-def]
    """Step 2: the vertices in ``lost`` take the best offer; (new seeds, edges read)."""
    n_seeds = np.int64(0)
    edges = np.int64(0)
    for k in range(lost.size):
        v = np.uint64(lost[k])
        best = UNREACHED
        remaining = np.int64(in_.degrees[v])
        edges += remaining
        if remaining:
            leaf, slot = first_slot(in_, int(v))
            while remaining > 0:
                end = min((leaf << in_.leaf_shift) + np.int64(in_.counts[leaf]), slot + remaining)
                for i in range(slot, end):
                    u = in_.keys[i] & _LOW
                    offer = (word[u] >> _HALF) + _ONE
                    if offer < best >> _HALF:
                        best = (offer << _HALF) | u
                remaining -= end - slot
                leaf += np.int64(1)
                slot = leaf << in_.leaf_shift
        if best != UNREACHED:
            _set(word, log, v, best)
            seeds[n_seeds] = ((best >> _HALF) << _HALF) | v
            n_seeds += 1
    return n_seeds, edges


@_jit
def relax(word, log, inserted, sources, seeds, n_seeds):  # type: ignore[no-untyped-def]
    """Step 3, and sources that became known: the number of seeds with those added."""
    for k in range(sources.size):
        if word[sources[k]] != SOURCE_WORD:
            _set(word, log, sources[k], SOURCE_WORD)
            seeds[n_seeds] = np.uint64(sources[k])
            n_seeds += 1
    for i in range(inserted.size):
        u = inserted[i] >> _HALF
        v = inserted[i] & _LOW
        offer = (word[u] >> _HALF) + _ONE
        if offer < word[v] >> _HALF:
            _set(word, log, v, (offer << _HALF) | u)
            seeds[n_seeds] = (offer << _HALF) | v
            n_seeds += 1
    return n_seeds


@_jit
def push(word, log, seeds, out, queue):  # type: ignore[no-untyped-def]
    """Step 4, by ascending hops: (vertices pushed, edges read, deepest level pushed).

    ``seeds`` as in ``trim``; one whose vertex has improved since is stale and skipped. A queued vertex is one
    level below the vertex that improved it, so nothing taken later can improve it again: each is queued once.
    """
    edges = np.int64(0)
    pushed = np.int64(0)
    levels = np.int64(0)
    last = UNREACHED
    seed = np.int64(0)
    head = np.int64(0)
    tail = np.int64(0)
    while seed < seeds.size or head < tail:
        if head < tail and (seed >= seeds.size or word[queue[head]] >> _HALF <= seeds[seed] >> _HALF):
            u = np.uint64(queue[head])
            head += 1
        else:
            u = seeds[seed] & _LOW
            seed += 1
            if word[u] >> _HALF != seeds[seed - 1] >> _HALF:
                continue
        if word[u] >> _HALF != last:
            last = word[u] >> _HALF
            levels += 1
        offer = (word[u] >> _HALF) + _ONE
        pushed += 1
        remaining = np.int64(out.degrees[u])
        edges += remaining
        if remaining:
            leaf, slot = first_slot(out, int(u))
            while remaining > 0:
                end = min((leaf << out.leaf_shift) + np.int64(out.counts[leaf]), slot + remaining)
                for i in range(slot, end):
                    v = out.keys[i] & _LOW
                    if offer < word[v] >> _HALF:
                        _set(word, log, v, (offer << _HALF) | u)
                        queue[tail] = v
                        tail += 1
                remaining -= end - slot
                leaf += np.int64(1)
                slot = leaf << out.leaf_shift
    return pushed, edges, levels


@_jit
def _push_level(word, out, queue, head, tail, level):  # type: ignore[no-untyped-def]
    """Push the frontier queue[head:tail]: (new tail, edges read, edges of the new frontier)."""
    edges = np.int64(0)
    ahead = np.int64(0)
    frontier_end = tail
    for k in range(head, frontier_end):
        u = np.uint64(queue[k])
        offer = ((level + _ONE) << _HALF) | u
        remaining = np.int64(out.degrees[u])
        edges += remaining
        if remaining:
            leaf, slot = first_slot(out, int(u))
            while remaining > 0:
                end = min((leaf << out.leaf_shift) + np.int64(out.counts[leaf]), slot + remaining)
                for i in range(slot, end):
                    v = out.keys[i] & _LOW
                    if word[v] == UNREACHED:
                        word[v] = offer
                        queue[tail] = v
                        tail += 1
                        ahead += np.int64(out.degrees[v])
                remaining -= end - slot
                leaf += np.int64(1)
                slot = leaf << out.leaf_shift
    return tail, edges, ahead


@_jit
def _pull_level(word, in_, n, level, front, next_front):  # type: ignore[no-untyped-def]
    """Every unreached vertex looks for a parent on the frontier: (vertices found, edges read).

    ``front`` and ``next_front``: bitmaps (uint64[(n + 63) // 64]), which stay in cache where the words do not.
    """
    edges = np.int64(0)
    found = np.int64(0)
    next_front[:] = np.uint64(0)
    for v in range(n):
        if word[v] != UNREACHED:
            continue
        remaining = np.int64(in_.degrees[v])
        if remaining == 0:
            continue
        leaf, slot = first_slot(in_, int(v))
        while remaining > 0:
            end = min((leaf << in_.leaf_shift) + np.int64(in_.counts[leaf]), slot + remaining)
            i = slot
            while i < end:
                u = in_.keys[i] & _LOW
                i += 1
                if (front[u >> np.uint64(6)] >> (u & np.uint64(63))) & _ONE:
                    word[v] = ((level + _ONE) << _HALF) | u
                    next_front[v >> 6] |= _ONE << np.uint64(v & 63)
                    found += 1
                    remaining = np.int64(0)
                    break
            edges += i - slot
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << in_.leaf_shift
    return found, edges


@_jit
def search(word, sources, out, in_, n, n_arcs, queue, front, next_front):  # type: ignore[no-untyped-def]
    """The whole search from scratch; (levels, edges read, vertices reached). ``word`` starts unreached."""
    tail = np.int64(0)
    ahead = np.int64(0)
    for k in range(sources.size):
        if word[sources[k]] == UNREACHED:
            word[sources[k]] = SOURCE_WORD
            queue[tail] = sources[k]
            tail += 1
            ahead += np.int64(out.degrees[sources[k]])
    head = np.int64(0)
    level = np.uint64(0)
    edges = np.int64(0)
    unexplored = n_arcs
    reached = tail
    while head < tail:
        if ahead * _PULL_SHARE <= unexplored or ahead * _PUSH_SHARE <= n:
            unexplored -= ahead
            new_tail, read, ahead = _push_level(word, out, queue, head, tail, level)
            edges += read
            reached += new_tail - tail
            head = tail
            tail = new_tail
            level += _ONE
            continue
        front[:] = np.uint64(0)
        for k in range(head, tail):
            u = np.uint64(queue[k])
            front[u >> np.uint64(6)] |= _ONE << (u & np.uint64(63))
        awake = tail - head
        before = np.int64(0)
        while awake > 0 and (awake >= before or awake * _PUSH_SHARE > n):
            before = awake
            awake, read = _pull_level(word, in_, n, level, front, next_front)
            edges += read
            reached += awake
            level += _ONE
            front, next_front = next_front, front
        head = np.int64(0)
        tail = np.int64(0)
        for v in range(n):
            if (front[v >> 6] >> np.uint64(v & 63)) & _ONE:
                queue[tail] = v
                tail += 1
        # What is left is small, and pulling again would cost a pass over all vertices: push to the end.
        ahead = np.int64(0)
        unexplored = np.int64(1 << 62)
    return np.int64(level), edges, reached


@_jit
def audit_edges(word, out, n, supported):  # type: ignore[no-untyped-def]
    """Mark the vertices whose parent edge exists; (edges that would improve their head, one of them)."""
    better = np.int64(0)
    example = UNREACHED
    for u in range(n):
        remaining = np.int64(out.degrees[u])
        if remaining == 0:
            continue
        offer = (word[u] >> _HALF) + _ONE
        leaf, slot = first_slot(out, int(u))
        while remaining > 0:
            end = min((leaf << out.leaf_shift) + np.int64(out.counts[leaf]), slot + remaining)
            for i in range(slot, end):
                v = out.keys[i] & _LOW
                if offer < word[v] >> _HALF:
                    better += 1
                    example = out.keys[i]
                if (word[v] & _LOW) == np.uint64(u):
                    supported[v] = True
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << out.leaf_shift
    return better, example
