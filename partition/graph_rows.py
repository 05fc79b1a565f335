"""What a graph asks of its rows, however they are kept: ``whole.py`` and ``owned.py`` are the two ways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..gpma.edges import LOW, EdgeBatch, EdgeList, Keys, Vertices, Weights
from ..gpma.gate import BeforeWriting
from ..gpma.host.transposing import transposed
from ..gpma.rows import RowView, words_of
from ..gpma.team import Crew
from ..gpma.written import Words
from .behind import Lag
from .changes import Report
from .host_side import HostSide
from .placement import HOST, Placement
from .scanning import largest_word, require_known
from .side import Direction, Reader, Side
from .turning import both_directions, turned
from .weights import WeightDomain

if TYPE_CHECKING:
    from .device_side import DeviceSide


class Shape(NamedTuple):
    """What a graph keeps. ``in_edges``: in-rows of their own; ``in_weights``: with weights, if there are any."""

    directed: bool
    weight_domain: WeightDomain
    in_edges: bool
    in_weights: bool

    @property
    def weighted(self) -> bool:
        return self.weight_domain != "unweighted"

    @property
    def in_weighted(self) -> bool:
        """Whether the rows to pull from carry weights; in an undirected graph these are the out-rows."""
        return self.weighted and (not self.directed or (self.in_edges and self.in_weights))

    def kept(self, direction: Direction) -> Direction:
        """The direction whose rows are kept for this one.

        Raises:
            LookupError: no in-rows are kept.
        """
        if direction == "out" or not self.directed:
            return "out"
        if not self.in_edges:
            raise LookupError("this graph keeps no in-rows; create it with in_edges=True")
        return "in"

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Those of which rows are kept."""
        return ("out", "in") if self.in_edges else ("out",)


class SideApply(NamedTuple):
    """What a side did for a batch: updates of out-rows and in-rows, and the seconds from its begin to its end."""

    side: str
    updates: int
    seconds: float


