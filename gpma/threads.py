"""Threads that are begun while all else goes on, and two threads for one piece of work: the caller's, and another
that waits for its half."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

ROOM_BYTES = 1 << 20
"""Of address space: a thread begins with less, besides its stack."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, in a process that may have no address space left.

    By itself Python waits in ``start`` until the thread says that it runs. One that gets a stack, that of a thread
    before, and no memory for its first frame, never does.

    Raises:
        RuntimeError: the system grants none now.
    """
    try:
        mmap.mmap(-1, ROOM_BYTES, flags=mmap.MAP_PRIVATE).close()
    except OSError as error:
        raise RuntimeError("can't start new thread") from error
    thread.start()


def in_turn(here: Callable[[], T], there: Callable[[], U]) -> tuple[T, U]:
    """What ``Pair.run`` does, on the caller's thread alone: for work that is not worth handing over."""
    return here(), there()


class Pair:
    """Runs two functions at once, where there is a second thread; else one after the other.

    They overlap while they are in kernels, which release the interpreter lock. Handing over costs 10 to 50
    microseconds. The second thread starts with its first work, and ends with ``close`` or with this object.
    Where the system grants no thread, or the interpreter is about to end, the caller's does all: work that was
    begun must not stop half done for want of one.
    """

    def __init__(self, threads: int, name: str = "storage") -> None:
        """``threads``: 1 or 2; ``name``: of the second one."""
        self._other = ThreadPoolExecutor(1, thread_name_prefix=name) if threads > 1 else None

    def run(self, here: Callable[[], T], there: Callable[[], U]) -> tuple[T, U]:
        """The results of both, when both have ended; raises what either raised.

        Never waits for a second thread that has not begun: the caller's does that work, too.
        """
        second = self._begin(there)
        if second is None:
            return in_turn(here, there)
        try:
            first = here()
            return first, there() if second.cancel() else second.result()
        except BaseException:
            if not second.cancelled():
                wait([second])
            raise

    def close(self) -> None:
        """Let the second thread end; later work is done by the caller's."""
        if self._other is not None:
            self._other.shutdown()
            self._other = None

    def _begin(self, work: Callable[[], U]) -> Future[U] | None:
        """The work in the second thread; None where there is none."""
        if self._other is None:
            return None
        try:
            return self._other.submit(work)
        except RuntimeError:
            # The work may be queued all the same: nothing must ever take it up.
            self._other.shutdown(wait=False, cancel_futures=True)
            self._other = None
            return None
