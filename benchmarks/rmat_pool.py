"""Large RMAT graphs in seconds, on all cores and in files, so that several processes can measure the same one.

The pairs are those of ``graphtide.daemon.tools.generate`` in distribution (the Graph500 quadrants), but drawn by
counting: pair ``i`` is a function of the seed and ``i``, whatever thread makes it. Vertices are numbered by first
appearance, as the vertex index numbers them. Repeats stay in the pool, as upserts of the same edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numba as nb
import numpy as np
import numpy.typing as npt

from graphtide.daemon.tools.generate import QUADRANTS, distinct
from graphtide.gpma.edges import Keys, Op, Ops

PAIRS_A_VERTEX = 20
LOADED = 0.75
"""Of the pool: with a fifth of deletions, so many of its pairs are there in the long run."""
DELETED = 0.2

_LEVEL_BITS = 16
_CHUNK = 1 << 16


@nb.njit(nogil=True, cache=True)
def mixed(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@nb.njit(nogil=True, parallel=True, cache=True)
def _draw(scale, seed, thresholds, keys):  # type: ignore[no-untyped-def]
    """uint64 keys of pairs 0, 1, ...: each level takes 16 bits, which choose a quadrant."""
    one, wide = np.uint64(1), np.uint64(_LEVEL_BITS)
    for chunk in nb.prange((keys.size + _CHUNK - 1) // _CHUNK):
        for i in range(chunk * _CHUNK, min((chunk + 1) * _CHUNK, keys.size)):
            src = dst = bits = np.uint64(0)
            left = 0
            state = mixed(np.uint64(i) ^ mixed(np.uint64(seed)))
            for _ in range(scale):
                if left == 0:
                    state += np.uint64(0x9E3779B97F4A7C15)
                    bits = mixed(state)
                    left = 64 // _LEVEL_BITS
                draw = bits & np.uint64((1 << _LEVEL_BITS) - 1)
                bits >>= wide
                left -= 1
                lower = draw >= thresholds[1]
                right = (draw >= thresholds[0]) != (lower and draw < thresholds[2])
                src = (src << one) | np.uint64(lower)
                dst = (dst << one) | np.uint64(right)
            keys[i] = (src << np.uint64(32)) | dst


@nb.njit(nogil=True, cache=True)
def _number(keys, dense):  # type: ignore[no-untyped-def]
    """Number the ends of all pairs in order of first appearance, in place; how many vertices there are.

    ``dense``: zeros, an entry for each possible end.
    """
    n = np.uint32(0)
    for i in range(keys.size):
        src, dst = np.uintp(keys[i] >> np.uint64(32)), np.uintp(keys[i] & np.uint64(0xFFFFFFFF))
        for end in (src, dst):
            if dense[end] == 0:
                n += np.uint32(1)
                dense[end] = n
        keys[i] = (np.uint64(dense[src] - 1) << np.uint64(32)) | np.uint64(dense[dst] - 1)
    return n


@dataclass(frozen=True)
class Pool:
    """A graph of which a part is loaded, and what may come and go: keys of dense vertices, mapped from files.

    ``pairs``: all of it, repeats included, in the order of arrival. ``loaded``: the distinct ones of the first
    ``LOADED`` of them, ascending.
    """

    pairs: Keys
    loaded: Keys
    n_vertices: int

    @classmethod
    def read(cls, folder: Path) -> Pool:
        pairs, loaded = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("pairs", "loaded"))
        return cls(pairs, loaded, int(np.load(folder / "vertices.npy")))

    def updates(self, count: int, rng: np.random.Generator) -> tuple[Keys, Ops]:
        """So many updates in random order: upserts of any pairs, and a fifth of deletions of loaded ones."""
        ops: npt.NDArray[np.uint8] = np.where(rng.random(count) < DELETED, Op.DELETE, Op.INSERT).astype(np.uint8)
        among = np.where(ops == Op.DELETE, int(self.pairs.size * LOADED), self.pairs.size)
        return self.pairs[rng.integers(0, among)], ops


def make(folder: Path, scale: int, seed: int) -> Pool:
    """Write the files of a graph of 2**scale possible vertices, and read them."""
    a, b, c = QUADRANTS
    whole = 1 << _LEVEL_BITS
    keys = np.empty(PAIRS_A_VERTEX << scale, np.uint64)
    _draw(scale, seed, np.array([a, a + b, a + b + c]) * whole, keys)
    n_vertices = _number(keys, np.zeros(1 << scale, np.uint32))
    np.save(folder / "pairs.npy", keys)
    np.save(folder / "loaded.npy", distinct(keys[: int(keys.size * LOADED)]))
    np.save(folder / "vertices.npy", n_vertices)
    return Pool.read(folder)
