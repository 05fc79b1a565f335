"""Small batches to the out-rows and the in-rows of a graph by one kernel (``update_both`` of ``update.cu``).

Two kernels one after the other wait twice for what each of them waits for; and up to some thousand updates most of
the time until a batch is applied is the host's, with cold caches: objects of Python, and calls of the driver. Here
one compiled function transfers and launches, what is short being read by the kernel where it lies in pinned
memory, and another one waits for both arrays. What Python has to say of the batch it says in between.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..edges import HALF, LOW, EdgeBatch, Int, Keys
from ..intrinsics import array_at, load_word_acquire, uncounted
from . import waiting
from .array import DevicePackedArray
from .constants import BLOCK_THREADS, DONE, FLAGS, SLOTS_MOVED, SLOTS_MOVED_HIGH, STATUS_WORDS, TOTALS
from .driver import begin_of, failure
from .launching import (
    BLOCKS,
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
from .staging import DeviceBatch, Staging
from .state import Work, address
from .structures import BATCH, DIRECTIONS, STATE
from .update import BLOCKS_LEAST

LEFT_MAX: Final = 1024
"""Up to so many updates are read by the kernel in the host's memory: a transfer is one more call."""
# Behind what is launched, in a record: where the columns are on the host and on the device, how many updates,
# whether they have weights, where the batches are that the kernel is passed, where it tells how it ended for
# either array, and how often to look there; from _TOLD on what it told, of one array after the other.
_HOST, _DEVICE, _N, _WEIGHTED, _BATCHES, _STATUS, _STATUS_IN, _LOOKS, _TOLD = range(LAUNCH_WORDS, LAUNCH_WORDS + 9)
_BATCH_WORDS: Final = BATCH.itemsize // 8
assert BATCH.names == ("keys", "ops", "weights", "n", "sequence", "heavy_merged", "is_turned")


