"""Records of many rows, of which some may be bad: the good ones go on, each bad one is set aside by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np

from ...gpma.index.ids import IntColumn
from ...gpma.memory import Trickle
from ..records.stream import UpdateBlock
from .decode_columns import Bad, BadRows, Rules

ROWS_APART_MAX = 32_768
"""So many bad rows of one record are set aside one by one at most; the others by reason, as many together."""
APART_BYTES_MIN, APART_SHARE = 1 << 20, 2
"""What is set aside one by one of one record may come to so many bytes, and this many times the record."""
OBJECT_BYTES = 500
"""About what a letter takes in memory besides its row and the reason."""


class Room:
    """What is left for letters of one row, or one line, each of one record."""

    def __init__(self, record_bytes: int, own_bytes: int, memory: Trickle) -> None:
        """``own_bytes``: what each letter has besides its row and the reason. ``memory``: who is asked for that of
        letters, since a few bytes of a record may make many."""
        self._own_bytes = own_bytes
        self._memory = memory
        self._bytes = APART_BYTES_MIN + APART_SHARE * record_bytes
        self._letters = ROWS_APART_MAX

    @property
    def is_left(self) -> bool:
        """There is room for one more."""
        return self._bytes > 0 and self._letters > 0

    def take(self, value: bytes, why: Bad) -> None:
        """One more letter.

        Raises:
            MemoryError: there is none for those that would follow.
        """
        n_bytes = len(value) + len(why.detail)
        self._memory.take(n_bytes + OBJECT_BYTES)
        self._bytes -= n_bytes + self._own_bytes
        self._letters -= 1


class Rows(Protocol):
    """The rows of a record as its encoding gave them, their columns of one length."""

    def __len__(self) -> int: ...

    def take(self, rows: IntColumn) -> Self:
        """These rows alone."""
        ...

    def convert(self, rules: Rules, timestamp_ms: int) -> UpdateBlock:
        """All rows as updates.

        Raises:
            BadRows: these rows, at least, cannot be applied.
            Bad: the record cannot be applied.
        """
        ...

    def encode(self) -> bytes:
        """A record of these rows, in the same encoding."""
        ...


class BadPart(NamedTuple):
    """Bad rows of a record as a record of their own: where the (first) one stood, why, and the bytes."""

    row: int
    why: Bad
    value: bytes


class Refused(NamedTuple):
    """Rows of a record that fail one check: which they are of ``rows``, and where these stood."""

    rows: Rows
    place: IntColumn
    error: BadRows


class Sifted(NamedTuple):
    """The good rows of a record in order, or None when there are none; and the bad ones, check by check."""

    block: UpdateBlock | None
    refused: Sequence[Refused] = ()


def sift(rows: Rows, rules: Rules, timestamp_ms: int) -> Sifted:
    """Convert what can be converted. Each check that fails names all its rows, so that few tries are needed.

    Raises:
        Bad: the record is bad as a whole, or its only row is.
    """
    try:
        return Sifted(rows.convert(rules, timestamp_ms))
    except BadRows as error:
        if len(rows) == 1:
            raise
        return _sifted(rows, error, rules, timestamp_ms)


def _sifted(rows: Rows, error: BadRows, rules: Rules, timestamp_ms: int) -> Sifted:
    left, place = rows, np.arange(len(rows))
    refused: list[Refused] = []
    block: UpdateBlock | None = None
    while block is None:
        refused.append(Refused(left, place, error))
        good = np.ones(len(left), bool)
        good[error.rows] = False
        left, place = left.take(np.flatnonzero(good)), place[good]
        if not len(left):
            break
        try:
            block = left.convert(rules, timestamp_ms)
        except BadRows as another:
            error = another
    return Sifted(block, refused)


def bad_parts(refused: Sequence[Refused], room: Room) -> list[BadPart]:
    """The bad rows in ascending order: one by one as long as there is room, the others together by reason."""
    parts = [part for some in refused for part in _parts(some, room)]
    return sorted(parts, key=lambda part: part.row)


def _parts(refused: Refused, room: Room) -> Iterator[BadPart]:
    rows, place, error = refused
    apart = 0
    for row in error.rows[:ROWS_APART_MAX].tolist():
        if not room.is_left:
            break
        value = rows.take(error.rows[apart : apart + 1]).encode()
        part = BadPart(int(place[row]), Bad(error.reason, error.why(row)), value)
        room.take(part.value, part.why)
        apart += 1
        yield part
    for start in range(apart, error.rows.size, ROWS_APART_MAX):
        some = error.rows[start : start + ROWS_APART_MAX]
        first = int(some[0])
        why = Bad(error.reason, f"{some.size} rows, of the first: {error.why(first)}")
        yield BadPart(int(place[first]), why, rows.take(some).encode())
