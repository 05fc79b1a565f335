"""In-arcs in order, from out-arcs in order: what a load needs of the other orientation.

Out-arcs ascend by tail and then by head. Moved stably to the places of their heads, they ascend by head and then
by tail, so only heads are sorted: by their upper bits into buckets, and within each bucket, which stays in a
cache, by the lower ones. Weights travel along. Both passes are divided between two threads.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from ..edges import HALF, LOW, EdgeList, Int, Keys, Offsets, Weights
from ..threads import Pair

# Of the first pass; more places to write to at once than a processor remembers pages cost a miss each.
BUCKET_BITS_MAX = 11


def transposed(edges: EdgeList, *, weighted: bool, pair: Pair) -> EdgeList:
    """These arcs (keys ascending) seen from their heads, keys ascending; ``weighted``: with their weights.

    Of arcs in any order, those with one head keep theirs.

    Raises:
        MemoryError: there is not enough.
    """
    keys = np.ascontiguousarray(edges.keys)
    kept = edges.weights is not None and weighted
    weights = np.ascontiguousarray(edges.weights) if kept else np.empty(0, np.float32)
    n, half = keys.size, keys.size // 2
    bits = int((keys & LOW).max(initial=0)).bit_length()
    low_bits = bits - min(BUCKET_BITS_MAX, (bits + 1) // 2)
    counts = np.zeros((2, 1 << (bits - low_bits)), np.int64)

    def count(part: int, begin: int, end: int) -> None:
        count_buckets(keys, begin, end, low_bits, counts[part])

    pair.run(lambda: count(0, 0, half), lambda: count(1, half, n))
    # A bucket begins with what the first part of the edges has for it.
    places = (np.cumsum(counts.T) - counts.T.ravel()).reshape(-1, 2)
    bounds = np.append(places[:, 0], n)
    cursors = np.ascontiguousarray(places.T)
    spread_keys, spread_weights = np.empty_like(keys), np.empty_like(weights)

    def spread(part: int, begin: int, end: int) -> None:
        fill_buckets(keys, weights, begin, end, low_bits, cursors[part], spread_keys, spread_weights)

    pair.run(lambda: spread(0, 0, half), lambda: spread(1, half, n))
    out_keys, out_weights = np.empty_like(keys), np.empty_like(weights)
    middle, n_buckets = int(np.searchsorted(bounds, half)), bounds.size - 1

    def order(first: int, last: int) -> None:
        order_buckets(spread_keys, spread_weights, bounds, first, last, low_bits, out_keys, out_weights)

    pair.run(lambda: order(0, middle), lambda: order(middle, n_buckets))
    return EdgeList(out_keys, out_weights if kept else None)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def count_buckets(keys: Keys, begin: int, end: int, low_bits: int, counts: Offsets) -> None:
    """How many heads of edges ``begin`` to ``end`` - 1 fall into each bucket."""
    for i in range(begin, end):
        counts[np.uintp((keys[np.uintp(i)] & LOW) >> np.uint64(low_bits))] += np.int64(1)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def fill_buckets(
    keys: Keys,
    weights: Weights,
    begin: int,
    end: int,
    low_bits: int,
    cursors: Offsets,
    to_keys: Keys,
    to_weights: Weights,
) -> None:
    """Move edges, seen from their heads, to the places of their buckets, in their order."""
    for i in range(begin, end):
        key = keys[np.uintp(i)]
        head = key & LOW
        bucket = np.uintp(head >> np.uint64(low_bits))
        to = np.uintp(cursors[bucket])
        cursors[bucket] += np.int64(1)
        to_keys[to] = (head << HALF) | (key >> HALF)
        if weights.size:
            to_weights[to] = weights[np.uintp(i)]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def order_buckets(
    keys: Keys,
    weights: Weights,
    bounds: Offsets,
    first: int,
    last: int,
    low_bits: int,
    to_keys: Keys,
    to_weights: Weights,
) -> None:
    """Put buckets ``first`` to ``last`` - 1 in order, each within its bounds."""
    n_heads = np.int64(1) << np.int64(low_bits)
    cursors = np.empty(n_heads, np.int64)
    for bucket in range(first, last):
        begin, end = bounds[bucket], bounds[bucket + 1]
        if begin == end:
            continue
        cursors[:] = 0
        for i in range(begin, end):
            cursors[_low(keys[np.uintp(i)], n_heads)] += np.int64(1)
        before = begin
        for head in range(n_heads):
            count = cursors[head]
            cursors[head] = before
            before += count
        for i in range(begin, end):
            key = keys[np.uintp(i)]
            low = _low(key, n_heads)
            to = np.uintp(cursors[low])
            cursors[low] += np.int64(1)
            to_keys[to] = key
            if weights.size:
                to_weights[to] = weights[np.uintp(i)]


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _low(key: Int, n_heads: Int) -> np.uintp:
    return np.uintp((key >> HALF) & np.uint64(n_heads - np.int64(1)))
