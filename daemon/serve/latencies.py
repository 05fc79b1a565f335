"""Requests, counted by the server that answers them."""

from __future__ import annotations

import bisect
from collections.abc import Container
from typing import Any

from ..client.wire import LATENCY_BUCKETS_SECONDS


class Latencies:
    """Counts requests by method, by how long they took and by error code."""

    def __init__(self, methods: Container[str]) -> None:
        self._known = methods
        self._methods: dict[str, tuple[list[int], list[float], dict[str, int]]] = {}

    def record(self, method: str, seconds: float, error: str | None) -> None:
        """One request was answered; methods that do not exist share one entry."""
        name = method if method in self._known else "other"
        entry = self._methods.get(name)
        if entry is None:
            entry = self._methods[name] = ([0] * (len(LATENCY_BUCKETS_SECONDS) + 1), [0.0], {})
        counts, total, errors = entry
        counts[bisect.bisect_left(LATENCY_BUCKETS_SECONDS, seconds)] += 1
        total[0] += seconds
        if error is not None:
            errors[error] = errors.get(error, 0) + 1

    def snapshot(self) -> dict[str, Any]:
        """Everything since the start: method -> [counts, sum of seconds, errors]."""
        return {name: [counts, total[0], errors] for name, (counts, total, errors) in self._methods.items()}
