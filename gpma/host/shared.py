"""A batch of some thousand updates, in one compiled call: looked up in both orientations and written if nothing
stands in the way, in pieces that the threads of a crew draw.

What it does is what ``preparing.py`` and ``committing.py`` do of any batch. Between the two, and around them, is
a way through the interpreter that costs as much as hundreds of updates, in cold caches thousands. The caller has
seen to it that no array needs another layout (``PackedMemoryArray.for_small``), and has taken the work arrays.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from ..edges import ABSENT, DELETED, INSERTED, OVERWRITTEN, Int, Keys, Weights
from ..gate import Gate, shut_gate
from ..intrinsics import inner
from ..team import Crew
from .arrays import ReportColumns, RowIndex, Slots
from .committing import Task, Written, commit_either, commit_one, lists_of
from .preparing import END, PART_FIELDS, Parts, Question, look_up_either, look_up_one
from .small import (
    Orientation,
    Outcome,
    columns_in,
    is_good,
    loops_in,
    mirrored_of,
    nothing_done,
    outcome_of,
    transposed_of,
)
from .sorting import Arrivals
from .work import Work


@inner
def _slots(side: Orientation) -> Slots:
    return Slots(
        side.keys,
        side.weights,
        side.counts,
        side.heads,
        side.tops,
        side.stretch_begin,
        side.stretch_end,
    )


@inner
def _task(side: Orientation, work: Work, parts: Parts, columns: ReportColumns, told: bool, n_updates: Int) -> Task:
    all_wait: Any = np.bool_(False)
    return Task(
        _slots(side),
        RowIndex(side.row_leaf, side.degrees),
        work.updates,
        parts,
        work.pending,
        work.windows,
        (side.lower, side.upper),
        columns,
        told,
        all_wait,
        n_updates,
        side.hot_for,
        side.crowded_leaves,
    )


@inner
def _outcome(written: Written, n_updates: Int, n_more: Int) -> Outcome:
    moved, begin, end = written.moved, written.stretch_begin, written.stretch_end
    return outcome_of(n_updates, n_more, written.net_left, moved, begin, end, written.signs)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def apply_shared(
    out: Orientation,
    out_work: Work,
    in_: Orientation,
    in_work: Work,
    both: bool,
    mirrored: bool,
    negative: bool,
    n_vertices: Int,
    n_pieces: Int,
    arrived: Arrivals,
    changed: Keys,
    changed_weights: Weights,
    crew: Crew,
    each: Crew,
    gate: Gate,
) -> tuple[bool, tuple[Int, ...], Outcome, Outcome]:
    """``small.apply_small``, in so many pieces of each orientation (a power of two), with work arrays that have
    room for all updates of rows. ``crew`` shares the orientations, if there are both, and ``each`` what is to be
    done for either. ``gate``: shut once all is looked up, where it is done."""
    none: Int = np.int64(0)
    nothing = nothing_done()
    if not is_good(arrived, n_vertices, negative):
        return False, (none, none, none, none, none, none, none, none), nothing, nothing
    if mirrored:
        arrived = mirrored_of(arrived)
    turned = arrived
    if both:
        turned = transposed_of(arrived)
    parts, in_parts = np.zeros((n_pieces, PART_FIELDS), np.int64), np.zeros((n_pieces, PART_FIELDS), np.int64)
    one = Question(_slots(out), arrived, n_vertices, n_pieces, out_work.sort, out_work.updates)
    other = Question(_slots(in_), turned, n_vertices, n_pieces, in_work.sort, in_work.updates)
    if both:
        found, _ = look_up_either(one, other, parts, in_parts, crew, each)
    else:
        found = look_up_one(one, parts, each)
    inserted, overwritten = found[1 + INSERTED], found[1 + OVERWRITTEN]
    deleted, absent = found[1 + DELETED], found[1 + ABSENT]
    columns = columns_in(changed, changed_weights, inserted, overwritten, deleted, absent)
    end, n_more = parts[n_pieces - 1, END], inserted - deleted
    yes: Any = np.bool_(True)
    no: Any = np.bool_(False)
    task = _task(out, out_work, parts, columns, yes, end)
    in_did = nothing
    shut_gate(gate)
    if both:
        in_task = _task(in_, in_work, in_parts, columns, no, end)
        written, in_written = commit_either(task, in_task, crew, each)
        in_did = _outcome(in_written, end, n_more)
    else:
        written = commit_one(task, lists_of(task), each)
    counts = inserted, overwritten, deleted, absent, *loops_in(columns, mirrored)
    return True, counts, _outcome(written, end, n_more), in_did
