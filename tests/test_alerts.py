"""The alert rules about devices and placement, played by promtool on series that are made up."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_dashboards import RULES, tool

pytestmark = pytest.mark.prometheus

ALERTS = ("GraphtideDeviceLost", "GraphtideDeviceMemoryShort", "GraphtideImbalance", "GraphtideMovesFail")
RUNNING = {'graphtide_stage{stage="running"}': "1x200", 'graphtide_stage{stage="stopping"}': "0x200"}
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
    ],
)
def test_alerts_about_devices_and_placement(
    tmp_path: Path, series: dict[str, str], at: str, fires: str | None
) -> None:
    given = [{"series": named(name), "values": values} for name, values in series.items()]
    checks: list[dict[str, Any]] = []
    for alert in ALERTS:
        # What an alert says is not compared: its labels are.
        expression = f'count(ALERTS{{alertname="{alert}", alertstate="firing", instance="one"}})'
        expected = [{"value": 1, "labels": "{}"}] if alert == fires else []
        checks.append({"expr": expression, "eval_time": at, "exp_samples": expected})
    played = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": checks}],
    }
    (tmp_path / "played.yml").write_text(json.dumps(played))  # which is YAML, too
    command = [tool("promtool"), "test", "rules", str(tmp_path / "played.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
