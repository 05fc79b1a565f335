"""Programs of one kind whose refreshes share launches: each comes to what it would come to by itself."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from histories import Epoch, deletes, epoch_of, inserts, random_history
from test_device_remote_rows import place
from test_device_structures import differences
from walk_twins import FEW_THREADS, set_threads

from graphtide.compute.counts.sspaths import SSPaths
from graphtide.compute.device import twin
from graphtide.compute.engine import Engine, ProgramRun
from graphtide.compute.homes import Homes
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.paths.sssp import SSSP
from graphtide.compute.program import Program
from graphtide.compute.walks.ppr import PersonalisedPageRank
from graphtide.gpma.device_failure import DeviceFailed
from graphtide.gpma.edges import NO_VERTEX, Op, Vertices
from graphtide.partition.graph import Graph, GraphChange

MAKERS: dict[str, Callable[[str, int], Program]] = {
    "ppr": lambda id, k: PersonalisedPageRank(id, (k, k + 5), tolerance=(1e-3, 1e-2, 1e-5)[k % 3]),
    "bfs": lambda id, k: BFS(id, (k,)),
    "sssp": lambda id, k: SSSP(id, (k,)),
    "sspaths": lambda id, k: SSPaths(id, (k,)),
}
STAY = Homes(lambda _: False)


class Several:
    """Programs by kinds, ``each`` of every one, in an engine; and the same on the same graph, each by itself."""

    def __init__(self, graph: Graph, kinds: tuple[str, ...], each: int, **engine: Any) -> None:
        self.graph = graph
        self.of = {f"{kind}{k}": (kind, k) for k in range(each) for kind in kinds}
        programs = [MAKERS[kind](id, k) for id, (kind, k) in self.of.items()]
        self.engine = Engine(graph, programs, self.resolve, **{"judge": STAY, **engine})
        self.engine.start()
        self.single: dict[str, Any] = {}
        for id, (kind, k) in self.of.items():
            self.single[id] = twin(MAKERS[kind](id, k), graph)
            self.bind(id)
            self.single[id].start(graph)

    @staticmethod
    def resolve(ids: Any) -> Vertices:
        return np.array(ids, np.uint32)

    def bind(self, id: str) -> None:
        graph, program = self.graph, self.single[id]
        known = [v if v < graph.n_vertices and graph.alive[v] else NO_VERTEX for v in program.sources]
        program.bind(np.array(known, np.uint32))

    def add(self, kind: str, k: int) -> None:
        """One more, of which there is none yet."""
        id = f"{kind}{k}"
        self.of[id] = kind, k
        self.engine.add(MAKERS[kind](id, k))
        self.engine.start([id])
        self.single[id] = twin(MAKERS[kind](id, k), self.graph)
        self.bind(id)
        self.single[id].start(self.graph)

    def remove(self, id: str) -> None:
        self.engine.remove(id)
        del self.single[id]

    def change(self, epoch: Epoch) -> GraphChange:
        return self.graph.apply(epoch.batch(weighted=True), epoch.n_vertices, epoch.vertex_ops())

    def step(self, epoch: Epoch) -> list[ProgramRun]:
        """Apply an epoch; programs are those that ran by themselves, and proven."""
        change = self.change(epoch)
        runs = self.engine.refresh(change)
        for id, program in self.single.items():
            self.bind(id)
            program.refresh(self.graph, change)
        assert [run.error for run in runs] == [None] * len(runs)
        self.check()
        return runs

    def check(self) -> None:
        for program in self.engine.programs:
            if program.id in self.single:
                assert self.bits(program) == self.bits(self.single[program.id]), program.id
        assert not any(self.engine.audit().values())

    def bits(self, program: Any) -> list[list[int]]:
        """Of what must be the same: of paths all but which of several parents it is."""
        n = self.graph.n_vertices
        columns = program.columns()
        if "word" in columns:
            return [(columns["word"][:n] >> np.uint64(32)).tolist()]
        found = [np.ascontiguousarray(column[:n]).view(np.uint8).tolist() for column in columns.values()]
        if program.on_device and "estimate" in columns:
            there = program._runs._there.numbers
            found += [column[:n].copy().get().tolist() for column in (there.values, there.sums, there.shares)]
        return found


@pytest.fixture
def launched(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of every launch for several: how many jobs it had, and blocks each."""
    from graphtide.compute.device import kernels

    set_threads(monkeypatch, FEW_THREADS)
    launch = kernels._Several._launch
    seen = []

    def noted(self: Any, variant: Any, begin: int, n: int) -> None:
        launch(self, variant, begin, n)
        seen.append((n, int(self._fields["blocks"][0])))

    monkeypatch.setattr(kernels._Several, "_launch", noted)
    return seen


