"""What must hold when something fails: no memory, no disk, no broker, a thread that died."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from kafka import TopicPartition
from kafka.errors import KafkaConnectionError
from waiting import PATIENCE_S, until

from graphtide.compute import registry
from graphtide.compute.audit.auditor import Auditor
from graphtide.compute.engine import Engine
from graphtide.compute.program import Program
from graphtide.daemon import service
from graphtide.daemon.again import StartAgain
from graphtide.daemon.beginning import Beginning
from graphtide.daemon.config.sections.graph import EpochConfig
from graphtide.daemon.config.settings import Config
from graphtide.daemon.engine.auditing import BackgroundAudit
from graphtide.daemon.engine.between import BetweenEpochs
from graphtide.daemon.engine.pipeline import Pipeline
from graphtide.daemon.engine.recording import Recording
from graphtide.daemon.engine.standing import Standing
from graphtide.daemon.engine.storage import Storage
from graphtide.daemon.errors import NotWritten, SourceError, SourceUnavailable, Unavailable
from graphtide.daemon.health import Health
from graphtide.daemon.ingest import dead_letters_kafka
from graphtide.daemon.ingest.dead_letters import unpack_letter
from graphtide.daemon.ingest.dead_letters_kafka import KafkaDeadLetters
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.dense import DenseBatch, dense_batch
from graphtide.daemon.ingest.kafka import KafkaSource
from graphtide.daemon.ingest.kafka_overseer import Cluster, Topic
from graphtide.daemon.ingest.loop import Ingest, IngestReport
from graphtide.daemon.ingest.prepared import ITEMS_MAX, Prepared, PreparedQueue
from graphtide.daemon.ingest.refusals import RefusalLog
from graphtide.daemon.ingest.reuse import IdReuse
from graphtide.daemon.ingest.spool import SpoolSource
from graphtide.daemon.kernels import Stopped
from graphtide.daemon.memory import MemoryGuard
from graphtide.daemon.records.columns import UpdateColumns as Edges
from graphtide.daemon.records.columns import canonical
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.placement import partition_of
from graphtide.daemon.records.position import Position
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.records.stream import (
    BadRecord,
    DeadLettersFull,
    Lag,
    Partition,
    RawRecord,
    UpdateBlock,
)
from graphtide.daemon.service import Service
from graphtide.daemon.signals import handled_signals
from graphtide.daemon.state import order_log
from graphtide.daemon.state.checkpoint import Checkpoint, CheckpointStore
from graphtide.daemon.state.checkpointer import Checkpointer
from graphtide.daemon.state.order_log import OrderLog
from graphtide.daemon.state.requested import RequestedCheckpoints
from graphtide.gpma.edges import EdgeBatch, EdgeList, Op
from graphtide.gpma.host import array as pma
from graphtide.gpma.host.snapshot import EdgeCopy
from graphtide.gpma.index.ids import IdColumn, StringColumn, concatenate_ids
from graphtide.gpma.index.vertex_index import Kind, VertexIndex
from graphtide.ops.metrics import Metrics
from graphtide.partition.graph import Graph

P = Partition("t", 0)

# -- no memory ------------------------------------------------------------------------------------------------


def least_config() -> Any:
    """What a service looks at as it is made."""
    return SimpleNamespace(
        graph=SimpleNamespace(weights="any"),
        metrics=SimpleNamespace(stuck_after=60.0),
        memory=SimpleNamespace(budget="off"),
        compute=SimpleNamespace(nice=0),
        checkpoint=SimpleNamespace(path=Path("checkpoints")),
    )


def contents(graph: Graph) -> tuple[int, int, list[int], list[int]]:
    edges: EdgeList = graph.export()
    return graph.n_vertices, graph.n_edges, edges.keys.tolist(), graph.in_rows().degrees.tolist()[:40]


@pytest.fixture
def graph() -> Iterator[Graph]:
    graph = Graph()
    graph.apply(EdgeBatch.of([0, 1, 2, 3], [1, 2, 3, 3]), 40)
    yield graph
    graph.close()


GROWS = EdgeBatch.of(np.repeat(np.arange(50), 40), np.tile(np.arange(40), 50))
SMALL = EdgeBatch.of([0, 4], [1, 5], [0, 1])


@pytest.mark.parametrize("batch", [GROWS, SMALL], ids=["grows", "small"])
@pytest.mark.parametrize("orientation", ["out", "in_"])
@pytest.mark.parametrize("allocation", ["report_columns", "new_work"])
def test_a_batch_is_applied_to_both_orientations_or_to_none(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, batch: EdgeBatch, orientation: str, allocation: str
) -> None:
    before = contents(graph)
    victim = getattr(graph.host, orientation)
    preparing = threading.local()
    real_allocation = getattr(pma, allocation)
    failed: list[bool] = []

    def noted(name: str) -> Callable[..., Any]:
        real = getattr(pma.PackedMemoryArray, name)

        def half(self: pma.PackedMemoryArray, *given: Any, **options: Any) -> Any:
            preparing.array = self
            return real(self, *given, **options)

        return half

    def allocate(*arguments: Any, **options: Any) -> Any:
        if preparing.array is victim:
            failed.append(True)
            raise MemoryError
        return real_allocation(*arguments, **options)

    with monkeypatch.context() as patch:
        for name in ("question", "plan"):  # both halves of ``prepare``
            patch.setattr(pma.PackedMemoryArray, name, noted(name))
        patch.setattr(pma, allocation, allocate)
        try:
            graph.apply(batch, 50)
        except MemoryError:
            assert graph.check() == []
            assert contents(graph) == before
        else:
            assert not failed, "a small batch needs neither another size nor larger work arrays"
    graph.apply(batch, 50)
    assert graph.check() == []
    assert graph.n_vertices == 50
    assert graph.n_edges == (2000 if batch is GROWS else 4)


def test_a_record_is_not_bad_because_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("graphtide.daemon.ingest.decode.decode_msgpack", fail)
    with pytest.raises(MemoryError):
        Decoder().decode(raw(0, b"anything"))


# -- ingest ---------------------------------------------------------------------------------------------------


def raw(offset: int, value: bytes | None, partition: Partition = P, encoding: str = "msgpack") -> RawRecord:
    return RawRecord(partition, offset, offset + 1, value, encoding, 0)


class ScriptedSource:
    """Gives one poll after the other, each with the position after it; then stops the ingest."""

    unit = "records"
    outages = 0
    away: str | None = None

    def __init__(self, *polls: tuple[list[RawRecord], dict[Partition, int]], partitions: int = 1) -> None:
        self.polls = list(polls)
        self.partitions = partitions
        self.at: dict[Partition, int] = {}
        self.end = 0
        self.stop: Callable[[], None] = lambda: None

    def poll(self, bytes_max: int, timeout_s: float) -> list[RawRecord]:
        if not self.polls:
            self.stop()
            return []
        records, self.at = self.polls.pop(0)
        return records

    def position(self) -> dict[Partition, int]:
        return dict(self.at)

    def backlog(self) -> int | None:
        return None

    def partition_count(self, name: str) -> int:
        return self.partitions

    def refresh_lag(self) -> None:
        self.end = 100

    def lag(self) -> Lag:
        return Lag({P: self.end - self.at[P]} if self.end else {}, 0.0)


class Letters:
    """Dead letters with room for so many."""

    def __init__(self, room: int = 1 << 20) -> None:
        self.bad: list[BadRecord] = []
        self.room = room

    def write(self, bad: Sequence[BadRecord]) -> None:
        taken = bad[: self.room]
        self.bad += taken
        self.room -= len(taken)
        if len(taken) < len(bad):
            raise DeadLettersFull("the disk is full", taken=len(taken))

    def flush(self) -> None: ...


def at_once(index: VertexIndex) -> IdReuse:
    """Where nobody asks, there is nobody to wait for."""
    return IdReuse(index, lambda: lambda: True)


def ingested(
    source: ScriptedSource, *, directed: bool = True, decoder: Decoder | None = None, kind: Kind = "int"
) -> tuple[list[Prepared], list[IngestReport], list[BadRecord]]:
    queue, letters, reports = PreparedQueue(1000), Letters(), list[IngestReport]()
    index = VertexIndex.create(kind)
    ingest = Ingest(
        source=source,  # type: ignore[arg-type]
        decoder=decoder or Decoder(kind),
        index=index,
        reuse=at_once(index),
        dead_letters=letters,  # type: ignore[arg-type]
        queue=queue,
        report=reports.append,
        poll_bytes_max=1 << 20,
        directed=directed,
    )
    source.stop = ingest.stop.set
    ingest.run()
    return queue.take(10_000, 0), reports, letters.bad


def test_offsets_advance_over_records_without_updates() -> None:
    source = ScriptedSource(
        ([raw(0, None), raw(1, None)], {P: 2}),
        ([raw(2, b"\xc1 nonsense")], {P: 3}),
        ([], {P: 3}),
        ([], {P: 5}),  # markers of a transaction
        ([], {P: 5, Partition("t", 1): 0}),
    )
    items, reports, bad = ingested(source)
    assert [(item.updates, item.offsets) for item in items] == [(0, {P: 2}), (0, {P: 3}), (0, {P: 5})]
    assert [report.tombstones for report in reports] == [2, 0]
    assert [letter.offset for letter in bad] == [2]


class Waits(threading.Event):
    """Each wait for it is a moment in which others do something."""

    def __init__(self, moment: Callable[[], None]) -> None:
        super().__init__()
        self.moment = moment

    def wait(self, timeout: float | None = None) -> bool:
        self.moment()
        return self.is_set()


@pytest.mark.parametrize("room_comes", [True, False])
def test_bad_records_without_room_hold_the_stream_and_show_in_its_lag(
    room_comes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    source = ScriptedSource(
        ([raw(0, encode_msgpack(np.array([1]), np.array([2])))], {P: 1}),
        ([raw(offset, b"\xc1 nonsense") for offset in (1, 2, 3)], {P: 4}),
        ([raw(4, encode_msgpack(np.array([2]), np.array([3])))], {P: 5}),
    )
    letters, queue, index = Letters(room=1), PreparedQueue(1000), VertexIndex.create("int")
    seen: list[tuple[str | None, Mapping[Partition, int], float]] = []
    now = 0.0

    def moment() -> None:
        nonlocal now
        now += 1.0
        seen.append((ingest.waiting, ingest.lag().amount, ingest.lag().seconds))
        if now == 3:
            if room_comes:
                letters.room = 1000
            else:
                ingest.stop.set()

    ingest = Ingest(
        source=source,  # type: ignore[arg-type]
        decoder=Decoder("int"),
        index=index,
        reuse=at_once(index),
        dead_letters=letters,
        queue=queue,
        report=lambda report: None,
        poll_bytes_max=1 << 20,
        stop=Waits(moment),
        clock=lambda: now,
    )
    source.stop = ingest.stop.set
    ingest.run()
    # Of 100 records 4 were read, of which 3 wait.
    assert seen == [("the disk is full", {P: 99}, waited) for waited in (0.0, 1.0, 2.0)]
    assert ingest.waiting is None
    source.away = "the source is away"
    assert ingest.waiting == "the source is away"
    said = [record.getMessage() for record in caplog.records if record.name.endswith("loop")]
    offsets = [item.offsets[P] for item in queue.take(100, 0)]
    if room_comes:
        assert [letter.offset for letter in letters.bad] == [1, 2, 3], "each once"
        assert offsets == [1, 1, 4, 5], "and meanwhile an epoch, whose stats say that we wait"
        assert said == ["the disk is full", "bad records find room again after 3 s"]
    else:
        assert offsets == [1, 1], "no checkpoint may pass what was not kept"
        assert said == ["the disk is full"]


def test_the_log_says_once_a_minute_how_many_records_were_bad(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = RefusalLog(lambda: now)

    def bad(count: int, reason: str, partition: Partition = P) -> list[BadRecord]:
        return [
            BadRecord(partition, now_offset, b"", reason, "weight is -1") for now_offset in range(7, 7 + count)
        ]

    refusals.say()
    refusals.note(bad(3, "bad-weight"))
    refusals.say()
    for now in (1.0, 30.0, 59.0):  # noqa: B007  the clock
        refusals.note(bad(20_000, "bad-weight", Partition("a.csv")) + bad(2, "malformed"))
        refusals.say()
    now = 60.0
    refusals.say()
    now = 200.0
    refusals.say()
    refusals.note(bad(1, "malformed"))
    refusals.say()
    refusals.note(bad(1, "bad-id"))
    refusals.say(now=True)
    begin, example = "bad records went to the dead letters: ", "the first of them is "
    assert [record.getMessage() for record in caplog.records] == [
        f"{begin}3 (3 bad-weight); {example}t/0/7: weight is -1",
        f"{begin}60006 (60000 bad-weight, 6 malformed); {example}a.csv:7: weight is -1",
        f"{begin}1 (1 malformed); {example}t/0/7: weight is -1",
        f"{begin}1 (1 bad-id); {example}t/0/7: weight is -1",
    ]


def test_what_is_known_of_a_file_goes_with_the_file() -> None:
    decoder, a, b = Decoder(), Partition("a.csv"), Partition("b.csv")
    source = ScriptedSource(
        ([raw(0, b"src,dst\n1,2\n", a, "csv")], {a: 12}),
        ([raw(0, b"dst,src\n1,2\n", b, "csv")], {b: 12}),
    )
    ingested(source, decoder=decoder)
    assert decoder._layouts.keys() == {b}


def test_a_queue_holds_few_items_even_without_updates() -> None:
    queue = PreparedQueue(10)
    nothing = np.empty(0, np.int64)
    item = Prepared([], 0, 0, {}, nothing, nothing)
    for _ in range(ITEMS_MAX):
        queue.put(item)
    waiting = threading.Thread(target=queue.put, args=(item,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    queue.take(1, 0)
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("kind", typing.get_args(Kind))
def test_misrouted_edges_are_sampled_and_counted(
    directed: bool, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    src: IdColumn = np.arange(100, 140)
    dst: IdColumn = np.arange(40)
    if kind == "string":
        src, dst = StringColumn.of(map(str, np.arange(100, 140))), StringColumn.of(map(str, np.arange(40)))
    ops = np.ones(40, np.uint8)
    ops[::2] = Op.DELETE_VERTEX
    nothing = np.zeros(40, np.int64) if kind == "int" else StringColumn.of([""] * 40)
    where = np.arange(40) + 40 * (ops == Op.DELETE_VERTEX)
    dst = concatenate_ids([dst, nothing])[where]  # type: ignore[list-item]
    edges = Edges(src, dst, ops)
    placed = partition_of(src if directed else canonical(edges).src, 3)
    polls = []
    for number in range(3):
        for owner in (0, 1):
            some = np.flatnonzero(placed == owner)[:5]
            record = encode_msgpack(src[some], dst[some], ops[some])
            polls.append(([raw(0, record, Partition("t", number))], {Partition("t", number): 1}))
    source = ScriptedSource(*polls, partitions=3)
    _, reports, bad = ingested(source, directed=directed, kind=kind)
    assert not bad
    assert [report.misrouted for report in reports] == [0, 5, 5, 0, 5, 5]
    assert [record.getMessage().split()[0] for record in caplog.records] == ["t/0", "t/1", "t/2"]


def test_of_records_that_are_read_together_as_many_are_sampled() -> None:
    """One wrong edge among many records of one each is found as if each was read by itself."""
    owner = partition_of(np.arange(200), 2)
    right, wrong = np.flatnonzero(owner == 0)[:60].tolist(), int(np.flatnonzero(owner == 1)[0])
    ids, t = [*right[:31], wrong, *right[31:]], Partition("t", 0)
    records = [raw(at, b'{"src":%d,"dst":1}' % id, t, "json") for at, id in enumerate(ids)]
    source = ScriptedSource((records, {t: len(ids)}), partitions=2)
    _, (report,), bad = ingested(source)
    assert not bad and report.records == report.inserts == 61 and report.misrouted == 1


def test_one_partition_and_files_have_no_wrong_place() -> None:
    value = encode_msgpack(np.arange(9), np.arange(9))
    for partition, count in ((P, 1), (Partition("a.msgpack"), 1)):
        _, reports, _ = ingested(ScriptedSource(([raw(0, value, partition)], {partition: 9}), partitions=count))
        assert [report.misrouted for report in reports] == [0]


# -- sources --------------------------------------------------------------------------------------------------


class Consumer:
    """Gives each of these answers to ``poll`` in turn, and cannot say its position."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def poll(self, timeout_ms: int, max_records: int) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def position(self, tp: TopicPartition, timeout_ms: int) -> int:
        raise KafkaConnectionError("gone")

    def highwater(self, tp: TopicPartition) -> int:
        return 10


