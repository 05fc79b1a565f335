"""Dense ids change hands: a stream of vertices that come and go for ever, beside queues, requests and
checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from naive import NaiveGraph

from graphtide.compute.engine import Engine, ProgramRun
from graphtide.compute.forest.external_order import SortedVertices
from graphtide.compute.program import Program, Published
from graphtide.compute.registry import KINDS, make_program
from graphtide.daemon.errors import IdSpaceFull
from graphtide.daemon.ingest import reuse as reuse_module
from graphtide.daemon.ingest.dense import dense_batch
from graphtide.daemon.ingest.prepared import Prepared, one_batch
from graphtide.daemon.ingest.reuse import IdReuse
from graphtide.daemon.records.stream import UpdateBlock
from graphtide.daemon.state.checkpoint import Checkpoint
from graphtide.daemon.state.renumbering import renumbered
from graphtide.gpma.edges import (
    MAX_VERTICES,
    NO_VERTEX,
    EdgeList,
    Op,
    Vertices,
    destinations,
    sources,
)
from graphtide.gpma.index import hash_table, id_table
from graphtide.gpma.index.ids import IdColumn, StringColumn
from graphtide.gpma.index.vertex_index import Kind, VertexIndex
from graphtide.partition.graph import Graph, GraphChange
from graphtide.partition.numbering import Rows, breadth_first

Update = tuple[int, int, int, float]
"""op, src, dst, weight, by number; what a number is called depends on the kind of ids."""

APART = {"pagerank": {"rtol": 2.1e-3}, "ppr": {"atol": 2.1e-3}}
"""How far two values may lie apart that both are within the tolerance: of each vertex, or of all together."""
SOURCE = 3
GIVEN: dict[str, Any] = {"tolerance": 1e-3}


def named(kind: Kind, numbers: Any) -> IdColumn:
    """Numbers as external ids, whose order is another."""
    column = np.asarray(numbers, np.int64)
    if kind == "int":
        return (column.astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)).view(np.int64)
    return StringColumn.of(f"{'x' * (number * 7 % 50)}/{number}" for number in column.tolist())


def listed(ids: IdColumn) -> list[Any]:
    return ids.to_list() if isinstance(ids, StringColumn) else ids.tolist()


@dataclass
class Request:
    """Somebody who reads an epoch: its dense ids have their external ones until the end, and the other way."""

    dense: Vertices
    external: list[Any]


@dataclass
class Saving:
    """A checkpoint whose arrays are still to be written: those of the index are not copied."""

    index: dict[str, np.ndarray]
    edges: EdgeList
    dead: Vertices
    n_vertices: int
    alive: set[int]
    arcs: dict[tuple[int, int], float]


class World:
    """Everything of the daemon that knows dense ids, in one thread, in any order that its threads might take."""

    def __init__(
        self,
        seed: int,
        *,
        kind: Kind = "int",
        directed: bool = True,
        programs: bool = True,
        vertices_max: int = MAX_VERTICES,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.kind: Kind = kind
        self.directed = directed
        self.requests: list[Request] = []
        self.index = VertexIndex.create(kind, vertices_max=vertices_max)
        self.graph = Graph(directed=directed)
        self.model = NaiveGraph(directed)
        self.begin(programs=programs)
        self.fresh = 100
        self.saving: Saving | None = None
        self.most = self.waits = 0

    def begin(self, *, programs: bool) -> None:
        """What a start makes anew, on the index and the graph as they are."""
        self.reuse = IdReuse(self.index, self.begin_grace)
        self.queue: deque[tuple[Prepared, list[Update]]] = deque()
        self.items = 0
        kinds = KINDS if programs else ()
        self.engine = Engine(self.graph, [self.made(kind) for kind in kinds], self.resolve, threads=1)
        self.engine.start()

    def close(self) -> None:
        self.engine.close()
        self.graph.close()

    def made(self, kind: str) -> Program:
        source = listed(named(self.kind, [SOURCE]))[0]
        given = {**GIVEN, "source": source, "sources": source}
        wanted = {p.name: given[p.name] for p in KINDS[kind].parameters if p.name in given}
        return make_program(kind, None, wanted, self.index)

    def resolve(self, ids: Any) -> Vertices:
        column = StringColumn.of(ids) if self.kind == "string" else np.array(ids, np.int64)
        return self.index.lookup(column)

    # -- ingest -------------------------------------------------------------------------------------------

    def updates(self, most: int = 12) -> list[Update]:
        """New vertices, old ones that go, some that come back; the source among them."""
        rng = self.rng
        made: list[Update] = []
        for _ in range(int(rng.integers(1, most))):
            old = int(rng.integers(0, 12)) if rng.random() < 0.3 else self.fresh - 1 - int(rng.integers(0, 15))
            other = self.fresh - 1 - int(rng.integers(0, 25))
            weight = float(rng.integers(1, 5))
            match rng.integers(0, 10):
                case 0 | 1 | 2:
                    made.append((Op.INSERT, old, self.fresh, weight))
                    self.fresh += 1
                case 3:
                    made.append((Op.INSERT_VERTEX, self.fresh, 0, 0))
                    self.fresh += 1
                case 4 | 5 | 6:
                    gone = self.fresh - 1 - int(rng.integers(0, 40)) if rng.random() < 0.95 else SOURCE
                    made.append((Op.DELETE_VERTEX, gone, 0, 0))
                case 7:
                    made.append((Op.DELETE, old, other, 0))
                case _:
                    made.append((Op.INSERT, other, old, weight))
        return made

    def ingest(self, updates: list[Update]) -> None:
        ops, src, dst, weights = (np.array(column) for column in zip(*updates, strict=True))
        alone = ops >= Op.INSERT_VERTEX
        heads = named(self.kind, np.where(alone, 0, dst))
        block = UpdateBlock(named(self.kind, src), heads, ops.astype(np.uint8), weights.astype(np.float32), 0)
        while True:
            try:
                dense = dense_batch(block, self.index)
                break
            except IdSpaceFull:
                # Nobody waits in vain: else there would be room.
                assert self.reuse.expects_ids
                self.waits += 1
                self.meanwhile()
        self.items += 1
        self.reuse.queued(self.items, [dense])
        nothing = np.empty(0, np.int64)
        prepared = Prepared([dense], dense.updates, self.index.n_vertices, {}, nothing, nothing, item=self.items)
        self.queue.append((prepared, updates))
        self.most = max(self.most, self.index.n_vertices)

    def meanwhile(self) -> None:
        """Something that others do while ingest waits for ids."""
        match self.rng.integers(0, 8):
            case 0 | 1 if self.queue:
                self.epoch()
            case 2:
                self.request()
            case 3 | 4:
                self.end_request()
            case 5 if self.saving is not None:
                self.check_saved()
            case 6:
                self.reuse.let_go(self.graph.alive, hold=self.saving is not None)
            case _:
                self.reuse.step(eager=True)

    # -- the engine ---------------------------------------------------------------------------------------

    def epoch(self) -> None:
        taken = [self.queue.popleft() for _ in range(min(len(self.queue), int(self.rng.integers(1, 5))))]
        items = [item for item, _ in taken]
        batch, vertex_ops = one_batch(items, weighted=True)
        change = self.graph.apply(batch, items[-1].n_vertices, vertex_ops)
        runs = self.engine.refresh(change)
        assert not [run.error for run in runs if run.error]
        found = {id: wrong for id, wrong in self.engine.audit().items() if wrong}
        assert not found
        for _, updates in taken:
            ops, src, dst, weights = zip(*updates, strict=True)
            self.model.apply(src, dst, ops, weights)
        self.published(change, runs)
        self.reuse.published(items[-1].item, change, self.graph.alive, hold=self.saving is not None)

    def published(self, change: GraphChange, runs: Sequence[ProgramRun]) -> None:
        """An epoch is there to be seen."""

    # -- requests, and what waits for them ----------------------------------------------------------------

    def request(self) -> None:
        """It reads of the newest epoch, and looks up what the index knows now."""
        dense = np.flatnonzero(self.graph.alive).astype(np.uint32)
        self.requests.append(Request(dense, listed(self.index.external(dense))))

    def end_request(self) -> None:
        if self.requests:
            request = self.requests.pop(int(self.rng.integers(0, len(self.requests))))
            ids = self.index.external(request.dense)
            assert listed(ids) == request.external
            assert np.array_equal(self.index.lookup(ids), request.dense), "what was alive then is still found"

    def begin_grace(self) -> Callable[[], bool]:
        then = list(self.requests)
        return lambda: not any(request is other for request in self.requests for other in then)

    # -- checkpoints --------------------------------------------------------------------------------------

    def take(self) -> None:
        n = self.graph.n_vertices
        dead = np.flatnonzero(~self.graph.alive).astype(np.uint32)
        edges = self.graph.export()
        model = set(self.model.alive), dict(self.model.contents())
        self.saving = Saving(self.index.state(n), edges, dead, n, *model)

    def written(self) -> tuple[Saving, dict[str, np.ndarray]]:
        assert self.saving is not None
        saved, self.saving = self.saving, None
        return saved, {name: array.copy() for name, array in saved.index.items()}

    def check_saved(self) -> None:
        saved, arrays = self.written()
        index = VertexIndex.create(self.kind)
        index.restore(arrays, saved.dead)
        graph = Graph(directed=self.directed)
        graph.load(saved.edges, saved.n_vertices, saved.dead)
        compare(graph, index, self.kind, saved.alive, saved.arcs)
        assert np.array_equal(np.sort(index.free_vertices), saved.dead)
        graph.close()

    def restart(self) -> None:
        """From a checkpoint of this moment, its vertices in any order; what waits is read again."""
        self.take()
        saved, arrays = self.written()
        again = [updates for _, updates in self.queue]
        answers, n_alive = self.answers(), len(self.model.alive)
        checkpoint = self.in_any_order(as_checkpoint(saved, arrays))
        self.close()
        self.index = VertexIndex.create(self.kind)
        edges, n = checkpoint.part("graph"), checkpoint.facts["n_vertices"]
        self.index.restore(checkpoint.part("index"), edges["dead"])
        self.graph = Graph(directed=self.directed)
        self.graph.load(EdgeList(edges["keys"], edges["weights"]), n, edges["dead"])
        assert n - edges["dead"].size == n_alive
        self.requests.clear()
        self.begin(programs=bool(self.engine.programs))
        for id, values in self.answers().items():
            np.testing.assert_allclose(values, answers[id], **{"rtol": 0, "atol": 0, **APART.get(id, {})})
        for updates in again:
            self.ingest(updates)

    def in_any_order(self, checkpoint: Checkpoint) -> Checkpoint:
        """As it is, breadth first, or as chance will have it."""
        n, dead = checkpoint.facts["n_vertices"], checkpoint.arrays["graph/dead"]
        match self.rng.integers(0, 3):
            case 0:
                return checkpoint
            case 1:
                edges = EdgeList(checkpoint.arrays["graph/keys"])
                rows = Rows.of(edges, n, directed=self.directed, by_heads=self.graph.by_heads)
                order = breadth_first(rows, dead)
            case _:
                order = np.setdiff1d(np.arange(n, dtype=np.uint32), dead)
                self.rng.shuffle(order)
        assert order.size == n - dead.size
        return renumbered(checkpoint, order, self.graph)

    def answers(self) -> dict[str, np.ndarray]:
        """The values of all vertices by program, vertices in the order of their numbers."""
        numbers = np.array(sorted(self.model.alive), np.int64)
        dense = self.index.lookup(named(self.kind, numbers))
        found = {}
        for program in self.engine.programs:
            published = Published(program.columns(), program.scalars(), self.graph.n_vertices)
            answer = type(program).read(published, dense)
            values = answer.values
            if answer.vertex_valued:
                number_of = np.zeros(self.graph.n_vertices)
                number_of[dense] = numbers
                values = number_of[values]
            found[program.id] = np.where(answer.null, -1.0, values.astype(np.float64))
        return found

    def check(self) -> None:
        compare(self.graph, self.index, self.kind, self.model.alive, self.model.contents())


def as_checkpoint(saved: Saving, index: dict[str, np.ndarray]) -> Checkpoint:
    """What is written of it."""
    assert saved.edges.weights is not None
    arrays = {"graph/keys": saved.edges.keys, "graph/weights": saved.edges.weights, "graph/dead": saved.dead}
    arrays |= {f"index/{name}": array for name, array in index.items()}
    arrays["source/state"] = np.arange(3, dtype=np.uint8)
    return Checkpoint((1, 1), {}, {}, {}, {"n_vertices": saved.n_vertices}, arrays)


def compare(
    graph: Graph, index: VertexIndex, kind: Kind, alive: set[int], arcs: dict[tuple[int, int], float]
) -> None:
    """The graph by external ids."""
    numbers = sorted(alive)
    dense = index.lookup(named(kind, numbers)) if numbers else np.empty(0, np.uint32)
    assert sorted(dense.tolist()) == np.flatnonzero(graph.alive).tolist()
    assert listed(index.external(dense)) == listed(named(kind, numbers))
    number_of = dict(zip(dense.tolist(), numbers, strict=True))
    stored = graph.export()
    assert stored.weights is not None
    ends = zip(sources(stored.keys).tolist(), destinations(stored.keys).tolist(), strict=True)
    found = {(number_of[u], number_of[v]): w for (u, v), w in zip(ends, stored.weights.tolist(), strict=True)}
    assert found == arcs


@pytest.fixture
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids change hands as soon as they may, and tables are tiny."""
    monkeypatch.setattr(reuse_module, "DEAD_MIN", 2)
    monkeypatch.setattr(reuse_module, "DEAD_SHARE", 1 << 30)
    monkeypatch.setattr(reuse_module, "LOOKED_THROUGH_PER_ID", 1 << 30)
    monkeypatch.setattr(reuse_module, "PIECE", 5)
    monkeypatch.setattr(reuse_module, "_SCANNED", 7)
    monkeypatch.setattr(hash_table, "CELLS_MIN", 16)
    monkeypatch.setattr(id_table, "ARENA_BYTES_MIN", 64)
    monkeypatch.setattr(id_table, "_COPIED_MIN", 1)


