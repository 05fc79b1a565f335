"""What a batch changed in the graph; and changes of several sides made one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ..gpma.changed import CHANGED, CHANGED_WORDS, ChangedEdges
from ..gpma.edges import ChangeReport, EdgeList, Keys, Vertices, Weights
from ..gpma.host.small import Totals
from ..gpma.team import Crew
from ..gpma.written import Words, keeping, new_words, write
from .scanning import count_loops

Counts = tuple[int, int, int, int]
"""Of what was inserted, overwritten, deleted, absent."""


def none() -> Vertices:
    """No vertices."""
    return np.empty(0, np.uint32)


class Report:
    """The change of the out-rows of all sides, brought together when somebody first reads it.

    Where all programs read what a device itself reports, nobody does.
    """

    __slots__ = (
        "__weakref__",
        "_changed",
        "_count_loops",
        "_lock",
        "_made",
        "_make",
        "_slots_moved",
        "_small",
        "_totals",
    )

    def __init__(
        self,
        totals: Counts,
        slots_moved: int,
        make: Callable[[], ChangeReport],
        count_loops: Callable[[Crew], Counts],
    ) -> None:
        """``make`` and ``count_loops``: what ``read`` and ``loops`` say, as long as sides keep it."""
        self._totals: Counts | None = totals
        self._slots_moved = slots_moved
        self._make: Callable[[], ChangeReport] | None = make
        self._count_loops: Callable[[Crew], Counts] | None = count_loops
        self._made: ChangeReport | None = None
        self._small: tuple[tuple[int, ...], bool] | None = None
        self._changed: Words | None = None
        self._lock = Lock()

    @classmethod
    def of(cls, change: ChangeReport) -> Report:
        """One that is there already."""
        report = cls.__new__(cls)
        report._totals = report._make = report._count_loops = report._small = report._changed = None
        report._slots_moved = change.slots_moved
        report._made = change
        return report

    @classmethod
    def of_small(cls, totals: tuple[int, ...], changed: Words, weighted: bool, slots_moved: int) -> Report:
        """Of a batch that went by one call, as ``small.apply_small`` writes it; ``totals`` are its ``Totals``."""
        report = cls.__new__(cls)  # every microsecond counts
        report._made = report._make = report._count_loops = report._totals = None
        report._slots_moved = slots_moved
        report._small = totals, weighted
        report._changed = changed
        return report

    @property
    def totals(self) -> Counts:
        """How many arcs are inserted, overwritten, deleted, absent."""
        if self._totals is None:
            inserted, overwritten, deleted, absent, *_ = (
                self.read().totals if self._small is None else self._small[0]
            )
            self._totals = inserted, overwritten, deleted, absent
        return self._totals

    @property
    def slots_moved(self) -> int:
        """As in ``ChangeReport``, of all sides."""
        return self._slots_moved

    def loops(self, crew: Crew) -> Counts:
        """How many of these are loops; to be asked before the sides' next change, or after ``read``."""
        count = self._count_loops
        if self._made is None and count is not None:
            counted = count(crew)
            self._count_loops = lambda _: counted
            return counted
        change = self.read()
        inserted, overwritten, deleted = change.inserted.keys, change.overwritten.keys, change.deleted.keys
        return (
            count_loops(inserted, crew),
            count_loops(overwritten, crew),
            count_loops(deleted, crew),
            count_loops(change.absent, crew),
        )

    def changed(self) -> Words:
        """``ChangedEdges``, as ``read``, in the words from which kernels take them, and which keep them."""
        if self._changed is None:
            change = self.read()
            came, new = change.inserted, change.overwritten
            weights, new_weights = _weights_or_none(came.weights), _weights_or_none(new.weights)
            edges = ChangedEdges(came.keys, weights, new.keys, new_weights, change.deleted.keys)
            words = new_words(CHANGED)
            write(words, edges)
            self._changed = keeping(words, edges)
        return self._changed

    def _columns(self, weighted: bool) -> tuple[Keys, Weights | None]:
        """All keys and weights of a small batch, side by side."""
        assert self._changed is not None
        columns = self._changed[CHANGED_WORDS:]
        n = columns.size >> weighted
        return columns[:n].view(np.uint64), columns[n:].view(np.float32) if weighted else None

    def read(self) -> ChangeReport:
        """Good for ever: what sides keep until their next change is copied at the first call, of any thread."""
        if self._made is None:
            small = self._small
            if small is not None:  # two threads may both do so: it is made of views
                totals, weighted = small
                self._made = Totals._make(totals).report(*self._columns(weighted), self._slots_moved)
                return self._made
            with self._lock:
                if self._made is None:
                    assert self._make is not None
                    self._made = self._make()
                    self._make = self._count_loops = None
        return self._made


