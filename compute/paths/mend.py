"""The steps of a path program after a change, as templates for ``templates.specialise``.

The state is one word per vertex, ``value bits << 32 | parent``: both change together. A vertex without a value
has the word ``UNREACHED``; its value half, ``NOTHING``, is no value of any program and as an offer means none.
Values travel as their 32 bits in a uint64; ``offer`` and ``improves`` below are where a program's own functions
come in. Words change only by strict improvement of the value alone: a tie never moves a parent, which is what
keeps cycles out.

What the kernels share: ``word`` uint64[>= n]; ``rows`` as in ``gpma/rows.py``; an **entry** is
``value bits << 32 | vertex``; ``Log`` collects what was written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import bits_float, float_bits
from ...gpma.drawing import drawn
from ...gpma.edges import HALF, HIGH, LOW, Keys, Vertices
from ...gpma.intrinsics import prefetch, prefetch_to_read
from ...gpma.rows import ask_for_leaf, runs
from ...gpma.splice import spliced
from ...gpma.team import at_most, share
from ...gpma.written import record_type
from ..pieces import PIECE
from .templates import template

NOTHING = np.uint64(0xFFFF_FFFF)
UNREACHED = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_UNIT = np.float32(1)

LOST = np.uint64(0xFFFF_FFFE)
"""The parent, while a change is settled, of a vertex that has lost its support; no vertex has this number."""

PARENT = np.uint8(1)
"""In a vertex's role: it may have children; without this it has none."""

AHEAD = 16
"""How many vertices before its turn a row is asked for."""

DISORDER = "a vertex was queued twice: a better value makes a worse offer in this program"
"""Why a push by levels cannot go on."""

# So many vertices, or edges, are worth reading by all threads. A few vertices may have most of the edges.
SHARED_MIN = 512
SHARED_EDGES = 1 << 14
# Vertices that a thread takes at a time: at most so many, and of a few at least so many pieces are made.
PIECE_MAX = 32
PIECES = 64

# What ``specialise`` puts in place: the program's functors, and whether it reads weights.
WEIGHTED = False
gather: Any = None
better: Any = None
encode: Any = None
decode: Any = None
settle: Any = None
push: Any = None
push_wide: Any = None
spread: Any = None
places: Any = None
in_range: Any = None
in_pieces: Any = None


class Log(NamedTuple):
    """The vertices whose word was written since the run began, each once, with the word before.

    ``listed`` uint8[cap] (1: listed), ``vertices`` uint32[cap + 1], ``old`` uint64[cap + 1], ``counted`` int64[1].
    """

    listed: npt.NDArray[np.uint8]
    vertices: Vertices
    old: Keys
    counted: npt.NDArray[np.int64]


LOG = record_type(Log, nb.uint8[::1], nb.uint32[::1], nb.uint64[::1], nb.int64[::1])


def new_log() -> Log:
    """A log for no vertices yet."""
    return Log(np.zeros(0, np.uint8), np.empty(0, np.uint32), np.empty(0, np.uint64), np.zeros(1, np.int64))


# -- where a program's own functions come in ---------------------------------------------------------------


@template
def encode_int(value):  # type: ignore[no-untyped-def]
    """The bits of a value, for programs whose values are uint32."""
    return np.uint64(np.uint32(value))


@template
def decode_int(bits):  # type: ignore[no-untyped-def]
    """The value that has these bits, likewise."""
    return np.uint32(bits)


@template
def encode_float(value):  # type: ignore[no-untyped-def]
    """The bits of a value, for programs whose values are float32; a NaN is no offer, and minus zero is zero.

    Neither zero is better than the other: which of them a vertex kept would depend on the order of changes.
    """
    single = np.float32(value) + np.float32(0)
    return np.uint64(float_bits(single)) if single == single else NOTHING


@template
def decode_float(bits):  # type: ignore[no-untyped-def]
    """The value that has these bits, likewise."""
    return bits_float(np.uint32(bits))


@template
def offer(tail, weight):  # type: ignore[no-untyped-def]
    """The bits of what an edge offers its head, its tail having the value ``tail`` (bits, not NOTHING)."""
    return encode(gather(decode(tail), weight))


@template
def precedes(one, other):  # type: ignore[no-untyped-def]
    """Whether one value (bits) is strictly better than another."""
    return better(decode(one), decode(other))


@template
def improves(bits, head):  # type: ignore[no-untyped-def]
    """Whether an offer is strictly better than the value in the word ``head``."""
    if bits == NOTHING:
        return False
    at_head = head >> HALF
    return at_head == NOTHING or better(decode(bits), decode(at_head))


