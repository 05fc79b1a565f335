"""What it costs to keep results true, against computing them anew: here, and in other libraries.

    python benchmarks/compute.py [--quick] [--scale 18,20] [--batch 1,100,10000,100000] [--json FILE]
    python benchmarks/compute.py --scale "" --streams web-cnr2000,mathoverflow --data ../shared/data

Every program that is registered takes part; those that approximate, at two tolerances. RMAT graphs are half
loaded, then changed by mixed batches, 80% inserts and 20% deletes of edges that exist; streams are replayed in
time order from their middle on. Every graph is taken as directed. All on the cores that this process may use,
everything in one run:

- *from scratch*: milliseconds, millions of edges of the graph a second, and how many times as long NetworKit,
  SciPy and igraph take for the same (a ratio above 1: graphtide is faster);
- *incremental*: median and mean milliseconds of a refresh, edges read per update, and how many times as long a
  fresh start takes, here and there, and NetworKit's dynamic algorithm (its own update alone). Applying the batch
  to the storage is a column of its own: none of the others is charged for changing its graph either.

A graph that the libraries disagree about stops the run.
"""

from __future__ import annotations

import argparse
import itertools
import lzma
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from peers import DynamicNetworKit, Edges, Igraph, NetworKit, Question, SciPy, exact_pagerank, milliseconds
from report import machine, save, show
from scipy.sparse import csgraph

from graphtide.compute import registry
from graphtide.compute.engine import Engine
from graphtide.compute.program import ExternalId, Program, Published
from graphtide.daemon.generate import Churn, Updates
from graphtide.gpma import pma
from graphtide.gpma.edges import EdgeBatch, Op, Vertices, destinations, pack, sources
from graphtide.gpma.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

TOLERANCES = (1e-3, 1e-4)
RUNS = 5
DYNAMIC_UPDATES_MAX = 10_000
"""Larger batches are not given to NetworKit's dynamic algorithms: they take minutes."""
MISSING = "-"


@dataclass(frozen=True)
class Entry:
    """A program that takes part, and the question that its peers are asked."""

    program: Program
    question: Question


class Bench:
    """A loaded graph with every program kept; ids of the outside are those of the generator or stream."""

    def __init__(self, load: Sequence[Updates], kinds: Sequence[str]) -> None:
        self.index = VertexIndex.create("int")
        self.graph = Graph()
        for updates in load:
            self.apply(updates)
        out = self.graph.out_rows().degrees[: self.graph.n_vertices]
        self.root = int(self.external(np.array([out.argmax()], np.uint32))[0])
        self.entries = list(self._entries(kinds))
        # One thread: programs are measured one after the other, not against each other.
        self.engine = Engine(self.graph, [entry.program for entry in self.entries], self.resolve, threads=1)

    def _entries(self, kinds: Sequence[str]) -> Iterator[Entry]:
        for kind in kinds:
            parameters = registry.program_class(kind).parameters
            given: dict[str, Any] = {p.name: self.root for p in parameters if p.name in ("source", "sources")}
            approximates = any(p.name == "tolerance" for p in parameters)
            for tolerance in TOLERANCES if approximates else (0.0,):
                if approximates:
                    given["tolerance"] = tolerance
                id = f"{kind} {tolerance:g}" if approximates else kind
                program = registry.make_program(kind, id, given, self.index)
                yield Entry(program, Question(kind, self.root, tolerance))

    def external(self, dense: Vertices) -> Any:
        return self.index.external(dense)

    def resolve(self, ids: Sequence[ExternalId]) -> Vertices:
        return self.index.lookup(np.array(ids, np.int64))

    def apply(self, updates: Updates) -> tuple[Any, float]:
        """Index and apply a batch: the change, and the milliseconds of applying."""
        src, dst = self.index.insert_edges(updates.src, updates.dst)
        batch = EdgeBatch(pack(src, dst), updates.ops, updates.weights)
        changes = []
        took = milliseconds(lambda: changes.append(self.graph.apply(batch, self.index.n_vertices)))
        return changes[0], took

    def edges(self) -> Edges:
        """The graph as it is, between dense vertices."""
        arcs = self.graph.export()
        assert arcs.weights is not None
        src, dst = sources(arcs.keys).astype(np.int64), destinations(arcs.keys).astype(np.int64)
        return Edges(self.graph.n_vertices, src, dst, arcs.weights)

    def dense_root(self) -> int:
        return int(self.resolve([self.root])[0])

    def close(self) -> None:
        self.engine.close()
        self.graph.close()

    def values(self, program: Program) -> Any:
        n = self.graph.n_vertices
        published = Published(program.columns(), program.scalars(), n)
        return type(program).read(published, np.arange(n, dtype=np.uint32))


