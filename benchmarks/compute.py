"""What it costs to keep results true, against computing them anew: here, and in other libraries.

    python benchmarks/compute.py [--quick] [--scale 18,20] [--batch 1,100,10000,100000] [--json FILE]
    python benchmarks/compute.py --scale 20 --epochs 5 --data ../shared/data

Every program that is registered takes part; those that approximate, at two tolerances. RMAT graphs are half
loaded, then changed by mixed batches, 80% inserts and 20% deletes of edges that exist, and then by batches that
also delete a vertex for every hundred updates. Real streams (``real_streams.py``) are replayed to their end, all
sizes of batches one after the other. All on the cores that this process may use, everything in one run:

- *from scratch*: milliseconds, millions of stored arcs of the graph a second, and how many times as long
  NetworKit, SciPy and igraph take for the same (a ratio above 1: graphtide is faster);
- *incremental*: median, mean and 99th percentile of a refresh in milliseconds, edges read per update, and how many
  times as long a fresh start takes, here and there, and NetworKit's dynamic algorithm (its own update alone).
  Applying the batch to the storage is a column of its own: none of the others is charged for changing its graph
  either.

Other libraries run in processes of their own while nothing else does, and have so many seconds for each run
(``--budget``): ``>40`` says that one was ended when it had taken 40 times as long as graphtide, ``fails`` that it
raised or crashed, which is printed. A dynamic algorithm that has spent half as much on batches of one size follows
no more of them, nor larger ones. A graph that the libraries disagree about stops the run, and so does a state that
the audit refutes at the end.

``--one-core`` gives all of them, and graphtide, one core, and compares processor times: for machines that others
use, too.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import real_streams
from gap import Gap
from isolated import Failed, Isolated, TooLong
from peers import (
    BY_PROCESSOR_TIME,
    DynamicNetworKit,
    Edges,
    Igraph,
    NetworKit,
    Question,
    SciPy,
    clock,
    clustering,
    exact_pagerank,
    milliseconds,
    propagated_labels,
    simple_igraph,
)
from real_streams import RealStream
from report import machine, save, show
from scipy.sparse import csgraph

from graphtide.compute import registry
from graphtide.compute.engine import Engine, ProgramRun
from graphtide.compute.program import ExternalId, Program, Published, Violation
from graphtide.daemon.tools.generate import Churn, Updates
from graphtide.gpma.edges import NO_VERTEX, EdgeBatch, Op, Vertices, destinations, pack, sources
from graphtide.gpma.host import array as pma
from graphtide.gpma.index.ids import IntColumn
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.existence import VertexOps
from graphtide.partition.graph import Graph, GraphChange

TOLERANCES = (1e-3, 1e-4)
CDLP_ROUNDS = 10
"""What cdlp has by default, and so here."""
RUNS = 5
REPEATED_MS_MAX = 4_000
"""A library's run is repeated until it took so long in all."""
FINDING_S = 120.0
"""How long finding NetworKit's tolerance may take."""
UPDATES_PER_DELETED_VERTEX = 100
BATCH_SHARE_MAX = 0.1
"""Of a real stream: larger batches are another graph rather than a change."""
STREAMS = (
    "as733-21days",  # deletions of its own, hubs
    "mathoverflow",  # time, skew, repeats, loops
    "road-chicago-time",  # weights, zeros among them
    "road-luxembourg",  # a large diameter
    "social-mit8",  # dense
    "web-cnr2000",  # the largest; skew of in-degrees
)
"""Of ../shared/data, for what its README says of each."""
CLUSTERING_CHECKED_MAX = 300_000
"""Edges of a graph whose clustering is compared with products of matrices, which need memory."""
MISSING, FAILS = "-", "fails"


@dataclass(frozen=True)
class Entry:
    """A program that takes part, and the question that its peers are asked."""

    program: Program
    question: Question


@dataclass(frozen=True)
class Batches:
    """Batches of one size, the first one for warming up. ``gone``: the vertices that each deletes at its end."""

    size: int
    updates: Sequence[Updates]
    gone: Sequence[IntColumn] = ()

    def __iter__(self) -> Iterator[tuple[Updates, IntColumn]]:
        none = np.empty(0, np.int64)
        return iter(zip(self.updates, self.gone or [none] * len(self.updates), strict=True))

    @property
    def label(self) -> str:
        return f"{self.size:,}" + (f" + {self.gone[0].size:,} vertices" if self.gone else "")


