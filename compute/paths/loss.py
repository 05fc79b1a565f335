"""Settling lost support: who has another one keeps its value, who has none takes the best that is left.

First to the end, by rounds: the in-edges of every vertex without support are surveyed. If one offers exactly its
value, from a tail that does not depend on the vertex, that tail is adopted as its parent. Else the vertex is
**lost**: it keeps its value, with the parent LOST, so that others see both; its children are the next round.
(Should an adopted parent be lost later, its children come again.) Then every lost vertex takes the best that was
found.

Three facts spare reading rows a second time:

- While this goes on values only go away, so what a survey found best stays the best unless its tail is lost.
- What a vertex gets is no better than what it had, so only lost vertices can gain by that. An edge between two of
  them matters only if its tail offered more, with the value it had, than the best found for its head: these
  **inner** edges are listed, and relaxing them takes the place of pushing on whole rows.
- What offers a vertex more than it had is a new edge, or has a new weight: it waits among the improving edges that
  ``classify`` found.

The two reading steps of a round write nothing that they read, and run on all threads where there is much to read.
What they found is decided between them, on one.

Templates for ``templates.specialise``, with the conventions of ``mend.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import fetch_add
from ...gpma.edges import HALF, HIGH, LOW, Keys, Vertices
from ...gpma.rows import runs
from ...gpma.splice import spliced
from .mend import LOST, PARENT, UNREACHED
from .templates import template

_UNIT = np.float32(1)

# How many vertices are worth a second thread, and how many a thread takes at a time.
_PARALLEL_MIN = 512
_PIECE = 128
# Steps along parents of equal value in search of support, besides one for each in-edge.
_STEPS = 32
# Passes over the inner edges; what still changes in the last is pushed on along rows.
_PASSES = 4
# Found children are gathered per thread before they are published.
_GATHERED = 128

# What ``specialise`` puts in place.
WEIGHTED = False
offer: Any = None
improves: Any = None
precedes: Any = None
write: Any = None
ask_for_first_rows: Any = None
ask_for_rows: Any = None
ask_for_words: Any = None
publish: Any = None
stands_alone: Any = None
keep_better: Any = None
survey_pieces: Any = None
decide_round: Any = None
find_children: Any = None
take_offers: Any = None
relax_inner: Any = None

ASKED = np.uint8(2)
"""In a vertex's role: it must be pushed on along its row."""

NEXT_PIECE, QUEUE_END = 0, 16


class Loss(NamedTuple):
    """What settling works on.

    ``queue`` uint32[>= n]: vertices without support, and in the end the lost ones in front; ``adopted`` uint32 and
    ``offers`` uint64 of that size: the outcome of their survey, LOST and UNREACHED standing for none; once a round
    is decided, ``adopted`` names its lost vertices that may have children.
    ``tails``, ``heads`` uint32[threads, edges] and ``weights`` float32: inner edges. ``gathered``: uint32[threads,
    _GATHERED]; ``tally``: int64[threads, 16]: inner edges, edges read; ``cursor``: int64[32].
    """

    queue: Vertices
    adopted: Vertices
    offers: Keys
    tails: Vertices
    heads: Vertices
    weights: npt.NDArray[np.float32]
    gathered: Vertices
    tally: npt.NDArray[np.int64]
    cursor: npt.NDArray[np.int64]


def new_loss(n: int, threads: int) -> Loss:
    """Work space for so many vertices: room for n / 4 inner edges is divided between the threads.

    Where a thread has no room for one, its tail is pushed on along its row instead.
    """
    room, inner = n + 1024, n // (4 * threads) + 1024
    return Loss(
        np.empty(room, np.uint32),
        np.empty(room, np.uint32),
        np.empty(room, np.uint64),
        np.empty((threads, inner), np.uint32),
        np.empty((threads, inner), np.uint32),
        np.empty((threads, inner), np.float32),
        np.empty((threads, _GATHERED), np.uint32),
        np.zeros((threads, 16), np.int64),
        np.zeros(32, np.int64),
    )


@template
def is_independent(word, at_tail, v, value, steps):  # type: ignore[no-untyped-def]
    """Whether a tail with the word ``at_tail`` surely does not depend on v, which has this value (bits).

    It would if its parents led to v. Values never get worse on the way there: those of a strictly better tail do
    not, and from an equal one parents are followed until they are strictly better, or a source; ``steps`` at most.
    """
    while (at_tail >> HALF) == value and steps > 0:
        parent = at_tail & LOW
        if parent == LOW or parent == LOST or parent == v:  # noqa: SIM109 - a tuple is slow here
            break
        at_tail = word[parent]
        steps -= 1
    return (at_tail & LOW) != LOST and ((at_tail >> HALF) != value or (at_tail & LOW) == LOW)


