"""A rooted spanning forest with a handle per tree: what ``components`` stands on.

Layout, one entry per vertex: ``parent`` (``NO_VERTEX``: a root), ``level``, ``handle`` (the name of its tree),
and ``next``/``prev``, the members of a tree as a circular list, so that a tree can be renamed without reading
edges. One entry per handle: ``size`` (0: free) and ``representative`` (the member with the smallest external
id).

Levels rise from every parent to its children. So parents lead to a root, which each vertex proves for itself; and
a climb that has come below the level of some vertex will not meet it any more, however far the root is. That is
all they say: they begin as ``LEVEL_STEP`` times the depth, and what turns round or is hung elsewhere only lowers
some (``lower_above``), for to lower a vertex is right for all below it.

Joining names the smaller side anew (small to large: n log n names for n joins). Cutting is in
``cut.py``, spanning from scratch in ``span.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.drawing import drawn
from ...gpma.edges import HALF, LOW, NO_VERTEX, Vertices
from ...gpma.intrinsics import prefetch, prefetch_to_read, uncounted, uncounted_inner
from ...gpma.rows import runs
from ...gpma.splice import spliced
from ...gpma.team import at_most, share
from ...gpma.written import record_type
from ..pieces import PIECE

Ints = npt.NDArray[np.int64]


# Between a vertex and its children where nothing was lowered; depths fit 32 bits, and so this leaves 2**47 joins.
LEVEL_STEP = 1 << 16
# By how much a vertex goes below what is to be below it.
_LEVEL_GAP = 1 << 4
# How long before its turn an update's vertices are asked for in ``classify``.
_AHEAD = 16

# Indices into Forest.counts.
N_FREE, N_USED = 0, 1
# Indices into Changes.counts.
N_VERTICES, N_HANDLES = 0, 1


class Forest(NamedTuple):
    """The state. All uint32[cap], ``level`` int64[cap]; ``counts`` int64[2]: free handles, handles ever used.

    ``free[:counts[N_FREE]]`` are the free handles; handles from ``counts[N_USED]`` on were never used. Free
    ones go first, so that handles stay below the number of vertices.
    """

    parent: Vertices
    handle: Vertices
    next: Vertices
    prev: Vertices
    size: Vertices
    representative: Vertices
    free: Vertices
    level: Ints
    counts: Ints


class Changes(NamedTuple):
    """What was written since the run began, each entry once, with the values before.

    Stamps equal to ``run`` mean listed. All uint32[cap]; ``counts`` int64[2]: vertices, handles.
    """

    vertex_stamp: Vertices
    vertices: Vertices
    old_handle: Vertices
    handle_stamp: Vertices
    handles: Vertices
    old_size: Vertices
    old_representative: Vertices
    counts: Ints
    run: int


_column, _numbers = nb.uint32[::1], nb.int64[::1]
FOREST = record_type(Forest, *[_column] * 7, _numbers, _numbers)
CHANGES = record_type(Changes, *[_column] * 7, _numbers, nb.int64)

# They allocate nothing, and so count no references: those would be atomic writes wherever a field is taken.
_jit: Any = uncounted
_inner: Any = uncounted_inner
# For what runs once per vertex: a call that hands over these tuples of arrays costs more than its work.
_inline = nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")


@_inner
def bits_of(handle, h):  # type: ignore[no-untyped-def]
    """A word with a bit for each of up to 64 vertices: whether it has this handle. (Many are compared by one
    instruction, and who goes through the bits goes through few where most vertices are in one tree.)"""
    word = np.uint64(0)
    for bit in range(handle.size):
        word |= np.uint64(handle[bit] == h) << np.uint64(bit)
    return word


# -- handles ---------------------------------------------------------------------------------------------


@_inner
def note_handle(forest, changes, h):  # type: ignore[no-untyped-def]
    """Keep what handle h stood for before the run, before it is written for the first time."""
    if np.int64(changes.handle_stamp[h]) == changes.run:
        return
    changes.handle_stamp[h] = changes.run
    k = changes.counts[N_HANDLES]
    changes.handles[k] = h
    changes.old_size[k] = forest.size[h]
    changes.old_representative[k] = forest.representative[h]
    changes.counts[N_HANDLES] = k + 1


@_inner
def rename(forest, changes, v, h):  # type: ignore[no-untyped-def]
    """Give v the handle h; the one that it had before the run is kept."""
    if np.int64(changes.vertex_stamp[v]) != changes.run:
        changes.vertex_stamp[v] = changes.run
        k = changes.counts[N_VERTICES]
        changes.vertices[k] = v
        changes.old_handle[k] = forest.handle[v]
        changes.counts[N_VERTICES] = k + 1
    forest.handle[v] = h


@_inner
def take_handle(forest, changes):  # type: ignore[no-untyped-def]
    """A handle that names no tree, for the caller to fill: a free one, or else one that was never used."""
    counts = forest.counts
    if counts[N_FREE] > 0:
        counts[N_FREE] -= 1
        h = np.int64(forest.free[counts[N_FREE]])
    else:
        h = counts[N_USED]
        counts[N_USED] = h + 1
        forest.size[h] = 0
        forest.representative[h] = NO_VERTEX
    note_handle(forest, changes, h)
    return h


@_inner
def _free_handle(forest, h):  # type: ignore[no-untyped-def]
    """Tree h is no more: its handle may be taken again."""
    forest.size[h] = 0
    forest.representative[h] = NO_VERTEX
    forest.free[forest.counts[N_FREE]] = h
    forest.counts[N_FREE] += 1


@_inline
def plant(forest, v, h):  # type: ignore[no-untyped-def]
    """A new vertex is a tree of its own, of this handle."""
    forest.parent[v] = NO_VERTEX
    forest.level[v] = 0
    forest.handle[v] = h
    forest.next[v] = v
    forest.prev[v] = v
    forest.size[h] = 1
    forest.representative[h] = v


@_jit
def add_vertices(forest, changes, begin, end):  # type: ignore[no-untyped-def]
    """New vertices begin .. end - 1, each a tree of its own."""
    for v in range(begin, end):
        plant(forest, v, take_handle(forest, changes))


# -- joining ---------------------------------------------------------------------------------------------


@_inner
def reroot(forest, v):  # type: ignore[no-untyped-def]
    """Make v the root of its tree by turning the parents on its way up: (the old root, steps).

    Levels on that way are left as they are, and so wrong.
    """
    below = NO_VERTEX
    steps = np.int64(0)
    at = np.uint32(v)
    while at != NO_VERTEX:
        above = forest.parent[at]
        forest.parent[at] = below
        below = at
        at = above
        steps += 1
    return np.int64(below), steps


@_inner
def lower_above(forest, v):  # type: ignore[no-untyped-def]
    """Lower what is above v until levels rise again on the way down to it: (the lowest of those given, steps).

    Right where v itself is: what was below a vertex that is lowered stays above its level.
    """
    steps = np.int64(0)
    level = np.int64(forest.level[v])
    at = forest.parent[v]
    while at != NO_VERTEX and forest.level[at] >= level:
        level -= _LEVEL_GAP
        forest.level[at] = level
        at = forest.parent[at]
        steps += 1
    return level, steps


@_inline
def _take_in(forest, changes, v, h):  # type: ignore[no-untyped-def]
    """Rename v, and what is above it up to the tree h, and give them levels on top of it."""
    depth = np.int64(0)
    above = np.int64(v)
    while np.int64(forest.handle[above]) != h:
        above = np.int64(forest.parent[above])
        depth += 1
    level = forest.level[above]
    at = np.int64(v)
    for k in range(depth, 0, -1):
        rename(forest, changes, at, h)
        forest.level[at] = level + k * LEVEL_STEP
        at = np.int64(forest.parent[at])


@_inline
def _ask_for_ends(forest, key):  # type: ignore[no-untyped-def]
    """Ask for what joining soon reads of the ends of an edge."""
    for end in (np.int64(key >> HALF), np.int64(key & LOW)):
        prefetch(forest.handle, end)
        prefetch(forest.parent, end)
        prefetch(forest.next, end)
        prefetch(forest.level, end)


@_inline
def _ask_for_handles(forest, changes, key):  # type: ignore[no-untyped-def]
    """Ask for what it reads of their trees."""
    for end in (np.int64(key >> HALF), np.int64(key & LOW)):
        h = np.int64(forest.handle[end])
        prefetch(forest.size, h)
        prefetch(forest.representative, h)
        prefetch(changes.handle_stamp, h)


@_jit
def join(forest, changes, inserted, candidates, steps_max):  # type: ignore[no-untyped-def]
    """Join the trees that inserted edges connect: (joins, candidates, steps). More than ``steps_max``: it gave up.

    ``candidates`` (uint32[2 * inserted]) gets the representatives of the trees that took part, once each; the
    smallest of those in a joined tree is its representative, which stays ``NO_VERTEX`` until it is named.
    """
    joins = np.int64(0)
    n_candidates = np.int64(0)
    steps = np.int64(0)
    for i in range(inserted.size):
        _ask_for_ends(forest, inserted[min(i + 2 * _AHEAD, inserted.size - 1)])
        _ask_for_handles(forest, changes, inserted[min(i + _AHEAD, inserted.size - 1)])
        u = np.int64(inserted[i] >> HALF)
        v = np.int64(inserted[i] & LOW)
        small = np.int64(forest.handle[u])
        large = np.int64(forest.handle[v])
        if small == large:
            continue
        if forest.size[small] > forest.size[large]:
            u, v = v, u
            small, large = large, small
        for h in (small, large):
            note_handle(forest, changes, h)
            if forest.representative[h] != NO_VERTEX:
                candidates[n_candidates] = forest.representative[h]
                forest.representative[h] = NO_VERTEX
                n_candidates += 1
        _, walked = reroot(forest, u)
        steps += walked + np.int64(forest.size[small])
        forest.parent[u] = v
        member = u
        while True:
            _take_in(forest, changes, member, large)
            member = np.int64(forest.next[member])
            if member == u:
                break
        after_u, after_v = forest.next[u], forest.next[v]
        forest.next[u] = after_v
        forest.prev[after_v] = u
        forest.next[v] = after_u
        forest.prev[after_u] = v
        forest.size[large] += forest.size[small]
        _free_handle(forest, small)
        joins += 1
        if steps > steps_max:
            break
    return joins, n_candidates, steps


@_jit
def name_representatives(handle, representative, ordered):  # type: ignore[no-untyped-def]
    """``ordered`` ascends by external id: the first vertex of each handle in it represents that handle."""
    for i in range(ordered.size):
        representative[handle[ordered[i]]] = NO_VERTEX
    for i in range(ordered.size):
        h = handle[ordered[i]]
        if representative[h] == NO_VERTEX:
            representative[h] = ordered[i]


# -- telling apart, restoring, reading --------------------------------------------------------------------


@_inner
def _classify_range(handle, parent, inserted, deleted, joining, links, begin, end):  # type: ignore[no-untyped-def]
    """``classify`` for updates begin .. end - 1 of either kind; its findings stand from ``begin`` on."""
    n_joining = np.int64(0)
    n_links = np.int64(0)
    for i in range(begin, min(end, inserted.size)):
        if i + _AHEAD < inserted.size:
            prefetch_to_read(handle, np.int64(inserted[i + _AHEAD] >> HALF))
            prefetch_to_read(handle, np.int64(inserted[i + _AHEAD] & LOW))
        if handle[inserted[i] >> HALF] != handle[inserted[i] & LOW]:
            joining[begin + n_joining] = inserted[i]
            n_joining += 1
    for i in range(begin, min(end, deleted.size)):
        if i + _AHEAD < deleted.size:
            prefetch_to_read(parent, np.int64(deleted[i + _AHEAD] >> HALF))
            prefetch_to_read(parent, np.int64(deleted[i + _AHEAD] & LOW))
        u = deleted[i] >> HALF
        v = deleted[i] & LOW
        if np.uint64(parent[v]) == u or np.uint64(parent[u]) == v:
            links[begin + n_links] = deleted[i]
            n_links += 1
    return n_joining, n_links


@_inner
def _classify_pieces(t, handle, parent, inserted, deleted, joining, links, pieces):  # type: ignore[no-untyped-def]
    """Pieces of a large batch, drawn from the cursor ``pieces[0]``; behind it what was found of each."""
    n_pieces = np.int64(pieces.size) - np.int64(1)
    for piece in drawn(pieces, n_pieces):
        begin = piece * np.int64(PIECE)
        n_joining, n_links = _classify_range(
            handle, parent, inserted, deleted, joining, links, begin, begin + np.int64(PIECE)
        )
        pieces[piece + 1] = (n_joining << 32) | n_links


@_jit
def classify(handle, parent, inserted, deleted, joining, links, pieces, crew):  # type: ignore[no-untyped-def]
    """The updates that are not safe, in one pass: how many edges now stand in ``joining``, and in ``links``.

    ``joining`` (uint64[inserted]): inserted edges between trees; ``links`` (uint64[deleted]): deleted edges of the
    forest. Joining trees first does not change the latter: it turns links round, and hangs trees only on edges
    that are new. ``pieces``: see ``pieces_of``; threads share the work by them.
    """
    n_pieces = np.int64(pieces.size) - np.int64(1)
    if n_pieces <= 0:
        whole = np.int64(max(inserted.size, deleted.size))
        return _classify_range(handle, parent, inserted, deleted, joining, links, np.int64(0), whole)
    share(at_most(crew, n_pieces), _classify_pieces, (handle, parent, inserted, deleted, joining, links, pieces))
    n_joining = np.int64(0)
    n_links = np.int64(0)
    for piece in range(n_pieces):
        begin, found = piece * np.int64(PIECE), pieces[piece + 1]
        for k in range(found >> 32):
            joining[n_joining + k] = joining[begin + k]
        for k in range(found & 0xFFFF_FFFF):
            links[n_links + k] = links[begin + k]
        n_joining += found >> 32
        n_links += found & 0xFFFF_FFFF
    return n_joining, n_links


@_jit
def relevel(forest, n):  # type: ignore[no-untyped-def]
    """Give all vertices the levels of a fresh start, from ``parent``; False if parents lead round and round."""
    unknown, climbing = np.int64(-1), np.int64(-2)
    forest.level[:n] = unknown
    for v in range(n):
        depth = np.int64(0)
        top = np.uint32(v)
        while top != NO_VERTEX and forest.level[top] == unknown:
            forest.level[top] = climbing
            top = forest.parent[top]
            depth += 1
        level = -np.int64(LEVEL_STEP)
        if top != NO_VERTEX:
            level = np.int64(forest.level[top])
            if level == climbing:
                return False
        at = np.uint32(v)
        for k in range(depth, 0, -1):
            forest.level[at] = level + k * LEVEL_STEP
            at = forest.parent[at]
    return True


@_jit
def list_members(forest, start, members):  # type: ignore[no-untyped-def]
    """Write the ``members.size`` vertices of the tree that holds ``start``."""
    v = np.uint32(start)
    for i in range(members.size):
        members[i] = v
        v = forest.next[v]


@_jit
def first_of_handle(forest, ordered, begin, h):  # type: ignore[no-untyped-def]
    """The first vertex of handle h in ``ordered[begin:]``, or -1; ``NO_VERTEX`` in there is passed over."""
    for i in range(begin, ordered.size):
        if ordered[i] != NO_VERTEX and forest.handle[ordered[i]] == h:
            return np.int64(ordered[i])
    return np.int64(-1)


# -- the audit -------------------------------------------------------------------------------------------


# Bits of what ``audit_slice`` finds at a vertex.
WRONG_HANDLE, SPLIT_EDGE, WRONG_LINK, WRONG_LIST, WRONG_NAME, WRONG_LEVEL = 1, 2, 4, 8, 16, 32


@_inner
@spliced
def _audit_row(forest, rows, u, parent):  # type: ignore[no-untyped-def]
    """(whether an edge of this row joins different handles, whether the parent is among the neighbours)."""
    split = False
    linked = False
    for slot, stop in runs(rows, u):
        for i in range(slot, stop):
            v = np.int64(rows.keys[i] & LOW)
            split |= forest.handle[v] != forest.handle[u]
            linked |= v == parent
    return split, linked


@_jit
def audit_slice(forest, n, out, in_, both, begin, end, wrong):  # type: ignore[no-untyped-def]
    """Check vertices begin .. end - 1 by their entries and edges; bits to ``wrong``; the edges read."""
    edges = np.int64(0)
    used = forest.counts[N_USED]
    for u in range(begin, end):
        h = np.int64(forest.handle[u])
        if h >= used or h >= n:
            wrong[u - begin] = WRONG_HANDLE
            continue
        flags = 0
        parent = np.int64(forest.parent[u])
        split, linked = _audit_row(forest, out, u, parent)
        edges += np.int64(out.degrees[u])
        if both and parent != np.int64(NO_VERTEX) and not linked:
            _, linked = _audit_row(forest, in_, u, parent)
            edges += np.int64(in_.degrees[u])
        flags |= SPLIT_EDGE if split else 0
        if parent != np.int64(NO_VERTEX):
            flags |= WRONG_LINK if not linked or np.int64(forest.handle[parent]) != h else 0
            flags |= WRONG_LEVEL if linked and forest.level[parent] >= forest.level[u] else 0
        after, before = np.int64(forest.next[u]), np.int64(forest.prev[u])
        if after >= n or before >= n or np.int64(forest.prev[after]) != u or np.int64(forest.handle[after]) != h:
            flags |= WRONG_LIST
        name = np.int64(forest.representative[h])
        if name >= n or np.int64(forest.handle[name]) != h:
            flags |= WRONG_NAME
        wrong[u - begin] = flags
    return edges


@_jit
def audit_lists(forest, n, seen):  # type: ignore[no-untyped-def]
    """Walk every list once from its representative: the number of handles whose list is not its members."""
    broken = np.int64(0)
    for h in range(forest.counts[N_USED]):
        size = np.int64(forest.size[h])
        start = forest.representative[h]
        if size == 0 or np.int64(start) >= n:
            continue
        v = start
        good = True
        for _ in range(size):
            if seen[v] or np.int64(forest.handle[v]) != h or np.int64(forest.next[v]) >= n:
                good = False
                break
            seen[v] = True
            after = forest.next[v]
            if forest.prev[after] != v:
                good = False
                break
            v = after
        if not good or v != start:
            broken += 1
    return broken
