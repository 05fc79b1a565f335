"""Spool files that end within a record or line: what lies there counts as lag, and no epoch will come of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import takewhile

log = logging.getLogger(__name__)

INCOMPLETE_S = 60.0
"""A file that has ended within a record for so long is told of: its writer died, perhaps, or forgot a line end."""
INCOMPLETE_NAMED = 5
"""So many of them in as long a time are named."""


class Incomplete:
    """Logs such files, once for each end. Many are logged together: who forgets a line end forgets it in all."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds."""
        self._clock = clock
        self._since: dict[str, float] = {}  # the first first
        self._tell_at = clock()

    def note(self, name: str) -> None:
        """This file ends within a record now, if it did not before."""
        self._since.setdefault(name, self._clock())

    def forget(self, name: str) -> None:
        """This one does not, or is there no more."""
        self._since.pop(name, None)

    def tell(self, unread: Callable[[str], int]) -> None:
        """To be called often. ``unread``: how many bytes of a file wait."""
        now = self._clock()
        if now < self._tell_at:
            return
        due = [name for name, _ in takewhile(lambda item: now - item[1] >= INCOMPLETE_S, self._since.items())]
        for place, name in enumerate(due):
            del self._since[name]
            if place < INCOMPLETE_NAMED:
                log.warning(
                    "spool file %s ends within a record or line: its last %d bytes wait for what is missing, be "
                    "it a line end",
                    *(name, unread(name)),
                )
        if len(due) > INCOMPLETE_NAMED:
            log.warning("and so do %d other files of the spool", len(due) - INCOMPLETE_NAMED)
        if due:
            self._tell_at = now + INCOMPLETE_S
