"""Which side owns which vertex.

A side is a small integer: 0 is the host, others follow. The rows of a vertex live on the side that owns it, so an
edge's out-row belongs to the owner of its src and its in-row to the owner of its dst.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..gpma.edges import Vertices
from ..gpma.vertex_columns import grown

Owners = npt.NDArray[np.uint8]

HOST = 0


class Placement:
    """The owner of every vertex, one byte each; with one side nothing is stored at all."""

    def __init__(self, n_sides: int = 1) -> None:
        if not 1 <= n_sides <= 255:
            raise ValueError(f"n_sides must be 1 to 255, not {n_sides}")
        self.n_sides = n_sides
        self.newcomers = HOST
        """The side that gets new vertices."""
        self._n = 0
        self._owner: Owners = np.empty(0, np.uint8)
        self._owned = np.zeros(n_sides, np.int64)

    @property
    def owner(self) -> Owners:
        """uint8[n_vertices], read-only and in place: the side of each vertex."""
        view = np.broadcast_to(np.uint8(HOST), self._n) if self.n_sides == 1 else self._owner[: self._n]
        view.flags.writeable = False
        return view

    @property
    def owned(self) -> tuple[int, ...]:
        """How many vertices each side owns."""
        return tuple(int(n) for n in self._owned)

    @property
    def sole(self) -> int | None:
        """The side that owns all vertices there are, and gets the new ones; None: there are several."""
        return self.newcomers if self._owned[self.newcomers] == self._n else None

    def ensure_vertices(self, n_vertices: int) -> None:
        """Place the vertices up to n_vertices that have no owner yet: ``newcomers`` gets them."""
        new = n_vertices - self._n
        if new <= 0:
            return
        if self.n_sides > 1:
            self._owner = grown(self._owner, n_vertices)
            self._owner[self._n : n_vertices] = self.newcomers
        self._owned[self.newcomers] += new
        self._n = n_vertices

    def withdraw_vertices(self, n_vertices: int) -> None:
        """Take ``ensure_vertices`` back."""
        if n_vertices < self._n:
            self._owned -= self._counted(self.owner[n_vertices:])
            self._n = n_vertices

    def move(self, vertices: Vertices, to: int) -> None:
        """Give these vertices, each named once, to a side."""
        self._owned -= self._counted(self.owners(vertices))
        self._owned[to] += vertices.size
        if self.n_sides > 1:
            self._owner[vertices] = to

    def place(self, owner: Owners) -> None:
        """Give every vertex the owner of this column, uint8[n_vertices]."""
        self._n = owner.size
        self._owned = self._counted(owner)
        if self.n_sides > 1:
            self._owner = owner.copy()

    def owners(self, vertices: Vertices) -> Owners:
        """The side of each vertex (uint8[n])."""
        if self.n_sides == 1:
            return np.zeros(vertices.size, np.uint8)
        return self._owner[vertices]

    def _counted(self, owner: Owners) -> npt.NDArray[np.int64]:
        return np.bincount(owner, minlength=self.n_sides).astype(np.int64)
