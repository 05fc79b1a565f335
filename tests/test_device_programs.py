"""The engine with a device: programs run there, move between processors, and go home when it fails."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, epoch_of, random_history
from own_programs import Fading, Within
from test_components import Ids

from graphtide.compute.cores.kcore import KCore
from graphtide.compute.counts.sspaths import SSPaths
from graphtide.compute.device import NoTwin, twin
from graphtide.compute.device.program import Abode, DeviceProgram
from graphtide.compute.engine import Engine, ProgramRun
from graphtide.compute.forest.components import Components
from graphtide.compute.homes import Homes
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.paths.form import Functors
from graphtide.compute.paths.sssp import SSSP
from graphtide.compute.paths.sswp import SSWP
from graphtide.compute.program import Program, Refresh
from graphtide.compute.rounds import Cdlp
from graphtide.compute.triangles import LocalClustering, Triangles
from graphtide.compute.walks.pagerank import PageRank
from graphtide.compute.walks.ppr import PersonalisedPageRank
from graphtide.gpma.device_failure import DeviceFailed, is_of_device
from graphtide.gpma.edges import NO_VERTEX
from graphtide.partition.graph import Graph, GraphChange

MAKERS: dict[str, Callable[[str], Program]] = {
    "bfs": lambda id: BFS(id, (0,)),
    "sssp": lambda id: SSSP(id, (0, 3)),
    "sswp": lambda id: SSWP(id, (0,)),
    "within": lambda id: Within(id, (2,), hops=3),
    "fading": lambda id: Fading(id, (0,)),
    "components": lambda id: Components(id, Ids(5)),
    "sspaths": lambda id: SSPaths(id, (0,)),
    "triangles": Triangles,
    "lcc": LocalClustering,
    "cdlp": lambda id: Cdlp(id, 4, Ids(5)),
}


STAY = Homes(lambda _: False)


class Both:
    """A graph with a device and one without, and an engine with the same programs on each."""

    def __init__(self, graphs: list[Graph], *, directed: bool = True, makers: Any = MAKERS, **engine: Any) -> None:
        self.graph = Graph(directed=directed, device=True)
        self.host_graph = Graph(directed=directed)
        graphs += [self.graph, self.host_graph]
        programs = [make(id) for id, make in makers.items()]
        self.engine = Engine(self.graph, programs, self.resolve, **{"judge": STAY, **engine})
        self.host = Engine(self.host_graph, [make(id) for id, make in makers.items()], self.resolve)

    @staticmethod
    def resolve(ids: Any) -> np.ndarray:
        return np.array(ids, np.uint32)

    def start(self) -> list[ProgramRun]:
        self.host.start()
        return self.engine.start()

    def step(self, epoch: Epoch) -> list[ProgramRun]:
        """As ``refresh``; results and storage are proven."""
        runs = self.refresh(epoch)
        self.check_values()
        assert not any(self.engine.audit().values())
        return runs

    def refresh(self, epoch: Epoch) -> list[ProgramRun]:
        """Both take an epoch; what was reported of the device's leads to its columns."""
        before = {program.id: columns_of(program) for program in self.engine.programs}
        n_before = self.graph.n_vertices
        self.host.refresh(apply(self.host_graph, epoch))
        runs = self.engine.refresh(apply(self.graph, epoch))
        for run in runs:
            assert run.error is None and run.refresh is not None, run
            check_report(
                before[run.id], columns_of(self.engine_program(run.id)), run.refresh, n_before, self.graph
            )
        return runs

    def check_values(self) -> None:
        for found, wanted in zip(self.engine.programs, self.host.programs, strict=True):
            n = self.graph.n_vertices
            assert values_of(found, n) == values_of(wanted, n), found.id

    def engine_program(self, id: str) -> Program:
        (found,) = (program for program in self.engine.programs if program.id == id)
        return found

    def close(self) -> None:
        self.engine.close()
        self.host.close()


def apply(graph: Graph, epoch: Epoch) -> GraphChange:
    return graph.apply(epoch.batch(weighted=True), epoch.n_vertices, epoch.vertex_ops())


