"""Where the time of a small refresh goes: a part of ``device.py``.

A refresh is taken apart where its run asks for its kernel (``compute/steps.py``): what the host does before, the
launch, the wait for the device's words, and the list of changes. The kernel alone is timed by events, behind one
that keeps the device busy until everything is queued. ``total us`` is of other refreshes, called as the product
calls them. Each is measured after the batch was applied, with the caches of the host and of the device as that
left them, and once more with what the first run left there; what was mended already changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
from device_graph import Row, cupy
from device_rows import WARM_UP, Budget, Rows, clocked

from graphtide.compute.device.path_runs import Limits, PathRun, PathRuns
from graphtide.compute.steps import alone

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

Parts = dict[str, float]


class Split:
    """Refreshes of one program, taken apart."""

    def __init__(self, rows: Rows, runs: PathRuns, limits: Callable[[], Limits], source: np.ndarray) -> None:
        self.device, self.runs, self.limits, self.source = rows.device, runs, limits, source
        self.busy = cupy.RawModule(code=BUSY, backend="nvrtc").get_function("busy")
        self.last = cupy.zeros(1, np.uint32)

    def whole(self) -> Parts:
        limits = self.limits()

        def mended() -> PathRun:
            run = alone(self.runs.mend(self.device, NO_SOURCES, limits))
            self.runs.changes(run)
            return run

        us, run = clocked(mended)
        self._start_over(run)
        return {"total us": us, "rounds": run.rounds, "written": run.logged}

    def by_steps(self) -> Parts:
        limits = self.limits()
        cupy.cuda.Device().synchronize()
        times = [time.perf_counter()]
        steps = self.runs.mend(self.device, NO_SOURCES, limits)
        call = next(steps)
        times.append(time.perf_counter())
        call.begin(())
        times.append(time.perf_counter())
        run = ended(steps)
        times.append(time.perf_counter())
        self.runs.changes(run)
        times.append(time.perf_counter())
        self._start_over(run)
        names = ("before us", "launch us", "wait us", "changes us")
        return {name: 1e6 * (end - begin) for name, begin, end in zip(names, times, times[1:], strict=False)}

    def on_device(self) -> Parts:
        limits = self.limits()
        stream = self.device.stream
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        steps = self.runs.mend(self.device, NO_SOURCES, limits)
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
        return {"kernel us": 1e3 * cupy.cuda.get_elapsed_time(begin, end)}

    def _start_over(self, run: PathRun) -> None:
        if run.gave_up:
            alone(self.runs.start(self.device, self.source))


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
    programs = {
        kind: Split(
            bench, runs, lambda runs=runs, kind=kind: bench.limits(runs, weighted=kind == "sssp"), bench.source
        )
        for kind, runs in bench.runs.items()
    }
    rows = []
    for n in batches:
        found: dict[tuple[str, str], dict[str, list[float]]] = {
            (kind, caches): {} for kind in programs for caches in ("after others", "again")
        }
        for step in budget.repeats(repeats):
            for kind, program in programs.items():
                for way in (program.whole, program.by_steps, program.on_device):
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
