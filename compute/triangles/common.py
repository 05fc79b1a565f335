"""What two vertices are both linked to: by merging two lists, or by looking the shorter one up in the longer."""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from ...gpma.edges import HALF, Int, Vertices
from ...gpma.intrinsics import uncounted
from ...gpma.rows import RowView, find_on
from ...gpma.sorted_keys import first_at
from ..links import NOW_SHIFT, SAME, Arcs, Links

SEARCH_STEPS = 12
"""Looking an entry up in a row takes as long as so many steps of a merge."""


class Room(NamedTuple):
    """Where a thread lists rows: ``tails`` for ``list_links``, ``row`` and ``other`` with their arcs for two
    lists.

    Of what is in both, ``hits`` gets the vertices, ``hit_arcs`` the arcs from the first, ``hit_others`` those from
    the other. Arcs are as in ``links.py``: those before, and those after.
    """

    tails: Vertices
    row: Vertices
    arcs: Arcs
    other: Vertices
    other_arcs: Arcs
    hits: Vertices
    hit_arcs: Arcs
    hit_others: Arcs


@nb.njit(cache=True, nogil=True, error_model="numpy")
def new_room(most, most_other):  # type: ignore[no-untyped-def]
    """Room for lists of so many entries; what is common to both fits into the shorter."""
    hits = min(most, most_other)
    return Room(
        np.empty(max(most, most_other), np.uint32),
        np.empty(most, np.uint32),
        np.empty(most, np.uint8),
        np.empty(most_other, np.uint32),
        np.empty(most_other, np.uint8),
        np.empty(hits, np.uint32),
        np.empty(hits, np.uint8),
        np.empty(hits, np.uint8),
    )


@uncounted
def merge(
    row: Vertices,
    arcs: Arcs,
    n: Int,
    other: Vertices,
    other_arcs: Arcs,
    m: Int,
    hits: Vertices,
    hit_arcs: Arcs,
    hit_others: Arcs,
) -> Int:
    """What is in both lists, which ascend: how much. Without branches, since each would be wrong half the time."""
    i, j, found = np.int64(0), np.int64(0), np.int64(0)
    while i < n and j < m:
        x, y = row[i], other[j]
        hits[found] = x
        hit_arcs[found] = arcs[i]
        hit_others[found] = other_arcs[j]
        found += x == y
        i += x <= y
        j += y <= x
    return found


@uncounted
def halve(
    few: Vertices,
    few_arcs: Arcs,
    n: Int,
    many: Vertices,
    many_arcs: Arcs,
    m: Int,
    hits: Vertices,
    hit_few: Arcs,
    hit_many: Arcs,
) -> Int:
    """As ``merge``, looking each of the few up among the many."""
    found, begin = np.int64(0), np.int64(0)
    for i in range(n):
        begin = first_at(many, begin, m, few[i])
        if begin == m:
            break
        if many[begin] == few[i]:
            hits[found] = few[i]
            hit_few[found] = few_arcs[i]
            hit_many[found] = many_arcs[begin]
            found += 1
    return found


@uncounted
def look_up(
    few: Vertices,
    few_arcs: Arcs,
    n: Int,
    hub: Int,
    links: Links,
    out: RowView,
    in_: RowView,
    both: bool,
    hits: Vertices,
    hit_few: Arcs,
    hit_hub: Arcs,
) -> Int:
    """As ``merge``, looking each of the few up among the changed links of a vertex, and in its rows in place."""
    keys, before, after = links.keys, links.before, links.after
    first_key = np.uint64(hub) << HALF
    at = first_at(keys, 0, keys.size, first_key)
    end = first_at(keys, at, keys.size, first_key + (np.uint64(1) << HALF))
    out_leaf = np.int64(out.row_leaf[hub])
    in_leaf = np.int64(in_.row_leaf[hub])
    has_out = out.degrees[hub] > 0
    has_in = both and in_.degrees[hub] > 0
    found = np.int64(0)
    for i in range(n):
        if np.int64(few[i]) == np.int64(hub):
            continue  # a loop is no link
        key = first_key | np.uint64(few[i])
        at = first_at(keys, at, end, key)
        if at < end and keys[at] == key:
            arcs = before[at] | after[at] << NOW_SHIFT
        else:
            number: Int = np.int64(0)
            if has_out:
                out_leaf, slot = find_on(out, out_leaf, key)
                number = np.int64(slot >= 0) if both else 2 * np.int64(slot >= 0)
            if has_in:
                in_leaf, slot = find_on(in_, in_leaf, key)
                number += np.int64(slot >= 0)
            arcs = SAME * number
        if arcs != 0:
            hits[found] = few[i]
            hit_few[found] = few_arcs[i]
            hit_hub[found] = arcs
            found += 1
    return found
