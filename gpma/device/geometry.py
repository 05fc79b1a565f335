"""The geometry of the device array: the host's (``gpma/layout.py``) with leaves of 64 slots.

Larger leaves suit a device: half a warp merges one in shared memory, and the row index and the heads shrink.
"""

from __future__ import annotations

from ..layout import LEAF_LOWER, Layout

LEAF_SHIFT = 6
LEAF_SLOTS = 1 << LEAF_SHIFT
# Every leaf holds at least so many keys, unless there is one leaf only or hardly an edge.
LEAF_LEAST = int(LEAF_LOWER * LEAF_SLOTS)


def holding(n_edges: int) -> Layout:
    """The layout of a freshly loaded device array.

    Raises:
        MemoryError: there are more leaves than a row index can name.
    """
    return Layout.holding(n_edges, LEAF_SHIFT)
