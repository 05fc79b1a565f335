"""Kernels of PageRank: Gauss-Seidel sweeps over its two systems.

These are linear systems over the same matrix M = I - d * P^T, the **ranks** and their **majorant**
(``certificate.py`` says why); in both, M value = rhs - residual. Columns have a padded capacity, so that flags
come in whole 64-bit words, and hold zeros past the last vertex, so that blocks are scanned whole.

Work is found through **flags**: one byte for each block of ``BLOCK`` vertices (64 KiB for a million vertices).
Whoever may put a residual over the bound flags its block; the scan of a flagged block looks at the weights. Since
weights are at least 1, a push compares with the limits alone and touches one residual and one byte. Outside a
solve no residual in an unflagged block is over its limits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from ...gpma.drawing import drawn, drawn_by
from ...gpma.edges import LOW
from ...gpma.intrinsics import inner, prefetch, prefetch_to_read
from ...gpma.rows import ask_for_leaf, runs
from ...gpma.splice import spliced
from ...gpma.team import at_most, share
from .passes import BLOCK, BLOCK_SHIFT, Limits

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]


class System(NamedTuple):
    """One of the two systems. Arrays have the same capacity in vertices.

    ``value``, ``residual``: float64[capacity]. ``rhs``: float32[capacity], the right-hand side. ``weight``:
    float32[capacity], at least 1 (0 where there is no vertex), shared by both systems. ``flags``: uint8, one per
    block. ``moved``: uint64, one bit per vertex, set when its value changes. ``sums``: float64[SUMS]: of the
    values, of the sizes of the residuals, in units of ``ROUNDOFF`` what rounding may have put between residuals
    and true ones, and between sums and true ones; and of the residuals. The majorant uses the third only.
    """

    value: F64
    residual: F64
    rhs: F32
    weight: F32
    flags: U8
    moved: U64
    sums: F64


class Outbox(NamedTuple):
    """What a sweep of one part of the vertices sends to the other, and nothing between sweeps.

    ``sent``: float64[capacity], residuals to be added. ``marks``: uint8, one per block: something was sent there.
    Empty arrays do where vertices are not divided.
    """

    sent: F64
    marks: U8


class Pushing(NamedTuple):
    """A system to be solved by pushes, and what that takes.

    ``limits``: of its residuals. ``costs``, ``work``: room for those of ``solve``, which adds to the latter.
    """

    system: System
    limits: Limits
    costs: npt.NDArray[np.int64]
    work: npt.NDArray[np.int64]


# Slots of the ``work`` counters (int64).
PUSHES, EDGES, SWEEPS, PASSES = range(4)
WORK_SLOTS = 4

# Slots of ``System.sums``.
NORM, SIZE, ROUNDED, SLIPPED, TOTAL = range(5)
SUMS = 5

# Rows of the costs of pushing: of all that is due, and of what the next sweep pushes.
OVER, NEXT = range(2)

# Outcomes of ``solve``.
SOLVED, COSTLY, DIVIDE = range(3)

# Vertices are divided for two threads at a multiple of this: they share no cache line of flags.
STRETCH = 64 * BLOCK

# What is over its limits is looked for in pieces of so many vertices, multiples of ``STRETCH``; and fewer flagged
# words of blocks than this are looked at by one thread.
_LOOK_PIECE = 16 * STRETCH
_LOOK_ALONE = 1 << 10

# A sweep looks this many pushes ahead for vertices, and fetches the rows of so many of them.
_AHEAD = 16
_ROWS_AHEAD = 4
_RING = 64  # a power of two, over _AHEAD + BLOCK
# Of a row it fetches so many leaves with the first, and while more edges than this are left, looks so many ahead.
_LONG = 64
_LEAVES_AHEAD = 3
# A leaf has room for 32 edges, and mostly holds more than these.
_LEAF_EDGES = 16

# Starting a push costs as much as pushing along so many edges (``benchmarks/walks.py``).
PUSH_EDGES = 48

_ONE = np.uint64(1)

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
_inner: Any = inner


@_jit
def flag(vertices, count, flags):  # type: ignore[no-untyped-def]
    """Flag the blocks of ``vertices[:count]``."""
    for i in range(count):
        flags[vertices[i] >> np.uint32(BLOCK_SHIFT)] = np.uint8(1)


@register_jitable
def push_cost(vertices: int | np.int64, edges: int | np.int64) -> int | np.int64:
    """What pushing vertices with so many out-edges costs, in edges; for kernels, and as it is for others."""
    return edges + PUSH_EDGES * vertices


@_jit
def look(rows, limits, level, begin, end, system, costs):  # type: ignore[no-untyped-def]
    """Write to ``costs`` what pushing costs, by stretches of ``STRETCH`` vertices: ``costs[OVER]`` of every vertex
    over its limits, ``costs[NEXT]`` of those over ``level`` times them, which the next sweep takes.

    Of vertices ``begin`` to ``end`` - 1, as ``sweep`` takes them. Blocks without any lose their flag.
    """
    residual, weight, flags = system.residual, system.weight, system.flags
    degrees = rows.degrees
    words = flags.view(np.uint64)
    below = -limits.below
    above = limits.above
    far_below = level * below
    far_above = level * above
    costs[:, begin // STRETCH : (end + STRETCH - 1) // STRETCH] = 0
    for word in range(begin >> (BLOCK_SHIFT + 3), end >> (BLOCK_SHIFT + 3)):
        if words[word] == np.uint64(0):
            continue
        due = following = np.int64(0)
        for block in range(word << 3, (word + 1) << 3):
            if flags[block] == np.uint8(0):
                continue
            start = block << BLOCK_SHIFT
            over = False
            for v in range(start, start + BLOCK):
                over |= (residual[v] > above * weight[v]) | (residual[v] < below * weight[v])
            flags[block] = np.uint8(over)
            if over:
                # Without branches: which vertices are over cannot be guessed.
                for v in range(start, min(start + BLOCK, degrees.size)):
                    x = residual[v]
                    cost = push_cost(np.int64(1), np.int64(degrees[v]))
                    due += cost * np.int64((x > above * weight[v]) | (x < below * weight[v]))
                    following += cost * np.int64((x > far_above * weight[v]) | (x < far_below * weight[v]))
        stretch = (word << (BLOCK_SHIFT + 3)) // STRETCH
        costs[OVER, stretch] += due
        costs[NEXT, stretch] += following


@_inner
def _look_pieces(thread, rows, limits, level, system, costs, cursor):  # type: ignore[no-untyped-def]
    """A thread's part of ``look_all``."""
    capacity = np.int64(system.value.size)
    for begin in drawn_by(cursor, capacity, _LOOK_PIECE):
        look(rows, limits, level, begin, min(begin + _LOOK_PIECE, capacity), system, costs)


