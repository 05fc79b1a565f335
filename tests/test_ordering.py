"""Barriers between partitions: where a stream needs them, and that those are enough."""

from __future__ import annotations

import itertools
import json
import uuid
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from brokers import client
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import KafkaConsumer, TopicPartition
from naive import NaiveGraph
from running import Daemon
from sampling import examples

from graphtide.daemon.records.barrier import HEADERS, barrier_id
from graphtide.daemon.records.columns import UpdateColumns
from graphtide.daemon.records.placement import partition_of
from graphtide.daemon.records.stream import offsets_from_wire, offsets_to_wire
from graphtide.daemon.tools.ordering import Ordering
from graphtide.daemon.tools.produce import produce_files
from graphtide.gpma.edges import Op
from graphtide.gpma.index.ids import StringColumn
from graphtide.ops.kafka import DevKafka

PARTITIONS = 3
Update = tuple[int, int, int]
"""(op, src, dst)"""

updates = st.tuples(st.sampled_from([0, 1, 1, 1, 2, 3]), st.integers(0, 5), st.integers(0, 5)).map(
    lambda row: row if row[0] < 2 else (row[0], row[1], 0)
)
blocks = st.lists(st.lists(updates, min_size=1, max_size=12), max_size=4)


def columns_of(rows: list[Update], kind: str) -> UpdateColumns:
    ops, src, dst = (list(column) for column in zip(*rows, strict=True))
    if kind == "int":
        return UpdateColumns(np.array(src), np.array(dst), np.array(ops, np.uint8))
    names = ["" if op > 1 else f"v{d}" for op, d in zip(ops, dst, strict=True)]
    return UpdateColumns(StringColumn.of([f"v{s}" for s in src]), StringColumn.of(names), np.array(ops, np.uint8))


def placed(vertex: int, kind: str) -> int:
    ids: Any = np.array([vertex]) if kind == "int" else StringColumn.of([f"v{vertex}"])
    return int(partition_of(ids, PARTITIONS)[0])


def stretches(given: list[list[Update]], kind: str) -> tuple[list[list[Update]], bool]:
    """The stream cut at its barriers, and whether one is due at its end."""
    ordering, found = Ordering(), [list[Update]()]
    for rows in given:
        columns = columns_of(rows, kind)
        cuts = ordering.barriers(columns, partition_of(columns.src, PARTITIONS), PARTITIONS)
        for start, stop in itertools.pairwise([0, *cuts, len(rows)]):
            found[-1] += rows[start:stop]
            if stop < len(rows):
                found.append([])
    return found, ordering.open_at_end


def conflict(one: Update, other: Update, kind: str) -> bool:
    """Whether the two lie in different partitions and must not change places."""
    for (op, src, dst), (deleting, vertex, _) in ((one, other), (other, one)):
        if (op, deleting) == (Op.INSERT, Op.DELETE_VERTEX) and dst == vertex:
            return placed(src, kind) != placed(vertex, kind)
    return False


