"""PageRank's part of ``device.py``: from scratch and after batches, against a float64 solution and bit by bit."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from device_graph import Graph, Row, cupy
from device_rows import WARM_UP, Budget, Rows, clocked

from graphtide.compute.device.pagerank import DevicePageRank
from graphtide.compute.device.program import DeviceProgram
from graphtide.compute.program import Refresh
from graphtide.compute.walks.pagerank import PageRank
from graphtide.gpma.device.array import DevicePackedArray
from graphtide.gpma.edges import DELETED, INSERTED
from graphtide.partition.device_side import DeviceSide

HALF = np.uint64(32)
ROUNDS_MAX = 400


class OnDevice:
    """What a program asks of a graph, of rows that are on a device alone."""

    def __init__(self, device: DeviceSide) -> None:
        self.device = device
        self.n_vertices = device.n_vertices
        self.alive = np.ones(device.n_vertices, bool)

    @property
    def n_arcs(self) -> int:
        return self.device.out.n_edges

    def drop_device(self, reason: str) -> None:
        raise RuntimeError(reason)


class OnRows:
    """A program on the rows of a device; ``steps`` says of every run what it did, from ``watch`` on."""

    def __init__(self, device: DeviceSide, program: DeviceProgram) -> None:
        self.rows: Any = OnDevice(device)
        self.runner = program
        self.steps: list[str] = []

    def note(self, runs: Any, method: str, say: Callable[[Any, dict[str, Any]], str]) -> None:
        """From here on let ``steps`` have what is to be said of every run of this method, and its microseconds."""
        run = getattr(runs, method)

        def noted(*given: Any, **how: Any) -> Any:
            began = time.perf_counter()
            made = run(*given, **how)
            self.steps.append(f"{say(made, how)} {(time.perf_counter() - began) * 1e6:.0f}")
            return made

        setattr(runs, method, noted)

    def start(self) -> Refresh:
        return self.runner.start(self.rows)

    def change(self) -> Any:
        """The batch that was applied last, as a graph tells of it."""
        report = self.rows.device.report
        inserted, deleted = (int(cupy.count_nonzero(report.outcome == which)) for which in (INSERTED, DELETED))
        return SimpleNamespace(
            report=SimpleNamespace(totals=(inserted, 0, deleted, 0)),
            deleted_vertices=np.empty(0, np.uint32),
            revived_vertices=np.empty(0, np.uint32),
        )

    def refresh(self, change: Any) -> Refresh:
        return self.runner.refresh(self.rows, change)


def pushed(run: Any, kind: str = "push") -> str:
    return f"{kind} {run.rounds} rounds {run.edges} edges" + ("" if run.is_solved else " given up")


class Ranks(OnRows):
    """PageRank on the rows of a device."""

    def __init__(self, device: DeviceSide) -> None:
        self.program = DevicePageRank(PageRank("ranks"))
        super().__init__(device, self.program)

    def watch(self) -> None:
        pushes = self.program._pushes
        self.note(pushes, "solve", lambda run, _: f"{run.passes} passes, {pushed(run)}")
        self.note(pushes, "push", lambda run, how: pushed(run, "look" if how["looks"] else "push"))

    def error(self, precision: float = 1e-13) -> float:
        """The largest relative error of a result, against a solution in float64 of this precision."""
        assert self.program.on_device
        n = self.rows.n_vertices
        exact = solution(self.rows.device, self.program.host.damping, precision)
        found = cupy.asarray(self.program.columns()["estimate"][:n]).astype(np.float64)
        return float(cupy.abs(found / found.sum() / (exact / exact.sum()) - 1).max())

    def wrong_bits(self) -> int:
        """How many vertices have another sum than what their right-hand side and in-neighbours' shares come to."""
        runs = self.program._runs
        assert runs is not None
        there, n, device = runs._there, self.rows.n_vertices, self.rows.device
        tails, heads = arcs_in(device.in_rows)
        wrong = 0
        weights = there.weights[:n].astype(np.float64)
        for system, unit, rhs in (
            (there.ranks, runs.units[0], cupy.ones(n)),
            (there.majorant, runs.units[1], weights),
        ):
            shares = system.shares[:n].astype(np.int64)[tails]
            sums = (rhs * unit).astype(np.int64) + added_up(shares, heads, n)
            wrong += int(cupy.count_nonzero(sums != system.sums[:n]))
        return wrong


def arcs_in(array: DevicePackedArray) -> tuple[Any, Any]:
    """Tails and heads of all arcs, int64 on the device, from in-rows."""
    keys = array.export().keys
    return (keys & np.uint64(0xFFFF_FFFF)).astype(np.int64), (keys >> HALF).astype(np.int64)


def added_up(values: Any, heads: Any, n: int) -> Any:
    """int64[n]: these int64 values added up by head."""
    sums = cupy.zeros(n, np.int64)
    # Float64 adds integers up exactly that are as small as these parts.
    for shift, part in ((0, values & 0x3FFF_FFFF), (30, values >> 30)):
        added = cupy.bincount(heads, weights=part.astype(np.float64), minlength=n)
        sums += added.astype(np.int64) << shift
    return sums


def solution(device: DeviceSide, damping: float, precision: float) -> Any:
    """The y of y = 1 + what in-neighbours pass on, float64 on the device, its scale aside.

    It is iterated until nothing changes by more than ``precision`` of itself.
    """
    n = device.n_vertices
    tails, heads = arcs_in(device.in_rows)
    degrees = cupy.bincount(tails, minlength=n)
    passes_on = degrees > 0
    shares = damping / cupy.maximum(degrees, 1)
    y = cupy.ones(n)
    for _ in range(ROUNDS_MAX):
        new = 1 + cupy.bincount(heads, weights=(y * shares)[tails], minlength=n)
        new *= n / (new.sum() - damping * new[passes_on].sum())
        off = float(cupy.abs(new / y - 1).max())
        y = new
        if off < precision:
            break
    return y


def pagerank(graph: Graph, batches: list[int], repeats: int, budget: Budget) -> list[Row]:
    """From scratch (``batch`` 0) and after batches.

    A refresh ends with the certified estimates in the host's memory; the arrays are left out.
    """
    bench = Rows(graph, graph.loaded)
    ranks = Ranks(bench.device)
    rows = []
    took = [us for step in budget.repeats(repeats) for us, _ in [clocked(ranks.start)] if step >= WARM_UP]
    ranks.watch()
    rows.append(row(0, took, ranks.start(), ranks))
    for n in batches:
        took = []
        for step in budget.repeats(repeats):
            undone = bench.apply(bench.mixed(n))
            change = ranks.change()
            us, _ = clocked(lambda change=change: ranks.refresh(change))
            if step >= WARM_UP:
                took.append(us)
            bench.apply(undone)
            ranks.refresh(ranks.change())
        bench.apply(bench.mixed(n))
        change = ranks.change()
        ranks.steps.clear()
        rows.append(row(n, took, ranks.refresh(change), ranks))
    return rows


def row(batch: int, took: list[float], report: Refresh, ranks: Ranks) -> Row:
    bound, error = report.error_bound, ranks.error()
    assert bound is not None
    return (
        {"batch": batch, "ms": median(took) / 1e3, "min ms": min(took) / 1e3, "max ms": max(took) / 1e3}
        | {"times": len(took), "iterations": report.iterations, "edges": report.edges_read}
        | {"active": report.active, "bound": bound, "error": error}
        | {"wrong": int(error > bound) + ranks.wrong_bits(), "steps": "; ".join(ranks.steps)}
    )
