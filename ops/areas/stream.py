"""From records to epochs: the source, and the stages of epochs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..histograms import Histogram
from .area import STAGE_SECONDS_BUCKETS, Area

FRESHNESS_SECONDS_BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5),
    *(0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0),
)
EPOCH_UPDATES_BUCKETS = (1, 10, 100, 1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
STAGES = ("poll", "decode", "index", "queue", "apply", "compute", "publish", "checkpoint")
OPS = ("insert", "delete", "insert_vertex", "delete_vertex")
BARRIER_OUTCOMES = ("complete", "expired", "crossed")


class StreamMetrics(Area):
    """The source is read, and its updates become epochs."""

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
        self._ids_reused = self._counter("ids_reused", "Dense ids of deleted vertices that were given to others.")
        self._late = self._counter(
            "late_upserts", "Upserts that were dropped, since their edges would have expired already."
        )
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
            "room, schemas cannot be had, or a disk does not answer; `stats` says more.",
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
        for outcome, total in totals.items():
            self._lookups.labels(outcome).count_up(total)

    def source_outages(self, total: int) -> None:
        """How often the source could not be reached since the start, all in all."""
        self._outages.count_up(total)

    def barriers(self, totals: Mapping[str, int], waiting_partitions: int) -> None:
        """How many barriers let go since the start, by outcome, and how many partitions wait at one now."""
        for outcome, total in totals.items():
            self._barriers.labels(outcome).count_up(total)
        self._barrier_partitions.set(waiting_partitions)

    def applied_up_to(self, timestamp_seconds: float) -> None:
        """The newest record time that the published epoch covers, in seconds since 1970."""
        self._source_time.set(timestamp_seconds)

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

    def waits_for_order_log(self, waits: bool) -> None:
        """Whether epochs wait until the order log can be written."""
        self._order_log_waits.set(int(waits))

    def observe_freshness(self, seconds: npt.NDArray[np.float64], updates: npt.NDArray[np.int64]) -> None:
        """Records of these ages (float64[n], seconds) became visible, each with so many updates (int64[n])."""
        self._freshness.observe_many(seconds, updates)
