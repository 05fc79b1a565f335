"""Requests that wait for an epoch which covers certain offsets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import LimitExceeded, RequestError, TimedOut, Unavailable
from ..records.stream import Partition, offsets_from_wire
from .asker import Asker
from .engine_calls import EngineCalls
from .results import Snapshot
from .turns import Shares, Turns

if TYPE_CHECKING:
    from ..config.sections.limits import LimitsConfig

NAMED_MAX = 10
"""So many partitions or files does an error name."""
ENGINE_PATIENCE_S = 5.0
"""So long may the engine take to say whether waiting is of any use, also where nobody wants to wait."""
STRANGE_MAX = 4096
"""So many that are in no epoch does the engine look up for one request."""


@dataclass(slots=True)
class _Waiter:
    missing: dict[Partition, int]
    future: asyncio.Future[None]
    task: asyncio.Task[Any] | None


class Waiting:
    """For the event loop."""

    def __init__(
        self, limits: LimitsConfig, snapshot: Callable[[], Snapshot], engine: EngineCalls, receiving: Turns
    ) -> None:
        """``snapshot``: the newest epoch's meta data. ``receiving``: the memory of long requests."""
        self._limits = limits
        self._snapshot = snapshot
        self._engine = engine
        self._receiving = receiving
        self._places = Shares(limits.waiting_max, limits.connections_max)
        self._waiters: list[_Waiter] = []
        self._offsets: tuple[Snapshot, dict[Partition, int]] | None = None

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def tasks(self) -> set[asyncio.Task[Any] | None]:
        """Theirs: who waits has looked nothing up yet."""
        return {waiter.task for waiter in self._waiters}

    def _reached(self) -> dict[Partition, int]:
        snapshot = self._snapshot()
        known = self._offsets
        if known is None or known[0] is not snapshot:
            known = self._offsets = (snapshot, offsets_from_wire(snapshot.offsets))
        return known[1]

    def covers(self, wanted: Mapping[Partition, int]) -> bool:
        """True when the newest epoch reflects everything before these offsets."""
        reached = self._reached()
        return all(reached.get(partition, 0) >= offset for partition, offset in wanted.items())

    async def covered(self, asker: Asker, wanted: Mapping[Partition, int], deadline: float) -> None:
        """Wait until an epoch covers these offsets. Whoever waits holds no dense ids: they may change hands.

        A long request does so only as long as nobody else needs its memory.

        Raises:
            RequestError: they name what is not read.
            TimedOut: none did; the message says what is behind.
            Unavailable: too many requests wait, and too many of this connection; or others need the memory.
        """
        if self.covers(wanted):
            return
        wanted = await self._expected(asker, wanted, deadline)
        if self.covers(wanted):
            return
        if not self._places.take(asker.connection):
            raise Unavailable(
                f"too many requests wait for an epoch, {self._places.own} or more of this connection",
                {"waiting_max": self._limits.waiting_max},
            )
        waiter = _Waiter(dict(wanted), asyncio.get_running_loop().create_future(), asyncio.current_task())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                if asker.receiving_bytes:
                    await unless_short(waiter.future, self._receiving, self._limits.stall_seconds_max)
                await waiter.future
        except TimeoutError:
            raise self._behind(wanted) from None
        finally:
            self._places.give_back(asker.connection)
            self._waiters.remove(waiter)

    async def _expected(
        self, asker: Asker, wanted: Mapping[Partition, int], deadline: float
    ) -> dict[Partition, int]:
        """What is not covered yet of ``wanted``; the engine knows of what no epoch names, retired files for one.

        Raises:
            RequestError: some of it is not read at all.
            LimitExceeded: too much of it is in no epoch.
        """
        reached = self._reached()
        missing = {partition: offset for partition, offset in wanted.items() if offset > reached.get(partition, 0)}
        strange = {partition: offset for partition, offset in missing.items() if partition not in reached}
        if len(strange) > STRANGE_MAX:
            raise LimitExceeded(
                f"min_offsets names {len(strange)} places that no epoch does; at most {STRANGE_MAX}",
                {"parameter": "min_offsets"},
            )
        if strange:
            patience = max(deadline, time.monotonic() + ENGINE_PATIENCE_S)
            question = [[*partition, offset] for partition, offset in strange.items()]
            answer = await self._engine.call(asker, "standing", {"wanted": question}, len(question), patience)
            standing = dict(zip(strange, answer["standing"], strict=True))
            unknown = [str(partition) for partition in strange if standing[partition] == "unknown"]
            if unknown:
                raise RequestError(
                    f"min_offsets names what is not read: {', '.join(unknown[:NAMED_MAX])}",
                    {"unknown": unknown[:NAMED_MAX], "parameter": "min_offsets"},
                )
            missing = {p: offset for p, offset in missing.items() if standing.get(p) != "covered"}
        return missing

    def _behind(self, wanted: Mapping[Partition, int]) -> TimedOut:
        """That time ran out, and what was not reached."""
        reached = self._reached()
        behind = {
            str(partition): [reached.get(partition, 0), offset]
            for partition, offset in wanted.items()
            if reached.get(partition, 0) < offset
        }
        named = list(behind.items())[:NAMED_MAX]
        shown = ", ".join(f"{name} is at {at} of {offset}" for name, (at, offset) in named)
        more = f", and {len(behind) - len(named)} more" if len(behind) > len(named) else ""
        return TimedOut(f"no epoch covered these offsets in time: {shown}{more}", {"behind": dict(named)})

    def published(self) -> None:
        """Wake those whose epoch has come. Each forgets what is reached, so a look costs one comparison."""
        if not self._waiters:
            return
        try:
            reached = self._reached()
        except Unavailable:
            return  # the next notice, or the next tick, comes soon
        for waiter in self._waiters:
            missing = waiter.missing
            while missing:
                partition = next(iter(missing))
                if reached.get(partition, 0) < missing[partition]:
                    break
                del missing[partition]
            if not missing and not waiter.future.done():
                waiter.future.set_result(None)


async def unless_short(future: asyncio.Future[Any], receiving: Turns, stall_s: float) -> None:
    """Wait as a long request does, whose memory is of ``receiving``: past ``stall_s``, while nobody needs that.

    Raises:
        Unavailable: others need it.
    """
    while not (await asyncio.wait((future,), timeout=stall_s))[0]:
        if receiving.is_short:
            raise Unavailable("this is not done yet, and others need the memory of this request")
