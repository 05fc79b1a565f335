"""Records of one update each in Avro, Protobuf and JSON, as producers write them with a schema registry.

A zero byte, the schema's id (in Protobuf also which of its message types), and the update:

- Avro: the values in the order of the schema's fields, https://avro.apache.org/docs/1.12.0/specification/, "Binary
  encoding";
- Protobuf: tags and values, https://protobuf.dev/programming-guides/encoding/, byte for byte what Google's library
  writes;
- JSON: an object, https://json-schema.org/draft-07.

Records of the first two are made of whole columns (``byte_rows``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson

from ...gpma.edges import Op
from ...gpma.index.ids import IdColumn, StringColumn
from . import byte_rows
from .byte_rows import Rows
from .columns import UpdateColumns
from .encodings import SchemaKind

VertexIds = Literal["int", "string"]

OPS = tuple(op.name.lower() for op in sorted(Op))
_NAMED = np.array(OPS, object)
_FIRST_TYPE = b"\0"  # of the message types of a schema in Protobuf

# In proto3 what is not set has the number 0, which must be what an update is that says nothing of its operation.
_PROTO_OPS = (Op.INSERT, Op.DELETE, Op.INSERT_VERTEX, Op.DELETE_VERTEX)
_PROTO_NUMBERS = np.argsort(_PROTO_OPS).astype(np.uint64)
_VARINT, _TEXT, _HALF = 0, 2, 5  # wire types


class RecordForm(NamedTuple):
    """How records of a type of schema are made.

    ``schema``: its text, for vertex ids of this kind; ``records``: one record of each update, of that schema under
    the id that the registry has given it.
    """

    schema: Callable[[VertexIds], str]
    records: Callable[[UpdateColumns, int], list[bytes]]


# -- Avro ---------------------------------------------------------------------------------------------------


def avro_schema(vertex_ids: VertexIds) -> str:
    """The schema of ``avro_records``: our own names; null where there is no ``dst``, ``weight`` or ``ts``."""
    id_type = "long" if vertex_ids == "int" else "string"
    fields: list[dict[str, Any]] = [
        {"name": "src", "type": id_type},
        {"name": "dst", "type": ["null", id_type], "default": None},
        {"name": "op", "type": {"type": "enum", "name": "Op", "symbols": OPS, "default": "insert"}},
        {"name": "weight", "type": ["null", "float"], "default": None},
        {"name": "ts", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
    ]
    return json.dumps({"type": "record", "name": "Edge", "namespace": "graphtide", "fields": fields})


def avro_records(columns: UpdateColumns, schema_id: int) -> list[bytes]:
    """One record of each update, of ``avro_schema``."""
    n = len(columns)
    null = byte_rows.constant(b"\0", n)
    a_value = byte_rows.constant(b"\2", n)

    def given(rows: Rows) -> Rows:
        return byte_rows.joined(a_value, rows)

    dst = given(_avro_id(columns.dst))
    edges = columns.ops <= np.uint8(Op.INSERT)
    weights, times = columns.weights, columns.timestamps_ms
    return byte_rows.cut(
        byte_rows.constant(_head(schema_id), n),
        _avro_id(columns.src),
        byte_rows.where(~edges, null),
        byte_rows.where(edges, dst),
        byte_rows.varints(byte_rows.zigzag(columns.ops.astype(np.int64))),
        null if weights is None else given(byte_rows.floats(weights)),
        null if times is None else given(byte_rows.varints(byte_rows.zigzag(times))),
    )


def _avro_id(ids: IdColumn) -> Rows:
    if not isinstance(ids, StringColumn):
        return byte_rows.varints(byte_rows.zigzag(ids))
    return byte_rows.joined(byte_rows.varints(byte_rows.zigzag(ids.lengths)), byte_rows.texts(ids))


# -- Protobuf -----------------------------------------------------------------------------------------------


_PROTOBUF_SCHEMA = """\
syntax = "proto3";
package graphtide;

