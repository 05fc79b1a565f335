"""Programs twice, on the host and on a device: what tests of components and of path programs there share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import cuda_emulator
import pytest
from histories import Epoch, deletes, inserts

from graphtide.compute.program import Refresh
from graphtide.partition.graph import Graph, GraphChange


class Twice:
    """A graph on host and device, and a program twice: the host's own, and a twin on the device."""

    graph: Graph
    host: Any
    twin: Any

    def new_graph(self, *, directed: bool, weighted: bool) -> Graph:
        return Graph(directed=directed, weighted=weighted, device=True, threads=1)

    def step(self, epoch: Epoch) -> Refresh:
        """Apply an epoch, and check everything."""
        raise NotImplementedError

    def change(self, epoch: Epoch) -> GraphChange:
        """Apply an epoch, which the host's program takes; the twin has not yet."""
        change = self.graph.apply(epoch.batch(weighted=self.graph.weighted), epoch.n_vertices, epoch.vertex_ops())
        self.host.refresh(self.graph, change)
        return change

    def check(self) -> None:
        """The twin is on the device still, and right."""
        assert self.graph.device_lost is None
        assert self.twin.on_device
        self.check_results()

    def check_results(self) -> None:
        """The twin is right, wherever it is."""
        raise NotImplementedError


Run = TypeVar("Run", bound=Twice)


def runs(kind: type[Run]) -> Iterator[Callable[..., Run]]:
    """What makes runs; then their graphs are closed."""
    made: list[Run] = []

    def make(*given: Any, **how: Any) -> Run:
        made.append(kind(*given, **how))
        return made[-1]

    yield make
    for run in made:
        run.graph.close()


def _grown(run: Twice) -> GraphChange:
    """A change that needs more room."""
    run.step(inserts([(0, 1), (1, 2)], 3))
    return run.change(inserts([(2, v) for v in range(3, 50)], 50))


def failing_allocations(run_of: Callable[[], Twice]) -> int:
    """Let allocation after allocation of a refresh fail, each of which sends the twin home; how many did."""
    for at in range(40):
        run = run_of()
        change = _grown(run)
        with cuda_emulator.failing_allocation(at):
            refresh = run.twin.refresh(run.graph, change)
        run.check_results()
        assert refresh.started_over != run.twin.on_device
        if run.twin.on_device:
            return at
        assert run.graph.device is not None
        run.twin.refresh(run.graph, run.change(deletes([(1, 2)], 50)))
        run.check_results()
    pytest.fail("every allocation failed")


def failing_cards(run_of: Callable[[], Twice], *, quiet: bool) -> int:
    """Let call after call of a refresh fail, each of which loses the card; how many did."""
    for at in range(40):
        run = run_of()
        change = _grown(run)
        with cuda_emulator.failing_card(at, quiet=quiet) as fault:
            refresh = run.twin.refresh(run.graph, change)
            broken = fault.broken
        run.check_results()
        if not broken:
            return at
        assert refresh.started_over
        assert not run.twin.on_device
        assert "made to fail" in str(run.graph.device_lost) or "without telling" in str(run.graph.device_lost)
    pytest.fail("every call failed")
