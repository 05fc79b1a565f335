"""Lists of members, sizes, free handles and names of whole forests, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
from crews import THREADS, crew
from crews import crews as crews

from graphtide.compute.forest import forest as kernels
from graphtide.compute.forest import members
from graphtide.compute.forest.forest import Forest
from graphtide.gpma.edges import NO_VERTEX, Vertices
from graphtide.gpma.index.ids import StringColumn
from graphtide.gpma.index.vertex_index import Kind, VertexIndex

Handles = Callable[[np.random.Generator, int], Vertices]

SHAPES: dict[str, Handles] = {
    "one tree": lambda rng, n: np.full(n, 7 % n),
    "a giant": lambda rng, n: np.where(rng.random(n) < 0.7, n // 2, np.arange(n)),
    "two halves": lambda rng, n: rng.integers(0, 2, n) * (n - 1),
    "forty": lambda rng, n: rng.integers(0, 40, n) * (n // 40),
    "pairs": lambda rng, n: rng.permutation(np.arange(n) // 2 * 2),
    "alone": lambda rng, n: rng.permutation(n),
    "one bucket": lambda rng, n: rng.integers(0, n, n) // 4096 * 4096,
    "in blocks": lambda rng, n: np.arange(n) // 5000 * 5000,
}


def a_forest(handle: Vertices) -> Forest:
    """One with these handles, and anything in what is made of them."""
    n = handle.size
    columns = [np.random.default_rng(n).integers(0, n, n).astype(np.uint32) for _ in range(7)]
    forest = Forest._make([*columns, np.zeros(n, np.int64), np.array([3, n // 2])])
    forest.handle[:] = handle
    return forest


def handles(shape: str, n: int) -> Vertices:
    chosen: Vertices = np.minimum(SHAPES[shape](np.random.default_rng(n), n), n - 1).astype(np.uint32)
    return chosen


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("n", [50, 4096, 4097, 70_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_lists_have_all_members_in_ascending_order(shape: str, n: int, threads: int) -> None:
    forest = a_forest(handles(shape, n))
    members.relink(forest, n, crew(threads))
    order = forest.handle.argsort(kind="stable").astype(np.uint32)
    begins = np.flatnonzero(np.append(True, np.diff(forest.handle[order]) > 0))
    ends = np.append(begins[1:], n) - 1
    after = np.empty(n, np.uint32)
    after[order[:-1]] = order[1:]
    after[order[ends]] = order[begins]
    before = np.empty(n, np.uint32)
    before[after] = np.arange(n)
    np.testing.assert_array_equal(forest.next, after)
    np.testing.assert_array_equal(forest.prev, before)
    np.testing.assert_array_equal(forest.size, np.bincount(forest.handle, minlength=n))


def test_no_vertices_have_no_lists() -> None:
    forest = a_forest(np.empty(0, np.uint32))
    members.relink(forest, 0, crew(2))
    members.list_free(forest, 0, np.empty(0, np.uint32), crew(2))
    assert forest.counts.tolist() == [0, 0]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("n", [50, 70_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_handles_without_members_are_free(shape: str, n: int, threads: int) -> None:
    forest = a_forest(handles(shape, n))
    members.relink(forest, n, crew(threads))
    forest.counts[:] = 0, n - 7
    forest.size[n - 7 :] = 5  # of what was no handle they mean nothing
    named, place = forest.representative.copy(), np.full(n + 3, 9, np.uint32)
    members.list_free(forest, n, place, crew(threads))
    free = np.flatnonzero(forest.size == 0)
    assert forest.counts.tolist() == [free.size, n] and (forest.size[n - 7 :] == 0).all()
    np.testing.assert_array_equal(forest.free[: free.size], free)
    np.testing.assert_array_equal(place[free], np.arange(free.size))
    assert (np.delete(place[:n], free) == NO_VERTEX).all() and (place[n:] == 9).all()
    assert (forest.representative[free] == NO_VERTEX).all()
    np.testing.assert_array_equal(np.delete(forest.representative, free), np.delete(named, free))


def test_a_forest_that_was_empty_has_the_sizes_of_its_trees() -> None:
    forest = a_forest(handles("a giant", 1000))
    forest.counts[:] = 0
    members.relink(forest, 1000, crew(2))
    members.list_free(forest, 1000, np.empty(0, np.uint32), crew(2))
    np.testing.assert_array_equal(forest.size, np.bincount(forest.handle, minlength=1000))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("shape", SHAPES)
def test_trees_are_named_by_their_smallest_id(shape: str, kind: Kind, threads: int) -> None:
    n = 20_000
    forest = a_forest(handles(shape, n))
    ids = np.random.default_rng(1).permutation(n) - n // 2
    index = VertexIndex.create(kind)
    if kind == "int":
        index.insert(ids)
        rank = ids.argsort().argsort()
    else:
        texts = [f"vertex {number}" for number in ids.tolist()]
        index.insert(StringColumn.of(texts))
        rank = np.array(texts, "S").argsort().argsort()
    members.relink(forest, n, crew(threads))
    members.name_all(forest, n, index.comparable(n), crew(threads))
    first = np.full(n, n)
    np.minimum.at(first, forest.handle, rank)
    wanted = np.append(rank.argsort(), NO_VERTEX).astype(np.uint32)[first]
    np.testing.assert_array_equal(forest.representative, wanted)


@pytest.mark.parametrize("threads", THREADS)
def test_nodes_are_taken_as_they_are(threads: int) -> None:
    n = 10_000
    nodes = np.random.default_rng(2).integers(0, n, (n, 4)).astype(np.uint32)
    forest = a_forest(np.zeros(n, np.uint32))
    for first, end in ((0, 6000), (6000, n)):
        members.take_nodes(forest, first, nodes[first:end], crew(threads))
    np.testing.assert_array_equal(forest.parent, nodes[:, 0])
    np.testing.assert_array_equal(forest.level, nodes[:, 1] * np.int64(kernels.LEVEL_STEP))
    np.testing.assert_array_equal(forest.handle, nodes[:, 2])


@pytest.mark.parametrize("threads", THREADS)
def test_members_are_taken_as_they_are(threads: int) -> None:
    n = 10_000
    told = np.random.default_rng(2).integers(0, n, (n, 4)).astype(np.uint32)
    free = np.random.default_rng(3).random(n) < 0.3
    told[:, 3] = NO_VERTEX
    told[free, 3] = np.random.default_rng(4).permutation(np.count_nonzero(free))
    forest, place = a_forest(np.zeros(n, np.uint32)), np.full(n + 3, 9, np.uint32)
    named = forest.representative.copy()
    n_free = sum(
        members.take_members(forest, first, told[first:end], place, crew(threads))
        for first, end in ((0, 6000), (6000, n))
    )
    for k, column in enumerate((forest.next, forest.prev, forest.size, place[:n])):
        np.testing.assert_array_equal(column, told[:, k])
    assert n_free == np.count_nonzero(free) and (place[n:] == 9).all()
    np.testing.assert_array_equal(place[forest.free[:n_free]], np.arange(n_free))
    np.testing.assert_array_equal(forest.representative, np.where(free, NO_VERTEX, named))
