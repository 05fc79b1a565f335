"""What the daemon is doing and whether it does: for probes, clients, metrics and systemd's watchdog.

A start goes through stages (``ops.areas.life.STAGES_OF_LIFE``). The last two are told apart by the replay: while
what lay in the log when it was opened is not in the published epoch, the daemon is ``recovering``, and answers all
the same; then it is ``running``. Parts tell, on their own threads; any thread may ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Stage = Literal["compiling", "waiting", "reading", "loading", "computing", "recovering", "running", "stopping"]


class Recovery:
    """Whether the published epoch covers all that lay in the source when it was opened.

    Ingest tells what of that is left to read, the engine what it has published; what lies between them are items,
    whose numbers rise.
    """

    def __init__(self) -> None:
        self.over = False
        self._total: int | None = None
        self._left: int | None = None
        self._last_item: int | None = None
        self._published_item = 0

    @property
    def stage(self) -> Stage:
        """``recovering`` or ``running``."""
        return "running" if self.over else "recovering"

    @property
    def progress(self) -> float | None:
        """The share that has been read; None while the source has not said how much there is."""
        if self.over:
            return 1.0
        if self._total is None or self._left is None:
            return None
        return 1 - self._left / self._total if self._total else 1.0

    def read(self, left: int | None, item: int) -> None:
        """So much of it is left to read (None: that is not known yet) after this item, the newest one."""
        if left is None or self._last_item is not None:
            return
        self._total = max(left, self._total or 0)
        self._left = left
        if left == 0:
            self._last_item = item

    def published(self, item: int) -> None:
        """An epoch is published that holds everything up to this item."""
        self._published_item = item

    def ends(self) -> bool:
        """Whether it is over now, and was not when this was asked before."""
        if self.over or self._last_item is None or self._published_item < self._last_item:
            return False
        self.over = True
        return True

    def stats(self) -> dict[str, Any]:
        """What the ``stats`` request shows: records or bytes (as of lag) to read at the start, and now."""
        return {"total": self._total, "left": self._left}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a probe: yes or no, and the facts that tell why (for JSON)."""

    good: bool
    facts: dict[str, Any]


class Health:
    """Stage, progress and heartbeat of one daemon."""

    def __init__(self, stuck_after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``stuck_after_s``: how long the engine's loop may take for one turn before it counts as stuck."""
        self.recovery = Recovery()
        self.failed = False
        self.is_answering: Callable[[], bool] = lambda: False
        self.waiting: Callable[[], str | None] = lambda: None
        """What keeps it from going on, in words; None while nothing does."""
        self._stuck_after_s = stuck_after_s
        self._clock = clock
        self._stage: Stage = "compiling"
        self._progress: float | None = None
        self._turned_at: float | None = None

    @property
    def stage(self) -> Stage:
        """What the daemon is doing."""
        return self.recovery.stage if self._stage == "running" else self._stage

    @property
    def progress(self) -> float | None:
        """How much of its stage is done, from 0 to 1; None where that is not known."""
        return self.recovery.progress if self._stage == "running" else self._progress

    def enter(self, stage: Stage) -> None:
        """Another stage begins; ``running`` is ``recovering`` until the replay is over."""
        self._stage, self._progress = stage, None

    def advance(self, progress: float) -> None:
        """So much of the stage is done."""
        self._progress = progress

    def wait_for(self, what: str | None) -> None:
        """Something keeps the stage from going on, or no longer does (None)."""
        self.waiting = lambda: what

    def turn(self) -> None:
        """The engine's loop goes round: from the first turn until ``stopping`` it must go on doing so."""
        self._turned_at = self._clock()

    def heartbeat_seconds(self) -> float:
        """Time since the engine's loop last went round; 0 where it need not."""
        if self._turned_at is None or self._stage == "stopping":
            return 0.0
        return self._clock() - self._turned_at

    def live(self) -> Verdict:
        """No: it should be restarted, for a thread has failed or the engine is stuck; unless it ends by itself."""
        heartbeat = self.heartbeat_seconds()
        good = self._stage == "stopping" or (not self.failed and heartbeat <= self._stuck_after_s)
        return Verdict(good, {"live": good, "stage": self.stage, "heartbeat_seconds": round(heartbeat, 3)})

    def ready(self) -> Verdict:
        """No: it should get no requests, for there are no answers yet, or old ones, or no query server."""
        answering = self.is_answering()
        good = self.stage == "running" and answering
        facts = {"ready": good, "stage": self.stage, "progress": self.progress, "answering": answering}
        return Verdict(good, {**facts, "waiting": self.waiting()})
