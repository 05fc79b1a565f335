"""The published results as the writer of outgoing records reads them: in the engine's process, on its own thread.

They are read from the same memory as by the query server, so that the engine neither copies anything nor waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from ...compute.program import ExternalId, Program
from ...gpma.edges import NO_VERTEX, Vertices, distinct
from ...gpma.index.ids import IdColumn, concatenate_ids, equal_ids
from ...gpma.index.vertex_index import VertexIndex, VertexIndexReader
from ..errors import Unavailable
from ..serve.change_log import ChangeLog, Changes
from ..serve.results import ResultsReader, Snapshot
from ..serve.scopes import Everyone, Look, News, touched_since

LOOKS = 3
"""After so many looks that an epoch came too early for, the next epoch waits for the look."""

_NOBODY: Vertices = np.empty(0, np.uint32)
_ALL = 2**32
# Records of the log that are taken notice of before other readers of it have a turn.
_RECORDS_AT_ONCE = 1024


class Published(Protocol):
    """What is published, for readers in the engine's process (``serve.supervisor.ServerLink``)."""

    @property
    def results_generation(self) -> int: ...

    def open_results(self) -> ResultsReader: ...

    def open_changes(self) -> ChangeLog: ...


class LogLost(Exception):
    """The log of changes does not reach back so far."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What readers lack: what changed since ``place`` (None: all that there is), and ``extra`` ids by program, of
    which they may know something else than what is true.

    ``told``: the programs of which they know anything. ``current``: those among them of which they know all of the
    publication at ``place``, but for the extra ids; of every other program they lack everything.
    """

    place: int | None
    extra: Mapping[str, IdColumn]
    told: Collection[str]
    current: Collection[str]


@dataclass(frozen=True, slots=True)
class Found:
    """What readers lack of one epoch, copied. ``epochs``: how many they lack, None: not known.

    ``news``: of each program that is wanted and published. ``forgotten``: by program that is not, or no more, whom
    readers may know something of.
    """

    snapshot: Snapshot
    news: Mapping[str, News]
    forgotten: Mapping[str, IdColumn]
    epochs: int | None


