"""Updates a second through ``Graph.apply``, by where the rows are.

The R-MAT graph of ``storage_device.py``, half of it loaded, directed, weighted, in-rows kept; batches of 80%
inserts and 20% deletes in columns of the graph's, each followed by the one that takes it back. All graphs
apply the same batches; medians of wall time, the first pair of each size left out. ``host``: the host alone,
all cores; ``all``: the host has every row and the device the same ones; ``owned p%``: each row is on one
side, so large a share of the arcs (rows by hash) on the host. Of these the milliseconds from begin to end of
either side's part stand beside it, which overlap, and the rest of the time, in ``other ms``: routing, looking
up, uploading. ``report ms``, after that, is what the first program takes that asks the device for what both did.

    python benchmarks/shares.py --scale 22 --batches 1000 10000 100000 1000000 10000000 --json out.json
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from device_graph import Graph as Edges
from device_graph import Row, by_hash, cupy, inverse, machine, mixed_batch, show
from sides import filled

from graphtide.gpma.edges import EdgeList
from graphtide.partition.graph import Graph
from graphtide.partition.placement import HOST


def graphs(shares: list[float]) -> list[tuple[str, dict[str, Any], float | None]]:
    """Name, options, and the share of the host."""
    owned = [(f"owned {share:.1%}", {"device": True, "host_rows": "owned"}, share) for share in shares]
    return [("host", {}, None), ("all", {"device": True}, None), *owned]


def run(scale: int, batches: list[int], shares: list[float], repeats: int, seed: int, to: Path | None) -> None:
    edges = Edges(scale, seed)
    loaded = EdgeList(cupy.asnumpy(edges.loaded), cupy.asnumpy(edges.weights(edges.loaded.size)))
    sizes = [n for n in batches if n <= edges.pool.size]
    rows: list[Row] = []
    for name, options, share in graphs(shares):
        graph = Graph(**options)
        try:
            begun = time.perf_counter()
            graph.load(loaded, edges.n_vertices)
            loading = time.perf_counter() - begun
            moving = 0.0
            if share is not None:
                begun = time.perf_counter()
                graph.migrate(by_hash(graph, share), HOST)
                moving = time.perf_counter() - begun
            for n in sizes:
                rows.append({"rows": name, "batch": n, **measured(graph, edges, n, repeats)})
                print(rows[-1], flush=True)
            print(f"{name}: loaded in {loading:.2f} s, moved in {moving:.2f} s", flush=True)
            if scale <= 20:
                problems = graph.check()
                assert not problems, problems
        finally:
            graph.close()
        del graph
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
        if to:
            to.write_text(json.dumps({"machine": machine(), "scale": scale, "rows": rows}, indent=2))
    show(f"updates through apply, scale {scale}", rows)


def measured(graph: Graph, edges: Edges, n: int, repeats: int) -> Row:
    seconds: list[float] = []
    by_side: dict[str, list[float]] = {"host": [], "device": [], "report": []}
    for _ in range(repeats + 1):
        there = mixed_batch(edges, n)
        for batch in (there, inverse(edges, there)):
            columns = filled(graph, batch)
            begun = time.perf_counter()
            graph.apply(columns, edges.n_vertices)
            seconds.append(time.perf_counter() - begun)
            for part in graph.applied:
                by_side[part.side].append(part.seconds)
            if graph.owned and graph.device is not None:
                begun = time.perf_counter()
                assert graph.device.report is not None
                graph.device.stream.synchronize()
                by_side["report"].append(time.perf_counter() - begun)
    assert graph.device_lost is None, graph.device_lost
    took = median(seconds[2:])
    row: Row = {"ms": took * 1e3, "M/s": n / took / 1e6}
    host, device, report = (median(by_side[what][2:]) if by_side[what] else 0.0 for what in by_side)
    other = took - max(host, device)
    return {
        **row,
        "host ms": host * 1e3,
        "device ms": device * 1e3,
        "other ms": other * 1e3,
        "report ms": report * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=22)
    parser.add_argument("--batches", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 0.01, 0.05, 0.25, 1])
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    run(given.scale, given.batches, given.shares, given.repeats, given.seed, given.json)


if __name__ == "__main__":
    main()