class Bench:
    """A loaded graph with every program kept; ids of the outside are those of the generator or stream."""

    def __init__(self, load: Iterable[Updates], kinds: Sequence[str], *, directed: bool = True) -> None:
        self.index = VertexIndex.create("int")
        self.graph = Graph(directed=directed)
        for updates in load:
            self.apply(updates)
        out = self.graph.out_rows().degrees[: self.graph.n_vertices]
        self.root = int(self.external(np.array([out.argmax()], np.uint32))[0])
        self.entries = list(self._entries(kinds))
        # An engine each: programs have all cores, one after the other.
        threads = len(os.sched_getaffinity(0))
        self._engines = {
            entry.program.id: Engine(self.graph, [entry.program], self.resolve, threads, clock=clock)
            for entry in self.entries
        }

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

    def apply(self, updates: Updates, gone: IntColumn | None = None) -> tuple[GraphChange, float]:
        """Index and apply a batch, ``gone`` deleted at its end: the change, and the milliseconds of applying."""
        src, dst = self.index.insert_edges(updates.src, updates.dst)
        batch = EdgeBatch(pack(src, dst), updates.ops, updates.weights)
        deletions = None
        if gone is not None and gone.size:
            ops = np.full(gone.size, Op.DELETE_VERTEX, np.uint8)
            deletions = VertexOps(self.index.lookup(gone), ops, np.full(gone.size, len(batch), np.int64))
        changes: list[GraphChange] = []
        took = milliseconds(lambda: changes.append(self.graph.apply(batch, self.index.n_vertices, deletions)))
        return changes[0], took

    def start(self, id: str) -> ProgramRun:
        """Compute a program from scratch."""
        (run,) = self._engines[id].start()
        assert run.error is None, run.error
        return run

    def refresh(self, change: GraphChange) -> list[ProgramRun]:
        """Bring all programs up to date, one after the other."""
        return [run for engine in self._engines.values() for run in engine.refresh(change)]

    def audit(self) -> dict[str, list[Violation]]:
        """What is wrong with the programs, of those with which anything is."""
        found = {entry.program.id: entry.program.audit(self.graph) for entry in self.entries}
        return {id: violations for id, violations in found.items() if violations}

    def edges(self) -> Edges:
        """The graph as it is, between dense vertices."""
        arcs = self.graph.export()
        assert arcs.weights is not None
        src, dst = sources(arcs.keys).astype(np.int64), destinations(arcs.keys).astype(np.int64)
        return Edges(self.graph.n_vertices, src, dst, arcs.weights)

    def dense_root(self) -> int:
        return int(self.resolve([self.root])[0])

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()
        self.graph.close()

    def values(self, program: Program) -> Any:
        n = self.graph.n_vertices
        published = Published(program.columns(), program.scalars(), n)
        return type(program).read(published, np.arange(n, dtype=np.uint32))


# -- other libraries ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Took:
    """Milliseconds that a library took, or at which it was ended; None: it failed."""

    ms: float | None
    ended: bool = False

    def over(self, ours: float) -> Any:
        """How many times as long as ours, for a table."""
        if self.ms is None:
            return FAILS
        return f">{self.ms / ours:,.0f}" if self.ended else self.ms / ours


