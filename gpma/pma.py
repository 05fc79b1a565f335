"""The packed memory array on the host.

GPMA+ (Sha, Li, He, Tan: Accelerating Dynamic Graph Analytics on GPUs, VLDB 2017) with its batch update on one
core: keys ``src << 32 | dst`` in ascending order in an array with gaps, so that the edges of a row lie together
and a batch of any size touches only the leaves where its keys belong. ``layout.py`` has the geometry,
``arrays.py`` the columns, and the kernels are in ``sorting.py`` (order a batch), ``search.py`` (where does it
fall), ``windows.py`` (what must be redistributed), ``merge.py`` (write) and ``spread.py`` (load, resize).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import merge, search, sorting, spread, windows
from .arrays import Groups, RowIndex, Slots, Updates
from .edges import (
    ChangeReport,
    EdgeBatch,
    EdgeList,
    Keys,
    SubCSR,
    Vertices,
    Weights,
    sources,
)
from .layout import LEAF_LOWER, LEAF_SHIFT, LEAF_SLOTS, Layout
from .rows import RowView
from .sorting import SortScratch
from .windows import Windows

# A batch of more than this share of the edges rewrites the whole array in one linear merge.
REWRITE_SHARE = 0.2
# Rows and work arrays grow by this factor, so that a new vertex or a larger batch costs constant time.
ROOM = 1.5
# Work arrays (about a hundred bytes an update) for more updates than this are given back after the batch.
KEPT_UPDATES_MAX = 1 << 18


class PackedMemoryArray:
    """Edges sorted by (src, dst), one weight each where ``weighted``. One writer; no reader while it writes."""

    def __init__(self, *, weighted: bool) -> None:
        self.weighted = weighted
        self._n_edges = 0
        self._n_vertices = 0
        self._layout = Layout.holding(0)
        self._slots = _new_slots(self._layout, weighted)
        self._slots.counts[0] = 0
        self._slots.heads[0] = 0
        self._rows = RowIndex(np.zeros(0, np.uint32), np.zeros(0, np.uint32))
        self._no_work = self._work = _new_work(0, weighted)

    @property
    def n_edges(self) -> int:
        return self._n_edges

    @property
    def n_vertices(self) -> int:
        return self._n_vertices

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
        """
        keys = _column(edges.keys, np.uint64)
        weights = self._weight_column(edges.weights)
        if weights.size != (keys.size if self.weighted else 0):
            raise ValueError("a weighted array needs one weight for each edge")
        bad = spread.first_bad_key(keys, self._n_vertices)
        if bad >= 0:
            raise ValueError(f"edge {bad} of {keys.size} is out of order, or of a row that does not exist")
        layout = Layout.holding(keys.size)
        slots = _new_slots(layout, self.weighted)
        self._rows.degrees[:] = 0
        spread.count_degrees(keys, self._rows.degrees)
        spread.load(keys, weights, slots, self._rows.leaf)
        self._layout, self._slots, self._n_edges = layout, slots, keys.size

    def apply(self, batch: EdgeBatch) -> ChangeReport:
        """Apply a batch: all of it, or nothing when an exception is raised (those of ``prepare``)."""
        return self.commit(self.prepare(batch))

    def prepare(self, batch: EdgeBatch) -> Plan:
        """Everything of ``apply`` that can fail; the contents are only read.

        1. Put the batch in order; the last update of each key wins.
        2. Look every update up.
        3. Take all memory that the report, or an array of another size, will need.

        A plan is good until the next ``prepare`` or change; one that is not committed is simply dropped.

        Raises:
            ValueError: the batch names a row that does not exist (``ensure_vertices``).
            MemoryError: there is not enough.
        """
        if len(batch) == 0:
            return Plan(0, 0, self._n_edges, self._layout, _report_columns([0, 0, 0, 0], self.weighted), None)
        work = self._reserve(len(batch))
        updates = work.updates
        m = sorting.order_batch(
            _column(batch.keys, np.uint64),
            _column(batch.ops, np.uint8),
            self._weight_column(batch.weights),
            work.sort,
            updates.keys,
            updates.inserts,
            updates.weights,
        )
        if updates.keys[m - 1] >> np.uint64(32) >= self._n_vertices:
            raise ValueError(f"the batch names row {updates.keys[m - 1] >> np.uint64(32)} of {self._n_vertices}")
        n_groups, *totals = self._look_up(work, m)
        n_edges = self._n_edges + totals[0] - totals[2]
        layout = self._layout.resized(n_edges)
        columns = _report_columns(totals, self.weighted)
        resized = None if layout is self._layout else _new_slots(layout, self.weighted)
        return Plan(m, n_groups, n_edges, layout, columns, resized)

    def commit(self, plan: Plan) -> ChangeReport:
        """Write what ``prepare`` planned. Cannot fail: it takes no memory that grows with batch or graph.

        1. Where the batch overfills the array: move to the larger one, contents unchanged, and look up again.
        2. Find the windows to redistribute. Write leaves, windows, degrees and row index in place.
        3. Where the batch left too little: move to the smaller array.
        """
        m, n_groups, n_edges, layout, columns, resized = plan
        if m == 0:
            return _report(columns, self.weighted, 0)
        work = self._work
        updates = work.updates
        slots_moved = 0
        if resized is not None and layout.n_leaves > self._layout.n_leaves:
            slots_moved += self._n_edges
            self._move_to(layout, resized)
            resized = None
            n_groups, *_ = self._look_up(work, m)
        if resized is not None or m > REWRITE_SHARE * self._n_edges:
            n_windows = _whole(work.windows, self._layout.n_leaves, n_edges, n_groups)
        else:
            n_windows = self._find_windows(work, n_groups)
        slots_moved += merge.commit(
            self._slots,
            self._rows,
            updates,
            m,
            work.groups,
            n_groups,
            work.windows,
            n_windows,
            work.sort.positions,  # free by now
        )
        self._n_edges = n_edges
        merge.split_report(updates, m, *columns)
        if resized is not None:
            slots_moved += n_edges
            self._move_to(layout, resized)
        if updates.keys.size > KEPT_UPDATES_MAX:
            self._work = self._no_work
        return _report(columns, self.weighted, slots_moved)

    def view(self) -> RowView:
        """The arrays themselves, for kernels that walk rows in place; valid until the next change."""
        slots, rows = self._slots, self._rows
        return RowView(slots.keys, slots.weights, slots.counts, rows.leaf, rows.degrees, LEAF_SHIFT)

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
        vertices = _column(vertices, np.uint32)
        if vertices.size and int(vertices.max()) >= self._n_vertices:
            raise IndexError(f"vertex {int(vertices.max())} of {self._n_vertices}")
        offsets = np.zeros(vertices.size + 1, np.int64)
        np.cumsum(self._rows.degrees[vertices], out=offsets[1:])
        neighbors = np.empty(offsets[-1], np.uint32)
        weights = np.empty(offsets[-1] if self.weighted else 0, np.float32)
        search.gather_rows(self.view(), vertices, offsets, neighbors, weights)
        return SubCSR(vertices, offsets, neighbors, weights if self.weighted else None)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes held, by structure: slots, leaves, rows, scratch."""
        slots = self._slots
        return {
            "slots": slots.keys.nbytes + slots.weights.nbytes,
            "leaves": slots.counts.nbytes + slots.heads.nbytes,
            "rows": self._rows.leaf.nbytes + self._rows.degrees.nbytes,
            "scratch": sum(array.nbytes for group in self._work for array in group),
        }

    def check(self) -> list[str]:
        """Violated invariants, in words; empty when all is well."""
        n_leaves = self._layout.n_leaves
        counts = self._slots.counts
        if counts.size != n_leaves or self._slots.keys.size != self._layout.n_slots:
            return ["the arrays do not have the size that the layout says"]
        if counts.min() < 0 or counts.max() > LEAF_SLOTS or int(counts.sum(dtype=np.int64)) != self._n_edges:
            return [f"leaf counts are impossible, or do not add up to {self._n_edges} edges"]
        problems = []
        keys = self.export().keys
        if not (keys[1:] > keys[:-1]).all():
            problems.append("keys are not in strictly ascending order")
        if n_leaves > 1 and counts.min() < LEAF_LOWER * LEAF_SLOTS:
            problems.append(f"leaf {int(counts.argmin())} holds {int(counts.min())} keys, too few")
        if not self._layout.edges_min <= self._n_edges <= self._layout.edges_max:
            problems.append(f"{self._n_edges} edges are out of bounds for {n_leaves} leaves")
        return problems + self._check_heads() + self._check_rows(keys)

    def _check_heads(self) -> list[str]:
        slots = self._slots
        begin = np.arange(self._layout.n_leaves) << LEAF_SHIFT
        filled = slots.counts > 0
        problems = []
        if slots.heads[0] != 0 or (~filled[1:]).any():
            problems.append("the first head is not 0, or a leaf is empty")
        elif (slots.heads[filled] > slots.keys[begin[filled]]).any():
            problems.append("a head is above its leaf's first key")
        elif (slots.heads[1:] <= slots.keys[begin[:-1] + slots.counts[:-1] - 1]).any():
            problems.append("a head is not above all keys before it")
        return problems

    def _check_rows(self, keys: Keys) -> list[str]:
        src = sources(keys)
        degrees = np.bincount(src, minlength=self._n_vertices)
        if degrees.size > self._n_vertices or not np.array_equal(degrees, self._rows.degrees[: degrees.size]):
            return ["degrees are not the lengths of the rows"]
        row, first = np.unique(src, return_index=True)
        leaf = np.searchsorted(np.cumsum(self._slots.counts, dtype=np.int64), first, side="right")
        wrong = np.flatnonzero(self._rows.leaf[row] != leaf)
        return [f"row {row[wrong[0]]} does not begin in the leaf that its index says"] if wrong.size else []

    def _find(self, keys: Keys) -> npt.NDArray[np.int64]:
        found = np.empty(keys.size, np.int64)
        search.find_slots(self._slots, self._layout.n_leaves, _column(keys, np.uint64), found)
        return found

    def _look_up(self, work: _Work, m: int) -> tuple[int, int, int, int, int]:
        search.locate(
            self._slots.heads,
            self._layout.n_leaves,
            work.updates.keys,
            m,
            work.updates.leaf,
        )
        found: tuple[int, int, int, int, int] = search.probe(self._slots, work.updates, work.groups, m)
        return found

    def _find_windows(self, work: _Work, n_groups: int) -> int:
        layout = self._layout
        n_windows: int = windows.plan_windows(
            self._slots.counts,
            layout.lower,
            layout.upper,
            work.groups,
            n_groups,
            work.windows,
        )
        return n_windows

    def _move_to(self, layout: Layout, slots: Slots) -> None:
        spread.respread(self._slots, self._n_edges, slots, self._rows.leaf)
        self._layout, self._slots = layout, slots

    def _reserve(self, n: int) -> _Work:
        room = self._work.updates.keys.size
        if n > room:
            self._work = _new_work(max(n, int(room * ROOM)), self.weighted)
        return self._work

    def _weight_column(self, weights: Weights | None) -> Weights:
        return _NO_WEIGHTS if weights is None or not self.weighted else _column(weights, np.float32)


class Plan(NamedTuple):
    """A batch that was looked up: ``m`` distinct updates in ``n_groups`` leaves, which will leave ``n_edges``.

    ``columns``: the report, to be filled; ``slots``: where the array moves when ``layout`` is another, else None.
    """

    m: int
    n_groups: int
    n_edges: int
    layout: Layout
    columns: tuple[npt.NDArray[Any], ...]
    slots: Slots | None


class _Work(NamedTuple):
    """Work arrays for batches of up to so many updates."""

    sort: SortScratch
    updates: Updates
    groups: Groups
    windows: Windows


_NO_WEIGHTS: Weights = np.empty(0, np.float32)


def _new_slots(layout: Layout, weighted: bool) -> Slots:
    return Slots(
        keys=np.empty(layout.n_slots, np.uint64),
        weights=np.empty(layout.n_slots if weighted else 0, np.float32),
        counts=np.empty(layout.n_leaves, np.int32),
        heads=np.empty(layout.n_leaves, np.uint64),
    )


def _new_work(n: int, weighted: bool) -> _Work:
    n_weights = n if weighted else 0
    return _Work(
        SortScratch(
            np.empty(n, np.uint64),
            np.empty(n, np.uint64),
            np.empty(n, np.uint32),
            np.empty(n, np.uint32),
        ),
        Updates(
            keys=np.empty(n, np.uint64),
            inserts=np.empty(n, np.uint8),
            weights=np.empty(n_weights, np.float32),
            leaf=np.empty(n, np.uint32),
            place=np.empty(n, np.uint8),
            status=np.empty(n, np.uint8),
            old_weights=np.empty(n_weights, np.float32),
        ),
        Groups(np.empty(n + 1, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)),
        Windows(*(np.empty(n, np.int64) for _ in Windows._fields)),
    )


def _column(array: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """The array as kernels take it: C-contiguous, aligned and writable, so that each compiles only once."""
    if array.dtype == dtype and array.flags.carray:
        return array
    return np.require(array, dtype, ["C", "A", "W"])


def _whole(into: Windows, n_leaves: int, n_edges: int, n_groups: int) -> int:
    """One window: the root."""
    for column, value in zip(into, (0, n_leaves, n_edges, 0, n_groups), strict=True):
        column[0] = value
    return 1


def _report_columns(totals: list[int], weighted: bool) -> tuple[npt.NDArray[Any], ...]:
    """The columns that ``merge.split_report`` fills, in its order."""
    inserted, overwritten, deleted, absent = totals
    return (
        np.empty(inserted, np.uint64),
        np.empty(inserted if weighted else 0, np.float32),
        np.empty(overwritten, np.uint64),
        np.empty(overwritten if weighted else 0, np.float32),
        np.empty(overwritten if weighted else 0, np.float32),
        np.empty(deleted, np.uint64),
        np.empty(deleted if weighted else 0, np.float32),
        np.empty(absent, np.uint64),
    )


def _report(columns: tuple[npt.NDArray[Any], ...], weighted: bool, slots_moved: int) -> ChangeReport:
    (
        inserted,
        inserted_weights,
        overwritten,
        new_weights,
        old_weights,
        deleted,
        deleted_weights,
        absent,
    ) = columns
    return ChangeReport(
        inserted=EdgeList(inserted, inserted_weights if weighted else None),
        overwritten=EdgeList(overwritten, new_weights if weighted else None),
        overwritten_old=old_weights if weighted else None,
        deleted=EdgeList(deleted, deleted_weights if weighted else None),
        absent=absent,
        slots_moved=slots_moved,
    )


def warm_up() -> None:
    """Compile (or load from the cache) every kernel; weighted and unweighted arrays share them all."""
    for weighted in (True, False):
        array = PackedMemoryArray(weighted=weighted)
        array.ensure_vertices(64)
        src = np.arange(64, dtype=np.uint32)
        everything = EdgeBatch.of(src[::-1], src[::-1])
        array.apply(everything)
        array.apply(EdgeBatch.of(src, src, np.zeros(64, np.uint8)))
        array.apply(EdgeBatch.of(src[:2], src[:2]))
        array.load(array.export())
        array.has_edge(everything.keys)
        array.rows(src)
