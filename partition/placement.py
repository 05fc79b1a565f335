"""Which side owns which vertex, and the splitting of a batch by owner.

A side is a small integer: 0 is the host, devices follow. The row of a vertex lives on the side that owns
the vertex, so an edge's out-row belongs to the owner of its src and its in-row to the owner of its dst.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..gpma.edges import EdgeBatch, Keys, sources, transpose

HOST = 0


@dataclass(frozen=True, slots=True)
class RoutedBatch:
    """One side's part of a batch: what its out-rows and its in-rows (None: not kept) must apply."""

    side: int
    out: EdgeBatch
    in_: EdgeBatch | None


class Placement:
    """The owner of every vertex, one byte each; with one side nothing is stored at all."""

    def __init__(self, n_sides: int = 1) -> None:
        if not 1 <= n_sides <= 255:
            raise ValueError(f"n_sides must be 1 to 255, not {n_sides}")
        self.n_sides = n_sides
        self._owner = np.empty(0, np.uint8)

    def ensure_vertices(self, n_vertices: int) -> None:
        """Place the vertices up to n_vertices that have no owner yet (by hash of the dense id)."""
        known = self._owner.size
        if self.n_sides == 1 or n_vertices <= known:
            return
        new = np.arange(known, n_vertices, dtype=np.uint64)
        spread = (new * np.uint64(0x9E37_79B9_7F4A_7C15)) >> np.uint64(40)
        owner = (spread % np.uint64(self.n_sides)).astype(np.uint8)
        self._owner = np.concatenate([self._owner, owner])

    def owners(self, vertices: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        """The side of each vertex (uint8[n])."""
        if self.n_sides == 1:
            return np.zeros(vertices.size, np.uint8)
        return self._owner[vertices]


def route(batch: EdgeBatch, placement: Placement, *, in_edges: bool) -> list[RoutedBatch]:
    """Split a batch by owner, keeping the order of updates within each part; idle sides are left out."""
    transposed = EdgeBatch(transpose(batch.keys), batch.ops, batch.weights) if in_edges else None
    if placement.n_sides == 1:
        return [RoutedBatch(HOST, batch, transposed)] if len(batch) else []
    out_owner = placement.owners(sources(batch.keys))
    in_owner = None if transposed is None else placement.owners(sources(transposed.keys))
    routed = []
    for side in range(placement.n_sides):
        out = _select(batch, out_owner == side)
        in_ = None if transposed is None or in_owner is None else _select(transposed, in_owner == side)
        if len(out) or (in_ is not None and len(in_)):
            routed.append(RoutedBatch(side, out, in_))
    return routed


def _select(batch: EdgeBatch, mask: Keys) -> EdgeBatch:
    weights = None if batch.weights is None else batch.weights[mask]
    return EdgeBatch(batch.keys[mask], batch.ops[mask], weights)