class GraphRows(ABC):
    """The rows of a graph on its sides. Directions are those that are kept (``Shape.kept``)."""

    placement: Placement
    applied: tuple[SideApply, ...] = ()
    """What each side did for the last batch, where each row is on one side only."""
    rows_lost: bool = False
    """Whether a device failed that alone had some of the rows."""
    may_follow: bool = False
    """Whether the host may take batches later than a device that has every row, as nobody is about to read its."""

    def __init__(self, shape: Shape, hosts: Sequence[HostSide], device: DeviceSide | None, crew: Crew) -> None:
        """``crew``: who shares what no side does by itself."""
        self.shape = shape
        self.mirrored, self.negative = int(not shape.directed), int(shape.weight_domain == "any")
        """What a batch by one compiled call is told of all."""
        self.hosts = tuple(hosts)
        self.host = self.hosts[HOST]
        self.device = device
        self.device_lost: str | None = None
        """Why ``device`` is no more: the first reason."""
        self.sides: tuple[Side[Any], ...] = self.hosts if device is None else (*self.hosts, device)
        self.crew = crew

    def in_arcs(self, out: EdgeList) -> EdgeList:
        """These out-arcs as the in-rows have them."""
        return transposed(out, weighted=self.shape.in_weighted, crew=self.crew)

    @property
    def keeps_up(self) -> bool:
        """The host has all rows, and takes the next batch before anybody reads them again: until it is about to
        write, they may be read as they are."""
        return self.device is None

    def drop_device(self, reason: str) -> None:
        """Go on without the device, for good. ``reason``: in words."""
        if self.device is None:
            return
        self.device.close()
        self.device, self.device_lost = None, reason

    def close(self) -> None:
        """End the threads of the sides."""
        if self.device is not None:
            self.device.close()
        for host in self.hosts:
            host.close()

    @property
    def lag(self) -> Lag:
        """How far the host's own arrays are behind; nobody who asks for rows sees it."""
        return Lag()

    def catch_up(self) -> None:  # noqa: B027 - where the host never follows there is nothing to do
        """Have the host take all that was applied: who reads its arrays themselves says so first.

        Raises:
            MemoryError: there is not enough; everything is as before.
        """

    # -- changes ------------------------------------------------------------------------------------------------

    @abstractmethod
    def ensure_vertices(self, n_vertices: int) -> None:
        """Make room for so many rows.

        Raises:
            MemoryError: there is not enough; ``withdraw_vertices`` is called then.
        """

    @abstractmethod
    def withdraw_vertices(self, n_vertices: int) -> None:
        """There are only so many rows, of which the others were never written."""

    @abstractmethod
    def columns(self, n: int, *, weighted: bool) -> EdgeBatch:
        """As ``Graph.columns``."""

    @abstractmethod
    def apply(self, batch: EdgeBatch, before_writing: BeforeWriting, *, told: bool = False) -> Report:
        """Apply updates of edges, one direction each, on all sides or on none.

        ``before_writing``: as for ``Graph.apply``; ``told``: whether the report will be read, whatever happens to
        a device.

        Raises:
            ValueError: a row does not exist.
            MemoryError: there is not enough.
        """

    @abstractmethod
    def apply_small(
        self, batch: EdgeBatch, n_updates: int, n_vertices: int, before_writing: BeforeWriting
    ) -> tuple[Report, tuple[int, ...]] | None:
        """The same for a few updates of rows, by one compiled call, weights as they came: the report, and
        ``small.Totals``. None: nothing was written, and they go the ordinary way, which also finds out what is
        wrong with them."""

    @abstractmethod
    def load(self, edges: EdgeList, n_vertices: int) -> None:
        """Replace everything by these out-arcs, ascending.

        Raises:
            ValueError: a row does not exist, or keys are out of order.
            MemoryError: there is not enough.
        """

    # -- reads --------------------------------------------------------------------------------------------------

    @abstractmethod
    def n_stored(self, direction: Direction) -> int:
        """How many arcs the rows of a direction hold together."""

    @abstractmethod
    def has_edge(self, direction: Direction, keys: Keys) -> npt.NDArray[np.bool_]:
        """bool[n]: which of these keys are there."""

    @abstractmethod
    def weights_of(self, direction: Direction, keys: Keys) -> Weights:
        """float32[n] weights of these keys, NaN where there is none; the rows must have weights."""

    @abstractmethod
    def keys_of(self, direction: Direction, vertices: Vertices) -> Keys:
        """The keys of the rows of these vertices, each named once."""

    @abstractmethod
    def neighbors(
        self, direction: Direction, vertex: int, first: int, limit: int
    ) -> tuple[Vertices, Weights | None]:
        """At most ``limit`` neighbours in a row from vertex ``first`` on, ascending, and weights if it has any."""

    @abstractmethod
    def degrees(self, direction: Direction) -> npt.NDArray[np.uint32]:
        """uint32[>= n_vertices], valid until the next change."""

    @abstractmethod
    def view(self, direction: Direction) -> RowView:
        """All rows, to be walked on the host; valid until the next change."""

    def row_words(self) -> tuple[Words, Words]:
        """Out-rows, and in-rows or in an undirected graph the same, as kernels take them (``rows.rows_in``); valid
        as ``view`` is, and kept by the words, as others may have other views made meanwhile.

        Raises:
            LookupError: no in-rows are kept.
        """
        return words_of(self.view("out")), words_of(self.view(self.shape.kept("in")))

    @abstractmethod
    def view_of(self, direction: Direction, vertices: Vertices) -> RowView:
        """The rows of these vertices, to be walked on the host, with others or without; valid as ``view`` is."""

    @abstractmethod
    def is_whole(self) -> bool:
        """Whether the host has all rows in one place, so that views cost nothing."""

    def in_place(self, n_vertices: int) -> tuple[RowView, RowView | None] | None:
        """Out-rows and in-rows (None: none are kept) where they lie, for readers in other threads until the next
        change begins; None: not all rows of so many vertices are the host's now."""
        return None

    @abstractmethod
    def mirror(self) -> Reader:
        """Single edges of the rows of the direction "in"."""

    @abstractmethod
    def export(self, direction: Direction) -> EdgeList:
        """All keys in ascending order, copied."""

    @abstractmethod
    def export_from(self, first_key: int, keys: Keys, weights: Weights) -> int:
        """Copy out-arcs from this key on into the columns, between two changes; returns how many."""

    @abstractmethod
    def check(self, out: EdgeList, in_: EdgeList | None) -> list[str]:
        """What is wrong with the sides among themselves, in words, given what they hold together."""


def of_rows(batch: EdgeBatch, shape: Shape, crew: Crew) -> tuple[EdgeBatch, EdgeBatch | None]:
    """Updates of edges, one direction each, as those of out-rows, and of in-rows where these are kept.

    Raises:
        MemoryError: there is not enough.
    """
    if not shape.directed:
        return both_directions(batch, crew), None
    return batch, turned(batch, crew) if shape.in_edges else None


def require_heads(keys: Keys, n_vertices: int, crew: Crew) -> None:
    """Check the heads of arcs; where they have rows, the array of these does.

    Raises:
        ValueError: an arc leads to a vertex that is not there.
    """
    if keys.size == 0 or largest_word(keys, crew) < n_vertices:
        return
    require_known(int((keys & LOW).max()), n_vertices)


def require_ends(keys: Keys, n_vertices: int, crew: Crew) -> None:
    """Check both ends of arcs.

    Raises:
        ValueError: an arc begins or ends at a vertex that is not there.
    """
    if keys.size:
        require_known(largest_word(keys, crew), n_vertices)
