"""Cores: how deep in the dense part of the graph each vertex lies.

The family promises: after every epoch each vertex has the largest k for which it is in a set of vertices that have
k links each into the set, as after a fresh start, on the undirected simple view of the graph (``links.py``). A
change that moves no counter over its rule reads no row.

There is one member, ``KCore``. Read ``kcore.py`` first, then ``sweep.py``; ``peel.py`` computes from scratch.
"""

from .kcore import KCore

__all__ = ["KCore"]
