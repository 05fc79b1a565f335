"""Copying all edges of a packed array while batches go on changing it.

The copy goes through the keys in ascending order, one piece at a time, each piece between two changes. The
cursor is a key and not a slot: redistribution and growth between two pieces move no edge past it. Together the
pieces show no single moment, since each has seen other changes. But all changes since the beginning are kept,
and the last one of each key is laid over the pieces in the end. That gives exactly the present edges: one that
nothing changed is in its piece as it always was, and of any other the last change knows all. (Fuzzy dumps of
databases in memory rest on the same thought: Hagmann: A crash recovery scheme for a memory-resident database
system, IEEE Trans. Computers 35, 1986; their changes come from the log.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numba as nb
import numpy as np
import numpy.typing as npt

from ..edges import ChangeReport, EdgeList, Int, Keys, Weights
from ..intrinsics import copy, inner
from ..memory import Memory
from ..rows import RowView, live_runs
from ..splice import spliced

PIECE_EDGES = 1 << 16
"""Edges of a piece. A batch waits for at most one: 0.8 MB with weights, 0.1 ms of copying."""

CHANGES_MIN = 1 << 16
CHANGES_SHARE = 0.25
"""So many changes are kept, or this share of the edges: together they take a quarter of the copy's memory."""

CHANGE_BYTES = 64
"""What it takes to put the changes into order, for each of them, beside what is kept of them."""

ASKED_EVERY = 32
"""After so many pieces it is asked anew whether there is memory for the rest: others take some, too. So many come
to less than what growth leaves for those who ask nobody."""

ExportFrom = Callable[[int, Keys, Weights], int]
"""(first key, keys, weights) -> how many edges from that key on were copied into the arrays, fewer than they
hold only at the end. Called from one thread at a time, and never while the edges change."""


@inner
@spliced
def _first_leaf(rows: RowView, first_key: Int) -> Int:
    """The first leaf that ends with ``first_key`` or above, by halving; empty leaves may lie anywhere."""
    begin, end = np.int64(0), np.int64(rows.counts.size)
    while begin < end:
        middle = (begin + end) >> 1
        behind = begin
        for slot, stop in live_runs(rows, middle):
            if slot < stop:
                leaf = slot >> rows.leaf_shift
                behind = leaf + 1 if leaf < end and rows.keys[stop - 1] < first_key else begin
                break
        if behind > begin:
            begin = behind
        else:
            end = middle
    return begin


@nb.njit(cache=True, nogil=True, error_model="numpy")
@spliced
def export_from(rows: RowView, first_key: Int, keys: Keys, weights: Weights) -> Int:
    """Copy edges from ``first_key`` on, ascending, until ``keys`` is full or the array ends; returns how many.

    ``weights`` is as long as ``keys``, or float32[0] when the array is unweighted.
    """
    room = np.int64(keys.size)
    to = np.int64(0)
    for slot, end in live_runs(rows, _first_leaf(rows, first_key)):
        from_ = slot
        while to == 0 and from_ < end and rows.keys[from_] < first_key:
            from_ += 1
        count = min(end - from_, room - to)
        copy(keys, to, rows.keys, from_, count)
        if weights.size:
            copy(weights, to, rows.weights, from_, count)
        to += count
        if to == room:
            break
    return to


@nb.njit(cache=True, nogil=True, error_model="numpy")
def lay_over(
    keys: Keys,
    weights: Weights,
    changed: Keys,
    present: npt.NDArray[np.bool_],
    new_weights: Weights,
    out_keys: Keys,
    out_weights: Weights,
) -> Int:
    """Merge edges with later changes of some keys (both ascending); returns how many edges are left.

    ``present[i]``: whether ``changed[i]`` exists afterwards, with ``new_weights[i]``. ``out_*`` have room for
    all of both; weights are float32[0] throughout when there are none.
    """
    kept = np.int64(0)
    i = np.int64(0)
    for j in range(changed.size + 1):
        stop = i
        while stop < keys.size and (j == changed.size or keys[stop] < changed[j]):
            stop += 1
        copy(out_keys, kept, keys, i, stop - i)
        if weights.size:
            copy(out_weights, kept, weights, i, stop - i)
        kept += stop - i
        i = stop
        if j < changed.size:
            if i < keys.size and keys[i] == changed[j]:
                i += 1
            if present[j]:
                out_keys[kept] = changed[j]
                if new_weights.size:
                    out_weights[kept] = new_weights[j]
                kept += 1
    return kept


class Turnstile:
    """Lets one thread write, and others read in between; a writer that waits goes before the next reader.

    Who writes ``with`` the ``entrance``, and then with the ``inside``, does what ``writing`` does.
    """

    def __init__(self) -> None:
        self.entrance = threading.Lock()
        self.inside = threading.Lock()

    def writing(self) -> Turnstile:
        """To write ``with`` it. The turnstile itself, since another object would cost the smallest batch more."""
        return self

    def __enter__(self) -> None:
        # Who writes stands in the entrance, so that a reader who leaves does not come in again first.
        self.entrance.acquire()
        try:
            self.inside.acquire()
        except BaseException:  # an interrupt while others read
            self.entrance.release()
            raise

    def __exit__(self, *error: object) -> None:
        self.inside.release()
        self.entrance.release()

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self.entrance:
            self.inside.acquire()
        try:
            yield
        finally:
            self.inside.release()


