"""The benchmark of the device array runs; what it measures here means nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).resolve().parents[1] / "benchmarks" / "storage_device.py"


def test_every_table_has_rows(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("storage_device", FILE)
    assert spec is not None and spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    monkeypatch.setattr(benchmark, "COPY_WORDS", 1 << 10)
    monkeypatch.setattr(benchmark, "STREAM_BATCH", 100)
    monkeypatch.setattr(benchmark, "ROWS_READ", 100)
    result = benchmark.run([7], [20, 200], 3, 1)
    for part in ("updates", "phases", "streams", "growth", "scans", "whole"):
        assert result[part], part
    assert {row["batch"] for row in result["updates"]} == {20, 200}
    for row in result["updates"]:
        assert row["min us"] <= row["us"] <= row["max us"]
