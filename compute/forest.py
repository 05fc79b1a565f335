"""Kernels of a rooted spanning forest with a handle per tree: what ``components`` stands on.

Layout, one entry per vertex: ``parent`` (``NO_VERTEX``: a root), ``handle`` (the name of its tree), and
``next``/``prev``, the members of a tree as a circular list, so that a tree can be renamed without reading
edges. One entry per handle: ``size`` (0: free) and ``representative`` (the member with the smallest external
id).

Joining names the smaller side anew (small to large: n log n names for n joins). Cutting follows the classic
search for a replacement from all pieces in turn (Even and Shiloach, "An On-Line Edge-Deletion Problem", JACM
1981; the turns bound it by the smaller sides): what is exhausted is a tree of its own, what is left last keeps
the handle unread.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..gpma.edges import Keys, Vertices
from ..gpma.rows import first_slot

Ints = npt.NDArray[np.int64]

NONE = np.uint32(0xFFFF_FFFF)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)
_ONE = np.uint64(1)

# Edges that a group of pieces reads before the next group's turn.
TURN_EDGES = 32

# From scratch: pull when the frontier's edges exceed a share of all, push again when few vertices are found
# (Beamer, Asanovic, Patterson, "Direction-Optimizing Breadth-First Search", SC 2012).
PULL_SHARE = 15
PUSH_SHARE = 18

# What a turn came to.
_OPEN, _EXHAUSTED, _MERGED = 0, 1, 2

# Indices into Forest.counts.
N_FREE, N_USED = 0, 1
# Indices into Changes.counts.
N_VERTICES, N_HANDLES = 0, 1
# Indices into Search.counts.
N_EDGES, N_STEPS, N_MEMBERS, N_ORPHANS = 0, 1, 2, 3


class Forest(NamedTuple):
    """The state. All uint32[cap]; ``counts`` int64[2]: free handles, handles ever used.

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
# For what runs once per vertex: a call that hands over these tuples of arrays costs more than its work.
_inline = nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")


# -- handles ---------------------------------------------------------------------------------------------


@_jit
def _note_handle(forest, changes, h):  # type: ignore[no-untyped-def]
    if np.int64(changes.handle_stamp[h]) == changes.run:
        return
    changes.handle_stamp[h] = changes.run
    k = changes.counts[N_HANDLES]
    changes.handles[k] = h
    changes.old_size[k] = forest.size[h]
    changes.old_representative[k] = forest.representative[h]
    changes.counts[N_HANDLES] = k + 1


@_jit
def _rename(forest, changes, v, h):  # type: ignore[no-untyped-def]
    if np.int64(changes.vertex_stamp[v]) != changes.run:
        changes.vertex_stamp[v] = changes.run
        k = changes.counts[N_VERTICES]
        changes.vertices[k] = v
        changes.old_handle[k] = forest.handle[v]
        changes.counts[N_VERTICES] = k + 1
    forest.handle[v] = h


@_jit
def _take_handle(forest, changes):  # type: ignore[no-untyped-def]
    counts = forest.counts
    if counts[N_FREE] > 0:
        counts[N_FREE] -= 1
        h = np.int64(forest.free[counts[N_FREE]])
    else:
        h = counts[N_USED]
        counts[N_USED] = h + 1
        forest.size[h] = 0
        forest.representative[h] = NONE
    _note_handle(forest, changes, h)
    return h


@_jit
def _free_handle(forest, h):  # type: ignore[no-untyped-def]
    forest.size[h] = 0
    forest.representative[h] = NONE
    forest.free[forest.counts[N_FREE]] = h
    forest.counts[N_FREE] += 1


@_jit
def add_vertices(forest, changes, begin, end):  # type: ignore[no-untyped-def]
    """New vertices begin .. end - 1, each a tree of its own."""
    for v in range(begin, end):
        h = _take_handle(forest, changes)
        forest.parent[v] = NONE
        forest.handle[v] = h
        forest.next[v] = v
        forest.prev[v] = v
        forest.size[h] = 1
        forest.representative[h] = v


# -- joining ---------------------------------------------------------------------------------------------


@_jit
def _reroot(forest, v):  # type: ignore[no-untyped-def]
    """Make v the root of its tree by turning the parents on its way up; the number of steps."""
    below = NONE
    steps = np.int64(0)
    at = np.uint32(v)
    while at != NONE:
        above = forest.parent[at]
        forest.parent[at] = below
        below = at
        at = above
        steps += 1
    return steps


