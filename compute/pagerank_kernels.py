"""Kernels of PageRank: residual edits, Gauss-Seidel sweeps, and the passes that keep its certificate.

Two linear systems over the same matrix M = I - d * P^T are kept side by side (``pagerank.py`` says why); in
both, M value = right-hand side - residual. Columns have a padded capacity, a multiple of ``WORD_VERTICES``,
and hold zeros past the last vertex, so that blocks are scanned whole.

Work is found through **flags**: one byte for each block of ``BLOCK`` vertices (64 KiB for a million vertices).
Whoever puts a residual over the bound flags its block; the scan of a flagged block looks at the weights. Since
weights are at least 1, a push compares with the bound alone and touches one residual and one byte. Outside a
solve no residual in an unflagged block is over bound * weight.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..gpma.rows import LOW

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]


class System(NamedTuple):
    """One of the two systems. Arrays have the same capacity in vertices.

    ``value``, ``residual``: float64[capacity]. ``weight``: float32[capacity], at least 1, shared by both systems.
    ``flags``: uint8, one per block. ``moved``: uint64, one bit per vertex, set when its value changes.
    ``scalars``: float64[2], ``BETA`` and ``NORM``; the second system has no use for them.
    """

    value: F64
    residual: F64
    weight: F32
    flags: U8
    moved: U64
    scalars: F64


BLOCK_SHIFT = 4
BLOCK = 1 << BLOCK_SHIFT
WORD_VERTICES = 8 * BLOCK  # the vertices behind one 64-bit word of flags

# Slots of the ``work`` counters (int64).
PUSHES, EDGES, SWEEPS, RESCALED, BALANCED, UNDONE = range(6)
WORK_SLOTS = 6
# Slots of ``System.scalars``: the level of the right-hand side, and the sum of the values.
BETA, NORM = range(2)

# beta is brought back to 1, by rescaling every estimate, when it has left this range.
BETA_MIN, BETA_MAX = 0.8, 1.25
# Residuals are balanced when their sum is at least this share of the sum of their sizes, ...
BALANCE_SHARE = 0.1
# ... for good if the next dense sweep then leaves at most this share of their sizes (or next to nothing), ...
BALANCE_GAIN = 0.5
# ... and at most so often in one solve, so that termination rests on Gauss-Seidel alone.
BALANCES_MAX = 16

# A row is rewritten when at most this many times as many edges remain in it as were changed.
ROW_EDIT_FACTOR = 4

_NO_ROW = np.int64(1) << np.int64(40)
_ONE = np.uint64(1)

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


@_jit
def _row_start(rows, u):  # type: ignore[no-untyped-def]
    """(leaf, slot) of the first key of row u, which must not be empty; counts keys instead of branching."""
    first_key = np.uint64(u) << np.uint64(32)
    leaf = np.int64(rows.row_leaf[u])
    while True:
        slot = leaf << rows.leaf_shift
        count = np.int64(rows.counts[leaf])
        smaller = np.int64(0)
        for i in range(slot, slot + count):
            smaller += np.int64(rows.keys[i] < first_key)
        if smaller < count:
            return leaf, slot + smaller
        leaf += np.int64(1)


@_jit
def _add_to_row(rows, u, share, bound, residual, flags):  # type: ignore[no-untyped-def]
    """Add ``share`` to the residual of every out-neighbour of u, whose degree must be positive."""
    remaining = np.int64(rows.degrees[u])
    leaf, slot = _row_start(rows, u)
    while remaining > 0:
        end = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
        for i in range(slot, end):
            v = np.uintp(rows.keys[i] & LOW)
            x = residual[v] + share
            residual[v] = x
            flags[v >> np.uintp(BLOCK_SHIFT)] |= np.uint8(abs(x) > bound)
        remaining -= end - slot
        leaf += np.int64(1)
        slot = leaf << rows.leaf_shift


@_jit
def _add_to_row_twice(rows, u, share, residual, flags, share_2, residual_2, flags_2):  # type: ignore[no-untyped-def]
    """``_add_to_row`` for both systems in one walk."""
    remaining = np.int64(rows.degrees[u])
    leaf, slot = _row_start(rows, u)
    while remaining > 0:
        end = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
        for i in range(slot, end):
            v = np.uintp(rows.keys[i] & LOW)
            residual[v] += share
            residual_2[v] += share_2
            flags[v >> np.uintp(BLOCK_SHIFT)] = np.uint8(1)
            flags_2[v >> np.uintp(BLOCK_SHIFT)] = np.uint8(1)
        remaining -= end - slot
        leaf += np.int64(1)
        slot = leaf << rows.leaf_shift


@_jit
def _change_residual(system, v, by):  # type: ignore[no-untyped-def]
    system.residual[v] += by
    system.flags[v >> BLOCK_SHIFT] = np.uint8(1)


@_jit
def _rescale(system, u, growth):  # type: ignore[no-untyped-def]
    """Let the value of u grow with its degree: its unchanged edges then keep their contribution."""
    by = system.value[u] * growth
    system.value[u] += by
    system.scalars[NORM] += by
    system.moved[u >> 6] |= _ONE << np.uint64(u & 63)
    _change_residual(system, u, -by)


@_jit
def edit_rows(rows, inserted, deleted, damping, first, second):  # type: ignore[no-untyped-def]
    """Make both residuals those of the changed graph; returns the edges read.

    ``inserted`` and ``deleted``: the changed keys, ascending. The value of a vertex is rescaled with its degree,
    so that unchanged edges keep their contribution (Zhang, Lofgren, Goel, "Approximate Personalized PageRank on
    Dynamic Graphs", KDD 2016): O(1) a change, whatever the degree, and a following push of the vertex does
    what rewriting its row would have done. Where most of the row changed, values would jump far; there the
    row trades its old contributions for the new ones, which is O(1) a change too.
    """
    edges = np.int64(0)
    i = np.int64(0)
    j = np.int64(0)
    while i < inserted.size or j < deleted.size:
        row_in = np.int64(inserted[i] >> np.uint64(32)) if i < inserted.size else _NO_ROW
        row_out = np.int64(deleted[j] >> np.uint64(32)) if j < deleted.size else _NO_ROW
        u = min(row_in, row_out)
        i_end = i
        while i_end < inserted.size and np.int64(inserted[i_end] >> np.uint64(32)) == u:
            i_end += 1
        j_end = j
        while j_end < deleted.size and np.int64(deleted[j_end] >> np.uint64(32)) == u:
            j_end += 1
        after = np.int64(rows.degrees[u])
        before = after - (i_end - i) + (j_end - j)
        y = first.value[u]
        z = second.value[u]
        if before > 0 and after > 0 and after != before:
            if after > ROW_EDIT_FACTOR * (i_end - i + j_end - j):
                growth = after / before - 1.0
                _rescale(first, u, growth)
                _rescale(second, u, growth)
            else:
                by = damping / after - damping / before
                _add_to_row_twice(
                    rows, u, y * by, first.residual, first.flags, z * by, second.residual, second.flags
                )
                edges += after
        # The row as it stands is settled as if every edge had had the old share; so what came and what
        # went count in full. (Without an old share there is only the new one.)
        share = damping / (before if before > 0 else after)
        for k in range(i, i_end):
            v = np.int64(inserted[k] & LOW)
            _change_residual(first, v, y * share)
            _change_residual(second, v, z * share)
        for k in range(j, j_end):
            v = np.int64(deleted[k] & LOW)
            _change_residual(first, v, -y * share)
            _change_residual(second, v, -z * share)
        i = i_end
        j = j_end
    return edges


@_jit
def _sweep(rows, bound, level, damping, system, work):  # type: ignore[no-untyped-def]
    """One pass in memory order over the flagged blocks; true when any residual was over its bound."""
    value = system.value
    residual = system.residual
    weight = system.weight
    flags = system.flags
    words = flags.view(np.uint64)
    threshold = bound * level
    found = False
    pushes = np.int64(0)
    edges = np.int64(0)
    grown_by = 0.0
    for word in range(words.size):
        if words[word] == np.uint64(0):
            continue
        for block in range(word << 3, (word + 1) << 3):
            if flags[block] == np.uint8(0):
                continue
            start = block << BLOCK_SHIFT
            over = False
            for v in range(start, start + BLOCK):
                over |= abs(residual[v]) > bound * weight[v]
            flags[block] = np.uint8(0)
            if not over:
                continue
            found = True
            postponed = False
            for v in range(start, start + BLOCK):
                x = residual[v]
                if abs(x) > threshold * weight[v]:
                    residual[v] = 0.0
                    value[v] += x
                    grown_by += x
                    system.moved[v >> 6] |= _ONE << np.uint64(v & 63)
                    pushes += 1
                    degree = np.int64(rows.degrees[v])
                    if degree > 0:
                        edges += degree
                        _add_to_row(rows, v, damping * x / degree, bound, residual, flags)
                elif abs(x) > bound * weight[v]:
                    postponed = True
            if postponed:
                flags[block] = np.uint8(1)
    system.scalars[NORM] += grown_by
    work[PUSHES] += pushes
    work[EDGES] += edges
    work[SWEEPS] += 1
    return found


@_jit
def _passed_on(rows, n, residual):  # type: ignore[no-untyped-def]
    """Of the residuals that a push would pass on: (sum, sum of the sizes, number)."""
    total = 0.0
    size = 0.0
    number = 0
    for v in range(n):
        if rows.degrees[v] > 0:
            total += residual[v]
            size += abs(residual[v])
            number += 1
    return total, size, number


@_jit
def _shift(n, by, system):  # type: ignore[no-untyped-def]
    """Change beta, and with it every residual, by the same amount."""
    for v in range(n):
        system.residual[v] += by
    system.scalars[BETA] += by
    system.flags[:] = np.uint8(1)


@_jit
def _normalise(n, system, work):  # type: ignore[no-untyped-def]
    """Bring beta back to 1 if it has gone too far; the factor by which everything was scaled."""
    beta = system.scalars[BETA]
    if BETA_MIN <= beta <= BETA_MAX:
        return 1.0
    for v in range(n):
        system.value[v] /= beta
        system.residual[v] /= beta
    system.scalars[NORM] /= beta
    system.scalars[BETA] = 1.0
    system.flags[:] = np.uint8(1)
    work[RESCALED] += 1
    return 1.0 / beta


@_jit
def solve(rows, n, bound, level, damping, balanced, system, work):  # type: ignore[no-untyped-def]
    """Sweep until |residual| <= bound * weight everywhere; the threshold falls from ``level`` times the bound.

    With ``balanced``, beta is chosen anew after dense sweeps (those that read more edges than there are
    vertices), so that the residuals that will be passed on add up to zero. Where a surplus was not the slow
    part, which shows after the next dense sweep, the choice is undone and none follows
    (``work[UNDONE]``; ``work[BALANCED]`` counts those that helped).
    """
    tries = 0
    shift = 0.0
    size_before = 0.0
    while True:
        edges = work[EDGES]
        if not _sweep(rows, bound, level, damping, system, work):
            if not balanced or _normalise(n, system, work) == 1.0:
                return
            continue
        level = max(1.0, 0.5 * level)
        if not balanced or tries == BALANCES_MAX or work[EDGES] - edges <= n:
            continue
        total, size, number = _passed_on(rows, n, system.residual)
        if shift != 0.0:
            if size > max(BALANCE_GAIN * size_before, 2.0 * bound * number):
                _shift(n, shift, system)
                work[UNDONE] += 1
                tries = BALANCES_MAX
                continue
            work[BALANCED] += 1
            shift = 0.0
            scale = _normalise(n, system, work)
            total *= scale
            size *= scale
        if abs(total) > BALANCE_SHARE * size and abs(total) > 0.1 * bound * number:
            tries += 1
            shift = min(total / number, 0.9 * system.scalars[BETA])
            size_before = size
            _shift(n, -shift, system)


@_jit
def residuals(rows, n, damping, first, second):  # type: ignore[no-untyped-def]
    """Both residuals from their definition, in one walk over all rows; all flags are set on the way."""
    for v in range(n):
        first.residual[v] = first.scalars[BETA] - first.value[v]
        second.residual[v] = second.weight[v] - second.value[v]
    first.flags[:] = np.uint8(1)
    second.flags[:] = np.uint8(1)
    for u in range(n):
        degree = np.int64(rows.degrees[u])
        if degree > 0:
            share = damping / degree
            _add_to_row_twice(
                rows,
                u,
                share * first.value[u],
                first.residual,
                first.flags,
                share * second.value[u],
                second.residual,
                second.flags,
            )


@_jit
def reweigh(first, second, bound, hub, hysteresis):  # type: ignore[no-untyped-def]
    """Let the weights of moved vertices follow max(1, value / hub), where they are off by the hysteresis."""
    for word in range(first.moved.size):
        bits = first.moved[word]
        v = word << 6
        while bits != np.uint64(0):
            if bits & _ONE:
                target = max(1.0, first.value[v] / hub)
                old = np.float64(first.weight[v])
                if old > hysteresis * target or target > hysteresis * old:
                    first.weight[v] = np.float32(target)
                    _change_residual(second, v, np.float64(first.weight[v]) - old)
                    if abs(first.residual[v]) > bound * first.weight[v]:
                        first.flags[v >> BLOCK_SHIFT] = np.uint8(1)
            bits >>= _ONE
            v += 1


@_jit
def _ratio(first, second, v):  # type: ignore[no-untyped-def]
    return second.value[v] / first.value[v] if first.value[v] > 0.0 else np.inf


@_jit
def moved_ratio_max(first, second):  # type: ignore[no-untyped-def]
    """The largest second.value / first.value among the vertices of which either value moved.

    Infinity where the first value is not positive.
    """
    largest = 0.0
    for word in range(first.moved.size):
        bits = first.moved[word] | second.moved[word]
        v = word << 6
        while bits != np.uint64(0):
            if bits & _ONE:
                largest = max(largest, _ratio(first, second, v))
            bits >>= _ONE
            v += 1
    return largest


@_jit
def ratio_max(n, first, second):  # type: ignore[no-untyped-def]
    """The largest second.value / first.value of all, infinity where the first is not positive."""
    largest = 0.0
    for v in range(n):
        largest = max(largest, _ratio(first, second, v))
    return largest


@_jit
def take_moved(system, out):  # type: ignore[no-untyped-def]
    """Write the moved vertices, ascending, to ``out`` (uint32[>= their number]) and forget them; their number.

    A vertex over the length of ``out`` is counted and not written.
    """
    count = 0
    for word in range(system.moved.size):
        bits = system.moved[word]
        if bits == np.uint64(0):
            continue
        system.moved[word] = np.uint64(0)
        v = word << 6
        while bits != np.uint64(0):
            if bits & _ONE:
                if count < out.size:
                    out[count] = np.uint32(v)
                count += 1
            bits >>= _ONE
            v += 1
    return count


@_jit
def mark_moved(system, start, end):  # type: ignore[no-untyped-def]
    """Mark the vertices start .. end - 1 as moved."""
    for v in range(start, end):
        system.moved[v >> 6] |= _ONE << np.uint64(v & 63)