# -- the log ---------------------------------------------------------------------------------------------------


@template
def write(word, log, v, value):  # type: ignore[no-untyped-def]
    """Set a word, listing the vertex in the log if this is its first change of the run.

    With a branch: without one every write would wait for the mark of the one before, which may not be in cache.
    """
    if log.listed[v] == 0:
        log.listed[v] = 1
        k = log.counted[0]
        log.vertices[k] = v
        log.old[k] = word[v]
        log.counted[0] = k + 1
    word[v] = value


@nb.njit(nogil=True, error_model="numpy")
def begin_run(log):  # type: ignore[no-untyped-def]
    """A new run begins: nothing is listed, even if the one before was not ended by ``changed``."""
    for k in range(log.counted[0]):
        log.listed[log.vertices[k]] = 0
    log.counted[0] = 0


@template
def changed(word, log, n, found):  # type: ignore[no-untyped-def]
    """Vertices below ``n`` that have another word than before the run: how many ``found`` (uint32) now names.

    That ends the run: marks are taken back while they are in cache.
    """
    n_found = np.int64(0)
    size = log.counted[0]
    log.counted[0] = 0
    for k in range(size):
        ahead = np.int64(log.vertices[min(k + AHEAD, size - 1)])
        prefetch_to_read(word, ahead)
        prefetch(log.listed, ahead)
        v = log.vertices[k]
        log.listed[v] = 0
        if v < n and word[v] != log.old[k]:
            found[n_found] = v
            n_found += 1
    return n_found


# -- asking for memory before its turn --------------------------------------------------------------------------

# Of a heap, one of the first entries is next, unless it is one that is added meanwhile.
_SOON = 3
# In a row of more edges than this, the leaf so many behind the one that is read is asked for.
_LONG = 32
_LEAVES_AHEAD = 2


@template
def ask_for_place(rows, vertex):  # type: ignore[no-untyped-def]
    """Ask for where the row of a vertex begins."""
    prefetch_to_read(rows.degrees, vertex)
    prefetch_to_read(rows.row_leaf, vertex)


@template
def ask_for_row(rows, vertex):  # type: ignore[no-untyped-def]
    """Ask for the leaf in which the row of a vertex begins, of up to 32 slots."""
    leaf = np.int64(rows.row_leaf[vertex])
    slot = leaf << rows.leaf_shift
    prefetch_to_read(rows.counts, leaf)
    prefetch_to_read(rows.keys, slot)
    prefetch_to_read(rows.keys, slot + 8)
    prefetch_to_read(rows.keys, slot + 16)
    prefetch_to_read(rows.keys, slot + 24)
    if WEIGHTED:
        prefetch_to_read(rows.weights, slot)
        prefetch_to_read(rows.weights, slot + 16)


