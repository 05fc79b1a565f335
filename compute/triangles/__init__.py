"""Triangles: how many hold each vertex, and how closely its neighbours are linked.

The family promises: after every epoch the whole numbers that it keeps are those of a fresh start, on the
undirected simple view of the graph (``links.py``), in whatever order edges came and went. A changed link costs
what finding the common neighbours of its two ends costs, and no other row is read.

``Triangles`` counts them; ``LocalClustering`` weighs each with the arcs of its opposite side, and divides when it
is read. Both are a ``Tally``.

Read ``tally.py`` first, then ``change.py`` and ``common.py``; ``start.py`` counts from scratch.
"""

from .lcc import LocalClustering
from .triangles import Triangles

__all__ = ["LocalClustering", "Triangles"]
