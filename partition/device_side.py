"""The rows that a CUDA device keeps: the same as the host's, changed by the same batches, or those it owns.

Where others live on the host, programs on the device read them there: see ``read_remote``.

All of it runs on one stream. What is launched for a batch waits for nothing, so that what programs launch on the
stream after it follows at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple, Protocol
from weakref import ReferenceType, WeakValueDictionary, ref

import numpy as np
import numpy.typing as npt

from ..gpma.device.array import DevicePackedArray, DevicePlan
from ..gpma.device.both import (
    BATCH_IS_READY,
    BATCH_KEYS,
    BATCH_N,
    BATCH_OUTCOMES,
    BATCH_ROWS,
    BATCH_WEIGHTS,
    BATCH_WORDS,
    BothArrays,
)
from ..gpma.device.joining import Joined
from ..gpma.device.module import import_cupy, use_device
from ..gpma.device.picking import Picking
from ..gpma.device.pool import release_blocks
from ..gpma.device.remote import RemoteRows
from ..gpma.device.report import DeviceReport
from ..gpma.device.staging import DeviceBatch, Staging
from ..gpma.device.state import plain
from ..gpma.device.structures import STATE
from ..gpma.device.turning import Turning
from ..gpma.edges import HALF, ChangeReport, EdgeBatch, EdgeList, Keys, SubCSR, Vertices, Weights
from ..gpma.host import PackedMemoryArray
from ..gpma.team import Crew
from .changes import Counts, Report
from .side import Direction, Side

MOVED_MAX = 1 << 20
"""So many edges of rows that moved are remembered: 8 MB."""

# Vertices of the graph on which ``warm_up`` tries the kernels.
_TRIED = 3600


class DeviceSidePlan(NamedTuple):
    """What ``DeviceSide.prepare`` planned for its arrays."""

    out: DevicePlan
    in_: DevicePlan | None


# The plan of a batch for the kernels that change both arrays at a time, which have it.
_TOGETHER = DeviceSidePlan(DevicePlan(None), None)

_BATCH = struct.Struct(f"={BATCH_WORDS}Q")
assert list(range(6)) == [BATCH_IS_READY, BATCH_KEYS, BATCH_WEIGHTS, BATCH_OUTCOMES, BATCH_N, BATCH_ROWS]


class States(NamedTuple):
    """Where the structures are that kernels read rows by, and whether those have some on the host, too."""

    out: int
    in_: int
    reads_remote: bool


class RowsVersion(NamedTuple):
    """Which rows a device has been told of that it reads on the host: so often have rows changed sides or been
    replaced (``moves``), and so many batches have been applied (``batches``), by whoever owns what they change.

    Who has heard of each batch knows what rows have become since a version with as many moves.
    """

    moves: int
    batches: int


class Moved(NamedTuple):
    """In-rows that changed sides: their keys, as arrays of in-rows have them, and which way they went."""

    keys: Keys
    to_host: bool


class Follower(Protocol):
    """A program's runs after batches, of which the next may be launched before the batch's kernel has ended."""

    def begin_behind(self, report_number: int) -> bool:
        """Launch the batch of ``DeviceSide.next_batch``, and the run after it, which ``DeviceSide.batch`` tells
        of; waits for nothing. False: there is to be no such run, and nothing was launched.

        It is all that is to be done where the report that there is in the end has this number.

        When it runs, an array may be as it was: the kernels have given the batch up there; if the one for small
        batches has, and in the out-rows, with every outcome ABSENT. ``DeviceSide.finish`` finds that out, applies
        it, and makes another report.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """

    def forget_behind(self) -> None:
        """The run behind the batch is void: what it was told of that was not what became of it."""


class DeviceSide(Side[DevicePackedArray]):
    """Arrays on a device. Any exception of a method but ``prepare`` and ``ensure_vertices`` may leave them at odds
    with each other, and with the host: they are of no use then."""

    name = "device"
    takes_edges = True
    batch: Keys
    """uint64, by ``BATCH_...`` of ``gpma/device/both.py``: what kernels are told of the last batch, as ``report``
    has it (``be_ready``); at one place as long as the side is there."""

    def __init__(self, *, directed: bool, weighted: bool, in_edges: bool, in_weights: bool) -> None:
        """``in_edges``: whether a directed graph keeps in-rows; ``in_weights``: with weights, where there are any.

        Raises:
            ImportError: CuPy is not installed.
            RuntimeError: there is no device, or it fails (as CuPy says it).
            MemoryError: it has not enough memory.
        """
        self.directed = directed
        self.stream: Any = import_cupy().cuda.Stream(non_blocking=True)
        self.shared: WeakValueDictionary[type, Any] = WeakValueDictionary()
        """What programs here share, by its class, as long as one of them has it."""
        self.batch: Keys = np.zeros(BATCH_WORDS, np.uint64)
        self._staging = Staging(self.stream)
        self._both: BothArrays | None = None
        self.in_ = None
        if directed and in_edges and in_weights >= weighted:
            self._both = BothArrays(self.stream, self._staging, self.batch, weighted=weighted)
            self.out, self.in_ = self._both.out, self._both.in_
        else:
            self.out = DevicePackedArray(weighted=weighted, stream=self.stream)
            if directed and in_edges:
                self.in_ = DevicePackedArray(weighted=weighted and in_weights, stream=self.stream)
        self._turning = Turning(self.stream)
        self._remote: RemoteRows | None = None
        self._nothing = self.out.empty_report()
        # What the last batch did here; what it did elsewhere, until somebody asks; and both, since then.
        self._own: DeviceReport = self._nothing
        self._heard: list[ChangeReport] = []
        self._whole: DeviceReport | None = None
        self._joining = Lock()
        self._joined: Joined | None = None
        self._picking: Picking | None = None
        self._own_states: States | None = None
        self._batch_bytes = memoryview(self.batch.view(np.uint8))
        # Whether the last batch is told of there; and if so, which rows are remote, and what all are read by.
        self._is_ready = False
        self._ready_remote: RemoteRows | None = None
        self._ready_states: States | None = None
        # Of rows here and there together.
        self._joint = plain(np.zeros(1, STATE)), plain(np.zeros(1, STATE))
        out, in_ = (state.ctypes.data for state in self._joint)
        self._joint_states = States(out, in_, reads_remote=True)
        self._moves = self._batches = 0
        self._follower: ReferenceType[Follower] | None = None
        # Whether somebody is to follow the next batch, since the last one; so many reports there were.
        self._is_followed, self._n_told = False, 0
        # Moves that are remembered, the last one last: what they were the next of, and all of what each moved.
        self._moved: list[tuple[RowsVersion, list[Moved]]] = []

    @property
    def next_batch(self) -> int:
        """Where what a batch for both arrays is launched by is (``begin_both``); 0: no batch ever is."""
        return 0 if self._both is None else self._both.address

    @property
    def version(self) -> RowsVersion:
        """Of the rows here and on the host, where it is told of these (``hear``, ``rows_moved``)."""
        return RowsVersion(self._moves, self._batches)

    @property
    def report(self) -> DeviceReport:
        """What the last batch did to the out-rows, update by update, both directions in an undirected graph; empty
        after a load. Good until the next ``prepare``.

        Where others own rows, it tells of those, too (``hear``). Their part is brought here when a thread first
        asks: where no program reads it, it stays where it is.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        if not self._heard:
            return self._own
        with self._joining:
            if self._whole is None:
                assert self._joined is not None
                use_device()  # for this thread, whose first work there it may be
                with self.stream:
                    self._whole = self._joined.of(self._own, self._heard)
            return self._whole

    @property
    def in_rows(self) -> DevicePackedArray:
        """The array to pull from; in an undirected graph that of the out-rows.

        Raises:
            LookupError: no in-rows are kept.
        """
        if not self.directed:
            return self.out
        if self.in_ is None:
            raise LookupError("this graph keeps no in-rows; create it with in_edges=True")
        return self.in_

    @property
    def n_vertices(self) -> int:
        return self.out.n_vertices

    @property
    def remote(self) -> RemoteRows | None:
        """The rows that live on the host, for kernels to read there; None: every row that has edges is here."""
        if self._is_ready:
            return self._ready_remote
        remote = self._remote
        return remote if remote is not None and remote.n_rows and remote.n_edges else None

    @property
    def reads_remote(self) -> bool:
        """Whether rows may be remote, now or later: ``read_remote``."""
        return self._remote is not None

    @property
    def n_arcs(self) -> int:
        """Of all out-rows, here and on the host."""
        remote = self.remote
        return self.out.n_edges + (0 if remote is None else remote.out.n_edges)

    def read_remote(self, host: Side[PackedMemoryArray] | None) -> None:
        """Let programs read in these arrays, where they lie, the rows that ``set_remote`` says of; None: no more.

        Whenever a program runs, the arrays must hold those rows and no others, and none of them must be here.

        Raises:
            MemoryError: the device has not enough.
            RuntimeError: it fails (as CuPy says it).
        """
        if self._remote is not None:
            self._remote.close()
            self._remote = None
        self.rows_moved(None)
        if host is not None:
            if self._picking is None:
                with self.stream:  # both take no room yet, and compile now what batches need later
                    self._picking, self._joined = Picking(self.stream), self._joining_columns()
            self._remote = RemoteRows(host.out, host.in_, self.stream)
            self._remote.on_other_rows = self._be_unready
            self._remote.ensure_vertices(self.n_vertices)

    def set_remote(self, vertices: Vertices, is_remote: bool) -> None:
        """The rows of these vertices, each named once, live on the host from now on, or here. New ones live here.

        Raises:
            IndexError: a vertex does not exist; nothing was changed.
            RuntimeError: the device, as CuPy says it.
        """
        assert self._remote is not None, "read_remote comes first"
        self._be_unready()
        self._remote.mark(vertices, remote=is_remote)

    @property
    def uploaded_bytes(self) -> int:
        """Of batches, and of rows that moved here, since the beginning; not of loads, nor of others' reports."""
        return self._staging.uploaded_bytes + sum(array.uploaded_bytes for array in self.arrays)

    def classify(self, classes: npt.NDArray[np.uint8]) -> None:
        """Have what programs read while rows are remote counted by these classes (uint8[n], below 64).

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        if self._remote is not None:
            self._remote.classify(classes)

    def ensure_vertices(self, n_vertices: int) -> None:
        if self._remote is not None:
            self._be_unready()  # first: rows of one array may have moved where there is no memory for the other's
        super().ensure_vertices(n_vertices)
        if self._remote is not None:
            self._remote.ensure_vertices(n_vertices)

    def states(self) -> States:
        """Where the structures are that kernels read out-rows and in-rows by; to be asked before each launch.

        Raises:
            LookupError: no in-rows are kept.
            RuntimeError: kernels cannot read what is remote (``RemoteRows.write``).
        """
        if self._ready_states is not None:
            return self._ready_states
        if self._own_states is None:
            self._own_states = States(self.out.state_address, self.in_rows.state_address, reads_remote=False)
        remote = self.remote
        if remote is None:
            return self._own_states
        out, in_ = self._joint
        self.out.write_state(out)
        self.in_rows.write_state(in_)
        remote.write(out, in_)
        return self._joint_states

    def load(self, edges: EdgeList) -> None:
        """Replace everything by these out-arcs (ascending; of an undirected graph both directions)."""
        with self.stream:
            cupy = import_cupy()
            keys = cupy.asarray(edges.keys, np.uint64)
            weights = None if edges.weights is None else cupy.asarray(edges.weights, np.float32)
            self.out.load(EdgeList(keys, weights))
            if self.in_ is not None:
                self.in_.load_unsorted(keys << HALF | keys >> HALF, weights if self.in_.weighted else None)
            self.forget_report()
        self.stream.synchronize()

    def columns(self, n: int, *, weighted: bool) -> EdgeBatch:
        """Columns to be filled for ``prepare``, in pinned memory, so that it need not copy them.

        Good until the next call, or a ``prepare`` of others.

        Raises:
            MemoryError: there is not enough.
        """
        return self._staging.columns(n, weighted=weighted)

    def prepare(self, batch: EdgeBatch) -> DeviceSidePlan:
        """Bring a batch of updates of edges (NumPy columns, one direction each) to the device, and take memory.

        A plan that is not launched is simply dropped.

        Raises:
            MemoryError: there is not enough.
            RuntimeError: the device failed (as CuPy says it).
        """
        if batch.keys.size == 0:
            return DeviceSidePlan(self.out.prepare(batch), None)
        if self._both is not None and isinstance(batch.keys, np.ndarray) and self._both.takes(batch):
            return _TOGETHER
        out = self._staging.bring(batch, weighted=self.out.weighted)
        if not self.directed:
            return DeviceSidePlan(self.out.prepare_brought(self._turning.both(out)), None)
        if self.in_ is None:
            return DeviceSidePlan(self.out.prepare_brought(out), None)
        in_ = self.in_.prepare_brought(out.turned())
        return DeviceSidePlan(self.out.prepare_brought(out), in_)

    def launch(self, plan: DeviceSidePlan) -> None:
        """Begin to write what ``prepare`` planned: takes no memory, waits for nothing. ``finish`` comes next."""
        if self._both is not None and plan is _TOGETHER:
            return self._launch_both(self._both)
        self.out.launch(plan.out)
        if self.in_ is not None and plan.in_ is not None:
            self.in_.launch(plan.in_)

    def _launch_both(self, both: BothArrays) -> None:
        has_all = self._has_all
        both.say_ready(has_all)
        follower = self._who_follows()
        # In one call, if any, and before all else: whatever Python touches here is in no cache.
        if follower is None or not follower.begin_behind(self._n_told + 1):
            both.launch()
        self._take_report(both.report(), has_all)  # while the kernel works

    def follow(self, follower: Follower) -> None:
        """Have a program's next run launched behind the next batch, if it is the first to ask since the last."""
        if not self._is_followed:
            self._is_followed, self._follower = True, ref(follower)

    def _who_follows(self) -> Follower | None:
        return None if self._follower is None else self._follower()

    def finish(self, plan: DeviceSidePlan) -> None:
        """Wait for the end of what ``launch`` began, and apply what its kernels gave up; fills ``report``."""
        if self._both is not None and plan is _TOGETHER:
            return self._finish_both(self._both)
        self._tell_of(self.out.finish(plan.out))
        if self.in_ is not None and plan.in_ is not None:
            self.in_.end(plan.in_)
        self._staging.arrived()
        if self._joined is not None:
            self._joined.arrived()

    def _finish_both(self, both: BothArrays) -> None:
        report = self._own
        if not both.finish(report):
            columns, small = report.updates, both.is_small
            follower = self._who_follows()
            if follower is not None and not small:
                follower.forget_behind()
            self._tell_of(self._nothing)
            self._tell_of(both.out.finish(DevicePlan(columns, small=small)))
            both.in_.end(DevicePlan(columns.turned(), small=small))
        self._staging.arrived()

    def forget_report(self) -> None:
        """Nothing was changed that programs must hear of."""
        self._tell_of(self._nothing)

    def hear(self, changes: list[ChangeReport]) -> None:
        """Add to ``report`` what the last batch did to out-rows that others own; the columns stay as they are.
        To be called for every batch, where others own any."""
        self._batches += 1
        self._moved = [move for move in self._moved if move[0].batches >= self._batches - 1]
        self._whole, self._heard = None, [change for change in changes if sum(change.totals)]
        if self._heard:
            self._be_unready()

    def rows_moved(self, in_rows: Sequence[Keys] | None, *, to_host: bool = False) -> None:
        """Rows have changed sides, all of them the same way; None: or they are others, and what was read of those
        on the host before is void."""
        self._be_unready()
        if in_rows is not None:
            self._moved.append((self.version, [Moved(keys, to_host) for keys in in_rows]))
        if in_rows is None or sum(moved.keys.size for _, rows in self._moved for moved in rows) > MOVED_MAX:
            self._moved = []
        self._moves += 1

    def moved_since(self, version: RowsVersion) -> list[Moved] | None:
        """The in-rows that have moved since there was this version, before the batch that was applied last, which
        is the only one since; None: it is not, or they are not known."""
        if self._batches != version.batches + 1:
            return None
        since = [move for move in self._moved if move[0].moves >= version.moves]
        in_order = [RowsVersion(moves, version.batches) for moves in range(version.moves, self._moves)]
        return [moved for _, rows in since for moved in rows] if [at for at, _ in since] == in_order else None

    @property
    def report_number(self) -> int:
        """Another one for each report."""
        return self._n_told + bool(self._heard)

    @property
    def _has_all(self) -> bool:
        """Whether no row is remote."""
        return self._remote is None or not self._remote.n_rows

    def _tell_of(self, report: DeviceReport) -> None:
        has_all = self._has_all
        self._take_report(report, has_all)
        _BATCH.pack_into(self._batch_bytes, 0, has_all, *report.addresses, report.n, self.out.state_address)

    def _take_report(self, report: DeviceReport, has_all: bool) -> None:
        self._own, self._heard, self._whole, self._is_followed = report, [], None, False
        self._n_told += 1
        self._is_ready, self._ready_remote, self._ready_states = has_all, None, None

    def be_ready(self) -> None:
        """Have all at hand that programs are told of the last batch, and that they read rows by: what the host has
        changed is brought here, and where its rows are is written down, once for all programs.

        Raises:
            RuntimeError: as ``report`` and ``states``.
        """
        if self._is_ready:
            return
        states, report, remote = self.states(), self.report, self.remote
        _BATCH.pack_into(self._batch_bytes, 0, True, *report.addresses, report.n, states.out)
        self._is_ready, self._ready_remote, self._ready_states = True, remote, states

    def _be_unready(self) -> None:
        """What programs read rows by, or are told, is not as it was."""
        self._is_ready, self._ready_remote, self._ready_states = False, None, None
        self.batch[BATCH_IS_READY] = 0

    # -- rows that the device owns ------------------------------------------------------------------------------

    def expect(self, n_updates: int, n_others: int) -> None:
        self._be_unready()  # what the last batch was told by may go
        with self.stream:
            self._joined = self._joining_columns()
            self._joined.reserve(n_updates, n_others)

    def _joining_columns(self) -> Joined:
        return self._joined or Joined(self.stream, weighted=self.out.weighted)

    @property
    def picks(self) -> bool:
        return self.reads_remote

    def bring(self, batch: EdgeBatch) -> DeviceBatch:
        with self.stream:
            return self._staging.bring(batch, weighted=self.out.weighted)

    def pick(self, brought: DeviceBatch, n_out: int, n_in: int) -> tuple[EdgeBatch, EdgeBatch | None]:
        assert self._remote is not None and self._picking is not None, "read_remote comes first"
        bits = self._remote.bits
        use_device()  # for this thread, whose first work there it may be
        with self.stream:
            if self.in_ is None:
                return _batch(self._picking.of_out(brought, bits, n_out, mirrored=not self.directed)), None
            out, in_ = self._picking.of_both(brought, bits, n_out, n_in, in_weights=self.in_.weighted)
            return _batch(out), _batch(in_)

    def prepare_rows(self, out: EdgeBatch, in_: EdgeBatch | None) -> DeviceSidePlan:
        with self.stream:
            in_plan = None if self.in_ is None or in_ is None else self.in_.prepare(in_)
            return DeviceSidePlan(self.out.prepare(out), in_plan)

    def rows_report(self) -> Report:
        own = self._own

        def read() -> ChangeReport:
            with self.stream:
                return own.sorted()

        def count_loops(crew: Crew) -> Counts:
            with self.stream:
                return own.loops()

        return Report(own.totals, own.slots_moved, read, count_loops)

    def load_rows(self, out: EdgeList, in_: EdgeList | None) -> None:
        try:
            self.out.load(out)
            if self.in_ is not None and in_ is not None:
                self.in_.load(in_)
        except MemoryError:
            self.clear_rows()
            raise
        self.forget_report()
        self.stream.synchronize()

    def evacuate(self) -> tuple[EdgeList, EdgeList | None]:
        return self.out.copied_out(), None if self.in_ is None else self.in_.copied_out()

    def clear_rows(self) -> None:
        self._be_unready()
        for array in self.arrays:
            array.clear()

    def has_edge(self, direction: Direction, keys: Keys) -> npt.NDArray[np.bool_]:
        with self.stream:
            found: npt.NDArray[np.bool_] = import_cupy().asnumpy(self.array(direction).has_edge(keys))
            return found

    def weights_of(self, direction: Direction, keys: Keys) -> Weights:
        with self.stream:
            found: Weights = import_cupy().asnumpy(self.array(direction).weights_of(keys))
            return found

    def rows(self, direction: Direction, vertices: Vertices) -> SubCSR:
        with self.stream:
            found = self.array(direction).rows(vertices)
            asnumpy = import_cupy().asnumpy
            weights = None if found.weights is None else asnumpy(found.weights)
            return SubCSR(vertices, asnumpy(found.offsets), asnumpy(found.neighbors), weights)

    def degrees(self, direction: Direction, n_vertices: int) -> npt.NDArray[np.uint32]:
        with self.stream:
            copied: npt.NDArray[np.uint32] = self.array(direction).degrees_on_host()[:n_vertices]
            return copied

    def export_rows(self, direction: Direction) -> EdgeList:
        with self.stream:
            array = self.array(direction)
        try:
            return _on_host(array.export())
        except MemoryError:
            return array.copied_from(0, array.n_edges)

    def export_from(self, first_key: int, keys: Keys, weights: Weights) -> int:
        edges = self.out.copied_from(first_key, keys.size)
        keys[: len(edges)] = edges.keys
        if edges.weights is not None:
            weights[: len(edges)] = edges.weights
        return len(edges)

    def fit(self) -> None:
        """Give back what rows do not need that have left; see ``DevicePackedArray.fit``.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        self._be_unready()
        for array in self.arrays:
            array.fit()
        release_blocks()

    def close(self) -> None:
        """Read nothing on the host any more; harmless to repeat."""
        self.read_remote(None)

    def memory_bytes(self) -> dict[str, int]:
        total = super().memory_bytes()
        total["scratch"] += self._staging.memory_bytes() + self._turning.memory_bytes()
        if self._joined is not None:
            total["scratch"] += self._joined.memory_bytes()
        if self._picking is not None:
            total["scratch"] += self._picking.memory_bytes()
        if self._remote is not None:
            total["rows"] += self._remote.memory_bytes()
        return total

    def check(self, out: EdgeList, in_: EdgeList | None) -> list[str]:
        """What is wrong with the arrays, in words; they must hold exactly these edges, the host's."""
        problems = [problem for array in self.arrays for problem in array.check()]
        for name, array, wanted in (("out-rows", self.out, out), ("in-rows", self.in_, in_)):
            if array is not None and wanted is not None and not _same(array, wanted):
                problems.append(f"the device's {name} are not the host's")
        return problems


