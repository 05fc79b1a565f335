"""Every metric that graphtide exposes, declared once.

``Metrics`` owns a registry of its own; the daemon feeds it plain numbers and serves the registry. Run as a
module it prints ``docs/metrics.md``.
"""

from __future__ import annotations

import logging
import math
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .histograms import Counts, Histogram, HistogramFamily
from .numbers import Number, Numbers
from .process import Process

log = logging.getLogger(__name__)

FRESHNESS_SECONDS_BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5),
    *(0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0),
)
STAGE_SECONDS_BUCKETS = (
    *(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
EPOCH_UPDATES_BUCKETS = (1, 10, 100, 1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)

STAGES = ("poll", "decode", "index", "queue", "apply", "compute", "publish", "checkpoint")
OPS = ("insert", "delete", "insert_vertex", "delete_vertex")
CHANGES = ("inserted", "overwritten", "deleted", "absent")
VERTEX_CHANGES = ("inserted", "deleted", "absent")
CHECKPOINT_ERRORS = ("OSError", "PermissionError", "FileNotFoundError", "FileExistsError", "MemoryError")
"""Shown from the beginning, so that the first one raises a counter; others may come."""
AD_HOC_OUTCOMES = ("answered", "failed", "no_memory", "given_up")
BARRIER_OUTCOMES = ("complete", "expired", "crossed")
REFUSALS = ("token", "tls", "request", "silent", "crowded", "full")
PROGRAM_STATES = ("fresh", "running", "stale", "quarantined", "computing", "waiting")
SIDES = ("host", "device")
BUS_WAYS = ("zero_copy", "upload", "download")
READ_WAYS = ("device", "zero_copy")
"""How programs on a device read rows: those that it has, and those of the host, where they lie."""
MOVE_REASONS = ("headroom", "room", "balance", "gain", "request", "evict")
STAGES_OF_LIFE = ("compiling", "waiting", "reading", "loading", "computing", "recovering", "running", "stopping")
"""Kernels are compiled; the source is waited for, as it decides about the checkpoint; the checkpoint is read, and
the graph made of it; programs are computed; what lay in the log is replayed; all is well; the end."""

PARTITIONS_SHOWN_MAX = 256
"""A series each is a cost of whoever scrapes; a spool can have any number of files."""

QueryCounts = tuple[Sequence[int], float, Mapping[str, int]]
"""Of one method: requests per latency bucket (not added up; the last is for what is above every bound), the sum
of their seconds, and errors by code."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What the catalogue says of one metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


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


class Metrics:
    """All metrics of one daemon. Every method may be called from any thread."""

    def __init__(
        self,
        *,
        version: str = "",
        bad_record_reasons: Iterable[str] = (),
        storage_rules: Iterable[str] = (),
    ) -> None:
        """Declare everything; bad records of ``bad_record_reasons``, and violations of ``storage_rules`` of the
        audit, are shown as 0 until the first one comes."""
        self.registry = CollectorRegistry()
        self.declared: list[Declared] = []
        self._lock = threading.Lock()
        self._outages_seen = 0
        self._barriers_seen: dict[str, int] = {}
        self._lookups_seen: dict[str, int] = {}
        self._server_restarts_seen = 0
        self._partitions_shown: set[str] = set()
        self._refused_seen: dict[str, int] = {}
        self._structures: set[str] = set()
        self._states: dict[str, str] = {}
        self._source_metrics(tuple(bad_record_reasons))
        self._epoch_metrics()
        self._graph_metrics()
        self._device_metrics()
        self._placement_metrics()
        self._program_metrics()
        self._audit_metrics(tuple(storage_rules))
        self._checkpoint_metrics()
        self._results_metrics()
        self._query_metrics()
        self._process_metrics(version)

    # -- declarations -----------------------------------------------------------------------------------

    def _source_metrics(self, reasons: tuple[str, ...]) -> None:
        self._records = self._counter("records", "Records read from the source, bad ones and tombstones included.")
        self._record_bytes = self._counter("record_bytes", "Bytes of the records' values.")
        self._tombstones = self._counter(
            "tombstones",
            "Records without a value: skipped, but for those that delete (source.compacted, source.keyed).",
        )
        self._updates = self._counter("updates", "Updates decoded from good records, by operation.", "op", OPS)
        self._bad = self._counter(
            "bad_records", "Records refused and sent to the dead letters.", "reason", reasons
        )
        self._loops = self._counter("self_loops_dropped", "Self-loops dropped, where the graph keeps none.")
        self._misrouted = self._counter(
            "misrouted_edges", "Sampled edges that came through another partition than their src belongs to."
        )
        self._lag_records = self._gauge("source_lag_records", "Records still to read (0 for a spool).")
        self._lag_bytes = self._gauge("source_lag_bytes", "Bytes still to read (0 for Kafka).")
        self._lag_seconds = self._gauge(
            "source_lag_seconds", "Age of the newest record read while there is more to read; 0 at the end."
        )
        self._waiting = self._gauge(
            "ingest_waiting",
            "1 while nothing is read: the source cannot be reached, bad records or the first checkpoint find no "
            "room, or schemas cannot be had; `stats` says more.",
        )
        self._lookups = self._counter(
            "schema_lookups",
            "Schema ids that the registry was asked for. known: it has the schema; unusable: of no use to us; "
            "unknown: it has none; away: it did not say.",
            "outcome",
            ("known", "unusable", "unknown", "away"),
        )
        self._outages = self._counter("source_outages", "Times that the source could not be reached.")
        self._barriers = self._counter(
            "barriers",
            "Barriers that let go: complete, or given up because they expired or crossed another.",
            "outcome",
            BARRIER_OUTCOMES,
        )
        self._barrier_partitions = self._gauge("barrier_waiting_partitions", "Partitions that wait at a barrier.")
        self._source_time = self._gauge(
            "source_applied_up_to_timestamp_seconds", "Time of the newest record that the published epoch covers."
        )

    def _epoch_metrics(self) -> None:
        self._epochs = self._counter("epochs", "Epochs made since the start.")
        self._incarnation = self._gauge(
            "epoch_incarnation",
            "Incarnation of the published epoch: one per start; in a copied folder counted on from the time.",
        )
        self._number = self._gauge("epoch_number", "Number of the published epoch within its incarnation.")
        self._stages = self._histogram(
            "epoch_duration_seconds",
            "Time that each stage of an epoch took (queue: the wait for the engine).",
            STAGE_SECONDS_BUCKETS,
            "stage",
            STAGES,
        )
        self._order_log_seconds = self._counter(
            "order_log_wait_seconds",
            "Time that epochs, after they were applied, waited for the disk of the order log.",
        )
        self._order_log_waits = self._gauge(
            "waits_for_order_log",
            "1 while epochs wait, since the order log cannot be written; `stats` says why (`order`).",
        )
        self._epoch_updates = self._histogram("epoch_updates", "Updates of an epoch.", EPOCH_UPDATES_BUCKETS)
        self._queue = self._gauge("queue_updates", "Decoded updates that wait for the engine.")
        name, help = (
            "graphtide_freshness_seconds",
            (
                "Time from a record's timestamp until answers show its updates, one observation per update; of "
                "what lay in the source at the start there is none."
            ),
        )
        self._freshness = Histogram(name, help, FRESHNESS_SECONDS_BUCKETS)
        self.registry.register(self._freshness)
        self._declare(name, "histogram", (), help)

    def _graph_metrics(self) -> None:
        self._changes = self._counter(
            "edge_changes",
            "Distinct edges that epochs changed; absent: deletes of edges that were not there.",
            "kind",
            CHANGES,
        )
        self._vertex_changes = self._counter(
            "vertex_changes",
            "Distinct vertices that epochs changed; absent: deletions of vertices that did not exist.",
            "kind",
            VERTEX_CHANGES,
        )
        self._vertices = self._gauge("vertices", "Vertices of the graph.")
        self._dead_vertices = self._gauge(
            "dead_vertices",
            "Dense ids of deleted vertices, kept in case they come back, or free for others.",
        )
        self._ids_reused = self._counter("ids_reused", "Dense ids of deleted vertices that were given to others.")
        self._edges = self._gauge("edges", "Edges of the graph; an undirected edge counts once.")
        self._density = self._gauge("density_ratio", "Share of the slots of the packed memory array that is used.")
        self._slots_moved = self._counter("rebalance_slots_moved", "Slots rewritten by merges and rebalancing.")
        self._memory = self._gauge("memory_bytes", "Memory by structure.", "structure")
        self._memory_budget = self._gauge("memory_budget_bytes", "The setting memory.budget; 0: there is none.")
        self._memory_used = self._gauge(
            "memory_used_bytes",
            "What counts against it: of a limited control group everything in it, else what is resident.",
        )
        self._memory_waits = self._gauge("waits_for_memory", "1 while updates wait until memory comes free.")
        self._expired = self._counter("expired_edges", "Edges that went by themselves, as the window has it.")
        self._late = self._counter(
            "late_upserts", "Upserts that were dropped, since their edges would have expired already."
        )
        self._window_edges = self._gauge("window_edges", "Edges whose times are kept, for them to expire.")
        self._row_keys = self._gauge("row_keys", "Keys of records that stand for an edge (source.keyed).")
        self._event_time = self._gauge(
            "event_time_timestamp_seconds",
            "How far event time has come; 0: edges do not expire by it, or not yet.",
        )

    def _device_metrics(self) -> None:
        self._device_present = self._gauge("device_present", "1 while a device keeps the graph beside the host.")
        self._device_programs = self._gauge("device_programs", "Programs that run on the device.")
        self._device_lost = self._counter(
            "device_lost", "Devices given up because they failed or had no memory; the host goes on alone."
        )
        self._host_behind_updates = self._gauge(
            "host_behind_updates",
            "Updates of edges that a device has and the host's rows have yet to take; no program reads them.",
        )
        self._host_behind_seconds = self._gauge(
            "host_behind_seconds",
            "How long the first of these has waited; whoever needs the host's rows waits for it.",
        )
        self._device_held = self._gauge(
            "device_memory_held_bytes", "Memory that the daemon has taken on the device, free blocks included."
        )
        self._device_limit = self._gauge(
            "device_memory_limit_bytes", "The setting device.memory; 0: no limit, or no device."
        )

    def _placement_metrics(self) -> None:
        self._side_vertices = self._gauge(
            "side_vertices",
            "Vertices whose rows a side keeps; where each row is on one side only, deleted ones until others get "
            "their ids.",
            "side",
        )
        self._side_edges = self._gauge(
            "side_edges", "Out-edges that a side keeps; undirected ones in both directions.", "side"
        )
        self._side_bytes = self._gauge("side_bytes", "Memory of the graph on a side.", "side")
        self._side_updates = self._counter(
            "side_updates", "Updates of rows that a side was given to apply.", "side", SIDES
        )
        self._side_apply_seconds = self._counter(
            "side_apply_seconds",
            "Time that a side took to apply updates; sides work at the same time.",
            "side",
            SIDES,
        )
        self._headroom = self._gauge(
            "device_headroom_ratio",
            "Share of the device's memory (device.memory) that is left; 0: no device or no limit.",
        )
        self._imbalance = self._gauge(
            "placement_imbalance_ratio",
            "Share of the slower side's time to apply the last epoch in which the other side and programs were "
            "done already; 0: one side has all rows.",
        )
        self._frozen = self._gauge("placement_frozen", "1 while rows stay where they are (admin.freeze).")
        help = "Vertices whose rows moved to another side, by the move's reason and where to."
        self._moved_vertices = self._moved("placement_moved_vertices", help)
        help = "Edges of rows that moved to another side, of all arrays, by the move's reason and where to."
        self._moved_edges = self._moved("placement_moved_edges", help)
        self._move_seconds = self._counter("placement_move_seconds", "Time that moves of rows took.")
        self._move_failures = self._counter(
            "placement_move_failures", "Moves that found no memory; rows stayed where they were."
        )

        self._bus_bytes = self._counter(
            "bus_bytes",
            "Bytes between host and device: zero_copy, lines of 128 bytes of the host's rows that programs read "
            "where they lie, as they ask for them; upload, batches of updates and rows that move; download, "
            "results, by what runs say has changed.",
            "way",
            BUS_WAYS,
        )
        self._way_predicted = self._counter(
            "read_predicted_seconds",
            "Time that runs on the device were thought to take, where some rows are the host's: device, to begin "
            "and to read rows there; zero_copy, for those of the host.",
            "way",
            READ_WAYS,
        )
        self._way_measured = self._counter(
            "read_seconds",
            "Time that these runs took, divided by what reads of either kind have cost in many of them.",
            "way",
            READ_WAYS,
        )

    def _moved(self, name: str, help: str) -> Numbers:
        labels = ("reason", "to")
        self._declare(f"graphtide_{name}_total", "counter", labels, help)
        counter = Numbers("counter", f"graphtide_{name}", help, labels, registry=self.registry)
        for reason in MOVE_REASONS:
            for side in SIDES:
                counter.labels(reason, side)
        return counter

    def _program_metrics(self) -> None:
        self._runs = self._histogram(
            "program_duration_seconds", "Time of a program's refresh.", STAGE_SECONDS_BUCKETS, "program"
        )
        self._active = self._gauge("program_active_vertices", "Visits of vertices in the last refresh.", "program")
        self._edges_read = self._counter("program_edges_read", "Edges read by refreshes.", "program")
        self._remote_edges = self._counter(
            "program_remote_edges_read",
            "Edges of the host's rows that refreshes on the device read where they lie.",
            "program",
        )
        self._iterations = self._counter("program_iterations", "Iterations of refreshes.", "program")
        self._restarts = self._counter(
            "program_restarts", "Refreshes that started over because that was cheaper.", "program"
        )
        self._moves = self._counter(
            "program_moves",
            "Moves to the other processor, host or device, to see or because it is faster.",
            "program",
        )
        self._bound = self._gauge(
            "program_error_bound_ratio",
            "Certified relative error per vertex, for programs that approximate; 0 for exact ones.",
            "program",
        )
        self._state = self._gauge("program_state", "1 for the state that the program is in.", "program", "state")
        self._program_time = self._gauge(
            "program_applied_up_to_timestamp_seconds",
            "Time of the newest record that the program's published result covers.",
            "program",
        )
        self._kept = self._gauge("programs_kept", "Programs that were asked for at run time, and are kept.")
        self._caught_up = self._histogram(
            "program_joining_seconds",
            "Time for which updates waited while a program that was computed beside them joined.",
            STAGE_SECONDS_BUCKETS,
        )
        self._ad_hoc = self._counter(
            "ad_hoc_runs", "Programs that were run once for a request.", "outcome", AD_HOC_OUTCOMES
        )
        self._ad_hoc_time = self._histogram(
            "ad_hoc_duration_seconds", "Time of such a run, with the copy of the graph.", STAGE_SECONDS_BUCKETS
        )

    def _audit_metrics(self, storage_rules: tuple[str, ...]) -> None:
        self._audit_coverage = self._gauge(
            "audit_coverage_ratio", "Share of storage and programs that the current pass of the audit has checked."
        )
        self._audit_passes = self._counter("audit_passes", "Complete passes of the audit over everything.")
        self._audit_time = self._gauge(
            "audit_pass_timestamp_seconds", "When the last complete pass ended; 0: none yet."
        )
        self._audit_left_out = self._gauge(
            "audit_left_out_programs", "Programs that the last complete pass left out, being quarantined."
        )
        self._audit_seconds = self._counter("audit_seconds", "Time that the audit took of the engine thread.")
        self._audit_edges = self._counter("audit_edges_read", "Edges read by the audit.")
        help = "Findings that contradict the graph, by program (or storage) and rule: there should be none, ever."
        self._declare("graphtide_audit_violations_total", "counter", ("program", "rule"), help)
        self._audit_violations = Numbers(
            "counter", "graphtide_audit_violations", help, ("program", "rule"), registry=self.registry
        )
        for rule in storage_rules:
            self._audit_violations.labels("storage", rule)
        self._audit_repairs = self._counter(
            "audit_repairs", "Programs computed from scratch because the audit found them wrong.", "program"
        )

    def _checkpoint_metrics(self) -> None:
        self._checkpoints = self._counter("checkpoints", "Checkpoints written.")
        help = "Checkpoints that could not be written, by the kind of error."
        self._checkpoint_failures = self._counter("checkpoint_failures", help, "reason", CHECKPOINT_ERRORS)
        self._checkpoint_time = self._gauge(
            "checkpoint_timestamp_seconds", "When the newest checkpoint of this process was written; 0: none yet."
        )
        self._checkpoint_copy_seconds = self._gauge(
            "checkpoint_copy_seconds",
            "Time from the beginning of the newest checkpoint until all of it was copied, while epochs went on; "
            "how long they stood still is the stage checkpoint of epoch_duration_seconds.",
        )
        self._checkpoint_seconds = self._gauge("checkpoint_write_seconds", "Time that writing it took.")
        self._checkpoint_bytes = self._gauge("checkpoint_size_bytes", "Size of the newest checkpoint.")
        self._checkpoint_offset = self._gauge(
            "checkpoint_offset",
            "Where a restart goes on: the next offset to read in the newest checkpoint, by topic/partition (a "
            f"spool: by file), of {PARTITIONS_SHOWN_MAX} at most.",
            "partition",
        )
        self._checkpoint_margin = self._gauge(
            "checkpoint_log_margin_records",
            "Records from the log's start to the newest checkpoint, in the partition that has fewest: what "
            "retention may still remove before a restart cannot go on (NaN: not known; infinite for a spool).",
        )
        self._checkpoint_margin.set(math.nan)

    def _results_metrics(self) -> None:
        self._results_written = {
            "transactions": self._counter(
                "results_epochs", "Epochs written to the results' topic or files, each with all before it."
            ),
            "records": self._counter("results_records", "Changed vertices written, by program each."),
            "merged": self._counter(
                "results_merged_epochs", "Epochs whose changes were written together with those of a later one."
            ),
            "snapshots": self._counter("results_snapshots", "Epochs of which every vertex was written."),
            "errors": self._counter("results_errors", "Times that results could not be written."),
        }
        self._results_seen: dict[str, int] = {}
        self._results_lag_epochs = self._gauge("results_lag_epochs", "Published epochs that are not written yet.")
        self._results_lag = self._gauge(
            "results_lag_seconds", "How long something has been due to be written; 0: nothing is."
        )

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
        self._requests_seen: dict[str, int] = {}
        self._server_subscriptions = self._gauge("server_subscriptions", "Subscriptions of clients.")
        help = "Messages to subscribers. changes: of one epoch or of several; snapshot: of all that there is."
        self._told = self._counter("subscription_messages", help, "kind", ("changes", "snapshot"))
        self._merged = self._counter(
            "subscription_merged_epochs",
            "Epochs of which subscribers were told together with a later one, since they read slowly.",
        )
        self._told_seen: dict[str, int] = {}

        self._refused = self._counter(
            "connections_refused",
            "Connections that the query server refused. token: a wrong one or none; tls: it failed; request: the "
            "first one was none; silent: none came in time; crowded: it made room for others; full: "
            "connections_max are in.",
            "reason",
            REFUSALS,
        )

    def _process_metrics(self, version: str) -> None:
        Process(registry=self.registry)
        self._started = self._gauge("start_timestamp_seconds", "When this process began.")
        self._started.set_to_current_time()
        self._ready = self._gauge("ready", "1 when /ready says yes.")
        self._stage = self._gauge("stage", "1 for the stage that the daemon is in.", "stage")
        self._stage_progress = self._gauge(
            "stage_progress_ratio", "How much of its stage is done, while it is starting (NaN: not known)."
        )
        self._heartbeat = self._gauge(
            "engine_heartbeat_seconds", "Time since the engine's loop last went round (0: it does not run)."
        )
        info = self._gauge("build_info", "1; the labels say what runs.", "version", "python")
        info.labels(version, platform.python_version()).set(1)

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

    # -- the source -------------------------------------------------------------------------------------

    def ingested(
        self,
        *,
        records: int,
        bytes: int,
        tombstones: int,
        inserts: int,
        deletes: int,
        vertex_inserts: int = 0,
        vertex_deletes: int = 0,
        self_loops_dropped: int,
        ids_reused: int = 0,
        late: int = 0,
        poll_seconds: float,
        decode_seconds: float,
        index_seconds: float,
    ) -> None:
        """One poll: what it read, and the time of its stages."""
        self._records.inc(records)
        self._record_bytes.inc(bytes)
        self._tombstones.inc(tombstones)
        self._updates.labels("insert").inc(inserts)
        self._updates.labels("delete").inc(deletes)
        self._updates.labels("insert_vertex").inc(vertex_inserts)
        self._updates.labels("delete_vertex").inc(vertex_deletes)
        self._loops.inc(self_loops_dropped)
        self._ids_reused.inc(ids_reused)
        self._late.inc(late)
        self.stage("poll", poll_seconds)
        self.stage("decode", decode_seconds)
        self.stage("index", index_seconds)

    def bad_records(self, reason: str, number: int = 1) -> None:
        """Records (or lines) refused for one reason, a stable code."""
        self._bad.labels(reason).inc(number)

    def misrouted(self, edges: int) -> None:
        """Sampled edges found in a partition that is not theirs."""
        self._misrouted.inc(edges)

    def source_lag(self, *, unit: str, amount: int, seconds: float) -> None:
        """How far behind its end the source is read; ``unit`` is ``"records"`` or ``"bytes"``."""
        (self._lag_bytes if unit == "bytes" else self._lag_records).set(amount)
        self._lag_seconds.set(seconds)

    def ingest_waiting(self, waiting: bool) -> None:
        """Whether nothing is read for now, though there may be something."""
        self._waiting.set(int(waiting))

    def schema_lookups(self, totals: Mapping[str, int]) -> None:
        """How often the schema registry was asked for an id since the start, by what came of it."""
        with self._lock:
            for outcome, total in totals.items():
                self._lookups.labels(outcome).inc(max(total - self._lookups_seen.get(outcome, 0), 0))
                self._lookups_seen[outcome] = total

    def source_outages(self, total: int) -> None:
        """How often the source could not be reached since the start, all in all."""
        with self._lock:
            self._outages.inc(max(total - self._outages_seen, 0))
            self._outages_seen = total

    def barriers(self, totals: Mapping[str, int], waiting_partitions: int) -> None:
        """How many barriers let go since the start, by outcome, and how many partitions wait at one now."""
        with self._lock:
            for outcome, total in totals.items():
                self._barriers.labels(outcome).inc(max(total - self._barriers_seen.get(outcome, 0), 0))
                self._barriers_seen[outcome] = total
        self._barrier_partitions.set(waiting_partitions)

    def applied_up_to(self, timestamp_seconds: float) -> None:
        """The newest record time that the published epoch covers, in seconds since 1970."""
        self._source_time.set(timestamp_seconds)

    # -- epochs -----------------------------------------------------------------------------------------

    def epoch(
        self,
        *,
        updates: int,
        apply_seconds: float,
        compute_seconds: float,
        publish_seconds: float,
        order_log_seconds: float = 0.0,
    ) -> None:
        """One epoch of so many updates, and the time of its stages; ``order_log_seconds``: see the metric."""
        self._epochs.inc()
        self._epoch_updates.observe(updates)
        self.stage("apply", apply_seconds)
        self._order_log_seconds.inc(order_log_seconds)
        self.stage("compute", compute_seconds)
        self.stage("publish", publish_seconds)

    def stage(self, name: str, seconds: float) -> None:
        """The time that one stage (of ``STAGES``) took."""
        self._stages.labels(name).observe(seconds)

    def published(self, incarnation: int, number: int) -> None:
        """The epoch that answers now come from."""
        self._incarnation.set(incarnation)
        self._number.set(number)

    def queue_depth(self, updates: int) -> None:
        """Decoded updates that wait."""
        self._queue.set(updates)

    def memory_budget(self, *, budget: int, used: int) -> None:
        """The budget of memory (0: none) and what counts against it, in bytes."""
        self._memory_budget.set(budget)
        self._memory_used.set(used)

    def waits_for_memory(self, waits: bool) -> None:
        """Whether updates wait until memory comes free."""
        self._memory_waits.set(int(waits))

    def waits_for_order_log(self, waits: bool) -> None:
        """Whether epochs wait until the order log can be written."""
        self._order_log_waits.set(int(waits))

    def observe_freshness(self, seconds: npt.NDArray[np.float64], updates: npt.NDArray[np.int64]) -> None:
        """Records of these ages (float64[n], seconds) became visible, each with so many updates (int64[n])."""
        self._freshness.observe_many(seconds, updates)

    # -- the graph --------------------------------------------------------------------------------------

    def changes(self, *, inserted: int, overwritten: int, deleted: int, absent: int, slots_moved: int) -> None:
        """What an epoch changed."""
        counted = {"inserted": inserted, "overwritten": overwritten, "deleted": deleted, "absent": absent}
        for kind, number in counted.items():
            self._changes.labels(kind).inc(number)
        self._slots_moved.inc(slots_moved)

    def vertex_changes(self, *, inserted: int, deleted: int, absent: int) -> None:
        """What an epoch did to vertices."""
        for kind, number in {"inserted": inserted, "deleted": deleted, "absent": absent}.items():
            self._vertex_changes.labels(kind).inc(number)

    def graph(
        self, *, vertices: int, edges: int, density: float, memory_bytes: Mapping[str, int], dead_vertices: int = 0
    ) -> None:
        """The graph as it is, and the memory of every structure; structures not named are gone."""
        self._vertices.set(vertices)
        self._dead_vertices.set(dead_vertices)
        self._edges.set(edges)
        self._density.set(density)
        with self._lock:
            for gone in self._structures - memory_bytes.keys():
                _forget(self._memory, gone)
            self._structures = set(memory_bytes)
        for name, size in memory_bytes.items():
            self._memory.labels(name).set(size)

    def expired(self, edges: int) -> None:
        """So many more edges went by themselves."""
        self._expired.inc(edges)

    def window(self, *, edges: int, event_time_seconds: float = 0.0) -> None:
        """Edges whose times are kept, and how far event time has come."""
        self._window_edges.set(edges)
        self._event_time.set(event_time_seconds)

    def row_keys(self, keys: int) -> None:
        """So many keys of records stand for an edge."""
        self._row_keys.set(keys)

    def device(self, *, present: bool, programs: int, held_bytes: int, limit_bytes: int) -> None:
        """Whether a device keeps the graph beside the host, how many programs run there, and its memory; limit 0:
        there is none."""
        self._device_present.set(int(present))
        self._device_programs.set(programs)
        self._device_held.set(held_bytes)
        self._device_limit.set(limit_bytes)

    def host_behind(self, *, updates: int, seconds: float) -> None:
        """How far the host's rows are behind a device's."""
        self._host_behind_updates.set(updates)
        self._host_behind_seconds.set(seconds)

    def device_lost(self) -> None:
        """A device was given up."""
        self._device_lost.inc()

    # -- sides ------------------------------------------------------------------------------------------

    def side(self, name: str, *, vertices: int, edges: int, stored_bytes: int) -> None:
        """What a side keeps: vertices whose rows are there, their out-edges, and bytes."""
        self._side_vertices.labels(name).set(vertices)
        self._side_edges.labels(name).set(edges)
        self._side_bytes.labels(name).set(stored_bytes)

    def applied(self, side: str, *, updates: int, seconds: float) -> None:
        """A side applied its part of a batch."""
        self._side_updates.labels(side).inc(updates)
        self._side_apply_seconds.labels(side).inc(seconds)

    def headroom(self, share: float) -> None:
        """The share of the device's memory that is left."""
        self._headroom.set(share)

    def imbalance(self, share: float) -> None:
        """The share of the slower side's time for the last epoch in which all else was done."""
        self._imbalance.set(share)

    def frozen(self, frozen: bool) -> None:
        """Whether rows stay where they are."""
        self._frozen.set(int(frozen))

    def moved(self, reason: str, to: str, *, vertices: int, edges: int, seconds: float) -> None:
        """Rows moved to a side, for one of ``MOVE_REASONS``."""
        self._moved_vertices.labels(reason, to).inc(vertices)
        self._moved_edges.labels(reason, to).inc(edges)
        self._move_seconds.inc(seconds)

    def bus(self, way: str, n_bytes: int) -> None:
        """Bytes went one of ``BUS_WAYS``."""
        self._bus_bytes.labels(way).inc(n_bytes)

    def rows_read(self, way: str, *, predicted_s: float, measured_s: float) -> None:
        """Of a run on the device, some rows being the host's: what one of ``READ_WAYS`` was to take, and took."""
        self._way_predicted.labels(way).inc(predicted_s)
        self._way_measured.labels(way).inc(measured_s)

    def remote_edges_read(self, program: str, edges: int) -> None:
        """A run on the device (of a program named by its id) read so many edges of the host's rows."""
        self._remote_edges.labels(program).inc(edges)

    def move_failed(self) -> None:
        """A move found no memory."""
        self._move_failures.inc()

    def times(self) -> dict[str, Any]:
        """What has been measured since the start, all in all, as ``stats`` shows it.

        ``stages``, ``runs``: by stage, and by program, the ``count`` of times that it ran and the ``seconds`` of
        all of them. ``freshness``: how many ``updates`` were visible within each of ``bounds_seconds``, not added
        up (the last entry of ``updates`` is for later ones), and the ``seconds`` of all of them.
        """
        fresh = self._freshness.counts()[""]
        return {
            "stages": {stage: _ran(counts) for stage, counts in self._stages.counts().items()},
            "runs": {program: _ran(counts) for program, counts in self._runs.counts().items()},
            "freshness": {
                "bounds_seconds": list(FRESHNESS_SECONDS_BUCKETS),
                "updates": list(fresh.buckets),
                "seconds": fresh.sum,
            },
        }

    # -- programs ---------------------------------------------------------------------------------------

    def program_run(
        self,
        program: str,
        *,
        seconds: float,
        active: int,
        edges_read: int,
        iterations: int,
        started_over: bool,
        applied_up_to_seconds: float | None = None,
    ) -> None:
        """One refresh of a program (named by its id)."""
        self._runs.labels(program).observe(seconds)
        self._active.labels(program).set(active)
        self._edges_read.labels(program).inc(edges_read)
        self._iterations.labels(program).inc(iterations)
        self._restarts.labels(program).inc(int(started_over))
        if applied_up_to_seconds is not None:
            self._program_time.labels(program).set(applied_up_to_seconds)

    def program_moved(self, program: str) -> None:
        """A program goes on at the other processor."""
        self._moves.labels(program).inc()

    def program_error_bound(self, program: str, bound: float) -> None:
        """The certified error of what is published of a program; 0: it is exact."""
        self._bound.labels(program).set(bound)

    def program_state(self, program: str, state: str) -> None:
        """The state of a program, one of ``PROGRAM_STATES``."""
        if state not in PROGRAM_STATES:
            raise ValueError(f"a program's state is one of {', '.join(PROGRAM_STATES)}, not {state!r}")
        with self._lock:
            if self._states.get(program) == state:
                return
            self._states[program] = state
        self._audit_repairs.labels(program)  # the zero before the first one
        self._moves.labels(program)
        self._remote_edges.labels(program)
        for name in PROGRAM_STATES:
            self._state.labels(program, name).set(int(name == state))

    def program_dropped(self, program: str) -> None:
        """A program is no more, and nothing is said of it."""
        with self._lock:
            self._states.pop(program, None)
        for metric in (
            *(self._runs, self._active, self._edges_read, self._remote_edges),
            *(self._iterations, self._restarts, self._bound),
            *(self._program_time, self._audit_repairs, self._moves),
        ):
            _forget(metric, program)
        for name in PROGRAM_STATES:
            _forget(self._state, program, name)

    def programs_kept(self, number: int) -> None:
        """How many programs are kept that were asked for at run time."""
        self._kept.set(number)

    def program_joined(self, seconds: float) -> None:
        """One of them joined, and updates waited so long for it."""
        self._caught_up.observe(seconds)

    def ad_hoc_run(self, outcome: str, seconds: float) -> None:
        """A program was run once: how that ended, one of ``AD_HOC_OUTCOMES``, and its time."""
        self._ad_hoc.labels(outcome).inc()
        self._ad_hoc_time.observe(seconds)

    # -- the audit --------------------------------------------------------------------------------------

    def audit_step(self, *, seconds: float, edges_read: int, coverage: float) -> None:
        """A step of the background audit, and how much of its pass is done now."""
        self._audit_seconds.inc(seconds)
        self._audit_edges.inc(edges_read)
        self._audit_coverage.set(coverage)

    def audit_violation(self, program: str, rule: str) -> None:
        """A finding; ``program`` is an id, or ``"storage"``."""
        self._audit_violations.labels(program, rule).inc()

    def audit_pass(self, *, left_out: int) -> None:
        """A pass is complete."""
        self._audit_passes.inc()
        self._audit_time.set_to_current_time()
        self._audit_left_out.set(left_out)

    def audit_repair(self, program: str) -> None:
        """A program was computed from scratch for what the audit found."""
        self._audit_repairs.labels(program).inc()

    # -- checkpoints, queries, the process ----------------------------------------------------------------

    def checkpoint_copied(self, seconds: float) -> None:
        """A checkpoint was copied in memory, so long after it began."""
        self._checkpoint_copy_seconds.set(seconds)

    def checkpoint(self, *, seconds: float, size_bytes: int) -> None:
        """A checkpoint is safe on disk."""
        self._checkpoints.inc()
        self._checkpoint_time.set_to_current_time()
        self._checkpoint_seconds.set(seconds)
        self._checkpoint_bytes.set(size_bytes)

    def checkpoint_covers(self, offsets: Mapping[str, int], margin_records: float) -> None:
        """The newest checkpoint's offsets by topic/partition, and how far they are from the log's start at least
        (NaN: not known)."""
        shown = {name: offsets[name] for name in sorted(offsets)[:PARTITIONS_SHOWN_MAX]}
        for gone in self._partitions_shown - shown.keys():
            _forget(self._checkpoint_offset, gone)
        self._partitions_shown = set(shown)
        for partition, offset in shown.items():
            self._checkpoint_offset.labels(partition).set(offset)
        self._checkpoint_margin.set(margin_records)

    def checkpoint_failed(self, reason: str) -> None:
        """A checkpoint could not be written: the name of the error's class (the log says more)."""
        self._checkpoint_failures.labels(reason).inc()

    def results(self, totals: Mapping[str, int], *, lag_epochs: int, lag_seconds: float) -> None:
        """What was written of results since the start, all in all, by the names of ``outgoing.writer.Written``."""
        with self._lock:
            for name, total in totals.items():
                self._results_written[name].inc(max(total - self._results_seen.get(name, 0), 0))
            self._results_seen = dict(totals)
        self._results_lag_epochs.set(lag_epochs)
        self._results_lag.set(lag_seconds)

    def watch_queries(self, read: Callable[[], Mapping[str, QueryCounts]], bounds: Sequence[float]) -> None:
        """Ask ``read`` for the query server's counts by method whenever metrics are read.

        ``bounds`` are the upper bounds of its latency buckets, in seconds.
        """
        self._queries.read, self._queries.bounds = read, bounds

    def server(self, *, restarts: int, connections: int, waiting: int) -> None:
        """The query server: how often it was replaced since the start, and how many clients and waiters it has."""
        with self._lock:
            self._server_restarts.inc(max(restarts - self._server_restarts_seen, 0))
            self._server_restarts_seen = restarts
        self._server_connections.set(connections)
        self._server_waiting.set(waiting)

    def requests_by_door(self, totals: Mapping[str, int]) -> None:
        """Requests since the start, all in all, by door (``socket``, ``http``)."""
        with self._lock:
            for door, total in totals.items():
                self._requests.labels(door).inc(max(total - self._requests_seen.get(door, 0), 0))
            self._requests_seen = dict(totals)

    def subscriptions(self, count: int, totals: Mapping[str, int]) -> None:
        """Subscriptions there are; since the start, all in all, messages (``sent``, ``snapshots``) and epochs
        that were ``merged`` with a later one in them."""
        counters: dict[str, Number | Numbers] = {
            "sent": self._told.labels("changes"),
            "snapshots": self._told.labels("snapshot"),
            "merged": self._merged,
        }
        with self._lock:
            self._server_subscriptions.set(count)
            for name, total in totals.items():
                counters[name].inc(max(total - self._told_seen.get(name, 0), 0))
            self._told_seen = dict(totals)

    def connections_refused(self, totals: Mapping[str, int]) -> None:
        """How many connections were refused since the start, all in all, by reason."""
        with self._lock:
            for reason, total in totals.items():
                self._refused.labels(reason).inc(max(total - self._refused_seen.get(reason, 0), 0))
            self._refused_seen = dict(totals)

    def watch_server_process(self, pid: Callable[[], int]) -> None:
        """Also show memory, processor time and descriptors of the query server's process."""
        Process(pid, prefix="graphtide_server_", registry=self.registry)

    def watch_health(
        self,
        *,
        ready: Callable[[], bool],
        stage: Callable[[], str],
        progress: Callable[[], float | None],
        heartbeat_seconds: Callable[[], float],
    ) -> None:
        """Ask these whenever metrics are read. ``stage`` gives one of ``STAGES_OF_LIFE``."""

        def share() -> float:
            known = progress()
            return math.nan if known is None else known

        self._ready.set_function(ready)
        for name in STAGES_OF_LIFE:
            self._stage.labels(name).set_function(partial(_is, stage, name))
        self._stage_progress.set_function(share)
        self._heartbeat.set_function(heartbeat_seconds)


def _ran(counts: Counts) -> dict[str, float]:
    return {"count": sum(counts.buckets), "seconds": counts.sum}


def _is(stage: Callable[[], str], name: str) -> bool:
    return stage() == name


def _forget(metric: Numbers | Histogram, *labels: str) -> None:
    with suppress(KeyError):  # it never ran
        metric.remove(*labels)


def catalogue_markdown() -> str:
    """``docs/metrics.md``: every metric with its type, labels and meaning."""
    lines = [
        "# Metrics",
        "",
        "<!-- Written by `python -m graphtide.ops.metrics > docs/metrics.md`; a test keeps the two equal. -->",
        "",
        "Served for Prometheus at `http://127.0.0.1:9420/metrics` (`[metrics] listen`), with `/live` and `/ready` "
        "beside it. Units are in the names. Besides these come `process_*` (the engine process) and "
        "`graphtide_server_process_*` (the query server): memory, processor time, open descriptors.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for metric in Metrics().declared:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    values = {"op": OPS, "kind": CHANGES, "stage": STAGES, "state": PROGRAM_STATES, "side": SIDES, "to": SIDES}
    values["way"] = BUS_WAYS + READ_WAYS[:1]
    lines += ["", "Values of labels: " + "; ".join(f"`{k}`: {', '.join(v)}" for k, v in values.items()) + "."]
    lines += [f"`stage` of `graphtide_stage`: {', '.join(STAGES_OF_LIFE)}."]
    lines += [
        "`reason`: the error codes of dead letters, of moves "
        + ", ".join(MOVE_REASONS)
        + "; `program`: the ids of programs; `rule`: those of the audit;"
    ]
    lines += ["`method`, `code`: those of the query protocol.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(catalogue_markdown(), end="")
