"""The benchmark of homes runs, and keeps its graph as large as it is; what it measures here means nothing."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from walk_twins import FEW_THREADS, set_threads

from graphtide.gpma.edges import Op

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.sample(among="a small run of a benchmark")
@pytest.mark.parametrize("directed", [True, False])
def test_all_choices_take_the_same_batches(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, directed: bool
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    set_threads(monkeypatch, FEW_THREADS)
    homes = importlib.import_module("homes")
    monkeypatch.setattr(homes, "EPOCHS_MIN", 2)
    made = homes.edges_of("7", Path("none"), 1)
    half = np.uint64(32)
    edges = homes.Edges(
        "small",
        directed,
        made.n_vertices,
        made.keys[made.keys >> half < made.keys << half >> half],
    )
    there = set(edges.keys.tolist())
    for _, batch in zip(range(9), edges.batches(10, 1), strict=False):
        gone, back = (set(batch.keys[batch.ops == op].tolist()) for op in (Op.DELETE, Op.INSERT))
        assert gone <= there and not back & there and len(gone) + len(back) == len(batch)
        there = (there - gone) | back
        assert edges.keys.size - len(there) <= 5
    rows = homes.run(edges, [4, 1 << 20], 0.0, 1)
    assert [row["batch"] for row in rows] == [4, 1 << 20]
    assert all(np.isfinite(row[f"{mode} ms"]) for row in rows for mode in ("host", "device", "auto"))
    (whole,) = homes.run(edges, [4], 0.0, 1, whole=True, instances=2)
    assert all(whole[f"{mode} from"] <= whole[f"{mode} ms"] <= whole[f"{mode} to"] for mode in ("host", "auto"))
    assert all(0 < whole[f"{mode} applying"] < whole[f"{mode} ms"] for mode in ("host", "device", "auto"))
    assert homes.edges_of("mathoverflow", Path("none"), 1) is None
