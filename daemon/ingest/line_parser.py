"""The compiled parser of lines of integers: ``src``, ``dst``, and ``op``, ``weight``, ``ts`` in any order.

It takes what is plain and sets aside what is not (quotes, long numbers, anything wrong) for slower code, so it
never has to explain an error. A number is exact when its digits fit into 2^53 and its power of ten is at most 22
(then one rounding of a product or quotient of two exact doubles is the right one: Clinger, PLDI 1990); other
numbers are left to ``float``.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.edges import Weights
from ...gpma.index.hashing import Bytes
from ...gpma.index.ids import IntColumn
from ...gpma.intrinsics import inner
from ..records.stream import UpdateBlock
from .decode_columns import timestamps_in_full, weights_in_full

_SRC, _DST, _OP, _WEIGHT, _TS, IGNORED = range(6)
GOOD, REREAD_WEIGHT, SET_ASIDE = range(3)
"""What became of a line: parsed; parsed but for its weight, which ``float`` must read; not parsed."""

_POWERS_OF_TEN = np.array([10.0**k for k in range(23)])
_TAB, _LF, _CR, _SPACE, _QUOTE, _HASH, _PERCENT = b'\t\n\r "#%'
_PLUS, _MINUS, _POINT, _ZERO, _ONE, _NINE, _D, _E, _I = b"+-.019dei"
_LOWER = 0x20
_INSERT = int.from_bytes(b"insert", "big")
_DELETE = int.from_bytes(b"delete", "big")
_INSERT_VERTEX = int.from_bytes(b"inser", "big"), int.from_bytes(b"t_vertex", "big")
_DELETE_VERTEX = int.from_bytes(b"delet", "big"), int.from_bytes(b"e_vertex", "big")
_EXACT_MAX = 1 << 53
_DIGITS_MAX = 18
"""Integers of so many digits cannot leave 64 bits; longer ones are set aside."""


class LineFormat(NamedTuple):
    """What a line may be.

    ``roles``: int8, the index in ``COLUMNS`` of each field, or ``IGNORED``; ``delimiter``: a byte, 0 where blanks
    separate and # and % are comments; ``bytes_max``: of one line; ``timestamp_ms``: of lines that give none.
    """

    roles: npt.NDArray[np.int8]
    delimiter: int
    bytes_max: int
    timestamp_ms: int


class LineColumns(NamedTuple):
    """What the compiled parser fills, one entry a line.

    ``spans`` and ``weight_spans``: int64[n, 2], where the line and its weight begin and end; ``status``: ``GOOD``,
    ``REREAD_WEIGHT`` or ``SET_ASIDE``.
    """

    src: IntColumn
    dst: IntColumn
    ops: npt.NDArray[np.uint8]
    weights: Weights
    ts: IntColumn
    spans: npt.NDArray[np.int64]
    weight_spans: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]

    def first(self, n: int) -> LineColumns:
        """Views of the first n entries."""
        return LineColumns(*(column[:n] for column in self))  # type: ignore[arg-type]  # each keeps its own


class ParsedLines:
    """The columns of parsed lines, with room for ``n``, and whether any line had a weight or a ts."""

    def __init__(self, n: int) -> None:
        self.columns = LineColumns(
            src=np.empty(n, np.int64),
            dst=np.empty(n, np.int64),
            ops=np.empty(n, np.uint8),
            weights=np.empty(n, np.float32),
            ts=np.empty(n, np.int64),
            spans=np.empty((n, 2), np.int64),
            weight_spans=np.empty((n, 2), np.int64),
            status=np.empty(n, np.uint8),
        )
        self.has_weights = self.has_ts = False

    def fill(self, value: bytes, begin: int, format: LineFormat) -> int:
        """Parse ``value``, which ends with a line feed, from byte ``begin`` on.

        Returns the number of lines that are neither blank nor comments.
        """
        data = np.frombuffer(value, np.uint8)
        n, self.has_weights, self.has_ts = _parse_lines(data, begin, format, self.columns)
        return int(n)

    def take(self, rows: npt.NDArray[np.int64], block: UpdateBlock) -> None:
        """Put updates that were read otherwise into their places."""
        assert isinstance(block.src, np.ndarray) and isinstance(block.dst, np.ndarray)
        columns = self.columns
        columns.src[rows], columns.dst[rows], columns.ops[rows] = block.src, block.dst, block.ops
        columns.weights[rows] = weights_in_full(block)
        columns.ts[rows] = timestamps_in_full(block)
        self.has_weights |= block.weights is not None
        self.has_ts |= not isinstance(block.timestamps_ms, int)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _integer(data: Bytes, at: int) -> tuple[int, int, bool]:
    """(value, where it ends, whether it is a plain integer), from ``at`` on."""
    negative = data[at] == _MINUS
    if negative or data[at] == _PLUS:
        at += 1
    first = at
    number = 0
    while _ZERO <= data[at] <= _NINE:
        number = number * 10 + (np.int64(data[at]) - _ZERO)  # type: ignore[assignment]
        at += 1
    return -number if negative else number, at, 0 < at - first <= _DIGITS_MAX


@inner
def _real(data: Bytes, at: int) -> tuple[float, int, int]:
    """(value, where it ends, status), from ``at`` on: to be read again by ``float`` where it may be inexact."""
    negative = data[at] == _MINUS
    if negative or data[at] == _PLUS:
        at += 1
    mantissa, digits, significant, point = 0, 0, 0, -1
    while True:
        byte = np.int64(data[at])
        if _ZERO <= byte <= _NINE:
            digits += 1
            if significant > 0 or byte != _ZERO:
                significant += 1
            if significant <= _DIGITS_MAX:
                mantissa = mantissa * 10 + (byte - _ZERO)  # type: ignore[assignment]
        elif byte == _POINT and point < 0:
            point = digits
        else:
            break
        at += 1
    if digits == 0:
        return 0.0, at, SET_ASIDE
    exponent = 0 if point < 0 else point - digits
    if data[at] | _LOWER == _E:
        power, at, plain = _integer(data, at + 1)
        if not plain:
            return 0.0, at, SET_ASIDE
        exponent += power
    if significant > _DIGITS_MAX or mantissa > _EXACT_MAX or exponent > 22 or exponent < -22:
        return 0.0, at, REREAD_WEIGHT
    if exponent >= 0:
        number = np.float64(mantissa) * _POWERS_OF_TEN[exponent]
    else:
        number = np.float64(mantissa) / _POWERS_OF_TEN[-exponent]
    return -number if negative else number, at, GOOD


@inner
def _op(data: Bytes, at: int, delimiter: int) -> tuple[int, int]:
    """(the code of the operation, or -1: to be set aside; where it ends), from ``at`` on."""
    first = at
    word, head = np.int64(0), np.int64(0)
    while data[at] > _SPACE and data[at] != delimiter:
        word = (word << 8) | np.int64(data[at])
        at += 1
        if at - first == 5:
            head = word
    if at - first == 1:
        if word in (_ONE, _PLUS) or word | _LOWER == _I:
            return 1, at
        if word in (_ZERO, _MINUS) or word | _LOWER == _D:
            return 0, at
    elif at - first == 6:
        if word == _INSERT:
            return 1, at
        if word == _DELETE:
            return 0, at
    elif at - first == 13:
        if head == _INSERT_VERTEX[0] and word == _INSERT_VERTEX[1]:
            return 2, at
        if head == _DELETE_VERTEX[0] and word == _DELETE_VERTEX[1]:
            return 3, at
    return -1, at


@inner
def _skip(data: Bytes, at: int, delimiter: int) -> tuple[int, bool]:
    """(where a field that nobody reads ends, whether it is plain)."""
    plain = True
    while data[at] != _LF and data[at] != _CR and data[at] != delimiter:
        plain = plain and data[at] != _QUOTE and data[at] < 128
        at += 1
    return at, plain


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _after_blanks(data: Bytes, at: int, delimiter: int) -> int:
    """The next byte that is no blank."""
    while (data[at] == _SPACE and delimiter != _SPACE) or (data[at] == _TAB and delimiter == 0):
        at += 1
    return at


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _at_line_end(data: Bytes, at: int) -> bool:
    return bool(data[at] == _LF or (data[at] == _CR and data[at + 1] == _LF))


@inner
def _parse_line(
    data: Bytes, at: int, roles: npt.NDArray[np.int8], delimiter: int, default_ts: int
) -> tuple[int, int, int, int, int, float, int, int, int, bool]:
    """(status, where it stopped, src, dst, op, weight, ts, start and end of the weight, whether ts is given)."""
    src, dst, op, weight, ts = 0, 0, 1, 1.0, default_ts
    weight_start, weight_end, has_ts, has_dst = 0, 0, False, False
    status, fields = GOOD, 0
    while fields < roles.size:
        role = roles[fields]
        fields += 1
        at = _after_blanks(data, at, delimiter)
        first = at
        if data[at] == delimiter or _at_line_end(data, at):
            status = SET_ASIDE if role == _SRC else status
        elif role == _WEIGHT:
            weight, at, found = _real(data, at)
            weight_start, weight_end, status = first, at, max(status, found)
        elif role == _OP:
            op, at = _op(data, at, delimiter)
            status = SET_ASIDE if op < 0 else status
        elif role == IGNORED:
            at, plain = _skip(data, at, delimiter)
            status = status if plain else SET_ASIDE
        else:
            number, at, plain = _integer(data, at)
            status = status if plain else SET_ASIDE
            if role == _SRC:
                src = number
            elif role == _DST:
                dst, has_dst = number, True
            else:
                ts, has_ts = number, True
        field_end = at
        at = _after_blanks(data, at, delimiter)
        if status == SET_ASIDE or _at_line_end(data, at):
            break
        if delimiter == 0:
            if at == field_end:
                break
        else:
            if data[at] != delimiter or fields == roles.size:
                break
            at += 1
            # A delimiter at the very end is followed by one more field, an empty one.
    if not _at_line_end(data, at) or fields < 2 or (delimiter != 0 and fields < roles.size):
        status = SET_ASIDE
    # An operation on a vertex has no dst, or 0; everything else needs one.
    if (op > 1 and dst != 0) or (op <= 1 and not has_dst):
        status = SET_ASIDE
    return status, at, src, dst, op, weight, ts, weight_start, weight_end, has_ts


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _parse_lines(data: Bytes, begin: int, format: LineFormat, columns: LineColumns) -> tuple[int, bool, bool]:
    """(lines, whether one had a weight, a ts). ``data`` must end with a line feed, at which every loop stops."""
    # Taken out once: an array in a tuple is counted whenever it is named.
    roles, delimiter, bytes_max, default_ts = format
    src, dst, ops, weights, ts, spans, weight_spans, status = columns
    n = 0
    any_weight = False
    any_ts = False
    at = begin
    while at < data.size:
        start = at
        while data[at] == _SPACE or data[at] == _TAB:
            at += 1
        skipped = _at_line_end(data, at) or (delimiter == 0 and (data[at] == _HASH or data[at] == _PERCENT))
        if not skipped:
            line = _parse_line(data, start, roles, delimiter, default_ts)
            outcome, at, src[n], dst[n], ops[n], weight, ts[n], weight_start, weight_end, has_ts = line
            weights[n] = weight
            weight_spans[n, 0] = weight_start
            weight_spans[n, 1] = weight_end
            any_weight = any_weight or weight_end > weight_start
            any_ts = any_ts or has_ts
        while data[at] != _LF:
            at += 1
        if not skipped:
            end = at - 1 if at > start and data[at - 1] == _CR else at
            spans[n, 0] = start
            spans[n, 1] = end
            status[n] = SET_ASIDE if end - start > bytes_max else outcome
            n += 1
        at += 1
    return n, any_weight, any_ts
