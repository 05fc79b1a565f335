"""Writing a batch into the array: leaf by leaf, window by window, and the row index after them.

Everything happens in place and without further memory. A leaf or window is written in two sweeps: forwards,
closing the gaps that deletions leave; backwards, spreading to the final slots and merging the new keys in. An
old key never moves left of its rank in the second sweep, so that nothing unread is overwritten.

A leaf without room for its new keys only gives up what is deleted; the new keys are put aside (``Pending``)
until its window is redistributed. So the updates of different leaves are independent of each other, and threads
may work on parts of a batch that share no leaf. Redistributions follow when all are done; they are independent of
each other too.

Inner functions take plain arrays and are inlined: taking an array out of a tuple, or passing it on, counts
references with an atomic instruction, which costs more than a merge.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from ..edges import (
    ABSENT,
    DELETED,
    EMPTY_KEY,
    HALF,
    INSERTED,
    OVERWRITTEN,
    Int,
    Keys,
    Offsets,
    Ops,
    Vertices,
    Weights,
)
from ..intrinsics import prefetch_to_read, shift, uncounted, uncounted_inner
from ..layout import LEAF_LEAST, LEAF_SHIFT, LEAF_SLOTS
from .arrays import INNER, Pending, ReportColumns, RowIndex, Slots, Updates
from .search import AHEAD, LINE, set_head
from .windows import Window, Windows

# How many updates ahead a row's degree and index are asked for.
ROWS_AHEAD = 16
# Behind every leaf.
NO_LEAF = np.int64(1 << 40)


@uncounted_inner
def note_rows(updates: Updates, lo: Int, hi: Int, rows: RowIndex, shortened: Vertices) -> Int:
    """Bring degrees up to date, and the row index as far as insertions change it, before anything moves.

    Rows that may lose their first key are listed in ``shortened`` (uint32) from lo on; returns where the list
    ends.
    """
    keys, leaves, states, ops = updates.keys, updates.leaf, updates.status, updates.ops
    row_leaf, degrees = rows.leaf, rows.degrees
    listed = np.int64(lo)
    i = np.int64(lo)
    while i < hi:
        row = keys[np.uintp(i)] >> HALF
        u = np.uintp(row)
        if i + ROWS_AHEAD < hi:
            ahead = np.int64(keys[np.uintp(i + ROWS_AHEAD)] >> HALF)
            prefetch_to_read(degrees, ahead)
            prefetch_to_read(row_leaf, ahead)
        first = np.int64(row_leaf[u])
        earliest = first if degrees[u] > 0 else NO_LEAF
        loses_first = False
        delta = np.int64(0)
        while i < hi and keys[np.uintp(i)] >> HALF == row:
            # Without branches: what comes next is anybody's guess.
            state = states[np.uintp(i)]
            leaf = np.int64(leaves[np.uintp(i)])
            inserted, deleted = state == INSERTED, state == DELETED
            delta += np.int64(inserted) - np.int64(deleted)
            earliest = min(earliest, leaf if inserted else NO_LEAF)
            loses_first |= deleted & (leaf == first) & (ops[np.uintp(i)] != INNER)
            i += 1
        degrees[u] = np.uint32(np.int64(degrees[u]) + delta)
        row_leaf[u] = np.uint32(earliest if earliest < NO_LEAF else first)
        shortened[np.uintp(listed)] = np.uint32(u)
        listed += np.int64(loses_first)
    return listed


@uncounted_inner
def advance_rows(slots: Slots, rows: RowIndex, shortened: Vertices, begin: Int, end: Int) -> None:
    """Let the index of the listed rows point at their first keys again, after everything moved."""
    keys, counts = slots.keys, slots.counts
    row_leaf, degrees = rows.leaf, rows.degrees
    for x in range(begin, end):
        u = np.uintp(shortened[x])
        if degrees[u] == 0:
            continue
        first_key = np.uint64(u) << HALF
        leaf = np.int64(row_leaf[u])
        while True:
            count = np.int64(counts[np.uintp(leaf)])
            if count > 0 and keys[np.uintp((leaf << LEAF_SHIFT) + count - 1)] >= first_key:
                break
            leaf += 1
        row_leaf[u] = np.uint32(leaf)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _close_gaps(
    keys: Keys,
    weights: Weights,
    place: Ops,
    status: Ops,
    new_weights: Weights,
    old_weights: Weights,
    leaf: tuple[Int, Int],
    span: tuple[Int, Int],
) -> Int:
    """First sweep over one leaf (first slot, count), for updates (lo, hi) of it: keys that stay move to the left.

    Applies overwrites, keeps the old weights, and lets ``place`` of the new keys count only keys that stay.
    Returns the slot after the last key.
    """
    (base, count), (lo, hi) = leaf, span
    to = base
    read = base
    gone = np.int64(0)
    for i in range(lo, hi):
        state = status[np.uintp(i)]
        slot = base + np.int64(place[np.uintp(i)])
        if state == INSERTED:
            place[np.uintp(i)] = np.uint8(slot - base - gone)
        elif state == OVERWRITTEN:
            if weights.size:
                old_weights[np.uintp(i)] = weights[np.uintp(slot)]
                weights[np.uintp(slot)] = new_weights[np.uintp(i)]
        elif state == DELETED:
            if weights.size:
                old_weights[np.uintp(i)] = weights[np.uintp(slot)]
            if to != read:
                shift(keys, weights, to, read, slot - read)
            to += slot - read
            read = slot + 1
            gone += 1
    end = base + count
    if to != read:
        shift(keys, weights, to, read, end - read)
    return to + end - read


@uncounted_inner
def merge_leaves(
    slots: Slots,
    updates: Updates,
    lo: Int,
    hi: Int,
    end_of_all: Int,
    pending: Pending,
    n_pending: Int,
    waiting: Int,
    all_wait: bool | np.bool_,
) -> tuple[Int, Int]:
    """Apply updates lo..hi to their leaves; what finds no room, or everything new if ``all_wait``, is put aside.

    The pending leaves are listed from position ``n_pending`` on, and their new keys and weights from ``waiting``
    on; returns where both lists end. Leaves of updates up to ``end_of_all`` may be asked for.
    """
    keys, weights, counts = slots.keys, slots.weights, slots.counts
    new_keys, new_weights, old_weights = updates.keys, updates.weights, updates.old_weights
    leaves, place, status = updates.leaf, updates.place, updates.status
    pending_leaf, pending_end = pending.leaf, pending.end
    waiting_keys, waiting_weights = pending.keys, pending.weights
    n_pending, waiting = np.int64(n_pending), np.int64(waiting)
    i: Int = np.int64(lo)
    while i < hi:
        begin = i
        leaf = np.uintp(leaves[np.uintp(i)])
        delta = np.int64(0)
        while i < hi and np.uintp(leaves[np.uintp(i)]) == leaf:
            state = status[np.uintp(i)]
            delta += np.int64(state == INSERTED) - np.int64(state == DELETED)
            i += 1
        if i + AHEAD <= end_of_all:
            ahead = np.int64(leaves[np.uintp(i + AHEAD - 1)]) << LEAF_SHIFT
            for line in range(0, LEAF_SLOTS, LINE):
                prefetch_to_read(keys, ahead + line)
            if weights.size:
                for line in range(0, LEAF_SLOTS, 2 * LINE):
                    prefetch_to_read(weights, ahead + line)
        base = np.int64(leaf) << LEAF_SHIFT
        count = np.int64(counts[leaf])
        leaf_before, span = (base, count), (begin, i)
        end = _close_gaps(keys, weights, place, status, new_weights, old_weights, leaf_before, span)
        if all_wait or count + delta > LEAF_SLOTS:
            for x in range(begin, i):
                if status[np.uintp(x)] == INSERTED:
                    waiting_keys[np.uintp(waiting)] = new_keys[np.uintp(x)]
                    if weights.size:
                        waiting_weights[np.uintp(waiting)] = new_weights[np.uintp(x)]
                    waiting += 1
            counts[leaf] = np.int32(end - base)
            pending_leaf[np.uintp(n_pending)] = np.uint32(leaf)
            pending_end[np.uintp(n_pending)] = np.uint32(waiting)
            n_pending += 1
            continue
        counts[leaf] = np.int32(count + delta)
        if delta < 0 and count + delta < LEAF_LEAST:
            pending_leaf[np.uintp(n_pending)] = np.uint32(leaf)
            pending_end[np.uintp(n_pending)] = np.uint32(waiting)
            n_pending += 1
        # Second sweep, from the right: each new key takes its place after the keys behind it moved on.
        left = base + count + delta - end
        x = i
        while left > 0:
            x -= 1
            if status[np.uintp(x)] == INSERTED:
                slot = base + np.int64(place[np.uintp(x)])
                shift(keys, weights, slot + left, slot, end - slot)
                left -= 1
                keys[np.uintp(slot + left)] = new_keys[np.uintp(x)]
                if weights.size:
                    weights[np.uintp(slot + left)] = new_weights[np.uintp(x)]
                end = slot
    return n_pending, waiting


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _index_leaf(keys: Keys, base: Int, count: Int, leaf: Int, row_leaf: Vertices, not_row: Int) -> None:
    """Rows with keys in this leaf begin here, unless an earlier leaf, written later, says otherwise."""
    previous = np.uint64(not_row)
    for slot in range(base, base + count):
        u = keys[np.uintp(slot)] >> HALF
        if u != previous:
            if u != not_row:
                row_leaf[np.uintp(u)] = np.uint32(leaf)
            previous = u


@uncounted_inner
def _pack(slots: Slots, begin: Int, end: Int) -> Int:
    """First sweep over leaves begin..end; returns how many keys there are."""
    keys, weights, counts = slots.keys, slots.weights, slots.counts
    to = np.int64(begin << LEAF_SHIFT)
    for leaf in range(begin, end):
        base, count = np.int64(leaf << LEAF_SHIFT), np.int64(counts[np.uintp(leaf)])
        if to != base:
            shift(keys, weights, to, base, count)
        to += count
    return to - (begin << LEAF_SHIFT)


@uncounted_inner
def _spread(slots: Slots, row_leaf: Vertices, pending: Pending, window: Window, stay: Int, not_row: Int) -> None:
    """Second sweep over the window's new leaves: ``stay`` keys lie packed at the begin of the window, old or new;
    they and the waiting keys go evenly. The index of ``not_row`` stays as it is."""
    begin, end = window.new_begin, window.new_end
    start = min(window.begin, begin) << LEAF_SHIFT
    lo, hi = window.waiting_begin, window.waiting_end
    keys, weights, counts, heads, tops = slots.keys, slots.weights, slots.counts, slots.heads, slots.tops
    new_keys, new_weights = pending.keys, pending.weights
    edges = stay + hi - lo
    share, extra = edges // (end - begin), edges % (end - begin)
    i = np.int64(hi)
    for leaf in range(end - 1, begin - 1, -1):
        count = share + (1 if leaf - begin < extra else 0)
        base = leaf << LEAF_SHIFT
        if i == lo or (stay >= count and keys[np.uintp(start + stay - count)] > new_keys[np.uintp(i - 1)]):
            stay -= count
            if base != start + stay:
                shift(keys, weights, base, start + stay, count)
        else:
            for slot in range(base + count - 1, base - 1, -1):
                old = np.uintp(start + stay - 1)
                if i == lo or (stay > 0 and keys[old] > new_keys[np.uintp(i - 1)]):
                    keys[np.uintp(slot)] = keys[old]
                    if weights.size:
                        weights[np.uintp(slot)] = weights[old]
                    stay -= 1
                else:
                    i -= 1
                    keys[np.uintp(slot)] = new_keys[np.uintp(i)]
                    if weights.size:
                        weights[np.uintp(slot)] = new_weights[np.uintp(i)]
        counts[np.uintp(leaf)] = np.int32(count)
        if leaf > begin:
            set_head(heads, tops, leaf, keys[np.uintp(base)] if count > 0 else EMPTY_KEY)
        _index_leaf(keys, base, count, leaf, row_leaf, not_row)


@uncounted_inner
def _redistribute(slots: Slots, row_leaf: Vertices, pending: Pending, window: Window) -> None:
    """Spread the keys of a window, and those that wait for it, evenly over its new leaves.

    One end is the same; at the other one leaves are empty before, or afterwards.
    """
    new_begin, new_end, end = window.new_begin, window.new_end, window.end
    set_head(slots.heads, slots.tops, new_begin, slots.heads[np.uintp(window.begin)])
    begin = min(window.begin, new_begin)
    stay = _pack(slots, begin, end)
    # The row of the smallest key may begin before the window; then its index must stay as it is. (The row may
    # be indexed by another thread at this moment, but only in leaves before the window.)
    smallest: Int = np.uint64(EMPTY_KEY)
    if stay > 0:
        smallest = slots.keys[np.uintp(begin << LEAF_SHIFT)]
    if window.waiting_end > window.waiting_begin:
        smallest = min(smallest, pending.keys[window.waiting_begin])
    row = smallest >> HALF
    if smallest == EMPTY_KEY or np.int64(row_leaf[np.uintp(row)]) >= begin:
        row = np.uint64(EMPTY_KEY)
    _spread(slots, row_leaf, pending, window, stay, row)
    for leaf in range(begin, min(new_begin, end)):
        slots.counts[np.uintp(leaf)] = np.int32(0)
    for leaf in range(max(new_end, begin), end):
        slots.counts[np.uintp(leaf)] = np.int32(0)


@uncounted_inner
def redistribute(
    slots: Slots, row_leaf: Vertices, pending: Pending, windows: Windows, first: Int, last: Int
) -> None:
    """Redistribute windows first..last, with the new edges that wait for them."""
    for x in range(first, last):
        p_begin, p_end = windows.pending_begin[x], windows.pending_end[x]
        lo = np.int64(pending.end[p_begin - 1]) if p_begin > 0 else np.int64(0)
        hi = np.int64(pending.end[p_end - 1]) if p_end > 0 else np.int64(0)
        window = Window(windows.begin[x], windows.end[x], windows.new_begin[x], windows.new_end[x], lo, hi)
        _redistribute(slots, row_leaf, pending, window)


@uncounted
def resize(
    slots: Slots, row_leaf: Vertices, pending: Pending, n_waiting: Int, begin: Int, end: Int, new_end: Int
) -> None:
    """Spread what is in leaves begin..end, and all that waits, over leaves begin..new_end; the rest are empty."""
    first, waiting = np.int64(begin), np.int64(n_waiting)
    window = Window(first, np.int64(end), first, np.int64(new_end), np.int64(0), waiting)
    _redistribute(slots, row_leaf, pending, window)


@uncounted_inner
def split_report(updates: Updates, lo: Int, hi: Int, columns: ReportColumns, starts: Offsets) -> None:
    """Sort updates lo..hi by what became of them, into the columns from ``starts`` (one for each state) on."""
    keys, states = updates.keys, updates.status
    new_weights, old_weights = updates.weights, updates.old_weights
    inserted, inserted_weights = columns.inserted, columns.inserted_weights
    overwritten, overwriting_weights = columns.overwritten, columns.overwriting_weights
    overwritten_weights = columns.overwritten_weights
    deleted, deleted_weights, absent = columns.deleted, columns.deleted_weights, columns.absent
    n_inserted, n_overwritten = starts[INSERTED], starts[OVERWRITTEN]
    n_deleted, n_absent = starts[DELETED], starts[ABSENT]
    for i in range(lo, hi):
        state = states[np.uintp(i)]
        key = keys[np.uintp(i)]
        if state == INSERTED:
            inserted[n_inserted] = key
            if new_weights.size:
                inserted_weights[n_inserted] = new_weights[np.uintp(i)]
            n_inserted += 1
        elif state == OVERWRITTEN:
            overwritten[n_overwritten] = key
            if new_weights.size:
                overwriting_weights[n_overwritten] = new_weights[np.uintp(i)]
                overwritten_weights[n_overwritten] = old_weights[np.uintp(i)]
            n_overwritten += 1
        elif state == DELETED:
            deleted[n_deleted] = key
            if new_weights.size:
                deleted_weights[n_deleted] = old_weights[np.uintp(i)]
            n_deleted += 1
        else:
            absent[n_absent] = key
            n_absent += 1
