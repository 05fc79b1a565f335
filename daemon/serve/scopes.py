"""Whom a subscription is about, what is remembered of what it was sent, and what its client lacks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...compute.program import ExternalId, Program, grown
from ...gpma.edges import NO_VERTEX, Vertices, distinct
from ...gpma.index.ids import IdColumn, StringColumn
from ..errors import LimitExceeded
from .change_log import Changes, Passed, ProgramChanges
from .results import ProgramResults, Snapshot
from .values import Names, Values, staleness, values_of, wire_ids

PART_VERTICES = 1 << 13
"""So many vertices are in one message: of larger news there are several parts."""

_NONE: Vertices = np.empty(0, np.uint32)

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class News:
    """What a client lacks: vertices with their values, and ids that are no vertices any more.

    ``ids`` and ``values`` have one length. ``remember``: to be called when it is certain that it will be sent.
    ``known``: for ``Scope.adopt`` of others who are sent the same.
    """

    ids: IdColumn
    values: Values
    gone: IdColumn
    remember: Callable[[], None]
    known: Any = None

    def __len__(self) -> int:
        return len(self.ids) + len(self.gone)

    def parts(self) -> Iterator[tuple[dict[str, Any], bool]]:
        """As entries of messages, and whether there are more; what is gone comes first."""
        size = max(len(self), 1)
        if size <= PART_VERTICES:
            yield {"ids": wire_ids(self.ids), **self.values.to_wire(), "removed": wire_ids(self.gone)}, False
            return
        for start in range(0, size, PART_VERTICES):
            end = start + PART_VERTICES
            gone = self.gone[np.arange(min(start, len(self.gone)), min(end, len(self.gone)))]
            here = np.arange(max(start - len(self.gone), 0), max(min(end, size) - len(self.gone), 0))
            here = here[here < len(self.ids)]
            part = {"ids": wire_ids(self.ids[here]), **self.values[here].to_wire(), "removed": wire_ids(gone)}
            yield part, end < size


def nothing(names: Names) -> News:
    """Nothing is new."""
    nobody = names.external(_NONE)
    return News(nobody, Values(np.empty(0), np.empty(0, bool)), nobody, lambda: None)


@dataclass(frozen=True, slots=True)
class Look:
    """What to go by: an epoch, a program's results in it, and what changed since that of the client.

    ``passed``: what is known of the epochs since at once; None: all must be taken anew. ``changes``: what they
    changed, for scopes that need it (``needs_changes``); None there: as ``passed``. ``touched``: whose values
    may be others since, in ascending order; None: anyone's. ``vertices_max``: so many may be told of at once.
    ``may_scan``: all vertices may be looked at. ``shared``: what others found out who looked at this program in
    this epoch, by what it is.
    """

    names: Names
    snapshot: Snapshot
    result: ProgramResults
    changes: Changes | None
    touched: Vertices | None
    vertices_max: int
    may_scan: bool = True
    shared: dict[Any, Any] = field(default_factory=dict)
    passed: Passed | None = None

    def check(self, n: int) -> None:
        """
        Raises:
            LimitExceeded: so many vertices are too many to be told of.
        """
        anew = self.changes is None and self.passed is None
        check_told(n, self.vertices_max, "exist" if anew else "changed")

    @property
    def moved(self) -> Vertices:
        """Dense ids that came to belong to a vertex since, or ceased to, in ascending order."""
        if self.changes is None:
            return _NONE
        n_before, alive = self.changes.n_before, self.changes.alive
        new = np.arange(n_before, self.snapshot.n_vertices, dtype=np.uint32)
        return np.concatenate([alive[alive < n_before], new])

    def values(self, dense: Vertices) -> Values:
        return values_of(self.names, self.result, dense)


def check_told(n: int, vertices_max: int, what: str) -> None:
    """
    Raises:
        LimitExceeded: so many vertices, of which this can be said, are too many to be told of.
    """
    if n > vertices_max:
        detail = {"vertices_max": vertices_max}
        raise LimitExceeded(f"{n} vertices {what}; an answer names at most {vertices_max}", detail)


def touched_since(names: Names, result: ProgramResults, program: str, changes: Changes) -> Vertices | None:
    """The vertices whose values of this program may be others since, in ascending order; None: anyone's."""
    changed = changes.programs.get(program)
    if changed is None:
        return None
    kind = names.program_class(result.kind)
    # Values of a program that stands still lose the vertices that they name.
    loses = kind.value is ExternalId and len(changes.gone) > 0 and bool(staleness(result))
    if depends_on(kind, changed) or loses:
        return None
    touched = kind.touched(changed.columns, result.published)
    return None if touched is None else distinct(touched)


