"""The geometry of the device array: the host's (``gpma/layout.py``) with leaves of 64 slots.

Larger leaves suit a device: a half-warp merges one in registers, and the row index and the heads shrink.
"""

from __future__ import annotations

import math

from ..layout import FILL, GROWTH, LEAF_LOWER, ROOT_LOWER, ROOT_UPPER, Layout

LEAF_SHIFT = 6
LEAF_SLOTS = 1 << LEAF_SHIFT
# Every leaf holds at least so many keys, unless there is one leaf only or hardly an edge.
LEAF_LEAST = int(LEAF_LOWER * LEAF_SLOTS)


class DeviceLayout(Layout):
    """An array of ``n_leaves`` leaves of 64 slots; the density bounds are the host's."""

    @property
    def n_slots(self) -> int:
        return self.n_leaves << LEAF_SHIFT

    @property
    def edges_max(self) -> int:
        """With more edges than this the array must grow."""
        return int(ROOT_UPPER * self.n_slots)

    @property
    def edges_min(self) -> int:
        """With fewer edges than this the array must shrink; a single leaf never does."""
        if self.n_leaves == 1:
            return 0
        fewer_leaves_hold = math.floor(FILL * LEAF_SLOTS * (self.n_leaves - 1))
        return min(math.ceil(ROOT_LOWER * self.n_slots), fewer_leaves_hold + 1)

    @classmethod
    def holding(cls, n_edges: int) -> DeviceLayout:
        """The layout of a freshly loaded array.

        Raises:
            MemoryError: there are more leaves than a row index can name.
        """
        layout = cls._checked(max(1, math.ceil(n_edges / (FILL * LEAF_SLOTS))))
        assert isinstance(layout, DeviceLayout)
        return layout

    def resized(self, n_edges: int) -> DeviceLayout:
        """The layout after a batch that leaves this many edges: itself, a larger or a smaller one."""
        if n_edges > self.edges_max:
            n_leaves = max(math.ceil(self.n_leaves * GROWTH), DeviceLayout.holding(n_edges).n_leaves)
            layout = self._checked(n_leaves)
            assert isinstance(layout, DeviceLayout)
            return layout
        return DeviceLayout.holding(n_edges) if n_edges < self.edges_min else self
