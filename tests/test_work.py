"""How much work a change may cost, in counted edges and steps: the bars that are stated for path programs, counts
of paths and components.

A sample runs by default; ``--run-long`` runs many more epochs.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from histories import Epoch, History, mixed_sizes, rmat_history
from path_runs import Invalidated

from graphtide.compute.counts import sspaths
from graphtide.compute.counts.sspaths import SSPaths
from graphtide.compute.forest.components import Components
from graphtide.compute.paths import program as path_program
from graphtide.compute.paths.program import PathProgram
from graphtide.compute.paths.sssp import SSSP
from graphtide.compute.program import Program, Refresh
from graphtide.compute.registry import KINDS, make_program
from graphtide.gpma.edges import EdgeBatch, Keys, Op, Vertices, destinations, pack, sources
from graphtide.gpma.index.id_order import IdOrder, order_of
from graphtide.partition.graph import Graph, GraphChange

SCALE = 16
DEGREE = 12
SIZES = (1, 30, 1_000)
VERTEX_SHARE = 0.002
"""So many of the updates delete a vertex, and most of those a hub."""
PATH_KINDS = [kind for kind, cls in KINDS.items() if issubclass(cls, PathProgram)]
both_ways = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
pytestmark = pytest.mark.timeout(3_600)


class Run:
    """A program on a skewed graph, started from its largest hub."""

    def __init__(self, kind: str, history: History) -> None:
        load = history.epochs[0]
        self.graph = Graph(directed=history.directed)
        self.graph.apply(load.batch(weighted=True), load.n_vertices)
        self.hub = int(np.bincount(load.src).argmax())
        self.program: Program = make_program(kind, None, {"source": self.hub})
        self.program.bind(np.array([self.hub], np.uint32))
        self.program.start(self.graph)

    def step(self, epoch: Epoch) -> tuple[GraphChange, Refresh]:
        """The source itself stays: without it all is lost, and there is nothing to bound."""
        ops = epoch.ops.copy()
        ops[(ops == Op.DELETE_VERTEX) & (epoch.src == self.hub)] = Op.INSERT_VERTEX
        epoch = replace(epoch, ops=ops)
        change = self.graph.apply(epoch.batch(weighted=True), epoch.n_vertices, epoch.vertex_ops())
        return change, self.program.refresh(self.graph, change)

    def values(self) -> npt.NDArray[np.uint64]:
        """The first column that the program publishes, bit by bit."""
        (column,) = self.program.columns().values()
        return column[: self.graph.n_vertices].view(np.uint64).copy()

    def rows(self) -> npt.NDArray[np.int64]:
        """How many edges each vertex has, in and out."""
        n = self.graph.n_vertices
        return self.graph.out_rows().degrees[:n].astype(np.int64) + self.graph.in_rows().degrees[:n]


# -- path programs --------------------------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", [*PATH_KINDS, "sspaths"])
@both_ways
def test_path_programs_read_in_proportion_to_what_changes(
    kind: str, directed: bool, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most four times the batch and the rows of what was invalidated or changed, and a thousand edges more;
    and nothing is invalidated that does not depend on a lost support.

    For counts of paths it is twice: their hops read little, and then each vertex with another count reads its row
    once against the edges, to count anew, and once along them, to tell those behind it.
    """
    share = 2 if kind == "sspaths" else 4
    monkeypatch.setattr(path_program, "_SETTLE_FLOOR", 2**60)  # never start over
    monkeypatch.setattr(sspaths, "_WORK_FLOOR", 2**60)
    sizes = SIZES * (100 if run_long else 6)
    history = rmat_history(
        5, directed=directed, scale=SCALE, degree=DEGREE, updates=sizes, vertex_share=VERTEX_SHARE
    )
    run = Run(kind, history)
    path = run.program._hops if isinstance(run.program, SSPaths) else run.program
    assert isinstance(path, PathProgram)
    invalidated = Invalidated(path, monkeypatch)
    n_invalidated = n_vertices = 0
    for epoch in history.epochs[1:]:
        words, values, rows_before = path.state()["word"].copy(), run.values(), run.rows()
        invalidated.forget()
        change, refresh = run.step(epoch)
        assert not refresh.started_over
        changed = np.flatnonzero((path.state()["word"] != words) | (run.values() != values))
        touched = np.union1d(invalidated.vertices, changed).astype(np.int64)
        moved = int(np.maximum(run.rows(), rows_before)[touched].sum())
        assert refresh.edges_read <= share * (len(epoch) + moved) + 1_000
        assert refresh.active <= 2 * (len(epoch) + touched.size) + 100
        dependent = dependents(words.astype(np.uint32), lost_supports(change, kind))
        assert dependent[invalidated.vertices].all()
        n_invalidated += invalidated.vertices.size
        n_vertices += change.deleted_vertices.size
    assert n_invalidated > 0 and n_vertices > 0
    assert run.program.audit(run.graph) == []