TP = TopicPartition("t", 0)


def item(offset: int, value: bytes | None) -> SimpleNamespace:
    size = -1 if value is None else len(value)
    return SimpleNamespace(
        offset=offset, value=value, key=None, headers=[], timestamp=1,
        serialized_value_size=size, serialized_key_size=-1, leader_epoch=-1,
    )  # fmt: skip


def kafka_source(consumer: Consumer) -> KafkaSource:
    source: Any = KafkaSource("localhost:1", ["t"])
    source._overseer.cluster = source._cluster = Cluster("c", {"t": Topic("", frozenset({0, 1}))})
    source._consumer = consumer
    source._next, source._ends = {TP: 0}, {TP: 10}
    made: KafkaSource = source
    return made


@pytest.mark.parametrize("error", [OSError("reset"), KafkaConnectionError("reset")])
def test_an_outage_never_costs_records_that_were_read(error: Exception) -> None:
    source = kafka_source(Consumer({TP: [item(0, b"a"), item(1, b"b")]}, error))
    assert [record.offset for record in source.poll(1 << 20, 0.0)] == [0, 1]
    assert source.position() == {P: 2}
    assert source.poll(1 << 20, 0.0) == []
    assert source.outages == 1
    assert source.partition_count("t") == 2
    assert source.partition_count("other") == 1