@pytest.mark.sample(among="threads change nothing")
@pytest.mark.usefixtures("_eager")
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
@pytest.mark.parametrize("kind", ["int", "string"])
def test_ids_change_hands_in_any_order_of_the_threads(
    kind: Kind, directed: bool, seed: int, run_long: bool
) -> None:
    reused = 0
    for k in range(60 if run_long else 8):
        world = World(seed + k, kind=kind, directed=directed)
        for _ in range(150):
            match world.rng.integers(0, 16):
                case 0 | 1 | 2 | 3:
                    world.ingest(world.updates())
                case 4 | 5 | 6 | 7 | 8 if world.queue:
                    world.epoch()
                    world.check()
                case 9:
                    world.request()
                case 10 | 11:
                    world.end_request()
                case 12 if world.saving is None:
                    world.take()
                case 13 if world.saving is not None:
                    world.check_saved()
                case 14 if world.saving is None and world.rng.random() < 0.2:
                    reused += world.reuse.reused
                    world.restart()
                    world.check()
                case _:
                    world.reuse.step()
        reused += world.reuse.reused
        world.close()
    assert reused > 0


@pytest.mark.parametrize("seed_more", range(3))
def test_who_finds_the_id_space_full_waits_and_goes_on(seed_more: int, seed: int) -> None:
    """As few ids as will do, beside requests and checkpoints that hold them for a while."""
    world = World(seed + seed_more, programs=False, vertices_max=40)
    for number in range(300):
        born = range(world.fresh, world.fresh + 5)
        world.fresh += 5
        made: list[Update] = [(Op.INSERT, born[0], vertex, 1.0) for vertex in born]
        world.ingest(made + [(Op.DELETE_VERTEX, vertex - 20, 0, 0) for vertex in born])
        if number % 10 == 9 and world.saving is None:
            world.take()
        if world.rng.random() < 0.3:
            world.meanwhile()
            world.check()
    assert world.waits > 300
    assert world.most <= 40
    world.close()


