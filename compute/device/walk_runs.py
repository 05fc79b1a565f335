"""Runs of PageRank's two systems on the device: their numbers in fixed point, and the kernels of ``passes.cu``.

A run is a few cooperative kernels one behind the other, waited for once. It allocates nothing, unless there are
more vertices than ever before, or more rows on the host. Estimates go to the host while the last pass adds up and
pushes follow: what these change goes there after them.

**The point.** The exact solution of the ranks adds up to at most C = 1 / (1 - damping) a vertex, and so does what
a pass makes of any values that are not negative: its factor balances what is lost, at least 1 - damping of all
values, and what is given. (A pass without a factor, of what was solved before, damps that and adds what is given,
which comes to no more.) Weights are at most 1 + WEIGHT_HYSTERESIS / HUB of an estimate, so that the majorant
adds up to at most C * (1 + C / 3) a vertex. Bits behind the point are as many as leave all values of a system, for
as many vertices as there is room for, below 2^60 together: no sum of int64 overflows, whatever it is of.
"""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.device.module import import_cupy
from ...gpma.device.state import DeviceArray, address, allocate, pinned, zeros
from ...gpma.edges import Vertices
from ...partition.device_side import DeviceSide
from ..walks.certificate import HUB, WEIGHT_HYSTERESIS
from ..walks.passes import Limits
from . import packed_rows, push_calls
from .kernels import Calls, Kernel, Kernels, RowParameters, Source, whole_words
from .narrowed import F32
from .packed_rows import RANGE, PackedRows
from .program import Unfit

F64 = npt.NDArray[np.float64]

WALK_JOB: Final = np.dtype(
    [
        ("ranks", np.uint64, 3),
        ("majorant", np.uint64, 3),
        *((name, np.uint64) for name in ("weights", "counters", "status", "estimates", "made", "arrivals")),
        *((name, np.uint64) for name in ("degrees", "in_degrees", "packed", "packed_ranges", "edits")),
        *((name, np.uint64) for name in ("cache", "cache_places")),
        *((name, np.uint64) for name in ("keys", "outcomes")),
        *((name, np.uint32) for name in ("n_packed", "packed_bits", "edits_room", "n_updates")),
        *((name, np.uint32) for name in ("moved", "cache_lines")),
        *((name, np.float64) for name in ("damping", "unit", "majorant_unit", "hub", "hysteresis")),
        *((name, np.float64) for name in ("below", "above", "majorant_below", "majorant_above")),
        *((name, np.uint64) for name in ("due_max", "push_max")),
        *((name, np.uint32) for name in ("passes_max", "begins", "shift", "majorant_shift")),
        *((name, np.uint32) for name in ("n_arrivals", "n_vertices", "sequence", "is_kept")),
    ]
)
"""struct WalkJob of ``walks.cuh``."""

WALK_COUNTERS: Final = np.dtype(
    [
        ("passes", np.uint64, 36),
        ("totals", np.uint64, 8),
        ("edges", np.uint64),
        *((name, np.uint32) for name in ("n_passes", "rounds", "is_solved", "barrier", "unpacked")),
        ("edits", np.uint32, 2),
        *((name, np.uint32) for name in ("exceeds", "cached", "unused")),
    ]
)
"""struct WalkCounters of ``walks.cuh``."""

_LEAVES: Final = (f"-DPASS_LEAVES={RANGE}",)
SOURCES: Final = {
    "passes": Source("passes.cu", macros=_LEAVES, blocks=2),
    "settle": Source("settle.cu", macros=_LEAVES, blocks=2),
    "hand_over": Source("hand_over.cu"),
    "arrive": Source("arrive.cu"),
    "amend": Source("amend.cu"),
}


def walk_kernels() -> Kernels:
    return Kernels(SOURCES, weighted=False)


# With what a run begins; see enum Begin.
KEPT, ANEW, SOLVED, EXACT = range(4)
# All values of a system add up to less than this power of two. Some of it is left to what residuals within the
# largest tolerance may add, and to rounding: a unit a vertex, and the last bit of a factor.
_SUM_BITS, _SPARE = 60, 1.125
# The majorant's right-hand side, a float32, is to be exact.
BITS_MIN = 23
# Columns grow by this factor.
_ROOM = 1.5
# Passes shrink residuals in sum by the damping factor at least; beyond what that makes 2^-BITS_SHRUNK of them, all
# they do is round.
_BITS_SHRUNK, _PASSES_LEAST = 40, 50