class BothArrays:
    """Out-rows and in-rows, which have weights both or neither, and share a stream; and one batch for both."""

    def __init__(self, stream: Any, staging: Staging, *, weighted: bool) -> None:
        """``staging``: where batches come from."""
        said = np.zeros(1, DIRECTIONS)
        self.out, self.in_ = (
            DevicePackedArray(
                weighted=weighted, stream=stream, said=(said["states"][:, side], said["batches"][:, side])
            )
            for side in range(2)
        )
        self._staging, self._weighted = staging, weighted
        self._batch: EdgeBatch | None = None
        self._work: Work | None = None
        self._outcomes = 0  # of these work arrays
        self._parameters, self._copier = Parameters((said,)), Copier(stream)
        self._record: Keys = np.zeros(_TOLD + 2 * STATUS_WORDS, np.uint64)
        fields = self._fields = memoryview(self._record)
        kernels = self.out.kernels
        _begin(self._record, self._copier.record)  # compiled, or loaded from the cache; it does nothing
        _wait(self._record)
        fields[FUNCTION], fields[STREAM] = begin_of("cuLaunchCooperativeKernel"), stream.ptr
        fields[KERNEL], fields[ROWS], fields[THREADS] = kernels.both, 2, BLOCK_THREADS
        fields[SHARED], fields[PARAMETERS] = kernels.shared_bytes, self._parameters.address
        fields[_WEIGHTED], fields[_BATCHES] = weighted, said.ctypes.data + 2 * STATE.itemsize
        fields[_STATUS], fields[_STATUS_IN] = (array.kernels.status_address for array in (self.out, self.in_))
        self._blocks_max = kernels.n_blocks_max // 2

    def takes(self, batch: EdgeBatch) -> bool:
        """Whether a batch of NumPy columns, one update at least, is for the one kernel: ``launch`` comes next.

        Raises:
            MemoryError: there is not enough.
        """
        n = batch.keys.size
        if (batch.weights is not None) != self._weighted or not self._blocks_max:
            return False
        if not (self.out.takes_small(n) and self.in_.takes_small(n)):
            return False
        staging, fields = self._staging, self._fields
        staging.fill(batch)
        self._batch = batch
        fields[_HOST], fields[_DEVICE] = staging.addresses
        fields[_N], fields[BLOCKS] = n, min(max(-(-n // (BLOCK_THREADS // 32)), BLOCKS_LEAST), self._blocks_max)
        return True

    def launch(self) -> None:
        """Begin to apply the batch to both arrays; waits for nothing.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        self._fields[_LOOKS] = waiting.LOOKS_MAX
        if status := _begin(self._record, self._copier.record):
            raise failure(status)

    def addresses(self) -> tuple[int, int, int, int]:
        """Of the batch on the device, as out-rows have it: keys, weights (0: there are none), outcomes; and how
        many updates."""
        fields, work = self._fields, self.out.kernels.work
        if work is not self._work:
            self._work, self._outcomes = work, address(work.outcome)
        n, at = fields[_N], fields[_DEVICE]
        return at, at + 8 * n if self._weighted else 0, self._outcomes, n

    def columns(self) -> DeviceBatch:
        """The batch on the device, as out-rows have it."""
        assert self._batch is not None
        return self._staging.placed(self._batch, weighted=self._weighted)

    def wait(self) -> bool:
        """Wait until both arrays are done; False: one is not, and each is to be waited for by itself."""
        return bool(_wait(self._record))

    def settle(self) -> tuple[tuple[int, int, int, int], int]:
        """Have both arrays know what was done, when they are; of the out-rows the totals, and the slots moved."""
        told = self._fields[_TOLD:].tolist()
        for array, first in ((self.out, TOTALS), (self.in_, STATUS_WORDS + TOTALS)):
            array.settle(told[first], told[first + 2])
        inserted, overwritten, deleted, absent = told[TOTALS : TOTALS + 4]
        return (inserted, overwritten, deleted, absent), told[SLOTS_MOVED] | told[SLOTS_MOVED_HIGH] << 32


@uncounted
def _begin(record: Keys, copy: Keys) -> Int:
    """Say of the batch what the kernel is passed, transfer it unless it is short, launch; the driver's status."""
    n = record[_N]
    if n == 0:
        return np.int64(0)
    host, device, weighted = record[_HOST], record[_DEVICE], record[_WEIGHTED] != 0
    at_weights, at_ops = np.uint64(8) * n, np.uint64(12 if weighted else 8) * n
    said = array_at(record[_BATCHES], 2 * _BATCH_WORDS + 3, np.uint64)
    for side in range(2):
        place = side * _BATCH_WORDS
        said[place], said[place + 1] = device, device + at_ops
        said[place + 2] = device + at_weights if weighted else np.uint64(0)
        sequence = ((said[place + 3] >> HALF) + np.uint64(1)) & LOW
        said[place + 3], said[place + 4] = n | sequence << HALF, np.uint64(side) << HALF
    waits, place = n <= np.uint64(LEFT_MAX), 2 * _BATCH_WORDS
    said[place] = host if waits else np.uint64(0)
    said[place + 1] = host + at_ops if waits else np.uint64(0)
    said[place + 2] = host + at_weights if waits and weighted else np.uint64(0)
    if not waits:
        status = copy_recorded(copy, device, host, at_ops + n)
        if status:
            return np.int64(status)
    return np.int64(launch_recorded(record, np.int64(0)))


@uncounted
def _wait(record: Keys) -> Int:
    """1: both arrays are done, and what they told is in the record; 0: one is not, or not after so many looks."""
    if record[_N] == 0:
        return np.int64(0)
    said = array_at(record[_BATCHES], 2 * _BATCH_WORDS, np.uint64)
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
                return np.int64(0)
        if record[_TOLD + side * STATUS_WORDS + FLAGS] != np.uint64(DONE):
            return np.int64(0)
    return np.int64(1)
