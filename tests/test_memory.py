"""Memory: the limits that the system tells, growth that is refused in time, and ingest that waits for it."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from running import Daemon, toml
from typer.testing import CliRunner
from waiting import until

from graphtide.compute import registry
from graphtide.compute.engine import Engine
from graphtide.daemon.cli import NO_ROOM, app
from graphtide.daemon.engine.follower import Since
from graphtide.daemon.engine.keyed import KeyedRows
from graphtide.daemon.engine.pipeline import Pipeline
from graphtide.daemon.engine.storage import Storage
from graphtide.daemon.engine.vertex_memory import require_vertices
from graphtide.daemon.errors import TimedOut, Unavailable
from graphtide.daemon.health import Health
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.dense import DenseBatch
from graphtide.daemon.ingest.prepared import Prepared, PreparedQueue
from graphtide.daemon.memory import BUDGET, GROWTH, INDEX, READ_INTERVAL_S, MemoryGuard, WithinBudget, budget_bytes
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.position import Position
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.records.stream import Partition, RawRecord
from graphtide.daemon.serve.shared_memory import allocate_within
from graphtide.daemon.state.checkpoint import Checkpoint, CheckpointStore, folder_of, read_checkpoint
from graphtide.daemon.state.checkpointer import Buffers
from graphtide.gpma.edges import EdgeBatch, EdgeList, pack
from graphtide.gpma.host.snapshot import ASKED_EVERY, PIECE_EDGES
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.gpma.memory import RESERVE_BYTES, UNASKED_BYTES, Limit, Memory, Trickle
from graphtide.ops.metrics import Metrics
from graphtide.partition.graph import Graph, NoMemory

GIB = 1 << 30
P = Partition("t", 0)


class System:
    """Files such as the system has them, in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\nMemAvailable: {8 << 20} kB\n")
        self.write("proc/self/statm", "1000 256 0 0 0 0 0\n")
        self.write("proc/self/cgroup", "")

    @property
    def memory(self) -> Memory:
        return Memory(self.root)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def group(self, path: str, limit: int | str, used: int, cached: int = 0) -> None:
        """A group of version 2."""
        folder = f"sys/fs/cgroup/{path}".rstrip("/")
        self.write(f"{folder}/memory.max", f"{limit}\n")
        self.write(f"{folder}/memory.current", f"{used}\n")
        self.write(f"{folder}/memory.stat", f"anon 7\nactive_file {cached}\ninactive_file {cached}\n")


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_without_groups_the_machine_is_the_limit(system: System) -> None:
    (machine,) = system.memory.limits()
    assert (machine.total, machine.left, machine.is_machine) == (16 * GIB, 8 * GIB, True)
    assert system.memory.resident() == 256 * 4096


