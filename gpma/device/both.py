"""Batches to the out-rows and the in-rows of a graph by the same kernels (``..._both`` of ``update.cu``).

Kernels one after the other wait twice for what each of them waits for; and up to some thousand updates most of
the time until a batch is applied is the host's, with cold caches: objects of Python, and calls of the driver. Here
one compiled function transfers and launches, what is short being read by the kernel where it lies in pinned
memory, and another one waits for both arrays. What Python has to say of the batch it says in between.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..edges import HALF, LOW, EdgeBatch, Int, Keys
from ..intrinsics import array_at, load_word, load_word_acquire, uncounted, uncounted_inner
from . import waiting
from .array import DevicePackedArray
from .constants import (
    BLOCK_THREADS,
    BUCKET,
    DONE,
    FLAGS,
    LOCATE_THREADS,
    MERGE_BLOCKS,
    MERGE_THREADS,
    SLOTS_MOVED,
    SLOTS_MOVED_HIGH,
    STATUS_WORDS,
    TOTALS,
)
from .driver import begin_of, failure
from .launching import (
    BLOCKS,
    COPY_WORDS,
    FUNCTION,
    KERNEL,
    LAUNCH_WORDS,
    PARAMETERS,
    ROWS,
    SHARED,
    STREAM,
    THREADS,
    Copier,
    Parameters,
    copy_recorded,
    launch_recorded,
)
from .report import DeviceReport
from .staging import Staging
from .structures import BATCH, DIRECTIONS, STATE
from .update import BLOCKS_LEAST, BY_LEAF_SHARE, SMALL_MAX, KernelsForBoth

LEFT_MAX: Final = 1024
"""Up to so many updates are read by the kernel in the host's memory: a transfer is one more call."""
# Behind what is launched, in a record: where the columns are on the host and on the device, how many updates,
# whether they have weights, where the batches are that the kernels are passed, where they tell how they ended for
# either array, and how often to look there; where to say what the batch is, and whether that is all that programs
# are told; the record of the ``Copier``; how many edges there are before; the driver's functions, the kernels, up
# to how many updates the first of them is for, multiprocessors, how many blocks a cooperative kernel may have for
# either array, and the bytes of its shared memory; from _TOLD on what was told, of one array after the other.
_HOST, _DEVICE, _N, _WEIGHTED, _BATCHES, _STATUS, _STATUS_IN, _LOOKS, _SAYS, _IS_READY, _COPIES, _N_EDGES = range(
    LAUNCH_WORDS, LAUNCH_WORDS + 12
)
_ORDINARY, _COOPERATIVE, _KERNELS = range(_N_EDGES + 1, _N_EDGES + 4)
_N_KERNELS: Final = len(KernelsForBoth._fields)
_SMALL_MAX, _MULTIPROCESSORS, _BLOCKS_MAX, _SHARED_BYTES, _TOLD = range(
    _KERNELS + _N_KERNELS, _KERNELS + _N_KERNELS + 5
)
_SMALL, _LOCATE, _BY_UPDATE, _BY_LEAF, _PLACE, _MERGE, _REBALANCE = range(_KERNELS, _KERNELS + _N_KERNELS)
_WORDS: Final = _TOLD + 2 * STATUS_WORDS
_BATCH_WORDS: Final = BATCH.itemsize // 8
assert (SLOTS_MOVED, SLOTS_MOVED_HIGH) == (TOTALS + 4, TOTALS + 5)
assert BATCH.names == ("keys", "ops", "weights", "n", "sequence", "heavy_merged", "is_turned")
assert STATE.fields is not None
_N_LEAVES_AT: Final = STATE.fields["n_leaves"][1]
_N_VERTICES_AT: Final = STATE.fields["n_vertices"][1]
_STATES_BYTES: Final = 2 * STATE.itemsize
_OUTCOME_AT: Final = STATE.fields["outcome"][1]
_UNTOLD, _GIVEN_UP, _APPLIED = 0, 1, 2