def depends_on(kind: type[Program], changes: ProgramChanges) -> bool:
    """Every value may be another, since a scalar is."""
    return bool(changes.scalars) and (kind.value_scalars is None or bool(changes.scalars & {*kind.value_scalars}))


class NotAtOnce(Exception):
    """All vertices must be looked at, which takes a while."""


class Scope(Protocol):
    """Whom a subscription is about, and what it remembers of them.

    ``resumes``: it can go on from an epoch of before, of which it knows nothing but the changes since. ``topic``:
    equal where others ask the same; None: what it is told is for nobody else.
    """

    resumes: bool
    topic: Hashable | None

    @property
    def position(self) -> Hashable:
        """Equal, of two with one topic who know the same publication, where they lack the same of a later one."""
        ...

    @property
    def needs_changes(self) -> bool:
        """What epochs changed must be known, and not only that there were some."""
        ...

    def size(self, n_vertices: int, n_touched: int, shared: Mapping[Any, Any]) -> int:
        """How many vertices to look at, where so many of all were touched, at most; ``shared``: as of a look."""
        ...

    def weight(self, n_vertices: int) -> int:
        """Of how many vertices something is remembered."""
        ...

    def look(self, look: Look) -> News:
        """What the client lacks.

        Raises:
            LimitExceeded: that is too much.
            NotAtOnce: as it says; not where the look ``may_scan``.
        """
        ...

    def adopt(self, known: Any) -> None:
        """Another with the same topic and position looked; what it found (``News.known``) is sent here, too."""
        ...

    def forget(self) -> None:
        """What the client was sent is not known any more; it has the values of the place where it is, though."""
        ...


_UNKNOWN, _VALUE, _NULL = 0, 1, 2


