"""What a rebalancer waits for: before rows go back where they came from, for memory that was given back, and for
exchanges to pay."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from .classes import YOUNG
from .measures import BUDGET, WINDOW, Mean, Measures

# Seconds that a pass over the vertices takes for each. BUDGET of all time is spent on looks that can wait.
_LOOK_S = 2e-8
LOOK_MIN = 16
"""Epochs between two looks, at least."""
_WAIT_MAX = 4096
# What is read over the bus is suddenly more: so many times as much as usual, in so many epochs on end.
_SUDDEN, _AT_ONCE = 1.3, 4


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
    """When exchanges are looked for, and whether the last one has paid.

    When reads have suddenly become more, rows that were hot until then are as young as those that are now, and
    count with them: what is exchanged by that goes the wrong way, and rests there. So they are let grow older,
    once before a look; ``new``: for so many epochs yet.
    """

    epochs: int = 0
    seconds: float = 0.0
    wait: int = LOOK_MIN
    before_s: float = 0.0
    owed_s: float = 0.0
    new: int = 0
    _usual_s: Mean = field(default_factory=Mean)
    _last_s: deque[float] = field(default_factory=lambda: deque(maxlen=_AT_ONCE))
    _has_waited: bool = False

    def see(self, measures: Measures) -> None:
        self.epochs += 1
        self.seconds += measures.seconds
        if self.owed_s > 0:
            self.owed_s -= self.before_s - measures.remote_s
        self.new = max(0, self.new - 1)
        self._last_s.append(measures.remote_s)
        is_sudden = len(self._last_s) == _AT_ONCE and min(self._last_s) > _SUDDEN * self._usual_s.value
        if is_sudden and not self._has_waited:
            self.new, self._has_waited = YOUNG, True
        self._usual_s.see(measures.remote_s)

    def is_due(self, n_vertices: int) -> bool:
        if self.new or self.epochs < self.wait:
            return False
        return BUDGET * self.seconds >= _LOOK_S * n_vertices

    def looked(self) -> None:
        self.wait = min(2 * self.wait, _WAIT_MAX) if self.owed_s > 0 else LOOK_MIN
        self.epochs, self.seconds, self.owed_s = 0, 0.0, 0.0
        self._has_waited = False

    def begin(self, before_s: float, predicted_s: float) -> None:
        self.before_s, self.owed_s = before_s, predicted_s
