"""Shortest-path counts: their columns, counting from scratch, and the audit; on rows in place."""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import fetch_add
from ...gpma.edges import HALF, LOW, Vertices
from ...gpma.rows import runs
from ...gpma.splice import spliced

UNREACHED = np.uint32(0xFFFF_FFFF)
LIMIT = 2.0**53

# What finding a row costs, in edges, and how many pulled edges a pushed one is worth: pulls ask for no level.
_ROW_EDGES = 8
_PUSHED_EDGES = 2
# How much work is worth a second thread, in edges, and how many vertices a thread takes at a time.
PARALLEL_MIN = 1 << 16
_PIECE = 256

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


class Counts(NamedTuple):
    """The counts and what changing them takes; all of one size, at least that of the graph.

    ``level`` uint32, UNREACHED for none: those on which the counts stand. ``paths`` float64: the counts.
    ``delta`` int64: what a count is to grow by; zeros between runs. ``role`` uint8: bits that
    ``recount.py`` explains. ``queue`` uint32: vertices to recount. ``changed`` uint32: those whose count
    is another.
    """

    level: npt.NDArray[np.uint32]
    paths: npt.NDArray[np.float64]
    delta: npt.NDArray[np.int64]
    role: npt.NDArray[np.uint8]
    queue: Vertices
    changed: Vertices


def no_counts() -> Counts:
    """Counts of no vertices."""
    return Counts(
        np.empty(0, np.uint32),
        np.empty(0, np.float64),
        np.empty(0, np.int64),
        np.empty(0, np.uint8),
        np.empty(0, np.uint32),
        np.empty(0, np.uint32),
    )


@_jit
def pulling_is_cheaper(pushed_edges, pushed_rows, pulled_edges, pulled_rows, threads):  # type: ignore[no-untyped-def]
    """Whether to pull on so many threads rather than push on one."""
    pushing = (pushed_edges + _ROW_EDGES * pushed_rows) * _PUSHED_EDGES * threads
    return pulled_edges + _ROW_EDGES * pulled_rows < pushing


@_jit
def take_levels(level, word, n):  # type: ignore[no-untyped-def]
    """Take the levels from the search's words: the number of levels."""
    levels = np.int64(0)
    for v in range(n):
        level[v] = word[v] >> HALF
        levels = max(levels, np.int64(level[v]) + 1 if level[v] != UNREACHED else np.int64(0))
    return levels


@_jit
def count_all(counts, above, out, in_, n, n_levels, threads):  # type: ignore[no-untyped-def]
    """Count from scratch, level by level: (edges read, vertices counted, saturated ones).

    ``above``: float64[n], zeros, and so left. A level's counts are pushed on, or pulled by the next.
    """
    level, count, order = counts.level, counts.paths, counts.queue
    # One more, for those without a level.
    ends = np.zeros(n_levels + 2, np.int64)
    out_edges = np.zeros(n_levels + 1, np.int64)
    in_edges = np.zeros(n_levels + 1, np.int64)
    for v in range(n):
        at = min(np.int64(level[v]), n_levels)
        count[v] = 1.0 if level[v] == 0 else 0.0
        ends[at + 1] += 1
        out_edges[at] += np.int64(out.degrees[v])
        in_edges[at] += np.int64(in_.degrees[v])
    for k in range(1, ends.size):
        ends[k] += ends[k - 1]
    for v in range(n):
        at = min(np.int64(level[v]), n_levels)
        order[ends[at]] = v
        ends[at] += 1
    # Each has moved on to where its level ends.
    cursor = np.zeros(1, np.int64)
    edges = np.int64(0)
    saturated = np.int64(0)
    begin = np.int64(0)
    for k in range(n_levels):
        end = ends[k]
        for i in range(begin, end):
            # Sums of whole numbers are exact up to the limit, and never fall below it again: any order gives this.
            count[order[i]] = min(count[order[i]], LIMIT)
            saturated += count[order[i]] >= LIMIT
        below = ends[k + 1] - end if k + 1 < n_levels else np.int64(0)
        if below == 0:
            break
        if pulling_is_cheaper(out_edges[k], end - begin, in_edges[k + 1], below, threads):
            edges += in_edges[k + 1]
            for i in range(begin, end):
                above[order[i]] = count[order[i]]
            cursor[0] = end
            if in_edges[k + 1] < PARALLEL_MIN:
                _pull_counts(count, above, in_, order, ends[k + 1], cursor, below)
            else:
                _pull_on_all(count, above, in_, order, ends[k + 1], cursor, threads)
            for i in range(begin, end):
                above[order[i]] = 0.0
        else:
            edges += out_edges[k]
            _push_counts(level, count, out, order, begin, end)
        begin = end
    return edges, ends[n_levels - 1] if n_levels else np.int64(0), saturated


