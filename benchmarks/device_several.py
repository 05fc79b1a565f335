"""Several programs of one kind, in one go and one after the other: a part of ``device.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

import numpy as np
from device_graph import Graph, Row, cupy
from device_ppr import Walk
from device_rows import WARM_UP, Budget, Rows, clocked

from graphtide.compute.device import paths as device_paths
from graphtide.compute.device.path_runs import Limits, PathRuns
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.steps import Steps, alone, together

PROGRAMS = {"ppr": (1, 2, 8, 32), "bfs": (1, 4, 16)}
NO_SOURCES = np.empty(0, np.uint32)


class Several(Protocol):
    """Programs of one kind, from as many sources."""

    def batch_applied(self) -> None:
        """Rows have changed."""

    def refreshing(self, which: int) -> Steps[bool]:
        """A refresh of one of them; whether it had to solve or start over."""

    def wrong(self) -> int:
        """How many values are wrong, of all of them."""


class Walks:
    """Personalised PageRank: whole refreshes, as the engine makes them."""

    def __init__(self, rows: Rows, sources: Sequence[int]) -> None:
        self.walks = [Walk(rows.device, source) for source in sources]
        for walk in self.walks:
            walk.start()
        self.change: Any = None

    def batch_applied(self) -> None:
        self.change = self.walks[0].change()

    def refreshing(self, which: int) -> Steps[bool]:
        walk = self.walks[which]
        refresh = yield from walk.program.refreshing(walk.rows, self.change)
        return refresh.iterations > 0

    def wrong(self) -> int:
        hosts = [walk.program.host for walk in self.walks]
        found = sum(walk.wrong_bits() for walk in self.walks)
        found += sum(host.error_bound > host.tolerance for host in hosts)
        # A solution in float64 takes seconds: two tell.
        return found + sum(self.walks[k].error() > hosts[k].error_bound for k in (0, -1))


class Searches:
    """BFS: mending, with the list of changes and its way into the host's copies."""

    def __init__(self, rows: Rows, sources: Sequence[int]) -> None:
        self.rows = rows
        self.sources = [np.array([source], np.uint32) for source in sources]
        self.runs = [self.fresh(source) for source in self.sources]
        self.kept = [runs.read(rows.graph.n_vertices).copy() for runs in self.runs]
        self.limits = Limits(0, 0)

    def fresh(self, source: np.ndarray) -> PathRuns:
        program = BFS("bfs", (0,))
        runs = PathRuns(program.form, program.source_word, self.rows.device)
        runs.make_room(self.rows.graph.n_vertices, self.rows.graph.n_edges)
        alone(runs.start(self.rows.device, source))
        return runs

    def batch_applied(self) -> None:
        edges = int(device_paths.SETTLE_SHARE[False] * self.rows.device.out.n_edges)
        lost = int(device_paths.LOST_SHARE * self.rows.graph.n_vertices)
        self.limits = Limits(max(device_paths.LOST_LEAST, lost), max(device_paths.SETTLE_LEAST, edges))

    def refreshing(self, which: int) -> Steps[bool]:
        runs = self.runs[which]
        run = yield from runs.mend(self.rows.device, NO_SOURCES, self.limits, self.kept[which])
        if run.gave_up:
            yield from runs.start(self.rows.device, self.sources[which])
            return True
        runs.taken(run)
        return False

    def wrong(self) -> int:
        n, half = self.rows.graph.n_vertices, np.uint64(32)
        found = 0
        for source, runs in zip(self.sources, self.runs, strict=True):
            differs = (self.fresh(source).words[:n] >> half) != (runs.words[:n] >> half)
            found += int(cupy.count_nonzero(differs))
        return found


KINDS: dict[str, Callable[[Rows, Sequence[int]], Several]] = {"ppr": Walks, "bfs": Searches}


def several(graph: Graph, batches: list[int], repeats: int, budget: Budget) -> list[Row]:
    """The sources are the vertices of largest out-degree. Both ways take turns, batch by batch.

    ``one ms``: of one program in the same run. ``x one``: of all in one go, as a multiple of that. ``solved``: the
    share of refreshes that had to solve or to start over. ``wrong``: at the end, of the whole kind.
    """
    rows = []
    for kind, numbers in PROGRAMS.items():
        bench = Rows(graph, graph.loaded)
        degrees = bench.device.out.view().degrees[: graph.n_vertices]
        sources = cupy.asnumpy(cupy.argsort(degrees))[::-1][: max(numbers)]
        # Two of each: numbers of those that have gone together lie side by side, where one by itself is slower.
        them = {in_one_go: KINDS[kind](bench, [int(source) for source in sources]) for in_one_go in (True, False)}
        of_kind = [
            measured(kind, bench, them, max(numbers), n, batch, repeats, budget)
            for batch in batches
            for n in numbers
        ]
        wrong = sum(one.wrong() for one in them.values())
        ones = {row["batch"]: row["one after another ms"] for row in of_kind if row["programs"] == 1}
        for row in of_kind:
            one = ones[row["batch"]]
            row |= {"one ms": one, "x one": row["in one go ms"] / one, "wrong": wrong}
        rows += of_kind
        del them, bench
        cupy.get_default_memory_pool().free_all_blocks()
    return rows


def measured(
    kind: str,
    bench: Rows,
    them: Mapping[bool, Several],
    n_all: int,
    n: int,
    batch: int,
    repeats: int,
    budget: Budget,
) -> Row:
    took: dict[bool, list[float]] = {True: [], False: []}
    solved: list[bool] = []
    for step in budget.repeats(repeats):
        for in_one_go in (step % 2 == 0, step % 2 == 1):
            own, others = them[in_one_go], them[not in_one_go]
            undone = bench.apply(bench.mixed(batch))
            own.batch_applied()
            us, outcomes = clocked(lambda own=own, way=in_one_go: refreshed(own, range(n), in_one_go=way))
            if step >= WARM_UP:
                took[in_one_go].append(us)
                solved += outcomes
            refreshed(own, range(n, n_all), in_one_go=in_one_go)
            others.batch_applied()
            refreshed(others, range(n_all), in_one_go=not in_one_go)
            bench.apply(undone)
            for way, those in them.items():
                those.batch_applied()
                refreshed(those, range(n_all), in_one_go=way)
    together_ms, apart_ms = (median(took[which]) / 1e3 for which in (True, False))
    return (
        {"program": kind, "batch": batch, "programs": n, "in one go ms": together_ms}
        | {"min ms": min(took[True]) / 1e3, "max ms": max(took[True]) / 1e3}
        | {"one after another ms": apart_ms, "gain": apart_ms / together_ms, "times": len(took[True])}
        | {"solved": sum(solved) / len(solved)}
    )


def refreshed(them: Several, which: range, *, in_one_go: bool) -> list[bool]:
    """Refresh these programs; what each says of it.

    Raises:
        Exception: of the first that failed.
    """
    if not in_one_go:
        return [alone(them.refreshing(k)) for k in which]
    outcomes = together([them.refreshing(k) for k in which])
    said = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return said
