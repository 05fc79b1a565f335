"""Synthetic edge streams: skewed graphs that churn, for demonstrations, tests and benchmarks.

The graphs are RMAT (Chakrabarti, Zhan, Faloutsos: R-MAT, SDM 2004) with the Graph500 quadrants. The stream
upserts random pairs of a fixed pool and deletes random present edges, so that its size settles where both
flows are equal: with a share ``d`` of deletions at ``1 - d / (1 - d)`` of the pool.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Op, Ops, Weights, distinct
from ...gpma.index.ids import IntColumn

QUADRANTS = (0.57, 0.19, 0.19)
_CHUNK = 1 << 20


def rmat_pairs(scale: int, count: int, rng: np.random.Generator) -> npt.NDArray[np.uint64]:
    """``count`` random pairs over 2**scale vertices as keys (src << 32 | dst); repeats and loops included."""
    a, b, c = QUADRANTS
    keys = np.empty(count, np.uint64)
    for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        src = np.zeros(size, np.uint32)
        dst = np.zeros(size, np.uint32)
        for _ in range(scale):
            draw = rng.random(size, np.float32)
            lower = draw >= a + b
            right = ((draw >= a) & ~lower) | (draw >= a + b + c)
            src = (src << np.uint32(1)) | lower
            dst = (dst << np.uint32(1)) | right
        keys[start : start + size] = (src.astype(np.uint64) << np.uint64(32)) | dst
    return keys


def distinct_rmat(scale: int, count: int, rng: np.random.Generator) -> tuple[IntColumn, IntColumn]:
    """``count`` distinct pairs without self-loops in random order, vertex ids permuted: (src, dst) int64[count].

    Raises:
        ValueError: so many distinct pairs would take too long to find in a graph of that scale.
    """
    if count > 4**scale // 8:
        raise ValueError(f"{count} distinct pairs are too many for 2**{scale} vertices; at most {4**scale // 8}")
    found = np.empty(0, np.uint64)
    while found.size < count:
        more = rmat_pairs(scale, int((count - found.size) * 1.25) + 1024, rng)
        more = more[(more >> np.uint64(32)) != (more & np.uint64(0xFFFF_FFFF))]
        found = distinct(np.concatenate([found, more]))
    keys = rng.permutation(found)[:count]
    names = rng.permutation(2**scale).astype(np.int64)
    return names[(keys >> np.uint64(32)).astype(np.int64)], names[keys.astype(np.uint32)]


@dataclass(frozen=True, slots=True)
class Updates:
    """Columns of one stretch of a stream: int64 ids, uint8 ops, float32 weights (1.0 at deletions)."""

    src: IntColumn
    dst: IntColumn
    ops: Ops
    weights: Weights

    def __len__(self) -> int:
        return int(self.ops.size)


class Churn:
    """An endless stream over a pool of distinct RMAT pairs; remembers which pairs are present."""

    def __init__(self, *, scale: int, pool: int, delete_share: float = 0.2, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)
        self.src, self.dst = distinct_rmat(scale, pool, self._rng)
        self.present = np.zeros(pool, bool)
        self.delete_share = delete_share

    def divided(self, owners: npt.NDArray[np.int64], count: int) -> list[Churn]:
        """A stream for each of ``count`` owners, over the pairs of the pool that are its own (int64[pool], from
        0), with random numbers of its own. Together they are over the whole pool, which is left as it is.
        """
        return [self._of(np.flatnonzero(owners == owner), rng) for owner, rng in enumerate(self._rng.spawn(count))]

    def _of(self, pairs: npt.NDArray[np.int64], rng: np.random.Generator) -> Churn:
        part = copy.copy(self)
        part._rng = rng
        part.src, part.dst, part.present = self.src[pairs], self.dst[pairs], self.present[pairs]
        return part

    @property
    def settles_at(self) -> int:
        """Edges present once inserts and deletes balance."""
        return int(self.src.size * (1 - self.delete_share / (1 - self.delete_share)))

    def load(self, edges: int, batch: int = 1_000_000) -> Iterator[Updates]:
        """Inserts of the first ``edges`` pairs of the pool."""
        for start in range(0, edges, batch):
            stop = min(start + batch, edges)
            self.present[start:stop] = True
            ops = np.full(stop - start, Op.INSERT, np.uint8)
            yield Updates(self.src[start:stop], self.dst[start:stop], ops, self._weights(stop - start))

    def next(self, updates: int) -> Updates:
        """The next updates: upserts of any pairs, and deletions of distinct edges present before this call."""
        n_deletes = int(self._rng.binomial(updates, self.delete_share))
        candidates = self._rng.integers(0, self.src.size, 2 * n_deletes + 16)
        candidates = np.unique(candidates[self.present[candidates]])
        doomed = self._rng.permutation(candidates)[:n_deletes]
        upserted = self._rng.integers(0, self.src.size, updates - doomed.size)
        chosen = np.concatenate([doomed, upserted])
        ops = np.zeros(updates, np.uint8)
        ops[doomed.size :] = Op.INSERT
        order = self._rng.permutation(updates)
        chosen, ops = chosen[order], ops[order]
        self._remember(chosen, ops)
        weights = self._weights(updates)
        weights[Op.DELETE.among(ops)] = 1.0
        return Updates(self.src[chosen], self.dst[chosen], ops, weights)

    def stream(self, updates: int, piece: int = 1_000) -> Updates:
        """So many updates in pieces of ``next``: later ones delete what earlier ones inserted."""
        parts = [self.next(min(piece, updates - start)) for start in range(0, updates, piece)]
        columns = (np.concatenate([getattr(part, name) for part in parts]) for name in Updates.__slots__)
        return Updates(*columns)

    def _remember(self, chosen: npt.NDArray[np.int64], ops: Ops) -> None:
        """The last update of a pair decides whether it is present."""
        reverse_first = np.unique(chosen[::-1], return_index=True)
        self.present[reverse_first[0]] = Op.INSERT.among(ops[::-1][reverse_first[1]])

    def _weights(self, count: int) -> Weights:
        return self._rng.integers(1, 256, count).astype(np.float32)
