"""The queue's bounds, the gate's turns, dense ids, and that chunking never shows in the graph."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import NaiveGraph
from sampling import examples
from waiting import until

from graphtide.daemon import long_waits
from graphtide.daemon.engine.storage import StorageGate
from graphtide.daemon.errors import IdSpaceFull
from graphtide.daemon.ingest import dense
from graphtide.daemon.ingest import prepared as prepared_module
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.dense import DenseBatch, dense_batch, dense_batches
from graphtide.daemon.ingest.loop import ROOM_PATIENCE_S, Ingest, counted
from graphtide.daemon.ingest.prepared import PAUSE_MAX_S, Prepared, PreparedQueue, one_batch
from graphtide.daemon.ingest.reuse import IdReuse
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.stream import (
    Lag,
    Partition,
    RawRecord,
    UpdateBlock,
    offsets_from_wire,
    offsets_to_wire,
)
from graphtide.gpma.edges import EdgeBatch, Op, destinations, sources
from graphtide.gpma.index.id_table import Allocate
from graphtide.gpma.index.ids import StringColumn, equal_ids
from graphtide.gpma.index.vertex_index import VertexIndex, in_memory
from graphtide.partition.graph import Graph


def prepared(updates: int, offset: int = 0) -> Prepared:
    keys = np.arange(updates, dtype=np.uint64)
    return Prepared(
        batches=[DenseBatch(EdgeBatch(keys, np.ones(updates, np.uint8)))],
        updates=updates,
        n_vertices=updates,
        offsets={Partition("t", 0): offset},
        record_times_ms=np.zeros(1, np.int64),
        record_updates=np.array([updates]),
    )


@pytest.mark.parametrize("kinds", [1, 2, 4])
def test_updates_are_counted_by_what_they_do(kinds: int) -> None:
    rng = np.random.default_rng(kinds)
    columns = [rng.integers(0, kinds, n).astype(np.uint8) for n in (0, 1, 100, 1000)]
    counts = counted([*columns, np.ones(7, np.uint8)])
    expected = Counter(np.concatenate(columns).tolist()) + Counter({1: 7})
    assert [counts[op] for op in Op] == [expected[op] for op in Op]


def block(updates: list[tuple[int, int, int, float]]) -> UpdateBlock:
    src, dst, ops, weights = (list(column) for column in zip(*updates, strict=True)) if updates else ([],) * 4
    return UpdateBlock(
        np.array(src, np.int64), np.array(dst, np.int64), np.array(ops, np.uint8), np.array(weights, np.float32), 0
    )


class TestQueue:
    def test_takes_whole_items_up_to_the_bound(self) -> None:
        queue = PreparedQueue(100)
        for size in (3, 4, 5):
            queue.put(prepared(size))
        assert [item.updates for item in queue.take(7, 0)] == [3, 4]
        assert queue.updates == 5
        assert [item.updates for item in queue.take(1, 0)] == [5], "one item is always given"
        assert queue.take(1, 0) == []

    def test_holds_the_producer_back_and_lets_it_go_on(self) -> None:
        queue = PreparedQueue(10)
        queue.put(prepared(8))
        waiting = threading.Thread(target=queue.put, args=(prepared(5),))
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive(), "8 + 5 is past the bound of 10"
        queue.take(100, 0)
        waiting.join(60)
        assert not waiting.is_alive()
        assert queue.updates == 5

    def test_lets_one_large_item_in_alone(self) -> None:
        queue = PreparedQueue(10)
        assert queue.put(prepared(50))

    def test_closing_wakes_everybody_and_keeps_what_waits(self) -> None:
        queue = PreparedQueue(10)
        queue.put(prepared(9))
        answers: list[bool] = []
        waiting = threading.Thread(target=lambda: answers.append(queue.put(prepared(9))))
        waiting.start()
        queue.close()
        waiting.join(60)
        assert answers == [False]
        assert not queue.closed
        assert len(queue.take(100, 0)) == 1
        assert queue.closed

    def test_pauses_for_a_sixteenth_of_a_long_epoch_while_items_wait(self) -> None:
        now = 0.0
        queue = PreparedQueue(100, clock=lambda: now)
        waited: list[float | None] = []

        def wait_for(predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
            nonlocal now
            waited.append(timeout_s)
            now += timeout_s or 0.0
            return predicate()

        def takes_after(seconds: float) -> None:
            nonlocal now
            queue.put(prepared(1))
            now += seconds
            queue.take(100, 0)
            waited.clear()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queue._changed, "wait_for", wait_for)
            takes_after(1.0)
            takes_after(0.08)
            assert queue.pause() == 0.0 and not waited, "nothing waits: the engine may take what comes at once"
            queue.put(prepared(1))
            assert queue.pause() == pytest.approx(0.005)
            assert waited == [pytest.approx(0.005)]
            takes_after(2.0)
            queue.put(prepared(1))
            assert queue.pause() == pytest.approx(PAUSE_MAX_S)
            takes_after(0.001)
            queue.put(prepared(1))
            assert queue.pause() == 0.0 and not waited, "such an epoch is over before anything else comes"
            takes_after(2.0)
            queue.put(prepared(1))
            queue.close()
            assert queue.pause() == 0.0 and not waited

    def test_a_pause_ends_when_the_engine_takes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(prepared_module, "PAUSE_MAX_S", 3600.0)
        now = 0.0
        queue = PreparedQueue(100, clock=lambda: now)
        for seconds in (1e5, 1e5):
            now += seconds
            queue.put(prepared(1))
            queue.take(100, 0)
        queue.put(prepared(1))
        pausing = threading.Thread(target=queue.pause)
        pausing.start()
        pausing.join(0.05)
        assert pausing.is_alive()
        now += 1.0
        queue.take(100, 0)
        pausing.join(60)
        assert not pausing.is_alive()

    def test_lingers_for_more(self) -> None:
        queue = PreparedQueue(100)
        queue.put(prepared(1))
        later = threading.Timer(0.02, queue.put, [prepared(2)])
        later.start()
        assert [item.updates for item in queue.take(3, 1, linger_s=30)] == [1, 2]

    def test_does_not_linger_for_what_has_no_room(self) -> None:
        queue = PreparedQueue(10)
        queue.put(prepared(8))
        producer = threading.Thread(target=queue.put, args=(prepared(5),), daemon=True)
        consumer = threading.Thread(target=queue.take, args=(10, 1, 60), daemon=True)
        for thread in (consumer, producer):
            thread.start()
        for thread in (consumer, producer):
            thread.join(60)
            assert not thread.is_alive(), "8 + 5 is past the bound: nothing more could come"
        assert queue.updates == 5


class TestGate:
    def test_settled_readers_wait_for_publication_and_then_go_first(self) -> None:
        gate = StorageGate()
        order: list[str] = []
        with gate.apply():
            pass

        def reader() -> None:
            with gate.read(settled=True, timeout_s=60):
                order.append("read")

        reading = threading.Thread(target=reader)
        reading.start()
        with gate.read(settled=False, timeout_s=60):
            pass
        until(lambda: gate._waiting_for_settled)
        assert order == []
        gate.settle()
        with gate.apply():
            order.append("apply")
        reading.join(60)
        assert order == ["read", "apply"]

    @pytest.mark.parametrize("settled", [True, False])
    def test_readers_are_let_in_until_a_change_is_written(self, settled: bool) -> None:
        gate = StorageGate()
        with gate.change() as begin_writing:
            with gate.read(settled=settled, timeout_s=0):
                pass
            begin_writing()
            begin_writing()
            with pytest.raises(TimeoutError), gate.read(settled=settled, timeout_s=0.01):
                pass
        with gate.read(settled=False, timeout_s=0):
            pass

    def test_what_is_not_written_leaves_results_and_storage_of_one_epoch(self) -> None:
        gate = StorageGate()
        with pytest.raises(MemoryError), gate.change():
            raise MemoryError
        with gate.read(settled=True, timeout_s=0):
            pass

    def test_gives_up_in_time_and_blocks_nobody_after(self) -> None:
        gate = StorageGate()
        with gate.apply(), pytest.raises(TimeoutError), gate.read(settled=False, timeout_s=0.01):
            pass
        with pytest.raises(TimeoutError), gate.read(settled=True, timeout_s=0.01):
            pass
        with gate.apply():
            pass


class TestDenseBatch:
    def test_deletes_make_no_vertices(self) -> None:
        index = VertexIndex.create("int")
        found = dense_batch(block([(5, 6, 0, 1), (1, 2, 1, 3), (2, 1, 0, 1), (1, 9, 0, 1)]), index)
        batch = found.edges
        assert (found.unknown, found.vertices, found.updates) == (2, None, 4)
        assert index.n_vertices == 2
        assert sources(batch.keys).tolist() == [0, 1]
        assert destinations(batch.keys).tolist() == [1, 0]
        assert batch.ops.tolist() == [1, 0]

    @pytest.mark.parametrize("kind", ["int", "string"])
    def test_operations_on_vertices_stand_among_the_edges(self, kind: Literal["int", "string"]) -> None:
        index = VertexIndex.create(kind)
        rows = [(7, 0, 2, 1), (5, 6, 1, 2), (9, 0, 3, 1), (8, 0, 2, 1), (5, 4, 0, 1), (6, 0, 3, 1), (0, 5, 1, 1)]
        made = block(rows)
        if kind == "string":
            src = StringColumn.of(map(str, made.src))  # type: ignore[call-overload]
            dst = StringColumn.of(str(v) if op < 2 else "" for _, v, op, _ in rows)
            made = replace(made, src=src, dst=dst)
        found = dense_batch(made, index)
        ids = index.external(np.arange(index.n_vertices, dtype=np.uint32))
        assert (ids.to_list() if isinstance(ids, StringColumn) else ids.tolist()) == (
            [7, 5, 6, 8, 0] if kind == "int" else ["7", "5", "6", "8", "0"]
        ), "in order of first appearance; what is only deleted, or no dst, is no vertex"
        assert (found.unknown, found.unknown_vertices, found.updates) == (1, 1, 7)
        assert sources(found.edges.keys).tolist() == [1, 4]
        assert destinations(found.edges.keys).tolist() == [2, 1]
        assert found.edges.weights is not None
        assert found.edges.weights.tolist() == [2, 1]
        assert found.vertices is not None
        assert found.vertices.vertices.tolist() == [0, 3, 2]
        assert found.vertices.ops.tolist() == [2, 2, 3]
        assert found.vertices.positions.tolist() == [0, 1, 1]

    @pytest.mark.parametrize("kind", ["int", "string"])
    def test_blocks_together_are_the_blocks_one_by_one(
        self, kind: Literal["int", "string"], seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """But for deletions, ahead of the insert that makes their vertices, which find nothing then."""
        monkeypatch.setattr(dense, "TOGETHER_MAX", 40)
        rng = np.random.default_rng(seed)
        one, other = VertexIndex.create(kind), VertexIndex.create(kind)
        for _ in range(20):
            blocks = []
            for _ in range(int(rng.integers(0, 9))):
                size, most = int(rng.integers(0, 20)), 3 if rng.random() < 0.2 else 1
                rows = np.stack([*rng.integers(0, 90, (2, size)), rng.integers(0, most + 1, size)], axis=1)
                made = block([(*row, float(rng.integers(1, 9))) for row in rows.tolist()])
                if kind == "string":
                    made = replace(
                        made, src=StringColumn.of(map(str, made.src)), dst=StringColumn.of(map(str, made.dst))
                    )  # type: ignore[call-overload]
                blocks.append(made)
            together, apart = dense_batches(blocks, other), [dense_batch(some, one) for some in blocks]
            assert one.n_vertices == other.n_vertices
            ids = np.arange(one.n_vertices, dtype=np.uint32)
            assert equal_ids(one.external(ids), other.external(ids)).all()
            for found, wanted in zip(together, apart, strict=True):
                assert found.updates == wanted.updates
                assert found.unknown <= wanted.unknown
                rows = [
                    list(zip(batch.edges.keys, batch.edges.ops, batch.edges.weights, strict=True))
                    for batch in (found, wanted)
                ]
                extra = Counter(rows[0])
                extra.subtract(rows[1])
                assert min(extra.values(), default=0) >= 0
                assert all(op == Op.DELETE for (_, op, _), n in extra.items() if n)
                assert (found.vertices is None) == (wanted.vertices is None)
                if found.vertices is not None and wanted.vertices is not None:
                    assert np.array_equal(found.vertices.vertices, wanted.vertices.vertices)

    def test_a_full_id_space_is_a_clear_stop(self) -> None:
        index = VertexIndex.create("int", vertices_max=3)
        with pytest.raises(IdSpaceFull):
            dense_batch(block([(1, 2, 1, 1), (3, 4, 1, 1)]), index)


PARTITION = Partition("t", 0)
Record = tuple[range, range]
"""Vertices that it makes, and vertices that it deletes."""


class Script:
    """A source of one poll, and what the rest of the daemon does whenever ingest waits for a moment."""

    away: str | None = None

    def __init__(
        self,
        records: list[Record],
        vertices_max: int,
        encoding: Literal["msgpack", "json"] = "msgpack",
        allocate: Allocate = in_memory,
    ) -> None:
        self.records = records
        self.encoding = encoding
        self.offset = 0
        self.committed: list[int] = []
        self.applied: list[int] = []
        self.turns = 0
        self.hold = self.requests_last = False
        self.now = 0.0
        self.index = VertexIndex.create("int", allocate, vertices_max)
        self.graph = Graph(weighted=False)
        self.reuse = IdReuse(self.index, lambda: lambda: not self.requests_last)
        self.ingest = Ingest(
            source=self,  # type: ignore[arg-type]
            decoder=Decoder(vertex_ids="int"),
            index=self.index,
            reuse=self.reuse,
            dead_letters=None,  # type: ignore[arg-type]
            queue=PreparedQueue(10**6),
            report=lambda report: None,
            poll_bytes_max=10**6,
            stop=_Moments(self.moment),
            clock=lambda: self.now,
        )

    # the source

    def poll(self, bytes_max: int, timeout_s: float) -> list[RawRecord]:
        begin, self.offset = self.offset, len(self.records)
        if begin == self.offset:
            self.ingest.stop.set()
        return [
            RawRecord(PARTITION, number, number + 1, self.encoded(*self.records[number]), self.encoding, 0)
            for number in range(begin, self.offset)
        ]

    def encoded(self, made: range, gone: range) -> bytes:
        if self.encoding == "msgpack":
            return encoded(made, gone)
        ops = [*((id, "insert_vertex") for id in made), *((id, "delete_vertex") for id in gone)]
        rows = [{"src": id, "op": op} for id, op in ops]
        return json.dumps({"v": 1, "edges": rows} if len(rows) > 1 else rows[0]).encode()

    def position(self) -> dict[Partition, int]:
        return {PARTITION: self.offset}

    def backlog(self) -> int | None:
        return None

    def partition_count(self, name: str) -> int:
        return 1

    def refresh_lag(self) -> None: ...

    def lag(self) -> Lag:
        return Lag({PARTITION: 5}, 0.0)

    def checkpointed(self, offsets: dict[Partition, int]) -> None:
        self.committed.append(offsets[PARTITION])

    # the engine

    def moment(self) -> None:
        self.turns += 1
        self.now += 1.0
        for item in self.ingest.queue.take(1, 0):
            edges, vertex_ops = one_batch([item], weighted=False)
            change = self.graph.apply(edges, item.n_vertices, vertex_ops)
            self.reuse.published(item.item, change, self.graph.alive, hold=self.hold)
            self.applied.append(item.offsets[PARTITION])
            self.ingest.commit_soon(item.offsets)
            alive = set(alive_after(self.records[: self.applied[-1]]))
            assert self.alive() == alive, "an item holds the records up to its offsets, whole"
        self.reuse.let_go(self.graph.alive, hold=self.hold)

    def alive(self) -> set[int]:
        ids = self.index.external(np.flatnonzero(self.graph.alive).astype(np.uint32))
        assert isinstance(ids, np.ndarray)
        return set(ids.tolist())

    def run(self) -> None:
        try:
            self.ingest.run()
            while self.ingest.queue.updates:
                self.moment()
        finally:
            self.graph.close()


class _Moments(threading.Event):
    """Waiting for it is a moment in which others do something."""

    def __init__(self, moment: Callable[[], None]) -> None:
        super().__init__()
        self._moment = moment

    def wait(self, timeout: float | None = None) -> bool:
        self._moment()
        return self.is_set()


def encoded(made: range, gone: range) -> bytes:
    ops = np.repeat(np.array([Op.INSERT_VERTEX, Op.DELETE_VERTEX], np.uint8), [len(made), len(gone)])
    return encode_msgpack(np.array([*made, *gone], np.int64), np.zeros(ops.size, np.int64), ops)


def alive_after(records: list[Record]) -> list[int]:
    alive: dict[int, None] = {}
    for made, gone in records:
        alive |= dict.fromkeys(made)
        alive = {id: None for id in alive if id not in gone}
    return list(alive)


def churn(records: int, size: int, kept: int) -> list[Record]:
    """Each record makes so many vertices and deletes those of ``kept`` records before."""
    starts = [number * size for number in range(records)]
    return [(range(s, s + size), range(max(s - kept * size, 0), max(s - (kept - 1) * size, 0))) for s in starts]


@pytest.mark.parametrize(("left", "recovered", "pauses"), [(0, True, 1), (5, True, 0), (0, False, 0)])
def test_reading_pauses_where_all_that_came_is_read(
    left: int, recovered: bool, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while we are behind: nothing is to be brought together there."""
    script = Script(churn(3, 4, 1), vertices_max=1000)
    script.ingest.recovery.over = recovered
    paused: list[int] = []
    monkeypatch.setattr(script, "lag", lambda: Lag({PARTITION: left}, 0.0))
    monkeypatch.setattr(script.ingest.queue, "pause", lambda: paused.append(script.ingest.queue.updates))
    script.run()
    assert len(paused) == pauses and all(paused), "what was read waits for the engine by then"