class View:
    """Reads epochs; one thread calls it, but ``begin_grace`` is for any."""

    def __init__(
        self,
        published: Published,
        index: VertexIndex,
        kind: Literal["int", "string"],
        kinds: Mapping[str, type[Program]],
        programs: Collection[str],
        threshold: float,
        hold: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """
        Args:
            programs: the ids of those that are looked at; empty: all that are published, whenever they come.
            threshold: changes of values that are no larger a part of them are left out.
            hold: while its context lasts no epoch begins.
        """
        self._published = published
        self._hold = hold
        self._index = index
        self._kind = kind
        self._kinds = kinds
        self._programs = frozenset(programs)
        self._threshold = threshold
        self._scopes: dict[tuple[str, str], Everyone] = {}  # by id and kind: another may have the id by now
        self._reader: ResultsReader | None = None
        self._log: ChangeLog | None = None
        self._names: VertexIndexReader | None = None
        self._looks = 0  # odd while one goes on

    def snapshot(self) -> Snapshot:
        """The meta data of the newest epoch.

        Raises:
            Unavailable: epochs follow each other too fast.
        """
        if self._log is not None:
            while self._log.follow(_RECORDS_AT_ONCE):
                pass
        return self._results().snapshot()

    def programs(self, snapshot: Snapshot) -> tuple[str, ...]:
        """The ids of those that are wanted and published."""
        return tuple(id for id in snapshot.programs if not self._programs or id in self._programs)

    def look(self, wanted: Wanted) -> Found:
        """What readers lack, from the newest epoch. Where epochs follow each other too fast for it, the next one
        waits.

        Raises:
            LogLost: what changed since the place is not known.
            Unavailable, TimeoutError: too fast all the same.
        """
        results = self._results()
        self._looks += 1
        try:
            try:
                return results.read(lambda snapshot: self._found(snapshot, wanted), tries=LOOKS)
            except Unavailable:
                with self._hold():
                    return results.read(lambda snapshot: self._found(snapshot, wanted))
        finally:
            self._names = None
            self._looks += 1

    def begin_grace(self) -> Callable[[], bool]:
        """Whether nobody looks who began before now, to be asked again and again."""
        began = self._looks
        return lambda: began % 2 == 0 or self._looks != began

    def program_class(self, kind: str) -> type[Program]:
        return self._kinds[kind]

    def external(self, dense: Vertices) -> IdColumn:
        return self._ids().external(dense)

    def lookup_in(self, snapshot: Snapshot, ids: IdColumn) -> Vertices:
        return snapshot.known(self._ids().lookup(ids, snapshot.n_vertices))

    def _results(self) -> ResultsReader:
        if self._reader is None or self._reader.generation != self._published.results_generation:
            self._reader = self._published.open_results()
        return self._reader

    def _changes(self) -> ChangeLog:
        if self._log is None:
            self._log = self._published.open_changes()
        return self._log

    def _ids(self) -> VertexIndexReader:
        # Those of now cover every epoch that is published; they are replaced by larger ones at any moment.
        if self._names is None:
            self._names = VertexIndexReader(self._kind, self._index.arrays())
        return self._names

    def _found(self, snapshot: Snapshot, wanted: Wanted) -> Found:
        self._names = None
        none = self.external(_NOBODY)
        if wanted.place is None:
            changes, epochs = Changes(0, 0, _NOBODY, none, {}), None
        elif wanted.place == snapshot.sequence:
            changes, epochs = Changes(0, snapshot.n_vertices, _NOBODY, none, {}), 0
        else:
            between = self._changes().between(wanted.place, snapshot.sequence)
            if between is None:
                raise LogLost
            changes, epochs = between, between.epochs
        there = self.programs(snapshot)
        kinds = {(id, snapshot.programs[id].kind) for id in there if wanted.place is None or id in wanted.current}
        self._scopes = {key: scope for key, scope in self._scopes.items() if key in kinds}
        news = {id: self._news(id, snapshot, changes, wanted) for id in there}
        return Found(snapshot, news, self._forgotten(there, snapshot, changes, wanted), epochs)

    def _news(self, id: str, snapshot: Snapshot, changes: Changes, wanted: Wanted) -> News:
        result, extra = snapshot.programs[id], wanted.extra.get(id)
        touched: Vertices | None = _NOBODY
        if wanted.place is not None and id not in wanted.current:
            touched = None
        elif changes.epochs:
            touched = touched_since(self, result, id, changes)
        gone = [changes.gone]
        if extra is not None:
            gone.append(extra)
            if touched is not None:
                dense = self.lookup_in(snapshot, extra)
                touched = distinct(np.concatenate([touched, dense[dense != NO_VERTEX]]))
        changes = replace(changes, gone=_each_once(gone))
        return self._scope(id, result.kind).look(Look(self, snapshot, result, changes, touched, _ALL))

    def _scope(self, id: str, kind: str) -> Everyone:
        """What is remembered of what was written of a program."""
        if (id, kind) not in self._scopes:
            self._scopes[id, kind] = scope_of(self.program_class(kind), self._threshold)
        return self._scopes[id, kind]

    def _forgotten(
        self, there: Collection[str], snapshot: Snapshot, changes: Changes, wanted: Wanted
    ) -> dict[str, IdColumn]:
        """Of a program that is not there any more, everyone is taken back whom its readers were told of: those who
        lived at the place live now, or went since. (Of a place of before a start, or none, the extra ids tell.)"""
        absent = [id for id in {**dict.fromkeys(wanted.told), **wanted.extra} if id not in there]
        if not absent or wanted.place is None:
            return {id: wanted.extra[id] for id in absent if id in wanted.extra}
        dense = np.arange(snapshot.n_vertices, dtype=np.uint32)
        everyone = [self.external(dense[snapshot.known(dense) != NO_VERTEX]), changes.gone]
        forgotten = {}
        for id in absent:
            parts = list(everyone) if id in wanted.told else []
            if id in wanted.extra:
                parts.append(wanted.extra[id])
            forgotten[id] = _each_once(parts)
        return forgotten


def _each_once(parts: Sequence[IdColumn]) -> IdColumn:
    ids = concatenate_ids([part for part in parts if len(part)] or parts[:1])
    ordered = ids[ids.argsort()]
    if len(ordered) < 2:
        return ordered
    n = np.arange(len(ordered))
    first = np.concatenate([[True], ~equal_ids(ordered[n[1:]], ordered[n[:-1]])])
    return ordered[first]


def scope_of(kind: type[Program], threshold: float) -> Everyone:
    """What is remembered of a program whose changes below the threshold are left out; nothing of ids."""
    return Everyone(0.0 if kind.value is ExternalId else threshold)
