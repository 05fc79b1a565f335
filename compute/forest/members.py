"""Who is in which tree, from the handles of all vertices: lists of members, sizes, free handles, names.

What a whole forest needs that was spanned, computed elsewhere or restored. All threads make it, by pieces of the
vertices. A tree with a large share of them is linked piece by piece, and its parts are then hung together in the
order of the pieces; members of the others are dealt into buckets by handle, and one thread links each bucket. So a
list has its members in ascending order, whatever number of threads there is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import compare_swap, fetch_add, load
from ...gpma.drawing import drawn, drawn_by
from ...gpma.edges import NO_VERTEX, Int, Vertices
from ...gpma.index.id_order import comes_before, order_of
from ...gpma.intrinsics import lowest_bit, uncounted_inner
from ...gpma.team import ALONE, Crew, at_most, begin_behind, share
from .forest import LEVEL_STEP, N_FREE, N_USED, Forest, bits_of

# How many vertices, or handles, a thread takes at a time.
_PIECE = 4096
# Into how many buckets vertices are dealt (a power of two): enough for the work to spread over many threads.
# Handles that are neighbours go to one bucket, 2 ** _TOGETHER of them: so threads write lines of their own.
_BUCKETS, _TOGETHER = 128, 10
# Trees with more than one in so many vertices of a sample are large; of so many vertices it is drawn.
_LARGE_SHARE = 32
_SAMPLE = 1024

# No id is larger; and a word of all bits.
_NO_NUMBER = np.int64(2**63 - 1)
_ALL = np.uint64(2**64 - 1)

# As in ``forest.py``, inner kernels allocate nothing; the others a cursor and what the pieces leave.
_inner: Any = uncounted_inner
_shares: Any = nb.njit(cache=True, nogil=True, error_model="numpy")


class Dealt(NamedTuple):
    """What pieces of the vertices leave for each other while lists are made.

    ``large`` uint32[trees]: handles of large trees. ``ends`` uint32[pieces, trees, 2]: the first and the last
    member of each in a piece (``NO_VERTEX``: none); ``sizes`` int64[pieces, trees]: how many there are.
    ``places`` int64[pieces, _BUCKETS]: of the other vertices, how many of a piece go to each bucket, and then
    where they stand in ``vertices`` (uint32[n]); ``begins`` int64[_BUCKETS + 1]: where each bucket begins there.
    ``last`` uint32[n]: by handle, the member that was linked last.
    """

    large: Vertices
    ends: npt.NDArray[np.uint32]
    sizes: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    begins: npt.NDArray[np.int64]
    vertices: Vertices
    last: Vertices


def relink(forest: Forest, n: int, crew: Crew) -> None:
    """Make lists and sizes of all trees anew from ``handle``, of n vertices and so below n.

    All numbers below n are handles from now on; which of them are free is for ``list_free`` to say.
    """
    handle = forest.handle[:n]
    sampled, times = np.unique(handle[:: max(n // _SAMPLE, 1)], return_counts=True)
    large = sampled[times * _LARGE_SHARE > times.sum()]
    n_pieces = -(-n // _PIECE)
    dealt = Dealt(
        large,
        np.empty((n_pieces, large.size, 2), np.uint32),
        np.empty((n_pieces, large.size), np.int64),
        np.empty((n_pieces, _BUCKETS), np.int64),
        np.zeros(_BUCKETS + 1, np.int64),
        np.empty(n, np.uint32),
        np.empty(n, np.uint32),
    )
    _relink(forest, n, dealt, crew)


@_shares
def _relink(forest, n, dealt, crew):  # type: ignore[no-untyped-def]
    cursor = np.zeros(1, np.int64)
    pieces = at_most(crew, np.int64(dealt.places.shape[0]))
    share(pieces, _count_pieces, (forest, n, dealt, cursor))
    _hang_together(forest, dealt)
    _place(dealt)
    cursor[0] = 0
    share(pieces, _deal_pieces, (forest, n, dealt, cursor))
    cursor[0] = 0
    share(pieces, _link_buckets, (forest, dealt, cursor))
    forest.counts[N_USED] = n


@_inner
def _number_of(large, h):  # type: ignore[no-untyped-def]
    """Which of the large trees this is, or -1."""
    for k in range(large.size):
        if large[k] == h:
            return np.int64(k)
    return np.int64(-1)


@_inner
def _bucket_of(h):  # type: ignore[no-untyped-def]
    return (np.int64(h) >> _TOGETHER) & (_BUCKETS - 1)


@_inner
def _count_pieces(t, forest, n, dealt, cursor):  # type: ignore[no-untyped-def]
    """Link members of large trees within each piece, count the others by bucket; no handle has a size after it."""
    for piece in drawn(cursor, dealt.places.shape[0]):
        ends, sizes, places = dealt.ends[piece], dealt.sizes[piece], dealt.places[piece]
        ends[:] = NO_VERTEX
        sizes[:] = 0
        places[:] = 0
        for v in range(piece * _PIECE, min((piece + 1) * _PIECE, n)):
            forest.size[v] = 0
            h = forest.handle[v]
            k = _number_of(dealt.large, h)
            if k < 0:
                places[_bucket_of(h)] += 1
                continue
            before = ends[k, 1]
            ends[k, 1] = v
            sizes[k] += 1
            if before == NO_VERTEX:
                ends[k, 0] = v
                continue
            forest.next[before] = v
            forest.prev[v] = before


@_inner
def _hang_together(forest, dealt):  # type: ignore[no-untyped-def]
    """The parts of each large tree's list, in the order of the pieces; and its size."""
    for k in range(dealt.large.size):
        first = last = NO_VERTEX
        size = np.int64(0)
        for piece in range(dealt.sizes.shape[0]):
            if dealt.sizes[piece, k] == 0:
                continue
            size += dealt.sizes[piece, k]
            begin = dealt.ends[piece, k, 0]
            if first == NO_VERTEX:
                first = begin
            else:
                forest.next[last] = begin
                forest.prev[begin] = last
            last = dealt.ends[piece, k, 1]
        forest.next[last] = first
        forest.prev[first] = last
        forest.size[dealt.large[k]] = size


