"""Two checkouts in turns: what a change did to a benchmark, on a machine whose speed changes by the minute.

    python benchmarks/in_turns.py ../before engine.py --scale 18 --batch 100,10000
    python benchmarks/in_turns.py --rounds 5 --figures 'ms$' ../before paths.py --scale 18

The benchmark of the other checkout and this one's take turns, each run in a process of its own, and the first
to run changes from round to round. For every figure that they save: the median of either, their ratio (this
one's by the other's), and how far the runs of one version lie apart (the largest by the smallest): a ratio
within that says nothing. Figures are named by the words, scale and batch size of their row; ``--figures`` chooses
some by name.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from report import machine, save, show

HERE = Path(__file__).resolve().parents[1]
SKIPPED = ("machine", "parameters")
Figures = dict[str, list[float]]


def run(checkout: Path, benchmark: str, arguments: list[str]) -> dict[str, float]:
    """The figures of one run, by name."""
    links = checkout / ".links"
    links.mkdir(exist_ok=True)
    if not (links / "graphtide").exists():
        (links / "graphtide").symlink_to("..")
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "saved.json"
        command = [sys.executable, str(checkout / "benchmarks" / benchmark), *arguments, "--json", str(saved)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(links), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        result = json.loads(saved.read_text())
    return dict(figures({name: value for name, value in result.items() if name not in SKIPPED}, ""))


def figures(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Every fractional number in there, named by the way to it."""
    if isinstance(value, dict):
        words = [str(item) for key, item in value.items() if isinstance(item, str) or key in ("batch", "scale")]
        name = " ".join([name, *(word for word in words if "%" not in word)]).strip()
        for key, item in value.items():
            yield from figures(item, f"{name} {key}".strip() if key != "rows" else name)
    elif isinstance(value, list):
        for item in value:
            yield from figures(item, name)
    elif isinstance(value, float):
        yield name, value


def apart(runs: list[float]) -> float:
    """How many times the smallest the largest is."""
    return max(runs) / min(runs) if min(runs) > 0 else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--figures", default="ms$|M updates/s", help="those whose name this pattern finds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("benchmark", help="the name of a file in benchmarks/")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="handed on to it")
    given = parser.parse_args()
    versions = {"other": given.other.resolve(), "this": HERE}
    found: dict[str, Figures] = {name: {} for name in versions}
    for turn in range(given.rounds):
        order = list(versions) if turn % 2 == 0 else list(versions)[::-1]
        for version in order:
            for name, value in run(versions[version], given.benchmark, given.arguments).items():
                found[version].setdefault(name, []).append(value)
    rows: list[dict[str, Any]] = []
    for name, others in found["other"].items():
        own = found["this"].get(name, [])
        if own and re.search(given.figures, name):
            before, now = statistics.median(others), statistics.median(own)
            ratio = now / before if before else float("nan")
            rows.append({"figure": name, "other": before, "this": now, "this / other": ratio})
            rows[-1] |= {"apart, other": apart(others), "apart, this": apart(own)}
    if not rows:
        sys.exit(f"no figure of {given.benchmark} is found by {given.figures!r}")
    show(f"{given.benchmark} {' '.join(given.arguments)}, {given.rounds} rounds in turns", rows)
    save(given.json, {"machine": machine(), "benchmark": [given.benchmark, *given.arguments], "rows": rows})


if __name__ == "__main__":
    main()
