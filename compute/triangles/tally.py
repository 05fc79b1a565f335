"""A whole number for each vertex that every triangle with this vertex adds to, kept true under changes.

A change is taken link by link (``change.py``), without reading what did not change. Where that would cost more
than counting from scratch (``start.py``), a refresh starts over; both costs are known beforehand, in steps of
merging two rows. The numbers are whole, so that neither order nor threads matter.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Vertices
from ...gpma.memory import Memory
from ...partition.graph import Graph, GraphChange
from ..links import Links, all_entries, changed_links
from ..program import Column, Program, Refresh, Violation, grown, marked_violations, require_saved, size_violations
from ..saved_scalars import SCALARS, packed, unpacked
from . import change as changing
from . import start as counting
from .change import Differences

# A change starts over when it has more than this share of a start's steps, each of which takes a twelfth as long
# (RMAT scales 16 and 18); and none that has less than so many steps.
_START_SHARE = 0.085
_STEPS_FLOOR = 1 << 14
# How the work of a start grows with the links, while a graph keeps its shape; and up to how many times as many
# that is believed. Past that a start seems cheaper than it may be, and the one that comes of it puts that right.
_GROWTH = 1.5
_GROWTH_MAX = 4.0

_RULES = (
    ("tally", counting.WRONG_TALLY, "another number of triangles, or of arcs between neighbours"),
    ("neighbors", counting.WRONG_NEIGHBORS, "another number of neighbours"),
)


class Tally(Program):
    """Of each vertex, what its triangles add up to: ``_tally`` (uint64), the column that comes first.

    Each triangle adds one, or, where ``weighs`` is set, the arcs of the side opposite to the vertex.
    """

    weighs: ClassVar[bool]
    family: ClassVar[str] = "tally"
    needs_in_edges: ClassVar[bool] = True
    value_scalars: ClassVar[tuple[str, ...] | None] = ()

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._n = 0
        self._n_alive = 0
        # What the last start cost, on a graph of how many arcs.
        self._start_steps, self._start_arcs = 0.0, 0.0
        self._tally = np.empty(0, np.uint64)
        self._neighbors = np.empty(0, np.uint32)
        self._differences = Differences(np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.uint32))
        # For the audit: zeros.
        self._near = np.empty(0, np.uint8)

    # -- what the two members differ in -----------------------------------------------------------------

    @abstractmethod
    def _added_up(self) -> None:
        """All columns are new: add up what the scalars are made of."""

    @abstractmethod
    def _take(self, vertices: Vertices, delta: npt.NDArray[np.int64], links: Links) -> dict[str, Vertices]:
        """Let the tallies of these vertices (ascending) differ by so much, none of it 0, and the scalars with
        them.

        Returns the entries that differ, by column.
        """

    @abstractmethod
    def _audit_scalars(self) -> list[Violation]:
        """What is wrong with the scalars, going by the columns."""

    # -- runs -------------------------------------------------------------------------------------------

    def start(self, graph: Graph) -> Refresh:
        Memory().require(self._bytes_to_start(graph))
        n = graph.n_vertices
        self._grow(graph)
        self._tally[:n] = 0
        # A change that failed half way leaves some.
        self._differences.delta[:] = 0
        self._differences.listed[:] = 0
        rows = graph.out_rows(), graph.in_rows(), graph.directed
        steps = counting.count_all(*rows, self.weighs, n, self._tally, self._neighbors, graph.crew)
        self._start_steps, self._start_arcs = float(steps), float(graph.n_arcs)
        self._added_up()
        return Refresh(dict.fromkeys(self.columns()), iterations=1, edges_read=int(steps), active=n)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        before = self._n
        self._grow(graph)
        links = self.changed_links(graph, change)
        vertices, delta = np.empty(0, np.uint32), np.empty(0, np.int64)
        read = touched = 0
        if links.keys.size:
            rows = graph.out_rows(), graph.in_rows(), graph.directed
            steps, most = changing.survey(links, *rows)
            if steps > self.steps_max(graph, _START_SHARE) and Memory().allows(self._bytes_to_start(graph)):
                return replace(self.start(graph), started_over=True)
            touched, read = changing.tally(links, *rows, self.weighs, self._differences, steps, most, graph.crew)
            vertices, delta = self._collect(int(touched))
        return Refresh(
            self._changed(vertices, delta, links, before),
            iterations=int(links.keys.size > 0),
            edges_read=int(read),
            active=int(touched),
        )

    def _changed(
        self, vertices: Vertices, delta: npt.NDArray[np.int64], links: Links, before: int
    ) -> dict[str, Vertices | None]:
        """As ``_take``, for a change since which the vertices from ``before`` on are there; no empty entries."""
        changed = self._take(vertices, delta, links)
        if self._n > before:
            new = np.arange(before, self._n, dtype=np.uint32)
            changed = {
                name: np.concatenate([entries[: np.searchsorted(entries, before)], new])
                for name, entries in changed.items()
            }
        return {name: entries for name, entries in changed.items() if entries.size}

    def changed_links(self, graph: Graph, change: GraphChange) -> Links:
        """The links whose change may make a difference."""
        links = changed_links(graph, change)
        return links if self.weighs else links.made_or_ended()

    def steps_max(self, graph: Graph, share: float) -> float:
        """A change that costs more steps than this starts over, where a start takes as long as this share of its
        steps would in a change."""
        return max(_STEPS_FLOOR, share * self._steps_of_start(graph))

    # -- what was counted elsewhere -----------------------------------------------------------------------

    def take_all(
        self, graph: Graph, tally: npt.NDArray[np.uint64], neighbors: Vertices, steps: int
    ) -> dict[str, Vertices | None]:
        """Take over the tally and the number of links of each vertex, counted from scratch in so many steps."""
        self._grow(graph)
        self._tally[: self._n] = tally
        if self._neighbors.size:
            self._neighbors[: self._n] = neighbors
        self._start_steps, self._start_arcs = float(steps), float(graph.n_arcs)
        self._added_up()
        return dict.fromkeys(self.columns())

    def take_change(
        self, graph: Graph, vertices: Vertices, delta: npt.NDArray[np.int64], links: Links
    ) -> dict[str, Vertices | None]:
        """Take over by how much the tallies of some vertices differ (each once), after a change of these links.

        Returns the entries that differ, by column.
        """
        before = self._n
        self._grow(graph)
        differs = np.flatnonzero(delta)
        order = differs[np.argsort(vertices[differs])]
        return self._changed(vertices[order], delta[order], links, before)

    def _steps_of_start(self, graph: Graph) -> float:
        """About what a start would cost, from what the last one did."""
        if not self._start_arcs:
            return 0.0
        return self._start_steps * math.pow(min(graph.n_arcs / self._start_arcs, _GROWTH_MAX), _GROWTH)

    def _bytes_to_start(self, graph: Graph) -> int:
        """What a start needs beside what is kept."""
        return counting.bytes_to_count(graph.n_vertices, all_entries(graph), self.weighs, graph.crew.threads)

    def _collect(self, touched: int) -> tuple[Vertices, npt.NDArray[np.int64]]:
        """Empty the differences: the vertices that have one, ascending, and how large it is."""
        delta, listed, vertices = self._differences
        vertices = np.sort(vertices[:touched])
        amounts = delta[vertices]
        delta[vertices] = 0
        listed[vertices] = 0
        differs = amounts != 0
        return vertices[differs], amounts[differs]

    # -- state ------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Column]:
        columns = {name: column[: self._n] for name, column in self.columns().items()}
        return {**columns, SCALARS: packed({"start_steps": self._start_steps, "start_arcs": self._start_arcs})}

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        n = graph.n_vertices
        require_saved(state, self.columns(), n)
        scalars = unpacked(state, ("start_steps", "start_arcs"))
        self._grow(graph)
        for name, column in self.columns().items():
            column[:n] = state[name]
            column[n:] = 0
        self._start_steps, self._start_arcs = scalars["start_steps"], scalars["start_arcs"]
        self._added_up()

    def memory_bytes(self) -> int:
        return sum(column.nbytes for column in (self._tally, self._neighbors, self._near, *self._differences))

    def _grow(self, graph: Graph) -> None:
        """Have an entry for each vertex; new ones have no links."""
        self._n, self._n_alive = graph.n_vertices, graph.n_alive
        if self._n > self._tally.size:
            self._tally = grown(self._tally, self._n, 0)
            size = self._tally.size
            delta, listed, touched = self._differences
            self._differences = Differences(grown(delta, size, 0), grown(listed, size, 0), grown(touched, size))

    # -- audit ------------------------------------------------------------------------------------------

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        """Count the triangles of these vertices anew; all slices together prove every tally."""
        if missed := size_violations(self._n, graph):
            return missed, 0
        wrong = np.zeros(end - begin, np.uint8)
        rows = graph.out_rows(), graph.in_rows(), graph.directed
        self._near = grown(self._near, self._n, 0)
        kept = self._near, self._tally, self._neighbors
        edges = counting.audit(*rows, self.weighs, *kept, begin, end, wrong)
        return marked_violations(_RULES, wrong, begin), int(edges)

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        return self._audit_scalars(), 0
