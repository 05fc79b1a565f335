"""PageRank with a certified relative error at every vertex, kept true under changes.

**The system.** With P the row-stochastic matrix of the out-edges (zero rows for dangling vertices) and
M = I - d P^T, PageRank is y / sum(y) for the y that solves M y = 1 (``walk.py``). Kept are an estimate of y and
its residual r = 1 - M estimate. An edge change edits residuals locally. What then is over its bound is solved in
one of two ways, whichever reads fewer bytes: few vertices by pushing their residuals along their out-edges
(Gauss-Seidel in memory order), many by dense passes over all in-edges on all threads (``passes.py``;
``solving.py`` chooses). A second system on the same matrix, the majorant, bounds what residuals mean for each
vertex (``certificate.py``); ``systems.py`` keeps both.

**When.** Edits leave residuals, slacks and sums that are right, and of any size. ``_settle`` then goes in rounds:
solve the ranks to the bound, let the weights follow them, solve the majorant, certify. ``_certify`` is the one
place that says whether everything holds: rounding is within its reserve in both systems, the ratio and b are
within their allowances, and no residual is left over the bound. What does not hold, it has computed anew or
tightened by the time it asks for another round. So the error bound is certified at the end of every ``start`` and
``refresh``, and at no time between.

**Vertices.** A deleted vertex leaves the system: no restart, no value, no weight, and no edge. A new or revived
one enters it without edges, solved: value and majorant are 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Vertices
from ...gpma.team import Crew
from ...partition.graph import Graph, GraphChange
from ..program import Answer, Column, Parameter, Published, Refresh, Violation, size_violations
from ..saved_scalars import SCALARS, packed, unpacked
from . import solving, weighing
from .certificate import (
    HUB,
    NORM_DRIFT,
    SLACK,
    SLACK_DRIFT,
    SLACK_TIGHT,
    SUM_ROUNDED,
    WEIGHT_HYSTERESIS,
    Certificate,
    slipped_exact,
)
from .edits import ROUNDOFF
from .passes import Goal, Limits
from .solving import PASS_VERTEX, Solver, Work, everybody
from .sweeps import EDGES, NORM, PASSES, PUSHES, ROUNDED, SIZE, SLIPPED, SUMS, SWEEPS, TOTAL, WORK_SLOTS
from .systems import Systems, estimate_of
from .walk import DAMPING, TOLERANCE, RandomWalk, born, parse_damping, parse_tolerance, require_columns, violations

# With more changes than this share of the edges, all is solved from scratch instead of being edited. Where editing
# took so many times what a start from scratch took, as it may where a graph does not mix, with more than this part
# of what was edited, too.
EDIT_SHARE = 1 / 10
DEAR, DEAR_PART = 1.25, 0.7
# A change of more than this share of the edges is large, and the majorant is solved coarsely; after so many
# changes that are not, it is solved closely.
LARGE = 1 / 2000
SMALLS = 8
# What is remembered of what old estimates or edits cost, after each time that they were not used: they get another
# chance.
FORGET = 0.95
# From so many pushes on, looking at vertices that moved is shared among threads, as at all of them.
SHARED_MOVES_MIN = 1 << 13
# Passes of a start that lead to estimates good enough to tell hubs from others.
START_PASSES = 3
# Changes at more than this share of the vertices are reported as a change of the whole column.
CHANGED_SHARE = 1 / 3

# The sums of the ranks as a saved state names them, and all the scalars that it has.
_SAVED_SUMS = {"norm": NORM, "size": SIZE, "rounded": ROUNDED, "slipped": SLIPPED}
_SAVED_SCALARS = (*_SAVED_SUMS, *Certificate.SCALARS, "majorant_rounded", "passed", "unseen", "total")

# More than what a quotient or a product of two doubles is rounded by.
_ROUNDED = 1e-14


class Solved(NamedTuple):
    """What another processor tells of both systems, which it has solved.

    ``norm``, ``size``, ``total``: the sums of the estimates, of the sizes of their residuals, and of these
    residuals. ``rounded``: by how much those may be off at most, in multiples of their weights, and
    ``majorant_rounded`` the same of the majorant's. ``ratio``: the largest majorant / estimate, 0 of no vertices.
    """

    norm: float
    size: float
    total: float
    rounded: float
    ratio: float
    majorant_rounded: float


class PageRank(RandomWalk):
    """PageRank. Column ``estimate``: float64, or float32 beside a device; scalar ``norm``, their sum. A result is
    estimate / norm.

    Further scalars: ``error_bound``, the certified relative error at every vertex, and ``amplification``, the
    certified bound of the factor between a weighted residual and a relative error.
    """

    kind: ClassVar[str] = "pagerank"
    summary: ClassVar[str] = "importance by links; every vertex within a certified relative error"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("damping", f"probability of following an edge, {DAMPING}", parse_damping, 0.85),
        Parameter("tolerance", f"largest relative error of any vertex, {TOLERANCE}", parse_tolerance, 1e-3),
    )

    def __init__(self, id: str, damping: float = 0.85, tolerance: float = 1e-3) -> None:
        super().__init__(id, damping, tolerance)
        # As ``Solver`` takes them.
        self._push_alone: int | None = None
        self._in_waves: bool | None = None
        # What it cost last to solve everything (0: unknown): from no estimates, and from those before a change.
        self._cost = self._cost_kept = 0.0
        # More changes than this share of the edges are not worth editing, as was seen.
        self._edit_share = math.inf
        self._reset(0)

    def warm_up(self, graph: Graph) -> None:
        super().warm_up(graph)
        self._push_alone = 0
        for self._in_waves in (True, False):
            self.start(graph)
        self._push_alone = self._in_waves = None
        self._solver = self._new_solver()
        none = np.empty(0, np.uint64)
        self._solver.edit_shared(graph, none, none, np.zeros(WORK_SLOTS, np.int64))

    def start(self, graph: Graph) -> Refresh:
        self._reset(graph.n_vertices)
        work = self._solved(graph, np.ones(self._systems.n))
        self._cost = self._cost_of(graph, work)
        return self._report(graph, work, whole=True)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        work = np.zeros(WORK_SLOTS, np.int64)
        self._solver.begin()
        arcs = change.arcs
        changes = len(arcs.inserted) + len(arcs.deleted)
        appeared = born(graph, change, self._systems.n)
        self._systems.add_vertices(graph.n_vertices, appeared)
        if changes > min(EDIT_SHARE, self._edit_share) * graph.n_arcs + solving.PUSH_MIN:
            self._edit_share /= FORGET
            return self._start_over(graph)
        if changes:
            self._suit_slack(graph, changes)
            self._solver.edit(graph, change, work)
        self._systems.remove_vertices(change.deleted_vertices)
        if changes or appeared.size or change.deleted_vertices.size:
            self._settle(graph, work)
        if 0 < DEAR * self._cost < self._cost_of(graph, work):
            dear = max(0, changes - solving.PUSH_MIN) / max(1, graph.n_arcs)
            self._edit_share = min(self._edit_share, DEAR_PART * dear)
        return self._report(graph, work, whole=False)

    def _start_over(self, graph: Graph) -> Refresh:
        """Solve both systems from scratch: from the estimates as they were, or from none, if that last cost less.

        Where a graph mixes, old estimates save half of the work. Where it does not, they are wrong over long
        distances, which costs more than to begin with nothing.
        """
        keep = 0 < self._cost >= self._cost_kept
        values = self._systems.ranks.value[: self._systems.n] if keep else np.ones(self._systems.n)
        self._reset(self._systems.n)
        work = self._solved(graph, values)
        if keep:
            self._cost_kept = self._cost_of(graph, work)
        else:
            self._cost = self._cost_of(graph, work)
            self._cost_kept *= FORGET
        return self._report(graph, work, whole=True, started_over=True)

    def _cost_of(self, graph: Graph, work: Work) -> float:
        """What was read, in passes over a graph of this size."""
        return float(work[EDGES]) / max(1, graph.n_arcs + PASS_VERTEX * self._systems.n)

    def _solved(self, graph: Graph, values: npt.NDArray[np.float64]) -> Work:
        """The work of solving both systems from scratch, beginning with these values of the living vertices."""
        work = np.zeros(WORK_SLOTS, np.int64)
        if graph.alive.any():
            self._start(graph, graph.alive, values, work)
            self._settle(graph, work)
        return work

    def columns(self) -> dict[str, Column]:
        return {"estimate": self._systems.ranks.value}

    def scalars(self) -> dict[str, float]:
        systems = self._systems
        return {
            "norm": float(systems.ranks.sums[NORM]),
            "error_bound": self.error_bound,
            "amplification": systems.certificate.amplification,
        }

    @property
    def error_bound(self) -> float:
        """The certified relative error of every result, normalising included (``certificate.py``)."""
        return self._systems.error_bound + self.narrowed

    def state(self) -> dict[str, Column]:
        systems = self._systems
        n = systems.n
        return {
            "estimate": systems.ranks.value[:n],
            "residual": systems.ranks.residual[:n],
            "weight": systems.ranks.weight[:n],
            "majorant": systems.majorant.value[:n],
            "slack": systems.majorant.residual[:n],
            SCALARS: self.saved_scalars(),
        }

    def saved_scalars(self) -> Column:
        """The numbers of ``state``."""
        systems = self._systems
        sums = {name: float(systems.ranks.sums[slot]) for name, slot in _SAVED_SUMS.items()}
        certified = {name: getattr(systems.certificate, name) for name in Certificate.SCALARS}
        others = {
            "majorant_rounded": float(systems.majorant.sums[ROUNDED]),
            "passed": systems.passed,
            "unseen": float(systems.unseen),
            "total": float(systems.ranks.sums[TOTAL]),
        }
        return packed({**sums, **certified, **others})

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        n = graph.n_vertices
        require_columns(state, ("estimate", "residual", "weight", "majorant", "slack"), n)
        scalars = unpacked(state, _SAVED_SCALARS)
        self._reset(n)
        systems = self._systems
        systems.ranks.value[:n] = state["estimate"]
        systems.ranks.residual[:n] = state["residual"]
        systems.ranks.weight[:n] = state["weight"]
        systems.ranks.rhs[:n] = state["weight"] > 0
        systems.majorant.value[:n] = state["majorant"]
        systems.majorant.residual[:n] = state["slack"]
        systems.ranks.sums[TOTAL] = scalars["total"]
        for name, slot in _SAVED_SUMS.items():
            systems.ranks.sums[slot] = scalars[name]
        for name in Certificate.SCALARS:
            setattr(systems.certificate, name, scalars[name])
        systems.majorant.sums[ROUNDED] = scalars["majorant_rounded"]
        systems.passed = scalars["passed"]
        systems.unseen = int(scalars["unseen"])

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        """What the certificate says of vertices begin .. end - 1, from their in-edges; O(edges of the slice)."""
        systems = self._systems
        if missed := size_violations(systems.n, graph):
            return missed, 0
        part = slice(begin, end)
        y, z = systems.ranks.value[part], systems.majorant.value[part]
        w = systems.ranks.weight[part].astype(np.float64)
        alive = graph.alive[part]
        r, read = self._true_residual(graph, estimate_of(systems.ranks), begin, end)
        s, read_again = self._true_residual(graph, estimate_of(systems.majorant), begin, end)
        # What recomputing them has rounded itself.
        degrees = graph.degrees("in")[part]
        own, own_slack = (ROUNDOFF * (degrees + 10.0) * (np.abs(x) + np.abs(e) + w) for x, e in ((y, r), (z, s)))
        off = np.maximum(0, np.abs(r - systems.ranks.residual[part]) - own)
        drift, limits = systems.certificate.reserve, systems.slack_limits
        if alive.any():
            self.drift = max(self.drift, float((off[alive] / (drift * w[alive])).max()))
        # Comparisons are written so that a NaN fails them.
        exists = (y > 0) & (w >= 1) & (z > 0) & np.isfinite(y + w + z) & (systems.ranks.rhs[part] == 1)
        gone = (y == 0) & (w == 0) & (z == 0) & (systems.ranks.rhs[part] == 0)
        rules = {
            "pagerank-positive": np.where(alive, exists, gone),
            "pagerank-residual": off <= drift * w,
            "pagerank-bound": np.abs(r) <= (systems.certificate.bound + drift) * w + own,
            "pagerank-slack": (s <= (limits.above + SLACK_DRIFT) * w + own_slack)
            & (s >= -(limits.below + SLACK_DRIFT) * w - own_slack),
            "pagerank-ratio": z <= systems.certificate.ratio * (1 + 1e-12) * y,
        }
        found = violations(rules, begin)
        # All that rounding may have done to all vertices, which the error of the sum counts.
        rounded = ROUNDOFF * (float(systems.ranks.sums[ROUNDED]) + systems.passed * float(w.sum()))
        if not float(off.sum()) <= rounded:
            detail = f"residuals are off by {off.sum():.3g} together, more than the {rounded:.3g} of rounding"
            found.append(Violation("pagerank-drift", detail))
        if not self.error_bound <= self.tolerance:
            found.append(Violation("pagerank-tolerance", f"error bound {self.error_bound:.3g} over the tolerance"))
        return found, read + read_again

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        systems = self._systems
        norm, size, _, slipped, total = map(float, systems.ranks.sums)
        values = float(systems.ranks.value[: systems.n].sum())
        residuals = float(systems.ranks.residual[: systems.n].sum())
        sizes = float(np.abs(systems.ranks.residual[: systems.n]).sum())
        found = []
        if not abs(norm - values) <= NORM_DRIFT * norm:
            found.append(Violation("pagerank-norm", f"norm {norm!r}, but the estimates add up to {values!r}"))
        if not abs(total - residuals) <= systems.sums_rounded + ROUNDOFF * SUM_ROUNDED * sizes:
            found.append(Violation("pagerank-total", f"total {total!r}, but residuals add up to {residuals!r}"))
        if not sizes <= size + ROUNDOFF * (slipped + SUM_ROUNDED * sizes):
            found.append(Violation("pagerank-sum", f"|r| {size!r}, but residuals add up to {sizes!r}"))
        return found, 0

    def memory_bytes(self) -> int:
        return self._systems.memory_bytes + self._solver.memory_bytes

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        return _ranks(published, published.columns["estimate"][vertices])

    @classmethod
    def read_run(cls, published: Published, run: slice) -> Answer:
        return _ranks(published, published.columns["estimate"][run])

    @classmethod
    def sieve(
        cls, published: Published, run: slice, bound: float, *, descending: bool
    ) -> npt.NDArray[np.intp] | None:
        norm = published.scalars["norm"]
        if not norm > 0:
            return None
        estimates, limit = published.columns["estimate"][run], bound * norm
        # The quotient that ``read`` compares is rounded, and so is this product.
        rounded = abs(limit) * _ROUNDED
        return np.flatnonzero(estimates > limit - rounded if descending else estimates < limit + rounded)

    # -- for a processor that solves in the place of this one -------------------------------------------

    def begin(self, n: int) -> None:
        """Forget everything: both systems of so many vertices are solved elsewhere, from scratch."""
        self._reset(n)

    @property
    def limits(self) -> tuple[Limits, Limits]:
        """To which residuals are to be solved now: of the ranks, and of the majorant."""
        return self._systems.limits, self._systems.slack_limits

    @property
    def certificate(self) -> Certificate:
        """What ``certify`` holds against what was solved elsewhere."""
        return self._systems.certificate

    def begin_from(self, ratio: float) -> None:
        """Set the limits for coarse estimates with such a majorant (see ``Solved.ratio``)."""
        self._systems.certificate.allow(ratio or 1.0)

    def certify(self, n: int, solved: Solved, *, of_all: bool) -> bool:
        """Take what was solved elsewhere, to ``limits``, into the certificate, but not the columns.

        ``of_all``: the ratio is the largest of all vertices, and not only one that none exceeds. False where the
        limits have been tightened, and both systems are to be solved to the new ones: as in ``_certify``, whose
        order this is.
        """
        systems = self._systems
        ranks, certificate = systems.ranks, systems.certificate
        systems.n = n
        # The sums are exact; adding columns up, as the audit does, is not.
        sums = {NORM: solved.norm, SIZE: solved.size, TOTAL: solved.total, ROUNDED: 0.0}
        sums[SLIPPED] = slipped_exact(solved.norm, solved.size)
        ranks.sums[:] = [sums[place] for place in range(SUMS)]
        systems.passed = solved.rounded / ROUNDOFF
        systems.majorant.sums[ROUNDED] = solved.majorant_rounded / ROUNDOFF
        systems.unseen = n + 1
        if not certificate.take_rounding(solved.rounded):
            return False
        ratio_holds = certificate.take_ratio(solved.ratio or 1.0, of_all=of_all)
        return ratio_holds and certificate.take_sum_error(systems.sum_error)

    # -- inside -----------------------------------------------------------------------------------------

    def _reset(self, n: int) -> None:
        self._systems = Systems(n, self.damping, self.solved_tolerance)
        self._solver = self._new_solver()
        # Small changes since the last large one.
        self._smalls = 0

    def _new_solver(self) -> Solver:
        return Solver(self._systems, self._pulls, self._push_alone, self._in_waves)

    def _start(
        self, graph: Graph, alive: npt.NDArray[np.bool_], values: npt.NDArray[np.float64], work: Work
    ) -> None:
        """Coarse estimates, and from them weights and a majorant."""
        systems = self._systems
        n, (ranks, majorant), crew = systems.n, systems.both, everybody(graph)
        weighing.begin(crew, alive, values, ranks)
        self._solver.pass_over(graph, ranks, Goal(Limits(0.0, 0.0), passes_min=START_PASSES, roughly=True), work)
        multiple, weight_max, majorant_max = weighing.weigh(crew, n, ranks, majorant, HUB)
        off = float(ranks.sums[ROUNDED]) + systems.passed * weight_max
        majorant.sums[ROUNDED] = multiple * off + 8 * majorant_max
        majorant.flags[:] = 1
        self._solver.solve(graph, majorant, work)
        systems.certificate.allow(weighing.ratio_max(crew, n, ranks, majorant))

    def _settle(self, graph: Graph, work: Work) -> None:
        """Solve both systems, and again until the certificate holds."""
        systems = self._systems
        while True:
            self._solver.solve(graph, systems.ranks, work)
            bound = systems.certificate.bound
            crew = _movers(graph, work)
            systems.passed *= weighing.reweigh(
                crew, systems.ranks, systems.majorant, bound, HUB, WEIGHT_HYSTERESIS
            )
            self._solver.solve(graph, systems.majorant, work)
            if self._certify(graph, work):
                return

    def _certify(self, graph: Graph, work: Work) -> bool:
        """Whether everything holds that the error bound rests on, now that both systems are solved.

        If not, another round is needed, and what to do in it is set. In this order, each only where those before
        it hold:

        1. Rounding of the majorant is within ``SLACK_DRIFT``; else its residuals have been computed anew.
        2. Rounding of the ranks is within its reserve; else theirs have been computed anew. Where passes alone
           round too much, the reserve has been raised; where float64 does not do, the bound is what holds.
        3. The ratio is within its allowance; else the bound has been tightened.
        4. The error of the sum is within its allowance; else the bound has been tightened.
        5. No residual of the ranks is flagged, as some are where their weight shrank in this round; all are to be
           compared with a tightened bound.
        """
        systems = self._systems
        ranks, certificate = systems.ranks, systems.certificate
        if ROUNDOFF * systems.majorant.sums[ROUNDED] > SLACK_DRIFT:
            self._solver.pass_until_solved(graph, systems.majorant, work)
            return False
        if not systems.rounding <= certificate.reserve and self._round_less(graph, work):  # a NaN is not within it
            return False
        if self._ratio_holds(graph, work) and certificate.take_sum_error(systems.sum_error):
            return not ranks.flags.any()
        ranks.flags[:] = 1
        return False

    def _round_less(self, graph: Graph, work: Work) -> bool:
        """Compute the residuals of the ranks anew, as they are too much rounded; whether they keep to the bound.

        Where they cannot, the tolerance being out of reach of float64 on this graph, the bound becomes what holds.
        """
        systems = self._systems
        ranks, certificate = systems.ranks, systems.certificate
        # By passes alone, since pushes would only round again.
        solved = self._solver.pass_until_solved(graph, ranks, work)
        if not certificate.take_rounding(systems.rounding):
            ranks.flags[:] = 1
        if not solved:
            exists = np.flatnonzero(ranks.weight[: systems.n])
            certificate.bound = float((np.abs(ranks.residual[exists]) / ranks.weight[exists]).max(initial=0))
            ranks.flags[:] = 0
        return solved

    def _ratio_holds(self, graph: Graph, work: Work) -> bool:
        """Measure the ratio, of all vertices or of those that moved; false where the bound is tightened for it."""
        systems = self._systems
        ranks, majorant, certificate = *systems.both, systems.certificate
        whole = systems.unseen + work[PUSHES] > systems.n
        if whole:
            systems.unseen = -int(work[PUSHES])
            ratio = weighing.ratio_max(everybody(graph), systems.n, ranks, majorant)
            if work[PASSES]:
                # All moved and will be reported; what moves from here on is to be looked at again.
                ranks.moved[:] = 0
                majorant.moved[:] = 0
        else:
            ratio = max(certificate.ratio, weighing.moved_ratio_max(_movers(graph, work), ranks, majorant))
        if certificate.take_ratio(ratio, of_all=whole):
            return True
        # Look at all next time, since they will have got better.
        systems.unseen = systems.n + 1
        return False

    def _suit_slack(self, graph: Graph, changes: int) -> None:
        """Let the slack suit changes of this size; ``_settle`` then solves to it."""
        systems = self._systems
        certificate = systems.certificate
        if changes > LARGE * graph.n_arcs:
            self._smalls = 0
            if certificate.slack != SLACK:
                certificate.allow_slack(SLACK)
                systems.ranks.flags[:] = 1
            return
        self._smalls += 1
        if certificate.slack == SLACK and self._smalls > SMALLS:
            certificate.allow_slack(SLACK_TIGHT)
            systems.majorant.flags[:] = 1
            # The ratio gets better.
            systems.unseen = systems.n + 1

    def _report(self, graph: Graph, work: Work, *, whole: bool, started_over: bool = False) -> Refresh:
        systems = self._systems
        systems.unseen += int(work[PUSHES])
        whole = whole or work[PASSES] > 0
        out = np.empty(0 if whole else int(systems.n * CHANGED_SHARE) + 1, np.uint32)
        changed = 0 if whole else weighing.take_moved(_movers(graph, work), systems.ranks, out)
        systems.majorant.moved[:] = 0
        whole = whole or changed > out.size
        if whole:
            systems.ranks.moved[:] = 0
            systems.ranks.sums[NORM] = weighing.total(everybody(graph), systems.ranks.value[: systems.n])
            systems.ranks.sums[SLIPPED] += SUM_ROUNDED * systems.ranks.sums[NORM]
        return Refresh(
            {"estimate": None if whole else out[:changed]} if whole or changed else {},
            iterations=int(work[SWEEPS] + work[PASSES]),
            edges_read=int(work[EDGES]),
            active=int(work[PUSHES]),
            started_over=started_over,
            error_bound=self.error_bound,
        )


def _ranks(published: Published, estimates: Column) -> Answer:
    norm = published.scalars["norm"]
    return Answer(np.divide(estimates, norm if norm > 0 else 1.0, dtype=np.float64), estimates == 0)


def _movers(graph: Graph, work: Work) -> Crew:
    """Who looks at the vertices that moved."""
    return everybody(graph) if work[PASSES] or work[PUSHES] > SHARED_MOVES_MIN else graph.team.crew(1)
