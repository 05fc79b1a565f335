"""Every kind of program on a graph whose rows are on several sides, and move: the results of a graph on one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from histories import random_history
from test_engine import DenseIds
from walk_twins import FEW_THREADS, set_threads

from graphtide.compute import registry
from graphtide.compute.audit.auditor import Auditor
from graphtide.compute.engine import Engine
from graphtide.compute.program import Program, Published
from graphtide.gpma.edges import EdgeBatch, Vertices
from graphtide.gpma.index.id_order import IdOrder, order_of
from graphtide.partition.graph import Graph


class OrderedIds(DenseIds):
    """External ids that are the dense ones, and their order."""

    def sort_by_external(self, dense: Vertices) -> Vertices:
        return np.sort(dense)

    def comparable(self, n_vertices: int) -> IdOrder:
        return order_of(np.arange(n_vertices))


@contextmanager
def running(kinds: dict[str, dict[str, Any]], **how: Any) -> Iterator[tuple[Graph, Engine]]:
    """A graph, and an engine with a program of each kind."""
    graph, ids = Graph(threads=1, **how), OrderedIds()
    made = [registry.make_program(kind, kind, given, ids) for kind, given in kinds.items()]
    engine = Engine(graph, made, ids.resolve, threads=1)
    try:
        engine.start()
        yield graph, engine
    finally:
        engine.close()
        graph.close()


def follow(
    one: tuple[Graph, Engine], other: tuple[Graph, Engine], seed: int, epochs: int, *, moves: bool = True
) -> None:
    """The same history on both; after each epoch rows of the second move. Results are to be the same values."""
    rng = np.random.default_rng(seed)
    history = random_history(seed, directed=one[0].directed, epochs=epochs, vertex_share=0.05)
    for epoch in history.epochs:
        for graph, engine in (one, other):
            change = graph.apply(epoch.batch(weighted=True), epoch.n_vertices, epoch.vertex_ops())
            assert [run.error for run in engine.refresh(change)] == [None] * len(engine.programs)
        for wanted, found in zip(one[1].programs, other[1].programs, strict=True):
            assert_same_values(wanted, found, epoch.n_vertices)
        if not moves:
            continue
        graph = other[0]
        vertices = np.flatnonzero(rng.random(graph.n_vertices) < 0.3).astype(np.uint32)
        graph.migrate(vertices, int(rng.integers(len(graph.sides))))
        graph.placement.newcomers = int(rng.integers(len(graph.sides)))
    assert [found for found in other[1].audit().values() if found] == []
    auditor = Auditor(*other)
    for _ in range(10_000):
        step = auditor.step(0.001, (0, 0))
        assert step.violations == ()
        if step.ended is not None:
            return
    raise AssertionError("the audit does not end")


def assert_same_values(wanted: Program, found: Program, n: int) -> None:
    """What clients read; on one processor every bit of the columns."""
    vertices = np.arange(n, dtype=np.uint32)
    answers = [
        type(program).read(Published(program.columns(), program.scalars(), n), vertices)
        for program in (wanted, found)
    ]
    if wanted.kind in APPROXIMATE and found.on_device:
        rtol, atol = (1e-2, 0.0) if wanted.kind == "pagerank" else (0.0, 1e-2)
        assert np.allclose(answers[0].values, answers[1].values, rtol=rtol, atol=atol), wanted.id
        assert np.array_equal(answers[0].null, answers[1].null), wanted.id
        return
    assert wanted.scalars() == found.scalars(), wanted.id
    assert np.array_equal(answers[0].values, answers[1].values, equal_nan=True), wanted.id
    for name, column in wanted.columns().items() if wanted.on_device == found.on_device else ():
        assert np.array_equal(column[:n], found.columns()[name][:n], equal_nan=True), (wanted.id, name)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("n_sides", [2, 3])
def test_every_program_on_several_hosts(directed: bool, n_sides: int) -> None:
    kinds = dict(registry.least_programs(weighted=True))
    how = {"directed": directed, "host_rows": "owned", "host_sides": n_sides}
    with running(kinds, directed=directed) as one, running(kinds, **how) as other:
        follow(one, other, n_sides, 25)


DEVICE_KINDS: dict[str, dict[str, Any]] = {
    "bfs": {"source": 0},
    "sssp": {"source": 0},
    "components": {},
    "sspaths": {"source": 0},
    "triangles": {},
    "lcc": {},
    "cdlp": {},
}
# Within their errors on either processor, as the audit proves: that of every value, or the sum of all.
APPROXIMATE: dict[str, dict[str, Any]] = {"pagerank": {}, "ppr": {"sources": 0}}


@pytest.mark.sample(1)
@pytest.mark.parametrize("directed", [True, False])
def test_programs_on_a_device_that_has_all_rows(
    cupy: ModuleType, directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has none, and programs need none there: not even to publish, to save or to be audited."""
    set_threads(monkeypatch, FEW_THREADS)
    how = {"directed": directed, "host_rows": "owned", "device": True}
    with running(DEVICE_KINDS, directed=directed) as one, running(DEVICE_KINDS, **how) as other:
        assert all(program.on_device for program in other[1].programs)
        follow(one, other, 5, 25, moves=False)
        graph, engine = other
        assert graph.placement.owned == (0, graph.n_vertices)
        assert graph.host.out.n_edges == 0
        assert all(program.on_device for program in engine.programs)


@pytest.mark.sample(2)
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_programs_on_a_device_while_rows_move(
    cupy: ModuleType, directed: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rows are the host's, other ones after each epoch, and programs stay where they are."""
    set_threads(monkeypatch, FEW_THREADS)
    kinds = {**DEVICE_KINDS, **APPROXIMATE}
    how = {"directed": directed, "host_rows": "owned", "device": True}
    with running(kinds, directed=directed) as one, running(kinds, **how) as other:
        follow(one, other, 10 + seed, 20)
        assert all(program.on_device for program in other[1].programs)


def test_to_add_a_program_copies_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def copies(*_: Any) -> None:
        raise AssertionError("rows are copied")

    with running({}, host_rows="owned", host_sides=2) as (graph, engine):
        graph.apply(EdgeBatch.of([0, 1], [1, 2], [True, True], np.ones(2, np.float32)), 3)
        graph.migrate(np.array([1], np.uint32), 1)
        for side in graph.sides:
            monkeypatch.setattr(side, "export_rows", copies)
        engine.require(registry.make_program("pagerank", "ranks", {}, OrderedIds()))
