"""How many triangles each vertex is a corner of."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Vertices
from ..links import Links
from ..program import Answer, Column, Published, Violation
from .tally import Tally


class Triangles(Tally):
    """Sets of three vertices, each two of them linked, that hold a vertex. Column ``triangles``: uint64.

    Directions, loops and a second arc between two vertices make no difference. Scalar ``triangles``: how many
    there are, each counted once.
    """

    kind: ClassVar[str] = "triangles"
    summary: ClassVar[str] = "number of triangles that the vertex is a corner of, whichever way their edges point"
    value = np.uint64
    weighs = False

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._total = 0

    def columns(self) -> dict[str, Column]:
        return {"triangles": self._tally}

    def scalars(self) -> dict[str, float]:
        return {"triangles": float(self._total)}

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        values = published.columns["triangles"][vertices]
        return Answer(values, np.zeros(values.size, bool))

    def _added_up(self) -> None:
        self._total = self._count()

    def _count(self) -> int:
        return int(self._tally[: self._n].sum()) // 3

    def _take(self, vertices: Vertices, delta: npt.NDArray[np.int64], links: Links) -> dict[str, Vertices]:
        self._tally[vertices] += delta.view(np.uint64)
        self._total += int(delta.sum()) // 3
        return {"triangles": vertices}

    def _audit_scalars(self) -> list[Violation]:
        count = self._count()
        if count == self._total:
            return []
        return [Violation("total", f"there are {count} triangles, not {self._total}")]
