"""The published results as the writer of outgoing records reads them: in the engine's process, on its own thread.

They are read from the same memory as by the query server, so that the engine neither copies anything nor waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
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
    which they may know something else than what is true."""

    place: int | None
    extra: Mapping[str, IdColumn]


@dataclass(frozen=True, slots=True)
class Found:
    """What readers lack of one epoch, copied. ``epochs``: how many they lack, None: not known."""

    snapshot: Snapshot
    news: Mapping[str, News]
    epochs: int | None


class View:
    """Reads epochs; one thread calls it, but ``begin_grace`` is for any."""

    def __init__(
        self,
        published: Published,
        index: VertexIndex,
        kind: Literal["int", "string"],
        kinds: Mapping[str, type[Program]],
        scopes: Mapping[str, Everyone],
        hold: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """
        Args:
            scopes: by the id of each program that is looked at, what is remembered of it.
            hold: while its context lasts no epoch begins.
        """
        self._published = published
        self._hold = hold
        self._index = index
        self._kind = kind
        self._kinds = kinds
        self._scopes = scopes
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
        news = {
            id: self._news(id, scope, snapshot, changes, wanted.extra.get(id))
            for id, scope in self._scopes.items()
            if id in snapshot.programs
        }
        return Found(snapshot, news, epochs)

    def _news(
        self, id: str, scope: Everyone, snapshot: Snapshot, changes: Changes, extra: IdColumn | None
    ) -> News:
        result = snapshot.programs[id]
        touched = touched_since(self, result, id, changes) if changes.epochs else _NOBODY
        gone = [] if not len(changes.gone) else [changes.gone]
        if extra is not None and len(extra):
            gone.append(extra)
            if touched is not None:
                dense = self.lookup_in(snapshot, extra)
                touched = distinct(np.concatenate([touched, dense[dense != NO_VERTEX]]))
        all_gone = _each_once(concatenate_ids(gone)) if gone else changes.gone
        changes = Changes(changes.epochs, changes.n_before, changes.alive, all_gone, changes.programs)
        return scope.look(Look(self, snapshot, result, changes, touched, _ALL))


def _each_once(ids: IdColumn) -> IdColumn:
    ordered = ids[ids.argsort()]
    if len(ordered) < 2:
        return ordered
    n = np.arange(len(ordered))
    first = np.concatenate([[True], ~equal_ids(ordered[n[1:]], ordered[n[:-1]])])
    return ordered[first]


def scope_of(kind: type[Program], threshold: float) -> Everyone:
    """What is remembered of a program whose changes below the threshold are left out; nothing of ids."""
    return Everyone(0.0 if kind.value is ExternalId else threshold)
