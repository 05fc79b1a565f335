"""What is measured of an epoch, and means of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .policies import Counts, Floats

BUDGET = 0.05
"""Of an epoch's time that moves may take."""
WINDOW = 64
"""Epochs that are looked at together."""
SHARE = 1 / 16
"""For so much of a mean a new epoch counts."""
_RATE_SHARE = 1 / 4
_SLOPE = 0.4


class Measures(NamedTuple):
    """One epoch.

    ``seconds``: how long it took. ``device_bytes``: what rows hold of the device's memory; ``device_limit``:
    what they could hold now, which others change; ``spare_bytes`` of it others use until somebody needs it.
    ``host_edges``, ``device_edges``: stored by side, in all arrays. ``*_apply_s``, ``*_programs_s``: how long each
    processor worked on the batch and on programs. ``updates``: of the batch. ``remote_s``: how long the device
    read rows of the host; ``reads`` int64[64]: edges that programs read on the device's behalf, wherever they lay,
    by class; None: nobody counted. ``other_reads``: those of which only that much is known, such as of passes over
    everything. ``moved_edges``, ``moved_s``: what moved since the epoch before, and how long that took.
    """

    seconds: float
    device_bytes: int
    device_limit: int
    host_edges: int
    device_edges: int
    host_apply_s: float = 0.0
    device_apply_s: float = 0.0
    host_programs_s: float = 0.0
    device_programs_s: float = 0.0
    updates: int = 0
    remote_s: float = 0.0
    reads: Counts | None = None
    other_reads: int = 0
    moved_edges: int = 0
    moved_s: float = 0.0
    spare_bytes: int = 0

    @property
    def headroom(self) -> float:
        """The share of the device's memory that is free; below 0 where others took what rows hold."""
        return 1 - self.device_bytes / max(1, self.device_limit)

    @property
    def unused(self) -> float:
        """As ``headroom``, without what is used until somebody needs it."""
        return self.headroom - self.spare_bytes / max(1, self.device_limit)

    @property
    def programs_s(self) -> float:
        """How long programs took, the processors working side by side."""
        return max(self.host_programs_s, self.device_programs_s)


@dataclass(slots=True)
class Mean:
    """An exponentially weighted mean; 0 before anything was seen."""

    value: float = 0.0
    _is_new: bool = True

    def see(self, value: float) -> None:
        self.value += (value - self.value) * (1.0 if self._is_new else SHARE)
        self._is_new = False


@dataclass(slots=True)
class Reads:
    """Edges that an epoch reads, by class: exponentially weighted means."""

    _mean: Floats = field(default_factory=lambda: np.zeros(1))
    _variance: Floats = field(default_factory=lambda: np.zeros(1))
    _share: float = 1.0
    _is_new: bool = True

    def see(self, reads: Counts | Floats) -> None:
        if self._is_new:
            self._mean, self._variance, self._is_new = reads.astype(np.float64), np.zeros(reads.size), False
            return
        self._share = max(SHARE, self._share / (1 + self._share))  # plain means at first
        # That all classes are read more, or less, says nothing of which are read most.
        unlike = reads - self._mean * (reads.sum() / max(1.0, self._mean.sum()))
        self._variance = (1 - self._share) * (self._variance + self._share * unlike**2)
        self._mean = self._mean + self._share * (reads - self._mean)

    @property
    def mean(self) -> Floats | None:
        """float64[64]; None: nothing was read, or nobody counted."""
        return self._mean if self._mean.any() else None

    def bounds(self) -> tuple[Floats | None, Floats | None]:
        """The least and the most that the means may be beside each other, by two standard deviations.

        As if epochs were independent.
        """
        if self.mean is None:
            return None, None
        doubt = 2 * np.sqrt(self._variance * self._share / (2 - self._share))
        return np.maximum(0, self._mean - doubt), self._mean + doubt


@dataclass(slots=True)
class MoveCost:
    """What moves take: ``each_s`` for an edge, and ``fixed_s`` however few they are. Seconds.

    A straight line through the last few moves, by least squares. Where these were about equally large they say
    nothing of its slope: it is drawn to ``_SLOPE`` of what an edge took in all, as if there were moves of an
    eighth more or less than their mean. So somewhat larger moves are tried, which tell.
    """

    each_s: float
    edges: float
    """Of a move, on average; in the beginning what is supposed, like ``each_s``."""
    fixed_s: float = 0.0
    _seconds: float = field(init=False)
    _squares: float = field(init=False)
    _products: float = field(init=False)

    def __post_init__(self) -> None:
        self._seconds = self.each_s * self.edges
        self._squares, self._products = self.edges**2, self.edges * self._seconds

    def see(self, seconds: float, edges: int) -> None:
        if edges <= 0:
            return
        self.edges += _RATE_SHARE * (edges - self.edges)
        self._seconds += _RATE_SHARE * (seconds - self._seconds)
        self._squares += _RATE_SHARE * (edges**2 - self._squares)
        self._products += _RATE_SHARE * (edges * seconds - self._products)
        variance = max(0.0, self._squares - self.edges**2)
        covariance = self._products - self.edges * self._seconds
        doubt = (self.edges / 8) ** 2
        self.each_s = (covariance + doubt * _SLOPE * self.mean_s) / (variance + doubt)
        self.fixed_s = self._seconds - self.each_s * self.edges
        if self.each_s <= 0 or self.fixed_s < 0:
            self.each_s, self.fixed_s = self.mean_s, 0.0

    @property
    def mean_s(self) -> float:
        """For an edge, in moves as they were."""
        return self._seconds / self.edges

    @property
    def portion(self) -> float:
        """As many edges as make the fixed cost half of what they take; at most four times as many as moved
        lately."""
        return min(self.fixed_s / self.each_s if self.each_s > 0 else 0.0, 4 * self.edges)


@dataclass(slots=True)
class Window:
    """Sums over some epochs, one after the other."""

    size: int
    epochs: int = 0
    updates: int = 0
    seconds: float = 0.0
    programs_s: float = 0.0
    apply_s: list[float] = field(default_factory=lambda: [0.0, 0.0])

    @property
    def is_full(self) -> bool:
        return self.epochs >= self.size

    def see(self, measures: Measures) -> None:
        """An epoch more; the first after a full window begins the next one."""
        if self.is_full:
            self.restart()
        self.epochs += 1
        self.updates += measures.updates
        self.seconds += measures.seconds
        self.programs_s += measures.programs_s
        self.apply_s[0] += measures.host_apply_s
        self.apply_s[1] += measures.device_apply_s

    def restart(self) -> None:
        self.epochs = self.updates = 0
        self.seconds = self.programs_s = 0.0
        self.apply_s = [0.0, 0.0]
