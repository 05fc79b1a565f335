"""Rows without gaps: against a walk of every row in place, however the work is divided."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from crews import THREADS, crew
from crews import crews as crews

from graphtide.gpma.edges import EdgeBatch, SubCSR
from graphtide.gpma.host import gather as gathering
from graphtide.gpma.host.array import PackedMemoryArray
from graphtide.gpma.host.gather import copy_edges, gather
from graphtide.gpma.rows import copy_row

N = 3000


@pytest.fixture(scope="module", params=[True, False])
def array(request: pytest.FixtureRequest) -> PackedMemoryArray:
    """Rows of one edge and of thousands, empty ones, and leaves that deletions have thinned out."""
    rng = np.random.default_rng(5)
    made = PackedMemoryArray(weighted=request.param, crew=crew(2))
    made.ensure_vertices(N)
    src = np.concatenate([((N - 1) * rng.random(30_000) ** 4).astype(int), np.full(2500, 17), np.full(9000, 2000)])
    dst = rng.integers(0, N, src.size)
    src[src % 7 == 3] += 1
    made.apply(EdgeBatch.of(src, dst, np.ones(src.size, np.uint8), rng.random(src.size).astype(np.float32)))
    gone = rng.random(src.size) < 0.4
    made.apply(EdgeBatch.of(src[gone], dst[gone], np.zeros(int(gone.sum()), np.uint8)))
    return made


def one_by_one(array: PackedMemoryArray, vertices: np.ndarray) -> SubCSR:
    rows = array.view()
    offsets = np.concatenate([[0], np.cumsum(rows.degrees[vertices], dtype=np.int64)])
    neighbors = np.empty(offsets[-1], np.uint32)
    weights = np.empty(offsets[-1] if array.weighted else 0, np.float32)
    for u, begin, end in zip(vertices.tolist(), offsets, offsets[1:], strict=False):
        assert copy_row(rows, u, 0, neighbors[begin:end], weights[begin:end]) == end - begin
    return SubCSR(vertices, offsets, neighbors, weights if array.weighted else None)


def same(mine: SubCSR, theirs: SubCSR) -> None:
    for name in ("vertices", "offsets", "neighbors"):
        assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
        assert getattr(mine, name).dtype == getattr(theirs, name).dtype
    if mine.weights is None:
        assert theirs.weights is None
    else:
        assert np.array_equal(mine.weights, theirs.weights)


CHOSEN = {
    "all": np.arange(N),
    "backwards": np.arange(N)[::-1],
    "any, with repeats": np.random.default_rng(6).integers(0, N, 4000),
    "runs": np.concatenate([np.arange(10, 40), np.arange(15, 60), np.arange(1990, 2010)]),
    "hubs": np.array([2000, 17, 2000, 0]),
    "one": np.array([2999]),
    "none": np.array([], int),
}


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("chosen", CHOSEN)
def test_gathers_what_walking_finds(
    array: PackedMemoryArray, chosen: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "PIECE_EDGES", 100)
    vertices = CHOSEN[chosen].astype(np.uint32)
    gathered = gather(array.view(), vertices, weighted=array.weighted, crew=crew(threads))
    same(gathered, one_by_one(array, vertices))


@pytest.mark.parametrize("parts", [1, 2, 3, 50, 4000])
def test_parts_begin_and_end_anywhere(array: PackedMemoryArray, parts: int) -> None:
    """Within a hub's row, too; and they write nothing else."""
    vertices = CHOSEN["runs"].astype(np.uint32)
    expected = one_by_one(array, vertices)
    n = expected.neighbors.size
    cuts = np.linspace(0, n, parts + 1).astype(int)
    for begin, end in pairwise(cuts.tolist()):
        neighbors = np.full(n, 2**32 - 1, np.uint32)
        weights = np.full(n if array.weighted else 0, -1, np.float32)
        copy_edges(array.view(), vertices, expected.offsets, int(begin), int(end), neighbors, weights)
        assert np.array_equal(neighbors[begin:end], expected.neighbors[begin:end])
        assert (np.delete(neighbors, slice(begin, end)) == 2**32 - 1).all()
        if expected.weights is not None:
            assert np.array_equal(weights[begin:end], expected.weights[begin:end])
            assert (np.delete(weights, slice(begin, end)) == -1).all()