@_jit
def look_all(crew, rows, limits, level, system, costs):  # type: ignore[no-untyped-def]
    """``look`` at all vertices, on as many threads as there is work for."""
    flagged = np.int64(0)
    words = system.flags.view(np.uint64)
    for word in range(words.size):
        flagged += np.int64(words[word] != np.uint64(0))
    cursor = np.zeros(1, np.int64)
    share(at_most(crew, flagged // _LOOK_ALONE + 1), _look_pieces, (rows, limits, level, system, costs, cursor))


@_jit
@spliced
def sweep(rows, limits, level, damping, due, begin, end, system, outbox, sums, work):  # type: ignore[no-untyped-def]
    """One pass in memory order over the flagged blocks: push what is over ``level`` times its limits.

    Of vertices ``begin`` to ``end`` - 1, multiples of ``STRETCH`` or the capacity: two threads may sweep two parts
    at once. What goes to the other part is left in the outbox, for ``deliver``. Vertices are found a little ahead
    of being pushed, so that their rows are on the way from memory by then.

    ``due``: what ``look`` has found pushing to cost. A sweep of more than an edge a vertex flags every block that
    it reaches: to look at those again costs less than a comparison at each edge.

    Added to ``sums`` is by how much ``System.sums`` change. Rounding: every sum is off by its size, a share by
    twice itself; the new value by its own size, which the vertex and its out-neighbours together see once each.
    """
    keys, counts, degrees, row_leaf = rows.keys, rows.counts, rows.degrees, rows.row_leaf
    leaf_shift = rows.leaf_shift
    value, residual, weight, flags = system.value, system.residual, system.weight, system.flags
    moved = system.moved
    sent = outbox.sent
    marks = outbox.marks
    words = flags.view(np.uint64)
    below = -limits.below
    above = limits.above
    pushes = np.int64(0)
    edges = np.int64(0)
    norm_by = size_by = moved_by = total_by = rounded = 0.0
    size_max = system.sums[SIZE]
    wide = due > value.size
    first = np.uint64(begin)
    last = np.uint64(end - 1)
    ring = np.empty(_RING, np.int64)
    head = np.int64(0)
    tail = np.int64(0)
    block = np.int64(begin >> BLOCK_SHIFT)
    blocks_end = np.int64(end >> BLOCK_SHIFT)
    while True:
        if tail - head <= _AHEAD and block < blocks_end:
            if (block & 7) == 0 and words[block >> 3] == np.uint64(0):
                block += 8
                continue
            if flags[block] != np.uint8(0):
                flags[block] = np.uint8(0)
                start = block << BLOCK_SHIFT
                for v in range(start, start + BLOCK):
                    x = residual[v]
                    if x > above * weight[v] or x < below * weight[v]:
                        x /= level
                        if x > above * weight[v] or x < below * weight[v]:
                            ring[tail & (_RING - 1)] = v
                            tail += 1
                            prefetch(value, v)
                            prefetch_to_read(degrees, v)
                            prefetch_to_read(row_leaf, v)
                        else:
                            flags[block] = np.uint8(1)
            block += 1
            continue
        if head == tail:
            break
        if head + _ROWS_AHEAD < tail:
            ahead = ring[(head + _ROWS_AHEAD) & (_RING - 1)]
            leaf = np.int64(row_leaf[ahead])
            prefetch_to_read(counts, leaf)
            further = np.int64(degrees[ahead]) // _LEAF_EDGES
            for k in range(1 + (further if further < _LEAVES_AHEAD else _LEAVES_AHEAD)):
                ask_for_leaf(keys, leaf + k, leaf_shift)
        v = ring[head & (_RING - 1)]
        head += 1
        x = residual[v]
        residual[v] = 0.0
        value[v] += x
        norm_by += x
        size_by -= abs(x)
        moved_by += abs(x)
        total_by -= x
        rounded += 2.0 * (abs(value[v]) + abs(x))
        moved[v >> 6] |= _ONE << np.uint64(v & 63)
        pushes += 1
        remaining = np.int64(degrees[v])
        if remaining > 0:
            edges += remaining
            total_by += damping * x
            share = damping * x / remaining
            for slot, stop in runs(rows, v):
                if remaining > _LONG:
                    ask_for_leaf(keys, (slot >> leaf_shift) + _LEAVES_AHEAD, leaf_shift)
                remaining -= stop - slot
                own = slot
                own_end = stop
                if keys[slot] & LOW < first or keys[stop - 1] & LOW > last:
                    for i in range(slot, stop):
                        u = keys[i] & LOW
                        own += np.int64(u < first)
                        own_end -= np.int64(u > last)
                    for begin_there, end_there in ((slot, own), (own_end, stop)):
                        for i in range(begin_there, end_there):
                            u = np.uintp(keys[i] & LOW)
                            sent[u] += share
                            rounded += abs(sent[u])
                            marks[u >> np.uintp(BLOCK_SHIFT)] = np.uint8(1)
                for i in range(own, own_end):
                    u = np.uintp(keys[i] & LOW)
                    before = residual[u]
                    r = before + share
                    residual[u] = r
                    size_by += abs(r) - abs(before)
                    rounded += abs(r)
                    if wide:
                        flags[u >> np.uintp(BLOCK_SHIFT)] = np.uint8(1)
                    else:
                        flags[u >> np.uintp(BLOCK_SHIFT)] |= np.uint8((r > above) | (r < below))
    sums[NORM] += norm_by
    sums[SIZE] += size_by
    sums[ROUNDED] += rounded
    # Pushes let no sum of sizes grow, and every step of adding up rounds.
    sums[SLIPPED] += (2.0 * edges + 6.0 * pushes) * size_max + (pushes + 4.0) * moved_by + abs(system.sums[NORM])
    sums[TOTAL] += total_by
    work[PUSHES] += pushes
    work[EDGES] += edges
    work[SWEEPS] += 1


@_inner
def deliver(limits, begin, end, system, outbox, sums):  # type: ignore[no-untyped-def]
    """Add what sweeps of the other part sent to vertices ``begin`` to ``end`` - 1; the outbox is empty then."""
    residual = system.residual
    flags = system.flags
    sent = outbox.sent
    marks = outbox.marks
    words = marks.view(np.uint64)
    below = -limits.below
    above = limits.above
    size_by = 0.0
    rounded = 0.0
    steps = 0
    for word in range(begin >> (BLOCK_SHIFT + 3), end >> (BLOCK_SHIFT + 3)):
        if words[word] == np.uint64(0):
            continue
        for block in range(word << 3, (word + 1) << 3):
            if marks[block] == np.uint8(0):
                continue
            start = block << BLOCK_SHIFT
            over = False
            for v in range(start, start + BLOCK):
                before = residual[v]
                r = before + sent[v]
                residual[v] = r
                sent[v] = 0.0
                size_by += abs(r) - abs(before)
                rounded += abs(r)
                over |= (r > above) | (r < below)
            steps += BLOCK
            flags[block] |= np.uint8(over)
        words[word] = np.uint64(0)
    sums[SIZE] += size_by
    sums[ROUNDED] += rounded
    sums[SLIPPED] += 2.0 * steps * system.sums[SIZE]


@_inner
def _sweep_parts(  # type: ignore[no-untyped-def]
    thread, rows, limits, level, damping, due, cut, system, outbox, cursor, sums, works
):
    """A thread's share of a sweep in two parts."""
    for part in drawn(cursor, 2):
        begin, end = (np.int64(0), cut) if part == 0 else (cut, np.int64(system.value.size))
        sweep(rows, limits, level, damping, due, begin, end, system, outbox, sums[part], works[part])


@_inner
def _deliver_parts(thread, rows, limits, level, cut, system, outbox, cursor, sums, costs):  # type: ignore[no-untyped-def]
    for part in drawn(cursor, 2):
        begin, end = (np.int64(0), cut) if part == 0 else (cut, np.int64(system.value.size))
        deliver(limits, begin, end, system, outbox, sums[part])
        look(rows, limits, level, begin, end, system, costs)


@_jit
def sweep_divided(crew, rows, limits, level, damping, cut, costs, system, outbox, work):  # type: ignore[no-untyped-def]
    """One sweep in two parts, of the vertices before ``cut`` and of the others.

    Returns the level of the next one; ``costs`` are those of it.
    """
    sums = np.zeros((2, system.sums.size))
    works = np.zeros((2, work.size), np.int64)
    cursor = np.zeros(1, np.int64)
    due = costs[OVER].sum()
    share(crew, _sweep_parts, (rows, limits, level, damping, due, cut, system, outbox, cursor, sums, works))
    cursor[0] = 0
    level = max(1.0, 0.5 * level)
    share(crew, _deliver_parts, (rows, limits, level, cut, system, outbox, cursor, sums, costs))
    for part in range(2):
        for k in range(sums.shape[1]):
            system.sums[k] += sums[part, k]
        for k in range(work.size):
            work[k] += works[part, k]
    # Both parts together are one.
    work[SWEEPS] -= 1
    return level


@_jit
def solve(crew, rows, limits, level, damping, cost_max, alone_max, costs, system, outbox, work):  # type: ignore[no-untyped-def]
    """Sweep until residuals are within their limits everywhere; the threshold falls from ``level`` times those.

    ``costs``: as ``look`` has left them. Returns the outcome, a level and a vertex. ``SOLVED``; ``COSTLY``, and no
    more sweeps, as soon as pushing what is over its limits would cost more than ``cost_max``; or ``DIVIDE``, when
    it would cost more than ``alone_max``: the next sweep, of this level, is worth two threads, and has about half
    its work before this vertex. Sweeps are the caller's alone; all of the crew look at what they leave.
    """
    capacity = system.value.size
    while True:
        cost = costs[OVER].sum()
        if cost == 0:
            return SOLVED, level, np.int64(0)
        if cost > cost_max:
            return COSTLY, level, np.int64(0)
        following = costs[NEXT if level > 1.0 else OVER]
        next_cost = following.sum()
        if next_cost > alone_max:
            cut = np.int64(0)
            before = np.int64(0)
            while 2 * (before + following[cut]) <= next_cost:
                before += following[cut]
                cut += 1
            return DIVIDE, level, cut * STRETCH
        sweep(rows, limits, level, damping, cost, np.int64(0), capacity, system, outbox, system.sums, work)
        level = max(1.0, 0.5 * level)
        look_all(crew, rows, limits, level, system, costs)


@_inner
def _solve_either(thread, crew, rows, damping, cost_max, alone_max, first, second, outbox, cursor):  # type: ignore[no-untyped-def]
    """A thread's share of ``solve_two``."""
    for part in drawn(cursor, 2):
        pushing = first if part == 0 else second
        look_all(crew, rows, pushing.limits, 1.0, pushing.system, pushing.costs)
        solve(
            crew,
            rows,
            pushing.limits,
            1.0,
            damping,
            cost_max,
            alone_max,
            pushing.costs,
            pushing.system,
            outbox,
            pushing.work,
        )


@_jit
def solve_two(crew, rows, damping, cost_max, alone_max, first, second, outbox):  # type: ignore[no-untyped-def]
    """``solve`` of two systems at once, each by one thread, from level 1 on and as far as that thread goes."""
    cursor = np.zeros(1, np.int64)
    arguments = (crew, rows, damping, cost_max, alone_max, first, second, outbox, cursor)
    share(at_most(crew, 2), _solve_either, arguments)


@_jit
def mark_moved(vertices, count, moved):  # type: ignore[no-untyped-def]
    """Mark ``vertices[:count]`` as moved."""
    for i in range(count):
        v = np.uint64(vertices[i])
        moved[v >> np.uint64(6)] |= _ONE << (v & np.uint64(63))
