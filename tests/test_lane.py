"""Short questions about rows by the lane: what the topology answers, or nothing at all."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import mmap
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import msgpack
import numba as nb
import numpy as np
import pytest
from histories import EdgeSet, mixed_sizes, rmat_history
from test_server import Chain, serving
from test_server_process import kill
from waiting import PATIENCE_S, until

from graphtide.daemon import errors
from graphtide.daemon.client import Client
from graphtide.daemon.client.wire import encode_stamp
from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.engine.asking import ASKED_S, UNASKED_EPOCHS, Asking
from graphtide.daemon.engine.lane import LONG_ROW, Lane, warm_up
from graphtide.daemon.engine.pipeline import Pipeline
from graphtide.daemon.engine.shown import IN_ROWS, IS_SHOWN, OUT_ROWS, Shown
from graphtide.daemon.engine.storage import UNASKED_CHANGES, Storage
from graphtide.daemon.engine.topology import EngineTopology
from graphtide.daemon.records import lane as layout
from graphtide.daemon.records.position import Position
from graphtide.daemon.records.stream import Partition, Source
from graphtide.daemon.serve import lane as server_lane
from graphtide.daemon.serve.asker import Asker
from graphtide.daemon.serve.engine_calls import EngineCalls
from graphtide.daemon.state.requested import RequestedCheckpoints
from graphtide.gpma.edges import NO_VERTEX, EdgeBatch, EdgeList, Op, pack
from graphtide.gpma.gate import IS_SHUT, NOTING, go_on_to, let_beside, rows_are
from graphtide.gpma.host.array import PackedMemoryArray
from graphtide.gpma.rows import words_of
from graphtide.partition import graph, host_side
from graphtide.partition.behind import Behind
from graphtide.partition.existence import VertexOps
from graphtide.partition.graph import Graph, NoMemory

SECONDS = 60.0


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server waits for its lane as long as a busy machine needs."""
    monkeypatch.setattr(server_lane, "PATIENCE_S", PATIENCE_S)


@contextlib.contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Meanwhile it asks otherwise, soon: where nobody could answer."""
    with monkeypatch.context() as patched:
        patched.setattr(server_lane, "PATIENCE_S", 0.01)
        yield


class Engine:
    """A graph, its storage, and lanes to it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.generation = 1
        self.storage = Storage(graph, Position(3))
        self.storage.position.offsets = {Partition("t", 0): 0}
        source, requested = cast(Source, None), cast(RequestedCheckpoints, None)
        self.topology = EngineTopology(self.storage, source, requested, lambda: self.generation)
        self.lanes: list[Lane] = []

    def lane(self) -> Lane:
        lane = self.topology.open_lane()
        assert lane is not None
        self.lanes.append(lane)
        return lane

    def apply(self, batch: EdgeBatch, n: int, ops: VertexOps | None = None) -> None:
        """One epoch, as the pipeline makes it."""
        position = self.storage.position
        with self.storage.gate.change() as begin_writing:
            self.graph.apply(batch, n, ops, before_writing=begin_writing)
            begin_writing()
            position.number += 1
            position.offsets = {Partition("t", 0): position.number}
        self.storage.gate.settle()

    def stamp(self) -> bytes:
        state = self.topology.current_epoch()
        return encode_stamp(state.epoch, state.offsets)

    def ask(self, work: Callable[[server_lane.Lane], Awaitable[Any]]) -> Any:
        """What this gives with a server's end of a new lane."""

        async def asked() -> Any:
            return await work(served(lane))

        lane = self.lane()
        try:
            return asyncio.run(asked())
        finally:
            lane.close()


def served(lane: Lane) -> server_lane.Lane:
    """The server's end."""
    memory, questions, answers = map(os.dup, lane.descriptors)
    return server_lane.Lane(memory, questions, answers, asyncio.get_running_loop())


@contextlib.contextmanager
def engine_of(**how: Any) -> Iterator[Engine]:
    with contextlib.closing(Graph(**how)) as graph:
        engine = Engine(graph)
        yield engine
        for lane in engine.lanes:
            lane.close()
            assert lane.join(PATIENCE_S)


def edges(pairs: Any, op: Op = Op.INSERT) -> EdgeBatch:
    src, dst = np.array(pairs, np.uint32).reshape(-1, 2).T
    return EdgeBatch(pack(src, dst), np.full(src.size, op, np.uint8))


# -- what the topology answers ------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("directed", [True, False])
def test_answers_are_those_of_the_topology_as_the_graph_changes(directed: bool, weighted: bool) -> None:
    rng = np.random.default_rng(7)
    with engine_of(directed=directed, weighted=weighted) as engine:

        async def compare(lane: server_lane.Lane, n: int) -> None:
            topology, stamp = engine.topology, engine.stamp()
            asked = rng.integers(0, n + 5, 40)
            for vertex in (*asked.tolist(), 0, int(NO_VERTEX)):
                direction: Any = ("out", "in")[vertex % 2]
                limit, cursor = int(rng.integers(1, 60)), (None, int(rng.integers(0, n)))[vertex % 3 == 0]
                page = topology.neighbors(vertex, direction, limit, cursor, SECONDS)
                found = await of(lane.neighbors(1, vertex, direction, limit, cursor))
                assert found is not None
                assert (found["known"], found["cursor"]) == (page.known, page.cursor)
                assert found["neighbors"] == page.neighbors.tobytes()
                assert found["weights"] == (None if page.weights is None else page.weights.tobytes())
                assert (found["stamp"], found["index_generation"]) == (stamp, engine.generation)
            vertices = np.append(rng.integers(0, n + 5, 60), NO_VERTEX).astype(np.uint32)
            degrees = topology.degree(vertices, SECONDS)
            found = await of(lane.by_columns(1, "degree", [vertices]))
            assert found is not None and found["stamp"] == stamp
            assert found["known"] == degrees.known.tobytes() and found["out"] == degrees.out.tobytes()
            assert degrees.in_ is not None and found["in"] == degrees.in_.tobytes()
            src, dst = (rng.integers(0, 40, 200).astype(np.uint32) for _ in range(2))
            src[0], dst[1] = NO_VERTEX, NO_VERTEX
            exists = topology.has_edge(src, dst, SECONDS).exists
            found = await of(lane.by_columns(1, "has_edge", [src, dst]))
            assert found is not None and found["exists"] == exists.tobytes() and 0 < exists.sum() < 200

        async def go(lane: server_lane.Lane) -> None:
            n = 50
            for step in range(60):
                n += int(rng.integers(0, 200)) if step % 7 == 0 else 0
                engine.generation += step % 5 == 0
                size = int(rng.integers(1, 5000)) if step % 10 == 0 else int(rng.integers(1, 60))
                narrow = 40 if step % 2 else n
                src, dst = (rng.integers(0, narrow, size).astype(np.uint32) for _ in range(2))
                ops = np.where(rng.random(size) < (0.3, 0.8)[step % 3 == 2], Op.DELETE, Op.INSERT).astype(np.uint8)
                weights = rng.random(size, np.float32) if weighted else None
                gone = None
                if step % 4 == 3:
                    vertices = rng.integers(40, n, 3).astype(np.uint32)
                    kinds = np.full(3, Op.DELETE_VERTEX, np.uint8)
                    gone = VertexOps(vertices, kinds, np.full(3, size, np.int64))
                engine.apply(EdgeBatch(pack(src, dst), ops, weights), n, gone)
                await compare(lane, n)

        engine.ask(go)


