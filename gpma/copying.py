"""Copies of columns, whole or in part; long ones are shared among threads, one of which moves less than the memory
can."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from .drawing import drawn_by
from .edges import Int, Keys, Offsets, Vertices, frozen
from .intrinsics import uncounted_inner
from .team import ALONE, Crew, at_most, share

# Columns of so many bytes are copied by several threads, in pieces of so many words of 8 bytes: some 10 us each.
SHARED_BYTES, PIECE = 1 << 20, 1 << 14

# And so many of their entries, which lie anywhere; NumPy has copied fewer than FEW before a call is under way.
ENTRIES, FEW = 1 << 13, 256

_WORD = 8
_WORDS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def copy_column(to: npt.NDArray[Any], from_: npt.NDArray[Any], crew: Crew) -> None:
    """Make the entries of one column those of another one of its type and length."""
    is_shared = from_.nbytes >= SHARED_BYTES and from_.flags.c_contiguous and to.flags.c_contiguous
    n_words = from_.nbytes // _WORD if is_shared else 0
    n_copied = n_words * _WORD // from_.itemsize
    if n_words:
        _copy_words(to[:n_copied].view(np.uint64), frozen(from_[:n_copied].view(np.uint64)), crew)
    to[n_copied:] = from_[n_copied:]


def copy_entries(to: npt.NDArray[Any], from_: npt.NDArray[Any], at: Vertices, crew: Crew) -> None:
    """``to[at] = from_[at]``, of columns of one type, for dense ids uint32[k]: without the temporary column and
    the cast of ids, which take most of the time that NumPy needs for it. On an error some entries are copied.

    Raises:
        IndexError: one of them has no such entry.
    """
    if at.size < FEW or not (to.flags.c_contiguous and from_.flags.c_contiguous):
        to[at] = from_[at]
        return
    at = np.ascontiguousarray(at, np.uint32)
    word = _WORDS[to.itemsize]
    if not _copy_entries(to.view(word), frozen(from_.view(word)), frozen(at), crew):
        raise IndexError(f"entry {int(at.max())} of columns of {to.size} and {from_.size}")


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _copy_entries(to: npt.NDArray[Any], from_: npt.NDArray[Any], at: Vertices, crew: Crew) -> bool:
    n_pieces = np.int64((at.size + ENTRIES - 1) // ENTRIES)
    cursor = np.zeros(2, np.int64)
    share(at_most(crew, n_pieces), _copy_listed, (to, from_, at, cursor))
    return bool(cursor[1] == 0)


@uncounted_inner
def _copy_listed(
    thread: Int, to: npt.NDArray[Any], from_: npt.NDArray[Any], at: Vertices, cursor: Offsets
) -> None:
    """``cursor``: int64[2], the next piece, and whether there was an entry that is not there."""
    n = min(to.size, from_.size)
    for begin in drawn_by(cursor, at.size, ENTRIES):
        for k in range(begin, min(begin + ENTRIES, np.int64(at.size))):
            i = np.uintp(at[np.uintp(k)])
            if i >= n:
                cursor[1] = 1
                return
            to[i] = from_[i]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _copy_words(to: Keys, from_: Keys, crew: Crew) -> None:
    n_pieces = np.int64((from_.size + PIECE - 1) // PIECE)
    share(at_most(crew, n_pieces), _copy_pieces, (to, from_, np.zeros(1, np.int64)))


@uncounted_inner
def _copy_pieces(thread: Int, to: Keys, from_: Keys, cursor: Offsets) -> None:
    for begin in drawn_by(cursor, from_.size, PIECE):
        for i in range(begin, min(begin + PIECE, np.int64(from_.size))):
            to[np.uintp(i)] = from_[np.uintp(i)]


def warm_up() -> None:
    """Compile what columns take, or load it from the cache."""
    _copy_words(np.empty(1, np.uint64), frozen(np.ones(1, np.uint64)), ALONE)
    for word in _WORDS.values():
        copy_entries(np.zeros(1, word), np.ones(1, word), np.zeros(FEW, np.uint32), ALONE)
