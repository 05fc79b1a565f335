"""From edges to times: a hash table (``cells.py``) whose cells are two words, a key and its time.

A cell holds its key and one, so that no key is 0.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.edges import HALF, Int, Keys, Op, Ops, frozen
from ...gpma.intrinsics import inner, prefetch
from ...gpma.memory import Memory
from .cells import BOUND, CELLS_MIN, NEXT, SIZE, TOO_LONG, Cells, Shape, Words, find, home, take_out

Times = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NEVER = frozen(np.empty(0, np.int64))

_DELETE = np.uint8(Op.DELETE)
_ONE = np.uint64(1)
_EMPTY = np.uint64(0)
_AHEAD = 16
_CELL = np.int64(2)  # words


class EdgeTimes:
    """A time for each edge that has one: 16 bytes a cell, of which a third to three quarters are taken."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._cells = Cells(int(_CELL), memory or Memory())

    def __len__(self) -> int:
        return self._cells.n

    def memory_bytes(self) -> int:
        return self._cells.memory_bytes()

    def ensure(self, n_new: int) -> None:
        """Have room for so many more edges.

        Raises:
            MemoryError: there is none; all is as before.
        """
        self._cells.ensure(n_new)

    def note(self, keys: Keys, ops: Ops, times: Times, begins: Times = NEVER) -> tuple[Keys, Times, Times]:
        """Take updates in order, for which there must be room: an insert gives its edge a time, or a later one
        than it has; a delete takes it. What has a time below ``begins`` (int64[n]; ``NEVER``: nothing) was deleted
        before the update.

        Returns the keys that had none before with their times, and the times that were taken away.
        """
        n = keys.size
        fresh, fresh_times, taken = np.empty(n, np.uint64), np.empty(n, np.int64), np.empty(n, np.int64)
        given = frozen(keys), frozen(ops), frozen(times), frozen(begins)
        cells = self._cells
        n_fresh, n_taken = _note(cells.words, cells.shape, *given, cells.seed, fresh, fresh_times, taken)
        if n_fresh < 0:
            raise AssertionError(TOO_LONG)
        cells.n += n_fresh - n_taken
        return fresh[:n_fresh].copy(), fresh_times[:n_fresh].copy(), taken[:n_taken].copy()

    def of(self, keys: Keys) -> tuple[Times, Flags]:
        """The times of these edges (0 where they have none), and which have one."""
        times, known = np.zeros(keys.size, np.int64), np.zeros(keys.size, bool)
        _times_of(self._cells.words, self._cells.shape, frozen(keys), self._cells.seed, times, known)
        return times, known

    def all(self) -> tuple[Keys, Times]:
        """Every edge and its time, in no order."""
        cells = self._cells.words
        taken = np.flatnonzero(cells[::2])
        return cells[::2][taken] - _ONE, cells[1::2][taken].view(np.int64)


def canonical(keys: Keys) -> Keys:
    """Undirected edges with the smaller end first."""
    return np.minimum(keys, (keys << HALF) | (keys >> HALF))


@inner
def _ask_for(
    cells: Words, size: np.uint64, coming: np.uint64, bound: Int, seed: np.uint64, keys: Keys, i: Int
) -> None:
    """Have the cell of an update that is soon to come brought into the cache."""
    if i + _AHEAD < keys.size:
        prefetch(cells, _CELL * home(size, coming, bound, seed, keys[i + _AHEAD] + _ONE))


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _note(
    cells: Words,
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
    size, coming, bound = np.uint64(shape[SIZE]), np.uint64(shape[NEXT]), shape[BOUND]
    last = cells.size - 2
    n_fresh, n_taken = 0, 0
    for i in range(keys.size):
        _ask_for(cells, size, coming, bound, seed, keys, i)
        key = keys[i]
        at = find(cells, _CELL, size, coming, bound, seed, key + _ONE)
        known = cells[at] != _EMPTY
        time = np.int64(cells[at + 1])
        if known and (ops[i] == _DELETE or (begins.size > 0 and time < begins[i])):
            taken[n_taken] = time
            n_taken += 1
            take_out(cells, _CELL, size, coming, bound, seed, at)
            if ops[i] == _DELETE:
                continue
            at = find(cells, _CELL, size, coming, bound, seed, key + _ONE)
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
def _times_of(cells: Words, shape: Shape, keys: Keys, seed: np.uint64, found: Times, known: Flags) -> None:
    size, coming, bound = np.uint64(shape[SIZE]), np.uint64(shape[NEXT]), shape[BOUND]
    for i in range(keys.size):
        _ask_for(cells, size, coming, bound, seed, keys, i)
        at = find(cells, _CELL, size, coming, bound, seed, keys[i] + _ONE)
        if cells[at] != _EMPTY:
            known[i] = True
            found[i] = np.int64(cells[at + 1])


def warm_up() -> None:
    """Compile the kernels, or load them from the cache."""
    table = EdgeTimes()
    keys = np.arange(CELLS_MIN, dtype=np.uint64)
    table.ensure(keys.size)
    table.note(keys, np.ones(keys.size, np.uint8), np.zeros(keys.size, np.int64))
    table.of(keys)
