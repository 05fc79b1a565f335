"""What a graph takes of the host's memory while it grows from nothing, and while it shrinks again.

    python benchmarks/growth.py [--scale 20] [--edges 10000000] [--batch 100000] [--json growth.json]

RMAT pairs come in batches, each pair once, and go in another order; weights are kept, and rows in both directions.
``bytes an edge``: of slots and leaves; ``vertices MB``: of what has an entry for each vertex, all of which are
known from the beginning; ``scratch MB``: what batches need meanwhile; ``density``: how full slots are.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from report import machine, save, show
from rich.progress import track

from graphtide.daemon.tools.generate import distinct_rmat
from graphtide.gpma.edges import EdgeBatch, Op, pack
from graphtide.partition.graph import Graph

# Rows are taken where there are so many times as many edges as in the row before, or fewer.
STEP = 2.0


def row(graph: Graph, phase: str) -> dict[str, Any]:
    """What the graph takes now."""
    parts = graph.memory_bytes()
    return {
        "phase": phase,
        "edges": graph.n_edges,
        "bytes an edge": (parts["slots"] + parts["leaves"]) / graph.n_edges,
        "vertices MB": (parts["rows"] + parts["vertices"]) / 1e6,
        "scratch MB": parts["scratch"] / 1e6,
        "density": graph.density,
    }


def run(scale: int, n_edges: int, batch: int, seed: int) -> list[dict[str, Any]]:
    """Rows while edges come, and while they go."""
    rng = np.random.default_rng(seed)
    src, dst = distinct_rmat(scale, n_edges, rng)
    keys = pack(src.astype(np.uint32), dst.astype(np.uint32))
    graph = Graph()
    rows = []
    try:
        for phase, op in (("growing", Op.INSERT), ("shrinking", Op.DELETE)):
            last = float(graph.n_edges)
            order = rng.permutation(keys.size)
            for begin in track(range(0, keys.size, batch), description=phase, transient=True):
                its = keys[order[begin : begin + batch]]
                ops, weights = np.full(its.size, op, np.uint8), np.ones(its.size, np.float32)
                graph.apply(EdgeBatch(its, ops, weights), 1 << scale)
                now = graph.n_edges
                if now and (now >= STEP * last or now * STEP <= last or now == keys.size):
                    rows.append(row(graph, phase))
                    last = now
    finally:
        graph.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=20, help="2**SCALE vertices")
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=100_000, help="updates")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = run(arguments.scale, arguments.edges, arguments.batch, arguments.seed)
    show("memory of a graph that grows and shrinks", rows)
    parameters = {name: str(value) for name, value in vars(arguments).items()}
    save(arguments.json, {"machine": machine(), "parameters": parameters, "rows": rows})


if __name__ == "__main__":
    main()
