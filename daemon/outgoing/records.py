"""What is written of results: a record for each changed vertex of each program, and one that ends a transaction.

A vertex's record is keyed by program and external id, so that compaction keeps the newest; its value is a map
with the ``epoch`` and the ``value``, or nothing (a tombstone) for what is no vertex any more. Keys and values are
columns of a fixed width wherever ids and values are numbers; only their division into single records is a loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import msgpack
import numpy as np
import numpy.typing as npt
import orjson

from ...gpma.index.ids import IdColumn, StringColumn
from ..serve.values import Values

OutgoingEncoding = Literal["msgpack", "json"]

CHUNK = 1 << 14
"""So many vertices are encoded at once."""

END = "end"
"""The key of a record that ends a transaction: an array of this alone."""

Epoch = tuple[int, int]


@dataclass(frozen=True, slots=True)
class End:
    """What ends a transaction: readers know all results of ``epoch``, which belong to ``offsets``, from here on.

    ``sequence`` counts transactions; ``run`` names the daemon's process that wrote it. ``series`` is another one
    where the sink was emptied, is another, or lost its newest transactions. ``since``: the epoch of the one before
    (None: there was none); ``epochs``: of how many epochs these are the changes together (None: not known, after a
    restart). ``snapshot``: every vertex is in it; ``last_snapshot``: the newest transaction that
    this is true of. ``records``: how many, in this partition. ``partitions``: of the topic (0: files). ``stale``:
    by program, since which epoch it stands still.
    """

    sequence: int
    run: str
    epoch: Epoch
    offsets: Mapping[str, Any]
    since: Epoch | None
    epochs: int | None
    snapshot: bool
    last_snapshot: int
    programs: tuple[str, ...]
    stale: Mapping[str, Any] = field(default_factory=dict)
    records: int = 0
    partitions: int = 0
    time_ms: int = 0
    series: str = ""

    def is_same(self, other: End | None) -> bool:
        """Both end the same transaction, in whatever partition."""
        return other is not None and self._key == other._key

    @property
    def _key(self) -> tuple[str, int, str]:
        return self.series, self.sequence, self.run

    def pack(self, encoding: OutgoingEncoding) -> bytes:
        """The record's value."""
        wire = {"v": 1, **asdict(self)}
        if encoding == "json":
            return orjson.dumps(wire, option=orjson.OPT_NON_STR_KEYS)
        return bytes(msgpack.packb(wire))

    @classmethod
    def unpack(cls, packed: bytes) -> End:
        """The inverse of ``pack``; entries of later versions are left out.

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
            return cls(**{name: value for name, value in wire.items() if name in cls.__slots__})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no end of a transaction: {error}") from error


@dataclass(frozen=True, slots=True)
class Packed:
    """n byte strings: string i is ``data[offsets[i]:offsets[i + 1]]`` (uint8[], int64[n + 1])."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return self.offsets.size - 1

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> Packed:
        """One after the other."""
        return cls.cut(np.frombuffer(b"".join(strings), np.uint8), np.fromiter(map(len, strings), np.int64))

    @classmethod
    def cut(cls, data: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> Packed:
        """Strings of these lengths, which make up the data."""
        offsets = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(data, offsets)

    def to_list(self) -> list[bytes]:
        """One by one."""
        data = self.data.tobytes()
        return [data[start:stop] for start, stop in itertools.pairwise(self.offsets.tolist())]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one program: of these vertices, with one key and one value each; without values, tombstones."""

    ids: IdColumn
    keys: Packed
    values: Packed | None

    def __len__(self) -> int:
        return len(self.keys)

    def records(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Key and value of each."""
        keys = self.keys.to_list()
        values = [None] * len(keys) if self.values is None else self.values.to_list()
        return zip(keys, values, strict=True)


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
            yield Chunk(gone, encode_keys(self.program, gone), None)
        for part in _parts(len(self.ids)):
            ids = self.ids[part]
            yield Chunk(ids, encode_keys(self.program, ids), encode_values(epoch, self.values[part]))


def _parts(n: int) -> Iterator[npt.NDArray[np.int64]]:
    for start in range(0, n, CHUNK):
        yield np.arange(start, min(start + CHUNK, n))


def end_key(encoding: OutgoingEncoding) -> bytes:
    """The key of a transaction's end."""
    return orjson.dumps([END]) if encoding == "json" else bytes(msgpack.packb([END]))


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
    if packed[:1] in (b"[", b"{"):  # as MessagePack numbers, which are no key and no value
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


def _msgpack_keys(program: str, ids: IdColumn) -> Packed:
    prefix = b"\x92" + msgpack.packb(program)
    if isinstance(ids, StringColumn):
        return Packed.of([prefix + msgpack.packb(id) for id in ids.to_list()])
    rows = _rows(prefix + b"\xd3", ids.astype(">i8"), b"")
    return Packed.cut(rows.reshape(-1), np.full(len(rows), rows.shape[1]))


def _msgpack_values(epoch: Epoch, values: Values) -> Packed:
    prefix = b"\x82" + msgpack.packb("epoch") + msgpack.packb(epoch) + msgpack.packb("value")
    column = values.values
    bound = np.zeros(column.size, bool) if values.saturated is None else values.saturated & ~values.null
    if column.dtype == object:
        return Packed.of([prefix + msgpack.packb(value) for value in _or_none(values)])
    floating = column.dtype.kind == "f"
    numbers = column.astype(">f8" if floating else ">i8")
    suffix = msgpack.packb("saturated") + b"\xc3"
    rows = _rows(prefix + (b"\xcb" if floating else b"\xd3"), numbers, suffix)
    rows[values.null, len(prefix)] = 0xC0  # nil
    rows[bound, 0] = 0x83  # one entry more
    lengths = np.full(column.size, len(prefix) + 9)
    lengths[values.null] = len(prefix) + 1
    lengths[bound] += len(suffix)
    return Packed.cut(rows[np.arange(rows.shape[1]) < lengths[:, None]], lengths)


def _or_none(values: Values) -> list[Any]:
    return [None if null else value for value, null in zip(values.values.tolist(), values.null, strict=True)]


def _rows(prefix: bytes, numbers: npt.NDArray[Any], suffix: bytes) -> npt.NDArray[np.uint8]:
    """Rows of this prefix, the eight bytes of one number each, and this suffix."""
    start, stop = len(prefix), len(prefix) + 8
    rows = np.empty((numbers.size, stop + len(suffix)), np.uint8)
    rows[:, :start] = np.frombuffer(prefix, np.uint8)
    rows[:, start:stop] = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, 8)
    rows[:, stop:] = np.frombuffer(suffix, np.uint8)
    return rows