def _on_host(edges: EdgeList) -> EdgeList:
    asnumpy = import_cupy().asnumpy
    return EdgeList(asnumpy(edges.keys), None if edges.weights is None else asnumpy(edges.weights))


def _batch(columns: DeviceBatch) -> EdgeBatch:
    return EdgeBatch(columns.keys, columns.ops, columns.weights)


def _same(array: DevicePackedArray, wanted: EdgeList) -> bool:
    edges = _on_host(array.export())
    same_keys = np.array_equal(edges.keys, wanted.keys)
    if not same_keys or edges.weights is None or wanted.weights is None:
        return same_keys and (edges.weights is None) == (wanted.weights is None)
    return np.array_equal(edges.weights, wanted.weights)


def warm_up(*, directed: bool, weighted: bool, in_edges: bool, in_weights: bool) -> None:
    """Compile every kernel that such a side uses, or load it from CuPy's cache, and see that they work.

    Raises:
        ImportError: CuPy is not installed.
        RuntimeError: there is no device, or it fails, or what it holds is not what was applied.
        MemoryError: it has not enough memory.
    """
    side = DeviceSide(directed=directed, weighted=weighted, in_edges=in_edges, in_weights=in_weights)
    side.ensure_vertices(_TRIED)
    ids = np.arange(128, dtype=np.uint64)
    square = (ids[:, None] << HALF | ids).ravel()
    row = np.uint64(5) << HALF | np.arange(1000, _TRIED, dtype=np.uint64)
    side.load(EdgeList(square, np.ones(square.size, np.float32) if weighted else None))
    # In place by one kernel; more into one leaf than kernels can sort; enough to merge all into another array.
    for keys, op in ((square[:9], 1), (row, 1), (row, 0), (square[9:], 0), (square, 1)):
        weights = np.ones(keys.size, np.float32)
        plan = side.prepare(EdgeBatch(keys, np.full(keys.size, op, np.uint8), weights if weighted else None))
        side.launch(plan)
        side.finish(plan)
    ones = np.ones(square.size, np.float32)
    wanted = [EdgeList(square, ones if array.weighted else None) for array in side.arrays]
    if problems := side.check(wanted[0], wanted[-1]):
        raise RuntimeError(f"what the device holds is not what it was given: {'; '.join(problems)}")
