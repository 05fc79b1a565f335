"""A small refresh of a path program in one compiled call: from the batch to the host's words.

Where it is launched behind its batch, both launches are one call: nothing of Python comes between them.

What the kernel wrote is taken over as soon as it has told of it, in the call that launched it and waited: to go
back into Python for that, and through NumPy one function after the other, took as long as all the rest. And a call
like the last one fills its job in by itself, from what the device's side says of the batch. Long lists are taken
over by all threads, when the call is over.
"""

from __future__ import annotations

from typing import Final

import numba as nb
import numpy as np

from ...gpma.device.both import (
    BATCH_IS_READY,
    BATCH_KEYS,
    BATCH_N,
    BATCH_OUTCOMES,
    BATCH_ROWS,
    BATCH_WEIGHTS,
    BATCH_WORDS,
    begin_both,
    fits,
    say_batch,
)
from ...gpma.device.calling import DONE, OTHERWISE, SAID, Then, begin, carry_out, parameter, wait_later, waits
from ...gpma.device.structures import STATE
from ...gpma.drawing import drawn
from ...gpma.edges import Int, Keys, Offsets, Vertices
from ...gpma.intrinsics import array_at, inner, prefetch, uncounted, uncounted_inner
from ...gpma.team import ALONE, Crew, at_most, share

N_TOLD: Final = 7
"""Words that a kernel tells (``PathWord`` of ``paths.cuh``)."""
N_SAID: Final = N_TOLD + 3
"""Those, and what was taken: how many vertices, and how many of them were unreached before, and are now."""
# Of what a kernel tells.
_GAVE_UP, _LOGGED, _NEXT_STAMP = 0, 1, 4
# Behind what is said: whether to take anything, the host's words; the list that the kernel writes, its room, and
# where vertices and their old words go; where the device's side says what the batch was, where the part of the job
# is that differs from run to run, how many vertices may be lost at most, and whether the kernel is the one for few
# updates; of a call behind a batch that it launches, too, where the record of that is, the limits, and for how
# many vertices and edges there is room.
_N_MORE: Final = 15
_TAKES, _KEPT, _LIST, _ROOM, _VERTICES, _OLD, _BATCH, _RUN, _LOST_ROOM, _IS_FEW = range(N_SAID, N_SAID + 10)
_BOTH, _LOST_MAX, _EDGES_MAX, _VERTICES_ROOM, _ARCS_ROOM = range(N_SAID + 10, N_SAID + _N_MORE)
assert STATE.fields is not None
_N_VERTICES_AT: Final = STATE.fields["n_vertices"][1]
# The part of a job that differs: so many words of 64 bits, then such of 32.
N_LONGS, N_WORDS = 6, 6
_NONE: Final = np.empty(0, np.uint32)
_NO_BATCH: Final = np.zeros(BATCH_WORDS, np.uint64)
_UNREACHED: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
# How long before its turn a word is asked for.
_AHEAD: Final = 16
# Lists of more vertices are taken over by all threads. With cold caches, on a host of 16 cores, one thread took 11
# to 14 ns of a vertex, 190 us of 14,000; all of them took 120 us of 4,500 and 250 of 15,500.
TAKEN_MAX = 1 << 14
FEW_MAX: Final = 512
"""After so many updates, a thread each, a kernel of its own mends: FEW of ``mend.cu``."""
_PIECE: Final = 4096
_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


