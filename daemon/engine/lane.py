"""Short questions about rows, answered by a thread that needs no interpreter.

Such a question would wait for Python's other threads twice, on its way in and out, for far longer than its answer
takes. So it goes through memory that the query server and this process share (``records.lane``), and a compiled
loop answers it where it finds the storage open (``shown.py``). One server has one lane; who has no place there,
and what this loop does not answer, is asked and answered over the socket (``topology.py``): where rows are not the
host's, in-rows are not kept, or the answer is long.

The server is not trusted. What it writes is read word by word, once each, and compared with what there is; the
memory cannot be made smaller under us (it is sealed); nothing here waits for the server but for its questions, and
a server that keeps asking keeps no batch from being written.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading

import numba as nb
import numpy as np

from ...gpma.atomics import exchange, fetch_add, load
from ...gpma.edges import HALF
from ...gpma.gate import BESIDE_LOCK, NOTING, how_noted, is_beside, is_open_beside, is_written, updates_of
from ...gpma.intrinsics import (
    address_of,
    array_at,
    copy_bytes,
    load_acquire,
    lock_to_read,
    poll_for,
    read_file,
    try_lock_to_read,
    unlock,
    write_file,
)
from ...gpma.row_before import WAITS, copy_row_before, degree_before, was_in_row
from ...gpma.rows import copy_row, find_on, leaves_of, runs
from ...gpma.splice import spliced
from ...gpma.threads import start_thread
from ..priority import in_short_slices
from ..records import lane as layout
from ..records.lane import (
    ANSWER,
    ANSWERED,
    ASKED,
    COLUMNS,
    COUNT,
    CURSOR,
    DEGREE,
    DONE,
    FLAGS,
    FOUND,
    FOUND_EXISTS,
    FOUND_IN,
    FOUND_KNOWN,
    FOUND_OUT,
    FOUND_WEIGHTS,
    HAS_EDGE,
    HAS_IN,
    HIDDEN,
    IN,
    KNOWN,
    METHOD,
    NEIGHBORS,
    NEIGHBORS_MAX,
    NUMBERS,
    OTHERWISE,
    PLACE_WORDS,
    PLACES,
    VERTICES_MAX,
    WEIGHTED,
    WORDS,
)
from . import shown as shown_rows
from .shown import (
    ALIVE,
    GENERATION,
    IN_ROWS,
    IS_SHOWN,
    LOCK,
    N_VERTICES,
    OUT_ROWS,
    QUESTIONS,
    STAMP,
    STAMP_SIZE,
    Shown,
    has_rows,
    rows_at,
)

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")

LONG_ROW = 1 << 16
"""A page further on in a row of more edges is looked for otherwise: here it would take a while to get there."""
SHORT_ROW = 1 << 10
"""Beside a batch that is written, whoever must go along a row to look for something does so in shorter ones."""
_VERTICES = 1 << 32
# What became of a question; it waits for a batch that is written.
_NO, _YES, _WAITS = 0, 1, 2
_UNKNOWN = np.int64(-1)
# Words of a lane's own: the order to stop, what ``ppoll`` waits for, for how long (seconds and nanoseconds), and
# what is read from and written to an eventfd.
_STOP, _POLLED, _PAUSE, _READ, _ONE, _OWN_WORDS = 0, 1, 2, 4, 5, 6
# What waits for a batch is tried again after the least of these, then after twice as long, and so on.
_PAUSE_LEAST_NS, _PAUSE_MOST_NS = 50_000, 400_000
_POLLIN = 1


class Lane:
    """The engine's end of one query server's lane: its memory, and the thread that answers."""

    is_possible = hasattr(os, "memfd_create") and hasattr(os, "eventfd")
    """Whether the system has what it takes."""

    def __init__(self, shown: Shown) -> None:
        """
        Raises:
            OSError: the system has no such memory, or no more threads or descriptors.
        """
        with contextlib.ExitStack() as stack:

            def kept(descriptor: int) -> int:
                stack.callback(os.close, descriptor)
                return descriptor

            memory = kept(os.memfd_create("graphtide:lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(memory, 8 * WORDS)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._questions = kept(os.eventfd(0, os.EFD_CLOEXEC))
            self._answers = kept(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            self.descriptors = memory, self._questions, self._answers
            """For the server, in this order."""
            self._words = np.frombuffer(mmap.mmap(memory, 8 * WORDS), np.int64)
            self._own = np.zeros(_OWN_WORDS, np.int64)
            self._own[_POLLED] = self._questions | _POLLIN << 32  # struct pollfd
            self._own[_ONE] = 1
            self._shown = shown
            self._descriptors = stack.pop_all()
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._answer, name="lane", daemon=True)
        try:
            start_thread(self._thread)
        except RuntimeError as error:  # no more threads
            self._descriptors.close()
            raise OSError(f"no thread for questions about rows: {error}") from error

    def _answer(self) -> None:
        in_short_slices()
        answer_questions(self._shown.words, self._own, self._words, self._questions, self._answers)
        with self._ending:
            self._descriptors.close()

    def close(self) -> None:
        """End the thread, for which the server must be gone; harmless to repeat. It ends by and by."""
        with self._ending:  # so that these are its descriptors still
            if self._own[_STOP]:
                return
            self._own[_STOP] = 1
            for eventfd in (self._questions, self._answers):
                os.set_blocking(eventfd, False)  # whatever the server made of them
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._answers)  # it may be full, by a server that never read it
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self._questions, 1)

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended, or for so long; which it was."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


@_jit
def _side_of(shown, of):  # type: ignore[no-untyped-def]
    """The side of the gate for rows at ``OUT_ROWS`` or ``IN_ROWS``, which may be the same."""
    return np.int64(of == IN_ROWS and shown[IN_ROWS + 1] != shown[OUT_ROWS + 1])


@_jit
def _updates_of(shown, of, rows, u):  # type: ignore[no-untyped-def]
    """Which updates the batch that is being written has of a row (none: the row is the same before and after):
    the first one and the one behind the last; or ``_UNKNOWN``, where it cannot be said what was there before."""
    side = _side_of(shown, of)
    if not is_open_beside(shown, side, np.int64(address_of(rows.row_leaf))):
        return _UNKNOWN, _UNKNOWN
    return updates_of(shown, side, u)


@_jit
def _degree_before(shown, of, rows, u, begin, end):  # type: ignore[no-untyped-def]
    """How many edges a row had before these updates; ``_UNKNOWN``: it cannot be said."""
    if begin == _UNKNOWN:
        return _UNKNOWN
    if begin == end:
        return np.int64(rows.degrees[u])
    if end - begin > SHORT_ROW or how_noted(shown, _side_of(shown, of)) == NOTING:
        return _UNKNOWN
    return np.int64(degree_before(shown, _side_of(shown, of), rows, u, begin, end))


@_jit
@spliced
def _lies_still(shown, of, rows, u, wanted):  # type: ignore[no-untyped-def]
    """Whether none of the leaves is being written in which the first ``wanted`` edges of a row lie that has no
    updates."""
    side = _side_of(shown, of)
    for leaf, _ in leaves_of(rows, u, wanted):
        if leaf >= rows.counts.size or is_written(shown, side, leaf):
            return False
    return True


@_jit
@spliced
def _is_in_row(rows, u, key):  # type: ignore[no-untyped-def]
    """Whether a key is in row u, by a walk along it."""
    for slot, stop in runs(rows, u):
        if stop > slot and rows.keys[stop - 1] >= key:
            while rows.keys[slot] < key:
                slot += 1
            return rows.keys[slot] == key
    return False


@_jit
def _neighbors(shown, words, at, beside):  # type: ignore[no-untyped-def]
    """A page of neighbours; ``_NO``: it must be asked for otherwise."""
    vertex, direction = load(words, at + NUMBERS), load(words, at + NUMBERS + 1)
    first, limit = load(words, at + NUMBERS + 2), load(words, at + NUMBERS + 3)
    if limit < 1 or limit > _VERTICES or first < 0 or first >= _VERTICES:
        return _NO
    of = IN_ROWS if direction == IN else OUT_ROWS
    if not has_rows(shown, of):
        return _NO
    rows = rows_at(shown, of)
    flags = np.int64(WEIGHTED) if rows.weights.size else np.int64(0)
    count, cursor = np.int64(0), np.int64(-1)
    alive = array_at(np.uint64(shown[ALIVE]), shown[N_VERTICES], np.uint8)
    if 0 <= vertex < alive.size and alive[vertex]:
        flags |= KNOWN
        degree = np.int64(rows.degrees[vertex])
        begin, end = np.int64(0), np.int64(0)
        if beside:
            begin, end = _updates_of(shown, of, rows, vertex)
            degree = _degree_before(shown, of, rows, vertex, begin, end)
            if degree == _UNKNOWN:
                return _WAITS
        # One more than asked for tells whether there is a next page, and where it begins.
        wanted = min(limit + 1, degree)
        if wanted > NEIGHBORS_MAX or (first > 0 and degree > LONG_ROW):
            return _NO
        if beside and first > 0 and degree > SHORT_ROW:
            return _WAITS
        if beside and begin == end and not _lies_still(shown, of, rows, vertex, degree if first > 0 else wanted):
            return _WAITS
        base = np.int64(address_of(words))
        found = array_at(np.uint64(base + 8 * (at + FOUND)), wanted, np.uint32)
        n_weights = wanted if rows.weights.size else np.int64(0)
        weights = array_at(np.uint64(base + 8 * (at + FOUND_WEIGHTS)), n_weights, np.float32)
        if begin == end:
            count = np.int64(copy_row(rows, vertex, first, found, weights))
        elif degree > 0:
            count = np.int64(copy_row_before(shown, _side_of(shown, of), rows, vertex, end, first, found, weights))
            if count == WAITS:
                return _WAITS
        if count > limit:
            count = limit
            cursor = np.int64(found[limit])
    words[at + COUNT], words[at + CURSOR], words[at + FLAGS] = count, cursor, flags
    return _YES


@_jit
def _degrees(shown, words, at, beside):  # type: ignore[no-untyped-def]
    """Degrees of some vertices; ``_NO``: they must be asked for otherwise."""
    n = load(words, at + NUMBERS)
    if n < 0 or n > VERTICES_MAX:
        return _NO
    out = rows_at(shown, OUT_ROWS)
    has_in = has_rows(shown, IN_ROWS)
    in_ = rows_at(shown, IN_ROWS) if has_in else out
    alive = array_at(np.uint64(shown[ALIVE]), shown[N_VERTICES], np.uint8)
    base = np.int64(address_of(words))
    vertices = array_at(np.uint64(base + 8 * (at + COLUMNS)), n, np.uint32)
    known = array_at(np.uint64(base + 8 * (at + FOUND_KNOWN)), n, np.uint8)
    for i in range(n):
        vertex = np.int64(load(vertices, i))
        is_known = vertex < alive.size and alive[vertex] != 0
        known[i] = np.uint8(is_known)
        n_out = np.int64(out.degrees[vertex]) if is_known else np.int64(0)
        n_in = np.int64(in_.degrees[vertex]) if is_known else np.int64(0)
        if beside and is_known:
            begin, end = _updates_of(shown, OUT_ROWS, out, vertex)
            n_out = _degree_before(shown, OUT_ROWS, out, vertex, begin, end)
            if has_in:
                begin, end = _updates_of(shown, IN_ROWS, in_, vertex)
                n_in = _degree_before(shown, IN_ROWS, in_, vertex, begin, end)
            if n_out == _UNKNOWN or n_in == _UNKNOWN:
                return _WAITS
        words[at + FOUND_OUT + i], words[at + FOUND_IN + i] = n_out, n_in
    words[at + FLAGS] = HAS_IN if has_in else 0
    return _YES


@_jit
def _exist(shown, words, at, beside):  # type: ignore[no-untyped-def]
    """Whether some edges exist; ``_NO``: it must be asked otherwise."""
    n = load(words, at + NUMBERS)
    if n < 0 or n > VERTICES_MAX:
        return _NO
    rows = rows_at(shown, OUT_ROWS)
    base = np.int64(address_of(words))
    ends = array_at(np.uint64(base + 8 * (at + COLUMNS)), np.int64(2 * VERTICES_MAX), np.uint32)
    exists = array_at(np.uint64(base + 8 * (at + FOUND_EXISTS)), n, np.uint8)
    for i in range(n):
        src, dst = np.int64(load(ends, i)), np.uint64(load(ends, VERTICES_MAX + i))
        exists[i] = 0
        if src >= shown[N_VERTICES]:
            continue
        if beside:
            key = np.uint64(src) << HALF | dst
            begin, end = _updates_of(shown, OUT_ROWS, rows, src)
            degree = _degree_before(shown, OUT_ROWS, rows, src, begin, end)
            if degree == _UNKNOWN or degree > SHORT_ROW:
                return _WAITS
            if begin == end:
                if not _lies_still(shown, OUT_ROWS, rows, src, degree):
                    return _WAITS
                exists[i] = np.uint8(_is_in_row(rows, src, key))
            elif degree > 0:
                was_there = was_in_row(shown, _side_of(shown, OUT_ROWS), rows, src, key, begin, end)
                if was_there == WAITS:
                    return _WAITS
                exists[i] = np.uint8(was_there)
        elif rows.degrees[src] > 0:
            _, slot = find_on(rows, np.int64(rows.row_leaf[src]), np.uint64(src) << HALF | dst)
            exists[i] = np.uint8(slot >= 0)
    return _YES


@_jit
def _answer_place(shown, words, at, beside):  # type: ignore[no-untyped-def]
    """Answer what is asked at a place; only while the storage is locked, or (``beside``) the lock beside its
    writer is held. False: it is about what is being written."""
    if beside and not is_beside(shown):
        return False
    if shown[IS_SHOWN] == 0:
        words[at + DONE] = HIDDEN
        return True
    method = load(words, at + METHOD)
    done = np.int64(_NO)
    if method == NEIGHBORS:
        done = np.int64(_neighbors(shown, words, at, beside))
    elif method == DEGREE:
        done = np.int64(_degrees(shown, words, at, beside))
    elif method == HAS_EDGE:
        done = np.int64(_exist(shown, words, at, beside))
    if done == _WAITS:
        return False
    if done == _YES:
        to = np.uint64(np.int64(address_of(words)) + 8 * (at + layout.STAMP))
        copy_bytes(to, np.uint64(shown[STAMP]), shown[STAMP_SIZE])
        words[at + layout.STAMP_SIZE], words[at + layout.GENERATION] = shown[STAMP_SIZE], shown[GENERATION]
    words[at + DONE] = ANSWER if done == _YES else OTHERWISE
    return True


@_jit
def _try_place(shown, words, at):  # type: ignore[no-untyped-def]
    """Answer what is asked at a place, where the storage is open, or beside its writer; else false."""
    lock = np.int64(address_of(shown)) + 8 * LOCK
    beside = try_lock_to_read(lock) != 0
    if beside:
        lock = np.int64(address_of(shown)) + 8 * BESIDE_LOCK
        lock_to_read(lock)
    is_answered = _answer_place(shown, words, at, beside)
    unlock(lock)
    return is_answered


@_jit
def answer_questions(shown, own, words, questions, answers):  # type: ignore[no-untyped-def]
    """What the thread does until it is told to stop. ``questions``, ``answers``: eventfds.

    The storage is locked for one question at a time, so that a batch waits for no more than one. What can be
    answered beside a batch that is written, is: of rows as they were before it, and the answer names the
    epoch before, which is shown until the next one is. What cannot be is tried again by and by, and keeps nobody
    else waiting.
    """
    here = np.int64(address_of(own))
    pause = 0
    while True:
        # It waits, whatever the server made of the eventfd; for as long as it takes if nothing is left.
        own[_PAUSE + 1] = pause
        until = here + 8 * _PAUSE if pause > 0 else np.int64(0)
        if poll_for(here + 8 * _POLLED, np.int64(1), until, np.int64(0)) > 0:
            read_file(questions, here + 8 * _READ, np.int64(8))
        if load(own, _STOP) != 0:
            return
        answered, left = np.int64(0), np.int64(0)
        for place in range(PLACES):
            # Its eventfd may not have been written yet, which would order it: without an acquire a processor that
            # reorders loads could read here what was asked in this place before.
            if np.int64(load_acquire(words, place)) == ASKED:
                at = PLACES + place * PLACE_WORDS
                if load(shown, IS_SHOWN) == 0:  # nobody need wait to hear that
                    words[at + DONE] = HIDDEN
                elif not _try_place(shown, words, at):
                    left += 1
                    continue
                exchange(words, place, np.int64(ANSWERED))
                answered += 1
        if answered > 0:
            fetch_add(shown, QUESTIONS, answered)
            write_file(answers, here + 8 * _ONE, np.int64(8))
        pause = min(max(2 * pause, _PAUSE_LEAST_NS), _PAUSE_MOST_NS) if left > 0 else 0


_WORDS_TYPE = nb.types.Array(nb.types.int64, 1, "C")


def warm_up() -> None:
    """Compile the kernels, or load them from the cache."""
    shown_rows.warm_up()
    answer_questions.compile((_WORDS_TYPE, _WORDS_TYPE, _WORDS_TYPE, nb.types.int64, nb.types.int64))
