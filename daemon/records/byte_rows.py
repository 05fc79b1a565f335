"""Rows of bytes, of which some are left out: how records of one update each are made of whole columns.

A column of values becomes an array with a row for each, wide enough for the longest, and which of its bytes there
are. Rows are joined from left to right, and cut into one piece each at the end.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from ...gpma.index.ids import StringColumn

Bytes = npt.NDArray[np.uint8]
Rows = tuple[Bytes, npt.NDArray[np.bool_]]
"""uint8[n, width], and which of these bytes there are (bool[n, width])."""

_VARINT_BYTES = 10  # for 64 bits


def constant(text: bytes, n: int) -> Rows:
    """The same in each of n rows."""
    return _all(np.broadcast_to(np.frombuffer(text, np.uint8), (n, len(text))))


def varints(values: npt.NDArray[np.uint64]) -> Rows:
    """Of each number (uint64[n]) seven bits a byte, the lowest first; all but the last say that there are more."""
    groups = values[:, None] >> (7 * np.arange(_VARINT_BYTES, dtype=np.uint64))
    more = np.zeros(groups.shape, bool)
    more[:, :-1] = groups[:, 1:] != 0
    there = np.ones(groups.shape, bool)
    there[:, 1:] = groups[:, 1:] != 0
    return ((groups & np.uint64(0x7F)) | (more.astype(np.uint64) << np.uint64(7))).astype(np.uint8), there


def zigzag(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Numbers whose sign is their lowest bit (uint64[n]), so that those near 0 are short."""
    signed = values.astype(np.int64)
    return ((signed << 1) ^ (signed >> 63)).view(np.uint64)


def floats(values: npt.NDArray[np.float32]) -> Rows:
    """Four bytes each, little-endian."""
    return _all(np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1, 4))


def texts(strings: StringColumn) -> Rows:
    """The bytes of each string, without its length."""
    lengths = strings.lengths
    there = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
    data = np.zeros(there.shape, np.uint8)
    data[there] = strings.data[strings.offsets[0] : strings.offsets[-1]]
    return data, there


def where(given: npt.NDArray[np.bool_], rows: Rows) -> Rows:
    """These rows (bool[n]); nothing in the others."""
    return rows[0], rows[1] & given[:, None]


def joined(*parts: Rows) -> Rows:
    """What follows each other in each row."""
    return np.concatenate([rows for rows, _ in parts], axis=1), np.concatenate([some for _, some in parts], axis=1)


def cut(*parts: Rows) -> list[bytes]:
    """What follows each other in each row, as a piece of bytes."""
    data, there = joined(*parts)
    bounds = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).tolist()
    whole = data[there].tobytes()
    return [whole[begin:end] for begin, end in itertools.pairwise(bounds)]


def _all(rows: Bytes) -> Rows:
    return rows, np.ones(rows.shape, bool)
