"""A device whose memory others take: rows leave it, programs stay, and nothing fails."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from test_owned_programs import running
from waiting import until
from walk_twins import FEW_THREADS, set_threads

from graphtide.compute.engine import ROOM_TRIES, Engine, ProgramRun
from graphtide.compute.program import Program, Published
from graphtide.daemon.config.sections.storage import PartitionConfig
from graphtide.daemon.engine.rebalancing import ALL_LEAVE, Epoch, Rebalancing, Room, room_of
from graphtide.daemon.engine.storage import StorageGate
from graphtide.gpma.device import pool as device_pool
from graphtide.gpma.device.card import find_card
from graphtide.gpma.device.module import import_cupy
from graphtide.gpma.device.pool import Spare, free_bytes, spare_bytes
from graphtide.gpma.device.state import allocate
from graphtide.gpma.edges import EdgeBatch
from graphtide.ops.metrics import Metrics
from graphtide.partition import owned
from graphtide.partition.classes import DEVICE
from graphtide.partition.graph import Graph, GraphChange, NoMemory
from graphtide.partition.placement import HOST
from graphtide.partition.split_rows import SideFull

N = 1500
DEGREE = 30
KINDS: dict[str, dict[str, Any]] = {"bfs": {"source": 0}, "components": {}, "pagerank": {}}
SLACK = 300_000
"""Bytes for a few updates, their report, and a row on its way."""


def answers(program: Program, n: int) -> npt.NDArray[Any]:
    """What clients read, of all vertices."""
    published = Published(program.columns(), program.scalars(), n)
    answer = type(program).read(published, np.arange(n, dtype=np.uint32))
    return np.where(answer.null, -1, answer.values)


class Sides(NamedTuple):
    """A graph with rows on a device, its engine, and who moves rows; and the same on the host alone."""

    graph: Graph
    engine: Engine
    moves: Rebalancing
    pool: Any
    alone: tuple[Graph, Engine]
    rng: np.random.Generator

    def epoch(self, updates: int = 20, n_new: int = 0) -> list[ProgramRun]:
        """As the daemon makes it; results are those of the host alone."""
        n = self.graph.n_vertices + n_new
        keys = self.rng.integers(0, n, updates) << 32 | self.rng.integers(0, n, updates)
        ops = (self.rng.random(updates) < 0.6).astype(np.uint8)
        batch = EdgeBatch(keys.astype(np.uint64), ops, np.ones(updates, np.float32))
        change = self._applied(batch, n)
        runs = self.engine.refresh(change)
        assert [run.error for run in runs] == [None] * len(KINDS)
        self.moves.after(Epoch(batch, runs, 1.0))
        graph, engine = self.alone
        engine.refresh(graph.apply(batch, n))
        for wanted, found in zip(engine.programs, self.engine.programs, strict=True):
            assert np.allclose(answers(wanted, n), answers(found, n), rtol=1e-2, atol=0), wanted.id
        return runs

    def _applied(self, batch: EdgeBatch, n: int) -> GraphChange:
        for tries in range(ALL_LEAVE + 2):
            try:
                return self.graph.apply(batch, n)
            except NoMemory as error:
                if not self.moves.make_room(error, len(batch), tries):
                    raise
        raise AssertionError("it never finds memory")

    @property
    def reasons(self) -> list[str]:
        return [decision["reason"] for decision in self.moves.stats()["decisions"]]


@pytest.fixture
def sides(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, seed: int) -> Iterator[Sides]:
    set_threads(monkeypatch, FEW_THREADS)
    pool = emulated_cupy.get_default_memory_pool()
    rng = np.random.default_rng(seed)
    with running(KINDS) as alone, running(KINDS, host_rows="owned", device=True) as (graph, engine):

        def room() -> Room | None:
            return None if graph.device is None else room_of(graph.device, find_card())

        moves = Rebalancing(graph, StorageGate(), room, Metrics(), PartitionConfig())
        engine.make_room = moves.make_room_for_program
        there = Sides(graph, engine, moves, pool, alone, rng)
        graph.placement.newcomers = DEVICE
        there.epoch(DEGREE * N, N)
        there.epoch()
        assert graph.placement.owned[HOST] == 0
        try:
            yield there
        finally:
            pool.set_limit()


@pytest.mark.sample(among="memory is lacking")
def test_half_of_the_card_is_taken(sides: Sides) -> None:
    """Nothing of what is there is lost, and what is short is memory for what comes."""
    assert sides.graph.device is not None
    held = room_of(sides.graph.device, find_card()).held
    sides.pool.set_limit(sides.pool.used_bytes() + held // 10)
    for _ in range(50):
        assert all(run.on_device for run in sides.epoch())
    assert "headroom" in sides.reasons
    assert 0 < sides.graph.placement.owned[HOST] < sides.graph.n_vertices
    assert all(program.on_device for program in sides.engine.programs)


@pytest.mark.sample(among="memory is lacking")
def test_more_of_the_card_is_taken_than_was_free(sides: Sides) -> None:
    """No allocation succeeds until rows have left."""
    sides.pool.set_limit(sides.pool.used_bytes())
    for _ in range(30):
        sides.epoch()
    assert sides.graph.device_lost is None or "it has no memory" in sides.graph.device_lost
    assert sides.graph.placement.owned[HOST] > 0 and sides.graph.check() == []


def test_rows_leave_for_programs(sides: Sides) -> None:
    """New vertices come, for whose columns programs have no memory in the end: who has none starts over once."""
    sides.pool.set_limit(sides.pool.used_bytes() + SLACK)
    over = 0
    while sides.graph.placement.owned[HOST] == 0:
        runs = sides.epoch(20, N // 4)
        over += sum(run.refresh.started_over for run in runs if run.refresh is not None)
        assert all(run.on_device for run in runs)
    assert set(sides.reasons) <= {"evict", "headroom"} and over <= len(KINDS)
    assert sides.graph.device is not None
    sides.epoch()


def starved(sides: Sides, monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """So many of the next runs of a program find no memory; how often rows were asked to leave for it."""
    (program,) = (program for program in sides.engine.programs if program.kind == "components")
    asked: list[int] = []
    left = [times]

    def failing(name: str) -> Callable[..., Any]:
        work = getattr(program, name)

        def run(*given: Any) -> Any:
            if left[0] > 0:
                left[0] -= 1
                raise MemoryError("made to fail")
            return work(*given)

        return run

    for name in ("_start", "_refresh"):
        monkeypatch.setattr(program, name, failing(name))
    make_room = sides.moves.make_room_for_program

    def counted(tries: int) -> bool:
        asked.append(tries)
        return make_room(tries)

    sides.engine.make_room = counted
    return asked


@pytest.mark.sample(among="memory is lacking")
def test_a_program_that_finds_no_memory_is_tried_after_rows_have_left(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    for times in range(1, ROOM_TRIES + 1):
        with monkeypatch.context() as patched:
            asked = starved(sides, patched, times)
            (run,) = (run for run in sides.epoch() if run.id == "components")
        assert asked == list(range(times))
        assert run.on_device and run.refresh is not None and run.refresh.started_over
        assert not any(run.refresh.started_over for run in sides.epoch() if run.refresh is not None)
        assert sides.reasons == ["evict"] * len(sides.reasons) != []
        everything = np.arange(sides.graph.n_vertices, dtype=np.uint32)
        sides.graph.migrate(everything[sides.graph.placement.owner == HOST], DEVICE)


def test_a_program_for_which_there_is_no_room_goes_on_at_the_host(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = starved(sides, monkeypatch, ROOM_TRIES + 2)
    (run,) = (run for run in sides.epoch() if run.id == "components")
    assert asked == list(range(ROOM_TRIES))
    assert not run.on_device and sides.graph.placement.owned[DEVICE] == 0
    sides.epoch()
    assert [program.kind for program in sides.engine.programs if program.on_device] == ["bfs", "pagerank"]


def test_rows_that_leave_give_their_memory_back(sides: Sides) -> None:
    """Though so few do that the arrays are dense enough for batches."""
    device = sides.graph.device
    assert device is not None
    before = sum(array.memory_bytes()["slots"] for array in device.arrays)
    fifth = np.arange(0, N, 5, dtype=np.uint32)
    sides.graph.migrate(fifth, HOST)
    assert sum(array.memory_bytes()["slots"] for array in device.arrays) == before
    exported = sides.graph.export()
    device.fit()
    after = sum(array.memory_bytes()["slots"] for array in device.arrays)
    assert 0.6 * before < after < 0.9 * before
    assert sides.graph.export().keys.tobytes() == exported.keys.tobytes() and sides.graph.check() == []
    sides.epoch()


def test_blocks_that_nobody_has_are_given_back_for_others(cupy: ModuleType) -> None:
    """To a limit they count as much as those that somebody has."""
    pool = cupy.get_default_memory_pool()
    gc.collect()  # else what others left may be freed meanwhile
    pool.free_all_blocks()
    pool.set_limit(pool.total_bytes() + (6 << 20))
    try:
        with cupy.cuda.Stream(non_blocking=True):
            blocks = [allocate(1 << 20, np.uint8) for _ in range(5)]
            del blocks
            assert allocate(5 << 20, np.uint8).nbytes == 5 << 20
            with pytest.raises(MemoryError):
                allocate(7 << 20, np.uint8)
    finally:
        pool.set_limit(0)


def test_spare_arrays_go_for_others(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not while kernels that use them are being launched."""
    monkeypatch.setattr(device_pool, "_WAITS_S", 0.0)
    pool = cupy.get_default_memory_pool()
    gc.collect()
    pool.free_all_blocks()
    before, spare = spare_bytes(), Spare()
    pool.set_limit(pool.total_bytes() + (6 << 20))
    try:
        with cupy.cuda.Stream(non_blocking=True):
            assert 0 <= free_bytes() - (6 << 20) < 1 << 20  # and what is left of blocks that others have
            assert not spare.take(7 << 20, np.uint8) and spare.nbytes == 0
            assert spare.take(1 << 19, np.uint64) and spare_bytes() - before == 4 << 20
            small = allocate(1 << 20, np.uint8)
            assert spare.nbytes == 4 << 20
            with spare.lock, pytest.raises(MemoryError):
                allocate(5 << 20, np.uint8)
            assert allocate(5 << 20, np.uint8).nbytes == 5 << 20
            assert spare.array is None and spare_bytes() == before and small.nbytes == 1 << 20
            with pytest.raises(MemoryError):
                allocate(6 << 20, np.uint8)
    finally:
        pool.set_limit(0)


