"""Writing a batch into the array: leaf by leaf, window by window, and the row index after them.

Everything happens in place and without further memory. A leaf or window is written in two sweeps: forwards,
closing the gaps that deletions leave; backwards, spreading to the final slots and merging the new keys in. An
old key never moves left of its rank in the second sweep, so that nothing unread is overwritten.

Inner functions take plain arrays and are inlined: taking an array out of a tuple, or passing it on, counts
references with an atomic instruction, which costs more than a merge.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from .arrays import (
    DELETED,
    INSERTED,
    OVERWRITTEN,
    Groups,
    Int,
    RowIndex,
    Slots,
    Updates,
)
from .edges import EMPTY_KEY, Keys, Ops, Vertices, Weights
from .intrinsics import prefetch, shift
from .layout import LEAF_SHIFT, LEAF_SLOTS
from .search import AHEAD, LINE
from .windows import Windows

_HALF = np.uint64(32)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def note_rows(updates: Updates, m: Int, row_leaf: Vertices, degrees: Vertices, shortened: Vertices) -> Int:
    """Bring degrees up to date, and the row index as far as insertions change it, before anything moves.

    Rows that may lose their first key are listed in ``shortened`` (uint32[m]); returns how many.
    """
    keys, leaves, states = updates.keys, updates.leaf, updates.status
    n_shortened = np.int64(0)
    i = np.int64(0)
    while i < m:
        u = np.uintp(keys[np.uintp(i)] >> _HALF)
        was_empty = degrees[u] == 0
        first = np.int64(row_leaf[u])
        earliest = first
        loses_first = False
        delta = np.int64(0)
        while i < m and np.uintp(keys[np.uintp(i)] >> _HALF) == u:
            status = states[np.uintp(i)]
            leaf = np.int64(leaves[np.uintp(i)])
            if status == INSERTED:
                if was_empty and delta == 0:
                    earliest = leaf
                earliest = min(earliest, leaf)
                delta += 1
            elif status == DELETED:
                loses_first |= leaf == first
                delta -= 1
            i += 1
        degrees[u] = np.uint32(np.int64(degrees[u]) + delta)
        row_leaf[u] = np.uint32(earliest)
        if loses_first:
            shortened[n_shortened] = np.uint32(u)
            n_shortened += 1
    return n_shortened


@nb.njit(cache=True, nogil=True, error_model="numpy")
def advance_rows(slots: Slots, row_leaf: Vertices, degrees: Vertices, shortened: Vertices, n: Int) -> None:
    """Let the index of these n rows point at their first keys again, after everything moved."""
    keys, counts = slots.keys, slots.counts
    for x in range(n):
        u = np.uintp(shortened[x])
        if degrees[u] == 0:
            continue
        first_key = np.uint64(u) << _HALF
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
    base: Int,
    count: Int,
    place: Ops,
    status: Ops,
    new_weights: Weights,
    old_weights: Weights,
    lo: Int,
    hi: Int,
    to: Int,
) -> Int:
    """First sweep over one leaf: keys that stay go to slot ``to`` and on (not right of where they are).

    Applies overwrites, keeps the old weights, and lets ``place`` of the new keys count only keys that stay.
    Returns the slot after the last key.
    """
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


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _merge_leaves(
    slots: Slots,
    updates: Updates,
    m: Int,
    groups: Groups,
    group_begin: Int,
    group_end: Int,
) -> None:
    """Apply the groups, whose leaves all have room."""
    keys, weights, counts = slots.keys, slots.weights, slots.counts
    new_keys, new_weights, old_weights = (
        updates.keys,
        updates.weights,
        updates.old_weights,
    )
    leaves, place, status = updates.leaf, updates.place, updates.status
    begins, deltas = groups.begin, groups.delta
    for group in range(group_begin, group_end):
        lo, hi = begins[np.uintp(group)], begins[np.uintp(group + 1)]
        if hi + AHEAD <= m:
            ahead = np.int64(leaves[np.uintp(hi + AHEAD - 1)]) << LEAF_SHIFT
            for line in range(0, LEAF_SLOTS, LINE):
                prefetch(keys, ahead + line)
            if weights.size:
                for line in range(0, LEAF_SLOTS, 2 * LINE):
                    prefetch(weights, ahead + line)
        leaf = np.uintp(leaves[np.uintp(lo)])
        base = np.int64(leaf) << LEAF_SHIFT
        count = np.int64(counts[leaf])
        end = _close_gaps(
            keys,
            weights,
            base,
            count,
            place,
            status,
            new_weights,
            old_weights,
            lo,
            hi,
            base,
        )
        count += deltas[np.uintp(group)]
        counts[leaf] = np.int32(count)
        # Second sweep, from the right: each new key takes its place after the keys behind it moved on.
        left = base + count - end
        i = hi
        while left > 0:
            i -= 1
            if status[np.uintp(i)] == INSERTED:
                slot = base + np.int64(place[np.uintp(i)])
                shift(keys, weights, slot + left, slot, end - slot)
                left -= 1
                keys[np.uintp(slot + left)] = new_keys[np.uintp(i)]
                if weights.size:
                    weights[np.uintp(slot + left)] = new_weights[np.uintp(i)]
                end = slot


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _index_leaf(keys: Keys, base: Int, count: Int, leaf: Int, row_leaf: Vertices) -> None:
    """Rows with keys in this leaf begin here, unless an earlier leaf, written later, says otherwise."""
    previous = np.uint64(EMPTY_KEY)
    for slot in range(base, base + count):
        u = keys[np.uintp(slot)] >> _HALF
        if u != previous:
            row_leaf[np.uintp(u)] = np.uint32(leaf)
            previous = u


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _previous_insert(status: Ops, i: Int, lo: Int) -> Int:
    i -= 1
    while i >= lo and status[np.uintp(i)] != INSERTED:
        i -= 1
    return i


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _spread(
    slots: Slots,
    begin: Int,
    end: Int,
    stay: Int,
    edges: Int,
    updates: Updates,
    lo: Int,
    hi: Int,
    row_leaf: Vertices,
) -> None:
    """Second sweep over leaves begin..end: ``stay`` keys lie packed at their left; all ``edges`` go evenly."""
    keys, weights, counts, heads = slots.keys, slots.weights, slots.counts, slots.heads
    new_keys, new_weights, status = updates.keys, updates.weights, updates.status
    start = begin << LEAF_SHIFT
    share, extra = edges // (end - begin), edges % (end - begin)
    i = _previous_insert(status, hi, lo)
    for leaf in range(end - 1, begin - 1, -1):
        count = share + (1 if leaf - begin < extra else 0)
        base = leaf << LEAF_SHIFT
        if i < lo or (stay >= count and keys[np.uintp(start + stay - count)] > new_keys[np.uintp(i)]):
            stay -= count
            if base != start + stay:
                shift(keys, weights, base, start + stay, count)
        else:
            for slot in range(base + count - 1, base - 1, -1):
                old = np.uintp(start + stay - 1)
                if i < lo or (stay > 0 and keys[old] > new_keys[np.uintp(i)]):
                    keys[np.uintp(slot)] = keys[old]
                    if weights.size:
                        weights[np.uintp(slot)] = weights[old]
                    stay -= 1
                else:
                    keys[np.uintp(slot)] = new_keys[np.uintp(i)]
                    if weights.size:
                        weights[np.uintp(slot)] = new_weights[np.uintp(i)]
                    i = _previous_insert(status, i, lo)
        counts[np.uintp(leaf)] = np.int32(count)
        if leaf > begin:
            heads[np.uintp(leaf)] = keys[np.uintp(base)] if count > 0 else EMPTY_KEY
        _index_leaf(keys, base, count, leaf, row_leaf)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _pack(
    slots: Slots,
    updates: Updates,
    groups: Groups,
    begin: Int,
    end: Int,
    group: Int,
    group_end: Int,
) -> Int:
    """First sweep over leaves begin..end; returns how many keys stay."""
    keys, weights, counts = slots.keys, slots.weights, slots.counts
    new_weights, old_weights = updates.weights, updates.old_weights
    place, status, begins, leaves = (
        updates.place,
        updates.status,
        groups.begin,
        groups.leaf,
    )
    to = begin << LEAF_SHIFT
    for leaf in range(begin, end):
        lo, hi = np.int64(0), np.int64(0)
        if group < group_end and leaves[np.uintp(group)] == leaf:
            lo, hi = begins[np.uintp(group)], begins[np.uintp(group + 1)]
            group += 1
        base, count = np.int64(leaf << LEAF_SHIFT), np.int64(counts[np.uintp(leaf)])
        to = _close_gaps(
            keys,
            weights,
            base,
            count,
            place,
            status,
            new_weights,
            old_weights,
            lo,
            hi,
            to,
        )
    return to - (begin << LEAF_SHIFT)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _redistribute(
    slots: Slots,
    row_leaf: Vertices,
    updates: Updates,
    groups: Groups,
    windows: Windows,
    window: Int,
) -> None:
    """Apply the updates that fall into a window, and spread its keys evenly over its leaves."""
    begin, end, edges = (
        windows.begin[window],
        windows.end[window],
        windows.edges[window],
    )
    group, group_end = windows.group_begin[window], windows.group_end[window]
    lo, hi = groups.begin[group], groups.begin[group_end]
    stay = _pack(slots, updates, groups, begin, end, group, group_end)
    # The row of the smallest key may begin before the window; then its index must stay as it is.
    smallest = np.uint64(EMPTY_KEY)
    if stay > 0:
        smallest = slots.keys[begin << LEAF_SHIFT]
    for i in range(lo, hi):
        if updates.status[i] == INSERTED:
            smallest = min(smallest, updates.keys[i])
            break
    row = np.intp(smallest >> _HALF) if edges > 0 else np.intp(0)
    row_begin = row_leaf[row]
    _spread(slots, begin, end, stay, edges, updates, lo, hi, row_leaf)
    if np.int64(row_begin) < begin:
        row_leaf[row] = row_begin


@nb.njit(cache=True, nogil=True, error_model="numpy")
def commit(
    slots: Slots,
    rows: RowIndex,
    updates: Updates,
    m: Int,
    groups: Groups,
    n_groups: Int,
    windows: Windows,
    n_windows: Int,
    shortened: Vertices,
) -> Int:
    """Write a planned batch; cannot fail. Returns the slots that redistribution wrote."""
    n_shortened = note_rows(updates, m, rows.leaf, rows.degrees, shortened)
    moved = np.int64(0)
    group = np.int64(0)
    for window in range(n_windows):
        _merge_leaves(slots, updates, m, groups, group, windows.group_begin[window])
        group = windows.group_end[window]
        _redistribute(slots, rows.leaf, updates, groups, windows, window)
        moved += windows.edges[window]
    _merge_leaves(slots, updates, m, groups, group, n_groups)
    advance_rows(slots, rows.leaf, rows.degrees, shortened, n_shortened)
    return moved


@nb.njit(cache=True, nogil=True, error_model="numpy")
def split_report(
    updates: Updates,
    m: Int,
    inserted: Keys,
    inserted_weights: Weights,
    overwritten: Keys,
    overwriting_weights: Weights,
    overwritten_weights: Weights,
    deleted: Keys,
    deleted_weights: Weights,
    absent: Keys,
) -> None:
    """Sort the updates by what became of them; the weight columns are float32[0] when unweighted."""
    keys, states, new_weights, old_weights = (
        updates.keys,
        updates.status,
        updates.weights,
        updates.old_weights,
    )
    n_inserted, n_overwritten, n_deleted, n_absent = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for i in range(m):
        state = states[np.uintp(i)]
        key = keys[np.uintp(i)]
        if state == INSERTED:
            inserted[n_inserted] = key
            if new_weights.size:
                inserted_weights[n_inserted] = new_weights[i]
            n_inserted += 1
        elif state == OVERWRITTEN:
            overwritten[n_overwritten] = key
            if new_weights.size:
                overwriting_weights[n_overwritten] = new_weights[i]
                overwritten_weights[n_overwritten] = old_weights[i]
            n_overwritten += 1
        elif state == DELETED:
            deleted[n_deleted] = key
            if new_weights.size:
                deleted_weights[n_deleted] = old_weights[i]
            n_deleted += 1
        else:
            absent[n_absent] = key
            n_absent += 1
