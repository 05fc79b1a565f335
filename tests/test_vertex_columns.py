"""Columns that grow in place, and as copies where no address space is to be had."""

from __future__ import annotations

import mmap
import tempfile

import numpy as np
import pytest

from graphtide.gpma import vertex_columns
from graphtide.gpma.vertex_columns import ROOM, grown, new_column, resized


@pytest.fixture(params=["reserved", "copied"])
def reserves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "copied":
        monkeypatch.setattr(vertex_columns, "reserve", lambda n_bytes: None)
    return bool(request.param == "reserved")


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.uint32, np.float64])
@pytest.mark.parametrize("fill", [None, 0, 1])
def test_a_column_keeps_its_entries_and_fills_new_ones(dtype: type, fill: int | None, reserves: bool) -> None:
    rng = np.random.default_rng(1)
    column, model = np.empty(0, dtype), np.empty(0, dtype)
    for n in (0, 1, 63, 64, 65, 1000, ROOM - 1, ROOM, ROOM + 1, 5 * ROOM, 5 * ROOM + 1, 100 * ROOM, 101 * ROOM):
        column = grown(column, n, fill)
        assert column.dtype == dtype and column.size >= n and column.flags.carray
        assert np.array_equal(column[: model.size], model)
        if fill is not None:
            assert (column[model.size :] == fill).all()
        column[:] = rng.integers(0, 2, column.size)
        model = column.copy()


def test_large_columns_grow_where_they_lie_and_by_little(reserves: bool) -> None:
    column = new_column(10 * ROOM, np.uint64)
    column[:] = 7
    place, moves = column.ctypes.data, 0
    for n in range(10 * ROOM, 1000 * ROOM, ROOM // 2):
        column = grown(column, n, 0)
        moves += column.ctypes.data != place
        place = column.ctypes.data
        if reserves:
            assert column.size < n + ROOM
    assert (moves == 0) == reserves
    assert (column[: 10 * ROOM] == 7).all() and not column[10 * ROOM :].any()


def test_the_same_requests_give_one_size_whatever_the_dtype() -> None:
    """Programs ask one column how large all are."""
    columns = [np.empty(0, dtype) for dtype in (np.uint8, np.uint32, np.float64)]
    for n in range(1, 10 * ROOM, 997):
        columns = [grown(column, n) for column in columns]
        assert len({column.size for column in columns}) == 1


@pytest.mark.parametrize("n", [10, ROOM, 3 * ROOM])
def test_resized_has_exactly_so_many(n: int, reserves: bool) -> None:
    column = resized(np.ones(5), n, 0)
    assert column.size == n and column.sum() == 5
    longer = resized(column, n + 1, 0)
    assert longer.size == n + 1 and longer.sum() == 5


def test_only_the_column_itself_grows_in_place() -> None:
    """A part of one, or an array in some other map, is copied: what lies behind it is not its own."""
    column = new_column(3 * ROOM, np.uint32)
    column[:] = 1
    longer = resized(column[ROOM:], 3 * ROOM, 5)
    assert (longer[: 2 * ROOM] == 1).all() and (longer[2 * ROOM :] == 5).all() and (column == 1).all()
    with tempfile.TemporaryFile() as file:
        file.truncate(8 * ROOM)
        array = np.frombuffer(mmap.mmap(file.fileno(), 8 * ROOM), np.uint32, ROOM)
        longer = grown(array, ROOM + 1)
        longer[:] = 9
        assert not array.any()
        del array
