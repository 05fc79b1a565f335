"""The source that needs no broker: a directory of append-only record files, followed while they grow.

Each file is a partition. Offsets are bytes of its (decompressed) content.

**Order.** Files are begun in the order of their names. What earlier names hold when a file comes is read before
it, so that a writer may go on in another file. Files that grow side by side are read in turns: where they grow
faster than they are read, all are behind alike. A last record or line that is not complete waits. Only a complete
compressed file may end without a line end.

**Append-only** is checked. It is a ``SourceError``, never silence, if a file shrinks below what was read, is
replaced by another file, or has other bytes at its beginning. For the last, fingerprints are compared at every
read (``spool_file.py``), and across restarts (``spool_fingerprints.py``).

**Retired files** (``retired.py``) were read whole, as the oldest checkpoint that is kept knows. They are no
partitions any more, and may be deleted. One that grows after all is taken up again. The last name never retires,
so that a position always tells how far reading has come. A file that is deleted earlier stays in the position
until a checkpoint covers it: a restart from one before must tell that it lacks what was read (``ordered.py``),
and a restart from this one that it lacks nothing.

**What cannot be read** is set aside by itself, as a record that is refused (``spool_records.py``): a frame whose
checksum fails, a line that is too long, the rest of a file that is damaged, a file whose name is not UTF-8. A
file that cannot be opened is an outage of this file, and the others go on.

**A look** costs the same however many files there are. Those that grew last are looked at each time, the others
in turn. The directory is listed when it changed. Where files came, all that are not retired are looked at, and
some that retired last: whoever wrote them may have gone on there before.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError, SourceError
from ..os_errors import why
from ..records.encodings import ENCODINGS
from ..records.spool_format import (
    RECORD_BYTES_MAX,
    FileKind,
    file_kind,
)
from ..records.stream import Lag, Offsets, Partition, RawRecord, Standing
from .decode_columns import Reason
from .retired import Past, Retired
from .spool_content import Content, Inflated, Plain
from .spool_file import (
    FINGERPRINT_BYTES,
    SpoolFile,
    check_fingerprint,
    complete,
    replaced,
    shrank,
    skip,
    stop_inflating,
    take_fingerprint,
)
from .spool_fingerprints import Fingerprints
from .spool_folder import Folder
from .spool_incomplete import Incomplete
from .spool_records import READ_BYTES, RecordReader

log = logging.getLogger(__name__)

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, PAUSE_SHARE = 0.001, 0.01, 1 / 8
"""Pauses between two looks at the directory are a share of how long nothing has come: what a look is late by is
then small beside the time between records, and an idle spool is looked at seldom."""

OPEN_SECONDS_MAX = 5.0
"""So long does whoever asks about a file wait for the source to be opened."""

LOOKED_AT = 128
"""So many files that grew last are looked at each time, and so many of all others; and where files came, so many
of those that retired last."""
LOOKED_BACK_AT, LOOK_BACK_SHARE = 10_000, 0.1
"""Or so many of these, as long as that takes no larger share of the time."""

_TURNS = 4  # of files with enough to read, in one poll at least
_RECORD_BYTES = 64  # what a record takes besides its value, about: tiny ones must not make a poll endless

SpoolStart = Literal["earliest", "latest"] | Mapping[str, int]


class SpoolSource:
    """See the module. One thread calls it; ``lag``, ``state`` and ``standing`` may be called from others."""

    unit = "bytes"

    def __init__(
        self,
        path: Path | str,
        *,
        start: SpoolStart = "earliest",
        fingerprints: Path | None = None,
        checkpoints_kept: int = 2,
        block_bytes: int = 1 << 20,
        record_bytes_max: int = RECORD_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        directed: bool = True,
    ) -> None:
        """
        Args:
            path: the directory; ``open`` makes it when missing.
            start: without a checkpoint: ``"earliest"`` (default), ``"latest"`` (what is there already is
                skipped, at the cost of reading it once), or the first byte to read of each file named.
            fingerprints: where fingerprints are kept between restarts (by the daemon: beside its
                checkpoints); None (default): files are compared only while this process runs.
            checkpoints_kept: how many checkpoints there are to go back to (default 2).
            block_bytes: lines are delivered in blocks of at most so many bytes (default 1 MiB), unless one
                line is longer.
            record_bytes_max: a longer record or line is set aside (default 64 MiB).
            clock: monotonic seconds.
            wall_clock: seconds since 1970; a record's time is when it was read.
            directed: the graph is (default), of which a symmetric matrix would hold one half.

        Raises:
            ConfigError: ``start`` is something else.
        """
        if not isinstance(start, Mapping) and start not in ("earliest", "latest"):
            raise ConfigError(f"source.start = {start!r}: a spool starts at earliest, latest or given bytes")
        self.path = Path(path)
        self.start = start
        self._clock = clock
        self._records = RecordReader(block_bytes, record_bytes_max, wall_clock, directed=directed)
        self.outages = 0
        self._folder = Folder(self.path)
        self._files: dict[str, SpoolFile] = {}
        self._past = Past(checkpoints_kept + 1)
        self._fingerprints = Fingerprints(fingerprints)
        self._checkpoints: deque[Offsets] = deque(maxlen=checkpoints_kept)
        self._first_offsets: dict[str, int] = {}
        self._ignored: set[str] = set()
        self._held: frozenset[str] = frozenset()
        self._grew_last: dict[str, None] = {}  # in the order in which they did
        self._others: Iterator[str] = iter(())
        self._to_read: set[str] = set()
        self._came: set[str] = set()  # files that came since what is owed was noted; they are not begun
        self._unseen = False  # since files came not all others were looked at
        self._far_back_at = 0.0
        self._turn = ""  # whose turn it was
        self._failed: SourceError | None = None  # for the next poll
        self.away: str | None = None
        self._came_at = time.monotonic()
        self._opened = threading.Event()
        self._open_by = 0.0
        self._position: dict[Partition, int] = {}
        self._amount: dict[Partition, int] = {}
        self._backlog: dict[str, int] | None = None
        self._behind_since: float | None = None
        self._at_end = clock()
        self._incomplete = Incomplete(clock)

    # -- life -------------------------------------------------------------------------------------------

    def open(self, offsets: Offsets | None, state: bytes = b"") -> None:
        """Begin at these offsets, with what was kept beside them, or by ``start`` when there are none.

        Raises:
            SourceError: a file that the offsets name is gone, shorter, or another one.
        """
        self._folder.open()
        if isinstance(self.start, Mapping):  # with offsets, too: a file that it names may be yet to come
            self._first_offsets = dict(self.start)
        if offsets is not None:
            self._checkpoints.append(dict(offsets))
            self._restore(offsets, state)
        self._compare_names()
        for file in list(self._files.values()):
            self._look(file.name)
            self._check_beginning(file.name, file.fingerprint)
        self._note_owed()
        self._opened.set()
        if offsets is None and self.start == "latest":
            while self.poll(READ_BYTES, timeout_s=0) or self._could_read_on():
                pass
        self._backlog = {file.name: file.size for file in self._files.values()}

    def _could_read_on(self) -> bool:
        """Whether a poll that found nothing ended within a line that is too long."""
        return self.away is None and any(not self._files[name].away for name in self._to_read - self._held)

    def _restore(self, offsets: Offsets, state: bytes) -> None:
        past, there = self._past, self._folder.names.keys()
        try:
            early = past.restore(state, there)
        except ValueError as error:
            raise SourceError(f"the checkpoint cannot be used for a spool: {error}") from error
        self._fingerprints.load()
        for (name, number), offset in offsets.items():
            kind = file_kind(name)
            if kind is None or number is not None:
                raise SourceError(f"{name!r} is not the name of a spool file", {"file": name})
            entry = past.retired.get(name)
            if name not in there and (early.get(name) == offset or past.covers(name, offset)):
                past.note_gone(name, offset)
            elif entry is None or entry.offset != offset:
                self._restore_file(name, kind, offset)
        past.keep()

    def _restore_file(self, name: str, kind: FileKind, offset: int) -> None:
        known = self._fingerprints.known.get(name)
        if name not in self._folder.names:
            if known is not None and known["whole"] and known["offset"] == offset:
                log.warning("spool file %s, read whole before, is gone; it is forgotten", name)
                self._past.note_gone(name, offset)
                return
            raise SourceError(
                f"spool file {str(self.path / name)!r} is gone, and the offsets end at byte {offset} of it: what "
                f"followed is missing. Put it back",
                {"file": name, "offset": offset},
            )
        file = self._add(name, kind, offset)
        file.aside = self._has_bad_name(name) and offset > 0
        if known is not None:
            file.fingerprint = (known["bytes"], known["crc32c"])

    def identity(self) -> dict[str, Any]:
        """The directory."""
        return {"kind": "spool", "path": str(self.path.resolve())}

    def close(self) -> None:
        for file in self._files.values():
            stop_inflating(file)

    # -- reading ----------------------------------------------------------------------------------------

    def poll(self, bytes_max: int, timeout_s: float) -> list[RawRecord]:
        """The next records: about ``bytes_max`` bytes of them (one record may exceed it).

        Raises:
            SourceError: a file shrank, or was replaced.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            records = self._read_available(bytes_max) if self._scan() else []
            now = time.monotonic()
            if records:
                self._came_at = now
                return records
            if now >= deadline:
                return []
            time.sleep(min(pause_seconds(now - self._came_at), deadline - now))

    def position(self) -> dict[Partition, int]:
        """The next byte of every file that is not retired."""
        return dict(self._position)

    def hold(self, partitions: Collection[Partition]) -> None:
        """Read nothing of these files until the next call, and if they are any, of none that is met meanwhile: an
        earlier name comes first.
        """
        self._held = frozenset(partition.name for partition in partitions)

    def partition_count(self, name: str) -> int:
        """1: whoever writes a file may put any edge into it."""
        return 1

    def _wait_until_open(self) -> None:
        """For so long in all, whoever asks how often."""
        if not self._opened.is_set():
            now = time.monotonic()
            self._open_by = self._open_by or now + OPEN_SECONDS_MAX
            self._opened.wait(max(self._open_by - now, 0.0))

    def standing(self, partition: Partition, offset: int) -> Standing:
        """What is to be expected of a partition that is not in ``position``, up to this offset."""
        self._wait_until_open()
        name, number = partition
        if number is not None or file_kind(name) is None or "/" in name or "\0" in name:
            return "unknown"
        if name in self._files:
            return "expected"
        entry = self._past.retired.get(name)
        if entry is not None:
            return "covered" if offset <= entry.offset else "expected"
        if os.path.exists(self.path / name):  # its writer may have made it just now
            return "expected"
        if offset <= self._past.early.get(name, -1):
            return "expected"
        return "covered" if self._past.covers(name, offset) else "unknown"

    def lag(self) -> Lag:
        """Bytes unread (of a compressed file: compressed bytes), and seconds since the end was last reached."""
        behind = self._behind_since
        return Lag(dict(self._amount), 0.0 if behind is None else self._clock() - behind)

    def refresh_lag(self) -> None:
        """Look how large the files are now."""
        self._scan()

    def state(self) -> bytes:
        """The retired files, for a checkpoint."""
        return self._past.state

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
        """Keep the fingerprints of the files that checkpoints name; retire what all of them cover."""
        self._checkpoints.append(dict(offsets))
        self._fingerprints.keep(self._files, self._checkpoints, newest=offsets)
        early = self._past.early
        for name in [name for name, offset in early.items() if offsets.get(Partition(name)) == offset]:
            self._past.note_gone(name, early[name])
            self._forget_early(name)
        self._past.turn()
        if len(self._checkpoints) == self._checkpoints.maxlen:
            self._retire(self._checkpoints[0])
        self._past.keep()

    def _retire(self, covered: Offsets) -> None:
        last = max(self._files, default="")
        done = [
            file
            for file in self._files.values()
            if file.whole and covered.get(file.partition) == file.offset and (file.name != last or file.aside)
        ]
        for file in done:
            self._past.retire(file.name, file.entry)
            self._drop(file)

    def _read_available(self, bytes_max: int) -> list[RawRecord]:
        if self._failed is not None:
            raise self._failed
        records: list[RawRecord] = []
        room = bytes_max
        away = set[str]()
        try:
            room = self._read_owed(names := self._readable(), room, records, away)
            if room > 0 and self._came:
                self._note_owed()
                room = self._read_owed(names := self._readable(), room, records, away)
            begin = bisect_right(names, self._turn)
            turns = deque(names[begin:] + names[:begin])
            # Whole turns only: else the same files could be cut short by each poll, and fall behind all others.
            turn = min(READ_BYTES, max(bytes_max // _TURNS, 1))
            while room >= turn and turns:
                name = turns.popleft()
                if name in self._to_read and name not in away:
                    self._turn = name
                    room -= self._read_some(self._files[name], turn, records, away)
                    turns.append(name)
        except SourceError as error:
            if not records:  # else what was read already is delivered first
                raise
            self._failed = error  # whatever others offer by then
            return records
        if not self._to_read - self._held:
            self._at_end = self._clock()
            self._behind_since = None
        else:
            self._behind_since = self._at_end
        return records

    def _readable(self) -> list[str]:
        """The files that have something to be read now, in order."""
        return sorted(self._to_read - self._held - self._came)

    def _read_owed(self, names: list[str], room: int, records: list[RawRecord], away: set[str]) -> int:
        """Add what these files owe, one after the other. The room left."""
        for file in [self._files[name] for name in names]:
            while room > 0 and file.is_owed and file.name in self._to_read and file.name not in away:
                room -= self._read_some(file, room, records, away)
        return room

    def _read_some(self, file: SpoolFile, room: int, records: list[RawRecord], away: set[str]) -> int:
        """Add some of a file's records; its name to ``away`` where it cannot be read now. The room it took."""
        read = file.read
        fresh = self._read(file, room)
        if fresh is None:
            away.add(file.name)
            return 0
        file.note_owed()
        records += fresh
        took = 0
        if fresh:
            took = fresh[-1].next_offset - fresh[0].offset + _RECORD_BYTES * len(fresh)
        elif file.long_line is not None and file.read > read:
            took = room  # a long line takes a turn
        else:
            file.idle_size = file.size
        self._note(file)
        return took

    def _read(self, file: SpoolFile, room: int) -> list[RawRecord] | None:
        """The next records of this file, not all of them perhaps; None: it cannot be read now."""
        if self._has_bad_name(file.name):
            refused = self._records.set_aside(file, b"", Reason.BAD_NAME, "a file's name must be UTF-8")
            file.offset = file.size
            return [replace(refused, next_offset=file.size)]
        try:
            content = self._content(file)
        except FileNotFoundError:  # deleted just now; the next look at the directory deals with it
            return []
        except OSError as error:
            self._is_away(file, error)
            return None
        try:
            records = self._records.read(file, content, room, lambda: self._again(file))
            if records:
                if records[-1].refused is None:  # else it is behind that already, or will never be
                    content.advance(records[-1].next_offset - file.offset)
                file.offset = records[-1].next_offset
            if file.fingerprint[0] < FINGERPRINT_BYTES:
                with contextlib.suppress(OSError):  # the next read takes it; what was read now is passed on
                    take_fingerprint(file, content)
        except OSError as error:
            self._is_away(file, error)
            return None
        finally:
            self._let_go(file, content)
        if file.away:
            file.away = False
            log.info("spool file %s can be read again", file.name)
        return records

    def _again(self, file: SpoolFile) -> Content:
        """The file once more, from its beginning on."""
        handle = os.open(self._folder.file(file.name), os.O_RDONLY | os.O_CLOEXEC)
        compression = file.kind.compression
        return Plain(handle, 0) if compression is None else Inflated(handle, compression)

    # -- files ------------------------------------------------------------------------------------------

    def _content(self, file: SpoolFile) -> Content:
        """The file from where reading stopped, checked to be the one that was read before."""
        if file.inflating is not None:
            check_fingerprint(file.name, file.fingerprint, file.inflating.handle)
            return file.inflating
        handle = os.open(self._folder.file(file.name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if (status.st_dev, status.st_ino) != file.inode and file.begun:
                raise replaced(file.name)
            check_fingerprint(file.name, file.fingerprint, handle)
            if file.kind.compression is None:
                return Plain(handle, file.read)
            inflated = Inflated(handle, file.kind.compression)
            skip(file, inflated)
        except BaseException:
            os.close(handle)
            raise
        file.inflating = inflated
        return inflated

    def _let_go(self, file: SpoolFile, content: Content) -> None:
        if isinstance(content, Plain):
            content.close()
            return
        file.raw_read = content.raw_read
        if file.aside or (complete(file) and content.drained):
            stop_inflating(file)

    def _is_away(self, file: SpoolFile, error: OSError) -> None:
        if not file.away:
            file.away = True
            self.outages += 1
            log.error("spool file %s cannot be read: %s; the others go on meanwhile", file.name, why(error))

    def _has_bad_name(self, name: str) -> bool:
        return self._folder.names.get(name, name) != name

    def _scan(self) -> bool:
        """Look at the directory and at some of its files; False while it is away (counted once as an outage).

        Raises:
            SourceError: a file shrank, was replaced, or went before it was read.
        """
        try:
            before = self._came.copy()
            if self._folder.look():
                self._compare_names()
            # The last that a writer wrote before it went on in another file must be known when that is begun.
            self._unseen |= bool(self._came - before)
            if self._unseen:
                self._look_back()
            for name in self._next_to_look_at():
                self._look(name)
            self._unseen = False
        except OSError as error:
            if self.away is None:
                self.outages += 1
                log.error("the spool %s cannot be read: %s; trying again", self.path, why(error))
            self.away = f"the spool {self.path} cannot be read: {why(error)}"
            return False
        if self.away is not None:
            self.away = None
            log.info("the spool %s can be read again", self.path)
        self._past.keep()
        self._incomplete.tell(lambda name: self._files[name].unread)
        return True

    def _look_back(self) -> None:
        """Look at all that are not retired, and at those that retired last."""
        began, is_far = time.thread_time(), time.monotonic() >= self._far_back_at
        last_retired = islice(reversed(self._past.retired), LOOKED_BACK_AT if is_far else LOOKED_AT)
        for name in [*self._files, *last_retired]:
            self._look(name)
        if is_far:
            self._far_back_at = time.monotonic() + (time.thread_time() - began) / LOOK_BACK_SHARE

    def _compare_names(self) -> None:
        names = self._folder.names.keys()
        known = self._files.keys() | self._past.retired.keys()
        for name in known - names:
            self._forget(name)
        for name in sorted(names - known):
            self._meet(name)

    def _next_to_look_at(self) -> Iterator[str]:
        yield from list(self._grew_last)
        turn = list(islice(self._others, LOOKED_AT))
        if not turn:
            self._others = iter([*self._files, *(self._past.retired.keys() - self._files.keys())])
            turn = list(islice(self._others, LOOKED_AT))
        for name in turn:
            if name not in self._grew_last and (name in self._files or name in self._past.retired):
                yield name

    def _meet(self, name: str) -> None:
        kind = file_kind(name)
        if kind is not None:
            first = self._first_offsets.pop(name, 0)
            self._add(name, kind, 0 if self._past.covers(name, 0) else first)
            self._look(name)
        elif name not in self._ignored and not name.startswith(".") and not name.endswith((".tmp", ".part")):
            self._ignored.add(name)
            log.warning(
                "%s in the spool is ignored: its name does not end in an encoding (%s); `graphtide produce` sends "
                "files of more forms",
                name,
                ", ".join(f".{encoding}" for encoding in ENCODINGS),
            )

    def _add(self, name: str, kind: FileKind, offset: int) -> SpoolFile:
        self._forget_early(name)
        file = self._files[name] = SpoolFile(name, kind, Partition(name), offset)
        if self._held:
            self._held |= {name}
        self._came.add(name)
        self._grew(file)
        self._note(file)
        return file

    def _note_owed(self) -> None:
        """What there is of earlier names than those that came is read before them, and before all later ones.

        Where some is still owed to files that came before, these wait: a file that grows faster than it is read
        would else keep them from being begun for ever.
        """
        last = max(self._came, default="")
        for file in self._files.values():
            if file.name < last:
                file.owe()
        self._came.clear()

    def _grew(self, file: SpoolFile) -> None:
        self._grew_last.pop(file.name, None)
        self._grew_last[file.name] = None
        if len(self._grew_last) > LOOKED_AT:
            del self._grew_last[next(iter(self._grew_last))]

    def _note(self, file: SpoolFile) -> None:
        """Keep what is known of all files in step with this one."""
        unread = file.unread
        self._position[file.partition] = file.offset
        self._amount[file.partition] = unread
        if unread and file.size != file.idle_size:
            self._to_read.add(file.name)
        else:
            self._to_read.discard(file.name)
        if unread and file.name not in self._to_read:
            self._incomplete.note(file.name)
        else:
            self._incomplete.forget(file.name)

    def _look(self, name: str) -> None:
        """See how large a file is now.

        Raises:
            OSError: the directory is away.
            SourceError: the file shrank, was replaced, or went before it was read.
        """
        file = self._files.get(name)
        try:
            status = os.stat(self._folder.file(name))
        except FileNotFoundError:
            self._folder.check()
            self._forget(name)
        except OSError as error:
            if file is not None:
                self._is_away(file, error)
        else:
            if file is not None:
                self._changed(file, status)
            elif (status.st_size, status.st_mtime_ns) != (entry := self._past.retired[name])[1:3]:
                self._retired_changed(name, entry, status)

    def _changed(self, file: SpoolFile, status: os.stat_result) -> None:
        inode = (status.st_dev, status.st_ino)
        if file.inode == inode and file.size == status.st_size:
            if file.changed_ns != status.st_mtime_ns:
                # A half record that was cut off, and another one of its length in its place, say.
                file.changed_ns, file.idle_size = status.st_mtime_ns, -1
                self._note(file)
            return
        if file.aside:
            if file.inode is not None:
                _changed_aside(file.name)
        elif file.inode not in (None, inode) and file.begun:
            raise replaced(file.name)
        elif status.st_size < file.read:
            raise shrank(file.name, status.st_size, file.read)
        if file.inode is not None and status.st_size > file.size:
            self._grew(file)
        file.inode, file.size, file.changed_ns = inode, status.st_size, status.st_mtime_ns
        self._note(file)

    def _retired_changed(self, name: str, entry: Retired, status: os.stat_result) -> None:
        """A retired file that grew is taken up again; any other change must have left what was read as it was."""
        grew = status.st_size > entry.size
        if entry.aside:
            _changed_aside(name)
        elif status.st_size < entry.size:
            raise shrank(name, status.st_size, entry.size)
        elif not grew and not self._check_beginning(name, entry.fingerprint):
            return
        if entry.aside or not grew:
            self._past.change(name, entry._replace(size=status.st_size, changed_ns=status.st_mtime_ns))
            return
        log.info("spool file %s grew after it was retired; it is read on from byte %d", name, entry.offset)
        # What is kept of it stays: a checkpoint may be made of a position from before it was taken up again.
        kind = file_kind(name)
        assert kind is not None
        file = self._add(name, kind, entry.offset)
        file.fingerprint = entry.fingerprint
        if kind.compression is not None:
            file.raw_read = entry.size
        self._changed(file, status)

    def _check_beginning(self, name: str, fingerprint: tuple[int, int]) -> bool:
        """``check_fingerprint``; False when the file cannot be opened now."""
        if fingerprint[0]:
            try:
                with open(self._folder.file(name), "rb") as content:
                    check_fingerprint(name, fingerprint, content.fileno())
            except OSError:
                return False
        return True

    def _forget(self, name: str) -> None:
        """A file that is there no more."""
        file = self._files.get(name)
        if file is not None:
            if file.unread:
                raise SourceError(f"spool file {name} was deleted with {file.unread} bytes unread", {"file": name})
            self._drop(file)
        self._past.delete(name)
        if file is None:
            return
        if self._checkpoints and self._checkpoints[-1].get(file.partition) == file.offset:
            log.info("spool file %s was deleted after it was read whole; it is forgotten", name)
            self._past.note_gone(name, file.offset)
        elif file.offset > 0:
            log.warning(
                "spool file %s was deleted after it was read whole, and before a checkpoint covers it: a restart "
                "until then will wait for it",
                name,
            )
            self._past.note_early(name, file.offset)
            self._position[file.partition] = file.offset

    def _forget_early(self, name: str) -> None:
        if self._past.forget_early(name):
            self._position.pop(Partition(name), None)

    def _drop(self, file: SpoolFile) -> None:
        stop_inflating(file)
        del self._files[file.name], self._position[file.partition], self._amount[file.partition]
        self._to_read.discard(file.name)
        self._incomplete.forget(file.name)
        self._came.discard(file.name)
        self._grew_last.pop(file.name, None)


def pause_seconds(silence_s: float) -> float:
    """How long to wait for the next look, when nothing has come for so long."""
    return min(max(PAUSE_SHARE * silence_s, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX)


def _changed_aside(name: str) -> None:
    log.warning("spool file %s changed after it was set aside; to have it read, give it another name", name)