class Peers:
    """The other libraries on a bench's graph of now, and what they took from scratch."""

    def __init__(self, bench: Bench, threads: int) -> None:
        edges = bench.edges()
        self.networkit = NetworKit(edges, threads)
        self._all = (self.networkit, SciPy(edges), Igraph(edges))
        root = bench.dense_root()
        self.milliseconds: dict[str, dict[str, float]] = {}
        for entry in bench.entries:
            question = Question(entry.question.kind, root, entry.question.tolerance)
            self.milliseconds[entry.program.id] = {
                peer.name: _median(lambda peer=peer, question=question: peer.run(question))
                for peer in self._all
                if question.kind in peer.kinds
            }
        self._check(bench, edges, root)

    def _check(self, bench: Bench, edges: Edges, root: int) -> None:
        """The same answers, before anything is compared."""
        matrix = edges.matrix()
        for entry in bench.entries:
            answer = bench.values(entry.program)
            kind, tolerance = entry.question.kind, entry.question.tolerance
            if kind == "bfs":
                reached = csgraph.breadth_first_order(matrix, root, return_predecessors=False)
                assert np.count_nonzero(~answer.null) == reached.size, "hops differ"
            elif kind == "components":
                count, _ = csgraph.connected_components(matrix, connection="weak")
                assert np.unique(answer.values).size == count, "components differ"
            elif kind == "pagerank":
                exact = exact_pagerank(edges)
                error = np.max(np.abs(answer.values - exact) / exact)
                assert error <= tolerance, f"ranks are off by {error}"

    def ratios(self, id: str, ours: float) -> dict[str, Any]:
        """How many times as long each takes from scratch."""
        took = self.milliseconds.get(id, {})
        return {peer.name: took[peer.name] / ours if peer.name in took else MISSING for peer in self._all}


def _median(work: Any) -> float:
    """The median of so many runs, fewer where one takes seconds."""
    times = [work()]
    while len(times) < RUNS and sum(times) < 5_000:
        times.append(work())
    return float(np.median(times))


# -- the two tables -------------------------------------------------------------------------------------------


def from_scratch(bench: Bench, peers: Peers | None, what: str) -> list[dict[str, Any]]:
    rows = []
    for entry in bench.entries:
        id = entry.program.id
        took = float(np.median([bench.engine.start([id])[0].seconds * 1e3 for _ in range(RUNS)]))
        row = {"graph": what, "program": id, "ms": took, "M edges/s": bench.graph.n_arcs / took / 1e3}
        rows.append(row | (peers.ratios(id, took) if peers is not None else {}))
    return rows


def incremental(
    bench: Bench,
    peers: Peers | None,
    fresh: dict[str, float],
    what: str,
    size: int,
    batches: Sequence[Updates],
) -> list[dict[str, Any]]:
    """Follow these batches, the first one for warming up; a row for each program."""
    is_measured = peers is not None and size <= DYNAMIC_UPDATES_MAX
    dynamic = _dynamic(bench, size * len(batches)) if is_measured else {}
    applied: list[float] = []
    seconds: dict[str, list[float]] = {entry.program.id: [] for entry in bench.entries}
    read = dict.fromkeys(seconds, 0)
    dynamic_ms: dict[str, list[float]] = {id: [] for id in dynamic}
    for number, updates in enumerate(batches):
        change, apply_ms = bench.apply(updates)
        runs = bench.engine.refresh(change)
        ends = [bench.index.lookup(ids).astype(np.int64) for ids in (updates.src, updates.dst)]
        for id, algorithm in list(dynamic.items()):
            try:
                took = algorithm.update(*ends, updates.ops == Op.INSERT, updates.weights)
            except IndexError as error:  # seen of its components, at batches of deletions
                print(f"NetworKit's dynamic {id} failed at batch {number} of {size:,} updates: {error}")
                del dynamic[id]
                continue
            dynamic_ms[id].append(took)
        if number == 0:
            continue
        applied.append(apply_ms)
        for run in runs:
            assert run.refresh is not None, run.error
            seconds[run.id].append(run.seconds)
            read[run.id] += run.refresh.edges_read
    rows = []
    for id, times in seconds.items():
        median = float(np.median(times)) * 1e3
        row: dict[str, Any] = {"graph": what, "batch": size, "program": id, "apply ms": float(np.median(applied))}
        row |= {"median ms": median, "mean ms": float(np.mean(times)) * 1e3}
        row |= {"edges/update": read[id] / (len(times) * size), "fresh start": fresh[id] / median}
        if peers is not None:
            row |= peers.ratios(id, median)
            row["NetworKit dyn."] = float(np.median(dynamic_ms[id][1:])) / median if id in dynamic else MISSING
        rows.append(row)
    return rows


