"""The packed memory array by itself: updates a second, where they spend their time, scans, and memory.

    python benchmarks/storage.py                              RMAT scale 20 and everything else, some minutes
    python benchmarks/storage.py --quick                      a small graph, about a minute
    python benchmarks/storage.py --only updates --scales 18,22 --batches 1000,10000000 --graphs weights-both
    python benchmarks/storage.py --only shapes,memory --json storage.json
    python benchmarks/storage.py --side device                the same on a GPU

Every rate stands beside a baseline from the same run: a batch sorted and merged into a new CSR by NumPy, a
CSR of the same edges for scans, a plain memory copy for bandwidth. Batches are timed one by one: the median,
and how many times longer slow ones take (growing and shrinking are in there): one in a hundred, one in a thousand,
the worst. "worst CPU": the same by the time that the calling thread was on a core. "floor": the same of memory
copies of the batch's length, for as long, which is what the machine does to any work. "share of copy": the bytes
that a batch cannot avoid to move (itself, its report, each leaf that it falls into, read and written) in its time,
against the copy. "stages": the kernels' shares of the second batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import storage_host as host
from report import machine, save, show
from rich.progress import Progress
from storage_scans import scan
from storage_streams import (
    DATA,
    Stream,
    read_events,
    replay_stream,
    replays,
    rmat_graph,
    rmat_stream,
    shape_names,
    shape_stream,
)

from graphtide.gpma.edges import Keys
from graphtide.gpma.host import array as pma
from graphtide.gpma.index import vertex_index

SECTIONS = ("updates", "shapes", "replay", "scans", "memory", "index")
KINDS = ("insert", "delete", "mixed")
ONLY_IN_JSON = ("batches", "GB/s", "slot bytes", "stages by kernel")
Rows = list[dict[str, Any]]


class Run:
    """One run of the host's benchmarks: what to measure, and a progress bar while it does."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self.options = options
        self.progress = progress
        self.copy = host.copy_bandwidth()
        self.results: dict[str, Any] = {"copy GB/s": self.copy}
        self._graphs: dict[int, Keys] = {}

    def keys(self, scale: int) -> Keys:
        """The graph of that scale; made once, and only one is kept."""
        if scale not in self._graphs:
            self._graphs = {scale: rmat_graph(scale, self.options.seed)}
        return self._graphs[scale]

    def updates(self) -> Rows:
        """Inserts, deletes and mixed batches on half loaded RMAT graphs."""
        rows: Rows = []
        cases = [
            (scale, kind, batch)
            for scale in self.options.scales
            for kind in KINDS
            for batch in self.options.batches
        ]
        for scale, kind, batch in self.progress.track(cases, description="updates"):
            stream = rmat_stream(self.keys(scale), scale, kind, batch, self.options.seed)
            rows += self._measured({"stream": f"RMAT {scale}, {kind}"}, stream, batch)
        return rows

    def shapes(self) -> Rows:
        """Streams that fall where packed arrays hurt, on a graph of 2 M random edges (quick: 300,000)."""
        rows: Rows = []
        loaded = 300_000 if self.options.quick else 2_000_000
        cases = [
            (shape, batch) for shape in shape_names() for batch in self.options.batches if batch * 8 <= loaded
        ]
        for shape, batch in self.progress.track(cases, description="shapes"):
            stream = shape_stream(shape, loaded, batch, loaded, self.options.seed)
            rows += self._measured({"stream": shape}, stream, batch)
        return rows

    def replay(self) -> Rows:
        """Real streams in their order, from an empty graph on."""
        rows: Rows = []
        names = replays(self.options.data)
        if not names:
            self.progress.console.print(f"no streams in {self.options.data}: nothing to replay")
        for name in self.progress.track(names, description="replay"):
            n_vertices, events = read_events(self.options.data, name)
            for batch in self.options.batches:
                if batch * host.TIMED_MIN <= len(events):
                    rows += self._measured({"stream": name}, replay_stream(n_vertices, events, batch), batch)
        return rows

    def scans(self) -> Rows:
        """Reading all rows, after updates have left the leaves unevenly filled."""
        rows: Rows = []
        for scale in self.progress.track(self.options.scales, description="scans"):
            batch = self.keys(scale).size // 20
            stream = rmat_stream(self.keys(scale), scale, "mixed", batch, self.options.seed)
            with host.loaded_graph("weights", stream) as graph:
                for updates in stream.batches():
                    graph.apply(updates, stream.n_vertices)
                found = scan(graph.out_rows(), graph.export(), stream.n_vertices, self.options.repeats)
            rows += [{"graph": f"RMAT {scale}", **row} for row in found]
        return rows

    def memory(self) -> Rows:
        """Bytes per directed edge while a graph grows in a hundred steps, and under the worst shapes."""
        rows: Rows = []
        scale = self.options.scales[0]
        keys = self.keys(scale)
        step = max(keys.size // 100, 1)
        streams = {f"RMAT {scale}": rmat_stream(keys, scale, "insert", step, self.options.seed)}
        loaded = 300_000 if self.options.quick else 2_000_000
        for shape in shape_names():
            streams[shape] = shape_stream(shape, loaded, loaded // 50, loaded, self.options.seed)
        cases = [(name, kind) for name in streams for kind in self.options.graphs]
        points: dict[str, Rows] = {}
        for name, kind in self.progress.track(cases, description="memory"):
            stream = streams[name]
            points[f"{name}, {kind}"] = found = host.memory_over(kind, stream, len(stream.loaded) // 2)
            each = [point["B/edge"] for point in found]
            worst = max(found, key=lambda point: point["B/edge"])
            rows.append(
                {"stream": name, "graph": kind, "least B/edge": min(each), "mean B/edge": float(np.mean(each))}
                | {f"worst: {part}": value for part, value in worst.items()}
            )
        self.results["memory over time"] = points
        first = points[next(iter(points))]
        show(f"memory while it grows: {next(iter(points))}", first[:: max(1, len(first) // 12)])
        return rows

    def index(self) -> Rows:
        """External ids to dense vertices, in a cache and beyond every cache."""
        sizes = {"in cache": 1 << 14, "out of cache": 1 << (20 if self.options.quick else 22)}
        cases = [(kind, where) for kind in ("int", "string") for where in sizes]
        return [
            host.index_rows(kind, sizes[where], where)
            for kind, where in self.progress.track(cases, description="vertex index")
        ]

    def _measured(self, case: dict[str, Any], stream: Stream, batch: int) -> Rows:
        """One row for each way of storing; the ratio says how much faster than NumPy's rebuild of a CSR it is."""
        rebuild_s: float | None = None
        rows: Rows = []
        for kind in self.options.graphs:
            row = host.measure(kind, stream, batch, self.options.seconds, max(self.copy.values()))
            if row is None:
                continue
            if rebuild_s is None:
                rebuild_s = host.rebuild_seconds(stream)
            rows.append({**case, **row, "x NumPy CSR": rebuild_s * 1e3 / row["median ms"]})
        return rows


def run_host(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for, each part's table as soon as it is there."""
    pma.warm_up()
    for kind in ("int", "string"):
        vertex_index.warm_up(kind)  # type: ignore[arg-type]
    with Progress(transient=True) as progress:
        run = Run(options, progress)
        show("a plain memory copy, GB/s read and written", [run.copy])
        for section in options.only:
            work = getattr(run, section)
            rows = work()
            run.results[section] = rows
            shown = [{name: value for name, value in row.items() if name not in ONLY_IN_JSON} for row in rows]
            show(f"{section}: {work.__doc__.splitlines()[0]}", shown)
    return run.results


def run_device(options: argparse.Namespace) -> dict[str, Any]:
    """The same questions, answered by the array on the GPU."""
    try:
        from storage_device import run  # needs CuPy
    except ModuleNotFoundError as error:
        raise SystemExit(f"--side device: there is no module {error.name!r}") from error
    found: dict[str, Any] = run(options.scales, options.batches, options.repeats, options.seed)
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(float(part)) for part in text.split(",")]  # noqa: E731 - argparse shows its name
    numbers.__name__ = "comma-separated whole numbers"

    def names(allowed: Sequence[str]) -> Any:
        def chosen(text: str) -> list[str]:
            wrong = [part for part in text.split(",") if part not in allowed]
            if wrong:
                raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(allowed)}")
            return text.split(",")

        return chosen

    add = parser.add_argument
    add("--side", choices=("host", "device"), default="host", help="the processor's memory, or a GPU's (host)")
    add("--only", type=names(SECTIONS), default=list(SECTIONS), metavar="PARTS", help=f"of {', '.join(SECTIONS)}")
    add("--scales", type=numbers, help="RMAT graphs of 2^scale vertices and about 16 edges each: 18,20,22 (20)")
    add(
        "--batches", type=numbers, help="updates in a batch; those too large for a graph are left out (1e3 to 1e6)"
    )
    add(
        *("--graphs",),
        type=names(list(host.GRAPHS)),
        default=["weights", "weights-both"],
        metavar="KINDS",
        help="what is stored: keys or weights, -both for out- and in-rows (weights,weights-both)",
    )
    add("--seconds", type=float, help="time for each rate; more shows more of the rare slow batches (3)")
    add("--repeats", type=int, default=7, help="scans, and the device's batches: medians of so many (7)")
    add("--seed", type=int, default=1, help="the same seed makes the same graphs and streams (1)")
    add("--data", type=Path, default=DATA, help="the folder of real streams, NAME.events.tsv.xz")
    add("--json", type=Path, metavar="FILE", help="also write everything, machine included, to this file")
    add("--quick", action="store_true", help="scale 17, batches of 1e3 and 1e5: about a minute, rough figures")
    options = parser.parse_args(arguments)
    options.scales = options.scales or ([17] if options.quick else [20])
    options.batches = options.batches or ([1_000, 100_000] if options.quick else [10**k for k in range(3, 7)])
    options.seconds = options.seconds or (0.3 if options.quick else 3.0)
    return options


def main() -> None:
    options = parse()
    print(f"seed {options.seed}; " + ", ".join(f"{name} {value}" for name, value in machine().items()))
    results = run_host(options) if options.side == "host" else run_device(options)
    parameters = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    save(options.json, {"machine": machine(), "parameters": parameters, **results})


if __name__ == "__main__":
    main()
