"""Which edges are due first: entries of (time, key) that come out in order of their times, in pieces.

A calendar (Brown: Calendar queues, CACM 1988): entries lie unordered in buckets of an equal span of time, and a
bucket is put in order when its turn has come. So to put an entry in costs the same however many there are, to get
one out costs a share of sorting a small bucket, and all of it is done to whole columns.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Keys

Times = npt.NDArray[np.int64]

BUCKETS = 1024
"""A span of the window's length has so many buckets."""
AHEAD = 4 * BUCKETS
"""What is due later than so many buckets from the first lies in one of its own until then: however far times are
spread, there are few buckets."""


class _Bucket:
    """Entries in columns that grow; those that came since it was put in order stand behind the others."""

    def __init__(self) -> None:
        self.times: Times = np.empty(4, np.int64)
        self.keys: Keys = np.empty(4, np.uint64)
        self.begin = self.end = self.ordered = 0

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def nbytes(self) -> int:
        return self.times.nbytes + self.keys.nbytes

    def add(self, times: Times, keys: Keys) -> None:
        end = self.end + times.size
        if end > self.times.size:
            kept = slice(self.begin, self.end)
            self.times = _longer(self.times[kept], end - self.begin)
            self.keys = _longer(self.keys[kept], end - self.begin)
            self.ordered = max(self.ordered - self.begin, 0)
            self.begin, self.end, end = 0, self.end - self.begin, end - self.begin
        self.times[self.end : end] = times
        self.keys[self.end : end] = keys
        self.end = end

    def take(self, limit: int, n: int) -> tuple[Times, Keys]:
        """Take the first ones up to a time, at most so many; of one time those that came first."""
        self._order()
        up_to = int(np.searchsorted(self.times[self.begin : self.end], limit, side="right"))
        taken = slice(self.begin, self.begin + min(up_to, n))
        self.begin = taken.stop
        return self.times[taken].copy(), self.keys[taken].copy()

    def least(self) -> int:
        """The first time, of a bucket that is not empty."""
        self._order()
        return int(self.times[self.begin])

    def _order(self) -> None:
        if self.ordered < self.end:
            kept = slice(self.begin, self.end)
            self.ordered = self.end
            if not (self.times[kept][1:] < self.times[kept][:-1]).any():
                return
            order = np.argsort(self.times[kept], kind="stable")
            self.times[kept] = self.times[kept][order]
            self.keys[kept] = self.keys[kept][order]


class DueEntries:
    """See the module. An entry is never looked for: what is to be no more is told when it comes out."""

    def __init__(self, span: int) -> None:
        """``span``: how far times usually lie apart."""
        self._width = max(span // BUCKETS, 1)
        self._buckets: dict[int, _Bucket] = {}
        self._first: list[int] = []  # a heap of the numbers of buckets
        self._later = _Bucket()
        self._later_from = 0  # the least number among those
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def memory_bytes(self) -> int:
        return sum(bucket.nbytes for bucket in self._buckets.values()) + self._later.nbytes

    def add(self, times: Times, keys: Keys) -> None:
        """Entries, in columns of one length."""
        if times.size == 0:
            return
        self._n += times.size
        self._put(times, keys)

    def take(self, limit: int, n: int) -> tuple[Times, Keys]:
        """Take out the first entries up to a time, at most so many, in order; of one time those that were added
        first (but for some that lay far ahead)."""
        parts = list[tuple[Times, Keys]]()
        while n > 0 and (bucket := self._next(limit)) is not None:
            part = bucket.take(limit, n)
            if part[0].size == 0:
                break
            parts.append(part)
            n -= part[0].size
            self._n -= part[0].size
        times = [np.empty(0, np.int64), *(part[0] for part in parts)]
        return np.concatenate(times), np.concatenate([np.empty(0, np.uint64), *(part[1] for part in parts)])

    def is_due(self, limit: int) -> bool:
        """Whether there is an entry up to this time."""
        bucket = self._next(limit)
        return bucket is not None and bucket.least() <= limit

    def times_of(self, key: np.uint64) -> Times:
        """Of all entries of a key: looks at each entry."""
        buckets = [*self._buckets.values(), self._later]
        kept = [(bucket, slice(bucket.begin, bucket.end)) for bucket in buckets]
        return np.concatenate([bucket.times[part][bucket.keys[part] == key] for bucket, part in kept])

    # -- inside -------------------------------------------------------------------------------------------

    def _put(self, times: Times, keys: Keys) -> None:
        numbers = times // self._width
        least, most = int(numbers.min()), int(numbers.max())
        horizon = min(self._first[0] if self._first else least, least) + AHEAD
        if most >= horizon:
            later = numbers >= horizon
            far = int(numbers[later].min())
            self._later_from = min(self._later_from, far) if len(self._later) else far
            self._later.add(times[later], keys[later])
            times, keys, numbers = times[~later], keys[~later], numbers[~later]
            if times.size == 0:
                return
            most = int(numbers.max())
        if least == most:
            self._bucket(least).add(times, keys)
            return
        order = np.argsort(numbers, kind="stable")
        times, keys, numbers = times[order], keys[order], numbers[order]
        starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]])).tolist()
        for start, stop in zip(starts, [*starts[1:], times.size], strict=True):
            self._bucket(int(numbers[start])).add(times[start:stop], keys[start:stop])

    def _bucket(self, number: int) -> _Bucket:
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = _Bucket()
            heapq.heappush(self._first, number)
        return bucket

    def _next(self, limit: int) -> _Bucket | None:
        """The first bucket that has any entry, if its span begins by this time."""
        while True:
            while self._first and not len(self._buckets[self._first[0]]):
                del self._buckets[heapq.heappop(self._first)]
            later = self._later
            if len(later) and (not self._first or self._later_from <= self._first[0]):
                # The next ones become buckets; what is far ahead of them stays behind.
                self._later = _Bucket()
                self._put(later.times[: later.end], later.keys[: later.end])
                continue
            if self._first and self._first[0] * self._width <= limit:
                return self._buckets[self._first[0]]
            return None


def _longer(column: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """A column with room for n entries and as many more, that begins with these."""
    longer = np.empty(2 * n, column.dtype)
    longer[: column.size] = column
    return longer
