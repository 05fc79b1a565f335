"""From edges to times: a hash table whose cells are two words, a key and its time.

Open addressing with linear probing. A key's home is at the top bits of its hash, so that the table in order is the
keys in order of their hashes, whatever its size. It lies in reserved address space and grows in place, by a few
cells for each edge that comes (Litwin, "Linear Hashing", VLDB 1980): from its end on, clusters of the part
that has its old spacing are taken out and put where the new one has them, further up. What is removed leaves no
trace: what follows it moves up (Knuth, The Art of Computer Programming 3, 6.4, algorithm R).

A cell holds its key and one, so that zeroed memory is an empty table.
"""

from __future__ import annotations

import mmap
import secrets
from contextlib import suppress

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.address_space import memory_bytes, reserve
from ...gpma.edges import HALF, Int, Keys, Op, Ops, frozen
from ...gpma.index.hashing import hash_int
from ...gpma.intrinsics import inner, prefetch
from ...gpma.memory import Memory

Cells = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Shape = npt.NDArray[np.int64]

NEVER = frozen(np.empty(0, np.int64))

CELLS_MIN = 1024
LOAD_MIN, LOAD_MAX = 0.65, 0.75
"""Growth begins where the first is passed, and is over before the second is: of the part with the old spacing."""
GROWTH = 2
SIZE_MAX = (1 << 32) - 1
"""The most cells: homes are found by 32 bits of a hash."""
SLACK = 1 << 12
"""Cells behind the last home: keys that find their homes taken go on there. The very last is never taken."""

_DELETE = np.uint8(Op.DELETE)
_ONE = np.uint64(1)
_S32 = np.uint64(32)
_EMPTY = np.uint64(0)
_AHEAD = 16
_CELL_BYTES = 16

# What ``shape`` (int64[3]) holds: the number of homes, how many there are to be, and the first home that is found
# by that number already. While nothing grows all are the same.
_SIZE, _NEXT, _BOUND = 0, 1, 2


