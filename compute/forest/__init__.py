"""Connected components: a spanning forest that is mended where an edge of it goes.

The family promises: after every epoch each vertex has the smallest external id of its weakly connected component,
as after a fresh start, and parents are edges of the graph, form a forest and span it. One deleted edge costs what
the smaller of two sides costs, or what is near it, and never a walk through a giant component.

There is one member, ``Components``; another program that needs connectivity uses its ``forest.py``: trees with a
handle each, linked by relabelling the smaller and cut where an edge is gone. Vertices are compared by external ids
only through ``ExternalOrder``, which the daemon's vertex index is.

Read ``components.py`` first, then ``forest.py`` and ``cut.py``; ``span.py`` makes the forest of a start,
``taken.py`` takes over one that was computed elsewhere.
"""

from .components import Components

__all__ = ["Components"]
