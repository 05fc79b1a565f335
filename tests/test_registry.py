"""Records whose schemas are in a registry, which is asked over real HTTP, and what it may do wrong."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import socket
import ssl
import threading
import tomllib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from apicurio import apicurio, register
from brokers import client
from certificates import certificate
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import KafkaProducer
from running import Daemon
from sampling import examples
from schema_registry import SchemaRegistry, framed
from waiting import until

from graphtide.daemon.config.load import from_tables
from graphtide.daemon.errors import ConfigError
from graphtide.daemon.ingest import decode_registry, decode_runs, known_schemas
from graphtide.daemon.ingest.decode import REASONS, Decoder
from graphtide.daemon.ingest.decode_columns import Bad
from graphtide.daemon.ingest.named_columns import NamedColumns
from graphtide.daemon.ingest.registry import REFERENCES_MAX, Registry, RegistryAway, basic_authorization
from graphtide.daemon.ingest.sources import make_registry
from graphtide.daemon.ingest.spool import SpoolSource
from graphtide.daemon.records.encodings import REGISTERED
from graphtide.daemon.records.spool_format import frame
from graphtide.daemon.records.stream import Decoded, Partition, RawRecord
from graphtide.daemon.tools import doctor
from graphtide.gpma.index.ids import StringColumn
from graphtide.ops.kafka import DevKafka

TOPIC = Partition("edges", 0)
NOW = 1_700_000_000_000
COLUMNS = NamedColumns("payer", "payee", weight="amount")

EDGE = {
    "type": "record",
    "name": "Edge",
    "fields": [
        {"name": "note", "type": "string"},
        {"name": "src", "type": "long"},
        {"name": "dst", "type": ["null", "long"]},
        {"name": "weight", "type": ["null", "double"]},
        {"name": "op", "type": ["null", "string"]},
        {"name": "ts", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}
TRANSFER = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "payer", "type": "long"},
        {"name": "payee", "type": "long"},
        {
            "name": "amount",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
            "default": None,
        },
    ],
    "connect.name": "bank.public.transfers.Value",
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "bank.public.transfers",
    "fields": [
        {"name": "before", "type": ["null", TRANSFER], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "namespace": "io.debezium.connector.postgresql",
                "fields": [
                    {"name": "version", "type": "string"},
                    {"name": "ts_ms", "type": "long"},
                    {
                        "name": "snapshot",
                        "type": [
                            {
                                "type": "string",
                                "connect.name": "io.debezium.data.Enum",
                                "connect.default": "false",
                            },
                            "null",
                        ],
                        "default": "false",
                    },
                    {"name": "lsn", "type": ["null", "long"], "default": None},
                ],
                "connect.name": "io.debezium.connector.postgresql.Source",
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
        {
            "name": "transaction",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "block",
                    "namespace": "event",
                    "fields": [{"name": "id", "type": "string"}, {"name": "total_order", "type": "long"}],
                    "connect.name": "event.block",
                },
            ],
            "default": None,
        },
    ],
    "connect.name": "bank.public.transfers.Envelope",
}
"""As Debezium's connector for PostgreSQL registers it, with fewer fields of ``source``."""
KEY = {
    "type": "record",
    "name": "Key",
    "fields": [{"name": "payer", "type": "long"}, {"name": "payee", "type": "long"}],
}
PROTO = """
syntax = "proto3";
package bank;
message Ignored {}
message Edge { string note = 1; int64 src = 2; optional int64 dst = 3; double weight = 4; Kind op = 5; }
enum Kind { insert = 0; delete = 1; other = 2; }
"""


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


