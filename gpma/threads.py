"""Two threads for one piece of work: the caller's, and another that waits for its half."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Pair:
    """Runs two functions at once, where there is a second thread; else one after the other.

    They overlap while they are in kernels, which release the interpreter lock. Handing over costs 10 to 50
    microseconds. The second thread begins and ends with this object.
    """

    def __init__(self, threads: int) -> None:
        """
        Raises:
            RuntimeError: the system has no thread to give.
        """
        self._other = ThreadPoolExecutor(1, thread_name_prefix="storage") if threads > 1 else None
        if self._other is not None:
            # An executor starts its thread with the first work. That must not fail in the middle of a batch.
            self._other.submit(int).result()

    def run(self, here: Callable[[], T], there: Callable[[], U]) -> tuple[T, U]:
        """The results of both, when both have ended; raises what either raised."""
        if self._other is None:
            return here(), there()
        second = self._other.submit(there)
        try:
            first = here()
        finally:
            second.exception()  # waits
        return first, second.result()
