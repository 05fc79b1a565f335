"""Waiting for what kernels tell the host, without the interpreter's lock.

A kernel tells the host by words in pinned memory that carry the number of what was asked. A compiled loop looks at
them: it sees them as soon as they are there, while the driver, asked to wait for the stream, returns only when it
has noticed that the kernel has ended. So long as most batches take the loop looks; after that the driver waits,
which also finds out whether a kernel failed. Other threads run Python meanwhile: both ways let go of its lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..device_failure import DeviceFailed
from ..edges import HALF, Int, Keys
from ..intrinsics import load_acquire, uncounted
from .state import pinned

# How often the words are looked at before the driver waits: about a millisecond.
LOOKS_MAX = 200_000


class Told:
    """Words in pinned memory in which kernels on one stream say how something ended: the number of what was asked
    in the upper half of each, what is said in the lower."""

    def __init__(self, n_words: int, stream: Any) -> None:
        words: Keys = pinned(n_words, np.uint64)
        words[:] = 0
        self.words = words
        self._read = memoryview(words)
        self._stream = stream
        _all_carry(words, np.uint64(0), 1)  # compiled, or loaded from the cache, before anybody waits

    @property
    def address(self) -> int:
        """Where kernels find the words."""
        return self.words.ctypes.data

    def wait(self, number: int) -> None:
        """Wait until every word carries this number, which no wait before had (1 to 2^32 - 1).

        Raises:
            RuntimeError: a kernel failed (as CuPy says it), or ended without a word (``DeviceFailed``).
        """
        wanted = np.uint64(number)
        if not _all_carry(self.words, wanted, LOOKS_MAX):
            self._stream.synchronize()
            if not _all_carry(self.words, wanted, 1):
                raise DeviceFailed("the device ended without telling how")

    def word(self, place: int) -> int:
        """The lower half of one of the words, of what was waited for last."""
        return self._read[place] & 0xFFFF_FFFF


@uncounted
def _all_carry(words: Keys, number: Int, looks: Int) -> bool:
    """Whether all words carry the number in their upper half, looked at so many times at most."""
    for _ in range(looks):
        carry = 0
        while carry < words.size and load_acquire(words, carry) >> HALF == number:
            carry += 1
        if carry == words.size:
            return True
    return False