def avro(schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def edge(src: int = 1, dst: int | None = 2, weight: Any = None, op: Any = None, ts: Any = None) -> dict[str, Any]:
    return {"note": "x" * 9, "src": src, "dst": dst, "weight": weight, "op": op, "ts": ts}


def transfer(number: int, payer: int, payee: int, amount: Any = None) -> dict[str, Any]:
    return {"id": number, "payer": payer, "payee": payee, "amount": amount}


def event(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    source = {"version": "2.7.3.Final", "ts_ms": 1_559_033_904_863, "snapshot": "false", "lsn": 24_023_128}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1, "transaction": None}


def raw(
    value: bytes | None, offset: int = 7, key: bytes | None = None, encoding: str = "registry", ms: int = NOW
) -> RawRecord:
    return RawRecord(TOPIC, offset, offset + 1, value, encoding, ms, key)


def reading(
    server: SchemaRegistry, columns: NamedColumns | None = None, kind: Any = "int", **more: Any
) -> Decoder:
    return Decoder(vertex_ids=kind, columns=columns, registry=Registry(server.url, **more))


def updates(decoded: Decoded) -> list[tuple[Any, ...]]:
    """(src, dst, op, weight, ts) of each."""
    if decoded.block is None:
        return []
    block = decoded.block
    ends = [ids.to_list() if isinstance(ids, StringColumn) else ids.tolist() for ids in (block.src, block.dst)]
    weights = [1.0] * len(block) if block.weights is None else block.weights.tolist()
    assert isinstance(block.timestamps_ms, np.ndarray)
    return [*zip(*ends, block.ops.tolist(), weights, block.timestamps_ms.tolist(), strict=True)]


def why(decoded: Decoded) -> list[tuple[str, str]]:
    return [(bad.reason, bad.detail) for bad in decoded.bad]


# -- records ------------------------------------------------------------------------------------------------


def test_records_that_follow_each_other_are_read_together(registry: SchemaRegistry) -> None:
    """Of several schemas, with tombstones and bad ones between them; in order, each with its own time."""
    first, second = registry.register("a", EDGE), registry.register("b", PROTO, "PROTOBUF")
    third = registry.register("c", {"type": "object"}, "JSON")
    records = [
        raw(framed(first, avro(EDGE, edge(1, 2, 0.5))), 0, ms=NOW + 1),
        raw(framed(second, b"\x10\x03\x18\x04\x28\x01", b"\x02\x02"), 1, ms=NOW + 2),
        raw(None, 2),
        raw(framed(first, avro(EDGE, edge(5, 6, -1.0))), 3),
        raw(framed(third, b'{"src": 7, "dst": "8", "more": []}'), 4, ms=NOW + 3),
        raw(framed(first, b"\x02x"), 5),
        raw(framed(first, avro(EDGE, edge(9, 9, None, "insert", 5_000_000))), 6),
        raw(b'{"src":1,"dst":2}', 7, encoding="json"),
        raw(framed(first, avro(EDGE, edge(1, None, None, "delete_vertex"))), 8),
    ]
    run, alone, last = reading(registry).decode_all(records)
    assert updates(run) == [
        (1, 2, 1, 0.5, NOW + 1),
        (3, 4, 0, 0.0, NOW + 2),
        (7, 8, 1, 1.0, NOW + 3),
        (9, 9, 1, 1.0, 5000),
    ]
    assert (run.record.offset, run.record.next_offset, run.record.timestamp_ms) == (0, 7, NOW + 1)
    assert [(bad.offset, bad.reason, bad.value) for bad in run.bad] == [
        (3, "bad-weight", records[3].value),
        (5, "malformed", records[5].value),
    ]
    assert alone.record is records[7] and alone.block is not None and not alone.bad
    assert updates(last) == [(1, 0, 3, 1.0, NOW)] and last.record.offset == 8


def test_any_cut_into_runs_gives_the_same(registry: SchemaRegistry) -> None:
    number = registry.register("a", EDGE)
    values: list[bytes | None] = [framed(number, avro(EDGE, edge(i, i % 3, i - 2.0))) for i in range(12)]
    values[5:5] = [None, b"", b"\0\0", b"\x01\0\0\0\x01", b"\0\xff\xff\xff\xff"]
    records = [raw(value, offset) for offset, value in enumerate(values)]
    whole = reading(registry).decode_all(records)
    single = [decoded for record in records for decoded in reading(registry).decode_all([record])]
    (run,) = whole
    assert updates(run) == [row for one in single for row in updates(one)]
    assert run.bad == [bad for one in single for bad in one.bad]
    assert [bad.reason for bad in run.bad] == ["bad-weight"] * 2 + ["malformed"] * 3 + ["unknown-schema"]


def test_long_runs_are_read_in_pieces(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_runs, "RUN_RECORDS_MAX", 3)
    number = registry.register("a", EDGE)
    records = [raw(framed(number, avro(EDGE, edge(at))), at) for at in range(7)]
    decoded = reading(registry).decode_all(records)
    assert [(one.record.offset, one.record.next_offset) for one in decoded] == [(0, 3), (3, 6), (6, 7)]
    assert [row[0] for one in decoded for row in updates(one)] == [*range(7)]


def test_named_columns_as_in_json(registry: SchemaRegistry) -> None:
    """What is named must be there; a union with null leads into it; text and digits as there."""
    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [
            {"name": "to", "type": ["string", "long"]},
            {"name": "sum", "type": ["null", "string", "bytes"]},
        ],
    }
    schema = {
        "type": "record",
        "name": "Outer",
        "fields": [{"name": "from", "type": "string"}, {"name": "body", "type": ["null", inner]}],
    }
    number = registry.register("a", schema)
    decoder = reading(registry, NamedColumns("from", "body.to", weight="body.sum"))
    bodies = [
        {"to": "12", "sum": "2.5"},
        {"to": 3, "sum": "4"},
        {"to": 3, "sum": None},
        None,
        {"to": 1, "sum": b"x"},
    ]
    records = [
        raw(framed(number, avro(schema, {"from": "1", "body": body})), at) for at, body in enumerate(bodies)
    ]
    (decoded,) = decoder.decode_all(records)
    assert updates(decoded) == [(1, 12, 1, 2.5, NOW), (1, 3, 1, 4.0, NOW)]
    assert why(decoded) == [
        ("bad-weight", "weight is null; it must be a number"),
        ("bad-column", "dst (body.to) is missing: body is null, no object"),
        ("bad-weight", "weight is a bytes; it must be a number"),
    ]
    absent = NamedColumns("from", "body.head")
    assert why(reading(registry, absent).decode(records[0])) == [("bad-column", "dst (body.head) is missing")]
    wrong = NamedColumns("from", "body")
    assert why(reading(registry, wrong).decode(records[0])) == [
        ("bad-id", "dst holds {}; ids are 64-bit integers")
    ]


