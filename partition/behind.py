"""What the host's rows have yet to take, where a device has taken it already: the host follows.

A thread takes all that waits as one batch, as often as something waits: a few updates when more have gathered, or
soon. Whoever needs the host's rows waits for it, or does it. So rows that are read are never behind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Condition, Event, Lock, Thread
from typing import NamedTuple

import numpy as np

from ..gpma.edges import EdgeBatch
from ..gpma.threads import start_thread

log = logging.getLogger(__name__)

SECONDS_MAX = 0.5
"""Nothing is put behind what waits for so long: whoever has to wait for all of it does so for about a second at
most, where updates come faster than the host can take them."""

GATHER_S, GATHERED = 0.25, 1 << 18
"""Fewer updates than that are left to gather for so long. To take ten at once costs as much as to take a
thousand, and each of ten thousand three times as much as each of a hundred thousand. Nor must each keep the
thread that puts them waiting for the interpreter."""

RETRY_S = 0.5
"""What found no memory is tried again so often, if nobody asks for it before."""

Take = Callable[[EdgeBatch, int], None]
"""(updates, how many vertices there are then): has the host take them, or none of them.

Raises:
    MemoryError: there is not enough.
"""


class Lag(NamedTuple):
    """How far the host is behind: updates of edges that wait, how long the first of them has, and their bytes."""

    updates: int = 0
    seconds: float = 0.0
    n_bytes: int = 0


class _Waiting(NamedTuple):
    batch: EdgeBatch
    n_vertices: int
    since: float


class Behind:
    """Batches that wait for the host, in their order. One thread puts them; any thread may ``catch_up``."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._changed = Condition()
        self._many = Event()
        self.waiting: list[_Waiting] = []
        """Those that are being taken as well, until they are; to be read."""
        self._updates = 0
        self._turn = Lock()
        self._thread: Thread | None = None
        self._closed = False
        self._failure: Exception | None = None

    @property
    def lag(self) -> Lag:
        with self._changed:
            if not self.waiting:
                return Lag()
            n_bytes = sum(_bytes_of(each.batch) for each in self.waiting)
            return Lag(self._updates, time.monotonic() - self.waiting[0].since, n_bytes)

    def begin(self) -> bool:
        """Have a thread that takes what is put; False: there is none."""
        if self._thread is None and not self._closed:
            thread = Thread(target=self._run, name="host-rows", daemon=True)
            try:
                start_thread(thread)
            except RuntimeError:  # the system grants none now
                return False
            self._thread = thread
        return self._thread is not None

    def put(self, batch: EdgeBatch, n_vertices: int) -> None:
        """A batch that is nobody else's, and which the host cannot refuse but for memory."""
        with self._changed:
            self.waiting.append(_Waiting(batch, n_vertices, time.monotonic()))
            self._updates += len(batch)
            if len(self.waiting) == 1:
                self._changed.notify_all()
            if self._updates >= GATHERED:
                self._many.set()

    def catch_up(self) -> None:
        """Have the host take all that waits.

        Raises:
            MemoryError: there is not enough; it goes on waiting.
        """
        if not self.waiting:
            return
        with self._turn:
            self._take_all()

    def close(self) -> None:
        """End the thread; what waits is taken by nobody any more, unless who needs it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._many.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # -- inside -----------------------------------------------------------------------------------------

    def _take_all(self) -> None:
        """In a turn: take until nothing waits."""
        if self._failure is not None:  # a mistake, after which nobody knows what the host holds
            raise RuntimeError("the host's rows could not take what the device has") from self._failure
        while self.waiting:
            taken = list(self.waiting)
            try:
                self._take(_joined([each.batch for each in taken]), taken[-1].n_vertices)
            except MemoryError:
                raise
            except Exception as error:
                self._failure = error
                raise
            with self._changed:
                del self.waiting[: len(taken)]
                self._updates -= sum(len(each.batch) for each in taken)

    def _run(self) -> None:
        told = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self.waiting)
                if self._closed:
                    return
                if self._updates < GATHERED:
                    self._many.clear()
            self._many.wait(GATHER_S)
            try:
                self.catch_up()
                told = False
            except MemoryError as error:  # the graph takes nothing more before this: see ``WholeRows.apply``
                if not told:
                    log.warning("the host's rows are behind the device's, for want of memory: %s", error)
                    told = True
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, RETRY_S)
            except Exception:
                log.exception("the host's rows could not take what the device has")
                return  # whoever needs them is told


def _joined(batches: list[EdgeBatch]) -> EdgeBatch:
    """One batch that does what these do one after another."""
    if len(batches) == 1:
        return batches[0]
    weights = [batch.weights for batch in batches if batch.weights is not None]
    return EdgeBatch(
        np.concatenate([batch.keys for batch in batches]),
        np.concatenate([batch.ops for batch in batches]),
        np.concatenate(weights) if weights else None,
    )


def _bytes_of(batch: EdgeBatch) -> int:
    return batch.keys.nbytes + batch.ops.nbytes + (0 if batch.weights is None else batch.weights.nbytes)
