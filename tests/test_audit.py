"""The background audit: everything is proven within one pass, whatever is broken is found within one pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from histories import deletes, inserts, random_history, rmat_edges, small_histories
from hypothesis import given, settings
from sampling import examples

from graphtide.compute import registry
from graphtide.compute.audit import auditor as module
from graphtide.compute.audit.auditor import Auditor, Pass, Step
from graphtide.compute.audit.storage import audit_leaves, audit_totals, leaf_after
from graphtide.compute.counts.sspaths import SSPaths
from graphtide.compute.engine import STORAGE, Engine
from graphtide.compute.forest.components import Components
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.program import ExternalId, Program, Published, Violation
from graphtide.compute.walks.pagerank import PageRank
from graphtide.gpma.edges import NO_VERTEX, EdgeBatch, Vertices
from graphtide.gpma.index.id_order import IdOrder, order_of
from graphtide.partition.graph import Graph, GraphChange

EPOCH = (1, 1)
SLICE = 1e-9
"""Seconds so few that every slice is as small as can be."""


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first slices, too."""
    monkeypatch.setattr(module, "FIRST_WORK", 1)


class DenseIds:
    """External ids that fall as the dense ones rise, so that the order of one is no excuse for the other."""

    def resolve(self, ids: Sequence[int | str]) -> Vertices:
        return np.array(ids, np.uint32)

    def smallest(self, dense: Vertices) -> int:
        return int(dense.max())

    def sort_by_external(self, dense: Vertices) -> Vertices:
        return np.sort(dense)[::-1]

    def comparable(self, n_vertices: int) -> IdOrder:
        return order_of(-np.arange(n_vertices))


KEPT: list[Kept] = []
"""Those of this test; they are closed at its end."""


@pytest.fixture(autouse=True)
def _closed_kept() -> Iterator[None]:
    yield
    while KEPT:
        KEPT.pop().close()


class Kept:
    """A graph with every kind of program, and an auditor with a clock that stands still: slices stay small."""

    def __init__(self, *, directed: bool = True, weighted: bool = True) -> None:
        self.graph = Graph(directed=directed, weighted=weighted)
        ids = DenseIds()
        self.hops = BFS("hops", (0,))
        self.parts = Components("parts", ids)
        self.ranks = PageRank("ranks")
        self.paths = SSPaths("paths", (0,))
        self.engine = Engine(self.graph, [self.hops, self.parts, self.ranks, self.paths], ids.resolve)
        self.auditor = Auditor(self.graph, self.engine)
        self.engine.start()
        KEPT.append(self)

    def close(self) -> None:
        self.engine.close()
        self.graph.close()

    def apply(self, batch: EdgeBatch, n: int) -> GraphChange:
        change = self.graph.apply(batch, n)
        assert all(run.error is None for run in self.engine.refresh(change))
        return change

    def one_pass(self, seconds: float = SLICE) -> list[Step]:
        """Steps until a pass ends."""
        steps = []
        for _ in range(100_000):
            steps.append(self.auditor.step(seconds, EPOCH))
            if steps[-1].ended is not None:
                return steps
        raise AssertionError("the pass never ends")

    def found(self) -> set[tuple[str, str]]:
        """(target, rule) of everything that one pass finds."""
        return {(step.target, violation.rule) for step in self.one_pass() for violation in step.violations}


def two_islands(directed: bool = True, weighted: bool = True) -> Kept:
    """Vertices 0 .. 299 well connected, 300 .. 309 a ring, 310 alone."""
    kept = Kept(directed=directed, weighted=weighted)
    rng = np.random.default_rng(3)
    pairs = [*itertools.pairwise(range(300)), *map(tuple, rng.integers(0, 300, (900, 2)).tolist())]
    ring = [(300 + k, 300 + (k + 1) % 10) for k in range(10)]
    src, dst = zip(*pairs, *ring, strict=True)
    weights = rng.random(len(src)).astype(np.float32) if weighted else None
    kept.apply(EdgeBatch.of(src, dst, None, weights), 311)
    return kept