class Taking:
    """Takes over what kernels list, pairs of a vertex and its word; of long lists nothing."""

    def __init__(self) -> None:
        self.then = Then(carry_out_and_take, N_SAID - N_TOLD + _N_MORE)
        self._kept: Keys | None = None
        self._vertices: Vertices = np.empty(0, np.uint32)
        self._old: Keys = np.empty(0, np.uint64)

    @property
    def memory_bytes(self) -> int:
        return self._vertices.nbytes + self._old.nbytes

    def bind(self, said: memoryview, batch: Keys, run: int, next_batch: int = 0) -> None:
        """``said``: of the calls that have ``then``. ``batch`` and ``next_batch``: of the device's side. ``run``:
        the address of the part of the job that differs from run to run."""
        self._said = said
        self._batch = batch  # held
        said[_BATCH], said[_RUN], said[_BOTH] = batch.ctypes.data, run, next_batch

    def read_from(self, listed: Keys, lost_room: int) -> None:
        """From here on kernels write into this list, uint64[room, 2], and have room for so many lost vertices.

        Raises:
            MemoryError: there is no room for as many vertices; everything is as before.
        """
        room = min(len(listed), TAKEN_MAX)
        vertices, old = np.empty(room, np.uint32), np.empty(room, np.uint64)
        self._vertices, self._old = vertices, old
        said = self._said
        said[_LIST], said[_ROOM] = listed.ctypes.data, room
        said[_VERTICES], said[_OLD] = vertices.ctypes.data, old.ctypes.data
        said[_LOST_ROOM] = lost_room

    def mends_few(self, is_few: bool) -> None:
        """The kernel that is launched from now on is that for few updates, or not."""
        self._said[_IS_FEW] = is_few

    def limit(self, lost_max: int, edges_max: int) -> None:
        """The limits of the next call that launches a batch, too."""
        self._said[_LOST_MAX], self._said[_EDGES_MAX] = lost_max, edges_max

    def have_room(self, n_vertices: int, n_arcs: int) -> None:
        """After a batch with which there may be more than so many no such call is made."""
        self._said[_VERTICES_ROOM], self._said[_ARCS_ROOM] = n_vertices, n_arcs

    @property
    def room(self) -> int:
        """Of lists that are taken over."""
        return self._vertices.size

    def expect(self, kept: Keys | None) -> None:
        """Have the next call write into ``kept``, with an entry for each vertex; None: nothing is taken."""
        said = self._said
        said[_TAKES] = kept is not None
        if kept is not None and kept is not self._kept:
            assert kept.dtype == np.uint64 and kept.flags.c_contiguous
            self._kept = kept
            said[_KEPT] = kept.ctypes.data

    def taken(self, n: int) -> Vertices:
        """The first n vertices whose entries became others, each once."""
        return self._vertices[:n].copy() if n else _NONE

    def were(self, n: int) -> Keys:
        """What these entries were; good until the next call."""
        return self._old[:n]


def warm_up() -> None:
    """Compile what calls do."""
    record = unlike_any()
    carry_out_and_take(record)
    mend_again(record, 0, 0, True)
    apply_and_mend(record)
    take_listed(np.zeros(1, np.uint64), np.zeros((1, 2), np.uint64), ALONE)


def unlike_any() -> Keys:
    """A record of no call: none is like it."""
    record = np.zeros(SAID + N_SAID + _N_MORE, np.uint64)
    record[SAID + _BATCH] = _NO_BATCH.ctypes.data
    return record


