"""The arrays that the kernels of the packed memory array share, in named groups.

Plain containers: ``pma.py`` owns and allocates them, the kernels read and write them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .edges import Keys, Ops, Vertices, Weights

# A scalar inside a kernel: Numba's int64 or uint64, NumPy's or Python's for a type checker.
Int = Any

# What became of an update; the order of the parts of a ChangeReport.
INSERTED, OVERWRITTEN, DELETED, ABSENT = 0, 1, 2, 3


class Slots(NamedTuple):
    """The packed array itself.

    ``keys`` uint64[slots] and ``weights`` float32[slots] (float32[0] when unweighted): live entries to the
    left of each leaf, what lies in gaps means nothing. ``counts`` int32[leaves]: live entries. ``heads``
    uint64[leaves]: a lower bound of the keys of each leaf and greater than all keys before it; 0 for the
    first leaf, EMPTY_KEY for an empty one. A key belongs into the last leaf whose head is not above it.
    """

    keys: Keys
    weights: Weights
    counts: npt.NDArray[np.int32]
    heads: Keys


class RowIndex(NamedTuple):
    """``leaf`` uint32[>= n]: the leaf of each row's first key (anything for an empty row); ``degrees`` uint32."""

    leaf: Vertices
    degrees: Vertices


class Updates(NamedTuple):
    """A batch in order, each key once, and where each update falls; work arrays of at least m entries.

    ``keys`` uint64, ``inserts`` uint8 (1 insert, 0 delete), ``weights`` float32; ``leaf`` uint32 and
    ``place`` uint8: the leaf, and how many of its keys are smaller; ``status`` uint8: INSERTED ...;
    ``old_weights`` float32: the weights before, of edges that were there.
    """

    keys: Keys
    inserts: Ops
    weights: Weights
    leaf: Vertices
    place: Ops
    status: Ops
    old_weights: Weights


class Groups(NamedTuple):
    """The updates of each leaf that has any: group g is ``begin[g]`` to ``begin[g + 1]`` (int64[groups + 1]).

    ``leaf`` int64 ascending; ``delta`` int64: by how much the leaf's count changes.
    """

    begin: npt.NDArray[np.int64]
    leaf: npt.NDArray[np.int64]
    delta: npt.NDArray[np.int64]
