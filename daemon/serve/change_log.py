"""What recent epochs changed: a ring in shared memory that the engine writes and the query server reads.

Each publication appends one record: its sequence number and epoch in a header of ``_HEADER`` int64 words, then
MessagePack: which entries of which program's columns changed, which vertices came to exist or ceased to, and the
external ids of the latter, whose dense ids may be others' before anybody reads the record. Values are in none:
those of the present are in the published columns, so that whoever knows the results of some epoch in the log
needs only what changed since.

Positions in the ring are counted in bytes since the beginning. Before the writer overwrites a record it moves
``_TAIL`` behind it; a reader copies first and then looks whether the tail has passed what it copied.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from ...gpma.edges import Vertices, distinct
from ...gpma.index.ids import IdColumn, StringColumn, concatenate_ids
from . import shared_memory
from .publication import ProgramPublication, Publication
from .shared_memory import SharedArray, fence

RECORD_SHARE = 8
"""A record of more than this part of the ring is not kept: who lacks it needs all results anew."""
UNIONS_MAX = 8
"""So many answers to ``between`` are remembered: most who ask lack the same records."""

_TAIL, _HEAD, _WORDS = 0, 1, 8
_HEADER = 5
"""Words of a record's header: its length in bytes, sequence number, incarnation and number of the epoch, and
how many dense ids of before came to belong to a vertex or ceased to."""

_HEADER_WORDS = struct.Struct(f"={_HEADER}q")

_NONE: Vertices = np.empty(0, np.uint32)


# -- writing ------------------------------------------------------------------------------------------------


class ChangeLogWriter:
    """The engine's end; one thread calls it."""

    def __init__(self, ring_bytes: int, external: Callable[[Vertices], IdColumn]) -> None:
        """``external``: the external ids of dense vertices, also of those that the epoch at hand deleted."""
        self._memory = shared_memory.allocate("changes", _WORDS * 8 + ring_bytes, np.uint8)
        self._words, self._ring = _parts(self._memory, ring_bytes)
        self._length_max = ring_bytes // RECORD_SHARE
        self._external = external
        self._lengths: deque[int] = deque()
        self._n_vertices = 0
        self._known: dict[str, tuple[bool, Mapping[str, float]]] = {}
        self.sequence = 0
        """Of the newest record; 0 while there is none."""

    @property
    def place(self) -> SharedArray:
        """Where readers find it."""
        return SharedArray.of(self._memory)

    def record(self, publication: Publication, *, whole: bool) -> None:
        """Append what this publication changed; ``whole``: that is not known, since the one before it failed.

        To be called before readers can see the publication, and when nothing can fail any more.
        """
        lost = whole or (publication.alive is not None and publication.alive_changed is None)
        moved = _NONE if lost else self._moved(publication)
        content = b"" if lost else self._content(publication, moved)
        self._known = {id: (item.is_fresh, self._scalars(id, item)) for id, item in publication.programs.items()}
        self._n_vertices = publication.n_vertices
        self._append(publication.epoch, moved.size, content)

    def _moved(self, publication: Publication) -> Vertices:
        """Dense ids of before that came to belong to a vertex, or ceased to."""
        changed = publication.alive_changed
        return _NONE if publication.alive is None or changed is None else changed[changed < self._n_vertices]

    def _content(self, publication: Publication, moved: Vertices) -> bytes:
        """Of the record; nothing where it would be too long to be kept."""
        alive = publication.alive
        programs = {id: self._entry(id, item) for id, item in publication.programs.items()}
        columns = (column for entry in programs.values() for column in (entry[0] or {}).values())
        if 4 * moved.size + sum(len(column) for column in columns if column is not None) > self._length_max:
            return b""
        gone = self._external(_NONE if alive is None else moved[~alive[moved]])
        content = {
            "n": publication.n_vertices,
            "before": self._n_vertices,
            "alive": _packed(moved),
            "gone": gone.to_list() if isinstance(gone, StringColumn) else gone.tobytes(),
            "programs": programs,
        }
        packed: bytes = msgpack.packb(content)
        return packed if len(packed) <= self._length_max else b""

    def _scalars(self, id: str, program: ProgramPublication) -> Mapping[str, float]:
        """As they are published: of a program that stands still those of before."""
        if program.is_fresh:
            return dict(program.scalars)
        return self._known[id][1] if id in self._known else {}

    def _entry(self, id: str, program: ProgramPublication) -> list[Any]:
        """Per program [columns, names of scalars that changed]; columns is nil where all must be taken anew."""
        before = self._known.get(id)
        if before is None or before[0] != program.is_fresh:
            return [None, []]
        if not program.is_fresh:
            return [{}, []]
        columns = {
            name: None if changed is None else _packed(changed) for name, changed in program.changed.items()
        }
        names = {*program.scalars, *before[1]}
        return [columns, [name for name in names if program.scalars.get(name) != before[1].get(name)]]

    def _append(self, epoch: tuple[int, int], n_moved: int, content: bytes) -> None:
        length = _HEADER * 8 + -(-len(content) // 8) * 8
        header = np.array([length, self.sequence + 1, *epoch, n_moved], np.int64)
        head, tail = int(self._words[_HEAD]), int(self._words[_TAIL])
        while head + length - tail > self._ring.size:
            tail += self._lengths.popleft()
        self._words[_TAIL] = tail
        fence()
        _write(self._ring, head, header.view(np.uint8))
        _write(self._ring, head + _HEADER * 8, np.frombuffer(content, np.uint8))
        fence()
        self._lengths.append(length)
        self._words[_HEAD] = head + length
        self.sequence += 1  # together with the head: a number without a record would be a gap that nobody sees


def _packed(indices: Vertices) -> memoryview:
    return memoryview(np.ascontiguousarray(indices, np.uint32)).cast("B")


def _parts(memory: npt.NDArray[np.uint8], ring_bytes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    start = _WORDS * 8
    return memory[:start].view(np.int64), memory[start : start + ring_bytes]


def _write(ring: npt.NDArray[np.uint8], position: int, data: npt.NDArray[np.uint8]) -> None:
    start = position % ring.size
    first = min(data.size, ring.size - start)
    ring[start : start + first] = data[:first]
    ring[: data.size - first] = data[first:]


def _read(ring: npt.NDArray[np.uint8], position: int, length: int) -> bytes:
    start = position % ring.size
    first = min(length, ring.size - start)
    return ring[start : start + first].tobytes() + ring[: length - first].tobytes()


# -- reading ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgramChanges:
    """``columns``: by name the entries that changed (uint32, ascending, each once), None for all of them.

    ``scalars``: the names of those that changed.
    """

    columns: Mapping[str, Vertices | None]
    scalars: frozenset[str]


@dataclass(frozen=True, slots=True)
class Changes:
    """What several publications, one after the other, changed together.

    ``epochs``: how many epochs they are. ``n_before``: how many dense ids there were before them. ``alive``: those
    of them that came to belong to a vertex or ceased to, or belong to another. ``gone``: external ids of vertices
    that were deleted meanwhile; some may be back. ``programs``: None where everything must be taken anew.
    """

    epochs: int
    n_before: int
    alive: Vertices
    gone: IdColumn
    programs: Mapping[str, ProgramChanges | None]


@dataclass(frozen=True, slots=True)
class Passed:
    """What is known of several publications without a look at what they changed.

    ``epochs``: how many epochs they are. ``has_moved``: a dense id of before came to belong to a vertex meanwhile,
    or ceased to.
    """

    epochs: int
    has_moved: bool


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record; ``epochs``, ``moved`` and ``lost``: how many epochs, dense ids that came or ceased, and records
    without content there were up to it, since some record."""

    sequence: int
    epoch: tuple[int, int]
    start: int
    length: int
    epochs: int
    moved: int
    lost: int
    has_moved: bool

    @property
    def has_content(self) -> bool:
        return self.length > _HEADER * 8


@dataclass(slots=True)
class _Union:
    """Of records as they are added, one after the other."""

    epochs: set[tuple[int, int]] = field(default_factory=set)
    n_before: int | None = None
    alive: list[Vertices] = field(default_factory=list)
    gone: list[IdColumn] = field(default_factory=list)
    columns: dict[str, dict[str, list[Vertices] | None] | None] = field(default_factory=dict)
    scalars: dict[str, set[str]] = field(default_factory=dict)

    def add(self, epoch: tuple[int, int], content: Mapping[str, Any]) -> None:
        self.epochs.add(epoch)
        if self.n_before is None:
            self.n_before = int(content["before"])
        self.alive.append(np.frombuffer(content["alive"], np.uint32))
        gone = content["gone"]
        self.gone.append(StringColumn.of(gone) if isinstance(gone, list) else np.frombuffer(gone, np.int64))
        for id, (columns, scalars) in content["programs"].items():
            self.scalars.setdefault(id, set()).update(scalars)
            known = self.columns.setdefault(id, {})
            if columns is None or known is None:
                self.columns[id] = None
                continue
            for name, packed in columns.items():
                lists = known.setdefault(name, [])
                if packed is None or lists is None:
                    known[name] = None
                else:
                    lists.append(np.frombuffer(packed, np.uint32))

    def changes(self) -> Changes:
        programs = {
            id: None
            if columns is None
            else ProgramChanges(
                {name: None if lists is None else _merged(lists) for name, lists in columns.items()},
                frozenset(self.scalars[id]),
            )
            for id, columns in self.columns.items()
        }
        assert self.n_before is not None
        gone = concatenate_ids(self.gone)
        return Changes(len(self.epochs), self.n_before, _merged(self.alive), gone, programs)


def _merged(lists: Sequence[Vertices]) -> Vertices:
    """Ascending, each once."""
    return distinct(np.concatenate([_NONE, *lists]))


class ChangeLog:
    """The reader's end, in any process that was sent the memory. Threads may share it."""

    def __init__(self, place: SharedArray) -> None:
        """Takes over the descriptor.

        Raises:
            ValueError: the memory is smaller than it should be.
        """
        self._words, self._ring = _parts(shared_memory.attach(place), place.n_items - _WORDS * 8)
        self._bytes = memoryview(self._ring)
        self._reading = threading.Lock()
        self._entries: deque[_Entry] = deque()
        # Of each epoch in the log the number of its first record, if that is there.
        self._sequences: dict[tuple[int, int], int] = {}
        self._end = int(self._words[_TAIL])
        self._unions: OrderedDict[tuple[int, int], Future[Changes | None]] = OrderedDict()

    def between(self, since: int, until: int) -> Changes | None:
        """What the records after number ``since`` up to number ``until`` (larger, and visible) changed.

        None where one of them is not there any more: all must be taken anew.
        """
        key = since, until
        with self._reading:
            self._follow()
            union = self._unions.get(key)
            if union is None:
                wanted = self._wanted(since, until)
                if len(wanted) != until - since:
                    return None
                self._unions[key] = made = Future[Changes | None]()
                if len(self._unions) > UNIONS_MAX:
                    self._unions.popitem(last=False)
            self._unions.move_to_end(key)
        if union is not None:
            return union.result()  # who makes it works on it at this moment
        try:
            made.set_result(self._union(wanted))
        except BaseException as error:
            made.set_exception(error)
            with self._reading:
                self._unions.pop(key, None)
        return made.result()

    def passed(self, since: int, until: int) -> Passed | None:
        """What is known of those records at once, however many they are; None as of ``between``."""
        with self._reading:
            self._follow()
            first, end = self._places(since, until)
            # Who goes on from an epoch that is written but not yet to be seen has a place behind ``until``.
            if (
                until <= since
                or end - first != until - since
                or int(self._words[_TAIL]) > self._entries[first].start
            ):
                return None
            first_one, last = self._entries[first], self._entries[end - 1]
            # Of the first one it is not known what was before it: that record may be gone.
            if last.lost > first_one.lost or not first_one.has_content:
                return None
            return Passed(last.epochs - first_one.epochs + 1, last.moved > first_one.moved or first_one.has_moved)

    def bytes_between(self, since: int, until: int) -> int:
        """How long those records are together, as far as they are there."""
        with self._reading:
            self._follow()
            first, end = self._places(since, until)
            if first >= end:
                return 0
            last = self._entries[end - 1]
            return last.start + last.length - self._entries[first].start

    def sequence_of(self, epoch: tuple[int, int]) -> int | None:
        """The number of the first record of an epoch; None where it is not there (any more)."""
        with self._reading:
            self._follow()
            return self._sequences.get(epoch)

    def follow(self, records_max: int) -> bool:
        """Take notice of some new records, so that there are never many of them; whether there are more."""
        with self._reading:
            return self._follow(records_max)

    def _places(self, since: int, until: int) -> tuple[int, int]:
        """Where the records wanted are among the entries: from the first of these places on below the second."""
        if not self._entries:
            return 0, 0
        oldest = self._entries[0].sequence  # numbers follow each other
        first, end = max(since + 1 - oldest, 0), max(until + 1 - oldest, 0)
        return first, min(end, len(self._entries))

    def _wanted(self, since: int, until: int) -> list[_Entry]:
        return list(itertools.islice(self._entries, *self._places(since, until)))

    def _union(self, wanted: Sequence[_Entry]) -> Changes | None:
        union = _Union()
        for entry in wanted:
            packed = _read(self._ring, entry.start + _HEADER * 8, entry.length - _HEADER * 8)
            fence()
            if int(self._words[_TAIL]) > entry.start or not packed:
                return None
            unpacker = msgpack.Unpacker(max_buffer_size=0)  # there is something of before behind it
            unpacker.feed(packed)
            union.add(entry.epoch, unpacker.unpack())
        return union.changes()

    def _follow(self, records_max: int | None = None) -> bool:
        """Take notice of new records, and of those that are gone; whether there are more."""
        head = int(self._words[_HEAD])
        fence()
        for _ in itertools.count() if records_max is None else range(records_max):
            if self._end >= head:
                break
            length, sequence, *epoch, n_moved = self._header(self._end)
            fence()
            tail = int(self._words[_TAIL])
            if tail > self._end:
                self._entries.clear()
                self._sequences.clear()
                self._end = tail
                continue
            entry = self._counted(sequence, (epoch[0], epoch[1]), length, n_moved)
            self._entries.append(entry)
            self._sequences.setdefault(entry.epoch, sequence)
            self._end += length
        tail = int(self._words[_TAIL])
        while self._entries and self._entries[0].start < tail:
            gone = self._entries.popleft()
            if self._sequences.get(gone.epoch) == gone.sequence:
                del self._sequences[gone.epoch]
        return self._end < head

    def _counted(self, sequence: int, epoch: tuple[int, int], length: int, n_moved: int) -> _Entry:
        """The record that comes next, and what there was up to it."""
        before = self._entries[-1] if self._entries else None
        epochs, moved, lost = (before.epochs, before.moved, before.lost) if before else (0, 0, 0)
        epochs += before is None or before.epoch != epoch
        lost += length == _HEADER * 8
        return _Entry(sequence, epoch, self._end, length, epochs, moved + n_moved, lost, n_moved > 0)

    def _header(self, position: int) -> tuple[int, ...]:
        start = position % self._ring.size
        if start + _HEADER_WORDS.size <= self._ring.size:
            return _HEADER_WORDS.unpack_from(self._bytes, start)
        return _HEADER_WORDS.unpack(_read(self._ring, position, _HEADER_WORDS.size))