class Everyone:
    """All vertices. With a ``threshold`` (above 0) what was sent of each is remembered."""

    resumes = True
    position = None
    needs_changes = True

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self.topic: Hashable | None = None if threshold else "everyone"
        # By dense id: what was sent, and whether anything was.
        self._sent: npt.NDArray[np.float64] = np.empty(0)
        self._state: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def size(self, n_vertices: int, n_touched: int, shared: Mapping[Any, Any]) -> int:
        return n_touched

    def weight(self, n_vertices: int) -> int:
        return n_vertices if self._threshold else 0

    def look(self, look: Look) -> News:
        snapshot, names = look.snapshot, look.names
        if look.touched is None and not self._threshold:
            look.check(snapshot.n_alive)  # before there are any copies
        if look.touched is None:
            dense = np.arange(snapshot.n_vertices, dtype=np.uint32)
        else:
            dense = distinct(np.concatenate([look.touched, look.moved]))
        dense = dense[snapshot.known(dense) != NO_VERTEX]
        if not self._threshold:
            look.check(dense.size)
        gone = names.external(_NONE) if look.changes is None else look.changes.gone
        gone = gone[names.lookup_in(snapshot, gone) == NO_VERTEX]
        values = look.values(dense)
        if not self._threshold:
            return News(names.external(dense), values, gone, lambda: None)
        sent = np.flatnonzero(self._lacks(look, dense, values))

        def remember() -> None:
            if look.changes is None:
                self.forget()
            if self._sent.size < snapshot.n_vertices:
                self._sent = grown(self._sent, snapshot.n_vertices, 0)
                self._state = grown(self._state, snapshot.n_vertices, _UNKNOWN)
            self._state[look.moved] = _UNKNOWN
            self._state[dense[sent]] = np.where(values.null[sent], _NULL, _VALUE)
            self._sent[dense[sent]] = values.values[sent]

        return News(names.external(dense[sent]), values[sent], gone, remember)

    def _lacks(self, look: Look, dense: Vertices, values: Values) -> Flags:
        """Of which of these vertices the client must be told."""
        if look.changes is None:
            return np.full(dense.size, True)
        before, state = np.zeros(dense.size), np.zeros(dense.size, np.uint8)
        old = dense < self._state.size
        before[old], state[old] = self._sent[dense[old]], self._state[dense[old]]
        state[members(dense, look.moved)] = _UNKNOWN
        differ = ~values.null & _differ(values.values, before, self._threshold)
        lacks: Flags = differ | (state == _UNKNOWN) | (values.null != (state == _NULL))
        return lacks

    def adopt(self, known: Any) -> None:
        """Nothing is remembered where others may ask the same."""

    def forget(self) -> None:
        self._sent, self._state = np.empty(0), np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """What the client of chosen vertices was sent, by their places among them; nobody changes it.

    ``dense``: ``NO_VERTEX`` where there is none; ``there``: the others' places. ``values``: of the latter, and
    what was sent before of those that went. ``unsure``: of which the client may have a value that is off by the
    threshold; None: of none. ``n_vertices``: so many there were.
    """

    dense: Vertices
    there: npt.NDArray[np.intp]
    values: Values
    unsure: Flags | None
    n_vertices: int


class Chosen:
    """These vertices (each once), also while they do not exist. What was sent of each is remembered.

    All of them are looked at whatever epochs changed: to compare each with what was sent costs less than to find
    out whether it is among the changed, and as much for many epochs as for one.
    """

    resumes = True

    def __init__(self, ids: IdColumn, threshold: float) -> None:
        self._ids = ids
        self._threshold = threshold
        self._sent: _Sent | None = None
        self._resuming = False
        self.topic: Hashable | None = ("chosen", _digest(ids), threshold)

    @property
    def position(self) -> Hashable:
        if self._threshold:  # what was sent depends on all that was before
            return self._sent, self._resuming
        return self._sent is None, self._resuming

    @property
    def needs_changes(self) -> bool:
        return self._resuming or self._sent is None

    def size(self, n_vertices: int, n_touched: int, shared: Mapping[Any, Any]) -> int:
        return len(self._ids)

    def weight(self, n_vertices: int) -> int:
        return len(self._ids)

    def look(self, look: Look) -> News:
        sent = self._sent
        if look.passed is None or self._resuming or sent is None:
            return self._anew(look)
        dense, there = self._found(look, look.passed, sent)
        values = look.values(dense[there])
        before = sent.values[there]
        differ = values.null != before.null
        differ |= ~values.null & _differ(values.values, before.values, self._threshold)
        if dense is not sent.dense:
            differ |= sent.dense[there] == NO_VERTEX
        if sent.unsure is not None:
            differ |= sent.unsure[there] & ~values.null & _differ(values.values, before.values, 0.0)
        gone = np.empty(0, np.intp)
        if dense is not sent.dense:
            gone = np.flatnonzero((sent.dense != NO_VERTEX) & (dense == NO_VERTEX))
        new = np.flatnonzero(differ)
        at = there[new]
        # Those whose values are less than the threshold off stay what the client has.
        told = values[new]
        known = sent.values
        if new.size:
            known = Values(known.values.copy(), known.null.copy())
            known.values[at], known.null[at] = told.values, told.null
        unsure = sent.unsure
        if unsure is not None and new.size:
            unsure = unsure.copy()
            unsure[at] = False
        now = _Sent(dense, there, known, unsure, look.snapshot.n_vertices)
        return News(self._ids[at], told, self._ids[gone], lambda: self.adopt(now), now)

    def _found(self, look: Look, passed: Passed, sent: _Sent) -> tuple[Vertices, npt.NDArray[np.intp]]:
        """Dense ids of those chosen, and the places of those that have one: looked up if any may be others."""
        missing = len(self._ids) - sent.there.size
        if passed.has_moved:
            dense = look.names.lookup_in(look.snapshot, self._ids)
        elif missing and look.snapshot.n_vertices > sent.n_vertices:
            dense, lacking = sent.dense.copy(), sent.dense == NO_VERTEX
            dense[lacking] = look.names.lookup_in(look.snapshot, self._ids[lacking])
        else:
            return sent.dense, sent.there
        if np.array_equal(dense, sent.dense):
            return sent.dense, sent.there
        return dense, np.flatnonzero(dense != NO_VERTEX)

    def know(self, look: Look) -> None:
        """The client has the values of this epoch, or wants to hear only of those that change after it."""
        self.adopt(self._anew(look).known)
        assert self._sent is not None
        if self._threshold:
            self._sent = replace(self._sent, unsure=self._sent.dense != NO_VERTEX)

    def _anew(self, look: Look) -> News:
        """For a client of which it is not known what it was sent, or that gets all that there is."""
        changes = look.changes
        dense = look.names.lookup_in(look.snapshot, self._ids)
        there = np.flatnonzero(dense != NO_VERTEX)
        values = look.values(dense[there])
        if changes is None:
            send, gone = np.full(there.size, True), np.full(len(self._ids), False)
        else:
            touched = True if look.touched is None else members(dense[there], look.touched)
            send = members(dense[there], look.moved) | touched
            gone = (dense == NO_VERTEX) & _among(self._ids, changes.gone)
        blank = np.zeros(len(self._ids), values.values.dtype)
        known = Values(blank, np.zeros(blank.size, bool))
        known.values[there], known.null[there] = values.values, values.null
        unsure = None
        if changes is not None and self._threshold:
            unsure = dense != NO_VERTEX
            unsure[there[send]] = False
        now = _Sent(dense, there, known, unsure, look.snapshot.n_vertices)
        return News(self._ids[there[send]], values[send], self._ids[gone], lambda: self.adopt(now), now)

    def adopt(self, known: _Sent) -> None:
        self._sent, self._resuming = known, False

    def forget(self) -> None:
        self._resuming = True


