"""Shortest paths: the smallest sum of weights from the nearest source, as float32 sums from the source outwards.

A sum that overflows is infinity, which is a distance like any other. Weights are never negative.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .form import Functors
from .program import PathProgram


class SSSP(PathProgram):
    """Smallest sum of weights from the nearest source."""

    kind: ClassVar[str] = "sssp"
    summary: ClassVar[str] = "smallest sum of weights from the source (or the nearest of several), and a parent"
    needs_weights: ClassVar[bool] = True
    weight_domains: ClassVar[tuple[str, ...]] = ("non-negative",)
    value = np.float32
    at_source = 0.0

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        def gather(distance, weight):  # type: ignore[no-untyped-def]
            return distance + weight

        def better(new, old):  # type: ignore[no-untyped-def]
            return new < old

        return Functors(gather, better)
