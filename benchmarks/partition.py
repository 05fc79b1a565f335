"""What policies are worth: bytes that a device would read of the host's rows, by policy, on the same streams.

Real streams and the generator's. Half of the edges are the device's: each policy divides the loaded graph and
moves rows from then on, by its own rebalancer. BFS, SSSP and PageRank run on the host, after every batch. What
the device would have read of the host is reckoned from what they did: both rows of each vertex whose distance or
parent changed, the out-row of each whose rank was pushed on; where PageRank went over all edges, which is
streamed and the same for all policies, the others count alone. A row that is read is so many lines of 128 bytes.
``hindsight``: what the half would have left over that is best for what was read, which no policy can know.
``cache``: of the bytes that ``cost`` leaves, what a cache of rows on the device would have had already, by its
size as a share of all edges: rows that were read last, each until a batch changes it.

Times are reckoned, too: an epoch takes 1 ms, and what is read over a bus that is as slow as to take 1 ms for what
``hash`` reads at first; an edge that moves takes 50 ns. Nothing here depends on the machine but how long it runs.

    python benchmarks/partition.py [--data ../shared/data] [--scale 18] [--epochs 400] [--json out.json]
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from real_streams import part, read
from report import machine, save, show

from graphtide.compute import registry
from graphtide.compute.engine import Engine, ProgramRun
from graphtide.compute.program import ExternalId
from graphtide.daemon.tools.generate import Churn, Updates
from graphtide.gpma.edges import EdgeBatch, Op, Vertices, destinations, pack, sources
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.classes import CLASSES, DEVICE, Stock
from graphtide.partition.division import SPARE, divide
from graphtide.partition.graph import Graph, GraphChange
from graphtide.partition.measures import Measures
from graphtide.partition.placement import HOST
from graphtide.partition.policies import KEY_BYTES, POLICIES, remote_bytes
from graphtide.partition.rebalancing import Rebalancer

STREAMS = ("as733-21days", "collegemsg", "mathoverflow", "road-luxembourg", "social-mit8", "web-cnr2000")
RESIDENT = 0.5
EDGE_BYTES = 20
WEIGHTS = 255
"""Of edges: whole numbers up to this, by their ends."""
EPOCH_S, READS_S, MOVE_S = 1e-3, 1e-3, 5e-8
CHOOSING, SETTLING = 16, 200
"""Epochs before those that count: by the first of them the bus is chosen."""
BY_READS = "cost, by reads"
"""As ``cost``, but a row's age is that of its last change or read."""

CACHES = (0.02, 0.1)
"""Of all edges: what caches of rows hold."""

Counts = npt.NDArray[np.int64]


@dataclass
class Reads:
    """Vertices whose out-rows, and whose in-rows, an epoch read; each once in either."""

    out: Vertices
    in_: Vertices
    passes: int = 0


@dataclass
class Division:
    """The rows under one policy."""

    rebalancer: Rebalancer
    owner: npt.NDArray[np.uint8]
    bytes: list[int] = field(default_factory=list)
    moved: int = 0
    moved_before: int = 0


