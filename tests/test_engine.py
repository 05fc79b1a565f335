"""The engine and the registry: many programs, failures kept apart, sources that appear, exact refusals."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import pkgutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from histories import History, deletes, inserts, random_history, small_histories
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher
from sampling import examples
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from graphtide import compute
from graphtide.compute import registry
from graphtide.compute.audit.auditor import Auditor
from graphtide.compute.engine import STORAGE, Engine, ProgramRun
from graphtide.compute.forest.components import Components
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.paths.program import PathProgram
from graphtide.compute.program import (
    Answer,
    Column,
    ExternalId,
    ExternalOrder,
    Program,
    ProgramError,
    Published,
    Refresh,
    Violation,
)
from graphtide.gpma.edges import NO_VERTEX, EdgeBatch, Op, Vertices, destinations, sources
from graphtide.gpma.index.id_order import IdOrder, order_of
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.gpma.team import BrokenOff
from graphtide.partition.existence import VertexOps
from graphtide.partition.graph import Graph, GraphChange


class DenseIds:
    """External ids that are the dense ones: a stand-in for the vertex index, ahead of the graph by ``known``."""

    def __init__(self, known: int = 1_000) -> None:
        self.known = known
        self.asked = 0

    def resolve(self, ids: Sequence[ExternalId]) -> Vertices:
        self.asked += 1
        return np.array([id if isinstance(id, int) and id < self.known else NO_VERTEX for id in ids], np.uint32)

    def smallest(self, dense: Vertices) -> int:
        return int(dense.min())

    def sort_by_external(self, dense: Vertices) -> Vertices:
        return np.sort(dense)

    def comparable(self, n_vertices: int) -> IdOrder:
        return order_of(np.arange(n_vertices))


class Probe(Program):
    """Counts vertices; fails, meets others or lies about time when told to."""

    kind: ClassVar[str] = "probe"

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.fail: BaseException | None = None
        self.meet: threading.Barrier | None = None
        self.runs: list[str] = []
        self.n = 0

    def _run(self, what: str, graph: Graph) -> Refresh:
        self.runs.append(what)
        if self.meet is not None:
            self.meet.wait(timeout=20)
        if self.fail is not None:
            raise self.fail
        self.n = graph.n_vertices
        return Refresh({}, active=self.n)

    def start(self, graph: Graph) -> Refresh:
        return self._run("start", graph)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        return self._run("refresh", graph)

    def columns(self) -> dict[str, Column]:
        return {}

    def state(self) -> dict[str, Column]:
        return {}

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        self.n = graph.n_vertices

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        if self.fail is not None:
            raise self.fail
        return [] if self.n == graph.n_vertices else [Violation("count", f"{self.n} vertices")], 0

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        raise NotImplementedError


@pytest.fixture
def graph() -> Iterator[Graph]:
    graph = Graph(weighted=False)
    yield graph
    graph.close()


def engine_on(graph: Graph, *programs: Program, **options: Any) -> Engine:
    return Engine(graph, programs, DenseIds().resolve, **options)


def add(graph: Graph, *pairs: tuple[int, int]) -> GraphChange:
    n = max([graph.n_vertices, *(max(pair) + 1 for pair in pairs)])
    return graph.apply(inserts(pairs, n).batch(), n)


def by_id(runs: Sequence[ProgramRun]) -> dict[str, ProgramRun]:
    return {run.id: run for run in runs}


@pytest.mark.parametrize(("threads", "team"), [(None, 3), (3, 1)])
def test_so_many_programs_run_side_by_side(threads: int | None, team: int) -> None:
    """As many as are asked for, or as the graph's team has threads: all of them meet."""
    graph = Graph(weighted=False, threads=team)
    probes = [Probe(f"probe-{k}") for k in range(3)]
    for probe in probes:
        probe.meet = threading.Barrier(3) if probe is probes[0] else probes[0].meet
    engine = engine_on(graph, *probes, threads=threads)
    assert [run.error for run in engine.start()] == [None] * 3
    engine.close()
    graph.close()