# -- JSON -----------------------------------------------------------------------------------------------------


def _json_keys(program: str, ids: IdColumn) -> Packed:
    prefix = b"[" + orjson.dumps(program) + b","
    if isinstance(ids, StringColumn):
        return Packed.of([prefix + orjson.dumps(id) + b"]" for id in ids.to_list()])
    return Packed.of([prefix + b"%d]" % id for id in ids.tolist()])


def _json_values(epoch: Epoch, values: Values) -> Packed:
    prefix = b'{"epoch":[%d,%d],"value":' % epoch
    packed = [prefix + _json(value) + b"}" for value in _or_none(values)]
    bounds = () if values.saturated is None else np.flatnonzero(values.saturated & ~values.null).tolist()
    for row in bounds:
        packed[row] = packed[row][:-1] + b',"saturated":true}'
    return Packed.of(packed)


def _json(value: Any) -> bytes:
    """Infinity, which JSON has no number for, is a text."""
    if isinstance(value, float) and math.isinf(value):
        return b'"Infinity"' if value > 0 else b'"-Infinity"'
    return orjson.dumps(value)


_KeyEncoder = Callable[[str, IdColumn], Packed]
_ValueEncoder = Callable[[Epoch, Values], Packed]
_ENCODERS: dict[OutgoingEncoding, tuple[_KeyEncoder, _ValueEncoder]] = {
    "msgpack": (_msgpack_keys, _msgpack_values),
    "json": (_json_keys, _json_values),
}
