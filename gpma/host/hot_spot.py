"""Where new edges crowd, and how a stretch of empty leaves gets there.

A hot spot is noticed by what it costs: a window of very many leaves overflows, because the smaller ones around
one place are all full. It may be a point (ascending keys, one leaf) or a region (one long row). A stretch is
carried to a point and waits beside it; through a region it goes to and fro, since there every leaf fills up
(``migration.py``).
"""

from __future__ import annotations

from typing import Any

from . import search
from .arrays import Slots
from .stretch import CARRY, PASS

Key = Any  # np.uint64, as kernels take it

# A window of more than so many leaves that overflows is a hot spot. It stays one for updates of one edge in so
# many, and longer if it makes use of a stretch.
CROWDED_LEAVES = 1 << 11
CALM_SHARE = 16
# So many edges move for each update while a stretch is carried to a hot spot, up to so many leaves before it.
CARRIED_PER_UPDATE = 80
NEAR_LEAVES = 1 << 4
# A hot spot of so many leaves is a region, in which so many edges an update move.
REGION_LEAVES = 1 << 10
PATROLLED_PER_UPDATE = 8


class HotSpot:
    """The hot spot of one array, if it has one."""

    def __init__(self) -> None:
        self._keys: tuple[Key, Key] | None = None
        self._updates = 0
        self._crowd: tuple[Key, Key] | None = None
        self._left_done = self._right_done = False

    @property
    def there(self) -> bool:
        return self._keys is not None

    def see(self, low: Key, high: Key, n_edges: int) -> None:
        """It is from key ``low`` to key ``high`` now."""
        self._keys = low, high
        self.stay(n_edges)

    def crowd(self, low: Key, high: Key, density: float, n_edges: int) -> None:
        if self._keys is None:
            self._keys = low, high
        self.stay(n_edges)
        if self._crowd is None or (
            (low > self._crowd[1] or high < self._crowd[0]) and density > self._density + 0.01
        ):
            self._crowd = low, high
            self._density = density
            self._left_done = self._right_done = False
        elif low <= self._crowd[1] and high >= self._crowd[0]:
            self._density = max(self._density, density)
            self._left_done &= low >= self._crowd[0]
            self._right_done &= high <= self._crowd[1]
            self._crowd = min(low, self._crowd[0]), max(high, self._crowd[1])

    def stay(self, n_edges: int) -> None:
        """It is still there, if it was."""
        self._updates = max(self._updates, n_edges // CALM_SHARE)

    def count(self, n_updates: int) -> None:
        """So many updates went by."""
        self._updates -= n_updates
        if self._updates < 0:
            self._keys = self._crowd = None

    def course(self, slots: Slots) -> tuple[int, int, int]:
        """Past how many leaves a stretch must be carried (to the left, if they are fewer than none), and how many
        edges may move for each update."""
        begin, end = slots.stretch_begin, slots.stretch_end
        if self._crowd is not None:
            first, last = (int(search.find_leaf(slots, key)) for key in self._crowd)
            first = max(1, first)  # the first leaf is never part of a stretch
            self._left_done |= begin <= first
            self._right_done |= end > last
            if not (self._left_done and self._right_done):
                rightwards = self._left_done or (not self._right_done and last - end < begin - first)
                if rightwards and end < first:
                    return CARRY, first - end, CARRIED_PER_UPDATE
                if not rightwards and begin > last + 1:
                    return CARRY, last + 1 - begin, CARRIED_PER_UPDATE
                return PASS, (last + 1 - end if rightwards else first - begin), CARRIED_PER_UPDATE
            self._crowd = None
        assert self._keys is not None
        first, last = (int(search.find_leaf(slots, key)) for key in self._keys)
        first = max(1, first)
        inside = first < begin <= last
        if last - first - inside * (end - begin) > REGION_LEAVES:
            return CARRY, 0, CARRIED_PER_UPDATE
        if last < begin:
            return CARRY, min(0, last + NEAR_LEAVES - begin), CARRIED_PER_UPDATE
        return CARRY, max(0, first - NEAR_LEAVES - end), CARRIED_PER_UPDATE
