"""When the edges of loaded files came, where edges expire: what the first checkpoint says to its window.

A time is what the stream would have made it, the newest of an edge's upserts since it came to be, and with
``window.count`` their order is that of the files. Edges that no row gives a time are left out: a window counts
them as if they had come when event time begins.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Op
from ...gpma.memory import Memory
from ..config.sections.graph import WindowConfig
from ..engine.edge_times import EdgeTimes, Times, canonical
from ..engine.window import CountWindow, TimeWindow
from ..ingest.dense import DenseBatch
from ..records.event_time import NO_TIME, EventState

_COPIED_BYTES = 2 * 16
"""Of each time with its key, as they are copied for a checkpoint."""


class LoadedTimes:
    """``note`` each batch in order; then ``facts`` and ``arrays`` are those of a window that noted the same."""

    def __init__(self, window: WindowConfig, memory: Memory | None = None, *, directed: bool) -> None:
        """``memory``: who is asked; None: the system's."""
        self._counts = window.count is not None
        self._directed = directed
        self._memory = memory or Memory()
        self._times = EdgeTimes(self._memory)
        self._next = 0
        self._gone: list[Times] = []

    def note(self, batch: DenseBatch) -> None:
        edges = batch.edges
        n = len(edges)
        if self._counts:
            times = np.arange(self._next, self._next + n)
            self._next += n
        else:
            times = np.broadcast_to(np.asarray(batch.times, np.int64), n)
        self._times.ensure(int(np.count_nonzero(Op.INSERT.among(edges.ops))))
        keys = edges.keys if self._directed else canonical(edges.keys)
        _, _, gone = self._times.note(keys, edges.ops, np.ascontiguousarray(times))
        self._gone.append(gone)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What a checkpoint keeps.

        Raises:
            MemoryError: there is none for the copy.
        """
        self._memory.require(_COPIED_BYTES * len(self._times))
        keys, times = self._times.all()
        if self._counts:
            return {"keys": keys, "times": times, "empty": np.concatenate([np.empty(0, np.int64), *self._gone])}
        timed = times != NO_TIME
        return {"keys": keys[timed], "times": times[timed]}

    def facts(self, n_timed: int) -> dict[str, Any]:
        """What a checkpoint says of it. ``n_timed``: the edges that ``arrays`` has."""
        if self._counts:
            return {"kind": CountWindow.kind}
        return {"kind": TimeWindow.kind, "event": EventState().to_wire(), "adopts": n_timed < len(self._times)}
