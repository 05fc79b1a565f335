"""Histories of updates for tests: Hypothesis strategies over tiny graphs, and seeded generators for larger ones.

A history is a list of epochs over dense vertices. It holds what breaks incremental algorithms: deletions
that disconnect, edges that come back, weights that tie, vanish (zero), nearly do (subnormal) or absorb others
(1e8), vertices that appear late and go isolated, several updates of one pair in one epoch, deletions of absent
edges, self-loops; and, where they are asked for, vertices that are deleted and come back.
"""

from __future__ import annotations

import itertools
import lzma
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

from graphtide.gpma.edges import EdgeBatch, Op, pack
from graphtide.partition.existence import VertexOps

WEIGHTS = (0.0, 1e-40, 0.5, 1.0, 1.0, 2.0, 1e8)
"""Zero, a subnormal one, ties, and one that absorbs the others."""


@dataclass(frozen=True)
class Epoch:
    """Updates in order, and the number of vertices after them: uint32, uint32, uint8, float32 columns.

    Operations on vertices stand among them, and name the vertex in ``src``.
    """

    src: npt.NDArray[np.uint32]
    dst: npt.NDArray[np.uint32]
    ops: npt.NDArray[np.uint8]
    weights: npt.NDArray[np.float32]
    n_vertices: int

    def __len__(self) -> int:
        return int(self.src.size)

    def batch(self, *, weighted: bool = False) -> EdgeBatch:
        """The updates of edges."""
        if int(self.ops.max(initial=0)) <= Op.INSERT:
            return EdgeBatch.of(self.src, self.dst, self.ops, self.weights if weighted else None)
        edges = self.ops <= Op.INSERT
        weights = self.weights[edges] if weighted else None
        return EdgeBatch.of(self.src[edges], self.dst[edges], self.ops[edges], weights)

    def vertex_ops(self) -> VertexOps | None:
        """The operations on vertices; None where there are none."""
        rows = np.flatnonzero(self.ops > Op.INSERT)
        if not rows.size:
            return None
        positions = np.cumsum(self.ops <= Op.INSERT, dtype=np.int64)
        return VertexOps(self.src[rows], self.ops[rows], positions[rows])


@dataclass(frozen=True)
class History:
    """Epochs over one graph."""

    directed: bool
    epochs: tuple[Epoch, ...]

    @property
    def n_vertices(self) -> int:
        return self.epochs[-1].n_vertices if self.epochs else 0

    def rechunked(self, seed: int) -> History:
        """The same updates in the same order, cut into other epochs."""
        if not self.epochs:
            return self
        whole = _joined(self.epochs)
        rng = np.random.default_rng(seed)
        k = int(rng.integers(0, len(self.epochs) + 3))
        cuts = np.sort(rng.integers(0, len(whole) + 1, k))
        bounds = [0, *cuts.tolist(), len(whole)]
        named = np.maximum.accumulate(np.maximum(whole.src, whole.dst)) if len(whole) else np.zeros(0, np.uint32)
        epochs = []
        for begin, end in itertools.pairwise(bounds):
            n = int(named[end - 1]) + 1 if end else 0
            epochs.append(_slice(whole, begin, end, n))
        epochs[-1] = replace(epochs[-1], n_vertices=self.n_vertices)
        return History(self.directed, tuple(epochs))


