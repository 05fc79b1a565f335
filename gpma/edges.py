"""Batches of edge updates, and the reports of what they changed, as columns.

An edge between dense vertices is one 64-bit **key**, ``src << 32 | dst``: keys in ascending order are the
rows of an adjacency in order, so one sorted array of keys is the whole structure. Only ``EMPTY_KEY`` is
not an edge, which is why the last dense id, ``NO_VERTEX``, is never given to a vertex.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]
Vertices = npt.NDArray[np.uint32]
Weights = npt.NDArray[np.float32]
Ops = npt.NDArray[np.uint8]
Number = TypeVar("Number", bound=np.integer[Any])

# A scalar inside a kernel: Numba's int64 or uint64, NumPy's or Python's for a type checker.
Int = Any

EMPTY_KEY = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
NO_VERTEX = np.uint32(0xFFFF_FFFF)
MAX_VERTICES = 2**32 - 2
# Positions within a batch are words of 32 bits.
MAX_UPDATES = 2**32 - 1

# The halves of a key, or of any word made of two: ``word >> HALF``, ``word & LOW``, ``word & HIGH``.
HALF = np.uint64(32)
LOW = np.uint64(0xFFFF_FFFF)
HIGH = np.uint64(0xFFFF_FFFF_0000_0000)

# Of weights with a sign, infinities and NaN, the bits of each as a uint32 are at least the first of these.
INFINITY_BITS, MINUS_ZERO_BITS = np.uint32(0x7F80_0000), np.uint32(0x8000_0000)


class Op(IntEnum):
    """What an update does; the values are those of the wire format."""

    DELETE = 0
    INSERT = 1
    INSERT_VERTEX = 2
    DELETE_VERTEX = 3

    def among(self, ops: Ops) -> npt.NDArray[np.bool_]:
        """Which operations of a column are this one: bool[n].

        NumPy takes a member for a number of eight bytes, and then compares a column ten times as slowly.
        """
        found: npt.NDArray[np.bool_] = ops == np.uint8(self)
        return found


# What became of an update; the order of the parts of a ChangeReport.
INSERTED, OVERWRITTEN, DELETED, ABSENT = 0, 1, 2, 3


def pack(src: npt.ArrayLike, dst: npt.ArrayLike) -> Keys:
    """Keys of the edges src[i] -> dst[i] (uint32 columns of one length)."""
    high = np.asarray(src, dtype=np.uint64)
    return (high << HALF) | np.asarray(dst, dtype=np.uint64)


def sources(keys: Keys) -> Vertices:
    """The src of each key."""
    return (keys >> HALF).astype(np.uint32)


def destinations(keys: Keys) -> Vertices:
    """The dst of each key."""
    return keys.astype(np.uint32)


def transpose(keys: Keys) -> Keys:
    """The same edges, seen from their heads: src and dst change places."""
    return (keys << HALF) | (keys >> HALF)


def distinct(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Integers, ascending, each once.

    ``numpy.unique`` hashes (NumPy 2.3 and later), which takes three to twenty times as long as sorting.
    """
    values = np.sort(values)
    fresh = np.ones(values.size, np.bool_)
    np.not_equal(values[1:], values[:-1], out=fresh[1:])
    return values[fresh]


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A contiguous read-only view: for kernels that are compiled for this one form of a column that they read."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True)
class EdgeBatch:
    """Updates in the order in which they were read; of several updates of one pair the last one wins.

    ``keys``: uint64[n]; ``ops``: uint8[n], ``Op.DELETE`` or ``Op.INSERT``; ``weights``: float32[n], or
    None for a batch without weights (every insert then means 1.0).
    """

    keys: Keys
    ops: Ops
    weights: Weights | None = None

    def __post_init__(self) -> None:
        assert self.keys.dtype == np.uint64 and self.ops.dtype == np.uint8
        assert self.keys.shape == self.ops.shape
        assert self.weights is None or self.weights.shape == self.keys.shape

    def __len__(self) -> int:
        return int(self.keys.size)

    @classmethod
    def empty(cls, n: int, *, weighted: bool) -> EdgeBatch:
        """Columns for ``n`` updates, to be filled."""
        weights = np.empty(n, np.float32) if weighted else None
        return cls(np.empty(n, np.uint64), np.empty(n, np.uint8), weights)

    @classmethod
    def of(
        cls,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        ops: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
    ) -> EdgeBatch:
        """A batch from plain columns; without ``ops`` every update is an insert."""
        keys = pack(src, dst)
        op_column = np.full(keys.size, Op.INSERT, np.uint8) if ops is None else np.asarray(ops, np.uint8)
        return cls(keys, op_column, None if weights is None else np.asarray(weights, np.float32))


@dataclass(frozen=True, slots=True)
class EdgeList:
    """Edges in ascending key order: ``keys`` uint64[n], and float32[n] weights where the graph has them."""

    keys: Keys
    weights: Weights | None = None

    def __len__(self) -> int:
        return int(self.keys.size)

    def each_once(self) -> EdgeList:
        """Of the arcs of an undirected graph those in one direction: from the smaller end."""
        kept = sources(self.keys) <= destinations(self.keys)
        return EdgeList(self.keys[kept], None if self.weights is None else self.weights[kept])


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """What one batch changed, after last-writer-wins compaction; each part is in ascending key order.

    ``inserted``: edges that were not there, with their weights. ``overwritten``: edges that were there,
    with their new weights, and ``overwritten_old`` (float32 of the same length) the weights before; an
    insert that repeats the present weight is listed too. ``deleted``: edges that are gone, with the
    weights that they had. ``absent``: keys whose delete found nothing. Weights are None throughout when
    the array is unweighted. ``slots_moved`` counts the slots that the batch wrote outside the leaves
    that it updated in place (rebalances, growth).
    """

    inserted: EdgeList
    overwritten: EdgeList
    overwritten_old: Weights | None
    deleted: EdgeList
    absent: Keys
    slots_moved: int = 0

    @property
    def totals(self) -> tuple[int, int, int, int]:
        """How many are inserted, overwritten, deleted, absent."""
        return len(self.inserted), len(self.overwritten), len(self.deleted), int(self.absent.size)


@dataclass(frozen=True, slots=True)
class SubCSR:
    """The rows of chosen vertices, without gaps.

    ``vertices``: uint32[k]; ``offsets``: int64[k + 1]; ``neighbors``: uint32[offsets[k]], ascending within
    a row; ``weights``: float32 of the same length, or None.
    """

    vertices: Vertices
    offsets: Offsets
    neighbors: Vertices
    weights: Weights | None
