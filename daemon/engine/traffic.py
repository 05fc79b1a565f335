"""What crosses the bus to the device, and what it takes: put together of what lower layers report of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...compute.engine import ProgramRun
from ...compute.program import Program, Refresh
from ...gpma.row_reads import RowReads
from ...ops.areas.sides import BUS_WAYS, READ_WAYS
from ...ops.metrics import Metrics
from ...partition.graph import Graph
from ...partition.policies import Counts
from ...partition.run_costs import RunCosts

ZERO_COPY, UPLOAD, DOWNLOAD = BUS_WAYS
_VERTEX_BYTES = 4


class EpochReads(NamedTuple):
    """What programs on the device read of rows in an epoch in which some were the host's: ``by_class`` int64[64]
    (None: no classes have been told) and ``others`` edges, and how long what came over the bus took."""

    by_class: Counts | None
    others: int
    bus_s: float


NOTHING = EpochReads(None, 0, 0.0)


class Traffic:
    """Since the start."""

    def __init__(self, graph: Graph, metrics: Metrics) -> None:
        self._graph = graph
        self._metrics = metrics
        self._costs: dict[str, RunCosts] = {}
        self._bytes = dict.fromkeys(BUS_WAYS, 0)
        self._edges: dict[str, dict[str, int]] = {}
        self._seconds = {way: {"predicted": 0.0, "measured": 0.0} for way in READ_WAYS}
        self._uploaded = 0

    def ran(self, runs: Sequence[ProgramRun], programs: Iterable[Program]) -> EpochReads:
        """To be called with the runs of an epoch, and the programs that there are."""
        self._upload()
        by_id = {program.id: program for program in programs}
        for gone in self._costs.keys() - by_id.keys():
            del self._costs[gone], self._edges[gone]
        total, bus_s = None, 0.0
        for run in runs:
            if not run.on_device or run.refresh is None:
                continue
            self._came(DOWNLOAD, _result_bytes(run.refresh, by_id.get(run.id), self._graph.n_vertices))
            reads = run.refresh.reads
            if reads is not None:
                bus_s += self._read(run, run.refresh.edges_read, reads)
                total = reads if total is None else total + reads
        if total is None:
            return NOTHING
        by_class = total.by_class.sum(axis=0)
        return EpochReads(by_class if by_class.any() else None, int(total.others.sum()), bus_s)

    def stats(self) -> dict[str, Any]:
        """For the request ``placement``: copies, which other threads send while epochs go on."""
        prices = {id: cost.bus_byte_s for id, cost in self._costs.items()}
        return {
            "bytes": dict(self._bytes),
            "edges_read": {id: dict(edges) for id, edges in self._edges.items()},
            "seconds": {way: dict(seconds) for way, seconds in self._seconds.items()},
            "gigabytes_per_second": {id: 1e-9 / price for id, price in prices.items()},
        }

    def _read(self, run: ProgramRun, edges_read: int, reads: RowReads) -> float:
        """Of a run; the seconds that what came over the bus took."""
        # Programs say more than kernels count, which leave out single edges that are looked for on the device.
        on_device = max(reads.device_edges, edges_read - reads.host_edges)
        cost = self._costs.setdefault(run.id, RunCosts()).see(run.seconds, on_device, reads.bus_bytes)
        edges = self._edges.setdefault(run.id, dict.fromkeys(READ_WAYS, 0))
        for way, n_edges, predicted, measured in zip(
            READ_WAYS, (on_device, reads.host_edges), cost.predicted, cost.measured, strict=True
        ):
            edges[way] += n_edges
            self._seconds[way]["predicted"] += predicted
            self._seconds[way]["measured"] += measured
            self._metrics.rows_read(way, predicted_s=predicted, measured_s=measured)
        self._metrics.remote_edges_read(run.id, reads.host_edges)
        self._came(ZERO_COPY, reads.bus_bytes)
        return cost.measured.bus

    def _upload(self) -> None:
        device = self._graph.device
        if device is not None:
            uploaded = device.uploaded_bytes
            self._came(UPLOAD, uploaded - self._uploaded)
            self._uploaded = uploaded

    def _came(self, way: str, n_bytes: int) -> None:
        self._bytes[way] += n_bytes
        self._metrics.bus(way, n_bytes)


def _result_bytes(refresh: Refresh, program: Program | None, n_vertices: int) -> int:
    """What a run brought to the host: of each changed vertex its number and its value, or a whole column."""
    columns = {} if program is None else program.columns()
    total = 0
    for name, changed in refresh.changed.items():
        size = columns[name].dtype.itemsize if name in columns else np.dtype(np.uint64).itemsize
        total += n_vertices * size if changed is None else changed.size * (_VERTEX_BYTES + size)
    return total
