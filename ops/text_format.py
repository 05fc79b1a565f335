"""Metrics as text, in the format of Prometheus or in OpenMetrics, at a fraction of the library's time.

The library makes an object of every sample and escapes and joins its labels, which is most of what a scrape
costs. Here the text of a metric is kept until one of its numbers is another, and what comes before each of them
from one scrape to the next; what is gone from the registry is forgotten. The bytes are those of the library, for
what graphtide exposes: names of the old character set, no timestamps, exemplars or native histograms.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from .histograms import Counts, HistogramFamily, Labels, bound_names, go_number
from .numbers import NumberFamily, Reading

EXACT = 1e6
"""Numbers below are written as Python writes them."""


Rows = Sequence[Counts] | Sequence[Reading] | Sequence[Sample]


@dataclass(slots=True)
class _Kept:
    """What was written of a metric last: its ``rows``, and their text.

    ``described``: what comes before them, by whether it is OpenMetrics. ``heads``: what comes before values, by
    name and labels.
    """

    described: dict[bool, str] = field(default_factory=dict)
    heads: dict[Hashable, list[str]] = field(default_factory=dict)
    rows: Rows = ()
    text: str = ""


class TextFormat:
    """The text of a registry. Any thread may ask."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def text(self, *, open_metrics: bool) -> bytes:
        """All metrics as they are now."""
        texts: list[str] = []
        with self._lock:
            before, self._kept = self._kept, {}
            for metric in self._registry.collect():
                kept = self._kept[metric.name] = before.get(metric.name) or _Kept()
                described = kept.described.get(open_metrics)
                if described is None:
                    described = kept.described[open_metrics] = _described(metric, open_metrics=open_metrics)
                _bring_up_to_date(kept, metric)
                texts += (described, kept.text)
        if open_metrics:
            texts.append("# EOF\n")
        return "".join(texts).encode()


def _bring_up_to_date(kept: _Kept, metric: Metric) -> None:
    """Numbers are written anew where any is another than before."""
    rows = metric.rows if isinstance(metric, HistogramFamily | NumberFamily) else metric.samples
    if rows == kept.rows:
        return
    before, heads = kept.heads, dict[Hashable, list[str]]()
    lines: list[str] = []
    for row in rows:
        key: Hashable
        if isinstance(row, Counts):
            assert isinstance(metric, HistogramFamily)
            key = metric.bounds, row.labels
            texts = before.get(key) or _histogram_heads(metric, row.labels)
            most = list(itertools.accumulate(row.buckets))
            values = zip(texts, (*most, most[-1], row.sum), strict=True)
            lines += [f"{head}{_number(value)}\n" for head, value in values]
        elif isinstance(row, Reading):
            assert isinstance(metric, NumberFamily)
            key = row.labels
            texts = before.get(key) or [_head(metric.shown_name, row.labels)]
            lines.append(f"{texts[0]}{_number(row.value)}\n")
        else:
            key = row.name, *row.labels.items()
            texts = before.get(key) or [_head(row.name, row.labels.items())]
            lines.append(f"{texts[0]}{_number(row.value)}\n")
        heads[key] = texts
    kept.rows, kept.heads, kept.text = rows, heads, "".join(lines)


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
