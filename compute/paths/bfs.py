"""Breadth-first search: the fewest edges from the nearest source."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .form import Functors
from .program import PathProgram


class BFS(PathProgram):
    """Fewest edges from the nearest source, as uint32."""

    kind: ClassVar[str] = "bfs"
    summary: ClassVar[str] = "fewest edges from the source (or the nearest of several), and a parent on the way"
    value = np.uint32
    at_source = 0

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        def gather(hops, weight):  # type: ignore[no-untyped-def]
            return hops + 1

        def better(new, old):  # type: ignore[no-untyped-def]
            return new < old

        return Functors(gather, better)