_NO_VERTICES, _NO_WEIGHTS = none(), np.empty(0, np.float32)


def _weights_or_none(weights: Weights | None) -> Weights:
    """The weights as kernels take them: none at all where the graph keeps none."""
    return _NO_WEIGHTS if weights is None else weights


class GraphChange(NamedTuple):
    """What a batch changed in the graph.

    ``arcs``: the change of the out-rows; in an undirected graph both directions of each edge are listed. The
    ``report`` brings it together when it is read.
    The counts are of edges (an undirected edge counts once), after compaction: an update that a later one of
    its pair overrides, or a later deletion of one of its ends, counts nowhere; ``deleted`` has the edges that
    went with a vertex, and an edge that was inserted again after that is in ``overwritten``. Dense ids from
    ``n_vertices_before`` up to ``n_vertices`` are new.

    ``deleted_vertices``: ids (uint32, ascending) that ceased to exist, or are new and do not exist after all;
    their edges are in ``arcs.deleted``. ``revived_vertices``: ids that existed before, were deleted in an
    earlier change, and exist again, another vertex perhaps under the same dense id. A vertex that is deleted and
    comes back in one batch is in neither. ``absent_vertices`` counts the vertices whose deletion found none
    (after compaction, too).
    """

    report: Report
    n_vertices_before: int
    n_vertices: int
    inserted: int
    overwritten: int
    deleted: int
    absent: int
    deleted_vertices: Vertices = _NO_VERTICES
    revived_vertices: Vertices = _NO_VERTICES
    absent_vertices: int = 0

    @property
    def arcs(self) -> ChangeReport:
        return self.report.read()

    @property
    def slots_moved(self) -> int:
        """As in ``ChangeReport``, of all sides."""
        return self.report.slots_moved

    @property
    def n_arcs(self) -> int:
        """Arcs that were inserted, overwritten or deleted."""
        return sum(self.report.totals[:3])

    @property
    def updates(self) -> int:
        """Distinct pairs that the batch named, or that went with a vertex."""
        return self.inserted + self.overwritten + self.deleted + self.absent


def no_change(weighted: bool) -> ChangeReport:
    """The report of a batch without updates."""
    nothing = no_edges(weighted)
    return ChangeReport(nothing, nothing, nothing.weights, nothing, nothing.keys)


def no_edges(weighted: bool) -> EdgeList:
    """None."""
    return EdgeList(np.empty(0, np.uint64), np.empty(0, np.float32) if weighted else None)


def merged_changes(changes: Sequence[ChangeReport]) -> ChangeReport:
    """What several sides changed, as one side that owned all their rows would have reported it."""
    if len(changes) == 1:
        return changes[0]
    both = [(c.overwritten.keys, [c.overwritten.weights, c.overwritten_old]) for c in changes]
    keys, (weights, old) = _merged(both)
    return ChangeReport(
        inserted=merged_edges([c.inserted for c in changes]),
        overwritten=EdgeList(keys, weights),
        overwritten_old=old,
        deleted=merged_edges([c.deleted for c in changes]),
        absent=_merged([(c.absent, []) for c in changes])[0],
        slots_moved=sum(c.slots_moved for c in changes),
    )


def merged_edges(lists: Sequence[EdgeList]) -> EdgeList:
    """Ascending edges of several sides in one ascending list."""
    if len(lists) == 1:
        return lists[0]
    keys, (weights,) = _merged([(edges.keys, [edges.weights]) for edges in lists])
    return EdgeList(keys, weights)


def _merged(parts: Sequence[tuple[Keys, list[Any]]]) -> tuple[Keys, list[Any]]:
    """Ascending keys with their columns (or None), put in one order."""
    parts = [part for part in parts if part[0].size] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([part[0] for part in parts])
    # Stable sorts of NumPy find the ascending runs, and merge these.
    order = np.argsort(keys, kind="stable")
    columns = zip(*(part[1] for part in parts), strict=True)
    return keys[order], [None if column[0] is None else np.concatenate(column)[order] for column in columns]