# -- what is right passes -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(40))
@given(small_histories())
def test_a_pass_over_a_right_state_finds_nothing(history) -> None:
    kept = Kept(directed=history.directed)
    for epoch in history.epochs:
        kept.apply(epoch.batch(weighted=True), epoch.n_vertices)
        assert kept.found() == set()
    assert kept.auditor.passes == len(history.epochs)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_pass_that_spans_epochs_finds_nothing_where_nothing_is_wrong(directed: bool, weighted: bool) -> None:
    kept = Kept(directed=directed, weighted=weighted)
    for number, epoch in enumerate(random_history(2, directed=directed, epochs=60).epochs):
        kept.apply(epoch.batch(weighted=weighted), epoch.n_vertices)
        for _ in range(12):
            step = kept.auditor.step(SLICE, (1, number))
            assert step.violations == ()
            if step.ended is not None:
                assert step.ended.first_epoch < step.ended.last_epoch == (1, number)
    assert kept.auditor.passes >= 1


def test_slices_cover_everything_and_follow_the_pace() -> None:
    kept = two_islands()
    assert kept.auditor.is_between_passes and kept.auditor.coverage == 0
    steps = kept.one_pass()
    assert len(steps) > 100 and steps[-1].ended is not None and steps[-1].ended.violations == 0
    assert {step.target for step in steps} == {STORAGE, "hops", "parts", "ranks", "paths"}
    coarse = kept.one_pass(seconds=10.0)
    assert len(coarse) < len(steps) / 5
    assert sum(step.edges_read for step in coarse) <= sum(step.edges_read for step in steps)
    # Both arrays by leaves, hops and ranks at least once, parts out (and in), paths in.
    assert sum(step.edges_read for step in coarse) >= 6 * kept.graph.n_arcs


def test_coverage_rises_from_nothing_to_all() -> None:
    kept = two_islands()
    seen = [0.0]
    while (step := kept.auditor.step(SLICE, EPOCH)).ended is None:
        assert not kept.auditor.is_between_passes
        seen.append(kept.auditor.coverage)
    assert seen == sorted(seen) and 0.8 < seen[-1] < 1 and len(set(seen)) > 100
    assert kept.auditor.coverage == 0
    assert step.ended == Pass(EPOCH, EPOCH, step.ended.seconds, 0)


