"""Which windows a batch must redistribute: for each leaf out of its bounds the smallest ancestor within its own.

GPMA+ (Sha, Li, He, Tan: Accelerating Dynamic Graph Analytics on GPUs, VLDB 2017, section 5) climbs level by
level over all leaves at once; here each leaf climbs by itself, summing counts as its window widens, and leaves
inside a window that was found already are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from .arrays import Groups, Int
from .layout import LEAF_SLOTS

Counts = npt.NDArray[np.int32]
Bounds = npt.NDArray[np.float64]


class Windows(NamedTuple):
    """Disjoint windows from left to right, int64 each: leaves ``begin`` to ``end``, which will hold ``edges``,
    and the groups ``group_begin`` to ``group_end`` of the updates that fall into them."""

    begin: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    edges: npt.NDArray[np.int64]
    group_begin: npt.NDArray[np.int64]
    group_end: npt.NDArray[np.int64]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _climb(
    counts: Counts,
    lower: Bounds,
    upper: Bounds,
    groups: Groups,
    n_groups: Int,
    group: Int,
) -> tuple[Int, Int, Int, Int, Int]:
    """The smallest window around a group's leaf whose density after the batch is within its bounds."""
    n_leaves: Int = np.int64(counts.size)
    leaf: Int = groups.leaf[group]
    begin, end = leaf, leaf + 1
    group_begin, group_end = np.int64(group), np.int64(group + 1)
    edges = np.int64(counts[leaf]) + groups.delta[group]
    height = 0
    while begin > 0 or end < n_leaves:
        height += 1
        wider_begin = (leaf >> height) << height
        wider_end = min(wider_begin + (np.int64(1) << height), n_leaves)
        for y in range(wider_begin, begin):
            edges += np.int64(counts[y])
        for y in range(end, wider_end):
            edges += np.int64(counts[y])
        while group_begin > 0 and groups.leaf[group_begin - 1] >= wider_begin:
            group_begin -= 1
            edges += groups.delta[group_begin]
        while group_end < n_groups and groups.leaf[group_end] < wider_end:
            edges += groups.delta[group_end]
            group_end += 1
        begin, end = wider_begin, wider_end
        n_slots = np.float64((end - begin) * LEAF_SLOTS)
        if lower[height] * n_slots <= edges <= upper[height] * n_slots:
            break
    return begin, end, edges, group_begin, group_end


@nb.njit(cache=True, nogil=True, error_model="numpy")
def plan_windows(
    counts: Counts,
    lower: Bounds,
    upper: Bounds,
    groups: Groups,
    n_groups: Int,
    windows: Windows,
) -> Int:
    """Fill ``windows`` (room for n_groups); returns how many there are. The root must be within its bounds."""
    leaf_min = np.int64(np.ceil(lower[0] * LEAF_SLOTS))
    n_windows = np.int64(0)
    covered = np.int64(0)
    for group in range(n_groups):
        leaf = groups.leaf[group]
        if leaf < covered:
            continue
        delta = groups.delta[group]
        after = np.int64(counts[leaf]) + delta
        if after <= LEAF_SLOTS and (after >= leaf_min or delta >= 0):
            continue
        begin, end, edges, group_begin, group_end = _climb(counts, lower, upper, groups, n_groups, group)
        while n_windows > 0 and windows.begin[n_windows - 1] >= begin:
            n_windows -= 1
        windows.begin[n_windows] = begin
        windows.end[n_windows] = end
        windows.edges[n_windows] = edges
        windows.group_begin[n_windows] = group_begin
        windows.group_end[n_windows] = group_end
        n_windows += 1
        covered = end
    return n_windows
