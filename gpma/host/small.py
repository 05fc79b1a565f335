"""A small batch, in one compiled call: looked up in both orientations, and written if nothing stands in the way.

What a small batch does is what any does (``array.py``), by the same kernels. But it costs little beside the calls
themselves and the memory that it waits for, so there is one call, and what it will read is asked for before it is
read: row index and leaves of all updates at once, and the windows that must be redistributed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..changed import CHANGED_WORDS, ChangedEdges
from ..edges import (
    HALF,
    INFINITY_BITS,
    LOW,
    MINUS_ZERO_BITS,
    ChangeReport,
    EdgeList,
    Int,
    Keys,
    Ops,
    Vertices,
    Weights,
)
from ..intrinsics import inner
from ..written import Words, record_type, taking, write
from .arrays import Pending, ReportColumns, RowIndex, Slots, Updates
from .crowds import Signs, no_signs, plan
from .merge import advance_rows, merge_leaves, note_rows, redistribute, split_report
from .search import ask_for_leaf, ask_for_row, locate, probe
from .sorting import Arrivals, SortScratch, compact, compact_ordered, pack_words, packing_of, sort_range, survey
from .stretch import net_change
from .windows import Bounds, Windows, outcome

# Wider windows bring their own leaves: they are read in order.
_ASKED_LEAVES = 8
# Not a literal, for which kernels that also take other numbers would be compiled once more.
_FIRST = np.int64(0)
_MAGNITUDE_BITS = np.uint32(0x7FFF_FFFF)
_WORD = 2**64 - 1


class Orientation(NamedTuple):
    """The columns of one packed array: those of ``Slots``, of ``RowIndex``, and the density bounds of its windows
    by height; ``hot_for`` and ``crowded_leaves``: see ``crowds.plan``. Kernels take it from words: ``written.py``.
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


_keys, _vertices, _bounds = nb.uint64[::1], nb.uint32[::1], nb.float64[::1]
ORIENTATION = record_type(
    Orientation,
    _keys,
    nb.float32[::1],
    nb.int32[::1],
    _keys,
    _keys,
    nb.int64,
    nb.int64,
    _vertices,
    _vertices,
    _bounds,
    _bounds,
    nb.int64,
    nb.int64,
)
orientation_in: Any = taking(ORIENTATION)


MOVED = 2
"""Where ``Did`` has the slots moved."""
WRITING = -1
"""That they are, from when rows are written on until all is."""


class Did(NamedTuple):
    """What a batch did to either array. ``counts`` int64[2, 12]: how many distinct updates there were; the edges
    that came less those that went left of the stretch; the slots moved by redistribution, and from where to where
    the stretch is then; and what its windows showed (``Signs``), but for ``densities`` float64[2]."""

    counts: npt.NDArray[np.int64]
    densities: npt.NDArray[np.float64]

    @classmethod
    def empty(cls) -> Did:
        """To be filled by the next batch."""
        return cls(np.zeros((2, 12), np.int64), np.zeros(2, np.float64))

    def outcome(self, k: int) -> Outcome:
        """What it did to out-rows (0) or in-rows (1)."""
        counts = self.counts[k].tolist()
        hot, hot_low, hot_high, crowded, crowd_low, crowd_high, beside = counts[5:]
        hot_keys, crowd = (hot_low & _WORD, hot_high & _WORD), (crowd_low & _WORD, crowd_high & _WORD)
        signs = Signs(hot, *hot_keys, crowded, *crowd, float(self.densities[k]), beside)
        n_updates, n_more_left, moved, stretch_begin, stretch_end = counts[:5]
        return Outcome(n_updates, n_more_left, moved, stretch_begin, stretch_end, signs)


DID = record_type(Did, nb.int64[:, ::1], nb.float64[::1])
did_in: Any = taking(DID)


class Outcome(NamedTuple):
    """See ``Did``."""

    n_updates: int
    n_more_left: int
    moved: int
    stretch_begin: int
    stretch_end: int
    signs: Signs


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

    def edges(self) -> tuple[int, int, int, int]:
        """How many edges were inserted, overwritten, deleted, absent, of a mirrored batch: both directions of an
        edge are one, and so is a loop."""
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


class Task(NamedTuple):
    """A batch in the order of one array, its distinct updates before ``end``, with all the room that it needs."""

    end: Int
    updates: Updates
    pending: Pending
    windows: Windows