@pytest.fixture
def several(launched: list[tuple[int, int]]) -> Iterator[Callable[..., Several]]:
    """Makes a ``Several``; all is closed at the end."""
    made: list[Several] = []

    def make(
        kinds: tuple[str, ...], each: int, *, directed: bool = True, host_rows: str = "all", **engine: Any
    ) -> Several:
        graph = Graph(directed=directed, device=True, host_rows=host_rows, threads=1)
        made.append(Several(graph, kinds, each, **engine))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()
        one.graph.close()


def more_blocks(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, multiprocessors: int) -> None:
    """An emulated device that has room for so many blocks at a time."""
    monkeypatch.setitem(cupy.cuda.Device.attributes, "MultiProcessorCount", multiprocessors)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", MAKERS)
def test_programs_that_share_launches_are_those_that_run_by_themselves(
    cupy: ModuleType,
    several: Callable[..., Several],
    launched: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    seed: int,
    run_long: bool,
) -> None:
    """After every epoch; sources appear, go and come back."""
    cuda_emulator.seed(seed)
    if cupy.__version__ == "emulated":
        more_blocks(cupy, monkeypatch, 7)
    them = several((kind,), 3, directed=seed % 2 == 0)
    history = random_history(seed, directed=seed % 2 == 0, epochs=20 if run_long else 8, vertex_share=0.1)
    for epoch in history.epochs:
        runs = them.step(epoch)
        assert all(run.on_device for run in runs)
    assert (3, 2) in launched or cupy.__version__ != "emulated"


