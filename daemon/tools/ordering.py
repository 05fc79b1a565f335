"""Where a stream of updates over several partitions needs barriers.

Between partitions only one thing has an order that matters: an edge that is inserted, and the deletion of a vertex
that is its dst. (Updates of a pair share the partition of its src, as do operations on a vertex; and what deletes
an edge says the same before and after a deletion of its ends.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Op
from ...gpma.index.ids import IntColumn, StringColumn, concatenate_ids, equal_ids
from ..records.columns import UpdateColumns
from ..records.placement import partition_of

_NEVER = -2


class Ordering:
    """Finds the fewest barriers for a stream that comes block by block; of earlier blocks it knows two bits.

    What others wrote before may hold edges: the first deletion of a vertex stands behind a barrier. So does what
    is written after the last one (``open_at_end``).
    """

    def __init__(self) -> None:
        self._inserts, self._deletes = True, False

    @property
    def open_at_end(self) -> bool:
        """Whether a vertex was deleted since the last barrier, so that later inserts must wait for one."""
        return self._deletes

    def barriers(self, block: UpdateColumns, placed: npt.NDArray[np.int32], partitions: int) -> list[int]:
        """The positions in this block before which barriers must stand, ascending.

        ``placed``: int32[n], the partition of each update.
        """
        deletes = Op.DELETE_VERTEX.among(block.ops)
        inserts = Op.INSERT.among(block.ops)
        if not self._deletes and not deletes.any():
            self._inserts |= bool(inserts.any())
            return []
        rows = np.flatnonzero(inserts)
        crossing = rows[partition_of(block.dst[rows], partitions) != placed[rows]]
        rows = np.concatenate([np.flatnonzero(deletes), crossing])
        vertices = _groups(block, rows)
        order = np.lexsort((rows, vertices))
        rows, vertices = rows[order], vertices[order]
        conflicts = self._latest_conflicts(rows, vertices, deletes[rows])
        in_order = np.argsort(rows)
        rows, conflicts = rows[in_order], conflicts[in_order]
        found: list[int] = []
        last = -1
        for row, conflict in zip(rows.tolist(), conflicts.tolist(), strict=True):
            if conflict >= last:
                last = row
                found.append(row)
        since = rows[rows >= last]
        self._deletes = bool(deletes[since].any()) or (self._deletes and not found)
        self._inserts = bool((~deletes[since]).any()) or (self._inserts and not found)
        return found

    def _latest_conflicts(
        self, rows: IntColumn, vertices: IntColumn, deletes: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        """For each row the latest before it that must not change places with it; -1: one of an earlier block.

        ``rows``: ascending among equal ``vertices``, which ascend; ``deletes``: which rows delete their vertex.
        """
        at = np.arange(rows.size)
        first = np.ones(rows.size, bool)
        first[1:] = vertices[1:] != vertices[:-1]
        begin = np.maximum.accumulate(np.where(first, at, 0))
        latest_delete = np.maximum.accumulate(np.where(deletes, at, -1))
        latest_insert = np.maximum.accumulate(np.where(deletes, -1, at))
        other = np.where(deletes, latest_insert, latest_delete)
        is_open = np.where(deletes, self._inserts, self._deletes)
        return np.where(other >= begin, rows[other], np.where(is_open, -1, _NEVER))


def _groups(block: UpdateColumns, rows: IntColumn) -> IntColumn:
    """A number for the vertex of each row, equal for equal ones: a deletion's own, an insert's dst."""
    own = Op.DELETE_VERTEX.among(block.ops[rows])
    src, dst = block.src, block.dst
    if not isinstance(src, StringColumn) or not isinstance(dst, StringColumn):
        assert isinstance(src, np.ndarray) and isinstance(dst, np.ndarray)
        return np.where(own, src[rows], dst[rows])
    # The deletions stand first.
    n_own = int(np.count_nonzero(own))
    ids = concatenate_ids([src[rows[:n_own]], dst[rows[n_own:]]])
    assert isinstance(ids, StringColumn)
    order = ids.argsort()
    ranks = np.zeros(order.size, np.int64)
    if order.size:
        ranks[order[1:]] = np.cumsum(~equal_ids(ids[order[1:]], ids[order[:-1]]))
    return ranks
