"""Every row is on the host; a device, where there is one, has the same ones.

The device, which is asked what the host has found good, works while the host writes. What it raises, whatever it
is, never fails a change: it is dropped, and the host goes on.

Where nobody reads the host's rows for now (``may_follow``), it need not keep up with a device that takes a tenth
of its time: the device applies a batch, and the host *follows* (``behind.py``). Whatever reads its rows here first
waits until it has taken all there is, so that nobody ever sees that it was behind. All that can refuse a batch is
looked at before the device gets it: ends, weights, and whether there is memory for the host to follow. If that is
gone when the host takes it, the next batch waits, as one does for which there is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakMethod

import numpy as np
import numpy.typing as npt

from ..gpma.edges import EdgeBatch, EdgeList, Keys, Vertices, Weights, pack
from ..gpma.gate import BeforeWriting
from ..gpma.rows import RowView, copy_row, copy_short_row
from ..gpma.team import Crew
from ..gpma.written import Words
from .behind import GATHERED, SECONDS_MAX, Behind, Lag, Take
from .changes import Report, no_change
from .graph_rows import GraphRows, Shape, of_rows, require_ends, require_heads
from .host_side import HostSide
from .placement import Placement
from .side import Direction, Reader
from .weights import in_domain

if TYPE_CHECKING:
    from .device_side import DeviceSide, DeviceSidePlan

T = TypeVar("T")

SHORT_ROW = 1 << 12
"""A row of so many edges is gone through in microseconds."""

# The host is behind by so many updates at most, or by one to so many edges.
WAITING_MIN, EDGES_PER_WAITING = 1 << 20, 8
# What the host needs to follow, for each update (its copies, and what both orientations take to order and to write
# it), and of its slots, which grow by a fifth at a time. It is asked so often whether there is so much, for so
# many updates if it can be: to ask takes a millisecond on some machines, as long as a small epoch.
BYTES_PER_UPDATE, GROWING_SHARE, ASKED_EVERY_S, ASKED_FOR = 320, 0.25, 0.5, 2 * GATHERED


class WholeRows(GraphRows):
    """The host's rows, and a device's, equal to them after each change, as far as anybody can see."""

    def __init__(self, shape: Shape, hosts: Sequence[HostSide], device: DeviceSide | None, crew: Crew) -> None:
        super().__init__(shape, hosts, device, crew)
        self.placement = Placement()
        self._behind = Behind(_weakly(self._take))
        # What there is after the last batch, wherever it was applied so far.
        self._n_vertices = self._n_arcs = 0
        self._promised, self._asked_at = 0, -ASKED_EVERY_S

    @property
    def keeps_up(self) -> bool:
        return self.device is None or not (self.may_follow or self._behind.waiting)

    # -- changes ------------------------------------------------------------------------------------------------

    def ensure_vertices(self, n_vertices: int) -> None:
        if not (self.may_follow or self._behind.waiting):  # else the host's arrays may be at work: see ``_ready``
            self.host.ensure_vertices(n_vertices)
        # Not before: who reads now would have the host's arrays grow in its own thread.
        self._n_vertices = n_vertices
        if self.device is not None:
            self._on_device(lambda device: device.ensure_vertices(n_vertices))
        self.placement.ensure_vertices(n_vertices)

    def withdraw_vertices(self, n_vertices: int) -> None:
        self._n_vertices = n_vertices
        self.placement.withdraw_vertices(n_vertices)
        if self.host.out.n_vertices > n_vertices:
            self.host.withdraw_vertices(n_vertices)
        self._on_device(lambda device: device.withdraw_vertices(n_vertices))

    def columns(self, n: int, *, weighted: bool) -> EdgeBatch:
        columns = self._on_device(lambda device: device.columns(n, weighted=weighted))
        return EdgeBatch.empty(n, weighted=weighted) if columns is None else columns

    def apply(self, batch: EdgeBatch, before_writing: BeforeWriting, *, told: bool = False) -> Report:
        if self._follows(len(batch)):
            ahead = self._apply_ahead(batch, told=told)
            if ahead is not None:
                return ahead
        self._ready()
        if not len(batch):
            before_writing()
            self._finish_on_device(self._begin_on_device(lambda: batch))
            return Report.of(no_change(self.shape.weighted))
        plan = self.host.prepare_rows(*of_rows(batch, self.shape, self.crew))
        gate = self.host.keep_out(plan, before_writing)
        on_device = self._begin_on_device(lambda: batch)
        try:
            report = self.host.commit(plan, gate)
        except BaseException as error:
            if not self.host.unfinished:  # an interrupt before the first write: the device alone has the batch
                self.drop_device(f"{type(error).__name__}: {error}")
            raise
        with self.host.middle:  # nobody has heard of it yet
            self._finish_on_device(on_device)
        return Report.of(report)

    def apply_small(
        self, batch: EdgeBatch, n_updates: int, n_vertices: int, before_writing: BeforeWriting
    ) -> tuple[Report, tuple[int, ...]] | None:
        if self._behind.waiting or (self.may_follow and self.device is not None):
            return None
        host = self.host
        if host.out.n_vertices < self._n_vertices:
            host.ensure_vertices(self._n_vertices)
        small = host.apply_small(batch, n_updates, n_vertices, self.mirrored, self.negative, before_writing)
        if small is not None and self.device is not None:
            with host.middle:
                self._finish_on_device(self._begin_on_device(lambda: self._cleaned(batch)))
        return small

    def _cleaned(self, batch: EdgeBatch) -> EdgeBatch:
        """A batch whose weights the host has found good, as a device takes it: nothing of it may fail any more."""
        if batch.weights is None or not self.shape.weighted:
            return replace(batch, weights=None)
        return replace(batch, weights=in_domain(batch.weights, self.shape.weight_domain, self.crew))

    def load(self, edges: EdgeList, n_vertices: int) -> None:
        host = self._ready()
        out, in_ = host.out, host.in_
        out_plan = out.prepare_load(edges, self.crew)
        if in_ is None:
            require_heads(edges.keys, n_vertices, self.crew)
        # In-rows take as much as out-rows at most, and so does putting them in order.
        self.host.memory.require((1 if in_ is None else 3) * out.more_bytes(out_plan))
        in_plan = None if in_ is None else in_.prepare_load(self.in_arcs(edges), self.crew)
        self.host.commit_load(out_plan, in_plan)
        with self.host.middle:  # nobody has heard of it yet
            self._on_device(lambda device: device.load(edges))

    def close(self) -> None:
        self._behind.close()
        super().close()

    # -- the host follows ---------------------------------------------------------------------------------------

    @property
    def lag(self) -> Lag:
        return self._behind.lag

    def catch_up(self) -> None:
        self._ready()

    def _ready(self) -> HostSide:
        """The host, once it has taken all that was applied, with room for all vertices.

        Raises:
            MemoryError: there is not enough; what waits goes on waiting.
        """
        self._behind.catch_up()
        self._have_room()
        return self.host

    def _have_room(self) -> None:
        if self.host.out.n_vertices < self._n_vertices:
            self.host.ensure_vertices(self._n_vertices)

    def _take(self, batch: EdgeBatch, n_vertices: int) -> None:
        """Have the host take what the device has."""
        self.host.ensure_vertices(n_vertices)
        if len(batch):
            self.host.commit(self.host.prepare_rows(*of_rows(batch, self.shape, self.crew)))

    def _follows(self, n_updates: int) -> bool:
        """Whether the host may take so many updates later than the device; waits where it is too far behind.

        Raises:
            MemoryError: it is, and there is not enough for it to catch up.
        """
        if not self.may_follow or self.device is None:
            return False
        lag = self._behind.lag
        waiting = lag.updates + n_updates
        if lag.seconds > SECONDS_MAX or waiting > max(WAITING_MIN, self.n_stored("out") // EDGES_PER_WAITING):
            self._behind.catch_up()
            waiting = n_updates
        return self._is_promised(waiting) and self._behind.begin()

    def _is_promised(self, n_updates: int) -> bool:
        """Whether there is memory for the host to take so many updates."""
        now = time.monotonic()
        if n_updates > self._promised or now - self._asked_at > ASKED_EVERY_S:
            growth = int(GROWING_SHARE * self.host.memory_bytes()["slots"])

            def is_there(n: int) -> bool:
                return self.host.memory.allows(BYTES_PER_UPDATE * n + growth)

            many = max(2 * n_updates, ASKED_FOR)  # so that the next ones need not ask
            self._promised = many if is_there(many) else 2 * n_updates if is_there(2 * n_updates) else 0
            self._asked_at = now
        return n_updates <= self._promised

    def _apply_ahead(self, batch: EdgeBatch, *, told: bool) -> Report | None:
        """Have a batch applied by the device, and taken by the host later. None: the device is lost, and nothing
        was applied.

        Raises:
            ValueError: a row does not exist.
            MemoryError: there is not enough.
        """
        require_ends(batch.keys, self._n_vertices, self.crew)
        # Whoever has its columns fills them anew; the memory is taken before anything can be written.
        kept = EdgeBatch.empty(len(batch), weighted=self.shape.weighted)

        def work(device: DeviceSide) -> tuple[Report, int]:
            plan = device.prepare(batch)
            device.launch(plan)
            kept.keys[:], kept.ops[:] = batch.keys, batch.ops
            if kept.weights is not None:
                kept.weights[:] = 1 if batch.weights is None else batch.weights
            device.finish(plan)
            report = device.rows_report()
            # What is read of it later must not fail any more.
            if told:
                report.read()
            elif not self.shape.directed:
                report.loops(self.crew)
            return report, device.out.n_edges

        done = self._on_device(work)
        if done is None:
            return None
        report, self._n_arcs = done
        self._behind.put(kept, self._n_vertices)
        return report

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
        except BaseException as error:
            self.drop_device(f"{type(error).__name__}: {error}")
            if not isinstance(error, Exception):  # an interrupt, say, in the middle of what it did
                raise
            return None

    # -- reads --------------------------------------------------------------------------------------------------

    def n_stored(self, direction: Direction) -> int:
        return self._n_arcs if self._behind.waiting else self.host.array(direction).n_edges

    def has_edge(self, direction: Direction, keys: Keys) -> npt.NDArray[np.bool_]:
        return self._ready().has_edge(direction, keys)

    def weights_of(self, direction: Direction, keys: Keys) -> Weights:
        return self._ready().weights_of(direction, keys)

    def keys_of(self, direction: Direction, vertices: Vertices) -> Keys:
        rows = self._ready().rows(direction, vertices)
        return pack(np.repeat(vertices, np.diff(rows.offsets)), rows.neighbors)

    def neighbors(
        self, direction: Direction, vertex: int, first: int, limit: int
    ) -> tuple[Vertices, Weights | None]:
        rows = self.view(direction)
        weighted = self.host.array(direction).weighted
        degree = int(rows.degrees[vertex])
        neighbors = np.empty(min(limit, degree), np.uint32)
        weights = np.empty(neighbors.size if weighted else 0, np.float32)
        copy = copy_short_row if degree <= SHORT_ROW else copy_row
        copied = copy(rows, vertex, first, neighbors, weights)
        return neighbors[:copied], weights[:copied] if weighted else None

    def degrees(self, direction: Direction) -> npt.NDArray[np.uint32]:
        return self.view(direction).degrees

    def view(self, direction: Direction) -> RowView:
        waits = self.device is not None or self.may_follow or self._behind.waiting
        return (self._ready() if waits else self.host).array(direction).view()

    def row_words(self) -> tuple[Words, Words]:
        waits = self.device is not None or self.may_follow or self._behind.waiting
        host = self._ready() if waits else self.host
        out = host.out.row_words()
        if host.in_ is not None:
            return out, host.in_.row_words()
        self.shape.kept("in")
        return out, out

    def view_of(self, direction: Direction, vertices: Vertices) -> RowView:
        return self.view(direction)

    def is_whole(self) -> bool:
        return True

    def in_place(self, n_vertices: int) -> tuple[RowView, RowView | None] | None:
        if self._behind.waiting or self.host.out.n_vertices < n_vertices:
            return None
        out = self.host.out.view()
        if not self.shape.directed:
            return out, out
        return out, None if self.host.in_ is None else self.host.in_.view()

    def mirror(self) -> Reader:
        return self._ready().array("in")

    def export(self, direction: Direction) -> EdgeList:
        return self._ready().export_rows(direction)

    def export_from(self, first_key: int, keys: Keys, weights: Weights) -> int:
        # It may be behind: what it has yet to take was noted as a change since the copy began.
        return self.host.export_from(first_key, keys, weights)

    def check(self, out: EdgeList, in_: EdgeList | None) -> list[str]:
        return self._on_device(lambda device: device.check(out, in_)) or []


def _weakly(take: Take) -> Take:
    """The method of an object that is not kept: a graph that nobody has any more gives its memory back at once,
    which a circle would put off."""
    method = WeakMethod(take)

    def call(batch: EdgeBatch, n_vertices: int) -> None:
        bound = method()
        assert bound is not None, "rows that are gone are behind"
        bound(batch, n_vertices)

    return call
