"""Programs on a device whose rows live on the host in part: what they give with all rows on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import cuda_emulator
import numpy as np
import pytest
import test_device_components as components
import test_device_pagerank as pagerank
import test_device_paths as paths
from histories import Epoch, random_history, rmat_history
from split_rows import split, subset

from graphtide.compute.program import Refresh
from graphtide.partition.graph import Graph


class Splitting:
    """A run of a program on a graph whose rows move between host and device before each epoch."""

    graph: Graph
    side: Any = None
    moves = True

    def new_graph(self, *, directed: bool, weighted: bool) -> Graph:
        graph = Graph(directed=directed, weighted=weighted, device=True, threads=1)
        self.side = split(graph)
        self.n_steps = 0
        return graph

    def move(self, seed: int) -> None:
        """Have other rows on the host, and new vertices on one of both sides."""
        if self.moves and self.graph.n_vertices:
            rng = np.random.default_rng([seed, self.n_steps])
            degrees = self.graph.out_rows().degrees[: self.graph.n_vertices]
            self.side.move(subset(self.n_steps + seed, degrees, rng))
            self.side.newcomers_remote = bool(rng.integers(2))
        self.n_steps += 1


class PathRun(Splitting, paths.TwinRun):
    pass


class ComponentsRun(Splitting, components.TwinRun):
    pass


class RanksRun(Splitting, pagerank.RanksRun):
    pass


Run = TypeVar("Run", bound=Splitting)
Make = Callable[..., Any]


@pytest.fixture
def run_of(emulated_cupy: Any) -> Iterator[Make]:
    """Makes runs of a class, and closes their graphs."""
    made: list[Any] = []

    def make(kind: type[Run], *given: Any, **how: Any) -> Run:
        made.append(kind(*given, **how))
        return made[-1]  # type: ignore[no-any-return]

    yield make
    for run in made:
        run.side.close()
        run.graph.close()


def step(run: Any, epoch: Epoch, seed: int) -> Refresh:
    run.move(seed)
    done: Refresh = run.step(epoch)
    return done


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("kind", ["bfs", "sssp"])
def test_paths_of_any_history(
    run_of: Make, kind: str, directed: bool, seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for own_seed in range(seed, seed + (60 if run_long else 1)):
        rng = np.random.default_rng(own_seed)
        cuda_emulator.seed(own_seed)
        if own_seed % 2:
            paths.tiny(monkeypatch, rng)
        run = run_of(PathRun, kind, directed=directed)
        history = random_history(own_seed, directed=directed, epochs=14, vertex_share=0.1 * (own_seed % 3 > 0))
        for epoch in history.epochs:
            step(run, epoch, own_seed)
        assert run.graph.check() == []


@pytest.mark.parametrize("directed", [True, False])
def test_components_of_any_history(
    run_of: Make, directed: bool, seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for own_seed in range(seed, seed + (60 if run_long else 1)):
        rng = np.random.default_rng(own_seed)
        cuda_emulator.seed(own_seed)
        if own_seed % 2:
            components.tiny(monkeypatch, rng)
        run = run_of(ComponentsRun, directed=directed, seed=own_seed)
        history = random_history(own_seed, directed=directed, epochs=14, vertex_share=0.1 * (own_seed % 3 > 0))
        for epoch in history.epochs:
            step(run, epoch, own_seed)
        assert run.graph.check() == []


@pytest.mark.parametrize("directed", [True, False])
def test_ranks_of_any_history(
    run_of: Make, directed: bool, seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pagerank.set_threads(monkeypatch, pagerank.FEW_THREADS)
    for own_seed in range(seed, seed + (40 if run_long else 1)):
        cuda_emulator.seed(own_seed)
        run = run_of(RanksRun, directed=directed)
        history = random_history(own_seed, directed=directed, epochs=8, vertex_share=0.1 * (own_seed % 3 > 0))
        for epoch in history.epochs:
            step(run, epoch, own_seed)
        assert run.graph.check() == []
