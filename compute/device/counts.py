"""Path counts on a CUDA device: beside a breadth-first search there, and with copies of both on the host.

The algorithm, the columns and the counts are those of ``compute/counts/sspaths.py``, to the last bit.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ...gpma.device.module import use_device
from ...gpma.edges import Vertices
from ...gpma.team import Crew
from ...partition.device_side import DeviceSide
from ...partition.graph import Graph, GraphChange
from ..counts.sspaths import SSPaths
from ..program import Refresh
from ..steps import Steps, alone
from . import count_calls, count_list, fetch
from .count_runs import CountRun, CountRuns, count_kernels
from .paths import DevicePathProgram
from .program import DeviceProgram

_NONE = np.empty(0, np.uint32)
_NOTHING = CountRun(0, 0, 0, 0, 0, 0)


class DeviceSSPaths(DeviceProgram, of=SSPaths):
    """Path counts that are kept on the device; made from the host's."""

    by_steps: ClassVar[bool] = True
    host: SSPaths

    def __init__(self, host: SSPaths) -> None:
        super().__init__(host)
        self._hops = DevicePathProgram(host.hops)
        self._runs: CountRuns | None = None
        self._n = 0

    def compile(self, device: DeviceSide) -> None:
        fetch.warm_up(np.float64)
        self._hops.compile(device)
        count_calls.warm_up()
        count_list.warm_up()
        count_kernels().compile(device)

    # -- runs -------------------------------------------------------------------------------------------------

    def _start(self, graph: Graph, device: DeviceSide) -> Refresh:
        return alone(self._starting(graph, device))

    def _starting(self, graph: Graph, device: DeviceSide) -> Steps[Refresh]:
        hops = yield from self._hops.starting(graph, device)
        return (yield from self._count_all(graph, device, hops))

    def _refresh(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Refresh:
        runs = self._runs_on(graph, device)
        # Counting begins as the search ends, while the host takes over what that wrote.
        try:
            hops = self._hops.refreshed(graph, device, change, runs)
        except BaseException:
            runs.let_end()  # while rows and counts lie where they did when it was launched
            raise
        if self._is_all_to_count(hops):
            return alone(self._count_all(graph, device, hops))
        counted = _NOTHING
        if len(device.report) or hops.active:
            counted = runs.count_at_once(device, self._hops.runs)
        return self._counted(graph, hops, runs, counted)

    def _refreshing(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Steps[Refresh]:
        hops = yield from self._hops._refreshing(graph, device, change)
        if self._is_all_to_count(hops):
            return (yield from self._count_all(graph, device, hops))
        runs = self._runs_on(graph, device)
        counted = _NOTHING
        if len(device.report) or hops.active:
            counted = yield from runs.count(device, self._hops.runs)
        return self._counted(graph, hops, runs, counted)

    def _is_all_to_count(self, hops: Refresh) -> bool:
        """Whether the search started over, or did what its log does not tell."""
        return _moved(hops) is None or self._hops.in_two_runs

    def _counted(self, graph: Graph, hops: Refresh, runs: CountRuns, counted: CountRun) -> Refresh:
        """Take over what a run counted, after a search that did not start over."""
        before, self._n = self._n, graph.n_vertices
        moved = _moved(hops)
        assert moved is not None
        self.host.take_levels(graph, moved)
        changed = self._take(runs, counted, graph.crew)
        if self._n > before:
            changed = np.concatenate([changed[changed < before], np.arange(before, self._n, dtype=np.uint32)])
        return Refresh(
            {"count": changed} if changed.size else {},
            iterations=max(hops.iterations, counted.rounds),
            edges_read=hops.edges_read + counted.edges,
            active=hops.active + counted.counted,
        )

    def _take(self, runs: CountRuns, run: CountRun, crew: Crew) -> Vertices:
        """Take over what a run changed; the vertices with another count."""
        if not run.changed:
            return _NONE
        self.host.count_saturated(run.saturated)
        counts, listed = self.host.counts, runs.changes(run)
        if listed is not None:
            return count_list.take(counts, listed, crew)
        vertices, _ = fetch.take_differing(counts, runs.read(self._n), crew)
        return vertices

    def _count_all(self, graph: Graph, device: DeviceSide, hops: Refresh) -> Steps[Refresh]:
        """Count from scratch, on hops that are right."""
        self._n = n = graph.n_vertices
        runs = self._runs_on(graph, device)
        run = yield from runs.start(device, self._hops.runs)
        self.host.take_all(graph, runs.read(n), run.saturated)
        return Refresh(
            {"count": None},
            iterations=max(hops.iterations, run.rounds),
            edges_read=hops.edges_read + run.edges,
            active=max(hops.active, run.counted),
            started_over=hops.started_over or self._hops.in_two_runs,
        )

    def _take_over(self, graph: Graph, device: DeviceSide) -> None:
        self._n = n = graph.n_vertices
        self._hops._take_over(graph, device)
        self._runs_on(graph, device).write(self.host.levels[:n], self.host.counts[:n])

    def _let_go(self) -> None:
        self._runs = None
        self._hops._let_go()

    def _runs_on(self, graph: Graph, device: DeviceSide) -> CountRuns:
        """The counts on the device, with room for the graph's vertices."""
        use_device()  # for the thread that runs programs now
        if self._runs is None:
            self._runs = CountRuns(device)
        self._runs.make_room(graph.n_vertices, device.n_arcs)
        return self._runs

    def memory_bytes(self) -> int:
        return super().memory_bytes() + self._hops.memory_bytes() - self.host.hops.memory_bytes()


def _moved(hops: Refresh) -> Vertices | None:
    """The vertices whose words the search wrote; None: it started over."""
    return hops.changed.get("word", _NONE)