def test_ids_that_are_strings(registry: SchemaRegistry) -> None:
    schema = {
        "type": "record",
        "name": "E",
        "fields": [
            {"name": "src", "type": "string"},
            {"name": "dst", "type": {"type": "fixed", "name": "F", "size": 1}},
        ],
    }
    number = registry.register("a", schema)
    text = {**schema, "fields": [schema["fields"][0], {"name": "dst", "type": "string"}]}  # type: ignore[index]
    texts = registry.register("b", text)
    decoder = reading(registry, kind="string")
    records = [
        raw(framed(texts, avro(text, {"src": "é", "dst": "b"}))),
        raw(framed(number, avro(schema, {"src": "a", "dst": b"b"}))),
        raw(framed(texts, b"\x02\xff\x02b")),
    ]
    (decoded,) = decoder.decode_all(records)
    assert updates(decoded) == [("é", "b", 1, 1.0, NOW)]
    assert why(decoded) == [
        ("bad-id", "dst holds a fixed; ids are strings"),
        ("bad-id", "src holds bytes that are not UTF-8; ids are strings"),
    ]


def test_changes_of_a_captured_table(registry: SchemaRegistry) -> None:
    """Debezium's envelope in Avro: what JSON events mean (tests/test_debezium.py); decimals are numbers here."""
    from decimal import Decimal

    value, key = registry.register("t-value", ENVELOPE), registry.register("t-key", KEY)
    changes = [
        (event("r", None, transfer(1, 10, 20, Decimal("2.50"))), [(10, 20, 1, 2.5)]),
        (event("u", transfer(1, 10, 20), transfer(1, 10, 30, Decimal(7))), [(10, 20, 0, 1.0), (10, 30, 1, 7.0)]),
        (event("d", transfer(1, 10, 30), None), [(10, 30, 0, 1.0)]),
        (event("d"), [(77, 78, 0, 1.0)]),
        (event("u", None, transfer(1, 77, 78, Decimal(3))), [(77, 78, 1, 3.0)]),
    ]
    keyed = framed(key, avro(KEY, {"payer": 77, "payee": 78}))
    records = [
        raw(framed(value, avro(ENVELOPE, change)), at, keyed, "debezium-registry")
        for at, (change, _) in enumerate(changes)
    ]
    records.append(raw(None, 5, keyed, "debezium-registry"))
    (decoded,) = reading(registry, COLUMNS).decode_all(records)
    assert not decoded.bad
    expected = [row for _, rows in changes for row in rows]
    assert updates(decoded) == [(*row, 1_559_033_904_863) for row in expected]
    plain = raw(records[3].value, 3, b'{"payer": 5, "payee": 6}', "debezium-registry")
    assert [row[:3] for row in updates(reading(registry, COLUMNS).decode(plain))] == [(5, 6, 0)]
    # Without the ends in the key such changes are of no use, whatever the key is.
    for other in (None, b"", b"{}", framed(key, b""), framed(999, b"")):
        record = raw(records[3].value, 3, other, "debezium-registry")
        assert [reason for reason, _ in why(reading(registry, COLUMNS).decode(record))] == ["bad-change"]
    plain = raw(framed(key, avro(KEY, {"payer": 1, "payee": 2})), 0, None, "debezium-registry")
    assert why(reading(registry, COLUMNS).decode(plain)) == [
        ("bad-column", "op is missing: this is no change event")
    ]


