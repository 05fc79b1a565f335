"""Path programs as a user writes them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from graphtide.compute.paths.form import Functors
from graphtide.compute.paths.program import PathProgram


class Within(PathProgram):
    """Hops, but at most three of them."""

    kind: ClassVar[str] = "test-within"
    value = np.uint32
    at_source = 0

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        limit = parameters["limit"]

        def gather(hops, weight):  # type: ignore[no-untyped-def]
            return hops + 1 if hops < limit else 0xFFFF_FFFF

        def better(new, old):  # type: ignore[no-untyped-def]
            return new < old

        return Functors(gather, better)


class Reached(PathProgram):
    """Whether there is a path at all: the same value for all."""

    kind: ClassVar[str] = "test-reached"
    value = np.uint32
    at_source = 7

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        def gather(value, weight):  # type: ignore[no-untyped-def]
            return value

        def better(new, old):  # type: ignore[no-untyped-def]
            return new < old

        return Functors(gather, better)


class Fading(PathProgram):
    """Widest path on which every edge passes on nine tenths."""

    kind: ClassVar[str] = "test-fading"
    needs_weights: ClassVar[bool] = True
    weight_domains: ClassVar[tuple[str, ...]] = ("non-negative",)
    value = np.float32
    at_source = 1000.0

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        share = np.float32(0.9)

        def gather(width, weight):  # type: ignore[no-untyped-def]
            return min(width, weight) * share

        def better(new, old):  # type: ignore[no-untyped-def]
            return new > old

        return Functors(gather, better)
