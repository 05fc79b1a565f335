"""Of a change to the components what needs no external ids, in one compiled call, and what changed in another.

For a small change the ways between Python and compiled code would cost more than what is done there. What the
program holds is taken from where it is written down (``gpma/written.py``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.changed import changed_in
from ...gpma.edges import Keys
from ...gpma.intrinsics import uncounted
from ...gpma.rows import rows_in
from ...gpma.team import CREW, Crew
from ...gpma.written import record_type, taking
from .cut import PIECES, SEARCH, Pieces, Search, hang_elsewhere, list_links, settle, sort_by_level
from .forest import CHANGES, FOREST, N_HANDLES, N_VERTICES, Changes, Forest, Ints, add_vertices, classify, join

# They allocate nothing, and so count no references: as in ``forest.py``.
_jit: Any = uncounted
_inline = nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")


class Room(NamedTuple):
    """Work space of ``take_in``, for so many updates."""

    found: Keys
    children: Ints
    above: Ints
    left: npt.NDArray[np.uint8]


class Held(NamedTuple):
    """What the program holds. ``pieces``: of as many cuts as are made at a time; ``cursor`` int64[1]: for
    ``hang_elsewhere``."""

    forest: Forest
    changes: Changes
    search: Search
    pieces: Pieces
    cursor: Ints
    room: Room
    crew: Crew


_ints = nb.int64[::1]
ROOM = record_type(Room, nb.uint64[::1], _ints, _ints, nb.uint8[::1])
HELD = record_type(Held, FOREST, CHANGES, SEARCH, PIECES, _ints, ROOM, CREW)
held_in: Any = taking(HELD)


@_inline
def _of_run(changes, run):  # type: ignore[no-untyped-def]
    return Changes(
        changes.vertex_stamp,
        changes.vertices,
        changes.old_handle,
        changes.handle_stamp,
        changes.handles,
        changes.old_size,
        changes.old_representative,
        changes.counts,
        run,
    )


@_jit
def take_in(  # type: ignore[no-untyped-def]
    held_words, out_words, in_words, both, run, before, n, changed_words, pieces, size_max, steps_max
):
    """Add vertices ``before`` to ``n``, join trees by inserted edges, and find what is cut by deleted ones:
    (edges that join, links, candidates for names, steps, cuts).

    ``changed_words``: the ``ChangedEdges``, for all of which there is ``room``. The candidates (see ``join``) are
    the first of ``search.members``. The ends of those cut links that are left (see ``hang_elsewhere``) are the
    first of ``room.children`` and ``room.above``.

    Where as many as ``size_max`` edges join or are links, nothing follows of them; and where joining takes more
    than ``steps_max``, no cuts are looked for.
    """
    held = held_in(held_words)
    forest, search, changes = held.forest, held.search, _of_run(held.changes, run)
    inserted, _, _, _, deleted = changed_in(changed_words)
    found, children, above, left = held.room
    none = np.int64(0)
    changes.counts[:] = 0
    search.counts[:] = 0
    add_vertices(forest, changes, before, n)
    n_joining, n_links = classify(
        forest.handle,
        forest.parent,
        inserted,
        deleted,
        found[: inserted.size],
        found[inserted.size :],
        pieces,
        held.crew,
    )
    if n_joining + n_links >= size_max:
        return n_joining, n_links, none, none, none
    n_candidates = none
    steps = none
    if n_joining > 0:
        _, n_candidates, steps = join(forest, changes, found[:n_joining], search.members, steps_max)
    if n_links == 0 or steps > steps_max:
        return n_joining, n_links, n_candidates, steps, none
    links = found[inserted.size : inserted.size + n_links]
    n_cuts = list_links(forest, search, links, children, above, run)
    held.cursor[0] = 0
    n_cuts = hang_elsewhere(
        forest,
        search,
        children[:n_cuts],
        above[:n_cuts],
        left,
        rows_in(out_words),
        rows_in(in_words),
        both != 0,
        held.cursor,
        held.crew,
    )
    return n_joining, n_links, n_candidates, steps, n_cuts


@_jit
def cut_links(held_words, out_words, in_words, both, run, children, above, work_max):  # type: ignore[no-untyped-def]
    """``settle`` for links (int64[k], for which there are ``pieces``) that are few, or stand in its order."""
    held = held_in(held_words)
    changes, out, in_ = _of_run(held.changes, run), rows_in(out_words), rows_in(in_words)
    sort_by_level(held.forest.level, children, above)
    return settle(
        held.forest, changes, held.search, held.pieces, children, above, out, in_, both != 0, run, work_max
    )


@_jit
def list_changed(held_words, before, n):  # type: ignore[no-untyped-def]
    """What differs from before the run, and all that is new from ``before`` to ``n``: how many vertices have
    another handle, how many handles another representative, and another size.

    They are listed in ``queue_next``, ``members`` and ``rest`` of the search, which has ended.
    """
    held = held_in(held_words)
    forest, changes = held.forest, held.changes
    moved, renamed, resized = held.search.queue_next, held.search.members, held.search.rest
    n_moved = np.int64(0)
    for k in range(changes.counts[N_VERTICES]):
        v = changes.vertices[k]
        if v < before and forest.handle[v] != changes.old_handle[k]:
            moved[n_moved] = v
            n_moved += 1
    for v in range(before, n):
        moved[n_moved] = v
        n_moved += 1
    n_renamed = np.int64(0)
    n_resized = np.int64(0)
    for k in range(changes.counts[N_HANDLES]):
        h = changes.handles[k]
        if h >= before or forest.representative[h] != changes.old_representative[k]:
            renamed[n_renamed] = h
            n_renamed += 1
        if h >= before or forest.size[h] != changes.old_size[k]:
            resized[n_resized] = h
            n_resized += 1
    return n_moved, n_renamed, n_resized
