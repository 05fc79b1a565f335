"""The other direction of the updates of a batch, for rows on the host; by the threads of a crew."""

from __future__ import annotations

import numba as nb
import numpy as np

from ..gpma.drawing import drawn
from ..gpma.edges import HALF, EdgeBatch, Keys, Offsets
from ..gpma.host.sorting import Arrivals
from ..gpma.host.work import arrivals_of, column
from ..gpma.intrinsics import uncounted_inner
from ..gpma.team import Crew, at_most, share
from .scanning import chunks_of


def turned(batch: EdgeBatch, crew: Crew) -> EdgeBatch:
    """The same updates, seen from the heads of their edges; ops and weights are the batch's own.

    Raises:
        MemoryError: there is not enough.
    """
    keys = np.empty(len(batch), np.uint64)
    _transpose(column(batch.keys, np.uint64), keys, chunks_of(keys.size), crew)
    return EdgeBatch(keys, batch.ops, batch.weights)


def both_directions(batch: EdgeBatch, crew: Crew) -> EdgeBatch:
    """Each update followed by its mirror image; a self-loop's image says the same thing twice, harmlessly.

    Raises:
        MemoryError: there is not enough.
    """
    n, weighted = len(batch), batch.weights is not None
    both = EdgeBatch.empty(2 * n, weighted=weighted)
    _mirror(arrivals_of(batch, weighted=weighted), arrivals_of(both, weighted=weighted), chunks_of(n), crew)
    return both


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _transpose(keys: Keys, to_keys: Keys, n_chunks: int, crew: Crew) -> None:
    cursor = np.zeros(1, np.int64)
    share(at_most(crew, n_chunks), _transpose_chunks, (keys, to_keys, n_chunks, cursor))


@uncounted_inner
def _transpose_chunks(thread: int, keys: Keys, to_keys: Keys, n_chunks: int, cursor: Offsets) -> None:
    n = np.int64(keys.size)
    for chunk in drawn(cursor, n_chunks):
        for i in range(n * chunk // n_chunks, n * (chunk + 1) // n_chunks):
            key = keys[np.uintp(i)]
            to_keys[np.uintp(i)] = key << HALF | key >> HALF


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _mirror(batch: Arrivals, to: Arrivals, n_chunks: int, crew: Crew) -> None:
    cursor = np.zeros(1, np.int64)
    share(at_most(crew, n_chunks), _mirror_chunks, (batch, to, n_chunks, cursor))


@uncounted_inner
def _mirror_chunks(thread: int, batch: Arrivals, to: Arrivals, n_chunks: int, cursor: Offsets) -> None:
    keys, ops, weights = batch.keys, batch.ops, batch.weights
    to_keys, to_ops, to_weights = to.keys, to.ops, to.weights
    n = np.int64(keys.size)
    for chunk in drawn(cursor, n_chunks):
        for i in range(n * chunk // n_chunks, n * (chunk + 1) // n_chunks):
            key, op, at = keys[np.uintp(i)], ops[np.uintp(i)], np.uintp(2 * i)
            to_keys[at], to_keys[at + np.uintp(1)] = key, key << HALF | key >> HALF
            to_ops[at] = to_ops[at + np.uintp(1)] = op
            if weights.size:
                to_weights[at] = to_weights[at + np.uintp(1)] = weights[np.uintp(i)]


def warm_up(crew: Crew) -> None:
    """Compile the kernels, or load them from the cache."""
    batch = EdgeBatch.of([0], [1])
    turned(batch, crew)
    both_directions(batch, crew)
