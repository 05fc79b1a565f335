"""PageRank and personalised PageRank alone: time, and edges visited, by batch size.

    python benchmarks/walks.py [--scale 20] [--batch 100,10000,1000000] [--tolerance 1e-3,1e-4] [--json FILE]

The graph and the updates are those of ``end_to_end.py``. ``visits`` are edges read by programs, each once for
every time; ``of a pass`` compares with one dense pass over all edges on two threads, measured in the same run:
the floor of anything that reads the whole graph once. Fresh starts stand in the last column. Programs of all
tolerances see the same epochs, one after the other.

The first table has costs on one thread: of an edge of a pass; of a vertex in a pass and of an edge in a push, in
such edges; and of beginning a push, in edges pushed. ``PASS_VERTEX`` and ``PUSH_EDGES`` are taken from it.
``PUSH_COST`` also has to say how many pushes will follow those that are due, which no single push tells: the last
table compares whole refreshes by PageRanks of several values, in turns on the same epochs (``--push-cost``).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from report import machine, save, show

from graphtide.compute.program import Program, Refresh
from graphtide.compute.walks import solving
from graphtide.compute.walks import sweeps as pagerank_kernels
from graphtide.compute.walks.pagerank import PageRank
from graphtide.compute.walks.passes import BLOCK, BLOCK_SHIFT, Estimate, Goal, Limits, Pulls
from graphtide.compute.walks.ppr import PersonalisedPageRank
from graphtide.compute.walks.sweeps import PUSH_EDGES, SUMS, WORK_SLOTS, Outbox, System
from graphtide.daemon.tools.generate import Churn, Updates
from graphtide.gpma.edges import EdgeBatch, pack
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.gpma.team import Crew
from graphtide.partition.graph import Graph, GraphChange

# A pass is timed as what so many take at once, less one.
PASSES = 4


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
        """Milliseconds of one dense pass that another one follows, the median of nine."""
        run = _runs(self.graph, self.graph.crew)
        times = []
        for _ in range(9):
            taken = []
            for passes in (1, PASSES):
                begun = time.perf_counter()
                run(passes)
                taken.append((time.perf_counter() - begun) * 1e3)
            times.append((taken[1] - taken[0]) / (PASSES - 1))
        return float(np.median(times))


def _runs(graph: Graph, crew: Crew) -> Callable[[int], object]:
    """What makes so many passes at once, beginning with ones."""
    n, pulls = graph.n_vertices, Pulls(0.85)
    capacity = -(-n // 128) * 128
    ones = np.ones(capacity, np.float32)
    estimate = Estimate(np.ones(capacity), np.zeros(capacity), ones, ones, np.zeros(capacity // BLOCK, np.uint8))
    rows, degrees = graph.in_rows(), graph.out_rows().degrees
    limits = Limits(1.0, 1.0)
    return lambda passes: pulls.run(
        crew, rows, degrees, n, estimate, Goal(limits, passes_min=passes, roughly=True)
    )


def rule_costs(graph: Graph) -> list[dict[str, Any]]:
    """What the rule between pushes and passes rests on, measured on this graph, beside the constants."""
    n, edges = graph.n_vertices, graph.n_arcs
    loops = Graph(weighted=False)
    loops.apply(EdgeBatch.of(np.arange(n), np.arange(n)), n)
    pass_s, loops_s = _pass_s(graph), _pass_s(loops)
    loops.close()
    vertex_s, edge_s = np.linalg.solve([[n, edges], [n, n]], [pass_s, loops_s])
    degrees = graph.out_rows().degrees[:n]
    hubs = np.argsort(-degrees.astype(np.int64))[: max(1, n // 500)]
    small = np.random.default_rng(1).permutation(np.flatnonzero((degrees > 0) & (degrees < 16)))[: max(1, n // 20)]
    counts = [[chosen.size, int(degrees[chosen].sum())] for chosen in (hubs, small)]
    start_s, pushed_s = np.linalg.solve(counts, [_sweep_s(graph, chosen) for chosen in (hubs, small)])
    return [
        {"cost": "an edge of a pass, ns", "measured": edge_s * 1e9, "constant": "-"},
        {"cost": "PASS_VERTEX", "measured": vertex_s / edge_s, "constant": solving.PASS_VERTEX},
        {"cost": "an edge of a push", "measured": pushed_s / edge_s, "constant": "-"},
        {"cost": "PUSH_EDGES", "measured": start_s / pushed_s, "constant": PUSH_EDGES},
    ]


def compare_push_costs(bench: Bench, churn: Churn, batches: list[int], values: list[int], count: int) -> list[Any]:
    """Refreshes of PageRanks that differ in ``PUSH_COST``, in turns."""
    usual = solving.PUSH_COST
    programs = {value: PageRank(f"push cost {value}") for value in values}
    for program in programs.values():
        program.start(bench.graph)
    rows = []
    for batch in batches:
        found: dict[int, list[tuple[float, int]]] = {value: [] for value in values}
        for epoch in range(count + 1):
            change = bench.apply(churn.next(batch))
            for value in values if epoch % 2 else reversed(values):
                solving.PUSH_COST = value
                begun = time.perf_counter()
                report = programs[value].refresh(bench.graph, change)
                if epoch:
                    found[value].append(((time.perf_counter() - begun) * 1e3, report.edges_read))
        for value, epochs in found.items():
            ms, visits = np.array(epochs).T
            least, median = float(ms.min()), float(np.median(ms))
            row = {"batch": batch, "PUSH_COST": value, "least ms": least, "median ms": median}
            rows.append(row | {"visits": float(np.median(visits))})
    solving.PUSH_COST = usual
    return rows


def _least(work: Callable[[], object], prepare: Callable[[], object]) -> float:
    """The least processor time of this thread in nine turns, in seconds."""
    times = []
    for _ in range(9):
        prepare()
        begun = time.thread_time()
        work()
        times.append(time.thread_time() - begun)
    return min(times)


def _pass_s(graph: Graph) -> float:
    """A dense pass on one thread."""
    run = _runs(graph, graph.team.crew(1))
    one, several = (_least(partial(run, passes), lambda: None) for passes in (1, PASSES))
    return (several - one) / (PASSES - 1)


def _sweep_s(graph: Graph, chosen: npt.NDArray[np.int64]) -> float:
    """Pushing these vertices, and none that they push to."""
    capacity = -(-graph.n_vertices // 128) * 128
    zeros = np.zeros(capacity)
    weight = np.full(capacity, 1e6, np.float32)
    weight[chosen] = 1
    system = System(
        zeros,
        zeros.copy(),
        weight,
        weight,
        np.zeros(capacity // BLOCK, np.uint8),
        np.zeros(capacity // 64, np.uint64),
        np.zeros(SUMS),
    )
    none = Outbox(np.empty(0), np.empty(0, np.uint8))
    work = np.zeros(WORK_SLOTS, np.int64)
    rows, limits = graph.out_rows(), Limits(1.0, 1.0)

    def prepare() -> None:
        system.residual[:] = 0
        system.residual[chosen] = 2
        system.flags[:] = 0
        system.flags[chosen >> BLOCK_SHIFT] = 1

    def sweep() -> None:
        pagerank_kernels.sweep(rows, limits, 1.0, 0.85, 0, 0, capacity, system, none, system.sums, work)

    return _least(sweep, prepare)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--batch", default="100,1000,10000,100000,500000,1000000")
    parser.add_argument("--tolerance", default="1e-3")
    parser.add_argument("--epochs", type=int, default=7, help="epochs at each batch size, after a first one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--push-cost", default="", help="compare these values of PUSH_COST, such as 2,3,4,6")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    churn = Churn(scale=arguments.scale, pool=20_000_000 * 2**arguments.scale // 2**20, seed=arguments.seed)
    bench = Bench(churn, [float(tolerance) for tolerance in arguments.tolerance.split(",")])
    bench.starts()  # compiles
    floor, fresh = bench.pass_ms(), bench.starts()
    costs = rule_costs(bench.graph)
    show("costs behind the rule between pushes and passes", costs)
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
    compared = []
    if arguments.push_cost:
        batches = [int(batch) for batch in arguments.batch.split(",")]
        values = [int(value) for value in arguments.push_cost.split(",")]
        compared = compare_push_costs(bench, churn, batches, values, arguments.epochs)
        show("PageRank by PUSH_COST", compared)
    save(
        arguments.json,
        {
            "machine": machine(),
            "parameters": vars(arguments) | {"json": None},
            "pass_ms": floor,
            "costs": costs,
            "rows": rows,
            "push_costs": compared,
        },
    )


if __name__ == "__main__":
    main()
