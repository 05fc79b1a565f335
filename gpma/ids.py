"""External vertex ids as columns: int64 arrays, or strings packed into one buffer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_STRING_ID_BYTES = 256


@dataclass(frozen=True, slots=True)
class StringColumn:
    """n strings as UTF-8: string i is ``data[offsets[i]:offsets[i + 1]]`` (uint8[], int64[n + 1])."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return self.offsets.size - 1

    @classmethod
    def of(cls, strings: Iterable[str]) -> StringColumn:
        """Pack strings."""
        encoded = [string.encode() for string in strings]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(item) for item in encoded], out=offsets[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    def to_list(self) -> list[str]:
        """The strings, unpacked."""
        data = self.data.tobytes()
        bounds = self.offsets.tolist()
        return [data[a:b].decode() for a, b in itertools.pairwise(bounds)]


IntColumn = npt.NDArray[np.int64]
IdColumn = IntColumn | StringColumn
