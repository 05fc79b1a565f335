"""Personalised PageRank on a CUDA device: the system there in fixed point, the certificate on the host.

The proof and the certificate are those of ``compute/walks/ppr.py``, whose program is kept beside. What is solved
there is the system with shares that were rounded to integers (``ppr.cuh``). By how much that may put residuals
off, all together, is counted for every edge, and the certificate has it as its rounding. Restarts have the same
strength at all times: what the host does by another strength, passes do by their factor.

After few updates sums are edited, and nothing is solved until residuals have come to what they may; then the
largest are pushed along out-edges (``ppr_pushes.cu``). After many, or where that costs too much, passes over all
in-edges go on from the estimates (``ppr_passes.cu``), which were edited first where that saves passes. A start is
a change, too: of nothing, by all of the sources.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ...gpma.device.module import use_device
from ...gpma.edges import Vertices
from ...partition.device_side import DeviceSide
from ...partition.graph import Graph, GraphChange
from ..program import Column, Refresh
from ..saved_scalars import SCALARS, unpacked
from ..steps import Steps, alone
from ..walks.ppr import TARGET, PersonalisedPageRank, Solved
from .narrowed import F32
from .ppr_numbers import Sums
from .ppr_runs import PprRuns, ppr_kernels
from .program import Unfit
from .walk import DeviceWalk

TOLERANCE_MIN = 1e-6
"""The audit shares out among vertices what rounding may put residuals off by; with less, not all have enough."""

# Batches of more updates than this share of the arcs, and than so many, are not tried to be pushed.
PUSH_SHARE, PUSH_LEAST = 1e-3, 1024
# Others of up to this share are edited before passes, of which fewer are needed then.
EDIT_SHARE = 1e-2
# After so many batches for which pushes were given up, and none as large between for which they were not, those of
# as many updates as the last one and more are not tried, so often, until another one is. (A single one may be the
# last of many small ones that came together.)
IN_VAIN_MAX, UNTRIED_MAX = 2, 64
# By how much a rounded share may be off, in units; and beyond that what double rounds, as a share of all values.
_UNIT_ROUNDED, _ROUNDED = 1.0, 2.0**-50
_NONE = np.empty(0, np.uint32)


class DevicePersonalisedPageRank(DeviceWalk, of=PersonalisedPageRank):
    """Personalised PageRank whose system is kept on the device; made from the host's."""

    by_steps: ClassVar[bool] = True
    host: PersonalisedPageRank

    def __init__(self, host: PersonalisedPageRank) -> None:
        super().__init__(host)
        self._runs: PprRuns | None = None
        # The sums of the numbers on the device; None: they are those of another graph, or not exact.
        self._kept: Sums | None = None
        # Where they restart.
        self._sources = _NONE
        # For how many batches pushes were given up since one as large was pushed, of how many updates the last one
        # was, and how many have not been tried since.
        self._in_vain, self._too_many, self._untried = 0, 0, 0

    def compile(self, device: DeviceSide) -> None:
        ppr_kernels().compile(device)

    # -- runs -------------------------------------------------------------------------------------------------

    def _start(self, graph: Graph, device: DeviceSide) -> Refresh:
        self._there(graph, device).clear()
        self._kept, self._sources, self._in_vain = Sums(0, 0, 0), _NONE, 0
        return alone(self._settled(graph, device, 0, self.host.existing_sources(graph), _NONE, whole=True))

    def _refreshing(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Steps[Refresh]:
        sources, gone = self.host.existing_sources(graph), change.deleted_vertices
        inserted, _, deleted, _ = change.report.totals
        if not (inserted or deleted or gone.size or graph.n_vertices > self._n or _differ(sources, self._sources)):
            return Refresh({}, error_bound=self.host.error_bound)
        return (yield from self._settled(graph, device, len(device.report), sources, gone, whole=False))

    def _settled(
        self, graph: Graph, device: DeviceSide, n_updates: int, sources: Vertices, gone: Vertices, *, whole: bool
    ) -> Steps[Refresh]:
        """Solve for the batch of so many updates that the device applied last, and for restarts at ``sources``.

        ``gone``: the vertices that went. ``whole``: whether all estimates are to be taken as changed.
        """
        runs = self._there(graph, device)
        before, kept = self._sources, self._kept
        self._kept = None
        if not sources.size:
            runs.clear()
            whole = whole or before.size > 0
            bound = self._certified(graph, sources, Sums(0, 0, 0))
            return Refresh({"estimate": None} if whole else {}, error_bound=bound)
        begins = ends = _NONE
        if _differ(sources, before):
            begins = np.setdiff1d(sources, before)
            ends = np.setdiff1d(np.setdiff1d(before, sources), gone)
        if begins.size or ends.size or gone.size:
            runs.enter(begins, ends, gone)
        rounds = edges = active = n_edited = 0
        changed: Vertices | None = None
        if kept is not None and self._tries(n_updates, graph.n_arcs):
            run = yield from runs.push(device, kept, n_updates)
            rounds, edges, active = run.rounds, run.edges, run.moved
            kept, changed = (run.sums, runs.changes(run)) if run.is_solved else (None, None)
            self._heed_pushes(n_updates, is_solved=kept is not None)
        else:
            n_edited = n_updates if kept is not None and n_updates <= EDIT_SHARE * graph.n_arcs else 0
            kept = None
        if kept is None:
            run = yield from runs.solve(device, n_edited)
            rounds, edges, kept = rounds + run.rounds, edges + run.rounds * graph.n_arcs, run.sums
        if whole:
            changed = None
        return Refresh(
            {"estimate": changed} if changed is None or changed.size else {},
            iterations=rounds,
            edges_read=edges,
            active=active,
            error_bound=self._certified(graph, sources, kept),
        )

    def _tries(self, n_updates: int, n_arcs: int) -> bool:
        """Whether a batch of so many updates is tried to be pushed."""
        if n_updates > max(PUSH_LEAST, PUSH_SHARE * n_arcs):
            return False
        if self._in_vain < IN_VAIN_MAX or n_updates < self._too_many:
            return True
        self._untried += 1
        return self._untried > UNTRIED_MAX

    def _heed_pushes(self, n_updates: int, *, is_solved: bool) -> None:
        if is_solved:
            if n_updates >= self._too_many:
                self._in_vain = 0
        elif n_updates:  # else it was restarts that changed
            self._in_vain, self._too_many, self._untried = self._in_vain + 1, n_updates, 0

    def _certified(self, graph: Graph, sources: Vertices, kept: Sums) -> float:
        """Certify what the device has now; the error bound."""
        self._graph, self._n, self._sources = graph, graph.n_vertices, sources
        if not self.host.certify(graph, sources, self._solved(kept, graph.n_arcs)):
            raise Unfit(f"the numbers of the device do not reach a tolerance of {self.host.tolerance:g}")
        self._kept, self._is_ahead = kept, True
        return self.host.error_bound

    def _solved(self, sums: Sums, n_arcs: int) -> Solved:
        assert self._runs is not None
        rounded = _UNIT_ROUNDED * n_arcs + _ROUNDED * sums.norm
        unit = self._runs.unit
        return Solved(sums.norm / unit, sums.size / unit, sums.total / unit, rounded / unit)

    def _take_over(self, graph: Graph, device: DeviceSide) -> None:
        state = self.host.state()
        (level,) = unpacked(state, ("level",)).values()
        self._kept, self._sources = None, state["sources"].astype(np.uint32)
        self._n = graph.n_vertices
        self._is_ahead = False
        runs = self._there(graph, device)
        runs.write(state["estimate"] / level, state["residual"] / level, self._sources)

    def _let_go(self) -> None:
        super()._let_go()
        self._runs = self._kept = None

    def _there(self, graph: Graph, device: DeviceSide) -> PprRuns:
        """The system on the device, with room for the graph's vertices and rows."""
        use_device()  # for the thread that runs programs now
        if self._runs is None:
            host = self.host
            share = host.size_share
            self._runs = PprRuns(host.damping, len(host.sources), share, TARGET * share, device)
        self._runs.make_room(graph.n_vertices, device.n_arcs)
        return self._runs

    # -- the copy on the host ---------------------------------------------------------------------------------

    @property
    def _estimates(self) -> F32:
        assert self._runs is not None
        return self._runs.estimates

    def _read(self) -> dict[str, Column]:
        assert self._runs is not None
        values, residuals = self._runs.read(self._n)
        return {
            "estimate": values,
            "residual": residuals,
            "sources": self._sources,
            SCALARS: self.host.saved_scalars(1.0),
        }

    def _sizes(self) -> dict[str, int]:
        by_vertex = self._n * np.dtype(np.float64).itemsize
        return {
            "estimate": by_vertex,
            "residual": by_vertex,
            "sources": self._sources.nbytes,
            SCALARS: self.host.saved_scalars(1.0).nbytes,
        }


def _differ(one: Vertices, other: Vertices) -> bool:
    return not np.array_equal(one, other)
