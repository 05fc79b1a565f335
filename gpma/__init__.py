"""The packed memory array and the vertex index.

``host/`` and ``device/`` are one array on two processors, ``index/`` knows its vertices by their external ids. The
three know nothing of each other; what they share lies here: batches and reports (``edges.py``), geometry
(``layout.py``), and how kernels walk rows (``rows.py``, by ``splice.py``).
"""

from . import runtime


def _share_cache() -> None:
    from . import kernel_cache  # noqa: F401 - which installs itself


runtime.configure()
runtime.when_numba_is_loaded(_share_cache)  # not before: who runs no kernel need not wait half a second for it