class EdgeCopy:
    """One such copy: pieces, and the changes since it began.

    Any thread may copy pieces; one thread notes changes, and asks for the edges after the last of both.
    """

    def __init__(
        self, export_from: ExportFrom, *, weighted: bool, n_edges: int, memory: Memory | None = None
    ) -> None:
        """``n_edges``: how many there are about, which bounds the changes that are kept. ``memory``: who is asked
        before any is taken; None: the system's."""
        self._export_from = export_from
        self._weighted = weighted
        self._memory = memory or Memory()
        self._n_edges = n_edges
        self._changes_max = max(CHANGES_MIN, int(n_edges * CHANGES_SHARE))
        self._turn = threading.Lock()
        self._cursors: list[int] = []
        self._pieces: list[EdgeList] = []
        self._next_key = 0
        self._through = False
        self._changes: list[tuple[EdgeList, EdgeList, Keys]] = []
        self._n_changes = 0
        # All changes in order, from when they are until the edges have them.
        self._last: tuple[Keys, npt.NDArray[np.bool_], Weights] | None = None

    @property
    def through(self) -> bool:
        """Every edge was copied; changes may follow."""
        return self._through

    @property
    def overfull(self) -> bool:
        """So many changes are kept that the rest should be copied at once: ``finish``."""
        return self._n_changes > self._changes_max

    def copy_piece(self) -> bool:
        """Copy the next piece; False when there is none.

        Raises:
            MemoryError: there is no room for it; it may be tried again.
        """
        if len(self._pieces) % ASKED_EVERY == 0:
            self._memory.require(self._bytes_to_come())
        # Zeros, so that page faults are paid here and not while a batch waits.
        keys = np.full(PIECE_EDGES, 0, np.uint64)
        weights = np.full(PIECE_EDGES if self._weighted else 0, 0, np.float32)
        with self._turn:
            if self._through:
                return False
            size = self._export_from(self._next_key, keys, weights)
            if size:
                self._cursors.append(self._next_key)
                self._pieces.append(EdgeList(keys[:size], weights[:size]))
                self._next_key = int(keys[size - 1]) + 1
            self._through = size < PIECE_EDGES
            return not self._through

    def finish(self) -> None:
        """Copy all the rest."""
        while self.copy_piece():
            pass

    def note(self, report: ChangeReport) -> None:
        """Keep what a batch changed, in the order of the batches."""
        self._changes.append((report.inserted, report.overwritten, report.deleted.keys))
        self._n_changes += len(report.inserted) + len(report.overwritten) + len(report.deleted)

    def edges(self) -> list[EdgeList]:
        """The edges after the last change: ascending, in several pieces. The copy is used up by this.

        Weights are float32[0] where there are none.

        Raises:
            MemoryError: there is no room to lay the changes over the copy; it may be tried again.
        """
        assert self._through
        if self._last is None:
            self._memory.require(self._n_changes * CHANGE_BYTES)
            self._last = self._last_changes()
            self._changes = []
        changed, present, new_weights = self._last
        cursors = np.array(self._cursors, np.uint64)
        # The first piece also takes the changes of an array that was empty.
        bounds = [0, *np.searchsorted(changed, cursors[1:]).tolist(), changed.size]
        pieces = self._pieces = self._pieces or [EdgeList(np.empty(0, np.uint64), np.empty(0, np.float32))]
        for i, piece in enumerate(pieces):  # in place: once more over those that have them changes nothing
            part = slice(bounds[i], bounds[i + 1])
            pieces[i] = _with_changes(piece, changed[part], present[part], new_weights[part])
        self._pieces, self._last = [], None
        return pieces

    def _bytes_to_come(self) -> int:
        """What the rest of the copy takes, and the changes that may be kept meanwhile."""
        edges = max(self._n_edges - len(self._pieces) * PIECE_EDGES, 0)
        changes = max(self._changes_max - self._n_changes, 0)
        return (edges + changes) * (12 if self._weighted else 8)

    def _last_changes(self) -> tuple[Keys, npt.NDArray[np.bool_], Weights]:
        """The last change of each key, ascending: keys, whether they exist now, and their weights (or none)."""
        keys, present, weights = [np.empty(0, np.uint64)], [np.empty(0, bool)], [np.empty(0, np.float32)]
        for inserted, overwritten, deleted in self._changes:
            keys += [inserted.keys, overwritten.keys, deleted]
            present += [np.ones(len(inserted) + len(overwritten), bool), np.zeros(deleted.size, bool)]
            if inserted.weights is not None and overwritten.weights is not None:
                weights += [inserted.weights, overwritten.weights, np.zeros(deleted.size, np.float32)]
        all_keys = np.concatenate(keys)
        order = np.argsort(all_keys, kind="stable")
        ordered = all_keys[order]
        last = np.append(ordered[1:] != ordered[:-1], np.ones(min(ordered.size, 1), bool))
        order = order[last]
        new_weights = np.concatenate(weights)
        return ordered[last], np.concatenate(present)[order], new_weights[order] if self._weighted else new_weights


def _with_changes(
    piece: EdgeList, changed: Keys, present: npt.NDArray[np.bool_], new_weights: Weights
) -> EdgeList:
    if changed.size == 0:
        return piece
    assert piece.weights is not None
    room = len(piece) + changed.size
    keys = np.empty(room, np.uint64)
    weights = np.empty(room if new_weights.size else 0, np.float32)
    size = lay_over(piece.keys, piece.weights, changed, present, new_weights, keys, weights)
    return EdgeList(keys[:size], weights[:size])


def warm_up() -> None:
    """Compile every kernel, or load it from the cache."""
    keys, no_weights = np.arange(2, dtype=np.uint64), np.empty(0, np.float32)
    index = np.zeros(1, np.uint32)
    rows = RowView(keys, no_weights, np.array([2], np.int32), index, index, 1, 1, 1)
    export_from(rows, np.uint64(0), keys.copy(), no_weights)
    _with_changes(EdgeList(keys, no_weights), keys, np.ones(2, bool), no_weights)