@inner
def is_good(batch: Arrivals, n_vertices: Int, negative: Int) -> bool:
    """Whether all vertices are there and all weights are as an array keeps them."""
    n = np.uint64(n_vertices)
    good = True
    for i in range(batch.keys.size):
        good &= (batch.keys[i] >> HALF < n) & (batch.keys[i] & LOW < n)
    weights = batch.weights.view(np.uint32)
    for i in range(weights.size):
        bits = weights[i]
        if negative and bits != MINUS_ZERO_BITS:
            bits &= _MAGNITUDE_BITS
        good &= bits < INFINITY_BITS
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
def ordered(arrived: Arrivals, weighted: bool) -> Task:
    """Put the updates in order."""
    n = arrived.keys.size
    n_weights = n if weighted else 0
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
    return Task(end, updates, pending, windows)


@inner
def _look_for(slots: Slots, rows: RowIndex, updates: Updates, end: Int) -> None:
    """Find the leaves of updates in order; ask for all that they will read."""
    for i in range(end):
        ask_for_row(rows, updates.keys[i])
    locate(slots, updates, _FIRST, end)
    for i in range(end):
        ask_for_leaf(slots, np.int64(updates.leaf[i]))


@inner
def _ask_for_windows(slots: Slots, windows: Windows, n: Int) -> None:
    for x in range(n):
        if windows.end[x] - windows.begin[x] <= _ASKED_LEAVES:
            for leaf in range(windows.begin[x], windows.end[x]):
                ask_for_leaf(slots, np.int64(leaf))


@inner
def _write(array: Orientation, task: Task, did: Did, k: Int) -> bool:
    """Write looked-up updates, and redistribute what must be; whether there is no more to it (``note``)."""
    slots, rows = slots_of(array), RowIndex(array.row_leaf, array.degrees)
    end, updates, pending = task.end, task.updates, task.pending
    n_more_left = net_change(updates, _FIRST, end, slots.stretch_begin)
    listed = note_rows(updates, _FIRST, end, rows, pending.rows)
    n_pending, _ = merge_leaves(slots, updates, _FIRST, end, end, pending, _FIRST, _FIRST, np.bool_(False))
    moved, stretch_begin, stretch_end, signs = spread(array, slots, rows.leaf, task, n_pending)
    advance_rows(slots, rows, pending.rows, _FIRST, listed)
    return note(did, k, array, end, n_more_left, moved, stretch_begin, stretch_end, signs)


@inner
def spread(
    array: Orientation, slots: Slots, row_leaf: Vertices, task: Task, n_pending: Int
) -> tuple[Int, Int, Int, Signs]:
    """Redistribute what must be; returns the slots moved, from where to where the stretch is then, and what the
    windows showed."""
    pending, found = task.pending, task.windows
    moved, stretch_begin, stretch_end = np.int64(0), np.int64(slots.stretch_begin), np.int64(slots.stretch_end)
    signs = no_signs()
    if n_pending > 0:
        n, signs = plan(
            slots,
            array.lower,
            array.upper,
            pending,
            n_pending,
            found,
            task.end,
            array.hot_for,
            array.crowded_leaves,
        )
        _ask_for_windows(slots, found, n)
        moved, stretch_begin, stretch_end = outcome(slots, found, n)
        redistribute(slots, row_leaf, pending, found, _FIRST, n)
    return moved, stretch_begin, stretch_end, signs


@inner
def slots_of(array: Orientation) -> Slots:
    return Slots(
        array.keys, array.weights, array.counts, array.heads, array.tops, array.stretch_begin, array.stretch_end
    )


@inner
def note(
    did: Did,
    k: Int,
    array: Orientation,
    n_updates: Int,
    n_more_left: Int,
    moved: Int,
    stretch_begin: Int,
    stretch_end: Int,
    signs: Signs,
) -> bool:
    """Write down what a batch did to an array, number ``k``. True: nothing follows from it, since nothing migrated
    there, no spot was hot and its windows showed none."""
    counts = did.counts[k]
    counts[0], counts[1], counts[2] = n_updates, n_more_left, moved
    counts[3], counts[4] = stretch_begin, stretch_end
    counts[5], counts[6], counts[7] = signs.hot, signs.hot_low, signs.hot_high
    counts[8], counts[9], counts[10] = signs.crowded, signs.crowd_low, signs.crowd_high
    counts[11] = signs.beside
    did.densities[k] = signs.density
    shows = signs.hot or signs.crowded or signs.beside > 0
    return not (shows or array.hot_for >= 0 or array.stretch_begin < array.stretch_end)


