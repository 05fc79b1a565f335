"""Triangles and local clustering on a CUDA device, which counts them; the tallies are the host's.

What a link is, which of them a change touched and what a tally is are the host's, too (``compute/links.py``,
``compute/triangles``): the device is told the links, and says by how much tallies differ. So it has nothing
between two runs that could be moved or saved.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...gpma.device.module import use_device
from ...partition.device_side import DeviceSide
from ...partition.graph import Graph, GraphChange
from ..program import Refresh
from ..triangles import LocalClustering, Triangles
from ..triangles.tally import Tally
from .program import DeviceProgram
from .tally_runs import TallyRun, TallyRuns, tally_kernels

# A change starts over when it has more than this share of a start's steps.
_START_SHARE = 0.2


class DeviceTally(DeviceProgram):
    """A tally that the device counts; made from the host's."""

    host: Tally

    def __init__(self, host: Tally) -> None:
        super().__init__(host)
        self._runs: TallyRuns | None = None

    @property
    def reads_host(self) -> bool:
        return True  # which links changed is found out there

    def compile(self, device: DeviceSide) -> None:
        tally_kernels().compile(device)

    # -- runs -------------------------------------------------------------------------------------------------

    def _start(self, graph: Graph, device: DeviceSide) -> Refresh:
        run, tally, neighbors = self._runs_on(graph, device).start(device)
        changed = self.host.take_all(graph, tally, neighbors, run.steps)
        return Refresh(changed, iterations=1, edges_read=run.steps, active=graph.n_vertices)

    def _refresh(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Refresh:
        links = self.host.changed_links(graph, change)
        vertices, delta = np.empty(0, np.uint32), np.empty(0, np.int64)
        run = TallyRun(0, 0, 0, 0)
        if links.keys.size:
            runs = self._runs_on(graph, device)
            run = runs.change(device, links, int(self.host.steps_max(graph, _START_SHARE)))
            if run.gave_up:
                return replace(self._start(graph, device), started_over=True)
            vertices, delta = runs.changes(run)
        return Refresh(
            self.host.take_change(graph, vertices, delta, links),
            iterations=int(links.keys.size > 0),
            edges_read=run.entries,
            active=run.touched,
        )

    def _take_over(self, graph: Graph, device: DeviceSide) -> None:
        self._runs_on(graph, device)

    def _runs_on(self, graph: Graph, device: DeviceSide) -> TallyRuns:
        """What counts on the device, with room for the graph's vertices."""
        use_device()  # for the thread that runs programs now
        if self._runs is None:
            self._runs = TallyRuns(device, weighs=self.host.weighs)
        self._runs.make_room(graph.n_vertices)
        return self._runs


class DeviceTriangles(DeviceTally, of=Triangles):
    """Triangles that the device counts."""


class DeviceLocalClustering(DeviceTally, of=LocalClustering):
    """Local clustering coefficients whose arcs the device counts."""