class TestFullIdSpace:
    def test_the_ids_of_deleted_vertices_are_waited_for(self) -> None:
        """Most of those are deleted by records of the same poll, which must be applied first."""
        script = Script(churn(50, 4, 2), vertices_max=20)
        script.run()
        assert script.applied[-1] == 50 and script.alive() == set(range(192, 200))
        assert script.graph.n_vertices <= 20
        assert len(script.applied) < 40, "many records fit at once"
        told = len(script.committed)
        assert told > 5 and script.committed == script.applied[:told], "what is safe is told while it waits"

    def test_so_they_are_between_records_of_an_edge_each(self) -> None:
        """Which share a block only where that makes no difference."""
        records = [
            one
            for made, gone in churn(20, 1, 2)
            for one in ((made, range(0)), (range(0), gone))
            if any(map(len, one))
        ]
        script = Script(records, vertices_max=4, encoding="json")
        script.run()
        assert script.applied[-1] == len(records) and script.alive() == {18, 19}
        assert script.graph.n_vertices <= 4
        script = Script(records, vertices_max=10_000, encoding="json")
        script.run()
        assert script.applied == [len(records)] and script.alive() == {18, 19}

    def test_so_they_are_behind_a_record_that_takes_nearly_all(self) -> None:
        """What is read together deletes some of its vertices before it makes as many."""
        ones = [range(id, id + 1) for id in range(35)]
        records = [
            (range(28), range(0)),
            *((range(0), one) for one in ones[:7]),
            *((one, range(0)) for one in ones[28:]),
        ]
        script = Script(records, vertices_max=30, encoding="json")
        script.run()
        assert script.applied[-1] == len(records) and script.alive() == set(range(7, 35))

    def test_so_are_those_that_a_checkpoint_holds(self) -> None:
        script = Script(churn(3, 4, 1), vertices_max=8)
        script.hold = True
        moment = script.moment

        def until_written() -> None:
            script.hold = script.turns < 30
            moment()

        script.ingest.stop = _Moments(until_written)
        script.run()
        assert script.turns > 30
        assert script.applied == [2, 3]

    def test_where_none_comes_back_it_is_a_clear_stop(self) -> None:
        script = Script([(range(6), range(0)), (range(6, 12), range(0))], vertices_max=10)
        with pytest.raises(IdSpaceFull, match="6 new vertices beside 6 would pass the 10"):
            script.run()
        assert script.applied == [1], "what stands before it is applied"
        assert script.turns == 1

    def test_a_record_of_more_vertices_than_there_ever_are_is_one_too(self) -> None:
        script = Script([(range(6), range(6)), (range(6, 17), range(0))], vertices_max=10)
        with pytest.raises(IdSpaceFull, match="11 new vertices beside 0"):
            script.run()

    def test_what_never_comes_back_is_not_waited_for_for_ever(self) -> None:
        script = Script(churn(3, 4, 1), vertices_max=8)
        script.requests_last = True
        with pytest.raises(IdSpaceFull):
            script.run()
        assert ROOM_PATIENCE_S <= script.now <= ROOM_PATIENCE_S + 5

    def test_a_stop_ends_the_wait_and_passes_no_record(self) -> None:
        script = Script(churn(3, 4, 1), vertices_max=8)
        script.requests_last = True
        moment = script.moment

        def stopped_after_ten() -> None:
            moment()
            if script.turns == 10:
                script.ingest.stop.set()

        script.ingest.stop = _Moments(stopped_after_ten)
        script.run()
        assert script.turns == 10
        assert script.applied == [2]
        assert script.ingest.queue.updates == 0


