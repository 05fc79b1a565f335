"""What PageRank's passes keep of rows on the host, packed: the memory for it, and what has become of it since.

See ``passes.cuh``: it outlives runs, and follows batches by lists of edits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...gpma.device.pool import Spare, free_bytes
from ...gpma.device.state import DeviceArray, address, allocate, pinned, pinned_by_itself, zeros
from ...gpma.layout import LEAF_SHIFT
from ...gpma.memory import Memory
from ...gpma.row_reads import LINE_BYTES
from ...partition.device_side import DeviceSide, RowsVersion
from .kernels import Calls, Kernel

# Leaves that a warp of a pass adds up in one go, a range; packed, those of the host have a word of 32 bits for
# each slot at most.
RANGE = 8
_RANGE_WORDS = RANGE << LEAF_SHIFT
COUNTERS: Final = ("unpacked", "edits", "cached")
"""Fields of struct WalkCounters."""
# By what is amended; see enum Moved.
_BATCH, _CAME, _LEFT = range(3)
# What is packed gets so much more room than it needs.
_ROOM_PACKED = 1.1
# Beside what is packed there is room for one edit to so many words: with that many a pass reads an eighth more,
# which in fifteen passes comes to what packing anew costs.
_WORDS_AN_EDIT = 16
ASKED_EVERY_S = 0.5
"""What is packed gives its memory back where there is not as much again. That, and whether there is memory to pack
anything, and to keep it on the device, too, is asked so often: it takes a millisecond on some machines, as long as
a pass."""
CACHE_SHARE = 0.75
"""So much of the device's memory that is free goes to packed rows at first, until somebody needs it."""
# So much of that each time that somebody needed it, until it was there so often in a row.
_SHARE_AGAIN, _QUIET = 0.8, 60


