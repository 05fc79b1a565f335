"""Questions about surroundings, from a client's end: in slices, of one epoch, within limits, by any ids."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import networkx as nx
import numpy as np
import pytest
from test_server import Chain, serving
from waiting import until

from graphtide.daemon import errors
from graphtide.daemon.client import AsyncClient, Client
from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.engine.storage import Storage
from graphtide.daemon.engine.topology import EngineTopology
from graphtide.daemon.records.position import Position
from graphtide.daemon.records.stream import Source
from graphtide.daemon.records.topology import StorageState
from graphtide.daemon.serve import exploring
from graphtide.daemon.serve.asker import Asker
from graphtide.daemon.serve.exploring import Explorer, exploration_answer
from graphtide.daemon.serve.held import Held, Holding
from graphtide.daemon.serve.serving import Serving
from graphtide.daemon.state.requested import RequestedCheckpoints
from graphtide.gpma.edges import EdgeBatch, EdgeList, Op, pack
from graphtide.partition.existence import VertexOps
from graphtide.partition.exploring import warm_up
from graphtide.partition.graph import Graph

N = 60


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()


@contextlib.contextmanager
def random_graph(*, directed: bool, seed: int) -> Iterator[tuple[Graph, Any]]:
    """A weighted graph of N vertices, with a hub and loops, the last vertex deleted; and the same in NetworkX."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, N, 150), rng.integers(0, N, 150)
    src[:30], src[30:33], dst[40:60] = 7, dst[30:33], 7
    weights = rng.integers(1, 100, 150).astype(np.float32)
    model = nx.DiGraph() if directed else nx.Graph()
    model.add_nodes_from(range(N))
    model.add_weighted_edges_from(zip(src.tolist(), dst.tolist(), weights.tolist(), strict=True))
    model.remove_node(N - 1)
    with contextlib.closing(Graph(directed=directed, weighted=True)) as graph:
        graph.apply(EdgeBatch.of(src, dst, weights=weights), N)
        gone = VertexOps(
            np.array([N - 1], np.uint32), np.full(1, Op.DELETE_VERTEX, np.uint8), np.zeros(1, np.int64)
        )
        graph.apply(EdgeBatch.of([], []), N, gone)
        yield graph, model


def hops_of(model: Any, vertex: int, direction: str, k: int) -> dict[int, int]:
    if model.is_directed() and direction != "out":
        model = model.reverse() if direction == "in" else model.to_undirected()
    return dict(nx.single_source_shortest_path_length(model, vertex, cutoff=k))


def edges_of(model: Any, src: Any, dst: Any) -> dict[tuple[int, int], float]:
    """As u -> v, those of undirected graphs from the smaller one where both orders are asked for."""
    found = {}
    for u in {*src} & {*model}:
        for v in model[u]:
            if v in dst and (model.is_directed() or u <= v or not (v in src and u in dst)):
                found[u, v] = model[u][v]["weight"]
    return found


# -- slices -------------------------------------------------------------------------------------------------


class Engine:
    """Answers as the engine process does; the epoch moves after as many questions as ``moves`` says."""

    def __init__(self, graph: Graph, moves: dict[int, int] | None = None) -> None:
        self.topology = EngineTopology(
            Storage(graph, Position(1)), cast(Source, None), cast(RequestedCheckpoints, None)
        )
        self.moves = moves or {}
        self.asked: list[tuple[str, int]] = []
        self.number = 1
        self.held = Held()
        self.sent_bytes = 0

    def holding(self) -> Holding:
        return Holding(len(self.asked), self.note)

    def note(self, what: str, content: Any) -> None:
        self.sent_bytes += sum(map(len, content.get("columns", {}).values()))
        self.held.note(what, content)

    async def call(
        self, asker: Any, method: str, params: Any, vertices: int, deadline: float, *, beside: bool
    ) -> dict[str, Any]:
        assert beside == (params["reads_max"] == READS_MAX), "what is not sliced keeps nobody waiting"
        self.number += self.moves.get(len(self.asked), 0)
        self.asked.append((method, params["reads_max"]))
        self.sent_bytes += sum(len(given) for given in params.values() if isinstance(given, bytes))
        question = self.held.whole({**params, "timeout_s": 5.0})
        state, answer = exploration_answer(self.topology, method, question)
        assert isinstance(state, StorageState)
        return {**answer, "epoch": [1, self.number], "stamp": b"%d" % self.number}


READS_MAX = 10_000


