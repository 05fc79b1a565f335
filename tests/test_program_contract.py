"""What every program keeps, of whatever kind: those of the registry, and a user's.

That its values are the right ones is shown where the program's own tests are, by code that shares none with it.
Here each is held against itself: started anew, restored, moved by other steps, audited and read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from histories import (
    Epoch,
    History,
    deletes,
    epoch_of,
    inserts,
    random_history,
    rmat_history,
    small_histories,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from own_programs import Fading, Mutual, Within
from sampling import examples
from written_records import assert_written_records_hold

from graphtide.compute import registry
from graphtide.compute.device import twin
from graphtide.compute.program import Answer, Column, Program, Published, Refresh
from graphtide.gpma.edges import NO_VERTEX, Op, Vertices
from graphtide.gpma.index.id_order import IdOrder, order_of
from graphtide.partition.graph import Graph

OWN = {
    "own within": lambda id, sources: Within(id, sources, hops=3),
    "own fading": Fading,
    "own mutual": lambda id, sources: Mutual(id),
}
ON_DEVICE = " on a device"
TWINS = [f"{kind}{ON_DEVICE}" for kind in ("bfs", "sssp", "sswp", "components", "own within", "own fading")]
KINDS = [*registry.KINDS, *OWN, *TWINS]
every_kind = pytest.mark.parametrize("kind", KINDS)
both_ways = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])


class DenseIds:
    """External ids that fall as the dense ones rise."""

    def smallest(self, dense: Vertices) -> int:
        return int(dense.max())

    def sort_by_external(self, dense: Vertices) -> Vertices:
        return np.sort(dense)[::-1]

    def comparable(self, n_vertices: int) -> IdOrder:
        return order_of(-np.arange(n_vertices))


def made(kind: str, id: str = "kept", sources: tuple[int, ...] = (0,)) -> Program:
    """A program of this kind, not started; ``sources`` for those that have any. Of a twin the host's."""
    kind = kind.removesuffix(ON_DEVICE)
    if kind in OWN:
        return OWN[kind](id, sources)
    named = [parameter.name for parameter in registry.KINDS[kind].parameters if parameter.is_sources]
    return registry.make_program(kind, id, {name: list(sources) for name in named}, DenseIds())


with_sources = pytest.mark.parametrize("kind", [kind for kind in KINDS if made(kind).sources])


@dataclass
class Copied:
    """Published columns as the publisher keeps them: new vertices are copied, and what is said to have changed."""

    columns: dict[str, Column]
    n: int

    @classmethod
    def of(cls, program: Program, n: int) -> Copied:
        return cls({name: column[:n].copy() for name, column in program.columns().items()}, n)

    def update(self, program: Program, refresh: Refresh, n: int) -> None:
        for name, column in program.columns().items():
            changed = refresh.changed.get(name, np.empty(0, np.uint32))
            copy = column[:n].copy()
            if changed is not None:
                kept = np.setdiff1d(np.arange(self.n), changed)
                copy[kept] = self.columns[name][kept]
            self.columns[name] = copy
        self.n = n


