"""Where programs run by measurement, beside all on the host and all on the device: epochs of one graph in turns.

    python benchmarks/homes.py [--graphs 16,20,22,mathoverflow,road-luxembourg] [--batches 100,10000,1000000]
        [--seconds 4] [--turns 4] [--instances 1] [--settle 0] [--whole] [--data ../shared/data] [--json FILE]

A graph is an R-MAT graph of that scale, or the edges of a public stream (left out where its file is missing).
BFS, components and PageRank are kept. Each batch deletes edges, every one as likely as another, and puts back what
the one before it deleted, so that the graph stays as large as it is; a batch is a quarter of the edges at most.
All take the same batches, in turns, each in a graph of its own: the speed of a machine changes by the minute.
The mean over epochs of the last half of the turns counts (the median stands beside it), of programs alone, without
applying; by then ``auto`` has settled, or has so many seconds more for that before all else, ``--settle``: trials
come ever more seldom. ``moves`` are all those that it made, ``on device`` what is there at the end, and ``behind``
how much longer its epochs take than those of the better fixed choice.

``--whole``: whole epochs, with applying, of the default against one side alone. ``auto`` has all rows on the
host and the device, as ``partition.host_rows = "auto"`` does where they fit, and the host's may take batches
later while every program is on the device, as in the daemon; ``follows`` is that with no program ever moving;
``host`` has no device, and with ``device`` the host has no rows. Epochs of one graph may take a sixth longer than
those of the same one loaded once more, for as long as it is there: ``--instances`` graphs of each choice take
turns, and ``from``, ``to`` are the least and the most of their means.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import real_streams
from report import machine, save, show

from graphtide.compute import registry
from graphtide.compute.device import twin
from graphtide.compute.engine import Engine
from graphtide.compute.homes import Homes
from graphtide.daemon.tools.generate import distinct_rmat
from graphtide.gpma.edges import EdgeBatch, EdgeList, Keys, Op, Vertices, distinct, pack, transpose
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition import device_side
from graphtide.partition.graph import Graph

EDGES_PER_VERTEX = 16
PROGRAMS = ("bfs", "components", "pagerank")
EPOCHS_MIN = 6


@dataclass(frozen=True)
class Edges:
    """A graph between vertices 0 .. n - 1; ``keys``: each edge once, in no order."""

    name: str
    directed: bool
    n_vertices: int
    keys: Keys

    def batches(self, size: int, seed: int) -> Iterator[EdgeBatch]:
        """Endless; the first one deletes alone."""
        rng = np.random.default_rng(seed)
        size = min(size, self.keys.size // 4)
        gone = np.empty(0, np.int64)
        is_there = np.ones(self.keys.size, bool)
        while True:
            drawn = distinct(rng.integers(0, self.keys.size, 4 * size))
            drawn = rng.permutation(drawn[is_there[drawn]])[: max(1, size // 2)]
            is_there[gone], is_there[drawn] = True, False
            order = rng.permutation(drawn.size + gone.size)
            keys = self.keys[np.concatenate([drawn, gone])[order]]
            ops = np.repeat(np.array([Op.DELETE, Op.INSERT], np.uint8), [drawn.size, gone.size])[order]
            yield EdgeBatch(keys, ops)
            gone = drawn

    @cached_property
    def arcs(self) -> Keys:
        """What is loaded: ascending, both directions where they mean the same."""
        return distinct(self.keys if self.directed else np.concatenate([self.keys, transpose(self.keys)]))


def edges_of(name: str, folder: Path, seed: int) -> Edges | None:
    """By the name of a stream, or a scale; None: there is no such file."""
    if name.isdigit():
        n = 1 << int(name)
        src, dst = distinct_rmat(int(name), EDGES_PER_VERTEX * n, np.random.default_rng(seed))
        return Edges(f"rmat-{name}", True, n, pack(src, dst))
    try:
        stream = real_streams.read(folder, name)
    except FileNotFoundError:
        return None
    src, dst = stream.events.src, stream.events.dst
    if not stream.directed:
        src, dst = np.minimum(src, dst), np.maximum(src, dst)
    ids = distinct(np.concatenate([src, dst]))
    keys = distinct(pack(np.searchsorted(ids, src), np.searchsorted(ids, dst)))
    return Edges(name, stream.directed, ids.size, np.random.default_rng(seed).permutation(keys))


def run(
    edges: Edges,
    batches: Sequence[int],
    seconds: float,
    seed: int,
    *,
    settle: float = 0.0,
    whole: bool = False,
    turns: int = 2,
    instances: int = 1,
) -> list[dict[str, Any]]:
    """Rows by size of the batch; ``whole``: of epochs with applying, each side alone."""
    modes = ("host", "device", "follows", "auto") if whole else ("host", "device", "auto")
    rows = []
    for size in batches:
        choices: list[Choice] = []
        try:
            made = (mode for _ in range(instances) for mode in modes)
            choices.extend(Choice(edges, size, mode, seed, whole=whole) for mode in made)
            for choice in choices:
                if choice.mode == "auto":
                    choice.run(settle, 0)
            for turn in range(turns):
                for choice in choices if turn % 2 else reversed(choices):
                    choice.took = choice.took if turn > turns // 2 else []
                    choice.run(seconds / turns, EPOCHS_MIN)
            took = {mode: row_of([choice for choice in choices if choice.mode == mode]) for mode in modes}
        finally:
            for choice in choices:
                choice.close()
        row = {"graph": edges.name, "edges": edges.keys.size, "batch": size}
        row |= {f"{mode} ms": took[mode]["ms"] for mode in modes}
        row |= {f"{mode} median": took[mode]["median"] for mode in modes}
        if instances > 1:
            row |= {f"{mode} {end}": took[mode][end] for mode in modes for end in ("from", "to")}
        if whole:
            row |= {f"{mode} applying": took[mode]["applying"] for mode in modes}
        best = min(took["host"]["ms"], took["device"]["ms"])
        rows.append(
            row | {"behind": took["auto"]["ms"] / best - 1, **{k: took["auto"][k] for k in ("moves", "on device")}}
        )
        print(rows[-1], flush=True)
    return rows


@dataclass
class Choice:
    """A graph with programs where ``mode`` says, and what its epochs took: seconds of applying, and of all that
    counts."""

    edges: Edges
    size: int
    mode: str
    seed: int
    whole: bool
    took: list[tuple[float, float]] = field(default_factory=list)
    moves: int = 0

    def __post_init__(self) -> None:
        edges, mode = self.edges, self.mode
        alone = self.whole and mode == "device"
        if mode != "host":
            device_side.warm_up(directed=edges.directed, weighted=False, in_edges=True, in_weights=False)
        self.graph = graph = Graph(
            directed=edges.directed, weighted=False, device=mode != "host", host_rows="owned" if alone else "all"
        )
        graph.divide_by(lambda out, _: np.full(out.size, len(graph.sides) - 1, np.uint8))
        graph.load(EdgeList(edges.arcs), edges.n_vertices)
        index = VertexIndex.create("int")
        index.insert(np.arange(edges.n_vertices, dtype=np.int64))
        root = int(np.argmax(graph.degrees("out")[: edges.n_vertices]))
        given: dict[str, dict[str, Any]] = {"bfs": {"source": root}}
        programs = [registry.make_program(kind, None, given.get(kind, {}), index) for kind in PROGRAMS]

        def resolve(ids: Sequence[Any]) -> Vertices:
            return np.array(ids, np.uint32)

        self.engine = Engine(graph, programs, resolve, place=twin, judge=Homes(lambda _: mode == "auto"))
        self.engine.start()
        self.batches = edges.batches(self.size, self.seed)

    def run(self, seconds: float, least: int) -> None:
        """Epochs for so long, and so many at least."""
        graph, engine = self.graph, self.engine
        until, n = time.perf_counter() + seconds, 0
        while n < least or time.perf_counter() < until:
            n += 1
            drawn = next(self.batches)
            batch = graph.columns(len(drawn), weighted=False)
            batch.keys[:], batch.ops[:] = drawn.keys, drawn.ops
            graph.let_follow(self.whole and not engine.reads_host)
            begun = time.perf_counter()
            change = graph.apply(batch, self.edges.n_vertices)
            applied = time.perf_counter()
            runs = engine.refresh(change, applied - begun)
            ended = time.perf_counter()
            self.took.append((applied - begun, ended - (begun if self.whole else applied)))
            assert all(ran.error is None for ran in runs), runs
            self.moves += sum(ran.moved for ran in runs)
            del change, runs  # what somebody holds of a batch is read from the device before the next
        assert graph.device_lost is None, graph.device_lost

    def close(self) -> None:
        self.engine.close()
        self.graph.close()


def row_of(choices: Sequence[Choice]) -> dict[str, Any]:
    """Milliseconds of an epoch of the same choice in several graphs, each of which counts the same."""
    whole = [1e3 * np.array([whole for _, whole in choice.took]) for choice in choices]
    means = [float(each.mean()) for each in whole]
    programs = [program for choice in choices for program in choice.engine.programs]
    return {
        "ms": float(np.mean(means)),
        "median": float(np.mean([np.median(each) for each in whole])),
        "from": min(means),
        "to": max(means),
        "applying": float(np.mean([1e3 * applied for choice in choices for applied, _ in choice.took])),
        "moves": sum(choice.moves for choice in choices),
        "on device": " ".join(program.kind for program in programs if getattr(program, "on_device", False)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default="16,20,22,mathoverflow,road-luxembourg")
    parser.add_argument("--batches", default="100,10000,1000000")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--instances", type=int, default=1, help="graphs of each choice")
    parser.add_argument("--settle", type=float, default=0, help="seconds before, for the default")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--whole", action="store_true", help="whole epochs: the default against each side alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sizes = [int(word) for word in given.batches.split(",")]
    rows: list[dict[str, Any]] = []
    for name in given.graphs.split(","):
        edges = edges_of(name, given.data, given.seed)
        if edges is None:
            print(f"{name}: no file in {given.data}")
            continue
        rows += run(
            edges,
            sizes,
            given.seconds,
            given.seed,
            settle=given.settle,
            whole=given.whole,
            turns=given.turns,
            instances=given.instances,
        )
        save(
            given.json,
            {
                "machine": machine(),
                "seconds": given.seconds,
                "settle": given.settle,
                "turns": given.turns,
                "instances": given.instances,
                "whole": given.whole,
                "rows": rows,
            },
        )
    show("epochs of the default, and of each side alone" if given.whole else "epochs by where programs run", rows)


if __name__ == "__main__":
    main()
