"""Whom a subscription is about, what is remembered of what it was sent, and what its client lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...compute.program import ExternalId, Program, grown
from ...gpma.edges import NO_VERTEX, Vertices, distinct
from ...gpma.index.ids import IdColumn, StringColumn
from ..errors import LimitExceeded
from .change_log import Changes, ProgramChanges
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
    """

    ids: IdColumn
    values: Values
    gone: IdColumn
    remember: Callable[[], None]

    def __len__(self) -> int:
        return len(self.ids) + len(self.gone)

    def parts(self) -> Iterator[tuple[dict[str, Any], bool]]:
        """As entries of messages, and whether there are more; what is gone comes first."""
        size = max(len(self), 1)
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

    ``changes``: None: all must be taken anew. ``touched``: whose values may be others since, in ascending order;
    None: anyone's. ``vertices_max``: so many may be told of at once. ``may_scan``: all vertices may be looked at.
    ``shared``: what others found out who looked at this program in this epoch, by what it is.
    """

    names: Names
    snapshot: Snapshot
    result: ProgramResults
    changes: Changes | None
    touched: Vertices | None
    vertices_max: int
    may_scan: bool = True
    shared: dict[Any, Any] = field(default_factory=dict)

    def check(self, n: int) -> None:
        """
        Raises:
            LimitExceeded: so many vertices are too many to be told of.
        """
        check_told(n, self.vertices_max, "exist" if self.changes is None else "changed")

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

    ``resumes``: it can go on from an epoch of before, of which it knows nothing but the changes since.
    """

    resumes: bool

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

    def forget(self) -> None:
        """What the client was sent is not known any more; it has the values of the place where it is, though."""
        ...


_UNKNOWN, _VALUE, _NULL = 0, 1, 2


class Everyone:
    """All vertices. With a ``threshold`` (above 0) what was sent of each is remembered."""

    resumes = True

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
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

    def forget(self) -> None:
        self._sent, self._state = np.empty(0), np.empty(0, np.uint8)


class Chosen:
    """These vertices (each once), also while they do not exist. What was sent of each is remembered."""

    resumes = True

    def __init__(self, ids: IdColumn, threshold: float) -> None:
        self._ids = ids
        self._threshold = threshold
        self._dense: Vertices = np.full(len(ids), NO_VERTEX, np.uint32)
        self._known: Flags = np.zeros(len(ids), bool)
        self._values: Values | None = None
        self._unsure: Flags = np.zeros(len(ids), bool)
        """Of which the client may have a value that is off by the threshold."""
        self._resuming = False

    def size(self, n_vertices: int, n_touched: int, shared: Mapping[Any, Any]) -> int:
        return len(self._ids)

    def weight(self, n_vertices: int) -> int:
        return len(self._ids)

    def look(self, look: Look) -> News:
        changes = look.changes
        anew = changes is None or self._resuming or self._values is None
        moved = look.moved
        again = np.full(len(self._ids), True)
        if not anew:
            again = members(self._dense, moved)
            if moved.size:
                again |= self._dense == NO_VERTEX
        dense = self._dense.copy()
        if again.any():
            dense[again] = look.names.lookup_in(look.snapshot, self._ids[again])
        known = dense != NO_VERTEX
        touched = np.full(len(self._ids), True) if look.touched is None else members(dense, look.touched)
        at = np.flatnonzero(known & (again | touched))
        values = look.values(dense[at])
        if changes is None:
            send, gone = np.full(at.size, True), np.zeros(len(self._ids), bool)
        elif anew:
            send, gone = (touched | members(dense, moved))[at], ~known & _among(self._ids, changes.gone)
        else:
            send, gone = self._news(at, values), self._known & ~known
        sent = at[send]

        def remember() -> None:
            self._dense, self._known = dense, known
            if anew or self._values is None:
                blank = np.zeros(len(self._ids), values.values.dtype)
                self._values = Values(blank, np.zeros(blank.size, bool))
                self._unsure = known & (changes is not None) & (self._threshold > 0)
            # Those of before whose values are less than the threshold off are what the client has.
            kept = at if anew else sent
            here = slice(None) if anew else send
            self._values.values[kept] = values.values[here]
            self._values.null[kept] = values.null[here]
            self._unsure[sent] = False
            self._resuming = False

        return News(self._ids[sent], values[send], self._ids[gone], remember)

    def _news(self, at: npt.NDArray[np.intp], values: Values) -> Flags:
        """Which of these values the client does not have."""
        assert self._values is not None
        before = self._values[at]
        differ: Flags = ~self._known[at] | self._unsure[at] | (values.null != before.null)
        differ |= ~values.null & _differ(values.values, before.values, self._threshold)
        return differ

    def forget(self) -> None:
        self._resuming = True


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
