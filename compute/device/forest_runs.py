"""Runs of components on the device: their kernels, the arrays that they work in, and what they tell.

``span.cu`` makes the forest from scratch, and ``members.cu`` then lists of its trees' members; ``mend_forest.cu``
brings the forest up to date with a batch. Each run is one cooperative kernel, and waits for the device once. A
refresh allocates nothing, unless there are more vertices or long rows than ever before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.device.calling import DONE, OTHERWISE
from ...gpma.device.constants import LONG_ROW
from ...gpma.device.state import DeviceArray, address, allocate, pinned, zeros
from ...gpma.edges import NO_VERTEX, Vertices
from ...partition.device_side import DeviceSide
from . import forest_calls
from .fetch import Fetch
from .forest_calls import BATCH, N_LONGS, N_TOLD, N_WORDS, ROOM, RUN, N
from .kernels import Calls, Kernels, RowParameters, Source

Words = npt.NDArray[np.uint32]

NODE: Final = np.dtype([(name, np.uint32) for name in ("parent", "level", "handle", "label")])
"""struct Node of ``forest.cuh``."""

TREE: Final = np.dtype([("size", np.uint32), ("boss", np.uint32)])
"""struct Tree of ``forest.cuh``."""

MEMBER: Final = np.dtype([(name, np.uint32) for name in ("next", "prev", "size", "place")])
"""struct Member of ``forest.cuh``."""

MEMBERS: Final = np.dtype([("members", np.uint64)])
"""struct Members of ``forest.cuh``."""

_BY_VERTEX: Final = ("nodes", "trees", "free", "stamps", "tree_stamps", "log")
_BY_QUEUE: Final = ("listed", "lost", "joins", "joined")
_COUNTS_WORDS: Final = 8  # of a pair

FOREST_JOB: Final = np.dtype(
    [
        *((name, np.uint64) for name in (*_BY_VERTEX, *_BY_QUEUE)),
        ("seen", np.uint64, 2),
        *((name, np.uint64) for name in ("short_rows", "long_rows", "counters", "status", "changes")),
        *((name, np.uint32) for name in ("room", "long_room", "changes_room", "is_directed")),
        *((name, np.uint64) for name in ("keys", "outcomes", "edges_max", "n_edges")),
        *((name, np.uint32) for name in ("lost_max", "moved_max", "rounds_max", "n_updates")),
        *((name, np.uint32) for name in ("n_before", "n_vertices", "stamp", "sequence")),
    ]
)
"""struct ForestJob of ``forest.cuh``."""

FOREST_HANDED: Final = np.dtype(
    [
        *((name, np.uint32) for name in ("phase", "asked_turn", "turn", "rounds", "n_lost", "unused")),
        *((name, np.uint64) for name in ("edges", "n_moved")),
    ]
)
"""struct ForestHanded of ``forest.cuh``."""

FOREST_COUNTERS: Final = np.dtype(
    [
        *((name, np.uint64) for name in ("logged", "joins", "joined", "seeds", "moved", "hub")),
        ("found", np.uint64, 3),
        ("unused", np.uint64),
        *((name, np.uint64, 3 * _COUNTS_WORDS) for name in ("asked", "passing", "hanging")),
        *((name, np.uint64, _COUNTS_WORDS) for name in ("pulling", "left")),
        *((name, np.uint32) for name in ("n_free", "barrier")),
        ("handed", FOREST_HANDED),
    ]
)
"""struct ForestCounters of ``forest.cuh``."""

# The part of a job that differs from run to run, in the order of ``_say_run`` and of ``forest_calls.mend_again``.
_RUN = struct.Struct("=QQQQIIIIIIII")
assert FOREST_JOB.fields is not None
assert FOREST_COUNTERS.fields is not None
_RUN_BEGINS = FOREST_JOB.fields["keys"][1]
_N_FREE = FOREST_COUNTERS.fields["n_free"][1] // 4
assert _RUN_BEGINS + _RUN.size == FOREST_JOB.itemsize and _RUN.size == 8 * N_LONGS + 4 * N_WORDS

_ENTRY_BYTES, _NODE_WORDS, _MEMBER_WORDS, _CHANGE_WORDS = 16, 4, 4, 4
_QUEUES = 6
# Queues have room for one vertex in so many, and for so many at least. A run that would need more is given up.
QUEUE_SHARE, QUEUE_LEAST = 8, 4096
# The list of changes has room for one vertex in so many, and for so many at least; else all nodes are copied.
CHANGES_SHARE, CHANGES_LEAST = 16, 4096
# Columns grow by this factor.
_ROOM = 1.5
STAMP_MAX = 1 << 31
"""From here on stamps begin anew."""
LEVEL_MAX = 1 << 31
"""A forest whose levels may have come so far is made from scratch."""
# A run is given up after so many times the rounds of the last fresh start, and never before so many.
ROUNDS_SHARE, ROUNDS_LEAST = 2, 64

SOURCES: Final = {
    "mend": Source("mend_forest.cu"),
    "span": Source("span.cu", blocks=2),
    "members": Source("members.cu", blocks=2),
}


def forest_kernels() -> Kernels:
    return Kernels(SOURCES, weighted=False)


class ForestRun(NamedTuple):
    """What a run told: the words of ``forest.cuh``, in that order.

    ``gave_up``: the forest is void. ``logged``: how many vertices were written. ``edges``: entries of the rows
    that were queued, and in a search of those pushed along.
    """

    gave_up: int
    logged: int
    lost: int
    rounds: int
    edges_low: int
    edges_high: int

    @property
    def edges(self) -> int:
        return self.edges_high << 32 | self.edges_low


class Limits(NamedTuple):
    """What mending may come to before it is given up: lost vertices, vertices that join another tree, entries of
    rows."""

    lost: int
    moved: int
    edges: int


_NO_LIMITS: Final = Limits(0, 0, 0)


class _Vertices(NamedTuple):
    """Columns by vertex, of ``room`` entries each, and by place in a queue; see ``ForestJob``."""

    room: int
    queue_room: int
    changes_room: int
    nodes: DeviceArray
    trees: DeviceArray
    free: DeviceArray
    stamps: DeviceArray
    tree_stamps: DeviceArray
    log: DeviceArray
    listed: DeviceArray
    lost: DeviceArray
    joins: DeviceArray
    joined: DeviceArray
    short_rows: DeviceArray
    seen: tuple[DeviceArray, DeviceArray]
    changes: Words


class ForestRuns:
    """The forest on the device, and the runs that change it; all on the stream of ``device``."""

    def __init__(self, device: DeviceSide) -> None:
        """Compiles nothing yet.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._stream: Any = device.stream
        self._calls = Calls(FOREST_JOB, N_TOLD, self._stream, forest_calls.THEN)
        self._kernels = forest_kernels()
        own = np.zeros(1, np.dtype(f"V{MEMBERS.itemsize}"))
        self._members: Any = own.view(MEMBERS)
        self._with_members = self._calls.parameters(own)
        self._caller = self._calls.caller
        self._packed, self._fields = self._calls.packed, self._caller.said
        self._said, self._batch = self._fields[:N_TOLD], device.batch
        self._fields[BATCH], self._fields[RUN] = device.batch.ctypes.data, self._calls.address + _RUN_BEGINS
        # Whether the last call mended: the next one is like it then.
        self._again = False
        self._stamp = 0
        self._rounds_max = ROUNDS_LEAST
        self._level_max = 0
        with self._stream:
            self._counters = zeros(FOREST_COUNTERS.itemsize, np.uint8)
            self._long_rows = allocate(0, np.uint8)
        self._fetch = Fetch(self._stream)
        self._vertices: _Vertices | None = None
        self._room = self._arcs_room = -1
        job = self._calls.job
        job["counters"], job["is_directed"] = address(self._counters), device.directed

    # -- arrays -----------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> DeviceArray:
        """uint32[room, 4]: parent, level, handle by vertex, and a word that kernels use."""
        assert self._vertices is not None
        return self._vertices.nodes.reshape(-1, _NODE_WORDS)

    @property
    def _n(self) -> int:
        """How many vertices the forest has."""
        n: int = self._fields[N]
        return n

    @property
    def memory_bytes(self) -> int:
        """Of the host, pinned."""
        listed = 0 if self._vertices is None else self._vertices.changes.nbytes
        return listed + self._fetch.memory_bytes

    def make_room(self, n_vertices: int, n_arcs: int) -> None:
        """For so many vertices, and as many long rows as there may be.

        Raises:
            MemoryError: there is not enough; everything is as before.
        """
        if n_vertices <= self._room and n_arcs <= self._arcs_room:
            return
        long_bytes = _QUEUES * _ENTRY_BYTES * (n_arcs // LONG_ROW + 1)
        vertices, long_rows = self._vertices, self._long_rows
        with self._stream:
            if vertices is None or n_vertices > vertices.room:
                vertices = self._grown(n_vertices)
                self._fetch.reserve(vertices.nodes.nbytes)
            if long_bytes > long_rows.size:
                long_rows = allocate(int(_ROOM * long_bytes) // 16 * 16, np.uint8)
        self._vertices, self._long_rows = vertices, long_rows
        n_long = long_rows.size // (_QUEUES * _ENTRY_BYTES)
        self._room, self._arcs_room = vertices.room, n_long * LONG_ROW - 1
        job = self._calls.job
        for name in (*_BY_VERTEX, *_BY_QUEUE, "short_rows"):
            job[name] = address(getattr(vertices, name))
        job["seen"] = [address(bits) for bits in vertices.seen]
        job["long_rows"], job["long_room"] = address(long_rows), n_long
        job["changes"], job["changes_room"] = vertices.changes.ctypes.data, vertices.changes_room
        job["room"] = self._fields[ROOM] = vertices.queue_room

    def _grown(self, n_vertices: int) -> _Vertices:
        before = self._vertices
        room = max(1, n_vertices) if before is None else max(n_vertices, int(_ROOM * before.room))
        queue_room = max(32, min(room, max(QUEUE_LEAST, room // QUEUE_SHARE)))
        changes_room = min(room, max(CHANGES_LEAST, room // CHANGES_SHARE))
        n_bits = -(-room // 32)
        made = _Vertices(
            room,
            queue_room,
            changes_room,
            nodes=allocate(room * _NODE_WORDS, np.uint32),
            trees=allocate(room * TREE.itemsize // 4, np.uint32),
            free=allocate(room, np.uint32),
            stamps=zeros(room, np.uint32),
            tree_stamps=zeros(room, np.uint32),
            log=allocate(room, np.uint32),
            listed=allocate(queue_room, np.uint32),
            lost=allocate(queue_room, np.uint32),
            joins=allocate(queue_room, np.uint64),
            joined=allocate(2 * queue_room, np.uint32),
            short_rows=allocate(queue_room * _QUEUES * _ENTRY_BYTES, np.uint8),
            seen=(allocate(n_bits, np.uint32), allocate(n_bits, np.uint32)),
            changes=pinned(_CHANGE_WORDS * changes_room, np.uint32).reshape(-1, _CHANGE_WORDS),
        )
        if before is not None:
            for name in ("nodes", "trees", "free"):
                old = getattr(before, name)
                getattr(made, name)[: old.size] = old
        return made

    # -- runs -------------------------------------------------------------------------------------------------

    def mend(self, device: DeviceSide, limits: Limits) -> ForestRun:
        """Bring the forest up to date with the batch that ``device`` applied last, and with its vertices.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it; the forest is void.
        """
        if self._level_max > LEVEL_MAX:
            return ForestRun(1, 0, 0, 0, 0, 0)
        run = (self._mend_again(limits) if self._again else None) or self._mend(device, limits)
        self._level_max += run.rounds
        return run

    def _mend_again(self, limits: Limits) -> ForestRun | None:
        """``mend`` by a call like the last one, which compiled code fills in; None: it is not like it."""
        if self._stamp >= STAMP_MAX:
            return None
        status = forest_calls.mend_again(self._caller.record, *limits, self._rounds_max, self._stamp + 1)
        if status == OTHERWISE:
            return None
        self._stamp += 1
        if status != DONE:
            self._caller.see_to(status)
        return self._told()

    def _mend(self, device: DeviceSide, limits: Limits) -> ForestRun:
        keys, _, outcomes = device.report.addresses
        self._say_run(device, (keys, outcomes, device.report.n), limits)
        self._calls.call(self._kernels["mend"], device)
        self._again = True
        return self._told()

    def start(self, device: DeviceSide) -> ForestRun:
        """Span the graph from scratch.

        Raises:
            As ``mend``.
        """
        run = self._run("span", device)
        self._rounds_max = max(ROUNDS_LEAST, ROUNDS_SHARE * run.rounds)
        self._level_max = run.rounds
        return run

    def _run(self, name: str, device: DeviceSide, parameters: RowParameters | None = None) -> ForestRun:
        """One that has nothing to do with a batch."""
        self._again = False
        self._say_run(device, (0, 0, 0), _NO_LIMITS)
        self._calls.call(self._kernels[name], device, parameters)
        return self._told()

    def _say_run(self, device: DeviceSide, batch: tuple[int, int, int], limits: Limits) -> None:
        """Say in the job what differs from run to run."""
        if self._stamp >= STAMP_MAX:
            self._begin_stamps_anew()
        self._stamp += 1
        keys, outcomes, n_updates = batch
        lost_max, moved_max, edges_max = limits
        n, room = device.n_vertices, self._fields[ROOM]
        _RUN.pack_into(
            self._packed,
            _RUN_BEGINS,
            keys,
            outcomes,
            edges_max,
            device.n_arcs,
            min(lost_max, room),
            min(moved_max, room),
            self._rounds_max,
            n_updates,
            self._n,
            n,
            self._stamp,
            self._caller.next_number(),
        )
        self._fields[N] = n

    def _told(self) -> ForestRun:
        """What the last call has told."""
        return ForestRun._make(self._said)

    def _begin_stamps_anew(self) -> None:
        assert self._vertices is not None
        with self._stream:
            self._vertices.stamps.fill(0)
            self._vertices.tree_stamps.fill(0)
        self._stamp = 0

    # -- results ----------------------------------------------------------------------------------------------

    def changes(self, run: ForestRun) -> Words | None:
        """uint32[logged, 4]: the vertices that a run wrote, each once, with parent, handle and level; None: there
        are too many for the list.

        Good until the next run.
        """
        assert self._vertices is not None
        return None if run.logged > self._vertices.changes_room else self._vertices.changes[: run.logged]

    def read(self, n: int) -> Words:
        """uint32[n, 4]: parent, level and handle of the first ``n`` vertices, and a word that means nothing; good
        until the next call.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        return self._fetch.read(self.nodes[:n])

    def pieces(self, n: int) -> Iterator[tuple[int, Words]]:
        """The same in pieces (``Fetch.pieces``)."""
        return self._fetch.pieces(self.nodes[:n])

    def members(self, device: DeviceSide) -> Iterator[tuple[int, Words]]:
        """Pieces (``Fetch.pieces``) of uint32[vertices, 4], after ``start``.

        Of every vertex the next and the previous one in a circle of its tree; and, for handles, the size of
        the tree of that number, and where it stands in a list of the free ones, else ``NO_VERTEX``.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        with self._stream:
            made = allocate(max(1, self._n) * _MEMBER_WORDS, np.uint32)
        self._members["members"] = address(made)
        self._run("members", device, self._with_members)
        yield from self._fetch.pieces(made.reshape(-1, _MEMBER_WORDS)[: self._n])

    def write(self, parent: Vertices, level: Vertices, handle: Vertices) -> None:
        """Set the forest of as many vertices."""
        assert self._vertices is not None
        n = parent.size
        nodes = np.stack([parent, level, handle, np.full(n, NO_VERTEX, np.uint32)], axis=1).ravel()
        trees = np.zeros(n, TREE)
        trees["size"], trees["boss"] = np.bincount(handle, minlength=n), np.arange(n)
        free = np.flatnonzero(trees["size"] == 0).astype(np.uint32)
        for name, column in (("nodes", nodes), ("trees", trees.view(np.uint32)), ("free", free)):
            getattr(self._vertices, name)[: column.size].set(column, stream=self._stream)
        self._counters.view(np.uint32)[_N_FREE : _N_FREE + 1].set(
            np.array([free.size], np.uint32), stream=self._stream
        )
        self._fields[N] = n
        self._level_max = int(level.max(initial=0))
        self._rounds_max = max(ROUNDS_LEAST, ROUNDS_SHARE * self._level_max)
