"""Avro's binary encoding, beside fastavro; and that no record and no schema can cost more than its bytes."""

from __future__ import annotations

import decimal
import io
import json
import uuid
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples

from graphtide.daemon.ingest.avro import DEPTH_MAX, NODES_MAX, STEPS_MIN, Layout, layout
from graphtide.daemon.ingest.captured import Path, Wanted
from graphtide.daemon.ingest.decode_columns import Bad

ROW = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "payer", "type": ["null", "long"]},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "bytes"}}},
        {"name": "amount", "type": ["double", "string", "null"]},
    ],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "bank.transfers",
    "fields": [
        {"name": "before", "type": ["null", ROW]},
        {"name": "after", "type": ["null", "Row"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["c", "d"]}},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 3}},
        {"name": "sure", "type": "boolean"},
        {"name": "share", "type": "float"},
    ],
}
PATHS: list[Path] = [
    ("before", "payer"),
    ("after", "payer"),
    ("after", "amount"),
    ("after", "tags"),
    ("kind",),
    ("sure",),
    ("share",),
    ("nothing", "here"),
]


def encoded(schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def laid_out(schema: Any, paths: Any = (), time: Path | None = None, references: Any = ()) -> Layout:
    return layout(json.dumps(schema), map(json.dumps, references), Wanted(paths, time))


def why_bad(schema: Any, record: bytes) -> str | None:
    _, bad = laid_out(schema).read([record])
    return bad[0].detail.partition(": ")[2] if bad else None


rows = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**31), 2**31 - 1),
        "payer": st.none() | st.integers(-(2**63), 2**63 - 1),
        "tags": st.dictionaries(st.text(max_size=3), st.lists(st.binary(max_size=4), max_size=3), max_size=3),
        "amount": st.floats(allow_nan=False) | st.text(max_size=5) | st.none(),
    }
)
envelopes = st.fixed_dictionaries(
    {
        "before": st.none() | rows,
        "after": st.none() | rows,
        "kind": st.sampled_from("cd"),
        "mark": st.binary(min_size=3, max_size=3),
        "sure": st.booleans(),
        "share": st.floats(width=32, allow_nan=False),
    }
)


@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(envelopes, min_size=1, max_size=5))
def test_reads_what_is_wanted_as_fastavro_wrote_it(values: list[dict[str, Any]]) -> None:
    found, bad = laid_out(ENVELOPE, PATHS).read([encoded(ENVELOPE, value) for value in values])
    assert not bad
    for document, value in zip(found.documents(), values, strict=True):
        assert document.keys() == {"before", "after", "kind", "sure", "share"}
        assert [document[name] for name in ("kind", "sure", "share")] == [
            value["kind"],
            value["sure"],
            value["share"],
        ]
        if value["before"] is None:
            assert document["before"] is None
        else:
            assert document["before"] == {"payer": value["before"]["payer"]}
        if value["after"] is None:
            assert document["after"] is None
        else:
            assert repr(document["after"].pop("tags")) == "a map"
            assert document["after"] == {name: value["after"][name] for name in ("payer", "amount")}


LOGICAL = [
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, decimal.Decimal("-12.34"), -12.34),
    ({"type": "bytes", "logicalType": "decimal", "precision": 30}, decimal.Decimal(10**20), 10**20),
    ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=7), str(uuid.UUID(int=7))),
    ({"type": "long", "logicalType": "timestamp-micros"}, datetime(1970, 1, 1, 0, 0, 3, 5000, UTC), 3005),
    ({"type": "long", "logicalType": "timestamp-millis"}, datetime(1969, 12, 31, 23, 59, 59, 0, UTC), -1000),
    ({"type": "int", "logicalType": "date"}, datetime(1970, 1, 3, tzinfo=UTC).date(), 2 * 86_400_000),
    ({"type": "long", "connect.name": "io.debezium.time.NanoTimestamp"}, 5_000_001, 5),
    ("long", 7, 7),
    ({"type": "long", "logicalType": "what nobody knows"}, 8, 8),
]


