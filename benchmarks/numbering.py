"""What the numbering of vertices is worth, stream by stream, and what it costs to number them anew.

    python benchmarks/numbering.py [--data ../shared/data] [--streams web-cnr2000,road-luxembourg] [--scales 18,20]
    python benchmarks/numbering.py --scales 22 --streams '' --orders arrival,breadth-first,random

Streams are real ones (``real_streams.py``) and RMAT graphs, each in three forms: *as it came*; *in random order*,
its edges shuffled; and *churned*, where a window of a quarter of the edges moves over the stream and the ids of
vertices that have none left go to others (RMAT, whose edges have no order, is not shuffled). For each the same
graph is held in several orders of its vertices at once:

- *arrival*: dense ids as the vertex index gave them;
- *breadth-first*: as a restart numbers them anew where that pays (``partition/numbering.py``); the column *pays*
  says whether it would, *renumber ms* what comparing and doing it takes;
- *classes*: by powers of two of the degree, hubs first, within a class as they arrived;
- *random*.

Milliseconds are processor time on one thread: the least of so many fresh starts, and the median refresh after
batches of a hundredth of the edges (10,000 at most), four upserts to a deletion; all orders take turns. *scatter*
is the share of gathers of a pass that a megabyte of cache would miss. Ratios are to *arrival* in the same run:
above 1 it is better.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import real_streams
import rmat_pool
from report import machine, save, show
from rich.progress import Progress

from graphtide.compute import registry
from graphtide.compute.engine import Engine
from graphtide.gpma.edges import EdgeBatch, EdgeList, Keys, Op, Vertices, destinations, pack, sources
from graphtide.gpma.host import array as pma
from graphtide.gpma.index.id_order import IdOrder, order_of
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition import graph as storage
from graphtide.partition import numbering
from graphtide.partition.graph import Graph

PROGRAMS = ("bfs", "components", "pagerank")
ORDERS = ("arrival", "breadth-first", "classes", "random")
FORMS = ("as it came", "in random order", "churned")
WINDOW, STEPS = 4, 64
"""A churned stream keeps one in so many of its edges, and moves on in so many steps."""
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """A graph with its vertices numbered by arrival: arcs ascending, and the dense ids that are dead."""

    name: str
    form: str
    keys: Keys
    n_vertices: int
    dead: Vertices
    directed: bool


def case(name: str, form: str, src: Ids, dst: Ids, *, directed: bool, seed: int) -> Case:
    """What a stream of inserts leaves in one of its forms."""
    if form == "in random order":
        order = np.random.default_rng(seed).permutation(src.size)
        src, dst = src[order], dst[order]
    index = VertexIndex.create("int")
    if form != "churned":
        tails, heads = index.insert_edges(src, dst)
        return Case(
            name, form, _stored(tails, heads, directed), index.n_vertices, np.empty(0, np.uint32), directed
        )
    window, step = src.size // WINDOW, max(1, src.size // STEPS)
    for end in range(window, src.size + 1, step):
        kept = slice(end - window, end)
        index.insert_edges(src[kept], dst[kept])
        ids = np.arange(index.n_vertices, dtype=np.uint32)
        here = index.lookup(np.unique(np.concatenate([src[kept], dst[kept]])))
        gone = np.setdiff1d(ids, np.concatenate([here, index.free_vertices]))
        index.remove(gone)
        index.free(gone)
    ends = index.lookup(src[kept]), index.lookup(dst[kept])
    return Case(name, form, _stored(*ends, directed), index.n_vertices, np.sort(index.free_vertices), directed)


def _stored(src: Vertices, dst: Vertices, directed: bool) -> Keys:
    keys = pack(src, dst)
    return rmat_pool.distinct(keys if directed else np.concatenate([keys, pack(dst, src)]))


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for name in options.streams:
        stream = real_streams.read(options.data, name)
        inserted = stream.events.ops == Op.INSERT
        src, dst = stream.events.src[inserted], stream.events.dst[inserted]
        for form in FORMS:
            yield case(name, form, src, dst, directed=stream.directed, seed=options.seed)
    for scale in options.scales:
        with tempfile.TemporaryDirectory() as folder:
            keys = np.array(rmat_pool.make(Path(folder), scale, options.seed).pairs)
        src, dst = sources(keys).astype(np.int64), destinations(keys).astype(np.int64)
        for form in (FORMS[0], FORMS[2]):
            yield case(f"RMAT {scale}", form, src, dst, directed=True, seed=options.seed)


class Held:
    """A graph in one order of its vertices, with every program kept."""

    def __init__(self, case: Case, places: Vertices, n_vertices: int) -> None:
        self._places, self._n = places, n_vertices
        self.graph = Graph(directed=case.directed, weighted=False, threads=1)
        self.graph.load(EdgeList(np.sort(self.keys(case.keys))), n_vertices)
        root = int(places[np.bincount(sources(case.keys)).argmax()])
        self.engines = {}
        for kind in PROGRAMS:
            given = {"source": root} if kind == "bfs" else {}
            program = registry.make_program(kind, None, given, _ByNumber())
            self.engines[kind] = Engine(self.graph, [program], lambda ids: np.array(ids, np.uint32), threads=1)

    def keys(self, keys: Keys) -> Keys:
        return pack(self._places[sources(keys)], self._places[destinations(keys)])

    def update(self, keys: Keys, ops: npt.NDArray[np.uint8]) -> Iterator[tuple[str, float]]:
        batch = EdgeBatch(self.keys(keys), ops, None)
        changes = []
        yield "apply", used_ms(lambda: changes.append(self.graph.apply(batch, self._n)))
        for kind, engine in self.engines.items():
            yield f"{kind} refresh", used_ms(lambda engine=engine: engine.refresh(changes[0]))  # type: ignore[misc]

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()
        self.graph.close()


class _ByNumber:
    """An order of vertices: the dense one."""

    def smallest(self, dense: Vertices) -> int:
        return int(dense.min())

    def sort_by_external(self, dense: Vertices) -> Vertices:
        return np.sort(dense)

    def comparable(self, n_vertices: int) -> IdOrder:
        return order_of()


def used_ms(work: Callable[[], object]) -> float:
    """Milliseconds of the processor, of all threads."""
    begun = time.process_time()
    work()
    return (time.process_time() - begun) * 1e3


def orders(case: Case, names: list[str], seed: int) -> Iterator[tuple[str, Vertices, dict[str, Any]]]:
    """The vertices of a graph in each order, without the dead ones (but by arrival), and what is known of it."""
    rng = np.random.default_rng(seed)
    alive = np.setdiff1d(np.arange(case.n_vertices, dtype=np.uint32), case.dead)
    degrees = np.bincount(sources(case.keys), minlength=case.n_vertices)
    degrees += np.bincount(destinations(case.keys), minlength=case.n_vertices)
    edges, graph = EdgeList(case.keys), Graph(directed=case.directed, weighted=False, threads=1)
    rows = numbering.Rows.of(edges, case.n_vertices, directed=case.directed, by_heads=graph.by_heads)
    found: dict[str, Any] = {}
    took = used_ms(
        lambda: found.update(
            appraisal=numbering.appraise(
                edges, case.n_vertices, case.dead, directed=case.directed, by_heads=graph.by_heads
            )
        )
    )
    breadth_first = numbering.breadth_first(rows, case.dead)
    took += used_ms(lambda: numbering.renumbered(edges, breadth_first, case.n_vertices, graph.by_heads))
    made = {
        "arrival": np.arange(case.n_vertices, dtype=np.uint32),
        "breadth-first": breadth_first,
        "classes": alive[np.argsort(-np.log2(np.maximum(degrees[alive], 1)).astype(int), kind="stable")],
        "random": rng.permutation(alive),
    }
    for name in names:
        row: dict[str, Any] = {"scatter": numbering.scatter(rows, made[name])}
        if name == "breadth-first":
            row |= {"pays": "yes" if found["appraisal"].order is not None else "no", "renumber ms": took}
        yield name, made[name], row
    graph.close()


def measure(case: Case, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each order."""
    held, known = {}, {}
    for name, order, row in orders(case, options.orders, options.seed):
        held[name] = Held(case, numbering.places_of(order, case.n_vertices), order.size)
        known[name] = row
    times: dict[tuple[str, str], list[float]] = {}
    for turn in range(options.rounds + 1):
        for name, one in held.items():
            for kind, engine in one.engines.items():
                took = used_ms(engine.start)
                if turn:
                    times.setdefault((name, f"{kind} fresh"), []).append(took)
    rng = np.random.default_rng(options.seed)
    batch = min(10_000, case.keys.size // 100)
    for turn in range(options.rounds + 1):
        keys = case.keys[rng.integers(0, case.keys.size, batch)]
        ops = (rng.random(batch) < 0.8).astype(np.uint8)
        for name, one in held.items():
            for what, took in one.update(keys, ops):
                if turn:
                    times.setdefault((name, what), []).append(took)
    for one in held.values():
        one.close()
    rows = []
    for name, row in known.items():
        least = {what: min(took) for (whose, what), took in times.items() if whose == name and "fresh" in what}
        usual = {what: float(np.median(took)) for (whose, what), took in times.items() if whose == name} | least
        line: dict[str, Any] = {"stream": case.name, "form": case.form, "order": name}
        line |= {"vertices": case.n_vertices - case.dead.size, "arcs": case.keys.size}
        line |= {"pays": "", "renumber ms": ""} | row
        for what, value in usual.items():
            line[f"{what} ms"] = value
            base = times["arrival", what]
            line[f"{what} x"] = (min(base) if "fresh" in what else float(np.median(base))) / value
        rows.append(line)
    return rows


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the table has it, each ratio behind its milliseconds."""
    cells = {name: row[name] for name in ("order", "pays", "scatter")}
    for name, value in row.items():
        what, _, unit = name.rpartition(" ")
        if f"{what} x" in row and unit == "ms":
            cells[what] = f"{value:,.3g} ({row[f'{what} x']:.2f})"
    return cells | {"renumber ms": row["renumber ms"]}


def main() -> None:
    words = lambda text: [part for part in text.split(",") if part]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared/data")
    add("--streams", type=words, default=["web-cnr2000", "road-luxembourg", "mathoverflow", "social-mit8"])
    add("--scales", type=lambda text: [int(part) for part in words(text)], default=[20])
    add("--orders", type=words, default=list(ORDERS), help="arrival must be among them")
    add("--rounds", type=int, default=3)
    add("--seed", type=int, default=1)
    add("--json", type=Path)
    options = parser.parse_args()
    pma.warm_up()
    storage.warm_up()
    given = [(kind, {"source": 0} if kind == "bfs" else {}) for kind in PROGRAMS]
    registry.warm_up(directed=True, weighted=False, programs=given)
    rows: list[dict[str, Any]] = []
    with Progress(transient=True) as progress:
        for one in progress.track(cases(options), total=3 * len(options.streams) + 2 * len(options.scales)):
            found = measure(one, options)
            title = f"{one.name}, {one.form}: {found[0]['vertices']:,} vertices, {found[0]['arcs']:,} arcs; ms (x)"
            show(title, [shown(row) for row in found])
            rows += found
    parameters = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    save(options.json, {"machine": machine(), "parameters": parameters, "rows": rows})


if __name__ == "__main__":
    main()
