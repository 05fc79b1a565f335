"""Copies of columns, by any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from crews import THREADS, crew
from crews import crews as crews

from graphtide.gpma.copying import PIECE, SHARED_BYTES, copy_column


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.uint32, np.float32, np.uint64, np.float64])
def test_every_entry_comes_and_nothing_else(threads: int, dtype: type[np.generic]) -> None:
    rng = np.random.default_rng(7)
    size = np.dtype(dtype).itemsize
    lengths = {
        0,
        1,
        *((SHARED_BYTES + odd) // size for odd in (-9, 0, 1, 9)),
        (SHARED_BYTES + 24 * PIECE) // size + 3,
    }
    for n in lengths:
        column = rng.integers(0, 256, (n + 2) * size, np.uint8).view(np.uint8 if dtype is np.bool_ else dtype)
        from_ = (column & 1).astype(np.bool_) if dtype is np.bool_ else column
        to = np.zeros_like(from_)
        copy_column(to[1 : n + 1], from_[1 : n + 1], crew(threads))
        assert to[1 : n + 1].tobytes() == from_[1 : n + 1].tobytes()
        assert not to[0] and not to[n + 1]


def test_columns_with_gaps_are_copied_too() -> None:
    from_ = np.arange(SHARED_BYTES, dtype=np.uint64)[::3]
    to = np.zeros(2 * from_.size, np.uint64)
    copy_column(to[::2], from_, crew(2))
    assert np.array_equal(to[::2], from_) and not to[1::2].any()
