"""In which order vertices are numbered, and whether another order pays.

Programs keep columns with an entry for each dense vertex, and gather from them along rows: it costs a cache line
for every neighbour that lies far from those before it. Order of first appearance keeps neighbours together where
the stream does (a crawl, a map), and hubs where edges come at random; it is worth little where edges come in an
order of their own, and less as vertices come and go. Then vertices are numbered anew, breadth first from the hubs
(Cuthill, McKee: Reducing the bandwidth of sparse symmetric matrices, 1969, without their order within a level), in
what was the order of the neighbours before. ``docs/measurements/storage.md`` has what that is worth, and which
orders are not better.

How scattered a numbering is, is counted: the share of all gathers of one pass over the in-rows that a small cache
would miss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..gpma.edges import HALF, LOW, EdgeList, Keys, Offsets, Vertices, destinations, frozen, pack, sources
from ..gpma.memory import Memory

LINE_ENTRIES = 8
CACHE_LINES = 1 << 14
"""A megabyte of columns of 8 bytes: what a core's own cache can keep of one beside everything else."""
SCATTERED_MIN = 1 / 16
"""Where fewer gathers miss, nothing is to be gained."""
LEFT_MAX = 0.7
"""Another numbering pays where at most this share of the misses is left."""

# What either takes for an arc while it goes on, at most; and besides, for each vertex.
_APPRAISAL_BYTES, _RENUMBERING_BYTES, _VERTEX_BYTES = 24, 56, 48

ByHeads = Callable[[EdgeList], EdgeList]
"""Arcs in any order, seen from their heads: by head, and arcs with one head in the order that they had."""


@dataclass(frozen=True, slots=True)
class Appraisal:
    """What a numbering is worth.

    ``scatter``: the share of gathers that miss, 0 where all vertices fit into a cache. ``order``: where another
    numbering pays, the vertices in its order, without those that are dead; ``scatter_then``: what its scatter is.
    """

    scatter: float = 0.0
    scatter_then: float | None = None
    order: Vertices | None = None


def appraise(
    edges: EdgeList,
    n_vertices: int,
    dead: Vertices,
    *,
    directed: bool,
    by_heads: ByHeads,
    known: float | None = None,
) -> Appraisal:
    """Whether these arcs (ascending; of an undirected graph both directions) are better numbered anew.

    Costs a pass or two over the arcs where the numbering is good, else a search over them, too. ``dead`` vertices
    have none. ``known``: what the scatter of the other numbering was when it was last looked at, which is not done
    again while that is no better.

    Raises:
        MemoryError: there is not enough to tell.
    """
    if n_vertices <= CACHE_LINES * LINE_ENTRIES:
        return Appraisal()
    Memory().require(_APPRAISAL_BYTES * len(edges) + _VERTEX_BYTES * n_vertices)
    rows = Rows.of(edges, n_vertices, directed=directed, by_heads=by_heads)
    present = scatter(rows, np.arange(n_vertices, dtype=np.uint32))
    if present < SCATTERED_MIN or (known is not None and known > LEFT_MAX * present):
        return Appraisal(present, known)
    order = breadth_first(rows, dead)
    then = scatter(rows, order)
    return Appraisal(present, then, order if then <= LEFT_MAX * present else None)


class Rows(NamedTuple):
    """Arcs in both directions, each row ascending: that of vertex v from ``offsets[v]`` on.

    Of an undirected graph there are no out-arcs: the in-arcs are all.
    """

    in_keys: Keys
    in_offsets: Offsets
    out_keys: Keys
    out_offsets: Offsets

    @classmethod
    def of(cls, edges: EdgeList, n_vertices: int, *, directed: bool, by_heads: ByHeads) -> Rows:
        """Those of arcs as ``appraise`` takes them."""
        keys = frozen(edges.keys)
        if not directed:
            return cls(keys, _offsets(keys, n_vertices), keys, np.zeros(n_vertices + 1, np.int64))
        in_keys = frozen(by_heads(EdgeList(keys)).keys)
        return cls(in_keys, _offsets(in_keys, n_vertices), keys, _offsets(keys, n_vertices))


