"""A gate for those who read arrays in compiled code: they hold it while they read, and whoever writes shuts it.

A kernel that looks a batch up before it writes shuts it by itself, in between, so that others read on. And
while it writes it may let others read **beside** it what the batch leaves as it is: a row that has none of its
updates, in leaves that nobody moves just then. Such a row is the same before the batch and after it. Who reads so
holds a second lock, which the writer takes for a moment whenever it goes on to other leaves: so what a reader is
told of them is true for as long as it reads.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from .edges import HALF, Int, Keys, Vertices
from .intrinsics import address_of, array_at, inner, lock_to_write, uncounted_inner, unlock
from .sorted_keys import first_at

Gate = npt.NDArray[np.int64]
"""int64[GATE_WORDS]: a lock of the C library (``pthread_rwlock_t``), and at ``IS_SHUT`` whether a writer has it,
which writers alone look at; at ``BESIDE_LOCK`` another one, and what those may read who hold it; or none, where
nobody reads."""

IS_SHUT, BESIDE_LOCK = 15, 16
# Behind that, for out-rows and for in-rows: whether rows may be read, the keys of the batch, in order, and how
# many; where the index of rows is; and of each part of the batch the leaves that are being written: the first one,
# and the one behind the last.
_BESIDE, _PARTS_MAX = 24, 32
_STATE, _KEYS, _N_KEYS, _ROW_LEAF, _N_PARTS, _LEAVES = 0, 1, 2, 3, 4, 8
_SIDE_WORDS = _LEAVES + 2 * _PARTS_MAX
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
def let_beside(gate: Gate, side: Int, keys: Keys, n: Int, row_leaf: Vertices, n_parts: Int) -> None:
    """Let others read beside a batch of these keys (the first n) that is about to be written in so many parts,
    to out-rows (side 0) or in-rows (1)."""
    if gate.size == 0 or n_parts > _PARTS_MAX:
        return
    at = _BESIDE + side * _SIDE_WORDS
    lock_to_write(_beside_lock(gate))
    gate[at + _KEYS], gate[at + _N_KEYS] = np.int64(address_of(keys)), n
    gate[at + _ROW_LEAF], gate[at + _N_PARTS] = np.int64(address_of(row_leaf)), n_parts
    for part in range(n_parts):
        gate[at + _LEAVES + 2 * part] = gate[at + _LEAVES + 2 * part + 1] = 0
    gate[at + _STATE] = _OPEN
    unlock(_beside_lock(gate))


@uncounted_inner
def go_on_to(gate: Gate, side: Int, part: Int, begin: Int, end: Int) -> None:
    """From now on leaves ``begin`` to ``end`` are written of a part, and no others."""
    if gate.size == 0 or part >= _PARTS_MAX:
        return
    at = _BESIDE + side * _SIDE_WORDS + _LEAVES + 2 * part
    lock_to_write(_beside_lock(gate))
    gate[at], gate[at + 1] = begin, end
    unlock(_beside_lock(gate))


@uncounted_inner
def hold_beside(gate: Gate, side: Int) -> bool:
    """Leaves are about to move: let nobody read there beside it until ``let_on``; whether anybody might."""
    if gate.size == 0:
        return False
    at = _BESIDE + side * _SIDE_WORDS + _STATE
    lock_to_write(_beside_lock(gate))
    was_open = gate[at] == _OPEN
    gate[at] = _SHUT
    unlock(_beside_lock(gate))
    return bool(was_open)


@uncounted_inner
def let_on(gate: Gate, side: Int) -> None:
    """They have moved, and rows lie in other leaves as the index of rows says."""
    lock_to_write(_beside_lock(gate))
    gate[_BESIDE + side * _SIDE_WORDS + _STATE] = _OPEN
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
def may_read_beside(gate: Gate, side: Int, row_leaf: Int, u: Int) -> bool:
    """Whether row u of a side is the same before and after the batch, and the leaves it lies in are known by the
    index of rows at this address."""
    at = _BESIDE + side * _SIDE_WORDS
    if gate[at + _STATE] != _OPEN or gate[at + _ROW_LEAF] != row_leaf:
        return False
    keys = array_at(np.uint64(gate[at + _KEYS]), gate[at + _N_KEYS], np.uint64)
    first_key = np.uint64(u) << HALF
    at = first_at(keys, 0, keys.size, first_key)
    return bool(at == keys.size or keys[at] >> HALF != np.uint64(u))


@uncounted_inner
def is_written(gate: Gate, side: Int, leaf: Int) -> bool:
    """Whether a leaf is being written just now."""
    at = _BESIDE + side * _SIDE_WORDS
    for part in range(gate[at + _N_PARTS]):
        if gate[at + _LEAVES + 2 * part] <= leaf < gate[at + _LEAVES + 2 * part + 1]:
            return True
    return False