def test_a_poll_of_tombstones_ends() -> None:
    source = kafka_source(Consumer({TP: [item(0, None)] * 100}))
    assert len(source.poll(64 * 1000, 0.0)) == 1000


def test_a_poll_of_tiny_records_ends(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, name="a") as writer:
        for _ in range(30_000):
            writer.append(b"x")
    source = SpoolSource(tmp_path, fingerprints=tmp_path / "missing" / "fingerprints")
    source.open(None)
    sizes = []
    while records := source.poll(1000, 0.0):
        sizes.append(len(records))
    assert sum(sizes) == 30_000
    assert max(sizes) < 10_000
    source.checkpointed(source.position())  # cannot be kept, which is logged and costs nothing else
    source.close()


# -- checkpoints ----------------------------------------------------------------------------------------------


def snapshot(epoch: tuple[int, int]) -> Checkpoint:
    return Checkpoint(epoch, {}, {}, {}, {}, {"graph/keys": np.arange(4, dtype=np.uint64)})


def test_a_checkpoint_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    store.write(snapshot((1, 1)))
    with monkeypatch.context() as patch:
        patch.setattr("graphtide.daemon.state.checkpoint.os.fsync", full_disk)
        with pytest.raises(OSError, match="no space"):
            store.write(snapshot((1, 2)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1-1", "lock"]
    with monkeypatch.context() as patch:
        store.keep = 1
        patch.setattr("graphtide.daemon.state.checkpoint.shutil.rmtree", full_disk_unless_ignored)
        store.write(snapshot((1, 3)))
    newest = store.newest_good()
    assert newest is not None
    assert newest.epoch == (1, 3)
    store.close()


def full_disk(*_: object) -> None:
    raise OSError(28, "no space")


def full_disk_unless_ignored(_: Path, *, ignore_errors: bool = False) -> None:
    if not ignore_errors:
        full_disk()


def no_audit(graph: Graph, engine: Engine) -> BackgroundAudit:
    return BackgroundAudit(Auditor(graph, engine), Metrics(), list, share=0, repair="off")


def surroundings(publish: Callable[[Any], None], **more: Any) -> Any:
    """A source without lag, dead letters, and a query server that publishes so."""
    return SimpleNamespace(
        lag=lambda: SimpleNamespace(amount={}, seconds=0.0),
        order={},
        waiting=None,
        unit="records",
        log_margin=lambda offsets: math.inf,
        flush=lambda: None,
        publish=publish,
        **more,
    )


def make_pipeline(
    store: CheckpointStore,
    graph: Graph,
    index: VertexIndex,
    stub: Any,
    *,
    programs: Sequence[Program] = (),
    queue: PreparedQueue | None = None,
    reuse: Any = None,
    metrics: Metrics | None = None,
    interval_s: float = 0,
    safe: list[dict[Partition, int]] | None = None,
) -> Pipeline:
    """Epochs of this graph. ``stub`` stands for the source, the dead letters and the query server."""
    metrics = metrics or Metrics()
    storage, specs = Storage(graph, Position(1)), {program.id: dict[str, Any]() for program in programs}
    engine = Engine(graph, programs, index.lookup)  # type: ignore[arg-type]
    standing = Standing(programs, specs)
    checkpoints = Checkpointer(
        graph=graph, index=index, programs=standing.fresh, program_specs=specs, position=storage.position,
        identity={}, dead_letters=stub, store=store, metrics=metrics, interval_s=interval_s,
        on_checkpoint=lambda offsets: None if safe is None else safe.append(offsets),
        requested=RequestedCheckpoints(store.path),
    )  # fmt: skip
    return Pipeline(
        storage=storage, engine=engine, standing=standing, index=index, reuse=reuse or at_once(index),
        queue=queue or PreparedQueue(100), source=stub, link=stub, metrics=metrics, checkpoints=checkpoints,
        memory=MemoryGuard("off", metrics),
        background_audit=no_audit(graph, engine), epochs=EpochConfig(updates_max=10), health=Health(60),
        recording=Recording(OrderLog(store.path / "order"), threading.Event(), lambda: None), dead_letters={},
        stop=threading.Event(),
    )  # fmt: skip


def test_a_sync_that_fails_is_shown_in_mid_epoch_and_edges_are_not_answered_about(
    tmp_path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage is ahead then: nothing of that may be seen, and nobody waits for it."""
    shown = list[Any]()
    index = VertexIndex.create("int")
    index.insert(np.arange(40))
    n_edges, n_vertices = graph.n_edges, graph.n_vertices
    pipeline = make_pipeline(CheckpointStore(tmp_path), graph, index, surroundings(shown.append))
    pipeline.recording._order.open({})
    monkeypatch.setattr("graphtide.daemon.engine.recording.RETRY_S", 0.001)
    well = threading.Event()
    fdatasync = os.fdatasync

    def fails(handle: int) -> None:
        if not well.is_set():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fdatasync(handle)

    monkeypatch.setattr(order_log.os, "fdatasync", fails)
    pipeline.start(frozenset())
    nothing = np.empty(0, np.int64)
    batch = DenseBatch(EdgeBatch.of([38], [39], [Op.INSERT]))
    taken = Prepared([batch], 1, n_vertices + 40, {P: 7, Partition("t", 1): 7}, nothing, nothing, together=True)
    with ThreadPoolExecutor() as engine:
        epoch = engine.submit(pipeline._epoch, [taken])
        until(lambda: len(shown) > 1)
        assert "Input/output error" in shown[-1].stats["order"]["trouble"]
        assert shown[-1].epoch == (1, 0) and shown[-1].n_vertices == n_vertices
        assert shown[-1].stats["edges"] == n_edges and graph.n_edges == n_edges + 1
        for settled in (False, True):
            with (
                pytest.raises(Unavailable, match="Input/output error"),
                pipeline.gate.read(settled=settled, timeout_s=240),
            ):
                pass
        well.set()
        assert epoch.result()
    assert shown[-1].stats["order"]["trouble"] is None and shown[-1].stats["edges"] == n_edges + 1
    assert shown[-1].epoch == (1, 1) and len(shown) == 3 and pipeline.recording.trouble is None
    with pipeline.gate.read(settled=True, timeout_s=240):
        pass
    pipeline.recording._order.close()
    pipeline.engine.close()


def test_freshness_is_that_of_what_came_since_the_start(tmp_path: Path, graph: Graph) -> None:
    """What is replayed may have been shown before, and what came while nobody was there waited for the start."""
    index, metrics, queue = VertexIndex.create("int"), Metrics(), PreparedQueue(100)
    pipeline = make_pipeline(
        CheckpointStore(tmp_path), graph, index, surroundings(lambda _: None), queue=queue, metrics=metrics,
        interval_s=1e9,
    )  # fmt: skip
    pipeline.epochs = EpochConfig(updates_max=5)
    index.insert(np.arange(40))
    pipeline.health.recovery.read(left=0, item=2)
    for item in range(1, 4):
        times, updates = np.array([item], np.int64), np.array([5], np.int64)
        queue.put(Prepared([], 5, 40, {P: item}, times, updates, item=item))
    queue.close()
    pipeline.run()
    pipeline.engine.close()
    assert pipeline.position.number == 3 and pipeline.health.stage != "recovering"
    assert metrics.registry.get_sample_value("graphtide_freshness_seconds_count") == 5
    # Until when is covered, all of them tell.
    covered = metrics.registry.get_sample_value("graphtide_source_applied_up_to_timestamp_seconds")
    assert covered == 0.003


@pytest.mark.parametrize("error", [OSError(28, "no space"), MemoryError()])
def test_a_failed_checkpoint_is_tried_again_at_the_end(
    tmp_path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    store, safe, queue = CheckpointStore(tmp_path), list[dict[Partition, int]](), PreparedQueue(100)
    stub = surroundings(lambda _: None)
    index = VertexIndex.create("int")
    index.insert(np.arange(40))
    pipeline = make_pipeline(store, graph, index, stub, queue=queue, safe=safe)
    nothing = np.empty(0, np.int64)
    queue.put(Prepared([], 0, 40, {P: 7}, nothing, nothing))
    queue.close()

    def fail(*_: object) -> None:
        raise error

    pipeline.run()
    with monkeypatch.context() as patch:
        patch.setattr(*(store, "write") if isinstance(error, OSError) else (EdgeCopy, "copy_piece"), fail)
        with pytest.raises(
            NotWritten, match=r"the last checkpoint, of epoch \(1, 1\), is missing: checkpoint\.path"
        ):
            pipeline.close()
    assert store.newest_good() is None
    assert safe == []
    pipeline.close()
    pipeline.engine.close()
    newest = store.newest_good()
    store.close()
    assert newest is not None
    assert newest.epoch == (1, 1)
    assert safe == [{P: 7}]


def test_ids_are_held_while_a_checkpoint_is_written_but_not_by_a_program_that_stands_still(
    tmp_path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What either has of an epoch names vertices that may have died since; of the program's it is told which."""
    held: list[bool] = []
    gone: list[Any] = []
    stub = surroundings(
        lambda publication: gone.append(publication.programs["components"].gone),
        memory_bytes=lambda: 0,
        published=lambda item, change, alive, *, hold: held.append(hold),
    )
    index, store = VertexIndex.create("int"), CheckpointStore(tmp_path)
    index.insert(np.arange(40))
    program = registry.make_program("components", None, {}, index)
    pipeline = make_pipeline(store, graph, index, stub, programs=[program], reuse=stub)
    may_write = threading.Event()
    real_write = store.write

    def write(*arguments: Any) -> int:
        may_write.wait(60)
        return real_write(*arguments)

    def epoch(vertices: int | tuple[int, ...], ops: Op | tuple[Op, ...] = Op.INSERT) -> None:
        src, op = np.atleast_1d(vertices), np.atleast_1d(ops).astype(np.uint8)
        block = UpdateBlock(src, np.zeros_like(src), np.resize(op, src.size), None, 0)
        dense, nothing = dense_batch(block, index), np.empty(0, np.int64)
        pipeline._epoch([Prepared([dense], src.size, index.n_vertices, {}, nothing, nothing)])

    monkeypatch.setattr(store, "write", write)
    pipeline.start(frozenset())
    epoch(1)
    assert held == [False]
    pipeline.checkpoints.step()  # begins
    while not pipeline.checkpoints.writing:
        pipeline.checkpoints.step()
    epoch(2)
    assert held.pop()
    may_write.set()
    pipeline.close()
    epoch(3)
    for vertex in (30, 31):
        epoch(vertex, Op.DELETE_VERTEX)
    assert not held.pop() and gone[-1] is None
    monkeypatch.setattr(program, "refresh", full_disk)
    epoch((4, 31), (Op.DELETE_VERTEX, Op.INSERT_VERTEX))
    assert np.flatnonzero(gone[-1]).tolist() == [4, 30, 31], "it has not seen that 4 died and 31 came back"
    epoch(100)
    epoch(5, Op.DELETE_VERTEX)
    epoch((4, 30))
    assert np.flatnonzero(gone[-1]).tolist() == [4, 5, 30, 31] and gone[-1].size >= graph.n_vertices
    assert held[-4:] == [False] * 4
    pipeline.engine.close()
    store.close()


# -- what the pipeline counts ---------------------------------------------------------------------------------


def test_the_pipeline_counts_vertices_that_came_went_and_were_not_there(tmp_path: Path) -> None:
    published: list[Any] = []
    stub = surroundings(published.append)
    index, graph, metrics = VertexIndex.create("int"), Graph(), Metrics()
    store = CheckpointStore(tmp_path)
    pipeline = make_pipeline(store, graph, index, stub, metrics=metrics, interval_s=3600)
    records = (
        [(1, 2, 1), (3, 0, 2)],  # 1, 2 and 3 come
        [(4, 0, 2), (4, 0, 3), (1, 0, 3), (9, 0, 3)],  # 4 comes and goes, 1 goes, 9 never was
        [(1, 0, 3), (2, 0, 3), (2, 0, 3)],  # 1 is gone already, 2 goes, once
        [(2, 5, 1), (2, 0, 3), (2, 0, 2)],  # 2 is back, and 5 comes
        [(8, 0, 3)],
    )
    for record in records:
        src, dst, ops = (np.array(column) for column in zip(*record, strict=True))
        dense = dense_batch(UpdateBlock(src, dst, ops.astype(np.uint8), None, 0), index)
        pipeline._epoch(
            [Prepared([dense], dense.updates, index.n_vertices, {}, np.zeros(1, np.int64), np.array([3]))]
        )
    stats = published[-1].stats
    pipeline.engine.close()
    graph.close()
    store.close()
    assert (stats["vertices"], stats["dead_vertices"], stats["edges"], stats["updates_applied"]) == (3, 2, 0, 11)
    assert [epoch.alive_changed.tolist() for epoch in published] == [[], [0, 3], [1], [1], []]
    changes = {
        sample.labels["kind"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "graphtide_vertex_changes_total"
    }
    assert changes == {"inserted": 3 + 0 + 0 + 2, "deleted": 0 + 1 + 1, "absent": (1 + 1) + 1 + 0 + 1}


# -- dead letters ---------------------------------------------------------------------------------------------


def test_room_for_bad_records_is_made_by_sending_the_first_of_them(tmp_path: Path) -> None:
    sent: list[bytes] = []

    class Sending(KafkaDeadLetters):
        def _deliver(self, payloads: Sequence[bytes]) -> None:
            sent.extend(payloads)

    letters = Sending("localhost:1", "dead", tmp_path, bytes_max=1000)
    rest = [BadRecord(P, offset, bytes(600), "malformed", "") for offset in range(3)]

    def written() -> bool:
        nonlocal rest
        try:
            letters.write(rest)
        except DeadLettersFull as full:
            rest = rest[full.taken :]
            return False
        return True

    until(written)
    letters.close()
    assert len(sent) == 3


def test_a_segment_that_fills_while_it_is_looked_at_is_not_deleted_unsent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    looked, filled = threading.Event(), threading.Event()

    class Sending(KafkaDeadLetters):
        def _deliver(self, payloads: Sequence[bytes]) -> None:
            sent.extend(unpack_letter(payload).offset for payload in payloads)

    def letters_of(file: Path, offset: int, damaged: Callable[[], None]) -> Iterator[tuple[int, bytes]]:
        found = list(real_letters(file, offset, damaged))
        if offset and not found:
            looked.set()
            filled.wait(60)
        yield from found

    real_letters = dead_letters_kafka.letters
    monkeypatch.setattr(dead_letters_kafka, "letters", letters_of)
    letters = Sending("localhost:1", "dead", tmp_path, segment_bytes=700)
    letters.write([BadRecord(P, 0, b"short", "malformed", "")])
    assert looked.wait(60)
    letters.write([BadRecord(P, offset, bytes(600), "malformed", "") for offset in (1, 2)])
    filled.set()
    letters.close()
    assert sorted(sent) == [0, 1, 2]


# -- the service ----------------------------------------------------------------------------------------------


def test_a_signal_may_come_while_the_lock_of_stopping_is_held() -> None:
    lock, stopped = threading.Lock(), threading.Event()

    def stop() -> None:
        with lock:
            stopped.set()

    with handled_signals(stop, lambda: None):
        with lock:
            signal.raise_signal(signal.SIGTERM)
        assert stopped.wait(60)


def test_who_is_asked_to_stop_while_all_is_closed_does_not_begin_anew() -> None:
    stopped = threading.Event()
    for asked in (False, True):
        with (
            contextlib.nullcontext() if asked else pytest.raises(StartAgain),
            handled_signals(stopped.set, lambda: None),
        ):
            if asked:
                signal.raise_signal(signal.SIGTERM)
            raise StartAgain(None)
    assert stopped.wait(60)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored, for who begins anew


TWICE = """
import logging, os, signal, sys
from graphtide.daemon import logs
from graphtide.daemon.signals import handled_signals

logs.configure("info", sys.argv[1])
if sys.argv[2] == "nobody reads":
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, b"x")
    except BlockingIOError:
        os.set_blocking(2, True)
with handled_signals(lambda: None, lambda: None):
    logging.getLogger().handlers[0].acquire()  # as of the thread that the signal interrupts
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.parametrize("reader", ["read", "nobody reads"])
def test_a_second_signal_ends_the_process_at_once_and_says_so(reader: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", TWICE, "json", reader], stderr=subprocess.PIPE)
    assert process.stderr is not None
    if reader == "nobody reads":
        assert process.wait(PATIENCE_S) == 128 + signal.SIGINT
        process.stderr.close()
        return
    (line,) = process.communicate(timeout=PATIENCE_S)[1].splitlines()
    assert process.returncode == 128 + signal.SIGINT
    told = json.loads(line)
    assert told["level"] == "warning" and told["message"].startswith("ended at once, by a second signal (SIGINT)")


@pytest.mark.parametrize("when", ["reading", "loading"])
def test_a_start_that_is_stopped_reads_and_loads_no_further(tmp_path: Path, graph: Graph, when: str) -> None:
    """A large checkpoint takes minutes, which nobody who stops a daemon has."""
    index, store = VertexIndex.create("int"), CheckpointStore(tmp_path)
    index.insert(np.arange(40))
    pipeline = make_pipeline(store, graph, index, surroundings(lambda _: None))
    pipeline.position.number = 1
    pipeline.close()
    pipeline.engine.close()
    service: Any = Service(Config(), ExitStack())
    service.store, service.incarnation = store, store.next_incarnation()
    beginning = Beginning(Config(), store, cast(Any, None), service.health, service._stop)
    checkpoint = store.newest_good()
    assert checkpoint is not None and not checkpoint.is_empty
    service.card = None
    service._stop.set()
    with service._stack, pytest.raises(Stopped):
        beginning.restorable(service.within_budget) if when == "reading" else service._hold(checkpoint)
    store.close()


@pytest.mark.parametrize("when", ["before", "meanwhile", "at the end"])
def test_a_start_that_is_stopped_computes_no_further(when: str) -> None:
    """Programs of a large graph take minutes, and no checkpoint has what a start computed of them."""
    service: Any = Service(Config(), ExitStack())
    service._contents, begun = SimpleNamespace(restored=frozenset()), list[frozenset[str]]()
    with closing(Graph(threads=1)) as service.graph:

        def start(restored: frozenset[str]) -> None:
            begun.append(restored)
            service.stop()
            if when == "meanwhile":
                service.graph.team.require_wanted()

        service.pipeline = SimpleNamespace(start=start)
        if when == "before":
            service.stop()
        with service._stack, pytest.raises(Stopped):
            service._compute_programs()
        assert len(begun) == (when != "before")


def test_a_daemon_that_runs_breaks_nothing_off_when_it_is_stopped() -> None:
    """What it computes then is an epoch, which is published."""
    service: Any = Service(Config(), ExitStack())
    service._contents = SimpleNamespace(restored=frozenset())
    service.pipeline = SimpleNamespace(start=lambda restored: None)
    with closing(Graph(threads=1)) as service.graph, service._stack:
        service._compute_programs()
        service.stop()
        service.graph.team.require_wanted()


def test_no_thread_keeps_the_interpreter_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise Stopped

    monkeypatch.setattr(service, "Service", stopped)
    config: Any = SimpleNamespace(device=SimpleNamespace(enabled="auto"))
    before = sys.getswitchinterval()
    template: Any = None
    try:
        with pytest.raises(Stopped):
            service.serve(config, template, progress=False)
        assert service.SWITCH_SECONDS < 0.005 and sys.getswitchinterval() == pytest.approx(service.SWITCH_SECONDS)
    finally:
        sys.setswitchinterval(before)


def test_a_loop_that_is_stuck_is_seen_and_one_that_goes_round_again_as_well(tmp_path: Path, graph: Graph) -> None:
    stuck, released = threading.Event(), threading.Event()

    def let_go(*_: object, **__: object) -> None:
        stuck.set()
        released.wait(60)

    stub: Any = SimpleNamespace(
        lag=lambda: SimpleNamespace(amount={}, seconds=0.0),
        waiting=None,
        unit="records",
        let_go=let_go,
        publish=lambda _: None,
    )
    store, queue = CheckpointStore(tmp_path), PreparedQueue(1)
    pipeline = make_pipeline(
        store, graph, VertexIndex.create("int"), stub, queue=queue, reuse=stub, interval_s=3600
    )
    pipeline.health = Health(0.2)
    engine = threading.Thread(target=pipeline.run)
    engine.start()
    assert stuck.wait(60)
    until(lambda: not pipeline.health.live().good)
    released.set()
    until(lambda: pipeline.health.live().good)
    queue.close()
    engine.join()
    pipeline.engine.close()
    store.close()


@pytest.mark.parametrize("ends", ["when-there-is-room", "when-stopped"])
def test_nothing_is_read_before_the_first_checkpoint_found_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    config, health, stop = Config(), Health(60), threading.Event()
    metrics = Metrics()
    ingest: Any = SimpleNamespace(withheld=None)
    done: list[Any] = []
    waiting: list[str | None] = []

    def write_beginning(offsets: dict[Partition, int]) -> None:
        waiting.append(ingest.withheld)
        if len(waiting) <= 3:
            full_disk()
        if ends == "when-stopped":
            stop.set()
            full_disk()
        done.append(offsets)

    source: Any = SimpleNamespace(
        identity=lambda: {"kind": "t"}, open=lambda *_: None, backlog=lambda: 5, position=lambda: {P: 7}
    )
    checkpoints: Any = SimpleNamespace(begin_anew=lambda: None, write_beginning=write_beginning)
    beginning = Beginning(config, cast(Any, None), source, health, stop)
    monkeypatch.setattr("graphtide.daemon.beginning.RETRY_S", 0.01)
    with pytest.raises(Stopped) if ends == "when-stopped" else contextlib.nullcontext():
        beginning.open(checkpoints, ingest, metrics)
    assert done == ([{P: 7}] if ends == "when-there-is-room" else [])
    said = "the first checkpoint cannot be written to 'checkpoints': no space"
    assert [said in record.getMessage() and record.exc_info is None for record in caplog.records] == [True]
    # Meanwhile ``stats`` and metrics say why nothing is read, as they do of a source that is away.
    assert waiting == [None, said, said, said]
    assert (ingest.withheld is None) == (ends == "when-there-is-room")
    failed = metrics.registry.get_sample_value("graphtide_checkpoint_failures_total", {"reason": "OSError"})
    assert failed == len(waiting) - (ends == "when-there-is-room")
    assert health.recovery.stats() == {"total": 5, "left": 5}


def test_a_thread_without_memory_is_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    config = least_config()
    service: Any = Service(config, ExitStack())
    service.health = Health(60)

    def work() -> None:
        np.empty(1 << 60, np.uint8)

    service._start("ingest", work)
    service._threads[0].join()
    assert isinstance(service._failure, MemoryError) and not caplog.records
    assert not service.health.live().good


@pytest.mark.parametrize("engine_fails", [True, False])
def test_an_engine_that_failed_leaves_no_checkpoint_whoever_failed_first(engine_fails: bool) -> None:
    closed: list[bool] = []
    config = least_config()
    service: Any = Service(config, ExitStack())
    service.ingest = SimpleNamespace(stop=threading.Event(), commit_pending=lambda: None)
    service.queue, service.health = PreparedQueue(1), Health(60)
    service.pipeline = SimpleNamespace(close=lambda: closed.append(True), between=BetweenEpochs(lambda: None))
    service._identity, service.results = {"source": {}}, None

    def fails(error: Exception) -> Callable[[], None]:
        def work() -> None:
            raise error

        return work

    service._start("ingest", fails(SourceError("truncated")))
    service._threads[0].join()
    service._start("engine", fails(MemoryError()) if engine_fails else lambda: None)
    service._threads[1].join()
    with pytest.raises(SourceError):
        service.shutdown()
    assert closed == ([] if engine_fails else [True])


def test_a_source_that_stays_away_is_said_once_for_each_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([*["no topic t"] * 5, *["no answer"] * 3, *["no topic t"] * 2, {"kind": "kafka"}])

    def identity() -> dict[str, str]:
        answer = next(answers)
        if isinstance(answer, str):
            raise SourceUnavailable(answer)
        return answer

    waiting: Any = SimpleNamespace(
        _stop=SimpleNamespace(is_set=lambda: False, wait=lambda seconds: None),
        _source=SimpleNamespace(identity=identity),
    )
    monkeypatch.setattr("graphtide.daemon.beginning.TELL_EVERY_SECONDS", 3600.0)
    shown = list[str | None]()
    assert Beginning._source_identity(waiting, shown.append) == {"kind": "kafka"}
    assert shown == [*["no topic t"] * 5, *["no answer"] * 3, *["no topic t"] * 2, None]
    said = [record.message for record in caplog.records]
    assert said == [f"{reason}; trying again" for reason in ("no topic t", "no answer", "no topic t")]