@template
def ask_for_first_rows(word, rows, vertices, begin, end):  # type: ignore[no-untyped-def]
    """Ask for what ``ask_for_rows`` will not have asked for at the beginning of vertices[begin:end]."""
    for k in range(begin, min(begin + AHEAD, end)):
        ask_for_place(rows, np.int64(vertices[k]))
        prefetch_to_read(word, np.int64(vertices[k]))
    for k in range(begin, min(begin + AHEAD // 2, end)):
        ask_for_row(rows, np.int64(vertices[k]))


@template
def ask_for_rows(word, rows, vertices, k, end):  # type: ignore[no-untyped-def]
    """Ask for rows that will be walked soon, where vertices[k] is walked now, the last being vertices[end - 1].

    Rows are short and lie anywhere: that they are in cache in time makes walking them twice as fast.
    """
    vertex = np.int64(vertices[min(k + AHEAD, end - 1)])
    ask_for_place(rows, vertex)
    prefetch_to_read(word, vertex)
    ask_for_row(rows, np.int64(vertices[min(k + AHEAD // 2, end - 1)]))


@template
def ask_further(rows, size, slot):  # type: ignore[no-untyped-def]
    """Ask for what follows soon in a row of ``size`` edges that is read from this slot on.

    Whoever asked for the row asked for its first leaf (``ask_for_row``), and gaps keep the processor from going on
    by itself. Short rows end before.
    """
    if size > _LONG:
        leaf = (slot >> rows.leaf_shift) + _LEAVES_AHEAD
        ask_for_leaf(rows.keys, leaf, rows.leaf_shift)
        if WEIGHTED:
            prefetch_to_read(rows.weights, leaf << rows.leaf_shift)
            prefetch_to_read(rows.weights, (leaf << rows.leaf_shift) + 16)


@template
def is_much(rows, vertices, begin, end):  # type: ignore[no-untyped-def]
    """Whether the rows of vertices[begin:end] are worth reading by all threads."""
    if end - begin >= SHARED_MIN:
        return True
    edges = np.int64(0)
    for k in range(begin, end):
        prefetch_to_read(rows.degrees, np.int64(vertices[min(k + AHEAD, end - 1)]))
        edges += np.int64(rows.degrees[vertices[k]])
    return edges >= SHARED_EDGES


@template
def piece_of(n):  # type: ignore[no-untyped-def]
    """How many of n vertices a thread takes at a time, whatever threads there are."""
    return max(np.int64(1), min(np.int64(PIECE_MAX), n // PIECES))


@template
def ask_for_words(word, keys, begin, end):  # type: ignore[no-untyped-def]
    """Ask for the words of the neighbours in these slots: branches on one then do not hold up the next."""
    for i in range(begin, end):
        prefetch_to_read(word, np.int64(keys[i] & LOW))


# -- a heap of entries, best value first -----------------------------------------------------------------------


@template
def heap_push(heap, size, entry):  # type: ignore[no-untyped-def]
    """Add an entry to a heap of so many."""
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if not precedes(entry >> HALF, heap[above] >> HALF):
            break
        heap[place] = heap[above]
        place = above
    heap[place] = entry


@template
def heap_sink(heap, size, entry):  # type: ignore[no-untyped-def]
    """Put an entry in the place of the first one, of a heap of so many."""
    place = 0
    below = 1
    while below < size:
        if below + 1 < size and precedes(heap[below + 1] >> HALF, heap[below] >> HALF):
            below += 1
        if not precedes(heap[below] >> HALF, entry >> HALF):
            break
        heap[place] = heap[below]
        place = below
        below = 2 * place + 1
    heap[place] = entry


# -- the steps -------------------------------------------------------------------------------------------------


@template
def classify_range(  # type: ignore[no-untyped-def]
    word, deleted, overwritten, new_weights, inserted, weights, lost, improving, improving_weights, begin, end
):
    """``classify`` for updates begin .. end - 1 of each kind; what they leave has room of its own.

    Returns how many entries follow each of the places that ``first_places`` names.
    """
    at_lost, at_improving = places(deleted, overwritten, inserted, begin)
    n_lost = at_lost
    n_improving = at_improving
    for i in range(begin, min(end, deleted.size)):
        if i + AHEAD < deleted.size:
            prefetch_to_read(word, np.int64(deleted[i + AHEAD] & LOW))
        head = deleted[i] & LOW
        at_head = word[head]
        if (at_head & LOW) == deleted[i] >> HALF:
            lost[n_lost] = (at_head & HIGH) | head
            n_lost += 1
    if WEIGHTED:
        for i in range(begin, min(end, overwritten.size)):
            if i + AHEAD < overwritten.size:
                prefetch_to_read(word, np.int64(overwritten[i + AHEAD] >> HALF))
                prefetch_to_read(word, np.int64(overwritten[i + AHEAD] & LOW))
            tail = overwritten[i] >> HALF
            at_tail = word[tail]
            if at_tail == UNREACHED:
                continue
            head = overwritten[i] & LOW
            at_head = word[head]
            bits = offer(at_tail >> HALF, new_weights[i])
            if improves(bits, at_head):
                improving[n_improving] = overwritten[i]
                improving_weights[n_improving] = new_weights[i]
                n_improving += 1
            elif (at_head & LOW) == tail and bits != at_head >> HALF:
                lost[n_lost] = (at_head & HIGH) | head
                n_lost += 1
    for i in range(begin, min(end, inserted.size)):
        if i + AHEAD < inserted.size:
            prefetch_to_read(word, np.int64(inserted[i + AHEAD] >> HALF))
            prefetch_to_read(word, np.int64(inserted[i + AHEAD] & LOW))
        at_tail = word[inserted[i] >> HALF]
        if at_tail == UNREACHED:
            continue
        weight = weights[i] if WEIGHTED else _UNIT
        if improves(offer(at_tail >> HALF, weight), word[inserted[i] & LOW]):
            improving[n_improving] = inserted[i]
            if WEIGHTED:
                improving_weights[n_improving] = weight
            n_improving += 1
    return n_lost - at_lost, n_improving - at_improving


@template
def first_places(deleted, overwritten, inserted, begin):  # type: ignore[no-untyped-def]
    """Where update ``begin`` of each kind may write in ``lost`` and in ``improving``: each has its own place."""
    changed = min(begin, overwritten.size) if WEIGHTED else np.int64(0)
    return min(begin, deleted.size) + changed, changed + min(begin, inserted.size)


@template
def classify_pieces(  # type: ignore[no-untyped-def]
    t, word, deleted, overwritten, new_weights, inserted, weights, lost, improving, improving_weights, pieces
):
    """Pieces of a large batch, drawn from the cursor ``pieces[0]``; behind it what was found of each."""
    n_pieces = np.int64(pieces.shape[0]) - np.int64(1)
    for piece in drawn(pieces, n_pieces):
        begin = piece * np.int64(PIECE)
        n_lost, n_improving = in_range(
            word,
            deleted,
            overwritten,
            new_weights,
            inserted,
            weights,
            lost,
            improving,
            improving_weights,
            begin,
            begin + np.int64(PIECE),
        )
        pieces[piece + 1] = (n_lost << 32) | n_improving


@template
def classify(  # type: ignore[no-untyped-def]
    word, deleted, overwritten, new_weights, inserted, weights, lost, improving, improving_weights, pieces, crew
):
    """Recognise the safe updates, in one pass; the counts of what remains.

    ``lost``: entries of heads whose parent edge is gone or no longer yields their value. ``improving``: edges
    that offer their head something better as things stand, with ``improving_weights``. An edge that does not
    improve its head now will be looked at again only if its tail gets a better value or its head loses its own.

    ``pieces``: see ``pieces_of``; threads share the work by them.
    """
    n_pieces = np.int64(pieces.size) - np.int64(1)
    if n_pieces <= 0:
        whole = max(deleted.size, max(overwritten.size, inserted.size))
        return in_range(
            word,
            deleted,
            overwritten,
            new_weights,
            inserted,
            weights,
            lost,
            improving,
            improving_weights,
            np.int64(0),
            np.int64(whole),
        )
    share(
        at_most(crew, n_pieces),
        in_pieces,
        (word, deleted, overwritten, new_weights, inserted, weights, lost, improving, improving_weights, pieces),
    )
    n_lost = np.int64(0)
    n_improving = np.int64(0)
    for piece in range(n_pieces):
        at_lost, at_improving = places(deleted, overwritten, inserted, piece * np.int64(PIECE))
        found = pieces[piece + 1]
        for k in range(found >> 32):
            lost[n_lost + k] = lost[at_lost + k]
        for k in range(found & 0xFFFF_FFFF):
            improving[n_improving + k] = improving[at_improving + k]
            if WEIGHTED:
                improving_weights[n_improving + k] = improving_weights[at_improving + k]
        n_lost += found >> 32
        n_improving += found & 0xFFFF_FFFF
    return n_lost, n_improving


@template
def relax(word, log, role, sources, source_word, improving, improving_weights, entries, size):  # type: ignore[no-untyped-def]
    """Sources that became known, and edges that still improve their heads: the number of entries with those."""
    for k in range(sources.size):
        v = sources[k]
        if word[v] != source_word:
            write(word, log, v, source_word)
            entries[size] = (source_word & HIGH) | np.uint64(v)
            size += 1
    for i in range(improving.size):
        at_tail = word[improving[i] >> HALF]
        if at_tail == UNREACHED:
            continue
        v = improving[i] & LOW
        weight = improving_weights[i] if WEIGHTED else _UNIT
        bits = offer(at_tail >> HALF, weight)
        if improves(bits, word[v]):
            write(word, log, v, (bits << HALF) | (improving[i] >> HALF))
            role[improving[i] >> HALF] = PARENT
            entries[size] = (bits << HALF) | v
            size += 1
    return size


@template
@spliced
def push_by_level(word, log, role, entries, size, out, queue, steps, piles, loss, crew):  # type: ignore[no-untyped-def]
    """Push on what improved, all edges offering alike: (edges read, levels).

    The ``entries`` become a heap; one whose vertex has improved since is stale and skipped. A queued vertex is
    one level below the vertex that improved it, so nothing taken later can improve it again: each is queued once.
    Vertices of one value, queued ones first, are a level, which ``loss.adopted`` names; a wide one is read by all
    threads (``wide.py``). ``queue``: uint32[>= n]; ``steps`` and ``piles`` are for ``push_by_value``.
    """
    keys, degrees, level = out.keys, out.degrees, loss.adopted
    edges = np.int64(0)
    levels = np.int64(0)
    last = NOTHING
    head = np.int64(0)
    tail = np.int64(0)
    for k in range(size):
        heap_push(entries, k, entries[k])
    while size > 0 or head < tail:
        value = word[queue[head]] >> HALF if head < tail else entries[0] >> HALF
        if size > 0 and precedes(entries[0] >> HALF, value):
            value = entries[0] >> HALF
        n = np.int64(0)
        while head < tail and n < level.size and word[queue[head]] >> HALF == value:
            level[n] = queue[head]
            n += 1
            head += 1
        while size > 0 and n < level.size and entries[0] >> HALF == value:
            u = entries[0] & LOW
            size -= 1
            heap_sink(entries, size, entries[size])
            if word[u] >> HALF == value:
                level[n] = u
                n += 1
        if n == 0:
            continue
        if value != last:
            last = value
            levels += 1
        bits = offer(value, _UNIT)
        if bits == NOTHING:
            continue
        if is_much(out, level, np.int64(0), n):
            end, read = push_wide(word, log, role, out, loss, n, bits, queue, tail, crew)
            edges += read
            if end >= 0:
                tail = end
                continue
        ask_for_first_rows(word, out, level, np.int64(0), n)
        for k in range(n):
            ask_for_rows(word, out, level, k, n)
            u = np.uint64(level[k])
            edges += np.int64(degrees[u])
            for slot, stop in runs(out, u):
                for i in range(slot, stop):
                    v = keys[i] & LOW
                    if improves(bits, word[v]):
                        if tail == queue.size:
                            raise RuntimeError(DISORDER)
                        write(word, log, v, (bits << HALF) | u)
                        role[u] = PARENT
                        queue[tail] = v
                        tail += 1
    return edges, levels


@template
@spliced
def push_by_value(word, log, role, entries, size, out, queue, steps, piles, loss, crew):  # type: ignore[no-untyped-def]
    """Push on what improved, best value first: (edges read, vertices pushed, or rounds).

    All ``entries`` at hand become a heap; when they are more than ``steps[0]``, or might not fit, ``spread`` goes
    on with them, by ``steps[1]`` edges at least, and gives them back where order matters: from then on the heap
    may have ``steps[2]``. ``queue`` and ``loss`` are for ``push_by_level``.
    An entry whose vertex has improved since is stale and skipped, so that each vertex is pushed once unless
    offers improve on their own tails.
    """
    keys, weights, degrees = out.keys, out.weights, out.degrees
    edges = np.int64(0)
    pushed = np.int64(0)
    large = steps[0]
    is_heap = False
    while size > 0:
        if size > large or (is_heap and size + np.int64(degrees[entries[0] & LOW]) > entries.size):
            size, read, rounds = spread(word, log, role, entries, size, out, steps[1], steps[2], piles, crew)
            edges += read
            pushed += rounds
            large = max(large, steps[2])
            is_heap = False
            continue
        if not is_heap:
            for k in range(size):
                ask_for_place(out, np.int64(entries[k] & LOW))
                heap_push(entries, k, entries[k])
            is_heap = True
        entry = entries[0]
        u = entry & LOW
        value = word[u] >> HALF
        remaining = np.int64(degrees[u])
        size -= 1
        heap_sink(entries, size, entries[size])
        for k in range(_SOON):
            if k < size:
                ask_for_row(out, np.int64(entries[k] & LOW))
        if value != entry >> HALF or remaining == 0:
            continue
        pushed += 1
        edges += remaining
        for slot, stop in runs(out, u):
            ask_further(out, remaining, slot)
            ask_for_words(word, keys, slot, stop)
            for i in range(slot, stop):
                v = keys[i] & LOW
                weight = weights[i] if WEIGHTED else _UNIT
                bits = offer(value, weight)
                if improves(bits, word[v]):
                    write(word, log, v, (bits << HALF) | u)
                    role[u] = PARENT
                    heap_push(entries, size, (bits << HALF) | v)
                    size += 1
                    ask_for_place(out, np.int64(v))
    return edges, pushed


@template
def mend(  # type: ignore[no-untyped-def]
    word,
    log,
    role,
    sources,
    source_word,
    lost,
    improving,
    improving_weights,
    out,
    in_,
    loss,
    entries,
    queue,
    steps,
    piles,
    edges_max,
    crew,
):
    """What follows from the updates that are not safe: (vertices lost, edges read, rounds).

    -1 lost: it would read more than ``edges_max`` edges. ``entries``: uint64[>= n + sources + improving].
    """
    begin_run(log)
    n_lost = np.int64(0)
    size = np.int64(0)
    edges = np.int64(0)
    if lost.size:
        n_lost, size, edges = settle(
            word, log, role, lost, out, in_, loss, entries, source_word >> HALF, edges_max, crew
        )
        if n_lost < 0:
            return n_lost, edges, np.int64(0)
    size = relax(word, log, role, sources, source_word, improving, improving_weights, entries, size)
    read, rounds = push(word, log, role, entries, size, out, queue, steps, piles, loss, crew)
    return n_lost, edges + read, rounds
