"""The same answers from scratch, by an independent library (SciPy): what the demonstration checks against.

Nothing here shares code with the storage or the programs, on purpose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from ...gpma.edges import Op, Ops
from ...gpma.index.ids import IntColumn

UNREACHED = -1


@dataclass(frozen=True, slots=True)
class FinalGraph:
    """What a stream of updates leaves: the ids of its vertices (ascending) and its edges between positions."""

    ids: IntColumn
    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]

    @classmethod
    def replay(cls, src: IntColumn, dst: IntColumn, ops: Ops, *, directed: bool = True) -> FinalGraph:
        """The last update of a pair decides; every vertex that an insert named exists."""
        if not directed:
            src, dst = np.minimum(src, dst), np.maximum(src, dst)
        insert = Op.INSERT.among(ops)
        ids = np.unique(np.concatenate([src[insert], dst[insert]]))
        known = np.isin(src, ids) & np.isin(dst, ids)
        src, dst, insert = src[known], dst[known], insert[known]
        pair = np.searchsorted(ids, src) * ids.size + np.searchsorted(ids, dst)
        _, last = np.unique(pair[::-1], return_index=True)
        final = pair[::-1][last[insert[::-1][last]]]
        return cls(ids, final // max(ids.size, 1), final % max(ids.size, 1))

    def matrix(self) -> Any:
        """The adjacency as a SciPy CSR matrix of ones."""
        ones = np.ones(self.src.size)
        return sparse.csr_matrix((ones, (self.src, self.dst)), shape=(self.ids.size, self.ids.size))

    def hops(self, source: int, *, directed: bool = True) -> npt.NDArray[np.int64]:
        """Fewest edges from the source to each vertex; ``UNREACHED`` where there is no path."""
        start = int(np.searchsorted(self.ids, source))
        distance: npt.NDArray[np.float64]
        distance = csgraph.dijkstra(self.matrix(), directed=directed, indices=start, unweighted=True)
        return np.where(np.isinf(distance), UNREACHED, distance).astype(np.int64)

    def component_labels(self) -> IntColumn:
        """The smallest id in each vertex's weakly connected component."""
        count, label = csgraph.connected_components(self.matrix(), directed=True, connection="weak")
        smallest = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(smallest, label, self.ids)
        labels: IntColumn = smallest[label]
        return labels

    def pagerank(
        self, *, damping: float = 0.85, directed: bool = True, change_max: float = 1e-14
    ) -> npt.NDArray[np.float64]:
        """Power iteration until no entry changes by more than ``change_max`` relatively; sums to 1.

        After k steps changes add up to at most 2 damping^k, and no entry is below (1 - damping) / n. So it ends by
        the step at which no entry could still change by so much. What is left then is rounding, which at a vertex
        of many in-edges may stay above ``change_max`` for ever.
        """
        links = self.matrix()
        if not directed:
            links = links.maximum(links.T)
        out = np.asarray(links.sum(axis=1)).ravel()
        share = np.divide(1.0, out, out=np.zeros_like(out), where=out > 0)
        transposed = links.T.tocsr()
        n = self.ids.size
        rank = np.full(n, 1.0 / n)
        steps = math.log(change_max * (1 - damping) / (2 * n)) / math.log(damping)
        for _ in range(math.ceil(steps)):
            dangling = rank[out == 0].sum()
            new: npt.NDArray[np.float64]
            new = (1 - damping) / n + damping * (transposed @ (rank * share) + dangling / n)
            change = np.max(np.abs(new - rank) / new)
            rank = new
            if change <= change_max:
                break
        return rank
