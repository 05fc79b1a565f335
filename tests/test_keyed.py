"""Records whose keys stand for edges: what each comes to, and what is bad."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import toml
from schema_registry import SchemaRegistry, framed
from typer.testing import CliRunner

from graphtide.daemon import cli
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.errors import ConfigError
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.dense import DenseBatch, dense_batch, dense_batches
from graphtide.daemon.ingest.misrouted import PlacementSample
from graphtide.daemon.ingest.named_columns import named_columns
from graphtide.daemon.ingest.registry import Registry
from graphtide.daemon.ingest.row_keys import KeyHash, new_secret
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.encodings import BARRIER
from graphtide.daemon.records.stream import Decoded, Partition, RawRecord
from graphtide.gpma.edges import HALF, LOW
from graphtide.gpma.index.ids import StringColumn
from graphtide.gpma.index.vertex_index import VertexIndex

P = Partition("transfers", 0)
HASHED = KeyHash(new_secret())
NAMES = {
    "src": "from.account",
    "dst": "to",
    "op": "kind",
    "weight": "amount",
    "op_values": {"insert": ["made", "changed"], "delete": ["gone"]},
}
ROW_SCHEMA = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "op", "type": ["null", "string"]},
        {"name": "src", "type": ["null", "long"]},
        {"name": "dst", "type": ["null", "long"]},
    ],
}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        server.register("json", "{}", "JSON", number=1)
        yield server


def decoder(columns: dict[str, Any] | None = None, **given: Any) -> Decoder:
    names = None
    if columns is not None:
        names = named_columns(from_tables({"source": {"columns": columns}}).source.columns)
    return Decoder(keyed=HASHED, columns=names, weights="any", **given)


def raw(
    key: bytes | None, value: Any, offset: int = 0, encoding: str = "json", partition: Partition = P
) -> RawRecord:
    body = json.dumps(value).encode() if isinstance(value, dict | list) else value
    if body is not None and encoding.endswith("registry"):
        body = framed(1, body)
    return RawRecord(partition, offset, offset + 1, body, encoding, 7, key)


def updates(decoded: list[Decoded]) -> list[tuple[bytes, Any]]:
    """The key that each update has, as it is hashed, and the edge, weight included; None: it stands for none."""
    found: list[tuple[bytes, Any]] = []
    for item in decoded:
        if item.block is None:
            continue
        block = item.block
        assert block.row_keys is not None and block.row_keys.shape == (len(block), 2)
        ends = [ids.to_list() if isinstance(ids, StringColumn) else ids.tolist() for ids in (block.src, block.dst)]
        weights = np.ones(len(block)) if block.weights is None else block.weights
        for row, op in enumerate(block.ops.tolist()):
            edge = (ends[0][row], ends[1][row], float(weights[row])) if op else None
            found.append((block.row_keys[row].tobytes(), edge))
    return found


def expected(*rows: tuple[bytes, Any]) -> list[tuple[bytes, Any]]:
    return [(HASHED.of(P.name, [key])[0].tobytes(), edge) for key, edge in rows]


def reasons(decoded: list[Decoded]) -> list[tuple[int, str]]:
    return [(bad.offset, bad.reason) for one in decoded for bad in one.bad]


def both_ways(decoder: Decoder, records: list[RawRecord]) -> list[Decoded]:
    """Together, and each by itself, which must be the same."""
    together, alone = decoder.decode_all(records), [decoder.decode(record) for record in records]
    assert updates(together) == updates(alone) and reasons(together) == reasons(alone)
    apart = decoder.each_alone(together, records)
    assert updates(apart) == updates(alone)
    return together


@pytest.mark.parametrize("kind", ["int", "string"])
def test_json_by_our_names(kind: Any) -> None:
    a, b = (1, 2) if kind == "int" else ("x", "y")
    records = [
        raw(b"1", {"src": a, "dst": b, "weight": 0.5}, 0),
        raw(b"1", {"src": b, "dst": a}, 1),
        raw(b"2", None, 2),
        raw(b"1", {"op": "delete"}, 3),
        raw(b"", {"op": "insert", "src": a, "dst": a}, 4),
    ]
    rows = (b"1", (a, b, 0.5)), (b"1", (b, a, 1.0)), (b"2", None), (b"1", None), (b"", (a, a, 1.0))
    assert updates(both_ways(decoder(vertex_ids=kind), records)) == expected(*rows)


def test_json_by_a_producers_names() -> None:
    records = [
        raw(b"1", {"kind": "made", "from": {"account": 1}, "to": 2, "amount": "2.5"}, 0),
        raw(b"1", {"kind": "gone", "from": None, "to": None}, 1),
        raw(b"2", {"kind": "changed", "from": {"account": 3}, "to": 4, "amount": 1}, 2),
        raw(b"2", b"", 3),
        raw(b"2", None, 4),
    ]
    decoded = both_ways(decoder(NAMES), records)
    assert updates(decoded) == expected((b"1", (1, 2, 2.5)), (b"1", None), (b"2", (3, 4, 1.0)), (b"2", None))
    assert reasons(decoded) == [(3, "malformed")], "an empty value is no tombstone"


def test_what_is_bad_changes_nothing_of_what_its_key_stands_for() -> None:
    good = {"src": 1, "dst": 2}
    cases: list[tuple[bytes | None, Any, str | None]] = [
        (b"1", good, None),
        (None, good, "no-key"),
        (None, None, "no-key"),
        (b"1", {"edges": [good]}, "not-one-edge"),
        (b"1", {"src": [1], "dst": [2]}, "not-one-edge"),
        (b"1", {"op": "delete_vertex", "src": 1}, "bad-op"),
        (b"1", {"op": "insert_vertex", "src": 1}, "bad-op"),
        (b"1", {"op": "upsert", "src": 1, "dst": 2}, "bad-op"),
        (b"1", {"op": ["insert"], "src": 1, "dst": 2}, "bad-op"),
        (b"1", {"src": 1}, "bad-column"),
        (b"1", {"src": "x", "dst": 2}, "bad-id"),
        (b"1", {**good, "weight": "heavy"}, "bad-weight"),
        (b"1", b'{"src": 1, "dst": 2}\n{"src": 1, "dst": 2}', "malformed"),
        (b"2", good, None),
    ]
    records = [raw(key, value, at) for at, (key, value, _) in enumerate(cases)]
    decoded = both_ways(decoder(), records)
    assert updates(decoded) == expected((b"1", (1, 2, 1.0)), (b"2", (1, 2, 1.0)))
    assert reasons(decoded) == [(at, why) for at, (*_, why) in enumerate(cases) if why is not None]


@pytest.mark.parametrize("encoding", ["msgpack", "csv", "el", "arrow", "text/html"])
def test_other_encodings_have_many_edges(encoding: str) -> None:
    value = encode_msgpack([1], [2]) if encoding == "msgpack" else b"1 2\n"
    for body in (value, None):
        decoded = both_ways(decoder(), [raw(b"1", body, encoding=encoding)])
        assert not updates(decoded) and reasons(decoded) == [(0, "not-one-edge")]


def test_barriers_need_no_key() -> None:
    decoded = both_ways(decoder(), [raw(None, b"id", encoding=BARRIER)])
    assert not updates(decoded) and not reasons(decoded)


@pytest.mark.parametrize("encoding", ["debezium", "debezium-registry"])
def test_changes_of_a_table_that_logs_only_keys_before(registry: SchemaRegistry, encoding: str) -> None:
    """What connectors put into columns that they do not know is not looked at."""
    key, row, zeros = b'{"id": 7}', {"id": 7, "src": 1, "dst": 2}, {"id": 7, "src": 0, "dst": 0}
    changes = [
        {"op": "c", "before": None, "after": row},
        {"op": "u", "before": None, "after": {**row, "dst": 3, "weight": 2.0}},
        {"op": "u", "before": zeros, "after": {**row, "dst": 4}},
        {"op": "d", "before": zeros, "after": None},
        None,
        {"op": "r", "before": None, "after": row},
        {"op": "d", "before": None, "after": None},
    ]
    records = [raw(key, change, at, encoding) for at, change in enumerate(changes)]
    records.append(raw(None, {"op": "t", "before": None, "after": None}, len(changes), encoding))
    decoded = both_ways(decoder(registry=Registry(registry.url)), records)
    edges = [(1, 2, 1.0), (1, 3, 2.0), (1, 4, 1.0), None, None, (1, 2, 1.0), None]
    assert updates(decoded) == expected(*((key, edge) for edge in edges))
    assert reasons(decoded) == [(len(changes), "bad-change")]


def test_records_of_a_registry(registry: SchemaRegistry) -> None:
    values = [{"src": 1, "dst": 2}, None, {"op": "delete", "src": None}, {"src": 3, "dst": 4, "op": None}]
    records = [raw(b"%d" % at, value, at, "registry") for at, value in enumerate(values)]
    decoded = both_ways(decoder(registry=Registry(registry.url)), records)
    edges = [(1, 2, 1.0), None, None, (3, 4, 1.0)]
    assert updates(decoded) == expected(*((b"%d" % at, edge) for at, edge in enumerate(edges)))
    names = {"src": "a", "dst": "b"}
    named = decoder(names, registry=Registry(registry.url))
    decoded = both_ways(named, [raw(b"1", {"a": 1, "b": 2}, 0, "registry"), raw(b"1", {"a": 1}, 1, "registry")])
    assert updates(decoded) == expected((b"1", (1, 2, 1.0)))
    assert reasons(decoded) == [(1, "bad-column")]


def test_avro_of_a_registry(registry: SchemaRegistry) -> None:
    number = registry.register("avro", ROW_SCHEMA)
    text = b"\x02\x0cdelete\x00\x00"  # op, and neither src nor dst
    row = b"\x00\x02\x02\x02\x04"  # no op, 1, 2
    records = [
        RawRecord(P, at, at + 1, framed(number, body), "registry", 7, b"k") for at, body in enumerate((row, text))
    ]
    decoded = both_ways(decoder(registry=Registry(registry.url)), records)
    assert updates(decoded) == expected((b"k", (1, 2, 1.0)), (b"k", None))


def test_a_loop_that_is_dropped_takes_the_edge_of_its_key_with_it() -> None:
    records = [raw(b"1", {"src": 1, "dst": 2}, 0), raw(b"1", {"src": 5, "dst": 5}, 1), raw(b"2", None, 2)]
    decoded = both_ways(decoder(self_loops="drop"), records)
    assert updates(decoded) == expected((b"1", (1, 2, 1.0)), (b"1", None), (b"2", None))
    assert [item.self_loops_dropped for item in decoded] == [1]


def test_a_key_means_another_row_in_another_topic_and_the_same_in_another_partition() -> None:
    row = {"src": 1, "dst": 2}
    places = [P, Partition("other", 0), Partition(P.name, 5)]
    (first, _), (second, _), (third, _) = updates(
        decoder().decode_all([raw(b"1", row, partition=place) for place in places])
    )
    assert first == third != second


def dense(index: VertexIndex, batch: DenseBatch) -> list[Any]:
    ids = [
        index.external(np.asarray(ends, np.uint32)) for ends in (batch.edges.keys >> HALF, batch.edges.keys & LOW)
    ]
    rows = zip(*(column.tolist() for column in ids), batch.edges.ops.tolist(), strict=True)
    return [(src, dst) if op else None for src, dst, op in rows]


def test_deletes_keep_their_places_and_make_no_vertices() -> None:
    index = VertexIndex.create("int")
    rows = [(b"1", {"src": 10, "dst": 20}), (b"2", None), (b"3", {"src": 30, "dst": 10}), (b"9", None)]
    records = [raw(key, value, at) for at, (key, value) in enumerate(rows)]
    blocks = [item.block for item in [decoder().decode(record) for record in records] if item.block is not None]
    together = [row for batch in dense_batches(blocks, index) for row in dense(index, batch)]
    assert together == [(10, 20), None, (30, 10), None] and index.n_vertices == 3
    (whole,) = [item.block for item in decoder().decode_all(records)]
    assert whole is not None
    batch = dense_batch(whole, index)
    assert dense(index, batch) == together and batch.updates == 4 and batch.unknown == 0
    assert batch.row_keys is not None and np.array_equal(
        batch.row_keys, HASHED.of(P.name, [key for key, _ in rows])
    )


class Topic:
    """A source of several partitions."""

    def partition_count(self, topic: str) -> int:
        return 16


def test_where_edges_lie_is_not_looked_at() -> None:
    records = [raw(b"%d" % at, {"src": at, "dst": 1}, at) for at in range(50)]
    sample: Any = PlacementSample(Topic(), directed=True)  # type: ignore[arg-type]
    assert sample.misrouted(Decoder().decode_all(records)) > 0
    assert sample.misrouted(decoder().decode_all(records)) == 0


KAFKA = {"kind": "kafka", "bootstrap_servers": ["a:1"], "topics": ["t"], "encoding": "json", "keyed": True}


@pytest.mark.parametrize(
    ("tables", "key", "words"),
    [
        ({"source": {"keyed": True}}, "source.keyed", "kafka"),
        ({"source": {**KAFKA, "encoding": "msgpack"}}, "source.encoding", "debezium, debezium-registry, json"),
        ({"source": {**KAFKA, "encoding": "csv"}}, "source.encoding", "many edges"),
        ({"source": KAFKA, "window": {"length": 5.0}}, "source.keyed", "window"),
        ({"source": KAFKA, "window": {"count": 5}}, "source.keyed", "window"),
        (
            {"source": {**KAFKA, "columns": {"op": "o", "op_values": {"delete_vertex": ["x"]}}}},
            "source.columns.op_values",
            "delete_vertex",
        ),
    ],
)
def test_what_does_not_go_with_keys_is_refused(tables: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_tables(tables)
    found = {problem["key"]: problem["allowed"] for problem in caught.value.detail["problems"]}
    assert words in found[key]


def test_keys_go_with_json_and_records_of_a_registry() -> None:
    registry = {"url": "http://r:1"}
    for encoding in ("json", "debezium", "registry", "debezium-registry"):
        source = {**KAFKA, "encoding": encoding, "registry": registry}
        assert from_tables({"source": source}).source.keyed


def test_updates_without_such_keys_are_not_put_beside_those_with(tmp_path: Path) -> None:
    config, edges = tmp_path / "graphtide.toml", tmp_path / "edges.csv"
    config.write_text(toml({"source": KAFKA}))
    edges.write_text("src,dst\n1,2\n")
    done = CliRunner().invoke(
        cli.app, ["produce", "--config", str(config), "--kafka", "127.0.0.1:1", "--topic", "t", str(edges)]
    )
    assert done.exit_code == 2 and "keys of topic t stand for edges" in " ".join(done.output.split())