def lost_supports(change: GraphChange, kind: str) -> Keys:
    """The arcs that support less than they did: deleted ones, and those of a worse weight."""
    arcs = change.arcs
    assert arcs.overwritten.weights is not None and arcs.overwritten_old is not None
    new, old = arcs.overwritten.weights, arcs.overwritten_old
    worse = {"sssp": new > old, "sswp": new < old}.get(kind, np.zeros(new.size, bool))
    return np.concatenate([arcs.deleted.keys, arcs.overwritten.keys[worse]])


def dependents(parent: Vertices, lost: Keys) -> npt.NDArray[np.bool_]:
    """bool[n]: the vertices whose value came over one of these arcs, by the forest from before."""
    below = np.zeros(parent.size, bool)
    heads = destinations(lost)
    below[heads[parent[heads] == sources(lost)]] = True
    has_parent = parent < parent.size
    above = np.where(has_parent, parent, 0)
    while True:
        more = below | (below[above] & has_parent)
        if (more == below).all():
            return below
        below = more


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", [*PATH_KINDS, "sspaths"])
@both_ways
def test_hardly_any_small_epoch_starts_over(kind: str, directed: bool, run_long: bool) -> None:
    """Under one in a hundred of at most a thousand updates, half of the epochs as large as that."""
    epochs = 1_000 if run_long else 60
    sizes = mixed_sizes(6, epochs // 2, 1_000) + [1_000] * (epochs // 2)
    history = rmat_history(6, directed=directed, scale=SCALE, degree=DEGREE, updates=sizes)
    run = Run(kind, history)
    assert sum(run.step(epoch)[1].started_over for epoch in history.epochs[1:]) < epochs / 100


@pytest.mark.parametrize("threads", [1, 2])
def test_many_that_improve_along_one_path_are_pushed_in_order(threads: int) -> None:
    """A thousand new ways to places along a path, each of them better than all behind it: whoever pushed all of
    them side by side would go along most of the path a thousand times."""
    n, places = 20_000, 1_000
    path = np.arange(n, dtype=np.int64)
    with contextlib.closing(Graph(weighted=True, threads=threads)) as graph:
        graph.apply(EdgeBatch.of(path[:-1], path[1:], weights=np.full(n - 1, 64, np.float32)), n)
        program = SSSP("sssp", (0,))
        program.bind(np.zeros(1, np.uint32))
        program.start(graph)
        heads = np.arange(1, places + 1) * (n // (places + 1))
        weights = (64 * heads - np.arange(places, 0, -1)).astype(np.float32)
        change = graph.apply(EdgeBatch.of(np.zeros(places, np.int64), heads, weights=weights), n)
        refresh = program.refresh(graph, change)
        assert not refresh.started_over and program.audit(graph) == []
        assert n - heads[0] <= refresh.edges_read <= 4 * n


# -- components -----------------------------------------------------------------------------------------------

NEAR_EDGES_MAX = 10_000
"""What a deletion may read whose replacement is near."""
NEAR_STEPS_MAX = 200
"""How many steps it may go along the forest, however deep that is."""
MANY_STEPS_MAX = 20
"""How many steps each of many in one epoch may go, in the mean."""
SAMPLED = ("ladder", 1_000_000, False)
"""Of the largest graphs, the one that is tested by default."""


class DenseOrder:
    """External ids that are the dense ones."""

    def smallest(self, dense: Vertices) -> int:
        return int(dense.min())

    def sort_by_external(self, dense: Vertices) -> Vertices:
        return np.sort(dense)

    def comparable(self, n_vertices: int) -> IdOrder:
        return order_of()


def band(n: int) -> list[npt.NDArray[np.int64]]:
    """Each vertex is joined to those one to three further on: an edge has replacements a hop away, degrees are
    six, and paths are long."""
    v = np.arange(n)
    return [np.stack([v[:-k], v[k:]]) for k in (1, 2, 3)]


def ladder(n: int) -> list[npt.NDArray[np.int64]]:
    """Two rails and their rungs, under names that tell nothing."""
    name = np.random.default_rng(n).permutation(n)
    v = np.arange(n // 2)
    rails = [np.stack([name[rail[:-1]], name[rail[1:]]]) for rail in (v, v + n // 2)]
    return [*rails, np.stack([name[v], name[v + n // 2]])]


def band_below_a_hub(n: int) -> list[npt.NDArray[np.int64]]:
    """The same, and one vertex joined to every tenth of the others."""
    spokes = np.arange(5, n - 1, 10)
    return [*band(n - 1), np.stack([np.full(spokes.size, n - 1), spokes])]


def cliques_at_random(n: int) -> list[npt.NDArray[np.int64]]:
    """Small cliques, joined at random: degrees of about 50, and most replacements within two hops."""
    rng = np.random.default_rng(n)
    cliques = [np.stack([v := np.arange(n), (v // 40) * 40 + (v + k) % 40]) for k in range(1, 20)]
    shuffled = [np.stack([np.arange(n), rng.permutation(n)]) for _ in range(5)]
    return [pairs[:, (pairs < n).all(axis=0)] for pairs in (*cliques, *shuffled)]


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "shape", [band, ladder, band_below_a_hub, cliques_at_random], ids=lambda shape: shape.__name__
)
@pytest.mark.parametrize("n", [1_000, 100_000, 1_000_000])
@both_ways
def test_a_near_replacement_is_cheap_in_a_component_of_any_size(
    shape, n: int, directed: bool, run_long: bool
) -> None:
    """A deletion that has a replacement within two hops through vertices of few edges reads few edges, and goes
    few steps; and so do many in one epoch, each of them."""
    if n > 100_000 and not run_long and (shape.__name__, n, directed) != SAMPLED:
        pytest.skip("in full with --run-long")
    graph = Graph(directed=directed, weighted=False)
    src, dst = np.concatenate(shape(n), axis=1).astype(np.uint32)
    graph.apply(EdgeBatch(pack(src, dst), np.ones(src.size, np.uint8), None), n)
    program = Components("parts", DenseOrder())
    program.start(graph)
    rng = np.random.default_rng(1)

    def few_edges(child: int) -> bool:
        parent = int(program.state()["parent"][child])
        return parent < n and max(graph.out_rows().degrees[[child, parent]]) <= 50

    def without_links_of(children: list[int]) -> Refresh:
        """Delete them; then put them back, which costs nothing."""
        ends = np.stack([children, program.state()["parent"][children]]).astype(np.uint32)
        keys = np.concatenate([pack(*ends), pack(*ends[::-1])])
        present = graph.has_edge(keys)
        refresh = program.refresh(graph, graph.apply(EdgeBatch(keys, np.zeros(keys.size, np.uint8), None), n))
        assert not refresh.started_over
        assert program.scalars() == {"components": 1.0}
        keys = keys[present]
        back = program.refresh(graph, graph.apply(EdgeBatch(keys, np.ones(keys.size, np.uint8), None), n))
        assert back.edges_read == back.active == 0
        return refresh

    searched = 0
    for child in rng.permutation(n)[: 300 if run_long else 60].tolist():
        if few_edges(child):
            refresh = without_links_of([child])
            assert 0 < refresh.edges_read <= NEAR_EDGES_MAX
            assert refresh.active <= NEAR_STEPS_MAX
            searched += 1
    assert searched > 30
    children = [child for child in rng.permutation(n)[: min(n // 100, 200)].tolist() if few_edges(child)]
    refresh = without_links_of(children)
    assert refresh.active <= MANY_STEPS_MAX * len(children)
    assert program.audit(graph) == []


@pytest.mark.parametrize("n", [0, 1_000, 100_000])
@both_ways
def test_the_farthest_of_near_replacements_is_cheap(n: int, directed: bool) -> None:
    """Two trees of 50 edges a vertex and two levels, whose last leaves are joined to each other; chains of n
    vertices hang on the leaves before them. The link between the roots is cut."""
    fan = 49
    leaves = fan * fan
    edges = [(0, 1)]
    last = []
    for root in (0, 1):
        children = [2 + root * (fan + leaves) + k for k in range(fan)]
        edges += [(root, child) for child in children]
        below = [children[-1] + 1 + k for k in range(leaves)]
        edges += [(children[k // fan], leaf) for k, leaf in enumerate(below)]
        last.append(below[-2:])
    edges.append((last[0][1], last[1][1]))
    first = last[1][1] + 1
    for root in (0, 1):
        chain = [last[root][0], *range(first + root * n, first + (root + 1) * n)]
        edges += list(itertools.pairwise(chain))
    total = first + 2 * n
    graph = Graph(directed=directed, weighted=False)
    src, dst = np.array(edges, np.uint32).T
    graph.apply(EdgeBatch.of(src, dst), total)
    program = Components("parts", DenseOrder())
    program.start(graph)
    refresh = program.refresh(graph, graph.apply(EdgeBatch.of([0], [1], [Op.DELETE]), total))
    assert leaves < refresh.edges_read <= NEAR_EDGES_MAX
    assert program.scalars() == {"components": 1.0} and program.audit(graph) == []
