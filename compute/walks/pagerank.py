"""PageRank with a certified relative error at every vertex, kept true under changes.

**The system.** With P the row-stochastic matrix of the out-edges (zero rows for dangling vertices) and
M = I - d P^T, PageRank is y / sum(y) for the y that solves M y = 1 (``walk.py``). Kept are an estimate of y and
its residual r = 1 - M estimate. An edge change edits residuals locally, and what then is over its bound is
solved in one of two ways, whichever reads fewer bytes: few vertices by pushing their residuals along their
out-edges (Gauss-Seidel in memory order), many by dense passes over all in-edges on two threads
(``passes.py``).

**The certificate.** M^-1 is non-negative, so with any weights w > 0 and |r| <= bound * w the error is at most
bound * q, q = M^-1 w. Small weights make hubs costly (each push walks a long row); weights in proportion to
y make q exceed y by a factor that depends on the graph. Here w = max(1, estimate / HUB), followed with a
hysteresis: a fixed vector as far as the proof goes. q is bounded by a second system on the same matrix,
M majorant = w - slack with slack <= SLACK * w: then M majorant >= (1 - SLACK) w, so q <= majorant /
(1 - SLACK). Slack being coarse, and edited together with r, this system costs little, and the bound holds at
**every** epoch; nothing is assumed to stay as it was. (The proof needs slack <= SLACK * w alone; a majorant that
is too large by up to SURPLUS * w is left so, which saves pushes.) With ratio = max(majorant / estimate):

    a = bound * ratio / (1 - SLACK)        |y - estimate| <= a * estimate     at every vertex
    b = |r| / ((1 - d) sum(estimate))      |sum(y) - sum(estimate)| <= b * sum(estimate)
    error_bound = (a + min(a, b)) / (1 - a)    relative error of estimate / sum(estimate)

|r| being the sum of the sizes of all residuals (columns of M^-1 add up to at most 1 / (1 - d)). In a sum errors
cancel that bind at single vertices: b is far below a after dense passes, and the bound may be larger for it.
``bound`` is set so that error_bound stays below the tolerance; where the ratio or b outgrows its allowance, the
bound is tightened and the residuals are solved to it before anything is published.

**Rounding.** A kept residual is not quite that of the estimate: each operation may round it, or the value that it
belongs to. By how much at most is added up, operation by operation (Higham, "Accuracy and Stability of Numerical
Algorithms", 2002, chapters 2 to 4), over all vertices together: weights are at least 1, so that bounds every
vertex. ``DRIFT`` of the bound is reserved for it. When it outgrows that, a dense pass computes residuals anew;
what a pass rounds itself is taken in multiples of the weights where the sizes of hubs would say too much. Should
even that be too much, then ``error_bound`` says so.

**Vertices.** A deleted vertex leaves the system: no restart, no value, no weight, and no edge. A new or revived
one enters it without edges, solved: value and majorant are 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Vertices
from ...gpma.rows import RowView
from ...partition.graph import Graph, GraphChange
from ..program import Answer, Column, Parameter, Published, Refresh, Violation, size_violations
from . import sweeps as kernels
from .edits import ROUNDOFF
from .passes import BLOCK, Estimate, Limits, Pulls
from .sweeps import (
    DIVIDE,
    EDGES,
    NORM,
    PASSES,
    PUSHES,
    ROUNDED,
    SIZE,
    SLIPPED,
    SOLVED,
    STRETCH,
    SUMS,
    SWEEPS,
    WORK_SLOTS,
    Outbox,
    System,
)
from .walk import RandomWalk, born, extended, padded, parse_damping, parse_tolerance, violations

Work = npt.NDArray[np.int64]

# An estimate of HUB and more makes a vertex a hub, whose weight grows with its estimate.
HUB = 4.0
# A weight is renewed when it is off by this factor.
WEIGHT_HYSTERESIS = 1.3
# The relative slack that the majorant's equation is solved to.
SLACK = 0.15
# How far the other way the majorant's equation may be off.
SURPLUS = 1.0
# The share of the bound that is left to the rounding of kept residuals, ...
DRIFT = 0.01
# ... and what the majorant's equation, whose terms are at least 1, is left for it.
SLACK_DRIFT = 1e-3
# NumPy adds up in pairs of blocks: a sum is off by less than so many times itself, in units of ``ROUNDOFF``.
SUM_ROUNDED = 64
# How far majorant / estimate may grow before the bound is tightened.
RATIO_ALLOWANCE = 1.03
# By how much the bound is tightened at once, at most.
RATIO_STEP = 4.0
# How far the error of the sum may grow before the bound is tightened, and the share of the tolerance that it may
# take in any case.
SUM_ALLOWANCE = 1.25
SUM_SHARE_MIN = 0.1
# Where a pass is likely to follow, since what is due costs more than half of what pushes may, they begin at this
# multiple of the bound: what is far over it, a pass would leave over. Else they begin at the bound: sweeps at
# higher ones would save few pushes, and cost a look each.
LEVEL = 8.0
# Dense passes take over where pushing what is due costs more than this part of a pass: an edge of a push costs
# about as much as one of a pass, but pushes are to be pushed on. A vertex costs a pass as much as so many edges.
# (Both are measured by ``benchmarks/walks.py``.)
PUSH_COST = 3
PASS_VERTEX = 2
# Pushes that cost no more than this many edges are made in any case, since entering a pass costs more.
PUSH_MIN = 2048
# Sweeps that cost more than this many edges, about two milliseconds, are divided between two threads. Smaller ones
# would gain little by it, and take the second core from others: a daemon at 10,000 updates a second used a fifth
# more of them.
PUSH_ALONE = 1 << 20
# After a pass that leaves more than this share of |r|, pushes may cost twice as much before another: on a graph
# that does not mix, many passes would follow, and pushes go where work is left.
SLOW = 0.5
# With more changes than this share of the edges, residuals are computed anew instead of being edited.
EDIT_SHARE = 1 / 10
# Fewer changes than this are edited on one thread.
EDIT_ALONE = 1 << 14
# Passes of a start that lead to estimates good enough to tell hubs from others.
START_PASSES = 3
# Changes at more than this share of the vertices are reported as a change of the whole column.
CHANGED_SHARE = 1 / 3

_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


class PageRank(RandomWalk):
    """PageRank. Column ``estimate``: float64; scalar ``norm``, their sum. A result is estimate / norm.

    Further scalars: ``error_bound``, the certified relative error at every vertex, and ``amplification``, the
    certified bound of the factor between a weighted residual and a relative error.
    """

    kind: ClassVar[str] = "pagerank"
    summary: ClassVar[str] = "importance by links; every vertex within a certified relative error"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("damping", "probability of following an edge", parse_damping, 0.85),
        Parameter("tolerance", "largest relative error of any vertex", parse_tolerance, 1e-3),
    )

    def __init__(self, id: str, damping: float = 0.85, tolerance: float = 1e-3) -> None:
        super().__init__(id, damping, tolerance)
        self._pulls = Pulls(id, damping)
        self._push_alone = PUSH_ALONE
        self._reset(0)

    def warm_up(self, graph: Graph) -> None:
        self._push_alone = 0
        self.start(graph)
        self._push_alone = PUSH_ALONE

    def start(self, graph: Graph) -> Refresh:
        self._reset(graph.n_vertices)
        work = np.zeros(WORK_SLOTS, np.int64)
        alive = graph.alive
        if alive.any():
            self._start(graph, alive, work)
            self._settle(graph, False, work)
        return self._report(work, whole=True)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        work = np.zeros(WORK_SLOTS, np.int64)
        arcs = change.arcs
        changes = len(arcs.inserted) + len(arcs.deleted)
        appeared = born(graph, change, self._n)
        self._add_vertices(graph.n_vertices, appeared)
        anew = changes > EDIT_SHARE * graph.n_arcs + PUSH_MIN
        if changes and not anew:
            first, second = (_estimate(system) for system in (self._first, self._second))
            if changes < EDIT_ALONE:
                edits = self._edit(graph, change, first), self._edit(graph, change, second)
            else:
                edits = self._pulls.pair.run(
                    lambda: self._edit(graph, change, first), lambda: self._edit(graph, change, second)
                )
            for system, edit in zip((self._first, self._second), edits, strict=True):
                kernels.flag(edit.touched, edit.touched.size, system.flags)
                kernels.mark_moved(edit.rescaled, edit.rescaled.size, system.moved)
                system.sums[NORM] += edit.norm_by
                system.sums[SIZE] += edit.size_by
                system.sums[ROUNDED] += edit.rounded
                system.sums[SLIPPED] += edit.slipped + system.sums[NORM] + system.sums[SIZE]
                work[EDGES] += edit.edges_read
        self._remove_vertices(change.deleted_vertices)
        if changes or appeared.size or change.deleted_vertices.size:
            self._settle(graph, anew, work)
        return self._report(work, whole=False)

    def columns(self) -> dict[str, Column]:
        return {"estimate": self._first.value}

    def scalars(self) -> dict[str, float]:
        return {
            "norm": float(self._first.sums[NORM]),
            "error_bound": self.error_bound,
            "amplification": self._ratio / (1 - SLACK - SLACK_DRIFT),
        }

    @property
    def error_bound(self) -> float:
        """The certified relative error of every result, normalising included (see the head of this file)."""
        a = (self._bound + max(self._reserve, self._rounding)) * self._ratio / (1 - SLACK - SLACK_DRIFT)
        return (a + min(a, self._sum_error)) / (1 - a) if a < 1 else math.inf

    @property
    def _sum_error(self) -> float:
        """The certified relative error of the sum of the estimates."""
        norm, size, rounded, slipped = map(float, self._first.sums)
        off = max(0.0, size) + ROUNDOFF * (rounded + slipped)
        return off / ((1 - self.damping) * norm) if norm > 0 else 0.0

    @property
    def _rounding(self) -> float:
        """What kept residuals may be off by, in multiples of the weights."""
        return ROUNDOFF * (float(self._first.sums[ROUNDED]) + self._passed)

    def state(self) -> dict[str, Column]:
        n = self._n
        scalars = [self._bound, self._ratio, self._ratio_allowed, self._sum_allowed, self._unseen]
        sums = self._first.sums, self._second.sums
        rounding = [*sums[0][ROUNDED:], sums[1][ROUNDED], self._passed, self._reserve_least, self._reserve]
        return {
            "estimate": self._first.value[:n],
            "residual": self._first.residual[:n],
            "weight": self._first.weight[:n],
            "majorant": self._second.value[:n],
            "slack": self._second.residual[:n],
            "scalars": np.array([*self._first.sums[:ROUNDED], *scalars, *rounding]),
        }

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        n = graph.n_vertices
        shapes = {name: (13,) if name == "scalars" else (n,) for name in self.state()}
        wrong = [name for name, shape in shapes.items() if name not in state or state[name].shape != shape]
        if wrong:
            raise ValueError(f"the saved {wrong[0]} is not that of a graph of {n} vertices")
        self._reset(n)
        self._first.value[:n] = state["estimate"]
        self._first.residual[:n] = state["residual"]
        self._first.weight[:n] = state["weight"]
        self._first.rhs[:n] = state["weight"] > 0
        self._second.value[:n] = state["majorant"]
        self._second.residual[:n] = state["slack"]
        self._first.sums[:] = state["scalars"][[0, 1, 7, 8]]
        self._second.sums[ROUNDED] = state["scalars"][9]
        self._bound, self._ratio, self._ratio_allowed, self._sum_allowed = map(float, state["scalars"][2:6])
        self._unseen = int(state["scalars"][6])
        self._passed, self._reserve_least, self._reserve = map(float, state["scalars"][10:])

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        """What the certificate says of vertices begin .. end - 1, from their in-edges; O(edges of the slice)."""
        if missed := size_violations(self._n, graph):
            return missed, 0
        part = slice(begin, end)
        y, z = self._first.value[part], self._second.value[part]
        w = self._first.weight[part].astype(np.float64)
        alive = graph.alive[part]
        r, read = self._true_residual(graph, _estimate(self._first), begin, end)
        s, read_again = self._true_residual(graph, _estimate(self._second), begin, end)
        # What recomputing them has rounded itself.
        degrees = graph.in_rows().degrees[part]
        own, own_slack = (ROUNDOFF * (degrees + 10.0) * (np.abs(x) + np.abs(e) + w) for x, e in ((y, r), (z, s)))
        off = np.maximum(0, np.abs(r - self._first.residual[part]) - own)
        drift = self._reserve
        if alive.any():
            self.drift = max(self.drift, float((off[alive] / (drift * w[alive])).max()))
        # Comparisons are written so that a NaN fails them.
        exists = (y > 0) & (w >= 1) & (z > 0) & np.isfinite(y + w + z) & (self._first.rhs[part] == 1)
        gone = (y == 0) & (w == 0) & (z == 0) & (self._first.rhs[part] == 0)
        rules = {
            "pagerank-positive": np.where(alive, exists, gone),
            "pagerank-residual": off <= drift * w,
            "pagerank-bound": np.abs(r) <= (self._bound + drift) * w + own,
            "pagerank-slack": (s <= (SLACK + SLACK_DRIFT) * w + own_slack)
            & (s >= -(SURPLUS + SLACK_DRIFT) * w - own_slack),
            "pagerank-ratio": z <= self._ratio * (1 + 1e-12) * y,
        }
        found = violations(rules, begin)
        if not self.error_bound <= self.tolerance:
            found.append(Violation("pagerank-tolerance", f"error bound {self.error_bound:.3g} over the tolerance"))
        return found, read + read_again

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        norm, size, _, slipped = map(float, self._first.sums)
        total = float(self._first.value[: self._n].sum())
        sizes = float(np.abs(self._first.residual[: self._n]).sum())
        found = []
        if not abs(norm - total) <= 1e-9 * total:
            found.append(Violation("pagerank-norm", f"norm {norm!r}, but the estimates add up to {total!r}"))
        if not sizes <= size + ROUNDOFF * (slipped + SUM_ROUNDED * sizes):
            found.append(Violation("pagerank-sum", f"|r| {size!r}, but residuals add up to {sizes!r}"))
        return found, 0

    def memory_bytes(self) -> int:
        shared = self._first.weight.nbytes + self._second.rhs.nbytes
        held = sum(array.nbytes for array in (*self._first, *self._second)) - shared
        return held + self._pulls.memory_bytes + sum(array.nbytes for array in self._outbox)

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        estimates = published.columns["estimate"][vertices]
        norm = published.scalars["norm"]
        return Answer(estimates / norm if norm > 0 else estimates, estimates == 0)

    # -- inside -----------------------------------------------------------------------------------------

    def _reset(self, n: int) -> None:
        capacity = padded(n)
        weight = np.zeros(capacity, np.float32)
        self._first = _system(capacity, np.zeros(capacity, np.float32), weight)
        self._second = _system(capacity, weight, weight)
        self._n = n
        self._sum_allowed = SUM_SHARE_MIN * self.tolerance
        # What a pass has rounded, in multiples of the weights and of ``ROUNDOFF``, where that tells more.
        self._passed = 0.0
        # What of a bound is reserved for rounding, and the least for a graph on which a pass rounds that much.
        self._reserve = self._reserve_least = 0.0
        self._allow(1.0)
        self._outbox = Outbox(np.empty(0), np.empty(0, np.uint8))
        # Pushes since the last look at the ratio of every vertex.
        self._unseen = 0

    def _allow(self, ratio: float) -> None:
        """Set the bound for ratios up to somewhat over this one."""
        self._ratio = ratio
        self._ratio_allowed = RATIO_ALLOWANCE * ratio
        self._set_bound()

    def _set_bound(self) -> None:
        """The widest bound with which both allowances keep to the tolerance."""
        a = max(self.tolerance - self._sum_allowed, self.tolerance / 2) / (1 + self.tolerance)
        allowed = a * (1 - SLACK - SLACK_DRIFT) / self._ratio_allowed
        self._reserve = max(DRIFT * allowed, self._reserve_least)
        self._bound = max(allowed - self._reserve, allowed / 2)

    def _add_vertices(self, n: int, appeared: Vertices) -> None:
        """They have no edges yet: the estimate is 1 and so is the majorant, both without residual."""
        first, second = self._first, self._second
        if n > first.value.size:
            capacity = padded(max(n, 2 * self._n))
            weight = extended(first.weight, capacity)
            self._first = first = _grown(first, capacity, extended(first.rhs, capacity), weight)
            self._second = second = _grown(second, capacity, weight, weight)
        self._n = n
        for column in (first.value, first.rhs, first.weight, second.value):
            column[appeared] = 1
        first.sums[NORM] += appeared.size
        first.sums[SLIPPED] += first.sums[NORM]
        kernels.mark_moved(appeared, appeared.size, first.moved)

    def _remove_vertices(self, gone: Vertices) -> None:
        """They have no edges any more."""
        first, second = self._first, self._second
        if not gone.size:
            return
        left = float(first.value[gone].sum())
        # Taking away leaves what rounding did to the larger sums.
        first.sums[SLIPPED] += 2 * SUM_ROUNDED * (first.sums[NORM] + first.sums[SIZE])
        first.sums[NORM] -= left
        first.sums[SIZE] -= np.abs(first.residual[gone]).sum()
        for column in (first.value, first.residual, first.rhs, first.weight, second.value, second.residual):
            column[gone] = 0
        if left > first.sums[NORM]:
            # What remains of larger sums is known no better than those were.
            first.sums[[NORM, SIZE]] = first.value[: self._n].sum(), np.abs(first.residual[: self._n]).sum()
            first.sums[SLIPPED] = SUM_ROUNDED * (first.sums[NORM] + first.sums[SIZE])
        kernels.mark_moved(gone, gone.size, first.moved)

    def _start(self, graph: Graph, alive: npt.NDArray[np.bool_], work: Work) -> None:
        """Coarse estimates, and from them weights and a majorant."""
        n = self._n
        first, second = self._first, self._second
        for column in (first.value, first.rhs, first.weight):
            column[:n] = alive
        self._pulls.begin(graph.in_rows(), graph.out_rows().degrees, n, _estimate(first))
        for _ in range(START_PASSES):
            self._pass(graph, first, Limits(0.0, 0.0), work)
        first.weight[:n] = np.maximum(1.0, first.value[:n] / HUB)
        first.weight[:n] *= alive
        # M estimate = 1 - residual, so a multiple of the estimate is a majorant of known slack.
        multiple = float(first.weight[:n].sum(dtype=np.float64) / np.count_nonzero(alive))
        second.value[:n] = multiple * first.value[:n]
        second.residual[:n] = first.weight[:n] - multiple * (first.rhs[:n] - first.residual[:n])
        off = float(first.sums[ROUNDED]) + self._passed * float(first.weight[:n].max())
        second.sums[ROUNDED] = multiple * off + 8 * float(second.value[:n].max())
        second.flags[:] = 1
        self._solve(graph, second, Limits(SURPLUS, SLACK), 1.0, False, work)
        self._allow(kernels.ratio_max(n, first, second))

    def _settle(self, graph: Graph, anew: bool, work: Work) -> None:
        """Solve both systems, until the estimates are within a bound that the majorant justifies.

        ``anew``: residuals are not known, and every vertex may be off.
        """
        first, second = self._first, self._second
        while True:
            self._solve(graph, first, Limits(self._bound, self._bound), LEVEL, anew, work)
            self._passed *= kernels.reweigh(first, second, self._bound, HUB, WEIGHT_HYSTERESIS)
            self._solve(graph, second, Limits(SURPLUS, SLACK), 1.0, anew, work)
            anew = False
            if not self._rounding_holds(graph, work):
                continue
            if not self._ratio_holds(work) or not self._sum_holds():
                first.flags[:] = 1
            elif not first.flags.any():
                return

    def _solve(self, graph: Graph, system: System, limits: Limits, level: float, anew: bool, work: Work) -> None:
        """Until residuals are within their limits: push, or pass over all edges where that is cheaper."""
        cost_max = PUSH_MIN + (graph.n_arcs + PASS_VERTEX * self._n) // PUSH_COST
        shared = False
        size = math.inf
        if anew:
            system.residual[: self._n] = 0
        while True:
            if not anew:
                pushes = work[PUSHES]
                # A pass has counted what is over its limits already, and leaves nothing far over them.
                costs = kernels.push_cost(*self._pulls.over) if shared else 0
                first = 1.0 if shared else level
                if costs <= cost_max and self._push(graph, system, limits, first, cost_max, work):
                    return
                if shared and work[PUSHES] > pushes:
                    shared = False
                    cost_max *= 2
            anew = False
            if not shared:
                self._pulls.begin(graph.in_rows(), graph.out_rows().degrees, self._n, _estimate(system))
                shared = True
                size = math.inf
            self._pass(graph, system, limits, work)
            if self._pulls.size > SLOW * size:
                cost_max *= 2
            size = self._pulls.size

    def _push(self, graph: Graph, system: System, limits: Limits, level: float, cost_max: int, work: Work) -> bool:
        """Until residuals are within their limits (true), or pushing costs more than ``cost_max`` (false)."""
        rows = graph.out_rows()
        capacity = system.value.size
        costs = np.empty(-(-capacity // STRETCH), np.int64)
        kernels.look(rows, limits, 0, capacity, system, costs)
        if 2 * costs.sum() <= cost_max:
            level = 1.0
        while True:
            outcome, level, cut = kernels.solve(
                rows, limits, level, self.damping, cost_max, self._push_alone, costs, system, self._outbox, work
            )
            if outcome != DIVIDE:
                return bool(outcome == SOLVED)
            self._sweep_divided(rows, limits, level, cut, costs, system, work)
            level = max(1.0, 0.5 * level)

    def _sweep_divided(
        self,
        rows: RowView,
        limits: Limits,
        level: float,
        cut: int,
        costs: npt.NDArray[np.int64],
        system: System,
        work: Work,
    ) -> None:
        """One sweep by two threads, of the vertices before ``cut`` and of the others; and the next one's costs."""
        capacity = system.value.size
        if self._outbox.sent.size != capacity:
            self._outbox = Outbox(np.zeros(capacity), np.zeros(capacity // BLOCK, np.uint8))
        outbox = self._outbox
        due = costs.sum()
        sums, works = np.zeros((2, system.sums.size)), np.zeros((2, WORK_SLOTS), np.int64)

        def sweep(begin: int, end: int, part: int) -> None:
            kernels.sweep(
                rows, limits, level, self.damping, due, begin, end, system, outbox, sums[part], works[part]
            )

        def finish(begin: int, end: int, part: int) -> None:
            kernels.deliver(limits, begin, end, system, outbox, sums[part])
            kernels.look(rows, limits, begin, end, system, costs)

        pair = self._pulls.pair
        pair.run(lambda: sweep(0, cut, 0), lambda: sweep(cut, capacity, 1))
        pair.run(lambda: finish(0, cut, 0), lambda: finish(cut, capacity, 1))
        system.sums[:] += sums.sum(axis=0)
        work += works.sum(axis=0)
        # Both parts together are one.
        work[SWEEPS] -= 1

    def _pass(self, graph: Graph, system: System, limits: Limits, work: Work) -> None:
        self._pulls.step(graph.in_rows(), graph.out_rows().degrees, _estimate(system), limits)
        pulls, n = self._pulls, self._n
        norm = float(system.value[:n].sum())
        system.sums[:] = norm, pulls.size, pulls.rounded_max, pulls.rounded + SUM_ROUNDED * norm + n * pulls.size
        if system is self._first:
            self._passed = 0.0
            if ROUNDOFF * pulls.rounded_max > self._reserve / 2:
                # Too much for hubs alone: in multiples of the weights it is less.
                self._passed = pulls.weighed_max
                system.sums[ROUNDED] = 0
        system.moved[:] = _ALL
        self._unseen = self._n + 1
        work[EDGES] += self._pulls.edges
        work[PASSES] += 1

    def _rounding_holds(self, graph: Graph, work: Work) -> bool:
        """Whether rounding is within what is reserved for it; if not, residuals have been computed anew."""
        first, second = self._first, self._second
        if ROUNDOFF * second.sums[ROUNDED] > SLACK_DRIFT:
            self._pass_until_solved(graph, second, Limits(SURPLUS, SLACK), work)
            return False
        if self._rounding <= self._reserve:
            return True
        # Pushes would only round again.
        solved = self._pass_until_solved(graph, first, Limits(self._bound, self._bound), work)
        if self._rounding > self._reserve / 2:
            self._reserve_least = 4 * self._rounding
            self._set_bound()
            first.flags[:] = 1
        if not solved:
            # The tolerance is out of reach of float64 on this graph: say what holds.
            exists = np.flatnonzero(first.weight[: self._n])
            self._bound = float((np.abs(first.residual[exists]) / first.weight[exists]).max(initial=0))
            first.flags[:] = 0
        return not solved

    def _pass_until_solved(self, graph: Graph, system: System, limits: Limits, work: Work) -> bool:
        """Passes until residuals are within their limits (true) or shrink no more (false)."""
        self._pulls.begin(graph.in_rows(), graph.out_rows().degrees, self._n, _estimate(system))
        size = math.inf
        while True:
            self._pass(graph, system, limits, work)
            if self._pulls.over[0] == 0:
                return True
            if self._pulls.size >= size:
                return False
            size = self._pulls.size

    def _ratio_holds(self, work: Work) -> bool:
        """Renew the ratio; false when it outgrew its allowance, and the bound has been tightened for it."""
        first, second = self._first, self._second
        if self._unseen + work[PUSHES] > self._n:
            self._unseen = -int(work[PUSHES])
            self._ratio = kernels.ratio_max(self._n, first, second)
            if work[PASSES]:
                # All moved and will be reported; what moves from here on is to be looked at again.
                first.moved[:] = 0
                second.moved[:] = 0
            if self._ratio * RATIO_ALLOWANCE**3 <= self._ratio_allowed:
                self._allow(self._ratio)
        else:
            self._ratio = max(self._ratio, kernels.moved_ratio_max(first, second))
        if self._ratio <= self._ratio_allowed:
            return True
        # The estimates were solved to too wide a bound, and may even be negative: go on by steps, and look at
        # all of them next time, since they will have got better.
        self._allow(min(self._ratio, RATIO_STEP * self._ratio_allowed))
        self._unseen = self._n + 1
        return False

    def _sum_holds(self) -> bool:
        """Whether the error of the sum is within its allowance; if not, the bound has been tightened for it."""
        largest = self.tolerance / 2
        error = self._sum_error
        if error <= self._sum_allowed or self._sum_allowed == largest:
            if SUM_ALLOWANCE**3 * error <= self._sum_allowed:
                # There is room: what comes next need not be solved as far.
                self._sum_allowed = max(SUM_ALLOWANCE * error, SUM_SHARE_MIN * self.tolerance)
                self._set_bound()
            return True
        self._sum_allowed = min(SUM_ALLOWANCE * error, largest)
        self._set_bound()
        return False

    def _report(self, work: Work, *, whole: bool) -> Refresh:
        self._unseen += int(work[PUSHES])
        whole = whole or work[PASSES] > 0
        out = np.empty(0 if whole else int(self._n * CHANGED_SHARE) + 1, np.uint32)
        changed = kernels.take_moved(self._first, out)
        self._second.moved[:] = 0
        whole = whole or changed > out.size
        if whole:
            self._first.sums[NORM] = self._first.value[: self._n].sum()
            self._first.sums[SLIPPED] += SUM_ROUNDED * self._first.sums[NORM]
        return Refresh(
            {"estimate": None if whole else out[:changed]} if whole or changed else {},
            iterations=int(work[SWEEPS] + work[PASSES]),
            edges_read=int(work[EDGES]),
            active=int(work[PUSHES]),
            started_over=False,
            error_bound=self.error_bound,
        )


def _system(capacity: int, rhs: Column, weight: Column) -> System:
    return System(
        np.zeros(capacity),
        np.zeros(capacity),
        rhs,
        weight,
        np.zeros(capacity // BLOCK, np.uint8),
        np.zeros(capacity // 64, np.uint64),
        np.zeros(SUMS),
    )


def _grown(system: System, capacity: int, rhs: Column, weight: Column) -> System:
    return System(
        extended(system.value, capacity),
        extended(system.residual, capacity),
        rhs,
        weight,
        extended(system.flags, capacity // BLOCK),
        extended(system.moved, capacity // 64),
        system.sums,
    )


def _estimate(system: System) -> Estimate:
    return Estimate(system.value, system.residual, system.rhs, system.weight, system.flags)
