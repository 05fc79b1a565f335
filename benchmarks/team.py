"""What sharing work among threads costs, and from when it pays.

    python benchmarks/team.py [--threads 1,2,4] [--busy 0,2] [--json FILE]

Sums over blocks of an array that fit into a cache: work that does nothing but compute. A row is so much of it,
given in microseconds of one thread, in 64 pieces: how long it takes on one thread and shared by so many, the
speed-up, the processor time that sharing costs beside the work (all threads), and what OpenMP takes for the same
(``nb.prange`` over the threads, each drawing pieces from a counter). All are medians. ``--busy``: with as many
busy processes beside it, which nobody should have to wait for longer than the cores that they take.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
from report import machine, save, show

from graphtide.gpma.atomics import fetch_add
from graphtide.gpma.team import Team, share

PIECES = 64
BLOCK = 1 << 12
REPEATS = 300

_jit = nb.njit(nogil=True, error_model="numpy")


@_jit
def _sums(thread, values, turns, cursor, out):  # type: ignore[no-untyped-def]
    while True:
        piece = fetch_add(cursor, 0, np.int64(1))
        if piece >= out.size:
            return
        total = 0.0
        at = piece
        for _ in range(turns):
            total += values[at & (BLOCK - 1)]
            at += 7
        out[piece] = total


@_jit
def _on_team(crew, values, turns, cursor, out):  # type: ignore[no-untyped-def]
    cursor[0] = 0
    share(crew, _sums, (values, turns, cursor, out))


@nb.njit(nogil=True, error_model="numpy", parallel=True)
def _on_openmp(threads, values, turns, cursor, out):  # type: ignore[no-untyped-def]
    cursor[0] = 0
    for thread in nb.prange(threads):
        _sums(thread, values, turns, cursor, out)


def _spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@contextmanager
def _busy(processes: int) -> Iterator[None]:
    """So many processes that want a core each."""
    beside = [multiprocessing.get_context("spawn").Process(target=_spin, args=(600,)) for _ in range(processes)]
    for process in beside:
        process.start()
    time.sleep(0.5 if processes else 0)
    try:
        yield
    finally:
        for process in beside:
            process.kill()
            process.join()


def _measured(work: Callable[..., object], *arguments: Any) -> tuple[float, float, float]:
    """Microseconds of the median and of the 99th percentile, and mean processor time."""
    work(*arguments)
    spans = []
    cpu = time.process_time()
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work(*arguments)
        spans.append(1e6 * (time.perf_counter() - begun))
    cpu = 1e6 * (time.process_time() - cpu) / REPEATS
    return statistics.median(spans), sorted(spans)[REPEATS * 99 // 100], cpu


def rows(threads: list[int], busy: int) -> Iterator[dict[str, Any]]:
    values, cursor, out = np.random.default_rng(1).random(BLOCK), np.zeros(1, np.int64), np.zeros(PIECES)
    alone = Team(1)
    with _busy(busy):
        for turns in (20, 200, 2_000, 20_000, 200_000):
            arguments = values, turns, cursor, out
            one, one_p99, one_cpu = _measured(_on_team, alone.crew(), *arguments)
            for count in threads:
                team = Team(count)
                span, p99, cpu = _measured(_on_team, team.crew(), *arguments)
                team.close()
                openmp = _measured(_on_openmp, count, *arguments)
                yield {
                    "busy beside": busy,
                    "threads": count,
                    "one thread us": one,
                    "p99 of it": one_p99,
                    "shared us": span,
                    "p99 us": p99,
                    "speed-up": one / span,
                    "more cpu us": cpu - one_cpu,
                    "openmp us": openmp[0],
                    "openmp p99": openmp[1],
                }


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default=",".join(str(n) for n in (2, 4, 8, 16, 32, 64) if n <= cores))
    parser.add_argument("--busy", default=f"0,{max(1, cores // 2)}", help="busy processes beside")
    parser.add_argument("--json", type=Path, help="write everything here, too")
    options = parser.parse_args()
    found = []
    for busy in map(int, options.busy.split(",")):
        table = list(rows([int(n) for n in options.threads.split(",")], busy))
        show(f"{PIECES} pieces, {busy} busy processes beside", table)
        found += table
    save(options.json, {"machine": machine(), "rows": found})


if __name__ == "__main__":
    main()
