"""A small batch divided among threads, in one compiled call: each looks up a piece of the batch and writes it.

It is what ``small.py`` does, by the same kernels; how it is cut, ``pieces.py`` says.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from ..drawing import drawn
from ..edges import Int, Offsets
from ..intrinsics import inner, uncounted_inner
from ..team import Crew, at_most, share
from ..written import Words
from .arrays import Pending, RowIndex, Slots, Updates
from .committing import GAP, GAP_END, LAST_GAP, LAST_GAP_END, LIST_FIELDS, NET, ROWS, ROWS_END, join_lists
from .merge import advance_rows, split_report
from .pieces import apply_piece, next_leaf, note_between
from .preparing import PART_FIELDS, Parts, totals_of
from .search import Lanes, lanes_of, new_lanes
from .small import (
    NOT_DONE,
    Did,
    Orientation,
    Task,
    Told,
    columns_in,
    did_in,
    is_good,
    mirrored_of,
    note,
    ordered,
    orientation_in,
    slots_of,
    spread,
    told_of,
    transposed_of,
)
from .sorting import Arrivals


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
    parts: Parts,
    lists: Offsets,
    cursor: Offsets,
) -> None:
    """Draw pieces, first those of out-rows, then those of in-rows; ``ends``: how many updates either has."""
    for part in drawn(cursor, lists.shape[0]):
        lanes = lanes_of(room, part)
        if part < n_pieces:
            bounds = _bounds(slots, updates, ends[0], part, n_pieces)
            apply_piece(slots, rows, updates, pending, bounds, lanes, parts, lists, part)
        else:
            bounds = _bounds(in_slots, in_updates, ends[1], part - n_pieces, n_pieces)
            apply_piece(in_slots, in_rows, in_updates, in_pending, bounds, lanes, parts, lists, part)


@uncounted_inner
def _bounds(slots: Slots, updates: Updates, n: Int, piece: Int, n_pieces: Int) -> tuple[Int, Int]:
    """Where a piece of n updates in order begins and ends, between leaves."""
    keys = updates.keys
    begin, end = n * piece // n_pieces, n * (piece + 1) // n_pieces
    return next_leaf(slots, keys, begin, n), next_leaf(slots, keys, end, n)


@inner
def _finish(array: Orientation, task: Task, lists: Offsets, did: Did, k: Int) -> bool:
    """What pieces left: note rows that several have, and redistribute what must be; whether there is no more to
    it (``note``)."""
    slots, rows = slots_of(array), RowIndex(array.row_leaf, array.degrees)
    end, pending = task.end, task.pending
    note_between(task.updates, end, rows, pending.rows, lists)
    n_more_left = np.int64(0)
    for part in range(lists.shape[0]):
        n_more_left += lists[part, NET]
    n_pending, _ = join_lists(pending, lists)
    moved, stretch_begin, stretch_end, signs = spread(array, slots, rows.leaf, task, n_pending)
    for part in range(lists.shape[0]):
        advance_rows(slots, rows, pending.rows, lists[part, GAP], lists[part, GAP_END])
        advance_rows(slots, rows, pending.rows, lists[part, ROWS], lists[part, ROWS_END])
    advance_rows(slots, rows, pending.rows, lists[0, LAST_GAP], lists[0, LAST_GAP_END])
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
) -> Told:
    """``small.apply_small``, in so many pieces of each orientation, which the threads of a crew draw."""
    out, in_, did = orientation_in(out_words), orientation_in(in_words), did_in(did_words)
    none: Int = np.int64(0)
    if not is_good(arrived, n_vertices, negative):
        return NOT_DONE
    if mirrored:
        arrived = mirrored_of(arrived)
    n_all = n_pieces
    there = ordered(arrived, out.weights.size > 0)
    here = there
    if both:
        n_all = 2 * n_pieces
        here = ordered(transposed_of(arrived), in_.weights.size > 0)
    parts, lists = np.zeros((n_all, PART_FIELDS), np.int64), np.zeros((n_all, LIST_FIELDS), np.int64)
    room = new_lanes(n_all)
    starts, cursor = np.zeros(4, np.int64), np.zeros(1, np.int64)
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
            parts,
            lists,
            cursor,
        ),
    )
    is_calm = _finish(out, there, lists[:n_pieces], did, none)
    if both:
        is_calm &= _finish(in_, here, lists[n_pieces:], did, np.int64(1))
    totals = totals_of(parts[:n_pieces])
    columns = columns_in(changed, arrived.keys.size, totals)
    split_report(there.updates, none, there.end, columns, starts)
    return told_of(did, is_calm, totals, columns, mirrored)
