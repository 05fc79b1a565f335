"""Vertices are taken away in waves, each by all threads: cores from scratch.

A level k begins with a wave of the vertices that have k links left at most. Each takes one from the neighbours
that are still there, and those that have k left then are the next wave, until there is none; what is left begins
level k + 1 (Dasari, Desh, Zubair, "ParK: An efficient algorithm for k-core decomposition on multicore processors",
2014). Who belongs to a wave does not depend on who is faster, so that waves, and the numbers of the vertices in
each, are an order that is the same for any number of threads. Most waves of a long path are of two vertices: those
with few links are the caller's alone.

Who begins a level is looked for among all that are left, which is done as often as the cores of all vertices add
up to: no more than there are links.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from ...gpma.atomics import fetch_add
from ...gpma.edges import Int, Offsets, Vertices
from ...gpma.intrinsics import prefetch, prefetch_to_read, uncounted
from ...gpma.team import at_most, share

# The wave of a vertex that is in none yet.
_THERE = np.uint32(0xFFFF_FFFF)

# Links from which on a wave is shared, by so many for each thread. Pieces of a wave for each thread, and the most
# vertices in one: rows differ much in length.
_SHARED_LINKS = 1 << 14
_PIECES, _PIECE_MAX = 16, 64

# Where the next piece of a wave begins, and where the next wave ends: in lines of their own.
_PIECE, _NEXT, _N_CURSORS = 0, 8, 16

# Vertices of the next wave that a thread keeps until it writes them down together.
_BUFFER = 256

# How far ahead memory is asked for: of vertices that are taken away, and of links.
_AHEAD, _HEADS_AHEAD = 4, 12

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


@_jit
def take_away(offsets, heads, sizes, n, core, after, high, crew):  # type: ignore[no-untyped-def]
    """Find the cores of n vertices: these, in the order in which they were taken away.

    The ``sizes[v]`` links of v are at ``heads[offsets[v]:]``. Of each vertex ``core``, ``after`` and ``high`` are
    found, as in ``Cores``.
    """
    # Of each vertex, side by side, the links that it has left, and its wave.
    state = np.empty(2 * n, np.uint32)
    alive, most = np.empty(n, np.uint32), np.int64(0)
    for v in range(n):
        most = max(most, np.int64(sizes[v]))
        state[2 * v] = sizes[v]
        state[2 * v + 1] = _THERE
        alive[v] = v
    wave, next_, losing = np.empty(n, np.uint32), np.empty(n, np.uint32), np.empty(most + 1, np.uint32)
    cursors = np.zeros(_N_CURSORS, np.int64)
    n_alive, level, number = np.int64(n), np.int64(0), np.int64(0)
    while n_alive:
        n_alive, n_wave, least = _begin_level(state, alive, n_alive, level, number, wave)
        if n_wave == 0:
            level = least
            continue
        first = number
        while n_wave:
            links = np.int64(0)
            for i in range(n_wave):
                links += np.int64(sizes[wave[i]])
            cursors[:] = 0
            columns = (offsets, heads, sizes, state, wave, next_, core, after, high)
            if links < _SHARED_LINKS or crew.threads == 1:
                cursors[_NEXT] = _take(n_wave, *columns, level, first, number, losing)
            else:
                helped = at_most(crew, links // (_SHARED_LINKS // 2))
                piece = min(max(n_wave // (_PIECES * helped.threads), 1), _PIECE_MAX)
                share(helped, _take_pieces, (n_wave, piece, columns, level, first, number, most, cursors))
            wave, next_ = next_, wave
            n_wave = cursors[_NEXT]
            number += 1
        level += 1
    ranked = np.empty(n, np.uint32)
    _put_in_order(state, np.zeros(number + 1, np.uint32), ranked)
    return ranked


@uncounted
def _begin_level(
    state: Vertices, alive: Vertices, n_alive: Int, level: Int, number: Int, wave: Vertices
) -> tuple[Int, Int, Int]:
    """Part those who are in no wave yet: (how many stay alive, how many are this level's first wave, and the least
    links that one of the others has left)."""
    n_left, n_wave, least = np.int64(0), np.int64(0), np.int64(_THERE)
    for i in range(n_alive):
        v = np.int64(alive[i])
        if state[2 * v + 1] != _THERE:
            continue
        left = np.int64(state[2 * v])
        if left <= level:
            state[2 * v + 1] = number
            wave[n_wave] = v
            n_wave += 1
        else:
            alive[n_left] = v
            n_left += 1
            least = min(least, left)
    return n_left, n_wave, least


@uncounted
def _take(
    n_wave: Int,
    offsets: Offsets,
    heads: Vertices,
    sizes: Vertices,
    state: Vertices,
    wave: Vertices,
    next_: Vertices,
    core: Vertices,
    after: Vertices,
    high: Vertices,
    level: Int,
    first: Int,
    number: Int,
    losing: Vertices,
) -> Int:
    """Take away a whole wave, ``number``, of a level whose first was ``first``: the size of the next one."""
    n_next = np.int64(0)
    for i in range(n_wave):
        _ask_ahead(i, n_wave, offsets, heads, wave, after, high)
        n_losing = _take_one(
            wave[i], offsets, heads, sizes, state, core, after, high, level, first, number, losing
        )
        for k in range(n_losing):
            u = np.int64(losing[k])
            left = state[2 * u] - np.uint32(1)
            state[2 * u] = left
            if np.int64(left) == level:
                state[2 * u + 1] = number + 1
                next_[n_next] = u
                n_next += 1
    return n_next


@_jit
def _take_pieces(t, n_wave, piece, columns, level, first, number, most, cursors):  # type: ignore[no-untyped-def]
    """As ``_take``, by one of several threads: who takes the link that is one too many puts a vertex into the next
    wave."""
    offsets, heads, sizes, state, wave, next_, core, after, high = columns
    losing, buffer, n_held = np.empty(most + 1, np.uint32), np.empty(_BUFFER, np.uint32), np.int64(0)
    while True:
        begin = fetch_add(cursors, np.int64(_PIECE), np.int64(piece))
        if begin >= n_wave:
            break
        end = min(begin + piece, n_wave)
        for i in range(begin, end):
            _ask_ahead(i, end, offsets, heads, wave, after, high)
            n_losing = _take_one(
                wave[i], offsets, heads, sizes, state, core, after, high, level, first, number, losing
            )
            for k in range(n_losing):
                u = np.int64(losing[k])
                left = np.int64(fetch_add(state, 2 * u, _THERE))  # one less
                if left == level + 1:
                    state[2 * u + 1] = number + 1
                    if n_held == _BUFFER:
                        n_held = _write(buffer, n_held, next_, cursors)
                    buffer[n_held] = u
                    n_held += 1
    _write(buffer, n_held, next_, cursors)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _take_one(
    vertex: Int,
    offsets: Offsets,
    heads: Vertices,
    sizes: Vertices,
    state: Vertices,
    core: Vertices,
    after: Vertices,
    high: Vertices,
    level: Int,
    first: Int,
    number: Int,
    losing: Vertices,
) -> Int:
    """Give a vertex of a wave what is found for it, and list to ``losing`` who loses a link by that: how many.

    Whoever another thread puts into the next wave meanwhile is later than this one either way.
    """
    v, n_heads = np.int64(vertex), offsets[sizes.size]
    n_after, n_high, n_losing = np.int64(0), np.int64(0), np.int64(0)
    # Without branches, since half of them would be wrong.
    for e in range(offsets[v], offsets[v] + np.int64(sizes[v])):
        ahead = e + _HEADS_AHEAD
        prefetch(state, 2 * np.int64(heads[ahead if ahead < n_heads else n_heads - 1]))
        u = np.int64(heads[e])
        its = np.int64(state[2 * u + 1])
        n_after += (its > number) | ((its == number) & (u > v))
        n_high += its >= first
        losing[n_losing] = u
        n_losing += its == np.int64(_THERE)
    core[v] = level
    after[v] = n_after
    high[v] = n_high
    return n_losing


@uncounted
def _write(buffer: Vertices, n_held: Int, next_: Vertices, cursors: Offsets) -> Int:
    """Write what a thread held of the next wave; it holds none then."""
    at = fetch_add(cursors, np.int64(_NEXT), np.int64(n_held))
    for k in range(n_held):
        next_[at + k] = buffer[k]
    return np.int64(0)


@uncounted
def _ask_ahead(
    i: Int, end: Int, offsets: Offsets, heads: Vertices, wave: Vertices, after: Vertices, high: Vertices
) -> None:
    if i + _AHEAD < end:
        soon = np.int64(wave[i + _AHEAD])
        prefetch_to_read(heads, offsets[soon])
        prefetch(after, soon)
        prefetch(high, soon)


@uncounted
def _put_in_order(state: Vertices, begins: Vertices, ranked: Vertices) -> None:
    """Put the vertices in order of their waves, and of their numbers within each; ``begins``: zeros, one more than
    there are waves."""
    v: Int
    for v in range(ranked.size):
        begins[np.int64(state[2 * v + 1]) + 1] += np.uint32(1)
    for k in range(begins.size - 1):
        begins[k + 1] += begins[k]
    for v in range(ranked.size):
        number = np.int64(state[2 * v + 1])
        ranked[begins[number]] = v
        begins[number] += np.uint32(1)
