"""In-arcs from out-arcs, against a plain sort."""

from __future__ import annotations

import numpy as np
import pytest
from crews import THREADS, crew
from crews import crews as crews

from graphtide.gpma.edges import EdgeList, pack, transpose
from graphtide.gpma.host.transposing import transposed


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("n", [0, 1, 2, 1000, 50_000])
@pytest.mark.parametrize("heads", [1, 2, 300, 2048, 2049, 100_000, 5_000_000])
def test_arcs_are_in_order_of_their_heads_and_keep_their_weights(
    heads: int, n: int, weighted: bool, threads: int
) -> None:
    rng = np.random.default_rng(heads + n)
    dst = np.where(rng.random(n) < 0.3, 0, rng.integers(0, heads, n))  # and one that many lead to
    keys = np.unique(pack(rng.integers(0, 2**32 - 1, n), dst))
    weights = rng.random(keys.size).astype(np.float32)
    found = transposed(EdgeList(keys, weights), weighted=weighted, crew=crew(threads))
    expected = transpose(keys)
    order = np.argsort(expected)
    assert np.array_equal(found.keys, expected[order])
    if weighted:
        assert found.weights is not None and np.array_equal(found.weights, weights[order])
    else:
        assert found.weights is None
    assert transposed(EdgeList(keys), weighted=weighted, crew=crew(threads)).weights is None
