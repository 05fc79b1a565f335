"""Runs of PageRank's two systems on the device: their numbers in fixed point, and the kernels of ``passes.cu``.

Each run is one cooperative kernel for the ranks and one for the majorant, begun together and waited for once. A
run allocates nothing, unless there are more vertices than ever before.

**The point.** The exact solution of the ranks adds up to at most C = 1 / (1 - damping) a vertex, and so does what
a pass makes of any values that are not negative: its factor balances what is lost, at least 1 - damping of
all values, and what is given. Weights are at most 1 + WEIGHT_HYSTERESIS / HUB of an estimate, so that the majorant
adds up to at most C * (1 + C / 3) a vertex. Bits behind the point are as many as leave all values of a system, for
as many vertices as there is room for, below 2^60 together: no sum of int64 overflows, whatever it is of.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.device.constants import BLOCK_THREADS
from ...gpma.device.module import import_cupy, load_cooperative_text, source
from ...gpma.device.state import DeviceArray, address, zeros
from ...gpma.device.structures import STATE
from ...gpma.device.update import Launcher
from ...gpma.device.waiting import Told
from ...gpma.edges import Vertices
from ...partition.device_side import DeviceSide
from ..walks.pagerank import HUB, WEIGHT_HYSTERESIS
from ..walks.passes import Limits
from .program import Unfit

F64 = npt.NDArray[np.float64]

WALK_JOB: Final = np.dtype(
    [
        ("ranks", np.uint64, 3),
        ("majorant", np.uint64, 3),
        *((name, np.uint64) for name in ("weights", "counters", "status", "estimates", "arrivals")),
        *((name, np.float64) for name in ("damping", "unit", "majorant_unit", "hub", "hysteresis")),
        *((name, np.float64) for name in ("below", "above")),
        ("due_max", np.uint64),
        *((name, np.uint32) for name in ("passes_max", "begins", "shift", "majorant_shift")),
        *((name, np.uint32) for name in ("n_arrivals", "n_vertices", "sequence", "unused")),
    ]
)
"""struct WalkJob of ``walks.cuh``."""

WALK_COUNTERS: Final = np.dtype(
    [("passes", np.uint64, 12), ("totals", np.uint64, 5), ("barrier", np.uint32), ("unused", np.uint32)]
)
"""struct WalkCounters of ``walks.cuh``."""

FILE: Final = Path(__file__).parent / "passes.cu"
# Kernels, and how many of their blocks a multiprocessor gets at most.
KERNELS: Final = {"ranks": 2, "majorant": 2, "arrive": 1}

# With what a run begins; see enum Begin.
_KEPT, _ANEW = 0, 1
# All values of a system add up to less than this power of two.
_SUM_BITS = 60
# The majorant's right-hand side, a float32, is to be exact.
BITS_MIN = 23
# Columns grow by this factor.
_ROOM = 1.5
# Passes shrink residuals in sum by the damping factor at least; beyond what that makes 2^-BITS_SHRUNK of them, all
# they do is round.
_BITS_SHRUNK, _PASSES_LEAST = 40, 50


class WalkRun(NamedTuple):
    """What a run told: the words of ``walks.cuh``, in that order, each of them 64 bits.

    ``over``: vertices that were left over their limits, and ``over_edges`` their out-edges. In units of the
    system: ``norm``, the sum of all values; ``size`` that of the sizes of residuals; ``total`` that of residuals.
    Doubles: ``rounded``, by how much rounded shares may have put a residual off at most, in multiples of its
    weight; ``ratio``, of a majorant the largest majorant / estimate.
    """

    passes: int
    over: int
    over_edges: int
    norm: int
    size: int
    total: int
    rounded: float
    ratio: float


# By how much a rounded share may be off: of itself, and beyond that in units; see ``passes.cu``.
SHARE_ROUNDED, UNIT_ROUNDED = 2.0**-24 * (1 + 1e-3), 1 + 1e-3

_SAID = len(WalkRun._fields)
_BITS, _WORDS = struct.Struct("=8Q"), struct.Struct("=6q2d")


class Kernel(NamedTuple):
    """A cooperative kernel. ``handle``: the driver's, which ``function`` keeps alive. ``blocks``: of a launch."""

    function: Any
    handle: Any
    blocks: int


class _System(NamedTuple):
    """Columns by vertex: int64, int64, float32."""

    values: DeviceArray
    sums: DeviceArray
    shares: DeviceArray


