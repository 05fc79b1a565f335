"""The order log: where the stream stood after each epoch, for a restart to go the same way through its partitions.

What was applied in one step (deletions of vertices, above all, which meet edges of other partitions) must come
in one step again, after all that came before. Such an epoch is durable here before anybody sees it. Of the others
only the newest counts: it is written over the one before it, and synced now and then.

The log is a folder of segments, ``<number>.log``, of frames (``records.spool_format``) of MessagePack: first ``{v,
identity, offsets, late}``, where the segment begins; then ``[together, offsets]``, the partitions that moved, or
``[together, offsets, late]``, where other barriers than before are late, or ``[together, offsets, late, [joined,
idle, latest_ms]]``, where the clock decided something about event time (``records.stream.Passed``). A segment ends
with each checkpoint, and goes when the oldest kept checkpoint covers it. What a crash left incomplete at the end
of the newest was shown to nobody.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crc32c
import msgpack

from ...gpma.threads import Workers
from ..durable import Syncing
from ..errors import CheckpointError
from ..failpoints import point
from ..folder_lock import is_in_place
from ..os_errors import why
from ..records.spool_format import FRAME_HEADER, FramingLost, frame, read_frames
from ..records.stream import Decided, LateBarrier, Offsets, Partition, Passed, offsets_from_wire, offsets_to_wire

log = logging.getLogger(__name__)

VERSION = 1
"""Of what is written, and all that is read."""
SYNC_INTERVAL_S = 1.0
"""What need not be durable at once is synced so often, while epochs go on."""
_SUFFIX = ".log"
_ENTRY = re.compile(rb"(?s)(?=(.{%d})([\x92-\x94][\xc2\xc3]))" % FRAME_HEADER.size)
"""Where an entry may begin: MessagePack's array of two to four, of which the first tells whether it is a step."""


@dataclass(slots=True)
class _Segment:
    """The segment that is written: ``end`` of what stays, behind which the newest vector is written anew."""

    path: Path
    handle: int
    syncing: Syncing
    end: int
    size: int


