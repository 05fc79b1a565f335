"""Pieces that threads draw: each by one of them, whatever the loop does."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
import pytest
from crews import THREADS, crew
from crews import crews as crews

from graphtide.gpma import made_of
from graphtide.gpma.drawing import drawn, drawn_by
from graphtide.gpma.intrinsics import uncounted_inner
from graphtide.gpma.team import share


@uncounted_inner
def count_pieces(thread: Any, cursor: Any, times: Any, skipped: Any) -> None:
    for piece in drawn(cursor, times.size):
        if piece == skipped:
            continue
        times[piece] += 1


@uncounted_inner
def count_entries(thread: Any, cursor: Any, times: Any, each: Any) -> None:
    for begin in drawn_by(cursor, times.size, each):
        for i in range(begin, min(begin + each, times.size)):
            times[i] += begin + 1


@nb.njit(nogil=True)
def shared(n, skipped, each, begin, crew):  # type: ignore[no-untyped-def]
    pieces, entries, cursor = np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(1, begin)
    share(crew, count_pieces, (cursor, pieces, skipped))
    cursor[0] = begin
    share(crew, count_entries, (cursor, entries, each))
    return pieces, entries


@nb.njit(nogil=True)
def drawn_until(cursor, n, last):  # type: ignore[no-untyped-def]
    for piece in drawn(cursor, n):
        if piece == last:
            break
    return cursor[0]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("n", [0, 1, 7, 5000])
def test_each_piece_is_drawn_once(threads: int, n: int) -> None:
    pieces, entries = shared(n, 3, 4, 0, crew(threads))
    assert pieces.tolist() == [int(piece != 3) for piece in range(n)]
    assert entries.tolist() == [i // 4 * 4 + 1 for i in range(n)]


@pytest.mark.parametrize("threads", THREADS)
def test_the_first_is_the_one_that_the_cursor_says(threads: int) -> None:
    pieces, entries = shared(11, 7, 4, 6, crew(threads))
    assert pieces.tolist() == [0] * 6 + [1, 0, 1, 1, 1]
    assert entries.tolist() == [0] * 6 + [7, 7, 7, 7, 11]


def test_who_leaves_the_loop_draws_no_more() -> None:
    assert drawn_until(np.zeros(1, np.int64), 9, 4) == 5


def test_how_they_are_drawn_is_part_of_a_kernel() -> None:
    """Else one that is kept would go on as before when that changes."""
    assert any("atomic_rmw" in str(fact) for fact in made_of.facts(count_pieces))
