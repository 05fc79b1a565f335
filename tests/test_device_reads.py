"""Reads of a device array: rows gathered, rows walked and leaves scanned by kernels, against NumPy."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest

from graphtide.gpma.edges import EdgeBatch, EdgeList, Keys, Weights, destinations, pack, sources

KERNELS = Path(__file__).resolve().parents[1] / "benchmarks" / "storage_device.cu"
THREADS = 256
VERTICES = 3000


def graph(rng: np.random.Generator, shape: str) -> tuple[Keys, Weights]:
    """Ascending keys and weights of a graph of this shape."""
    n = int(rng.integers(1, 6000))
    src, dst = rng.integers(0, VERTICES, n), rng.integers(0, VERTICES, n)
    if shape == "hubs":
        src = rng.choice([0, 7, 8, VERTICES - 1], n)
    elif shape == "one row":
        src[:] = 5
    elif shape == "short rows":
        src = np.arange(n) % VERTICES
    elif shape == "few":
        src, dst = src[:3], dst[:3]
    elif shape == "none":
        src, dst = src[:0], dst[:0]
    keys = np.unique(pack(src, dst))
    return keys, rng.integers(1, 9, keys.size).astype(np.float32)


def array_of(keys: Keys, weights: Weights, *, weighted: bool) -> Any:
    """A device array of these edges that has lived: half of them came by a batch, others came and went."""
    from graphtide.gpma.device.array import DevicePackedArray

    array = DevicePackedArray(weighted=weighted)
    array.ensure_vertices(VERTICES)
    array.load(EdgeList(keys[::2], weights[::2] if weighted else None))
    assert array.check() == []
    other = np.setdiff1d(pack(np.arange(0, VERTICES, 9), np.arange(0, VERTICES, 9)), keys)
    new, n_new = np.concatenate([keys[1::2], other]), keys[1::2].size
    new_weights = np.concatenate([weights[1::2], np.ones(other.size, np.float32)])
    array.apply(EdgeBatch(new, np.ones(new.size, np.uint8), new_weights if weighted else None))
    array.apply(EdgeBatch(new[n_new:], np.zeros(other.size, np.uint8)))
    assert array.n_edges == keys.size
    return array


SHAPES = ["random", "hubs", "one row", "short rows", "few", "none"]


@pytest.mark.sample(4)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_any_vertices_are_gathered(cupy: ModuleType, shape: str, weighted: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cuda_emulator.seed(seed)
    keys, weights = graph(rng, shape)
    array = array_of(keys, weights, weighted=weighted)
    vertices = np.concatenate([rng.permutation(VERTICES), rng.integers(0, VERTICES, 100)]).astype(np.uint32)
    rows = array.rows(vertices)
    begin = np.searchsorted(sources(keys), np.arange(VERTICES + 1))
    spans = [np.arange(begin[u], begin[u + 1]) for u in vertices]
    edges = np.concatenate(spans)
    assert rows.offsets.tolist() == np.cumsum([0, *map(len, spans)]).tolist()
    assert np.array_equal(rows.neighbors.get(), destinations(keys[edges]))
    assert (rows.weights is not None) == weighted
    if weighted:
        assert np.array_equal(rows.weights.get(), weights[edges])


def kernel(name: str, *, weighted: bool) -> Any:
    from graphtide.gpma.device import module

    return module.load(KERNELS, weighted=weighted).get_function(name)


@pytest.mark.sample(4)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_scans_by_leaf_and_by_row_sum_every_edge_once(
    cupy: ModuleType, shape: str, weighted: bool, seed: int
) -> None:
    from graphtide.gpma.device import reads

    rng = np.random.default_rng(seed)
    cuda_emulator.seed(seed)
    keys, weights = graph(rng, shape)
    array = array_of(keys, weights, weighted=weighted)
    x = rng.integers(0, 50, VERTICES).astype(np.float32)  # sums of whole numbers are exact in any order
    terms = (weights if weighted else np.ones(keys.size)) * x[destinations(keys)]
    expected = np.bincount(sources(keys), terms, VERTICES)
    view = array.view()
    n_leaves = int(view.counts.size)
    with array.stream:
        by_leaf, by_row = cupy.zeros(VERTICES, np.float32), cupy.zeros(VERTICES, np.float32)
        on_device = cupy.asarray(x)
        kernel("pull_by_leaf", weighted=weighted)(
            (-(-n_leaves // 64),), (THREADS,), (view.state, on_device, by_leaf)
        )
        walk = reads.walk_of(view, cupy.asarray(rng.permutation(VERTICES).astype(np.uint32)))
        if walk.n_chunks:
            kernel("pull_by_row", weighted=weighted)(
                (-(-walk.n_chunks // 8),), (THREADS,), (view.state, walk.walk, on_device, by_row)
            )
        by_tile = cupy.zeros(VERTICES, np.float32)
        vertices = cupy.asarray(rng.permutation(VERTICES).astype(np.uint32))
        kernel("pull_by_tile", weighted=weighted)(
            (-(-VERTICES // 32),), (THREADS,), (view.state, vertices, np.uint32(VERTICES), on_device, by_tile)
        )
        total = cupy.zeros(1, np.uint64)
        kernel("iterate_leaves", weighted=weighted)((3,), (THREADS,), (view.state, total))
        assert np.array_equal(by_leaf.get(), expected)
        assert np.array_equal(by_row.get(), expected)
        assert np.array_equal(by_tile.get(), expected)
        assert int(total[0]) == int((sources(keys) ^ destinations(keys)).sum(dtype=np.uint64))


def test_missing_vertices_and_weights_are_refused(cupy: ModuleType) -> None:
    keys, weights = graph(np.random.default_rng(1), "random")
    array = array_of(keys, weights, weighted=False)
    with pytest.raises(IndexError, match=f"vertex {VERTICES} of {VERTICES}"):
        array.rows(np.array([0, VERTICES], np.uint32))
    with pytest.raises(LookupError):
        array.weights_of(keys)
    assert not array.has_edge(pack([VERTICES, 2**32 - 2], [0, 0])).any()
    assert array.rows(np.empty(0, np.uint32)).offsets.tolist() == [0]


def test_columns_that_cannot_be_loaded_leave_the_array_alone(cupy: ModuleType) -> None:
    keys, weights = graph(np.random.default_rng(2), "random")
    array = array_of(keys, weights, weighted=True)
    bad_row = np.append(keys, pack([VERTICES], [0]))
    for bad, position in ((np.append(keys, keys[-1]), keys.size), (bad_row, keys.size), (keys[::-1].copy(), 1)):
        with pytest.raises(ValueError, match=f"edge {position} of {bad.size} is out of order"):
            array.load(EdgeList(bad, np.ones(bad.size, np.float32)))
    with pytest.raises(ValueError, match="one weight for each edge"):
        array.load(EdgeList(keys))
    with pytest.raises(ValueError, match=f"edge {keys.size} of "):
        array.load_unsorted(bad_row[::-1].copy(), np.ones(bad_row.size, np.float32))
    assert array.check() == []
    assert np.array_equal(array.export().keys.get(), keys)
    assert np.array_equal(array.export().weights.get(), weights)


@pytest.mark.parametrize("weighted", [True, False])
def test_export_as_csr(cupy: ModuleType, weighted: bool) -> None:
    keys, weights = graph(np.random.default_rng(3), "random")
    offsets, neighbors, found = array_of(keys, weights, weighted=weighted).export_csr()
    assert np.array_equal(offsets.get(), np.searchsorted(sources(keys), np.arange(VERTICES + 1)))
    assert np.array_equal(neighbors.get(), destinations(keys))
    assert (found is not None) == weighted
    if weighted:
        assert np.array_equal(found.get(), weights)
