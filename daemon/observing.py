"""What the parts of a daemon say of themselves, put into its metrics: once a second, and as records come."""

from __future__ import annotations

from dataclasses import asdict

from ..ops.metrics import Metrics
from .ingest.loop import Ingest, IngestReport
from .outgoing.writer import Writer
from .records.stream import Source
from .serve.supervisor import ServerLink
from .state.checkpointer import Checkpointer


class Observing:
    """Figures that are asked for, since nobody tells of them."""

    def __init__(
        self,
        metrics: Metrics,
        source: Source,
        ingest: Ingest,
        link: ServerLink,
        results: Writer | None,
        checkpoints: Checkpointer,
    ) -> None:
        self._metrics = metrics
        self._source = source
        self._ingest = ingest
        self._link = link
        self._results = results
        self._checkpoints = checkpoints

    def look(self) -> None:
        """Ask everybody."""
        metrics, source, ingest, link = self._metrics, self._source, self._ingest, self._link
        lag = ingest.lag()
        metrics.source_lag(unit=source.unit, amount=sum(lag.amount.values()), seconds=lag.seconds)
        metrics.source_outages(source.outages)
        metrics.barriers(ingest.reader.barriers.outcomes, ingest.reader.barriers.waiting_partitions)
        metrics.ingest_waiting(ingest.waiting is not None)
        ingest.long_waits.tell()
        metrics.schema_lookups(ingest.decoder.lookups)
        metrics.server(restarts=link.restarts, connections=link.connections, waiting=link.waiting)
        metrics.subscriptions(link.subscriptions, link.told())
        metrics.connections_refused(link.refused())
        metrics.requests_by_door(link.requests_by_door())
        if (results := self._results) is not None:
            written = asdict(results.written)
            metrics.results(written, lag_epochs=results.lag_epochs, lag_seconds=results.lag_seconds)
        if (newest := self._checkpoints.newest) is not None:
            offsets = {str(partition): offset for partition, offset in newest.offsets.items()}
            metrics.checkpoint_covers(offsets, source.log_margin(newest.offsets))


def ingested(metrics: Metrics, report: IngestReport) -> None:
    """Count what was read."""
    metrics.ingested(
        records=report.records,
        bytes=report.bytes,
        tombstones=report.tombstones,
        inserts=report.inserts,
        deletes=report.deletes,
        vertex_inserts=report.vertex_inserts,
        vertex_deletes=report.vertex_deletes,
        self_loops_dropped=report.self_loops_dropped,
        ids_reused=report.ids_reused,
        late=report.late,
        poll_seconds=report.poll_seconds,
        decode_seconds=report.decode_seconds,
        index_seconds=report.index_seconds,
    )
    metrics.misrouted(report.misrouted)
    for letter in report.bad:
        metrics.bad_records(letter.reason)
