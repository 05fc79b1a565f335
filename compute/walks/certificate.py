"""The certificate of PageRank in numbers: how large residuals may be, and what error follows from them.

``pagerank.py`` says why it is true; here is how the tolerance is shared out. ``bound`` is what a residual may be
in multiples of its weight. It is the widest with which three things together keep to the tolerance: the ratio
majorant / estimate up to its allowance, the error of the sum up to its own, and rounding up to its reserve.
Allowances are a little over what was measured, so that most changes leave the bound alone; where a measure
outgrows its allowance, that is raised and the bound tightened, and where there is much room, the other way about.
"""

from __future__ import annotations

import math

from numba.extending import register_jitable

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
