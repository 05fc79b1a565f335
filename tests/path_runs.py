"""A graph and a program of paths on it, moved epoch by epoch and held against a fresh start of the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from histories import EdgeSet, Epoch, History
from written_records import assert_written_records_hold

from graphtide.compute.device import twin
from graphtide.compute.paths.program import PathProgram
from graphtide.compute.program import Program, Refresh
from graphtide.gpma.edges import NO_VERTEX, Vertices
from graphtide.partition.graph import Graph


class PathRun:
    """The graph, ``edges`` as its oracle, and the program twice: ``program`` is kept, ``fresh`` starts for checks.

    A subclass names the published column, and may say what of it is compared, and what it should be. ``sources``:
    external ids that are the dense ones; may be set between epochs.
    """

    name: ClassVar[str] = "word"
    on_device: ClassVar[bool] = False
    """Whether the program that is kept runs on a device; the fresh one is the host's. See the fixture ``home``."""

    def __init__(
        self,
        make: Callable[[str, tuple[int, ...]], Any],
        directed: bool,
        sources: tuple[int, ...] = (0,),
        *,
        weighted: bool = False,
        threads: int | None = None,
    ) -> None:
        self.graph = Graph(directed=directed, weighted=weighted, threads=threads, device=self.on_device)
        self.edges = EdgeSet(directed=directed)
        self.sources = sources
        self.program = twin(make("kept", sources), self.graph) if self.on_device else make("kept", sources)
        self.fresh = make("fresh", sources)
        self.program.bind(self._bound())
        self.program.start(self.graph)

    def step(self, epoch: Epoch) -> Refresh:
        """Apply an epoch and check that exactly what changed is reported."""
        change = self.graph.apply(epoch.batch(weighted=self.graph.weighted), epoch.n_vertices)
        self.edges.apply(epoch)
        before = self.column.copy()
        self.program.bind(self._bound())
        refresh: Refresh = self.program.refresh(self.graph, change)
        assert_written_records_hold(self.program)
        if refresh.started_over:
            assert refresh.changed == {self.name: None}
        else:
            differs = set(np.flatnonzero(self.column[: before.size] != before).tolist())
            differs |= set(range(before.size, self.column.size))
            reported = refresh.changed.get(self.name)
            assert sorted([] if reported is None else reported.tolist()) == sorted(differs)
        return refresh

    @property
    def column(self) -> np.ndarray:
        """What is kept, of every vertex; in place."""
        column: np.ndarray = self.program.state()[self.name]
        return column

    def results(self, program: Program) -> list[Any]:
        """What must be equal, however it came about: of words the bits of the values."""
        bits: list[int] = (program.state()["word"] >> np.uint64(32)).tolist()
        return bits

    def check(self) -> None:
        """Equal to a fresh start, and both proven by the audit."""
        assert self.program.on_device == self.on_device
        self.fresh.bind(self._bound())
        self.fresh.start(self.graph)
        assert self.results(self.program) == self.results(self.fresh)
        assert self.program.scalars() == self.fresh.scalars()
        assert self.program.audit(self.graph) == []
        assert self.fresh.audit(self.graph) == []

    def expected(self) -> list[Any]:
        """What the results should be, by code that shares none with the program."""
        raise NotImplementedError

    def check_against_oracle(self) -> None:
        assert self.results(self.program) == self.expected()

    def known_sources(self) -> list[int]:
        """The sources that are vertices."""
        return [s for s in self.sources if s < self.graph.n_vertices]

    def _bound(self) -> Vertices:
        n = self.graph.n_vertices
        return np.array([s if s < n else NO_VERTEX for s in self.sources], np.uint32)


class Invalidated:
    """Watches which vertices a path program invalidates in a refresh."""

    def __init__(self, program: PathProgram, monkeypatch: pytest.MonkeyPatch) -> None:
        self.vertices = np.empty(0, np.uint32)
        mend = program._mend

        def watched(*given: Any) -> tuple[int, int, int, int, int, int]:
            told = mend(*given)
            n_lost = told[1]
            self.vertices = program._loss.queue[:n_lost].copy()
            return told

        monkeypatch.setattr(program, "_mend", watched)

    def forget(self) -> None:
        self.vertices = np.empty(0, np.uint32)


def epochs_of(history: History, run: PathRun) -> Iterator[Refresh]:
    """Every epoch in turn, with a check after each."""
    for epoch in history.epochs:
        yield run.step(epoch)
        run.check()
