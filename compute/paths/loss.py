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

The two reading steps of a round write nothing that they read, and are shared by threads where there is much to
read. They draw pieces of the queue; what they find is put together in the order of the pieces, so that neither
lists nor parents depend on who drew which. What they found is decided between them, on one.

Templates for ``templates.specialise``, with the conventions of ``mend.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import bits_float, fetch_add, float_bits
from ...gpma.drawing import drawn_by
from ...gpma.edges import HALF, HIGH, LOW, Keys, Vertices
from ...gpma.intrinsics import prefetch
from ...gpma.rows import runs
from ...gpma.splice import spliced
from ...gpma.team import at_most, for_much, share
from ...gpma.written import record_type
from .mend import AHEAD, LOST, PARENT, PIECE_MAX, PIECES, SHARED_MIN, UNREACHED
from .templates import template

_UNIT = np.float32(1)

# How many offers a thread takes at a time.
_TAKEN = 128
# Steps along parents of equal value in search of support, besides one for each in-edge.
_STEPS = 32
# Passes over the inner edges; what still changes in the last is pushed on along rows.
_PASSES = 4
# Found children are gathered per thread, so many at a time, before they are published.
GATHERED = 128
# So many inner edges are listed of a piece at most, and there is room for lists of so many on the average.
_INNER = 4096
_LISTED = 4

# What ``specialise`` puts in place.
WEIGHTED = False
offer: Any = None
improves: Any = None
precedes: Any = None
write: Any = None
ask_for_first_rows: Any = None
ask_for_rows: Any = None
ask_further: Any = None
ask_for_words: Any = None
is_much: Any = None
piece_of: Any = None
stands_alone: Any = None
keep_better: Any = None
list_inner: Any = None
survey_pieces: Any = None
arrange_lists: Any = None
survey_round: Any = None
decide_round: Any = None
publish_chunk: Any = None
find_children: Any = None
append_in_order: Any = None
append_children: Any = None
edges_read: Any = None
take_some: Any = None
take_offers: Any = None
relax_inner: Any = None

ASKED = np.uint8(2)
"""In a vertex's role: it must be pushed on along its row."""

NEXT_PIECE, FOUND_END, CHUNKS_END, INNER_END, LISTS_END, READ, LINE = 0, 16, 32, 48, 64, 80, 16
"""What is where among the counters, each in a cache line: the next place in the queue; where what is found ends,
of children and their chunks, of inner edges and their lists; and the edges that each thread has read."""


class Loss(NamedTuple):
    """What settling works on.

    ``queue`` uint32[>= n]: vertices without support, and in the end the lost ones in front; ``adopted`` uint32 and
    ``offers`` uint64 of that size: the outcome of their survey, LOST and UNREACHED standing for none; once a round
    is decided, ``adopted`` names its lost vertices that may have children, and behind the queue's end their
    children as they are found; ``chunks`` int64[.., 4] has the piece, begin and size of those, and at a piece how
    many it has.
    ``inner`` uint64[.., 2]: inner edges, tail << 32 | head and the weight's bits; ``lists`` int64[.., 3] has the
    piece, begin and end of theirs. ``own`` uint64[threads, _INNER, 2]: what a thread gathers.
    ``counters``: int64[READ + 16 * threads].
    """

    queue: Vertices
    adopted: Vertices
    offers: Keys
    chunks: npt.NDArray[np.int64]
    inner: npt.NDArray[np.uint64]
    lists: npt.NDArray[np.int64]
    own: npt.NDArray[np.uint64]
    counters: npt.NDArray[np.int64]


LOSS = record_type(
    Loss,
    nb.uint32[::1],
    nb.uint32[::1],
    nb.uint64[::1],
    nb.int64[:, ::1],
    nb.uint64[:, ::1],
    nb.int64[:, ::1],
    nb.uint64[:, :, ::1],
    nb.int64[::1],
)


