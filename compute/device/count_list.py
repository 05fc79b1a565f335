"""The list of changed counts that kernels write into the host's memory, and how the host takes it over.

A bus stands between, and most counts are small: so an entry is one word of 64 bits, and a count that does not fit
into half of it stands in a column beside.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.device.state import pinned
from ...gpma.drawing import drawn
from ...gpma.edges import HALF, LOW, Keys, Offsets, Vertices
from ...gpma.intrinsics import inner, prefetch
from ...gpma.team import ALONE, Crew, at_most, share

F64 = npt.NDArray[np.float64]

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")

# FAR of counting.cuh.
_FAR: Final = np.uint64(0xFFFF_FFFF)
# Entries that a thread takes over at a time, and how long before its turn a count is asked for.
_PIECE: Final = 2048
_AHEAD: Final = 16


class Listed(NamedTuple):
    """``words``: uint64, count << 32 | vertex, each vertex once; ``far``: counts that are too large for 32 bits,
    whose words have ones there."""

    words: Keys
    far: F64

    def first(self, n: int) -> Listed:
        return Listed(self.words[:n], self.far[:n])

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.far.nbytes


def room_for(n: int) -> Listed:
    """Pinned memory for ``n`` entries.

    Raises:
        MemoryError: there is not enough.
    """
    return Listed(pinned(n, np.uint64), pinned(n, np.float64))


@_jit
def take(counts: F64, listed: Listed, crew: Crew) -> Vertices:
    """Make the counts of the listed vertices what is listed, on all threads.

    Returns these vertices, in the order of the list.
    """
    n_pieces = np.int64((listed.words.size + _PIECE - 1) // _PIECE)
    vertices, cursor = np.empty(listed.words.size, np.uint32), np.zeros(1, np.int64)
    share(at_most(crew, n_pieces), _take, (counts, listed, cursor, vertices))
    return vertices


@inner
def _take(thread: int, counts: F64, listed: Listed, cursor: Offsets, vertices: Vertices) -> None:
    words, far = listed
    for piece in drawn(cursor, np.int64((words.size + _PIECE - 1) // _PIECE)):
        end = min((piece + 1) * _PIECE, np.int64(words.size))
        for k in range(piece * _PIECE, end):
            if k + _AHEAD < end:
                prefetch(counts, np.int64(words[k + _AHEAD] & LOW))
            vertex, count = words[k] & LOW, words[k] >> HALF
            counts[vertex] = far[k] if count == _FAR else np.float64(count)
            vertices[k] = np.uint32(vertex)


def warm_up() -> None:
    """Compile what takes lists over."""
    take(np.zeros(1), Listed(np.zeros(1, np.uint64), np.zeros(1)), ALONE)
