"""The comparison of two checkouts, with a benchmark that takes no time."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
FAKE = """
import json, sys
from pathlib import Path
rows = [
    {"program": "bfs", "batch": 100, "ms": MS, "edges": 7, "stages": "read 40%"},
    {"program": "bfs", "batch": 1000, "ms": 8.0, "share": 0.5},
]
saved = {"machine": {"speed": 1.0}, "parameters": {"ms": 0.1}, "rows": rows, "fresh": {"bfs ms": 3.0}}
Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(saved))
"""


@pytest.fixture
def in_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("in_turns")
    for name in ("in_turns", "report"):
        del sys.modules[name]


def checkout(folder: Path, ms: str) -> Path:
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "benchmarks" / "fake.py").write_text(FAKE.replace("MS", ms))
    return folder


def test_every_figure_stands_beside_the_other_checkouts(
    in_turns: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, this, saved = checkout(tmp_path / "other", "2.0"), checkout(tmp_path / "this", "1.0"), tmp_path / "json"
    monkeypatch.setattr(in_turns, "HERE", this)
    monkeypatch.setattr(sys, "argv", ["in_turns.py", "--json", str(saved), str(other), "fake.py"])
    in_turns.main()
    rows = {row["figure"]: row for row in json.loads(saved.read_text())["rows"]}
    assert {name: row["this / other"] for name, row in rows.items()} == {
        "bfs 100 ms": 0.5,
        "bfs 1000 ms": 1.0,
        "fresh bfs ms": 1.0,
    }
    assert rows["bfs 100 ms"]["other"] == 2.0
    assert rows["bfs 100 ms"]["apart, this"] == 1.0


def test_what_a_benchmark_says_when_it_fails_is_shown(
    in_turns: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = checkout(tmp_path, "1 / 0")
    monkeypatch.setattr(sys, "argv", ["in_turns.py", str(broken), "fake.py"])
    with pytest.raises(SystemExit, match="ZeroDivisionError"):
        in_turns.main()
