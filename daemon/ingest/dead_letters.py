"""Where bad records go, at least once: files, or a Kafka topic by way of them (``dead_letters_kafka``).

A dead letter is a MessagePack map (``topic``, ``partition``, ``offset``, ``key``, ``value``, ``headers``,
``reason``, ``detail``, ``time_ms``) in a frame of the spool's format. Frames are appended to segments
``dead-<number>.msgpack`` of a directory; ``read_dead_letters`` reads them back. A segment is never written to
by a second process: each start begins a new one. Of a record that no frame can hold the letter has the beginning,
and ``whole``: the length and the CRC32C of its value.

The files are bounded. When they are full, or the disk is, ``write`` raises ``DeadLettersFull``: whoever calls
it tries again until there is room (an operator takes files away, the topic comes back), and no letter is ever
dropped.

Letters stay in memory until their segment is synced: those of a sync that failed are written again, to another
segment (``durable``). Segments are synced when they are full, so that these are no more than one holds.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import crc32c
import msgpack

from ..errors import ConfigError, DeadLettersError
from ..failpoints import point
from ..os_errors import why
from ..records.spool_format import (
    CUT_BYTES,
    RECORD_BYTES_MAX,
    FramingLost,
    SpoolWriter,
    later_than_all,
    read_frames,
)
from ..records.stream import BadRecord, DeadLettersFull, Partition, Whole

log = logging.getLogger(__name__)

SEGMENT_BYTES = 16 << 20
_ROOM_FOR_THE_REST = 64 << 10  # for what a letter has besides value, key and headers
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
SEGMENT, UNDELIVERABLE = "dead-", "undeliverable-"


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
    """The inverse of ``pack_letter``, without the time.

    Raises:
        ValueError: it is no letter.
    """
    try:
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
    except (LookupError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise ValueError("this is no dead letter") from error


def source_of(bad: BadRecord) -> str:
    """``topic/partition/offset`` (spool: ``file/offset``): what identifies a repeated letter."""
    number = "" if bad.partition.number is None else f"/{bad.partition.number}"
    return f"{bad.partition.name}{number}/{bad.offset}"


def read_dead_letters(path: Path | str) -> Iterator[BadRecord]:
    """Every dead letter in a directory (oldest first) or in one file.

    What a crash left incomplete at the end of a segment was never promised to be safe, and is left out. So is what
    is no letter (of another folder, say), with a line in the log.
    """
    path = Path(path)
    files = segments(path, UNDELIVERABLE) + segments(path, SEGMENT) if path.is_dir() else [path]
    for file in files:
        others = 0
        for _, payload in letters(file, 0):
            try:
                letter = unpack_letter(payload)
            except ValueError:
                others += 1
            else:
                yield letter
        if others:
            log.error("%s: %d of its records are no dead letters, and left out", file, others)


def letters(file: Path, offset: int, damaged: Callable[[], None] = lambda: None) -> Iterator[tuple[int, bytes]]:
    """(offset after it, payload) of every letter from ``offset`` on. ``damaged`` is called for each that is left
    out."""
    try:
        for item in read_frames(file, offset):
            if item.good:
                yield item.stop, item.payload
            else:
                log.error("%s: the letter at byte %d is damaged and left out", file, item.start)
                damaged()
    except FramingLost as error:
        log.error("%s is damaged from byte %d on: %s", file, error.position, error.why)


def segments(directory: Path, prefix: str) -> list[Path]:
    """The files whose names begin so (``SEGMENT``, ``UNDELIVERABLE``), the oldest first."""
    return sorted(directory.glob(f"{prefix}*.msgpack"))


def new_segment(directory: Path, prefix: str) -> str:
    """The name of a file that is newer than all of them."""
    time_ns = later_than_all(directory, re.compile(f"{prefix}([0-9]{{20}})-"))
    return f"{prefix}{time_ns:020}-{os.getpid()}"


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
            raise ConfigError(f"dead_letters.path = {str(path)!r} cannot be used: {why(error)}") from error
        self._writer: SpoolWriter | None = None
        self._unsynced: list[bytes] = []  # letters that readers see, behind what was synced
        self._again: list[bytes] = []  # letters whose sync failed: they are in no file

    def write(self, bad: Sequence[BadRecord]) -> None:
        """Append these.

        Raises:
            DeadLettersFull: there is no room for all of them now; the files hold the first ``taken``.
            DeadLettersError: the files cannot be written to.
        """
        safe = 0
        with self._lock:
            fresh: list[bytes] = []
            try:
                self._write_again()
                held = self.held_bytes()
                for number, letter in enumerate(bad):
                    payload = pack_letter(letter, time.time_ns() // 10**6)
                    is_full = held > 0 and held + len(payload) > self.bytes_max
                    if is_full or self._is_over():
                        self._seal()  # whoever makes room finds no file in use
                        fresh.clear()
                        safe = number
                    if is_full:
                        raise DeadLettersFull(
                            f"{str(self.path)!r} holds {held} bytes of bad records and may hold "
                            f"{self.bytes_max}; the stream waits until some are taken away or "
                            f"dead_letters.spill_bytes_max is raised",
                            taken=number,
                        )
                    self._segment().append(payload)
                    fresh.append(payload)
                    point("dead_letter.appended")
                    held += len(payload)
                if self._writer is not None:
                    self._writer.flush()
                    self._unsynced += fresh
            except OSError as error:
                self._give_up()
                place = f"dead_letters.path = {str(self.path)!r}"
                if error.errno in _NO_ROOM:
                    raise DeadLettersFull(
                        f"{place} has no room for bad records ({why(error)}); the stream waits until it has",
                        taken=safe,
                    ) from error
                raise DeadLettersError(f"{place} cannot be written to: {why(error)}") from error

    def flush(self) -> None:
        """Return when everything written is on disk.

        Raises:
            OSError: it is not; what may be lost is written again when this is called again, or ``write``.
        """
        with self._lock:
            try:
                self._write_again()
                self._sync()
            except OSError:
                self._give_up()
                raise

    def close(self) -> None:
        """Sync and close.

        Raises:
            OSError: something is not on disk. No checkpoint passes it.
        """
        with self._lock:
            self._write_again()
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
        return writer is not None and (writer.offset >= self.segment_bytes or not writer.is_in_place)

    def _segment(self) -> SpoolWriter:
        if self._writer is None:
            self._writer = SpoolWriter(self.path, name=new_segment(self.path, SEGMENT))
        return self._writer

    def _sync(self) -> None:
        if self._writer is not None:
            self._writer.sync()
            self._unsynced.clear()

    def _seal(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._unsynced.clear()

    def _write_again(self) -> None:
        """Write what a sync that failed may have lost."""
        if self._again:
            for payload in self._again:
                self._segment().append(payload)
            self._sync()
            self._again.clear()

    def _give_up(self) -> None:
        """Take back what was appended and may not have been written, and, where it cannot be synced, what was
        written before. The next letter begins a new segment."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.sync_flushed()
            if writer.synced < writer.flushed:
                self._again += self._unsynced
            self._unsynced.clear()
            writer.give_up(writer.synced)