@_inner
def _place(dealt):  # type: ignore[no-untyped-def]
    """Where the vertices of each piece stand in each bucket: behind those of the pieces before."""
    at = np.int64(0)
    for bucket in range(_BUCKETS):
        dealt.begins[bucket] = at
        for piece in range(dealt.places.shape[0]):
            count = dealt.places[piece, bucket]
            dealt.places[piece, bucket] = at
            at += count
    dealt.begins[_BUCKETS] = at


@_inner
def _deal_pieces(t, forest, n, dealt, cursor):  # type: ignore[no-untyped-def]
    for piece in drawn(cursor, dealt.places.shape[0]):
        places = dealt.places[piece]
        for v in range(piece * _PIECE, min((piece + 1) * _PIECE, n)):
            h = forest.handle[v]
            if _number_of(dealt.large, h) < 0:
                bucket = _bucket_of(h)
                dealt.vertices[places[bucket]] = v
                places[bucket] += 1


@_inner
def _link_buckets(t, forest, dealt, cursor):  # type: ignore[no-untyped-def]
    for bucket in drawn(cursor, _BUCKETS):
        for i in range(dealt.begins[bucket], dealt.begins[bucket + 1]):
            v = dealt.vertices[i]
            h = forest.handle[v]
            before = v if forest.size[h] == 0 else dealt.last[h]
            after = v if forest.size[h] == 0 else forest.next[before]
            forest.next[before] = v
            forest.prev[v] = before
            forest.next[v] = after
            forest.prev[after] = v
            forest.size[h] += np.uint32(1)
            dealt.last[h] = v


# -- free handles ----------------------------------------------------------------------------------------


