"""Path programs from scratch and after batches of changes, the storage left out.

    python benchmarks/paths.py [--scale 20] [--batch 1,100,10000,100000] [--json FILE]
    python benchmarks/paths.py --crossover [--scale 20]

The graph and the updates are those of ``end_to_end.py``: RMAT, weights 1 to 255, four fifths upserts (which
replace the weight of an edge that is there) and a fifth deletions. Programs take turns on every batch, and begin
in another order each time, since the first one finds the caches cold. Medians; the last column is the ratio to a
fresh start of the same program in the same run. Every program is audited at the end.

``--crossover`` asks when starting over is cheaper than settling lost support: ever larger changes, to the whole
graph or around its largest hubs, each settled to the end however long it takes, beside a fresh start on the same
graph. ``share``: the part of all arcs that settling read.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from report import machine, save, show

from graphtide.compute import registry
from graphtide.compute.paths import program as path_program
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.paths.loss import LINE, READ
from graphtide.compute.paths.program import PathProgram
from graphtide.compute.paths.sssp import SSSP
from graphtide.compute.paths.sswp import SSWP
from graphtide.compute.program import Refresh
from graphtide.daemon.tools.generate import Churn, Updates
from graphtide.gpma.edges import EdgeBatch, Op
from graphtide.gpma.host import array as pma
from graphtide.partition.graph import Graph, GraphChange


class Bench:
    """A loaded graph and the three programs from its largest hub."""

    def __init__(self, churn: Churn, n_vertices: int) -> None:
        self.n = n_vertices
        self.graph = Graph()
        for updates in churn.load(churn.settles_at):
            self.apply(updates)
        root = int(np.bincount(churn.src).argmax())
        kinds: tuple[type[PathProgram], ...] = (BFS, SSSP, SSWP)
        self.programs = [kind(kind.kind, (root,)) for kind in kinds]
        for program in self.programs:
            program.bind(np.array([root], np.uint32))
            program.start(self.graph)
        self.turn = 0

    def apply(self, updates: Updates) -> GraphChange:
        return self.graph.apply(EdgeBatch.of(updates.src, updates.dst, updates.ops, updates.weights), self.n)

    def measure(self, work: Callable[[PathProgram], Refresh]) -> dict[str, tuple[float, Refresh]]:
        """Seconds and report of each program, in a new order."""
        self.turn += 1
        found = {}
        for k in range(len(self.programs)):
            program = self.programs[(k + self.turn) % len(self.programs)]
            started = time.perf_counter()
            refresh = work(program)
            found[program.id] = time.perf_counter() - started, refresh
        return found


def table(
    runs: list[dict[str, tuple[float, Refresh]]], fresh_ms: dict[str, float], batch: str
) -> list[dict[str, Any]]:
    """One row per program: medians over the runs."""
    rows = []
    for id in sorted(runs[0]):
        ms = float(np.median([run[id][0] for run in runs])) * 1e3
        reports = [run[id][1] for run in runs]
        rows.append(
            {
                "batch": batch,
                "program": id,
                "ms": ms,
                "edges read": float(np.median([report.edges_read for report in reports])),
                "active": float(np.median([report.active for report in reports])),
                "started over": sum(report.started_over for report in reports),
                "fresh start / this": fresh_ms.get(id, ms) / ms,
            }
        )
    return rows


def changes_to_settle(churn: Churn) -> Iterator[tuple[str, Updates]]:
    """Ever larger changes: of the usual mix, of deletions alone, and of all out-edges of the largest hubs."""
    for share in (0.003, 0.01, 0.03, 0.1, 0.3):
        yield f"{share:.1%} mixed", churn.next(int(share * churn.settles_at))
    degrees = np.bincount(churn.src)
    hubs = np.argsort(degrees)[::-1]
    for first, last in ((1, 4), (4, 20), (20, 100), (100, 500), (500, 2_500)):
        named = np.zeros(degrees.size, bool)
        named[hubs[first:last]] = True
        yield f"out of hubs {first} to {last}", deletion(churn, np.flatnonzero(named[churn.src] & churn.present))
    rng = np.random.default_rng(1)
    for share in (0.003, 0.01, 0.03, 0.1, 0.3):
        present = np.flatnonzero(churn.present)
        yield (
            f"{share:.1%} deleted",
            deletion(churn, rng.choice(present, int(share * present.size), replace=False)),
        )


def deletion(churn: Churn, chosen: npt.NDArray[np.int64]) -> Updates:
    """The deletion of these pairs of the pool."""
    churn.present[chosen] = False
    ops = np.full(chosen.size, Op.DELETE, np.uint8)
    return Updates(churn.src[chosen], churn.dst[chosen], ops, np.ones(chosen.size, np.float32))


def crossover(bench: Bench, churn: Churn) -> list[dict[str, Any]]:
    """One row per change and program: a refresh that never gives up, and a fresh start."""
    path_program.SETTLE_SHARE = dict.fromkeys(path_program.SETTLE_SHARE, 1e9)
    rows = []
    for what, updates in changes_to_settle(churn):
        change = bench.apply(updates)
        for program in bench.programs:
            read_by_thread = program._loss.counters[READ::LINE]
            read_by_thread[:] = 0
            started = time.perf_counter()
            refresh = program.refresh(bench.graph, change)
            ms = (time.perf_counter() - started) * 1e3
            read = int(read_by_thread.sum())
            fresh_ms = 1e9
            for _ in range(3):
                started = time.perf_counter()
                program.start(bench.graph)
                fresh_ms = min(fresh_ms, (time.perf_counter() - started) * 1e3)
            row = {"change": f"{what} ({change.arcs.deleted.keys.size:,} deleted)", "program": program.id}
            row |= {"share": read / bench.graph.n_arcs, "ms": ms, "edges read": refresh.edges_read}
            rows.append(row | {"fresh start, ms": fresh_ms, "fresh start / this": fresh_ms / ms})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--batch", default="1,100,10000,100000")
    parser.add_argument("--epochs", type=int, default=9, help="epochs at each batch size, after a first one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--crossover", action="store_true", help="when starting over is cheaper, and nothing else")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pma.warm_up()
    registry.warm_up(
        directed=True, weighted=True, programs=[(kind, {"source": 0}) for kind in ("bfs", "sssp", "sswp")]
    )
    churn = Churn(scale=arguments.scale, pool=20_000_000 * 2**arguments.scale // 2**20, seed=arguments.seed)
    bench = Bench(churn, 1 << arguments.scale)
    if arguments.crossover:
        rows = crossover(bench, churn)
        show(f"{bench.graph.n_edges:,} edges in the end, {bench.graph.crew.threads} threads", rows)
        save(arguments.json, {"machine": machine(), "scale": arguments.scale, "rows": rows})
        return
    runs = [bench.measure(lambda program: program.start(bench.graph)) for _ in range(5)]
    rows = table(runs, {}, "from scratch")
    fresh_ms = {row["program"]: row["ms"] for row in rows}
    for batch in map(int, arguments.batch.split(",")):
        runs = []
        for _ in range(arguments.epochs + 1):
            change = bench.apply(churn.next(batch))
            runs.append(bench.measure(lambda program, change=change: program.refresh(bench.graph, change)))
        rows += table(runs[1:], fresh_ms, f"{batch:,}")
    threads = bench.graph.crew.threads
    show(f"{bench.graph.n_edges:,} edges, {threads} threads, median of {arguments.epochs} epochs", rows)
    for program in bench.programs:
        found = program.audit(bench.graph)
        assert not found, (program.id, found)
    print("the audit found every value right")
    save(
        arguments.json,
        {"machine": machine(), "parameters": vars(arguments) | {"json": None}, "threads": threads, "rows": rows},
    )


if __name__ == "__main__":
    main()
