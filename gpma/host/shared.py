"""A batch of some thousand updates, in one compiled call: put in order for both orientations, then looked up and
written in pieces that the threads of a crew draw (``pieces.py``).

What it does is what ``preparing.py`` and ``committing.py`` do of any batch, where all is looked up before anything
is written. That takes a way through the interpreter in between and around, which costs as much as hundreds of
updates, in cold caches thousands, and writes leaves by other threads than have read them. But others read on until
something is written: so beside those who read (a ``Gate``) all is looked up first here, too. The caller has seen
to it that no array needs another layout (``PackedMemoryArray.for_small``), and has taken the work arrays.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from ..drawing import drawn
from ..edges import Int, Offsets
from ..gate import Gate, shut_gate
from ..intrinsics import inner
from ..team import Crew, at_most, share
from ..written import Words
from .arrays import Pending, ReportColumns, RowIndex, Slots, Updates
from .committing import LIST_FIELDS, Task, Written, commit_either, commit_one, let_read
from .pieces import apply_piece, note_between, order_one
from .preparing import BEGIN, END, PART_FIELDS, Parts, Question, look_up_either, look_up_one, totals_of
from .search import Lanes, lanes_of, new_lanes
from .small import (
    MOVED,
    NOT_DONE,
    WRITING,
    Did,
    Orientation,
    Told,
    columns_in,
    is_good,
    mirrored_of,
    note,
    orientation_in,
    slots_of,
    told_of,
    transposed_of,
)
from .sorting import Arrivals
from .work import Work


@inner
def _task(
    orientation: Orientation,
    work: Work,
    parts: Parts,
    columns: ReportColumns,
    told: bool,
    n_updates: Int,
    gate: Gate,
    side: Int,
    begun: bool,
) -> Task:
    all_wait: Any = np.bool_(False)
    return Task(
        slots_of(orientation),
        RowIndex(orientation.row_leaf, orientation.degrees),
        work.updates,
        parts,
        work.pending,
        work.windows,
        (orientation.lower, orientation.upper),
        columns,
        told,
        all_wait,
        n_updates,
        orientation.hot_for,
        orientation.crowded_leaves,
        gate,
        side,
        begun,
    )


@inner
def _noted(did: Did, k: Int, side: Orientation, written: Written, n_updates: Int) -> bool:
    moved, begin, end = written.moved, written.stretch_begin, written.stretch_end
    return note(did, k, side, n_updates, written.net_left, moved, begin, end, written.signs)


@inner
def _order_either(
    thread: Int,
    one: Question,
    other: Question,
    parts: Parts,
    other_parts: Parts,
    room: Lanes,
    crew: Crew,
    cursor: Offsets,
) -> None:
    for which in drawn(cursor, 2):
        if which == 0:
            order_one(one, parts, lanes_of(room, which), crew)
        else:
            order_one(other, other_parts, lanes_of(room, which), crew)


@inner
def _apply_pieces(
    thread: Int,
    slots: Slots,
    rows: RowIndex,
    updates: Updates,
    pending: Pending,
    parts: Parts,
    lists: Offsets,
    in_slots: Slots,
    in_rows: RowIndex,
    in_updates: Updates,
    in_pending: Pending,
    in_parts: Parts,
    in_lists: Offsets,
    n_all: Int,
    room: Lanes,
    cursor: Offsets,
) -> None:
    """Draw pieces, first those of out-rows, then those of in-rows."""
    n_pieces = np.int64(parts.shape[0])
    for piece in drawn(cursor, n_all):
        lanes = lanes_of(room, piece)
        if piece < n_pieces:
            bounds = parts[piece, BEGIN], parts[piece, END]
            apply_piece(slots, rows, updates, pending, bounds, lanes, parts, lists, piece)
        else:
            part = piece - n_pieces
            bounds = in_parts[part, BEGIN], in_parts[part, END]
            apply_piece(in_slots, in_rows, in_updates, in_pending, bounds, lanes, in_parts, in_lists, part)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def apply_shared(
    out_words: Words,
    out_work: Work,
    in_words: Words,
    in_work: Work,
    both: Int,
    mirrored: Int,
    negative: Int,
    n_vertices: Int,
    n_pieces: Int,
    arrived: Arrivals,
    changed: Words,
    did: Did,
    crew: Crew,
    each: Crew,
    gate: Gate,
) -> Told:
    """``small.apply_small``, in so many pieces of each orientation (a power of two), with work arrays that have
    room for all updates of rows. ``crew`` shares the orientations, if there are both, and ``each`` what is to be
    done for either. ``gate``: if there is one, shut once all is looked up; until ``end_beside`` others read beside
    what is written."""
    out, in_ = orientation_in(out_words), orientation_in(in_words)
    none: Int = np.int64(0)
    if not is_good(arrived, n_vertices, negative):
        return NOT_DONE
    if mirrored:
        arrived = mirrored_of(arrived)
    turned = arrived
    if both:
        turned = transposed_of(arrived)
    parts, in_parts = np.zeros((n_pieces, PART_FIELDS), np.int64), np.zeros((n_pieces, PART_FIELDS), np.int64)
    lists, in_lists = np.zeros((n_pieces, LIST_FIELDS), np.int64), np.zeros((n_pieces, LIST_FIELDS), np.int64)
    rows, in_rows = RowIndex(out.row_leaf, out.degrees), RowIndex(in_.row_leaf, in_.degrees)
    slots, in_slots = slots_of(out), slots_of(in_)
    there, here = out_work.updates, in_work.updates
    one = Question(slots, arrived, n_vertices, n_pieces, out_work.sort, there)
    other = Question(in_slots, turned, n_vertices, n_pieces, in_work.sort, here)
    n = arrived.keys.size
    beside_readers = gate.size > 0
    if beside_readers:
        if both:
            look_up_either(one, other, parts, in_parts, crew, each)
        else:
            look_up_one(one, parts, each)
        shut_gate(gate)
        did.counts[0, MOVED] = WRITING
    else:
        cursor = np.zeros(1, np.int64)
        n_all = 2 * n_pieces if both else n_pieces
        room = new_lanes(n_all)
        if both:
            share(at_most(crew, np.int64(2)), _order_either, (one, other, parts, in_parts, room, each, cursor))
            cursor[0] = 0
        else:
            order_one(one, parts, room, each)
        # From here on it is written, and memory that is lacking is no excuse any more.
        did.counts[0, MOVED] = WRITING
        share(
            at_most(crew, n_all),
            _apply_pieces,
            (
                slots,
                rows,
                there,
                out_work.pending,
                parts,
                lists,
                in_slots,
                in_rows,
                here,
                in_work.pending,
                in_parts,
                in_lists,
                n_all,
                room,
                cursor,
            ),
        )
        note_between(there, n, rows, out_work.pending.rows, lists)
        if both:
            note_between(here, n, in_rows, in_work.pending.rows, in_lists)
    totals = totals_of(parts)
    columns = columns_in(changed, n, totals)
    end = totals[0] + totals[1] + totals[2] + totals[3]
    yes: Any = np.bool_(True)
    no: Any = np.bool_(False)
    task = _task(out, out_work, parts, columns, yes, end, gate, none, not beside_readers)
    if both:
        in_task = _task(in_, in_work, in_parts, columns, no, end, gate, np.int64(1), not beside_readers)
        written, in_written = commit_either(task, in_task, lists, in_lists, crew, each)
        is_calm = _noted(did, np.int64(1), in_, in_written, end)
    else:
        let_read(task, each)
        written = commit_one(task, lists, each)
        is_calm = True
    is_calm &= _noted(did, np.int64(0), out, written, end)
    return told_of(did, is_calm, totals, columns, mirrored)
