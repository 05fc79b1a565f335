"""The packed array on a CUDA device: updates, growth, scans, load and export, against baselines of the same run.

R-MAT graphs as everywhere in the benchmarks (a=.57, b=c=.19, 16 edges a vertex, vertices renamed at random,
duplicates and loops removed), generated on the device; half of the edges are loaded, the rest is streamed. Every
time is from the call to the report, batch on the device, growth and report included; medians after a warm-up.

    python benchmarks/storage_device.py --scales 18 22 --batches 1000 1000000 --json out.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from graphtide.gpma.device import module, reads
from graphtide.gpma.device.array import DevicePackedArray
from graphtide.gpma.device.module import import_cupy
from graphtide.gpma.edges import EdgeBatch, EdgeList

KERNELS = Path(__file__).with_suffix(".cu")
THREADS = 256
EDGES_PER_VERTEX = 16
WARM_UP = 2
LEAVES_A_WARP = 8  # as in storage_device.cu
STREAM_BATCH = 100_000
POOL_MAX = 1 << 27
COPY_WORDS = 1 << 28
ROWS_READ = 100_000
# Bytes of an update that cannot be avoided: key, op and weight read, outcome and old weight written.
UPDATE_BYTES = 8 + 1 + 4 + 1 + 4
Row = dict[str, Any]
cupy: Any = None  # imported when a benchmark runs


def run(scales: list[int], batches: list[int], repeats: int, seed: int) -> dict[str, Any]:
    """Measure everything, print tables, return what was printed and more as plain values."""
    global cupy
    cupy = import_cupy()
    copy = copy_bandwidth()
    result: dict[str, Any] = {
        "machine": machine(),
        "seed": seed,
        "repeats": repeats,
        "copy_gb_s": round(copy / 1e9),
    }
    print(json.dumps(result), flush=True)
    parts = ("updates", "phases", "streams", "growth", "scans", "whole")
    result.update({part: [] for part in parts})
    for scale in scales:
        graph = Graph(scale, seed)
        print(f"scale {scale}: {graph.n_edges:,} edges, half of them loaded", flush=True)
        result["updates"] += show(f"updates, scale {scale}", updates(graph, batches, repeats, copy))
        result["phases"] += show(f"shares of a batch's kernels, scale {scale}", phases(graph, batches))
        result["streams"] += show(f"adversarial streams, scale {scale}", streams(graph, repeats))
        result["growth"] += show(f"growth, scale {scale}", growth(graph))
        result["scans"] += show(f"scans, scale {scale}", scans(graph, repeats))
        result["whole"] += show(f"whole arrays, scale {scale}", whole(graph, repeats, copy))
        del graph
        cupy.get_default_memory_pool().free_all_blocks()
    return result


# -- the machine and the clock ---------------------------------------------------------------------------------


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


def timed(work: Callable[[], Any], repeats: int) -> float:
    """Median seconds of device time, after a warm-up."""
    for _ in range(WARM_UP):
        work()
    seconds = []
    for _ in range(repeats):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        work()
        end.record()
        end.synchronize()
        seconds.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
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


# -- the graph -------------------------------------------------------------------------------------------------


class Graph:
    """The edges of a scale: ``loaded`` ascending, ``pool`` in random order; and their weights, 1 to 255."""

    def __init__(self, scale: int, seed: int) -> None:
        self.scale, self.n_vertices = scale, 1 << scale
        self.random = cupy.random.RandomState(seed)
        keys = self._generated(seed)
        self.n_edges = int(keys.size)
        half = (keys * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(63)).astype(bool)
        self.loaded = keys[half]
        pool = keys[~half]
        del keys, half
        if pool.size > POOL_MAX:
            pool = pool[cupy.unique(self.random.randint(0, pool.size, POOL_MAX))]
        self.pool = pool[self.random.permutation(pool.size)]
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
        keys = keys[(keys >> np.uint64(32)) != (keys & np.uint64(0xFFFFFFFF))]
        keys.sort()
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


# -- updates ---------------------------------------------------------------------------------------------------


def updates(graph: Graph, batches: list[int], repeats: int, copy: float) -> list[Row]:
    array = graph.array()
    rows = []
    for n in batches:
        if n > graph.pool.size:
            continue
        seconds: dict[str, list[float]] = {"insert": [], "delete": [], "mixed": []}
        touched = 0
        for step in range(WARM_UP + repeats):
            keys = graph.fresh(n)
            insert, delete = batch_of(graph, keys, True), batch_of(graph, keys, False)
            mixed = mixed_batch(graph, n)
            if step == 0:
                touched = touched_leaves(array, keys)
            for name, batch in (("insert", insert), ("delete", delete), ("mixed", mixed)):
                took, _ = clocked(partial(array.apply, batch))
                if step >= WARM_UP:
                    seconds[name].append(took)
            array.apply(inverse(graph, mixed))
        rebuild = rebuild_seconds(graph, n, repeats)
        leaf_bytes = 12 * array.n_edges / int(array.view().counts.size)
        for name, times in seconds.items():
            took = median(times)
            moved = n * UPDATE_BYTES + 2 * touched * leaf_bytes
            rows.append(
                {
                    "scale": graph.scale,
                    "batch": n,
                    "updates": name,
                    "us": took * 1e6,
                    "M/s": n / took / 1e6,
                    "min us": min(times) * 1e6,
                    "max us": max(times) * 1e6,
                    "share of copy": moved / took / copy,
                    "CSR rebuild us": rebuild * 1e6,
                    "x rebuild": rebuild / took,
                }
            )
    problems = array.check() if graph.scale <= 20 else []
    assert not problems, problems
    return rows


def touched_leaves(array: DevicePackedArray, keys: Any) -> int:
    heads = array._slots.heads[:-1]
    return int(cupy.unique(cupy.searchsorted(heads, keys, side="right")).size)


def rebuild_seconds(graph: Graph, n: int, repeats: int) -> float:
    """Sort a batch of inserts, merge it into the sorted edges, make the row offsets anew: CuPy's own functions."""
    weights = graph.weights(graph.loaded.size)
    batch_keys, batch_weights = graph.fresh(n), graph.weights(n)

    def rebuild() -> None:
        order = cupy.argsort(batch_keys)
        keys = batch_keys[order]
        places = cupy.searchsorted(graph.loaded, keys) + cupy.arange(n)
        old = cupy.ones(graph.loaded.size + n, bool)
        old[places] = False
        merged = cupy.empty(old.size, np.uint64)
        merged_weights = cupy.empty(old.size, np.float32)
        merged[places], merged_weights[places] = keys, batch_weights[order]
        merged[old], merged_weights[old] = graph.loaded, weights
        rows = cupy.arange(graph.n_vertices + 1, dtype=np.uint64) << np.uint64(32)
        cupy.searchsorted(merged, rows)

    return timed(rebuild, max(3, repeats // 2))


def phases(graph: Graph, batches: list[int]) -> list[Row]:
    """Device time by kernel of the ways that sort nothing, from events around each launch."""
    array = graph.array()
    names = {kernel.kernel.ptr: kernel.name for kernel in array._pipeline._kernels}
    launcher = array._pipeline._launcher
    plain = launcher.start, launcher.start_cooperative
    events: list[tuple[str, Any, Any]] = []

    def recorded(start: Callable[..., None]) -> Callable[..., None]:
        def start_recorded(kernel: int, *arguments: int) -> None:
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(array.stream)
            start(kernel, *arguments)
            end.record(array.stream)
            events.append((names[kernel], begin, end))

        return start_recorded

    rows = []
    for n in batches:
        if n > graph.pool.size:
            continue
        batch = batch_of(graph, graph.fresh(n), True)
        for step in range(WARM_UP + 1):
            if step == WARM_UP:
                launcher.start, launcher.start_cooperative = map(recorded, plain)
            array.apply(batch)
            launcher.start, launcher.start_cooperative = plain
            array.apply(inverse(graph, batch))
        array.stream.synchronize()
        seconds = [(name, cupy.cuda.get_elapsed_time(start, end)) for name, start, end in events]
        total = sum(took for _, took in seconds)
        if not seconds:
            continue
        text = ", ".join(f"{name} {took / total:.0%}" for name, took in seconds)
        rows.append({"scale": graph.scale, "batch": n, "kernels us": total * 1e3, "shares": text})
        events.clear()
    return rows


# -- streams that break packed arrays --------------------------------------------------------------------------


def streams(graph: Graph, repeats: int) -> list[Row]:
    n = min(STREAM_BATCH, int(graph.pool.size))
    last, hub = graph.n_vertices - 1, graph.n_vertices // 2
    arange = cupy.arange(n, dtype=np.uint64)
    base = np.uint64(1 << 31)
    row_of = {name: np.uint64(row << 32) for name, row in (("last", last), ("hub", hub))}
    steps: dict[str, Callable[[int], Any]] = {
        "ascending": lambda i: row_of["last"] + base + np.uint64(i * n) + arange,
        "descending": lambda i: row_of["last"] + base - np.uint64(i * n) - arange,
        "hub row": lambda i: row_of["hub"] + cupy.unique(graph.random.randint(0, 1 << 31, n)).astype(np.uint64),
        "one leaf": lambda i: row_of["hub"] + base + np.uint64(i) + arange * np.uint64(4096),
    }
    rows = []
    for name, keys_of in steps.items():
        array = graph.array()
        times, sizes, moved = [], [], 0
        for step in range(WARM_UP + repeats):
            batch = batch_of(graph, keys_of(step), True)
            took, report = clocked(partial(array.apply, batch))
            moved += report.slots_moved
            if step >= WARM_UP:
                times.append(took)
                sizes.append(len(batch))
        rows.append(stream_row(graph, name, times, sizes, moved / (WARM_UP + repeats)))
    rows.append(sliding_window(graph, n, repeats))
    return rows


def sliding_window(graph: Graph, n: int, repeats: int) -> Row:
    """Each batch inserts new edges and deletes those of four batches ago."""
    array = graph.array()
    window = [graph.fresh(n // 2) for _ in range(4)]
    for keys in window:
        array.apply(batch_of(graph, keys, True))
    times, moved = [], 0
    for step in range(WARM_UP + repeats):
        new = graph.fresh(n // 2)
        keys = cupy.concatenate([window.pop(0), new])
        ops = cupy.ones(keys.size, np.uint8)
        ops[: keys.size - new.size] = 0
        window.append(new)
        batch = batch_of(graph, keys, ops)
        took, report = clocked(partial(array.apply, batch))
        moved += report.slots_moved
        if step >= WARM_UP:
            times.append(took)
    return stream_row(graph, "sliding window", times, [2 * (n // 2)] * len(times), moved / (WARM_UP + repeats))


def stream_row(graph: Graph, name: str, times: list[float], sizes: list[int], moved: float) -> Row:
    rates = [size / took / 1e6 for size, took in zip(sizes, times, strict=True)]
    return {
        "scale": graph.scale,
        "stream": name,
        "batch": sizes[0],
        "us": median(times) * 1e6,
        "max us": max(times) * 1e6,
        "M/s": median(rates),
        "slots moved/update": moved / sizes[0],
    }


# -- growth ----------------------------------------------------------------------------------------------------


def growth(graph: Graph) -> list[Row]:
    """Fill the array with the pool; bytes per edge before and after each growth."""
    array = graph.array()
    rows = []
    n = max(1, min(int(graph.pool.size) // 200, 1_000_000))
    bytes_per_edge = []
    for begin in range(0, int(graph.pool.size) - n, n):
        batch = batch_of(graph, graph.pool[begin : begin + n], True)
        leaves, before = int(array._layout.n_leaves), held(array)
        took, _ = clocked(partial(array.apply, batch))
        bytes_per_edge.append(held(array))
        if int(array._layout.n_leaves) > leaves:
            rows.append(
                {
                    "scale": graph.scale,
                    "edges": array.n_edges,
                    "growth": array._layout.n_leaves / leaves,
                    "ms": took * 1e3,
                    "bytes/edge before": before,
                    "after": held(array),
                    "mean so far": sum(bytes_per_edge) / len(bytes_per_edge),
                    "max so far": max(bytes_per_edge),
                }
            )
    return rows


def held(array: DevicePackedArray) -> float:
    """Bytes per edge of all that an array keeps, work arrays for batches left out."""
    memory = array.memory_bytes()
    return sum(memory[part] for part in ("slots", "leaves", "rows")) / max(1, array.n_edges)


# -- scans -----------------------------------------------------------------------------------------------------


def scans(graph: Graph, repeats: int) -> list[Row]:
    """Pull SpMV and a pass over all edges, in place, as shares of a CSR's speed on the same edges."""
    array = graph.array()
    for _ in range(5):  # no fresh load: leaves as batches leave them
        array.apply(mixed_batch(graph, min(int(graph.pool.size) // 8, 1_000_000)))
    view = array.view()
    kernels = {
        name: module.load(KERNELS, weighted=True).get_function(name)
        for name in ("pull_by_leaf", "pull_by_row", "pull_by_tile", "iterate_leaves", "csr_pull", "csr_iterate")
    }
    n, n_leaves = graph.n_vertices, int(view.counts.size)
    x, y, total = (
        graph.random.random_sample(n).astype(np.float32),
        cupy.zeros(n, np.float32),
        cupy.zeros(1, np.uint64),
    )
    csr, arrays = csr_of(array)
    csr_blocks = blocks(32 * -(-view.n_edges // reads.CHUNK_EDGES))
    vertices = cupy.arange(n, dtype=np.uint32)
    walk_seconds = timed(lambda: reads.walk_of(view, vertices), 3)
    walk = reads.walk_of(view, vertices)
    tile_blocks = blocks(8 * n)
    leaf_blocks = blocks(32 * -(-n_leaves // LEAVES_A_WARP))
    row_blocks = blocks(32 * walk.n_chunks)
    some = (min(2112, leaf_blocks[0]),)
    times = {
        "CSR pull, own": timed(lambda: kernels["csr_pull"](csr_blocks, (THREADS,), (csr, x, y)), repeats),
        "CSR pull, cuSPARSE": cusparse_seconds(array, x, repeats),
        "pull by leaf": timed(
            lambda: kernels["pull_by_leaf"](leaf_blocks, (THREADS,), (view.state, x, y)), repeats
        ),
        "pull by row": timed(
            lambda: kernels["pull_by_row"](row_blocks, (THREADS,), (view.state, walk.walk, x, y)), repeats
        ),
        "pull by row, a tile each": timed(
            lambda: kernels["pull_by_tile"](tile_blocks, (THREADS,), (view.state, vertices, np.uint32(n), x, y)),
            repeats,
        ),
        "CSR all edges": timed(lambda: kernels["csr_iterate"](some, (THREADS,), (csr, total)), repeats),
        "all edges": timed(lambda: kernels["iterate_leaves"](some, (THREADS,), (view.state, total)), repeats),
    }
    assert_same_sums(kernels, view, walk, csr, (leaf_blocks, row_blocks, csr_blocks), x)
    pull = min(seconds for name, seconds in times.items() if name.startswith("CSR pull") and seconds)
    rows = []
    for name, seconds in times.items():
        bar = times["CSR all edges"] if "all edges" in name else pull
        rows.append(
            {
                "scale": graph.scale,
                "scan": name,
                "us": seconds * 1e6,
                "G edges/s": view.n_edges / seconds / 1e9 if seconds else 0.0,
                "share of CSR": bar / seconds if seconds else 0.0,
            }
        )
    rows.append({"scale": graph.scale, "scan": "preparing the walk by row", "us": walk_seconds * 1e6})
    rows[-1].update({"G edges/s": view.n_edges / walk_seconds / 1e9, "share of CSR": pull / walk_seconds})
    del arrays
    return rows


def csr_of(array: DevicePackedArray) -> tuple[Any, Any]:
    """struct Csr of storage_device.cu, and its arrays."""
    offsets, neighbors, weights = array.export_csr()
    vertices = cupy.flatnonzero(cupy.diff(offsets)).astype(np.uint32)
    offsets = cupy.append(offsets[vertices], offsets[-1:])
    chunks = cupy.arange(0, array.n_edges, reads.CHUNK_EDGES, dtype=np.uint64)
    chunk_rows = (cupy.searchsorted(offsets, chunks, side="right") - 1).astype(np.uint32)
    arrays = (vertices, offsets, neighbors, weights, chunk_rows)
    kind = [*((f"array{i}", np.uint64) for i in range(5)), ("n_edges", np.uint64), ("n_rows", np.uint32)]
    csr = np.zeros(1, np.dtype([*kind, ("unused", np.uint32)]))
    csr[0] = (*(column.data.ptr for column in arrays), array.n_edges, vertices.size, 0)
    return csr, arrays


def cusparse_seconds(array: DevicePackedArray, x: Any, repeats: int) -> float:
    """Seconds of CuPy's CSR product; 0 where it cannot be had."""
    try:
        from cupyx.scipy.sparse import csr_matrix

        offsets, neighbors, weights = array.export_csr()
        columns = (weights, neighbors.astype(np.int32), offsets.astype(np.int32))
        matrix = csr_matrix(columns, shape=(array.n_vertices, array.n_vertices))
        return timed(lambda: matrix @ x, repeats)
    except (ImportError, ValueError, RuntimeError) as error:
        print(f"no cuSPARSE: {error}")
        return 0.0


def assert_same_sums(kernels: Any, view: Any, walk: Any, csr: Any, grids: Any, x: Any) -> None:
    sums = []
    for name, grid, arguments in (
        ("pull_by_leaf", grids[0], (view.state,)),
        ("pull_by_row", grids[1], (view.state, walk.walk)),
        ("csr_pull", grids[2], (csr,)),
    ):
        y = cupy.zeros(x.size, np.float32)
        kernels[name](grid, (THREADS,), (*arguments, x, y))
        sums.append(y.get())
    for y in sums[:2]:
        assert np.allclose(y, sums[2], rtol=1e-3, atol=1e-3)


# -- whole arrays ----------------------------------------------------------------------------------------------


def whole(graph: Graph, repeats: int, copy: float) -> list[Row]:
    array = graph.array()
    n = array.n_edges
    order = graph.random.permutation(n)
    keys, weights = graph.loaded[order], graph.weights(n)
    sorted_edges = EdgeList(graph.loaded, weights)
    some = graph.random.randint(0, graph.n_vertices, ROWS_READ).astype(np.uint32)
    asked = cupy.concatenate([graph.loaded[order[:500_000]], graph.pool[:500_000]])
    gathered = int(array.rows(some).neighbors.size)
    times = {
        "load, sorted": (lambda: array.load(sorted_edges), n, 2 * 12 * n),
        "load, unsorted": (lambda: array.load_unsorted(keys, weights), n, 2 * 12 * n),
        "export": (array.export, n, 2 * 12 * n),
        "export as CSR": (array.export_csr, n, 20 * n),
        f"rows of {ROWS_READ:,} vertices": (lambda: array.rows(some), gathered, 20 * gathered),
        "look-ups": (lambda: array.has_edge(asked), int(asked.size), 9 * int(asked.size)),
    }
    rows = []
    for name, (work, edges, n_bytes) in times.items():

        def whole_work(work: Callable[[], Any] = work) -> None:
            work()
            array.stream.synchronize()

        took = median([clocked(whole_work)[0] for _ in range(WARM_UP + max(3, repeats // 2))][WARM_UP:])
        rows.append(
            {
                "scale": graph.scale,
                "what": name,
                "ms": took * 1e3,
                "M edges/s": edges / took / 1e6,
                "share of copy": n_bytes / took / copy,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scales", type=int, nargs="+", default=[18, 20, 22])
    parser.add_argument("--batches", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = run(options.scales, options.batches, options.repeats, options.seed)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
