"""The benchmark of a graph with a device beside the host runs; what it measures here means nothing."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def test_every_table_has_rows(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    try:
        result = importlib.import_module("sides").run(7, [1, 20, 300], 2, 1)
    finally:
        for name in ("sides", "device_graph"):
            sys.modules.pop(name, None)
    assert [row["batch"] for row in result["batches"]] == [1, 20, 300]
    assert all(
        row[step] > 0 for row in result["batches"] for step in ("prepare", "launch", "finish", "host alone")
    )
    assert all(row["bytes"] > 0 for row in result["bytes"])