class EdgeTimes:
    """A time for each edge that has one: 16 bytes a cell, of which a third to three quarters are taken."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()
        self._seed = np.uint64(secrets.randbits(64))
        self._shape = np.full(3, CELLS_MIN, np.int64)
        reserved = reserve(memory_bytes())
        self._grows_in_place = reserved is not None
        if reserved is None:
            self._all = _zeroed(CELLS_MIN)
        else:
            self._all = np.frombuffer(reserved, np.uint64)
            with suppress(OSError):  # a kernel without large pages says so
                reserved.madvise(mmap.MADV_HUGEPAGE)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def memory_bytes(self) -> int:
        return _CELL_BYTES * self._n_written(int(self._shape[_BOUND]))

    def ensure(self, n_new: int) -> None:
        """Have room for so many more edges.

        Raises:
            MemoryError: there is none; all is as before.
        """
        n = self._n + n_new
        while True:
            size, coming, bound = self._shape.tolist()
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
                self._memory.require(_CELL_BYTES * (self._n_written(target) - self._n_written(bound)))
            if not _advance(self._cells, self._shape, self._seed, bound - target):
                raise AssertionError("a cluster of cells is longer than any that keys can be thought to make")

    def _begin(self, size: int) -> None:
        """From now on it grows to this many homes."""
        if size > SIZE_MAX or (self._grows_in_place and 2 * (size + SLACK) > self._all.size):
            raise MemoryError(f"a table of {size} cells is larger than any can be")
        if not self._grows_in_place:
            self._memory.require(_CELL_BYTES * size)
            longer = _zeroed(size)
            longer[: self._all.size] = self._all
            self._all = longer
        self._shape[_NEXT] = size

    @property
    def _cells(self) -> Cells:
        return self._all[: 2 * (int(self._shape[_NEXT]) + SLACK)]

    def _n_written(self, bound: int) -> int:
        """How many cells hold memory, if homes from this one on are found by the coming size."""
        size, coming, _ = self._shape.tolist()
        return int(size + max(coming - max(size, coming * bound // size), 0))

    def note(self, keys: Keys, ops: Ops, times: Times, begins: Times = NEVER) -> tuple[Keys, Times, Times]:
        """Take updates in order, for which there must be room: an insert gives its edge a time, or a later one
        than it has; a delete takes it. What has a time below ``begins`` (int64[n]; ``NEVER``: nothing) was deleted
        before the update.

        Returns the keys that had none before with their times, and the times that were taken away.
        """
        n = keys.size
        fresh, fresh_times, taken = np.empty(n, np.uint64), np.empty(n, np.int64), np.empty(n, np.int64)
        given = frozen(keys), frozen(ops), frozen(times), frozen(begins)
        n_fresh, n_taken = _note(self._cells, self._shape, *given, self._seed, fresh, fresh_times, taken)
        if n_fresh < 0:
            raise AssertionError("a cluster of cells is longer than any that keys can be thought to make")
        self._n += n_fresh - n_taken
        return fresh[:n_fresh].copy(), fresh_times[:n_fresh].copy(), taken[:n_taken].copy()

    def of(self, keys: Keys) -> tuple[Times, Flags]:
        """The times of these edges (0 where they have none), and which have one."""
        times, known = np.zeros(keys.size, np.int64), np.zeros(keys.size, bool)
        _times_of(self._cells, self._shape, frozen(keys), self._seed, times, known)
        return times, known

    def all(self) -> tuple[Keys, Times]:
        """Every edge and its time, in no order."""
        cells = self._cells
        taken = np.flatnonzero(cells[::2])
        return cells[::2][taken] - _ONE, cells[1::2][taken].view(np.int64)


def canonical(keys: Keys) -> Keys:
    """Undirected edges with the smaller end first."""
    return np.minimum(keys, (keys << HALF) | (keys >> HALF))


def _zeroed(size: int) -> Cells:
    return np.zeros(2 * (size + SLACK), np.uint64)


@inner
def _home(size: np.uint64, coming: np.uint64, bound: Int, seed: np.uint64, key: np.uint64) -> Int:
    """Where the cell of a key begins, if nothing is in its way. Both places are reckoned: a processor cannot guess
    which it is."""
    bits = hash_int(key, seed, seed) >> _S32
    at = np.int64((bits * size) >> _S32)
    above = np.int64((bits * coming) >> _S32)
    return (above if at >= bound else at) << 1


@inner
def _ask_for(
    cells: Cells, size: np.uint64, coming: np.uint64, bound: Int, seed: np.uint64, keys: Keys, i: Int
) -> None:
    """Have the cell of an update that is soon to come brought into the cache."""
    if i + _AHEAD < keys.size:
        prefetch(cells, _home(size, coming, bound, seed, keys[i + _AHEAD]))


@inner
def _find(cells: Cells, size: np.uint64, coming: np.uint64, bound: Int, seed: np.uint64, key: np.uint64) -> Int:
    """Where the cell of a key begins, or the empty one where it would be."""
    at = _home(size, coming, bound, seed, key)
    while cells[at] != key + _ONE and cells[at] != _EMPTY:
        at += 2
    return at


@inner
def _remove(cells: Cells, size: np.uint64, coming: np.uint64, bound: Int, seed: np.uint64, at: Int) -> None:
    hole = next = np.int64(at)
    while True:
        next += 2
        cell = cells[next]
        if cell == _EMPTY:
            break
        if _home(size, coming, bound, seed, cell - _ONE) <= hole:
            cells[hole] = cell
            cells[hole + 1] = cells[next + 1]
            hole = next
    cells[hole] = _EMPTY


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _note(
    cells: Cells,
    shape: Shape,
    keys: Keys,
    ops: Ops,
    given: Times,
    begins: Times,
    seed: np.uint64,
    fresh: Keys,
    fresh_times: Times,
    taken: Times,
) -> tuple[int, int]:
    size, coming, bound = np.uint64(shape[_SIZE]), np.uint64(shape[_NEXT]), shape[_BOUND]
    last = cells.size - 2
    n_fresh, n_taken = 0, 0
    for i in range(keys.size):
        _ask_for(cells, size, coming, bound, seed, keys, i)
        key = keys[i]
        at = _find(cells, size, coming, bound, seed, key)
        known = cells[at] != _EMPTY
        time = np.int64(cells[at + 1])
        if known and (ops[i] == _DELETE or (begins.size > 0 and time < begins[i])):
            taken[n_taken] = time
            n_taken += 1
            _remove(cells, size, coming, bound, seed, at)
            if ops[i] == _DELETE:
                continue
            at = _find(cells, size, coming, bound, seed, key)
            known = False
        elif ops[i] == _DELETE:
            continue
        if known:
            cells[at + 1] = np.uint64(max(time, given[i]))
        elif at == last:
            return -1, -1
        else:
            cells[at] = key + _ONE
            cells[at + 1] = np.uint64(given[i])
            fresh[n_fresh] = key
            fresh_times[n_fresh] = given[i]
            n_fresh += 1
    return n_fresh, n_taken


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _times_of(cells: Cells, shape: Shape, keys: Keys, seed: np.uint64, found: Times, known: Flags) -> None:
    size, coming, bound = np.uint64(shape[_SIZE]), np.uint64(shape[_NEXT]), shape[_BOUND]
    for i in range(keys.size):
        _ask_for(cells, size, coming, bound, seed, keys, i)
        at = _find(cells, size, coming, bound, seed, keys[i])
        if cells[at] != _EMPTY:
            known[i] = True
            found[i] = np.int64(cells[at + 1])


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _advance(cells: Cells, shape: Shape, seed: np.uint64, n: int) -> bool:
    """Put the last so many homes of the old spacing, or a few more, where the new one has them; False: there was
    no room. Whole clusters are taken out, so that no key is looked for beyond a gap."""
    stop = shape[_BOUND]
    begin = max(stop - n, np.int64(0))
    while cells[2 * stop] != _EMPTY:
        stop += 1
    while begin > 0 and cells[2 * begin - 2] != _EMPTY:
        begin -= 1
    taken = np.empty(2 * (stop - begin), np.uint64)
    count = 0
    for at in range(2 * begin, 2 * stop, 2):
        if cells[at] != _EMPTY:
            taken[count] = cells[at]
            taken[count + 1] = cells[at + 1]
            cells[at] = _EMPTY
            count += 2
    shape[_BOUND] = begin
    size, coming, bound = np.uint64(shape[_SIZE]), np.uint64(shape[_NEXT]), begin
    for i in range(0, count, 2):
        at = _find(cells, size, coming, bound, seed, taken[i] - _ONE)
        if at == cells.size - 2:
            return False
        cells[at] = taken[i]
        cells[at + 1] = taken[i + 1]
    if begin == 0:
        shape[_SIZE] = shape[_BOUND] = shape[_NEXT]
    return True


def warm_up() -> None:
    """Compile the kernels, or load them from the cache."""
    table = EdgeTimes()
    keys = np.arange(CELLS_MIN, dtype=np.uint64)
    table.ensure(keys.size)
    table.note(keys, np.ones(keys.size, np.uint8), np.zeros(keys.size, np.int64))
    table.of(keys)
