"""The packed memory array on the host.

GPMA+ (Sha, Li, He, Tan: Accelerating Dynamic Graph Analytics on GPUs, VLDB 2017) with its batch update on one
or many cores. Keys ``src << 32 | dst`` are in ascending order in an array with gaps: so the edges of a row lie
together, and a batch of any size touches only the leaves where its keys belong. ``layout.py`` has the geometry,
``arrays.py`` and ``slot_memory.py`` the columns and their memory, ``migration.py`` how the array grows and
shrinks. ``preparing.py`` and ``committing.py`` divide a batch among threads; what they call is in ``sorting.py``
(order a batch), ``search.py`` (where does it fall), ``merge.py`` (write), ``windows.py`` (what must be
redistributed), ``stretch.py`` (what migrates) and ``load_export.py``; ``small.py`` has all of a small batch in one
call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..edges import (
    DELETED,
    INSERTED,
    MAX_UPDATES,
    ChangeReport,
    EdgeBatch,
    EdgeList,
    Keys,
    SubCSR,
    Vertices,
    Weights,
)
from ..gate import NO_GATE, Gate
from ..layout import LEAF_SHIFT, Layout
from ..rows import RowView, words_of
from ..team import ALONE, Crew
from ..vertex_columns import grown
from ..written import Words, new_words, write
from . import committing, hot_spot, load_export, merge, preparing, search
from .arrays import RowIndex, Slots
from .committing import Task, Written
from .contents import Contents
from .gather import PIECE_EDGES, gather
from .invariants import wrong_keys, wrong_leaves, wrong_rows, wrong_sizes, wrong_stretch, wrong_windows
from .migration import Migration
from .preparing import Found, Parts, Question
from .slot_memory import SlotMemory
from .small import ORIENTATION, Orientation, Outcome
from .work import Plan, Work, arrivals_of, column, new_work, report, report_columns

# Work arrays grow by this factor, so that a larger batch costs constant time.
ROOM = 1.5
# Work arrays (about a hundred bytes an update, half of them ever written) are kept for so many updates, or for
# one update to so many edges; larger ones are given back after the batch.
KEPT_UPDATES_MIN = 1 << 18
KEPT_EDGES_PER_UPDATE = 12
# A batch is divided into pieces of at least so many updates, where there are threads for them.
PIECE_UPDATES = 2048
# Where there are so many threads, they may be as short as that: pieces cost a tenth more then, but all have some.
MANY_THREADS, SHORT_PIECE_UPDATES = 8, 1024
# A lone thread takes all as one piece; of so many updates it sorts pieces of about so many, each in its caches.
LONE_PIECES_FROM, LONE_PIECE_UPDATES = 1 << 19, 1 << 15


class PackedMemoryArray:
    """Edges sorted by (src, dst), one weight each where ``weighted``. One writer; no reader while it writes."""

    def __init__(self, *, weighted: bool, crew: Crew = ALONE) -> None:
        """``crew``: the threads that share large work."""
        self.weighted = weighted
        self._crew = crew
        layout = Layout.holding(0)
        memory = SlotMemory.holding(layout.n_leaves, LEAF_SHIFT, weighted=weighted)
        slots = memory.slots(layout.n_leaves)
        slots.heads[0] = slots.tops[0] = 0
        rows = RowIndex(np.zeros(0, np.uint32), np.zeros(0, np.uint32))
        self._contents = Contents(layout, memory, slots, rows)
        self._migration = Migration(self._contents, crew)
        # How many windows the last batch redistributed, and no migration has touched since: for ``check``.
        self._n_windows = 0
        self._no_work = self._work = new_work(0, weighted=weighted)
        self._seen: _Seen | None = None

    @property
    def n_edges(self) -> int:
        return self._contents.n_edges

    @property
    def n_vertices(self) -> int:
        return self._contents.n_vertices

    @property
    def before_pages_go(self) -> Callable[[Iterable[tuple[int, int]]], None]:
        """Called with the addresses, (begin, end) each, of pages that the array is about to give back while it
        stays where it is: who has them registered with a device must let them go. To be set."""
        return self._contents.before_pages_go

    @before_pages_go.setter
    def before_pages_go(self, call: Callable[[Iterable[tuple[int, int]]], None]) -> None:
        self._contents.before_pages_go = call

    @property
    def migrating(self) -> bool:
        """The array has grown and has not yet spread into all of its leaves, or it leaves some of them."""
        return self._contents.migrating

    def ensure_vertices(self, n_vertices: int) -> None:
        """Make room for rows 0 .. n_vertices - 1; new rows are empty."""
        now = self._contents
        if n_vertices > min(now.rows.leaf.size, now.rows.degrees.size):
            self._seen = None
            now.rows = RowIndex(*(grown(column, n_vertices, 0) for column in now.rows))
        now.n_vertices = max(now.n_vertices, n_vertices)

    def withdraw_vertices(self, n_vertices: int) -> None:
        """Take ``ensure_vertices`` back: there are only so many rows, of which the others were never written."""
        self._contents.n_vertices = n_vertices

    def load(self, edges: EdgeList) -> None:
        """Replace the contents by these edges (ascending keys, no key twice), or nothing where an exception is
        raised (those of ``prepare_load``)."""
        self.commit_load(self.prepare_load(edges))

    def prepare_load(self, edges: EdgeList, crew: Crew | None = None) -> LoadPlan:
        """Everything of ``load`` that can fail; the contents are only read. ``crew``: the threads that look at the
        edges, where more are free than the array's own.

        Raises:
            ValueError: the keys are not strictly ascending, name a row that does not exist, or lack weights.
            MemoryError: there is not enough.
        """
        keys = column(edges.keys, np.uint64)
        weights = self._weight_column(edges.weights)
        if weights.size != (keys.size if self.weighted else 0):
            raise ValueError("a weighted array needs one weight for each edge")
        now = self._contents
        bad = load_export.first_bad_key(keys, now.n_vertices, self._crew if crew is None else crew)
        if bad >= 0:
            raise ValueError(f"edge {bad} of {keys.size} is out of order, or of a row that does not exist")
        layout = Layout.holding(keys.size)
        return LoadPlan(keys, weights, layout, self._other_memory(layout))

    def commit_load(self, plan: LoadPlan) -> None:
        """Write what ``prepare_load`` planned; cannot fail."""
        now, (keys, weights, layout, other) = self._contents, plan
        self._seen = None
        self._migration.forget()
        if other is not None:
            now.memory = other
        else:
            self._release(layout.n_leaves, now.layout.n_leaves)
        now.memory.prefer_large_pages(layout.n_leaves)
        now.layout = layout
        now.view_leaves(layout.n_leaves)
        self._n_windows = 0
        load_export.load(keys, weights, now.slots, now.rows, self._crew)
        now.n_edges = keys.size

    def apply(self, batch: EdgeBatch) -> ChangeReport:
        """Apply a batch: all of it, or nothing when an exception is raised (those of ``prepare``)."""
        return self.commit(self.prepare(batch))

    def prepare(self, batch: EdgeBatch) -> Plan:
        """Everything of ``apply`` that can fail; the contents are only read.

        1. Put the updates in order; the last one of each key wins. Look each one up.
        2. Take all memory that the report, or an array of another size, will need.

        A plan is good until the next ``prepare`` or change; one that is not committed is simply dropped.

        Raises:
            ValueError: the batch names a row that does not exist (``ensure_vertices``), or has more than
                ``MAX_UPDATES`` updates.
            MemoryError: there is not enough.
        """
        question = self.question(batch)
        return self.plan(None if question is None else preparing.look_up(question, self._crew))

    def question(self, batch: EdgeBatch) -> Question | None:
        """What ``prepare`` has to look up; None where there are no updates. It raises what that does."""
        n = len(batch)
        if n > MAX_UPDATES:
            raise ValueError(f"a batch has at most {MAX_UPDATES} updates, not {n}")
        self._n_windows = 0
        if n == 0:
            return None
        work, now = self.reserve(n), self._contents
        arrived = arrivals_of(batch, weighted=self.weighted)
        threads = self._crew.threads
        least = PIECE_UPDATES if threads < MANY_THREADS else SHORT_PIECE_UPDATES
        if threads == 1:
            least = LONE_PIECE_UPDATES if n >= LONE_PIECES_FROM else n
        n_pieces = preparing.pieces_of(n, least)
        return Question(now.slots, arrived, now.n_vertices, n_pieces, work.sort, work.updates)

    def plan(self, found: tuple[Parts, Found] | None, *, told: bool = True) -> Plan:
        """The second half of ``prepare``: what follows from what was found.

        ``told``: whether ``commit`` will report the edges that changed.
        """
        now = self._contents
        parts, totals = None, (0, 0, 0, 0)
        if found is not None:
            parts, (largest, *rest) = found
            if largest >= now.n_vertices:
                raise ValueError(f"the batch names row {largest} of {now.n_vertices}")
            totals = tuple(rest)
        n_edges = now.n_edges + totals[INSERTED] - totals[DELETED]
        layout = now.layout.resized(n_edges)
        at_once = layout is not now.layout
        if not at_once and self._migration.should_grow(n_edges):
            layout = layout.grown()
        columns = report_columns(totals if told else (0, 0, 0, 0), weighted=self.weighted)
        return Plan(parts, n_edges, layout, at_once, columns, told, self._other_memory(layout))

    def more_bytes(self, plan: Plan | LoadPlan) -> int:
        """How much memory the layout of a plan takes beyond the present one's; negative: it takes less."""

        def size(layout: Layout) -> int:
            return SlotMemory.bytes_of(layout.n_leaves, LEAF_SHIFT, weighted=self.weighted)

        return size(plan.layout) - (0 if plan.other is not None else size(self._contents.layout))

    def commit(self, plan: Plan) -> ChangeReport:
        """Write what ``prepare`` planned. Cannot fail: it takes no memory that grows with batch or graph.

        1. Apply the updates to leaves that have room, and put the new edges of the others aside.
        2. Redistribute windows with these edges; or everything, into other leaves, where the batch leaves too
           many or too few edges for the present ones.
        3. Fill the report, and let shortened rows begin where they now do.
        4. Let some edges migrate; or begin to grow or to shrink, if it is time.
        """
        task = self.task(plan)
        return self.committed(plan, None if task is None else committing.commit(task, self._crew))

    def leaves_stay(self, plan: Plan) -> bool:
        """Whether there is something to write that others may read beside (``task``): all that it writes lies in
        the leaves that there are."""
        return plan.parts is not None and not plan.at_once and plan.other is None

    def task(self, plan: Plan, gate: Gate = NO_GATE, side: int = 0) -> Task | None:
        """The first half of ``commit``: what the kernel is to write; None where there are no updates. ``gate``: of
        those who read beside it, as a side (``leaves_stay``)."""
        parts, now, work = plan.parts, self._contents, self._work
        if parts is None:
            return None
        self._seen = None  # it would keep memory that is left, by growth, here, or by what migrates
        n_leaves = now.layout.n_leaves
        if plan.other is not None and plan.layout.n_leaves > n_leaves:
            now.move_to(plan.other, n_leaves)
        # The words and positions of the sort, which pending leaves and rows are listed in, are free by now.
        return Task(
            now.slots,
            now.rows,
            work.updates,
            parts,
            work.pending,
            work.windows,
            (now.layout.lower, now.layout.upper),
            plan.columns,
            plan.told,
            plan.at_once,
            int(parts[-1, preparing.END]),
            self._migration.hot_spot.lasts,
            hot_spot.CROWDED_LEAVES,
            gate,
            side,
            False,
        )

    def moves_when_committed(self, plan: Plan) -> bool:
        """Whether ``committed`` may move edges, or give memory back that who reads beside a batch has in use."""
        now = self._contents
        n_more = plan.n_edges - now.n_edges
        return plan.layout is not now.layout or self.moves_after(n_more) or self._has_too_much_room(plan.n_edges)

    def committed(self, plan: Plan, written: Written | None) -> ChangeReport:
        """The rest of ``commit``, after the kernel."""
        parts, n_edges, layout, at_once, columns, told, other = plan
        if parts is None or written is None:
            return report(columns, 0, weighted=self.weighted)
        now, work = self._contents, self._work
        n_leaves_before, fewer = now.layout.n_leaves, n_edges < now.n_edges
        n_updates = int(parts[-1, preparing.END])
        self._migration.counted(n_updates, written.net_left)
        in_use = self._migration.watch(written.signs, n_updates)
        self._n_windows, slots_moved = written.n_windows, written.moved
        if at_once:
            slots_moved = self._spread_all(layout.n_leaves, written.n_waiting, n_edges)
            shortened = work.pending.rows
            committing.finish(
                now.slots, now.rows, work.updates, parts, written.lists, shortened, columns, told, self._crew
            )
        elif now.migrating and written.n_windows:
            now.stretch_at(written.stretch_begin, written.stretch_end)
        now.n_edges = n_edges
        if other is not None and layout.n_leaves < n_leaves_before:
            now.move_to(other, layout.n_leaves)
        now.layout = layout
        slots = now.slots
        if layout.n_leaves > n_leaves_before and not at_once:
            slots_moved += self._migration.grow(n_leaves_before, n_updates)
        else:
            slots_moved += self._migration.go_on(n_updates, fewer=fewer, in_use=in_use)
        if now.slots is not slots:  # something moved, or the bounds are others now
            self._n_windows = 0
        if self._has_too_much_room(n_edges):
            self._work = self._no_work
            self._n_windows = 0
        return report(columns, slots_moved, weighted=self.weighted)

    def _has_too_much_room(self, n_edges: int) -> bool:
        """Whether work arrays are larger than is kept for so many edges."""
        return self._work.room > max(KEPT_UPDATES_MIN, n_edges // KEPT_EDGES_PER_UPDATE)

    def for_small(self, n_updates: int) -> Words | None:
        """An ``Orientation`` in words, for ``small.apply_small``; None where so many updates may bring another
        layout: then they go by ``prepare`` and ``commit``. Good until the next change."""
        now, seen = self._contents, self._seen
        layout, n_edges = now.layout, now.n_edges
        if (
            seen is not None
            and seen.layout is layout
            # With twice as many it would not grow, either.
            and seen.least <= n_edges - n_updates
            and n_edges + 2 * n_updates <= seen.most
            and seen.slots is now.slots
            and seen.rows is now.rows
        ):
            return seen.small
        migration = self._migration
        if (
            not layout.edges_min <= n_edges - n_updates
            or not n_edges + n_updates <= layout.edges_max
            or migration.should_grow(n_edges + n_updates)
        ):
            return None
        seen, orientation = self._looked_at(), self._orientation()
        write(seen.small, orientation)
        seen.layout = None
        if orientation.hot_for < 0 and not now.migrating:
            seen.layout = layout
            seen.least, seen.most = layout.edges_min, min(layout.edges_max, layout.edges_many)
        return seen.small

    def _orientation(self) -> Orientation:
        now = self._contents
        layout, crowding = now.layout, (self._migration.hot_spot.lasts, hot_spot.CROWDED_LEAVES)
        return Orientation(*now.slots, *now.rows, layout.lower, layout.upper, *crowding)

    def moves_after(self, n_more: int) -> bool:
        """Whether ``after_small``, with so many more edges, may move any."""
        now = self._contents
        return now.migrating or (n_more < 0 and now.n_edges + n_more < now.layout.edges_few)

    def after_small(self, n_updates: int, n_more: int, did: Outcome | None) -> int:
        """Go on from what ``small.apply_small`` wrote, as ``commit`` does: of so many updates, which brought so
        many more edges; returns how many slots more have moved. ``did``: None: nothing follows from it."""
        now, migration = self._contents, self._migration
        self._n_windows = 0
        in_use = False
        if did is not None:
            if self._seen is not None:
                self._seen.layout = None  # a spot may be hot now
            migration.counted(n_updates, did.n_more_left)
            in_use = migration.watch(did.signs, n_updates)
            if did.moved and now.migrating:
                now.stretch_at(did.stretch_begin, did.stretch_end)
        now.n_edges += n_more
        if n_more >= 0 and (did is None or not now.migrating):
            return 0
        if did is None and now.n_edges >= now.layout.edges_few:  # asked here, it costs no call
            return 0
        return migration.go_on(n_updates, fewer=n_more < 0, in_use=in_use)

    def close(self) -> None:
        """End what goes on in the background."""
        self._migration.pages.close()

    def view(self) -> RowView:
        """The arrays themselves, for kernels that walk rows in place; valid until the next change."""
        return self._looked_at().view

    def row_words(self) -> Words:
        """The same, in words (``rows.rows_in``)."""
        seen = self._looked_at()
        if seen.row_words is None:
            seen.row_words = words_of(seen.view)
        return seen.row_words

    def _looked_at(self) -> _Seen:
        """What follows from the columns as they are, which most small batches leave where they lie."""
        now, seen = self._contents, self._seen
        if seen is None or seen.slots is not now.slots or seen.rows is not now.rows:
            seen = self._seen = _Seen(now.slots, now.rows)
        return seen

    def export(self) -> EdgeList:
        """All edges in ascending key order, copied."""
        n_edges = self._contents.n_edges
        keys = np.empty(n_edges, np.uint64)
        weights = np.empty(n_edges if self.weighted else 0, np.float32)
        load_export.export(self._contents.slots, keys, weights, self._crew)
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
        weights = self._contents.slots.weights[slots]
        weights[slots < 0] = np.nan
        return weights

    def rows(self, vertices: Vertices) -> SubCSR:
        """The rows of these vertices (any order, repeats allowed), gathered.

        Raises:
            IndexError: a vertex does not exist.
        """
        vertices = column(vertices, np.uint32)
        if vertices.size and int(vertices.max()) >= self._contents.n_vertices:
            raise IndexError(f"vertex {int(vertices.max())} of {self._contents.n_vertices}")
        return gather(self.view(), vertices, weighted=self.weighted, crew=self._crew)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes held, by structure: slots, leaves, rows, scratch.

        The leaves of a grown array count from the beginning, though their pages come by and by; address space
        that is only reserved takes no memory.
        """
        slots, rows = self._contents.slots, self._contents.rows
        return {
            "slots": slots.keys.nbytes + slots.weights.nbytes,
            "leaves": slots.counts.nbytes + slots.heads.nbytes + slots.tops.nbytes,
            "rows": rows.leaf.nbytes + rows.degrees.nbytes,
            "scratch": self._work.n_bytes,
        }

    def check(self) -> list[str]:
        """Violated invariants, in words; empty when all is well.

        Order, heads, degrees and row index; densities as far as ``windows.py`` promises them: of every leaf, of
        the whole array, and of the windows that the last batch redistributed (after growth, and between
        ``prepare`` and ``commit``, these cannot be seen).
        """
        now = self._contents
        problems = wrong_sizes(now)
        if problems:
            return problems
        found = self._work.windows
        n = self._n_windows
        columns = found.new_begin, found.new_end, found.squeezed
        spans = zip(*(column[:n].tolist() for column in columns), strict=True)
        keys = self.export().keys
        return (
            wrong_keys(now, keys)
            + wrong_leaves(now)
            + wrong_windows(now, spans)
            + wrong_stretch(now, self._migration.edges_left)
            + wrong_rows(now, keys)
            + self._wrong_words()
        )

    def _wrong_words(self) -> list[str]:
        """Whether kernels would take from words what is there no more."""
        if self._seen is None:
            return []  # all will be written anew
        now, seen, problems = self._contents, self._looked_at(), []
        if not np.array_equal(self.row_words(), words_of(_Seen(now.slots, now.rows).view)):
            problems.append("the rows are others than those that are written down")
        if seen.layout is now.layout:
            words = new_words(ORIENTATION)
            write(words, self._orientation())
            if not np.array_equal(seen.small, words):
                problems.append("the columns are others than those that are written down")
        return problems

    def _find(self, keys: Keys) -> npt.NDArray[np.int64]:
        found = np.empty(keys.size, np.int64)
        search.find_slots(self._contents.slots, column(keys, np.uint64), found, self._crew)
        return found

    def _spread_all(self, n_leaves: int, n_waiting: int, n_edges: int) -> int:
        """Spread everything over so many leaves, with the new edges that wait; returns the slots written."""
        now = self._contents
        before = now.layout.n_leaves
        self._migration.pages.stop()
        slots = now.memory.slots(max(before, n_leaves))
        merge.resize(slots, now.rows.leaf, self._work.pending, n_waiting, 0, before, n_leaves)
        now.memory.prefer_large_pages(n_leaves)
        self._release(n_leaves, before)
        now.view_leaves(n_leaves)
        return n_edges

    def _other_memory(self, layout: Layout) -> SlotMemory | None:
        """New memory for an array of this layout, unless the present one will do."""
        memory = self._contents.memory
        room = memory.n_leaves_max
        if room == layout.n_leaves or (memory.reservation is not None and room > layout.n_leaves):
            return None
        return SlotMemory.holding(layout.n_leaves, LEAF_SHIFT, weighted=self.weighted)

    def _release(self, n_leaves: int, n_leaves_before: int) -> None:
        """Let leaves at the end go, if there are any; no pages may come or go meanwhile."""
        if n_leaves < n_leaves_before:
            self._contents.vacate(n_leaves, n_leaves_before)
            self._contents.memory.release(n_leaves, n_leaves_before)

    def reserve(self, n: int) -> Work:
        """Work arrays for n updates, good until the next call or change.

        Raises:
            MemoryError: there is not enough.
        """
        room = self._work.room
        if n > room:
            self._n_windows = 0  # they lay in the arrays that go
            self._work = new_work(max(n, int(room * ROOM)), weighted=self.weighted)
        return self._work

    def _weight_column(self, weights: Weights | None) -> Weights:
        return _NO_WEIGHTS if weights is None or not self.weighted else column(weights, np.float32)


class _Seen:
    """These columns as kernels take them: to walk rows, and for a small batch while the layout is the same."""

    __slots__ = ("layout", "least", "most", "row_words", "rows", "slots", "small", "view")

    def __init__(self, slots: Slots, rows: RowIndex) -> None:
        self.slots, self.rows = slots, rows
        stretch = slots.stretch_begin, slots.stretch_end
        columns = slots.keys, slots.weights, slots.counts, rows.leaf, rows.degrees
        self.view = RowView(*columns, LEAF_SHIFT, *stretch)
        self.row_words: Words | None = None
        # What ``for_small`` gives; good with this layout while there are so many edges, where nothing migrates.
        self.small = new_words(ORIENTATION)
        self.layout: Layout | None = None
        self.least = self.most = 0


class LoadPlan(NamedTuple):
    """Edges to load, checked; their layout; and the memory to which the array moves, if it must."""

    keys: Keys
    weights: Weights
    layout: Layout
    other: SlotMemory | None


_NO_WEIGHTS: Weights = np.empty(0, np.float32)


def warm_up() -> None:
    """Compile (or load from the cache) every kernel; weighted and unweighted arrays share them all.

    Raises:
        MemoryError: there is none for an array of some thousand edges to grow into.
    """
    for weighted in (True, False):
        array = PackedMemoryArray(weighted=weighted)
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
        array.rows(np.tile(dst, PIECE_EDGES // array.n_edges + 1))
        search.find_leaf(array._contents.slots, np.uint64(0))  # what only a hot spot asks for
        # Until it grows, and then by all kinds of moves.
        first = dst.size
        while not array.migrating:
            if first > 1 << 15:  # far past where it grows if it can
                raise MemoryError("none is left for the graph to grow")
            array.apply(EdgeBatch.of(np.full(500, 1), first + np.arange(500)))
            first += 500
        array.apply(few)
        # Until it shrinks, in the same way.
        array.load(array.export())
        keys = array.export().keys
        array.apply(EdgeBatch(keys[: keys.size // 3], np.zeros(keys.size // 3, np.uint8)))
        begin = keys.size // 3
        while begin + 8 <= keys.size and not array.migrating:
            array.apply(EdgeBatch(keys[begin : begin + 8], np.zeros(8, np.uint8)))
            begin += 8
