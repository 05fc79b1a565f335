"""Records as a batch of Kafka has them, compiled: the client's own way takes 20 us a record, all under the
interpreter's lock (``benchmarks/results_out.py``)."""

from __future__ import annotations

from collections.abc import Iterator

import numba as nb
import numpy as np
import numpy.typing as npt

from .records import Chunk, Packed

BATCH_BYTES = 1 << 18
"""About so large are batches before they are compressed; a topic takes 1 MiB, unless it is told otherwise."""

_OVERHEAD = 24
"""At most: six numbers of variable length, of up to five bytes in all but two."""

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


def batches(chunk: Chunk, partitions: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, bytes]]:
    """A chunk's records by partition (int32[n]): the partition, how many records, and these as in a batch (message
    format 2, https://kafka.apache.org/documentation/#record), numbered from 0, of the batch's own time."""
    values = chunk.values
    keys, tombstones = chunk.keys, values is None
    packed = Packed(np.empty(0, np.uint8), np.zeros(len(keys) + 1, np.int64)) if values is None else values
    sizes = np.diff(keys.offsets) + np.diff(packed.offsets) + _OVERHEAD
    order = np.argsort(partitions, kind="stable")
    placed = partitions[order]
    for partition in np.unique(placed).tolist():
        rows = order[np.searchsorted(placed, partition) : np.searchsorted(placed, partition, side="right")]
        full = np.cumsum(sizes[rows]) // BATCH_BYTES
        for part in np.split(rows, np.flatnonzero(np.diff(full)) + 1):
            out = np.empty(int(sizes[part].sum()), np.uint8)
            length = _pack(keys.data, keys.offsets, packed.data, packed.offsets, tombstones, part, out)
            yield partition, part.size, out[:length].tobytes()


def warm_up() -> None:
    """Compile the kernel, or load it from the cache."""
    none = np.zeros(2, np.int64)
    # Data of messages is read-only where it comes from bytes, and is not where it was computed.
    for keys in (np.empty(0, np.uint8), np.frombuffer(b"", np.uint8)):
        for values in (np.empty(0, np.uint8), np.frombuffer(b"", np.uint8)):
            _pack(keys, none, values, none, True, np.zeros(1, np.int64), np.empty(_OVERHEAD, np.uint8))


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _size(number: np.uint64) -> int:
    size = 1
    while number >= 128:
        number >>= np.uint64(7)
        size += 1
    return size


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _number(out: Bytes, at: int, number: np.uint64) -> int:
    while number >= 128:
        out[at] = (number & np.uint64(127)) | np.uint64(128)
        number >>= np.uint64(7)
        at += 1
    out[at] = number
    return at + 1


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _pack(
    keys: Bytes,
    key_offsets: Offsets,
    values: Bytes,
    value_offsets: Offsets,
    tombstones: bool,
    rows: npt.NDArray[np.int64],
    out: Bytes,
) -> int:
    """Signed numbers are doubled (zigzag): that of a tombstone's length, -1, is 1."""
    at = 0
    for i in range(rows.size):
        row = rows[i]
        key, n_key = key_offsets[row], key_offsets[row + 1] - key_offsets[row]
        value, n_value = value_offsets[row], value_offsets[row + 1] - value_offsets[row]
        delta, key_size = np.uint64(2 * i), np.uint64(2 * n_key)
        value_size = np.uint64(1) if tombstones else np.uint64(2 * n_value)
        length = 3 + _size(delta) + _size(key_size) + n_key + _size(value_size) + n_value
        at = _number(out, at, np.uint64(2 * length))
        out[at] = 0  # attributes
        out[at + 1] = 0  # time since the batch's
        at = _number(out, at + 2, delta)
        at = _number(out, at, key_size)
        for byte in range(n_key):
            out[at + byte] = keys[key + byte]
        at = _number(out, at + n_key, value_size)
        for byte in range(n_value):
            out[at + byte] = values[value + byte]
        at += n_value
        out[at] = 0  # headers
        at += 1
    return at
