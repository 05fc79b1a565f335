"""The kernels of an update in their order (``update.cu``), and the arrays that they work in."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..layout import Layout
from .constants import (
    BLOCK_THREADS,
    BUCKET,
    FLAGS,
    LOCATE_THREADS,
    MERGE_BLOCKS,
    MERGE_THREADS,
    SLOTS_MOVED,
    SLOTS_MOVED_HIGH,
    STATUS_WORDS,
    TOTALS,
    UPDATES_MAX,
    shared_bytes,
)
from .launching import Launcher
from .module import import_cupy, load, load_cooperative
from .staging import DeviceBatch
from .state import RowIndex, Slots, Work, address, allocate, new_work, point_at, zeros
from .structures import BATCH, COUNTERS, STATE
from .waiting import Told

Said = tuple[npt.NDArray[np.void], npt.NDArray[np.void]]
"""STATE and BATCH, of one element each: what kernels are passed."""

# struct Batch, packed: a third of what it costs to assign a tuple to a structured array.
BATCH_FIELDS = struct.Struct("=" + "".join({8: "Q", 4: "I"}[BATCH[name].itemsize] for name in BATCH.names or ()))
# ``UpdateKernels.begin`` packs them in this order.
assert BATCH.names == ("keys", "ops", "weights", "n", "sequence", "heavy_merged", "is_turned")
# Where they stand there, among words of 32 bits.
_N, _SEQUENCE = 6, 7
# Updates of up to so many are applied by one kernel.
SMALL_MAX = 32768
# Kernels whose blocks wait for each other have one block on a multiprocessor. As many as fit, at most BLOCKS, have
# the one for small batches above WARP_EACH_MAX updates and the one that redistributes above QUIET_MAX; a warp for
# each update, but no fewer than BLOCKS_LEAST, the one for still smaller batches: fewer wait for each other sooner.
WARP_EACH_MAX = 2048
BLOCKS_LEAST = 64
QUIET_MAX = 200_000
BLOCKS = 2
# A batch of more updates than this share of the leaves gives each leaf its records in the leaves' order.
BY_LEAF_SHARE = 0.25
# Work arrays grow by this factor; those for more updates than ROOM_MAX are given back after the batch.
ROOM = 1.5
ROOM_MAX = 1 << 23


class KernelsForBoth(NamedTuple):
    """The driver's handles of the kernels that change both arrays of a graph."""

    small: int
    locate: int
    by_update: int
    by_leaf: int
    place: int
    merge: int
    rebalance: int