class RowCache:
    """Rows that a device keeps of those that it read of the host, of one orientation."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.hit_bytes = 0
        self._rows: OrderedDict[int, int] = OrderedDict()
        self._held = 0

    def read(self, vertices: Vertices, lengths: Counts, edges: int) -> None:
        """Rows of the host are read, each once; the least recently used leave a cache that is full."""
        for vertex, length, over_bus in zip(
            vertices.tolist(), lengths.tolist(), _bytes(lengths).tolist(), strict=True
        ):
            if vertex in self._rows:
                self._rows.move_to_end(vertex)
                self.hit_bytes += int(over_bus)
            elif length <= self.share * edges:
                self._rows[vertex] = length
                self._held += length
        while self._held > self.share * edges:
            self._held -= self._rows.popitem(last=False)[1]

    def changed(self, vertices: Vertices) -> None:
        """A batch names these rows."""
        for vertex in vertices.tolist():
            self._held -= self._rows.pop(vertex, 0)


class Replay:
    """A graph with its programs, and how each policy divides it."""

    def __init__(self, loaded: Sequence[Updates], *, directed: bool) -> None:
        self.index = VertexIndex.create("int")
        self.graph = Graph(directed=directed)
        for updates in loaded:
            self.apply(updates)
        degrees = self.stock(np.empty(0, np.uint8)).out_degrees
        hub = int(self.index.external(np.array([degrees.argmax()], np.uint32))[0])
        parameters: dict[str, dict[str, Any]] = {"bfs": {"source": hub}, "sssp": {"source": hub}, "pagerank": {}}
        programs = [registry.make_program(kind, None, given, self.index) for kind, given in parameters.items()]
        self.engine = Engine(self.graph, programs, self.resolve)
        self.engine.start()
        self.bus_s = 0.0
        self.worth = np.zeros(0)
        # Of each size one for out-rows and one for in-rows; they hold what ``cost`` leaves on the host.
        self.caches = {share: (RowCache(share), RowCache(share)) for share in CACHES}
        self.divisions = {policy: self.divided(policy) for policy in POLICIES} | {BY_READS: self.divided("cost")}

    def resolve(self, ids: Sequence[ExternalId]) -> Vertices:
        return self.index.lookup(np.array(ids, np.int64))

    def apply(self, updates: Updates) -> GraphChange:
        src, dst = self.index.insert_edges(updates.src, updates.dst)
        weights = 1 + (updates.src * 31 + updates.dst * 17) % WEIGHTS
        keys = pack(src, dst)
        return self.graph.apply(EdgeBatch(keys, updates.ops, weights.astype(np.float32)), self.index.n_vertices)

    def stock(self, owner: npt.NDArray[np.uint8]) -> Stock:
        n = self.graph.n_vertices
        out = self.graph.degrees("out")[:n]
        return Stock(owner, out, self.graph.degrees("in")[:n] if self.graph.directed else out[:0])

    @property
    def limit(self) -> int:
        """Of the device, for half of the edges and some to spare."""
        _, out, in_ = self.stock(np.empty(0, np.uint8))
        return int((int(out.sum()) + int(in_.sum())) * EDGE_BYTES * RESIDENT / (1 - SPARE))

    def divided(self, policy: str) -> Division:
        _, out, in_ = self.stock(np.empty(0, np.uint8))
        owner = divide(out, in_, EDGE_BYTES, self.limit, POLICIES[policy])
        division = Division(Rebalancer(lambda: self.stock(division.owner), policy), owner)
        return division

    def epoch(self, updates: Updates) -> Reads:
        """Apply a batch, bring programs up to date, and let each policy have its epoch."""
        change = self.apply(updates)
        reads = self.read_by(self.engine.refresh(change))
        arcs = change.arcs
        keys = np.concatenate([arcs.inserted.keys, arcs.overwritten.keys, arcs.deleted.keys])
        changed = np.unique(np.concatenate([sources(keys), destinations(keys)]))
        self._remember(reads)
        changed_or_read = np.union1d(changed, reads.out)
        self._cache(reads, (np.unique(sources(keys)), np.unique(destinations(keys))))
        for name, division in self.divisions.items():
            self._account(division, reads, changed_or_read if name == BY_READS else changed, len(updates))
        return reads

    def read_by(self, runs: Sequence[ProgramRun]) -> Reads:
        bfs, sssp, pagerank = (run.refresh for run in runs)
        assert bfs is not None and sssp is not None and pagerank is not None
        n = self.graph.n_vertices
        found = np.union1d(_changed(bfs.changed, n), _changed(sssp.changed, n))
        is_pass = pagerank.edges_read >= self.graph.n_edges
        out = found if is_pass else np.union1d(found, _changed(pagerank.changed, n))
        return Reads(out, found if self.graph.directed else found[:0], int(is_pass))

    def _account(self, division: Division, reads: Reads, changed: Vertices, updates: int) -> None:
        n = self.graph.n_vertices
        new = np.full(n - division.owner.size, division.rebalancer.newcomers, np.uint8)
        division.owner = np.concatenate([division.owner, new])
        stock = self.stock(division.owner)
        both = stock.out_degrees.astype(np.int64)
        both = both + stock.in_degrees if stock.in_degrees.size else both
        over_bus, by_class = 0, np.zeros(CLASSES, np.int64)
        for vertices, degrees in ((reads.out, stock.out_degrees), (reads.in_, stock.in_degrees)):
            lengths = degrees[vertices].astype(np.int64) if vertices.size else vertices.astype(np.int64)
            classes = division.rebalancer.ages.classes(vertices, both[vertices])
            by_class += np.bincount(classes, lengths, CLASSES).astype(np.int64)
            over_bus += int(_bytes(lengths[division.owner[vertices] == HOST]).sum())
        on_device = int(both[division.owner == DEVICE].sum())
        division.rebalancer.ages.changed(changed)
        moved = division.moved_before
        measures = Measures(
            seconds=EPOCH_S + over_bus * self.bus_s + moved * MOVE_S,
            device_bytes=on_device * EDGE_BYTES,
            device_limit=self.limit,
            host_edges=int(both.sum()) - on_device,
            device_edges=on_device,
            device_programs_s=EPOCH_S + over_bus * self.bus_s,
            updates=updates,
            remote_s=over_bus * self.bus_s,
            reads=by_class,
            moved_edges=moved,
            moved_s=moved * MOVE_S,
        )
        moves = division.rebalancer.observe(measures) or []
        for move in moves:
            division.owner[move.vertices] = move.to
        division.bytes.append(over_bus)
        division.moved_before = sum(int(both[move.vertices].sum()) for move in moves)
        division.moved += division.moved_before

    def _cache(self, reads: Reads, changed: tuple[Vertices, Vertices]) -> None:
        """Rows that changed leave the caches; then those of the host are read. Before anything moves."""
        owner = self.divisions["cost"].owner
        _, *degrees = self.stock(owner)
        there = [rows[rows < owner.size] for rows in (reads.out, reads.in_)]
        for caches in self.caches.values():
            for cache, rows, lengths, named in zip(caches, there, degrees, changed, strict=True):
                cache.changed(named)
                if lengths.size:
                    remote = rows[owner[rows] == HOST]
                    cache.read(remote, lengths[remote].astype(np.int64), int(lengths.sum()))

    def _remember(self, reads: Reads) -> None:
        """What each vertex was worth on the device, in bytes."""
        _, out, in_ = self.stock(np.empty(0, np.uint8))
        self.worth = np.append(self.worth, np.zeros(out.size - self.worth.size))
        self.worth[reads.out] += _bytes(out[reads.out].astype(np.int64))
        self.worth[reads.in_] += _bytes(in_[reads.in_].astype(np.int64))

    def hindsight(self) -> float:
        """Bytes that had been read if the vertices of most worth for their edges were the device's."""
        _, out, in_ = self.stock(np.empty(0, np.uint8))
        both = out.astype(np.int64) + (in_ if in_.size else 0)
        order = np.argsort(-self.worth / np.maximum(1, both), kind="stable")
        host = np.cumsum(both[order]) > RESIDENT * both.sum()
        return float(self.worth[order[host]].sum())

    def close(self) -> None:
        self.engine.close()
        self.graph.close()


