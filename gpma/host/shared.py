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

from ..edges import ABSENT, DELETED, INSERTED, OVERWRITTEN, Int
from ..gate import Gate, shut_gate
from ..intrinsics import inner
from ..team import Crew
from ..written import Words
from .arrays import ReportColumns, RowIndex
from .committing import Task, Written, commit_either, commit_one, lists_of
from .preparing import END, PART_FIELDS, Parts, Question, look_up_either, look_up_one
from .small import (
    MOVED,
    Did,
    Orientation,
    columns_in,
    is_good,
    loops_in,
    mirrored_of,
    note,
    orientation_in,
    slots_of,
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
    )


@inner
def _noted(did: Did, k: Int, side: Orientation, written: Written, n_updates: Int) -> bool:
    moved, begin, end = written.moved, written.stretch_begin, written.stretch_end
    return note(did, k, side, n_updates, written.net_left, moved, begin, end, written.signs)


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
) -> tuple[bool, bool, Int, Int, Int, Int, Int, Int, Int, Int, Int]:
    """``small.apply_small``, in so many pieces of each orientation (a power of two), with work arrays that have
    room for all updates of rows. ``crew`` shares the orientations, if there are both, and ``each`` what is to be
    done for either. ``gate``: shut once all is looked up, where it is done; until
    ``end_beside`` others read beside that."""
    out, in_ = orientation_in(out_words), orientation_in(in_words)
    none: Int = np.int64(0)
    if not is_good(arrived, n_vertices, negative):
        return False, False, none, none, none, none, none, none, none, none, none
    if mirrored:
        arrived = mirrored_of(arrived)
    turned = arrived
    if both:
        turned = transposed_of(arrived)
    parts, in_parts = np.zeros((n_pieces, PART_FIELDS), np.int64), np.zeros((n_pieces, PART_FIELDS), np.int64)
    one = Question(slots_of(out), arrived, n_vertices, n_pieces, out_work.sort, out_work.updates)
    other = Question(slots_of(in_), turned, n_vertices, n_pieces, in_work.sort, in_work.updates)
    if both:
        found, _ = look_up_either(one, other, parts, in_parts, crew, each)
    else:
        found = look_up_one(one, parts, each)
    inserted, overwritten = found[1 + INSERTED], found[1 + OVERWRITTEN]
    deleted, absent = found[1 + DELETED], found[1 + ABSENT]
    columns = columns_in(changed, arrived.keys.size, inserted, overwritten, deleted, absent)
    end = parts[n_pieces - 1, END]
    yes: Any = np.bool_(True)
    no: Any = np.bool_(False)
    task = _task(out, out_work, parts, columns, yes, end, gate, none)
    shut_gate(gate)
    if both:
        in_task = _task(in_, in_work, in_parts, columns, no, end, gate, np.int64(1))
        written, in_written = commit_either(task, in_task, crew, each)
        is_calm = _noted(did, np.int64(1), in_, in_written, end)
    else:
        written = commit_one(task, lists_of(task), each)
        is_calm = True
    is_calm &= _noted(did, np.int64(0), out, written, end)
    loops = loops_in(columns, mirrored)
    return True, is_calm, did.counts[0, MOVED], inserted, overwritten, deleted, absent, *loops
