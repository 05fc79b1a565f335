"""Answers as JSON: columns are arrays, and what has no value is null.

JSON's numbers are doubles where browsers read them, so whole numbers beyond 2^53 are strings of digits (as ids are
in edge updates), and what is no number is ``"NaN"``, ``"Infinity"`` or ``"-Infinity"`` (as in the JSON of Protocol
Buffers).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import orjson

from ...client.wire import PIECE_ITEMS, error_to_wire, is_column, unpack_bitmap, unpack_column
from ...errors import GraphtideError

EXACT = 2**53
"""Up to here whole numbers are doubles."""
NULLABLE = ("values", "out", "in")
"""The columns of an answer that its null bitmap belongs to."""


def encode_answer(stamp: bytes, answer: Mapping[str, Any]) -> bytes:
    """An answer with the epoch and the offsets that it was read from (``stamp``, packed)."""
    return b"".join((b"{", _stamp(stamp), *_entries(answer, first=False), b"}\n"))


def encode_error(error: GraphtideError) -> bytes:
    """An error as an answer."""
    return b"".join((b"{", *_entries(error_to_wire(error), first=True), b"}\n"))


def encode_entries(content: Mapping[str, Any]) -> bytes:
    """Entries of an event, as they follow others: encoded once for all who are sent them."""
    return b"".join(_entries(content, first=False))


def encode_event(
    name: str, stamp: bytes | None, content: Mapping[str, Any], shared: bytes = b"", *, id: str | None = None
) -> bytes:
    """A server-sent event; ``id``: what a client that lost its connection gives back.

    ``shared``: more entries (``encode_entries``), which need others before them.
    """
    lines = [f"event: {name}\n"] + ([] if id is None else [f"id: {id}\n"])
    stamped = b"" if stamp is None else _stamp(stamp)
    data = b"".join((b"{", stamped, *_entries(content, first=not stamped), shared, b"}"))
    return b"".join(("".join(lines).encode(), b"data: ", data, b"\n\n"))


@lru_cache(maxsize=4)
def epoch_of(stamp: bytes) -> tuple[int, int]:
    """The epoch of a stamp."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(stamp)
    unpacker.unpack()
    epoch = unpacker.unpack()
    return epoch[0], epoch[1]


@lru_cache(maxsize=4)  # an epoch has many answers
def _stamp(stamp: bytes) -> bytes:
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(stamp)
    items = list(unpacker)
    return b"".join(_entries(dict(zip(items[::2], items[1::2], strict=True)), first=True))


def _entries(entries: Mapping[Any, Any], *, first: bool) -> Iterator[bytes]:
    """The inside of an object; ``null`` and ``saturated``, bitmaps, go into the columns they belong to.

    Where ``null`` is no bitmap (None: no flag is set), keys may be names that users gave, of topics or programs.
    """
    bitmap = entries.get("null", 0)
    columns = [entries[name] for name in NULLABLE if entries.get(name) is not None]
    lengths = [_length(column) for column in columns] if isinstance(bitmap, bytes | None) else []
    null = unpack_bitmap(bitmap, max(lengths)) if lengths else None
    for key, value in entries.items():
        if key == "null" and null is not None:
            continue
        yield b"" if first else b","
        first = False
        yield orjson.dumps(str(key)) + b":"
        if key == "saturated" and lengths:
            yield from _column(unpack_bitmap(value, lengths[0]), None)
        elif key == "parents" and lengths:
            yield from _nullable(value["values"], unpack_bitmap(value["null"], _length(value["values"])))
        else:
            yield from _nullable(value, null if key in NULLABLE else None)


def _nullable(value: Any, null: npt.NDArray[np.bool_] | None) -> Iterator[bytes]:
    """Any value; where it is a column, null where ``null`` says so."""
    if is_column(value):
        yield from _column(unpack_column(value), null)
    elif isinstance(value, Mapping):
        yield b"{"
        yield from _entries(value, first=True)
        yield b"}"
    elif isinstance(value, list | tuple):
        yield from _list(value, null)
    else:
        yield orjson.dumps(_scalar(value))


def _list(items: list[Any] | tuple[Any, ...], null: npt.NDArray[np.bool_] | None) -> Iterator[bytes]:
    yield b"["
    for start in range(0, len(items), PIECE_ITEMS):  # in between the interpreter can turn to other work
        piece = items[start : start + PIECE_ITEMS]
        yield b"," if start else b""
        if all(type(item) is str for item in piece) and null is None:
            yield orjson.dumps(piece)[1:-1]
            continue
        for at, item in enumerate(piece):
            yield b"," if at else b""
            yield from (b"null",) if null is not None and null[start + at] else _nullable(item, None)
    yield b"]"


def _column(column: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None) -> Iterator[bytes]:
    yield b"["
    for start in range(0, column.size, PIECE_ITEMS):
        piece = column[start : start + PIECE_ITEMS]
        gone = None if null is None else null[start : start + PIECE_ITEMS]
        yield b"," if start else b""
        yield orjson.dumps(_plain(piece, gone), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    yield b"]"


def _plain(piece: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None) -> Any:
    """Part of a column as it is written: as it is where nothing in it is special."""
    piece = np.ascontiguousarray(piece)
    if piece.dtype.kind == "f":
        special = not np.isfinite(piece).all()
    else:
        special = piece.dtype.itemsize == 8 and bool(((piece > EXACT) | (piece < -EXACT)).any())
    if not special and (null is None or not null.any()):
        return piece
    written = piece.astype(object) if not special else np.array([_scalar(item) for item in piece.tolist()], object)
    if null is not None:
        written[null] = None
    return written.tolist()


def _scalar(value: Any) -> Any:
    """A value by itself."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and not -EXACT <= value <= EXACT:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):  # nothing that has a name here
        return value.hex()
    return value


def _length(column: Any) -> int:
    return len(column) if isinstance(column, list) else int(unpack_column(column).size)
