"""The packed array on a CUDA device: updates, growth, scans, load and export, against baselines of the same run.

R-MAT graphs as everywhere in the benchmarks (a=.57, b=c=.19, 16 edges a vertex, vertices renamed at random,
duplicates and loops removed), generated on the device; half of the edges are loaded, the rest is streamed. Every
time is from the call to the report, batch on the device, growth and report included; medians after a warm-up.

    python benchmarks/storage_device.py --scales 18 22 --batches 1000 1000000 --json out.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from device_graph import (
    WARM_UP,
    Graph,
    Row,
    batch_of,
    clocked,
    copy_bandwidth,
    cupy,
    inverse,
    machine,
    mixed_batch,
    show,
    timed,
)
from storage_device_reads import scans, whole

from graphtide.gpma.device.array import DevicePackedArray

STREAM_BATCH = 100_000
# Batches of one kind in a row add at most this share to the edges.
SHARE_ADDED = 0.05
# Small batches are repeated more often: so many times, or until so many updates are applied.
SMALL_REPEATS, SMALL_UPDATES = 60, 400_000
# Bytes of an update that cannot be avoided: key, op and weight read, outcome and old weight written.
UPDATE_BYTES = 8 + 1 + 4 + 1 + 4


def run(scales: list[int], batches: list[int], repeats: int, seed: int) -> dict[str, Any]:
    """Measure everything, print tables, return what was printed and more as plain values."""
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


# -- updates ---------------------------------------------------------------------------------------------------


def updates(graph: Graph, batches: list[int], repeats: int, copy: float) -> list[Row]:
    array = graph.array()
    rows = []
    for n in batches:
        if n > graph.pool.size:
            continue
        touched = touched_leaves(array, graph.fresh(n))
        seconds = update_seconds(graph, array, n, WARM_UP + times_of(n, repeats))
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


def update_seconds(graph: Graph, array: DevicePackedArray, n: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each insert, delete and mixed batch of ``n``, but for the first; the array is then as before.

    Batches of one kind follow each other as far as they add no more than ``SHARE_ADDED`` to the graph.
    """
    seconds: dict[str, list[float]] = {"insert": [], "delete": [], "mixed": []}
    together = max(1, min(repeats, int(SHARE_ADDED * array.n_edges) // n))
    for _ in range(-(-repeats // together)):
        keys = [graph.fresh(n) for _ in range(together)]
        batches = {
            "insert": [batch_of(graph, some, True) for some in keys],
            "delete": [batch_of(graph, some, False) for some in keys],
            "mixed": [mixed_batch(graph, n) for _ in keys],
        }
        for name, times in seconds.items():
            times += [clocked(partial(array.apply, batch))[0] for batch in batches[name]]
        for batch in reversed(batches["mixed"]):
            array.apply(inverse(graph, batch))
    return {name: times[WARM_UP:] for name, times in seconds.items()}


def times_of(n: int, repeats: int) -> int:
    return max(repeats, min(SMALL_REPEATS, SMALL_UPDATES // n))


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
    """Device time by kernel of the ways that sort nothing, medians from events around each launch."""
    array = graph.array()
    names = {kernel.kernel.ptr: kernel.name for kernel in array.kernels._functions}
    launcher = array.kernels._launcher
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
        for step in range(WARM_UP + times_of(n, 5)):
            if step >= WARM_UP:
                launcher.start, launcher.start_cooperative = map(recorded, plain)
                launcher.hold = launcher.begin = lambda: None  # events stand between launches
            array.apply(batch)
            for name in ("start", "start_cooperative", "hold", "begin"):
                vars(launcher).pop(name, None)
            array.apply(inverse(graph, batch))
        array.stream.synchronize()
        seconds: dict[str, list[float]] = {}
        for name, start, end in events:
            seconds.setdefault(name, []).append(cupy.cuda.get_elapsed_time(start, end))
        events.clear()
        if not seconds:
            continue
        medians = {name: median(times) for name, times in seconds.items()}
        total = sum(medians.values())
        text = ", ".join(f"{name} {took / total:.0%}" for name, took in medians.items())
        rows.append({"scale": graph.scale, "batch": n, "kernels us": total * 1e3, "shares": text})
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