def test_changes_in_protobuf(registry: SchemaRegistry) -> None:
    """A message that is not there is null; of one that is there, a number that is not there is 0."""
    proto = """
    syntax = "proto3"; package bank.transfers;
    message Envelope { Value before = 1; Value after = 2; Source source = 3; string op = 4; }
    message Value { int64 payer = 1; int64 payee = 2; optional double amount = 3; }
    message Source { int64 ts_ms = 1; }
    """
    number = registry.register("t-value", proto, "PROTOBUF")
    created = b"\x12\x02\x10\x05" + b"\x1a\x02\x08\x07" + b"\x22\x01c"
    deleted = b"\x0a\x04\x08\x09\x10\x05" + b"\x1a\x02\x08\x08" + b"\x22\x01d"
    values = [created, deleted, b"\x22\x01d"]
    names = NamedColumns("payer", "payee")
    (decoded,) = reading(registry, names).decode_all(
        [raw(framed(number, value, b"\0"), at, None, "debezium-registry") for at, value in enumerate(values)]
    )
    assert updates(decoded) == [(0, 5, 1, 1.0, 7), (9, 5, 0, 1.0, 8)]
    assert [(bad.offset, bad.reason) for bad in decoded.bad] == [(2, "bad-change")]


def test_what_is_no_record(registry: SchemaRegistry) -> None:
    number = registry.register("a", "long")
    assert why(reading(registry).decode(raw(framed(number, b"\x02")))) == [
        ("malformed", "must be a record, not 1")
    ]
    broken = registry.register("b", "{")
    assert why(reading(registry).decode(raw(framed(broken, b"")))) == [
        ("bad-schema", "the Avro schema is not JSON")
    ]
    odd = registry.register("c", "x", "THRIFT")
    assert why(reading(registry).decode(raw(framed(odd, b"")))) == [
        ("bad-schema", f"schema {odd} is of the unknown type 'THRIFT'")
    ]
    proto = registry.register("d", PROTO, "PROTOBUF")
    assert why(reading(registry).decode(raw(framed(proto, b"", b"\x02\x08")))) == [
        ("malformed", "the schema has no message type [4]")
    ]
    json_ = registry.register("e", "{}", "JSON")
    assert [reason for reason, _ in why(reading(registry).decode(raw(framed(json_, b"[1]"))))] == ["malformed"]
    assert why(Decoder().decode(raw(framed(1, b"")))) == [
        ("unknown-encoding", "records of a schema registry need source.registry.url")
    ]


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.binary(max_size=40), max_size=4), st.booleans())
def test_no_bytes_can_stop_the_stream(registry: SchemaRegistry, values: list[bytes], events: bool) -> None:
    numbers = [registry.register("fuzz", schema, kind, number=at) for at, (schema, kind) in FUZZED.items()]
    decoder = reading(registry, COLUMNS if events else None)
    encoding = "debezium-registry" if events else "registry"
    for number in numbers:
        records = [
            raw(framed(number, value), at, framed(900, b"\x02\x04"), encoding) for at, value in enumerate(values)
        ]
        for decoded in decoder.decode_all(records):
            assert {bad.reason for bad in decoded.bad} <= set(REASONS) - {"internal"}


FUZZED: dict[int, tuple[Any, str]] = {
    900: (KEY, "AVRO"),
    901: (ENVELOPE, "AVRO"),
    902: (EDGE, "AVRO"),
    903: (PROTO, "PROTOBUF"),
    904: ("{}", "JSON"),
}


