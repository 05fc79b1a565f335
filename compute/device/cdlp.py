"""Communities by label propagation on a CUDA device: all rounds there, and the labels of the last on the host.

The algorithm, the columns and every bit of them are those of ``compute/rounds``. The other rounds are fetched when
a checkpoint or an audit asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...gpma.device.module import use_device
from ...partition.device_side import DeviceSide
from ...partition.graph import Graph, GraphChange
from ..program import Column, Refresh
from ..rounds import Cdlp
from .cdlp_runs import CdlpRun, CdlpRuns, cdlp_kernels
from .program import DeviceProgram


class DeviceCdlp(DeviceProgram, of=Cdlp):
    """Communities whose rounds are kept on the device; made from the host's."""

    host: Cdlp

    def __init__(self, host: Cdlp) -> None:
        super().__init__(host)
        self._runs: CdlpRuns | None = None
        # Of the last run; what the device has is fetched for it.
        self._graph: Graph | None = None
        # Whether the host's rounds before the last one, and its leads, are older than the device's.
        self._is_ahead = False

    def compile(self, device: DeviceSide) -> None:
        cdlp_kernels().compile(device)

    # -- runs -------------------------------------------------------------------------------------------------

    def start(self, graph: Graph) -> Refresh:
        self._is_ahead = False
        return super().start(graph)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        if self._is_ahead and not self.on_device:  # the device was lost, and the host has failed to start since
            return replace(self.start(graph), started_over=True)
        refresh = super().refresh(graph, change)
        self._is_ahead = self._is_ahead and self.on_device
        return refresh

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        self._is_ahead = False
        super().restore(state, graph)

    def _start(self, graph: Graph, device: DeviceSide) -> Refresh:
        runs = self._runs_on(graph, device)
        run = runs.start(device, self.host.order_of(graph))
        self.host.take_labels(
            graph, np.arange(graph.n_vertices, dtype=np.uint32), runs.last_labels(graph.n_vertices)
        )
        return self._reported(graph, run, {"label": None})

    def _refresh(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Refresh:
        runs = self._runs_on(graph, device)
        order = self.host.order_of(graph)
        run = runs.refresh(device, order, change.revived_vertices, int(self.host.tell_max(graph)))
        labelled = self.host.take_labels(graph, *runs.changes(run, graph.n_vertices))
        if run.whole == self.host.rounds:
            return replace(self._reported(graph, run, {"label": None}), started_over=True)
        return self._reported(graph, run, {"label": labelled} if labelled.size else {})

    def _reported(self, graph: Graph, run: CdlpRun, changed: dict[str, Column | None]) -> Refresh:
        self._graph, self._is_ahead = graph, True
        return Refresh(changed, iterations=self.host.rounds, edges_read=run.read, active=run.asked)

    def _take_over(self, graph: Graph, device: DeviceSide) -> None:
        self._runs = None  # vertices that are no more had labels
        self._graph = graph
        labels, leads = self.host.kept_rounds
        self._runs_on(graph, device).write(labels, leads, self.host.order_of(graph))

    def _runs_on(self, graph: Graph, device: DeviceSide) -> CdlpRuns:
        """The rounds on the device, with room for the graph's vertices and rows."""
        use_device()  # for the thread that runs programs now
        if self._runs is None:
            self._runs = CdlpRuns(device, self.host.rounds)
        self._runs.make_room(graph.n_vertices, device.n_arcs)
        return self._runs

    # -- the copy on the host ---------------------------------------------------------------------------------

    def _fetch(self) -> None:
        """Have the host's program keep all rounds of the last run.

        A device that fails now is lost: then it starts from scratch, which gives the same labels.
        """
        if not self._is_ahead:
            return
        graph = self._graph
        assert graph is not None

        def fetch(_: DeviceSide) -> bool:
            use_device()
            assert self._runs is not None
            self.host.take_rounds(*self._runs.read(graph.n_vertices))
            return True

        if self._on_device(graph, fetch) is None:
            self.host.start(graph)
        self._is_ahead = False

    def state(self) -> dict[str, Column]:
        self._fetch()
        return self.host.state()

    def state_sizes(self) -> dict[str, int]:
        return self.host.state_sizes()

    def prepare_audit(self, graph: Graph) -> None:
        self._fetch()