@inner
def count_loops(keys: Keys) -> Int:
    n = np.int64(0)
    for i in range(keys.size):
        n += keys[i] >> HALF == keys[i] & LOW
    return n


@inner
def columns_in(changed: Words, n_updates: Int, totals: tuple[Int, Int, Int, Int]) -> ReportColumns:
    """The columns of a report in ``changed`` (see ``apply_small``), with the words by which programs find them."""
    inserted, overwritten, deleted, absent = totals
    begin, end = CHANGED_WORDS, CHANGED_WORDS + n_updates
    keys, weights = changed[begin:end].view(np.uint64), changed[end:].view(np.float32)
    over, old = inserted + overwritten, inserted + 2 * overwritten
    gone = over + deleted
    columns = ReportColumns(
        keys[:inserted],
        weights[:inserted],
        keys[inserted:over],
        weights[inserted:over],
        weights[over:old],
        keys[over:gone],
        weights[old : old + deleted],
        keys[gone : gone + absent],
    )
    write(
        changed,
        ChangedEdges(
            columns.inserted,
            columns.inserted_weights,
            columns.overwritten,
            columns.overwriting_weights,
            columns.deleted,
        ),
    )
    return columns


@inner
def loops_in(columns: ReportColumns, mirrored: Int) -> tuple[Int, Int, Int, Int]:
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


Told = tuple[bool, bool, Int, Int, Int, Int, Int, Int, Int, Int, Int]
"""(whether a batch was written, whether nothing follows from ``Did``, the slots of the first array that moved,
``Totals``)."""

NOT_DONE: Told = False, False, _FIRST, _FIRST, _FIRST, _FIRST, _FIRST, _FIRST, _FIRST, _FIRST, _FIRST


@inner
def told_of(
    did: Did, is_calm: bool, totals: tuple[Int, Int, Int, Int], columns: ReportColumns, mirrored: Int
) -> Told:
    """Of a batch that was written, and whose report these columns are."""
    return True, is_calm, did.counts[0, MOVED], *totals, *loops_in(columns, mirrored)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def apply_small(
    out_words: Words,
    in_words: Words,
    did_words: Words,
    both: Int,
    mirrored: Int,
    negative: Int,
    n_vertices: Int,
    keys: Keys,
    ops: Ops,
    weights: Weights,
    changed: Words,
) -> Told:
    """Apply updates as they came (``keys``, ``ops``, ``weights`` as in ``Arrivals``; each for both directions of
    an edge if ``mirrored``) to one ``Orientation`` and, transposed, to another if ``both``.

    Not done: a vertex is not below ``n_vertices``, or a weight is not as it is kept (``negative`` ones may be);
    nothing was written. Otherwise the caller has seen to it that no array needs another layout.

    ``changed``, int64[CHANGED_WORDS + updates of rows, twice as many of these with weights]: gets the words of
    the ``ChangedEdges``; then come the inserted, overwritten, deleted and absent keys, and then, as float32, the
    weights of the inserted, the new and the old ones of the overwritten, and those of the deleted edges.
    ``did_words``: a ``Did``. Flags are 1 or 0: of a ``bool`` the type would be looked up each time.

    Raises MemoryError where there is not enough; nothing was written then.
    """
    out, in_, did = orientation_in(out_words), orientation_in(in_words), did_in(did_words)
    arrived = Arrivals(keys, ops, weights)
    if not is_good(arrived, n_vertices, negative):
        return NOT_DONE
    if mirrored:
        arrived = mirrored_of(arrived)
    there = ordered(arrived, out.weights.size > 0)
    _look_for(slots_of(out), RowIndex(out.row_leaf, out.degrees), there.updates, there.end)
    here = there
    if both:
        here = ordered(transposed_of(arrived), in_.weights.size > 0)
        _look_for(slots_of(in_), RowIndex(in_.row_leaf, in_.degrees), here.updates, here.end)
    updates, end = there.updates, there.end
    totals = probe(slots_of(out), updates, _FIRST, end)
    if both:
        probe(slots_of(in_), here.updates, _FIRST, end)
    starts = np.zeros(4, np.int64)
    is_calm = _write(out, there, did, np.int64(0))
    if both:
        is_calm &= _write(in_, here, did, np.int64(1))
    columns = columns_in(changed, arrived.keys.size, totals)
    split_report(updates, _FIRST, end, columns, starts)
    return told_of(did, is_calm, totals, columns, mirrored)
