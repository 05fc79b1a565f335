"""Committing a batch that was looked up: one kernel writes it, in pieces that the threads of a crew draw.

1. Each part of the batch notes its rows, and applies its updates to leaves that have room for them. A row, or a
   leaf, whose updates lie in several parts belongs to the first of them, so that no two threads write one degree
   or one leaf.
2. The lists of leaves that are left are joined, and their windows found, by one thread.
3. Windows are redistributed, some at a time.
4. Each part fills its places of the report, which the totals before it tell, and lets the index of rows that it
   shortened point at their first keys.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..drawing import drawn, drawn_by
from ..edges import LOW, Int, Keys, Offsets, Vertices
from ..gate import ALL_NOTED, NOTING, Gate, go_on_to, hold_beside, let_beside, move_in, rows_are, shut_gate
from ..intrinsics import copy, inner, uncounted_inner
from ..sorted_keys import first_behind
from ..team import Crew, at_most, share
from .arrays import Pending, ReportColumns, RowIndex, Slots, Updates
from .crowds import Signs, no_signs, plan
from .merge import advance_rows, merge_leaves, note_rows, redistribute, split_report
from .preparing import BEGIN, END, TOTALS, Parts
from .stretch import net_change
from .windows import Bounds, Windows, outcome

# A batch in one part shares the redistribution of so many edges all the same.
DIVIDED_MOVES_MIN = 100_000
# Who reads beside a commit waits for leaves with so many updates at a time.
BESIDE_UPDATES = 512
# Windows are drawn in so many pieces, or in pieces of so many.
_WINDOW_PIECES, _WINDOWS_MAX = 256, 64
# Of a list of each part: where its pending leaves, its waiting edges and its shortened rows begin and end; by how
# much it changes what is left of the stretch; of a piece (``pieces.py``) also where the rows end that lie in no
# other, where the list of those begins and ends that are noted for it, and, of the first one, behind all.
LEAVES, LEAVES_END, WAITING_END, ROWS, ROWS_END, NET = range(6)
INNER_END, GAP, GAP_END, LAST_GAP, LAST_GAP_END, LIST_FIELDS = range(6, 12)


class Written(NamedTuple):
    """What became of a batch, beside the report.

    ``n_waiting``: new edges that wait, where all do; ``net_left``: by how many edges it changed what is left of
    the stretch; ``n_windows`` were redistributed, of ``moved`` edges together; the stretch then goes from
    ``stretch_begin`` to ``stretch_end``.
    """

    n_waiting: Int
    net_left: Int
    n_windows: Int
    moved: Int
    stretch_begin: Int
    stretch_end: Int
    signs: Signs
    lists: Offsets


class Task(NamedTuple):
    """A batch that lies in ``updates`` in these parts, to be written.

    ``bounds``: the least and the greatest densities by height. ``columns`` are filled if ``told``.
    ``n_updates``, ``hot_for``, ``crowded_leaves``: see ``crowds.plan``. ``gate``: of those who read beside it, as
    ``side`` 0 or 1. If ``all_wait``, all new edges are put aside, no window is redistributed, and what follows is
    left to ``finish``. ``begun``: pieces wrote their leaves already, and noted what ``note_between`` leaves out.
    """

    slots: Slots
    rows: RowIndex
    updates: Updates
    parts: Parts
    pending: Pending
    windows: Windows
    bounds: tuple[Bounds, Bounds]
    columns: ReportColumns
    told: bool
    all_wait: bool
    n_updates: Int
    hot_for: Int
    crowded_leaves: Int
    gate: Gate
    side: Int
    begun: bool


@nb.njit(cache=True, nogil=True, error_model="numpy")
def commit(task: Task, crew: Crew) -> Written:
    """Write a batch; the gate of its task, if there is one, is shut, and stays so (``end_beside``)."""
    shut_gate(task.gate)
    let_read(task, crew)
    return commit_one(task, lists_of(task), crew)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def commit_both(one: Task, other: Task, crew: Crew, each: Crew) -> tuple[Written, Written]:
    """``commit`` of two batches of two arrays, side by side: ``crew`` shares the two, and ``each`` what is to be
    done for either. They have one gate, or none."""
    shut_gate(one.gate)
    return commit_either(one, other, lists_of(one), lists_of(other), crew, each)


@inner
def commit_either(
    one: Task, other: Task, lists: Offsets, other_lists: Offsets, crew: Crew, each: Crew
) -> tuple[Written, Written]:
    """``commit_both``, for kernels, with lists that are there; the gate is shut."""
    let_read(one, each)  # of either, before anything of the other is written
    let_read(other, each)
    numbers, keys, densities = np.zeros((2, 9), np.int64), np.zeros((2, 4), np.uint64), np.zeros(2)
    share(
        at_most(crew, np.int64(2)),
        _commit_either,
        (one, other, lists, other_lists, each, np.zeros(1, np.int64), numbers, keys, densities),
    )
    return (
        _written(numbers[0], keys[0], densities[0], lists),
        _written(numbers[1], keys[1], densities[1], other_lists),
    )


@inner
def let_read(task: Task, crew: Crew) -> None:
    """Let those who have its gate read beside a task that is about to be done by this crew."""
    updates, parts = task.updates, task.parts
    n_parts = np.int64(parts.shape[0])
    if not task.begun:
        let_beside(
            task.gate,
            np.int64(task.side),
            updates.keys,
            updates.status,
            updates.old_weights,
            parts[n_parts - 1, END],
            task.rows.leaf,
            max(n_parts, np.int64(crew.threads)),
        )


@inner
def lists_of(task: Task) -> Offsets:
    """Room for what a commit lists of each part."""
    return np.zeros((task.parts.shape[0], LIST_FIELDS), np.int64)


@inner
def _commit_either(
    thread: Int,
    one: Task,
    other: Task,
    lists: Offsets,
    other_lists: Offsets,
    crew: Crew,
    cursor: Offsets,
    numbers: Offsets,
    keys: Keys,
    densities: npt.NDArray[np.float64],
) -> None:
    for which in drawn(cursor, 2):
        if which == 0:
            written = commit_one(one, lists, crew)
        else:
            written = commit_one(other, other_lists, crew)
        signs, n = written.signs, numbers[which]
        n[0], n[1], n[2], n[3] = written.n_waiting, written.net_left, written.n_windows, written.moved
        n[4], n[5] = written.stretch_begin, written.stretch_end
        n[6], n[7], n[8] = np.int64(signs.hot), np.int64(signs.crowded), signs.beside
        keys[which, 0], keys[which, 1] = signs.hot_low, signs.hot_high
        keys[which, 2], keys[which, 3] = signs.crowd_low, signs.crowd_high
        densities[which] = signs.density


@inner
def _written(n: Offsets, keys: Keys, density: float, lists: Offsets) -> Written:
    """What ``_commit_either`` noted."""
    signs = Signs(n[6] != 0, keys[0], keys[1], n[7] != 0, keys[2], keys[3], density, n[8])
    return Written(n[0], n[1], n[2], n[3], n[4], n[5], signs, lists)


@inner
def commit_one(task: Task, lists: Offsets, crew: Crew) -> Written:
    """``commit`` with lists (``lists_of``) that are there."""
    slots, rows, updates, parts = task.slots, task.rows, task.updates, task.parts
    pending, windows, bounds, columns = task.pending, task.windows, task.bounds, task.columns
    all_wait, n_updates = task.all_wait, task.n_updates
    hot_for, crowded_leaves = task.hot_for, task.crowded_leaves
    gate, side = task.gate, np.int64(task.side)
    n_parts = np.int64(parts.shape[0])
    cursor = np.zeros(1, np.int64)
    if not task.begun:
        if gate.size > 0:
            # By itself, so that those who read beside it know soon what every row was.
            rows_are(gate, side, np.int64(NOTING))
            share(at_most(crew, n_parts), _note_parts, (rows, updates, parts, pending.rows, cursor, lists))
            rows_are(gate, side, np.int64(ALL_NOTED))
            cursor[0] = 0
        share(
            at_most(crew, n_parts),
            _merge_parts,
            (slots, rows, updates, parts, pending, all_wait, cursor, lists, gate, side),
        )
    net_left = np.int64(0)
    for part in range(n_parts):
        net_left += lists[part, NET]
    n_pending, n_waiting = join_lists(pending, lists)
    stretch_begin, stretch_end = np.int64(slots.stretch_begin), np.int64(slots.stretch_end)
    n_windows, moved = np.int64(0), np.int64(0)
    signs = no_signs()
    if not all_wait:
        if n_pending > 0:
            n_windows, signs = plan(
                slots, bounds[0], bounds[1], pending, n_pending, windows, n_updates, hot_for, crowded_leaves
            )
            moved, stretch_begin, stretch_end = outcome(slots, windows, n_windows)
            if slots.stretch_begin < slots.stretch_end:
                # Windows may move the ends of the stretch, of which readers know what it was.
                hold_beside(gate, side)
            size, helped = n_windows, at_most(crew, np.int64(1))
            if n_windows > 1 and (n_parts > 1 or moved >= DIVIDED_MOVES_MIN):
                size = min(max(n_windows // _WINDOW_PIECES, np.int64(1)), np.int64(_WINDOWS_MAX))
                helped = at_most(crew, n_windows)
            elif gate.size > 0:
                size = np.int64(1)
            cursor[0] = 0
            share(
                helped,
                _redistribute_pieces,
                (slots, rows.leaf, pending, windows, n_windows, size, cursor, gate, side),
            )
        finish(slots, rows, updates, parts, lists, pending.rows, columns, task.told, crew)
    return Written(n_waiting, net_left, n_windows, moved, stretch_begin, stretch_end, signs, lists)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def finish(
    slots: Slots,
    rows: RowIndex,
    updates: Updates,
    parts: Parts,
    lists: Offsets,
    shortened: Vertices,
    columns: ReportColumns,
    told: bool,
    crew: Crew,
) -> None:
    """After everything moved: fill the report if that is ``told``, and bring the index of rows up to date."""
    n_parts = np.int64(parts.shape[0])
    starts = np.zeros((n_parts, 4), np.int64)
    for part in range(1, n_parts):
        for state in range(4):
            starts[part, state] = starts[part - 1, state] + parts[part - 1, TOTALS + state]
    cursor = np.zeros(1, np.int64)
    share(
        at_most(crew, n_parts),
        _finish_parts,
        (slots, rows, updates, parts, lists, shortened, columns, told, starts, cursor),
    )


@uncounted_inner
def other_leaf(leaves: Vertices, begin: Int, end: Int) -> Int:
    """The first update from ``begin`` on that is not of the leaf of the one before; ``end``: there is none."""
    if begin == 0 or begin >= end:
        return begin
    leaf = leaves[begin - 1]
    return first_behind(leaves, begin, end, leaf)


@uncounted_inner
def other_row(keys: Keys, begin: Int, end: Int) -> Int:
    """The first update from ``begin`` on that is not of the row of the one before; ``end``: there is none."""
    if begin == 0 or begin >= end:
        return begin
    last = keys[begin - 1] | LOW
    return first_behind(keys, begin, end, last)


@uncounted_inner
def _note_part(
    rows: RowIndex, updates: Updates, parts: Parts, shortened: Vertices, lists: Offsets, part: Int
) -> None:
    n = parts[parts.shape[0] - 1, END]
    first, last = other_row(updates.keys, parts[part, BEGIN], n), other_row(updates.keys, parts[part, END], n)
    lists[part, ROWS] = first
    lists[part, ROWS_END] = note_rows(updates, first, last, rows, shortened)


@uncounted_inner
def _note_parts(
    thread: Int,
    rows: RowIndex,
    updates: Updates,
    parts: Parts,
    shortened: Vertices,
    cursor: Offsets,
    lists: Offsets,
) -> None:
    for part in drawn(cursor, parts.shape[0]):
        _note_part(rows, updates, parts, shortened, lists, part)


@uncounted_inner
def _merge_parts(
    thread: Int,
    slots: Slots,
    rows: RowIndex,
    updates: Updates,
    parts: Parts,
    pending: Pending,
    all_wait: bool,
    cursor: Offsets,
    lists: Offsets,
    gate: Gate,
    side: Int,
) -> None:
    n_parts = np.int64(parts.shape[0])
    n = parts[n_parts - 1, END]
    for part in drawn(cursor, n_parts):
        begin, end = parts[part, BEGIN], parts[part, END]
        if gate.size == 0:
            _note_part(rows, updates, parts, pending.rows, lists, part)
        if slots.stretch_begin < slots.stretch_end:
            lists[part, NET] = net_change(updates, begin, end, slots.stretch_begin)
        first, last = other_leaf(updates.leaf, begin, n), other_leaf(updates.leaf, end, n)
        lists[part, LEAVES] = first
        n_pending, waiting, now = first, first, first
        while now < last:
            # Some leaves at a time, so that others may read the rest.
            some_end = last
            if gate.size > 0:
                some_end = min(other_leaf(updates.leaf, min(now + BESIDE_UPDATES, last), n), last)
                begin_leaf, end_leaf = np.int64(updates.leaf[now]), np.int64(updates.leaf[some_end - 1]) + 1
                go_on_to(gate, side, part, begin_leaf, end_leaf, first, now)
            n_pending, waiting = merge_leaves(
                slots, updates, now, some_end, last, pending, n_pending, waiting, all_wait
            )
            now = some_end
        go_on_to(gate, side, part, np.int64(0), np.int64(0), first, last)
        lists[part, LEAVES_END], lists[part, WAITING_END] = n_pending, waiting


@uncounted_inner
def join_lists(pending: Pending, lists: Offsets) -> tuple[Int, Int]:
    """Move the pending leaves of all parts to the front, and their new edges; returns how many there are."""
    n, n_waiting = np.int64(0), np.int64(0)
    for part in range(lists.shape[0]):
        begin, end, waiting = lists[part, LEAVES], lists[part, LEAVES_END], lists[part, WAITING_END]
        if begin > 0:
            shift = n_waiting - begin
            for x in range(begin, end):
                pending.leaf[n + x - begin] = pending.leaf[x]
                pending.end[n + x - begin] = np.uint32(np.int64(pending.end[x]) + shift)
            copy(pending.keys, n_waiting, pending.keys, begin, waiting - begin)
            if pending.weights.size:
                copy(pending.weights, n_waiting, pending.weights, begin, waiting - begin)
        n += end - begin
        n_waiting += waiting - begin
    return n, n_waiting


@uncounted_inner
def _redistribute_pieces(
    thread: Int,
    slots: Slots,
    row_leaf: Vertices,
    pending: Pending,
    windows: Windows,
    n: Int,
    size: Int,
    cursor: Offsets,
    gate: Gate,
    side: Int,
) -> None:
    for first in drawn_by(cursor, n, size):
        last = min(first + size, n)
        begin = min(windows.begin[first], windows.new_begin[first])
        end = max(windows.end[last - 1], windows.new_end[last - 1])
        move_in(gate, side, thread, begin, end)
        redistribute(slots, row_leaf, pending, windows, first, last)
    move_in(gate, side, thread, np.int64(0), np.int64(0))


@uncounted_inner
def _finish_parts(
    thread: Int,
    slots: Slots,
    rows: RowIndex,
    updates: Updates,
    parts: Parts,
    lists: Offsets,
    shortened: Vertices,
    columns: ReportColumns,
    told: bool,
    starts: Offsets,
    cursor: Offsets,
) -> None:
    for part in drawn(cursor, parts.shape[0]):
        for begin, end in ((ROWS, ROWS_END), (GAP, GAP_END), (LAST_GAP, LAST_GAP_END)):
            advance_rows(slots, rows, shortened, lists[part, begin], lists[part, end])
        if told:
            split_report(updates, parts[part, BEGIN], parts[part, END], columns, starts[part])
