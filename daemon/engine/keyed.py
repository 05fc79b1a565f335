"""Rows of edges by the keys of their records: which edge each key stands for, and how many keys stand for each
edge.

A record says what its key stands for from now on: an edge, or nothing. What that does to the graph are plain
inserts and deletes of edges, and everything above the storage knows only those. An edge is there as long as a
key stands for it; its weight is that of the last record that named it.

Two tables (``cells.py``) have it: of keys, 128 bits each (``ingest/row_keys.py``) with their edges, and of edges
with their counts. An epoch's records are gone through once, in order, before the graph is changed. Where the
graph finds no memory for what comes of them, ``undo`` takes them back until the next try: what each key stood
for before is noted, and going through that from the end on is the way back.

What comes of records follows from them and their order alone, in whatever epochs they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.edges import EMPTY_KEY, EdgeBatch, Int, Keys, Op, Ops, Weights, frozen
from ...gpma.intrinsics import inner, prefetch
from ...gpma.memory import Memory
from ...partition.graph import NoMemory
from ..ingest.prepared import Columns
from ..ingest.row_keys import RowKeys, Secret, new_secret
from .cells import BOUND, NEXT, SIZE, TOO_LONG, Cells, Shape, Words, find, home, take_out
from .edge_times import canonical

_DELETE, _INSERT = np.uint8(Op.DELETE), np.uint8(Op.INSERT)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_NOTHING = EMPTY_KEY
"""What a key stands for that stands for no edge."""
_FAR, _NEAR = 16, 8
_ROW, _EDGE = np.int64(3), np.int64(2)
"""Words of a cell: two of a key, and its edge; an edge and one, and its count."""

NO_WEIGHTS = frozen(np.empty(0, np.float32))


class KeyedRows:
    """For the engine's thread: ``settle`` when an epoch is taken; what comes of it then changes the graph."""

    def __init__(self, *, directed: bool) -> None:
        self.secret: Secret = new_secret()
        """Of the hashes of keys."""
        self.unknown = 0
        """How many records of the last epoch took away what keys stood for that stood for nothing."""
        self._directed = directed
        memory = Memory()
        self._rows = Cells(int(_ROW), memory)
        self._edges = Cells(int(_EDGE), memory)
        self._last: tuple[RowKeys, Keys] | None = None

    def __len__(self) -> int:
        """How many keys stand for an edge."""
        return self._rows.n

    @property
    def n_edges(self) -> int:
        """How many edges keys stand for."""
        return self._edges.n

    # -- an epoch -----------------------------------------------------------------------------------------

    def settle(self, records: EdgeBatch, row_keys: RowKeys, columns: Columns = EdgeBatch.empty) -> EdgeBatch:
        """What records do to the edges, in order, in ``columns`` of its own.

        ``records``: of an insert its key stands for the edge from now on; of a delete, for nothing, whatever edge
        it names. ``row_keys``: of each.

        Raises:
            NoMemory: there is none, and all is as before.
        """
        n = len(records)
        self._last = None
        try:
            n_inserts = int(np.count_nonzero(records.ops))
            self._rows.ensure(n_inserts)
            self._edges.ensure(n_inserts)
        except MemoryError as error:
            raise NoMemory(f"keys of rows: {error}") from error
        keys = records.keys if self._directed else canonical(records.keys)
        weights = NO_WEIGHTS if records.weights is None else records.weights
        before = np.empty(n, np.uint64)
        made = self._go_through(row_keys, keys, records.ops, weights, before)
        self._last = row_keys, before
        batch = columns(made.keys.size, weighted=records.weights is not None)
        batch.keys[:], batch.ops[:] = made.keys, made.ops
        if batch.weights is not None:
            batch.weights[:] = made.weights
        return batch

    def done(self) -> None:
        """What came of the last ``settle`` is in the graph: nothing of it is taken back any more."""
        self._last = None

    def undo(self) -> None:
        """Nothing of the last ``settle`` came to be: have every key stand for what it stood for before. Harmless
        where that found no memory, and after ``done``."""
        if self._last is None:
            return
        row_keys, before = (column[::-1].copy() for column in self._last)
        self._last = None
        ops = np.where(before == _NOTHING, _DELETE, _INSERT)
        self._go_through(row_keys, before, ops, NO_WEIGHTS, np.empty(before.size, np.uint64))

    def _go_through(self, row_keys: RowKeys, keys: Keys, ops: Ops, weights: Weights, before: Keys) -> EdgeBatch:
        n = keys.size
        made = EdgeBatch.empty(2 * n, weighted=weights.size > 0)
        made_weights = np.empty(0, np.float32) if made.weights is None else made.weights
        rows, edges = self._rows, self._edges
        tables = rows.words, rows.shape, rows.seed, edges.words, edges.shape, edges.seed
        records = frozen(row_keys), frozen(keys), frozen(ops), frozen(weights)
        n_made, n_rows, n_edges, self.unknown = _settle(
            *tables, *records, made.keys, made.ops, made_weights, before
        )
        if n_made < 0:
            raise AssertionError(TOO_LONG)
        rows.n += n_rows
        edges.n += n_edges
        return EdgeBatch(
            made.keys[:n_made], made.ops[:n_made], None if made.weights is None else made.weights[:n_made]
        )

    # -- being kept ---------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What a checkpoint keeps: ``rows`` (uint64[n, 2]), the hashes of keys; ``edges`` (uint64[n]), what they
        stand for; and ``secret`` (uint64[2])."""
        n = self._rows.n
        rows, edges = np.empty((n, 2), np.uint64), np.empty(n, np.uint64)
        n_there = _all(self._rows.words, rows, edges)
        assert n_there == n
        return {"rows": rows, "edges": edges, "secret": self.secret}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from what a checkpoint kept; nothing came yet.

        Raises:
            NoMemory: there is none.
        """
        keys = arrays["edges"]
        self.secret = arrays["secret"].copy()
        self.settle(EdgeBatch(keys, np.full(keys.size, Op.INSERT, np.uint8)), arrays["rows"])
        self._last = None

    # -- being looked at ----------------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        return self._rows.memory_bytes() + self._edges.memory_bytes()

    def stats(self) -> dict[str, Any]:
        """What the ``stats`` request shows."""
        return {"keys": len(self), "edges": self.n_edges}


