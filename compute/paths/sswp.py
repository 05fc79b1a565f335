"""Widest paths: the largest smallest weight on the way from a source, which itself has infinity."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .form import Functors
from .program import PathProgram


class SSWP(PathProgram):
    """The width of the widest path from a source."""

    kind: ClassVar[str] = "sswp"
    summary: ClassVar[str] = "largest smallest weight on a path from the source (or any of several), and a parent"
    needs_weights: ClassVar[bool] = True
    weight_domains: ClassVar[tuple[str, ...]] = ("non-negative", "any")
    value = np.float32
    at_source = np.inf

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        def gather(width, weight):  # type: ignore[no-untyped-def]
            return min(width, weight)

        def better(new, old):  # type: ignore[no-untyped-def]
            return new > old

        return Functors(gather, better)
