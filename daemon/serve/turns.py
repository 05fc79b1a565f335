"""Dividing what is short among those who ask for it: room that they take in turn, places with a share for each."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator


class Turns:
    """So much room at once; where it is short, those who ask take turns, however much each of them asks for.

    What one of them asks for is given in order. Whoever stops waiting (is cancelled) has asked for nothing.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._free = room
        self._queues: dict[object, deque[tuple[int, asyncio.Future[None]]]] = {}  # in the order of their turns

    @property
    def used(self) -> int:
        """How much is taken."""
        return self._room - self._free

    @property
    def is_short(self) -> bool:
        """Someone waits."""
        return bool(self._queues)

    async def take(self, asker: object, amount: int) -> int:
        """Wait for room; how much was taken: ``amount``, or all there is if that is less."""
        amount = min(amount, self._room)
        if self._queues or amount > self._free:
            await self._wait(asker, amount)
        else:
            self._free -= amount
        return amount

    def give_back(self, amount: int) -> None:
        """Of what was taken."""
        self._free += amount
        while self._queues:
            asker, queue = next(iter(self._queues.items()))
            wanted, given = queue[0]
            if given.cancelled():
                wanted = 0
            elif wanted > self._free:
                return
            else:
                given.set_result(None)
            self._free -= wanted
            queue.popleft()
            del self._queues[asker]
            if queue:
                self._queues[asker] = queue  # behind the others

    @contextlib.asynccontextmanager
    async def turn(self, asker: object, amount: int = 1) -> AsyncIterator[None]:
        """Take room, and give it back."""
        taken = await self.take(asker, amount)
        try:
            yield
        finally:
            self.give_back(taken)

    async def _wait(self, asker: object, amount: int) -> None:
        given = asyncio.get_running_loop().create_future()
        self._queues.setdefault(asker, deque()).append((amount, given))
        try:
            await given
        except asyncio.CancelledError:
            # It may have been given just now, to nobody; else those behind may want less than this one.
            self.give_back(0 if given.cancelled() else amount)
            raise


class Shares:
    """A number of places: one half is divided among all who may ask, the other is for who comes first.

    Each has at least one of its own, also where there are more of them than places.
    """

    def __init__(self, places: int, askers_max: int) -> None:
        self.own = max(places // (2 * askers_max), 1)
        self._common = max(places - self.own * askers_max, 0)
        self._taken: Counter[object] = Counter()

    def take(self, asker: object) -> bool:
        """A place; False when its own are taken, and the common ones as well."""
        if self._taken[asker] >= self.own:
            if not self._common:
                return False
            self._common -= 1
        self._taken[asker] += 1
        return True

    def give_back(self, asker: object) -> None:
        """One that was taken."""
        if self._taken[asker] > self.own:
            self._common += 1
        self._taken[asker] -= 1
        if not self._taken[asker]:
            del self._taken[asker]
