"""Rows without gaps: the rows of chosen vertices, copied behind each other (Subway's SubCSR).

Subway (Sabet, Zhao, Gupta: Subway: Minimizing Data Transfer during Out-of-GPU-Memory Graph Processing, EuroSys
2020) gathers the rows of the active vertices, since only those must travel. On the host they lie as near as their
copy, four bytes an edge instead of eight and no gaps; when that pays is measured by ``benchmarks/gathers.py``.

The work is O(vertices + edges copied), and is divided by edges: a part begins and ends anywhere within a row, so
that a hub is no one thread's burden.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from ..edges import LOW, Int, Offsets, SubCSR, Vertices, Weights
from ..rows import RowView, ask_for_row, first_slot
from ..threads import Pair

# From so many edges, two threads are faster than one.
DIVIDED_EDGES_MIN = 1 << 16

# The row of the vertex this far ahead is asked for.
AHEAD = 12


def gather(rows: RowView, vertices: Vertices, *, weighted: bool, pair: Pair) -> SubCSR:
    """The rows of these existing vertices, in any order, repeats allowed; live slots only."""
    offsets = np.zeros(vertices.size + 1, np.int64)
    np.cumsum(rows.degrees[vertices], out=offsets[1:])
    n_edges = int(offsets[-1])
    neighbors = np.empty(n_edges, np.uint32)
    weights = np.empty(n_edges if weighted else 0, np.float32)

    def part(begin: int, end: int) -> None:
        copy_edges(rows, vertices, offsets, begin, end, neighbors, weights)

    if n_edges < DIVIDED_EDGES_MIN:
        part(0, n_edges)
    else:
        half = n_edges // 2
        pair.run(lambda: part(0, half), lambda: part(half, n_edges))
    return SubCSR(vertices, offsets, neighbors, weights if weighted else None)


@nb.njit(cache=True, nogil=True, error_model="numpy")
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
    keys = rows.keys
    counts = rows.counts
    x = np.searchsorted(offsets, begin, side="right") - 1
    out = np.int64(begin)
    leaf = np.int64(0)
    slot = np.int64(0)
    following = np.int64(-1)
    while out < end:
        if x + AHEAD < vertices.size:
            ask_for_row(rows, vertices[x + AHEAD])
        u: Int = np.int64(vertices[x])
        stop = min(offsets[x + 1], end)
        if out < stop:
            # The row of the next vertex begins where this one's ended.
            if u != following:
                leaf, slot = first_slot(rows, u)
            following = u + 1
            skipped = out - offsets[x]
            while out < stop:
                leaf_end = (leaf << rows.leaf_shift) + np.int64(counts[leaf])
                passed = min(skipped, leaf_end - slot)
                skipped -= passed
                slot += passed
                copied = min(leaf_end - slot, stop - out)
                for i in range(copied):
                    neighbors[out + i] = np.uint32(keys[slot + i] & LOW)
                if weights.size:
                    for i in range(copied):
                        weights[out + i] = rows.weights[slot + i]
                out += copied
                slot += copied
                if slot == leaf_end and leaf + 1 < counts.size:
                    leaf += np.int64(1)
                    slot = leaf << rows.leaf_shift
        elif u == following:
            following = u + 1
        x += 1
