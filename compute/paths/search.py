"""Path programs without weights from scratch, or when more than some hundred vertices improve: threads share it.

Where all edges offer alike, the search goes level by level and turns around when the frontier is large (Beamer,
Asanovic, Patterson, "Direction-Optimizing Breadth-First Search", SC 2012). A vertex gets the smallest parent on
the level above, so that nothing depends on the direction, or on who comes first.

Templates for ``templates.specialise``, with the conventions of ``mend.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import compare_swap, fetch_add, load, ordered_swap
from ...gpma.drawing import drawn_by
from ...gpma.edges import HALF, LOW, NO_VERTEX, Keys, Vertices
from ...gpma.intrinsics import lowest_bit, uncounted_inner
from ...gpma.rows import (
    NEAR,
    SWEEP_PIECE,
    count_edges,
    cut_row,
    first_held,
    first_held_of_all,
    open_rows,
    runs,
    runs_on,
)
from ...gpma.splice import spliced
from ...gpma.team import Crew, at_most, share
from .loss import GATHERED
from .mend import NOTHING, PARENT, UNREACHED
from .templates import template

_inner: Any = uncounted_inner
_ONE = np.uint64(1)
_UNIT = np.float32(1)

# Beamer et al.: pull when the frontier's edges exceed a share of those unexplored; push again when it shrank.
_PULL_SHARE = 15
_PUSH_SHARE = 18

# How much work is worth sharing, in edges and vertices of a sweep, and how much of it a thread takes at a time.
PARALLEL_EDGES = 1 << 14
PARALLEL_SWEEP = 1 << 14
PIECE = 64
# So many vertices, too, whatever edges they have: those of the last frontiers are not counted.
_PARALLEL_FRONTIER = 1 << 10
# A row of more edges is worth pushing by all threads, where few are on the frontier.
_LONG_ROW = 1 << 14
_PIECES = 64
_CLEAR_PIECE = 1 << 14
# To find a row takes as long as to read so many edges as they come.
_ROW_EDGES = 8
# So many vertices' rows are asked for before the first of them is read.
_TOGETHER = 256

# What ``specialise`` puts in place.
WEIGHTED = False
offer: Any = None
ask_for_rows: Any = None
ask_for_words: Any = None
push_level: Any = None
pull_level: Any = None
list_frontier: Any = None


# -- before it begins ---------------------------------------------------------------------------------------------


def clear(word: Keys, role: npt.NDArray[np.uint8], listed: npt.NDArray[np.uint8], n: int, crew: Crew) -> None:
    """No vertex of n is reached, has a role or is listed any more. A search may take no longer than that does on
    one thread, so all threads do it."""
    _clear(word, role, listed, n, np.zeros(1, np.int64), crew)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _clear(word, role, listed, n, cursor, crew):  # type: ignore[no-untyped-def]
    share(at_most(crew, n // _CLEAR_PIECE + 1), clear_pieces, (word, role, listed, n, cursor))


@uncounted_inner
def clear_pieces(t, word, role, listed, n, cursor):  # type: ignore[no-untyped-def]
    """``clear`` for pieces of vertices drawn from the cursor."""
    for begin in drawn_by(cursor, n, _CLEAR_PIECE):
        end = min(begin + _CLEAR_PIECE, n)
        word[begin:end] = UNREACHED
        role[begin:end] = 0
        listed[begin:end] = 0


# -- level by level --------------------------------------------------------------------------------------------

FRESH = np.uint8(4)
"""In a vertex's role: it is reached in this level, if values do not tell."""

NEXT, TAIL, AHEAD_EDGES, EDGES, FOUND = 0, 16, 32, 48, 64
"""What is where in the cursor of a level: the next place, the end of the queue, the edges of the next frontier,
the edges read, the vertices found."""