def test_programs_run_where_the_system_grants_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, in the caller's; a thread that is granted later takes its share again."""
    graph = Graph(weighted=False)
    probes = [Probe(f"probe-{k}") for k in range(3)]
    engine = engine_on(graph, *probes, threads=3)

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert [run.error for run in engine.start()] == [None] * 3
    for probe in probes:
        probe.meet = threading.Barrier(3) if probe is probes[0] else probes[0].meet
    assert [run.error for run in engine.start()] == [None] * 3
    assert [probe.runs for probe in probes] == [["start"] * 2] * 3
    engine.close()
    graph.close()


# -- runs -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(25))
@given(small_histories())
def test_all_programs_of_an_engine_stay_true(history: History) -> None:
    graph = Graph(directed=history.directed, weighted=False)
    ids = DenseIds()
    programs = [BFS("hops", (0,)), BFS("far", (5, 7)), Components("parts", ids)]
    engine = Engine(graph, programs, ids.resolve)
    try:
        engine.start()
        for epoch in history.epochs:
            runs = engine.refresh(graph.apply(epoch.batch(), epoch.n_vertices))
            assert [run.id for run in runs] == ["hops", "far", "parts"]
            assert all(run.error is None for run in runs)
            assert engine.audit() == {STORAGE: [], "hops": [], "far": [], "parts": []}
    finally:
        engine.close()
        graph.close()


OP_COLUMNS = ("uint32", "uint8", "int64")
vertex_ops = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from((Op.INSERT_VERTEX, Op.DELETE_VERTEX)), st.integers(0, 10)),
    max_size=4,
)


@settings(deadline=None, max_examples=examples(60))
@given(small_histories(), st.lists(vertex_ops, min_size=8, max_size=8))
def test_programs_stay_true_while_vertices_come_and_go(
    history: History, operations: list[list[tuple[int, Op, int]]]
) -> None:
    graph = Graph(directed=history.directed, weighted=False)
    ids = DenseIds()
    parts, restored = Components("parts", ids), Components("restored", ids)
    hops, several = BFS("hops", (0,)), BFS("several", (1, 2))
    engine = Engine(graph, [hops, several, parts], ids.resolve)
    try:
        engine.start()
        for epoch, ops in zip(history.epochs, operations, strict=False):
            n = epoch.n_vertices
            ops = sorted(((v, op, min(at, len(epoch))) for v, op, at in ops if v < n), key=lambda row: row[2])
            columns = [np.array([row[i] for row in ops], dtype) for i, dtype in enumerate(OP_COLUMNS)]
            runs = engine.refresh(graph.apply(epoch.batch(), n, VertexOps(*columns)))
            assert all(run.error is None for run in runs)
            assert not any(engine.audit().values())
            assert parts.scalars() == {"components": number_of_components(graph)}
            restored.restore(parts.state(), graph)
            assert restored.scalars() == parts.scalars()
            for program in (hops, several):
                published = Published(program.columns(), {}, n)
                null = BFS.read(published, np.arange(n, dtype=np.uint32)).null
                assert null[~graph.alive].all()
                living = [v for v in program.sources if int(v) < n and graph.alive[int(v)]]
                assert not null[living].any()
                assert living or null.all(), "without a living source nothing is reached"
    finally:
        engine.close()
        graph.close()


def number_of_components(graph: Graph) -> int:
    """By SciPy, over the vertices that exist."""
    keys, n = graph.export().keys, graph.n_vertices
    matrix = coo_array((np.ones(keys.size), (sources(keys), destinations(keys))), shape=(n, n))
    return int(connected_components(matrix, directed=False)[0] - (n - graph.n_alive)) if n else 0


