"""The edges that a batch changed, as the programs' kernels take them from words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb

from .edges import Keys, Weights
from .written import n_words, record_type, taking


class ChangedEdges(NamedTuple):
    """Edges that were inserted and overwritten, both with new weights (none when unweighted), and deleted."""

    inserted: Keys
    weights: Weights
    overwritten: Keys
    new_weights: Weights
    deleted: Keys


_keys, _weights = nb.uint64[::1], nb.float32[::1]
CHANGED = record_type(ChangedEdges, _keys, _weights, _keys, _weights, _keys)
CHANGED_WORDS = n_words(CHANGED)
changed_in: Any = taking(CHANGED)
