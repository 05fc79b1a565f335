"""A small batch, in one compiled call: looked up in both orientations, and written if nothing stands in the way.

What a small batch does is what any does (``array.py``), by the same kernels. But it costs little beside the calls
themselves and the memory that it waits for, so there is one call, and what it will read is asked for before it is
read: row index and leaves of all updates at once, and the windows that must be redistributed.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..edges import HALF, LOW, ChangeReport, EdgeList, Int, Keys, Ops, Vertices, Weights
from ..intrinsics import inner, prefetch
from ..layout import LEAF_SHIFT, LEAF_SLOTS
from .arrays import Pending, ReportColumns, RowIndex, Slots, Updates
from .crowds import Signs, no_signs, plan
from .merge import advance_rows, merge_leaves, note_rows, redistribute, split_report
from .search import LINE, locate, probe
from .sorting import (
    Arrivals,
    SortScratch,
    compact,
    compact_ordered,
    pack_words,
    packing_of,
    sort_range,
    survey,
)
from .stretch import net_change
from .windows import Bounds, Windows, outcome

# Wider windows bring their own leaves: they are read in order.
_ASKED_LEAVES = 8
# Not a literal, for which kernels that also take other numbers would be compiled once more.
_FIRST = np.int64(0)
_INFINITY_BITS = np.uint32(0x7F80_0000)
_MINUS_ZERO_BITS = np.uint32(0x8000_0000)
_MAGNITUDE_BITS = np.uint32(0x7FFF_FFFF)


class Orientation(NamedTuple):
    """The columns of one packed array: those of ``Slots``, of ``RowIndex``, and the density bounds of its windows
    by height; ``hot_for`` and ``crowded_leaves``: see ``crowds.plan``.

    They are handed over one by one: to take an array out of a record costs a call three times as much.
    """

    keys: Keys
    weights: Weights
    counts: npt.NDArray[np.int32]
    heads: Keys
    tops: Keys
    stretch_begin: int
    stretch_end: int
    row_leaf: Vertices
    degrees: Vertices
    lower: Bounds
    upper: Bounds
    hot_for: int
    crowded_leaves: int


# What a batch did to one array: how many distinct updates there were; the edges that came less those that went,
# and the same left of the stretch; the slots moved by redistribution, and from where to where the stretch is then;
# whether its windows showed nothing, and what they showed (``Signs``, its fields one by one: a record costs a call
# from Python another one).
Outcome = tuple[Int, Int, Int, Int, Int, Int, bool, bool, Int, Int, bool, Int, Int, float, Int]


class Totals(NamedTuple):
    """How many distinct updates became what; and how many of these are loops, in a mirrored batch (else 0)."""

    inserted: Int
    overwritten: Int
    deleted: Int
    absent: Int
    inserted_loops: Int
    overwritten_loops: Int
    deleted_loops: Int
    absent_loops: Int

    def edges(self, directed: bool) -> tuple[int, int, int, int]:
        """How many edges were inserted, overwritten, deleted, absent: of a mirrored batch, both directions of an
        edge are one, and so is a loop."""
        if directed:
            return self[:4]
        inserted, overwritten, deleted, absent = (
            (arcs + loops) // 2 for arcs, loops in zip(self[:4], self[4:], strict=True)
        )
        return inserted, overwritten, deleted, absent

    def report(self, keys: Keys, weights: Weights | None, slots_moved: int) -> ChangeReport:
        """The report whose columns lie side by side, as ``apply_small`` writes them."""
        inserted, over = self.inserted, self.inserted + self.overwritten
        deleted = over + self.deleted
        absent = keys[deleted : deleted + self.absent]
        if weights is None:
            came, new, went = (
                EdgeList(keys[:inserted]),
                EdgeList(keys[inserted:over]),
                EdgeList(keys[over:deleted]),
            )
            return ChangeReport(came, new, None, went, absent, slots_moved)
        old = over + self.overwritten
        return ChangeReport(
            EdgeList(keys[:inserted], weights[:inserted]),
            EdgeList(keys[inserted:over], weights[inserted:over]),
            weights[over:old],
            EdgeList(keys[over:deleted], weights[old : old + self.deleted]),
            absent,
            slots_moved,
        )


class _Task(NamedTuple):
    """A batch in the order of one array, its distinct updates before ``end``, with all the room that it needs."""

    end: Int
    updates: Updates
    pending: Pending
    windows: Windows


@inner
def is_good(batch: Arrivals, n_vertices: Int, negative: bool) -> bool:
    """Whether all vertices are there and all weights are as an array keeps them."""
    n = np.uint64(n_vertices)
    good = True
    for i in range(batch.keys.size):
        good &= (batch.keys[i] >> HALF < n) & (batch.keys[i] & LOW < n)
    weights = batch.weights.view(np.uint32)
    for i in range(weights.size):
        bits = weights[i]
        if negative and bits != _MINUS_ZERO_BITS:
            bits &= _MAGNITUDE_BITS
        good &= bits < _INFINITY_BITS
    return good


@inner
def transposed_of(batch: Arrivals) -> Arrivals:
    keys = np.empty(batch.keys.size, np.uint64)
    for i in range(keys.size):
        keys[i] = (batch.keys[i] << HALF) | (batch.keys[i] >> HALF)
    return Arrivals(keys, batch.ops, batch.weights)


@inner
def mirrored_of(batch: Arrivals) -> Arrivals:
    """Each update followed by its mirror image."""
    n, n_weights = batch.keys.size, batch.weights.size
    both = Arrivals(np.empty(2 * n, np.uint64), np.empty(2 * n, np.uint8), np.empty(2 * n_weights, np.float32))
    for i in range(n):
        both.keys[2 * i] = batch.keys[i]
        both.keys[2 * i + 1] = (batch.keys[i] << HALF) | (batch.keys[i] >> HALF)
        both.ops[2 * i] = both.ops[2 * i + 1] = batch.ops[i]
    for i in range(n_weights):
        both.weights[2 * i] = both.weights[2 * i + 1] = batch.weights[i]
    return both


@inner
def _ordered(slots: Slots, rows: RowIndex, arrived: Arrivals) -> _Task:
    """Put the updates in order, and find their leaves; ask for all that they will read."""
    n = arrived.keys.size
    n_weights = n if slots.weights.size else 0
    words, numbers, places = np.empty((3, n), np.uint64), np.empty((5, n), np.uint32), np.empty((8, n), np.int64)
    weights, states = np.empty((3, n_weights), np.float32), np.empty((3, n), np.uint8)
    scratch = SortScratch(words[0], words[1], numbers[0], numbers[1])
    updates = Updates(words[2], states[0], weights[0], numbers[2], states[1], states[2], weights[1])
    pending = Pending(numbers[3], numbers[4], words[0], weights[2], numbers[0])
    windows = Windows(places[0], places[1], places[2], places[3], places[4], places[5], places[6], places[7])
    differing, _, in_order = survey(arrived.keys, _FIRST, n)
    if in_order:
        end = compact_ordered(arrived, _FIRST, n, updates, _FIRST)
    else:
        packing = packing_of(arrived.keys[0], differing, n)
        pack_words(arrived.keys, packing, scratch)
        flipped = sort_range(packing, scratch, _FIRST, n, packing.high_bits + packing.low_bits)
        end = compact(packing, scratch, flipped, _FIRST, n, arrived, updates, _FIRST)
    for i in range(end):
        row = np.int64(updates.keys[i] >> HALF)
        prefetch(rows.degrees, row)
        prefetch(rows.leaf, row)
    locate(slots, updates, _FIRST, end)
    for i in range(end):
        leaf = np.int64(updates.leaf[i])
        prefetch(slots.counts, leaf)
        _ask_for_leaf(slots, leaf)
    return _Task(end, updates, pending, windows)


@inner
def _ask_for_leaf(slots: Slots, leaf: Int) -> None:
    base = np.int64(leaf) << LEAF_SHIFT
    for line in range(0, LEAF_SLOTS, LINE):
        prefetch(slots.keys, base + line)
    if slots.weights.size:
        for line in range(0, LEAF_SLOTS, 2 * LINE):
            prefetch(slots.weights, base + line)


@inner
def _ask_for_windows(slots: Slots, windows: Windows, n: Int) -> None:
    for x in range(n):
        if windows.end[x] - windows.begin[x] <= _ASKED_LEAVES:
            for leaf in range(windows.begin[x], windows.end[x]):
                _ask_for_leaf(slots, leaf)


@inner
def _write(
    slots: Slots,
    rows: RowIndex,
    lower: Bounds,
    upper: Bounds,
    hot_for: Int,
    crowded_leaves: Int,
    task: _Task,
    n_more: Int,
) -> Outcome:
    """Write looked-up updates, and redistribute what must be."""
    end, updates, pending, found = task.end, task.updates, task.pending, task.windows
    n_more_left = net_change(updates, _FIRST, end, slots.stretch_begin)
    listed = note_rows(updates, _FIRST, end, rows, pending.rows)
    n_pending, _ = merge_leaves(slots, updates, _FIRST, end, pending, np.bool_(False))
    moved, stretch_begin, stretch_end = np.int64(0), np.int64(slots.stretch_begin), np.int64(slots.stretch_end)
    signs = no_signs()
    if n_pending > 0:
        n, signs = plan(slots, lower, upper, pending, n_pending, found, end, hot_for, crowded_leaves)
        _ask_for_windows(slots, found, n)
        moved, stretch_begin, stretch_end = outcome(slots, found, n)
        redistribute(slots, rows.leaf, pending, found, _FIRST, n)
    advance_rows(slots, rows, pending.rows, _FIRST, listed)
    return outcome_of(end, n_more, n_more_left, moved, stretch_begin, stretch_end, signs)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def outcome_of(
    end: Int, n_more: Int, n_more_left: Int, moved: Int, stretch_begin: Int, stretch_end: Int, signs: Signs
) -> Outcome:
    is_quiet = not (signs.hot or signs.crowded or signs.beside > 0)
    places = end, n_more, n_more_left, moved, stretch_begin, stretch_end
    hot = signs.hot, signs.hot_low, signs.hot_high
    crowded = signs.crowded, signs.crowd_low, signs.crowd_high, signs.density, signs.beside
    return (*places, is_quiet, *hot, *crowded)


@inner
def nothing_done() -> Outcome:
    none: Int = np.int64(0)
    return outcome_of(none, none, none, none, none, none, no_signs())


@inner
def count_loops(keys: Keys) -> Int:
    n = np.int64(0)
    for i in range(keys.size):
        n += keys[i] >> HALF == keys[i] & LOW
    return n


@inner
def columns_in(
    changed: Keys, changed_weights: Weights, inserted: Int, overwritten: Int, deleted: Int, absent: Int
) -> ReportColumns:
    """The columns of a report of so many updates, one after the other in ``changed`` and ``changed_weights`` (as
    ``apply_small`` gives them)."""
    over, old = inserted + overwritten, inserted + 2 * overwritten
    gone = over + deleted
    return ReportColumns(
        changed[:inserted],
        changed_weights[:inserted],
        changed[inserted:over],
        changed_weights[inserted:over],
        changed_weights[over:old],
        changed[over:gone],
        changed_weights[old : old + deleted],
        changed[gone : gone + absent],
    )


@inner
def loops_in(columns: ReportColumns, mirrored: bool) -> tuple[Int, Int, Int, Int]:
    """How many self-loops were inserted, overwritten, deleted and absent, where each edge came for both
    directions; else 0."""
    none: Int = np.int64(0)
    if not mirrored:
        return none, none, none, none
    return (
        count_loops(columns.inserted),
        count_loops(columns.overwritten),
        count_loops(columns.deleted),
        count_loops(columns.absent),
    )


@nb.njit(cache=True, nogil=True, error_model="numpy")
def apply_small(
    out_keys: Keys,
    out_weights: Weights,
    out_counts: npt.NDArray[np.int32],
    out_heads: Keys,
    out_tops: Keys,
    out_stretch_begin: Int,
    out_stretch_end: Int,
    out_row_leaf: Vertices,
    out_degrees: Vertices,
    out_lower: Bounds,
    out_upper: Bounds,
    out_hot_for: Int,
    out_crowded_leaves: Int,
    in_keys: Keys,
    in_weights: Weights,
    in_counts: npt.NDArray[np.int32],
    in_heads: Keys,
    in_tops: Keys,
    in_stretch_begin: Int,
    in_stretch_end: Int,
    in_row_leaf: Vertices,
    in_degrees: Vertices,
    in_lower: Bounds,
    in_upper: Bounds,
    in_hot_for: Int,
    in_crowded_leaves: Int,
    both: bool,
    mirrored: bool,
    negative: bool,
    n_vertices: Int,
    keys: Keys,
    ops: Ops,
    weights: Weights,
    changed: Keys,
    changed_weights: Weights,
) -> tuple[bool, tuple[Int, ...], Outcome, Outcome]:
    """Apply updates as they came (``keys``, ``ops``, ``weights`` as in ``Arrivals``; each for both directions of
    an edge if ``mirrored``) to one ``Orientation`` and, transposed, to another if ``both``.

    Not done: a vertex is not below ``n_vertices``, or a weight is not as it is kept (``negative`` ones may be);
    nothing was written. Otherwise the caller has seen to it that no array needs another layout.

    ``changed`` gets the inserted, overwritten, deleted and absent keys, and ``changed_weights`` (none when
    unweighted) those of the inserted, the new and the old ones of the overwritten, and those of the deleted edges;
    there is room for all updates, and for twice as many weights.

    Returns (done, ``Totals``, what it did to either array). Raises MemoryError where there is not enough; nothing
    was written then.
    """
    out = Slots(out_keys, out_weights, out_counts, out_heads, out_tops, out_stretch_begin, out_stretch_end)
    in_ = Slots(in_keys, in_weights, in_counts, in_heads, in_tops, in_stretch_begin, in_stretch_end)
    out_rows, in_rows = RowIndex(out_row_leaf, out_degrees), RowIndex(in_row_leaf, in_degrees)
    arrived = Arrivals(keys, ops, weights)
    none: Int = np.int64(0)
    nothing = nothing_done()
    if not is_good(arrived, n_vertices, negative):
        return False, (none, none, none, none, none, none, none, none), nothing, nothing
    if mirrored:
        arrived = mirrored_of(arrived)
    there = _ordered(out, out_rows, arrived)
    here = there
    if both:
        here = _ordered(in_, in_rows, transposed_of(arrived))
    updates, end = there.updates, there.end
    inserted, overwritten, deleted, absent = probe(out, updates, _FIRST, end)
    if both:
        probe(in_, here.updates, _FIRST, end)
    starts = np.zeros(4, np.int64)
    out_did = _write(
        out, out_rows, out_lower, out_upper, out_hot_for, out_crowded_leaves, there, inserted - deleted
    )
    in_did = nothing
    if both:
        in_did = _write(in_, in_rows, in_lower, in_upper, in_hot_for, in_crowded_leaves, here, inserted - deleted)
    columns = columns_in(changed, changed_weights, inserted, overwritten, deleted, absent)
    split_report(updates, _FIRST, end, columns, starts)
    return True, (inserted, overwritten, deleted, absent, *loops_in(columns, mirrored)), out_did, in_did
