"""The packed memory array on a CUDA device.

The twin of the host's (``gpma/host/array.py``): keys ``src << 32 | dst`` in ascending order in an array with gaps,
and a batch of any size touches only the leaves where its keys belong. ``state.py`` has the arrays, ``geometry.py``
the layout, ``update.py`` and ``sorted.py`` the ways to apply a batch; the rest: ``load_export.py``, ``reads.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..edges import EMPTY_KEY, EdgeBatch, EdgeList, SubCSR
from ..layout import Layout
from . import load_export, reads
from .constants import BAD_ROW, FIRST_BAD_ROW, HEAVY
from .geometry import LEAF_LEAST, holding
from .invariants import violations
from .module import import_cupy
from .reads import DeviceRows
from .report import DeviceReport
from .sorted import Rebuild, SortedUpdates
from .staging import DeviceBatch, Staging
from .state import VERTICES_MAX, DeviceArray, RowIndex, Slots, new_rows, new_slots, plain
from .update import SMALL_MAX, Said, UpdateKernels

# A batch of more than this share of the edges is merged with the array into a new one. On an H200, at scales 22
# and 24, to apply it in place took 0.4 to 0.8 of that time with 30% of the edges, and 0.9 to 1.3 of it with 40%.
REBUILD_SHARE = 0.33
# Where a batch turned out to have too many updates of one leaf for one kernel, so many more are not tried: streams
# that grow at one end have that in every batch, and to try costs as much as half of the other way.
UNTRIED = 8
# Rows grow by this factor, so that a new vertex costs constant time.
ROOM = 1.5
_NO_TOTALS = 0, 0, 0, 0


@dataclass(slots=True)
class DevicePlan:
    """A batch that was prepared. ``columns``: on the device; None: there is nothing to apply.

    ``rebuild``: the new array that it is merged into, with ``totals`` known before; None: it is applied in place.
    ``small``: by the one kernel that may give it up.
    """

    columns: DeviceBatch | None
    rebuild: Rebuild | None = None
    totals: tuple[int, int, int, int] = _NO_TOTALS
    small: bool = False


_NOTHING = DevicePlan(None)


class DevicePackedArray:
    """Edges sorted by (src, dst) in device memory, one weight each where ``weighted``. One writer at a time.

    All work runs on ``stream``, in order.
    """

    def __init__(self, *, weighted: bool, stream: Any = None, said: Said | None = None) -> None:
        """``stream``: a CuPy stream that the array shares with others; None: one of its own.

        ``said``: where what kernels are passed is to be; None: anywhere.
        """
        self.weighted = weighted
        self.stream: Any = import_cupy().cuda.Stream(non_blocking=True) if stream is None else stream
        self.n_edges = 0
        self.n_vertices = 0
        self._layout = holding(0)
        self._leaf_least = LEAF_LEAST
        self._untried = 0
        with self.stream:
            self._slots: Slots = _empty_slots(weighted=weighted)
            self._rows: RowIndex = new_rows(1)
            self.kernels = UpdateKernels(self.stream, weighted=weighted, said=said)
            """Those that apply batches; good as long as the array."""
            self._sorted = SortedUpdates(self.kernels)
            self._staging = Staging(self.stream)
        self.state_address: int = self.kernels.state_address
        """Where on the host the structure is that ``view`` has as ``state``: for whoever launches often."""
        self._point()

    @property
    def uploaded_bytes(self) -> int:
        """Of batches that came from the host, since the beginning."""
        return self._staging.uploaded_bytes

    def ensure_vertices(self, n_vertices: int) -> None:
        """Make room for rows 0 .. n_vertices - 1; new rows are empty.

        Raises:
            MemoryError: there is not enough; nothing was changed.
        """
        if n_vertices <= self.n_vertices:
            return
        room = self._rows.room
        if n_vertices > room:
            with self.stream:
                rows = new_rows(max(n_vertices, min(int(room * ROOM), VERTICES_MAX)))
                rows.pairs[: self._rows.pairs.size] = self._rows.pairs
            self._rows = rows
        self.n_vertices = n_vertices
        self._point()

    def withdraw_vertices(self, n_vertices: int) -> None:
        """Take ``ensure_vertices`` back: there are only so many rows, of which the others were never written."""
        if n_vertices != self.n_vertices:
            self.n_vertices = n_vertices
            self._point()

    def load(self, edges: EdgeList) -> None:
        """Replace the contents by these edges (ascending keys, no key twice; NumPy or CuPy columns).

        Raises:
            ValueError: the keys are not strictly ascending, name a row that does not exist, or lack weights.
            MemoryError: there is not enough; nothing was changed.
        """
        with self._ordered():
            keys, weights = self._brought(edges.keys, edges.weights)
            self._load(keys, weights)

    def load_unsorted(self, keys: DeviceArray, weights: DeviceArray | None = None) -> None:
        """Replace the contents by these edges in any order; of several entries of one key the last one counts.

        ``keys`` uint64[n], ``weights`` float32[n] where the array keeps weights; NumPy or CuPy columns. Raises
        what ``load`` raises.
        """
        with self._ordered():
            self._load(*load_export.sorted_last_wins(*self._brought(keys, weights)))

    def clear(self) -> None:
        """Hold no edges any more. The memory of those there were is given back first."""
        with self.stream:
            del self._slots
            self._slots = _empty_slots(weighted=self.weighted)
            self._rows.pairs.fill(0)
        self.n_edges, self._layout, self._leaf_least = 0, holding(0), LEAF_LEAST
        self._point()

    def apply(self, batch: EdgeBatch) -> DeviceReport:
        """Apply a batch, of NumPy or CuPy columns: all of it, or nothing when an exception is raised (those of
        ``prepare`` and ``finish``)."""
        plan = self.prepare(batch)
        self.launch(plan)
        return self.finish(plan)

    def prepare(self, batch: EdgeBatch) -> DevicePlan:
        """Bring a batch to the device, of NumPy or CuPy columns, and take all memory that it needs as a rule.

        The contents are only read. Where the batch may be merged with them into a new array, it is looked up
        before, and waited for. A plan is good until the next ``prepare`` or change; one that is not launched is
        simply dropped.

        Raises:
            ValueError: the batch names a row that does not exist, where that is found out already.
            MemoryError: there is not enough.
        """
        if len(batch) == 0:
            return _NOTHING
        return self.prepare_brought(self._staging.bring(batch, weighted=self.weighted))

    def prepare_brought(self, columns: DeviceBatch) -> DevicePlan:
        """``prepare``, of a batch that is on the device, one update at least, in the order of the stream.

        Raises:
            ValueError, MemoryError: as ``prepare``.
        """
        n = columns.n
        if columns.addresses[2] and not self.weighted:
            columns = columns.unweighted()
        self.kernels.begin(columns)
        if self._may_grow(columns) or n > REBUILD_SHARE * self.n_edges:
            with self.stream:
                rebuilding = self._rebuilding(columns, n)
            if rebuilding is not None:
                return rebuilding
            self.kernels.begin(columns)
        return DevicePlan(columns)

    def takes_in_place(self, n: int) -> bool:
        """Whether so many updates, whatever they are, have room, and are tried first by the kernels that may give
        them up."""
        if n > self.kernels.room or (self._untried and n <= SMALL_MAX):
            return False
        return n <= self._edges_max - self.n_edges and n <= REBUILD_SHARE * self.n_edges

    def launch(self, plan: DevicePlan) -> None:
        """Begin to write what ``prepare`` planned: takes no memory, waits for nothing. ``finish`` comes next.

        What is put on ``stream`` after it finds the batch applied, unless the kernels give it up (``finish``).
        """
        if plan.columns is None:
            return
        if plan.rebuild is not None:
            self._adopt(plan.rebuild)
        elif plan.columns.n > SMALL_MAX:
            self.kernels.begin_large()
        elif self._untried:
            self._untried -= 1
            self.kernels.begin_large()
        else:
            plan.small = True
            self.kernels.begin_small()

    def finish(self, plan: DevicePlan) -> DeviceReport:
        """Wait for the end of what ``launch`` began; returns what it changed.

        Where many updates fall into one leaf, the kernels give the batch up without having written anything to
        the array, and it is applied here, by kernels that sort it. After many deletions the array is made smaller.

        Raises:
            ValueError: the batch named a row that does not exist (``ensure_vertices``); nothing was changed.
            MemoryError: there is not enough to sort; nothing was changed.
            RuntimeError: the device failed; the contents are lost.
        """
        changed = self._finished(plan)
        report = self.empty_report() if changed is None else self._report(*changed)
        self.kernels.end()
        return report

    def end(self, plan: DevicePlan) -> None:
        """``finish``, for whoever asks for no report: after a small batch it takes as long as the rest.

        Raises:
            ValueError, MemoryError, RuntimeError: as ``finish``.
        """
        self._finished(plan)
        self.kernels.end()

    def _finished(self, plan: DevicePlan) -> tuple[DeviceBatch, tuple[int, int, int, int], int] | None:
        """What there is to report of: updates, how many by outcome, and slots moved; None: there were none."""
        kernels, columns = self.kernels, plan.columns
        if columns is None:
            return None
        if plan.rebuild is not None:
            self.stream.synchronize()
            self._staging.arrived()
            return columns, plan.totals, plan.rebuild.n_edges
        flags = kernels.wait()
        self._staging.arrived()
        if flags == HEAVY and plan.small:
            self._untried = UNTRIED
            kernels.begin_large()
            flags = kernels.wait()
        if flags == BAD_ROW:
            raise self._no_such_row()
        if flags == HEAVY:
            self._finish_heavy(columns)
        totals = kernels.totals()
        slots_moved = kernels.slots_moved()
        self.settle(totals[0], totals[2])
        return columns, totals, slots_moved

    def settle(self, n_inserted: int, n_deleted: int) -> None:
        """A batch has been applied that inserted so many edges, and deleted so many."""
        self.n_edges += n_inserted - n_deleted
        if self.n_edges < self._edges_min:
            self._shrink(self._layout.resized(self.n_edges))

    def fit(self) -> None:
        """Give work arrays back, and move to an array as small as a load would make it, if that is smaller and
        there is memory for both.

        Between two batches whose reports nobody needs any more: rows that have left give their memory back then,
        rather than when many more have, and so does what moved them.
        """
        self.kernels.give_back()
        self._staging.give_back()
        layout = holding(self.n_edges)
        if layout.n_leaves < self._layout.n_leaves:
            with self._ordered():
                self._shrink(layout)

    def empty_report(self) -> DeviceReport:
        """The report of a batch without updates."""
        cupy = import_cupy()
        bytes_, floats = cupy.empty(0, np.uint8), cupy.empty(0, np.float32) if self.weighted else None
        updates = DeviceBatch.of(cupy.empty(0, np.uint64), bytes_, floats)
        return DeviceReport(updates, (0, 0, 0, 0), 0, bytes_, floats)

    def degrees_on_host(self) -> npt.NDArray[np.uint32]:
        """The lengths of all rows, uint32[vertices]: also where the device has no byte left."""
        rows = self._rows
        try:
            degrees = import_cupy().asnumpy(rows.degrees)
        except MemoryError:  # every second word has to be put together there first
            degrees = rows._replace(pairs=import_cupy().asnumpy(rows.pairs)).degrees
        return np.ascontiguousarray(degrees[: self.n_vertices], np.uint32)

    def view(self) -> DeviceRows:
        """The array as kernels read it in place (``rows.cuh``), on ``stream``; valid until the next change."""
        state = plain(self.kernels.state.copy())
        rows = self._rows
        return DeviceRows(state, self._slots.counts, rows.degrees, self.n_vertices, self.n_edges, self.weighted)

    def write_state(self, to: npt.NDArray[np.void]) -> None:
        """Write it into ``to``, of the same bytes."""
        to[:] = plain(self.kernels.state)

    def export(self) -> EdgeList:
        """All edges in ascending key order, copied into CuPy columns."""
        with self._ordered():
            return load_export.export(self._slots, self.n_edges)

    def copied_from(self, first_key: int, n: int) -> EdgeList:
        """The first ``n`` edges from this key on, ascending, as NumPy columns; fewer only at the end.

        Takes no memory on the device.
        """
        with self._ordered():
            return load_export.copied_from(self._slots, first_key, n)

    def copied_out(self) -> EdgeList:
        """All edges, likewise."""
        return self.copied_from(0, self.n_edges)

    def export_csr(self) -> tuple[DeviceArray, DeviceArray, DeviceArray | None]:
        """A copy as CSR: offsets uint64[n_vertices + 1], neighbours uint32[n_edges], weights float32 or None."""
        with self._ordered():
            return load_export.export_csr(self._slots, self._rows, self.n_vertices, self.n_edges)

    def has_edge(self, keys: DeviceArray) -> DeviceArray:
        """bool[n] on the device: which of these edges are there."""
        with self._ordered():
            return reads.has_edge(self.view(), self._column(keys, np.uint64))

    def weights_of(self, keys: DeviceArray) -> DeviceArray:
        """float32[n] weights of these edges on the device; NaN where there is no such edge.

        Raises:
            LookupError: the array is unweighted.
        """
        with self._ordered():
            return reads.weights_of(self.view(), self._column(keys, np.uint64))

    def rows(self, vertices: DeviceArray) -> SubCSR:
        """The rows of these vertices (any order, repeats allowed), gathered into CuPy columns.

        Raises:
            IndexError: a vertex does not exist.
        """
        with self._ordered():
            return reads.gather(self.view(), self._column(vertices, np.uint32))

    def check(self) -> list[str]:
        """Violated invariants, in words; empty when all is well."""
        self.stream.synchronize()
        return violations(self._slots, self._rows, self._layout, self.n_edges, self.n_vertices, self._leaf_least)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes held on the device, by structure: slots, leaves, rows, scratch."""
        slots = self._slots
        return {
            "slots": slots.keys.nbytes + (slots.weights.nbytes if slots.weights is not None else 0),
            "leaves": sum(array.nbytes for array in slots[2:]),
            "rows": self._rows.pairs.nbytes,
            "scratch": self.kernels.memory_bytes() + self._staging.memory_bytes(),
        }

    @contextmanager
    def _ordered(self) -> Iterator[None]:
        """Work on ``stream``, after all that the caller's current stream has begun, which then waits for it."""
        current = import_cupy().cuda.get_current_stream()
        if current.ptr == self.stream.ptr:
            yield
            return
        self.stream.wait_event(current.record())
        with self.stream:
            yield
        current.wait_event(self.stream.record())

    def _column(self, values: Any, dtype: Any) -> DeviceArray:
        return import_cupy().ascontiguousarray(import_cupy().asarray(values, dtype))

    def _brought(self, keys: Any, weights: Any) -> tuple[DeviceArray, DeviceArray | None]:
        """Columns to load, on the device."""
        if self.weighted and (weights is None or weights.size != keys.size):
            raise ValueError("a weighted array needs one weight for each edge")
        return self._column(keys, np.uint64), self._column(weights, np.float32) if self.weighted else None

    def _load(self, keys: DeviceArray, weights: DeviceArray | None) -> None:
        bad = load_export.first_bad_key(keys, self.n_vertices)
        if bad >= 0:
            raise ValueError(f"edge {bad} of {keys.size} is out of order, or of a row that does not exist")
        layout = holding(keys.size)
        slots = new_slots(layout, weighted=self.weighted)
        load_export.load(slots, self._rows, keys, weights)
        self._slots, self._layout, self.n_edges = slots, layout, int(keys.size)
        self._leaf_least = LEAF_LEAST
        self._point()

    def _rebuilding(self, columns: DeviceBatch, n: int) -> DevicePlan | None:
        """The plan to merge array and batch into a new array, if it must grow or the batch is large; else None."""
        run, flags = self._sorted.probe(columns)
        if flags == BAD_ROW:
            raise self._no_such_row()
        totals = self.kernels.totals()
        n_edges = self.n_edges + totals[0] - totals[2]
        layout = self._layout.resized(n_edges)
        if layout is self._layout and n <= REBUILD_SHARE * self.n_edges:
            return None
        try:
            rebuild = self._sorted.prepare_rebuild(run, layout, self._slots, self._rows, n_edges)
        except MemoryError:
            if layout.n_leaves > self._layout.n_leaves:
                raise
            return None  # the ordinary way needs no second array
        return DevicePlan(columns, rebuild, totals)

    def _may_grow(self, columns: DeviceBatch) -> bool:
        """Whether the batch may add more edges than the array has room for: no more than it inserts."""
        room = self._edges_max - self.n_edges
        if columns.n <= room:
            return False
        with self.stream:
            return int(import_cupy().count_nonzero(columns.ops)) > room

    def _finish_heavy(self, columns: DeviceBatch) -> None:
        kernels = self.kernels
        try:
            with self.stream:
                self._sorted.merge_heavy(columns, self._slots)
        except MemoryError:
            kernels.abandon()
            raise
        kernels.finish()

    def _adopt(self, rebuild: Rebuild) -> None:
        """Merge the array into a new one, which is the array from here on."""
        self._sorted.launch_rebuild(rebuild)
        self._slots, self._layout, self.n_edges = rebuild.slots, rebuild.layout, rebuild.n_edges
        self._leaf_least = LEAF_LEAST
        self._point()

    def _shrink(self, layout: Layout) -> None:
        """Move to a smaller array; without the memory for it stay, until the next batch tries again."""
        now = self._slots, self._rows
        try:
            with self.stream:
                rebuild = self._sorted.prepare_rebuild(None, layout, *now, self.n_edges)
        except MemoryError:
            # The root may by now be so sparse that leaves hold fewer keys than rows are searched for; or will be
            # when the next batch has deleted all that one in place may: programs that are launched behind it read
            # rows before its end is heard of here.
            stay = int(max(0, 1 - REBUILD_SHARE) * self.n_edges)
            self._leaf_least = min(self._leaf_least, stay // self._layout.n_leaves)
            self._point()
        else:
            self._adopt(rebuild)

    def _point(self) -> None:
        """Tell everybody where the arrays are now."""
        self._edges_min, self._edges_max = self._layout.edges_min, self._layout.edges_max
        self.kernels.point_at_array(self._slots, self._rows, self.n_vertices, self._layout, self._leaf_least)

    def _report(self, columns: DeviceBatch, totals: tuple[int, int, int, int], slots_moved: int) -> DeviceReport:
        work = self.kernels.work
        return DeviceReport(columns, totals, slots_moved, work.outcome, work.old_weights)

    def _no_such_row(self) -> ValueError:
        row = self.kernels.told(FIRST_BAD_ROW)
        return ValueError(f"the batch names row {row} of {self.n_vertices}")


def _empty_slots(*, weighted: bool) -> Slots:
    slots = new_slots(holding(0), weighted=weighted)
    slots.counts.fill(0)
    slots.heads[:1] = 0
    slots.heads[1:] = EMPTY_KEY
    return slots
