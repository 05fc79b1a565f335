"""Reading the whole graph: the packed array's rows against a CSR of the same edges, the same loops on both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from graphtide.gpma.edges import LOW, EdgeList, Vertices, Weights, destinations
from graphtide.gpma.layout import LEAF_SHIFT, LEAF_SLOTS
from graphtide.gpma.rows import RowView, runs_in_order
from graphtide.gpma.splice import spliced

Offsets = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]


class Csr:
    """``offsets`` int64[n + 1], ``neighbors`` uint32[edges], ``weights`` float32[edges]: no gaps, no updates."""

    def __init__(self, edges: EdgeList, n_vertices: int) -> None:
        rows = np.arange(n_vertices + 1, dtype=np.uint64) << np.uint64(32)
        self.offsets: Offsets = np.searchsorted(edges.keys, rows)
        self.neighbors = destinations(edges.keys)
        self.weights = np.ones(len(edges), np.float32) if edges.weights is None else edges.weights

    @property
    def nbytes(self) -> int:
        return self.offsets.nbytes + self.neighbors.nbytes + self.weights.nbytes


@nb.njit(cache=True, nogil=True, error_model="numpy")
@spliced
def _multiply_rows(rows: RowView, x: Values, y: Values) -> None:
    """y[u] = sum of x[v] over the row of u. Each row begins where the one before it ended."""
    keys = rows.keys
    total = np.float32(0)
    for u, slot, stop, is_whole in runs_in_order(rows, 0, y.size):
        for i in range(slot, stop):
            total += x[np.uintp(keys[np.uintp(i)] & LOW)]
        if is_whole:
            y[u] = total
            total = np.float32(0)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _multiply_csr(offsets: Offsets, neighbors: Vertices, x: Values, y: Values) -> None:
    for u in range(y.size):
        total = np.float32(0)
        for i in range(offsets[u], offsets[u + 1]):
            total += x[np.uintp(neighbors[np.uintp(i)])]
        y[u] = total


@nb.njit(cache=True, nogil=True, error_model="numpy")
@spliced
def _multiply_weighted_rows(rows: RowView, x: Values, y: Values) -> None:
    """y[u] = sum of weight * x[v] over the row of u."""
    keys, weights = rows.keys, rows.weights
    total = np.float32(0)
    for u, slot, stop, is_whole in runs_in_order(rows, 0, y.size):
        for i in range(slot, stop):
            total += weights[np.uintp(i)] * x[np.uintp(keys[np.uintp(i)] & LOW)]
        if is_whole:
            y[u] = total
            total = np.float32(0)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _multiply_weighted_csr(offsets: Offsets, neighbors: Vertices, weights: Weights, x: Values, y: Values) -> None:
    for u in range(y.size):
        total = np.float32(0)
        for i in range(offsets[u], offsets[u + 1]):
            total += weights[np.uintp(i)] * x[np.uintp(neighbors[np.uintp(i)])]
        y[u] = total


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _sum_rows(rows: RowView) -> np.uint64:
    """The sum of all heads, leaf by leaf: all slots of each, so that a leaf is a few vector instructions."""
    keys, counts = rows.keys, rows.counts
    total = np.uint64(0)
    for leaf in range(counts.size):
        begin, count = np.uintp(leaf << LEAF_SHIFT), np.int64(counts[np.uintp(leaf)])
        part = np.uint64(0)
        for i in range(LEAF_SLOTS):
            part += (keys[begin + np.uintp(i)] & LOW) if i < count else np.uint64(0)
        total += part
    return total


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _sum_csr(neighbors: Vertices) -> np.uint64:
    total = np.uint64(0)
    for i in range(neighbors.size):
        total += np.uint64(neighbors[np.uintp(i)])
    return total


def scan(rows: RowView, edges: EdgeList, n_vertices: int, repeats: int) -> list[dict[str, Any]]:
    """Median times of the loops over either, taken in turns, and that they agree."""
    csr = Csr(edges, n_vertices)
    x = np.random.default_rng(1).random(n_vertices, np.float32)
    ours, theirs = np.empty(n_vertices, np.float32), np.empty(n_vertices, np.float32)
    loops: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
        (
            "pull SpMV",
            lambda: _multiply_rows(rows, x, ours),
            lambda: _multiply_csr(csr.offsets, csr.neighbors, x, theirs),
        ),
        ("all edges, leaf by leaf", lambda: _sum_rows(rows), lambda: _sum_csr(csr.neighbors)),
    ]
    if rows.weights.size:
        weighted = (
            "pull SpMV with weights",
            lambda: _multiply_weighted_rows(rows, x, ours),
            lambda: _multiply_weighted_csr(csr.offsets, csr.neighbors, csr.weights, x, theirs),
        )
        loops.append(weighted)
    found = []
    for name, here, there in loops:
        assert here() == there()  # compiles both
        assert np.array_equal(ours, theirs) or name.startswith("all")
        times = [(_timed(here), _timed(there)) for _ in range(repeats)]
        row_s, csr_s = (statistics.median(column) for column in zip(*times, strict=True))
        found.append(
            {
                "scan": name,
                "edges": len(edges),
                "packed array, ms": row_s * 1e3,
                "CSR, ms": csr_s * 1e3,
                "M edges/s": len(edges) / row_s / 1e6,
                "share of CSR": csr_s / row_s,
            }
        )
    return found


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