class OrderLog:
    """``open`` first; then ``record`` and ``close`` are for the engine's thread, ``cut`` for any."""

    def __init__(self, folder: Path, require: Callable[[], None] = lambda: None) -> None:
        """
        Args:
            folder: made when something is written.
            require: raises an OSError where it may be another process's by now (``CheckpointStore``).
        """
        self.folder = folder
        self._require = require
        self._identity = ""
        self._fixed = Passed({}, together=False)  # at the end of what stays
        self._newest = self._fixed
        self._before = self._fixed  # before the last record
        self._number = 0
        self._segment: _Segment | None = None
        self._closed: list[tuple[Path, Offsets]] = []  # with where each ends
        self._unneeded: list[Path] = []
        self._covered: Offsets | None = None
        self._sync_at = 0.0
        self._failing = False
        self._syncing = Workers(1, "order-log")

    def open(self, identity: Mapping[str, Any]) -> Iterator[Passed]:
        """What the log holds, from its beginning on; a log of another source or graph is discarded.

        Raises:
            CheckpointError: the folder cannot be used, or a newer version has written there.
        """
        self._identity = json.dumps(identity, sort_keys=True)
        paths = sorted(self.folder.glob(f"*{_SUFFIX}"))
        try:
            begins = [_begin_of(path) for path in paths]
            while paths and begins[-1] is None:  # a crash before its first frame was whole
                _take_away(paths.pop())
                begins.pop()
            if any(begin is not None and begin["identity"] != self._identity for begin in begins):
                log.warning("the order log %s is of another source or graph, and is not used", self.folder)
                while paths:
                    paths.pop().unlink()
            if paths:
                self._number = int(paths[-1].stem)
                self._fixed = self._newest = self._before = _end_of(paths[-1])
        except OSError as error:
            raise CheckpointError(f"the order log {str(self.folder)!r} cannot be used: {why(error)}") from error
        end = self._fixed.offsets
        for path, begin in zip(reversed(paths), reversed(begins), strict=False):
            self._closed.insert(0, (path, end))
            end = end if begin is None else offsets_from_wire(begin["offsets"])
        return _passed(paths)

    def record(self, before: Offsets, passed: Sequence[Passed]) -> Future[None]:
        """Write where an epoch passed; nobody may see the epoch before the result is there.

        The result comes at once where no order can matter. ``before``: where the epoch began.

        Raises:
            OSError: it cannot be written; nothing of it is kept, and it may be tried again.
        """
        done: Future[None] = Future()
        done.set_result(None)
        if all(_alone(item.offsets) and item.decided is None for item in passed):
            return done
        self._end_segment_if_covered(passed[-1].offsets)
        self._end_segment_if_taken_away()
        if self._segment is not None and self._segment.syncing.failed and time.monotonic() >= self._sync_at:
            self._end_segment()  # while nothing must stay there is another one a second at most
        fixed, must_stay = self._fixed, b""
        newest = Passed(dict(before), together=False, late=self._newest.late)
        for item in passed:
            if item.decided is not None or (item.together and len(item.offsets) > 1):
                must_stay += _entry(fixed, newest, together=False) + _entry(newest, item, together=True)
                fixed = item
            newest = item
        tail = _entry(fixed, newest, together=False)
        try:
            segment = self._segment or self._begin_segment()
            self._write(segment, must_stay + tail)
        except OSError as error:
            if must_stay:
                raise
            if not self._failing:
                self._failing = True
                log.error("the order log %s cannot be written: %s", self.folder, why(error))
            self._newest = newest
            return done
        self._failing = False
        segment.end += len(must_stay)
        self._before, self._fixed, self._newest = self._newest, fixed, newest
        point("order.written")
        if not must_stay and time.monotonic() < self._sync_at:
            return done
        self._sync_at = time.monotonic() + SYNC_INTERVAL_S
        unneeded, self._unneeded = self._unneeded, []
        synced = self._syncing.submit(self._sync, segment, unneeded)
        return synced if must_stay else done

    def undo(self) -> None:
        """The sync of what was recorded last failed: it may be recorded again, in another file."""
        self._end_segment()
        self._fixed = self._newest = self._before

    def cut(self, covered: Offsets) -> None:
        """The oldest checkpoint that is kept has these offsets: what lies before them goes with the next epoch."""
        self._covered = dict(covered)

    def close(self) -> None:
        """Sync and close."""
        self._end_segment()
        self._syncing.shutdown()

    # -- segments ---------------------------------------------------------------------------------------

    def _begin_segment(self) -> _Segment:
        self._require()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / f"{self._number + 1:020}{_SUFFIX}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        segment = _Segment(path, handle, Syncing(handle, self.folder), 0, 0)
        begin = {"v": VERSION, "identity": self._identity}
        begin |= {"offsets": offsets_to_wire(self._fixed.offsets), "late": self._fixed.late}
        try:
            self._write(segment, _framed(begin))
        except OSError:
            os.close(handle)
            raise
        segment.end = segment.size
        self._segment = segment
        self._number += 1
        self._sync_at = 0.0
        return segment

    def _write(self, segment: _Segment, data: bytes) -> None:
        at = segment.end
        while at < segment.end + len(data):
            at += os.pwrite(segment.handle, data[at - segment.end :], at)
            segment.size = max(segment.size, at)
        if at < segment.size:
            os.ftruncate(segment.handle, at)
        segment.size = at

    def _end_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            self._fixed = self._newest
            self._closed.append((segment.path, self._fixed.offsets))
            self._syncing.submit(_close, segment)

    def _end_segment_if_taken_away(self) -> None:
        """What is written where no start finds it is not kept: another one begins where this one ends."""
        segment = self._segment
        if segment is None or is_in_place(segment.handle, segment.path):
            return
        log.error("the order log %s was taken away; it is begun anew", segment.path)
        self._end_segment()

    def _end_segment_if_covered(self, present: Offsets) -> None:
        """A checkpoint was written: begin another segment, and find those that no kept checkpoint needs.

        ``present``: where the stream stands now.
        """
        covered, self._covered = self._covered, None
        if covered is None:
            return
        self._end_segment()
        ends = [place for place, (_, end) in enumerate(self._closed) if _covers(covered, end, present)]
        n_ended = ends[-1] + 1 if ends else 0
        self._unneeded += [path for path, _ in self._closed[:n_ended]]
        del self._closed[:n_ended]

    # -- the thread that syncs --------------------------------------------------------------------------

    def _sync(self, segment: _Segment, unneeded: list[Path]) -> None:
        """``unneeded``: segments that go once this one, which says what was still to be known of them, is on
        disk."""
        try:
            _sync(segment)
        except OSError:
            self._unneeded += unneeded
            raise
        for path in unneeded:
            with contextlib.suppress(OSError):  # the next start finds it again
                path.unlink()


