"""Path programs on much work, which threads share: from scratch, or when more than some hundred vertices improve.

Where all edges offer alike, the search goes level by level and turns around when the frontier is large (Beamer,
Asanovic, Patterson, "Direction-Optimizing Breadth-First Search", SC 2012). A vertex gets the smallest parent on
the level above, so that nothing depends on the direction, or on who comes first. With weights, vertices are taken
in steps of the best ones left, the bound of a step being drawn from a sample, so that no step width needs tuning
(in the manner of Dong, Gu, Sun, Zhang, "Efficient Stepping Algorithms and Implementations for Parallel Shortest
Paths", SPAA 2021). Threads change words by compare-and-swap, only when the value strictly improves.

Templates for ``templates.specialise``, with the conventions of ``mend.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import compare_swap, exchange, fetch_add, load, ordered_swap
from ...gpma.edges import HALF, LOW, NO_VERTEX, Keys, Vertices
from ...gpma.intrinsics import lowest_bit, prefetch_to_read, uncounted_inner
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
from ...gpma.written import record_type
from .loss import Loss
from .mend import AHEAD, NOTHING, PARENT, UNREACHED
from .templates import template

_inner: Any = uncounted_inner
_ONE = np.uint64(1)
_UNIT = np.float32(1)

# Beamer et al.: pull when the frontier's edges exceed a share of those unexplored; push again when it shrank.
_PULL_SHARE = 15
_PUSH_SHARE = 18

# How much work is worth sharing, in vertices and edges, and how much of it a thread takes at a time.
_PARALLEL_MIN = 256
_PARALLEL_EDGES = 1 << 14
# So many vertices, too, whatever edges they have: those of the last frontiers are not counted.
_PARALLEL_FRONTIER = 1 << 10
_PARALLEL_SWEEP = 1 << 14
# A row of more edges is worth pushing by all threads, where few are on the frontier.
_LONG_ROW = 1 << 14
_PIECE = 64
_PIECES = 64
_CLEAR_PIECE = 1 << 14
# To find a row takes as long as to read so many edges as they come.
_ROW_EDGES = 8
# So many vertices' rows are asked for before the first of them is read.
_TOGETHER = 256
# A step takes the best vertices that wait, up to so many edges for each that waits, and at least as many as its
# caller says; the sample of those waiting that decides.
_STEP_EDGES = 1
_SAMPLE = 512
# Long steps are cheap where order matters little. In one that pushes so many times for each vertex it has to do
# with (and so many more) it does matter: that is broken off, and a heap goes on, or, where too many wait for one,
# steps that are shorter by so many bits.
_AGAIN, _AGAIN_MIN = 2, 1 << 11
_SHORTER, _SHORTEST = 3, 60
# So many pieces are made of a few vertices that are pushed.
_SHARES = 16
# Appended vertices are gathered per thread before they are published.
_GATHERED = 128

# What ``specialise`` puts in place.
WEIGHTED = False
offer: Any = None
improves: Any = None
precedes: Any = None
heap_push: Any = None
heap_sink: Any = None
ask_for_first_rows: Any = None
ask_for_rows: Any = None
ask_further: Any = None
ask_for_words: Any = None
push_level: Any = None
pull_level: Any = None
list_frontier: Any = None
expand: Any = None
split: Any = None
note: Any = None
done_by_all: Any = None
put_off: Any = None


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
    while True:
        begin = fetch_add(cursor, NEXT, np.int64(_CLEAR_PIECE))
        if begin >= n:
            return
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
    _GATHERED]; ``cursor``: int64[80], zeros; ``found``: uint32[n + 1], how many vertices each level has, from the
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
        np.empty((threads, _GATHERED), np.uint32),
        np.zeros(80, np.int64),
        np.empty(n + 1, np.uint32),
    )


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
    while True:
        begin = fetch_add(cursor, NEXT, piece)
        if begin >= end:
            break
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
                            if size == _GATHERED:
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
    while True:
        begin = fetch_add(cursor, NEXT, np.int64(SWEEP_PIECE))
        if begin >= n:
            break
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
    while True:
        begin = fetch_add(cursor, NEXT, np.int64(SWEEP_PIECE))
        if begin >= n:
            break
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
                    if size == _GATHERED:
                        publish(own, size, queue, cursor, TAIL)
                        size = np.int64(0)
    publish(own, size, queue, cursor, TAIL)


@template
def search_by_level(word, role, listed, sources, source_word, out, in_, n, n_arcs, queue, sweep, crew):  # type: ignore[no-untyped-def]
    """The whole search; (levels, edges read, vertices reached). It begins as ``clear`` does."""
    front, next_front, left, opens = sweep.front, sweep.next_front, sweep.left, sweep.opens
    parents, noted = sweep.parents, sweep.noted
    cursor, gathered, found = sweep.cursor, sweep.gathered, sweep.found
    sweeping = at_most(crew, n // SWEEP_PIECE + 1 if n >= _PARALLEL_SWEEP else np.int64(1))
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
            if few and ahead < _PARALLEL_EDGES:
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
                        n_pieces = cut_row(out, long, SWEEP_PIECE, left)
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
                piece: Any = max(min((tail - head) // _PIECES, _PIECE), 1)
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


# -- by value --------------------------------------------------------------------------------------------------


class Piles(NamedTuple):
    """Vertices whose value is still to be pushed on: ``near`` in this step, ``far`` later.

    ``near``, ``next_near``, ``far``, ``next_far``: uint32[>= n]; ``is_near``, ``is_far``: uint8[>= n], 1: listed;
    ``gathered``: uint32[threads, 3, _GATHERED]; ``sample``: uint64[_SAMPLE]; ``tally``: int64[threads, 16];
    ``cursor``: int64[80], five counters a cache line apart: the next piece, the ends of the near pile that is
    filled, of the far one and of the log, and the edges of the near one.
    """

    near: Vertices
    next_near: Vertices
    far: Vertices
    next_far: Vertices
    is_near: npt.NDArray[np.uint8]
    is_far: npt.NDArray[np.uint8]
    gathered: npt.NDArray[np.uint32]
    sample: Keys
    tally: npt.NDArray[np.int64]
    cursor: npt.NDArray[np.int64]


NEXT_PIECE, NEAR_END, FAR_END, LOG_END, NEAR_EDGES = 0, 16, 32, 48, 64


_pile, _marks = nb.uint32[::1], nb.uint8[::1]
_by_thread = nb.uint32[:, :, ::1], nb.uint64[::1], nb.int64[:, ::1], nb.int64[::1]
PILES = record_type(Piles, _pile, _pile, _pile, _pile, _marks, _marks, *_by_thread)


def new_piles(room: Loss, n: int, threads: int) -> Piles:
    """Empty piles for so many vertices, in the work space of settling: that is over when they are needed."""
    far, next_far = room.offers.view(np.uint32).reshape(2, -1)
    return Piles(
        room.queue,
        room.adopted,
        far,
        next_far,
        np.zeros(n, np.uint8),
        np.zeros(n, np.uint8),
        np.empty((threads, 3, _GATHERED), np.uint32),
        np.empty(_SAMPLE, np.uint64),
        np.zeros((threads, 16), np.int64),
        np.zeros(80, np.int64),
    )


@template
def publish(gathered, size, pile, cursor, end):  # type: ignore[no-untyped-def]
    """Append the first ``size`` vertices gathered by a thread to a pile that all share."""
    place = fetch_add(cursor, end, size)
    for k in range(min(size, pile.size - place)):
        pile[place + k] = gathered[k]


@template
@spliced
def expand_near(t, word, listed, vertices, out, near, n_near, piece, piles, next_near, far, bound):  # type: ignore[no-untyped-def]
    """Push on the vertices of ``near``, in pieces drawn from the cursor.

    A vertex that improves goes to the next near pile if it is within ``bound`` (NOTHING: any is), else to the
    far one, once each. A vertex is taken off the pile before its word is read, so an improvement that comes too
    late for this reading lists it again.
    """
    keys, weights, degrees = out.keys, out.weights, out.degrees
    cursor, is_near, is_far = piles.cursor, piles.is_near, piles.is_far
    own_near, own_far, own_log = piles.gathered[t, 0], piles.gathered[t, 1], piles.gathered[t, 2]
    edges = np.int64(0)
    pushed = np.int64(0)
    k_near = np.int64(0)
    k_far = np.int64(0)
    k_log = np.int64(0)
    while True:
        begin = fetch_add(cursor, NEXT_PIECE, piece)
        if begin >= n_near:
            break
        end = min(begin + piece, n_near)
        ask_for_first_rows(word, out, near, begin, end)
        for k in range(begin, end):
            ask_for_rows(word, out, near, k, end)
            u = np.uint64(near[k])
            exchange(is_near, np.int64(u), np.uint8(0))
            value = load(word, np.int64(u)) >> HALF
            remaining = np.int64(degrees[u])
            if remaining == 0:
                continue
            edges += remaining
            pushed += 1
            for slot, stop in runs(out, u):
                ask_further(out, remaining, slot)
                for i in range(slot, stop):
                    v = np.int64(keys[i] & LOW)
                    weight = weights[i] if WEIGHTED else _UNIT
                    bits = offer(value, weight)
                    head = load(word, v)
                    while improves(bits, head):
                        seen = compare_swap(word, v, head, (bits << HALF) | u)
                        if seen != head:
                            head = seen
                            continue
                        if listed[v] == 0 and exchange(listed, v, np.uint8(1)) == 0:
                            own_log[k_log] = v
                            k_log += 1
                            if k_log == _GATHERED:
                                publish(own_log, k_log, vertices, cursor, LOG_END)
                                k_log = np.int64(0)
                        if bound == NOTHING or not precedes(bound, bits):
                            if exchange(is_near, v, np.uint8(1)) == 0:
                                own_near[k_near] = v
                                k_near += 1
                                if k_near == _GATHERED:
                                    publish(own_near, k_near, next_near, cursor, NEAR_END)
                                    k_near = np.int64(0)
                        elif is_far[v] == 0 and exchange(is_far, v, np.uint8(1)) == 0:
                            own_far[k_far] = v
                            k_far += 1
                            if k_far == _GATHERED:
                                publish(own_far, k_far, far, cursor, FAR_END)
                                k_far = np.int64(0)
                        break
    publish(own_near, k_near, next_near, cursor, NEAR_END)
    publish(own_far, k_far, far, cursor, FAR_END)
    publish(own_log, k_log, vertices, cursor, LOG_END)
    piles.tally[t, 0] += edges
    piles.tally[t, 1] += pushed


@template
def split_far(t, word, degrees, piles, far, n_far, piece, near, next_far, passed, bound):  # type: ignore[no-untyped-def]
    """Deal the far pile, in pieces drawn from the cursor: what is within ``bound`` is near, the rest stays far.

    Vertices within ``passed``, the bound before, were pushed on as near ones meanwhile and are dropped.
    """
    cursor, is_near, is_far = piles.cursor, piles.is_near, piles.is_far
    own_near, own_far = piles.gathered[t, 0], piles.gathered[t, 1]
    edges = np.int64(0)
    k_near = np.int64(0)
    k_far = np.int64(0)
    while True:
        begin = fetch_add(cursor, NEXT_PIECE, piece)
        if begin >= n_far:
            break
        for k in range(begin, min(begin + piece, n_far)):
            if k + AHEAD < n_far:
                prefetch_to_read(word, np.int64(far[k + AHEAD]))
            v = far[k]
            value = word[v] >> HALF
            if bound != NOTHING and precedes(bound, value):
                own_far[k_far] = v
                k_far += 1
                if k_far == _GATHERED:
                    publish(own_far, k_far, next_far, cursor, FAR_END)
                    k_far = np.int64(0)
                continue
            is_far[v] = 0
            if passed == NOTHING or precedes(passed, value):
                is_near[v] = 1
                edges += np.int64(degrees[v])
                own_near[k_near] = v
                k_near += 1
                if k_near == _GATHERED:
                    publish(own_near, k_near, near, cursor, NEAR_END)
                    k_near = np.int64(0)
    publish(own_near, k_near, near, cursor, NEAR_END)
    publish(own_far, k_far, next_far, cursor, FAR_END)
    fetch_add(cursor, NEAR_EDGES, edges)


@template
def note_logged(t, word, role, vertices, old, begin, cursor):  # type: ignore[no-untyped-def]
    """Of the vertices in the log, in pieces drawn from the cursor: who is their parent; from ``begin`` on, that
    their old word is to be UNREACHED."""
    end = np.int64(cursor[LOG_END])
    while True:
        first = fetch_add(cursor, NEXT_PIECE, np.int64(SWEEP_PIECE))
        if first >= end:
            return
        for k in range(first, min(first + SWEEP_PIECE, end)):
            if k + AHEAD < end:
                prefetch_to_read(word, np.int64(vertices[k + AHEAD]))
            parent = word[vertices[k]] & LOW
            if parent != LOW:
                role[parent] = PARENT
            if k >= begin:
                old[k] = UNREACHED


@template
def step_bound(word, degrees, far, n_far, wanted, sample):  # type: ignore[no-untyped-def]
    """A value (bits) within which those of the far pile have about ``wanted`` edges, from a sample.

    NOTHING where that is nearly all of them.
    """
    size = min(n_far, _SAMPLE)
    if n_far <= _SAMPLE:
        edges = np.int64(0)
        for k in range(n_far):
            prefetch_to_read(degrees, np.int64(far[min(k + AHEAD, n_far - 1)]))
            edges += np.int64(degrees[far[k]])
        if edges <= wanted:
            return NOTHING
    for k in range(size):
        ahead = np.int64(far[(n_far - 1) * min(k + AHEAD, size - 1) // max(size - 1, 1)])
        prefetch_to_read(word, ahead)
        prefetch_to_read(degrees, ahead)
        v = far[(n_far - 1) * k // max(size - 1, 1)]
        heap_push(sample, k, (word[v] & ~LOW) | np.uint64(degrees[v]))
    edges = np.int64(0)
    for left in range(size - 1, -1, -1):
        best = sample[0]
        edges += np.int64(best & LOW) * n_far // size
        if edges > wanted:
            return best >> HALF
        heap_sink(sample, left, sample[left])
    return NOTHING


@template
def by_all(piles):  # type: ignore[no-untyped-def]
    """The edges that all threads have read since ``spread`` began, and the vertices that they have pushed."""
    edges = np.int64(0)
    pushed = np.int64(0)
    for t in range(piles.tally.shape[0]):
        edges += piles.tally[t, 0]
        pushed += piles.tally[t, 1]
    return edges, pushed


@template
def postpone(piles, near, n_near, far):  # type: ignore[no-untyped-def]
    """Put what is near on the far pile, behind what is there."""
    for k in range(n_near):
        v = near[k]
        piles.is_near[v] = 0
        if piles.is_far[v] == 0:
            piles.is_far[v] = 1
            far[piles.cursor[FAR_END]] = v
            piles.cursor[FAR_END] += 1


@template
def spread(word, log, role, entries, size, out, least, few, piles, crew):  # type: ignore[no-untyped-def]
    """Push on what improved, in steps, best values first: (entries left, edges read, rounds).

    ``entries[:size]``: what to begin with; repetitions and stale ones do no harm. A step takes vertices of at
    least ``least`` edges, unless that has vertices pushed again and again. Once it has, and not more than half as
    many as ``few`` wait, these are left in ``entries``, for a heap. Values only improve meanwhile, so
    vertices that were not in the log before are listed with the old word UNREACHED: it differs from theirs.
    """
    near, next_near, far, next_far = piles.near, piles.next_near, piles.far, piles.next_far
    degrees = out.degrees
    cursor, is_far = piles.cursor, piles.is_far
    listed, vertices, old = log.listed, log.vertices, log.old
    rounds = np.int64(0)
    n_far = np.int64(0)
    cursor[:] = 0
    piles.tally[:] = 0
    for k in range(size):
        v = np.int64(entries[k] & LOW)
        if is_far[v] == 0:
            is_far[v] = 1
            far[n_far] = v
            n_far += 1
    cursor[LOG_END] = log.counted[0]
    passed = NOTHING
    shorter = np.int64(0)
    left = np.int64(0)
    while n_far > 0:
        if shorter > 0 and 2 * n_far <= few:
            for k in range(n_far):
                v = np.int64(far[k])
                is_far[v] = 0
                entries[k] = (word[v] & ~LOW) | np.uint64(v)
            left = n_far
            break
        wanted = max(_STEP_EDGES * n_far, least) >> shorter
        bound = step_bound(word, degrees, far, n_far, wanted, piles.sample)
        for counter in (NEXT_PIECE, NEAR_END, FAR_END, NEAR_EDGES):
            cursor[counter] = 0
        if n_far < _PARALLEL_SWEEP:
            split(np.int64(0), word, degrees, piles, far, n_far, n_far, near, next_far, passed, bound)
        else:
            drawn = np.int64(SWEEP_PIECE)
            share(crew, split, (word, degrees, piles, far, n_far, drawn, near, next_far, passed, bound))
        n_near = cursor[NEAR_END]
        ahead = cursor[NEAR_EDGES]
        far, next_far = next_far, far
        passed = bound
        _, pushed = done_by_all(piles)
        most = pushed + _AGAIN * (n_near - cursor[LOG_END]) + _AGAIN_MIN
        while n_near > 0:
            _, pushed = done_by_all(piles)
            if pushed > most + _AGAIN * cursor[LOG_END]:
                put_off(piles, near, n_near, far)
                passed = NOTHING  # of those within the bound some are far now, and must not be dropped
                shorter = min(shorter + _SHORTER, np.int64(_SHORTEST))
                break
            rounds += 1
            cursor[NEXT_PIECE] = 0
            cursor[NEAR_END] = 0
            if n_near < _PARALLEL_MIN and ahead < _PARALLEL_EDGES:
                expand(
                    np.int64(0), word, listed, vertices, out, near, n_near, n_near, piles, next_near, far, bound
                )
            else:
                piece = max(min(n_near // _SHARES, np.int64(_PIECE)), np.int64(1))
                work = word, listed, vertices, out, near, n_near, piece, piles, next_near, far, bound
                share(at_most(crew, n_near // piece + 1), expand, work)
            ahead = np.int64(0)
            n_near = cursor[NEAR_END]
            near, next_near = next_near, near
        n_far = cursor[FAR_END]
    cursor[NEXT_PIECE] = 0
    if cursor[LOG_END] < _PARALLEL_SWEEP:
        note(np.int64(0), word, role, vertices, old, log.counted[0], cursor)
    else:
        share(crew, note, (word, role, vertices, old, log.counted[0], cursor))
    log.counted[0] = cursor[LOG_END]
    read, _ = done_by_all(piles)
    return left, read, rounds
