"""Producing: placement as Kafka does it, files of every form, windows, and both destinations."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import uuid
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.kafka import KafkaSource
from graphtide.daemon.ingest.spool import SpoolSource
from graphtide.daemon.records.columns import UpdateColumns, canonical
from graphtide.daemon.records.placement import partition_of
from graphtide.daemon.records.stream import Partition, Source
from graphtide.daemon.tools import produce as module
from graphtide.daemon.tools.produce import (
    BadInput,
    KafkaDestination,
    Produced,
    ProduceFailed,
    SpoolDestination,
    produce,
    produce_files,
    read_columns,
    read_files,
    read_updates,
    window_events,
)
from graphtide.gpma.edges import Op
from graphtide.gpma.index.ids import IdColumn, StringColumn
from graphtide.ops.kafka import DevKafka

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
INT64 = st.integers(-(2**63), 2**63 - 1)


def plain(ids: IdColumn) -> list[Any]:
    return ids.to_list() if isinstance(ids, StringColumn) else ids.tolist()


def rows(columns: UpdateColumns) -> list[tuple[object, ...]]:
    """Updates as tuples (op, src, dst, weight, ts), absent columns as None."""
    src, dst = (
        ids.to_list() if isinstance(ids, StringColumn) else ids.tolist() for ids in (columns.src, columns.dst)
    )
    nothing = [None] * len(columns)
    weights = nothing if columns.weights is None else columns.weights.tolist()
    times = nothing if columns.timestamps_ms is None else columns.timestamps_ms.tolist()
    return list(zip(columns.ops.tolist(), src, dst, weights, times, strict=True))


def file_rows(path: Path, **options: str) -> list[tuple[object, ...]]:
    return [row for columns in read_columns(path, **options) for row in rows(columns)]  # type: ignore[arg-type]


# -- placement ----------------------------------------------------------------------------------------------


@given(ids=st.lists(INT64, min_size=1, max_size=30), partitions=st.integers(1, 1000))
@settings(deadline=None, max_examples=60)
def test_integers_are_placed_as_kafka_places_their_bytes(ids: list[int], partitions: int) -> None:
    expected = [(murmur2(i.to_bytes(8, "little", signed=True)) & 0x7FFFFFFF) % partitions for i in ids]
    assert partition_of(np.array(ids, np.int64), partitions).tolist() == expected


@given(ids=st.lists(st.text(max_size=12), min_size=1, max_size=20), partitions=st.integers(1, 1000))
@settings(deadline=None, max_examples=60)
def test_strings_are_placed_as_kafka_places_their_utf8(ids: list[str], partitions: int) -> None:
    expected = [(murmur2(i.encode()) & 0x7FFFFFFF) % partitions for i in ids]
    assert partition_of(StringColumn.of(ids), partitions).tolist() == expected


def test_undirected_edges_have_one_order() -> None:
    ints = UpdateColumns(np.array([5, 1, -3]), np.array([2, 4, -3]), np.ones(3, np.uint8))
    assert [row[1:3] for row in rows(canonical(ints))] == [(2, 5), (1, 4), (-3, -3)]
    strings = UpdateColumns(StringColumn.of(["b", "é"]), StringColumn.of(["a", "z"]), np.ones(2, np.uint8))
    assert [row[1:3] for row in rows(canonical(strings))] == [("a", "b"), ("z", "é")]


def test_operations_on_vertices_go_where_their_vertex_belongs(tmp_path: Path) -> None:
    for ids, nothing in ((np.array([5, -3]), 0), (StringColumn.of(["b", "é"]), "")):
        columns = UpdateColumns.of_vertices(Op.DELETE_VERTEX, ids)
        expected = [(3, name, nothing, None, None) for name in plain(ids)]
        assert rows(columns) == rows(canonical(columns)) == expected
        with contextlib.closing(SpoolDestination(tmp_path, name="ops")) as spool:
            produced = produce([columns], spool, undirected=True)
        assert produced.updates == 2
        kind: Any = "string" if isinstance(ids, StringColumn) else "int"
        source = SpoolSource(tmp_path)
        source.open(None)
        (record,) = source.poll(1 << 20, 0)
        block = Decoder(vertex_ids=kind).decode(record).block
        source.close()
        assert block is not None
        assert rows(UpdateColumns(block.src, block.dst, block.ops)) == expected
        for file in tmp_path.iterdir():
            file.unlink()
    file = tmp_path / "mixed.csv"
    file.write_text("op,src,dst\ninsert,7,1\ndelete_vertex,7,\n")
    assert [row[:3] for row in rows(canonical(next(read_columns(file))))] == [(1, 1, 7), (3, 7, 0)]


# -- windows ------------------------------------------------------------------------------------------------


def naive_window(events: list[tuple[int, int, int]], window: int) -> list[tuple[int, int, int, int]]:
    """(op, src, dst, ts), one event at a time."""
    latest: dict[tuple[int, int], int] = {}
    queue: deque[tuple[int, tuple[int, int]]] = deque()
    out = []
    for src, dst, ts in events:
        while queue and queue[0][0] <= ts:
            due, edge = queue.popleft()
            if latest.get(edge) == due - window:
                del latest[edge]
                out.append((0, *edge, due))
        latest[src, dst] = ts
        queue.append((ts + window, (src, dst)))
        out.append((1, src, dst, ts))
    return out


@given(
    edges=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 6)), max_size=40),
    window=st.integers(1, 12),
)
@settings(deadline=None, max_examples=150)
def test_a_window_deletes_what_was_not_renewed(edges: list[tuple[int, int, int]], window: int) -> None:
    times = np.cumsum([gap for _, _, gap in edges], dtype=np.int64)
    src, dst = (np.array([edge[i] for edge in edges], np.int64) for i in (0, 1))
    found_src, found_dst, ops, ts, causes = window_events(src, dst, times, window)
    found = list(zip(ops.tolist(), found_src.tolist(), found_dst.tolist(), ts.tolist(), strict=True))
    expected = naive_window(list(zip(src.tolist(), dst.tolist(), times.tolist(), strict=True)), window)
    # Deletes of one instant are of different edges: their order does not matter, everything else's does.
    assert sorted(found) == sorted(expected)
    assert [event[3] for event in found] == [event[3] for event in expected]
    assert [event for event in found if event[0] == 1] == [event for event in expected if event[0] == 1]
    live: set[tuple[int, int]] = set()
    for op, a, b, _ in found:
        assert op == 1 or (a, b) in live
        (live.add if op else live.discard)((a, b))
    assert (src[causes] == found_src).all() and (dst[causes] == found_dst).all()


def test_windows_refuse_what_has_no_time(tmp_path: Path) -> None:
    for name, text, why in (
        ("deletes.tsv", "I\t1\t2\t-\t1\nD\t1\t2\t-\t2\n", "inserts only"),
        ("timeless.el", "1 2\n", "inserts only, each with its time"),
        ("back.tsv", "I\t1\t2\t-\t5\nI\t1\t2\t-\t4\n", "in order"),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(BadInput, match=why):
            list(read_files([path], window_seconds=10))


# -- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["", ".gz", ".xz", ".zst"])
def test_events_of_a_stream(tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 20)
    text = b"I\t1\t2\t-\t5\nI\t-7\t9223372036854775807\t2.5\t6\nD\t1\t2\t-\t7\nI\t3\t4\t-\t8"
    compress = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}
    path = tmp_path / f"a.events.tsv{compression}"
    path.write_bytes(compress[compression](text))
    found = file_rows(path)
    assert [row[:3] for row in found] == [(1, 1, 2), (1, -7, 2**63 - 1), (0, 1, 2), (1, 3, 4)]
    assert [row[3] or 1.0 for row in found] == [1.0, 2.5, 1.0, 1.0]
    assert [row[4] for row in found] == [5000, 6000, 7000, 8000]
    assert len(read_updates(path)) == 4


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.el", "# c\n1 2\n3\t4\n", [(1, 1, 2), (1, 3, 4)]),
        ("a.txt", "1 2 0.5\n", [(1, 1, 2)]),
        ("a.csv", "dst,op,src\n1,delete,2\n3,insert,4\n", [(0, 2, 1), (1, 4, 3)]),
        ("a.jsonl", '{"src":1,"dst":2}\n{"op":"delete","src":1,"dst":2}\n', [(1, 1, 2), (0, 1, 2)]),
        (
            "a.mtx",
            "%%MatrixMarket matrix coordinate pattern general\n% x\n9 9 2\n1 2\n3 4\n",
            [(1, 1, 2), (1, 3, 4)],
        ),
    ],
)
def test_published_forms(tmp_path: Path, name: str, text: str, expected: list[tuple[int, int, int]]) -> None:
    (tmp_path / name).write_text(text)
    assert [row[:3] for row in file_rows(tmp_path / name)] == expected


def test_string_ids(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("src,dst\nann,bob\n")
    (tmp_path / "a.tsv").write_text("D\tann\tbob\t-\t-\n")
    for name, op in (("a.csv", 1), ("a.tsv", 0)):
        assert [row[:3] for row in file_rows(tmp_path / name, vertex_ids="string")] == [(op, "ann", "bob")]


def test_tables_of_two_columns_are_edge_lists(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("# a graph of my own\n1\t2\n2\t3\n")
    assert [row[:3] for row in file_rows(tmp_path / "a.tsv")] == [(1, 1, 2), (1, 2, 3)]


def test_a_failed_run_leaves_no_empty_spool_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        produce_files([tmp_path / "missing.csv"], spool=tmp_path / "spool")
    assert not list((tmp_path / "spool").iterdir())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "I\t1\t2\t-\t1\nI\t1\t2\n", "five fields"),
        ("a.tsv", "X\t1\t2\t-\t1\n", "neither I nor D"),
        ("a.tsv", "I\tx\t2\t-\t1\n", "byte 0"),
        ("a.el", "1 2\n3 x\n", "byte 4"),
        ("a.csv", "from,to\n1,2\n", "byte 0"),
    ],
)
def test_bad_input_names_its_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=message) as caught:
        file_rows(tmp_path / name)
    assert str(tmp_path / name) in caught.value.message


@pytest.mark.skipif(not DATA.exists(), reason="the public data sets are not here")
@pytest.mark.parametrize(("name", "events", "deletes"), [("as733-21days", 9247, 1107), ("bitcoinotc", 35592, 0)])
def test_public_streams(name: str, events: int, deletes: int) -> None:
    columns = read_updates(DATA / f"{name}.events.tsv.xz")
    assert len(columns) == events and int((columns.ops == 0).sum()) == deletes
    assert columns.weights is not None and columns.timestamps_ms is not None
    assert (columns.weights.min() < 0) == (name == "bitcoinotc")


# -- destinations -------------------------------------------------------------------------------------------


def sent(source: Source, produced: Produced) -> dict[Partition, list[tuple[int, int, int]]]:
    """What the daemon would decode, per partition."""
    decoder = Decoder(weights="any")
    found: dict[Partition, list[tuple[int, int, int]]] = {}
    with contextlib.closing(source):
        source.open(None)
        while any(source.position().get(p, 0) < offset for p, offset in produced.offsets.items()):
            for record in source.poll(1 << 24, timeout_s=1):
                decoded = decoder.decode(record)
                assert not decoded.bad and decoded.block is not None
                block = decoded.block
                assert isinstance(block.src, np.ndarray) and isinstance(block.dst, np.ndarray)
                found.setdefault(record.partition, []).extend(
                    zip(block.ops.tolist(), block.src.tolist(), block.dst.tolist(), strict=True)
                )
    return found


def random_columns(count: int) -> UpdateColumns:
    rng = np.random.default_rng(7)
    src, dst = rng.integers(-1000, 1000, (2, count))
    return UpdateColumns(
        src, dst, rng.integers(0, 2, count).astype(np.uint8), rng.random(count).astype(np.float32)
    )


def test_a_spool_gets_everything_in_order(tmp_path: Path) -> None:
    columns = random_columns(1000)
    destination = SpoolDestination(tmp_path, name="edges")
    with contextlib.closing(destination):
        produced = produce([columns], destination, edges_per_record=64)
    assert produced.updates == 1000 and list(produced.offsets) == [Partition("edges.msgpack")]
    (found,) = sent(SpoolSource(tmp_path), produced).values()
    assert found == [row[:3] for row in rows(columns)]


def test_the_command_prints_what_a_wait_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tsv").write_text("I\t1\t2\t-\t1\nI\t1\t2\t-\t100\n")
    status = produce_files([tmp_path / "a.tsv"], spool=tmp_path / "spool", json=True, window_seconds=10)
    answer = json.loads(capsys.readouterr().out)
    assert status == 0 and answer["updates"] == 3
    ((name, offset),) = answer["offsets"].items()
    assert (tmp_path / "spool" / name).stat().st_size == offset


@pytest.fixture
def topic(kafka: DevKafka) -> str:
    name = f"produced-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 4)
    return name


@pytest.mark.kafka
@pytest.mark.parametrize("undirected", [False, True])
def test_a_topic_gets_every_edge_in_its_partition(kafka: DevKafka, topic: str, undirected: bool) -> None:
    columns = random_columns(5000)
    destination = KafkaDestination(kafka.bootstrap, topic)
    with contextlib.closing(destination):
        produced = produce([columns], destination, edges_per_record=100, undirected=undirected)
    found = sent(KafkaSource(kafka.bootstrap, [topic]), produced)
    expected: dict[Partition, list[tuple[object, ...]]] = {}
    for row in rows(canonical(columns) if undirected else columns):
        key = int(str(row[1])).to_bytes(8, "little", signed=True)
        expected.setdefault(Partition(topic, (murmur2(key) & 0x7FFFFFFF) % 4), []).append(row[:3])
    assert found == expected
    assert set(produced.offsets) == set(found) and produced.updates == 5000


@pytest.mark.kafka
def test_a_missing_topic_is_an_error(kafka: DevKafka) -> None:
    with pytest.raises(ProduceFailed, match="nowhere"):
        KafkaDestination(kafka.bootstrap, "nowhere")
