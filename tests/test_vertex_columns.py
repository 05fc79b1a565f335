"""Columns that grow in place, and as copies where no address space is to be had."""

from __future__ import annotations

import mmap
import tempfile

import numpy as np
import pytest

from graphtide.compute import registry
from graphtide.compute.engine import Engine
from graphtide.compute.walks.ppr import PersonalisedPageRank
from graphtide.compute.walks.ppr_pushes import HEAD, N_WAITING
from graphtide.gpma import address_space, vertex_columns
from graphtide.gpma.edges import EdgeBatch
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.gpma.vertex_columns import ROOM, grown, new_column, resized
from graphtide.partition.graph import Graph


@pytest.fixture(params=["reserved", "copied"])
def reserves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "copied":
        monkeypatch.setattr(vertex_columns, "reserve", lambda n_bytes: None)
    return bool(request.param == "reserved")


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.uint32, np.float64])
@pytest.mark.parametrize("fill", [None, 0, 1])
def test_a_column_keeps_its_entries_and_fills_new_ones(dtype: type, fill: int | None, reserves: bool) -> None:
    rng = np.random.default_rng(1)
    column, model = np.empty(0, dtype), np.empty(0, dtype)
    for n in (0, 1, 63, 64, 65, 1000, ROOM - 1, ROOM, ROOM + 1, 5 * ROOM, 5 * ROOM + 1, 100 * ROOM, 101 * ROOM):
        column = grown(column, n, fill)
        assert column.dtype == dtype and column.size >= n and column.flags.carray
        assert np.array_equal(column[: model.size], model)
        if fill is not None:
            assert (column[model.size :] == fill).all()
        column[:] = rng.integers(0, 2, column.size)
        model = column.copy()


def test_large_columns_grow_where_they_lie_and_by_little(reserves: bool) -> None:
    column = new_column(10 * ROOM, np.uint64)
    column[:] = 7
    place, moves = column.ctypes.data, 0
    for n in range(10 * ROOM, 1000 * ROOM, ROOM // 2):
        column = grown(column, n, 0)
        moves += column.ctypes.data != place
        place = column.ctypes.data
        if reserves:
            assert column.size < n + ROOM
    assert (moves == 0) == reserves
    assert (column[: 10 * ROOM] == 7).all() and not column[10 * ROOM :].any()


def test_large_columns_do_not_begin_alike() -> None:
    """Entries of one vertex, multiples of 256 MiB apart, would be one to the caches of some processors."""
    columns = [new_column(ROOM, np.uint8) for _ in range(16)]
    begins = {column.ctypes.data % (256 << 20) for column in columns}
    assert len(begins) > len(columns) // 2


def test_the_same_requests_give_one_size_whatever_the_dtype() -> None:
    """Programs ask one column how large all are."""
    columns = [np.empty(0, dtype) for dtype in (np.uint8, np.uint32, np.float64)]
    for n in range(1, 10 * ROOM, 997):
        columns = [grown(column, n) for column in columns]
        assert len({column.size for column in columns}) == 1


@pytest.mark.parametrize("n", [10, ROOM, 3 * ROOM])
def test_resized_has_exactly_so_many(n: int, reserves: bool) -> None:
    column = resized(np.ones(5), n, 0)
    assert column.size == n and column.sum() == 5
    longer = resized(column, n + 1, 0)
    assert longer.size == n + 1 and longer.sum() == 5


def test_only_the_column_itself_grows_in_place() -> None:
    """A part of one, or an array in some other map, is copied: what lies behind it is not its own."""
    column = new_column(3 * ROOM, np.uint32)
    column[:] = 1
    longer = resized(column[ROOM:], 3 * ROOM, 5)
    assert (longer[: 2 * ROOM] == 1).all() and (longer[2 * ROOM :] == 5).all() and (column == 1).all()
    with tempfile.TemporaryFile() as file:
        file.truncate(8 * ROOM)
        array = np.frombuffer(mmap.mmap(file.fileno(), 8 * ROOM), np.uint32, ROOM)
        longer = grown(array, ROOM + 1)
        longer[:] = 9
        assert not array.any()
        del array


@pytest.mark.skipif(not address_space.is_free(), reason="address space is limited")
def test_nothing_with_an_entry_for_each_vertex_is_copied_when_vertices_come() -> None:
    index, graph = VertexIndex.create("int"), Graph(weighted=False)
    index.insert(np.arange(20 * ROOM))
    source = {"source": 0}
    programs = [
        registry.make_program(kind, None, parameters, index)
        for kind, parameters in (
            ("bfs", source),
            ("sspaths", source),
            ("components", {}),
            ("pagerank", {}),
            ("ppr", {"sources": 0}),
            ("triangles", {}),
            ("lcc", {}),
            ("kcore", {}),
            ("cdlp", {}),
        )
    ]
    engine = Engine(graph, programs, lambda ids: index.lookup(np.array(ids)), threads=1)
    graph.apply(EdgeBatch.of(np.arange(100), np.arange(100) + 1), 2 * ROOM)
    engine.start()

    def places() -> dict[str, int]:
        rows = {"out": graph.out_rows(), "in": graph.in_rows()}
        columns = {
            f"{name} {field}": getattr(view, field)
            for name, view in rows.items()
            for field in ("row_leaf", "degrees")
        }
        columns["alive"] = graph.alive
        for program in programs:
            columns |= {f"{program.id} {name}": column for name, column in program.columns().items()}
        return {name: column.ctypes.data for name, column in columns.items()}

    before = places()
    for n in range(3 * ROOM, 20 * ROOM, ROOM):
        change = graph.apply(EdgeBatch.of([0, n - 1], [n - 1, 1]), n)
        assert [run.error for run in engine.refresh(change)] == [None] * len(programs)
        assert places() == before
    assert not any(engine.audit().values())
    engine.close()
    graph.close()


@pytest.mark.parametrize(("head", "n"), [(0, 0), (0, 5), (100, 28), (120, 50), (127, 128), (64, 128)])
def test_a_ring_of_waiting_vertices_keeps_its_order_when_it_grows(head: int, n: int, reserves: bool) -> None:
    program = PersonalisedPageRank("ppr", (0,))
    program._reset(128)
    walks = program._walks
    assert walks.waiting.size == 128
    walks.counts[HEAD], walks.counts[N_WAITING] = head, n
    walks.waiting[(head + np.arange(n)) % 128] = np.arange(n)
    program._grow(1000)
    ring = program._walks.waiting
    assert ring.size >= 1000
    assert np.array_equal(ring[(head + np.arange(n)) % ring.size], np.arange(n))
