"""The benchmark of cores: the graphs that it makes, and a small run, whole and cut off."""

from __future__ import annotations

import csv
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def rmat_pool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("rmat_pool")


def test_a_pool_is_an_rmat_graph_numbered_by_first_appearance(rmat_pool: ModuleType, tmp_path: Path) -> None:
    pool = rmat_pool.make(tmp_path, 12, 1)
    pairs = np.asarray(pool.pairs)
    ends = np.stack([pairs >> np.uint64(32), pairs & np.uint64(0xFFFF_FFFF)], axis=1).ravel().astype(np.int64)
    _, first = np.unique(ends, return_index=True)
    assert (np.diff(first) > 0).all() and first.size == pool.n_vertices == ends.max() + 1
    assert pool.loaded.tolist() == sorted(set(pairs[: pairs.size * 3 // 4].tolist()))
    # The hub takes a share of (0.57 + 0.19)^12 of the sources, and of the destinations.
    hub = np.bincount(ends).max() / pairs.size
    assert hub == pytest.approx(2 * 0.76**12, rel=0.1)
    again = tmp_path / "again"
    again.mkdir()
    assert np.array_equal(rmat_pool.make(again, 12, 1).pairs, pairs)
    assert not np.array_equal(rmat_pool.make(again, 12, 2).pairs, pairs)


def test_a_fifth_of_the_updates_deletes_what_was_loaded(rmat_pool: ModuleType, tmp_path: Path) -> None:
    pool = rmat_pool.make(tmp_path, 10, 1)
    keys, ops = pool.updates(20_000, np.random.default_rng(1))
    assert np.count_nonzero(ops == 0) / 20_000 == pytest.approx(0.2, abs=0.02)
    assert np.isin(keys[ops == 0], pool.loaded).all() and not np.isin(keys[ops == 1], pool.loaded).all()


def run(tmp_path: Path, *arguments: str) -> tuple[list[dict[str, str]], str]:
    out = tmp_path / "rows.tsv"
    small = ["--scales", "10", "--memory", "16", "--out", str(out)]
    command = [sys.executable, str(BENCHMARKS / "cores.py"), *small, *arguments]
    done = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True)
    lines = [line for line in out.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines, delimiter="\t")), done.stdout


@pytest.mark.sample(among="a small run of a benchmark")
def test_a_small_run(tmp_path: Path) -> None:
    threads = [1, 2][: len(os.sched_getaffinity(0))]
    saved = tmp_path / "saved.json"
    counts = ",".join(map(str, threads))
    chosen = ["--programs", "bfs,components", "--updates", "10,100", "--threads", counts, "--rounds", "1"]
    rows, shown = run(tmp_path, *chosen, "--json", str(saved))
    once = ["memory read", "memory gather of 1,024", "memory gather of 0.015625 GiB"]
    once += ["index new", "load", "export", "bfs fresh", "components fresh", "all fresh"]
    each = ["index", "apply", "bfs refresh", "components refresh", "all refresh"]
    assert [(int(row["threads"]), row["what"]) for row in rows] == [
        (count, what) for count in threads for what in once + each + each
    ]
    assert [row["updates"] for row in rows if row["what"] == "apply"] == ["10", "100"] * len(threads)
    assert all(float(row["ms"] or row["GB/s"] or row["M/s"]) > 0 and float(row["x"]) > 0 for row in rows)
    assert {row["x"] for row in rows if row["threads"] == "1"} == {"1"}
    assert len(json.loads(saved.read_text())["rows"]) == len(rows)
    assert "components fresh" in shown and "stopped" not in shown


@pytest.mark.sample(among="a small run of a benchmark")
def test_a_run_out_of_time_ends_in_mid_measurement(tmp_path: Path) -> None:
    endless = ["--rounds", "1000000000", "--seconds", "0.5"]
    rows, shown = run(tmp_path, "--threads", "1", "--programs", "bfs", *endless)
    assert "bfs fresh" not in [row["what"] for row in rows] and "stopped after 0.5 s" in shown
