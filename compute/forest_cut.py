"""Kernels that cut links of a spanning forest and search for what replaces them.

The classic search from all pieces in turn (Even and Shiloach, "An On-Line Edge-Deletion Problem", JACM 1981;
the turns bound it by the smaller sides): a piece that is exhausted is a tree of its own, the one left last
keeps the handle and is never read to the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from ..gpma.edges import Keys, Vertices
from ..gpma.rows import first_slot
from .forest import NONE, Ints, note_handle, rename, reroot, take_handle

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)
_ONE = np.uint64(1)

# Edges that a group of pieces reads before the next group's turn.
TURN_EDGES = 32

# What a turn came to.
_OPEN, _EXHAUSTED, _MERGED = 0, 1, 2

# Indices into Search.counts.
N_EDGES, N_STEPS, N_MEMBERS, N_ORPHANS = 0, 1, 2, 3


class Search(NamedTuple):
    """Scratch of the search for replacements, by vertex and by handle.

    ``mark`` uint64[cap]: ``run << 32 | piece << 1 | visited``, void when the run is another; ``queue_next``
    uint32[cap]: the vertex that its piece visited next; ``rest_stamp`` uint32[cap] and ``rest`` uint32[cap]: by
    handle, the piece that holds the old root; ``members`` uint32[cap]: candidates for a representative;
    ``counts`` int64[4].
    """

    mark: Keys
    queue_next: Vertices
    rest_stamp: Vertices
    rest: Vertices
    members: Vertices
    counts: Ints


class Pieces(NamedTuple):
    """What the cuts left of the trees, int64[k] each.

    Pieces that a replacement joins form a *group* (union-find in ``group``); its tree is one tree.
    Per piece: ``above`` (the far end of its cut; -1: holds the old root), ``rest`` (that piece of its
    handle), ``chain`` (next piece of the handle), ``first``/``last`` (of the visited vertices), and where its
    search stands (``at``, ``phase`` 0 out-row or 1 in-row, ``leaf``, ``slot``, ``left``).
    Per group: lists of pieces with edges to read (``open_first``, ``open_last``, ``open_next``) and of all
    (``all_last``, ``all_next``, from the group's root on), ``has_rest``.
    Handles that lost their representative: ``departed`` (it, by rest), and the list of those handles, ``orphans``,
    with a member left (``survivors``) and that representative (``leavers``) of each.
    """

    group: Ints
    above: Ints
    rest: Ints
    chain: Ints
    chain_length: Ints
    first: Ints
    last: Ints
    at: Ints
    phase: Ints
    leaf: Ints
    slot: Ints
    left: Ints
    open_first: Ints
    open_last: Ints
    open_next: Ints
    all_last: Ints
    all_next: Ints
    has_rest: Ints
    departed: Ints
    orphans: Ints
    survivors: Ints
    leavers: Ints


_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


@_jit
def _new_piece(pieces, q, above, rest):  # type: ignore[no-untyped-def]
    pieces.group[q] = q
    pieces.above[q] = above
    pieces.rest[q] = rest
    pieces.chain[q] = -1
    pieces.first[q] = -1
    pieces.open_first[q] = q
    pieces.open_last[q] = q
    pieces.open_next[q] = -1
    pieces.all_last[q] = q
    pieces.all_next[q] = -1
    pieces.has_rest[q] = q == rest


@_jit
def _set_mark(search, run, v, piece, visited):  # type: ignore[no-untyped-def]
    search.mark[v] = (np.uint64(run) << _HALF) | (np.uint64(piece) << _ONE) | np.uint64(visited)


@_jit
def _begin_row(pieces, q, rows):  # type: ignore[no-untyped-def]
    x = pieces.at[q]
    left = np.int64(rows.degrees[x])
    pieces.left[q] = left
    if left:
        leaf, slot = first_slot(rows, x)
        pieces.leaf[q] = leaf
        pieces.slot[q] = slot


@_jit
def _begin_search(search, pieces, out, run, q, v):  # type: ignore[no-untyped-def]
    pieces.first[q] = v
    pieces.last[q] = v
    pieces.at[q] = v
    pieces.phase[q] = 0
    search.queue_next[v] = NONE
    _set_mark(search, run, v, q, 1)
    _begin_row(pieces, q, out)


@_jit
def cut(forest, search, pieces, deleted, out, run):  # type: ignore[no-untyped-def]
    """Cut the links that the deleted edges were; the number of pieces, at most twice that of the edges."""
    n = np.int64(0)
    for i in range(deleted.size):
        child = np.int64(deleted[i] & _LOW)
        above = np.int64(deleted[i] >> _HALF)
        if np.int64(forest.parent[child]) != above:
            child, above = above, child
            if np.int64(forest.parent[child]) != above:
                continue  # cut already: the mirror image is in the list, too
        forest.parent[child] = NONE
        h = forest.handle[child]
        if np.int64(search.rest_stamp[h]) != run:
            search.rest_stamp[h] = run
            search.rest[h] = n
            _new_piece(pieces, n, np.int64(-1), n)
            pieces.chain_length[n] = 1
            n += 1
        rest = np.int64(search.rest[h])
        _new_piece(pieces, n, above, rest)
        pieces.chain[n] = pieces.chain[rest]
        pieces.chain[rest] = n
        pieces.chain_length[rest] += 1
        _begin_search(search, pieces, out, run, n, child)
        n += 1
    return n


@_jit
def _group_of(pieces, q):  # type: ignore[no-untyped-def]
    group = pieces.group
    while group[q] != q:
        group[q] = group[group[q]]
        q = group[q]
    return q


@_jit
def _piece_of(forest, search, run, v):  # type: ignore[no-untyped-def]
    """A piece of the group that holds v: climb to what is marked, or to the old root, and mark the way."""
    top = np.int64(v)
    steps = np.int64(0)
    while True:
        steps += 1
        mark = search.mark[top]
        if np.int64(mark >> _HALF) == run:
            piece = np.int64((mark & _LOW) >> _ONE)
            break
        if forest.parent[top] == NONE:
            piece = np.int64(search.rest[forest.handle[top]])
            _set_mark(search, run, top, piece, 0)
            break
        top = np.int64(forest.parent[top])
    at = np.int64(v)
    while at != top:
        _set_mark(search, run, at, piece, 0)
        at = np.int64(forest.parent[at])
    search.counts[N_STEPS] += steps
    return piece


@_jit
def _merge(forest, search, pieces, g, x, other, y):  # type: ignore[no-untyped-def]
    """The edge between x (group g) and y (group other) is a replacement: hang one tree on the other."""
    if pieces.has_rest[g]:
        g, x, other, y = other, y, g, x
    search.counts[N_STEPS] += reroot(forest, x)
    forest.parent[x] = y
    pieces.group[g] = other
    pieces.has_rest[other] |= pieces.has_rest[g]
    pieces.open_next[pieces.open_last[other]] = pieces.open_first[g]
    pieces.open_last[other] = pieces.open_last[g]
    pieces.all_next[pieces.all_last[other]] = g
    pieces.all_last[other] = pieces.all_last[g]


@_jit
def _scan(forest, search, pieces, rows, run, g, q, budget):  # type: ignore[no-untyped-def]
    """Read on in the row at which piece q stands, at most ``budget`` edges: (edges read, merged)."""
    x = pieces.at[q]
    leaf, slot, left = pieces.leaf[q], pieces.slot[q], pieces.left[q]
    read = np.int64(0)
    merged = False
    while left > 0 and read < budget and not merged:
        if slot >= (leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]):
            leaf += 1
            slot = leaf << rows.leaf_shift
            continue
        y = np.int64(rows.keys[slot] & _LOW)
        slot += 1
        left -= 1
        read += 1
        mark = search.mark[y]
        visited = False
        if np.int64(mark >> _HALF) == run:
            visited = (mark & _ONE) == _ONE
            other = _group_of(pieces, np.int64((mark & _LOW) >> _ONE))
        elif np.int64(forest.parent[y]) == x or np.int64(forest.parent[x]) == y:
            other = g  # a link of the tree itself: no need to climb
        else:
            other = _group_of(pieces, _piece_of(forest, search, run, y))
        if other != g:
            _merge(forest, search, pieces, g, x, other, y)
            merged = True
        elif not visited:
            _set_mark(search, run, y, q, 1)
            search.queue_next[y] = NONE
            search.queue_next[pieces.last[q]] = y
            pieces.last[q] = y
    pieces.leaf[q], pieces.slot[q], pieces.left[q] = leaf, slot, left
    search.counts[N_EDGES] += read
    return read, merged


@_jit
def _turn(forest, search, pieces, out, in_, both, run, g):  # type: ignore[no-untyped-def]
    """Let group g read some edges; what came of it."""
    budget = np.int64(TURN_EDGES)
    q = pieces.open_first[g]
    while True:
        if pieces.left[q] > 0:
            if budget <= 0:
                return _OPEN
            if pieces.phase[q] == 0:
                read, merged = _scan(forest, search, pieces, out, run, g, q, budget)
            else:
                read, merged = _scan(forest, search, pieces, in_, run, g, q, budget)
            if merged:
                return _MERGED
            budget -= read
            continue
        budget -= 1  # a vertex without edges is work, too
        if pieces.phase[q] == 0 and both:
            pieces.phase[q] = 1
            _begin_row(pieces, q, in_)
            continue
        following = search.queue_next[pieces.at[q]]
        if following != NONE:
            pieces.at[q] = np.int64(following)
            pieces.phase[q] = 0
            _begin_row(pieces, q, out)
            continue
        q = pieces.open_next[q]
        pieces.open_first[g] = q
        if q < 0:
            return _EXHAUSTED


@_jit
def _split_off(forest, changes, search, pieces, g):  # type: ignore[no-untyped-def]
    """Group g, exhausted, becomes a tree of its own under a new handle."""
    counts = search.counts
    head = np.int64(pieces.first[g])
    old = np.int64(forest.handle[head])
    note_handle(forest, changes, old)
    h = take_handle(forest, changes)
    size = np.int64(0)
    begin = counts[N_MEMBERS]
    last = head
    q = g
    while q >= 0:
        v = np.int64(pieces.first[q])
        while True:
            before, after = forest.prev[v], forest.next[v]
            forest.next[before] = after
            forest.prev[after] = before
            rename(forest, changes, v, h)
            forest.next[last] = v
            forest.prev[v] = last
            last = v
            search.members[begin + size] = v
            size += 1
            following = search.queue_next[v]
            if following == NONE:
                break
            v = np.int64(following)
        q = pieces.all_next[q]
    forest.next[last] = head
    forest.prev[head] = last
    forest.size[h] = size
    forest.size[old] -= np.uint32(size)
    forest.representative[h] = head
    if size > 1:
        counts[N_MEMBERS] = begin + size
    representative = forest.representative[old]
    if representative != NONE and np.int64(forest.handle[representative]) == h:
        pieces.departed[pieces.rest[g]] = np.int64(representative)
        forest.representative[old] = NONE


@_jit
def _search_tree(forest, changes, search, pieces, ring, out, in_, both, run, rest, work_max):  # type: ignore[no-untyped-def]
    """Settle the pieces of one old tree; False when it was given up as too much work."""
    counts = search.counts
    ring_size = np.int64(0)
    q = pieces.chain[rest]
    while q >= 0:
        ring[ring_size] = q
        ring_size += 1
        q = pieces.chain[q]
    for i in range(ring_size):
        # With one cut its far end is in the rest; with more, some cut's far end is.
        above = pieces.above[ring[i]]
        if ring_size == 1 or _piece_of(forest, search, run, above) == rest:
            _begin_search(search, pieces, out, run, rest, above)
            break
    ring[ring_size] = rest
    ring_size += 1
    unsettled = ring_size
    while unsettled > 1:
        kept = np.int64(0)
        for i in range(ring_size):
            g = ring[i]
            if pieces.group[g] != g:
                continue
            outcome = _turn(forest, search, pieces, out, in_, both, run, g)
            if outcome == _EXHAUSTED:
                _split_off(forest, changes, search, pieces, g)
            if outcome != _OPEN:
                unsettled -= 1
                if unsettled == 1:
                    break
            if outcome != _EXHAUSTED:
                ring[kept] = g
                kept += 1
            if counts[N_EDGES] + counts[N_STEPS] > work_max:
                return False
        if unsettled > 1:
            ring_size = kept
    survivor = np.int64(-1)
    for i in range(ring_size):
        g = _group_of(pieces, ring[i])
        if pieces.open_first[g] >= 0:
            survivor = pieces.first[g]
    if forest.representative[forest.handle[survivor]] == NONE:
        k = counts[N_ORPHANS]
        pieces.orphans[k] = np.int64(forest.handle[survivor])
        pieces.survivors[k] = survivor
        pieces.leavers[k] = pieces.departed[rest]
        counts[N_ORPHANS] = k + 1
    return True


@_jit
def settle(forest, changes, search, pieces, n_pieces, ring, out, in_, both, run, work_max):  # type: ignore[no-untyped-def]
    """Find replacements for the links that were cut, and split off what has none.

    ``ring``: int64[n_pieces] scratch. False when it would take more than ``work_max`` edges and steps: the
    state is then good for nothing but a fresh start.
    """
    for rest in range(n_pieces):
        if pieces.rest[rest] == rest and not _search_tree(
            forest, changes, search, pieces, ring, out, in_, both, run, rest, work_max
        ):
            return False
    return True
