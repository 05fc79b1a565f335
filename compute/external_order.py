"""The order of vertices by their external ids, asked in the two ways that component labels need."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ..gpma.edges import Vertices
from .program import grown

# Past this share of the sorted part, new vertices are sorted in; below the floor sorting is cheap anyway.
_TAIL_SHARE = 8
_TAIL_FLOOR = 1024


class ExternalOrder(Protocol):
    """Compares dense vertices by external id: integers by value, strings by bytes. The vertex index is one."""

    def smallest(self, dense: Vertices) -> int:
        """The vertex with the smallest external id of these (uint32[k], k at least 1)."""
        ...

    def sort_by_external(self, dense: Vertices) -> Vertices:
        """The same vertices (uint32[k]) by ascending external id."""
        ...


class SortedVertices:
    """All vertices by ascending external id, sorted when first asked for.

    Vertices that came later wait in an unsorted tail, and are sorted in once the tail is an eighth: the cost
    of a new vertex stays that of a share of one sort.
    """

    def __init__(self, order: ExternalOrder) -> None:
        self._order = order
        self._sorted = np.empty(0, np.uint32)
        self._position = np.empty(0, np.uint32)

    def prepare(self, n_vertices: int) -> Vertices:
        """The sorted part; vertices from its size up to n_vertices are the tail."""
        tail = n_vertices - self._sorted.size
        if tail > max(_TAIL_FLOOR, self._sorted.size // _TAIL_SHARE):
            # The old order first: sorts that use what is sorted already have little to do.
            new = np.arange(self._sorted.size, n_vertices, dtype=np.uint32)
            self._sorted = self._order.sort_by_external(np.concatenate([self._sorted, new]))
            self._position = grown(self._position, n_vertices)
            self._position[self._sorted] = np.arange(n_vertices, dtype=np.uint32)
        return self._sorted

    def position(self, vertex: int) -> int:
        """Where the vertex stands in the sorted part; 0 if it is in the tail."""
        return int(self._position[vertex]) if vertex < self._sorted.size else 0

    def memory_bytes(self) -> int:
        return self._sorted.nbytes + self._position.nbytes
