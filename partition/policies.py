"""What it costs that a row is not on the device, by policy: the cheapest leave first.

Rows are grouped into classes by the number of their edges and by the age of their last change (``classes.py``). A
policy gives each class the price of its absence from the device, per byte. A price is compared with other prices
of the same policy and with nothing else; rows of equal prices are taken by a hash of their vertices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..gpma.row_reads import LINE_BYTES

KEY_BYTES = 8
"""Of an edge in a row, as reads over the bus count it."""
_DENSITY = 0.7

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Classes(NamedTuple):
    """Rows by class, k of them.

    ``degree`` float64[k]: the mean number of edges of a row (1 where there is none); ``rows`` and ``edges``
    int64[k]: how many there are, on all sides; ``heat`` float64[k]: how often an edge is read in an epoch;
    ``age`` float64[k]: epochs since the last change, at least.
    """

    degree: Floats
    rows: Counts
    edges: Counts
    heat: Floats
    age: Floats


Policy = Callable[[Classes], Floats]


def remote_bytes(degree: Floats) -> Floats:
    """Bytes that come over the bus for a row of so many edges, which begins anywhere in a line, per byte of it."""
    stored = KEY_BYTES * degree
    lines = stored / _DENSITY / LINE_BYTES + 1
    return LINE_BYTES * lines / stored


def by_hash(classes: Classes) -> Floats:
    """All rows are worth the same: the baseline."""
    return np.ones(classes.degree.size)


def hubs_on_device(classes: Classes) -> Floats:
    """Long rows stay."""
    return classes.degree


def hubs_on_host(classes: Classes) -> Floats:
    """Short rows stay."""
    return 1 / classes.degree


def recent(classes: Classes) -> Floats:
    """Rows that changed lately stay."""
    return 1 / (1 + classes.age)


def cost(classes: Classes) -> Floats:
    """Bytes over the bus in an epoch, per byte stored: where all are read alike, short rows stay."""
    return classes.heat * remote_bytes(classes.degree)


DEFAULT = "cost"
POLICIES: dict[str, Policy] = {
    "hash": by_hash,
    "hubs-on-device": hubs_on_device,
    "hubs-on-host": hubs_on_host,
    "recent": recent,
    "cost": cost,
}
