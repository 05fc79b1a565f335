"""Shapes that break incremental algorithms, through the whole engine with every program that is registered.

After every epoch everything is audited in full, and each program compared with a fresh start of its own and with
libraries that share no code with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from histories import WEIGHTS, Epoch, deletes, epoch_of
from test_long import SOURCE, Keeper

from graphtide.gpma.edges import Op

Edge = tuple[int, int, float]
Story = list[Epoch]
"""Epochs between vertices of which 0 is the source."""


def put(edges: Sequence[Edge], n: int) -> Epoch:
    return epoch_of([(Op.INSERT, u, v, weight) for u, v, weight in edges], n)


def cut(edges: Sequence[Edge], n: int) -> Epoch:
    return deletes([(u, v) for u, v, _ in edges], n)


def path(first: int, last: int, weight: float = 1.0) -> list[Edge]:
    return [(u, v, weight) for u, v in itertools.pairwise(range(first, last + 1))]


def bridge_of_a_long_path() -> Story:
    """Cut in the middle, near either end, joined again elsewhere, and closed to a ring before the next cut."""
    n = 400
    whole = path(0, n - 1)
    middle, first, last = ([whole[k]] for k in (n // 2, 2, n - 3))
    around = [(n - 1, 0, 2.0)]
    return [
        put(whole, n),
        *(epoch for bridge in (middle, first, last) for epoch in (cut(bridge, n), put(bridge, n))),
        cut(middle, n),
        put([(0, n // 2 + 1, 7.0)], n),
        put([*middle, *around], n),
        cut(middle, n),
        cut(around, n),
    ]


def hub() -> Story:
    """A star with a sparse ring below it loses single spokes, all of them, and gets them back."""
    n = 300
    star = [(1, v, float(v % 3)) for v in range(2, n)]
    ring = [(v, v + 1, float(v % 5)) for v in range(2, n - 1, 2)]
    return [
        put([(0, 1, 1.0), *star, *ring, (n - 1, 2, 0.0)], n),
        cut(star[5:6], n),
        cut(star[::2], n),
        cut(star, n),
        put(star[:3], n),
        put(star, n),
        cut([(0, 1, 1.0)], n),
    ]


def whole_frontier() -> Story:
    """Layers, each joined to the next: all edges between two of them go at once, then come back."""
    layers = [[0], *(list(range(60 * k + 1, 60 * k + 61)) for k in range(4))]
    n = 60 * 4 + 1
    between = [
        [
            (u, below[(3 * i + j) % 60], float((u + j) % 4))
            for i, u in enumerate(above)
            for j in range(60 // len(above))
        ]
        for above, below in itertools.pairwise(layers)
    ]
    between = [edges if k == 0 else edges[::12] + edges[1::12] for k, edges in enumerate(between)]
    story = [put([edge for edges in between for edge in edges], n)]
    for edges in between:
        story += [cut(edges, n), put(edges, n)]
    return [*story, cut(between[1] + between[3], n), cut(between[0][1:], n)]


def plateaus() -> Story:
    """Rings of edges without weight, or of weights that a large distance absorbs, which lose what feeds them."""
    n = 90
    zeros = [(v, v + 1, 0.0) for v in range(1, 30)] + [(30, 1, 0.0)]
    absorbed = [(v, v + 1, 1.0) for v in range(31, 60)] + [(60, 31, 1.0)]
    ties = [(v, w, 2.0) for v in range(61, 75) for w in range(75, n)]
    fed = [(0, 1, 3.0), (0, 17, 3.0), (0, 31, 1e8), (0, 47, 1e8), *((0, v, 2.0) for v in range(61, 75))]
    return [
        put([*zeros, *absorbed, *ties, *fed], n),
        cut([fed[0], fed[2], *fed[4:8]], n),
        put(fed[:1], n),
        cut([fed[1], fed[3]], n),
        cut(fed, n),
        put([(0, 17, 1.0), (0, 47, 2.0), (0, 61, 0.5)], n),
        cut([*zeros[5:7], *absorbed[5:7]], n),
    ]


def worsened_tree_edges() -> Story:
    """Every edge of a tree gets worse, one after the other and all at once, and better again; then by turns."""
    n = 127
    tree = [((v - 1) // 2, v, 5.0) for v in range(1, n)]
    chords = [(v, (7 * v + 3) % n, 9.0) for v in range(0, n, 2)]
    return [
        put([*tree, *chords], n),
        put([(u, v, 50.0) for u, v, _ in tree[:3]], n),
        put([(u, v, 1.0) for u, v, _ in tree[:3]], n),
        put([(u, v, 50.0) for u, v, _ in tree], n),
        put([(u, v, 0.0) for u, v, _ in tree], n),
        put([(u, v, WEIGHTS[v % len(WEIGHTS)]) for u, v, _ in tree], n),
        put([(u, v, WEIGHTS[(v + 3) % len(WEIGHTS)]) for u, v, _ in tree], n),
    ]


def leaves_on_a_long_chain_below_a_hub() -> Story:
    """Many lead to a hub and from it to a chain with leaves; the hub is cut off, but for one long way round."""
    many, first, length = range(2, 60), 60, 150
    n = first + 2 * length + 2
    above = [(0, v, float(v % 5)) for v in many] + [(v, 1, float(v % 7)) for v in many]
    chain = [(1, first, 1.0), *path(first, first + length)]
    leaves = [(v, v + length + 1, 2.0) for v in range(first, first + length)]
    detour = [(0, n - 1, 9.0), (n - 1, 1, 9.0)]
    return [
        put([*above, *chain, *leaves], n),
        epoch_of([(Op.DELETE, u, v, 0.0) for u, v, _ in above[1:]] + [(Op.INSERT, *edge) for edge in detour], n),
        cut(chain[:1], n),
        put([(n - 1, first + 9, 3.0)], n),
        put([*above, *chain[:1]], n),
        cut([chain[length // 2], *leaves[::3]], n),
    ]


def two_cliques() -> Story:
    """They hang together by two edges, which go one after the other, and then come back the other way about."""
    left = [(a, b, 1.0) for a in range(25) for b in range(a)]
    right = [(a + 25, b + 25, 1.0) for a, b, _ in left]
    bridges = [(3, 40, 2.0), (30, 5, 1.0)]
    back = [(v, u, weight) for u, v, weight in bridges]
    return [
        put([*left, *right, *bridges, (0, 24, 1.0), (25, 49, 1.0)], 50),
        cut(bridges[:1], 50),
        cut(bridges[1:], 50),
        put(back, 50),
        put(bridges, 50),
        cut([*bridges, *back], 50),
    ]


def everything_goes_at_once() -> Story:
    """All edges in one epoch, then all vertices in one; both come back. So many that little is left to edit."""
    n = 150
    edges = [(u, (u * k + k * k) % n, float(k % 4)) for u in range(n) for k in range(1, 40)]
    return [
        put(edges, n),
        cut(edges, n),
        put(edges, n),
        epoch_of([(Op.DELETE_VERTEX, v, 0, 0.0) for v in range(n)], n),
        put(edges[::7], n),
        put(edges, n),
    ]


STORIES: tuple[Callable[[], Story], ...] = (
    bridge_of_a_long_path,
    hub,
    whole_frontier,
    plateaus,
    worsened_tree_edges,
    leaves_on_a_long_chain_below_a_hub,
    two_cliques,
    everything_goes_at_once,
)


def from_the_source(epoch: Epoch) -> Epoch:
    """Vertex 0 under the name of the source that all programs are given, and the other way about."""
    names = list(range(max(epoch.n_vertices, SOURCE + 1)))
    names[0], names[SOURCE] = SOURCE, 0
    renamed = [(op, names[u], names[v], w) for op, u, v, w in zip(*columns(epoch), strict=True)]
    return epoch_of(renamed, len(names))


def columns(epoch: Epoch) -> tuple[list[int], list[int], list[int], list[float]]:
    return epoch.ops.tolist(), epoch.src.tolist(), epoch.dst.tolist(), epoch.weights.tolist()


@pytest.mark.sample(4)
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_every_program_survives(story: Callable[[], Story], directed: bool) -> None:
    keeper = Keeper(directed=directed)
    try:
        for epoch in story():
            keeper.step(from_the_source(epoch))
            if keeper.graph.n_alive:
                keeper.compare()
    finally:
        keeper.close()