message Edge {
  enum Op { %s }
  %s src = 1;
  optional %s dst = 2;
  Op op = 3;
  optional float weight = 4;
  optional int64 ts = 5;  // milliseconds since 1970
}
"""


def protobuf_schema(vertex_ids: VertexIds) -> str:
    """The schema of ``protobuf_records``: our own names; ``dst``, ``weight`` and ``ts`` need not be set."""
    id_type = "int64" if vertex_ids == "int" else "string"
    ops = " ".join(f"{op.name.lower()} = {number};" for number, op in enumerate(_PROTO_OPS))
    return _PROTOBUF_SCHEMA % (ops, id_type, id_type)


def protobuf_records(columns: UpdateColumns, schema_id: int) -> list[bytes]:
    """One record of each update, of ``protobuf_schema``.

    As the format has it, ``src`` and ``op`` are not written where they are 0 or empty.
    """
    n = len(columns)
    src, dst, weights, times = columns.src, columns.dst, columns.weights, columns.timestamps_ms
    named = (src.lengths if isinstance(src, StringColumn) else src) != 0
    ops = _PROTO_NUMBERS[columns.ops]
    fields = [
        byte_rows.where(named, _proto_id(1, src)),
        byte_rows.where(columns.ops <= np.uint8(Op.INSERT), _proto_id(2, dst)),
        byte_rows.where(ops != 0, _field(3, _VARINT, byte_rows.varints(ops))),
    ]
    if weights is not None:
        fields.append(_field(4, _HALF, byte_rows.floats(weights)))
    if times is not None:
        fields.append(_field(5, _VARINT, byte_rows.varints(times.astype(np.int64).view(np.uint64))))
    return byte_rows.cut(byte_rows.constant(_head(schema_id) + _FIRST_TYPE, n), *fields)


def _proto_id(number: int, ids: IdColumn) -> Rows:
    if not isinstance(ids, StringColumn):
        return _field(number, _VARINT, byte_rows.varints(ids.astype(np.int64).view(np.uint64)))
    lengths = byte_rows.varints(ids.lengths.astype(np.uint64))
    return _field(number, _TEXT, byte_rows.joined(lengths, byte_rows.texts(ids)))


def _field(number: int, wire: int, rows: Rows) -> Rows:
    """Values behind their tag; numbers are below 16, so that it is one byte."""
    return byte_rows.joined(byte_rows.constant(bytes([number << 3 | wire]), len(rows[0])), rows)


# -- JSON ---------------------------------------------------------------------------------------------------


def json_schema(vertex_ids: VertexIds) -> str:
    """The schema of ``json_records``: our own names, all but ``src`` left out where they say nothing.

    No other properties are allowed: registries would take none that a later version adds for compatible.
    """
    an_id = {"type": "integer" if vertex_ids == "int" else "string"}
    properties = {
        "src": an_id,
        "dst": an_id,
        "op": {"type": "string", "enum": OPS, "default": "insert"},
        "weight": {"type": "number"},
        "ts": {"type": "integer", "description": "milliseconds since 1970"},
    }
    return json.dumps(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "Edge",
            "type": "object",
            "properties": properties,
            "required": ["src"],
            "additionalProperties": False,
        }
    )


def json_records(columns: UpdateColumns, schema_id: int) -> list[bytes]:
    """One record of each update, of ``json_schema``."""
    head, n = _head(schema_id), len(columns)
    weights, times = columns.weights, columns.timestamps_ms
    rows = zip(
        _values(columns.src),
        _values(columns.dst),
        _NAMED[columns.ops].tolist(),
        [None] * n if weights is None else weights.tolist(),
        [None] * n if times is None else times.tolist(),
        strict=True,
    )
    # A record at a time, as whoever sends them takes them: text has no rows of a width that is worth filling.
    return [head + orjson.dumps(_object(*row)) for row in rows]


def _object(src: Any, dst: Any, op: str, weight: float | None, ts: int | None) -> dict[str, Any]:
    of_edge = op in ("insert", "delete")
    made = {
        "src": src,
        "dst": dst if of_edge else None,
        "op": None if op == "insert" else op,
        "weight": weight,
        "ts": ts,
    }
    return {name: value for name, value in made.items() if value is not None}


def _values(ids: IdColumn) -> list[Any]:
    return ids.to_list() if isinstance(ids, StringColumn) else ids.tolist()


FORMS: dict[SchemaKind, RecordForm] = {
    "AVRO": RecordForm(avro_schema, avro_records),
    "PROTOBUF": RecordForm(protobuf_schema, protobuf_records),
    "JSON": RecordForm(json_schema, json_records),
}


def _head(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")
