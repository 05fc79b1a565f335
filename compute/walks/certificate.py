"""The certificate of PageRank: how large residuals may be, and what error follows from them.

**Why it is true.** (The system M y = 1, its estimates and their residuals r are those of ``pagerank.py``.) M^-1 is
non-negative, so with any weights w > 0 and |r| <= bound * w the error is at most bound * q, q = M^-1 w. Small
weights make hubs costly (each push walks a long row); weights in proportion to y make q exceed y by a factor that
depends on the graph. Here w = max(1, estimate / HUB), followed with a hysteresis: a fixed vector as far as the
proof goes. q is bounded by a second system on the same matrix, M majorant = w - slack with slack <= SLACK * w:
then M majorant >= (1 - SLACK) w, so q <= majorant / (1 - SLACK). Slack being coarse, and edited together with r,
this system costs little, and the bound holds at **every** epoch; nothing is assumed to stay as it was. (The proof
needs slack <= SLACK * w alone; a majorant that is too large by up to SURPLUS * w is left so, which saves pushes.)
With ratio = max(majorant / estimate):

    a = bound * ratio / (1 - SLACK)        |y - estimate| <= a * estimate     at every vertex
    b = ((C + 1) / 2 |sum(r)| + (C - 1) / 2 |r|) / sum(estimate), C = 1 / (1 - d)
                                           |sum(y) - sum(estimate)| <= b * sum(estimate)
    error_bound = (a + min(a, b)) / (1 - a)    relative error of estimate / sum(estimate)

|r| being the sum of the sizes of all residuals: columns of M^-1 add up to no less than 1 and no more than C, so to
their mean but for half of what lies between them. In a sum errors cancel that bind at single vertices: b is far
below a, and the bound may be larger for it.

**How the tolerance is shared out.** ``bound`` is what a residual may be in multiples of its weight. It is the
widest with which three things together keep to the tolerance: the ratio majorant / estimate up to its allowance,
the error of the sum up to its own, and rounding up to its reserve. Allowances are a little over what was measured,
so that most changes leave the bound alone; where a measure outgrows its allowance, that is raised, the bound
tightened, and residuals solved to it before anything is published; where there is much room, it goes the other way
about.

**Rounding.** A kept residual is not quite that of the estimate: each operation may round it, or the value that it
belongs to. By how much at most is added up, operation by operation (Higham, "Accuracy and Stability of Numerical
Algorithms", 2002, chapters 2 to 4), over all vertices together: weights are at least 1, so that bounds every
vertex. ``DRIFT`` of the bound is reserved for it. When it outgrows that, a dense pass computes residuals anew;
what a pass rounds itself is taken in multiples of the weights where the sizes of hubs would say too much. Should
even that be too much, then ``error_bound`` says so.
"""

from __future__ import annotations

import math

from numba.extending import register_jitable

from .edits import ROUNDOFF

# An estimate of HUB and more makes a vertex a hub, whose weight grows with its estimate.
HUB = 4.0
# A weight is renewed when it is off by this factor.
WEIGHT_HYSTERESIS = 1.3
# NumPy adds up in pairs of blocks: a sum is off by less than so many times itself, in units of ``ROUNDOFF``.
SUM_ROUNDED = 64
# By how much of itself the sum of the estimates may be off for the audit, and so for the bound.
NORM_DRIFT = 1e-9

# The relative slack that the majorant's equation is solved to: where changes are large, as far as pays, and where
# they are small, so that the majorant seldom has anything to do, much further.
SLACK = 0.15
SLACK_TIGHT = 0.02
# How far the other way the majorant's equation may be off, in multiples of its slack.
SURPLUS = 20 / 3
# The share of the bound that is left to the rounding of kept residuals, ...
DRIFT = 0.01
# ... and what the majorant's equation, whose terms are at least 1, is left for it.
SLACK_DRIFT = 1e-3
# How far majorant / estimate may grow before the bound is tightened.
RATIO_ALLOWANCE = 1.03
# By how much the bound is tightened at once, at most.
RATIO_STEP = 4.0
# How far the error of the sum may grow before the bound is tightened, and the share of the tolerance that it may
# take in any case.
SUM_ALLOWANCE = 1.25
SUM_SHARE_MIN = 0.1