def _bytes(lengths: Counts) -> npt.NDArray[np.float64]:
    """What comes over the bus for rows of these lengths."""
    there = np.maximum(1, lengths).astype(np.float64)
    return np.where(lengths > 0, KEY_BYTES * there * remote_bytes(there), 0.0)


def _changed(columns: Any, n: int) -> Vertices:
    """The vertices that any of the columns names; None: all of them."""
    if any(changed is None for changed in columns.values()):
        return np.arange(n, dtype=np.uint32)
    found: Vertices = np.unique(np.concatenate([np.empty(0, np.uint32), *columns.values()]))
    return found


def measured(name: str, replay: Replay, batches: Iterator[Updates], batch: int) -> dict[str, Any]:
    """A row of the table: bytes over the bus by policy, after the bus was chosen."""
    passes = epochs = 0
    for k, updates in enumerate(batches):
        reads = replay.epoch(updates)
        if k + 1 == CHOOSING:
            first = np.mean(replay.divisions["hash"].bytes)
            replay.bus_s = READS_S / max(1.0, float(first))
        if k + 1 == SETTLING:
            for division in replay.divisions.values():
                division.bytes.clear()
            replay.worth[:] = 0
            for cache in (each for caches in replay.caches.values() for each in caches):
                cache.hit_bytes = 0
        elif k >= SETTLING:
            passes += reads.passes
            epochs += 1
    total: dict[str, float] = {name: sum(division.bytes) for name, division in replay.divisions.items()}
    total["hindsight"] = replay.hindsight()
    replay.close()
    least = max(1, total["hash"])
    return {
        "stream": name,
        "edges": replay.graph.n_edges,
        "epochs": epochs,
        "batch": batch,
        "passes": passes,
        "hash KB/epoch": total["hash"] / max(1, epochs) / 1e3,
        **{f"{name} / hash": total[name] / least for name in total if name != "hash"},
        **{
            f"cache {share:.0%}": sum(each.hit_bytes for each in caches) / max(1, total["cost"])
            for share, caches in replay.caches.items()
        },
        "cost moved / edges": replay.divisions["cost"].moved / max(1, 2 * replay.graph.n_arcs),
    }