@template
def keep_those_better(word, tails, heads, weights, begin, end, best):  # type: ignore[no-untyped-def]
    """Of the inner edges begin .. end - 1 only those that offered more than the word ``best``: their new end."""
    kept = begin
    for e in range(begin, end):
        if improves(offer(word[tails[e]] >> HALF, weights[e]), best):
            tails[kept] = tails[e]
            heads[kept] = heads[e]
            weights[kept] = weights[e]
            kept += 1
    return kept


@template
@spliced
def survey(word, role, in_, loss, end, piece, t):  # type: ignore[no-untyped-def]
    """Read the in-edges of ``queue[.. end]``, in pieces drawn from the cursor."""
    keys, weights = in_.keys, in_.weights
    queue, cursor, tally = loss.queue, loss.cursor, loss.tally
    tails, heads, inner_weights = loss.tails[t], loss.heads[t], loss.weights[t]
    n_inner = tally[t, 0]
    read = np.int64(0)
    while True:
        begin = fetch_add(cursor, NEXT_PIECE, piece)
        if begin >= end:
            break
        piece_end = min(begin + piece, end)
        ask_for_first_rows(word, in_, queue, begin, piece_end)
        for k in range(begin, piece_end):
            ask_for_rows(word, in_, queue, k, piece_end)
            v = np.uint64(queue[k])
            value = word[v] >> HALF
            adopted = LOST
            best = UNREACHED
            first_inner = n_inner
            for slot, stop in runs(in_, v):
                ask_for_words(word, keys, slot, stop)
                i = slot
                while i < stop:
                    u = keys[i] & LOW
                    at_tail = word[u]
                    weight = weights[i] if WEIGHTED else _UNIT
                    i += 1
                    if at_tail == UNREACHED:
                        continue
                    bits = offer(at_tail >> HALF, weight)
                    if bits != value:
                        if not improves(bits, best) or precedes(bits, value):
                            continue
                        if (at_tail & LOW) != LOST:
                            best = (bits << HALF) | u
                            continue
                    if u == v:
                        continue
                    if (at_tail & LOW) != LOST:
                        if stands_alone(word, at_tail, v, value, np.int64(_STEPS)):
                            adopted = u
                            break
                        if improves(bits, best):
                            best = (bits << HALF) | u
                    elif n_inner < tails.size:
                        tails[n_inner] = u
                        heads[n_inner] = v
                        inner_weights[n_inner] = weight
                        n_inner += 1
                    else:
                        role[u] |= ASKED
                read += i - slot
                if adopted != LOST:
                    break
            if adopted != LOST:
                best = (value << HALF) | adopted
            loss.adopted[k] = adopted
            loss.offers[k] = best
            n_inner = keep_better(word, tails, heads, inner_weights, first_inner, n_inner, best)
    tally[t, 0] = n_inner
    tally[t, 1] += read


@template
def decide(word, log, role, loss, head, tail, n_lost):  # type: ignore[no-untyped-def]
    """Settle who of ``queue[head:tail]`` has a new parent and who is lost: (the lost, those with children).

    The lost of all rounds are counted; of this round's, ``adopted`` names those who may have children, from
    ``head`` on.
    """
    queue, adopted, offers = loss.queue, loss.adopted, loss.offers
    n_parents = np.int64(0)
    for k in range(head, tail):
        v = np.uint64(queue[k])
        own = word[v]
        if (own & LOW) == LOST:
            continue
        u = np.uint64(adopted[k])
        # Others were decided since the survey: the tail may be lost, or may have come to depend on v.
        if u != LOST and (word[u] & LOW) != LOST and stands_alone(word, word[u], v, own >> HALF, np.int64(_STEPS)):
            write(word, log, v, (own & HIGH) | u)
            role[u] |= PARENT
        else:
            write(word, log, v, (own & HIGH) | LOST)
            queue[n_lost] = v
            offers[n_lost] = offers[k]
            n_lost += 1
            if role[v] & PARENT:
                role[v] &= ~PARENT
                adopted[head + n_parents] = v
                n_parents += 1
    return n_lost, n_parents


