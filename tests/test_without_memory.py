"""Random histories of graphs in which memory is lacking at any moment: each change is there as a whole, or was not
begun and may be tried again, or is known to have failed in its middle."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from graphtide.gpma.edges import EdgeBatch, EdgeList, pack
from graphtide.gpma.host import array
from graphtide.partition import graph as graph_module
from graphtide.partition import host_side
from graphtide.partition.existence import VertexOps
from graphtide.partition.graph import Graph, NoMemory

SHAPES: dict[str, dict[str, bool]] = {
    "directed": {},
    "undirected": {"directed": False},
    "out-rows": {"in_edges": False, "weighted": False},
}
SIZES = (3, 300, host_side.SMALL_UPDATES_MAX + 1, host_side.ONE_CALL_UPDATES_MAX + 1)
ALLOCATING = ("empty", "zeros", "full", "concatenate", "ones")


@dataclass
class Model:
    """The arcs that there are, with their weights, and what vertices."""

    directed: bool
    arcs: dict[tuple[int, int], float] = field(default_factory=dict)
    n_vertices: int = 0

    def apply(self, batch: EdgeBatch, deleted: int | None) -> None:
        if deleted is not None:
            self.arcs = {ends: weight for ends, weight in self.arcs.items() if deleted not in ends}
        weights = np.ones(len(batch)) if batch.weights is None else batch.weights
        for key, op, weight in zip(batch.keys.tolist(), batch.ops.tolist(), weights.tolist(), strict=True):
            u, v = divmod(key, 1 << 32)
            for ends in {(u, v)} if self.directed else {(u, v), (v, u)}:
                if op:
                    self.arcs[ends] = weight
                else:
                    self.arcs.pop(ends, None)


def contents(edges: list[EdgeList]) -> dict[tuple[int, int], float]:
    found = {}
    for piece in edges:
        weights = np.ones(len(piece)) if piece.weights is None or not piece.weights.size else piece.weights
        for key, weight in zip(piece.keys.tolist(), weights.tolist(), strict=True):
            found[divmod(key, 1 << 32)] = weight
    return found


@contextlib.contextmanager
def lacking_at(at: int) -> Iterator[list[str]]:
    """Let the at-th allocation of NumPy's fail, whoever asks; a list that grows with each."""
    asked: list[str] = []

    def counted(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(*arguments: Any, **options: Any) -> Any:
            asked.append(name)
            if len(asked) == at:
                raise MemoryError
            return make(*arguments, **options)

        return allocate

    with contextlib.ExitStack() as patched:
        for name in ALLOCATING:
            patched.enter_context(mock.patch.object(np, name, counted(name, getattr(np, name))))
        yield asked


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """While NumPy is another one nothing can be compiled."""
    for module in (array, host_side, graph_module):
        module.warm_up()
    for options in SHAPES.values():
        history(np.random.default_rng(0), options, steps=8, lacks=False)


def history(rng: np.random.Generator, options: dict[str, bool], *, steps: int, lacks: bool = True) -> int:
    """Play a history; how many changes found no memory."""
    refused, vertices = 0, 300
    with contextlib.closing(Graph(**options, threads=host_side.DIVIDED_THREADS_MIN)) as graph:
        model = Model(graph.directed)
        copy = graph.begin_copy()
        for step in range(steps):
            n = SIZES[step % len(SIZES)]
            vertices += int(rng.integers(0, 3)) * 20
            src, dst = rng.integers(0, vertices, n), rng.integers(0, vertices, n)
            ops = (rng.random(n) < (0.75, 0.3)[step % 3 == 2]).astype(np.uint8)
            batch = EdgeBatch.of(src, dst, ops, rng.integers(1, 9, n) if graph.weighted else None)
            deleted = int(rng.integers(model.n_vertices)) if model.n_vertices and rng.random() < 0.3 else None
            vertex_ops = None
            if deleted is not None:  # before all else, which may bring it back
                vertex_ops = VertexOps(
                    np.array([deleted], np.uint32), np.full(1, 3, np.uint8), np.zeros(1, np.int64)
                )
            before = (contents([graph.export()]), graph.n_vertices, graph.n_edges, graph.n_alive)
            at = int(rng.integers(1, 120))
            refusal: Exception | None = None
            with lacking_at(at) if lacks else contextlib.nullcontext():
                try:
                    graph.apply(batch, vertices, vertex_ops)
                except (NoMemory, RuntimeError) as error:
                    refusal = error
            if isinstance(refusal, RuntimeError):
                assert str(refusal) == host_side.UNFINISHED and graph.check() == [str(refusal)]
                graph.end_copy(copy)
                keys = np.array(sorted(model.arcs), np.uint32).reshape(-1, 2)
                weights = np.array([model.arcs[u, v] for u, v in keys.tolist()], np.float32)
                graph.load(EdgeList(pack(*keys.T), weights if graph.weighted else None), vertices)
                copy = graph.begin_copy()
                before = (model.arcs, graph.n_vertices, graph.n_edges, graph.n_alive)
            if refusal is not None:
                refused += 1
                assert graph.check() == []
                assert (contents([graph.export()]), graph.n_vertices, graph.n_edges, graph.n_alive) == before
                graph.apply(batch, vertices, vertex_ops)
            model.apply(batch, deleted)
            model.n_vertices = vertices
            assert graph.check() == []
            assert contents([graph.export()]) == model.arcs
        copy.finish()
        assert contents(copy.edges()) == model.arcs
    return refused


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_change_is_whole_or_was_not_begun(shape: str, seed: int) -> None:
    history(np.random.default_rng(seed), SHAPES[shape], steps=6)


def test_such_histories_find_no_memory_often() -> None:
    assert history(np.random.default_rng(1), {}, steps=12) > 3
