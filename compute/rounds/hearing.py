"""One round after a change: who hears of another vote is asked, and votes anew where its lead may be gone.

Of each vertex and round its label is kept, and a *lead*: by how many votes that label is ahead of any other, or
less. What a vertex hears moves its lead: a vote for its label that comes or goes by one, and one that comes for
another label by one too, as if all of these were for the same. While the lead stays above 0 the label does. And
where it was 0, a tie that the smaller external id won, it stays while the lead does not fall: no other label has
gained on it. So a row is read again only where the lead fell, and to 0 or below.

Threads add up what is heard, for which no order matters.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import fetch_add
from ...gpma.drawing import drawn_by
from ...gpma.edges import HALF, LOW, NO_VERTEX, Int, Keys, Offsets, Vertices
from ...gpma.index.id_order import IdOrder
from ...gpma.intrinsics import uncounted
from ...gpma.rows import RowView, runs
from ...gpma.splice import spliced
from ...gpma.team import at_most, share
from ..links import entries_of
from .vote import TABLE_MIN, Table, elected, fits, new_table

# How many arcs or vertices a thread takes at a time, how many of those that it asks it collects before it lists
# them, and how many entries of rows are worth sharing.
_ARCS = 512
_VERTICES = 64
_COLLECTED = 256
_PARALLEL_MIN = 1 << 14

NEXT, N_ASKED, N_MOVED, N_READ, N_ENTRIES = 0, 16, 32, 48, 64
"""What is where in a cursor (int64[80], a cache line apart): the next piece; how many are asked, how many got
another label; the entries read, and those of the rows of who got another label."""

LEAD_MAX = np.int64(0xFFFF)
"""Larger leads are kept as this one."""

# What a vertex has heard, in one word: by how much its lead changes << HEARD, and how often it heard of something.
# The latter is never 0 then, and no vertex hears of 2^32 things in a round: it has fewer than 2^31 neighbours.
_HEARD = 32

# What is where in the counts of a thread: those it collected, entries read, entries of the rows of who moved, and
# those of a row that its table is too small for.
_MINE, _READ, _ENTRIES, _WIDEST = 0, 1, 2, 3

# Bits of what ``audit`` finds at a vertex.
WRONG_LABEL, WRONG_LEAD = 1, 2

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


class Round(NamedTuple):
    """Of each vertex its label in the round ``before`` (uint32), its label in this one, and its lead (uint16)."""

    before: Vertices
    label: Vertices
    lead: npt.NDArray[np.uint16]


class Scratch(NamedTuple):
    """What rounds use; columns of one size, at least that of the graph.

    ``heard`` int64: words as above; zeros between rounds. ``asked`` uint32: the vertices that have heard of
    something. ``was`` uint32: what label those had that got another one in the round before; else ``NO_VERTEX``.
    ``moved`` uint32: these vertices. ``moving``: those of this round.
    """

    heard: npt.NDArray[np.int64]
    asked: Vertices
    was: Vertices
    moved: Vertices
    moving: Vertices


class Votes(NamedTuple):
    """The votes of a change: keys of voter and whom it votes for, without loops; those that began and ended."""

    begun: Keys
    ended: Keys


# -- hearing ------------------------------------------------------------------------------------------------------


@_jit
def tell(votes, moved, entries, out, in_, both, state, scratch, cursor, crew):  # type: ignore[no-untyped-def]
    """Tell all of the votes that began and ended, and of the ``moved`` vertices' other labels.

    ``entries``: of the rows of these. A vote that began or ended was for the label of before; with the voter's
    other label it moves along all arcs that there are now. ``was`` is as between refreshes afterwards.
    """
    n_votes = votes.begun.size + votes.ended.size
    is_large = n_votes + entries >= _PARALLEL_MIN
    pieces = n_votes // _ARCS + 1 if is_large else np.int64(1)
    share(at_most(crew, pieces), _tell_votes, (votes, state, scratch, cursor))
    cursor[NEXT] = 0
    pieces = moved // _VERTICES + 1 if is_large else np.int64(1)
    share(at_most(crew, pieces), _tell_moves, (moved, out, in_, both, state, scratch, cursor))
    cursor[NEXT] = 0


@_jit
def _tell_votes(t, votes, state, scratch, cursor):  # type: ignore[no-untyped-def]
    mine = np.empty(_COLLECTED, np.uint32)
    n_votes, n = votes.begun.size + votes.ended.size, np.int64(0)
    for begin in drawn_by(cursor, n_votes, _ARCS):
        n = _tell_some_votes(votes, begin, min(begin + _ARCS, n_votes), state, scratch, cursor, mine, n)
    _list(scratch.asked, cursor, N_ASKED, mine, n)


@uncounted
def _tell_some_votes(
    votes: Votes, begin: Int, end: Int, state: Round, scratch: Scratch, cursor: Offsets, mine: Vertices, n: Int
) -> Int:
    """Tell of votes[begin:end], those that ended behind those that began; how many ``mine`` are collected then."""
    n_begun, collected = votes.begun.size, np.int64(n)
    for k in range(begin, end):
        begins = k < n_begun
        key = votes.begun[k] if begins else votes.ended[k - n_begun]
        u, v = np.int64(key >> HALF), np.int64(key & LOW)
        label = scratch.was[u] if scratch.was[u] != NO_VERTEX else state.before[u]
        if label == state.label[v]:
            collected = _hear(scratch, cursor, v, np.int64(1) if begins else np.int64(-1), mine, collected)
        elif begins:
            collected = _hear(scratch, cursor, v, np.int64(-1), mine, collected)
    return collected


@_jit
def _tell_moves(t, moved, out, in_, both, state, scratch, cursor):  # type: ignore[no-untyped-def]
    mine = np.empty(_COLLECTED, np.uint32)
    n = np.int64(0)
    for begin in drawn_by(cursor, moved, _VERTICES):
        for k in range(begin, min(begin + _VERTICES, moved)):
            u = np.int64(scratch.moved[k])
            n = _tell_row(out, u, state, scratch, cursor, mine, n)
            if both:
                n = _tell_row(in_, u, state, scratch, cursor, mine, n)
            scratch.was[u] = NO_VERTEX
    _list(scratch.asked, cursor, N_ASKED, mine, n)


@uncounted
@spliced
def _tell_row(
    rows: RowView, u: Int, state: Round, scratch: Scratch, cursor: Offsets, mine: Vertices, n: Int
) -> Int:
    """Tell a row of u that its vote is for another label; how many ``mine`` are collected then."""
    was, now, collected = scratch.was[u], state.before[u], np.int64(n)
    for first, stop in runs(rows, u):
        for i in range(first, stop):
            v = np.int64(rows.keys[i] & LOW)
            if v != u:
                label = state.label[v]
                change = np.int64(1 if now == label else -1) - np.int64(was == label)
                collected = _hear(scratch, cursor, v, change, mine, collected)
    return collected


@uncounted
def _hear(scratch: Scratch, cursor: Offsets, v: Int, change: Int, mine: Vertices, n: Int) -> Int:
    """Let v hear of something; whoever is the first to tell it collects it among ``mine``: how many these are."""
    collected = np.int64(n)
    if fetch_add(scratch.heard, v, (np.int64(change) << _HEARD) + 1) == 0:
        if collected == mine.size:
            _list(scratch.asked, cursor, N_ASKED, mine, collected)
            collected = np.int64(0)
        mine[collected] = v
        collected += 1
    return collected


@uncounted
def _list(vertices: Vertices, cursor: Offsets, count: Int, mine: Vertices, n: Int) -> None:
    """Put the first n of ``mine`` behind the vertices that are listed."""
    to = fetch_add(cursor, count, np.int64(n))
    for k in range(n):
        vertices[to + k] = mine[k]


# -- voting -------------------------------------------------------------------------------------------------------


@_jit
def settle(n, whole, out, in_, both, state, scratch, order, cursor, crew):  # type: ignore[no-untyped-def]
    """Let the n first of those who were asked have the label that they have now, or all n vertices (``whole``).

    Who gets another label is among the ``moving``, and ``was`` says which it had.
    """
    is_large = whole or n >= _PARALLEL_MIN // _VERTICES
    pieces = n // _VERTICES + 1 if is_large else np.int64(1)
    share(at_most(crew, pieces), _settle_pieces, (n, whole, out, in_, both, state, scratch, order, cursor))
    cursor[NEXT] = 0


@_jit
def _settle_pieces(t, n, whole, out, in_, both, state, scratch, order, cursor):  # type: ignore[no-untyped-def]
    table = new_table(np.int64(TABLE_MIN // 2))
    mine, counts = np.empty(_VERTICES, np.uint32), np.zeros(4, np.int64)
    for begin in drawn_by(cursor, n, _VERTICES):
        end = min(begin + _VERTICES, n)
        while begin < end:
            begin = _settle_some(begin, end, whole, out, in_, both, state, scratch, order, table, mine, counts)
            if begin < end:
                table = new_table(counts[_WIDEST])
        _list(scratch.moving, cursor, N_MOVED, mine, counts[_MINE])
        counts[_MINE] = 0
    fetch_add(cursor, N_READ, counts[_READ])
    fetch_add(cursor, N_ENTRIES, counts[_ENTRIES])


@uncounted
def _settle_some(
    begin: Int,
    end: Int,
    whole: bool,
    out: RowView,
    in_: RowView,
    both: bool,
    state: Round,
    scratch: Scratch,
    order: IdOrder,
    table: Table,
    mine: Vertices,
    counts: Offsets,
) -> Int:
    """Settle asked[begin:end], or these vertices: where it stopped, which is at ``end`` or where a row is too
    wide for the table."""
    for k in range(begin, end):
        v = np.int64(k) if whole else np.int64(scratch.asked[k])
        if not whole:
            change = scratch.heard[v] >> _HEARD
            lead = np.int64(state.lead[v]) + change
            if change >= 0 or lead > 0:
                scratch.heard[v] = 0
                state.lead[v] = min(lead, LEAD_MAX)
                continue
        entries = entries_of(out, in_, both, v)
        if not fits(table, entries):
            counts[_WIDEST] = entries
            return np.int64(k)
        scratch.heard[v] = 0
        counts[_READ] += entries
        label, lead = elected(out, in_, both, v, state.before, table, order)
        state.lead[v] = min(lead, LEAD_MAX)
        if label != np.int64(state.label[v]):
            scratch.was[v] = state.label[v]
            state.label[v] = label
            mine[counts[_MINE]] = v
            counts[_MINE] += 1
            counts[_ENTRIES] += entries
    return np.int64(end)


# -- the audit ----------------------------------------------------------------------------------------------------


@_jit
def audit(out, in_, both, state, order, begin, end, wrong):  # type: ignore[no-untyped-def]
    """Let vertices begin .. end - 1 vote in one round: bits of what is wrong to ``wrong``; the entries read."""
    widest, read = np.int64(0), np.int64(0)
    for v in range(begin, end):
        widest = max(widest, entries_of(out, in_, both, v))
        read += entries_of(out, in_, both, v)
    table = new_table(widest)
    for v in range(begin, end):
        label, lead = elected(out, in_, both, v, state.before, table, order)
        if label != np.int64(state.label[v]):
            wrong[v - begin] |= np.uint8(WRONG_LABEL)
        elif np.int64(state.lead[v]) > lead:
            wrong[v - begin] |= np.uint8(WRONG_LEAD)
    return read
