"""What one look at each entry of a column tells; long columns are looked at by the threads of a crew."""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from ..gpma.drawing import drawn
from ..gpma.edges import HALF, LOW, Int, Keys, Offsets, Vertices, frozen
from ..gpma.intrinsics import uncounted_inner
from ..gpma.team import Crew, at_most, share

# Columns are cut into so many chunks at most, each of so many entries at least: some ten microseconds.
CHUNKS_MAX, CHUNK_MIN = 64, 1 << 15


def largest_word(column: npt.NDArray[np.generic], crew: Crew) -> int:
    """The largest of the words of 32 bits that a contiguous column is made of, as unsigned ones; 0: there is none.

    So of keys this is the larger end of any edge.
    """
    words: Vertices = np.ascontiguousarray(column).view(np.uint32)
    if words.size <= CHUNK_MIN:
        return int(words.max(initial=0))
    return int(_largest(frozen(words), chunks_of(words.size), crew))


def require_known(largest: int, n_vertices: int) -> None:
    """Check that the vertices that updates name are there, by the largest of them.

    Raises:
        ValueError: it is not.
    """
    if largest >= n_vertices:
        raise ValueError(f"an update names vertex {largest} of {n_vertices}")


def count_loops(keys: Keys, crew: Crew) -> int:
    """How many of these arcs are loops. Takes no memory to speak of: it may be asked for after a commit."""
    return int(_count_loops(frozen(keys), chunks_of(keys.size), crew)) if keys.size else 0


def chunks_of(n: int) -> int:
    """Into how many chunks a column of so many entries is cut."""
    return min(max(1, n // CHUNK_MIN), CHUNKS_MAX)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _largest(words: Vertices, n_chunks: int, crew: Crew) -> Int:
    found = np.zeros(n_chunks, np.uint32)
    share(at_most(crew, n_chunks), _find_largest, (words, np.zeros(1, np.int64), found))
    return found.max()


@uncounted_inner
def _find_largest(thread: Int, words: Vertices, cursor: Offsets, found: Vertices) -> None:
    n, n_chunks = np.int64(words.size), np.int64(found.size)
    for chunk in drawn(cursor, n_chunks):
        largest = np.uint32(0)
        for i in range(n * chunk // n_chunks, n * (chunk + 1) // n_chunks):
            largest = max(largest, words[np.uintp(i)])
        found[np.uintp(chunk)] = largest


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _count_loops(keys: Keys, n_chunks: int, crew: Crew) -> Int:
    found = np.zeros(n_chunks, np.int64)
    share(at_most(crew, n_chunks), _find_loops, (keys, np.zeros(1, np.int64), found))
    return found.sum()


@uncounted_inner
def _find_loops(thread: Int, keys: Keys, cursor: Offsets, found: Offsets) -> None:
    n, n_chunks = np.int64(keys.size), np.int64(found.size)
    for chunk in drawn(cursor, n_chunks):
        loops = np.int64(0)
        for i in range(n * chunk // n_chunks, n * (chunk + 1) // n_chunks):
            key = keys[np.uintp(i)]
            loops += np.int64((key >> HALF) == (key & LOW))
        found[np.uintp(chunk)] = loops


def warm_up(crew: Crew) -> None:
    """Compile what long columns take, or load it from the cache."""
    _largest(frozen(np.ones(2, np.uint32)), 1, crew)
    count_loops(np.ones(1, np.uint64), crew)
