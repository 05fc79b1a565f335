"""The order of vertices by their external ids, asked in the two ways that component labels need."""

from __future__ import annotations

import numpy as np

from ...gpma.edges import NO_VERTEX, Vertices
from ..program import ExternalOrder as ExternalOrder  # for programs of users, too
from ..program import grown

# Past this share of the sorted part, new vertices are sorted in; below the floor sorting is cheap anyway.
_TAIL_SHARE = 8
_TAIL_FLOOR = 1024


class SortedVertices:
    """All vertices by ascending external id, sorted when first asked for.

    Vertices that came later wait in an unsorted tail, those that were renamed lie loose; both are sorted in once
    they are an eighth: the cost of a new vertex stays that of a share of one sort.
    """

    def __init__(self, order: ExternalOrder) -> None:
        self._order = order
        self._sorted = np.empty(0, np.uint32)
        self._position = np.empty(0, np.uint32)
        self._loose: list[Vertices] = []
        self._n_loose = 0

    def must_sort(self, n_vertices: int) -> bool:
        """Whether ``prepare`` would sort."""
        unsorted = n_vertices - self._sorted.size + self._n_loose
        return unsorted > max(_TAIL_FLOOR, self._sorted.size // _TAIL_SHARE)

    def prepare(self, n_vertices: int) -> Vertices:
        """The sorted part, ``NO_VERTEX`` where a vertex was taken out; vertices from its size on are the tail."""
        if self.must_sort(n_vertices):
            # The old order first: sorts that use what is sorted already have little to do.
            new = np.arange(self._sorted.size, n_vertices, dtype=np.uint32)
            kept = self._sorted[self._sorted != NO_VERTEX]
            self._sorted = self._order.sort_by_external(np.concatenate([kept, self.loose(), new]))
            self._position = grown(self._position, n_vertices)
            self._position[self._sorted] = np.arange(n_vertices, dtype=np.uint32)
            self._loose, self._n_loose = [], 0
        return self._sorted

    def renamed(self, vertices: Vertices) -> None:
        """These vertices (each once) may have other external ids than before."""
        vertices = vertices[vertices < self._sorted.size]
        vertices = vertices[self._position[vertices] != NO_VERTEX]
        if vertices.size:
            self._sorted[self._position[vertices]] = NO_VERTEX
            self._position[vertices] = NO_VERTEX
            self._loose.append(vertices)
            self._n_loose += vertices.size

    def loose(self) -> Vertices:
        """The vertices that were taken out of the sorted part, which are to be looked at as those of the tail."""
        if len(self._loose) > 1:
            self._loose = [np.concatenate(self._loose)]
        return self._loose[0] if self._loose else np.empty(0, np.uint32)

    def position(self, vertex: int) -> int:
        """Where the vertex stands in the sorted part; 0 if it does not."""
        if vertex >= self._sorted.size or self._position[vertex] == NO_VERTEX:
            return 0
        return int(self._position[vertex])

    def memory_bytes(self) -> int:
        return self._sorted.nbytes + self._position.nbytes + 4 * self._n_loose
