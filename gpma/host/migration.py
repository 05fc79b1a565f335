"""How an array comes to have other leaves: by and by, a few edges with each batch.

While an array **migrates**, a stretch of empty leaves (``stretch.py``) lies between two parts. The part on one
side has its final density, the one on the other is as dense as before, and edges move from the latter to the
former. Each part keeps its own density bounds (``windows.py``).

**Growth** adds empty leaves behind the last one, which costs nothing: they are the stretch. It moves left, and
narrows until it is used up. **Shrinking** makes a small stretch of the first sparse leaves. It moves right, and
widens until it reaches the end of the array; then it is cut off.

Where all updates fall on one **hot spot** (``hot_spot.py``), spreading evenly would give it but little room, again
and again. Then the stretch is carried there, past leaves that stay as full as they are, and waits: windows beside
it take the leaves that they need. Through a hot region it passes where that is crowded, and gives room to its
leaves. When that is over it is carried back.
"""

from __future__ import annotations

import math

import numpy as np

from ..layout import FILL, LEAF_LEAST, LEAF_SHIFT, SHARE_FULL
from ..team import Crew
from . import merge, stretch
from .contents import Contents
from .crowds import Signs
from .hot_spot import HOT_SHARE, HotSpot
from .slot_memory import Pages
from .work import new_work

# While a grown array moves into its new leaves, what has not moved yet fills up, to FULL_AT at the most: of its
# edges as large a share goes with each batch as that took of its room. So a batch has the fewest edges to move
# that it can have, whatever the stream deletes and inserts. At least so many go for each update, so that it ends
# where hardly any edges come; and never more than so many: then it is done after updates of 5% of the edges.
MIGRATED_LEAST, MIGRATED_PER_UPDATE = 4, 20
FULL_AT = 0.845
# An array grows again for a hot spot when so few of its leaves are left in the stretch: one in so many.
RESERVE_SHARE = 50
# A batch moves more edges than MIGRATED_PER_UPDATE up to so many, which take a millisecond.
CARRIED_EDGES = 600_000
# A stretch of so few leaves that was carried is not worth it any more.
STRETCH_LEAVES_MIN = 1 << 6
# Edges do not move before so many updates have come, or one for so many edges: a move takes its time, however few.
UPDATES_AT_ONCE, UPDATES_SHARE = 256, 1 << 12
# A migration waits for its pages until one edge for so many edges has come; then it goes on without.
PATIENCE = 80
# A batch that makes the array grow, and has one update to so few edges or more, lets all of them move with it:
# else what has not moved would be crowded by the next such batch, and look like a hot spot.
LARGE_SHARE = 8
# From so many edges that move, several threads are faster than one.
DIVIDED_MOVES_MIN = 100_000

_NOTHING_PENDING = new_work(0, weighted=False).pending


