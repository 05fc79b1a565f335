"""What the order log costs an epoch: where no order can matter, and where it must be durable before it is seen.

    python benchmarks/order_log.py [--partitions 4] [--epochs 500] [--folder DIR] [--json FILE]

The baseline is the disk alone: an append of as many bytes, and ``fdatasync``. The stream is as a busy one: every
epoch moves every partition. All are timed in turns.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from report import machine, save, show

from graphtide.daemon.records.stream import Partition, Passed
from graphtide.daemon.state.order_log import OrderLog

Epoch = Callable[[int], object]


def in_turns(works: dict[str, Epoch], epochs: int) -> list[dict[str, str | float]]:
    """Median and 99th percentile of so many epochs of each, in microseconds."""
    seconds = {name: list[float]() for name in works}
    for number in range(epochs):
        for name, work in works.items():
            started = time.perf_counter()
            work(number)
            seconds[name].append(time.perf_counter() - started)
    rows: list[dict[str, str | float]] = []
    for name, taken in seconds.items():
        p50, p99 = (np.percentile(taken, (50, 99)) * 1e6).tolist()
        rows.append({"epochs": name, "p50 us": p50, "p99 us": p99})
    return rows


def logged(folder: Path, partitions: int, stack: ExitStack, *, together: bool) -> Epoch:
    log = OrderLog(folder)
    stack.callback(log.close)
    log.open({})
    edges = [Partition("edges", number) for number in range(partitions)]

    def epoch(number: int) -> None:
        passed = Passed(dict.fromkeys(edges, number + 1), together)
        log.record(dict.fromkeys(edges, number), [passed]).result()

    return epoch


def disk_alone(path: Path, partitions: int, stack: ExitStack) -> Epoch:
    file = stack.enter_context(path.open("wb", buffering=0))

    def append(_: int) -> None:
        file.write(bytes(20 + 6 * partitions))
        os.fdatasync(file.fileno())

    return append


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="where to write (default: the temporary folder)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    partitions, epochs = arguments.partitions, arguments.epochs
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name, ExitStack() as stack:
        folder = Path(name)
        works = {
            "one partition": logged(folder / "one", 1, stack, together=True),
            "no vertex deleted": logged(folder / "free", partitions, stack, together=False),
            "vertices deleted": logged(folder / "synced", partitions, stack, together=True),
            "(the disk alone)": disk_alone(folder / "disk", partitions, stack),
        }
        rows = in_turns(works, epochs)
    show(f"the order log, {partitions} partitions, {epochs} epochs", rows)
    save(arguments.json, {"machine": machine(), "partitions": partitions, "rows": rows})


if __name__ == "__main__":
    main()
