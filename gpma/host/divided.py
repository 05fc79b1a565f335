"""A small batch divided among threads, in one compiled call: each looks up a piece of the batch and writes it.

It is what ``small.py`` does, by the same kernels. Between looking up and writing nobody waits for anybody: pieces
are cut between leaves, so that a leaf is read and written by one thread, in whose cache it is by then. What pieces
have in common is left to the caller's thread: rows whose updates lie in several pieces, and windows that must be
redistributed. What ends up in the slots depends neither on the pieces nor on the threads.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from ..atomics import fetch_add
from ..edges import ABSENT, DELETED, INSERTED, LOW, OVERWRITTEN, Int, Offsets
from ..intrinsics import inner, uncounted_inner
from ..team import Crew, at_most, share
from ..written import Words
from .arrays import Pending, RowIndex, Slots, Updates
from .committing import LEAVES, LEAVES_END, LIST_FIELDS, ROWS, ROWS_END, WAITING_END, join_lists, other_row
from .merge import advance_rows, merge_leaves, note_rows, split_report
from .search import LANES, Lanes, ask_for_leaf, ask_for_row, find_leaf, locate_in, probe
from .small import (
    MOVED,
    Did,
    Orientation,
    Task,
    columns_in,
    did_in,
    is_good,
    loops_in,
    mirrored_of,
    note,
    ordered,
    orientation_in,
    slots_of,
    spread,
    transposed_of,
)
from .sorting import Arrivals
from .stretch import net_change

# Of a piece, behind what ``committing`` lists of one: where the rows end that lie in no other piece, where the
# list of those begins and ends that the caller notes before them, and how many updates are INSERTED, ..., ABSENT.
_INNER_END, _GAP, _GAP_END, _TOTALS, _FIELDS = (LIST_FIELDS + k for k in (0, 1, 2, 3, 7))


@uncounted_inner
def _other_leaf(slots: Slots, updates: Updates, begin: Int, end: Int) -> Int:
    """The first update from ``begin`` on that does not belong into the leaf of the one before; ``end``: none."""
    if begin == 0 or begin >= end:
        return begin
    keys, heads = updates.keys, slots.heads
    after = find_leaf(slots, keys[np.uintp(begin - 1)]) + 1
    if after == slots.stretch_begin:
        after = np.int64(slots.stretch_end)
    if after >= heads.size:
        return end
    return begin + np.searchsorted(keys[begin:end], heads[np.uintp(after)])


@uncounted_inner
def _apply_piece(
    slots: Slots,
    rows: RowIndex,
    updates: Updates,
    pending: Pending,
    bounds: tuple[Int, Int, Int],
    lanes: Lanes,
    lists: Offsets,
    listed: Int,
) -> None:
    """Look up and write updates ``bounds[0]`` to ``bounds[1]`` of ``bounds[2]``, both moved on to where a leaf
    begins."""
    end = bounds[2]
    first, last = _other_leaf(slots, updates, bounds[0], end), _other_leaf(slots, updates, bounds[1], end)
    keys, leaf = updates.keys, updates.leaf
    for i in range(first, last):
        ask_for_row(rows, keys[np.uintp(i)])
    locate_in(slots, updates, first, last, lanes)
    for i in range(first, last):
        ask_for_leaf(slots, np.int64(leaf[np.uintp(i)]))
    totals = probe(slots, updates, first, last)
    for state in range(4):
        lists[listed, _TOTALS + state] = totals[state]
    rows_begin = min(other_row(keys, first, last), last)
    rows_end = last
    if first < last < end:
        row_begin = keys[np.uintp(last)] & ~LOW
        rows_end = rows_begin + np.searchsorted(keys[rows_begin:last], row_begin)
    lists[listed, ROWS], lists[listed, _INNER_END] = rows_begin, rows_end
    lists[listed, ROWS_END] = note_rows(updates, rows_begin, rows_end, rows, pending.rows)
    n_pending, waiting = merge_leaves(slots, updates, first, last, last, pending, first, first, False)
    lists[listed, LEAVES], lists[listed, LEAVES_END], lists[listed, WAITING_END] = first, n_pending, waiting


@uncounted_inner
def _apply_pieces(
    thread: Int,
    slots: Slots,
    rows: RowIndex,
    updates: Updates,
    pending: Pending,
    in_slots: Slots,
    in_rows: RowIndex,
    in_updates: Updates,
    in_pending: Pending,
    ends: tuple[Int, Int],
    n_pieces: Int,
    room: Lanes,
    lists: Offsets,
    cursor: Offsets,
) -> None:
    """Draw pieces, first those of out-rows, then those of in-rows; ``ends``: how many updates either has."""
    while True:
        listed = fetch_add(cursor, 0, np.int64(1))
        if listed >= lists.shape[0]:
            return
        lanes = Lanes(
            room.found[listed * LANES : (listed + 1) * LANES], room.wanted[listed * LANES : (listed + 1) * LANES]
        )
        if listed < n_pieces:
            bounds = ends[0] * listed // n_pieces, ends[0] * (listed + 1) // n_pieces, ends[0]
            _apply_piece(slots, rows, updates, pending, bounds, lanes, lists, listed)
        else:
            piece = listed - n_pieces
            bounds = ends[1] * piece // n_pieces, ends[1] * (piece + 1) // n_pieces, ends[1]
            _apply_piece(in_slots, in_rows, in_updates, in_pending, bounds, lanes, lists, listed)


@inner
def _finish(array: Orientation, task: Task, lists: Offsets, did: Did, k: Int) -> bool:
    """What pieces left: note rows of several pieces, and redistribute what must be; whether there is no more to
    it (``note``)."""
    slots, rows = slots_of(array), RowIndex(array.row_leaf, array.degrees)
    end, updates, pending = task.end, task.updates, task.pending
    done = np.int64(0)
    for piece in range(lists.shape[0]):
        begin, inner_end = lists[piece, ROWS], lists[piece, _INNER_END]
        if begin < inner_end:
            lists[piece, _GAP] = done
            lists[piece, _GAP_END] = note_rows(updates, done, begin, rows, pending.rows)
            done = inner_end
    listed = note_rows(updates, done, end, rows, pending.rows)
    n_more_left = np.int64(0)
    if slots.stretch_begin < slots.stretch_end:
        n_more_left = net_change(updates, np.int64(0), end, slots.stretch_begin)
    n_pending, _ = join_lists(pending, lists)
    moved, stretch_begin, stretch_end, signs = spread(array, slots, rows.leaf, task, n_pending)
    for piece in range(lists.shape[0]):
        advance_rows(slots, rows, pending.rows, lists[piece, _GAP], lists[piece, _GAP_END])
        advance_rows(slots, rows, pending.rows, lists[piece, ROWS], lists[piece, ROWS_END])
    advance_rows(slots, rows, pending.rows, done, listed)
    return note(did, k, array, end, n_more_left, moved, stretch_begin, stretch_end, signs)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def apply_divided(
    out_words: Words,
    in_words: Words,
    did_words: Words,
    both: Int,
    mirrored: Int,
    negative: Int,
    n_vertices: Int,
    arrived: Arrivals,
    changed: Words,
    n_pieces: Int,
    crew: Crew,
) -> tuple[bool, bool, Int, Int, Int, Int, Int, Int, Int, Int, Int]:
    """``small.apply_small``, in so many pieces of each orientation, which the threads of a crew draw."""
    out, in_, did = orientation_in(out_words), orientation_in(in_words), did_in(did_words)
    none: Int = np.int64(0)
    if not is_good(arrived, n_vertices, negative):
        return False, False, none, none, none, none, none, none, none, none, none
    if mirrored:
        arrived = mirrored_of(arrived)
    n_all = n_pieces
    there = ordered(arrived, out.weights.size > 0)
    here = there
    if both:
        n_all = 2 * n_pieces
        here = ordered(transposed_of(arrived), in_.weights.size > 0)
    lists = np.zeros((n_all, _FIELDS), np.int64)
    room = Lanes(np.empty(n_all * LANES, np.int64), np.empty(n_all * LANES, np.uint64))
    totals, starts, cursor = np.zeros(4, np.int64), np.zeros(4, np.int64), np.zeros(1, np.int64)
    # From here on no memory is asked for.
    share(
        at_most(crew, n_all),
        _apply_pieces,
        (
            slots_of(out),
            RowIndex(out.row_leaf, out.degrees),
            there.updates,
            there.pending,
            slots_of(in_),
            RowIndex(in_.row_leaf, in_.degrees),
            here.updates,
            here.pending,
            (there.end, here.end),
            n_pieces,
            room,
            lists,
            cursor,
        ),
    )
    is_calm = _finish(out, there, lists[:n_pieces], did, none)
    if both:
        is_calm &= _finish(in_, here, lists[n_pieces:], did, np.int64(1))
    for piece in range(n_pieces):
        for state in range(4):
            totals[state] += lists[piece, _TOTALS + state]
    inserted, overwritten = totals[INSERTED], totals[OVERWRITTEN]
    deleted, absent = totals[DELETED], totals[ABSENT]
    columns = columns_in(changed, arrived.keys.size, inserted, overwritten, deleted, absent)
    split_report(there.updates, none, there.end, columns, starts)
    loops = loops_in(columns, mirrored)
    return True, is_calm, did.counts[0, MOVED], inserted, overwritten, deleted, absent, *loops
