"""Where new edges crowd, and how a stretch of empty leaves gets there.

A hot spot is noticed by what it costs: a window of very many leaves is called for, because the smaller ones around
one place are all full. It may be a point (ascending keys, one leaf) or a region (one long row, the rows of the
youngest vertices). A stretch is carried to a point and waits beside it. Through a region it passes when it is
crowded (``crowds.py``), from one end to the other, and leaves room behind in all its leaves.
"""

from __future__ import annotations

from typing import Any

from . import search
from .arrays import Slots
from .stretch import CARRY, PASS

Key = Any  # np.uint64, as kernels take it

# To call for a window of more than so many leaves, or than a larger batch has updates, makes a hot spot. It stays
# one for updates of one edge in so many, and longer if it makes use of a stretch.
CROWDED_LEAVES = 1 << 11
CALM_SHARE = 16
# One new edge in so many in one window shows where a hot spot is now; or, beside a stretch, that it is of use.
HOT_SHARE = 8
# So many edges move for each update while a stretch is carried to a point, up to so many leaves before it.
CARRIED_PER_UPDATE = 80
NEAR_LEAVES = 1 << 4
# So many while it comes to a crowd, and goes through it; where that is denser than URGENT more, up to as many as
# to a point.
PASSED_PER_UPDATE = 40
URGENT, OVERFLOWING = 0.93, 0.965
# A hot spot of so many leaves is a region.
REGION_LEAVES = 1 << 10
# Once there is a hot spot, so dense a block is a crowd. The stretch turns to another that is denser by so much.
CROWDED = 0.88
MORE = 0.01

Course = tuple[int, int, int]


class HotSpot:
    """The hot spot of one array, if it has one."""

    def __init__(self) -> None:
        self._keys: tuple[Key, Key] | None = None
        self._crowd: _Passage | None = None
        self._updates = 0

    @property
    def there(self) -> bool:
        return self._keys is not None

    @property
    def lasts(self) -> int:
        """For how many updates more it is one; -1 where there is none."""
        return -1 if self._keys is None else self._updates

    @property
    def crowded(self) -> bool:
        """There is a crowd that a stretch has not passed through."""
        return self._crowd is not None

    @property
    def urgent(self) -> bool:
        """There is a crowd that is about to overflow."""
        return self._crowd is not None and self._crowd.urgent

    def see(self, low: Key, high: Key, n_edges: int) -> None:
        """It is from key ``low`` to key ``high`` now."""
        self._keys = low, high
        self.stay(n_edges)

    def crowd(self, low: Key, high: Key, density: float, n_edges: int) -> None:
        """Leaves from key ``low`` to key ``high`` are this dense: a stretch must pass through them."""
        if self._keys is None:
            self._keys = low, high
        self.stay(n_edges)
        now = self._crowd
        if now is not None and now.meets(low, high):
            now.widen(low, high, density)
        elif now is None or density > now.density + MORE:
            self._crowd = _Passage(low, high, density)

    def stay(self, n_edges: int) -> None:
        """It is still there, if it was."""
        self._updates = max(self._updates, n_edges // CALM_SHARE)

    def count(self, n_updates: int) -> None:
        """So many updates went by."""
        if self._keys is None:
            return
        self._updates -= n_updates
        if self._updates < 0:
            self._keys = self._crowd = None

    def course(self, slots: Slots) -> Course:
        """The way of the stretch; past how many leaves (to the left, if they are fewer than none); and how many
        edges may move for each update."""
        if self._crowd is not None:
            course = self._crowd.course(slots)
            if course is not None:
                return course
            self._crowd = None
        assert self._keys is not None
        first, last = _leaves(slots, *self._keys)
        if last - first > REGION_LEAVES:
            return CARRY, 0, 0
        if last < slots.stretch_begin:
            return CARRY, min(0, last + NEAR_LEAVES - slots.stretch_begin), CARRIED_PER_UPDATE
        return CARRY, max(0, first - NEAR_LEAVES - slots.stretch_end), CARRIED_PER_UPDATE


class _Passage:
    """A crowd from key ``low`` to key ``high``, and to which of its ends the stretch has come."""

    def __init__(self, low: Key, high: Key, density: float) -> None:
        self.density = density
        self._low, self._high = low, high
        self._left_done = self._right_done = False

    @property
    def urgent(self) -> bool:
        return self.density > URGENT

    def meets(self, low: Key, high: Key) -> bool:
        return bool(low <= self._high and high >= self._low)

    def widen(self, low: Key, high: Key, density: float) -> None:
        self.density = max(self.density, density)
        if low < self._low:
            self._low, self._left_done = low, False
        if high > self._high:
            self._high, self._right_done = high, False

    def course(self, slots: Slots) -> Course | None:
        """As that of the hot spot; None: the stretch was at both ends."""
        first, last = _leaves(slots, self._low, self._high)
        begin, end = slots.stretch_begin, slots.stretch_end
        self._left_done |= begin <= first
        self._right_done |= end > last
        if self._left_done and self._right_done:
            return None
        haste = min(max(0.0, (self.density - URGENT) / (OVERFLOWING - URGENT)), 1.0)
        per_update = int(PASSED_PER_UPDATE + haste * (CARRIED_PER_UPDATE - PASSED_PER_UPDATE))
        if self._left_done or (not self._right_done and last - end < begin - first):
            return (CARRY, first - end, per_update) if end < first else (PASS, last + 1 - end, per_update)
        return (CARRY, last + 1 - begin, per_update) if begin > last + 1 else (PASS, first - begin, per_update)


def _leaves(slots: Slots, low: Key, high: Key) -> tuple[int, int]:
    """The leaves of these keys, except the first one of all, which is never part of a stretch."""
    return max(1, int(search.find_leaf(slots, low))), int(search.find_leaf(slots, high))
