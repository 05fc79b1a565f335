"""Where new edges come, and where leaves are so crowded that the next ones will call for wide windows.

A **crowd** is noticed before it overflows, so that a stretch of empty leaves has the time to come and pass through
it (``hot_spot.py``). With each batch a few blocks of leaves are looked at, around leaves that overflowed: where a
leaf overflows its neighbours are likely to be full, and where many do most edges come.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from ..edges import Int
from ..intrinsics import uncounted_inner
from ..layout import LEAF_SLOTS
from .arrays import Pending, Slots
from .hot_spot import CROWDED, HOT_SHARE
from .stretch import PASSED
from .windows import Bounds, Windows, plan_windows, waiting

# Blocks that are looked at with each batch.
SAMPLES = 8
# A crowd goes on in pieces of so many leaves.
PIECE_LEAVES = 64


class Crowd(NamedTuple):
    """Leaves ``first`` to ``last``, and the density of the densest place among them; ``first`` < 0: no leaves."""

    first: Int
    last: Int
    density: float


class Signs(NamedTuple):
    """What a batch shows before its windows are redistributed, by keys, since leaves will move.

    ``hot``: new edges come between the leaves that begin with ``hot_low`` and ``hot_high``. ``crowded``: those
    that begin with ``crowd_low`` to ``crowd_high`` are a crowd of this density. So many new edges wait ``beside``
    the stretch, in windows that take leaves from it.
    """

    hot: bool
    hot_low: Int
    hot_high: Int
    crowded: bool
    crowd_low: Int
    crowd_high: Int
    density: float
    beside: Int


@uncounted_inner
def no_signs() -> Signs:
    none: Int = np.uint64(0)
    return Signs(False, none, none, False, none, none, 0.0, np.int64(0))


@uncounted_inner
def plan(
    slots: Slots,
    lower: Bounds,
    upper: Bounds,
    pending: Pending,
    n_pending: Int,
    windows: Windows,
    n_updates: Int,
    hot_for: Int,
    crowded_leaves: Int,
) -> tuple[Int, Signs]:
    """Find the windows of a batch of so many updates (``plan_windows``); returns how many, and what they show.

    ``hot_for``: for how many updates a hot spot is remembered, -1 where there is none; ``crowded_leaves``: see
    ``hot_spot.CROWDED_LEAVES``.
    """
    heads = slots.heads
    leaves_max = max(np.int64(crowded_leaves), n_updates)
    n, first, last, density = plan_windows(slots, lower, upper, pending, n_pending, windows, leaves_max)
    called = Crowd(first, last, density)
    is_hot = bool(n_updates <= hot_for)
    waiting_max = n_updates // HOT_SHARE if is_hot else n_updates
    first, last, beside = hot_leaves(pending, windows, n, crowded_leaves, waiting_max)
    low: Int = np.uint64(0)
    high: Int = np.uint64(0)
    crowd_low: Int = np.uint64(0)
    crowd_high: Int = np.uint64(0)
    if first >= 0:
        low, high = heads[first], heads[last]
    crowd = called
    if is_hot or first >= 0:
        block = densest_block(slots, pending, n_pending, crowded_leaves)
        if block.density > max(CROWDED, called.density):
            crowd = block
    if crowd.first >= 0:
        crowd = whole_crowd(slots, crowd, PASSED)
        crowd_low, crowd_high = heads[crowd.first], heads[crowd.last]
    signs = Signs(first >= 0, low, high, crowd.first >= 0, crowd_low, crowd_high, crowd.density, beside)
    return n, signs


@uncounted_inner
def hot_leaves(
    pending: Pending, windows: Windows, n: Int, leaves_max: Int, waiting_max: Int
) -> tuple[Int, Int, Int]:
    """Where new edges come: (the first and the last leaf that overflowed in one window, or -1; how many new edges
    wait in windows that take leaves from the stretch).

    The window is the widest one of more than ``leaves_max`` leaves; or the one in which most new edges wait, if
    they are more than ``waiting_max``.
    """
    first, last = np.int64(-1), np.int64(-1)
    widest, longest = np.int64(leaves_max), np.int64(waiting_max)
    beside = np.int64(0)
    for x in range(n):
        width = windows.end[x] - windows.begin[x]
        p_begin, p_end = windows.pending_begin[x], windows.pending_end[x]
        edges = np.int64(0)
        for p in range(p_begin, p_end):
            edges += waiting(pending.end, p)
        if windows.new_end[x] - windows.new_begin[x] > width:
            beside += edges
        wide = width > widest and 2 * windows.edges[x] > width * LEAF_SLOTS
        if wide or (widest == leaves_max and edges > longest):
            first, last = np.int64(pending.leaf[p_begin]), np.int64(pending.leaf[p_end - 1])
            longest = max(longest, edges)
            widest = width if wide else widest
    return first, last, beside


@uncounted_inner
def densest_block(slots: Slots, pending: Pending, n_pending: Int, leaves: Int) -> Crowd:
    """The densest of some blocks of up to so many leaves around pending ones."""
    counts = slots.counts
    samples = min(np.int64(SAMPLES), np.int64(n_pending))
    densest = Crowd(np.int64(-1), np.int64(-1), 0.0)
    for sample in range(samples):
        leaf = np.int64(pending.leaf[sample * n_pending // samples])
        part_begin, part_end = np.int64(0), np.int64(slots.stretch_begin)
        if leaf >= slots.stretch_end:
            part_begin, part_end = np.int64(slots.stretch_end), np.int64(counts.size)
        begin = max(leaf - leaves // 2, part_begin)
        end = min(leaf + leaves // 2, part_end)
        # What is near the stretch has all the room that it needs.
        if 2 * (end - begin) < leaves:
            continue
        density = _edges(slots, begin, end) / ((end - begin) * LEAF_SLOTS)
        if density > densest.density:
            densest = Crowd(begin, end - 1, density)
    return densest


@uncounted_inner
def whole_crowd(slots: Slots, crowd: Crowd, least: Int) -> Crowd:
    """The crowd, and what is around it as far as leaves hold at least so many keys in the mean."""
    begin, end = np.int64(crowd.first), np.int64(crowd.last) + 1
    part_begin, part_end = np.int64(0), np.int64(slots.stretch_begin)
    if begin >= slots.stretch_end:
        part_begin, part_end = np.int64(slots.stretch_end), np.int64(slots.counts.size)
    enough = least * PIECE_LEAVES
    while begin - PIECE_LEAVES >= part_begin and _edges(slots, begin - PIECE_LEAVES, begin) >= enough:
        begin -= PIECE_LEAVES
    while end + PIECE_LEAVES <= part_end and _edges(slots, end, end + PIECE_LEAVES) >= enough:
        end += PIECE_LEAVES
    return Crowd(begin, end - 1, crowd.density)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _edges(slots: Slots, begin: Int, end: Int) -> Int:
    """How many are in these leaves."""
    counts = slots.counts
    edges = np.int64(0)
    for leaf in range(begin, end):
        edges += np.int64(counts[np.uintp(leaf)])
    return edges
