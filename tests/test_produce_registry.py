"""``graphtide produce --registry``: records of Avro, Protobuf and JSON, which the daemon and others understand."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from apicurio import apicurio
from brokers import client
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from kafka import KafkaConsumer, TopicPartition
from schema_registry import SchemaRegistry
from typer.testing import CliRunner
from waiting import until

from graphtide.daemon.cli import app
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.proto import declared
from graphtide.daemon.ingest.registry import Registry, RegistryAway, SchemaRefused
from graphtide.daemon.ingest.spool import SpoolSource
from graphtide.daemon.records.columns import UpdateColumns
from graphtide.daemon.records.encodings import SchemaKind
from graphtide.daemon.records.registry_records import (
    FORMS,
    VertexIds,
    avro_records,
    avro_schema,
    json_records,
    json_schema,
    protobuf_records,
    protobuf_schema,
)
from graphtide.gpma.edges import Op
from graphtide.gpma.index.ids import StringColumn
from graphtide.ops.kafka import DevKafka

CSV = "src,dst,op,weight,ts\n1,2,,0.5,1700000000000\n-3,9223372036854775807,delete,,\n7,,delete_vertex,,5\n"


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


KINDS = [pytest.param(kind, id=kind.lower()) for kind in FORMS]
Reader = Callable[[bytes], dict[str, Any]]


def avro_reader(vertex_ids: VertexIds) -> Reader:
    parsed = json.loads(avro_schema(vertex_ids))
    del parsed["fields"][4]["type"][1]["logicalType"]  # as a number
    schema = fastavro.parse_schema(parsed)

    def read(record: bytes) -> dict[str, Any]:
        body = io.BytesIO(record[5:])
        found = fastavro.schemaless_reader(body, schema, None)
        assert not body.read() and isinstance(found, dict)
        return found

    return read


def edge_message(vertex_ids: VertexIds) -> Any:
    """The message type of ``protobuf_schema`` as Google's library has it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="edge.proto", package="graphtide", syntax="proto3")
    edge = file.message_type.add(name="Edge")
    numbers = edge.enum_type.add(name="Op")
    (declares,) = declared(protobuf_schema(vertex_ids), ()).top
    for number, name in declares.types.enumerations["graphtide.Edge.Op"].items():
        numbers.value.add(name=name, number=number)
    for field in declares.fields:
        added = edge.field.add(name=field.name, number=field.number, label=kinds.LABEL_OPTIONAL)
        added.type = kinds.TYPE_ENUM if field.type == "Op" else getattr(kinds, f"TYPE_{field.type.upper()}")
        if field.type == "Op":
            added.type_name = ".graphtide.Edge.Op"
        if field.presence:
            added.proto3_optional, added.oneof_index = True, len(edge.oneof_decl)
            edge.oneof_decl.add(name=f"_{field.name}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("graphtide.Edge"))


def protobuf_reader(vertex_ids: VertexIds) -> Reader:
    message = edge_message(vertex_ids)

    def read(record: bytes) -> dict[str, Any]:
        assert record[5] == 0, "the first message type of the schema"
        found = message.FromString(record[6:])
        assert found.SerializeToString() == record[6:], "byte for byte as Google's library writes it"
        optional = {
            name: getattr(found, name) if found.HasField(name) else None for name in ("dst", "weight", "ts")
        }
        return {"src": found.src, "op": message.Op.Name(found.op), **optional}

    return read


def json_reader(vertex_ids: VertexIds) -> Reader:
    schema = json.loads(json_schema(vertex_ids))
    types = {"integer": int, "number": float, "string": str}

    def read(record: bytes) -> dict[str, Any]:
        document = json.loads(record[5:])
        assert isinstance(document, dict) and set(schema["required"]) <= set(document) <= set(schema["properties"])
        for name, value in document.items():
            about = schema["properties"][name]
            assert type(value) is types[about["type"]] and value in about.get("enum", [value])
        return {"dst": None, "op": "insert", "weight": None, "ts": None, **document}

    return read


READERS = {"AVRO": avro_reader, "PROTOBUF": protobuf_reader, "JSON": json_reader}


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_what_other_libraries_read(kind: SchemaKind, seed: int) -> None:
    """Numbers of every length, and all operations."""
    rng = np.random.default_rng(seed)
    edges = np.array([0, -1, 63, 64, -64, -65, 127, 128, 1 << 31, (1 << 63) - 1, -(1 << 63)])
    wide = rng.integers(-(1 << 63), (1 << 63) - 1, 500) >> rng.integers(0, 63, 500)
    src, dst = np.concatenate([edges, wide]), np.concatenate([edges[::-1], wide[::-1]])
    n = src.size
    ops = rng.integers(0, 4, n).astype(np.uint8)
    ops[:3] = Op.INSERT, Op.DELETE, Op.INSERT
    weights, times = rng.random(n).astype(np.float32), rng.integers(-5, 1 << 45, n)
    weights[0], times[:2] = 0, (0, -1)
    read = READERS[kind]("int")
    for given in ((None, None), (weights, None), (weights, times)):
        records = FORMS[kind].records(UpdateColumns(src, dst, ops, *given), 77)
        assert len(records) == n and {record[:5] for record in records} == {b"\0\0\0\0\x4d"}
        for row, record in enumerate(records):
            assert read(record) == {
                "src": int(src[row]),
                "dst": int(dst[row]) if ops[row] <= Op.INSERT else None,
                "op": Op(int(ops[row])).name.lower(),
                "weight": None if given[0] is None else float(weights[row]),
                "ts": None if given[1] is None else int(times[row]),
            }
    assert FORMS[kind].records(UpdateColumns(src[:0], dst[:0], ops[:0]), 77) == []


@pytest.mark.parametrize("kind", KINDS)
def test_ids_that_are_strings(kind: SchemaKind) -> None:
    words = ["", "a", "ö" * 100, "b" * 256, '"\\\n']
    whole = UpdateColumns(StringColumn.of(words), StringColumn.of(words[::-1]), np.ones(5, np.uint8))
    for chosen in (np.arange(5), np.array([3, 1])):
        records = FORMS[kind].records(whole.take(chosen), 1)
        read = [*map(READERS[kind]("string"), records)]
        assert [(one["src"], one["dst"]) for one in read] == [(words[at], words[4 - at]) for at in chosen]


def test_an_update_that_says_nothing_of_its_operation_is_an_insertion() -> None:
    """In proto3 that is what has the number 0."""
    columns = UpdateColumns(np.array([0]), np.array([0]), np.array([Op.INSERT], np.uint8))
    assert protobuf_records(columns, 1) == [b"\0\0\0\0\1\0" + b"\x10\0"]
    assert json_records(columns, 1) == [b'\0\0\0\0\1{"src":0,"dst":0}']
    assert avro_records(columns, 1) == [b"\0\0\0\0\1" + b"\0\2\0\2\0\0"]


def produced(folder: Path, url: str, *options: str) -> None:
    """CSV, into a spool."""
    (folder / "a.csv").write_text(CSV)
    command = ["produce", "--spool", str(folder / "spool"), "--registry", url, *options, str(folder / "a.csv")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "3 updates written" in done.output


@pytest.mark.parametrize("kind", KINDS)
def test_a_spool_that_the_daemon_reads(registry: SchemaRegistry, kind: SchemaKind, tmp_path: Path) -> None:
    for options in (("--schema", kind.lower()), () if kind == "AVRO" else ("--schema", kind.lower())):
        produced(tmp_path, registry.url, *options)
    assert Registry(registry.url).schema(1).kind == kind
    check_spool(tmp_path, registry.url)


def check_spool(tmp_path: Path, url: str) -> None:
    """What a daemon reads of CSV that was produced twice."""
    source = SpoolSource(tmp_path / "spool")
    source.open(None)
    records = until(lambda: source.poll(1 << 20, 0.1))
    source.close()
    assert {record.encoding for record in records} == {"registry"}
    assert len({record.value[:5] for record in records if record.value}) == 1, "one schema, however often"
    decoded = Decoder(registry=Registry(url)).decode_all(records)
    rows = []
    for one in decoded:
        assert not one.bad and one.block is not None and one.block.weights is not None
        block = one.block
        assert isinstance(block.timestamps_ms, np.ndarray)
        columns = (block.src, block.dst, block.ops, block.weights, block.timestamps_ms)
        rows += zip(*(column.tolist() for column in columns if isinstance(column, np.ndarray)), strict=True)
    assert [row[:3] for row in rows] == 2 * [(1, 2, 1), (-3, 2**63 - 1, 0), (7, 0, 3)]
    assert rows[0][3:] == (0.5, 1_700_000_000_000) and rows[2][4] == 5


@pytest.mark.long
def test_a_real_registry_takes_each_schema(run_long: bool, tmp_path: Path) -> None:
    """Apicurio, which reads schemas by libraries of its own."""
    if not run_long:
        pytest.skip("fetches 160 MB once, and starts a server")
    with apicurio(tmp_path) as url:
        for kind in FORMS:
            folder = tmp_path / kind
            folder.mkdir()
            for vertex_ids in ("int", "string"):
                Registry(url).register(f"{kind}-{vertex_ids}", FORMS[kind].schema(vertex_ids), kind)
            asked = Registry(f"{url}/")
            with pytest.raises(SchemaRefused):
                asked.register(f"{kind}-none", "{nothing}", kind)


@pytest.mark.kafka
def test_a_topic(registry: SchemaRegistry, kafka: DevKafka, tmp_path: Path) -> None:
    kafka.create_topic("avro-edges", 2)
    lines = [f"{at} {at + 1}\n" for at in range(1000)]
    (tmp_path / "a.el").write_text("".join(lines))
    command = ["produce", "--kafka", kafka.bootstrap, "--topic", "avro-edges", "--registry", registry.url]
    read = avro_reader("int")
    done = CliRunner().invoke(app, [*command, "--json", str(tmp_path / "a.el")])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.output)
    assert answer["updates"] == 1000 and sum(answer["offsets"]["avro-edges"].values()) == 1000
    schema = Registry(registry.url).schema(1)
    assert json.loads(schema.text) == json.loads(avro_schema("int"))
    with client(KafkaConsumer, kafka.bootstrap) as consumer:
        partitions = [TopicPartition("avro-edges", number) for number in range(2)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        found: list[Any] = []
        until(lambda: found.extend(r for some in consumer.poll(500).values() for r in some) or len(found) == 1000)
    assert {dict(record.headers)["content-type"] for record in found} == {b"application/vnd.graphtide.registry"}
    assert sorted(read(record.value)["src"] for record in found) == [*range(1000)]


def test_what_a_registry_does_not_take(registry: SchemaRegistry, tmp_path: Path) -> None:
    asked = Registry(registry.url)
    registry.answer = 409, b'{"error_code": 409, "message": "incompatible"}'
    with pytest.raises(SchemaRefused, match="does not take the schema of edges-value: 'incompatible'"):
        asked.register("edges-value", avro_schema("int"))
    answers = [(500, b"{}"), (429, b"{}"), (200, b"<html>"), (200, b"[]")]
    answers += [(200, b'{"id": %b}' % id) for id in (b'"x"', b"true", b"-1", b"4294967296", b"2147483648")]
    for answer in answers:
        registry.answer = answer
        with pytest.raises(RegistryAway):
            asked.register("edges-value", avro_schema("int"))
    (tmp_path / "a.csv").write_text(CSV)
    command = ["produce", "--spool", str(tmp_path / "spool"), str(tmp_path / "a.csv")]
    assert CliRunner().invoke(app, [*command, "--schema", "avro"]).exit_code == 2, "a schema for no registry"
    assert CliRunner().invoke(app, [*command, "--registry", registry.url]).exit_code != 0
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
