"""What must be true of a packed array between two batches, looked at from outside: slow, and without kernels.

Each function lists, in words, what is violated.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..edges import Keys, sources
from ..layout import LEAF_LEAST, LEAF_SHIFT, LEAF_SLOTS, TOP_LEAVES, TOP_SHIFT
from .contents import Contents
from .windows import squeezed as squeezed_bound


def wrong_sizes(contents: Contents) -> list[str]:
    """Sizes and counts; where these are wrong there is no sense in looking further."""
    n_leaves, counts = contents.layout.n_leaves, contents.slots.counts
    if counts.size != n_leaves or contents.slots.keys.size != contents.layout.n_slots:
        return ["the arrays do not have the size that the layout says"]
    if counts.min() < 0 or counts.max() > LEAF_SLOTS or int(counts.sum(dtype=np.int64)) != contents.n_edges:
        return [f"leaf counts are impossible, or do not add up to {contents.n_edges} edges"]
    return []


def wrong_keys(contents: Contents, keys: Keys) -> list[str]:
    """The order of all keys, and how many there are for the size of the array."""
    problems = []
    if not (keys[1:] > keys[:-1]).all():
        problems.append("keys are not in strictly ascending order")
    if not contents.layout.edges_min <= contents.n_edges <= contents.layout.edges_max:
        problems.append(f"{contents.n_edges} edges are out of bounds for {contents.layout.n_leaves} leaves")
    return problems


def wrong_leaves(contents: Contents) -> list[str]:
    """Counts and heads of the leaves outside the stretch."""
    slots = contents.slots
    in_use = np.ones(contents.layout.n_leaves, np.bool_)
    in_use[slots.stretch_begin : slots.stretch_end] = False
    leaf = np.flatnonzero(in_use)
    counts, heads = slots.counts[leaf], slots.heads[leaf]
    first = leaf << LEAF_SHIFT
    if leaf.size > 1 and counts.min() < LEAF_LEAST:
        return [f"leaf {leaf[counts.argmin()]} holds {counts.min()} keys, too few"]
    problems = []
    if heads[0] != 0:
        problems.append("the first head is not 0")
    if (heads[counts > 0] > slots.keys[first[counts > 0]]).any():
        problems.append("a head is above its leaf's first key")
    same_top = np.flatnonzero(leaf % TOP_LEAVES == 0)
    if (slots.tops[leaf[same_top] >> TOP_SHIFT] != heads[same_top]).any():
        problems.append("a top is not the head of its leaf")
    if (heads[1:] <= slots.keys[first[:-1] + counts[:-1] - 1]).any():
        problems.append("a head is not above all keys before it")
    return problems


def wrong_windows(contents: Contents, windows: Iterable[tuple[int, int, int]]) -> list[str]:
    """Windows (begin, end, squeezed) that were redistributed: spread evenly, within the bounds of their height."""
    layout = contents.layout
    for begin, end, squeezed in windows:
        counts = contents.slots.counts[begin:end]
        if counts.max() - counts.min() > 1:
            return [f"leaves {begin} to {end} were redistributed, but not evenly"]
        height = (end - begin).bit_length() - 1  # beside a stretch they may be wider by half, or cut short
        least, most = layout.lower[height], layout.upper[height]
        if squeezed:
            most = squeezed_bound(most)
        density = counts.sum(dtype=np.int64) / ((end - begin) * LEAF_SLOTS)
        if end - begin < layout.n_leaves and not least <= density <= most:
            return [f"leaves {begin} to {end} were redistributed and out of bounds for height {height}"]
    return []


def wrong_stretch(contents: Contents, edges_left: int) -> list[str]:
    """The empty leaves of a migration, and how many edges are said to be left of them."""
    slots = contents.slots
    if slots.stretch_begin >= slots.stretch_end:
        at_end = slots.stretch_begin == slots.stretch_end == contents.layout.n_leaves
        return [] if at_end else ["there is a stretch, but nothing migrates"]
    problems = []
    if slots.counts[slots.stretch_begin : slots.stretch_end].any():
        problems.append("the stretch is not empty")
    left = int(slots.counts[: slots.stretch_begin].sum(dtype=np.int64))
    if left != edges_left:
        problems.append(f"{left} edges are left of the stretch, not {edges_left}")
    return problems


def wrong_rows(contents: Contents, keys: Keys) -> list[str]:
    """Degrees, and the leaf in which each row begins."""
    src = sources(keys)
    degrees = np.bincount(src, minlength=contents.n_vertices)
    if degrees.size > contents.n_vertices or not np.array_equal(degrees, contents.rows.degrees[: degrees.size]):
        return ["degrees are not the lengths of the rows"]
    row, first = np.unique(src, return_index=True)
    leaf = np.searchsorted(np.cumsum(contents.slots.counts, dtype=np.int64), first, side="right")
    wrong = np.flatnonzero(contents.rows.leaf[row] != leaf)
    return [f"row {row[wrong[0]]} does not begin in the leaf that its index says"] if wrong.size else []
