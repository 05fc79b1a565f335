"""Pictures of benchmarks: from small files, and where on a logarithmic axis a value stands."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS, DOCS = ROOT / "benchmarks", ROOT / "docs"
SVG = "{http://www.w3.org/2000/svg}"
MACHINE = {"cores": 16, "date": "2026-11-23"}
DEVICE = {"device": "one device", "date": "2026-11-23"}


@pytest.fixture
def charts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("charts")


def drawn(text: str) -> dict[str, list[Any]]:
    """What there is in a picture by its tag."""
    found: dict[str, list[Any]] = {}
    for item in ElementTree.fromstring(text).iter():
        found.setdefault(item.tag.removeprefix(SVG), []).append(item)
    return found


def words(text: str) -> list[str]:
    return [item.text or "" for item in drawn(text)["text"]]


def test_points_stand_where_their_logarithms_are(charts: ModuleType) -> None:
    text = charts.lines("a < b", "x", "y", {"one": [(100, 10), (1, 1), (10, 0)], "two": [(10, float("inf"))]})
    found = drawn(text)
    first, second = found["polyline"]
    points = [tuple(map(float, point.split(","))) for point in first.get("points").split()]
    assert points == [
        (charts.LEFT, charts.HEIGHT - charts.BOTTOM),
        (charts.WIDTH - charts.RIGHT, charts.TOP),
    ], "in ascending order, without what cannot be shown"
    assert second.get("points") == "" and len(found["circle"]) == 2
    assert {"a < b", "x", "y", "one", "two", "1", "10", "100"} <= {*words(text)}
    axis = charts.Axis([3, 70], 0, 100)
    assert axis.ticks == [1, 10, 100] and axis.at(10) == 50
    with pytest.raises(ValueError, match="nothing to be shown"):
        charts.lines("", "", "", {"one": [(0, 1)]})


PANELS = [
    {"title": "Stream", "place": {"x": 0, "y": 0, "w": 24, "h": 1}, "unit": None, "series": None},
    {
        "title": "Rates",
        "place": {"x": 0, "y": 1, "w": 12, "h": 8},
        "unit": "ops",
        "series": {f"series {n} <&>": [(0.0, float("nan")), (0.0, 0.0), (60.0, 10.0 * n)] for n in range(1, 9)},
    },
    {"title": "Empty", "place": {"x": 12, "y": 1, "w": 12, "h": 8}, "unit": "short", "series": {}},
]


def test_panels_stand_at_their_places_with_lines_over_time(charts: ModuleType) -> None:
    text = charts.dashboard("d", PANELS, 60.0)
    found = drawn(text)
    assert {"Stream", "Rates [ops]", "Empty", "no data", "and 2 more", "80", "0"} <= {*words(text)}
    assert len(found["polyline"]) == 8
    first, last = (
        [float(point.split(",")[1]) for point in line.get("points").split()] for line in found["polyline"][::-7]
    )
    assert len(first) == 2 and first[0] == last[0] > first[1] > last[1], "from 0, what is no number left out"
    xs = [float(point.split(",")[0]) for point in found["polyline"][0].get("points").split()]
    assert 0 < xs[0] < xs[1] < 12 * charts.CELL[0]


def test_bars_stand_in_groups(charts: ModuleType) -> None:
    found = drawn(charts.bars("t", "ms", ["g", "h"], {"one": [1, 100], "two": [10, float("nan")]}))
    heights = [float(bar.get("height")) for bar in found["rect"][1:4]]
    full = charts.HEIGHT - charts.BOTTOM - charts.TOP
    assert heights == [0, full / 2, full], "the value that is none has no bar"


def test_the_command_makes_a_picture_of_each_kind(tmp_path: Path) -> None:
    requests = [
        {"ingest": name, "door": door, "request": kind, "p50 ms": 0.3, "p99 ms": 1.0, "p99.9 ms": 5.0}
        for name in ("none", "full")
        for door in ("socket", "http")
        for kind in ("all", "get")
    ]
    row = {"stage": "01-spool", "updates/s": 1e4, "fresh p50 ms": 3.0, "fresh p99 ms": 9.0}
    refresh = {"graph": "RMAT 18, 7 vertices", "program": "bfs", "median ms": 2.0, "igraph": 50.0, "SciPy": ">900"}
    threads = [
        {"scale": 18, "threads": n, "what": "bfs refresh", "updates": 100, "ms": 8.0 / n} for n in (1, 2, 4)
    ]
    growing = [
        {"phase": phase, "edges": n, "bytes an edge": 30.0} for phase in ("grows", "goes") for n in (10, 20)
    ]
    by_share = [
        {"order": order, "share": share, "batch": batch, "program": program, "ms": 1.0 + share}
        for order, share in (("(host)", 1.0), ("hash", 0.0), ("hash", 0.5), ("longest", 0.5))
        for batch in (0, 10_000)
        for program in ("bfs", "apply", "pagerank")
    ]
    several = [
        {"program": "ppr", "batch": 100, "programs": n, "in one go ms": 1.0, "one after another ms": n}
        for n in (1, 32)
    ]
    files = {
        "serve": {"machine": MACHINE, "requests": requests},
        "end": {"machine": MACHINE, "rows": [row, {**row, "updates/s": 1e5}], "baseline": [row]},
        "compute": {"incremental": [{**refresh, "batch": batch} for batch in ("1", "10,000", "1 + 1 vertices")]},
        "cores": {"machine": MACHINE, "rows": threads},
        "growth": {"machine": MACHINE, "rows": growing},
        "remote": {"machine": DEVICE, "scale": 9, "rows": by_share},
        "several": {"machine": DEVICE, "scale": 9, "several": several},
        "dash": {"machine": MACHINE, "parameters": {"seconds": 60.0}, "dashboards": {"overview": PANELS}},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    out = tmp_path / "pictures"
    command = [sys.executable, BENCHMARKS / "pictures.py", *(tmp_path / f"{name}.json" for name in files)]
    subprocess.run([*map(str, command), "--out", str(out)], check=True, timeout=60, capture_output=True)
    texts = {path.name: path.read_text() for path in out.iterdir()}
    assert {*texts} == {
        *("answers-socket.svg", "answers-http.svg", "freshness.svg"),
        *("refresh-bfs-rmat-18.svg", "threads-18-100.svg", "dashboard-overview.svg"),
        *("memory.svg", "device-from-scratch.svg", "device-after-10-000-updates.svg", "device-several-ppr.svg"),
    }
    assert {"grows", "goes"} <= {*words(texts["memory.svg"])}
    by_rows = words(texts["device-after-10-000-updates.svg"])
    assert {"the host alone", "0% on the host", "50% on the host", "bfs", "pagerank"} <= {*by_rows}
    assert "apply" not in by_rows and len(drawn(texts["device-from-scratch.svg"])["rect"]) == 1 + 6 + 3
    assert "ppr after so many updates, scale 9 (one device, 2026-11-23)" in words(texts["device-several-ppr.svg"])
    assert {"in one go, 100", "one after another, 100"} <= {*words(texts["device-several-ppr.svg"])}
    assert len(drawn(texts["answers-http.svg"])["rect"]) == 1 + 6 + 3, "of all requests together"
    assert {"spool, p50", "spool, p99", "SciPy anew, p99"} <= {*words(texts["freshness.svg"])}
    assert "From a record to an answer that shows it (16 cores, 2026-11-23)" in words(texts["freshness.svg"])
    beside = words(texts["refresh-bfs-rmat-18.svg"])
    assert "igraph" in beside and "SciPy" not in beside, "how long it took is not known"
    assert "bfs after a batch, RMAT 18" in beside
    assert len(drawn(texts["refresh-bfs-rmat-18.svg"])["circle"]) == 4
    assert "bfs" in words(texts["threads-18-100.svg"])
    assert "overview: 60 seconds of a real run (16 cores, 2026-11-23)" in words(texts["dashboard-overview.svg"])
    (tmp_path / "other.json").write_text("{}")
    done = subprocess.run(
        [*map(str, command[:2]), str(tmp_path / "other.json"), "--out", str(out)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "other.json: of no benchmark that has pictures" in done.stderr


def test_every_picture_is_shown_and_every_one_that_is_shown_is_there() -> None:
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))]
    pictures = {(page.parent / link).resolve() for page, link in links if link.endswith((".svg", ".png"))}
    assert [path for path in pictures if not path.is_file()] == []
    kept = {path for path in DOCS.rglob("*") if path.suffix in (".svg", ".png")}
    assert len(kept) > 10 and kept - pictures == set()


def test_documents_name_every_benchmark_that_has_pictures() -> None:
    whole = (BENCHMARKS / "pictures.py").read_text("utf-8").split('"""')[1]
    drawn = {*re.findall(r"``(\w+\.py)", whole)}
    (said,) = re.findall(r"^Pictures of what (.*?) save with `--json`", _benchmarks(), re.MULTILINE | re.DOTALL)
    assert {*re.findall(r"`(\w+\.py)", said)} == drawn and len(drawn) > 7
    for name in drawn:
        assert (BENCHMARKS / name).is_file(), name


def _benchmarks() -> str:
    return (DOCS / "benchmarks.md").read_text("utf-8")


def test_memory_is_measured_while_a_graph_grows_and_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    rows = importlib.import_module("growth").run(9, 4000, 500, 1)
    phases = {phase: [row["edges"] for row in rows if row["phase"] == phase] for phase in ("growing", "shrinking")}
    assert phases["growing"] == [500, 1000, 2000, 4000] and phases["shrinking"] == [2000, 1000, 500]
    assert all(8 < row["bytes an edge"] < 1000 and 0 < row["density"] <= 1 for row in rows)
