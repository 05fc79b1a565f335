"""Pushes of PageRank on the device after few updates: the lists that ``pushes.cu`` works in, and its runs.

A run is one cooperative kernel for both systems, waited for once. It goes on from numbers that are exact (see
``walks.cuh``), and allocates nothing, unless there are more vertices or long rows than ever before.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ...gpma.device.constants import BLOCK_THREADS, LONG_ROW
from ...gpma.device.state import DeviceArray, address, allocate, zeros
from ...gpma.device.structures import STATE
from ...gpma.device.update import Launcher
from ...gpma.device.waiting import Told
from ...gpma.edges import Vertices
from ...partition.device_side import DeviceSide
from ..walks.passes import Limits
from .walk_runs import WALK_JOB, Kernel, WalkRuns, compiled, pinned

_LISTS = ("candidates", "others", "stamps", "moved", "moved_stamps", "differences")

PUSH_JOB: Final = np.dtype(
    [
        ("ranks", np.uint64, len(_LISTS)),
        ("majorant", np.uint64, len(_LISTS)),
        *((name, np.uint64) for name in ("degree_changes", "short_rows", "long_rows", "counters", "changes")),
        *((name, np.uint64) for name in ("keys", "outcomes", "edges_first", "edges_max")),
        *((name, np.float64) for name in ("majorant_below", "majorant_above", "size")),
        *((name, np.uint32) for name in ("room", "changes_room", "n_updates", "stamp", "looks", "unused")),
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

FILE: Final = Path(__file__).parent / "pushes.cu"

_ENTRY_BYTES = 16
# The queue of short rows has room for one vertex in so many, and for so many at least; with more, a run gives up.
QUEUE_SHARE, QUEUE_LEAST = 8, 4096
# The list of changes has room for one vertex in so many, and for so many at least; else all estimates changed.
CHANGES_SHARE, CHANGES_LEAST = 16, 4096
# Given up when so large a share of all arcs is due at first (and so many), or has been pushed along: on an H200 an
# edge that was pushed through a list cost as much as seven in a pass.
FIRST_SHARE, FIRST_LEAST = 0.1, 4096
MOST_SHARE, MOST_LEAST = 0.4, 16384
STAMP_MAX = 1 << 31
"""From here on stamps begin anew. No run has as many rounds as are left then."""


class PushRun(NamedTuple):
    """What a run told: the words of ``pushes.cu``, in that order.

    ``is_solved``: 0 when it was given up; sums are no longer exact then. ``moved``: whose estimates changed. By
    how much these grew, in units of the ranks: ``norm``, the sum of all values, ``size`` that of the sizes of
    residuals, ``total`` that of residuals. ``degree``: the largest in-degree by weight of those that got in-edges
    or another weight; ``ratio``: the largest majorant / estimate of those where either changed.
    """

    is_solved: int
    rounds: int
    edges: int
    moved: int
    norm: int
    size: int
    total: int
    degree: float
    ratio: float


_SAID = len(PushRun._fields)
_BITS, _WORDS = struct.Struct("=9Q"), struct.Struct("=7q2d")


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
    pinned: Any
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
        self._out, self._in, self._walk_job, self._job = (
            np.zeros(1, np.dtype(f"V{dtype.itemsize}")) for dtype in (STATE, STATE, WALK_JOB, PUSH_JOB)
        )
        self._launcher = Launcher(self._stream, (self._out, self._in, self._walk_job, self._job))
        self._told = Told(2 * _SAID, self._stream)
        self._sequence = 0
        self._stamp = 1
        self._kernel: Kernel | None = None
        with self._stream:
            self._counters = zeros(PUSH_COUNTERS.itemsize, np.uint8)
            self._long_rows = allocate(0, np.uint8)
        self._by_vertex: _ByVertex | None = None
        self._job.view(PUSH_JOB)["counters"] = address(self._counters)

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
        job = self._job.view(PUSH_JOB)
        for name, lists in (("ranks", by_vertex.ranks), ("majorant", by_vertex.majorant)):
            job[name] = [address(column) for column in lists]
        job["degree_changes"], job["short_rows"] = address(by_vertex.degree_changes), address(by_vertex.short_rows)
        job["long_rows"], job["room"] = address(long_rows), by_vertex.queue_room
        job["changes"], job["changes_room"] = by_vertex.changes.ctypes.data, by_vertex.changes.size

    def _made(self, room: int) -> _ByVertex:
        queue_room = min(room, max(QUEUE_LEAST, room // QUEUE_SHARE))
        changes_room = min(room, max(CHANGES_LEAST, room // CHANGES_SHARE))
        memory, changes = pinned(changes_room, np.uint32)
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
        return _ByVertex(room, queue_room, ranks, majorant, zeros(room, np.int32), short_rows, memory, changes)

    def push(self, device: DeviceSide, limits: Limits, slack: Limits, size: int, *, looks: bool) -> PushRun:
        """Push until both systems keep to their limits.

        Either whoever is over them (``looks``), or take the batch that ``device`` applied last, and then whom that
        touches: all others were within these limits. ``size``: the sum of the sizes of the ranks' residuals
        before. All vertices are there already, and none has gone.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it; the numbers are void.
        """
        kernel = self._kernel or self.compile()
        by_vertex = self._by_vertex
        assert by_vertex is not None
        if self._stamp >= STAMP_MAX:
            for lists in (by_vertex.ranks, by_vertex.majorant):
                with self._stream:
                    lists.stamps.fill(0)
                    lists.moved_stamps.fill(0)
            self._stamp = 1
        self._sequence = self._sequence % 0xFFFF_FFFF + 1
        device.out.write_state(self._out)
        device.in_rows.write_state(self._in)
        self._walks.write_job(self._walk_job, device, limits)
        walk_job, job = self._walk_job.view(WALK_JOB), self._job.view(PUSH_JOB)
        walk_job["status"], walk_job["sequence"] = self._told.address, self._sequence
        report, arcs = device.report, device.out.n_edges
        job["keys"], job["outcomes"] = address(report.keys), address(report.all_outcomes)
        job["n_updates"], job["looks"] = 0 if looks else len(report), looks
        job["stamp"], job["size"] = self._stamp, size
        job["edges_max"] = edges_max = max(MOST_LEAST, int(MOST_SHARE * arcs))
        job["edges_first"] = edges_max if looks else max(FIRST_LEAST, int(FIRST_SHARE * arcs))
        job["majorant_below"], job["majorant_above"] = slack
        self._launcher.start_cooperative(kernel.handle, kernel.blocks, BLOCK_THREADS, 0)
        self._told.wait(self._sequence)
        said = [self._told.word(2 * k) | self._told.word(2 * k + 1) << 32 for k in range(_SAID)]
        run = PushRun(*_WORDS.unpack(_BITS.pack(*said)))
        self._stamp += run.rounds + 2
        return run

    def changes(self, run: PushRun) -> Vertices | None:
        """The vertices whose estimates a run changed, each once; None: there are too many for the list."""
        assert self._by_vertex is not None
        listed = self._by_vertex.changes
        return None if run.moved > listed.size else listed[: run.moved].copy()

    def compile(self) -> Kernel:
        """Have the kernel compiled, or loaded from CuPy's cache, now."""
        self._kernel = compiled(FILE, "pushes", blocks=1)
        return self._kernel
