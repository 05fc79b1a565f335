"""Counters and gauges that are cheap to change and to read.

Each is a collector of prometheus-client's registry and its own family; the library's samples, one object for every
number, are made only where somebody asks for them (``ops.text_format`` does not).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from .histograms import Labels


class Reading(NamedTuple):
    """One number of a family, as it was read."""

    labels: Labels
    value: float


class Number:
    """One number. Any thread may change it."""

    __slots__ = ("_ask", "_lock", "_told", "_value")

    def __init__(self) -> None:
        self._value = self._told = 0.0
        self._ask: Callable[[], float] | None = None
        self._lock = threading.Lock()

    def inc(self, more: float = 1.0) -> None:
        """It is so much more than before."""
        with self._lock:
            self._value += more

    def count_up(self, total: float) -> None:
        """It follows a count that others keep, ``total`` now; one that is smaller than before has begun anew."""
        with self._lock:
            self._value += max(total - self._told, 0)
            self._told = total

    def set(self, value: float) -> None:
        """It is this now."""
        number = float(value)
        with self._lock:  # or whoever is adding just now would put back what it was
            self._value = number

    def set_to_current_time(self) -> None:
        """It is the time now, in seconds since 1970."""
        self.set(time.time())

    def set_function(self, ask: Callable[[], float]) -> None:
        """Ask this whenever it is read."""
        self._ask = ask

    def read(self) -> float:
        """What it is now."""
        return self._value if self._ask is None else float(self._ask())


class NumberFamily(Metric):
    """As the library's, whose numbers are read when somebody asks for them."""

    def __init__(self, kind: str, name: str, help: str, read: Callable[[], Sequence[Reading]]) -> None:
        """``kind``: ``counter`` or ``gauge``. A counter's ``name`` is without its ``_total``."""
        super().__init__(name, help, kind)
        self._read = read

    @property
    def shown_name(self) -> str:
        """That of the series."""
        return f"{self.name}_total" if self.type == "counter" else self.name

    @property
    def rows(self) -> Sequence[Reading]:
        """All as they are now."""
        return self._read()

    @property
    def samples(self) -> list[Sample]:
        """What the library writes."""
        return [Sample(self.shown_name, dict(labels), value) for labels, value in self.rows]

    @samples.setter
    def samples(self, none: list[Sample]) -> None:
        """The library begins with an empty list."""


class Numbers(Collector):
    """Numbers of one name: one, or with ``labels`` one for each of their values that were named."""

    def __init__(
        self, kind: str, name: str, help: str, labels: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        """``kind``, ``name``: as those of ``NumberFamily``."""
        self._labels = tuple(labels)
        self._children: dict[tuple[str, ...], tuple[Labels, Number]] = {}
        if not labels:
            self.labels()
        self._family = NumberFamily(kind, name, help, self._rows)
        registry.register(self)

    def labels(self, *values: str) -> Number:
        """That of these values, in the order of the labels."""
        child = self._children.get(values)
        if child is None:
            named = tuple(zip(self._labels, values, strict=True))
            child = self._children.setdefault(values, (named, Number()))
        return child[1]

    def remove(self, *values: str) -> None:
        """Show it no more.

        Raises:
            KeyError: nobody has named it.
        """
        del self._children[values]

    def inc(self, more: float = 1.0) -> None:
        """Of one without labels: as ``Number`` does."""
        self.labels().inc(more)

    def count_up(self, total: float) -> None:
        """Of one without labels: as ``Number`` does."""
        self.labels().count_up(total)

    def set(self, value: float) -> None:
        """Of one without labels: as ``Number`` does."""
        self.labels().set(value)

    def set_to_current_time(self) -> None:
        """Of one without labels: as ``Number`` does."""
        self.labels().set_to_current_time()

    def set_function(self, ask: Callable[[], float]) -> None:
        """Of one without labels: as ``Number`` does."""
        self.labels().set_function(ask)

    def _rows(self) -> list[Reading]:
        return [Reading(labels, number.read()) for labels, number in self._children.copy().values()]

    def collect(self) -> Iterator[Metric]:
        yield self._family

    def describe(self) -> Iterator[Metric]:
        yield self._family
