"""Runs of a path program on the device: its kernels, the arrays that they work in, and what they tell.

``mend.cu`` brings the words up to date with a batch, settling or trimming: after many updates by a kernel for
either, after few by one that is told which. From scratch they are made by ``search.cu`` where weights do not
count, and by ``spread.cu`` where they do; there ``ties.cu`` tells whether to settle. Each run is one
cooperative kernel, and waits for the device once. A refresh allocates nothing, unless there are more vertices
or long rows than ever before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from ...gpma.device.calling import DONE, OTHERWISE
from ...gpma.device.constants import LONG_ROW
from ...gpma.device.module import import_cupy
from ...gpma.device.report import DeviceReport
from ...gpma.device.state import DeviceArray, address, allocate, pinned, zeros
from ...gpma.edges import Keys, Vertices
from ...gpma.team import Crew
from ...partition.device_side import DeviceSide
from ..paths.form import Form
from ..paths.mend import UNREACHED
from ..steps import Steps, alone
from . import fetch
from .fetch import Fetch
from .functor import cuda_text
from .kernels import Calls, Kernel, KernelCall, Kernels, Source
from .taking import FEW_MAX, N_LONGS, N_SAID, N_TOLD, N_WORDS, Taking, apply_and_mend, mend_again, take_listed

PATH_JOB: Final = np.dtype(
    [
        *((name, np.uint64) for name in ("words", "stamps", "log", "short_rows", "long_rows", "counters")),
        ("seen", np.uint64, 2),
        *((name, np.uint64) for name in ("status", "changes", "source_word")),
        *((name, np.uint32) for name in ("room", "long_room", "changes_room", "settles")),
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
        *((name, np.uint32) for name in ("barrier", "told")),
        ("handed", PATH_HANDED),
    ]
)
"""struct PathCounters of ``paths.cuh``."""

assert PATH_COUNTERS.fields is not None
_TOLD_AT: Final = PATH_COUNTERS.fields["told"][1]
# The part of a job that differs from run to run, in the order of ``_say_run`` and of ``taking.mend_again``.
_RUN = struct.Struct("=QQQQQQIIIIII")
assert PATH_JOB.fields is not None
_RUN_BEGINS = PATH_JOB.fields["keys"][1]
assert _RUN_BEGINS + _RUN.size == PATH_JOB.itemsize and _RUN.size == 8 * N_LONGS + 4 * N_WORDS

_ENTRY_BYTES = 16
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


# A step of ``spread.cu`` takes vertices with about one edge in so many, and at least so many edges. On an H200,
# R-MAT of scale 22 (65 M edges), steps of a 48th, 64th, 96th and 192nd took 4.9, 4.6, 4.8 and 5.4 ms; in shorter
# ones most of the time goes to barriers, in longer ones many vertices are pushed twice. At scale 18 (3.8 M) 0.26 M
# edges took least on an H100, in the version before.
STEP_SHARE, STEP_LEAST = 64, 1 << 18


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
    # How many of the vertices have another word now in the host's copy, where these are few and the call has taken
    # them over (``taking.py``); how many of them were unreached before, and are now.
    n_taken: int
    n_were_unreached: int
    n_are_unreached: int

    @property
    def edges(self) -> int:
        return self.edges_high << 32 | self.edges_low


SOURCES: Final = {
    "settle": Source("mend.cu", ("-DSETTLES=1", "-DFEW=0"), takes_several=True),
    "trim": Source("mend.cu", ("-DSETTLES=0", "-DFEW=0"), takes_several=True),
    "few": Source("mend.cu", (f"-DFEW={FEW_MAX}",), takes_several=True),
    "ties": Source("ties.cu"),
    "search": Source("search.cu", blocks=3),
    "spread": Source("spread.cu", blocks=2),
}


def kernels_of(*, weighted: bool) -> tuple[str, ...]:
    """Which of them a program needs."""
    return ("settle", "trim", "few", "ties", "spread") if weighted else ("settle", "few", "search")


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
    short_rows: DeviceArray
    seen: tuple[DeviceArray, DeviceArray]
    changes: Keys


class Behind(Protocol):
    """Runs of others, each of which may be launched behind a search's ``mend_at_once``."""

    def begin_again(self, device: DeviceSide, search: PathRuns) -> None:
        """Launch one behind the search's run, which has been launched; waits for nothing."""

    def mend_and_begin_again(self, device: DeviceSide, search: PathRuns, limits: Limits) -> int:
        """``mend_again`` of the search, which is not waited for, with one launched behind it in the same call."""


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
        self._taking = Taking()
        self._calls = Calls(PATH_JOB, N_TOLD, self._stream, self._taking.then)
        self._caller = self._calls.caller
        said = self._caller.said
        run = self._calls.address + _RUN_BEGINS
        self._taking.bind(said, device.batch, run, device.next_batch)
        self._said, self._packed = said[:N_SAID], self._calls.packed
        self.record: Keys = self._caller.record
        """What ``mend_again`` goes by."""
        # The host's copy that the last call mended, if it did, and up to which limits: the next call is like it.
        self._again: Keys | None = None
        self._limits = _NO_LIMITS
        # The number of the report of the batch behind which a run was launched that nobody has waited for; or 0.
        self._behind = 0
        self._is_void = False  # whatever that run tells
        self._lost_room = 0
        self._kernels = path_kernels(form)
        self._stamp = 1
        # After many updates and few; None: it must be found out.
        self._mends: tuple[Kernel, Kernel] | None = None
        with self._stream:
            self._counters = zeros(PATH_COUNTERS.itemsize, np.uint8)
            self._long_rows = allocate(0, np.uint8)
            self._sources = allocate(0, np.uint32)
        self._sources_address = 0
        self._sources_there: Vertices = np.empty(0, np.uint32)
        self._fetch = Fetch(self._stream)
        self._vertices: _Vertices | None = None
        self._room = self._arcs_room = -1
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
    def told(self) -> int:
        """The address on the device of how many that were, or NOT_MENDED of ``frontier.cuh``, for kernels behind
        that run."""
        return address(self._counters) + _TOLD_AT

    @property
    def memory_bytes(self) -> int:
        """Of the host, most of it pinned."""
        listed = 0 if self._vertices is None else self._vertices.changes.nbytes
        return listed + self._fetch.memory_bytes + self._taking.memory_bytes

    def make_room(self, n_vertices: int, n_arcs: int) -> None:
        """For so many vertices, new ones being unreached, and as many long rows as there may be.

        Raises:
            MemoryError: there is not enough; everything is as before.
        """
        if n_vertices <= self._room and n_arcs <= self._arcs_room:
            return
        self.let_end()  # there is room for what a run behind a batch does: who needs more is about to start
        long_bytes = _QUEUES * _ENTRY_BYTES * (n_arcs // LONG_ROW + 1)
        vertices, long_rows = self._vertices, self._long_rows
        with self._stream:
            if vertices is None or n_vertices > vertices.room:
                vertices = self._grown(n_vertices)
                self._fetch.reserve(vertices.words.nbytes)
            if long_bytes > long_rows.size:
                long_rows = allocate(int(_ROOM * long_bytes) // 16 * 16, np.uint8)
        if vertices is not self._vertices:  # the last that may fail
            self._taking.read_from(vertices.changes, vertices.queue_room)
        self._vertices, self._long_rows = vertices, long_rows
        n_long = long_rows.size // (_QUEUES * _ENTRY_BYTES)
        self._room, self._arcs_room = vertices.room, n_long * LONG_ROW - 1
        self._taking.have_room(self._room, self._arcs_room)
        job = self._calls.job
        for name in ("words", "stamps", "log", "short_rows"):
            job[name] = address(getattr(vertices, name))
        job["seen"] = [address(bits) for bits in vertices.seen]
        job["long_rows"], job["long_room"] = address(long_rows), n_long
        job["changes"], job["changes_room"] = vertices.changes.ctypes.data, vertices.changes_room
        job["room"] = self._lost_room = vertices.queue_room

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
            short_rows=allocate(queue_room * _QUEUES * _ENTRY_BYTES, np.uint8),
            seen=(allocate(n_bits, np.uint32), allocate(n_bits, np.uint32)),
            changes=pinned(2 * changes_room, np.uint64).reshape(-1, 2),
        )
        made.words.data.memset_async(0xFF, made.words.nbytes, self._stream)
        if before is not None:
            made.words[: before.room] = before.words
        return made

    # -- runs -------------------------------------------------------------------------------------------------

    def mend(self, device: DeviceSide, sources: Vertices, limits: Limits, kept: Keys) -> Steps[PathRun]:
        """Bring the words up to date with the batch that ``device`` applied last, and reach these sources.

        ``kept``: the host's copy of the words, of all vertices: it gets those that were written (``taken``).

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it; the words are void.
        """
        if self._is_all_behind(device, sources, kept):
            return self._ended_all()
        many, few = self._mends or (yield from self._find_out(device))
        is_few = device.report.n <= FEW_MAX
        kernel = few if is_few else many
        self._say(device, device.report, sources, limits, kept)
        self._taking.mends_few(is_few)
        yield KernelCall(self._calls, kernel, device)
        return self._ended()

    def mend_at_once(
        self,
        device: DeviceSide,
        sources: Vertices,
        limits: Limits,
        kept: Keys,
        behind: Behind | None = None,
    ) -> PathRun:
        """``mend`` by itself: of a small one, what Python does around its call is most. So where the call is like
        the last one, it is left to compiled code, and may have been launched behind the batch (``begin_behind``).

        ``behind``: what is launched behind it there, before it is waited for.

        Raises:
            As ``mend``.
        """
        is_like_last = kept is self._again and not sources.size
        if not self._behind and is_like_last and self._stamp < STAMP_MAX:
            # Launched before all else: whatever Python touches here is in no cache.
            if behind is None:
                status = mend_again(self.record, *limits, False)
            else:
                status = behind.mend_and_begin_again(device, self, limits)
            if status == DONE:
                self._caller.expect()
                self._note(device, limits)
                self._caller.wait()
                return self._told()
            if status != OTHERWISE:
                self._caller.see_to(status)
        self._note(device, limits)
        if self._behind and is_like_last and self._behind == device.report_number:
            self._behind = 0
            if behind is not None:
                behind.begin_again(device, self)
            self._caller.wait()
            return self._told()
        early = self.ended_behind(device, sources, kept)  # whoever wants to know what it wrote has ended it
        if early is not None and early.gave_up:
            return early
        run = alone(self.mend(device, sources, limits, kept))
        self._again = kept
        return run

    def _note(self, device: DeviceSide, limits: Limits) -> None:
        """For the next batch."""
        device.follow(self)
        if limits != self._limits:
            self._limits = limits
            self._taking.limit(*limits)

    def begin_behind(self, report_number: int) -> bool:
        """Of a ``Follower``: where it is like the last run, within the limits of that."""
        if self._behind or self._again is None or self._stamp >= STAMP_MAX:
            return False
        status = apply_and_mend(self.record)
        if status == OTHERWISE:
            return False
        if status != DONE:
            self._caller.see_to(status)
        self._caller.expect()
        self._behind, self._is_void = report_number, False
        return True

    def forget_behind(self) -> None:
        """Of a ``Follower``: as if the run behind the batch had given up."""
        self._is_void = True

    def ended_behind(self, device: DeviceSide, sources: Vertices, kept: Keys) -> PathRun | None:
        """The run that was launched behind the batch, if ``mend`` has more to do; else, or if there is none, None.

        ``kept`` has what it wrote, as after ``mend``.

        Raises:
            As ``mend``.
        """
        if not self._behind or self._is_all_behind(device, sources, kept):
            return None
        return self._end_behind(kept)

    def let_end(self) -> None:
        """Wait for the run that was launched behind a batch, if there is one: it writes into memory of the host.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        if self._behind:
            self._end_behind(None)

    def _is_all_behind(self, device: DeviceSide, sources: Vertices, kept: Keys) -> bool:
        """Whether a run behind the batch is all that is to be done: that was applied as it was told of then."""
        if not self._behind:
            return False
        return self._behind == device.report_number and kept is self._again and not sources.size

    def _ended_all(self) -> PathRun:
        self._behind = 0
        self._caller.wait()
        return self._told()

    def _end_behind(self, kept: Keys | None) -> PathRun:
        self._behind, self._again = 0, None
        self._taking.expect(None if self._is_void else kept)
        run = self._ended()
        return run._replace(gave_up=1) if self._is_void else run

    def start(self, device: DeviceSide, sources: Vertices) -> Steps[PathRun]:
        """Compute the words from scratch, from these sources.

        Raises:
            As ``mend``.
        """
        if not self._weighted:
            return (yield from self._run("search", device, sources, _NO_LIMITS))
        self._mends = None
        step = Limits(0, max(STEP_LEAST, device.n_arcs // STEP_SHARE))
        return (yield from self._run("spread", device, sources, step))

    def _find_out(self, device: DeviceSide) -> Steps[tuple[Kernel, Kernel]]:
        """The kernels that are to mend."""
        settles = not self._weighted or (yield from self._tie_share(device)) >= TIES_MIN
        self._calls.job["settles"] = settles
        self._mends = self._kernels["settle" if settles else "trim"], self._kernels["few"]
        return self._mends

    def _tie_share(self, device: DeviceSide) -> Steps[float]:
        """Of some reached vertices, the part with another support than the parent; 1 where none is reached."""
        run = yield from self._run("ties", device, np.empty(0, np.uint32), _NO_LIMITS)
        return run.lost / run.logged if run.logged else 1.0

    def _run(self, name: str, device: DeviceSide, sources: Vertices, limits: Limits) -> Steps[PathRun]:
        """One that has nothing to do with a batch."""
        self._say(device, None, sources, limits, None)
        yield KernelCall(self._calls, self._kernels[name], device)
        return self._ended()

    def _say(
        self, device: DeviceSide, report: DeviceReport | None, sources: Vertices, limits: Limits, kept: Keys | None
    ) -> None:
        """Say what the next call is to do, whatever the last one did."""
        self.let_end()
        self._again = None
        self._taking.expect(kept)
        self._say_run(device, report, sources, limits, device.n_arcs)

    def _say_run(
        self, device: DeviceSide, report: DeviceReport | None, sources: Vertices, limits: Limits, n_arcs: int
    ) -> None:
        """Say in the job what differs from run to run."""
        if self._stamp >= STAMP_MAX:
            self._begin_stamps_anew()
        n_sources = sources.size
        if n_sources:
            self._bring(sources)
        n_updates, addresses = (0, _NOTHING) if report is None else (report.n, report.addresses)
        lost_max, edges_max = limits
        _RUN.pack_into(
            self._packed,
            _RUN_BEGINS,
            *addresses,
            self._sources_address,
            edges_max,
            n_arcs,
            min(lost_max, self._lost_room),
            n_updates,
            n_sources,
            device.n_vertices,
            self._stamp,
            self._caller.next_number(),
        )

    def _ended(self) -> PathRun:
        """What the last call tells in the end."""
        self._caller.wait()
        return self._told()

    def _told(self) -> PathRun:
        """What the last call has told."""
        run = tuple.__new__(PathRun, self._said.tolist())  # as PathRun._make, with fewer calls of Python
        self._stamp = run.next_stamp
        return run

    def _begin_stamps_anew(self) -> None:
        assert self._vertices is not None
        with self._stream:
            self._vertices.stamps.fill(0)
        self._stamp = 1

    def _bring(self, sources: Vertices) -> None:
        if np.array_equal(sources, self._sources_there):
            return
        with self._stream:
            self._sources = self._cupy.asarray(sources)
        self._sources_address = address(self._sources)
        self._sources_there = sources.copy()

    # -- results ----------------------------------------------------------------------------------------------

    def taken(self, run: PathRun) -> Vertices | None:
        """The vertices whose words in the host's copy became others by the call of the last ``mend``, each once;
        None: it wrote too many for that, and the copy is as before (``take``)."""
        return None if run.logged > self._taking.room else self._taking.taken(run.n_taken)

    def take(self, run: PathRun, kept: Keys, n: int, crew: Crew) -> tuple[Vertices, Keys, int]:
        """Where nothing was taken over: have the host's copy, of n vertices, do so now, on all threads.

        Returns the vertices whose words became others, each once, what these were, and by how many fewer of them
        are unreached.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        vertices = self._vertices
        assert vertices is not None
        if run.logged <= vertices.changes_room:
            return take_listed(kept, vertices.changes[: run.logged], crew)
        differing, old = fetch.take_differing(kept, self.read(n), crew)
        return differing, old, _n_unreached(old) - _n_unreached(kept[differing])

    def were(self, run: PathRun) -> Keys:
        """What these words were; good until the next run."""
        return self._taking.were(run.n_taken)

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
        self.let_end()
        self._mends = self._again = None
        self.words[: words.size].set(words, stream=self._stream)


def _n_unreached(words: Keys) -> int:
    return int(np.count_nonzero(words == UNREACHED))
