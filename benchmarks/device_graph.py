"""What the benchmarks of a CUDA device share: the graph, generated on the device, the clock, and tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from graphtide.gpma.device import module
from graphtide.gpma.device.array import DevicePackedArray
from graphtide.gpma.edges import EdgeBatch, EdgeList, Vertices
from graphtide.partition.graph import Graph as StoredGraph

KERNELS = Path(__file__).with_name("storage_device.cu")
THREADS = 256
EDGES_PER_VERTEX = 16
WARM_UP = 2
POOL_MAX = 1 << 27
COPY_WORDS = 1 << 28
Row = dict[str, Any]
cupy = module.import_cupy()


def machine() -> Row:
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": properties["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "runtime": cupy.cuda.runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
    }


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy on the device."""
    source = cupy.zeros(COPY_WORDS, np.uint64)
    target = cupy.empty_like(source)
    return 2 * source.nbytes / timed(lambda: cupy.copyto(target, source), 5)


def timed(work: Callable[[], Any], repeats: int, in_a_row: int = 1) -> float:
    """Median seconds of device time, after a warm-up.

    ``in_a_row``: calls that are timed together, so that short kernels do not wait for their launch.
    """
    for _ in range(WARM_UP):
        work()
    seconds = []
    for _ in range(repeats):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(in_a_row):
            work()
        end.record()
        end.synchronize()
        seconds.append(cupy.cuda.get_elapsed_time(start, end) / 1e3 / in_a_row)
    return median(seconds)


def clocked(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call by the host's clock, and what it returned."""
    cupy.cuda.Device().synchronize()
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def show(title: str, rows: list[Row]) -> list[Row]:
    if rows:
        cells = [list(rows[0]), *([format_cell(value) for value in row.values()] for row in rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        print(f"\n{title}")
        for line in cells:
            print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
        sys.stdout.flush()
    return rows


def format_cell(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def blocks(n_threads: int) -> tuple[int]:
    return (max(1, -(-n_threads // THREADS)),)


class Graph:
    """The edges of a scale: ``loaded`` ascending, ``pool`` in random order; and their weights, 1 to 255."""

    def __init__(self, scale: int, seed: int) -> None:
        self.scale, self.n_vertices = scale, 1 << scale
        self.random = cupy.random.RandomState(seed)
        keys = self._generated(seed)
        self.n_edges = int(keys.size)
        half = (keys * np.uint64(0x9E3779B97F4A7C15)).view(np.int64) < 0  # the top bit of a hash
        self.loaded = keys[half]
        cupy.logical_not(half, out=half)
        pool = keys[half]
        del keys, half
        if pool.size > POOL_MAX:
            pool = pool[cupy.unique(self.random.randint(0, pool.size, POOL_MAX))]
        self.pool = pool[self.random.permutation(pool.size)]
        del pool
        cupy.get_default_memory_pool().free_all_blocks()
        self.next = 0

    def _generated(self, seed: int) -> Any:
        kernel = module.load(KERNELS, weighted=True).get_function("rmat")
        names = self.random.permutation(self.n_vertices).astype(np.uint32)
        n = self.n_vertices * EDGES_PER_VERTEX
        keys = cupy.empty(n, np.uint64)
        kernel(
            blocks(n),
            (THREADS,),
            (np.uint32(self.scale), np.uint64(seed), names, np.uint64(0), np.uint64(n), keys),
        )
        cupy.get_default_memory_pool().free_all_blocks()
        halves = keys.view(np.uint32)
        keys = keys[halves[::2] != halves[1::2]]
        keys.sort()
        cupy.get_default_memory_pool().free_all_blocks()
        new = cupy.ones(keys.size, bool)
        new[1:] = keys[1:] != keys[:-1]
        return keys[new]

    def weights(self, n: int) -> Any:
        return self.random.randint(1, 256, n).astype(np.float32)

    def fresh(self, n: int) -> Any:
        """Edges that are not loaded, others than last time."""
        if self.next + n > self.pool.size:
            self.next = 0
        self.next += n
        return self.pool[self.next - n : self.next].copy()

    def array(self) -> DevicePackedArray:
        array = DevicePackedArray(weighted=True)
        array.ensure_vertices(self.n_vertices)
        array.load(EdgeList(self.loaded, self.weights(self.loaded.size)))
        return array


def batch_of(graph: Graph, keys: Any, inserts: bool | Any) -> EdgeBatch:
    ops = cupy.full(keys.size, inserts, np.uint8) if isinstance(inserts, bool) else inserts
    return EdgeBatch(keys, ops, graph.weights(keys.size))


def mixed_batch(graph: Graph, n: int) -> EdgeBatch:
    """80% inserts of new edges, 20% deletes of loaded ones, shuffled."""
    n_deletes = n // 5
    old = graph.loaded[cupy.unique(graph.random.randint(0, graph.loaded.size, n_deletes))]
    keys = cupy.concatenate([graph.fresh(n - n_deletes), old])
    ops = cupy.ones(keys.size, np.uint8)
    ops[n - n_deletes :] = 0
    order = graph.random.permutation(keys.size)
    return batch_of(graph, keys[order], ops[order])


def inverse(graph: Graph, batch: EdgeBatch) -> EdgeBatch:
    return batch_of(graph, batch.keys, 1 - batch.ops)


def by_hash(graph: StoredGraph, share: float) -> Vertices:
    """Vertices that are as good as drawn, and have such a share of the arcs in both orientations."""
    n = graph.n_vertices
    order = np.argsort((np.arange(n, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)) >> np.uint64(32))
    lengths = (graph.degrees("out")[:n].astype(np.int64) + graph.degrees("in")[:n])[order]
    return order[: int(np.searchsorted(np.cumsum(lengths), share * lengths.sum()))].astype(np.uint32)
