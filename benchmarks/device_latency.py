"""Where the time of a small refresh goes: a part of ``device.py``.

A refresh is taken apart around its kernel: what the host does before, the launch, the wait for the device's words,
at whose end the host's copy takes the list of changes, and what of these is told. The kernel alone is timed by
events, behind one that keeps the device busy until everything is queued. ``total us`` is of other refreshes, as
the product has them. Each is measured after the batch was applied, with the caches of host and device as that left
them, and once more with what the first run left there; what was mended already changes nothing.

The account beside it: ``floors``, what a kernel costs that only tells, launched in either way on one block or as
many as a refresh has; ``orders``, what a refresh costs that comes first after a batch, and second; ``phases``,
when each part of a kernel ended, from marks that it sets behind the list of changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from device_graph import Row, cupy
from device_rows import WARM_UP, Budget, Rows, clocked

from graphtide.compute.device import path_runs
from graphtide.compute.device.path_runs import Limits, PathRun, PathRuns
from graphtide.compute.paths.program import PathProgram
from graphtide.compute.steps import alone
from graphtide.gpma.device import module
from graphtide.gpma.device.constants import BLOCK_THREADS
from graphtide.gpma.device.waiting import Told

NO_SOURCES = np.empty(0, np.uint32)
# Some hundred microseconds: longer than the host takes to queue a kernel and two events.
BUSY_STEPS = 100_000
BUSY = r"""
extern "C" __global__ void busy(unsigned steps, unsigned* last)
{
    unsigned x = steps;
    while (steps--) x = 1664525u * x + 1013904223u;
    *last = x;
}
"""

KERNEL = Path(__file__).with_suffix(".cu")
# struct Telling there.
TELLING = np.dtype([("word", np.uint64), ("value", np.uint64), ("rest", np.uint64, 98)])
# Of the host's memory, and of the device's: more than caches hold.
FLUSHED_BYTES = 64 << 20
# enum Mark of mend.cu: what has ended; the first is when it began.
MARKS = ("begun", "looked", "classified", "settled", "taken", "pushed", "listed", "told", "cleared")

Parts = dict[str, float]


class Split:
    """Refreshes of one program, taken apart."""

    def __init__(
        self, rows: Rows, runs: PathRuns, kept: np.ndarray, limits: Callable[[], Limits], source: np.ndarray
    ) -> None:
        self.device, self.runs, self.kept = rows.device, runs, kept
        self.limits, self.source = limits, source
        self.busy = cupy.RawModule(code=BUSY, backend="nvrtc").get_function("busy")
        self.last = cupy.zeros(1, np.uint32)

    def whole(self) -> Parts:
        limits = self.limits()

        def mended() -> PathRun:
            run = self.runs.mend_at_once(self.device, NO_SOURCES, limits, self.kept)
            self.runs.taken(run)
            return run

        us, run = clocked(mended)
        self._start_over(run)
        return {"total us": us, "rounds": run.rounds, "written": run.logged}

    def by_parts(self) -> Parts:
        limits, runs, device = self.limits(), self.runs, self.device
        caller = runs._calls.caller
        cupy.cuda.Device().synchronize()
        times = [time.perf_counter()]
        # As the last one, which was ``whole``; but for the job, which Python fills in here.
        runs._say_run(device, device.report, NO_SOURCES, limits, 0)
        times.append(time.perf_counter())
        caller.launch()
        times.append(time.perf_counter())
        caller.wait()
        times.append(time.perf_counter())
        run = runs._ended()
        runs.taken(run)
        times.append(time.perf_counter())
        self._start_over(run)
        names = ("before us", "launch us", "wait us", "changes us")
        return {name: 1e6 * (end - begin) for name, begin, end in zip(names, times, times[1:], strict=False)}

    def on_device(self) -> Parts:
        limits = self.limits()
        stream = self.device.stream
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        steps = self.runs.mend(self.device, NO_SOURCES, limits, self.kept)
        call = next(steps)
        cupy.cuda.Device().synchronize()
        with stream:
            self.busy((1,), (1,), (np.uint32(BUSY_STEPS), self.last))
        begin.record(stream)
        call.begin(())
        end.record(stream)
        run = ended(steps)
        end.synchronize()
        self._start_over(run)
        self.whole()  # so that the next call is like the last one again
        return {"kernel us": 1e3 * cupy.cuda.get_elapsed_time(begin, end)}

    def _start_over(self, run: PathRun) -> None:
        if run.gave_up:
            alone(self.runs.start(self.device, self.source))
            self.kept[:] = self.runs.read(self.kept.size)
            self.whole()


def _splits(bench: Any, all_runs: dict[str, PathRuns]) -> dict[str, Split]:
    return {
        kind: Split(
            bench,
            runs,
            bench.kept[kind] if runs is bench.runs[kind] else runs.read(bench.graph.n_vertices).copy(),
            lambda runs=runs, kind=kind: bench.limits(runs, weighted=kind == "sssp"),
            bench.source,
        )
        for kind, runs in all_runs.items()
    }


def ended(steps: Iterator[Any]) -> PathRun:
    """What a run comes to that asks for nothing more."""
    try:
        next(steps)
    except StopIteration as end:
        run: PathRun = end.value
        return run
    raise AssertionError("one kernel is all that a refresh takes")


def split(bench: Any, batches: list[int], repeats: int, budget: Budget) -> list[Row]:
    """A row for each batch, program, and state of the caches; medians."""
    programs = _splits(bench, bench.runs)
    rows = []
    for n in batches:
        found: dict[tuple[str, str], dict[str, list[float]]] = {
            (kind, caches): {} for kind in programs for caches in ("after others", "again")
        }
        for step in budget.repeats(repeats):
            for kind, program in programs.items():
                for way in (program.whole, program.by_parts, program.on_device):
                    undone = bench.apply(bench.mixed(n))
                    for caches in ("after others", "again"):
                        for name, value in way().items():
                            if step >= WARM_UP:
                                found[kind, caches].setdefault(name, []).append(value)
                    for other in programs.values():
                        if other is not program:
                            other.whole()
                    bench.apply(undone)
                    for each in programs.values():
                        each.whole()
        for (kind, caches), values in found.items():
            medians = {name: median(taken) for name, taken in values.items()}
            rows.append({"batch": n, "program": kind, "caches": caches} | medians)
    return rows


# -- the account -------------------------------------------------------------------------------------------------


def floors(repeats: int) -> list[Row]:
    """Microseconds from the call to the flag of a kernel that only tells; medians."""
    stream = cupy.cuda.Stream(non_blocking=True)
    told = Told(1, stream)
    telling = np.zeros(1, TELLING)
    telling["word"] = told.address
    table = np.array([telling.ctypes.data], np.uint64)
    host, device = np.zeros(FLUSHED_BYTES, np.uint8), cupy.zeros(FLUSHED_BYTES, np.uint8)
    driver = cupy.cuda.driver
    all_blocks = int(cupy.cuda.Device().attributes["MultiProcessorCount"])
    number = 0
    rows = []
    for way in ("ordinary", "cooperative"):
        load = module.load_cooperative if way == "cooperative" else module.load
        function = load(KERNEL, weighted=False).get_function("tell_at_once")
        kernel = function.kernel.ptr

        def launch(blocks: int, way: str = way, kernel: int = kernel) -> None:
            how = (kernel, blocks, 1, 1, BLOCK_THREADS, 1, 1, 0, stream.ptr, table.ctypes.data)
            if way == "cooperative":
                driver.launchCooperativeKernel(*how)
            else:
                driver.launchKernel(*how, 0)

        for blocks in (1, all_blocks):
            times: dict[str, list[float]] = {}
            for step in range(WARM_UP + repeats):
                for caches in ("flushed", "again"):
                    if caches == "flushed":
                        host += 1
                        device += 1
                        cupy.cuda.Device().synchronize()
                    number += 1
                    telling["value"] = number << 32
                    begin = time.perf_counter()
                    launch(blocks)
                    launched = time.perf_counter()
                    told.wait(number)
                    end = time.perf_counter()
                    if step >= WARM_UP:
                        times.setdefault(f"launch, {caches} us", []).append(1e6 * (launched - begin))
                        times.setdefault(f"in all, {caches} us", []).append(1e6 * (end - begin))
            rows.append({"launch": way, "blocks": blocks} | {name: median(took) for name, took in times.items()})
    return rows


def orders(bench: Any, batches: list[int], repeats: int, budget: Budget) -> list[Row]:
    """Whole refreshes by their place after a batch; medians."""
    kinds = list(bench.runs)
    splits = _splits(bench, bench.runs)
    rows = []
    for n in batches:
        found: dict[tuple[str, str], list[float]] = {}
        for step in budget.repeats(2 * repeats):
            undone = bench.apply(bench.mixed(n))
            for place, kind in zip(("first", "second"), kinds if step % 2 else kinds[::-1], strict=True):
                us = splits[kind].whole()["total us"]
                if step >= WARM_UP:
                    found.setdefault((kind, place), []).append(us)
            bench.apply(undone)
            for each in splits.values():
                each.whole()
        rows += [
            {"batch": n, "program": kind, "comes": place, "us": median(took), "least us": min(took)}
            for (kind, place), took in sorted(found.items())
        ]
    return rows


def phases(
    bench: Any, kinds: Iterable[type[PathProgram]], batches: list[int], repeats: int, budget: Budget
) -> list[Row]:
    """Microseconds on the device until each part had ended, from the first thread's first step on; means
    over the runs that came there, first after a batch (NaN: none did).
    """
    with _marks():
        marked = {kind.kind: bench.runs_of(kind) for kind in kinds}
        for runs in marked.values():
            alone(runs.start(bench.device, bench.source))
        splits = _splits(bench, marked)
        for split in splits.values():
            split.whole()  # compiles
    rows = []
    for n in batches:
        found: dict[str, dict[str, list[float]]] = {kind: {} for kind in marked}
        for step in budget.repeats(2 * repeats):
            for kind, runs in marked.items():
                undone = bench.apply(bench.mixed(n))
                values = splits[kind].whole() | _marked(runs)
                if step >= WARM_UP:
                    for name, value in values.items():
                        found[kind].setdefault(name, []).append(value)
                for other in splits.values():
                    if other is not splits[kind]:
                        other.whole()
                bench.apply(undone)
                for each in splits.values():
                    each.whole()
        names = ("total us", "rounds", "written", *(f"{name} us" for name in MARKS[1:]))
        rows += [
            {"batch": n, "program": kind} | {name: mean(values.get(name, [math.nan])) for name in names}
            for kind, values in found.items()
        ]
    return rows


@contextmanager
def _marks() -> Iterator[None]:
    """Runs that are made meanwhile set marks."""
    before = dict(path_runs.SOURCES)
    for name in ("settle", "trim", "few"):
        source = before[name]
        path_runs.SOURCES[name] = source._replace(macros=(*source.macros, "-DMARKS=1"))
    try:
        yield
    finally:
        path_runs.SOURCES.update(before)


def _marked(runs: PathRuns) -> Parts:
    """The marks of the last run, as far as it came by them."""
    assert runs._vertices is not None
    sequence, at = runs._vertices.changes[-len(MARKS) :].T.astype(np.int64)
    last = sequence[0]
    return {f"{name} us": float(at[k] - at[0]) / 1e3 for k, name in enumerate(MARKS) if k and sequence[k] == last}
