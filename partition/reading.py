"""What it is for programs on the device to read rows, those of the host over the bus."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..gpma.edges import Vertices
from .classes import CLASSES, RowAges, Stock
from .placement import HOST
from .policies import KEY_BYTES, Counts, remote_bytes

# Of more vertices a sample of about as many tells.
_SAMPLE = 4096


class Reading(NamedTuple):
    """Edges that were read, by class (int64[64]), and the bytes that came over the bus for those of the host."""

    by_class: Counts
    remote_bytes: int


def reading(vertices: Vertices, stock: Stock, ages: RowAges) -> Reading:
    """That of both rows of these vertices, where the stock has them; of many, what a sample says."""
    step = 1 + vertices.size // _SAMPLE
    sample = vertices[::step]
    sample = sample[sample < stock.out_degrees.size]
    out = stock.out_degrees[sample].astype(np.int64)
    in_ = stock.in_degrees[sample].astype(np.int64) if stock.in_degrees.size else np.zeros_like(out)
    by_class = np.bincount(ages.classes(sample, out + in_), out + in_, CLASSES).astype(np.int64)
    is_remote = stock.owner[sample] == HOST
    lengths = np.concatenate([out[is_remote], in_[is_remote]])
    lengths = lengths[lengths > 0].astype(np.float64)
    remote = float((KEY_BYTES * lengths * remote_bytes(lengths)).sum())
    return Reading(step * by_class, int(step * remote))
