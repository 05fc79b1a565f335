"""PageRank and personalised PageRank alone: time, and edges visited, by batch size.

    python benchmarks/walks.py [--scale 20] [--batch 100,10000,1000000] [--tolerance 1e-3,1e-4] [--json FILE]

The graph and the updates are those of ``end_to_end.py``. ``visits`` are edges read by programs, each once for
every time; ``of a pass`` compares with one dense pass over all edges on two threads, measured in the same run:
the floor of anything that reads the whole graph once. Fresh starts stand in the last column. Programs of all
tolerances see the same epochs, one after the other.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import machine, save, show

from graphtide.compute.pagerank import PageRank
from graphtide.compute.ppr import PersonalisedPageRank
from graphtide.compute.program import Program, Refresh
from graphtide.compute.walk_pulls import BLOCK, Estimate, Limits, Pulls
from graphtide.daemon.generate import Churn, Updates
from graphtide.gpma.edges import EdgeBatch, pack
from graphtide.gpma.vertex_index import VertexIndex
from graphtide.partition.graph import Graph, GraphChange


class Bench:
    """A loaded graph, and programs of each tolerance."""

    def __init__(self, churn: Churn, tolerances: list[float]) -> None:
        self.index = VertexIndex.create("int")
        self.graph = Graph(weighted=False)
        for updates in churn.load(churn.settles_at):
            self.apply(updates)
        hub = int(self.graph.out_rows().degrees[: self.graph.n_vertices].argmax())
        self.programs: list[Program] = []
        for tolerance in tolerances:
            walker = PersonalisedPageRank(f"ppr {tolerance:g}", (hub,), tolerance=tolerance)
            walker.bind(np.array([hub], np.uint32))
            self.programs += [PageRank(f"pagerank {tolerance:g}", tolerance=tolerance), walker]

    def apply(self, updates: Updates) -> GraphChange:
        src, dst = self.index.insert_edges(updates.src, updates.dst)
        return self.graph.apply(EdgeBatch(pack(src, dst), updates.ops, None), self.index.n_vertices)

    def starts(self) -> dict[str, float]:
        """Milliseconds of a fresh start, the median of three."""
        taken: dict[str, list[float]] = {program.id: [] for program in self.programs}
        for _ in range(3):
            for program in self.programs:
                begun = time.perf_counter()
                program.start(self.graph)
                taken[program.id].append((time.perf_counter() - begun) * 1e3)
        return {id: float(np.median(times)) for id, times in taken.items()}

    def epochs(self, churn: Churn, batch: int, count: int) -> dict[str, list[tuple[float, Refresh]]]:
        """So many epochs after a first one: (milliseconds, report) by program."""
        found: dict[str, list[tuple[float, Refresh]]] = {program.id: [] for program in self.programs}
        for epoch in range(count + 1):
            change = self.apply(churn.next(batch))
            for program in self.programs:
                begun = time.perf_counter()
                report = program.refresh(self.graph, change)
                if epoch:
                    found[program.id].append(((time.perf_counter() - begun) * 1e3, report))
        return found

    def pass_ms(self) -> float:
        """Milliseconds of one dense pass, the median of nine."""
        n = self.graph.n_vertices
        capacity = -(-n // 128) * 128
        ones = np.ones(capacity, np.float32)
        estimate = Estimate(
            np.ones(capacity), np.zeros(capacity), ones, ones, np.zeros(capacity // BLOCK, np.uint8)
        )
        pulls = Pulls("floor", 0.85)
        degrees = self.graph.out_rows().degrees
        pulls.begin(self.graph.in_rows(), degrees, n, estimate)
        times = []
        for _ in range(9):
            begun = time.perf_counter()
            pulls.step(self.graph.in_rows(), degrees, estimate, Limits(1.0, 1.0))
            times.append((time.perf_counter() - begun) * 1e3)
        return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--batch", default="100,1000,10000,100000,500000,1000000")
    parser.add_argument("--tolerance", default="1e-3")
    parser.add_argument("--epochs", type=int, default=7, help="epochs at each batch size, after a first one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    churn = Churn(scale=arguments.scale, pool=20_000_000 * 2**arguments.scale // 2**20, seed=arguments.seed)
    bench = Bench(churn, [float(tolerance) for tolerance in arguments.tolerance.split(",")])
    bench.starts()  # compiles
    floor, fresh = bench.pass_ms(), bench.starts()
    rows: list[dict[str, Any]] = []
    for batch in map(int, arguments.batch.split(",")):
        for id, epochs in bench.epochs(churn, batch, arguments.epochs).items():
            ms = float(np.median([taken for taken, _ in epochs]))
            visits = float(np.median([report.edges_read for _, report in epochs]))
            rows.append(
                {
                    "program": id,
                    "batch": batch,
                    "ms": ms,
                    "visits": visits,
                    "visits / update": visits / batch,
                    "visits / edge": visits / bench.graph.n_arcs,
                    "pushes": float(np.median([report.active for _, report in epochs])),
                    "error bound": max(report.error_bound or 0.0 for _, report in epochs),
                    "of a pass": ms / floor,
                    "fresh ms": fresh[id],
                }
            )
    show(f"median of {arguments.epochs} epochs, {bench.graph.n_edges:,} edges, a pass {floor:.1f} ms", rows)
    save(
        arguments.json,
        {"machine": machine(), "parameters": vars(arguments) | {"json": None}, "pass_ms": floor, "rows": rows},
    )


if __name__ == "__main__":
    main()
