"""What changed links do to the triangles of their vertices: by which number each vertex's tally differs.

For each changed link {u, v} the vertices are found that both are linked to, now or before. Its triangles are taken
away as they were, and added as they are. One with several changed links is taken by the smallest of them, and by
no other, so that a batch needs no order, and nothing is added and taken away again for what two links have in
common (which is where batches go wrong otherwise: Ediger, Jiang, Riedy, Bader, "Massive streaming data analytics:
a case study with clustering coefficients", 2010; Makkar, Bader, Green, "Exact and parallel triangle counting in
dynamic graphs", 2017).

Links are taken in pieces by threads. They add whole numbers, for which no order matters.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import compare_swap, fetch_add, load
from ...gpma.drawing import drawn_by
from ...gpma.edges import HALF, LOW, Int, Offsets, Vertices
from ...gpma.intrinsics import uncounted
from ...gpma.rows import RowView
from ...gpma.sorted_keys import first_at
from ...gpma.team import at_most, share
from ..links import NOW_SHIFT, Links, entries_of, lay_over, list_links
from .common import SEARCH_STEPS, Room, halve, look_up, merge, new_room

# What a changed link costs beside its rows, in steps of a merge; how much work is worth sharing, in these; and how
# many links (in both directions) a thread takes at a time.
LINK_STEPS = 32
_PARALLEL_MIN = 1 << 16
_PIECE = 64

NEXT, TOUCHED, READ = 0, 16, 32
"""What is where in a cursor (int64, a cache line apart): the entries
read."""

_BEFORE = np.int64((1 << NOW_SHIFT) - 1)

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


class Differences(NamedTuple):
    """By how much the tallies of vertices differ; columns of one size, at least that of the graph.

    ``delta`` int64, and ``listed`` uint8: zeros between runs. ``touched`` uint32: the vertices with a difference,
    in any order; some may have none after all.
    """

    delta: npt.NDArray[np.int64]
    listed: npt.NDArray[np.uint8]
    touched: Vertices


@uncounted
def _entries(links: Links, out: RowView, in_: RowView, both: bool, u: Int) -> Int:
    """How many entries a list of the links of u can have, with those that the change ended."""
    first = first_at(links.keys, 0, links.keys.size, np.uint64(u) << HALF)
    end = first_at(links.keys, first, links.keys.size, (np.uint64(u) + np.uint64(1)) << HALF)
    return entries_of(out, in_, both, u) + end - first


@uncounted
def survey(links: Links, out: RowView, in_: RowView, both: bool) -> tuple[Int, Int]:
    """(about what the changed links cost, in steps of a merge; the most entries of a list of one vertex)."""
    keys = links.keys
    steps, most, counted, mine = np.int64(0), np.int64(0), np.int64(-1), np.int64(0)
    for k in range(keys.size):
        u, v = np.int64(keys[k] >> HALF), np.int64(keys[k] & LOW)
        if counted != u:
            mine = _entries(links, out, in_, both, u)
            most = max(most, mine)
            counted = u
        if u < v:
            its = _entries(links, out, in_, both, v)
            few, many = min(mine, its), max(mine, its)
            steps += LINK_STEPS + (SEARCH_STEPS * few if SEARCH_STEPS * few < many else few + many)
    return steps, most


@_jit
def tally(links, out, in_, both, weigh, differences, steps, most, crew):  # type: ignore[no-untyped-def]
    """Add up what the changed links do: (vertices touched, entries merged or looked up).

    ``weigh``: a triangle counts for a vertex as often as its opposite side has arcs; else once. ``steps`` and
    ``most`` as from ``survey``.
    """
    cursor = np.zeros(48, np.int64)
    pieces = links.keys.size // _PIECE + 1 if steps >= _PARALLEL_MIN else np.int64(1)
    share(at_most(crew, pieces), _tally_pieces, (links, out, in_, both, weigh, differences, most, cursor))
    return cursor[TOUCHED], cursor[READ]


@_jit
def _tally_pieces(t, links, out, in_, both, weigh, differences, most, cursor):  # type: ignore[no-untyped-def]
    room = new_room(most, most)
    read = np.int64(0)
    for begin in drawn_by(cursor, links.keys.size, _PIECE):
        end = min(begin + _PIECE, links.keys.size)
        read += _tally_links(links, begin, end, out, in_, both, weigh, differences, room, cursor)
    fetch_add(cursor, READ, read)


@uncounted
def _tally_links(
    links: Links,
    begin: Int,
    end: Int,
    out: RowView,
    in_: RowView,
    both: bool,
    weigh: bool,
    differences: Differences,
    room: Room,
    cursor: Offsets,
) -> Int:
    """Add up what links[begin:end] do; returns the entries that were merged, or looked up."""
    read, listed, n, counted, mine = np.int64(0), np.int64(-1), np.int64(0), np.int64(-1), np.int64(0)
    for k in range(begin, end):
        u, v = np.int64(links.keys[k] >> HALF), np.int64(links.keys[k] & LOW)
        if u > v:
            continue
        if counted != u:
            mine = _entries(links, out, in_, both, u)
            counted = u
        its = _entries(links, out, in_, both, v)
        v_is_hub, u_is_hub = SEARCH_STEPS * mine < its, SEARCH_STEPS * its < mine
        # The row of u is listed once for all its links that want it.
        if listed != u and not u_is_hub:
            n = list_links(out, in_, both, u, room.tails, room.row, room.arcs)
            n = lay_over(links, u, room.row, room.arcs, n)
            listed = u
        read += n if not u_is_hub else 0
        if v_is_hub:
            found = look_up(
                room.row, room.arcs, n, v, links, out, in_, both, room.hits, room.hit_arcs, room.hit_others
            )
        else:
            m = list_links(out, in_, both, v, room.tails, room.other, room.other_arcs)
            m = lay_over(links, v, room.other, room.other_arcs, m)
            read += m
            if not u_is_hub:
                found = merge(
                    room.row,
                    room.arcs,
                    n,
                    room.other,
                    room.other_arcs,
                    m,
                    room.hits,
                    room.hit_arcs,
                    room.hit_others,
                )
            elif listed == u:
                found = halve(
                    room.other,
                    room.other_arcs,
                    m,
                    room.row,
                    room.arcs,
                    n,
                    room.hits,
                    room.hit_others,
                    room.hit_arcs,
                )
            else:
                found = look_up(
                    room.other,
                    room.other_arcs,
                    m,
                    u,
                    links,
                    out,
                    in_,
                    both,
                    room.hits,
                    room.hit_others,
                    room.hit_arcs,
                )
        _tally_triangles(links, k, found, weigh, differences, room, cursor)
    return read


@uncounted
def _tally_triangles(
    links: Links, k: Int, found: Int, weigh: bool, differences: Differences, room: Room, cursor: Offsets
) -> None:
    """Take the triangles of changed link k, whose third vertices are the hits, as they were, and as they are."""
    u, v = np.int64(links.keys[k] >> HALF), np.int64(links.keys[k] & LOW)
    uv_was, uv_is = np.int64(links.before[k]), np.int64(links.after[k])
    to_u, to_v = np.int64(0), np.int64(0)
    for h in range(found):
        w = np.int64(room.hits[h])
        uw_was, uw_is = np.int64(room.hit_arcs[h]) & _BEFORE, np.int64(room.hit_arcs[h]) >> NOW_SHIFT
        vw_was, vw_is = np.int64(room.hit_others[h]) & _BEFORE, np.int64(room.hit_others[h]) >> NOW_SHIFT
        # Of two links of this triangle that with the smaller end is smaller, and then that with the smaller other
        # end.
        if (uw_was != uw_is and w < v) or (vw_was != vw_is and w < u):
            continue
        was = np.int64(uv_was != 0 and uw_was != 0 and vw_was != 0)
        is_ = np.int64(uv_is != 0 and uw_is != 0 and vw_is != 0)
        if weigh:
            to_u += vw_is * is_ - vw_was * was
            to_v += uw_is * is_ - uw_was * was
            to_w = uv_is * is_ - uv_was * was
        else:
            to_w = is_ - was
            to_u += to_w
            to_v += to_w
        _add(differences, w, to_w, cursor)
    _add(differences, u, to_u, cursor)
    _add(differences, v, to_v, cursor)


@uncounted
def _add(differences: Differences, v: Int, amount: Int, cursor: Offsets) -> None:
    """Let the tally of v differ by so much more; whoever is the first to do so lists v. Any thread may do so."""
    if amount != 0:
        fetch_add(differences.delta, v, amount)
        listed = differences.listed
        if load(listed, v) == 0 and compare_swap(listed, v, np.uint8(0), np.uint8(1)) == 0:
            differences.touched[fetch_add(cursor, TOUCHED, np.int64(1))] = v
