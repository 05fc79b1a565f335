"""The spool's file format: names that tell the encoding, and frames that carry binary records.

A spool file is called ``<name>.<encoding>[.<compression>]``. Files of ``msgpack`` hold frames: u32 length,
u32 CRC32C of the payload (both little-endian), payload. The other encodings hold lines of text.
"""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import crc32c

from ..durable import Syncing
from ..folder_lock import is_in_place
from .encodings import ENCODINGS, FRAMED, Encoding

COMPRESSIONS = ("gz", "xz", "zst")
UNFINISHED = (".tmp", ".part")
"""Endings of files that are still being put in place: they are left alone until renamed."""

_SECONDS = "%Y%m%dT%H%M%S"

FRAME_HEADER = struct.Struct("<II")
RECORD_BYTES_MAX = 64 << 20
"""The largest record. A longer length in a frame's header means that framing is lost."""

_ARROW_FILE = int.from_bytes(b"ARRO", "little")
"""How an Arrow file begins, as the length of a frame."""

CUT_BYTES = 256 << 10
"""What is kept of a bad record that no frame can hold, or of a line that is too long: so much of its value, and of
key and headers each. A topic takes that by default."""


class FileKind(NamedTuple):
    """What a spool file's name says: one of ``encodings.ENCODINGS``, and one of ``COMPRESSIONS`` or None."""

    encoding: str
    compression: str | None

    @property
    def framed(self) -> bool:
        return self.encoding in FRAMED


def file_kind(name: str) -> FileKind | None:
    """The kind of a spool file; None for a name that is not one."""
    if name.startswith(".") or name.endswith(UNFINISHED):
        return None
    parts = name.split(".")
    compression = parts.pop() if parts[-1] in COMPRESSIONS else None
    if len(parts) < 2 or parts[-1] not in ENCODINGS:
        return None
    return FileKind(parts[-1], compression)


class Frame(NamedTuple):
    """A whole frame within a buffer: ``buffer[start:stop]`` with the header, ``stop - length`` its payload."""

    start: int
    stop: int
    payload: bytes
    good: bool


