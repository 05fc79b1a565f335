"""The benchmark of a limited device runs and finds no wrong value; what it measures here means nothing."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from walk_twins import FEW_THREADS, set_threads

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.sample(among="a small run of a benchmark")
def test_rows_leave_a_limited_device(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    set_threads(monkeypatch, FEW_THREADS)
    names, path = ["bfs", "components", "pagerank"], tmp_path / "table.json"
    try:
        benchmark = importlib.import_module("capped")
        rows = benchmark.run(10, [0.5, 0.2], names, [1, 20], 1, path)
        policies = ["hash", "cost"]
        by_policy = benchmark.run(
            8, [0.5], ["bfs"], [20], 1, None, on_host_alone=False, reckoned=True, policies=policies
        )
    finally:
        for name in ("capped", "device_remote", "device_graph"):
            sys.modules.pop(name, None)
    shares = [row["share"] for row in rows if row["program"] == "bfs" and not row["batch"]]
    assert shares == ["(host)", 1.0, 0.5, 0.2]
    on_host = {row["share"]: row["on host"] for row in rows if not row["batch"]}
    assert on_host[1.0] == 0 < min(on_host[0.5], on_host[0.2]), (
        "so small a graph takes less than what is beside it"
    )
    assert [row["wrong"] for row in rows if "wrong" in row] == [0] * len(names) * 3
    assert not any(row.get("home") for row in rows), "programs stay on the device"
    assert [row["policy"] for row in by_policy if row["program"] == "bfs" and row["batch"]] == policies
    assert json.loads(path.read_text())["rows"] == json.loads(json.dumps(rows))
    assert emulated_cupy.get_default_memory_pool().get_limit() == 0
