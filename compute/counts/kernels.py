"""Shortest-path counts: their columns, counting from scratch, and the audit; on rows in place."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import fetch_add
from ...gpma.drawing import drawn_by
from ...gpma.edges import HALF, LOW, Vertices
from ...gpma.intrinsics import inner
from ...gpma.rows import SWEEP_PIECE, runs
from ...gpma.splice import spliced
from ...gpma.team import for_much, share

UNREACHED = np.uint32(0xFFFF_FFFF)
LIMIT = 2.0**53

# What finding a row costs, in edges, and how many pulled edges a pushed one is worth: pulls ask for no level.
_ROW_EDGES = 8
_PUSHED_EDGES = 2
# How much work is worth sharing, in edges, and how many vertices a thread takes at a time that look at their rows.
PARALLEL_MIN = 1 << 16
_PIECE = 256
# Levels and edges are added up by pieces, if there are not too many levels.
_TALLIED_PIECES = 64
_TALLIED_LEVELS = 256

NEXT, SATURATED = 0, 16
"""What is where in a cursor: the next place, and the vertices at the limit."""

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
_inner: Any = inner


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


@_inner
def pulling_is_cheaper(pushed_edges, pushed_rows, pulled_edges, pulled_rows, threads):  # type: ignore[no-untyped-def]
    """Whether to pull on so many threads rather than push on one. What comes of it is the same."""
    pushing = (pushed_edges + _ROW_EDGES * pushed_rows) * _PUSHED_EDGES * threads
    return pulled_edges + _ROW_EDGES * pulled_rows < pushing


@_inner
def _take_pieces(t, level, word, n, cursor, deepest):  # type: ignore[no-untyped-def]
    """Take the levels from words in pieces drawn from the cursor, and of each piece the number of levels."""
    for begin in drawn_by(cursor, n, SWEEP_PIECE):
        levels = np.int64(0)
        for v in range(begin, min(begin + SWEEP_PIECE, n)):
            level[v] = word[v] >> HALF
            levels = max(levels, np.int64(level[v]) + 1 if level[v] != UNREACHED else np.int64(0))
        deepest[begin // SWEEP_PIECE] = levels


@_jit
def take_levels(level, word, n, crew):  # type: ignore[no-untyped-def]
    """Take the levels from the search's words: the number of levels."""
    deepest = np.zeros(n // SWEEP_PIECE + 1, np.int64)
    cursor = np.zeros(1, np.int64)
    share(for_much(crew, n >= PARALLEL_MIN), _take_pieces, (level, word, n, cursor, deepest))
    return deepest.max()


@_inner
def _tally_pieces(t, counts, out, in_, n, size, cursor, tally):  # type: ignore[no-untyped-def]
    """Begin to count: of each piece of so many vertices ``tally`` gets those of each level, and their edges."""
    level, count = counts.level, counts.paths
    last = tally.shape[1] - 1
    for begin in drawn_by(cursor, n, size):
        piece = begin // size
        for v in range(begin, min(begin + size, n)):
            at = min(np.int64(level[v]), last)
            count[v] = 1.0 if level[v] == 0 else 0.0
            tally[piece, at, 0] += 1
            tally[piece, at, 1] += np.int64(out.degrees[v])
            tally[piece, at, 2] += np.int64(in_.degrees[v])


@_inner
def _order_pieces(t, level, order, n, size, cursor, tally):  # type: ignore[no-untyped-def]
    """Put the vertices in order by level, those of each piece where its ``tally`` says."""
    last = tally.shape[1] - 1
    for begin in drawn_by(cursor, n, size):
        piece = begin // size
        for v in range(begin, min(begin + size, n)):
            at = min(np.int64(level[v]), last)
            order[tally[piece, at, 0]] = v
            tally[piece, at, 0] += 1


@_inner
def _cap_pieces(t, count, above, order, end, pulled, cursor):  # type: ignore[no-untyped-def]
    """Cap the counts of order[.. end], which are complete, and write them down for those that pull."""
    saturated = np.int64(0)
    for begin in drawn_by(cursor, end, SWEEP_PIECE):
        for i in range(begin, min(begin + SWEEP_PIECE, end)):
            v = np.int64(order[i])
            # Sums of whole numbers are exact up to the limit, and never fall below it again: any order gives this.
            capped = min(count[v], LIMIT)
            count[v] = capped
            saturated += capped >= LIMIT
            if pulled:
                above[v] = capped
    fetch_add(cursor, SATURATED, saturated)


@_inner
def _clear_pieces(t, above, order, end, cursor):  # type: ignore[no-untyped-def]
    for begin in drawn_by(cursor, end, SWEEP_PIECE):
        for i in range(begin, min(begin + SWEEP_PIECE, end)):
            above[order[i]] = 0.0


@_jit
def count_all(counts, above, out, in_, n, n_levels, crew):  # type: ignore[no-untyped-def]
    """Count from scratch, level by level: (edges read, vertices counted, saturated ones).

    ``above``: float64[n], zeros, and so left. A level's counts are pushed on, or pulled by the next.
    """
    level, count, order = counts.level, counts.paths, counts.queue
    # Work of few vertices, or with a table of many levels for each piece, is one piece.
    n_pieces = _TALLIED_PIECES if n >= PARALLEL_MIN and n_levels <= _TALLIED_LEVELS else 1
    size = np.int64(n // n_pieces + 1)
    cursor = np.zeros(32, np.int64)
    # One more level, for those without one.
    tally = np.zeros((n_pieces, n_levels + 1, 3), np.int64)
    share(for_much(crew, n_pieces > 1), _tally_pieces, (counts, out, in_, n, size, cursor, tally))
    ends = np.zeros(n_levels + 1, np.int64)
    out_edges = np.zeros(n_levels + 1, np.int64)
    in_edges = np.zeros(n_levels + 1, np.int64)
    end = np.int64(0)
    for k in range(n_levels + 1):
        for piece in range(n_pieces):
            more = tally[piece, k, 0]
            tally[piece, k, 0] = end
            end += more
            out_edges[k] += tally[piece, k, 1]
            in_edges[k] += tally[piece, k, 2]
        ends[k] = end
    cursor[NEXT] = 0
    share(for_much(crew, n_pieces > 1), _order_pieces, (level, order, n, size, cursor, tally))
    edges = np.int64(0)
    begin = np.int64(0)
    for k in range(n_levels):
        end = ends[k]
        below = ends[k + 1] - end if k + 1 < n_levels else np.int64(0)
        threads = crew.threads if in_edges[k + 1] >= PARALLEL_MIN else 1
        pulled = below > 0 and pulling_is_cheaper(out_edges[k], end - begin, in_edges[k + 1], below, threads)
        some = for_much(crew, end - begin >= PARALLEL_MIN)
        cursor[NEXT] = begin
        share(some, _cap_pieces, (count, above, order, end, pulled, cursor))
        if below == 0:
            break
        if pulled:
            edges += in_edges[k + 1]
            cursor[NEXT] = end
            work = (count, above, in_, order, ends[k + 1], cursor, np.int64(_PIECE))
            share(for_much(crew, threads > 1), _pull_counts, work)
            cursor[NEXT] = begin
            share(some, _clear_pieces, (above, order, end, cursor))
        else:
            edges += out_edges[k]
            _push_counts(level, count, out, order, begin, end)
        begin = end
    return edges, ends[n_levels - 1] if n_levels else np.int64(0), cursor[SATURATED]


@_inner
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


@_inner
@spliced
def _pull_counts(t, count, above, in_, order, end, cursor, piece):  # type: ignore[no-untyped-def]
    """Count order[.. end], all of one level, in pieces drawn from the cursor.

    ``above`` holds the counts of the level before and nothing else, so that no level is asked for.
    """
    keys = in_.keys
    for begin in drawn_by(cursor, end, piece):
        for k in range(begin, min(begin + piece, end)):
            v = np.int64(order[k])
            total = 0.0
            for slot, stop in runs(in_, v):
                for i in range(slot, stop):
                    total += above[keys[i] & LOW]
            count[v] = total


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