def columns_of(program: Program) -> dict[str, np.ndarray]:
    return {name: column.copy() for name, column in program.columns().items()}


def values_of(program: Program, n: int) -> list[int]:
    """The bits of a path program's values, counts, tallies, labels, and the names of components."""
    columns = program.columns()
    if "count" in columns:
        return columns["count"][:n].astype(np.int64).tolist()
    if "word" in columns:
        return (columns["word"][:n] >> np.uint64(32)).tolist()
    if "handle" in columns:
        return columns["representative"][columns["handle"][:n]].tolist()
    (values, *_) = columns.values()
    return values[:n].astype(np.int64).tolist()


def check_report(
    before: dict[str, np.ndarray], after: dict[str, np.ndarray], refresh: Refresh, n_before: int, graph: Graph
) -> None:
    """Whoever has the columns of before, and what was reported, has those of after."""
    for name, column in after.items():
        reported = refresh.changed.get(name, np.empty(0, np.uint32))
        if reported is None:
            continue
        told = np.zeros(graph.n_vertices, bool)
        told[reported] = True
        differs = np.full(graph.n_vertices, name in ("word", "count", "handle"))  # a new handle need not be in use
        differs[:n_before] = before[name][:n_before] != column[:n_before]
        if name in ("representative", "size"):  # of handles, of which some are nobody's
            differs &= np.isin(np.arange(graph.n_vertices), after["handle"][: graph.n_vertices])
        assert not (differs & ~told).any(), name