@template
@spliced
def children(word, out, loss, end, piece, t):  # type: ignore[no-untyped-def]
    """Append the children of ``adopted[.. end]``, in pieces drawn from the cursor, to the queue."""
    keys, degrees = out.keys, out.degrees
    parents, queue, cursor, gathered = loss.adopted, loss.queue, loss.cursor, loss.gathered[t]
    n_gathered = np.int64(0)
    read = np.int64(0)
    while True:
        begin = fetch_add(cursor, NEXT_PIECE, piece)
        if begin >= end:
            break
        piece_end = min(begin + piece, end)
        ask_for_first_rows(word, out, parents, begin, piece_end)
        for k in range(begin, piece_end):
            ask_for_rows(word, out, parents, k, piece_end)
            u = np.uint64(parents[k])
            read += np.int64(degrees[u])
            for slot, stop in runs(out, u):
                for i in range(slot, stop):
                    v = keys[i] & LOW
                    if (word[v] & LOW) == u:
                        gathered[n_gathered] = v
                        n_gathered += 1
                        if n_gathered == _GATHERED:
                            publish(gathered, n_gathered, queue, cursor, QUEUE_END)
                            n_gathered = np.int64(0)
    publish(gathered, n_gathered, queue, cursor, QUEUE_END)
    loss.tally[t, 1] += read


@template
def edges_read(tally):  # type: ignore[no-untyped-def]
    """The edges that all threads have read."""
    total = np.int64(0)
    for t in range(tally.shape[0]):
        total += tally[t, 1]
    return total


@template
def take(word, role, in_, loss, n_lost):  # type: ignore[no-untyped-def]
    """Every lost vertex takes the best that there is. Who finds its best tail lost meanwhile is surveyed again."""
    queue, offers = loss.queue, loss.offers
    for k in range(n_lost):
        best = offers[k]
        if best != UNREACHED and (word[best & LOW] & LOW) == LOST:
            queue[n_lost] = queue[k]
            loss.cursor[NEXT_PIECE] = n_lost
            survey_pieces(word, role, in_, loss, n_lost + 1, np.int64(1), np.int64(0))
            offers[k] = offers[n_lost]
    for k in range(n_lost):
        best = offers[k]
        word[queue[k]] = best
        if best != UNREACHED:
            role[best & LOW] |= PARENT


@template
def relax_between(word, role, loss):  # type: ignore[no-untyped-def]
    """Relax the inner edges, until nothing changes or a few times; what still changes then is asked for."""
    changed = True
    turn = 0
    while changed and turn < _PASSES:
        changed = False
        turn += 1
        for t in range(loss.tally.shape[0]):
            tails, heads, weights = loss.tails[t], loss.heads[t], loss.weights[t]
            for e in range(loss.tally[t, 0]):
                at_tail = word[tails[e]]
                if at_tail == UNREACHED:
                    continue
                v = np.int64(heads[e])
                bits = offer(at_tail >> HALF, weights[e])
                if improves(bits, word[v]):
                    word[v] = (bits << HALF) | np.uint64(tails[e])
                    role[tails[e]] |= PARENT
                    changed = True
                    if turn == _PASSES:
                        role[v] |= ASKED


@template
def settle(word, log, role, lost, out, in_, loss, entries, edges_max, threads):  # type: ignore[no-untyped-def]
    """Settle the loss of these entries' support: (lost vertices, in front of the queue; entries; edges read).

    -1 lost vertices: it would read more than ``edges_max`` edges. ``entries`` (uint64[>= n]) gets the entries that
    must be pushed on along their rows.
    """
    queue, cursor, tally = loss.queue, loss.cursor, loss.tally
    for t in range(tally.shape[0]):
        tally[t, 0] = 0
        tally[t, 1] = 0
    for k in range(lost.size):
        queue[k] = lost[k] & LOW
    head = np.int64(0)
    tail = np.int64(lost.size)
    n_lost = np.int64(0)
    while head < tail:
        cursor[NEXT_PIECE] = head
        if tail - head < _PARALLEL_MIN:
            survey_pieces(word, role, in_, loss, tail, tail - head, np.int64(0))
        else:
            for t in nb.prange(threads):
                survey_pieces(word, role, in_, loss, tail, np.int64(_PIECE), np.int64(t))
        n_lost, n_parents = decide_round(word, log, role, loss, head, tail, n_lost)
        cursor[NEXT_PIECE] = head
        cursor[QUEUE_END] = tail
        if n_parents < _PARALLEL_MIN:
            find_children(word, out, loss, head + n_parents, n_parents + 1, np.int64(0))
        else:
            for t in nb.prange(threads):
                find_children(word, out, loss, head + n_parents, np.int64(_PIECE), np.int64(t))
        head = tail
        tail = np.int64(cursor[QUEUE_END])
        if tail > queue.size or edges_read(tally) > edges_max:
            return np.int64(-1), np.int64(0), edges_read(tally)
    take_offers(word, role, in_, loss, n_lost)
    relax_inner(word, role, loss)
    size = np.int64(0)
    for k in range(n_lost):
        v = np.uint64(queue[k])
        if role[v] & ASKED:
            role[v] &= ~ASKED
            if word[v] != UNREACHED:
                entries[size] = (word[v] & HIGH) | v
                size += 1
    return n_lost, size, edges_read(tally)
