"""Pictures of what benchmarks found, from the JSON that they save.

    python benchmarks/pictures.py end_to_end.json compute.json cores.json serve.json dashboards.json growth.json
        device_remote.json device_several.json [--out docs/pictures]

What a file holds is told by its contents: freshness against the rate of updates (``end_to_end.py``), what a
program takes for a batch beside other libraries (``compute.py``), how much sooner more threads are done
(``cores.py``), how long answers take beside ingest (``serve.py``), panels of the dashboards with a run's data
(``dashboards.py``), memory by edges (``growth.py``), programs on a device by where rows are
(``device_remote.py``), several of them in one go (``device.py --parts several``). Each picture is an SVG, named
by what it shows; its title says on how many cores or which device, and when.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import charts

PEERS = ("NetworKit", "NetworKit dyn.", "SciPy", "igraph")
Picture = tuple[str, str]
"""A name, and the SVG."""


def pictures(found: dict[str, Any]) -> Iterator[Picture]:
    """Those of one file.

    Raises:
        ValueError: it is of no benchmark whose pictures are known.
    """
    about = _about(found["machine"]) if "machine" in found else ""
    rows = found.get("rows", [])
    if "dashboards" in found:
        for name, panels in found["dashboards"].items():
            title = f"{name}: {found['parameters']['seconds']:g} seconds of a real run{about}"
            yield f"dashboard-{name}", charts.dashboard(title, panels, found["parameters"]["seconds"])
    elif "several" in found:
        yield from _several(found["several"], f", scale {found['scale']}{about}")
    elif "incremental" in found:
        yield from _refreshes(found["incremental"], about)
    elif "requests" in found:
        yield from _answers(found["requests"], about)
    elif rows and "fresh p99 ms" in rows[0]:
        yield _freshness(rows, found.get("baseline", []), about)
    elif rows and {"phase", "bytes an edge"} <= rows[0].keys():
        yield _growth(rows, about)
    elif rows and {"share", "batch", "program"} <= rows[0].keys():
        yield from _by_share(rows, f", scale {found['scale']}{about}")
    elif rows and {"threads", "what"} <= rows[0].keys():
        yield from _threads(rows, about)
    else:
        raise ValueError("of no benchmark that has pictures")


def _about(machine: dict[str, Any]) -> str:
    where = machine["device"] if "device" in machine else f"{machine['cores']} cores"
    return f" ({where}, {machine['date']})"


def _growth(rows: list[dict[str, Any]], about: str) -> Picture:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        series.setdefault(row["phase"], []).append((row["edges"], row["bytes an edge"]))
    return "memory", charts.lines(f"Memory of the rows{about}", "edges", "bytes an edge", series)


def _by_share(rows: list[dict[str, Any]], about: str) -> Iterator[Picture]:
    its = [row for row in rows if row["order"] in ("(host)", "hash") and row["program"] != "apply"]
    for batch in sorted({row["batch"] for row in its}):
        series: dict[str, dict[str, float]] = {}
        for row in its:
            if row["batch"] == batch:
                share = f"{100 * row['share']:.0f}% on the host"
                name = "the host alone" if row["order"] == "(host)" else share
                series.setdefault(name, {})[row["program"]] = row["ms"]
        programs = list(dict.fromkeys(row["program"] for row in its))
        bars = {name: [took.get(program, 0.0) for program in programs] for name, took in series.items()}
        when = f"after {batch:,} updates" if batch else "from scratch"
        yield f"device {when}", charts.bars(f"Programs on a device, {when}{about}", "milliseconds", programs, bars)


def _several(rows: list[dict[str, Any]], about: str) -> Iterator[Picture]:
    for program in dict.fromkeys(row["program"] for row in rows):
        series: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if row["program"] == program:
                for way in ("in one go", "one after another"):
                    name = f"{way}, {row['batch']:,}"
                    series.setdefault(name, []).append((row["programs"], row[f"{way} ms"]))
        title = f"{program} after so many updates{about}"
        yield f"device several {program}", charts.lines(title, "programs", "milliseconds", series)


def _freshness(rows: list[dict[str, Any]], baseline: list[dict[str, Any]], about: str) -> Picture:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        source = str(row["stage"]).split("-")[-1]
        for percentile in ("p50", "p99"):
            name = f"{source}, {percentile}"
            series.setdefault(name, []).append((row["updates/s"], row[f"fresh {percentile} ms"]))
    if baseline:
        series["SciPy anew, p99"] = [(row["updates/s"], row["fresh p99 ms"]) for row in baseline]
    title = f"From a record to an answer that shows it{about}"
    return "freshness", charts.lines(title, "updates a second", "milliseconds", series)


def _refreshes(rows: list[dict[str, Any]], about: str) -> Iterator[Picture]:
    by_program: dict[tuple[str, str], list[tuple[int, dict[str, Any]]]] = {}
    for row in rows:
        batch = str(row["batch"]).replace(",", "")
        if batch.isdecimal():
            graph = row["graph"].partition(",")[0]  # without how many vertices and edges it has
            by_program.setdefault((graph, row["program"]), []).append((int(batch), row))
    for (graph, program), its in by_program.items():
        series = {"graphtide": [(batch, row["median ms"]) for batch, row in its]}
        for peer in PEERS:
            points = [
                (batch, row[peer] * row["median ms"])
                for batch, row in its
                if isinstance(row.get(peer), int | float)
            ]
            if points:
                series[peer] = points
        title = f"{program} after a batch, {graph}{about}"
        yield f"refresh {program} {graph}", charts.lines(title, "updates in a batch", "milliseconds", series)


def _threads(rows: list[dict[str, Any]], about: str) -> Iterator[Picture]:
    """Programs from scratch, and after batches of one size in a picture of its own each."""
    for scale in sorted({row["scale"] for row in rows}):
        its = [row for row in rows if row["scale"] == scale and row.get("ms")]
        title = f"scale {scale}{about}"
        if series := _speed_ups([row for row in its if row["what"].endswith(" fresh")]):
            shown = charts.lines(f"Times as fast as one thread from scratch, {title}", "threads", "", series)
            yield f"threads {scale}", shown
        refreshes = [row for row in its if row["what"].endswith(" refresh")]
        for updates in sorted({row["updates"] for row in refreshes}):
            if series := _speed_ups([row for row in refreshes if row["updates"] == updates]):
                of = f"Times as fast as one thread after {updates:,} updates, {title}"
                yield f"threads {scale} {updates}", charts.lines(of, "threads", "", series)


def _speed_ups(rows: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """By what was measured: (threads, times as fast as one), where one thread was measured, and others were."""
    took: dict[str, dict[int, float]] = {}
    for row in rows:
        took.setdefault(row["what"].rpartition(" ")[0], {})[row["threads"]] = row["ms"]
    return {
        name: [(threads, by[1] / ms) for threads, ms in sorted(by.items())]
        for name, by in took.items()
        if 1 in by and len(by) > 1
    }


def _answers(rows: list[dict[str, Any]], about: str) -> Iterator[Picture]:
    for door in [door for door in dict.fromkeys(row["door"] for row in rows) if door != "echo"]:
        its = [row for row in rows if (row["door"], row["request"]) == (door, "all")]
        names = [name for name in its[0] if re.fullmatch(r"p[\d.]+ ms", name)]
        series = {name.removesuffix(" ms"): [row[name] for row in its] for name in names}
        groups = [f"ingest: {row['ingest']}" for row in its]
        title = f"Answers over {'HTTP' if door == 'http' else 'the socket'}{about}"
        yield f"answers {door}", charts.bars(title, "milliseconds", groups, series)


def file_name(name: str) -> str:
    """Of a picture: letters and digits, in words."""
    return "-".join(re.findall(r"[a-z0-9]+", name.lower())) + ".svg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="what a benchmark saved with --json")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="the folder for pictures")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for file in arguments.files:
        try:
            for name, drawn in pictures(json.loads(file.read_text())):
                path = arguments.out / file_name(name)
                path.write_text(drawn)
                print(path)
        except ValueError as error:
            sys.exit(f"{file}: {error}")


if __name__ == "__main__":
    main()