def explorer(engine: Engine, reads_max: int = READS_MAX) -> Explorer:
    made: Any = SimpleNamespace(engine=engine, limits=LimitsConfig.model_construct(edges_visited_max=reads_max))
    return Explorer(cast(Serving, made), cast(Asker, None), time.monotonic() + 60)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("direction", ["out", "in", "both"])
def test_slices_put_together_are_the_whole(
    directed: bool, direction: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exploring, "SLICE_READS", 6)
    monkeypatch.setattr(exploring, "SLICE_VERTICES", 5)
    with random_graph(directed=directed, seed=3) as (graph, model):
        engine = Engine(graph)
        reached = asyncio.run(explorer(engine).reach(7, direction, 3, N))
        assert reached.search is not None
        hops = dict(zip(reached.search.found.tolist(), reached.search.hops.tolist(), strict=True))
        assert hops == hops_of(model, 7, direction, 3)
        assert len(engine.asked) > 3 and {reads for _, reads in engine.asked} == {6}
        assert engine.sent_bytes <= 8 + 8 * len(hops), "what is known goes there once"

        src, dst = np.arange(0, N, 2, dtype=np.uint32), np.arange(0, N + 3, 3, dtype=np.uint32)
        expected = edges_of(model, src.tolist(), dst.tolist())
        engine = Engine(graph)
        edges = asyncio.run(explorer(engine).edges(src, dst, 1000))
        common = np.intersect1d(src, dst)
        assert len(engine.asked) >= src.size / 5
        assert engine.sent_bytes <= 20 * len(engine.asked) + 2 * 4 * (dst.size + common.size)
        assert not len(engine.held)
        listed = zip(edges.found.src.tolist(), edges.found.dst.tolist(), strict=True)
        assert edges.found.weights is not None
        assert dict(zip(listed, edges.found.weights.tolist(), strict=True)) == expected
        assert edges.known_src.tolist() == [int(v) in model for v in src]
        assert edges.known_dst.tolist() == [int(v) in model for v in dst]
        few = asyncio.run(explorer(Engine(graph)).edges(src, dst, 3)).found
        assert (
            few.size == len(expected)
            and [*zip(few.src.tolist(), few.dst.tolist(), strict=True)] == sorted(expected)[:3]
        )

        engine = Engine(graph)
        ego = asyncio.run(explorer(engine).ego(7, direction, N, 1000))
        ids = hops_of(model, 7, direction, 1)
        assert ego.search is not None and ego.edges is not None and {*ego.search.found.tolist()} == {*ids}
        assert {*zip(ego.edges.src.tolist(), ego.edges.dst.tolist(), strict=True)} == {*edges_of(model, ids, ids)}
        assert {method for method, _ in engine.asked} == {"ego", "reach", "edges_between"} and not len(engine.held)


def test_an_answer_is_of_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploring, "SLICE_READS", 6)
    every = np.arange(N, dtype=np.uint32)
    with random_graph(directed=True, seed=3) as (graph, model):
        engine = Engine(graph, {2: 1})  # while the third is on its way
        reached = asyncio.run(explorer(engine).reach(7, "out", 3, N))
        assert reached.stamp == b"2" and {reads for _, reads in engine.asked} == {6}
        engine = Engine(graph, dict.fromkeys(range(100), 1))
        reached = asyncio.run(explorer(engine).reach(7, "out", 3, N))
        assert reached.search is not None and reached.search.found.size == len(hops_of(model, 7, "out", 3))
        assert [reads for _, reads in engine.asked] == [6, 6, 6, 6, 10_000]
        engine = Engine(graph, dict.fromkeys(range(100), 1))
        edges = asyncio.run(explorer(engine).edges(every, every, 1000))
        assert edges.found.size == model.number_of_edges() and engine.asked[-1] == ("edges_between", 10_000)
        engine = Engine(graph, dict.fromkeys(range(100), 1))
        ego = asyncio.run(explorer(engine).ego(7, "both", N, 1000))
        assert ego.edges is not None and engine.asked[-1] == ("ego", 10_000) and ego.stamp == b"%d" % engine.number


