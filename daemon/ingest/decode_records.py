"""Records of many updates: columnar MessagePack, and JSON documents.

What is wrong with their form makes them bad as a whole: ``Bad`` is raised. Rows that break a rule are sifted out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, cast

import msgpack
import numpy as np
import orjson

from ...gpma.edges import Op, Ops
from ...gpma.index.ids import IdColumn, IntColumn
from ..records.encodings import RECORD_VERSION
from ..records.stream import UpdateBlock
from . import decode_columns as columns
from .decode_columns import Bad, Reason, Rules
from .sift import Sifted, sift

OBJECT_FIELDS_MAX = 1024
_REGISTRY_HEADER_BYTES = 5
_MAPS = (*range(0x80, 0x90), 0xDE, 0xDF)
"""How maps of MessagePack begin."""

Edge = dict[str, Any]
"""An edge object by our own names, or an operation on a vertex."""


class JsonForm(NamedTuple):
    """How the objects of JSON records are to be read.

    ``read``: what an object stands for, all good or bad together, or None where it is a document of many;
    ``edges``: the edge objects in several such.
    """

    read: Callable[[dict[str, Any]], Any]
    edges: Callable[[Sequence[Any]], Sequence[Edge]]


def one_each(edges: Sequence[Edge]) -> Sequence[Edge]:
    """The edges where every object stands for one."""
    return edges


@dataclass(slots=True)
class _Columns:
    """Columns of one length, as given: arrays, lists, or one operation for all. ``pack`` makes a record."""

    given: dict[str, Any]
    pack: Callable[[dict[str, Any]], bytes]

    def __len__(self) -> int:
        return len(self.given["src"])

    def take(self, rows: IntColumn) -> Self:
        return type(self)({name: _picked(column, rows) for name, column in self.given.items()}, self.pack)

    def convert(self, rules: Rules, timestamp_ms: int) -> UpdateBlock:
        given, n = self.given, len(self)
        ops = _ops(given.get("op"), n)
        src = _ids("src", given["src"], rules)
        if "dst" in given:
            dst = _heads(given["dst"], ops, rules)
        elif columns.on_vertices(ops).all():
            dst = columns.no_dst(n, rules)
        else:
            raise Bad(Reason.BAD_COLUMN, "dst is missing or empty")
        weights, ts = given.get("weight"), given.get("ts", timestamp_ms)
        if isinstance(weights, list):
            weights = columns.weights_of(weights, ops, rules.weights)
        elif weights is not None:
            weights = columns.checked_weights(weights, ops, rules.weights)
        ts = columns.timestamps_of(ts) if isinstance(ts, list) else ts
        return UpdateBlock(src, dst, ops, weights, columns.checked_times(ts, ops, rules))

    def encode(self) -> bytes:
        return self.pack({"v": RECORD_VERSION, **self.given})


@dataclass(slots=True)
class _Edges:
    """JSON objects, one an update."""

    edges: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.edges)

    def take(self, rows: IntColumn) -> Self:
        return type(self)([self.edges[row] for row in rows.tolist()])

    def convert(self, rules: Rules, timestamp_ms: int) -> UpdateBlock:
        return decode_rows(self.edges, rules, timestamp_ms)

    def encode(self) -> bytes:
        return orjson.dumps({"v": RECORD_VERSION, "edges": self.edges})


def decode_msgpack(value: bytes, rules: Rules, timestamp_ms: int) -> Sifted:
    """Columnar MessagePack: int64, uint8 and float32 columns are read in place from their ``bin``."""
    document = _unpack(value)
    _check_version(document.get("v"))
    _require(document, ("src",))
    n = _count(document["src"], rules)
    columns.check_count(n, rules)
    given: dict[str, Any] = {"src": _msgpack_ids("src", document["src"], n, rules)}
    if document.get("dst"):
        given["dst"] = _msgpack_ids("dst", document["dst"], n, rules)
    if "op" in document:
        op = document["op"]
        given["op"] = op if isinstance(op, str) else np.frombuffer(_binary("op", op, n, 1), np.uint8)
    if "weight" in document:
        given["weight"] = np.frombuffer(_binary("weight", document["weight"], n, 4), "<f4")
    if "ts" in document:
        given["ts"] = np.frombuffer(_binary("ts", document["ts"], n, 8), "<i8")
    return sift(_Columns(given, _pack_msgpack), rules, timestamp_ms)


def decode_json(value: bytes, form: JsonForm, rules: Rules, timestamp_ms: int) -> Sifted:
    """One JSON document: a list of edges, columns, or an object that stands for edges by itself."""
    document = load_json(value)
    item = form.read(document)
    if item is None:
        return decode_document(document, rules, timestamp_ms)
    edges = form.edges([item])
    return Sifted(decode_rows(edges, rules, timestamp_ms) if edges else None)


def load_json(value: bytes) -> dict[str, Any]:
    """Parse one JSON object. Of a key that is there twice the last one counts."""
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise Bad(Reason.MALFORMED, f"not JSON: {error}{_what_else(value, 'JSON')}") from None
    if not isinstance(document, dict):
        raise Bad(Reason.MALFORMED, f"must be a JSON object, not {columns.shown(document)}")
    return document


def plain_edge(document: dict[str, Any]) -> Edge | None:
    """An edge object alone, by our own names; None: a document that holds many."""
    return None if "edges" in document or isinstance(document.get("src"), list) else document


def decode_document(document: dict[str, Any], rules: Rules, timestamp_ms: int) -> Sifted:
    """A parsed JSON object that holds many updates: a list of edges, or columns."""
    _check_version(document.get("v"))
    if "edges" not in document:
        return sift(_listed_columns(document, rules), rules, timestamp_ms)
    edges = document["edges"]
    if not isinstance(edges, list):
        raise Bad(Reason.BAD_COLUMN, f"edges must be a list of objects, not {columns.shown(edges)}")
    columns.check_count(len(edges), rules)
    return sift(_Edges(edges), rules, timestamp_ms)


def decode_rows(rows: Sequence[dict[str, Any]], rules: Rules, timestamp_ms: int) -> UpdateBlock:
    """Edge objects, and operations on vertices, which need no dst.

    Raises:
        BadRows: some of them are bad.
    """
    if not set(map(type, rows)) <= {dict}:
        why = "edges must hold objects, not "
        raise columns.refused(
            Reason.MALFORMED, rows, lambda row: type(row) is dict, lambda row: why + columns.shown(row)
        )
    for row in rows:
        if "v" in row and not _is_version(row["v"]):
            raise columns.refused(
                Reason.UNSUPPORTED_VERSION,
                rows,
                lambda row: _is_version(row.get("v", RECORD_VERSION)),
                lambda row: _why_no_version(row["v"]),
            )
    ops = columns.ops_of([row.get("op", "insert") for row in rows])
    try:
        src = columns.ids_of("src", [row["src"] for row in rows], rules)
        if columns.on_vertices(ops).any():
            coded = zip(rows, ops.tolist(), strict=True)
            heads = [row.get("dst") if code > Op.INSERT else row["dst"] for row, code in coded]
        else:
            heads = [row["dst"] for row in rows]
    except KeyError:
        raise columns.refused(
            Reason.BAD_COLUMN,
            rows,
            lambda row: "src" in row and ("dst" in row or columns.on_a_vertex(row.get("op"))),
            lambda row: f"an edge has no {'dst' if 'src' in row else 'src'}",
        ) from None
    dst = columns.ids_of("dst", columns.dst_values(heads, ops, rules), rules)
    weights = None
    if any("weight" in row for row in rows):
        weights = columns.weights_of([row.get("weight", 1.0) for row in rows], ops, rules.weights)
    ts: IntColumn | int = timestamp_ms
    if any("ts" in row for row in rows):
        ts = columns.timestamps_of([row.get("ts", timestamp_ms) for row in rows])
    return UpdateBlock(src, dst, ops, weights, columns.checked_times(ts, ops, rules))


def _listed_columns(document: dict[str, Any], rules: Rules) -> _Columns:
    _require(document, ("src",))
    given: dict[str, Any] = {
        name: document[name] for name in ("src", "dst", "op", "weight", "ts") if name in document
    }
    n = 0
    for name, column in given.items():
        if isinstance(column, list):
            n = n if name != "src" else len(column)
            if name != "dst" or column:
                columns.check_length(name, len(column), n)
        elif name != "op":
            raise Bad(Reason.BAD_COLUMN, f"{name} must be a list, not {columns.shown(column)}")
    columns.check_count(n, rules)
    if not given.get("dst"):
        given.pop("dst", None)
    return _Columns(given, orjson.dumps)


def _picked(column: Any, rows: IntColumn) -> Any:
    if isinstance(column, list):
        return [column[row] for row in rows.tolist()]
    return column[rows] if isinstance(column, np.ndarray) else column


def _pack_msgpack(given: dict[str, Any]) -> bytes:
    return bytes(msgpack.packb(given, default=lambda column: column.tobytes()))


def _ops(given: Any, n: int) -> Ops:
    if given is None:
        return columns.inserts(n)
    if isinstance(given, np.ndarray):
        columns.check_ops(given)
        return given
    return columns.ops_of(given) if isinstance(given, list) else columns.ops_named(given, n)


def _ids(name: str, given: Any, rules: Rules) -> IdColumn:
    return columns.ids_of(name, given, rules) if isinstance(given, list) else given


def _heads(given: Any, ops: Ops, rules: Rules) -> IdColumn:
    if isinstance(given, list):
        return columns.ids_of("dst", columns.dst_values(given, ops, rules), rules)
    columns.check_no_dst(given, ops)
    return cast(IntColumn, given)


def _what_else(value: bytes, taken_for: Literal["JSON", "MessagePack"]) -> str:
    """What a value may be that is not of its encoding, to be said behind that: producers of other records often do
    not name what they write."""
    other, begin = "", value[:64].lstrip()
    if begin.startswith((b"{", b"[")):
        other = "JSON"
    elif begin.startswith(b"\0") and len(value) > _REGISTRY_HEADER_BYTES:
        other = "a record of a schema registry"
    elif value[:1] and value[0] in _MAPS:
        other = "MessagePack"
    elif taken_for == "MessagePack" and re.fullmatch(rb"[\t\r\n -~]+", begin):
        other = "text"
    if other in ("", taken_for):
        return ""
    return f"; it may be {other}: source.encoding, or the header content-type, says what records are"


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
        raise Bad(Reason.MALFORMED, f"not MessagePack: {text[:200]}{_what_else(value, 'MessagePack')}") from None
    if not isinstance(document, dict):
        raise Bad(Reason.MALFORMED, f"must be a MessagePack map, not {columns.shown(document)}")
    return document


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise Bad(Reason.MALFORMED, "a map holds a key twice")
    return mapping


def _check_version(version: object) -> None:
    if not _is_version(version):
        raise Bad(Reason.UNSUPPORTED_VERSION, _why_no_version(version))


def _is_version(version: object) -> bool:
    return type(version) is int and version == RECORD_VERSION


def _why_no_version(version: object) -> str:
    given = "missing" if version is None else columns.shown(version)
    return f"v is {given}; only {RECORD_VERSION} is understood"


def _require(document: dict[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if name not in document:
            raise Bad(Reason.BAD_COLUMN, f"{name} is missing")


def _count(src: object, rules: Rules) -> int:
    if rules.vertex_ids == "string":
        if isinstance(src, list):
            return len(src)
        raise Bad(Reason.BAD_COLUMN, "src must be an array of strings: this graph's ids are strings")
    if not isinstance(src, bytes):
        raise Bad(Reason.BAD_COLUMN, "src must be bin, little-endian int64: this graph's ids are integers")
    return len(src) // 8


def _msgpack_ids(name: str, value: Any, n: int, rules: Rules) -> IntColumn | list[Any]:
    if rules.vertex_ids == "int":
        return np.frombuffer(_binary(name, value, n, 8), "<i8")
    if not isinstance(value, list):
        raise Bad(Reason.BAD_COLUMN, f"{name} must be an array of strings")
    columns.check_length(name, len(value), n)
    return value


def _binary(name: str, value: object, n: int, item_bytes: int) -> bytes:
    if not isinstance(value, bytes):
        raise Bad(Reason.BAD_COLUMN, f"{name} must be bin, not {columns.shown(value)}")
    if len(value) != n * item_bytes:
        raise Bad(Reason.BAD_COLUMN, f"{name} has {len(value)} bytes; {n} updates need {n * item_bytes}")
    return value
