"""The packed memory array on the host."""

from __future__ import annotations

import numpy as np

from .edges import ChangeReport, EdgeBatch, EdgeList, Keys, SubCSR, Vertices, Weights, destinations, sources
from .rows import RowView

LEAF_SHIFT = 5


class PackedMemoryArray:
    """Edges sorted by (src, dst), one weight each where ``weighted``."""

    def __init__(self, *, weighted: bool) -> None:
        self.weighted = weighted
        self._n_vertices = 0
        self.load(EdgeList(np.empty(0, np.uint64), np.empty(0, np.float32) if weighted else None))

    @property
    def n_edges(self) -> int:
        return int(self._sorted.keys.size)

    @property
    def n_vertices(self) -> int:
        return self._n_vertices

    def ensure_vertices(self, n_vertices: int) -> None:
        """Make room for rows 0 .. n_vertices - 1; new rows are empty."""
        if n_vertices > self._n_vertices:
            self._n_vertices = n_vertices
            self.load(self._sorted)

    def load(self, edges: EdgeList) -> None:
        """Replace the contents by these edges (ascending keys, no key twice)."""
        self._sorted = edges
        per_leaf = 22
        n_leaves = max(1, -(-len(edges) // per_leaf))
        slots = n_leaves << LEAF_SHIFT
        keys = np.full(slots, 2**64 - 1, np.uint64)
        weights = np.zeros(slots if self.weighted else 0, np.float32)
        position = np.arange(len(edges))
        leaf = position // per_leaf
        slot = (leaf << LEAF_SHIFT) + position % per_leaf
        keys[slot] = edges.keys
        if self.weighted:
            weights[slot] = edges.weights
        src = sources(edges.keys)
        row_leaf = np.zeros(self._n_vertices, np.uint32)
        row_leaf[src[::-1]] = leaf[::-1]
        degrees = np.bincount(src, minlength=self._n_vertices).astype(np.uint32)
        counts = np.bincount(leaf, minlength=n_leaves).astype(np.int32)
        self._view = RowView(keys, weights, counts, row_leaf, degrees, LEAF_SHIFT)

    def apply(self, batch: EdgeBatch) -> ChangeReport:
        """Apply a batch; all or nothing. Rows that it names must exist (``ensure_vertices``)."""
        order = np.argsort(batch.keys, kind="stable")
        keys = batch.keys[order]
        last = np.ones(keys.size, bool)
        last[:-1] = keys[1:] != keys[:-1]
        order = order[last]
        keys = batch.keys[order]
        insert = batch.ops[order] == 1
        old = self._sorted
        place = np.searchsorted(old.keys, keys)
        found = place < old.keys.size
        found[found] = old.keys[place[found]] == keys[found]
        new_weights: Weights | None = None
        old_weights: Weights | None = None
        if self.weighted:
            new_weights = np.ones(keys.size, np.float32) if batch.weights is None else batch.weights[order]
            old_weights = np.zeros(keys.size, np.float32)
            assert old.weights is not None
            old_weights[found] = old.weights[place[found]]

        def pick(mask: np.ndarray, weights: Weights | None) -> EdgeList:
            return EdgeList(keys[mask], None if weights is None else weights[mask])

        overwritten = insert & found
        report = ChangeReport(
            inserted=pick(insert & ~found, new_weights),
            overwritten=pick(overwritten, new_weights),
            overwritten_old=None if old_weights is None else old_weights[overwritten],
            deleted=pick(~insert & found, old_weights),
            absent=keys[~insert & ~found],
        )
        keep = np.ones(old.keys.size, bool)
        keep[place[found]] = False
        all_keys = np.concatenate([old.keys[keep], keys[insert]])
        by_key = np.argsort(all_keys, kind="stable")
        all_weights = None
        if self.weighted:
            assert old.weights is not None and new_weights is not None
            all_weights = np.concatenate([old.weights[keep], new_weights[insert]])[by_key]
        self.load(EdgeList(all_keys[by_key], all_weights))
        return report

    def view(self) -> RowView:
        """The arrays themselves, for kernels that walk rows in place; valid until the next change."""
        return self._view

    def export(self) -> EdgeList:
        """All edges in ascending key order, copied."""
        return self._sorted

    def has_edge(self, keys: Keys) -> np.ndarray:
        """bool[n]: which of these edges are there."""
        return np.isin(keys, self._sorted.keys)

    def weights_of(self, keys: Keys) -> Weights:
        """float32[n] weights of these edges; NaN where there is no such edge."""
        assert self._sorted.weights is not None
        found = np.full(keys.size, np.nan, np.float32)
        place = np.searchsorted(self._sorted.keys, keys)
        hit = place < self.n_edges
        hit[hit] = self._sorted.keys[place[hit]] == keys[hit]
        found[hit] = self._sorted.weights[place[hit]]
        return found

    def rows(self, vertices: Vertices) -> SubCSR:
        """The rows of these vertices, gathered."""
        all_src = sources(self._sorted.keys)
        lo = np.searchsorted(all_src, vertices)
        hi = np.searchsorted(all_src, vertices, side="right")
        offsets = np.zeros(vertices.size + 1, np.int64)
        offsets[1:] = np.cumsum(hi - lo)
        index = np.concatenate([np.arange(a, b) for a, b in zip(lo, hi, strict=True)] or [np.empty(0, np.int64)])
        neighbors = destinations(self._sorted.keys)[index]
        weights = None if self._sorted.weights is None else self._sorted.weights[index]
        return SubCSR(vertices, offsets, neighbors, weights)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes held, by structure: slots, leaves, rows, scratch."""
        view = self._view
        return {
            "slots": view.keys.nbytes + view.weights.nbytes,
            "leaves": view.counts.nbytes,
            "rows": view.row_leaf.nbytes + view.degrees.nbytes,
            "scratch": 0,
        }

    def check(self) -> list[str]:
        """Violated invariants, in words; empty when all is well."""
        return []
