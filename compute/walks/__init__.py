"""Random-walk programs: solutions of a linear system over the out-edges, within a certified error.

The family promises: at every epoch the published ``error_bound`` holds, in the norm of its member, and is at most
the tolerance (but where float64 does not reach it, and then the bound says so). Values are no fresh start's, bit
for bit: they depend on the history within that bound.

A member subclasses ``RandomWalk``. It keeps an estimate and its residual, and has a right-hand side, a stopping
rule and a proof of its own, at the head of its file. It edits the residual with each change, solves by pushes or
by dense passes, whichever costs less, keeps account of rounding, and recomputes residuals slice by slice when it
is audited.

Read ``walk.py`` first, then ``pagerank.py`` with ``certificate.py``, ``systems.py`` and ``solving.py``, or
``ppr.py``; ``edits.py``, ``sweeps.py``, ``weighing.py``, ``ppr_pushes.py`` and ``passes.py`` are kernels, and so
are ``shared_edits.py`` and ``shared_sweeps.py`` for many threads, with what these have in common in ``ranges.py``.
"""

from .pagerank import PageRank
from .ppr import PersonalisedPageRank
from .walk import RandomWalk

__all__ = ["PageRank", "PersonalisedPageRank", "RandomWalk"]
