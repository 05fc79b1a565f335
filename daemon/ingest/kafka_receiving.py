"""How the answers of brokers are received: in large pieces, and copied as little as may be.

kafka-python receives 4 KiB at a time, each time giving the interpreter's lock away and waiting for it again, and
copies an answer five times before it is decoded, holding the lock. Beside threads that ingest and compute, that is
what a fast stream waits for.

Brokers take any bytes for the names of headers. kafka-python calls a record damaged whose names are no UTF-8, and
stops there for ever; here they are read as Java's clients read them, with U+FFFD for what is none.
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.parser import KafkaProtocol
from kafka.record.default_records import DefaultRecordBatch

ENOUGH_BYTES = 1 << 20
"""So much is handed on at once; what else has arrived comes with the next look."""
_TLS_RECORD_BYTES = 1 << 14
_NOTHING_MORE = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Receiver:
    """Takes the place of a transport's ``_sock_recv``."""

    def __init__(self, transport: Any) -> None:
        """``transport``: one of kafka-python's, connected."""
        self._transport = transport
        # TLS keeps the rest of a record for which there was no room, and no selector tells of that.
        self._room = memoryview(bytearray(ENOUGH_BYTES + _TLS_RECORD_BYTES))
        self._parser: KafkaProtocol | None = None

    def __call__(self) -> tuple[memoryview, KafkaConnectionError | None]:
        """What has arrived, which may be read until the next call; and why nothing more will come."""
        size, error = 0, None
        try:
            while size < ENOUGH_BYTES:
                count = self._transport._sock.recv_into(self._room[size:])
                if count == 0:
                    error = KafkaConnectionError("socket disconnected")
                    break
                size += count
        except _NOTHING_MORE:
            pass
        except Exception as failure:  # of the socket, or of TLS
            error = KafkaConnectionError(failure)
        self._spare_copies()
        return self._room[:size], error

    def _spare_copies(self) -> None:
        parser = getattr(self._transport.get_protocol(), "parser", None)
        if parser is not None and parser is not self._parser:
            self._parser = parser
            parser._process_response = partial(_process, parser)


def _process(parser: KafkaProtocol, frame: bytearray) -> Any:
    asked = parser.in_flight_requests
    expected = asked[0].get_response_class() if asked else None  # the class of one version, or a login's object
    # Others are small, and some keep what they read.
    brings_records = isinstance(expected, type) and issubclass(expected, FetchResponse)
    return KafkaProtocol._process_response(parser, _Answer(frame) if brings_records else frame)


class _Answer:
    """A frame as a parser reads it; its rest is not copied."""

    def __init__(self, frame: bytearray) -> None:
        self._bytes = memoryview(frame)
        self._at = 0

    def read(self, size: int | None = None) -> bytes | memoryview:
        part = self._bytes[self._at :] if size is None else self._bytes[self._at : self._at + size]
        self._at += len(part)
        return part if size is None else bytes(part)

    def tell(self) -> int:
        return self._at

    def seek(self, at: int) -> None:
        self._at = at


class _Lenient(bytearray):
    """Bytes whose parts are text, whatever they are."""

    def __getitem__(self, at: Any) -> Any:
        part = super().__getitem__(at)
        return _Lenient(part) if isinstance(at, slice) else part

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return bytes(self).decode(encoding, errors)


_read_strictly = DefaultRecordBatch._read_msg


def _read_record(batch: Any) -> Any:
    """The next record of a batch; where it stands is as before if it cannot be read."""
    try:
        return _read_strictly(batch)
    except UnicodeDecodeError:
        batch._buffer = _Lenient(batch._buffer)  # for the rest of it, too, which may be as bad
        return _read_strictly(batch)


DefaultRecordBatch._read_msg = _read_record
