"""From edges to times: a hash table whose cells are two words, a key and its time.

Open addressing with linear probing in a power-of-two table. A key's home is at the top bits of its hash, so that
the table in order is the keys in order of their hashes: growing reads one from front to back and writes the other
so. What is removed leaves no trace: what follows it moves up (Knuth, The Art of Computer Programming 3, 6.4,
algorithm R).
"""

from __future__ import annotations

import secrets

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.edges import EMPTY_KEY, HALF, Int, Keys, Op, Ops, frozen
from ...gpma.index.hashing import hash_int
from ...gpma.intrinsics import inner, prefetch
from ...gpma.memory import Memory

Cells = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NEVER = frozen(np.empty(0, np.int64))

CELLS_MIN = 1024
LOAD_NUMERATOR, LOAD_DENOMINATOR = 3, 4

_DELETE = np.uint8(Op.DELETE)
_ONE = np.uint64(1)
_AHEAD = 16


class EdgeTimes:
    """A time for each edge that has one: 16 bytes a cell, of which at most three in four are taken."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()
        self._seed = np.uint64(secrets.randbits(64))
        self._cells = _empty(CELLS_MIN)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def memory_bytes(self) -> int:
        return self._cells.nbytes

    def ensure(self, n_new: int) -> None:
        """Have room for so many more edges.

        Raises:
            MemoryError: there is none; all is as before.
        """
        size = before = self._cells.size // 2
        while (self._n + n_new) * LOAD_DENOMINATOR > size * LOAD_NUMERATOR:
            size *= 2
        if size > before:
            self._memory.require(16 * size)
            cells = _empty(size)
            _move(self._cells, cells, self._seed)
            self._cells = cells

    def note(self, keys: Keys, ops: Ops, times: Times, begins: Times = NEVER) -> tuple[Keys, Times, Times]:
        """Take updates in order, for which there must be room: an insert gives its edge a time, or a later one
        than it has; a delete takes it. What has a time below ``begins`` (int64[n]; ``NEVER``: nothing) was deleted
        before the update.

        Returns the keys that had none before with their times, and the times that were taken away.
        """
        n = keys.size
        fresh, fresh_times, taken = np.empty(n, np.uint64), np.empty(n, np.int64), np.empty(n, np.int64)
        given = frozen(keys), frozen(ops), frozen(times), frozen(begins)
        n_fresh, n_taken = _note(self._cells, *given, self._seed, fresh, fresh_times, taken)
        self._n += n_fresh - n_taken
        return fresh[:n_fresh].copy(), fresh_times[:n_fresh].copy(), taken[:n_taken].copy()

    def of(self, keys: Keys) -> tuple[Times, Flags]:
        """The times of these edges (0 where they have none), and which have one."""
        times, known = np.zeros(keys.size, np.int64), np.zeros(keys.size, bool)
        _times_of(self._cells, frozen(keys), self._seed, times, known)
        return times, known

    def all(self) -> tuple[Keys, Times]:
        """Every edge and its time, in no order."""
        taken = self._cells[::2] != EMPTY_KEY
        return self._cells[::2][taken], self._cells[1::2][taken].view(np.int64)


def canonical(keys: Keys) -> Keys:
    """Undirected edges with the smaller end first."""
    return np.minimum(keys, (keys << HALF) | (keys >> HALF))


def _empty(size: int) -> Cells:
    return np.full(2 * size, EMPTY_KEY, np.uint64)


@inner
def _shift_of(cells: Cells) -> np.uint64:
    shift, size = np.uint64(65), cells.size
    while size > 1:
        size >>= 1
        shift -= _ONE
    return shift


@inner
def _ask_for(cells: Cells, shift: np.uint64, seed: np.uint64, keys: Keys, i: Int) -> None:
    """Have the cell of an update that is soon to come brought into the cache."""
    if i + _AHEAD < keys.size:
        prefetch(cells, np.int64(hash_int(keys[i + _AHEAD], seed, seed) >> shift) << 1)


@inner
def _find(cells: Cells, shift: np.uint64, seed: np.uint64, key: np.uint64) -> Int:
    """Where the cell of a key begins, or the empty one where it would be."""
    mask = np.int64(cells.size - 1)
    at = np.int64(hash_int(key, seed, seed) >> shift) << 1
    while cells[at] != key and cells[at] != EMPTY_KEY:
        at = (at + 2) & mask
    return at


@inner
def _remove(cells: Cells, shift: np.uint64, seed: np.uint64, at: Int) -> None:
    mask = np.int64(cells.size - 1)
    hole = next = np.int64(at)
    while True:
        next = (next + 2) & mask
        key = cells[next]
        if key == EMPTY_KEY:
            break
        home = np.int64(hash_int(key, seed, seed) >> shift) << 1
        if (next - home) & mask >= (next - hole) & mask:
            cells[hole] = key
            cells[hole + 1] = cells[next + 1]
            hole = next
    cells[hole] = EMPTY_KEY


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _note(
    cells: Cells,
    keys: Keys,
    ops: Ops,
    given: Times,
    begins: Times,
    seed: np.uint64,
    fresh: Keys,
    fresh_times: Times,
    taken: Times,
) -> tuple[int, int]:
    shift = _shift_of(cells)
    n_fresh, n_taken = 0, 0
    for i in range(keys.size):
        _ask_for(cells, shift, seed, keys, i)
        key = keys[i]
        at = _find(cells, shift, seed, key)
        known = cells[at] == key
        time = np.int64(cells[at + 1])
        if known and (ops[i] == _DELETE or (begins.size > 0 and time < begins[i])):
            taken[n_taken] = time
            n_taken += 1
            _remove(cells, shift, seed, at)
            if ops[i] == _DELETE:
                continue
            at = _find(cells, shift, seed, key)
            known = False
        elif ops[i] == _DELETE:
            continue
        if known:
            cells[at + 1] = np.uint64(max(time, given[i]))
        else:
            cells[at] = key
            cells[at + 1] = np.uint64(given[i])
            fresh[n_fresh] = key
            fresh_times[n_fresh] = given[i]
            n_fresh += 1
    return n_fresh, n_taken


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _times_of(cells: Cells, keys: Keys, seed: np.uint64, found: Times, known: Flags) -> None:
    shift = _shift_of(cells)
    for i in range(keys.size):
        _ask_for(cells, shift, seed, keys, i)
        at = _find(cells, shift, seed, keys[i])
        if cells[at] == keys[i]:
            known[i] = True
            found[i] = np.int64(cells[at + 1])


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _move(old: Cells, cells: Cells, seed: np.uint64) -> None:
    """Into an empty table, in order from an empty cell on: so each search is short, and both are read in order."""
    shift = _shift_of(cells)
    start = 0
    while old[start] != EMPTY_KEY:
        start += 2
    for i in range(0, old.size, 2):
        from_ = (start + i) & (old.size - 1)
        key = old[from_]
        if key != EMPTY_KEY:
            at = _find(cells, shift, seed, key)
            cells[at] = key
            cells[at + 1] = old[from_ + 1]


def warm_up() -> None:
    """Compile the kernels, or load them from the cache."""
    table = EdgeTimes()
    keys = np.arange(CELLS_MIN, dtype=np.uint64)
    table.ensure(keys.size)
    table.note(keys, np.ones(keys.size, np.uint8), np.zeros(keys.size, np.int64))
    table.of(keys)
