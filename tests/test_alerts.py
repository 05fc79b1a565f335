"""Alert rules, and ages on dashboards, played by promtool on series that are made up."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_dashboards import RULES, queries, substituted, tool

pytestmark = pytest.mark.prometheus

ALERTS = (
    *("GraphtideDeviceLost", "GraphtideDeviceMemoryShort", "GraphtideImbalance", "GraphtideMovesFail"),
    *("GraphtideWaitsForOrderLog", "GraphtideBadRecords", "GraphtideCheckpointOld", "GraphtideCheckpointFailed"),
    *("GraphtideStuck", "GraphtideBehind", "GraphtideStale", "GraphtideResultsBehind", "GraphtideRetentionNear"),
    *("GraphtideWaitsForMemory", "GraphtideIngestWaiting"),
)
BAD = 'graphtide_bad_records_total{reason="malformed"}'
FAILED = 'graphtide_checkpoint_failures_total{reason="PermissionError"}'
STARTED = "graphtide_start_timestamp_seconds"
EPOCHS = "graphtide_epochs_total"
RUNNING = {'graphtide_stage{stage="running"}': "1x200", 'graphtide_stage{stage="stopping"}': "0x200"}
LAG, LAG_RECORDS, LAG_BYTES = (f"graphtide_source_lag_{unit}" for unit in ("seconds", "records", "bytes"))
RESULTS_LAG = "graphtide_results_lag_seconds"
STANDING = {LAG: "999x200", LAG_RECORDS: "9x200", LAG_BYTES: "0x200", EPOCHS: "5x200"}
MEMORY, ORDER_LOG = "graphtide_waits_for_memory", "graphtide_waits_for_order_log"
HEARTBEAT = "graphtide_engine_heartbeat_seconds"
MARGIN, WROTE = "graphtide_checkpoint_log_margin_records", "graphtide_checkpoints_total"
RECOVERING = 'graphtide_stage{stage="recovering"}'
FRESH, LATE = (f'graphtide_freshness_seconds_bucket{{le="{le}"}}' for le in ("10.0", "20.0"))
LATER = 'graphtide_freshness_seconds_bucket{le="+Inf"}'
LATE_ONCE = "0x30 0 0+99x169", "0x30 5000 5099+99x169"
DEVICE = {"graphtide_device_present": "1x200", "graphtide_device_memory_limit_bytes": "1000x200"}


def named(name: str) -> str:
    """A series with the instance among its labels."""
    return name.replace("{", '{instance="one", ') if "{" in name else f'{name}{{instance="one"}}'


@pytest.mark.parametrize(
    ("series", "at", "fires"),
    [
        ({"graphtide_device_lost_total": "0x30 1x170"}, "40m", "GraphtideDeviceLost"),
        # A process that replaces itself begins to count anew, at one.
        ({"graphtide_device_lost_total": "0x30 _x2 1x170"}, "40m", "GraphtideDeviceLost"),
        ({"graphtide_device_lost_total": "0x200"}, "40m", None),
        ({**DEVICE, "graphtide_device_headroom_ratio": "0.3x20 0.05x180"}, "60m", "GraphtideDeviceMemoryShort"),
        ({**DEVICE, "graphtide_device_headroom_ratio": "0.3x20 0.05x5 0.2x180"}, "60m", None),
        (
            {
                "graphtide_device_present": "1x200",
                "graphtide_device_memory_limit_bytes": "0x200",
                "graphtide_device_headroom_ratio": "0x200",
            },
            "60m",
            None,
        ),
        ({**RUNNING, "graphtide_placement_imbalance_ratio": "0.9x200"}, "90m", "GraphtideImbalance"),
        ({**RUNNING, "graphtide_placement_imbalance_ratio": "0.9x20 0x180"}, "90m", None),
        ({"graphtide_placement_move_failures_total": "0+1x200"}, "60m", "GraphtideMovesFail"),
        ({"graphtide_placement_move_failures_total": "0x20 1x180"}, "60m", None),
        ({ORDER_LOG: "0x30 1x170"}, "35m", "GraphtideWaitsForOrderLog"),
        ({ORDER_LOG: "0x30 1x2 0x170"}, "35m", None),
        ({BAD: "0x30 7x170", STARTED: "0x200"}, "35m", "GraphtideBadRecords"),
        ({BAD: "7x200", STARTED: "0x200"}, "35m", None),
        # All that lay there was read before the first scrape.
        ({BAD: "_x30 7x170", STARTED: "_x30 1790x170"}, "35m", "GraphtideBadRecords"),
        ({BAD: "_x30 0x170", STARTED: "_x30 1790x170"}, "35m", None),
        ({BAD: "_x30 7x170", STARTED: "_x30 1790x170"}, "50m", None),
        ({FAILED: "0x30 1x170"}, "40m", "GraphtideCheckpointFailed"),
        ({FAILED: "1x200"}, "40m", None),
        ({WROTE: "1x200", STARTED: "1x200", EPOCHS: "0+9x200"}, "70m", "GraphtideCheckpointOld"),
        ({WROTE: "1+1x200", STARTED: "1x200", EPOCHS: "0+9x200"}, "70m", None),
        # No epoch, nothing to write; one that has written none yet; one that was started anew.
        ({WROTE: "1x200", STARTED: "1x200", EPOCHS: "9x200"}, "70m", None),
        ({WROTE: "0x200", STARTED: "1x200", EPOCHS: "0+9x200"}, "70m", "GraphtideCheckpointOld"),
        ({WROTE: "0x200", STARTED: "1x200", EPOCHS: "0+9x200"}, "50m", None),
        ({WROTE: "5x60 0x140", STARTED: "1x60 3660x140", EPOCHS: "0+9x60 0+9x140"}, "115m", None),
        (
            {WROTE: "5x60 0x140", STARTED: "1x60 3660x140", EPOCHS: "0+9x60 0+9x140"},
            "130m",
            "GraphtideCheckpointOld",
        ),
        # The daemon's clock is ten hours ahead.
        ({WROTE: "1x200", STARTED: "36001x200", EPOCHS: "0+9x200"}, "70m", "GraphtideCheckpointOld"),
        ({BAD: "7x200", STARTED: "36001x200"}, "35m", None),
        ({LAG_RECORDS: "9x200", LAG_BYTES: "0x200", EPOCHS: "5x200"}, "11m", "GraphtideStuck"),
        ({LAG_RECORDS: "0x200", LAG_BYTES: "9x200", EPOCHS: "5x200"}, "11m", "GraphtideStuck"),
        ({LAG_RECORDS: "0x200", LAG_BYTES: "0x200", EPOCHS: "5x200"}, "60m", None),
        ({LAG_RECORDS: "9x200", LAG_BYTES: "0x200", EPOCHS: "5+1x200"}, "60m", None),
        ({**STANDING, MEMORY: "1x200"}, "60m", "GraphtideWaitsForMemory"),
        ({**STANDING, MEMORY: "0x200", ORDER_LOG: "1x200"}, "60m", "GraphtideWaitsForOrderLog"),
        ({**STANDING, MEMORY: "0x200", ORDER_LOG: "0x200"}, "60m", "GraphtideStuck"),
        # Few updates come, and all have been read: they wait for an engine that a disk holds.
        ({LAG_RECORDS: "0x200", LAG_BYTES: "0x200", HEARTBEAT: "0+60x200"}, "12m", "GraphtideStuck"),
        ({LAG_RECORDS: "0x200", LAG_BYTES: "0x200", HEARTBEAT: "200x200"}, "60m", None),
        ({LAG: "61x200", RECOVERING: "0x200"}, "12m", "GraphtideBehind"),
        ({LAG: "61x200", RECOVERING: "0x200", EPOCHS: "5+1x200"}, "12m", "GraphtideBehind"),
        # A start that takes half an hour, and what came meanwhile.
        ({LAG: "61x35 0x165", RECOVERING: "1x30 0x170"}, "32m", None),
        ({LAG: "61x200", RECOVERING: "1x30 0x170"}, "45m", "GraphtideBehind"),
        ({FRESH: "0+90x200", LATE: "0+100x200", LATER: "0+100x200"}, "17m", "GraphtideStale"),
        ({FRESH: "0+100x200", LATE: "0+100x200", LATER: "0+100x200"}, "60m", None),
        # For a minute all were late: the 10 minutes that the alert says are none of the window that it looks at.
        *(
            ({FRESH: LATE_ONCE[0], LATE: LATE_ONCE[1], LATER: LATE_ONCE[1]}, f"{at}m", None)
            for at in range(31, 50)
        ),
        ({RESULTS_LAG: "61x200", RECOVERING: "0x200"}, "7m", "GraphtideResultsBehind"),
        ({RESULTS_LAG: "0+60x30 0x170", RECOVERING: "1x30 0x170"}, "30m", None),
        ({MARGIN: "5x5 -1x195"}, "7m", "GraphtideRetentionNear"),
        ({MARGIN: "0x5" + " NaN" * 20}, "20m", None),
        # The log's beginning comes near, and no checkpoint moves away from it; one does; nothing happens; a spool.
        (
            {MARGIN: "9999-99x200", WROTE: "3x200", STARTED: "0x200", EPOCHS: "0+9x200"},
            "62m",
            "GraphtideRetentionNear",
        ),
        ({MARGIN: "9999-99x200", WROTE: "3+1x200", STARTED: "0x200", EPOCHS: "0+9x200"}, "62m", None),
        ({MARGIN: "9999-99x200", WROTE: "3x200", STARTED: "0x200", EPOCHS: "9x200"}, "62m", None),
        ({MARGIN: "9999-1x200", WROTE: "3x200", STARTED: "0x200", EPOCHS: "0+9x200"}, "62m", None),
        ({MARGIN: "Inf" + " Inf" * 90, WROTE: "3x200", STARTED: "0x200", EPOCHS: "0+9x200"}, "62m", None),
        # A segment is deleted before the first checkpoint of a process, which is the first or another one.
        ({MARGIN: "9999x2 5000x198", WROTE: "0x5 1x195", STARTED: "0x200", EPOCHS: "0+9x200"}, "4m", None),
        (
            {MARGIN: "_x20 9999x2 5000x98", WROTE: "5x10 _x10 0x5 1x95", STARTED: "1x10 _x10 1200x100"}
            | {EPOCHS: "0+9x10 _x10 0+9x100"},
            "24m",
            None,
        ),
        ({MEMORY: "0x5 1x195"}, "8m", "GraphtideWaitsForMemory"),
        ({MEMORY: "0x5 1 0x195"}, "8m", None),
        ({"graphtide_ingest_waiting": "0x5 1x195"}, "9m", "GraphtideIngestWaiting"),
        ({"graphtide_ingest_waiting": "0x5 1x2 0x195"}, "9m", None),
    ],
)
def test_an_alert_fires_when_it_must_and_only_then(
    tmp_path: Path, series: dict[str, str], at: str, fires: str | None
) -> None:
    given = [{"series": named(name), "values": values} for name, values in series.items()]
    checks: list[dict[str, Any]] = []
    for alert in ALERTS:
        # What an alert says is not compared: its labels are.
        expression = f'count(ALERTS{{alertname="{alert}", alertstate="firing", instance="one"}})'
        expected = [{"value": 1, "labels": "{}"}] if alert == fires else []
        checks.append({"expr": expression, "eval_time": at, "exp_samples": expected})
    play(tmp_path, given, checks)


@pytest.mark.parametrize(("values", "n_firing"), [("1x20", 0), ("1x5 0x15", 1), ("1x5 _x15", 1), (None, 1)])
def test_a_daemon_that_is_nowhere_is_down(tmp_path: Path, values: str | None, n_firing: int) -> None:
    given = [] if values is None else [{"series": 'up{job="graphtide", instance="one"}', "values": values}]
    sample = [{"value": n_firing, "labels": "{}"}] if n_firing else []
    expression = 'count(ALERTS{alertname="GraphtideDown", alertstate="firing"})'
    play(tmp_path, given, [{"expr": expression, "eval_time": "18m", "exp_samples": sample}])


def test_what_has_not_happened_yet_has_no_age(tmp_path: Path) -> None:
    asked = [substituted(expression) for title, expression in queries() if expression.startswith("time() -")]
    assert len(asked) >= 4
    names = {name for expression in asked for name in re.findall(r"graphtide_\w+", expression)}
    for value, shown in (("0", []), ("60", [{"value": 540, "labels": "{}"}])):
        given = [{"series": named(name), "values": f"{value}x20"} for name in names]
        checks = [{"expr": f"sum({one})", "eval_time": "10m", "exp_samples": shown} for one in asked]
        play(tmp_path, given, checks)


def test_headroom_is_that_of_the_instances_that_have_a_device(tmp_path: Path) -> None:
    (asked,) = [
        substituted(expression) for title, expression in queries() if title.endswith("Headroom of the device")
    ]
    names = "graphtide_device_headroom_ratio", "graphtide_device_present"
    for with_device, shown in ((0, 0), (1, 0.3)):
        values = {"one": (0.3 * with_device, with_device), "none": (0, 0)}
        given = [
            {"series": f'{name}{{instance="{instance}"}}', "values": f"{value}x5"}
            for instance, both in values.items()
            for name, value in zip(names, both, strict=True)
        ]
        play(
            tmp_path,
            given,
            [{"expr": asked, "eval_time": "3m", "exp_samples": [{"value": shown, "labels": "{}"}]}],
        )


def play(folder: Path, given: list[dict[str, Any]], checks: list[dict[str, Any]]) -> None:
    """Have promtool ask queries of series that have a value a minute, with our rules."""
    played = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": checks}],
    }
    (folder / "played.yml").write_text(json.dumps(played))  # which is YAML, too
    command = [tool("promtool"), "test", "rules", str(folder / "played.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
