"""Columns with an entry for each vertex, which grow as vertices come.

A large column lies in reserved address space (``address_space.py``) and grows in place: what is returned is a
longer view of the same memory, and nothing is copied. So it grows by little at a time, and a new vertex costs
what its own entries cost. Small columns, and all of them where no address space is to be had, are copied into
larger ones.

Memory that a column has from its beginning comes in large pages, which walks over all vertices are faster on. What
it grows by comes in small ones, since a large page costs as much as a whole batch when it is first written; the
system is asked to join them later.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from .address_space import LARGE_PAGE, Reserved, memory_bytes, reservation_of, reserve

Column = npt.NDArray[Any]

ROOM = 1 << 14
"""Columns of fewer entries are ordinary arrays, since to copy one takes microseconds. Reserved ones grow by so
many at a time, or by what is asked for."""

_VERTICES_MAX = 1 << 32


def new_column(n: int, dtype: npt.DTypeLike, fill: float | None = None) -> Column:
    """A column of n entries: ``fill`` each, or 0 where it is None."""
    return resized(np.empty(0, dtype), n, 0 if fill is None else fill)


def grown(column: Column, n: int, fill: float | None = None) -> Column:
    """The column itself if it has n entries, else one that has them and some more.

    New entries hold ``fill``, or nothing in particular when it is None. The column that was given means nothing
    any more, since the two may lie in one memory. The mean cost of a new entry is constant.
    """
    size = column.shape[0]
    if n <= size:
        return column
    return resized(column, max(n, with_room(column), 64), fill)


def resized(column: Column, n: int, fill: float | None = None) -> Column:
    """The column with exactly n entries, not fewer than it has; the rest is as in ``grown``."""
    size, item = column.shape[0], column.dtype.itemsize
    if n == size:
        return column
    memory = _reservation_of(column)
    is_zero = False
    if memory is None and n >= ROOM:
        memory = reserve(max(min(_VERTICES_MAX * item, memory_bytes()), n * item))
        if memory is not None:
            _prefer_pages(memory, n * item)
            longer = _view(memory, column.dtype, n)
            longer[:size] = column
            is_zero = True
    elif memory is not None and n * item <= len(memory):
        _join_pages(memory, size * item, n * item)
        longer = _view(memory, column.dtype, n)
        is_zero = True
    else:
        memory = None
    if memory is None:
        longer = np.empty(n, column.dtype)
        longer[:size] = column
    if fill is not None and not (is_zero and fill == 0):
        longer[size:] = fill
    return longer


def with_room(column: Column) -> int:
    """The entries of a column that is to have more: some, or twice as many where it is copied or small."""
    size: int = column.shape[0]
    return size + (min(size, ROOM) if _reservation_of(column) is not None else size)


def _view(memory: Reserved, dtype: np.dtype[Any], n: int) -> Column:
    return np.frombuffer(memory, dtype, n)


def _reservation_of(column: Column) -> Reserved | None:
    """The reserved memory that begins with this column; None: it is an ordinary array."""
    owner = reservation_of(column)
    if owner is None or column.ctypes.data != np.frombuffer(owner, np.uint8, 1).ctypes.data:
        return None
    return owner


def _prefer_pages(memory: Reserved, n_bytes: int) -> None:
    """Large pages for what is written at once, small ones for what comes by and by."""
    large = n_bytes // LARGE_PAGE * LARGE_PAGE
    with suppress(OSError):  # a kernel without them says so
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        if large:
            memory.madvise(mmap.MADV_HUGEPAGE, 0, large)


def _join_pages(memory: Reserved, had: int, has: int) -> None:
    """Let large pages be made of those that are full."""
    full = had // LARGE_PAGE * LARGE_PAGE
    if full and has // LARGE_PAGE > had // LARGE_PAGE:
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE, 0, full)
