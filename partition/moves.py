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
    """Rows that go to one side, in order.

    What is handed out in an epoch is within the budget. A row longer than that waits, alone, until the budgets of
    as many epochs are enough.
    """

    to: int
    listed: Listed
    taken: int = 0
    _next: int = 0
    _saved: int = 0
    _ends: Counts = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._ends = np.cumsum(self.listed.edges)

    @property
    def is_over(self) -> bool:
        return self._next == self.listed.vertices.size

    def take(self, budget: int) -> Vertices:
        """The next rows (uint32[m])."""
        if self.is_over:
            return self.listed.vertices[:0]
        self._saved = min(self._saved + budget, max(budget, int(self.listed.edges[self._next])))
        first = self._next
        self._next = int(np.searchsorted(self._ends, self.taken + self._saved, "right"))
        if self._next > first:
            end = int(self._ends[self._next - 1])
            self._saved -= end - self.taken
            self.taken = end
        return self.listed.vertices[first : self._next]


@dataclass(slots=True)
class Plan:
    """A decision that is being carried out; of two legs the first, which makes room, stays ahead."""

    decision: Decision
    legs: list[Leg]

    @property
    def is_over(self) -> bool:
        return all(leg.is_over for leg in self.legs)

    def take(self, budget: int) -> Moves:
        """What moves in this epoch, at most so many edges (or one longer row)."""
        open_legs = [leg for leg in self.legs if not leg.is_over]
        moves = []
        for leg in open_legs:
            ahead = self.legs[0]
            if leg is not ahead and not ahead.is_over and leg.taken > ahead.taken:
                continue
            before = leg.taken
            vertices = leg.take(budget // len(open_legs))
            if vertices.size:
                moves.append(Move(vertices, leg.to, self.decision.reason, leg.taken - before))
        return moves


def plan(decision: Decision, leaving: Listed | None, coming: Listed | None) -> Plan:
    """With a leg to the host and one to the device."""
    legs = [Leg(to, listed) for to, listed in ((HOST, leaving), (DEVICE, coming)) if listed is not None]
    return Plan(decision, legs)