def _digest(ids: IdColumn) -> bytes:
    """Equal for equal columns only."""
    parts = (ids.data, ids.offsets) if isinstance(ids, StringColumn) else (np.ascontiguousarray(ids),)
    found = hashlib.blake2b(digest_size=32)
    for part in parts:
        found.update(part.view(np.uint8).data if part.size else b"")
    return found.digest()


def members(dense: Vertices, sorted_: Vertices) -> Flags:
    """Which of these are among those, which ascend."""
    if not sorted_.size:
        return np.zeros(dense.size, bool)
    places = np.minimum(np.searchsorted(sorted_, dense), sorted_.size - 1)
    found: Flags = sorted_[places] == dense
    return found


def _among(ids: IdColumn, others: IdColumn) -> Flags:
    """Which of these ids are among those."""
    if isinstance(ids, StringColumn) or isinstance(others, StringColumn):
        there = set(others.to_list() if isinstance(others, StringColumn) else ())
        return np.array([id in there for id in ids.to_list()] if isinstance(ids, StringColumn) else [], bool)
    among: Flags = np.isin(np.asarray(ids), np.asarray(others))
    return among


def _differ(values: npt.NDArray[Any], before: npt.NDArray[Any], threshold: float) -> Flags:
    """Which values are farther from those before than this part of them."""
    differ: Flags = np.asarray(values != before, bool)
    if threshold:
        with np.errstate(invalid="ignore"):
            now, then = values.astype(np.float64), before.astype(np.float64)
            near = np.abs(now - then) <= threshold * np.abs(then)
            differ &= ~(near & np.isfinite(then))  # nothing is a part of what is infinite
    return differ