class WalkRun(NamedTuple):
    """What a run told, of pushes or of passes that pushes may have ended: the words of ``walks.cuh``, in that
    order, each of them 64 bits.

    ``is_solved``: 0 when residuals are left over their limits; if pushes were given up, sums are no longer exact.
    ``moved``: the vertices whose estimates pushes changed. In units of the ranks: ``norm``, the sum of all values;
    ``size`` that of the sizes of residuals; ``total`` that of residuals; of a run without passes, by how much
    these grew. Doubles, the first two of passes alone: ``rounded`` and ``majorant_rounded``, by how much rounded
    shares may have put a residual off at most, in multiples of its weight; ``degree``, the largest in-degree by
    weight of those that pushes brought in-edges or another weight; ``ratio``, the largest majorant / estimate of
    all, before pushes or after; or, if there were no passes and not all were looked at, of those where either
    changed.
    """

    is_solved: int
    passes: int
    rounds: int
    edges: int
    moved: int
    norm: int
    size: int
    total: int
    rounded: float
    majorant_rounded: float
    degree: float
    ratio: float


SAID = len(WalkRun._fields)
"""Words that any kernel on both systems tells."""
WORDS = struct.Struct("=8q4d")

# The part of a job that differs from run to run; ``WalkRuns.run`` packs it in this order.
_CALL = struct.Struct("=4d2Q8I")
assert WALK_JOB.fields is not None
_CALL_BEGINS = WALK_JOB.fields["below"][1]
assert _CALL_BEGINS + _CALL.size == WALK_JOB.itemsize
assert SAID == push_calls.N_SAID


class Call(NamedTuple):
    """To which limits kernels solve the ranks and the majorant.

    Of passes, also ``due_max``: they end when no more edges are likely to be due after one more (0: when none is
    before it); ``push_max``: with so many after that, or fewer, pushes follow; and with what they begin.
    ``is_kept``: whether what was kept of rows on the host is what these are.
    """

    limits: Limits
    slack: Limits
    due_max: int = 0
    push_max: int = 0
    begins: int = KEPT
    is_kept: bool = False


class _System(NamedTuple):
    """Columns by vertex: int64, int64, and float32, which is every second one of those of both systems."""

    values: DeviceArray
    sums: DeviceArray
    shares: DeviceArray


class _Columns(NamedTuple):
    """``room`` entries each; ``bits``: behind the points of the ranks and of the majorant.

    ``shares``: those of both systems, in turns. ``degrees``: of out-rows and of in-rows, uint32, where rows may
    be on the host. ``made``: estimates on their way to the host, float32 as there.
    """

    room: int
    bits: tuple[int, int]
    units: tuple[float, float]
    ranks: _System
    majorant: _System
    shares: DeviceArray
    weights: DeviceArray
    degrees: tuple[DeviceArray | None, DeviceArray | None]
    made: DeviceArray
    estimates: F32


class Columns(NamedTuple):
    """Both systems as floats: float64 but for ``weights``, float32. Residuals are those of the values."""

    values: F64
    residuals: F64
    weights: npt.NDArray[np.float32]
    majorant: F64
    slack: F64