@pytest.mark.sample(among="a long time")
@pytest.mark.usefixtures("_eager")
@pytest.mark.parametrize("kind", ["int", "string"])
def test_vertices_that_come_and_go_for_ever_need_no_more_ids(kind: Kind) -> None:
    world = World(1, kind=kind, programs=False)
    sizes = []
    for number in range(1_500):
        born = world.fresh
        world.fresh += 4
        made: list[Update] = [(Op.INSERT, born + k, born + (k + 1) % 4, 1.0) for k in range(4)]
        gone: list[Update] = [(Op.DELETE_VERTEX, born - 40 + k, 0, 0) for k in range(4)]
        world.ingest(made + gone)
        world.reuse.step()
        if world.rng.random() < 0.5:
            while world.queue:
                world.epoch()
        if number % 100 == 99:
            sizes.append((world.index.memory_bytes(), world.graph.n_vertices))
            world.check()
    assert world.reuse.reused > 5_000
    assert world.most < 300
    memory = [size for size, _ in sizes]
    assert max(memory[3:]) <= 2 * min(memory[3:]), "arrays are renewed, and do not grow"
    world.close()


@pytest.mark.usefixtures("_eager")
def test_reuse_keeps_up_with_streams_of_which_more_die_than_a_piece() -> None:
    world = World(1, programs=False)
    for _ in range(200):
        born = range(world.fresh, world.fresh + 60)
        world.fresh += 60
        made: list[Update] = [(Op.INSERT_VERTEX, number, 0, 0) for number in born]
        world.ingest(made + [(Op.DELETE_VERTEX, number - 600, 0, 0) for number in born])
        world.epoch()
        world.reuse.step()
    assert len(world.model.alive) == 600
    assert world.graph.n_vertices < 1_500
    world.close()


