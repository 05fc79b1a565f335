"""Local clustering coefficients: how many of the arcs that there could be between a vertex's neighbours there
are."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Vertices, sources
from ...partition.graph import Graph
from ..links import Links
from ..program import Answer, Column, Published, Violation, grown
from .tally import Tally

# Coefficients are added up as whole numbers of 2^-60, in two halves of so many bits.
_HALF_BITS = 30


class LocalClustering(Tally):
    """Arcs between the neighbours of a vertex, over d(d - 1) for d neighbours; 0 where d < 2.

    Neighbours are those in either direction, each once, and never the vertex itself: the definition of LDBC
    Graphalytics (Iosup et al., 2016). In an undirected graph each edge is an arc either way, which gives the usual
    coefficient of Watts and Strogatz (1998). In a directed graph it is not the one of Fagiolo (2007).

    Columns ``arcs``: uint64, and ``neighbors``: uint32, both exact; a reader divides. Scalar ``mean``: of all
    vertices' coefficients, each to within 2^-60.
    """

    kind: ClassVar[str] = "lcc"
    summary: ClassVar[str] = "local clustering coefficient: share of possible arcs between neighbours that exist"
    value = np.float64
    weighs = True

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._sum = 0

    def columns(self) -> dict[str, Column]:
        return {"arcs": self._tally, "neighbors": self._neighbors}

    def scalars(self) -> dict[str, float]:
        return {"mean": self._sum / (self._n_alive << 2 * _HALF_BITS) if self._n_alive else 0.0}

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        columns = published.columns
        values = _coefficients(columns["arcs"][vertices], columns["neighbors"][vertices])
        return Answer(values, np.zeros(values.size, bool))

    def _added_up(self) -> None:
        self._sum = self._sum_of(slice(self._n))

    def _sum_of(self, vertices: Vertices | slice) -> int:
        """The sum of their coefficients, in units of 2^-60: the same in any order."""
        units = _coefficients(self._tally[vertices], self._neighbors[vertices]) * 2.0**_HALF_BITS
        high = np.floor(units)
        low = (units - high) * 2.0**_HALF_BITS
        return (int(high.astype(np.int64).sum()) << _HALF_BITS) + int(low.astype(np.int64).sum())

    def _take(self, vertices: Vertices, delta: npt.NDArray[np.int64], links: Links) -> dict[str, Vertices]:
        ends, first = np.unique(sources(links.keys), return_index=True)
        more = (links.after > 0).astype(np.int64) - (links.before > 0)
        more = np.add.reduceat(more, first) if first.size else more
        ends, more = ends[more != 0], more[more != 0]
        affected = np.union1d(vertices, ends)
        self._sum -= self._sum_of(affected)
        self._tally[vertices] += delta.view(np.uint64)
        self._neighbors[ends] += more.astype(np.uint32)
        self._sum += self._sum_of(affected)
        return {"arcs": vertices, "neighbors": ends}

    def _grow(self, graph: Graph) -> None:
        super()._grow(graph)
        self._neighbors = grown(self._neighbors, self._tally.size, 0)

    def _audit_scalars(self) -> list[Violation]:
        units = self._sum_of(slice(self._n))
        if units == self._sum:
            return []
        return [Violation("mean", f"the coefficients add up to {units} of 2^-60, not to {self._sum}")]


def _coefficients(arcs: npt.NDArray[np.uint64], neighbors: Vertices) -> npt.NDArray[np.float64]:
    wide = neighbors.astype(np.uint64)
    possible = wide * np.maximum(wide, 1) - wide
    values: npt.NDArray[np.float64] = np.divide(arcs, possible, out=np.zeros(arcs.size), where=possible > 0)
    return values