class _Columns(NamedTuple):
    """``room`` entries each; ``bits``: behind the points of the ranks and of the majorant."""

    room: int
    bits: tuple[int, int]
    ranks: _System
    majorant: _System
    weights: DeviceArray
    pinned: Any
    estimates: F64


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
        self._out, self._in, self._ranks_job, self._majorant_job = (
            np.zeros(1, np.dtype(f"V{dtype.itemsize}")) for dtype in (STATE, STATE, WALK_JOB, WALK_JOB)
        )
        self._launch_ranks = Launcher(self._stream, (self._out, self._in, self._ranks_job))
        self._launch_majorant = Launcher(self._stream, (self._out, self._in, self._majorant_job))
        self._told = tuple(Told(2 * _SAID, self._stream) for _ in range(2))
        self._sequence = 0
        self._kernels: dict[str, Kernel] = {}
        with self._stream:
            self._counters = zeros(WALK_COUNTERS.itemsize, np.uint8)
        self._columns: _Columns | None = None
        self._shifts = (0, 0)
        self._arrivals_pinned, self._arrivals = pinned(0, np.uint64)
        for job, told in zip(self._jobs, self._told, strict=True):
            job["counters"], job["status"] = address(self._counters), told.address
            job["damping"], job["hub"], job["hysteresis"] = damping, HUB, WEIGHT_HYSTERESIS
        self._passes_max = _PASSES_LEAST + math.ceil(_BITS_SHRUNK * math.log(0.5) / math.log(damping))

    @property
    def _jobs(self) -> tuple[Any, Any]:
        return self._ranks_job.view(WALK_JOB), self._majorant_job.view(WALK_JOB)

    # -- arrays -----------------------------------------------------------------------------------------------

    @property
    def estimates(self) -> F64:
        """float64[room], in pinned memory: the values of the ranks as the last run of ``solve`` left them."""
        return self._there.estimates

    @property
    def units(self) -> tuple[float, float]:
        """What 1 is in the numbers of the ranks, and of the majorant."""
        ranks, majorant = self._there.bits
        return 2.0**ranks, 2.0**majorant

    @property
    def room(self) -> int:
        """For how many vertices there is room."""
        return self._there.room

    @property
    def memory_bytes(self) -> int:
        """Of the host, pinned."""
        return 0 if self._columns is None else self._columns.estimates.nbytes + self._arrivals.nbytes

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
            memory, estimates = pinned(room, np.float64)
            ranks, majorant = (
                _System(zeros(room, np.int64), zeros(room, np.int64), zeros(room, np.float32)) for _ in range(2)
            )
            made = _Columns(room, bits, ranks, majorant, zeros(room, np.float32), memory, estimates)
            if before is not None:
                made.weights[: before.room] = before.weights
                for system, old in ((made.ranks, before.ranks), (made.majorant, before.majorant)):
                    for column, old_column in zip(system, old, strict=True):
                        column[: before.room] = old_column
                self._stream.synchronize()
                estimates[: before.room] = before.estimates
                self._shifts = (
                    self._shifts[0] + before.bits[0] - bits[0],
                    self._shifts[1] + before.bits[1] - bits[1],
                )
        self._columns = made
        for job in self._jobs:
            for name, system in (("ranks", ranks), ("majorant", majorant)):
                job[name] = [address(column) for column in system]
            job["weights"] = address(made.weights)
            job["unit"], job["majorant_unit"] = self.units

    # -- runs -------------------------------------------------------------------------------------------------

    def start(
        self, device: DeviceSide, exists: npt.NDArray[np.bool_], slack: Limits, passes: int
    ) -> tuple[WalkRun, WalkRun]:
        """Coarse ranks by so many passes, from nothing, and a majorant of theirs.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it; what there was is void.
        """
        there = self._there
        self._shifts = (0, 0)
        there.weights.fill(0)
        there.weights[: exists.size].set(exists.astype(np.float32), stream=self._stream)
        return self._run(device, Limits(0.0, 0.0), slack, _ANEW, passes)

    def arrive(self, device: DeviceSide, appeared: Vertices, gone: Vertices) -> None:
        """Let vertices appear, without edges, and go. Waits for nothing.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        n = appeared.size + gone.size
        if n == 0 and self._shifts == (0, 0):
            return
        if n > self._arrivals.size:
            self._arrivals_pinned, self._arrivals = pinned(int(_ROOM * n), np.uint64)
        self._arrivals[: appeared.size] = appeared.astype(np.uint64) | np.uint64(1 << 32)
        self._arrivals[appeared.size : n] = gone
        job, _ = self._jobs
        job["shift"], job["majorant_shift"] = self._shifts
        job["arrivals"], job["n_arrivals"] = self._arrivals.ctypes.data, n
        self._shifts = (0, 0)
        self._point_at(device)
        self._begin("arrive", self._launch_ranks)

    def solve(
        self, device: DeviceSide, limits: Limits, slack: Limits, due_max: int = 0
    ) -> tuple[WalkRun, WalkRun]:
        """Passes of the ranks until they keep to their limits, and of the majorant: from what there is, which need
        not be of this graph.

        ``due_max``: they end when vertices that are over have so many out-edges together, or fewer.

        Raises:
            Unfit: they get no closer in the numbers of the device.
            MemoryError, RuntimeError: as ``start``.
        """
        runs = self._run(device, limits, slack, _KEPT, self._passes_max, due_max)
        if any(run.passes == self._passes_max and max(run.over, run.over_edges) > due_max for run in runs):
            raise Unfit("its residuals get no smaller in the numbers of the device")
        return runs

    def write_job(self, job: npt.NDArray[np.void], device: DeviceSide, limits: Limits) -> None:
        """The ranks and everything else that runs work in, for a kernel that tells by itself how it ended."""
        self._point_at(device)
        job[:] = self._ranks_job
        job.view(WALK_JOB)["below"], job.view(WALK_JOB)["above"] = limits

    def _run(
        self, device: DeviceSide, limits: Limits, slack: Limits, begins: int, passes: int, due_max: int = 0
    ) -> tuple[WalkRun, WalkRun]:
        self._point_at(device)
        self._sequence = self._sequence % 0xFFFF_FFFF + 1
        for job, allowed, most in zip(self._jobs, (limits, slack), (passes, self._passes_max), strict=True):
            job["below"], job["above"] = allowed
            job["due_max"] = due_max
            job["begins"], job["passes_max"], job["sequence"] = begins, most, self._sequence
        self._begin("ranks", self._launch_ranks)
        self._begin("majorant", self._launch_majorant)
        ranks, majorant = (self._heard(told) for told in self._told)
        return ranks, majorant

    def _point_at(self, device: DeviceSide) -> None:
        device.out.write_state(self._out)
        device.in_rows.write_state(self._in)
        for job in self._jobs:
            job["n_vertices"] = device.n_vertices
        self._ranks_job.view(WALK_JOB)["estimates"] = self._there.estimates.ctypes.data

    def _begin(self, name: str, launcher: Launcher) -> None:
        kernel = self._kernels.get(name) or self._compiled(name)
        launcher.start_cooperative(kernel.handle, kernel.blocks, BLOCK_THREADS, 0)

    def _heard(self, told: Told) -> WalkRun:
        told.wait(self._sequence)
        said = [told.word(2 * k) | told.word(2 * k + 1) << 32 for k in range(_SAID)]
        passes, over, over_edges, norm, size, total, rounded, ratio = _WORDS.unpack(_BITS.pack(*said))
        return WalkRun(passes, over, over_edges, norm, size, total, rounded, ratio)

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

    # -- kernels ----------------------------------------------------------------------------------------------

    def compile(self) -> None:
        """Have the kernels compiled, or loaded from CuPy's cache, now."""
        for name in KERNELS:
            self._compiled(name)

    def _compiled(self, name: str) -> Kernel:
        made = self._kernels[name] = compiled(FILE, name, blocks=KERNELS[name])
        return made


