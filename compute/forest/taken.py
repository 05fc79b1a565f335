"""Taking over a forest that was computed elsewhere, such as on a device: all of it, or what became another.

There a tree has a number below that of the vertices, every vertex begins as the tree of its own number, and what
is told of a vertex is its parent, its tree and its level. Here lists, sizes, free handles and names follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.drawing import drawn
from ...gpma.edges import NO_VERTEX, Vertices
from ...gpma.intrinsics import uncounted, uncounted_inner
from ...gpma.team import ALONE, Crew, at_most, share
from ..pieces import PIECE
from .forest import (
    LEVEL_STEP,
    N_FREE,
    N_HANDLES,
    N_USED,
    N_VERTICES,
    Changes,
    Forest,
    note_handle,
    plant,
    relevel,
    rename,
)
from .members import take_members, take_nodes
from .members import warm_up as warm_up_members

# As in ``forest.py``, they allocate nothing; but for a cursor, where work is shared.
_jit: Any = uncounted
_inner: Any = uncounted_inner
_shares: Any = nb.njit(cache=True, nogil=True, error_model="numpy")


Pieces = Iterable[tuple[int, npt.NDArray[np.uint32]]]


class Told(NamedTuple):
    """What some vertices became, uint32 columns of one length: levels are counted by ones."""

    vertices: Vertices
    parent: Vertices
    handle: Vertices
    level: Vertices


def differing(forest: Forest, n: int, nodes: npt.NDArray[np.uint32], crew: Crew) -> Told:
    """Of what is told of the first vertices, that which is not so in a ``forest`` of n; and all of the others.

    ``nodes``: uint32[told, 4], parent, level, handle, and a word that means nothing.
    """
    n_pieces = -(-len(nodes) // PIECE)
    ends = np.zeros(n_pieces + 1, np.int64)
    _count_differing(forest, n, nodes, ends[1:], crew)
    np.cumsum(ends, out=ends)
    told = Told(*(np.empty(ends[-1], np.uint32) for _ in Told._fields))
    _list_differing(forest, n, nodes, ends, told, crew)
    return told


@_inner
def _differs(forest, n, nodes, v):  # type: ignore[no-untyped-def]
    return (
        v >= n
        or forest.parent[v] != nodes[v, 0]
        or forest.level[v] != np.int64(nodes[v, 1]) * LEVEL_STEP
        or forest.handle[v] != nodes[v, 2]
    )


@_shares
def _count_differing(forest, n, nodes, counts, crew):  # type: ignore[no-untyped-def]
    cursor = np.zeros(1, np.int64)
    share(at_most(crew, counts.size), _count_pieces, (forest, n, nodes, cursor, counts))


@_inner
def _count_pieces(thread, forest, n, nodes, cursor, counts):  # type: ignore[no-untyped-def]
    for piece in drawn(cursor, counts.size):
        count = np.int64(0)
        for v in range(piece * PIECE, min((piece + 1) * PIECE, np.int64(nodes.shape[0]))):
            count += np.int64(_differs(forest, n, nodes, v))
        counts[piece] = count


@_shares
def _list_differing(forest, n, nodes, ends, told, crew):  # type: ignore[no-untyped-def]
    cursor = np.zeros(1, np.int64)
    share(at_most(crew, ends.size - 1), _list_pieces, (forest, n, nodes, cursor, ends, told))


@_inner
def _list_pieces(thread, forest, n, nodes, cursor, ends, told):  # type: ignore[no-untyped-def]
    for piece in drawn(cursor, ends.size - 1):
        at = ends[piece]
        for v in range(piece * PIECE, min((piece + 1) * PIECE, np.int64(nodes.shape[0]))):
            if at < ends[piece + 1] and _differs(forest, n, nodes, v):
                told.vertices[at], told.parent[at] = v, nodes[v, 0]
                told.level[at], told.handle[at] = nodes[v, 1], nodes[v, 2]
                at += 1


def take_all(forest: Forest, nodes: Pieces, members: Pieces, place: Vertices, crew: Crew) -> None:
    """Make ``forest`` what is told of all vertices; trees are not named yet.

    ``nodes``, ``members``: as for ``differing`` and for ``take_members``, in pieces, in order, and where they
    begin; the latter are asked for when the former were taken. ``place`` (uint32[n] at least): where each free
    handle stands in the list of them, else ``NO_VERTEX``.
    """
    for first, piece in nodes:
        take_nodes(forest, first, piece, crew)
    n = n_free = 0
    for first, piece in members:
        n_free += take_members(forest, first, piece, place, crew)
        n = first + len(piece)
    forest.counts[N_FREE], forest.counts[N_USED] = n_free, n


@_jit
def add_own(forest, changes, place, begin, end):  # type: ignore[no-untyped-def]
    """New vertices begin .. end - 1, each the tree of its own number."""
    for v in range(begin, end):
        note_handle(forest, changes, v)
        plant(forest, v, v)
        place[v] = NO_VERTEX
    forest.counts[N_USED] = max(forest.counts[N_USED], end)


@_inner
def _unlink(forest, v):  # type: ignore[no-untyped-def]
    """Take v out of the list of its tree, which then is represented by any member."""
    h = forest.handle[v]
    before, after = forest.prev[v], forest.next[v]
    forest.next[before] = after
    forest.prev[after] = before
    forest.size[h] -= np.uint32(1)
    if forest.representative[h] == v:
        forest.representative[h] = after if after != v else NO_VERTEX


@_inner
def _link(forest, v, h):  # type: ignore[no-untyped-def]
    """Put v into the list of tree h."""
    forest.size[h] += np.uint32(1)
    member = forest.representative[h]
    if member == NO_VERTEX:
        forest.representative[h] = v
        forest.next[v] = v
        forest.prev[v] = v
        return
    after = forest.next[member]
    forest.next[member] = v
    forest.prev[v] = member
    forest.next[v] = after
    forest.prev[after] = v


@_inner
def _keep_free(forest, place, h):  # type: ignore[no-untyped-def]
    """Put handle h among the free ones, or take it from them."""
    counts = forest.counts
    at = place[h]
    if forest.size[h] == 0 and at == NO_VERTEX:
        forest.representative[h] = NO_VERTEX
        place[h] = counts[N_FREE]
        forest.free[counts[N_FREE]] = h
        counts[N_FREE] += 1
    elif forest.size[h] > 0 and at != NO_VERTEX:
        counts[N_FREE] -= 1
        last = forest.free[counts[N_FREE]]
        forest.free[at] = last
        place[last] = at
        place[h] = NO_VERTEX


@_jit
def take(forest, changes, place, begin, told, candidates, orphans):  # type: ignore[no-untyped-def]
    """Make ``forest`` what is told of some vertices, each once: (candidates, orphans).

    Vertices from ``begin`` on were added in this run.
    ``candidates`` (uint32[3 * told]): of each tree that got members, the smallest member is among these, unless it
    is an orphan. ``orphans`` (uint32[told, 2]): trees that lost their representative, and that. Representatives of
    both are any members.
    """
    vertices = told.vertices
    n_moved = np.int64(0)
    for i in range(vertices.size):
        v = vertices[i]
        forest.parent[v] = told.parent[i]
        forest.level[v] = np.int64(told.level[i]) * LEVEL_STEP
        if forest.handle[v] != told.handle[i]:
            note_handle(forest, changes, np.int64(forest.handle[v]))
            note_handle(forest, changes, np.int64(told.handle[i]))
            candidates[n_moved] = forest.representative[forest.handle[v]]
            n_moved += 1
    for i in range(vertices.size):
        if forest.handle[vertices[i]] != told.handle[i]:
            _unlink(forest, vertices[i])
    # The order of what is renamed is that of the representatives noted above.
    first = changes.counts[N_VERTICES]
    for i in range(vertices.size):
        v, h = vertices[i], told.handle[i]
        if forest.handle[v] != h:
            rename(forest, changes, np.int64(v), h)
            _link(forest, v, h)
    # Who came along with the representative of the old tree is not smaller than that.
    n_candidates = np.int64(0)
    for k in range(n_moved):
        v, r = changes.vertices[first + k], candidates[k]
        if v == r or forest.handle[r] != forest.handle[v]:
            candidates[n_candidates] = v
            n_candidates += 1
    n_orphans = np.int64(0)
    for k in range(changes.counts[N_HANDLES]):
        h, r = np.int64(changes.handles[k]), changes.old_representative[k]
        _keep_free(forest, place, h)
        if h >= begin:
            r = np.uint32(h)
        if forest.size[h] <= 1 or r == NO_VERTEX:  # any member is the only one; or all members are new
            continue
        if np.int64(forest.handle[r]) == h:
            candidates[n_candidates] = r
            n_candidates += 1
        else:
            orphans[n_orphans, 0] = h
            orphans[n_orphans, 1] = r
            n_orphans += 1
    return n_candidates, n_orphans


def depths(forest: Forest, n: int) -> Vertices:
    """Levels from one to the next, as they are told elsewhere; sets those of the forest likewise.

    Raises:
        ValueError: parents form no forest.
    """
    if not relevel(forest, n):
        raise ValueError("parents form no forest")
    levels: Vertices = (forest.level[:n] // LEVEL_STEP).astype(np.uint32)
    return levels


def warm_up() -> None:
    """Compile all kernels."""
    n = 3
    columns = [np.zeros(n, np.uint32) for _ in range(7)]
    forest = Forest._make([*columns, np.zeros(n, np.int64), np.zeros(2, np.int64)])
    columns = [np.zeros(n, np.uint32) for _ in range(7)]
    changes = Changes._make([*columns, np.zeros(2, np.int64), 1])
    place = np.zeros(n, np.uint32)
    warm_up_members()
    nodes = np.array([[NO_VERTEX, 0, 0, 0], [NO_VERTEX, 0, 1, 0]], np.uint32)
    members = np.array([[0, 0, 1, NO_VERTEX], [1, 1, 1, NO_VERTEX]], np.uint32)
    take_all(forest, [(0, nodes)], [(0, members)], place, ALONE)
    add_own(forest, changes, place, 2, 3)
    told = Told(np.array([1], np.uint32), *(np.zeros(1, np.uint32) for _ in range(3)))
    take(forest, changes, place, 2, told, np.empty(3, np.uint32), np.empty((1, 2), np.uint32))
    differing(forest, n, np.zeros((1, 4), np.uint32), ALONE)
    depths(forest, n)
