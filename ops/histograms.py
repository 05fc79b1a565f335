"""Histograms that are cheap to read: they are most of what a scrape shows.

Each is a collector of prometheus-client's registry, whose families carry counts; the library's samples, one object
for every bucket, are made only where somebody asks for them (``ops.text_format`` does not).
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

Labels = tuple[tuple[str, str], ...]


class Counts(NamedTuple):
    """One histogram of a family: ``buckets`` has one entry more than there are bounds, and is not added up."""

    labels: Labels
    buckets: Sequence[int]
    sum: float


class HistogramFamily(Metric):
    """As the library's, with counts in the place of samples."""

    def __init__(self, name: str, help: str, bounds: tuple[float, ...], rows: Sequence[Counts] = ()) -> None:
        super().__init__(name, help, "histogram")
        self.bounds = bounds
        self.rows = rows

    @property
    def samples(self) -> list[Sample]:
        """What the library writes: buckets, added up, the number of observations and their sum."""
        found = []
        for row in self.rows:
            labels, most = dict(row.labels), 0
            for le, most in zip(bound_names(self.bounds), itertools.accumulate(row.buckets), strict=True):
                found.append(Sample(f"{self.name}_bucket", {**labels, "le": le}, float(most)))
            found.append(Sample(f"{self.name}_count", labels, float(most)))
            found.append(Sample(f"{self.name}_sum", labels, row.sum))
        return found

    @samples.setter
    def samples(self, none: list[Sample]) -> None:
        """The library begins with an empty list."""


def bound_names(bounds: Sequence[float]) -> list[str]:
    """Of all buckets, that of the rest included."""
    return [*map(go_number, bounds), "+Inf"]


def go_number(value: float) -> str:
    """As Prometheus writes it."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


class Observed:
    """Observations by bucket, and their sum. Any thread may add some."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Add one; it belongs to the first bucket whose bound is not below it."""
        place = bisect.bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def observe_many(self, values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> None:
        """Add ``counts[i]`` observations of ``values[i]`` (float64[n], int64[n])."""
        places = np.searchsorted(np.asarray(self._bounds), values, side="left")
        added = np.bincount(places, weights=counts, minlength=len(self._counts)).astype(np.int64).tolist()
        total = float(np.dot(values, counts))
        with self._lock:
            self._counts = [count + more for count, more in zip(self._counts, added, strict=True)]
            self._sum += total

    def counts(self, labels: Labels = ()) -> Counts:
        """As they are now."""
        with self._lock:
            return Counts(labels, tuple(self._counts), self._sum)


class Histogram(Collector):
    """One, or with a ``label`` one for each of its values that was named."""

    def __init__(self, name: str, help: str, bounds: Sequence[float], label: str = "") -> None:
        self._name = name
        self._help = help
        self._bounds = tuple(map(float, bounds))
        self._label = label
        self._children: dict[str, Observed] = {} if label else {"": Observed(self._bounds)}

    def labels(self, value: str) -> Observed:
        """That of this value of the label."""
        child = self._children.get(value)
        return child or self._children.setdefault(value, Observed(self._bounds))

    def counts(self) -> dict[str, Counts]:
        """Of each value of the label as they are now; without a label of "" alone."""
        return {value: child.counts() for value, child in self._children.copy().items()}

    def remove(self, value: str) -> None:
        """Show it no more.

        Raises:
            KeyError: nobody has named it.
        """
        del self._children[value]

    def observe(self, value: float) -> None:
        """Of one without a label: add one."""
        self._children[""].observe(value)

    def observe_many(self, values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> None:
        """Of one without a label: as ``Observed`` does."""
        self._children[""].observe_many(values, counts)

    def collect(self) -> Iterator[Metric]:
        rows = [
            child.counts(((self._label, value),) if self._label else ())
            for value, child in self._children.copy().items()
        ]
        yield HistogramFamily(self._name, self._help, self._bounds, rows)

    def describe(self) -> Iterator[Metric]:
        yield HistogramFamily(self._name, self._help, self._bounds)
