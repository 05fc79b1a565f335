"""To which partition an edge belongs.

Updates of one pair must come through one partition, in order. So an edge is placed by Kafka's default
partitioner (murmur2) over its src: the 8-byte little-endian integer, or the UTF-8 of a string. Producers place
edges so, and ingest checks some of them.
"""

from __future__ import annotations

from typing import Literal

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.index.ids import IdColumn, IntColumn, StringColumn

_SEED, _M, _MASK = np.uint64(0x9747B28C), np.uint64(0x5BD1E995), np.uint64(0xFFFF_FFFF)
_13, _15, _24, _32 = np.uint64(13), np.uint64(15), np.uint64(24), np.uint64(32)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _mix(h: np.uint64, k: np.uint64) -> np.uint64:
    k = (k * _M) & _MASK
    k ^= k >> _24
    k = (k * _M) & _MASK
    return ((h * _M) & _MASK) ^ k


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _finish(h: np.uint64) -> np.uint64:
    h ^= h >> _13
    h = (h * _M) & _MASK
    return (h ^ (h >> _15)) & np.uint64(0x7FFF_FFFF)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _place_integers(ids: IntColumn, partitions: int) -> npt.NDArray[np.int32]:
    placed = np.empty(ids.size, np.int32)
    for i in range(ids.size):
        word = np.uint64(ids[i])
        h = _mix(_mix(_SEED ^ np.uint64(8), word & _MASK), word >> _32)
        placed[i] = _finish(h) % np.uint64(partitions)
    return placed


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _place_strings(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], partitions: int
) -> npt.NDArray[np.int32]:
    placed = np.empty(offsets.size - 1, np.int32)
    for i in range(placed.size):
        start, stop = offsets[i], offsets[i + 1]
        length = stop - start
        whole = start + (length & ~3)
        h = _SEED ^ np.uint64(length)
        for at in range(start, whole, 4):
            word = np.uint64(0)
            for byte in range(4):
                word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
            h = _mix(h, word)
        if whole < stop:
            for at in range(whole, stop):
                h ^= np.uint64(data[at]) << np.uint64(8 * (at - whole))
            h = (h * _M) & _MASK
        placed[i] = _finish(h) % np.uint64(partitions)
    return placed


def partition_of(ids: IdColumn, partitions: int) -> npt.NDArray[np.int32]:
    """int32[n]: the partition of each src, as Kafka's default partitioner places it as a key.

    The hash is MurmurHash2 (Appleby, 2008) with the seed and sign bit of Kafka's Java client.
    """
    if isinstance(ids, StringColumn):
        return _place_strings(ids.data, ids.offsets, partitions)
    return _place_integers(np.ascontiguousarray(ids, np.int64), partitions)


def warm_up(vertex_ids: Literal["int", "string"]) -> None:
    """Compile the placement of such ids, or load it from the cache."""
    partition_of(np.zeros(1, np.int64) if vertex_ids == "int" else StringColumn.of(["a"]), 1)