class EdgeSet:
    """The oracle of storage: a dict of edges. Undirected edges are kept once, smaller vertex first.

    ``dead``: the vertices that were deleted, and did not come back.
    """

    def __init__(self, *, directed: bool) -> None:
        self.directed = directed
        self.n_vertices = 0
        self.edges: dict[tuple[int, int], float] = {}
        self.dead: set[int] = set()

    def apply(self, epoch: Epoch) -> None:
        self.n_vertices = epoch.n_vertices
        columns = (epoch.src.tolist(), epoch.dst.tolist(), epoch.ops.tolist(), epoch.weights.tolist())
        for u, v, op, weight in zip(*columns, strict=True):
            pair = (u, v) if self.directed or u <= v else (v, u)
            if op == Op.INSERT:
                self.edges[pair] = weight
                self.dead -= {u, v}
            elif op == Op.DELETE:
                self.edges.pop(pair, None)
            elif op == Op.INSERT_VERTEX:
                self.dead.discard(u)
            else:
                self.edges = {pair: weight for pair, weight in self.edges.items() if u not in pair}
                self.dead.add(u)

    def arcs(self) -> Iterator[tuple[int, int, float]]:
        """Every edge in each direction in which it can be walked."""
        for (u, v), weight in self.edges.items():
            yield u, v, weight
            if not self.directed and u != v:
                yield v, u, weight

    def simple(self) -> nx.Graph:
        """The undirected simple view: no loops, no directions."""
        graph = nx.Graph()
        graph.add_nodes_from(range(self.n_vertices))
        graph.add_edges_from((u, v) for u, v in self.edges if u != v)
        return graph


def _joined(epochs: Sequence[Epoch]) -> Epoch:
    return Epoch(
        np.concatenate([epoch.src for epoch in epochs]),
        np.concatenate([epoch.dst for epoch in epochs]),
        np.concatenate([epoch.ops for epoch in epochs]),
        np.concatenate([epoch.weights for epoch in epochs]),
        epochs[-1].n_vertices,
    )


def _slice(epoch: Epoch, begin: int, end: int, n_vertices: int) -> Epoch:
    part = slice(begin, end)
    return Epoch(epoch.src[part], epoch.dst[part], epoch.ops[part], epoch.weights[part], n_vertices)


def epoch_of(updates: Sequence[tuple[int, int, int, float]], n_vertices: int) -> Epoch:
    """An epoch from (op, src, dst, weight) tuples."""
    ops, src, dst, weights = zip(*updates, strict=True) if updates else ((), (), (), ())
    return Epoch(
        np.array(src, np.uint32),
        np.array(dst, np.uint32),
        np.array(ops, np.uint8),
        np.array(weights, np.float32),
        n_vertices,
    )


def inserts(pairs: Sequence[tuple[int, int]], n_vertices: int) -> Epoch:
    """An epoch that inserts these edges with weight 1."""
    return epoch_of([(Op.INSERT, u, v, 1.0) for u, v in pairs], n_vertices)


def hubs(rng: np.random.Generator, n_vertices: int, n_hubs: int) -> Epoch:
    """An epoch in which a few neighbouring vertices get in-edges from up to all vertices, and others a few."""
    pairs = {(int(u), int(v)) for u, v in rng.integers(0, n_vertices, (2 * n_vertices, 2))}
    first = int(rng.integers(0, n_vertices - n_hubs))
    for hub in range(first, first + n_hubs):
        pairs |= {(int(u), hub) for u in rng.permutation(n_vertices)[: rng.integers(0, n_vertices + 1)]}
    return inserts(sorted(pairs), n_vertices)


def deletes(pairs: Sequence[tuple[int, int]], n_vertices: int) -> Epoch:
    """An epoch that deletes these edges."""
    return epoch_of([(Op.DELETE, u, v, 1.0) for u, v in pairs], n_vertices)


def check_hubs(run: Any, rng: np.random.Generator) -> None:
    """Have a run of a program start on ``hubs``, and go on as they lose a part of their edges; both checked."""
    load = hubs(rng, 300, 4)
    run.apply(load)
    run.begin()
    run.check()
    each = int(rng.integers(2, 9))
    run.step(deletes(list(zip(load.src[::each], load.dst[::each], strict=True)), 300))


