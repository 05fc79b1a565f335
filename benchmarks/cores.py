"""What more cores bring: storage, index and programs on one core, two, four ..., beside what memory does then.

    python benchmarks/cores.py [--scales 20,22,24] [--threads 1,2,4,8,16] [--updates 100,10000,1e6] [--out FILE]
    python benchmarks/cores.py --scales 22 --threads 1,2,16 --programs pagerank --rounds 9 --seconds 540

For every graph and number of threads a process of its own may use as many cores and no more (one of each pair that
shares a physical core first). RMAT graphs have 20 pairs for each of 2^scale possible vertices, three quarters of
them loaded; updates are four upserts of any pairs to one deletion. In this order:

- *memory*: a column of 1 GiB (``--memory``) is read from front to back; 8-byte entries are gathered at random
  places, of a column with an entry for each possible vertex, and of all of it. The best of three;
- *index new*: the vertex index is filled with all ids; *index* then looks up both ends of each update's edge;
- *load*, *export*, *apply*: out-rows and in-rows, with weights if a program needs them;
- each program from scratch (*fresh*), and brought up to date after each batch (*refresh*), one after the other;
  *all*: the programs side by side, on the same cores.

Figures are medians of so many rounds after a first one; *busy* is the processor time of the whole process in that
time, in cores; *x* the speed-up over the first number of threads in the same run. Rows are printed and appended to
the file of ``--out`` (tab-separated), as they come; ``--seconds`` ends the run by then, in mid-measurement.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rmat_pool
from cores_measured import Measured, Row
from isolated import Isolated, TooLong
from report import machine, save, show
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from graphtide.compute import registry
from graphtide.daemon import kernels
from graphtide.gpma.cores import usable_cores

FIGURES = ("ms", "GB/s", "M/s")
COLUMNS = ("scale", "threads", "what", "updates", *FIGURES, "x", "busy", "edges read", "iterations")


class OutOfTime(Exception):
    """The seconds of the run are over."""


class Report:
    """The rows, wherever they go, with their speed-ups."""

    def __init__(self, out: Path | None, say: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self._out = out
        self._say = say
        self._one: dict[tuple[Any, ...], float] = {}
        head = ", ".join(f"{name} {value}" for name, value in machine().items())
        self._say(head)
        if out is not None:
            out.write_text(f"# {head}\n" + "\t".join(COLUMNS) + "\n")

    def add(self, row: Row) -> None:
        figure = next(name for name in FIGURES if name in row)
        value = row[figure]
        first = self._one.setdefault((row["scale"], row["what"], row.get("updates")), value)
        row["x"] = first / value if figure == "ms" else value / first
        self.rows.append(row)
        of = f" {row['updates']:,}" if "updates" in row else ""
        busy = f", busy {row['busy']:.2f}" if "busy" in row else ""
        name = f"RMAT {row['scale']} on {row['threads']}: {row['what']}{of}"
        self._say(f"{name:48} {value:12,.4g} {figure:4} x {row['x']:.2f}{busy}")
        if self._out is not None:
            with self._out.open("a") as file:
                file.write("\t".join(_shown(row.get(name)) for name in COLUMNS) + "\n")

    def table(self, scale: int) -> None:
        """The figures of the first number of threads, and the speed-ups of the others."""
        lines: dict[tuple[Any, ...], Row] = {}
        of_scale = [row for row in self.rows if row["scale"] == scale]
        threads = list(dict.fromkeys(row["threads"] for row in of_scale))
        for row in of_scale:
            name, updates = row["what"], row.get("updates")
            line = lines.setdefault(
                (name, updates), {"what": name, "updates": "" if updates is None else f"{updates:,}"}
            )
            figure = next(name for name in FIGURES if name in row)
            if row["threads"] == threads[0]:
                line |= {"unit": figure, f"on {threads[0]}": row[figure]}
                line |= {f"x on {count}": "" for count in threads[1:]}
            else:
                line[f"x on {row['threads']}"] = f"{row['x']:.2f}"
        show(f"RMAT {scale}", list(lines.values()))


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def ordered_cores() -> list[int]:
    """The cores that this process may use; of those that share a physical core the first before the others."""

    def turn(core: int) -> int:
        shared = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        try:
            parts = shared.read_text().replace(",", "-").strip().split("-")
        except OSError:
            return 0
        return 0 if core == min(map(int, parts)) else 1

    return sorted(os.sched_getaffinity(0), key=lambda core: (turn(core), core))


@contextmanager
def confined(cores: list[int]) -> Iterator[None]:
    """Processes that are started meanwhile may use these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Run:
    """One run over all graphs and numbers of threads."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._ends = time.monotonic() + options.seconds
        self._cores = ordered_cores()
        self.report = Report(
            options.out, lambda line: progress.console.print(line, highlight=False, soft_wrap=True)
        )

    def all(self) -> None:
        """Everything that fits into the time."""
        options = self._options
        steps = 4 + len(options.programs) + len(options.updates)
        task = self._progress.add_task("", total=len(options.scales) * len(options.threads) * steps)
        for scale in options.scales:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                self._progress.update(task, description=f"making RMAT {scale}")
                pool = rmat_pool.make(Path(folder), scale, options.seed)
                del pool  # mapped
                try:
                    for threads in options.threads:
                        self._progress.update(task, description=f"RMAT {scale} on {threads}")
                        self._measure(scale, threads, Path(folder), lambda: self._progress.advance(task))
                finally:
                    self.report.table(scale)

    def _measure(self, scale: int, threads: int, folder: Path, advance: Callable[[], None]) -> None:
        options = self._options
        measured = Isolated(Measured, folder, options.programs, options.rounds, options.seed)
        steps = [("memory", 1 << scale, options.memory), ("index",), ("load",)]
        steps += [("start", id) for id in (*options.programs, "all")]
        steps += [("epochs", updates) for updates in options.updates]
        try:
            with confined(self._cores[:threads]):
                for step in steps:
                    left = self._ends - time.monotonic()
                    if left <= 0:
                        raise OutOfTime
                    for row in measured.call(*step, seconds=left):
                        self.report.add({"scale": scale, "threads": threads, **row})
                    advance()
        except TooLong:
            raise OutOfTime from None
        finally:
            measured.close()


def parse() -> argparse.Namespace:
    cores = usable_cores()
    numbers = lambda text: [int(float(part)) for part in text.split(",")]  # noqa: E731 - argparse shows its name
    numbers.__name__ = "comma-separated whole numbers"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--scales", type=numbers, default=[20])
    powers = [1 << k for k in range(8) if 1 << k <= cores]
    add("--threads", type=numbers, default=powers, help="powers of two up to the cores that there are")
    add("--updates", type=numbers, default=[10**k for k in range(2, 7)], help="of a batch (1e2 to 1e6)")
    add("--programs", type=lambda text: text.split(","), default=["bfs", "sssp", "components", "pagerank"])
    add("--rounds", type=int, default=5)
    add("--memory", type=int, default=1024, help="MiB of the column that memory is measured on, a power of two")
    add("--seconds", type=float, default=86_400.0, help="stop by then (a day)")
    add("--seed", type=int, default=1)
    add("--folder", type=Path, help="where graphs are kept meanwhile, 30 bytes an edge (the system's)")
    add("--out", type=Path, help="append rows to this file as they come, tab-separated")
    add("--json", type=Path, help="write all rows to this file at the end")
    options = parser.parse_args()
    if max(options.threads) > cores:
        parser.error(f"--threads {max(options.threads)}: this process may use {cores} cores")
    return options


def compile_kernels(programs: list[str]) -> None:
    """Have all kernels in the cache, compiled side by side where they are not."""
    weighted = any(registry.program_class(kind).needs_weights for kind in programs)
    least = [item for item in registry.least_programs(weighted=weighted) if item[0] in programs]
    kernels.prepare(kernels.Needs(True, weighted, "int", least, []), threading.Event(), lambda progress: None)


def main() -> None:
    options = parse()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True) as progress:
        run = Run(options, progress)
        compile_kernels(options.programs)
        try:
            run.all()
        except OutOfTime:
            progress.console.print(f"stopped after {options.seconds:g} s: the rest was not measured")
    parameters = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    save(options.json, {"machine": machine(), "parameters": parameters, "rows": run.report.rows})


if __name__ == "__main__":
    main()