class FramingLost(ValueError):
    """The bytes at ``position`` (within the buffer) are no frame, so no later one can be found either."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(why)
        self.position = position
        self.why = why


def frame(payload: bytes) -> bytes:
    """The payload as a frame.

    Raises:
        ValueError: it is empty or larger than ``RECORD_BYTES_MAX``.
    """
    if not 0 < len(payload) <= RECORD_BYTES_MAX:
        raise ValueError(f"a record must have 1 to {RECORD_BYTES_MAX} bytes, not {len(payload)}")
    return FRAME_HEADER.pack(len(payload), crc32c.crc32c(payload)) + payload


def frames(buffer: bytes, *, bytes_max: int = RECORD_BYTES_MAX) -> Iterator[Frame]:
    """The whole frames at the start of a buffer; an incomplete last one is left out.

    A frame whose checksum fails is yielded with ``good`` False when what follows it still looks like a
    header (or nothing follows): then its length, and so the place of the next one, can be trusted.

    Raises:
        FramingLost: a length is 0 or over ``bytes_max``. (A write that a power cut tore leaves zeros.)
    """
    start = 0
    while len(buffer) - start >= FRAME_HEADER.size:
        length, checksum = FRAME_HEADER.unpack_from(buffer, start)
        _check_length(start, length, bytes_max)
        stop = start + FRAME_HEADER.size + length
        if stop > len(buffer):
            return
        payload = buffer[start + FRAME_HEADER.size : stop]
        good = crc32c.crc32c(payload) == checksum
        if not good:
            _check_follower(start, buffer[stop : stop + FRAME_HEADER.size], bytes_max)
        yield Frame(start, stop, payload, good)
        start = stop


def large_frames(
    read: Callable[[int, int], bytes], least: int, room: int, *, bytes_max: int = RECORD_BYTES_MAX
) -> Iterator[Frame]:
    """As ``frames``, the first ones that have a payload of ``least`` bytes each, up to about ``room`` bytes.

    ``read(start, count)`` gives so many bytes from there on, fewer where no more are there yet: each payload is
    read by itself, and copied no more.

    Raises:
        FramingLost: as ``frames``.
    """
    start, header = 0, read(0, FRAME_HEADER.size)
    while start < room and len(header) == FRAME_HEADER.size:
        length, checksum = FRAME_HEADER.unpack(header)
        _check_length(start, length, bytes_max)
        if length < least:
            return
        payload, stop = read(start + FRAME_HEADER.size, length), start + FRAME_HEADER.size + length
        if len(payload) < length:
            return
        header = read(stop, FRAME_HEADER.size)
        good = crc32c.crc32c(payload) == checksum
        if not good:
            _check_follower(start, header, bytes_max)
        yield Frame(start, stop, payload, good)
        start = stop


def _check_length(start: int, length: int, bytes_max: int) -> None:
    if not 0 < length <= bytes_max:
        if length == _ARROW_FILE:
            raise FramingLost(
                start, "an Arrow file stands where frames must; `graphtide produce` sends such files"
            )
        raise FramingLost(start, f"a record's length reads {length}; 1 to {bytes_max} is possible")


def _check_follower(start: int, header: bytes, bytes_max: int) -> None:
    """``header``: of what follows a frame whose checksum does not hold, if it is there yet."""
    if len(header) == FRAME_HEADER.size and not 0 < FRAME_HEADER.unpack(header)[0] <= bytes_max:
        raise FramingLost(start, "a record's checksum does not hold, and no record follows it")


def frame_bytes(buffer: bytes) -> int:
    """How many bytes the first frame of a buffer has, as its header says; 0 when that is not there yet."""
    return FRAME_HEADER.size + FRAME_HEADER.unpack_from(buffer)[0] if len(buffer) >= FRAME_HEADER.size else 0


def make_folder(folder: Path) -> None:
    """Make a folder that is missing, and those above it, for our user alone (0700)."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _open_as_the_folder(path: str, flags: int) -> int:
    """Open a file that, if it is new, may be read by those who may read its folder, under any umask."""
    handle = os.open(path, flags, 0o600)
    if os.fstat(handle).st_size == 0:
        with contextlib.suppress(PermissionError):  # another user's file, which that user has opened to us
            os.fchmod(handle, 0o600 | (os.stat(os.path.dirname(path) or ".").st_mode & 0o044))
    return handle


_STAMP = re.compile(r"([0-9]{8}T[0-9]{6}\.[0-9]{9})-")


def _stamp(time_ns: int) -> str:
    seconds, nanoseconds = divmod(time_ns, 10**9)
    return f"{time.strftime(_SECONDS, time.gmtime(seconds))}.{nanoseconds:09}"


def _time_of(stamp: str) -> int:
    seconds, _, nanoseconds = stamp.partition(".")
    return calendar.timegm(time.strptime(seconds, _SECONDS)) * 10**9 + int(nanoseconds)


def later_than_all(folder: Path, stamp: re.Pattern[str], time_of: Callable[[str], int] = int) -> int:
    """For the name of a file that is to be read behind all that are in a folder: now, in nanoseconds since 1970,
    or just after the newest of them, where the clock has been stepped back since that was made.

    ``stamp``: how names by time begin, with the time as a group, of which later ones sort behind; ``time_of``:
    reads that.
    """
    now = time.time_ns()
    try:
        stamps = [found[1] for found in map(stamp.match, os.listdir(folder)) if found is not None]
        return max(now, 1 + time_of(max(stamps)))
    except (OSError, ValueError):  # there is none, or one that is no time
        return now


