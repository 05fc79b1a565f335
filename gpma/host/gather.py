"""Rows without gaps: the rows of chosen vertices, copied behind each other (Subway's SubCSR).

Subway (Sabet, Zhao, Gupta: Subway: Minimizing Data Transfer during Out-of-GPU-Memory Graph Processing, EuroSys
2020) gathers the rows of the active vertices, since only those must travel. On the host they lie as near as their
copy, four bytes an edge instead of eight and no gaps; when that pays is measured by ``benchmarks/gathers.py``.

The work is O(vertices + edges copied), and is divided by edges: a piece begins and ends anywhere within a row, so
that a hub is no one thread's burden.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from ..drawing import drawn_by
from ..edges import LOW, Int, Offsets, SubCSR, Vertices, Weights
from ..intrinsics import inner
from ..rows import RowView, runs_of
from ..sorted_keys import first_at, first_behind
from ..splice import spliced
from ..team import Crew, at_most, share

# Edges of a piece.
PIECE_EDGES = 1 << 15


def gather(rows: RowView, vertices: Vertices, *, weighted: bool, crew: Crew) -> SubCSR:
    """The rows of these existing vertices, in any order, repeats allowed; live slots only."""
    offsets = np.zeros(vertices.size + 1, np.int64)
    np.cumsum(rows.degrees[vertices], out=offsets[1:])
    n_edges = int(offsets[-1])
    neighbors = np.empty(n_edges, np.uint32)
    weights = np.empty(n_edges if weighted else 0, np.float32)
    if n_edges <= PIECE_EDGES:
        copy_edges(rows, vertices, offsets, 0, n_edges, neighbors, weights)
    else:
        copy_pieces(rows, vertices, offsets, PIECE_EDGES, neighbors, weights, crew)
    return SubCSR(vertices, offsets, neighbors, weights if weighted else None)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def copy_pieces(
    rows: RowView,
    vertices: Vertices,
    offsets: Offsets,
    piece: Int,
    neighbors: Vertices,
    weights: Weights,
    crew: Crew,
) -> None:
    """Write all edges of the gathered rows, so many at a time, by the threads of the crew."""
    work = rows, vertices, offsets, np.int64(piece), neighbors, weights, np.zeros(1, np.int64)
    share(at_most(crew, neighbors.size // piece + 1), _copy_pieces, work)


@inner
def _copy_pieces(
    thread: int,
    rows: RowView,
    vertices: Vertices,
    offsets: Offsets,
    piece: int,
    neighbors: Vertices,
    weights: Weights,
    cursor: Offsets,
) -> None:
    for begin in drawn_by(cursor, neighbors.size, piece):
        copy_edges(rows, vertices, offsets, begin, min(begin + piece, neighbors.size), neighbors, weights)


@nb.njit(cache=True, nogil=True, error_model="numpy")
@spliced
def copy_edges(
    rows: RowView,
    vertices: Vertices,
    offsets: Offsets,
    begin: int,
    end: int,
    neighbors: Vertices,
    weights: Weights,
) -> None:
    """Write edges ``begin`` to ``end`` - 1 of the gathered rows, which begin at ``offsets``, to their places."""
    first = first_behind(offsets, np.int64(0), offsets.size, begin) - 1
    behind = first_at(offsets, np.int64(0), offsets.size, end)
    # Where in the gathered rows the run at hand begins.
    at = offsets[first]
    for _, slot, stop, _ in runs_of(rows, vertices, first, behind):
        from_ = slot + max(begin - at, np.int64(0))
        to = at + (from_ - slot)
        count = min(stop - from_, end - to)
        for i in range(count):
            neighbors[to + i] = np.uint32(rows.keys[from_ + i] & LOW)
        if weights.size:
            for i in range(count):
                weights[to + i] = rows.weights[from_ + i]
        at += stop - slot
        if at >= end:
            return
