"""Where bad records go, at least once: files, or a Kafka topic with files for when it is away.

A dead letter is a MessagePack map (``topic``, ``partition``, ``offset``, ``key``, ``value``, ``headers``,
``reason``, ``detail``, ``time_ms``) in a frame of the spool's format. Frames are appended to segments
``dead-<number>.msgpack`` of a directory; ``read_dead_letters`` reads them back. A segment is never written to
by a second process: each start begins a new one. Of a record that no frame can hold the letter has the beginning,
and ``whole``: the length and the CRC32C of its value.

To Kafka everything goes through the same files: first written there, then sent, and a segment is deleted once
all it holds is acknowledged. So an outage or a restart loses nothing, and ``flush`` only has to sync a file.
Letters that the topic refuses for their size stay in ``undeliverable-<number>.msgpack``.

The files are bounded. When they are full, or the disk is, ``write`` raises ``DeadLettersFull``: whoever calls
it tries again until there is room (an operator takes files away, the topic comes back), and no letter is ever
dropped.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import crc32c
import msgpack
from kafka import KafkaProducer
from kafka.errors import MessageSizeTooLargeError, RecordListTooLargeError

from ..errors import ConfigError, GraphtideError
from ..failpoints import point
from ..records.spool_format import CUT_BYTES, RECORD_BYTES_MAX, FramingLost, SpoolWriter, read_frames
from ..records.stream import BadRecord, DeadLettersFull, Partition, Whole
from .kafka_client import Backoff, KafkaLink

log = logging.getLogger(__name__)

SEGMENT_BYTES = 16 << 20
_ROOM_FOR_THE_REST = 64 << 10  # for what a letter has besides value, key and headers
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_SEGMENT, _UNDELIVERABLE = "dead-", "undeliverable-"
_SEND_AT_ONCE = 100
_ACKNOWLEDGE_S = 30.0
_BLOCK_S = 10.0
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class DeadLettersError(GraphtideError):
    """Bad records cannot be kept, for a reason that does not go away by waiting."""

    code = "dead-letters"


def pack_letter(bad: BadRecord, time_ms: int) -> bytes:
    """A dead letter as it stands in a file; it fits into a frame, cut where it must be."""
    if _size(bad) > RECORD_BYTES_MAX - _ROOM_FOR_THE_REST:
        bad = _cut(bad)
    letter: dict[str, Any] = {
        "topic": bad.partition.name,
        "partition": bad.partition.number,
        "offset": bad.offset,
        "key": bad.key,
        "value": bad.value,
        "headers": bad.headers,
        "reason": bad.reason,
        "detail": bad.detail,
        "time_ms": time_ms,
    }
    if bad.whole is not None:
        letter["whole"] = bad.whole._asdict()
    return bytes(msgpack.packb(letter))


def _size(bad: BadRecord) -> int:
    return len(bad.value) + len(bad.key or b"") + sum(_header_size(*header) for header in bad.headers)


def _header_size(name: str, value: bytes) -> int:
    return 16 + 4 * len(name) + len(value)


def _cut(bad: BadRecord) -> BadRecord:
    """The beginnings of value and key, and the first headers; the detail says what of the latter is missing."""
    detail, key, room = bad.detail, bad.key, CUT_BYTES
    headers: list[tuple[str, bytes]] = []
    if key is not None and len(key) > CUT_BYTES:
        detail += f" (its key has {len(key)} bytes and is cut)"
        key = key[:CUT_BYTES]
    for name, value in bad.headers:
        room -= _header_size(name, value)
        if room < 0:
            detail += f" ({len(bad.headers) - len(headers)} of its headers are left out)"
            break
        headers.append((name, value))
    return replace(
        bad,
        value=bad.value[:CUT_BYTES],
        detail=detail,
        key=key,
        headers=tuple(headers),
        whole=bad.whole or Whole(len(bad.value), crc32c.crc32c(bad.value)),
    )


def unpack_letter(payload: bytes) -> BadRecord:
    """The inverse of ``pack_letter``, without the time."""
    letter = msgpack.unpackb(payload)
    return BadRecord(
        partition=Partition(letter["topic"], letter["partition"]),
        offset=letter["offset"],
        value=letter["value"],
        reason=letter["reason"],
        detail=letter["detail"],
        key=letter["key"],
        headers=tuple((name, value) for name, value in letter["headers"]),
        whole=Whole(**letter["whole"]) if "whole" in letter else None,
    )


def source_of(bad: BadRecord) -> str:
    """``topic/partition/offset`` (spool: ``file/offset``): what identifies a repeated letter."""
    number = "" if bad.partition.number is None else f"/{bad.partition.number}"
    return f"{bad.partition.name}{number}/{bad.offset}"


def read_dead_letters(path: Path | str) -> Iterator[BadRecord]:
    """Every dead letter in a directory (oldest first) or in one file.

    What a crash left incomplete at the end of a segment was never promised to be safe, and is left out.
    """
    path = Path(path)
    files = _segments(path, _UNDELIVERABLE) + _segments(path, _SEGMENT) if path.is_dir() else [path]
    for file in files:
        for _, payload in _letters(file, 0):
            yield unpack_letter(payload)


def _letters(file: Path, offset: int) -> Iterator[tuple[int, bytes]]:
    """(offset after it, payload) of every letter from ``offset`` on."""
    try:
        for item in read_frames(file, offset):
            if item.good:
                yield item.stop, item.payload
            else:
                log.error("%s: the letter at byte %d is damaged and left out", file, item.start)
    except FramingLost as error:
        log.error("%s is damaged from byte %d on: %s", file, error.position, error.why)


def _segments(directory: Path, prefix: str) -> list[Path]:
    return sorted(directory.glob(f"{prefix}*.msgpack"))


class FileDeadLetters:
    """Dead letters in files. Any thread may call it."""

    def __init__(self, path: Path | str, *, bytes_max: int = 1 << 30, segment_bytes: int = SEGMENT_BYTES) -> None:
        """
        Args:
            path: the directory; it is made when missing.
            bytes_max: the most bytes of all segments (default 1 GiB); one letter may go over it.
            segment_bytes: when a new segment is begun (default 16 MiB).

        Raises:
            ConfigError: the directory cannot be made.
        """
        self.path = Path(path)
        self.bytes_max = bytes_max
        self.segment_bytes = segment_bytes
        self._lock = threading.RLock()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"dead_letters.path = {str(path)!r} cannot be used: {error.strerror}") from error
        self._writer: SpoolWriter | None = None
        self._flushed = 0

    def write(self, bad: Sequence[BadRecord]) -> None:
        """Append these.

        Raises:
            DeadLettersFull: there is no room for all of them now; the files hold the first ``taken``.
            DeadLettersError: the files cannot be written to.
        """
        safe = 0
        with self._lock:
            held = self.held_bytes()
            try:
                for number, letter in enumerate(bad):
                    payload = pack_letter(letter, time.time_ns() // 10**6)
                    if held and held + len(payload) > self.bytes_max:
                        self._seal()  # whoever makes room finds no file in use
                        raise DeadLettersFull(
                            f"{str(self.path)!r} holds {held} bytes of bad records and may hold "
                            f"{self.bytes_max}; the stream waits until some are taken away or "
                            f"dead_letters.spill_bytes_max is raised",
                            taken=number,
                        )
                    if self._is_over():
                        self._seal()
                        safe = number
                    self._segment().append(payload)
                    point("dead_letter.appended")
                    held += len(payload)
                if self._writer is not None:
                    self._writer.flush()
                    self._flushed = self._writer.offset
            except OSError as error:
                self._give_up()
                place = f"dead_letters.path = {str(self.path)!r}"
                if error.errno in _NO_ROOM:
                    raise DeadLettersFull(
                        f"{place} has no room for bad records ({error.strerror}); the stream waits until it has",
                        taken=safe,
                    ) from error
                raise DeadLettersError(f"{place} cannot be written to: {error.strerror}") from error

    def flush(self) -> None:
        """Return when everything written is on disk."""
        with self._lock:
            if self._writer is not None:
                self._writer.sync()

    def close(self) -> None:
        """Sync and close."""
        with self._lock:
            self._seal()

    def __enter__(self) -> FileDeadLetters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def held_bytes(self) -> int:
        """Bytes of all files."""
        sizes = 0
        for file in self.path.glob("*.msgpack"):
            with contextlib.suppress(FileNotFoundError):
                sizes += file.stat().st_size
        return sizes

    def _is_over(self) -> bool:
        """The segment in use is large enough, or gone."""
        writer = self._writer
        return writer is not None and (writer.offset >= self.segment_bytes or not writer.path.exists())

    def _segment(self) -> SpoolWriter:
        if self._writer is None:
            self._writer = SpoolWriter(self.path, name=f"{_SEGMENT}{time.time_ns():020}-{os.getpid()}")
            self._flushed = 0
        return self._writer

    def _seal(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _give_up(self) -> None:
        """Take back what was appended and may not have been written; the next letter begins a new segment."""
        if self._writer is not None:
            self._writer.give_up(self._flushed)
            self._writer = None


CLOSE_SECONDS_MAX = 5.0
"""How long ``close`` waits for letters to be sent; what is under way is broken off then."""


class KafkaDeadLetters(FileDeadLetters):
    """Dead letters to a topic, by way of files. Any thread may call it."""

    def __init__(
        self,
        bootstrap_servers: Sequence[str] | str,
        topic: str,
        spill_path: Path | str,
        *,
        client: Mapping[str, Any] | None = None,
        bytes_max: int = 1 << 30,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """See ``FileDeadLetters``; ``client`` is passed to kafka-python as it is. No broker is needed yet."""
        super().__init__(spill_path, bytes_max=bytes_max, segment_bytes=segment_bytes)
        self.servers = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
        self.topic = topic
        self.client = dict(client or {})
        self.sent = 0
        self.outages = 0
        self._away = False
        self._producer = KafkaLink(
            KafkaProducer,
            self.client,
            bootstrap_servers=list(self.servers),
            acks="all",
            # An idempotent producer gives up on all that is under way when one record is too large.
            enable_idempotence=False,
            max_request_size=128 << 20,
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=5_000,
            max_block_ms=int(_BLOCK_S * 1000),
            delivery_timeout_ms=int(_ACKNOWLEDGE_S * 1000),
            request_timeout_ms=10_000,
            reconnect_backoff_max_ms=5000,
        )
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._work = threading.Event()
        self._work.set()
        self._read: dict[Path, int] = {}
        self._sender = threading.Thread(target=self._run, name="dead-letters", daemon=True)
        self._sender.start()

    def write(self, bad: Sequence[BadRecord]) -> None:
        try:
            super().write(bad)
        finally:
            self._work.set()  # also where there was no room: what is in the files must be sent to make some

    def close(self) -> None:
        """Give what waits a moment to be sent; the rest is sent after the next start."""
        self._closing.set()
        self._work.set()
        self._sender.join(CLOSE_SECONDS_MAX)
        self._abandoned.set()
        self._producer.break_off()
        self._sender.join(_BLOCK_S)  # all that it may wait for ends now, or by then
        super().close()

    def _run(self) -> None:
        backoff = Backoff()
        while True:
            self._work.wait()
            self._work.clear()
            closing = self._closing.is_set()
            if self._abandoned.is_set():  # the files may belong to somebody else by now
                break
            try:
                while self._send_some():
                    backoff.reset()
                self._answers()
            except Exception as error:  # whatever it is, the letters are safe in their files: try again
                self._fails(error)
                if not closing:
                    self._closing.wait(backoff.wait_s())
                    self._work.set()
            if closing:
                break
        self._producer.close()

    def _send_some(self) -> bool:
        """Send the oldest letters that wait, and return once they are acknowledged; False when none do.

        1. Read up to a hundred letters behind those that are done.
        2. Send them, and wait for every answer.
        3. Put what is refused for its size aside, synced.
        4. Only now count them as done; a segment that is done is deleted, the one in use is closed first.

        Raises:
            KafkaError: one was not acknowledged. All of them are sent again.
        """
        for segment in _segments(self.path, _SEGMENT):
            with self._lock:  # asked before reading: only a segment that was closed by then was read to its end
                in_use = self._writer is not None and self._writer.path == segment
            batch = []
            for stop, payload in _letters(segment, self._read.get(segment, 0)):
                batch.append((stop, payload))
                if len(batch) == _SEND_AT_ONCE:
                    break
            if batch:
                self._deliver([payload for _, payload in batch])
                self._read[segment] = batch[-1][0]
                return True
            self._drop(segment, in_use)
        return False

    def _drop(self, segment: Path, in_use: bool) -> None:
        """Delete a segment of which nothing is left to send, unless it was written to since we looked."""
        with self._lock:
            if in_use:
                writer = self._writer
                if writer is None or writer.path != segment or writer.offset > self._read.get(segment, 0):
                    self._work.set()
                    return
                self._seal()
            rest = segment.stat().st_size - self._read.pop(segment, 0)
            if rest > 0:
                # Damaged, or cut short when we died: whoever can read more of it shall have it.
                aside = segment.with_name(f"damaged-{segment.name}")
                log.error("the last %d bytes of %s are no letters; it is now %s", rest, segment, aside.name)
                segment.rename(aside)
            else:
                segment.unlink()

    def _deliver(self, payloads: Sequence[bytes]) -> None:
        producer = self._producer.client()
        refused = []
        waiting = []
        for payload in payloads:
            try:
                waiting.append((payload, self._send(producer, unpack_letter(payload))))
            except _TOO_LARGE:
                refused.append(payload)
        for payload, future in waiting:
            try:
                future.get(timeout=_ACKNOWLEDGE_S)
            except _TOO_LARGE:
                refused.append(payload)
        if refused:
            self._set_aside(refused)
        self.sent += len(payloads) - len(refused)

    def _send(self, producer: KafkaProducer, bad: BadRecord) -> Any:
        headers = [
            *bad.headers,
            ("graphtide-error", bad.reason.encode()),
            ("graphtide-error-detail", bad.detail.encode()),
            ("graphtide-source", source_of(bad).encode()),
        ]
        if bad.whole is not None:
            headers += [
                ("graphtide-value-bytes", str(bad.whole.bytes).encode()),
                ("graphtide-value-crc32c", str(bad.whole.crc32c).encode()),
            ]
        return producer.send(self.topic, value=bad.value, key=bad.key, headers=headers)

    def _set_aside(self, payloads: Sequence[bytes]) -> None:
        log.error("%d bad records are too large for topic %s; kept in %s", len(payloads), self.topic, self.path)
        with SpoolWriter(self.path, name=f"{_UNDELIVERABLE}{time.time_ns():020}-{os.getpid()}") as writer:
            for payload in payloads:
                writer.append(payload)

    def _fails(self, error: BaseException) -> None:
        if not self._away:
            self._away = True
            self.outages += 1
            log.error(
                "bad records cannot be sent to topic %s (%s: %s); they wait in %s",
                self.topic,
                type(error).__name__,
                error,
                self.path,
            )
        self._producer.close()

    def _answers(self) -> None:
        if self._away:
            self._away = False
            log.info("bad records can be sent to topic %s again", self.topic)