def scatter(rows: Rows, order: Vertices) -> float:
    """The share of gathers that miss in a pass over the in-rows when vertices are numbered in this order.

    ``order`` has each vertex but dead ones.
    """
    places = places_of(order, rows.in_offsets.size - 1)
    return _missed(rows.in_keys, rows.in_offsets, order, places) / max(1, rows.in_keys.size)


def breadth_first(rows: Rows, dead: Vertices) -> Vertices:
    """All vertices but the dead, breadth first along arcs of both directions, from those with the most arcs."""
    degrees = np.diff(rows.in_offsets) + np.diff(rows.out_offsets)
    roots = np.argsort(-degrees, kind="stable").astype(np.uint32)
    alive = np.ones(degrees.size, bool)
    alive[dead] = False
    order = np.empty(degrees.size - dead.size, np.uint32)
    _search(rows, roots[alive[roots]], order)
    return order


def places_of(order: Vertices, n_vertices: int) -> Vertices:
    """The place of each vertex (uint32[n_vertices]) in an order; of those that are not in it, anything."""
    places = np.zeros(n_vertices, np.uint32)
    places[order] = np.arange(order.size, dtype=np.uint32)
    return places


def renumbered(edges: EdgeList, order: Vertices, n_vertices: int, by_heads: ByHeads) -> EdgeList:
    """These arcs when each vertex is numbered by its place in ``order``, ascending.

    Raises:
        MemoryError: there is not enough.
    """
    Memory().require(_RENUMBERING_BYTES * len(edges) + _VERTEX_BYTES * n_vertices)
    places = places_of(order, n_vertices)
    keys = pack(places[sources(edges.keys)], places[destinations(edges.keys)])
    # Twice, since the second time leaves in order what the first has put in order.
    return by_heads(by_heads(EdgeList(keys, edges.weights)))


def _offsets(keys: Keys, n_vertices: int) -> Offsets:
    """Where the row of each vertex begins, and where the last one ends."""
    firsts = np.arange(n_vertices + 1, dtype=np.uint64) << HALF
    return np.searchsorted(keys, firsts).astype(np.int64)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _missed(keys: Keys, offsets: Offsets, order: Vertices, places: Vertices) -> int:
    """How many heads of arcs, row after row in this order, are missed in a direct-mapped cache."""
    cache = np.full(CACHE_LINES, -1, np.int64)
    missed = 0
    for v in order:
        for i in range(offsets[v], offsets[np.int64(v) + 1]):
            line = np.int64(places[np.uintp(keys[np.uintp(i)] & LOW)]) // LINE_ENTRIES
            slot = line % CACHE_LINES
            if cache[slot] != line:
                cache[slot] = line
                missed += 1
    return missed


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _search(rows: Rows, roots: Vertices, order: Vertices) -> None:
    """Fill ``order`` breadth first, from one root after the other that is not reached yet."""
    seen: npt.NDArray[np.bool_] = np.zeros(rows.in_offsets.size - 1, np.bool_)
    first, end = 0, 0
    for root in roots:
        if seen[root]:
            continue
        seen[root] = True
        order[end] = root
        end += 1
        while first < end:
            v = np.int64(order[first])
            first += 1
            for keys, offsets in ((rows.in_keys, rows.in_offsets), (rows.out_keys, rows.out_offsets)):
                for i in range(offsets[v], offsets[v + 1]):
                    head = keys[np.uintp(i)] & LOW
                    if not seen[np.uintp(head)]:
                        seen[np.uintp(head)] = True
                        order[end] = np.uint32(head)
                        end += 1


def warm_up() -> None:
    """Compile the kernels, or load them from the cache."""
    rows = Rows.of(EdgeList(np.ones(1, np.uint64)), 2, directed=False, by_heads=lambda arcs: arcs)
    scatter(rows, breadth_first(rows, np.empty(0, np.uint32)))
