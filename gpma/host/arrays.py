"""The arrays that the kernels of the packed memory array share, in named groups.

Plain containers: ``array.py`` owns and allocates them, the kernels read and write them. Those of the same names in
``gpma/device`` are their twins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..edges import Keys, Ops, Vertices, Weights


class Slots(NamedTuple):
    """The packed array itself.

    ``keys`` uint64[slots] and ``weights`` float32[slots] (float32[0] when unweighted): live entries to the
    left of each leaf, what lies in gaps means nothing. ``counts`` int32[leaves]: live entries. ``heads``
    uint64[leaves]: a lower bound of the keys of each leaf and greater than all keys before it; 0 for the
    first leaf. A key belongs into the last leaf whose head is not above it. ``tops`` uint64[leaves / 8, rounded
    up]: every eighth head once more, for searches: eight times smaller, they stay in a cache.

    Leaves ``stretch_begin`` to ``stretch_end`` are empty, and their heads mean nothing: while a grown array
    moves its edges from the old part left of the stretch to the right of it (``migration.py``). Otherwise both
    are the number of leaves.
    """

    keys: Keys
    weights: Weights
    counts: npt.NDArray[np.int32]
    heads: Keys
    tops: Keys
    stretch_begin: int
    stretch_end: int


class RowIndex(NamedTuple):
    """``leaf`` uint32[>= n]: the leaf of each row's first key (anything for an empty row); ``degrees`` uint32."""

    leaf: Vertices
    degrees: Vertices


INNER = 2
"""The op of a deletion that was looked up: its key has one of the same row before it in its leaf, so that the row
does not begin with it."""


class Updates(NamedTuple):
    """A batch in order, each key once, and where each update falls; work arrays for n updates.

    ``keys`` uint64, ``ops`` uint8 (1 insert, 0 delete), ``weights`` float32; ``leaf`` uint32 and
    ``place`` uint8: the leaf, and how many of its keys are smaller; ``status`` uint8: INSERTED ...;
    ``old_weights`` float32: the weights before, of edges that were there. Who looks an update up may make a
    deletion INNER.
    """

    keys: Keys
    ops: Ops
    weights: Weights
    leaf: Vertices
    place: Ops
    status: Ops
    old_weights: Weights


class Pending(NamedTuple):
    """Leaves that a batch left out of bounds, and new edges that wait for their redistribution.

    ``leaf`` uint32, ascending; ``end`` uint32: the new edges of pending leaf p are ``keys[end[p - 1]:end[p]]``
    (uint64) with their ``weights`` (float32), and begin where those of the leaf before it end. ``rows`` uint32:
    rows that may have lost their first key.
    """

    leaf: Vertices
    end: Vertices
    keys: Keys
    weights: Weights
    rows: Vertices


class ReportColumns(NamedTuple):
    """The columns of a change report, keys uint64 and weights float32; the latter are empty when unweighted."""

    inserted: Keys
    inserted_weights: Weights
    overwritten: Keys
    overwriting_weights: Weights
    overwritten_weights: Weights
    deleted: Keys
    deleted_weights: Weights
    absent: Keys
