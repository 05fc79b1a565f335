"""Programs on a device, moved epoch by epoch: what tests of random walks and of path counts there share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pytest
from histories import Epoch, deletes, inserts
from walks import check_changed

from graphtide.compute.device import twin
from graphtide.compute.program import Program, Refresh
from graphtide.gpma.edges import NO_VERTEX, Vertices
from graphtide.partition.graph import Graph

# Threads of a block here: the emulated device takes as long as there are threads.
FEW_THREADS = 64


class TwinRun:
    """A graph on host and device, and a program on the device; ``sources`` are dense ids, and may be set."""

    def __init__(
        self, make: Callable[[], Program], *, directed: bool, weighted: bool, sources: tuple[int, ...]
    ) -> None:
        self.graph = self.new_graph(directed=directed, weighted=weighted)
        self.make: Callable[[], Any] = make
        self.sources = sources
        self.program: Any = twin(make(), self.graph)
        self.begin()

    def new_graph(self, *, directed: bool, weighted: bool) -> Graph:
        return Graph(directed=directed, weighted=weighted, device=True, threads=1)

    def bound(self) -> Vertices:
        """What an engine tells programs before each run."""
        graph = self.graph
        known = [v if v < graph.n_vertices and graph.alive[v] else NO_VERTEX for v in self.sources]
        return np.array(known, np.uint32)

    def begin(self) -> Refresh:
        self.program.bind(self.bound())
        self.report: Refresh = self.program.start(self.graph)
        return self.report

    def apply(self, epoch: Epoch) -> Refresh:
        graph = self.graph
        change = graph.apply(epoch.batch(weighted=graph.weighted), epoch.n_vertices, epoch.vertex_ops())
        self.program.bind(self.bound())
        self.report = self.program.refresh(graph, change)
        return self.report

    def step(self, epoch: Epoch) -> Refresh:
        """Apply an epoch, and check everything."""
        self.refresh(epoch)
        self.check()
        return self.report

    def refresh(self, epoch: Epoch) -> Refresh:
        """Apply an epoch, and check what is reported."""
        raise NotImplementedError

    def check(self) -> None:
        """The program is on the device still, and right."""
        assert self.graph.device_lost is None
        assert self.program.on_device
        self.check_results()

    def check_results(self) -> None:
        """Results are right and proven, wherever they were computed."""
        raise NotImplementedError


class MirroredRun(TwinRun):
    """A program twice: ``program`` on the device, and ``host``, which takes the same changes and has the same
    state. Rows may have owners (``owned``)."""

    def __init__(self, make: Callable[[], Program], *, directed: bool, owned: bool) -> None:
        self.owned = owned
        super().__init__(make, directed=directed, weighted=False, sources=())
        self.host = self.make()
        self.host.start(self.graph)

    def new_graph(self, *, directed: bool, weighted: bool) -> Graph:
        rows: Any = {"host_rows": "owned"} if self.owned else {}
        return Graph(directed=directed, weighted=weighted, device=True, threads=1, **rows)

    def check(self) -> None:
        super().check()
        state, wanted = self.program.state(), self.host.state()
        assert list(state) == list(wanted)
        for name, column in wanted.items():
            assert state[name].tobytes() == column.tobytes(), name


class WalkRun(TwinRun):
    """A random walk; a subclass says what is right."""

    def refresh(self, epoch: Epoch) -> Refresh:
        """Apply an epoch; what is not reported is as before."""
        before = self.estimates().copy()
        self.apply(epoch)
        check_changed(before, self.program, self.graph.n_vertices, self.report)
        return self.report

    @property
    def there(self) -> Any:
        """What the device keeps, when all that was launched is done."""
        runs = self.program._runs
        runs._stream.synchronize()
        return runs._there

    def estimates(self) -> np.ndarray:
        column: np.ndarray = self.program.columns()["estimate"][: self.graph.n_vertices]
        return column

    def check(self) -> None:
        assert self.report.error_bound == self.program.scalars()["error_bound"]
        if self.program._kept is None:  # a state was brought, and nothing has happened since
            assert self.report.changed == {}
        else:
            self.check_bits()
        super().check()

    def check_results(self) -> None:
        """What is published is within its bound, and proven; audits change nothing."""
        assert self.program.scalars()["error_bound"] <= self.program.host.tolerance
        self.check_values()
        assert self.estimates().dtype == np.float32
        before = self.estimates().copy()
        assert self.program.audit(self.graph) == []
        assert np.array_equal(self.estimates(), before)

    def check_values(self) -> None:
        """Results are within their bound."""
        raise NotImplementedError

    def check_bits(self) -> None:
        """What is kept on the device is right in every bit."""
        raise NotImplementedError

    def bits(self) -> list[list[int]]:
        """All that is kept of every vertex."""
        raise NotImplementedError


def set_threads(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    from graphtide.compute.device import kernels

    monkeypatch.setattr(kernels, "BLOCK_THREADS", threads)


Run = TypeVar("Run", bound=TwinRun)


def runs(kind: type[Run], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    """What makes runs, of blocks of few threads; then their graphs are closed."""
    set_threads(monkeypatch, FEW_THREADS)
    made: list[Run] = []

    def make(**how: Any) -> Run:
        made.append(kind(**how))
        return made[-1]

    yield make
    for run in made:
        run.graph.close()


def failing_runs(run_of: Callable[..., TwinRun], fails: Callable[[int], Any], sees: Callable[[Any], bool]) -> int:
    """Let call after call fail, of a refresh with new vertices and of what a checkpoint asks; how many did."""
    for at in range(80):
        run = run_of()
        run.step(inserts([(0, 1), (1, 2)], 3))
        epoch = inserts([(2, v) for v in range(3, 50)], 50)
        change = run.graph.apply(epoch.batch(weighted=run.graph.weighted), 50)
        run.program.bind(run.bound())
        with fails(at) as fault:
            run.report = run.program.refresh(run.graph, change)
            saved = {name: column.copy() for name, column in run.program.state().items()}
            broken = sees(fault)
        run.check_results()
        host = run.make()
        host.restore(saved, run.graph)
        assert host.audit(run.graph) == []
        assert run.program.on_device != broken
        if not broken:
            return at
        run.refresh(deletes([(1, 2)], 50))
        run.check_results()
    pytest.fail("every call failed")
