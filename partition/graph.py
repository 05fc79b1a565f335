"""The graph as the engine sees it: one or more sides behind one ``apply``.

Directed graphs keep out-rows, and in-rows (the transposed array) for the programs that pull; an undirected
graph stores both directions of an edge in one array, so that its out-rows are its in-rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ..gpma.cores import usable_cores
from ..gpma.edges import MAX_UPDATES, EdgeBatch, EdgeList, Keys, Op, Vertices, Weights, pack, transpose
from ..gpma.gate import NOBODY_READS, BeforeWriting
from ..gpma.host.small import Totals
from ..gpma.host.snapshot import EdgeCopy
from ..gpma.host.transposing import transposed
from ..gpma.memory import Memory
from ..gpma.rows import RowView, copy_row, copy_short_row
from ..gpma.team import Crew, Team
from ..gpma.written import Words
from . import routing, scanning, turning
from .behind import Lag as Lag
from .changes import Counts, Report, no_change, none
from .changes import GraphChange as GraphChange
from .existence import Existence, Flags, VertexChange, VertexOps
from .graph_rows import GraphRows, Shape, SideApply, require_heads
from .host_side import DIVIDED_THREADS_MIN, ONE_CALL_UPDATES_MAX, SMALL_UPDATES_MAX, UNFINISHED, HostSide
from .own_process import OwnProcess
from .owned import Divide, OwnedRows
from .owned import RowsLost as RowsLost
from .placement import Placement
from .side import Direction, Reader, Side
from .split_rows import Migrated
from .weights import WeightDomain, in_domain
from .whole import WholeRows

if TYPE_CHECKING:
    from .device_side import DeviceSide

T = TypeVar("T")

# Edges that are copied at a time for a walk along rows that are not all the host's.
_AHEAD_EDGES = 1 << 14


class NoMemory(MemoryError):
    """A change found no memory, and the graph is as before: it may be tried again."""

    @classmethod
    def of(cls, error: MemoryError) -> NoMemory:
        return cls(str(error) or "there is not enough memory")


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
        in_edges = in_edges and directed
        kept = {"weighted": weighted, "in_edges": in_edges, "in_weights": in_weights}
        on_device = _device_side(directed=directed, **kept) if device else None
        self.team = Team(usable_cores() if threads is None else threads)
        self.crew: Crew = self.team.crew()
        """What kernels take of the graph's team: every program shares its threads."""
        crew = self.team.crew(storage_threads)
        hosts = [HostSide(**kept, crew=crew) for _ in range(host_sides)]
        shape = Shape(directed, self.weight_domain, in_edges, in_weights)
        self._owned = OwnedRows(shape, hosts, on_device, crew) if host_rows == "owned" else None
        self._rows: GraphRows = self._owned or WholeRows(shape, hosts, on_device, crew)
        self._copies: list[EdgeCopy] = []
        self._untold = False  # a change was written, of which not all have heard that must
        self._process = OwnProcess.id

    # -- sides --------------------------------------------------------------------------------------------------

    @property
    def owned(self) -> bool:
        """Whether each row is on one side only."""
        return self._owned is not None

    @property
    def sides(self) -> tuple[Side[Any], ...]:
        """All that there were at first: the host first, and a device last."""
        return self._rows.sides

    @property
    def hosts(self) -> tuple[HostSide, ...]:
        """The sides in this machine's memory."""
        return self._rows.hosts

    @property
    def host(self) -> HostSide:
        """The first of them. Its arrays may be behind (``lag``): see ``catch_up``."""
        return self._rows.host

    @property
    def memory(self) -> Memory:
        """Who is asked before memory is taken for the graph."""
        return self._rows.host.memory

    def let_follow(self, allowed: bool) -> None:
        """Whether from now on the host may take batches later than a device that has every row, too: it pays where
        nobody reads its rows after each of them. Who reads rows here never sees it."""
        self._rows.may_follow = allowed and not self.owned

    @property
    def lag(self) -> Lag:
        """How far the arrays of the host are behind the graph."""
        return self._rows.lag

    def catch_up(self) -> None:
        """Have the host take all that was applied, for who reads its arrays themselves.

        Raises:
            NoMemory: there is not enough; the graph is as before.
        """
        try:
            self._rows.catch_up()
        except MemoryError as error:
            raise NoMemory.of(error) from error

    @property
    def device(self) -> DeviceSide | None:
        """The device's rows, equal to the host's after each change, or those it owns; None: there are none, or no
        more."""
        return self._rows.device

    @property
    def device_lost(self) -> str | None:
        """Why ``device`` is no more: the first reason."""
        return self._rows.device_lost

    @property
    def rows_lost(self) -> bool:
        """Whether that alone had some of the rows."""
        return self._rows.rows_lost

    @property
    def placement(self) -> Placement:
        """Who owns what, where each row is on one side only."""
        return self._rows.placement

    @property
    def applied(self) -> tuple[SideApply, ...]:
        """What each side did for the last batch, where each row is on one side only; else nothing."""
        return self._rows.applied

    @property
    def split(self) -> bool:
        """Whether some rows are on the device only, and others on the host only."""
        return self.owned and self.device is not None and 0 < self.placement.owned[-1] < self.n_vertices

    def divide_by(self, divide: Divide | None) -> None:
        """Who is to own what is loaded, where each row is on one side only; None: who gets new vertices."""
        if self._owned is not None:
            self._owned.divide = divide

    def migrate(self, vertices: Vertices, to: int, edges: int | None = None) -> Migrated:
        """Move the rows of these vertices, each named once, to a side (its number in ``sides``), between two
        changes. What the graph holds, its counters and what is copied of it stay as they are.

        In parts of a quarter of a million edges or one row; where a side that they leave lacks memory for that, in
        ever smaller ones; and where it has none at all, together with all other rows there. ``edges``: how many
        they have, of all arrays, where that is known: few need not be counted.

        Raises:
            NoMemory: a side has not enough; some of the rows may have moved.
            ValueError: there is no such side (any more) or vertex, or the host has every row.
            RowsLost: a device failed that alone has rows.
        """
        self.require_own_process()
        if self._owned is None or not self._owned.takes(to):
            raise ValueError(f"rows cannot move to side {to} of {len(self.sides) if self.owned else 1}")
        if vertices.size and int(vertices.max()) >= self.n_vertices:
            raise ValueError(f"vertex {int(vertices.max())} of {self.n_vertices}")
        try:
            return self._owned.migrate(vertices, to, edges)
        except MemoryError as error:
            raise NoMemory.of(error) from error

    def drop_device(self, reason: str) -> None:
        """Go on without the device's rows, for good: it failed, or has no memory. ``reason``: in words.

        Whoever still holds them must not read them. Where it alone had rows, ``rows_lost`` says so.
        """
        self._rows.drop_device(reason)

    # -- what there is ------------------------------------------------------------------------------------------

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
        return self._rows.n_stored("out")

    @property
    def n_edges(self) -> int:
        return self.n_arcs if self.directed else (self.n_arcs + self.self_loops) // 2

    @property
    def density(self) -> float:
        """The share of slots that hold an edge, over all arrays of the host."""
        arrays = [array for host in self.hosts for array in host.arrays]
        slots = sum(array.view().keys.size for array in arrays)
        return sum(array.n_edges for array in arrays) / slots if slots else 0.0

    def out_rows(self) -> RowView:
        """The out-rows, in place; valid until the next change.

        Where others than the host own rows this is a copy of all of them, which takes as long as an export: see
        ``degrees``, ``neighbors``, ``has_edge`` and ``weights_of``, which ask the owners.
        """
        return self._rows.view("out")

    def in_rows(self) -> RowView:
        """The in-rows, in place; in an undirected graph these are the out-rows. See ``in_weighted``.

        Raises:
            LookupError: the graph keeps no in-rows.
        """
        return self._rows.view(self._rows.shape.kept("in"))

    def row_words(self) -> tuple[Words, Words]:
        """Out-rows and in-rows as above, each in words, from which kernels take them (``rows.rows_in``).

        Raises:
            LookupError: the graph keeps no in-rows.
        """
        return self._rows.row_words()

    def rows_in_place(self) -> tuple[RowView, RowView | None] | None:
        """Out-rows and in-rows (None: none are kept) where they lie, for other threads to read until the next
        change begins, and kept in memory by whoever has them; None: not all are on the host now."""
        return self._rows.in_place(self.n_vertices)

    def rows_between(self, direction: Direction, begin: int, end: int) -> RowView:
        """The rows of vertices begin .. end - 1, with others or without; valid until the next change. Where not
        all are the host's it costs what these are long.

        Raises:
            LookupError: of in-rows, and the graph keeps none.
        """
        vertices = np.arange(begin, end, dtype=np.uint32)
        return self._rows.view_of(self._rows.shape.kept(direction), vertices)

    def views_ahead(self, directions: Sequence[Direction], vertices: Vertices) -> tuple[list[RowView], int | None]:
        """The rows of the first ones of these vertices, for a walk along them in this order, and how many of the
        vertices these are; None: of all vertices there are. Those that are not there have empty ones.

        Raises:
            LookupError: of in-rows, and the graph keeps none.
        """
        kept = [self._rows.shape.kept(direction) for direction in directions]
        if self._rows.is_whole():
            return [self._rows.view(direction) for direction in kept], None
        known = vertices < self.n_vertices
        lengths = np.zeros(vertices.size, np.int64)
        for direction in kept:
            lengths[known] += self._rows.degrees(direction)[vertices[known]]
        n = max(1, int(np.searchsorted(np.cumsum(lengths), _AHEAD_EDGES)))
        first = vertices[:n][known[:n]]
        return [self._rows.view_of(direction, first) for direction in kept], min(n, vertices.size)

    def degrees(self, direction: Direction) -> npt.NDArray[np.uint32]:
        """uint32[>= n_vertices]: the length of every row, whoever owns it; valid until the next change.

        Raises:
            LookupError: of in-rows, and the graph keeps none.
        """
        return self._rows.degrees(self._rows.shape.kept(direction))

    @property
    def mirror(self) -> Reader | None:
        """Where every out-arc has its image; None: the graph keeps no in-rows."""
        return self._rows.mirror() if self._keeps_mirror else None

    @property
    def _keeps_mirror(self) -> bool:
        return self._rows.shape.in_edges or not self.directed

    def n_stored(self, direction: Direction) -> int:
        """How many arcs the rows of a direction hold together, which must be the same for both.

        Raises:
            LookupError: of in-rows, and the graph keeps none.
        """
        return self._rows.n_stored(self._rows.shape.kept(direction))

    @property
    def in_weighted(self) -> bool:
        """Whether the in-rows carry weights."""
        return self._rows.shape.in_weighted

    def has_edge(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """bool[n]: which of these arcs are there."""
        return self._rows.has_edge("out", keys)

    def weights_of(self, keys: Keys) -> Weights:
        """float32[n] weights of these arcs, NaN where there is none; 1.0 throughout when unweighted."""
        if self.weighted:
            return self._rows.weights_of("out", keys)
        return np.where(self.has_edge(keys), np.float32(1), np.float32(np.nan))

    def neighbors(
        self, vertex: int, direction: Literal["out", "in"], first: int, limit: int
    ) -> tuple[Vertices, Weights | None]:
        """At most ``limit`` neighbours of a vertex from vertex ``first`` on, ascending, and their weights.

        Raises:
            LookupError: in-neighbours, and the graph keeps no in-rows.
        """
        neighbors, weights = self._rows.neighbors(self._rows.shape.kept(direction), vertex, first, limit)
        if self.weighted and weights is None:
            return neighbors, self.weights_of(pack(neighbors, np.full(neighbors.size, vertex, np.uint32)))
        return neighbors, weights

    # -- changes ------------------------------------------------------------------------------------------------

    def columns(self, n: int, *, weighted: bool) -> EdgeBatch:
        """Columns for a batch of ``n`` updates, to be filled for ``apply``: as ``EdgeBatch.empty``, but in memory
        that a device, where there is one, reads by itself. Good until the next call, or an ``apply`` of others."""
        return self._rows.columns(n, weighted=weighted)

    def apply(
        self,
        batch: EdgeBatch,
        n_vertices: int,
        vertex_ops: VertexOps | None = None,
        *,
        before_writing: BeforeWriting = NOBODY_READS,
    ) -> GraphChange:
        """Apply updates between dense vertices 0 .. n_vertices - 1, in order; the last one of a pair wins.

        ``vertex_ops`` stand among the edge updates. Deleting a vertex deletes all its edges; it exists again
        once an insert names it. New vertices exist, except those that the batch deletes again.

        All of it or nothing: every array takes its memory before the first one is written. The cost is
        proportional to the batch and the degrees of the deleted vertices; only in a directed graph without
        in-rows, their in-edges are found by one pass over all edges.

        ``before_writing`` is called before anything is written that other threads might be reading: until it has
        returned, they may read what there was before. Its gate may be shut later than that.

        Raises:
            NoMemory: the graph is as before.
            ValueError: there are fewer vertices than before, an update names one that is not there, a weight lies
                outside ``weight_domain``, or there are more than ``MAX_UPDATES`` updates, those of an undirected
                graph counted twice; the graph is as before.
            RowsLost: a device failed that alone has rows.
            RuntimeError: ``require_own_process``; or a change failed in its middle, this one or one before.
        """
        if OwnProcess.id != self._process:
            self.require_own_process()
        if self._is_unfinished():
            self._require_whole()
        n_updates = batch.keys.size if self.directed else 2 * batch.keys.size
        if n_updates > MAX_UPDATES:
            raise ValueError(f"a batch comes to at most {MAX_UPDATES} updates of rows, not {n_updates}")
        before = self.n_vertices
        at_most = ONE_CALL_UPDATES_MAX
        if self._rows.device is not None:
            at_most = SMALL_UPDATES_MAX  # it works while the host writes, if there is so much that it pays
            if not self._rows.keeps_up:  # then the host may have to catch up first
                before_writing()
        if vertex_ops is None and 0 < n_updates <= at_most and n_vertices >= before:
            change = self._apply_small(batch, n_updates, n_vertices, before_writing)
            if change is not None:
                return change
        with self._room_for(n_vertices):
            batch = replace(batch, weights=self._kept_weights(batch.weights))
            if not self._keeps_mirror:
                require_heads(batch.keys, n_vertices, self._rows.crew)
            lives = self.existence.plan(batch, vertex_ops, before, n_vertices, self._rows.crew)
            if lives is not None:
                batch = self._without(lives, batch)
            report = self._rows.apply(batch, before_writing, told=bool(self._copies))
        with self._telling():
            self.n_vertices = n_vertices
            if lives is not None:
                before_writing.end_beside()
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

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What follows of a change that is written: whatever fails there, it is no change that was not begun."""
        try:
            yield
        except RowsLost:  # which says so by itself
            raise
        except BaseException as error:
            self._untold = True
            if isinstance(error, MemoryError):
                raise RuntimeError(UNFINISHED) from error
            raise

    def _loops(self, report: Report, batch: EdgeBatch) -> Counts:
        """How many loops were inserted, overwritten, deleted, absent."""
        crew = self._rows.crew
        if self.owned and scanning.count_loops(batch.keys, crew) == 0:  # else the report is there already
            return 0, 0, 0, 0
        return report.loops(crew)

    def _apply_small(
        self, batch: EdgeBatch, n_updates: int, n_vertices: int, before_writing: BeforeWriting
    ) -> GraphChange | None:
        """``apply`` for a few updates of rows, by one compiled call. None: nothing was written, and they go the
        ordinary way, which also finds out what is wrong with them."""
        before = self.n_vertices
        try:
            if n_vertices > before:
                self._make_room_for(n_vertices)
            lives = self.existence
            if lives.n_dead and lives.plan(batch, None, before, n_vertices, self._rows.crew) is not None:
                return None
            small = self._rows.apply_small(batch, n_updates, n_vertices, before_writing)
        except BaseException as error:
            self._withdraw_room(error)
            raise
        if small is None:
            return None
        report, counted = small
        self.n_vertices = n_vertices
        if self._copies:
            with self._telling():
                for copy in self._copies:
                    copy.note(report.read())
        if self.directed:
            inserted, overwritten, deleted, absent, *_ = counted
        else:
            totals = Totals._make(counted)
            self.self_loops += totals.inserted_loops - totals.deleted_loops
            inserted, overwritten, deleted, absent = totals.edges()
        return GraphChange(report, before, n_vertices, inserted, overwritten, deleted, absent)

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
        out = self._rows.keys_of("out", vertices)
        if not self.directed:
            return out
        if self._keeps_mirror:
            return np.concatenate([out, transpose(self._rows.keys_of("in", vertices))])
        return np.concatenate([out, self.existence.arcs_into(self.out_rows(), vertices)])

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
        with self._room_for(n_vertices):
            loops = 0 if self.directed else scanning.count_loops(edges.keys, self._rows.crew)
            try:
                self._rows.load(edges, n_vertices)
            except MemoryError:
                if self.n_arcs == 0:
                    self.self_loops = 0
                raise
        with self._telling():
            self.existence.load(dead)
            self.n_vertices, self.self_loops = n_vertices, loops
        self._untold = False

    def by_heads(self, arcs: EdgeList) -> EdgeList:
        """Arcs in any order, seen from their heads (dst << 32 | src): by head, those of one as they stood."""
        return transposed(arcs, weighted=arcs.weights is not None, crew=self._rows.crew)

    def export(self) -> EdgeList:
        """All out-arcs in ascending order, copied: what ``load`` takes.

        Raises:
            RuntimeError: a change failed in its middle.
        """
        self._require_whole()
        return self._rows.export("out")

    def begin_copy(self) -> EdgeCopy:
        """Begin to copy all out-arcs while batches go on, any thread copying; there may be several such copies.

        Raises:
            NoMemory: as ``catch_up``.
            RuntimeError: a change failed in its middle.
        """
        self._require_whole()
        self.catch_up()
        copy = EdgeCopy(self._rows.export_from, weighted=self.weighted, n_edges=self.n_arcs, memory=self.memory)
        self._copies.append(copy)
        return copy

    def end_copy(self, copy: EdgeCopy) -> None:
        """Keep no more changes for this copy: it is at the present state, or given up; harmless to repeat."""
        self._copies = [other for other in self._copies if other is not copy]

    def memory_bytes(self) -> dict[str, int]:
        """Bytes of the host, by structure, orientations added up."""
        total: dict[str, int] = {}
        for host in self.hosts:
            for name, size in host.memory_bytes().items():
                total[name] = total.get(name, 0) + size
        total["scratch"] += self.lag.n_bytes
        return {**total, "vertices": self.existence.memory_bytes()}

    def check(self) -> list[str]:
        """Violated storage invariants, in words: each array's own, the agreement of out- and in-rows, and that of
        the sides."""
        if self._is_unfinished():
            return [UNFINISHED]
        self.catch_up()
        problems = [problem for side in self.hosts for problem in side.check()]
        out = self.export()
        dead = np.flatnonzero(~self.alive)
        if dead.size != self.existence.n_dead:
            problems.append(f"{dead.size} vertices are dead, not {self.existence.n_dead}")
        mirror = self._rows.export("in") if self._rows.shape.in_edges else None if self.directed else out
        directions = self._rows.shape.directions
        if any(self._rows.degrees(direction)[dead].any() for direction in directions):
            problems.append("a deleted vertex has edges")
        if mirror is not None:
            seen = self._rows.in_arcs(out)
            if not np.array_equal(seen.keys, mirror.keys):
                problems.append("out-rows and in-rows hold different edges")
            elif (
                seen.weights is not None
                and mirror.weights is not None
                and not np.array_equal(seen.weights, mirror.weights)
            ):
                problems.append("out-rows and in-rows disagree about weights")
        return problems + self._rows.check(out, mirror if self.directed else None)

    def require_own_process(self) -> None:
        """Check that this is the process that made the graph, and none forked from it.

        Raises:
            RuntimeError: it is not. There, what waits for this graph's threads may wait for ever.
        """
        if OwnProcess.id != self._process:
            raise RuntimeError(
                f"this graph belongs to process {self._process}; a process forked from it has none of its "
                "threads, and must make a graph of its own"
            )

    def _is_unfinished(self) -> bool:
        if self._untold:
            return True
        for host in self._rows.hosts:  # noqa: SIM110 - at each batch, and ``any`` takes four calls
            if host.unfinished:
                return True
        return False

    def _require_whole(self) -> None:
        """Check that no change failed in its middle; only ``load`` makes a graph whole again."""
        if self._is_unfinished():
            raise RuntimeError(UNFINISHED)

    def close(self) -> None:
        """End the threads of the graph and its arrays; what comes later is done by the caller's.

        In a process that was forked there are none.
        """
        if OwnProcess.id != self._process:
            return
        self._rows.close()
        self.team.close()

    def _kept_weights(self, weights: Weights | None) -> Weights | None:
        """Weights as this graph keeps them. Whoever decoded them has checked them; it costs a pass in cache."""
        if weights is None or not self.weighted:
            return None
        return in_domain(weights, self.weight_domain, self._rows.crew)

    @contextmanager
    def _room_for(self, n_vertices: int) -> Iterator[None]:
        """Room in every array for so many vertices; none of the new ones are there if the block fails."""
        if n_vertices < self.n_vertices:
            raise ValueError(f"vertices are never taken away: {n_vertices} < {self.n_vertices}")
        try:
            if n_vertices > self.n_vertices:
                self._make_room_for(n_vertices)
            yield
        except BaseException as error:
            self._withdraw_room(error)
            raise

    def _make_room_for(self, n_vertices: int) -> None:
        self.existence.ensure_vertices(n_vertices)
        self._rows.ensure_vertices(n_vertices)

    def _withdraw_room(self, error: BaseException) -> None:
        """Of a change that failed so.

        Raises:
            NoMemory: that was why.
            RuntimeError: that was why, and it was in the middle.
        """
        if self._is_unfinished():  # what was written may name them: see ``_require_whole``
            if isinstance(error, MemoryError):  # which all take for a change that was not begun
                raise RuntimeError(UNFINISHED) from error
            return
        self._rows.withdraw_vertices(self.n_vertices)
        if isinstance(error, MemoryError):
            raise NoMemory.of(error) from error


def _device_side(**kept: Any) -> DeviceSide:
    # Not on machines without a device: the module and what it imports take a while.
    from .device_side import DeviceSide

    return DeviceSide(**kept)


def warm_up() -> None:
    """Compile what small batches, vertex operations and pages of neighbours need beyond the packed array's own
    kernels, or load it from the cache."""
    graph = Graph(weighted=False, in_edges=False, threads=DIVIDED_THREADS_MIN)
    try:
        graph.load(EdgeList(np.arange(100, dtype=np.uint64)), 100)
        graph.apply(EdgeBatch.of([0], [1]), 100)
        heads = np.arange(1 << 15, dtype=np.uint64)
        graph.load(EdgeList(heads), heads.size)
        for n in (SMALL_UPDATES_MAX, SMALL_UPDATES_MAX + 1):
            graph.apply(EdgeBatch(heads[:n], np.ones(n, np.uint8)), heads.size)
        graph.load(EdgeList(np.empty(0, np.uint64)), heads.size)
        graph.apply(EdgeBatch.of([0], [1]), heads.size)
        Report.of(no_change(False)).changed()  # as programs ask after a batch that is not small
        ops = VertexOps(np.ones(1, np.uint32), np.full(1, Op.DELETE_VERTEX, np.uint8), np.zeros(1, np.int64))
        graph.apply(EdgeBatch.of([], []), heads.size, ops)
        graph.apply(EdgeBatch.of([0], [1]), heads.size)
        for copy in (copy_row, copy_short_row):
            copy(graph.out_rows(), 0, 0, np.empty(1, np.uint32), np.empty(0, np.float32))
        for weights in (True, False):
            transposed(EdgeList(np.ones(1, np.uint64), np.ones(1, np.float32)), weighted=weights, crew=graph.crew)
        for module in (scanning, turning, routing):
            module.warm_up(graph.crew)
    finally:
        graph.close()
