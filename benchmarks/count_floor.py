"""What path counts cannot do without after a batch: how many counts change, and how many edges tell of it.

    python benchmarks/count_floor.py [--scale 22] [--batches 100 10000 100000 1000000]

Half of an R-MAT graph, and batches of four fifths insertions and a fifth deletions, as in ``device.py``, each
applied to that half; paths from the vertex of most out-edges, by plain loops on the host. By level, and of all:

``changed``: vertices with another count or level. ``told``: their out-edges; whoever keeps counts by differences
goes over these rows, since any of their heads may be on the next level. ``led``: those that go there, the only
ones that matter. ``pulled``: in-edges of all heads that these reach, which whoever adds up anew goes over.
``all``: the in-edges of the next level; of all, edges between two levels by whichever side has fewer vertices,
from scratch.
"""

from __future__ import annotations

import argparse

import numba as nb
import numpy as np
import numpy.typing as npt
from report import show

from graphtide.daemon.tools.generate import distinct_rmat
from graphtide.gpma.edges import Keys, pack, transpose

U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]
NONE = 0xFFFFFFFF


def csr(keys: Keys, n: int) -> tuple[I64, U32]:
    """Of ascending keys: where rows begin, and heads."""
    begins = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount((keys >> np.uint64(32)).astype(np.int64), minlength=n), out=begins[1:])
    return begins, keys.astype(np.uint32)


@nb.njit(cache=False)  # type: ignore[misc]
def count(begins: I64, heads: U32, source: int) -> tuple[U32, F64]:
    """Levels and counts, of which no more than 2^53."""
    n = begins.size - 1
    level = np.full(n, NONE, np.uint32)
    paths = np.zeros(n)
    queue = np.empty(n, np.uint32)
    level[source], paths[source], queue[0] = 0, 1.0, source
    first, last = 0, 1
    while first < last:
        u = queue[first]
        first += 1
        for e in range(begins[u], begins[u + 1]):
            v = heads[e]
            if level[v] == NONE:
                level[v] = level[u] + 1
                queue[last] = v
                last += 1
            if level[v] == level[u] + 1:
                paths[v] += paths[u]
    return level, np.minimum(paths, 2.0**53)


@nb.njit(cache=False)  # type: ignore[misc]
def reached(begins: I64, heads: U32, level: U32, is_changed: Bools) -> tuple[int, Bools]:
    """How many edges lead from changed vertices to the next level, and to which."""
    led, is_head = 0, np.zeros(level.size, np.bool_)
    for u in range(level.size):
        if is_changed[u] and level[u] != NONE:
            for e in range(begins[u], begins[u + 1]):
                if level[heads[e]] == level[u] + 1:
                    led += 1
                    is_head[heads[e]] = True
    return led, is_head


def least(level: U32, out: I64, in_: I64) -> int:
    """Edges between all levels, by the side of fewer vertices."""
    total = 0
    for at in range(int(level[level != NONE].max())):
        above, below = level == at, level == at + 1
        total += int(out[above].sum() if above.sum() <= below.sum() else in_[below].sum())
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=22)
    parser.add_argument("--batches", type=int, nargs="+", default=[100, 10_000, 100_000, 1_000_000])
    given = parser.parse_args()
    n, rng = 1 << given.scale, np.random.default_rng(1)
    src, dst = distinct_rmat(given.scale, 16 << given.scale, rng)
    keys = np.sort(pack(src, dst))
    del src, dst
    half = rng.random(keys.size) < 0.5
    loaded, pool = keys[half], rng.permutation(keys[~half])
    begins, heads = csr(loaded, n)
    source = int(np.argmax(np.diff(begins)))
    before, paths = count(begins, heads, source)
    rows = []
    for size in given.batches:
        stays = np.ones(loaded.size, bool)
        stays[rng.integers(0, loaded.size, size // 5)] = False
        now = np.sort(np.concatenate([loaded[stays], pool[: size - size // 5]]))
        new_begins, new_heads = csr(now, n)
        in_begins, _ = csr(np.sort(transpose(now)), n)
        level, new_paths = count(new_begins, new_heads, source)
        is_changed = (level != before) | (new_paths != paths)
        out_degrees, in_degrees = np.diff(new_begins), np.diff(in_begins)
        led, is_head = reached(new_begins, new_heads, level, is_changed)
        rows.append(
            {
                "batch": size,
                "level": "all",
                "vertices": int((level != NONE).sum()),
                "changed": int(is_changed.sum()),
                "told": int(out_degrees[is_changed & (level != NONE)].sum()),
                "led": led,
                "pulled": int(in_degrees[is_head].sum()),
                "all": least(level, out_degrees, in_degrees),
            }
        )
        for at in range(int(level[level != NONE].max()) + 1):
            here, below = level == at, level == at + 1
            led, is_head = reached(new_begins, new_heads, level, is_changed & here)
            rows.append(
                {
                    "batch": size,
                    "level": str(at),
                    "vertices": int(here.sum()),
                    "changed": int((is_changed & here).sum()),
                    "told": int(out_degrees[is_changed & here].sum()),
                    "led": led,
                    "pulled": int(in_degrees[is_head].sum()),
                    "all": int(in_degrees[below].sum()),
                }
            )
    show(f"path counts, scale {given.scale}, {loaded.size:,} edges", rows)


if __name__ == "__main__":
    main()
