"""Pushes of PageRank on the device: the lists that ``pushes.cuh`` works in, and runs of them, after few updates or
after passes.

After few updates a run is one cooperative kernel for both systems, waited for once. It goes on from numbers that
are exact (see ``walks.cuh``), and allocates nothing, unless there are more vertices or long rows than ever before.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.device.calling import DONE, OTHERWISE, SAID
from ...gpma.device.constants import LONG_ROW
from ...gpma.device.state import DeviceArray, address, allocate, pinned, zeros
from ...gpma.edges import Vertices
from ...partition.device_side import DeviceSide
from ..walks.passes import Limits
from . import push_calls
from .kernels import Kernels, Source
from .push_calls import ACCOUNT, ARCS_MAX, BATCH, FORM, PUSH, PUSH_LONGS, PUSH_WORDS, TOLD, WALK, Account
from .walk_runs import ANEW, KEPT, WORDS, Call, WalkRun, WalkRuns

_LISTS = ("candidates", "others", "stamps", "moved", "moved_stamps", "differences")

PUSH_JOB: Final = np.dtype(
    [
        ("ranks", np.uint64, len(_LISTS)),
        ("majorant", np.uint64, len(_LISTS)),
        *((name, np.uint64) for name in ("degree_changes", "short_rows", "long_rows", "counters", "changes")),
        *((name, np.uint64) for name in ("keys", "outcomes", "edges_first", "edges_max")),
        *((name, np.float64) for name in ("size",)),
        *((name, np.uint32) for name in ("room", "changes_room", "n_updates", "stamp", "looks", "edits_alone")),
    ]
)
"""struct PushJob of ``pushes.cu``."""

PUSH_COUNTERS: Final = np.dtype(
    [
        ("rows", np.uint64, 8),
        ("candidates", np.uint32, 4),
        ("moved", np.uint32, 2),
        *((name, np.uint64) for name in ("norm", "size", "total", "degree", "ratio")),
    ]
)
"""struct PushCounters of ``pushes.cu``."""

SOURCE: Final = Source("pushes.cu")
_PUSHES = "pushes"


def push_kernels() -> Kernels:
    return Kernels({_PUSHES: SOURCE}, weighted=False)


_ENTRY_BYTES = 16
# The queue of short rows has room for one vertex in so many, and for so many at least; with more, a run gives up.
QUEUE_SHARE, QUEUE_LEAST = 8, 4096
# The list of changes has room for one vertex in so many, and for so many at least; else all estimates changed.
CHANGES_SHARE, CHANGES_LEAST = 16, 4096
# Given up when so large a share of all arcs is due at first (and so many), or has been pushed along: on an H200 an
# edge that was pushed through a list cost as much as seven in a pass.
FIRST_SHARE, FIRST_LEAST = 0.1, 4096
MOST_SHARE, MOST_LEAST = 0.4, 16384
# When passes leave so many times as much to push as was to be expected, or less, it is pushed.
LEFT_FACTOR = 2
STAMP_MAX = 1 << 31
"""From here on stamps begin anew. No run has as many rounds as are left then."""


# What ``push_calls.push_again`` leaves: what was told, whether that is ordinary, and the error bound.
_AGAIN = struct.Struct(f"{WORDS.format}qd")
# The part of a job that differs from run to run, in the order of ``_prepare`` and of ``push_calls.push_again``.
_CALL = struct.Struct("=4Qd6I")
assert PUSH_JOB.fields is not None
_CALL_BEGINS = PUSH_JOB.fields["keys"][1]
assert _CALL_BEGINS + _CALL.size == PUSH_JOB.itemsize and _CALL.size == 8 * PUSH_LONGS + 4 * PUSH_WORDS


class _Lists(NamedTuple):
    """Of a system; see struct Lists."""

    candidates: DeviceArray
    others: DeviceArray
    stamps: DeviceArray
    moved: DeviceArray
    moved_stamps: DeviceArray
    differences: DeviceArray


class _ByVertex(NamedTuple):
    """Lists with ``room`` entries each."""

    room: int
    queue_room: int
    ranks: _Lists
    majorant: _Lists
    degree_changes: DeviceArray
    short_rows: DeviceArray
    changes: Vertices


class PushRuns:
    """Pushes over the numbers of ``walks``."""

    def __init__(self, walks: WalkRuns, device: DeviceSide) -> None:
        """Compiles nothing yet.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._walks = walks
        self._stream: Any = device.stream
        self._bytes = np.zeros(1, np.dtype(f"V{PUSH_JOB.itemsize}"))
        self._call_bytes = memoryview(self._bytes.view(np.uint8))
        self._job: Any = self._bytes.view(PUSH_JOB)
        self._parameters = walks.parameters(self._bytes)
        self._stamp = 1
        self._kernel = push_kernels()[_PUSHES]
        with self._stream:
            self._counters = zeros(PUSH_COUNTERS.itemsize, np.uint8)
            self._long_rows = allocate(0, np.uint8)
        self._by_vertex: _ByVertex | None = None
        self._job["counters"] = address(self._counters)
        self._record, self._said = walks.calls.caller.record, walks.calls.caller.said
        self._words = memoryview(self._record[SAID:].view(np.uint8))
        self._batch = device.batch  # held
        self._said[BATCH], self._said[WALK] = device.batch.ctypes.data, walks.call_address
        self._said[PUSH] = self._bytes.ctypes.data + _CALL_BEGINS
        # To which limits pushes were called last; and what that call was, if what holds after it was kept.
        self._limits: tuple[Limits, Limits] | None = None
        self._aimed: object = None

    @property
    def memory_bytes(self) -> int:
        """Of the host, pinned."""
        return 0 if self._by_vertex is None else self._by_vertex.changes.nbytes

    def make_room(self, n_vertices: int, n_arcs: int) -> None:
        """For so many vertices, and as many long rows as there may be.

        Raises:
            MemoryError: there is not enough; everything is as before.
        """
        long_bytes = _ENTRY_BYTES * (n_arcs // LONG_ROW + 1)
        by_vertex, long_rows = self._by_vertex, self._long_rows
        if by_vertex is not None and n_vertices <= by_vertex.room and long_bytes <= long_rows.size:
            return
        with self._stream:
            if by_vertex is None or n_vertices > by_vertex.room:
                by_vertex = self._made(self._walks.room)
            if long_bytes > long_rows.size:
                long_rows = allocate(3 * long_bytes // 2, np.uint8)
        self._by_vertex, self._long_rows = by_vertex, long_rows
        job = self._job
        for name, lists in (("ranks", by_vertex.ranks), ("majorant", by_vertex.majorant)):
            job[name] = [address(column) for column in lists]
        job["degree_changes"], job["short_rows"] = address(by_vertex.degree_changes), address(by_vertex.short_rows)
        job["long_rows"], job["changes"] = address(long_rows), by_vertex.changes.ctypes.data
        # Calls like the last one need not ask for room where there are no more arcs than these.
        self._said[ARCS_MAX] = LONG_ROW * (long_rows.size // _ENTRY_BYTES) - 1

    def _made(self, room: int) -> _ByVertex:
        queue_room = min(room, max(QUEUE_LEAST, room // QUEUE_SHARE))
        changes_room = min(room, max(CHANGES_LEAST, room // CHANGES_SHARE))
        changes: Vertices = pinned(changes_room, np.uint32)
        ranks, majorant = (
            _Lists(
                allocate(room, np.uint32),
                allocate(room, np.uint32),
                zeros(room, np.uint32),
                allocate(room, np.uint32),
                zeros(room, np.uint32),
                allocate(room, np.int64),
            )
            for _ in range(2)
        )
        short_rows = allocate(queue_room * _ENTRY_BYTES, np.uint8)
        return _ByVertex(room, queue_room, ranks, majorant, zeros(room, np.int32), short_rows, changes)

    def push(self, device: DeviceSide, limits: Limits, slack: Limits, size: int, *, looks: bool) -> WalkRun:
        """Push until both systems keep to their limits.

        Either whoever is over them (``looks``), or take the batch that ``device`` applied last, and then whom that
        touches: all others were within these limits. ``size``: the sum of the sizes of the ranks' residuals
        before. All vertices are there already, and none has gone.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it; the numbers are void.
        """
        self._prepare(device, 0 if looks else device.report.n, size, looks=looks)
        run = self._walks.run(self._kernel, device, Call(limits, slack), self._parameters)
        self._aimed, self._limits = None, (limits, slack)
        return self._ended(run)

    def keep(self, account: Account, limits: tuple[Limits, Limits]) -> None:
        """What ``push_again`` goes on from: what holds after the last call, which was of pushes, to these
        limits."""
        calls = self._walks.calls
        self._aimed = calls.aimed if limits == self._limits else None
        FORM.pack_into(self._words, 8 * ACCOUNT, *account)

    @property
    def account(self) -> Account:
        """What holds now of what was kept."""
        return Account(*FORM.unpack_from(self._words, 8 * ACCOUNT))

    def push_again(self, device: DeviceSide, n_updates_max: int) -> tuple[WalkRun, float] | None:
        """``push`` by a call like the last one, which compiled code fills in, and whose account it follows: what
        Python does around a small one is most of it.

        Returns the run and the error bound of then; a bound of 0 says that the run is not ordinary, and that the
        account is that of before. None: it is another case, since rows or lists are others, or the batch has more
        than so many updates; nothing has happened. ``device`` has the vertices that it had then.

        Raises:
            As ``push``.
        """
        calls, arcs, stamp = self._walks.calls, device.n_arcs, self._stamp
        if self._aimed is None or self._aimed is not calls.aimed or stamp >= STAMP_MAX:
            return None
        first, most = _edges_max(arcs)
        status = push_calls.push_again(self._record, first, most, stamp, n_updates_max, arcs)
        if status == OTHERWISE:
            return None
        if status != DONE:
            calls.caller.see_to(status)
            return self._ended(self._walks.told()), 0.0
        *told, is_ordinary, bound = _AGAIN.unpack_from(self._words, 8 * TOLD)
        return self._ended(WalkRun(*told)), bound if is_ordinary else 0.0

    def solve(
        self, device: DeviceSide, limits: Limits, slack: Limits, due_max: int, begins: int = KEPT
    ) -> WalkRun:
        """Passes until about so many edges are due, or fewer, and pushes until both systems keep to their limits:
        from what there is, which need not be of this graph. ``begins``: not ANEW, see ``walks.cuh``. All
        estimates may have changed.

        Raises:
            As ``WalkRuns.solve``; the numbers are void.
        """
        self._prepare(device, 0, 0, looks=True)
        call = Call(limits, slack, due_max, LEFT_FACTOR * due_max, begins)
        return self._ended(self._walks.solve(device, call, self._parameters, hands_over=True))

    def start(
        self, device: DeviceSide, exists: npt.NDArray[np.bool_], limits: Limits, slack: Limits, due_max: int
    ) -> WalkRun:
        """The passes of ``solve`` alone, from nothing; estimates do not go to the host.

        Raises:
            As ``solve``.
        """
        self._walks.forget(exists)
        self._prepare(device, 0, 0, looks=True)
        call = Call(limits, slack, due_max, 0, ANEW)
        return self._ended(self._walks.solve(device, call, self._parameters, hands_over=False))

    def edit(self, device: DeviceSide, limits: Limits, slack: Limits, size: int) -> None:
        """Take the batch that ``device`` applied last, as ``push``, but push nothing: ``solve`` is to follow,
        which then begins with better values. Waits for nothing.

        Raises:
            RuntimeError: the device, as CuPy says it; the numbers are void.
        """
        self._prepare(device, device.report.n, size, looks=False, edits_alone=True)
        self._walks.launch(self._kernel, device, Call(limits, slack), self._parameters)
        self._stamp += 2

    def _ended(self, run: WalkRun) -> WalkRun:
        self._stamp += run.rounds + 2
        return run

    def _prepare(
        self, device: DeviceSide, n_updates: int, size: int, *, looks: bool, edits_alone: bool = False
    ) -> None:
        by_vertex = self._by_vertex
        assert by_vertex is not None
        if self._stamp >= STAMP_MAX:
            for lists in (by_vertex.ranks, by_vertex.majorant):
                with self._stream:
                    lists.stamps.fill(0)
                    lists.moved_stamps.fill(0)
            self._stamp = 1
        first, most = _edges_max(device.n_arcs)
        keys, _, outcomes = device.report.addresses if n_updates else (0, 0, 0)
        _CALL.pack_into(
            self._call_bytes,
            _CALL_BEGINS,
            keys,
            outcomes,
            most if looks else first,
            most,
            size,
            by_vertex.queue_room,
            by_vertex.changes.size,
            n_updates,
            self._stamp,
            looks,
            edits_alone,
        )

    def changes(self, run: WalkRun) -> Vertices | None:
        """The vertices whose estimates a run changed, each once; None: there are too many for the list."""
        assert self._by_vertex is not None
        listed = self._by_vertex.changes
        return None if run.moved > listed.size else listed[: run.moved].copy()


def _edges_max(arcs: int) -> tuple[int, int]:
    """With how many edges that are due at first, and that were pushed along in all, pushes are given up."""
    return max(FIRST_LEAST, int(FIRST_SHARE * arcs)), max(MOST_LEAST, int(MOST_SHARE * arcs))