class Certificate:
    """What residuals are solved to, and what that rests on.

    ``ratio``: the largest majorant / estimate, and ``ratio_allowed`` how far it may grow. ``sum_allowed``: what
    the relative error of the sum may be. ``reserve``: what rounding may put between kept residuals and true ones,
    in multiples of the weights, and ``reserve_least`` the least for a graph on which a pass rounds that much.
    ``slack``: how far the majorant's equation may be off, in multiples of the weights. From these follows the
    ``bound``.
    """

    SCALARS = ("bound", "ratio", "ratio_allowed", "sum_allowed", "reserve", "reserve_least", "slack")
    """The attributes that tell a certificate from another of the same tolerance."""

    def __init__(self, tolerance: float) -> None:
        """Of estimates that are their own majorant."""
        self.tolerance = tolerance
        self.sum_allowed = SUM_SHARE_MIN * tolerance
        self.reserve = self.reserve_least = 0.0
        self.slack = SLACK
        self.allow(1.0)

    @property
    def amplification(self) -> float:
        """The factor between a residual, in multiples of its weight, and the relative error that it may make."""
        return amplified(self.ratio, self.slack)

    def error_bound(self, rounding: float, sum_error: float) -> float:
        """The certified relative error of every result, normalising included.

        ``rounding``: what kept residuals may be off by, in multiples of the weights. ``sum_error``: the relative
        error of the sum of the estimates.
        """
        return error_of((self.bound + max(self.reserve, rounding)) * self.amplification, sum_error)

    def allow(self, ratio: float) -> None:
        """Set the bound for ratios up to somewhat over this one."""
        self.ratio = ratio
        self.ratio_allowed = RATIO_ALLOWANCE * ratio
        self._set_bound()

    def allow_slack(self, slack: float) -> None:
        """Set the bound for another slack of the majorant's equation."""
        self.slack = slack
        self._set_bound()

    def take_ratio(self, ratio: float, *, of_all: bool) -> bool:
        """Take a new ratio; false where it outgrew its allowance, and the bound has been tightened for it.

        ``of_all``: it is the largest of all vertices, and not only one that none exceeds.
        """
        self.ratio = ratio
        if of_all and ratio * RATIO_ALLOWANCE**3 <= self.ratio_allowed:
            self.allow(ratio)
        if ratio <= self.ratio_allowed:
            return True
        # The estimates were solved to too wide a bound, and may even be negative: go on by steps.
        self.allow(min(ratio, RATIO_STEP * self.ratio_allowed))
        return False

    def take_sum_error(self, error: float) -> bool:
        """Take a new error of the sum; false where it outgrew its allowance, and the bound has been tightened."""
        largest = self.tolerance / 2
        if error <= self.sum_allowed or self.sum_allowed == largest:
            if SUM_ALLOWANCE**3 * error <= self.sum_allowed:
                # There is room: what comes next need not be solved as far.
                self.sum_allowed = max(SUM_ALLOWANCE * error, SUM_SHARE_MIN * self.tolerance)
                self._set_bound()
            return True
        self.sum_allowed = min(SUM_ALLOWANCE * error, largest)
        self._set_bound()
        return False

    def take_rounding(self, rounding: float) -> bool:
        """Take what a pass alone rounds; false where the reserve was less than twice that, and has been raised."""
        if rounding > self.reserve / 2:
            self.reserve_least = 4 * rounding
            self._set_bound()
            return False
        return True

    def _set_bound(self) -> None:
        """The widest bound with which both allowances keep to the tolerance."""
        a = max(self.tolerance - self.sum_allowed, self.tolerance / 2) / (1 + self.tolerance)
        allowed = a * (1 - self.slack - SLACK_DRIFT) / self.ratio_allowed
        self.reserve = max(DRIFT * allowed, self.reserve_least)
        self.bound = max(allowed - self.reserve, allowed / 2)


@register_jitable
def error_of(residual_error: float, sum_error: float) -> float:
    """The relative error of every result, normalising included, where residuals alone make that of an estimate."""
    if residual_error < 1.0:
        return (residual_error + min(residual_error, sum_error)) / (1.0 - residual_error)
    return math.inf


@register_jitable
def amplified(ratio: float, slack: float) -> float:
    """The factor between a residual, in multiples of its weight, and the relative error that it may make."""
    return ratio / (1.0 - slack - SLACK_DRIFT)


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
