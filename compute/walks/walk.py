"""What random-walk programs share: the accumulating form of a vertex program.

Such a program solves a linear system: a vertex gathers a share, d * value / degree, from each in-neighbour, on
top of a right-hand side of its own,

    value[v] = rhs[v] + sum over edges (u, v) of d * value[u] / degree[u],

and normalises the values when they are read, which spreads the mass of dangling vertices over the right-hand
side (Langville and Meyer, "Google's PageRank and Beyond", 2006). A program declares its right-hand side and
its stopping rule; edits, pushes, dense passes and the check of residuals are common (``edits.py``,
``passes.py``). PageRank restarts everywhere and bounds the relative error of every vertex; personalised
PageRank restarts at its sources and bounds the error in sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Vertices
from ...gpma.vertex_columns import resized, with_room
from ...partition.graph import Graph, GraphChange
from ..program import EVIDENCE, Column, Program, Violation
from . import edits as walk_kernels
from .edits import Editing
from .passes import Estimate, Pulls

F64 = npt.NDArray[np.float64]

NARROWED = 2.0**-24 * 1.1
"""By how much of itself a result may be off where its estimate is published as a float32. What is beyond 2^-24 is
for what that makes of the error of the estimate."""
# Of tolerances from here on so much is left to that, on either processor.
_NARROWED_FROM = 1e-6

# Columns have a capacity of a multiple of this many vertices.
GRAIN = 128


class _Bounds(NamedTuple):
    """Numbers from ``low`` to ``high``."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"from {self.low:g} to {self.high:g}"

    def parse(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            raise ValueError(f"a number {self}")
        return float(value)


DAMPING, TOLERANCE = _Bounds(0.01, 0.99), _Bounds(1e-8, 0.1)


def parse_damping(value: Any) -> float:
    """The damping factor.

    Raises:
        ValueError: it is not a number within ``DAMPING``.
    """
    return DAMPING.parse(value)


def parse_tolerance(value: Any) -> float:
    """The largest error.

    Raises:
        ValueError: it is not a number within ``TOLERANCE``.
    """
    return TOLERANCE.parse(value)


class Edit(NamedTuple):
    """What an edge change did to one system.

    ``rescaled``: the vertices whose value changed, each once; ``touched``: those whose residual did, some
    repeatedly. By how much the sums grew: ``norm_by`` that of positive values, ``size_by`` that of the sizes of
    residuals, ``total_by`` that of residuals. ``rounded``, ``slipped``: see ``Editing``.
    """

    rescaled: Vertices
    touched: Vertices
    norm_by: float
    size_by: float
    total_by: float
    rounded: float
    slipped: float
    edges_read: int

    @classmethod
    def from_editing(cls, editing: Editing) -> Edit:
        """What ``edit_rows`` has told."""
        n_rescaled, n_touched, edges = map(int, editing.counts)
        norm_by, size_by, total_by, rounded, slipped = map(float, editing.sums)
        rescaled, touched = editing.rescaled[:n_rescaled], editing.touched[:n_touched]
        return cls(rescaled, touched, norm_by, size_by, total_by, rounded, slipped, edges)


class RandomWalk(Program):
    """A program of the accumulating form, with a residual that audits can recompute from in-edges.

    ``drift`` is the largest difference between a kept residual and the recomputed one that an audit has seen
    since the program began, in units of what the certificate allows: rounding piles up in residuals that live
    long, and a dense pass takes it away.
    """

    family = "walk"
    value = np.float64
    value_scalars = ("norm",)
    needs_in_edges = True

    def __init__(self, id: str, damping: float, tolerance: float) -> None:
        super().__init__(id)
        self.damping = damping
        self.tolerance = tolerance
        self.drift = 0.0
        self.narrowed = 0.0
        """By how much results may be off since they are published with fewer digits; ``error_bound`` counts it."""
        self._pulls = Pulls(damping)

    def warm_up(self, graph: Graph) -> None:
        self._pulls.warm_up(graph.crew, graph.in_rows(), graph.out_rows().degrees, graph.n_vertices)

    @property
    def solved_tolerance(self) -> float:
        """What of the tolerance is left to the error of estimates."""
        return self.tolerance - NARROWED if self.tolerance >= _NARROWED_FROM else self.tolerance

    def _edit(self, graph: Graph, change: GraphChange, estimate: Estimate) -> Edit:
        """Make the residual that of the changed graph; work in proportion to the change."""
        inserted, deleted = change.arcs.inserted.keys, change.arcs.deleted.keys
        editing = Editing.of(estimate.value, estimate.residual, inserted.size + deleted.size)
        walk_kernels.edit_rows(graph.out_rows(), inserted, deleted, self.damping, editing)
        return Edit.from_editing(editing)

    def _true_residual(self, graph: Graph, estimate: Estimate, begin: int, end: int) -> tuple[F64, int]:
        """(residual of vertices begin .. end - 1, recomputed from their in-edges; edges read)."""
        received = np.empty(end - begin)
        edges = walk_kernels.received(
            graph.rows_between("in", begin, end),
            graph.degrees("out"),
            begin,
            end,
            self.damping,
            estimate.value,
            received,
        )
        return estimate.rhs[begin:end] - estimate.value[begin:end] + received, int(edges)


def padded(n: int) -> int:
    """The capacity of columns for n vertices."""
    return max(1, -(-n // GRAIN)) * GRAIN


def room_for(n: int, column: Column) -> int:
    """The capacity of columns like this one that are to hold n vertices and some more."""
    return padded(max(n, with_room(column)))


def extended(column: Column, size: int) -> Column:
    """The column with this size, zeros behind what there was; see ``vertex_columns.resized``."""
    return resized(column, size, 0)


def born(graph: Graph, change: GraphChange, known: int) -> Vertices:
    """Vertices that exist now and did not before the change: new ones (from ``known`` on) and revived ones."""
    if graph.n_vertices == known:
        return change.revived_vertices
    new = np.arange(known, graph.n_vertices, dtype=np.uint32)
    new = np.setdiff1d(new, change.deleted_vertices, assume_unique=True)
    return np.concatenate([new, change.revived_vertices])


def require_columns(state: Mapping[str, Column], names: Iterable[str], n: int) -> None:
    """Check that a saved state has these columns, of n vertices.

    Raises:
        ValueError: one is missing or of another length; the message names it.
    """
    for name in names:
        if name not in state or state[name].shape != (n,):
            raise ValueError(f"the saved {name} is not that of a graph of {n} vertices")


def violations(rules: dict[str, npt.NDArray[np.bool_]], begin: int) -> list[Violation]:
    """One violation for each rule that does not hold everywhere; rules are about vertices from ``begin`` on."""
    found = []
    for rule, holds in rules.items():
        wrong = np.flatnonzero(~holds)
        if wrong.size:
            vertices = tuple(int(v) + begin for v in wrong[:EVIDENCE])
            found.append(Violation(rule, f"at {wrong.size} vertices", vertices))
    return found