class Run:
    """A graph with a program on it, moved epoch by epoch; what must hold after each is checked."""

    def __init__(self, kind: str, directed: bool, sources: tuple[int, ...] = (0,)) -> None:
        self.kind, self.sources = kind, sources
        self.graph = Graph(directed=directed, weighted=True, device=kind in TWINS)
        self.program = self.make("kept", sources)
        self.bind(self.program)
        self.program.start(self.graph)
        self.exact = self.program.family != "walk"
        """Whether equal graphs give equal values, however they came about; else they differ by the tolerance."""
        self.copied = Copied.of(self.program, 0)

    def make(self, id: str, sources: tuple[int, ...]) -> Program:
        """Another program of the same kind."""
        program = made(self.kind, id, sources)
        return twin(program, self.graph) if self.kind in TWINS else program

    def bind(self, program: Program) -> None:
        """What the engine does before each run: tell the sources, where they are vertices."""
        n, alive = self.graph.n_vertices, self.graph.alive
        if program.sources:
            program.bind(
                np.array([s if int(s) < n and alive[int(s)] else NO_VERTEX for s in program.sources], np.uint32)
            )

    def change(self, epoch: Epoch) -> Any:
        return self.graph.apply(epoch.batch(weighted=True), epoch.n_vertices, epoch.vertex_ops())

    def step(self, epoch: Epoch, *others: Program) -> list[Refresh]:
        """Apply an epoch, and refresh the program, whose report must be right, and the others."""
        n_before = self.graph.n_vertices
        change = self.change(epoch)
        before = {name: column[:n_before].copy() for name, column in self.program.columns().items()}
        scalars = self.program.scalars()
        values = self.program.read(Published(before, scalars, n_before), np.arange(n_before, dtype=np.uint32))
        self.bind(self.program)
        report = self.program.refresh(self.graph, change)
        assert_written_records_hold(self.program)
        self.check_report(before, n_before, report)
        self.check_touched(values, scalars, report)
        reports = [report]
        for other in others:
            self.bind(other)
            reports.append(other.refresh(self.graph, change))
        return reports

    def check_report(self, before: dict[str, Column], n_before: int, report: Refresh) -> None:
        """Each entry that changed is named, once; a program that is exact names no other."""
        columns = self.program.columns()
        assert report.changed.keys() <= columns.keys()
        for name, column in columns.items():
            changed = report.changed.get(name, np.empty(0, np.uint32))
            if self.exact:
                assert (changed is None) == report.started_over
            if changed is None:
                continue
            listed = changed.tolist()
            assert len(listed) == len(set(listed)) and max(listed, default=-1) < self.graph.n_vertices
            differs = set(np.flatnonzero(column[:n_before] != before[name]).tolist())
            assert differs <= set(listed)
            if self.exact:
                assert {v for v in listed if v < n_before} == differs
        self.copied.update(self.program, report, self.graph.n_vertices)
        for name, column in columns.items():
            assert np.array_equal(self.copied.columns[name], column[: self.graph.n_vertices])
        assert (report.error_bound is None) == self.exact
        if report.error_bound is not None:
            assert report.error_bound <= self.program.tolerance  # type: ignore[attr-defined]
            assert self.program.scalars()["error_bound"] == report.error_bound

    def check_touched(self, before: Answer, scalars_before: Mapping[str, float], report: Refresh) -> None:
        """Whose value is another now is among those whose values are said to be touched."""
        kind, scalars = type(self.program), self.program.scalars()
        depends = scalars if kind.value_scalars is None else kind.value_scalars
        if any(scalars[name] != scalars_before.get(name) for name in depends):
            return
        n = self.graph.n_vertices
        published = Published({name: column[:n] for name, column in self.program.columns().items()}, scalars, n)
        touched = kind.touched(report.changed, published)
        if touched is None:
            return
        now = kind.read(published, np.arange(before.values.size, dtype=np.uint32))
        differ = (now.null != before.null) | (~now.null & (now.values != before.values))
        assert set(np.flatnonzero(differ).tolist()) <= set(touched.tolist())

    def answer(self, program: Program | None = None) -> Answer:
        """What a reader finds of every vertex."""
        program = self.program if program is None else program
        n = self.graph.n_vertices
        return program.read(Published(program.columns(), program.scalars(), n), np.arange(n, dtype=np.uint32))

    def check(self) -> None:
        """Equal to a fresh start (on the host), and both proven by the audit, whole and by slices."""
        assert self.program.on_device == (self.kind in TWINS)
        fresh = made(self.kind, "fresh", tuple(self.program.sources))
        self.bind(fresh)
        fresh.start(self.graph)
        self.check_equal(self.answer(), self.answer(fresh))
        if self.exact:
            assert self.program.scalars() == fresh.scalars()
        for program in (self.program, fresh):
            assert program.audit(self.graph) == []
        self.check_slices()
        held = sum(column.nbytes for column in self.program.columns().values())
        assert self.program.memory_bytes() >= held

    def check_slices(self) -> None:
        n = self.graph.n_vertices
        cuts = [0, n // 3, n // 3, max(n - 2, n // 3), n]
        slices = [self.program.audit_slice(self.graph, a, b) for a, b in itertools.pairwise(cuts)]
        found, edges = self.program.audit_slice(self.graph, 0, n)
        assert [found, *(found for found, _ in slices)] == [[]] * 5
        assert sum(read for _, read in slices) == edges
        assert self.program.audit_whole(self.graph)[0] == []

    def check_equal(self, one: Answer, other: Answer) -> None:
        """The same values; within the tolerance of both where the program is not exact."""
        assert np.array_equal(one.null, other.null)
        known = ~one.null
        mine, others = one.values[known], other.values[known]
        if self.exact:
            assert np.array_equal(mine, others)
            assert (one.saturated is None) == (other.saturated is None)
            assert one.saturated is None or np.array_equal(one.saturated, other.saturated)
        elif mine.size:
            tolerance = 2.1 * self.program.tolerance  # type: ignore[attr-defined]
            if self.kind == "pagerank":
                assert np.abs(mine / others - 1).max() <= tolerance
            else:
                assert np.abs(mine - others).sum() <= tolerance

    def saved(self) -> dict[str, Column]:
        return {name: column.copy() for name, column in self.program.state().items()}

    def restored(self) -> Program:
        """Another program, with the state of this one."""
        program = self.make("restored", self.program.sources)
        program.restore(self.saved(), self.graph)
        return program

    def close(self) -> None:
        self.graph.close()


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> None:
    """An emulated device, where the test is of a twin."""
    if "kind" in request.fixturenames and request.getfixturevalue("kind") in TWINS:
        request.getfixturevalue("emulated_cupy")


@pytest.fixture
def new_run() -> Iterator[Any]:
    """Makes runs, and closes them."""
    made_: list[Run] = []

    def make(*arguments: Any) -> Run:
        made_.append(Run(*arguments))
        return made_[-1]

    yield make
    for run in made_:
        run.close()


# -- epochs ---------------------------------------------------------------------------------------------------


@pytest.mark.sample(6)
@every_kind
@both_ways
def test_vertices_come_go_and_come_back(kind: str, directed: bool, new_run: Any) -> None:
    run = new_run(kind, directed)
    deleted = 0
    for epoch in random_history(11, directed=directed, vertex_share=0.15).epochs:
        run.step(epoch)
        run.check()
        dead = ~run.graph.alive
        deleted += int(dead.sum())
        answer = run.answer()
        assert answer.vertex_valued or answer.null[dead].all() or not answer.values[dead].any()
    assert deleted > 20


@pytest.mark.sample(6)
@every_kind
@settings(deadline=None, max_examples=examples(25))
@given(history=small_histories(), seed=st.integers(0, 2**32))
def test_rechunking_changes_nothing(kind: str, history: History, seed: int) -> None:
    one, other = Run(kind, history.directed), Run(kind, history.directed)
    for epoch in history.epochs:
        one.step(epoch)
    for epoch in history.rechunked(seed).epochs:
        other.step(epoch)
    one.check_equal(one.answer(), other.answer())
    one.close()
    other.close()


@pytest.mark.sample(6)
@every_kind
@both_ways
def test_all_at_once_is_a_start(kind: str, directed: bool, new_run: Any) -> None:
    """From nothing to a graph of some size in one epoch, and back to no edges, and to no vertices but its ids."""
    (load,) = rmat_history(5, directed=directed, scale=8, epochs=0).epochs
    run = new_run(kind, directed, (int(np.bincount(load.src).argmax()),))
    empty = run.program.memory_bytes()
    run.step(load)
    run.check()
    assert run.program.memory_bytes() > empty
    pairs = list(zip(load.src.tolist(), load.dst.tolist(), strict=True))
    run.step(deletes(pairs, load.n_vertices))
    run.check()
    run.step(epoch_of([(Op.DELETE_VERTEX, v, 0, 1.0) for v in range(load.n_vertices)], load.n_vertices))
    assert run.graph.n_alive == 0
    run.check()
    run.step(load)
    run.check()


@pytest.mark.sample(12)
@every_kind
@both_ways
def test_no_vertices_at_all(kind: str, directed: bool, new_run: Any) -> None:
    run = new_run(kind, directed)
    run.check()
    run.step(inserts([], 0))
    run.check()
    assert run.answer().values.size == 0
    run.program = run.restored()
    run.step(inserts([(0, 1)], 2))
    run.check()


@every_kind
def test_an_epoch_without_updates_changes_nothing(kind: str, new_run: Any) -> None:
    run = new_run(kind, True)
    run.step(inserts([(0, 1), (1, 2), (3, 4)], 5))
    before = {name: column[:5].copy() for name, column in run.program.columns().items()}
    (report,) = run.step(inserts([], 5))
    assert all(changed is not None and not changed.size for changed in report.changed.values())
    assert all(np.array_equal(column[:5], before[name]) for name, column in run.program.columns().items())


# -- sources --------------------------------------------------------------------------------------------------


@with_sources
def test_a_source_that_appears_later(kind: str, new_run: Any) -> None:
    run = new_run(kind, True, (3, 0))
    run.step(inserts([(1, 2)], 3))
    # Who walks from a known source never gets to the others: that is a value, too.
    assert run.answer().null.tolist() == ([False, False, False] if kind == "ppr" else [False, True, True])
    run.check()
    run.step(inserts([(3, 1)], 4))
    assert not run.answer().null.any()
    run.check()


@with_sources
def test_a_source_that_is_deleted_and_comes_back(kind: str, new_run: Any) -> None:
    run = new_run(kind, True, (0, 5))
    run.step(epoch_of([(Op.INSERT, 0, 1, 2.0), (Op.INSERT, 1, 2, 3.0), (Op.INSERT, 5, 6, 1.0)], 7))
    before = run.answer()
    run.step(epoch_of([(Op.DELETE_VERTEX, 0, 0, 1.0)], 7))
    run.check()
    gone = run.answer()
    if run.exact:
        assert gone.null[:5].all()
        assert np.array_equal(gone.values[5:], before.values[5:])
    else:
        assert gone.values[:5].max() < 1e-12
    run.step(epoch_of([(Op.DELETE_VERTEX, 5, 0, 1.0)], 7))
    run.check()
    assert run.answer().null.all()
    run.step(epoch_of([(Op.INSERT, 0, 1, 2.0), (Op.INSERT, 5, 6, 1.0)], 7))
    run.check()
    run.check_equal(run.answer(), before)


@with_sources
def test_a_restored_program_knows_its_source(kind: str, new_run: Any) -> None:
    """Before any refresh, where it is audited; and in the first one, where the source is deleted."""
    run = new_run(kind, True)
    run.step(inserts([(0, 1), (1, 2)], 3))
    run.program = run.restored()
    assert run.program.audit_slice(run.graph, 0, 3)[0] == []
    run.step(epoch_of([(Op.DELETE_VERTEX, 0, 0, 1.0)], 3))
    assert run.answer().null.all()
    run.check()


# -- state ----------------------------------------------------------------------------------------------------


@every_kind
@both_ways
@pytest.mark.sample(6)
@pytest.mark.parametrize("generator", [random_history, rmat_history])
def test_a_saved_state_goes_on(kind: str, directed: bool, generator: Any, new_run: Any) -> None:
    """As if nothing had happened: with the values of the one that never stopped, bit for bit."""
    epochs = generator(7, directed=directed, vertex_share=0.02).epochs
    half = len(epochs) // 2
    run = new_run(kind, directed)
    for epoch in epochs[:half]:
        run.step(epoch)
    never_stopped, run.program = run.program, run.restored()
    assert run.program.audit(run.graph) == []
    assert run.program.scalars() == never_stopped.scalars()
    run.check()
    for epoch in epochs[half:]:
        reports = run.step(epoch, never_stopped)
        # Counts look for a parent among several in an order that they do not save.
        assert run.exact or reports[0].edges_read == reports[1].edges_read
        run.check()
        mine, others = run.answer(), run.answer(never_stopped)
        assert np.array_equal(mine.null, others.null)
        assert np.array_equal(mine.values[~mine.null], others.values[~mine.null])


REFUSED = {
    "components": "saved parent",
    "sspaths": "saved counts",
    "pagerank": "not that of a graph of 2 vertices",
    "ppr": "not that of a graph of 2 vertices",
    "triangles": "saved triangles",
    "lcc": "saved arcs",
    "kcore": "saved core",
    "cdlp": "saved label",
}
"""What a refusal says besides, of programs whose states have names of their own."""


@pytest.mark.sample(6)
@every_kind
def test_a_state_that_is_not_of_this_graph_is_refused(kind: str, new_run: Any) -> None:
    """One of another graph, or whose column is missing or cut short; a start puts right what was taken over."""
    run, other = new_run(kind, True), new_run(kind, True)
    for epoch in random_history(7, directed=True).epochs[:20]:
        run.step(epoch)
    other.step(inserts([(0, 1)], 2))
    state, n = run.saved(), run.graph.n_vertices
    with pytest.raises(ValueError, match=REFUSED.get(kind.removesuffix(ON_DEVICE), "saved")):
        other.program.restore(state, other.graph)
    assert [violation.rule for violation in run.program.audit(other.graph)] == ["size"]
    cut = [name for name, column in state.items() if column.shape == (n,)]
    assert cut
    for name in cut:
        with pytest.raises(ValueError, match=r"saved"):
            run.program.restore({**state, name: state[name][:-1]}, run.graph)
    for name in state:
        with pytest.raises((ValueError, KeyError)):
            run.program.restore({other: column for other, column in state.items() if other != name}, run.graph)
    for each in (run, other):
        each.bind(each.program)
        each.program.start(each.graph)
        each.check()


# -- reading --------------------------------------------------------------------------------------------------


@pytest.mark.sample(6)
@every_kind
@both_ways
def test_readers_need_the_published_columns_and_nothing_else(kind: str, directed: bool, new_run: Any) -> None:
    """In another process, in larger memory, in any order; beyond the vertices there is whatever there is."""
    run = new_run(kind, directed)
    for epoch in random_history(4, directed=directed).epochs:
        run.step(epoch)
    n = run.graph.n_vertices
    columns = {
        name: np.concatenate([column[:n], np.full(9, 0xAB, np.uint8).repeat(column.itemsize).view(column.dtype)])
        for name, column in run.program.columns().items()
    }
    published = Published(columns, run.program.scalars(), n)
    asked = np.random.default_rng(1).permutation(n).astype(np.uint32)[: n // 2]
    whole = run.answer()
    answer = type(run.program).read(published, asked)
    assert answer.values.dtype == whole.values.dtype and answer.vertex_valued == whole.vertex_valued
    assert answer.null.tolist() == whole.null[asked].tolist()
    assert answer.values[~answer.null].tolist() == whole.values[asked][~answer.null].tolist()
    for part in (slice(0, n), slice(n // 3, n // 2), slice(0, 0)):
        of_run, of_each = (
            type(run.program).read_run(published, part),
            type(run.program).read(published, np.arange(part.start, part.stop, dtype=np.uint32)),
        )
        assert of_run.values.dtype == of_each.values.dtype and of_run.null.tolist() == of_each.null.tolist()
        assert of_run.values.tobytes() == of_each.values.tobytes()
        assert not any(np.shares_memory(of_run.values, column) for column in columns.values())
        for bound in {0.0, *of_run.values[~of_run.null].astype(float).tolist()}:
            for descending, better in ((True, of_run.values > bound), (False, of_run.values < bound)):
                sieved = type(run.program).sieve(published, part, bound, descending=descending)
                if sieved is not None:
                    wanted, places = {*np.flatnonzero(better & ~of_run.null)}, {*range(part.stop - part.start)}
                    assert wanted <= {*sieved} <= places
    if not run.program.has_parents:
        with pytest.raises(LookupError):
            type(run.program).parents(published, asked)
        return
    parents = type(run.program).parents(published, np.arange(n, dtype=np.uint32))
    for vertex, parent in enumerate(parents.tolist()):
        assert (parent == NO_VERTEX) == (whole.null[vertex] or vertex in run.sources)
        assert parent == NO_VERTEX or vertex in run.graph.neighbors(parent, "out", 0, n)[0]
