"""What compiled readers see of the storage: where its rows lie, of which epoch they are, and a lock before all
that.

``StorageGate`` tells Python's threads when they may read; this tells threads that need no interpreter
(``lane.py``). The engine shuts it while it writes, and shows what there is before it opens it again. Who waits to
write goes first, so that no number of readers can keep the engine waiting.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.gate import BESIDE_LOCK, GATE_WORDS, IS_SHUT, Gate, end_beside
from ...gpma.host.array import PackedMemoryArray
from ...gpma.rows import RowView, rows_in
from ...gpma.written import Words, write
from ..records.lane import STAMP_BYTES_MAX

log = logging.getLogger(__name__)

# Words: the gate, which begins with the lock, and in which is another for those who read beside a writer; whether
# there is anything to be seen, how many vertices, where it says which of them are alive, the size of the stamp and
# where it is, the generation of the vertex index, and how many questions came; and out-rows and in-rows.
LOCK = 0
IS_SHOWN, N_VERTICES, ALIVE, STAMP_SIZE, STAMP, GENERATION, QUESTIONS = range(GATE_WORDS, GATE_WORDS + 7)
# Not plain integers: kernels are compiled for all of these at once, where a literal would make a form of its own.
OUT_ROWS, IN_ROWS = np.int64(GATE_WORDS + 8), np.int64(GATE_WORDS + 24)
# Of rows: whether there are any, and behind that the rows, as they are written down.
_HAS, _ROWS = 0, 1
_N_WORDS = GATE_WORDS + 40
_LINE_BYTES = 64
# Of pthread.h: the kind of lock at which readers wait behind whoever waits to write.
_WRITERS_FIRST = 2

_jit = nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")

# Without the interpreter's lock, for what may wait; with it for what does not, as to give it away costs more.
_waiting, _at_once = ctypes.CDLL(None), ctypes.PyDLL(None)


class Shown:
    """``words``: int64, for kernels. One thread calls the methods, the one that changes the storage."""

    def __init__(self) -> None:
        """Nothing is shown.

        Raises:
            OSError: the system has no such lock.
        """
        room = np.zeros(_N_WORDS + _LINE_BYTES // 8, np.int64)
        begin = -room.ctypes.data % _LINE_BYTES // 8
        self.words: npt.NDArray[np.int64] = room[begin : begin + _N_WORDS]
        self.gate: Gate = self.words[:GATE_WORDS]
        """For kernels that shut it themselves."""
        self._stamp = np.zeros(STAMP_BYTES_MAX, np.uint8)
        self.words[STAMP] = self._stamp.ctypes.data
        self._lock = ctypes.c_void_p(self.words.ctypes.data + 8 * LOCK)
        self._held: tuple[Any, ...] = ()
        self._is_too_long = False
        kind = ctypes.create_string_buffer(_LINE_BYTES)
        failed = _at_once.pthread_rwlockattr_init(kind)
        set_kind = getattr(_at_once, "pthread_rwlockattr_setkind_np", None)  # a library without it is fair enough
        failed = failed or (set_kind is not None and set_kind(kind, _WRITERS_FIRST))
        failed = failed or _at_once.pthread_rwlock_init(self._lock, kind)
        beside = ctypes.c_void_p(self.words.ctypes.data + 8 * BESIDE_LOCK)
        failed = failed or _at_once.pthread_rwlock_init(beside, kind)
        if failed:
            raise OSError(failed, "no lock for readers of the storage")

    def shut(self) -> None:
        """Wait until nobody reads, and let nobody in; harmless to repeat."""
        if self.gate[IS_SHUT]:
            return
        if _at_once.pthread_rwlock_trywrlock(self._lock) != 0:
            _waiting.pthread_rwlock_wrlock(self._lock)
        self.gate[IS_SHUT] = 1

    def open(self) -> None:
        """Let readers in; the thread that shut it."""
        self.gate[IS_SHUT] = 0
        _at_once.pthread_rwlock_unlock(self._lock)

    def end_beside(self) -> None:
        """Let nobody read beside a batch: rows and stamp are about to be shown anew. While it is shut."""
        end_beside(self.gate)

    def hide(self) -> None:
        """There is nothing to be seen; while it is shut, also for who reads beside. Arrays are let go."""
        self.words[IS_SHOWN] = 0
        self._held = ()

    @property
    def may_be_shown(self) -> bool:
        """There is nothing to be seen, and not for want of room for the stamp."""
        return self.words[IS_SHOWN] == 0 and not self._is_too_long

    def show(
        self,
        rows: tuple[RowView, RowView | None],
        alive: npt.NDArray[np.bool_],
        stamp: bytes,
        index_generation: int,
    ) -> None:
        """Out-rows and in-rows, which of the vertices are alive, of which epoch that is, and which generation of
        the vertex index knows them; while it is shut, also for who reads beside. The arrays are held."""
        if len(stamp) > STAMP_BYTES_MAX:
            if not self._is_too_long:
                log.info("offsets take %d bytes: questions about neighbours go the slower way", len(stamp))
            self._is_too_long = True
            self.hide()
            return
        words = self.words
        out, in_ = rows
        before = self._held[:2]
        if not before or before[0] is not out or before[1] is not in_:
            _place_rows(words, OUT_ROWS, out)
            words[IN_ROWS + _HAS] = 0
            if in_ is not None:
                _place_rows(words, IN_ROWS, in_)
        self._held = out, in_, alive
        self._stamp[: len(stamp)] = np.frombuffer(stamp, np.uint8)
        words[N_VERTICES], words[ALIVE] = alive.size, alive.ctypes.data
        words[STAMP_SIZE], words[GENERATION] = len(stamp), index_generation
        words[IS_SHOWN] = 1


def _place_rows(words: Words, at: np.int64, rows: RowView) -> None:
    """Write down where rows lie. To ask ten arrays for their addresses in Python takes as long as many a batch."""
    write(words[at + _ROWS :], rows)
    words[at + _HAS] = 1


def warm_up() -> None:
    """Compile what writes rows down, or load it from the cache."""
    array = PackedMemoryArray(weighted=False)
    try:
        array.ensure_vertices(1)
        _place_rows(np.zeros(_N_WORDS, np.int64), OUT_ROWS, array.view())
    finally:
        array.close()
    end_beside(Shown().gate)


@_jit
def has_rows(words, at):  # type: ignore[no-untyped-def]
    """Whether there are rows at ``OUT_ROWS`` or ``IN_ROWS``."""
    return words[at + _HAS] != 0


@_jit
def rows_at(words, at):  # type: ignore[no-untyped-def]
    """The rows there; only while they are locked, and as long."""
    return rows_in(words[at + _ROWS :])
