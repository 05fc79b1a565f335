"""The packed memory array and the vertex index.

``host/`` and ``device/`` are one array on two processors, ``index/`` knows its vertices by their external ids. The
three know nothing of each other; what they share lies here: batches and reports (``edges.py``), geometry
(``layout.py``), and how kernels walk rows (``rows.py``, by ``splice.py``).
"""

from . import runtime

runtime.configure()

from . import kernel_cache  # noqa: E402 - it imports Numba, which must be told before

kernel_cache.install()
