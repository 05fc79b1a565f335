"""What a rebalancer waits for: before rows go back where they came from, for memory that was given back, and for
exchanges to pay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .measures import BUDGET, WINDOW, Measures

# Seconds that a pass over the vertices takes for each. BUDGET of all time is spent on looks that can wait.
_LOOK_S = 2e-8
LOOK_MIN = 16
"""Epochs between two looks, at least."""
_WAIT_MAX = 4096


@dataclass(slots=True)
class Turns:
    """Which way rows went last, and for how long none go the other way."""

    to: int = -1
    epoch: int = 0
    wait: int = WINDOW

    def allow(self, to: int, epoch: int) -> bool:
        return to == self.to or self.to < 0 or epoch - self.epoch >= self.wait

    def took(self, to: int, epoch: int) -> None:
        if self.to >= 0 and to != self.to:
            since = epoch - self.epoch
            self.wait = WINDOW if since >= 8 * self.wait else min(2 * self.wait, _WAIT_MAX)
        self.to, self.epoch = to, epoch


@dataclass(slots=True)
class Looks:
    """What requests may spend on looks at all vertices: a share of the time, and the first one at once."""

    purse_s: float = float("inf")

    def see(self, seconds: float) -> None:
        self.purse_s += BUDGET * seconds

    def take(self, n_vertices: int) -> bool:
        """Whether there is enough for a look, which is paid for then; nothing is saved beyond it."""
        price = _LOOK_S * n_vertices
        if self.purse_s < price:
            return False
        self.purse_s = 0.0
        return True


class Relief(NamedTuple):
    """What the device held when rows began to leave for want of memory, and the epoch in which they had left.

    Arrays may shrink some time after: for a window what left is thought to be free.
    """

    epoch: int
    held_bytes: int
    edges: int
    edge_bytes: float

    def held(self, measures: Measures) -> int:
        return min(
            measures.device_bytes, int(self.held_bytes - self.edge_bytes * (self.edges - measures.device_edges))
        )


@dataclass(slots=True)
class Exchanges:
    """When exchanges are looked for, and whether the last one has paid."""

    epochs: int = 0
    seconds: float = 0.0
    wait: int = LOOK_MIN
    before_s: float = 0.0
    owed_s: float = 0.0

    def see(self, measures: Measures) -> None:
        self.epochs += 1
        self.seconds += measures.seconds
        if self.owed_s > 0:
            self.owed_s -= self.before_s - measures.remote_s

    def is_due(self, n_vertices: int) -> bool:
        return self.epochs >= self.wait and BUDGET * self.seconds >= _LOOK_S * n_vertices

    def looked(self) -> None:
        self.wait = min(2 * self.wait, _WAIT_MAX) if self.owed_s > 0 else LOOK_MIN
        self.epochs, self.seconds, self.owed_s = 0, 0.0, 0.0

    def begin(self, before_s: float, predicted_s: float) -> None:
        self.before_s, self.owed_s = before_s, predicted_s
