"""Saved states of random-walk programs: what goes on from one, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from walks import apply, new_graph, random_edges, skewed

from graphtide.compute.saved_scalars import SCALARS, packed
from graphtide.compute.walks import PageRank, PersonalisedPageRank, RandomWalk
from graphtide.partition.graph import Graph

KINDS: tuple[type[RandomWalk], ...] = (PageRank, PersonalisedPageRank)
SOURCES = np.array([1, 3], np.uint32)


def made(kind: type[RandomWalk]) -> RandomWalk:
    return PersonalisedPageRank("p", (1, 3)) if kind is PersonalisedPageRank else kind("p")  # type: ignore[call-arg]


def started(kind: type[RandomWalk], graphs: list[Graph]) -> tuple[RandomWalk, Graph]:
    graph = skewed(graphs)
    program = made(kind)
    program.bind(SOURCES)
    program.start(graph)
    assert program.audit(graph) == []
    return program, graph


@pytest.mark.parametrize("kind", KINDS)
def test_goes_on_from_a_saved_state(kind: type[RandomWalk], graphs: list[Graph]) -> None:
    program, graph = started(kind, graphs)
    saved = {name: column.copy() for name, column in program.state().items()}
    restored = made(kind)
    restored.restore(saved, graph)
    assert restored.audit(graph) == []
    assert restored.scalars() == program.scalars()
    assert restored.state().keys() == saved.keys()
    for name, column in restored.state().items():
        assert np.array_equal(column, saved[name]), name
    rng = np.random.default_rng(10)
    for _ in range(3):
        change = apply(graph, [(u, v, 1) for u, v in random_edges(rng, 420, 50)], 420)
        kept, gone_on = (each.refresh(graph, change) for each in (program, restored))
        assert restored.audit(graph) == []
        assert gone_on.error_bound == restored.scalars()["error_bound"] <= restored.tolerance
        if kind is PageRank:  # its work does not depend on what was touched before
            assert kept.edges_read == gone_on.edges_read
            assert np.array_equal(program.columns()["estimate"][:420], restored.columns()["estimate"][:420])


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_another_graph_is_refused(kind: type[RandomWalk], graphs: list[Graph]) -> None:
    program, _ = started(kind, graphs)
    other = new_graph(edges=[(0, 1)])
    graphs.append(other)
    with pytest.raises(ValueError, match="not that of a graph of 2 vertices"):
        made(kind).restore(program.state(), other)
    assert "size" in {violation.rule for violation in program.audit(other)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_lacks_something_is_refused_by_its_name(kind: type[RandomWalk], graphs: list[Graph]) -> None:
    program, graph = started(kind, graphs)
    state = {name: column.copy() for name, column in program.state().items()}
    for name in state:
        with pytest.raises((KeyError, ValueError), match=name):
            made(kind).restore({other: state[other] for other in state if other != name}, graph)
    scalars = {name: float(state[SCALARS][name]) for name in state[SCALARS].dtype.names or ()}
    assert "norm" in scalars
    for name in scalars:
        without = {other: value for other, value in scalars.items() if other != name}
        for wrong, words in ((without, "missing"), ({**scalars, name: np.nan}, "no finite float64")):
            restored = made(kind)
            with pytest.raises(ValueError, match=f"the saved scalar '{name}' is {words}"):
                restored.restore({**state, SCALARS: packed(wrong)}, graph)
            if name == "norm":  # a start puts right what was taken over
                restored.bind(SOURCES)
                restored.start(graph)
                assert restored.audit(graph) == []
