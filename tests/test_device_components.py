"""Components on a device: after every batch the host's names, and a forest that the host's audit proves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, random_history
from test_components import Ids
from test_cuda_compiles import nvrtc as nvrtc

from graphtide.compute.forest.components import Components
from graphtide.compute.program import Published, Refresh
from graphtide.partition.graph import Graph


class TwinRun:
    """A graph on host and device, and components twice: the host's own, and a twin on the device."""

    def __init__(self, *, directed: bool = True, seed: int = 0) -> None:
        from graphtide.compute.device.components import DeviceComponents

        self.graph = Graph(directed=directed, weighted=False, device=True, threads=1)
        self.ids = Ids(seed)
        self.host = Components("host", self.ids)
        self.twin = DeviceComponents(Components("twin", self.ids))
        self.started_over = 0
        for program in (self.host, self.twin):
            program.start(self.graph)

    def step(self, epoch: Epoch) -> Refresh:
        """Apply an epoch; check the twin against the host's program, and that it reports exactly what changed."""
        change = self.graph.apply(epoch.batch(), epoch.n_vertices, epoch.vertex_ops())
        n_before = change.n_vertices_before
        before = {name: column[:n_before].copy() for name, column in self.twin.columns().items()}
        self.host.refresh(self.graph, change)
        refresh = self.twin.refresh(self.graph, change)
        self.started_over += refresh.started_over
        n = self.graph.n_vertices
        for name, column in self.twin.columns().items():
            if refresh.started_over:
                assert refresh.changed[name] is None
                continue
            reported = refresh.changed.get(name)
            listed = [] if reported is None else reported.tolist()
            assert len(listed) == len(set(listed))
            differs = np.flatnonzero(column[:n_before] != before[name]).tolist()
            assert sorted(v for v in listed if v < n_before) == differs, name
            assert {v for v in listed if v >= n_before} == set(range(n_before, n)) or name != "handle"
        self.check()
        return refresh

    def check(self) -> None:
        """The twin is on the device still, and right."""
        assert self.graph.device_lost is None
        assert self.twin.on_device
        self.check_results()

    def check_results(self) -> None:
        n = self.graph.n_vertices
        labels = []
        for program in (self.host, self.twin):
            published = Published(program.columns(), program.scalars(), n)
            labels.append(type(program).read(published, np.arange(n, dtype=np.uint32)).values.tolist())
        assert labels[0] == labels[1]
        assert self.host.scalars() == self.twin.scalars()
        assert self.twin.audit(self.graph) == []
        assert self.twin.audit_slice(self.graph, 0, n)[0] == []
        if self.twin.on_device:
            self.check_device(n)

    def check_device(self, n: int) -> None:
        """What the device keeps is what the host has of it, and what must be so between runs."""
        runs = self.twin._runs
        nodes = runs.read(n)
        state = self.twin.state()
        assert np.array_equal(nodes[:, 0], state["parent"])
        assert np.array_equal(nodes[:, 2], state["handle"])
        assert (nodes[:, 3] == 0xFFFF_FFFF).all()
        trees = runs._vertices.trees.get()[: 4 * n].reshape(-1, 4)
        assert (trees[:, :2] == 0).all()
        assert np.array_equal(trees[:, 2], np.bincount(nodes[:, 2], minlength=n))
        assert np.array_equal(trees[:, 3], np.arange(n))
        from graphtide.compute.device.forest_runs import FOREST_COUNTERS

        counters = runs._counters.get().view(FOREST_COUNTERS)[0]
        n_free = int(counters["n_free"])
        free = np.flatnonzero(trees[:, 2] == 0)
        assert sorted(runs._vertices.free.get()[:n_free].tolist()) == free.tolist()
        for name in FOREST_COUNTERS.names:
            assert name in ("n_free", "barrier") or not np.any(counters[name]), name


@pytest.fixture
def run_of(cupy: ModuleType) -> Iterator[Callable[..., TwinRun]]:
    """Makes runs, and closes their graphs."""
    made: list[TwinRun] = []

    def make(**how: Any) -> TwinRun:
        made.append(TwinRun(**how))
        return made[-1]

    yield make
    for run in made:
        run.graph.close()


@pytest.mark.parametrize("directed", [True, False])
def test_any_history_gives_the_host_s_names(
    run_of: Callable[..., TwinRun], directed: bool, seed: int, run_long: bool
) -> None:
    for own_seed in range(seed, seed + (60 if run_long else 3)):
        cuda_emulator.seed(own_seed)
        run = run_of(directed=directed, seed=own_seed)
        share = 0.15 if own_seed % 2 else 0.0
        for epoch in random_history(own_seed, directed=directed, epochs=20, vertex_share=share).epochs:
            run.step(epoch)
        assert run.graph.check() == []
