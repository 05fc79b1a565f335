"""Path programs with weights on much work, which threads share: steps of the best vertices that wait.

Vertices are taken in steps of the best ones left, the bound of a step being drawn from a sample, so that no step
width needs tuning (in the manner of Dong, Gu, Sun, Zhang, "Efficient Stepping Algorithms and Implementations for
Parallel Shortest Paths", SPAA 2021). Threads change words by compare-and-swap, only when the value strictly
improves.

Templates for ``templates.specialise``, with the conventions of ``mend.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import compare_swap, exchange, fetch_add, load
from ...gpma.drawing import drawn_by
from ...gpma.edges import HALF, LOW, Keys, Vertices
from ...gpma.intrinsics import prefetch_to_read
from ...gpma.rows import SWEEP_PIECE, runs
from ...gpma.splice import spliced
from ...gpma.team import at_most, for_much, share
from ...gpma.written import record_type
from .loss import GATHERED, Loss
from .mend import AHEAD, NOTHING, PARENT, UNREACHED
from .search import PARALLEL_EDGES, PARALLEL_SWEEP, PIECE
from .templates import template

_UNIT = np.float32(1)
# So many vertices on a pile are worth sharing.
_PARALLEL_MIN = 256
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
publish: Any = None
expand: Any = None
split: Any = None
note: Any = None
done_by_all: Any = None
put_off: Any = None


class Piles(NamedTuple):
    """Vertices whose value is still to be pushed on: ``near`` in this step, ``far`` later.

    ``near``, ``next_near``, ``far``, ``next_far``: uint32[>= n]; ``is_near``, ``is_far``: uint8[>= n], 1: listed;
    ``gathered``: uint32[threads, 3, GATHERED]; ``sample``: uint64[_SAMPLE]; ``tally``: int64[threads, 16];
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
        np.empty((threads, 3, GATHERED), np.uint32),
        np.empty(_SAMPLE, np.uint64),
        np.zeros((threads, 16), np.int64),
        np.zeros(80, np.int64),
    )


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
    for begin in drawn_by(cursor, n_near, piece):
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
                            if k_log == GATHERED:
                                publish(own_log, k_log, vertices, cursor, LOG_END)
                                k_log = np.int64(0)
                        if bound == NOTHING or not precedes(bound, bits):
                            if exchange(is_near, v, np.uint8(1)) == 0:
                                own_near[k_near] = v
                                k_near += 1
                                if k_near == GATHERED:
                                    publish(own_near, k_near, next_near, cursor, NEAR_END)
                                    k_near = np.int64(0)
                        elif is_far[v] == 0 and exchange(is_far, v, np.uint8(1)) == 0:
                            own_far[k_far] = v
                            k_far += 1
                            if k_far == GATHERED:
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
    for begin in drawn_by(cursor, n_far, piece):
        for k in range(begin, min(begin + piece, n_far)):
            if k + AHEAD < n_far:
                prefetch_to_read(word, np.int64(far[k + AHEAD]))
            v = far[k]
            value = word[v] >> HALF
            if bound != NOTHING and precedes(bound, value):
                own_far[k_far] = v
                k_far += 1
                if k_far == GATHERED:
                    publish(own_far, k_far, next_far, cursor, FAR_END)
                    k_far = np.int64(0)
                continue
            is_far[v] = 0
            if passed == NOTHING or precedes(passed, value):
                is_near[v] = 1
                edges += np.int64(degrees[v])
                own_near[k_near] = v
                k_near += 1
                if k_near == GATHERED:
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
    for first in drawn_by(cursor, end, SWEEP_PIECE):
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
        if n_far < PARALLEL_SWEEP:
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
            if n_near < _PARALLEL_MIN and ahead < PARALLEL_EDGES:
                expand(
                    np.int64(0), word, listed, vertices, out, near, n_near, n_near, piles, next_near, far, bound
                )
            else:
                piece = max(min(n_near // _SHARES, np.int64(PIECE)), np.int64(1))
                work = word, listed, vertices, out, near, n_near, piece, piles, next_near, far, bound
                share(at_most(crew, n_near // piece + 1), expand, work)
            ahead = np.int64(0)
            n_near = cursor[NEAR_END]
            near, next_near = next_near, near
        n_far = cursor[FAR_END]
    cursor[NEXT_PIECE] = 0
    noting = for_much(crew, cursor[LOG_END] >= PARALLEL_SWEEP)
    share(noting, note, (word, role, vertices, old, log.counted[0], cursor))
    log.counted[0] = cursor[LOG_END]
    read, _ = done_by_all(piles)
    return left, read, rounds