def test_every_group_above_ours_limits_us(system: System) -> None:
    system.write("proc/self/cgroup", "0::/pods/one/daemon\n")
    system.group("pods/one/daemon", "max", GIB)
    system.group("pods/one", 4 * GIB, 3 * GIB, cached=GIB // 4)
    system.group("pods", 9 * GIB, 8 * GIB)
    found = {limit.name: (limit.total, limit.left) for limit in system.memory.limits()}
    assert found == {
        "the machine": (16 * GIB, 8 * GIB),
        "the control group pods/one": (4 * GIB, 3 * GIB // 2),
        "the control group pods": (9 * GIB, GIB),
    }
    assert system.memory.smallest().total == 4 * GIB


def test_groups_of_the_first_version_limit_us_too(system: System) -> None:
    system.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n")
    folder = "sys/fs/cgroup/memory"
    system.write(f"{folder}/memory.limit_in_bytes", "9223372036854771712\n")
    system.write(f"{folder}/memory.usage_in_bytes", "5\n")
    # A container does not see the path that it has outside: its own group is the root of the mount.
    assert [limit.is_machine for limit in system.memory.limits()] == [True]
    system.write(f"{folder}/memory.limit_in_bytes", f"{2 * GIB}\n")
    system.write(f"{folder}/memory.usage_in_bytes", f"{GIB}\n")
    system.write(
        f"{folder}/memory.stat", f"inactive_file 3\ntotal_inactive_file {GIB // 2}\ntotal_active_file 0\n"
    )
    group = system.memory.smallest()
    assert (group.total, group.used, group.is_machine) == (2 * GIB, GIB // 2, False)


def test_who_is_moved_to_another_group_is_limited_by_that(system: System) -> None:
    system.group("one", 2 * GIB, 0)
    system.group("other", 3 * GIB, 0)
    for group, limit in (("one", 2 * GIB), ("other", 3 * GIB), ("one", 2 * GIB)):
        system.write("proc/self/cgroup", f"0::/{group}\n")
        assert system.memory.smallest().total == limit
    system.group("one", GIB, GIB // 2)
    assert (system.memory.smallest().total, system.memory.smallest().left) == (GIB, GIB // 2)


@pytest.mark.parametrize("path", ["/../../other", "/gone/long/ago"])
def test_a_path_that_leads_nowhere_ends_at_the_root(system: System, path: str) -> None:
    system.write("proc/self/cgroup", f"0::{path}\n")
    system.group("", 3 * GIB, 0)
    assert system.memory.smallest().total == 3 * GIB


def test_what_is_needed_is_refused_in_words(system: System) -> None:
    system.write("proc/self/cgroup", "0::/a\n")
    system.group("a", GIB, GIB - RESERVE_BYTES - UNASKED_BYTES)
    system.memory.require(UNASKED_BYTES)
    with pytest.raises(
        MemoryError, match=f"of {GIB} the control group a has {RESERVE_BYTES + UNASKED_BYTES} left"
    ):
        system.memory.require(UNASKED_BYTES + 1)
    system.group("a", GIB, GIB)
    system.memory.require(UNASKED_BYTES - 1)  # too little to ask


def edges(n: int) -> EdgeList:
    return EdgeList(np.unique(pack(np.arange(n) % 1000, np.arange(n) // 1000)))


@pytest.fixture
def graph(system: System) -> Iterator[Graph]:
    """One under a control group that has no memory left."""
    system.write("proc/self/cgroup", "0::/a\n")
    system.group("a", GIB, GIB)
    graph = Graph(weighted=False)
    graph.host.memory = system.memory
    yield graph
    graph.close()


def test_a_graph_that_cannot_grow_is_as_before(system: System, graph: Graph) -> None:
    keys = edges(1_000_000).keys
    graph.apply(EdgeBatch(keys[:1000], np.ones(1000, np.uint8)), 1000)
    batch = EdgeBatch(keys, np.ones(keys.size, np.uint8))
    for change in (lambda: graph.apply(batch, 1001), lambda: graph.load(edges(1_000_000), 1001)):
        with pytest.raises(NoMemory, match="the control group a has 0 left"):
            change()
        assert (graph.n_vertices, graph.n_edges) == (1000, 1000)
        assert np.array_equal(graph.export().keys, keys[:1000])
        assert graph.check() == []
    system.group("a", GIB, 0)
    assert graph.apply(batch, 1001).inserted == keys.size - 1000


def test_an_array_that_grows_by_and_by_asks_first(system: System, graph: Graph) -> None:
    """The leaves that it takes are not written at once, but the system would not refuse them later."""
    system.group("a", GIB, 0)
    graph.load(edges(2_000_000), 4000)
    system.group("a", GIB, GIB)
    first = 2_000_000

    def go_on() -> None:
        nonlocal first
        while first < 4_000_000:
            at = np.arange(first, first + 10_000)
            graph.apply(EdgeBatch.of(at % 1000, at // 1000), 4000)
            first += at.size

    with pytest.raises(NoMemory):
        go_on()
    assert not graph.host.out.migrating
    assert graph.n_edges == first
    assert graph.check() == []


@pytest.mark.parametrize(
    ("setting", "bytes_"), [("off", None), ("90%", 900), ("100%", 1000), ("5", 5), ("1234567", 1_234_567)]
)
def test_budgets(setting: str, bytes_: int | None) -> None:
    assert budget_bytes(setting, 1000) == bytes_


def test_ingest_waits_while_the_budget_is_used_up_and_says_so_once(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    system.write("proc/self/cgroup", "0::/a\n")
    system.group("a", 1000, 500)
    now, metrics = 0.0, Metrics()
    guard = MemoryGuard("80%", metrics, system.memory, clock=lambda: now)

    def after(used: int) -> bool:
        nonlocal now
        system.group("a", 1000, used)
        now += 2 * READ_INTERVAL_S
        return guard.has_room()

    caplog.set_level(logging.INFO)
    assert after(800) and guard.waits_for is None
    assert not after(801)
    assert not after(2000) and not after(799)  # not for a byte more
    assert guard.stats() == {"limit": 1000, "budget": 800, "used": 799, "waits_for": BUDGET}
    assert metrics.registry.get_sample_value("graphtide_waits_for_memory") == 1
    assert metrics.registry.get_sample_value("graphtide_memory_budget_bytes") == 800
    assert metrics.registry.get_sample_value("graphtide_memory_used_bytes") == 799
    assert after(700) and guard.waits_for is None
    assert metrics.registry.get_sample_value("graphtide_waits_for_memory") == 0
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "801 bytes of memory are used, and memory.budget is 800" in caplog.text


def test_memory_is_promised_once_within_the_budget_and_the_machine(system: System) -> None:
    system.write("proc/self/cgroup", "0::/a\n")
    system.group("a", GIB, GIB // 2)
    guard = MemoryGuard("75%", Metrics(), system.memory)
    over_budget = pytest.raises(MemoryError, match=r"134217728 are promised, and memory\.budget is 805306368")
    with guard.promised(GIB // 8):
        with over_budget, guard.promised(GIB // 8 + 1):
            raise AssertionError("it was not there")
        with guard.promised(GIB // 8):
            pass
    with guard.promised(GIB // 4):  # what ended is free again
        pass
    not_there = pytest.raises(MemoryError, match="of 1073741824 the control group a has 536870912 left")
    with not_there, MemoryGuard("off", Metrics(), system.memory).promised(GIB // 2):
        raise AssertionError("it was not there")


def test_a_batch_that_finds_no_memory_is_taken_when_there_is_some(system: System, graph: Graph) -> None:
    """Meanwhile the storage can be read, and what is published says why nothing happens."""
    metrics, queue, waited = Metrics(), PreparedQueue(10**7), list[Any]()
    pipeline = pipeline_of(graph, queue, metrics, system, waited)
    since = Since(follows=True)
    pipeline.follow(since)
    queue.put(prepared(edges(1_000_000), 1000))
    engine = threading.Thread(target=pipeline.run)
    engine.start()
    until(lambda: waited == [GROWTH])
    assert metrics.registry.get_sample_value("graphtide_waits_for_memory") == 1
    with pipeline.gate.read(settled=True, timeout_s=30):
        assert graph.n_edges == 0
    # What is computed beside the stream is told to give way, and can have the engine do what it needs for that.
    until(lambda: _gives_way(since))
    assert pipeline.between.do(lambda: pipeline.unfollow(since)) is None
    system.group("a", GIB, 0)
    until(lambda: waited == [GROWTH, None])
    queue.close()
    engine.join(60)
    assert not engine.is_alive()
    assert (graph.n_edges, pipeline.position.offsets) == (1_000_000, {P: 7})


def test_an_epoch_that_waits_for_memory_leaves_keys_as_they_were(system: System, graph: Graph) -> None:
    """A checkpoint that is made meanwhile is of the epoch before, and has all of that."""
    queue, waited, seen = PreparedQueue(10**7), list[Any](), list[int]()
    pipeline = pipeline_of(graph, queue, Metrics(), system, waited)
    keyed = pipeline.keyed = KeyedRows(directed=True)
    checkpoints: Any = vars(pipeline.checkpoints)
    checkpoints["go_on"] = lambda: seen.append(len(keyed))

    def put(n: int) -> None:
        row_keys = np.arange(2 * n, dtype=np.uint64).reshape(n, 2) | np.uint64(1)
        item = prepared(edges(n), 1000)
        queue.put(replace(item, batches=[item.batches[0]._replace(row_keys=row_keys)]))

    n, before = 1_000_000, 1000
    system.group("a", GIB, 0)
    put(before)
    engine = threading.Thread(target=pipeline.run)
    engine.start()
    try:
        until(lambda: graph.n_edges == before)
        system.group("a", GIB, GIB)
        put(n)
        until(lambda: len(seen) >= 2)
        assert set(seen) == {before} and graph.n_edges == before
        system.group("a", GIB, 0)
        until(lambda: waited == [GROWTH, None])
    finally:
        pipeline.stop.set()
        queue.close()
        engine.join(60)
    assert not engine.is_alive()
    assert graph.n_edges == keyed.n_edges == len(keyed) == n


def _gives_way(since: Since) -> bool:
    try:
        since.check()
    except MemoryError:
        return True
    return False


def test_a_stop_ends_the_wait_for_memory_and_lets_ingest_go(system: System, graph: Graph) -> None:
    queue, waited = PreparedQueue(10), list[Any]()
    pipeline = pipeline_of(graph, queue, Metrics(), system, waited)
    queue.put(prepared(edges(1_000_000), 1000))
    engine = threading.Thread(target=pipeline.run)
    engine.start()
    until(lambda: waited == [GROWTH])
    queue.put(prepared(edges(8), 1000))
    blocked = threading.Thread(target=queue.put, args=[prepared(edges(8), 1000)])
    blocked.start()
    pipeline.stop.set()
    for thread in (engine, blocked):
        thread.join(60)
        assert not thread.is_alive()
    # It is read again after the next start: the offsets are those of the epoch before.
    assert (graph.n_edges, graph.n_vertices, pipeline.position.offsets) == (0, 0, {})


def prepared(edges: EdgeList, n_vertices: int) -> Prepared:
    nothing = np.empty(0, np.int64)
    batch = DenseBatch(EdgeBatch(edges.keys, np.ones(len(edges), np.uint8)))
    return Prepared([batch], len(edges), n_vertices, {P: 7}, nothing, nothing)


def pipeline_of(
    graph: Graph, queue: PreparedQueue, metrics: Metrics, system: System, waited: list[Any]
) -> Pipeline:
    """Epochs of a graph without programs; ``waited``: what is published of the wait for memory, as it changes."""

    def publish(publication: Any) -> None:
        waits_for = publication.stats["memory"]["waits_for"]
        if waits_for != (waited[-1] if waited else None):
            waited.append(waits_for)

    nothing: Any = SimpleNamespace(
        fresh=list, lag=lambda: SimpleNamespace(amount={}, seconds=0.0), unit="records", publish=publish, passes=0,
        states=dict, error_bounds=dict, programs=(), refresh=lambda change, s: [], memory_bytes=int, stats=dict,
        run=lambda epoch, busy: [], step=lambda: None, writing=False, let_go=lambda alive, hold: None,
        published=lambda item, change, alive, hold: None, order={}, waiting=None, newest=None, coming={},
        trouble=None, go_on=lambda: None, begin=lambda before, taken, in_trouble: None,
        finish=lambda in_trouble: 0.0,
    )  # fmt: skip
    return Pipeline(
        storage=Storage(graph, Position(1)), engine=nothing, standing=nothing, index=nothing, reuse=nothing,
        queue=queue, source=nothing, link=nothing, metrics=metrics, checkpoints=nothing,
        memory=MemoryGuard("off", metrics, system.memory), background_audit=nothing,
        epochs=SimpleNamespace(updates_max=10**7, linger_ms=0),  # type: ignore[arg-type]
        recording=nothing, health=Health(60), dead_letters={}, stop=threading.Event(),
    )  # fmt: skip


def test_who_computes_beside_the_stream_hears_of_changes_and_keeps_names(system: System, graph: Graph) -> None:
    queue, holds = PreparedQueue(100), list[bool]()
    pipeline = pipeline_of(graph, queue, Metrics(), system, [])
    reuse: Any = SimpleNamespace(
        published=lambda item, change, alive, hold: holds.append(hold), memory_bytes=lambda: 0
    )
    pipeline.reuse = reuse
    since = Since(follows=True)
    pipeline.follow(since)
    for number in range(2):
        queue.put(prepared(edges(8), 1000))
        assert pipeline._epoch(queue.take(100, timeout_s=60))
        if number == 0:
            pipeline.unfollow(since)
    assert holds == [True, False]
    assert since.updates == 8 and [change.inserted for change in since.take()] == [8]


def test_a_daemon_over_its_budget_reads_nothing_answers_and_stops_well(tmp_path: Path) -> None:
    with Daemon(tmp_path, {"memory": {"budget": 1_000_000}, "program": [{"name": "components"}]}) as daemon:
        with SpoolWriter(daemon.spool, name="a") as writer:
            writer.append(encode_msgpack(np.arange(10), np.arange(10) + 1))
            offsets = {"a.msgpack": writer.offset}
        daemon.start()
        with daemon.client() as client:
            until(lambda: client.stats()["memory"]["waits_for"] == BUDGET)
            memory = client.stats()["memory"]
            assert memory["budget"] == 1_000_000 < memory["used"] < memory["limit"]
            with pytest.raises(TimedOut):
                client.wait(offsets, timeout_ms=500)
            assert client.stats()["vertices"] == 0
            with pytest.raises(Unavailable, match=r"beside the stream: .*memory\.budget is 1000000"):
                client.compute("components")
            assert client.keep("components", id="more").state in ("computing", "waiting")
            until(lambda: client.programs()["programs"]["more"]["state"] == "waiting")
            assert "memory.budget" in client.programs()["programs"]["more"]["reason"]
            until(lambda: client.drop("more").state == "dropped")
        assert daemon.stop() == 0
        log = daemon.log.read_text()
        assert log.count("reading waits until memory comes free") == 1


@pytest.mark.sample(among="memory is lacking")
def test_a_copy_of_the_edges_asks_first_and_goes_on_when_there_is_memory(system: System, graph: Graph) -> None:
    """It is copied in pieces that are too small to ask for each, and changes are laid over it at once."""
    system.group("a", GIB, 0)
    graph.load(edges(3_000_000), 4000)
    copy = graph.begin_copy()
    system.group("a", GIB, GIB)
    with pytest.raises(MemoryError, match="the control group a has 0 left"):
        copy.copy_piece()
    system.group("a", GIB, 0)
    while copy.copy_piece():
        pass
    rest = edges(3_200_000).keys[-200_000:]
    graph.apply(EdgeBatch(rest, np.ones(rest.size, np.uint8)), 4000)
    system.group("a", GIB, GIB)
    with pytest.raises(MemoryError, match="the control group a has 0 left"):
        copy.edges()
    system.group("a", GIB, 0)
    graph.end_copy(copy)
    assert np.array_equal(np.concatenate([piece.keys for piece in copy.edges()]), graph.export().keys)


@pytest.mark.sample(among="memory is lacking")
def test_a_copy_that_others_take_the_memory_of_stops_on_its_way(system: System, graph: Graph) -> None:
    system.group("a", GIB, 0)
    graph.load(edges(6_000_000), 6000)
    copy = graph.begin_copy()
    assert ASKED_EVERY * PIECE_EDGES * 12 < RESERVE_BYTES  # before it is asked anew
    for _ in range(10):
        assert copy.copy_piece()
    system.group("a", GIB, GIB)
    with pytest.raises(MemoryError, match="the control group a has 0 left"):
        copy.finish()
    system.group("a", GIB, 0)
    copy.finish()
    graph.end_copy(copy)
    assert np.array_equal(np.concatenate([piece.keys for piece in copy.edges()]), graph.export().keys)


def test_buffers_of_checkpoints_ask_for_all_that_is_missing_at_once(system: System) -> None:
    system.write("proc/self/cgroup", "0::/a\n")
    system.group("a", GIB, GIB - RESERVE_BYTES - 3 * UNASKED_BYTES)
    buffers = Buffers(memory=system.memory)
    three = {name: np.ones(UNASKED_BYTES, np.uint8) for name in "abc"}
    with pytest.raises(MemoryError, match="the control group a has"):
        buffers.reserve({name: array.nbytes for name, array in three.items()})
    with pytest.raises(MemoryError, match="the control group a has"):
        buffers.copy(three)
    assert buffers.nbytes == 0
    buffers.copy({"a": three["a"]})
    with pytest.raises(MemoryError):
        buffers.reserve({"a": 5 * UNASKED_BYTES})
    assert buffers.nbytes == 0  # what was too small was given back first
    system.group("a", GIB, 0)
    for name, copy in buffers.copy(three).items():
        assert np.array_equal(copy, three[name])


def test_arrays_of_the_index_that_fill_up_by_and_by_are_asked_for_whole(system: System) -> None:
    system.write("proc/self/cgroup", "0::/a\n")
    system.group("a", GIB, 0)
    index = VertexIndex.create("int", allocate_within(system.memory))
    index.insert(np.arange(200_000))
    system.group("a", GIB, GIB)
    known = index.n_vertices
    with pytest.raises(MemoryError, match="the control group a has 0 left"):
        index.insert(np.arange(2_000_000))
    system.group("a", GIB, 0)
    dense = index.insert(np.arange(2_000_000))
    assert np.array_equal(dense, np.arange(2_000_000)) and known == 200_000


@contextlib.contextmanager
def waiting_with_the_second(system: System, graph: Graph, *items: Prepared) -> Iterator[None]:
    """One epoch was taken, and the next one waits for memory within the block, which there is behind it."""
    queue, waited = PreparedQueue(10**7), list[Any]()
    pipeline = pipeline_of(graph, queue, Metrics(), system, waited)
    for item in items:
        queue.put(item)
    queue.close()
    pipeline.epochs.updates_max = 8  # one item an epoch
    engine = threading.Thread(target=pipeline.run)
    engine.start()
    until(lambda: waited == [GROWTH])
    assert pipeline.position.number == 1
    yield
    system.group("a", GIB, 0)
    engine.join(60)
    assert not engine.is_alive()
    assert waited == [GROWTH, None]


def test_vertices_that_bring_no_edges_wait_for_their_columns(system: System, graph: Graph) -> None:
    """Of their edges the array asks for itself; columns grow where they lie, and nobody would refuse them."""
    with waiting_with_the_second(system, graph, prepared(edges(8), 1000), prepared(edges(8), 1_000_000)):
        assert graph.n_vertices == 1000
    assert graph.n_vertices == 1_000_000


def test_a_large_batch_waits_for_what_it_takes_for_a_moment(system: System, graph: Graph) -> None:
    """Though the array has room for its edges: reports and work space are many small things that ask nobody."""
    with waiting_with_the_second(system, graph, prepared(edges(30_000), 1000), prepared(edges(60_000), 1000)):
        assert graph.n_edges == 30_000
    assert graph.n_edges == 60_000


def test_new_vertices_are_to_take_what_those_before_have_in_every_program(graph: Graph) -> None:
    asked: list[int] = []
    graph.host.memory = SimpleNamespace(require=asked.append)  # type: ignore[assignment]
    index = VertexIndex.create("int")
    programs = [registry.make_program(kind, None, {}, index) for kind in ("components", "pagerank")]
    with contextlib.closing(Engine(graph, programs, lambda ids: index.lookup(np.array(ids)))) as engine:
        graph.load(edges(1_000_000), 100_000)
        engine.start()
        held = [program.memory_bytes() for program in programs]
        published = [column.dtype.itemsize for program in programs for column in program.columns().values()]
        asked.clear()
        require_vertices(graph, programs, 1000)  # too little to ask
        require_vertices(graph, programs, 100_000)
        assert asked == [pytest.approx(sum(held) + 100_000 * (2 * sum(published) + 18), rel=1e-6)]
        change = graph.apply(EdgeBatch.of(np.zeros(1, np.uint32), np.ones(1, np.uint32)), 200_000)
        assert all(run.error is None for run in engine.refresh(change))
        assert sum(program.memory_bytes() for program in programs) <= 2.1 * sum(held)


def test_what_the_index_waits_for_is_the_state_of_growth_until_both_have_it(system: System) -> None:
    system.write("proc/self/cgroup", "")
    guard = MemoryGuard("off", Metrics(), system.memory)
    guard.refused("the graph")
    guard.refused("the index", INDEX)
    guard.granted()
    assert guard.waits_for == GROWTH
    guard.granted(INDEX)
    assert guard.waits_for is None


def test_bad_rows_ask_for_the_memory_of_their_letters(system: System) -> None:
    """A few bytes each, of many records, come to a multiple of these."""
    system.write("proc/self/cgroup", "0::/a\n")
    src = np.arange(2000)
    value = encode_msgpack(src, src, weights=np.full(src.size, -1.0, np.float32))
    records = [RawRecord(P, i, i + 1, value, "msgpack", 0, None, ()) for i in range(10)]
    decoder = Decoder(memory=system.memory)
    system.group("a", GIB, GIB)
    assert len(decoder.decode(records[0]).bad) == src.size  # too little to ask
    with pytest.raises(MemoryError, match="the control group a has 0 left"):
        decoder.decode_all(records)
    system.group("a", GIB, 0)
    assert sum(len(item.bad) for item in decoder.decode_all(records)) == 10 * src.size


def test_a_checkpoint_is_not_read_without_memory_for_its_arrays(system: System, tmp_path: Path) -> None:
    """And is not taken for damaged: an older one would say something else."""
    system.write("proc/self/cgroup", "0::/a\n")
    array = np.arange(1 << 20)
    checkpoint = Checkpoint((1, 2), {}, {}, {}, {}, {"graph/keys": array})
    store = CheckpointStore(tmp_path / "checkpoints")
    with contextlib.closing(store):
        store.write(checkpoint)
        folder = folder_of(store.path, checkpoint.epoch)
        system.group("a", GIB, GIB)
        with pytest.raises(
            MemoryError, match=r"checkpoint-1-2.* cannot be read: .*the control group a has 0 left"
        ):
            read_checkpoint(folder, memory=system.memory)
        system.group("a", GIB, 0)
        read = read_checkpoint(folder, memory=system.memory)
    assert np.array_equal(read.arrays["graph/keys"], array)


def test_the_budget_is_one_more_limit_of_what_asks(system: System) -> None:
    within = WithinBudget("25%", system.memory)
    of_budget = Limit("memory.budget", 4 * GIB, 256 * 4096)  # of the machine, what is ours counts
    assert within.limits() == [*system.memory.limits(), of_budget]
    within.require(3 * GIB)
    with pytest.raises(MemoryError, match=rf"of {4 * GIB} memory\.budget has {4 * GIB - 256 * 4096} left"):
        within.require(4 * GIB)
    system.write("proc/self/cgroup", "0::/a\n")
    system.group("a", 2 * GIB, GIB)
    assert within.limits()[-1] == Limit("memory.budget", GIB // 2, GIB), "of a group, all that is in it"
    assert WithinBudget("off", system.memory).limits() == system.memory.limits()
    assert within.resident() == system.memory.resident()


def test_what_is_taken_a_little_at_a_time_is_asked_for_together() -> None:
    asked: list[int] = []
    trickle = Trickle(SimpleNamespace(require=asked.append))  # type: ignore[arg-type]
    for _ in range(7):
        trickle.take(UNASKED_BYTES // 2)
    trickle.take(10 * UNASKED_BYTES)
    assert asked == [UNASKED_BYTES] * 3 + [10 * UNASKED_BYTES + UNASKED_BYTES // 2]


@pytest.fixture(scope="module")
def edge_list(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of edges whose graph takes much more than a checkpoint of it."""
    file = tmp_path_factory.mktemp("edges") / "edges.el"
    src, dst = np.random.default_rng(1).integers(0, 400_000, (2, 2_000_000))
    file.write_bytes(b"".join(b"%d %d\n" % pair for pair in zip(src.tolist(), dst.tolist(), strict=True)))
    return file


@pytest.mark.sample(among="memory is lacking")
def test_a_start_asks_for_its_checkpoint_within_the_budget(edge_list: Path, tmp_path: Path) -> None:
    """Where that does not fit it ends in one sentence; where only the graph is too much, it answers and waits."""
    settings = {
        "memory": {"budget": "off"},
        "program": [{"name": "components"}, {"name": "pagerank"}],
        "audit": {"share": 0, "full_every_epoch": False},
    }
    with Daemon(tmp_path, settings) as daemon:
        command = ["load", "--config", str(daemon.config), "--offsets", "{}", str(edge_list)]
        small = CliRunner().invoke(app, [*command, "--set", "memory.budget=1000000"])
        assert small.exit_code == NO_ROOM, small.output
        assert "out of memory: the files cannot be loaded" in small.stderr and "memory.budget" in small.stderr
        assert not [*daemon.folder.glob("checkpoints/checkpoint-*")]
        assert CliRunner().invoke(app, command).exit_code == 0
        daemon.start()
        with daemon.client() as client:
            used = client.stats()["memory"]["used"]
        assert daemon.stop() == 0

        def budget(n_bytes: int) -> None:
            daemon.settings["memory"] = {"budget": n_bytes}
            daemon.config.write_text(toml(daemon.settings))
            daemon.log.write_bytes(b"")

        budget(1_000_000)
        daemon.start(ready_s=None)
        assert daemon.process is not None and daemon.process.wait(60) == NO_ROOM
        said = daemon.log.read_text()
        last = r"graphtide: out of memory: the checkpoint '.*' cannot be read: \d+ bytes more are needed, and of "
        assert re.search(rf"{last}1000000 memory\.budget has 0 left\n\Z", said), said
        assert "Traceback" not in said

        budget(used - (8 << 20))
        daemon.start()
        with daemon.client() as client:
            until(lambda: client.stats()["memory"]["waits_for"] == BUDGET)
            assert client.stats()["edges"] > 1_900_000
        assert daemon.stop() == 0


@pytest.mark.sample(among="memory is lacking")
def test_bad_rows_of_a_daemon_wait_for_room_within_the_budget(tmp_path: Path) -> None:
    settings = {"memory": {"budget": "off"}, "program": [{"name": "components"}]}
    src = np.arange(30_000)
    bad = encode_msgpack(src, src, weights=np.full(src.size, -1.0, np.float32))
    with Daemon(tmp_path, settings) as daemon:
        daemon.start()
        with daemon.client() as client:
            used = client.stats()["memory"]["used"]
        assert daemon.stop() == 0
        with SpoolWriter(daemon.spool, name="a") as writer:
            writer.append(bad)
            offsets = {"a.msgpack": writer.offset}
        # Less is left than is to stay free, but enough to read.
        daemon.settings["memory"] = {"budget": used + (24 << 20)}
        daemon.config.write_text(toml(daemon.settings))
        daemon.start()
        with daemon.client() as client:
            until(lambda: client.stats()["memory"]["waits_for"] == GROWTH)
            assert client.stats()["dead_letters"] == {}
        assert "memory.budget has" in daemon.log_tail()
        assert daemon.stop() == 0
        daemon.settings["memory"] = {"budget": "off"}
        daemon.config.write_text(toml(daemon.settings))
        daemon.start()
        with daemon.client() as client:
            client.wait(offsets)
            assert [*client.stats()["dead_letters"]] == ["bad-weight"]
        assert daemon.stop() == 0
