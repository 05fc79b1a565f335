"""The oracle: a graph in plain Python dictionaries, written to be obviously right and never made faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Edge = tuple[int, int]


@dataclass
class NaiveReport:
    """What a batch changed: edge -> weight; ``overwritten`` maps to (old weight, new weight)."""

    inserted: dict[Edge, float] = field(default_factory=dict)
    overwritten: dict[Edge, tuple[float, float]] = field(default_factory=dict)
    deleted: dict[Edge, float] = field(default_factory=dict)
    absent: set[Edge] = field(default_factory=set)
    deleted_vertices: set[int] = field(default_factory=set)
    revived_vertices: set[int] = field(default_factory=set)
    absent_vertices: set[int] = field(default_factory=set)


class NaiveGraph:
    """Weighted edges between vertices 0, 1, ...; in an undirected graph (u, v) and (v, u) are one edge.

    ``arcs`` holds what is stored: u -> v -> weight, both directions of an undirected edge, a loop once.
    ``known`` are the vertices that ever were named by an insert, ``alive`` those that exist.
    """

    def __init__(self, directed: bool = True) -> None:
        self.directed = directed
        self.arcs: dict[int, dict[int, float]] = {}
        self.known: set[int] = set()
        self.alive: set[int] = set()

    def apply(
        self,
        src: Iterable[int],
        dst: Iterable[int],
        ops: Iterable[int] | None = None,
        weights: Iterable[float] | None = None,
    ) -> NaiveReport:
        """Apply updates in order, the last one of a pair winning.

        ops are those of the wire: 1 (insert, default), 0 (delete), 2 (insert the vertex src), 3 (delete the
        vertex src). The report is of edges, and of vertices known before the batch (``deleted_vertices``: and of
        those that came and went in it); edges of an undirected graph have the smaller vertex first.
        """
        pairs = list(zip(src, dst, strict=True))
        op_list = [1] * len(pairs) if ops is None else list(ops)
        weight_list = [1.0] * len(pairs) if weights is None else list(weights)
        last: dict[Edge, tuple[int, float]] = {}
        known, alive = set(self.known), set(self.alive)
        unlinked: set[int] = set()
        for (u, v), op, weight in zip(pairs, op_list, weight_list, strict=True):
            if op == 3:
                last = {edge: update for edge, update in last.items() if u not in edge}
                unlinked.add(u)
                self.alive.discard(u)
            elif op == 2:
                self.known.add(u)
                self.alive.add(u)
            else:
                last[self._edge(u, v)] = (int(op), float(weight))
                if op == 1:
                    self.known |= {u, v}
                    self.alive |= {u, v}
        for edge in self.edges():
            if unlinked & set(edge):
                last.setdefault(edge, (0, 0.0))
        report = NaiveReport()
        for edge, (op, weight) in sorted(last.items()):
            old = self.weight(*edge)
            if op == 1 and old is None:
                report.inserted[edge] = weight
            elif op == 1 and old is not None:
                report.overwritten[edge] = (old, weight)
            elif old is not None:
                report.deleted[edge] = old
            else:
                report.absent.add(edge)
            self._store(edge, weight if op == 1 else None)
        report.deleted_vertices = (alive | (self.known - known)) - self.alive
        report.revived_vertices = (self.alive & known) - alive
        report.absent_vertices = unlinked - alive - self.alive
        return report

    def weight(self, u: int, v: int) -> float | None:
        """The weight of an edge; None when there is no such edge."""
        return self.arcs.get(u, {}).get(v)

    def contents(self) -> dict[Edge, float]:
        """Every stored arc with its weight, in ascending order."""
        return {(u, v): row[v] for u, row in sorted(self.arcs.items()) for v in sorted(row)}

    def edges(self) -> dict[Edge, float]:
        """Every edge once, with its weight, in ascending order."""
        return {edge: weight for edge, weight in self.contents().items() if edge == self._edge(*edge)}

    def out_neighbors(self, u: int) -> dict[int, float]:
        """The heads of u's out-arcs with their weights, ascending."""
        return dict(sorted(self.arcs.get(u, {}).items()))

    def in_neighbors(self, v: int) -> dict[int, float]:
        """The tails of v's in-arcs with their weights, ascending."""
        return {u: row[v] for u, row in sorted(self.arcs.items()) if v in row}

    def _edge(self, u: int, v: int) -> Edge:
        u, v = int(u), int(v)
        return (u, v) if self.directed or u <= v else (v, u)

    def _store(self, edge: Edge, weight: float | None) -> None:
        for u, v in {edge} if self.directed else {edge, edge[::-1]}:
            row = self.arcs.setdefault(u, {})
            if weight is None:
                row.pop(v, None)
            else:
                row[v] = weight


def best_values(
    arcs: Iterable[tuple[int, int, float]],
    n_vertices: int,
    sources: Iterable[int],
    at_source: np.generic,
    gather: Callable[[Any, Any], Any],
    better: Callable[[Any, Any], bool],
) -> list[np.generic | None]:
    """The values of a path program by relaxing every edge until nothing changes; None where no path leads.

    Values are of the type of ``at_source``; every offer is rounded to it at once.
    """
    cast = type(at_source)
    edges = [(u, v, np.float32(weight)) for u, v, weight in arcs]
    value: list[np.generic | None] = [None] * n_vertices
    for source in sources:
        value[source] = at_source
    changed = True
    while changed:
        changed = False
        for u, v, weight in edges:
            if value[u] is None:
                continue
            with np.errstate(over="ignore"):
                offer = gather(value[u], weight)
            if offer is None:
                continue
            offer = cast(offer)
            if value[v] is None or better(offer, value[v]):
                value[v] = offer
                changed = True
    return value
