"""Histograms of values, in pieces, so that the interpreter can turn to other work in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

PIECE = 1 << 16
EXACT_MAX = float(1 << 53)
"""Whole numbers from here on are not all doubles: two edges may be the same."""

Scale = Literal["linear", "log"]


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts[i]`` values lie from ``edges[i]`` on below ``edges[i + 1]``, or at the last edge.

    int64[n] and float64[n + 1], nothing where there are no values. ``outside``: how many values are in no bin:
    infinite ones and, where bins are logarithmic, those that are not above 0.
    """

    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    outside: int


def histogram(values: npt.NDArray[Any], bins: int, scale: Scale) -> Histogram:
    """So many bins of equal width from the smallest value to the largest, by their logarithms for ``log``.

    Whole numbers that span no more of them than there may be ``bins`` have one bin each (``linear``).
    """
    lowest, highest, outside = np.inf, -np.inf, 0
    for piece in _pieces(values):
        inside = _inside(piece, scale)
        outside += piece.size - inside.size
        if inside.size:
            lowest, highest = min(lowest, float(inside.min())), max(highest, float(inside.max()))
    if outside == values.size:
        return Histogram(np.empty(0), np.empty(0, np.int64), outside)
    edges = _edges(lowest, highest, bins, scale, whole=values.dtype.kind in "iu")
    counts = np.zeros(edges.size - 1, np.int64)
    for piece in _pieces(values):
        counts += np.histogram(_inside(piece, scale).astype(np.float64), edges)[0]
    return Histogram(edges, counts, outside)


def _edges(lowest: float, highest: float, bins: int, scale: Scale, *, whole: bool) -> npt.NDArray[np.float64]:
    if scale == "linear" and whole and highest - lowest < bins and highest < EXACT_MAX:
        return np.arange(lowest, highest + 2)
    if lowest == highest:
        return np.array([lowest, np.nextafter(highest, np.inf)])
    if scale == "linear" and np.isinf(highest - lowest):
        edges = 2 * np.linspace(lowest / 2, highest / 2, bins + 1)  # their span is no double
        edges[0], edges[-1] = lowest, highest
        return edges
    edges = np.geomspace(lowest, highest, bins + 1) if scale == "log" else np.linspace(lowest, highest, bins + 1)
    edges[0], edges[-1] = lowest, highest  # rounding must leave nobody out
    return np.unique(edges)


def _inside(piece: npt.NDArray[Any], scale: Scale) -> npt.NDArray[Any]:
    inside: npt.NDArray[Any] = piece[np.isfinite(piece)]
    return inside[inside > 0] if scale == "log" else inside


def _pieces(values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, values.size, PIECE):
        yield values[start : start + PIECE]
