"""The geometry of a packed array: leaves, windows, density bounds, growth. Pure arithmetic.

The array is a sequence of **leaves** of ``1 << leaf_shift`` slots; live keys are packed to the left of each leaf.
A **window** of height h is an aligned run of 2^h leaves (the last one of a level may be shorter, since the
number of leaves is any number); the window that holds all leaves is the root. Density bounds tighten from
leaf to root (Bender, Demaine, Farach-Colton: Cache-oblivious B-trees, SIAM J. Comput. 2005, section 3): a leaf
may be full, the root may not, so that a redistributed window leaves room in all its parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

# Leaves of the array on the host: 32 slots. Smaller ones cost memory for heads, larger ones time per update.
LEAF_SHIFT = 5
LEAF_SLOTS = 1 << LEAF_SHIFT

# So many heads, one cache line, have a top in common.
TOP_SHIFT = 3
TOP_LEAVES = 1 << TOP_SHIFT

# Bounds tighten evenly from leaf to local window, jump, and tighten little from there to the root. The jump is
# what makes large redistributions rare: after one, a local window has that much room before the next.
LEAF_LOWER, LOCAL_LOWER, WIDE_LOWER, ROOT_LOWER = 0.125, 0.30, 0.38, 0.40
LEAF_UPPER, LOCAL_UPPER, WIDE_UPPER, ROOT_UPPER = 1.0, 0.93, 0.86, 0.85
# A leaf of fewer keys, on the host, is redistributed.
LEAF_LEAST = int(LEAF_LOWER * LEAF_SLOTS)
# A window is local when it is this many levels below the root: less than a hundredth of the array.
LOCAL_DEPTH = 7

# Density after a load, a shrink, or the growth for a batch that more than fills the array; and in keys of a leaf.
FILL = 0.71
SHARE_FULL = FILL * LEAF_SLOTS
# A slowly filling array grows by a fifth once it is denser than GROW_AT: its edges then need the old slots no
# longer, and move into their new places while 6% more edges arrive, which ROOT_UPPER leaves room for. The density
# falls from GROW_AT to about 0.71, and each edge moves once per 17% of new edges.
GROW_AT = 0.80
GROWTH = 1.2
# A hot spot lets an array grow as soon as it is so dense.
GROW_EARLY_AT = 0.62
# An array from which so much was deleted begins to shrink, and its edges move together while 5% more go: before
# ROOT_LOWER. Where edges come again meanwhile, and it is denser than REGROW_AT, they spread out again instead.
SHRINK_AT = 0.45
REGROW_AT = 0.50
LEAVES_MAX = 2**32 - 1

Densities = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """An array of ``n_leaves`` leaves of ``1 << leaf_shift`` slots each."""

    n_leaves: int
    leaf_shift: int = LEAF_SHIFT

    @property
    def leaf_slots(self) -> int:
        return 1 << self.leaf_shift

    @property
    def n_slots(self) -> int:
        return self.n_leaves << self.leaf_shift

    @property
    def height(self) -> int:
        """The height of the root window."""
        return (self.n_leaves - 1).bit_length()

    @cached_property
    def lower(self) -> Densities:
        """float64[height + 1]: the least density that a redistributed window of each height may have."""
        return self._bounds(LEAF_LOWER, LOCAL_LOWER, WIDE_LOWER, ROOT_LOWER)

    @cached_property
    def upper(self) -> Densities:
        """float64[height + 1]: the greatest density that a redistributed window of each height may have."""
        return self._bounds(LEAF_UPPER, LOCAL_UPPER, WIDE_UPPER, ROOT_UPPER)

    def _bounds(self, leaf: float, local: float, wide: float, root: float) -> Densities:
        n_local = self.height - LOCAL_DEPTH + 1
        if n_local < 2:
            return np.linspace(leaf, root, self.height + 1)
        return np.concatenate([np.linspace(leaf, local, n_local), np.linspace(wide, root, LOCAL_DEPTH)])

    @cached_property
    def edges_max(self) -> int:
        """With more edges than this the array must grow."""
        return int(ROOT_UPPER * self.n_slots)

    @cached_property
    def edges_many(self) -> int:
        """With more edges than this the array should begin to grow."""
        return int(GROW_AT * self.n_slots)

    @cached_property
    def edges_crowded(self) -> int:
        """With more edges than this the array may grow because many of them are in one place."""
        return int(GROW_EARLY_AT * self.n_slots)

    @cached_property
    def edges_few(self) -> int:
        """With fewer edges than this, after a deletion, the array should begin to shrink."""
        return int(SHRINK_AT * self.n_slots)

    @cached_property
    def edges_enough(self) -> int:
        """With more edges than this the array should not go on shrinking."""
        return int(REGROW_AT * self.n_slots)

    @cached_property
    def edges_min(self) -> int:
        """With fewer edges than this the array must shrink; a single leaf never does."""
        # The second term matters for two leaves only, which one leaf cannot always replace.
        fewer_leaves_hold = math.floor(FILL * self.leaf_slots * (self.n_leaves - 1))
        return min(math.ceil(ROOT_LOWER * self.n_slots), fewer_leaves_hold + 1) if self.n_leaves > 1 else 0

    @classmethod
    def holding(cls, n_edges: int, leaf_shift: int = LEAF_SHIFT) -> Layout:
        """The layout of a freshly loaded array.

        Raises:
            MemoryError: there are more leaves than a row index can name.
        """
        return cls._checked(max(1, math.ceil(n_edges / (FILL * (1 << leaf_shift)))), leaf_shift)

    def grown(self) -> Layout:
        """The next larger layout.

        Raises:
            MemoryError: as in ``holding``.
        """
        return self._checked(math.ceil(self.n_leaves * GROWTH), self.leaf_shift)

    def cut(self, used: int, n_edges: int) -> Layout:
        """This layout without leaves behind those that are used, as far as these edges may do without them."""
        return Layout(max(used, math.ceil(n_edges / (GROW_AT * self.leaf_slots)), 1), self.leaf_shift)

    def resized(self, n_edges: int) -> Layout:
        """The layout that a batch which leaves this many edges needs: itself, a larger or a smaller one.

        Raises:
            MemoryError: as in ``holding``.
        """
        if n_edges > self.edges_max:
            return max(self.grown(), self.holding(n_edges, self.leaf_shift), key=lambda layout: layout.n_leaves)
        if n_edges < self.edges_min:
            return self.holding(n_edges, self.leaf_shift)
        return self

    @classmethod
    def _checked(cls, n_leaves: int, leaf_shift: int = LEAF_SHIFT) -> Layout:
        if n_leaves > LEAVES_MAX:
            raise MemoryError(f"a packed array has at most {LEAVES_MAX} leaves, not {n_leaves}")
        return cls(n_leaves, leaf_shift)