def test_a_failure_inside_is_of_its_record_alone(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = registry.register("a", EDGE)
    decoder = reading(registry)
    edges = decoder._registered.edges

    def fail(records: Sequence[RawRecord], *, events: bool) -> Any:
        if any(record.offset == 1 for record in records):
            raise RuntimeError("no luck")
        return edges(records, events=events)

    monkeypatch.setattr(decoder._registered, "edges", fail)
    first, failed, last = decoder.decode_all([raw(framed(number, avro(EDGE, edge(at))), at) for at in range(3)])
    assert [row[0] for one in (first, last) for row in updates(one)] == [0, 2]
    assert failed.block is None and not first.bad and not last.bad
    assert [(bad.offset, bad.reason, bad.detail) for bad in failed.bad] == [
        (1, "internal", "RuntimeError: no luck")
    ]


# -- schemas ------------------------------------------------------------------------------------------------


def test_references(registry: SchemaRegistry) -> None:
    """Found with all that they refer to, once each; in a circle they end."""
    registry.register("leaf", {"type": "record", "name": "far.Leaf", "fields": [{"name": "id", "type": "long"}]})
    middle = {"type": "record", "name": "far.Middle", "fields": [{"name": "leaf", "type": "far.Leaf"}]}
    registry.register("mid/dle", middle, references=[("far.Leaf", "leaf", 1)])
    top = {
        "type": "record",
        "name": "Top",
        "fields": [{"name": "a", "type": "far.Middle"}, {"name": "b", "type": "far.Leaf"}],
    }
    both = [("far.Middle", "mid/dle", 1), ("far.Leaf", "leaf", 1), ("far.Top", "circle", 1)]
    number = registry.register("circle", top, references=both)
    asked = len(registry.asked)
    decoder = reading(registry, NamedColumns("a.leaf.id", "b.id"))
    assert updates(decoder.decode(raw(framed(number, b"\x02\x04")))) == [(1, 2, 1, 1.0, NOW)]
    assert len(registry.asked) - asked == 4
    decoder.decode(raw(framed(number, b"\x02\x04")))
    assert len(registry.asked) - asked == 4, "it is kept"
    kinds = registry.register("kinds", 'syntax="proto3"; package k; message K { int64 id = 1; }', "PROTOBUF")
    assert kinds
    proto = 'syntax="proto3"; import "k.proto"; message M { k.K a = 1; k.K b = 2; }'
    number = registry.register("proto", proto, "PROTOBUF", [("k.proto", "kinds", 1)])
    decoder = reading(registry, NamedColumns("a.id", "b.id"))
    record = raw(framed(number, b"\x0a\x02\x08\x05\x12\x02\x08\x06", b"\0"))
    assert updates(decoder.decode(record)) == [(5, 6, 1, 1.0, NOW)]


def test_schemas_that_are_too_large(registry: SchemaRegistry) -> None:
    long = registry.register(
        "long",
        {
            "type": "record",
            "name": "R",
            "fields": [],
            "doc": "x" * (5054 - len(json.dumps({"type": "record", "name": "R", "fields": [], "doc": ""}))),
        },
    )
    refers = registry.register("refers", '"int"', references=[("R", "long", 1)])
    lost = registry.register("lost", '"int"', references=[("R", "nowhere", 3)])
    small = Registry(registry.url, schema_bytes_max=4000)
    for number, reason, detail in [
        (long, "bad-schema", f"schema {long} has 5054 characters; at most 4000 are allowed"),
        (
            refers,
            "bad-schema",
            f"'R', to which schema {refers} refers, has 5054 characters; at most 4000 are allowed",
        ),
        (lost, "unknown-schema", f"the registry knows no 'R', to which schema {lost} refers"),
        (77_777, "unknown-schema", "the registry knows no schema 77777"),
    ]:
        with pytest.raises(Bad) as caught:
            small.schema(number)
        assert (caught.value.reason, caught.value.detail) == (reason, detail)
    with pytest.raises(Bad, match="is too large, with all that it refers to"):
        Registry(registry.url, schema_bytes_max=5055).schema(refers)
    for at in range(REFERENCES_MAX + 1):
        registry.register(f"many{at}", '"int"')
    names = [(f"m{at}", f"many{at}", 1) for at in range(REFERENCES_MAX + 1)]
    many = registry.register("many", '"int"', references=names)
    with pytest.raises(Bad, match=f"refers to more than {REFERENCES_MAX} others"):
        Registry(registry.url).schema(many)
    wrong = registry.register("wrong", '"int"', references=[("", "x", 1)])
    with pytest.raises(Bad, match="in a way that is not understood"):
        Registry(registry.url).schema(wrong)


def test_only_so_many_schemas_are_kept(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_schemas, "KEPT_BYTES_MAX", 4 * ((1 << 10) + 16 * len(json.dumps(EDGE))))
    numbers = [registry.register(f"kept{at}", EDGE) for at in range(6)]
    decoder = reading(registry)

    def asks(number: int) -> bool:
        before = len(registry.asked)
        assert updates(decoder.decode(raw(framed(number, avro(EDGE, edge())))))
        return len(registry.asked) > before

    assert [asks(number) for number in numbers] == [True] * 6
    assert [asks(number) for number in numbers[2:]] == [False] * 4, "the ones that were used last"
    assert asks(numbers[0]) and asks(numbers[2]) and not asks(numbers[4])


def test_a_schema_of_no_use_is_read_once(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    number = registry.register("a", "message {", "PROTOBUF")
    decoder = reading(registry)
    record = raw(framed(number, b"", b"\0"))
    bad = [("bad-schema", "the Protobuf schema has '{' where a name must stand")]
    assert why(decoder.decode(record)) == bad
    monkeypatch.setattr(decode_registry, "declared", None)
    assert why(decoder.decode(record)) == bad


def test_an_id_may_become_known(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    decoder = reading(registry)
    decoder._registered._known._clock = lambda: now[0]
    record = raw(framed(5000, avro(EDGE, edge())))
    assert why(decoder.decode(record)) == [("unknown-schema", "the registry knows no schema 5000")]
    registry.register("late", EDGE, number=5000)
    asked = len(registry.asked)
    assert why(decoder.decode(record)) and len(registry.asked) == asked, "it is not asked for at every record"
    now[0] += known_schemas.UNKNOWN_S
    assert updates(decoder.decode(record)) and len(registry.asked) == asked + 1


# -- a registry that does not answer as one -------------------------------------------------------------------


ODD_ANSWERS = [
    (500, b"{}", "answers 500 to /schemas/ids/1"),
    (429, b"", "answers 429 to /schemas/ids/1"),
    (301, b"", "answers 301 to /schemas/ids/1"),
    (401, b'{"error_code": 401}', "answers 401 to /schemas/ids/1"),
    (404, b"<html>", "answers 404 to /schemas/ids/1"),
    (404, b'{"error_code": 404}', "answers 404 to /schemas/ids/1"),
    (200, b"<html>", "answers with something else than a schema to /schemas/ids/1"),
    (200, b"[]", "answers with something else than a schema to /schemas/ids/1"),
    (200, b"{}", "answers without a schema when asked for schema 1"),
]


def test_odd_answers_say_nothing_about_records() -> None:
    with SchemaRegistry() as server:
        for status, body, said in ODD_ANSWERS:
            server.answer = status, body
            with pytest.raises(RegistryAway) as caught:
                reading(server).decode(raw(framed(1, b"")))
            assert caught.value.message == f"the schema registry at {server.url} {said}"
        server.answer = 200, b'{"schema": "' + b"x" * 100_000
        with pytest.raises(Bad, match="schema 1 takes more than"):
            Registry(server.url, schema_bytes_max=1024).schema(1)
        registry = Registry(server.url, given_up=lambda: True)
        with pytest.raises(RegistryAway, match="is not asked any more"):
            registry.schema(1)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(RegistryAway, match=r"does not answer: .*refused"):
            Registry(f"http://127.0.0.1:{closed.getsockname()[1]}").schema(1)


def test_one_that_says_nothing_is_away_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RegistryAway, match="does not answer: timed out"):
            Registry(url, timeout_s=0.1).schema(1)


def test_one_that_speaks_another_language_is_named_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def speak() -> None:
            taken, _ = listening.accept()
            with taken:
                taken.recv(1 << 16)
                taken.sendall(b"220 mail ESMTP\r\n\r\n")

        speaking = threading.Thread(target=speak)
        speaking.start()
        try:
            with pytest.raises(RegistryAway, match=r"answers what is no HTTP: illegal status line$"):
                Registry(f"http://127.0.0.1:{listening.getsockname()[1]}").schema(1)
        finally:
            speaking.join()


@pytest.mark.parametrize("head", [b"", b"\r\n"])
def test_one_that_drips_is_away_in_time(head: bytes) -> None:
    """Each byte comes soon enough; all of them do not."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def drip() -> None:
            taken, _ = listening.accept()
            with taken, contextlib.suppress(OSError):  # it has hung up
                taken.sendall(b"HTTP/1.1 200 OK\r\n" + head)
                while not over.wait(0.01):
                    taken.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            with pytest.raises(RegistryAway, match="does not answer: timed out"):
                Registry(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout_s=0.2).schema(1)
        finally:
            over.set()
            dripping.join()


def test_credentials_and_certificates(tmp_path: Path) -> None:
    made = certificate(tmp_path, "registry")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    password.chmod(0o600)
    with SchemaRegistry(user="Basic YWxpOm9wZW4gc2VzYW1l", context=context) as server:
        server.register("a", EDGE)
        user = {"username": "ali", "password_file": str(password)}

        def asked(**settings: Any) -> Any:
            registry = make_registry(from_tables({"source": {"registry": {"url": server.url, **settings}}}))
            assert registry is not None
            return registry.schema(1).kind

        assert asked(ca_file=made.certificate, **user) == "AVRO"
        with pytest.raises(RegistryAway, match="answers 401"):
            asked(ca_file=made.certificate, username="ali", password="guess")
        with pytest.raises(RegistryAway, match="CERTIFICATE_VERIFY_FAILED"):
            asked(**user)
        with pytest.raises(ConfigError, match="certificates cannot be used"):
            asked(ca_file=str(password))
        assert "sesame" not in repr(Registry(server.url, "Basic sesame"))


def test_another_password_of_the_registry_needs_no_restart(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("of yesterday\n")
    password.chmod(0o600)
    with SchemaRegistry(user=basic_authorization("ali", "of today")) as server:
        number = server.register("a", EDGE)
        registry = {"url": server.url, "username": "ali", "password_file": str(password)}
        with Daemon(tmp_path / "daemon", {"source": {"registry": registry}, "program": []}) as daemon:
            (daemon.spool / "a.registry").write_bytes(frame(framed(number, avro(EDGE, edge(7)))))
            with daemon.start().client() as ask:
                until(lambda: "answers 401" in (ask.stats()["waiting"] or ""))
                password.write_text("of today\n")
                assert daemon.process is not None
                daemon.process.send_signal(signal.SIGHUP)
                until(lambda: ask.stats()["edges"] == 1)
                assert ask.stats()["dead_letters"] == {} and ask.stats()["waiting"] is None
            assert daemon.stop() == 0


def test_settings() -> None:
    def problem(**settings: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            from_tables({"source": {"registry": settings}})
        return caught.value.message

    for url in ("registry:8081", "ftp://x", "http://", "http://ali:x@y", "http://x?y", "http://x:y", "http://x#y"):
        assert "source.registry.url" in problem(url=url), url
    assert "source.registry.username" in problem(url="http://x", username="ali")
    assert "source.registry.username" in problem(url="http://x", password="abc")
    assert "source.registry.password_file" in problem(
        url="http://x", username="a", password="b", password_file="c"
    )
    assert "source.registry.url" in problem(url="http://x", ca_file="y")
    assert "source.registry.key_file" in problem(url="https://x", key_file="y")
    with pytest.raises(ConfigError, match=r"source.registry.url.*must be given when source.encoding is"):
        from_tables({"source": {"encoding": "registry"}})
    assert make_registry(from_tables({})) is None


def test_records_in_a_spool(registry: SchemaRegistry, tmp_path: Path) -> None:
    """In frames, as those of MessagePack are; a bad one is set aside at its own byte."""
    number = registry.register("a", EDGE)
    frames = [frame(framed(number, avro(EDGE, edge(at, 9)))) for at in range(3)]
    frames[1] = frame(framed(number, b""))
    (tmp_path / "edges.registry").write_bytes(b"".join(frames))
    source = SpoolSource(tmp_path)
    source.open(None)
    try:
        records = until(lambda: source.poll(1 << 20, 0.1))
    finally:
        source.close()
    (decoded,) = reading(registry).decode_all(records)
    assert [row[:2] for row in updates(decoded)] == [(0, 9), (2, 9)]
    assert [(bad.offset, bad.reason) for bad in decoded.bad] == [(len(frames[0]), "malformed")]
    assert decoded.record.next_offset == sum(map(len, frames))


@pytest.mark.parametrize("page", ["operations.md", "protocol.md"])
def test_examples_are_settings(page: str) -> None:
    text = (Path(__file__).resolve().parents[1] / "docs" / page).read_text("utf-8")
    found = [block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[source.registry]" in block]
    assert found
    for block in found:
        config = from_tables(tomllib.loads(block))
        assert config.source.encoding in REGISTERED and config.source.registry.url
        assert config.source.columns.src == "payer"


def test_the_doctor_asks_the_registry() -> None:
    with SchemaRegistry() as server:
        config = from_tables({"source": {"registry": {"url": server.url}}})
        (finding,) = doctor._registry(config)
        assert (finding.status, finding.found) == ("ok", f"{server.url} (JSON, PROTOBUF, AVRO)")
        for status, body, said in [
            (200, b"<html>", "is no schema registry"),
            (200, b"{}", "is no schema registry"),
            (401, b"{}", "answers 401 to /schemas/types"),
        ]:
            server.answer = status, body
            (finding,) = doctor._registry(config)
            assert finding.status == "fail" and said in finding.found
    assert not [*doctor._registry(from_tables({}))]


@pytest.mark.long
def test_a_real_registry(run_long: bool, tmp_path: Path) -> None:
    """Apicurio, and what it says of ids that it does not know."""
    if not run_long:
        pytest.skip("fetches 160 MB once, and starts a server")
    row = json.dumps({"type": "record", "name": "far.Row", "fields": [{"name": "id", "type": "long"}]})
    fields = [{"name": "a", "type": "far.Row"}, {"name": "b", "type": "far.Row"}]
    with apicurio(tmp_path) as url:
        register(url, "row", row, "AVRO")
        refers = [{"name": "far.Row", "subject": "row", "version": 1}]
        pair = register(
            url, "pair", json.dumps({"type": "record", "name": "Pair", "fields": fields}), "AVRO", refers
        )
        proto = register(url, "proto", PROTO, "PROTOBUF")
        draft = "http://json-schema.org/draft-07/schema#"
        document = register(url, "json", json.dumps({"$schema": draft, "type": "object"}), "JSON")
        named = Decoder(columns=NamedColumns("a.id", "b.id"), registry=Registry(url))
        assert updates(named.decode(raw(framed(pair, b"\x02\x04")))) == [(1, 2, 1, 1.0, NOW)]
        decoder = Decoder(registry=Registry(url))
        records = [
            raw(framed(proto, b"\x10\x05\x18\x06\x21" + b"\0" * 8, b"\x02\x02"), 0),
            raw(framed(document, b'{"src": 7, "dst": 8}'), 1),
            raw(framed(9999, b""), 2),
        ]
        (decoded,) = decoder.decode_all(records)
        assert updates(decoded) == [(5, 6, 1, 0.0, NOW), (7, 8, 1, 1.0, NOW)]
        assert why(decoded) == [("unknown-schema", "the registry knows no schema 9999")]


# -- the daemon -----------------------------------------------------------------------------------------------


@pytest.mark.sample(among="a daemon starts otherwise")
@pytest.mark.kafka
def test_a_daemon_waits_for_its_registry(kafka: DevKafka, tmp_path: Path) -> None:
    """Events of Debezium in Avro: while the registry is away nothing is read or lost, and ``stats`` says why."""
    topic = f"bank.public.transfers-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 2)
    changes = [
        (1, event("r", None, transfer(1, 1, 2))),
        (2, event("c", None, transfer(2, 2, 3))),
        (1, event("d", transfer(1, 1, 2), None)),
        (1, None),
        (3, event("c", None, transfer(3, 5, 6))),
    ]
    ends: dict[int, int] = {}
    with SchemaRegistry() as server:
        value, key = server.register("t-value", ENVELOPE), server.register("t-key", TRANSFER)
        with client(KafkaProducer, kafka.bootstrap) as producer:
            for number, body in [
                *((number, change and framed(value, avro(ENVELOPE, change))) for number, change in changes),
                (4, framed(99, b"nobody knows")),
            ]:
                sent = producer.send(topic, body, key=framed(key, bytes([number]))).get(timeout=30)
                ends[sent.partition] = max(ends.get(sent.partition, 0), sent.offset + 1)
        settings = {
            "source": {
                "kind": "kafka",
                "bootstrap_servers": [kafka.bootstrap],
                "topics": [topic],
                "encoding": "debezium-registry",
                "columns": {"src": "payer", "dst": "payee"},
                "registry": {"url": server.url},
            },
            "program": [{"name": "bfs", "source": 2}],
        }
        server.answer = 503, b"starting"
        with Daemon(tmp_path, settings) as daemon:
            for stopped in (True, False):
                with daemon.start().client() as ask:
                    said = until(lambda: ask.stats()["waiting"])
                    assert said == f"the schema registry at {server.url} answers 503 to /schemas/ids/{value}"
                    assert not ask.stats()["dead_letters"]
                    if stopped:
                        assert daemon.stop() == 0, "it does not wait for the registry"
                        continue
                    server.answer = None
                    result = ask.has_edge([1, 2, 5], [2, 3, 6], min_offsets={topic: ends})
                    assert result.exists.tolist() == [False, True, True]
                    assert ask.stats()["waiting"] is None
                    assert ask.stats()["dead_letters"] == {"unknown-schema": 1}
                    assert "the schema registry answers again" in daemon.log.read_text()