@pytest.mark.usefixtures("_eager")
def test_an_id_that_waits_to_come_back_is_not_given_away() -> None:
    world = World(1, programs=False)
    world.ingest([(Op.INSERT_VERTEX, number, 0, 0) for number in range(8)])
    world.epoch()
    world.ingest([(Op.DELETE_VERTEX, number, 0, 0) for number in range(8)])
    world.epoch()
    world.ingest([(Op.INSERT, 1, 2, 1.0), (Op.DELETE, 3, 4, 0), (Op.DELETE_VERTEX, 5, 0, 0)])
    world.ingest([(Op.INSERT_VERTEX, 6, 0, 0)])
    for _ in range(10):
        world.reuse.step()
    free = set(world.index.free_vertices.tolist())
    assert free and not free & {1, 2, 6}
    world.ingest([(Op.INSERT_VERTEX, number, 0, 0) for number in (20, 21, 22)])
    while world.queue:
        world.epoch()
        world.check()
    assert world.model.alive == {1, 2, 6, 20, 21, 22}
    assert world.graph.n_vertices == 8
    world.close()


@pytest.mark.usefixtures("_eager")
def test_a_vertex_that_came_and_went_within_an_epoch_leaves_its_id() -> None:
    """Also where that id had been another's, of which the engine then hears nothing."""
    world = World(1, programs=False)
    for number in range(200):
        world.ingest([(Op.INSERT_VERTEX, 100 + number, 0, 0), (Op.DELETE_VERTEX, 100 + number, 0, 0)])
        world.epoch()
        world.reuse.step()
    assert world.graph.n_vertices < 10
    assert world.reuse.reused > 150
    world.close()