async def of(asked: asyncio.Future[Any] | None) -> Any:
    assert asked is not None, "there was a place"
    return await asyncio.wait_for(asked, SECONDS)


async def beside(pool: ThreadPoolExecutor, change: Callable[[int], None], steps: range) -> AsyncIterator[int]:
    """Turns (0, 1, ..), until another thread has taken all steps: 20 or more, and the steps are spread over 20."""
    begun = threading.Semaphore(0)

    def take_all() -> None:
        for at, step in enumerate(steps):
            if at % (len(steps) // 20 + 1) == 0:
                begun.acquire()
            change(step)

    changing = pool.submit(take_all)
    try:
        for turn in itertools.count():
            begun.release()
            yield turn
            if changing.done():
                break
    finally:
        begun.release(len(steps))  # also where a turn has failed
    changing.result()


def test_each_answer_is_of_the_epoch_that_it_names() -> None:
    """Vertex 0 has as many edges out, and in, as the epoch's number says; asked while batches are written."""
    n = 3000
    with engine_of(directed=True, weighted=False) as engine, ThreadPoolExecutor(1) as pool:

        def change(k: int) -> None:
            engine.apply(edges([(0, k), (n - k, 0), *((k, j) for j in range(1, 200))]), n)

        async def go(lane: server_lane.Lane) -> None:
            both = np.zeros(1, np.uint32)
            async for _ in beside(pool, change, range(1, 500)):
                page, degrees = await asyncio.gather(
                    of(lane.neighbors(1, 0, "out", 1000, None)), of(lane.by_columns(2, "degree", [both]))
                )
                number = numbered(page["stamp"])
                if page["known"]:
                    assert np.frombuffer(page["neighbors"], np.uint32).tolist() == [*range(1, number + 1)]
                number = numbered(degrees["stamp"])
                out, in_ = (int(np.frombuffer(degrees[name], np.int64)[0]) for name in ("out", "in"))
                assert (out, in_) == (number, number)

        engine.ask(go)


@pytest.mark.sample(1)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("directed", [True, False])
def test_answers_of_many_sizes_of_batches_are_those_of_a_model_at_their_epochs(
    directed: bool, weighted: bool, seed: int
) -> None:
    """Vertices go and come back, arrays grow, and some batches find no memory at first; asked meanwhile."""
    rng = np.random.default_rng(seed)
    sizes = mixed_sizes(seed, 60, 4_000)
    epochs = rmat_history(seed, directed=directed, degree=1, updates=sizes, vertex_share=4e-3).epochs
    model, n, threads = EdgeSet(directed=directed), epochs[-1].n_vertices, int(rng.integers(1, 6))
    at_epoch: dict[int, tuple[np.ndarray, np.ndarray, set[int]]] = {}

    with (
        engine_of(directed=directed, weighted=weighted, threads=threads) as engine,
        ThreadPoolExecutor(1) as pool,
    ):

        def change(k: int) -> None:
            model.apply(epochs[k])
            arcs = {(u, v): weight for u, v, weight in model.arcs()}
            links = np.array(sorted(arcs), np.uint32).reshape(-1, 2)
            weights = np.array([arcs[u, v] for u, v in links.tolist()], np.float32)
            at_epoch[k + 1] = links, weights, set(model.dead)
            batch, ops = epochs[k].batch(weighted=weighted), epochs[k].vertex_ops()
            if k % 4 == 3:
                with (
                    mock.patch.object(engine.graph.memory, "require", side_effect=MemoryError),
                    contextlib.suppress(NoMemory),
                ):
                    engine.apply(batch, n, ops)
                    return
            engine.apply(batch, n, ops)

        async def go(lane: server_lane.Lane) -> None:
            asking = np.random.default_rng(seed + 1)
            change(0)
            async for turn in beside(pool, change, range(1, len(epochs))):
                vertex, first = asking.integers(0, n, 2).tolist()
                direction: Any = ("out", "in")[turn % 2]
                vertices, src, dst = asking.integers(0, n, (3, 50)).astype(np.uint32)
                page, degrees, exists = await asyncio.gather(
                    of(lane.neighbors(1, vertex, direction, 40, first)),
                    of(lane.by_columns(2, "degree", [vertices])),
                    of(lane.by_columns(3, "has_edge", [src, dst])),
                )
                (out, in_), weights, dead = ends_of(at_epoch[numbered(page["stamp"])])
                assert page["known"] == (vertex not in dead)
                near, there = (out, in_) if direction == "out" else (in_, out)
                row = np.flatnonzero((near == vertex) & (there >= first))
                row = row[np.argsort(there[row])][:40]
                if page["known"]:
                    assert page["neighbors"] == there[row].tobytes()
                    assert page["weights"] == (weights[row].tobytes() if weighted else None)
                (out, in_), _, dead = ends_of(at_epoch[numbered(degrees["stamp"])])
                living = ~np.isin(vertices, list(dead))
                assert degrees["known"] == living.tobytes()
                for name, ends in (("out", out), ("in", in_)):
                    counted = np.bincount(ends, minlength=n)[vertices]
                    assert np.array_equal(np.frombuffer(degrees[name], np.int64)[living], counted[living])
                (out, in_), _, _ = ends_of(at_epoch[numbered(exists["stamp"])])
                assert exists["exists"] == np.isin(pack(src, dst), pack(out, in_)).tobytes()

        engine.ask(go)
        assert engine.graph.check() == []


def ends_of(state: tuple[np.ndarray, np.ndarray, set[int]]) -> tuple[Any, np.ndarray, set[int]]:
    """The columns of tails and heads, weights, and the dead."""
    links, weights, dead = state
    return np.ascontiguousarray(links.T), weights, dead


@pytest.mark.parametrize("n_updates", [200, 5000, 40_000])
def test_no_answer_is_of_a_batch_that_is_half_written(n_updates: int) -> None:
    """Batches of each way to be written give every vertex, in turn, as many edges as the epoch's number says or
    none; what is asked meanwhile, some of it over many leaves, has all or nothing of them."""
    hubs, width = 10, n_updates // 10
    n = 2 * width + hubs
    with engine_of(directed=True, weighted=False) as engine, ThreadPoolExecutor(1) as pool:
        keys = pack(np.repeat(np.arange(hubs, dtype=np.uint32), width), np.tile(np.r_[:width], hubs) * 2 + hubs)
        shuffled = np.random.default_rng(3).permutation(keys)

        def change(k: int) -> None:
            op = Op.INSERT if k % 2 else Op.DELETE
            engine.apply(EdgeBatch(shuffled, np.full(keys.size, op, np.uint8)), n)

        async def go(lane: server_lane.Lane) -> None:
            asked = np.arange(hubs, dtype=np.uint32)
            ends = np.repeat(asked, 40), np.tile(np.r_[:20, width - 20 : width] * 2 + hubs, hubs).astype(np.uint32)
            async for answered in beside(pool, change, range(1, 60)):
                page, degrees, exists = await asyncio.gather(
                    of(lane.neighbors(1, answered % hubs, "out", 1000, None)),
                    of(lane.by_columns(2, "degree", [asked])),
                    of(lane.by_columns(3, "has_edge", ends)),
                )
                is_there = [numbered(one["stamp"]) % 2 == 1 for one in (page, degrees, exists)]
                if page["known"]:
                    assert len(page["neighbors"]) == 4 * min(width, 1000) * is_there[0]
                    assert set(np.frombuffer(degrees["out"], np.int64).tolist()) == {width * is_there[1]}
                assert set(exists["exists"]) == {int(is_there[2])}

        engine.ask(go)


async def ask_for_one(lane: server_lane.Lane) -> Any:
    """So that rows are asked about."""
    return await of(lane.neighbors(1, 1, "out", 10, None))


def test_questions_are_answered_while_a_batch_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes by one call, which begins behind Python's readers, and shuts the lane's gate by itself."""
    called, n = host_side.apply_shared, 60_000
    with engine_of(directed=True, weighted=False) as engine:
        engine.apply(edges([(0, j) for j in range(1, n)]), n)
        engine.ask(ask_for_one)
        gate, seen, is_done = engine.storage.gate.shown.gate, list[Any](), True

        def shared(*arguments: Any) -> Any:
            assert not gate[IS_SHUT]
            seen.append(engine.ask(ask_for_one))
            done = called(*arguments) if is_done else (False, (), None, None)
            assert gate[IS_SHUT] == is_done
            return done

        monkeypatch.setattr(host_side, "apply_shared", shared)
        engine.apply(edges([(1, j) for j in range(2000)]), n)
        is_done = False  # it goes the ordinary way after all
        engine.apply(edges([(1, j) for j in range(2000)], Op.DELETE), n)
        assert [len(one["neighbors"]) for one in seen] == [0, 40] and not gate[IS_SHUT]
        page = engine.ask(ask_for_one)
        assert page["known"] and page["neighbors"] == b""


def test_where_nobody_asks_about_rows_nothing_is_looked_up_for_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate is shut from the beginning until somebody has asked, and again some changes later."""
    called, n, gates = host_side.apply_shared, 60_000, list[int]()
    with engine_of(directed=True, weighted=False) as engine:
        engine.apply(edges([(0, j) for j in range(1, n)]), n)

        def shared(*arguments: Any) -> Any:
            gates.append(arguments[-1].size)
            return called(*arguments)

        monkeypatch.setattr(host_side, "apply_shared", shared)
        batch = edges([(1, j) for j in range(2000)])
        engine.apply(batch, n)
        engine.ask(ask_for_one)
        for _ in range(UNASKED_CHANGES + 1):
            engine.apply(batch, n)
        assert [size > 0 for size in gates] == [False, *[True] * UNASKED_CHANGES, False]
        assert len(engine.ask(ask_for_one)["neighbors"]) == 40


def test_rows_are_read_beside_a_batch_as_they_were_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch before is named; rows of many updates are asked for until the batch is done."""
    called, n = host_side.apply_shared, 60_000
    with engine_of(directed=True, weighted=True) as engine:
        weights = np.arange(n - 1, dtype=np.float32)
        engine.apply(replace(edges([(j // 100, j) for j in range(1, n)]), weights=weights), n)
        engine.ask(ask_for_one)
        stamp, gate, seen = engine.stamp(), engine.storage.gate.shown.gate, list[Any]()

        some, ends = np.array([7, 400], np.uint32), (np.array([7, 7], np.uint32), np.array([701, 1], np.uint32))

        async def ask_for_same(lane: server_lane.Lane) -> list[Any]:
            return await asyncio.gather(
                of(lane.neighbors(1, 7, "out", 10, None)),
                of(lane.neighbors(1, 7, "out", 10, 750)),
                of(lane.neighbors(1, 800, "in", 10, None)),
                of(lane.by_columns(1, "degree", [some])),
                of(lane.by_columns(1, "has_edge", ends)),
                of(lane.neighbors(1, n, "out", 10, None)),
                of(lane.neighbors(1, 30_001, "in", 10, None)),
                of(lane.by_columns(1, "degree", [np.array([30_001], np.uint32)])),
            )

        async def ask_for_others(lane: server_lane.Lane) -> list[Any]:
            return await asyncio.gather(
                of(lane.neighbors(1, 5, "out", 10, None)),
                of(lane.by_columns(1, "degree", [np.array([7, 5], np.uint32)])),
                of(lane.by_columns(1, "has_edge", [ends[0][:1] - 2, ends[1][:1]])),
            )

        def shared(*arguments: Any) -> Any:
            done = called(*arguments)
            assert gate[IS_SHUT]
            seen.append(engine.ask(ask_for_same))
            with impatient(monkeypatch):
                seen.append(engine.ask(ask_for_others))
            return done

        monkeypatch.setattr(host_side, "apply_shared", shared)
        engine.apply(replace(edges([(5, j) for j in range(30_000, 32_000)]), weights=weights[:2000]), n + 5)
        same, changed = seen
        assert changed == [None] * 3
        assert all(one["stamp"] == stamp for one in same)
        assert np.frombuffer(same[0]["neighbors"], np.uint32).tolist() == [*range(700, 710)]
        assert np.frombuffer(same[0]["weights"], np.float32).tolist() == [*range(699, 709)]
        assert np.frombuffer(same[1]["neighbors"], np.uint32).tolist() == [*range(750, 760)]
        assert np.frombuffer(same[2]["neighbors"], np.uint32).tolist() == [8]
        assert np.frombuffer(same[3]["out"], np.int64).tolist() == [100, 100]
        assert np.frombuffer(same[3]["in"], np.int64).tolist() == [1, 1]
        assert same[4]["exists"] == b"\1\0" and not same[5]["known"]
        assert np.frombuffer(same[6]["neighbors"], np.uint32).tolist() == [300]
        assert np.frombuffer(same[6]["weights"], np.float32).tolist() == [30_000]
        assert np.frombuffer(same[7]["in"], np.int64).tolist() == [1]
        page = engine.ask(lambda lane: of(lane.neighbors(1, 5, "out", 10, 30_000)))
        assert page["stamp"] == engine.stamp() != stamp and len(page["neighbors"]) == 40
        assert engine.ask(lambda lane: of(lane.neighbors(1, n, "out", 10, None)))["known"]
        assert engine.graph.check() == []


def test_leaves_that_are_being_written_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where leaves move; a row beside them is, and so is all that needs no leaf."""
    with engine_of(directed=True, weighted=False) as engine:
        engine.graph.load(EdgeList(pack(np.repeat(np.arange(100), 50), np.tile(np.r_[:50], 100))), 100)
        engine.apply(edges([(99, 60)]), 100)
        rows = engine.graph.rows_in_place()
        assert rows is not None and rows[1] is not None
        (out, in_), shown = cast(Any, rows), engine.storage.gate.shown
        leaf = int(out.row_leaf[50])
        out_keys, in_keys, other_keys = (edges([pair]).keys for pair in ((99, 61), (61, 99), (8, 99)))

        ends = np.array([50], np.uint32), np.array([7], np.uint32)
        questions: list[Callable[[server_lane.Lane], Awaitable[Any]]] = [
            *(lambda lane, u=u: of(lane.neighbors(1, u, "out", 50, None)) for u in (20, 50, 80, 99)),
            lambda lane: of(lane.neighbors(1, 50, "out", 5, 40)),
            lambda lane: of(lane.by_columns(1, "has_edge", ends)),
            lambda lane: of(lane.neighbors(1, 8, "in", 50, None)),
            lambda lane: of(lane.by_columns(1, "degree", ends[:1])),
        ]

        def see(*expected: int) -> None:
            for question, answered in zip(questions, expected, strict=True):
                if answered:
                    assert engine.ask(question) is not None
                else:
                    with impatient(monkeypatch):
                        assert engine.ask(question) is None

        with engine.storage.gate.apply():
            see(0, 0, 0, 0, 0, 0, 0, 0)
            write_beside(shown.gate, 0, out_keys, out.row_leaf, 2, 0, 0)
            see(1, 1, 1, 0, 1, 1, 0, 0)
            write_beside(shown.gate, 1, in_keys, in_.row_leaf, 1, 0, 0)
            see(1, 1, 1, 0, 1, 1, 1, 1)
            write_beside(shown.gate, 0, out_keys, out.row_leaf, 2, leaf, leaf + 1)
            see(1, 0, 1, 0, 0, 0, 1, 1)
            write_beside(shown.gate, 0, out_keys, out.row_leaf, 2, leaf + 1, leaf + 2)
            see(1, 0, 1, 0, 0, 0, 1, 1)
            write_beside(shown.gate, 0, out_keys, out.row_leaf, 2, leaf + 4, leaf + 5)
            see(1, 1, 1, 0, 1, 1, 1, 1)
            write_beside(shown.gate, 1, other_keys, in_.row_leaf, 1, 0, 0)
            see(1, 1, 1, 0, 1, 1, 0, 1)
            write_beside(shown.gate, 0, out_keys, in_.row_leaf, 2, 0, 0)
            see(0, 0, 0, 0, 0, 0, 0, 0)  # the index of rows is another one
            shown.end_beside()
            see(0, 0, 0, 0, 0, 0, 0, 0)


@nb.njit(cache=False)
def write_beside(gate, side, keys, row_leaf, n_parts, begin, end):  # type: ignore[no-untyped-def]
    """As a commit does that is at leaves ``begin`` to ``end`` in its last part; rows with updates wait."""
    none = np.zeros(keys.size, np.uint8), np.zeros(0, np.float32)
    let_beside(gate, side, keys, *none, keys.size, row_leaf, n_parts)
    rows_are(gate, side, np.int64(NOTING))
    go_on_to(gate, side, n_parts - 1, begin, end, 0, 0)


@pytest.mark.parametrize("directed", [True, False])
def test_large_batches_are_read_beside_as_well(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once all of a batch is written, and before anybody is let in again, all rows are still as they were."""
    kernel = "commit_both" if directed else "commit"
    called, n, size = getattr(host_side, kernel), 4000, 40_000
    rng = np.random.default_rng(11)
    with engine_of(directed=directed, weighted=True, threads=4) as engine:
        src, dst = rng.integers(0, n, (2, 5 * size)).astype(np.uint32)
        engine.apply(EdgeBatch(pack(src, dst), np.ones(src.size, np.uint8), rng.random(src.size, np.float32)), n)
        gate, questions, seen = engine.storage.gate.shown.gate, rng.permutation(n)[:40].astype(np.uint32), []

        async def ask(lane: server_lane.Lane) -> list[Any]:
            pages = [lane.neighbors(int(u), int(u), "out", 200, None) for u in questions[:20]]
            pages += [lane.neighbors(int(u), int(u), "in", 5, int(u)) for u in questions[20:]]
            columns = lane.by_columns(3, "degree", [questions])
            exist = lane.by_columns(3, "has_edge", [questions, questions[::-1].copy()])
            return await asyncio.gather(*map(of, [*pages, columns, exist]))

        def committed(*arguments: Any) -> Any:
            written = called(*arguments)
            assert gate[IS_SHUT]
            seen.append(engine.ask(ask))
            return written

        monkeypatch.setattr(host_side, kernel, committed)
        for _ in range(3):
            before = engine.ask(ask)
            others = pack(*rng.integers(0, n, (2, size // 2)).astype(np.uint32))
            keys = np.concatenate([others, rng.choice(engine.graph.export().keys, size // 2)])
            inserts = (rng.random(size) < 0.5).astype(np.uint8)
            engine.apply(EdgeBatch(keys, inserts, rng.random(size, np.float32)), n)
            assert seen.pop() == before and not seen
            assert engine.ask(ask) != before
        assert engine.graph.check() == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("one_call_max", [1 << 15, 2000])
def test_whatever_a_batch_moves_answers_are_of_one_epoch(
    directed: bool, one_call_max: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that are written in pieces, of random updates, more and more edges, fewer and fewer, one row alone,
    and deleted vertices that come back; asked meanwhile, answers are those of a model at their epochs."""
    monkeypatch.setattr(graph, "ONE_CALL_UPDATES_MAX", one_call_max)
    rng = np.random.default_rng(seed)
    n, n_epochs, threads = 3000, 60, int(rng.integers(1, 6))
    batches, states = [EdgeBatch(np.empty(0, np.uint64), np.empty(0, np.uint8))], [np.empty(0, np.uint64)]
    gone: list[VertexOps | None] = [None]
    dead: list[set[int]] = [set()]
    for epoch in range(1, n_epochs):
        size, kind = int(rng.integers(1100, 9000)), int(rng.integers(0, 5))
        src, dst = rng.integers(0, n, (2, size)).astype(np.uint32)
        if kind == 3:
            src[:] = rng.integers(0, n)
        if kind == 4 and states[-1].size:  # mostly edges that there are
            chosen = rng.choice(states[-1], size)
            src, dst = (
                (chosen >> np.uint64(32)).astype(np.uint32),
                (chosen & np.uint64(0xFFFFFFFF)).astype(np.uint32),
            )
        ops = (rng.random(size) >= (0.3, 0.0, 0.5, 0.1, 0.9)[kind]).astype(np.uint8)
        batch = EdgeBatch(pack(src, dst), ops)
        deleted = np.empty(0, np.uint32)
        if epoch % 7 == 3:
            deleted = rng.choice(n, 3, replace=False).astype(np.uint32)
        batches.append(batch)
        gone.append(
            VertexOps(deleted, np.full(3, Op.DELETE_VERTEX, np.uint8), np.full(3, size, np.int64))
            if deleted.size
            else None
        )
        revived = {*src[ops == 1].tolist(), *dst[ops == 1].tolist()}
        dead.append((dead[-1] - revived) | set(deleted.tolist()))
        keys, kinds = batch.keys, ops
        if not directed:
            keys, kinds = np.stack([keys, pack(dst, src)]).T.ravel(), np.repeat(ops, 2)
        last = keys.size - 1 - np.unique(keys[::-1], return_index=True)[1]
        there = np.union1d(np.setdiff1d(states[-1], keys[last]), keys[last][kinds[last] == 1])
        ends = there >> np.uint64(32), there & np.uint64(0xFFFFFFFF)
        states.append(there[~(np.isin(ends[0], deleted) | np.isin(ends[1], deleted))])

    with engine_of(directed=directed, weighted=False, threads=threads) as engine, ThreadPoolExecutor(1) as pool:

        def change(epoch: int) -> None:
            engine.apply(batches[epoch], n, gone[epoch])

        async def go(lane: server_lane.Lane) -> None:
            asking = np.random.default_rng(seed + 1)
            async for _ in beside(pool, change, range(1, n_epochs)):
                vertices, firsts = asking.integers(0, n, 8).tolist(), asking.integers(0, n, 4).tolist()
                few, src, dst = asking.integers(0, n, (3, 3)).astype(np.uint32)
                pages = [
                    of(lane.neighbors(1, u, "out", 40, first))
                    for u, first in zip(vertices, [*firsts, *[None] * 4], strict=True)
                ]
                pages += [of(lane.neighbors(2, u, "in", 40, None)) for u in vertices[:4]]
                columns = [of(lane.by_columns(3, "degree", [few])), of(lane.by_columns(3, "has_edge", [src, dst]))]
                *found, degrees, exists = await asyncio.gather(*pages, *columns)
                for at, page in enumerate(found):
                    epoch, u = numbered(page["stamp"]), vertices[at] if at < 8 else vertices[at - 8]
                    first, now = firsts[at] if at < 4 else 0, states[epoch]
                    if epoch == 0:
                        continue
                    assert page["known"] == (u not in dead[epoch])
                    if at < 8:
                        begin, end = np.searchsorted(now, [(u << 32) + first, (u + 1) << 32])
                        row = (now[begin:end] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
                    else:
                        row = (now[(now & np.uint64(0xFFFFFFFF)) == u] >> np.uint64(32)).astype(np.uint32)
                    if page["known"]:
                        assert page["neighbors"] == row[:40].tobytes()
                        assert page["cursor"] == (int(row[40]) if row.size > 40 else None)
                epoch = numbered(degrees["stamp"])
                if epoch:
                    now, known = states[epoch], ~np.isin(few, list(dead[epoch]))
                    assert degrees["known"] == known.tobytes()
                    for name, ends in (("out", now >> np.uint64(32)), ("in", now & np.uint64(0xFFFFFFFF))):
                        wanted = [int(np.count_nonzero(ends == u)) for u in few[known]]
                        assert np.frombuffer(degrees[name], np.int64)[known].tolist() == wanted
                assert exists["exists"] == np.isin(pack(src, dst), states[numbered(exists["stamp"])]).tobytes()

        engine.ask(go)
        assert np.array_equal(engine.graph.export().keys, states[-1])
        assert engine.graph.check() == []


def numbered(stamp: bytes) -> int:
    """The number of the epoch in a stamp."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(stamp)
    assert unpacker.unpack() == "epoch"
    incarnation, number = unpacker.unpack()
    assert incarnation == 3
    return int(number)


# -- what is asked otherwise --------------------------------------------------------------------------------


def test_rows_of_either_direction_are_shown_anew_by_themselves() -> None:
    """In-rows may grow where out-rows need not, and the other way round."""
    arrays = [PackedMemoryArray(weighted=False) for _ in range(4)]
    for array in arrays:
        array.ensure_vertices(3)
    one, other, third, fourth = (array.view() for array in arrays)
    shown = Shown()
    for out, in_ in ((one, other), (one, third), (fourth, third), (fourth, None)):
        shown.show((out, in_), np.ones(3, bool), b"", 0)
        for at, rows in ((OUT_ROWS, out), (IN_ROWS, in_)):
            assert bool(shown.words[at]) == (rows is not None)
            if rows is not None:
                wanted = words_of(rows)
                np.testing.assert_array_equal(shown.words[at + 1 : at + 1 + wanted.size], wanted)


def test_what_the_lane_does_not_answer() -> None:
    many = layout.NEIGHBORS_MAX + 10
    hub = LONG_ROW + 10
    with engine_of(directed=True, weighted=False, in_edges=False) as engine:
        engine.graph.load(EdgeList(pack(np.repeat([0, 1], [many, hub]), np.r_[:many, :hub])), hub)
        engine.apply(edges([(2, 3)]), hub)

        async def go(lane: server_lane.Lane) -> None:
            assert (await of(lane.neighbors(1, 0, "out", layout.NEIGHBORS_MAX - 1, None))) is not None
            assert (await of(lane.neighbors(1, 0, "out", layout.NEIGHBORS_MAX, None))) is None, "too long"
            assert (await of(lane.neighbors(1, 2, "out", 10**18, None)))["cursor"] is None, (
                "short, whatever the limit"
            )
            assert (await of(lane.neighbors(1, 1, "out", 10, None)))["cursor"] == 10
            assert (await of(lane.neighbors(1, 1, "out", 10, 5))) is None, "far along a long row"
            assert (await of(lane.neighbors(1, 0, "in", 10, None))) is None, "no in-rows are kept"
            degrees = await of(lane.by_columns(1, "degree", [np.arange(3, dtype=np.uint32)]))
            assert degrees["in"] is None and np.frombuffer(degrees["out"], np.int64).tolist() == [many, hub, 1]
            long = np.zeros(layout.VERTICES_MAX + 1, np.uint32)
            assert lane.by_columns(1, "degree", [long]) is None
            assert lane.by_columns(1, "has_edge", [long, long]) is None
            assert (await of(lane.by_columns(1, "degree", [long[1:]])))["known"] == b"\1" * layout.VERTICES_MAX
            engine.storage.position.offsets = {Partition(f"file-{k}", 0): k for k in range(5000)}
            with engine.storage.gate.apply():
                pass
            assert (await of(lane.neighbors(1, 2, "out", 10, None))) is None, "the stamp is too long"

        engine.ask(go)


def test_rows_that_the_host_has_not_are_asked_for_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(directed=True, weighted=False, host_rows="owned") as engine:
        engine.apply(edges([(0, 1)]), 2)
        assert engine.ask(lambda lane: of(lane.neighbors(1, 0, "out", 10, None))) is None
    with engine_of(directed=True, weighted=False) as engine:
        engine.apply(edges([(0, 1)]), 2)
        assert engine.ask(lambda lane: of(lane.neighbors(1, 0, "out", 10, None))) is not None
        monkeypatch.setattr(server_lane, "HIDDEN_LEAST_S", 3600.0)

        async def go(lane: server_lane.Lane) -> None:
            with monkeypatch.context() as patched:
                patched.setattr(type(engine.graph), "rows_in_place", lambda self: None)
                engine.apply(edges([(0, 2)]), 3)
                with engine.storage.gate.within():  # and nobody waits to hear it
                    assert (await of(lane.neighbors(1, 0, "out", 10, None))) is None
                assert lane.neighbors(1, 0, "out", 10, None) is None, "nobody asks for a while"
            engine.apply(edges([(0, 2)]), 3)
            assert lane.neighbors(1, 0, "out", 10, None) is None
            lane._hidden_until -= server_lane.HIDDEN_LEAST_S  # which is over
            assert (await of(lane.neighbors(1, 0, "out", 10, None)))["known"]

        engine.ask(go)


def test_where_nothing_is_shown_nobody_asks_for_ever_longer_until_something_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_lane, "HIDDEN_MOST_S", 3 * server_lane.HIDDEN_LEAST_S)
    with engine_of(directed=True, weighted=False) as engine:
        engine.apply(edges([(0, 1)]), 2)

        async def go(lane: server_lane.Lane) -> None:
            now = 0.0
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
            silences = []
            # A page of none must be asked for otherwise, which says nothing of what else is shown.
            for is_shown, limit in ((0, 10), (0, 10), (1, 0), (0, 10), (1, 10), (0, 10)):
                engine.storage.gate.shown.words[IS_SHOWN] = is_shown
                asked = [lane.neighbors(1, 0, "out", limit, None) for _ in range(2)]
                answers = [await of(one) for one in asked]
                assert [answer is not None for answer in answers] == 2 * [is_shown * limit > 0]
                silences.append(max(lane._hidden_until - now, 0.0) / server_lane.HIDDEN_LEAST_S)
                now = max(lane._hidden_until, now)
            assert silences == pytest.approx([1, 2, 0, 3, 0, 1])

        engine.ask(go)


def test_beside_a_device_the_host_takes_batches_at_once_while_questions_come(
    emulated_cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the lane has rows to show, and nobody waits for the host to catch up."""
    monkeypatch.setattr(Behind, "begin", lambda _: True)  # it catches up only when its rows are needed
    with engine_of(directed=True, weighted=False, device=True) as engine:
        gate, graph, numbers = engine.storage.gate, engine.graph, iter(range(1, 100))
        clock = SimpleNamespace(s=0.0)
        pipeline: Any = SimpleNamespace(
            gate=gate, graph=graph, engine=SimpleNamespace(reads_host=False), window=None, host_follows=True,
            full_audit=False, _followed=[], _asking=Asking(lambda: gate.questions, lambda: clock.s),
        )  # fmt: skip

        def epoch() -> int:
            Pipeline._let_follow(pipeline)
            engine.apply(edges([(0, next(numbers))]), 100)
            return graph.lag.updates

        def asked() -> Any:
            return engine.ask(lambda lane: of(lane.neighbors(1, 0, "out", 10, None)))

        assert [epoch(), epoch()] == [1, 2] and graph.rows_in_place() is None
        Pipeline._show_rows(pipeline)
        assert asked() is None
        assert engine.topology.neighbors(0, "out", 10, None, SECONDS).neighbors.tolist() == [1, 2]
        assert asked() is None, "it has caught up, and nobody has shown that"
        Pipeline._show_rows(pipeline)
        assert asked()["neighbors"] == np.array([1, 2], np.uint32).tobytes()
        assert asked()["stamp"] == engine.stamp()
        assert [epoch(), epoch()] == [0, 0]
        assert len(engine.ask(lambda lane: of(lane.neighbors(1, 0, "out", 10, None)))["neighbors"]) == 4 * 4
        assert [epoch() for _ in range(UNASKED_EPOCHS + 2)] == [0] * (UNASKED_EPOCHS + 2)
        clock.s = ASKED_S
        assert [epoch(), epoch()] == [1, 2]


def test_epochs_are_many_or_few_while_somebody_asks() -> None:
    """Whoever asks now and then does so between many epochs of a fast stream, and few of a slow one."""
    clock = SimpleNamespace(s=0.0, questions=0)
    asking = Asking(lambda: clock.questions, lambda: clock.s)
    assert not asking.turn()
    clock.questions = 1
    assert all(asking.turn() for _ in range(10 * UNASKED_EPOCHS))
    clock.s = ASKED_S
    assert not asking.turn()
    clock.questions = 2
    for _ in range(UNASKED_EPOCHS):
        assert asking.turn()
        clock.s += ASKED_S
    assert not asking.turn()


def test_what_cannot_be_shown_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(directed=True, weighted=False) as engine:
        engine.apply(edges([(0, 1)]), 2)

        def fails() -> None:
            raise MemoryError("full")

        with monkeypatch.context() as patched:
            patched.setattr(engine.storage.gate, "show", fails)
            with pytest.raises(MemoryError):
                engine.apply(edges([(0, 2)]), 3)
        page = engine.topology.neighbors(0, "out", 10, None, 1.0)
        assert page.neighbors.tolist() == [1, 2], "nobody is kept out"
        assert engine.ask(lambda lane: of(lane.neighbors(1, 0, "out", 10, None))) is None
        engine.apply(edges([(0, 3)]), 4)
        assert engine.ask(lambda lane: of(lane.neighbors(1, 0, "out", 10, None)))["known"]


def test_places_are_few_and_each_connection_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is answered while the storage is shut; whoever waits too long hears so, and its place comes back."""
    with engine_of(directed=True, weighted=False) as engine:
        engine.apply(edges([(0, 1)]), 2)

        async def go(lane: server_lane.Lane) -> None:
            each = server_lane.PLACES_EACH
            askers = range(layout.PLACES // each)
            with engine.storage.gate.within(), impatient(monkeypatch):
                asked = [lane.neighbors(asker, 0, "out", 10, None) for asker in askers for _ in range(each)]
                assert all(one is not None for one in asked) and lane.used == layout.PLACES
                assert lane.neighbors("another", 0, "out", 10, None) is None
                asked[3].cancel()  # type: ignore[union-attr]
                assert {await of(one) for one in asked if one is not asked[3]} == {None}
                assert lane.used == layout.PLACES, "they may be answered yet"
            while lane.used:
                await asyncio.sleep(0.001)
            few = [lane.neighbors("one", 0, "out", 10, None) for _ in range(each)]
            assert lane.neighbors("one", 0, "out", 10, None) is None, "it has its share"
            assert (await of(lane.neighbors("other", 0, "out", 10, None)))["known"]
            assert all([(await of(one))["known"] for one in few])
            assert not lane.used and not lane._had

        engine.ask(go)


def test_whoever_asks_hears_of_an_answer_before_tasks_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(directed=True, weighted=False) as engine:
        engine.apply(edges([(0, 1)]), 2)

        def asked(lane: server_lane.Lane, told: list[Any]) -> server_lane.Question:
            question = lane.neighbors(1, 0, "out", 10, None)
            assert question is not None
            question.then = told.append
            return question

        async def answered(lane: server_lane.Lane) -> None:
            told: list[Any] = []
            question = asked(lane, told)
            told.append(await of(question))
            assert told[0] is told[1] and told[0]["known"] and question.then is None

        async def out_of_patience(lane: server_lane.Lane) -> None:
            told: list[Any] = []
            with engine.storage.gate.within(), impatient(monkeypatch):
                asked(lane, told).cancel()
                await of(asked(lane, told))
                assert told == [None], "nobody waits for the first one"
            while lane.used:
                await asyncio.sleep(0.001)
            assert told == [None]

        engine.ask(answered)
        engine.ask(out_of_patience)


def test_what_the_lane_leaves_is_asked_over_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is not there yet, no lane came, or the storage is shut for long."""
    known, asker = 1, Asker(cast(Any, object()))

    def catch_up(generation: int) -> None:
        if generation > known:
            raise errors.Unavailable("the vertex index is being replaced")

    with engine_of(directed=True, weighted=False) as engine:
        engine.apply(edges([(0, 1)]), 2)
        lane = engine.lane()

        async def go() -> None:
            calls = EngineCalls(8, catch_up)
            over_socket: list[str] = []

            async def call(asker: Any, method: str, *_: Any, **__: Any) -> Any:
                over_socket.append(method)
                return {"epoch": [0, 0]}

            monkeypatch.setattr(calls, "call", call)

            async def ask() -> int:
                over_socket.clear()
                ends = np.zeros(1, np.uint32)
                deadline = time.monotonic() + SECONDS
                page = {"vertex": 0, "direction": "out", "limit": 1, "cursor": None}
                await calls.neighbors(asker, **page, deadline=deadline)[1]()
                await calls.call_by_slices(asker, "degree", {"vertices": ends}, deadline)
                await calls.call_by_slices(asker, "has_edge", {"src": ends, "dst": ends}, deadline)
                assert over_socket in ([], ["neighbors", "degree", "has_edge"])
                return len(over_socket)

            assert await ask() == 3, "no lane came"
            calls.take_lane([os.open("/dev/null", os.O_RDWR) for _ in range(3)])
            assert calls.lane is None and await ask() == 3, "what came is none"
            calls.take_lane([os.dup(descriptor) for descriptor in lane.descriptors])
            assert await ask() == 0
            engine.generation = 2
            engine.apply(edges([(0, 2)]), 3)
            assert await ask() == 3, "the index that it needs is not there"
            nonlocal known
            known = 2
            assert await ask() == 0
            assert calls.lane is not None and calls.lane._looking is not None
            calls.lane._looking.cancel()  # it would look when those who asked before were out of patience
            calls.lane._looking = None
            with engine.storage.gate.within(), impatient(monkeypatch):
                assert await ask() == 3, "the storage is shut"

        asyncio.run(go())


# -- a server that means harm -------------------------------------------------------------------------------


def test_rubbish_in_the_lane_harms_nobody() -> None:
    rng = np.random.default_rng(11)
    n = 5000
    with engine_of(directed=True, weighted=True) as engine:
        src, dst = (rng.integers(0, n, 30_000) for _ in range(2))
        engine.apply(EdgeBatch.of(src, dst, weights=np.ones(src.size, np.float32)), n)
        lane = engine.lane()
        memory, questions, answers = lane.descriptors
        with pytest.raises(PermissionError):
            os.ftruncate(memory, 4096)
        with pytest.raises(PermissionError):
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        words = np.frombuffer(mmap.mmap(memory, 8 * layout.WORDS), np.int64)
        states, places = words[: layout.PLACES], words[layout.PLACES :].reshape(layout.PLACES, -1)
        extremes = np.array([0, 1, 2, -1, 511, 512, 513, n - 1, n, 2**31, 2**32 - 1, 2**32, 2**62, -(2**63)])
        begun = time.monotonic()
        for _ in range(2000):
            places[:, : layout.STAMP] = rng.choice(extremes, (layout.PLACES, layout.STAMP))
            columns = places[:, layout.COLUMNS : layout.FOUND]
            columns[:] = rng.integers(-(2**63), 2**63 - 1, columns.shape)
            states[:] = rng.choice([layout.ASKED, layout.ASKED, layout.ANSWERED, 77, -1], layout.PLACES)
            os.eventfd_write(questions, int(rng.integers(1, 2**60)))
            if time.monotonic() - begun > 5:
                break
        engine.apply(edges([(0, 1)]), n)
        assert engine.ask(lambda lane: of(lane.neighbors(1, 0, "out", 1, None)))["known"]
        # it waits for nothing of the server's: eventfds that are full, empty, or wait where they did not
        until(lambda: _fill(answers))
        os.set_blocking(answers, True)
        states[:] = layout.ASKED
        os.eventfd_write(questions, 1)
        until(lambda: bool((states == layout.ANSWERED).all()))
        os.set_blocking(questions, False)
        lane.close()
        assert lane.join(PATIENCE_S)


def _fill(eventfd: int) -> bool:
    """Have it take no more; false: it did not take that."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(eventfd)
    try:
        os.eventfd_write(eventfd, 2**64 - 2)
    except BlockingIOError:
        return False
    return True


def test_whoever_asks_without_end_keeps_no_batch_from_being_written() -> None:
    over = threading.Event()
    with engine_of(directed=True, weighted=False) as engine, ThreadPoolExecutor(1) as pool:
        engine.apply(edges([(0, k) for k in range(1, 2000)]), 2000)
        memory, questions, _ = engine.lane().descriptors
        words = np.frombuffer(mmap.mmap(memory, 8 * layout.WORDS), np.int64)
        states, places = words[: layout.PLACES], words[layout.PLACES :].reshape(layout.PLACES, -1)
        places[:, layout.METHOD : layout.METHOD + 5] = layout.NEIGHBORS, 0, layout.OUT, 0, 2000

        def flood() -> None:
            while not over.is_set():
                states[:] = layout.ASKED
                os.eventfd_write(questions, 1)

        flooding = pool.submit(flood)
        try:
            for k in range(300):
                engine.apply(edges([(1, k)]), 2000)
        finally:
            over.set()
        flooding.result()


# -- a real server ------------------------------------------------------------------------------------------


class Surroundings(Chain):
    """Results of a chain, the edges of a graph by lanes, and a topology that says when it was asked."""

    def __init__(self, engine: Engine, n: int) -> None:
        super().__init__()
        self.engine = engine
        self.over_socket: list[str] = []
        self.grow(n)

    def neighbors(self, *asked: Any) -> Any:
        self.over_socket.append("neighbors")
        return self.engine.topology.neighbors(*asked)

    def degree(self, *asked: Any) -> Any:
        self.over_socket.append("degree")
        return self.engine.topology.degree(*asked)

    def has_edge(self, *asked: Any) -> Any:
        self.over_socket.append("has_edge")
        return self.engine.topology.has_edge(*asked)


def test_a_server_asks_its_lane_also_the_next_one(tmp_path: Path) -> None:
    n = 3000
    with engine_of(directed=True, weighted=False) as engine:
        engine.apply(edges([(0, k) for k in range(1, n)]), n)
        chain = Surroundings(engine, n)
        engine.generation = chain.index.generation
        engine.apply(edges([(1, 0)]), n)
        limits = LimitsConfig(vertices_max=n)
        with serving(chain, tmp_path, limits, open_lane=engine.lane, python_modules=["patient_lane"]) as link:
            first = engine.lanes[0]
            with Client(link.addresses[0], timeout=SECONDS) as client:
                until(lambda: bool(client.neighbors(100, limit=3)) and not _asks(chain, client))
                page = client.neighbors(100, limit=3)
                assert page.ids.tolist() == [101, 102, 103] and page.epoch == (3, 2)
                assert page.offsets == {"t": {0: 2}}
                assert client.neighbors(100, limit=3, cursor=page.cursor).ids.tolist() == [104, 105, 106]
                found = client.degree([100, 101, 7])
                assert found.out.tolist()[:2] == [n - 1, 1] and found.unknown.tolist() == [7]
                assert client.has_edge([100, 101], [101, 102]).exists.tolist() == [True, False]
                with pytest.raises(errors.UnknownVertex):
                    client.neighbors(7)
                assert chain.over_socket == []
                assert client.neighbors(100, limit=n).ids.size == n - 1
                assert chain.over_socket == ["neighbors"], "too long for the lane"
            kill(link)
            assert first.join(PATIENCE_S), "the lane ended with its server"
            chain.over_socket.clear()
            with Client(link.addresses[0], timeout=SECONDS) as client:
                until(lambda: not _asks(chain, client))
                assert client.neighbors(100, limit=3).ids.tolist() == [101, 102, 103]
            link.stop()
            assert len(engine.lanes) == 2 and engine.lanes[1].join(0), "nothing is left of it"


def _asks(chain: Surroundings, client: Client) -> bool:
    """Whether it asks over its socket yet: its lane comes with other memory, in its own time."""
    chain.over_socket.clear()
    client.neighbors(100, limit=3)
    return bool(chain.over_socket)


def test_a_server_without_a_lane_asks_over_its_socket(tmp_path: Path) -> None:
    def none() -> Lane:
        raise OSError("no more threads")

    with engine_of(directed=True, weighted=False) as engine:
        engine.apply(edges([(0, 1)]), 20)
        chain = Surroundings(engine, 20)
        with (
            serving(chain, tmp_path, open_lane=none) as link,
            Client(link.addresses[0], timeout=SECONDS) as client,
        ):
            assert client.neighbors(100).ids.tolist() == [101] and chain.over_socket == ["neighbors"]
