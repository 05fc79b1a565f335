"""Putting a batch in order: a stable radix sort, then the last writer of each key wins.

Only bits that differ somewhere in the batch are sorted. Keys are ``src << 32 | dst`` over dense ids, so both
halves have a run of leading bits that all keys share; leaving those out turns 64 bits into about twice the
logarithm of the number of vertices, which halves the passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from .arrays import Int
from .edges import Keys, Ops, Weights

# Up to here insertion beats counting.
INSERTION_MAX = 40
# From here on the wider histogram is paid back by the passes that it saves.
WIDE_DIGITS_MIN = 6000
NARROW_DIGIT_BITS = 8
WIDE_DIGIT_BITS = 11

Positions = npt.NDArray[np.uint32]

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)


class SortScratch(NamedTuple):
    """Work arrays of a sort of up to n updates: two copies each of uint64[n] words and uint32[n] positions."""

    words: Keys
    other_words: Keys
    positions: Positions
    other_positions: Positions


@nb.njit(cache=True, nogil=True, error_model="numpy")
def bit_length(value: Int) -> Int:
    """The number of bits up to the highest one of a uint64."""
    length = np.int64(0)
    while value != _ZERO:
        value >>= _ONE
        length += 1
    return length


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _insertion_sort(words: Keys, positions: Positions, n: Int) -> None:
    for i in range(1, n):
        word = words[i]
        position = positions[i]
        j = i
        while j > 0 and words[j - 1] > word:
            words[j] = words[j - 1]
            positions[j] = positions[j - 1]
            j -= 1
        words[j] = word
        positions[j] = position


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _radix_pass(
    words: Keys,
    positions: Positions,
    to_words: Keys,
    to_positions: Positions,
    offsets: Positions,
    shift: Int,
    mask: Int,
) -> None:
    for i in range(words.size):
        word = words[np.uintp(i)]
        digit = np.uintp((word >> shift) & mask)
        to = np.uintp(offsets[digit])
        offsets[digit] += np.uint32(1)
        to_words[to] = word
        to_positions[to] = positions[np.uintp(i)]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _radix_sort(scratch: SortScratch, n: Int, n_bits: Int) -> bool:
    """Sort scratch.words (with positions) by their low n_bits; True if the result is in the other arrays."""
    digit_max = WIDE_DIGIT_BITS if n >= WIDE_DIGITS_MIN else NARROW_DIGIT_BITS
    passes = (n_bits + digit_max - 1) // digit_max
    digit_bits = (n_bits + passes - 1) // passes
    radix = 1 << digit_bits
    mask = np.uint64(radix - 1)
    words, positions = scratch.words[:n], scratch.positions[:n]
    to_words, to_positions = scratch.other_words[:n], scratch.other_positions[:n]
    # All digits are counted in one reading.
    offsets = np.zeros((passes, radix), np.uint32)
    for i in range(n):
        word = words[np.uintp(i)]
        for digit in range(passes):
            offsets[np.uintp(digit), np.uintp(word & mask)] += np.uint32(1)
            word >>= np.uint64(digit_bits)
    for digit in range(passes):
        before = np.uint32(0)
        for value in range(radix):
            count = offsets[digit, value]
            offsets[digit, value] = before
            before += count
        shift = np.uint64(digit * digit_bits)
        _radix_pass(words, positions, to_words, to_positions, offsets[digit], shift, mask)
        words, to_words = to_words, words
        positions, to_positions = to_positions, positions
    return bool(passes % 2 == 1)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _compact_ordered(
    keys: Keys,
    ops: Ops,
    weights: Weights,
    out_keys: Keys,
    out_inserts: Ops,
    out_weights: Weights,
) -> Int:
    """Last writer wins, for a batch that came in ascending order."""
    n = keys.size
    kept = 0
    for i in range(n):
        if i + 1 < n and keys[i + 1] == keys[i]:
            continue
        out_keys[kept] = keys[i]
        out_inserts[kept] = ops[i]
        if out_weights.size:
            out_weights[kept] = weights[i] if weights.size else np.float32(1.0)
        kept += 1
    return kept


@nb.njit(cache=True, nogil=True, error_model="numpy")
def order_batch(
    keys: Keys,
    ops: Ops,
    weights: Weights,
    scratch: SortScratch,
    out_keys: Keys,
    out_inserts: Ops,
    out_weights: Weights,
) -> Int:
    """Sort a batch by key and keep the last update of each key; returns how many are left.

    ``weights``: float32[n], or float32[0] for inserts that all mean 1.0. ``out_*``: arrays of at least n
    entries (``out_weights`` float32[0] where no weights are wanted). Stable least-significant-digit radix
    sort (Knuth, TAOCP 3, 5.2.5).
    """
    n = keys.size
    differing = _ZERO
    ordered = True
    for i in range(n):
        differing |= keys[i] ^ keys[0]
        ordered &= i == 0 or keys[i - 1] <= keys[i]
    if ordered:
        return _compact_ordered(keys, ops, weights, out_keys, out_inserts, out_weights)
    low_bits = bit_length(differing & _LOW)
    high_bits = bit_length(differing >> _HALF)
    shift = np.uint64(low_bits)
    low_mask = (_ONE << shift) - _ONE
    high_mask = (_ONE << np.uint64(high_bits)) - _ONE
    words = scratch.words
    positions = scratch.positions
    for i in range(n):
        words[i] = (((keys[i] >> _HALF) & high_mask) << shift) | (keys[i] & low_mask)
        positions[i] = np.uint32(i)
    if n <= INSERTION_MAX:
        _insertion_sort(words, positions, n)
    elif _radix_sort(scratch, n, low_bits + high_bits):
        words = scratch.other_words
        positions = scratch.other_positions
    shared = keys[0] & ~((high_mask << _HALF) | low_mask)
    kept = 0
    for i in range(n):
        word = words[i]
        if i + 1 < n and words[i + 1] == word:
            continue
        position = np.uintp(positions[i])
        out_keys[kept] = shared | ((word >> shift) << _HALF) | (word & low_mask)
        out_inserts[kept] = ops[position]
        if out_weights.size:
            out_weights[kept] = weights[position] if weights.size else np.float32(1.0)
        kept += 1
    return kept