@_shares
def list_free(forest, used, place, crew):  # type: ignore[no-untyped-def]
    """The numbers below ``used`` are the handles from now on; those that name no tree are free.

    Sizes of those that were handles before must be right. ``place`` (uint32[used] at least, or of no size): where
    each free handle stands in the list of them, else ``NO_VERTEX``.
    """
    counts = np.empty(-(-used // _PIECE), np.int64)
    cursor = np.zeros(1, np.int64)
    pieces = at_most(crew, np.int64(counts.size))
    share(pieces, _count_free, (forest, used, counts, cursor))
    forest.counts[N_FREE] = begin_behind(counts)
    cursor[0] = 0
    share(pieces, _list_free, (forest, used, place, counts, cursor))
    forest.counts[N_USED] = used


@_inner
def _count_free(t, forest, used, counts, cursor):  # type: ignore[no-untyped-def]
    """How many are free in each piece, by their sizes, which are 0 for what was no handle before."""
    for piece in drawn(cursor, counts.size):
        count = np.int64(0)
        for h in range(piece * _PIECE, min((piece + 1) * _PIECE, used)):
            if h >= forest.counts[N_USED]:
                forest.size[h] = 0
            count += np.int64(forest.size[h] == 0)
        counts[piece] = count


@_inner
def _list_free(t, forest, used, place, counts, cursor):  # type: ignore[no-untyped-def]
    for piece in drawn(cursor, counts.size):
        at = counts[piece]
        for h in range(piece * _PIECE, min((piece + 1) * _PIECE, used)):
            free = forest.size[h] == 0
            if place.size:
                place[h] = at if free else np.int64(NO_VERTEX)
            if free:
                forest.representative[h] = NO_VERTEX
                forest.free[at] = h
                at += 1


# -- names -----------------------------------------------------------------------------------------------


@_shares
def name_all(forest, n, order, crew):  # type: ignore[no-untyped-def]
    """Let every tree of n vertices be represented by its member with the smallest external id.

    ``order``: ``IdOrder`` of these vertices. Sizes must be right.
    """
    if n == 0:
        return
    cursor = np.zeros(1, np.int64)
    n_pieces = np.int64(-(-n // _PIECE))
    crew = at_most(crew, n_pieces)
    share(crew, _unname_pieces, (forest, cursor, n_pieces))
    cursor[0] = 0
    share(crew, _name_pieces, (forest, n, order, _large_tree(forest, n), cursor))


@_inner
def _unname_pieces(t, forest, cursor, n_pieces):  # type: ignore[no-untyped-def]
    for piece in drawn(cursor, n_pieces):
        for h in range(piece * _PIECE, min((piece + 1) * _PIECE, forest.counts[N_USED])):
            forest.representative[h] = NO_VERTEX


@_inner
def _large_tree(forest, n):  # type: ignore[no-untyped-def]
    """The handle of the largest tree of a small sample's."""
    large = forest.handle[0]
    for v in range(0, n, max(n // _LARGE_SHARE, 1)):
        h = forest.handle[v]
        large = h if forest.size[h] > forest.size[large] else large
    return large


@_inner
def _least_of(handle, numbers, large):  # type: ignore[no-untyped-def]
    """The smallest of the numbers whose vertices have this handle."""
    least = _NO_NUMBER
    for j in range(numbers.size):
        least = min(least, numbers[j] if handle[j] == large else _NO_NUMBER)
    return least


@_inner
def _name_pieces(t, forest, n, order, large, cursor):  # type: ignore[no-untyped-def]
    """A vertex replaces one with a larger id, whatever thread brings which first: the smallest one stays.

    Of the large tree a thread keeps the smallest member to itself till the end.
    """
    named, numbers = forest.representative, order.numbers
    smallest: Any = np.int64(-1)
    least = _NO_NUMBER  # the id of the smallest, if it is a number
    for begin in drawn_by(cursor, n, _PIECE):
        end = min(begin + _PIECE, n)
        end_numbers = max(min(end, numbers.size), begin)
        least_here = _least_of(forest.handle[begin:end_numbers], numbers[begin:end_numbers], large)
        if least_here < least or smallest < 0:
            at = np.int64(begin)
            while at < end_numbers and (numbers[at] != least_here or forest.handle[at] != large):
                at += 1
            if at < end_numbers:
                smallest, least = at, least_here
        for v in range(end_numbers, end):
            if forest.handle[v] == large and (smallest < 0 or comes_before(order, v, smallest)):
                smallest = np.int64(v)
        for first in range(begin, end, 64):
            handle = forest.handle[first : min(first + 64, end)]
            others = ~bits_of(handle, large) & (_ALL >> np.uint64(64 - handle.size))
            while others:
                v = first + lowest_bit(others)
                others &= others - np.uint64(1)
                h = np.int64(forest.handle[v])
                if forest.size[h] == 1:
                    named[h] = v
                else:
                    _name(named, h, v, order)
    if smallest >= 0:
        _name(named, np.int64(large), smallest, order)


@_inner
def _name(named, h, v, order):  # type: ignore[no-untyped-def]
    """Let v represent tree h, unless a member with a smaller id does."""
    member = load(named, h)
    while member == NO_VERTEX or comes_before(order, v, member):
        seen = compare_swap(named, h, member, np.uint32(v))
        if seen == member:
            return
        member = seen


# -- what was computed elsewhere ---------------------------------------------------------------------------


@_shares
def take_nodes(forest, first, nodes, crew):  # type: ignore[no-untyped-def]
    """Take the parent, level and handle of the vertices from ``first`` on.

    ``nodes``: uint32[k, 4], the last of which is not used.
    """
    cursor = np.zeros(1, np.int64)
    n_pieces = np.int64(-(-nodes.shape[0] // _PIECE))
    share(at_most(crew, n_pieces), _take_pieces, (forest, first, nodes, cursor))


@_inner
def _take_pieces(t, forest, first, nodes, cursor):  # type: ignore[no-untyped-def]
    n = np.int64(nodes.shape[0])
    for begin in drawn_by(cursor, n, _PIECE):
        for i in range(begin, min(begin + _PIECE, n)):
            v = first + i
            forest.parent[v] = nodes[i, 0]
            forest.level[v] = np.int64(nodes[i, 1]) * LEVEL_STEP
            forest.handle[v] = nodes[i, 2]


@_shares
def take_members(forest, first, members, place, crew):  # type: ignore[no-untyped-def]
    """Take lists, sizes and free handles from number ``first`` on; how many of these are free.

    ``members``: uint32[k, 4].
    Of every vertex the next and the previous one, and of the handle of the same number its size, and where it
    stands among those that are free: that is what ``place`` (uint32[first + k] at least) is told.
    """
    cursor, free = np.zeros(1, np.int64), np.zeros(1, np.int64)
    n_pieces = np.int64(-(-members.shape[0] // _PIECE))
    share(at_most(crew, n_pieces), _take_members, (forest, first, members, place, cursor, free))
    return free[0]


@_inner
def _take_members(t, forest, first, members, place, cursor, free):  # type: ignore[no-untyped-def]
    n = np.int64(members.shape[0])
    for begin in drawn_by(cursor, n, _PIECE):
        n_free = np.int64(0)
        for i in range(begin, min(begin + _PIECE, n)):
            v = first + i
            forest.next[v] = members[i, 0]
            forest.prev[v] = members[i, 1]
            forest.size[v] = members[i, 2]
            at = members[i, 3]
            place[v] = at
            if at != NO_VERTEX:
                forest.representative[v] = NO_VERTEX
                forest.free[at] = v
                n_free += 1
        fetch_add(free, 0, n_free)


def warm_up(n: Int = 3) -> None:
    """Compile all kernels."""
    columns = [np.zeros(n, np.uint32) for _ in range(7)]
    forest = Forest._make([*columns, np.zeros(n, np.int64), np.zeros(2, np.int64)])
    take_nodes(forest, 0, np.zeros((n, 4), np.uint32), ALONE)
    take_members(forest, 0, np.zeros((n, 4), np.uint32), np.zeros(n, np.uint32), ALONE)
    relink(forest, n, ALONE)
    list_free(forest, n, np.empty(0, np.uint32), ALONE)
    name_all(forest, n, order_of(), ALONE)