class Scarce:
    """Memory for so many arrays more; None: for all."""

    def __init__(self) -> None:
        self.granted: int | None = None
        self.refused = 0

    def allocate(self, name: str, size: int, dtype: Any) -> np.ndarray[Any, Any]:
        if self.granted == 0:
            self.refused += 1
            raise MemoryError(f"none is left for {name}")
        if self.granted is not None:
            self.granted -= 1
        return in_memory(name, size, dtype)


def test_records_that_find_no_memory_to_be_decoded_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    script, told, waits = Script([(range(1000), range(0))], 10**6), list[str](), list[str | None]()
    script.ingest.memory_refused = told.append
    script.ingest.memory_granted = lambda: told.append("")
    decode_all, moment = script.ingest.decoder.decode_all, script.moment

    def scarce(records: Any) -> Any:
        if len(told) < 3:
            raise MemoryError("none is left for bad rows")
        return decode_all(records)

    def meanwhile() -> None:
        if told and told[-1]:
            waits.append(script.ingest.waiting)
        moment()

    monkeypatch.setattr(script.ingest.decoder, "decode_all", scarce)
    script.ingest.stop = _Moments(meanwhile)
    script.run()
    assert told == ["decoding: none is left for bad rows"] * 3 + [""]
    assert "decoding: none is left for bad rows" in waits and script.ingest.waiting is None
    assert script.index.n_vertices == 1000


