"""What threads send to vertices of others: by pieces of the work, sorted by ranges of the receiving vertices.

Where threads add to residuals all over the graph, who adds first would decide about the last bits, and atomic
additions would cost more than the rest. So work is done in two steps (propagation blocking: Beamer, Asanovic,
Patterson, "Reducing Pagerank Communication via Propagation Blocking", IPDPS 2017). Each *piece* of it lists what
goes where, sorted by range of the receivers; then each *range* takes what all pieces have for it, in the order of
the pieces. Pieces and ranges depend on the graph and the work, not on the threads that draw them, and a range fits
into a cache of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.edges import HALF, Vertices
from ...gpma.intrinsics import uncounted_inner
from ...gpma.rows import RowView, live_runs
from ...gpma.splice import spliced

# Ranges and chunks begin at multiples of this: threads then share no word of flags or bits.
GRAIN_SHIFT = 7
GRAIN = 1 << GRAIN_SHIFT

PIECES = 64
RANGES = 64
# Of a piece: its parts for each range, and their end; whole lines of the cache.
PARTS = RANGES + 8

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
_uncounted: Any = uncounted_inner


@_jit
@spliced
def cut(rows, n, cuts):  # type: ignore[no-untyped-def]
    """Cut vertices 0 .. n - 1 into ``cuts.size - 1`` stretches of about as many slots of edges each."""
    leaves = rows.counts.size
    chunks = cuts.size - 1
    cuts[0] = 0
    cuts[chunks] = n
    for k in range(1, chunks):
        at = n
        for slot, stop in live_runs(rows, leaves * k // chunks):
            if slot < stop:
                at = np.int64(rows.keys[slot] >> HALF)
                break
        cuts[k] = max(cuts[k - 1], min(n, at // GRAIN * GRAIN))


@_jit
def _number(cuts, of):  # type: ignore[no-untyped-def]
    for k in range(cuts.size - 1):
        of[cuts[k] >> GRAIN_SHIFT : (cuts[k + 1] + GRAIN - 1) >> GRAIN_SHIFT] = np.uint8(k)


@_uncounted
def begin_parts(begin, parts, begins, places):  # type: ignore[no-untyped-def]
    """Where the part of each range begins, of a piece that begins at ``begin``: to ``begins`` from ``parts`` on,
    and to ``places``, which held how much each range gets."""
    place = begin
    for r in range(RANGES):
        begins[parts + r] = place
        place += places[parts + r]
        places[parts + r] = begins[parts + r]
    begins[parts + RANGES] = place


class Ranges(NamedTuple):
    """``of``: uint8[n / ``GRAIN``], the range that vertices belong to; ranges have about as many in-edges each."""

    of: npt.NDArray[np.uint8]

    @classmethod
    def by_in_edges(cls, in_rows: RowView, n: int) -> Ranges:
        """Those of n vertices."""
        cuts = np.empty(RANGES + 1, np.int64)
        cut(in_rows, n, cuts)
        of = np.zeros(max(1, -(-n // GRAIN)), np.uint8)
        _number(cuts, of)
        return cls(of)


class Mail(NamedTuple):
    """Room for what pieces send, which lasts from one use to the next.

    ``heads``: uint32, receivers as pieces come to them; ``sorted_heads``: uint32, the same by range; ``by``:
    float64, in that order, what is to be added. ``begins``: int64[PIECES * PARTS], where the part of each piece
    for each range begins, and its last one ends; ``places``: as many, for the time of sorting.
    """

    heads: Vertices
    sorted_heads: Vertices
    by: npt.NDArray[np.float64]
    begins: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]

    @classmethod
    def with_room(cls, edges: int) -> Mail:
        """For so many receivers, repeats counted."""
        return cls(
            np.empty(edges, np.uint32),
            np.empty(edges, np.uint32),
            np.empty(edges),
            np.zeros(PIECES * PARTS, np.int64),
            np.zeros(PIECES * PARTS, np.int64),
        )