def of_ten_that_died() -> World:
    """Ten vertices were deleted while a request read them and a checkpoint was written that has them alive."""
    world = World(1, programs=False)
    world.ingest([(Op.INSERT_VERTEX, number, 0, 0) for number in range(10)])
    world.epoch()
    world.request()
    world.take()
    world.ingest([(Op.DELETE_VERTEX, number, 0, 0) for number in range(10)])
    world.epoch()
    return world


def found_of_ten(world: World) -> int:
    """How many are found, once everything was done that can be."""
    for _ in range(10):
        world.reuse.step()
    return int(np.count_nonzero(world.resolve(listed(named("int", range(10)))) != NO_VERTEX))


@pytest.mark.usefixtures("_eager")
def test_a_checkpoint_holds_the_vertices_of_its_time() -> None:
    world = of_ten_that_died()
    world.end_request()
    assert found_of_ten(world) == 10
    world.check_saved()
    world.ingest([(Op.INSERT_VERTEX, 20, 0, 0)])
    world.epoch()
    assert found_of_ten(world) < 10
    assert world.index.free_vertices.size > 5
    world.close()


@pytest.mark.usefixtures("_eager")
def test_a_request_finds_the_vertices_of_its_time_to_its_end() -> None:
    """Those of its epoch by their external ids; and what it has found goes to no other while it lasts."""
    world = of_ten_that_died()
    world.check_saved()
    world.ingest([(Op.INSERT_VERTEX, 20, 0, 0)])
    world.epoch()
    assert found_of_ten(world) == 10
    world.request()  # it reads of no deleted vertex, but may look one up as long as it is found
    world.requests.pop(0)
    assert found_of_ten(world) < 10
    assert world.index.free_vertices.size == 0
    world.end_request()
    found_of_ten(world)
    assert world.index.free_vertices.size > 5
    world.close()