@pytest.mark.parametrize("vertices_max", [10**6, 4000], ids=["together", "each alone"])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_ids_that_find_no_memory_wait_for_it_and_whoever_looks_is_told(granted: int, vertices_max: int) -> None:
    """It runs out at the first, second or third array of the index: some ids have got their vertices by then."""
    scarce, told, waits = Scarce(), list[str](), list[str | None]()
    # The ids of the vertices before are given out again; where ids are few, each record goes by itself.
    records = [(range(1000 * i, 1000 * i + 1000), range(1000 * i - 2000, 1000 * i - 1000)) for i in range(6)]
    script = Script(records, vertices_max, allocate=scarce.allocate)
    script.ingest.memory_refused = told.append
    script.ingest.memory_granted = lambda: told.append("")
    moment, n_before = script.moment, script.index.n_vertices
    scarce.granted = granted

    def meanwhile() -> None:
        if scarce.refused:
            waits.append(script.ingest.waiting)
            if script.ingest.waiting is not None:
                assert script.ingest.lag().amount[PARTITION] == 5 + len(records), "nothing of the step was queued"
                assert script.ingest.queue.updates == 0
        if scarce.refused == 4:
            scarce.granted = None
        moment()

    script.ingest.stop = _Moments(meanwhile)
    script.run()
    assert n_before == 0 and scarce.refused == 4
    assert told == [*told[:4], ""] and all("vertex index: none is left for" in line for line in told[:4])
    assert waits[:4] == told[:4] and set(waits[4:]) <= {None}
    assert script.ingest.waiting is None
    assert script.applied[-1] == len(records)
    assert script.alive() == set(alive_after(records))


