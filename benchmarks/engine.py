"""Where an epoch's time goes, without sources, server or sockets: index, apply, each program.

    python benchmarks/engine.py [--scale 20] [--batch 100,10000,100000,1000000] [--programs bfs,pagerank]

The graph and the updates are those of ``end_to_end.py``. Each row is the median of so many epochs; ``cores`` are
those that the programs kept busy meanwhile; the last column is the ratio to a fresh start of all programs on the
same graph in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from report import machine, save, show

from graphtide.compute import registry
from graphtide.compute.engine import Engine
from graphtide.compute.program import ExternalId
from graphtide.daemon.tools.generate import Churn, Updates
from graphtide.gpma.edges import EdgeBatch, Vertices, pack
from graphtide.gpma.host import array as pma
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph, GraphChange

PROGRAMS = ("bfs", "components", "pagerank")


class Bench:
    """A loaded graph with these programs kept."""

    def __init__(self, churn: Churn, edges: int, kinds: Sequence[str] = PROGRAMS) -> None:
        self.index = VertexIndex.create("int")
        self.graph = Graph()
        for updates in churn.load(edges):
            self.apply(updates)
        root = int(np.bincount(churn.src).argmax())
        parameters: dict[str, dict[str, Any]] = {"bfs": {"source": root}, "components": {}, "pagerank": {}}
        programs = [registry.make_program(kind, None, parameters[kind], self.index) for kind in kinds]
        self.engine = Engine(self.graph, programs, self.resolve)

    def resolve(self, ids: Sequence[ExternalId]) -> Vertices:
        return self.index.lookup(np.array(ids, np.int64))

    def apply(self, updates: Updates) -> tuple[GraphChange, float, float]:
        """Index and apply a batch; the change and the seconds of either."""
        started = time.perf_counter()
        src, dst = self.index.insert_edges(updates.src, updates.dst)
        indexed = time.perf_counter()
        change = self.graph.apply(EdgeBatch(pack(src, dst), updates.ops, updates.weights), self.index.n_vertices)
        return change, indexed - started, time.perf_counter() - indexed

    def epoch(self, updates: Updates) -> dict[str, float]:
        """One epoch; milliseconds by stage, and edges read."""
        change, index_s, apply_s = self.apply(updates)
        started, used = time.perf_counter(), time.process_time()
        runs = self.engine.refresh(change)
        took, used = time.perf_counter() - started, time.process_time() - used
        row = {"index ms": index_s * 1e3, "apply ms": apply_s * 1e3, "compute ms": took * 1e3}
        row |= {"cores": used / took, "edges read": 0.0}
        for run in runs:
            assert run.refresh is not None, run.error
            row[f"{run.id} ms"] = run.seconds * 1e3
            row["edges read"] += run.refresh.edges_read
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--batch", default="100,1000,10000,100000,500000,1000000")
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--epochs", type=int, default=7, help="epochs at each batch size, after a first one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pma.warm_up()
    registry.warm_up(directed=True, weighted=True)
    churn = Churn(scale=arguments.scale, pool=20_000_000 * 2**arguments.scale // 2**20, seed=arguments.seed)
    bench = Bench(churn, churn.settles_at, arguments.programs.split(","))
    starts = []
    for _ in range(3):
        started = time.perf_counter()
        runs = bench.engine.start()
        starts.append((time.perf_counter() - started) * 1e3)
    fresh = {f"{run.id} ms": run.seconds * 1e3 for run in runs} | {"all ms": float(np.median(starts))}
    show("from scratch", [fresh])
    rows = []
    for batch in map(int, arguments.batch.split(",")):
        bench.epoch(churn.next(batch))
        epochs = [bench.epoch(churn.next(batch)) for _ in range(arguments.epochs)]
        row = {name: float(np.median([epoch[name] for epoch in epochs])) for name in epochs[0]}
        total = row["index ms"] + row["apply ms"] + row["compute ms"]
        rate = {
            "updates/s": int(batch / total * 1e3),
            "fresh start / compute": fresh["all ms"] / row["compute ms"],
        }
        rows.append({"batch": batch, **row, **rate})
    show(f"median of {arguments.epochs} epochs, {bench.graph.n_edges:,} edges", rows)
    save(
        arguments.json,
        {"machine": machine(), "parameters": vars(arguments) | {"json": None}, "rows": rows, "fresh": fresh},
    )


if __name__ == "__main__":
    main()
