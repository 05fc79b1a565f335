"""Answers about edges, read from the storage between its changes.

The engine holds the gate while it applies a batch; a reader holds it while it reads. A reader that needs
results and storage of one epoch (a path with its weights) asks for a *settled* reading: the engine lets
those in after it has published an epoch and before it applies the next batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Vertices, Weights, pack
from ...gpma.rows import RowView
from ...partition.graph import Graph
from ..records.position import Position
from ..records.stream import offsets_to_wire
from ..records.topology import Degrees, EdgesExist, NeighborPage, StorageState

HOLD_S = 0.05
"""How long the engine waits for a reader that came an epoch too late, so that it is in time for this one."""


class StorageGate:
    """Who may touch the storage: one writer, or readers; settled readers get a turn after each epoch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._applying = False
        self._settled = True
        self._waiting_for_settled = 0
        self._held_until = 0.0

    @contextmanager
    def apply(self) -> Iterator[None]:
        """The engine changes the storage; from here until ``settle`` storage is ahead of the results."""
        with self._changed:
            # Those that wait for results and storage to agree go first; each reading is short and bounded.
            while self._readers or self._waiting_for_settled or (held := self._held_until - time.monotonic()) > 0:
                self._changed.wait(None if self._readers or self._waiting_for_settled else held)
            self._applying = True
            self._settled = False
        try:
            yield
        finally:
            with self._changed:
                self._applying = False
                self._changed.notify_all()

    def settle(self) -> None:
        """The results of what was applied are published."""
        with self._changed:
            self._settled = True
            self._changed.notify_all()

    def hold(self, seconds: float) -> None:
        """Keep the next change away for so long, or until the next settled reading."""
        with self._changed:
            self._held_until = time.monotonic() + seconds

    @contextmanager
    def read(self, *, settled: bool, timeout_s: float) -> Iterator[None]:
        """Read the storage; ``settled``: only while published results belong to it.

        Raises:
            TimeoutError: the engine did not let go in time.
        """
        with self._changed:
            if settled:
                self._waiting_for_settled += 1
                self._held_until = 0.0
            try:
                free = self._changed.wait_for(
                    lambda: not self._applying and (self._settled or not settled), timeout_s
                )
            finally:
                if settled:
                    self._waiting_for_settled -= 1
            if not free:
                self._changed.notify_all()
                raise TimeoutError("the storage was busy for too long")
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()


class EngineTopology:
    """What ``records.topology.Topology`` asks, answered from the graph."""

    def __init__(self, graph: Graph, gate: StorageGate, position: Position) -> None:
        self._graph = graph
        self._gate = gate
        self._position = position

    def current_epoch(self) -> StorageState:
        return StorageState(self._position.epoch, offsets_to_wire(self._position.offsets))

    def neighbors(
        self, vertex: int, direction: Literal["out", "in"], limit: int, cursor: int | None, timeout_s: float
    ) -> NeighborPage:
        first = 0 if cursor is None else cursor
        with self._gate.read(settled=False, timeout_s=timeout_s):
            state = self.current_epoch()
            if not self._known(np.array([vertex], np.uint32))[0]:
                nothing = np.empty(0, np.float32) if self._graph.weighted else None
                return NeighborPage(state, False, np.empty(0, np.uint32), nothing, None)
            # One more than asked for tells whether there is a next page, and where it begins.
            neighbors, weights = self._graph.neighbors(vertex, direction, first, limit + 1)
        next_cursor = int(neighbors[limit]) if neighbors.size > limit else None
        weights = None if weights is None else weights[:limit]
        return NeighborPage(state, True, neighbors[:limit], weights, next_cursor)

    def degree(self, vertices: Vertices, timeout_s: float) -> Degrees:
        with self._gate.read(settled=False, timeout_s=timeout_s):
            state = self.current_epoch()
            known = self._known(vertices)
            out = _degrees(self._graph.out_rows(), vertices, known)
            try:
                in_ = _degrees(self._graph.in_rows(), vertices, known)
            except LookupError:
                return Degrees(state, known, out, None)
        return Degrees(state, known, out, in_)

    def has_edge(self, src: Vertices, dst: Vertices, timeout_s: float) -> EdgesExist:
        with self._gate.read(settled=False, timeout_s=timeout_s):
            return EdgesExist(self.current_epoch(), self._graph.has_edge(pack(src, dst)))

    def edge_weights(
        self, epoch: tuple[int, int], src: Vertices, dst: Vertices, timeout_s: float
    ) -> Weights | None:
        with self._gate.read(settled=True, timeout_s=timeout_s):
            if epoch == self._position.epoch:
                return self._graph.weights_of(pack(src, dst))
            # Whoever asks reads the results again and comes back at once: let it find this very epoch.
            self._gate.hold(HOLD_S)
            return None

    def _known(self, vertices: Vertices) -> npt.NDArray[np.bool_]:
        """Which of these dense ids are vertices (bool[n]); only while the gate is held."""
        known = vertices < self._graph.n_vertices
        known[known] = self._graph.alive[vertices[known]]
        return known


def _degrees(rows: RowView, vertices: Vertices, known: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    degrees = np.zeros(vertices.size, np.int64)
    degrees[known] = rows.degrees[vertices[known]]
    return degrees
