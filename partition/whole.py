"""Every row is on the host; a device, where there is one, has the same ones.

The device, which is asked what the host has found good, works while the host writes. What it raises, whatever it
is, never fails a change: it is dropped, and the host goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from ..gpma.edges import ChangeReport, EdgeBatch, EdgeList, Keys, Vertices, Weights, pack
from ..gpma.host.small import Totals
from ..gpma.rows import RowView, copy_row
from ..gpma.team import Crew
from .changes import Report, no_change
from .graph_rows import GraphRows, Shape, of_rows, require_heads
from .host_side import HostSide
from .placement import Placement
from .side import Direction, Reader
from .weights import in_domain

if TYPE_CHECKING:
    from .device_side import DeviceSide, DeviceSidePlan

T = TypeVar("T")


class WholeRows(GraphRows):
    """The host's rows, and a device's, equal to them after each change."""

    def __init__(self, shape: Shape, hosts: Sequence[HostSide], device: DeviceSide | None, crew: Crew) -> None:
        super().__init__(shape, hosts, device, crew)
        self.placement = Placement()

    # -- changes ------------------------------------------------------------------------------------------------

    def ensure_vertices(self, n_vertices: int) -> None:
        self.host.ensure_vertices(n_vertices)
        self._on_device(lambda device: device.ensure_vertices(n_vertices))
        self.placement.ensure_vertices(n_vertices)

    def withdraw_vertices(self, n_vertices: int) -> None:
        self.placement.withdraw_vertices(n_vertices)
        self.host.withdraw_vertices(n_vertices)
        self._on_device(lambda device: device.withdraw_vertices(n_vertices))

    def columns(self, n: int, *, weighted: bool) -> EdgeBatch:
        columns = self._on_device(lambda device: device.columns(n, weighted=weighted))
        return EdgeBatch.empty(n, weighted=weighted) if columns is None else columns

    def apply(self, batch: EdgeBatch, n_before: int) -> Report:
        plan = self.host.prepare(*of_rows(batch, self.shape, self.crew)) if len(batch) else None
        on_device = self._begin_on_device(lambda: batch)
        report = no_change(self.shape.weighted) if plan is None else self.host.commit(plan)
        self._finish_on_device(on_device)
        return Report.of(report)

    def apply_small(self, batch: EdgeBatch, n_updates: int, n_vertices: int) -> tuple[ChangeReport, Totals] | None:
        domain = self.shape.weight_domain
        small = self.host.apply_small(batch, n_updates, n_vertices, not self.shape.directed, domain == "any")
        if small is None:
            return None

        def cleaned() -> EdgeBatch:  # on the host nothing may fail any more
            if batch.weights is None or not self.shape.weighted:
                return replace(batch, weights=None)
            return replace(batch, weights=in_domain(batch.weights, domain, self.crew))

        self._finish_on_device(self._begin_on_device(cleaned))
        return small

    def load(self, edges: EdgeList, n_vertices: int) -> None:
        out, in_ = self.host.out, self.host.in_
        out_plan = out.prepare_load(edges)
        if in_ is None:
            require_heads(edges.keys, n_vertices, self.crew)
        # In-rows take as much as out-rows at most, and so does putting them in order.
        self.host.memory.require((1 if in_ is None else 3) * out.more_bytes(out_plan))
        in_plan = None if in_ is None else in_.prepare_load(self.in_arcs(edges))
        self.host.commit_load(out_plan, in_plan)
        self._on_device(lambda device: device.load(edges))

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

    # -- reads --------------------------------------------------------------------------------------------------

    def n_stored(self, direction: Direction) -> int:
        return self.host.array(direction).n_edges

    def has_edge(self, direction: Direction, keys: Keys) -> npt.NDArray[np.bool_]:
        return self.host.has_edge(direction, keys)

    def weights_of(self, direction: Direction, keys: Keys) -> Weights:
        return self.host.weights_of(direction, keys)

    def keys_of(self, direction: Direction, vertices: Vertices) -> Keys:
        rows = self.host.rows(direction, vertices)
        return pack(np.repeat(vertices, np.diff(rows.offsets)), rows.neighbors)

    def neighbors(
        self, direction: Direction, vertex: int, first: int, limit: int
    ) -> tuple[Vertices, Weights | None]:
        rows = self.view(direction)
        weighted = self.host.array(direction).weighted
        neighbors = np.empty(min(limit, int(rows.degrees[vertex])), np.uint32)
        weights = np.empty(neighbors.size if weighted else 0, np.float32)
        copied = copy_row(rows, vertex, first, neighbors, weights)
        return neighbors[:copied], weights[:copied] if weighted else None

    def degrees(self, direction: Direction) -> npt.NDArray[np.uint32]:
        return self.view(direction).degrees

    def view(self, direction: Direction) -> RowView:
        return self.host.array(direction).view()

    def view_of(self, direction: Direction, vertices: Vertices) -> RowView:
        return self.view(direction)

    def is_whole(self) -> bool:
        return True

    def mirror(self) -> Reader:
        return self.host.array("in")

    def export(self, direction: Direction) -> EdgeList:
        return self.host.export_rows(direction)

    def export_from(self, first_key: int, keys: Keys, weights: Weights) -> int:
        return self.host.export_from(first_key, keys, weights)

    def check(self, out: EdgeList, in_: EdgeList | None) -> list[str]:
        return self._on_device(lambda device: device.check(out, in_)) or []
