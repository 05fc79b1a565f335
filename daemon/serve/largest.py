"""The scope of a subscription to the vertices with the largest values, or with the smallest.

Twice as many of the best are kept as are told of, and it is known how good the last of them was: who is not among
them is worse, as long as neither it nor anything that its value depends on has changed. So an epoch costs what it
changed, until so many of the best have fallen that the rest must be looked at again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...gpma.edges import NO_VERTEX, Vertices, distinct
from ...gpma.index.ids import IdColumn
from .results import at_once
from .scopes import Look, News, NotAtOnce, members
from .values import Values, best_of, top_k

KEPT = 2
"""So many times as many as are told of are kept."""

_NONE: Vertices = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The best vertices, best first; of equal ones that of the smaller dense id, as in ``top``.

    ``last``: value and dense id than which all others are worse; None: no other has a value. ``descending``:
    the larger, the better.
    """

    dense: Vertices
    last: tuple[Any, int] | None
    descending: bool

    def without_worse(self, dense: Vertices, values: Values) -> npt.NDArray[np.intp]:
        """Places of those (ascending) that are better than all that were left out of it, or its last."""
        kept = ~values.null
        if self.last is not None:
            value, last = self.last
            better = values.values > value if self.descending else values.values < value
            kept &= better | ((values.values == value) & (dense <= last))
        return np.flatnonzero(kept)


@dataclass(frozen=True, slots=True)
class _Told:
    """Who was told of (ascending), by which ids and with which values; and the ranking that they came from."""

    ranking: _Ranking
    dense: Vertices
    ids: IdColumn
    values: Values


class Largest:
    """The k vertices with the largest values, or the smallest. What was sent is remembered."""

    resumes = False
    needs_changes = True

    def __init__(self, k: int, *, descending: bool = True) -> None:
        self._k = k
        self._descending = descending
        self._told: _Told | None = None
        self.topic: Hashable | None = ("largest" if descending else "smallest", k)

    @property
    def position(self) -> Hashable:
        return self._told is None

    def size(self, n_vertices: int, n_touched: int, shared: Mapping[Any, Any]) -> int:
        if self.topic in shared:
            return min(KEPT * self._k, n_vertices)
        return n_vertices if self._told is None else min(n_touched + KEPT * self._k, n_vertices)

    def weight(self, n_vertices: int) -> int:
        return KEPT * self._k

    def look(self, look: Look) -> News:
        ranking = self._next(look)
        dense = np.sort(ranking.dense[: self._k])
        values, ids = look.values(dense), look.names.external(dense)
        moved, told = look.moved, self._told
        if look.changes is None or told is None:
            send, gone = np.full(dense.size, True), look.names.external(_NONE)
        else:
            stayed = members(dense, told.dense) & ~members(dense, moved)
            send = ~stayed
            send[stayed] = values[stayed].differ(told.values[np.searchsorted(told.dense, dense[stayed])])
            gone = told.ids[~members(told.dense, dense[stayed])]
        at = np.flatnonzero(send)
        now = _Told(ranking, dense, ids, values)
        return News(ids[at], values[at], gone, lambda: self.adopt(now), now)

    def adopt(self, known: _Told) -> None:
        self._told = known

    def forget(self) -> None:
        self._told = None

    def _next(self, look: Look) -> _Ranking:
        """The ranking of this epoch, which is found out once for all who want the same.

        Raises:
            NotAtOnce: all vertices would have to be looked at.
        """
        known: _Ranking | None = look.shared.get(self.topic)
        if known is None:
            known = look.shared[self.topic] = self._found(look)
        return known

    def _found(self, look: Look) -> _Ranking:
        if self._told is not None and look.changes is not None and look.touched is not None:
            ranking = self._told.ranking
            dense = distinct(np.concatenate([ranking.dense, look.touched, look.moved]))
            dense = dense[look.snapshot.known(dense) != NO_VERTEX]
            values = look.values(dense)
            kept = ranking.without_worse(dense, values)
            if kept.size >= self._k or ranking.last is None:
                return self._ranked(dense[kept], values[kept], ranking.last)
        if not look.may_scan:
            raise NotAtOnce
        return self._of_all(look)

    def _of_all(self, look: Look) -> _Ranking:
        """By looking at all vertices."""

        def read(part: slice) -> Values:
            dense = np.arange(part.start, part.stop, dtype=np.uint32)
            there = look.snapshot.known(dense) != NO_VERTEX
            found = look.values(dense[there])
            values, null = np.zeros(dense.size, found.values.dtype), np.ones(dense.size, bool)
            values[there], null[there] = found.values, found.null
            return Values(values, null)

        def all_count(dense: Vertices) -> npt.NDArray[np.bool_]:
            return np.ones(dense.size, bool)

        size, n = KEPT * self._k, look.snapshot.n_vertices
        dense, values = at_once(best_of(read, all_count, n, size, descending=self._descending))
        last = (values[-1], int(dense[-1])) if dense.size == size else None
        return _Ranking(dense, last, self._descending)

    def _ranked(self, dense: Vertices, values: Values, last: tuple[Any, int] | None) -> _Ranking:
        """The best of these, which ascend. ``last``: of what was left out before."""
        size = KEPT * self._k
        order = top_k(values, size, descending=self._descending)
        if order.size == size < np.count_nonzero(~values.null):
            last = values.values[order[-1]], int(dense[order[-1]])
        return _Ranking(dense[order], last, self._descending)
