"""``graphtide produce --registry``: records of Avro, which the daemon and other readers of Avro understand."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from brokers import client
from kafka import KafkaConsumer, TopicPartition
from schema_registry import SchemaRegistry
from typer.testing import CliRunner
from waiting import until

from graphtide.daemon.cli import app
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.registry import Registry, RegistryAway, SchemaRefused
from graphtide.daemon.ingest.spool import SpoolSource
from graphtide.daemon.records.avro_records import avro_records, edge_schema
from graphtide.daemon.records.columns import UpdateColumns
from graphtide.gpma.edges import Op
from graphtide.gpma.index.ids import StringColumn
from graphtide.ops.kafka import DevKafka

CSV = "src,dst,op,weight,ts\n1,2,,0.5,1700000000000\n-3,9223372036854775807,delete,,\n7,,delete_vertex,,5\n"


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


def read_avro(record: bytes, schema: str) -> dict[str, Any]:
    body = io.BytesIO(record[5:])
    parsed = json.loads(schema)
    del parsed["fields"][4]["type"][1]["logicalType"]  # as a number
    read = fastavro.schemaless_reader(body, fastavro.parse_schema(parsed), None)
    assert not body.read() and isinstance(read, dict)
    return read


def test_records_are_avro(seed: int) -> None:
    """Numbers of every length, and all operations; as another library reads them."""
    rng = np.random.default_rng(seed)
    edges = np.array([0, -1, 63, 64, -64, -65, 1 << 31, (1 << 63) - 1, -(1 << 63)])
    wide = rng.integers(-(1 << 63), (1 << 63) - 1, 500) >> rng.integers(0, 63, 500)
    src, dst = np.concatenate([edges, wide]), np.concatenate([edges[::-1], wide[::-1]])
    n = src.size
    ops = rng.integers(0, 4, n).astype(np.uint8)
    weights, times = rng.random(n).astype(np.float32), rng.integers(-5, 1 << 45, n)
    for given in ((None, None), (weights, None), (weights, times)):
        records = avro_records(UpdateColumns(src, dst, ops, *given), 77)
        assert len(records) == n and {record[:5] for record in records} == {b"\0\0\0\0\x4d"}
        for row, record in enumerate(records):
            assert read_avro(record, edge_schema("int")) == {
                "src": int(src[row]),
                "dst": int(dst[row]) if ops[row] <= Op.INSERT else None,
                "op": Op(int(ops[row])).name.lower(),
                "weight": None if given[0] is None else float(weights[row]),
                "ts": None if given[1] is None else int(times[row]),
            }
    assert avro_records(UpdateColumns(src[:0], dst[:0], ops[:0]), 77) == []


def test_ids_that_are_strings() -> None:
    words = ["", "a", "ö" * 100, "b" * 256, "z"]
    whole = UpdateColumns(StringColumn.of(words), StringColumn.of(words[::-1]), np.ones(5, np.uint8))
    for chosen in (np.arange(5), np.array([3, 1])):
        records = avro_records(whole.take(chosen), 1)
        read = [read_avro(record, edge_schema("string")) for record in records]
        assert [(one["src"], one["dst"]) for one in read] == [(words[at], words[4 - at]) for at in chosen]


def test_a_spool_that_the_daemon_reads(registry: SchemaRegistry, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    command = ["produce", "--spool", str(tmp_path / "spool"), "--registry", registry.url, str(tmp_path / "a.csv")]
    for _ in range(2):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert "3 updates written" in done.output
    source = SpoolSource(tmp_path / "spool")
    source.open(None)
    records = until(lambda: source.poll(1 << 20, 0.1))
    source.close()
    assert {record.encoding for record in records} == {"registry"}
    assert len({record.value[:5] for record in records if record.value}) == 1, "one schema, however often"
    decoded = Decoder(registry=Registry(registry.url)).decode_all(records)
    rows = []
    for one in decoded:
        assert not one.bad and one.block is not None and one.block.weights is not None
        block = one.block
        assert isinstance(block.timestamps_ms, np.ndarray)
        columns = (block.src, block.dst, block.ops, block.weights, block.timestamps_ms)
        rows += zip(*(column.tolist() for column in columns if isinstance(column, np.ndarray)), strict=True)
    assert [row[:3] for row in rows] == 2 * [(1, 2, 1), (-3, 2**63 - 1, 0), (7, 0, 3)]
    assert rows[0][3:] == (0.5, 1_700_000_000_000) and rows[2][4] == 5


@pytest.mark.kafka
def test_a_topic(registry: SchemaRegistry, kafka: DevKafka, tmp_path: Path) -> None:
    kafka.create_topic("avro-edges", 2)
    lines = [f"{at} {at + 1}\n" for at in range(1000)]
    (tmp_path / "a.el").write_text("".join(lines))
    command = ["produce", "--kafka", kafka.bootstrap, "--topic", "avro-edges", "--registry", registry.url]
    done = CliRunner().invoke(app, [*command, "--json", str(tmp_path / "a.el")])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.output)
    assert answer["updates"] == 1000 and sum(answer["offsets"]["avro-edges"].values()) == 1000
    schema = Registry(registry.url).schema(1)
    assert json.loads(schema.text) == json.loads(edge_schema("int"))
    with client(KafkaConsumer, kafka.bootstrap) as consumer:
        partitions = [TopicPartition("avro-edges", number) for number in range(2)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        found: list[Any] = []
        until(lambda: found.extend(r for some in consumer.poll(500).values() for r in some) or len(found) == 1000)
    assert {dict(record.headers)["content-type"] for record in found} == {b"application/vnd.graphtide.registry"}
    assert sorted(read_avro(record.value, schema.text)["src"] for record in found) == [*range(1000)]


def test_what_a_registry_does_not_take(registry: SchemaRegistry, tmp_path: Path) -> None:
    asked = Registry(registry.url)
    registry.answer = 409, b'{"error_code": 409, "message": "incompatible"}'
    with pytest.raises(SchemaRefused, match="does not take the schema of edges-value: 'incompatible'"):
        asked.register("edges-value", edge_schema("int"))
    answers = [(500, b"{}"), (429, b"{}"), (200, b"<html>"), (200, b"[]")]
    answers += [(200, b'{"id": %b}' % id) for id in (b'"x"', b"true", b"-1", b"4294967296", b"2147483648")]
    for answer in answers:
        registry.answer = answer
        with pytest.raises(RegistryAway):
            asked.register("edges-value", edge_schema("int"))
    (tmp_path / "a.csv").write_text(CSV)
    command = ["produce", "--spool", str(tmp_path / "spool"), "--registry", registry.url, str(tmp_path / "a.csv")]
    assert CliRunner().invoke(app, command).exit_code != 0
    assert not (tmp_path / "spool").exists(), "nothing is written without a schema"


@pytest.mark.parametrize("url", [f"http://{'a' * 70}.test", "http://127.0.0.1:1/a b"])
def test_an_address_that_leads_nowhere(url: str) -> None:
    asked = Registry(url)
    for ask in (lambda: asked.register("edges-value", "{}"), lambda: asked.schema(1)):
        with pytest.raises(RegistryAway):
            ask()


def test_a_password_is_for_its_registry_alone(tmp_path: Path) -> None:
    with SchemaRegistry(user="Basic YWxpOm9wZW4gc2VzYW1l") as own, SchemaRegistry() as other:
        config = tmp_path / "graphtide.toml"
        config.write_text(f'[source.registry]\nurl = "{own.url}"\nusername = "ali"\npassword = "open sesame"\n')
        (tmp_path / "a.csv").write_text(CSV)
        for url in (own.url, f"{own.url}/", other.url):  # the other wants none
            command = ["produce", "--config", str(config), "--spool", str(tmp_path / "spool")]
            done = CliRunner().invoke(app, [*command, "--registry", url, str(tmp_path / "a.csv")])
            assert done.exit_code == 0, done.output
        config.write_text('[source.columns]\nsrc = "payer"\ndst = "payee"\n')
        done = CliRunner().invoke(app, [*command, "--registry", other.url, str(tmp_path / "a.csv")])
        assert done.exit_code == 2 and "source.columns" in done.output
