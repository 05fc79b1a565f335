"""Each row is on one side only, and may move; a device reads what it does not own where it lies, on the host.

A device that fails takes its rows with it: from then on everything raises ``RowsLost``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from ..gpma.device_failure import is_of_device
from ..gpma.edges import EdgeBatch, EdgeList, Keys, Vertices, Weights, destinations, sources
from ..gpma.gate import NOBODY_READS, BeforeWriting
from ..gpma.host.load_export import first_bad_key
from ..gpma.host.work import column
from ..gpma.rows import RowView
from ..gpma.team import Crew
from .changes import Report
from .graph_rows import GraphRows, Shape, require_heads
from .host_side import HostSide
from .placement import HOST, Owners, Placement
from .side import Direction, Reader
from .split_rows import Migrated, MovePlan, RowsReader, SideFull, SplitPlan, SplitRows

if TYPE_CHECKING:
    from .device_side import DeviceSide

T = TypeVar("T")

PART_EDGES = 1 << 18
"""So many edges move at a time. To move an edge takes more than ten times the memory of the device that it takes
to keep it: rows that leave for want of memory must not want much of it first."""

Divide = Callable[[Vertices, Vertices], Owners]
"""(lengths of out-rows, and of the in-rows that are kept: uint32[n]) -> the owner of each vertex (uint8[n])."""


class RowsLost(RuntimeError):
    """A device failed that alone had some of the rows: this graph is of no use any more, and must be made anew."""


class OwnedRows(GraphRows):
    """Rows divided among sides, as long as all of these are there."""

    def __init__(self, shape: Shape, hosts: Sequence[HostSide], device: DeviceSide | None, crew: Crew) -> None:
        super().__init__(shape, hosts, device, crew)
        self.placement = Placement(len(self.sides))
        self.divide: Divide | None = None
        """Who owns what is loaded; None: who gets new vertices."""
        self._device_number = len(self.sides) - 1
        self._split = SplitRows(self.sides, self.placement, shape, crew)
        if device is not None:
            self.placement.newcomers = self._device_number
            if len(self.hosts) == 1:
                device.read_remote(self.host)

    def drop_device(self, reason: str) -> None:
        if self.device is None:
            return
        super().drop_device(reason)
        self.rows_lost = self.placement.owned[self._device_number] > 0
        self.placement.newcomers = HOST
        self._split.drop(self._device_number)

    def close(self) -> None:
        self._split.close()
        super().close()

    # -- changes ------------------------------------------------------------------------------------------------

    def ensure_vertices(self, n_vertices: int) -> None:
        self._asked(lambda split: split.ensure_vertices(n_vertices))
        n_before = self.placement.owner.size
        self.placement.ensure_vertices(n_vertices)
        # Before a batch names them, of which the device picks updates by what is marked.
        self._mark(np.arange(n_before, n_vertices, dtype=np.uint32))

    def withdraw_vertices(self, n_vertices: int) -> None:
        gone = np.arange(n_vertices, self.placement.owner.size, dtype=np.uint32)
        self.placement.withdraw_vertices(n_vertices)
        self._split.withdraw_vertices(n_vertices)
        if gone.size:
            self._tell(lambda device: device.set_remote(gone, False) if device.reads_remote else None)

    def columns(self, n: int, *, weighted: bool) -> EdgeBatch:
        device = self.device
        if device is None:
            return EdgeBatch.empty(n, weighted=weighted)
        try:
            return self._asked(lambda _: device.columns(n, weighted=weighted))
        except MemoryError:  # ``apply`` says whose, so that something can be done about it
            return EdgeBatch.empty(n, weighted=weighted)

    def apply(self, batch: EdgeBatch, before_writing: BeforeWriting, *, told: bool = False) -> Report:
        before_writing()
        self._require()
        plan = self._asked(lambda split: split.prepare(batch))
        return self._told(lambda split: self._commit(split, plan))

    def apply_small(
        self, batch: EdgeBatch, n_updates: int, n_vertices: int, before_writing: BeforeWriting
    ) -> tuple[Report, tuple[int, ...]] | None:
        """By the host, where it owns all rows."""
        if self.placement.sole != HOST:
            return None
        before_writing()  # copies, which wait for the turnstile, are not to wait for readers, too
        how = batch, n_updates, n_vertices, self.mirrored, self.negative, NOBODY_READS
        small = self._asked(lambda split: split.apply_small(n_updates, lambda: self.host.apply_small(*how)))
        if small is not None:
            with self.host.middle:  # nobody has heard of it yet
                self.applied = self._split.applied
                self._tell(lambda device: device.forget_report())
                self._tell(lambda device: device.hear([small[0].read()]))
        return small

    def _commit(self, split: SplitRows, plan: SplitPlan) -> Report:
        if self.device is not None:
            self.device.forget_report()
        reports = split.commit(plan)
        self.applied = split.applied
        others = [report for side, report in reports.items() if side != self._device_number]
        self._tell(lambda device: device.hear([report.read() for report in others]))
        report = split.whole(reports.values())
        return self._watched(report) if self._device_number in reports else report

    def _watched(self, report: Report) -> Report:
        """The same report. The device's part is read later on, and one that fails at that takes its rows along."""
        return Report(
            report.totals,
            report.slots_moved,
            lambda: self._asked(lambda _: report.read()),
            lambda crew: self._asked(lambda _: report.loops(crew)),
        )

    def load(self, edges: EdgeList, n_vertices: int) -> None:
        self._require_loadable(edges, n_vertices)
        in_ = self.in_arcs(edges) if self.shape.in_edges else None
        for owner in self._divisions(edges, n_vertices):
            self.placement.place(owner)
            try:
                self._asked(lambda split: split.load(edges, in_))
                break
            except SideFull as full:
                if full.side == HOST:
                    self._told(lambda split: split.clear())
                    self._mark_loaded(n_vertices)
                    raise
            except BaseException as error:
                if not isinstance(error, Exception):
                    # An interrupt: some may have the new rows, and others the old ones.
                    self._broken_off(error)
                raise
        self._told(lambda _: self._mark_loaded(n_vertices))

    def _mark_loaded(self, n_vertices: int) -> None:
        self._tell(lambda device: device.rows_moved(None))
        self._mark(np.arange(n_vertices, dtype=np.uint32))

    def _require_loadable(self, edges: EdgeList, n_vertices: int) -> None:
        """Check what sides would find wrong, which by then no longer have what they had.

        Raises:
            ValueError: as ``load``.
        """
        if self.shape.weighted and (edges.weights is None or edges.weights.size != edges.keys.size):
            raise ValueError("a weighted graph needs one weight for each edge")
        bad = first_bad_key(column(edges.keys, np.uint64), n_vertices, self.crew)
        if bad >= 0:
            raise ValueError(f"edge {bad} of {edges.keys.size} is out of order, or of a row that does not exist")
        require_heads(edges.keys, n_vertices, self.crew)

    def _divisions(self, edges: EdgeList, n_vertices: int) -> Iterator[Owners]:
        """Owners to try: as ``divide`` says, or whom new vertices go to; then the host alone."""
        if self.divide is None:
            yield np.full(n_vertices, self.placement.newcomers, np.uint8)
        else:
            heads = destinations(edges.keys) if self.shape.in_edges else np.empty(0, np.uint32)
            out, in_ = (
                np.bincount(ends, minlength=n_vertices).astype(np.uint32) for ends in (sources(edges.keys), heads)
            )
            yield self.divide(out, in_)
        yield np.full(n_vertices, HOST, np.uint8)

    def takes(self, side: int) -> bool:
        """Whether rows may move to a side: it is there, or was lost with rows, which ``migrate`` says."""
        return self.rows_lost or self._split.has(side)

    def migrate(self, vertices: Vertices, to: int, edges: int | None = None) -> Migrated:
        """As ``Graph.migrate``.

        Raises:
            SideFull: a side has not enough memory; some of the rows may have moved.
            RowsLost: a device failed that alone has rows.
        """
        waiting = [vertices] if edges is not None and edges <= PART_EDGES else self._in_parts(vertices)
        moved = Migrated(0, 0)
        while waiting:
            part = waiting.pop()
            try:
                plan = self._asked(partial(SplitRows.prepare_move, vertices=part, to=to))
            except SideFull as full:
                if full.side == to:
                    raise
                if part.size > 1:
                    waiting += np.array_split(part, 2)
                    continue
                # Not even for one row: all of them go, by a way that needs no memory over there.
                plan = self._asked(partial(SplitRows.prepare_evacuation, side=full.side, to=to))
            done = self._told(partial(self._move, plan=plan))
            moved = Migrated(moved.vertices + done.vertices, moved.edges + done.edges)
        return moved

    def _in_parts(self, vertices: Vertices) -> list[Vertices]:
        """Of about PART_EDGES each, or one row that is longer; the last part comes first."""
        lengths = np.zeros(vertices.size, np.int64)
        for direction in self.shape.directions:
            lengths += self.degrees(direction)[vertices]
        part = np.cumsum(lengths) // PART_EDGES
        return np.split(vertices, np.flatnonzero(np.diff(part)) + 1)[::-1]

    def _move(self, split: SplitRows, plan: MovePlan) -> Migrated:
        moved = split.move(plan)
        if self.device is not None:
            self.device.forget_report()
            host, rows = plan.to == HOST, plan.in_rows
            self._tell(lambda device: device.rows_moved(None if rows is None else [*rows.values()], to_host=host))
            self._mark(plan.vertices)
        return moved

    def _mark(self, vertices: Vertices) -> None:
        """Tell the device, as far as it reads rows of the host, which of these are there."""

        def mark(device: DeviceSide) -> None:
            if device.reads_remote and vertices.size:
                here = self.placement.owners(vertices) == self._device_number
                device.set_remote(vertices[here], False)
                device.set_remote(vertices[~here], True)

        self._tell(mark)

    # -- sides that fail ----------------------------------------------------------------------------------------

    def _asked(self, work: Callable[[SplitRows], T]) -> T:
        """What the sides say, who may want memory.

        Raises:
            ValueError, MemoryError, IndexError: as they do; whatever is no failure of the device.
            RowsLost: the device failed.
        """
        self._require()
        try:
            return work(self._split)
        except Exception as error:
            if is_of_device(error) and not isinstance(error, MemoryError):
                self._fail(error)
            raise

    def _told(self, work: Callable[[SplitRows], T]) -> T:
        """What the sides do, who must not fail at it: one that does may be at odds with the others.

        Raises:
            RowsLost: the device failed, whatever it said.
        """
        self._require()
        try:
            return work(self._split)
        except BaseException as error:  # an interrupt in its middle no less
            self._broken_off(error)
            raise

    def _tell(self, work: Callable[[DeviceSide], None]) -> None:
        """What the device hears of a change that is written: where it fails, and has no rows, the others go on.

        Raises:
            RowsLost: it failed, whatever it said, and has rows.
        """
        if self.device is None:
            return
        try:
            work(self.device)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _broken_off(self, error: BaseException) -> None:
        """Of sides of which some may be at odds with the others."""
        self._fail(error)
        self.host.middle.failed |= not self.rows_lost

    def _fail(self, error: BaseException) -> None:
        self.drop_device(f"{type(error).__name__}: {error}")
        if isinstance(error, Exception):
            self._require()

    def _require(self) -> None:
        if self.rows_lost:
            raise RowsLost(f"the device had rows that nobody else has, and failed: {self.device_lost}")

    # -- reads --------------------------------------------------------------------------------------------------

    def n_stored(self, direction: Direction) -> int:
        return self._split.n_stored(direction)

    def has_edge(self, direction: Direction, keys: Keys) -> npt.NDArray[np.bool_]:
        return self._asked(lambda split: split.has_edge(direction, keys))

    def weights_of(self, direction: Direction, keys: Keys) -> Weights:
        return self._asked(lambda split: split.weights_of(direction, keys))

    def keys_of(self, direction: Direction, vertices: Vertices) -> Keys:
        return self._asked(lambda split: split.rows(direction, vertices)).keys

    def neighbors(
        self, direction: Direction, vertex: int, first: int, limit: int
    ) -> tuple[Vertices, Weights | None]:
        return self._asked(lambda split: split.neighbors(direction, vertex, first, limit))

    def degrees(self, direction: Direction) -> npt.NDArray[np.uint32]:
        return self._asked(lambda split: split.degrees(direction))

    def view(self, direction: Direction) -> RowView:
        """The host's own where it owns all, else a copy, which takes as long as an export."""
        return self._asked(lambda split: split.view(direction))

    def view_of(self, direction: Direction, vertices: Vertices) -> RowView:
        """The host's own where it owns all, else a copy of just these rows."""
        return self.view(direction) if self.is_whole() else self._asked(lambda s: s.view_of(direction, vertices))

    def is_whole(self) -> bool:
        return self.placement.sole == HOST

    def mirror(self) -> Reader:
        direction = self.shape.kept("in")
        return RowsReader(self, direction, weighted=self.shape.in_weighted)

    def export(self, direction: Direction) -> EdgeList:
        return self._asked(lambda split: split.export(direction))

    def export_from(self, first_key: int, keys: Keys, weights: Weights) -> int:
        return self._asked(lambda split: split.export_from(first_key, keys, weights))

    def check(self, out: EdgeList, in_: EdgeList | None) -> list[str]:
        return self._asked(lambda split: split.check())
