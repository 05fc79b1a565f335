"""The two example graphs of LDBC Graphalytics, with the outputs that its validation has for them.

Graphs and outputs are those of graphalytics-validation/src/main/resources/validation-graphs/example in
https://github.com/ldbc/ldbc_graphalytics. Levels, components and communities are compared exactly, distances
(which are float32 here) and coefficients to within a relative error that is a thousandth of the one allowed there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphtide.compute.engine import Engine
from graphtide.compute.program import Published
from graphtide.compute.registry import make_program
from graphtide.gpma.edges import EdgeBatch, Op, Vertices
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

RELATIVE_ERROR = 1e-7
ROUNDS = 2
"""Of label propagation, in these examples."""

DIRECTED = [
    *((1, 3, 0.5), (1, 5, 0.3), (2, 4, 0.1), (2, 5, 0.3), (2, 10, 0.12), (3, 1, 0.53), (3, 5, 0.62), (3, 8, 0.21)),
    *((3, 10, 0.52), (5, 3, 0.69), (5, 4, 0.53), (5, 8, 0.1), (6, 3, 0.23), (6, 4, 0.39), (7, 4, 0.83)),
    *((8, 1, 0.39), (9, 4, 0.69)),
]
UNDIRECTED = [
    *((2, 3, 0.9), (2, 4, 0.69), (3, 4, 0.13), (3, 5, 0.5), (3, 8, 0.32), (5, 6, 0.63), (5, 8, 0.12)),
    *((6, 7, 0.53), (6, 8, 0.64), (6, 9, 0.23), (6, 10, 0.63), (7, 9, 0.36)),
]
NONE = None
EXPECTED: dict[bool, dict[str, list[Any]]] = {
    True: {  # of vertices 1 to 10; searches start at 1
        "bfs": [0, NONE, 1, 2, 1, NONE, NONE, 2, NONE, 2],
        "components": [1] * 10,
        "sssp": [0, NONE, 0.5, 0.83, 0.3, NONE, NONE, 0.4, NONE, 1.02],
        "lcc": [2 / 3, 1 / 6, 0.15, 0.05, 0.25, 0, 0, 5 / 6, 0, 0],
        "cdlp": [1, 2, 3, 4, 1, 1, 2, 3, 2, 1],
    },
    False: {  # of vertices 2 to 10; searches start at 2
        "bfs": [0, 1, 1, 2, 3, 4, 2, 4, 4],
        "components": [2] * 9,
        "sssp": [0, 0.82, 0.69, 1.26, 1.78, 2.31, 1.14, 2.01, 2.41],
        "lcc": [1, 1 / 3, 1, 2 / 3, 0.2, 1, 2 / 3, 1, 0],
        "cdlp": [2, 3, 2, 2, 6, 5, 2, 5, 5],
    },
}


@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_the_outputs_for_the_example_graphs(directed: bool) -> None:
    """Reached edge by edge; and once more after every edge in turn was taken away and given back."""
    edges = DIRECTED if directed else UNDIRECTED
    first = 1 if directed else 2
    index = VertexIndex.create("int")
    graph = Graph(directed=directed, weighted=True)

    def dense(ids: Any) -> Vertices:
        return index.lookup(np.array(ids, np.int64))

    given = {"bfs": {"source": first}, "sssp": {"source": first}, "cdlp": {"rounds": ROUNDS}}
    programs = [make_program(kind, kind, given.get(kind, {}), index) for kind in EXPECTED[directed]]
    engine = Engine(graph, programs, dense)
    engine.start()

    def step(op: Op, src: int, dst: int, weight: float) -> None:
        ends = index.insert_edges(np.array([src]), np.array([dst]))
        batch = EdgeBatch.of(*ends, np.array([op], np.uint8), np.array([weight], np.float32))
        runs = engine.refresh(graph.apply(batch, index.n_vertices))
        assert all(run.error is None for run in runs)

    def check() -> None:
        vertices = dense(range(first, 11))
        for program, expected in zip(programs, EXPECTED[directed].values(), strict=True):
            answer = program.read(Published(program.columns(), program.scalars(), graph.n_vertices), vertices)
            values = index.external(answer.values) if answer.vertex_valued else answer.values
            found = [None if null else value for value, null in zip(values.tolist(), answer.null, strict=True)]
            if program.id in ("bfs", "components", "cdlp"):
                assert found == expected
            else:
                near = [None if value is None else pytest.approx(value, rel=RELATIVE_ERROR) for value in expected]
                assert found == near

    for edge in edges:
        step(Op.INSERT, *edge)
    check()
    for edge in edges:
        step(Op.DELETE, *edge)
        step(Op.INSERT, *edge)
    check()
    engine.close()
    graph.close()
