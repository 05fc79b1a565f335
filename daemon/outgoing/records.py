"""What is written of results: a record for each changed vertex of each program, and one that ends a transaction.

A vertex's record is keyed by program and external id, so that compaction keeps the newest; its value is a map
with the ``epoch`` and the ``value``, or nothing (a tombstone) for what is no vertex any more. Keys and values are
columns of a fixed width wherever ids and values are numbers; only their division into single records is a loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import msgpack
import numpy as np
import numpy.typing as npt
import orjson

from ...gpma.index.ids import IdColumn, IntColumn, StringColumn
from ..serve.values import Values

OutgoingEncoding = Literal["msgpack", "json"]

CHUNK = 1 << 12
"""So many vertices are encoded at once."""

END = "end"
"""The key of a record that ends a transaction: an array of this alone."""
_JSON_ARRAY = ord("[")  # as MessagePack a number, which no key is

Epoch = tuple[int, int]


@dataclass(frozen=True, slots=True)
class End:
    """What ends a transaction: readers know all results of ``epoch``, which belong to ``offsets``, from here on.

    ``sequence`` counts transactions; ``run`` names the daemon's process that wrote it. ``since``: the epoch of the
    one before (None: there was none); ``epochs``: of how many epochs these are the changes together (None: not
    known, after a restart). ``snapshot``: every vertex is in it. ``records``: how many, in this partition.
    ``partitions``: of the topic (0: files). ``stale``: by program, since which epoch it stands still.
    """

    sequence: int
    run: str
    epoch: Epoch
    offsets: Mapping[str, Any]
    since: Epoch | None
    epochs: int | None
    snapshot: bool
    programs: tuple[str, ...]
    stale: Mapping[str, Any] = field(default_factory=dict)
    records: int = 0
    partitions: int = 0
    time_ms: int = 0

    def is_same(self, other: End | None) -> bool:
        """Both end the same transaction, in whatever partition."""
        return other is not None and (self.sequence, self.run) == (other.sequence, other.run)

    def pack(self, encoding: OutgoingEncoding) -> bytes:
        """The record's value."""
        wire = {"v": 1, **asdict(self)}
        if encoding == "json":
            return orjson.dumps(wire, option=orjson.OPT_NON_STR_KEYS)
        return bytes(msgpack.packb(wire))

    @classmethod
    def unpack(cls, packed: bytes) -> End:
        """The inverse of ``pack``.

        Raises:
            ValueError: it is none.
        """
        wire = _unpacked(packed)
        try:
            if wire.pop("v") != 1:
                raise ValueError("an end of another version")
            wire["epoch"] = _epoch(wire["epoch"])
            wire["since"] = None if wire["since"] is None else _epoch(wire["since"])
            wire["programs"] = tuple(wire["programs"])
            return cls(**wire)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no end of a transaction: {error}") from error


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one program: of these vertices, with one key and one value (None: a tombstone) each."""

    ids: IdColumn
    keys: list[bytes]
    values: list[bytes] | list[None]

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class Changed:
    """What a transaction holds of one program: vertices with their values, and ids that are none any more."""

    program: str
    ids: IdColumn
    values: Values
    gone: IdColumn

    def __len__(self) -> int:
        return len(self.ids) + len(self.gone)

    def chunks(self, epoch: Epoch, encoding: OutgoingEncoding) -> Iterator[Chunk]:
        """As records."""
        encode_keys, encode_values = _ENCODERS[encoding]
        for part in _parts(len(self.gone)):
            gone = self.gone[part]
            yield Chunk(gone, encode_keys(self.program, gone), [None] * len(gone))
        for part in _parts(len(self.ids)):
            ids = self.ids[part]
            yield Chunk(ids, encode_keys(self.program, ids), encode_values(epoch, self.values[part]))


def _parts(n: int) -> Iterator[npt.NDArray[np.int64]]:
    for start in range(0, n, CHUNK):
        yield np.arange(start, min(start + CHUNK, n))


def end_key(encoding: OutgoingEncoding) -> bytes:
    """The key of a transaction's end."""
    return orjson.dumps([END]) if encoding == "json" else bytes(msgpack.packb([END]))


def key_of(program: str, vertex: int | str, encoding: OutgoingEncoding) -> bytes:
    """The key of one vertex's records."""
    column: IdColumn = StringColumn.of([vertex]) if isinstance(vertex, str) else np.array([vertex], np.int64)
    return _ENCODERS[encoding][0](program, column)[0]


def read_key(key: bytes) -> tuple[str, int | str] | None:
    """Program and vertex; None: the record ends a transaction.

    Raises:
        ValueError: it is no key of ours.
    """
    match _unpacked(key):
        case [str(program), int() | str() as vertex]:
            return program, vertex
        case ["end"]:
            return None
    raise ValueError(f"not a key of results: {key!r}")