def new_loss(n: int, threads: int) -> Loss:
    """Work space for so many vertices, and n / 4 inner edges.

    Where there is no room for one, its tail is pushed on along its row instead.
    """
    room, inner = n + 1024, n // 4 + 1024
    return Loss(
        np.empty(room, np.uint32),
        np.empty(room, np.uint32),
        np.empty(room, np.uint64),
        # A chunk is full, or the last one of its piece.
        np.empty((room // GATHERED + room // PIECE_MAX + 2 * PIECES + 2, 4), np.int64),
        np.empty((inner, 2), np.uint64),
        np.empty((inner // _LISTED, 3), np.int64),
        np.empty((threads, _INNER, 2), np.uint64),
        np.zeros(READ + LINE * threads, np.int64),
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
def keep_those_better(word, inner, begin, end, best):  # type: ignore[no-untyped-def]
    """Of the inner edges begin .. end - 1 only those that offered more than the word ``best``: their new end."""
    kept = begin
    for e in range(begin, end):
        weight = bits_float(np.uint32(inner[e, 1]))
        if improves(offer(word[inner[e, 0] >> HALF] >> HALF, weight), best):
            inner[kept, 0] = inner[e, 0]
            inner[kept, 1] = inner[e, 1]
            kept += 1
    return kept


@template
@spliced
def survey(t, word, role, in_, loss, end, piece, source):  # type: ignore[no-untyped-def]
    """Read the in-edges of ``queue[.. end]``, in pieces of so many drawn from the cursor.

    No tail has a better value than a source, whose is ``source`` (bits), and none offers more along the same edge:
    both by the rules of ``Functors``. So what an edge offers at most is known from its weight; where that is no
    gain on the best so far, its tail's word, which lies anywhere, stays unread.
    """
    keys, weights = in_.keys, in_.weights
    queue, cursor = loss.queue, loss.counters
    inner = loss.own[t]
    read = np.int64(0)
    for piece_begin in drawn_by(cursor, end, piece):
        piece_end = min(piece_begin + piece, end)
        n_inner = np.int64(0)
        ask_for_first_rows(word, in_, queue, piece_begin, piece_end)
        for k in range(piece_begin, piece_end):
            ask_for_rows(word, in_, queue, k, piece_end)
            v = np.uint64(queue[k])
            value = word[v] >> HALF
            adopted = LOST
            best = UNREACHED
            first_inner = n_inner
            for slot, stop in runs(in_, v):
                ask_further(in_, np.int64(in_.degrees[v]), slot)
                if not WEIGHTED:
                    ask_for_words(word, keys, slot, stop)
                i = slot
                while i < stop:
                    u = keys[i] & LOW
                    weight = weights[i] if WEIGHTED else _UNIT
                    i += 1
                    if WEIGHTED:
                        most = offer(source, weight)
                        # Of an edge that may offer exactly the value one must know: its tail may be adopted.
                        if most != value and not improves(most, best):
                            continue
                    at_tail = word[u]
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
                    elif n_inner < inner.shape[0]:
                        inner[n_inner, 0] = (u << HALF) | v
                        inner[n_inner, 1] = float_bits(weight)
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
            n_inner = keep_better(word, inner, first_inner, n_inner, best)
        if n_inner:
            list_inner(role, loss, piece_begin, inner, n_inner)
    loss.counters[READ + LINE * t] += read


@template
def publish_inner(role, loss, piece, inner, size):  # type: ignore[no-untyped-def]
    """Append a piece's list of inner edges; where there is no room, their tails are pushed on instead."""
    at = fetch_add(loss.counters, LISTS_END, np.int64(1))
    place = fetch_add(loss.counters, INNER_END, size)
    has_room = at < loss.lists.shape[0] and place + size <= loss.inner.shape[0]
    if at < loss.lists.shape[0]:
        loss.lists[at, 0] = piece
        loss.lists[at, 1] = place
        loss.lists[at, 2] = place + size if has_room else place
    for e in range(size):
        if has_room:
            loss.inner[place + e, 0] = inner[e, 0]
            loss.inner[place + e, 1] = inner[e, 1]
        else:
            role[inner[e, 0] >> HALF] |= ASKED


@template
def arrange(role, loss, first_list, first_inner):  # type: ignore[no-untyped-def]
    """Put the lists that a survey added from here on in the order of its pieces.

    Which of them found room depends on who came first: unless all did, none is kept.
    """
    cursor, lists = loss.counters, loss.lists
    if cursor[LISTS_END] > lists.shape[0] or cursor[INNER_END] > loss.inner.shape[0]:
        for at in range(first_list, min(cursor[LISTS_END], lists.shape[0])):
            for e in range(lists[at, 1], lists[at, 2]):
                role[loss.inner[e, 0] >> HALF] |= ASKED
        cursor[LISTS_END] = first_list
        cursor[INNER_END] = first_inner
    for at in range(first_list + 1, cursor[LISTS_END]):  # pieces come nearly in order
        piece, begin, end = lists[at, 0], lists[at, 1], lists[at, 2]
        place = at
        while place > first_list and lists[place - 1, 0] > piece:
            lists[place, 0] = lists[place - 1, 0]
            lists[place, 1] = lists[place - 1, 1]
            lists[place, 2] = lists[place - 1, 2]
            place -= 1
        lists[place, 0] = piece
        lists[place, 1] = begin
        lists[place, 2] = end


@template
def survey_all(word, role, in_, loss, begin, end, source, crew):  # type: ignore[no-untyped-def]
    """Read the in-edges of ``queue[begin:end]``, on all threads if they are many."""
    cursor = loss.counters
    first_list, first_inner = cursor[LISTS_END], cursor[INNER_END]
    cursor[NEXT_PIECE] = begin
    # Not by their edges: who has many of them finds support among the first.
    helped = at_most(for_much(crew, end - begin >= SHARED_MIN), (end - begin) // PIECE_MAX + 1)
    share(helped, survey_pieces, (word, role, in_, loss, end, np.int64(PIECE_MAX), source))
    if cursor[LISTS_END] > first_list:
        arrange_lists(role, loss, first_list, first_inner)


@template
def decide(word, log, role, loss, head, tail, n_lost):  # type: ignore[no-untyped-def]
    """Settle who of ``queue[head:tail]`` has a new parent and who is lost: (the lost, those with children).

    The lost of all rounds are counted; of this round's, ``adopted`` names those who may have children, from
    ``head`` on.
    """
    queue, adopted, offers = loss.queue, loss.adopted, loss.offers
    n_parents = np.int64(0)
    for k in range(head, tail):
        if k + AHEAD < tail:
            prefetch(word, np.int64(queue[k + AHEAD]))
            prefetch(role, np.int64(queue[k + AHEAD]))
            prefetch(log.listed, np.int64(queue[k + AHEAD]))
            if adopted[k + AHEAD] != LOST:
                prefetch(word, np.int64(adopted[k + AHEAD]))
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
def children(t, word, out, loss, begin, end, size, tail):  # type: ignore[no-untyped-def]
    """Write the children of ``adopted[begin:end]``, in pieces of ``size`` drawn from the cursor, behind
    ``adopted[:tail]``."""
    keys, degrees = out.keys, out.degrees
    parents, cursor, gathered = loss.adopted, loss.counters, loss.own[t].reshape(-1)
    read = np.int64(0)
    for piece_begin in drawn_by(cursor, end, size):
        piece = (piece_begin - begin) // size
        piece_end = min(piece_begin + size, end)
        n_found = np.int64(0)
        n_gathered = np.int64(0)
        ask_for_first_rows(word, out, parents, piece_begin, piece_end)
        for k in range(piece_begin, piece_end):
            ask_for_rows(word, out, parents, k, piece_end)
            u = np.uint64(parents[k])
            read += np.int64(degrees[u])
            for slot, stop in runs(out, u):
                ask_further(out, np.int64(degrees[u]), slot)
                for i in range(slot, stop):
                    v = keys[i] & LOW
                    if (word[v] & LOW) == u:
                        gathered[n_gathered] = v
                        n_gathered += 1
                        if n_gathered == GATHERED:
                            publish_chunk(loss, parents, gathered, n_gathered, piece, tail)
                            n_found += n_gathered
                            n_gathered = np.int64(0)
        publish_chunk(loss, parents, gathered, n_gathered, piece, tail)
        loss.chunks[piece, 3] = n_found + n_gathered
    loss.counters[READ + LINE * t] += read


@template
def publish_found(loss, found, gathered, size, piece, tail):  # type: ignore[no-untyped-def]
    """Append a chunk of what a piece has found to ``found``, from ``tail`` on, as far as there is room."""
    place = fetch_add(loss.counters, FOUND_END, size) if size else found.size
    if place + size <= found.size - tail:
        chunk = fetch_add(loss.counters, CHUNKS_END, np.int64(1))
        loss.chunks[chunk, 0] = piece
        loss.chunks[chunk, 1] = tail + place
        loss.chunks[chunk, 2] = size
        for k in range(size):
            found[tail + place + k] = gathered[k]


@template
def in_order(loss, n_pieces, tail):  # type: ignore[no-untyped-def]
    """Append the children that were found to the queue, in the order of their pieces."""
    place = tail
    for piece in range(n_pieces):
        found = loss.chunks[piece, 3]
        loss.chunks[piece, 3] = place
        place += found
    # The chunks of a piece were published in their order.
    for chunk in range(loss.counters[CHUNKS_END]):
        piece, begin, size = loss.chunks[chunk, 0], loss.chunks[chunk, 1], loss.chunks[chunk, 2]
        place = loss.chunks[piece, 3]
        for k in range(size):
            loss.queue[place + k] = loss.adopted[begin + k]
        loss.chunks[piece, 3] = place + size


@template
def add_up(counters):  # type: ignore[no-untyped-def]
    """The edges that all threads have read."""
    total = np.int64(0)
    for place in range(READ, counters.size, LINE):
        total += counters[place]
    return total


@template
def children_all(word, out, loss, begin, end, tail, crew):  # type: ignore[no-untyped-def]
    """Append the children of ``adopted[begin:end]`` to the queue, which ends at ``tail``: its new end.

    Where that is behind the queue's room, they are not there.
    """
    cursor = loss.counters
    cursor[NEXT_PIECE] = begin
    cursor[FOUND_END] = 0
    cursor[CHUNKS_END] = 0
    size = piece_of(end - begin)
    n_pieces = (end - begin + size - 1) // size
    if is_much(out, loss.adopted, begin, end):
        share(at_most(crew, n_pieces), find_children, (word, out, loss, begin, end, size, tail))
    else:
        find_children(np.int64(0), word, out, loss, begin, end, size, tail)
    new_tail = tail + cursor[FOUND_END]
    if new_tail <= loss.queue.size:
        append_in_order(loss, n_pieces, tail)
    return new_tail


@template
def take_pieces(t, word, role, loss, n_lost):  # type: ignore[no-untyped-def]
    """Lost vertices, in pieces drawn from the cursor, take what they were offered."""
    queue, offers = loss.queue, loss.offers
    for begin in drawn_by(loss.counters, n_lost, _TAKEN):
        for k in range(begin, min(begin + _TAKEN, n_lost)):
            best = offers[k]
            word[queue[k]] = best
            if best != UNREACHED:
                role[best & LOW] |= PARENT


@template
def take(word, role, in_, loss, n_lost, source, crew):  # type: ignore[no-untyped-def]
    """Every lost vertex takes the best that there is. Who finds its best tail lost meanwhile is surveyed again."""
    queue, adopted, offers = loss.queue, loss.adopted, loss.offers
    n_outdated = np.int64(0)
    for k in range(n_lost):
        if k + AHEAD < n_lost and offers[k + AHEAD] != UNREACHED:
            prefetch(word, np.int64(offers[k + AHEAD] & LOW))
        best = offers[k]
        if best != UNREACHED and (word[best & LOW] & LOW) == LOST:
            adopted[n_outdated] = k
            n_outdated += 1
    room = queue.size - n_lost
    for first in range(0, n_outdated, room):
        size = min(room, n_outdated - first)
        for k in range(size):
            queue[n_lost + k] = queue[adopted[first + k]]
        survey_round(word, role, in_, loss, n_lost, n_lost + size, source, crew)
        for k in range(size):
            offers[adopted[first + k]] = offers[n_lost + k]
    loss.counters[NEXT_PIECE] = 0
    helped = at_most(for_much(crew, n_lost >= SHARED_MIN), n_lost // _TAKEN + 1)
    share(helped, take_some, (word, role, loss, n_lost))


@template
def relax_between(word, role, loss):  # type: ignore[no-untyped-def]
    """Relax the inner edges, until nothing changes or a few times; what still changes then is asked for."""
    inner = loss.inner
    changed = True
    turn = 0
    while changed and turn < _PASSES:
        changed = False
        turn += 1
        for at in range(loss.counters[LISTS_END]):
            end = loss.lists[at, 2]
            for e in range(loss.lists[at, 1], end):
                ahead = inner[min(e + AHEAD, end - 1), 0]
                prefetch(word, np.int64(ahead >> HALF))
                prefetch(word, np.int64(ahead & LOW))
                u = inner[e, 0] >> HALF
                at_tail = word[u]
                if at_tail == UNREACHED:
                    continue
                v = np.int64(inner[e, 0] & LOW)
                bits = offer(at_tail >> HALF, bits_float(np.uint32(inner[e, 1])))
                if improves(bits, word[v]):
                    word[v] = (bits << HALF) | u
                    role[u] |= PARENT
                    changed = True
                    if turn == _PASSES:
                        role[v] |= ASKED


@template
def settle(word, log, role, lost, out, in_, loss, entries, source, edges_max, crew):  # type: ignore[no-untyped-def]
    """Settle the loss of these entries' support: (lost vertices, in front of the queue; entries; edges read).

    -1 lost vertices: it would read more than ``edges_max`` edges. ``entries`` (uint64[>= n]) gets the entries that
    must be pushed on along their rows.
    """
    queue, counters = loss.queue, loss.counters
    counters[:] = 0
    for k in range(lost.size):
        queue[k] = lost[k] & LOW
    head = np.int64(0)
    tail = np.int64(lost.size)
    n_lost = np.int64(0)
    while head < tail:
        survey_round(word, role, in_, loss, head, tail, source, crew)
        n_lost, n_parents = decide_round(word, log, role, loss, head, tail, n_lost)
        new_tail = append_children(word, out, loss, head, head + n_parents, tail, crew)
        head = tail
        tail = new_tail
        if tail > queue.size or edges_read(counters) > edges_max:
            return np.int64(-1), np.int64(0), edges_read(counters)
    take_offers(word, role, in_, loss, n_lost, source, crew)
    relax_inner(word, role, loss)
    size = np.int64(0)
    for k in range(n_lost):
        v = np.uint64(queue[k])
        if role[v] & ASKED:
            role[v] &= ~ASKED
            if word[v] != UNREACHED:
                entries[size] = (word[v] & HIGH) | v
                size += 1
    return n_lost, size, edges_read(counters)