@_jit
def take_listed(kept: Keys, listed: Keys, crew: Crew) -> tuple[Vertices, Keys, Int]:
    """Take over a list, uint64[n, 2] of vertices, each once, and their words, on all threads.

    Returns the vertices whose entries in ``kept`` became others, in the order of the list, what these were, and by
    how many fewer of them are unreached.
    """
    n_pieces = np.int64((len(listed) + _PIECE - 1) // _PIECE)
    ends, cursor = np.zeros(n_pieces + 1, np.int64), np.zeros(1, np.int64)
    gained = np.zeros(n_pieces, np.int64)
    crew = at_most(crew, n_pieces)
    # Counted first: many listed words are what they were, and to close their gaps later takes longer.
    share(crew, _count_differing, (kept, listed, cursor, ends))
    for piece in range(n_pieces):
        ends[piece + 1] += ends[piece]
    vertices, old = np.empty(ends[n_pieces], np.uint32), np.empty(ends[n_pieces], np.uint64)
    cursor[0] = 0
    share(crew, _take_differing, (kept, listed, cursor, ends, gained, vertices, old))
    return vertices, old, gained.sum()


@inner
def _count_differing(thread: int, kept: Keys, listed: Keys, cursor: Offsets, ends: Offsets) -> None:
    """Of each piece, behind where it begins."""
    for piece in drawn(cursor, ends.size - 1):
        count, end = np.int64(0), min((piece + 1) * _PIECE, np.int64(len(listed)))
        for k in range(piece * _PIECE, end):
            if k + _AHEAD < end:
                prefetch(kept, np.int64(listed[k + _AHEAD, 0]))
            count += np.int64(kept[listed[k, 0]] != listed[k, 1])
        ends[piece + 1] = count


@inner
def _take_differing(
    thread: int,
    kept: Keys,
    listed: Keys,
    cursor: Offsets,
    ends: Offsets,
    gained: Offsets,
    vertices: Vertices,
    old: Keys,
) -> None:
    for piece in drawn(cursor, gained.size):
        at, end, count = ends[piece], min((piece + 1) * _PIECE, np.int64(len(listed))), np.int64(0)
        for k in range(piece * _PIECE, end):
            if k + _AHEAD < end:
                prefetch(kept, np.int64(listed[k + _AHEAD, 0]))
            word = listed[k, 1]
            if _take(kept, listed[k, 0], word, vertices, old, at):
                count += np.int64(old[at] == _UNREACHED) - np.int64(word == _UNREACHED)
                at += 1
        gained[piece] = count


@uncounted_inner
def _take(kept: Keys, vertex: Int, word: Int, vertices: Vertices, old: Keys, at: Int) -> Int:
    """Give a vertex this word, and note it at a place, with the old one; 1, or 0 where that is the same."""
    was = kept[vertex]
    if was == word:
        return np.int64(0)
    kept[vertex] = word
    vertices[at], old[at] = np.uint32(vertex), was
    return np.int64(1)


@uncounted
def carry_out_and_take(record: Keys) -> Int:
    """As ``carry_out``; what the kernel listed is taken over, if it is waited for."""
    status = carry_out(record)
    if status != DONE or not waits(record) or record[SAID + _TAKES] == 0:
        return status
    taken, were, are, n = np.int64(0), np.int64(0), np.int64(0), np.int64(record[SAID + _LOGGED])
    if record[SAID + _GAVE_UP] == 0 and n <= np.int64(record[SAID + _ROOM]):
        listed = array_at(record[SAID + _LIST], 2 * n, np.uint64)
        kept = array_at(record[SAID + _KEPT], 0, np.uint64)
        vertices = array_at(record[SAID + _VERTICES], n, np.uint32)
        old = array_at(record[SAID + _OLD], n, np.uint64)
        for k in range(n):
            if k == _AHEAD:
                break
            prefetch(kept, np.int64(listed[2 * k]))
        for k in range(n):
            if k + _AHEAD < n:
                prefetch(kept, np.int64(listed[2 * (k + _AHEAD)]))
            word = listed[2 * k + 1]
            if _take(kept, listed[2 * k], word, vertices, old, taken):
                were += np.int64(old[taken] == _UNREACHED)
                are += np.int64(word == _UNREACHED)
                taken += 1
    record[SAID + N_TOLD], record[SAID + N_TOLD + 1], record[SAID + N_TOLD + 2] = taken, were, are
    return status


@uncounted
def mend_again(record: Keys, lost_max: Int, edges_max: Int, waits_too: bool) -> Int:
    """Mend as the last call of the record did, without sources, after the batch that the device had last.

    ``waits_too``: otherwise it is only launched. As ``carry_out``; OTHERWISE: rows are not read as they were then,
    or the kernel is not the one for so many updates, and nothing was called.
    """
    if not _is_like_last(record):
        return np.int64(OTHERWISE)
    return _mend(record, np.int64(lost_max), np.int64(edges_max), waits_too)


@uncounted
def apply_and_mend(record: Keys) -> Int:
    """Launch the next batch, and ``mend_again`` behind it; waits for neither. OTHERWISE: nothing was launched."""
    both, edges_max = record[SAID + _BOTH], np.int64(record[SAID + _EDGES_MAX])
    if both == 0 or not fits(both, record[SAID + _VERTICES_ROOM], record[SAID + _ARCS_ROOM]):
        return np.int64(OTHERWISE)
    say_batch(both)
    if not _is_like_last(record):
        return np.int64(OTHERWISE)
    status = begin_both(both)
    if status:
        return np.int64(status)
    return _mend(record, np.int64(record[SAID + _LOST_MAX]), edges_max, False)


@uncounted_inner
def _is_like_last(record: Keys) -> bool:
    """Whether the next call may be like the last one."""
    batch = array_at(record[SAID + _BATCH], BATCH_WORDS, np.uint64)
    if batch[BATCH_IS_READY] == 0 or batch[BATCH_ROWS] != parameter(record, 0):
        return False
    return bool((batch[BATCH_N] <= FEW_MAX) == (record[SAID + _IS_FEW] != 0))


@uncounted_inner
def _mend(record: Keys, lost_max: Int, edges_max: Int, waits_too: bool) -> Int:
    batch = array_at(record[SAID + _BATCH], BATCH_WORDS, np.uint64)
    number, run = begin(record), record[SAID + _RUN]
    if not waits_too:
        wait_later(record)
    longs = array_at(run, N_LONGS, np.uint64)
    longs[0], longs[1], longs[2] = batch[BATCH_KEYS], batch[BATCH_WEIGHTS], batch[BATCH_OUTCOMES]
    longs[3], longs[4], longs[5] = 0, edges_max, 0  # no sources; and edges that it need not know of
    words = array_at(run + np.uint64(8 * N_LONGS), N_WORDS, np.uint32)
    words[0], words[1], words[2] = min(lost_max, np.int64(record[SAID + _LOST_ROOM])), batch[BATCH_N], 0
    words[3] = array_at(parameter(record, 0) + np.uint64(_N_VERTICES_AT), 1, np.uint32)[0]
    words[4], words[5] = record[SAID + _NEXT_STAMP], number
    return carry_out_and_take(record)
