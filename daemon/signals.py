"""Signals that stop the daemon, or have it read its secrets again."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from .again import StartAgain
from .logs import say_at_once


@contextmanager
def stopped_while_it_loads() -> Iterator[None]:
    """Until ``handled_signals`` takes over, a SIGTERM ends the process at once, with a line and status 0 as every
    stop: nothing is there yet that must be shut down."""
    before = signal.signal(signal.SIGTERM, _stopped)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is _stopped:
            signal.signal(signal.SIGTERM, before)


def _stopped(number: int, _frame: FrameType | None) -> None:
    say_at_once("stopped before the first epoch, while libraries are loaded", __name__, logging.INFO)
    os._exit(0)


@contextmanager
def handled_signals(stop: Callable[[], None], reload: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a clean stop; a second one ends the process at once. SIGHUP asks to reload.

    A SIGHUP because our terminal is gone asks for a stop. One that comes after the block is ignored if the process
    is to replace itself (``StartAgain``): it is running all the time to whoever sends it, and reads everything
    again anyhow. Where a stop was asked for within the block, it does not replace itself.
    """
    asked = False
    had_terminal = _has_terminal()
    # These take locks, which the thread that the signal interrupts may hold: they get a thread of their own,
    # and the handler only what is safe in it (``SimpleQueue.put`` is reentrant).
    wishes: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def handle(number: int, _frame: object) -> None:
        nonlocal asked
        if number == signal.SIGHUP and _has_terminal() >= had_terminal:
            wishes.put(reload)
            return
        if asked:
            say_at_once(
                f"ended at once, by a second signal ({signal.Signals(number).name}): the next start goes on from "
                f"the newest checkpoint",
                __name__,
            )
            os._exit(128 + number)
        asked = True
        wishes.put(stop)

    def grant() -> None:
        while (wish := wishes.get()) is not None:
            wish()

    threading.Thread(target=grant, name="signals", daemon=True).start()
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    except StartAgain:
        if asked:
            return
        before[signal.SIGHUP] = signal.SIG_IGN
        raise
    finally:
        for number, handler in before.items():
            # The status of what ends now is not that of a start that was stopped.
            signal.signal(number, signal.SIG_DFL if handler is _stopped else handler)
        wishes.put(None)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
