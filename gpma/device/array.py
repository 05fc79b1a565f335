"""The packed memory array on a CUDA device."""

from __future__ import annotations

from typing import Any

from .geometry import DeviceLayout
from .module import import_cupy
from .state import RowIndex, Slots, new_rows, new_slots


class DevicePackedArray:
    """Edges sorted by (src, dst) in device memory, one weight each where ``weighted``. One writer at a time.

    All work runs on ``stream``, in order.
    """

    def __init__(self, *, weighted: bool) -> None:
        cupy = import_cupy()
        self.weighted = weighted
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self._n_edges = 0
        self._n_vertices = 0
        self._layout = DeviceLayout.holding(0)
        with self.stream:
            self._slots: Slots = new_slots(self._layout, weighted=weighted)
            self._rows: RowIndex = new_rows(0)

    @property
    def n_edges(self) -> int:
        return self._n_edges

    @property
    def n_vertices(self) -> int:
        return self._n_vertices
