"""The weight domain of a graph: which weights its edges may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from ..gpma.edges import INFINITY_BITS, MINUS_ZERO_BITS, Weights

if TYPE_CHECKING:
    from ..gpma.team import Crew

WeightDomain = Literal["unweighted", "non-negative", "any"]


def in_domain(weights: Weights, domain: WeightDomain, crew: Crew | None = None) -> Weights:
    """The weights as the graph keeps them, all in its domain and no minus zero; copied only where there is one.

    ``crew``: who looks at many; None: the caller alone.

    Raises:
        ValueError: one lies outside; the message names the first such.
    """
    if domain == "non-negative" and _largest_word(weights, crew) < INFINITY_BITS:
        return weights  # the one pass that good weights need
    allowed = are_allowed(weights, domain)
    if not allowed.all():
        raise ValueError(why_not(weights[np.flatnonzero(~allowed)[0]], domain))
    return without_minus_zero(weights)


def _largest_word(weights: Weights, crew: Crew | None) -> int:
    if crew is None:
        return int(np.ascontiguousarray(weights).view(np.uint32).max(initial=0))
    from .scanning import largest_word  # which loads the compiler: who reads files for a spool does without

    return largest_word(weights, crew)


def are_allowed(weights: Weights, domain: WeightDomain) -> npt.NDArray[np.bool_]:
    """Which weights lie in the domain (bool[n])."""
    if domain == "unweighted":
        return np.equal(weights, 1)
    allowed = np.isfinite(weights)
    if domain == "non-negative":
        allowed &= weights >= 0
    return allowed


def without_minus_zero(weights: Weights) -> Weights:
    """-0.0 as +0.0; copied only where there is one."""
    if (weights.view(np.uint32) == MINUS_ZERO_BITS).any():
        return weights + np.float32(0)
    return weights


def why_not(weight: object, domain: WeightDomain) -> str:
    """Why a weight is not allowed, in words."""
    allowed = {
        "unweighted": "the graph is unweighted, only 1 is allowed",
        "non-negative": "it must be a finite float32, at least 0",
        "any": "it must be a finite float32",
    }
    return f"weight is {weight}; {allowed[domain]}"
