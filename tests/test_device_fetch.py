"""What the host takes over of columns that a device has: against NumPy, over pieces and threads."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from graphtide.compute.counts.kernels import LIMIT
from graphtide.compute.device import count_list, fetch
from graphtide.compute.forest import taken
from graphtide.compute.forest.forest import LEVEL_STEP, Forest
from graphtide.compute.pieces import PIECE
from graphtide.gpma.team import Crew, Team

SIZES = (0, 1, PIECE - 1, PIECE, 3 * PIECE + 5)


@pytest.fixture(params=[1, 3])
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    team = Team(request.param)
    yield team.crew()
    team.close()


@pytest.mark.parametrize("dtype", [np.uint64, np.float64])
@pytest.mark.parametrize("n", SIZES)
def test_entries_that_differ_are_taken_over(dtype: type, n: int, crew: Crew, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kept, found = (rng.integers(0, 4, room).astype(dtype) for room in (n + 7, n))
    before = kept.copy()
    vertices, old = fetch.take_differing(kept, found, crew)
    assert np.array_equal(vertices, np.flatnonzero(before[:n] != found))
    assert vertices.dtype == np.uint32 and old.dtype == dtype
    assert np.array_equal(old, before[vertices])
    assert np.array_equal(kept, np.concatenate([found, before[n:]]))
    found[:] = rng.integers(0, 4, n)
    assert fetch.take_all(kept, found, dtype(3), crew) == np.count_nonzero(found != 3)
    assert np.array_equal(kept, np.concatenate([found, before[n:]]))


@pytest.mark.parametrize("n", SIZES)
def test_listed_counts_are_taken_over(n: int, crew: Crew, seed: int) -> None:
    """Those of more than 32 bits, too, from where they are listed."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 9, 2 * n + 1).astype(np.float64)
    vertices = rng.permutation(2 * n + 1)[:n].astype(np.uint32)
    values = rng.choice([0, 1, (1 << 32) - 2, (1 << 32) - 1, 1 << 32, LIMIT], n).astype(np.float64)
    expected = counts.copy()
    expected[vertices] = values
    far = values >= (1 << 32) - 1
    words = np.where(far, (1 << 32) - 1, values).astype(np.uint64) << np.uint64(32) | vertices
    taken = count_list.take(counts, count_list.Listed(words, np.where(far, values, np.nan)), crew)
    assert np.array_equal(counts, expected)
    assert np.array_equal(taken, vertices) and taken.dtype == np.uint32


@pytest.mark.parametrize("n", SIZES)
def test_nodes_that_differ_are_told(n: int, crew: Crew, seed: int) -> None:
    """Those of new vertices are told whatever the forest has at their places."""
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, 3, n).astype(np.uint32) for _ in range(7)]
    forest = Forest._make([*columns, rng.integers(0, 3, n) * LEVEL_STEP, np.zeros(2, np.int64)])
    nodes = rng.integers(0, 3, (n, 4)).astype(np.uint32)
    known = int(rng.integers(0, n + 1))
    told = taken.differing(forest, known, nodes, crew)
    same = (
        (forest.parent == nodes[:, 0])
        & (forest.level == nodes[:, 1] * LEVEL_STEP)
        & (forest.handle == nodes[:, 2])
    )
    wanted = np.flatnonzero(~same | (np.arange(n) >= known))
    assert np.array_equal(told.vertices, wanted)
    for column, at in ((told.parent, 0), (told.level, 1), (told.handle, 2)):
        assert np.array_equal(column, nodes[wanted, at])


def test_what_is_fetched_is_what_the_device_has(cupy: ModuleType) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    room = fetch.Fetch(stream)
    assert room.memory_bytes == 0
    room.reserve(8 * 1000)
    for column in (np.arange(1000, dtype=np.uint64), np.arange(600, dtype=np.uint32).reshape(-1, 4)):
        with stream:
            there = cupy.asarray(column)
        assert np.array_equal(room.read(there), column)
    assert room.memory_bytes == 8000


def test_what_is_fetched_in_pieces_is_the_same(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_PIECE_BYTES", 1000)
    stream = cupy.cuda.Stream(non_blocking=True)
    room = fetch.Fetch(stream)
    room.reserve(8 * 1000)
    for column in (
        np.arange(1000, dtype=np.uint64),
        np.arange(600, dtype=np.uint32).reshape(-1, 4),
        np.empty((0, 4), np.uint32),
    ):
        with stream:
            there = cupy.asarray(column)
        pieces = [(at, piece.copy()) for at, piece in room.pieces(there)]
        assert [at for at, _ in pieces] == [sum(len(piece) for _, piece in pieces[:k]) for k in range(len(pieces))]
        assert sum(len(piece) for _, piece in pieces) == len(column)
        assert not len(column) or np.array_equal(np.concatenate([piece for _, piece in pieces]), column)
        assert len(pieces) > 1 or not len(column)
