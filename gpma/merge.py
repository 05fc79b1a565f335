"""Writing a batch into the array: leaf by leaf, window by window, and the row index after them.

Everything happens in place and without further memory. A leaf or window is written in two sweeps: forwards,
closing the gaps that deletions leave; backwards, spreading to the final slots and merging the new keys in. An
old key never moves left of its rank in the second sweep, so that nothing unread is overwritten.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from .arrays import DELETED, INSERTED, OVERWRITTEN
from .edges import EMPTY_KEY
from .intrinsics import move, prefetch
from .layout import LEAF_SHIFT, LEAF_SLOTS
from .search import AHEAD, LINE

_HALF = np.uint64(32)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def note_rows(updates, m, row_leaf, degrees, shortened):  # type: ignore[no-untyped-def]
    """Bring degrees up to date, and the row index as far as insertions change it, before anything moves.

    Rows that may lose their first key are listed in ``shortened`` (uint32[m]); returns how many.
    """
    n_shortened = np.int64(0)
    i = np.int64(0)
    while i < m:
        u = np.uintp(updates.keys[np.uintp(i)] >> _HALF)
        was_empty = degrees[u] == 0
        first = np.int64(row_leaf[u])
        earliest = first
        loses_first = False
        delta = np.int64(0)
        while i < m and np.uintp(updates.keys[np.uintp(i)] >> _HALF) == u:
            status = updates.status[np.uintp(i)]
            leaf = np.int64(updates.leaf[np.uintp(i)])
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
def advance_rows(slots, row_leaf, degrees, shortened, n_shortened):  # type: ignore[no-untyped-def]
    """Let the index of these rows point at their first keys again, after everything moved."""
    for x in range(n_shortened):
        u = np.uintp(shortened[x])
        if degrees[u] == 0:
            continue
        first_key = np.uint64(u) << _HALF
        leaf = np.int64(row_leaf[u])
        while True:
            last = (leaf << LEAF_SHIFT) + np.int64(slots.counts[np.uintp(leaf)]) - 1
            if last >= leaf << LEAF_SHIFT and slots.keys[np.uintp(last)] >= first_key:
                break
            leaf += 1
        row_leaf[u] = np.uint32(leaf)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _shift(keys, weights, to, from_, count):  # type: ignore[no-untyped-def]
    if to != from_:
        move(keys, to, keys, from_, count)
        if weights.size:
            move(weights, to, weights, from_, count)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _close_gaps(keys, weights, base, count, updates, lo, hi, to):  # type: ignore[no-untyped-def]
    """First sweep over one leaf: keys that stay go to slot ``to`` and on (not right of where they are).

    Applies overwrites, keeps the old weights, and lets ``place`` of the new keys count only keys that stay.
    Returns the slot after the last key.
    """
    read = base
    gone = np.int64(0)
    for i in range(lo, hi):
        status = updates.status[np.uintp(i)]
        slot = base + np.int64(updates.place[np.uintp(i)])
        if status == OVERWRITTEN:
            if weights.size:
                updates.old_weights[np.uintp(i)] = weights[np.uintp(slot)]
                weights[np.uintp(slot)] = updates.weights[np.uintp(i)]
        elif status == DELETED:
            if weights.size:
                updates.old_weights[np.uintp(i)] = weights[np.uintp(slot)]
            _shift(keys, weights, to, read, slot - read)
            to += slot - read
            read = slot + 1
            gone += 1
        elif status == INSERTED:
            updates.place[np.uintp(i)] = np.uint8(slot - base - gone)
    end = base + count
    _shift(keys, weights, to, read, end - read)
    return to + end - read


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _merge_leaf(keys, weights, base, count, updates, lo, hi, n_inserted):  # type: ignore[no-untyped-def]
    """Apply updates lo..hi to one leaf that has room for them."""
    end = _close_gaps(keys, weights, base, count, updates, lo, hi, base)
    left = n_inserted
    i = hi - 1
    while left > 0:
        if updates.status[np.uintp(i)] == INSERTED:
            slot = base + np.int64(updates.place[np.uintp(i)])
            _shift(keys, weights, slot + left, slot, end - slot)
            keys[np.uintp(slot + left - 1)] = updates.keys[np.uintp(i)]
            if weights.size:
                weights[np.uintp(slot + left - 1)] = updates.weights[np.uintp(i)]
            end = slot
            left -= 1
        i -= 1


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _index_leaf(keys, base, count, leaf, row_leaf):  # type: ignore[no-untyped-def]
    """Rows with keys in this leaf begin here, unless an earlier leaf, written later, says otherwise."""
    previous = np.uint64(EMPTY_KEY)
    for slot in range(base, base + count):
        u = keys[np.uintp(slot)] >> _HALF
        if u != previous:
            row_leaf[np.uintp(u)] = np.uint32(leaf)
            previous = u


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _previous_insert(status, i, lo):  # type: ignore[no-untyped-def]
    i -= 1
    while i >= lo and status[np.uintp(i)] != INSERTED:
        i -= 1
    return i


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _spread(keys, weights, counts, heads, begin, end, stay, edges, updates, lo, hi, row_leaf):  # type: ignore[no-untyped-def]
    """Second sweep over leaves begin..end: ``stay`` keys lie packed at their left; all ``edges`` go evenly."""
    start = begin << LEAF_SHIFT
    share, extra = edges // (end - begin), edges % (end - begin)
    i = _previous_insert(updates.status, hi, lo)
    for leaf in range(end - 1, begin - 1, -1):
        count = share + (1 if leaf - begin < extra else 0)
        base = leaf << LEAF_SHIFT
        if i < lo or (stay >= count and keys[np.uintp(start + stay - count)] > updates.keys[np.uintp(i)]):
            stay -= count
            _shift(keys, weights, base, start + stay, count)
        else:
            for slot in range(base + count - 1, base - 1, -1):
                old = np.uintp(start + stay - 1)
                if i < lo or (stay > 0 and keys[old] > updates.keys[np.uintp(i)]):
                    keys[np.uintp(slot)] = keys[old]
                    if weights.size:
                        weights[np.uintp(slot)] = weights[old]
                    stay -= 1
                else:
                    keys[np.uintp(slot)] = updates.keys[np.uintp(i)]
                    if weights.size:
                        weights[np.uintp(slot)] = updates.weights[np.uintp(i)]
                    i = _previous_insert(updates.status, i, lo)
        counts[np.uintp(leaf)] = np.int32(count)
        if leaf > begin:
            heads[np.uintp(leaf)] = keys[np.uintp(base)] if count > 0 else EMPTY_KEY
        _index_leaf(keys, base, count, leaf, row_leaf)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _redistribute(slots, row_leaf, updates, groups, begin, end, edges, group, group_end):  # type: ignore[no-untyped-def]
    """Apply the updates of these groups to the window begin..end and spread its keys evenly."""
    keys, weights, counts = slots.keys, slots.weights, slots.counts
    lo, hi = groups.begin[group], groups.begin[group_end]
    start = begin << LEAF_SHIFT
    to = start
    for leaf in range(begin, end):
        first, last = lo, lo
        if group < group_end and groups.leaf[group] == leaf:
            first, last = groups.begin[group], groups.begin[group + 1]
            group += 1
        to = _close_gaps(
            keys, weights, leaf << LEAF_SHIFT, np.int64(counts[np.uintp(leaf)]), updates, first, last, to
        )
    # The row of the smallest key may begin before the window; then its index must stay as it is.
    smallest = EMPTY_KEY
    if to > start:
        smallest = keys[np.uintp(start)]
    for i in range(lo, hi):
        if updates.status[np.uintp(i)] == INSERTED:
            smallest = min(smallest, updates.keys[np.uintp(i)])
            break
    if smallest != EMPTY_KEY:
        row = np.uintp(smallest >> _HALF)
        row_begin = row_leaf[row]
        _spread(keys, weights, counts, slots.heads, begin, end, to - start, edges, updates, lo, hi, row_leaf)
        if np.int64(row_begin) < begin:
            row_leaf[row] = row_begin
    else:
        counts[begin:end] = 0
        slots.heads[begin + 1 : end] = EMPTY_KEY


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _merge_leaves(slots, updates, m, groups, group_begin, group_end):  # type: ignore[no-untyped-def]
    """Apply the groups, whose leaves all have room."""
    keys, weights, counts = slots.keys, slots.weights, slots.counts
    for group in range(group_begin, group_end):
        lo, hi = groups.begin[np.uintp(group)], groups.begin[np.uintp(group + 1)]
        if hi + AHEAD <= m:
            ahead = np.int64(updates.leaf[np.uintp(hi + AHEAD - 1)]) << LEAF_SHIFT
            for line in range(0, LEAF_SLOTS, LINE):
                prefetch(keys, ahead + line)
            if weights.size:
                for line in range(0, LEAF_SLOTS, 2 * LINE):
                    prefetch(weights, ahead + line)
        n_inserted = np.int64(0)
        for i in range(lo, hi):
            n_inserted += updates.status[np.uintp(i)] == INSERTED
        leaf = np.uintp(groups.leaf[np.uintp(group)])
        count = np.int64(counts[leaf])
        _merge_leaf(keys, weights, np.int64(leaf) << LEAF_SHIFT, count, updates, lo, hi, n_inserted)
        counts[leaf] = np.int32(count + groups.delta[np.uintp(group)])


@nb.njit(cache=True, nogil=True, error_model="numpy")
def commit(slots, rows, updates, m, groups, n_groups, windows, n_windows, shortened):  # type: ignore[no-untyped-def]
    """Write a planned batch; cannot fail. Returns the slots that redistribution wrote."""
    n_shortened = note_rows(updates, m, rows.leaf, rows.degrees, shortened)
    moved = np.int64(0)
    group = np.int64(0)
    for w in range(n_windows):
        begin, end, edges = windows.begin[w], windows.end[w], windows.edges[w]
        _merge_leaves(slots, updates, m, groups, group, windows.group_begin[w])
        group = windows.group_end[w]
        _redistribute(slots, rows.leaf, updates, groups, begin, end, edges, windows.group_begin[w], group)
        moved += edges
    _merge_leaves(slots, updates, m, groups, group, n_groups)
    advance_rows(slots, rows.leaf, rows.degrees, shortened, n_shortened)
    return moved


@nb.njit(cache=True, nogil=True, error_model="numpy")
def split_report(
    updates,
    m,
    inserted,
    inserted_weights,
    overwritten,
    new_weights,
    replaced_weights,  # type: ignore[no-untyped-def]
    deleted,
    deleted_weights,
    absent,
):
    """Sort the updates by what became of them; the weight columns are float32[0] when unweighted."""
    at = np.zeros(4, np.int64)
    weighted = updates.weights.size > 0
    for i in range(m):
        status = np.uintp(updates.status[i])
        to = at[status]
        at[status] = to + 1
        key = updates.keys[i]
        if status == INSERTED:
            inserted[to] = key
            if weighted:
                inserted_weights[to] = updates.weights[i]
        elif status == OVERWRITTEN:
            overwritten[to] = key
            if weighted:
                new_weights[to] = updates.weights[i]
                replaced_weights[to] = updates.old_weights[i]
        elif status == DELETED:
            deleted[to] = key
            if weighted:
                deleted_weights[to] = updates.old_weights[i]
        else:
            absent[to] = key
