"""Checkpoints that somebody waits for: asked for by any thread, made by the engine's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import RequestError, Unavailable
from ..records.stream import Offsets
from .checkpoint import epochs_in, folder_of

Epoch = tuple[int, int]

LAPSE_S = 30.0
"""Who waits asks again and again; a wish that nobody has repeated for so long is forgotten."""
WISHES_MAX = 64
"""So many epochs may be wished for, or later ones, at once: the engine looks at each of them after every epoch."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest checkpoint that is safe on disk: what a restart would go on from."""

    epoch: Epoch
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a wish so far.

    ``since``, ``failures``: to be given when it is repeated. ``made``: the folder of the checkpoint. ``kept``: the
    epochs of all that there are, where the wished one is gone; ``reason``: why it failed.
    """

    status: Literal["made", "waiting", "gone", "failed"]
    since: Epoch
    failures: int
    made: Path | None = None
    kept: tuple[Epoch, ...] = ()
    reason: str = ""


class RequestedCheckpoints:
    """What is wished, and what is made: wishes last ``LAPSE_S`` from when they were repeated last.

    Of wishes for exactly one epoch the newest one counts: the stream waits while such a checkpoint is copied, and
    for the one before it to be written, so that there is none while one is in the making.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """``folder``: where checkpoints are written."""
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._since: dict[Epoch, float] = {}
        self._exactly: dict[Epoch, float] = {}  # one at most
        self._in_making: Epoch | None = None
        self._newest: Newest | None = None
        self._taken: Epoch = (0, 0)
        self._failures = 0
        self._reason = ""

    # -- whoever waits ------------------------------------------------------------------------------------

    def ask(self, now: Epoch, *, at: Epoch | None, since: Epoch | None, failures: int | None) -> Outcome:
        """Wish for a checkpoint of exactly the epoch ``at``, or of ``since`` (None: ``now``) or a later one.

        ``now``: the present epoch. ``failures``: as the first answer to this wish said.

        Raises:
            RequestError: ``since`` is of a start that has not been.
            Unavailable: too many other ones are wished for; or one of exactly another epoch is in the making.
        """
        since = since or now
        if since[0] > now[0]:
            named, present = (".".join(map(str, epoch)) for epoch in (since, now))
            raise RequestError(
                f"epoch {named} is of a start that has not been: the present one is {present}",
                {"parameter": "since"},
            )
        with self._lock:
            self._forget()
            failures = self._failures if failures is None else failures
            newest = None if self._newest is None else self._newest.epoch
            if at is None and newest is not None and newest >= since:
                return Outcome("made", since, failures, made=folder_of(self._folder, newest))
            if self._failures > failures:
                return Outcome("failed", since, failures, reason=self._reason)
            taken, in_making = self._taken, self._in_making
            until = self._clock() + LAPSE_S
            if at is None:
                if since not in self._since and len(self._since) >= WISHES_MAX:
                    raise Unavailable(f"checkpoints of {WISHES_MAX} other epochs are asked for")
                self._since[since] = until
                return Outcome("waiting", since, failures)
            if now <= at and now[0] == at[0]:
                if in_making not in (None, at):
                    raise Unavailable(
                        "a checkpoint of exactly another epoch is in the making; ask again once it is made"
                    )
                self._exactly = {at: until}
        kept = tuple(epoch for epoch, _ in epochs_in(self._folder))
        if at in kept and at != in_making:  # whoever hears of it may ask for another one
            return Outcome("made", since, failures, made=folder_of(self._folder, at))
        is_gone = at[0] != now[0] or (at < now and at != taken)
        return Outcome("gone" if is_gone else "waiting", since, failures, kept=kept)

    # -- whoever makes them -------------------------------------------------------------------------------

    def wants(self, now: Epoch) -> bool:
        """Somebody waits for a checkpoint of exactly this epoch, of which none was taken yet."""
        with self._lock:
            self._forget()
            return self._taken != now and now in self._exactly

    def wants_newer(self, now: Epoch) -> bool:
        """Somebody waits for one that is newer than the newest, and that this epoch's would be."""
        with self._lock:
            self._forget()
            newest = None if self._newest is None else self._newest.epoch
            return any(epoch <= now and (newest is None or epoch > newest) for epoch in self._since)

    def taken(self, epoch: Epoch) -> None:
        """One of this epoch will be written now."""
        with self._lock:
            self._taken = epoch
            if epoch in self._exactly:
                self._in_making = epoch

    def made(self, newest: Newest) -> None:
        """This one is safe on disk."""
        with self._lock:
            self._newest = newest
            self._in_making = None

    def failed(self, reason: str) -> None:
        """The one in the making came to nothing."""
        with self._lock:
            self._failures += 1
            self._reason = reason
            self._taken = (0, 0)
            self._in_making = None
            self._since.clear()
            self._exactly.clear()

    def _forget(self) -> None:
        now = self._clock()
        for wishes in (self._since, self._exactly):
            for epoch in [epoch for epoch, until in wishes.items() if until < now]:
                del wishes[epoch]
