"""Threads that are begun while all else goes on, several that take up work as it comes, and two for one piece of
work: the caller's, and another that waits for its half."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")

ROOM_BYTES = 1 << 20
"""Of address space: a thread begins with less, besides its stack."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, in a process that may have no address space left.

    Raises:
        RuntimeError: the system grants none now.
    """
    require_room()
    thread.start()


def require_room() -> None:
    """Ask before a thread may begin whether there is address space for it.

    By itself Python waits in ``start`` until the thread says that it runs. One that gets a stack, that of a thread
    before, and no memory for its first frame, never does.

    Raises:
        RuntimeError: as Python's, where the system grants no thread: there is none now.
    """
    try:
        mmap.mmap(-1, ROOM_BYTES, flags=mmap.MAP_PRIVATE).close()
    except OSError as error:
        raise RuntimeError("can't start new thread") from error


class Workers:
    """So many threads, which begin as work comes and end with ``shutdown``.

    Where the system grants no thread, the caller's does the work: what must be done is not left for want of one.
    """

    def __init__(self, threads: int, name: str) -> None:
        """``name``: what the names of the threads begin with."""
        self._threads = threads
        self._name = name
        self._pool: ThreadPoolExecutor | None = self._new_pool()

    def submit(self, work: Callable[..., T], *given: Any) -> Future[T]:
        """What ``work(*given)`` returns or raises, once a thread has done it; nobody may cancel it."""
        done: Future[T] = Future()
        waiting = [partial(work, *given)]

        def take_up() -> None:
            try:
                task = waiting.pop()
            except IndexError:
                return  # somebody did
            try:
                result = task()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        if not self._hand_over(take_up):
            take_up()
        return done

    def shutdown(self) -> None:
        """Let the threads end when all work is done; later work is done by the caller's."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _hand_over(self, work: Callable[[], None]) -> bool:
        """Whether a thread will take up the work; one may also where none is certain to."""
        if self._pool is None:
            return False
        try:
            require_room()
        except RuntimeError:
            return False
        try:
            self._pool.submit(work)
        except RuntimeError:
            # It was queued all the same: such a queue would grow while the system grants no thread.
            self._pool.shutdown(wait=False)
            self._pool = self._new_pool()
            return False
        return True

    def _new_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)


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
        self._begun = False

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
            if not self._begun:
                require_room()
                self._begun = True
            return self._other.submit(work)
        except RuntimeError:
            # The work may be queued all the same: nothing must ever take it up.
            self._other.shutdown(wait=False, cancel_futures=True)
            self._other = None
            return None
