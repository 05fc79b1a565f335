"""Whom a subscription is about, what is remembered of what it was sent, and what its client lacks."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...compute.program import ExternalId, Program, grown
from ...gpma.edges import NO_VERTEX, Vertices, distinct
from ...gpma.index.ids import IdColumn, StringColumn, concatenate_ids
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

    ``dense``: ``NO_VERTEX`` where there is none. ``values``: of those that there are, and what was sent before of
    those that went. ``unsure``: of which the client may have a value that is off by the threshold; None: of none.
    ``n_vertices``: so many there were. ``lacks``: some of those chosen are none.
    """

    dense: Vertices
    values: Values
    unsure: Flags | None
    n_vertices: int
    lacks: bool

    @classmethod
    def of(cls, dense: Vertices, values: Values, unsure: Flags | None, n_vertices: int) -> _Sent:
        return cls(dense, values, unsure, n_vertices, bool((dense == NO_VERTEX).any()))

    def then(self, dense: Vertices, at: npt.NDArray[np.intp], told: Values, n_vertices: int) -> _Sent:
        """What was sent once these values are, at these places: others that are less than the threshold off stay
        what the client has."""
        known, unsure = self.values, self.unsure
        if at.size:
            known = Values(known.values.copy(), known.null.copy())
            known.values[at], known.null[at] = told.values, told.null
            if unsure is not None:
                unsure = unsure.copy()
                unsure[at] = False
        if dense is self.dense:
            return _Sent(dense, known, unsure, n_vertices, self.lacks)
        return _Sent.of(dense, known, unsure, n_vertices)


class Chosen:
    """These vertices (each once), also while they do not exist. What was sent of each is remembered.

    All of them are looked at whatever epochs changed: to compare each with what was sent costs less than to find
    out whether it is among the changed, and as much for many epochs as for one.
    """

    resumes = True

    def __init__(self, ids: IdColumn, threshold: float) -> None:
        self.ids = ids
        self.threshold = threshold
        self.sent: _Sent | None = None
        self._resuming = False
        self.topic: Hashable | None = ("chosen", _digest(ids), threshold)

    @property
    def position(self) -> Hashable:
        if self.threshold:  # what was sent depends on all that was before
            return self.sent, self._resuming
        return self.sent is None, self._resuming

    @property
    def needs_changes(self) -> bool:
        return self._resuming or self.sent is None

    def size(self, n_vertices: int, n_touched: int, shared: Mapping[Any, Any]) -> int:
        return len(self.ids)

    def weight(self, n_vertices: int) -> int:
        return len(self.ids)

    def stands(self, look: Look) -> bool:
        """It is known what was sent, so that ``look_together`` can compare with it."""
        return look.passed is not None and not self._resuming and self.sent is not None

    def look(self, look: Look) -> News:
        if not self.stands(look):
            return self._anew(look)
        (news,) = look_together(look, [self])
        return replace(nothing(look.names), known=self.sent) if news is None else news

    def know(self, look: Look) -> None:
        """The client has the values of this epoch, or wants to hear only of those that change after it."""
        self.adopt(self._anew(look).known)
        assert self.sent is not None
        if self.threshold:
            self.sent = replace(self.sent, unsure=self.sent.dense != NO_VERTEX)

    def _anew(self, look: Look) -> News:
        """For a client of which it is not known what it was sent, or that gets all that there is."""
        changes = look.changes
        dense = look.names.lookup_in(look.snapshot, self.ids)
        there = np.flatnonzero(dense != NO_VERTEX)
        values = look.values(dense[there])
        if changes is None:
            send, gone = np.full(there.size, True), np.full(len(self.ids), False)
        else:
            touched = True if look.touched is None else members(dense[there], look.touched)
            send = members(dense[there], look.moved) | touched
            gone = (dense == NO_VERTEX) & _among(self.ids, changes.gone)
        blank = np.zeros(len(self.ids), values.values.dtype)
        known = Values(blank, np.zeros(blank.size, bool))
        known.values[there], known.null[there] = values.values, values.null
        unsure = None
        if changes is not None and self.threshold:
            unsure = dense != NO_VERTEX
            unsure[there[send]] = False
        now = _Sent.of(dense, known, unsure, look.snapshot.n_vertices)
        return self.news(there[send], values[send], gone, now)

    def news(self, at: npt.NDArray[np.intp], values: Values, gone: npt.NDArray[Any], now: _Sent) -> News:
        """That those at these places have these values, and some (places, or flags) are gone."""
        return News(self.ids[at], values, self.ids[gone], lambda: self.adopt(now), now)

    def adopt(self, known: _Sent) -> None:
        self.sent, self._resuming = known, False

    def forget(self) -> None:
        self._resuming = True


