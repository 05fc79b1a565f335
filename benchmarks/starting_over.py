"""What a batch costs core numbers beside a fresh start of the graph behind it, also where they start over.

    python benchmarks/starting_over.py [--scale 18] [--batch 1000,5000,10000,20000] [--epochs 8] [--json FILE]

An undirected RMAT graph of 8 edges a vertex, half of a pool; a fifth of the updates of a batch are deletions.
After each batch a second program starts three times; the median of these is what the refresh is divided by.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from report import machine, save, show

from graphtide.compute.cores import KCore
from graphtide.daemon.tools.generate import Churn
from graphtide.gpma.edges import EdgeBatch, pack
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

STARTS = 3


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    arguments = _arguments()
    churn = Churn(scale=arguments.scale, pool=16 << arguments.scale, seed=arguments.seed)
    index, graph = VertexIndex.create("int"), Graph(directed=False, weighted=False)
    kept, fresh = KCore("kept"), KCore("fresh")

    def apply(updates: Any) -> Any:
        batch = EdgeBatch(pack(*index.insert_edges(updates.src, updates.dst)), updates.ops)
        return graph.apply(batch, index.n_vertices)

    for updates in churn.load(churn.src.size // 2):
        apply(updates)
    kept.start(graph)
    fresh.start(graph)
    rows = []
    for size in arguments.batch:
        ratios, over, start_s = [], 0, 0.0
        for _ in range(arguments.epochs):
            change = apply(churn.next(size))
            started = time.perf_counter()
            over += kept.refresh(graph, change).started_over
            took = time.perf_counter() - started
            start_s = float(np.median([seconds(lambda: fresh.start(graph)) for _ in range(STARTS)]))
            ratios.append(took / start_s)
        spread = {"least": min(ratios), "median": float(np.median(ratios)), "most": max(ratios)}
        rows.append({"updates": size, "started over": over, **spread, "a start ms": 1e3 * start_s})
    assert not kept.audit(graph)
    show(f"refreshes in fresh starts, RMAT scale {arguments.scale}, {graph.n_edges:,} edges", rows)
    save(arguments.json, {"machine": machine(), "rows": rows})
    graph.close()


def _arguments() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",") if part]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=18, help="2^scale vertices")
    parser.add_argument("--batch", type=numbers, default=[1_000, 5_000, 10_000, 20_000], help="updates of a batch")
    parser.add_argument("--epochs", type=int, default=8, help="batches of each size")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
