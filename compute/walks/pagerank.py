"""PageRank with a certified relative error at every vertex, kept true under changes.

**The system.** With P the row-stochastic matrix of the out-edges (zero rows for dangling vertices) and
M = I - d P^T, PageRank is y / sum(y) for the y that solves M y = 1 (``walk.py``). Kept are an estimate of y and
its residual r = 1 - M estimate. An edge change edits residuals locally, and what then is over its bound is
solved in one of two ways, whichever reads fewer bytes: few vertices by pushing their residuals along their
out-edges (Gauss-Seidel in memory order), many by dense passes over all in-edges on all threads
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
    b = ((C + 1) / 2 |sum(r)| + (C - 1) / 2 |r|) / sum(estimate), C = 1 / (1 - d)
                                           |sum(y) - sum(estimate)| <= b * sum(estimate)
    error_bound = (a + min(a, b)) / (1 - a)    relative error of estimate / sum(estimate)

|r| being the sum of the sizes of all residuals: columns of M^-1 add up to no less than 1 and no more than C, so to
their mean but for half of what lies between them. In a sum errors cancel that bind at single vertices: b is far
below a, and the bound may be larger for it.
``bound`` is set so that error_bound stays below the tolerance (``certificate.py``); where the ratio or b outgrows
its allowance, the bound is tightened and the residuals are solved to it before anything is published.

**When.** Edits leave residuals, slacks and sums that are right, and of any size. ``_settle`` then goes in rounds:
solve the ranks to the bound, let the weights follow them, solve the majorant, certify. ``_certify`` is the one
place that says whether everything holds: rounding is within its reserve in both systems, the ratio and b are
within their allowances, and no residual is left over the bound. What does not hold, it has computed anew or
tightened by the time it asks for another round. So the error bound is certified at the end of every ``start`` and
``refresh``, and at no time between.

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
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from ...gpma.edges import Keys, Vertices
from ...gpma.team import Crew
from ...gpma.vertex_columns import new_column
from ...partition.graph import Graph, GraphChange
from ..program import Answer, Column, Parameter, Published, Refresh, Violation, size_violations
from ..saved_scalars import SCALARS, packed, unpacked
from . import edits as walk_kernels
from . import shared_edits, shared_sweeps
from . import sweeps as kernels
from .certificate import SLACK, SLACK_DRIFT, SLACK_TIGHT, SURPLUS, Certificate
from .edits import ROUNDOFF, Editing
from .passes import BLOCK, SHARE_ROUNDED, SLOW, Estimate, Goal, Limits
from .ranges import Mail, Ranges
from .shared_edits import ENTRY_BYTES, Edited, Told
from .shared_sweeps import VERTEX, WAVE
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
    TOTAL,
    WORK_SLOTS,
    Outbox,
    Pushing,
    System,
)
from .walk import (
    DAMPING,
    TOLERANCE,
    Edit,
    RandomWalk,
    born,
    extended,
    padded,
    parse_damping,
    parse_tolerance,
    require_columns,
    room_for,
    violations,
)

Work = npt.NDArray[np.int64]

# An estimate of HUB and more makes a vertex a hub, whose weight grows with its estimate.
HUB = 4.0
# A weight is renewed when it is off by this factor.
WEIGHT_HYSTERESIS = 1.3
# NumPy adds up in pairs of blocks: a sum is off by less than so many times itself, in units of ``ROUNDOFF``.
SUM_ROUNDED = 64
# By how much of itself the sum of the estimates may be off for the audit, and so for the bound.
NORM_DRIFT = 1e-9
# Where a pass is likely to follow, since what is due costs more than half of what pushes may, they begin at this
# multiple of the bound: what is far over it, a pass would leave over. Else they begin at the bound: sweeps at
# higher ones would save few pushes, and cost a look each.
LEVEL = 8.0
# Dense passes take over where pushing what is due costs more than this part of a pass: an edge of a push costs
# about as much as one of a pass, but pushes are to be pushed on. A vertex costs a pass as much as so many edges.
# (Both are measured by ``benchmarks/walks.py``.)
PUSH_COST = 3
# That is so on two threads, between which large sweeps are divided. Passes are that much faster on twice as many,
# as a power of two; such pushes are not.
PASS_SPEED = 0.85
# From so many threads on, all of them share edits, and large sweeps in waves: there, passes take over where
# pushing what is due costs more than this part of a pass.
WAVES_THREADS = 4
WAVES_PUSH_COST = 3
PASS_VERTEX = 2
# Pushes that cost no more than this many edges are made in any case, since entering a pass costs more.
PUSH_MIN = 2048
# Where pushes behind passes still cost too much, passes go on until residuals add up to this share of what they
# did. After slow ones pushes may cost more, but no more than so many passes.
FURTHER = 1 / 3
PUSH_MOST = 1.0
# Passes go on until residuals are likely to add up to this share of their limits, after which pushes mostly do.
DUE = 0.4
# Shares of passes are rounded to float32 where that takes less than this part of what is reserved for rounding.
ROUGH_SHARE = 1 / 4
# Sweeps that cost more than this many edges, about two milliseconds, are divided between two threads. Smaller ones
# would gain little by it, and take the second core from others: a daemon at 10,000 updates a second used a fifth
# more of them.
PUSH_ALONE = 1 << 20
# Those in waves begin at fewer.
WAVES_MIN = 1 << 15
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
# Fewer changes than this are edited on one thread.
EDIT_ALONE = 1 << 14
# From so many vertices that all moved, looking at them is shared among threads.
SHARED_VERTICES_MIN = 1 << 16
# And from so many pushes on, at vertices that moved.
SHARED_MOVES_MIN = 1 << 13
# Passes of a start that lead to estimates good enough to tell hubs from others.
START_PASSES = 3
# Changes at more than this share of the vertices are reported as a change of the whole column.
CHANGED_SHARE = 1 / 3

# The sums of the ranks as a saved state names them, and all the scalars that it has.
_SAVED_SUMS = {"norm": NORM, "size": SIZE, "rounded": ROUNDED, "slipped": SLIPPED}
_SAVED_SCALARS = (*_SAVED_SUMS, *Certificate.SCALARS, "majorant_rounded", "passed", "unseen", "total")

_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)

# More than what a quotient or a product of two doubles is rounded by.
_ROUNDED = 1e-14


class _Budget:
    """What pushing may cost in one solve, in edges, before passes over all edges take over.

    At first that is ``PUSH_MIN`` and one part in ``PUSH_COST`` of what a pass costs. It doubles after a slow pass,
    up to ``PUSH_MOST`` of what a pass costs; and without end where passes get no further, as where rounding is all
    that is left.
    """

    def __init__(self, arcs: int, n: int, threads: int) -> None:
        times = WAVES_PUSH_COST if threads >= WAVES_THREADS else PUSH_COST * max(1.0, threads / 2) ** PASS_SPEED
        whole = arcs + PASS_VERTEX * n
        self.cost_max = PUSH_MIN + int(whole / times)
        self._most = max(self.cost_max, int(PUSH_MOST * whole))
        self._size = math.inf

    def passed(self, size: float, shrinks: float) -> None:
        """Passes have left residuals whose sizes add up to ``size``, the last one this part of what there was."""
        if not size < self._size:
            self.cost_max = 2 * self.cost_max + 1
        elif shrinks > SLOW:
            self.cost_max = max(self.cost_max, min(2 * self.cost_max, self._most))
        self._size = size


@register_jitable
def sum_error(norm: float, size: float, total: float, rounded: float, damping: float) -> float:
    """The certified relative error of the sum of the estimates.

    ``norm``, ``size``, ``total``: the sums of the estimates, of the sizes of residuals, and of these; ``rounded``:
    by how much the last two may be off.
    """
    size = max(0.0, size) * (1.0 + SUM_ROUNDED * ROUNDOFF) + rounded
    largest = 1.0 / (1.0 - damping)
    off = (largest + 1.0) / 2.0 * min(abs(total) + rounded, size) + (largest - 1.0) / 2.0 * size
    return off / ((1.0 - NORM_DRIFT) * norm) if norm > 0.0 else 0.0


@register_jitable
def weights_max(n: float, norm: float) -> float:
    """What the weights of so many vertices add up to at most."""
    return WEIGHT_HYSTERESIS * (n + norm / HUB)


@register_jitable
def slipped_exact(norm: float, size: float) -> float:
    """What adding columns up may slip by, in multiples of ``ROUNDOFF``, where the sums of them are exact."""
    return SUM_ROUNDED * (norm + 2.0 * size)


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
        self._push_alone = PUSH_ALONE
        # Whether all threads share edits and sweeps, to compile both; None: from ``WAVES_THREADS`` on.
        self._in_waves: bool | None = None
        self._ranges: Ranges | None = None
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
        self._in_waves = None
        self._push_alone = PUSH_ALONE
        none = np.empty(0, np.uint64)
        self._edit_shared(graph, none, none, np.zeros(WORK_SLOTS, np.int64))

    def start(self, graph: Graph) -> Refresh:
        self._reset(graph.n_vertices)
        work = self._solved(graph, np.ones(self._n))
        self._cost = self._cost_of(graph, work)
        return self._report(graph, work, whole=True)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        work = np.zeros(WORK_SLOTS, np.int64)
        self._ranges = None
        arcs = change.arcs
        changes = len(arcs.inserted) + len(arcs.deleted)
        appeared = born(graph, change, self._n)
        self._add_vertices(graph.n_vertices, appeared)
        if changes > min(EDIT_SHARE, self._edit_share) * graph.n_arcs + PUSH_MIN:
            self._edit_share /= FORGET
            return self._start_over(graph)
        if changes:
            self._suit_slack(graph, changes)
            self._edit_both(graph, change, work)
        self._remove_vertices(change.deleted_vertices)
        if changes or appeared.size or change.deleted_vertices.size:
            self._settle(graph, work)
        if 0 < DEAR * self._cost < self._cost_of(graph, work):
            dear = max(0, changes - PUSH_MIN) / max(1, graph.n_arcs)
            self._edit_share = min(self._edit_share, DEAR_PART * dear)
        return self._report(graph, work, whole=False)

    def _start_over(self, graph: Graph) -> Refresh:
        """Solve both systems from scratch: from the estimates as they were, or from none, if that last cost less.

        Where a graph mixes, old estimates save half of the work. Where it does not, they are wrong over long
        distances, which costs more than to begin with nothing.
        """
        keep = 0 < self._cost >= self._cost_kept
        values = self._ranks.value[: self._n] if keep else np.ones(self._n)
        self._reset(self._n)
        work = self._solved(graph, values)
        if keep:
            self._cost_kept = self._cost_of(graph, work)
        else:
            self._cost = self._cost_of(graph, work)
            self._cost_kept *= FORGET
        return self._report(graph, work, whole=True, started_over=True)

    def _cost_of(self, graph: Graph, work: Work) -> float:
        """What was read, in passes over a graph of this size."""
        return float(work[EDGES]) / max(1, graph.n_arcs + PASS_VERTEX * self._n)

    def _solved(self, graph: Graph, values: npt.NDArray[np.float64]) -> Work:
        """The work of solving both systems from scratch, beginning with these values of the living vertices."""
        work = np.zeros(WORK_SLOTS, np.int64)
        if graph.alive.any():
            self._start(graph, graph.alive, values, work)
            self._settle(graph, work)
        return work

    def columns(self) -> dict[str, Column]:
        return {"estimate": self._ranks.value}

    def scalars(self) -> dict[str, float]:
        return {
            "norm": float(self._ranks.sums[NORM]),
            "error_bound": self.error_bound,
            "amplification": self._certificate.amplification,
        }

    @property
    def error_bound(self) -> float:
        """The certified relative error of every result, normalising included (see the head of this file)."""
        return self._certificate.error_bound(self._rounding, self._sum_error) + self.narrowed

    @property
    def _sum_error(self) -> float:
        """The certified relative error of the sum of the estimates."""
        norm, size, _, _, total = self._ranks.sums.tolist()
        return float(sum_error(norm, size, total, self._sums_rounded, self.damping))

    @property
    def _sums_rounded(self) -> float:
        """What the sums of residuals and of their sizes may be off by from those of true residuals."""
        norm, _, rounded, slipped, _ = self._ranks.sums.tolist()
        return float(ROUNDOFF * (rounded + slipped + self._passed * weights_max(self._n, norm)))

    @property
    def _rounding(self) -> float:
        """What kept residuals may be off by, in multiples of the weights."""
        return ROUNDOFF * (float(self._ranks.sums[ROUNDED]) + self._passed)

    def state(self) -> dict[str, Column]:
        n = self._n
        return {
            "estimate": self._ranks.value[:n],
            "residual": self._ranks.residual[:n],
            "weight": self._ranks.weight[:n],
            "majorant": self._majorant.value[:n],
            "slack": self._majorant.residual[:n],
            SCALARS: self.saved_scalars(),
        }

    def saved_scalars(self) -> Column:
        """The numbers of ``state``."""
        sums = {name: float(self._ranks.sums[slot]) for name, slot in _SAVED_SUMS.items()}
        certified = {name: getattr(self._certificate, name) for name in Certificate.SCALARS}
        others = {
            "majorant_rounded": float(self._majorant.sums[ROUNDED]),
            "passed": self._passed,
            "unseen": float(self._unseen),
            "total": float(self._ranks.sums[TOTAL]),
        }
        return packed({**sums, **certified, **others})

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        n = graph.n_vertices
        require_columns(state, ("estimate", "residual", "weight", "majorant", "slack"), n)
        scalars = unpacked(state, _SAVED_SCALARS)
        self._reset(n)
        self._ranks.value[:n] = state["estimate"]
        self._ranks.residual[:n] = state["residual"]
        self._ranks.weight[:n] = state["weight"]
        self._ranks.rhs[:n] = state["weight"] > 0
        self._majorant.value[:n] = state["majorant"]
        self._majorant.residual[:n] = state["slack"]
        self._ranks.sums[TOTAL] = scalars["total"]
        for name, slot in _SAVED_SUMS.items():
            self._ranks.sums[slot] = scalars[name]
        for name in Certificate.SCALARS:
            setattr(self._certificate, name, scalars[name])
        self._majorant.sums[ROUNDED] = scalars["majorant_rounded"]
        self._passed = scalars["passed"]
        self._unseen = int(scalars["unseen"])

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        """What the certificate says of vertices begin .. end - 1, from their in-edges; O(edges of the slice)."""
        if missed := size_violations(self._n, graph):
            return missed, 0
        part = slice(begin, end)
        y, z = self._ranks.value[part], self._majorant.value[part]
        w = self._ranks.weight[part].astype(np.float64)
        alive = graph.alive[part]
        r, read = self._true_residual(graph, _estimate(self._ranks), begin, end)
        s, read_again = self._true_residual(graph, _estimate(self._majorant), begin, end)
        # What recomputing them has rounded itself.
        degrees = graph.degrees("in")[part]
        own, own_slack = (ROUNDOFF * (degrees + 10.0) * (np.abs(x) + np.abs(e) + w) for x, e in ((y, r), (z, s)))
        off = np.maximum(0, np.abs(r - self._ranks.residual[part]) - own)
        drift, limits = self._certificate.reserve, self._slack_limits
        if alive.any():
            self.drift = max(self.drift, float((off[alive] / (drift * w[alive])).max()))
        # Comparisons are written so that a NaN fails them.
        exists = (y > 0) & (w >= 1) & (z > 0) & np.isfinite(y + w + z) & (self._ranks.rhs[part] == 1)
        gone = (y == 0) & (w == 0) & (z == 0) & (self._ranks.rhs[part] == 0)
        rules = {
            "pagerank-positive": np.where(alive, exists, gone),
            "pagerank-residual": off <= drift * w,
            "pagerank-bound": np.abs(r) <= (self._certificate.bound + drift) * w + own,
            "pagerank-slack": (s <= (limits.above + SLACK_DRIFT) * w + own_slack)
            & (s >= -(limits.below + SLACK_DRIFT) * w - own_slack),
            "pagerank-ratio": z <= self._certificate.ratio * (1 + 1e-12) * y,
        }
        found = violations(rules, begin)
        # All that rounding may have done to all vertices, which the error of the sum counts.
        rounded = ROUNDOFF * (float(self._ranks.sums[ROUNDED]) + self._passed * float(w.sum()))
        if not float(off.sum()) <= rounded:
            detail = f"residuals are off by {off.sum():.3g} together, more than the {rounded:.3g} of rounding"
            found.append(Violation("pagerank-drift", detail))
        if not self.error_bound <= self.tolerance:
            found.append(Violation("pagerank-tolerance", f"error bound {self.error_bound:.3g} over the tolerance"))
        return found, read + read_again

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        norm, size, _, slipped, total = map(float, self._ranks.sums)
        values = float(self._ranks.value[: self._n].sum())
        residuals = float(self._ranks.residual[: self._n].sum())
        sizes = float(np.abs(self._ranks.residual[: self._n]).sum())
        found = []
        if not abs(norm - values) <= NORM_DRIFT * norm:
            found.append(Violation("pagerank-norm", f"norm {norm!r}, but the estimates add up to {values!r}"))
        if not abs(total - residuals) <= self._sums_rounded + ROUNDOFF * SUM_ROUNDED * sizes:
            found.append(Violation("pagerank-total", f"total {total!r}, but residuals add up to {residuals!r}"))
        if not sizes <= size + ROUNDOFF * (slipped + SUM_ROUNDED * sizes):
            found.append(Violation("pagerank-sum", f"|r| {size!r}, but residuals add up to {sizes!r}"))
        return found, 0

    def memory_bytes(self) -> int:
        shared = self._ranks.weight.nbytes + self._majorant.rhs.nbytes
        held = sum(array.nbytes for array in (*self._ranks, *self._majorant)) - shared
        sent = sum(array.nbytes for array in (*self._outbox, *self._mail, self._queue))
        return held + self._pulls.memory_bytes + sent + self._told_bytes

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
        return self._limits, self._slack_limits

    @property
    def certificate(self) -> Certificate:
        """What ``certify`` holds against what was solved elsewhere."""
        return self._certificate

    def begin_from(self, ratio: float) -> None:
        """Set the limits for coarse estimates with such a majorant (see ``Solved.ratio``)."""
        self._certificate.allow(ratio or 1.0)

    def certify(self, n: int, solved: Solved, *, of_all: bool) -> bool:
        """Take what was solved elsewhere, to ``limits``, into the certificate, but not the columns.

        ``of_all``: the ratio is the largest of all vertices, and not only one that none exceeds. False where the
        limits have been tightened, and both systems are to be solved to the new ones: as in ``_certify``, whose
        order this is.
        """
        ranks, certificate = self._ranks, self._certificate
        self._n = n
        # The sums are exact; adding columns up, as the audit does, is not.
        sums = {NORM: solved.norm, SIZE: solved.size, TOTAL: solved.total, ROUNDED: 0.0}
        sums[SLIPPED] = slipped_exact(solved.norm, solved.size)
        ranks.sums[:] = [sums[place] for place in range(SUMS)]
        self._passed = solved.rounded / ROUNDOFF
        self._majorant.sums[ROUNDED] = solved.majorant_rounded / ROUNDOFF
        self._unseen = n + 1
        if not certificate.take_rounding(solved.rounded):
            return False
        ratio_holds = certificate.take_ratio(solved.ratio or 1.0, of_all=of_all)
        return ratio_holds and certificate.take_sum_error(self._sum_error)

    # -- inside -----------------------------------------------------------------------------------------

    def _reset(self, n: int) -> None:
        capacity = padded(n)
        weight = new_column(capacity, np.float32)
        self._ranks = _system(capacity, new_column(capacity, np.float32), weight)
        self._majorant = _system(capacity, weight, weight)
        self._n = n
        self._certificate = Certificate(self.solved_tolerance)
        # What a pass has rounded, in multiples of the weights and of ``ROUNDOFF``, where that tells more.
        self._passed = 0.0
        self._outbox = Outbox(np.empty(0), np.empty(0, np.uint8))
        # For sweeps in waves: vertices to push, what these send, and the ranges of the graph as it is.
        self._queue = np.empty(0, np.uint32)
        self._mail = Mail.with_room(0)
        self._told = Told.with_room(0)
        self._told_bytes = 0
        self._ranges = None
        # Pushes since the last look at the ratio of every vertex.
        self._unseen = 0
        # Small changes since the last large one.
        self._smalls = 0

    def _add_vertices(self, n: int, appeared: Vertices) -> None:
        """They have no edges yet: the estimate is 1 and so is the majorant, both without residual."""
        ranks, majorant = self._ranks, self._majorant
        if n > ranks.value.size:
            capacity = room_for(n, ranks.value)
            weight = extended(ranks.weight, capacity)
            self._ranks = ranks = _grown(ranks, capacity, extended(ranks.rhs, capacity), weight)
            self._majorant = majorant = _grown(majorant, capacity, weight, weight)
        self._n = n
        if not appeared.size:
            return
        for column in (ranks.value, ranks.rhs, ranks.weight, majorant.value):
            column[appeared] = 1
        ranks.sums[NORM] += appeared.size
        ranks.sums[SLIPPED] += ranks.sums[NORM]
        kernels.mark_moved(appeared, appeared.size, ranks.moved)

    def _edit_both(self, graph: Graph, change: GraphChange, work: Work) -> None:
        """Make both residuals those of the changed graph."""
        inserted, deleted = change.arcs.inserted.keys, change.arcs.deleted.keys
        changes = inserted.size + deleted.size
        if changes >= EDIT_ALONE and self._shares_all(graph):
            self._edit_shared(graph, inserted, deleted, work)
            return
        first, second = (
            Editing.of(system.value, system.residual, changes) for system in (self._ranks, self._majorant)
        )
        crew = graph.team.crew(1 if changes < EDIT_ALONE else 2)
        walk_kernels.edit_two(crew, graph.out_rows(), inserted, deleted, self.damping, first, second)
        edits = Edit.from_editing(first), Edit.from_editing(second)
        for system, edit in zip((self._ranks, self._majorant), edits, strict=True):
            kernels.flag(edit.touched, edit.touched.size, system.flags)
            kernels.mark_moved(edit.rescaled, edit.rescaled.size, system.moved)
            self._take_edit(system, edit.norm_by, edit.size_by, edit.total_by, edit.rounded, edit.slipped)
            work[EDGES] += edit.edges_read

    def _edit_shared(self, graph: Graph, inserted: Keys, deleted: Keys, work: Work) -> None:
        """``_edit_both`` on all threads."""
        first, second = (
            Edited(system.value, system.residual, system.flags, system.moved, np.zeros(5))
            for system in (self._ranks, self._majorant)
        )
        self._ranges = ranges = self._ranges_of(graph)
        changes = inserted.size + deleted.size
        if not self._told.has_room(changes):
            self._told = Told.with_room(changes)
        edges, entries = shared_edits.edit_both(
            graph.crew,
            graph.out_rows(),
            inserted,
            deleted,
            self.damping,
            self._n,
            ranges,
            self._told,
            first,
            second,
        )
        work[EDGES] += 2 * edges
        self._told_bytes = max(self._told_bytes, ENTRY_BYTES * entries)
        for system, edited in ((self._ranks, first), (self._majorant, second)):
            norm_by, size_by, total_by, rounded, slipped = map(float, edited.sums)
            self._take_edit(system, norm_by, size_by, total_by, rounded, slipped)

    @staticmethod
    def _take_edit(
        system: System, norm_by: float, size_by: float, total_by: float, rounded: float, slipped: float
    ) -> None:
        """Add what an edit did to the sums."""
        system.sums[NORM] += norm_by
        system.sums[SIZE] += size_by
        system.sums[TOTAL] += total_by
        system.sums[ROUNDED] += rounded
        system.sums[SLIPPED] += slipped + system.sums[NORM] + 2 * system.sums[SIZE]

    def _shares_all(self, graph: Graph) -> bool:
        """Whether edits and large sweeps are shared by all threads, and not divided between two."""
        return graph.crew.threads >= WAVES_THREADS if self._in_waves is None else self._in_waves

    def _ranges_of(self, graph: Graph) -> Ranges:
        """The ranges of the vertices of this graph."""
        return Ranges.by_in_edges(graph.in_rows(), graph.n_vertices)

    def _remove_vertices(self, gone: Vertices) -> None:
        """They have no edges any more."""
        ranks, majorant = self._ranks, self._majorant
        if not gone.size:
            return
        left = float(ranks.value[gone].sum())
        # Taking away leaves what rounding did to the larger sums.
        ranks.sums[SLIPPED] += 2 * SUM_ROUNDED * (ranks.sums[NORM] + 2 * ranks.sums[SIZE])
        ranks.sums[NORM] -= left
        ranks.sums[SIZE] -= np.abs(ranks.residual[gone]).sum()
        ranks.sums[TOTAL] -= ranks.residual[gone].sum()
        for column in (ranks.value, ranks.residual, ranks.rhs, ranks.weight, majorant.value, majorant.residual):
            column[gone] = 0
        if left > ranks.sums[NORM]:
            # What remains of larger sums is known no better than those were.
            residual = ranks.residual[: self._n]
            ranks.sums[[NORM, SIZE, TOTAL]] = ranks.value[: self._n].sum(), np.abs(residual).sum(), residual.sum()
            ranks.sums[SLIPPED] = SUM_ROUNDED * (ranks.sums[NORM] + 2 * ranks.sums[SIZE])
        kernels.mark_moved(gone, gone.size, ranks.moved)

    def _start(
        self, graph: Graph, alive: npt.NDArray[np.bool_], values: npt.NDArray[np.float64], work: Work
    ) -> None:
        """Coarse estimates, and from them weights and a majorant."""
        n = self._n
        ranks, majorant = self._ranks, self._majorant
        crew = _crew(graph, whole=True)
        kernels.begin(crew, alive, values, ranks)
        self._pass(graph, ranks, Goal(Limits(0.0, 0.0), passes_min=START_PASSES, roughly=True), work)
        multiple, weight_max, majorant_max = kernels.weigh(crew, n, ranks, majorant, HUB)
        off = float(ranks.sums[ROUNDED]) + self._passed * weight_max
        majorant.sums[ROUNDED] = multiple * off + 8 * majorant_max
        majorant.flags[:] = 1
        self._solve(graph, majorant, self._slack_limits, 1.0, work)
        self._certificate.allow(kernels.ratio_max(crew, n, ranks, majorant))

    def _settle(self, graph: Graph, work: Work) -> None:
        """Solve both systems, and again until the certificate holds."""
        while True:
            self._solve(graph, self._ranks, self._limits, LEVEL, work)
            bound = self._certificate.bound
            crew = _movers(graph, work)
            self._passed *= kernels.reweigh(crew, self._ranks, self._majorant, bound, HUB, WEIGHT_HYSTERESIS)
            self._solve(graph, self._majorant, self._slack_limits, 1.0, work)
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
        ranks, certificate = self._ranks, self._certificate
        if ROUNDOFF * self._majorant.sums[ROUNDED] > SLACK_DRIFT:
            self._pass_until_solved(graph, self._majorant, self._slack_limits, work)
            return False
        if not self._rounding <= certificate.reserve and self._round_less(graph, work):  # a NaN is not within it
            return False
        if self._ratio_holds(graph, work) and certificate.take_sum_error(self._sum_error):
            return not ranks.flags.any()
        ranks.flags[:] = 1
        return False

    def _round_less(self, graph: Graph, work: Work) -> bool:
        """Compute the residuals of the ranks anew, as they are too much rounded; whether they keep to the bound.

        Where they cannot, the tolerance being out of reach of float64 on this graph, the bound becomes what holds.
        """
        ranks, certificate = self._ranks, self._certificate
        # By passes alone, since pushes would only round again.
        solved = self._pass_until_solved(graph, ranks, self._limits, work)
        if not certificate.take_rounding(self._rounding):
            ranks.flags[:] = 1
        if not solved:
            exists = np.flatnonzero(ranks.weight[: self._n])
            certificate.bound = float((np.abs(ranks.residual[exists]) / ranks.weight[exists]).max(initial=0))
            ranks.flags[:] = 0
        return solved

    def _ratio_holds(self, graph: Graph, work: Work) -> bool:
        """Measure the ratio, of all vertices or of those that moved; false where the bound is tightened for it."""
        ranks, majorant, certificate = self._ranks, self._majorant, self._certificate
        whole = self._unseen + work[PUSHES] > self._n
        if whole:
            self._unseen = -int(work[PUSHES])
            ratio = kernels.ratio_max(_crew(graph, whole=True), self._n, ranks, majorant)
            if work[PASSES]:
                # All moved and will be reported; what moves from here on is to be looked at again.
                ranks.moved[:] = 0
                majorant.moved[:] = 0
        else:
            ratio = max(certificate.ratio, kernels.moved_ratio_max(_movers(graph, work), ranks, majorant))
        if certificate.take_ratio(ratio, of_all=whole):
            return True
        # Look at all next time, since they will have got better.
        self._unseen = self._n + 1
        return False

    def _suit_slack(self, graph: Graph, changes: int) -> None:
        """Let the slack suit changes of this size; ``_settle`` then solves to it."""
        certificate = self._certificate
        if changes > LARGE * graph.n_arcs:
            self._smalls = 0
            if certificate.slack != SLACK:
                certificate.allow_slack(SLACK)
                self._ranks.flags[:] = 1
            return
        self._smalls += 1
        if certificate.slack == SLACK and self._smalls > SMALLS:
            certificate.allow_slack(SLACK_TIGHT)
            self._majorant.flags[:] = 1
            # The ratio gets better.
            self._unseen = self._n + 1

    @property
    def _slack_limits(self) -> Limits:
        """Of the residuals of the majorant."""
        slack = self._certificate.slack
        return Limits(SURPLUS * slack, slack)

    @property
    def _limits(self) -> Limits:
        """Of the residuals of the ranks."""
        return Limits(self._certificate.bound, self._certificate.bound)

    def _solve(self, graph: Graph, system: System, limits: Limits, level: float, work: Work) -> None:
        """Until residuals are within their limits: push within a budget, else pass over all edges, in turns.

        ``level``: where pushes begin, in multiples of the limits.
        """
        budget = _Budget(graph.n_arcs, self._n, graph.crew.threads)
        goal = self._goal(system, limits)
        cost = 0
        while True:
            if cost <= budget.cost_max and self._push(graph, system, limits, level, budget.cost_max, work):
                return
            self._pass(graph, system, goal, work)
            # It has counted what is over its limits, and leaves nothing far over them.
            cost = int(kernels.push_cost(*self._pulls.over))
            level = 1.0
            budget.passed(self._pulls.size, self._pulls.shrinks)
            # Should that be too much, passes go further.
            goal = goal._replace(size_max=FURTHER * self._pulls.size, shrinks=self._pulls.shrinks)

    def _push(self, graph: Graph, system: System, limits: Limits, level: float, cost_max: int, work: Work) -> bool:
        """Until residuals are within their limits (true), or pushing costs more than ``cost_max`` (false)."""
        if system is self._ranks and work[PASSES] and not self._shares_all(graph):
            self._push_both(graph, limits, cost_max, work)
        rows, crew = graph.out_rows(), graph.team.crew(2)
        lookers = _crew(graph, whole=True)
        capacity = system.value.size
        costs = np.empty((2, -(-capacity // STRETCH)), np.int64)
        kernels.look_all(lookers, rows, limits, level, system, costs)
        if 2 * costs[kernels.OVER].sum() <= cost_max:
            level = 1.0
        in_waves = self._shares_all(graph)
        alone = min(self._push_alone, WAVES_MIN) if in_waves else self._push_alone
        while True:
            outcome, level, cut = kernels.solve(
                lookers,
                rows,
                limits,
                level,
                self.damping,
                cost_max,
                alone,
                costs,
                system,
                self._outbox,
                work,
            )
            if outcome != DIVIDE:
                return bool(outcome == SOLVED)
            if in_waves:
                self._sweep_in_waves(graph, system, limits, level, work)
                level = max(1.0, 0.5 * level)
                kernels.look_all(lookers, rows, limits, level, system, costs)
            else:
                level = kernels.sweep_divided(
                    crew, rows, limits, level, self.damping, cut, costs, system, self._room_between(capacity), work
                )

    def _push_both(self, graph: Graph, limits: Limits, cost_max: int, work: Work) -> None:
        """Push the ranks and the majorant side by side, as far as one thread would push either alone.

        Weights may follow the ranks only after that, which leaves the majorant little to do.
        """
        stretches = -(-self._ranks.value.size // STRETCH)
        first, second = (
            Pushing(system, of, np.empty((2, stretches), np.int64), np.zeros(WORK_SLOTS, np.int64))
            for system, of in ((self._ranks, limits), (self._majorant, self._slack_limits))
        )
        crew, rows = _crew(graph, whole=True), graph.out_rows()
        kernels.solve_two(crew, rows, self.damping, cost_max, self._push_alone, first, second, self._outbox)
        work += first.work + second.work

    def _sweep_in_waves(self, graph: Graph, system: System, limits: Limits, level: float, work: Work) -> None:
        """One sweep that all threads share."""
        rows, capacity = graph.out_rows(), system.value.size
        if self._queue.size != capacity:
            self._queue = np.empty(capacity, np.uint32)
        found = np.zeros((-(-capacity // STRETCH), 2), np.int64)
        count, edges = shared_sweeps.choose(graph.crew, rows, limits, level, system, self._queue, found)
        # Vertices that send little, or nothing, are not to go by few at a time.
        room = max(1, min(edges + VERTEX * count, WAVE))
        if self._mail.heads.size < room:
            self._mail = Mail.with_room(room)
        if self._ranges is None:
            self._ranges = self._ranges_of(graph)
        shared_sweeps.push_in_waves(
            graph.crew,
            rows,
            limits,
            self.damping,
            system,
            self._ranges,
            self._queue,
            count,
            edges,
            room,
            self._mail,
            work,
        )

    def _room_between(self, capacity: int) -> Outbox:
        """What two parts of so many vertices send each other, and nothing yet."""
        sent, marks = self._outbox
        if sent.size != capacity:
            self._outbox = Outbox(extended(sent, capacity), extended(marks, capacity // BLOCK))
        return self._outbox

    def _pass(self, graph: Graph, system: System, goal: Goal, work: Work) -> None:
        pulls, n = self._pulls, self._n
        estimate, degrees = _estimate(system), graph.out_rows().degrees
        passes = pulls.run(graph.crew, graph.in_rows(), degrees, n, estimate, goal)
        norm = kernels.total(_crew(graph, whole=True), system.value[:n])
        slipped = pulls.rounded + SUM_ROUNDED * norm + n * pulls.size
        system.sums[:] = norm, pulls.size, pulls.rounded_max, slipped, pulls.total
        if system is self._ranks:
            self._passed = 0.0
            if goal.roughly or ROUNDOFF * pulls.rounded_max > self._certificate.reserve / 2:
                # Too much for hubs alone, or for all together: in multiples of the weights it is less.
                self._passed = pulls.weighed_max
                system.sums[ROUNDED] = 0
        system.moved[:] = _ALL
        self._unseen = self._n + 1
        work[EDGES] += passes * pulls.edges
        work[PASSES] += passes

    def _goal(self, system: System, limits: Limits) -> Goal:
        """Of passes after which pushes are likely to do; where float32 does, with shares of that."""
        if system is not self._ranks:
            return Goal(limits)
        weights = self._n + float(system.sums[NORM]) / HUB
        # A value is at most HUB times its weight, but for the hysteresis, and shares add up to about as much.
        rounded = ROUNDOFF * SHARE_ROUNDED * WEIGHT_HYSTERESIS * HUB
        roughly = rounded < ROUGH_SHARE * self._certificate.reserve
        return Goal(limits, DUE * limits.above * weights, roughly=roughly)

    def _pass_until_solved(self, graph: Graph, system: System, limits: Limits, work: Work) -> bool:
        """Passes until residuals are within their limits (true) or shrink no more (false)."""
        size = math.inf
        while True:
            self._pass(graph, system, Goal(limits), work)
            if self._pulls.over[0] == 0:
                return True
            if self._pulls.size >= size:
                return False
            size = self._pulls.size

    def _report(self, graph: Graph, work: Work, *, whole: bool, started_over: bool = False) -> Refresh:
        self._unseen += int(work[PUSHES])
        whole = whole or work[PASSES] > 0
        out = np.empty(0 if whole else int(self._n * CHANGED_SHARE) + 1, np.uint32)
        changed = 0 if whole else kernels.take_moved(_movers(graph, work), self._ranks, out)
        self._majorant.moved[:] = 0
        whole = whole or changed > out.size
        if whole:
            self._ranks.moved[:] = 0
            self._ranks.sums[NORM] = kernels.total(_crew(graph, whole=True), self._ranks.value[: self._n])
            self._ranks.sums[SLIPPED] += SUM_ROUNDED * self._ranks.sums[NORM]
        return Refresh(
            {"estimate": None if whole else out[:changed]} if whole or changed else {},
            iterations=int(work[SWEEPS] + work[PASSES]),
            edges_read=int(work[EDGES]),
            active=int(work[PUSHES]),
            started_over=started_over,
            error_bound=self.error_bound,
        )


def _crew(graph: Graph, *, whole: bool) -> Crew:
    """Who looks at the vertices: all threads where all of them moved, else the caller's alone."""
    return graph.crew if whole and graph.n_vertices >= SHARED_VERTICES_MIN else graph.team.crew(1)


def _movers(graph: Graph, work: Work) -> Crew:
    """Who looks at the vertices that moved."""
    return _crew(graph, whole=bool(work[PASSES] or work[PUSHES] > SHARED_MOVES_MIN))


def _system(capacity: int, rhs: Column, weight: Column) -> System:
    return System(
        new_column(capacity, np.float64),
        new_column(capacity, np.float64),
        rhs,
        weight,
        new_column(capacity // BLOCK, np.uint8),
        new_column(capacity // 64, np.uint64),
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


def _ranks(published: Published, estimates: Column) -> Answer:
    norm = published.scalars["norm"]
    return Answer(np.divide(estimates, norm if norm > 0 else 1.0, dtype=np.float64), estimates == 0)