def test_a_stop_ends_the_wait_for_memory_of_the_index() -> None:
    scarce = Scarce()
    script = Script([(range(5000), range(0))], 10**6, allocate=scarce.allocate)
    scarce.granted = 0

    def stopped() -> None:
        script.ingest.stop.set()

    script.ingest.stop = _Moments(stopped)
    script.run()
    assert (scarce.refused, script.applied, script.ingest.queue.updates) == (1, [], 0)


def test_offsets_survive_the_wire() -> None:
    offsets = {Partition("t", 0): 5, Partition("t", 12): 7, Partition("file.msgpack"): 99}
    assert offsets_from_wire(offsets_to_wire(offsets)) == offsets
    assert offsets_from_wire({"t": {"0": 5}}) == {Partition("t", 0): 5}
    assert offsets_from_wire({"t": {"0": 5.0}, "f.el": "9"}) == {Partition("t", 0): 5, Partition("f.el"): 9}
    with pytest.raises(ValueError, match="negative"):
        offsets_from_wire({"t": {"0": -1}})
    for odd in (1.5, True, None, math.nan, math.inf, "", "-", " 1", "1_0", "\u0663", b"1"):
        for wire in ({"t": {"0": odd}}, {"f.el": odd}, {"t": {odd: 0}}):
            with pytest.raises(ValueError, match="no whole number"):
                offsets_from_wire(wire)