def test_levels_that_shared_runs_leave_are_counted_anew(
    cupy: ModuleType,
    several: Callable[..., Several],
    launched: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Path counts that give differences up at once: for each the kernel follows that counts levels anew."""
    from graphtide.compute.device import count_runs

    monkeypatch.setattr(count_runs, "MOST_LEAST", 0)
    monkeypatch.setattr(count_runs, "MOST_SHARE", 0.0)
    cuda_emulator.seed(seed)
    if cupy.__version__ == "emulated":
        more_blocks(cupy, monkeypatch, 7)
    them = several(("sspaths",), 3)
    for epoch in random_history(seed, directed=True, epochs=5, vertex_share=0.1).epochs:
        runs = them.step(epoch)
        assert all(run.on_device for run in runs)
    assert (3, 2) in launched or cupy.__version__ != "emulated"


def test_more_jobs_than_a_device_has_blocks_take_several_launches(
    several: Callable[..., Several], launched: list[tuple[int, int]], seed: int, cupy: ModuleType
) -> None:
    if cupy.__version__ != "emulated":
        pytest.skip("a real device has more blocks")
    cuda_emulator.seed(seed)
    them = several(("bfs",), 5)
    pairs = np.random.default_rng(seed).permutation([*itertools.permutations(range(9), 2)])
    for some in np.split(pairs[:24], 4):  # all have a source then, and edges to look at
        launched.clear()
        them.step(inserts([*map(tuple, some.tolist())], 9))
        assert launched[:3] == [(2, 1), (2, 1), (1, 2)]


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every launch of passes for several: how many programs it had. All batches are solved by passes."""
    from graphtide.compute.device import ppr, ppr_groups

    monkeypatch.setattr(ppr.DevicePersonalisedPageRank, "_tries", lambda *_: False)
    launch = ppr_groups.Sweeps.launch
    seen = []

    def noted(self: Any, those: Any, *others: Any) -> None:
        launch(self, those, *others)
        seen.append(len(those))

    monkeypatch.setattr(ppr_groups.Sweeps, "launch", noted)
    return seen


def many_leaves(seed: int) -> Epoch:
    """A vertex of many in-edges and many of few; of the first ones each has an edge to the next, to no other."""
    rng = np.random.default_rng(seed)
    heads = np.concatenate([np.zeros(200, int), rng.integers(0, 300, 800)])
    tails = rng.integers(0, 300, 1000)
    others = np.maximum(tails, heads) >= 12
    chain = [(k, k + 1) for k in range(12)]
    return inserts([*chain, *zip(tails[others].tolist(), heads[others].tolist(), strict=True)], 300)


@pytest.mark.sample(1)
@pytest.mark.parametrize("n", [6, 9])
def test_programs_whose_passes_go_together_are_those_that_run_by_themselves(
    several: Callable[..., Several], swept: list[int], seed: int, run_long: bool, n: int
) -> None:
    """They have tolerances of their own, so that some need more passes than others; sources come and go."""
    cuda_emulator.seed(seed)
    them = several(("ppr",), n, directed=seed % 2 == 0)
    epochs = random_history(seed, directed=seed % 2 == 0, epochs=12 if run_long else 4, vertex_share=0.1).epochs
    for epoch in [*epochs, many_leaves(seed), *([inserts([(0, 1), (7, 2)], 300)] if run_long else [])]:
        runs = them.step(epoch)
        assert all(run.on_device for run in runs)
    assert max(swept) == min(n, 8)


def test_passes_go_one_by_one_where_rows_are_on_the_host(
    several: Callable[..., Several], swept: list[int], seed: int
) -> None:
    """What is read of these is counted by program."""
    cuda_emulator.seed(seed)
    them = several(("ppr",), 5, directed=seed % 2 == 0, host_rows="owned")
    them.step(many_leaves(seed))
    assert swept == [5]
    place(them.graph, np.random.default_rng(seed).random(300) < 0.5)
    them.step(inserts([(0, 1), (7, 2)], 300))
    assert swept == [5]
    assert strides(them) == [1] * 5


def strides(them: Several) -> list[int]:
    """How far numbers of neighbouring vertices are apart, program by program."""
    return [program._runs._there.numbers.stride for program in them.engine.programs]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """All groups that are made of programs whose numbers lie side by side."""
    from graphtide.compute.device import ppr_groups

    init: Any = ppr_groups.Group.__init__
    made: list[weakref.ref[Any]] = []

    def noted(self: Any, *given: Any) -> None:
        made.append(weakref.ref(self))
        init(self, *given)

    monkeypatch.setattr(ppr_groups.Group, "__init__", noted)
    return made


def test_a_group_is_gone_with_the_last_of_its_programs(
    several: Callable[..., Several], swept: list[int], groups: list[weakref.ref[Any]], seed: int
) -> None:
    them = several(("ppr",), 6)
    them.step(many_leaves(seed))
    them.remove("ppr0")
    them.step(inserts([(0, 1), (7, 2)], 300))
    assert swept == [6, 5]
    assert len(groups) == 1
    for id in [*them.single]:
        them.remove(id)
    gc.collect()
    assert groups[0]() is None


def test_few_that_are_left_of_a_group_have_their_numbers_by_themselves_again(
    several: Callable[..., Several],
    swept: list[int],
    groups: list[weakref.ref[Any]],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """As soon as there is memory for these; the others' is free then."""
    from graphtide.compute.device import ppr_groups, ppr_numbers

    monkeypatch.setattr(ppr_groups, "ASKED_EVERY_S", -1.0)
    cuda_emulator.seed(seed)
    them = several(("ppr",), 6)
    them.step(many_leaves(seed))
    assert strides(them) == [8] * 6
    for k in (0, 1, 4):
        them.remove(f"ppr{k}")
    with monkeypatch.context() as without:
        without.setattr(ppr_numbers, "zeros", refused)
        them.step(inserts([(0, 1), (7, 2)], 300))
    assert strides(them) == [8] * 3
    them.step(inserts([(0, 2), (9, 2)], 300))
    assert strides(them) == [1] * 3
    gc.collect()
    assert groups[0]() is None
    them.step(deletes([(0, 2), (9, 2)], 300))
    assert swept == [6, 3]  # those whose numbers were where they were


def refused(*_: Any) -> Any:
    raise MemoryError


def test_a_full_group_is_launched_while_others_get_ready(
    several: Callable[..., Several], swept: list[int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whoever has no place in one yet waits for all others; and second parts of runs wait for all first ones."""
    from graphtide.compute.device import ppr_groups, ppr_runs

    cuda_emulator.seed(seed)
    them = several(("ppr",), 17)
    done: list[str] = []
    prepare, launch, launch_rest = (
        ppr_runs.PprRuns._prepare,
        ppr_groups.Sweeps.launch,
        ppr_groups.Sweeps.launch_rest,
    )

    def preparing(self: Any, *given: Any) -> None:
        prepare(self, *given)
        done.append("." if self.seat else "?")

    def launching(self: Any, *given: Any) -> None:
        launch(self, *given)
        done.append("!")

    def launching_rest(self: Any) -> None:
        done.append("+" * len(self._begun))
        launch_rest(self)

    monkeypatch.setattr(ppr_runs.PprRuns, "_prepare", preparing)
    monkeypatch.setattr(ppr_groups.Sweeps, "launch", launching)
    monkeypatch.setattr(ppr_groups.Sweeps, "launch_rest", launching_rest)
    for epoch, said in (
        (many_leaves(seed), "?" * 17 + "!!++"),
        (inserts([(0, 2), (7, 2)], 300), "........!........!?++"),
    ):
        done.clear()
        change = them.change(epoch)
        runs = them.engine.refresh(change)
        assert [run.error for run in runs] == [None] * 17
        assert "".join(done) == said
    assert not any(them.engine.audit().values())


def test_rows_that_parts_of_several_leaves_cut(
    several: Callable[..., Several], swept: list[int], seed: int
) -> None:
    """Rows of one edge, of half a leaf, and one longer than three parts; and none, once all its edges go."""
    cuda_emulator.seed(seed)
    rng = np.random.default_rng(seed)
    them = several(("ppr",), 5)
    longest, n = int(rng.integers(0, 900)), 900
    pairs = rng.permutation(n * n)[:14000]
    first, there = [*zip((pairs // n).tolist(), (pairs % n).tolist(), strict=True)], {*pairs.tolist()}
    hub = [(k, longest) for k in range(n) if k * n + longest not in there]
    them.step(inserts([*first, *hub, *[(k, k + n) for k in range(n)]], 2 * n))
    them.step(deletes([*hub, *first[:400], *[(k, k + n) for k in range(0, n, 3)]], 2 * n))
    assert swept == [5, 5]
    for program in them.engine.programs:
        _, values, sums, shares = them.bits(program)
        assert not any(values[n::3] + sums[n::3] + shares[n::3])


def test_whoever_comes_takes_a_place_that_is_free_and_few_that_are_left_move_together(
    several: Callable[..., Several],
    swept: list[int],
    groups: list[weakref.ref[Any]],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Of what was there before, nothing is left to them; a group that becomes too small for the graph is left."""
    from graphtide.compute.device import ppr_groups

    cuda_emulator.seed(seed)
    monkeypatch.setattr(ppr_groups, "SWEEP_LEAST", 3)
    them = several(("ppr",), 6)
    them.step(many_leaves(seed))
    for k in (0, 4):
        them.remove(f"ppr{k}")
    for k in (6, 7):
        them.add("ppr", k)
    them.step(inserts([(0, 1), (7, 2)], 300))
    assert (swept, len(groups)) == ([6, 6], 1)
    for k in (1, 2, 3, 5):
        them.remove(f"ppr{k}")
    for k in (8, 9):
        them.add("ppr", k)
    them.step(inserts([(0, 2), (9, 2)], 300))
    assert (swept[2:], len(groups)) == ([4], 2)
    gc.collect()
    assert groups[0]() is None
    them.step(inserts([(0, 3), (9, 1), (8, 1999)], 2000))
    assert (swept[3:], len(groups)) == ([4], 3)
    for id, program in them.single.items():
        (own,) = (program for program in them.engine.programs if program.id == id)
        states = [one.state() for one in (own, program)]
        for name, column in states[0].items():
            assert column.tobytes() == states[1][name].tobytes(), name


def test_small_batches_between_large_ones_are_pushed_where_numbers_lie_side_by_side(
    several: Callable[..., Several], swept: list[int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    from graphtide.compute.device import ppr, ppr_runs

    cuda_emulator.seed(seed)
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(ppr.DevicePersonalisedPageRank, "_tries", lambda _, n_updates, n_arcs: n_updates < 20)
    monkeypatch.setattr(ppr_runs, "MOST_LEAST", 1 << 30)  # never given up
    them = several(("ppr",), 5)
    them.step(many_leaves(seed))
    for size in (3, 40, 2, 5, 60, 1):
        them.step(inserts([*map(tuple, rng.integers(0, 300, (size, 2)).tolist())], 300))
    assert len(swept) == 3


def test_two_of_a_group_go_together_and_one_by_itself(
    several: Callable[..., Several], swept: list[int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """While others of it push. Of all, numbers are what they would be without a group."""
    from graphtide.compute.device import ppr, ppr_runs

    cuda_emulator.seed(seed)
    rng = np.random.default_rng(seed)
    asking = {f"ppr{k}" for k in range(5)}
    monkeypatch.setattr(ppr.DevicePersonalisedPageRank, "_tries", lambda self, *_: self.id not in asking)
    monkeypatch.setattr(ppr_runs, "MOST_LEAST", 1 << 30)  # never given up
    them = several(("ppr",), 5)
    them.step(many_leaves(seed))
    for asking_now in ({"ppr1", "ppr3"}, {"ppr4"}, {"ppr0", "ppr1", "ppr4"}, set()):
        asking.clear()
        asking.update(asking_now)
        them.step(inserts([*map(tuple, rng.integers(0, 300, (40, 2)).tolist())], 300))
    assert swept == [5, 2, 3]


def test_what_no_edge_leads_to_any_more_has_nothing(
    several: Callable[..., Several], swept: list[int], seed: int
) -> None:
    cuda_emulator.seed(seed)
    them = several(("ppr",), 5)
    them.step(many_leaves(seed))
    them.step(inserts([(1, 300), (300, 2)], 301))
    assert all(bits[300] for program in them.engine.programs for bits in them.bits(program)[1:])
    them.step(deletes([(1, 300)], 301))
    assert not any(bits[300] for program in them.engine.programs for bits in them.bits(program)[1:])
    assert swept == [5] * 3


def test_what_a_restored_state_has_where_no_edge_leads_goes(
    several: Callable[..., Several], swept: list[int], seed: int
) -> None:
    """It need not be of this graph, and passes of several do not look for what nobody told them of."""
    cuda_emulator.seed(seed)
    them = several(("ppr",), 5)
    them.step(many_leaves(seed))
    them.step(inserts([(1, 300), (300, 2)], 301))
    programs = [*them.engine.programs, *them.single.values()]
    states = [{name: column.copy() for name, column in program.state().items()} for program in programs]
    them.step(deletes([(1, 300)], 301))
    for program, state in zip(programs, states, strict=True):
        program.restore(state, them.graph)
    them.step(inserts([(0, 1), (7, 2)], 301))
    assert not any(bits[300] for program in them.engine.programs for bits in them.bits(program)[1:])
    assert swept == [5] * 4


@pytest.mark.parametrize(("n", "pushed_ones"), [(5, range(5)), (5, range(4)), (6, [0]), (6, [5])])
def test_what_was_pushed_beside_a_group_goes_with_the_last_edge_to_it(
    several: Callable[..., Several],
    swept: list[int],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    n: int,
    pushed_ones: Sequence[int],
) -> None:
    """Passes of several do not look for what pushes have left there, or passes of a single one: whether these were
    launched before passes of the others, or behind them."""
    from graphtide.compute.device import ppr, ppr_runs

    cuda_emulator.seed(seed)
    pushed = {f"ppr{k}" for k in pushed_ones}
    monkeypatch.setattr(
        ppr.DevicePersonalisedPageRank, "_tries", lambda self, n, _: n < 20 and self.host.id in pushed
    )
    monkeypatch.setattr(ppr_runs, "MOST_LEAST", 1 << 30)  # never given up
    monkeypatch.setattr(ppr, "EDIT_SHARE", 1.0)  # so that no sum is left either
    them = several(("ppr",), n)
    many = many_leaves(seed)
    first = [*zip(many.src.tolist(), many.dst.tolist(), strict=True)]
    them.step(inserts(first, 301))
    added = [(k, 300) for k in range(5)]
    them.step(inserts([*added, (300, 2)], 301))
    together = [n - len(pushed)] if n - len(pushed) > 1 else []
    assert swept == [n, *together]
    assert all(bits[300] for program in them.engine.programs for bits in them.bits(program)[1:])
    them.step(deletes([*added, *first[20:60]], 301))
    assert swept == [n, *together, n]
    assert not any(bits[300] for program in them.engine.programs for bits in them.bits(program)[1:])


def test_many_edges_of_one_that_had_few_are_edited_as_for_each_by_itself(
    several: Callable[..., Several], swept: list[int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of some of the programs it has too much to give that away for each of them."""
    from graphtide.compute.device import ppr

    cuda_emulator.seed(seed)
    monkeypatch.setattr(ppr, "EDIT_SHARE", 1e9)
    them = several(("ppr",), 5)
    many = many_leaves(seed)
    them.step(inserts([*zip(many.src.tolist(), many.dst.tolist(), strict=True)], 300))
    them.step(inserts([(1, k) for k in range(20, 300)], 300))
    assert swept == [5, 5]


def test_a_source_that_came_by_pushes_behind_passes_of_others_goes(
    several: Callable[..., Several], swept: list[int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """No edge leads to it, so that nothing but what it holds tells of it once it is none."""
    from graphtide.compute.device import ppr, ppr_runs

    cuda_emulator.seed(seed)
    monkeypatch.setattr(
        ppr.DevicePersonalisedPageRank, "_tries", lambda self, n, _: n == 1 and self.host.id == "ppr5"
    )
    monkeypatch.setattr(ppr_runs, "MOST_LEAST", 1 << 30)  # never given up
    them = several(("ppr",), 6)
    rng = np.random.default_rng(seed)
    them.step(inserts([*map(tuple, rng.integers(0, 10, (40, 2)).tolist())], 11))
    them.step(epoch_of([(Op.DELETE_VERTEX, 10, 0, 0.0), (Op.INSERT, 1, 2, 1.0), (Op.INSERT, 3, 4, 1.0)], 11))
    them.step(inserts([(10, 2)], 11))
    assert swept == [6, 6, 5]
    (last,) = (program for program in them.engine.programs if program.id == "ppr5")
    assert all(bits[10] for bits in them.bits(last)[1:])
    them.step(epoch_of([(Op.DELETE_VERTEX, 10, 0, 0.0), (Op.INSERT, 1, 2, 1.0), (Op.DELETE, 3, 4, 0.0)], 11))
    assert swept == [6, 6, 5, 6]
    assert not any(bits[10] for bits in them.bits(last)[1:])


def test_estimates_that_left_before_the_last_pass_leave_again(
    several: Callable[..., Several], swept: list[int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of a group and of single programs, whose third pass is taken for the last whatever is left."""
    from graphtide.compute.device import ppr, ppr_runs
    from graphtide.compute.device.kernels import Kernels

    cuda_emulator.seed(seed)
    origin = ppr_runs.SOURCES["passes"]
    hasty = origin._replace(macros=(*origin.macros, "-DLAST_AT=1e30"))
    kernels = Kernels({**ppr_runs.SOURCES, "passes": hasty}, weighted=False)
    for module in (ppr, ppr_runs):
        monkeypatch.setattr(module, "ppr_kernels", lambda: kernels)
    solve: Any = ppr_runs.PprRuns.solve
    left_again = []

    def solved(*given: Any) -> Any:
        run = yield from solve(*given)
        left_again.append(run.moved)
        return run

    monkeypatch.setattr(ppr_runs.PprRuns, "solve", solved)
    them = several(("ppr",), 5)
    rng = np.random.default_rng(seed)
    for epoch in (many_leaves(seed), inserts([*map(tuple, rng.integers(0, 300, (60, 2)).tolist())], 300)):
        them.step(epoch)
        for program in (*them.engine.programs, *them.single.values()):
            runs = program._runs
            values = runs._there.numbers.values[:300].copy().get()
            assert np.array_equal(runs.estimates[:300], (values / runs.unit).astype(np.float32))
    assert swept == [5, 5]
    assert sum(left_again) > 5  # whoever is there after two passes has left once


def test_members_of_a_group_move_home_and_back(
    several: Callable[..., Several], swept: list[int], seed: int
) -> None:
    cuda_emulator.seed(seed)
    rng = np.random.default_rng(seed)
    judge = Anywhere(seed)
    them = several(("ppr",), 7, judge=judge)
    them.single.clear()
    homes = set()
    for _ in range(8):
        runs = them.step(inserts([*map(tuple, rng.integers(0, 100, (30, 2)).tolist())], 100))
        homes.add(sum(run.on_device for run in runs))
    assert judge.moves and len(homes) > 1 and swept


@pytest.mark.parametrize("place", ["ppr_groups.Group.__init__", "ppr_runs.PprRuns.sit"])
def test_without_memory_passes_go_one_by_one(
    several: Callable[..., Several], swept: list[int], monkeypatch: pytest.MonkeyPatch, seed: int, place: str
) -> None:
    """Also where numbers lie side by side already."""

    def fails(*_: Any) -> Any:
        raise MemoryError("of the device")

    them = several(("ppr",), 5)
    monkeypatch.setattr(f"graphtide.compute.device.{place}", fails)
    runs = them.step(many_leaves(seed))
    assert all(run.on_device for run in runs)
    assert not swept


def test_kinds_go_one_after_another_and_divide_their_time_equally(several: Callable[..., Several]) -> None:
    ticks = itertools.count()
    them = several(("ppr", "bfs"), 2, clock=lambda: float(next(ticks)))
    runs = them.step(inserts([(0, 1), (1, 2)], 3))
    assert [run.seconds for run in runs] == [0.5] * 4
    runs = several(("ppr", "bfs"), 1, clock=lambda: float(next(ticks))).step(inserts([(0, 1), (1, 2)], 3))
    assert [run.seconds for run in runs] == [1.0] * 2


class Anywhere:
    """Moves programs at random."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.moves = 0

    def leaving(self, updates: int, seconds: float, on_device: Mapping[str, bool]) -> list[str]:
        return [id for id in on_device if self._rng.random() < 0.3]

    def moved(self, id: str, seconds: float) -> None:
        self.moves += 1

    def forget(self, id: str) -> None:
        pass


def test_those_share_launches_that_are_at_home_on_the_device(
    several: Callable[..., Several], launched: list[tuple[int, int]], seed: int
) -> None:
    """Others run on the host meanwhile, and move."""
    cuda_emulator.seed(seed)
    judge = Anywhere(seed)
    them = several(("bfs", "sspaths"), 3, judge=judge)
    homes = set()
    for epoch in random_history(seed, directed=True, epochs=12, vertex_share=0.1).epochs:
        homes.add(tuple(run.on_device for run in them.step(epoch)))
    assert judge.moves and len(homes) > 1 and launched


@pytest.mark.parametrize("error", [ValueError("of the host"), MemoryError("of the device")])
def test_a_program_that_fails_does_no_harm_to_those_it_shares_launches_with(
    several: Callable[..., Several], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A mistake on the host quarantines it; where the device does not suffice for it, it goes home."""
    them = several(("ppr",), 3)
    one, *others = them.engine.programs
    them.step(inserts([(0, 1), (1, 2), (2, 0), (0, 6)], 9))
    with monkeypatch.context() as patch:

        def fails(*_: Any) -> Any:
            raise error

        patch.setattr(one, "_certified", fails)  # when its calls have ended
        change = them.change(inserts([(0, 3), (1, 4), (1, 7)], 9))
        runs = them.engine.refresh(change)
    for id, program in them.single.items():
        them.bind(id)
        program.refresh(them.graph, change)
    assert them.graph.device_lost is None
    for program in others:
        assert program.on_device
        assert them.bits(program) == them.bits(them.single[program.id])
    if isinstance(error, MemoryError):
        assert [run.error for run in runs] == [None] * 3
        assert [run.on_device for run in runs] == [False, True, True]
    else:
        assert [run.error for run in runs] == ["ValueError: of the host", None, None]
        assert them.engine.states()[one.id].state == "quarantined"
        them.engine.start([one.id])
    assert not any(them.engine.audit().values())


@pytest.mark.sample(among="a card that fails")
@pytest.mark.parametrize("quiet", [True, False])
def test_a_card_that_fails_sends_all_home_within_the_run(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    set_threads(monkeypatch, FEW_THREADS)
    for at in range(60):
        graph = Graph(device=True, threads=1)
        programs = [MAKERS[kind](f"{kind}{k}", k) for kind in ("ppr", "bfs") for k in range(2)]
        engine = Engine(graph, programs, Several.resolve, judge=STAY)
        graph.apply(inserts([(v, (3 * v + 1) % 40) for v in range(40)], 40).batch(weighted=True), 40)
        engine.start()
        change = graph.apply(inserts([(v, (7 * v + 2) % 40) for v in range(40)], 40).batch(weighted=True), 40)
        with cuda_emulator.failing_card(at, quiet=quiet) as fault:
            runs = engine.refresh(change)
            broken = fault.broken
        try:
            assert [run.error for run in runs] == [None] * 4
            assert not any(engine.audit().values())
            if not broken:
                assert all(run.on_device for run in runs)
                assert at > 3
                return
            assert graph.device is None
        finally:
            engine.close()
            graph.close()
    pytest.fail("every call failed")


@pytest.mark.parametrize("fails_at", [0, 1])
def test_a_card_that_fails_before_second_parts_of_passes_sends_all_home_within_the_run(
    several: Callable[..., Several],
    swept: list[int],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    fails_at: int,
) -> None:
    """First parts have been launched, of both groups; of the second ones none, or one."""
    from graphtide.compute.device import ppr_groups

    cuda_emulator.seed(seed)
    them = several(("ppr",), 16)
    launch: Any = ppr_groups.Sweeps._launch
    parts: list[int] = []

    def fails(self: Any, part: Any) -> None:
        parts.append(int(part.group.fields["jobs"]["part"].max()))
        if sum(parts) > fails_at:
            raise DeviceFailed("made to fail")
        launch(self, part)

    monkeypatch.setattr(ppr_groups.Sweeps, "_launch", fails)
    change = them.change(many_leaves(seed))
    runs = them.engine.refresh(change)
    assert (parts, swept) == ([0, 0, 1, 1], [8, 8])
    assert [run.error for run in runs] == [None] * 16
    assert them.graph.device_lost == "DeviceFailed: made to fail"
    assert not any(them.engine.audit().values())


def test_structures_are_those_of_kernels(emulated_cupy: ModuleType, tmp_path: Path) -> None:
    from graphtide.compute.device.kernels import JOBS

    head = "struct Job { unsigned word; };"
    assert differences(emulated_cupy, tmp_path, {"Jobs<Job>": JOBS}, "frontier.cuh", head) == {}
