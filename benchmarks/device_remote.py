"""Programs on a CUDA device that read rows on the host in place, by how many of the edges are there.

Half of an R-MAT graph, as in ``device.py``, is loaded into a graph whose rows have owners, with a share of the
edges on the host: of vertices chosen by hash, or the longest rows first. Programs start from scratch, and after
batches (four fifths insertions, a fifth deletions), which go on from each other and are the same for every share;
medians after a warm-up, results in the host's memory included. First the host's own programs do the same on a
graph of its own, on all cores. The table is written as it comes, and to ``--json`` after each row.

    python benchmarks/device_remote.py --scale 22 [--shares 0 0.25 0.5 0.75 1] [--orders hash longest] [--no-host]

``share``: of the arcs in both orientations. ``batch`` 0: from scratch. ``x device``, ``x host``: times of that
with all rows on the device, and of the host's program. ``GB/s``: over the bus, if what a program says to have
read is divided as the edges are, in whole slots: so for PageRank's passes, and about so for others; levels that
BFS pulls are not counted. ``streaming``: how many times as long it takes to bring all rows of the host to the
device once a round, by the copy engine in pieces, which is what a system has to that streams the whole graph:
copies alone, no work on them. ``wrong``: results that are not the host's, after the last batch. Without SSSP no
weights are kept.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from device_graph import Graph as Edges
from device_graph import Row, clocked, cupy, format_cell, machine

from graphtide.compute.device import twin
from graphtide.compute.forest.components import Components
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.paths.sssp import SSSP
from graphtide.compute.program import Program, Published, Refresh
from graphtide.compute.walks.pagerank import PageRank
from graphtide.gpma.device.registered import PART_BYTES
from graphtide.gpma.edges import EdgeBatch, EdgeList, Vertices
from graphtide.gpma.index.id_order import IdOrder, order_of
from graphtide.partition.graph import Graph
from graphtide.partition.placement import HOST

ORDERS = ("hash", "longest")
WARM_UP = 1
WIDTHS = {"order": 8, "share": 6, "batch": 8, "program": 10, "ms": 9, "x device": 9, "x host": 8, "GB/s": 7}
WIDTHS |= {"streaming": 9, "times": 5, "rounds": 6, "edges": 12, "over": 5, "wrong": 6}
Times = dict[tuple[int, str], float]


class Numbers:
    """External ids that are the dense ones: what components are named by."""

    def smallest(self, dense: Vertices) -> int:
        return int(dense.min())

    def sort_by_external(self, dense: Vertices) -> Vertices:
        return np.sort(dense)

    def comparable(self, n_vertices: int) -> IdOrder:
        return order_of()


PROGRAMS: dict[str, Callable[[], Program]] = {
    "bfs": lambda: BFS("bfs", (0,)),
    "sssp": lambda: SSSP("sssp", (0,)),
    "components": lambda: Components("components", Numbers()),
    "pagerank": lambda: PageRank("pagerank"),
}


class Stream:
    """What is loaded, and batches that follow; the same every time it is begun."""

    def __init__(self, scale: int, seed: int, *, weighted: bool) -> None:
        edges = Edges(scale, seed)
        self.n_vertices = edges.n_vertices
        self.weighted = weighted
        weights = cupy.asnumpy(edges.weights(edges.loaded.size)) if weighted else None
        self.loaded = EdgeList(cupy.asnumpy(edges.loaded), weights)
        self.pool = cupy.asnumpy(edges.pool)
        tails = (self.loaded.keys >> np.uint64(32)).astype(np.int64)
        self.source = np.array([np.bincount(tails).argmax()], np.uint32)
        del edges
        cupy.get_default_memory_pool().free_all_blocks()

    def batches(self, sizes: list[int], repeats: int) -> Iterator[tuple[int, int, EdgeBatch]]:
        """(size, how many of it came before, the batch)."""
        rng, at = np.random.default_rng(3), 0
        for n in sizes:
            for step in range(WARM_UP + repeats):
                n_new = n - n // 5
                new = self.pool[np.arange(at, at + n_new) % self.pool.size]
                old = self.loaded.keys[rng.integers(0, self.loaded.keys.size, n // 5)]
                at += n_new
                order = rng.permutation(n)
                ops = np.repeat(np.array([1, 0], np.uint8), [n_new, n // 5])[order]
                weights = rng.integers(1, 256, n).astype(np.float32) if self.weighted else None
                yield n, step, EdgeBatch(np.concatenate([new, old])[order], ops, weights)


class Table:
    """Rows that are shown, and written, as they come."""

    def __init__(self, path: Path | None, head: Row, widths: dict[str, int]) -> None:
        """``widths``: of the columns that are shown."""
        self.rows: list[Row] = []
        self.head = head
        self._path, self._widths = path, widths
        print(json.dumps(head), flush=True)
        print("  ".join(name.rjust(width) for name, width in widths.items()), flush=True)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        cells = (format_cell(row.get(name, "")).rjust(width) for name, width in self._widths.items())
        print("  ".join(cells), flush=True)
        self.write()

    def tell(self, name: str, said: Row) -> None:
        """What belongs to no row."""
        self.head[name] = said
        print(json.dumps({name: said}), flush=True)
        self.write()

    def write(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps({**self.head, "rows": self.rows}, indent=1))


class Measured:
    """Programs on a graph, from scratch and after batches, and what that took."""

    def __init__(self, graph: Graph, stream: Stream, names: list[str], place: Row, table: Table) -> None:
        self.graph, self.stream, self.place, self.table = graph, stream, place, table
        self.programs = {name: PROGRAMS[name]() for name in names}
        if graph.device is not None:
            self.programs = {name: twin(program, graph) for name, program in self.programs.items()}
        for program in self.programs.values():
            program.bind(stream.source if program.sources else np.empty(0, np.uint32))
        self.times: Times = {}
        self.streamed_s: float | None = None

    def run(self, sizes: list[int], repeats: int, device: Times, host: Times, wanted: dict[str, Any]) -> None:
        """``device``, ``host``: times to compare with; ``wanted``: results, where they are known."""
        for name, program in self.programs.items():
            runs = [clocked(lambda program=program: program.start(self.graph)) for _ in range(WARM_UP + repeats)]
            device_side = self.graph.device
            if self.streamed_s is None and device_side is not None and device_side.remote is not None:
                self.streamed_s = streamed(self.graph)  # by now the driver knows the host's columns
            self.add(0, name, runs, device, host, {})
        runs_of: dict[str, list[tuple[float, Any]]] = {}
        for n, step, batch in self.stream.batches(sizes, repeats):
            if step == 0:
                runs_of = {name: [] for name in ("apply", *self.programs)}
            took, change = clocked(lambda batch=batch: self.graph.apply(batch, self.stream.n_vertices))
            runs_of["apply"].append((took, None))  # a report that is still held is read before the next batch
            for name, program in self.programs.items():
                ran = clocked(lambda program=program, change=change: program.refresh(self.graph, change))
                runs_of[name].append(ran)
            del change
            if step == WARM_UP + repeats - 1:
                for name, runs in runs_of.items():
                    self.add(n, name, runs, device, host, wanted if n == sizes[-1] else {})
        assert self.graph.device_lost is None, self.graph.device_lost

    def add(
        self, n: int, name: str, runs: list[tuple[float, Any]], device: Times, host: Times, wanted: dict[str, Any]
    ) -> None:
        seconds = median(took for took, _ in runs[WARM_UP:])
        self.times[n, name] = seconds
        row = {**self.place, "batch": n, "program": name, "ms": 1e3 * seconds, "times": len(runs) - WARM_UP}
        for column, others in (("x device", device), ("x host", host)):
            if (n, name) in others:
                row[column] = seconds / others[n, name]
        refresh = runs[-1][1]
        if isinstance(refresh, Refresh):
            row |= {"rounds": refresh.iterations, "edges": refresh.edges_read, "over": int(refresh.started_over)}
            if self.graph.device is not None:
                row["GB/s"] = refresh.edges_read * self.place["share"] * self.slot_bytes() / seconds / 1e9
            if self.streamed_s is not None and refresh.iterations:
                row["streaming"] = refresh.iterations * self.streamed_s / seconds
        if name in wanted:
            row["wrong"] = wrong(name, self.results(name), wanted[name])
        self.table.add(row)

    def slot_bytes(self) -> float:
        """Of an edge on the host, with the empty slots around it."""
        array = self.graph.host.out
        return 8 * array.view().keys.size / array.n_edges if array.n_edges else 0.0

    def results(self, name: str) -> npt.NDArray[Any]:
        program, n = self.programs[name], self.graph.n_vertices
        published = Published(program.columns(), program.scalars(), n)
        answer = type(program).read(published, np.arange(n, dtype=np.uint32))
        values: npt.NDArray[Any] = np.where(answer.null, np.asarray(-1).astype(answer.values.dtype), answer.values)
        return values


def streamed(graph: Graph) -> float:
    """Seconds to bring the keys of all out-rows of the host to the device once, in pieces, by two streams."""
    keys = graph.host.out.view().keys
    n_piece = PART_BYTES // keys.itemsize
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    buffers = [cupy.empty(n_piece, keys.dtype) for _ in streams]
    # The driver copies from one registered piece at a time, or from none: these end at multiples of PART_BYTES.
    first = -keys.ctypes.data % PART_BYTES // keys.itemsize or n_piece
    pieces = [keys[:first], *(keys[begin : begin + n_piece] for begin in range(first, keys.size, n_piece))]

    def bring() -> None:
        for number, piece in enumerate(pieces):
            buffers[number % 2][: piece.size].set(piece, stream=streams[number % 2])
        for stream in streams:
            stream.synchronize()

    return min(clocked(bring)[0] for _ in range(3))


def wrong(name: str, found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> int:
    """How many results differ; of PageRank by more than both may be off."""
    if name != "pagerank":
        return int(np.count_nonzero(found != wanted))
    off = np.abs(found / wanted - 1)
    return int(np.count_nonzero(off > 2 * PageRank("pagerank").tolerance))


def on_host(order: str, share: float, out: Vertices, in_: Vertices) -> npt.NDArray[np.bool_]:
    """The vertices whose rows are on the host, as many as have this share of all arcs."""
    lengths = out.astype(np.int64) + in_
    rank = np.arange(lengths.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    by_order = np.argsort(rank if order == "hash" else -lengths, kind="stable")
    ends = np.cumsum(lengths[by_order])
    chosen = np.zeros(lengths.size, np.bool_)
    chosen[by_order[: np.searchsorted(ends, share * ends[-1]) + (share > 0)]] = True
    return chosen if share < 1 else ~np.zeros_like(chosen)


def run(
    scale: int,
    shares: list[float],
    orders: list[str],
    names: list[str],
    sizes: list[int],
    repeats: int,
    path: Path | None,
    *,
    on_host_alone: bool = True,
) -> list[Row]:
    """Measure, show and write rows as they come, and return them. ``on_host_alone``: first without a device."""
    table = Table(path, {"machine": machine(), "scale": scale}, WIDTHS)
    stream = Stream(scale, 1, weighted="sssp" in names)
    host: Times = {}
    wanted: dict[str, Any] = {}
    if on_host_alone:
        alone = Graph(weighted=stream.weighted)
        try:
            alone.load(stream.loaded, stream.n_vertices)
            there = Measured(alone, stream, names, {"order": "(host)", "share": 1.0}, table)
            there.run(sizes, repeats, {}, {}, {})
            host, wanted = there.times, {name: there.results(name) for name in names}
        finally:
            alone.close()
    device: Times = {}
    for order in orders:
        for share in shares:
            if share in (0, 1) and order != orders[0]:
                continue
            measured = split(stream, names, order, share, table)
            try:
                measured.run(sizes, repeats, device, host, wanted)
            finally:
                measured.graph.close()
            if share == 0:
                device = measured.times
            del measured
            gc.collect()
            cupy.get_default_memory_pool().free_all_blocks()
    return table.rows


def split(stream: Stream, names: list[str], order: str, share: float, table: Table) -> Measured:
    """A graph with so many of its edges on the host, and programs on its device."""
    graph = Graph(device=True, host_rows="owned", weighted=stream.weighted)

    def divide(out: Vertices, in_: Vertices) -> npt.NDArray[np.uint8]:
        on_device = len(graph.sides) - 1
        return np.where(on_host(order, share, out, in_), HOST, on_device).astype(np.uint8)

    graph.divide_by(divide)
    graph.load(stream.loaded, stream.n_vertices)
    stored = sum(array.n_edges for array in graph.host.arrays)
    place = {"order": order, "share": stored / (2 * graph.n_arcs)}
    return Measured(graph, stream, names, place, table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 0.25, 0.5, 0.75, 1])
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 10_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--no-host", action="store_true", help="leave out the host alone, and what is held against it"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    run(
        options.scale,
        sorted(options.shares),
        options.orders,
        options.programs,
        options.batches,
        options.repeats,
        options.json,
        on_host_alone=not options.no_host,
    )


if __name__ == "__main__":
    main()
