"""How many vertices a search by hops has reached, how far, and in how many hops in all: kept by what changed.

Where a vertex has h hops, its parent has h - 1: no level before the last is empty. So when the last levels are
emptied, finding the last one left costs no more than the changes that emptied them. There are fewer levels than
vertices; a value that says otherwise, as that of a vertex that is not reached does, counts nowhere.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import fetch_add
from ...gpma.drawing import drawn_by
from ...gpma.edges import HALF, Keys, Vertices
from ...gpma.intrinsics import prefetch_to_read
from ...gpma.team import at_most, share
from ...gpma.vertex_columns import grown

# Counting all: vertices that a thread takes at a time; levels that it counts by itself, in how many lanes, so that
# one addition does not wait for the last.
_PIECE = 1 << 14
_NEAR = 64
_LANES = 4
# How long before its turn the word of a vertex that moved is asked for.
_AHEAD = 16

_REACHED, _HOPS, _LAST = range(3)

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


class Levels:
    """The vertices of each level, counted, and what these counts add up to."""

    def __init__(self) -> None:
        # By level; zeros behind the last.
        self._counts = np.empty(0, np.uint32)
        self._totals = np.zeros(3, np.int64)

    def count(self, word: Keys, n: int, crew: Any) -> None:
        """Count all of n vertices by their words (``mend.py``), whose values are hops."""
        self._counts[: self._totals[_LAST] + 1] = 0
        self._counts = grown(self._counts, n, 0)
        _count_all(word, np.int64(n), self._counts, self._totals, crew)

    def take(self, found: Vertices, n: int) -> None:
        """Of n vertices so many are on each level; behind the last level zeros may follow."""
        self._counts[: self._totals[_LAST] + 1] = 0
        self._counts = grown(self._counts, n, 0)
        found = found[: np.count_nonzero(found)]
        self._counts[: found.size] = found
        self._totals[_REACHED] = found.sum(dtype=np.int64)
        self._totals[_HOPS] = found @ np.arange(found.size)
        self._totals[_LAST] = max(found.size - 1, 0)

    def move(self, word: Keys, n: int, vertices: Vertices, old: Keys) -> None:
        """Take these vertices of n, each named once, from where their ``old`` words had them to where they are."""
        self._counts = grown(self._counts, n, 0)
        _move(word, vertices, old, self._counts, self._totals)

    def scalars(self) -> dict[str, float]:
        """``reached`` vertices, sources included; ``eccentricity``, the hops to the farthest; ``sum_of_hops``."""
        reached, hops, last = self._totals.tolist()
        return {"reached": float(reached), "eccentricity": float(last), "sum_of_hops": float(hops)}

    def by_level(self) -> npt.NDArray[np.uint32]:
        """How many vertices each level has, from 0 to the last (not copied); none where nothing is reached."""
        return self._counts[: self._totals[_LAST] + 1 if self._totals[_REACHED] else 0]

    def memory_bytes(self) -> int:
        """Bytes of the arrays held."""
        return self._counts.nbytes


@_jit
def _count_all(word, n, counts, totals, crew):  # type: ignore[no-untyped-def]
    cursor = np.zeros(1, np.int64)
    last_of = np.zeros(crew.threads, np.int64)
    share(at_most(crew, n // _PIECE + 1), _count_pieces, (word, n, counts, cursor, last_of))
    reached, hops, last = np.int64(0), np.int64(0), last_of.max()
    for level in range(min(last + 1, n)):
        reached += np.int64(counts[level])
        hops += np.int64(counts[level]) * level
    totals[_REACHED], totals[_HOPS], totals[_LAST] = reached, hops, last


@_jit
def _count_pieces(t, word, n, counts, cursor, last_of):  # type: ignore[no-untyped-def]
    own = np.zeros((_NEAR + 1) * _LANES, np.uint32)  # all others in the end
    last = np.int64(0)
    for begin in drawn_by(cursor, n, _PIECE):
        for v in range(begin, min(begin + _PIECE, n)):
            # Whether a vertex is reached is a toss-up, and no branch; whether it is far seldom changes.
            level = np.int64(word[v] >> HALF)
            own[min(level, np.int64(_NEAR)) * _LANES + (v & (_LANES - 1))] += np.uint32(1)
            if (level >= _NEAR) & (level < n):
                fetch_add(counts, level, np.uint32(1))
                last = max(last, level)
    for near in range(min(_NEAR, n)):
        mine = np.uint32(0)
        for lane in range(_LANES):
            mine += own[near * _LANES + lane]
        if mine:
            fetch_add(counts, near, mine)
            last = max(last, np.int64(near))
    last_of[t] = last


@_jit
def _move(word, vertices, old, counts, totals):  # type: ignore[no-untyped-def]
    reached, hops, last = totals[_REACHED], totals[_HOPS], totals[_LAST]
    for k in range(vertices.size):
        if k + _AHEAD < vertices.size:
            prefetch_to_read(word, np.int64(vertices[k + _AHEAD]))
        was, is_ = np.int64(old[k] >> HALF), np.int64(word[vertices[k]] >> HALF)
        if was == is_:
            continue
        if was < counts.size:
            counts[was] -= np.uint32(1)
            reached -= 1
            hops -= was
        if is_ < counts.size:
            counts[is_] += np.uint32(1)
            reached += 1
            hops += is_
            last = max(last, is_)
    while last > 0 and counts[last] == 0:
        last -= 1
    totals[_REACHED], totals[_HOPS], totals[_LAST] = reached, hops, last