update = st.tuples(
    st.integers(-3, 6), st.integers(-3, 6), st.sampled_from([0, 1, 1, 1, 2, 3]), st.sampled_from([1.0, 2.5])
).map(lambda row: row if row[2] < 2 else (row[0], 0, *row[2:]))


@settings(deadline=None, max_examples=examples(60))
@given(
    records=st.lists(st.lists(update, max_size=8), max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=6),
    directed=st.booleans(),
)
def test_chunking_never_shows_in_the_graph(
    records: list[list[tuple[int, int, int, float]]], cuts: list[int], directed: bool
) -> None:
    def edges(bounds: list[int]) -> tuple[list[int], list[int], dict[tuple[int, int], float]]:
        index = VertexIndex.create("int")
        graph = Graph(directed=directed)
        for start, stop in itertools.pairwise(bounds):
            items = []
            for record in records[start:stop]:
                batch = dense_batch(block(record), index)
                assert batch.updates == len(record)
                items.append(prepared(0))
                items.append(
                    Prepared([batch], batch.updates, index.n_vertices, {}, np.empty(0), np.empty(0))  # type: ignore[arg-type]
                )
            edges, vertex_ops = one_batch(items, weighted=True)
            graph.apply(edges, index.n_vertices, vertex_ops)
            assert graph.check() == []
        found, alive = graph.export(), graph.alive.copy()
        src, dst = index.external(sources(found.keys)), index.external(destinations(found.keys))
        graph.close()
        assert isinstance(src, np.ndarray)
        assert isinstance(dst, np.ndarray)
        assert found.weights is not None
        pairs = zip(src.tolist(), dst.tolist(), strict=True)
        vertices = index.external(np.arange(index.n_vertices, dtype=np.uint32))
        assert isinstance(vertices, np.ndarray)
        return vertices.tolist(), vertices[alive].tolist(), dict(zip(pairs, found.weights.tolist(), strict=True))

    whole = edges([0, len(records)])
    pieces = sorted({0, len(records), *(min(cut, len(records)) for cut in cuts)})
    assert edges(pieces) == whole
    model = NaiveGraph(directed)
    for src, dst, op, weight in itertools.chain.from_iterable(records):
        model.apply([src], [dst], [op], [weight])
    assert set(whole[1]) == model.alive
    if directed:
        assert whole[2] == model.contents()


