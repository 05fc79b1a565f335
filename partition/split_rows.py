"""Rows of which each is on one side only: changes and reads go to the owners, and come back as one.

Sides apply their parts at the same time: devices begin, the host works, and devices are waited for. To programs,
to checkpoints and to whoever asks it is the same graph, whoever owns what.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..gpma.edges import EdgeBatch, EdgeList, Keys, Op, SubCSR, Vertices, Weights, distinct, pack, sources
from ..gpma.host.snapshot import Turnstile
from ..gpma.layout import LEAF_SHIFT, LEAF_SLOTS
from ..gpma.rows import RowView
from ..gpma.team import Crew
from ..gpma.threads import Pair
from .changes import Counts, Report, merged_changes, merged_edges, no_change, no_edges
from .graph_rows import GraphRows, Shape, SideApply, of_rows, require_ends
from .placement import HOST, Placement
from .routing import route
from .side import Direction, Side

T = TypeVar("T")

AT_ONCE_MIN = 1 << 16
"""From so many updates on a device prepares in a thread of its own: it may wait for what it looks up first."""


class SideFull(MemoryError):
    """A side, by its number, has no memory for what it is to do."""

    def __init__(self, side: int, reason: str) -> None:
        super().__init__(reason or "there is not enough memory")
        self.side = side


class Migrated(NamedTuple):
    """Rows that changed sides: so many vertices, with so many arcs in both orientations."""

    vertices: int
    edges: int


SidePlan = tuple[int, Any, int]
"""A side, by its number, its plan, and how many updates of rows that has."""


SplitPlan = list[SidePlan]
"""Of those sides that have a part of a batch, by side."""


class MovePlan(NamedTuple):
    """Vertices whose rows go to a side, and the plans for it. ``in_rows``: the keys of those to pull from, by the
    side that they leave; None: they are not at hand. ``cleared``: a side that they leave altogether."""

    vertices: Vertices
    to: int
    edges: int
    parts: SplitPlan
    in_rows: dict[int, Keys] | None = None
    cleared: int | None = None


class RowsReader:
    """The rows of one direction as one array to read single edges from (``side.Reader``)."""

    def __init__(self, rows: GraphRows, direction: Direction, *, weighted: bool) -> None:
        self.weighted = weighted
        self.has_edge = partial(rows.has_edge, direction)
        self.weights_of = partial(rows.weights_of, direction)


class SplitRows:
    """All sides behind one."""

    def __init__(self, sides: Sequence[Side[Any]], placement: Placement, shape: Shape, crew: Crew) -> None:
        """``crew``: who shares what no side does by itself."""
        self.sides = tuple(sides)
        self.placement = placement
        self.applied: tuple[SideApply, ...] = ()
        """What each side did for the last batch; those without a part are left out."""
        self._shape = shape
        self._crew = crew
        has_device = any(side.takes_edges for side in self.sides)
        self._pair = Pair(min(2 if has_device else 1, crew.threads), "device-rows")
        self._turnstile = Turnstile()
        self._views: dict[Direction, RowView] = {}
        self._degrees: dict[Direction, npt.NDArray[np.uint32]] = {}
        self._report: weakref.ref[Report] | None = None
        self._gone: set[int] = set()

    def close(self) -> None:
        """End the second thread; later work is done by the caller's."""
        self._pair.close()

    def drop(self, side: int) -> None:
        """A side, which owns nothing, is to be asked nothing any more."""
        self._gone.add(side)

    def has(self, side: int) -> bool:
        """Whether there is such a side, which was not dropped."""
        return 0 <= side < len(self.sides) and side not in self._gone

    # -- changes ------------------------------------------------------------------------------------------------

    def ensure_vertices(self, n_vertices: int) -> None:
        """Make room for rows 0 .. n_vertices - 1 on all sides that are there.

        Raises:
            SideFull: one has not enough memory.
        """
        self._on_all(lambda side: side.ensure_vertices(n_vertices))

    def withdraw_vertices(self, n_vertices: int) -> None:
        """There are only so many rows, of which the others were never written."""
        for _, side in self._present():
            side.withdraw_vertices(n_vertices)

    def _present(self) -> list[tuple[int, Side[Any]]]:
        return [(number, side) for number, side in enumerate(self.sides) if number not in self._gone]

    def _on_all(self, work: Callable[[Side[Any]], None]) -> None:
        for number, side in self._present():
            self._of_side(number, partial(work, side))

    def prepare(self, batch: EdgeBatch) -> SplitPlan:
        """A plan for updates of edges, one direction each, every row's at its owner: all that can fail.

        Raises:
            ValueError: a row does not exist.
            SideFull: one has not enough memory.
        """
        self._settle()
        if len(batch) == 0:
            return []
        sole, shape = self.placement.sole, self._shape
        if sole is None:
            return self._prepare_parts(batch)
        if self.sides[sole].takes_edges:
            require_ends(batch.keys, self.placement.owner.size, self._crew)
            updates = len(batch) * (len(shape.directions) if shape.directed else 2)
            return [self._planned(sole, updates, lambda: self.sides[sole].prepare(batch))]
        out, in_ = of_rows(batch, shape, self._crew)
        self._on_all(lambda side: side.expect(len(out), len(out)))
        return [self._prepared(sole, out, in_)]

    def _prepare_parts(self, batch: EdgeBatch) -> SplitPlan:
        """As ``prepare``, where there are several owners.

        1. Sides that pick their updates by themselves get the batch, which travels meanwhile.
        2. Who owns what is found out and counted, so that those know how much to pick.
        3. They pick and prepare it; the parts of the others are written and prepared, of a large batch at the same
           time.
        """
        shape = self._shape
        brought = {
            number: self._of_side(number, partial(side.bring, batch))
            for number, side in self._owners()
            if side.picks
        }
        routing = route(batch, self.placement, self._crew, in_edges=shape.in_edges, mirrored=not shape.directed)
        n_out = int(routing.out.sum())
        for number, side in self._present():
            self._of_side(number, partial(side.expect, n_out, n_out - routing.of(number)[0]))

        def pick() -> SplitPlan:
            plans = []
            for number, there in brought.items():
                if any(n_own := routing.of(number)):
                    out, in_ = self._of_side(number, partial(self.sides[number].pick, there, *n_own))
                    plans.append(self._prepared(number, out, in_))
            return plans

        def cut_out() -> SplitPlan:
            others = [number for number in range(len(self.sides)) if number not in brought]
            parts = routing.parts(others, in_weights=shape.in_weights)
            return [self._prepared(part.side, part.out, part.in_) for part in parts]

        if brought and len(batch) >= AT_ONCE_MIN:
            here, there = self._pair.run(cut_out, pick)
        else:
            there, here = pick(), cut_out()
        return sorted(here + there, key=lambda plan: plan[0])

    def _prepared(self, side: int, out: EdgeBatch, in_: EdgeBatch | None) -> SidePlan:
        updates = len(out) + (0 if in_ is None else len(in_))
        return self._planned(side, updates, lambda: self.sides[side].prepare_rows(out, in_))

    def _planned(self, side: int, updates: int, prepare: Callable[[], Any]) -> SidePlan:
        return side, self._of_side(side, prepare), updates

    def _of_side(self, number: int, work: Callable[[], T]) -> T:
        """What a side does.

        Raises:
            SideFull: it has not enough memory.
        """
        try:
            return work()
        except MemoryError as error:
            raise SideFull(number, str(error)) from error

    def apply_small(self, n_updates: int, apply: Callable[[], T | None]) -> T | None:
        """Have the host, which owns all rows, apply so many updates of out-rows at once; None: it wrote nothing.

        Raises:
            SideFull, MemoryError: there is not enough memory; nothing was written.
        """
        self._settle()
        self._on_all(lambda side: side.expect(n_updates, n_updates))
        begun = time.perf_counter()
        with self._turnstile.writing():
            done = apply()
        if done is not None:
            seconds, n_lists = time.perf_counter() - begun, len(self._shape.directions)
            self.applied = (SideApply(self.sides[HOST].name, n_lists * n_updates, seconds),)
            self._forget()
        return done

    def commit(self, plan: SplitPlan) -> dict[int, Report]:
        """Write it, on all sides at once; what each side with a part did to its out-rows."""
        with self._turnstile.writing():
            self.applied = self._write(plan)
        return {side: self.sides[side].rows_report() for side, _, _ in plan}

    def whole(self, reports: Collection[Report]) -> Report:
        """The reports of all sides as one."""
        if not reports:
            return Report.of(no_change(self._shape.weighted))
        if len(reports) == 1:
            (report,) = reports
        else:
            parts = list(reports)
            report = Report(
                _sum([part.totals for part in parts]),
                sum(part.slots_moved for part in parts),
                lambda: merged_changes([part.read() for part in parts]),
                lambda crew: _sum([part.loops(crew) for part in parts]),
            )
        self._report = weakref.ref(report)
        return report

    def _settle(self) -> None:
        """Whoever still holds the last report gets all of it now: the next change takes its memory."""
        report = self._report() if self._report is not None else None
        if report is not None:
            report.read()
        self._report = None

    def _write(self, plan: SplitPlan) -> tuple[SideApply, ...]:
        """To be called inside the turnstile."""
        applied, begun = [], []
        for side, planned, _ in plan:
            begun.append(time.perf_counter())
            self.sides[side].launch(planned)
        for (side, planned, updates), since in zip(plan, begun, strict=True):
            self.sides[side].finish(planned)
            applied.append(SideApply(self.sides[side].name, updates, time.perf_counter() - since))
        self._forget()
        return tuple(applied)

    def prepare_move(self, vertices: Vertices, to: int) -> MovePlan:
        """A plan to move the rows of these vertices, each named once, to a side: deletions at their owners, and
        insertions there.

        Raises:
            SideFull: one has not enough memory.
        """
        self._settle()
        owners = self.placement.owners(vertices)
        parts: SplitPlan = []
        outs, ins = [], []
        in_rows: dict[int, Keys] = {}
        for side in range(len(self.sides)):
            leaving = np.sort(vertices[owners == side])
            if side == to or leaving.size == 0:
                continue
            outs.append(self._row_edges(side, "out", leaving))
            gone = [_batch(outs[-1], Op.DELETE)]
            if self._shape.in_edges:
                ins.append(self._row_edges(side, "in", leaving))
                gone.append(_batch(ins[-1], Op.DELETE))
            in_rows[side] = (ins or outs)[-1].keys
            parts.append(self._prepared(side, *_two(gone)))
        if not parts:
            return MovePlan(vertices[:0], to, 0, [], {})
        come = [_batch(merged_edges(column), Op.INSERT) for column in (outs, ins) if column]
        parts.append(self._prepared(to, *_two(come)))
        return MovePlan(vertices[owners != to], to, parts[-1][2], parts, in_rows)

    def move(self, plan: MovePlan) -> Migrated:
        """Do it. The graph stays the same, and nobody hears of it."""
        with self._turnstile.writing():  # a copy of the edges sees all of it or nothing
            self._write(plan.parts)
            if plan.cleared is not None:
                self.sides[plan.cleared].clear_rows()
            self.placement.move(plan.vertices, plan.to)
        return Migrated(int(plan.vertices.size), plan.edges)

    def prepare_evacuation(self, side: int, to: int) -> MovePlan:
        """A plan to move everything from a side that has no memory left to another one.

        Raises:
            SideFull: the other one has not enough memory.
        """
        self._settle()
        out, in_ = self.sides[side].evacuate()
        come = [_batch(edges, Op.INSERT) for edges in (out, in_) if edges is not None]
        vertices = np.flatnonzero(self.placement.owner == side).astype(np.uint32)
        parts = [self._prepared(to, *_two(come))]
        return MovePlan(vertices, to, sum(map(len, come)), parts, cleared=side)

    def load(self, out: EdgeList, in_: EdgeList | None) -> None:
        """Replace everything: out-arcs and in-arcs, ascending, of which each side gets those of its rows.

        Raises:
            ValueError: a row does not exist, or keys are out of order.
            SideFull: one has not enough memory; what the others have is not all there is.
        """
        with self._turnstile.writing():
            for number, side in self._owners(loaded=True):
                own_in = None if in_ is None else self._of(number, in_)
                self._of_side(number, partial(side.load_rows, self._of(number, out), own_in))
        self._forget()

    def clear(self) -> None:
        """Hold no edges any more, on any side."""
        with self._turnstile.writing():
            for _, side in self._owners(loaded=True):
                side.clear_rows()
            self._forget()

    def _of(self, side: int, edges: EdgeList) -> EdgeList:
        if self.placement.sole == side:
            return edges
        own = self.placement.owners(sources(edges.keys)) == side
        return EdgeList(edges.keys[own], None if edges.weights is None else edges.weights[own])

    def _forget(self) -> None:
        """What was read before is void."""
        self._views.clear()
        self._degrees.clear()

    # -- reads --------------------------------------------------------------------------------------------------

    def n_stored(self, direction: Direction) -> int:
        """How many arcs the rows of a direction hold together."""
        return sum(side.array(direction).n_edges for _, side in self._owners(loaded=True))

    def has_edge(self, direction: Direction, keys: Keys) -> npt.NDArray[np.bool_]:
        """bool[n]: which of these keys are there, in the rows of this direction."""
        return self._asked(keys, np.zeros(keys.size, bool), lambda side, own: side.has_edge(direction, own))

    def weights_of(self, direction: Direction, keys: Keys) -> Weights:
        """float32[n] weights of these keys, NaN where there is none."""
        nothing = np.full(keys.size, np.nan, np.float32)
        return self._asked(keys, nothing, lambda side, own: side.weights_of(direction, own))

    def _asked(
        self, keys: Keys, answers: npt.NDArray[Any], ask: Callable[[Side[Any], Keys], npt.NDArray[Any]]
    ) -> npt.NDArray[Any]:
        rows = sources(keys)
        known = rows < self.placement.owner.size
        owners = np.full(keys.size, len(self.sides), np.int64)
        owners[known] = self.placement.owners(rows[known])
        for number, side in enumerate(self.sides):
            own = np.flatnonzero(owners == number)
            if own.size:
                answers[own] = ask(side, keys[own])
        return answers

    def rows(self, direction: Direction, vertices: Vertices) -> EdgeList:
        """The rows of these vertices, each named once, as ascending keys with weights."""
        owners = self.placement.owners(vertices)
        parts = []
        for side in range(len(self.sides)):
            own = np.sort(vertices[owners == side])
            if own.size:
                parts.append(self._row_edges(side, direction, own))
        return _merged(parts, self._shape.weighted if direction == "out" else self._shape.in_weighted)

    def neighbors(
        self, direction: Direction, vertex: int, first: int, limit: int
    ) -> tuple[Vertices, Weights | None]:
        """At most ``limit`` neighbours in a row from vertex ``first`` on, ascending, and weights if it has any."""
        row = self.sides[self.placement.owner[vertex]].rows(direction, np.array([vertex], np.uint32))
        part = slice(begin := int(np.searchsorted(row.neighbors, first)), begin + limit)
        return row.neighbors[part], None if row.weights is None else row.weights[part]

    def degrees(self, direction: Direction) -> npt.NDArray[np.uint32]:
        """uint32[n_vertices], good until the next change."""
        if direction not in self._degrees:
            n = self.placement.owner.size
            parts = [side.degrees(direction, n) for _, side in self._owners()] or [np.zeros(n, np.uint32)]
            self._degrees[direction] = parts[0] if len(parts) == 1 else np.sum(parts, axis=0, dtype=np.uint32)
        return self._degrees[direction]

    def export(self, direction: Direction) -> EdgeList:
        """All arcs in ascending order, copied."""
        weighted = self._shape.weighted if direction == "out" else self._shape.in_weighted
        return _merged([side.export_rows(direction) for _, side in self._owners()], weighted)

    def export_from(self, first_key: int, keys: Keys, weights: Weights) -> int:
        """Copy out-arcs from this key on into the columns, ascending over all sides, between two changes.

        A row that changes sides does not pass the cursor: where a key stands among all others it stays.
        """
        with self._turnstile.reading():
            parts = []
            for _, side in self._owners():
                own_keys, own_weights = np.empty_like(keys), np.empty_like(weights)
                n = side.export_from(first_key, own_keys, own_weights)
                parts.append(EdgeList(own_keys[:n], own_weights[:n] if weights.size else None))
        merged = _merged(parts, self._shape.weighted)
        n = min(keys.size, len(merged))
        keys[:n] = merged.keys[:n]
        if weights.size and merged.weights is not None:
            weights[:n] = merged.weights[:n]
        return n

    def view(self, direction: Direction) -> RowView:
        """All rows in one place: the host's own where it owns all, else a copy, which is good until the next
        change and costs as much as the graph is large."""
        if self.placement.sole == HOST:
            view: RowView = self.sides[HOST].array(direction).view()
            return view
        if direction not in self._views:
            self._views[direction] = _view_of(self.export(direction), self.placement.owner.size)
        return self._views[direction]

    def view_of(self, direction: Direction, vertices: Vertices) -> RowView:
        """A copy of the rows of these vertices; those of others are empty in it."""
        return _view_of(self.rows(direction, distinct(vertices)), self.placement.owner.size)

    def check(self) -> list[str]:
        """Rows that are where they do not belong, in words."""
        problems = []
        owner = self.placement.owner
        for number, side in self._present():
            for direction in self._shape.directions:
                degrees = side.degrees(direction, owner.size)
                if np.any(degrees[owner != number]):
                    problems.append(f"the {side.name} has {direction}-rows that it does not own")
        return problems

    def _owners(self, *, loaded: bool = False) -> list[tuple[int, Side[Any]]]:
        """The sides that own rows, with their numbers, and if ``loaded`` those that hold any. Others need not even
        answer."""
        return [
            (number, side)
            for number, (side, owned) in enumerate(zip(self.sides, self.placement.owned, strict=True))
            if owned or (loaded and side.out.n_edges)
        ]

    def _row_edges(self, side: int, direction: Direction, vertices: Vertices) -> EdgeList:
        """The rows of ascending vertices that a side owns.

        Raises:
            SideFull: it has no memory to copy them.
        """
        rows: SubCSR = self._of_side(side, lambda: self.sides[side].rows(direction, vertices))
        return EdgeList(pack(np.repeat(vertices, np.diff(rows.offsets)), rows.neighbors), rows.weights)


