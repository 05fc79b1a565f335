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


class NaiveGraph:
    """Weighted edges between vertices 0, 1, ...; in an undirected graph (u, v) and (v, u) are one edge.

    ``arcs`` holds what is stored: u -> v -> weight, both directions of an undirected edge, a loop once.
    """

    def __init__(self, directed: bool = True) -> None:
        self.directed = directed
        self.arcs: dict[int, dict[int, float]] = {}

    def apply(
        self,
        src: Iterable[int],
        dst: Iterable[int],
        ops: Iterable[int] | None = None,
        weights: Iterable[float] | None = None,
    ) -> NaiveReport:
        """Apply updates in order, the last one of a pair winning; ops are 1 (insert, default) or 0 (delete).

        The report is of edges; those of an undirected graph have the smaller vertex first.
        """
        pairs = list(zip(src, dst, strict=True))
        op_list = [1] * len(pairs) if ops is None else list(ops)
        weight_list = [1.0] * len(pairs) if weights is None else list(weights)
        last: dict[Edge, tuple[int, float]] = {}
        for pair, op, weight in zip(pairs, op_list, weight_list, strict=True):
            last[self._edge(*pair)] = (int(op), float(weight))
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