@inner
def _find_row(
    rows: Words,
    size: np.uint64,
    coming: np.uint64,
    bound: Int,
    seed: np.uint64,
    first: np.uint64,
    second: np.uint64,
) -> Int:
    """Where the cell of a key begins, or the empty one where it would be."""
    at = _ROW * home(size, coming, bound, seed, first)
    while rows[at] != _ZERO and (rows[at] != first or rows[at + 1] != second):
        at += _ROW
    return at


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _settle(
    rows: Words,
    rows_shape: Shape,
    rows_seed: np.uint64,
    edges: Words,
    edges_shape: Shape,
    edges_seed: np.uint64,
    row_keys: RowKeys,
    keys: Keys,
    ops: Ops,
    weights: Weights,
    made: Keys,
    made_ops: Ops,
    made_weights: Weights,
    before: Keys,
) -> tuple[int, int, int, int]:
    """Go through records in order. Returns how many updates of edges were made, how many more keys and edges there
    are (may be negative), and how many deletes found nothing. (-1, ...): there was no room."""
    r_size, r_next, r_bound = np.uint64(rows_shape[SIZE]), np.uint64(rows_shape[NEXT]), rows_shape[BOUND]
    e_size, e_next, e_bound = np.uint64(edges_shape[SIZE]), np.uint64(edges_shape[NEXT]), edges_shape[BOUND]
    r_last, e_last = rows.size - _ROW, edges.size - _EDGE
    n = keys.size
    n_made, n_rows, n_edges, n_unknown = 0, 0, 0, 0
    for i in range(n):
        if i + _FAR < n:
            prefetch(rows, _ROW * home(r_size, r_next, r_bound, rows_seed, row_keys[i + _FAR, 0]))
            prefetch(edges, _EDGE * home(e_size, e_next, e_bound, edges_seed, keys[i + _FAR] + _ONE))
        if i + _NEAR < n:
            # Its cell has come by now, if it is at home: the count of the edge that it stands for is next.
            soon = _ROW * home(r_size, r_next, r_bound, rows_seed, row_keys[i + _NEAR, 0])
            prefetch(edges, _EDGE * home(e_size, e_next, e_bound, edges_seed, rows[soon + 2] + _ONE))
        key, inserts = keys[i], ops[i] != _DELETE
        row = _find_row(rows, r_size, r_next, r_bound, rows_seed, row_keys[i, 0], row_keys[i, 1])
        known = rows[row] != _ZERO
        old = rows[row + 2] if known else _NOTHING
        before[i] = old
        if known and not (inserts and old == key):
            at = find(edges, _EDGE, e_size, e_next, e_bound, edges_seed, old + _ONE)
            if edges[at + 1] > _ONE:
                edges[at + 1] -= _ONE
            else:
                take_out(edges, _EDGE, e_size, e_next, e_bound, edges_seed, at)
                n_edges -= 1
                made[n_made], made_ops[n_made] = old, _DELETE
                if made_weights.size > 0:
                    made_weights[n_made] = np.float32(1)
                n_made += 1
        if not inserts:
            if known:
                take_out(rows, _ROW, r_size, r_next, r_bound, rows_seed, row)
                n_rows -= 1
            else:
                n_unknown += 1
            continue
        if not known:
            if row == r_last:
                return -1, 0, 0, 0
            rows[row], rows[row + 1] = row_keys[i, 0], row_keys[i, 1]
            n_rows += 1
        if old != key:
            rows[row + 2] = key
            at = find(edges, _EDGE, e_size, e_next, e_bound, edges_seed, key + _ONE)
            if edges[at] == _ZERO:
                if at == e_last:
                    return -1, 0, 0, 0
                edges[at], edges[at + 1] = key + _ONE, _ZERO
                n_edges += 1
            edges[at + 1] += _ONE
        made[n_made], made_ops[n_made] = key, _INSERT
        if made_weights.size > 0:
            made_weights[n_made] = weights[i]
        n_made += 1
    return n_made, n_rows, n_edges, n_unknown


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _all(words: Words, rows: RowKeys, edges: Keys) -> int:
    """Every key and its edge, in the order of the table; returns how many there are."""
    n = 0
    for at in range(0, words.size, _ROW):
        if words[at] != _ZERO:
            rows[n, 0], rows[n, 1] = words[at], words[at + 1]
            edges[n] = words[at + 2]
            n += 1
    return n


def warm_up() -> None:
    """Compile the kernels, or load them from the cache."""
    for weights in (None, np.ones(2, np.float32)):
        table = KeyedRows(directed=True)
        records = EdgeBatch(np.arange(2, dtype=np.uint64), np.array([Op.INSERT, Op.DELETE], np.uint8), weights)
        table.settle(records, np.ones((2, 2), np.uint64))
        table.undo()
        table.restore(table.arrays())