class Sweep(NamedTuple):
    """Work space of a search by levels.

    ``front`` and ``next_front``: bitmaps, uint64[(n + 63) // 64]; ``left``: int64 by piece of a sweep,
    and ``opens``, ``parents``, ``noted`` and ``near``, as ``level_pull`` has them; ``gathered``: uint32[threads,
    GATHERED]; ``cursor``: int64[80], zeros; ``found``: uint32[n + 1], how many vertices each level has, from the
    sources on to the last that was looked for.
    """

    front: Keys
    next_front: Keys
    left: npt.NDArray[np.int64]
    opens: npt.NDArray[np.int64]
    parents: Keys
    noted: npt.NDArray[np.uint8]
    near: Vertices
    gathered: npt.NDArray[np.uint32]
    cursor: npt.NDArray[np.int64]
    found: Vertices


def new_sweep(n: int, threads: int) -> Sweep:
    """For so many vertices."""
    return Sweep(
        np.empty((n + 63) // 64, np.uint64),
        np.empty((n + 63) // 64, np.uint64),
        np.empty(n // SWEEP_PIECE + 1, np.int64),
        np.empty((threads, NEAR * _TOGETHER), np.int64),
        np.empty((threads, (n + 63) // 64), np.uint64),
        np.zeros(threads, np.uint8),
        np.empty((threads, SWEEP_PIECE), np.uint32),
        np.empty((threads, GATHERED), np.uint32),
        np.zeros(80, np.int64),
        np.empty(n + 1, np.uint32),
    )


@template
def publish(gathered, size, pile, cursor, end):  # type: ignore[no-untyped-def]
    """Append the first ``size`` vertices gathered by a thread to a pile that all share."""
    place = fetch_add(cursor, end, size)
    for k in range(min(size, pile.size - place)):
        pile[place + k] = gathered[k]


@template
@spliced
def level_push(t, word, role, out, queue, gathered, cursor, end, bits, piece, level, longest, row, opens):  # type: ignore[no-untyped-def]
    """Push the frontier queue[.. end], in pieces drawn from the cursor. ``level``: its value is ``bits``, too.

    Of those on the frontier that lead to a vertex the smallest becomes its parent. Who reaches it first queues it.
    Rows of more than ``longest`` edges are left out. ``row``: unless -1, this vertex instead of the frontier;
    pieces of its row begin at the slots ``opens[.. end]``.
    """
    keys, degrees = out.keys, out.degrees
    own = gathered[t]
    size = np.int64(0)
    edges = np.int64(0)
    ahead = np.int64(0)
    for begin in drawn_by(cursor, end, piece):
        for k in range(begin, min(begin + piece, end)):
            u = np.uint64(row) if row >= 0 else np.uint64(queue[k])
            left = np.int64(degrees[u])
            opening = np.int64(0)
            if row >= 0:
                opening = opens[k]
                left = min(left - k * SWEEP_PIECE, np.int64(SWEEP_PIECE))
            elif left > longest:
                continue
            else:
                ask_for_rows(word, out, queue, k, end)
                for slot, _ in runs(out, u):
                    opening = slot
                    break
            new = (bits << HALF) | u
            edges += left
            leads = False
            for slot, stop in runs_on(out, opening, left):
                ask_for_words(word, keys, slot, stop)
                for i in range(slot, stop):
                    v = np.int64(keys[i] & LOW)
                    head = load(word, v)
                    if head == UNREACHED:
                        if level:
                            role[v] |= FRESH
                        head = ordered_swap(word, v, UNREACHED, new)
                        if head == UNREACHED:
                            leads = True
                            ahead += np.int64(degrees[v])
                            own[size] = v
                            size += 1
                            if size == GATHERED:
                                publish(own, size, queue, cursor, TAIL)
                                size = np.int64(0)
                            continue
                    if head < new or (head ^ new) >> HALF != 0:
                        continue
                    if level:
                        ordered_swap(word, v, head, head)  # what follows is read after it
                        if role[v] & FRESH == 0:
                            continue
                    leads = True
                    while head > new:
                        seen = compare_swap(word, v, head, new)
                        head = new if seen == head else seen
            if leads:  # not at every edge: other threads may push this row, too
                role[u] |= PARENT
    publish(own, size, queue, cursor, TAIL)
    fetch_add(cursor, AHEAD_EDGES, ahead)
    fetch_add(cursor, EDGES, edges)


@_inner
def _count_waiting(word, degrees):  # type: ignore[no-untyped-def]
    """How many of these vertices are unreached and have edges."""
    n_waiting = np.int64(0)
    for j in range(word.size):
        n_waiting += np.int64((word[j] == UNREACHED) & (degrees[j] > 0))
    return n_waiting


@_inner
def _pull_in_order(word, in_, begin, end, n_edges, bits, front, next_front, waiting, parents, near):  # type: ignore[no-untyped-def]
    """The first pull of a piece, vertices begin .. end - 1, by reading all their edges as they come: (how many
    find a parent, how many still look).

    A loop for each column, so that many vertices are done by one instruction.
    """
    degrees = in_.degrees[begin:end]
    near[:] = NO_VERTEX
    first_held_of_all(in_, begin, end, n_edges, front, near)
    for j in range(near.size):
        near[j] = near[j] if word[j] == UNREACHED else NO_VERTEX
    for j in range(near.size):
        word[j] = (bits << HALF) | np.uint64(near[j]) if near[j] != NO_VERTEX else word[j]
    found, n_left = np.int64(0), np.int64(0)
    for k in range(next_front.size):
        of_near, of_word, of_degrees = near[k << 6 : (k + 1) << 6], word[k << 6 : (k + 1) << 6], degrees[k << 6 :]
        taken, looking = np.uint64(0), np.uint64(0)
        for bit in range(of_near.size):
            taken |= np.uint64(of_near[bit] != NO_VERTEX) << np.uint64(bit)
        for bit in range(of_near.size):
            looks = (of_word[bit] == UNREACHED) & (of_degrees[bit] > 0)
            looking |= np.uint64(looks) << np.uint64(bit)
        next_front[k] = taken
        while taken:
            parent = np.uint64(of_near[lowest_bit(taken)])
            parents[parent >> np.uint64(6)] |= _ONE << (parent & np.uint64(63))
            taken &= taken - _ONE
            found += 1
        while looking:
            waiting[n_left] = begin + (k << 6) + lowest_bit(looking)
            looking &= looking - _ONE
            n_left += 1
    return found, n_left


@template
@spliced
def level_pull(t, word, in_, n, bits, front, next_front, waiting, left, opens, parents, noted, near, cursor):  # type: ignore[no-untyped-def]
    """Unreached vertices, in pieces drawn from ``cursor``, look for a parent on the frontier.

    ``front`` and ``next_front``: bitmaps (uint64[(n + 63) // 64]), which stay in cache where the words do not.
    A piece is a multiple of 64 vertices, so that no two threads write one word of a bitmap. Of each piece those
    that still look stand in ``waiting`` (uint32[n]) from where it begins; ``left`` (int64[pieces]) are their
    numbers, -1 before the first pull. Listing them takes no branch, and whether a vertex looks is a toss-up.
    ``opens``: int64[threads, NEAR * _TOGETHER]. ``parents``: a bitmap by thread, uint64[threads, (n + 63) // 64],
    of those that were found, as most are found by many, and threads would take their roles from one another all
    the time; ``noted`` (uint8[threads]): which of these bitmaps say anything. ``near``: uint32[threads,
    SWEEP_PIECE]. Where rows are short, the first pull reads all edges of a piece.
    """
    keys, degrees = in_.keys, in_.degrees
    slots, own = opens[t], parents[t]
    edges = np.int64(0)
    found = np.int64(0)
    if noted[t] == 0:
        own[:] = np.uint64(0)
        noted[t] = 1
    for begin in drawn_by(cursor, n, SWEEP_PIECE):
        end = min(begin + SWEEP_PIECE, n)
        next_front[begin >> 6 : (end + 63) >> 6] = np.uint64(0)
        piece = begin // SWEEP_PIECE
        end_waiting = np.int64(begin + left[piece])
        if left[piece] < 0:
            n_edges = count_edges(in_, begin, end)
            if n_edges < _count_waiting(word[begin:end], degrees[begin:end]) * _ROW_EDGES:
                edges += n_edges
                found_here, left[piece] = _pull_in_order(
                    word[begin:end],
                    in_,
                    begin,
                    end,
                    n_edges,
                    bits,
                    front,
                    next_front[begin >> 6 : (end + 63) >> 6],
                    waiting[begin:end],
                    own,
                    near[t, : end - begin],
                )
                found += found_here
                continue
            end_waiting = np.int64(begin)
            for each in range(begin, end):
                waiting[end_waiting] = each
                end_waiting += np.int64(word[each] == UNREACHED) & np.int64(degrees[each] > 0)
        kept = begin
        for first in range(begin, end_waiting, _TOGETHER):
            last: Any = min(first + _TOGETHER, end_waiting)
            open_rows(in_, waiting, first, last, slots)
            for k in range(first, last):
                v = np.int64(waiting[k])
                waiting[kept] = v
                kept += 1
                # Most find one right away, and need not know where their row ends.
                opening: Any = slots[k - first]
                parent, _ = first_held(keys, opening, opening + 1, front)
                edges += 1
                if parent < 0:
                    for slot, stop in runs_on(in_, opening + 1, np.int64(degrees[v]) - 1):
                        parent, behind = first_held(keys, slot, stop, front)
                        edges += behind - slot
                        if parent >= 0:
                            break
                if parent >= 0:
                    word[v] = (bits << HALF) | np.uint64(parent)
                    own[parent >> 6] |= _ONE << np.uint64(parent & 63)
                    next_front[v >> 6] |= _ONE << np.uint64(v & 63)
                    found += 1
                    kept -= 1
        left[piece] = kept - begin
    fetch_add(cursor, FOUND, found)
    fetch_add(cursor, EDGES, edges)


@template
def frontier(t, front, parents, noted, role, n, queue, gathered, cursor):  # type: ignore[no-untyped-def]
    """Append the vertices in a bitmap to the queue, and give the ``parents`` that pulls noted their role.

    In pieces drawn from the cursor."""
    own = gathered[t]
    size = np.int64(0)
    for begin in drawn_by(cursor, n, SWEEP_PIECE):
        for k in range(begin >> 6, (min(begin + SWEEP_PIECE, n) + 63) >> 6):
            found = np.uint64(0)
            for other in range(noted.size):
                found |= parents[other, k] if noted[other] else np.uint64(0)
            if found:
                # A toss-up for each, and no branch: many are done by one instruction.
                for bit in range(min(np.int64(64), n - (k << 6))):
                    role[np.uintp((k << 6) + bit)] |= np.uint8(found >> np.uint64(bit)) & PARENT
            for v in range(k << 6, min((k + 1) << 6, n) if front[k] else k << 6):
                if (front[k] >> np.uint64(v & 63)) & _ONE:
                    own[size] = v
                    size += 1
                    if size == GATHERED:
                        publish(own, size, queue, cursor, TAIL)
                        size = np.int64(0)
    publish(own, size, queue, cursor, TAIL)


@template
def search_by_level(word, role, listed, sources, source_word, out, in_, n, n_arcs, queue, sweep, crew):  # type: ignore[no-untyped-def]
    """The whole search; (levels, edges read, vertices reached). It begins as ``clear`` does."""
    front, next_front, left, opens = sweep.front, sweep.next_front, sweep.left, sweep.opens
    parents, noted = sweep.parents, sweep.noted
    cursor, gathered, found = sweep.cursor, sweep.gathered, sweep.found
    sweeping = at_most(crew, n // SWEEP_PIECE + 1 if n >= PARALLEL_SWEEP else np.int64(1))
    share(at_most(crew, word.size // _CLEAR_PIECE + 1), clear_pieces, (word, role, listed, word.size, cursor))
    tail = np.int64(0)
    ahead = np.int64(0)
    for k in range(sources.size):
        if word[sources[k]] == UNREACHED:
            word[sources[k]] = source_word
            queue[tail] = sources[k]
            tail += 1
            ahead += np.int64(out.degrees[sources[k]])
    head = np.int64(0)
    levels = np.int64(0)
    value = source_word >> HALF
    unexplored = n_arcs
    reached = tail
    found[0] = tail
    while head < tail:
        bits = offer(value, _UNIT)
        if bits == NOTHING:
            break
        if ahead * _PULL_SHARE <= unexplored or ahead * _PUSH_SHARE <= n:
            unexplored -= ahead
            cursor[NEXT] = head
            cursor[TAIL] = tail
            cursor[AHEAD_EDGES] = 0
            level = bits == value
            few = tail - head < _PARALLEL_FRONTIER
            if few and ahead < PARALLEL_EDGES:
                push_level(
                    np.int64(0),
                    word,
                    role,
                    out,
                    queue,
                    gathered,
                    cursor,
                    tail,
                    bits,
                    tail - head,
                    level,
                    n,
                    np.int64(-1),
                    left,
                )
            else:
                longest = np.int64(_LONG_ROW) if few else np.int64(n)
                one: Any = np.int64(1)
                for k in range(head, tail if few else head):
                    long = np.int64(queue[k])
                    if np.int64(out.degrees[long]) > longest:
                        n_pieces = cut_row(out, long, left)
                        cursor[NEXT] = 0
                        work = (
                            word,
                            role,
                            out,
                            queue,
                            gathered,
                            cursor,
                            n_pieces,
                            bits,
                            one,
                            level,
                            longest,
                            long,
                            left,
                        )
                        share(at_most(crew, n_pieces), push_level, work)
                cursor[NEXT] = head
                piece: Any = max(min((tail - head) // _PIECES, PIECE), 1)
                helped = at_most(crew, (tail - head) // piece + 1)
                none: Any = np.int64(-1)
                work = word, role, out, queue, gathered, cursor, tail, bits, piece, level, longest, none, left
                share(helped, push_level, work)
            head = tail
            tail = cursor[TAIL]
            ahead = cursor[AHEAD_EDGES]
            for k in range(head, tail if level else head):
                role[queue[k]] &= ~FRESH
            reached += tail - head
            value = bits
            levels += 1
            found[levels] = tail - head
            continue
        front[:] = np.uint64(0)
        for k in range(head, tail):
            u = np.uint64(queue[k])
            front[u >> np.uint64(6)] |= _ONE << (u & np.uint64(63))
        for k in range(left.size):
            left[k] = -1
        awake = tail - head
        before = np.int64(0)
        while awake > 0 and (awake >= before or awake * _PUSH_SHARE > n):
            bits = offer(value, _UNIT)
            if bits == NOTHING:
                break
            before = awake
            cursor[NEXT] = 0
            cursor[FOUND] = 0
            work_of_pull = (
                word,
                in_,
                n,
                bits,
                front,
                next_front,
                queue,
                left,
                opens,
                parents,
                noted,
                sweep.near,
                cursor,
            )
            share(sweeping, pull_level, work_of_pull)
            awake = cursor[FOUND]
            reached += awake
            levels += 1
            found[levels] = awake
            value = bits
            front, next_front = next_front, front
        head = np.int64(0)
        cursor[NEXT] = 0
        cursor[TAIL] = 0
        work_of_list = front, parents, noted, role, n, queue, gathered, cursor
        share(sweeping, list_frontier, work_of_list)
        tail = cursor[TAIL]
        # What is left is small, and pulling again would cost a pass over all vertices: push to the end.
        ahead = np.int64(0)
        unexplored = np.int64(1 << 62)
    return levels, cursor[EDGES], reached