def real(folder: Path, name: str, epochs: int) -> dict[str, Any]:
    """A real stream, the end of which comes in batches of a fifty-thousandth of its updates."""
    stream = read(folder, name)
    batch = max(1, stream.size // 50_000)
    size = min(stream.size, batch * (epochs + SETTLING)) // 5 * 5
    loaded, rest = stream.split(size)
    batches = (part(rest, begin, begin + batch) for begin in range(0, size - batch + 1, batch))
    return measured(name, Replay([loaded], directed=stream.directed), batches, batch)


def generated(scale: int, epochs: int, batch: int, seed: int) -> dict[str, Any]:
    """The generator's stream: any pairs, all alike."""
    churn = Churn(scale=scale, pool=16 << scale, seed=seed)
    batches = (churn.next(batch) for _ in range(epochs + SETTLING))
    replay = Replay(list(churn.load(churn.settles_at)), directed=True)
    return measured(f"rmat {scale}", replay, batches, batch)


def drifting(scale: int, epochs: int, batch: int, seed: int) -> dict[str, Any]:
    """The generator's graph, of which a sixteenth of the vertices gets all updates, and by and by another."""
    churn = Churn(scale=scale, pool=16 << scale, seed=seed)
    replay = Replay(list(churn.load(churn.settles_at)), directed=True)
    rng = np.random.default_rng(seed)
    spots = churn.src // (1 << scale - 4)

    def batches() -> Iterator[Updates]:
        for k in range(epochs + SETTLING):
            among = np.flatnonzero(spots == k // 200 % 16)
            chosen = rng.choice(among, batch)
            ops = np.where(rng.random(batch) < churn.delete_share, Op.DELETE, Op.INSERT).astype(np.uint8)
            yield Updates(churn.src[chosen], churn.dst[chosen], ops, np.ones(batch, np.float32))

    return measured(f"rmat {scale}, a hot spot", replay, batches(), batch)


def run(folder: Path, names: Sequence[str], scale: int, epochs: int, seed: int) -> list[dict[str, Any]]:
    """All rows; streams that are not there are left out."""
    there = [name for name in names if (folder / f"{name}.events.tsv.xz").exists()]
    rows = [real(folder, name, epochs) for name in there]
    for batch in (10, 100):
        rows.append(generated(scale, epochs, batch, seed))
        rows.append(drifting(scale, epochs, batch, seed))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=shared)
    parser.add_argument("--streams", nargs="*", default=STREAMS)
    parser.add_argument("--scale", type=int, default=18)
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = run(given.data, given.streams, given.scale, given.epochs, given.seed)
    show("remote bytes by policy, half of the edges resident", rows)
    save(
        given.json, {"machine": machine(), "parameters": {"scale": given.scale, "seed": given.seed}, "rows": rows}
    )


if __name__ == "__main__":
    main()
