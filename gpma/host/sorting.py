"""Putting a batch in order: divided into ranges of keys, each sorted by a stable radix sort; the last writer of
each key wins.

Only bits that differ somewhere in the batch are sorted. Keys are ``src << 32 | dst`` over dense ids, so both
halves have a run of leading bits that all keys share; leaving those out turns 64 bits into about twice the
logarithm of the number of vertices, which halves the passes. The bits that this saves hold the position of the
update in the batch, if they are enough; otherwise positions move along in an array of their own.

The ranges lie between *splitters*, keys of a sorted sample, as in a sample sort (Sanders, Winkel: Super scalar
sample sort, ESA 2004): each update finds its range by a search without branches, and goes to its place there,
which the counts of each chunk of the batch tell. A range is sorted within a cache, and by the bits in which its
own keys differ. Chunks and ranges are worked on by any threads; a lone one takes all for one range.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..edges import HALF, LOW, Int, Keys, Ops, Weights
from ..intrinsics import inner
from .arrays import Updates

# Up to here insertion beats counting.
INSERTION_MAX = 40
# From here on the wider histogram is paid back by the passes that it saves.
WIDE_DIGITS_MIN = 6000
NARROW_DIGIT_BITS = 8
WIDE_DIGIT_BITS = 11
# Keys looked at for each splitter.
SAMPLED = 32

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
    high_bits: Int
    low_bits: Int
    position_bits: Int


class SortScratch(NamedTuple):
    """Work arrays of a sort of up to n updates: two copies each of uint64[n] words and uint32[n] positions."""

    words: Keys
    other_words: Keys
    positions: Positions
    other_positions: Positions


@inner
def bit_length(word: Int) -> Int:
    """How many bits a number (uint64) has without leading zeros."""
    bits = np.int64(0)
    while word != _ZERO:
        word >>= _ONE
        bits += 1
    return bits


@inner
def packing_of(key: Int, differing: Int, n: Int) -> Packing:
    """For n updates, of which one has this key, and others differ from it in these bits."""
    high_bits, low_bits = bit_length(differing >> HALF), bit_length(differing & LOW)
    varying = (((_ONE << np.uint64(high_bits)) - _ONE) << HALF) | ((_ONE << np.uint64(low_bits)) - _ONE)
    position_bits = bit_length(np.uint64(n - 1))
    if high_bits + low_bits + position_bits > 64:
        position_bits = np.int64(0)
    return Packing(key & ~varying, high_bits, low_bits, position_bits)


@inner
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


@inner
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


@inner
def _radix_sort(
    words: Keys, positions: Positions, other_words: Keys, other_positions: Positions, low: Int, n_bits: Int
) -> bool:
    """Sort words (with positions, if any) by their bits low..low + n_bits; True if the others have the result."""
    n = words.size
    if n_bits == 0:
        return False
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


@inner
def survey(keys: Keys, begin: Int, end: Int) -> tuple[Int, Int, bool]:
    """Of keys begin..end: (bits in which they differ from the first of all, the largest one, whether each is at
    least the one before it)."""
    differing = _ZERO
    largest = _ZERO
    ordered = True
    first = keys[0]
    previous = keys[np.uintp(max(begin - 1, np.int64(0)))]
    for i in range(begin, end):
        key = keys[np.uintp(i)]
        differing |= key ^ first
        largest = max(largest, key)
        ordered &= previous <= key
        previous = key
    return differing, largest, ordered


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _packed(key: Int, high_mask: Int, low_bits: Int, low_mask: Int) -> Int:
    return (((key >> HALF) & high_mask) << low_bits) | (key & low_mask)


@inner
def choose_splitters(keys: Keys, packing: Packing, scratch: SortScratch, splitters: Keys) -> None:
    """Ascending words without positions that divide these keys in about equal ranges, of which there are a power
    of two. The first words of the scratch are overwritten."""
    n_ranges = np.int64(splitters.size + 1)
    each = min(np.int64(keys.size) // n_ranges, np.int64(SAMPLED))
    n = n_ranges * each
    # An odd step, so that both directions of undirected edges, which take turns, are seen.
    step = (keys.size // n) | 1
    low_bits = np.uint64(packing.low_bits)
    low_mask, high_mask = (_ONE << low_bits) - _ONE, (_ONE << np.uint64(packing.high_bits)) - _ONE
    words, other_words = scratch.words[:n], scratch.other_words[:n]
    for x in range(n):
        words[x] = _packed(keys[(x * step) % keys.size], high_mask, low_bits, low_mask)
    none = scratch.positions[:0]
    if _radix_sort(words, none, other_words, none, np.int64(0), packing.high_bits + packing.low_bits):
        words = other_words
    for x in range(n_ranges - 1):
        splitters[x] = words[(x + 1) * each]


@inner
def key_of(word: Int, packing: Packing) -> Int:
    """The key of a word without position."""
    low_bits = np.uint64(packing.low_bits)
    return packing.shared | ((word >> low_bits) << HALF) | (word & ((_ONE << low_bits) - _ONE))


@inner
def first_word_from(key: Int, packing: Packing) -> Int:
    """The word without position from which on words are those of keys that are not below this one, which is at
    most the largest that there can be."""
    low_bits, high_bits = np.uint64(packing.low_bits), np.uint64(packing.high_bits)
    low_mask, high_mask = (_ONE << low_bits) - _ONE, (_ONE << high_bits) - _ONE
    src, dst = key >> HALF, key & LOW
    shared_src, shared_dst = packing.shared >> HALF, packing.shared & LOW
    if src < shared_src:
        return _ZERO
    word = (src & high_mask) << low_bits
    if dst > shared_dst | low_mask:
        return word + low_mask + _ONE
    return word | (dst & low_mask if dst > shared_dst else _ZERO)


@inner
def search_tree(ascending: Keys, tree: Keys) -> None:
    """Put 2 ** k - 1 ascending words into a search tree: the root is the first one, and the children of ``x`` are
    ``2 * x + 1`` and ``2 * x + 2``."""
    n_ranges = np.int64(ascending.size + 1)
    level = np.int64(1)
    while level < n_ranges:
        for x in range(level):
            tree[level - 1 + x] = ascending[(2 * x + 1) * (n_ranges // (2 * level)) - 1]
        level *= 2


@inner
def count_ranges(
    keys: Keys, begin: Int, end: Int, packing: Packing, splitters: Keys, ranges: Ops, counts: Positions
) -> None:
    """Note in ``ranges`` (uint8) to which one each of keys begin..end belongs, and count them by range;
    ``splitters``: a search tree."""
    low_bits = np.uint64(packing.low_bits)
    low_mask, high_mask = (_ONE << low_bits) - _ONE, (_ONE << np.uint64(packing.high_bits)) - _ONE
    n = np.int64(splitters.size)
    for i in range(begin, end):
        word = _packed(keys[np.uintp(i)], high_mask, low_bits, low_mask)
        at = np.int64(0)
        while at < n:  # a sum, where a processor would guess at a branch
            at = 2 * at + 1 + np.int64(splitters[np.uintp(at)] <= word)
        ranges[np.uintp(i)] = np.uint8(at - n)
        counts[np.uintp(at - n)] += np.uint32(1)


@inner
def deal(
    keys: Keys, begin: Int, end: Int, packing: Packing, ranges: Ops, cursors: Positions, scratch: SortScratch
) -> None:
    """Pack keys begin..end and their positions into words, each at the next place of its range (``cursors``)."""
    low_bits, position_bits = np.uint64(packing.low_bits), np.uint64(packing.position_bits)
    low_mask, high_mask = (_ONE << low_bits) - _ONE, (_ONE << np.uint64(packing.high_bits)) - _ONE
    words, positions = scratch.words, scratch.positions
    apart = packing.position_bits == 0
    for i in range(begin, end):
        word = _packed(keys[np.uintp(i)], high_mask, low_bits, low_mask)
        chosen = np.uintp(ranges[np.uintp(i)])
        to = np.uintp(cursors[chosen])
        cursors[chosen] += np.uint32(1)
        if apart:
            words[to] = word
            positions[to] = np.uint32(i)
        else:
            words[to] = (word << position_bits) | np.uint64(i)


@inner
def pack_words(keys: Keys, packing: Packing, scratch: SortScratch) -> None:
    """Pack all keys and their positions into words, in their order."""
    low_bits, position_bits = np.uint64(packing.low_bits), np.uint64(packing.position_bits)
    low_mask, high_mask = (_ONE << low_bits) - _ONE, (_ONE << np.uint64(packing.high_bits)) - _ONE
    words, positions = scratch.words, scratch.positions
    apart = packing.position_bits == 0
    for i in range(keys.size):
        word = _packed(keys[np.uintp(i)], high_mask, low_bits, low_mask)
        if apart:
            words[np.uintp(i)] = word
            positions[np.uintp(i)] = np.uint32(i)
        else:
            words[np.uintp(i)] = (word << position_bits) | np.uint64(i)


@inner
def varying_bits(packing: Packing, scratch: SortScratch, begin: Int, end: Int) -> Int:
    """Up to which bit, counted from the lowest one of the keys, words begin..end differ."""
    words = scratch.words
    differing = _ZERO
    for i in range(begin, end):
        differing |= words[np.uintp(i)] ^ words[np.uintp(begin)]
    return bit_length(differing >> np.uint64(packing.position_bits))


@inner
def sort_range(packing: Packing, scratch: SortScratch, begin: Int, end: Int, n_bits: Int) -> bool:
    """Sort words begin..end by so many bits of their keys; whether the result is in the other words.

    Stable least-significant-digit radix sort (Knuth, TAOCP 3, 5.2.5).
    """
    words, other_words = scratch.words[begin:end], scratch.other_words[begin:end]
    positions, other_positions = scratch.positions[begin:end], scratch.other_positions[begin:end]
    if packing.position_bits > 0:
        positions, other_positions = positions[:0], other_positions[:0]
    if words.size <= INSERTION_MAX:
        _insertion_sort(words, positions, np.uint64(packing.position_bits))
        return False
    return _radix_sort(words, positions, other_words, other_positions, packing.position_bits, n_bits)


@inner
def count_distinct(packing: Packing, scratch: SortScratch, flipped: bool, begin: Int, end: Int) -> Int:
    """How many keys sorted words begin..end have."""
    words = scratch.other_words if flipped else scratch.words
    low = np.uint64(packing.position_bits)
    distinct = np.int64(end > begin)
    for i in range(begin + 1, end):
        distinct += np.int64(words[np.uintp(i)] >> low != words[np.uintp(i - 1)] >> low)
    return distinct


@inner
def compact(
    packing: Packing,
    scratch: SortScratch,
    flipped: bool,
    begin: Int,
    end: Int,
    batch: Arrivals,
    updates: Updates,
    to: Int,
) -> Int:
    """Write the last update of each key among sorted words begin..end to the updates from ``to`` on; returns where
    they end."""
    ops, weights = batch.ops, batch.weights
    out_keys, out_ops, out_weights = updates.keys, updates.ops, updates.weights
    words = scratch.other_words if flipped else scratch.words
    positions = scratch.other_positions if flipped else scratch.positions
    low_bits, position_bits = np.uint64(packing.low_bits), np.uint64(packing.position_bits)
    low_mask = (_ONE << low_bits) - _ONE
    position_mask = (_ONE << position_bits) - _ONE
    apart = packing.position_bits == 0
    shared = packing.shared
    for i in range(begin, end):
        word = words[np.uintp(i)] >> position_bits
        if i + 1 < end and words[np.uintp(i + 1)] >> position_bits == word:
            continue
        position = np.uintp(positions[np.uintp(i)] if apart else words[np.uintp(i)] & position_mask)
        out_keys[np.uintp(to)] = shared | ((word >> low_bits) << HALF) | (word & low_mask)
        out_ops[np.uintp(to)] = ops[position]
        if out_weights.size:
            out_weights[np.uintp(to)] = weights[position] if weights.size else np.float32(1.0)
        to += 1
    return to


@inner
def count_last(keys: Keys, begin: Int, end: Int) -> Int:
    """How many of ascending keys begin..end are the last of their value."""
    last = np.int64(0)
    for i in range(begin, end):
        last += np.int64(i + 1 == keys.size or keys[np.uintp(i)] != keys[np.uintp(i + 1)])
    return last


@inner
def compact_ordered(batch: Arrivals, begin: Int, end: Int, updates: Updates, to: Int) -> Int:
    """As ``compact``, of updates begin..end of a batch that came in ascending order."""
    keys, ops, weights = batch.keys, batch.ops, batch.weights
    out_keys, out_ops, out_weights = updates.keys, updates.ops, updates.weights
    for i in range(begin, end):
        if i + 1 < keys.size and keys[np.uintp(i)] == keys[np.uintp(i + 1)]:
            continue
        out_keys[np.uintp(to)] = keys[np.uintp(i)]
        out_ops[np.uintp(to)] = ops[np.uintp(i)]
        if out_weights.size:
            out_weights[np.uintp(to)] = weights[np.uintp(i)] if weights.size else np.float32(1.0)
        to += 1
    return to
