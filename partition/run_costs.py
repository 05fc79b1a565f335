"""How the time of a program's runs on a device divides: to begin and to read rows there, and to read the host's.

No kernel can tell: warps that wait for the bus run beside others that do not. But runs differ in what they read on
either side, so that prices follow from many of them. The time of a run is divided as the prices of now say; the
price of each part is what runs have spent on it, for what they had of it, all runs counting alike and newer ones
for more. That is expectation maximisation, a step a run: prices come to those that explain the times best. One of
which runs say nothing stays as supposed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# What is supposed: seconds of a run, of an edge read on the device, of a byte over the bus.
BEGIN_S, EDGE_S, BUS_BYTE_S = 1e-4, 2.5e-10, 5e-11
# For so much of all a new run counts; what is supposed, for so many.
_SHARE = 1 / 32
_SUPPOSED = 1e-3


class Seconds(NamedTuple):
    """Of runs: to begin and read on the device, and for the bus."""

    device: float
    bus: float


class Divided(NamedTuple):
    """What a run was thought to take before it was seen, and what it took."""

    predicted: Seconds
    measured: Seconds


class RunCosts:
    """Of one program."""

    def __init__(self) -> None:
        # By part, of the time of a run: what it spends on it, and what it would as supposed; means.
        self._spent = np.full(3, _SUPPOSED)
        self._supposed = np.full(3, _SUPPOSED)

    @property
    def bus_byte_s(self) -> float:
        """Seconds for a byte over the bus."""
        return float(self._spent[2] / self._supposed[2] * BUS_BYTE_S)

    def see(self, seconds: float, device_edges: int, bus_bytes: int) -> Divided:
        """A run that read so many edges on the device, and got so many bytes over the bus."""
        supposed = np.array([BEGIN_S, EDGE_S * device_edges, BUS_BYTE_S * bus_bytes])
        predicted = supposed * self._spent / self._supposed
        spent = predicted / predicted.sum()
        if seconds > 0:
            self._spent += _SHARE * (spent + _SUPPOSED - self._spent)
            self._supposed += _SHARE * (supposed / seconds + _SUPPOSED - self._supposed)
        return Divided(_of(predicted), _of(spent * seconds))


def _of(parts: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Seconds:
    return Seconds(float(parts[0] + parts[1]), float(parts[2]))