@pytest.fixture
def both(emulated_cupy: ModuleType, graphs: list[Graph]) -> Iterator[Callable[..., Both]]:
    """Makes a ``Both``; it is closed at the end."""
    made: list[Both] = []

    def make(**how: Any) -> Both:
        made.append(Both(graphs, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("directed", [True, False])
def test_an_engine_on_a_device_computes_what_one_on_the_host_does(
    both: Callable[..., Both], directed: bool, seed: int
) -> None:
    cuda_emulator.seed(seed)
    pair = both(directed=directed)
    runs = pair.start()
    history = random_history(seed, directed=directed, epochs=12, vertex_share=0.1)
    for epoch in history.epochs:
        assert all(run.on_device for run in runs)
        runs = pair.step(epoch)
    assert pair.graph.device is not None


class Anywhere:
    """Moves programs at random."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.moves: list[str] = []

    def leaving(self, updates: int, seconds: float, on_device: Mapping[str, bool]) -> list[str]:
        return [id for id in on_device if self._rng.random() < 0.5]

    def moved(self, id: str, seconds: float) -> None:
        self.moves.append(id)

    def forget(self, id: str) -> None:
        pass


@pytest.mark.sample(1)
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_programs_that_move_compute_what_those_on_the_host_do(
    both: Callable[..., Both], directed: bool, seed: int
) -> None:
    """And what is published changes by no move, but by runs only."""
    cuda_emulator.seed(seed)
    judge = Anywhere(seed)
    pair = both(directed=directed, judge=judge)
    pair.start()
    homes = set()
    history = random_history(seed, directed=directed, epochs=14, vertex_share=0.1)
    for epoch in history.epochs:
        where = {program.id: program.on_device for program in pair.engine.programs}
        runs = pair.step(epoch)
        assert {run.id: run.on_device for run in runs} == where
        for run in runs:
            assert pair.engine_program(run.id).on_device == (run.on_device != run.moved)
            homes.add((run.id, run.on_device))
    assert len(homes) > len(MAKERS) + 2
    assert judge.moves
    assert pair.graph.device is not None


def test_memory_that_is_pinned_for_the_device_counts_until_it_is_let_go(both: Callable[..., Both]) -> None:
    pair = both(makers={**MAKERS, "ranks": lambda id: PageRank(id)})
    pair.engine.refresh(apply(pair.graph, epoch_of([(1, 0, 1, 1.0)], 1000)))
    pair.engine.start()
    for program in pair.engine.programs:
        # An entry of 4 bytes for a change, at the least.
        assert program.memory_bytes() >= program.host.memory_bytes() + 4 * 1000
        program.move(pair.graph)
        assert program.memory_bytes() == program.host.memory_bytes()


def test_ranks_that_move_keep_their_bound(both: Callable[..., Both], seed: int) -> None:
    cuda_emulator.seed(seed)
    pair = both(makers={"ranks": lambda id: PageRank(id)}, judge=Anywhere(seed))
    pair.start()
    (program,) = pair.engine.programs
    moves = 0
    for epoch in random_history(seed, directed=True, epochs=16, vertex_share=0.1).epochs:
        apply(pair.host_graph, epoch)
        change = apply(pair.graph, epoch)
        (run,) = pair.engine.refresh(change)
        assert run.error is None and run.refresh is not None
        assert run.refresh.error_bound is not None and run.refresh.error_bound <= program.host.tolerance
        assert not any(pair.engine.audit().values())
        moves += run.moved
        published = {name: column.copy() for name, column in program.columns().items()}
        program.move(pair.graph)
        for name, column in program.columns().items():
            n = pair.graph.n_vertices
            np.testing.assert_array_equal(column[:n], published[name][:n])
        assert not any(pair.engine.audit().values())
    assert pair.graph.device is not None


def test_a_program_that_fails_to_move_is_quarantined_and_comes_back(
    both: Callable[..., Both], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Always(Anywhere):
        def leaving(self, updates: int, seconds: float, on_device: Mapping[str, bool]) -> list[str]:
            return list(on_device)

    pair = both(makers={"bfs": MAKERS["bfs"]}, judge=Always(1))
    pair.start()
    (program,) = pair.engine.programs

    def fails(*given: Any) -> None:
        raise MemoryError("of the host")

    with monkeypatch.context() as patched:
        patched.setattr(program.host, "restore", fails)
        (run,) = pair.engine.refresh(apply(pair.graph, epoch_of([(1, 0, 1, 1.0)], 2)))
    assert run.error == "MemoryError: of the host"
    assert pair.engine.states()["bfs"].state == "quarantined"
    apply(pair.host_graph, epoch_of([(1, 0, 1, 1.0)], 2))
    pair.engine.start()
    pair.host.start()
    pair.check_values()


def test_a_lost_device_ends_all_moves(both: Callable[..., Both], seed: int) -> None:
    judge = Anywhere(seed)
    pair = both(judge=judge)
    pair.start()
    epochs = random_history(seed, directed=True, epochs=12, vertex_share=0.1).epochs
    for epoch in epochs[:6]:
        pair.step(epoch)
    pair.graph.drop_device("out of order")
    before = len(judge.moves)
    for epoch in epochs[6:]:
        assert not any(run.on_device for run in pair.step(epoch))
    assert len(judge.moves) == before


def test_a_program_that_loses_the_device_as_it_leaves_is_at_home(both: Callable[..., Both], seed: int) -> None:
    """What the device has of PageRank is asked for then."""
    pair = both(makers={"ranks": lambda id: PageRank(id)})
    epochs = random_history(seed, directed=True, epochs=4).epochs
    pair.start()
    for epoch in epochs[:2]:
        pair.engine.refresh(apply(pair.graph, epoch))
    (program,) = pair.engine.programs
    assert program.on_device and program.is_movable
    with cuda_emulator.failing_card(0, quiet=False):
        program.move(pair.graph)
    assert pair.graph.device_lost is not None
    assert not program.on_device and not program.is_movable
    for epoch in epochs[2:]:
        (run,) = pair.engine.refresh(apply(pair.graph, epoch))
        assert run.error is None and not run.on_device
        assert not any(pair.engine.audit().values())


def test_where_a_program_is(both: Callable[..., Both]) -> None:
    """It is brought to the device as it starts, moves or gets a state; one that is away stays away by these."""
    pair = both(makers={"bfs": MAKERS["bfs"]})
    (program,) = pair.engine.programs
    assert isinstance(program, DeviceProgram)
    found = [program._abode]
    pair.start()
    pair.step(epoch_of([(1, 0, 1, 1.0), (1, 1, 2, 1.0)], 3))
    found.append(program._abode)
    state = {name: column.copy() for name, column in program.state().items()}
    for _ in range(2):
        program.restore(state, pair.graph)
        found.append(program._abode)
        program.move(pair.graph)
        found.append(program._abode)
        pair.start()
        pair.step(epoch_of([(1, 2, 0, 1.0)], 3))
        found.append(program._abode)
        state = {name: column.copy() for name, column in program.state().items()}
    on, away = Abode.DEVICE, Abode.AWAY
    assert found == [Abode.COMING, on, on, away, away, away, on, on]


def test_half_of_the_programs_run_on_each_side(both: Callable[..., Both], seed: int) -> None:
    makers = {name + side: make for name, make in MAKERS.items() for side in ("", "-at-home")}

    def place(program: Program, graph: Graph) -> Program:
        if program.id.endswith("-at-home"):
            raise NoTwin("it is to stay")
        return twin(program, graph)

    pair = both(makers=makers, place=place)
    runs = pair.start()
    for epoch in random_history(seed, directed=True, epochs=6, vertex_share=0.1).epochs:
        runs = pair.step(epoch)
        assert [run.on_device for run in runs] == [True, False] * len(MAKERS)


# -- which programs run where ------------------------------------------------------------------------------------


class Exponential(SSSP):
    """Cannot be printed."""

    kind = "test-exponential"

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        def gather(distance, weight):  # type: ignore[no-untyped-def]
            return distance + np.float32(math.exp(-weight))

        def better(new, old):  # type: ignore[no-untyped-def]
            return new < old

        return Functors(gather, better)


def test_what_has_no_twin_stays_on_the_host_with_one_log_line(
    both: Callable[..., Both], caplog: pytest.LogCaptureFixture
) -> None:
    makers = {
        "shells": KCore,
        "ranks": lambda id: PageRank(id, tolerance=1e-6),
        "odd": lambda id: Exponential(id, (0,)),
        "sssp": MAKERS["sssp"],
    }
    with caplog.at_level(logging.INFO):
        pair = both(makers=makers)
    line = Exponential.functors().gather.__code__.co_firstlineno + 1
    assert [record.getMessage() for record in caplog.records if "stays" in record.getMessage()] == [
        "program shells stays on the host: programs of the kind 'kcore' have no twin on a device",
        "program ranks stays on the host: a tolerance below 0.0001 is beyond what a device keeps of numbers",
        f"program odd stays on the host: {__file__}:{line}: a call of math.exp",
    ]
    assert {run.id: run.on_device for run in pair.start()} == {
        "shells": False,
        "ranks": False,
        "odd": False,
        "sssp": True,
    }


def test_a_failing_compiler_leaves_a_program_on_the_host(
    both: Callable[..., Both], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from graphtide.compute.device.paths import DevicePathProgram

    def fails(program: DevicePathProgram, graph: Graph) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(DevicePathProgram, "compile", fails)
    with caplog.at_level(logging.INFO):
        pair = both(makers={"bfs": MAKERS["bfs"]})
    assert "program bfs stays on the host: its kernels do not compile: RuntimeError: no such" in caplog.text
    assert not pair.start()[0].on_device
    assert pair.graph.device is not None


def test_kernels_are_compiled_where_a_program_is_made_ready(
    both: Callable[..., Both], emulated_cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread than the one that takes it in, and then runs it."""
    makers = {name: MAKERS[name] for name in ("bfs", "sssp", "components")}
    makers["ranks"] = lambda id: PageRank(id)
    makers["near"] = lambda id: PersonalisedPageRank(id, (0,))
    makers["corners"] = Triangles
    makers["paths"] = lambda id: SSPaths(id, (0,))
    pair = both(makers={})
    pair.step(epoch_of([(1, 0, v, 1.0) for v in range(1, 30)], 30))
    compiled: list[str] = []

    class Module(emulated_cupy.RawModule):  # type: ignore[misc]
        def __init__(self, **how: Any) -> None:
            compiled.append(threading.current_thread().name)
            super().__init__(**how)

    monkeypatch.setattr(emulated_cupy, "RawModule", Module)
    gc.collect()  # what other tests have left
    used = emulated_cupy.get_default_memory_pool().used_bytes()
    for id, make in makers.items():
        beside = threading.Thread(target=pair.engine.make_ready, args=(make(id),), name="beside")
        beside.start()
        beside.join()
    assert emulated_cupy.get_default_memory_pool().used_bytes() == used
    for id, make in makers.items():
        assert isinstance(pair.engine.add(make(id)), DeviceProgram)
        pair.host.add(make(id))
    assert all(run.on_device for run in pair.start())
    pair.engine.refresh(apply(pair.graph, epoch_of([(1, 3, 7, 1.0), (0, 0, 9, 1.0)], 31)))
    assert len(compiled) > len(makers) and set(compiled) == {"beside"}


def test_without_a_device_nothing_is_asked_for_a_twin() -> None:
    def asked(program: Program, graph: Graph) -> Program:
        raise AssertionError("there is no device")

    graph = Graph()
    engine = Engine(graph, [MAKERS["bfs"]("bfs")], Both.resolve, place=asked)
    assert [run.on_device for run in engine.start()] == [False]
    engine.close()
    graph.close()


@pytest.mark.parametrize("name", ["bfs", "sssp", "components"])
def test_a_state_moves_to_the_device_and_back(
    both: Callable[..., Both], graphs: list[Graph], name: str, seed: int
) -> None:
    """The engine is given a program that was restored; it runs on the host once, and then on the device. What the
    device made is a state of the host."""
    first, *epochs = random_history(seed, directed=True, epochs=6).epochs
    pair = both(makers={})
    for graph in (pair.graph, pair.host_graph):
        apply(graph, first)
    saved = MAKERS[name]("saved")
    saved.bind(np.array(saved.sources, np.uint32) if pair.graph.n_vertices > 3 else np.zeros(1, np.uint32))
    saved.start(pair.host_graph)
    for engine, graph in ((pair.engine, pair.graph), (pair.host, pair.host_graph)):
        restored = MAKERS[name]("restored")
        restored.restore({key: column.copy() for key, column in saved.state().items()}, graph)
        engine.add(restored)
    assert [[run.on_device for run in pair.step(epoch)] for epoch in epochs] == [[True]] * len(epochs)
    back = MAKERS[name]("back")
    back.restore({key: column.copy() for key, column in pair.engine.programs[0].state().items()}, pair.host_graph)
    assert values_of(back, pair.graph.n_vertices) == values_of(pair.host.programs[0], pair.graph.n_vertices)
    assert back.audit(pair.host_graph) == []


def test_twins_run_one_after_another(both: Callable[..., Both]) -> None:
    device_is_taken = threading.Lock()

    class Alone(Failing):
        def _start(self, graph: Graph, device: object) -> Refresh:
            assert device_is_taken.acquire(blocking=False)
            time.sleep(0.01)
            device_is_taken.release()
            return super()._start(graph, device)

    pair = both(makers=MAKERS, place=lambda program, graph: Alone(program), threads=4)
    assert [run.on_device for run in pair.start()] == [True] * len(MAKERS)


# -- what fails --------------------------------------------------------------------------------------------------


class Failing(DeviceProgram):
    """A twin that raises where it is told to, and does nothing else but run the host's program."""

    fails: str | None = None
    error: Exception = DeviceFailed("made to fail")
    value = np.uint32
    kind = "test-failing"
    needs_in_edges = True

    def compile(self, graph: Graph) -> None:
        pass

    def _start(self, graph: Graph, device: object) -> Refresh:
        self._fail("start")
        return self.host.start(graph)

    def _refresh(self, graph: Graph, device: object, change: GraphChange) -> Refresh:
        self._fail("refresh")
        return self.host.refresh(graph, change)

    def _take_over(self, graph: Graph, device: object) -> None:
        self._fail("take over")

    def _let_go(self) -> None:
        self.fails = None

    def _fail(self, here: str) -> None:
        if self.fails == here:
            self.host.columns()["word"][:] = 7  # whatever a failure may leave
            raise self.error

    @staticmethod
    def read(published: Any, vertices: Any) -> Any:
        return BFS.read(published, vertices)


def failing(at: str, error: Exception) -> Callable[[Program, Graph], Program]:
    def make(program: Program, graph: Graph) -> Program:
        made = Failing(program)
        made.fails, made.error = (at if program.id == "one" else None), error
        return made

    return make


@pytest.mark.parametrize(
    ("error", "is_lost"), [(DeviceFailed("made to fail"), True), (MemoryError("made to fail"), False)]
)
@pytest.mark.parametrize("at", ["start", "refresh"])
def test_what_fails_on_the_device_is_computed_on_the_host_in_the_same_run(
    both: Callable[..., Both], caplog: pytest.LogCaptureFixture, at: str, error: Exception, is_lost: bool
) -> None:
    """A device that fails is lost to all programs; one without memory for a program, to that one."""
    makers = {"one": MAKERS["bfs"], "other": MAKERS["sssp"]}
    pair = both(makers=makers, place=failing(at, error))
    with caplog.at_level(logging.INFO):
        runs = pair.start()
        for epoch in random_history(1, directed=True, epochs=3).epochs:
            on_device = [run.on_device for run in runs]
            runs = pair.step(epoch)
            if at == "refresh" and on_device == [True, True]:
                assert runs[0].refresh is not None and runs[0].refresh.started_over
    assert [run.on_device for run in runs] == [False, not is_lost]
    assert pair.graph.device_lost == ("DeviceFailed: made to fail" if is_lost else None)
    assert sum("program one goes on at the host" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("error", [ValueError("of the host"), RuntimeError("of the host")])
@pytest.mark.parametrize("at", ["start", "refresh", "words"])
def test_a_mistake_on_the_host_is_no_failure_of_the_device(
    both: Callable[..., Both], monkeypatch: pytest.MonkeyPatch, at: str, error: Exception
) -> None:
    """It quarantines its program, as without a device; that comes back there."""
    makers = {"one": MAKERS["bfs"], "other": MAKERS["sssp"]}
    pair = both(makers=makers, place=twin if at == "words" else failing(at, error))
    first, second, third = random_history(1, directed=True, epochs=3).epochs
    one: Any = pair.engine_program("one")
    one.fails = None
    pair.start()
    pair.step(first)
    one.fails = at
    with monkeypatch.context() as patch:
        if at == "words":  # of the host's program, which the twin fills in

            def fails(graph: Graph) -> Any:
                raise error

            patch.setattr(one.host, "words", fails)
        apply(pair.host_graph, second)
        change = apply(pair.graph, second)
        runs = pair.engine.start() if at == "start" else pair.engine.refresh(change)
    assert [run.error for run in runs] == [f"{type(error).__name__}: of the host", None]
    assert pair.engine.states()["one"].state == "quarantined"
    assert pair.graph.device_lost is None and runs[1].on_device
    one.fails = None
    pair.start()
    runs = pair.step(third)
    assert [(run.error, run.on_device) for run in runs] == [(None, True), (None, True)]


def test_what_is_of_a_device(emulated_cupy: Any) -> None:
    failed = emulated_cupy.cuda.runtime.CUDARuntimeError("cudaErrorIllegalAddress")
    full = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})()
    assert all(is_of_device(error) for error in (failed, full, DeviceFailed("it ended")))
    assert not any(is_of_device(error) for error in (RuntimeError("x"), MemoryError(), KeyError(1)))


def test_a_program_that_cannot_move_stays_on_the_host(both: Callable[..., Both]) -> None:
    pair = both(makers={})
    program = MAKERS["bfs"]("one")
    program.bind(np.zeros(1, np.uint32))
    program.start(pair.graph)
    pair.engine._place = failing("take over", DeviceFailed("made to fail"))
    pair.engine.add(program)
    pair.host.add(MAKERS["bfs"]("one"))
    pair.host.start()
    pair.engine_program("one").restore({k: c.copy() for k, c in program.state().items()}, pair.graph)
    assert pair.graph.device_lost == "DeviceFailed: made to fail"


def test_the_host_fails_as_it_always_did(both: Callable[..., Both], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both fail, the program is quarantined."""
    pair = both(makers={"one": MAKERS["bfs"]}, place=failing("start", DeviceFailed("of the device")))

    def fails(graph: Graph) -> Refresh:
        raise ValueError("of the host")

    twin_of: Any = pair.engine.programs[0]
    monkeypatch.setattr(twin_of.host, "start", fails)
    (run,) = pair.engine.start()
    assert run.error == "ValueError: of the host"
    assert pair.engine.states()["one"].state == "quarantined"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "quiet"),
    [("bfs", False), ("bfs", True), ("sssp", False), ("sssp", True), ("components", True)],
)
def test_a_card_may_fail_at_any_call_of_a_run(
    both: Callable[..., Both], name: str, quiet: bool, seed: int
) -> None:
    """At every launch and every wait in turn, of the start and of a refresh."""
    first, second, third = random_history(seed, directed=True, epochs=3).epochs
    calls, broke = 0, True
    while broke:
        pair = both(makers={"one": MAKERS[name], "other": MAKERS["sswp"]})
        apply(pair.graph, first)
        apply(pair.host_graph, first)
        with cuda_emulator.failing_card(calls, quiet=quiet) as card:
            for epoch in (None, second, third):
                runs = pair.start() if epoch is None else pair.refresh(epoch)
                pair.check_values()
                told = pair.graph.device is None
                assert told == (not all(run.on_device for run in runs))
                assert not told or "made to fail" in str(pair.graph.device_lost)
            broke = card.broken
        assert broke or not told
        calls += broke
    assert calls >= 12  # each of two programs launches, and waits


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["bfs", "sssp", "components"])
def test_a_card_may_be_full_at_any_allocation_of_a_run(both: Callable[..., Both], name: str, seed: int) -> None:
    first, second = random_history(seed, directed=True, epochs=2).epochs
    at, failed = 0, True
    while failed:
        pair = both(makers={"one": MAKERS[name], "other": MAKERS["sswp"]})
        with cuda_emulator.failing_allocation(at):
            pair.start()
            runs = pair.step(first)
            failed = not all(run.on_device for run in runs)
        pair.step(second)
        at += 1
    assert at > 4


def test_a_device_that_is_dropped_between_runs_is_asked_for_nothing(both: Callable[..., Both]) -> None:
    pair = both()
    pair.start()
    first, second, third = random_history(5, directed=True, epochs=3).epochs
    pair.step(first)
    pair.graph.drop_device("taken away")
    for epoch in (second, third):
        assert not any(run.on_device for run in pair.step(epoch))
    assert pair.graph.device_lost == "taken away"


def test_a_source_that_comes_later_is_told_wherever_the_program_is(both: Callable[..., Both]) -> None:
    pair = both(makers={"sssp": MAKERS["sssp"]})
    pair.start()
    history = random_history(2, directed=True, epochs=4)
    for epoch in history.epochs:
        pair.step(epoch)
    assert values_of(pair.engine.programs[0], 4)[3] == 0 != NO_VERTEX


def test_twins_stand_for_their_hosts(emulated_cupy: ModuleType, graphs: list[Graph]) -> None:
    graphs.append(Graph(device=True))
    for make in MAKERS.values():
        host = make("id")
        made = twin(host, graphs[0])
        for name in ("kind", "summary", "value", "family", "parameters", "needs_weights", "has_parents"):
            assert getattr(made, name, None) == getattr(host, name, None)
        for name in ("read", "read_run", "touched", "parents"):
            assert getattr(type(made), name) == getattr(type(host), name)
