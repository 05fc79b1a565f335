"""Every metric that graphtide exposes, declared once.

``Metrics`` owns a registry of its own; the daemon feeds it plain numbers and serves the registry. Run as a
module it prints ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .areas.graph import CHANGES, GraphMetrics
from .areas.kept import KeptMetrics
from .areas.life import STAGES_OF_LIFE, LifeMetrics
from .areas.programs import PROGRAM_STATES, ProgramMetrics
from .areas.serving import ServingMetrics
from .areas.sides import BUS_WAYS, MOVE_REASONS, READ_WAYS, SIDES, SidesMetrics
from .areas.stream import FRESHNESS_SECONDS_BUCKETS, OPS, STAGES, StreamMetrics
from .histograms import Counts


class Metrics(StreamMetrics, GraphMetrics, SidesMetrics, ProgramMetrics, KeptMetrics, ServingMetrics, LifeMetrics):
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
        super().__init__()
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


def _ran(counts: Counts) -> dict[str, float]:
    return {"count": sum(counts.buckets), "seconds": counts.sum}


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
