"""Path counts on a CUDA device, beside the search that they stand on: the part of ``device.py`` for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from device_graph import Graph, Row, cupy
from device_rows import WARM_UP, Budget, Rows, clocked

from graphtide.compute.device import count_runs
from graphtide.compute.device import paths as device_paths
from graphtide.compute.device.count_runs import CountRun, CountRuns
from graphtide.compute.device.path_runs import Limits, PathRuns
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.steps import alone

NO_SOURCES = np.empty(0, np.uint32)
# enum CountMark of counting.cuh: what has ended; the first is when it began.
MARKS = (
    "begun",
    "seeds",
    "heads",
    "order",
    "rows",
    "received",
    "counted",
    "told on",
    "added",
    "written",
    "listed",
)


class Counts(Rows):
    """Rows on the device, a search from the vertex of most out-edges, and the counts of its paths."""

    def __init__(self, graph: Graph, keys: Any) -> None:
        super().__init__(graph, keys)
        degrees = self.device.out.view().degrees[: graph.n_vertices]
        self.source = np.array([int(cupy.argmax(degrees))], np.uint32)
        self.search, self.counts = self.new_runs()
        self.kept = np.empty(graph.n_vertices, np.uint64)
        self.start()

    def new_runs(self) -> tuple[PathRuns, CountRuns]:
        program = BFS("bfs", (0,))
        search, counts = PathRuns(program.form, program.source_word, self.device), CountRuns(self.device)
        search.make_room(self.graph.n_vertices, self.graph.n_edges)
        counts.make_room(self.graph.n_vertices, self.graph.n_edges)
        return search, counts

    def start(self) -> tuple[float, float, CountRun]:
        """Microseconds of search and counts, and what the latter told."""
        search_us, _ = clocked(lambda: alone(self.search.start(self.device, self.source)))
        counts_us, run = clocked(lambda: alone(self.counts.start(self.device, self.search)))
        return search_us, counts_us, run

    def refresh(self) -> tuple[float, float, CountRun]:
        """The same of what the product does after a batch, but for the copies on the host. Counting begins on the
        device as the search ends there: its time is what is left of it when the host has the search."""
        edges = max(device_paths.SETTLE_LEAST, int(device_paths.SETTLE_SHARE[False] * self.device.out.n_edges))
        lost = max(device_paths.LOST_LEAST, int(device_paths.LOST_SHARE * self.graph.n_vertices))
        cupy.cuda.Device().synchronize()
        begin = perf_counter()
        limits = Limits(lost, edges)
        mended = self.search.mend_at_once(self.device, NO_SOURCES, limits, self.kept, self.counts)
        searched = perf_counter()
        if mended.gave_up:
            again_us, counts_us, run = self.start()
            return 1e6 * (searched - begin) + again_us, counts_us, run
        run = self.counts.count_at_once(self.device, self.search)
        self.counts.changes(run)
        return 1e6 * (searched - begin), 1e6 * (perf_counter() - searched), run

    def wrong(self) -> int:
        """How many counts are not those of a fresh start."""
        search, counts = self.new_runs()
        alone(search.start(self.device, self.source))
        alone(counts.start(self.device, search))
        n = self.graph.n_vertices
        return int(np.count_nonzero(counts.read(n) != self.counts.read(n)))


def counts(graph: Graph, batches: list[int], repeats: int, budget: Budget) -> list[Row]:
    """From scratch (``batch`` 0) and after batches; arrays are left out. ``x search``: counts, by the search."""
    bench = Counts(graph, graph.loaded)
    took = [bench.start() for _ in budget.repeats(repeats)]
    rows = [row(0, took[WARM_UP:], bench.wrong())]
    for n in batches:
        took = []
        for _ in budget.repeats(repeats):
            undone = bench.apply(bench.mixed(n))
            took.append(bench.refresh())
            bench.apply(undone)
            bench.refresh()
        rows.append(row(n, took[WARM_UP:], bench.wrong()))
    return rows


def row(batch: int, took: list[tuple[float, float, CountRun]], wrong: int) -> Row:
    search_us, counts_us = (median(times) for times in ([one[which] for one in took] for which in (0, 1)))
    run = took[-1][2]
    return (
        {"batch": batch, "search us": search_us, "counts us": counts_us, "x search": counts_us / search_us}
        | {"times": len(took), "levels": run.rounds, "counted": run.counted, "changed": run.changed}
        | {"edges": run.edges, "wrong": wrong}
    )


# -- the account -------------------------------------------------------------------------------------------------


def counted(graph: Graph, batches: list[int]) -> list[Row]:
    """Microseconds that each part of the kernel took, from scratch (``batch`` 0) and after batches, all levels
    together; of one run each, the second."""
    with _marks():
        bench = Counts(graph, graph.loaded)
    bench.start()
    rows = [_marked(0, bench, bench.start()[2])]
    for n in batches:
        for _ in range(2):
            undone = bench.apply(bench.mixed(n))
            _, _, run = bench.refresh()
            marked = _marked(n, bench, run)
            bench.apply(undone)
            bench.refresh()
        rows.append(marked)
    return rows


@contextmanager
def _marks() -> Iterator[None]:
    """Runs that are made meanwhile set marks."""
    before = dict(count_runs.SOURCES)
    for name, source in before.items():
        count_runs.SOURCES[name] = source._replace(macros=("-DMARKS=1",))
    count_runs.count_kernels.cache_clear()
    try:
        yield
    finally:
        count_runs.SOURCES.update(before)
        count_runs.count_kernels.cache_clear()


def _marked(batch: int, bench: Counts, run: CountRun) -> Row:
    listed = bench.counts._there.listed
    kinds, times = listed.words[::-1].astype(np.int64), listed.far[::-1].view(np.uint64).astype(np.int64)
    # The first mark is the oldest of this run; what follows it is in order.
    n = 1
    while n < kinds.size and times[n] >= times[n - 1] and kinds[n] != 0 and kinds[n] < len(MARKS):
        n += 1
    us = np.diff(times[:n]) / 1e3
    row: Row = {"batch": batch, "in all us": float(us.sum()), "edges": run.edges, "levels": run.rounds}
    for kind, name in enumerate(MARKS[1:], 1):
        row[f"{name} us"] = float(us[kinds[1:n] == kind].sum())
    row["one by one"] = " ".join(f"{MARKS[kind]} {took:.1f}" for kind, took in zip(kinds[1:n], us, strict=True))
    return row
