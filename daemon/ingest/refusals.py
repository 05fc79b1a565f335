"""What the log says of bad records: a line a minute at most, however many there are."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from ..records.stream import BadRecord

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
_DETAIL_CHARACTERS = 300


class RefusalLog:
    """Counts bad records by reason, and says so now and then, with one of them as an example."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds."""
        self._clock = clock
        self._counts = Counter[str]()
        self._example: BadRecord | None = None
        self._said_at: float | None = None

    def note(self, bad: Sequence[BadRecord]) -> None:
        """Count these."""
        self._counts.update(letter.reason for letter in bad)
        if self._example is None and bad:
            self._example = bad[0]

    def say(self, *, now: bool = False) -> None:
        """Log what came since the last line, unless that was less than a minute ago; ``now``: whenever it was."""
        if self._example is None:
            return
        time_s = self._clock()
        if not now and self._said_at is not None and time_s - self._said_at < INTERVAL_S:
            return
        log.warning(
            "bad records went to the dead letters: %d (%s); the first of them is %s: %s",
            self._counts.total(),
            ", ".join(f"{count} {reason}" for reason, count in self._counts.most_common()),
            self._example.place,
            self._example.detail[:_DETAIL_CHARACTERS],
        )
        self._counts.clear()
        self._example, self._said_at = None, time_s