@_jit
def join(forest, changes, inserted, candidates):  # type: ignore[no-untyped-def]
    """Join the trees that inserted edges connect: (joins, candidates, steps).

    ``candidates`` (uint32[2 * inserted]) gets the representatives of the trees that took part, once each; the
    smallest of those in a joined tree is its representative, which stays ``NONE`` until it is named.
    """
    joins = np.int64(0)
    n_candidates = np.int64(0)
    steps = np.int64(0)
    for i in range(inserted.size):
        u = np.int64(inserted[i] >> _HALF)
        v = np.int64(inserted[i] & _LOW)
        small = np.int64(forest.handle[u])
        large = np.int64(forest.handle[v])
        if small == large:
            continue
        if forest.size[small] > forest.size[large]:
            u, v = v, u
            small, large = large, small
        for h in (small, large):
            _note_handle(forest, changes, h)
            if forest.representative[h] != NONE:
                candidates[n_candidates] = forest.representative[h]
                forest.representative[h] = NONE
                n_candidates += 1
        steps += _reroot(forest, u) + np.int64(forest.size[small])
        forest.parent[u] = v
        member = u
        while True:
            _rename(forest, changes, member, large)
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
    return joins, n_candidates, steps


@_jit
def name_representatives(forest, ordered):  # type: ignore[no-untyped-def]
    """``ordered`` ascends by external id: the first vertex of each handle in it represents that handle."""
    for i in range(ordered.size):
        forest.representative[forest.handle[ordered[i]]] = NONE
    for i in range(ordered.size):
        h = forest.handle[ordered[i]]
        if forest.representative[h] == NONE:
            forest.representative[h] = ordered[i]


# -- cutting ---------------------------------------------------------------------------------------------


@_jit
def classify(handle, parent, inserted, deleted, links):  # type: ignore[no-untyped-def]
    """The safe updates in one pass: (inserted edges between trees, deleted links of the forest).

    The indices of those links go to ``links``. Joining trees first does not change them: it turns links
    round, and hangs trees only on edges that are new.
    """
    joining = np.int64(0)
    for i in range(inserted.size):
        if handle[inserted[i] >> _HALF] != handle[inserted[i] & _LOW]:
            joining += 1
    n_links = np.int64(0)
    for i in range(deleted.size):
        u = deleted[i] >> _HALF
        v = deleted[i] & _LOW
        if np.uint64(parent[v]) == u or np.uint64(parent[u]) == v:
            links[n_links] = i
            n_links += 1
    return joining, n_links


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
    search.counts[N_STEPS] += _reroot(forest, x)
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
    _note_handle(forest, changes, old)
    h = _take_handle(forest, changes)
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
            _rename(forest, changes, v, h)
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


# -- from scratch, and restoring --------------------------------------------------------------------------


@_inline
def _push_row(forest, rows, u, h, queue, tail):  # type: ignore[no-untyped-def]
    """Take the neighbours of u in this row that no tree holds yet into tree h: (new tail, their edges)."""
    ahead = np.int64(0)
    remaining = np.int64(rows.degrees[u])
    if remaining:
        leaf, slot = first_slot(rows, u)
        while remaining > 0:
            end = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
            for i in range(slot, end):
                v = np.int64(rows.keys[i] & _LOW)
                if forest.handle[v] == NONE:
                    forest.handle[v] = h
                    forest.parent[v] = u
                    queue[tail] = v
                    tail += 1
                    ahead += np.int64(rows.degrees[v])
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << rows.leaf_shift
    return tail, ahead


@_inline
def _find_held(rows, v, held):  # type: ignore[no-untyped-def]
    """A neighbour of v in this row that the bitmap holds, or -1; and the edges read."""
    remaining = np.int64(rows.degrees[v])
    read = np.int64(0)
    if remaining:
        leaf, slot = first_slot(rows, v)
        while remaining > 0:
            end = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
            for i in range(slot, end):
                u = rows.keys[i] & _LOW
                read += 1
                if (held[u >> np.uint64(6)] >> (u & np.uint64(63))) & _ONE:
                    return np.int64(u), read
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << rows.leaf_shift
    return np.int64(-1), read


@_jit
def _hold(held, queue, begin, end):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        v = np.uint64(queue[i])
        held[v >> np.uint64(6)] |= _ONE << (v & np.uint64(63))


@_jit
def _pull_sweep(forest, n, out, in_, both, h, held, queue, tail):  # type: ignore[no-untyped-def]
    """Every vertex in no tree looks for a neighbour in the bitmap, which is of tree h: (new tail, edges read)."""
    edges = np.int64(0)
    for v in range(n):
        if forest.handle[v] != NONE:
            continue
        u, read = _find_held(out, v, held)
        edges += read
        if u < 0 and both:
            u, read = _find_held(in_, v, held)
            edges += read
        if u >= 0:
            forest.handle[v] = h
            forest.parent[v] = u
            queue[tail] = v
            tail += 1
    return tail, edges


