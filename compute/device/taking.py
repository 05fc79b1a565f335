"""What a run of a path program wrote, taken over by the host's words as soon as the device has told of it.

In the compiled call that launches the kernel and waits for it: to go back into Python for that, and through NumPy
one function after the other, took as long as all the rest of a small refresh.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...gpma.device.calling import DONE, SAID, Then, carry_out, waits
from ...gpma.edges import Int, Keys, Vertices
from ...gpma.intrinsics import array_at, prefetch, uncounted

N_TOLD: Final = 7
"""Words that a kernel tells (``PathWord`` of ``paths.cuh``)."""
N_SAID: Final = N_TOLD + 3
"""Those, and what was taken: how many vertices, and how many of them were unreached before, and are now."""
# Of what a kernel tells.
_GAVE_UP, _LOGGED = range(2)
# Behind what is said: whether to take anything, the host's words; the list that the kernel writes, its room, and
# where vertices and their old words go.
_TAKES, _KEPT, _LIST, _ROOM, _VERTICES, _OLD = range(N_SAID, N_SAID + 6)
_NONE: Final = np.empty(0, np.uint32), np.empty(0, np.uint64)
_UNREACHED: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
# How long before its turn a word is asked for.
_AHEAD: Final = 16


class Taking:
    """Takes over what kernels list, pairs of a vertex and its word."""

    def __init__(self) -> None:
        self.then = Then(_carry_out_and_take, N_SAID - N_TOLD + 6)
        self._kept: Keys | None = None
        self._vertices: Vertices = np.empty(0, np.uint32)
        self._old: Keys = np.empty(0, np.uint64)

    @property
    def memory_bytes(self) -> int:
        return self._vertices.nbytes + self._old.nbytes

    def bind(self, said: memoryview) -> None:
        """``said``: of the calls that have ``then``."""
        self._said = said

    def read_from(self, listed: Keys) -> None:
        """From here on kernels write into this list, uint64[room, 2].

        Raises:
            MemoryError: there is no room for as many vertices; everything is as before.
        """
        room = len(listed)
        vertices, old = np.empty(room, np.uint32), np.empty(room, np.uint64)
        self._vertices, self._old = vertices, old
        said = self._said
        said[_LIST], said[_ROOM] = listed.ctypes.data, room
        said[_VERTICES], said[_OLD] = vertices.ctypes.data, old.ctypes.data

    def expect(self, kept: Keys | None) -> None:
        """Have the next call write into ``kept``, with an entry for each vertex; None: nothing is taken."""
        said = self._said
        said[_TAKES] = kept is not None
        if kept is not None and kept is not self._kept:
            assert kept.dtype == np.uint64 and kept.flags.c_contiguous
            self._kept = kept
            said[_KEPT] = kept.ctypes.data

    def taken(self, n: int) -> tuple[Vertices, Keys]:
        """The first n vertices whose entries became others, each once, and what these were; the entries good until
        the next call."""
        if not n:
            return _NONE
        return self._vertices[:n].copy(), self._old[:n]


def warm_up() -> None:
    """Compile what calls do."""
    _carry_out_and_take(np.zeros(SAID + N_SAID + 6, np.uint64))


@uncounted
def _carry_out_and_take(record: Keys) -> Int:
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
            vertex, word = listed[2 * k], listed[2 * k + 1]
            was = kept[vertex]
            if was == word:
                continue
            kept[vertex] = word
            vertices[taken], old[taken] = np.uint32(vertex), was
            taken += 1
            were += np.int64(was == _UNREACHED)
            are += np.int64(word == _UNREACHED)
    record[SAID + N_TOLD], record[SAID + N_TOLD + 1], record[SAID + N_TOLD + 2] = taken, were, are
    return status
