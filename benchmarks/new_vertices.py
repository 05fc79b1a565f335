"""New vertices: the pauses while everything that has an entry for each vertex grows, stage by stage.

    python benchmarks/new_vertices.py [--begin N] [--end N] [--batch N] [--programs NAME,..] [--runs N]
        [--json FILE]

A graph of ``begin`` vertices, with index, programs and published results in shared memory, gets batches in which
each vertex is new and has two edges to earlier ones, until there are ``end``. "Worst / median" is that of the
stage's batches, in processor time of the thread that works, which other processes disturb little; the first ten
are left out. The stage ``all`` adds up the others, batch by batch. Several runs are of the same batches: each
counts with the least of its times, for what it took in one of them alone was none of its doing.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from report import machine, save, show

from graphtide.compute import registry
from graphtide.compute.engine import Engine
from graphtide.daemon.serve.results import ProgramPublication, Publication, ResultsWriter
from graphtide.daemon.serve.shared_memory import allocate
from graphtide.gpma.edges import EdgeBatch, EdgeList, Op, pack
from graphtide.gpma.host import array as pma
from graphtide.gpma.index.vertex_index import VertexIndex, warm_up
from graphtide.partition.graph import Graph

BEGIN, END, BATCH = 1_000_000, 4_000_000, 1000
PROGRAMS = "bfs,components,pagerank"
GIVEN: dict[str, dict[str, Any]] = {"bfs": {"source": 0}, "ppr": {"sources": 0}, "sspaths": {"source": 0}}
STAGES = ("index", "apply", "compute", "publish")
FIRST = 10
SEED = 1


class Bench:
    """Everything that an epoch goes through, on one thread."""

    def __init__(self, n: int, programs: list[str]) -> None:
        self.rng = np.random.default_rng(SEED)
        self.index = VertexIndex.create("int", allocate)
        self.graph = Graph(weighted=False)
        self.index.insert(np.arange(n))
        keys = np.unique(self.edges(1, n))
        self.graph.load(EdgeList(keys), n)
        made = [registry.make_program(kind, None, GIVEN.get(kind, {}), self.index) for kind in programs]
        self.engine = Engine(self.graph, made, lambda ids: self.index.lookup(np.array(ids)), threads=1)
        self.engine.start()
        self.results = ResultsWriter()
        for _ in range(2):  # into either copy
            self.publish({}, whole=True)

    def edges(self, begin: int, end: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Two edges of each of these vertices to earlier ones."""
        vertices = np.repeat(np.arange(begin, end), 2)
        return pack((self.rng.random(vertices.size) * vertices).astype(np.uint32), vertices)

    def publish(self, changed: dict[str, Any], *, whole: bool) -> None:
        programs = {
            program.id: ProgramPublication(
                program.kind,
                program.columns(),
                dict.fromkeys(program.columns()) if whole else changed[program.id],
                program.scalars(),
            )
            for program in self.engine.programs
        }
        alive = None if whole else np.empty(0, np.uint32)
        n = self.graph.n_vertices
        self.results.publish(Publication((1, 1), n, {}, programs, alive=self.graph.alive, alive_changed=alive))

    def close(self) -> None:
        self.engine.close()
        self.graph.close()

    def batch(self, end: int) -> list[float]:
        """Milliseconds of processor time by stage."""
        keys = self.edges(self.graph.n_vertices, end)
        ids = np.arange(self.graph.n_vertices, end)
        edges, runs = EdgeBatch(keys, np.full(keys.size, Op.INSERT, np.uint8)), list[Any]()
        took = [timed(lambda: self.index.insert(ids))]
        changes: list[Any] = []
        took.append(timed(lambda: changes.append(self.graph.apply(edges, end))))
        took.append(timed(lambda: runs.extend(self.engine.refresh(changes[0]))))
        changed = {run.id: run.refresh.changed for run in runs}
        took.append(timed(lambda: self.publish(changed, whole=False)))
        return took


def timed(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return (time.thread_time() - begun) * 1e3


def measured(begin: int, end: int, batch: int, kinds: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Milliseconds of one run: float64[batches, stages and all of them]."""
    bench = Bench(begin, kinds)
    gc.collect()
    gc.disable()
    ends = [min(end, first + batch) for first in range(begin, end, batch)]
    took = np.array([bench.batch(end) for end in ends])[FIRST:]
    gc.enable()
    bench.close()
    return np.column_stack([took, took.sum(axis=1)])


def run(
    begin: int = BEGIN, end: int = END, batch: int = BATCH, programs: str = PROGRAMS, runs: int = 1
) -> dict[str, Any]:
    """Measure; a row for each stage, and one for all of them."""
    pma.warm_up()
    warm_up("int")
    kinds = programs.split(",")
    registry.warm_up(directed=True, weighted=False, programs=[(kind, GIVEN.get(kind, {})) for kind in kinds])
    took = np.min([measured(begin, end, batch, kinds) for _ in range(runs)], axis=0)
    rows = []
    for stage, times in zip((*STAGES, "all"), took.T, strict=True):
        median = float(np.median(times))
        quantiles = {"p99": float(np.quantile(times, 0.99)), "p99.9": float(np.quantile(times, 0.999))}
        rows.append(
            {
                "stage": stage,
                "ms median": median,
                **quantiles,
                "worst": times.max(),
                "worst / median": times.max() / median,
                "over 3 medians": int((times > 3 * median).sum()),
            }
        )
    return {"machine": machine(), "seed": SEED, "runs": runs, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--begin", type=int, default=BEGIN)
    parser.add_argument("--end", type=int, default=END)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--programs", default=PROGRAMS)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = run(arguments.begin, arguments.end, arguments.batch, arguments.programs, arguments.runs)
    show(f"{arguments.begin:,} to {arguments.end:,} vertices, {arguments.batch} a batch", result["rows"])
    save(arguments.json, result)


if __name__ == "__main__":
    main()
