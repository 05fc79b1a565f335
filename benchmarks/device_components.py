"""Components on a CUDA device: the part of ``device.py`` for them."""

from __future__ import annotations

from statistics import median
from typing import Any

from device_graph import Graph, Row, cupy
from device_rows import WARM_UP, Budget, Rows, clocked

from graphtide.compute.device import components as device_components
from graphtide.compute.device.forest_runs import ForestRun, ForestRuns


class Forest(Rows):
    """Rows on the device, and the forest of their components."""

    def __init__(self, graph: Graph, keys: Any) -> None:
        super().__init__(graph, keys)
        self.runs = self.new_runs()
        self.runs.start(self.device)

    def new_runs(self) -> ForestRuns:
        runs = ForestRuns(self.device)
        runs.make_room(self.graph.n_vertices, self.graph.n_edges)
        return runs

    def mended(self) -> ForestRun:
        """What the product does after a batch, but for the copy on the host."""
        limits = device_components.limits(self.graph.n_vertices, self.device.out.n_edges)
        run = self.runs.mend(self.device, limits)
        if run.gave_up:
            self.runs.start(self.device)
        else:
            self.runs.changes(run)
        return run

    def wrong(self) -> int:
        """0: the trees are those of a fresh start, levels rise, and there is a root in each."""
        fresh = self.new_runs()
        fresh.start(self.device)
        n = self.graph.n_vertices
        parent, level, handle, _ = (self.runs.nodes[:n, k].astype(cupy.int64) for k in range(4))
        wanted = fresh.nodes[:n, 2].astype(cupy.int64)
        is_root = parent == 0xFFFF_FFFF
        above = cupy.where(is_root, 0, parent)
        bad = ~is_root & ((level[above] >= level) | (handle[above] != handle))
        sizes = [int(cupy.unique(x).size) for x in (handle, wanted, handle << 32 | wanted, handle[is_root])]
        return int(cupy.count_nonzero(bad)) + max(sizes) - min(sizes)


def components(graph: Graph, batches: list[int], repeats: int, budget: Budget) -> list[Row]:
    """From scratch on half of the edges and on all, and mending after batches; the arrays are left out."""
    keys = cupy.concatenate([graph.loaded, graph.pool])
    keys.sort()
    rows = [fresh(Forest(graph, keys), "fresh, all edges", repeats, budget)]
    del keys
    bench = Forest(graph, graph.loaded)
    rows.append(fresh(bench, "fresh", repeats, budget))
    for n in batches:
        times: list[float] = []
        for step in budget.repeats(repeats):
            undone = bench.apply(bench.mixed(n))
            us, run = clocked(bench.mended)
            if step >= WARM_UP:
                times.append(us)
            last = run
            bench.apply(undone)
            bench.mended()
        rows.append(row(str(n), times, last))
    print(f"wrong components after refreshes: {bench.wrong()}", flush=True)
    return rows


def fresh(bench: Forest, name: str, repeats: int, budget: Budget) -> Row:
    times = []
    for step in budget.repeats(repeats):
        us, run = clocked(lambda: bench.runs.start(bench.device))
        if step >= WARM_UP:
            times.append(us)
    return row(name, times, run)


def row(name: str, times: list[float], run: ForestRun) -> Row:
    return (
        {"batch": name, "us": median(times), "min us": min(times), "max us": max(times), "times": len(times)}
        | {"rounds": run.rounds, "lost": run.lost, "written": run.logged, "edges": run.edges}
        | {"gave up": run.gave_up}
    )
