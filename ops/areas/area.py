"""What the parts of ``Metrics`` have in common: how a metric is declared."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from ..histograms import Histogram
from ..numbers import Numbers

STAGE_SECONDS_BUCKETS = (
    *(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)


@dataclass(frozen=True, slots=True)
class Declared:
    """What the catalogue says of one metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


class Area:
    """Some of the metrics of one daemon. Every method may be called from any thread."""

    def __init__(self) -> None:
        """Declares nothing yet."""
        self.registry = CollectorRegistry()
        self.declared: list[Declared] = []
        self._lock = threading.Lock()

    def _declare(self, name: str, kind: str, labels: tuple[str, ...], help: str) -> None:
        self.declared.append(Declared(name, kind, labels, help))

    def _counter(self, name: str, help: str, label: str = "", values: tuple[str, ...] = ()) -> Numbers:
        labels = (label,) if label else ()
        self._declare(f"graphtide_{name}_total", "counter", labels, help)
        counter = Numbers("counter", f"graphtide_{name}", help, labels, registry=self.registry)
        for value in values:  # a rate needs the zero before the first one
            counter.labels(value)
        return counter

    def _gauge(self, name: str, help: str, *labels: str) -> Numbers:
        self._declare(f"graphtide_{name}", "gauge", labels, help)
        return Numbers("gauge", f"graphtide_{name}", help, labels, registry=self.registry)

    def _histogram(
        self, name: str, help: str, buckets: Sequence[float], label: str = "", values: tuple[str, ...] = ()
    ) -> Histogram:
        labels = (label,) if label else ()
        self._declare(f"graphtide_{name}", "histogram", labels, help)
        histogram = Histogram(f"graphtide_{name}", help, buckets, label)
        self.registry.register(histogram)
        for value in values:
            histogram.labels(value)
        return histogram


def forget(metric: Numbers | Histogram, *labels: str) -> None:
    with suppress(KeyError):  # it never ran
        metric.remove(*labels)
