"""Metrics as text, in the format of Prometheus or in OpenMetrics, at a fraction of the library's time.

The library makes an object of every sample and escapes and joins its labels, which is most of what a scrape
costs. Here the text before each value is kept from one scrape to the next; what is gone from the registry is
forgotten. The bytes are those of the library, for what graphtide exposes: names of the old character set, no
timestamps, exemplars or native histograms.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Hashable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from .histograms import HistogramFamily, Labels, bound_names, go_number

EXACT = 1e6
"""Numbers below are written as Python writes them."""


class TextFormat:
    """The text of a registry. Any thread may ask."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        # What comes before values: of samples by name and labels, of histograms by family and labels; and before
        # these, of metrics by name and format.
        self._heads: dict[Hashable, list[str]] = {}
        self._lock = threading.Lock()

    def text(self, *, open_metrics: bool) -> bytes:
        """All metrics as they are now."""
        lines: list[str] = []
        with self._lock:
            before, self._heads = self._heads, {}
            for metric in self._registry.collect():
                key = metric.name, open_metrics
                described = self._heads[key] = before.get(key) or [_described(metric, open_metrics=open_metrics)]
                lines += described
                if isinstance(metric, HistogramFamily):
                    self._add_histograms(lines, metric, before)
                else:
                    self._add_samples(lines, metric, before)
        if open_metrics:
            lines.append("# EOF\n")
        return "".join(lines).encode()

    def _add_samples(self, lines: list[str], metric: Metric, before: dict[Hashable, list[str]]) -> None:
        for sample in metric.samples:
            key = sample.name, *sample.labels.items()
            heads = self._heads[key] = before.get(key) or [_head(sample.name, sample.labels.items())]
            lines.append(f"{heads[0]}{_number(sample.value)}\n")

    def _add_histograms(
        self, lines: list[str], family: HistogramFamily, before: dict[Hashable, list[str]]
    ) -> None:
        for row in family.rows:
            key = family.name, family.bounds, row.labels
            heads = self._heads[key] = before.get(key) or _histogram_heads(family, row.labels)
            most = list(itertools.accumulate(row.buckets))
            values = zip(heads, (*most, most[-1], row.sum), strict=True)
            lines += [f"{head}{_number(value)}\n" for head, value in values]


def _described(metric: Metric, *, open_metrics: bool) -> str:
    name, help = metric.name, metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
    if open_metrics:
        help = help.replace('"', r"\"")
    elif metric.type == "counter":
        name += "_total"
    return f"# HELP {name} {help}\n# TYPE {name} {metric.type}\n"


def _histogram_heads(family: HistogramFamily, labels: Labels) -> list[str]:
    """In the order of ``HistogramFamily.samples``."""
    name = family.name
    buckets = [_head(f"{name}_bucket", [*labels, ("le", bound)]) for bound in bound_names(family.bounds)]
    return [*buckets, _head(f"{name}_count", labels), _head(f"{name}_sum", labels)]


def _head(name: str, labels: Iterable[tuple[str, str]]) -> str:
    shown = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels))
    return f"{name}{{{shown}}} " if shown else f"{name} "


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return repr(float(value)) if 0 <= value < EXACT else go_number(value)
