"""Threads that give way to others on the same cores: those that ingest and compute, to those that answer.

Where there are more threads with work than cores, the system has each wait for its turn, which is most of what a
question takes then. Its scheduler divides cores by niceness, which Linux keeps for each thread; threads and
processes that one begins inherit it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

NICEST = 19
SLICE_NS = 100_000
"""The shortest turn that Linux grants."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The system call by processor: the C library has no name for it before glibc 2.41."""


def give_way(nice: int, threads: Iterable[threading.Thread] | None = None) -> None:
    """Be so much nicer than the process (its first thread) is, for good, and take turns of the usual length.

    ``threads``: these instead of the caller's. Nothing happens where the system has no niceness of threads, or for
    a thread that has ended.
    """
    if threads is None:
        _take_turns(0)
    if sys.platform != "linux" or nice == 0:
        return
    ids = [threading.get_native_id()] if threads is None else [thread.native_id for thread in threads]
    with suppress(OSError):
        level = min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + nice, NICEST)
        for id in ids:
            if id is not None:
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, id, level)


def take_short_turns() -> None:
    """Have the system let the caller's thread, and those that it begins, run soon and for a tenth of a millisecond
    at a time, instead of late and for long; what it gets in all is the same.

    Of those who wait for a core, the one goes first that wants least, at once where another runs that wants more
    (Linux 6.12; earlier ones, and other systems, make no difference).
    """
    _take_turns(SLICE_NS)


def _take_turns(slice_ns: int) -> None:
    """``slice_ns``: 0 for what is usual."""
    call = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or call is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    thread = threading.get_native_id()
    nice = os.getpriority(os.PRIO_PROCESS, thread)
    # struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
    wanted = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, slice_ns, 0, 0)
    ctypes.CDLL(None).syscall(call, thread, wanted, 0)  # where that is not allowed, turns are as they were
