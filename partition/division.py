"""How the rows of a graph are divided between host and device when nothing has been measured yet."""

from __future__ import annotations

import numpy as np

from ..gpma.edges import Vertices
from .classes import DEVICE, Bytes, Stock, survey
from .placement import HOST
from .policies import Policy

SPARE_MIN = 0.15
"""The share of the device's memory that is to stay free."""
SPARE = 0.2
"""What is free again after rows have left because of that."""


def divide(
    out_degrees: Vertices, in_degrees: Vertices, bytes_per_edge: float, device_bytes: int, policy: Policy
) -> Bytes:
    """The owner of each vertex (uint8[n]): the device's are all while they fit with ``SPARE_MIN`` to spare.

    Else those that are cheapest by the policy are the host's, so many that ``SPARE`` is left; rows of equal prices
    are taken by hash. Degrees as of ``Stock``; ``bytes_per_edge`` of either array, ``device_bytes`` for all rows.
    """
    owner = np.full(out_degrees.size, DEVICE, np.uint8)
    needed = (int(out_degrees.sum(dtype=np.int64)) + int(in_degrees.sum(dtype=np.int64))) * bytes_per_edge
    if needed > (1 - SPARE_MIN) * device_bytes:
        leaving = (needed - (1 - SPARE) * device_bytes) / bytes_per_edge
        found = survey(Stock(owner, out_degrees, in_degrees))
        owner[found.listed(DEVICE, policy(found.classes()), leaving).vertices] = HOST
    return owner