@_jit
@spliced
def _push_counts(level, count, out, order, begin, end):  # type: ignore[no-untyped-def]
    """Add the counts of order[begin:end], all of one level, to those of the next."""
    keys = out.keys
    for k in range(begin, end):
        u = np.int64(order[k])
        below = np.int64(level[u]) + 1
        at_tail = count[u]
        for slot, stop in runs(out, u):
            for i in range(slot, stop):
                v = np.int64(keys[i] & LOW)
                if np.int64(level[v]) == below:
                    count[v] += at_tail


@_jit
@spliced
def _pull_counts(count, above, in_, order, end, cursor, piece):  # type: ignore[no-untyped-def]
    """Count order[.. end], all of one level, in pieces drawn from the cursor.

    ``above`` holds the counts of the level before and nothing else, so that no level is asked for.
    """
    keys = in_.keys
    while True:
        begin = fetch_add(cursor, 0, piece)
        if begin >= end:
            break
        for k in range(begin, min(begin + piece, end)):
            v = np.int64(order[k])
            total = 0.0
            for slot, stop in runs(in_, v):
                for i in range(slot, stop):
                    total += above[keys[i] & LOW]
            count[v] = total


@nb.njit(cache=True, nogil=True, error_model="numpy", parallel=True)
def _pull_on_all(count, above, in_, order, end, cursor, threads):  # type: ignore[no-untyped-def]
    for _ in nb.prange(threads):
        _pull_counts(count, above, in_, order, end, cursor, np.int64(_PIECE))


# Bits of what ``audit`` finds at a vertex.
WRONG_SOURCE, WRONG_HOPS, WRONG_PARENT, WRONG_COUNT, WRONG_WORD = 1, 2, 4, 8, 16


@_jit
@spliced
def audit(level, count, word, is_source, in_, begin, end_vertex, wrong):  # type: ignore[no-untyped-def]
    """Check vertices begin .. end_vertex - 1 by their in-edges; bits to ``wrong``; the edges read.

    Levels are proven, not only consistent: a level is one more than the least of the in-neighbours', so it
    falls on the way up and can end in nothing but a source.
    """
    edges = np.int64(0)
    for v in range(begin, end_vertex):
        flags = 0
        parent = word[v] & LOW
        least = np.int64(UNREACHED)
        parent_level = np.int64(UNREACHED)
        total = 0.0
        wanted = np.int64(level[v]) - 1
        edges += np.int64(in_.degrees[v])
        for slot, stop in runs(in_, v):
            for i in range(slot, stop):
                u = in_.keys[i] & LOW
                at = np.int64(level[u])
                least = min(least, at)
                if u == parent:
                    parent_level = at
                if at == wanted and at != np.int64(UNREACHED):
                    total += count[u]
        reached = least != np.int64(UNREACHED)
        if is_source[v - begin]:
            flags |= WRONG_SOURCE if level[v] != 0 or parent != LOW else 0
            flags |= WRONG_COUNT if count[v] != 1.0 else 0
        else:
            expected = least + 1 if reached else np.int64(UNREACHED)
            flags |= WRONG_HOPS if np.int64(level[v]) != expected else 0
            flags |= WRONG_PARENT if reached and parent_level != wanted else 0
            flags |= WRONG_PARENT if not reached and parent != LOW else 0
            flags |= WRONG_COUNT if count[v] != (min(total, LIMIT) if reached else 0.0) else 0
        flags |= WRONG_WORD if np.uint64(level[v]) != word[v] >> HALF else 0
        wrong[v - begin] = flags
    return edges