@pytest.mark.parametrize("for_batch", [False, True])
def test_what_moved_rows_is_given_back_with_theirs(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, for_batch: bool
) -> None:
    """Rows leave in parts: all at once their way would take many times the memory that they give back."""
    graph, part = sides.graph, 2000
    assert graph.device is not None
    monkeypatch.setattr(owned, "PART_EDGES", part)
    graph.device.fit()
    before, updates_max = sides.pool.used_bytes(), 0
    kind = type(graph.device.out)  # as the emulator has imported it
    prepare = kind.prepare

    def noted(array: Any, batch: EdgeBatch) -> Any:
        nonlocal updates_max
        updates_max = max(updates_max, len(batch))
        return prepare(array, batch)

    monkeypatch.setattr(kind, "prepare", noted)
    if for_batch:
        full = NoMemory("made to fail")
        full.__cause__ = SideFull(DEVICE, "made to fail")
        assert sides.moves.make_room(full, 20, 0)
    else:
        assert sides.moves.make_room_for_program(0)
    assert 0 < updates_max < part
    assert [array.memory_bytes()["scratch"] for array in graph.device.arrays] == [0, 0]
    assert sides.pool.used_bytes() < before and graph.placement.owned[HOST] > 0
    sides.epoch()


def test_rows_leave_a_device_that_has_no_memory_to_tell_how_long_they_are(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths lie there beside other words, which CuPy puts together there before they are brought."""
    cupy = import_cupy()
    asnumpy, refused = cupy.asnumpy, []

    def without_memory(array: Any, *given: Any, **how: Any) -> Any:
        if not array.flags.c_contiguous:
            refused.append(array)
            raise MemoryError("there is no byte left")
        return asnumpy(array, *given, **how)

    wanted = sides.graph.degrees("out").copy()
    monkeypatch.setattr(cupy, "asnumpy", without_memory)
    assert sides.graph.degrees("out").tobytes() == wanted.tobytes()
    assert sides.moves.make_room_for_program(0)
    assert refused and sides.graph.placement.owned[HOST] > 0


def test_all_rows_are_read_of_a_device_that_has_no_memory_for_it(sides: Sides) -> None:
    exported = sides.graph.export()
    sides.pool.set_limit(1)
    again = sides.graph.export()
    assert again.keys.tobytes() == exported.keys.tobytes()
    assert again.weights is not None and exported.weights is not None
    assert again.weights.tobytes() == exported.weights.tobytes()


def test_within_an_epoch_settled_readers_wait_on_and_others_are_let_out() -> None:
    gate, order = StorageGate(), []
    with gate.apply():
        pass
    entered, leave = threading.Event(), threading.Event()

    def read(name: str, *, settled: bool) -> None:
        with gate.read(settled=settled, timeout_s=60):
            order.append(name)
            entered.set()
            leave.wait()

    threads = [
        threading.Thread(target=read, args=("any",), kwargs={"settled": False}),
        threading.Thread(target=read, args=("settled",), kwargs={"settled": True}),
    ]
    threads[0].start()
    assert entered.wait(60)
    threads[1].start()
    until(lambda: gate._waiting_for_settled == 1)
    moving = threading.Thread(target=lambda: _within(gate, order))
    moving.start()
    assert order == ["any"]
    leave.set()
    moving.join(60)
    assert order == ["any", "moved"]
    gate.settle()
    for thread in threads:
        thread.join(60)
    assert order == ["any", "moved", "settled"]


def _within(gate: StorageGate, order: list[str]) -> None:
    with gate.within():
        order.append("moved")
