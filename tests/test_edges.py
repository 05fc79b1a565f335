"""Small things that are done to columns of edges and of vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphtide.gpma.edges import Op, distinct


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint64])
def test_distinct_are_ascending_and_once(dtype: type[np.integer[Any]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for n in (0, 1, 2, 100, 5000):
        values = rng.integers(0, max(n, 1), n).astype(dtype)
        before = values.copy()
        found = distinct(values)
        assert found.dtype == dtype and found.tolist() == sorted(set(values.tolist()))
        assert np.array_equal(values, before)


def test_each_operation_is_found_in_a_column() -> None:
    ops = np.array([0, 1, 2, 3, 1], np.uint8)
    found = [op.among(ops).nonzero()[0].tolist() for op in Op]
    assert found == [[0], [1, 4], [2], [3]]
