"""In-arcs in order, from out-arcs in order: what a load needs of the other orientation.

Out-arcs ascend by tail and then by head. Moved stably to the places of their heads, they ascend by head and then
by tail, so only heads are sorted: by their upper bits into buckets, and within each bucket, which stays in a
cache, by the lower ones. Weights travel along. Both passes are divided among threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from ..drawing import drawn
from ..edges import HALF, LOW, EdgeList, Int, Keys, Offsets, Weights
from ..intrinsics import inner
from ..team import Crew, at_most, share

# Of the first pass; more places to write to at once than a processor remembers pages cost a miss each.
BUCKET_BITS_MAX = 11
# Edges are counted and dealt in so many chunks at most, each of so many edges at least.
CHUNKS_MAX, CHUNK_EDGES_MIN = 64, 1 << 14


def transposed(edges: EdgeList, *, weighted: bool, crew: Crew) -> EdgeList:
    """These arcs (keys ascending) seen from their heads, keys ascending; ``weighted``: with their weights.

    Of arcs in any order, those with one head keep theirs.

    Raises:
        MemoryError: there is not enough.
    """
    keys = np.ascontiguousarray(edges.keys)
    kept = edges.weights is not None and weighted
    weights = np.ascontiguousarray(edges.weights) if kept else np.empty(0, np.float32)
    n_chunks = min(max(1, keys.size // CHUNK_EDGES_MIN), CHUNKS_MAX)
    between = Arcs(np.empty_like(keys), np.empty_like(weights))
    out = Arcs(np.empty_like(keys), np.empty_like(weights))
    transpose_into(Arcs(keys, weights), n_chunks, between, out, crew)
    return EdgeList(out.keys, out.weights if kept else None)


class Arcs(NamedTuple):
    """``keys`` uint64[n], and ``weights`` float32[n], or none."""

    keys: Keys
    weights: Weights


@nb.njit(cache=True, nogil=True, error_model="numpy")
def transpose_into(arcs: Arcs, n_chunks: Int, between: Arcs, out: Arcs, crew: Crew) -> None:
    """Write the arcs seen from their heads to ``out``; what lies ``between`` is for the way there."""
    keys = arcs.keys
    n = np.int64(keys.size)
    cursor = np.zeros(1, np.int64)
    crew = at_most(crew, n_chunks)
    largest = np.zeros(n_chunks, np.uint64)
    share(crew, _find_largest, (keys, cursor, largest))
    bits = np.int64(0)
    while largest.max() >> np.uint64(bits) > 0:
        bits += 1
    low_bits = bits - min(np.int64(BUCKET_BITS_MAX), (bits + 1) // 2)
    n_buckets = np.int64(1) << (bits - low_bits)
    counts = np.zeros((n_chunks, n_buckets), np.int64)
    cursor[0] = 0
    share(crew, _count_chunks, (keys, low_bits, cursor, counts))
    # A bucket begins with what the first chunk of the edges has for it.
    bounds = np.empty(n_buckets + 1, np.int64)
    before = np.int64(0)
    for bucket in range(n_buckets):
        bounds[bucket] = before
        for chunk in range(n_chunks):
            count = counts[chunk, bucket]
            counts[chunk, bucket] = before
            before += count
    bounds[n_buckets] = n
    cursor[0] = 0
    share(crew, _fill_chunks, (arcs, low_bits, cursor, counts, between))
    cursor[0] = 0
    share(crew, _order_buckets, (between, bounds, low_bits, cursor, out))


@inner
def _find_largest(thread: int, keys: Keys, cursor: Offsets, largest: Keys) -> None:
    """The largest head of each chunk."""
    n, n_chunks = np.int64(keys.size), np.int64(largest.size)
    for chunk in drawn(cursor, n_chunks):
        found = np.uint64(0)
        for i in range(n * chunk // n_chunks, n * (chunk + 1) // n_chunks):
            found = max(found, keys[np.uintp(i)] & LOW)
        largest[chunk] = found


@inner
def _count_chunks(thread: int, keys: Keys, low_bits: int, cursor: Offsets, counts: Offsets) -> None:
    """How many heads of each chunk fall into each bucket."""
    n, n_chunks = np.int64(keys.size), np.int64(counts.shape[0])
    for chunk in drawn(cursor, n_chunks):
        own = counts[chunk]
        for i in range(n * chunk // n_chunks, n * (chunk + 1) // n_chunks):
            own[np.uintp((keys[np.uintp(i)] & LOW) >> np.uint64(low_bits))] += np.int64(1)


@inner
def _fill_chunks(thread: int, arcs: Arcs, low_bits: int, cursor: Offsets, cursors: Offsets, to_arcs: Arcs) -> None:
    """Move the arcs of each chunk, seen from their heads, to the places of their buckets, in their order."""
    keys, weights, to_keys, to_weights = arcs.keys, arcs.weights, to_arcs.keys, to_arcs.weights
    n, n_chunks = np.int64(keys.size), np.int64(cursors.shape[0])
    for chunk in drawn(cursor, n_chunks):
        own = cursors[chunk]
        for i in range(n * chunk // n_chunks, n * (chunk + 1) // n_chunks):
            key = keys[np.uintp(i)]
            head = key & LOW
            bucket = np.uintp(head >> np.uint64(low_bits))
            to = np.uintp(own[bucket])
            own[bucket] += np.int64(1)
            to_keys[to] = (head << HALF) | (key >> HALF)
            if weights.size:
                to_weights[to] = weights[np.uintp(i)]


@inner
def _order_buckets(
    thread: int, arcs: Arcs, bounds: Offsets, low_bits: int, cursor: Offsets, to_arcs: Arcs
) -> None:
    """Put each bucket in order, within its bounds."""
    keys, weights, to_keys, to_weights = arcs.keys, arcs.weights, to_arcs.keys, to_arcs.weights
    n_heads = np.int64(1) << np.int64(low_bits)
    cursors = np.empty(n_heads, np.int64)
    for bucket in drawn(cursor, bounds.size - 1):
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
