"""Arrow IPC streams: columns that are read in place.

https://arrow.apache.org/docs/format/Columnar.html describes the format. PyArrow, which reads it, is an extra: so
this module is imported by the first record that needs it. No memory is taken for a length that a record only
claims: what it holds must lie in its own bytes, so compressed bodies are refused, and dictionaries are written out
only as far as ``WRITTEN_OUT_MAX`` allows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...gpma.edges import Op, Ops, Weights
from ...gpma.index.ids import MAX_STRING_ID_BYTES, IdColumn, IntColumn, StringColumn
from ..records.stream import UpdateBlock
from . import decode_columns as columns
from .decode_columns import Bad, BadRows, Reason, Rules
from .sift import Sifted, sift

WRITTEN_OUT_MAX = 256 << 20
"""Bytes of strings that the dictionaries of a record may come to, each column by itself."""

GONE_OVER_MAX = 1 << 30
"""Bytes of dictionaries times batches of a record."""

_FILE = b"ARROW1\0\0"
_END = b"\xff\xff\xff\xff\0\0\0\0"
_OP_NAMES = [op.name.lower() for op in sorted(Op)]


def decode_arrow(value: bytes, rules: Rules, timestamp_ms: int) -> Sifted:
    """A stream of batches with the columns ``src``, ``dst``, and ``op``, ``weight``, ``ts`` if they are there."""
    if value.startswith(_FILE):
        raise Bad(Reason.MALFORMED, "an Arrow file (Feather), where a stream is read: pyarrow.ipc.new_stream")
    try:
        _check_messages(value)
        given = _read(value, rules)
    except (pa.ArrowException, OSError, ValueError, TypeError, struct.error) as error:
        text = str(error) or type(error).__name__
        raise Bad(Reason.MALFORMED, f"not an Arrow stream: {text[:200]}") from None
    return sift(_ArrowColumns(given), rules, timestamp_ms)


def decode_batch(batch: Any, rules: Rules, timestamp_ms: int) -> Sifted:
    """A record batch (``pyarrow.RecordBatch``) with the same columns, wherever it comes from.

    Raises:
        Bad: its columns are not these.
    """
    names = _our_columns(batch.schema, rules)
    return sift(_ArrowColumns(_joined(batch.schema, names, [batch], rules)), rules, timestamp_ms)


@dataclass(slots=True)
class _ArrowColumns:
    """Arrow arrays of one length by name, none of them with a dictionary."""

    given: dict[str, Any]

    def __len__(self) -> int:
        return len(self.given["src"])

    def take(self, rows: IntColumn) -> Self:
        positions = pa.array(rows)
        return type(self)({name: column.take(positions) for name, column in self.given.items()})

    def convert(self, rules: Rules, timestamp_ms: int) -> UpdateBlock:
        given, n = self.given, len(self)
        ops = _ops(given["op"]) if "op" in given else columns.inserts(n)
        src = _ids("src", given["src"], rules)
        if "dst" in given:
            dst = _ids("dst", given["dst"], rules, columns.on_vertices(ops))
            columns.check_no_dst(dst, ops)
        elif columns.on_vertices(ops).all():
            dst = columns.no_dst(n, rules)
        else:
            raise Bad(Reason.BAD_COLUMN, "dst is missing")
        weights = (
            columns.checked_weights(_weights(given["weight"]), ops, rules.weights) if "weight" in given else None
        )
        ts = _times(given["ts"], timestamp_ms) if "ts" in given else timestamp_ms
        return UpdateBlock(src, dst, ops, weights, columns.checked_times(ts, ops, rules))

    def encode(self) -> bytes:
        batch = pa.record_batch(list(self.given.values()), list(self.given))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue().to_pybytes())


# -- the stream -------------------------------------------------------------------------------------------


def _check_messages(value: bytes) -> None:
    """Whether the stream is whole, and nothing in it can take more than it looks: compressed bodies could claim
    any size, and dictionaries are gone over for each batch.
    """
    source = pa.BufferReader(value)
    batches, dictionaries_bytes = 0, 0
    for message in pa.ipc.MessageReader.open_stream(source):
        if message.type == "schema":
            continue
        if message.type == "dictionary":
            dictionaries_bytes += message.body.size
        elif message.type == "record batch":
            batches += 1
        else:
            raise Bad(Reason.MALFORMED, f"an Arrow stream must hold batches, no {message.type}")
        if _is_compressed(message.metadata.to_pybytes(), message.type):
            raise Bad(Reason.MALFORMED, "bodies of an Arrow stream must not be compressed: let Kafka compress")
        if batches * dictionaries_bytes > GONE_OVER_MAX:
            many = f"{batches} batches with {dictionaries_bytes} bytes of dictionaries"
            raise Bad(Reason.TOO_LARGE, f"{many}; their product may be at most {GONE_OVER_MAX}: use fewer batches")
    if source.tell() != len(value) or not value.endswith(_END):
        raise Bad(Reason.MALFORMED, "an Arrow stream must end with its end marker, and the record with the stream")


def _is_compressed(metadata: bytes, kind: str) -> bool:
    """Whether a batch says so. PyArrow does not tell, but has checked that all offsets stay inside.

    The metadata is a flatbuffer, ``Message.header: RecordBatch | DictionaryBatch`` of Message.fbs.
    """
    batch = _referred(metadata, _field(metadata, _referred(metadata, 0), 2))
    if kind == "dictionary":
        batch = _referred(metadata, _field(metadata, batch, 1))
    return _field(metadata, batch, 3) != 0


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table lies; 0 where it has none."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + slot)[0] if slot < size else 0
    return table + offset if offset else 0


def _referred(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _read(value: bytes, rules: Rules) -> dict[str, Any]:
    with pa.ipc.open_stream(value) as stream:
        schema = stream.schema
    names = _our_columns(schema, rules)
    options = pa.ipc.IpcReadOptions(
        use_threads=False, included_fields=[at for at, name in enumerate(schema.names) if name in names]
    )
    with pa.ipc.open_stream(value, options=options) as stream:
        return _joined(schema, names, stream, rules)


def _our_columns(schema: Any, rules: Rules) -> list[str]:
    """The names of those columns that mean something to us, their types checked."""
    names = [name for name in schema.names if name in columns.COLUMNS]
    if "src" not in names or len(set(names)) < len(names):
        allowed = "the columns must be src and dst, perhaps op, weight, ts, each once"
        raise Bad(Reason.BAD_COLUMN, f"{allowed}; not {columns.shown(schema.names)}")
    for name in names:
        _check_type(name, schema.field(name).type, rules)
    return names


def _joined(schema: Any, names: Sequence[str], batches: Iterable[Any], rules: Rules) -> dict[str, Any]:
    """These columns of all batches, checked for being what Arrow allows, without dictionaries."""
    parts: dict[str, list[Any]] = {name: [] for name in names}
    n = 0
    written_out = dict.fromkeys(names, 0)
    for batch in batches:
        n += batch.num_rows
        columns.check_count(n, rules)
        for name in names:
            column = batch.column(name)
            column.validate(full=True)
            if pa.types.is_dictionary(column.type):
                written_out[name] += _written_out(name, column)
                if written_out[name] > WRITTEN_OUT_MAX:
                    raise Bad(Reason.TOO_LARGE, f"the strings of {name} are more than {WRITTEN_OUT_MAX} bytes")
                column = column.dictionary_decode()
            parts[name].append(column)
    return {name: _concatenated(some, _plain(schema.field(name).type)) for name, some in parts.items()}


def _concatenated(parts: list[Any], kind: Any) -> Any:
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts) if parts else pa.array([], kind)


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _check_type(name: str, kind: Any, rules: Rules) -> None:
    """Refuse a column that is of no use to us; of nested types nothing is read."""
    is_of = _kinds()
    wanted = {
        "src": (rules.vertex_ids,),
        "dst": (rules.vertex_ids,),
        "op": ("op code", "string"),
        "weight": ("float", "int"),
        "ts": ("int64", "timestamp"),
    }[name]
    if not any(is_of[one](kind) for one in wanted):
        words = {"int": "integers", "string": "strings", "op code": "uint8", "float": "float32 or float64"}
        allowed = " or ".join(words.get(one, one) for one in wanted)
        raise Bad(Reason.BAD_COLUMN, f"{name} is a column of {columns.shown(str(kind))}; it must be {allowed}")


def _kinds() -> dict[str, Any]:
    def is_string(kind: Any) -> bool:
        plain = _plain(kind)
        return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain))

    return {
        "int": pa.types.is_integer,
        "string": is_string,
        "op code": pa.types.is_uint8,
        "float": lambda kind: pa.types.is_float32(kind) or pa.types.is_float64(kind),
        "int64": pa.types.is_int64,
        "timestamp": pa.types.is_timestamp,
    }


def _written_out(name: str, column: Any) -> int:
    """The bytes of a column of strings without its dictionary.

    Raises:
        Bad: a string in the dictionary is too long for an id or an operation.
    """
    words = _strings(column.dictionary.fill_null(""))
    longest = int(words.lengths.max(initial=0))
    if longest > MAX_STRING_ID_BYTES:
        allowed = MAX_STRING_ID_BYTES
        raise Bad(
            Reason.BAD_ID,
            f"the dictionary of {name} holds a string of {longest} bytes; at most {allowed} are allowed",
        )
    indices = column.indices.drop_null().to_numpy()
    return int(words.lengths[indices].sum())


# -- columns ----------------------------------------------------------------------------------------------


def _numbers(column: Any) -> npt.NDArray[Any]:
    """A column without nulls in place; where its bytes are not aligned (as those of odd writers), a copy."""
    return np.require(column.to_numpy(zero_copy_only=True), requirements="A")


def _strings(column: Any) -> StringColumn:
    """A column of strings without nulls, its bytes in place."""
    n = len(column)
    if n == 0:
        return StringColumn(np.empty(0, np.uint8), np.zeros(1, np.int64))
    wide = pa.types.is_large_string(column.type)
    _, ends, data = column.buffers()
    kind = np.dtype("<i8" if wide else "<i4")
    offsets = np.frombuffer(ends, kind, n + 1, column.offset * kind.itemsize).astype(np.int64)
    letters = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return StringColumn(letters[offsets[0] : offsets[-1]], offsets - offsets[0])


def _nulls(column: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), bool)


def _ids(name: str, column: Any, rules: Rules, may_be_null: npt.NDArray[np.bool_] | None = None) -> IdColumn:
    """Ids; nulls are nothing (0 or the empty string) where they may be, else bad."""
    if column.null_count:
        nulls = _nulls(column)
        if (bad := np.flatnonzero(nulls if may_be_null is None else nulls & ~may_be_null)).size:
            raise BadRows(Reason.BAD_ID, bad, lambda _: f"{name} is null")
        column = column.fill_null("" if rules.vertex_ids == "string" else 0)
    if rules.vertex_ids == "string":
        ids = _strings(column)
        columns.check_lengths(name, ids)
        return ids
    numbers = _numbers(column)
    if pa.types.is_uint64(column.type):
        large = np.flatnonzero(numbers > np.uint64(np.iinfo(np.int64).max))
        if large.size:
            why = "ids are signed 64-bit integers"
            raise BadRows(Reason.BAD_ID, large, lambda row: f"{name} holds {numbers[row]}; {why}")
    return numbers.astype(np.int64, copy=False)


def _ops(column: Any) -> Ops:
    """Operations by code or by name; null: insert."""
    import pyarrow.compute as pc  # which few records need

    if pa.types.is_uint8(column.type):
        ops: Ops = _numbers(column.fill_null(Op.INSERT.value) if column.null_count else column)
        columns.check_ops(ops)
        return ops
    named = column.fill_null("insert") if column.null_count else column
    codes = pc.index_in(named, value_set=pa.array(_OP_NAMES, named.type)).fill_null(-1).to_numpy()
    if (bad := np.flatnonzero(codes < 0)).size:
        raise BadRows(Reason.BAD_OP, bad, lambda row: columns.why_no_op(named[row].as_py()))
    return np.asarray(codes, np.uint8)


def _weights(column: Any) -> Weights:
    """Weights; null: 1.0."""
    numbers = _numbers(column.fill_null(pa.scalar(1, column.type)) if column.null_count else column)
    with np.errstate(over="ignore"):  # what becomes infinite is refused like any other
        return numbers.astype(np.float32, copy=False)


def _times(column: Any, timestamp_ms: int) -> IntColumn:
    """Times in milliseconds since 1970; null: the record's own."""
    nulls = _nulls(column) if column.null_count else None
    unit = column.type.unit if pa.types.is_timestamp(column.type) else "ms"
    plain = column.view(pa.int64())
    times: IntColumn = _numbers(plain if nulls is None else plain.fill_null(0))
    if unit == "s":
        most = np.iinfo(np.int64).max // 1000
        if (far := np.flatnonzero((times > most) | (times < -most))).size:
            why = "it must be a 64-bit number of milliseconds"
            raise BadRows(Reason.BAD_TIMESTAMP, far, lambda row: f"ts is {times[row]} seconds; {why}")
        in_ms = times * 1000
    else:
        in_ms = times if unit == "ms" else times // {"us": 1_000, "ns": 1_000_000}[unit]
    return in_ms if nulls is None else np.where(nulls, timestamp_ms, in_ms)
