"""Records of one update each in Avro, as producers write them with a schema registry.

A zero byte, the schema's id, and the values in the order of its fields:
https://avro.apache.org/docs/1.12.0/specification/, "Binary encoding".

Records are made of whole columns: a row of bytes for each update, in which some are left out.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Op
from ...gpma.index.ids import IdColumn, StringColumn
from .columns import UpdateColumns

Bytes = npt.NDArray[np.uint8]
Rows = tuple[Bytes, npt.NDArray[np.bool_]]
"""uint8[n, width], and which of these bytes there are."""

OPS = tuple(op.name.lower() for op in sorted(Op))
_VARINT_BYTES = 10


def edge_schema(vertex_ids: Literal["int", "string"]) -> str:
    """The schema of the records: fields by our own names; ``dst``, ``weight`` and ``ts`` are null where there is
    none."""
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
    """One record of each update, of the schema ``edge_schema`` that the registry has under this id."""
    n = len(columns)
    edges = columns.ops <= Op.INSERT
    head = np.frombuffer(b"\0" + schema_id.to_bytes(4, "big"), np.uint8)
    parts = [
        _all(np.broadcast_to(head, (n, head.size))),
        _id(columns.src),
        *_nullable(_id(columns.dst), edges),
        _all(2 * columns.ops[:, None]),  # a symbol's number, which is below 64
        *_optional(None if columns.weights is None else _float(columns.weights), n),
        *_optional(None if columns.timestamps_ms is None else _long(columns.timestamps_ms), n),
    ]
    there = np.concatenate([part[1] for part in parts], axis=1)
    data = np.concatenate([part[0] for part in parts], axis=1)[there].tobytes()
    bounds = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).tolist()
    return [data[begin:end] for begin, end in itertools.pairwise(bounds)]


def _all(rows: Bytes) -> Rows:
    return rows, np.ones(rows.shape, bool)


def _long(values: npt.NDArray[np.int64]) -> Rows:
    """Seven bits a byte, the lowest first, of a number whose sign is its lowest bit."""
    signed = values.astype(np.int64)
    left = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    groups = left[:, None] >> (7 * np.arange(_VARINT_BYTES, dtype=np.uint64))
    more = np.zeros(groups.shape, bool)
    more[:, :-1] = groups[:, 1:] != 0
    there = np.ones(groups.shape, bool)
    there[:, 1:] = groups[:, 1:] != 0
    return ((groups & np.uint64(0x7F)) | (more.astype(np.uint64) << np.uint64(7))).astype(np.uint8), there


def _float(values: npt.NDArray[np.float32]) -> Rows:
    return _all(np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1, 4))


def _id(ids: IdColumn) -> Rows:
    if not isinstance(ids, StringColumn):
        return _long(ids)
    lengths = ids.lengths
    width = int(lengths.max(initial=0))
    there = np.arange(width) < lengths[:, None]
    text = np.zeros(there.shape, np.uint8)
    text[there] = ids.data[ids.offsets[0] : ids.offsets[-1]]
    return _joined(_long(lengths), (text, there))


def _joined(*parts: Rows) -> Rows:
    return np.concatenate([rows for rows, _ in parts], axis=1), np.concatenate([some for _, some in parts], axis=1)


def _nullable(rows: Rows, given: npt.NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """Of a union with null: which of its types, and the value where there is one."""
    return _all(2 * given[:, None].astype(np.uint8)), (rows[0], rows[1] & given[:, None])


def _optional(rows: Rows | None, n: int) -> tuple[Rows, ...]:
    if rows is None:
        return (_all(np.zeros((n, 1), np.uint8)),)
    return _nullable(rows, np.ones(n, bool))
