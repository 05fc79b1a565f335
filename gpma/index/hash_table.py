"""The hash table of the vertex index, and how it grows while it is used.

Open addressing with linear probing in a power-of-two table of 64-bit cells. A cell holds the upper half of the
id's hash and the dense vertex plus one; 0 is empty. An id's *home* is at the top bits of its hash. So the
table has the ids in the order of their hashes, and a cell alone tells where it belongs in a table of another
size: growing reads one table from front to back, writes the other from front to back, and looks at no id.

The cell of an id that was removed is *vacant* (dense part all ones: no vertex), so that a search goes on past
it; at the end of a run it is emptied, with the vacant ones before it. An id that is inserted takes the first
vacant cell on its way. A table that is full of vacant cells moves to one of the same size, which leaves them
behind.

It is done in steps, a few cells for each id that is inserted (linear hashing: Litwin, VLDB 1980, with two arrays
instead of one). The part of the old table from ``START`` on, ``MOVED`` cells long and circular, has been moved:
ids whose home is in there are looked for and inserted in the new table, all others in the old one. A step ends
before an empty cell, so no run of cells is ever half moved. ``START`` was empty when it began.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from ..intrinsics import inner, load_acquire, store_release
from .hashing import Words

SEED_0, SEED_1, GENERATION, START, MOVED, COVERED = range(6)
"""The words of the header: the seeds of the hash; the arrays' generation; how far the table has grown; and below
which dense vertex these arrays hold everything (all of them, until arrays of another generation take over)."""
HEADER_WORDS = 6
EVERYTHING = np.uint64(0xFFFF_FFFF_FFFF_FFFF)

CELLS_MIN = 1024
CELLS_MAX = 1 << 32
"""A cell knows the upper half of the hash, and so its home in tables of up to so many cells."""
LOAD_NUMERATOR, LOAD_DENOMINATOR = 3, 5
MOVED_PER_ID = 8
"""Old cells moved for each id. While a table grows, one id for each eight cells comes at most, an eighth of the
cells: the old table's load stays below 3/5 + 1/8, and the new one is never full before the old one is done."""

NO_CELLS = np.zeros(2, np.uint64)
"""Stands for the old table where nothing is being moved."""
NO_CELLS.flags.writeable = False

DENSE = np.uint64(0xFFFF_FFFF)
"""The dense part of a cell. All ones it is vacant: larger than any vertex, which readers leave out as such."""
TAG = np.uint64(0xFFFF_FFFF_0000_0000)
_ONE = np.uint64(1)


def capacity(cells: int) -> int:
    """How many ids a table holds before it grows; the largest one cannot, and is filled further."""
    if cells >= CELLS_MAX:
        return cells // 16 * 15
    return cells * LOAD_NUMERATOR // LOAD_DENOMINATOR


def cells_for(n_vertices: int) -> int:
    """The smallest table in which so many ids stay under the greatest load."""
    cells = CELLS_MIN
    while cells < CELLS_MAX and capacity(cells) < n_vertices:
        cells *= 2
    return cells


def size_after(cells: int, n_ids: int) -> int:
    """The size of the table that a full one with so many ids moves to."""
    if cells >= CELLS_MAX or 2 * n_ids <= capacity(cells):
        return cells
    return 2 * cells


def first_empty(table: Words) -> int:
    """An empty cell, where moving may begin."""
    piece = 1 << 8
    for start in range(0, table.size, piece):
        empty = np.flatnonzero(table[start : start + piece] == 0)
        if empty.size:
            return start + int(empty[0])
    raise AssertionError("a table is never full")


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def shift_of(table: Words) -> np.uint64:
    """By how much a hash is shifted to give its home."""
    shift = np.uint64(64)
    size = table.size
    while size > 1:
        size >>= 1
        shift -= _ONE
    return shift


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def is_in_old(hashed: np.uint64, old: Words, old_shift: np.uint64, start: np.uint64, moved: np.uint64) -> bool:
    """Whether this hash's home is in the part of the old table that is still to be moved."""
    size = np.uint64(old.size)
    return bool(((hashed >> old_shift) - start) & (size - _ONE) >= moved)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _place(table: Words, shift: np.uint64, cell: np.uint64) -> None:
    """Take the first empty cell from home on, for an id that is known not to be there."""
    mask = np.uint64(table.size - 1)
    at = cell >> shift
    while table[np.int64(at)] != np.uint64(0):
        at = (at + _ONE) & mask
    store_release(table, np.int64(at), cell)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def vacant_before(table: Words, shift: np.uint64, hashed: np.uint64, at: np.int64) -> np.int64:
    """The first vacant cell from home on before ``at``, or that one."""
    mask = np.uint64(table.size - 1)
    cell = hashed >> shift
    while cell != np.uint64(at) and table[np.int64(cell)] & DENSE != DENSE:
        cell = (cell + _ONE) & mask
    return np.int64(cell)


@inner
def vacate(table: Words, shift: np.uint64, hashed: np.uint64, dense: np.uint64) -> np.int64:
    """Remove the cell of a vertex: how many cells it emptied; -1 when there is none.

    An empty cell ends every search, so only one before which no search goes on may become empty: the last of a
    run. Readers that are on their way see it vacant or empty, and find the same either way.
    """
    mask = np.uint64(table.size - 1)
    cell = (hashed & TAG) | (dense + _ONE)  # whole: a table that is being moved may name the vertex twice
    at = hashed >> shift
    while table[np.int64(at)] != cell:
        if table[np.int64(at)] == np.uint64(0):
            return np.int64(-1)
        at = (at + _ONE) & mask
    store_release(table, np.int64(at), cell | DENSE)
    if table[np.int64((at + _ONE) & mask)] != np.uint64(0):
        return np.int64(0)
    emptied = np.int64(0)
    while table[np.int64(at)] & DENSE == DENSE:
        store_release(table, np.int64(at), np.uint64(0))
        emptied += np.int64(1)
        at = (at - _ONE) & mask
    return emptied


@nb.njit(cache=True, nogil=True, error_model="numpy")
def move(header: Words, table: Words, old: Words, count: int) -> None:
    """Move at least ``count`` cells of the old table, or all that are left."""
    shift, old_shift = shift_of(table), shift_of(old)
    size, mask = np.uint64(old.size), np.uint64(old.size - 1)
    start, moved = header[START], header[MOVED]
    goal = min(moved + np.uint64(count), size)
    done = moved
    while done < size:
        cell = old[np.int64((start + done) & mask)]
        if cell == np.uint64(0):
            if done >= goal:
                break
        elif cell & DENSE != DENSE:
            _place(table, shift, cell)
        done += _ONE
    if done == size:
        # What came since the beginning may have run on past the end, among cells that were moved long ago.
        at = start
        while old[np.int64(at)] != np.uint64(0):
            cell = old[np.int64(at)]
            if cell & DENSE != DENSE and is_in_old(cell, old, old_shift, start, moved):
                _place(table, shift, cell)
            at = (at + _ONE) & mask
    store_release(header, MOVED, done)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def moved_of(header: Words, old: Words) -> np.uint64:
    """How much of the old table has been moved; all of it, where there is none."""
    return np.uint64(load_acquire(header, MOVED)) if old.size > 2 else np.uint64(2)
