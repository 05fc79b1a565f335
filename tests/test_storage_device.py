"""The benchmark of the device array runs; what it measures here means nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
MODULES = ("device_graph", "storage_device_reads", "storage_device")


@pytest.fixture
def benchmark_modules(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleType]]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield [importlib.import_module(name) for name in MODULES]
    for name in MODULES:
        del sys.modules[name]


@pytest.mark.sample(among="a small run of a benchmark")
def test_every_table_has_rows(benchmark_modules: list[ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    graph, reads, benchmark = benchmark_modules
    monkeypatch.setattr(graph, "COPY_WORDS", 1 << 10)
    monkeypatch.setattr(reads, "ROWS_READ", 100)
    monkeypatch.setattr(benchmark, "STREAM_BATCH", 100)
    result = benchmark.run([7], [20, 200], 3, 1)
    for part in ("updates", "phases", "streams", "growth", "scans", "whole"):
        assert result[part], part
    assert {row["batch"] for row in result["updates"]} == {20, 200}
    for row in result["updates"]:
        assert row["min us"] <= row["us"] <= row["max us"]
