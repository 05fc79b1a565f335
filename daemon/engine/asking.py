"""How far the host's rows may be behind a device's, by when somebody last asked about rows.

Whoever asks waits until the host has taken all that waits: tens of milliseconds, if it takes many updates at once.
So while somebody asks the host takes each batch beside the device, which makes epochs longer; and where somebody
asks now and then it follows closely, which takes more of the processors.
"""

from __future__ import annotations

import time
from collections.abc import Callable

UNASKED_EPOCHS, ASKED_S = 4, 1.0
"""Until so many epochs had no question, and none came for so long, somebody asks."""
ASKED_LATELY_S = 60.0
"""And until none came for so long, somebody may ask again."""


class Asking:
    """To be turned at each epoch."""

    def __init__(self, questions: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        """``questions``: how many about rows came so far; ``clock``: seconds."""
        self._questions, self._clock = questions, clock
        self._n, self._unasked_epochs, self._asked_at = questions(), UNASKED_EPOCHS, -ASKED_LATELY_S

    def turn(self) -> None:
        """Another epoch begins."""
        before, self._n = self._n, self._questions()
        if self._n == before:
            self._unasked_epochs += 1
        else:
            self._unasked_epochs, self._asked_at = 0, self._clock()

    @property
    def is_asked(self) -> bool:
        """Whether rows are asked about, by this turn."""
        return self._unasked_epochs < UNASKED_EPOCHS or self._since < ASKED_S

    @property
    def was_asked(self) -> bool:
        """Whether they were lately."""
        return self._since < ASKED_LATELY_S

    @property
    def _since(self) -> float:
        return self._clock() - self._asked_at
