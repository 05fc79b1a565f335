"""Streams for the storage benchmarks: RMAT graphs half loaded, the shapes that break packed arrays, replays.

A stream is an array of edges that are there before the clock starts, and batches that follow. Keys are
``src << 32 | dst`` over dense vertices.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from graphtide.daemon.tools.generate import rmat_pairs
from graphtide.gpma.edges import EdgeBatch, EdgeList, Keys, Weights, distinct, pack

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
EDGES_PER_VERTEX = 16
# The edges that a shape begins with lead to so many vertices.
_HEADS = 1 << 16


@dataclass(frozen=True)
class Stream:
    """``loaded`` (ascending, with weights) between ``n_vertices`` vertices, then ``batches()`` of one size."""

    n_vertices: int
    loaded: EdgeList
    batches: Callable[[], Iterator[EdgeBatch]]


def random_weights(count: int, rng: np.random.Generator) -> Weights:
    """float32[count], whole numbers from 1 to 255."""
    return rng.integers(1, 256, count).astype(np.float32)


def rmat_graph(scale: int, seed: int) -> Keys:
    """The distinct edges of an RMAT graph without loops, ids permuted, in random order."""
    rng = np.random.default_rng(seed)
    pairs = rmat_pairs(scale, EDGES_PER_VERTEX << scale, rng)
    names = rng.permutation(1 << scale).astype(np.uint32)
    keys = pack(names[(pairs >> np.uint64(32)).astype(np.int64)], names[pairs.astype(np.uint32)])
    return rng.permutation(distinct(keys[keys >> np.uint64(32) != keys & np.uint64(0xFFFF_FFFF)]))


def rmat_stream(keys: Keys, scale: int, kind: str, batch: int, seed: int) -> Stream:
    """``insert``: half is loaded, the other half follows. ``delete``: all is loaded, half of it goes. ``mixed``:
    half is loaded; batches are 80% new edges and 20% deletions of edges that were loaded."""
    rng = np.random.default_rng(seed)
    half = keys.size // 2
    there = keys if kind == "delete" else keys[:half]
    inserts = {"insert": batch, "delete": 0, "mixed": batch - batch // 5}[kind]
    deletes = batch - inserts

    def batches() -> Iterator[EdgeBatch]:
        for i in range(
            min((keys.size - half) // inserts if inserts else half, half // deletes if deletes else half)
        ):
            fresh = keys[half + i * inserts : half + (i + 1) * inserts]
            doomed = keys[i * deletes : (i + 1) * deletes]
            yield _shuffled(fresh, doomed, rng)

    return Stream(1 << scale, _sorted(there, rng), batches)


def shape_names() -> list[str]:
    """The shapes of ``shape_stream``."""
    return ["ascending", "descending", "hub row", "one leaf", "sliding window"]


def shape_stream(shape: str, loaded: int, batch: int, updates: int, seed: int) -> Stream:
    """A graph of ``loaded`` random edges, and ``updates`` more that all fall where it hurts.

    Ascending and descending keys fall behind the last and before the first key; a hub row takes random
    neighbours; one leaf takes keys between two neighbouring ones; a window deletes as much at its lower end
    as it takes at its upper end.
    """
    rng = np.random.default_rng(seed)
    rows = max(1 << 16, loaded // EDGES_PER_VERTEX)
    first = np.uint64(updates // EDGES_PER_VERTEX + 1)  # rows below are left to descending keys
    src = first + np.sort(rng.integers(0, rows, loaded, np.uint64))
    keys = distinct((src << np.uint64(32)) | rng.integers(0, _HEADS, loaded, np.uint64))
    count = np.arange(updates, dtype=np.uint64)
    row, head = count // np.uint64(EDGES_PER_VERTEX), count % np.uint64(EDGES_PER_VERTEX)
    beyond = first + np.uint64(rows)
    hub = (first + np.uint64(rows // 2)) << np.uint64(32)
    new = {
        "ascending": ((beyond + row) << np.uint64(32)) | head,
        "descending": ((row << np.uint64(32)) | head)[::-1],
        "hub row": hub | rng.permutation(count),
        "one leaf": hub | (np.uint64(_HEADS) + rng.permutation(count)),
        "sliding window": ((beyond + row) << np.uint64(32)) | head,
    }[shape]
    old = keys[: updates // 2] if shape == "sliding window" else keys[:0]

    def batches() -> Iterator[EdgeBatch]:
        step = batch // 2 if shape == "sliding window" else batch
        for begin in range(0, (updates // 2 if shape == "sliding window" else updates) - step + 1, step):
            yield _shuffled(new[begin : begin + step], old[begin : begin + step], rng)

    n_vertices = max(int(beyond) + updates // EDGES_PER_VERTEX + 1, _HEADS + updates)
    return Stream(n_vertices, EdgeList(keys, random_weights(keys.size, rng)), batches)


def replays(folder: Path) -> list[str]:
    """The real streams that are there."""
    return sorted(path.name.removesuffix(".events.tsv.xz") for path in folder.glob("*.events.tsv.xz"))


def read_events(folder: Path, name: str) -> tuple[int, EdgeBatch]:
    """(vertices, all updates in their order) of one real stream."""
    with lzma.open(folder / f"{name}.events.tsv.xz", "rt") as lines:
        rows = [line.split("\t", 4) for line in lines]
    ends = np.array([row[1:3] for row in rows], np.int64)
    external, dense = np.unique(ends, return_inverse=True)
    dense = dense.reshape(ends.shape)
    ops = np.array([row[0] == "I" for row in rows], np.uint8)
    weights = np.array([1.0 if row[3] == "-" else float(row[3]) for row in rows], np.float32)
    return external.size, EdgeBatch(pack(dense[:, 0], dense[:, 1]), ops, weights)


def replay_stream(n_vertices: int, events: EdgeBatch, batch: int) -> Stream:
    """A real stream in its order, from an empty graph on."""
    assert events.weights is not None
    weights = events.weights

    def batches() -> Iterator[EdgeBatch]:
        for begin in range(0, len(events), batch):
            part = slice(begin, begin + batch)
            yield EdgeBatch(events.keys[part], events.ops[part], weights[part])

    nothing = EdgeList(np.empty(0, np.uint64), np.empty(0, np.float32))
    return Stream(n_vertices, nothing, batches)


def _shuffled(inserted: Keys, deleted: Keys, rng: np.random.Generator) -> EdgeBatch:
    """A batch in random order where it has both kinds; else in the order given."""
    keys = np.concatenate([inserted, deleted])
    ops = np.zeros(keys.size, np.uint8)
    ops[: inserted.size] = 1
    if inserted.size and deleted.size:
        order = rng.permutation(keys.size)
        keys, ops = keys[order], ops[order]
    return EdgeBatch(keys, ops, random_weights(keys.size, rng))


def _sorted(keys: npt.NDArray[np.uint64], rng: np.random.Generator) -> EdgeList:
    return EdgeList(np.sort(keys), random_weights(keys.size, rng))
