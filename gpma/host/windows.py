"""Which windows a batch must redistribute: for each leaf out of its bounds the smallest ancestor within its own.

GPMA+ (Sha, Li, He, Tan: Accelerating Dynamic Graph Analytics on GPUs, VLDB 2017, section 5) climbs level by
level over all leaves at once; here each leaf climbs by itself, summing counts as its window widens, and leaves
inside a window that was found already are skipped.

While an array migrates, the parts left and right of the empty stretch are two arrays with a root each. A window
beside the stretch never climbs: it takes as many leaves from the stretch as it needs, or gives it those that it
does not. Where all of a part has not the room, its window goes on over the stretch, which ends the migration.

A window that would be very wide is **squeezed** instead, if it can be: the smallest one is redistributed whose
density is half way between its bound and full. That gains time, until a stretch has come (``crowds.py``), so that
hardly any batch redistributes a large part of the array.

What is promised. After every batch each leaf outside the stretch holds at least LEAF_LOWER of its slots, and
the array is within the bounds of its root. A window that the batch redistributed is within the bounds of its
height (squeezed: half way to full), and its leaves hold equally many keys but for one; so every smaller window in
it has the same density, and is within its own bounds, since those are wider. Other windows may be as full or empty
as leaves may be, until one of their leaves overflows or runs empty.

What it costs. A window of height h > 0 is redistributed after a leaf overflowed, because the child of height h -
1 around that leaf is denser than upper[h - 1]. When the child was last redistributed as part of something wider,
it had at most upper[h]. So (upper[h - 1] - upper[h]) of its slots were filled since by inserts, and the window
has twice its slots: at most 2 upper[h] / (upper[h - 1] - upper[h]) slots are written for each insert at each
height, and the same with lower bounds for deletes. For 15 million edges that adds up to about 10,000 slots an
update in the worst case, and a single batch may redistribute the whole array. Streams that fill one place
(ascending, descending, one leaf, a thousand updates at a time) would write 110 to 210 that way; as a stretch is
carried there (``hot_spot.py``) they write 1 to 20, and random ones about one. Edges between new vertices and any
older ones write 16, never more than 80 for a stretch on its way, and what the windows of a crowd take. Growing
and shrinking add 6 edges moved for each edge inserted or deleted, and never more than 20 for each update (of
some hundred updates at once, where batches are small). Growth moves as many as the room that is left calls for
(``migration.FULL_AT``), fewer where edges go as well as come.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..edges import Int
from ..intrinsics import uncounted_inner
from ..layout import LEAF_LEAST, LEAF_SLOTS, SHARE_FULL
from .arrays import Pending, Slots

Bounds = npt.NDArray[np.float64]


class Windows(NamedTuple):
    """Disjoint windows from left to right, int64 each: leaves ``begin`` to ``end``, which will be spread over
    ``new_begin`` to ``new_end`` (the same ones, except beside a stretch), hold ``edges`` then, and the pending
    leaves ``pending_begin`` to ``pending_end`` among them; ``squeezed``: 1 where that may pass their bound."""

    begin: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    new_begin: npt.NDArray[np.int64]
    new_end: npt.NDArray[np.int64]
    edges: npt.NDArray[np.int64]
    pending_begin: npt.NDArray[np.int64]
    pending_end: npt.NDArray[np.int64]
    squeezed: npt.NDArray[np.int64]


class Window(NamedTuple):
    """One of them, with the new edges ``waiting_begin`` to ``waiting_end`` that wait for it."""

    begin: Int
    end: Int
    new_begin: Int
    new_end: Int
    waiting_begin: Int
    waiting_end: Int


@uncounted_inner
def waiting(ends: npt.NDArray[np.uint32], pending: Int) -> Int:
    """How many new edges wait for a pending leaf."""
    return np.int64(ends[pending]) - (np.int64(ends[pending - 1]) if pending > 0 else np.int64(0))


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def squeezed(bound: float) -> float:
    """How dense a window may be, for a time, whose upper bound this is."""
    return (1.0 + bound) / 2.0


@uncounted_inner
def _climb(
    slots: Slots,
    lower: Bounds,
    upper: Bounds,
    pending: Pending,
    n_pending: Int,
    first: Int,
    windows: Windows,
    n_windows: Int,
    taken: Int,
    leaves_max: Int,
    squeeze: bool,
) -> tuple[Int, Int, Int, Int, Int, Int, Int]:
    """The smallest window within its bounds around pending leaf ``first``'s place, or the smallest one beside
    the stretch, which takes leaves from it, or gives it some. From ``taken`` on, the stretch is free. It takes in
    those of n windows that it meets.

    Too dense windows of more than ``leaves_max`` leaves: unless they may ``squeeze``, the widest one below is
    returned, with its edges as a negative number.

    Returns (begin, end, new_begin, new_end, edges, pending_begin, pending_end).
    """
    counts, leaves, ends = slots.counts, pending.leaf, pending.end
    n_leaves = np.int64(counts.size)
    leaf = np.int64(leaves[first])
    part_begin, part_end = np.int64(0), np.int64(slots.stretch_begin)
    if leaf >= slots.stretch_end:
        part_begin, part_end = np.int64(slots.stretch_end), n_leaves
    begin, end = leaf, leaf
    # Over the stretch, where the part has not the room.
    reach_begin, reach_end = leaf, leaf
    p_begin, p_end = np.int64(first), np.int64(first)
    edges = np.int64(0)
    height: Int = np.int64(0)
    refuse = False
    while True:
        wider_begin = min(max((leaf >> height) << height, part_begin), begin, reach_begin)
        wider_end = max(min(((leaf >> height) + 1) << height, part_end), end, reach_end)
        # As far from the stretch as half a window is wide, it reaches up to the stretch.
        if part_end == slots.stretch_begin and part_end - wider_end < (np.int64(1) << height) >> 1:
            wider_end = part_end
        if part_begin == slots.stretch_end and wider_begin - part_begin < (np.int64(1) << height) >> 1:
            wider_begin = part_begin
        # At the end of a part it is as wide as others are, though not aligned, and takes in those that it meets.
        wider_begin = max(min(wider_begin, wider_end - (np.int64(1) << height)), part_begin)
        w = n_windows - 1
        while w >= 0 and windows.begin[w] >= wider_begin:
            w -= 1
        if w >= 0 and windows.end[w] > wider_begin:
            wider_begin = windows.begin[w]
        while wider_end - wider_begin >= np.int64(2) << height:
            height += 1
        if refuse and wider_end - wider_begin > leaves_max:
            return begin, end, begin, end, -edges, p_begin, p_end
        for y in range(wider_begin, begin):
            edges += np.int64(counts[np.uintp(y)])
        for y in range(end, wider_end):
            edges += np.int64(counts[np.uintp(y)])
        while p_begin > 0 and np.int64(leaves[p_begin - 1]) >= wider_begin:
            p_begin -= 1
            edges += waiting(ends, p_begin)
        while p_end < n_pending and np.int64(leaves[p_end]) < wider_end:
            edges += waiting(ends, p_end)
            p_end += 1
        begin, end = wider_begin, wider_end
        n_slots = np.float64((end - begin) * LEAF_SLOTS)
        most = float(upper[height])
        if squeeze and end - begin <= leaves_max:
            most = squeezed(most)
        whole = begin == 0 and end == n_leaves
        if (height > 0 and lower[height] * n_slots <= edges <= most * n_slots) or whole:
            return begin, end, begin, end, edges, p_begin, p_end
        refuse = bool(not squeeze and edges > most * n_slots)
        free = np.int64(slots.stretch_end) - taken
        if free > 0 and edges >= LEAF_LEAST and (height > 0 or (begin == part_begin and end == part_end)):
            needed = np.int64(np.ceil(edges / SHARE_FULL))
            if end == slots.stretch_begin and needed <= end - begin + (free >> 1):
                return begin, end, begin, begin + needed, edges, p_begin, p_end
            if begin == slots.stretch_end and needed <= end - begin + free:
                return begin, end, end - needed, end, edges, p_begin, p_end
        if begin > part_begin or end < part_end:
            height += 1
        elif part_begin == 0:
            reach_end, part_end = np.int64(slots.stretch_end), n_leaves
        else:
            reach_begin, part_begin = np.int64(slots.stretch_begin) - 1, np.int64(0)


@uncounted_inner
def plan_windows(
    slots: Slots, lower: Bounds, upper: Bounds, pending: Pending, n_pending: Int, windows: Windows, leaves_max: Int
) -> tuple[Int, Int, Int, float]:
    """Fill ``windows`` (room for n_pending); returns (how many there are; of the densest place where one of more
    than ``leaves_max`` leaves was called for: the first and the last leaf, or -1, and the density).

    The root must be within its bounds.
    """
    n_windows = np.int64(0)
    crowded_end = np.int64(0)
    crowd_first, crowd_last, crowd_density = np.int64(-1), np.int64(-1), 0.0
    covered = np.int64(0)
    taken = np.int64(slots.stretch_begin)
    for first in range(n_pending):
        if np.int64(pending.leaf[first]) < covered:
            continue
        squeeze = bool(np.int64(pending.leaf[first]) < crowded_end)
        begin, end, new_begin, new_end, edges, p_begin, p_end = _climb(
            slots, lower, upper, pending, n_pending, first, windows, n_windows, taken, leaves_max, squeeze
        )
        if edges < 0:
            crowded_end = end
            if -edges > crowd_density * ((end - begin) * LEAF_SLOTS):
                crowd_density = -edges / ((end - begin) * LEAF_SLOTS)
                crowd_first, crowd_last = begin, end - 1
            squeeze = bool(edges < 0)  # true, but no literal, for which _climb would be compiled once more
            begin, end, new_begin, new_end, edges, p_begin, p_end = _climb(
                slots, lower, upper, pending, n_pending, first, windows, n_windows, taken, leaves_max, squeeze
            )
        while n_windows > 0 and windows.begin[n_windows - 1] >= begin:
            n_windows -= 1
        windows.begin[n_windows] = begin
        windows.end[n_windows] = end
        windows.new_begin[n_windows] = new_begin
        windows.new_end[n_windows] = new_end
        windows.edges[n_windows] = edges
        windows.pending_begin[n_windows] = p_begin
        windows.pending_end[n_windows] = p_end
        windows.squeezed[n_windows] = np.int64(squeeze)
        n_windows += 1
        covered = end
        if begin < slots.stretch_begin:
            taken = max(taken, new_end)
    return n_windows, crowd_first, crowd_last, crowd_density


@uncounted_inner
def outcome(slots: Slots, windows: Windows, n: Int) -> tuple[Int, Int, Int]:
    """(edges of n windows, the stretch after them)."""
    edges = np.int64(0)
    stretch_begin, stretch_end = np.int64(slots.stretch_begin), np.int64(slots.stretch_end)
    for x in range(n):
        edges += windows.edges[x]
        if windows.begin[x] < slots.stretch_begin:
            if windows.end[x] > slots.stretch_begin:
                stretch_begin = stretch_end
            elif windows.end[x] == slots.stretch_begin:
                stretch_begin = windows.new_end[x]
        elif windows.begin[x] == slots.stretch_end:
            stretch_end = windows.new_begin[x]
    return edges, stretch_begin, stretch_end