def compiled(file: Path, name: str, *, blocks: int) -> Kernel:
    """A kernel of a file, launched with at most so many blocks on a multiprocessor."""
    function = load_cooperative_text(source(file), weighted=False).get_function(name)
    handle = function.kernel.ptr
    cuda = import_cupy().cuda
    fit = cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(handle, BLOCK_THREADS, 0)
    return Kernel(function, handle, int(cuda.Device().attributes["MultiProcessorCount"]) * min(fit, blocks))


def pinned(n: int, dtype: npt.DTypeLike) -> tuple[Any, Any]:
    """(what keeps it, an array of so many, and of one at least) in memory that host and device share."""
    memory = import_cupy().cuda.alloc_pinned_memory(max(1, n) * np.dtype(dtype).itemsize)
    return memory, np.frombuffer(memory, dtype, max(1, n))


def point(room: int, damping: float) -> tuple[int, int]:
    """How many bits the numbers of the ranks, and of the majorant, have behind the point, for so many vertices.

    Raises:
        Unfit: there are too many vertices.
    """
    largest = 1 / (1 - damping)
    sums = room * largest, room * largest * (1 + largest / 3)
    ranks, majorant = (_SUM_BITS - math.ceil(math.log2(total)) for total in sums)
    if majorant < BITS_MIN:
        raise Unfit(f"its numbers have too few bits for {room} vertices")
    return ranks, majorant
