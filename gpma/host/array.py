"""The packed memory array on the host.

GPMA+ (Sha, Li, He, Tan: Accelerating Dynamic Graph Analytics on GPUs, VLDB 2017) with its batch update on one
or two cores: keys ``src << 32 | dst`` in ascending order in an array with gaps, so that the edges of a row lie
together and a batch of any size touches only the leaves where its keys belong. ``layout.py`` has the geometry,
``arrays.py`` and ``columns.py`` the columns and their memory, and the kernels are in ``sorting.py`` (order a
batch), ``search.py`` (where does it fall), ``merge.py`` (write), ``windows.py`` (what must be redistributed),
``migration.py`` (grow, shrink) and ``load_export.py``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..edges import EMPTY_KEY, ChangeReport, EdgeBatch, EdgeList, Keys, SubCSR, Vertices, Weights
from ..layout import FILL, LEAF_LEAST, LEAF_SHIFT, SHARE_FULL, Layout
from ..rows import RowView
from ..threads import Pair
from . import hot_spot, merge, migration, search, sorting, windows
from . import load_export as spread
from .arrays import DELETED, INSERTED, RowIndex
from .columns import Columns, Pages
from .gather import gather
from .hot_spot import HotSpot
from .invariants import State, wrong_keys, wrong_leaves, wrong_rows, wrong_sizes, wrong_stretch, wrong_windows
from .sorting import Packing
from .work import (
    Part,
    Plan,
    ReportColumns,
    Work,
    column,
    columns_after,
    new_work,
    report,
    report_columns,
    totals_of,
)

# Rows and work arrays grow by this factor, so that a new vertex or a larger batch costs constant time.
ROOM = 1.5
# Work arrays (about a hundred bytes an update, half of them ever written) are kept for so many updates, or for
# one update to so many edges; larger ones are given back after the batch.
KEPT_UPDATES_MIN = 1 << 18
KEPT_EDGES_PER_UPDATE = 12
# So many edges migrate for each update while a grown array moves into its new leaves: then it is done after
# updates of 5% of the edges, before the part that has not moved yet runs out of room.
MIGRATED_PER_UPDATE = 20
# One new edge in so many in one window shows where a hot spot is now; or, beside a stretch, that it is of use. An
# array grows again for a hot spot when so few of its leaves are left in the stretch: one in so many.
HOT_SHARE = 8
RESERVE_SHARE = 50
# A batch moves more edges than MIGRATED_PER_UPDATE up to so many, which take a millisecond.
CARRIED_EDGES = 600_000
# A stretch of so few leaves that was carried is not worth it any more.
STRETCH_LEAVES_MIN = 1 << 6
# A migration waits for its pages until one edge for so many edges has come; then it goes on without.
PATIENCE = 80
# From so many updates, entries of a report, or edges that move, on two threads are faster than one.
DIVIDED_UPDATES_MIN = 6000
DIVIDED_REPORT_MIN = 40_000
DIVIDED_MOVES_MIN = 100_000
# Updates looked at to divide a batch in two.
SAMPLE = 255


class PackedMemoryArray:
    """Edges sorted by (src, dst), one weight each where ``weighted``. One writer; no reader while it writes."""

    def __init__(self, *, weighted: bool, threads: int = 1) -> None:
        """``threads``: 1, or 2 to let large batches use a second core."""
        if threads not in (1, 2):
            raise ValueError(f"a packed array uses one or two threads, not {threads}")
        self.weighted = weighted
        self._threads = threads
        self._pair = Pair(threads)
        self._n_edges = 0
        self._n_vertices = 0
        self._layout = Layout.holding(0)
        self._columns = Columns.holding(self._layout.n_leaves, LEAF_SHIFT, weighted=weighted)
        self._slots = self._columns.slots(self._layout.n_leaves)
        self._slots.heads[0] = self._slots.tops[0] = 0
        self._pages = Pages()
        # While a migration goes on: whether it shrinks the array, the edges left of the stretch, and up to how
        # many edges it waits for pages.
        self._shrinks = False
        self._edges_left = 0
        self._patient_until = 0
        # Where new edges crowd, and whether the stretch was carried there.
        self._hot_spot = HotSpot()
        self._carried = False
        # How many windows the last batch redistributed, and no migration has touched since: for ``check``.
        self._n_windows = 0
        self._rows = RowIndex(np.zeros(0, np.uint32), np.zeros(0, np.uint32))
        self._no_work = self._work = new_work(0, weighted=weighted)

    @property
    def n_edges(self) -> int:
        return self._n_edges

    @property
    def n_vertices(self) -> int:
        return self._n_vertices

    @property
    def migrating(self) -> bool:
        """The array has grown and has not yet spread into all of its leaves, or it leaves some of them."""
        return self._slots.stretch_begin < self._slots.stretch_end

    def ensure_vertices(self, n_vertices: int) -> None:
        """Make room for rows 0 .. n_vertices - 1; new rows are empty."""
        if n_vertices > self._rows.degrees.size:
            room = max(n_vertices, int(self._rows.degrees.size * ROOM))
            rows = RowIndex(np.zeros(room, np.uint32), np.zeros(room, np.uint32))
            for new, old in zip(rows, self._rows, strict=True):
                new[: old.size] = old
            self._rows = rows
        self._n_vertices = max(self._n_vertices, n_vertices)

    def load(self, edges: EdgeList) -> None:
        """Replace the contents by these edges (ascending keys, no key twice).

        Raises:
            ValueError: the keys are not strictly ascending, name a row that does not exist, or lack weights.
            MemoryError: there is not enough; the contents are as before.
        """
        keys = column(edges.keys, np.uint64)
        weights = self._weight_column(edges.weights)
        if weights.size != (keys.size if self.weighted else 0):
            raise ValueError("a weighted array needs one weight for each edge")
        bad = spread.first_bad_key(keys, self._n_vertices)
        if bad >= 0:
            raise ValueError(f"edge {bad} of {keys.size} is out of order, or of a row that does not exist")
        layout = Layout.holding(keys.size)
        other = self._other_columns(layout)
        self._pages.stop()
        if other is not None:
            self._columns = other
        else:
            self._release(layout.n_leaves, self._layout.n_leaves)
        self._columns.prefer_large_pages(layout.n_leaves)
        self._layout, self._slots = layout, self._columns.slots(layout.n_leaves)
        self._n_windows = 0
        self._hot_spot = HotSpot()
        self._rows.degrees[:] = 0
        spread.count_degrees(keys, self._rows.degrees)
        spread.load(keys, weights, self._slots, self._rows.leaf)
        self._n_edges = keys.size

    def apply(self, batch: EdgeBatch) -> ChangeReport:
        """Apply a batch: all of it, or nothing when an exception is raised (those of ``prepare``)."""
        return self.commit(self.prepare(batch))

    def prepare(self, batch: EdgeBatch) -> Plan:
        """Everything of ``apply`` that can fail; the contents are only read.

        1. Divide a large batch in two, if there are two threads, at the first key of a leaf.
        2. Put each part in order; the last update of each key wins. Look every update up.
        3. Take all memory that the report, or an array of another size, will need.

        A plan is good until the next ``prepare`` or change; one that is not committed is simply dropped.

        Raises:
            ValueError: the batch names a row that does not exist (``ensure_vertices``).
            MemoryError: there is not enough.
        """
        self._n_windows = 0
        parts = self._look_up(batch) if len(batch) else []
        totals = parts[0].totals if len(parts) == 1 else totals_of(parts)
        n_edges = self._n_edges + totals[INSERTED] - totals[DELETED]
        layout = self._layout.resized(n_edges)
        at_once = layout is not self._layout
        if not at_once and self._should_grow(n_edges):
            layout = layout.grown()
        columns = report_columns(totals, weighted=self.weighted)
        return Plan(parts, n_edges, layout, at_once, columns, self._other_columns(layout))

    def commit(self, plan: Plan) -> ChangeReport:
        """Write what ``prepare`` planned. Cannot fail: it takes no memory that grows with batch or graph.

        1. Apply the updates to leaves that have room, and put the new edges of the others aside.
        2. Redistribute windows with these edges; or everything, into other leaves, where the batch leaves too
           many or too few edges for the present ones.
        3. Fill the report, and let shortened rows begin where they now do.
        4. Let some edges migrate; or begin to grow or to shrink, if it is time.
        """
        parts, n_edges, layout, at_once, columns, other = plan
        if not parts:
            return report(columns, 0, weighted=self.weighted)
        n_leaves_before = self._layout.n_leaves
        if other is not None and layout.n_leaves > n_leaves_before:
            self._move_to(other, n_leaves_before)
        m = sum(part.end - part.begin for part in parts)
        self._n_windows = 0
        if self.migrating:
            begin, end = parts[0].begin, parts[-1].end
            self._edges_left += migration.net_change(self._work.updates, begin, end, self._slots.stretch_begin)
        written = self._merge(parts, all_wait=at_once)
        self._hot_spot.count(m)
        beside = False
        if at_once:
            slots_moved = self._spread_all(layout.n_leaves, written.n_waiting, n_edges)
        else:
            slots_moved, waiting = self._redistribute(written.n_pending, m)
            beside = waiting * HOT_SHARE > m
        fewer = n_edges < self._n_edges
        self._n_edges = n_edges
        self._fill_report(parts, written.shortened, columns)
        if other is not None and layout.n_leaves < n_leaves_before:
            self._move_to(other, layout.n_leaves)
        self._layout = layout
        if layout.n_leaves > n_leaves_before and not at_once:
            self._begin_to_grow(n_leaves_before)
        elif self.migrating:
            # What is being used is not taken away.
            if not beside or self._shrinks:
                slots_moved += self._migrate(m)
        elif n_edges < layout.edges_few and fewer and self._columns.memory is not None:
            slots_moved += self._begin_to_shrink()
            slots_moved += self._migrate(m)
        if self._work.room > max(KEPT_UPDATES_MIN, n_edges // KEPT_EDGES_PER_UPDATE):
            self._work = self._no_work
            self._n_windows = 0
        return report(columns, slots_moved, weighted=self.weighted)

    def close(self) -> None:
        """End the threads; what comes later is done by the caller's."""
        self._pair.close()
        self._pages.close()

    def view(self) -> RowView:
        """The arrays themselves, for kernels that walk rows in place; valid until the next change."""
        slots, rows = self._slots, self._rows
        stretch = slots.stretch_begin, slots.stretch_end
        return RowView(slots.keys, slots.weights, slots.counts, rows.leaf, rows.degrees, LEAF_SHIFT, *stretch)

    def export(self) -> EdgeList:
        """All edges in ascending key order, copied."""
        keys = np.empty(self._n_edges, np.uint64)
        weights = np.empty(self._n_edges if self.weighted else 0, np.float32)
        spread.export(self._slots, keys, weights)
        return EdgeList(keys, weights if self.weighted else None)

    def has_edge(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """bool[n]: which of these edges are there."""
        return self._find(keys) >= 0

    def weights_of(self, keys: Keys) -> Weights:
        """float32[n] weights of these edges; NaN where there is no such edge.

        Raises:
            LookupError: the array is unweighted.
        """
        if not self.weighted:
            raise LookupError("this array keeps no weights")
        slots = self._find(keys)
        weights = self._slots.weights[slots]
        weights[slots < 0] = np.nan
        return weights

    def rows(self, vertices: Vertices) -> SubCSR:
        """The rows of these vertices (any order, repeats allowed), gathered.

        Raises:
            IndexError: a vertex does not exist.
        """
        vertices = column(vertices, np.uint32)
        if vertices.size and int(vertices.max()) >= self._n_vertices:
            raise IndexError(f"vertex {int(vertices.max())} of {self._n_vertices}")
        return gather(self.view(), vertices, weighted=self.weighted, pair=self._pair)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes held, by structure: slots, leaves, rows, scratch.

        The leaves of a grown array count from the beginning, though their pages come by and by; address space
        that is only reserved takes no memory.
        """
        slots = self._slots
        return {
            "slots": slots.keys.nbytes + slots.weights.nbytes,
            "leaves": slots.counts.nbytes + slots.heads.nbytes + slots.tops.nbytes,
            "rows": self._rows.leaf.nbytes + self._rows.degrees.nbytes,
            "scratch": self._work.n_bytes,
        }

    def check(self) -> list[str]:
        """Violated invariants, in words; empty when all is well.

        Order, heads, degrees and row index; densities as far as ``windows.py`` promises them: of every leaf, of
        the whole array, and of the windows that the last batch redistributed (after growth, and between
        ``prepare`` and ``commit``, these cannot be seen).
        """
        state = State(self._layout, self._slots, self._rows, self._n_edges, self._n_vertices, self._edges_left)
        problems = wrong_sizes(state)
        if problems:
            return problems
        found = self._work.windows
        n = self._n_windows
        spans = zip(found.new_begin[:n].tolist(), found.new_end[:n].tolist(), strict=True)
        keys = self.export().keys
        return (
            wrong_keys(state, keys)
            + wrong_leaves(state)
            + wrong_windows(state, spans)
            + wrong_stretch(state)
            + wrong_rows(state, keys)
        )

    def _find(self, keys: Keys) -> npt.NDArray[np.int64]:
        found = np.empty(keys.size, np.int64)
        search.find_slots(self._slots, column(keys, np.uint64), found)
        return found

    def _look_up(self, batch: EdgeBatch) -> list[Part]:
        """Order a batch and find where it falls, in one part or two; they end up side by side in the updates."""
        work = self._reserve(len(batch))
        keys, ops = column(batch.keys, np.uint64), column(batch.ops, np.uint8)
        weights = self._weight_column(batch.weights)
        divided = self._threads > 1 and keys.size >= DIVIDED_UPDATES_MIN
        pivot = self._pivot(keys) if divided else EMPTY_KEY
        differing, largest, n_below, ordered = sorting.survey(keys, pivot)
        if largest >> 32 >= self._n_vertices:
            raise ValueError(f"the batch names row {largest >> 32} of {self._n_vertices}")
        packing = Packing.of(int(keys[0]), differing, keys.size)
        if not ordered:
            sorting.divide(keys, packing, pivot, n_below, work.sort)

        def part(begin: int, end: int) -> Part:
            first, last, *totals = search.look_up(
                self._slots, keys, ops, weights, ordered, packing, work.sort, work.updates, begin, end
            )
            return Part(first, last, tuple(totals))

        if not 0 < n_below < keys.size:
            return [part(0, keys.size)]
        return list(self._pair.run(lambda: part(0, n_below), lambda: part(n_below, keys.size)))

    def _pivot(self, keys: Keys) -> np.uint64:
        """The first key of a leaf that has about half of these updates before it."""
        sample = np.sort(keys[:: max(1, keys.size // SAMPLE)])
        leaf = search.find_leaf(self._slots, sample[sample.size // 2])
        head: np.uint64 = self._slots.heads[leaf]
        return head

    def _merge(self, parts: list[Part], *, all_wait: bool) -> _Written:
        """Apply the updates to leaves that have room for them."""
        slots, rows, work = self._slots, self._rows, self._work
        # The positions of the sort are free by now.
        updates, pending, shortened = work.updates, work.pending, work.sort.positions

        def merged(part: Part, noted: int) -> tuple[int, int, int]:
            ends: tuple[int, int, int] = merge.merge_part(
                slots, rows, updates, part.begin, part.end, noted, pending, all_wait, shortened
            )
            return ends

        if len(parts) == 1:
            (left,) = parts
            n_pending, waiting, listed = merged(left, left.begin)
            if n_pending == left.begin:
                return _Written(0, 0, [(left.begin, listed)])
            n_pending = merge.join_pending(pending, left.begin, n_pending, waiting, 0, 0, 0)
            lists = [(left.begin, listed)]
        else:
            left, right = parts
            # A row in both parts is noted for the right one first, so that never two threads write its degree.
            row_end = np.uint64(((int(updates.keys[left.end - 1]) >> 32) + 1) << 32)
            noted = right.begin + int(np.searchsorted(updates.keys[right.begin : right.end], row_end))
            lists = [(right.begin, merge.note_rows(updates, right.begin, noted, rows, shortened))]
            (a_end, a_waiting, a_listed), (b_end, b_waiting, b_listed) = self._pair.run(
                lambda: merged(left, left.begin), lambda: merged(right, noted)
            )
            n_pending = merge.join_pending(pending, left.begin, a_end, a_waiting, right.begin, b_end, b_waiting)
            lists += [(left.begin, a_listed), (noted, b_listed)]
        return _Written(n_pending, int(pending.end[n_pending - 1]) if n_pending else 0, lists)

    def _redistribute(self, n_pending: int, n_updates: int) -> tuple[int, int]:
        """Redistribute what must be; returns the slots written, and how many new edges took leaves of a stretch.

        Notes hot spots.
        """
        if n_pending == 0:
            return 0, 0
        layout, slots, work = self._layout, self._slots, self._work
        found = work.windows
        n: int = windows.plan_windows(slots, layout.lower, layout.upper, work.pending, n_pending, found)
        waiting_max = n_updates // HOT_SHARE if self._hot_spot.there else n_updates
        first, last, wide, waiting = windows.hot_leaves(
            slots, work.pending, found, n, hot_spot.CROWDED_LEAVES, waiting_max
        )
        if first >= 0:
            self._hot_spot.see(slots.heads[first], slots.heads[last], self._n_edges, wide=wide)
        moved, half, stretch_begin, stretch_end = windows.divide_windows(slots, found, n)

        def redistribute(first: int, last: int) -> None:
            merge.redistribute(slots, self._rows.leaf, work.pending, found, first, last)

        if self._threads > 1 and moved >= DIVIDED_MOVES_MIN and half < n:
            self._pair.run(lambda: redistribute(0, half), lambda: redistribute(half, n))
        else:
            redistribute(0, n)
        if self.migrating:
            stretch = (stretch_begin, stretch_end) if stretch_begin < stretch_end else None
            self._slots = self._columns.slots(layout.n_leaves, stretch)
        self._n_windows = n
        return int(moved), int(waiting)

    def _spread_all(self, n_leaves: int, n_waiting: int, n_edges: int) -> int:
        """Spread everything over so many leaves, with the new edges that wait; returns the slots written."""
        before = self._layout.n_leaves
        self._pages.stop()
        slots = self._columns.slots(max(before, n_leaves))
        merge.resize(slots, self._rows.leaf, self._work.pending, n_waiting, 0, before, n_leaves)
        self._columns.prefer_large_pages(n_leaves)
        self._release(n_leaves, before)
        self._slots = self._columns.slots(n_leaves)
        return n_edges

    def _should_grow(self, n_edges: int) -> bool:
        """With this many edges after the batch: there are many, or another such batch would be too much; or they
        crowd in one place, and no stretch is left, or almost none."""
        layout, slots = self._layout, self._slots
        if self.migrating:
            lengthens = not self._shrinks and slots.stretch_end == layout.n_leaves
            if not lengthens or slots.stretch_end - slots.stretch_begin > layout.n_leaves // RESERVE_SHARE:
                return False
        if self._hot_spot.there and n_edges > layout.edges_crowded:
            return True
        if self.migrating:
            return False
        soon = 2 * n_edges - self._n_edges > layout.edges_max and n_edges > FILL * layout.n_slots
        return n_edges > layout.edges_many or soon

    def _begin_to_grow(self, before: int) -> None:
        """Open a stretch behind the last one of so many leaves, or lengthen the one that is there."""
        after = self._layout.n_leaves
        self._shrinks = False
        self._carried = False
        self._edges_left = self._n_edges
        self._patient_until = self._n_edges + self._n_edges // PATIENCE
        self._n_windows = 0  # the bounds are others now
        self._columns.prefer_large_pages(after)
        self._pages.get(self._columns, before, after)
        self._slots = self._columns.slots(after, (min(before, self._slots.stretch_begin), after))

    def _begin_to_shrink(self) -> int:
        """Open a stretch in the first sparse leaves, if there are any; returns the slots written."""
        slots = self._slots
        begin, end, before = migration.sparse_block(slots)
        edges = int(slots.counts[begin:end].sum(dtype=np.int64))
        stretch_begin = begin + max(1, math.ceil(edges / SHARE_FULL))
        if stretch_begin >= end:
            return 0
        merge.resize(slots, self._rows.leaf, self._work.pending, 0, begin, end, stretch_begin)
        self._shrinks = True
        self._carried = False
        self._edges_left = before + edges
        self._patient_until = 0
        self._n_windows = 0
        self._slots = self._columns.slots(slots.counts.size, (stretch_begin, end))
        return edges

    def _end_shrinking(self) -> None:
        """Cut off the leaves that nothing uses any more, as far as the edges can do without them."""
        used, before = self._slots.stretch_begin, self._layout.n_leaves
        self._layout = self._layout.cut(used, self._n_edges)
        n_leaves = self._layout.n_leaves
        self._slots = self._columns.slots(n_leaves, (used, n_leaves) if used < n_leaves else None)
        self._shrinks = False
        self._pages.give_back(self._columns, n_leaves, before)

    def _migrate(self, n_updates: int) -> int:
        """Let edges migrate after a batch of so many updates; returns the slots written."""
        if not self.migrating or not (self._shrinks or self._pages.done or self._n_edges > self._patient_until):
            return 0
        self._n_windows = 0
        moved = 0
        n_leaves = self._slots.counts.size
        if self._shrinks and self._n_edges > self._layout.edges_enough:
            self._shrinks = False
        way, leaves, per_update = self._way()
        edges = min(n_updates * per_update, max(CARRIED_EDGES, n_updates * MIGRATED_PER_UPDATE))
        room = self._slots.stretch_end - self._slots.stretch_begin
        while self.migrating and moved < edges:
            before = self._slots.stretch_begin
            some, begin, end = self._steps(way, leaves, edges - moved)
            if some == 0:
                if way != migration.SPREAD:
                    break
                # The left part is too sparse for steps. That takes many deletions, which cost as much.
                merge.resize(self._slots, self._rows.leaf, self._work.pending, 0, 0, n_leaves, n_leaves)
                begin = end
                moved += self._n_edges
            moved += some
            self._edges_left += some if begin > before else -some
            self._slots = self._columns.slots(n_leaves, (begin, end) if begin < end else None)
            if way == migration.CARRY:
                break
        if way == migration.CARRY:
            self._carried = self._slots.stretch_end < n_leaves
            if self._slots.stretch_end - self._slots.stretch_begin < room:
                self._hot_spot.stay(self._n_edges)
            if self._slots.stretch_end - self._slots.stretch_begin < STRETCH_LEAVES_MIN:
                moved += self._close_stretch()
        if self._shrinks and self._slots.stretch_end == n_leaves:
            self._end_shrinking()
        return moved

    def _close_stretch(self) -> int:
        """Spread some leaves before a narrow stretch over it, if they have the keys; returns the slots written."""
        slots, n_leaves = self._slots, self._slots.counts.size
        end, width = slots.stretch_end, slots.stretch_end - slots.stretch_begin
        begin = max(0, slots.stretch_begin - 2 * width)
        edges = int(slots.counts[begin:end].sum())
        if edges < LEAF_LEAST * (end - begin):
            return 0
        merge.resize(slots, self._rows.leaf, self._work.pending, 0, begin, slots.stretch_begin, end)
        self._slots = self._columns.slots(n_leaves)
        return edges

    def _way(self) -> tuple[int, int, int]:
        """Where the stretch goes; past how many leaves, where it is carried; and how many edges an update."""
        slots = self._slots
        if self._shrinks:
            return migration.GATHER, 0, MIGRATED_PER_UPDATE
        if self._hot_spot.there:
            return migration.CARRY, *self._hot_spot.course(slots)
        if self._carried:
            return migration.CARRY, slots.counts.size - slots.stretch_end, MIGRATED_PER_UPDATE
        return migration.SPREAD, 0, MIGRATED_PER_UPDATE

    def _steps(self, way: int, leaves: int, edges: int) -> tuple[int, int, int]:
        """Some steps, of at most so many edges; returns how many moved, and the stretch."""
        slots, row_leaf = self._slots, self._rows.leaf
        room = (slots.stretch_end - slots.stretch_begin) << LEAF_SHIFT
        if self._threads == 1 or min(edges, room) < DIVIDED_MOVES_MIN or way == migration.CARRY:
            done: tuple[int, int, int] = migration.migrate(slots, row_leaf, way, leaves, self._edges_left, edges)
            return done
        step = migration.plan_step(slots, way, leaves, self._edges_left, edges)
        middle = (step.begin + step.end) // 2
        if middle > step.begin:
            self._pair.run(
                lambda: migration.move(slots, row_leaf, step, step.begin, middle),
                lambda: migration.move(slots, row_leaf, step, middle, step.end),
            )
        elif step.edges:
            migration.move(slots, row_leaf, step, step.begin, step.end)
        if step.edges:
            migration.vacate(slots, step)
        return step.edges, step.stretch_begin, step.stretch_end

    def _other_columns(self, layout: Layout) -> Columns | None:
        """New columns for an array of this layout, unless the present ones will do."""
        columns = self._columns
        room = columns.n_leaves_max
        if room == layout.n_leaves or (columns.memory is not None and room > layout.n_leaves):
            return None
        return Columns.holding(layout.n_leaves, LEAF_SHIFT, weighted=self.weighted)

    def _release(self, n_leaves: int, n_leaves_before: int) -> None:
        """Let leaves at the end go, if there are any; no pages may come or go meanwhile."""
        if n_leaves < n_leaves_before:
            self._columns.release(n_leaves, n_leaves_before)

    def _move_to(self, columns: Columns, n_leaves: int) -> None:
        """Copy the first so many leaves into other columns."""
        slots = self._slots
        stretch = (slots.stretch_begin, slots.stretch_end) if self.migrating else None
        moved = columns.slots(n_leaves, stretch)
        for name in ("keys", "weights", "counts", "heads", "tops"):
            new, old = getattr(moved, name), getattr(slots, name)
            new[:] = old[: new.size]
        self._columns, self._slots = columns, moved

    def _fill_report(self, parts: list[Part], shortened: list[tuple[int, int]], columns: ReportColumns) -> None:
        """Fill the report's columns, and let the index of shortened rows point at their first keys."""
        updates, listed = self._work.updates, self._work.sort.positions

        def fill(part: Part, some: ReportColumns) -> None:
            merge.split_report(updates, part.begin, part.end, *some)

        for begin, end in shortened:
            if begin < end:
                merge.advance_rows(self._slots, self._rows, listed, begin, end)
        left, right = parts[0], parts[-1]
        if len(parts) == 1:
            fill(left, columns)
            return
        after = columns_after(columns, left.totals)
        if right.end - left.begin >= DIVIDED_REPORT_MIN:
            self._pair.run(lambda: fill(left, columns), lambda: fill(right, after))
        else:
            fill(left, columns)
            fill(right, after)

    def _reserve(self, n: int) -> Work:
        room = self._work.room
        if n > room:
            self._work = new_work(max(n, int(room * ROOM)), weighted=self.weighted)
        return self._work

    def _weight_column(self, weights: Weights | None) -> Weights:
        return _NO_WEIGHTS if weights is None or not self.weighted else column(weights, np.float32)


class _Written(NamedTuple):
    """What merging left to do: pending leaves, new edges that wait, and lists of rows (begin, end) to advance."""

    n_pending: int
    n_waiting: int
    shortened: list[tuple[int, int]]


_NO_WEIGHTS: Weights = np.empty(0, np.float32)


def warm_up() -> None:
    """Compile (or load from the cache) every kernel; weighted and unweighted arrays share them all."""
    for weighted in (True, False):
        array = PackedMemoryArray(weighted=weighted, threads=2)
        array.ensure_vertices(1 << 13)
        dst = np.arange(1 << 13, dtype=np.uint32)
        several, few = EdgeBatch.of(dst % 64, dst), EdgeBatch.of(dst[:64], dst[:64])
        array.apply(EdgeBatch.of(dst[::-1], dst[::-1]))
        array.apply(several)
        array.apply(EdgeBatch.of(dst, dst, np.zeros(dst.size, np.uint8)))
        array.apply(few)
        array.load(array.export())
        array.has_edge(few.keys)
        array.rows(dst)
        # Until it grows, and then by all kinds of steps.
        first = dst.size
        while not array.migrating:
            array.apply(EdgeBatch.of(np.full(500, 1), first + np.arange(500)))
            first += 500
        array.apply(few)
        _divided_step(array)
        # Until it shrinks, in the same way.
        array.load(array.export())
        keys = array.export().keys
        array.apply(EdgeBatch(keys[: keys.size // 3], np.zeros(keys.size // 3, np.uint8)))
        begin = keys.size // 3
        while begin < keys.size and not array.migrating:
            array.apply(EdgeBatch(keys[begin : begin + 8], np.zeros(8, np.uint8)))
            begin += 8
        _divided_step(array)


def _divided_step(array: PackedMemoryArray) -> None:
    """One step with the kernels that two threads call."""
    slots = array._slots
    step = migration.plan_step(slots, array._way()[0], 0, array._edges_left, 1)
    migration.move(slots, array._rows.leaf, step, step.begin, step.end)
    migration.vacate(slots, step)
