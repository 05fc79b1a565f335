"""PageRank with a certified relative error at every vertex, kept true under changes.

**The system.** With P the row-stochastic matrix of the out-edges (zero rows for dangling vertices) and
M = I - d P^T, PageRank is y / sum(y) for the y that solves M y = beta at every vertex, whatever beta > 0 is
(Langville and Meyer, "Google's PageRank and Beyond", 2006: dropping the dangling mass and normalising equals
spreading it uniformly). Kept are an estimate of y and its residual r = beta - M estimate. An edge change edits
residuals locally, and pushing a residual (add it to the estimate, pass d / degree of it to each out-neighbour)
solves it. Pushes go in sweeps over the active vertices in memory order (Gauss-Seidel), the threshold falling.

**beta.** The slow mode of this iteration is a surplus of mass: residuals of one sign, which shrink by no more
than d a round, while all others mix and cancel. A uniform shift of the residuals is a change of beta, which
the normalised result does not see. So after a dense sweep beta is chosen anew such that residuals add up to
zero. On RMAT graphs this takes a fresh start from 25 edge visits an edge to 5, and a large batch from 6 to 2.5.
Web graphs have other slow modes, where a shift only spreads work: what did not help is undone and left out.

**The certificate.** M^-1 is non-negative, so with any weights w > 0 and |r| <= bound * w the error is at most
bound * q, q = M^-1 w. Small weights make hubs costly (each push walks a long row); weights in proportion to
y make q exceed y by a factor that depends on the graph. Here w = max(1, estimate / HUB), followed with a
hysteresis: a fixed vector as far as the proof goes. q is bounded by a second system on the same matrix,
M majorant = w - slack with |slack| <= SLACK * w: then M majorant >= (1 - SLACK) w, so q <= majorant /
(1 - SLACK). Slack being coarse, and edited together with r, this system costs little, and the bound holds at
**every** epoch; nothing is assumed to stay as it was. With ratio = max(majorant / estimate):

    a = bound * ratio / (1 - SLACK)        |y - estimate| <= a * estimate     at every vertex
    error_bound = 2 a / (1 - a)            relative error of estimate / sum(estimate)

``bound`` is set so that error_bound stays below the tolerance; where the ratio outgrows its allowance, the
bound is tightened and the residuals are solved to it before anything is published. What the proof leaves
out is rounding: kept residuals drift by about 1e-16 an operation, for which ``DRIFT`` of the bound is
reserved; the audit recomputes them and compares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..gpma.edges import EdgeBatch, Vertices
from ..partition.graph import Graph, GraphChange
from . import pagerank_kernels as kernels
from .pagerank_kernels import (
    BALANCED,
    BETA,
    EDGES,
    NORM,
    PUSHES,
    RESCALED,
    SWEEPS,
    UNDONE,
    WORD_VERTICES,
    WORK_SLOTS,
    System,
)
from .program import Answer, Column, Parameter, Program, Published, Refresh, Violation

Work = npt.NDArray[np.int64]

# An estimate of HUB and more makes a vertex a hub, whose weight grows with its estimate.
HUB = 4.0
# A weight is renewed when it is off by this factor.
WEIGHT_HYSTERESIS = 1.3
# The relative slack that the majorant's equation is solved to.
SLACK = 0.25
# Balancing that did not help is left out for a number of refreshes that doubles up to this.
PAUSE_MAX = 63
# The share of the bound that is left to the rounding of kept residuals.
DRIFT = 0.01
# How far majorant / estimate may grow before the bound is tightened.
RATIO_ALLOWANCE = 1.1
# By how much the bound is tightened at once, at most.
RATIO_STEP = 4.0
# The first threshold of a refresh, in multiples of the bound.
LEVEL = 4.0
# A start first solves this coarsely, to learn which vertices are hubs.
COARSE_BOUND = 0.1
# Changes at more than this share of the vertices are reported as a change of the whole column.
CHANGED_SHARE = 1 / 3
# How many vertices a violation names.
_EVIDENCE = 5


def parse_damping(value: Any) -> float:
    """The damping factor.

    Raises:
        ValueError: it is not a number from 0.01 to 0.99.
    """
    return _number(value, 0.01, 0.99)


def parse_tolerance(value: Any) -> float:
    """The largest relative error of any vertex.

    Raises:
        ValueError: it is not a number from 1e-8 to 0.1.
    """
    return _number(value, 1e-8, 0.1)


def _number(value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"a number from {low:g} to {high:g}")
    return float(value)


class PageRank(Program):
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
        super().__init__(id)
        self.damping = damping
        self.tolerance = tolerance
        self._pause: int
        self._pause_next: int
        self._reset(0)

    def start(self, graph: Graph) -> Refresh:
        self._reset(graph.n_vertices)
        work = np.zeros(WORK_SLOTS, np.int64)
        if self._n:
            self._start(graph, work)
            self._settle(graph, work)
        return self._report(work, whole=True)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        work = np.zeros(WORK_SLOTS, np.int64)
        self._pause = max(0, self._pause - 1)
        arcs = change.arcs
        if graph.n_vertices > self._n or len(arcs.inserted) or len(arcs.deleted):
            self._add_vertices(graph.n_vertices)
            work[EDGES] += kernels.edit_rows(
                graph.out_rows(),
                arcs.inserted.keys,
                arcs.deleted.keys,
                self.damping,
                self._first,
                self._second,
            )
            self._settle(graph, work)
        return self._report(work, whole=False)

    def columns(self) -> dict[str, Column]:
        return {"estimate": self._first.value}

    def scalars(self) -> dict[str, float]:
        return {
            "norm": float(self._first.scalars[NORM]),
            "error_bound": self.error_bound,
            "amplification": self._ratio / (1 - SLACK),
        }

    @property
    def error_bound(self) -> float:
        """The certified relative error of every result, normalising included (see the head of this file)."""
        a = self._bound * (1 + DRIFT) * self._ratio / (1 - SLACK)
        return 2 * a / (1 - a) if a < 1 else math.inf

    def state(self) -> dict[str, Column]:
        n = self._n
        return {
            "estimate": self._first.value[:n],
            "residual": self._first.residual[:n],
            "weight": self._first.weight[:n],
            "majorant": self._second.value[:n],
            "slack": self._second.residual[:n],
            "scalars": np.array(
                [
                    *self._first.scalars,
                    self._bound,
                    self._ratio,
                    self._ratio_allowed,
                    self._unseen,
                    self._pause,
                    self._pause_next,
                ]
            ),
        }

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        n = graph.n_vertices
        wrong = [name for name in state if name != "scalars" and state[name].shape != (n,)]
        if wrong:
            raise ValueError(f"the saved {wrong[0]} is not that of a graph of {n} vertices")
        self._reset(n)
        self._first.value[:n] = state["estimate"]
        self._first.residual[:n] = state["residual"]
        self._first.weight[:n] = state["weight"]
        self._second.value[:n] = state["majorant"]
        self._second.residual[:n] = state["slack"]
        self._first.scalars[:] = state["scalars"][:2]
        self._bound, self._ratio, self._ratio_allowed = map(float, state["scalars"][2:5])
        self._unseen, self._pause, self._pause_next = map(int, state["scalars"][5:])

    def audit(self, graph: Graph) -> list[Violation]:
        """Recompute both residuals from the out-rows, and from them everything that the certificate rests on."""
        n = self._n
        if n != graph.n_vertices:
            return [Violation("pagerank-size", f"{n} estimates for {graph.n_vertices} vertices")]
        truth = [_with_new_residual(system) for system in (self._first, self._second)]
        kernels.residuals(graph.out_rows(), n, self.damping, *truth)
        y, z = self._first.value[:n], self._second.value[:n]
        w = self._first.weight[:n].astype(np.float64)
        r, s = truth[0].residual[:n], truth[1].residual[:n]
        allowed = self._bound * (1 + DRIFT)
        drift = self._bound * DRIFT
        # Comparisons are written so that a NaN fails them.
        rules = {
            "pagerank-positive": (y > 0) & (w > 0) & (z > 0) & np.isfinite(y + w + z),
            "pagerank-residual": np.abs(r - self._first.residual[:n]) <= drift * w,
            "pagerank-bound": np.abs(r) <= allowed * w,
            "pagerank-slack": np.abs(s) <= SLACK * (1 + 1e-6) * w,
            "pagerank-ratio": z <= self._ratio * (1 + 1e-12) * y,
        }
        found = [_violation(rule, np.flatnonzero(~holds)) for rule, holds in rules.items() if not holds.all()]
        norm = float(self._first.scalars[NORM])
        if not abs(norm - y.sum()) <= 1e-9 * y.sum():
            found.append(Violation("pagerank-norm", f"norm {norm!r}, but the estimates add up to {y.sum()!r}"))
        if not self.error_bound <= self.tolerance:
            found.append(Violation("pagerank-tolerance", f"error bound {self.error_bound:.3g} over the tolerance"))
        return found

    def memory_bytes(self) -> int:
        return sum(array.nbytes for array in (*self._first, *self._second)) - self._first.weight.nbytes

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        values = published.columns["estimate"][vertices] / published.scalars["norm"]
        return Answer(values, np.zeros(vertices.size, np.bool_))

    def _reset(self, n: int) -> None:
        capacity = _capacity(n)
        weight = np.zeros(capacity, np.float32)
        self._first = _system(capacity, weight)
        self._second = _system(capacity, weight)
        self._first.scalars[BETA] = 1.0
        self._n = n
        self._allow(1.0)
        # Pushes since the last look at the ratio of every vertex.
        self._unseen = 0
        # Refreshes for which balancing is left out, and for how many after the next failure.
        self._pause = 0
        self._pause_next = 0

    def _allow(self, ratio: float) -> None:
        """Set the bound for ratios up to somewhat over this one."""
        self._ratio = ratio
        self._ratio_allowed = RATIO_ALLOWANCE * ratio
        a = self.tolerance / (2 + self.tolerance)
        self._bound = a * (1 - SLACK) / ((1 + DRIFT) * self._ratio_allowed)

    def _add_vertices(self, n: int) -> None:
        """New vertices have no edges yet: the estimate is beta and the majorant 1, both without residual."""
        if n > self._first.value.size:
            capacity = _capacity(max(n, 2 * self._n))
            weight = _extended(self._first.weight, capacity)
            self._first, self._second = (
                System(
                    _extended(system.value, capacity),
                    _extended(system.residual, capacity),
                    weight,
                    _extended(system.flags, capacity // kernels.BLOCK),
                    _extended(system.moved, capacity // 64),
                    system.scalars,
                )
                for system in (self._first, self._second)
            )
        if n > self._n:
            new = slice(self._n, n)
            beta = self._first.scalars[BETA]
            self._first.value[new] = beta
            self._first.weight[new] = 1
            self._second.value[new] = 1
            self._first.scalars[NORM] += beta * (n - self._n)
            kernels.mark_moved(self._first, self._n, n)
            self._n = n

    def _start(self, graph: Graph, work: Work) -> None:
        """Coarse estimates, and from them weights and a majorant."""
        n = self._n
        rows = graph.out_rows()
        first, second = self._first, self._second
        first.value[:n] = 1
        first.weight[:n] = 1
        first.scalars[NORM] = n
        kernels.residuals(rows, n, self.damping, first, second)
        work[EDGES] += graph.n_arcs
        # One step already tells hubs from others.
        first.weight[:n] += first.residual[:n].astype(np.float32)
        self._solve_estimates(graph, COARSE_BOUND, 1.0, work)
        first.weight[:n] = np.maximum(1.0, first.value[:n] / HUB)
        # M estimate = beta - residual, so a multiple of the estimate is a majorant of known slack.
        multiple = float(first.weight[:n].mean())
        second.value[:n] = multiple * first.value[:n]
        second.residual[:n] = first.weight[:n] - multiple * (first.scalars[BETA] - first.residual[:n])
        first.flags[:] = 1
        second.flags[:] = 1
        kernels.solve(rows, n, SLACK, 1.0, self.damping, False, second, work)
        self._allow(kernels.ratio_max(n, first, second))

    def _settle(self, graph: Graph, work: Work) -> None:
        """Solve both systems, until the estimates are within a bound that the majorant justifies."""
        rows = graph.out_rows()
        n = self._n
        first, second = self._first, self._second
        rescaled = work[RESCALED]
        while True:
            self._solve_estimates(graph, self._bound, LEVEL, work)
            if work[RESCALED] > rescaled:
                # Rescaling takes the rounding error of residuals along, and does not add up to nothing over
                # the epochs: left alone, the error would grow exponentially.
                rescaled = work[RESCALED]
                kernels.residuals(rows, n, self.damping, first, second)
                work[EDGES] += graph.n_arcs
                continue
            kernels.reweigh(first, second, self._bound, HUB, WEIGHT_HYSTERESIS)
            kernels.solve(rows, n, SLACK, 1.0, self.damping, False, second, work)
            if self._ratio_holds(work):
                if not first.flags.any():
                    return
            else:
                first.flags[:] = 1

    def _solve_estimates(self, graph: Graph, bound: float, level: float, work: Work) -> None:
        undone, balanced = work[UNDONE], work[BALANCED]
        kernels.solve(graph.out_rows(), self._n, bound, level, self.damping, self._pause == 0, self._first, work)
        if work[UNDONE] > undone:
            self._pause_next = min(2 * self._pause_next + 1, PAUSE_MAX)
            self._pause = self._pause_next
        elif work[BALANCED] > balanced:
            self._pause_next = 0

    def _ratio_holds(self, work: Work) -> bool:
        """Renew the ratio; false when it outgrew its allowance, and the bound has been tightened for it."""
        first, second = self._first, self._second
        if work[RESCALED] or self._unseen + work[PUSHES] > self._n:
            self._unseen = -int(work[PUSHES])
            self._ratio = kernels.ratio_max(self._n, first, second)
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

    def _report(self, work: Work, *, whole: bool) -> Refresh:
        self._unseen += int(work[PUSHES])
        out = np.empty(int(self._n * CHANGED_SHARE) + 1, np.uint32)
        changed = kernels.take_moved(self._first, out)
        self._second.moved[:] = 0
        whole = whole or changed > out.size or bool(work[RESCALED])
        if whole:
            self._first.scalars[NORM] = self._first.value[: self._n].sum()
        return Refresh(
            {"estimate": None if whole else out[:changed]} if whole or changed else {},
            iterations=int(work[SWEEPS]),
            edges_read=int(work[EDGES]),
            active=int(work[PUSHES]),
            started_over=False,
            error_bound=self.error_bound,
        )


def _capacity(n: int) -> int:
    return max(1, -(-n // WORD_VERTICES)) * WORD_VERTICES


def _system(capacity: int, weight: Column) -> System:
    return System(
        np.zeros(capacity),
        np.zeros(capacity),
        weight,
        np.zeros(capacity // kernels.BLOCK, np.uint8),
        np.zeros(capacity // 64, np.uint64),
        np.zeros(2),
    )


def _extended(column: Column, size: int) -> Column:
    larger = np.zeros(size, column.dtype)
    larger[: column.size] = column
    return larger


def _with_new_residual(system: System) -> System:
    return system._replace(residual=np.zeros_like(system.residual), flags=np.zeros_like(system.flags))


def _violation(rule: str, vertices: Column) -> Violation:
    return Violation(rule, f"at {vertices.size} vertices", tuple(map(int, vertices[:_EVIDENCE])))


def warm_up() -> None:
    """Compile every kernel, or load it from the cache."""
    graph = Graph(directed=True, weighted=False, in_edges=False)
    program = PageRank("warm-up")
    graph.apply(EdgeBatch.of([0, 1, 2], [1, 2, 0]), 3)
    program.start(graph)
    program.refresh(graph, graph.apply(EdgeBatch.of([0, 0, 3], [2, 1, 0], [1, 0, 1]), 4))
    program.audit(graph)
    graph.close()
