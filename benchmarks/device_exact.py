"""The part of ``device.py`` for triangles, local clustering and communities: from scratch and after batches.

Whole refreshes: what the host has to do in the product is part of it, such as bringing changed links together, and
taking results over. Results are compared with those of a fresh start.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from device_graph import Graph, Row
from device_ranks import OnDevice, OnRows
from device_rows import WARM_UP, Budget, Rows, clocked

from graphtide.compute.device.cdlp import DeviceCdlp
from graphtide.compute.device.program import DeviceProgram
from graphtide.compute.device.tally import DeviceLocalClustering, DeviceTriangles
from graphtide.compute.program import Refresh
from graphtide.compute.rounds import Cdlp
from graphtide.compute.triangles import LocalClustering, Triangles
from graphtide.gpma.edges import Keys, Vertices
from graphtide.gpma.index.id_order import IdOrder, order_of
from graphtide.partition.device_side import DeviceSide

ROUNDS = 10


class Numbered:
    """External ids that are the dense ones."""

    def smallest(self, dense: Vertices) -> int:
        return int(dense.min())

    def sort_by_external(self, dense: Vertices) -> Vertices:
        return np.sort(dense)

    def comparable(self, n_vertices: int) -> IdOrder:
        return order_of(np.arange(n_vertices))


TWINS: dict[str, Callable[[], DeviceProgram]] = {
    "triangles": lambda: DeviceTriangles(Triangles("triangles")),
    "lcc": lambda: DeviceLocalClustering(LocalClustering("lcc")),
    "cdlp": lambda: DeviceCdlp(Cdlp("cdlp", ROUNDS, Numbered())),
}


class OnDeviceAlone(OnDevice):
    """What these programs ask for beside."""

    directed = True

    def __init__(self, device: DeviceSide) -> None:
        super().__init__(device)
        self.n_alive = self.n_vertices

    def has_edge(self, keys: Keys) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return self.device.has_edge("out", keys)


class Exact(OnRows):
    """A program of this kind on the rows of a device."""

    def __init__(self, device: DeviceSide, kind: str) -> None:
        super().__init__(device, TWINS[kind]())
        self.rows = OnDeviceAlone(device)
        self.kind = kind

    def change(self) -> Any:
        n = self.rows.n_vertices
        arcs = self.rows.device.rows_report().read()
        return SimpleNamespace(**vars(super().change()), arcs=arcs, n_vertices_before=n, n_vertices=n)

    def wrong(self) -> int:
        """How many results are not those of a fresh start."""
        assert self.runner.on_device
        n, fresh = self.rows.n_vertices, TWINS[self.kind]()
        fresh.start(self.rows)
        found, wanted = self.runner.columns(), fresh.columns()
        return sum(int(np.count_nonzero(found[name][:n] != wanted[name][:n])) for name in wanted)


def exact(graph: Graph, kind: str, batches: list[int], repeats: int, budget: Budget) -> list[Row]:
    """From scratch (``batch`` 0) and after batches; the arrays are left out."""
    bench = Rows(graph, graph.loaded)
    program = Exact(bench.device, kind)
    took = [us for step in budget.repeats(repeats) for us, _ in [clocked(program.start)] if step >= WARM_UP]
    rows = [row(0, took, 0, program.start(), program)]
    for n in batches:
        took, over = [], 0
        for step in budget.repeats(repeats):
            undone = bench.apply(bench.mixed(n))
            change = program.change()
            us, report = clocked(lambda change=change: program.refresh(change))
            if step >= WARM_UP:
                took.append(us)
                over += report.started_over
            bench.apply(undone)
            program.refresh(program.change())
        bench.apply(bench.mixed(n))
        rows.append(row(n, took, over, program.refresh(program.change()), program))
    return rows


def row(batch: int, took: list[float], over: int, report: Refresh, program: Exact) -> Row:
    return (
        {"batch": batch, "ms": median(took) / 1e3, "min ms": min(took) / 1e3, "max ms": max(took) / 1e3}
        | {"times": len(took), "started over": over, "edges": report.edges_read, "active": report.active}
        | {"wrong": program.wrong()}
    )