class WalkRuns:
    """Both systems of one program on the device, and what changes them; all on the stream of ``device``."""

    def __init__(self, damping: float, device: DeviceSide) -> None:
        """Compiles nothing yet.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._damping = damping
        self._stream: Any = device.stream
        self._calls = Calls(WALK_JOB, 2 * SAID, self._stream, push_calls.THEN)
        self._kernels = walk_kernels()
        cuda = import_cupy().cuda
        self._copies = cuda.Stream(non_blocking=True)
        self._made, self._copied = (cuda.Event(disable_timing=True) for _ in range(2))
        with self._stream:
            self._counters = zeros(WALK_COUNTERS.itemsize, np.uint8)
        self._reads_remote = device.reads_remote
        self._columns: _Columns | None = None
        counters = {name: self._counter(name) for name in packed_rows.COUNTERS}
        self._packed_rows = PackedRows(self._calls, self._kernels["amend"], counters, self._stream)
        self._shifts = (0, 0)
        self._arrivals = pinned(0, np.uint64)
        self._passes_max = passes_max(damping)
        job = self._calls.job
        job["counters"] = address(self._counters)
        job["damping"], job["hub"], job["hysteresis"] = damping, HUB, WEIGHT_HYSTERESIS

    def parameters(self, *further: npt.NDArray[np.void]) -> RowParameters:
        """Of kernels that take out-rows, in-rows, the job of ``walks.cuh``, and these structures."""
        return self._calls.parameters(*further)

    @property
    def calls(self) -> Calls:
        """Of all kernels on these systems."""
        return self._calls

    @property
    def call_address(self) -> int:
        """Where the part of the job is that differs from run to run."""
        return self._calls.address + _CALL_BEGINS

    # -- arrays -----------------------------------------------------------------------------------------------

    @property
    def estimates(self) -> F32:
        """float32[room], in pinned memory: the values of the ranks as the last run of ``solve`` left them."""
        return self._there.estimates

    @property
    def units(self) -> tuple[float, float]:
        """What 1 is in the numbers of the ranks, and of the majorant."""
        return self._there.units

    @property
    def room(self) -> int:
        """For how many vertices there is room."""
        return self._there.room

    @property
    def has_packed(self) -> bool:
        """Whether anything may be kept of rows on the host, which ``amend`` is to hear of."""
        return self._packed_rows.packed is not None

    @property
    def memory_bytes(self) -> int:
        """Of the host, pinned."""
        packed = self._packed_rows.memory_bytes
        return packed if self._columns is None else packed + self._columns.estimates.nbytes + self._arrivals.nbytes

    @property
    def _there(self) -> _Columns:
        assert self._columns is not None
        return self._columns

    def make_room(self, n_vertices: int) -> None:
        """For so many vertices; new ones do not exist until they arrive.

        Raises:
            MemoryError: there is not enough; everything is as before.
            Unfit: there are too many for the numbers.
        """
        before = self._columns
        if before is not None and n_vertices <= before.room:
            return
        room = max(1, n_vertices) if before is None else max(n_vertices, int(_ROOM * before.room))
        bits = point(room, self._damping)
        with self._stream:
            estimates: F32 = pinned(room, np.float32)
            shares = zeros(2 * room, np.float32)
            ranks, majorant = (
                _System(zeros(room, np.int64), zeros(room, np.int64), shares[system::2]) for system in range(2)
            )
            # Of vertices that are still to come 0, where what is kept of rows on the host goes on.
            out, in_ = (zeros(room, np.uint32) if self._reads_remote else None for _ in range(2))
            weights, sent = zeros(room, np.float32), allocate(room, np.float32)
            units = 2.0 ** bits[0], 2.0 ** bits[1]
            made = _Columns(room, bits, units, ranks, majorant, shares, weights, (out, in_), sent, estimates)
            if before is not None:
                made.weights[: before.room] = before.weights
                shares[: 2 * before.room] = before.shares
                for system, old in ((made.ranks, before.ranks), (made.majorant, before.majorant)):
                    system.values[: before.room] = old.values
                    system.sums[: before.room] = old.sums
                self._stream.synchronize()
                estimates[: before.room] = before.estimates
                self._shifts = (
                    self._shifts[0] + before.bits[0] - bits[0],
                    self._shifts[1] + before.bits[1] - bits[1],
                )
        self._columns = made
        self._packed_rows.forget()
        job = self._calls.job
        job["degrees"], job["in_degrees"] = map(address, made.degrees)
        for name, system in (("ranks", ranks), ("majorant", majorant)):
            job[name] = [address(column) for column in system]
        job["weights"], job["estimates"] = address(made.weights), estimates.ctypes.data
        job["unit"], job["majorant_unit"] = self.units

    # -- runs -------------------------------------------------------------------------------------------------

    def forget(self, exists: npt.NDArray[np.bool_]) -> None:
        """Have the next run begin ANEW, with the vertices that exist."""
        self._shifts = (0, 0)
        self.estimates.view(np.uint8)[: exists.size] = exists

    def arrive(self, device: DeviceSide, appeared: Vertices, gone: Vertices) -> None:
        """Let vertices appear, without edges, and go. Waits for nothing.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        n = appeared.size + gone.size
        if n == 0 and self._shifts == (0, 0):
            return
        if n > self._arrivals.size:
            self._arrivals = pinned(int(_ROOM * n), np.uint64)
        self._arrivals[: appeared.size] = appeared.astype(np.uint64) | np.uint64(1 << 32)
        self._arrivals[appeared.size : n] = gone
        job = self._calls.job
        job["shift"], job["majorant_shift"] = self._shifts
        job["arrivals"], job["n_arrivals"] = self._arrivals.ctypes.data, n
        job["n_vertices"] = device.n_vertices
        self._shifts = (0, 0)
        self._calls.launch(self._kernels["arrive"], device)

    def run(
        self, kernel: Kernel, device: DeviceSide, call: Call, parameters: RowParameters | None = None
    ) -> WalkRun:
        """Launch a kernel on these systems, and wait for its words. ``parameters``: where it takes more than they
        have.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        self._prepare(device, call)
        self._calls.call(kernel, device, parameters)
        return self.told()

    def told(self) -> WalkRun:
        """What the last call says, for which it is waited.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        return WalkRun(*whole_words(self._calls.wait(), WORDS))

    def launch(self, kernel: Kernel, device: DeviceSide, call: Call, parameters: RowParameters) -> None:
        """``run`` of a kernel that says nothing; waits for nothing.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        self._prepare(device, call)
        self._calls.launch(kernel, device, parameters)

    def _prepare(self, device: DeviceSide, call: Call) -> None:
        limits, slack, due_max, push_max, begins, is_kept = call
        _CALL.pack_into(
            self._calls.packed,
            _CALL_BEGINS,
            *limits,
            *slack,
            due_max,
            push_max,
            self._passes_max,
            begins,
            0,
            0,
            0,
            device.n_vertices,
            self._calls.next_number(),
            is_kept,
        )

    def solve(self, device: DeviceSide, call: Call, parameters: RowParameters, *, hands_over: bool) -> WalkRun:
        """Passes, and pushes, until the ranks and the majorant keep to their limits, or too much is left for
        pushes: from what there is, which need not be of this graph. ``parameters``: of the pushes.
        ``hands_over``: estimates go to the host.

        Raises:
            Unfit: they get no closer in the numbers of the device.
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        rows = self._packed_rows
        is_kept = rows.make_room(device)
        try:
            with rows.in_use():
                self._launch_passes(device, call._replace(is_kept=is_kept), parameters, hands_over=hands_over)
            run = self.told()
        except Exception:  # whoever catches it may let go of the memory that is being copied to
            with suppress(Exception):
                self._copies.synchronize()
            raise
        rows.passed(device, is_kept=is_kept)
        if run.passes == self._passes_max and not run.is_solved:
            raise Unfit("its residuals get no smaller in the numbers of the device")
        return run

    def _launch_passes(
        self, device: DeviceSide, call: Call, parameters: RowParameters, *, hands_over: bool
    ) -> None:
        """Passes, and what comes after them; waits for nothing."""
        calls, kernels, stream = self._calls, self._kernels, self._stream
        calls.job["made"] = address(self._there.made) if hands_over else 0
        self._prepare(device, call)
        calls.launch(kernels["passes"], device)
        if hands_over:
            self._made.record(stream)
        calls.launch(kernels["settle"], device, parameters)
        if hands_over:
            n, copies = device.n_vertices, self._copies
            copies.wait_event(self._made)
            self._there.made[:n].get(stream=copies, out=self.estimates[:n], blocking=False)
            self._copied.record(copies)
            stream.wait_event(self._copied)
        calls.launch(kernels["hand_over"], device, parameters)

    def amend(self, device: DeviceSide, n_changes: int) -> None:
        """Let what is kept of rows on the host follow the batch that ``device`` applied last, in which so many
        edges were inserted and deleted, and after which nothing has run yet. Waits for nothing.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        self._packed_rows.amend(device, n_changes)

    def _counter(self, name: str) -> DeviceArray:
        """The bytes of a field of the counters."""
        assert WALK_COUNTERS.fields is not None
        kind, begin = WALK_COUNTERS.fields[name][:2]
        return self._counters[begin : begin + kind.itemsize]

    # -- columns ----------------------------------------------------------------------------------------------

    def read(self, n: int) -> Columns:
        """Both systems of the first ``n`` vertices.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        there = self._there
        unit, majorant_unit = self.units
        values, residuals = self._floats(there.ranks, unit, n)
        majorant, slack = self._floats(there.majorant, majorant_unit, n)
        return Columns(values, residuals, there.weights[:n].get(stream=self._stream), majorant, slack)

    def _floats(self, system: _System, unit: float, n: int) -> tuple[F64, F64]:
        values, sums = (column[:n].get(stream=self._stream) for column in (system.values, system.sums))
        return values / unit, (sums - values) / unit

    def write(self, columns: Columns) -> None:
        """Begin with these estimates from now on: runs of ``solve`` make residuals of their own."""
        there = self._there
        n = columns.values.size
        self._shifts = (0, 0)
        for system, unit, estimate, residual in (
            (there.ranks, self.units[0], columns.values, columns.residuals),
            (there.majorant, self.units[1], columns.majorant, columns.slack),
        ):
            sums = np.rint(np.maximum(0.0, estimate + residual) * unit).astype(np.int64)
            system.sums[:n].set(sums, stream=self._stream)
        there.weights[:n].set(columns.weights, stream=self._stream)


def point(room: int, damping: float) -> tuple[int, int]:
    """How many bits the numbers of the ranks, and of the majorant, have behind the point, for so many vertices.

    Raises:
        Unfit: there are too many vertices.
    """
    largest = 1 / (1 - damping)
    ranks, majorant = (bits_behind(total) for total in (room * largest, room * largest * (1 + largest / 3)))
    if majorant < BITS_MIN:
        raise Unfit(f"its numbers have too few bits for {room} vertices")
    return ranks, majorant


def bits_behind(total: float) -> int:
    """How many bits numbers have behind the point that add up to so much at most."""
    return _SUM_BITS - math.ceil(math.log2(_SPARE * total))


def passes_max(damping: float) -> int:
    """After so many passes residuals get no smaller."""
    return _PASSES_LEAST + math.ceil(_BITS_SHRUNK * math.log(0.5) / math.log(damping))
