"""Reserved address space: arrays that grow where they lie.

As much is reserved as the machine has memory, so that no array can outgrow it. Pages that were never written
cost nothing. Where address space is not free (a limit on it, or strict accounting of memory: a reservation would
take away what the rest of the process, or of the machine, needs), there is none to be had.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# mmap has the name from Python 3.13 on; the value is that of Linux on all common processors.
_MAP_NORESERVE = 0x4000
# How the system accounts for memory (proc(5)); under strict accounting MAP_NORESERVE means nothing.
_OVERCOMMIT, _STRICT = Path("/proc/sys/vm/overcommit_memory"), "2"


LARGE_PAGE = 2 << 20

# Reservations follow each other in address space. Processors that guess the way of their first-level cache from
# the bits of an address up to bit 27 (AMD's) take entries for one another that lie multiples of 256 MiB apart:
# of columns that begin so, a loop has but one in the cache at a time. So each begins a few large pages further
# within 256 MiB than the one before.
_ALIKE, _APART = 256 << 20, 5 * LARGE_PAGE

# Fault pages in as if they were written, contents unchanged; Linux 5.14 and later. mmap.madvise would not do: it
# keeps the interpreter lock.
POPULATE_WRITE, DONTNEED = 23, 4


def advise(begin: int, end: int, advice: int) -> bool:
    """Tell the system about the pages from one address to another; False where it refuses."""
    return bool(_libc.madvise(begin, end - begin, advice) == 0)


_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Reserved(mmap.mmap):
    """Reserved memory, told from other maps by its type; it ends with the last array in it."""


def reservation_of(column: npt.NDArray[Any]) -> Reserved | None:
    """The reserved memory that an array lies in; None: it lies elsewhere."""
    owner: Any = column
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    return owner if isinstance(owner, Reserved) else None


def memory_bytes() -> int:
    """The memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def is_free() -> bool:
    """Whether address space that is reserved, and not used, counts nowhere."""
    if sys.platform != "linux" or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return False
    try:
        return _OVERCOMMIT.read_text().strip() != _STRICT
    except OSError:
        return True


def reserve(n_bytes: int) -> Reserved | None:
    """Zeroed memory of at least so many bytes that takes no room before it is written; None where that is refused,
    or harms others.

    Entries at the same place of two reservations do not get in each other's way in a cache."""
    if not is_free():
        return None
    # The system places whole large pages where large pages fit.
    n_bytes = -(-n_bytes // _ALIKE) * _ALIKE + _APART
    try:
        return Reserved(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except OSError:
        return None
