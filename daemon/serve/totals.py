"""What query servers have counted since the daemon's start, over all of them: one that begins counts from nothing.

They report once a second. Whoever asks waits for nobody: what there is is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..client.wire import LATENCY_BUCKETS_SECONDS, MethodLatency
from .admission import REASONS

_NOTHING = MethodLatency((0,) * (len(LATENCY_BUCKETS_SECONDS) + 1), 0.0, {})


@dataclass(frozen=True, slots=True)
class Counted:
    """``latency``: requests by method. ``refused``: connections by reason. ``told``: what subscribers were told,
    as ``Subscriptions.totals``. ``over_http``: how many of the requests came that way."""

    latency: Mapping[str, MethodLatency] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    told: Mapping[str, int] = field(default_factory=dict)
    over_http: int = 0

    @classmethod
    def reported(cls, report: Mapping[str, Any]) -> Counted:
        """What a server says of itself (``Serving.report``)."""
        latency = {
            name: MethodLatency(tuple(counts), total, dict(errors))
            for name, (counts, total, errors) in report["latency"].items()
        }
        return cls(latency, report["refused"], report["changes"], report["http_requests"])

    def __add__(self, other: Counted) -> Counted:
        methods = {*self.latency, *other.latency}
        return Counted(
            {name: _sum(self.latency.get(name, _NOTHING), other.latency.get(name, _NOTHING)) for name in methods},
            _added(self.refused, other.refused),
            _added(self.told, other.told),
            self.over_http + other.over_http,
        )

    def by_door(self) -> dict[str, int]:
        """Requests by door (``socket``, ``http``)."""
        total = sum(sum(one.bucket_counts) for one in self.latency.values())
        return {"socket": total - self.over_http, "http": self.over_http}


class Totals:
    """Any thread may ask; one at a time takes reports."""

    def __init__(self) -> None:
        self._parts = Counted(), Counted()  # of those that ended, and the present one's last report

    def take(self, report: Mapping[str, Any]) -> None:
        """The present server's."""
        self._parts = self._parts[0], Counted.reported(report)

    def end(self) -> None:
        """The present server has ended."""
        self._parts = self.sum(), Counted()

    def sum(self) -> Counted:
        ended, present = self._parts
        return ended + present


def _sum(one: MethodLatency, other: MethodLatency) -> MethodLatency:
    return MethodLatency(
        tuple(a + b for a, b in zip(one.bucket_counts, other.bucket_counts, strict=True)),
        one.sum_seconds + other.sum_seconds,
        _added(one.errors, other.errors),
    )


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
