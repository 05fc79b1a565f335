"""What the vertex index's kernels are made of: the hashes of ids, and how two strings compare.

The hash of an integer is a seeded two-round multiply and xor-shift mix (the form of MurmurHash3's finaliser,
with the seeds between the rounds, so that whoever chooses ids cannot choose collisions). Strings are taken in two
words of eight bytes at a time: each is made unknown by a secret, the two are multiplied, and both halves of the
128-bit product go on (as in wyhash and xxHash's XXH3). What a changed bit does to the product is a multiple of the
other factor, which nobody knows without the seeds; where only the low half went on, the highest bit of a word
would change a known bit of it, and the word behind could change that back.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from ..edges import Int
from ..intrinsics import fold, inner, load_byte, load_word

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

_MIX_1 = np.uint64(0xFF51_AFD7_ED55_8CCD)
_MIX_2 = np.uint64(0xC4CE_B9FE_1A85_EC53)
_MIX_3 = np.uint64(0x9E37_79B9_7F4A_7C15)
_S29 = np.uint64(29)
_S32 = np.uint64(32)
_EIGHT = np.uint64(8)
_ONE = np.uint64(1)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def hash_int(value: Int, seed_0: np.uint64, seed_1: np.uint64) -> np.uint64:
    """64 well-mixed bits of one integer."""
    h = (np.uint64(value) ^ seed_0) * _MIX_1
    h = (h ^ (h >> _S32) ^ seed_1) * _MIX_2
    h = (h ^ (h >> _S29)) * _MIX_3
    return np.uint64(h ^ (h >> _S32))


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _last_word(start: Int, length: Int) -> np.uint64:
    """The bytes after the last whole word; of longer strings with some before them, which harms nobody."""
    if length >= 8:
        return np.uint64(load_word(start + np.uint64(length) - _EIGHT))
    word = np.uint64(0)
    for i in range(length):
        word |= load_byte(start + np.uint64(i)) << np.uint64(8 * i)
    return word


@nb.njit(cache=True, nogil=True, error_model="numpy")
def hash_bytes(start: Int, length: Int, seed_0: np.uint64, seed_1: np.uint64) -> np.uint64:
    """64 well-mixed bits of so many bytes from an address on; their number counts, so zeros at the end matter."""
    h = seed_0 ^ (np.uint64(length) * _MIX_3)
    at = np.uint64(0)
    left = np.int64(length)
    while left > 16:
        h = fold(load_word(start + at) ^ seed_1, load_word(start + at + _EIGHT) ^ h)
        at += np.uint64(16)
        left -= 16
    word = np.uint64(0)
    if left > 8:
        word = load_word(start + at)
    h = fold(word ^ seed_1, _last_word(start, length) ^ h)
    return np.uint64(fold(h ^ seed_1, seed_0 | _ONE))


@nb.njit(cache=True, nogil=True, error_model="numpy")
def equal_bytes(left: Int, right: Int, length: Int) -> bool:
    """Whether so many bytes are the same from both addresses on."""
    at = 0
    while at + 8 < length:
        if load_word(left + np.uint64(at)) != load_word(right + np.uint64(at)):
            return False
        at += 8
    return bool(_last_word(left, length) == _last_word(right, length))


@inner
def less_bytes(left: Int, n_left: Int, right: Int, n_right: Int) -> bool:
    """Whether the bytes from one address on come before those from another, unsigned; a prefix comes first."""
    n = min(n_left, n_right)
    at = 0
    # Whole words, as long as they are the same; the bytes that differ are within the next eight then.
    while at + 8 <= n and load_word(left + np.uint64(at)) == load_word(right + np.uint64(at)):
        at += 8
    while at < n:
        a, b = load_byte(left + np.uint64(at)), load_byte(right + np.uint64(at))
        if a != b:
            return bool(a < b)
        at += 1
    return bool(n_left < n_right)
