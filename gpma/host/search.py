"""Finding keys: the leaf through the dense array of heads, then the place within the leaf. Reads only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np

from ..drawing import drawn_by
from ..edges import ABSENT, DELETED, HALF, INSERTED, OVERWRITTEN, Int, Keys, Offsets, Vertices
from ..intrinsics import choose, inner, prefetch_to_read, uncounted, uncounted_inner
from ..layout import LEAF_SHIFT, LEAF_SLOTS, TOP_LEAVES, TOP_SHIFT
from ..sorted_keys import first_at
from ..team import Crew, at_most, share
from .arrays import INNER, RowIndex, Slots, Updates

# Searches that run side by side, so that their cache misses overlap.
LANES = 32
# How many updates ahead a leaf is asked for.
AHEAD = 24
# Keys that a thread finds at a time, a multiple of LANES.
_PIECE_FOUND = 256
# Keys of one cache line.
LINE = 8

_inlined = nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")


@_inlined
def set_head(heads: Keys, tops: Keys, leaf: Int, head: Int) -> None:
    """Write the head of a leaf, and the top that is the same."""
    heads[np.uintp(leaf)] = head
    if leaf & (TOP_LEAVES - 1) == 0:
        tops[np.uintp(leaf >> TOP_SHIFT)] = head


# What searches share is put into them: none has a branch or a loop of its own, so that no references are counted.


@_inlined
def _side_of(heads: Keys, stretch_begin: Int, stretch_end: Int, key: Int) -> tuple[Int, Int]:
    """The leaves among which a key belongs, those before the stretch or behind it: (the first, how many)."""
    first = np.int64(stretch_end)
    n_behind = np.int64(heads.size) - first
    # Nothing lies behind a stretch at the end; then the last head stands in, and counts for nothing.
    behind = (n_behind > 0) & (heads[np.uintp(min(first, np.int64(heads.size) - 1))] <= key)
    return first if behind else np.int64(0), n_behind if behind else np.int64(stretch_begin)


@_inlined
def _halve(heads: Keys, leaf: Int, half: Int, key: Int) -> Int:
    """One step of a search: the leaf so many further on if its head is not above the key, else this one."""
    return leaf + choose(heads[np.uintp(leaf + half)] <= key, half, np.int64(0))


@_inlined
def _ask_for_leaf(keys: Keys, counts: Any, leaf: Int) -> None:
    """Ask for the count and the keys of a leaf, of 32 slots in four lines."""
    slot = leaf << LEAF_SHIFT
    prefetch_to_read(counts, leaf)
    prefetch_to_read(keys, slot)
    prefetch_to_read(keys, slot + 8)
    prefetch_to_read(keys, slot + 16)
    prefetch_to_read(keys, slot + 24)


@uncounted_inner
def ask_for_row(rows: RowIndex, key: Int) -> None:
    """Ask for the degree and the place of the row of a key."""
    row = np.int64(key >> HALF)
    prefetch_to_read(rows.degrees, row)
    prefetch_to_read(rows.leaf, row)


@uncounted_inner
def ask_for_leaf(slots: Slots, leaf: Int) -> None:
    """Ask for all of a leaf, soon to be read and written."""
    _ask_for_leaf(slots.keys, slots.counts, leaf)
    if slots.weights.size:
        slot = leaf << LEAF_SHIFT
        for line in range(0, LEAF_SLOTS, 2 * LINE):
            prefetch_to_read(slots.weights, slot + line)


@uncounted
def find_leaf(slots: Slots, key: Int) -> Int:
    """The leaf into which a key belongs: the last one outside the stretch whose head is not above it."""
    heads = slots.heads
    leaf, span = _side_of(heads, slots.stretch_begin, slots.stretch_end, key)
    while span > 1:
        half = span >> 1
        leaf = _halve(heads, leaf, half, key)
        span -= half
    return leaf


@uncounted_inner
def find_place(keys: Keys, begin: Int, end: Int, key: Int) -> Int:
    """How many of keys[begin:end] (ascending, at most a leaf) are smaller than the key."""
    place = np.int64(begin)
    span = np.int64(end) - place
    while span > 8:
        half = span >> 1
        place += choose(keys[np.uintp(place + half - 1)] < key, half, np.int64(0))
        span -= half
    smaller = np.int64(0)
    for i in range(span):
        smaller += keys[np.uintp(place + i)] < key
    return place + smaller - begin


class Lanes(NamedTuple):
    """What searches side by side need: ``found`` int64[LANES], ``wanted`` uint64[LANES], or for several threads so
    many times that."""

    found: Offsets
    wanted: Keys


@inner
def new_lanes(times: Int) -> Lanes:
    return Lanes(np.empty(times * LANES, np.int64), np.empty(times * LANES, np.uint64))


@_inlined
def lanes_of(room: Lanes, k: Int) -> Lanes:
    """Those at place k; put into its callers, of which some count references and some do not."""
    return Lanes(room.found[k * LANES : (k + 1) * LANES], room.wanted[k * LANES : (k + 1) * LANES])


@uncounted_inner
def _locate(
    heads: Keys, tops: Keys, first: Int, end: Int, keys: Keys, lo: Int, hi: Int, leaf: Vertices, room: Lanes
) -> None:
    """leaf[i] = the leaf of keys[i], for ascending keys lo..hi that belong into leaves first..end.

    LANES keys at a time share one binary search over the tops from the one before them on; what to search is found
    by doubling, so that clustered batches search little. The heads that share a top are counted.
    """
    lanes, wanted = room.found, room.wanted
    previous = np.int64(first) >> TOP_SHIFT
    tops_end = (np.int64(end) + TOP_LEAVES - 1) >> TOP_SHIFT
    for begin in range(lo, hi, LANES):
        width: Int = np.int64(min(LANES, hi - begin))
        # Lanes without a key of their own repeat the last one, so that all loops are of one length.
        for lane in range(LANES):
            wanted[lane] = keys[np.uintp(begin + min(lane, width - 1))]
            lanes[lane] = previous
        last = wanted[LANES - 1]
        step = np.int64(LANES)
        while previous + step < tops_end and tops[np.uintp(previous + step)] <= last:
            step <<= 1
        span = min(previous + step, tops_end) - previous
        while span > 1:
            half = span >> 1
            for lane in range(LANES):
                lanes[lane] = _halve(tops, lanes[lane], half, wanted[lane])
            span -= half
        for lane in range(LANES):
            prefetch_to_read(heads, lanes[lane] << TOP_SHIFT)
        for lane in range(width):
            at, key = lanes[lane] << TOP_SHIFT, wanted[lane]
            later = np.int64(0)
            if at >= first and at + TOP_LEAVES <= end:
                for other in range(1, TOP_LEAVES):
                    later += np.int64(heads[np.uintp(at + other)] <= key)
            else:
                stop = min(at + TOP_LEAVES, np.int64(end))
                at = max(at, np.int64(first))
                for other in range(at + 1, stop):
                    later += np.int64(heads[np.uintp(other)] <= key)
            leaf[np.uintp(begin + lane)] = np.uint32(at + later)
        previous = lanes[LANES - 1]


@inner
def locate(slots: Slots, updates: Updates, lo: Int, hi: Int) -> None:
    """Fill ``leaf`` of updates lo..hi."""
    locate_in(slots, updates, lo, hi, new_lanes(np.int64(1)))


@uncounted_inner
def locate_in(slots: Slots, updates: Updates, lo: Int, hi: Int, room: Lanes) -> None:
    """``locate`` with lanes that are there."""
    heads, tops, keys, leaf = slots.heads, slots.tops, updates.keys, updates.leaf
    split = np.int64(hi)
    if slots.stretch_end < heads.size:
        split = first_at(keys, lo, hi, heads[slots.stretch_end])
    _locate(heads, tops, np.int64(0), slots.stretch_begin, keys, lo, split, leaf, room)
    _locate(heads, tops, slots.stretch_end, heads.size, keys, split, hi, leaf, room)


@uncounted_inner
def probe(slots: Slots, updates: Updates, lo: Int, hi: Int) -> tuple[Int, Int, Int, Int]:
    """Fill ``place`` and ``status`` of updates lo..hi; nothing of the array is written.

    Returns how many are (inserted, overwritten, deleted, absent).
    """
    keys, counts = slots.keys, slots.counts
    update_keys, ops, leaf = updates.keys, updates.ops, updates.leaf
    places, states = updates.place, updates.status
    inserted, overwritten, deleted, absent = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    i = np.int64(lo)
    while i < hi:
        at = np.int64(leaf[np.uintp(i)])
        base = at << LEAF_SHIFT
        count = np.int64(counts[np.uintp(at)])
        place = np.int64(0)
        while i < hi and np.int64(leaf[np.uintp(i)]) == at:
            if i + AHEAD < hi:
                _ask_for_leaf(keys, counts, np.int64(leaf[np.uintp(i + AHEAD)]))
            key = update_keys[np.uintp(i)]
            place += find_place(keys, base + place, base + count, key)
            there = place < count and keys[np.uintp(base + place)] == key
            if ops[np.uintp(i)] != 0:
                status = OVERWRITTEN if there else INSERTED
                overwritten += there
                inserted += not there
            else:
                status = DELETED if there else ABSENT
                deleted += there
                absent += not there
                if place > 0 and keys[np.uintp(base + place - 1)] >> HALF == key >> HALF:
                    ops[np.uintp(i)] = np.uint8(INNER)
            places[np.uintp(i)] = np.uint8(place)
            states[np.uintp(i)] = np.uint8(status)
            i += 1
    return inserted, overwritten, deleted, absent


@uncounted_inner
def probe_many(slots: Slots, updates: Updates, lo: Int, hi: Int) -> tuple[Int, Int, Int, Int]:
    """``probe`` where leaves have an update each, or more: their lines come in order, and what costs are branches
    that nobody can predict. This has none, for more lines than some updates would need."""
    keys, counts = slots.keys, slots.counts
    update_keys, ops, leaf = updates.keys, updates.ops, updates.leaf
    places, states = updates.place, updates.status
    inserts_seen, found, overwritten = np.int64(0), np.int64(0), np.int64(0)
    last_update: Int = np.int64(hi) - 1
    last_slot = np.int64(LEAF_SLOTS - 1)
    for i in range(lo, hi):
        _ask_for_leaf(keys, counts, np.int64(leaf[np.uintp(min(i + AHEAD, last_update))]))
        at = np.int64(leaf[np.uintp(i)])
        base, count = at << LEAF_SHIFT, np.int64(counts[np.uintp(at)])
        key = update_keys[np.uintp(i)]
        place = _place_in_leaf(keys, base, count, key)
        there = np.int64((place < count) & (keys[np.uintp(base + min(place, last_slot))] == key))
        inserting = ops[np.uintp(i)] != 0
        places[np.uintp(i)] = np.uint8(place)
        states[np.uintp(i)] = np.uint8(choose(inserting, there, np.int64(ABSENT) - there))
        inserts_seen += np.int64(inserting)
        found += there
        overwritten += np.int64(inserting) & there
    deleted = found - overwritten
    return inserts_seen - overwritten, overwritten, deleted, np.int64(hi) - lo - inserts_seen - deleted


@_inlined
def _place_in_leaf(keys: Keys, base: Int, count: Int, key: Int) -> Int:
    """How many of the first ``count`` keys of a leaf, which begins at slot ``base``, are below the key. What lies
    behind them is read and counts for nothing."""
    half, quarter, none = np.int64(LEAF_SLOTS // 2), np.int64(LEAF_SLOTS // 4), np.int64(0)
    place = choose((count >= half) & (keys[np.uintp(base + half - 1)] < key), half, none)
    place += choose((count >= place + quarter) & (keys[np.uintp(base + place + quarter - 1)] < key), quarter, none)
    smaller = np.int64(0)
    for i in range(LINE):
        smaller += np.int64((place + i < count) & (keys[np.uintp(base + place + i)] < key))
    return place + smaller


@nb.njit(cache=True, nogil=True, error_model="numpy")
def find_slots(slots: Slots, wanted: Keys, found: Offsets, crew: Crew) -> None:
    """found[i] = the slot of wanted[i], or -1; keys in any order."""
    cursor = np.zeros(1, np.int64)
    share(at_most(crew, wanted.size // _PIECE_FOUND + 1), _find_pieces, (slots, wanted, found, cursor))


@inner
def _find_pieces(thread: Int, slots: Slots, wanted: Keys, found: Offsets, cursor: Offsets) -> None:
    """Find keys in pieces drawn from the cursor, LANES of them side by side."""
    heads, keys, counts = slots.heads, slots.keys, slots.counts
    leaves, spans = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    for first in drawn_by(cursor, wanted.size, _PIECE_FOUND):
        for begin in range(first, min(first + _PIECE_FOUND, wanted.size), LANES):
            width: Int = np.int64(min(LANES, wanted.size - begin))
            longest = np.int64(0)
            for lane in range(width):
                first_leaf, span = _side_of(heads, slots.stretch_begin, slots.stretch_end, wanted[begin + lane])
                leaves[lane] = first_leaf
                spans[lane] = span
                longest = max(longest, spans[lane])
            while longest > 1:
                longest -= longest >> 1
                for lane in range(width):
                    half = spans[lane] >> 1
                    leaves[lane] = _halve(heads, leaves[lane], half, wanted[begin + lane])
                    spans[lane] -= half
            for lane in range(width):
                _ask_for_leaf(keys, counts, leaves[lane])
            for lane in range(width):
                key = wanted[begin + lane]
                base = leaves[lane] << LEAF_SHIFT
                end = base + np.int64(counts[leaves[lane]])
                slot = base + find_place(keys, base, end, key)
                found[begin + lane] = slot if slot < end and keys[slot] == key else np.int64(-1)
