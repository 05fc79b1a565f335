"""What the log says of bad records, and of updates that came too late: a line a minute at most, however many."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..records.stream import BadRecord

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
_DETAIL_CHARACTERS = 300


class _Minutes:
    """Whether a minute has passed since the last line."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: seconds."""
        self._clock = clock
        self._said_at: float | None = None

    def has_passed(self, *, now: bool) -> bool:
        """If so, a line is written now; ``now``: whenever the last one was."""
        time_s = self._clock()
        if not now and self._said_at is not None and time_s - self._said_at < INTERVAL_S:
            return False
        self._said_at = time_s
        return True


class RefusalLog:
    """Counts bad records by reason, and says so now and then, with one of them as an example."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds."""
        self._minutes = _Minutes(clock)
        self._counts = Counter[str]()
        self._example: BadRecord | None = None

    def note(self, bad: Sequence[BadRecord]) -> None:
        """Count these."""
        self._counts.update(letter.reason for letter in bad)
        if self._example is None and bad:
            self._example = bad[0]

    def say(self, *, now: bool = False) -> None:
        """Log what came since the last line, unless that was less than a minute ago; ``now``: whenever it was."""
        if self._example is None or not self._minutes.has_passed(now=now):
            return
        log.warning(
            "bad records went to the dead letters: %d (%s); the first of them is %s: %s",
            self._counts.total(),
            ", ".join(f"{count} {reason}" for reason, count in self._counts.most_common()),
            self._example.place,
            self._example.detail[:_DETAIL_CHARACTERS],
        )
        self._counts.clear()
        self._example = None


class Late(NamedTuple):
    """An upsert that came too late: of which partition, its time, and how far times had come that it counts
    against, of its partition or of all, in milliseconds."""

    partition: str
    timestamp_ms: int
    event_time_ms: int


class LateLog:
    """Counts upserts that were dropped since they came too late, and says so as ``RefusalLog`` does."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds."""
        self.total = 0
        self._minutes = _Minutes(clock)
        self._unsaid = 0
        self._example: Late | None = None

    def note(self, number: int, example: Late | None) -> None:
        """Count so many, of which this is one."""
        self.total += number
        self._unsaid += number
        self._example = self._example or example

    def say(self, *, now: bool = False) -> None:
        """Log what came since the last line, unless that was less than a minute ago; ``now``: whenever it was."""
        if self._example is None or not self._minutes.has_passed(now=now):
            return
        log.warning(
            "upserts came too late (window.length) and were dropped: %d; the first of them is of %s: "
            "its time is %d, and times had come to %d (milliseconds since 1970)",
            self._unsaid,
            *self._example,
        )
        self._unsaid, self._example = 0, None
