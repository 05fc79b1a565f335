"""A column of float64 as float32: what a program publishes whose results a device writes as such."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Vertices

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class Narrowed:
    """A copy that follows the column by what is said to have changed there."""

    def __init__(self) -> None:
        self._copy: F32 | None = None
        self._changed: list[Vertices] = []

    @property
    def nbytes(self) -> int:
        return 0 if self._copy is None else self._copy.nbytes

    def forget(self) -> None:
        """Any entry may be another."""
        self._copy = None
        self._changed.clear()

    def note(self, changed: Vertices | None) -> None:
        """These entries are others; None: any may be."""
        if changed is None:
            self.forget()
        elif self._copy is not None:
            self._changed.append(changed)

    def of(self, column: F64) -> F32:
        """The column, each entry rounded to the nearest float32; the same array as long as none was forgotten."""
        if self._copy is None or self._copy.size != column.size:
            self._copy = column.astype(np.float32)
        else:
            for vertices in self._changed:
                self._copy[vertices] = column[vertices]
        self._changed.clear()
        return self._copy
