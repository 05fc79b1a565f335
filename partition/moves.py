"""Rows on their way: what was decided, and what of it is handed out in an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from ..gpma.edges import Vertices
from .classes import DEVICE, Listed
from .placement import HOST
from .policies import Counts

EDGES_MAX = 1_000_000
"""Never do more edges move in an epoch."""
EDGES_LEAST = 1_024
"""Fewer are not moved at once, since to move anything takes its time; rather, none are for some epochs."""

Reason = Literal["headroom", "room", "balance", "gain", "request", "evict"]


class Move(NamedTuple):
    """Rows that go to a side: uint32 ``vertices``, each once, and how many ``edges`` they have, of all arrays."""

    vertices: Vertices
    to: int
    reason: Reason
    edges: int


Moves = list[Move]


@dataclass(slots=True)
class Decision:
    """What was decided in an epoch, why, and what became of it.

    ``to_host``, ``to_device``: edges that are to move; ``predicted_s``: how long that is thought to take, and
    ``gain_s`` what it is thought to save in each epoch (0: that was not the reason). ``moved_edges`` and
    ``moved_s``: what was measured of it so far. ``state``: "dropped" is what something more urgent came before.
    """

    epoch: int
    reason: Reason
    why: str
    to_host: int
    to_device: int
    predicted_s: float
    gain_s: float = 0.0
    moved_edges: int = 0
    moved_s: float = 0.0
    state: Literal["moving", "done", "dropped"] = "moving"


@dataclass(slots=True)
class Leg:
    """Rows that go to one side, in order; ``taken``: edges that were handed out."""

    to: int
    listed: Listed
    taken: int = 0
    _next: int = 0
    _ends: Counts = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._ends = np.cumsum(self.listed.edges)

    @property
    def is_over(self) -> bool:
        return self._next == self.listed.vertices.size

    @property
    def next_edges(self) -> int:
        """How many the next row has."""
        return int(self.listed.edges[self._next])

    def take(self, edges: int) -> Vertices:
        """The next rows (uint32[m]), with so many edges at most."""
        first = self._next
        self._next = int(np.searchsorted(self._ends, self.taken + edges, "right"))
        if self._next > first:
            self.taken = int(self._ends[self._next - 1])
        return self.listed.vertices[first : self._next]


@dataclass(slots=True)
class Plan:
    """A decision that is being carried out; of two legs the first, which makes room, stays ahead."""

    decision: Decision
    legs: list[Leg]

    @property
    def is_over(self) -> bool:
        return not self._open()

    @property
    def next_edges(self) -> int:
        """What ``take`` needs to go on; 0: it is over."""
        return self._open()[0].next_edges if self._open() else 0

    def take(self, edges: int) -> Moves:
        """What moves in this epoch: so many edges at most, of each leg half, or one row that is longer."""
        moves = []
        legs = self._open()
        for left, leg in zip(range(len(legs), 0, -1), legs, strict=True):
            before = leg.taken
            vertices = leg.take(min(edges, max(edges // left, leg.next_edges)))
            if vertices.size:
                moves.append(Move(vertices, leg.to, self.decision.reason, leg.taken - before))
                edges -= leg.taken - before
        return moves

    def _open(self) -> list[Leg]:
        """The legs that go on, the one ahead first; the other one waits while it is not behind."""
        ahead = self.legs[0]
        return [
            leg
            for leg in self.legs
            if not leg.is_over and (leg is ahead or ahead.is_over or leg.taken <= ahead.taken)
        ]


def plan(decision: Decision, leaving: Listed | None, coming: Listed | None) -> Plan:
    """With a leg to the host and one to the device."""
    legs = [Leg(to, listed) for to, listed in ((HOST, leaving), (DEVICE, coming)) if listed is not None]
    return Plan(decision, legs)
