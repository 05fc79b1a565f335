"""A gate for those who read arrays in compiled code: they hold it while they read, and whoever writes shuts it.

A kernel that looks a batch up before it writes shuts it by itself, in between, so that others read on. While
it writes it may let others read **beside** it, in leaves that nobody moves just then. A row without updates of
the batch is the same before and after. One with updates is read as it was before (``row_before.py``), unless
the writer *notes* rows just then, which brings degrees and the index of rows up to date. Who reads beside a
writer holds a second lock. The writer takes that for a moment whenever it goes on to other leaves: so what a
reader is told of them is true for as long as it reads.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from .edges import HALF, Int, Keys, Ops, Vertices, Weights
from .intrinsics import address_of, array_at, inner, lock_to_write, uncounted_inner, unlock
from .sorted_keys import first_at

Gate = npt.NDArray[np.int64]
"""int64[GATE_WORDS]: a lock of the C library (``pthread_rwlock_t``), and at ``IS_SHUT`` whether a writer has it,
which writers alone look at; at ``BESIDE_LOCK`` another one, and what those may read who hold it; or none, where
nobody reads."""

IS_SHUT, BESIDE_LOCK = 15, 16
# Behind that, for out-rows and for in-rows: whether rows may be read; where the batch is, in order, by keys, what
# becomes of each and the weights before, and how many they are; where the index of rows is, and how far rows are
# noted; and of each part of the batch the leaves that are being written (the first one, and the one behind the
# last), and which of its updates are written (the same).
_BESIDE, _PARTS_MAX = 24, 128
_STATE, _N_KEYS, _KEYS, _STATUS, _OLD_WEIGHTS, _ROW_LEAF, _NOTED, _N_PARTS, _PARTS = 0, 1, 2, 3, 4, 5, 6, 7, 8
_LEAVES, _WRITTEN, _PART_WORDS = 0, 2, 4
_SIDE_WORDS = _PARTS + _PART_WORDS * _PARTS_MAX
NOT_YET, NOTING, ALL_NOTED = 0, 1, 2
"""Of rows: degrees and index are those of before the batch; who knows; and those of after the batch, but for rows
that begin later by then than where their index points."""
GATE_WORDS = _BESIDE + 2 * _SIDE_WORDS
NO_GATE: Gate = np.empty(0, np.int64)
_SHUT, _OPEN = 0, 1


class BeforeWriting:
    """What comes before anything is written that others might be reading: nothing, as nobody does."""

    def __call__(self) -> None:
        """Return once nobody reads, and nobody may; harmless to repeat."""

    def but_for_gate(self) -> Gate:
        """The same, but for those who read through this gate, the caller's to shut; ``NO_GATE``: nobody does."""
        return NO_GATE

    def end_beside(self) -> None:
        """Nor beside what is written through that gate, from now on: what they read otherwise changes, too."""


NOBODY_READS = BeforeWriting()


@inner
def shut_gate(gate: Gate) -> None:
    """Wait until nobody reads, and let nobody in; harmless to repeat. The same thread opens it."""
    if gate.size > 0 and gate[IS_SHUT] == 0:
        begin: Any = np.int64(address_of(gate))
        lock_to_write(begin)
        gate[IS_SHUT] = 1


# -- who writes -------------------------------------------------------------------------------------------------


@uncounted_inner
def _beside_lock(gate: Gate) -> Int:
    return np.int64(address_of(gate)) + 8 * BESIDE_LOCK


@uncounted_inner
def let_beside(
    gate: Gate, side: Int, keys: Keys, status: Ops, old_weights: Weights, n: Int, row_leaf: Vertices, n_parts: Int
) -> None:
    """Let others read beside a batch that is about to be written in so many parts, or by so many threads, to
    out-rows (side 0) or in-rows (1): its first n updates, in order (``host.arrays.Updates``)."""
    if gate.size == 0 or n_parts > _PARTS_MAX:
        return
    at = _BESIDE + side * _SIDE_WORDS
    lock_to_write(_beside_lock(gate))
    gate[at + _N_KEYS], gate[at + _KEYS] = n, np.int64(address_of(keys))
    gate[at + _STATUS] = np.int64(address_of(status))
    gate[at + _OLD_WEIGHTS] = np.int64(address_of(old_weights))
    gate[at + _ROW_LEAF], gate[at + _NOTED] = np.int64(address_of(row_leaf)), NOT_YET
    gate[at + _N_PARTS] = n_parts
    for word in range(at + _PARTS, at + _PARTS + _PART_WORDS * n_parts):
        gate[word] = 0
    gate[at + _STATE] = _OPEN
    unlock(_beside_lock(gate))


@uncounted_inner
def rows_are(gate: Gate, side: Int, noted: Int) -> None:
    """How far rows are noted from now on (``NOTING``, ``ALL_NOTED``)."""
    if gate.size == 0:
        return
    lock_to_write(_beside_lock(gate))
    gate[_BESIDE + side * _SIDE_WORDS + _NOTED] = noted
    unlock(_beside_lock(gate))