class Peers:
    """The other libraries on a bench's graph of now, and what they took from scratch."""

    def __init__(self, bench: Bench, threads: int, budget_s: float, gap: Path | None) -> None:
        """``gap``: the folder of GAP's programs; None: without them."""
        edges = bench.edges()
        self._budget_s = budget_s
        ranks = any(entry.question.kind == "pagerank" for entry in bench.entries)
        self._exact = exact_pagerank(edges) if ranks else np.empty(0)
        self._check(bench, edges)
        self._took: dict[str, dict[str, Took]] = {entry.program.id: {} for entry in bench.entries}
        root = bench.dense_root()
        peers: list[tuple[Any, tuple[Any, ...]]] = [
            (NetworKit, (edges, threads)),
            (SciPy, (edges,)),
            (Igraph, (edges,)),
        ]
        work = tempfile.TemporaryDirectory(prefix="gap-")
        if gap is not None:
            peers.append((Gap, (edges, gap, threads, Path(work.name))))
        self.names = tuple(factory.name for factory, _ in peers)
        for factory, arguments in peers:
            peer = Isolated(factory, *arguments)
            for entry in bench.entries:
                if entry.question.kind in factory.kinds:
                    question = replace(entry.question, root=root)
                    self._took[entry.program.id][factory.name] = self._ask(peer, factory.name, question)
            peer.close()
        work.cleanup()

    def _ask(self, peer: Isolated, name: str, question: Question) -> Took:
        try:
            peer.call("prepare", question, seconds=FINDING_S)
            if name == NetworKit.name and question.kind == "pagerank":
                peer.call("find_rank_tolerance", question.tolerance, self._exact, seconds=FINDING_S)
            times = [peer.call("run", question, seconds=self._budget_s)]
            while len(times) < RUNS and sum(times) < REPEATED_MS_MAX:
                times.append(peer.call("run", question, seconds=self._budget_s))
        except TooLong:
            return Took(self._budget_s * 1e3, ended=True)
        except Failed as error:
            print(f"{name}, {question.kind}: {error}")
            return Took(None)
        return Took(float(np.median(times)))

    def _check(self, bench: Bench, edges: Edges) -> None:
        """The same answers, before anything is compared."""
        matrix, root = edges.matrix(), bench.dense_root()
        for entry in bench.entries:
            answer = bench.values(entry.program)
            kind, tolerance = entry.question.kind, entry.question.tolerance
            if kind == "bfs":
                reached = csgraph.breadth_first_order(matrix, root, return_predecessors=False)
                assert np.count_nonzero(~answer.null) == reached.size, "hops differ"
            elif kind == "sssp":
                far = csgraph.dijkstra(edges.matrix(weighted=True), indices=root)
                np.testing.assert_array_equal(np.isinf(far), answer.null)
                np.testing.assert_allclose(answer.values[~answer.null], far[~answer.null], rtol=1e-5)
            elif kind == "components":
                count, _ = csgraph.connected_components(matrix, connection="weak")
                assert np.unique(answer.values).size == count, "components differ"
            elif kind == "triangles":
                without_directions = simple_igraph(edges)
                degrees = np.array(without_directions.degree(), np.float64)
                shares = np.array(without_directions.transitivity_local_undirected(mode="zero"))
                expected = shares * degrees * (degrees - 1) / 2
                np.testing.assert_allclose(answer.values[: edges.n], expected, rtol=1e-9)
            elif kind == "lcc" and edges.src.size <= CLUSTERING_CHECKED_MAX:
                np.testing.assert_allclose(answer.values[: edges.n], clustering(edges), rtol=1e-12)
            elif kind == "kcore":
                np.testing.assert_array_equal(answer.values[: edges.n], simple_igraph(edges).coreness())
            elif kind == "cdlp":
                ids = bench.external(np.arange(edges.n, dtype=np.uint32))
                expected = propagated_labels(edges, ids, CDLP_ROUNDS)
                np.testing.assert_array_equal(answer.values[: edges.n], expected)
            elif kind == "pagerank":
                error = np.max(np.abs(answer.values - self._exact) / self._exact)
                assert error <= tolerance, f"ranks are off by {error}"

    def ratios(self, id: str, ours: float) -> dict[str, Any]:
        """How many times as long each takes from scratch."""
        took = self._took[id]
        return {name: took[name].over(ours) if name in took else MISSING for name in self.names}


class Followers:
    """NetworKit's dynamic algorithms, fed with the same batches, each in a process of its own."""

    def __init__(self, bench: Bench, batches: Sequence[Batches], threads: int, budget_s: float) -> None:
        self._budget_s = budget_s
        ids = [np.concatenate([updates.src, updates.dst]) for some in batches for updates in some.updates]
        named = np.unique(np.concatenate(ids)) if ids else np.empty(0, np.int64)
        edges = bench.edges()
        # There must be room for the vertices that are to come.
        edges = replace(edges, n=edges.n + int(np.count_nonzero(bench.index.lookup(named) == NO_VERTEX)))
        root = bench.dense_root()
        self._algorithms = {
            entry.program.id: Isolated(DynamicNetworKit, edges, replace(entry.question, root=root), threads)
            for entry in bench.entries
            if entry.question.kind in DynamicNetworKit.kinds
        }
        self._times: dict[str, list[float]] = {}
        self._stopped: dict[str, Took] = {}

    def begin(self) -> None:
        """Batches of another size begin."""
        self._times = {id: [] for id in self._algorithms}
        self._stopped = {}

    def follow(self, bench: Bench, updates: Updates) -> None:
        """Give all that are left this batch, which the bench's index knows."""
        src, dst = (bench.index.lookup(ids).astype(np.int64) for ids in (updates.src, updates.dst))
        inserts, weights = updates.ops == Op.INSERT, updates.weights
        if not bench.graph.directed:
            src, dst = (np.stack(pair, axis=1).ravel() for pair in ((src, dst), (dst, src)))
            inserts, weights = np.repeat(inserts, 2), np.repeat(weights, 2)
        for id, algorithm in list(self._algorithms.items()):
            try:
                took = algorithm.call("update", src, dst, inserts, weights, seconds=self._budget_s)
            except TooLong:
                self._stopped[id] = Took(self._budget_s * 1e3, ended=True)
                del self._algorithms[id]
            except Failed as error:  # seen of its components, at batches of deletions
                print(f"NetworKit's dynamic {id}, {len(updates):,} updates: {error}")
                self._stopped[id] = Took(None)
                del self._algorithms[id]
            else:
                self._times[id].append(took)
                if sum(self._times[id]) > self._budget_s * 1e3 / 2:
                    algorithm.close()
                    del self._algorithms[id]

    def ratio(self, id: str, ours: float) -> Any:
        """How many times as long as ours it took for the batches since ``begin``, without the first of several."""
        if id in self._stopped:
            return self._stopped[id].over(ours)
        times = self._times.get(id, [])
        return float(np.median(times[1:] or times)) / ours if times else MISSING

    def close(self) -> None:
        for algorithm in self._algorithms.values():
            algorithm.close()


