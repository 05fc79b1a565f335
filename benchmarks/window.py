"""What it costs that edges expire by themselves, beside a producer that sends the deletes.

    python benchmarks/window.py [--edges 1000000] [--batch 10000] [--threads 1] [--grown 20000000] [--json FILE]

Inserts of distinct random pairs, as many live ones as ``--edges``: each lasts that many inserts. In turns, one
epoch of each: the updates of a producer who sends inserts and deletes, and the inserts alone, to a graph with a
window. Times are of the processor, for each insert; the graph's own work is in both. Without programs: they see
the same changes.

And how long the stream pauses where more and more edges come: the table of their times alone, to ``--grown``
edges, with the longest time that one batch took.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from report import machine, save, show

from graphtide.daemon.engine import edge_times
from graphtide.daemon.engine.edge_times import EdgeTimes
from graphtide.daemon.engine.window import TimeWindow
from graphtide.daemon.ingest.dense import DenseBatch
from graphtide.daemon.ingest.prepared import Prepared, one_batch
from graphtide.daemon.records.event_time import EventState
from graphtide.gpma.edges import EdgeBatch, Op
from graphtide.gpma.host import array as pma
from graphtide.partition.graph import Graph

NONE = np.empty(0, np.int64)


class Producer:
    """Inserts, and the deletes of what is as old as there are edges."""

    def __init__(self, n_vertices: int, threads: int) -> None:
        self.graph = Graph(weighted=False, threads=threads)
        self._n_vertices = n_vertices

    def epoch(self, keys: np.ndarray, gone: np.ndarray) -> None:
        ops = np.repeat(np.array([Op.DELETE, Op.INSERT], np.uint8), [gone.size, keys.size])
        self.graph.apply(EdgeBatch(np.concatenate([gone, keys]), ops), self._n_vertices)


class Windowed:
    """The inserts alone, one a millisecond."""

    def __init__(self, n_vertices: int, threads: int, length: int) -> None:
        self.graph = Graph(weighted=False, threads=threads)
        self.window = TimeWindow(self.graph, length, isolated=False)
        self._n_vertices = n_vertices
        self._now = 0

    def epoch(self, keys: np.ndarray) -> None:
        times = np.arange(self._now, self._now + keys.size)
        self._now += keys.size
        batch = DenseBatch(EdgeBatch(keys, np.full(keys.size, Op.INSERT, np.uint8)), times=times)
        event = EventState(time_ms=self._now)
        came = Prepared([batch], keys.size, self._n_vertices, {}, NONE, NONE, event=event)
        expiring = self.window.expiring(1 << 28, {}, 0)
        taken = [came] if expiring is None else [expiring, came]
        edges, _ = one_batch(taken, weighted=False)
        self.window.make_room(edges)
        self.window.note(taken, edges, None, self.graph.apply(edges, self._n_vertices))


def growing(n_edges: int, n_batch: int) -> dict[str, float]:
    """Distinct edges, none of which goes, and the times of the batches that they come in."""
    table, taken = EdgeTimes(), list[float]()
    keys = np.random.default_rng(2).permutation(n_edges).astype(np.uint64)
    inserts = np.ones(n_batch, np.uint8)
    for begin in range(0, n_edges - n_batch + 1, n_batch):
        started = time.perf_counter()
        table.ensure(n_batch)
        table.note(keys[begin : begin + n_batch], inserts, np.full(n_batch, begin))
        taken.append(time.perf_counter() - started)
    return {
        "edges": n_edges,
        "batch": n_batch,
        "all, ns an edge": sum(taken) / len(table) * 1e9,
        "median batch, ms": float(np.median(taken)) * 1e3,
        "longest batch, ms": max(taken) * 1e3,
        "bytes an edge": table.memory_bytes() / len(table),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--grown", type=int, default=20_000_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    pma.warm_up()
    edge_times.warm_up()
    n_vertices = max(given.edges // 8, 1024)
    rng = np.random.default_rng(1)
    ends = rng.integers(0, n_vertices, (2, 3 * given.edges), np.uint64)
    keys = rng.permutation(np.unique((ends[0] << np.uint64(32)) | ends[1]))
    producer = Producer(n_vertices, given.threads)
    windowed = Windowed(n_vertices, given.threads, given.edges)
    seconds: dict[str, list[float]] = {"producer": [], "window": []}
    for begin in range(0, keys.size - given.batch, given.batch):
        fresh = keys[begin : begin + given.batch]
        gone = keys[max(begin - given.edges, 0) : max(begin + given.batch - given.edges, 0)]
        started = time.process_time()
        producer.epoch(fresh, gone)
        between = time.process_time()
        windowed.epoch(fresh)
        if begin >= given.edges + given.batch:
            seconds["producer"].append(between - started)
            seconds["window"].append(time.process_time() - between)
    median = {name: float(np.median(taken)) / given.batch * 1e9 for name, taken in seconds.items()}
    rows = [
        {
            "edges": given.edges,
            "batch": given.batch,
            "producer, ns an insert": median["producer"],
            "window, ns an insert": median["window"],
            "ratio": median["window"] / median["producer"],
            "window, bytes an edge": windowed.window.memory_bytes() / len(windowed.window._times),
            "graph, bytes an edge": sum(windowed.graph.memory_bytes().values()) / windowed.graph.n_edges,
        }
    ]
    show("Edges that expire", rows)
    grown = [growing(given.grown, given.batch)]
    show("A table of times that grows", grown)
    save(given.json, {"machine": machine(), "rows": rows, "grown": grown})
    producer.graph.close()
    windowed.graph.close()


if __name__ == "__main__":
    main()
