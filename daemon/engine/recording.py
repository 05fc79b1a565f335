"""What the order log must hold of an epoch before anybody sees it, and the wait where a disk does not take it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

from ..errors import NotWritten
from ..ingest.prepared import Prepared
from ..long_waits import LONG_S, LongWaits
from ..os_errors import why
from ..records.stream import Offsets, Passed
from ..state.order_log import OrderLog

log = logging.getLogger(__name__)

RETRY_S = 0.5


class Recording:
    """``begin`` when an epoch is taken, ``finish`` before it can be seen: for the engine's thread. ``trouble`` and
    ``watch`` are for others, too."""

    def __init__(self, order: OrderLog, stop: threading.Event, still_waiting: Callable[[], None]) -> None:
        """``stop`` ends a wait for the disk; ``still_waiting`` is called now and then in one."""
        self._order = order
        self._stop = stop
        self._still_waiting = still_waiting
        self._writing = LongWaits("epochs wait meanwhile")
        self._trouble: str | None = None
        self._before: Offsets = {}
        self._passed: Sequence[Passed] = ()
        self._synced: Future[None] | None = None
        self._in_trouble: Callable[[], None] = lambda: None
        self._told: str | None = None  # in this epoch

    @property
    def trouble(self) -> str | None:
        """Why the order log cannot be written now, in words; None while it can."""
        return self._trouble or self._writing.now

    def watch(self) -> None:
        """To be called now and then by another thread than the engine's, which a write that does not return holds:
        tell of that, and that we still wait."""
        self._writing.tell()
        if self._writing.now is not None:
            self._still_waiting()

    def begin(self, before: Offsets, taken: Sequence[Prepared], in_trouble: Callable[[], None]) -> None:
        """Write where the epoch passes; what must be durable is synced meanwhile.

        ``before``: where the epoch begins; ``in_trouble``: called if the disk does not take it, once for each
        reason, and then it is waited for.

        Raises:
            NotWritten: it was stopped while it waited.
        """
        self._in_trouble, self._told = in_trouble, None
        fresh = [item for item in taken if not item.recorded]
        known = taken[: len(taken) - len(fresh)]
        self._before = known[-1].offsets if known else before
        self._passed = [Passed(item.offsets, item.together, item.late, item.decided) for item in fresh]
        if self._passed:
            self._write()

    def finish(self, in_trouble: Callable[[], None]) -> float:
        """Return once it is durable: seconds that this took here. ``in_trouble``: as for ``begin``.

        A disk that does not answer is waited for also when we are to stop, since whoever closes the log must wait
        for it, too.

        Raises:
            NotWritten: it was stopped while it waited for a disk that refuses.
        """
        self._in_trouble, self._told = in_trouble, None
        if self._synced is None:
            return 0.0
        if self._is_durable(self._synced):
            self._synced = None
            self._well()
            return 0.0
        started = time.perf_counter()
        while self._synced is not None:
            if not wait([self._synced], LONG_S if self._trouble is None else RETRY_S).done:
                self._tell(self._trouble or self._because(f"its disk has not answered for {LONG_S:g} s"))
                continue
            try:
                self._synced.result()
                self._synced = None
            except OSError as error:
                self._order.undo()
                self._wait(error)
                self._write()
        self._well()
        return time.perf_counter() - started

    def _write(self) -> None:
        while True:
            try:
                with self._writing.during(f"writing the order log in {str(self._order.folder)!r}"):
                    self._synced = self._order.record(self._before, self._passed)
                break
            except OSError as error:
                self._wait(error)
        if self._is_durable(self._synced):
            self._well()

    @staticmethod
    def _is_durable(synced: Future[None]) -> bool:
        return synced.done() and synced.exception() is None

    def _wait(self, error: OSError) -> None:
        message = self._because(why(error))
        self._tell(message)
        if self._stop.wait(RETRY_S):
            raise NotWritten(f"{message}; stopped before it could be")

    def _because(self, reason: str) -> str:
        return f"the order log in {str(self._order.folder)!r} cannot be written: {reason}"

    def _tell(self, trouble: str) -> None:
        """Once in each trouble, and once in each epoch that it lasts for."""
        if self._trouble != trouble:
            self._trouble = trouble
            log.error("%s; epochs wait, since nothing is shown that a restart could not show again", trouble)
        if self._told != trouble:
            self._told = trouble
            self._in_trouble()
        self._still_waiting()

    def _well(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            log.info("the order log can be written again")