@pytest.mark.parametrize("kind", ["int", "string"])
@given(given_=blocks, seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=examples(150))
def test_any_interleaving_between_barriers_gives_the_same_graph(
    kind: str, given_: list[list[Update]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    expected, found = NaiveGraph(True), NaiveGraph(True)
    for op, src, dst in itertools.chain.from_iterable(given_):
        expected.apply([src], [dst], [op])
    for stretch in stretches(given_, kind)[0]:
        queues: list[list[Update]] = [[] for _ in range(PARTITIONS)]
        for row in stretch:
            queues[placed(row[1], kind)].append(row)
        while waiting := [queue for queue in queues if queue]:
            op, src, dst = waiting[rng.integers(len(waiting))].pop(0)
            found.apply([src], [dst], [op])
    assert found.contents() == expected.contents() and found.alive == expected.alive


@pytest.mark.parametrize("kind", ["int", "string"])
@given(rows=st.lists(updates, min_size=1, max_size=25))
@settings(deadline=None, max_examples=examples(150))
def test_no_barrier_stands_where_none_is_needed(kind: str, rows: list[Update]) -> None:
    """Within a block: the fewest that keep every two updates that must not change places apart. What others wrote
    before counts as an edge to whatever is deleted first."""
    stretch, expected, edges_before = list[Update](), list[list[Update]](), True
    for row in rows:
        needs_before = edges_before and row[0] == Op.DELETE_VERTEX
        if needs_before or any(conflict(row, other, kind) for other in stretch):
            expected.append(stretch)
            stretch, edges_before = [], False
        stretch = [*stretch, row]
    assert stretches([rows], kind)[0] == [*expected, stretch]


def test_edges_alone_need_none() -> None:
    rows = [(op, src, dst) for op in (0, 1, 2) for src in range(6) for dst in (range(6) if op < 2 else [0])]
    assert stretches([rows, rows], "int") == ([rows + rows], False)


def test_operations_on_vertices_that_nothing_else_names_need_one_before_and_one_after() -> None:
    """Line by line among edges of other vertices."""
    rows = [row for i in range(100) for row in ((1, i, i + 1), (3, 1000 + i, 0))]
    parts, open_at_end = stretches([rows], "int")
    assert [len(part) for part in parts] == [1, 199] and open_at_end


def test_later_blocks_need_one_each_at_most() -> None:
    edges: list[Update] = [(1, i, i + 1) for i in range(50)]
    deletes: list[Update] = [(3, i, 0) for i in range(50)]
    parts, open_at_end = stretches([edges, deletes, edges, edges, deletes], "int")
    assert len(parts) == 4 and open_at_end
    assert [{op for op, *_ in part} for part in parts] == [{1}, {3}, {1}, {3}]


# -- through Kafka ------------------------------------------------------------------------------------------


@pytest.fixture
def topic(kafka: DevKafka) -> str:
    name = f"ordered-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 4)
    return name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A thousand edges of chained vertices, then the deletion of every vertex."""
    lines = [f"insert,{i},{i + 1}" for i in range(1000)] + [f"delete_vertex,{i}," for i in range(1001)]
    path = tmp_path / "edges.csv"
    path.write_text("\n".join(["op,src,dst", *lines]) + "\n")
    return path


def read(kafka: DevKafka, topic: str) -> dict[int, list[Any]]:
    """Every record of each partition."""
    partitions = [TopicPartition(topic, number) for number in range(4)]
    found: dict[int, list[Any]] = {number: [] for number in range(4)}
    with client(KafkaConsumer, kafka.bootstrap, enable_auto_commit=False) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for partition, records in consumer.poll(timeout_ms=500).items():
                found[partition.partition] += records
    return found


@pytest.mark.kafka
def test_barriers_stand_in_every_partition_between_what_they_order(
    kafka: DevKafka, topic: str, file: Path
) -> None:
    assert produce_files([file], kafka=kafka.bootstrap, topic=topic) == 0
    orders = []
    for records in read(kafka, topic).values():
        order: list[str | int] = []
        for record in records:
            headers = tuple((name, value) for name, value in record.headers)
            if headers == HEADERS:
                order.append(barrier_id(record.value))
            else:
                order += sorted(set(msgpack.unpackb(record.value).get("op", b"\1")))
        orders.append(order)
    first, last = [item for item in orders[0] if isinstance(item, str)]
    assert orders == [[1, first, 3, last]] * 4 and first != last


@pytest.mark.sample(among="a stream through a daemon")
@pytest.mark.kafka
def test_what_one_file_inserts_and_deletes_is_gone(
    kafka: DevKafka, topic: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through a real daemon, which reads four partitions."""
    assert produce_files([file], kafka=kafka.bootstrap, topic=topic, json=True) == 0
    offsets = offsets_from_wire(json.loads(capsys.readouterr().out)["offsets"])
    source = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [topic]}
    with Daemon(tmp_path / "daemon", {"source": source}) as daemon:
        daemon.start()
        with daemon.client() as asking:
            asking.wait(offsets_to_wire(offsets))
            stats = asking.stats()
        assert (stats["vertices"], stats["edges"], stats["dead_letters"]) == (0, 0, {})
        assert daemon.stop() == 0, daemon.log_tail()