@pytest.mark.parametrize(("kind", "value", "expected"), LOGICAL)
@pytest.mark.parametrize("nullable", [False, True])
def test_logical_types(kind: Any, value: Any, expected: Any, nullable: bool) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "x", "type": ["null", kind] if nullable else kind}],
    }
    found, bad = laid_out(schema, [("x",)], ("x",)).read([encoded(schema, {"x": value})])
    assert not bad and found.documents() == [{"x": expected}]


def test_times_are_only_what_is_wanted_as_one() -> None:
    """An id may be of any type: it stays the number that it is."""
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "x", "type": {"type": "long", "logicalType": "timestamp-micros"}}],
    }
    found, _ = laid_out(schema, [("x",)]).read([b"\x06"])
    assert found.documents() == [{"x": 3}]


def test_every_byte_that_is_missing_or_too_many_is_noticed() -> None:
    row = {"id": 1, "payer": 300, "tags": {"a": [b"x", b"yz"], "b": []}, "amount": "2.5"}
    value = {"before": row, "after": row, "kind": "d", "mark": b"123", "sure": True, "share": 1.5}
    whole = encoded(ENVELOPE, value)
    plan = laid_out(ENVELOPE, PATHS)
    found, bad = plan.read([whole, *(whole[:cut] for cut in range(len(whole))), whole + b"\0", whole])
    assert set(bad) == set(range(1, len(whole) + 2)), "the ones beside them are not touched"
    assert bad[len(whole) + 1].detail == "no Avro of this schema: bytes are left behind it"
    documents = found.documents()
    assert documents[0]["after"]["payer"] == documents[-1]["after"]["payer"] == 300


ARRAY, NULLS = ({"type": "array", "items": items} for items in ("long", "null"))
CHAIN = {
    "type": "record",
    "name": "Chain",
    "fields": [{"name": "next", "type": ["null", "Chain"]}],
}
WRONG = [
    ("long", b"\xff" * 9 + b"\x02", "a number of more than 64 bits"),
    ("string", b"\x01", "a negative length"),
    ("string", b"\x80\x80\x80\x80\x80\x80\x80\x80\x7f", "it ends too early"),
    (["null", "long"], b"\x04\x00", "a branch that the union has not"),
    (["null", "long"], b"\x01\x00", "a branch that the union has not"),
    ({"type": "enum", "name": "E", "symbols": ["a"]}, b"\x02", "a symbol that the enumeration has not"),
    (ARRAY, b"\x01\x01\x00", "a negative length"),
    ({"type": "map", "values": "null"}, b"\x02\x01", "a negative length"),
    (CHAIN, b"\x02" * DEPTH_MAX + b"\x00", f"more than {DEPTH_MAX} values within each other"),
    ({"type": "array", "items": "null"}, encoded("long", 1 << 60) + b"\0", "more values than its bytes may hold"),
    (
        {"type": "array", "items": "null"},
        encoded("long", -(1 << 63)) + b"\0",
        "more values than its bytes may hold",
    ),
]


@pytest.mark.parametrize(("schema", "record", "why"), WRONG)
def test_exact_reasons(schema: Any, record: bytes, why: str) -> None:
    assert why_bad(schema, record) == why


