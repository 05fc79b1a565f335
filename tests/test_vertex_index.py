"""The vertex index against a dictionary: numbering, look-ups, order, limits, growth, readers, checkpoints."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pytest
import vertex_index_machine
from crews import THREADS, crew
from crews import crews as crews
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from sampling import examples
from waiting import PATIENCE_S, until

from graphtide.daemon.serve.shared_memory import SharedMap, allocate
from graphtide.gpma.edges import MAX_VERTICES, NO_VERTEX, pack
from graphtide.gpma.index import hash_table, id_kernels, id_table, small_ids, vertex_index
from graphtide.gpma.index.hashing import hash_bytes
from graphtide.gpma.index.ids import IdColumn, StringColumn, concatenate_ids, equal_ids
from graphtide.gpma.index.vertex_index import VertexIndex, VertexIndexReader, state_of, warm_up
from graphtide.gpma.team import ALONE

Kind = Literal["int", "string"]
KINDS: tuple[Kind, ...] = ("int", "string")
INT64 = np.iinfo(np.int64)

int_ids = st.one_of(
    st.integers(-5, 5), st.sampled_from([INT64.min, INT64.max, 0, -1]), st.integers(INT64.min, INT64.max)
)
string_ids = st.one_of(
    st.sampled_from(["", "a", "a\0", "b", "ß", "日本", "x" * 256, "x" * 255, "é" * 128, "prefix-1", "prefix-10"]),
    st.text(max_size=12),
)


def either(values: Callable[[Any], Any]) -> Any:
    """The same strategy over integers or over strings."""
    return st.one_of(values(int_ids), values(string_ids))


def column(ids: Sequence[Any]) -> IdColumn:
    if ids and isinstance(ids[0], str):
        return StringColumn.of(ids)
    return np.array(ids, np.int64)


def listed(ids: IdColumn) -> list[Any]:
    return ids.to_list() if isinstance(ids, StringColumn) else ids.tolist()


def many(kind: Kind, n: int, salt: int = 0) -> list[Any]:
    numbers = [(i + salt * n) * 7_919 - 12_345 for i in range(n)]
    return numbers if kind == "int" else [f"vertex/{number:x}" for number in numbers]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    for kind in KINDS:
        warm_up(kind)


@settings(deadline=None, max_examples=examples(80))
@given(batches=either(lambda ids: st.lists(st.lists(ids, min_size=1), max_size=8)))
def test_numbers_ids_like_a_dictionary(batches: list[list[Any]]) -> None:
    kind: Kind = "string" if batches and isinstance(batches[0][0], str) else "int"
    index = VertexIndex.create(kind)
    model: dict[int | str, int] = {}
    for batch in batches:
        before = index.lookup(column(batch))
        assert before.tolist() == [model.get(item, int(NO_VERTEX)) for item in batch]
        dense = index.insert(column(batch))
        assert dense.dtype == np.uint32
        assert dense.tolist() == [model.setdefault(item, len(model)) for item in batch]
        assert index.n_vertices == len(model)
    if model:
        everything = np.arange(len(model), dtype=np.uint32)
        assert listed(index.external(everything)) == list(model)


@settings(deadline=None, max_examples=examples(60))
@given(
    edges=either(lambda ids: st.lists(st.tuples(ids, ids), min_size=1, max_size=40)),
    cut=st.integers(0, 40),
)
def test_numbering_does_not_depend_on_how_edges_are_cut(edges: list[tuple[Any, Any]], cut: int) -> None:
    kind: Kind = "string" if isinstance(edges[0][0], str) else "int"
    model: dict[int | str, int] = {}
    for vertex in itertools.chain.from_iterable(edges):
        model.setdefault(vertex, len(model))
    for chunks in ([edges], [edges[:cut], edges[cut:]]):
        index = VertexIndex.create(kind)
        for chunk in filter(None, chunks):
            src, dst = index.insert_edges(column([a for a, _ in chunk]), column([b for _, b in chunk]))
            assert src.tolist() == [model[a] for a, _ in chunk]
            assert dst.tolist() == [model[b] for _, b in chunk]
        assert index.n_vertices == len(model)


@pytest.mark.parametrize(("kind", "apart"), [("int", 7919), ("int", 3), ("int", 1), ("string", 1)])
def test_any_number_of_threads_numbers_alike(kind: Kind, apart: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of which most, some or none of the ids are known, while tables grow and vertices are given again;
    one more index inserts first and looks up afterwards. ``apart``: ids are small, or some of them."""
    monkeypatch.setattr(id_table, "PIECE_IDS", 64)
    monkeypatch.setattr(small_ids, "ENTRIES_MIN", 16)
    monkeypatch.setattr(vertex_index, "SAMPLED_MIN", 400)
    rng = np.random.default_rng(3)
    indexes = [VertexIndex.create(kind) for _ in (*THREADS, 0)]
    for index, threads in zip(indexes, THREADS, strict=False):
        index.crew = crew(threads)
    plain, ways = indexes[-1], set[tuple[bool, bool]]()
    bound = 300
    for step in range(60):
        bound += int(rng.choice([0, 10, 50, 1000])) if step % 2 else 0
        n = int(rng.choice([40, 500, 3000]))
        names = rng.integers(0, bound, 2 * n) * apart - (12_345 if apart > 3 else 20)
        ids = names if kind == "int" else StringColumn.of([f"vertex/{name:x}" for name in names.tolist()])
        src, dst = ids[np.arange(n)], ids[np.arange(n, 2 * n)]
        if step % 5 == 0:
            for dense in [index.insert(ids) for index in indexes]:
                assert equal_ids(indexes[0].external(dense), ids).all()
        else:
            inserts = rng.random(n) < rng.choice([0, 0.5, 1])
            ways.add((n >= 400, bool(indexes[0]._knows_most(src, dst)) if n >= 400 else True))
            plain.insert_edges(src[inserts], dst[inserts])
            ends = plain.lookup(src), plain.lookup(dst)
            expected = (ends[0] != NO_VERTEX) & (ends[1] != NO_VERTEX)
            for index in indexes[:-1]:
                keys, known = index.edge_keys(src, dst, inserts)
                assert np.array_equal(keys, pack(*ends))
                assert expected.all() if known is None else np.array_equal(known, expected)
        for index in indexes:
            assert np.array_equal(index.lookup(ids), plain.lookup(ids))
        if step % 10 == 9:
            gone = np.setdiff1d(plain.lookup(src), NO_VERTEX)[::7]
            for index in indexes:
                index.remove(gone)
                index.free(gone)
    assert len(ways) == 3
    assert len({index.n_vertices for index in indexes}) == 1
    keeps = [index.memory_bytes() > index._growing.memory_bytes() for index in indexes]
    assert apart > 3 or keeps == [kind == "int"] * len(THREADS) + [False]


