"""Waits between tries."""

from __future__ import annotations

import random


class Backoff:
    """Waits between tries: each twice the one before up to a limit, shortened at random by up to half."""

    def __init__(self, first_s: float = 0.1, limit_s: float = 10.0) -> None:
        self.first_s = first_s
        self.limit_s = limit_s
        self._next_s = first_s

    def reset(self) -> None:
        self._next_s = self.first_s

    def wait_s(self) -> float:
        """How long to wait now."""
        wait = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(2 * self._next_s, self.limit_s)
        return wait