def test_blocks_that_say_how_long_they_are() -> None:
    assert why_bad(ARRAY, b"\x03\x04\x02\x04\x00") is None
    assert why_bad(CHAIN, b"\x02" * (DEPTH_MAX - 1) + b"\x00") is None
    assert why_bad(NULLS, encoded("long", STEPS_MIN // 2) + b"\0") is None


def test_referred_types_and_namespaces() -> None:
    other = {"type": "record", "name": "other.Row", "fields": [{"name": "x", "type": "long"}]}
    schema = {
        "type": "record",
        "name": "R",
        "namespace": "here",
        "fields": [
            {"name": "a", "type": "other.Row"},
            {"name": "b", "type": {"type": {"type": "long"}}},
            {"name": "c", "type": {"type": "Kind"}},
            {"name": "d", "type": {"type": "enum", "name": "Kind", "symbols": ["k"]}},
        ],
    }
    plan = laid_out(schema, [("a", "x"), ("b",), ("c",), ("d",)], references=[other])
    found, bad = plan.read([b"\x02\x04\x00\x00"])
    assert not bad and found.documents() == [{"a": {"x": 1}, "b": 2, "c": "k", "d": "k"}]


def nested(depth: int) -> Any:
    schema: Any = "long"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def doubling(levels: int) -> Any:
    """Each record has two of the next: few types, which stand for two to the power of ``levels`` values."""
    schema: Any = "null"
    for level in range(levels):
        inner = f"R{level - 1}" if level else "null"
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": inner}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return schema


BAD_SCHEMAS = [
    ("{", "is not JSON"),
    ('{"type": "record"}', "has a type without a name"),
    ('{"type": "record", "name": "R"}', "has a record without fields"),
    ('{"type": "record", "name": "R", "fields": [{"name": 1, "type": "int"}]}', "has a record without fields"),
    ('{"type": "enum", "name": "E", "symbols": 7}', "has an enumeration without symbols"),
    ('{"type": "fixed", "name": "F", "size": -1}', "has a fixed of size -1"),
    ('{"type": "fixed", "name": "F", "size": 1e99}', "has a fixed of size 1e+99"),
    ('["null", ["long"]]', "has a union within a union"),
    ('"Row"', "names the type 'Row', which is not there"),
    ('{"type": 7}', "has a type that is not understood: {'type': 7}"),
    ("7", "has a type that is not understood: 7"),
    ('{"type": "array"}', "has a type that is not understood: null"),
    (json.dumps(["null"] * (NODES_MAX + 1)), f"has more than {NODES_MAX} types"),
    ("[" * 5000 + "]" * 5000, "is not JSON"),
]


@pytest.mark.parametrize(("text", "why"), BAD_SCHEMAS)
def test_schemas_that_are_of_no_use(text: str, why: str) -> None:
    with pytest.raises(Bad) as caught:
        layout(text, (), Wanted([("x",)]))
    assert caught.value.detail == f"the Avro schema {why}"
    assert caught.value.reason == "bad-schema"


def test_types_that_stand_for_too_many_values() -> None:
    """They cost what their text costs, and a record no more steps than its bytes allow."""
    plan = laid_out(doubling(60), [("a",), ("b", "a")])
    assert len(plan.nodes) < 1000
    assert plan.read([b""])[1][0].detail == "no Avro of this schema: more values than its bytes may hold"
    deep = laid_out(nested(DEPTH_MAX + 1))
    assert not deep.read([b"\0"])[1]
    text = '{"type": ' * 900 + '"long"' + "}" * 900
    with pytest.raises(Bad, match="lead nowhere"):
        layout(text, (), Wanted([]))


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_no_bytes_can_stop_the_stream(records: list[bytes]) -> None:
    for schema in (ENVELOPE, CHAIN, doubling(5)):
        plan = laid_out(schema, PATHS)
        found, bad = plan.read(records)
        for row, document in enumerate(found.documents()):
            again, alone = plan.read([records[row]])
            assert (row in bad) == (0 in alone)
            assert repr(document) == repr(again.documents()[0]) or row in bad


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["record", "R", "long", "null", "array"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "name", "fields", "items", "symbols", "size"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=examples(150))
@given(json_values)
def test_no_schema_can_stop_the_stream(schema: Any) -> None:
    try:
        plan = laid_out(schema, PATHS)
    except Bad as bad:
        if bad.reason != "bad-schema":
            raise
    else:
        plan.read([b"", b"\0\0\0"])[0].documents()