@pytest.mark.usefixtures("_eager")
def test_a_vertex_that_lived_meanwhile_waits_anew() -> None:
    """It is dead before and after the requests that were waited for, but not for one that began between."""
    world = World(1, programs=False)
    delete = [(Op.DELETE_VERTEX, number, 0, 0) for number in range(4)]
    for updates in ([(Op.INSERT_VERTEX, number, 0, 0) for number in range(4)], delete):
        world.ingest(updates)  # type: ignore[arg-type]
        world.epoch()
    world.reuse.step()
    world.ingest([(Op.INSERT_VERTEX, number, 0, 0) for number in range(4)])
    world.epoch()
    world.request()
    world.ingest(delete)  # type: ignore[arg-type]
    world.epoch()
    for _ in range(10):
        world.reuse.step()
    world.end_request()
    for _ in range(10):
        world.reuse.step()
    assert world.index.free_vertices.size > 1
    world.close()


def test_few_dead_vertices_are_left_alone() -> None:
    world = World(1, programs=False)
    world.ingest([(Op.INSERT_VERTEX, number, 0, 0) for number in range(5_000)])
    world.ingest([(Op.DELETE_VERTEX, number, 0, 0) for number in range(4_000)])
    while world.queue:
        world.epoch()
    world.reuse.step()
    assert world.index.free_vertices.size == 0
    world.ingest([(Op.DELETE_VERTEX, number, 0, 0) for number in range(4_000, 4_100)])
    world.epoch()
    for _ in range(3):
        world.reuse.step()
    assert world.index.free_vertices.size == 4_100
    world.close()


def test_where_there_is_little_room_few_dead_vertices_are_not_left_alone() -> None:
    world = World(1, programs=False, vertices_max=100)
    for number in range(500):
        world.ingest([(Op.INSERT_VERTEX, number, 0, 0), (Op.DELETE_VERTEX, number - 20, 0, 0)])
        world.epoch()
        world.reuse.step()
    assert len(world.model.alive) == 20
    assert world.graph.n_vertices <= 100
    world.close()


