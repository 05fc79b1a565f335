"""What programs on a device read of rows while some of these lie on the host, as their kernels count it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CLASSES = 64
"""Of vertices: who decides where rows are says which vertex is in which."""
LINE_BYTES = 128
"""What the device reads at once of the host's memory."""

Counts = npt.NDArray[np.int64]


class RowReads(NamedTuple):
    """Edges that were read, and what came over the bus for it.

    ``by_class``: int64[2, CLASSES], edges of rows on the host and on the device that were walked, by the class of
    their vertex. ``others``: int64[2], those of passes over whole arrays, of first looks along rows and of single
    edges, by side alone. ``lines``: of LINE_BYTES each, those of the host's rows: of a row three to find it, of a
    leaf all of its keys, and of its weights where the kernel reads any. Degrees that were asked for alone, and
    what caches kept, are not in it; nor are single edges that were looked for on the device.
    """

    by_class: Counts
    others: Counts
    lines: int

    @classmethod
    def none(cls) -> RowReads:
        """Nothing was read."""
        return cls(np.zeros((2, CLASSES), np.int64), np.zeros(2, np.int64), 0)

    @property
    def host_edges(self) -> int:
        return int(self.by_class[0].sum() + self.others[0])

    @property
    def device_edges(self) -> int:
        return int(self.by_class[1].sum() + self.others[1])

    @property
    def bus_bytes(self) -> int:
        return LINE_BYTES * self.lines

    def without_classes(self) -> RowReads:
        """The same by side alone: nobody has said yet which vertex is in which class."""
        return RowReads(np.zeros_like(self.by_class), self.others + self.by_class.sum(axis=1), self.lines)

    def __add__(self, other: object) -> RowReads:
        """The sums, not one behind the other."""
        if not isinstance(other, RowReads):
            return NotImplemented
        return RowReads(self.by_class + other.by_class, self.others + other.others, self.lines + other.lines)
