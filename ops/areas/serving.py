"""The query server: requests, connections, subscriptions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..histograms import Counts, HistogramFamily
from ..numbers import Number, Numbers
from ..process import Process
from .area import Area

log = logging.getLogger(__name__)

REFUSALS = ("token", "tls", "request", "silent", "crowded", "full")
QueryCounts = tuple[Sequence[int], float, Mapping[str, int]]
"""Of one method: requests per latency bucket (not added up; the last is for what is above every bound), the sum
of their seconds, and errors by code."""


class QueryCollector(Collector):
    """Latencies and errors of requests, asked from the query server when Prometheus asks us."""

    latency_name = "graphtide_query_duration_seconds"
    latency_help = "Time from a request's arrival to its answer, by method."
    errors_name = "graphtide_query_errors"
    errors_help = "Requests answered with an error, by method and code."

    def __init__(self) -> None:
        self.read: Callable[[], Mapping[str, QueryCounts]] = dict
        self.bounds: Sequence[float] = ()
        self._seen: Mapping[str, QueryCounts] = {}

    def collect(self) -> Iterator[Metric]:
        try:
            self._seen = self.read()
        except Exception as error:  # a server that restarts must not cost the other metrics
            log.warning("the query server's counts are not to be had: %s", error)
        rows = [Counts((("method", name),), counts, total) for name, (counts, total, _) in self._seen.items()]
        errors = CounterMetricFamily(self.errors_name, self.errors_help, labels=["method", "code"])
        for method, (_, _, by_code) in self._seen.items():
            for code, number in by_code.items():
                errors.add_metric([method, code], number)
        yield HistogramFamily(self.latency_name, self.latency_help, tuple(self.bounds), rows)
        yield errors

    def describe(self) -> Iterator[Metric]:
        yield HistogramFamily(self.latency_name, self.latency_help, tuple(self.bounds))
        yield CounterMetricFamily(self.errors_name, self.errors_help, labels=["method", "code"])


class ServingMetrics(Area):
    """What the query server is asked, and who asks."""

    def _query_metrics(self) -> None:
        self._queries = QueryCollector()
        self.registry.register(self._queries)
        self._declare(self._queries.latency_name, "histogram", ("method",), self._queries.latency_help)
        self._declare(
            f"{self._queries.errors_name}_total", "counter", ("method", "code"), self._queries.errors_help
        )
        help = "Times that the query server ended and was replaced."
        self._server_restarts = self._counter("server_restarts", help)
        self._server_connections = self._gauge("server_connections", "Open connections of clients.")
        self._server_waiting = self._gauge("server_waiting_requests", "Requests that wait for an epoch.")
        help = "Requests answered, refused ones included. socket: MessagePack-RPC; http: the HTTP door."
        self._requests = self._counter("server_requests", help, "door", ("socket", "http"))
        self._server_subscriptions = self._gauge("server_subscriptions", "Subscriptions of clients.")
        help = "Messages to subscribers. changes: of one epoch or of several; snapshot: of all that there is."
        self._told = self._counter("subscription_messages", help, "kind", ("changes", "snapshot"))
        self._merged = self._counter(
            "subscription_merged_epochs",
            "Epochs of which subscribers were told together with a later one, since they read slowly.",
        )

        self._refused = self._counter(
            "connections_refused",
            "Connections that the query server refused. token: a wrong one or none; tls: it failed; request: the "
            "first one was none; silent: none came in time; crowded: it made room for others; full: "
            "connections_max are in.",
            "reason",
            REFUSALS,
        )

    def watch_queries(self, read: Callable[[], Mapping[str, QueryCounts]], bounds: Sequence[float]) -> None:
        """Ask ``read`` for the query server's counts by method whenever metrics are read.

        ``bounds`` are the upper bounds of its latency buckets, in seconds.
        """
        self._queries.read, self._queries.bounds = read, bounds

    def server(self, *, restarts: int, connections: int, waiting: int) -> None:
        """The query server: how often it was replaced since the start, and how many clients and waiters it has."""
        self._server_restarts.count_up(restarts)
        self._server_connections.set(connections)
        self._server_waiting.set(waiting)

    def requests_by_door(self, totals: Mapping[str, int]) -> None:
        """Requests since the start, all in all, by door (``socket``, ``http``)."""
        for door, total in totals.items():
            self._requests.labels(door).count_up(total)

    def subscriptions(self, count: int, totals: Mapping[str, int]) -> None:
        """Subscriptions there are; since the start, all in all, messages (``sent``, ``snapshots``) and epochs
        that were ``merged`` with a later one in them."""
        counters: dict[str, Number | Numbers] = {
            "sent": self._told.labels("changes"),
            "snapshots": self._told.labels("snapshot"),
            "merged": self._merged,
        }
        self._server_subscriptions.set(count)
        for name, total in totals.items():
            counters[name].count_up(total)

    def connections_refused(self, totals: Mapping[str, int]) -> None:
        """How many connections were refused since the start, all in all, by reason."""
        for reason, total in totals.items():
            self._refused.labels(reason).count_up(total)

    def watch_server_process(self, pid: Callable[[], int]) -> None:
        """Also show memory, processor time and descriptors of the query server's process."""
        Process(pid, prefix="graphtide_server_", registry=self.registry)