def read_value(value: bytes) -> dict[str, Any]:
    """The map of a vertex's record.

    Raises:
        ValueError: it is none.
    """
    content = _unpacked(value)
    if not isinstance(content, dict):
        raise ValueError("not a value of results")
    return content


def _unpacked(packed: bytes) -> Any:
    """
    Raises:
        ValueError: it is neither encoding.
    """
    if packed[:1] in (b"[", b"{"):
        return orjson.loads(packed)
    try:
        return msgpack.unpackb(packed, strict_map_key=False)
    except (msgpack.UnpackException, ValueError) as error:
        raise ValueError(f"neither JSON nor MessagePack: {error}") from error


def ids_by_program(keys: Iterable[bytes]) -> dict[str, IdColumn]:
    """The vertices of keys (each once), by program; ends are left out."""
    found: dict[str, set[int | str]] = {}
    for key in keys:
        named = read_key(key)
        if named is not None:
            found.setdefault(named[0], set()).add(named[1])
    return {program: _column(vertices) for program, vertices in found.items()}


def _column(vertices: Iterable[Any]) -> IdColumn:
    ids = list(vertices)
    return StringColumn.of(ids) if isinstance(ids[0], str) else np.array(ids, np.int64)


def _epoch(wire: Any) -> Epoch:
    return int(wire[0]), int(wire[1])


# -- MessagePack ----------------------------------------------------------------------------------------------


def _msgpack_keys(program: str, ids: IdColumn) -> list[bytes]:
    prefix = b"\x92" + msgpack.packb(program)
    if isinstance(ids, StringColumn):
        return [prefix + msgpack.packb(id) for id in ids.to_list()]
    return _split(_fixed(prefix + b"\xd3", ids.astype(">i8")))


def _msgpack_values(epoch: Epoch, values: Values) -> list[bytes]:
    head = msgpack.packb("epoch") + msgpack.packb(epoch)
    prefix, nothing = b"\x82" + head + msgpack.packb("value"), b"\x82" + head + msgpack.packb("value") + b"\xc0"
    column = values.values
    if column.dtype == object:
        packed = [prefix + msgpack.packb(value) for value in column.tolist()]
    elif column.dtype.kind == "f":
        packed = _split(_fixed(prefix + b"\xcb", column.astype(">f8")))
    else:
        packed = _split(_fixed(prefix + b"\xd3", column.astype(">i8")))
    for row in np.flatnonzero(values.null).tolist():
        packed[row] = nothing
    bounds = () if values.saturated is None else np.flatnonzero(values.saturated & ~values.null).tolist()
    for row in bounds:
        packed[row] = b"\x83" + packed[row][1:] + msgpack.packb("saturated") + b"\xc3"
    return packed


def _fixed(prefix: bytes, numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Rows of this prefix and the eight bytes of one number each."""
    rows = np.empty((numbers.size, len(prefix) + 8), np.uint8)
    rows[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    rows[:, len(prefix) :] = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, 8)
    return rows


def _split(rows: npt.NDArray[np.uint8]) -> list[bytes]:
    data, width = rows.tobytes(), rows.shape[1]
    return [data[at : at + width] for at in range(0, len(data), width)]


# -- JSON -----------------------------------------------------------------------------------------------------


def _json_keys(program: str, ids: IdColumn) -> list[bytes]:
    prefix = b"[" + orjson.dumps(program) + b","
    if isinstance(ids, StringColumn):
        return [prefix + orjson.dumps(id) + b"]" for id in ids.to_list()]
    assert not isinstance(ids, StringColumn)
    return [prefix + b"%d]" % id for id in _integers(ids)]


def _integers(ids: IntColumn) -> list[int]:
    listed: list[int] = ids.tolist()
    return listed


def _json_values(epoch: Epoch, values: Values) -> list[bytes]:
    prefix = b'{"epoch":[%d,%d],"value":' % epoch
    column = values.values
    packed = [prefix + _json(value) + b"}" for value in column.tolist()]
    for row in np.flatnonzero(values.null).tolist():
        packed[row] = prefix + b"null}"
    bounds = () if values.saturated is None else np.flatnonzero(values.saturated & ~values.null).tolist()
    for row in bounds:
        packed[row] = packed[row][:-1] + b',"saturated":true}'
    return packed


def _json(value: Any) -> bytes:
    """Infinity, which JSON has no number for, is a text."""
    if isinstance(value, float) and math.isinf(value):
        return b'"Infinity"' if value > 0 else b'"-Infinity"'
    return orjson.dumps(value)


_KeyEncoder = Callable[[str, IdColumn], list[bytes]]
_ValueEncoder = Callable[[Epoch, Values], list[bytes]]
_ENCODERS: dict[OutgoingEncoding, tuple[_KeyEncoder, _ValueEncoder]] = {
    "msgpack": (_msgpack_keys, _msgpack_values),
    "json": (_json_keys, _json_values),
}