@pytest.mark.parametrize("directed", [True, False])
def test_a_slice_reads_no_more_than_it_is_given_but_a_hub_of_which_it_warns(
    directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time stands still, so that a slice is always given the same work: as much as the least pace allows."""
    monkeypatch.setattr(module, "FIRST_WORK", 2_000)
    kept = two_islands(directed)
    kept.auditor = Auditor(kept.graph, kept.engine, clock=lambda: 0.0)
    star = 20_000
    spokes = np.arange(400, 400 + star)
    kept.apply(EdgeBatch.of(spokes, np.full(star, 7)), 400 + star)
    kept.apply(EdgeBatch.of(np.full(star, 8), spokes), 400 + star)
    seconds = 2_000 * module.PACE_MIN
    alone: dict[str, int] = {}
    ended = None
    while ended is None:
        is_whole = kept.auditor.next_is_whole(seconds)
        step = kept.auditor.step(seconds, EPOCH)
        ended = step.ended
        assert step.violations == ()
        if is_whole:
            alone[step.target] = alone.get(step.target, 0) + 1
        else:  # ranks read every in-edge twice
            assert step.edges_read <= 2 * 2_000
    # Both hubs, what only ``audit_whole`` sees, and of the storage its totals alone: a leaf is never too long.
    assert alone == {STORAGE: 1, "hops": 3, "parts": 3, "ranks": 3, "paths": 3}


def test_vertices_that_come_during_a_pass_are_covered() -> None:
    kept = two_islands()
    while kept.auditor.step(SLICE, EPOCH).target != "parts":
        pass
    kept.apply(EdgeBatch.of([310], [400]), 401)
    kept.parts.columns()["representative"][kept.parts.columns()["handle"][400]] = 310
    found = [v.rule for step in kept.one_pass() for v in step.violations if step.target == "parts"]
    assert "representative" in found


def test_a_program_that_is_quarantined_or_whole_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = two_islands()
    while kept.auditor.step(SLICE, EPOCH).target != "hops":
        pass

    def fail(*_: object) -> None:
        raise RuntimeError("sick")

    monkeypatch.setattr(kept.parts, "refresh", fail)
    kept.engine.refresh(kept.graph.apply(inserts([(0, 299)], 311).batch(), 311))
    steps = kept.one_pass()
    assert not [step for step in steps if step.target == "parts" and step.edges_read]
    assert not any(step.violations for step in steps)
    assert steps[-1].ended is not None and steps[-1].ended.left_out == ("parts",)
    kept.engine.start(["parts"])
    assert kept.one_pass()[-1].ended == Pass(EPOCH, EPOCH, kept.auditor._seconds, 0)


def test_an_audit_that_fails_is_a_violation_and_the_pass_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = two_islands()

    def fail(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(kept.parts, "audit_whole", fail)
    violations = [v for step in kept.one_pass() for v in step.violations]
    assert violations == [Violation("audit", "the audit itself failed: ZeroDivisionError: oops")]


# -- what is broken is found within one pass, wherever the pass stands -----------------------------------------


def _wrong_hops(kept: Kept) -> None:
    kept.hops.columns()["word"][200] += np.uint64(1 << 32)


def _miscounted_hops(kept: Kept) -> None:
    """The path lost an end, and its level is counted all the same."""
    kept.hops._levels._counts[0] += 1


def _self_supporting_hops(kept: Kept) -> None:
    """Two vertices of the ring that reach each other, as after a deletion that was not followed up."""
    word = kept.hops.columns()["word"]
    for k in range(10):
        word[300 + k] = (50 + k) << 32 | (300 + (k - 1) % 10)
    word[300] = 60 << 32 | 309


def _self_supporting_parts(kept: Kept) -> None:
    """Links of the ring that go round and round."""
    forest = kept.parts._forest
    for k in range(10):
        forest.parent[300 + k] = 300 + (k + 1) % 10


def _missed_split(kept: Kept) -> None:
    """The ring and the lone vertex as one component, the link between them being no edge."""
    forest = kept.parts._forest
    lone, ring = forest.handle[310], forest.handle[300]
    forest.handle[310] = ring
    forest.parent[310] = 305
    forest.size[ring] += 1
    forest.size[lone] = 0


def _wrong_label(kept: Kept) -> None:
    forest = kept.parts._forest
    forest.representative[forest.handle[300]] = 304


def _wrong_size(kept: Kept) -> None:
    forest = kept.parts._forest
    forest.size[forest.handle[300]] = 11


def _wrong_residual(kept: Kept) -> None:
    kept.ranks.state()["residual"][17] += 1e-3


def _wrong_estimate(kept: Kept) -> None:
    kept.ranks.columns()["estimate"][17] *= 1.5


def _wrong_count(kept: Kept) -> None:
    kept.paths.columns()["count"][250] += 1


def _missed_deletion(kept: Kept) -> None:
    """The graph loses an edge on which hops, a component and counts stand; no program hears of it."""
    kept.graph.apply(deletes([(0, 1), (304, 305), (309, 300)], 311).batch(weighted=True), 311)


def _missed_join(kept: Kept) -> None:
    """An edge between the islands that no program hears of."""
    kept.graph.apply(inserts([(20, 305)], 311).batch(weighted=True), 311)


BROKEN: list[tuple[Callable[[Kept], None], set[tuple[str, str]]]] = [
    (_wrong_hops, {("hops", "value")}),
    (_miscounted_hops, {("hops", "levels")}),
    (_self_supporting_hops, {("hops", "forest")}),
    (_self_supporting_parts, {("parts", "forest")}),
    (_missed_split, {("parts", "link")}),
    (_wrong_label, {("parts", "representative")}),
    (_wrong_size, {("parts", "size")}),
    (_wrong_residual, {("ranks", "pagerank-residual")}),
    (_wrong_estimate, {("ranks", "pagerank-residual")}),
    (_wrong_count, {("paths", "count")}),
    (_missed_deletion, {("parts", "link"), ("ranks", "pagerank-residual")}),
    (_missed_join, {("parts", "split-edge"), ("hops", "improvable"), ("paths", "value")}),
]
MISSED = (_missed_deletion, _missed_join)


@pytest.mark.sample(1, of="steps_before")
@pytest.mark.parametrize(("damage", "rules"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("steps_before", [0, 7, 60])
def test_what_is_broken_is_found(
    damage: Callable[[Kept], None], rules: set[tuple[str, str]], steps_before: int
) -> None:
    """Found by the first whole pass after it, and by a pass under way at the latest in the next one."""
    kept = two_islands()
    for _ in range(steps_before):
        assert kept.auditor.step(SLICE, EPOCH).violations == ()
    damage(kept)
    found = kept.found() if steps_before == 0 else kept.found() | kept.found()
    assert rules <= found
    assert {target for target, _ in found} <= {target for target, _ in rules} | (
        {"hops", "paths", "ranks"} if damage in MISSED else set()
    )


def test_parents_are_followed_to_the_end_without_an_audit_of_ones_own() -> None:
    kept = two_islands()
    assert Program.audit_whole(kept.hops, kept.graph) == ([], 0)
    _self_supporting_hops(kept)
    (violation,) = Program.audit_whole(kept.hops, kept.graph)[0]
    assert violation.rule == "forest" and set(violation.vertices) <= set(range(300, 310))
    assert Program.audit_whole(kept.ranks, kept.graph) == ([], 0)


def test_undirected_programs_are_audited_too() -> None:
    for damage, rules in BROKEN:
        if damage in (_self_supporting_hops, _missed_deletion):  # edges that support both ways are not lost
            continue
        kept = two_islands(directed=False)
        assert kept.found() == set()
        damage(kept)
        assert rules & kept.found(), damage.__name__


def test_evidence_names_the_vertices() -> None:
    kept = two_islands()
    _wrong_count(kept)
    violations = [v for step in kept.one_pass() for v in step.violations if v.rule == "count"]
    assert 250 in {vertex for violation in violations for vertex in violation.vertices}


def test_a_fresh_start_puts_it_right() -> None:
    kept = two_islands()
    for damage, _ in BROKEN:
        if damage not in MISSED:
            damage(kept)
    wrong = {target for target, _ in kept.found()}
    assert wrong == {"hops", "parts", "ranks", "paths"}
    assert all(run.error is None for run in kept.engine.start(wrong))
    assert kept.found() == set()


@pytest.mark.parametrize("column", ["word", "handle", "estimate", "count"])
def test_what_readers_see_otherwise_is_found(column: str) -> None:
    kept = two_islands()
    programs = {program.id: program for program in kept.engine.programs}
    copies = {
        id: {name: own.copy() for name, own in program.columns().items()} for id, program in programs.items()
    }
    kept.auditor = Auditor(
        kept.graph, kept.engine, lambda id: Published(copies[id], programs[id].scalars(), kept.graph.n_vertices)
    )
    assert kept.found() == set()
    (id,) = (id for id, columns in copies.items() if column in columns)
    copies[id][column][123] += copies[id][column].dtype.type(1)
    violations = [v for step in kept.one_pass() for v in step.violations]
    assert [(v.rule, v.vertices) for v in violations] == [("published", (123,))]
    del copies[id][column]
    assert kept.found() == {(id, "published")}


@pytest.mark.parametrize(
    ("id", "name", "seen"),
    [("ranks", "norm", 2.0), ("ranks", "norm", None), ("paths", "saturated", np.nan), ("hops", "more", 1.0)],
)
def test_scalars_that_readers_see_otherwise_are_found(id: str, name: str, seen: float | None) -> None:
    kept = two_islands()
    programs = {program.id: program for program in kept.engine.programs}
    wrong: dict[str, float] = {}

    def published(of: str) -> Published:
        scalars = {**programs[of].scalars(), **(wrong if of == id else {})}
        if of == id and wrong and seen is None:
            del scalars[name]
        return Published(programs[of].columns(), scalars, kept.graph.n_vertices)

    kept.auditor = Auditor(kept.graph, kept.engine, published)
    assert kept.found() == set()
    wrong[name] = 0.0 if seen is None else seen
    violations = [v for step in kept.one_pass() for v in step.violations]
    assert [v.rule for v in violations] == ["published"] and violations[0].detail.startswith(f"{name} is ")
    assert kept.found() == {(id, "published")}


# -- the storage ----------------------------------------------------------------------------------------------


def loaded(directed: bool = True, weighted: bool = True) -> Graph:
    graph = Graph(directed=directed, weighted=weighted)
    src, dst = rmat_edges(5, 9, 6_000)
    weights = np.random.default_rng(5).random(src.size).astype(np.float32) if weighted else None
    graph.apply(EdgeBatch.of(src, dst, None, weights), 512)
    return graph


def storage_rules(graph: Graph, leaves: int = 3) -> set[str]:
    """What slices of so many leaves, and the totals, find."""
    arrays = graph.host.arrays
    found = audit_totals(graph)[0]
    for array in arrays:
        mirror = arrays[-1] if array is arrays[0] else None
        size = array.view().counts.size
        for begin in range(0, size, leaves):
            found += audit_leaves(graph, array, mirror, begin, min(begin + leaves, size))[0]
    return {violation.rule for violation in found}


def test_a_graph_without_in_rows_is_audited() -> None:
    graph = Graph(in_edges=False)
    src, dst = rmat_edges(5, 9, 6_000)
    graph.apply(EdgeBatch.of(src, dst, None, np.ones(src.size, np.float32)), 512)
    assert audit_totals(graph) == ([], 0)
    graph.host.out.view().counts[0] += 1
    assert {violation.rule for violation in audit_totals(graph)[0]} == {"totals"}


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("leaves", [1, 3, 100_000])
def test_a_right_storage_passes(directed: bool, weighted: bool, leaves: int) -> None:
    graph = loaded(directed, weighted)
    assert graph.check() == [] and storage_rules(graph, leaves) == set()
    graph.apply(EdgeBatch.of([7] * 400, list(range(400))), 512)  # a row of many leaves
    assert graph.check() == [] and storage_rules(graph, leaves) == set()
    empty = Graph(directed=directed, weighted=weighted)
    assert storage_rules(empty, leaves) == set()


def _first_key(graph: Graph, leaf: int) -> np.uint64:
    view = graph.out_rows()
    return view.keys[leaf << view.leaf_shift]


def test_broken_counts_keys_rows_and_weights_are_found() -> None:
    def damaged(damage: Callable[[Graph], None]) -> set[str]:
        graph = loaded()
        damage(graph)
        return storage_rules(graph)

    def count_over(graph: Graph) -> None:
        graph.out_rows().counts[5] = 40

    def leaf_emptied(graph: Graph) -> None:
        graph.out_rows().counts[5] = 1

    def disorder(graph: Graph) -> None:
        view = graph.out_rows()
        at = 6 << view.leaf_shift
        view.keys[at], view.keys[at + 1] = view.keys[at + 1], view.keys[at]

    def disorder_between_leaves(graph: Graph) -> None:
        view = graph.out_rows()  # leaf 6 begins a slice
        view.keys[6 << view.leaf_shift] = view.keys[(5 << view.leaf_shift) + int(view.counts[5]) - 1]

    def head_too_high(graph: Graph) -> None:
        graph.host.out._contents.slots.heads[7] = _first_key(graph, 7) + np.uint64(1)

    def unknown_vertex(graph: Graph) -> None:
        view = graph.out_rows()
        at = (6 << view.leaf_shift) + int(view.counts[6]) - 1
        view.keys[at] = view.keys[at] | np.uint64(0xFFFF)

    def dead_vertex_with_edges(graph: Graph) -> None:
        graph.existence.alive(graph.n_vertices)[int(_first_key(graph, 9) >> np.uint64(32))] = False
        graph.existence.n_dead += 1

    def row_elsewhere(graph: Graph) -> None:
        graph.out_rows().row_leaf[int(_first_key(graph, 9) >> np.uint64(32))] += 1

    def degree_off(graph: Graph) -> None:
        graph.in_rows().degrees[int(np.argmax(graph.in_rows().degrees))] -= 1

    def degree_of_nothing(graph: Graph) -> None:
        graph.out_rows().degrees[int(np.flatnonzero(graph.out_rows().degrees[:512] == 0)[0])] = 1

    def weight_differs(graph: Graph) -> None:
        view = graph.in_rows()
        view.weights[3 << view.leaf_shift] += 1

    assert damaged(count_over) >= {"counts"}
    assert damaged(leaf_emptied) >= {"density", "totals"}
    assert damaged(disorder) >= {"order"}
    assert damaged(disorder_between_leaves) >= {"order"}
    assert damaged(head_too_high) == {"look-up"}
    assert damaged(unknown_vertex) & {"range", "order", "mirror"}
    assert damaged(dead_vertex_with_edges) == {"range"}
    assert damaged(row_elsewhere) == {"row"}
    assert damaged(degree_off) == {"row", "totals"}
    assert damaged(degree_of_nothing) == {"totals"}
    assert damaged(weight_differs) == {"mirror"}


def test_leaves_that_were_emptied_do_not_hold_a_pass_up() -> None:
    kept = Kept()
    src, dst = rmat_edges(5, 9, 6_000)
    kept.apply(EdgeBatch.of(src, dst), 512)
    kept.graph.out_rows().counts[20:26] = 0
    assert {(STORAGE, "row"), (STORAGE, "totals")} <= {
        (step.target, violation.rule) for step in storage_steps(kept) for violation in step.violations
    }


def storage_steps(kept: Kept) -> list[Step]:
    """The steps of a pass that concern the storage; programs would walk rows that are not as they say."""
    steps = []
    for _ in range(10_000):
        if kept.auditor._checks and kept.auditor._checks[kept.auditor._at].target != STORAGE:
            return steps
        steps.append(kept.auditor.step(SLICE, EPOCH))
    raise AssertionError("the storage's part never ends")


def test_an_arc_that_only_one_direction_holds_is_found() -> None:
    graph = loaded()
    edge = _first_key(graph, 4)
    u, v = int(edge >> np.uint64(32)), int(edge & np.uint64(0xFFFF_FFFF))
    graph.host.in_.apply(deletes([(v, u)], 512).batch(weighted=True))
    assert graph.check() and storage_rules(graph) == {"mirror", "totals"}
    graph = loaded()
    graph.host.in_.apply(inserts([(u, v + 1)], 512).batch(weighted=True))
    assert storage_rules(graph) == {"totals"}


def test_a_dropped_in_edge_is_found_within_one_pass_with_its_ends() -> None:
    kept = two_islands()
    kept.graph.host.in_.apply(deletes([(301, 300)], 311).batch(weighted=True))
    violations = [v for step in kept.one_pass() for v in step.violations if step.target == STORAGE]
    assert {"mirror", "totals"} == {violation.rule for violation in violations}
    assert (300, 301) in {violation.vertices for violation in violations}


def test_the_leaf_after_a_key_is_found_whatever_became_of_its_row() -> None:
    graph = loaded()
    before = graph.export().keys
    for row in range(0, 512, 3):  # rows go, and what the index says of them means nothing any more
        gone = before[before >> np.uint64(32) == row]
        if gone.size:
            graph.apply(EdgeBatch(gone, np.zeros(gone.size, np.uint8), np.ones(gone.size, np.float32)), 512)
            graph.out_rows().row_leaf[row] = 1 << 20
    view = graph.out_rows()
    ends = view.keys[(np.arange(view.counts.size) << view.leaf_shift) + np.maximum(view.counts, 1) - 1]
    for key in [*before[::7], *ends, np.uint64(0), before[-1]]:
        above = np.flatnonzero((view.counts > 0) & (ends > key))
        assert leaf_after(view, 512, key) == (above[0] if above.size else view.counts.size)


@pytest.mark.parametrize("grow", [True, False])
def test_keys_that_move_between_leaves_do_not_escape(grow: bool) -> None:
    """A weight is wrong near the end; while the pass goes over the leaves the array is resized under it."""
    kept = Kept()
    src, dst = rmat_edges(5, 10, 20_000)
    kept.apply(EdgeBatch.of(src, dst), 1024)
    present = np.unique(np.stack([src, dst], axis=1), axis=0)
    kept.auditor.step(SLICE, EPOCH)
    out = kept.auditor._checks[0]
    while out.done < out.size() // 2:
        kept.auditor.step(SLICE, EPOCH)
    victim = present[int(0.55 * len(present))]
    kept.graph.host.in_.apply(EdgeBatch.of([victim[1]], [victim[0]], [1], np.array([7.0], np.float32)))
    before = kept.graph.out_rows().counts.size
    if grow:
        more_src, more_dst = rmat_edges(8, 10, 40_000)
        keep = ~((more_src == victim[0]) & (more_dst == victim[1]))
        kept.apply(EdgeBatch.of(more_src[keep], more_dst[keep]), 1024)
        assert kept.graph.out_rows().counts.size > before
    else:
        gone = present[: int(0.5 * len(present))]
        kept.apply(EdgeBatch.of(gone[:, 0], gone[:, 1], np.zeros(len(gone), np.uint8)), 1024)
        assert kept.graph.out_rows().counts.size < before
    found = [v.rule for step in kept.one_pass() for v in step.violations if step.target == STORAGE]
    assert "mirror" in found


def test_no_vertex_is_never_evidence_that_breaks_anything() -> None:
    """A parent that is no vertex at all is reported, not followed."""
    kept = two_islands()
    kept.parts._forest.parent[42] = 1 << 20
    kept.parts._forest.representative[kept.parts._forest.handle[300]] = NO_VERTEX
    found = kept.found()
    assert {("parts", "representative")} <= found


def _one_more(column: str, amount: float) -> Callable[[Program, int], None]:
    def damage(program: Program, vertex: int) -> None:
        values = program.columns()[column]
        values[vertex] += values.dtype.type(amount)

    return damage


def _a_hundredth_more(program: Program, vertex: int) -> None:
    program.columns()["estimate"][vertex] *= 1.01


def _another_handle(program: Program, vertex: int) -> None:
    handle = program.columns()["handle"]
    handle[vertex] = handle[310] if vertex != 310 else handle[0]


WRONG_VALUES: dict[str, Callable[[Program, int], None]] = {
    "bfs": _one_more("word", 2**32),
    "sssp": _one_more("word", 2**32),  # one unit in the last place
    "sswp": _one_more("word", 2**32),
    "sspaths": _one_more("count", 1),
    "components": _another_handle,
    "pagerank": _a_hundredth_more,
    "ppr": _a_hundredth_more,
    "triangles": _one_more("triangles", 1),
    "lcc": _one_more("arcs", 1),
    "kcore": _one_more("core", 1),
    "cdlp": _one_more("label", 1),
}


def made(kind: str, kept: Kept) -> Program:
    """A program of this kind, started on the graph and right."""
    sources = {item.name: 0 for item in registry.KINDS[kind].parameters if item.is_sources}
    program = registry.make_program(kind, None, sources, DenseIds())
    program.bind(DenseIds().resolve(program.sources))
    program.start(kept.graph)
    assert program.audit(kept.graph) == []
    return program


@pytest.mark.parametrize("kind", sorted(registry.KINDS))
def test_a_wrong_value_of_any_vertex_is_found_for_every_kind(kind: str) -> None:
    """As small as the program tells values apart, at one vertex at a time, by the whole audit and by slices."""
    kept = two_islands()
    program, n = made(kind, kept), kept.graph.n_vertices
    neighbors = [
        {v, *kept.graph.neighbors(v, "out", 0, n)[0].tolist(), *kept.graph.neighbors(v, "in", 0, n)[0].tolist()}
        for v in range(n)
    ]
    for vertex in (1, 2, 57, 123, 299):
        saved = {name: column.copy() for name, column in program.columns().items()}
        WRONG_VALUES[kind](program, vertex)
        by_slices = [program.audit_slice(kept.graph, v, v + 1)[0] for v in sorted(neighbors[vertex])]
        for violations in (program.audit(kept.graph), sum(by_slices, program.audit_whole(kept.graph)[0])):
            assert {v for violation in violations for v in violation.vertices} & neighbors[vertex]
        for name, column in program.columns().items():
            column[: saved[name].size] = saved[name]
        assert program.audit(kept.graph) == []


@pytest.mark.parametrize("kind", sorted(registry.KINDS))
def test_values_are_of_the_type_that_is_declared(kind: str) -> None:
    program = made(kind, kept := two_islands())
    n = kept.graph.n_vertices
    answer = type(program).read(Published(program.columns(), program.scalars(), n), np.arange(n, dtype=np.uint32))
    assert answer.vertex_valued == (program.value is ExternalId)
    assert answer.values.dtype == (np.uint32 if answer.vertex_valued else program.value)


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", sorted(registry.KINDS))
@pytest.mark.parametrize("far", [311, 5_000_000])
def test_vertices_that_a_program_missed_are_found_for_every_kind(kind: str, far: int) -> None:
    """A vertex beyond all that the program has, with an edge either way: none of its columns may be read there."""
    kept = two_islands()
    program = made(kind, kept)
    kept.graph.apply(EdgeBatch.of([far, 57], [57, far]), far + 1)
    for violations in (program.audit(kept.graph), program.audit_slice(kept.graph, 50, 60)[0]):
        assert "size" in {violation.rule for violation in violations}
    program.audit_whole(kept.graph)
    program.start(kept.graph)
    assert program.audit(kept.graph) == []


@pytest.mark.parametrize("kind", ["sssp", "sswp"])
def test_values_that_support_each_other_are_found(kind: str) -> None:
    """Each follows from its parent's over an edge, and no edge could better any; but no source is behind them."""
    kept = two_islands()
    ring = [300 + k for k in range(10)]
    weight = 0.0 if kind == "sssp" else 2.0
    kept.apply(EdgeBatch.of(ring, ring[1:] + ring[:1], None, np.full(10, weight, np.float32)), 311)
    program = registry.make_program(kind, None, {"source": 0})
    program.bind(np.zeros(1, np.uint32))
    program.start(kept.graph)
    assert program.audit(kept.graph) == []
    value = int(np.float32(7.0 if kind == "sssp" else weight).view(np.uint32))
    for before, vertex in itertools.pairwise([ring[-1], *ring]):
        program.columns()["word"][vertex] = value << 32 | before
    assert program.audit_slice(kept.graph, 0, 311)[0] == []
    assert [violation.rule for violation in program.audit_whole(kept.graph)[0]] == ["forest"]
    assert [violation.rule for violation in program.audit(kept.graph)] == ["forest"]


def test_every_kind_of_program_can_be_audited_by_name() -> None:
    kept = two_islands()
    programs = [
        registry.make_program(kind, None, {p.name: 0 for p in cls.parameters if p.is_sources}, DenseIds())
        for kind, cls in registry.KINDS.items()
    ]
    engine = Engine(kept.graph, programs, DenseIds().resolve)
    assert all(run.error is None for run in engine.start())
    auditor = Auditor(kept.graph, engine)
    targets = set()
    while True:
        step = auditor.step(SLICE, EPOCH)
        assert step.violations == ()
        targets.add(step.target)
        if step.ended is not None:
            break
    assert targets == {STORAGE, *registry.KINDS}
    engine.close()
