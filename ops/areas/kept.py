"""What is written: checkpoints, and changed results for others."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .area import Area, forget

CHECKPOINT_ERRORS = ("OSError", "PermissionError", "FileNotFoundError", "FileExistsError", "MemoryError")
"""Shown from the beginning, so that the first one raises a counter; others may come."""
PARTITIONS_SHOWN_MAX = 256
"""A series each is a cost of whoever scrapes; a spool can have any number of files."""


class KeptMetrics(Area):
    """Checkpoints, and results on their way out."""

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
        self._partitions_shown: set[str] = set()
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
        self._results_lag_epochs = self._gauge("results_lag_epochs", "Published epochs that are not written yet.")
        self._results_lag = self._gauge(
            "results_lag_seconds", "How long something has been due to be written; 0: nothing is."
        )

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
            forget(self._checkpoint_offset, gone)
        self._partitions_shown = set(shown)
        for partition, offset in shown.items():
            self._checkpoint_offset.labels(partition).set(offset)
        self._checkpoint_margin.set(margin_records)

    def checkpoint_failed(self, reason: str) -> None:
        """A checkpoint could not be written: the name of the error's class (the log says more)."""
        self._checkpoint_failures.labels(reason).inc()

    def results(self, totals: Mapping[str, int], *, lag_epochs: int, lag_seconds: float) -> None:
        """What was written of results since the start, all in all, by the names of ``outgoing.writer.Written``."""
        for name, total in totals.items():
            self._results_written[name].count_up(total)
        self._results_lag_epochs.set(lag_epochs)
        self._results_lag.set(lag_seconds)
