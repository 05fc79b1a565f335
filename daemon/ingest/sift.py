"""Records of many rows, of which some may be bad: the good ones go on, each bad one is set aside by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np

from ...gpma.index.ids import IntColumn
from ..records.stream import UpdateBlock
from .decode_columns import Bad, BadRows, Rules

ROWS_APART_MAX = 32_768
"""So many bad rows of one record are set aside one by one; the others by reason, as many together."""


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


class Sifted(NamedTuple):
    """The good rows of a record in order, or None when there are none, and the bad ones, ascending."""

    block: UpdateBlock | None
    bad: Sequence[BadPart] = ()


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
    bad: list[BadPart] = []
    block: UpdateBlock | None = None
    while block is None:
        bad += _parts(left, place, error, max(ROWS_APART_MAX - len(bad), 0))
        good = np.ones(len(left), bool)
        good[error.rows] = False
        left, place = left.take(np.flatnonzero(good)), place[good]
        if not len(left):
            break
        try:
            block = left.convert(rules, timestamp_ms)
        except BadRows as another:
            error = another
    return Sifted(block, sorted(bad, key=lambda part: part.row))


def _parts(left: Rows, place: IntColumn, error: BadRows, apart: int) -> list[BadPart]:
    """The bad rows: so many of them one by one, the others together."""
    parts = []
    for number, row in enumerate(error.rows[:apart].tolist()):
        value = left.take(error.rows[number : number + 1]).encode()
        parts.append(BadPart(int(place[row]), Bad(error.reason, error.why(row)), value))
    for start in range(apart, error.rows.size, ROWS_APART_MAX):
        some = error.rows[start : start + ROWS_APART_MAX]
        first = int(some[0])
        why = Bad(error.reason, f"{some.size} rows, of the first: {error.why(first)}")
        parts.append(BadPart(int(place[first]), why, left.take(some).encode()))
    return parts
