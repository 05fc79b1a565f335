"""Spanning a whole graph: the forest of ``components`` from scratch.

Breadth first by levels, pushing small frontiers and pulling to large ones (Beamer, Asanovic, Patterson,
"Direction-Optimizing Breadth-First Search", SC 2012). Levels keep the trees shallow, on which the climbs of
later deletions depend.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from ..gpma.rows import first_slot
from .forest import N_FREE, N_USED, NONE

_LOW = np.uint64(0xFFFF_FFFF)
_ONE = np.uint64(1)

# Pull when the frontier's edges exceed a share of all, push again when few vertices are found.
_PULL_SHARE = 15
_PUSH_SHARE = 18

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
# For what runs once per vertex: a call that hands over these tuples of arrays costs more than its work.
_inline = nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")


@_inline
def _push_row(forest, rows, u, h, queue, tail):  # type: ignore[no-untyped-def]
    """Take the neighbours of u in this row that no tree holds yet into tree h: (new tail, their edges)."""
    ahead = np.int64(0)
    remaining = np.int64(rows.degrees[u])
    if remaining:
        leaf, slot = first_slot(rows, u)
        while remaining > 0:
            end = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
            for i in range(slot, end):
                v = np.int64(rows.keys[i] & _LOW)
                if forest.handle[v] == NONE:
                    forest.handle[v] = h
                    forest.parent[v] = u
                    queue[tail] = v
                    tail += 1
                    ahead += np.int64(rows.degrees[v])
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << rows.leaf_shift
    return tail, ahead


@_inline
def _find_held(rows, v, held):  # type: ignore[no-untyped-def]
    """A neighbour of v in this row that the bitmap holds, or -1; and the edges read."""
    remaining = np.int64(rows.degrees[v])
    read = np.int64(0)
    if remaining:
        leaf, slot = first_slot(rows, v)
        while remaining > 0:
            end = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
            for i in range(slot, end):
                u = rows.keys[i] & _LOW
                read += 1
                if (held[u >> np.uint64(6)] >> (u & np.uint64(63))) & _ONE:
                    return np.int64(u), read
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << rows.leaf_shift
    return np.int64(-1), read


@_jit
def _hold(held, queue, begin, end):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        v = np.uint64(queue[i])
        held[v >> np.uint64(6)] |= _ONE << (v & np.uint64(63))


@_jit
def _pull_sweep(forest, n, out, in_, both, h, held, queue, tail):  # type: ignore[no-untyped-def]
    """Every vertex in no tree looks for a neighbour in the bitmap, which is of tree h: (new tail, edges read)."""
    edges = np.int64(0)
    for v in range(n):
        if forest.handle[v] != NONE:
            continue
        u, read = _find_held(out, v, held)
        edges += read
        if u < 0 and both:
            u, read = _find_held(in_, v, held)
            edges += read
        if u >= 0:
            forest.handle[v] = h
            forest.parent[v] = u
            queue[tail] = v
            tail += 1
    return tail, edges


@_jit
def _span_tree(forest, n, n_arcs, root, h, out, in_, both, queue, begin, held):  # type: ignore[no-untyped-def]
    """Span the component of ``root`` by levels, pushing small frontiers and pulling to large ones.

    The vertices go to ``queue[begin:]``: (end, edges read).
    """
    forest.handle[root] = h
    forest.parent[root] = NONE
    queue[begin] = root
    head = begin
    tail = begin + np.int64(1)
    edges = np.int64(0)
    ahead = np.int64(0)
    pulling = False
    while head < tail:
        level_end = tail
        if pulling or (ahead * _PULL_SHARE > n_arcs and ahead * _PUSH_SHARE > n):
            if not pulling:
                held[:] = np.uint64(0)
                _hold(held, queue, begin, head)
            _hold(held, queue, head, tail)
            tail, read = _pull_sweep(forest, n, out, in_, both, h, held, queue, tail)
            edges += read
            pulling = (tail - level_end) * _PUSH_SHARE > n
            ahead = np.int64(0)
            head = level_end
            continue
        ahead = np.int64(0)
        for i in range(head, level_end):
            u = np.int64(queue[i])
            edges += np.int64(out.degrees[u])
            tail, more = _push_row(forest, out, u, h, queue, tail)
            ahead += more
            if both:
                edges += np.int64(in_.degrees[u])
                tail, more = _push_row(forest, in_, u, h, queue, tail)
                ahead += more
        head = level_end
    return tail, edges


@_jit
def span(forest, n, n_arcs, first_root, out, in_, both, queue, held):  # type: ignore[no-untyped-def]
    """Span the whole graph, the component of ``first_root`` first; the edges read.

    Representatives of trees of two and more are not set. ``queue``: uint32[n] and ``held``:
    uint64[(n + 63) // 64] are scratch.
    """
    for v in range(n):
        forest.handle[v] = NONE
        forest.size[v] = 0
        forest.representative[v] = NONE
    h = np.int64(0)
    edges = np.int64(0)
    begin = np.int64(0)
    for k in range(-1, n):
        root = first_root if k < 0 else k
        if root >= n or forest.handle[root] != NONE:
            continue
        if out.degrees[root] == 0 and (not both or in_.degrees[root] == 0):
            forest.handle[root] = h
            forest.parent[root] = NONE
            forest.next[root] = root
            forest.prev[root] = root
            forest.size[h] = 1
            forest.representative[h] = root
            h += 1
            continue
        end, read = _span_tree(forest, n, n_arcs, root, h, out, in_, both, queue, begin, held)
        edges += read
        for i in range(begin, end):
            v = queue[i]
            forest.next[v] = queue[i + 1] if i + 1 < end else queue[begin]
            forest.prev[v] = queue[i - 1] if i > begin else queue[end - 1]
        forest.size[h] = end - begin
        if end - begin == 1:
            forest.representative[h] = root
        h += 1
        begin = end
    forest.counts[N_FREE] = 0
    forest.counts[N_USED] = h
    return edges
