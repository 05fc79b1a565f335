"""Personalised PageRank's part of ``device.py``: from scratch, after batches, against float64 and bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from device_graph import Graph, Row, cupy
from device_ranks import ROUNDS_MAX, OnRows, added_up, arcs_in, pushed
from device_rows import WARM_UP, Budget, Rows, clocked

from graphtide.compute.device.ppr import DevicePersonalisedPageRank
from graphtide.compute.program import Refresh
from graphtide.compute.steps import Steps, alone
from graphtide.compute.walks.ppr import PersonalisedPageRank
from graphtide.partition.device_side import DeviceSide


class Walk(OnRows):
    """Personalised PageRank from one source on the rows of a device."""

    def __init__(self, device: DeviceSide, source: int) -> None:
        self.program = DevicePersonalisedPageRank(PersonalisedPageRank("walk", (source,)))
        super().__init__(device, self.program)
        self.source = source
        self.program.bind(np.array([source], np.uint32))

    def watch(self) -> None:
        self.note_steps("push", pushed)
        self.note_steps("solve", lambda run: f"{run.rounds} passes")

    def note_steps(self, method: str, say: Callable[[Any], str]) -> None:
        """``note`` for runs by steps."""
        runs: Any = self.program._runs
        run = getattr(runs, method)

        def noted(*given: Any) -> Steps[Any]:
            yield from ()
            us, made = clocked(lambda: alone(run(*given)))
            self.steps.append(f"{say(made)} {us:.0f}")
            return made

        setattr(runs, method, noted)

    def error(self, precision: float = 1e-10) -> float:
        """The error in sum of the results, against a solution in float64 of this precision."""
        assert self.program.on_device
        n, damping = self.rows.n_vertices, self.program.host.damping
        tails, heads = arcs_in(self.rows.device.in_rows)
        shares = damping / cupy.maximum(cupy.bincount(tails, minlength=n), 1)
        rhs = cupy.zeros(n)
        rhs[self.source] = 1
        y = rhs
        for _ in range(ROUNDS_MAX):
            new = rhs + cupy.bincount(heads, weights=(y * shares)[tails], minlength=n)
            off = float(cupy.abs(new - y).sum())
            y = new
            if off < precision:
                break
        found = cupy.asarray(self.program.columns()["estimate"][:n]).astype(np.float64)
        return float(cupy.abs(found / found.sum() - y / y.sum()).sum())

    def wrong_bits(self) -> int:
        """How many vertices have another sum than what their right-hand side and in-neighbours' shares come to."""
        runs = self.program._runs
        assert runs is not None
        there, n = runs._there.numbers, self.rows.n_vertices
        tails, heads = arcs_in(self.rows.device.in_rows)
        sums = cupy.zeros(n, np.int64)
        sums[self.source] = int(runs.unit)
        sums += added_up(there.shares[:n].astype(np.int64)[tails], heads, n)
        return int(cupy.count_nonzero(sums != there.sums[:n]))


def ppr(graph: Graph, batches: list[int], repeats: int, budget: Budget) -> list[Row]:
    """From scratch (``batch`` 0) and after batches, from the vertex of largest out-degree.

    A refresh ends with the certified estimates in the host's memory; the arrays are left out. Most small batches
    leave nothing to solve: of ``times`` refreshes ``solved`` had something.
    """
    bench = Rows(graph, graph.loaded)
    degrees = bench.device.out.view().degrees[: graph.n_vertices]
    walk = Walk(bench.device, int(cupy.argmax(degrees)))
    took = [us for step in budget.repeats(repeats) for us, _ in [clocked(walk.start)] if step >= WARM_UP]
    walk.watch()
    rows = [row(0, took, len(took), walk.start(), walk)]
    for n in batches:
        took, solved = [], 0
        for step in budget.repeats(repeats):
            undone = bench.apply(bench.mixed(n))
            change = walk.change()
            us, report = clocked(lambda change=change: walk.refresh(change))
            if step >= WARM_UP:
                took.append(us)
                solved += report.iterations > 0
            bench.apply(undone)
            walk.refresh(walk.change())
        bench.apply(bench.mixed(n))
        change = walk.change()
        walk.steps.clear()
        rows.append(row(n, took, solved, walk.refresh(change), walk))
    return rows


def row(batch: int, took: list[float], solved: int, report: Refresh, walk: Walk) -> Row:
    bound, error = report.error_bound, walk.error()
    assert bound is not None
    return (
        {"batch": batch, "ms": median(took) / 1e3, "min ms": min(took) / 1e3, "max ms": max(took) / 1e3}
        | {"times": len(took), "solved": solved, "iterations": report.iterations, "edges": report.edges_read}
        | {"active": report.active, "bound": bound, "error": error}
        | {"wrong": int(error > bound) + walk.wrong_bits(), "steps": "; ".join(walk.steps)}
    )
