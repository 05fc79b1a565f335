"""Path programs: the best value over all paths from a source, and a parent on the way.

The family promises: after every epoch values are those of a fresh start, bit for bit; the parent of a vertex
offers exactly its value, and parents lead to a source. A value and its parent share a word, and change together.

A member subclasses ``PathProgram``, says which type its values have and what a source's is, and gives two plain
functions by ``functors``: what an edge offers its head, and which of two values is better. An offer is never
better than what it is made from, and a better value never makes a worse one (``form.py`` checks both on a sample).
The loops are the family's own, and are compiled around the two functions.

Read ``form.py`` and ``sssp.py`` first, then ``program.py``, ``mend.py`` and ``loss.py``.
"""

from .form import NO_OFFER, Functors
from .program import SOURCE, PathProgram

__all__ = ["NO_OFFER", "SOURCE", "Functors", "PathProgram"]
