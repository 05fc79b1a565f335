"""Spanning a whole graph: the forest of ``components`` from scratch.

Breadth first by levels, pushing small frontiers and pulling to large ones (Beamer, Asanovic, Patterson,
"Direction-Optimizing Breadth-First Search", SC 2012), pulls on all threads. Levels keep the trees shallow, on
which the climbs of later deletions depend. The forest does not depend on the number of threads.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from ...gpma.atomics import fetch_add
from ...gpma.edges import LOW, NO_VERTEX
from ...gpma.rows import runs
from ...gpma.splice import spliced
from .forest import LEVEL_STEP, N_FREE, N_USED

_ONE = np.uint64(1)

# Pull where the frontier has more than one in so many of the edges that the vertices in no tree have: pulling
# reads few of those when most of them have a neighbour on the frontier, and all when none has. So at most three
# times all edges are read, whatever the shape.
_PULL_SHARE = 2
# Passing a vertex in a sweep costs this share of pushing an edge.
_SWEEP_SHARE = 16

# How many vertices of a sweep a thread takes at a time, and from how many on it is worth more than one.
_SWEEP_PIECE = 4096
_PARALLEL_MIN = 1 << 15

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
# For what runs once per vertex: a call that hands over these tuples of arrays costs more than its work.
_inline = nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")


@_inline
@spliced
def _push_row(forest, rows, u, h, queue, tail):  # type: ignore[no-untyped-def]
    """Take the neighbours of u in this row that no tree holds yet into tree h: the new tail."""
    for slot, stop in runs(rows, u):
        for i in range(slot, stop):
            v = np.int64(rows.keys[i] & LOW)
            if forest.handle[v] == NO_VERTEX:
                forest.handle[v] = h
                forest.parent[v] = u
                queue[tail] = v
                tail += 1
    return tail


@_inline
@spliced
def _find_held(rows, v, held):  # type: ignore[no-untyped-def]
    """A neighbour of v in this row that the bitmap holds, or -1; and the edges read."""
    read = np.int64(0)
    for slot, stop in runs(rows, v):
        for i in range(slot, stop):
            u = rows.keys[i] & LOW
            read += 1
            if (held[u >> np.uint64(6)] >> (u & np.uint64(63))) & _ONE:
                return np.int64(u), read
    return np.int64(-1), read


@_jit
def _hold(held, queue, begin, end):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        v = np.uint64(queue[i])
        held[v >> np.uint64(6)] |= _ONE << (v & np.uint64(63))


@_jit
def _pull_pieces(forest, n, out, in_, both, h, held, found, counts, cursor):  # type: ignore[no-untyped-def]
    """Vertices in no tree, in pieces drawn from ``cursor``, look for a neighbour in the bitmap: the edges read.

    Those that find one go to the begin of their piece's part of ``found``; how many they are, to ``counts``.
    """
    edges = np.int64(0)
    while True:
        begin = fetch_add(cursor, 0, np.int64(_SWEEP_PIECE))
        if begin >= n:
            return edges
        end = begin
        for v in range(begin, min(begin + _SWEEP_PIECE, n)):
            if forest.handle[v] != NO_VERTEX:
                continue
            u, read = _find_held(out, v, held)
            edges += read
            if u < 0 and both:
                u, read = _find_held(in_, v, held)
                edges += read
            if u >= 0:
                forest.handle[v] = h
                forest.parent[v] = u
                found[end] = v
                end += 1
        counts[begin // _SWEEP_PIECE] = end - begin


@nb.njit(cache=True, nogil=True, error_model="numpy", parallel=True)
def _pull_sweep(forest, n, out, in_, both, h, held, queue, tail, found, threads):  # type: ignore[no-untyped-def]
    """Every vertex in no tree looks for a neighbour in the bitmap, which is of tree h: (new tail, edges read).

    ``found``: uint32[n] scratch.
    """
    counts = np.empty((n + _SWEEP_PIECE - 1) // _SWEEP_PIECE, np.int64)
    cursor = np.zeros(1, np.int64)
    edges = np.int64(0)
    if n < _PARALLEL_MIN:
        edges = _pull_pieces(forest, n, out, in_, both, h, held, found, counts, cursor)
    else:
        for _ in nb.prange(threads):
            edges += _pull_pieces(forest, n, out, in_, both, h, held, found, counts, cursor)
    for piece in range(counts.size):
        begin = piece * _SWEEP_PIECE
        for i in range(begin, begin + counts[piece]):
            queue[tail] = found[i]
            tail += 1
    return tail, edges


@_inline
def _edges_of(out, in_, both, v):  # type: ignore[no-untyped-def]
    return np.int64(out.degrees[v]) + (np.int64(in_.degrees[v]) if both else 0)


@_jit
def _span_tree(forest, n, unheld, root, h, out, in_, both, queue, begin, held, found, threads):  # type: ignore[no-untyped-def]
    """Span the component of ``root`` by levels, pushing small frontiers and pulling to large ones.

    ``unheld``: the edges of all vertices in no tree, both ways. The vertices of this one go to ``queue[begin:]``:
    (end, edges read, ``unheld`` without them).
    """
    forest.handle[root] = h
    forest.parent[root] = NO_VERTEX
    queue[begin] = root
    head = begin
    tail = begin + np.int64(1)
    edges = np.int64(0)
    held_end = np.int64(-1)  # up to here the queue is in the bitmap
    while head < tail:
        level_end = tail
        ahead = np.int64(0)
        for i in range(head, level_end):
            ahead += _edges_of(out, in_, both, queue[i])
        unheld -= ahead
        if unheld == 0:
            break
        if ahead * _PULL_SHARE > unheld and ahead * _SWEEP_SHARE > n:
            if held_end < 0:
                held[:] = np.uint64(0)
                held_end = begin
            _hold(held, queue, held_end, level_end)
            held_end = level_end
            tail, read = _pull_sweep(forest, n, out, in_, both, h, held, queue, tail, found, threads)
            edges += read
        else:
            edges += ahead
            for i in range(head, level_end):
                u = np.int64(queue[i])
                tail = _push_row(forest, out, u, h, queue, tail)
                if both:
                    tail = _push_row(forest, in_, u, h, queue, tail)
        head = level_end
    return tail, edges, unheld


@_jit
def span(forest, n, n_arcs, first_root, out, in_, both, queue, held, found, threads):  # type: ignore[no-untyped-def]
    """Span the whole graph, the component of ``first_root`` first; the edges read.

    Representatives of trees of two and more are not set. ``queue`` and ``found``: uint32[n], and ``held``:
    uint64[(n + 63) // 64], are scratch.
    """
    for v in range(n):
        forest.handle[v] = NO_VERTEX
        forest.size[v] = 0
        forest.representative[v] = NO_VERTEX
    h = np.int64(0)
    edges = np.int64(0)
    begin = np.int64(0)
    unheld = 2 * n_arcs if both else n_arcs
    for k in range(-1, n):
        root = first_root if k < 0 else k
        if root >= n or forest.handle[root] != NO_VERTEX:
            continue
        if _edges_of(out, in_, both, root) == 0:
            forest.handle[root] = h
            forest.parent[root] = NO_VERTEX
            forest.level[root] = 0
            forest.next[root] = root
            forest.prev[root] = root
            forest.size[h] = 1
            forest.representative[h] = root
            h += 1
            continue
        end, read, unheld = _span_tree(
            forest, n, unheld, root, h, out, in_, both, queue, begin, held, found, threads
        )
        edges += read
        forest.level[root] = 0
        for i in range(begin, end):
            v = queue[i]
            if i > begin:
                forest.level[v] = forest.level[forest.parent[v]] + LEVEL_STEP
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
