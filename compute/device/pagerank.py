"""PageRank on a CUDA device: both systems there in fixed point, the certificate and the estimates on the host.

The proof, the weights and the certificate are those of ``compute/walks``, whose program is kept
beside. What is solved there is the system with shares that were rounded (``walks.cuh``); by how much that may
differ from the true one at any vertex is counted by every run, and the certificate has it as its rounding.

After few updates residuals are pushed along out-edges (``pushes.cu``), after many, or where that costs too much,
passes over all in-edges go on from the estimates as they are (``passes.cu``).

A state of the host's program gives the device estimates to begin with: its residuals are not those of rounded
shares, so that the next run makes all of them anew.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...gpma.device.module import use_device
from ...gpma.edges import Vertices
from ...partition.device_side import DeviceSide
from ...partition.graph import Graph, GraphChange
from ..program import Column, Refresh
from ..saved_scalars import SCALARS
from ..walks.certificate import HUB, SLACK_DRIFT, WEIGHT_HYSTERESIS, amplified
from ..walks.pagerank import PageRank, Solved
from ..walks.passes import Limits
from ..walks.walk import born
from . import push_calls
from .narrowed import F32
from .program import Unfit
from .push_calls import Account, rounded_by
from .push_runs import PushRuns, push_kernels
from .walk import DeviceWalk
from .walk_runs import EXACT, KEPT, SOLVED, Columns, WalkRun, WalkRuns, walk_kernels

TOLERANCE_MIN = 1e-4
"""Rounded shares take up to a tenth of what the certificate allows here; with less, soon all of it."""

# The certificate takes a round for each time that it is tightened, by RATIO_STEP at most.
_ROUNDS_MAX = 40
# Batches of more updates than this share of the arcs, and than so many, are not tried to be pushed.
PUSH_SHARE, PUSH_LEAST = 1e-3, 1024
# Batches of at least as many updates as one of which too much was to be pushed at first are only edited before
# passes, which then go on from better values; so often, until another one is tried.
EDITED_MAX = 64
# Passes end when after one more about so large a share of the arcs is to be pushed along, or less: on an H200 a
# refresh of 10,000 takes 0.9 of its time with 5%, larger ones and starts as long.
DUE_SHARE = 0.1
_NONE = np.empty(0, np.uint32)


class _Kept(NamedTuple):
    """What holds of the numbers on the device, which are exact.

    In units of the ranks: the sums of all values, of the sizes of residuals, of residuals. ``rounded``,
    ``majorant_rounded``, ``ratio``: see ``Solved``, of which they are bounds. ``units``: see ``WalkRuns``.
    Residuals are within ``limits``, of the ranks and of the majorant.
    """

    norm: int
    size: int
    total: int
    rounded: float
    ratio: float
    majorant_rounded: float
    units: tuple[float, float]
    limits: tuple[Limits, Limits]

    @classmethod
    def of(cls, run: WalkRun, units: tuple[float, float], limits: tuple[Limits, Limits]) -> _Kept:
        """After passes, and the pushes behind them."""
        sums = run.norm, run.size, run.total
        kept = cls(*sums, run.rounded, run.ratio, run.majorant_rounded, units, limits)
        return kept._rounded_by(run, limits) if run.rounds else kept

    def joined(self, appeared: int) -> _Kept:
        """With so many vertices more, whose estimates and majorants are 1."""
        if not appeared:
            return self
        return self._replace(norm=self.norm + appeared * int(self.units[0]), ratio=max(self.ratio, 1.0))

    def pushed(self, run: WalkRun, limits: tuple[Limits, Limits], *, looked: bool) -> _Kept:
        """After pushes to these limits; ``looked``: for which all vertices were looked at."""
        sums = self.norm + run.norm, self.size + run.size, self.total + run.total
        ratio = run.ratio if looked else max(self.ratio, run.ratio)
        kept = _Kept(*sums, self.rounded, ratio, self.majorant_rounded, self.units, limits)
        return kept._rounded_by(run, limits)

    def _rounded_by(self, run: WalkRun, limits: tuple[Limits, Limits]) -> _Kept:
        """With what pushes rounded.

        A rounded share is off by so much of what its out-neighbour receives, which is less than its estimate and
        residual together; and weights follow estimates. So of all that pushes change, only in-degrees count anew.
        """
        estimate, (unit, majorant_unit), (ranks, majorant) = HUB * WEIGHT_HYSTERESIS, self.units, limits
        rounded = rounded_by(estimate + ranks.above, run.degree, unit)
        majorant_rounded = rounded_by(self.ratio * estimate + majorant.above, run.degree, majorant_unit)
        if rounded <= self.rounded and majorant_rounded <= self.majorant_rounded:
            return self
        return self._replace(
            rounded=max(self.rounded, rounded), majorant_rounded=max(self.majorant_rounded, majorant_rounded)
        )

    def of_account(self, account: Account) -> _Kept:
        """With what compiled calls have made of it, to the same limits."""
        return _Kept(*account[:6], self.units, self.limits)

    def allows(self, run: WalkRun, damping: float) -> bool:
        """Whether sums that such pushes left, which were given up, add up to about what they did before."""
        return self.size + run.size <= (1 - damping) * 2.0**60

    @property
    def solved(self) -> Solved:
        unit = self.units[0]
        sums = self.norm / unit, self.size / unit, self.total / unit
        return Solved(*sums, self.rounded, self.ratio, self.majorant_rounded)

    def covers(self, limits: tuple[Limits, Limits]) -> bool:
        """Whether residuals are within these limits, too."""
        if limits == self.limits:
            return True
        now = (limit for allowed in limits for limit in allowed)
        then = (limit for allowed in self.limits for limit in allowed)
        return all(limit >= before for limit, before in zip(now, then, strict=True))


class DevicePageRank(DeviceWalk, of=PageRank):
    """PageRank whose systems are kept on the device; made from the host's."""

    host: PageRank

    def __init__(self, host: PageRank) -> None:
        super().__init__(host)
        self._runs: WalkRuns | None = None
        self._pushes: PushRuns | None = None
        # Of how many updates too much was to be pushed, and how often batches have not been tried for it since.
        self._too_many, self._edited = math.inf, 0
        # None: the numbers on the device are those of another graph, or not exact.
        self._kept: _Kept | None = None
        # Whether the last batch was pushed: compiled code may do the same for the next. The error bound after
        # those for which it has: its account is ahead then of what is kept here, and of the host's certificate.
        self._is_small = False
        self._bound: float | None = None

    def compile(self, device: DeviceSide) -> None:
        push_calls.warm_up()
        walk_kernels().compile(device)
        push_kernels().compile(device)

    # -- runs -------------------------------------------------------------------------------------------------

    def _start(self, graph: Graph, device: DeviceSide) -> Refresh:
        host = self.host
        self._is_small, self._bound = False, None
        _, pushes = self._there(graph, device)
        host.begin(graph.n_vertices)
        self._graph, self._n = graph, graph.n_vertices
        coarse = pushes.start(device, graph.alive[: self._n], *host.limits, int(DUE_SHARE * graph.n_arcs))
        host.begin_from(coarse.ratio)
        return self._settled(graph, device, None, _NONE, EXACT, coarse.passes)

    def _refresh(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Refresh:
        if self._is_small:
            refresh = self._refresh_again(graph, device, change)
            if refresh is not None:
                return refresh
        self._catch_up()
        appeared, gone = born(graph, change, self._n), change.deleted_vertices
        inserted, _, deleted, _ = change.report.totals
        if not (inserted or deleted or appeared.size or gone.size):
            if self._runs is not None:
                self._runs.amend(device, 0)
            return Refresh({}, error_bound=self.host.error_bound)
        self._is_small = False
        runs, pushes = self._there(graph, device)
        runs.amend(device, inserted + deleted)
        runs.arrive(device, appeared, gone)
        if appeared.size:
            runs.estimates[appeared] = 1
        kept, self._kept = self._kept, None
        begins = KEPT if kept is None else SOLVED
        if kept is not None:
            kept = kept.joined(appeared.size)
            is_small = len(device.report) <= max(PUSH_LEAST, PUSH_SHARE * graph.n_arcs)
            if not is_small or gone.size or kept.units != runs.units or not kept.covers(self.host.limits):
                kept = None
            elif len(device.report) >= self._too_many:
                pushes.edit(device, *self.host.limits, kept.size)
                kept = None
                self._edited += 1
                if self._edited == EDITED_MAX:
                    self._too_many = math.inf
        return self._settled(graph, device, kept, appeared, begins)

    def _refresh_again(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Refresh | None:
        """After a batch that is small like the last one: compiled code does what ``_settled`` would. None: it is
        another case, and nothing has happened."""
        runs, pushes = self._runs, self._pushes
        assert runs is not None and pushes is not None
        inserted, _, deleted, _ = change.report.totals
        is_like = graph.n_vertices == self._n and (inserted or deleted) and not runs.has_packed
        if not is_like or change.deleted_vertices.size or change.revived_vertices.size:
            return None
        use_device()  # for the thread that runs programs now
        few = max(PUSH_LEAST, int(PUSH_SHARE * graph.n_arcs))
        done = pushes.push_again(device, few if few < self._too_many else int(self._too_many) - 1)
        if done is None:
            return None
        run, bound = done
        if bound:
            bound += self.host.narrowed
        else:
            self._is_small = False
            self._catch_up()
            kept, self._kept = self._kept, None
            return self._settled(graph, device, kept, _NONE, SOLVED, pushed=run)
        self._graph, self._is_ahead, self._bound = graph, True, bound
        changed = pushes.changes(run)
        return Refresh(
            {"estimate": changed} if changed is None or changed.size else {},
            iterations=run.rounds,
            edges_read=run.edges,
            active=run.moved,
            error_bound=bound,
        )

    def _catch_up(self) -> None:
        """Have the host's certificate follow what compiled calls have."""
        if self._bound is None:
            return
        assert self._pushes is not None and self._kept is not None
        account = self._pushes.account
        self._kept = self._kept.of_account(account)
        self._bound = None
        holds = self.host.certify(self._n, self._kept.solved, of_all=False)
        assert holds

    def _settled(
        self,
        graph: Graph,
        device: DeviceSide,
        kept: _Kept | None,
        appeared: Vertices,
        begins: int,
        passes: int = 0,
        pushed: WalkRun | None = None,
    ) -> Refresh:
        """Solve both systems, and again until the certificate holds.

        ``kept``: what held before the batch that the device applied last, which is to be pushed; None: passes
        begin, with ``begins``. Later on limits may have been tightened. ``passes``: how many there were already.
        ``pushed``: the run of the first pushes, where that was already.
        """
        host, runs, pushes = self.host, self._runs, self._pushes
        assert runs is not None and pushes is not None
        self._graph, self._n = graph, graph.n_vertices
        due_max = int(DUE_SHARE * graph.n_arcs)
        looks, edges, rounds, active = False, passes * graph.n_arcs, passes, 0
        changed: Vertices | None = appeared
        for _ in range(_ROUNDS_MAX):
            limits = host.limits
            of_all = looks or kept is None
            if kept is None:
                run = pushes.solve(device, *limits, due_max, begins)
                changed, begins = None, EXACT if run.rounds == 0 else KEPT
            else:
                run = pushed or pushes.push(device, *limits, kept.size, looks=looks)
                pushed = None
                begins = SOLVED if begins == SOLVED and kept.allows(run, host.damping) else KEPT
            rounds, edges = rounds + run.passes + run.rounds, edges + run.passes * graph.n_arcs + run.edges
            active += run.moved
            if not run.is_solved:
                if looks or (run.passes and run.rounds):  # what passes left was too much
                    due_max = 0
                elif run.rounds == 1:
                    self._too_many, self._edited = len(device.report), 0
                kept = None
                continue
            if run.passes:
                kept = _Kept.of(run, runs.units, limits)
            else:
                assert kept is not None
                kept = kept.pushed(run, limits, looked=looks)
                changed = _united(changed, pushes.changes(run))
            looks = True
            bound = self._certified(kept, of_all=of_all)
            if bound is not None:
                self._kept, self._is_ahead = kept, True
                self._is_small = not run.passes and limits == host.limits
                if self._is_small:
                    pushes.keep(self._account(kept), limits)
                return Refresh(
                    {"estimate": changed} if changed is None or changed.size else {},
                    iterations=rounds,
                    edges_read=edges,
                    active=active,
                    error_bound=bound,
                )
        raise Unfit(f"the numbers of the device do not reach a tolerance of {host.tolerance:g}")

    def _account(self, kept: _Kept) -> Account:
        host, (ranks, majorant) = self.host, kept.limits
        certificate = host.certificate
        return Account(
            *(kept.norm, kept.size, kept.total, kept.rounded, kept.ratio, kept.majorant_rounded),
            *(ranks.above, majorant.above, *kept.units, self._n, host.damping, certificate.tolerance),
            *(certificate.bound, certificate.ratio_allowed, certificate.sum_allowed),
            *(certificate.reserve, certificate.slack),
        )

    def _certified(self, kept: _Kept, *, of_all: bool) -> float | None:
        """The error bound, where all holds that it rests on; None: limits were tightened, if they can be."""
        host = self.host
        if not host.certify(self._n, kept.solved, of_all=of_all) or kept.majorant_rounded > SLACK_DRIFT:
            return None
        bound = host.error_bound
        return bound if bound <= host.tolerance else None

    def _take_over(self, graph: Graph, device: DeviceSide) -> None:
        self._kept = self._bound = None
        self._is_small = False
        self._n = graph.n_vertices
        self._is_ahead = False
        state = self.host.state()
        columns = (state[name] for name in ("estimate", "residual", "weight", "majorant", "slack"))
        runs, _ = self._there(graph, device)
        runs.write(Columns(*columns))

    def _let_go(self) -> None:
        super()._let_go()
        self._runs = self._pushes = self._kept = self._bound = None
        self._is_small = False

    def _there(self, graph: Graph, device: DeviceSide) -> tuple[WalkRuns, PushRuns]:
        """Both systems on the device, with room for the graph's vertices and rows."""
        use_device()  # for the thread that runs programs now
        if self._runs is None:
            self._runs = WalkRuns(self.host.damping, device)
        self._runs.make_room(graph.n_vertices)
        if self._pushes is None:
            self._pushes = PushRuns(self._runs, device)
        self._pushes.make_room(graph.n_vertices, device.n_arcs)
        return self._runs, self._pushes

    # -- the copy on the host ---------------------------------------------------------------------------------

    @property
    def _estimates(self) -> F32:
        assert self._runs is not None
        return self._runs.estimates

    def scalars(self) -> dict[str, float]:
        if self._bound is None or self._published is not None:
            return super().scalars()
        assert self._pushes is not None
        account = self._pushes.account
        return {
            "norm": account.norm / account.unit,
            "error_bound": self._bound,
            "amplification": amplified(account.ratio, account.slack),
        }

    def _read(self) -> dict[str, Column]:
        assert self._runs is not None
        self._catch_up()
        columns = self._runs.read(self._n)
        return {
            "estimate": columns.values,
            "residual": columns.residuals,
            "weight": columns.weights,
            "majorant": columns.majorant,
            "slack": columns.slack,
            SCALARS: self.host.saved_scalars(),
        }

    def _sizes(self) -> dict[str, int]:
        # The host's columns may be of fewer vertices.
        return {
            name: column.nbytes if name == SCALARS else column.itemsize * self._n
            for name, column in self.host.state().items()
        }

    def memory_bytes(self) -> int:
        return super().memory_bytes() + (0 if self._pushes is None else self._pushes.memory_bytes)


def _united(one: Vertices | None, other: Vertices | None) -> Vertices | None:
    """The vertices of both; None: all."""
    if one is None or other is None:
        return None
    return np.union1d(one, other) if one.size else other