class Odd(Probe):
    """Publishes what it is told to."""

    kind: ClassVar[str] = "odd"

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.column: Any = np.zeros(100)
        self.scalar: Any = 1
        self.changed: Mapping[str, Vertices | None] = {}

    def _run(self, what: str, graph: Graph) -> Refresh:
        super()._run(what, graph)
        return Refresh(self.changed)

    def columns(self) -> dict[str, Column]:
        return {"value": self.column}

    def scalars(self) -> dict[str, float]:
        return {"sum": self.scalar}

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        values = published.columns["value"][vertices]
        return Answer(values, np.zeros(values.shape, bool))


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("column", np.zeros(2), "column odd/value: 2 entries for 3 vertices"),
        ("column", np.zeros((3, 2)), "no array of numbers"),
        ("column", np.array([None] * 3), "no array of numbers"),
        ("column", [0, 0, 0], "no array of numbers"),
        ("scalar", None, "scalar odd/sum is no number"),
        ("changed", {"value": np.array([1, 3], np.uint32)}, "vertex 3 of 3 is said to have changed"),
    ],
)
def test_what_cannot_be_published_is_quarantined(graph: Graph, attribute: str, value: Any, words: str) -> None:
    odd = Odd("odd")
    engine = engine_on(graph, odd)
    assert engine.start()[0].error is None
    setattr(odd, attribute, value)
    (run,) = engine.refresh(add(graph, (0, 2)))
    assert run.error is not None and words in run.error and run.refresh is None
    assert engine.start()[0].error == run.error and engine.states()["odd"].state == "quarantined"
    setattr(odd, attribute, getattr(Odd("odd"), attribute))
    assert engine.start()[0].error is None
    engine.close()


