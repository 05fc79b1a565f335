"""Putting a batch in order: a stable radix sort, then the last writer of each key wins.

Only bits that differ somewhere in the batch are sorted. Keys are ``src << 32 | dst`` over dense ids, so both
halves have a run of leading bits that all keys share; leaving those out turns 64 bits into about twice the
logarithm of the number of vertices, which halves the passes. The bits that this saves hold the position of the
update in the batch, if they are enough; otherwise positions move along in an array of their own.

A batch may be divided at a pivot into two parts that are sorted side by side. The left part is compacted
towards its end and the right one towards its begin, so that what is left of both lies together.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..edges import HALF, Int, Keys, Ops, Weights
from .arrays import Updates

# Up to here insertion beats counting.
INSERTION_MAX = 40
# From here on the wider histogram is paid back by the passes that it saves.
WIDE_DIGITS_MIN = 6000
NARROW_DIGIT_BITS = 8
WIDE_DIGIT_BITS = 11

Positions = npt.NDArray[np.uint32]

_ONE = np.uint64(1)
_ZERO = np.uint64(0)


class Arrivals(NamedTuple):
    """Updates as they came: ``keys`` uint64, ``ops`` uint8 (1 insert, 0 delete), and ``weights`` float32, none
    where inserts all mean 1.0."""

    keys: Keys
    ops: Ops
    weights: Weights


class Packing(NamedTuple):
    """How keys become words of few bits: from the highest one ``high_bits`` of src, ``low_bits`` of dst and
    ``position_bits`` of the position in the batch (0: positions are kept apart). The other bits of all keys are
    the same, ``shared``."""

    shared: np.uint64
    high_bits: int
    low_bits: int
    position_bits: int

    @classmethod
    def of(cls, key: int, differing: int, n: int) -> Packing:
        """For n updates, of which one has this key, and others differ from it in these bits."""
        high_bits, low_bits = (differing >> 32).bit_length(), (differing & 0xFFFF_FFFF).bit_length()
        varying = (((1 << high_bits) - 1) << 32) | ((1 << low_bits) - 1)
        position_bits = (n - 1).bit_length()
        if high_bits + low_bits + position_bits > 64:
            position_bits = 0
        return cls(np.uint64(key & ~varying), high_bits, low_bits, position_bits)


class SortScratch(NamedTuple):
    """Work arrays of a sort of up to n updates: two copies each of uint64[n] words and uint32[n] positions."""

    words: Keys
    other_words: Keys
    positions: Positions
    other_positions: Positions


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _insertion_sort(words: Keys, positions: Positions, shift: Int) -> None:
    for i in range(1, words.size):
        word = words[i]
        position = positions[i] if positions.size else np.uint32(0)
        j = i
        while j > 0 and (words[j - 1] >> shift) > (word >> shift):
            words[j] = words[j - 1]
            if positions.size:
                positions[j] = positions[j - 1]
            j -= 1
        words[j] = word
        if positions.size:
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
        if positions.size:
            to_positions[to] = positions[np.uintp(i)]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _radix_sort(
    words: Keys, positions: Positions, other_words: Keys, other_positions: Positions, low: Int, n_bits: Int
) -> bool:
    """Sort words (with positions, if any) by their bits low..low + n_bits; True if the others have the result."""
    n = words.size
    digit_max = WIDE_DIGIT_BITS if n >= WIDE_DIGITS_MIN else NARROW_DIGIT_BITS
    passes = (n_bits + digit_max - 1) // digit_max
    digit_bits = (n_bits + passes - 1) // passes
    radix = 1 << digit_bits
    mask = np.uint64(radix - 1)
    # All digits are counted in one reading.
    offsets = np.zeros((passes, radix), np.uint32)
    for i in range(n):
        word = words[np.uintp(i)] >> np.uint64(low)
        for digit in range(passes):
            offsets[np.uintp(digit), np.uintp(word & mask)] += np.uint32(1)
            word >>= np.uint64(digit_bits)
    for digit in range(passes):
        before = np.uint32(0)
        for value in range(radix):
            count = offsets[digit, value]
            offsets[digit, value] = before
            before += count
        shift = np.uint64(low + digit * digit_bits)
        _radix_pass(words, positions, other_words, other_positions, offsets[digit], shift, mask)
        words, other_words = other_words, words
        positions, other_positions = other_positions, positions
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
    """Pack keys and positions into words, those below the pivot first, both parts in their order."""
    low_bits, position_bits = np.uint64(packing.low_bits), np.uint64(packing.position_bits)
    low_mask = (_ONE << low_bits) - _ONE
    high_mask = (_ONE << np.uint64(packing.high_bits)) - _ONE
    words, positions = scratch.words, scratch.positions
    apart = packing.position_bits == 0
    below, above = np.int64(0), np.int64(n_below)
    for i in range(keys.size):
        key = keys[np.uintp(i)]
        first = key < pivot
        to = np.uintp(below if first else above)
        word = (((key >> HALF) & high_mask) << low_bits) | (key & low_mask)
        if apart:
            words[to] = word
            positions[to] = np.uint32(i)
        else:
            words[to] = (word << position_bits) | np.uint64(i)
        below += first
        above += not first


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _compact_ordered(batch: Arrivals, begin: Int, end: Int, updates: Updates) -> Int:
    """Last writer wins in a part that came in ascending order; writes up to ``end``, returns where it begins."""
    keys, ops, weights = batch.keys, batch.ops, batch.weights
    out_keys, out_inserts, out_weights = updates.keys, updates.inserts, updates.weights
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
    words: Keys, positions: Positions, packing: Packing, batch: Arrivals, end: Int, updates: Updates
) -> Int:
    """Last writer wins in a sorted part; writes up to ``end``, returns where it begins."""
    ops, weights = batch.ops, batch.weights
    out_keys, out_inserts, out_weights = updates.keys, updates.inserts, updates.weights
    low_bits, position_bits = np.uint64(packing.low_bits), np.uint64(packing.position_bits)
    low_mask = (_ONE << low_bits) - _ONE
    position_mask = (_ONE << position_bits) - _ONE
    shared = packing.shared
    to = np.int64(end)
    previous = _ZERO
    for i in range(words.size - 1, -1, -1):
        word = words[np.uintp(i)] >> position_bits
        if to < end and word == previous:
            continue
        previous = word
        to -= 1
        position = np.uintp(words[np.uintp(i)] & position_mask)
        if positions.size:
            position = np.uintp(positions[np.uintp(i)])
        out_keys[np.uintp(to)] = shared | ((word >> low_bits) << HALF) | (word & low_mask)
        out_inserts[np.uintp(to)] = ops[position]
        if out_weights.size:
            out_weights[np.uintp(to)] = weights[position] if weights.size else np.float32(1.0)
    return to


@nb.njit(cache=True, nogil=True, error_model="numpy")
def order_part(
    batch: Arrivals,
    ordered: bool,
    packing: Packing,
    scratch: SortScratch,
    begin: Int,
    end: Int,
    updates: Updates,
) -> Int:
    """Sort updates begin..end of a divided batch by key and keep the last one of each; returns where they begin.

    ``updates`` have room for at least ``end``; their keys, inserts and weights are written from the result on up
    to ``end``. Stable least-significant-digit radix sort (Knuth, TAOCP 3, 5.2.5).
    """
    if ordered:
        return _compact_ordered(batch, begin, end, updates)
    words, other_words = scratch.words[begin:end], scratch.other_words[begin:end]
    positions, other_positions = scratch.positions[begin:end], scratch.other_positions[begin:end]
    if packing.position_bits > 0:
        positions, other_positions = positions[:0], other_positions[:0]
    low, n_bits = packing.position_bits, packing.low_bits + packing.high_bits
    if end - begin <= INSERTION_MAX:
        _insertion_sort(words, positions, np.uint64(low))
    elif _radix_sort(words, positions, other_words, other_positions, low, n_bits):
        words, positions = other_words, other_positions
    return _compact(words, positions, packing, batch, end, updates)
