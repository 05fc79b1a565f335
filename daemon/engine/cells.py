"""Hash tables that grow where they lie: cells of a few words, of which the first is never 0 where there is one.

Open addressing with linear probing. A cell's home is at the top bits of the hash of its first word, so that the
table in order is the cells in order of their hashes, whatever its size. It lies in reserved address space and
grows in place, by a few cells for each that comes (Litwin, "Linear Hashing", VLDB 1980): from its end on,
clusters of the part that has its old spacing are taken out and put where the new one has them, further up. What
is removed leaves no trace: what follows it moves up (Knuth, The Art of Computer Programming 3, 6.4, algorithm
R).

Zeroed memory is an empty table. What a cell holds behind its first word, and which cell is looked for, is for
whoever has the table.
"""

from __future__ import annotations

import mmap
import secrets
from contextlib import suppress

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.address_space import memory_bytes, reserve
from ...gpma.edges import Int
from ...gpma.index.hashing import hash_int
from ...gpma.intrinsics import inner
from ...gpma.memory import Memory

Words = npt.NDArray[np.uint64]
Shape = npt.NDArray[np.int64]

CELLS_MIN = 1024
LOAD_MIN, LOAD_MAX = 0.65, 0.75
"""Growth begins where the first is passed, and is over before the second is: of the part with the old spacing."""
GROWTH = 2
SIZE_MAX = (1 << 32) - 1
"""The most cells: homes are found by 32 bits of a hash."""
SLACK = 1 << 12
"""Cells behind the last home: those that find their homes taken go on there. The very last is never taken."""

_WORD_BYTES = 8
_S32 = np.uint64(32)
_EMPTY = np.uint64(0)

# What ``shape`` (int64[3]) holds: the number of homes, how many there are to be, and the first home that is found
# by that number already. While nothing grows all are the same.
SIZE, NEXT, BOUND = 0, 1, 2

TOO_LONG = "a cluster of cells is longer than any that hashes can be thought to make"


class Cells:
    """The memory of a table. ``n``: how many cells are taken, which is for its owner to count."""

    def __init__(self, n_words: int, memory: Memory) -> None:
        """``n_words``: of a cell."""
        self.n = 0
        self.seed = np.uint64(secrets.randbits(64))
        self.shape = np.full(3, CELLS_MIN, np.int64)
        self._n_words = n_words
        self._memory = memory
        reserved = reserve(memory_bytes())
        self._grows_in_place = reserved is not None
        if reserved is None:
            self._all = self._zeroed(CELLS_MIN)
        else:
            self._all = np.frombuffer(reserved, np.uint64)
            with suppress(OSError):  # a kernel without large pages says so
                reserved.madvise(mmap.MADV_HUGEPAGE)

    @property
    def words(self) -> Words:
        """All cells, one after the other."""
        return self._all[: self._n_words * (int(self.shape[NEXT]) + SLACK)]

    def memory_bytes(self) -> int:
        return self._cell_bytes * self._n_written(int(self.shape[BOUND]))

    def ensure(self, n_new: int) -> None:
        """Have room for so many more.

        Raises:
            MemoryError: there is none; all is as before.
        """
        n = self.n + n_new
        while True:
            size, coming, bound = self.shape.tolist()
            if coming == size:
                if n <= LOAD_MIN * size:
                    return
                self._begin(max(int(GROWTH * size), int(n / LOAD_MIN) + 1))
                continue
            # In proportion to how much of what may still come until the table would be too full has come.
            left = max((LOAD_MAX * size - n) / ((LOAD_MAX - LOAD_MIN) * size), 0.0)
            target = min(int(left * size), bound)
            if target == bound:
                return
            if self._grows_in_place:
                self._memory.require(self._cell_bytes * (self._n_written(target) - self._n_written(bound)))
            if not _advance(self.words, self._n_words, self.shape, self.seed, bound - target):
                raise AssertionError(TOO_LONG)

    def _begin(self, size: int) -> None:
        """From now on it grows to this many homes."""
        if size > SIZE_MAX or (self._grows_in_place and self._n_words * (size + SLACK) > self._all.size):
            raise MemoryError(f"a table of {size} cells is larger than any can be")
        if not self._grows_in_place:
            self._memory.require(self._cell_bytes * size)
            longer = self._zeroed(size)
            longer[: self._all.size] = self._all
            self._all = longer
        self.shape[NEXT] = size

    def _n_written(self, bound: int) -> int:
        """How many cells hold memory, if homes from this one on are found by the coming size."""
        size, coming, _ = self.shape.tolist()
        return int(size + max(coming - max(size, coming * bound // size), 0))

    @property
    def _cell_bytes(self) -> int:
        return _WORD_BYTES * self._n_words

    def _zeroed(self, size: int) -> Words:
        return np.zeros(self._n_words * (size + SLACK), np.uint64)


@inner
def home(size: np.uint64, coming: np.uint64, bound: Int, seed: np.uint64, word: np.uint64) -> Int:
    """The number of the cell with this first word, if nothing is in its way. Both places are reckoned: a processor
    cannot guess which it is."""
    bits = hash_int(word, seed, seed) >> _S32
    at = np.int64((bits * size) >> _S32)
    above = np.int64((bits * coming) >> _S32)
    return above if at >= bound else at


@inner
def find(
    words: Words, n_words: Int, size: np.uint64, coming: np.uint64, bound: Int, seed: np.uint64, word: np.uint64
) -> Int:
    """Where the cell that begins with this word begins, or the empty one where it would be."""
    at = n_words * home(size, coming, bound, seed, word)
    while words[at] != word and words[at] != _EMPTY:
        at += n_words
    return at


@inner
def take_out(
    words: Words, n_words: Int, size: np.uint64, coming: np.uint64, bound: Int, seed: np.uint64, at: Int
) -> None:
    """Take the cell out that begins here."""
    hole = next = np.int64(at)
    while True:
        next += n_words
        word = words[next]
        if word == _EMPTY:
            break
        if n_words * home(size, coming, bound, seed, word) <= hole:
            for i in range(n_words):
                words[hole + i] = words[next + i]
            hole = next
    words[hole] = _EMPTY


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _advance(words: Words, n_words: Int, shape: Shape, seed: np.uint64, n: int) -> bool:
    """Put the last so many homes of the old spacing, or a few more, where the new one has them; False: there was
    no room. Whole clusters are taken out, so that nothing is looked for beyond a gap."""
    stop = shape[BOUND]
    begin = max(stop - n, np.int64(0))
    while words[n_words * stop] != _EMPTY:
        stop += 1
    while begin > 0 and words[n_words * (begin - 1)] != _EMPTY:
        begin -= 1
    taken = np.empty(n_words * (stop - begin), np.uint64)
    count = 0
    for at in range(n_words * begin, n_words * stop, n_words):
        if words[at] != _EMPTY:
            taken[count : count + n_words] = words[at : at + n_words]
            words[at] = _EMPTY
            count += n_words
    shape[BOUND] = begin
    size, coming, bound = np.uint64(shape[SIZE]), np.uint64(shape[NEXT]), begin
    for i in range(0, count, n_words):
        at = n_words * home(size, coming, bound, seed, taken[i])
        while words[at] != _EMPTY:
            at += n_words
        if at == words.size - n_words:
            return False
        words[at : at + n_words] = taken[i : i + n_words]
    if begin == 0:
        shape[SIZE] = shape[BOUND] = shape[NEXT]
    return True
