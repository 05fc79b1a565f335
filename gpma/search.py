"""Finding keys: the leaf through the dense array of heads, then the place within the leaf. Reads only."""

from __future__ import annotations

import numba as nb
import numpy as np

from .arrays import ABSENT, DELETED, INSERTED, OVERWRITTEN
from .intrinsics import prefetch
from .layout import LEAF_SHIFT
from .rows import LOW, first_slot

# Searches that run side by side, so that their cache misses overlap.
LANES = 32
# How many updates ahead a leaf is asked for.
AHEAD = 8
# Keys of one cache line.
LINE = 8


@nb.njit(cache=True, nogil=True, error_model="numpy")
def find_leaf(heads, n_leaves, key):  # type: ignore[no-untyped-def]
    """The last leaf whose head is not above the key."""
    leaf = np.int64(0)
    span = np.int64(n_leaves)
    while span > 1:
        half = span >> 1
        leaf += half if heads[np.uintp(leaf + half)] <= key else 0
        span -= half
    return leaf


@nb.njit(cache=True, nogil=True, error_model="numpy")
def find_place(keys, begin, end, key):  # type: ignore[no-untyped-def]
    """How many of keys[begin:end] (ascending, at most a leaf) are smaller than the key."""
    place = np.int64(begin)
    span = np.int64(end) - place
    while span > 8:
        half = span >> 1
        place += half if keys[np.uintp(place + half - 1)] < key else 0
        span -= half
    smaller = np.int64(0)
    for i in range(span):
        smaller += keys[np.uintp(place + i)] < key
    return place + smaller - begin


@nb.njit(cache=True, nogil=True, error_model="numpy")
def locate(heads, n_leaves, keys, m, leaf):  # type: ignore[no-untyped-def]
    """leaf[i] = the leaf of keys[i], for m ascending keys.

    LANES keys at a time share one binary search over the leaves from the one before them on; the stretch to
    search is found by doubling, so that clustered batches search little.
    """
    lanes = np.empty(LANES, np.int64)
    previous = np.int64(0)
    for begin in range(0, m, LANES):
        width = min(LANES, m - begin)
        last = keys[begin + width - 1]
        step = np.int64(LANES)
        while previous + step < n_leaves and heads[previous + step] <= last:
            step <<= 1
        span = min(previous + step, n_leaves) - previous
        for lane in range(width):
            lanes[lane] = previous
        while span > 1:
            half = span >> 1
            for lane in range(width):
                at = lanes[np.uintp(lane)]
                hit = heads[np.uintp(at + half)] <= keys[np.uintp(begin + lane)]
                lanes[np.uintp(lane)] = at + (half if hit else 0)
            span -= half
        for lane in range(width):
            leaf[begin + lane] = np.uint32(lanes[lane])
        previous = lanes[width - 1]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def probe(slots, updates, groups, m):  # type: ignore[no-untyped-def]
    """Look each update up: fills ``place``, ``status`` and the groups; nothing of the array is written.

    Returns (groups, inserted, overwritten, deleted, absent).
    """
    keys = slots.keys
    counts = slots.counts
    update_keys = updates.keys
    leaf = updates.leaf
    totals = np.zeros(4, np.int64)
    n_groups = np.int64(0)
    i = np.int64(0)
    while i < m:
        at = np.int64(leaf[np.uintp(i)])
        base = at << LEAF_SHIFT
        count = np.int64(counts[np.uintp(at)])
        groups.begin[np.uintp(n_groups)] = i
        groups.leaf[np.uintp(n_groups)] = at
        place = np.int64(0)
        delta = np.int64(0)
        while i < m and np.int64(leaf[np.uintp(i)]) == at:
            if i + AHEAD < m:
                ahead = np.int64(leaf[np.uintp(i + AHEAD)]) << LEAF_SHIFT
                for line in range(0, 1 << LEAF_SHIFT, LINE):
                    prefetch(keys, ahead + line)
            key = update_keys[np.uintp(i)]
            place += find_place(keys, base + place, base + count, key)
            there = place < count and keys[np.uintp(base + place)] == key
            if updates.inserts[np.uintp(i)] != 0:
                status = OVERWRITTEN if there else INSERTED
                delta += 0 if there else 1
            else:
                status = DELETED if there else ABSENT
                delta -= 1 if there else 0
            updates.place[np.uintp(i)] = np.uint8(place)
            updates.status[np.uintp(i)] = np.uint8(status)
            totals[np.uintp(status)] += 1
            i += 1
        groups.delta[np.uintp(n_groups)] = delta
        n_groups += 1
    groups.begin[n_groups] = m
    return n_groups, totals[INSERTED], totals[OVERWRITTEN], totals[DELETED], totals[ABSENT]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def find_slots(slots, n_leaves, wanted, found):  # type: ignore[no-untyped-def]
    """found[i] = the slot of wanted[i], or -1; keys in any order."""
    keys = slots.keys
    for i in range(wanted.size):
        key = wanted[i]
        leaf = find_leaf(slots.heads, n_leaves, key)
        base = leaf << LEAF_SHIFT
        end = base + np.int64(slots.counts[leaf])
        slot = base + find_place(keys, base, end, key)
        found[i] = slot if slot < end and keys[slot] == key else np.int64(-1)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def gather_rows(rows, vertices, offsets, neighbors, weights):  # type: ignore[no-untyped-def]
    """Copy the rows of the vertices behind each other; ``offsets`` says where each begins."""
    for x in range(vertices.size):
        u = np.int64(vertices[x])
        out = offsets[x]
        remaining = offsets[x + 1] - out
        if remaining == 0:
            continue
        leaf, slot = first_slot(rows, u)
        while remaining > 0:
            end = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
            for i in range(slot, end):
                neighbors[out + i - slot] = np.uint32(rows.keys[i] & LOW)
            if weights.size:
                for i in range(slot, end):
                    weights[out + i - slot] = rows.weights[i]
            out += end - slot
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << rows.leaf_shift
