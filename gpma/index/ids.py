"""External vertex ids as columns: int64 arrays, or strings packed into one buffer."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_STRING_ID_BYTES = 256
INTEGER = re.compile(r"[+-]?[0-9]{1,64}")
"""An integer as text, of any size: of what else Python takes for one (``1_000``) nobody says that it is."""

_WORD = 8


@dataclass(frozen=True, slots=True)
class StringColumn:
    """n strings as UTF-8: string i is ``data[offsets[i]:offsets[i + 1]]`` (uint8[], int64[n + 1]).

    Strings compare as their bytes, unsigned.
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __getitem__(self, selection: npt.NDArray[Any]) -> StringColumn:
        """The strings that a bool mask (of length n) or an array of positions selects, copied."""
        return self.gathered(self.data, self.offsets[:-1][selection], self.lengths[selection])

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The bytes of each string."""
        return np.diff(self.offsets)

    @classmethod
    def of(cls, strings: Iterable[str]) -> StringColumn:
        """Pack strings."""
        encoded = [string.encode() for string in strings]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(item) for item in encoded], out=offsets[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    @classmethod
    def gathered(
        cls, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> StringColumn:
        """The strings that begin at these bytes and are so long (int64[n] both), copied."""
        offsets = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        shift = np.repeat(starts - offsets[:-1], lengths)
        return cls(data[shift + np.arange(offsets[-1])], offsets)

    def to_list(self) -> list[str]:
        """The strings, unpacked."""
        data = self.data.tobytes()
        bounds = self.offsets.tolist()
        return [data[a:b].decode() for a, b in itertools.pairwise(bounds)]

    def argsort(self) -> npt.NDArray[np.int64]:
        """Positions in ascending order of the strings (int64[n]).

        Sorts by the first eight bytes, then by the next eight within the runs that still tie, and so on.
        """
        order = np.arange(len(self))
        tied = np.arange(len(self))
        run = np.zeros(len(self), np.int64)
        for depth in itertools.count(step=_WORD):
            if tied.size < 2:
                break
            words, left = self._words(order[tied], depth)
            sorting = np.lexsort((left, words, run[tied]))
            order[tied] = order[tied][sorting]
            words, left = words[sorting], left[sorting]
            same = (words[1:] == words[:-1]) & (left[1:] == left[:-1]) & (run[tied][1:] == run[tied][:-1])
            first = np.concatenate([[True], ~same])
            run[tied] = tied[np.maximum.accumulate(np.where(first, np.arange(tied.size), 0))]
            # Two that tie to the very end are equal: nothing is left to sort.
            in_run = (np.concatenate([same, [False]]) | ~first) & (left > _WORD)
            tied = tied[in_run]
        return order

    def _words(
        self, rows: npt.NDArray[np.int64], depth: int
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """The eight bytes of each row from ``depth`` on (big-endian, zeros past the end), and how many are
        left there: 0 to 8, or 9 for more."""
        starts = self.offsets[rows] + depth
        left = np.clip(self.offsets[rows + 1] - starts, 0, _WORD + 1)
        words = np.zeros(rows.size, np.uint64)
        for i in range(_WORD):
            words <<= np.uint64(8)
            inside = np.flatnonzero(left > i)
            words[inside] |= self.data[starts[inside] + i]
        return words, left


IntColumn = npt.NDArray[np.int64]
IdColumn = IntColumn | StringColumn


def concatenate_ids(columns: Sequence[IdColumn]) -> IdColumn:
    """Columns of one kind (at least one), one after the other."""
    if not isinstance(columns[0], StringColumn):
        return np.concatenate(columns)  # type: ignore[arg-type]
    strings = [column for column in columns if isinstance(column, StringColumn)]
    offsets = np.zeros(sum(map(len, strings)) + 1, np.int64)
    np.cumsum(np.concatenate([column.lengths for column in strings]), out=offsets[1:])
    data = np.concatenate([column.data[column.offsets[0] : column.offsets[-1]] for column in strings])
    return StringColumn(data, offsets)


def equal_ids(left: IdColumn, right: IdColumn) -> npt.NDArray[np.bool_]:
    """Where two columns of one kind and length hold the same id (bool[n])."""
    if not isinstance(left, StringColumn) or not isinstance(right, StringColumn):
        assert isinstance(left, np.ndarray) and isinstance(right, np.ndarray)
        return np.equal(left, right)
    equal: npt.NDArray[np.bool_] = left.lengths == right.lengths
    rows = np.flatnonzero(equal & (left.lengths > 0))
    if rows.size:
        picked, others = left[rows], right[rows]
        equal[rows] = np.logical_and.reduceat(picked.data == others.data, picked.offsets[:-1])
    return equal
