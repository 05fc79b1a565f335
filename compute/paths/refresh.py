"""A refresh in one compiled call: what the updates of a change are, all that follows from them, and what changed.

For a small change the ways between Python and compiled code would cost more than what is done there. So there is
one, and what a program holds from one run to the next is not handed over each time, but taken from where it is
written down (``gpma/written.py``). A template for ``templates.specialise``, with the conventions of ``mend.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.changed import changed_in
from ...gpma.edges import Keys, Vertices, Weights
from ...gpma.rows import rows_in
from ...gpma.team import CREW, Crew
from ...gpma.written import record_type, taking
from .loss import LOSS, Loss
from .mend import LOG, Log
from .spread import PILES, Piles
from .templates import template

WEIGHTED = False
# What ``specialise`` puts in place.
classify: Any = None
mend: Any = None
changed: Any = None

NOBODY_ASKS = -1
"""In the place of the vertices of before: what changed is not to be listed."""


class Held(NamedTuple):
    """What a program holds: words and roles by vertex, the log, work space as in ``mend.mend``, the word of a
    source, and room for those updates that take support or may improve something (``classify``)."""

    word: Keys
    role: npt.NDArray[np.uint8]
    log: Log
    loss: Loss
    entries: Keys
    queue: Vertices
    piles: Piles
    source_word: np.uint64
    found: Keys
    found_weights: Weights
    crew: Crew


_keys = nb.uint64[::1]
HELD = record_type(
    Held, _keys, nb.uint8[::1], LOG, LOSS, _keys, nb.uint32[::1], PILES, nb.uint64, _keys, nb.float32[::1], CREW
)
held_in: Any = taking(HELD)


@template
def refresh(  # type: ignore[no-untyped-def]
    held_words, out_words, in_words, sources, changed_words, pieces, n_before, n, lost_max, steps, edges_max
):
    """Bring the words up to date: (updates that took support, vertices lost, edges read, rounds, words
    written, vertices listed).

    ``held_words``: a ``Held``; ``out_words``, ``in_words``: rows; ``sources`` may be without their word.
    ``changed_words``: the ``ChangedEdges``, see ``classify``. What differs from before and is below ``n_before``,
    and the vertices from there to ``n``, are listed in ``loss.adopted``.

    Nothing was done where as many as ``lost_max`` took support. -1 lost: see ``mend``.
    """
    held, out, in_ = held_in(held_words), rows_in(out_words), rows_in(in_words)
    inserted, weights, overwritten, new_weights, deleted = changed_in(changed_words)
    word, log, found, found_weights = held.word, held.log, held.found, held.found_weights
    none = np.int64(0)
    lost_room = deleted.size + (overwritten.size if WEIGHTED else none)
    n_taking, n_improving = classify(
        word,
        deleted,
        overwritten,
        new_weights,
        inserted,
        weights,
        found[:lost_room],
        found[lost_room:],
        found_weights,
        pieces,
        held.crew,
    )
    if n_taking >= lost_max:
        return n_taking, none, none, none, none, none
    n_lost = none
    edges = none
    rounds = none
    if n_taking + n_improving + sources.size > 0:
        n_lost, edges, rounds = mend(
            word,
            log,
            held.role,
            sources,
            held.source_word,
            found[:n_taking],
            found[lost_room : lost_room + n_improving],
            found_weights,
            out,
            in_,
            held.loss,
            held.entries,
            held.queue,
            steps,
            held.piles,
            edges_max,
            held.crew,
        )
        if n_lost < 0 or n_before == NOBODY_ASKS:
            return n_taking, n_lost, edges, rounds, log.counted[0], none
        written = log.counted[0]
        listed = changed(word, log, n_before, held.loss.adopted)
    else:
        listed = none
        written = none
    for v in range(n_before, n):
        held.loss.adopted[listed] = v
        listed += 1
    return n_taking, n_lost, edges, rounds, written, listed