class UpdateKernels:
    """Applies batches to the array that ``state`` points at; everything runs on ``stream``."""

    def __init__(self, stream: Any, *, weighted: bool, said: Said | None = None) -> None:
        cupy = import_cupy()
        self.weighted = weighted
        self.stream = stream
        self.state, self.batch = said or (np.zeros(1, STATE), np.zeros(1, BATCH))
        self.state_address: int = self.state.ctypes.data
        self._batch_bytes = memoryview(self.batch.view(np.uint8))
        self._launcher = Launcher(stream, (self.state, self.batch))
        attributes = cupy.cuda.Device().attributes
        self.n_blocks = int(attributes["MultiProcessorCount"])
        self.shared_bytes = shared_bytes(weighted=weighted)
        self._work: Work | None = None
        self.room = 0
        """For so many updates."""
        self._counters = zeros(COUNTERS.itemsize, np.uint8)
        self._partials = allocate(2 * self.n_blocks * BLOCKS, np.uint64)
        self._status = Told(STATUS_WORDS, stream)
        self._said = memoryview(self.batch.view(np.uint32))
        self._n_leaves = 0
        state = self.state
        state["counters"], state["status"] = address(self._counters), self._status.address
        state["partials"] = address(self._partials)
        together = load_cooperative("update.cu", weighted=weighted)
        alone = load("update.cu", weighted=weighted)
        self._functions = [
            together.get_function(name)
            for name in ("update_small", "rebalance", "abandon", "update_both", "rebalance_both")
        ]
        for kernel in self._functions:
            kernel.max_dynamic_shared_size_bytes = self.shared_bytes
        self._functions += [
            alone.get_function(name)
            for name in (
                *("locate_updates", "allocate_by_update", "allocate_by_leaf", "place_updates", "merge_leaves"),
                *("locate_both", "allocate_by_update_both", "allocate_by_leaf_both", "place_both", "merge_both"),
            )
        ]
        # The driver's handles; the kernels above keep them alive.
        self._small, self._rebalance, self._abandon, small_both, rebalance_both, *handles = (
            kernel.kernel.ptr for kernel in self._functions
        )
        self.both = KernelsForBoth._make((small_both, *handles[5:], rebalance_both))
        # Registers differ from compiler to compiler.
        fit = min(
            cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(handle, BLOCK_THREADS, self.shared_bytes)
            for handle in (self._small, self._rebalance, small_both, rebalance_both)
        )
        self.n_blocks_max = self.n_blocks * min(BLOCKS, fit)
        self._locate, self._by_update, self._by_leaf, self._place, self._merge = handles[:5]

    @property
    def work(self) -> Work:
        assert self._work is not None
        return self._work

    def point_at_array(
        self, slots: Slots, rows: RowIndex, n_vertices: int, layout: Layout, leaf_least: int
    ) -> None:
        """From here on batches go to this array."""
        point_at(self.state, slots)
        self.state["rows"], self.state["n_vertices"] = address(rows.pairs), n_vertices
        self._n_leaves = layout.n_leaves
        self.state["n_leaves"], self.state["height"] = layout.n_leaves, layout.height
        self.state["leaf_least"] = leaf_least

    def begin(self, columns: DeviceBatch) -> None:
        """Take room for a batch, and make it the one that kernels see.

        Raises:
            MemoryError: there is not enough.
        """
        n = columns.n
        if n > self.room:
            self._reserve(max(n, min(int(self.room * ROOM), UPDATES_MAX)))
        fields = *columns.addresses, n, self.next_sequence(), 0, columns.is_turned
        BATCH_FIELDS.pack_into(self._batch_bytes, 0, *fields)

    def end(self) -> None:
        """Give large work arrays back."""
        if self.room > ROOM_MAX:
            self.give_back()

    def give_back(self) -> None:
        """Have no work arrays until the next batch."""
        self._work, self.room = None, 0

    def begin_small(self) -> None:
        """Begin to apply the batch, of at most SMALL_MAX updates; ``wait`` has the flags.

        HEAVY: nothing was done.
        """
        blocks = min(max(_ceil(self._n, BLOCK_THREADS // 32), BLOCKS_LEAST), self.n_blocks)
        if self._n > WARP_EACH_MAX:
            blocks = self.n_blocks_max
        self._launcher.start_cooperative(self._small, blocks, BLOCK_THREADS, self.shared_bytes)

    def begin_large(self) -> None:
        """Begin to apply the batch; ``wait`` has the flags.

        HEAVY: nothing was written but work arrays; ``SortedUpdates.merge_heavy`` and ``finish`` apply the batch,
        ``abandon`` forgets it.
        """
        self.next_sequence()  # ``small`` may have told of it already
        n, n_leaves, start = self._n, self._n_leaves, self._launcher.start
        self._launcher.hold()
        start(self._locate, _ceil(n, LOCATE_THREADS), LOCATE_THREADS)
        if n > BY_LEAF_SHARE * n_leaves:
            start(self._by_leaf, min(_ceil(n_leaves, BLOCK_THREADS), 4 * self.n_blocks), BLOCK_THREADS)
        else:
            start(self._by_update, min(_ceil(n, BLOCK_THREADS), 4 * self.n_blocks), BLOCK_THREADS)
        start(self._place, _ceil(n, LOCATE_THREADS), LOCATE_THREADS)
        self._merge_and_rebalance()
        self._launcher.begin()

    def finish(self) -> int:
        """Apply what is left of a batch whose heavy leaves have been merged; returns the flags."""
        self.batch["heavy_merged"] = 1
        self.next_sequence()
        self._merge_and_rebalance()
        return self.wait()

    def abandon(self) -> None:
        """Forget a batch of which nothing was written but work arrays. Takes no memory."""
        self.next_sequence()
        self._launcher.start_cooperative(self._abandon, self.n_blocks, BLOCK_THREADS, 0)
        self.wait()

    def wait(self) -> int:
        """Wait for the end of what was begun last; returns the flags.

        Raises:
            RuntimeError: a kernel failed.
        """
        self._status.wait(self._sequence)
        return self.told(FLAGS)

    def told(self, word: int) -> int:
        """What the device said of what was waited for last."""
        return self._status.word(word)

    def totals(self) -> tuple[int, int, int, int]:
        """Updates of the batch by outcome: INSERTED, OVERWRITTEN, DELETED, ABSENT."""
        told = self.told
        return told(TOTALS), told(TOTALS + 1), told(TOTALS + 2), told(TOTALS + 3)

    def slots_moved(self) -> int:
        """Keys that redistribution wrote for the batch."""
        return self.told(SLOTS_MOVED) | self.told(SLOTS_MOVED_HIGH) << 32

    def next_sequence(self) -> int:
        number: int = (self._said[_SEQUENCE] + 1) & 0xFFFF_FFFF
        self._said[_SEQUENCE] = number
        return number

    # Of the batch: what kernels are passed, so that whoever says it there need not say it here.
    @property
    def _n(self) -> int:
        return self._said[_N]

    @property
    def _sequence(self) -> int:
        return self._said[_SEQUENCE]

    @property
    def status_address(self) -> int:
        """Where kernels tell how they ended."""
        return self._status.address

    def memory_bytes(self) -> int:
        """Bytes of work arrays by update."""
        return sum(array.nbytes for array in self._work or () if array is not None)

    def _merge_and_rebalance(self) -> None:
        n_items_max = min(self._n, self._n_leaves)
        blocks = min(_ceil(n_items_max, MERGE_THREADS // BUCKET), self.n_blocks * MERGE_BLOCKS)
        self._launcher.start(self._merge, blocks, MERGE_THREADS)
        # Idle blocks cost some microseconds; where much is to be redistributed more of them pay.
        blocks = self.n_blocks if self._n <= QUIET_MAX else self.n_blocks_max
        self._launcher.start_cooperative(self._rebalance, blocks, BLOCK_THREADS, self.shared_bytes)

    def _reserve(self, room: int) -> None:
        if room > UPDATES_MAX:
            raise MemoryError(f"a batch has room for {UPDATES_MAX} updates, not {room}")
        self.give_back()  # first: the old ones may be what the new ones need, and without them no batch has begun
        with self.stream:  # what is set to zero is so before kernels look
            self._work = new_work(room, SMALL_MAX, weighted=self.weighted)
        self.room = room
        point_at(self.state, self._work)
        self.state["room"] = room


def _ceil(n: int, size: int) -> int:
    return -(-n // size)
