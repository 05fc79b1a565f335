"""A graph with a device beside the host: what a batch costs there, by step, and what that adds to the host's time.

The R-MAT graph of ``storage_device.py``, half of it loaded, directed, in-rows kept; batches of 80% inserts and
20% deletes, in columns of the graph's, and after each the one that takes it back. A graph with a device and one
without apply the same batches in turns; medians of wall time, the first pair of each size left out. ``prepare``
uploads the columns and turns them; ``launch`` begins; ``finish`` waits for both arrays.

    python benchmarks/sides.py --scale 20 --batches 1 100 10000 100000 1000000 --json out.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from device_graph import Graph as Edges
from device_graph import Row, cupy, inverse, machine, mixed_batch, show

from graphtide.gpma.edges import EdgeBatch, EdgeList
from graphtide.partition.graph import Graph

STEPS = ("prepare", "launch", "finish")


class Steps:
    """Seconds that each step of the device side takes, as the graph calls it."""

    def __init__(self, graph: Graph) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in STEPS}
        for name in STEPS:
            setattr(graph.device, name, self._timed(name, getattr(graph.device, name)))

    def _timed(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def call(argument: Any) -> Any:
            begun = time.perf_counter()
            result = step(argument)
            self.seconds[name].append(time.perf_counter() - begun)
            return result

        return call


def run(scale: int, batches: list[int], repeats: int, seed: int) -> dict[str, Any]:
    """Measure, print tables, return what was printed."""
    edges = Edges(scale, seed)
    loaded = EdgeList(cupy.asnumpy(edges.loaded), cupy.asnumpy(edges.weights(edges.loaded.size)))
    alone, both = Graph(), Graph(device=True)
    try:
        loads = []
        for graph, name in ((alone, "host"), (both, "host and device")):
            begun = time.perf_counter()
            graph.load(loaded, edges.n_vertices)
            loads.append({"sides": name, "edges": len(loaded), "load s": time.perf_counter() - begun})
        steps = Steps(both)
        result: dict[str, Any] = {"machine": machine(), "scale": scale, "loads": show("loads", loads)}
        rows = [row_of(edges, alone, both, steps, n, repeats) for n in batches if n <= edges.pool.size]
        result["batches"] = show(f"batches, scale {scale}, microseconds", rows)
        assert both.device is not None, both.device_lost
        stored = [sum(graph.memory_bytes().values()) for graph in (both.host, both.device)]
        result["bytes"] = show(
            "memory", [{"side": side, "bytes": n} for side, n in zip(("host", "device"), stored, strict=True)]
        )
        if scale <= 20:
            problems = both.check()
            assert not problems, problems
    finally:
        alone.close()
        both.close()
    return result


def row_of(edges: Edges, alone: Graph, both: Graph, steps: Steps, n: int, repeats: int) -> Row:
    for seconds in steps.seconds.values():
        seconds.clear()
    applied: dict[str, list[float]] = {"host": [], "both": []}
    for _ in range(repeats + 1):
        there = mixed_batch(edges, n)
        for batch in (there, inverse(edges, there)):
            for name, graph in (("host", alone), ("both", both)):
                columns = filled(graph, batch)
                begun = time.perf_counter()
                graph.apply(columns, edges.n_vertices)
                applied[name].append(time.perf_counter() - begun)
    wall = {name: median(seconds[2:]) * 1e6 for name, seconds in applied.items()}
    taken = {name: median(seconds[2:]) * 1e6 for name, seconds in steps.seconds.items()}
    return {
        "batch": n,
        **taken,
        "device in all": sum(taken.values()),
        "host alone": wall["host"],
        "both": wall["both"],
        "added": wall["both"] - wall["host"],
    }


def filled(graph: Graph, batch: EdgeBatch) -> EdgeBatch:
    """The batch in columns of the graph's, as the daemon puts it together."""
    columns = graph.columns(len(batch), weighted=True)
    for name in ("keys", "ops", "weights"):
        getattr(columns, name)[:] = cupy.asnumpy(getattr(batch, name))
    return columns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 100, 10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result = run(given.scale, given.batches, given.repeats, given.seed)
    if given.json:
        given.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
