"""From what is bad of a record to its letters, each a record by itself that could be sent again.

A record may write only so much: past that what is bad for one reason shares letters.
"""

from __future__ import annotations

import codecs
from dataclasses import replace

from ...gpma.memory import Trickle
from ..records.encodings import HEADER_LINE, ROW
from ..records.stream import BadRecord, RawRecord
from .decode_columns import Bad, Reason
from .decode_text import Lines
from .sift import ROWS_APART_MAX, BadPart, Room, bad_parts

_LETTER_BYTES = 200
"""About what a letter has besides its record's bytes, key and headers, and the reason in words."""


def room_of(record: RawRecord, memory: Trickle) -> Room:
    """How much the letters of this record may come to. ``memory``: who is asked for it."""
    own = len(record.key or b"") + sum(len(name) + len(value) for name, value in record.headers)
    return Room(len(record.value or b"") + own, own + _LETTER_BYTES, memory)


def with_header_line(record: RawRecord, header: bytes) -> RawRecord:
    """The record as letters of its lines tell of it: the line that its value began with (empty: there was none)
    names their columns.
    """
    line = header.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")
    return replace(record, headers=(*record.headers, (HEADER_LINE, line))) if line else record


def bad_lines(record: RawRecord, value: bytes, lines: Lines, room: Room) -> list[BadRecord]:
    """The bad lines, and the bad rows of documents. In a file each line is a record of its own; those of one
    record are so as long as there is room, and the others stand together by reason."""
    letters: list[BadRecord] = []
    together: dict[Reason, list[tuple[int, bytes, Bad]]] = {}
    in_file = record.partition.number is None
    for start, end, why in lines.bad:
        if in_file or room.is_left:
            letters.append(_bad_bytes(record, start, value[start:end], why))
            room.take(letters[-1].value, why)
        else:
            together.setdefault(why.reason, []).append((start, value[start:end], why))
    for start, refused in lines.parts:
        if in_file or room.is_left:
            letters += [bad_row(record, start, part) for part in bad_parts(refused, room)]
        else:
            for part in bad_parts(refused, room):
                together.setdefault(part.why.reason, []).append((start, part.value, part.why))
    for reason, rest in together.items():
        for at in range(0, len(rest), ROWS_APART_MAX):
            some = rest[at : at + ROWS_APART_MAX]
            first, _, why = some[0]
            detail = f"{len(some)} lines, of the first: {why.detail}"
            letters.append(_bad_bytes(record, first, b"\n".join(line for _, line, _ in some), Bad(reason, detail)))
    return letters


def bad_value(record: RawRecord, bad: Bad) -> BadRecord:
    """The whole record."""
    return _bad_bytes(record, 0, record.value or b"", bad)


def bad_row(record: RawRecord, start: int, part: BadPart) -> BadRecord:
    """Rows of a document that begins at this byte of the record."""
    return _bad_bytes(record, start, part.value, part.why, ((ROW, b"%d" % part.row),))


def _bad_bytes(
    record: RawRecord, start: int, value: bytes, bad: Bad, headers: tuple[tuple[str, bytes], ...] = ()
) -> BadRecord:
    """``start``: the byte of the record at which what is bad begins."""
    in_spool = record.partition.number is None
    return BadRecord(
        partition=record.partition,
        offset=record.offset + start if in_spool else record.offset,
        value=value,
        reason=bad.reason.value,
        detail=bad.detail,
        key=record.key,
        headers=(*record.headers, *headers),
    )
