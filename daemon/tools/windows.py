"""A stream of timed inserts as a sliding window."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Op, Ops
from ...gpma.index.ids import IntColumn, StringColumn
from ..records.columns import UpdateColumns
from .files import BadInput


def window_events(
    src: IntColumn, dst: IntColumn, ts: npt.NDArray[np.int64], window: int
) -> tuple[IntColumn, IntColumn, Ops, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A stream of inserts as a sliding window: an edge lives ``window`` after its latest insert.

    ``src``, ``dst``, ``ts``: int64[n], ``ts`` never falling; ``window`` in the unit of ``ts``. Returns the
    columns src, dst, ops, ts of inserts and deletes in order of time, and for each the index of the insert
    that caused it. At one time deletes come before inserts: an insert at the very end of the window finds
    the edge gone and puts it back. Deletes that fall due after the last insert are left out.
    """
    n = ts.size
    if n == 0:
        none = np.empty(0, np.int64)
        return none, none, np.empty(0, np.uint8), none, none
    by_edge = np.lexsort((np.arange(n), dst, src))
    same = np.zeros(n, bool)
    same[:-1] = (src[by_edge][1:] == src[by_edge][:-1]) & (dst[by_edge][1:] == dst[by_edge][:-1])
    next_ts = np.empty(n, np.int64)
    next_ts[:-1] = ts[by_edge][1:]
    due = ts[by_edge] + window
    expires = (~same | (next_ts >= due)) & (due <= ts[-1])
    causes = np.concatenate([np.sort(by_edge[expires]), np.arange(n)])
    n_deletes = int(np.count_nonzero(expires))
    times = ts[causes]
    times[:n_deletes] += window
    # Stable, and deletes stand first: so they come first among equal times.
    order = np.argsort(times, kind="stable")
    ops = np.full(causes.size, Op.INSERT, np.uint8)
    ops[:n_deletes] = Op.DELETE
    causes = causes[order]
    return src[causes], dst[causes], ops[order], times[order], causes


def windowed(columns: UpdateColumns, window_seconds: float) -> UpdateColumns:
    """Timed inserts as a sliding window, deletes added: see ``window_events``.

    Raises:
        BadInput: there are deletes or string ids already, or times are missing or out of order.
    """
    if isinstance(columns.src, StringColumn) or isinstance(columns.dst, StringColumn):
        raise BadInput("a window needs integer ids")
    if columns.timestamps_ms is None or not Op.INSERT.among(columns.ops).all():
        raise BadInput("a window needs inserts only, each with its time")
    if (earlier := np.flatnonzero(np.diff(columns.timestamps_ms) < 0)).size:
        before, after = columns.timestamps_ms[earlier[0] : earlier[0] + 2].tolist()
        raise BadInput(
            f"a window needs edges in order of their time: one of {after} ms comes after one of {before} ms (edge "
            f"{earlier[0] + 2:,}); sort them by ts"
        )
    window_ms = round(window_seconds * 1000)
    src, dst, ops, ts, causes = window_events(columns.src, columns.dst, columns.timestamps_ms, window_ms)
    return UpdateColumns(src, dst, ops, None if columns.weights is None else columns.weights[causes], ts)