def _begin_of(path: Path) -> dict[str, Any] | None:
    """How a segment begins; None: its beginning is not whole.

    Raises:
        CheckpointError: a newer version wrote it.
    """
    try:
        begin = next(_entries(path), None)
    except FramingLost:
        return None
    version = begin.get("v") if isinstance(begin, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise CheckpointError(
            f"the order log {str(path)!r} was written by a newer version of graphtide, or by one from before "
            f"the first release: format {version}; this version reads {VERSION}. Start that version again; or "
            f"move the folder {path.parent.name!r} away, so that what was answered since the newest checkpoint "
            f"may come again in another order; or give this one another checkpoint.path"
        )
    return begin if version == VERSION else None


def _passed(paths: Sequence[Path]) -> Iterator[Passed]:
    """Everything that these segments hold; where one is damaged, it goes on with the next."""
    for path in paths:
        passed = Passed({}, together=False)
        try:
            for entry in _entries(path):
                passed = _after(passed, entry)
                yield passed
        except FramingLost as error:
            log.error("the order log %s is damaged at byte %d: %s", path, error.position, error.why)


def _entries(path: Path) -> Iterator[Any]:
    for item in read_frames(path):
        if not item.good:
            raise FramingLost(item.start, "a checksum does not hold")
        yield _unpacked(item.payload)


def _after(passed: Passed, entry: Any) -> Passed:
    """Where the stream stands after this entry."""
    if isinstance(entry, dict):
        return Passed(offsets_from_wire(entry["offsets"]), together=False, late=_late(entry["late"]))
    together, moved, *rest = entry
    offsets = {**passed.offsets, **offsets_from_wire(moved)}
    decided = _decided(*rest[1]) if len(rest) > 1 else None
    return Passed(offsets, together, _late(rest[0]) if rest else passed.late, decided)


def _decided(joined: Sequence[Sequence[Any]], idle: Sequence[Sequence[Any]], latest_ms: int | None) -> Decided:
    joining, silent = (tuple(Partition(*place) for place in some) for some in (joined, idle))
    return Decided(joining, silent, latest_ms)


def _late(wire: Sequence[tuple[str, str, Sequence[int]]]) -> tuple[LateBarrier, ...]:
    return tuple(LateBarrier(topic, id, tuple(partitions)) for topic, id, partitions in wire)


def _take_away(path: Path) -> None:
    """A segment of which it is not known where it begins."""
    if not _whole_behind(path, 0):
        path.unlink()
        return
    aside = path.with_suffix(".damaged")
    path.rename(aside)
    log.error(
        "the order log %s is damaged at its beginning and cannot be used; it is now %s. What was answered since "
        "it was begun may come again in another order",
        *(path, aside.name),
    )


def _whole_behind(path: Path, offset: int) -> bool:
    """Whether a whole entry stands behind what is not whole, so that it was no crash that tore it."""
    content = path.read_bytes()
    for found in _ENTRY.finditer(content, offset + 1):
        length, checksum = FRAME_HEADER.unpack(found[1])
        payload = content[found.start(2) : found.start(2) + length]
        if 0 < length == len(payload) and crc32c.crc32c(payload) == checksum:
            return True
    return False


def _end_of(path: Path) -> Passed:
    """Where a segment ends. What is incomplete there, or was torn, is cut off; what is left is on disk then."""
    passed = Passed({}, together=False)
    end = 0
    try:
        for item in read_frames(path):
            if not item.good:
                raise FramingLost(item.start, "a checksum does not hold")
            passed = _after(passed, _unpacked(item.payload))
            end = item.stop
    except FramingLost as error:
        log.warning("the order log %s is cut off at byte %d: %s", path, end, error.why)
    if end < path.stat().st_size and _whole_behind(path, end):
        log.error(
            "the order log %s is damaged at byte %d: what was answered since may come again in another order",
            *(path, end),
        )
    with open(path, "r+b") as file:
        file.truncate(end)
        os.fdatasync(file.fileno())  # whoever wrote it may have died before that
    return passed


def _entry(before: Passed, after: Passed, *, together: bool) -> bytes:
    """What changed; nothing where nothing did, and no step is to be told."""
    moved = {p: offset for p, offset in after.offsets.items() if before.offsets.get(p) != offset}
    rest: list[Any] = [] if after.late == before.late and after.decided is None else [after.late]
    if after.decided is not None:
        rest.append(after.decided)
    return _framed([together, offsets_to_wire(moved), *rest]) if together or moved or rest else b""


def _framed(content: object) -> bytes:
    return frame(msgpack.packb(content, unicode_errors="surrogateescape"))


def _unpacked(payload: bytes) -> Any:
    return msgpack.unpackb(payload, strict_map_key=False, unicode_errors="surrogateescape")


def _alone(offsets: Offsets) -> bool:
    """Within the one partition of a topic, offsets are all the order that there is; files come and go."""
    return len(offsets) < 2 and all(partition.number is not None for partition in offsets)


def _covers(covered: Offsets, end: Offsets, present: Offsets) -> bool:
    """A file that is in no position any more is covered by every checkpoint that is kept, or gone."""
    return all(
        covered.get(partition, -1) >= offset or (partition.number is None and partition not in present)
        for partition, offset in end.items()
    )


def _sync(segment: _Segment) -> None:
    segment.syncing.sync()
    point("order.synced")


def _close(segment: _Segment) -> None:
    try:
        _sync(segment)
    finally:
        os.close(segment.handle)
