"""Runs of a path program on the device: its kernels, the arrays that they work in, and what they tell.

``mend.cu`` brings the words up to date with a batch, settling or trimming. From scratch they are made by
``search.cu`` where weights do not count, and by ``spread.cu`` where they do; there ``ties.cu`` tells whether to
settle. Each run is one cooperative kernel, and waits for the device once. A refresh allocates nothing, unless
there are more vertices or long rows than ever before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from ...gpma.device.constants import LONG_ROW
from ...gpma.device.module import import_cupy
from ...gpma.device.report import DeviceReport
from ...gpma.device.state import DeviceArray, address, allocate, pinned, zeros
from ...gpma.edges import Keys, Vertices
from ...partition.device_side import DeviceSide
from ..paths.form import Form
from ..steps import Steps
from .fetch import Fetch
from .functor import cuda_text
from .kernels import Calls, KernelCall, Kernels, Source

PATH_JOB: Final = np.dtype(
    [
        *((name, np.uint64) for name in ("words", "stamps", "log", "lost", "short_rows", "long_rows", "counters")),
        ("seen", np.uint64, 2),
        *((name, np.uint64) for name in ("status", "changes", "source_word")),
        *((name, np.uint32) for name in ("room", "long_room", "changes_room", "unused")),
        *((name, np.uint64) for name in ("keys", "weights", "outcomes", "sources", "edges_max", "n_edges")),
        *((name, np.uint32) for name in ("lost_max", "n_updates", "n_sources", "n_vertices", "stamp", "sequence")),
    ]
)
"""struct PathJob of ``paths.cuh``."""

PATH_HANDED: Final = np.dtype(
    [
        *((name, np.uint32) for name in ("phase", "turn", "rounds", "n_lost", "slice", "stamp")),
        ("edges", np.uint64),
    ]
)
"""struct PathHanded of ``paths.cuh``."""

PATH_COUNTERS: Final = np.dtype(
    [
        *((name, np.uint64) for name in ("logged", "lost")),
        *((name, np.uint64, 4 * n) for name, n in (("outgoing", 3), ("asked", 3), ("pulling", 1))),
        ("found", np.uint64, 3),
        *((name, np.uint32) for name in ("barrier", "unused")),
        ("handed", PATH_HANDED),
    ]
)
"""struct PathCounters of ``paths.cuh``."""

# The part of a job that differs from run to run; ``_begin`` packs it in this order.
_RUN = struct.Struct("=QQQQQQIIIIII")
assert PATH_JOB.fields is not None
_RUN_BEGINS = PATH_JOB.fields["keys"][1]
assert _RUN_BEGINS + _RUN.size == PATH_JOB.itemsize

_ENTRY_BYTES, _PAIR_BYTES = 16, 16
_QUEUES = 5
# Queues have room for one vertex in so many, and for so many at least; where a round has more, it goes slower.
QUEUE_SHARE, QUEUE_LEAST = 8, 4096
# The list of changes has room for one vertex in so many, and for so many at least; else all words are copied.
CHANGES_SHARE, CHANGES_LEAST = 16, 4096
# Columns grow by this factor.
_ROOM = 1.5
# Lost support is settled where so many values of the sample tie, else trimmed: on an H200 trimming took SSSP with
# weights 1 to 255, which seldom tie, 0.75 of the time after 10,000 updates, and BFS up to four times as long.
TIES_MIN = 0.25
STAMP_MAX = 1 << 31
"""From here on stamps begin anew. No run has as many rounds as are left then."""


# A step of ``spread.cu`` takes vertices with about one edge in so many, and at least so many edges. On an H100,
# R-MAT graphs of scale 18, 20 and 22 (3.8, 16 and 65 M edges), steps of 0.26, 0.5 and 1.6 M edges took least; in
# shorter ones most of the time goes to barriers, in longer ones most vertices are pushed twice.
STEP_SHARE, STEP_LEAST = 48, 1 << 18


class PathRun(NamedTuple):
    """What a run told: the words of ``paths.cuh``, in that order.

    ``gave_up``: the words are void. ``logged``: how many vertices were written. ``edges``: entries of the rows
    that were queued, and in a search of those pushed along.
    """

    gave_up: int
    logged: int
    lost: int
    rounds: int
    next_stamp: int
    edges_low: int
    edges_high: int

    @property
    def edges(self) -> int:
        return self.edges_high << 32 | self.edges_low


SOURCES: Final = {
    "settle": Source("mend.cu", ("-DSETTLES=1",), takes_several=True),
    "trim": Source("mend.cu", ("-DSETTLES=0",), takes_several=True),
    "ties": Source("ties.cu"),
    "search": Source("search.cu", blocks=3),
    "spread": Source("spread.cu", blocks=2),
}


def kernels_of(*, weighted: bool) -> tuple[str, ...]:
    """Which of them a program needs."""
    return ("settle", "trim", "ties", "spread") if weighted else ("settle", "search")


def path_kernels(form: Form) -> Kernels:
    """Those of the programs of a form.

    Raises:
        Unprintable: its functions.
    """
    sources = tuple((name, SOURCES[name]) for name in kernels_of(weighted=form.weighted))
    return _kernels(sources, cuda_text(form), weighted=form.weighted)


@cache
def _kernels(sources: tuple[tuple[str, Source], ...], head: str, *, weighted: bool) -> Kernels:
    """The same for all programs of one text: so their calls may begin in one go."""
    return Kernels(dict(sources), head=head, weighted=weighted)


class Limits(NamedTuple):
    """What settling may come to before it is given up: lost vertices, entries of rows."""

    lost: int
    edges: int


_NO_LIMITS: Final = Limits(0, 0)
_NOTHING: Final = (0, 0, 0)


class _Vertices(NamedTuple):
    """Columns by vertex, of ``room`` entries each; ``queue_room`` and ``changes_room``: see ``PathJob``."""

    room: int
    queue_room: int
    changes_room: int
    words: DeviceArray
    stamps: DeviceArray
    log: DeviceArray
    lost: DeviceArray
    short_rows: DeviceArray
    seen: tuple[DeviceArray, DeviceArray]
    changes: Keys


class PathRuns:
    """The words of one program on the device, and the runs that change them, by steps; all on the stream of
    ``device``."""

    def __init__(self, form: Form, source_word: np.uint64, device: DeviceSide) -> None:
        """Compiles nothing yet.

        Raises:
            Unprintable: the program's functions.
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._cupy = import_cupy()
        self._weighted = form.weighted
        self._stream: Any = device.stream
        self._calls = Calls(PATH_JOB, len(PathRun._fields), self._stream)
        self._kernels = path_kernels(form)
        self._stamp = 1
        # Whether to settle; None where it must be found out.
        self._settles: bool | None = None
        with self._stream:
            self._counters = zeros(PATH_COUNTERS.itemsize, np.uint8)
            self._long_rows = allocate(0, np.uint8)
            self._sources = allocate(0, np.uint32)
        self._sources_address = 0
        self._sources_there: Vertices = np.empty(0, np.uint32)
        self._fetch = Fetch(self._stream)
        self._vertices: _Vertices | None = None
        job = self._calls.job
        job["counters"], job["source_word"] = address(self._counters), source_word

    # -- arrays -----------------------------------------------------------------------------------------------

    @property
    def words(self) -> DeviceArray:
        """uint64[room], those of no vertex being unreached."""
        assert self._vertices is not None
        return self._vertices.words

    @property
    def log(self) -> DeviceArray:
        """uint32[room]: as many vertices as the last run of ``mend`` logged."""
        assert self._vertices is not None
        return self._vertices.log

    @property
    def memory_bytes(self) -> int:
        """Of the host, pinned."""
        listed = 0 if self._vertices is None else self._vertices.changes.nbytes
        return listed + self._fetch.memory_bytes

    def make_room(self, n_vertices: int, n_arcs: int) -> None:
        """For so many vertices, new ones being unreached, and as many long rows as there may be.

        Raises:
            MemoryError: there is not enough; everything is as before.
        """
        long_bytes = _QUEUES * _ENTRY_BYTES * (n_arcs // LONG_ROW + 1)
        vertices, long_rows = self._vertices, self._long_rows
        if vertices is not None and n_vertices <= vertices.room and long_bytes <= long_rows.size:
            return
        with self._stream:
            if vertices is None or n_vertices > vertices.room:
                vertices = self._grown(n_vertices)
                self._fetch.reserve(vertices.words.nbytes)
            if long_bytes > long_rows.size:
                long_rows = allocate(int(_ROOM * long_bytes) // 16 * 16, np.uint8)
        self._vertices, self._long_rows = vertices, long_rows
        job = self._calls.job
        for name in ("words", "stamps", "log", "lost", "short_rows"):
            job[name] = address(getattr(vertices, name))
        job["seen"] = [address(bits) for bits in vertices.seen]
        job["long_rows"], job["long_room"] = address(long_rows), long_rows.size // (_QUEUES * _ENTRY_BYTES)
        job["changes"], job["changes_room"] = vertices.changes.ctypes.data, vertices.changes_room
        job["room"] = vertices.queue_room

    def _grown(self, n_vertices: int) -> _Vertices:
        before = self._vertices
        room = max(1, n_vertices) if before is None else max(n_vertices, int(_ROOM * before.room))
        queue_room = min(room, max(QUEUE_LEAST, room // QUEUE_SHARE))
        changes_room = min(room, max(CHANGES_LEAST, room // CHANGES_SHARE))
        n_bits = -(-room // 32)
        made = _Vertices(
            room,
            queue_room,
            changes_room,
            words=allocate(room, np.uint64),
            stamps=zeros(room, np.uint32),
            log=allocate(room, np.uint32),
            lost=allocate(queue_room, np.uint32),
            short_rows=allocate(queue_room * _QUEUES * _ENTRY_BYTES, np.uint8),
            seen=(allocate(n_bits, np.uint32), allocate(n_bits, np.uint32)),
            changes=pinned(2 * changes_room, np.uint64).reshape(-1, 2),
        )
        made.words.data.memset_async(0xFF, made.words.nbytes, self._stream)
        if before is not None:
            made.words[: before.room] = before.words
        return made

    # -- runs -------------------------------------------------------------------------------------------------

    def mend(self, device: DeviceSide, sources: Vertices, limits: Limits) -> Steps[PathRun]:
        """Bring the words up to date with the batch that ``device`` applied last, and reach these sources.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it; the words are void.
        """
        if self._settles is None:
            return self._mend_first(device, sources, limits)
        return self._run("settle" if self._settles else "trim", device, device.report, sources, limits)

    def start(self, device: DeviceSide, sources: Vertices) -> Steps[PathRun]:
        """Compute the words from scratch, from these sources.

        Raises:
            As ``mend``.
        """
        if not self._weighted:
            return (yield from self._run("search", device, None, sources, _NO_LIMITS))
        self._settles = None
        step = Limits(0, max(STEP_LEAST, device.n_arcs // STEP_SHARE))
        return (yield from self._run("spread", device, None, sources, step))

    def _mend_first(self, device: DeviceSide, sources: Vertices, limits: Limits) -> Steps[PathRun]:
        self._settles = not self._weighted or (yield from self._tie_share(device)) >= TIES_MIN
        return (yield from self.mend(device, sources, limits))

    def _tie_share(self, device: DeviceSide) -> Steps[float]:
        """Of some reached vertices, the part with another support than the parent; 1 where none is reached."""
        run = yield from self._run("ties", device, None, np.empty(0, np.uint32), _NO_LIMITS)
        return run.lost / run.logged if run.logged else 1.0

    def _run(
        self, name: str, device: DeviceSide, report: DeviceReport | None, sources: Vertices, limits: Limits
    ) -> Steps[PathRun]:
        vertices = self._vertices
        assert vertices is not None
        if self._stamp >= STAMP_MAX:
            with self._stream:
                vertices.stamps.fill(0)
            self._stamp = 1
        if sources.size:
            self._bring(sources)
        calls, n_updates, addresses = self._calls, 0, _NOTHING
        if report is not None:
            n_updates, addresses = report.n, report.addresses
        _RUN.pack_into(
            calls.packed,
            _RUN_BEGINS,
            *addresses,
            self._sources_address,
            limits.edges,
            device.n_arcs,
            min(limits.lost, vertices.queue_room),
            n_updates,
            sources.size,
            device.n_vertices,
            self._stamp,
            calls.next_number(),
        )
        yield KernelCall(calls, self._kernels[name], device)
        run = PathRun(*calls.wait())
        self._stamp = run.next_stamp
        return run

    def _bring(self, sources: Vertices) -> None:
        if np.array_equal(sources, self._sources_there):
            return
        with self._stream:
            self._sources = self._cupy.asarray(sources)
        self._sources_address = address(self._sources)
        self._sources_there = sources.copy()

    # -- results ----------------------------------------------------------------------------------------------

    def changes(self, run: PathRun) -> tuple[Vertices, Keys] | None:
        """The vertices whose word a run wrote, each once, and their words; None: there are too many for the list.

        Good until the next run.
        """
        vertices = self._vertices
        assert vertices is not None
        if run.logged > vertices.changes_room:
            return None
        listed = vertices.changes[: run.logged]
        return listed[:, 0].astype(np.uint32), listed[:, 1]

    def read(self, n: int) -> Keys:
        """The words of the first ``n`` vertices; good until the next call.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        return self._fetch.read(self.words[:n])

    def pieces(self, n: int) -> Iterator[tuple[int, Keys]]:
        """The same in pieces (``Fetch.pieces``)."""
        return self._fetch.pieces(self.words[:n])

    def write(self, words: Keys) -> None:
        """Set the words of as many vertices."""
        self._settles = None
        self.words[: words.size].set(words, stream=self._stream)
