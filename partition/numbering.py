"""In which order vertices are numbered, and whether another order pays.

Programs keep columns with an entry for each dense vertex, and gather from them along rows: it costs a cache line
for every neighbour that lies far from those before it. Order of first appearance keeps neighbours together where
the stream does (a crawl, a map), and hubs where edges come at random; it is worth little where edges come in an
order of their own, and less as vertices come and go. Then vertices are numbered anew, breadth first from the hubs
(Cuthill, McKee: Reducing the bandwidth of sparse symmetric matrices, 1969, without their order within a level), in
what was the order of the neighbours before. ``docs/benchmarks.md`` has what that is worth, and which orders are
not better.

How scattered a numbering is, is counted: the share of all gathers of one pass over the in-rows that a small cache
would miss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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

_APPRAISAL_BYTES, _RENUMBERING_BYTES = 24, 56
"""What either takes for an arc while it goes on, at most."""

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


def appraise(edges: EdgeList, n_vertices: int, dead: Vertices, *, directed: bool, by_heads: ByHeads) -> Appraisal:
    """Whether these arcs (ascending; of an undirected graph both directions) are better numbered anew.

    Costs one pass over the arcs where the numbering is good, else a search over them; ``dead`` vertices have none.

    Raises:
        MemoryError: there is not enough to tell.
    """
    if n_vertices <= CACHE_LINES * LINE_ENTRIES:
        return Appraisal()
    Memory().require(_APPRAISAL_BYTES * len(edges))
    keys = frozen(edges.keys)
    in_keys = frozen(by_heads(EdgeList(keys)).keys) if directed else keys
    in_offsets = _offsets(in_keys, n_vertices)
    present = np.arange(n_vertices, dtype=np.uint32)
    scatter = _missed(in_keys, in_offsets, present, present) / max(1, in_keys.size)
    if scatter < SCATTERED_MIN:
        return Appraisal(scatter)
    offsets = _offsets(keys, n_vertices) if directed else np.zeros(n_vertices + 1, np.int64)
    order = breadth_first(in_keys, in_offsets, keys, offsets, dead)
    then = _missed(in_keys, in_offsets, order, places_of(order, n_vertices)) / in_keys.size
    return Appraisal(scatter, then, order if then <= LEFT_MAX * scatter else None)


def breadth_first(
    in_keys: Keys, in_offsets: Offsets, out_keys: Keys, out_offsets: Offsets, dead: Vertices
) -> Vertices:
    """All vertices but the dead, breadth first along arcs of both directions, the first with the most arcs first.

    Rows of arcs ascending, those of vertex v from ``offsets[v]`` on; without out-arcs where they are the in-arcs.
    """
    degrees = np.diff(in_offsets) + np.diff(out_offsets)
    roots = np.argsort(-degrees, kind="stable").astype(np.uint32)
    alive = np.ones(degrees.size, bool)
    alive[dead] = False
    order = np.empty(degrees.size - dead.size, np.uint32)
    _search(in_keys, in_offsets, out_keys, out_offsets, roots[alive[roots]], order)
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
    Memory().require(_RENUMBERING_BYTES * len(edges))
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
def _search(
    in_keys: Keys, in_offsets: Offsets, out_keys: Keys, out_offsets: Offsets, roots: Vertices, order: Vertices
) -> None:
    """Fill ``order`` breadth first, from one root after the other that is not reached yet."""
    seen: npt.NDArray[np.bool_] = np.zeros(in_offsets.size - 1, np.bool_)
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
            for keys, offsets in ((in_keys, in_offsets), (out_keys, out_offsets)):
                for i in range(offsets[v], offsets[v + 1]):
                    head = keys[np.uintp(i)] & LOW
                    if not seen[np.uintp(head)]:
                        seen[np.uintp(head)] = True
                        order[end] = np.uint32(head)
                        end += 1


def warm_up() -> None:
    """Compile the kernels, or load them from the cache."""
    keys, offsets = frozen(np.ones(1, np.uint64)), np.array([0, 1, 1], np.int64)
    order = breadth_first(keys, offsets, keys, offsets, np.empty(0, np.uint32))
    _missed(keys, offsets, order, order)
