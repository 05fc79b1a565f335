"""Putting a batch in order: a stable radix sort, then the last writer of each key wins.

Only bits that differ somewhere in the batch are sorted. Keys are ``src << 32 | dst`` over dense ids, so both
halves have a run of leading bits that all keys share; leaving those out turns 64 bits into about twice the
logarithm of the number of vertices, which halves the passes.

A batch may be divided at a pivot into two parts that are sorted side by side. The left part is compacted
towards its end and the right one towards its begin, so that what is left of both lies together.
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


class Packing(NamedTuple):
    """How keys become words of few bits: ``low_bits`` of dst, above them ``high_bits`` of src; the others are
    the same in the whole batch, ``shared``."""

    shared: np.uint64
    low_bits: int
    high_bits: int

    @classmethod
    def of(cls, key: int, differing: int) -> Packing:
        """For a batch that has this key, and others that differ in these bits."""
        low_bits, high_bits = (differing & 0xFFFF_FFFF).bit_length(), (differing >> 32).bit_length()
        varying = (((1 << high_bits) - 1) << 32) | ((1 << low_bits) - 1)
        return cls(np.uint64(key & ~varying), low_bits, high_bits)


class SortScratch(NamedTuple):
    """Work arrays of a sort of up to n updates: two copies each of uint64[n] words and uint32[n] positions."""

    words: Keys
    other_words: Keys
    positions: Positions
    other_positions: Positions


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _insertion_sort(words: Keys, positions: Positions) -> None:
    for i in range(1, words.size):
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
def _radix_sort(scratch: SortScratch, begin: Int, end: Int, n_bits: Int) -> bool:
    """Sort words[begin:end] (with positions) by their low n_bits; True if the result is in the other arrays."""
    n = end - begin
    digit_max = WIDE_DIGIT_BITS if n >= WIDE_DIGITS_MIN else NARROW_DIGIT_BITS
    passes = (n_bits + digit_max - 1) // digit_max
    digit_bits = (n_bits + passes - 1) // passes
    radix = 1 << digit_bits
    mask = np.uint64(radix - 1)
    words, positions = scratch.words[begin:end], scratch.positions[begin:end]
    to_words, to_positions = scratch.other_words[begin:end], scratch.other_positions[begin:end]
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
def survey(keys: Keys, pivot: Int) -> tuple[Int, Int, Int, bool]:
    """(bits in which keys differ, the largest key, how many are below the pivot, in ascending order already)."""
    differing = _ZERO
    largest = _ZERO
    n_below = np.int64(0)
    ordered = True
    previous = _ZERO
    for i in range(keys.size):
        key = keys[np.uintp(i)]
        differing |= key ^ keys[0]
        largest = max(largest, key)
        n_below += key < pivot
        ordered &= previous <= key
        previous = key
    return differing, largest, n_below, ordered


@nb.njit(cache=True, nogil=True, error_model="numpy")
def divide(keys: Keys, packing: Packing, pivot: Int, n_below: Int, scratch: SortScratch) -> None:
    """Pack the keys into words (with positions), those below the pivot first, both parts in their order."""
    shift = np.uint64(packing.low_bits)
    low_mask = (_ONE << shift) - _ONE
    high_mask = (_ONE << np.uint64(packing.high_bits)) - _ONE
    words, positions = scratch.words, scratch.positions
    below, above = np.int64(0), np.int64(n_below)
    for i in range(keys.size):
        key = keys[np.uintp(i)]
        first = key < pivot
        to = np.uintp(below if first else above)
        words[to] = (((key >> _HALF) & high_mask) << shift) | (key & low_mask)
        positions[to] = np.uint32(i)
        below += first
        above += not first


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _compact_ordered(
    keys: Keys,
    ops: Ops,
    weights: Weights,
    begin: Int,
    end: Int,
    out_keys: Keys,
    out_inserts: Ops,
    out_weights: Weights,
) -> Int:
    """Last writer wins in a part that came in ascending order; writes up to ``end``, returns where it begins."""
    to = np.int64(end)
    for i in range(end - 1, begin - 1, -1):
        if to < end and keys[i] == out_keys[to]:
            continue
        to -= 1
        out_keys[to] = keys[i]
        out_inserts[to] = ops[i]
        if out_weights.size:
            out_weights[to] = weights[i] if weights.size else np.float32(1.0)
    return to


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _compact(
    words: Keys,
    positions: Positions,
    packing: Packing,
    ops: Ops,
    weights: Weights,
    begin: Int,
    end: Int,
    out_keys: Keys,
    out_inserts: Ops,
    out_weights: Weights,
) -> Int:
    """Last writer wins in a sorted part; writes up to ``end``, returns where it begins."""
    shift = np.uint64(packing.low_bits)
    low_mask = (_ONE << shift) - _ONE
    shared = packing.shared
    to = np.int64(end)
    previous = _ZERO
    for i in range(end - 1, begin - 1, -1):
        word = words[np.uintp(i)]
        if to < end and word == previous:
            continue
        previous = word
        to -= 1
        position = np.uintp(positions[np.uintp(i)])
        out_keys[np.uintp(to)] = shared | ((word >> shift) << _HALF) | (word & low_mask)
        out_inserts[np.uintp(to)] = ops[position]
        if out_weights.size:
            out_weights[np.uintp(to)] = weights[position] if weights.size else np.float32(1.0)
    return to


@nb.njit(cache=True, nogil=True, error_model="numpy")
def order_part(
    keys: Keys,
    ops: Ops,
    weights: Weights,
    ordered: bool,
    packing: Packing,
    scratch: SortScratch,
    begin: Int,
    end: Int,
    out_keys: Keys,
    out_inserts: Ops,
    out_weights: Weights,
) -> Int:
    """Sort updates begin..end of a divided batch by key and keep the last one of each; returns where they begin.

    ``weights``: float32[n], or float32[0] for inserts that all mean 1.0. ``out_*``: arrays of at least ``end``
    entries (``out_weights`` float32[0] where no weights are wanted), written from the result on up to ``end``.
    Stable least-significant-digit radix sort (Knuth, TAOCP 3, 5.2.5).
    """
    if ordered:
        return _compact_ordered(keys, ops, weights, begin, end, out_keys, out_inserts, out_weights)
    words, positions = scratch.words, scratch.positions
    if end - begin <= INSERTION_MAX:
        _insertion_sort(words[begin:end], positions[begin:end])
    elif _radix_sort(scratch, begin, end, packing.low_bits + packing.high_bits):
        words, positions = scratch.other_words, scratch.other_positions
    return _compact(words, positions, packing, ops, weights, begin, end, out_keys, out_inserts, out_weights)
