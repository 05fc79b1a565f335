"""Questions about edges and their answers, as they travel between the query server and the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Vertices, Weights
from ...partition.exploring import EdgesFound, EdgesPlace, Search
from .position import Position
from .stream import Offsets, Partition, Standing, offsets_to_wire


@dataclass(frozen=True, slots=True)
class StorageState:
    """The state of the storage that an answer was read from. ``offsets`` as queries show them."""

    epoch: tuple[int, int]
    offsets: Mapping[str, Any]

    @classmethod
    def at(cls, position: Position) -> StorageState:
        """Where the storage stands."""
        return cls(position.epoch, offsets_to_wire(position.offsets))


@dataclass(frozen=True, slots=True)
class NeighborPage:
    """Some neighbours of a vertex: ``neighbors`` uint32[m] in ascending order, ``weights`` float32[m] or None.

    ``known``: whether it is a vertex; ``cursor``: what the request for the next page passes; None when there is
    none.
    """

    state: StorageState
    known: bool
    neighbors: Vertices
    weights: Weights | None
    cursor: int | None


@dataclass(frozen=True, slots=True)
class Degrees:
    """Degrees of vertices: ``out`` and ``in_`` int64[n]; ``in_`` is None when in-edges are not kept.

    ``known``: bool[n], which of them are vertices.
    """

    state: StorageState
    known: npt.NDArray[np.bool_]
    out: npt.NDArray[np.int64]
    in_: npt.NDArray[np.int64] | None


DEGREES_AT_ONCE = 1 << 18
"""The degrees of so many vertices are counted in about a millisecond."""

Counted = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Degrees in ascending order, and how many vertices have each."""


def merged_degrees(parts: Sequence[Counted]) -> Counted:
    """What different vertices have together."""
    if len(parts) == 1:
        return parts[0]
    degrees, place = np.unique(np.concatenate([degrees for degrees, _ in parts]), return_inverse=True)
    counts = np.zeros(degrees.size, np.int64)
    np.add.at(counts, place, np.concatenate([counts for _, counts in parts]))
    return degrees, counts


@dataclass(frozen=True, slots=True)
class DegreeCounts:
    """``counts[i]`` vertices have ``degrees[i]`` edges: int64[m] both, ``degrees`` in ascending order.

    ``n_vertices``: how many dense ids there are, of which these are some.
    """

    state: StorageState
    n_vertices: int
    degrees: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EdgesExist:
    """``exists`` bool[n]."""

    state: StorageState
    exists: npt.NDArray[np.bool_]


SearchDirection = Literal["out", "in", "both"]


@dataclass(frozen=True, slots=True)
class Reached:
    """A search, as far as it has come; ``known``: whether it began at a vertex."""

    state: StorageState
    known: bool
    search: Search


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges from some vertices to others. ``known_src``, ``known_dst``: bool[n], which of those are vertices."""

    state: StorageState
    known_src: npt.NDArray[np.bool_]
    known_dst: npt.NDArray[np.bool_]
    found: EdgesFound


@dataclass(frozen=True, slots=True)
class Ego:
    """The neighbours of a vertex, itself first, and the edges among them; None: they would have taken too long."""

    state: StorageState
    known: bool
    search: Search
    edges: EdgesFound | None


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """What became of a wish for a checkpoint so far: ``made``, ``waiting``, ``gone`` or ``failed``.

    ``since``, ``failures``: to be given when it is repeated. ``path``: its folder; ``kept``: the epochs of those
    that there are, where the wished one is gone; ``reason``: why it failed.
    """

    state: StorageState
    status: str
    since: tuple[int, int]
    failures: int
    path: str | None
    kept: Sequence[tuple[int, int]]
    reason: str


class Topology(Protocol):
    """Questions to the storage, in dense vertices; one thread asks them, one at a time.

    Dense ids that are no vertices (not yet, or no longer, or ``NO_VERTEX``) are allowed everywhere, and have no
    edges. A TimeoutError tells the client that the storage is busy, a LookupError that it does not keep what was
    asked for; a ``GraphtideError`` is passed on as it is.
    """

    def current_epoch(self) -> StorageState:
        """Where the storage stands."""
        ...

    def standing(self, wanted: Offsets) -> Mapping[Partition, Standing]:
        """What is to be expected of partitions that no epoch names, up to these offsets."""
        ...

    def neighbors(
        self,
        vertex: int,
        direction: Literal["out", "in"],
        limit: int,
        cursor: int | None,
        timeout_s: float,
    ) -> NeighborPage:
        """At most ``limit`` neighbours after those of the pages before (``cursor``)."""
        ...

    def degree(self, vertices: Vertices, timeout_s: float) -> Degrees: ...

    def degree_counts(
        self, direction: Literal["out", "in"], first: int, limit: int, timeout_s: float
    ) -> DegreeCounts:
        """Of so many dense ids from ``first`` on those that are vertices."""
        ...

    def has_edge(self, src: Vertices, dst: Vertices, timeout_s: float) -> EdgesExist:
        """Whether src[i] -> dst[i] exists."""
        ...

    def edge_weights(
        self, epoch: tuple[int, int], src: Vertices, dst: Vertices, timeout_s: float
    ) -> Weights | None:
        """float32[n]: the weights of existing edges, or None when the storage is not at that epoch."""
        ...

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
        """Go on with a breadth-first search, by about ``reads_max`` entries of rows."""
        ...

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
        """The edges from any of ``src`` to any of ``dst``, from a place on, as ``partition.exploring`` has them.

        All ascend, each once. ``common``: those that are both; edges of undirected graphs are listed once.
        """
        ...

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
        """At most ``limit`` vertices, and ``edge_limit`` edges."""
        ...

    def checkpoint(
        self, at: tuple[int, int] | None, since: tuple[int, int] | None, failures: int | None
    ) -> CheckpointAsked:
        """Wish for a checkpoint of exactly the epoch ``at``, or of ``since`` (None: the present one) or later.

        Answers at once; to be repeated while it is waited for.
        """
        ...
