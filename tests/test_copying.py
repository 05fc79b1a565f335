"""Copies of columns, by any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from crews import THREADS, crew
from crews import crews as crews

from graphtide.gpma.copying import ENTRIES, FEW, PIECE, SHARED_BYTES, copy_column, copy_entries


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


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float16, np.uint32, np.float32, np.int64, np.float64])
def test_those_entries_come_that_are_asked_for(threads: int, dtype: type[np.generic], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for k in (0, 1, FEW - 1, FEW, ENTRIES - 1, ENTRIES, 5 * ENTRIES + 1):
        from_, to = (rng.integers(0, 256, 50_000 * 8, np.uint8) for _ in range(2))
        columns = [(each & 1).astype(np.bool_) if dtype is np.bool_ else each.view(dtype) for each in (to, from_)]
        at = rng.integers(0, 50_000, k).astype(np.uint32)
        wanted = columns[0].copy()
        wanted[at] = columns[1][at]
        copy_entries(*columns, at, crew(threads))
        assert columns[0].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("k", [1, FEW, 3 * ENTRIES])
@pytest.mark.parametrize("n", [0, 7])
def test_entries_that_are_not_there_are_refused(n: int, k: int) -> None:
    at = np.full(k, min(n, 1), np.uint32)
    at[k // 2] = n
    with pytest.raises(IndexError):
        copy_entries(np.zeros(9), np.ones(n), at, crew(2))
    with pytest.raises(IndexError):
        copy_entries(np.zeros(n), np.ones(9), at, crew(2))


def test_entries_of_columns_with_gaps_are_copied_too() -> None:
    to, from_ = np.zeros(2 * FEW), np.arange(2.0 * FEW)
    copy_entries(to[::2], from_[::2], np.arange(FEW, dtype=np.uint32), crew(2))
    assert np.array_equal(to[::2], from_[::2]) and not to[1::2].any()
