"""What a checkpoint costs the stream: how long the engine stands still, and how epochs run beside one.

    python benchmarks/checkpoint.py [--scale 20] [--batch 100000] [--rounds 5] [--folder DIR] [--json FILE]

The graph and the updates are those of ``end_to_end.py``; BFS, components and PageRank are kept. The baseline is
the plain way: to stand still and copy edges and program states. Epochs are timed in turns: alone, while edges are
copied, and while the checkpoint is merged and written.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from engine import Bench
from report import machine, save, show

from graphtide.compute import registry
from graphtide.daemon.records.position import Position
from graphtide.daemon.records.stream import DeadLetters
from graphtide.daemon.state.checkpoint import CheckpointStore
from graphtide.daemon.state.checkpointer import Checkpointer
from graphtide.daemon.state.requested import RequestedCheckpoints
from graphtide.daemon.tools.generate import Churn, Updates
from graphtide.gpma.host import array as pma
from graphtide.gpma.host import snapshot
from graphtide.ops.metrics import Metrics


class Watched(Metrics):
    """Metrics that remember what a checkpoint cost, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped: list[float] = []
        self.copied: list[float] = []
        self.written: list[float] = []

    def stage(self, name: str, seconds: float) -> None:
        if name == "checkpoint":
            self.stopped.append(seconds)

    def checkpoint_copied(self, seconds: float) -> None:
        self.copied.append(seconds)

    def checkpoint(self, *, seconds: float, size_bytes: int) -> None:
        self.written.append(seconds)


class Run:
    """A loaded graph, its programs, and a checkpointer that begins when it is told to."""

    def __init__(self, churn: Churn, folder: Path) -> None:
        self.bench = Bench(churn, churn.settles_at)
        self.bench.engine.start()
        self.position = Position(1)
        self.metrics = Watched()
        self.store = CheckpointStore(folder)
        programs = self.bench.engine.programs
        self.checkpoints = Checkpointer(
            graph=self.bench.graph,
            index=self.bench.index,
            programs=lambda: programs,
            program_specs={program.id: {} for program in programs},
            position=self.position,
            identity={},
            dead_letters=cast(DeadLetters, SimpleNamespace(flush=lambda: None)),
            store=self.store,
            metrics=self.metrics,
            interval_s=0,
            on_checkpoint=lambda _: None,
            requested=RequestedCheckpoints(folder),
        )

    def stand_still(self) -> float:
        """Seconds to copy edges and program states in one go."""
        started = time.perf_counter()
        held: list[Any] = [self.bench.graph.export()]
        held += [column.copy() for program in self.bench.engine.programs for column in program.state().values()]
        return time.perf_counter() - started

    def epoch(self, updates: Updates) -> float:
        started = time.perf_counter()
        self.bench.epoch(updates)
        self.position.number += 1
        return time.perf_counter() - started

    def beside(self, churn: Churn, batch: int) -> tuple[list[float], list[float]]:
        """Epochs beside one checkpoint: (while edges are copied, while it is merged and written)."""
        copying, writing = list[float](), list[float]()
        done = len(self.metrics.written)
        self.checkpoints.step()
        while len(self.metrics.written) == done:
            phase = copying if len(self.metrics.copied) == done else writing
            updates = churn.next(batch)
            phase.append(self.epoch(updates))
            if len(self.metrics.copied) == done:
                self.checkpoints.step()
        return copying, writing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=20, help="2^scale vertices, about 15 edges each (20)")
    parser.add_argument("--batch", type=int, default=100_000, help="updates of an epoch (100,000)")
    parser.add_argument("--rounds", type=int, default=5, help="checkpoints (5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where they are written; its disk counts (a temporary one)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    pma.warm_up()
    snapshot.warm_up()
    registry.warm_up(directed=True, weighted=True)
    churn = Churn(scale=options.scale, pool=20_000_000 * 2**options.scale // 2**20, seed=options.seed)
    alone, copying, writing, still = list[float](), list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        run = Run(churn, Path(folder))
        run.epoch(churn.next(options.batch))
        for _ in range(options.rounds):
            still.append(run.stand_still())
            alone += [run.epoch(churn.next(options.batch)) for _ in range(3)]
            copied, written = run.beside(churn, options.batch)
            copying += copied
            writing += written
        run.store.close()
    rows = [
        {"what": what, "times": len(seconds), "median ms": statistics.median(seconds) * 1e3}
        | {"longest ms": max(seconds) * 1e3}
        for what, seconds in (
            ("engine stands still: copying everything", still),
            ("engine stands still: now", run.metrics.stopped),
            ("edges copied beside epochs", run.metrics.copied),
            ("merged and written beside epochs", run.metrics.written),
            ("epoch alone", alone),
            ("epoch beside the copy", copying),
            ("epoch beside the writing", writing),
        )
        if seconds
    ]
    show(f"checkpoints of {run.bench.graph.n_edges:,} edges, epochs of {options.batch:,} updates", rows)
    parameters = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    save(options.json, {"machine": machine(), "parameters": parameters, "rows": rows})


if __name__ == "__main__":
    main()
