"""What the vertex index's kernels are made of: the hashes of ids, and whether two strings are the same.

The hash of an integer is a seeded two-round multiply and xor-shift mix (the form of MurmurHash3's finaliser,
with the seeds between the rounds, so that whoever chooses ids cannot choose collisions); strings are taken in
words of eight bytes, each mixed in by one multiplication.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from ..intrinsics import load_word

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

_MIX_1 = np.uint64(0xFF51_AFD7_ED55_8CCD)
_MIX_2 = np.uint64(0xC4CE_B9FE_1A85_EC53)
_MIX_3 = np.uint64(0x9E37_79B9_7F4A_7C15)
_S29 = np.uint64(29)
_S32 = np.uint64(32)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def hash_int(value: np.int64, seed_0: np.uint64, seed_1: np.uint64) -> np.uint64:
    """64 well-mixed bits of one integer."""
    h = (np.uint64(value) ^ seed_0) * _MIX_1
    h = (h ^ (h >> _S32) ^ seed_1) * _MIX_2
    h = (h ^ (h >> _S29)) * _MIX_3
    return np.uint64(h ^ (h >> _S32))


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _last_word(data: Bytes, start: int, end: int) -> np.uint64:
    """The bytes after the last whole word; of longer strings with some before them, which harms nobody."""
    if end - start >= 8:
        return np.uint64(load_word(data, np.int64(end - 8)))
    word = np.uint64(0)
    for i in range(end - start):
        word |= np.uint64(data[start + i]) << np.uint64(8 * i)
    return word


@nb.njit(cache=True, nogil=True, error_model="numpy")
def hash_bytes(data: Bytes, start: int, end: int, seed_0: np.uint64, seed_1: np.uint64) -> np.uint64:
    """64 well-mixed bits of ``data[start:end]``; the length counts, so zero bytes at the end matter."""
    h = seed_0 ^ (np.uint64(end - start) * _MIX_3)
    at = start
    while at + 8 < end:
        h = (h ^ load_word(data, np.int64(at))) * _MIX_1
        h ^= h >> _S32
        at += 8
    h = (h ^ _last_word(data, start, end)) * _MIX_1
    h = (h ^ (h >> _S32) ^ seed_1) * _MIX_2
    h = (h ^ (h >> _S29)) * _MIX_3
    return np.uint64(h ^ (h >> _S32))


@nb.njit(cache=True, nogil=True, error_model="numpy")
def equal_bytes(left: Bytes, left_start: int, right: Bytes, right_start: int, length: int) -> bool:
    """Whether so many bytes are the same here and there."""
    at = 0
    while at + 8 < length:
        if load_word(left, np.int64(left_start + at)) != load_word(right, np.int64(right_start + at)):
            return False
        at += 8
    here = _last_word(left, left_start, left_start + length)
    return bool(here == _last_word(right, right_start, right_start + length))
