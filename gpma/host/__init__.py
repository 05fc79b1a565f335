"""The packed memory array on the host: edges in ascending order, changed by batches, with one thread or many.

A batch is prepared, which may fail and changes nothing, and committed, which cannot fail; what it changed is the
report. One thread writes, and nobody reads meanwhile. Between two commits kernels walk rows in place
(``gpma/rows.py``), ``gather.py`` copies rows, and ``snapshot.py`` all edges, piece by piece. ``arrays.py`` names
the arrays that the kernels share. ``gpma/device`` is the twin; this room knows nothing of it, nor of the index.
"""

from .array import PackedMemoryArray

__all__ = ["PackedMemoryArray"]
