"""Runs of triangles and local clustering on the device: ``tally_changes.cu`` after a change, ``tally_all.cu``.

Tallies themselves are kept by the host; the device says what they are, or by how much they differ. A run is one
cooperative kernel, waited for once. One after a change allocates nothing, unless there are more vertices, or links
that change, than ever before.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.device.staging import Staging
from ...gpma.device.state import DeviceArray, address, allocate, pinned, zeros
from ...gpma.edges import EdgeBatch, Keys, Vertices
from ...partition.device_side import DeviceSide
from ..links import NOW_SHIFT, Links
from ..triangles.change import LINK_STEPS
from ..triangles.common import SEARCH_STEPS
from .kernels import Calls, Kernels, Source, whole_words
from .room import grown

_COLUMNS = ("deltas", "listed", "touched")
_LISTS = ("forward", "heads", "tails", "head_arcs")

TALLY_JOB: Final = np.dtype(
    [
        *((name, np.uint64) for name in (*_COLUMNS, "counters", "status", "changes")),
        *((name, np.uint32) for name in ("changes_room", "is_directed", "weighs", "piece_leaves")),
        *((name, np.uint64) for name in ("keys", "arcs", "long_links", "steps_max", *_LISTS)),
        *((name, np.uint32) for name in ("n_links", "n_vertices", "sequence", "unused_too")),
    ]
)
"""struct TallyJob of ``tally.cuh``."""

TALLY_COUNTERS: Final = np.dtype(
    [
        *((name, np.uint64) for name in ("steps", "entries", "long_links")),
        *((name, np.uint32) for name in ("touched", "barrier")),
    ]
)
"""struct TallyCounters of ``tally.cuh``."""

FORWARD: Final = np.dtype([("begin", np.uint64), *((name, np.uint32) for name in ("of_out", "of_in"))])
"""struct Forward of ``tally.cuh``."""

_MACROS = tuple(
    f"-D{name}={value}u"
    for name, value in (("NOW_SHIFT", NOW_SHIFT), ("LINK_STEPS", LINK_STEPS), ("SEARCH_STEPS", SEARCH_STEPS))
)
SOURCES: Final = {
    "change": Source("tally_changes.cu", _MACROS),
    "start": Source("tally_all.cu", _MACROS, blocks=2),
}


def tally_kernels() -> Kernels:
    return Kernels(SOURCES, weighted=False)


# Leaves of a row that a warp walks in one piece; not measured on a card.
PIECE_LEAVES = 4
# The list of changes has room for one vertex in so many, and for so many at least; else all are copied.
CHANGES_SHARE, CHANGES_LEAST = 16, 4096

_CALL = struct.Struct("=8Q4I")
assert TALLY_JOB.fields is not None
_CALL_BEGINS = TALLY_JOB.fields["keys"][1]
assert _CALL_BEGINS + _CALL.size == TALLY_JOB.itemsize


class TallyRun(NamedTuple):
    """What a run told: the words of ``tally.cuh``, in that order.

    ``gave_up``: a change costs too much, and nothing was done. ``touched``: vertices whose tallies may differ.
    ``steps``: what it costs, as the host counts it. ``entries``: those that were looked up, or of forward lists.
    """

    gave_up: int
    touched: int
    steps: int
    entries: int


_SAID = len(TallyRun._fields)
_WORDS = struct.Struct(f"={_SAID}q")


class _ByVertex(NamedTuple):
    """``room`` entries each, but for the list that may run over; see struct TallyJob."""

    room: int
    deltas: DeviceArray
    listed: DeviceArray
    touched: DeviceArray
    changes: Keys


class TallyRuns:
    """What a device counts for one program; all on the stream of ``device``."""

    def __init__(self, device: DeviceSide, *, weighs: bool) -> None:
        """Compiles nothing yet. ``weighs``: as ``Tally`` says.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._stream: Any = device.stream
        self._weighs, self._directed = weighs, device.directed
        self._calls = Calls(TALLY_JOB, 2 * _SAID, self._stream)
        self._kernels = tally_kernels()
        self._staging = Staging(self._stream)
        with self._stream:
            self._counters = zeros(TALLY_COUNTERS.itemsize, np.uint8)
            self._long_links = allocate(0, np.uint64)
        self._by_vertex: _ByVertex | None = None
        job = self._calls.job
        job["counters"] = address(self._counters)
        job["is_directed"], job["weighs"], job["piece_leaves"] = device.directed, weighs, PIECE_LEAVES

    # -- arrays -----------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Of the host, pinned."""
        return 0 if self._by_vertex is None else self._by_vertex.changes.nbytes

    @property
    def _there(self) -> _ByVertex:
        assert self._by_vertex is not None
        return self._by_vertex

    def make_room(self, n_vertices: int) -> None:
        """For so many vertices.

        Raises:
            MemoryError: there is not enough; everything is as before.
        """
        before = self._by_vertex
        if before is not None and n_vertices <= before.room:
            return
        room = grown(max(1, n_vertices), 0 if before is None else before.room)
        changes_room = min(room, max(CHANGES_LEAST, room // CHANGES_SHARE))
        with self._stream:
            made = _ByVertex(
                room,
                deltas=zeros(room, np.int64),
                listed=zeros(room, np.uint32),
                touched=allocate(room, np.uint32),
                changes=pinned(2 * changes_room, np.uint64).reshape(-1, 2),
            )
        self._by_vertex = made
        job = self._calls.job
        for name in _COLUMNS:
            job[name] = address(getattr(made, name))
        job["changes"], job["changes_room"] = made.changes.ctypes.data, changes_room

    # -- runs -------------------------------------------------------------------------------------------------

    def change(self, device: DeviceSide, links: Links, steps_max: int) -> TallyRun:
        """What these links do, one at least, which the last change of the rows touched.

        Raises:
            MemoryError, RuntimeError: the device, as CuPy says it; nothing is left that could be used.
        """
        arcs = links.before | links.after << np.uint8(NOW_SHIFT)
        with self._stream:
            there = self._staging.bring(EdgeBatch(links.keys, arcs), weighted=False)
            if arcs.size > self._long_links.size:
                self._long_links = allocate(grown(arcs.size, self._long_links.size), np.uint64)
        given = (address(array) for array in (there.keys, there.ops, self._long_links))
        run = self._run("change", device, (*given, steps_max, 0, 0, 0, 0), arcs.size)
        self._staging.arrived()
        return run

    def start(self, device: DeviceSide) -> tuple[TallyRun, npt.NDArray[np.uint64], Vertices]:
        """What the run told, the tally of each vertex, and how many links it has.

        Raises:
            MemoryError, RuntimeError: as ``change``.
        """
        there, n = self._there, device.n_vertices
        n_links = device.n_arcs // (1 if self._directed else 2)
        self.clear()
        with self._stream:
            forward = allocate(n * FORWARD.itemsize, np.uint8)
            heads, tails = allocate(n_links, np.uint32), allocate(n_links, np.uint32)
            arcs = allocate(n_links, np.uint8) if self._weighs and self._directed else None
        lists = (address(array) for array in (forward, heads, tails, arcs))
        run = self._run("start", device, (0, 0, 0, 0, *lists), 0)
        tally = there.deltas[:n].get(stream=self._stream).view(np.uint64)
        neighbors: Vertices = there.touched[:n].get(stream=self._stream)
        self.clear()
        return run, tally, neighbors

    def _run(self, kernel: str, device: DeviceSide, given: tuple[int, ...], n_links: int) -> TallyRun:
        self._calls.packed[_CALL_BEGINS:] = _CALL.pack(
            *given, n_links, device.n_vertices, self._calls.next_number(), 0
        )
        self._calls.call(self._kernels[kernel], device)
        return TallyRun(*whole_words(self._calls.wait(), _WORDS))

    def clear(self) -> None:
        """Let no tally differ.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        with self._stream:
            self._there.deltas.fill(0)
            self._there.listed.fill(0)

    # -- results ----------------------------------------------------------------------------------------------

    def changes(self, run: TallyRun) -> tuple[Vertices, npt.NDArray[np.int64]]:
        """The vertices whose tallies may differ, each once, and by how much; to be asked once after each change.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        there = self._there
        if run.touched <= len(there.changes):
            listed = there.changes[: run.touched]
            return listed[:, 0].astype(np.uint32), listed[:, 1].astype(np.int64)
        deltas: npt.NDArray[np.int64] = there.deltas.get(stream=self._stream)
        self.clear()
        vertices = np.flatnonzero(deltas).astype(np.uint32)
        return vertices, deltas[vertices]
