"""Components on a CUDA device: the forest there, a copy of it on the host, and what changed.

The columns and their rules are those of ``compute/forest``; the host's program is kept beside, has the copy, and
names the components, since external ids are known there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...gpma.device.module import use_device
from ...partition.device_side import DeviceSide
from ...partition.graph import Graph, GraphChange
from ..forest import taken
from ..forest.components import Components
from ..forest.taken import Told
from ..program import Refresh
from . import forest_calls
from .forest_runs import ForestRun, ForestRuns, Limits, Words, forest_kernels
from .program import DeviceProgram

# Mending is given up, in favour of a fresh start, when settling has come to this share of all arcs (and this
# many), when this share of the vertices is lost (and this many), or when this share of them joins other trees.
SETTLE_SHARE, SETTLE_LEAST = 0.125, 4096
LOST_SHARE, LOST_LEAST = 0.03, 1024
MOVED_SHARE, MOVED_LEAST = 0.125, 1024


class DeviceComponents(DeviceProgram, of=Components):
    """Components whose forest is kept on the device; made from the host's.

    A tree begins with the number of a vertex for its handle: from scratch that of its root, and each new vertex is
    the tree of its own number. So every handle below the number of vertices names a tree or is free.
    """

    host: Components

    def __init__(self, host: Components) -> None:
        super().__init__(host)
        self._runs: ForestRuns | None = None

    def compile(self, device: DeviceSide) -> None:
        taken.warm_up()
        forest_calls.warm_up()
        forest_kernels().compile(device)

    # -- runs -------------------------------------------------------------------------------------------------

    def _start(self, graph: Graph, device: DeviceSide) -> Refresh:
        n = graph.n_vertices
        runs = self._runs_on(graph, device)
        run = runs.start(device)
        changed = self.host.take_all(graph, runs.pieces(n), runs.members(device))
        return Refresh(changed, iterations=run.rounds, edges_read=run.edges, active=n)

    def _refresh(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Refresh:
        if not len(device.report) and graph.n_vertices == change.n_vertices_before:
            return Refresh(self.host.take(graph, change, _told(np.empty((0, 4), np.uint32))))
        runs = self._runs_on(graph, device)
        run = runs.mend(device, limits(graph.n_vertices, graph.n_arcs))
        if run.gave_up:
            fresh = self._start(graph, device)
            return replace(fresh, edges_read=fresh.edges_read + run.edges, started_over=True)
        changed = self.host.take(graph, change, self._changes(runs, run, graph))
        return Refresh(changed, iterations=run.rounds, edges_read=run.edges, active=run.logged)

    def _changes(self, runs: ForestRuns, run: ForestRun, graph: Graph) -> Told:
        listed = runs.changes(run)
        if listed is None:
            return self.host.differing(runs.read(graph.n_vertices), graph.crew)
        return Told(listed[:, 0].copy(), listed[:, 1].copy(), listed[:, 2].copy(), listed[:, 3].copy())

    def _take_over(self, graph: Graph, device: DeviceSide) -> None:
        forest = self.host.forest_of(graph)
        self._runs_on(graph, device).write(forest.parent, forest.level, forest.handle)

    def _runs_on(self, graph: Graph, device: DeviceSide) -> ForestRuns:
        """The forest on the device, with room for the graph's vertices."""
        use_device()  # for the thread that runs programs now
        if self._runs is None:
            self._runs = ForestRuns(device)
        self._runs.make_room(graph.n_vertices, device.n_arcs)
        return self._runs


def limits(n_vertices: int, n_arcs: int) -> Limits:
    """What mending may come to on a graph of this size."""
    return Limits(
        max(LOST_LEAST, int(LOST_SHARE * n_vertices)),
        max(MOVED_LEAST, int(MOVED_SHARE * n_vertices)),
        max(SETTLE_LEAST, int(SETTLE_SHARE * n_arcs)),
    )


def _told(nodes: Words) -> Told:
    """The nodes of the first vertices."""
    parent, level, handle = (nodes[:, k].copy() for k in range(3))
    return Told(np.arange(parent.size, dtype=np.uint32), parent, handle, level)
