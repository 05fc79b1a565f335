"""Sweeps of pushes that all threads share: as ``sweeps.sweep``, but many vertices at a time.

A sweep of one thread sees at once what it has pushed before. Threads that push side by side do not see each
other's, so a shared sweep goes in **waves** of some ``WAVE`` edges: within a wave all push what they had at its
begin, and the next wave, of later vertices in memory, sees all of it. Which vertices are pushed is settled before
the first wave. What a wave sends goes through ``Mail`` (``ranges.py``).
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from ...gpma.drawing import drawn, drawn_by
from ...gpma.edges import LOW
from ...gpma.intrinsics import prefetch, prefetch_to_read, uncounted_inner
from ...gpma.rows import ask_for_leaf, runs
from ...gpma.splice import spliced
from ...gpma.team import at_most, share
from .passes import BLOCK, BLOCK_SHIFT
from .ranges import GRAIN_SHIFT, PARTS, PIECES, RANGES, begin_parts
from .sweeps import EDGES, NORM, PUSHES, ROUNDED, SIZE, SLIPPED, STRETCH, SUMS, SWEEPS, TOTAL

# A wave sends about so many edges: they fit into the caches of some cores, and take far longer than to meet. Its
# pieces have no fewer than that, a vertex counting as much as some edges.
WAVE = 1 << 20
_PIECE_MIN = 1 << 11
VERTEX = 32
# Stretches that a thread looks at, at once.
_STRETCHES = 4
# So many pushes ahead, vertices are asked for, and the rows of so many.
_AHEAD = 16
_ROWS_AHEAD = 4
_LONG = 64
_LEAVES_AHEAD = 3
_LEAF_EDGES = 16
# So many receivers ahead, residuals are asked for.
_RECEIVERS_AHEAD = 24

# Vertices of a word of flags.
_WORD_SHIFT = BLOCK_SHIFT + 3

_ONE = np.uint64(1)

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
_uncounted: Any = uncounted_inner


@_uncounted
def _choose_stretches(thread, rows, limits, level, system, queue, found, cursor):  # type: ignore[no-untyped-def]
    """A thread's part of choosing: the vertices of a stretch over ``level`` times their limits, ascending, to
    ``queue`` from where the stretch begins; ``found``: int64[stretches, 2], how many those are and their edges.

    All of them will be pushed, and so have moved. That is marked here, where threads share no word of bits:
    pieces of a wave may begin in the midst of one.
    """
    residual, moved, weight, flags = system.residual, system.moved, system.weight, system.flags
    degrees = rows.degrees
    words = flags.view(np.uint64)
    below = -limits.below
    above = limits.above
    for first in drawn_by(cursor, found.shape[0], _STRETCHES):
        for stretch in range(first, min(first + _STRETCHES, found.shape[0])):
            begin = stretch * STRETCH
            count = np.int64(0)
            edges = np.int64(0)
            for word in range(begin >> _WORD_SHIFT, min((begin + STRETCH) >> _WORD_SHIFT, words.size)):
                if words[word] == np.uint64(0):
                    continue
                for block in range(word << 3, (word + 1) << 3):
                    if flags[block] == np.uint8(0):
                        continue
                    flag = np.uint8(0)
                    start = block << BLOCK_SHIFT
                    for v in range(start, start + BLOCK):
                        x = residual[v]
                        if x > above * weight[v] or x < below * weight[v]:
                            x /= level
                            if x > above * weight[v] or x < below * weight[v]:
                                queue[begin + count] = v
                                moved[v >> 6] |= _ONE << np.uint64(v & 63)
                                count += 1
                                edges += np.int64(degrees[v])
                            else:
                                flag = np.uint8(1)
                    flags[block] = flag
            found[stretch, 0] = count
            found[stretch, 1] = edges


@_uncounted
def _taken(v, value, residual):  # type: ignore[no-untyped-def]
    """Add the residual of a vertex to its value: the residual that there was, and what rounding may have done."""
    x = residual[v]
    residual[v] = 0.0
    value[v] += x
    return x, 2.0 * (abs(value[v]) + abs(x))


@_uncounted
@spliced
def _send_pieces(  # type: ignore[no-untyped-def]
    thread, rows, damping, system, of, queue, shares, cuts, pieces, mail, sums, works, cursor
):
    """A thread's part of sending: the vertices of a piece pushed along their out-rows into ``mail``.

    ``cuts``: see ``_cut_pieces``; ``shares``: float64, what a vertex of the queue sends along each edge, which is
    known of the vertices of cut rows. Sets ``sums[piece]`` and ``works[piece]``.
    """
    keys, counts, degrees, row_leaf = rows.keys, rows.counts, rows.degrees, rows.row_leaf
    leaf_shift = rows.leaf_shift
    value = system.value
    residual = system.residual
    heads, sorted_heads, sent, begins, places = mail.heads, mail.sorted_heads, mail.by, mail.begins, mail.places
    for piece in drawn(cursor, pieces):
        first = cuts[piece, 0]
        last = cuts[piece, 1]
        begin = cuts[piece, 2]
        row_begin = cuts[piece, 3]
        row_end = cuts[piece, 4]
        is_cut = row_end > 0
        parts = piece * PARTS
        for r in range(RANGES):
            places[parts + r] = 0
        norm_by = 0.0
        size_by = 0.0
        total_by = 0.0
        rounded = 0.0
        at = begin
        for k in range(first, last):
            if k + _AHEAD < last:
                ahead = np.int64(queue[k + _AHEAD])
                prefetch(value, ahead)
                prefetch(residual, ahead)
                prefetch_to_read(degrees, ahead)
                prefetch_to_read(row_leaf, ahead)
            if k + _ROWS_AHEAD < last:
                ahead = np.int64(queue[k + _ROWS_AHEAD])
                leaf = np.int64(row_leaf[ahead])
                prefetch_to_read(counts, leaf)
                further = np.int64(degrees[ahead]) // _LEAF_EDGES
                for leaf_ahead in range(1 + (further if further < _LEAVES_AHEAD else _LEAVES_AHEAD)):
                    ask_for_leaf(keys, leaf + leaf_ahead, leaf_shift)
            v = np.int64(queue[k])
            remaining = np.int64(degrees[v])
            if not is_cut:
                x, off = _taken(v, value, residual)
                norm_by += x
                size_by -= abs(x)
                total_by -= x
                rounded += off
                shares[k] = 0.0
                if remaining > 0:
                    total_by += damping * x
                    shares[k] = damping * x / remaining
            place = np.int64(0)
            for slot, stop in runs(rows, v):
                if remaining > _LONG:
                    ask_for_leaf(keys, (slot >> leaf_shift) + _LEAVES_AHEAD, leaf_shift)
                remaining -= stop - slot
                i = slot
                i_stop = stop
                if is_cut:
                    i = max(slot, slot + row_begin - place)
                    i_stop = min(stop, slot + row_end - place)
                    place += stop - slot
                while i < i_stop:
                    u = np.uint32(keys[i] & LOW)
                    heads[at] = u
                    at += 1
                    places[parts + np.int64(of[u >> np.uint32(GRAIN_SHIFT)])] += 1
                    i += 1
        begin_parts(begin, parts, begins, places)
        at = begin
        for k in range(first, last):
            share_of_edges = shares[k]
            edges = row_end - row_begin if is_cut else np.int64(degrees[queue[k]])
            for _ in range(edges):
                u = heads[at]
                at += 1
                to = parts + np.int64(of[u >> np.uint32(GRAIN_SHIFT)])
                place = places[to]
                places[to] = place + 1
                sorted_heads[place] = u
                sent[place] = share_of_edges
        sums[piece, NORM] = norm_by
        sums[piece, SIZE] = size_by
        sums[piece, ROUNDED] = rounded
        sums[piece, SLIPPED] = 0.0
        sums[piece, TOTAL] = total_by
        works[piece, PUSHES] = 0 if is_cut else last - first
        works[piece, EDGES] = at - begin


@_uncounted
def _receive_ranges(thread, limits, pieces, wide, system, mail, sums, cursor):  # type: ignore[no-untyped-def]
    """A thread's part of receiving what so many pieces have sent; ``wide``: every block that is reached is
    flagged, since to look at those again costs less than a comparison at each edge."""
    residual = system.residual
    flags = system.flags
    heads, sent, begins = mail.sorted_heads, mail.by, mail.begins
    below = -limits.below
    above = limits.above
    for of_range in drawn(cursor, RANGES):
        size_by = 0.0
        rounded = 0.0
        for piece in range(pieces):
            end = begins[piece * PARTS + of_range + 1]
            for k in range(begins[piece * PARTS + of_range], end):
                if k + _RECEIVERS_AHEAD < end:
                    prefetch(residual, np.int64(heads[k + _RECEIVERS_AHEAD]))
                u = np.uintp(heads[k])
                before = residual[u]
                r = before + sent[k]
                residual[u] = r
                size_by += abs(r) - abs(before)
                rounded += abs(r)
                if wide:
                    flags[u >> np.uintp(BLOCK_SHIFT)] = np.uint8(1)
                else:
                    flags[u >> np.uintp(BLOCK_SHIFT)] |= np.uint8((r > above) | (r < below))
        sums[of_range, SIZE] = size_by
        sums[of_range, ROUNDED] = rounded


@_jit
def choose(crew, rows, limits, level, system, queue, found):  # type: ignore[no-untyped-def]
    """Choose what a sweep pushes: every vertex over ``level`` times its limits.

    ``queue``: uint32[capacity], room; ``found``: int64[stretches, 2], room. What is chosen is at the begin of
    ``queue`` then, ascending, and marked as moved; returns (vertices, their edges).
    """
    cursor = np.zeros(1, np.int64)
    share(crew, _choose_stretches, (rows, limits, level, system, queue, found, cursor))
    count = np.int64(0)
    edges = np.int64(0)
    for stretch in range(found.shape[0]):
        begin = stretch * STRETCH
        for k in range(found[stretch, 0]):
            queue[count + k] = queue[begin + k]
        count += found[stretch, 0]
        edges += found[stretch, 1]
    return count, edges


@_uncounted
def _cut_pieces(  # type: ignore[no-untyped-def]
    rows, damping, system, queue, count, at, row_done, piece_max, room, shares, cuts, sums
):
    """The pieces of the next wave, from vertex ``at`` of the queue on, of whose row ``row_done`` edges are sent.

    ``cuts``: int64[PIECES, 5], of each piece: its vertices ``queue[first:last]``, where it begins in the mail, and
    of a row of more than ``piece_max`` edges, which is in pieces by itself, from which edge to which (else 0). The
    vertex of such a row is taken here, and ``sums``, of length ``SUMS``, tells what that did.

    Returns (pieces, vertex of the queue to go on with, edges of its row that are sent, rows that were begun here).
    """
    degrees = rows.degrees
    value = system.value
    residual = system.residual
    pieces = np.int64(0)
    used = np.int64(0)
    begun = np.int64(0)
    for slot in range(SUMS):
        sums[slot] = 0.0
    while at < count and pieces < PIECES and used < room:
        first = at
        begin = used
        degree = np.int64(degrees[queue[at]])
        if degree > piece_max:
            v = np.int64(queue[at])
            if row_done == 0:
                x, off = _taken(v, value, residual)
                sums[NORM] += x
                sums[SIZE] -= abs(x)
                sums[TOTAL] += damping * x - x
                sums[ROUNDED] += off
                shares[at] = damping * x / degree
                begun += 1
            cuts[pieces, 3] = row_done
            row_done += min(piece_max, degree - row_done, room - used)
            cuts[pieces, 4] = row_done
            used += row_done - cuts[pieces, 3]
            cuts[pieces, 1] = at + 1
            if row_done == degree:
                at += 1
                row_done = np.int64(0)
        else:
            in_piece = np.int64(0)
            while at < count and in_piece < piece_max:
                degree = np.int64(degrees[queue[at]])
                if degree > piece_max or used + degree > room:
                    break
                used += degree
                in_piece += degree + VERTEX
                at += 1
            if at == first:
                break
            cuts[pieces, 1] = at
            cuts[pieces, 3] = cuts[pieces, 4] = 0
        cuts[pieces, 0] = first
        cuts[pieces, 2] = begin
        pieces += 1
    return pieces, at, row_done, begun


@_jit
def push_in_waves(  # type: ignore[no-untyped-def]
    crew, rows, limits, damping, system, ranges, queue, count, edges, room, mail, work
):
    """Push ``queue[:count]``, vertices with so many edges, in waves.

    ``room``: how many edges a wave may have, at least one; ``mail`` has room for them.
    """
    size_max = system.sums[SIZE]
    sums = np.zeros((max(PIECES, RANGES), SUMS))
    own = np.zeros(SUMS)
    works = np.zeros((PIECES, work.size), np.int64)
    cuts = np.zeros((PIECES, 5), np.int64)
    cursor = np.zeros(1, np.int64)
    shares = np.empty(count)
    piece_max = max(min((edges + VERTEX * count) // PIECES, room // PIECES), np.int64(_PIECE_MIN))
    piece_max = min(piece_max, room)
    wide = edges > system.value.size
    moved_by = 0.0
    at = np.int64(0)
    row_done = np.int64(0)
    while at < count:
        pieces, at, row_done, begun = _cut_pieces(
            rows, damping, system, queue, count, at, row_done, piece_max, room, shares, cuts, own
        )
        few = at_most(crew, pieces)
        cursor[0] = 0
        share(
            few,
            _send_pieces,
            (rows, damping, system, ranges.of, queue, shares, cuts, pieces, mail, sums, works, cursor),
        )
        # Of sizes these have only what was moved.
        moved_by -= own[SIZE]
        work[PUSHES] += begun
        for slot in range(SUMS):
            system.sums[slot] += own[slot]
        for piece in range(pieces):
            moved_by -= sums[piece, SIZE]
            for slot in range(SUMS):
                system.sums[slot] += sums[piece, slot]
            work[PUSHES] += works[piece, PUSHES]
            work[EDGES] += works[piece, EDGES]
        cursor[0] = 0
        share(few, _receive_ranges, (limits, pieces, wide, system, mail, sums, cursor))
        for of_range in range(RANGES):
            system.sums[SIZE] += sums[of_range, SIZE]
            system.sums[ROUNDED] += sums[of_range, ROUNDED]
        # What is put together of pieces and of ranges.
        system.sums[SLIPPED] += 2.0 * (PIECES + RANGES + 1) * size_max + (PIECES + 1) * abs(system.sums[NORM])
    # As of a sweep by one thread: no sum of sizes grows, and every step of adding up rounds.
    system.sums[SLIPPED] += (2.0 * edges + 6.0 * count) * size_max + (count + 4.0) * moved_by
    work[SWEEPS] += 1
