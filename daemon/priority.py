"""Threads that give way to others on the same cores: those that ingest and compute, to those that answer.

Where there are more threads with work than cores, the system has each wait for its turn, which is most of what a
question takes then. Its scheduler divides cores by niceness, which Linux keeps for each thread; threads and
processes that one begins inherit it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

NICEST = 19


def give_way(nice: int, threads: Iterable[threading.Thread] | None = None) -> None:
    """Be so much nicer than the process (its first thread) is, for good.

    ``threads``: these instead of the caller's. Nothing happens where the system has no niceness of threads, or for
    a thread that has ended.
    """
    if sys.platform != "linux" or nice == 0:
        return
    ids = [threading.get_native_id()] if threads is None else [thread.native_id for thread in threads]
    with suppress(OSError):
        level = min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + nice, NICEST)
        for id in ids:
            if id is not None:
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, id, level)