def test_the_order_of_vertices_forgets_old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphtide.compute.forest.external_order._TAIL_FLOOR", 3)
    rng = np.random.default_rng(1)

    class Names:
        ids = rng.permutation(1_000)

        def smallest(self, dense: Vertices) -> int:
            return int(dense[self.ids[dense].argmin()])

        def sort_by_external(self, dense: Vertices) -> Vertices:
            return dense[self.ids[dense].argsort()]

    names = Names()
    order = SortedVertices(names)
    n, resorted = 10, 0
    for _ in range(300):
        n = min(n + int(rng.integers(0, 3)), 600)
        changed = np.unique(rng.integers(0, n, rng.integers(0, 5))).astype(np.uint32)
        names.ids[changed] = rng.integers(1_000, 1 << 40, changed.size)
        order.renamed(changed)
        before = order._sorted
        ordered = order.prepare(n)
        resorted += ordered is not before
        placed = ordered[ordered != NO_VERTEX]
        assert (np.diff(names.ids[placed]) > 0).all()
        everybody = np.concatenate([placed, order.loose(), np.arange(ordered.size, n)])
        assert np.array_equal(np.sort(everybody), np.arange(n))
        assert all(ordered[order.position(int(vertex))] == vertex for vertex in placed)
        assert all(order.position(int(vertex)) == 0 for vertex in order.loose())
    assert 3 < resorted < 150


def test_a_restored_index_gives_out_what_was_dead() -> None:
    index = VertexIndex.create("int")
    index.restore({"ids": np.arange(10)}, np.array([7, 2], np.uint32))
    assert index.lookup(np.array([2, 3, 7])).tolist() == [NO_VERTEX, 3, NO_VERTEX]
    assert index.insert(np.array([7, 50, 51])).tolist() == [2, 7, 10]
    assert sorted(index.take_reused().tolist()) == [2, 7]
    assert index.take_reused().size == 0


def test_a_large_component_is_named_by_its_smallest_id_whoever_has_it() -> None:
    """The one that names it is deleted again and again, and its dense id goes to a vertex of any other name."""
    rng = np.random.default_rng(2)
    index, graph = VertexIndex.create("int"), Graph(weighted=False)
    program = make_program("components", None, {}, index)
    engine = Engine(graph, [program], lambda ids: np.empty(0, np.uint32), threads=1)
    engine.start()

    def epoch(updates: list[tuple[int, int, int]]) -> None:
        ops, src, dst = (np.array(column) for column in zip(*updates, strict=True))
        dense = dense_batch(UpdateBlock(src, dst, ops.astype(np.uint8), None, 0), index)
        change = graph.apply(dense.edges, index.n_vertices, dense.vertices)
        assert not [run.error for run in engine.refresh(change) if run.error]
        index.remove(change.deleted_vertices)
        index.free(change.deleted_vertices)

    alive = set(rng.integers(0, 1 << 40, 2_000).tolist())
    ring = sorted(alive)
    hubs = ring[-3:]
    epoch([(Op.INSERT, hub, vertex) for hub in hubs for vertex in ring])
    for _ in range(120):
        smallest, others = min(alive), rng.integers(0, 1 << 38, 3).tolist()
        epoch([(Op.DELETE_VERTEX, smallest, 0)])
        alive.remove(smallest)
        epoch([(Op.INSERT, vertex, hub) for vertex in others for hub in hubs])
        alive.update(others)
        dense = index.lookup(np.array(sorted(alive)))
        label = program.read(Published(program.columns(), program.scalars(), graph.n_vertices), dense).values
        assert set(index.external(label).tolist()) == {min(alive)}
    assert graph.n_vertices < 2_000 + 3 * 120
    assert not any(engine.audit().values())
    engine.close()
    graph.close()
