"""From the content of a spool file to records, and to what is set aside of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from ..records.encodings import HEADER_LINE, IN_PREAMBLE
from ..records.spool_format import CUT_BYTES, FRAME_HEADER, FramingLost, frame_bytes, frames, large_frames
from ..records.stream import BadRecord, RawRecord, Whole
from . import matrix_market
from .decode_columns import Reason
from .spool_content import Content, Plain
from .spool_file import LongLine, SpoolFile, complete

log = logging.getLogger(__name__)

CORRUPT = "none: the checksum does not hold"
"""The encoding of a frame whose checksum failed."""

READ_BYTES = 4 << 20
"""So much is looked at together, unless a record is larger."""
LARGE_BYTES = 1 << 17
"""Frames of so many bytes are read one by one, each once."""
_SKIP_BYTES = 64 << 20  # of a line that is too long, at one time

# How to have read what was set aside.
_REPAIRED = "To have it read once it is repaired, give it another name"
_NO_EDGES = "To have its edges read, put them into a new file: by `graphtide produce`, or as lines of src and dst"


def cut(record: RawRecord, at: int) -> tuple[RawRecord, RawRecord]:
    """A block of lines as two, the second from this byte of its value on, where a line begins."""
    value = record.value or b""
    first = replace(record, next_offset=record.offset + at, value=value[:at])
    headers = tuple(header for header in record.headers if header[0] != IN_PREAMBLE)
    if record.encoding == "el":
        inside = len(headers) < len(record.headers)
        if matrix_market.next_is_inside(value[:at], first=record.offset == 0, inside=inside):
            headers += ((IN_PREAMBLE, b""),)
    return first, replace(record, offset=record.offset + at, value=value[at:], headers=headers)


class RecordReader:
    """Reads the next records of one file or the other, each from where its content stands."""

    def __init__(
        self, block_bytes: int, record_bytes_max: int, clock: Callable[[], float], *, directed: bool
    ) -> None:
        """See ``SpoolSource``."""
        self._directed = directed
        self._block_bytes = block_bytes
        self._bytes_max = record_bytes_max
        self._clock = clock

    def read(self, file: SpoolFile, content: Content, room: int, again: Callable[[], Content]) -> list[RawRecord]:
        """Some records, frames of about ``room`` bytes, or one block of lines; none where nothing whole is left.

        ``again`` opens the file once more, at its beginning.
        """
        if file.long_line is not None:
            records = self._long_line(file, file.long_line, content)
        elif file.kind.framed:
            records = self._framed(file, content, room)
        else:
            records = self._lines(file, content, again)
        if not records and content.damage is not None:
            records = [self.set_aside(file, content.peek(CUT_BYTES), Reason.DAMAGED, content.damage)]
        return records

    def _framed(self, file: SpoolFile, content: Content, room: int) -> list[RawRecord]:
        some_bytes = min(max(room, 1 << 16), READ_BYTES)
        if (
            isinstance(content, Plain)
            and frame_bytes(content.peek(FRAME_HEADER.size)) > LARGE_BYTES + FRAME_HEADER.size
        ):
            found = large_frames(content.read, LARGE_BYTES, some_bytes, bytes_max=self._bytes_max)
        else:
            buffer = content.peek(some_bytes)
            if len(buffer) < frame_bytes(buffer) <= self._bytes_max + 8:
                buffer = content.peek(frame_bytes(buffer))
            found = frames(buffer, bytes_max=self._bytes_max)
        records: list[RawRecord] = []
        now_ms = int(self._clock() * 1000)
        try:
            # Extended one by one: what was whole before framing is lost stays in the list.
            records.extend(
                RawRecord(
                    partition=file.partition,
                    offset=file.offset + item.start,
                    next_offset=file.offset + item.stop,
                    value=item.payload,
                    encoding=file.kind.encoding if item.good else CORRUPT,
                    timestamp_ms=now_ms,
                )
                for item in found
            )
        except FramingLost as error:
            if not records:  # else what is whole is delivered first, and the next read stops here
                return [self.set_aside(file, content.peek(CUT_BYTES), Reason.DAMAGED, error.why)]
        return records

    def _lines(self, file: SpoolFile, content: Content, again: Callable[[], Content]) -> list[RawRecord]:
        count = self._block_bytes
        while True:
            buffer = content.peek(count)
            stop = buffer.rfind(b"\n") + 1
            if stop == 0 and len(buffer) < count and complete(file):
                stop = len(buffer)
            if stop or len(buffer) < count:
                break
            if count >= self._bytes_max:
                file.long_line = LongLine()
                return self._long_line(file, file.long_line, content)
            count = min(2 * count, self._bytes_max)
        if stop == 0:
            return []
        value = buffer[:stop]
        if file.kind.encoding == "el" and file.offset == 0 and matrix_market.begins(value):
            why = matrix_market.refusal(value, directed=self._directed)
            if why is not None:
                # Under another name it would be refused again.
                return [self.set_aside(file, value[:CUT_BYTES], Reason.MALFORMED, why, remedy=_NO_EDGES)]
        headers = self._context(file, value, again)
        return [
            RawRecord(
                partition=file.partition,
                offset=file.offset,
                next_offset=file.offset + stop,
                value=value,
                encoding=file.kind.encoding,
                timestamp_ms=int(self._clock() * 1000),
                headers=headers,
            )
        ]

    def _context(
        self, file: SpoolFile, value: bytes, again: Callable[[], Content]
    ) -> tuple[tuple[str, bytes], ...]:
        """What the beginning of a file says about a block of lines further on."""
        first = file.offset == 0
        if file.kind.encoding == "csv" and not first:
            if file.header is None:
                with contextlib.closing(again()) as content:
                    file.header = self._first_line(content)
            return ((HEADER_LINE, file.header),)
        if file.kind.encoding != "el":
            return ()
        inside = file.in_preamble
        if inside is None and not first:
            with contextlib.closing(again()) as content:
                inside = matrix_market.is_inside(content, file.offset)
        file.in_preamble = matrix_market.next_is_inside(value, first=first, inside=bool(inside))
        return ((IN_PREAMBLE, b""),) if inside else ()

    def _first_line(self, content: Content) -> bytes:
        """Nothing where it is too long to be one."""
        count = 1 << 12
        while (stop := content.peek(count).find(b"\n")) < 0 and count < self._bytes_max:
            count *= 2
        return content.peek(stop).rstrip(b"\r") if stop >= 0 else b""

    def _long_line(self, file: SpoolFile, line: LongLine, content: Content) -> list[RawRecord]:
        """Go past a line that is too long; nothing until its end is found."""
        for _ in range(max(_SKIP_BYTES // READ_BYTES, 1)):
            piece = content.peek(READ_BYTES)
            found = piece.find(b"\n")
            ended = found >= 0 or (len(piece) < READ_BYTES and complete(file))
            line.add(piece if found < 0 else piece[:found])
            content.advance(len(piece) if found < 0 else found + 1)
            if ended:
                file.long_line = file.in_preamble = None
                detail = f"a line of {line.length} bytes; at most {self._bytes_max} are read"
                whole = Whole(line.length, line.checksum)
                stop = file.offset + line.length + (found >= 0)
                return [self._refused(file, stop, line.beginning, Reason.TOO_LARGE, detail, whole)]
            if not piece:
                break
        return []

    def set_aside(
        self, file: SpoolFile, rest: bytes, reason: Reason, detail: str, *, remedy: str = _REPAIRED
    ) -> RawRecord:
        """Read no more of this file than was read so far; ``rest``: the beginning of what follows."""
        file.aside = True
        log.error(
            "spool file %s: %s; what follows byte %d of its content is not read, and stays where it is",
            file.name,
            detail,
            file.offset,
        )
        detail = f"{detail}; the rest of the file stays where it is. {remedy}"
        return self._refused(file, file.offset, rest, reason, detail, None)

    def _refused(
        self, file: SpoolFile, next_offset: int, value: bytes, reason: Reason, detail: str, whole: Whole | None
    ) -> RawRecord:
        return RawRecord(
            partition=file.partition,
            offset=file.offset,
            next_offset=next_offset,
            value=value,
            encoding=file.kind.encoding,
            timestamp_ms=int(self._clock() * 1000),
            refused=BadRecord(file.partition, file.offset, value, reason.value, detail, whole=whole),
        )
