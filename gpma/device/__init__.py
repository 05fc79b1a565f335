"""The packed memory array on a CUDA device: the host's twin, with leaves of 64 slots, and how kernels read it.

``DevicePackedArray`` takes batches and loads, and answers with columns on the device: rows, edges, and a
``DeviceReport`` of each batch. Kernels of others read it in place: they get a ``DeviceRows``, by value, and
include ``rows.cuh``. Nothing here imports CuPy before an array is made, so that any machine can import this room;
without CuPy, making one is an ImportError that says how to install it. What host and kernels must agree on stands
in ``constants.py`` and ``structures.py``.
"""

from .array import DevicePackedArray
from .reads import DeviceRows
from .report import DeviceReport

__all__ = ["DevicePackedArray", "DeviceReport", "DeviceRows"]
