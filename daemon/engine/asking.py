"""Whether somebody asks about rows, which is when the host's are not to be behind a device's.

Whoever asks waits until the host has taken all that waits, which is tens of milliseconds of a fast stream. So
while somebody asks, if only now and then, the host takes each batch beside the device, though epochs take longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

UNASKED_EPOCHS, ASKED_S = 4, 10.0
"""Until so many epochs had no question, and none came for so long, somebody asks."""


class Asking:
    """To be turned at each epoch."""

    def __init__(self, questions: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        """``questions``: how many about rows came so far; ``clock``: seconds."""
        self._questions, self._clock = questions, clock
        self._n, self._unasked_epochs, self._asked_at = questions(), UNASKED_EPOCHS, -ASKED_S

    def turn(self) -> bool:
        """Another epoch begins: whether rows are asked about."""
        before, self._n = self._n, self._questions()
        now = self._clock()
        if self._n == before:
            self._unasked_epochs += 1
        else:
            self._unasked_epochs, self._asked_at = 0, now
        return self._unasked_epochs < UNASKED_EPOCHS or now - self._asked_at < ASKED_S