def road_batches(side: int, share: float, batches: int, seed: int) -> Iterator[tuple[Epoch, Epoch]]:
    """A grid that lost half of its links, like roads of large diameter: a graph, and then (change, undone) epochs.

    The first pair is the graph and nothing. A change inserts ``share`` of all links and deletes a quarter as many;
    what undoes it gives the graph back.
    """
    rng = np.random.default_rng(seed)
    n = side * side
    ids = np.arange(n).reshape(side, side)
    pairs = np.concatenate(
        [np.stack([ids[:, :-1].ravel(), ids[:, 1:].ravel()], 1), np.stack([ids[:-1].ravel(), ids[1:].ravel()], 1)]
    )
    pairs = rng.permutation(pairs)[: round(0.52 * len(pairs))]
    n_new = round(share * len(pairs))
    kept, new = pairs[n_new:], pairs[:n_new]
    yield inserts(kept.tolist(), n), inserts([], n)
    for _ in range(batches):
        gone = rng.permutation(kept)[: n_new // 4]
        yield (
            epoch_of([(op, u, v, 1.0) for op, part in ((1, new), (0, gone)) for u, v in part.tolist()], n),
            epoch_of([(op, u, v, 1.0) for op, part in ((0, new), (1, gone)) for u, v in part.tolist()], n),
        )


# -- Hypothesis ----------------------------------------------------------------------------------------------


@st.composite
def small_histories(
    draw: st.DrawFn,
    *,
    directed: bool | None = None,
    vertices_max: int = 8,
    epochs_max: int = 8,
    updates_max: int = 10,
) -> History:
    """Histories over so few vertices that every pair comes up again and again; vertices appear over time."""
    update = st.tuples(
        st.sampled_from((Op.INSERT, Op.INSERT, Op.DELETE)),
        st.integers(0, vertices_max - 1),
        st.integers(0, vertices_max - 1),
        st.sampled_from(WEIGHTS),
    )
    epochs = []
    n = 0
    for updates in draw(st.lists(st.lists(update, max_size=updates_max), min_size=1, max_size=epochs_max)):
        n = max([n, *(max(u, v) + 1 for _, u, v, _ in updates)])
        epochs.append(epoch_of(updates, n))
    return History(draw(st.booleans()) if directed is None else directed, tuple(epochs))


# -- seeded --------------------------------------------------------------------------------------------------


def random_history(
    seed: int,
    *,
    directed: bool,
    vertices: int = 40,
    epochs: int = 40,
    updates_max: int = 24,
    vertex_share: float = 0.0,
) -> History:
    """A long history over a middling graph, made of the moves named above; so many of them are of vertices."""
    rng = np.random.default_rng(seed)
    n = min(3, vertices)
    present: set[tuple[int, int]] = set()
    gone: list[tuple[int, int]] = []
    made = []
    for _ in range(epochs):
        if n < vertices and rng.random() < 0.6:
            n += int(rng.integers(1, 4))
            n = min(n, vertices)
        updates: list[tuple[int, int, int, float]] = []
        while len(updates) < rng.integers(0, updates_max + 1):
            with_vertex = vertex_share > 0 and rng.random() < vertex_share
            for op, u, v in _vertex_move(rng, n, present) if with_vertex else _move(rng, n, present, gone):
                updates.append((op, u, v, float(rng.choice(WEIGHTS))))
                if op == Op.INSERT:
                    present.add((u, v))
                elif op == Op.DELETE_VERTEX:
                    present = {pair for pair in present if u not in pair}
                elif op == Op.DELETE and (u, v) in present:
                    present.discard((u, v))
                    gone.append((u, v))
        made.append(epoch_of(updates, n))
    return History(directed, tuple(made))


def _move(
    rng: np.random.Generator, n: int, present: set[tuple[int, int]], gone: list[tuple[int, int]]
) -> list[tuple[Op, int, int]]:
    """One move: a few updates that belong together."""
    u, v = (int(x) for x in rng.integers(0, n, 2))
    edges = sorted(present)
    match rng.integers(0, 10):
        case 0 if edges:  # a vertex loses every edge
            hub = edges[rng.integers(0, len(edges))][0]
            return [(Op.DELETE, a, b) for a, b in edges if hub in (a, b)]
        case 1 if gone:  # an edge comes back
            return [(Op.INSERT, *gone[rng.integers(0, len(gone))])]
        case 2 if edges:  # deleted and inserted again, and the other way about
            a, b = edges[rng.integers(0, len(edges))]
            ops = [(Op.DELETE, a, b), (Op.INSERT, a, b)]
            return ops if rng.random() < 0.5 else [*ops, ops[0]]
        case 3 if edges:  # the mirror image of an edge
            a, b = edges[rng.integers(0, len(edges))]
            return [(Op.INSERT, b, a)]
        case 4:  # a chain, which makes depth
            length = int(rng.integers(2, 6))
            walk = rng.integers(0, n, length + 1).tolist()
            return [(Op.INSERT, a, b) for a, b in itertools.pairwise(walk)]
        case 5:
            return [(Op.INSERT, u, u)]
        case 6 | 7 if edges:
            return [(Op.DELETE, *edges[rng.integers(0, len(edges))])]
        case 8:  # most likely absent
            return [(Op.DELETE, u, v)]
    return [(Op.INSERT, u, v)]


def _vertex_move(rng: np.random.Generator, n: int, present: set[tuple[int, int]]) -> list[tuple[Op, int, int]]:
    """One move of a vertex, with edges before and behind it."""
    u, v = (int(x) for x in rng.integers(0, n, 2))
    edges = sorted(present)
    match rng.integers(0, 8):
        case 0 | 1 if edges:  # one of the greatest degree, or nearly
            ends = [end for pair in edges for end in pair]
            ranked = sorted(set(ends), key=ends.count)
            return [(Op.DELETE_VERTEX, ranked[-1 - int(rng.integers(0, min(3, len(ranked))))], 0)]
        case 2:  # some edges of before the deletion, some of after it
            around = [(Op.INSERT, u, int(x)) for x in rng.integers(0, n, 4)]
            return [*around[:2], (Op.DELETE_VERTEX, u, 0), *around[2:]]
        case 3:
            return [(Op.DELETE_VERTEX, u, 0), (Op.INSERT_VERTEX, u, 0)]
        case 4:
            return [(Op.INSERT_VERTEX, u, 0)]
        case 5:  # what is deleted twice, and two that are neighbours
            return [
                (Op.DELETE_VERTEX, u, 0),
                (Op.INSERT, u, v),
                (Op.DELETE_VERTEX, v, 0),
                (Op.DELETE_VERTEX, u, 0),
            ]
    return [(Op.DELETE_VERTEX, u, 0)]


def rmat_edges(seed: int, scale: int, n_edges: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Edges of an RMAT graph (Chakrabarti, Zhan, Faloutsos, SDM 2004) with Graph500's probabilities."""
    rng = np.random.default_rng(seed)
    src = np.zeros(n_edges, np.uint32)
    dst = np.zeros(n_edges, np.uint32)
    for _ in range(scale):
        quadrant = rng.choice(4, n_edges, p=[0.57, 0.19, 0.19, 0.05]).astype(np.uint32)
        src = (src << np.uint32(1)) | (quadrant >> np.uint32(1))
        dst = (dst << np.uint32(1)) | (quadrant & np.uint32(1))
    names = rng.permutation(1 << scale).astype(np.uint32)
    return names[src], names[dst]


class LinkChurn:
    """The links of an RMAT graph in a random order, of which most are loaded; the others come and go."""

    def __init__(self, scale: int, degree: int, seed: int = 1) -> None:
        self.n = 1 << scale
        self.rng = np.random.default_rng(seed)
        src, dst = rmat_edges(seed, scale, degree << scale)
        keys = self.rng.permutation(np.unique(pack(np.minimum(src, dst), np.maximum(src, dst))[src != dst]))
        cut = int(0.9 * keys.size)
        self.live, self.pool = keys[:cut], keys[cut:]

    def batch(self, size: int) -> EdgeBatch:
        """Four links of five come, the fifth goes."""
        n_gone = size // 5
        live, pool = self.rng.permutation(self.live), self.rng.permutation(self.pool)
        gone, come = live[:n_gone], pool[: size - n_gone]
        self.live, self.pool = np.concatenate([live[n_gone:], come]), np.concatenate([pool[size - n_gone :], gone])
        ops = np.repeat(np.array([Op.INSERT, Op.DELETE], np.uint8), [come.size, gone.size])
        return EdgeBatch(np.concatenate([come, gone]), ops)


def mixed_sizes(seed: int, epochs: int, most: int) -> list[int]:
    """Sizes of batches from 0 to ``most``, small ones and large ones alike: evenly spread by their logarithm."""
    rng = np.random.default_rng(seed)
    return (np.exp(rng.uniform(0, np.log(most + 1), epochs)) - 1).astype(int).tolist()


def rmat_history(
    seed: int,
    *,
    directed: bool,
    scale: int = 9,
    degree: int = 4,
    epochs: int = 12,
    updates: int | Sequence[int] = 60,
    vertex_share: float = 0.0,
    source: int = 0,
) -> History:
    """A load of an RMAT graph, then epochs of 80 % insertions and 20 % deletions of edges that were loaded.

    ``updates``: of each epoch; a sequence says how many each has, and how many epochs there are.
    ``vertex_share``: so many of them delete a vertex instead, mostly one of many edges; ``source`` goes with one
    epoch in eight, and comes back with the next but one.
    """
    sizes = [updates] * epochs if isinstance(updates, int) else list(updates)
    rng = np.random.default_rng(seed)
    n = 1 << scale
    at = loaded = n * degree
    src, dst = rmat_edges(seed, scale, loaded + sum(sizes))
    weights = rng.choice(np.array(WEIGHTS, np.float32), src.size)
    made = [Epoch(src[:loaded], dst[:loaded], np.ones(loaded, np.uint8), weights[:loaded], n)]
    for size in sizes:
        part = slice(at, at + size)
        u, v = src[part].copy(), dst[part].copy()
        delete = rng.random(size) < 0.2
        old = rng.integers(0, at, size)
        u[delete], v[delete] = src[old[delete]], dst[old[delete]]
        ops = np.where(delete, Op.DELETE, Op.INSERT).astype(np.uint8)
        if vertex_share and size:
            ops[rng.random(size) < vertex_share] = (
                Op.DELETE_VERTEX
            )  # of the tail of an edge: in proportion to degrees
            if len(made) % 8 in (3, 5):
                u[-1], ops[-1] = source, Op.DELETE_VERTEX if len(made) % 8 == 3 else Op.INSERT_VERTEX
        made.append(Epoch(u, v, ops, weights[part], n))
        at += size
    return History(directed, tuple(made))


# -- real ----------------------------------------------------------------------------------------------------

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def real_history(name: str, *, directed: bool, updates: int, events_max: int | None = None) -> History:
    """The public data set ``../shared/data/NAME.events.tsv.xz`` in epochs of so many updates.

    External ids become dense in order of first appearance. Weights are 1. Skips the test where the file is not
    there.
    """
    file = SHARED_DATA / f"{name}.events.tsv.xz"
    if not file.exists():
        pytest.skip(f"{file} is not there")
    with lzma.open(file, "rt") as lines:
        events = [line.split("\t")[:3] for line in itertools.islice(lines, events_max)]
    dense: dict[str, int] = {}
    ends = [(dense.setdefault(u, len(dense)), dense.setdefault(v, len(dense))) for _, u, v in events]
    ops = [Op.INSERT if op == "I" else Op.DELETE for op, _, _ in events]
    made = []
    n = 0
    for begin in range(0, len(events), updates):
        part = slice(begin, begin + updates)
        n = max(n, *(max(pair) + 1 for pair in ends[part]))
        made.append(epoch_of([(op, u, v, 1.0) for op, (u, v) in zip(ops[part], ends[part], strict=True)], n))
    return History(directed, tuple(made))


def failing(call: Callable[..., Any], at: int) -> Callable[..., Any]:
    """That function, which runs out of memory when it is called for the ``at``-th time (from 0)."""
    calls = itertools.count()

    def fail(*arguments: Any) -> Any:
        if next(calls) == at:
            raise MemoryError
        return call(*arguments)

    return fail
