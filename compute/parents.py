"""Checks that parents form a forest: the part of the audit that looking at single edges cannot do.

Two vertices that support each other pass every check of one edge at a time; only following the parents to
the end shows that they reach no root.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from ..gpma.edges import Vertices

_UNKNOWN, _CLIMBING, _SOUND, _LOOSE = 0, 1, 2, 3


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _climb_all(parent, n, state, path):  # type: ignore[no-untyped-def]
    """Set state[v] to sound or loose for every v below n: each vertex is climbed once."""
    for start in range(n):
        v = np.int64(start)
        depth = 0
        while v < n and state[v] == _UNKNOWN:
            state[v] = _CLIMBING
            path[depth] = v
            depth += 1
            if parent[v] == np.uint32(0xFFFF_FFFF):
                v = np.int64(-1)
                break
            v = np.int64(parent[v])
        # The climb ended above a root (-1), out of range, at a vertex that is decided, or on its own path.
        sound = v == -1 or (v < n and state[v] == _SOUND)
        verdict = _SOUND if sound else _LOOSE
        for i in range(depth):
            state[path[i]] = verdict


def vertices_without_root(parent: Vertices) -> Vertices:
    """The vertices whose chain of parents never ends at a root (a vertex whose parent is ``NO_VERTEX``).

    ``parent``: uint32[n]. O(n): every vertex is climbed from once.
    """
    n = parent.size
    state = np.zeros(n, np.uint8)
    _climb_all(parent, n, state, np.empty(n, np.uint32))
    return np.flatnonzero(state == _LOOSE).astype(np.uint32)
