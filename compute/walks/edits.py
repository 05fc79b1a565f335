"""Kernels of random-walk programs: pushing along out-rows, and what an edge change does to a residual.

A system M y = b with M = I - d P^T, P the row-stochastic matrix of the out-edges (zero rows for dangling
vertices). Kept are an estimate ``value`` and its ``residual`` b - M value, float64 of one padded capacity.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.drawing import drawn
from ...gpma.edges import HALF, LOW, Vertices
from ...gpma.intrinsics import inner, prefetch
from ...gpma.rows import runs
from ...gpma.splice import spliced
from ...gpma.team import share

F64 = npt.NDArray[np.float64]

# A row is rewritten when at most this many times as many edges remain in it as were changed.
ROW_EDIT_FACTOR = 4
# So many vertices may be touched for each changed edge: its head, and the remaining row, and the row's vertex.
TOUCHED_PER_EDGE = ROW_EDIT_FACTOR + 2

# Slots of the sums of ``edit_rows``.
GROWN, SIZE, TOTAL, ROUNDED, SLIPPED = range(5)

# The unit roundoff of float64: the result of an operation is off by at most this share of it.
ROUNDOFF = 2.0**-53

_NO_ROW = np.int64(1) << np.int64(40)
# What is changed lies anywhere: an edit asks so many changes ahead for it.
_AHEAD = 16

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
_inner: Any = inner


class Editing(NamedTuple):
    """The columns of a system that is edited, and what ``edit_rows`` tells of it.

    ``rescaled``: uint32, room for every changed row: the vertices whose value changed, each once. ``touched``:
    uint32, room for ``TOUCHED_PER_EDGE`` a change: those whose residual did, perhaps repeatedly. ``counts``:
    int64[3], how many these are, and the edges read. ``sums``: float64[5], to which is added by how much grew:
    positive values, the sizes of residuals, residuals; and in units of ``ROUNDOFF`` what rounding may have put
    between kept residuals and true ones, all vertices together, and between these sums and true ones.
    """

    value: F64
    residual: F64
    rescaled: Vertices
    touched: Vertices
    counts: npt.NDArray[np.int64]
    sums: F64

    @classmethod
    def of(cls, value: F64, residual: F64, changes: int) -> Editing:
        """Of so many changed edges."""
        rescaled, touched = np.empty(changes, np.uint32), np.empty(TOUCHED_PER_EDGE * changes, np.uint32)
        return cls(value, residual, rescaled, touched, np.zeros(3, np.int64), np.zeros(5))


@_jit
@spliced
def edit_rows(rows, inserted, deleted, damping, editing):  # type: ignore[no-untyped-def]
    """Make ``residual`` that of the changed graph.

    ``inserted`` and ``deleted``: the changed keys, ascending; ``rows``: the out-rows after the change.

    Rounding. A sum r of a residual is off by |r|. A share (two operations) by twice itself. The rescaled value y
    differs by up to 4 |y| from the one for which unchanged edges keep their contribution exactly, which is what
    out-neighbours then are off by together, and by another |y| from the one that the residual of u is told of. In
    a row that trades its contributions, the difference of two quotients is off by three times their sum, an edge.

    The value of a vertex is rescaled with its degree, so that unchanged edges keep their contribution (Zhang,
    Lofgren, Goel, "Approximate Personalized PageRank on Dynamic Graphs", KDD 2016): O(1) a change, whatever the
    degree, and a following push of the vertex does what rewriting its row would have done. Where most of the
    row changed, values would jump far; there the row trades its old contributions for the new ones, which is
    O(1) a change too.
    """
    value, residual, rescaled, touched = editing.value, editing.residual, editing.rescaled, editing.touched
    sums = editing.sums
    n_rescaled = np.int64(0)
    n_touched = np.int64(0)
    edges = np.int64(0)
    grown_by = size_by = total_by = rounded = slipped = 0.0
    i = np.int64(0)
    j = np.int64(0)
    while i < inserted.size or j < deleted.size:
        row_in = np.int64(inserted[i] >> HALF) if i < inserted.size else _NO_ROW
        row_out = np.int64(deleted[j] >> HALF) if j < deleted.size else _NO_ROW
        u = min(row_in, row_out)
        i_end = i
        while i_end < inserted.size and np.int64(inserted[i_end] >> HALF) == u:
            i_end += 1
        j_end = j
        while j_end < deleted.size and np.int64(deleted[j_end] >> HALF) == u:
            j_end += 1
        y = value[u]
        if y != 0.0:
            after = np.int64(rows.degrees[u])
            before = after - (i_end - i) + (j_end - j)
            if before > 0 and after > 0 and after != before:
                if after > ROW_EDIT_FACTOR * (i_end - i + j_end - j):
                    by = y * (after / before - 1.0)
                    value[u] += by
                    if y > 0.0:
                        grown_by += by
                    size_by += abs(residual[u] - by) - abs(residual[u])
                    residual[u] -= by
                    total_by -= by
                    rounded += abs(residual[u]) + 6.0 * abs(value[u])
                    slipped += 2.0 * (abs(size_by) + abs(grown_by) + abs(total_by))
                    rescaled[n_rescaled] = u
                    n_rescaled += 1
                    touched[n_touched] = u
                    n_touched += 1
                else:
                    by = y * (damping / after - damping / before)
                    rounded += 3.0 * abs(y) * (1.0 + after / before)
                    for slot, stop in runs(rows, u):
                        for k in range(slot, stop):
                            v = np.uintp(rows.keys[k] & LOW)
                            size_by += abs(residual[v] + by) - abs(residual[v])
                            residual[v] += by
                            rounded += abs(residual[v])
                            slipped += 2.0 * abs(size_by)
                            touched[n_touched] = v
                            n_touched += 1
                    edges += after
                    total_by += by * after
            # The row as it stands is settled as if every edge had had the old share; so what came and what
            # went count in full. (Without an old share there is only the new one.)
            share = y * damping / (before if before > 0 else after)
            total_by += share * ((i_end - i) - (j_end - j))
            rounded += 2.0 * abs(share) * (i_end - i + j_end - j)
            slipped += 4.0 * abs(total_by)
            for k in range(i, i_end):
                if k + _AHEAD < inserted.size:
                    ahead = inserted[k + _AHEAD]
                    prefetch(residual, np.int64(ahead & LOW))
                    prefetch(value, np.int64(ahead >> HALF))
                    prefetch(rows.degrees, np.int64(ahead >> HALF))
                v = np.uintp(inserted[k] & LOW)
                size_by += abs(residual[v] + share) - abs(residual[v])
                residual[v] += share
                rounded += abs(residual[v])
                slipped += 2.0 * abs(size_by)
                touched[n_touched] = v
                n_touched += 1
            for k in range(j, j_end):
                if k + _AHEAD < deleted.size:
                    ahead = deleted[k + _AHEAD]
                    prefetch(residual, np.int64(ahead & LOW))
                    prefetch(value, np.int64(ahead >> HALF))
                    prefetch(rows.degrees, np.int64(ahead >> HALF))
                v = np.uintp(deleted[k] & LOW)
                size_by += abs(residual[v] - share) - abs(residual[v])
                residual[v] -= share
                rounded += abs(residual[v])
                slipped += 2.0 * abs(size_by)
                touched[n_touched] = v
                n_touched += 1
        i = i_end
        j = j_end
    sums[GROWN] += grown_by
    sums[SIZE] += size_by
    sums[TOTAL] += total_by
    sums[ROUNDED] += rounded
    # Once more for every sum, which grows as well.
    sums[SLIPPED] += slipped + abs(grown_by) + abs(size_by) + abs(total_by)
    editing.counts[0] = n_rescaled
    editing.counts[1] = n_touched
    editing.counts[2] = edges


@_inner
def _edit_either(thread, rows, inserted, deleted, damping, first, second, cursor):  # type: ignore[no-untyped-def]
    """A thread's share of ``edit_two``."""
    for system in drawn(cursor, 2):
        edit_rows(rows, inserted, deleted, damping, first if system == 0 else second)


@_jit
def edit_two(crew, rows, inserted, deleted, damping, first, second):  # type: ignore[no-untyped-def]
    """``edit_rows`` of two systems at once."""
    cursor = np.zeros(1, np.int64)
    share(crew, _edit_either, (rows, inserted, deleted, damping, first, second, cursor))


@_jit
@spliced
def received(in_rows, out_degrees, begin, end, damping, value, out):  # type: ignore[no-untyped-def]
    """What vertices begin .. end - 1 get from their in-neighbours: (d P^T value), to ``out``; the edges read."""
    edges = np.int64(0)
    for v in range(begin, end):
        total = 0.0
        edges += np.int64(in_rows.degrees[v])
        for slot, stop in runs(in_rows, v):
            for i in range(slot, stop):
                u = np.uintp(in_rows.keys[i] & LOW)
                total += value[u] * (damping / out_degrees[u])
        out[v - begin] = total
    return edges
