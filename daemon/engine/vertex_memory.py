"""What a batch takes beside the slots of its edges: for new vertices columns of the storage, of programs and of
what is published, and for each update room, as long as it is worked on.

Columns grow where they lie, and the system refuses no page of them: so the memory for many new vertices is asked
for before the batch that brings them is applied. By then nothing has changed, and the batch can wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...compute.program import Program
from ...gpma.memory import UNASKED_BYTES
from ...partition.graph import Graph
from .standing import bytes_of, columns_of

MEASURED_MIN = 1 << 14
"""From so many vertices on, what a program has for one of them is what it will have for another."""

PROGRAM_BYTES = 80
"""Before that: about what a program of paths, components or ranks has for a vertex, work space included."""

GRAPH_BYTES = 18
"""Where its rows begin, their degrees, and whether it exists."""

COPIES = 2
"""Of what is published."""

UPDATE_BYTES = 100
"""Of each update, about what it takes to put a large batch in order, to report what became of it, and to work on
that in programs."""


def require_updates(graph: Graph, n: int) -> None:
    """Check that a batch of so many updates can be worked on.

    Raises:
        MemoryError: it cannot; the message says whose limit is in the way.
    """
    graph.memory.require(UPDATE_BYTES * n)


def require_vertices(graph: Graph, programs: Sequence[Program], n_new: int) -> None:
    """Check that so many new vertices find memory.

    Raises:
        MemoryError: they do not; the message says whose limit is in the way.
    """
    if n_new * (GRAPH_BYTES + 2 * PROGRAM_BYTES * len(programs)) < UNASKED_BYTES:
        return
    each = GRAPH_BYTES + sum(_bytes_of_vertex(program, graph.n_vertices) for program in programs)
    graph.memory.require(int(n_new * each))


def _bytes_of_vertex(program: Program, n_vertices: int) -> float:
    published = sum(column.dtype.itemsize for column in columns_of(program).values())
    held = bytes_of(program)
    # What has not begun holds next to nothing.
    own = held / n_vertices if held >= n_vertices >= MEASURED_MIN else PROGRAM_BYTES
    return own + COPIES * published