def test_reading_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    every = np.arange(N, dtype=np.uint32)
    with random_graph(directed=True, seed=3) as (graph, _):
        for slice_reads in (6, 1000):
            monkeypatch.setattr(exploring, "SLICE_READS", slice_reads)
            engine = Engine(graph)
            with pytest.raises(errors.LimitExceeded, match="more than 20 entries"):
                asyncio.run(explorer(engine, 20).reach(7, "out", 9, N))
            with pytest.raises(errors.LimitExceeded, match="more than 20 entries"):
                asyncio.run(explorer(engine, 20).edges(every, every, 1))
            with pytest.raises(errors.LimitExceeded, match="more than 20 entries"):
                asyncio.run(explorer(engine, 20).ego(7, "both", N, 1))
            assert len(engine.asked) < 40 and not len(engine.held)


def test_nothing_is_held_for_a_client_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploring, "SLICE_READS", 6)
    every = np.arange(N, dtype=np.uint32)

    class Slow(Engine):
        """Never answers the fourth question."""

        async def call(self, *given: Any, beside: bool) -> dict[str, Any]:
            if len(self.asked) == 3:
                is_waiting.set()
                await asyncio.Event().wait()
            return await super().call(*given, beside=beside)

    async def leave(engine: Engine, request: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(request)
        await is_waiting.wait()
        assert len(engine.held) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not len(engine.held)

    with random_graph(directed=True, seed=3) as (graph, _):
        for ask in (lambda asked: asked.reach(7, "out", 3, N), lambda asked: asked.edges(every, every, 1000)):
            is_waiting, engine = asyncio.Event(), Slow(graph)
            asyncio.run(leave(engine, ask(explorer(engine))))


# -- a real server over a real graph ------------------------------------------------------------------------


class Surroundings(Chain):
    """Results of a chain, and the edges of a graph."""

    def __init__(self, kind: str, graph: Graph, n: int = N) -> None:
        super().__init__(kind)
        self.storage = Storage(graph, Position(1))
        real = EngineTopology(self.storage, cast(Source, None), cast(RequestedCheckpoints, None))
        self.reach, self.edges_between, self.ego = real.reach, real.edges_between, real.ego  # type: ignore[method-assign]
        self.grow(n)


@pytest.fixture(scope="module", params=[(True, "int"), (False, "string")], ids=["directed", "undirected strings"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directed, kind = request.param
    limits = LimitsConfig(edges_max=500, vertices_max=20_000)
    with random_graph(directed=directed, seed=5) as (graph, model):
        engine = Surroundings(kind, graph)
        with serving(engine, tmp_path_factory.mktemp("s"), limits) as link:
            yield link.addresses[0], model, lambda *dense: engine.ids(dense)


@pytest.fixture
def served(shared: Any) -> Iterator[Any]:
    address, *rest = shared
    with Client(address, timeout=60) as client:
        yield client, *rest


def listed(ids: Any) -> list[Any]:
    return ids if isinstance(ids, list) else ids.tolist()


def test_clients_look_around(served: Any) -> None:
    client, model, ids = served
    (hub,) = ids(7)
    for direction, k in (("out", 1), ("in", 2), ("both", 3), ("out", 0)):
        expected = hops_of(model, 7, direction, k)
        found = client.khop(hub, k, direction=direction)
        assert listed(found.ids)[0] == hub and not found.truncated
        pairs = dict(zip(listed(found.ids), found.distances.tolist(), strict=True))
        assert pairs == dict(zip(ids(*expected), expected.values(), strict=True))
    few = client.khop(hub, 3, limit=4)
    assert few.truncated and len(few.ids) == 4
    assert [*few.distances] == sorted(hops_of(model, 7, "out", 3).values())[:4]

    def as_ids(edges: Any) -> set[Any]:
        return {(*ids(u), *ids(v), weight) for (u, v), weight in edges.items()}

    def edges_in(answer: Any) -> set[Any]:
        return {*zip(listed(answer.src), listed(answer.dst), answer.weights.tolist(), strict=True)}

    near = [*hops_of(model, 7, "out", 1)]
    ego = client.egonet(hub)
    assert {*listed(ego.ids)} == {*ids(*near)} and not ego.truncated
    assert edges_in(ego) == as_ids(edges_of(model, near, near)) and ego.size == len(ego.src)
    some, others = [3, 7, 7, 12, N - 1, 20, 33], [5, 7, 20, 44, N + 5]
    sub = client.subgraph(ids(*range(N)))
    assert edges_in(sub) == as_ids(edges_of(model, range(N), range(N))) and listed(sub.unknown) == ids(N - 1)
    assert not sub.truncated and client.subgraph(ids(*range(N)), limit=2).truncated
    cross = client.cross_edges(ids(*some), ids(*others))
    assert edges_in(cross) == as_ids(edges_of(model, some, others))
    assert listed(cross.unknown) == ids(N - 1, N + 5)
    assert client.subgraph([]).size == 0 and client.cross_edges(ids(7), []).size == 0


def test_what_is_no_vertex_or_too_much_is_refused(served: Any) -> None:
    client, _, ids = served
    for stranger in ids(N - 1, N + 5):  # deleted, and never heard of
        with pytest.raises(errors.UnknownVertex):
            client.khop(stranger)
        with pytest.raises(errors.UnknownVertex):
            client.egonet(stranger)
    with pytest.raises(errors.LimitExceeded, match="at most 500"):
        client.subgraph(ids(7), limit=501)
    with pytest.raises(errors.LimitExceeded, match="at most 20000"):
        client.khop(*ids(7), limit=20_001)
    with pytest.raises(errors.LimitExceeded, match="src and dst have 30000 ids"):
        client.cross_edges(ids(7) * 15_000, ids(8) * 15_000)
    with pytest.raises(errors.RequestError, match="one of out, in, both"):
        client.khop(*ids(7), direction="up")


def test_the_best_of_chosen_vertices(served: Any) -> None:
    client, _, ids = served
    best = client.top("rank", 2, vertices=ids(3, 9, 9, 4, N + 5))
    assert listed(best.ids) == ids(9, 4) and best.values.tolist() == [10, 5] and listed(best.unknown) == ids(N + 5)
    assert listed(client.top("rank", 2, order="asc", vertices=ids(3, 9, 4) * 500).ids) == ids(3, 4)
    assert listed(client.top("hops", 5, vertices=ids(N - 1, 2)).ids) == ids(2)  # the last one has no value
    with pytest.raises(errors.NotSupported, match="no order"):
        client.top("parts", 2, vertices=ids(3))


def test_the_asynchronous_client_asks_the_same(served: Any, shared: Any) -> None:
    client, _, ids = served

    async def ask() -> Any:
        async with AsyncClient(shared[0]) as other:
            return await other.khop(*ids(7), 2), await other.subgraph(ids(7, 8))

    reach, sub = asyncio.run(ask())
    assert listed(reach.ids) == listed(client.khop(*ids(7), 2).ids)
    assert sub.size == client.subgraph(ids(7, 8)).size


# -- while the graph changes ----------------------------------------------------------------------------------


def test_a_search_along_a_hub_sees_each_epoch_whole_while_the_graph_changes(tmp_path: Path) -> None:
    """The first spoke and the last one come and go together; what lies between is more than a slice."""
    n = exploring.SLICE_READS + 1000
    ends, between = np.array([1, n - 1]), np.arange(2, n - 1)
    inner = np.count_nonzero(between % 2)
    over = threading.Event()
    with contextlib.closing(Graph(directed=True, weighted=False, in_edges=False)) as graph:
        graph.load(EdgeList(pack(np.zeros(n - 3), between)), n)
        engine = Surroundings("int", graph, n)
        storage = engine.storage

        def change() -> None:
            for op in itertools.cycle((Op.INSERT, Op.DELETE)):
                with storage.gate.apply():
                    graph.apply(EdgeBatch(pack(np.zeros(2), ends), np.full(2, op, np.uint8)), n)
                    storage.position.number += 1
                storage.gate.settle()
                if over.wait(0.001):
                    return

        with (
            serving(engine, tmp_path, LimitsConfig(vertices_max=n)) as link,
            Client(link.addresses[0], timeout=60) as client,
            ThreadPoolExecutor(1) as pool,
        ):
            changing = pool.submit(change)
            try:
                for _ in range(4):
                    number = storage.position.number
                    until(lambda: storage.position.number > number)  # noqa: B023 - asked at once
                    found = client.khop(*engine.ids([0]), limit=n)
                    assert np.isin(engine.ids(ends), found.ids).sum() == len(found.ids) - between.size - 1
                    assert len(found.ids) in (n - 2, n) and not found.truncated
                    edges = client.cross_edges(engine.ids([0]), engine.ids(range(1, n, 2)), limit=100)
                    assert edges.size - inner in (0, np.count_nonzero(ends % 2)) and len(edges.src) == 100
                    ego = client.egonet(*engine.ids([0]), limit=n, edge_limit=n)
                    assert len(ego.src) == ego.size == len(ego.ids) - 1 and ego.size in (n - 3, n - 1)
            finally:
                over.set()
            changing.result()