@_jit
def _span_tree(forest, n, n_arcs, root, h, out, in_, both, queue, begin, held):  # type: ignore[no-untyped-def]
    """Span the component of ``root`` by levels, pushing small frontiers and pulling to large ones.

    The vertices go to ``queue[begin:]``: (end, edges read).
    """
    forest.handle[root] = h
    forest.parent[root] = NONE
    queue[begin] = root
    head = begin
    tail = begin + np.int64(1)
    edges = np.int64(0)
    ahead = np.int64(0)
    pulling = False
    while head < tail:
        level_end = tail
        if pulling or (ahead * PULL_SHARE > n_arcs and ahead * PUSH_SHARE > n):
            if not pulling:
                held[:] = np.uint64(0)
                _hold(held, queue, begin, head)
            _hold(held, queue, head, tail)
            tail, read = _pull_sweep(forest, n, out, in_, both, h, held, queue, tail)
            edges += read
            pulling = (tail - level_end) * PUSH_SHARE > n
            ahead = np.int64(0)
            head = level_end
            continue
        ahead = np.int64(0)
        for i in range(head, level_end):
            u = np.int64(queue[i])
            edges += np.int64(out.degrees[u])
            tail, more = _push_row(forest, out, u, h, queue, tail)
            ahead += more
            if both:
                edges += np.int64(in_.degrees[u])
                tail, more = _push_row(forest, in_, u, h, queue, tail)
                ahead += more
        head = level_end
    return tail, edges


@_jit
def span(forest, n, n_arcs, first_root, out, in_, both, queue, held):  # type: ignore[no-untyped-def]
    """Span the whole graph, the component of ``first_root`` first; the edges read.

    Representatives of trees of two and more are not set. ``queue``: uint32[n] and ``held``:
    uint64[(n + 63) // 64] are scratch. Searching by levels keeps trees shallow, on which later climbs depend.
    """
    for v in range(n):
        forest.handle[v] = NONE
        forest.size[v] = 0
        forest.representative[v] = NONE
    h = np.int64(0)
    edges = np.int64(0)
    begin = np.int64(0)
    for k in range(-1, n):
        root = first_root if k < 0 else k
        if root >= n or forest.handle[root] != NONE:
            continue
        if out.degrees[root] == 0 and (not both or in_.degrees[root] == 0):
            forest.handle[root] = h
            forest.parent[root] = NONE
            forest.next[root] = root
            forest.prev[root] = root
            forest.size[h] = 1
            forest.representative[h] = root
            h += 1
            continue
        end, read = _span_tree(forest, n, n_arcs, root, h, out, in_, both, queue, begin, held)
        edges += read
        for i in range(begin, end):
            v = queue[i]
            forest.next[v] = queue[i + 1] if i + 1 < end else queue[begin]
            forest.prev[v] = queue[i - 1] if i > begin else queue[end - 1]
        forest.size[h] = end - begin
        if end - begin == 1:
            forest.representative[h] = root
        h += 1
        begin = end
    forest.counts[N_FREE] = 0
    forest.counts[N_USED] = h
    return edges


@_jit
def relink(forest, n):  # type: ignore[no-untyped-def]
    """Rebuild lists, sizes and free handles from ``handle`` (and ``representative``, which it keeps)."""
    used = np.int64(0)
    for free in range(n):
        forest.size[free] = 0
    for v in range(n):
        h = np.int64(forest.handle[v])
        used = np.int64(max(used, h + np.int64(1)))
        r = forest.representative[h]
        if forest.size[h] == 0:
            forest.next[r] = r
            forest.prev[r] = r
        forest.size[h] += np.uint32(1)
        if v != np.int64(r):
            after = forest.next[r]
            forest.next[r] = v
            forest.prev[v] = r
            forest.next[v] = after
            forest.prev[after] = v
    forest.counts[N_FREE] = 0
    forest.counts[N_USED] = used
    for free in range(used):
        if forest.size[free] == 0:
            _free_handle(forest, free)


# -- reading ---------------------------------------------------------------------------------------------


@_jit
def list_members(forest, start, members):  # type: ignore[no-untyped-def]
    """Write the ``members.size`` vertices of the tree that holds ``start``."""
    v = np.uint32(start)
    for i in range(members.size):
        members[i] = v
        v = forest.next[v]


@_jit
def first_of_handle(forest, ordered, begin, h):  # type: ignore[no-untyped-def]
    """The first vertex of handle h in ``ordered[begin:]``, or -1."""
    for i in range(begin, ordered.size):
        if forest.handle[ordered[i]] == h:
            return np.int64(ordered[i])
    return np.int64(-1)


# -- the audit -------------------------------------------------------------------------------------------


@_jit
def audit_edges(forest, n, rows, linked):  # type: ignore[no-untyped-def]
    """Mark vertices whose link to the parent is an edge; (edges between handles, one of them)."""
    split = np.int64(0)
    example = np.uint64(0)
    for u in range(n):
        remaining = np.int64(rows.degrees[u])
        if remaining == 0:
            continue
        leaf, slot = first_slot(rows, u)
        while remaining > 0:
            end = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
            for i in range(slot, end):
                v = np.int64(rows.keys[i] & _LOW)
                if forest.handle[u] != forest.handle[v]:
                    split += 1
                    example = rows.keys[i]
                if np.int64(forest.parent[v]) == u:
                    linked[v] = True
                if np.int64(forest.parent[u]) == v:
                    linked[u] = True
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << rows.leaf_shift
    return split, example


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