# Places in what is said of a batch, which compiled calls of programs read: keys, weights (0: there are none) and
# outcomes on the device, how many updates, and where the structure is that kernels read out-rows by; first whether
# all of that is so.
BATCH_IS_READY, BATCH_KEYS, BATCH_WEIGHTS, BATCH_OUTCOMES, BATCH_N, BATCH_ROWS, BATCH_WORDS = range(7)


class BothArrays:
    """Out-rows and in-rows, which have weights both or neither, and share a stream; and one batch for both."""

    def __init__(self, stream: Any, staging: Staging, batch: Keys, *, weighted: bool) -> None:
        """``staging``: where batches come from. ``batch``: uint64, by ``BATCH_...``, what is said of the last one:
        at one place as long as the arrays are there."""
        said = np.zeros(1, DIRECTIONS)
        self.out, self.in_ = (
            DevicePackedArray(
                weighted=weighted, stream=stream, said=(said["states"][:, side], said["batches"][:, side])
            )
            for side in range(2)
        )
        self._staging, self._weighted = staging, weighted
        self._batch: EdgeBatch | None = None
        self._parameters, self._copier = Parameters((said,)), Copier(stream)
        self._record: Keys = np.zeros(_WORDS, np.uint64)
        self.address: int = self._record.ctypes.data
        """Where the record is that ``begin_both`` goes by."""
        fields = self._fields = memoryview(self._record)
        self._told = fields[_TOLD + TOTALS : _TOLD + SLOTS_MOVED_HIGH + 1]  # of the out-rows
        kernels = self.out.kernels
        _begin(0)  # compiled, or loaded from the cache; it does nothing
        _wait(self._record)
        fields[_ORDINARY], fields[_COOPERATIVE] = begin_of("cuLaunchKernel"), begin_of("cuLaunchCooperativeKernel")
        fields[STREAM], fields[ROWS], fields[PARAMETERS] = stream.ptr, 2, self._parameters.address
        self._record[_KERNELS : _KERNELS + _N_KERNELS] = kernels.both
        fields[_SHARED_BYTES], fields[_MULTIPROCESSORS] = kernels.shared_bytes, kernels.n_blocks
        fields[_SMALL_MAX], fields[_BLOCKS_MAX] = SMALL_MAX, kernels.n_blocks_max // 2
        self._blocks_max = kernels.n_blocks_max // 2
        fields[_WEIGHTED], fields[_BATCHES] = weighted, said.ctypes.data + _STATES_BYTES
        fields[_COPIES] = self._copier.record.ctypes.data
        fields[_SAYS], self._batch_said = batch.ctypes.data, memoryview(batch)  # held
        fields[_STATUS], fields[_STATUS_IN] = (array.kernels.status_address for array in (self.out, self.in_))

    def takes(self, batch: EdgeBatch) -> bool:
        """Whether a batch of NumPy columns, one update at least, is for both arrays at a time: ``launch`` comes
        next.

        Raises:
            MemoryError: there is not enough.
        """
        n = batch.keys.size
        if (batch.weights is not None) != self._weighted or not self._blocks_max:
            return False
        if not (self.out.takes_in_place(n) and self.in_.takes_in_place(n)):
            return False
        staging, fields = self._staging, self._fields
        staging.fill(batch)
        self._batch = batch
        fields[_HOST], fields[_DEVICE] = staging.addresses
        fields[_N], fields[_N_EDGES], fields[_LOOKS] = n, self.out.n_edges, waiting.LOOKS_MAX
        return True

    def say_ready(self, is_ready: bool) -> None:
        """Whether the next batch is all that programs are told of (``BATCH_IS_READY``)."""
        self._fields[_IS_READY] = is_ready

    def launch(self) -> None:
        """Begin to apply the batch to both arrays; waits for nothing.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        if status := _begin(self.address):
            raise failure(status)

    @property
    def small_max(self) -> int:
        """Up to so many updates are applied by one kernel."""
        return self._fields[_SMALL_MAX]

    @small_max.setter
    def small_max(self, n: int) -> None:
        self._fields[_SMALL_MAX] = n

    @property
    def is_small(self) -> bool:
        """Whether one kernel applies the batch. Where that gives it up for an array, all of its outcomes there are
        ABSENT; where several kernels do they are what was likely."""
        return self._fields[_N] <= self._fields[_SMALL_MAX]

    def report(self) -> DeviceReport:
        """Of the batch that was launched, but for its totals."""
        assert self._batch is not None
        columns, work = self._staging.placed(self._batch, weighted=self._weighted), self.out.kernels.work
        outcomes = self._batch_said[BATCH_OUTCOMES]
        return DeviceReport(columns, (0, 0, 0, 0), 0, work.outcome, work.old_weights, outcomes)

    def finish(self, report: DeviceReport) -> bool:
        """Wait until both arrays are done, and have them and the report know what was; False: one has given the
        batch up, and each is to be waited for by itself.

        Raises:
            RuntimeError: a kernel failed.
        """
        told = _wait(self._record)
        if told == _UNTOLD:  # the driver waits, and says whether a kernel failed
            self.out.kernels.wait()
            self.in_.kernels.wait()
            told = _wait(self._record)
        if told != _APPLIED:
            return False
        inserted, overwritten, deleted, absent, moved, moved_high = self._told.tolist()
        self.out.settle(inserted, deleted)
        self.in_.settle(inserted, deleted)  # the same edges
        report.totals, report.slots_moved = (inserted, overwritten, deleted, absent), moved | moved_high << 32
        return True


@uncounted
def _begin(address: Int) -> Int:
    return begin_both(np.uint64(address)) if address else np.int64(0)


@uncounted_inner
def say_batch(address: Int) -> None:
    """Say of the batch that is to be launched by this record what programs are told of it."""
    record = array_at(address, _WORDS, np.uint64)
    at, n, rows = record[_DEVICE], record[_N], record[_BATCHES] - np.uint64(_STATES_BYTES)
    said = array_at(record[_SAYS], BATCH_WORDS, np.uint64)
    said[BATCH_IS_READY], said[BATCH_KEYS] = record[_IS_READY], at
    said[BATCH_WEIGHTS] = at + np.uint64(8) * n if record[_WEIGHTED] else np.uint64(0)
    said[BATCH_OUTCOMES] = load_word(rows + np.uint64(_OUTCOME_AT))
    said[BATCH_N], said[BATCH_ROWS] = n, rows


@uncounted_inner
def fits(address: Int, n_vertices_max: Int, n_edges_max: Int) -> bool:
    """Whether so many vertices and edges are as many at least as there may be after the batch."""
    record = array_at(address, _WORDS, np.uint64)
    states = record[_BATCHES] - np.uint64(_STATES_BYTES)
    n_vertices = array_at(states + np.uint64(_N_VERTICES_AT), 1, np.uint32)[0]
    return bool(n_vertices <= n_vertices_max and record[_N_EDGES] + record[_N] <= n_edges_max)


@uncounted_inner
def begin_both(address: Int) -> Int:
    """Say what the kernels are passed, transfer the batch unless it is short, launch; the driver's status."""
    say_batch(address)
    record = array_at(address, _WORDS, np.uint64)
    n = record[_N]
    host, device, weighted = record[_HOST], record[_DEVICE], record[_WEIGHTED] != 0
    at_weights, at_ops = np.uint64(8) * n, np.uint64(12 if weighted else 8) * n
    said = array_at(record[_BATCHES], 2 * _BATCH_WORDS + 3, np.uint64)
    for side in range(2):
        place = side * _BATCH_WORDS
        said[place], said[place + 1] = device, device + at_ops
        said[place + 2] = device + at_weights if weighted else np.uint64(0)
        sequence = ((said[place + 3] >> HALF) + np.uint64(1)) & LOW
        said[place + 3], said[place + 4] = n | sequence << HALF, np.uint64(side) << HALF
    waits, place = n <= min(np.uint64(LEFT_MAX), record[_SMALL_MAX]), 2 * _BATCH_WORDS
    said[place] = host if waits else np.uint64(0)
    said[place + 1] = host + at_ops if waits else np.uint64(0)
    said[place + 2] = host + at_weights if waits and weighted else np.uint64(0)
    if not waits:
        status = copy_recorded(array_at(record[_COPIES], COPY_WORDS, np.uint64), device, host, at_ops + n)
        if status:
            return np.int64(status)
    if n > record[_SMALL_MAX]:
        return _begin_large(record, np.int64(n))
    blocks = max(_ceil(np.int64(n), np.int64(BLOCK_THREADS // 32)), np.int64(BLOCKS_LEAST))
    return _launch_together(record, np.int64(_SMALL), min(blocks, np.int64(record[_BLOCKS_MAX])))


@uncounted_inner
def _begin_large(record: Keys, n: Int) -> Int:
    multiprocessors = np.int64(record[_MULTIPROCESSORS])
    n_leaves = np.int64(
        array_at(record[_BATCHES] - np.uint64(_STATES_BYTES) + np.uint64(_N_LEAVES_AT), 1, np.uint32)[0]
    )
    by_update, for_each = np.int64(_ceil(n, np.int64(LOCATE_THREADS))), np.int64(LOCATE_THREADS)
    status = _launch_ordinary(record, np.int64(_LOCATE), by_update, for_each)
    if status:
        return status
    kernel, items = np.int64(_BY_UPDATE), n
    if n > BY_LEAF_SHARE * n_leaves:
        kernel, items = np.int64(_BY_LEAF), n_leaves
    blocks = min(_ceil(items, np.int64(BLOCK_THREADS)), 4 * multiprocessors)
    status = _launch_ordinary(record, kernel, blocks, np.int64(BLOCK_THREADS))
    if status:
        return status
    status = _launch_ordinary(record, np.int64(_PLACE), by_update, for_each)
    if status:
        return status
    blocks = _ceil(min(n, n_leaves), np.int64(MERGE_THREADS // BUCKET))
    blocks = min(blocks, multiprocessors * MERGE_BLOCKS)
    status = _launch_ordinary(record, np.int64(_MERGE), blocks, np.int64(MERGE_THREADS))
    if status:
        return status
    return _launch_together(record, np.int64(_REBALANCE), min(multiprocessors, np.int64(record[_BLOCKS_MAX])))


@uncounted_inner
def _launch_together(record: Keys, kernel: Int, blocks: Int) -> Int:
    """Launch a kernel whose blocks wait for each other, on so many of them for either array."""
    record[FUNCTION], record[SHARED] = record[_COOPERATIVE], record[_SHARED_BYTES]
    record[KERNEL], record[BLOCKS], record[THREADS] = record[kernel], blocks, BLOCK_THREADS
    return np.int64(launch_recorded(record, np.int64(0)))


@uncounted_inner
def _launch_ordinary(record: Keys, kernel: Int, blocks: Int, threads: Int) -> Int:
    record[FUNCTION], record[SHARED] = record[_ORDINARY], 0
    record[KERNEL], record[BLOCKS], record[THREADS] = record[kernel], blocks, threads
    return np.int64(launch_recorded(record, np.int64(0)))


@uncounted_inner
def _ceil(n: Int, size: Int) -> Int:
    return (n + size - 1) // size


@uncounted
def _wait(record: Keys) -> Int:
    """_APPLIED: both arrays are done, and what they told is in the record; _GIVEN_UP: one is not; _UNTOLD: not
    after so many looks."""
    if record[_N] == 0:
        return np.int64(_UNTOLD)
    said = array_at(record[_BATCHES], 2 * _BATCH_WORDS, np.uint64)
    applied = np.int64(_APPLIED)
    for side in range(2):
        number, words = said[side * _BATCH_WORDS + 3] >> HALF, record[_STATUS + side]
        place, looks = np.int64(0), np.int64(record[_LOOKS])
        while place < STATUS_WORDS:
            word = load_word_acquire(words + np.uint64(8) * np.uint64(place))
            if word >> HALF == number:
                record[_TOLD + side * STATUS_WORDS + place] = word & LOW
                place += 1
            elif looks:
                looks -= 1
            else:
                return np.int64(_UNTOLD)
        if record[_TOLD + side * STATUS_WORDS + FLAGS] != np.uint64(DONE):
            applied = np.int64(_GIVEN_UP)
    return applied
