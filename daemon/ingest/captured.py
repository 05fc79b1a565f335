"""The fields of binary records that mean something to us, as compiled decoders find them, and as documents.

A decoder is told which fields are wanted and reads over all others. What it finds is one entry a record and
wanted field (a *slot*): in which form the value is there, and where or what it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

Path = tuple[str, ...]
"""The names that lead to a field, from the outermost record inwards."""

Form = Callable[[Numbers, Numbers, bytes], Any]
"""How values of one form are read, as a list: from k numbers, as many lengths, and the bytes of all records.

Numbers are the values themselves, or the bits of floats, or where strings begin, which have a length.
"""

ABSENT, NULL = 0, 1
"""The forms of what is not there: by the schema, and in the record."""

DECIMAL_BYTES_MAX, DECIMAL_SCALE_MAX = 32, 200
"""What decimals may be; others are of no use to us."""

DOCUMENT = 0
"""The slot of the whole record."""


class Wanted:
    """Fields that are wanted of records. ``names``: for each slot, the slots of the fields in it by name."""

    def __init__(self, paths: Iterable[Path], time: Path | None = None) -> None:
        """``time``: the path of these whose times of whatever unit become milliseconds since 1970."""
        self.names: list[dict[str, int]] = [{}]
        self.time: int | None = None
        for path in paths:
            slot = DOCUMENT
            for name in path:
                if name not in self.names[slot]:
                    self.names[slot][name] = len(self.names)
                    self.names.append({})
                slot = self.names[slot][name]
            if path == time:  # which may be a record of seconds and nanoseconds
                self.time = slot
                self.names[slot] |= {"seconds": len(self.names), "nanos": len(self.names) + 1}
                self.names += [{}, {}]


class Captured(NamedTuple):
    """What was found in n records: the arrays are int64[n, slots]; ``forms``: what numbers in ``form`` mean."""

    wanted: Wanted
    forms: Sequence[Form]
    form: Numbers
    number: Numbers
    length: Numbers
    data: bytes

    def documents(self) -> list[Any]:
        """Each record as nested dicts of the wanted fields; None: null; what its schema has not is left out."""
        return self._values(DOCUMENT)

    def _values(self, slot: int) -> list[Any]:
        form = self.form[:, slot]
        values: list[Any] = [None] * len(form)
        present = np.unique(form).tolist()
        for code in present:
            if code in (ABSENT, NULL):
                continue
            rows = np.flatnonzero(form == code)
            read = self.forms[code](self.number[rows, slot], self.length[rows, slot], self.data)
            if len(rows) == len(values):
                values = read
            else:
                for row, value in zip(rows.tolist(), read, strict=True):
                    values[row] = value
        if inner := self.wanted.names[slot]:
            self._fill(values, inner)
        if slot == self.wanted.time:
            values = [*map(_time, values)]
        if ABSENT in present:
            for row in np.flatnonzero(form == ABSENT).tolist():
                values[row] = ABSENT_VALUE
        return values

    def _fill(self, values: list[Any], inner: dict[str, int]) -> None:
        """Put what is wanted of them into those that are records."""
        for name, slot in inner.items():
            for value, of in zip(self._values(slot), values, strict=True):
                if value is not ABSENT_VALUE and type(of) is dict:
                    of[name] = value


def _time(value: Any) -> Any:
    if type(value) is not dict:
        return value
    seconds, nanos = value.get("seconds"), value.get("nanos")
    if type(seconds) is int and type(nanos) is int:
        return seconds * 1000 + nanos // 1_000_000
    return Words("a record")


class Words:
    """Stands for a value that is of no use to us; shown as these words."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


ABSENT_VALUE = Words("nothing")

# -- forms ------------------------------------------------------------------------------------------------


def integers(numbers: Numbers, lengths: Numbers, data: bytes) -> Any:
    """Signed 64-bit integers."""
    return numbers.tolist()


def unsigned(numbers: Numbers, lengths: Numbers, data: bytes) -> Any:
    """Unsigned 64-bit integers."""
    return numbers.view(np.uint64).tolist()


def int32s(numbers: Numbers, lengths: Numbers, data: bytes) -> Any:
    """The low half alone, signed."""
    return numbers.astype(np.int32).tolist()


def uint32s(numbers: Numbers, lengths: Numbers, data: bytes) -> Any:
    """The low half alone, unsigned."""
    return numbers.astype(np.uint32).tolist()


def zigzag(numbers: Numbers, lengths: Numbers, data: bytes) -> Any:
    """Signed integers as ``sint32`` and ``sint64`` of Protobuf have them: 0, -1, 1, -2, ..."""
    halves = (numbers.view(np.uint64) >> np.uint64(1)).view(np.int64)
    signed: Numbers = halves ^ -(numbers & 1)
    return signed.tolist()


def booleans(numbers: Numbers, lengths: Numbers, data: bytes) -> Any:
    """False is 0."""
    return (numbers != 0).tolist()


def floats(numbers: Numbers, lengths: Numbers, data: bytes) -> Any:
    """The bits of float32."""
    return numbers.astype(np.int32).view(np.float32).tolist()


def doubles(numbers: Numbers, lengths: Numbers, data: bytes) -> Any:
    """The bits of float64."""
    return numbers.view(np.float64).tolist()


def _slices(numbers: Numbers, lengths: Numbers, data: bytes) -> list[bytes]:
    ends = (numbers + lengths).tolist()
    return [data[start:end] for start, end in zip(numbers.tolist(), ends, strict=True)]


def texts(numbers: Numbers, lengths: Numbers, data: bytes) -> Any:
    """UTF-8."""
    return [*map(_text, _slices(numbers, lengths, data))]


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Words("bytes that are not UTF-8")


def uuids(numbers: Numbers, lengths: Numbers, data: bytes) -> Any:
    """16 bytes, as text with hyphens."""
    return [str(uuid.UUID(bytes=value)) for value in _slices(numbers, lengths, data)]


def records(numbers: Numbers, lengths: Numbers, data: bytes) -> Any:
    """A dict each, which ``Captured`` fills."""
    return [{} for _ in range(len(numbers))]


def only(words: str) -> Form:
    """What is of no use, in words."""
    value = Words(words)
    return lambda numbers, lengths, data: [value] * len(numbers)


def symbols(names: Sequence[str]) -> Form:
    """Of an enumeration, by position."""
    return lambda numbers, lengths, data: [names[number] for number in numbers.tolist()]


def numbered(names: dict[int, str]) -> Form:
    """Of an enumeration, by number; numbers without a name stay numbers."""
    return lambda numbers, lengths, data: [names.get(number, number) for number in int32s(numbers, lengths, data)]


def decimals(scale: int) -> Form:
    """Big-endian two's complement, in units of ``10**-scale``: integers where the scale is 0, else floats."""

    def values(numbers: Numbers, lengths: Numbers, data: bytes) -> Any:
        return [_decimal(value, scale) for value in _slices(numbers, lengths, data)]

    return values


def _decimal(value: bytes, scale: int) -> Any:
    if len(value) > DECIMAL_BYTES_MAX:
        return Words(f"a decimal of {len(value)} bytes")
    unscaled = int.from_bytes(value, "big", signed=True)
    return unscaled / 10**scale if scale else unscaled


def milliseconds(multiplier: int, divisor: int) -> Form:
    """Times in another unit, of which ``multiplier / divisor`` are a millisecond each."""
    return lambda numbers, lengths, data: [number * multiplier // divisor for number in numbers.tolist()]
