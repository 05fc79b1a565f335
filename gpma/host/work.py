"""What a batch needs beside the array: work arrays, the plan between prepare and commit, columns of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..edges import ABSENT, DELETED, INSERTED, OVERWRITTEN, ChangeReport, EdgeBatch, EdgeList
from ..layout import Layout
from .arrays import Pending, ReportColumns, Updates
from .preparing import Parts
from .slot_memory import SlotMemory
from .sorting import Arrivals, SortScratch
from .windows import Windows

# What each of the ReportColumns is about.
_PARTS = (INSERTED, INSERTED, OVERWRITTEN, OVERWRITTEN, OVERWRITTEN, DELETED, DELETED, ABSENT)
_WEIGHTS = (False, True, False, True, True, False, True, False)
_COLUMNS = tuple(zip(_PARTS, _WEIGHTS, strict=True))
_NO_KEYS, _NO_WEIGHTS = np.empty(0, np.uint64), np.empty(0, np.float32)


class Plan(NamedTuple):
    """A batch that was looked up, which will leave ``n_edges`` edges in an array of this ``layout``.

    ``parts``: of ``preparing.py``; None: there are no updates.
    ``at_once``: everything is spread over the layout at once; else a larger layout is filled by and by.
    ``columns``: the report, to be filled if that is ``told``; ``other``: the memory to which the array moves, if
    it must.
    """

    parts: Parts | None
    n_edges: int
    layout: Layout
    at_once: bool
    columns: ReportColumns
    told: bool
    other: SlotMemory | None


class Work(NamedTuple):
    """Work arrays for batches of up to so many updates. Pending keys and rows lie in the scratch of the sort."""

    sort: SortScratch
    updates: Updates
    pending: Pending
    windows: Windows

    @property
    def room(self) -> int:
        return self.updates.keys.size

    @property
    def n_bytes(self) -> int:
        shared = self.pending.keys.nbytes + self.pending.rows.nbytes
        return sum(array.nbytes for group in self for array in group) - shared


def new_work(n: int, *, weighted: bool) -> Work:
    """For n updates, about a hundred bytes for each.

    Raises:
        MemoryError: there is not enough.
    """
    n_weights = n if weighted else 0
    sort = SortScratch(
        np.empty(n, np.uint64), np.empty(n, np.uint64), np.empty(n, np.uint32), np.empty(n, np.uint32)
    )
    return Work(
        sort,
        Updates(
            keys=np.empty(n, np.uint64),
            ops=np.empty(n, np.uint8),
            weights=np.empty(n_weights, np.float32),
            leaf=np.empty(n, np.uint32),
            place=np.empty(n, np.uint8),
            status=np.empty(n, np.uint8),
            old_weights=np.empty(n_weights, np.float32),
        ),
        Pending(
            leaf=np.empty(n, np.uint32),
            end=np.empty(n, np.uint32),
            keys=sort.words,
            weights=np.empty(n_weights, np.float32),
            rows=sort.positions,
        ),
        Windows(*(np.empty(n, np.int64) for _ in Windows._fields)),
    )


def column(array: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """The array as kernels take it: C-contiguous, aligned and writable, so that each compiles only once."""
    if array.dtype == dtype and array.flags.carray:
        return array
    return np.require(array, dtype, ["C", "A", "W"])


def arrivals_of(batch: EdgeBatch, *, weighted: bool) -> Arrivals:
    """The columns of a batch as kernels take them; without weights where none are kept."""
    keys, ops = batch.keys, batch.ops
    weights = _NO_WEIGHTS if batch.weights is None or not weighted else column(batch.weights, np.float32)
    if keys.flags.carray and ops.flags.carray:
        return Arrivals(keys, ops, weights)
    return Arrivals(column(keys, np.uint64), column(ops, np.uint8), weights)


def report_columns(totals: Sequence[int], *, weighted: bool) -> ReportColumns:
    """The columns that ``merge.split_report`` fills; ``totals``: how many updates are INSERTED, ..., ABSENT.

    Raises:
        MemoryError: there is not enough.
    """
    columns: list[npt.NDArray[Any]] = []
    for part, weights in _COLUMNS:
        size = totals[part] if weighted or not weights else 0
        if size:
            columns.append(np.empty(size, np.float32 if weights else np.uint64))
        else:
            columns.append(_NO_WEIGHTS if weights else _NO_KEYS)
    return ReportColumns(*columns)


def report(columns: ReportColumns, slots_moved: int, *, weighted: bool) -> ChangeReport:
    return ChangeReport(
        inserted=EdgeList(columns.inserted, columns.inserted_weights if weighted else None),
        overwritten=EdgeList(columns.overwritten, columns.overwriting_weights if weighted else None),
        overwritten_old=columns.overwritten_weights if weighted else None,
        deleted=EdgeList(columns.deleted, columns.deleted_weights if weighted else None),
        absent=columns.absent,
        slots_moved=slots_moved,
    )
