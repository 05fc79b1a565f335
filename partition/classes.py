"""Classes of rows: kept by what an epoch changed, counted and listed by passes over all vertices.

A vertex is in one of 64 classes, by the number of edges in its rows (out and in, powers of two) and by the epochs
since they changed last (up to 16, 256, 4,096, or more; in steps of 4). What is kept for each vertex is when
that was, 2 bytes, and whether it moved within the last epochs, 1 byte; an epoch costs what it touched. A survey
is one pass over all vertices, a list one more; they are made when something is decided.

Within a class vertices are taken by a hash of their dense ids, then by id, so that what is listed is as good as
drawn, and the same every time. Each vertex has a cell, its class and some bits of its hash; the survey counts by
cells, after which the list needs no sorting.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..gpma.edges import Int, Vertices, frozen
from ..gpma.intrinsics import uncounted, uncounted_inner
from ..gpma.row_reads import CLASSES as CLASSES
from ..gpma.vertex_columns import grown, new_column
from .placement import HOST
from .policies import Classes, Counts, Floats

DEVICE = 1
"""The side of the device."""

NO_LIMIT = 1 << 62
"""More edges than there are."""
REST = 64
"""Epochs for which a row stays where it moved to."""

_AGES = 4
# A tick has so many epochs, and the ages end with so many ticks.
_TICK = 4
_YOUNG, _RECENT, _KNOWN = 4, 64, 1024
_AGE = _TICK * np.array([0, _YOUNG, _RECENT, _KNOWN], np.float64)
YOUNG = _TICK * (_YOUNG + 1)
"""After so many epochs without a change no row is in the class of the youngest."""
_CELLS = 64
_TICKS = 1 << 16

Bytes = npt.NDArray[np.uint8]
Ticks = npt.NDArray[np.uint16]


class Stock(NamedTuple):
    """Whose the rows are, and how long.

    ``owner`` uint8[n], the host, the device, or a side that is left alone; ``out_degrees`` uint32[n];
    ``in_degrees`` uint32[n], or uint32[0] where there are no in-rows beside the out-rows. Of several arrays, all
    edges count.
    """

    owner: Bytes
    out_degrees: Vertices
    in_degrees: Vertices


class Listed(NamedTuple):
    """``vertices`` uint32[m] in the order in which they are to move, and the ``edges`` int64[m] in their rows."""

    vertices: Vertices
    edges: Counts


@dataclass(frozen=True, slots=True)
class Survey:
    """What one pass saw. By side (host, device) and class: ``rows`` and ``edges`` int64[2, 64] of all vertices,
    ``movable`` int64[2, 64], the edges of those that may move."""

    rows: Counts
    edges: Counts
    _cell_vertices: Counts
    _cell_edges: Counts
    _columns: _Columns

    @property
    def movable(self) -> Counts:
        movable: Counts = self._cell_edges.sum(axis=2)
        return movable

    def classes(self, reads: Floats | None = None) -> Classes:
        """The classes of both sides, ``reads`` float64[64] being the edges that an epoch reads of each.

        None: it is not known, and each edge is read once; so often as the others where there are no edges.
        """
        rows, edges = self.rows.sum(axis=0), self.edges.sum(axis=0)
        heat = np.ones(CLASSES)
        if reads is not None:
            heat[:] = reads.sum() / max(1, edges.sum())
            np.divide(reads, edges, out=heat, where=edges > 0)
        return Classes(
            np.maximum(1, edges / np.maximum(1, rows)), rows, edges, heat, np.tile(_AGE, CLASSES // _AGES)
        )

    def of_vertices(self) -> Bytes:
        """The class of each vertex (uint8[n]); one whose rows are empty is in the class of those with one edge."""
        classes = np.empty(self._columns.owner.size, np.uint8)
        _classes_of(self._columns, classes)
        return classes

    def listed(self, side: int, price: Floats, edges: float) -> Listed:
        """The movable vertices of a side with the lowest prices (float64[64]), until they have so many edges."""
        _, rank = np.unique(price, return_inverse=True)
        shape = (int(rank.max()) + 1, _CELLS)
        n_vertices, n_edges = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        np.add.at(n_vertices, rank, self._cell_vertices[side])
        np.add.at(n_edges, rank, self._cell_edges[side])
        last = int(np.searchsorted(np.cumsum(n_edges), edges))
        places = np.cumsum(n_vertices) - n_vertices.ravel()
        size = int(n_vertices.ravel()[: last + 1].sum()) if edges > 0 else 0
        found, lengths = np.empty(size, np.uint32), np.empty(size, np.int64)
        if size:
            _list(self._columns, side, rank.astype(np.int64), last, places, found, lengths)
        enough = int(np.searchsorted(np.cumsum(lengths), edges)) + 1
        return Listed(found[:enough], lengths[:enough])


class _Columns(NamedTuple):
    """What the kernels read of each vertex, and the bounds of what may move."""

    owner: Bytes
    out_degrees: Vertices
    in_degrees: Vertices
    changed: Ticks
    moved: Bytes
    tick: int
    edges_max: int


def survey(stock: Stock) -> Survey:
    """Of rows of which nothing else is known: all are old, and may move."""
    never = np.zeros(stock.owner.size, np.uint16)
    return _survey_of(stock, never, np.zeros(stock.owner.size, np.uint8), _TICKS - 1, NO_LIMIT)


class RowAges:
    """When rows changed and moved."""

    def __init__(self) -> None:
        self._epoch = 0
        self._tick = _TICKS // 2
        self._changed: Ticks = new_column(0, np.uint16)
        self._moved: Bytes = new_column(0, np.uint8)
        self._moves: deque[tuple[int, Vertices]] = deque()

    def advance(self) -> None:
        """An epoch more; who moved ``REST`` epochs ago may move again."""
        self._epoch += 1
        if self._epoch % _TICK == 0:
            self._tick += 1
            if self._tick == _TICKS:
                self._forget_half()
        while self._moves and self._moves[0][0] + REST <= self._epoch:
            self._moved[self._moves.popleft()[1]] -= 1

    def changed(self, vertices: Vertices) -> None:
        """Rows of these vertices have changed; each may be named more than once."""
        if vertices.size:
            self._reach(int(vertices.max()) + 1)
            self._changed[vertices] = self._tick

    def moved(self, vertices: Vertices) -> None:
        """These vertices move now, each being named once."""
        if vertices.size:
            self._reach(int(vertices.max()) + 1)
            self._moved[vertices] += 1
            self._moves.append((self._epoch, vertices))

    def survey(self, stock: Stock, edges_max: int, *, rested: bool = True) -> Survey:
        """Rows may move unless they are longer, or, where ``rested``, have moved lately."""
        n = stock.owner.size
        self._reach(n)
        moved = self._moved[:n] if rested else np.zeros(n, np.uint8)
        return _survey_of(stock, self._changed[:n], moved, self._tick, edges_max)

    def classes(self, vertices: Vertices, edges: Counts) -> Bytes:
        """The class (uint8[m]) of each of some vertices, whose rows have so many edges: to count reads by."""
        self._reach(int(vertices.max(initial=0)) + 1)
        classes = np.empty(vertices.size, np.uint8)
        _classes(frozen(vertices), frozen(edges), frozen(self._changed), self._tick, classes)
        return classes

    def _reach(self, n_vertices: int) -> None:
        self._changed = grown(self._changed, n_vertices, 0)
        self._moved = grown(self._moved, n_vertices, 0)

    def _forget_half(self) -> None:
        """Clocks of 16 bits go on from the middle; what lies before the first half is old."""
        half = np.uint16(_TICKS // 2)
        self._tick -= int(half)
        np.maximum(self._changed, half, out=self._changed)
        self._changed -= half


def _survey_of(stock: Stock, changed: Ticks, moved: Bytes, tick: int, edges_max: int) -> Survey:
    owner, out_degrees, in_degrees, changed, moved = (frozen(column) for column in (*stock, changed, moved))
    columns = _Columns(owner, out_degrees, in_degrees, changed, moved, tick, edges_max)
    rows, edges = np.zeros((2, CLASSES), np.int64), np.zeros((2, CLASSES), np.int64)
    cell_vertices = np.zeros((2, CLASSES, _CELLS), np.int64)
    cell_edges = np.zeros_like(cell_vertices)
    _survey(columns, rows, edges, cell_vertices, cell_edges)
    return Survey(rows, edges, cell_vertices, cell_edges, columns)


# -- kernels ------------------------------------------------------------------------------------------------------


@uncounted_inner
def _class_of(edges: Int, changed: Int, tick: Int) -> Int:
    """The class of a vertex whose rows have so many edges and changed last at that tick."""
    degree_class = np.int64(0)
    while edges > 1 and degree_class < CLASSES // _AGES - 1:
        edges >>= 1
        degree_class += 1
    age = np.int64(tick) - np.int64(changed)
    age_class = np.int64(age > _YOUNG) + np.int64(age > _RECENT) + np.int64(age > _KNOWN)
    return degree_class * _AGES + age_class


@uncounted_inner
def _cell_of(v: Int) -> Int:
    """Some bits of the hash of a vertex (Knuth's multiplicative one, by the golden ratio)."""
    return np.int64((np.uint64(v) * np.uint64(0x9E37_79B9_7F4A_7C15)) >> np.uint64(58))


@uncounted_inner
def _edges_of(columns: _Columns, v: Int) -> Int:
    edges = np.int64(columns.out_degrees[v])
    return edges + np.int64(columns.in_degrees[v]) if columns.in_degrees.size else edges


@uncounted
def _survey(columns: _Columns, rows: Counts, edges: Counts, cell_vertices: Counts, cell_edges: Counts) -> None:
    for v in range(columns.owner.size):
        side, length = np.int64(columns.owner[v]), _edges_of(columns, v)
        if length > 0 and side <= DEVICE:
            c = _class_of(length, columns.changed[v], columns.tick)
            out = np.int64(columns.out_degrees[v])
            rows[side, c] += np.int64(out > 0) + np.int64(length > out)
            edges[side, c] += length
            if columns.moved[v] == 0 and length <= columns.edges_max:
                cell = _cell_of(v)
                cell_vertices[side, c, cell] += 1
                cell_edges[side, c, cell] += length


@uncounted
def _list(
    columns: _Columns, side: Int, rank: Counts, last: Int, places: Counts, found: Vertices, lengths: Counts
) -> None:
    """Put the movable vertices of a side up to cell ``last``, by rank and hash, in their places."""
    for v in range(columns.owner.size):
        length = _edges_of(columns, v)
        if columns.owner[v] == side and columns.moved[v] == 0 and 0 < length <= columns.edges_max:
            c = _class_of(length, columns.changed[v], columns.tick)
            cell = rank[c] * _CELLS + _cell_of(v)
            if cell <= last:
                found[places[cell]] = v
                lengths[places[cell]] = length
                places[cell] += 1


@uncounted
def _classes(vertices: Vertices, edges: Counts, changed: Ticks, tick: Int, classes: Bytes) -> None:
    for i in range(vertices.size):
        classes[i] = _class_of(edges[i], changed[vertices[i]], tick)


@uncounted
def _classes_of(columns: _Columns, classes: Bytes) -> None:
    for v in range(classes.size):
        classes[v] = _class_of(_edges_of(columns, v), columns.changed[v], columns.tick)


def warm_up() -> None:
    """Compile the kernels, or load them from the cache."""
    ages = RowAges()
    one = np.ones(1, np.uint32)
    for in_degrees in (one, one[:0]):
        seen = ages.survey(Stock(np.zeros(1, np.uint8), one, in_degrees), 1)
        seen.listed(HOST, np.ones(CLASSES), 1)
        seen.of_vertices()
    ages.classes(one, np.ones(1, np.int64))
