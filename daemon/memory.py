"""The budget of memory: when it is used up ingest waits, and goes on by itself when memory comes free.

What was read already is still applied, and questions are answered meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..gpma.memory import Limit, Memory
from ..ops.metrics import Metrics

log = logging.getLogger(__name__)

READ_INTERVAL_S = 0.1
"""The system is asked so often at most."""

FREE_SHARE = 32
"""Ingest goes on when one of so many bytes of the budget is free again."""

BUDGET, GROWTH = "budget", "growth"
"""What is waited for: that less is used than the budget; that an array which must grow finds its memory."""

GRAPH, INDEX = "graph", "index"
"""Whose arrays these are: of the graph and the programs, or of the vertex index."""


def budget_bytes(budget: str, total: int) -> int | None:
    """Of the setting ``memory.budget``: bytes, of so many; None: no budget."""
    if budget == "off":
        return None
    return total * int(budget[:-1]) // 100 if budget.endswith("%") else int(budget)


class WithinBudget(Memory):
    """The memory of this process, of which ``memory.budget`` is one more limit: for what asks before it takes."""

    def __init__(self, budget: str, memory: Memory | None = None) -> None:
        """``budget``: as ``memory.budget`` has it. ``memory``: the system's."""
        super().__init__()
        self._setting = budget
        self._memory = memory or Memory()

    def limits(self) -> list[Limit]:
        limits = self._memory.limits()
        smallest = min(limits, key=lambda limit: limit.total)
        budget = budget_bytes(self._setting, smallest.total)
        return (
            limits if budget is None else [*limits, Limit("memory.budget", budget, _used(self._memory, smallest))]
        )

    def resident(self) -> int:
        return self._memory.resident()


def _used(memory: Memory, smallest: Limit) -> int:
    """Bytes that count against a budget: of a group that is limited all in it, of a machine what is ours."""
    return memory.resident() if smallest.is_machine else smallest.used


class MemoryGuard:
    """``has_room`` is for the ingest thread, all else for any."""

    def __init__(
        self,
        budget: str,
        metrics: Metrics,
        memory: Memory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``budget``: as ``memory.budget`` has it."""
        self._setting = budget
        self._metrics = metrics
        self._memory = memory or Memory()
        self._clock = clock
        self._lock = threading.Lock()
        self._waits: dict[str, str] = {}  # what is waited for, by who waits
        self._budget: int | None = None
        self._used = 0
        self._limit = 0
        self._promised = 0
        # Known before anything is read, too.
        self._look()

    @property
    def waits_for(self) -> str | None:
        """``BUDGET`` or ``GROWTH`` while updates wait for memory, else None."""
        return min(self._waits.values(), default=None)

    def has_room(self) -> bool:
        """Whether more may be read."""
        if self._clock() - self._read_at >= READ_INTERVAL_S:
            self._look()
        return BUDGET not in self._waits

    def refused(self, reason: str, whose: str = GRAPH) -> None:
        """``GRAPH`` or ``INDEX`` cannot grow for now."""
        self._wait(whose, GROWTH, reason)

    def granted(self, whose: str = GRAPH) -> None:
        """It took what came."""
        self._resume(whose)

    @contextmanager
    def promised(self, n_bytes: int) -> Iterator[None]:
        """So many bytes besides, for the time of the block, of what is left of the budget and of the machine.

        What others were promised counts as if it were used on top of what is used, for they may be about to.

        Raises:
            MemoryError: there are not so many; the message says what is in the way.
        """
        with self._lock:
            self._read()
            wanted = self._promised + n_bytes
            if self._budget is not None and self._used + wanted > self._budget:
                raise MemoryError(
                    f"{n_bytes} bytes more are needed; {self._used} are used, {self._promised} are promised, and "
                    f"memory.budget is {self._budget}"
                )
            self._memory.require(wanted)
            self._promised = wanted
        try:
            yield
        finally:
            with self._lock:
                self._promised -= n_bytes

    def stats(self) -> dict[str, Any]:
        """For the request ``stats``; bytes."""
        return {
            "limit": self._limit,
            "budget": self._budget,
            "used": self._used,
            "waits_for": self.waits_for,
        }

    def _look(self) -> None:
        """How much is used now, and whether that lets reading go on."""
        self._read()
        if self._budget is None:
            self._resume(BUDGET)
        elif self._used > self._budget:
            reason = f"{self._used} bytes of memory are used, and memory.budget is {self._budget}"
            self._wait(BUDGET, BUDGET, reason)
        elif self._used <= self._budget - self._budget // FREE_SHARE:
            self._resume(BUDGET)

    def _read(self) -> None:
        self._read_at = self._clock()
        smallest = self._memory.smallest()
        self._limit = smallest.total
        self._budget = budget_bytes(self._setting, smallest.total)
        self._used = _used(self._memory, smallest)
        self._metrics.memory_budget(budget=self._budget or 0, used=self._used)

    def _wait(self, who: str, what: str, reason: str) -> None:
        with self._lock:
            if who not in self._waits:
                if not self._waits:
                    log.warning("%s: reading waits until memory comes free", reason)
                self._waits = self._waits | {who: what}
                self._metrics.waits_for_memory(True)

    def _resume(self, who: str) -> None:
        with self._lock:
            if who in self._waits:
                self._waits = {other: what for other, what in self._waits.items() if other != who}
                if not self._waits:
                    log.info("there is memory again: reading goes on")
                    self._metrics.waits_for_memory(False)


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Says of an error about memory what it keeps from being done."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"{what}: {error}" if str(error) else what) from error
