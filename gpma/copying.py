"""Copies of columns; those of long ones are shared among threads, one of which moves less than the memory can."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from .atomics import fetch_add
from .edges import Int, Keys, Offsets, frozen
from .intrinsics import uncounted_inner
from .team import ALONE, Crew, at_most, share

# Columns of so many bytes are copied by several threads, in pieces of so many words of 8 bytes: some 10 us each.
SHARED_BYTES, PIECE = 1 << 20, 1 << 14

_WORD = 8


def copy_column(to: npt.NDArray[Any], from_: npt.NDArray[Any], crew: Crew) -> None:
    """Make the entries of one column those of another one of its type and length."""
    is_shared = from_.nbytes >= SHARED_BYTES and from_.flags.c_contiguous and to.flags.c_contiguous
    n_words = from_.nbytes // _WORD if is_shared else 0
    n_copied = n_words * _WORD // from_.itemsize
    if n_words:
        _copy_words(to[:n_copied].view(np.uint64), frozen(from_[:n_copied].view(np.uint64)), crew)
    to[n_copied:] = from_[n_copied:]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _copy_words(to: Keys, from_: Keys, crew: Crew) -> None:
    n_pieces = np.int64((from_.size + PIECE - 1) // PIECE)
    share(at_most(crew, n_pieces), _copy_pieces, (to, from_, np.zeros(1, np.int64)))


@uncounted_inner
def _copy_pieces(thread: Int, to: Keys, from_: Keys, cursor: Offsets) -> None:
    while True:
        begin = PIECE * fetch_add(cursor, 0, np.int64(1))
        if begin >= from_.size:
            return
        for i in range(begin, min(begin + PIECE, np.int64(from_.size))):
            to[np.uintp(i)] = from_[np.uintp(i)]


def warm_up() -> None:
    """Compile what long columns take, or load it from the cache."""
    _copy_words(np.empty(1, np.uint64), frozen(np.ones(1, np.uint64)), ALONE)
