"""What it would save to exchange rows of the host for rows of the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .classes import DEVICE
from .placement import HOST
from .policies import KEY_BYTES, Classes, Counts, Floats, cost


class Exchange(NamedTuple):
    """So many ``edges`` for as many, and the seconds that it saves in each epoch."""

    edges: int
    gain_s: float


def saved_seconds(classes: Classes, host_edges: Counts, remote_s: float) -> Floats:
    """Seconds of an epoch (float64[64]) that an edge of each class saves on the device.

    ``remote_s``: what reading the host's rows, of which there are ``host_edges`` int64[64], takes altogether.
    """
    per_edge = KEY_BYTES * cost(classes)
    thought = float(host_edges @ per_edge)
    return per_edge * (remote_s / thought if thought > 0 else 0.0)


def best_exchange(movable: Counts, price: Floats, saved_s: Floats, least_s: float) -> Exchange:
    """The dearest of the host for the cheapest of the device, as long as each edge saves more than ``least_s``.

    ``movable``: int64[2, 64], by side and class.
    """
    coming, leaving = _in_order(movable[HOST], -price), _in_order(movable[DEVICE], price)
    edges, gain_s = 0, 0.0
    there = here = 0
    to = of = -1
    while True:
        if there == 0:
            to, there = next(coming, (-1, 0))
        if here == 0:
            of, here = next(leaving, (-1, 0))
        if to < 0 or of < 0 or price[to] <= price[of] or saved_s[to] - saved_s[of] <= least_s:
            return Exchange(edges, gain_s)
        some = min(there, here)
        edges += some
        gain_s += some * float(saved_s[to] - saved_s[of])
        there -= some
        here -= some


def _in_order(edges: Counts, price: Floats) -> Iterator[tuple[int, int]]:
    """Classes that have edges, and how many, by price."""
    return ((int(c), int(edges[c])) for c in np.argsort(price, kind="stable") if edges[c] > 0)