def _dynamic(bench: Bench, updates: int) -> dict[str, DynamicNetworKit]:
    """NetworKit's dynamic algorithms on the graph as it is, with room for the vertices of so many updates."""
    edges = bench.edges()
    edges = replace(edges, n=edges.n + 2 * updates)
    root = bench.dense_root()
    return {
        entry.program.id: DynamicNetworKit(edges, replace(entry.question, root=root))
        for entry in bench.entries
        if entry.question.kind in DynamicNetworKit.kinds
    }


def measure(
    what: str, load: Sequence[Updates], batches: dict[int, list[Updates]], arguments: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Both tables of one graph: loaded with ``load``, changed by so many batches of each size."""
    bench = Bench(load, arguments.programs or list(registry.KINDS))
    try:
        for run in bench.engine.start():
            assert run.error is None, run.error
        peers = None if arguments.no_peers else Peers(bench, len(os.sched_getaffinity(0)))
        what = f"{what}, {bench.graph.n_vertices:,} vertices, {bench.graph.n_edges:,} edges"
        scratch = from_scratch(bench, peers, what)
        show(f"from scratch: {what}", [_without_graph(row) for row in scratch])
        fresh = {row["program"]: row["ms"] for row in scratch}
        rows = []
        for size, updates in batches.items():
            some = incremental(bench, peers, fresh, what, size, updates)
            show(f"batches of {size:,}: {what}", [_without_graph(row) for row in some])
            rows += some
        return scratch, rows
    finally:
        bench.close()


def _without_graph(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "graph"}


# -- the graphs -----------------------------------------------------------------------------------------------


def epochs_of(size: int, epochs: int) -> int:
    """Batches of so many updates: small ones differ more, and cost less; one more warms up."""
    return epochs * (20 if size <= 10 else 1) + 1


def rmat(
    scale: int, sizes: Sequence[int], epochs: int, seed: int
) -> tuple[list[Updates], dict[int, list[Updates]]]:
    """Half of 16 edges a vertex, and mixed batches of each size."""
    churn = Churn(scale=scale, pool=16 << scale, seed=seed)
    load = list(churn.load(churn.src.size // 2))
    return load, {size: [churn.next(size) for _ in range(epochs_of(size, epochs))] for size in sizes}


def stream(file: Path, sizes: Sequence[int], epochs: int) -> tuple[list[Updates], dict[int, list[Updates]]]:
    """The first half of a stream, and batches of each size from then on, as far as it goes."""
    with lzma.open(file, "rt") as lines:
        events = [line.split("\t", 3)[:3] for line in lines]
    ops = np.array([op == "I" for op, _, _ in events], np.uint8)
    src, dst = (np.array([int(event[k]) for event in events], np.int64) for k in (1, 2))
    ones = np.ones(ops.size, np.float32)

    def part(begin: int, end: int) -> Updates:
        return Updates(src[begin:end], dst[begin:end], ops[begin:end], ones[begin:end])

    at = ops.size // 2
    load = [part(0, at)]
    batches = {}
    for size in sizes:
        ends = range(at, ops.size + 1, size)[: epochs_of(size, epochs) + 1]
        if len(ends) > 2:
            batches[size] = [part(begin, end) for begin, end in itertools.pairwise(ends)]
            at = ends[-1]
    return load, batches


def main() -> None:
    arguments = _arguments()
    pma.warm_up()
    registry.warm_up(directed=True, weighted=True)
    scratch: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for scale in arguments.scale:
        load, batches = rmat(scale, arguments.batch, arguments.epochs, arguments.seed)
        more = measure(f"RMAT scale {scale}", load, batches, arguments)
        scratch, rows = scratch + more[0], rows + more[1]
    for name in arguments.streams:
        load, batches = stream(arguments.data / f"{name}.events.tsv.xz", arguments.batch, arguments.epochs)
        more = measure(name, load, batches, arguments)
        scratch, rows = scratch + more[0], rows + more[1]
    parameters = {name: str(value) for name, value in vars(arguments).items() if name != "json"}
    save(
        arguments.json,
        {"machine": machine(), "parameters": parameters, "from scratch": scratch, "incremental": rows},
    )


def _arguments() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",") if part]

    def names(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=numbers, default=[18, 20], help="RMAT graphs (18,20)")
    parser.add_argument("--batch", type=numbers, default=[1, 100, 10_000, 100_000], help="updates of a batch")
    parser.add_argument("--epochs", type=int, default=RUNS, help="batches of each size, after a first one")
    parser.add_argument("--programs", type=names, default=[], help="kinds to measure (all that are registered)")
    parser.add_argument("--streams", type=names, default=[], help="real streams, by the names of their files")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="the folder of the streams")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-peers", action="store_true", help="leave the other libraries out")
    parser.add_argument("--quick", action="store_true", help="scale 14 and batches up to 10,000, in a minute")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.scale, arguments.batch = [14], [1, 100, 10_000]
    return arguments


if __name__ == "__main__":
    main()
