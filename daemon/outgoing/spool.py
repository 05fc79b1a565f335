"""Results in files: frames of the spool's format, one for each record, in files that are cut by size.

A frame's payload is a MessagePack array of the record's key and its value (nil: a tombstone). The frames of a
transaction follow each other in one file, the last one being its end; then the file is synced. What stands behind
the last end of the newest file is no transaction yet: readers leave it alone, and a restart cuts it off.

Where that sync fails, readers may have seen the end already. It is cut off, and all goes on in another file, so
that whoever had read it finds a file that is shorter. A process that dies before it could do so leaves a whole
transaction of which nobody knows whether it is on disk: the next one counts it, and writes it again in its place
first.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgpack

from ...gpma.index.ids import IdColumn
from ..durable import write_again
from ..errors import NotWritten
from ..failpoints import point
from ..folder_lock import IN_USE, locked
from ..records.spool_format import FramingLost, SpoolWriter, make_folder, read_frames
from .records import Chunk, End, OutgoingEncoding, end_key, ids_by_program, read_key
from .sink import Accepts, Fenced, Place, PlaceLost, Whole

log = logging.getLogger(__name__)

PREFIX = "results-"
_DIGITS = 12
_LOCK = ".lock"

Record = tuple[bytes, bytes | None]


def files(folder: Path) -> list[Path]:
    """The files of results in a folder, the oldest first."""
    return sorted(folder.glob(f"{PREFIX}{_DIGITS * '[0-9]'}.msgpack"))


def transactions(file: Path, offset: int = 0) -> Iterator[tuple[int, list[Record], End]]:
    """Every whole transaction of a file from one's offset on: the offset behind it, its records, and its end.

    Raises:
        FramingLost: the file is damaged there.
        ValueError: it holds something else.
    """
    records: list[Record] = []
    for item in read_frames(file, offset):
        if not item.good:
            raise FramingLost(item.start, "a record's checksum does not hold")
        try:
            key, value = msgpack.unpackb(item.payload)
            end = End.unpack(value) if read_key(key) is None else None
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ValueError(f"the record at byte {item.start} is none of results: {error}") from error
        if end is None:
            records.append((key, value))
        else:
            yield item.stop, records, end
            records = []


class SpoolSink:
    """Writes to files of a folder, which it keeps for itself by a lock."""

    def __init__(self, folder: Path, encoding: OutgoingEncoding, *, file_bytes: int) -> None:
        """``file_bytes``: from so many bytes on a file is full, and the next transaction begins another."""
        self._folder = folder
        self._encoding: OutgoingEncoding = encoding
        self._file_bytes = file_bytes
        self._lock: int | None = None
        self._writer: SpoolWriter | None = None
        self._number = 0
        self._place: tuple[str, int] = ("", 0)
        self._uncut: tuple[Path, int] | None = None  # what lies behind there may never be on disk
        self._failed = -1  # the number of a file of which a sync failed
        self._is_sure = False  # what was found is on disk

    @property
    def place(self) -> Place:
        return {"file": self._place[0], "offset": self._place[1]}

    def open(self, accepts: Accepts) -> End | None:
        """See ``Sink``.

        Raises:
            NotWritten: another process has the folder.
            OSError: the folder cannot be read, or what was written last and could not be synced not be cut off.
        """
        if self._lock is None:
            try:
                self._lock = locked(self._folder / _LOCK, make_folder)
            except BlockingIOError:
                raise NotWritten(f"results.path = {str(self._folder)!r} {IN_USE}") from None
        if self._uncut is not None:
            file, behind = self._uncut
            if file.exists() and file.stat().st_size > behind:
                os.truncate(file, behind)
            self._uncut = None
        found = files(self._folder)
        last, self._place = None, ("", 0)
        for file in reversed(found):
            begin, behind, last = _last_end(file)
            if file == found[-1]:
                self._number = _number(file)
                if behind < file.stat().st_size:
                    os.truncate(file, behind)  # a transaction that was never whole
            if last is not None:
                if not self._is_sure:
                    write_again(file, begin, behind)
                self._place = (file.name, behind)
                break
        self._number = max(self._number, self._failed + 1)
        self._is_sure = True
        if not accepts(last):
            raise Fenced(
                f"{str(self._folder)!r} does not end with results of this daemon: somebody else has written"
            )
        return last

    def ids_since(self, place: Place | None, transactions: int = 0) -> dict[str, IdColumn]:
        """See ``Sink``.

        Raises:
            FramingLost: a file is damaged.
        """
        return ids_by_program(self._keys_since(place, transactions))

    def _keys_since(self, place: Place | None, n_transactions: int) -> Iterator[bytes]:
        found = files(self._folder)
        first, offset = found[0].name if found else "", 0
        whole = None if place is None else Whole(1, n_transactions)
        if place is not None:
            first, offset = str(place["file"]), int(place["offset"])
            start = self._folder / first
            if not start.exists() or start.stat().st_size < offset:
                raise PlaceLost(f"{first} is not there any more, or not as long as it was")
            numbers = [_number(file) for file in found if file.name >= first]
            if len(numbers) <= numbers[-1] - numbers[0]:
                raise PlaceLost(f"some file between {first} and {found[-1].name} is not there any more")
        for file in found:
            if file.name >= first:
                for _, records, end in transactions(file, offset if file.name == first else 0):
                    for key, _ in records:
                        yield key
                        if whole is not None:
                            whole.record(0)
                    if whole is not None:
                        whole.end(0, end.records)
        if whole is not None:
            whole.require()

    def write(self, chunks: Iterable[Chunk], end: End) -> None:
        """See ``Sink``.

        Raises:
            OSError: there is no room, say, or the newest file was taken away. Nothing of it is left once ``open``
                was called.
        """
        self._require(self._is_in_place())
        writer = self._next_writer()
        # Where it was taken away meanwhile it is another one now, or there is a newer one that does not follow it.
        self._require(self._is_in_place())
        self._require(writer.name != self._place[0] or writer.offset == self._place[1])
        number = 0
        for chunk in chunks:
            for record in chunk.records():
                writer.append(msgpack.packb(record))
            number += len(chunk)
        point("results.sent")
        last = replace(end, records=number)
        writer.append(msgpack.packb((end_key(self._encoding), last.pack(self._encoding))))
        writer.sync()
        point("results.committed")
        self._place = (writer.name, writer.offset)

    def _is_in_place(self) -> bool:
        """Whether the newest file is still there, and as long as it was left."""
        if self._writer is not None and not self._writer.is_in_place:
            return False
        name, offset = self._place
        newest = self._folder / name
        return not name or (newest.exists() and newest.stat().st_size >= offset)

    def _require(self, is_in_place: bool) -> None:
        if not is_in_place:
            newest = str(self._folder / self._place[0])
            raise FileNotFoundError(errno.ENOENT, "the newest file of results was taken away or cut", newest)

    def _next_writer(self) -> SpoolWriter:
        if self._writer is not None and self._writer.offset >= self._file_bytes:
            self._writer.close()
            self._writer = None
            self._number += 1
        if self._writer is None:
            self._writer = SpoolWriter(self._folder, name=f"{PREFIX}{self._number:0{_DIGITS}}")
            if self._writer.offset >= self._file_bytes:
                return self._next_writer()
        return self._writer

    def close(self) -> None:
        """See ``Sink``. What belongs to no whole transaction is cut off."""
        writer, self._writer = self._writer, None
        if writer is not None:
            if writer.failed:
                self._failed = _number(writer.path)
            behind = self._place[1] if writer.name == self._place[0] else 0
            if not writer.give_up(behind):
                self._uncut = writer.path, behind
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def break_off(self) -> None:
        """A file is never waited for."""


def _number(file: Path) -> int:
    return int(file.stem.removeprefix(PREFIX))


def _last_end(file: Path) -> tuple[int, int, End | None]:
    """Where the last transaction begins and ends, and its end. Of what a power cut tore nothing was ever synced:
    what comes before it counts.
    """
    begin, behind, last = 0, 0, None
    try:
        for stop, _, end in transactions(file):
            begin, behind, last = behind, stop, end
    except FramingLost as error:
        log.warning("%s: what stands behind byte %d is no transaction and is cut off: %s", file, behind, error.why)
    return begin, behind, last