class SpoolWriter:
    """Appends records to one file of frames of a spool.

    Without a name it makes a new file, named by the time, so that files that are made one after the other are
    read in that order (``later_than_all``). A file has one writer at a time (a lock). An incomplete last record,
    which a writer that died may have left and no reader has taken, is cut off. After a sync that failed none
    succeeds (``durable``): what was written behind ``synced`` must be written again, to another file.
    """

    def __init__(self, directory: Path | str, *, name: str | None = None, encoding: Encoding = "msgpack") -> None:
        """
        Args:
            directory: the spool; it is made when missing, for our user alone. Whoever may read the folder may
                read its files; nobody else may write them.
            name: the file's name, with or without its encoding.
            encoding: of the records, one of ``FRAMED``.

        Raises:
            BlockingIOError: another writer has this file.
            FramingLost: the existing file is damaged.
        """
        folder = Path(directory)
        make_folder(folder)
        if name is None:
            name = f"{_stamp(later_than_all(folder, _STAMP, _time_of))}-{os.getpid()}"
        name = f"{name.removesuffix(f'.{encoding}')}.{encoding}"
        if file_kind(name) != FileKind(encoding, None):
            raise ValueError(f"{name!r} is not the name of a spool file")
        self.name = name
        self.path = folder / name
        while True:
            self._file = open(self.path, "ab", opener=_open_as_the_folder)  # noqa: SIM115  closed by close()
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.is_in_place:  # and was not removed since it was opened
                    self.offset = whole_bytes(self.path)
                    self._file.truncate(self.offset)
                    break
            except BaseException:
                self._file.close()
                raise
            self._file.close()
        self.flushed = self.synced = self.offset
        """Readers see what lies before ``flushed``; what lies before ``synced`` is on disk."""
        self._syncing = Syncing(self._file.fileno(), folder)

    @property
    def is_in_place(self) -> bool:
        """Whether its name still leads to the file: it was not removed, moved or replaced."""
        return is_in_place(self._file.fileno(), self.path)

    @property
    def failed(self) -> bool:
        """A sync failed."""
        return self._syncing.failed

    def append(self, payload: bytes) -> int:
        """Add a record; return the offset after it, which a ``wait`` for it needs."""
        framed = frame(payload)
        self._file.write(framed)
        self.offset += len(framed)
        return self.offset

    def flush(self) -> None:
        """Let readers see what was written."""
        self._file.flush()
        self.flushed = self.offset

    def sync(self) -> None:
        """Return once everything written is on disk, and the file's name.

        Raises:
            OSError: what lies behind ``synced`` may never be.
        """
        self.flush()
        self.sync_flushed()

    def sync_flushed(self) -> None:
        """Return once everything that readers see is on disk, and the file's name.

        Raises:
            OSError: what lies behind ``synced`` may never be.
        """
        self._syncing.sync()
        self.synced = self.flushed

    def close(self) -> None:
        """Sync and close."""
        if not self._file.closed:
            self.sync()
            self._file.close()

    def give_up(self, offset: int) -> bool:
        """Close, and cut off what was appended behind ``offset``, of which some may not have been written; whether
        nothing of it is left.

        What cannot be cut off now stays, and a file that has taken the place of this one is left alone.
        """
        is_ours: bool | None = None
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):
                # Until it is as it stays nobody else may have the lock: what another writer appends would go, too.
                held.callback(os.close, os.dup(self._file.fileno()))
                is_ours = self.is_in_place
            with contextlib.suppress(OSError):  # what cannot be written is not wanted any more
                self._file.close()
            if not is_ours:
                return is_ours is not None
            try:
                if offset:
                    os.truncate(self.path, min(offset, self.path.stat().st_size))
                else:
                    self.path.unlink()
            except OSError:
                return False
        return True

    def __enter__(self) -> SpoolWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_frames(path: Path, offset: int = 0) -> Iterator[Frame]:
    """Every whole frame of a file from a frame's offset on; ``start`` and ``stop`` are offsets in the file.

    Raises:
        FramingLost: see ``frames``.
    """
    with open(path, "rb") as file:
        size = 1 << 20
        while True:
            file.seek(offset)
            buffer = file.read(size)
            taken = 0
            try:
                for item in frames(buffer):
                    taken = item.stop
                    yield item._replace(start=offset + item.start, stop=offset + item.stop)
            except FramingLost as error:
                raise FramingLost(offset + error.position, error.why) from None
            offset += taken
            if taken == 0:
                if len(buffer) < size:
                    return
                size = max(size, frame_bytes(buffer)) + 1
            else:
                size = 1 << 20


def whole_bytes(path: Path) -> int:
    end = 0
    for item in read_frames(path):
        end = item.stop
    return end
