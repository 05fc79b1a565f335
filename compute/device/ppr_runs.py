"""Runs of personalised PageRank on the device: the kernels on its numbers.

A run is one cooperative kernel, or two of passes, waited for once. It allocates nothing, unless there are more
vertices or long rows than ever before, or passes of several go together for the first time. Pushes write what they
change into the host's estimates. What passes make, all of them, is copied there behind the first of their kernels,
which ends where the values of the pass are made that is likely to be the last. Meanwhile the next programs follow;
and once all have had their first, the second ones add up what these values are worth. If one makes others, those
are copied in the end.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ...gpma.device.constants import LONG_ROW
from ...gpma.device.module import import_cupy
from ...gpma.device.state import address, allocate, pinned, zeros
from ...gpma.edges import Vertices
from ...partition.device_side import DeviceSide
from ..steps import Crowd, Steps
from .kernels import Calls, KernelCall, Kernels, Source, whole_words
from .narrowed import F32
from .ppr_groups import SWEEP, Group, sweeps_on
from .ppr_numbers import (
    COLUMNS,
    ENTRY_BYTES,
    LISTS,
    PPR_COUNTERS,
    PPR_JOB,
    ByVertex,
    Numbers,
    PprRun,
    Sums,
    columns_for,
    point,
)
from .program import Unfit
from .walk_runs import passes_max

F64 = npt.NDArray[np.float64]

SOURCES: Final = {
    "passes": Source("ppr_passes.cu", (f"-DSWEEP={SWEEP}",), blocks=2, takes_several=True),
    "pushes": Source("ppr_pushes.cu", takes_several=True),
}


@cache
def ppr_kernels() -> Kernels:
    """The same for all programs: so their calls may begin in one go."""
    return Kernels(SOURCES, weighted=False)


# Columns grow by this factor.
_ROOM = 1.5
# Pushes are given up beyond this share of all arcs, and so many.
MOST_SHARE, MOST_LEAST = 0.1, 16384
STAMP_MAX = 1 << 31
"""From here on stamps begin anew. No run has as many rounds as are left then."""

RESTARTS, RESTARTS_NO_MORE, GOES = 1, 2, 4
"""What becomes of a vertex: see ``PprRuns.enter``."""

# The part of a job that differs from run to run; ``PprRuns._prepare`` packs it in this order.
_CALL = struct.Struct("=3Qd3Q8I")
assert PPR_JOB.fields is not None
_CALL_BEGINS = PPR_JOB.fields["keys"][1]
assert _CALL_BEGINS + _CALL.size == PPR_JOB.itemsize

_SAID = len(PprRun._fields)
_WORDS = struct.Struct(f"={_SAID}q")


class PprRuns:
    """The system of one program on the device, and what changes it, by steps; all on the stream of ``device``."""

    def __init__(self, damping: float, n_sources: int, limit: float, goal: float, device: DeviceSide) -> None:
        """Compiles nothing yet. ``n_sources``: that there may be. Sizes of residuals are to add up to ``limit`` of
        all values at most; where they exceed that, to ``goal`` of them.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._stream: Any = device.stream
        self._calls = Calls(PPR_JOB, 2 * _SAID, self._stream)
        self._kernels = ppr_kernels()
        cuda = import_cupy().cuda
        self._copies = cuda.Stream(non_blocking=True)
        self._made = cuda.Event(disable_timing=True)
        with self._stream:
            self._counters = zeros(PPR_COUNTERS.itemsize, np.uint8)
            self._long_rows = allocate(0, np.uint8)
        self._by_vertex: ByVertex | None = None
        self._sweeps = sweeps_on(device)
        # Where its numbers are, if they are beside those of others.
        self.seat: tuple[Group, int] | None = None
        self._entries = pinned(0, np.uint64)
        self._n_entries = 0
        self._stamp = 1
        self._passes_max = passes_max(damping)
        self.unit = 2.0 ** point(n_sources, damping)
        job = self._calls.job
        job["counters"] = address(self._counters)
        job["damping"], job["limit"], job["goal"] = damping, limit, goal
        job["unit"], job["restart"] = self.unit, int(self.unit)

    @property
    def calls(self) -> Calls:
        """Of all kernels on its numbers."""
        return self._calls

    # -- arrays -----------------------------------------------------------------------------------------------

    @property
    def estimates(self) -> F32:
        """float32[room], in pinned memory: the values as the last run left them."""
        return self._there.estimates

    @property
    def memory_bytes(self) -> int:
        """Of the host, pinned."""
        there = self._by_vertex
        return 0 if there is None else there.estimates.nbytes + there.changes.nbytes + self._entries.nbytes

    @property
    def _there(self) -> ByVertex:
        assert self._by_vertex is not None
        return self._by_vertex

    @property
    def room(self) -> int:
        return self._there.room

    @property
    def group(self) -> Group | None:
        return None if self.seat is None else self.seat[0]

    def make_room(self, n_vertices: int, n_arcs: int) -> None:
        """For so many vertices, of which new ones have nothing, and as many long rows as there may be.

        Raises:
            MemoryError: there is not enough; everything is as before.
        """
        long_bytes = ENTRY_BYTES * (n_arcs // LONG_ROW + 1)
        before, long_rows = self._by_vertex, self._long_rows
        if before is not None and n_vertices <= before.room and long_bytes <= long_rows.size:
            return
        with self._stream:
            made = before
            if before is None or n_vertices > before.room:
                made = columns_for(
                    max(1, n_vertices) if before is None else max(n_vertices, int(_ROOM * before.room))
                )
                if before is not None:
                    made.numbers.take(before.numbers)
                    self._stream.synchronize()
                    made.estimates[: before.room] = before.estimates
            if long_bytes > long_rows.size:
                long_rows = allocate(3 * long_bytes // 2, np.uint8)
        assert made is not None
        if made is not before:
            self._leave()
        self._by_vertex, self._long_rows = made, long_rows
        self._point_at(made.numbers)
        job = self._calls.job
        for name in LISTS:
            job[name] = address(getattr(made, name))
        first = address(made.candidates)
        job["candidates"] = first, first + made.candidates.nbytes // 2
        job["long_rows"] = address(long_rows)
        job["estimates"], job["changes"] = made.estimates.ctypes.data, made.changes.ctypes.data
        job["room"], job["changes_room"] = made.queue_room, made.changes.size

    def _point_at(self, numbers: Numbers) -> None:
        for name in COLUMNS:
            self._calls.job[name] = address(getattr(numbers, name))
        self._calls.job["stride"] = numbers.stride

    def sit(self, group: Group, place: int, numbers: Numbers) -> None:
        """Have the numbers there from now on."""
        numbers.take(self._there.numbers)
        self._leave()
        self.seat = group, place
        self._by_vertex = self._there._replace(numbers=numbers)
        self._point_at(numbers)

    def stand_alone(self) -> None:
        """Have the numbers apart from those of others from now on: where nobody reads those at the same time, most
        of what is fetched would be in vain. On the current stream.

        Raises:
            MemoryError: the device has not enough; they stay where they are.
        """
        if self.seat is None:
            return
        there = self._there
        numbers = Numbers.none(there.room)
        numbers.take(there.numbers)
        self._leave()
        self._by_vertex = there._replace(numbers=numbers)
        self._point_at(numbers)

    def _write_anywhere(self) -> None:
        """Not with its group: which vertices have something is not known there any more."""
        if self.group is not None:
            self.group.knows_holders = False

    def _leave(self) -> None:
        if self.seat is not None:
            group, place = self.seat
            group.members[place] = None
        self.seat = None

    # -- runs -------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Let no vertex have anything.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        there = self._there
        with self._stream:
            for name in COLUMNS:
                getattr(there.numbers, name).fill(0)
        there.estimates[:] = 0

    def enter(self, begins: Vertices, ends: Vertices, gone: Vertices) -> None:
        """Let these vertices, each of which is named once, be sources, or be none any more, or have nothing: what
        is gone has no edges. It happens with the next run; and where that is given up, it has happened."""
        n = begins.size + ends.size + gone.size
        if n > self._entries.size:
            self._entries = pinned(int(_ROOM * n), np.uint64)
        at = 0
        for vertices, what in ((begins, RESTARTS), (ends, RESTARTS_NO_MORE), (gone, GOES)):
            self._entries[at : at + vertices.size] = vertices.astype(np.uint64) | np.uint64(what << 32)
            at += vertices.size
        self._n_entries = n
        self._calls.job["entries"] = self._entries.ctypes.data

    def push(self, device: DeviceSide, before: Sums, n_updates: int) -> Steps[PprRun]:
        """Take the batch that ``device`` applied last, and push if residuals exceed their limit then.

        ``before``: the sums of before the batch. ``n_updates``: of the batch.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it; the numbers are void.
        """
        self._renew_stamps()
        self._write_anywhere()
        self._prepare(device, before, n_updates)
        yield KernelCall(self._calls, self._kernels["pushes"], device)
        self._write_anywhere()  # passes of others may have been launched before
        run = self._told()
        self._stamp += run.rounds + 2
        return run

    def solve(self, device: DeviceSide, n_updates: int = 0) -> Steps[PprRun]:
        """Passes until residuals are within their goal, from what there is, which need not be of this graph.

        ``n_updates``: of the batch that ``device`` applied last, if numbers are exact for the graph before it:
        they are to follow it first, and so be nearer to the new ones when passes begin; else 0.

        Raises:
            Unfit: they get no closer in the numbers of the device.
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._prepare(device, Sums(0, 0, 0), n_updates)
        try:
            try:
                yield _Passes(self, device)
            finally:
                self._sweeps.launch_rest()
            run = self._told()
            if run.moved:  # what went to the host was not the last yet
                self._copies.synchronize()
                self.copy_made(device)
        except Exception:  # whoever catches it may let go of the memory that is being copied to
            with suppress(Exception):
                self._copies.synchronize()
            raise
        self._copies.synchronize()
        if not run.is_solved:
            raise Unfit("its residuals get no smaller in the numbers of the device")
        return run

    def changes(self, run: PprRun) -> Vertices | None:
        """The vertices whose estimates pushes changed, each once; None: there are too many for the list."""
        listed = self._there.changes
        return None if run.moved > listed.size else listed[: run.moved].copy()

    def _launch_passes(self, others: Sequence[PprRuns], device: DeviceSide) -> None:
        """Launch them for this and for others, and copies of what they make between the parts; waits for nothing.

        ``others``: on the same stream.
        """
        kernel = self._kernels["passes"]
        several = kernel.variant(remote=device.remote is not None).several
        single = [self, *others]
        for those in self._sweeps.divided(single, several):
            assert several is not None
            self._sweeps.launch(those, several, device)
            for runs in those:
                single.remove(runs)
        for runs in single:
            runs._write_anywhere()
            runs._calls.launch(kernel, device)
            runs.copy_made(device)
            runs._calls.job["part"] = 1
            runs._calls.launch(kernel, device)

    def copy_made(self, device: DeviceSide) -> None:
        """Copy the estimates that passes make to the host as soon as all that was launched is done."""
        self._made.record(self._stream)
        self._copies.wait_event(self._made)
        there, n = self._there, device.n_vertices
        there.differences.view(np.float32)[:n].get(stream=self._copies, out=there.estimates[:n], blocking=False)

    def _prepare(self, device: DeviceSide, before: Sums, n_updates: int) -> None:
        report, arcs = device.report, device.n_arcs
        _CALL.pack_into(
            self._calls.packed,
            _CALL_BEGINS,
            report.addresses[0] if n_updates else 0,
            report.addresses[2] if n_updates else 0,
            max(MOST_LEAST, int(MOST_SHARE * arcs)),
            float(arcs + device.n_vertices),
            *(word & 0xFFFF_FFFF_FFFF_FFFF for word in before),
            n_updates,
            self._n_entries,
            device.n_vertices,
            self._stamp,
            self._passes_max,
            self._calls.next_number(),
            self._there.numbers.stride,
            0,
        )
        self._n_entries = 0

    def _renew_stamps(self) -> None:
        if self._stamp < STAMP_MAX:
            return
        with self._stream:
            self._there.stamps.fill(0)
            self._there.moved_stamps.fill(0)
        self._stamp = 1

    def _told(self) -> PprRun:
        return PprRun(*whole_words(self._calls.wait(), _WORDS))

    # -- columns ----------------------------------------------------------------------------------------------

    def read(self, n: int) -> tuple[F64, F64]:
        """(values, residuals) of the first ``n`` vertices.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        there = self._there.numbers
        with self._stream:
            values, sums = (column[:n].copy().get(stream=self._stream) for column in (there.values, there.sums))
        return values / self.unit, (sums - values) / self.unit

    def write(self, values: F64, residuals: F64, sources: Vertices) -> None:
        """Begin with these, of restarts of 1; before anything is pushed, ``solve`` is to make residuals anew."""
        there = self._there.numbers
        self.clear()
        self._write_anywhere()
        sums = np.rint(np.maximum(0.0, values + residuals) * self.unit).astype(np.int64)
        is_source = np.zeros(sums.size, np.uint8)
        is_source[sources] = 1
        with self._stream:
            for column, written in ((there.sums, sums), (there.is_source, is_source)):
                brought = allocate(written.size, written.dtype)
                brought.set(written, stream=self._stream)
                column[: written.size] = brought
        self._stream.synchronize()


class _Passes(NamedTuple):
    """A call of the passes of a program: see ``compute/steps.py``."""

    runs: PprRuns
    device: DeviceSide

    @property
    def kind(self) -> Hashable:
        return self.runs._kernels["passes"]

    @property
    def crowd(self) -> Crowd | None:
        group = self.runs.group
        # Else whoever has no place yet may come to it.
        return Crowd(group, SWEEP) if group is not None and group.is_full else None

    def begin(self, others: Sequence[Self]) -> None:
        self.runs._launch_passes([call.runs for call in others], self.device)

    def carry_out(self) -> None:
        self.begin(())
