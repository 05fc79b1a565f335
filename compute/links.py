"""The undirected simple view of a graph, and what a change does to it.

A **link** {u, v}, u != v, is there while at least one of the arcs (u, v), (v, u) is. Its **arcs** are how many of
the two are: 1 or 2 in a directed graph, and always 2 in an undirected one, which stores both. Loops are no links.

Rows are those of the graph after the change. What was before is that with the **overlay** laid over it: the links
that the change made or ended, or whose arcs it changed. So a batch needs no copy of a row of before, and in it
insertions and deletions have no order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..gpma.edges import HALF, LOW, Int, Keys, Vertices, destinations, distinct, sources, transpose
from ..gpma.intrinsics import uncounted
from ..gpma.rows import RowView, runs
from ..gpma.sorted_keys import first_at
from ..gpma.splice import spliced
from ..partition.graph import Graph, GraphChange

Arcs = npt.NDArray[np.uint8]

NOW_SHIFT = 2
"""Two numbers of arcs in one: ``before | after << NOW_SHIFT``."""

SAME = 1 | 1 << NOW_SHIFT
"""One arc, before as after."""


class Links(NamedTuple):
    """Links that a change touched, each in both directions.

    ``keys`` uint64, ascending; ``before`` and ``after`` uint8, the arcs of each link then and now, which differ.
    """

    keys: Keys
    before: Arcs
    after: Arcs

    def made_or_ended(self) -> Links:
        """Those that were not there before, or are not there now, with one arc each."""
        chosen = (self.before == 0) | (self.after == 0)
        return Links(self.keys[chosen], np.minimum(self.before[chosen], 1), np.minimum(self.after[chosen], 1))


def changed_links(graph: Graph, change: GraphChange) -> Links:
    """The links whose arcs differ by a change, which the graph has taken. O(batch log graph): no row is read."""
    inserted, deleted = (_without_loops(edges.keys) for edges in (change.arcs.inserted, change.arcs.deleted))
    touched = np.concatenate([inserted, deleted])
    if not graph.directed:
        order = touched.argsort(kind="stable")
        is_new = order < inserted.size
        return Links(touched[order], np.where(is_new, np.uint8(0), np.uint8(2)), 2 * is_new.astype(np.uint8))
    keys = distinct(np.concatenate([touched, transpose(touched)]))
    now = graph.has_edge(keys)
    then = now.copy()
    then[np.searchsorted(keys, inserted)] = False
    then[np.searchsorted(keys, deleted)] = True
    back = np.searchsorted(keys, transpose(keys))
    before, after = (arc.view(np.uint8) + arc.view(np.uint8)[back] for arc in (then, now))
    differs = before != after
    return Links(keys[differs], before[differs], after[differs])


def all_entries(graph: Graph) -> int:
    """How many entries the rows have in all that are read to see every link: in-rows of a directed graph, too."""
    return graph.n_arcs * (2 if graph.directed else 1)


def _without_loops(keys: Keys) -> Keys:
    kept: Keys = keys[sources(keys) != destinations(keys)]
    return kept


# -- rows, for kernels --------------------------------------------------------------------------------------------


@uncounted
def entries_of(out: RowView, in_: RowView, both: bool, v: Int) -> Int:
    """How many entries the rows of v have that are read: ``both``, or its out-row alone."""
    return np.int64(out.degrees[v]) + (np.int64(in_.degrees[v]) if both else np.int64(0))


@uncounted
@spliced
def list_links(out: RowView, in_: RowView, both: bool, u: Int, tails: Vertices, row: Vertices, arcs: Arcs) -> Int:
    """The links of u as the graph has them: their other ends to ``row``, ascending, their arcs to ``arcs``.

    ``both``: the graph is directed, and a link may be in the out-row, the in-row, or both; else the in-row is not
    read, and every link has two arcs. Arcs are SAME times their number. ``tails`` is room for the out-row.
    Returns how many links there are.
    """
    n = np.int64(0)
    loop = np.uint64(u)
    if not both:
        for slot, stop in runs(out, u):
            for k in range(slot, stop):
                v = out.keys[k] & LOW
                row[n] = v
                arcs[n] = 2 * SAME
                n += v != loop
        return n
    n_out = np.int64(0)
    for slot, stop in runs(out, u):
        for k in range(slot, stop):
            v = out.keys[k] & LOW
            tails[n_out] = v
            n_out += v != loop
    # The in-row goes behind the room that merging takes before it is read.
    end = n_out
    for slot, stop in runs(in_, u):
        for k in range(slot, stop):
            v = in_.keys[k] & LOW
            row[end] = v
            end += v != loop
    # Without branches, since each would be wrong half the time.
    i, j = np.int64(0), n_out
    while i < n_out and j < end:
        x, y = tails[i], row[j]
        row[n] = min(x, y)
        arcs[n] = SAME + SAME * (x == y)
        i += x <= y
        j += y <= x
        n += 1
    while i < n_out:
        row[n] = tails[i]
        arcs[n] = SAME
        i += 1
        n += 1
    while j < end:
        row[n] = row[j]
        arcs[n] = SAME
        j += 1
        n += 1
    return n


@uncounted
def lay_over(links: Links, u: Int, row: Vertices, arcs: Arcs, n: Int) -> Int:
    """Lay the changed links of u over its n links of now, in place: how many there are then, with those that
    ended.

    Each has its arcs before and after, as NOW_SHIFT says.
    """
    keys, before, after = links.keys, links.before, links.after
    first = first_at(keys, 0, keys.size, np.uint64(u) << HALF)
    end = first_at(keys, first, keys.size, (np.uint64(u) + np.uint64(1)) << HALF)
    ended = np.int64(0)
    for k in range(first, end):
        ended += after[k] == 0
    i, to = np.int64(n) - 1, np.int64(n) + ended - 1
    for back in range(end - first):
        k = end - 1 - back
        v = keys[k] & LOW
        while i >= 0 and np.uint64(row[i]) > v:
            row[to] = row[i]
            arcs[to] = arcs[i]
            i -= 1
            to -= 1
        i -= after[k] != 0
        row[to] = v
        arcs[to] = before[k] | after[k] << NOW_SHIFT
        to -= 1
    return np.int64(n) + ended
