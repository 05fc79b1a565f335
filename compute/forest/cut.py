"""Kernels that cut links of a spanning forest and search for what replaces them.

Most cuts need no search: a neighbour on a lower level is not below the cut, and it may be the new parent, whatever
becomes of the other cuts. Such parents are found by all threads; of a vertex it is the first among a few edges.

The other cuts are made one by one, from the highest level to the lowest, and what is below each looks for an edge
that leaves it among a few edges. What then is neither joined nor exhausted are pieces, which search in turn (Even
and Shiloach, "An On-Line Edge-Deletion Problem", JACM 1981; the turns bound it by the smaller sides). A piece that
is exhausted is a tree of its own. The one left last keeps the handle and is never read to the end.

Whether the far end of an edge is below a cut is told by climbing from it to something known, or past the level of
the cut. Levels are those of a breadth-first search at first, and so that takes about as many steps as the search
is deep. Where changes made the tree deep and its levels dense, or with several pieces left that lie below each
other, it takes more: up to the way to the next cut above, but no vertex is climbed from twice in a search.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np

from ...gpma.atomics import fetch_add
from ...gpma.drawing import drawn_by
from ...gpma.edges import HALF, LOW, NO_VERTEX, Keys, Vertices
from ...gpma.intrinsics import prefetch, prefetch_to_read, uncounted, uncounted_inner
from ...gpma.rows import runs, runs_on
from ...gpma.splice import spliced
from ...gpma.team import at_most, share
from ...gpma.written import record_type
from .forest import N_FREE, Ints, lower_above, note_handle, rename, reroot, take_handle

_ONE = np.uint64(1)

# Edges that a group of pieces reads before the next group's turn.
TURN_EDGES = 32
# What became of a cut link's lower end: it has another parent; none was found among all its edges, or the first.
HUNG, SEEN, UNSEEN = 0, 1, 2
# Cuts that a thread takes at a time, where they look for a parent on a lower level.
_PIECE = 64
# So many cuts before its turn the rows of a vertex are asked for, and twice as many its entries.
_AHEAD = 4

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


_column = nb.uint32[::1]
SEARCH = record_type(Search, nb.uint64[::1], _column, _column, _column, _column, nb.int64[::1])


class Pieces(NamedTuple):
    """What the cuts left of the trees, int64[k] each.

    Pieces that a replacement joins form a *group* (union-find in ``group``); its tree is one tree.
    Per piece: ``root``, ``above`` (the far end of its cut), ``rest`` (the piece of its handle that holds the old
    root), ``chain`` (next piece of the handle), ``first``/``last`` (of the visited vertices), and where its search
    stands (``at``, ``phase`` 0 out-row or 1 in-row, ``slot``, ``left``). Of a rest, ``above`` is one of
    its vertices, and ``floor`` a level that no vertex of the handle's other pieces is below.
    Per group: lists of pieces with edges to read (``open_first``, ``open_last``, ``open_next``) and of all
    (``all_last``, ``all_next``, from the group's root on), ``has_rest``.
    Handles that lost their representative: ``departed`` (it, by rest), and the list of those handles, ``orphans``,
    with a member left (``survivors``) and that representative (``leavers``) of each.
    ``ring``: the groups of one old tree that have a turn, the rest last.
    """

    group: Ints
    root: Ints
    above: Ints
    rest: Ints
    floor: Ints
    chain: Ints
    first: Ints
    last: Ints
    at: Ints
    phase: Ints
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
    ring: Ints


PIECES = record_type(Pieces, *[nb.int64[::1]] * len(Pieces._fields))

# As in ``forest.py``, they allocate nothing.
_jit: Any = uncounted
_inner: Any = uncounted_inner
# For what runs once per cut: a call that hands over these tuples of arrays costs more than its work.
_inline = nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")


@_inline
def _new_piece(pieces, q, rest):  # type: ignore[no-untyped-def]
    """Piece q, a group of its own, which has not begun to search."""
    pieces.group[q] = q
    pieces.rest[q] = rest
    pieces.first[q] = -1
    pieces.open_first[q] = q
    pieces.open_last[q] = q
    pieces.open_next[q] = -1
    pieces.all_last[q] = q
    pieces.all_next[q] = -1
    pieces.has_rest[q] = q == rest


@_inner
def _set_mark(search, run, v, piece, visited):  # type: ignore[no-untyped-def]
    """Write down that v belongs to this piece, and whether its search has reached v, for this run."""
    search.mark[v] = (np.uint64(run) << HALF) | (np.uint64(piece) << _ONE) | np.uint64(visited)


@_inline
@spliced
def _begin_row(pieces, q, rows):  # type: ignore[no-untyped-def]
    """Stand at the begin of the row of the vertex at which piece q is."""
    x = pieces.at[q]
    pieces.left[q] = np.int64(rows.degrees[x])
    for slot, _ in runs(rows, x):
        pieces.slot[q] = slot
        break


@_inline
def _begin_search(search, pieces, out, run, q, v):  # type: ignore[no-untyped-def]
    """Begin the search of piece q at its vertex v."""
    pieces.first[q] = v
    pieces.last[q] = v
    pieces.at[q] = v
    pieces.phase[q] = 0
    search.queue_next[v] = NO_VERTEX
    _set_mark(search, run, v, q, np.int64(1))
    _begin_row(pieces, q, out)


@_jit
def list_links(forest, search, deleted, children, above, run):  # type: ignore[no-untyped-def]
    """Write the lower and upper ends of the links that the deleted edges are, each once; how many there are."""
    n = np.int64(0)
    for i in range(deleted.size):
        child = np.int64(deleted[i] & LOW)
        upper = np.int64(deleted[i] >> HALF)
        if np.int64(forest.parent[child]) != upper:
            child, upper = upper, child
        if np.int64(search.mark[child] >> HALF) == run:
            continue  # the mirror image is in the list, too
        _set_mark(search, run, child, np.int64(0), np.int64(0))
        children[n] = child
        above[n] = upper
        n += 1
    return n


@_inner
@spliced
def _find_lower(forest, rows, v):  # type: ignore[no-untyped-def]
    """The first neighbour on a lower level than v among a turn's edges of this row, or -1; and the edges read.

    There are no more than those where fewer than ``TURN_EDGES`` were read.
    """
    level = forest.level[v]
    read = np.int64(0)
    for slot, stop in runs(rows, v):
        for i in range(slot, min(stop, slot + TURN_EDGES - read)):
            read += 1
            y = np.int64(rows.keys[i] & LOW)
            if forest.level[y] < level:
                return y, read
        if read >= TURN_EDGES:
            break
    return np.int64(-1), read


@_inner
def _hang_pieces(t, forest, search, children, left, out, in_, both, cursor):  # type: ignore[no-untyped-def]
    edges = np.int64(0)
    for begin in drawn_by(cursor, children.size, _PIECE):
        for k in range(begin, min(begin + _PIECE, children.size)):
            prefetch_to_read(forest.level, np.int64(children[min(k + 2 * _AHEAD, children.size - 1)]))
            _ask_for_rows(out, in_, both, children, k)
            v = children[k]
            upper, read = _find_lower(forest, out, v)
            edges += read
            stands = np.uint8(SEEN if read < TURN_EDGES else UNSEEN)
            if upper < 0 and both:
                upper, read = _find_lower(forest, in_, v)
                edges += read
                stands = np.uint8(SEEN if read < TURN_EDGES and stands == SEEN else UNSEEN)
            if upper >= 0:
                forest.parent[v] = upper
                stands = np.uint8(HUNG)
            left[k] = stands
    fetch_add(search.counts, N_EDGES, edges)


@_jit
def hang_elsewhere(forest, search, children, above, left, out, in_, both, cursor, crew):  # type: ignore[no-untyped-def]
    """Hang the lower ends of cut links on neighbours of lower levels, where there is one near: how many are left.

    Those come to the front of ``children``, ``above`` (int64[k]) and ``left`` (uint8[k]), in the order in which
    they were; ``left`` then says whether all their edges were ``SEEN``. ``cursor``: int64[1], zero. Levels are not
    changed, so that it matters to none what becomes of others.
    """
    n_pieces = np.int64(-(-children.size // _PIECE))
    work = forest, search, children, left, out, in_, both, cursor
    share(at_most(crew, n_pieces), _hang_pieces, work)
    n = np.int64(0)
    for k in range(children.size):
        if left[k] != HUNG:
            children[n] = children[k]
            above[n] = above[k]
            left[n] = left[k]
            n += 1
    return n


@_inner
def _group_of(pieces, q):  # type: ignore[no-untyped-def]
    group = pieces.group
    while group[q] != q:
        group[q] = group[group[q]]
        q = group[q]
    return q


@_inner
def _piece_of(forest, search, pieces, run, v):  # type: ignore[no-untyped-def]
    """A piece of the group that holds v: climb to what is marked, or out of all pieces but the rest.

    The way is marked."""
    top = np.int64(v)
    steps = np.int64(0)
    rest = np.int64(search.rest[forest.handle[v]])
    floor = pieces.floor[rest]
    while True:
        steps += 1
        mark = search.mark[top]
        if np.int64(mark >> HALF) == run:
            piece = np.int64((mark & LOW) >> _ONE)
            break
        if forest.level[top] < floor or forest.parent[top] == NO_VERTEX:
            piece = rest
            _set_mark(search, run, top, piece, np.int64(0))
            break
        top = np.int64(forest.parent[top])
    at = np.int64(v)
    while at != top:
        _set_mark(search, run, at, piece, np.int64(0))
        at = np.int64(forest.parent[at])
    search.counts[N_STEPS] += steps
    return piece


@_inner
def _merge(forest, search, pieces, g, x, other, y):  # type: ignore[no-untyped-def]
    """The edge between x (group g) and y (group other) is a replacement: hang one tree on the other."""
    if pieces.has_rest[g]:
        g, x, other, y = other, y, g, x
    bottom, turned = reroot(forest, x)
    forest.parent[x] = y
    lowest, lowered = lower_above(forest, bottom)
    search.counts[N_STEPS] += turned + lowered
    if not pieces.has_rest[other]:
        rest = pieces.rest[other]
        pieces.floor[rest] = min(pieces.floor[rest], lowest)
    pieces.group[g] = other
    pieces.has_rest[other] |= pieces.has_rest[g]
    pieces.open_next[pieces.open_last[other]] = pieces.open_first[g]
    pieces.open_last[other] = pieces.open_last[g]
    pieces.all_next[pieces.all_last[other]] = g
    pieces.all_last[other] = pieces.all_last[g]


@_inner
@spliced
def _scan(forest, search, pieces, rows, run, g, q, budget):  # type: ignore[no-untyped-def]
    """Read on in the row at which piece q stands, at most ``budget`` edges: (edges read, merged)."""
    x = pieces.at[q]
    read = np.int64(0)
    merged = False
    for slot, stop in runs_on(rows, pieces.slot[q], min(pieces.left[q], budget)):
        i = slot
        while i < stop and not merged:
            y = np.int64(rows.keys[i] & LOW)
            i += 1
            mark = search.mark[y]
            visited = False
            if np.int64(mark >> HALF) == run:
                visited = (mark & _ONE) == _ONE
                other = _group_of(pieces, np.int64((mark & LOW) >> _ONE))
            elif np.int64(forest.parent[y]) == x or np.int64(forest.parent[x]) == y:
                other = g  # a link of the tree itself: no need to climb
            else:
                other = _group_of(pieces, _piece_of(forest, search, pieces, run, y))
            if other != g:
                _merge(forest, search, pieces, g, x, other, y)
                merged = True
            elif not visited:
                _set_mark(search, run, y, q, np.int64(1))
                search.queue_next[y] = NO_VERTEX
                search.queue_next[pieces.last[q]] = y
                pieces.last[q] = y
        read += i - slot
        pieces.slot[q] = i
        if merged:
            break
    pieces.left[q] -= read
    search.counts[N_EDGES] += read
    return read, merged


@_inner
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
        if following != NO_VERTEX:
            pieces.at[q] = np.int64(following)
            pieces.phase[q] = 0
            _begin_row(pieces, q, out)
            continue
        q = pieces.open_next[q]
        pieces.open_first[g] = q
        if q < 0:
            return _EXHAUSTED


@_inner
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
            if following == NO_VERTEX:
                break
            v = np.int64(following)
        q = pieces.all_next[q]
    counts[N_STEPS] += size
    forest.next[last] = head
    forest.prev[head] = last
    forest.size[h] = size
    forest.size[old] -= np.uint32(size)
    forest.representative[h] = head
    if size > 1:
        counts[N_MEMBERS] = begin + size
    representative = forest.representative[old]
    if representative != NO_VERTEX and np.int64(forest.handle[representative]) == h:
        pieces.departed[pieces.rest[g]] = np.int64(representative)
        forest.representative[old] = NO_VERTEX


@_inline
def _search_near(forest, changes, search, pieces, out, in_, both, run, rest, q):  # type: ignore[no-untyped-def]
    """Cut the link above the root of q, and let what is below it read some edges; what came of it.

    No other link that is to be cut is below; those above count as links still. So all that is not below is one
    piece here, and a climb ends at the level of the cut.
    """
    root = pieces.root[q]
    forest.parent[root] = NO_VERTEX
    _new_piece(pieces, rest, rest)
    _new_piece(pieces, q, rest)
    pieces.floor[rest] = forest.level[root]
    _begin_search(search, pieces, out, run, q, root)
    outcome = _turn(forest, search, pieces, out, in_, both, run, q)
    if outcome == _EXHAUSTED:
        _split_off(forest, changes, search, pieces, q)
    return outcome


@_inner
def _begin_pieces(forest, search, pieces, out, run, rest):  # type: ignore[no-untyped-def]
    """Begin the searches of all pieces of one old tree; how many there are."""
    n = np.int64(0)
    _new_piece(pieces, rest, rest)
    pieces.floor[rest] = forest.level[pieces.root[pieces.chain[rest]]]
    q = pieces.chain[rest]
    while q >= 0:
        root = pieces.root[q]
        _new_piece(pieces, q, rest)
        _begin_search(search, pieces, out, run, q, root)
        pieces.floor[rest] = min(pieces.floor[rest], forest.level[root])
        pieces.ring[n] = q
        n += 1
        q = pieces.chain[q]
    # Beside a cut that is left, where a replacement may be near; but that may be in another piece, or split off.
    beside = pieces.above[pieces.ring[0]]
    same_handle = forest.handle[beside] == forest.handle[pieces.above[rest]]
    if not same_handle or _piece_of(forest, search, pieces, run, beside) != rest:
        beside = pieces.above[rest]
    _begin_search(search, pieces, out, run, rest, beside)
    pieces.ring[n] = rest
    return n + 1


@_inner
def _search_in_turn(forest, changes, search, pieces, out, in_, both, run, rest, work_max):  # type: ignore[no-untyped-def]
    """Let the pieces of one old tree search in turn; a vertex of the one that is left, or -1: too much work."""
    counts = search.counts
    ring_size = _begin_pieces(forest, search, pieces, out, run, rest)
    unsettled = ring_size
    while unsettled > 1:
        kept = np.int64(0)
        for i in range(ring_size):
            g = pieces.ring[i]
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
                pieces.ring[kept] = g
                kept += 1
            if counts[N_EDGES] + counts[N_STEPS] > work_max:
                return np.int64(-1)
        if unsettled > 1:
            ring_size = kept
    survivor = np.int64(-1)
    for i in range(ring_size):
        g = _group_of(pieces, pieces.ring[i])
        if pieces.open_first[g] >= 0:
            survivor = pieces.first[g]
    return survivor


@_inline
def _ask_for(forest, changes, search, out, in_, both, children, i):  # type: ignore[no-untyped-def]
    """Ask for what a cut soon needs, where cut i has its turn: its vertex's entries first, then what they name."""
    v = np.int64(children[min(i + 2 * _AHEAD, children.size - 1)])
    prefetch(search.mark, v)
    prefetch(search.queue_next, v)
    prefetch(forest.parent, v)
    prefetch(forest.handle, v)
    prefetch(forest.next, v)
    prefetch(forest.prev, v)
    prefetch(changes.vertex_stamp, v)
    v = np.int64(children[min(i + _AHEAD, children.size - 1)])
    prefetch(forest.next, np.int64(forest.prev[v]))
    prefetch(forest.prev, np.int64(forest.next[v]))
    if forest.counts[N_FREE] > _AHEAD:
        h = np.int64(forest.free[forest.counts[N_FREE] - _AHEAD])
        prefetch(forest.size, h)
        prefetch(forest.representative, h)
        prefetch(changes.handle_stamp, h)
    _ask_for_rows(out, in_, both, children, i)


@_inline
def _ask_for_rows(out, in_, both, children, i):  # type: ignore[no-untyped-def]
    """Ask for the rows of the vertices whose turn is soon: where they begin first, then the leaves."""
    v = np.int64(children[min(i + 2 * _AHEAD, children.size - 1)])
    prefetch_to_read(out.degrees, v)
    prefetch_to_read(out.row_leaf, v)
    if both:
        prefetch_to_read(in_.degrees, v)
        prefetch_to_read(in_.row_leaf, v)
    v = np.int64(children[min(i + _AHEAD, children.size - 1)])
    _ask_for_row(out, v)
    if both:
        _ask_for_row(in_, v)


@_inline
def _ask_for_row(rows, v):  # type: ignore[no-untyped-def]
    leaf = np.int64(rows.row_leaf[v])
    prefetch_to_read(rows.counts, leaf)
    for slot in range(0, 32, 8):
        prefetch_to_read(rows.keys, (leaf << rows.leaf_shift) + slot)


@_inner
def sort_by_level(level, children, above):  # type: ignore[no-untyped-def]
    """Sort the ends of a few links (int64[k]) by the levels of the lower ones, the highest first."""
    for i in range(1, children.size):
        child, upper = children[i], above[i]
        k = i
        while k > 0 and level[children[k - 1]] < level[child]:
            children[k] = children[k - 1]
            above[k] = above[k - 1]
            k -= 1
        children[k] = child
        above[k] = upper


@_inner
def settle(forest, changes, search, pieces, children, above, out, in_, both, run, work_max):  # type: ignore[no-untyped-def]
    """Cut links, find replacements for them, and split off what has none.

    ``children`` and ``above``: int64[k], the ends of the links, from the highest level to the lowest: so nothing
    that is yet to be cut is below a cut. Each first looks for a near replacement by itself. The stamps ``run`` + 1
    to ``run`` + k + 1 must be new. False when it would take more than ``work_max`` edges and steps: the state is
    then good for nothing but a fresh start.
    """
    counts = search.counts
    n_trees = np.int64(0)
    for i in range(children.size):
        h = forest.handle[children[i]]
        if np.int64(search.rest_stamp[h]) != run:
            search.rest_stamp[h] = run
            search.rest[h] = n_trees
            pieces.chain[n_trees] = -1
            n_trees += 1
        # The last is the upper end of the lowest level, above which no link is cut.
        pieces.above[np.int64(search.rest[h])] = above[i]
    n = n_trees
    for i in range(children.size):
        _ask_for(forest, changes, search, out, in_, both, children, i)
        rest = np.int64(search.rest[forest.handle[children[i]]])
        pieces.root[n] = children[i]
        pieces.above[n] = above[i]
        if _search_near(forest, changes, search, pieces, out, in_, both, run + 1 + i, rest, n) == _OPEN:
            pieces.chain[n] = pieces.chain[rest]
            pieces.chain[rest] = n
            n += 1
        if counts[N_EDGES] + counts[N_STEPS] > work_max:
            return False
    run += 1 + children.size
    for tree in range(n_trees):
        survivor = pieces.above[tree]
        if pieces.chain[tree] >= 0:
            survivor = _search_in_turn(forest, changes, search, pieces, out, in_, both, run, tree, work_max)
            if survivor < 0:
                return False
        if forest.representative[forest.handle[survivor]] == NO_VERTEX:
            k = counts[N_ORPHANS]
            pieces.orphans[k] = np.int64(forest.handle[survivor])
            pieces.survivors[k] = survivor
            pieces.leavers[k] = pieces.departed[tree]
            counts[N_ORPHANS] = k + 1
    return True