class Migration:
    """The migration of one array's edges: whether one begins, where the stretch goes, and how far with each batch.

    ``shrinks``: it is to make the array smaller. ``edges_left``: the edges left of the stretch. ``carried``: the
    stretch was carried to a hot spot. All three mean something only while there is a stretch. ``pages``: those of
    the leaves that come or go.
    """

    def __init__(self, contents: Contents, crew: Crew) -> None:
        """``crew``: whose threads share large moves."""
        self._contents = contents
        self._crew = crew
        self.pages = Pages()
        self.hot_spot = HotSpot()
        self.shrinks = False
        self.edges_left = 0
        self.carried = False
        # Up to how many edges it waits for pages.
        self._patient_until = 0
        # Updates for which no edges have moved yet, and the edges that they brought left of the stretch.
        self._owed = self._owed_left = 0

    def forget(self) -> None:
        """The array is about to be filled anew: no pages come or go, and nothing is known of hot spots."""
        self.pages.stop()
        self.hot_spot = HotSpot()
        self._owed = self._owed_left = 0

    def counted(self, n_updates: int, n_more_left: int) -> None:
        """So many updates were written, which brought so many more edges left of the stretch."""
        self.edges_left += n_more_left
        self._owed_left += n_more_left
        self.hot_spot.count(n_updates)

    def watch(self, signs: Signs, n_updates: int) -> bool:
        """Note where the new edges of a batch of so many updates crowd.

        True: many of these edges take leaves of the stretch.
        """
        spot, n_edges = self.hot_spot, self._contents.n_edges
        if signs.hot:
            spot.see(np.uint64(signs.hot_low), np.uint64(signs.hot_high), n_edges)
        if signs.crowded:
            spot.crowd(np.uint64(signs.crowd_low), np.uint64(signs.crowd_high), signs.density, n_edges)
        return bool(signs.beside * HOT_SHARE > n_updates)

    def should_grow(self, n_edges: int) -> bool:
        """With this many edges after the batch: there are many, or another such batch would be too much; or they
        crowd in one place, and no stretch is left, or almost none."""
        now = self._contents
        layout, slots = now.layout, now.slots
        if now.migrating:
            lengthens = not self.shrinks and slots.stretch_end == layout.n_leaves
            if not lengthens or slots.stretch_end - slots.stretch_begin > layout.n_leaves // RESERVE_SHARE:
                return False
        if self.hot_spot.there and n_edges > layout.edges_crowded:
            return True
        if now.migrating:
            return False
        soon = 2 * n_edges - now.n_edges > layout.edges_max and n_edges > FILL * layout.n_slots
        return n_edges > layout.edges_many or soon

    def grow(self, before: int, n_updates: int) -> int:
        """Open a stretch behind the last one of so many leaves, or lengthen the one that is there, after a batch
        of so many updates; returns the slots written, none unless the batch is large."""
        now = self._contents
        after = now.layout.n_leaves
        self.shrinks = False
        self.carried = False
        self._owed = self._owed_left = 0
        self.edges_left = now.n_edges
        self._patient_until = now.n_edges + now.n_edges // PATIENCE
        now.memory.prefer_large_pages(after)
        self.pages.get(now.memory, before, after)
        now.view_leaves(after, min(before, now.slots.stretch_begin), after)
        if n_updates * LARGE_SHARE < now.n_edges:
            return 0
        self.hot_spot = HotSpot()
        self._patient_until = 0
        return self._move(now.n_edges)

    def go_on(self, n_updates: int, *, fewer: bool, in_use: bool) -> int:
        """Let some edges move after a batch of so many updates; begin to shrink if it is time; returns the slots
        written.

        ``fewer``: the batch left fewer edges than there were. ``in_use``: it used the stretch, which is not taken
        away then, unless a crowd needs it more.
        """
        now = self._contents
        if now.migrating:
            stays = in_use and not self.shrinks and not self.hot_spot.urgent
            return 0 if stays else self._move_for(n_updates)
        if fewer and now.n_edges < now.layout.edges_few and now.memory.reservation is not None:
            return self._begin_to_shrink() + self._move(n_updates)
        return 0

    def _move_for(self, n_updates: int) -> int:
        """Move edges for so many updates, or for these and more some time later; returns the slots written."""
        self._owed += n_updates
        soon = self._owed < min(UPDATES_AT_ONCE, self._contents.n_edges // UPDATES_SHARE)
        if soon and not self.hot_spot.urgent:
            return 0
        owed, self._owed = self._owed, 0
        moved = self._move(owed)
        self._owed_left = 0
        return moved

    def _begin_to_shrink(self) -> int:
        """Open a stretch in the first sparse leaves, if there are any; returns the slots written."""
        now = self._contents
        slots = now.slots
        begin, end, before = stretch.sparse_block(slots)
        edges = int(slots.counts[begin:end].sum(dtype=np.int64))
        stretch_begin = begin + max(1, math.ceil(edges / SHARE_FULL))
        if stretch_begin >= end:
            return 0
        self._spread(begin, end, stretch_begin)
        self.shrinks = True
        self.carried = False
        self.edges_left = before + edges
        self._owed_left = 0
        self._patient_until = 0
        now.view_leaves(slots.counts.size, stretch_begin, end)
        return edges

    def _end_shrinking(self) -> None:
        """Cut off the leaves that nothing uses any more, as far as the edges can do without them."""
        now = self._contents
        used, before = now.slots.stretch_begin, now.layout.n_leaves
        now.layout = now.layout.cut(used, now.n_edges)
        n_leaves = now.layout.n_leaves
        now.view_leaves(n_leaves, used, n_leaves)
        self.shrinks = False
        now.vacate(n_leaves, before)
        self.pages.give_back(now.memory, n_leaves, before)

    def _move(self, n_updates: int) -> int:
        """Move edges after a batch of so many updates; returns the slots written."""
        now = self._contents
        waits = not (self.shrinks or self.pages.done or now.n_edges > self._patient_until or self.hot_spot.urgent)
        if not now.migrating or waits:
            return 0
        moved = 0
        n_leaves = now.slots.counts.size
        if self.shrinks and now.n_edges > now.layout.edges_enough:
            self.shrinks = False
        way, leaves, per_update = self._way()
        edges = min(n_updates * per_update, max(CARRIED_EDGES, n_updates * MIGRATED_PER_UPDATE))
        if way == stretch.SPREAD and edges < self.edges_left:
            edges = min(edges, max(n_updates * MIGRATED_LEAST, self._due()))
        room = now.slots.stretch_end - now.slots.stretch_begin
        while now.migrating and moved < edges:
            before = now.slots.stretch_begin
            some, begin, end = self._make_moves(way, leaves, edges - moved)
            if some == 0:
                if way != stretch.SPREAD:
                    break
                # The left part is too sparse for moves. That takes many deletions, which cost as much.
                self._spread(0, n_leaves, n_leaves)
                begin = end
                moved += now.n_edges
            moved += some
            self.edges_left += some if begin > before else -some
            now.view_leaves(n_leaves, begin, end)
            if way in stretch.PAST_LEAVES:
                break
        if way in stretch.PAST_LEAVES:
            self.carried = now.slots.stretch_end < n_leaves
            if now.slots.stretch_end - now.slots.stretch_begin < room:
                self.hot_spot.stay(now.n_edges)
            if now.slots.stretch_end - now.slots.stretch_begin < STRETCH_LEAVES_MIN:
                moved += self._close_stretch()
        if self.shrinks and now.slots.stretch_end == n_leaves:
            self._end_shrinking()
        return moved

    def _due(self) -> int:
        """Of the edges left of the stretch, as large a share as new ones have taken of the room there."""
        room = int(FULL_AT * (self._contents.slots.stretch_begin << LEAF_SHIFT)) - self.edges_left
        if room <= 0:
            return self.edges_left
        return self.edges_left * max(0, self._owed_left) // (room + max(0, self._owed_left))

    def _close_stretch(self) -> int:
        """Spread some leaves before a narrow stretch over it, if they have the keys; returns the slots written."""
        now = self._contents
        slots = now.slots
        end, width = slots.stretch_end, slots.stretch_end - slots.stretch_begin
        begin = max(0, slots.stretch_begin - 2 * width)
        edges = int(slots.counts[begin:end].sum())
        if edges < LEAF_LEAST * (end - begin):
            return 0
        self._spread(begin, slots.stretch_begin, end)
        now.view_leaves(slots.counts.size)
        return edges

    def _spread(self, begin: int, end: int, new_end: int) -> None:
        """Spread what is in leaves begin..end evenly over leaves begin..new_end."""
        now = self._contents
        merge.resize(now.slots, now.rows.leaf, _NOTHING_PENDING, 0, begin, end, new_end)

    def _way(self) -> tuple[int, int, int]:
        """Where the stretch goes; past how many leaves, where it is carried; and how many edges an update."""
        slots = self._contents.slots
        if self.shrinks:
            return stretch.GATHER, 0, MIGRATED_PER_UPDATE
        if self.hot_spot.there:
            return self.hot_spot.course(slots)
        if self.carried:
            return stretch.CARRY, slots.counts.size - slots.stretch_end, MIGRATED_PER_UPDATE
        return stretch.SPREAD, 0, MIGRATED_PER_UPDATE

    def _make_moves(self, way: int, leaves: int, edges: int) -> tuple[int, int, int]:
        """Some moves, of at most so many edges together; returns how many moved, and the stretch."""
        slots, row_leaf = self._contents.slots, self._contents.rows.leaf
        done: tuple[int, int, int] = stretch.make_moves(
            slots, row_leaf, way, leaves, self.edges_left, edges, DIVIDED_MOVES_MIN, self._crew
        )
        return done
