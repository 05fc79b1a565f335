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
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.device.module import import_cupy
from ...gpma.device.pool import Spare, free_bytes
from ...gpma.device.state import DeviceArray, address, allocate, pinned, pinned_by_itself, zeros
from ...gpma.edges import Vertices
from ...gpma.layout import LEAF_SHIFT
from ...gpma.memory import Memory
from ...gpma.row_reads import LINE_BYTES
from ...partition.device_side import DeviceSide, RowsVersion
from ..walks.certificate import HUB, WEIGHT_HYSTERESIS
from ..walks.passes import Limits
from . import push_calls
from .kernels import Calls, Kernel, Kernels, RowParameters, Source, whole_words
from .narrowed import F32
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

# Leaves that a warp of a pass adds up in one go, a range; packed, those of the host have a word of 32 bits for
# each slot at most.
_RANGE = 8
_RANGE_WORDS = _RANGE << LEAF_SHIFT

_LEAVES: Final = (f"-DPASS_LEAVES={_RANGE}",)
SOURCES: Final = {
    "passes": Source("passes.cu", macros=_LEAVES, blocks=2),
    "settle": Source("settle.cu", macros=_LEAVES, blocks=2),
    "hand_over": Source("hand_over.cu"),
    "arrive": Source("arrive.cu"),
    "amend": Source("amend.cu"),
}


def walk_kernels() -> Kernels:
    return Kernels(SOURCES, weighted=False)


# With what a run begins; see enum Begin. By what is amended; see enum Moved.
KEPT, ANEW, SOLVED, EXACT = range(4)
_BATCH, _CAME, _LEFT = range(3)
# All values of a system add up to less than this power of two. Some of it is left to what residuals within the
# largest tolerance may add, and to rounding: a unit a vertex, and the last bit of a factor.
_SUM_BITS, _SPARE = 60, 1.125
# The majorant's right-hand side, a float32, is to be exact.
BITS_MIN = 23
# Columns grow by this factor, and what is packed gets so much more than it needs.
_ROOM, _ROOM_PACKED = 1.5, 1.1
# Beside what is packed there is room for one edit to so many words: with that many a pass reads an eighth more,
# which in fifteen passes comes to what packing anew costs.
_WORDS_AN_EDIT = 16
ASKED_EVERY_S = 0.5
"""What is packed gives its memory back where there is not as much again. That, and whether there is memory to pack
anything, and to keep it on the device, too, is asked so often: it takes a millisecond on some machines, as long as
a pass."""
CACHE_SHARE = 0.75
"""So much of the device's memory that is free goes to packed rows at first, until somebody needs it."""
# So much of that each time that somebody needed it, until it was there so often in a row.
_SHARE_AGAIN, _QUIET = 0.8, 60
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