# -- the two tables -------------------------------------------------------------------------------------------


def from_scratch(bench: Bench, peers: Peers | None, what: str) -> list[dict[str, Any]]:
    rows = []
    for entry in bench.entries:
        id = entry.program.id
        took = float(np.median([bench.start(id).seconds * 1e3 for _ in range(RUNS)]))
        row = {"graph": what, "program": id, "ms": took, "M arcs/s": bench.graph.n_arcs / took / 1e3}
        rows.append(row | (peers.ratios(id, took) if peers is not None else {}))
    return rows


def incremental(
    bench: Bench,
    peers: Peers | None,
    followers: Followers | None,
    fresh: dict[str, float],
    what: str,
    batches: Batches,
) -> list[dict[str, Any]]:
    """Follow these batches; a row for each program."""
    if followers is not None:
        followers.begin()
    applied: list[float] = []
    changed = 0
    seconds: dict[str, list[float]] = {entry.program.id: [] for entry in bench.entries}
    read = dict.fromkeys(seconds, 0)
    over = dict.fromkeys(seconds, 0)
    for number, (updates, gone) in enumerate(batches):
        change, apply_ms = bench.apply(updates, gone)
        runs = bench.refresh(change)
        if followers is not None:
            followers.follow(bench, updates)
        if number == 0:
            continue
        applied.append(apply_ms)
        changed += change.updates
        for run in runs:
            assert run.refresh is not None, run.error
            seconds[run.id].append(run.seconds)
            read[run.id] += run.refresh.edges_read
            over[run.id] += run.refresh.started_over
    rows = []
    for id, times in seconds.items():
        median = float(np.median(times)) * 1e3
        row: dict[str, Any] = {"graph": what, "batch": batches.label, "program": id}
        row |= {"apply ms": float(np.median(applied)), "median ms": median, "mean ms": float(np.mean(times)) * 1e3}
        row["p99 ms"] = float(np.percentile(times, 99)) * 1e3
        row |= {"edges/update": read[id] / max(changed, 1), "started over": over[id]}
        row["fresh start"] = fresh[id] / median
        if peers is not None:
            row |= peers.ratios(id, median)
        if followers is not None:
            row["NetworKit dyn."] = followers.ratio(id, median)
        rows.append(row)
    return rows


Rows = list[dict[str, Any]]


def measure(
    what: str,
    load: Iterable[Updates],
    batches: Sequence[Batches],
    arguments: argparse.Namespace,
    *,
    directed: bool = True,
) -> tuple[Rows, Rows]:
    """Both tables of one graph: loaded with ``load``, then changed by these batches."""
    started = time.perf_counter()
    bench = Bench(load, arguments.programs or list(registry.KINDS), directed=directed)
    threads, budget = len(os.sched_getaffinity(0)), arguments.budget
    followers = None
    try:
        for entry in bench.entries:
            bench.start(entry.program.id)
        peers = None if arguments.no_peers else Peers(bench, threads, budget, arguments.gap)
        what = f"{what}, {bench.graph.n_vertices:,} vertices, {bench.graph.n_edges:,} edges"
        scratch = from_scratch(bench, peers, what)
        show(f"from scratch: {what}", [_without(row, "graph") for row in scratch])
        fresh = {row["program"]: row["ms"] for row in scratch}
        plain = [some for some in batches if not some.gone]
        followers = None if arguments.no_peers else Followers(bench, plain, threads, budget)
        rows: Rows = []
        for some in batches:
            following = None if some.gone else followers
            more = incremental(bench, peers, following, fresh, what, some)
            show(f"batches of {some.label}: {what}", [_without(row, "graph", "batch") for row in more])
            rows += more
        violations = bench.audit()
        assert not violations, violations
        print(f"{what}: {time.perf_counter() - started:.0f} s")
        return scratch, rows
    finally:
        if followers is not None:
            followers.close()
        bench.close()


