"""The graph as the engine sees it: one or more sides behind one ``apply``.

Directed graphs keep out-rows, and in-rows (the transposed array) for the programs that pull; an undirected
graph stores both directions of an edge in one array, so that its out-rows are its in-rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ..gpma.cores import usable_cores
from ..gpma.edges import (
    LOW,
    MAX_UPDATES,
    ChangeReport,
    EdgeBatch,
    EdgeList,
    Keys,
    Op,
    Vertices,
    Weights,
    destinations,
    pack,
    sources,
    transpose,
)
from ..gpma.host.snapshot import EdgeCopy
from ..gpma.host.transposing import transposed
from ..gpma.rows import RowView, copy_row
from ..gpma.team import Crew, Team
from .changes import GraphChange as GraphChange
from .changes import Report, count_loops, no_change, none
from .existence import Existence, Flags, VertexChange, VertexOps
from .host_side import SMALL_UPDATES_MAX, HostSide
from .owned import Migrated, MovePlan, OwnedPlan, OwnedRows, RowsReader, SideApply, SideFull
from .placement import HOST, Owners, Placement, both_directions
from .side import Direction, Reader, Side
from .weights import WeightDomain, in_domain

if TYPE_CHECKING:
    from .device_side import DeviceSide, DeviceSidePlan

T = TypeVar("T")

Divide = Callable[[Vertices, Vertices], Owners]
"""(lengths of out-rows, and of the in-rows that are kept: uint32[n]) -> the owner of each vertex (uint8[n])."""


class NoMemory(MemoryError):
    """A change found no memory, and the graph is as before: it may be tried again."""


class RowsLost(RuntimeError):
    """A device failed that alone had some of the rows: this graph is of no use any more, and must be made anew."""


class Graph:
    """Edges on their sides. One writer; readers see a whole batch or none of it only if they wait for it."""

    def __init__(
        self,
        *,
        directed: bool = True,
        weighted: bool = True,
        negative_weights: bool = False,
        in_edges: bool = True,
        in_weights: bool = True,
        threads: int | None = None,
        storage_threads: int | None = None,
        device: bool = False,
        host_rows: Literal["all", "owned"] = "all",
        host_sides: int = 1,
    ) -> None:
        """``negative_weights``: whether those of a weighted graph may be; see ``weight_domain``.

        ``in_edges`` asks for the transposed rows of a directed graph; undirected graphs need none.
        Without ``in_weights`` those of a weighted graph carry no weights, which saves 4 bytes a slot.
        ``threads``: how many its team has; None: as many as this process may use cores. ``storage_threads``: how
        many of them storage may use; None: all.
        ``device``: whether a CUDA device keeps rows; see ``device``, the attribute.
        ``host_rows``: "all": the host has every row, and a device the same ones. "owned": each row is on one side
        only, at first the device, where there is one; see ``migrate``. ``host_sides``: of the host, which then own
        rows as well; one but in tests.

        Raises:
            ImportError: ``device``, and CuPy is not installed.
            RuntimeError: ``device``, and there is none, or it fails (as CuPy says it).
            MemoryError: ``device``, and it has not enough memory.
        """
        self.directed = directed
        self.weighted = weighted
        self.weight_domain: WeightDomain = (
            "unweighted" if not weighted else "any" if negative_weights else "non-negative"
        )
        self.n_vertices = 0
        self.self_loops = 0
        self.existence = Existence()
        kept = {"weighted": weighted, "in_edges": in_edges and directed, "in_weights": in_weights}
        self.device: DeviceSide | None = _device_side(directed=directed, **kept) if device else None
        """The device's rows, equal to the host's after each change, or those it owns; None: there are none, or no
        more."""
        self.device_lost: str | None = None
        """Why ``device`` is no more: the first reason."""
        self.rows_lost = False
        """Whether it alone had some of the rows."""
        self.team = Team(usable_cores() if threads is None else threads)
        self._storage_crew = self.team.crew(storage_threads)
        self.host = HostSide(**kept, crew=self._storage_crew)
        self._more_hosts = [HostSide(**kept, crew=self._storage_crew) for _ in range(1, host_sides)]
        self.owned = host_rows == "owned"
        """Whether each row is on one side only."""
        self.sides: tuple[Side[Any], ...] = _present(self.host, *self._more_hosts, self.device)
        """All that rows may be on; the host is the first, and a device the last."""
        self.placement = Placement(len(self.sides) if self.owned else 1)
        self._rows: OwnedRows | None = None
        if self.owned:
            self.placement.newcomers = len(self.sides) - 1 if self.device is not None else HOST
            self._rows = OwnedRows(
                self.sides, self.placement, directed=directed, in_edges=kept["in_edges"], weighted=weighted
            )
            if self.device is not None and host_sides == 1:
                self.device.read_remote(self.host)
        self._copies: list[EdgeCopy] = []
        self._process = os.getpid()
        self.divide: Divide | None = None
        """Who owns what is loaded, where each row is on one side only; None: who gets new vertices."""

    @property
    def crew(self) -> Crew:
        """What kernels take of the graph's team: every program shares its threads."""
        return self.team.crew()

    @property
    def alive(self) -> Flags:
        """bool[n_vertices], in place: which dense ids are vertices, and were not deleted."""
        return self.existence.alive(self.n_vertices)

    @property
    def n_alive(self) -> int:
        """How many vertices there are; ``n_vertices`` also counts the dense ids of deleted ones."""
        return self.n_vertices - self.existence.n_dead

    @property
    def n_arcs(self) -> int:
        """Stored directed arcs: the edges of a directed graph; twice those of an undirected one, loops once."""
        return self.host.out.n_edges if self._rows is None else self._rows.n_arcs

    @property
    def n_edges(self) -> int:
        return self.n_arcs if self.directed else (self.n_arcs + self.self_loops) // 2

    @property
    def density(self) -> float:
        """The share of slots that hold an edge, over all arrays."""
        slots = sum(array.view().keys.size for array in self.host.arrays)
        return sum(array.n_edges for array in self.host.arrays) / slots if slots else 0.0

    def out_rows(self) -> RowView:
        """The out-rows, in place; valid until the next change.

        Where others than the host own rows this is a copy of all of them, which takes as long as an export: see
        ``degrees``, ``neighbors``, ``has_edge`` and ``weights_of``, which ask the owners.
        """
        owned = self._rows
        if owned is not None:
            return self._of_owners(lambda: owned.view("out", self.weighted))
        return self.host.out.view()

    def in_rows(self) -> RowView:
        """The in-rows, in place; in an undirected graph these are the out-rows. See ``in_weighted``.

        Raises:
            LookupError: the graph keeps no in-rows.
        """
        if not self.directed:
            return self.out_rows()
        if self.host.in_ is None:
            raise LookupError("this graph keeps no in-rows; create it with in_edges=True")
        owned = self._rows
        if owned is not None:
            return self._of_owners(lambda: owned.view("in", self.in_weighted))
        return self.host.in_.view()

    def degrees(self, direction: Direction) -> npt.NDArray[np.uint32]:
        """uint32[>= n_vertices]: the length of every row, whoever owns it; valid until the next change.

        Raises:
            LookupError: of in-rows, and the graph keeps none.
        """
        owned, kept = self._rows, self._kept(direction)
        if owned is not None:
            return self._of_owners(lambda: owned.degrees(kept))
        return (self.out_rows() if direction == "out" else self.in_rows()).degrees

    @property
    def hosts(self) -> tuple[HostSide, ...]:
        """The sides in this machine's memory."""
        return (self.host, *self._more_hosts)

    @property
    def mirror(self) -> Reader | None:
        """Where every out-arc has its image; None: the graph keeps no in-rows."""
        if self.directed and self.host.in_ is None:
            return None
        if self._rows is not None:
            return RowsReader(self._rows, self._kept("in"), weighted=self.in_weighted)
        return self.host.out if self.host.in_ is None else self.host.in_

    def n_stored(self, direction: Direction) -> int:
        """How many arcs the rows of a direction hold together, which must be the same for both."""
        sides = self.sides if self.owned else self.sides[:1]
        return sum(side.array(direction).n_edges for side in sides)

    @property
    def in_weighted(self) -> bool:
        """Whether the in-rows carry weights."""
        if not self.directed:
            return self.weighted
        return self.host.in_ is not None and self.host.in_.weighted

    def has_edge(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """bool[n]: which of these arcs are there."""
        owned = self._rows
        if owned is not None:
            return self._of_owners(lambda: owned.has_edge("out", keys))
        return self.host.out.has_edge(keys)

    def weights_of(self, keys: Keys) -> Weights:
        """float32[n] weights of these arcs, NaN where there is none; 1.0 throughout when unweighted."""
        owned = self._rows
        if self.weighted and owned is not None:
            return self._of_owners(lambda: owned.weights_of("out", keys))
        if self.weighted:
            return self.host.out.weights_of(keys)
        return np.where(self.has_edge(keys), np.float32(1), np.float32(np.nan))

    def neighbors(
        self, vertex: int, direction: Literal["out", "in"], first: int, limit: int
    ) -> tuple[Vertices, Weights | None]:
        """At most ``limit`` neighbours of a vertex from vertex ``first`` on, ascending, and their weights.

        Raises:
            LookupError: in-neighbours, and the graph keeps no in-rows.
        """
        weighted = self.weighted if direction == "out" else self.in_weighted
        owned, kept = self._rows, self._kept(direction)
        if owned is not None:
            neighbors, weights = self._of_owners(lambda: owned.neighbors(kept, vertex, first, limit))
        else:
            rows = self.out_rows() if direction == "out" else self.in_rows()
            neighbors = np.empty(min(limit, int(rows.degrees[vertex])), np.uint32)
            weights = np.empty(neighbors.size if weighted else 0, np.float32)
            copied = copy_row(rows, vertex, first, neighbors, weights)
            neighbors, weights = neighbors[:copied], weights[:copied]
        if self.weighted and not weighted:
            return neighbors, self.weights_of(pack(neighbors, np.full(neighbors.size, vertex, np.uint32)))
        return neighbors, weights if weighted else None

    def _kept(self, direction: Direction) -> Direction:
        """The direction whose rows are kept for this one.

        Raises:
            LookupError: the graph keeps no in-rows.
        """
        if direction == "out" or not self.directed:
            return "out"
        if self.host.in_ is None:
            raise LookupError("this graph keeps no in-rows; create it with in_edges=True")
        return "in"

    def columns(self, n: int, *, weighted: bool) -> EdgeBatch:
        """Columns for a batch of ``n`` updates, to be filled for ``apply``: as ``EdgeBatch.empty``, but in memory
        that a device, where there is one, reads by itself. Good until the next call, or an ``apply`` of others."""
        columns = self._on_device(lambda device: device.columns(n, weighted=weighted))
        return EdgeBatch.empty(n, weighted=weighted) if columns is None else columns

    def apply(self, batch: EdgeBatch, n_vertices: int, vertex_ops: VertexOps | None = None) -> GraphChange:
        """Apply updates between dense vertices 0 .. n_vertices - 1, in order; the last one of a pair wins.

        ``vertex_ops`` stand among the edge updates. Deleting a vertex deletes all its edges; it exists again
        once an insert names it. New vertices exist, except those that the batch deletes again.

        All of it or nothing: every array takes its memory before the first one is written. The cost is
        proportional to the batch and the degrees of the deleted vertices; only in a directed graph without
        in-rows, their in-edges are found by one pass over all edges.

        Raises:
            NoMemory: the graph is as before.
            ValueError: there are fewer vertices than before, an update names one that is not there, a weight lies
                outside ``weight_domain``, or there are more than ``MAX_UPDATES`` updates, those of an undirected
                graph counted twice; the graph is as before.
            RowsLost: a device failed that alone has rows.
            RuntimeError: ``require_own_process``.
        """
        self.require_own_process()
        n_updates = len(batch) if self.directed else 2 * len(batch)
        if n_updates > MAX_UPDATES:
            raise ValueError(f"a batch comes to at most {MAX_UPDATES} updates of rows, not {n_updates}")
        before = self.n_vertices
        with self._room_for(n_vertices):
            if vertex_ops is None and self._rows is None and 0 < n_updates <= SMALL_UPDATES_MAX:
                change = self._apply_small(batch, n_updates, n_vertices)
                if change is not None:
                    return change
            batch = replace(batch, weights=self._kept_weights(batch.weights))
            if self.directed and self.host.in_ is None:
                _require_heads(batch.keys, n_vertices)
            lives = self.existence.plan(batch, vertex_ops, before)
            if lives is not None:
                batch = self._without(lives, batch)
            if self._rows is None:
                report = Report.of(self._apply_on_sides(batch))
            else:
                report = self._apply_by_owner(self._rows, batch, n_vertices)
        self.n_vertices = n_vertices
        if lives is not None:
            self.existence.commit(lives)
        for copy in self._copies:
            copy.note(report.read())
        inserted, overwritten, deleted, absent = report.totals
        if not self.directed:
            # An edge is two arcs, and a loop is one.
            loops = self._loops(report, batch)
            self.self_loops += loops[0] - loops[2]
            inserted, overwritten, deleted, absent = (
                (arcs + loop) // 2 for arcs, loop in zip(report.totals, loops, strict=True)
            )
        return GraphChange(
            report,
            before,
            self.n_vertices,
            inserted=inserted,
            overwritten=overwritten,
            deleted=deleted,
            absent=absent,
            deleted_vertices=none() if lives is None else lives.deleted,
            revived_vertices=none() if lives is None else lives.revived,
            absent_vertices=0 if lives is None else lives.absent,
        )

    def _loops(self, report: Report, batch: EdgeBatch) -> tuple[int, ...]:
        """How many loops were inserted, overwritten, deleted, absent."""
        if self._rows is not None and count_loops(batch.keys) == 0:
            return 0, 0, 0, 0
        arcs = report.read()
        parts = (arcs.inserted.keys, arcs.overwritten.keys, arcs.deleted.keys, arcs.absent)
        return tuple(map(count_loops, parts))

    def _apply_small(self, batch: EdgeBatch, n_updates: int, n_vertices: int) -> GraphChange | None:
        """``apply`` for a few updates of rows, by one compiled call. None: nothing was written, and they go the
        ordinary way, which also finds out what is wrong with them."""
        before = self.n_vertices
        if self.existence.plan(batch, None, before) is not None:
            return None
        small = self.host.apply_small(batch, n_updates, n_vertices, not self.directed, self.weight_domain == "any")
        if small is None:
            return None
        arcs, totals = small
        # In there, since on the host nothing may fail any more.
        on_device = self._begin_on_device(lambda: replace(batch, weights=self._kept_weights(batch.weights)))
        self.n_vertices = n_vertices
        for copy in self._copies:
            copy.note(arcs)
        self.self_loops += totals.inserted_loops - totals.deleted_loops
        self._finish_on_device(on_device)
        return GraphChange(Report.of(arcs), before, n_vertices, *totals.edges(self.directed))

    def _apply_on_sides(self, batch: EdgeBatch) -> ChangeReport:
        """A batch of updates of edges, on every side or on none: all that can fail on the host is behind it before
        anything is written anywhere. The device, which is asked what the host has found good, works while that
        writes."""
        rows = batch if self.directed else both_directions(batch)
        turned = None if self.host.in_ is None else EdgeBatch(transpose(rows.keys), rows.ops, rows.weights)
        plan = self.host.prepare(rows, turned) if len(rows) else None
        on_device = self._begin_on_device(lambda: batch)
        report = no_change(self.weighted) if plan is None else self.host.commit(plan)
        self._finish_on_device(on_device)
        return report

    def _apply_by_owner(self, owned: OwnedRows, batch: EdgeBatch, n_vertices: int) -> Report:
        """A batch of updates of edges, each row's at its owner: on all sides or on none."""
        plan = self._of_owners(lambda: owned.prepare(batch))
        reports = self._by_owners(lambda: self._commit(owned, plan, n_vertices))
        return owned.whole(reports)

    def _commit(self, owned: OwnedRows, plan: OwnedPlan, n_vertices: int) -> list[Report]:
        if self.device is not None:
            self.device.forget_report()
        reports = owned.commit(plan)
        if self.device is not None:
            own = len(self.sides) - 1
            self.device.hear([report.read() for side, report in reports.items() if side != own])
            self._mark(np.arange(self.n_vertices, n_vertices, dtype=np.uint32))
        return list(reports.values())

    def migrate(self, vertices: Vertices, to: int) -> Migrated:
        """Move the rows of these vertices, each named once, to a side (its number in ``sides``), between two
        changes. What the graph holds, its counters and what is copied of it stay as they are.

        All at once; where a side that they leave lacks memory for that, in ever smaller parts; and where it has
        none at all, together with all other rows there.

        Raises:
            NoMemory: a side has not enough; some of the rows may have moved.
            ValueError: there is no such side or vertex, or the host has every row.
            RowsLost: a device failed that alone has rows.
        """
        self.require_own_process()
        owned = self._rows
        if owned is None or not 0 <= to < len(self.sides):
            raise ValueError(f"rows cannot move to side {to} of {len(self.sides) if self.owned else 1}")
        if vertices.size and int(vertices.max()) >= self.n_vertices:
            raise ValueError(f"vertex {int(vertices.max())} of {self.n_vertices}")
        waiting = [vertices]
        moved = Migrated(0, 0)
        while waiting:
            part = waiting.pop()
            try:
                plan = self._of_owners(lambda part=part: owned.prepare_move(part, to))  # type: ignore[misc]
            except SideFull as full:
                if full.side == to:
                    raise NoMemory(str(full)) from full
                if part.size <= 1:  # not even for one row: all go, by a way that needs no memory over there
                    return self._evacuated(owned, full.side, to, moved)
                waiting += np.array_split(part, 2)
                continue
            done = self._by_owners(lambda plan=plan: self._move(owned, plan))  # type: ignore[misc]
            moved = Migrated(moved.vertices + done.vertices, moved.edges + done.edges)
        return moved

    def _evacuated(self, owned: OwnedRows, side: int, to: int, moved: Migrated) -> Migrated:
        try:
            plan = self._of_owners(lambda: owned.prepare_evacuation(side, to))
        except SideFull as full:
            raise NoMemory(str(full)) from full

        def evacuate() -> Migrated:
            done = owned.evacuate(side, plan)
            if self.device is not None:
                self.device.forget_report()
                self._mark(plan.vertices)
            return done

        done = self._by_owners(evacuate)
        return Migrated(moved.vertices + done.vertices, moved.edges + done.edges)

    def _move(self, owned: OwnedRows, plan: MovePlan) -> Migrated:
        moved = owned.move(plan)
        if self.device is not None:
            self.device.forget_report()
            self._mark(plan.vertices)
        return moved

    def _mark(self, vertices: Vertices) -> None:
        """Tell the device, as far as it reads rows of the host, which of these are there."""
        if self.device is None or not self.device.reads_remote or vertices.size == 0:
            return
        here = self.placement.owners(vertices) == len(self.sides) - 1
        self.device.set_remote(vertices[here], False)
        self.device.set_remote(vertices[~here], True)

    def _of_owners(self, work: Callable[[], T]) -> T:
        """What the sides say, who may want memory.

        Raises:
            ValueError, MemoryError: as they do.
            RowsLost: the device failed, whatever it said.
        """
        self._require_rows()
        try:
            return work()
        except (ValueError, MemoryError):
            raise
        except Exception as error:
            self._fail(error)
            raise

    def _by_owners(self, work: Callable[[], T]) -> T:
        """What the sides do, who must not fail at it: one that does may be at odds with the others.

        Raises:
            RowsLost: the device failed, whatever it said.
        """
        self._require_rows()
        try:
            return work()
        except Exception as error:
            self._fail(error)
            raise

    def _fail(self, error: Exception) -> None:
        self.drop_device(f"{type(error).__name__}: {error}")
        self._require_rows()

    def _require_rows(self) -> None:
        if self.rows_lost:
            raise RowsLost(f"the device had rows that nobody else has, and failed: {self.device_lost}")

    @property
    def applied(self) -> tuple[SideApply, ...]:
        """What each side did for the last batch, where each row is on one side only; else nothing."""
        return () if self._rows is None else self._rows.applied

    @property
    def split(self) -> bool:
        """Whether some rows are on the device only, and others on the host only."""
        return (
            self._rows is not None and self.device is not None and 0 < self.placement.owned[-1] < self.n_vertices
        )

    def _without(self, lives: VertexChange, batch: EdgeBatch) -> EdgeBatch:
        """The batch for the storage: first the deletion of every edge that deleted vertices have, then those
        updates that no deletion of a vertex overrides."""
        gone = self._edges_of(lives.stripped)
        if gone.size == 0 and lives.overridden.size == 0:
            return batch
        kept = np.ones(len(batch), bool)
        kept[lives.overridden] = False
        weights = None
        if batch.weights is not None:
            weights = np.concatenate([np.zeros(gone.size, np.float32), batch.weights[kept]])
        ops = np.concatenate([np.full(gone.size, Op.DELETE, np.uint8), batch.ops[kept]])
        return EdgeBatch(np.concatenate([gone, batch.keys[kept]]), ops, weights)

    def _edges_of(self, vertices: Vertices) -> Keys:
        """Every edge that begins or ends at one of these vertices; some twice, undirected ones in either order."""
        if vertices.size == 0:
            return np.empty(0, np.uint64)
        out = self._row_keys("out", vertices)
        if not self.directed:
            return out
        if self.host.in_ is not None:
            return np.concatenate([out, transpose(self._row_keys("in", vertices))])
        return np.concatenate([out, self.existence.arcs_into(self.out_rows(), vertices)])

    def _row_keys(self, direction: Direction, vertices: Vertices) -> Keys:
        """The keys of these rows."""
        owned = self._rows
        if owned is not None:
            return self._of_owners(lambda: owned.rows(direction, vertices)).keys
        rows = self.host.array(direction).rows(vertices)
        return pack(np.repeat(vertices, np.diff(rows.offsets)), rows.neighbors)

    def load(self, edges: EdgeList, n_vertices: int, dead: Vertices | None = None) -> None:
        """Replace everything by these out-arcs (ascending; of an undirected graph both directions).

        ``dead``: the dense ids, each once, that no longer are vertices; they have no edges.

        Raises:
            NoMemory: the graph is as before; or without arcs, where each row is on one side only.
            ValueError: there are fewer vertices than before, an arc or ``dead`` names one that is not there, arcs
                are out of order, or a weight is missing or lies outside ``weight_domain``; the graph is as before.
            RuntimeError: ``require_own_process``.
        """
        self.require_own_process()
        dead = none() if dead is None else dead
        if dead.size and int(dead.max()) >= n_vertices:
            raise ValueError(f"dead vertex {int(dead.max())} of {n_vertices}")
        edges = replace(edges, weights=self._kept_weights(edges.weights))
        out, in_ = self.host.out, self.host.in_
        if self._rows is not None:
            self._load_by_owner(self._rows, edges, n_vertices, dead)
            return
        with self._room_for(n_vertices):
            out_plan = out.prepare_load(edges)
            if in_ is None:
                _require_heads(edges.keys, n_vertices)
            # In-rows take as much as out-rows at most, and so does putting them in order.
            self.host.memory.require((1 if in_ is None else 3) * out.more_bytes(out_plan))
            in_plan = None if in_ is None else in_.prepare_load(self._in_arcs(edges))
        self.existence.load(dead)
        self.n_vertices = n_vertices
        self.self_loops = 0 if self.directed else count_loops(edges.keys)
        self.host.commit_load(out_plan, in_plan)
        self._on_device(lambda device: device.load(edges))

    def _load_by_owner(self, owned: OwnedRows, edges: EdgeList, n_vertices: int, dead: Vertices) -> None:
        with self._room_for(n_vertices):
            _require_heads(edges.keys, n_vertices)
            in_ = None if self.host.in_ is None else self._in_arcs(edges)
            for owner in self._divisions(edges, n_vertices):
                self.placement.place(owner)
                try:
                    self._of_owners(lambda: owned.load(edges, in_))
                    break
                except SideFull as full:
                    if full.side == HOST:
                        raise
            self._by_owners(lambda: self._mark(np.arange(n_vertices, dtype=np.uint32)))
        self.existence.load(dead)
        self.n_vertices = n_vertices
        self.self_loops = 0 if self.directed else count_loops(edges.keys)

    def _divisions(self, edges: EdgeList, n_vertices: int) -> Iterator[Owners]:
        """Owners to try: as ``divide`` says, or whom new vertices go to; then the host alone."""
        if self.divide is None:
            yield np.full(n_vertices, self.placement.newcomers, np.uint8)
        else:
            heads = destinations(edges.keys) if self.host.in_ is not None else edges.keys[:0].astype(np.uint32)
            out, in_ = (
                np.bincount(ends, minlength=n_vertices).astype(np.uint32) for ends in (sources(edges.keys), heads)
            )
            yield self.divide(out, in_)
        yield np.full(n_vertices, HOST, np.uint8)

    def drop_device(self, reason: str) -> None:
        """Go on without the device's rows, for good: it failed, or has no memory. ``reason``: in words.

        Whoever still holds them must not read them. Where it alone had rows, ``rows_lost`` says so.
        """
        if self.device is None:
            return
        self.device.close()
        self.device, self.device_lost = None, reason
        self.rows_lost = self.owned and self.placement.owned[-1] > 0
        self.placement.newcomers = HOST
        if self._rows is not None:
            self._rows.drop(len(self.sides) - 1)

    def by_heads(self, arcs: EdgeList) -> EdgeList:
        """Arcs in any order, seen from their heads (dst << 32 | src): by head, those of one as they stood."""
        return transposed(arcs, weighted=arcs.weights is not None, crew=self._storage_crew)

    def export(self) -> EdgeList:
        """All out-arcs in ascending order, copied: what ``load`` takes."""
        owned = self._rows
        if owned is not None:
            return self._of_owners(lambda: owned.export("out"))
        return self.host.out.export()

    def begin_copy(self) -> EdgeCopy:
        """Begin to copy all out-arcs while batches go on, any thread copying; there may be several such copies."""
        export_from = self.host.export_from if self._rows is None else self._rows.export_from
        copy = EdgeCopy(export_from, weighted=self.weighted, n_edges=self.n_arcs)
        self._copies.append(copy)
        return copy

    def end_copy(self, copy: EdgeCopy) -> None:
        """Keep no more changes for this copy: it is at the present state, or given up; harmless to repeat."""
        self._copies = [other for other in self._copies if other is not copy]

    def memory_bytes(self) -> dict[str, int]:
        """Bytes of the host, by structure, orientations added up."""
        return {**self.host.memory_bytes(), "vertices": self.existence.memory_bytes()}

    def check(self) -> list[str]:
        """Violated storage invariants, in words: each array's own, the agreement of out- and in-rows, and that of
        the sides."""
        problems = [problem for side in self.hosts for problem in side.check()]
        out = self.export()
        dead = np.flatnonzero(~self.alive)
        if dead.size != self.existence.n_dead:
            problems.append(f"{dead.size} vertices are dead, not {self.existence.n_dead}")
        rows = [self.out_rows()] if self.host.in_ is None else [self.out_rows(), self.in_rows()]
        if any(view.degrees[dead].any() for view in rows):
            problems.append("a deleted vertex has edges")
        mirror = self._mirror(out)
        if mirror is not None:
            seen = self._in_arcs(out)
            if not np.array_equal(seen.keys, mirror.keys):
                problems.append("out-rows and in-rows hold different edges")
            elif (
                seen.weights is not None
                and mirror.weights is not None
                and not np.array_equal(seen.weights, mirror.weights)
            ):
                problems.append("out-rows and in-rows disagree about weights")
        if self._rows is not None:
            return problems + self._rows.check()
        on_device = self._on_device(lambda device: device.check(out, mirror if self.directed else None))
        return problems + (on_device or [])

    def _mirror(self, out: EdgeList) -> EdgeList | None:
        """The in-rows as edges; in an undirected graph those are its out-rows, given here."""
        if not self.directed:
            return out
        if self._rows is not None:
            return None if self.host.in_ is None else self._rows.export("in")
        return None if self.host.in_ is None else self.host.in_.export()

    def require_own_process(self) -> None:
        """Check that this is the process that made the graph, and none forked from it.

        Raises:
            RuntimeError: it is not. There, what waits for this graph's threads may wait for ever.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this graph belongs to process {self._process}; a process forked from it has none of its "
                "threads, and must make a graph of its own"
            )

    def close(self) -> None:
        """End the threads of the graph and its arrays; what comes later is done by the caller's.

        In a process that was forked there are none.
        """
        if os.getpid() != self._process:
            return
        if self.device is not None:
            self.device.close()
        for side in self.hosts:
            side.close()
        self.team.close()

    def _kept_weights(self, weights: Weights | None) -> Weights | None:
        """Weights as this graph keeps them. Whoever decoded them has checked them; it costs a pass in cache."""
        return None if weights is None or not self.weighted else in_domain(weights, self.weight_domain)

    def _in_arcs(self, out: EdgeList) -> EdgeList:
        """These out-arcs as the in-rows have them."""
        return transposed(out, weighted=self.in_weighted, crew=self._storage_crew)

    @contextmanager
    def _room_for(self, n_vertices: int) -> Iterator[None]:
        """Room in every array for so many vertices; none of the new ones are there if the block fails."""
        if n_vertices < self.n_vertices:
            raise ValueError(f"vertices are never taken away: {n_vertices} < {self.n_vertices}")
        try:
            if n_vertices > self.n_vertices:
                self.existence.ensure_vertices(n_vertices)
                self._ensure_vertices(n_vertices)
                self.placement.ensure_vertices(n_vertices)
            yield
        except BaseException as error:
            self.placement.withdraw_vertices(self.n_vertices)
            for side in self.hosts:
                side.withdraw_vertices(self.n_vertices)
            self._on_device(lambda device: device.withdraw_vertices(self.n_vertices))
            if isinstance(error, MemoryError):
                raise NoMemory(str(error) or "there is not enough memory") from error
            raise

    def _ensure_vertices(self, n_vertices: int) -> None:
        owned = self._rows
        if owned is not None:
            self._of_owners(lambda: owned.ensure_vertices(n_vertices))
            return
        self.host.ensure_vertices(n_vertices)
        self._on_device(lambda device: device.ensure_vertices(n_vertices))

    def _begin_on_device(self, batch: Callable[[], EdgeBatch]) -> DeviceSidePlan | None:
        """Have a batch that the host has found good applied by the device; ``_finish_on_device`` waits for it."""

        def begin(device: DeviceSide) -> DeviceSidePlan:
            plan = device.prepare(batch())
            device.launch(plan)
            return plan

        return self._on_device(begin)

    def _finish_on_device(self, plan: DeviceSidePlan | None) -> None:
        if plan is not None:
            self._on_device(lambda device: device.finish(plan))

    def _on_device(self, work: Callable[[DeviceSide], T]) -> T | None:
        """What the work gives; None where there is no device, or it fails, which drops it: the host goes on."""
        if self.device is None:
            return None
        try:
            return work(self.device)
        except Exception as error:
            self.drop_device(f"{type(error).__name__}: {error}")
            return None


def _present(*sides: Side[Any] | None) -> tuple[Side[Any], ...]:
    return tuple(side for side in sides if side is not None)


def _device_side(**kept: Any) -> DeviceSide:
    # Not on machines without a device: the module and what it imports take a while.
    from .device_side import DeviceSide

    return DeviceSide(**kept)


def _require_heads(keys: Keys, n_vertices: int) -> None:
    """Check the heads of arcs; where they have rows, the array of these does."""
    largest = int((keys & LOW).max(initial=0))
    if keys.size and largest >= n_vertices:
        raise ValueError(f"an edge leads to vertex {largest} of {n_vertices}")


def warm_up() -> None:
    """Compile what small batches and vertex operations need beyond the packed array's own kernels, or load it from
    the cache."""
    graph = Graph(weighted=False, in_edges=False)
    try:
        graph.load(EdgeList(np.arange(100, dtype=np.uint64)), 100)
        graph.apply(EdgeBatch.of([0], [1]), 100)
        graph.load(EdgeList(np.empty(0, np.uint64)), 100)
        graph.apply(EdgeBatch.of([0], [1]), 100)
        ops = VertexOps(np.ones(1, np.uint32), np.full(1, Op.DELETE_VERTEX, np.uint8), np.zeros(1, np.int64))
        graph.apply(EdgeBatch.of([], []), 100, ops)
        graph.apply(EdgeBatch.of([0], [1]), 100)
        for weights in (True, False):
            transposed(EdgeList(np.ones(1, np.uint64), np.ones(1, np.float32)), weighted=weights, crew=graph.crew)
    finally:
        graph.close()
