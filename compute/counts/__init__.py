"""Counts of shortest paths: sums over the levels of a breadth-first search.

The family promises: after every epoch the count of a vertex is exact below 2^53, as after a fresh start, and is
told to be a lower bound from there on (``saturated``). Counts have no parent and no best offer, so they do not fit
the form of paths: a vertex sums what its predecessors on the level before have, and each level is finished before
the next.

There is one member, ``SSPaths``. It keeps hops by a ``BFS`` of its own, the only thing that one family takes of
another; where a level stays, differences are passed on, and where it changes, a vertex is counted anew.

Read ``sspaths.py`` first, then ``kernels.py`` and ``recount.py``.
"""

from .sspaths import SSPaths

__all__ = ["SSPaths"]
