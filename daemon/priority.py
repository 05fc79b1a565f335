"""Threads that give way to others on the same cores: those that ingest and compute, to those that answer, which in
turn run for a short while at a time.

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
"""So long does a thread that answers run before others have their turn; usual slices are milliseconds."""
_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}  # sched_setattr, which C libraries before glibc 2.41 do not have
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_KEEP_POLICY = 0x08


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


def in_short_slices() -> None:
    """Have the caller's thread run in turns that are short, and sooner each time that it has something to do.

    Linux lets whoever runs go on for the shortest slice of all that want the core. Those are milliseconds, for
    which a thread that answers in a tenth of one would wait behind one that computes, however nice that is, unless
    its own are shorter. Its share of the processor is the same, and so is its policy, which an operator may have
    chosen. Nothing happens where there are no such slices, as under those for real time.
    """
    number = _SET_ATTRIBUTES.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _KEEP_POLICY, nice, 0, SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, ctypes.c_char_p(attributes), 0)
