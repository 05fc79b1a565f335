"""Kernels of PageRank that go over all vertices, or over those that moved: weights, the majorant, ratios, sums.

The systems are those of ``sweeps.py``; threads take pieces of some thousand vertices.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from ...gpma.drawing import drawn, drawn_by
from ...gpma.intrinsics import inner
from ...gpma.team import at_most, begin_behind, share
from .passes import BLOCK_SHIFT
from .sweeps import ROUNDED

# So many words of bits are a piece, which has a vertex for each bit.
_PIECE_WORDS = 256
_PIECE = 64 * _PIECE_WORDS
# Values are added up by blocks of so many, and these by pieces of as many blocks.
_SUM_BLOCK = 128

_ONE = np.uint64(1)

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
_inner: Any = inner


@_inner
def _begin_pieces(thread, alive, values, ranks, cursor):  # type: ignore[no-untyped-def]
    """A thread's part of ``begin``."""
    n = np.int64(alive.size)
    for first in drawn_by(cursor, n, _PIECE):
        for v in range(first, min(first + _PIECE, n)):
            ranks.rhs[v] = ranks.weight[v] = np.float32(alive[v])
            ranks.value[v] = max(1.0, values[v]) if alive[v] else 0.0


@_jit
def begin(crew, alive, values, ranks):  # type: ignore[no-untyped-def]
    """Begin with these values (float64[n]), at least 1, of the living vertices; these have right-hand sides and
    weights of 1."""
    cursor = np.zeros(1, np.int64)
    share(crew, _begin_pieces, (alive, values, ranks, cursor))


@_inner
def _weigh_pieces(thread, n, ranks, hub, cursor, found):  # type: ignore[no-untyped-def]
    """A thread's part of ``weigh``; ``found``: float64[pieces, 4]: the sum of the weights and their number, the
    largest of them and of the estimates."""
    value, weight = ranks.value, ranks.weight
    for piece in drawn(cursor, found.shape[0]):
        total = 0.0
        count = np.int64(0)
        weight_max = 0.0
        value_max = 0.0
        for v in range(piece * _PIECE, min((piece + 1) * _PIECE, n)):
            # Weights are 1 where there is a vertex, and 0 elsewhere.
            w = np.float32(max(1.0, value[v] / hub)) * weight[v]
            count += np.int64(weight[v] > 0.0)
            weight[v] = w
            total += w
            weight_max = max(weight_max, np.float64(w))
            value_max = max(value_max, value[v])
        found[piece, 0], found[piece, 1] = total, count
        found[piece, 2], found[piece, 3] = weight_max, value_max


@_inner
def _majorise_pieces(thread, n, ranks, majorant, multiple, cursor):  # type: ignore[no-untyped-def]
    """A thread's part of the majorant that is a multiple of the estimates."""
    for begin in drawn_by(cursor, n, _PIECE):
        for v in range(begin, min(begin + _PIECE, n)):
            left = np.float64(ranks.rhs[v]) - ranks.residual[v]
            majorant.value[v] = multiple * ranks.value[v]
            majorant.residual[v] = np.float64(ranks.weight[v]) - multiple * left


