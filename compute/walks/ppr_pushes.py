"""Kernels of personalised PageRank: pushes from a queue, so that work is local to what the sources reach.

A vertex is in at most one place of each list, so lists have room for all vertices and never overflow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.edges import LOW
from ...gpma.intrinsics import inner, prefetch
from ...gpma.rows import ask_for_leaf, runs
from ...gpma.splice import spliced

F64 = npt.NDArray[np.float64]
U32 = npt.NDArray[np.uint32]

# Bits of ``Walks.marks``: the vertex is in the list of that name.
REACHED, WAITING, CHANGED = 1, 2, 4
# Slots of ``Walks.counts``: the lengths of the lists, and where the first that waits stands.
N_REACHED, N_WAITING, N_CHANGED, HEAD = range(4)
COUNTS = 4
# Slots of ``Walks.sums``: of the sizes of residuals, of the positive values, and of residuals; and what
# SIZE / NORM was when residuals were balanced last, infinity before the first time in a solve. ROUNDED: what
# rounding may have put between |r| and SIZE, in units of ``ROUNDOFF``: in residuals and in adding them up, and in
# NORM, at what that is to the error.
SIZE, NORM, TOTAL, ROUNDED, BALANCED_AT = range(5)
SUMS = 5
# Slots of the ``work`` counters.
PUSHES, EDGES, ROUNDS = range(3)
WORK_SLOTS = 3

# Residuals are balanced when they add up to at least this share of their sizes, ...
BALANCE_SHARE = 0.5
# ... again only when they have shrunk to this share, norms compared (so termination rests on pushes alone), ...
BALANCE_GAIN = 0.7
# ... and only where restarts keep at least this share of their strength: else too little is solved to tell.
BALANCE_LEAST = 0.3

# Starting a push costs as much as pushing along so many edges.
PUSH_EDGES = 64

# A vertex is asked for so many places before it is pushed, and its row so many.
_AHEAD = 16
_ROWS_AHEAD = 4

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
_inner: Any = inner


class Walks(NamedTuple):
    """The system and its lists; arrays are of one capacity in vertices.

    ``value``, ``residual``: float64. ``marks``: uint8. ``reached``: uint32, every vertex with a value or a
    residual (and some that lost both). ``waiting``: uint32, a ring of vertices that may be worth a push.
    ``changed``: uint32, the vertices whose value changed. ``counts``: int64[COUNTS], ``sums``: float64[SUMS].
    ``rhs``: float32, the right-hand side: the same at all sources, 0 elsewhere.
    """

    value: F64
    residual: F64
    marks: npt.NDArray[np.uint8]
    reached: U32
    waiting: U32
    changed: U32
    counts: npt.NDArray[np.int64]
    sums: F64
    rhs: npt.NDArray[np.float32]


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _join(v, mark, marks, vertices, counts, slot):  # type: ignore[no-untyped-def]
    """Put v into a list, unless it is there."""
    if marks[v] & np.uint8(mark) == np.uint8(0):
        marks[v] |= np.uint8(mark)
        vertices[counts[slot]] = np.uint32(v)
        counts[slot] += 1


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _wait(v, marks, waiting, counts):  # type: ignore[no-untyped-def]
    """Let v wait, unless it does."""
    if marks[v] & np.uint8(WAITING) == np.uint8(0):
        marks[v] |= np.uint8(WAITING)
        at = counts[HEAD] + counts[N_WAITING]
        waiting[at if at < waiting.size else at - waiting.size] = np.uint32(v)
        counts[N_WAITING] += 1


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _upcoming(ahead, waiting, counts):  # type: ignore[no-untyped-def]
    """The vertex that stands so many places behind the first that waits, or the last of all."""
    at = counts[HEAD] + min(np.int64(ahead), counts[N_WAITING] - 1)
    return np.int64(waiting[at if at < waiting.size else at - waiting.size])


@_jit
def touch(vertices, walks):  # type: ignore[no-untyped-def]
    """These vertices' residuals changed: they are reached, and wait to be looked at."""
    marks, reached, waiting, counts = walks.marks, walks.reached, walks.waiting, walks.counts
    for i in range(vertices.size):
        v = np.int64(vertices[i])
        _join(v, REACHED, marks, reached, counts, N_REACHED)
        _wait(v, marks, waiting, counts)


@_jit
def note_changed(vertices, walks):  # type: ignore[no-untyped-def]
    """These vertices' values changed."""
    marks, changed, counts = walks.marks, walks.changed, walks.counts
    for i in range(vertices.size):
        _join(np.int64(vertices[i]), CHANGED, marks, changed, counts, N_CHANGED)


@_inner
def _balance(sources, walks):  # type: ignore[no-untyped-def]
    """Choose the right-hand side anew, such that residuals add up to zero; whether that was worth it."""
    residual, rhs, sums = walks.residual, walks.rhs, walks.sums
    if sources.size == 0 or abs(sums[TOTAL]) < BALANCE_SHARE * sums[SIZE]:
        return False
    before = np.float64(rhs[sources[0]])
    now = np.float32(before - sums[TOTAL] / sources.size)
    if now < BALANCE_LEAST * before:
        return False
    by = np.float64(now) - before
    for i in range(sources.size):
        v = sources[i]
        sums[SIZE] += abs(residual[v] + by) - abs(residual[v])
        residual[v] += by
        sums[ROUNDED] += abs(residual[v]) + 2.0 * sums[SIZE]
        rhs[v] = now
    sums[TOTAL] += by * sources.size
    touch(sources, walks)
    return True