@uncounted_inner
def go_on_to(gate: Gate, side: Int, part: Int, begin: Int, end: Int, first: Int, now: Int) -> None:
    """From now on leaves ``begin`` to ``end`` are written of a part, and no others; of its updates, which begin at
    ``first``, those before ``now`` are."""
    if gate.size == 0 or part >= _PARTS_MAX:
        return
    at = _BESIDE + side * _SIDE_WORDS + _PARTS + _PART_WORDS * part
    lock_to_write(_beside_lock(gate))
    gate[at + _LEAVES], gate[at + _LEAVES + 1] = begin, end
    gate[at + _WRITTEN], gate[at + _WRITTEN + 1] = first, now
    unlock(_beside_lock(gate))


@uncounted_inner
def move_in(gate: Gate, side: Int, thread: Int, begin: Int, end: Int) -> None:
    """All updates are written; from now on a thread moves what is in leaves ``begin`` to ``end``."""
    if gate.size == 0 or thread >= _PARTS_MAX:
        return
    at = _BESIDE + side * _SIDE_WORDS + _PARTS + _PART_WORDS * thread + _LEAVES
    lock_to_write(_beside_lock(gate))
    gate[at], gate[at + 1] = begin, end
    unlock(_beside_lock(gate))


@uncounted_inner
def hold_beside(gate: Gate, side: Int) -> None:
    """Let nobody read there beside the batch any more."""
    if gate.size == 0:
        return
    lock_to_write(_beside_lock(gate))
    gate[_BESIDE + side * _SIDE_WORDS + _STATE] = _SHUT
    unlock(_beside_lock(gate))


@nb.njit(cache=True, nogil=True, error_model="numpy")
def end_beside(gate: Gate) -> None:
    """Wait until nobody reads beside a writer, and let nobody do so: rows move, or change for those who read."""
    for side in range(2):
        hold_beside(gate, np.int64(side))


# -- who reads, with the second lock ----------------------------------------------------------------------------


@uncounted_inner
def is_beside(gate: Gate) -> bool:
    """Whether there is a batch being written beside which rows may be read."""
    return bool(gate[_BESIDE + _STATE] == _OPEN or gate[_BESIDE + _SIDE_WORDS + _STATE] == _OPEN)


@uncounted_inner
def is_open_beside(gate: Gate, side: Int, row_leaf: Int) -> bool:
    """Whether rows of a side may be read, and the leaves that they lie in are known by the index of rows at this
    address."""
    at = _BESIDE + side * _SIDE_WORDS
    return bool(gate[at + _STATE] == _OPEN and gate[at + _ROW_LEAF] == row_leaf)


@uncounted_inner
def how_noted(gate: Gate, side: Int) -> Int:
    """How far rows are noted; while that is ``NOTING``, only those can be read that have no updates."""
    return gate[_BESIDE + side * _SIDE_WORDS + _NOTED]


@uncounted_inner
def updates_from(gate: Gate, side: Int, key: Int) -> Int:
    """The first update of the batch whose key is not smaller."""
    at = _BESIDE + side * _SIDE_WORDS
    keys = array_at(np.uint64(gate[at + _KEYS]), gate[at + _N_KEYS], np.uint64)
    return first_at(keys, np.int64(0), keys.size, key)


@uncounted_inner
def updates_of(gate: Gate, side: Int, u: Int) -> tuple[Int, Int]:
    """Which updates of the batch are of row u: the first one, and the one behind the last."""
    first_key = np.uint64(u) << HALF
    return updates_from(gate, side, first_key), updates_from(gate, side, first_key + (np.uint64(1) << HALF))


@uncounted_inner
def update_key(gate: Gate, side: Int, i: Int) -> Int:
    """The key of an update."""
    at = _BESIDE + side * _SIDE_WORDS
    return array_at(np.uint64(gate[at + _KEYS]), gate[at + _N_KEYS], np.uint64)[i]


@uncounted_inner
def update_status(gate: Gate, side: Int, i: Int) -> Int:
    """What becomes of it (``INSERTED`` ...)."""
    at = _BESIDE + side * _SIDE_WORDS
    return array_at(np.uint64(gate[at + _STATUS]), gate[at + _N_KEYS], np.uint8)[i]


@uncounted_inner
def weight_before(gate: Gate, side: Int, i: Int) -> Int:
    """The weight of its edge before the batch, once it is written."""
    at = _BESIDE + side * _SIDE_WORDS
    return array_at(np.uint64(gate[at + _OLD_WEIGHTS]), gate[at + _N_KEYS], np.float32)[i]


@uncounted_inner
def _is_in_a_part(gate: Gate, side: Int, span: int, i: Int) -> bool:
    """Whether the span of any part (``_LEAVES``, ``_WRITTEN``) has a leaf or an update."""
    at = _BESIDE + side * _SIDE_WORDS
    for part in range(gate[at + _N_PARTS]):
        begin = at + _PARTS + _PART_WORDS * part + span
        if gate[begin] <= i < gate[begin + 1]:
            return True
    return False


@uncounted_inner
def is_update_written(gate: Gate, side: Int, i: Int) -> bool:
    """Whether its leaf is written by now; not asked while it is being written."""
    return _is_in_a_part(gate, side, _WRITTEN, i)


@uncounted_inner
def is_written(gate: Gate, side: Int, leaf: Int) -> bool:
    """Whether a leaf is being written just now."""
    return _is_in_a_part(gate, side, _LEAVES, leaf)