def _merged(parts: Sequence[EdgeList], weighted: bool) -> EdgeList:
    return merged_edges(parts) if parts else no_edges(weighted)


def _sum(parts: Sequence[Counts]) -> Counts:
    inserted, overwritten, deleted, absent = (sum(counts) for counts in zip(*parts, strict=True))
    return inserted, overwritten, deleted, absent


def _two(batches: Sequence[EdgeBatch]) -> tuple[EdgeBatch, EdgeBatch | None]:
    """Updates of out-rows, and of in-rows where these are kept."""
    return batches[0], batches[1] if len(batches) > 1 else None


def _batch(edges: EdgeList, op: Op) -> EdgeBatch:
    return EdgeBatch(edges.keys, np.full(len(edges), op, np.uint8), edges.weights)


def _view_of(edges: EdgeList, n_vertices: int) -> RowView:
    """Ascending edges as a packed array without gaps."""
    n = len(edges)
    n_leaves = max(1, -(-n // LEAF_SLOTS))
    keys = np.zeros(n_leaves << LEAF_SHIFT, np.uint64)
    keys[:n] = edges.keys
    weights = np.zeros(0 if edges.weights is None else keys.size, np.float32)
    if edges.weights is not None:
        weights[:n] = edges.weights
    counts = np.full(n_leaves, LEAF_SLOTS, np.int32)
    counts[-1] = n - ((n_leaves - 1) << LEAF_SHIFT)
    src = sources(edges.keys)
    begins = np.flatnonzero(np.append(True, src[1:] != src[:-1])[:n])
    # Memory of rows that have no edges is never touched.
    degrees, row_leaf = np.zeros(n_vertices, np.uint32), np.zeros(n_vertices, np.uint32)
    degrees[src[begins]] = np.diff(np.append(begins, n))
    row_leaf[src[begins]] = begins >> LEAF_SHIFT
    return RowView(keys, weights, counts, row_leaf, degrees, LEAF_SHIFT, n_leaves, n_leaves)
