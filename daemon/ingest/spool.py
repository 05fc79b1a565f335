"""The source that needs no broker: a directory of append-only record files, followed while they grow.

Every file is a partition of its own; offsets are bytes of its (decompressed) content. Files are read in name
order: what an earlier name offers is read first, and what is added to any file later is picked up. An
incomplete last record or line waits, except at the end of a complete compressed file, where a last line
needs no line end.

Append-only is checked. A file that shrinks below what was read, is replaced by another file, or whose first
bytes change is a ``SourceError``, never silence: a fingerprint (length and CRC32C of the first bytes that
were read) is compared at every read, and across restarts through a small file next to the checkpoints.
A file that was read whole may be deleted once a checkpoint covers it; it is then forgotten.

A frame whose checksum fails, while the framing holds, is delivered with the encoding ``CORRUPT``, which no
decoder knows: so it goes to the dead letters like any record that cannot be decoded. Where the framing itself
is lost the source cannot go on: ``SourceError``.
"""

from __future__ import annotations

import json
import logging
import lzma
import math
import os
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import crc32c
import zstandard

from ..errors import ConfigError, SourceError
from ..records.encodings import HEADER_LINE
from ..records.spool_format import RECORD_BYTES_MAX, FileKind, FramingLost, file_kind, frame_bytes, frames
from ..records.stream import Lag, Offsets, Partition, RawRecord

log = logging.getLogger(__name__)

PAUSE_SECONDS_MAX = 0.01
"""The longest pause between two looks at the directory: what an idle spool adds to freshness."""

CORRUPT = "none: the checksum does not hold"
"""The encoding of a frame whose checksum failed."""

FINGERPRINT_BYTES = 1024
"""How much of a file's beginning is compared."""

_PIECE = 16 << 10  # compressed bytes at a time: bounds what a hostile ratio can make of them
_READ_BYTES = 4 << 20
_RECORD_BYTES = 64  # what a record takes besides its value, about: tiny ones must not make a poll endless

SpoolStart = Literal["earliest", "latest"] | Mapping[str, int]


class _Plain:
    """A file as it is."""

    def __init__(self, handle: int, offset: int) -> None:
        self.handle = handle
        self.offset = offset

    def peek(self, count: int) -> bytes:
        """Up to ``count`` bytes from here; fewer when no more are there yet."""
        return os.pread(self.handle, count, self.offset)

    def advance(self, count: int) -> None:
        self.offset += count

    def close(self) -> None:
        os.close(self.handle)


