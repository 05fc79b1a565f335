"""A short history of the packed array on a CUDA device, checked against a dict: what compute-sanitizer runs.

Batches go every way there is: one kernel, several, leaves with more updates than a tile or a block can merge,
windows of a warp, of a block and of the grid, growth, shrinking. Each allocation is one of the device's own, so
that accesses behind its end are seen.

    compute-sanitizer --tool racecheck python benchmarks/storage_device_history.py
"""

from __future__ import annotations

import argparse

import numpy as np

from graphtide.gpma.device import array as array_module
from graphtide.gpma.device import module
from graphtide.gpma.device.array import DevicePackedArray
from graphtide.gpma.edges import EdgeBatch, pack

VERTICES = 200
# (updates, how far apart destinations may lie, share of inserts); 33,000 and more take several kernels.
STEPS = [
    *((1, 400, 1.0), (30, 400, 1.0), (500, 400, 0.9), (3000, 40, 0.7), (40_000, 400, 0.7), (200, 400, 0.7)),
    *((33_000, 40, 0.7), (5, 400, 0.7), (3000, 400, 0.7), (64, 400, 0.2), (40_000, 300, 0.1)),
]


def batches(seed: int) -> list[EdgeBatch]:
    rng = np.random.default_rng(seed)
    made = []
    for n, apart, inserts in STEPS:
        src, dst = rng.integers(0, VERTICES, n), rng.integers(0, apart, n)
        made.append(
            EdgeBatch.of(src, dst, (rng.random(n) < inserts).astype(np.uint8), rng.random(n).astype(np.float32))
        )
    for n in (20, 400, 3000):  # all in one leaf
        keys = pack(np.full(n, 77), 2**31 + n * 100 + rng.permutation(n))
        made.append(EdgeBatch(keys, np.ones(n, np.uint8), rng.random(n).astype(np.float32)))
    return made


def run(seed: int) -> None:
    array = DevicePackedArray(weighted=True)
    array.ensure_vertices(VERTICES)
    edges: dict[int, float] = {}
    for batch in batches(seed):
        array.apply(batch)
        for key, op, weight in zip(batch.keys.tolist(), batch.ops.tolist(), batch.weights.tolist(), strict=True):
            if op:
                edges[key] = weight
            else:
                edges.pop(key, None)
    exported = array.export()
    keys = np.array(sorted(edges), np.uint64)
    assert np.array_equal(exported.keys.get(), keys)
    assert np.array_equal(exported.weights.get(), np.array([edges[key] for key in keys.tolist()], np.float32))
    problems = array.check()
    assert not problems, problems
    assert int(array.rows(np.arange(VERTICES, dtype=np.uint32)).offsets[-1]) == keys.size
    assert array.has_edge(keys).all()
    print(f"{len(STEPS)} batches and 3 into one leaf: {keys.size:,} edges as they must be")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    module.import_cupy().cuda.set_allocator(None)
    run(options.seed)
    # The same in place, however much is to be redistributed.
    array_module.REBUILD_SHARE = 1e9
    run(options.seed + 1)


if __name__ == "__main__":
    main()