def test_what_takes_long_is_named_and_nothing_is_where_nothing_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a checkpoint covers may be written to another disk than what is read."""
    caplog.set_level("INFO", logger="graphtide")
    script = Script([(range(3), range(0))], 10)
    ingest, said = script.ingest, list[str | None]()

    def asked() -> None:
        said.append(ingest.waiting)
        ingest.tell_long_waits()

    def poll(bytes_max: int, timeout_s: float, real: Callable[..., Any] = script.poll) -> list[RawRecord]:
        asked()
        return real(bytes_max, timeout_s)  # type: ignore[no-any-return]

    def checkpointed(offsets: dict[Partition, int]) -> None:
        asked()

    monkeypatch.setattr(script, "poll", poll)
    monkeypatch.setattr(script, "checkpointed", checkpointed)
    for long_s in (60.0, 0.0):
        monkeypatch.setattr(long_waits, "LONG_S", long_s)
        ingest.commit_soon({PARTITION: 0})
        ingest.commit_pending()
        ingest.reader.poll(1, 0.0)
        with ingest.long_waits.during("reading from the source"):
            ingest.reader.poll(1, 0.0)
    asked()
    script.graph.close()
    assert [None if one is None else one.partition(" takes longer")[0] for one in said] == [
        *[None] * 3,
        *("telling the source of a checkpoint", None, "reading from the source", None),
    ]
    told = [record.getMessage().partition(" takes")[0].partition(" after")[0] for record in caplog.records]
    assert told == [
        "nothing is read meanwhile: telling the source of a checkpoint",
        "telling the source of a checkpoint is done",
        "nothing is read meanwhile: reading from the source",
        "reading from the source is done",
    ]


def test_why_nothing_is_read_stays_the_reason_while_that_takes_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each look at a broker that is frozen takes long, and ends, and the next one does."""
    script = Script([(range(3), range(0))], 10)
    monkeypatch.setattr(long_waits, "LONG_S", 0.0)
    script.away = "Kafka cannot be used"
    said = list[str | None]()
    for _ in range(2):
        with script.ingest.long_waits.during("reading from the source"):
            said.append(script.ingest.waiting)
            script.ingest.tell_long_waits()
        said.append(script.ingest.waiting)
        script.ingest.tell_long_waits()
    script.graph.close()
    assert said == ["Kafka cannot be used"] * 4 and not caplog.records