def look_together(look: Look, scopes: Sequence[Chosen]) -> list[News | None]:
    """What each client of these lacks, all of which know one publication and stand (``Chosen.stands``).

    None: nothing, nor is there anything to remember. Their vertices are looked up, read and compared as one
    column: for those of one client most of the time would go by between the steps.
    """
    sent = [scope.sent for scope in scopes if scope.sent is not None]
    edges = np.cumsum([0, *(one.dense.size for one in sent)])
    was = np.concatenate([one.dense for one in sent])
    dense = _found(look, scopes, sent, was)
    there = dense != NO_VERTEX
    values = look.values(dense)
    differ = there & _have_changed(values, sent, np.repeat([scope.threshold for scope in scopes], np.diff(edges)))
    gone = moved = np.empty(0, np.intp)
    if dense is not was:
        differ |= there & (was == NO_VERTEX)
        gone = np.flatnonzero(~there & (was != NO_VERTEX))
        moved = np.flatnonzero(dense != was)
    told = np.flatnonzero(differ)
    told_values, places = values[told], told - np.repeat(edges[:-1], np.diff(np.searchsorted(told, edges)))
    rows = zip(
        scopes, sent, _pairs(edges), _pairs(np.searchsorted(told, edges)), _pairs(np.searchsorted(gone, edges)),
        _pairs(np.searchsorted(moved, edges)), strict=True,
    )  # fmt: skip
    news: list[News | None] = []
    for scope, before, own, tells, goes, moves in rows:
        is_elsewhere = moves.start < moves.stop
        may_come = before.lacks and look.snapshot.n_vertices > before.n_vertices
        if tells.start == tells.stop and not is_elsewhere and not may_come:
            news.append(None)
            continue
        at, some = places[tells], told_values[tells]
        now = before.then(dense[own].copy() if is_elsewhere else before.dense, at, some, look.snapshot.n_vertices)
        news.append(scope.news(at, some, gone[goes] - own.start, now))
    return news


def _found(look: Look, scopes: Sequence[Chosen], sent: Sequence[_Sent], was: Vertices) -> Vertices:
    """Dense ids of all that they chose: looked up where they may be others, else as they were."""
    assert look.passed is not None
    if look.passed.has_moved:
        return look.names.lookup_in(look.snapshot, concatenate_ids([scope.ids for scope in scopes]))
    if not any(one.lacks and look.snapshot.n_vertices > one.n_vertices for one in sent):
        return was
    dense, lacking = was.copy(), np.flatnonzero(was == NO_VERTEX)
    ids = concatenate_ids([scope.ids for scope in scopes])
    dense[lacking] = look.names.lookup_in(look.snapshot, ids[lacking])
    return dense


def _have_changed(values: Values, sent: Sequence[_Sent], thresholds: npt.NDArray[np.float64]) -> Flags:
    """Of which of these values the clients have others, farther off than the threshold of each allows."""
    known = np.concatenate([one.values.values for one in sent])
    changed: Flags = ~values.null & _differ(values.values, known, thresholds)
    if any(one.unsure is not None for one in sent):
        nobody = np.zeros(values.null.size, bool)
        unsure = [nobody[: one.dense.size] if one.unsure is None else one.unsure for one in sent]
        changed |= np.concatenate(unsure) & ~values.null & _differ(values.values, known, 0.0)
    changed |= values.null != np.concatenate([one.values.null for one in sent])
    return changed


def _pairs(edges: npt.NDArray[np.intp]) -> list[slice]:
    """What lies between each two of these."""
    return [*itertools.starmap(slice, itertools.pairwise(edges.tolist()))]


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


def _differ(
    values: npt.NDArray[Any], before: npt.NDArray[Any], threshold: float | npt.NDArray[np.float64]
) -> Flags:
    """Which values are farther from those before than this part of them (one for all, or for each its own)."""
    differ: Flags = np.asarray(values != before, bool)
    if np.any(threshold):
        with np.errstate(invalid="ignore"):
            now, then = values.astype(np.float64), before.astype(np.float64)
            near = np.abs(now - then) <= threshold * np.abs(then)
            # Nothing is a part of what is infinite; and large integers may be others where their floats are equal.
            differ &= ~(near & np.isfinite(then) & (np.asarray(threshold) > 0))
    return differ