class Packed:
    """What passes keep of remote in-rows, from run to run (``passes.cu``): there is room for so many ranges.

    ``words`` uint32[256 * ranges] and ``edits`` uint64[16 * ranges], in pinned memory; ``ranges`` uint64[ranges],
    on the device. ``is_of``: of which rows, with ``n_edits`` edits at most; None: of none. Only the device knows
    which edges of a batch are listed. ``cache`` uint64: words of some ranges again, on the device, where it has
    memory to spare, and ``places`` uint32[ranges], where they begin there.
    """

    def __init__(self, n_ranges: int) -> None:
        """Of no rows yet.

        Raises:
            MemoryError: there is not enough.
        """
        # First, since a full device is found out sooner than memory is pinned.
        self.ranges: DeviceArray = allocate(n_ranges, np.uint64)
        self.places: DeviceArray = zeros(n_ranges, np.uint32)
        self.words: npt.NDArray[np.uint32] = pinned_by_itself(_RANGE_WORDS * n_ranges, np.uint32)
        self.edits: npt.NDArray[np.uint64] = pinned_by_itself(self.words.size // _WORDS_AN_EDIT, np.uint64)
        self.is_of: RowsVersion | None = None
        self.n_edits = 0
        self.brought: list[npt.NDArray[np.uint64]] = []
        """Keys in pinned memory that kernels may not have read yet."""
        self.cache = Spare()
        self._asked_at = -math.inf
        # Of what is free, for the cache; whether it had any when this was last asked, and how often in a row.
        self._share, self._had_cache, self._quiet = CACHE_SHARE, False, 0

    @property
    def nbytes(self) -> int:
        """Of the host's memory."""
        return self.words.nbytes + self.edits.nbytes

    def wants_another_cache(self, n_ranges: int) -> int | None:
        """How many bytes the cache of so many ranges should have; None: it has half as many at least, or that was
        asked a moment ago. To take memory may cost what many passes do, as CuPy's pool gives back what others use
        again: so where somebody took it away, there is less of it the next time, until it was left for a while."""
        now = time.monotonic()
        if now - self._asked_at <= ASKED_EVERY_S:
            return None
        self._asked_at = now
        had = self.cache.nbytes
        self._quiet = self._quiet + 1 if had else 0
        if self._had_cache and not had:
            self._share *= _SHARE_AGAIN
        elif self._quiet > _QUIET:
            self._share = CACHE_SHARE
        wanted = min(4 * _RANGE_WORDS * n_ranges, int(self._share * (free_bytes() + had)))
        takes = wanted > 2 * had
        self._had_cache = takes or had > 0
        return wanted if takes else None

    @staticmethod
    def bytes_of(n_ranges: int) -> int:
        n_words = _RANGE_WORDS * n_ranges
        return 4 * n_words + 8 * (n_words // _WORDS_AN_EDIT)


class PackedRows:
    """What is kept of the rows of one program's passes, and the part of its job that says where."""

    def __init__(self, calls: Calls, amend: Kernel, counters: Mapping[str, DeviceArray], stream: Any) -> None:
        """``amend``: the kernel of that name. ``counters``: the bytes of COUNTERS, each."""
        self._calls, self._amending, self._counters, self._stream = calls, amend, counters, stream
        self.packed: Packed | None = None
        """None: nothing is kept."""
        # When there was memory for it, and when there was none.
        self._allowed_at = self._refused_at = -math.inf

    @property
    def memory_bytes(self) -> int:
        """Of the host, pinned."""
        return 0 if self.packed is None else self.packed.nbytes

    def forget(self) -> None:
        """Have everything packed anew."""
        if self.packed is not None:
            self.packed.is_of = None

    # -- passes -----------------------------------------------------------------------------------------------

    def make_room(self, device: DeviceSide) -> bool:
        """For packed in-rows, where there is memory for them twice: the host's rows want to grow, and for speed
        alone no rows are to leave the device. Otherwise passes do without.

        Whether what is kept is what these rows are.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        remote, packed = device.remote, self.packed
        n_ranges = 0 if remote is None else -(-remote.n_leaves_in // RANGE)
        is_kept = packed is not None and packed.is_of == device.version
        is_in_the_way = (
            packed is not None
            and time.monotonic() - self._allowed_at > ASKED_EVERY_S
            and not self._allows(packed.nbytes)
        )
        if packed is not None and (
            n_ranges == 0 or (n_ranges > packed.ranges.size and not is_kept) or is_in_the_way
        ):
            self._stream.synchronize()  # what was launched may write there
            self.packed = packed = None  # gives its memory back
            is_kept = False
        if packed is None and n_ranges and time.monotonic() - self._refused_at > ASKED_EVERY_S:
            room = int(_ROOM_PACKED * n_ranges) + 1
            if self._allows(2 * Packed.bytes_of(room)):
                try:
                    with self._stream:
                        self.packed = packed = Packed(room)
                except MemoryError:
                    self._refused_at = time.monotonic()
        if packed is not None:
            self._make_cache(packed, n_ranges)
        if is_kept:
            return True
        job = self._calls.job
        job["packed"] = job["packed_ranges"] = job["edits"] = job["n_packed"] = job["edits_room"] = 0
        if packed is not None:
            packed.n_edits = 0
            job["packed"], job["packed_ranges"] = packed.words.ctypes.data, address(packed.ranges)
            job["cache_places"] = address(packed.places)
            job["edits"], job["edits_room"] = packed.edits.ctypes.data, packed.edits.size
            job["n_packed"] = n_ranges
            job["packed_bits"] = max(1, (device.n_vertices - 1).bit_length())
        return False

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Passes are launched within it; nothing is known of what is kept until they have ``passed``."""
        packed = self.packed
        if packed is None:
            yield
            return
        packed.is_of = None
        with packed.cache.lock:
            self._use(packed.cache)
            yield

    def passed(self, device: DeviceSide, *, is_kept: bool) -> None:
        """Passes have ended that began with what is kept, or packed everything anew.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        packed = self.packed
        if packed is not None:
            packed.brought.clear()
            packed.is_of = device.version if is_kept or self._all_packed() else None

    def _make_cache(self, packed: Packed, n_ranges: int) -> None:
        """For what passes read of packed rows, as large as the device has memory for by now. They fill it."""
        n_bytes = packed.wants_another_cache(n_ranges)
        if n_bytes is None:
            return
        with self._stream:
            if packed.cache.take(n_bytes // 8, np.uint64):
                packed.places.fill(0)
                self._counters["cached"].fill(0)

    def _use(self, cache: Spare) -> None:
        """Until it goes."""
        job = self._calls.job
        job["cache"], job["cache_lines"] = address(cache.array), cache.nbytes // LINE_BYTES

    def _allows(self, n_bytes: int) -> bool:
        """Whether the machine has memory for so much more."""
        is_there = Memory().allows(n_bytes)
        if is_there:
            self._allowed_at = time.monotonic()
        else:
            self._refused_at = time.monotonic()
        return is_there

    # -- batches ----------------------------------------------------------------------------------------------

    def amend(self, device: DeviceSide, n_changes: int) -> None:
        """As ``WalkRuns.amend``."""
        packed, version = self.packed, device.version
        if packed is None or packed.is_of is None:
            return
        before, packed.is_of = packed.is_of, None
        moved = None if device.remote is None else device.moved_since(before)
        if moved is None:
            return
        report = device.report if n_changes else None
        n_more = n_changes + sum(rows.keys.size for rows in moved)
        if packed.n_edits + n_more > packed.edits.size:
            packed.n_edits = self._n_listed()
        if packed.n_edits + n_more > packed.edits.size:
            return
        packed.n_edits += n_more
        for rows in moved:
            try:
                with self._stream:
                    brought = pinned(rows.keys.size, np.uint64)[: rows.keys.size]
            except MemoryError:
                return
            brought[:] = rows.keys
            packed.brought.append(brought)
            self._amend(device, int(brought.ctypes.data), 0, brought.size, _CAME if rows.to_host else _LEFT)
        if report is not None:
            keys, _, outcomes = report.addresses
            self._amend(device, keys, outcomes, report.n, _BATCH)
        packed.is_of = version

    def _amend(self, device: DeviceSide, keys: int, outcomes: int, n: int, moved: int) -> None:
        job = self._calls.job
        job["keys"], job["outcomes"], job["n_updates"], job["moved"] = keys, outcomes, n, moved
        self._calls.launch(self._amending, device)

    # -- counters ---------------------------------------------------------------------------------------------

    def _all_packed(self) -> bool:
        """Whether the passes that were run last have packed every range."""
        return not self._counted("unpacked").any()

    def _n_listed(self) -> int:
        """How many edits are listed, once what was launched is done."""
        return int(self._counted("edits").sum())

    def _counted(self, name: str) -> npt.NDArray[np.uint32]:
        """A field of the counters, fetched."""
        fetched: npt.NDArray[np.uint8] = self._counters[name].get(stream=self._stream)
        return fetched.view(np.uint32)
