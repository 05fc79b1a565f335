"""What other threads have the engine's thread do between two epochs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ..errors import Unavailable

T = TypeVar("T")


class BetweenEpochs:
    """``do`` is for any thread but the engine's, which calls ``turn`` between its epochs."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake``: lets the engine's thread not wait for updates."""
        self._wake = wake
        self._waiting: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._entering = threading.Lock()
        self._closed = False

    def do(self, work: Callable[[], T]) -> T:
        """What ``work`` gives, or raises, once the engine's thread has done it.

        Raises:
            Unavailable: the engine has ended.
        """
        done: Future[T] = Future()
        with self._entering:
            if self._closed:
                raise Unavailable("the daemon is stopping")
            self._waiting.put((work, done))
        self._wake()
        return done.result()

    def turn(self) -> None:
        """Do what waits."""
        while not self._waiting.empty():
            work, done = self._waiting.get()
            try:
                done.set_result(work())
            except Exception as error:  # it is whoever asked who must know
                done.set_exception(error)

    def close(self) -> None:
        """There are no more epochs: whoever waits is told so."""
        with self._entering:
            self._closed = True
        while True:
            try:
                _, done = self._waiting.get_nowait()
            except Empty:
                return
            done.set_exception(Unavailable("the daemon is stopping"))
