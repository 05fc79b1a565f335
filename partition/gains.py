"""What it would save to exchange rows of the host for rows of the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .classes import DEVICE
from .placement import HOST
from .policies import KEY_BYTES, Classes, Counts, Floats, cost


class Worth(NamedTuple):
    """Of rows by class: the ``price`` that a policy gives them, and the seconds of an epoch that one of their
    edges saves when it is on the device, ``saved_s``; both float64[64]."""

    price: Floats
    saved_s: Floats


class Exchange(NamedTuple):
    """So many ``edges`` for as many, and the seconds that it saves in each epoch, at least."""

    edges: int
    gain_s: float


def bus_seconds(classes: Classes, host_edges: Counts, remote_s: float) -> float:
    """Seconds for a byte over the bus where what is read of the host's rows takes ``remote_s`` in an epoch.

    ``host_edges``: int64[64], by class. Rows that a cache keeps make bytes cheaper.
    """
    thought = KEY_BYTES * float(host_edges @ cost(classes))
    return remote_s / thought if thought > 0 else 0.0


def best_exchange(movable: Counts, host: Worth, device: Worth, least_s: float) -> Exchange:
    """The dearest of the host for the cheapest of the device, as long as each edge saves more than ``least_s``.

    ``movable``: int64[2, 64], edges by side and class.
    """
    coming, leaving = _in_order(movable[HOST], -host.price), _in_order(movable[DEVICE], device.price)
    edges, gain_s = 0, 0.0
    there = here = 0
    to = of = -1
    while True:
        if there == 0:
            to, there = next(coming, (-1, 0))
        if here == 0:
            of, here = next(leaving, (-1, 0))
        if to < 0 or of < 0 or host.price[to] <= device.price[of]:
            return Exchange(edges, gain_s)
        each_s = float(host.saved_s[to] - device.saved_s[of])
        if each_s <= least_s:
            return Exchange(edges, gain_s)
        some = min(there, here)
        edges += some
        gain_s += some * each_s
        there -= some
        here -= some


def _in_order(edges: Counts, price: Floats) -> Iterator[tuple[int, int]]:
    """Classes that have edges, and how many, by price."""
    return ((int(c), int(edges[c])) for c in np.argsort(price, kind="stable") if edges[c] > 0)