@_jit
def weigh(crew, n, ranks, majorant, hub):  # type: ignore[no-untyped-def]
    """Weigh n vertices by their estimates, and let the majorant be a multiple of these.

    The weights are 1 before where there is a vertex. Returns the multiple, the largest weight and the largest
    value of the majorant. M estimate = rhs - residual, so it is a majorant of known slack.
    """
    found = np.zeros((-(-n // _PIECE), 4))
    cursor = np.zeros(1, np.int64)
    share(crew, _weigh_pieces, (n, ranks, hub, cursor, found))
    multiple = found[:, 0].sum() / found[:, 1].sum()
    cursor[0] = 0
    share(crew, _majorise_pieces, (n, ranks, majorant, multiple, cursor))
    return multiple, found[:, 2].max(), multiple * found[:, 3].max()


@_inner
def _reweigh_pieces(thread, ranks, majorant, bound, hub, hysteresis, cursor, found):  # type: ignore[no-untyped-def]
    """A thread's part of ``reweigh``; ``found``: float64[pieces, 2], how much weights shrank, what was rounded."""
    value, residual, weight, flags, moved = ranks.value, ranks.residual, ranks.weight, ranks.flags, ranks.moved
    slack = majorant.residual
    slack_flags = majorant.flags
    for piece in drawn(cursor, found.shape[0]):
        shrunk = 1.0
        rounded = 0.0
        for word in range(piece * _PIECE_WORDS, min((piece + 1) * _PIECE_WORDS, moved.size)):
            bits = moved[word]
            if bits == np.uint64(0):
                continue
            start = word << 6
            # Few weights are off: all are asked at once, without branches.
            some = False
            for v in range(start, start + 64):
                old = np.float64(weight[v])
                target = max(1.0, value[v] / hub)
                some |= (old > hysteresis * target) | ((target > hysteresis * old) & (old > 0.0))
            if not some:
                continue
            for v in range(start, start + 64):
                old = np.float64(weight[v])
                target = max(1.0, value[v] / hub)
                off = old > hysteresis * target or target > hysteresis * old
                if off and old > 0.0 and bits >> np.uint64(v & 63) & _ONE:
                    weight[v] = np.float32(target)
                    slack[v] += np.float64(weight[v]) - old
                    rounded += abs(slack[v])
                    shrunk = max(shrunk, old / np.float64(weight[v]))
                    slack_flags[v >> BLOCK_SHIFT] = np.uint8(1)
                    if abs(residual[v]) > bound * weight[v]:
                        flags[v >> BLOCK_SHIFT] = np.uint8(1)
        found[piece, 0] = shrunk
        found[piece, 1] = rounded


@_jit
def reweigh(crew, ranks, majorant, bound, hub, hysteresis):  # type: ignore[no-untyped-def]
    """Let the weights of moved vertices follow max(1, estimate / hub), where they are off by the hysteresis.

    The largest factor by which one shrank, at least 1.
    """
    found = np.empty((-(-ranks.moved.size // _PIECE_WORDS), 2))
    cursor = np.zeros(1, np.int64)
    share(crew, _reweigh_pieces, (ranks, majorant, bound, hub, hysteresis, cursor, found))
    shrunk = 1.0
    for piece in range(found.shape[0]):
        shrunk = max(shrunk, found[piece, 0])
        majorant.sums[ROUNDED] += found[piece, 1]
    return shrunk


@_inner
def _moved_ratio_pieces(thread, ranks, majorant, cursor, found):  # type: ignore[no-untyped-def]
    """A thread's part of ``moved_ratio_max``; ``found``: float64[pieces]."""
    value = ranks.value
    above = majorant.value
    weight = ranks.weight
    moved = ranks.moved
    moved_above = majorant.moved
    for piece in drawn(cursor, found.size):
        largest = 0.0
        for word in range(piece * _PIECE_WORDS, min((piece + 1) * _PIECE_WORDS, moved.size)):
            bits = moved[word] | moved_above[word]
            v = word << 6
            while bits != np.uint64(0):
                if bits & _ONE and weight[v] > 0.0:
                    largest = max(largest, above[v] / value[v] if value[v] > 0.0 else np.inf)
                bits >>= _ONE
                v += 1
        found[piece] = largest


@_jit
def moved_ratio_max(crew, ranks, majorant):  # type: ignore[no-untyped-def]
    """The largest majorant / estimate among the vertices of which either moved; infinity as ``ratio_max``."""
    found = np.zeros(-(-ranks.moved.size // _PIECE_WORDS))
    cursor = np.zeros(1, np.int64)
    share(crew, _moved_ratio_pieces, (ranks, majorant, cursor, found))
    return found.max()


@_inner
def _ratio_pieces(thread, n, ranks, majorant, cursor, found):  # type: ignore[no-untyped-def]
    """A thread's part of ``ratio_max``; ``found``: float64[pieces]."""
    value = ranks.value
    above = majorant.value
    weight = ranks.weight
    for piece in drawn(cursor, found.size):
        largest = 0.0
        for v in range(piece * _PIECE, min((piece + 1) * _PIECE, n)):
            if weight[v] > 0.0:
                largest = max(largest, above[v] / value[v] if value[v] > 0.0 else np.inf)
        found[piece] = largest


@_jit
def ratio_max(crew, n, ranks, majorant):  # type: ignore[no-untyped-def]
    """The largest majorant / estimate of all, infinity for an estimate that is not positive; of none, 1."""
    found = np.zeros(-(-n // _PIECE))
    cursor = np.zeros(1, np.int64)
    share(crew, _ratio_pieces, (n, ranks, majorant, cursor, found))
    largest = 0.0
    for piece in range(found.size):
        largest = max(largest, found[piece])
    return largest if largest > 0.0 else 1.0


@_inner
def _add_up_pieces(thread, values, cursor, found):  # type: ignore[no-untyped-def]
    """A thread's part of ``total``; ``found``: float64[pieces]."""
    for piece in drawn(cursor, found.size):
        begin = piece * _SUM_BLOCK * _SUM_BLOCK
        end = min(begin + _SUM_BLOCK * _SUM_BLOCK, np.int64(values.size))
        sums = np.zeros(8)
        for block in range(begin, end, _SUM_BLOCK):
            a = b = c = d = 0.0
            stop = min(block + _SUM_BLOCK, end)
            whole = block + (stop - block) // 4 * 4
            for k in range(block, whole, 4):
                a += values[k]
                b += values[k + 1]
                c += values[k + 2]
                d += values[k + 3]
            for k in range(whole, stop):
                a += values[k]
            sums[(block // _SUM_BLOCK) & 7] += (a + b) + (c + d)
        found[piece] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))


@_jit
def total(crew, values):  # type: ignore[no-untyped-def]
    """The sum of values, off by less than 64 times itself in units of ``ROUNDOFF``, if none is negative."""
    found = np.zeros(-(-values.size // (_SUM_BLOCK * _SUM_BLOCK)))
    share(at_most(crew, np.int64(found.size)), _add_up_pieces, (values, np.zeros(1, np.int64), found))
    # Pieces alone take most of the 64, and there may be many: what each addition rounds off is kept (Higham, 4.3).
    added = 0.0
    lost = 0.0
    for piece in range(found.size):
        more = found[piece]
        larger = added + more
        back = larger - added
        lost += (added - (larger - back)) + (more - back)
        added = larger
    return added + lost if lost == lost else added  # of what is infinite, nothing was kept


@_inner
def _count_moved_pieces(thread, moved, cursor, counts):  # type: ignore[no-untyped-def]
    """A thread's part of counting the bits of each piece."""
    for piece in drawn(cursor, counts.size):
        count = np.int64(0)
        for word in range(piece * _PIECE_WORDS, min((piece + 1) * _PIECE_WORDS, moved.size)):
            bits = moved[word]
            while bits != np.uint64(0):
                bits &= bits - _ONE
                count += 1
        counts[piece] = count


@_inner
def _take_moved_pieces(thread, moved, cursor, begins, out):  # type: ignore[no-untyped-def]
    """A thread's part of ``take_moved``; ``begins``: where each piece is to write."""
    for piece in drawn(cursor, begins.size):
        at = begins[piece]
        for word in range(piece * _PIECE_WORDS, min((piece + 1) * _PIECE_WORDS, moved.size)):
            bits = moved[word]
            if bits == np.uint64(0):
                continue
            moved[word] = np.uint64(0)
            v = word << 6
            while bits != np.uint64(0):
                if bits & _ONE:
                    if at < out.size:
                        out[at] = np.uint32(v)
                    at += 1
                bits >>= _ONE
                v += 1


@_jit
def take_moved(crew, system, out):  # type: ignore[no-untyped-def]
    """Write the moved vertices, ascending, to ``out`` (uint32[>= their number]) and forget them; their number.

    A vertex over the length of ``out`` is counted and not written.
    """
    moved = system.moved
    counts = np.zeros(-(-moved.size // _PIECE_WORDS), np.int64)
    cursor = np.zeros(1, np.int64)
    share(crew, _count_moved_pieces, (moved, cursor, counts))
    found = begin_behind(counts)
    cursor[0] = 0
    share(crew, _take_moved_pieces, (moved, cursor, counts, out))
    return found
