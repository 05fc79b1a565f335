"""What a change does to cores: all deletions at once, and all insertions in one sweep over the levels.

A **level** is the vertices of one core, in an order in which each has at most as many links to later ones, and to
higher levels, as its core says (``after``). Zhang, Yu, Zhang, Qin, "A fast order-based approach for core
maintenance" (2017), keep it for one link at a time; Guo, Sekerinski, "Simplified algorithms for order-based core
maintenance" (2022), by labels.

**Deletions** (``drop``). A vertex with fewer links to its own level and above (``high``) than its core drops to
the largest core that its links support, and its neighbours in between lose one, until nobody drops. Those that did
are put behind all others of their new levels, in an order in which they can be peeled.

**Insertions** (``rise``), levels ascending. A vertex with too many links behind it is looked at, in order. If
those, and the *candidates* before it that it is linked to (``extra``), are more than its core, it is a candidate
itself, and each later neighbour of its level has one before it. Else it stays, and they are behind it now: a
candidate that loses so many that it cannot rise any more is put right behind, with those that then cannot, in a
*chain*. Whoever is left rises to the front of the next level, in order, and is looked at again there.
Where a level takes long, it and all above are computed anew instead (``compute_from``): below, everything is done
by then.

Either may come first. The rows are those after both, so that deletions then leave out the new links, or insertions
add the ended ones. The better order is the larger part first: few deletions seldom take back what many insertions
did, while to take deletions first may break a large core that the insertions would make whole again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.edges import HALF, LOW, NO_VERTEX, Int, Vertices
from ...gpma.intrinsics import uncounted
from ...gpma.sorted_keys import first_at
from ...gpma.vertex_columns import grown
from ..links import Links, entries_of
from ..ordering import Order, keep_within, push_back, push_front, put_behind, unlink
from .peel import Cores, Reader, is_later, listed
from .waves import take_away

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")

# Bits of a vertex's role; none is set between runs.
LOGGED, WAITING, DROPPED, PLACED, CANDIDATE, CHAINED = 1, 2, 4, 8, 16, 32

# What is where in the counts: the vertices logged, those that wait, those that dropped or are candidates, the
# entries read, the vertices looked at, the lists labelled anew, the rows kept, and their links.
N_LOGGED, N_WAITING, N_MEMBERS, N_READ, N_VISITED, N_RENEWED, N_KEPT, N_KEPT_LINKS = range(8)
N_COUNTS = 8

DONE = -1
"""No level."""

AS_IT_IS, WITHOUT_NEW, WITH_ENDED = range(3)
"""What is laid over a row of now: nothing, or what takes the new links out of it, or puts the ended ones back."""

_NOT_KEPT = 0xFFFF_FFFF


class Scratch(NamedTuple):
    """What a change needs, of one size, at least that of the graph; means nothing between runs but for zeros.

    ``role`` uint8 and ``extra`` int32: zeros. ``was`` uint32: the core of before, of those that were touched.
    ``old_core`` uint32, ``old_label`` int64: core and label of those that dropped, before that. Lists, uint32:
    ``logged``, those whose core was touched; ``waiting``, a stack, or a heap by order; ``members``, those that
    dropped, or the candidates; ``chain``. ``supports`` int64, by core. ``counts`` int64.

    Rows that were read are kept for as long as deletions, or insertions, are taken, but for links that cannot
    matter any more. ``links`` uint32 (of a size of its own) has them one after the other. By the number of a row:
    ``owner`` uint32, and ``begins`` int64, one more, where it begins there. ``number`` uint32: of a vertex that
    owns the row of this number, that; of others anything else.
    """

    role: npt.NDArray[np.uint8]
    extra: npt.NDArray[np.int32]
    was: Vertices
    old_core: Vertices
    old_label: npt.NDArray[np.int64]
    logged: Vertices
    waiting: Vertices
    members: Vertices
    chain: Vertices
    supports: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    links: Vertices
    owner: Vertices
    begins: npt.NDArray[np.int64]
    number: Vertices


# Columns whose entries are read only after they were written.
_UNSET = ["was", "old_core", "old_label", "logged", "waiting", "members", "chain", "supports", "owner", "number"]


def no_scratch() -> Scratch:
    """For no vertices, and no rows to be kept."""
    made: dict[str, npt.NDArray[Any]] = {name: np.empty(0, np.uint32) for name in _UNSET}
    made |= {name: np.empty(0, np.int64) for name in ("old_label", "supports")}
    role, extra, counts = np.zeros(0, np.uint8), np.zeros(0, np.int32), np.zeros(N_COUNTS, np.int64)
    return Scratch(
        role=role, extra=extra, counts=counts, links=np.empty(0, np.uint32), begins=np.zeros(1, np.int64), **made
    )


def with_room(scratch: Scratch, size: int) -> Scratch:
    """The same for more vertices."""
    role, extra = grown(scratch.role, size, 0), grown(scratch.extra, size, 0)
    unset = {name: grown(getattr(scratch, name), size) for name in _UNSET}
    return scratch._replace(role=role, extra=extra, begins=grown(scratch.begins, size + 1, 0), **unset)


@uncounted
def drop(
    cores: Cores, order: Order, scratch: Scratch, reader: Reader, links: Links, overlay: Int, read_max: Int
) -> bool:
    """Take the links that ended. False: more entries than ``read_max`` were read, and nothing of it is of use.

    ``overlay``: WITHOUT_NEW where those that are new have not been taken. ``counts`` add up from what they are;
    ``scratch.logged`` names the vertices whose core may be another, each once, and ``was`` what it was.
    """
    _forget_kept(scratch)
    _lose(cores, order, scratch, links)
    return scratch.counts[N_WAITING] == 0 or (
        _drop(cores, order, scratch, reader, links, overlay, read_max)
        and _place(cores, order, scratch, reader, links, overlay, read_max)
    )


@uncounted
def rise(
    cores: Cores,
    order: Order,
    scratch: Scratch,
    reader: Reader,
    links: Links,
    overlay: Int,
    read_max: Int,
    level_floor: Int,
    degeneracy: Int,
) -> Int:
    """Take the links that are new: DONE, or the level from which on cores are better computed anew.

    That is found when more entries than ``read_max`` were read, or of one level, past ``level_floor``, half as
    many as the rows from there on have. Below that level, all is as it must be then; the vertices from there on
    are in lists from there on. ``overlay``: WITH_ENDED where those that ended have not been taken.
    ``degeneracy``: the largest core before. The rest is as in ``drop``.
    """
    _forget_kept(scratch)
    _gain(cores, order, scratch, links)
    while scratch.counts[N_WAITING]:
        level = np.int64(cores.core[scratch.waiting[0]])
        top = max(degeneracy, level)
        if not _sweep(cores, order, scratch, reader, links, overlay, level, read_max, level_floor, top):
            return level
        _raise(cores, order, scratch, reader, links, overlay, level)
        scratch.counts[N_RENEWED] += keep_within(order, level)
    return np.int64(DONE)


@uncounted
def finish(cores: Cores, order: Order, scratch: Scratch) -> None:
    """Leave labels and roles as the next change needs them, when all is taken."""
    for k in range(scratch.counts[N_LOGGED]):
        v = scratch.logged[k]
        scratch.role[v] = 0
        scratch.counts[N_RENEWED] += keep_within(order, np.int64(cores.core[v]))


@uncounted
def add_vertices(order: Order, begin: Int, end: Int) -> None:
    """Put new vertices, which have no links, behind the others of core 0."""
    for v in range(begin, end):
        push_back(order, 0, v)


@uncounted
def _log(cores: Cores, scratch: Scratch, v: Int) -> None:
    """Remember the core of before."""
    if scratch.role[v] & LOGGED == 0:
        scratch.role[v] |= np.uint8(LOGGED)
        scratch.was[v] = cores.core[v]
        scratch.logged[scratch.counts[N_LOGGED]] = v
        scratch.counts[N_LOGGED] += 1


# -- rows ---------------------------------------------------------------------------------------------------------


@uncounted
def _list(reader: Reader, links: Links, scratch: Scratch, v: Int, overlay: Int) -> Int:
    """List the links of v to ``reader.row``, in any order: how many there are. ``overlay``: which others."""
    n = listed(reader, v)
    scratch.counts[N_READ] += entries_of(reader.out, reader.in_, reader.both, v)
    if overlay == AS_IT_IS:
        return n
    keys, row = links.keys, reader.row
    at = first_at(keys, 0, keys.size, np.uint64(v) << HALF)
    end = first_at(keys, at, keys.size, (np.uint64(v) + np.uint64(1)) << HALF)
    if overlay == WITH_ENDED:
        for k in range(at, end):
            row[n] = keys[k] & LOW
            n += links.after[k] == 0
        return n
    if at == end:
        return n
    left = np.int64(0)
    for k in range(n):
        u = np.uint64(row[k])
        while at < end and (keys[at] & LOW) < u:
            at += 1
        is_new = at < end and (keys[at] & LOW) == u and links.before[at] == 0
        row[left] = row[k]
        left += not is_new
    return left


@uncounted
def _keep(cores: Cores, scratch: Scratch, row: Vertices, v: Int, n: Int, least: Int) -> Int:
    """Leave of the n links of v in ``row`` those to vertices whose core is at least so much: how many are left.

    They are kept, where there is room for them, until all rows are forgotten.
    """
    core, counts, number = cores.core, scratch.counts, scratch.number
    left = np.int64(0)
    for k in range(n):
        u = row[k]
        row[left] = u
        left += np.int64(core[u]) >= least
    begin, at = counts[N_KEPT_LINKS], counts[N_KEPT]
    if at == min(scratch.owner.size, scratch.begins.size - 1) or begin + left > scratch.links.size:
        number[v] = _NOT_KEPT
        return left
    for k in range(left):
        scratch.links[begin + k] = row[k]
    number[v] = at
    scratch.owner[at] = v
    scratch.begins[at + 1] = begin + left
    counts[N_KEPT] += 1
    counts[N_KEPT_LINKS] += left
    return left


@uncounted
def _kept(scratch: Scratch, row: Vertices, v: Int) -> Int:
    """Bring what was kept of the links of v to ``row``: how many there are; -1 if nothing was."""
    at = np.int64(scratch.number[v])
    if at >= scratch.counts[N_KEPT] or np.int64(scratch.owner[at]) != v:
        return np.int64(-1)
    begin = scratch.begins[at]
    n = scratch.begins[at + 1] - begin
    for k in range(n):
        row[k] = scratch.links[begin + k]
    scratch.counts[N_READ] += n
    return n


@uncounted
def _kept_or_list(reader: Reader, links: Links, scratch: Scratch, v: Int, overlay: Int) -> Int:
    """As ``_list``, of links that cannot matter any more none, where they were kept so."""
    n = _kept(scratch, reader.row, v)
    return n if n >= 0 else _list(reader, links, scratch, v, overlay)


@uncounted
def _forget_kept(scratch: Scratch) -> None:
    scratch.counts[N_KEPT] = scratch.counts[N_KEPT_LINKS] = 0


# -- deletions ----------------------------------------------------------------------------------------------------


@uncounted
def _lose(cores: Cores, order: Order, scratch: Scratch, links: Links) -> None:
    """Take ended links from the counts of both ends; who has too few waits."""
    for k in range(links.keys.size):
        if links.after[k] == 0:
            u, v = np.int64(links.keys[k] >> HALF), np.int64(links.keys[k] & LOW)
            if cores.core[v] >= cores.core[u]:
                cores.high[u] -= np.uint32(1)
                _wait_if_low(cores, scratch, u)
            if is_later(cores, order, v, u):
                cores.after[u] -= np.uint32(1)


@uncounted
def _wait_if_low(cores: Cores, scratch: Scratch, u: Int) -> None:
    if cores.high[u] < cores.core[u] and scratch.role[u] & WAITING == 0:
        scratch.role[u] |= np.uint8(WAITING)
        scratch.waiting[scratch.counts[N_WAITING]] = u
        scratch.counts[N_WAITING] += 1


@uncounted
def _drop(
    cores: Cores, order: Order, scratch: Scratch, reader: Reader, links: Links, overlay: Int, read_max: Int
) -> bool:
    """Let drop who must, and whoever then must; they are in no list any more."""
    core, high, role, counts = cores.core, cores.high, scratch.role, scratch.counts
    supports, row = scratch.supports, reader.row
    while counts[N_WAITING]:
        counts[N_WAITING] -= 1
        v = np.int64(scratch.waiting[counts[N_WAITING]])
        role[v] &= np.uint8(255 - WAITING)
        if high[v] >= core[v]:
            continue
        if counts[N_READ] > read_max:
            return False
        counts[N_VISITED] += 1
        old = np.int64(core[v])
        if role[v] & DROPPED == 0:
            _log(cores, scratch, v)
            role[v] |= np.uint8(DROPPED)
            scratch.old_core[v] = old
            scratch.old_label[v] = order.label[v]
            scratch.members[counts[N_MEMBERS]] = v
            counts[N_MEMBERS] += 1
            unlink(order, old, v)
        n = _list(reader, links, scratch, v, overlay)
        for k in range(old + 1):
            supports[k] = 0
        for k in range(n):
            supports[min(np.int64(core[row[k]]), old)] += 1
        new, support = old, supports[old]
        while support < new:
            new -= 1
            support += supports[new]
        core[v] = new
        high[v] = support
        # Cores only become smaller: whose is smaller than this one matters no more.
        n = _keep(cores, scratch, row, v, n, new)
        for k in range(n):
            u = np.int64(row[k])
            if new < np.int64(core[u]) and np.int64(core[u]) <= old:
                high[u] -= np.uint32(1)
                _wait_if_low(cores, scratch, u)
    return True


@uncounted
def _place(
    cores: Cores, order: Order, scratch: Scratch, reader: Reader, links: Links, overlay: Int, read_max: Int
) -> bool:
    """Put those that dropped behind the others of their levels, each when few enough are left to come."""
    core, role, extra, counts = cores.core, scratch.role, scratch.extra, scratch.counts
    n_placed, n_members, row = np.int64(0), counts[N_MEMBERS], reader.row
    for m in range(n_members):
        if counts[N_READ] > read_max:
            return False
        v = np.int64(scratch.members[m])
        n, mine, to_come = _kept_or_list(reader, links, scratch, v, overlay), core[v], np.int32(0)
        for k in range(n):
            u = np.int64(row[k])
            to_come += np.int32(core[u] > mine or (core[u] == mine and role[u] & DROPPED != 0))
        extra[v] = to_come
        if np.int64(to_come) <= np.int64(mine):
            role[v] |= np.uint8(PLACED)
            scratch.chain[n_placed] = v
            n_placed += 1
    i = np.int64(0)
    while i < n_placed:
        if counts[N_READ] > read_max:
            return False
        v = np.int64(scratch.chain[i])
        i += 1
        level = core[v]
        cores.after[v] = extra[v]
        extra[v] = -1
        push_back(order, np.int64(level), v)
        n = _kept_or_list(reader, links, scratch, v, overlay)
        for k in range(n):
            u = np.int64(row[k])
            if role[u] & DROPPED:
                if core[u] == level and extra[u] >= 0:
                    extra[u] -= np.int32(1)
                    if np.int64(extra[u]) <= np.int64(level) and role[u] & PLACED == 0:
                        role[u] |= np.uint8(PLACED)
                        scratch.chain[n_placed] = u
                        n_placed += 1
            elif core[u] > level:
                # It may have been before v, and is behind it now.
                was = scratch.old_core[v]
                if core[u] < was or (core[u] == was and order.label[u] < scratch.old_label[v]):
                    cores.after[u] -= np.uint32(1)
    for m in range(n_members):
        v = np.int64(scratch.members[m])
        role[v] &= np.uint8(255 - DROPPED - PLACED)
        extra[v] = 0
    counts[N_MEMBERS] = 0
    return True


# -- insertions ---------------------------------------------------------------------------------------------------


@uncounted
def _gain(cores: Cores, order: Order, scratch: Scratch, links: Links) -> None:
    """Add new links to the counts of both ends; who has too many behind it waits."""
    for k in range(links.keys.size):
        if links.before[k] == 0:
            u, v = np.int64(links.keys[k] >> HALF), np.int64(links.keys[k] & LOW)
            if cores.core[v] >= cores.core[u]:
                cores.high[u] += np.uint32(1)
            if is_later(cores, order, v, u):
                cores.after[u] += np.uint32(1)
                if cores.after[u] > cores.core[u]:
                    _wait(cores, order, scratch, u)


@uncounted
def _wait(cores: Cores, order: Order, scratch: Scratch, v: Int) -> None:
    """Let v wait for its turn, if it does not; the first in order is at the top."""
    if scratch.role[v] & WAITING:
        return
    scratch.role[v] |= np.uint8(WAITING)
    heap = scratch.waiting
    at = scratch.counts[N_WAITING]
    scratch.counts[N_WAITING] += 1
    while at > 0:
        above = (at - 1) >> 1
        if not is_later(cores, order, np.int64(heap[above]), v):
            break
        heap[at] = heap[above]
        at = above
    heap[at] = v


@uncounted
def _next(cores: Cores, order: Order, scratch: Scratch) -> Int:
    """The first of those that wait, which waits no more."""
    heap = scratch.waiting
    first = np.int64(heap[0])
    scratch.role[first] &= np.uint8(255 - WAITING)
    scratch.counts[N_WAITING] -= 1
    n = scratch.counts[N_WAITING]
    if n > 0:
        last, at = np.int64(heap[n]), np.int64(0)
        while True:
            below = 2 * at + 1
            if below >= n:
                break
            if below + 1 < n and is_later(cores, order, np.int64(heap[below]), np.int64(heap[below + 1])):
                below += 1
            if not is_later(cores, order, last, np.int64(heap[below])):
                break
            heap[at] = heap[below]
            at = below
        heap[at] = last
    return first


@uncounted
def _sweep(
    cores: Cores,
    order: Order,
    scratch: Scratch,
    reader: Reader,
    links: Links,
    overlay: Int,
    level: Int,
    read_max: Int,
    level_floor: Int,
    degeneracy: Int,
) -> bool:
    """Find who rises from a level: the members that are candidates in the end. False: it is given up, as
    ``rise`` says."""
    core, after, role, extra = cores.core, cores.after, scratch.role, scratch.extra
    counts, row = scratch.counts, reader.row
    counts[N_MEMBERS] = 0
    read_before, look_at = counts[N_READ], counts[N_READ] + level_floor
    while counts[N_WAITING] and np.int64(core[scratch.waiting[0]]) == level:
        if counts[N_READ] > read_max:
            return False
        if counts[N_READ] > look_at:
            # Looked at whenever as much again was read, and no further than matters: this costs little.
            bound = 2 * (counts[N_READ] - read_before)
            if entries_above(order, reader, level, degeneracy, bound) <= bound:
                return False
            look_at = read_before + bound
        v = _next(cores, order, scratch)
        counts[N_VISITED] += 1
        if extra[v] == 0 and np.int64(after[v]) <= level:
            continue
        n = _kept(scratch, row, v)
        is_new = n < 0
        if is_new:
            n = _list(reader, links, scratch, v, overlay)
        if np.int64(extra[v]) + np.int64(after[v]) > level:
            # Who is below this level stays there: only what is left matters from here on.
            if is_new:
                n = _keep(cores, scratch, row, v, n, level)
            role[v] |= np.uint8(CANDIDATE)
            scratch.members[counts[N_MEMBERS]] = v
            counts[N_MEMBERS] += 1
            for k in range(n):
                w = np.int64(row[k])
                if np.int64(core[w]) == level and order.label[w] > order.label[v]:
                    extra[w] += np.int32(1)
                    _wait(cores, order, scratch, w)
            continue
        after[v] += np.uint32(extra[v])
        extra[v] = 0
        n_chain = np.int64(0)
        for k in range(n):
            w = np.int64(row[k])
            if role[w] & CANDIDATE:
                after[w] -= np.uint32(1)
                n_chain = _chain_if_low(cores, scratch, w, level, n_chain)
        _give_up(cores, order, scratch, reader, links, overlay, v, level, n_chain)
    return True


@uncounted
def _chain_if_low(cores: Cores, scratch: Scratch, w: Int, level: Int, n_chain: Int) -> Int:
    """Chain a candidate that cannot rise any more: the new length of the chain."""
    if np.int64(scratch.extra[w]) + np.int64(cores.after[w]) <= level and scratch.role[w] & CHAINED == 0:
        scratch.role[w] |= np.uint8(CHAINED)
        scratch.chain[n_chain] = w
        return n_chain + 1
    return n_chain


@uncounted
def _give_up(
    cores: Cores,
    order: Order,
    scratch: Scratch,
    reader: Reader,
    links: Links,
    overlay: Int,
    v: Int,
    level: Int,
    n_chain: Int,
) -> None:
    """Put the chain, and who then cannot rise, right behind v, which stays."""
    core, after, role, extra, row = cores.core, cores.after, scratch.role, scratch.extra, reader.row
    i = np.int64(0)
    while i < n_chain:
        w = np.int64(scratch.chain[i])
        i += 1
        role[w] &= np.uint8(255 - CANDIDATE - CHAINED)
        after[w] = np.uint32(np.int64(after[w]) + np.int64(extra[w]))
        extra[w] = 0
        n = _kept_or_list(reader, links, scratch, w, overlay)
        for k in range(n):
            x = np.int64(row[k])
            if np.int64(core[x]) != level:
                continue
            if role[x] & CANDIDATE:
                if order.label[x] < order.label[w]:
                    after[x] -= np.uint32(1)
                else:
                    extra[x] -= np.int32(1)
                n_chain = _chain_if_low(cores, scratch, x, level, n_chain)
            elif role[x] & WAITING and order.label[x] > order.label[v]:
                extra[x] -= np.int32(1)
    for k in range(n_chain):
        unlink(order, level, np.int64(scratch.chain[k]))
    if n_chain:
        scratch.counts[N_RENEWED] += put_behind(order, level, v, scratch.chain, n_chain)


@uncounted
def _raise(
    cores: Cores, order: Order, scratch: Scratch, reader: Reader, links: Links, overlay: Int, level: Int
) -> None:
    """Let the candidates rise to the front of the next level; who has too many behind it there waits."""
    core, role, counts, row = cores.core, scratch.role, scratch.counts, reader.row
    n_members = counts[N_MEMBERS]
    for back in range(n_members):
        v = np.int64(scratch.members[n_members - 1 - back])
        if role[v] & CANDIDATE:
            unlink(order, level, v)
            _log(cores, scratch, v)
            core[v] = level + 1
            scratch.extra[v] = 0
            push_front(order, level + 1, v)
    for m in range(n_members):
        v = np.int64(scratch.members[m])
        if role[v] & CANDIDATE == 0:
            continue
        n, high = _kept_or_list(reader, links, scratch, v, overlay), np.int64(0)
        for k in range(n):
            u = np.int64(row[k])
            high += np.int64(core[u]) > level
            if np.int64(core[u]) == level + 1 and role[u] & CANDIDATE == 0:
                cores.high[u] += np.uint32(1)
        cores.high[v] = high
    for m in range(n_members):
        v = np.int64(scratch.members[m])
        if role[v] & CANDIDATE:
            role[v] &= np.uint8(255 - CANDIDATE)
            if np.int64(cores.after[v]) > level + 1:
                _wait(cores, order, scratch, v)
    counts[N_MEMBERS] = 0


# -- from a level on ----------------------------------------------------------------------------------------------


@uncounted
def entries_above(order: Order, reader: Reader, level: Int, degeneracy: Int, bound: Int) -> Int:
    """How many entries the rows of vertices from a level on have, ``degeneracy`` being the last; more than
    ``bound`` are not counted."""
    entries = np.int64(0)
    for k in range(level, degeneracy + 1):
        v = order.first[k]
        while v != NO_VERTEX:
            entries += entries_of(reader.out, reader.in_, reader.both, v)
            if entries > bound:
                return entries
            v = order.following[v]
    return entries


@_jit
def compute_from(cores, order, scratch, reader, links, overlay, level, degeneracy, entries, crew):  # type: ignore[no-untyped-def]
    """Compute all vertices from a level on anew, where ``rise`` has given up: what it does is done then.

    Nobody falls below this level, so that links to vertices below it do not matter. ``degeneracy``: the largest
    core that there is, ``entries``: what the rows of these vertices have, with those laid over them.
    """
    n = np.int64(0)
    for k in range(level, degeneracy + 1):
        n += order.size[k]
    vertices, sizes = np.empty(n, np.uint32), np.empty(n, np.uint32)
    offsets, heads = np.empty(n + 1, np.int64), np.empty(entries, np.uint32)
    _links_above(cores, order, scratch, reader, links, overlay, level, degeneracy, vertices, offsets, heads, sizes)
    core, after, high = np.empty(n, np.uint32), np.empty(n, np.uint32), np.empty(n, np.uint32)
    ranked = take_away(offsets, heads, sizes, n, core, after, high, crew)
    _put_above(cores, order, scratch, level, degeneracy, vertices, ranked, core, after, high)


@uncounted
def _links_above(
    cores: Cores,
    order: Order,
    scratch: Scratch,
    reader: Reader,
    links: Links,
    overlay: Int,
    level: Int,
    degeneracy: Int,
    vertices: Vertices,
    offsets: npt.NDArray[np.int64],
    heads: Vertices,
    sizes: Vertices,
) -> None:
    """The vertices from a level on, and the links between them, by places among these."""
    core, extra, role = cores.core, scratch.extra, scratch.role
    n = np.int64(0)
    for k in range(level, degeneracy + 1):
        v = order.first[k]
        while v != NO_VERTEX:
            vertices[n] = v
            extra[v] = n
            role[v] &= np.uint8(LOGGED)
            n += 1
            v = order.following[v]
    to = np.int64(0)
    for i in range(n):
        offsets[i] = to
        size = _kept_or_list(reader, links, scratch, np.int64(vertices[i]), overlay)
        for k in range(size):
            u = np.int64(reader.row[k])
            if np.int64(core[u]) >= level:
                heads[to] = extra[u]
                to += 1
        sizes[i] = to - offsets[i]
    offsets[n] = to


@uncounted
def _put_above(
    cores: Cores,
    order: Order,
    scratch: Scratch,
    level: Int,
    degeneracy: Int,
    vertices: Vertices,
    ranked: Vertices,
    found: Vertices,
    after: Vertices,
    high: Vertices,
) -> None:
    """Give these vertices what was found for them, by their places, and put them in order."""
    for k in range(level, degeneracy + 1):
        order.first[k] = order.last[k] = NO_VERTEX
        order.size[k] = 0
    for i in range(ranked.size):
        p = np.int64(ranked[i])
        v, core = np.int64(vertices[p]), found[p]
        if cores.core[v] != core:
            _log(cores, scratch, v)
            cores.core[v] = core
        cores.after[v] = after[p]
        cores.high[v] = high[p]
        scratch.extra[v] = 0
        push_back(order, np.int64(core), v)
    scratch.counts[N_WAITING] = scratch.counts[N_MEMBERS] = 0