class _Packed:
    """What passes keep of remote in-rows, from run to run (``passes.cu``): there is room for so many ranges.

    ``words`` uint32[256 * ranges] and ``edits`` uint64[16 * ranges], in pinned memory; ``ranges`` uint64[ranges],
    on the device. ``is_of``: of which rows, with ``n_edits`` edits at most; None: of none. Only the device knows
    which edges of a batch are listed. ``cache`` uint64: words of some ranges again, on the device, where it has
    memory to spare, and ``places`` uint32[ranges], where they begin there.
    """

    def __init__(self, n_ranges: int) -> None:
        """Of no rows yet.

        Raises:
            MemoryError: there is not enough.
        """
        # First, since a full device is found out sooner than memory is pinned.
        self.ranges: DeviceArray = allocate(n_ranges, np.uint64)
        self.places: DeviceArray = zeros(n_ranges, np.uint32)
        self.words: npt.NDArray[np.uint32] = pinned_by_itself(_RANGE_WORDS * n_ranges, np.uint32)
        self.edits: npt.NDArray[np.uint64] = pinned_by_itself(self.words.size // _WORDS_AN_EDIT, np.uint64)
        self.is_of: RowsVersion | None = None
        self.n_edits = 0
        self.brought: list[npt.NDArray[np.uint64]] = []
        """Keys in pinned memory that kernels may not have read yet."""
        self.cache = Spare()
        self._asked_at = -math.inf
        # Of what is free, for the cache; whether it had any when this was last asked, and how often in a row.
        self._share, self._had_cache, self._quiet = CACHE_SHARE, False, 0

    @property
    def nbytes(self) -> int:
        """Of the host's memory."""
        return self.words.nbytes + self.edits.nbytes

    def wants_another_cache(self, n_ranges: int) -> int | None:
        """How many bytes the cache of so many ranges should have; None: it has half as many at least, or that was
        asked a moment ago. To take memory may cost what many passes do, as CuPy's pool gives back what others use
        again: so where somebody took it away, there is less of it the next time, until it was left for a while."""
        now = time.monotonic()
        if now - self._asked_at <= ASKED_EVERY_S:
            return None
        self._asked_at = now
        had = self.cache.nbytes
        self._quiet = self._quiet + 1 if had else 0
        if self._had_cache and not had:
            self._share *= _SHARE_AGAIN
        elif self._quiet > _QUIET:
            self._share = CACHE_SHARE
        wanted = min(4 * _RANGE_WORDS * n_ranges, int(self._share * (free_bytes() + had)))
        takes = wanted > 2 * had
        self._had_cache = takes or had > 0
        return wanted if takes else None

    @staticmethod
    def bytes_of(n_ranges: int) -> int:
        n_words = _RANGE_WORDS * n_ranges
        return 4 * n_words + 8 * (n_words // _WORDS_AN_EDIT)


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
        self._packed: _Packed | None = None
        # When there was memory for it, and when there was none.
        self._allowed_at = self._refused_at = -math.inf
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
        return self._packed is not None

    @property
    def memory_bytes(self) -> int:
        """Of the host, pinned."""
        packed = 0 if self._packed is None else self._packed.nbytes
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
        if self._packed is not None:
            self._packed.is_of = None
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
        self._make_room_for_remote(device)
        packed, version = self._packed, device.version
        is_kept = packed is not None and packed.is_of == version
        try:
            if packed is None:
                self._launch_passes(device, call, parameters, hands_over=hands_over)
            else:
                packed.is_of = None  # if this fails
                with packed.cache.lock:
                    self._use(packed.cache)
                    self._launch_passes(device, call._replace(is_kept=is_kept), parameters, hands_over=hands_over)
            run = self.told()
        except Exception:  # whoever catches it may let go of the memory that is being copied to
            with suppress(Exception):
                self._copies.synchronize()
            raise
        if packed is not None:
            packed.brought.clear()
            packed.is_of = version if is_kept or self._all_packed() else None
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

    # -- rows on the host -----------------------------------------------------------------------------------------

    def amend(self, device: DeviceSide, n_changes: int) -> None:
        """Let what is kept of rows on the host follow the batch that ``device`` applied last, in which so many
        edges were inserted and deleted, and after which nothing has run yet. Waits for nothing.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        packed, version = self._packed, device.version
        if packed is None or packed.is_of is None:
            return
        before, packed.is_of = packed.is_of, None
        moved = None if device.remote is None else device.moved_since(before)
        if moved is None:
            return
        report = device.report if n_changes else None
        n_more = n_changes + sum(rows.keys.size for rows in moved)
        if packed.n_edits + n_more > packed.edits.size:
            packed.n_edits = self._n_listed()
        if packed.n_edits + n_more > packed.edits.size:
            return
        packed.n_edits += n_more
        for rows in moved:
            try:
                with self._stream:
                    brought = pinned(rows.keys.size, np.uint64)[: rows.keys.size]
            except MemoryError:
                return
            brought[:] = rows.keys
            packed.brought.append(brought)
            self._amend(device, int(brought.ctypes.data), 0, brought.size, _CAME if rows.to_host else _LEFT)
        if report is not None:
            keys, _, outcomes = report.addresses
            self._amend(device, keys, outcomes, report.n, _BATCH)
        packed.is_of = version

    def _amend(self, device: DeviceSide, keys: int, outcomes: int, n: int, moved: int) -> None:
        job = self._calls.job
        job["keys"], job["outcomes"], job["n_updates"], job["moved"] = keys, outcomes, n, moved
        self._calls.launch(self._kernels["amend"], device)

    def _make_room_for_remote(self, device: DeviceSide) -> None:
        """For packed in-rows, where there is memory for them twice: the host's rows want to grow, and for speed
        alone no rows are to leave the device. Otherwise passes do without."""
        remote, packed = device.remote, self._packed
        n_ranges = 0 if remote is None else -(-remote.n_leaves_in // _RANGE)
        is_kept = packed is not None and packed.is_of == device.version
        is_in_the_way = (
            packed is not None
            and time.monotonic() - self._allowed_at > ASKED_EVERY_S
            and not self._allows(packed.nbytes)
        )
        if packed is not None and (
            n_ranges == 0 or (n_ranges > packed.ranges.size and not is_kept) or is_in_the_way
        ):
            self._stream.synchronize()  # what was launched may write there
            self._packed = packed = None  # gives its memory back
            is_kept = False
        if packed is None and n_ranges and time.monotonic() - self._refused_at > ASKED_EVERY_S:
            room = int(_ROOM_PACKED * n_ranges) + 1
            if self._allows(2 * _Packed.bytes_of(room)):
                try:
                    with self._stream:
                        self._packed = packed = _Packed(room)
                except MemoryError:
                    self._refused_at = time.monotonic()
        if packed is not None:
            self._make_cache(packed, n_ranges)
        if is_kept:
            return
        job = self._calls.job
        job["packed"] = job["packed_ranges"] = job["edits"] = job["n_packed"] = job["edits_room"] = 0
        if packed is not None:
            packed.n_edits = 0
            job["packed"], job["packed_ranges"] = packed.words.ctypes.data, address(packed.ranges)
            job["cache_places"] = address(packed.places)
            job["edits"], job["edits_room"] = packed.edits.ctypes.data, packed.edits.size
            job["n_packed"] = n_ranges
            job["packed_bits"] = max(1, (device.n_vertices - 1).bit_length())

    def _make_cache(self, packed: _Packed, n_ranges: int) -> None:
        """For what passes read of packed rows, as large as the device has memory for by now. They fill it."""
        n_bytes = packed.wants_another_cache(n_ranges)
        if n_bytes is None:
            return
        with self._stream:
            if packed.cache.take(n_bytes // 8, np.uint64):
                packed.places.fill(0)
                self._counter("cached").fill(0)

    def _use(self, cache: Spare) -> None:
        """Until it goes."""
        job = self._calls.job
        job["cache"], job["cache_lines"] = address(cache.array), cache.nbytes // LINE_BYTES

    def _allows(self, n_bytes: int) -> bool:
        """Whether the machine has memory for so much more."""
        is_there = Memory().allows(n_bytes)
        if is_there:
            self._allowed_at = time.monotonic()
        else:
            self._refused_at = time.monotonic()
        return is_there

    def _all_packed(self) -> bool:
        """Whether the passes that were run last have packed every range."""
        return not self._counted("unpacked").any()

    def _n_listed(self) -> int:
        """How many edits are listed, once what was launched is done."""
        return int(self._counted("edits").sum())

    def _counted(self, name: str) -> npt.NDArray[np.uint32]:
        """A field of the counters, fetched."""
        fetched: npt.NDArray[np.uint8] = self._counter(name).get(stream=self._stream)
        return fetched.view(np.uint32)

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
