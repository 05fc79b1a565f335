"""Looking around in a graph between two changes: breadth-first searches, and edges between sets of vertices.

Both stop after they have read so many entries of rows (``reads_max``; a row that is begun counts as one). They
go on from there as long as the graph is the same. So what takes long is done in pieces, and what is found does
not depend on their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..gpma.edges import HALF, LOW, EdgeList, Int, Vertices, Weights, frozen
from ..gpma.host.array import PackedMemoryArray
from ..gpma.intrinsics import uncounted
from ..gpma.rows import RowView, find_on, runs
from ..gpma.sorted_keys import first_at
from ..gpma.splice import spliced

LOOKUP_READS = 12
"""Looking a vertex up in a row takes as long as reading so many entries, and counts as much."""
LEAST_READS = 2
"""Fewer would lead nowhere."""

# What a vertex is among those that edges lead to: one of them, and one of those that both ends may be.
_TARGET, _COMMON = np.uint8(1), np.uint8(2)

Flags = npt.NDArray[np.bool_]


Ahead = Callable[[Vertices], tuple[Sequence[RowView], int | None]]
"""The rows, of one side or two, of the first ones of these vertices, and of how many; None: of all there are."""


@dataclass(frozen=True, slots=True)
class SearchPlace:
    """Where a search goes on: at the row of ``found[index]``, on this side, from vertex ``first`` on."""

    index: int = 0
    side: int = 0
    first: int = 0


@dataclass(frozen=True, slots=True)
class Search:
    """A breadth-first search, as far as it has come.

    ``found``: uint32[m], in the order in which they were found; ``hops``: uint32[m], how far each is. ``place``:
    where to go on; None: it is over. ``truncated``: there are more than those found. ``reads``: entries read.
    """

    found: Vertices
    hops: Vertices
    place: SearchPlace | None
    truncated: bool = False
    reads: int = 0

    @classmethod
    def begin(cls, vertex: int) -> Search:
        """From one existing vertex."""
        return cls(np.array([vertex], np.uint32), np.zeros(1, np.uint32), SearchPlace())


@dataclass(frozen=True, slots=True)
class EdgesPlace:
    """Where to go on looking for edges: at the row of ``sources[index]``, from vertex ``first`` on."""

    index: int = 0
    first: int = 0


@dataclass(frozen=True, slots=True)
class EdgesFound:
    """``src`` and ``dst`` uint32[m], ascending by both, and ``weights`` float32[m], None where there are none.

    ``size``: how many there are, also of those that were not wanted. ``place`` and ``reads``: as of ``Search``.
    """

    src: Vertices
    dst: Vertices
    weights: Weights | None
    size: int
    place: EdgesPlace | None
    reads: int


def search(ahead: Ahead, n_vertices: int, begun: Search, *, hops_max: int, limit: int, reads_max: int) -> Search:
    """Go on with a search that is not over, along the rows of one side or of two.

    At most ``limit`` vertices are found, those of the beginning included, and none farther than ``hops_max``.
    """
    found, reads_end = begun, begun.reads + reads_max
    while found.place is not None and found.reads < reads_end:
        sides, n_rows = ahead(found.found[found.place.index :])
        left = reads_end - found.reads
        found = _searched(sides, n_rows, n_vertices, found, hops_max=hops_max, limit=limit, reads_max=left)
        if n_rows is None:
            break
    return found


def _searched(
    sides: Sequence[RowView],
    n_rows: int | None,
    n_vertices: int,
    begun: Search,
    *,
    hops_max: int,
    limit: int,
    reads_max: int,
) -> Search:
    assert begun.place is not None
    known, place = begun.found.size, begun.place
    room = max(min(limit, n_vertices), known)
    into = _Found(np.empty(room, np.uint32), np.empty(room, np.uint32), np.zeros(n_vertices, bool))
    into.found[:known], into.hops[:known] = begun.found, begun.hops
    into.seen[begun.found] = True
    at = known, place.index, place.side, place.first
    stop = _NO_STOP if n_rows is None else place.index + n_rows
    both = len(sides) > 1
    n, index, side, first, reads = _search(sides[0], sides[-1], both, into, at, stop, hops_max, reads_max)
    truncated = n > into.found.size
    over = truncated or index == n or into.hops[index] >= hops_max
    n = min(n, into.found.size)
    following = None if over else SearchPlace(index, side, first)
    return Search(into.found[:n].copy(), into.hops[:n].copy(), following, truncated, begun.reads + reads)


def edges_between(
    ahead: Ahead,
    n_vertices: int,
    sources: Vertices,
    targets: Vertices,
    common: Vertices | None = None,
    *,
    weighted: bool,
    limit: int,
    reads_max: int,
    place: EdgesPlace | None = None,
) -> EdgesFound:
    """The first ``limit`` of the edges from any of the sources to any of the targets, and how many there are.

    Both ascend, each once; those that are no vertices have no edges. ``common``: of an undirected graph, whose
    edges are listed once, what is among the sources and the targets. A row that is longer than it would take to
    look all targets up in it is not read.
    """
    marks = np.zeros(n_vertices, np.uint8)
    sources, targets = frozen(sources), frozen(targets[targets < n_vertices])
    marks[targets] = _TARGET
    if common is not None:
        marks[common[common < n_vertices]] |= _COMMON
    at = place or EdgesPlace()
    parts: list[EdgesFound] = []
    while True:
        (rows,), n_rows = ahead(sources[at.index :])
        wanted = sources if n_rows is None else frozen(sources[: at.index + n_rows])
        room = min(limit, reads_max + _LEAF_SLOTS_MAX)
        src, dst = np.empty(room, np.uint32), np.empty(room, np.uint32)
        into = _Listed(marks, src, dst, np.empty(room if weighted else 0, np.float32))
        size, index, first, reads = _edges_between(
            rows, n_vertices, wanted, targets, into, at.index, at.first, reads_max
        )
        n = min(size, room)
        place = EdgesPlace(index, first) if index < sources.size else None
        found = into.weights[:n].copy() if weighted else None
        part = EdgesFound(src[:n].copy(), dst[:n].copy(), found, size, place, reads)
        parts.append(part)
        limit -= part.src.size
        reads_max -= part.reads
        if n_rows is None or part.place is None or reads_max <= 0:
            return _joined(parts, weighted=weighted)
        at = part.place


def _joined(parts: Sequence[EdgesFound], *, weighted: bool) -> EdgesFound:
    """What was found in parts, one after the other, with limits that counted what was found before."""
    if len(parts) == 1:
        return parts[0]
    weights = [part.weights for part in parts if part.weights is not None]
    return EdgesFound(
        np.concatenate([part.src for part in parts]),
        np.concatenate([part.dst for part in parts]),
        np.concatenate(weights) if weighted else None,
        sum(part.size for part in parts),
        parts[-1].place,
        sum(part.reads for part in parts),
    )


_NO_STOP = 1 << 62
_LEAF_SLOTS_MAX = 64
"""By so many entries may more be read than is asked for."""


# -- kernels ------------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """Where a search writes: ``found`` and ``hops`` uint32[room]; ``seen`` bool[n_vertices]."""

    found: Vertices
    hops: Vertices
    seen: Flags


class _Listed(NamedTuple):
    """Which edges are listed, and where they are written. ``marks`` uint8[n_vertices]: what each vertex is among
    the ends of edges (``_TARGET``, ``_COMMON``). ``src``, ``dst`` uint32[room]; ``weights`` float32[room], or
    none."""

    marks: npt.NDArray[np.uint8]
    src: Vertices
    dst: Vertices
    weights: Weights


@uncounted
def _search(
    rows: RowView,
    others: RowView,
    both: bool,
    into: _Found,
    at: tuple[Int, Int, Int, Int],
    stop: Int,
    hops_max: int,
    reads_max: int,
) -> tuple[Int, Int, Int, Int, Int]:
    """Go on at (how many are found, index, side, first); the same then, at most one leaf more than there is room
    for, and the entries read."""
    n, index, side, first = at
    room, reads, going = into.found.size, np.int64(0), True
    while going and index < min(n, stop) and n <= room and reads < reads_max and into.hops[index] < hops_max:
        reads += 1
        if side == 0:
            n, reads, first = _visit(rows, index, first, into, n, reads, reads_max)
            going = first < 0
            if going:
                first, side = np.int64(0), np.int64(1)
        if going and both:
            n, reads, first = _visit(others, index, first, into, n, reads, reads_max)
            going = first < 0
        if going:
            first, side = np.int64(0), np.int64(0)
            index += 1
    return n, index, side, first, reads


@uncounted
@spliced
def _visit(
    rows: RowView, index: Int, first: Int, into: _Found, n: Int, reads: Int, reads_max: Int
) -> tuple[Int, Int, Int]:
    """Find the neighbours of ``found[index]`` from vertex ``first`` on: (how many are found, read, what is next or
    -1)."""
    found, hops, seen = into.found, into.hops, into.seen
    u, hop = found[index], hops[index] + np.uint32(1)
    first_key = (np.uint64(u) << HALF) | np.uint64(first)
    stopped = np.int64(-1)
    for slot, stop in runs(rows, u):
        if stop > slot and rows.keys[stop - 1] >= first_key:
            if reads >= reads_max or n > found.size:
                stopped = np.int64(rows.keys[slot] & LOW)
                break
            for i in range(slot, stop):
                v = rows.keys[i] & LOW
                if rows.keys[i] >= first_key and not seen[v]:
                    seen[v] = True
                    if n < found.size:
                        found[n] = np.uint32(v)
                        hops[n] = hop
                    n += 1
            reads += stop - slot
    return n, reads, stopped


@uncounted
def _edges_between(
    rows: RowView,
    n_vertices: int,
    sources: Vertices,
    targets: Vertices,
    into: _Listed,
    index: Int,
    first: Int,
    reads_max: int,
) -> tuple[Int, Int, Int, Int]:
    """(how many edges there are, index, first, entries read)."""
    size, reads = np.int64(0), np.int64(0)
    while index < sources.size and reads < reads_max:
        u = np.int64(sources[index])
        reads += 1
        if u < n_vertices and rows.degrees[u] > 0 and targets.size > 0:
            if np.int64(rows.degrees[u]) > LOOKUP_READS * targets.size:
                size, reads, first = _look_up(rows, u, first, targets, into, size, reads, reads_max)
            else:
                size, reads, first = _read_row(rows, u, first, into, size, reads, reads_max)
            if first >= 0:
                break
        first = np.int64(0)
        index += 1
    return size, index, first, reads


@uncounted
@spliced
def _read_row(
    rows: RowView, u: Int, first: Int, into: _Listed, size: Int, reads: Int, reads_max: Int
) -> tuple[Int, Int, Int]:
    """The targets in a row from vertex ``first`` on: (how many edges, entries read, what is next or -1)."""
    marks = into.marks
    first_key = (np.uint64(u) << HALF) | np.uint64(first)
    stopped = np.int64(-1)
    for slot, stop in runs(rows, u):
        if stop > slot and rows.keys[stop - 1] >= first_key:
            if reads >= reads_max:
                stopped = np.int64(rows.keys[slot] & LOW)
                break
            for i in range(slot, stop):
                if marks[rows.keys[i] & LOW] and rows.keys[i] >= first_key:
                    size = _list_edge(rows, i, into, size)
            reads += stop - slot
    return size, reads, stopped


@uncounted
def _look_up(
    rows: RowView, u: Int, first: Int, targets: Vertices, into: _Listed, size: Int, reads: Int, reads_max: Int
) -> tuple[Int, Int, Int]:
    """As ``_read_row``, looking each target up in the row."""
    leaf = np.int64(rows.row_leaf[u])
    stopped = np.int64(-1)
    for k in range(first_at(targets, np.int64(0), targets.size, first), targets.size):
        v = np.int64(targets[k])
        if reads >= reads_max:
            stopped = v
            break
        reads += LOOKUP_READS
        leaf, slot = find_on(rows, leaf, (np.uint64(u) << HALF) | np.uint64(v))
        if slot >= 0:
            size = _list_edge(rows, slot, into, size)
    return size, reads, stopped


@uncounted
def _list_edge(rows: RowView, slot: Int, into: _Listed, size: Int) -> Int:
    """Write down the edge in a slot, as far as there is room: how many there are with it. Where both arcs of an
    edge would be listed, only that from the smaller vertex is."""
    u, v = np.int64(rows.keys[slot] >> HALF), np.int64(rows.keys[slot] & LOW)
    if u > v and into.marks[u] & into.marks[v] & _COMMON:
        return size
    if size < into.src.size:
        into.src[size], into.dst[size] = np.uint32(u), np.uint32(v)
        if into.weights.size:
            into.weights[size] = rows.weights[slot]
    return size + 1


def warm_up() -> None:
    """Compile the kernels, or load them from the cache."""
    array = PackedMemoryArray(weighted=True)
    try:
        array.ensure_vertices(2)
        array.load(EdgeList(np.ones(1, np.uint64), np.ones(1, np.float32)))
        rows = array.view()
        search(lambda _: ((rows,), None), 2, Search.begin(0), hops_max=1, limit=2, reads_max=1)
        both = np.arange(2, dtype=np.uint32)
        edges_between(lambda _: ((rows,), None), 2, both, both, weighted=True, limit=1, reads_max=8)
    finally:
        array.close()
