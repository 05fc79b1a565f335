"""Answers that are the same for everybody: computed once an epoch however many ask, and before anybody asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import Unavailable

T = TypeVar("T")

ANSWERS_MAX = 64
AHEAD_MAX = 4
"""So many answers of an epoch are computed before anybody asks."""
AHEAD_UNASKED = 2
"""And each for so many epochs in a row though nobody asked for it: where epochs come about as fast as those who
ask, many have none."""


@dataclass(slots=True)
class _Answer(Generic[T]):
    """An answer in the making, or made; ``askers``: how many it was for; ``unasked``: of so many epochs in a row
    before it was for nobody; ``again``: what makes it, where the next epoch's is to be made ahead."""

    epoch: tuple[int, int]
    future: asyncio.Future[T]
    askers: int = 0
    unasked: int = 0
    again: Callable[[], Coroutine[Any, Any, T]] | None = None

    @property
    def has_failed(self) -> bool:
        done = self.future.done()
        return done and (self.future.cancelled() or self.future.exception() is not None)


class OnceAnEpoch(Generic[T]):
    """For the event loop."""

    def __init__(
        self,
        epoch: Callable[[], tuple[int, int]],
        begin: Callable[[Coroutine[Any, Any, T]], asyncio.Future[T]],
    ) -> None:
        """``epoch``: the newest one; raises ``Unavailable`` where there is none, or epochs follow each other too
        fast. ``begin``: has work go on that belongs to no request."""
        self._epoch = epoch
        self._begin = begin
        self._answers: dict[Any, _Answer[T]] = {}

    def known(self, key: Any) -> T | None:
        """What ``answer`` has for this key of the newest epoch already."""
        known = self._answers.get(key)
        done = known is not None and known.future.done() and not known.has_failed
        if known is None or not done or known.epoch != self._epoch():
            return None
        known.askers += 1
        return known.future.result()

    async def answer(self, key: Any, compute: Callable[[], Coroutine[Any, Any, T]], *, ahead: bool = False) -> T:
        """What ``compute()`` comes to, once per epoch and key, however many ask.

        ``ahead``: it is short, and what was asked of one epoch is computed for the next one as soon as that is
        there.
        """
        epoch = self._epoch()
        known = self._answers.get(key)
        if known is None or known.epoch != epoch or known.has_failed:
            known = self._compute(key, epoch, compute)
        known.askers += 1
        # What has computed it does so again: it knows what came of it.
        known.again = (known.again or compute) if ahead else None
        if known.future.done():
            return known.future.result()
        try:
            return await asyncio.shield(known.future)
        except BaseException:
            known.askers -= 1
            if not known.askers or known.future.done():
                known.future.cancel()  # nobody waits for it any more, or it failed
                if self._answers.get(key) is known:
                    del self._answers[key]
            raise

    def _compute(
        self, key: Any, epoch: tuple[int, int], compute: Callable[[], Coroutine[Any, Any, T]]
    ) -> _Answer[T]:
        if len(self._answers) >= ANSWERS_MAX:
            self._answers.clear()
        known = self._answers[key] = _Answer(epoch, self._begin(compute()))
        return known

    def compute_ahead(self) -> None:
        """There is another epoch: compute for it what was asked of the last ones. What nobody asks for after that
        is not computed ahead again, so that this costs a few times as much as was asked for, at most."""
        wanted = [(key, known) for key, known in self._answers.items() if known.again is not None]
        if not wanted:
            return
        try:
            epoch = self._epoch()
        except Unavailable:
            return  # whoever asks finds out
        room = AHEAD_MAX
        wanted.sort(key=lambda each: not each[1].askers)
        for key, known in wanted:
            again = known.again
            if known.epoch == epoch or not known.future.done() or again is None:
                continue
            known.again = None
            unasked = 0 if known.askers else known.unasked + 1
            if unasked <= AHEAD_UNASKED and room:
                room -= 1
                ahead = self._compute(key, epoch, again)
                ahead.again, ahead.unasked = again, unasked