def test_one_that_can_never_be_published_is_refused_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow(Odd):
        kind = "narrow"

        def __init__(self, id: str) -> None:
            super().__init__(id)
            self.column = np.zeros(3)

    class Silent(Odd):
        kind = "silent"

        @staticmethod
        def read(published: Published, vertices: Vertices) -> Answer:
            return Answer(np.zeros(vertices.size // 2), np.zeros(vertices.size // 2, bool))

    for cls, words in ((Narrow, "3 entries for 7"), (Silent, r"read gives \(3,\) values for 7 vertices")):
        monkeypatch.setitem(registry.KINDS, cls.kind, cls)
        with pytest.raises(ProgramError, match=f"{cls.kind} .*{words}"):
            registry.warm_up(directed=True, weighted=False, programs=[(cls.kind, {})])


def test_programs_run_at_once(graph: Graph) -> None:
    probes = [Probe("a"), Probe("b"), Probe("c")]
    meeting = threading.Barrier(2)
    for probe in probes[:2]:
        probe.meet = meeting  # neither returns before the other has begun
    engine = engine_on(graph, *probes)
    runs = engine.start()
    assert [(run.id, run.error) for run in runs] == [("a", None), ("b", None), ("c", None)]
    engine.close()


def test_the_longest_runs_first(graph: Graph) -> None:
    order: list[str] = []

    class Ordered(Probe):
        def _run(self, what: str, graph: Graph) -> Refresh:
            order.append(self.id)
            return super()._run(what, graph)

    # Begin and end of three lone runs that take 1, 5 and 3 seconds; then time stands still.
    times = itertools.chain([0, 1, 1, 6, 6, 9], itertools.repeat(9))
    programs = [Ordered("a"), Ordered("b"), Ordered("c")]
    engine = engine_on(graph, *programs, threads=1, clock=lambda: next(times))
    for id in ("a", "b", "c"):
        engine.start([id])
    assert [state.seconds for state in engine.states().values()] == [1, 5, 3]
    order.clear()
    engine.refresh(add(graph, (0, 1)))
    assert order == ["b", "c", "a"]
    engine.close()


def test_short_refreshes_stay_on_the_thread_of_the_longest(graph: Graph) -> None:
    ran_on: dict[str, int] = {}
    seconds = {"long": 1.0, "short": 0.0001}
    time = 0.0

    class Timed(Probe):
        def _run(self, what: str, graph: Graph) -> Refresh:
            nonlocal time
            ran_on[self.id] = threading.get_ident()
            refresh = super()._run(what, graph)
            time += seconds[self.id]
            return refresh

    long, short = Timed("long"), Timed("short")
    engine = engine_on(graph, long, short, clock=lambda: time)
    for program in (long, short):
        engine.start([program.id])
    engine.refresh(add(graph, (0, 1)))
    assert set(ran_on.values()) == {threading.get_ident()}
    seconds["short"] = 0.5
    engine.start(["short"])
    meeting = threading.Barrier(2)
    long.meet = short.meet = meeting  # neither returns before the other has begun
    assert [run.error for run in engine.refresh(add(graph, (1, 2)))] == [None, None]
    assert len(set(ran_on.values())) == 2
    engine.close()


def test_what_a_subclass_publishes_besides_is_looked_at(graph: Graph) -> None:
    """What the kernels of a program keep needs no look; a column that a subclass adds does."""

    class Extra(Program):
        def columns(self) -> Any:
            return {**super().columns(), "extra": np.zeros(1)}  # type: ignore[safe-super]

    class OddPaths(Extra, BFS): ...

    class OddComponents(Extra, Components): ...

    add(graph, (0, 2))
    told = "column odd/extra: 1 entries for 3 vertices"
    for program, words in (
        (BFS("even", (0,)), ""),
        (OddPaths("odd", (0,)), told),
        (Components("even", DenseIds()), ""),
        (OddComponents("odd", DenseIds()), told),
    ):
        engine = engine_on(graph, program)
        (run,) = engine.start()
        engine.close()
        assert words in (run.error or "") and (run.error is None) == (not words)


def test_a_failure_is_quarantined_and_harms_nobody(graph: Graph) -> None:
    sick, well = Probe("sick"), Probe("well")
    engine = engine_on(graph, sick, well)
    engine.start()
    sick.fail = RuntimeError("no more memory")
    runs = by_id(engine.refresh(add(graph, (0, 1))))
    assert runs["sick"].refresh is None and runs["sick"].error == "RuntimeError: no more memory"
    assert runs["well"].error is None and well.n == 2
    state = engine.states()["sick"]
    assert (state.state, state.reason) == ("quarantined", "RuntimeError: no more memory")
    assert list(by_id(engine.refresh(add(graph, (1, 2))))) == ["well"]
    assert "sick" not in engine.audit() and engine.audit()["well"] == []
    assert engine.start(["sick"])[0].error is not None and engine.states()["sick"].state == "quarantined"
    sick.fail = None
    assert engine.start(["sick"])[0].error is None
    assert engine.states()["sick"].state == "fresh" and sick.n == 3
    assert len(engine.refresh(add(graph, (2, 3)))) == 2
    assert sick.runs == ["start", "refresh", "start", "start", "refresh"]
    engine.close()


def test_an_interrupt_is_no_failure_of_a_program(graph: Graph) -> None:
    probe = Probe("a")
    probe.fail = KeyboardInterrupt()
    engine = engine_on(graph, probe)
    with pytest.raises(KeyboardInterrupt):
        engine.start()
    engine.close()


def test_what_is_broken_off_is_no_failure_of_a_program_and_none_begins_after_that(graph: Graph) -> None:
    class Breaks(Probe):
        def _run(self, what: str, graph: Graph) -> Refresh:
            graph.team.break_off()
            return super()._run(what, graph)

    first, second = Breaks("first"), Probe("second")
    engine = engine_on(graph, first, second, threads=1)
    with pytest.raises(BrokenOff):
        engine.start()
    assert (first.runs, second.runs) == (["start"], [])
    assert {state.state for state in engine.states().values()} == {"fresh"}
    engine.close()


@pytest.mark.parametrize("kind", ["pagerank", "cdlp"])
def test_a_program_that_is_broken_off_within_is_not_quarantined(kind: str) -> None:
    index = VertexIndex.create("int")
    index.insert(np.arange(200))
    with contextlib.closing(Graph(weighted=False, in_edges=True)) as graph:
        _break_off_within(graph, registry.make_program(kind, None, {}, index))


def _break_off_within(graph: Graph, program: Program) -> None:
    add(graph, *((u, v) for u in range(40) for v in (u + 1, 2 * u + 1)))
    engine = engine_on(graph, program)
    engine.start()
    change = add(graph, *((u, 3 * u) for u in range(40)))  # so many that there are passes
    graph.team.break_off()
    with pytest.raises(BrokenOff):
        engine.refresh(change)
    assert engine.states()[program.id].state == "fresh"
    engine.close()


def test_the_audit_survives_itself_and_names_the_storage(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, other = Probe("a"), Probe("b")
    engine = engine_on(graph, probe, other)
    engine.start()
    probe.fail = ZeroDivisionError("oops")
    other.n = 9
    monkeypatch.setattr(graph, "check", lambda: ["out-rows and in-rows hold different edges"])
    found = engine.audit()
    assert found["a"] == [Violation("audit", "the audit itself failed: ZeroDivisionError: oops")]
    assert found["b"] == [Violation("count", "9 vertices")]
    assert found[STORAGE] == [Violation("storage", "out-rows and in-rows hold different edges")]
    engine.close()


def test_a_process_that_was_forked_is_refused_and_the_first_one_goes_on() -> None:
    """Without that it waits for threads that are not there."""
    graph = Graph()
    rng = np.random.default_rng(1)
    graph.apply(EdgeBatch.of(*rng.integers(0, 50_000, (2, 300_000))), 50_000)  # enough for every thread there is
    engine = Engine(graph, [BFS("hops", (0,)), Components("parts", DenseIds())], DenseIds(known=50_000).resolve)
    assert all(run.error is None for run in engine.start())
    change = add(graph, (0, 1))
    refused: list[Callable[[], object]] = [
        lambda: graph.apply(EdgeBatch.of([0], [2]), 50_000),
        lambda: graph.load(graph.export(), 50_000),
        lambda: engine.refresh(change),
        lambda: engine.start(["parts"]),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, of forking with threads
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        messages = []
        for work in refused:
            try:
                work()
            except RuntimeError as error:
                messages.append(str(error))
        engine.close()
        graph.close()
        right = [f"belongs to process {os.getppid()}" in message for message in messages]
        os._exit(0 if right == [True] * len(refused) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(run.error is None for run in engine.refresh(change))
    assert not any(engine.audit().values())
    engine.close()
    graph.close()


# -- sources --------------------------------------------------------------------------------------------------


def test_sources_are_asked_for_until_they_are_known(graph: Graph) -> None:
    ids = DenseIds(known=3)
    program = BFS("hops", (2, 4))
    engine = Engine(graph, [program], ids.resolve)
    engine.start()
    engine.refresh(add(graph, (0, 1)))  # the index knows 2 already, this epoch does not
    assert program.state()["word"].tolist() == [0xFFFF_FFFF_FFFF_FFFF] * 2
    engine.refresh(add(graph, (2, 1)))
    assert program.state()["word"][2] >> np.uint64(32) == 0
    ids.known = 5
    engine.refresh(add(graph, (4, 0)))
    assert (program.state()["word"] >> np.uint64(32)).tolist() == [1, 1, 0, 0xFFFF_FFFF, 0]
    asked = ids.asked
    engine.refresh(add(graph, (0, 3)))
    assert ids.asked == asked == 4
    engine.close()


def test_a_resolver_that_fails_is_the_programs_failure(graph: Graph) -> None:
    def resolve(ids: Sequence[ExternalId]) -> Vertices:
        raise TypeError("this graph has string ids")

    engine = Engine(graph, [BFS("hops", (1,)), Probe("a")], resolve)
    runs = by_id(engine.start())
    assert runs["hops"].error == "TypeError: this graph has string ids" and runs["a"].error is None
    engine.close()


# -- adding and removing -------------------------------------------------------------------------------------


def test_programs_come_and_go(graph: Graph) -> None:
    engine = engine_on(graph, Probe("a"))
    engine.start()
    change = add(graph, (0, 1), (1, 2))
    engine.refresh(change)
    engine.add(BFS("hops", (0,)))
    assert [run.id for run in engine.start(["hops"])] == ["hops"]
    assert [program.id for program in engine.programs] == ["a", "hops"]
    with pytest.raises(ProgramError, match="'hops'"):
        engine.add(Probe("hops"))
    with pytest.raises(ProgramError, match="'storage'"):
        engine.add(Probe(STORAGE))
    assert list(engine.states()) == ["a", "hops"]
    with pytest.raises(KeyError):
        engine.start(["b"])
    engine.close()


def test_what_the_graph_lacks_is_refused() -> None:
    graph = Graph(weighted=False, in_edges=False)
    with pytest.raises(ProgramError, match="bfs needs in-edges"):
        engine_on(graph, BFS("hops", (0,)))

    class Weighing(Probe):
        needs_weights = True

    with pytest.raises(ProgramError, match=r"are 'non-negative' or 'any', and graph.weights is 'unwei"):
        engine_on(graph, Weighing("a"))
    graph.close()

    class Pulling(Weighing):
        needs_in_edges = True

    graph = Graph(in_weights=False)
    engine_on(graph, Weighing("a")).close()
    with pytest.raises(ProgramError, match="needs in-edges with weights"):
        engine_on(graph, Pulling("a"))
    graph.close()


def test_a_program_that_is_wrong_with_negative_weights_is_refused() -> None:
    graph = Graph(negative_weights=True)
    with pytest.raises(ProgramError, match=r"sssp needs .* 'non-negative', and graph.weights is 'any'"):
        engine_on(graph, registry.make_program("sssp", None, {"source": 0}))
    engine_on(graph, registry.make_program("sswp", None, {"source": 0})).close()
    graph.close()


def test_a_restored_program_goes_on(graph: Graph) -> None:
    history = random_history(3, directed=True)
    ids = DenseIds()
    engine = Engine(graph, [BFS("hops", (0,)), Components("parts", ids)], ids.resolve)
    engine.start()
    for epoch in history.epochs[:20]:
        engine.refresh(graph.apply(epoch.batch(), epoch.n_vertices))
    saved = {p.id: {name: c.copy() for name, c in p.state().items()} for p in engine.programs}
    engine.close()
    programs = [BFS("hops", (0,)), Components("parts", ids)]
    for program in programs:
        program.restore(saved[program.id], graph)
    engine = Engine(graph, programs, ids.resolve)
    assert engine.start([]) == []
    for epoch in history.epochs[20:]:
        engine.refresh(graph.apply(epoch.batch(), epoch.n_vertices))
        assert not any(engine.audit().values())
    engine.close()


# -- the registry ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), [("bfs", "source"), ("sspaths", "source"), ("ppr", "sources")])
def test_a_restored_program_knows_its_source(graph: Graph, kind: str, name: str) -> None:
    """Before any refresh, where it is audited; and in the first one, where the source is deleted."""
    add(graph, (0, 1), (1, 2))
    before = registry.make_program(kind, None, {name: 0})
    engine_on(graph, before).start()
    restored = registry.make_program(kind, None, {name: 0})
    restored.restore({column: array.copy() for column, array in before.state().items()}, graph)
    assert restored.audit_slice(graph, 0, 3)[0] == []
    gone = VertexOps(np.array([0], np.uint32), np.array([Op.DELETE_VERTEX], np.uint8), np.zeros(1, np.int64))
    engine = engine_on(graph, restored)
    engine.refresh(graph.apply(EdgeBatch.of([], []), 3, gone))
    published = Published(restored.columns(), restored.scalars(), 3)
    assert type(restored).read(published, np.arange(3, dtype=np.uint32)).null.all()
    assert not any(engine.audit().values())


def test_programs_are_made_by_name() -> None:
    hops = registry.make_program("bfs", "hops", {"source": [1, 2]})
    assert isinstance(hops, BFS) and hops.id == "hops" and hops.sources == (1, 2)
    assert registry.make_program("bfs", None, {"source": "a"}).id == "bfs"
    parts = registry.make_program("components", None, {}, DenseIds())
    assert isinstance(parts, Components)
    assert registry.make_program("pagerank", None, {}).kind == "pagerank"
    assert all(cls.kind == kind and cls.summary for kind, cls in registry.KINDS.items())


def test_a_program_of_ones_own_gets_the_order_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ordered(Probe):
        kind = "ordered"
        needs_order = True

        def __init__(self, id: str, order: ExternalOrder) -> None:
            super().__init__(id)
            self.order = order

    monkeypatch.setitem(registry.KINDS, "ordered", Ordered)
    ids = DenseIds()
    program = registry.make_program("ordered", None, {}, ids)
    assert isinstance(program, Ordered) and program.order is ids
    with pytest.raises(ProgramError, match="ordered needs an order of vertices by external id"):
        registry.make_program("ordered", None, {})


def test_default_ids() -> None:
    assert registry.default_id("bfs", {"source": 1}) == "bfs"
    assert registry.default_id("bfs", {"source": 1}, ambiguous=True) == "bfs(1)"
    assert registry.default_id("bfs", {"source": ["a", "b"]}, ambiguous=True) == "bfs(a+b)"
    assert registry.default_id("components", {}, ambiguous=True) == "components"


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        (
            "bsf",
            {},
            "unknown program 'bsf'; there are KINDS; did you mean 'bfs'?",
        ),
        (
            "zzz",
            {},
            "unknown program 'zzz'; there are KINDS",
        ),
        ("bfs", {}, "bfs needs the parameter 'source': vertex to start from, or a list of them"),
        ("bfs", {"sorce": 1}, "bfs has no parameter 'sorce'; it takes source; did you mean 'source'?"),
        ("components", {"x": 1}, "components has no parameter 'x'; it takes none"),
        (
            "bfs",
            {"source": 1.5},
            "bfs: source = 1.5 is not allowed; expected a vertex id (an integer or a string), "
            "or a list of at least one",
        ),
        ("components", {}, "components needs an order of vertices by external id"),
    ],
)
def test_refusals_are_exact(kind: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError) as refused:
        registry.make_program(kind, "id", params)
    assert str(refused.value) == message.replace("KINDS", ", ".join(sorted(registry.KINDS)))


def test_a_refusal_of_a_users_own_class_stays_one_and_names_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    class TooSmall(ProgramError):
        def __init__(self, *, least: int) -> None:
            super().__init__(f"at least {least} are needed", "source")

    class Picky(registry.KINDS["bfs"]):  # type: ignore[misc]
        def __init__(self, *_: Any, **given: Any) -> None:
            raise TooSmall(least=3)

    monkeypatch.setitem(registry.KINDS, "bfs", Picky)
    with pytest.raises(TooSmall, match=r"^bfs: at least 3 are needed$") as refused:
        registry.make_program("bfs", "id", {"source": 1})
    assert refused.value.parameter == "source"


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_warm_up_leaves_nothing_to_compile(directed: bool, weighted: bool) -> None:
    registry.warm_up(directed=directed, weighted=weighted)
    before = compiled()
    graph = Graph(directed=directed, weighted=weighted)
    ids = DenseIds()
    kinds = {kind: cls for kind, cls in registry.KINDS.items() if weighted or not cls.needs_weights}
    programs = [registry.make_program(kind, None, least_parameters(cls), ids) for kind, cls in kinds.items()]
    engine = Engine(graph, programs, ids.resolve)
    engine.start()
    for epoch in random_history(5, directed=directed).epochs:
        runs = engine.refresh(graph.apply(epoch.batch(weighted=weighted), epoch.n_vertices))
        assert all(run.error is None for run in runs)
    engine.refresh(graph.apply(deletes([(0, 1)], graph.n_vertices).batch(), graph.n_vertices))
    assert not any(engine.audit().values())
    auditor = Auditor(graph, engine)
    while auditor.step(1e-3, (1, 1)).ended is None:
        pass
    for program in programs:  # a change so large that the rest of the kernels is needed
        if isinstance(program, PathProgram):
            program._large = 0
            program.start(graph)
    engine.close()
    graph.close()
    assert compiled() == before


def least_parameters(cls: type[Program]) -> dict[str, Any]:
    return {parameter.name: 0 for parameter in cls.parameters if parameter.required}


def compiled() -> dict[str, int]:
    """The number of compiled signatures of every kernel of the compute layer."""
    modules = [found.name for found in pkgutil.walk_packages(compute.__path__, f"{compute.__name__}.")]
    kernels = {
        f"{name}.{kernel}": found
        for name in modules
        for kernel, found in vars(importlib.import_module(name)).items()
    }
    for kind, cls in registry.KINDS.items():
        if issubclass(cls, PathProgram):
            program = cls("any", (0,))
            kernels |= {f"{kind}.{name}": kernel for name, kernel in program._kernels._asdict().items()}
    return {name: len(kernel.signatures) for name, kernel in kernels.items() if isinstance(kernel, Dispatcher)}
