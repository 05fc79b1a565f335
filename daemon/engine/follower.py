"""One program on a graph of its own, which follows the stream's graph: to compute without stopping the stream.

It begins with a copy of the graph at the end of some epoch, made while epochs went on, and computes from scratch.
What changed meanwhile it takes as one batch, however many epochs it was, computes, and so on: each batch is
shorter than the one before as long as a batch takes less time than it gathered in. In the end both graphs are
equal, and the program goes over: programs know a graph by dense ids alone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...compute.engine import Engine, ProgramRun, Resolve
from ...compute.program import Program
from ...gpma.edges import EdgeBatch, EdgeList, Keys, Op, Vertices
from ...partition.existence import VertexOps
from ...partition.graph import Graph, GraphChange


@dataclass(frozen=True, slots=True)
class GraphCopy:
    """The graph of one epoch: its out-arcs in ascending pieces, and which dense ids are no vertices."""

    pieces: list[EdgeList]
    n_vertices: int
    dead: Vertices

    def edges(self, *, weighted: bool) -> EdgeList:
        """In one piece. The copy is used up by this: its memory is wanted for what comes next."""
        keys = np.concatenate([piece.keys for piece in self.pieces])
        weights = [piece.weights for piece in self.pieces if weighted and piece.weights is not None]
        self.pieces.clear()
        return EdgeList(keys, np.concatenate(weights) if weighted else None)


class Since:
    """What the graph has changed since some epoch, for one who follows; noted by the engine's thread.

    Where there is one, vertices keep their dense ids: whoever holds those of an epoch before finds their names.
    """

    def __init__(self, *, follows: bool) -> None:
        """``follows``: whether the changes are wanted, and not only the names."""
        self._follows = follows
        self._lock = threading.Lock()
        self._changes: list[GraphChange] = []
        self._gives_way = False
        self.updates = 0
        """How many arcs and vertices the changes name that were not taken."""

    def note(self, change: GraphChange) -> None:
        """The next change."""
        if self._follows:
            with self._lock:
                self._changes.append(change)
                self.updates += _size(change)

    def give_way(self) -> None:
        """The stream needs memory: whoever follows is to let go of what it has (``check``)."""
        self._gives_way = True

    def check(self) -> None:
        """To be asked before each longer step.

        Raises:
            MemoryError: it gives way to the stream.
        """
        if self._gives_way:
            raise MemoryError("updates wait for memory, and come first")

    def take(self) -> list[GraphChange]:
        """The changes since the last call, in their order."""
        with self._lock:
            taken, self._changes, self.updates = self._changes, [], 0
            return taken


class Follower:
    """A program and its own graph; one thread at a time calls it."""

    def __init__(self, like: Graph, program: Program, resolve: Resolve, threads: int) -> None:
        """``like``: the graph to be followed; ``resolve``: as ``Engine`` takes it; ``threads``: of its own."""
        self.program = program
        self.graph = Graph(
            directed=like.directed,
            weighted=like.weighted,
            negative_weights=like.weight_domain == "any",
            in_edges=program.needs_in_edges,
            in_weights=program.needs_in_edges and program.needs_weights,
            threads=threads,
        )
        self.engine = Engine(self.graph, [program], resolve)

    def start(self, copied: GraphCopy) -> ProgramRun:
        """Compute from scratch; the copy is used up.

        Raises:
            MemoryError: there is not enough memory.
        """
        self.graph.load(copied.edges(weighted=self.graph.weighted), copied.n_vertices, copied.dead)
        return _ran(self.engine.start())

    def follow(self, changes: Sequence[GraphChange]) -> ProgramRun | None:
        """Take these changes, which follow those before; None where there are none.

        Raises:
            MemoryError: there is not enough memory.
        """
        if not changes:
            return None
        batch, ops = merged(changes, directed=self.graph.directed, weighted=self.graph.weighted)
        return _ran(self.engine.refresh(self.graph.apply(batch, changes[-1].n_vertices, ops)))

    def close(self) -> None:
        """End the threads."""
        self.engine.close()
        self.graph.close()


def _ran(runs: Sequence[ProgramRun]) -> ProgramRun:
    """The run of the only program; want of memory is no fault of it."""
    (run,) = runs
    if run.error is not None and run.error.startswith(MemoryError.__name__):
        raise MemoryError(run.error)
    return run


def merged(
    changes: Sequence[GraphChange], *, directed: bool, weighted: bool
) -> tuple[EdgeBatch, VertexOps | None]:
    """A batch that does to a graph what these changes, one after the other, did to its like."""
    keys: list[Keys] = []
    ops, weights, vertices, vertex_ops, positions = [], [], [], [], []
    size = 0
    for change in changes:
        arcs = change.arcs
        gone = arcs.deleted if directed else arcs.deleted.each_once()
        came = [part if directed else part.each_once() for part in (arcs.inserted, arcs.overwritten)]
        for part, op in ((gone, Op.DELETE), *((part, Op.INSERT) for part in came)):
            keys.append(part.keys)
            ops.append(np.full(len(part), op, np.uint8))
            if weighted:
                weights.append(np.zeros(len(part), np.float32) if part.weights is None else part.weights)
        # Behind the deletions, before the insertions: none of these names a vertex that is gone after the change.
        for named, vertex_op in (
            (change.deleted_vertices, Op.DELETE_VERTEX),
            (change.revived_vertices, Op.INSERT_VERTEX),
        ):
            vertices.append(named)
            vertex_ops.append(np.full(named.size, vertex_op, np.uint8))
            positions.append(np.full(named.size, size + len(gone), np.int64))
        size += len(gone) + sum(map(len, came))
    batch = EdgeBatch(np.concatenate(keys), np.concatenate(ops), np.concatenate(weights) if weighted else None)
    named = np.concatenate(vertices)
    if named.size == 0:
        return batch, None
    return batch, VertexOps(named, np.concatenate(vertex_ops), np.concatenate(positions))


def _size(change: GraphChange) -> int:
    arcs = change.arcs
    n_arcs = len(arcs.inserted) + len(arcs.overwritten) + len(arcs.deleted)
    return n_arcs + change.deleted_vertices.size + change.revived_vertices.size
