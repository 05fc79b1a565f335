"""The memory of a packed array: columns that grow and shrink in place.

The columns lie in reserved address space (``address_space.py``): growth takes further pages, and shrinking gives
pages back. A page costs most when it is touched first (a large one up to a millisecond, as long as a batch of
thousands of updates), so a thread of its own asks for those of a grown array ahead of their use. Where no address
space is to be had, columns are ordinary arrays of just the size that is needed, and another size means others and
a copy.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..address_space import DONTNEED, LARGE_PAGE, POPULATE_WRITE, Reserved, advise, memory_bytes, reserve
from ..layout import TOP_LEAVES, TOP_SHIFT
from ..threads import require_room
from .arrays import Slots

# Columns of fewer bytes take ordinary pages: a large one costs 2 MiB at its first byte.
_HUGE_MIN = 4 << 20
# Columns begin at multiples of this.
_ALIGNMENT = LARGE_PAGE
# Pages come for so many leaves at a time: 2 MiB of keys.
_PIECE_LEAVES = 1 << 13
# Bytes of the entries of one leaf and of one slot: count, head, and its share of a top; key and weight.
_LEAF_BYTES = 4 + 8 + 8 / TOP_LEAVES
_KEY_BYTES, _WEIGHT_BYTES = 8, 4


@dataclass(frozen=True)
class SlotMemory:
    """Room for ``n_leaves_max`` leaves; counts of leaves that were never used are 0.

    ``reservation`` is the address space that the columns lie in, or None.
    """

    keys: npt.NDArray[np.uint64]
    weights: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int32]
    heads: npt.NDArray[np.uint64]
    tops: npt.NDArray[np.uint64]
    leaf_shift: int
    reservation: Reserved | None

    @property
    def n_leaves_max(self) -> int:
        return self.counts.size

    @classmethod
    def holding(cls, n_leaves: int, leaf_shift: int, *, weighted: bool) -> SlotMemory:
        """New columns for an array that has this many leaves now.

        Raises:
            MemoryError: there is not enough.
        """
        leaf_bytes = _leaf_bytes(leaf_shift, weighted=weighted)
        reserved = reserve(memory_bytes() + 5 * _ALIGNMENT)
        n_leaves_max = int(memory_bytes() / leaf_bytes) >> TOP_SHIFT << TOP_SHIFT
        if reserved is None or n_leaves > n_leaves_max:
            return cls(
                np.empty(n_leaves << leaf_shift, np.uint64),
                np.empty(n_leaves << leaf_shift if weighted else 0, np.float32),
                np.zeros(n_leaves, np.int32),
                np.empty(n_leaves, np.uint64),
                np.empty(_n_tops(n_leaves), np.uint64),
                leaf_shift,
                None,
            )
        columns: list[npt.NDArray[Any]] = []
        offset = 0
        for dtype, size in (
            (np.uint64, n_leaves_max << leaf_shift),
            (np.float32, n_leaves_max << leaf_shift if weighted else 0),
            (np.int32, n_leaves_max),
            (np.uint64, n_leaves_max),
            (np.uint64, _n_tops(n_leaves_max)),
        ):
            column = np.frombuffer(reserved, dtype, size, offset) if size else np.empty(0, dtype)
            columns.append(column)
            offset = -(-(offset + column.nbytes) // _ALIGNMENT) * _ALIGNMENT
        keys, weights, counts, heads, tops = columns
        return cls(keys, weights, counts, heads, tops, leaf_shift, reserved)

    @staticmethod
    def bytes_of(n_leaves: int, leaf_shift: int, *, weighted: bool) -> int:
        """What so many leaves take."""
        return int(n_leaves * _leaf_bytes(leaf_shift, weighted=weighted))

    def slots(self, n_leaves: int, stretch: tuple[int, int] | None = None) -> Slots:
        """The first so many leaves; ``stretch``: those of them that a migration keeps empty."""
        n_slots = n_leaves << self.leaf_shift
        begin, end = stretch if stretch is not None else (n_leaves, n_leaves)
        heads, tops = self.heads[:n_leaves], self.tops[: _n_tops(n_leaves)]
        return Slots(self.keys[:n_slots], self.weights[:n_slots], self.counts[:n_leaves], heads, tops, begin, end)

    def prefer_large_pages(self, n_leaves: int) -> None:
        """Ask for large pages where an array of so many leaves fills some: a fault in 2 MiB, not in 4 KiB."""
        if self.reservation is not None and (_KEY_BYTES * n_leaves) << self.leaf_shift >= _HUGE_MIN:
            # A kernel without them says so.
            with suppress(OSError):
                self.reservation.madvise(mmap.MADV_HUGEPAGE)

    def release(self, n_leaves: int, n_leaves_before: int) -> None:
        """Give back what lies behind the first ``n_leaves`` of ``n_leaves_before`` leaves."""
        self.counts[n_leaves:n_leaves_before] = 0
        if self.reservation is not None:
            origin = np.frombuffer(self.reservation, np.uint8).ctypes.data
            for begin, end in self.pages(n_leaves, n_leaves_before):
                if begin < end:
                    self.reservation.madvise(mmap.MADV_DONTNEED, begin - origin, end - begin)

    def populate(self, first: int, last: int) -> bool:
        """Have pages for leaves first..last; False where the system cannot say."""
        return self._advise(first, last, POPULATE_WRITE)

    def give_back(self, first: int, last: int) -> bool:
        """Give back the pages of leaves first..last, of which nothing is used; False where that is refused."""
        return self._advise(first, last, DONTNEED)

    def _advise(self, first: int, last: int, advice: int) -> bool:
        return all(advise(begin, end, advice) for begin, end in self.pages(first, last) if begin < end)

    def pages(self, first: int, last: int) -> list[tuple[int, int]]:
        """Addresses of the pages, of each column, that begin within leaves first..last."""
        columns: tuple[tuple[npt.NDArray[Any], int], ...] = (
            (self.keys, self.leaf_shift),
            (self.weights, self.leaf_shift),
            (self.counts, 0),
            (self.heads, 0),
            (self.tops, -TOP_SHIFT),
        )
        pages = []
        for column, shift in columns:
            if column.size:
                entries = (leaf << shift if shift >= 0 else -(-leaf >> -shift) for leaf in (first, last))
                ends = (column.ctypes.data + column.itemsize * entry for entry in entries)
                begin, end = (-(-end // mmap.PAGESIZE) * mmap.PAGESIZE for end in ends)
                pages.append((begin, end))
        return pages


class Pages:
    """A thread that gets pages for the new leaves of a grown array, or gives back those of one that shrank.

    It begins with the last ones. There is one such piece of work at a time: a new one ends the one before it.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._work: Future[None] | None = None
        self._stop = threading.Event()

    @property
    def done(self) -> bool:
        """All pages that were asked for are there, or will not come; or all are gone."""
        return self._work is None or self._work.done()

    def get(self, memory: SlotMemory, first: int, last: int) -> None:
        """Begin to get pages for leaves first..last; nothing is to be done for few leaves.

        Never fails: without this thread pages come when they are touched.
        """
        self._start(memory, memory.populate, first, last)

    def give_back(self, memory: SlotMemory, first: int, last: int) -> None:
        """Begin to give back the pages of leaves first..last; ``stop`` before these are used again.

        Never fails: without this thread the pages stay.
        """
        self._start(memory, memory.give_back, first, last)

    def _start(self, memory: SlotMemory, advise: Callable[[int, int], bool], first: int, last: int) -> None:
        self.stop()
        if memory.reservation is None or last - first < _PIECE_LEAVES:
            return
        self._stop.clear()
        try:
            if self._thread is None:
                require_room()
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="pages")
            self._work = self._thread.submit(_in_pieces, advise, first, last, self._stop)
        except RuntimeError:  # no more threads, or the process ends: pages stay as they are
            self.close()

    def stop(self) -> None:
        """Leave off; returns when no more pages will come or go."""
        self._stop.set()
        if self._work is not None:
            self._work.result()
            self._work = None

    def close(self) -> None:
        """Leave off, and let the thread end."""
        self.stop()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None


def _in_pieces(advise: Callable[[int, int], bool], first: int, last: int, stop: threading.Event) -> None:
    for end in range(last, first, -_PIECE_LEAVES):
        if stop.is_set() or not advise(max(first, end - _PIECE_LEAVES), end):
            return


def _leaf_bytes(leaf_shift: int, *, weighted: bool) -> float:
    return _LEAF_BYTES + ((_KEY_BYTES + _WEIGHT_BYTES * weighted) << leaf_shift)


def _n_tops(n_leaves: int) -> int:
    """How many tops so many leaves have."""
    return (n_leaves + TOP_LEAVES - 1) >> TOP_SHIFT
