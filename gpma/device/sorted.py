"""Batches that are sorted before they are applied (``sorted.cu``): those of heavy leaves, and rebuilds.

Sorting, sums and searches are CuPy's. All memory is taken before the first write to the array.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..layout import Layout
from .constants import HEAVY_LEAVES, HEAVY_RECORDS, RUN_THREADS
from .module import import_cupy, load
from .staging import DeviceBatch
from .state import DeviceArray, RowIndex, Slots, address, allocate, new_slots, plain, point_at
from .structures import RUN, STATE
from .update import UpdateKernels

# Blocks on a multiprocessor for kernels that loop.
RUN_BLOCKS = 8


class Run:
    """The kernels' view of a sorted batch, or part of one (struct Run of ``run.cuh``)."""

    def __init__(self, keys: DeviceArray, updates: DeviceArray | None) -> None:
        """Sort these keys of updates, given in the order of the batch.

        ``updates``: int64[n], their positions in the batch; None: all of it.

        Raises:
            MemoryError: there is not enough.
        """
        cupy = import_cupy()
        n = int(keys.size)
        order = cupy.argsort(keys)  # stable: equal keys stay in the order of the batch
        self.keys = keys[order]
        self.updates = order if updates is None else updates[order]
        self.leaf = allocate(n, np.uint32)
        self.place = allocate(n, np.uint8)
        self.change = allocate(n, np.int32)
        self.before = allocate(n + 1, np.int32)
        self.before[:1] = 0
        self.n = n
        self.structure = np.zeros(1, RUN)
        for name in ("keys", "updates", "leaf", "place", "change", "before"):
            self.structure[name] = address(getattr(self, name))
        self.structure["n"] = n

    def sum_changes(self) -> None:
        """Fill ``before``, once ``change`` is known."""
        import_cupy().cumsum(self.change, out=self.before[1:])


class Rebuild(NamedTuple):
    """A run that is about to be merged with the array into a new one, ``slots``, which will hold ``n_edges``."""

    run: Run
    layout: Layout
    slots: Slots
    n_edges: int
    target: npt.NDArray[np.void]
    scratch: tuple[DeviceArray, DeviceArray]


class SortedUpdates:
    """The kernels that apply runs."""

    def __init__(self, kernels: UpdateKernels) -> None:
        self._kernels = kernels
        module = load("sorted.cu", weighted=kernels.weighted)
        self._functions = {
            name: module.get_function(name)
            for name in (
                *("probe_run", "tell_totals", "merge_heavy", "add_heavy"),
                *("find_leaf_begins", "rebuild_kept", "rebuild_added", "index_leaves"),
            )
        }

    def probe(self, columns: DeviceBatch) -> tuple[Run, int]:
        """Sort and look up the whole batch; nothing is written but the report. Returns the flags too.

        Raises:
            MemoryError: there is not enough.
        """
        kernels = self._kernels
        run = Run(columns.keys, None)
        try:
            self._look_up(run)
        finally:
            self._launch("tell_totals", 1, (kernels.state, kernels.batch), threads=32)
            flags = kernels.wait()
        return run, flags

    def merge_heavy(self, columns: DeviceBatch, slots: Slots) -> None:
        """Merge the leaves that ``UpdateKernels.large`` found heavy; what is left of the batch comes after.

        Raises:
            MemoryError: there is not enough; nothing was changed but work arrays.
        """
        kernels = self._kernels
        cupy = import_cupy()
        n, n_heavy = columns.n, kernels.told(HEAVY_RECORDS)
        updates = None
        keys = columns.keys
        if n_heavy < n:
            # The records of heavy leaves lie behind all others, and their leaves point at them.
            first_record = slots.pending[kernels.work.update_leaf[:n]]
            updates = cupy.flatnonzero(first_record >= np.uint32(n - n_heavy))
            keys = columns.keys[updates]
        run = Run(keys, updates)
        self._look_up(run)
        arguments = (kernels.state, kernels.batch, run.structure)
        n_leaves = kernels.told(HEAVY_LEAVES)
        self._launch("merge_heavy", _ceil(n_leaves * 32), arguments, loops=True)
        self._launch("add_heavy", _ceil(run.n), arguments)

    def prepare_rebuild(
        self, run: Run | None, layout: Layout, slots: Slots, rows: RowIndex, n_edges: int
    ) -> Rebuild:
        """All memory that it takes to merge the array, ``slots``, and a run that was looked up (None: no updates)
        into a new array of this layout, which will hold ``n_edges``. Good until the array changes.

        Raises:
            MemoryError: there is not enough; nothing was changed.
        """
        new = new_slots(layout, weighted=self._kernels.weighted)
        run = run or Run(allocate(0, np.uint64), None)
        ranks = import_cupy().cumsum(slots.counts, dtype=np.uint64)
        leaf_begin = allocate(int(slots.counts.size) + 1, np.uint32)
        run.structure["ranks"], run.structure["leaf_begin"] = address(ranks), address(leaf_begin)
        target = np.zeros(1, STATE)
        point_at(target, new)
        target["rows"], target["n_leaves"] = address(rows.pairs), layout.n_leaves
        return Rebuild(run, layout, new, n_edges, target, (ranks, leaf_begin))

    def launch_rebuild(self, rebuild: Rebuild) -> None:
        """Begin to merge; the row index is written in place. Takes no memory, waits for nothing."""
        kernels, run, n_leaves = self._kernels, rebuild.run, int(rebuild.scratch[1].size) - 1
        edges = np.uint64(rebuild.n_edges)
        arguments = (kernels.state, rebuild.target, kernels.batch, run.structure, edges)
        self._launch("find_leaf_begins", _ceil(n_leaves + 1), (kernels.state, run.structure))
        self._launch("rebuild_kept", _ceil(n_leaves * 32), arguments, loops=True)
        if run.n:
            self._launch("rebuild_added", _ceil(run.n), arguments)
        self._launch("index_leaves", _ceil(rebuild.layout.n_leaves * 32), (rebuild.target, edges), loops=True)

    def _look_up(self, run: Run) -> None:
        self._launch(
            "probe_run", _ceil(run.n), (self._kernels.state, self._kernels.batch, run.structure), loops=True
        )
        run.sum_changes()

    def _launch(
        self,
        name: str,
        blocks: int,
        arguments: tuple[Any, ...],
        *,
        loops: bool = False,
        threads: int = RUN_THREADS,
    ) -> None:
        if loops:
            blocks = min(blocks, self._kernels.n_blocks * RUN_BLOCKS)
        values = tuple(plain(value) if value.ndim else value for value in arguments)
        self._functions[name]((blocks,), (threads,), values, stream=self._kernels.stream)


def _ceil(n: int) -> int:
    return -(-n // RUN_THREADS)
