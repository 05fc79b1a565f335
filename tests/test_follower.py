"""A program on a graph of its own that follows another: after any changes, in any portions, both are equal."""

from __future__ import annotations

import threading
from contextlib import closing

import numpy as np
import pytest
from histories import History, failing, random_history

from graphtide.compute.engine import Engine
from graphtide.compute.program import Program
from graphtide.compute.registry import make_program
from graphtide.daemon.engine.between import BetweenEpochs
from graphtide.daemon.engine.follower import Follower, GraphCopy, Since
from graphtide.daemon.errors import Unavailable
from graphtide.gpma.edges import Vertices
from graphtide.gpma.index.id_order import IdOrder, order_of
from graphtide.partition.graph import Graph

KINDS = ("bfs", "components", "pagerank", "triangles", "sspaths")


class Order:
    """External ids are the dense ones, backwards."""

    def smallest(self, dense: Vertices) -> int:
        return int(dense.max())

    def sort_by_external(self, dense: Vertices) -> Vertices:
        return np.sort(dense)[::-1]

    def comparable(self, n_vertices: int) -> IdOrder:
        return order_of(-np.arange(n_vertices))


def resolve(sources: object) -> Vertices:
    return np.array(sources, np.uint32)


def made(kind: str) -> Program:
    return make_program(kind, None, {"source": 0} if kind in ("bfs", "sspaths") else {}, Order())


@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "unweighted"])
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_who_follows_has_the_same_graph_and_the_same_results(directed: bool, weighted: bool) -> None:
    for seed in range(3):
        history = random_history(seed, directed=directed, epochs=30, vertex_share=0.15)
        for kind in KINDS if seed == 0 else KINDS[seed : seed + 1]:
            _follow(history, kind, weighted, np.random.default_rng(seed))


def _follow(history: History, kind: str, weighted: bool, rng: np.random.Generator) -> None:
    graph = Graph(directed=history.directed, weighted=weighted, threads=1)
    engine = Engine(graph, [made(kind)], resolve)
    with closing(graph), closing(engine):
        engine.start()
        begins = int(rng.integers(1, 15))
        since = Since(follows=True)
        follower = Follower(graph, made(kind), resolve, 1)
        with closing(follower):
            for number, epoch in enumerate(history.epochs):
                change = graph.apply(epoch.batch(weighted=weighted), epoch.n_vertices, epoch.vertex_ops())
                engine.refresh(change)
                if number == begins:
                    dead = np.flatnonzero(~graph.alive).astype(np.uint32)
                    copied = GraphCopy([graph.export()], graph.n_vertices, dead)
                    assert follower.start(copied).error is None
                elif number > begins:
                    since.note(change)
                    if rng.random() < 0.3:
                        run = follower.follow(since.take())
                        assert run is not None and run.error is None
                        assert since.updates == 0 and follower.follow(since.take()) is None
                        _compare(graph, engine, follower, kind)
            follower.follow(since.take())
            _compare(graph, engine, follower, kind)
            # And it goes over to the other graph.
            engine.remove(kind)
            assert engine.add(follower.program) is follower.program
            assert not any(engine.audit().values())
            more = random_history(1000, directed=history.directed, epochs=5, vertices=history.n_vertices)
            for epoch in more.epochs:
                change = graph.apply(epoch.batch(weighted=weighted), graph.n_vertices, epoch.vertex_ops())
                assert engine.refresh(change)[0].error is None
                assert not any(engine.audit().values())


def _compare(graph: Graph, engine: Engine, follower: Follower, kind: str) -> None:
    there, own = graph.export(), follower.graph.export()
    assert own.keys.tobytes() == there.keys.tobytes()
    if graph.weighted:
        assert own.weights is not None and there.weights is not None
        assert own.weights.tobytes() == there.weights.tobytes()
    assert follower.graph.n_vertices == graph.n_vertices
    np.testing.assert_array_equal(follower.graph.alive, graph.alive)
    assert not any(follower.engine.audit().values())
    assert follower.program.kind == engine.programs[0].kind == kind


def test_want_of_memory_is_no_fault_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    history = random_history(3, directed=True, epochs=3)
    with closing(Graph(threads=1)) as graph:
        for epoch in history.epochs:
            change = graph.apply(epoch.batch(weighted=True), epoch.n_vertices, epoch.vertex_ops())
        program = made("triangles")
        monkeypatch.setattr(program, "start", failing(program.start, 0))
        copied = GraphCopy([graph.export()], graph.n_vertices, np.flatnonzero(~graph.alive).astype(np.uint32))
        with closing(Follower(graph, program, resolve, 1)) as follower:
            with pytest.raises(MemoryError):
                follower.start(copied)
            assert not copied.pieces, "it is used up"
    assert change.n_vertices == follower.graph.n_vertices


def test_names_alone_are_held_without_keeping_changes() -> None:
    with closing(Graph(threads=1)) as graph:
        since = Since(follows=False)
        epoch = random_history(1, directed=True, epochs=8).epochs[-1]
        since.note(graph.apply(epoch.batch(weighted=True), epoch.n_vertices, epoch.vertex_ops()))
        assert since.updates == 0 and since.take() == []


# -- between epochs -----------------------------------------------------------------------------------------------


def test_what_waits_is_done_by_the_engines_thread_and_its_failure_is_the_askers() -> None:
    woken = threading.Semaphore(0)
    between = BetweenEpochs(woken.release)
    found: list[object] = []

    def ask() -> None:
        found.append(between.do(threading.get_ident))
        try:
            between.do(lambda: 1 // 0)
        except ZeroDivisionError as error:
            found.append(error)
        try:
            between.do(lambda: found.append("too late"))
        except Unavailable as error:
            found.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    for _ in range(2):
        assert woken.acquire(timeout=60)
        between.turn()
    assert woken.acquire(timeout=60)
    between.close()
    asker.join(60)
    assert found[0] == threading.get_ident()
    assert [type(item) for item in found[1:]] == [ZeroDivisionError, Unavailable]
    with pytest.raises(Unavailable):
        between.do(int)