@_jit
@spliced
def push(rows, damping, threshold, level, size_max, cost_max, sources, walks, work):  # type: ignore[no-untyped-def]
    """Push vertices that wait and whose residual is over ``threshold`` times their degree.

    In rounds over those that wait: only what is over ``level`` times that, the level falling by halves to 1.
    After each round residuals are balanced, if they are of one sign in the main.

    Ends when none waits, or residuals add up to no more than ``size_max`` (true), or so many edges have been read
    that a dense pass is cheaper (false; ``cost_max`` as ``work`` counts, ``PUSH_EDGES`` for a vertex).
    """
    keys, row_counts, row_leaf, degrees = rows.keys, rows.counts, rows.row_leaf, rows.degrees
    leaf_shift = rows.leaf_shift
    value, residual, marks, reached = walks.value, walks.residual, walks.marks, walks.reached
    waiting, changed, counts = walks.waiting, walks.changed, walks.counts
    size = walks.sums[SIZE]
    norm = walks.sums[NORM]
    total = walks.sums[TOTAL]
    rounded = 0.0
    pushes = np.int64(0)
    edges = np.int64(0)
    enough = True
    while enough and counts[N_WAITING] > 0 and size > size_max:
        work[ROUNDS] += 1
        for _ in range(counts[N_WAITING]):
            v = _upcoming(_AHEAD, waiting, counts)
            prefetch(residual, v)
            prefetch(degrees, v)
            prefetch(row_leaf, v)
            v = _upcoming(_ROWS_AHEAD, waiting, counts)
            if abs(residual[v]) > threshold * max(1, degrees[v]):
                leaf = np.int64(row_leaf[v])
                prefetch(row_counts, leaf)
                ask_for_leaf(keys, leaf, leaf_shift)
            v = np.int64(waiting[counts[HEAD]])
            counts[HEAD] = counts[HEAD] + 1 if counts[HEAD] + 1 < waiting.size else 0
            counts[N_WAITING] -= 1
            marks[v] &= np.uint8(255 - WAITING)
            x = residual[v]
            degree = np.int64(degrees[v])
            least = threshold * max(1, degree)
            if abs(x) <= least:
                continue
            if abs(x) <= level * least:
                _wait(v, marks, waiting, counts)
                continue
            residual[v] = 0.0
            size -= abs(x)
            norm += max(0.0, value[v] + x) - max(0.0, value[v])
            value[v] += x
            total -= x
            # A sum is off by its size, a share by twice itself; the new value by its own size, which v and its
            # out-neighbours together see once each.
            rounded += 2.0 * (abs(value[v]) + abs(x)) + 2.0 * size * (degree + 1) + (1.0 - damping) * norm
            _join(v, CHANGED, marks, changed, counts, N_CHANGED)
            pushes += 1
            edges += degree
            if degree > 0:
                total += damping * x
                share = damping * x / degree
                for slot, stop in runs(rows, v):
                    for i in range(slot, stop):
                        u = np.int64(keys[i] & LOW)
                        before = residual[u]
                        after = before + share
                        residual[u] = after
                        size += abs(after) - abs(before)
                        rounded += abs(after)
                        if before == 0.0:
                            _join(u, REACHED, marks, reached, counts, N_REACHED)
                        if abs(after) > threshold and abs(after) > threshold * degrees[u]:
                            _wait(u, marks, waiting, counts)
            if work[EDGES] + edges + PUSH_EDGES * (work[PUSHES] + pushes) > cost_max:
                enough = False
                break
        level = max(1.0, 0.5 * level)
        if size > size_max and size < BALANCE_GAIN * walks.sums[BALANCED_AT] * norm:
            walks.sums[SIZE] = size
            walks.sums[TOTAL] = total
            if _balance(sources, walks):
                walks.sums[BALANCED_AT] = size / norm
            size = walks.sums[SIZE]
            total = walks.sums[TOTAL]
    walks.sums[SIZE] = size
    walks.sums[NORM] = norm
    walks.sums[TOTAL] = total
    walks.sums[ROUNDED] += rounded
    work[PUSHES] += pushes
    work[EDGES] += edges
    return enough


@_jit
def look_again(rows, threshold, walks):  # type: ignore[no-untyped-def]
    """Let every reached vertex wait whose residual is over the threshold, and add up the sizes anew."""
    residual = walks.residual
    degrees = rows.degrees
    marks, reached, waiting, counts = walks.marks, walks.reached, walks.waiting, walks.counts
    size = 0.0
    total = 0.0
    for i in range(counts[N_REACHED]):
        v = np.int64(reached[i])
        x = abs(residual[v])
        size += x
        total += residual[v]
        if x > threshold * max(1, degrees[v]):
            _wait(v, marks, waiting, counts)
    walks.sums[SIZE] = size
    walks.sums[TOTAL] = total


@_jit
def list_all(n, walks):  # type: ignore[no-untyped-def]
    """Lists and sums from values and residuals of all vertices; none waits, and changes are forgotten."""
    value, residual, marks, reached = walks.value, walks.residual, walks.marks, walks.reached
    counts = walks.counts
    counts[:] = 0
    size = norm = total = 0.0
    for v in range(n):
        marks[v] = np.uint8(0)
        if value[v] != 0.0 or residual[v] != 0.0:
            _join(v, REACHED, marks, reached, counts, N_REACHED)
            size += abs(residual[v])
            total += residual[v]
            norm += max(0.0, value[v])
    walks.sums[SIZE] = size
    walks.sums[NORM] = norm
    walks.sums[TOTAL] = total


@_jit
def take_changed(walks, out):  # type: ignore[no-untyped-def]
    """Copy the changed vertices to ``out`` (uint32, room for all of them) and forget them."""
    marks = walks.marks
    for i in range(walks.counts[N_CHANGED]):
        v = walks.changed[i]
        out[i] = v
        marks[v] &= np.uint8(255 - CHANGED)
    walks.counts[N_CHANGED] = 0
