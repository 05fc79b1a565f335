"""The undirected simple view of a graph, and what changes do to it, against sets."""

from __future__ import annotations

import numpy as np
import pytest
from histories import EdgeSet, Epoch, History, epoch_of, inserts, random_history, small_histories
from hypothesis import given, settings
from sampling import examples

from graphtide.compute.links import NOW_SHIFT, SAME, Links, changed_links, lay_over, list_links
from graphtide.gpma.edges import Op
from graphtide.partition.graph import Graph

both_ways = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])


def links_of(edges: EdgeSet) -> dict[tuple[int, int], int]:
    """The arcs of each link, which is named from either end."""
    arcs = {(u, v) for u, v, _ in edges.arcs() if u != v}
    return {(u, v): ((u, v) in arcs) + ((v, u) in arcs) for pair in arcs for u, v in (pair, pair[::-1])}


class Watched:
    """A graph whose changed links are compared with those of an oracle, and laid over its rows."""

    def __init__(self, *, directed: bool) -> None:
        self.graph = Graph(directed=directed, weighted=False, threads=1)
        self.edges = EdgeSet(directed=directed)

    def step(self, epoch: Epoch) -> Links:
        before = links_of(self.edges)
        change = self.graph.apply(epoch.batch(), epoch.n_vertices, epoch.vertex_ops())
        self.edges.apply(epoch)
        after = links_of(self.edges)
        links = changed_links(self.graph, change)
        pairs = [(key >> 32, key & 0xFFFF_FFFF) for key in links.keys.tolist()]
        assert pairs == sorted(pairs)
        numbers = zip(links.before.tolist(), links.after.tolist(), strict=True)
        differs = {pair for pair in {*before, *after} if before.get(pair, 0) != after.get(pair, 0)}
        expected = {pair: (before.get(pair, 0), after.get(pair, 0)) for pair in differs}
        assert dict(zip(pairs, numbers, strict=True)) == expected
        for u in range(epoch.n_vertices):
            mine = {v for a, v in {*before, *after} if a == u}
            assert self.listed(links, u) == {v: (before.get((u, v), 0), after.get((u, v), 0)) for v in mine}
        return links

    def listed(self, links: Links, u: int) -> dict[int, tuple[int, int]]:
        """The links of u as a kernel lists them: before and after by the other end."""
        rows = self.graph.out_rows(), self.graph.in_rows(), self.graph.directed
        size = int(rows[0].degrees[u]) + int(rows[1].degrees[u]) + links.keys.size
        tails, row, arcs = np.empty(size, np.uint32), np.empty(size, np.uint32), np.empty(size, np.uint8)
        n = list_links(*rows, u, tails, row, arcs)
        assert (arcs[:n] % SAME == 0).all()
        n = lay_over(links, u, row, arcs, n)
        assert (np.diff(row[:n].astype(np.int64)) > 0).all()
        pairs = zip((arcs[:n] % (1 << NOW_SHIFT)).tolist(), (arcs[:n] >> NOW_SHIFT).tolist(), strict=True)
        return dict(zip(row[:n].tolist(), pairs, strict=True))

    def close(self) -> None:
        self.graph.close()


@settings(deadline=None, max_examples=examples(100))
@given(history=small_histories())
def test_any_history(history: History) -> None:
    watched = Watched(directed=history.directed)
    for epoch in history.epochs:
        watched.step(epoch)
    watched.close()


@both_ways
@pytest.mark.parametrize("seed", range(3))
def test_vertices_that_go_and_come_back(directed: bool, seed: int) -> None:
    watched = Watched(directed=directed)
    changed = 0
    for epoch in random_history(seed, directed=directed, vertex_share=0.1).epochs:
        changed += watched.step(epoch).keys.size
    assert changed > 200
    watched.close()


def test_arcs_of_one_link_in_one_batch() -> None:
    watched = Watched(directed=True)
    assert watched.step(inserts([(0, 1), (1, 0), (2, 2)], 3)).after.tolist() == [2, 2]
    turned = watched.step(inserts([(1, 2)], 3))
    assert turned.before.tolist() == [0, 0] and turned.after.tolist() == [1, 1]
    reversed_ = [(Op.INSERT, 2, 1, 1.0), (Op.DELETE, 1, 2, 1.0)]
    assert watched.step(epoch_of(reversed_, 3)).keys.size == 0
    one_less = watched.step(epoch_of([(Op.DELETE, 0, 1, 1.0)], 3))
    assert one_less.before.tolist() == [2, 2] and one_less.after.tolist() == [1, 1]
    assert one_less.made_or_ended().keys.size == 0
    ended = watched.step(epoch_of([(Op.DELETE, 1, 0, 1.0), (Op.INSERT, 0, 2, 1.0)], 3)).made_or_ended()
    assert ended.keys.tolist() == [1, 2, 1 << 32, 2 << 32]
    assert ended.before.tolist() == [1, 0, 1, 0] and ended.after.tolist() == [0, 1, 0, 1]
    watched.close()
