"""Records that are good or bad as a whole: columnar MessagePack, and JSON documents.

Every function returns the updates, or raises ``Bad``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np
import orjson

from ...gpma.edges import Op, Ops
from ...gpma.index.ids import IdColumn
from ..records.encodings import RECORD_VERSION
from ..records.stream import UpdateBlock
from . import decode_columns as columns
from .decode_columns import Bad, Reason, Rules

OBJECT_FIELDS_MAX = 1024


def decode_msgpack(value: bytes, rules: Rules, timestamp_ms: int) -> UpdateBlock:
    """Columnar MessagePack: int64, uint8 and float32 columns are read in place from their ``bin``."""
    document = _unpack(value)
    _check_version(document.get("v"))
    _require(document, ("src",))
    n = _count(document["src"], rules)
    columns.check_count(n, rules)
    ops = _msgpack_ops(document["op"], n) if "op" in document else columns.inserts(n)
    src = _msgpack_ids("src", document["src"], n, rules)
    if _names_no_dst(document, ops):
        dst = columns.no_dst(n, rules)
    else:
        dst = _msgpack_ids("dst", document["dst"], n, rules)
        columns.check_no_dst(dst, ops)
    weights = None
    if "weight" in document:
        column = np.frombuffer(_binary("weight", document["weight"], n, 4), "<f4")
        weights = columns.checked_weights(column, rules.weights)
    if "ts" not in document:
        return UpdateBlock(src, dst, ops, weights, timestamp_ms)
    return UpdateBlock(src, dst, ops, weights, np.frombuffer(_binary("ts", document["ts"], n, 8), "<i8"))


def decode_json(value: bytes, rules: Rules, timestamp_ms: int) -> UpdateBlock:
    """One JSON document: a list of edges, columns, or a single edge."""
    return decode_document(load_json(value), rules, timestamp_ms)


def load_json(value: bytes) -> dict[str, Any]:
    """Parse one JSON object. Of a key that is there twice the last one counts."""
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise Bad(Reason.MALFORMED, f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise Bad(Reason.MALFORMED, f"must be a JSON object, not {columns.shown(document)}")
    return document


def is_one_edge(document: dict[str, Any]) -> bool:
    """Whether this is an edge object alone, not a document that holds many."""
    return "edges" not in document and not isinstance(document.get("src"), list)


def decode_document(document: dict[str, Any], rules: Rules, timestamp_ms: int) -> UpdateBlock:
    """A parsed JSON object of any of the three forms."""
    if is_one_edge(document):
        return decode_rows([document], rules, timestamp_ms)
    _check_version(document.get("v"))
    if "edges" not in document:
        return _decode_lists(document, rules, timestamp_ms)
    edges = document["edges"]
    if not isinstance(edges, list):
        raise Bad(Reason.BAD_COLUMN, f"edges must be a list of objects, not {columns.shown(edges)}")
    columns.check_count(len(edges), rules)
    if not set(map(type, edges)) <= {dict}:
        wrong = next(edge for edge in edges if type(edge) is not dict)
        raise Bad(Reason.MALFORMED, f"edges must hold objects, not {columns.shown(wrong)}")
    return decode_rows(edges, rules, timestamp_ms)


def decode_rows(rows: Sequence[dict[str, Any]], rules: Rules, timestamp_ms: int) -> UpdateBlock:
    """Edge objects, and operations on vertices, which need no dst."""
    for row in rows:
        if "v" in row:
            _check_version(row["v"])
    ops = columns.ops_of([row.get("op", "insert") for row in rows])
    try:
        src = columns.ids_of("src", [row["src"] for row in rows], rules)
        if columns.on_vertices(ops).any():
            coded = zip(rows, ops.tolist(), strict=True)
            heads = [row.get("dst") if code > Op.INSERT else row["dst"] for row, code in coded]
        else:
            heads = [row["dst"] for row in rows]
    except KeyError as missing:
        raise Bad(Reason.BAD_COLUMN, f"an edge has no {missing}") from None
    dst = columns.ids_of("dst", columns.dst_values(heads, ops, rules), rules)
    weights = None
    if any("weight" in row for row in rows):
        weights = columns.weights_of([row.get("weight", 1.0) for row in rows], rules.weights)
    if not any("ts" in row for row in rows):
        return UpdateBlock(src, dst, ops, weights, timestamp_ms)
    return UpdateBlock(
        src, dst, ops, weights, columns.timestamps_of([row.get("ts", timestamp_ms) for row in rows])
    )


def _decode_lists(document: dict[str, Any], rules: Rules, timestamp_ms: int) -> UpdateBlock:
    _require(document, ("src",))
    for name in ("src", "dst", "weight", "ts"):
        if name in document and not isinstance(document[name], list):
            raise Bad(Reason.BAD_COLUMN, f"{name} must be a list, not {columns.shown(document[name])}")
    n = len(document["src"])
    columns.check_count(n, rules)
    op = document.get("op", "insert")
    if isinstance(op, list):
        columns.check_length("op", len(op), n)
        ops = columns.ops_of(op)
    else:
        ops = np.repeat(columns.ops_of([op]), n)
    heads = [None] * n if _names_no_dst(document, ops) else document["dst"]
    columns.check_length("dst", len(heads), n)
    for name in ("weight", "ts"):
        if name in document:
            columns.check_length(name, len(document[name]), n)
    src = columns.ids_of("src", document["src"], rules)
    dst = columns.ids_of("dst", columns.dst_values(heads, ops, rules), rules)
    weights = columns.weights_of(document["weight"], rules.weights) if "weight" in document else None
    ts = columns.timestamps_of(document["ts"]) if "ts" in document else timestamp_ms
    return UpdateBlock(src, dst, ops, weights, ts)


def _unpack(value: bytes) -> dict[str, Any]:
    # Every entry takes a byte at least, so a header that claims more than the record holds is refused unread.
    size = len(value)
    try:
        document = msgpack.unpackb(
            value,
            object_pairs_hook=_unique,
            max_str_len=size,
            max_bin_len=size,
            max_array_len=size,
            max_map_len=min(size, OBJECT_FIELDS_MAX),
            max_ext_len=size,
        )
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        text = str(error) or type(error).__name__
        raise Bad(Reason.MALFORMED, f"not MessagePack: {text[:200]}") from None
    if not isinstance(document, dict):
        raise Bad(Reason.MALFORMED, f"must be a MessagePack map, not {columns.shown(document)}")
    return document


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise Bad(Reason.MALFORMED, "a map holds a key twice")
    return mapping


def _check_version(version: object) -> None:
    if type(version) is not int or version != RECORD_VERSION:
        given = "missing" if version is None else columns.shown(version)
        raise Bad(Reason.UNSUPPORTED_VERSION, f"v is {given}; only {RECORD_VERSION} is understood")


def _require(document: dict[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if name not in document:
            raise Bad(Reason.BAD_COLUMN, f"{name} is missing")


def _names_no_dst(document: dict[str, Any], ops: Ops) -> bool:
    """Whether dst is left out, as it may be where every update is an operation on a vertex."""
    if document.get("dst") or not columns.on_vertices(ops).all():
        _require(document, ("dst",))
        return False
    return True


def _count(src: object, rules: Rules) -> int:
    if rules.vertex_ids == "string":
        if isinstance(src, list):
            return len(src)
        raise Bad(Reason.BAD_COLUMN, "src must be an array of strings: this graph's ids are strings")
    if not isinstance(src, bytes):
        raise Bad(Reason.BAD_COLUMN, "src must be bin, little-endian int64: this graph's ids are integers")
    return len(src) // 8


def _msgpack_ids(name: str, value: Any, n: int, rules: Rules) -> IdColumn:
    if rules.vertex_ids == "int":
        return np.frombuffer(_binary(name, value, n, 8), "<i8")
    if not isinstance(value, list):
        raise Bad(Reason.BAD_COLUMN, f"{name} must be an array of strings")
    columns.check_length(name, len(value), n)
    return columns.ids_of(name, value, rules)


def _msgpack_ops(op: object, n: int) -> Ops:
    if isinstance(op, str):
        return np.repeat(columns.ops_of([op]), n)
    ops = np.frombuffer(_binary("op", op, n, 1), np.uint8)
    columns.check_ops(ops)
    return ops


def _binary(name: str, value: object, n: int, item_bytes: int) -> bytes:
    if not isinstance(value, bytes):
        raise Bad(Reason.BAD_COLUMN, f"{name} must be bin, not {columns.shown(value)}")
    if len(value) != n * item_bytes:
        raise Bad(Reason.BAD_COLUMN, f"{name} has {len(value)} bytes; {n} updates need {n * item_bytes}")
    return value
