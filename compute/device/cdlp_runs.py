"""Runs of label propagation on the device: ``cdlp.cu``, after a batch and from scratch.

A run is one cooperative kernel, waited for once. It allocates nothing, unless there are more vertices, longer rows
or more external ids than ever before.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.device.constants import LONG_ROW
from ...gpma.device.module import import_cupy
from ...gpma.device.state import DeviceArray, address, allocate, pinned, zeros
from ...gpma.edges import HALF, NO_VERTEX, Keys, Vertices
from ...gpma.index.id_order import IdOrder
from ...partition.device_side import DeviceSide
from .id_order import ID_ORDER, MACROS, DeviceIdOrder
from .kernels import Calls, Kernels, Source, whole_words
from .room import grown

_COUNTS_WORDS: Final = 4

CDLP_JOB: Final = np.dtype(
    [
        *((name, np.uint64) for name in ("labels", "leads", "heard")),
        ("was", np.uint64, 2),
        ("asked", np.uint64),
        ("moved", np.uint64, 2),
        ("tables", np.uint64),
        ("voters", np.uint64, 2),
        *((name, np.uint64) for name in ("short_rows", "long_rows", "voter_rows")),
        *((name, np.uint64) for name in ("pool_labels", "pool_counts", "owners", "polls")),
        *((name, np.uint64) for name in ("counters", "status", "changes", "pool_room")),
        *((name, np.uint32) for name in ("room", "long_room", "voters_room", "changes_room")),
        *((name, np.uint32) for name in ("rounds", "short_max", "is_directed", "unused")),
        *((name, np.uint64) for name in ("keys", "outcomes")),
        ("order", ID_ORDER),
        ("tell_max", np.uint64),
        *((name, np.uint32) for name in ("n_updates", "n_vertices", "begins", "sequence")),
    ]
)
"""struct CdlpJob of ``cdlp.cu``."""

CDLP_COUNTERS: Final = np.dtype(
    [
        *((name, np.uint64, 2 * _COUNTS_WORDS) for name in ("out", "in")),
        *((name, np.uint64, _COUNTS_WORDS) for name in ("long_out", "long_in")),
        *((name, np.uint64) for name in ("votes", "read", "pool")),
        *((name, np.uint32, 2) for name in ("asked", "moved")),
        ("voters", np.uint32, 3),
        ("barrier", np.uint32),
        ("unused", np.uint64),
    ]
)
"""struct CdlpCounters of ``cdlp.cu``."""

SOURCE: Final = Source("cdlp.cu", MACROS)
_CDLP = "cdlp"


def cdlp_kernels() -> Kernels:
    return Kernels({_CDLP: SOURCE}, weighted=False)


_ENTRY_BYTES, _POLL_WORDS = 16, 4
_PIECE: Final = 512  # as in ``cdlp.cu``
# Entries of a row that a warp counts by itself.
SHORT_MAX = 128
# Slots of the tables for longer rows, at least; more of them are counted together, where there are more.
POOL_LEAST = 1 << 18
# The list of changes has room for one vertex in so many, and for so many at least; else all labels are copied.
CHANGES_SHARE, CHANGES_LEAST = 16, 4096

_CALL = struct.Struct("=6Q4I")
assert CDLP_JOB.fields is not None
_CALL_BEGINS = CDLP_JOB.fields["keys"][1]
assert _CALL_BEGINS + _CALL.size == CDLP_JOB.itemsize


class CdlpRun(NamedTuple):
    """What a run told: the words of ``cdlp.cu``, in that order.

    ``moved``: how many got another label in the last round than they had there. ``whole``: rounds in which
    everybody voted. ``read``: entries of rows. ``asked``: who was asked, or voted, in all rounds together.
    """

    moved: int
    whole: int
    read: int
    asked: int


_SAID = len(CdlpRun._fields)
_WORDS = struct.Struct(f"={_SAID}q")


class _ByVertex(NamedTuple):
    """``room`` entries each, or as struct CdlpJob says."""

    room: int
    labels: DeviceArray
    leads: DeviceArray
    heard: DeviceArray
    was: DeviceArray
    asked: DeviceArray
    moved: DeviceArray
    tables: DeviceArray
    short_rows: DeviceArray
    changes: Keys


class _ForLongRows(NamedTuple):
    """For as many entries of rows as there may be, ``n_entries``; see struct CdlpJob."""

    n_entries: int
    pool_room: int
    voters: DeviceArray
    voter_rows: DeviceArray
    long_rows: DeviceArray
    pool_labels: DeviceArray
    pool_counts: DeviceArray
    owners: DeviceArray
    polls: DeviceArray


class CdlpRuns:
    """All rounds of one program on the device, and what changes them; all on the stream of ``device``."""

    def __init__(self, device: DeviceSide, rounds: int) -> None:
        """Compiles nothing yet.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._stream: Any = device.stream
        self._rounds, self._sides = rounds, 1 + device.directed
        self._calls = Calls(CDLP_JOB, 2 * _SAID, self._stream)
        self._kernel = cdlp_kernels()[_CDLP]
        self._order = DeviceIdOrder(self._stream)
        with self._stream:
            self._counters = zeros(CDLP_COUNTERS.itemsize, np.uint8)
        self._by_vertex: _ByVertex | None = None
        self._for_long_rows: _ForLongRows | None = None
        job = self._calls.job
        job["counters"], job["rounds"] = address(self._counters), rounds
        job["is_directed"], job["short_max"] = device.directed, SHORT_MAX

    # -- arrays -----------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Of the host, pinned."""
        return 0 if self._by_vertex is None else self._by_vertex.changes.nbytes

    @property
    def _there(self) -> _ByVertex:
        assert self._by_vertex is not None
        return self._by_vertex

    def make_room(self, n_vertices: int, n_arcs: int) -> None:
        """For so many vertices, new ones having no neighbours, and for so many out-arcs in all rows.

        Raises:
            MemoryError: there is not enough; everything is as before.
        """
        there, long = self._by_vertex, self._for_long_rows
        n_entries = self._sides * n_arcs
        if there is None or n_vertices > there.room:
            there = self._made(n_vertices)
        if long is None or n_entries > long.n_entries or _slots(min(n_entries, there.room)) > long.pool_room:
            with self._stream:
                long = _made_for_long_rows(grown(n_entries, 0 if long is None else long.n_entries), there.room)
        if there is self._by_vertex and long is self._for_long_rows:
            return
        self._by_vertex, self._for_long_rows = there, long
        job = self._calls.job
        for name in ("labels", "leads", "heard", "asked", "tables", "short_rows"):
            job[name] = address(getattr(there, name))
        for name in ("voter_rows", "long_rows", "pool_labels", "pool_counts", "owners", "polls"):
            job[name] = address(getattr(long, name))
        for name, halves in (("was", there.was), ("moved", there.moved), ("voters", long.voters)):
            job[name] = address(halves), address(halves) + halves.nbytes // 2
        job["changes"], job["changes_room"] = there.changes.ctypes.data, len(there.changes)
        job["room"], job["pool_room"] = there.room, long.pool_room
        job["voters_room"] = long.voters.size // 2
        job["long_room"] = long.long_rows.nbytes // (4 * _ENTRY_BYTES)

    def _made(self, n_vertices: int) -> _ByVertex:
        """Columns for more vertices, with what there is of those that were there."""
        before, rounds = self._by_vertex, self._rounds
        room = grown(max(1, n_vertices), 0 if before is None else before.room)
        changes_room = min(room, max(CHANGES_LEAST, room // CHANGES_SHARE))
        with self._stream:
            labels, leads = allocate(rounds * room, np.uint32), zeros(rounds * room, np.uint16)
            labels.reshape(rounds, room)[:] = import_cupy().arange(room, dtype=np.uint32)
            if before is not None:
                n = before.room
                for to, of in ((labels, before.labels), (leads, before.leads)):
                    to.reshape(rounds, room)[:, :n] = of.reshape(rounds, n)
            was = allocate(2 * room, np.uint32)
            was.fill(int(NO_VERTEX))
            return _ByVertex(
                room,
                labels=labels,
                leads=leads,
                heard=zeros(room, np.int64),
                was=was,
                asked=allocate(room, np.uint32),
                moved=allocate(2 * room, np.uint32),
                tables=allocate(room, np.uint32),
                short_rows=allocate(2 * room * _ENTRY_BYTES, np.uint8),
                changes=pinned(changes_room, np.uint64),
            )

    # -- runs -------------------------------------------------------------------------------------------------

    def start(self, device: DeviceSide, order: IdOrder) -> CdlpRun:
        """Take all rounds from scratch.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._order = DeviceIdOrder(self._stream)
        self._order.bring(order, device.n_vertices, np.empty(0, np.uint32))
        return self._run(device, 0, begins=True)

    def refresh(self, device: DeviceSide, order: IdOrder, renamed: Vertices, tell_max: int) -> CdlpRun:
        """Take all rounds after the batch that ``device`` applied last.

        ``renamed``: the vertices that may have other external ids than before. In a round in which there is more
        to tell of than ``tell_max``, everybody votes.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it; labels are void.
        """
        self._order.bring(order, device.n_vertices, renamed)
        return self._run(device, tell_max, begins=False)

    def _run(self, device: DeviceSide, tell_max: int, *, begins: bool) -> CdlpRun:
        report = device.report
        n_updates = 0 if begins else len(report)
        _CALL.pack_into(
            self._calls.packed,
            _CALL_BEGINS,
            report.addresses[0] if n_updates else 0,
            report.addresses[2] if n_updates else 0,
            *self._order.addresses,
            tell_max,
            n_updates,
            device.n_vertices,
            begins,
            self._calls.next_number(),
        )
        self._calls.call(self._kernel, device)
        return CdlpRun(*whole_words(self._calls.wait(), _WORDS))

    # -- results ----------------------------------------------------------------------------------------------

    def changes(self, run: CdlpRun, n: int) -> tuple[Vertices, Vertices]:
        """The vertices with another label in the last round, each once, and their labels; or all of n.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        listed = self._there.changes
        if run.moved <= len(listed):
            words = listed[: run.moved]
            return words.astype(np.uint32), (words >> HALF).astype(np.uint32)
        return np.arange(n, dtype=np.uint32), self.last_labels(n)

    def last_labels(self, n: int) -> Vertices:
        """The labels of the first n vertices in the last round.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        begin = (self._rounds - 1) * self._there.room
        labels: Vertices = self._there.labels[begin : begin + n].get(stream=self._stream)
        return labels

    def read(self, n: int) -> tuple[list[Vertices], list[npt.NDArray[np.uint16]]]:
        """The labels and the leads of the first n vertices, by round.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        there = self._there
        begins = [number * there.room for number in range(self._rounds)]
        labels = [there.labels[begin : begin + n].get(stream=self._stream) for begin in begins]
        return labels, [there.leads[begin : begin + n].get(stream=self._stream) for begin in begins]

    def write(self, labels: Sequence[Vertices], leads: Sequence[npt.NDArray[np.uint16]], order: IdOrder) -> None:
        """Set labels and leads, by round, of the first vertices."""
        there, n = self._there, labels[0].size
        for columns, given in ((there.labels, labels), (there.leads, leads)):
            for number, column in enumerate(given):
                begin = number * there.room
                columns[begin : begin + n].set(np.ascontiguousarray(column), stream=self._stream)
        self._order.bring(order, n, np.empty(0, np.uint32))


def _slots(entries: int) -> int:
    """Of a table for a row of so many entries that are too many for a warp, as in ``cdlp.cu``."""
    return max(_PIECE, 1 << max(0, 2 * entries - 1).bit_length())


def _made_for_long_rows(n_entries: int, room: int) -> _ForLongRows:
    pool_room = max(_slots(min(n_entries, room)), POOL_LEAST)
    n_pieces = pool_room // _PIECE
    voters_room = n_entries // (SHORT_MAX + 1) + 1
    pool_labels = allocate(pool_room, np.uint32)
    pool_labels.fill(int(NO_VERTEX))
    return _ForLongRows(
        n_entries,
        pool_room,
        voters=allocate(2 * voters_room, np.uint32),
        voter_rows=allocate(2 * voters_room * _ENTRY_BYTES, np.uint8),
        long_rows=allocate(4 * (n_entries // LONG_ROW + 1) * _ENTRY_BYTES, np.uint8),
        pool_labels=pool_labels,
        pool_counts=zeros(pool_room, np.uint32),
        owners=allocate(n_pieces, np.uint32),
        polls=allocate(n_pieces * _POLL_WORDS, np.uint32),
    )
