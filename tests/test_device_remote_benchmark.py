"""The benchmark of rows on the host runs and finds no wrong value; what it measures here means nothing."""

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
def test_every_share_has_rows(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    set_threads(monkeypatch, FEW_THREADS)
    names, path = ["bfs", "components"], tmp_path / "table.json"
    try:
        benchmark = importlib.import_module("device_remote")
        rows = benchmark.run(6, [0.0, 0.5, 1.0], ["hash", "longest"], names, [1, 20], 1, path)
    finally:
        for name in ("device_remote", "device_graph"):
            sys.modules.pop(name, None)
    places = [(row["order"], round(row["share"])) for row in rows if row["program"] == "bfs" and not row["batch"]]
    assert places[:2] == [("(host)", 1), ("hash", 0)] and len(places) == 5
    assert any(0.3 < row["share"] < 0.7 for row in rows if row["order"] == "longest")
    assert [row["wrong"] for row in rows if "wrong" in row] == [0] * 2 * 4
    assert {(row["batch"], row["program"]) for row in rows} == {
        *((n, name) for n in (0, 1, 20) for name in names),
        *((n, "apply") for n in (1, 20)),
    }
    assert json.loads(path.read_text())["rows"] == json.loads(json.dumps(rows))
