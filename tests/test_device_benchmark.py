"""The benchmark of programs on a device, and the history for sanitizers, run and find no wrong value.

What is measured here means nothing.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
from walk_twins import FEW_THREADS, set_threads

from graphtide.partition import behind

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
PARTS = (
    "device_rows",
    "device_components",
    "device_counts",
    "device_latency",
    "device_ranks",
    "device_ppr",
    "device_several",
    "device_timeline",
    "device_exact",
)


@pytest.mark.sample(among="a small run of a benchmark")
def test_every_part_has_rows(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    set_threads(monkeypatch, FEW_THREADS)
    monkeypatch.setattr(behind, "GATHER_S", 0.01)  # these epochs are over before more has gathered
    try:
        benchmark = importlib.import_module("device")
        for name in (*PARTS, "device"):
            monkeypatch.setattr(importlib.import_module(name), "WARM_UP", 1)
        monkeypatch.setattr(benchmark, "HUBS", (3,))
        monkeypatch.setattr(importlib.import_module("device_several"), "PROGRAMS", {"ppr": (1, 3), "bfs": (1, 2)})
        monkeypatch.setattr(importlib.import_module("device_exact"), "ROUNDS", 2)
        parts = list(benchmark.PARTS)
        result = benchmark.run(8, parts, [1, 30], repeats=1, roots=2, seconds=60, some_scales=[6, 7])
        times = benchmark.timelines(8, [5, 300], 2)
        followed = benchmark.timelines(8, [3000], 2, follows=True)
        owned = benchmark.timelines(8, [300], 2, share=0.3)
    finally:
        for name in ("device", "device_graph", *PARTS):
            sys.modules.pop(name, None)
    for part in parts:
        assert result[part], part
    assert [row["wrong"] for row in result["host"]] == [0] * 4
    by_scale = [(row["scale"], row["batch"], row["wrong"]) for row in result["scales"]]
    assert by_scale == [(scale, batch, 0) for scale in (6, 7) for batch in (1, 1, 30, 30)]
    for part in ("counts", "pagerank", "ppr", *benchmark.TWINS):
        assert [(row["batch"], row["wrong"]) for row in result[part]] == [(0, 0), (1, 0), (30, 0)]
    rows = [(row["program"], row["batch"], row["programs"], row["wrong"]) for row in result["several"]]
    ran = [("ppr", 1), ("ppr", 3), ("bfs", 1), ("bfs", 2)]
    assert sorted(rows) == sorted((kind, batch, n, 0) for kind, n in ran for batch in (1, 30))
    for batch in (5, 300):
        what = {row["what"]: row for row in times["timeline"] if row["batch"] == batch}
        assert all(row["begins us"] <= row["ends us"] for row in what.values())
        assert {"index", "apply both arrays", "bfs", "pagerank: kernel", "publish"} <= what.keys()
        assert what["index"]["begins us"] < 0 < what["publish"]["begins us"] < what["epoch"]["ends us"]
    assert ("host rows' thread", "host: write") in {(row["where"], row["what"]) for row in followed["timeline"]}
    assert {"host: write", "pick its own", "apply both arrays"} <= {row["what"] for row in owned["timeline"]}
    assert [row["batch"] for row in owned["both"]] == [300]
    assert all(0 <= row["both us"] <= min(row["host us"], row["device us"]) for row in owned["both"])
    printed = capsys.readouterr().out
    assert printed.count("{'bfs': 0, 'sssp': 0}") == 2
    assert "wrong components after refreshes: 0\n" in printed


def test_the_history_that_sanitizers_run(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    set_threads(monkeypatch, FEW_THREADS)
    try:
        history = importlib.import_module("device_history")
        monkeypatch.setattr(history, "BATCHES", (2000, 1, 300))
        monkeypatch.setattr(importlib.import_module("device_exact"), "ROUNDS", 2)
        history.run(1)
    finally:
        for name in (
            "device_history",
            "device_exact",
            "device_ppr",
            "device_ranks",
            "device_rows",
            "device_graph",
        ):
            sys.modules.pop(name, None)