class _Inflated:
    """A compressed file, decompressed bit by bit; a file that is still being copied in simply waits."""

    def __init__(self, handle: int, compression: str) -> None:
        self.handle = handle
        self.compression = compression
        self.raw_read = 0
        self._ready = bytearray()
        self._decompressor: Any = None

    def peek(self, count: int) -> bytes:
        """Up to ``count`` bytes from here; fewer when no more are there yet.

        Raises:
            SourceError: the compressed data is damaged.
        """
        while len(self._ready) < count:
            piece = os.pread(self.handle, _PIECE, self.raw_read)
            if not piece:
                break
            self.raw_read += len(piece)
            self._inflate(piece)
        return bytes(self._ready[:count])

    def advance(self, count: int) -> None:
        del self._ready[:count]

    def close(self) -> None:
        os.close(self.handle)

    @property
    def between_members(self) -> bool:
        """Everything read so far forms whole gzip members, xz streams or zstd frames."""
        return self._decompressor is None

    @property
    def drained(self) -> bool:
        return not self._ready

    def _inflate(self, piece: bytes) -> None:
        while piece:
            if self._decompressor is None:
                if not (piece := piece.lstrip(b"\0")):  # padding between members
                    return
                self._decompressor = _decompressor(self.compression)
            try:
                self._ready += self._decompressor.decompress(piece)
            except (zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
                raise SourceError(f"the compressed data is damaged near byte {self.raw_read}: {error}") from error
            if not self._decompressor.eof:
                return
            piece = self._decompressor.unused_data
            self._decompressor = None


_Content = _Plain | _Inflated


def _decompressor(compression: str) -> Any:
    if compression == "gz":
        return zlib.decompressobj(wbits=31)
    if compression == "xz":
        return lzma.LZMADecompressor()
    return zstandard.ZstdDecompressor().decompressobj()


@dataclass(slots=True)
class _File:
    """What is known of one file.

    ``raw_read``: bytes of a compressed file that were decompressed; ``idle_size``: the size at which nothing
    whole was left to read.
    """

    name: str
    kind: FileKind
    offset: int = 0
    size: int = 0
    inode: tuple[int, int] | None = None
    fingerprint: tuple[int, int] = (0, 0)
    raw_read: int = 0
    idle_size: int = -1
    header: bytes | None = None
    inflating: _Inflated | None = None

    @property
    def partition(self) -> Partition:
        return Partition(self.name)

    @property
    def unread(self) -> int:
        """Bytes to read: of the content, or of the compressed file (how many they come to is not known)."""
        read = self.offset if self.kind.compression is None else self.raw_read
        waiting = self.inflating is not None and not self.inflating.drained
        return max(self.size - read, int(waiting))


class SpoolSource:
    """See the module. One thread calls it; ``lag`` may be called from others."""

    unit = "bytes"

    def __init__(
        self,
        path: Path | str,
        *,
        start: SpoolStart = "earliest",
        fingerprints: Path | None = None,
        block_bytes: int = 1 << 20,
        record_bytes_max: int = RECORD_BYTES_MAX,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            path: the directory; ``open`` makes it when missing.
            start: without a checkpoint: ``"earliest"`` (default), ``"latest"`` (what is there already is
                skipped, at the cost of reading it once), or the first byte to read of each file named.
            fingerprints: where fingerprints are kept between restarts (by the daemon: beside its
                checkpoints); None (default): files are compared only while this process runs.
            block_bytes: lines are delivered in blocks of at most so many bytes (default 1 MiB), unless one
                line is longer.
            record_bytes_max: a longer record or line is a ``SourceError`` (default 64 MiB).
            clock: seconds since 1970; a record's time is when it was read.

        Raises:
            ConfigError: ``start`` is something else.
        """
        if not isinstance(start, Mapping) and start not in ("earliest", "latest"):
            raise ConfigError(f"source.start = {start!r}: a spool starts at earliest, latest or given bytes")
        self.path = Path(path)
        self.start = start
        self.fingerprints = fingerprints
        self.block_bytes = block_bytes
        self.record_bytes_max = record_bytes_max
        self.clock = clock
        self.outages = 0
        self._files: dict[str, _File] = {}
        self._first_offsets: dict[str, int] = {}
        self._ignored: set[str] = set()
        self._directory: tuple[int, int] | None = None
        self._away = False
        self._amount: dict[Partition, int] = {}
        self._backlog: dict[str, int] | None = None
        self._behind_since: float | None = None
        self._at_end = clock()

    # -- life -------------------------------------------------------------------------------------------

    def open(self, offsets: Offsets | None) -> None:
        """Begin at these offsets, or by ``start`` when there are none.

        Raises:
            SourceError: a file that the offsets name is gone, shorter, or another one.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        status = os.stat(self.path)
        self._directory = (status.st_dev, status.st_ino)
        known = self._load_fingerprints() if offsets else {}
        for partition, offset in (offsets or {}).items():
            kind = file_kind(partition.name)
            if kind is None or partition.number is not None:
                raise SourceError(f"{partition.name!r} is not the name of a spool file")
            self._restore(partition.name, kind, offset, known.get(partition.name))
        if offsets is None and isinstance(self.start, Mapping):
            self._first_offsets = dict(self.start)
        self._scan()
        for file in self._files.values():
            if file.fingerprint[0]:
                with open(self.path / file.name, "rb") as content:
                    self._check_fingerprint(file, content.fileno())
        if offsets is None and self.start == "latest":
            while self.poll(_READ_BYTES, timeout_s=0):
                pass
        self._backlog = {file.name: file.size for file in self._files.values()}

    def _restore(self, name: str, kind: FileKind, offset: int, known: dict[str, Any] | None) -> None:
        file = _File(name, kind, offset)
        if known is not None:
            file.fingerprint = (int(known["bytes"]), int(known["crc32c"]))
        if not (self.path / name).exists():
            if known is not None and known["whole"] and known["offset"] == offset:
                log.warning("spool file %s, read whole before, is gone; it is forgotten", name)
                return
            raise SourceError(
                f"spool file {str(self.path / name)!r} is gone, and was read only to byte {offset} when the "
                f"checkpoint was made: what followed is missing. Put it back",
                {"file": name, "offset": offset},
            )
        self._files[name] = file

    def identity(self) -> dict[str, Any]:
        """The directory."""
        return {"kind": "spool", "path": str(self.path.resolve())}

    def close(self) -> None:
        for file in self._files.values():
            self._stop_inflating(file)

    # -- reading ----------------------------------------------------------------------------------------

    def poll(self, bytes_max: int, timeout_s: float) -> list[RawRecord]:
        """The next records: about ``bytes_max`` bytes of them (one record may exceed it).

        Raises:
            SourceError: a file shrank, was replaced, or is damaged.
        """
        deadline = time.monotonic() + timeout_s
        pause_s = 0.001
        while True:
            records = self._read_available(bytes_max) if self._scan() else []
            self._amount = {file.partition: file.unread for file in self._files.values()}
            if records:
                return records
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return []
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, PAUSE_SECONDS_MAX)

    def position(self) -> dict[Partition, int]:
        """The next byte of every file."""
        return {file.partition: file.offset for file in self._files.values()}

    def partition_count(self, name: str) -> int:
        """1: whoever writes a file may put any edge into it."""
        return 1

    def lag(self) -> Lag:
        """Bytes unread (of a compressed file: compressed bytes), and seconds since the end was last reached."""
        behind = self._behind_since
        return Lag(dict(self._amount), 0.0 if behind is None else max(self.clock() - behind, 0.0))

    def backlog(self) -> int | None:
        """Bytes (of a compressed file: compressed ones) that lay there at ``open`` and are unread; not those of an
        incomplete last record."""
        if self._backlog is None:
            return None
        left = {name: self._left(name, size) for name, size in self._backlog.items()}
        self._backlog = {name: size for name, size in self._backlog.items() if left[name]}
        return sum(left.values())

    def _left(self, name: str, size: int) -> int:
        file = self._files.get(name)
        if file is None or file.idle_size >= size:
            return 0
        return max(file.unread + size - file.size, 0)

    def log_margin(self, offsets: Offsets) -> float:
        """A file goes when somebody deletes it."""
        return math.inf

    def checkpointed(self, offsets: Offsets) -> None:
        """Keep the fingerprints of the files that this checkpoint names."""
        if self.fingerprints is None:
            return
        entries = {}
        for file in self._files.values():
            offset = offsets.get(file.partition)
            if offset is not None:
                length, checksum = file.fingerprint
                whole = file.unread == 0 and file.offset == offset
                entries[file.name] = {"bytes": length, "crc32c": checksum, "offset": offset, "whole": whole}
        draft = self.fingerprints.with_suffix(".new")
        try:
            with open(draft, "w") as out:
                json.dump(entries, out)
                out.flush()
                os.fsync(out.fileno())
            os.replace(draft, self.fingerprints)
        except OSError as error:  # the fingerprints of before still hold for what they cover
            log.error("fingerprints of the spool cannot be kept in %s: %s", self.fingerprints, error.strerror)

    def _load_fingerprints(self) -> dict[str, dict[str, Any]]:
        if self.fingerprints is None or not self.fingerprints.exists():
            return {}
        try:
            return dict(json.loads(self.fingerprints.read_text()))
        except ValueError as error:
            raise SourceError(f"{str(self.fingerprints)!r} cannot be read: {error}. Delete it to go on") from error

    def _read_available(self, bytes_max: int) -> list[RawRecord]:
        records: list[RawRecord] = []
        room = bytes_max
        for name in sorted(self._files):
            file = self._files[name]
            while room > 0 and file.unread and file.size != file.idle_size:
                try:
                    fresh = self._read(file, room)
                except SourceError:
                    if records:  # what was read already is delivered first; the next poll fails again
                        return records
                    raise
                if not fresh:
                    file.idle_size = file.size
                    break
                records += fresh
                room -= fresh[-1].next_offset - fresh[0].offset + _RECORD_BYTES * len(fresh)
            if room <= 0:
                break
        now = self.clock()
        if room > 0:
            self._at_end = now
        self._behind_since = self._at_end if room <= 0 else None
        return records

    def _read(self, file: _File, room: int) -> list[RawRecord]:
        try:
            content = self._content(file)
        except FileNotFoundError:  # deleted just now; the next look at the directory deals with it
            return []
        except OSError as error:
            raise SourceError(f"spool file {file.name} cannot be read: {error.strerror}") from error
        try:
            if file.kind.framed:
                records = self._framed(file, content, room)
            else:
                records = self._lines(file, content)
            if records:
                taken = records[-1].next_offset - file.offset
                content.advance(taken)
                file.offset += taken
            if file.fingerprint[0] < FINGERPRINT_BYTES:
                self._take_fingerprint(file, content)
        except SourceError as error:
            raise SourceError(f"spool file {file.name}: {error.message}", error.detail) from error
        finally:
            self._let_go(file, content)
        return records

    def _framed(self, file: _File, content: _Content, room: int) -> list[RawRecord]:
        buffer = content.peek(min(max(room, 1 << 16), _READ_BYTES))
        if len(buffer) < frame_bytes(buffer) <= self.record_bytes_max + 8:
            buffer = content.peek(frame_bytes(buffer))
        records: list[RawRecord] = []
        now_ms = int(self.clock() * 1000)
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
                for item in frames(buffer, bytes_max=self.record_bytes_max)
            )
        except FramingLost as error:
            if not records:  # else what is whole is delivered first, and the next read stops here
                raise SourceError(f"damaged at byte {file.offset + error.position}: {error.why}") from error
        return records

    def _lines(self, file: _File, content: _Content) -> list[RawRecord]:
        count = self.block_bytes
        while True:
            buffer = content.peek(count)
            stop = buffer.rfind(b"\n") + 1
            if stop == 0 and len(buffer) < count and _complete(file):
                stop = len(buffer)
            if stop or len(buffer) < count:
                break
            if count >= self.record_bytes_max:
                raise SourceError(f"the line at byte {file.offset} is longer than {self.record_bytes_max} bytes")
            count = min(2 * count, self.record_bytes_max)
        if stop == 0:
            return []
        headers: tuple[tuple[str, bytes], ...] = ()
        if file.kind.encoding == "csv" and file.offset > 0:
            headers = ((HEADER_LINE, self._header(file)),)
        return [
            RawRecord(
                partition=file.partition,
                offset=file.offset,
                next_offset=file.offset + stop,
                value=buffer[:stop],
                encoding=file.kind.encoding,
                timestamp_ms=int(self.clock() * 1000),
                headers=headers,
            )
        ]

    def _header(self, file: _File) -> bytes:
        """The first line of a file. It is there: a block of lines after it was found."""
        if file.header is None:
            handle = os.open(self.path / file.name, os.O_RDONLY | os.O_CLOEXEC)
            compression = file.kind.compression
            content: _Content = _Plain(handle, 0) if compression is None else _Inflated(handle, compression)
            try:
                count = 1 << 12
                while (stop := content.peek(count).find(b"\n")) < 0:
                    count *= 2
                file.header = content.peek(stop).rstrip(b"\r")
            finally:
                content.close()
        return file.header

    # -- files ------------------------------------------------------------------------------------------

    def _content(self, file: _File) -> _Content:
        """The file from its offset on, checked to be the one that was read before."""
        if file.inflating is not None:
            self._check_fingerprint(file, file.inflating.handle)
            return file.inflating
        handle = os.open(self.path / file.name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if (status.st_dev, status.st_ino) != file.inode:
                raise _replaced(file)
            self._check_fingerprint(file, handle)
            if file.kind.compression is None:
                return _Plain(handle, file.offset)
            file.inflating = _Inflated(handle, file.kind.compression)
        except BaseException:
            os.close(handle)
            raise
        _skip(file, file.inflating)
        return file.inflating

    def _let_go(self, file: _File, content: _Content) -> None:
        if isinstance(content, _Plain):
            content.close()
            return
        file.raw_read = content.raw_read
        if _complete(file) and content.drained:
            self._stop_inflating(file)

    def _stop_inflating(self, file: _File) -> None:
        if file.inflating is not None:
            file.inflating.close()
            file.inflating = None

    def _check_fingerprint(self, file: _File, handle: int) -> None:
        length, checksum = file.fingerprint
        if crc32c.crc32c(os.pread(handle, length, 0)) != checksum:
            raise SourceError(
                f"spool file {file.name}: its first {length} bytes changed after they were read; files of a spool "
                f"are append-only",
                {"file": file.name},
            )

    def _take_fingerprint(self, file: _File, content: _Content) -> None:
        read = file.offset if isinstance(content, _Plain) else content.raw_read
        beginning = os.pread(content.handle, min(read, FINGERPRINT_BYTES), 0)
        file.fingerprint = (len(beginning), crc32c.crc32c(beginning))

    def _scan(self) -> bool:
        """Look at every file; False while the directory is away (counted once as an outage).

        Raises:
            SourceError: a file shrank, was replaced, or went before it was read.
        """
        try:
            status = os.stat(self.path)
            if (status.st_dev, status.st_ino) != self._directory:
                raise FileNotFoundError(f"{str(self.path)!r} is another directory now (unmounted?)")
            with os.scandir(self.path) as entries:
                found = {entry.name: entry.stat() for entry in entries if entry.is_file()}
        except OSError as error:
            if not self._away:
                self._away = True
                self.outages += 1
                log.error("the spool cannot be read: %s; trying again", error)
            return False
        if self._away:
            self._away = False
            log.info("the spool %s can be read again", self.path)
        for name in found.keys() - self._files.keys():
            self._meet(name)
        for name, file in list(self._files.items()):
            if name in found:
                self._look(file, found[name])
            else:
                self._forget(file)
        return True

    def _meet(self, name: str) -> None:
        kind = file_kind(name)
        if kind is not None:
            self._files[name] = _File(name, kind, self._first_offsets.get(name, 0))
        elif name not in self._ignored and not name.startswith(".") and not name.endswith((".tmp", ".part")):
            self._ignored.add(name)
            log.warning("%s in the spool is ignored: its name does not end in an encoding", name)

    def _look(self, file: _File, status: os.stat_result) -> None:
        inode = (status.st_dev, status.st_ino)
        if file.inode is None:
            file.inode = inode
        elif inode != file.inode:
            raise _replaced(file)
        read = file.offset if file.kind.compression is None else file.raw_read
        if status.st_size < read:
            raise SourceError(
                f"spool file {file.name} shrank to {status.st_size} bytes, but {read} were read already; files of "
                f"a spool are append-only",
                {"file": file.name, "size": status.st_size, "read": read},
            )
        file.size = status.st_size

    def _forget(self, file: _File) -> None:
        if file.unread:
            raise SourceError(
                f"spool file {file.name} was deleted with {file.unread} bytes unread", {"file": file.name}
            )
        log.info("spool file %s was deleted after it was read whole; it is forgotten", file.name)
        self._stop_inflating(file)
        del self._files[file.name]


def _replaced(file: _File) -> SourceError:
    return SourceError(
        f"spool file {file.name} was replaced by another file; files of a spool are append-only",
        {"file": file.name},
    )


def _complete(file: _File) -> bool:
    """A compressed file was read to an end at which it can be complete."""
    content = file.inflating
    return content is not None and content.between_members and content.raw_read >= file.size


def _skip(file: _File, content: _Inflated) -> None:
    """Go to where reading stopped before.

    Raises:
        SourceError: the file has less than that.
    """
    left = file.offset
    while left > 0:
        piece = len(content.peek(min(left, 1 << 20)))
        if piece == 0:
            raise SourceError(
                f"spool file {file.name} holds {file.offset - left} bytes, but {file.offset} were read already; "
                f"files of a spool are append-only",
                {"file": file.name},
            )
        content.advance(piece)
        left -= piece
