"""The benchmark of policies runs; what it measures on graphs as small as here means nothing."""

from __future__ import annotations

import importlib
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from graphtide.partition.policies import POLICIES

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def partition(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The benchmark, which lets few epochs pass before it counts."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("partition")
    monkeypatch.setattr(module, "SETTLING", 20)
    yield module
    for name in ("partition", "real_streams", "report"):
        sys.modules.pop(name, None)


def test_every_policy_has_its_bytes(partition: ModuleType, tmp_path: Path) -> None:
    pairs = np.random.default_rng(1).integers(0, 500, (2_000, 2))
    with lzma.open(tmp_path / "collegemsg.events.tsv.xz", "wt") as lines:
        lines.writelines(f"I\t{src}\t{dst}\t-\t-\n" for src, dst in pairs)
    rows = partition.run(tmp_path, ["nowhere", "collegemsg"], 9, 10, 1)
    assert [row["epochs"] for row in rows] == [10] * 5
    read = [row for row in rows if row["hash KB/epoch"] > 0]
    assert read and any(row["cost / hash"] > 0 for row in read)
    for row in read:
        assert {f"{policy} / hash" for policy in POLICIES if policy != "hash"} <= row.keys()
        assert 0 <= row["hindsight / hash"] < 1
