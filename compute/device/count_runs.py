"""Runs of path counts on the device, after the search's words were brought up to date.

``recount.cu`` counts after a batch, ``count_rest.cu`` anew the levels that it leaves, ``count_all.cu`` from
scratch.

A run is one cooperative kernel or two, each waited for once. It allocates nothing, unless there are
more vertices or long rows than ever before.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.device.calling import DONE, OTHERWISE
from ...gpma.device.constants import LONG_ROW
from ...gpma.device.state import DeviceArray, address, allocate, zeros
from ...gpma.edges import Vertices
from ...partition.device_side import DeviceSide
from ..counts.kernels import LIMIT
from ..steps import Steps
from . import count_calls
from .count_calls import N_LONGS, N_TOLD, N_WORDS, mend_and_count
from .count_list import Listed, room_for
from .fetch import Fetch
from .kernels import Calls, KernelCall, Kernels, Source, whole_words
from .path_runs import Limits, PathRuns
from .taking import mend_again

F64 = npt.NDArray[np.float64]

_POINTERS = ("short_rows", "long_rows", "counters", "status", "changed", "far")
_COLUMNS = ("levels", "paths", "sums", "deltas", "differences", "roles", "log", "seeds", "sorted", "ends")

COUNT_JOB: Final = np.dtype(
    [
        *((name, np.uint64) for name in _COLUMNS),
        ("queues", np.uint64, 2),
        *((name, np.uint64) for name in _POINTERS),
        *((name, np.uint32) for name in ("room", "long_room", "changes_room", "unused")),
        *((name, np.uint64) for name in ("keys", "outcomes", "words", "touched", "told", "edges_max")),
        *((name, np.uint32) for name in ("n_updates", "n_vertices", "sequence", "n_saturated")),
        *((name, np.uint32) for name in ("rest_follows", "unused_word")),
    ]
)
"""struct CountJob of ``counting.cuh``."""

COUNT_HANDED: Final = np.dtype([("phase", np.uint32), ("turn", np.uint32), ("edges", np.uint64)])
"""struct CountHanded of ``counting.cuh``."""

COUNT_LEFT: Final = np.dtype(
    [
        *((name, np.uint64) for name in ("edges", "counted")),
        *((name, np.uint32) for name in ("rounds", "from", "n_marks", "sequence", "is_half", "is_apart")),
        ("unused", np.uint64),
    ]
)
"""struct CountLeft of ``counting.cuh``."""

COUNT_COUNTERS: Final = np.dtype(
    [
        ("receiving", np.uint64, 12),
        ("telling", np.uint64, 12),
        *((name, np.uint64) for name in ("saturated", "pulled")),
        *((name, np.uint32) for name in ("looked", "deepest", "seeds", "changed")),
        ("queued", np.uint32, 3),
        *((name, np.uint32) for name in ("above", "most", "barrier", "late", "deeper", "next", "deep")),
        ("told", np.uint64, 8),
        ("unused_word", np.uint64),
        ("handed", COUNT_HANDED),
        ("left", COUNT_LEFT),
    ]
)
"""struct CountCounters of ``counting.cuh``."""

SOURCES: Final = {
    "recount": Source("recount.cu", takes_several=True),
    "count_rest": Source("count_rest.cu", blocks=2),
    "count_all": Source("count_all.cu", blocks=2),
}


@cache
def count_kernels() -> Kernels:
    """The same for all programs: so their calls may begin in one go."""
    return Kernels(SOURCES, weighted=False)


assert COUNT_COUNTERS.fields is not None
_DEEP_AT = COUNT_COUNTERS.fields["deep"][1] // 4

_ENTRY_BYTES = 16
_NO_LEVEL = 0xFFFF_FFFF
# Columns grow by this factor.
_ROOM = 1.5
# The list of changes has room for one vertex in so many, and for so many at least; else all counts are copied.
CHANGES_SHARE, CHANGES_LEAST = 16, 4096
# All levels that are left are counted anew when differences and rows come to this share of all arcs, and so many.
MOST_SHARE, MOST_LEAST = 0.1, 16384

# Of counting.cuh.
_DEEP_LEVELS, _DEEP_SHARE = 8, 128

# After so many updates levels are left most often.
FOLLOWED_LEAST = 1 << 15

# The part of a job that differs from run to run, in the order of ``_say`` and of ``count_calls.count_again``.
_CALL = struct.Struct(f"={N_LONGS}Q{N_WORDS}I")
assert COUNT_JOB.fields is not None
_CALL_BEGINS = COUNT_JOB.fields["keys"][1]
assert _CALL_BEGINS + _CALL.size == COUNT_JOB.itemsize


class CountRun(NamedTuple):
    """What a run told: the words of ``counting.cuh``, in that order.

    ``changed``: how many counts are others. ``saturated``: by how many more of them are at the limit. ``edges``:
    entries of the rows that were read. ``rounds``: levels. ``counted``: vertices that were. ``left``: nothing,
    once all kernels have been called.
    """

    changed: int
    saturated: int
    edges: int
    rounds: int
    counted: int
    left: int


_WORDS = struct.Struct(f"={len(CountRun._fields)}q")
assert len(CountRun._fields) * 2 == N_TOLD


class _ByVertex(NamedTuple):
    """``room`` entries each, one more of ``ends``, of ``levels`` up to a multiple of 4; see struct CountJob."""

    room: int
    levels: DeviceArray
    paths: DeviceArray
    sums: DeviceArray
    deltas: DeviceArray
    differences: DeviceArray
    roles: DeviceArray
    log: DeviceArray
    seeds: DeviceArray
    sorted: DeviceArray
    ends: DeviceArray
    queues: DeviceArray
    short_rows: DeviceArray
    listed: Listed


class CountRuns:
    """The counts of one program on the device, and what changes them, by steps; all on the stream of
    ``device``."""

    def __init__(self, device: DeviceSide) -> None:
        """Compiles nothing yet.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._stream: Any = device.stream
        self._calls = Calls(COUNT_JOB, N_TOLD, self._stream, count_calls.THEN)
        self._caller = self._calls.caller
        self._batch = device.batch  # held
        said = self._caller.said
        self._halves = said[:N_TOLD]
        said[count_calls.BATCH] = self._batch.ctypes.data
        said[count_calls.RUN] = self._calls.address + _CALL_BEGINS
        self._kernels = count_kernels()
        # The words of the search beside which the last call counted by itself, after a batch; None: it did not.
        self._again: DeviceArray | None = None
        self._begun = False  # a call that is waited for by ``count_at_once``
        with self._stream:
            self._counters = zeros(COUNT_COUNTERS.itemsize, np.uint8)
            self._long_rows = allocate(0, np.uint8)
        self._fetch = Fetch(self._stream)
        self._by_vertex: _ByVertex | None = None
        self._saturated = 0
        self._calls.job["counters"] = address(self._counters)

    # -- arrays -----------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Of the host, pinned."""
        there = self._by_vertex
        return (0 if there is None else there.listed.nbytes) + self._fetch.memory_bytes

    @property
    def _there(self) -> _ByVertex:
        assert self._by_vertex is not None
        return self._by_vertex

    def make_room(self, n_vertices: int, n_arcs: int) -> None:
        """For so many vertices, new ones having no path, and as many long rows as there may be.

        Raises:
            MemoryError: there is not enough; everything is as before.
        """
        long_bytes = 2 * _ENTRY_BYTES * (n_arcs // LONG_ROW + 1)
        before, long_rows = self._by_vertex, self._long_rows
        if before is not None and n_vertices <= before.room and long_bytes <= long_rows.size:
            return
        with self._stream:
            made = before
            if before is None or n_vertices > before.room:
                made = _made(max(1, n_vertices) if before is None else max(n_vertices, int(_ROOM * before.room)))
                if before is not None:
                    made.levels[: before.levels.size] = before.levels
                    made.paths[: before.room] = before.paths
                self._fetch.reserve(made.paths.nbytes)
            if long_bytes > long_rows.size:
                long_rows = allocate(int(_ROOM * long_bytes) // 32 * 32, np.uint8)
        assert made is not None
        self._by_vertex, self._long_rows = made, long_rows
        job = self._calls.job
        for name in (*_COLUMNS, "short_rows"):
            job[name] = address(getattr(made, name))
        first = address(made.queues)
        job["queues"] = first, first + made.queues.nbytes // 2
        job["long_rows"], job["long_room"] = address(long_rows), long_rows.size // (2 * _ENTRY_BYTES)
        job["changed"], job["far"] = made.listed.words.ctypes.data, made.listed.far.ctypes.data
        job["changes_room"] = made.listed.words.size
        job["room"] = made.room

    # -- runs -------------------------------------------------------------------------------------------------

    def start(self, device: DeviceSide, search: PathRuns) -> Steps[CountRun]:
        """Count from scratch, on words that are right; by how many more counts are at the limit, so many are.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._saturated = 0
        return (yield from self._run("count_all", device, search))

    def count(self, device: DeviceSide, search: PathRuns) -> Steps[CountRun]:
        """Count after the batch that ``device`` applied last, with which the search has been brought up to date.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it; the counts are void.
        """
        return (yield from self._run("recount", device, search))

    def begin_again(self, device: DeviceSide, search: PathRuns) -> None:
        """Launch what ``count_at_once`` will wait for, behind the search's run, which need not have ended; unless
        the call is not like the last one. Where the search gives up, nothing is counted.

        Raises:
            As ``count``.
        """
        self._begun = self._count_again(device, search, waits_too=False)
        if self._begun:
            self._caller.expect()

    def mend_and_begin_again(self, device: DeviceSide, search: PathRuns, limits: Limits) -> int:
        """Of ``Behind``."""
        status: int
        if search.words is not self._again:
            status = mend_again(search.record, *limits, False)
            return status
        status = mend_and_count(search.record, *limits, self._caller.record)
        self._begun = status == DONE
        if self._begun:
            self._caller.expect()
        self._limit(device)  # for the next time
        return DONE if status == count_calls.NOT_COUNTED else status

    def _limit(self, device: DeviceSide) -> int:
        edges_max = self._caller.said[count_calls.EDGES_MAX] = _edges_max(device)
        return edges_max

    def count_at_once(self, device: DeviceSide, search: PathRuns) -> CountRun:
        """``count`` by itself: of a small one, what Python does around its call is most. So where the call is like
        the last one, it is left to compiled code.

        Raises:
            As ``count``.
        """
        if self._begun:
            self.let_end()
        elif not self._count_again(device, search, waits_too=True):
            self._say("recount", device, search)
            self._calls.call(self._kernels["recount"], device)
            self._again = search.words
        return self._told()

    def _count_again(self, device: DeviceSide, search: PathRuns, *, waits_too: bool) -> bool:
        """Whether the call is like the last one, and was carried out, or just launched."""
        if search.words is not self._again:
            return False
        status = count_calls.count_again(self._caller.record, waits_too)
        self._limit(device)  # for the next time
        if status == OTHERWISE:
            return False
        if status != DONE:
            self._caller.see_to(status)
        return True

    def let_end(self) -> None:
        """Wait for what was begun and has not been waited for, if anything.

        Raises:
            As ``count``.
        """
        if self._begun:
            self._begun = False
            self._caller.wait()

    def _run(self, name: str, device: DeviceSide, search: PathRuns) -> Steps[CountRun]:
        self._say(name, device, search)
        kernel = self._kernels[name]
        self._calls.aim(kernel, device)  # for the kernel that may follow, where several jobs are launched together
        yield KernelCall(self._calls, kernel, device)
        self._caller.wait()
        return self._told()

    def _say(self, name: str, device: DeviceSide, search: PathRuns) -> None:
        """Say in the job what differs from run to run."""
        self.let_end()
        self._again = None
        if name == "recount":
            rest = self._kernels["count_rest"].variant(remote=device.states().reads_remote)
            said = self._caller.said
            said[count_calls.REST_KERNEL], said[count_calls.REST_BLOCKS] = rest.handle, rest.blocks
            said[count_calls.FOLLOWED_FROM] = FOLLOWED_LEAST
        report = device.report
        n_updates = report.n if name == "recount" else 0
        _CALL.pack_into(
            self._calls.packed,
            _CALL_BEGINS,
            report.addresses[0] if n_updates else 0,
            report.addresses[2] if n_updates else 0,
            address(search.words),
            address(search.log),
            search.told,
            self._limit(device),
            n_updates,
            device.n_vertices,
            self._calls.next_number(),
            self._saturated,
            0,
            0,
        )

    def _told(self) -> CountRun:
        """What the last call has told."""
        run = CountRun._make(whole_words(self._halves.tolist(), _WORDS))
        self._saturated += run.saturated
        self._caller.said[count_calls.SATURATED] = self._saturated
        return run

    # -- results ----------------------------------------------------------------------------------------------

    def changes(self, run: CountRun) -> Listed | None:
        """The vertices with another count, and their counts; None: there are too many for the list.

        Good until the next run.
        """
        listed, n = self._there.listed, run.changed
        return None if n > listed.words.size else listed.first(n)

    def read(self, n: int) -> F64:
        """The counts of the first ``n`` vertices; good until the next call.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        return self._fetch.read(self._there.paths[:n])

    def write(self, levels: Vertices, counts: F64) -> None:
        """Set levels and counts of as many vertices."""
        there = self._there
        self._saturated = int(np.count_nonzero(counts >= LIMIT))
        self._again = None
        deep = np.array([_first_deep_of(levels)], np.uint32)
        self._counters.view(np.uint32)[_DEEP_AT : _DEEP_AT + 1].set(deep, stream=self._stream)
        there.levels[: levels.size].set(np.ascontiguousarray(levels), stream=self._stream)
        there.paths[: counts.size].set(np.ascontiguousarray(counts), stream=self._stream)


def _edges_max(device: DeviceSide) -> int:
    return max(MOST_LEAST, int(MOST_SHARE * device.n_arcs))


def _first_deep_of(levels: Vertices) -> int:
    """What ``note_deep`` of ``counting.cuh`` finds: the first of the last levels that have few vertices, or 0."""
    reached = levels[levels != _NO_LEVEL]
    most = int(reached.max(initial=0))
    below = np.cumsum(np.bincount(most - reached, minlength=_DEEP_LEVELS)[:_DEEP_LEVELS])
    n_deep = min(int(np.count_nonzero(below <= levels.size // _DEEP_SHARE)), most - 1)
    return most - n_deep + 1 if 0 < n_deep < _DEEP_LEVELS else 0


def _made(room: int) -> _ByVertex:
    changes_room = min(room, max(CHANGES_LEAST, room // CHANGES_SHARE))
    levels = allocate(-(-room // 4) * 4, np.uint32)
    levels.fill(_NO_LEVEL)
    return _ByVertex(
        room,
        levels=levels,
        paths=zeros(room, np.float64),
        sums=allocate(room, np.float64),
        deltas=zeros(room, np.int64),
        differences=allocate(room, np.int64),
        roles=zeros(room, np.uint32),
        log=allocate(room, np.uint32),
        seeds=allocate(room, np.uint32),
        sorted=allocate(room, np.uint32),
        ends=zeros(room + 1, np.uint32),
        queues=allocate(2 * room, np.uint32),
        short_rows=allocate(2 * room * _ENTRY_BYTES, np.uint8),
        listed=room_for(changes_room),
    )
