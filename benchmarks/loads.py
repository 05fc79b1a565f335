"""Loading a graph: out-rows, and in-rows, which are put in order first.

    python benchmarks/loads.py [--edges N] [--vertices N] [--json FILE]

Edges are random, with many heads in common. The ratio is to one stable ``argsort`` of the in-rows' keys by NumPy
in the same run. Each figure is the median of five loads, the first one left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from report import machine, save, show

from graphtide.gpma.edges import EdgeList, pack, transpose
from graphtide.gpma.host import array as pma
from graphtide.partition import graph
from graphtide.partition.graph import Graph

EDGES, VERTICES = 10_000_000, 1 << 20
ROUNDS = 5
SEED = 1


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def run(n_edges: int = EDGES, n_vertices: int = VERTICES) -> dict[str, Any]:
    """Measure graphs with and without weights and in-rows."""
    pma.warm_up()
    graph.warm_up()
    rng = np.random.default_rng(SEED)
    src = rng.integers(0, n_vertices, n_edges)
    keys = np.unique(pack(src, (rng.random(n_edges) ** 2 * n_vertices).astype(np.uint32)))
    weights = rng.random(keys.size).astype(np.float32)
    sort = seconds(lambda: np.argsort(transpose(keys), kind="stable"))
    rows = []
    for weighted, in_edges in ((False, False), (False, True), (True, True)):
        loaded = Graph(weighted=weighted, in_edges=in_edges)
        edges = EdgeList(keys, weights if weighted else None)
        times = [seconds(lambda to=loaded, edges=edges: to.load(edges, n_vertices)) for _ in range(ROUNDS + 1)]  # type: ignore[misc]
        loaded.close()
        median = float(np.median(times[1:]))
        rows.append(
            {
                "weighted": weighted,
                "in-rows": in_edges,
                "load s": median,
                "argsort s": sort,
                "ratio": sort / median,
            }
        )
    return {"machine": machine(), "seed": SEED, "edges": int(keys.size), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=EDGES)
    parser.add_argument("--vertices", type=int, default=VERTICES)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = run(arguments.edges, arguments.vertices)
    show(f"{result['edges']:,} edges, {arguments.vertices:,} vertices", result["rows"])
    save(arguments.json, result)


if __name__ == "__main__":
    main()
