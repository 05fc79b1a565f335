"""How much work a change may cost, in counted edges: the bars that are stated for path programs and components.

A sample runs by default; ``--run-long`` runs many more epochs.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from histories import Epoch, History, mixed_sizes, rmat_history

from graphtide.compute import path_program
from graphtide.compute.components import Components
from graphtide.compute.path_program import PathProgram
from graphtide.compute.program import Program, Refresh
from graphtide.compute.registry import KINDS, make_program
from graphtide.gpma.edges import EdgeBatch, Keys, Op, Vertices, destinations, pack, sources
from graphtide.partition.graph import Graph, GraphChange

SCALE = 16
DEGREE = 12
SIZES = (1, 30, 1_000)
PATH_KINDS = [kind for kind, cls in KINDS.items() if issubclass(cls, PathProgram)]
both_ways = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
pytestmark = pytest.mark.timeout(3_600)


class Run:
    """A program on a skewed graph, started from its largest hub."""

    def __init__(self, kind: str, history: History) -> None:
        load = history.epochs[0]
        self.graph = Graph(directed=history.directed)
        self.graph.apply(load.batch(weighted=True), load.n_vertices)
        hub = int(np.bincount(load.src).argmax())
        self.program: Program = make_program(kind, None, {"source": hub})
        self.program.bind(np.array([hub], np.uint32))
        self.program.start(self.graph)

    def step(self, epoch: Epoch) -> tuple[GraphChange, Refresh]:
        change = self.graph.apply(epoch.batch(weighted=True), epoch.n_vertices)
        return change, self.program.refresh(self.graph, change)

    def rows(self) -> npt.NDArray[np.int64]:
        """How many edges each vertex has, in and out."""
        n = self.graph.n_vertices
        return self.graph.out_rows().degrees[:n].astype(np.int64) + self.graph.in_rows().degrees[:n]


# -- path programs --------------------------------------------------------------------------------------------


class Invalidated:
    """Watches which vertices a path program invalidates in a refresh."""

    def __init__(self, program: PathProgram, monkeypatch: pytest.MonkeyPatch) -> None:
        self.vertices = np.empty(0, np.uint32)
        settle = program._settle

        def watched(graph, log, lost):  # type: ignore[no-untyped-def]
            n_lost, n_seeds, edges = settle(graph, log, lost)
            self.vertices = program._loss.queue[:n_lost].copy()
            return n_lost, n_seeds, edges

        monkeypatch.setattr(program, "_settle", watched)

    def forget(self) -> None:
        self.vertices = np.empty(0, np.uint32)


@pytest.mark.parametrize("kind", PATH_KINDS)
@both_ways
def test_path_programs_read_in_proportion_to_what_changes(
    kind: str, directed: bool, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most four times the batch and the rows of what was invalidated or changed, and a thousand edges more;
    and nothing is invalidated that does not depend on a lost support."""
    monkeypatch.setattr(path_program, "_SETTLE_FLOOR", 2**60)  # never start over
    sizes = SIZES * (100 if run_long else 6)
    history = rmat_history(5, directed=directed, scale=SCALE, degree=DEGREE, updates=sizes)
    run = Run(kind, history)
    program = run.program
    assert isinstance(program, PathProgram)
    invalidated = Invalidated(program, monkeypatch)
    n_invalidated = 0
    for epoch in history.epochs[1:]:
        before, rows_before = program.state()["word"].copy(), run.rows()
        invalidated.forget()
        change, refresh = run.step(epoch)
        assert not refresh.started_over
        changed = np.flatnonzero(program.state()["word"] != before)
        touched = np.union1d(invalidated.vertices, changed).astype(np.int64)
        moved = int(np.maximum(run.rows(), rows_before)[touched].sum())
        assert refresh.edges_read <= 4 * (len(epoch) + moved) + 1_000
        dependent = dependents(before.astype(np.uint32), lost_supports(change))
        assert dependent[invalidated.vertices].all()
        n_invalidated += invalidated.vertices.size
    assert n_invalidated > 0
    assert program.audit(run.graph) == []


def lost_supports(change: GraphChange) -> Keys:
    """The arcs that no longer are what they were: deleted ones, and those with another weight."""
    return np.concatenate([change.arcs.deleted.keys, change.arcs.overwritten.keys])


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


@pytest.mark.parametrize("kind", [*PATH_KINDS, "sspaths"])
def test_hardly_any_small_epoch_starts_over(kind: str, run_long: bool) -> None:
    """Under one in a hundred of at most a thousand updates, half of the epochs as large as that."""
    epochs = 1_000 if run_long else 60
    sizes = mixed_sizes(6, epochs // 2, 1_000) + [1_000] * (epochs // 2)
    history = rmat_history(6, directed=True, scale=SCALE, degree=DEGREE, updates=sizes)
    run = Run(kind, history)
    assert sum(run.step(epoch)[1].started_over for epoch in history.epochs[1:]) < epochs / 100


# -- components -----------------------------------------------------------------------------------------------

NEAR_EDGES_MAX = 10_000
"""What a deletion may read whose replacement is near."""


class DenseOrder:
    """External ids that are the dense ones."""

    def smallest(self, dense: Vertices) -> int:
        return int(dense.min())

    def sort_by_external(self, dense: Vertices) -> Vertices:
        return np.sort(dense)


def band(n: int) -> list[npt.NDArray[np.int64]]:
    """Each vertex is joined to those one to three further on: an edge has replacements a hop away, degrees are
    six, and paths are long."""
    v = np.arange(n)
    return [np.stack([v[:-k], v[k:]]) for k in (1, 2, 3)]


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


@pytest.mark.parametrize("shape", [band, band_below_a_hub, cliques_at_random], ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("n", [1_000, 100_000, 1_000_000])
@both_ways
def test_a_near_replacement_is_cheap_in_a_component_of_any_size(
    shape, n: int, directed: bool, run_long: bool
) -> None:
    """A deletion that has a replacement within two hops through vertices of few edges reads few edges."""
    if n > 100_000 and not run_long:
        pytest.skip("in full with --run-long")
    graph = Graph(directed=directed, weighted=False)
    src, dst = np.concatenate(shape(n), axis=1).astype(np.uint32)
    graph.apply(EdgeBatch(pack(src, dst), np.ones(src.size, np.uint8), None), n)
    program = Components("parts", DenseOrder())
    program.start(graph)
    rng = np.random.default_rng(1)
    searched = 0
    for child in rng.permutation(n)[: 300 if run_long else 60].tolist():
        parent = int(program.state()["parent"][child])
        if parent >= n or max(graph.out_rows().degrees[[child, parent]]) > 50:
            continue
        ends = np.array([[child, parent], [parent, child]], np.uint32)
        batch = EdgeBatch(pack(*ends), np.zeros(2, np.uint8), None)
        refresh = program.refresh(graph, graph.apply(batch, n))
        assert 0 < refresh.edges_read <= NEAR_EDGES_MAX
        assert not refresh.started_over
        assert program.scalars() == {"components": 1.0}
        searched += 1
    assert searched > 30
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