def test_only_ends_that_have_no_entry_are_looked_up() -> None:
    """By entries that the table knows nothing of."""
    table = id_table.IntTable.create(allocate, 16, 0)
    entries = np.zeros(8, np.uint32)
    entries[3] = 1 + 7
    (src, _), (dst, _) = table.column(np.array([3, 3, 5, 9])), table.column(np.array([5, 3, 3, -3]))
    keys, known = np.empty(4, np.uint64), np.empty(4, np.bool_)
    unknown, largest = small_ids.look_up_small_edges(
        table.written, 8, entries, 16, src, dst, 100, keys, known, ALONE
    )
    tails, heads = (np.array(ends) for ends in ([7, 7, NO_VERTEX, NO_VERTEX], [NO_VERTEX, 7, 7, NO_VERTEX]))
    assert np.array_equal(keys, pack(tails, heads))
    assert known.tolist() == [False, True, False, False]
    assert (unknown, largest) == (3, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_grows_through_many_inserts(kind: Kind) -> None:
    index = VertexIndex.create(kind)
    generations = {index.generation}
    ids = many(kind, 30_000)
    for start in range(0, len(ids), 4_111):
        dense = index.insert(column(ids[start : start + 4_111]))
        assert dense.tolist() == list(range(start, min(start + 4_111, len(ids))))
        generations.add(index.generation)
    assert len(generations) > 3
    assert index.insert(column(ids)).tolist() == list(range(len(ids)))
    assert (index.lookup(column(many(kind, 1_000, salt=99))) == NO_VERTEX).all()
    assert index.memory_bytes() < 120 * len(ids)


@pytest.fixture
def _tiny_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of 16 cells, so that they grow, wrap and cluster all the time."""
    monkeypatch.setattr(hash_table, "CELLS_MIN", 16)
    monkeypatch.setattr(id_table, "ARENA_BYTES_MIN", 64)
    monkeypatch.setattr(id_table, "_COPIED_MIN", 1)


@pytest.mark.usefixtures("_tiny_tables")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [1, 3, 50])
def test_ids_are_found_at_every_moment_of_growing(kind: Kind, step: int) -> None:
    """Old readers know what their generation knew, new ones everything, and nobody anything wrong."""
    moving = 0
    for salt in range(12):
        index = VertexIndex.create(kind)
        ids = column(many(kind, 500, salt))
        others = column(many(kind, 50, salt=999))
        readers: list[tuple[VertexIndexReader, int]] = []
        for start in range(0, 500, step):
            chosen = np.arange(start, min(start + step, 500))
            assert index.insert(ids[chosen]).tolist() == chosen.tolist()
            n = index.n_vertices
            expected = np.arange(500)
            expected[n:] = NO_VERTEX
            assert np.array_equal(index.lookup(ids), expected)
            assert (index.lookup(others) == NO_VERTEX).all()
            if not readers or readers[-1][0].generation != index.generation:
                readers.append((VertexIndexReader(kind, index.arrays()), n))
            moving += "old" in index.arrays()
        for reader, n in readers:
            seen = reader.lookup(ids, MAX_VERTICES)
            assert np.array_equal(seen[:n], np.arange(n)), "what an old generation knew it still knows"
            assert (np.isin(seen, [NO_VERTEX]) | (seen == np.arange(500))).all()
            assert (reader.lookup(others, MAX_VERTICES) == NO_VERTEX).all()
        assert listed(index.external(np.arange(500, dtype=np.uint32))) == listed(ids)
        assert len(readers) > 4
    assert moving or step == 50, "growing takes several batches"


@pytest.mark.usefixtures("_tiny_tables")
@pytest.mark.parametrize("kind", KINDS)
def test_edges_that_repeat_their_ends_are_numbered_while_tables_grow(kind: Kind) -> None:
    names = column(many(kind, 400))
    for seed in range(15):
        rng = np.random.default_rng(seed)
        index, model = VertexIndex.create(kind), dict[int, int]()
        for _ in range(40):
            src, dst = rng.integers(0, rng.integers(1, 400), (2, rng.integers(1, 40)))
            dense = index.insert_edges(names[src], names[dst])
            expected = [
                (model.setdefault(u, len(model)), model.setdefault(v, len(model)))
                for u, v in zip(src.tolist(), dst.tolist(), strict=True)
            ]
            assert list(zip(*(column.tolist() for column in dense), strict=True)) == expected
            asked = rng.integers(0, 400, 30)
            assert index.lookup(names[asked]).tolist() == [model.get(v, int(NO_VERTEX)) for v in asked.tolist()]
        assert index.n_vertices == len(model)


@pytest.mark.usefixtures("_tiny_tables")
@pytest.mark.parametrize("kind", KINDS)
def test_a_generation_that_was_replaced_hears_of_nothing_new(kind: Kind) -> None:
    index = VertexIndex.create(kind)
    ids = column(many(kind, 300))
    done = 0
    while done < 300:
        before = VertexIndexReader(kind, index.arrays())
        generation, known = index.generation, done
        while done < 300 and index.generation == generation:
            index.insert(ids[np.array([done])])
            done += 1
            known = known if index.generation != generation else done
        if done < 300:
            rest = np.arange(done, min(done + 5, 300))
            index.insert(ids[rest])
            done = int(rest[-1]) + 1
            assert (before.lookup(ids[rest], MAX_VERTICES) == NO_VERTEX).all()
            assert np.array_equal(before.lookup(ids[np.arange(known)], MAX_VERTICES), np.arange(known))


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_table_is_a_limit_with_a_name(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hash_table, vertex_index):
        monkeypatch.setattr(module, "CELLS_MAX", 2048)
    index = VertexIndex.create(kind)
    ids = column(many(kind, 1921))
    assert index.insert(ids[np.arange(1920)]).tolist() == list(range(1920))
    with pytest.raises(OverflowError, match=r"1 new vertices beside 1920 .* 1920 allowed"):
        index.insert(ids)
    assert index.lookup(ids).tolist() == [*range(1920), NO_VERTEX]
    restored = VertexIndex.create(kind)
    restored.restore(index.state())
    assert restored.lookup(ids).tolist() == [*range(1920), NO_VERTEX]


@pytest.mark.parametrize("first", [22_000, 27_000, 33_000])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_large_batch_nearly_filled_is_copied_by_and_by(
    kind: Kind, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all of it would be copied with the small batch that finds no room."""
    index, ids = VertexIndex.create(kind), column(many(kind, 60_000))
    full = list[bool]()
    real_make_room = id_table.GrowingTable._make_room

    def make_room(self: id_table.GrowingTable) -> None:
        full.append(self.table.is_full(self.counts))
        real_make_room(self)

    index.insert(ids[np.arange(first)])
    monkeypatch.setattr(id_table.GrowingTable, "_make_room", make_room)
    for start in range(first, 60_000, 100):
        index.insert(ids[np.arange(start, min(start + 100, 60_000))])
    assert not any(full)
    assert index.lookup(ids).tolist() == [*range(60_000)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_moves_and_copies_in_proportion_to_itself(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """By counters: what growing writes in one batch depends on the batch, not on what is there."""
    index = VertexIndex.create(kind)
    ids = column(many(kind, 60_000))
    written = 0
    growing = index._growing
    real_renew = type(growing)._renew

    def renew(self: Any, arrays: Any, start: int | None = None) -> None:
        nonlocal moved_before
        real_renew(self, arrays, start)
        moved_before = int(self.table.header[hash_table.MOVED]) if start is None else 0

    monkeypatch.setattr(type(growing), "_renew", renew)
    moved_before = 0
    for start in range(0, 60_000, 100):
        copy = growing._copy
        copied_before = 0 if copy is None else copy.done
        index.insert(ids[np.arange(start, start + 100)])
        moved = int(growing.table.header[hash_table.MOVED]) - moved_before
        moved_before += moved
        assert moved <= 2 * hash_table.MOVED_PER_ID * 128 + 500, "a little more, up to the end of a run"
        if copy is not None and growing._copy is copy:
            assert 0 < copy.done - copied_before <= 2 * 1024
            written += 1
    assert written > 10


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_to_compile_after_the_warm_up(kind: Kind) -> None:
    kernels = (
        id_kernels.lookup,
        id_kernels.insert,
        id_kernels.remove,
        id_kernels.copy_strings,
        hash_table.move,
        small_ids.look_up_small_edges,
    )
    before = [len(kernel.signatures) for kernel in kernels]
    index = VertexIndex.create(kind, allocate)
    ids = column(many(kind, 5_000))
    for start in range(0, 5_000, 100):
        index.insert(ids[np.arange(start, start + 100)])
        assert (VertexIndexReader(kind, index.arrays()).lookup(ids, 5_000)[:start] != NO_VERTEX).all()
    state = {name: _frozen(array) for name, array in index.state().items()}
    gone = _frozen(np.arange(0, 5_000, 3, dtype=np.uint32))
    index.restore(state, gone)
    index.insert_edges(ids, ids)
    index.remove(gone)
    index.free(gone)
    index.insert(ids)
    index.edge_keys(ids, ids, np.ones(5_000, np.bool_))
    assert [len(kernel.signatures) for kernel in kernels] == before


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_may_grow_the_table_several_times(kind: Kind) -> None:
    index = VertexIndex.create(kind)
    ids = many(kind, 9_000)
    src, dst = index.insert_edges(column(ids), column(ids[::-1]))
    expected: dict[int | str, int] = {}
    for vertex in itertools.chain.from_iterable(zip(ids, reversed(ids), strict=True)):
        expected.setdefault(vertex, len(expected))
    assert src.tolist() == [expected[item] for item in ids]
    assert dst.tolist() == [expected[item] for item in reversed(ids)]


def test_long_strings_grow_the_bytes_alone() -> None:
    index = VertexIndex.create("string")
    ids = [f"{i:0256d}" for i in range(500)]
    index.insert(StringColumn.of(ids))
    assert index.generation > 1
    assert listed(index.external(np.arange(500, dtype=np.uint32))) == ids


@pytest.mark.parametrize("kind", KINDS)
def test_past_the_limit_nothing_changes(kind: Kind) -> None:
    index = VertexIndex.create(kind, vertices_max=10)
    ids = many(kind, 12)
    index.insert(column(ids[:8]))
    with pytest.raises(OverflowError, match=r"3 new vertices beside 8 .* 10 allowed"):
        index.insert(column(ids[6:11] + ids[8:11]))
    assert index.n_vertices == 8
    assert (index.lookup(column(ids[8:])) == NO_VERTEX).all()
    assert index.insert(column(ids[4:10] * 3)).tolist() == [*range(4, 10)] * 3
    with pytest.raises(OverflowError):
        index.insert_edges(column(ids[:1]), column(ids[10:11]))
    assert index.n_vertices == 10


@pytest.mark.parametrize("limit", [0, MAX_VERTICES + 1])
def test_refuses_impossible_limits(limit: int) -> None:
    with pytest.raises(ValueError, match="vertices_max"):
        VertexIndex.create("int", vertices_max=limit)


def test_refuses_ids_of_the_other_kind_and_too_long_ones() -> None:
    numbers, strings = np.array([1]), StringColumn.of(["1"])
    with pytest.raises(TypeError, match="integers"):
        VertexIndex.create("int").insert(strings)
    with pytest.raises(TypeError, match="strings"):
        VertexIndex.create("string").lookup(numbers)
    with pytest.raises(ValueError, match="256"):
        VertexIndex.create("string").insert(StringColumn.of(["x" * 257]))
    with pytest.raises(ValueError, match="one length"):
        VertexIndex.create("int").insert_edges(numbers, np.array([1, 2]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_vertex_that_is_none_has_no_external_id(kind: Kind) -> None:
    index = VertexIndex.create(kind)
    index.insert(column(many(kind, 3)))
    with pytest.raises(IndexError, match="not below 3"):
        index.external(np.array([0, 3], np.uint32))
    assert len(index.external(np.empty(0, np.uint32))) == 0


@settings(deadline=None, max_examples=examples(80))
@given(ids=either(lambda ids: st.lists(ids, min_size=1, unique=True)))
def test_orders_by_external_id(ids: list[Any]) -> None:
    index = VertexIndex.create("string" if isinstance(ids[0], str) else "int")
    dense = index.insert(column(ids))[::-1].copy()
    ordered = sorted(ids, key=lambda item: item.encode() if isinstance(item, str) else item)
    by_external = index.sort_by_external(dense)
    assert by_external.dtype == np.uint32
    assert listed(index.external(by_external)) == ordered
    assert index.smallest(dense) == by_external[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_bounded_by_an_epoch_does_not_see_later_ids(kind: Kind) -> None:
    index = VertexIndex.create(kind)
    ids = many(kind, 6)
    index.insert(column(ids))
    reader = VertexIndexReader(kind, index.arrays())
    assert reader.generation == index.generation
    assert reader.lookup(column(ids), 4).tolist() == [0, 1, 2, 3, NO_VERTEX, NO_VERTEX]
    assert index.lookup(column(ids), 4).tolist() == [0, 1, 2, 3, NO_VERTEX, NO_VERTEX]
    assert listed(reader.external(np.array([5, 0], np.uint32))) == [ids[5], ids[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_old_arrays_stay_right_for_those_who_hold_them(kind: Kind) -> None:
    index = VertexIndex.create(kind)
    first, later = many(kind, 300), many(kind, 5_000, salt=1)
    index.insert(column(first))
    old = VertexIndexReader(kind, index.arrays())
    index.insert(column(later))
    assert index.generation > old.generation
    assert old.lookup(column(first), index.n_vertices).tolist() == list(range(300))
    seen = old.lookup(column(later), index.n_vertices)
    known = seen != NO_VERTEX
    assert (seen[known] == 300 + np.flatnonzero(known)).all() and not known.all()


@pytest.mark.parametrize("kind", KINDS)
def test_readers_are_never_wrong_while_one_writer_inserts(kind: Kind) -> None:
    index = VertexIndex.create(kind)
    ids = many(kind, 40_000)
    whole = column(ids)
    expected = np.arange(len(ids), dtype=np.uint32)
    done = threading.Event()
    wrong: list[int] = []
    looked = threading.Semaphore(0)

    def read() -> None:
        rng = np.random.default_rng(5)
        while not done.is_set():
            n = index.n_vertices
            reader = VertexIndexReader(kind, index.arrays())
            sample = rng.integers(0, len(ids), 500)
            seen = reader.lookup(whole[sample], n)
            right = np.where(sample < n, expected[sample], NO_VERTEX)
            if not np.array_equal(seen, right):
                wrong.append(n)
            unbounded = reader.lookup(whole[sample], MAX_VERTICES)
            if not ((unbounded == NO_VERTEX) | (unbounded == sample)).all():
                wrong.append(-n)
            looked.release()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for start in range(0, len(ids), 97):
            index.insert(whole[np.arange(start, min(start + 97, len(ids)))])
            if start % 970 == 0:
                assert looked.acquire(timeout=PATIENCE_S), "nobody reads any more"
    finally:
        done.set()
        thread.join()
    assert not wrong


@pytest.mark.parametrize("kind", KINDS)
def test_every_array_comes_from_the_given_allocator(kind: Kind) -> None:
    made: list[Any] = []

    def allocate(name: str, size: int, dtype: Any) -> Any:
        made.append(np.zeros(size, dtype))
        return made[-1]

    index = VertexIndex.create(kind, allocate)
    index.insert(column(many(kind, 2_000)))
    for array in index.arrays().values():
        assert any(array is mine for mine in made)
    assert index.lookup(column(many(kind, 2_000))).tolist() == list(range(2_000))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [0, 1, 700, 2_500])
def test_restores_the_first_vertices_and_goes_on(kind: Kind, kept: int) -> None:
    index = VertexIndex.create(kind)
    ids = many(kind, 2_500)
    index.insert(column(ids))
    state = {name: array.copy() for name, array in index.state(kept).items()}
    restored = VertexIndex.create(kind)
    restored.insert(column(many(kind, 5, salt=7)))
    generation = restored.generation
    restored.restore(state)
    assert restored.n_vertices == kept and restored.generation > generation
    assert restored.lookup(column(ids)).tolist() == [i if i < kept else int(NO_VERTEX) for i in range(2_500)]
    assert restored.insert(column(ids)).tolist() == list(range(2_500))
    for name, array in restored.state().items():
        np.testing.assert_array_equal(array, index.state()[name])


def test_refuses_a_damaged_state() -> None:
    numbers, strings = VertexIndex.create("int", vertices_max=2), VertexIndex.create("string")
    with pytest.raises(ValueError, match="twice"):
        numbers.restore({"ids": np.array([4, 4])})
    with pytest.raises(OverflowError):
        numbers.restore({"ids": np.arange(3)})
    with pytest.raises(ValueError, match="holds"):
        numbers.restore(strings.state())
    data = np.frombuffer(b"abc", np.uint8)
    with pytest.raises(ValueError, match="places"):
        strings.restore({"arena": data, "places": np.array([2, 2 << 9 | 2], np.uint64)})
    with pytest.raises(IndexError):
        numbers.state(1)


@settings(deadline=None, max_examples=examples(60))
@given(left=st.lists(string_ids, max_size=20), right=st.lists(string_ids, max_size=20), data=st.data())
def test_string_columns(left: list[str], right: list[str], data: st.DataObject) -> None:
    both = concatenate_ids([StringColumn.of(left), StringColumn.of(right)])
    assert listed(both) == left + right
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(both), max_size=len(both))), bool)
    assert listed(both[mask]) == list(itertools.compress(left + right, mask))
    shuffled = data.draw(st.permutations(left))
    equal = equal_ids(StringColumn.of(left), StringColumn.of(shuffled))
    assert equal.tolist() == [a == b for a, b in zip(left, shuffled, strict=True)]


# -- vertices that go to other ids ----------------------------------------------------------------------------


@pytest.mark.usefixtures("_tiny_tables")
def test_vertices_go_to_other_ids_like_in_a_dictionary() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        vertex_index_machine.Index,
        settings=settings(deadline=None, max_examples=examples(150), stateful_step_count=40),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_readers_are_never_wrong_while_vertices_go_to_other_ids(kind: Kind) -> None:
    """Every id comes once: a reader finds its vertex or nothing, and those that stay always."""
    index = VertexIndex.create(kind)
    whole = column(many(kind, 60_000))
    staying = np.arange(0, 60_000, 12)
    expected = np.full(60_000, NO_VERTEX)
    expected[staying] = index.insert(whole[staying])
    fleeting = np.setdiff1d(np.arange(60_000), staying)
    done = threading.Event()
    wrong: list[object] = []
    looked = threading.Semaphore(0)

    def read() -> None:
        rng = np.random.default_rng(5)
        while not done.is_set():
            reader = VertexIndexReader(kind, index.arrays())
            sample = rng.choice(staying, 200)
            if not np.array_equal(reader.lookup(whole[sample], MAX_VERTICES), expected[sample]):
                wrong.append(sample)
            if listed(reader.external(expected[sample].astype(np.uint32))) != listed(whole[sample]):
                wrong.append(sample)
            sample = rng.choice(fleeting, 200)
            seen = reader.lookup(whole[sample], MAX_VERTICES)
            found = np.flatnonzero(seen != NO_VERTEX)
            if not np.array_equal(seen[found], expected[sample[found]]):  # written before it can be found
                wrong.append(sample)
            looked.release()

    present: deque[np.ndarray] = deque()
    thread = threading.Thread(target=read)
    thread.start()
    try:
        for start in range(0, fleeting.size, 80):
            batch = fleeting[start : start + 80]
            free = index.free_vertices[::-1][: batch.size].astype(np.int64)
            new = np.arange(index.n_vertices, index.n_vertices + batch.size - free.size)
            expected[batch] = np.concatenate([free, new])
            assert np.array_equal(index.insert(whole[batch]), expected[batch])
            present.append(batch)
            if len(present) > 5:
                gone = expected[present.popleft()].astype(np.uint32)
                index.remove(gone)
                index.free(gone)
            if start % 800 == 0:
                assert looked.acquire(timeout=PATIENCE_S), "nobody reads any more"
    finally:
        done.set()
        thread.join()
    assert not wrong
    assert index.n_vertices < staying.size + 1_000
    assert index.generation > 3, "the table was renewed, its size was not"
    assert index.memory_bytes() < 200 * staying.size


def test_a_state_holds_all_strings_whenever_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between two arenas: the one that takes over has left behind what no vertex is called any more."""
    index = VertexIndex.create("string")
    gone = index.insert(column([f"gone/{number:020}" for number in range(200)]))
    index.remove(gone)
    index.free(gone[::-1])
    ids = column([f"here/{number:020}" for number in range(100)])
    dense = index.insert(ids)
    arena, numbers = index.arrays()["arena"], itertools.count()
    of_table = id_table.StringTable.state

    def state(table: id_table.StringTable, n_vertices: int, counts: id_kernels.Counts) -> dict[str, Any]:
        while index.arrays()["arena"] is arena:
            passing = index.insert(column([f"passing/{next(numbers):020}"]))
            index.remove(passing)
            index.free(passing)
        return of_table(table, n_vertices, counts)

    monkeypatch.setattr(id_table.StringTable, "state", state)
    saved = index.state(100)
    restored = VertexIndex.create("string")
    restored.restore(saved)
    assert np.array_equal(restored.lookup(ids), dense)


@pytest.mark.parametrize("kind", KINDS)
def test_its_memory_is_counted_while_a_copy_takes_over(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer is through with the copy as soon as another thread has looked at it."""

    class Table(id_table.GrowingTable):
        @property
        def _copy(self) -> Any:
            present, self.__dict__["copy"] = self.__dict__["copy"], None
            return present

        @_copy.setter
        def _copy(self, copy: Any) -> None:
            self.__dict__["copy"] = copy

    monkeypatch.setattr(vertex_index, "GrowingTable", Table)
    index = VertexIndex.create(kind)
    without = index.memory_bytes()
    index._growing._copy = index._table.begin_copy(index._allocate, index._growing.counts)
    assert index.memory_bytes() > without
    assert index.memory_bytes() == without


def crafted(blocks: int) -> list[bytes]:
    """Strings that have one hash, whatever the seeds, where a word is mixed in by ``h = (h ^ word) * odd`` and
    ``h ^= h >> 32``: the highest bit of a word survives the product alone, and the next word takes it back."""
    flips = np.array([1 << 63, (1 << 63) | (1 << 31)], "<u8")
    base = np.frombuffer(b"sixteen letters." * blocks, "<u8").reshape(blocks, 2)
    return [
        (base ^ np.where([[choice >> block & 1] for block in range(blocks)], flips, 0).astype("<u8")).tobytes()
        + b"!"
        for choice in range(1 << blocks)
    ]


def multiplied_and_shifted(string: bytes, seed: int) -> int:
    h = seed
    for word in np.frombuffer(string[:-1], "<u8").tolist():
        h = (h ^ word) * 0xFF51_AFD7_ED55_8CCD & 0xFFFF_FFFF_FFFF_FFFF
        h ^= h >> 32
    return h


@pytest.mark.parametrize("seed", range(4))
def test_strings_cannot_be_chosen_to_collide(seed: int) -> None:
    seeds = np.random.default_rng(seed).integers(0, 2**64, 2, np.uint64, endpoint=False)
    strings = crafted(8)
    assert len(set(strings)) == 256
    assert len({multiplied_and_shifted(string, int(seeds[0])) for string in strings}) == 1
    arrays = [np.frombuffer(string, np.uint8) for string in strings]
    hashes = np.array([hash_bytes(np.uint64(a.ctypes.data), a.size, *seeds) for a in arrays], np.uint64)
    assert np.unique(hashes).size == 256
    # And neither do the bits that choose cells: of 256 random ones 16 bits long half a pair is the same.
    assert np.unique(hashes >> np.uint64(48)).size > 245
    assert np.unique(hashes & np.uint64(0xFFFF)).size > 245


def test_every_byte_and_the_length_of_a_string_count() -> None:
    seeds = np.random.default_rng(1).integers(0, 2**64, 2, np.uint64, endpoint=False)
    for length in range(40):
        plain = np.full(length, ord("a"), np.uint8)
        strings = [plain, np.append(plain, np.uint8(0))]
        for at in range(length):
            strings.append(plain.copy())
            strings[-1][at] ^= 1
        hashes = {int(hash_bytes(np.uint64(string.ctypes.data), string.size, *seeds)) for string in strings}
        assert len(hashes) == len(strings)


@pytest.mark.parametrize("kind", KINDS)
def test_vertices_that_were_given_are_known_after_memory_ran_out(kind: Kind) -> None:
    scarce = False

    def allocate_or_not(name: str, size: int, dtype: Any) -> np.ndarray[Any, Any]:
        if scarce:
            raise MemoryError(name)
        return np.zeros(size, dtype)

    index = VertexIndex.create(kind, allocate_or_not)
    ids = column(many(kind, 500))
    dense = index.insert(ids)
    index.remove(dense[:100])
    index.free(dense[:100])
    scarce = True
    with pytest.raises(MemoryError):
        index.insert(column(many(kind, 5_000, salt=1)))
    scarce = False
    more = column(many(kind, 5_000, salt=1)[4_000:])
    index.free(index.insert(more)[:0])
    assert sorted(index.take_reused().tolist()) == list(range(100))
    assert index.take_reused().size == 0
    assert listed(index.external(index.insert(more))) == listed(more)


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_that_is_removed_twice_at_a_time_is_unknown(kind: Kind) -> None:
    """Also to who has looked it up before, though the call is refused."""
    index = VertexIndex.create(kind)
    ids = np.arange(10) if kind == "int" else column(many(kind, 10))
    index.edge_keys(ids, ids, np.ones(len(ids), np.bool_))
    for _ in range(2):  # the second time keeps what the first has found
        _, known = index.edge_keys(ids, ids, np.zeros(len(ids), np.bool_))
        assert known is None
    with pytest.raises(ValueError, match="of 3 vertices 2 had an id"):
        index.remove(np.array([4, 7, 4], np.uint32))
    _, known = index.edge_keys(ids, ids, np.zeros(len(ids), np.bool_))
    assert known is not None and np.flatnonzero(~known).tolist() == [4, 7]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_replaced_is_let_go_by_another_thread(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """To unmap large arrays takes milliseconds, in which the writer would stand still."""
    let_go_by: list[str] = []
    unmap = SharedMap.__del__

    def noted(self: SharedMap) -> None:
        let_go_by.append(threading.current_thread().name)
        unmap(self)

    monkeypatch.setattr(SharedMap, "__del__", noted)
    index = VertexIndex.create(kind, allocate)
    ids = many(kind, 60_000)
    for start in range(0, len(ids), 100):
        index.insert(column(ids[start : start + 100]))
    until(lambda: not any(thread.name == "let-go" for thread in threading.enumerate()))
    assert len(let_go_by) > 10 and set(let_go_by) == {"let-go"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_may_be_put_into_another_order(kind: Kind) -> None:
    ids = column(many(kind, 50))
    index = VertexIndex.create(kind)
    index.insert(ids)
    state = index.state()
    chosen = np.random.default_rng(1).permutation(50)[:30].astype(np.uint32)
    ordered = state_of(state, chosen)
    assert set(ordered) == set(state)
    other = VertexIndex.create(kind)
    other.restore(ordered)
    assert other.n_vertices == 30
    assert np.array_equal(other.lookup(ids[chosen]), np.arange(30))
    left_out = np.setdiff1d(np.arange(50), chosen)
    assert (other.lookup(ids[left_out]) == NO_VERTEX).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_growth_needs_is_made_one_thing_with_one_batch(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each array, and each thread, takes as long as a batch of ids: so none comes with what else growing does."""
    did: list[str] = []

    def noted(name: str, size: int, dtype: Any) -> np.ndarray[Any, Any]:
        did.append(name)
        return np.zeros(size, dtype)

    monkeypatch.setattr(id_table, "get_pages", lambda array: did.append("pages"))
    monkeypatch.setattr(id_table, "let_go", lambda objects: did.append("let go"))
    index = VertexIndex.create(kind, noted)
    ids = column(many(kind, 400_000))
    index.insert(ids[np.arange(20_000)])
    did.clear()
    batches = Counter[tuple[str, ...]]()
    for first in range(20_000, len(ids), 100):
        generation = index.generation
        index.insert(ids[np.arange(first, first + 100)])
        batches[*did, *(["renewed"] if index.generation > generation else [])] += 1
        did.clear()
    two = batches.pop(("header", "renewed"), 0)  # one renewal behind the other
    arrays = [("external",)] if kind == "int" else [("places", "arena")]
    assert batches.keys() == {(), ("header",), ("table",), ("pages",), ("let go",), ("renewed",), *arrays}
    assert two <= 1 < 10 < batches["renewed",]


def test_a_table_made_ahead_is_not_used_where_ids_went_or_its_beginning_was_taken() -> None:
    sizes: list[int] = []

    def noted(name: str, size: int, dtype: Any) -> np.ndarray[Any, Any]:
        if name == "table":
            sizes.append(size)
        return np.zeros(size, dtype)

    index = VertexIndex.create("int", noted)
    room = hash_table.capacity(1 << 14)
    first = 0
    while index.n_vertices < room - 5:  # until all is made
        last = min(first + 50, room - 5)
        dense = index.insert(np.arange(first, last))
        first = last
        index.insert(np.arange(1))
    ahead = index._growing._ahead
    assert ahead.cells is not None and ahead.cells.size == sizes[-1] == 1 << 15 and ahead.start >= 0
    assert index.memory_bytes() > 8 * (1 << 15)
    gone = np.arange(room // 2 + 1000, dtype=np.uint32)
    index.remove(gone)
    index._growing.counts[id_kernels.FILLED] = room  # as if others had come and gone
    if index._growing.table.table[ahead.start] == 0:  # no id has come there since: a vacant cell
        index._growing.table.table[ahead.start] = np.uint64(0xFFFF_FFFF)
    dense = index.insert(np.arange(10**6, 10**6 + 500))
    assert sizes[-1] == 1 << 14, "half of the ids went: it moves to one of the same size"
    assert ahead.cells is None and int(index._growing.table.header[hash_table.START]) != ahead.start
    assert np.array_equal(index.lookup(np.arange(10**6, 10**6 + 500)), dense)
    assert (index.lookup(np.arange(gone.size)) == NO_VERTEX).all()
    assert np.array_equal(index.lookup(np.arange(gone.size, room - 5)), np.arange(gone.size, room - 5))


def test_growing_is_spread_over_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What begins or ends a move lets nothing go, and pages of a large table are asked for by another thread."""
    calls: list[int] = []
    monkeypatch.setattr(id_table, "let_go", lambda objects: calls.append(len(objects)))
    got: list[tuple[str, int]] = []
    advise = id_table.advise

    def noted(begin: int, end: int, advice: int) -> bool:
        got.append((threading.current_thread().name, end - begin))
        return advise(begin, end, advice)

    monkeypatch.setattr(id_table, "advise", noted)
    index = VertexIndex.create("int")
    index.insert(np.arange(100_000))
    moving, renewed, let_go = 0, 0, 0
    for first in range(100_000, 600_000, 1_000):
        table, generation, before = index._growing.table, index.generation, len(calls)
        index.insert(np.arange(first, first + 1_000))
        if index._growing.table.old is table.old and table.old is not hash_table.NO_CELLS:
            moving += 1
        renewed += index.generation > generation
        let_go += len(calls) > before
        assert index.generation == generation or len(calls) == before
    assert moving > 25 and renewed > 5 and let_go > 5
    until(lambda: not any(thread.name == "get-pages" for thread in threading.enumerate()))
    assert {name for name, _ in got} == {"get-pages"}
    large = [8 * cells for cells in (1 << 19, 1 << 20)]
    assert sum(size for _, size in got) >= sum(large) - 2 * len(large) * 4096
