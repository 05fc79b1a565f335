"""Rows of a graph that live in arrays on the host, and that kernels on the device read there (``leaves.cuh``).

A row is in one of both places. Which rows are remote, a bit says of each, on the device. Kernels get the addresses
of the host's columns, which the driver knows (``registered.py``), and read them over the bus. Only small columns
are copied, and those where no address space is reserved: memory is registered by pages, and theirs are others' as
well. The host must not write while kernels run.

Kernels that read rows of both sides count what they read (``reading.cuh``), by classes of vertices that
``classify`` is told; ``take_reads`` has what came since the last time told later. Each run counts in counters of
its own, of which there are several: so none waits for what the one before it has counted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..address_space import reservation_of
from ..device_failure import DeviceFailed, is_of_device
from ..edges import Vertices, distinct
from ..row_reads import CLASSES, RowReads
from ..rows import RowView
from .module import import_cupy
from .registered import Extent, Range, Registered
from .state import DeviceArray, address, pinned, zeros
from .structures import READS, STATE

# The fields of struct State, and where they are.
assert STATE.fields is not None
_COLUMNS, _NUMBERS, _OWN_LEAVES = struct.Struct("=8Q"), struct.Struct("=3I"), struct.Struct("=I")
_COLUMNS_AT, _NUMBERS_AT = STATE.fields["remote_keys"][1], STATE.fields["remote_n_leaves"][1]
_OWN_LEAVES_AT = STATE.fields["n_leaves"][1]
_READS_PLACE = STATE.fields["remote_reads"][1] // 8
_READS_WORDS = READS.itemsize // 8
_COUNTED_MAX = 16
"""So many runs may be counted before one of them must be told of."""
# Bits grow by this factor. From so large a share of words on, all of them are brought anew.
_ROOM = 1.5
_UPLOAD_SHARE = 1 / 8
_LEAVES_MAX = (1 << 32) - 2
_BITS = 32

Words = npt.NDArray[np.uint64]
# Ordinary arrays of so many bytes have pages of their own: the C library maps them one by one from 32 MiB on.
APART_BYTES = 64 << 20


class HostArray(Protocol):
    """A packed array of the host; ``before_pages_go`` is called with the addresses of pages that will go."""

    before_pages_go: Callable[[Iterable[Range]], None]

    @property
    def n_edges(self) -> int: ...
    def view(self) -> RowView: ...


class RemoteRows:
    """Rows in arrays of the host: ``out``, and ``in_`` where in-rows are kept by themselves. All on ``stream``."""

    def __init__(self, out: HostArray, in_: HostArray | None, stream: Any) -> None:
        """No row is remote yet.

        Raises:
            RuntimeError: the device does not read the host's memory in place, or fails.
        """
        self.out, self.in_ = out, in_
        self.n_rows = 0
        """How many rows are remote."""
        self._stream = stream
        self._registered = Registered()
        # Of columns that cannot be registered, by array and by the column's place in the view.
        self._copies: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}
        for array in self._arrays:
            array.before_pages_go = self._let_go
        # Views as they were written last, what was written of them, and which of their columns are copied.
        self._seen: list[RowView] = []
        self._packed: list[_Packed] = []
        self._to_copy: list[tuple[int, int, npt.NDArray[Any]]] = []
        self._words: npt.NDArray[np.uint32] = np.zeros(0, np.uint32)
        with stream:
            self._bits: DeviceArray = zeros(0, np.uint32)
            self._classes: DeviceArray = zeros(0, np.uint8)
            self._reads: DeviceArray = zeros(_COUNTED_MAX * _READS_WORDS, np.uint64)
        self._classified = False
        # What the counters of each run were when they were last asked; on the device they go on. Who waits to be
        # told, of the runs that used them last; and which are in use.
        self._told: Words = np.zeros((_COUNTED_MAX, _READS_WORDS), np.uint64)
        self._counted: list[CountedReads | None] = [None] * _COUNTED_MAX
        self._counting = 0
        self._reads_at = address(self._reads)
        # Structures that say where the counters are.
        self._states: list[memoryview] = []
        self.on_other_rows: Callable[[], None] = _nobody_minds
        """Called where what ``write`` wrote is no longer so."""

    @property
    def n_edges(self) -> int:
        """Of all arrays."""
        return sum(array.n_edges for array in self._arrays)

    @property
    def bits(self) -> DeviceArray:
        """uint32 words on the device, a bit for each vertex: whether its rows are remote. Until there are more."""
        return self._bits

    @property
    def registered_bytes(self) -> int:
        """How much of the host's memory is pinned, for kernels to read."""
        return self._registered.n_bytes + sum(copy.nbytes for copy in self._copies.values())

    @property
    def n_leaves_in(self) -> int:
        """How many leaves of the in-rows have a number."""
        rows = (self.out if self.in_ is None else self.in_).view()
        return int(rows.counts.size - (rows.stretch_end - rows.stretch_begin))

    def memory_bytes(self) -> int:
        """Bytes held on the device: of each vertex a bit and its class, and what is counted."""
        return int(self._bits.nbytes + self._classes.nbytes + self._reads.nbytes)

    @property
    def _arrays(self) -> list[HostArray]:
        return [self.out] if self.in_ is None else [self.out, self.in_]

    def ensure_vertices(self, n_vertices: int) -> None:
        """Make room for the bits of so many; the rows of new ones are not remote.

        Raises:
            MemoryError: there is not enough; nothing was changed.
        """
        size = self._words.size
        if n_vertices <= _BITS * size:
            return
        room = max(-(-n_vertices // _BITS), int(size * _ROOM))
        with self._stream:
            bits, classes = zeros(room, np.uint32), zeros(_BITS * room, np.uint8)
            bits[:size] = self._bits
            classes[: _BITS * size] = self._classes
        words = np.zeros(room, np.uint32)
        words[:size] = self._words
        self._words, self._bits, self._classes = words, bits, classes
        self._seen = []

    def mark(self, vertices: Vertices, *, remote: bool) -> None:
        """Say of the rows of these vertices, each named once, whether they are remote.

        Raises:
            IndexError: a vertex does not exist; nothing was changed.
            RuntimeError: the device, as CuPy says it.
        """
        place, bit = vertices >> np.uint32(5), np.uint32(1) << (vertices & np.uint32(31))
        is_other = (self._words[place] & bit != 0) != remote
        if not is_other.any():
            return
        self.n_rows += int(np.count_nonzero(is_other)) * (1 if remote else -1)
        np.bitwise_xor.at(self._words, place[is_other], bit[is_other])
        changed = distinct(place[is_other])
        with self._stream:
            if changed.size > _UPLOAD_SHARE * self._words.size or not self._bring(changed):
                self._bits.set(self._words, stream=self._stream)
            # What was brought may lie in memory that is free from here on.
            self._stream.synchronize()

    def _bring(self, changed: npt.NDArray[np.uint32]) -> bool:
        """Bring only these words to the device; False: there is no memory for it."""
        asarray = import_cupy().asarray
        try:
            self._bits[asarray(changed)] = asarray(self._words[changed])
        except MemoryError:
            return False
        return True

    def classify(self, classes: npt.NDArray[np.uint8]) -> None:
        """From now on reads are counted by these classes, of the first vertices; others keep theirs, at first 0.

        Takes no memory.

        Raises:
            IndexError: a vertex does not exist.
            RuntimeError: the device, as CuPy says it.
        """
        if classes.size > self._classes.size:
            raise IndexError(f"there are {self._classes.size} vertices, and classes of {classes.size}")
        self._classes[: classes.size].set(classes, stream=self._stream)
        self._stream.synchronize()
        self._classified = True

    def take_reads(self) -> CountedReads:
        """What kernels have read since this was last asked, to be told later; until ``classify`` it is told by
        side alone. Waits for nothing, as a rule.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        counted = self._counted[self._counting] = CountedReads(self, classified=self._classified)
        self._counting = (self._counting + 1) % _COUNTED_MAX
        if self._counted[self._counting] is not None:
            self.tell_reads()
        for state in self._states:
            state[_READS_PLACE] = self._reads_now
        return counted

    def tell_reads(self) -> None:
        """Tell all who wait for what was counted: it is fetched at once.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        now: Words = self._reads.get(stream=self._stream).reshape(self._told.shape)
        since, self._told = (now - self._told).view(READS)[:, 0], now
        for place, counted in enumerate(self._counted):
            if counted is not None:
                counted.hear(since[place])
        self._counted = [None] * _COUNTED_MAX

    @property
    def _reads_now(self) -> int:
        """Where the counters in use are."""
        return self._reads_at + READS.itemsize * self._counting

    def write(self, out: npt.NDArray[np.void], in_: npt.NDArray[np.void]) -> None:
        """Fill these fields of two structures State, of the out-rows and of those to pull from.

        Raises:
            DeviceFailed: the driver does not let kernels read the columns, or there are too many leaves.
            MemoryError: there is not enough pinned memory for columns that are copied.
        """
        views = [array.view() for array in self._arrays]
        if not (len(views) == len(self._seen) and all(map(_is_same, views, self._seen))):
            self._look_at(views)
        for number, place, column in self._to_copy:
            self._copy((number, place), column)
        self._states = [_write(self._packed[0], out), _write(self._packed[-1], in_)]
        for state in self._states:
            state[_READS_PLACE] = self._reads_now

    def close(self) -> None:
        """Read nothing any more."""
        for array in self._arrays:
            array.before_pages_go = nobody_reads
        self._registered.close()
        self._copies.clear()
        self._seen = []

    def _look_at(self, views: list[RowView]) -> None:
        """Have what kernels read of these registered, and find out where it is."""
        self._seen = []
        extents = [_extents(view) for view in views]
        self._registered.cover([extent for column in extents for extent in column if _is_apart(extent.column)])
        self._to_copy = [
            (number, place, extent.column)
            for number, columns in enumerate(extents)
            for place, extent in enumerate(columns)
            if not _is_apart(extent.column)
        ]
        copied = {(number, place): self._copy((number, place), column) for number, place, column in self._to_copy}
        own = [*(address(column) for column in (self._bits, self._classes)), 0]
        self._packed = []
        for number, (view, columns) in enumerate(zip(views, extents, strict=True)):
            found = [copied.get((number, place), _address(extent.column)) for place, extent in enumerate(columns)]
            n_empty = view.stretch_end - view.stretch_begin
            n_leaves = view.counts.size - n_empty
            numbers = _NUMBERS.pack(n_leaves, view.stretch_begin, n_empty)
            self._packed.append(_Packed(_COLUMNS.pack(*found, *own), numbers, n_leaves))
        self._seen = views

    def _let_go(self, pages: Iterable[Range]) -> None:
        self._seen = []
        self.on_other_rows()
        self._registered.let_go(pages)

    def _copy(self, place: tuple[int, int], column: npt.NDArray[Any]) -> int:
        """Copy a column to where kernels find it; 0: it is empty. Stays there, until it has no room any more."""
        copy = self._copies.get(place)
        if copy is None or copy.size < column.nbytes:
            copy = self._copies[place] = pinned(int(_ROOM * column.nbytes), np.uint8)
        copy[: column.nbytes] = column.view(np.uint8)
        return int(copy.ctypes.data) if column.size else 0


class CountedReads:
    """What a run has read of rows, which the device has counted: to be called for it, at once or much later."""

    def __init__(self, rows: RemoteRows, *, classified: bool) -> None:
        self._rows: RemoteRows | None = rows
        self._classified = classified
        self._reads: RowReads | None = None

    def __call__(self) -> RowReads:
        """What was read. Nothing, where the device has failed meanwhile: whoever runs there next finds out."""
        if self._rows is not None:
            try:
                self._rows.tell_reads()
            except Exception as error:
                if not is_of_device(error):
                    raise
                self._rows = None
        return self._reads or RowReads.none()

    def hear(self, counted: np.void) -> None:
        """By the counters of struct Reads."""
        by_class = counted["by_class"].reshape(2, CLASSES).astype(np.int64)
        reads = RowReads(by_class, counted["others"].astype(np.int64), int(counted["lines"]))
        self._reads, self._rows = reads if self._classified else reads.without_classes(), None


class _Packed(NamedTuple):
    """Fields of struct State that say where remote rows are. ``n_leaves``: how many leaves have a number."""

    columns: bytes
    numbers: bytes
    n_leaves: int


def _write(rows: _Packed, to: npt.NDArray[np.void]) -> memoryview:
    """The structure as words."""
    state = memoryview(to.view(np.uint8))
    if _OWN_LEAVES.unpack_from(state, _OWN_LEAVES_AT)[0] + rows.n_leaves > _LEAVES_MAX:
        raise DeviceFailed("host and device together have more leaves than kernels can number")
    state[_COLUMNS_AT : _COLUMNS_AT + _COLUMNS.size] = rows.columns
    state[_NUMBERS_AT : _NUMBERS_AT + _NUMBERS.size] = rows.numbers
    return memoryview(to.view(np.uint64))


def _nobody_minds() -> None:
    """Nobody has what ``write`` wrote."""


def nobody_reads(pages: Iterable[Range]) -> None:
    """They may go."""


def _extents(rows: RowView) -> list[Extent]:
    """What kernels read of the columns, in the order of struct State: all but the stretch."""
    leaves = (0, rows.stretch_begin), (rows.stretch_end, rows.counts.size)
    slots = [(begin << rows.leaf_shift, end << rows.leaf_shift) for begin, end in leaves]
    by_leaf = [Extent(rows.keys, slots), Extent(rows.weights, slots), Extent(rows.counts, leaves)]
    return [*by_leaf, *(Extent(column, [(0, column.size)]) for column in (rows.row_leaf, rows.degrees))]


def _is_same(view: RowView, other: RowView) -> bool:
    """Whether both are of the same columns: those of another address or length are other arrays."""
    return all(map(is_, view, other))


def _address(column: npt.NDArray[Any]) -> int:
    """0: it is empty."""
    return int(column.ctypes.data) if column.size else 0


def _is_apart(column: npt.NDArray[Any]) -> bool:
    """Whether there is nothing else in the pages of a column, so that they can be registered."""
    return reservation_of(column) is not None or column.nbytes >= APART_BYTES
