"""How a stretch of empty leaves moves through a packed array.

The **stretch** lies between two parts of the array. A **move** takes edges from the end of one part that is next
to the stretch and writes them at the other end of the stretch, which so goes the other way. Both parts are in
order all the time, searches go to the one or the other (``search.find_leaf``), and walks along a row skip empty
leaves. Why it moves, and when: ``migration.py``.

A move writes into leaves that are empty, never into one that it reads: its target is no wider than the
stretch. So its pieces are independent of each other. Incremental resizing is known from hash tables (Larson:
Dynamic hash tables, CACM 31(4), 1988); here it is a packed array's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np

from ..drawing import drawn, drawn_by
from ..edges import DELETED, EMPTY_KEY, HALF, INSERTED, Int, Offsets, Vertices
from ..intrinsics import copy, inner, uncounted, uncounted_inner
from ..layout import LEAF_LEAST, LEAF_SHIFT, LEAF_SLOTS, SHARE_FULL
from ..team import Crew, at_most, share
from .arrays import Slots, Updates
from .search import set_head

# With fewer edges than this for each leaf left of the finished part, a leaf's rounding might become a leaf's
# emptiness: such an array is spread at once.
SHARE_MIN = 2 * LEAF_LEAST
# A stretch that moves right begins with the room in the first block of so many leaves no denser than this.
BLOCK_LEAVES = 64
BLOCK_DENSITY = 0.55
# It moves at least so many edges a move: over a leaf or two nothing would be gained, for want of half leaves.
MOVED_MIN = 1000
# So many leaves at most are carried past a stretch together. Where they have more than CROWDED keys each, in a
# crowd more than PASSED, they get only RELIEVED.
CARRIED_LEAVES = 32
CROWDED, PASSED, RELIEVED = int(0.85 * LEAF_SLOTS), int(0.78 * LEAF_SLOTS), 0.58 * LEAF_SLOTS
# Threads write so many leaves of a move at a time, and more where it would come to more pieces.
PIECE_LEAVES_MIN, PIECES_MAX = 8, 64
# Past leaves it goes in many short moves, of which so many at most are planned before the first is written, and
# threads take so many at a time.
PLANNED_MAX, TOGETHER = 1024, 4
# Ways of a stretch: left, spreading edges evenly; right, gathering them; or past leaves, either way: carried to a
# place, or passing through a crowd.
SPREAD, GATHER, CARRY, PASS = 0, 1, 2, 3
PAST_LEAVES = (CARRY, PASS)


class Move(NamedTuple):
    """Edges that move next: ``edges`` of them, from ``source_slot`` in leaf ``source`` on, into leaves ``begin``
    to ``end``; the stretch is then from ``stretch_begin`` to ``stretch_end``."""

    source: Int
    source_slot: Int
    begin: Int
    end: Int
    edges: Int
    stretch_begin: Int
    stretch_end: Int


@uncounted_inner
def net_change(updates: Updates, lo: Int, hi: Int, leaf_end: Int) -> Int:
    """By how many edges updates lo..hi change what is in the leaves before ``leaf_end``."""
    leaf, status = updates.leaf, updates.status
    net = np.int64(0)
    for i in range(lo, hi):
        if np.int64(leaf[np.uintp(i)]) >= leaf_end:
            break
        state = status[np.uintp(i)]
        net += np.int64(state == INSERTED) - np.int64(state == DELETED)
    return net


@uncounted_inner
def plan_left(slots: Slots, edges_left: Int, edges_wanted: Int) -> Move:
    """The next move of a stretch that moves left, of about so many edges at most; ``edges_left`` are left of it.

    A move without edges: there is nothing that can be moved this way (fewer than SHARE_MIN a leaf).
    """
    counts = slots.counts
    end = np.int64(slots.stretch_end)
    source = np.int64(slots.stretch_begin)
    # In floating point: with billions of edges a product of theirs and of leaves has more than 63 bits.
    share = min(edges_wanted, edges_left) / max(edges_left, 1)
    width = min(end - source, np.int64(np.ceil(share * end)))
    if edges_left < SHARE_MIN * end or width <= 0:
        return Move(source, np.int64(0), end, end, np.int64(0), source, end)
    wanted = np.int64(edges_left * (width / end))
    edges = np.int64(0)
    while edges < wanted:
        source -= 1
        edges += np.int64(counts[np.uintp(source)])
    # What stays behind in the last source leaf: enough for a leaf, or nothing where the target has the room.
    stays = edges - wanted
    if 0 < stays < LEAF_LEAST:
        stays = np.int64(0) if edges <= width * LEAF_SLOTS else np.int64(LEAF_LEAST)
    begin = source + (np.int64(1) if stays > 0 else np.int64(0))
    return Move(source, stays, end - width, end, edges - stays, begin, end - width)


@uncounted_inner
def plan_right(slots: Slots, edges_wanted: Int) -> Move:
    """The next move of a stretch that moves right: whole leaves, with about so many edges (at least MOVED_MIN).

    Leaves become SHARE_FULL full; those that are denser stay so, since the stretch must not narrow. A move without
    edges: nothing is right of the stretch.
    """
    counts = slots.counts
    source = np.int64(slots.stretch_end)
    room = source - np.int64(slots.stretch_begin)
    leaves = np.int64(counts.size) - source
    taken, width, edges = np.int64(0), np.int64(0), np.int64(0)
    while taken < leaves and edges < max(edges_wanted, MOVED_MIN):
        more = edges + np.int64(counts[np.uintp(source + taken)])
        wider = min(taken + 1, np.int64(np.ceil(more / SHARE_FULL)))
        if wider > room:
            break
        edges, width = more, wider
        taken += 1
    begin = np.int64(slots.stretch_begin)
    return Move(source, np.int64(0), begin, begin + width, edges, begin + width, source + taken)


@uncounted_inner
def plan_carry(slots: Slots, leaves: Int, edges_wanted: Int, crowded: Int) -> Move:
    """The next move of a stretch that is carried past so many leaves (to the left, if they are fewer than none).

    They stay about as full as they are, and the stretch as wide as it is; but those of more than ``crowded`` keys
    are relieved.
    """
    counts = slots.counts
    begin, end = np.int64(slots.stretch_begin), np.int64(slots.stretch_end)
    most = min(abs(leaves), end - begin, CARRIED_LEAVES)
    taken, edges = np.int64(0), np.int64(0)
    while taken < most and edges < edges_wanted:
        edges += np.int64(counts[np.uintp(begin - 1 - taken if leaves < 0 else end + taken)])
        taken += 1
    width = taken
    if edges > crowded * taken:
        width = min(np.int64(np.ceil(edges / RELIEVED)), end - begin)
    if leaves < 0:
        return Move(begin - taken, np.int64(0), end - width, end, edges, begin - taken, end - width)
    return Move(end, np.int64(0), begin, begin + width, edges, begin + width, end + taken)


@uncounted_inner
def plan_move(slots: Slots, way: Int, leaves: Int, edges_left: Int, edges_wanted: Int) -> Move:
    """The next move of ``way``; ``leaves`` only matter where the stretch goes past leaves."""
    if way == SPREAD:
        return plan_left(slots, edges_left, edges_wanted)
    if way == GATHER:
        return plan_right(slots, edges_wanted)
    return plan_carry(slots, leaves, edges_wanted, CROWDED if way == CARRY else PASSED)


@uncounted
def sparse_block(slots: Slots) -> tuple[Int, Int, Int]:
    """Where a stretch that moves right can begin: (first leaf of a block, the one behind it, edges before it)."""
    counts = slots.counts
    before = np.int64(0)
    for begin in range(0, counts.size, BLOCK_LEAVES):
        end = min(np.int64(begin + BLOCK_LEAVES), np.int64(counts.size))
        edges = np.int64(0)
        for leaf in range(begin, end):
            edges += np.int64(counts[np.uintp(leaf)])
        if edges <= BLOCK_DENSITY * LEAF_SLOTS * (end - begin):
            return np.int64(begin), end, before
        before += edges
    return np.int64(counts.size), np.int64(counts.size), before


@uncounted_inner
def _before(move: Move, leaf: Int) -> Int:
    """How many edges of the move go into leaves before this one of its target."""
    n = move.end - move.begin
    return (leaf - move.begin) * (move.edges // n) + min(leaf - move.begin, move.edges % n)


@uncounted_inner
def _skip(slots: Slots, source: Int, taken: Int, edges: Int) -> tuple[Int, Int]:
    """Where so many edges from edge ``taken`` of leaf ``source`` on end: (leaf, how many edges of it)."""
    counts = slots.counts
    while edges >= np.int64(counts[np.uintp(source)]) - taken:
        edges -= np.int64(counts[np.uintp(source)]) - taken
        source += 1
        taken = np.int64(0)
        if edges == 0:
            break
    return source, taken + edges


@uncounted_inner
def _write_leaves(
    slots: Slots, row_leaf: Vertices, move: Move, first: Int, last: Int, source: Int, taken: Int
) -> None:
    """Write leaves first..last of the move's target, their heads and the index of rows that begin in them.

    Their edges begin with edge ``taken`` of leaf ``source``.
    """
    keys, weights, counts, heads, tops = slots.keys, slots.weights, slots.counts, slots.heads, slots.tops
    each, extra = move.edges // (move.end - move.begin), move.edges % (move.end - move.begin)
    row = _row_before(slots, source, taken)
    for leaf in range(first, last):
        count = each + (1 if leaf - move.begin < extra else 0)
        base = leaf << LEAF_SHIFT
        to = base
        while to < base + count:
            there = np.int64(counts[np.uintp(source)]) - taken
            if there == 0:
                source += 1
                taken = np.int64(0)
                continue
            run = min(there, base + count - to)
            from_ = (source << LEAF_SHIFT) + taken
            copy(keys, to, keys, from_, run)
            if weights.size:
                copy(weights, to, weights, from_, run)
            to += run
            taken += run
        counts[np.uintp(leaf)] = np.int32(count)
        set_head(heads, tops, leaf, keys[np.uintp(base)])
        for slot in range(base, to):
            u = keys[np.uintp(slot)] >> HALF
            if u != row:
                row_leaf[np.uintp(u)] = np.uint32(leaf)
                row = u


@uncounted_inner
def _write_pieces(
    thread: Int, slots: Slots, row_leaf: Vertices, move: Move, starts: Offsets, cursor: Offsets
) -> None:
    for piece in drawn(cursor, starts.shape[0] - 1):
        first, last = starts[piece, 0], starts[piece + 1, 0]
        _write_leaves(slots, row_leaf, move, first, last, starts[piece, 1], starts[piece, 2])


@inner
def write_move(slots: Slots, row_leaf: Vertices, move: Move, divided_min: Int, crew: Crew) -> None:
    """Write the target of a move, one of ``divided_min`` edges or more in pieces that the threads draw."""
    source, taken = np.int64(move.source), np.int64(move.source_slot)
    n_pieces = min((move.end - move.begin) // PIECE_LEAVES_MIN, np.int64(PIECES_MAX))
    if move.edges < divided_min or n_pieces < 2 or crew.threads < 2:
        _write_leaves(slots, row_leaf, move, move.begin, move.end, source, taken)
        return
    starts = np.empty((n_pieces + 1, 3), np.int64)
    before = np.int64(0)
    for piece in range(n_pieces + 1):
        leaf = move.begin + (move.end - move.begin) * piece // n_pieces
        if piece < n_pieces:
            source, taken = _skip(slots, source, taken, _before(move, leaf) - before)
            before = _before(move, leaf)
        starts[piece, 0], starts[piece, 1], starts[piece, 2] = leaf, source, taken
    share(at_most(crew, n_pieces), _write_pieces, (slots, row_leaf, move, starts, np.zeros(1, np.int64)))


@uncounted_inner
def _row_before(slots: Slots, leaf: Int, slot: Int) -> Int:
    """The row of the key before this one; EMPTY_KEY where there is none."""
    while slot == 0 and leaf > 0:
        leaf = (slots.stretch_begin if leaf == slots.stretch_end else leaf) - 1
        slot = np.int64(slots.counts[np.uintp(leaf)])
    if slot == 0:
        return np.uint64(EMPTY_KEY)
    return slots.keys[np.uintp((leaf << LEAF_SHIFT) + slot - 1)] >> HALF


@uncounted_inner
def vacate(slots: Slots, move: Move) -> None:
    """After everything of the move was written: its sources are empty."""
    counts = slots.counts
    if move.source_slot > 0:
        counts[np.uintp(move.source)] = np.int32(move.source_slot)
    for leaf in range(move.stretch_begin, slots.stretch_begin):
        counts[np.uintp(leaf)] = np.int32(0)
    for leaf in range(slots.stretch_end, move.stretch_end):
        counts[np.uintp(leaf)] = np.int32(0)


@inner
def _plan_past(
    slots: Slots, way: Int, leaves: Int, edges_wanted: Int, moves: Offsets
) -> tuple[Int, Int, Int, Int]:
    """The next moves past leaves: (how many, their edges, where the stretch is then from and to).

    They go into leaves that are empty before the first of them, so that each reads what it would read if the
    others were done: in ``moves`` are source, begin and end of the target, and edges of each.
    """
    begin: Any = np.int64(slots.stretch_begin)
    end: Any = np.int64(slots.stretch_end)
    n, edges = np.int64(0), np.int64(0)
    while n < moves.shape[0] and edges < edges_wanted:
        then = Slots(slots.keys, slots.weights, slots.counts, slots.heads, slots.tops, begin, end)
        move = plan_move(then, way, leaves, np.int64(0), edges_wanted - edges)
        if move.edges == 0 or move.begin < slots.stretch_begin or move.end > slots.stretch_end:
            break
        moves[n, 0], moves[n, 1], moves[n, 2], moves[n, 3] = move.source, move.begin, move.end, move.edges
        n += 1
        edges += move.edges
        leaves += begin - move.stretch_begin if leaves < 0 else end - move.stretch_end
        begin, end = np.int64(move.stretch_begin), np.int64(move.stretch_end)
    return n, edges, begin, end


@uncounted_inner
def _write_moves(
    thread: Int, slots: Slots, row_leaf: Vertices, moves: Offsets, n: Int, together: Int, cursor: Offsets
) -> None:
    for first in drawn_by(cursor, n, together):
        for k in range(first, min(first + together, n)):
            source, begin, end, edges = moves[k, 0], moves[k, 1], moves[k, 2], moves[k, 3]
            move = Move(source, np.int64(0), begin, end, edges, begin, end)
            _write_leaves(slots, row_leaf, move, begin, end, source, np.int64(0))


@inner
def _go_past(
    slots: Slots, row_leaf: Vertices, way: Int, leaves: Int, edges_wanted: Int, divided_min: Int, crew: Crew
) -> tuple[Int, Int, Int]:
    """``make_moves`` past leaves, many moves at once; from ``divided_min`` edges on threads share them."""
    moves = np.empty((PLANNED_MAX, 4), np.int64)
    cursor = np.zeros(1, np.int64)
    moved = np.int64(0)
    begin: Any = np.int64(slots.stretch_begin)
    end: Any = np.int64(slots.stretch_end)
    while moved < edges_wanted and begin < end:
        slots = Slots(slots.keys, slots.weights, slots.counts, slots.heads, slots.tops, begin, end)
        n, edges, then_begin, then_end = _plan_past(slots, way, leaves, edges_wanted - moved, moves)
        if n == 0:
            break
        cursor[0] = 0
        if edges < divided_min:
            _write_moves(np.int64(0), slots, row_leaf, moves, n, n, cursor)
        else:
            helped = at_most(crew, (n + TOGETHER - 1) // TOGETHER)
            share(helped, _write_moves, (slots, row_leaf, moves, n, np.int64(TOGETHER), cursor))
        for leaf in range(then_begin, begin):
            slots.counts[np.uintp(leaf)] = np.int32(0)
        for leaf in range(end, then_end):
            slots.counts[np.uintp(leaf)] = np.int32(0)
        moved += edges
        leaves += begin - then_begin if leaves < 0 else end - then_end
        begin, end = np.int64(then_begin), np.int64(then_end)
    return moved, begin, end


@nb.njit(cache=True, nogil=True, error_model="numpy")
def make_moves(
    slots: Slots,
    row_leaf: Vertices,
    way: Int,
    leaves: Int,
    edges_left: Int,
    edges_wanted: Int,
    divided_min: Int,
    crew: Crew,
) -> tuple[Int, Int, Int]:
    """Move about so many edges, in as many moves as that takes; returns (moved, stretch begin, stretch end)."""
    moved = np.int64(0)
    if way in PAST_LEAVES:
        return _go_past(slots, row_leaf, way, leaves, edges_wanted, divided_min, crew)
    while moved < edges_wanted and slots.stretch_begin < slots.stretch_end:
        move = plan_move(slots, way, leaves, edges_left, edges_wanted - moved)
        if move.edges == 0:
            break
        write_move(slots, row_leaf, move, divided_min, crew)
        vacate(slots, move)
        moved += move.edges
        edges_left -= move.edges  # as long as the stretch moves left, and else of no use
        slots = Slots(
            slots.keys, slots.weights, slots.counts, slots.heads, slots.tops, move.stretch_begin, move.stretch_end
        )
    return moved, np.int64(slots.stretch_begin), np.int64(slots.stretch_end)
