"""A report of the device's, and behind it what became of updates of rows that others own (``report.cu``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..edges import ABSENT, DELETED, INSERTED, OVERWRITTEN, ChangeReport, Keys, Weights
from .constants import RUN_THREADS
from .launching import Launcher
from .module import load
from .report import DeviceReport
from .staging import DeviceBatch, DeviceColumns
from .state import DeviceArray, address, allocate, pinned
from .structures import JOIN

# Columns grow by this factor.
ROOM = 1.5
# What others report is brought in pieces of so many updates at most: some 4 MiB of pinned memory.
PIECE = 1 << 18
# Bytes of an update that others report: key, two weights, outcome.
_PIECE_BYTES = 8 + 4 + 4 + 1

# Updates of one outcome: their keys, new weights and old ones; None: 0, or there are no weights.
Segment = tuple[int, Keys, Weights | None, Weights | None]
_NO_COLUMNS = (0,) * 5


class Joined:
    """Columns on the device for such reports; everything runs on ``stream``."""

    def __init__(self, stream: Any, *, weighted: bool) -> None:
        self._weighted = weighted
        self._stream = stream
        self._function = load("report.cu", weighted=True).get_function("join_report")
        self._join = self._function.kernel.ptr  # the driver's handle, which the kernel keeps alive
        self._structure = np.zeros(1, JOIN)
        self._launcher = Launcher(stream, (self._structure,))
        self._room = 0
        self._columns: tuple[DeviceArray, ...] = ()
        # Where these are, and the bytes of an entry of each.
        self._at: tuple[tuple[int, int], ...] = ()
        self._piece_room = 0
        self._piece = _Piece(np.empty(0, np.uint8))
        self._under_way = False

    def reserve(self, n: int, n_others: int) -> None:
        """Have room for so many updates in all, so many of which others report.

        Raises:
            MemoryError: there is not enough; what there was is as before.
        """
        if n_others == 0:
            return
        if n > self._room:
            room = max(n, int(self._room * ROOM))
            types = (np.uint64, np.uint8, np.uint8, *((np.float32, np.float32) if self._weighted else ()))
            self._columns = tuple(allocate(room, dtype) for dtype in types)
            self._at = tuple((address(column), column.dtype.itemsize) for column in self._columns)
            self._room = room
        if (n_piece := min(n_others, PIECE)) > self._piece_room:
            room = min(max(n_piece, int(self._piece_room * ROOM)), PIECE)
            self._wait()  # the old memory may still be read
            self._piece, self._piece_room = _Piece(pinned(room * _PIECE_BYTES, np.uint8)), room

    def of(self, own: DeviceReport, changes: Sequence[ChangeReport]) -> DeviceReport:
        """A report, and behind it what others report, as far as there is room. Takes no memory on the device.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        totals = [own.totals, *(change.totals for change in changes)]
        inserted, overwritten, deleted, absent = (sum(counts) for counts in zip(*totals, strict=True))
        n_own = len(own)
        n = n_own + sum(sum(counts) for counts in totals[1:])
        at, own_columns = 0, _NO_COLUMNS
        if n_own:
            keys, ops, weights = own.updates.addresses
            own_columns = (keys, ops, address(own.all_outcomes), weights, address(own.all_old_weights))
        segments = (segment for change in changes for segment in _segments(change))
        for n_piece in self._pieces(segments):  # there is one, as a rule
            self._launch(at, own_columns, n_own, n_piece)
            self._under_way = True
            at, own_columns, n_own = at + n_own + n_piece, _NO_COLUMNS, 0
        if n_own:
            self._launch(0, own_columns, n_own, 0)
        columns = self._columns

        def updates() -> DeviceColumns:
            keys, ops, _, *weights = (column[:n] for column in columns)
            return keys, ops, weights[0] if weights else None

        at_keys, at_ops, _, *at_weights = (place for place, _ in self._at)
        return DeviceReport(
            DeviceBatch(n, (at_keys, at_ops, at_weights[0] if at_weights else 0), updates),
            (inserted, overwritten, deleted, absent),
            own.slots_moved + sum(change.slots_moved for change in changes),
            columns[2],
            columns[4] if at_weights else None,
        )

    def arrived(self) -> None:
        """What came after the last report on the stream has been waited for, and so nothing reads the piece."""
        self._under_way = False

    def memory_bytes(self) -> int:
        """Bytes held on the device."""
        return sum(int(column.nbytes) for column in self._columns)

    def _pieces(self, segments: Iterable[Segment]) -> Iterable[int]:
        """Fill the piece, over and over: how many updates it has each time."""
        keys, new, old, outcome = self._piece.columns
        room, filled = self._piece_room, 0
        self._wait()
        for kind, kind_keys, kind_new, kind_old in segments:
            begin = 0
            while begin < kind_keys.size:
                n = min(kind_keys.size - begin, room - filled)
                to, part = slice(filled, filled + n), slice(begin, begin + n)
                keys[to], outcome[to] = kind_keys[part], kind
                if self._weighted:
                    new[to] = 0 if kind_new is None else kind_new[part]
                    old[to] = 0 if kind_old is None else kind_old[part]
                begin, filled = begin + n, filled + n
                if filled == room:
                    yield filled
                    self._wait()
                    filled = 0
        if filled:
            yield filled

    def _wait(self) -> None:
        """Nothing reads the piece any more."""
        if self._under_way:
            self._stream.synchronize()
            self._under_way = False

    def _launch(self, begin: int, own: tuple[int, ...], n_own: int, n_piece: int) -> None:
        """Copy ``n_own`` updates from columns at these addresses (keys, ops, outcomes, weights, old ones), and
        ``n_piece`` of the piece behind them, to the columns of the report, from ``begin`` on."""
        to = [at + begin * size for at, size in self._at]
        n = n_own + n_piece
        self._structure[0] = (*to, *([] if self._weighted else [0, 0]), *own, *self._piece.addresses, n_own, n)
        self._launcher.start(self._join, -(-n // RUN_THREADS), RUN_THREADS)


class _Piece:
    """Pinned memory as columns: keys, new and old weights, outcomes; and where kernels find the keys, the
    outcomes, and the new and old weights."""

    def __init__(self, piece: npt.NDArray[np.uint8]) -> None:
        room = piece.size // _PIECE_BYTES
        self.columns: tuple[Keys, Weights, Weights, npt.NDArray[np.uint8]] = (
            piece[: 8 * room].view(np.uint64),
            piece[8 * room : 12 * room].view(np.float32),
            piece[12 * room : 16 * room].view(np.float32),
            piece[16 * room : 17 * room],
        )
        keys, new, old, outcome = (int(column.ctypes.data) for column in self.columns)
        self.addresses = keys, outcome, new, old


def _segments(change: ChangeReport) -> list[Segment]:
    return [
        (INSERTED, change.inserted.keys, change.inserted.weights, None),
        (OVERWRITTEN, change.overwritten.keys, change.overwritten.weights, change.overwritten_old),
        (DELETED, change.deleted.keys, None, change.deleted.weights),
        (ABSENT, change.absent, None, None),
    ]
