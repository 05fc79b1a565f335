"""Answers about edges, read from the storage between its changes; questions are in ``records.topology``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Vertices, Weights, pack
from ...partition.exploring import LEAST_READS, EdgesFound, EdgesPlace, Search, edges_between, search
from ...partition.side import Direction
from ..client.wire import encode_stamp
from ..records.stream import Offsets, Partition, Source, Standing
from ..records.topology import (
    DEGREES_AT_ONCE,
    CheckpointAsked,
    Counted,
    DegreeCounts,
    Degrees,
    Edges,
    EdgesExist,
    Ego,
    NeighborPage,
    Reached,
    SearchDirection,
    StorageState,
    merged_degrees,
)
from ..state.requested import RequestedCheckpoints
from .lane import Lane
from .storage import Storage

_NO_DEGREES: Counted = (np.empty(0, np.int64), np.empty(0, np.int64))
HOLD_S = 0.05
"""How long the engine waits for a reader that came an epoch too late, so that it is in time for this one."""


_DIRECTIONS: dict[SearchDirection, tuple[Direction, ...]] = {"out": ("out",), "in": ("in",), "both": ("out", "in")}


class EngineTopology:
    """What ``records.topology.Topology`` asks, answered from the graph."""

    def __init__(
        self,
        storage: Storage,
        source: Source,
        requested: RequestedCheckpoints,
        index_generation: Callable[[], int] | None = None,
    ) -> None:
        """``index_generation``: of the vertex index, from which on it knows all vertices that the storage has;
        None: there are no lanes. While this is made nobody changes the storage."""
        self._index_generation = index_generation
        self._source = source
        self._requested = requested
        self._graph = storage.graph
        self._gate = storage.gate
        self._position = storage.position
        if index_generation is not None:
            with self._gate.apply():
                self._gate.show = self._show
            self._gate.settle()

    def open_lane(self) -> Lane | None:
        """A lane for one query server (``lane.py``); None: there is none to be had.

        Raises:
            OSError: the system has no room for one.
        """
        return Lane(self._gate.shown) if self._index_generation is not None and Lane.is_possible else None

    def _show(self) -> None:
        """Let lanes see the storage as it is now."""
        assert self._index_generation is not None
        rows = self._graph.rows_in_place()
        if rows is None:
            self._gate.shown.hide()
            return
        state = self.current_epoch()
        stamp = encode_stamp(state.epoch, state.offsets)
        self._gate.shown.show(rows, self._graph.alive, stamp, self._index_generation())

    def current_epoch(self) -> StorageState:
        return StorageState.at(self._position)

    def standing(self, wanted: Offsets) -> dict[Partition, Standing]:
        return {partition: self._source.standing(partition, offset) for partition, offset in wanted.items()}

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
            out = _degrees(self._graph.degrees("out"), vertices, known)
            try:
                in_ = _degrees(self._graph.degrees("in"), vertices, known)
            except LookupError:
                return Degrees(state, known, out, None)
        return Degrees(state, known, out, in_)

    def degree_counts(
        self, direction: Literal["out", "in"], first: int, limit: int, timeout_s: float
    ) -> DegreeCounts:
        deadline = time.monotonic() + timeout_s
        parts: list[Counted] = []
        with self._gate.read(settled=False, timeout_s=timeout_s):
            state, n = self.current_epoch(), self._graph.n_vertices
            all_degrees, alive = self._graph.degrees(direction), self._graph.alive
            for start in range(first, min(first + limit, n), DEGREES_AT_ONCE):
                if parts and time.monotonic() > deadline:
                    raise TimeoutError("counting the degrees of all vertices takes longer")
                part = slice(start, min(start + DEGREES_AT_ONCE, first + limit, n))
                degrees, counts = np.unique(all_degrees[part][alive[part]], return_counts=True)
                parts.append((degrees.astype(np.int64), counts.astype(np.int64)))
        return DegreeCounts(state, n, *(merged_degrees(parts) if parts else _NO_DEGREES))

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

    def reach(
        self,
        begun: Search,
        direction: SearchDirection,
        *,
        hops_max: int,
        limit: int,
        reads_max: int,
        timeout_s: float,
    ) -> Reached:
        with self._gate.read(settled=False, timeout_s=timeout_s):
            state = self.current_epoch()
            if not self._known(begun.found[:1])[0]:
                return Reached(state, False, begun)
            found = self._searched(begun, direction, hops_max=hops_max, limit=limit, reads_max=reads_max)
        return Reached(state, True, found)

    def edges_between(
        self,
        src: Vertices,
        dst: Vertices,
        common: Vertices,
        *,
        place: EdgesPlace,
        limit: int,
        reads_max: int,
        timeout_s: float,
    ) -> Edges:
        with self._gate.read(settled=False, timeout_s=timeout_s):
            known_src, known_dst = self._known(src), self._known(dst)
            found = self._edges(src, dst, common, place, limit, reads_max)
            return Edges(self.current_epoch(), known_src, known_dst, found)

    def ego(
        self,
        vertex: int,
        direction: SearchDirection,
        *,
        limit: int,
        edge_limit: int,
        reads_max: int,
        timeout_s: float,
    ) -> Ego:
        begun = Search.begin(vertex)
        with self._gate.read(settled=False, timeout_s=timeout_s):
            state = self.current_epoch()
            if not self._known(begun.found)[0]:
                return Ego(state, False, begun, None)
            found = self._searched(begun, direction, hops_max=1, limit=limit, reads_max=reads_max)
            left = reads_max - found.reads
            if found.place is not None or left < LEAST_READS:
                return Ego(state, True, found, None)
            chosen = np.sort(found.found)
            edges = self._edges(chosen, chosen, chosen, EdgesPlace(), edge_limit, left)
        return Ego(state, True, found, edges if edges.place is None else None)

    def _searched(
        self, begun: Search, direction: SearchDirection, *, hops_max: int, limit: int, reads_max: int
    ) -> Search:
        """Go on with a search until it is over, or has read so much; only while the gate is held."""
        graph = self._graph
        directions = _DIRECTIONS[direction] if graph.directed else _DIRECTIONS["out"]
        ahead = partial(graph.views_ahead, directions)
        return search(ahead, graph.n_vertices, begun, hops_max=hops_max, limit=limit, reads_max=reads_max)

    def _edges(
        self, src: Vertices, dst: Vertices, common: Vertices, place: EdgesPlace, limit: int, reads_max: int
    ) -> EdgesFound:
        """As ``edges_between``; only while the gate is held."""
        graph = self._graph
        return edges_between(
            partial(graph.views_ahead, _DIRECTIONS["out"]),
            graph.n_vertices,
            src,
            dst,
            None if graph.directed else common,
            weighted=graph.weighted,
            limit=limit,
            reads_max=reads_max,
            place=place,
        )

    def checkpoint(
        self, at: tuple[int, int] | None, since: tuple[int, int] | None, failures: int | None
    ) -> CheckpointAsked:
        state = self.current_epoch()
        found = self._requested.ask(state.epoch, at=at, since=since, failures=failures)
        path = None if found.made is None else str(found.made.absolute())
        return CheckpointAsked(state, found.status, found.since, found.failures, path, found.kept, found.reason)

    def _known(self, vertices: Vertices) -> npt.NDArray[np.bool_]:
        """Which of these dense ids are vertices (bool[n]); only while the gate is held."""
        known = vertices < self._graph.n_vertices
        known[known] = self._graph.alive[vertices[known]]
        return known


def _degrees(
    all_degrees: npt.NDArray[np.uint32], vertices: Vertices, known: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    degrees = np.zeros(vertices.size, np.int64)
    degrees[known] = all_degrees[vertices[known]]
    return degrees
