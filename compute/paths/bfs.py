"""Breadth-first search: the fewest edges from the nearest source."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...gpma.edges import Keys, Vertices
from ...partition.graph import Graph
from ..program import ExternalId, Violation
from .form import Functors
from .levels import Levels
from .program import PathProgram


class BFS(PathProgram):
    """Fewest edges from the nearest source, as uint32.

    Scalars ``reached``: the vertices that have a value, sources included; ``eccentricity``: the largest value;
    ``sum_of_hops``: of all values. Where nothing is reached they are 0.
    """

    kind: ClassVar[str] = "bfs"
    summary: ClassVar[str] = "fewest edges from the source (or the nearest of several), and a parent on the way"
    value = np.uint32
    at_source = 0

    def __init__(self, id: str, source: tuple[ExternalId, ...]) -> None:
        super().__init__(id, source)
        self._levels = Levels()

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        def gather(hops, weight):  # type: ignore[no-untyped-def]
            return hops + 1

        def better(new, old):  # type: ignore[no-untyped-def]
            return new < old

        return Functors(gather, better)

    def scalars(self) -> dict[str, float]:
        return self._levels.scalars()

    def memory_bytes(self) -> int:
        return super().memory_bytes() + self._levels.memory_bytes()

    def warm_up(self, graph: Graph) -> None:
        super().warm_up(graph)
        self.note_all_words(graph)  # which a start does without

    def note_all_words(self, graph: Graph) -> None:
        self._levels.count(self._word, self._n, graph.crew)

    def note_search(self, graph: Graph, found: Vertices) -> None:
        if type(self) is BFS:
            self._levels.take(found, self._n)
        else:  # a subclass may count otherwise than by levels
            self.note_all_words(graph)

    def note_words(self, vertices: Vertices, old: Keys) -> None:
        self._levels.move(self._word, self._n, vertices, old)

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        found, edges = super().audit_whole(graph)
        return [*found, *self._audit_levels(graph)] if self._n == graph.n_vertices else found, edges

    def _audit_levels(self, graph: Graph) -> list[Violation]:
        """What is wrong with the scalars, going by the words."""
        counted = Levels()
        counted.count(self._word, self._n, graph.crew)
        if np.array_equal(counted.by_level(), self._levels.by_level()) and counted.scalars() == self.scalars():
            return []
        return [Violation("levels", f"by the vertices' values {counted.scalars()}, not {self.scalars()}")]