def _without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


# -- the graphs -----------------------------------------------------------------------------------------------


def epochs_of(size: int, epochs: int) -> int:
    """Batches of so many updates: small ones differ more, and cost less; one more warms up."""
    return epochs * (20 if size <= 10 else 1) + 1


def rmat(scale: int, sizes: Sequence[int], epochs: int, seed: int) -> tuple[Iterator[Updates], list[Batches]]:
    """Half of 16 edges a vertex, and mixed batches of each size, at the end those that delete vertices."""
    churn = Churn(scale=scale, pool=16 << scale, seed=seed)
    half = churn.src.size // 2
    load = list(churn.load(half))
    hub = np.bincount(churn.src[:half]).argmax()  # what the programs start from stays
    plain = [Batches(size, [churn.next(size) for _ in range(epochs_of(size, epochs))]) for size in sizes]
    rng = np.random.default_rng(seed)
    others = []
    for size in sizes:
        if size >= UPDATES_PER_DELETED_VERTEX:
            updates = [churn.next(size) for _ in range(epochs_of(size, epochs))]
            some = np.unique(churn.src[:half])
            gone = [rng.choice(some[some != hub], size // UPDATES_PER_DELETED_VERTEX, False) for _ in updates]
            others.append(Batches(size, updates, gone))
    return iter(load), plain + others


def stream(real: RealStream, sizes: Sequence[int], epochs: int) -> tuple[Updates, list[Batches]]:
    """What is loaded of a real stream, and batches of each size to its end."""
    left, counts = real.size, {}
    for size in sizes:
        count = min(epochs_of(size, epochs), left // size)
        if count > 1 and size <= len(real.events) * BATCH_SHARE_MAX:
            counts[size] = count
            left -= count * size
    load, updates = real.split(real.size - left)
    batches, at = [], 0
    for size, count in counts.items():
        ends = range(at, at + size * count + 1, size)
        batches.append(Batches(size, [real_streams.part(updates, *pair) for pair in itertools.pairwise(ends)]))
        at = ends[-1]
    return load, batches


def main() -> None:
    arguments = _arguments()
    started = time.perf_counter()
    if arguments.one_core:
        # Other processes inherit both.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        os.environ[BY_PROCESSOR_TIME] = "1"
    pma.warm_up()
    for directed in (True, False):
        registry.warm_up(directed=directed, weighted=True)
    scratch: Rows = []
    rows: Rows = []
    for scale in arguments.scale:
        load, batches = rmat(scale, arguments.batch, arguments.epochs, arguments.seed)
        more = measure(f"RMAT scale {scale}", load, batches, arguments)
        scratch, rows = scratch + more[0], rows + more[1]
    for name in arguments.streams:
        real = real_streams.read(arguments.data, name)
        loaded, batches = stream(real, arguments.batch, arguments.epochs)
        more = measure(name, [loaded], batches, arguments, directed=real.directed)
        scratch, rows = scratch + more[0], rows + more[1]
    print(f"{time.perf_counter() - started:.0f} s in all")
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
    parser.add_argument("--data", type=Path, help="the folder of real streams")
    parser.add_argument("--streams", type=names, default=list(STREAMS), help="which of them, by their names")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for each run of another library")
    parser.add_argument("--gap", type=Path, help="the folder of GAP's programs (tc), built: they take part, too")
    parser.add_argument("--no-peers", action="store_true", help="leave the other libraries out")
    parser.add_argument("--one-core", action="store_true", help="everything on one core, by processor time")
    parser.add_argument("--quick", action="store_true", help="scale 14 and batches up to 10,000, in a minute")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    arguments = parser.parse_args()
    arguments.batch.sort()
    if arguments.gap is not None and arguments.one_core:
        parser.error("--gap: GAP's clock is the wall's, and --one-core compares processor time")
    if arguments.data is None:
        arguments.streams = []
    if arguments.quick:
        arguments.scale, arguments.batch = [14], [1, 100, 10_000]
    return arguments


if __name__ == "__main__":
    main()
