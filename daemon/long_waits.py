"""What takes long and should not: a disk or a broker that does not answer holds the thread that waits for it,
which cannot say so itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

LONG_S = 10.0
"""A disk or a broker that has not answered for so long is told of."""


class LongWaits:
    """``during`` is for the thread that works; ``now`` and ``tell`` are for others."""

    def __init__(self, meanwhile: str) -> None:
        """``meanwhile``: what that means, in words."""
        self._meanwhile = meanwhile
        self._work: tuple[str, float] | None = None
        self._told: tuple[str, float] | None = None

    @contextmanager
    def during(self, work: str) -> Iterator[None]:
        """Within the block this is done, in words."""
        self._work = work, time.monotonic()
        try:
            yield
        finally:
            self._work = None

    @property
    def now(self) -> str | None:
        """What takes long at the moment, in words."""
        work = self._work
        return None if work is None or time.monotonic() - work[1] < LONG_S else _said(work[0])

    def tell(self, *, known: bool = False) -> None:
        """Log once that something takes long, and once that it is done; to be called now and then. ``known``: why
        is told of elsewhere, so that nothing is said of what begins to take long."""
        work = self._work
        if self._told is not None and self._told != work:
            what, since = self._told
            self._told = None
            log.info("%s is done after %.0f s", what, time.monotonic() - since)
        if self._told is None and work is not None and self.now is not None and not known:
            self._told = work
            log.error("%s: %s", self._meanwhile, _said(work[0]))


def _said(work: str) -> str:
    return f"{work} takes longer than {LONG_S:g} s, as where a disk or a broker does not answer"
