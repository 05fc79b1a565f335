"""The packed memory array against a plain dictionary, and its own promises: invariants, memory, slots moved."""

from __future__ import annotations

import ctypes
import errno
import mmap
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
import pytest
from crews import THREADS, crew
from crews import crews as crews
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from numba.core.dispatcher import Dispatcher
from packed_array_machine import VERTICES, ArrayMachine, Leaves
from packed_array_machine import as_dict as columns_as_dict
from sampling import examples

from graphtide.gpma import address_space
from graphtide.gpma.edges import LOW, ChangeReport, EdgeBatch, EdgeList, Keys, SubCSR, Vertices, Weights, pack
from graphtide.gpma.host import array as module
from graphtide.gpma.host import (
    committing,
    hot_spot,
    load_export,
    merge,
    migration,
    preparing,
    search,
    slot_memory,
    sorting,
    stretch,
    windows,
)
from graphtide.gpma.host.array import PackedMemoryArray, warm_up
from graphtide.gpma.host.arrays import Slots
from graphtide.gpma.layout import GROW_AT, GROWTH, LEAF_SLOTS, ROOT_LOWER, ROOT_UPPER, Layout
from graphtide.gpma.rows import RowView, runs
from graphtide.gpma.splice import spliced
from graphtide.gpma.team import Team


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()


@contextmanager
def thresholds(
    *, migrated: int = 20, least: int = 4, reserved: bool = True, divided: int = 1, crowded: int = 2048
) -> Iterator[None]:
    """Thresholds that small arrays reach: edges migrated per update (and at the least), updates of a piece of a
    batch, and leaves of a window that is taken for a hot spot.

    Without ``reserved`` the system refuses address space, so that growing and shrinking copy.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration, "MIGRATED_PER_UPDATE", migrated)
        patch.setattr(migration, "MIGRATED_LEAST", least)
        patch.setattr(module, "PIECE_UPDATES", divided)
        patch.setattr(module, "LONE_PIECES_FROM", 300 * divided)
        patch.setattr(module, "LONE_PIECE_UPDATES", 40 * divided)
        patch.setattr(migration, "DIVIDED_MOVES_MIN", divided)
        patch.setattr(hot_spot, "CARRIED_PER_UPDATE", 2 * migrated)
        patch.setattr(hot_spot, "CROWDED_LEAVES", crowded)
        patch.setattr(hot_spot, "REGION_LEAVES", max(2, crowded // 2))
        patch.setattr(migration, "STRETCH_LEAVES_MIN", max(2, crowded // 32))
        patch.setattr(hot_spot, "NEAR_LEAVES", max(1, crowded // 128))
        if not reserved:
            patch.setattr(slot_memory, "reserve", lambda n_bytes: None)
        yield


# Against the oracle.


def as_dict(edges: EdgeList) -> dict[tuple[int, int], float]:
    return columns_as_dict(edges.keys, edges.weights)


class OnHost:
    """Arrays of the host."""

    largest = 1500
    settings = settings(max_examples=examples(150), stateful_step_count=14, deadline=None)

    def array(self, *, weighted: bool) -> PackedMemoryArray:
        return PackedMemoryArray(weighted=weighted)

    def apply(self, array: PackedMemoryArray, batch: EdgeBatch) -> ChangeReport:
        before = batch.keys.copy()
        report = array.apply(batch)
        assert np.array_equal(batch.keys, before)
        return report

    def load(self, array: PackedMemoryArray, edges: EdgeList) -> None:
        array.load(edges)

    def load_unsorted(self, array: PackedMemoryArray, keys: Keys, weights: Weights | None) -> None:
        nothing = np.empty(0, np.float32) if array.weighted else None
        array.load(EdgeList(np.empty(0, np.uint64), nothing))
        array.apply(EdgeBatch(keys, np.ones(keys.size, np.uint8), weights))

    def export(self, array: PackedMemoryArray) -> EdgeList:
        return array.export()

    def rows(self, array: PackedMemoryArray, vertices: Vertices) -> SubCSR:
        rows = array.rows(vertices)
        assert np.array_equal(np.diff(rows.offsets), array.view().degrees[vertices])
        return rows

    def has_edge(self, array: PackedMemoryArray, keys: Keys) -> np.ndarray:
        return array.has_edge(keys)

    def weights_of(self, array: PackedMemoryArray, keys: Keys) -> Weights:
        return array.weights_of(keys)

    def leaves(self, array: PackedMemoryArray) -> Leaves | None:
        """None: windows may be squeezed and need not be aligned; ``HostMachine.apply`` has the rule instead."""
        return None


class HostMachine(ArrayMachine):
    """The shared history, and what only the host does: threads, growing and shrinking by and by, hot spots."""

    def __init__(self) -> None:
        super().__init__(OnHost())

    @initialize(
        weighted=st.booleans(),
        threads=st.sampled_from(THREADS),
        migrated=st.sampled_from([1, 3, 20]),
        reserved=st.booleans(),
        crowded=st.sampled_from([2, 8, 2048]),
    )
    def start(
        self, weighted: bool, threads: int = 1, migrated: int = 20, reserved: bool = True, crowded: int = 2048
    ) -> None:
        self.thresholds = thresholds(migrated=migrated, reserved=reserved, crowded=crowded)
        self.thresholds.__enter__()
        super().start(weighted)
        self.array = PackedMemoryArray(weighted=weighted, crew=crew(threads))
        self.array.ensure_vertices(VERTICES)

    def apply(self, src: Any, dst: Any, ops: Any, seed: int) -> None:
        """No leaf moves but those of redistributed windows, of which ``check`` knows what they may be."""
        array = self.array
        before, stayed = array._contents.slots.heads.copy(), not array.migrating
        super().apply(src, dst, ops, seed)
        after, n = array._contents.slots.heads, array._n_windows
        if stayed and not array.migrating and before.size == after.size and n > 0:
            found, redistributed = array._work.windows, np.zeros(after.size, bool)
            for begin, end in zip(found.new_begin[:n].tolist(), found.new_end[:n].tolist(), strict=True):
                redistributed[begin:end] = True
            moved = np.flatnonzero((before != after) & ~redistributed)
            assert moved.size == 0, f"leaves {moved[:9]} of {after.size} moved, and are in no window"

    @rule(
        seed=st.integers(0, 2**32),
        batches=st.integers(1, 12),
        inserts=st.sampled_from([0.2, 0.5, 0.9]),
        rows=st.sampled_from([1, VERTICES]),
    )
    def few_updates_at_a_time(self, seed: int, batches: int, inserts: float, rows: int) -> None:
        rng = np.random.default_rng(seed)
        first = rng.integers(0, VERTICES - rows + 1)
        for _ in range(batches if self.array.n_edges > 200 else 0):
            n = int(rng.integers(1, 9))
            ops = (rng.random(n) < inserts).astype(np.uint8)
            self.apply(rng.integers(first, first + rows, n), rng.integers(0, 200, n), ops, seed)
            assert self.array.check() == []

    def teardown(self) -> None:
        if hasattr(self, "thresholds"):
            self.thresholds.__exit__(None, None, None)


TestHostMachine = HostMachine.TestCase
TestHostMachine.settings = OnHost.settings


# Against NumPy, at sizes where windows nest several levels deep.


@dataclass
class Columns:
    """Sorted columns, changed by NumPy's own sorting and searching."""

    keys: Keys
    weights: Weights

    def apply(self, keys: Keys, ops: np.ndarray, weights: Weights) -> None:
        _, last = np.unique(keys[::-1], return_index=True)
        last = keys.size - 1 - last
        stay = ~np.isin(self.keys, keys)
        new = last[ops[last] == 1]
        all_keys = np.concatenate([self.keys[stay], keys[new]])
        order = np.argsort(all_keys)
        self.keys, self.weights = all_keys[order], np.concatenate([self.weights[stay], weights[new]])[order]


def stream(rng: np.random.Generator, model: Columns, n_vertices: int, step: int) -> tuple[Keys, np.ndarray]:
    """A batch of one of the awkward shapes."""
    n = int(rng.choice([1, 3, 40, 500, 7000, 30000]))
    shape = rng.choice(["ascend", "hub", "present", "delete most", "random", "one leaf"])
    ops = rng.integers(0, 2, n).astype(np.uint8)
    keys = pack(rng.integers(0, n_vertices, n), rng.integers(0, n_vertices, n))
    if shape == "ascend":
        return pack(np.full(n, n_vertices - 1), 100_000 * step + np.arange(n)), np.ones(n, np.uint8)
    if shape == "hub":
        return pack(np.full(n, n_vertices // 2), rng.integers(0, 50_000, n)), ops
    if shape == "one leaf":
        return pack(np.full(n, n_vertices // 3), 2**31 + rng.permutation(n)), np.ones(n, np.uint8)
    if model.keys.size and shape == "present":
        return rng.choice(model.keys, n), ops
    if model.keys.size and shape == "delete most":
        keys = model.keys[: model.keys.size * 9 // 10 + 1]
        return keys, np.full(keys.size, 0, np.uint8)
    return keys, ops


@pytest.mark.sample(5)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_long_histories_match_numpy(seed: int, weighted: bool) -> None:
    choices = {"reserved": seed % 3 > 0, "divided": 1 + 500 * (seed % 4), "crowded": 16 if seed % 5 > 2 else 2048}
    with thresholds(migrated=1 + 19 * (seed % 2), **choices):
        _long_history(
            np.random.default_rng(seed), PackedMemoryArray(weighted=weighted, crew=crew(THREADS[seed // 4]))
        )


def _long_history(rng: np.random.Generator, array: PackedMemoryArray) -> None:
    weighted = array.weighted
    n_vertices = int(rng.choice([8, 100, 2000]))
    array.ensure_vertices(n_vertices)
    model = Columns(np.empty(0, np.uint64), np.empty(0, np.float32))
    for step in range(40):
        keys, ops = stream(rng, model, n_vertices, step)
        weights = rng.integers(1, 256, keys.size).astype(np.float32)
        before = model.keys
        report = array.apply(EdgeBatch(keys, ops, weights if weighted else None))
        model.apply(keys, ops, weights)
        edges = array.export()
        assert np.array_equal(edges.keys, model.keys)
        assert np.array_equal(report.inserted.keys, np.setdiff1d(model.keys, before))
        assert np.array_equal(report.deleted.keys, np.setdiff1d(before, model.keys))
        if weighted:
            assert np.array_equal(edges.weights, model.weights)
        assert array.check() == [], step


def test_wide_keys_sort_right() -> None:
    rng = np.random.default_rng(5)
    array = PackedMemoryArray(weighted=True)
    array.ensure_vertices(1 << 22)
    src, dst = rng.integers(0, 1 << 22, 20_000), rng.integers(0, 2**32 - 1, 20_000)
    weights = np.arange(src.size, dtype=np.float32)
    array.apply(EdgeBatch.of(np.tile(src, 2), np.tile(dst, 2), weights=np.concatenate([weights + 1, weights])))
    keys, first = np.unique(pack(src, dst), return_index=True)
    assert np.array_equal(array.export().keys, keys)
    assert np.array_equal(array.export().weights, weights[first])


def test_a_warm_up_ends_where_nothing_can_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedMemoryArray, "migrating", False)
    with pytest.raises(MemoryError, match="none is left"):
        warm_up()


def test_nothing_is_left_to_compile_after_the_warm_up() -> None:
    kernels = {
        kernel
        for part in (committing, load_export, merge, preparing, search, sorting, stretch, windows)
        for kernel in vars(part).values()
        if isinstance(kernel, Dispatcher)
    }
    warm_up()
    before = {kernel: len(kernel.signatures) for kernel in kernels}
    for weighted in (True, False):
        array = PackedMemoryArray(weighted=weighted)
        array.ensure_vertices(300)
        rng = np.random.default_rng(13)
        for n in (1, 100, 20_000, 10):
            src, dst = rng.integers(0, 300, n), rng.integers(0, 300, n)
            ops = rng.integers(0, 2, n)
            array.apply(EdgeBatch.of(src, dst, ops, rng.random(n) if weighted else None))
            array.apply(EdgeBatch.of(src, dst))
        array.rows(np.arange(5, dtype=np.uint32))
        assert array.has_edge(array.export().keys).all()
        array.load(array.export())
        array.apply(EdgeBatch(array.export().keys, np.zeros(array.n_edges, np.uint8)))
        with thresholds(crowded=16):
            array = PackedMemoryArray(weighted=weighted, crew=crew(2))
            array.ensure_vertices(300)
            for step in range(150):
                array.apply(EdgeBatch.of(np.full(200, 77), 2**20 - 200 * step + np.arange(200)))
            assert array._migration.hot_spot.there
            keys = rng.permutation(array.export().keys)
            for begin in range(0, keys.size, 500):
                array.apply(deleted(keys[begin : begin + 500]))
    assert {kernel: len(kernel.signatures) for kernel in kernels} == before
    assert len(kernels) > 15


# Moving little.


def loaded(n_edges: int, n_vertices: int, seed: int, threads: int = 1) -> PackedMemoryArray:
    """An array of about n_edges random edges; rows are of equal expected length."""
    rng = np.random.default_rng(seed)
    keys = np.unique(pack(rng.integers(0, n_vertices, n_edges), rng.integers(0, n_vertices, n_edges)))
    array = PackedMemoryArray(weighted=False, crew=crew(threads))
    array.ensure_vertices(n_vertices)
    array.load(EdgeList(keys))
    return array


def n_slots(array: PackedMemoryArray) -> int:
    return int(array.view().keys.size)


@pytest.fixture
def ten_million(shared_ten_million: PackedMemoryArray) -> Iterator[PackedMemoryArray]:
    """The same for all; the threads that a test made it start end with the test."""
    yield shared_ten_million
    shared_ten_million.close()


@pytest.fixture(scope="module")
def shared_ten_million() -> PackedMemoryArray:
    per_row, n_vertices = 10, 1_000_000
    edge = np.arange(per_row * n_vertices)
    spread = np.random.default_rng(1).integers(0, n_vertices // per_row, edge.size)
    array = PackedMemoryArray(weighted=False)
    array.ensure_vertices(n_vertices)
    array.load(EdgeList(pack(edge // per_row, edge % per_row * (n_vertices // per_row) + spread)))
    return array


def test_ten_edges_into_ten_million_move_at_most_a_hundredth(ten_million: PackedMemoryArray) -> None:
    array, n_vertices = ten_million, ten_million.n_vertices
    rng = np.random.default_rng(2)
    limit = n_slots(array) // 100
    shapes: list[Callable[[int], Keys]] = [
        lambda step: pack(rng.integers(0, n_vertices, 10), rng.integers(0, n_vertices, 10)),
        lambda step: pack(np.full(10, 0), 10 * step + np.arange(10)),
        lambda step: pack(np.full(10, n_vertices - 1), 2**31 - 10 * step + np.arange(10)),
        lambda step: pack(np.full(10, n_vertices // 2), 2**30 + 10 * step + np.arange(10)),
    ]
    for shape in shapes:
        for step in range(200):
            keys = shape(step)
            assert array.apply(EdgeBatch(keys, np.ones(10, np.uint8))).slots_moved <= limit
            if step % 3 == 0:
                assert array.apply(EdgeBatch(keys, np.zeros(10, np.uint8))).slots_moved <= limit
    # A stretch that a large batch has just filled to its bounds, and again after each of ten more.
    for step in range(10):
        row = 1000 + 100 * step
        array.apply(EdgeBatch.of(np.full(50_000, row), 2**31 + np.arange(50_000)))
        keys = pack(np.full(10, row), 2**31 - 1 - np.arange(10))
        assert array.apply(EdgeBatch(keys, np.ones(10, np.uint8))).slots_moved <= limit
    assert array.check() == []


def test_filling_one_place_moves_much_only_rarely(ten_million: PackedMemoryArray) -> None:
    array = ten_million
    limit = n_slots(array) // 100
    moved = []
    for step in range(6_000):
        keys = pack(np.full(10, 333_333), 2**31 - 10 * step - np.arange(10))
        moved.append(array.apply(EdgeBatch(keys, np.ones(10, np.uint8))).slots_moved)
    # The local windows around the place fill up and must at times be emptied into wider ones.
    assert sum(slots > limit for slots in moved) <= len(moved) // 500
    assert sum(moved) <= 600 * 10 * len(moved)
    assert array.check() == []


def test_growth_is_rare_and_costs_little_per_edge() -> None:
    array = loaded(200_000, 1 << 14, seed=3)
    rng = np.random.default_rng(4)
    grown, moved, batches = 0, 0, 8_000
    for _ in range(batches):
        before = n_slots(array)
        src, dst = rng.integers(0, 1 << 14, 10), rng.integers(0, 1 << 14, 10)
        moved += array.apply(EdgeBatch.of(src, dst)).slots_moved
        grown += n_slots(array) > before
    assert 1 <= grown <= 3
    assert moved <= 30 * 10 * batches
    assert array.check() == []


def test_a_row_that_fills_in_order_moves_few_slots_per_edge() -> None:
    array = loaded(200_000, 1 << 14, seed=5)
    moved = 0
    for step in range(3_000):
        moved += array.apply(EdgeBatch.of(np.full(10, 77), 2**20 + 10 * step + np.arange(10))).slots_moved
    assert moved <= 300 * 30_000


# Growing by and by.


def shapes(n_vertices: int) -> dict[str, Callable[[np.random.Generator, int, int], tuple[Keys, np.ndarray]]]:
    """Streams of (keys, ops): step s of n updates."""

    def inserts(keys: Keys) -> tuple[Keys, np.ndarray]:
        return keys, np.ones(keys.size, np.uint8)

    def sliding(rng: np.random.Generator, step: int, n: int) -> tuple[Keys, np.ndarray]:
        new = pack(np.full(n, 7), 2**20 + n * step + np.arange(n))
        old = pack(np.full(n // 2, 7), 2**20 + n // 2 * step + np.arange(n // 2))
        return np.concatenate([old, new]), np.repeat(np.array([0, 1], np.uint8), [old.size, n])

    last = n_vertices - 1
    return {
        "random": lambda rng, step, n: inserts(pack(rng.integers(0, n_vertices, n), rng.integers(0, 2**31, n))),
        "ascending": lambda rng, step, n: inserts(pack(np.full(n, last), 2**31 + n * step + np.arange(n))),
        "descending": lambda rng, step, n: inserts(pack(np.full(n, 0), 2**31 - n * step - np.arange(n))),
        "hub": lambda rng, step, n: inserts(pack(np.full(n, n_vertices // 3), rng.integers(0, 2**31, n))),
        "one leaf": lambda rng, step, n: inserts(
            pack(np.full(n, last // 2), 2**30 + n * step + np.arange(n)[::-1])
        ),
        "sliding window": sliding,
    }


@pytest.mark.sample(16)
@pytest.mark.parametrize("reserved", [True, False])
@pytest.mark.parametrize(("threads", "crowded"), [(1, 2048), (2, 2048), (1, 4), (5, 16)])
@pytest.mark.parametrize("shape", shapes(100))
def test_growth_goes_on_in_order_whatever_comes(shape: str, threads: int, crowded: int, reserved: bool) -> None:
    rng = np.random.default_rng(15)
    with thresholds(reserved=reserved, divided=30, crowded=crowded):
        array = PackedMemoryArray(weighted=True, crew=crew(threads))
        array.ensure_vertices(100)
        model = Columns(np.unique(pack(rng.integers(0, 100, 3000), rng.integers(0, 2**31, 3000))), np.empty(0))
        model.weights = np.ones(model.keys.size, np.float32)
        array.load(EdgeList(model.keys, model.weights))
        migrating, begun = 0, 0
        for step in range(120):
            keys, ops = shapes(100)[shape](rng, step, int(rng.choice([1, 10, 40])))
            weights = rng.integers(1, 100, keys.size).astype(np.float32)
            before = array.migrating
            array.apply(EdgeBatch(keys, ops, weights))
            model.apply(keys, ops, weights)
            assert array.check() == [], step
            edges = array.export()
            assert np.array_equal(edges.keys, model.keys) and np.array_equal(edges.weights, model.weights)
            assert array.has_edge(model.keys).all()
            migrating += array.migrating
            begun += array.migrating and not before
    assert begun >= (0 if shape == "sliding window" else 2)
    assert migrating >= 3 * begun


def test_a_stretch_that_narrows_at_the_beginning_leaves_no_leaf_empty() -> None:
    """Keys below all others, falling: the stretch is carried to the first leaves, which cannot fill it."""
    rng = np.random.default_rng(19)
    with thresholds(crowded=32), pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration, "STRETCH_LEAVES_MIN", 32)
        array = PackedMemoryArray(weighted=False)
        array.ensure_vertices(100)
        model = np.unique(pack(rng.integers(50, 100, 4000), rng.integers(0, 2**31, 4000)))
        array.load(EdgeList(model, None))
        for step in range(120):
            keys = np.unique(rng.integers(2**37 - 400 * (step + 2), 2**37 - 400 * step, 10).astype(np.uint64))
            array.apply(EdgeBatch(keys, np.ones(keys.size, np.uint8)))
            model = np.union1d(model, keys)
            assert array.check() == [], step
            assert np.array_equal(array.export().keys, model)
            assert array.has_edge(model).all()


def test_no_batch_pays_for_growth() -> None:
    array = loaded(400_000, 1 << 14, seed=16)
    rng = np.random.default_rng(17)
    grown, most = 0, 0
    for _ in range(400):
        before = n_slots(array)
        moved = array.apply(
            EdgeBatch.of(rng.integers(0, 1 << 14, 1000), rng.integers(0, 1 << 14, 1000))
        ).slots_moved
        most = max(most, moved)
        grown += n_slots(array) > before
    assert 2 <= grown <= 5
    # Twenty per update, a leaf more, and the usual windows: nowhere near the 400,000 edges.
    assert most <= 40 * 1000
    assert array.check() == []


# Hot spots.


@pytest.mark.sample(1)
@pytest.mark.parametrize(("shape", "mean"), [("ascending", 3), ("descending", 25), ("hub", 30), ("one leaf", 15)])
def test_batches_on_a_hot_spot_move_little(shape: str, mean: float) -> None:
    """``mean``: slots moved for each update; without a stretch beside it they were 110, 208, 24 and 118."""
    array = loaded(1_000_000, 1 << 14, seed=50)
    rng = np.random.default_rng(51)
    moved, grown = [], 0
    for step in range(800):
        keys, ops = shapes(1 << 14)[shape](rng, step, 1000)
        before = n_slots(array)
        moved.append(array.apply(EdgeBatch(keys, ops)).slots_moved)
        grown += n_slots(array) > before
        if step % 40 == 0:
            assert array.check() == []
    assert grown >= 2
    assert sum(moved) < mean * 800_000
    # Carried edges, and wide windows until the stretch is there.
    assert sum(slots > 120_000 for slots in moved) < len(moved) // 25
    assert array.check() == []


@pytest.mark.sample(among="threads change nothing")
@pytest.mark.parametrize("shape", ["descending", "hub"])
def test_threads_carry_a_stretch_as_one_does(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past many leaves at once, either way: what comes to lie where is the same, batch by batch."""
    monkeypatch.setattr(migration, "DIVIDED_MOVES_MIN", 1000)
    past: list[int] = []
    make_moves = stretch.make_moves

    def counted(*arguments: Any) -> Any:
        done = make_moves(*arguments)
        past.append(done[0] if arguments[2] in stretch.PAST_LEAVES else 0)
        return done

    monkeypatch.setattr(stretch, "make_moves", counted)
    seen = []
    with thresholds(crowded=16):
        for threads in (1, 2, 5):
            array, rng = loaded(200_000, 1 << 12, seed=52, threads=threads), np.random.default_rng(53)
            seen.append([])
            for step in range(120):
                keys, ops = shapes(1 << 12)[shape](rng, step, 1000)
                array.apply(EdgeBatch(keys, ops))
                view = array.view()
                columns = view.counts, view.row_leaf, view.degrees, array.export().keys
                seen[-1].append(b"".join(column.tobytes() for column in columns))
            assert array.check() == []
    assert seen[1] == seen[0] and seen[2] == seen[0]
    assert max(past) > 10_000


def test_a_stretch_goes_home_when_a_hot_spot_is_over() -> None:
    with thresholds(crowded=16):
        array = loaded(200_000, 1 << 12, seed=52)
        rng = np.random.default_rng(53)
        for step in range(200):
            array.apply(EdgeBatch.of(np.full(100, 5), 2**31 - 100 * step - np.arange(100)))
        assert array._migration.carried or not array.migrating
        assert array._migration.hot_spot.there
        for _ in range(1500):
            src, dst = rng.integers(0, 1 << 12, 100), rng.integers(0, 2**31, 100)
            array.apply(EdgeBatch.of(src[:50], dst[:50]))
            array.apply(EdgeBatch.of(src[:50], dst[:50], np.zeros(50, np.uint8)))
            if not array.migrating:
                break
            assert array.n_edges > 0
        assert not array._migration.hot_spot.there and not array._migration.carried
        assert array.check() == []


# New vertices: each with two edges to any older ones. Their rows are few and short, and lie where most edges come.


def of_new_vertices(rng: np.random.Generator, begin: int, end: int, orientation: str) -> Keys:
    """Two edges of each of these vertices to earlier ones, as in-rows or out-rows have them."""
    new = np.repeat(np.arange(begin, end), 2)
    old = (rng.random(new.size) * new).astype(np.int64)
    return np.unique(pack(old, new) if orientation == "out" else pack(new, old))


def with_churn(rng: np.random.Generator, keys: Keys, live: Keys, n_vertices: int) -> tuple[Keys, np.ndarray]:
    """New edges, as many between old vertices, some of them there already, and half as many edges that go."""
    old = pack(rng.integers(0, n_vertices, keys.size), rng.integers(0, n_vertices, keys.size))
    old[::4] = rng.choice(live, old[::4].size)
    gone = rng.choice(live, keys.size // 2)
    ops = np.repeat(np.array([1, 1, 0], np.uint8), [keys.size, old.size, gone.size])
    return np.concatenate([keys, old, gone]), ops


@pytest.mark.sample(2)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("orientation", ["out", "in"])
def test_no_batch_pays_for_new_vertices(orientation: str, mixed: bool) -> None:
    """Single batches redistributed the whole array, a million slots."""
    rng = np.random.default_rng(54)
    begin, end, step = 200_000, 500_000, 250
    array = PackedMemoryArray(weighted=False)
    array.ensure_vertices(end)
    live = of_new_vertices(rng, 1, begin, orientation)
    array.load(EdgeList(live))
    moved, n_updates = [], 0
    for first in range(begin, end, step):
        keys = of_new_vertices(rng, first, first + step, orientation)
        ops = np.ones(keys.size, np.uint8)
        if mixed:
            keys, ops = with_churn(rng, keys, live, first)
        moved.append(array.apply(EdgeBatch(keys, ops)).slots_moved)
        n_updates = max(n_updates, keys.size)
    # A stretch that is carried, and two windows at their widest.
    assert max(moved) <= hot_spot.CARRIED_PER_UPDATE * n_updates + 2 * hot_spot.CROWDED_LEAVES * LEAF_SLOTS
    assert sum(moved) <= 20 * n_updates * len(moved)
    assert array.check() == []


@pytest.mark.parametrize(("threads", "crowded"), [(1, 32), (2, 8)])
@pytest.mark.parametrize("orientation", ["out", "in"])
def test_new_vertices_come_in_order_whatever_goes(orientation: str, threads: int, crowded: int) -> None:
    rng = np.random.default_rng(55)
    squeezed, passages = 0, 0
    with thresholds(divided=30, crowded=crowded, least=20):  # in haste, so that windows are squeezed
        array = PackedMemoryArray(weighted=True, crew=crew(threads))
        array.ensure_vertices(8_000)
        model = Columns(of_new_vertices(rng, 1, 2_000, orientation), np.empty(0))
        model.weights = np.ones(model.keys.size, np.float32)
        array.load(EdgeList(model.keys, model.weights))
        first = 2_000
        for step in range(300):
            end = first + int(rng.choice([1, 5, 30]))
            keys = of_new_vertices(rng, first, end, orientation)
            ops = np.ones(keys.size, np.uint8)
            if step % 3 == 0:
                keys, ops = with_churn(rng, keys, model.keys, first)
            first = end
            weights = rng.integers(1, 100, keys.size).astype(np.float32)
            array.apply(EdgeBatch(keys, ops, weights))
            model.apply(keys, ops, weights)
            assert array.check() == [], step
            edges = array.export()
            assert np.array_equal(edges.keys, model.keys) and np.array_equal(edges.weights, model.weights)
            squeezed += int(array._work.windows.squeezed[: array._n_windows].sum())
            passages += array._migration.hot_spot.crowded
    assert passages > 0
    assert squeezed > 0 or orientation == "in"


# Shrinking by and by.


def deleted(keys: Keys) -> EdgeBatch:
    return EdgeBatch(keys, np.zeros(keys.size, np.uint8))


@pytest.mark.sample(3)
@pytest.mark.parametrize("order", ["random", "ascending", "descending", "stretches"])
@pytest.mark.parametrize(("back", "threads"), [(0.0, 5), (0.3, 1), (0.7, 2)])
def test_shrinking_goes_on_in_order_whatever_comes(order: str, back: float, threads: int) -> None:
    """Batches of deletions in some order, ``back`` of them inserted again later, until nothing is left."""
    rng = np.random.default_rng(40)
    with thresholds(divided=30):
        array = PackedMemoryArray(weighted=True, crew=crew(threads))
        array.ensure_vertices(100)
        keys = np.unique(pack(rng.integers(0, 100, 12_000), rng.integers(0, 2**31, 12_000)))
        model = Columns(keys, np.ones(keys.size, np.float32))
        array.load(EdgeList(model.keys, model.weights))
        begun, shrank = 0, 0
        for step in range(600):
            n, size = min(int(rng.choice([1, 10, 60])), model.keys.size), model.keys.size
            first = {"ascending": 0, "descending": size - n, "stretches": int(rng.integers(0, size - n + 1))}
            chosen = rng.choice(model.keys, n) if order == "random" else model.keys[first[order] :][:n]
            again = rng.choice(keys, int(back * n))
            batch = np.concatenate([chosen, again])
            ops = np.repeat(np.array([0, 1], np.uint8), [chosen.size, again.size])
            weights = rng.integers(1, 100, batch.size).astype(np.float32)
            before, n_leaves = array.migrating, array._contents.layout.n_leaves
            array.apply(EdgeBatch(batch, ops, weights))
            model.apply(batch, ops, weights)
            assert array.check() == [], step
            edges = array.export()
            assert np.array_equal(edges.keys, model.keys) and np.array_equal(edges.weights, model.weights)
            assert array.has_edge(model.keys).all()
            begun += array.migrating and not before
            shrank += array._contents.layout.n_leaves < n_leaves
    assert begun >= 1 and shrank >= 1


def test_no_batch_pays_for_shrinking() -> None:
    array = loaded(400_000, 1 << 14, seed=41)
    keys = np.random.default_rng(42).permutation(array.export().keys)
    shrank, most = 0, 0
    for begin in range(0, 360_000, 1000):
        before = n_slots(array)
        moved = array.apply(deleted(keys[begin : begin + 1000])).slots_moved
        most = max(most, moved)
        shrank += n_slots(array) < before
    assert 3 <= shrank <= 6
    # Twenty per update, a leaf more, and the usual windows: nowhere near the edges that there are.
    assert most <= 25 * 1000
    assert array.check() == []


def test_an_array_that_shrinks_grows_again_where_edges_come_back() -> None:
    array = loaded(400_000, 1 << 14, seed=43)
    keys = np.random.default_rng(44).permutation(array.export().keys)
    begin = 0
    while not array.migrating:
        array.apply(deleted(keys[begin : begin + 1000]))
        begin += 1000
    held = n_slots(array)
    with thresholds(migrated=1, divided=10**9):
        while array.migrating:
            begin -= 1000
            assert array.apply(EdgeBatch(keys[begin : begin + 1000], np.ones(1000, np.uint8))).slots_moved < 40_000
            assert array.check() == []
            if not array._migration.shrinks:
                break
    assert n_slots(array) == held and array.migrating
    while array.migrating:
        begin -= 1000
        array.apply(EdgeBatch(keys[begin : begin + 1000], np.ones(1000, np.uint8)))
    assert np.array_equal(array.export().keys, np.sort(keys[begin:]))
    assert array.check() == []


@pytest.mark.parametrize("again", ["load", "insert"])
def test_leaves_that_are_given_back_may_be_used_again_at_once(again: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, give_back = threading.Event(), slot_memory.SlotMemory.give_back

    def slowly(self: slot_memory.SlotMemory, first: int, last: int) -> bool:
        begun.set()
        time.sleep(0.01)
        return give_back(self, first, last)

    monkeypatch.setattr(slot_memory.SlotMemory, "give_back", slowly)
    monkeypatch.setattr(slot_memory, "_PIECE_LEAVES", 64)
    array = loaded(200_000, 1 << 14, seed=48)
    edges = array.export()
    keys = np.random.default_rng(49).permutation(edges.keys)
    n_leaves, begin = array._contents.layout.n_leaves, 0
    while array._contents.layout.n_leaves == n_leaves:
        array.apply(deleted(keys[begin : begin + 1000]))
        begin += 1000
    if array._contents.memory.reservation is not None:
        assert begun.wait(60)
    if again == "load":
        array.load(edges)
    else:
        array.apply(EdgeBatch(keys[:begin], np.ones(begin, np.uint8)))
    time.sleep(0.03)
    assert np.array_equal(array.export().keys, edges.keys)
    assert array.check() == []


@pytest.mark.sample(among="an array shrinks")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_shrinking_by_and_by_gives_memory_back_too() -> None:
    array = loaded(2_000_000, 1 << 14, seed=45)
    keys = np.random.default_rng(46).permutation(array.export().keys)
    array.apply(deleted(keys[:10_000]))
    place = place_of(array)
    before, held = resident_bytes(*place), n_slots(array)
    for begin in range(10_000, 1_000_000, 10_000):
        array.apply(deleted(keys[begin : begin + 10_000]))
    while array._migration.pages._work is not None and not array._migration.pages.done:
        pass
    assert n_slots(array) < 0.7 * held
    assert resident_bytes(*place) < before - 8 * 0.25 * held
    # What was given back is used again.
    array.apply(EdgeBatch(keys[:1_000_000], np.ones(1_000_000, np.uint8)))
    assert array.check() == []


def test_memory_while_growing_is_bounded() -> None:
    array = loaded(400_000, 1 << 14, seed=18)
    rng = np.random.default_rng(19)
    grown, most = 0, 0.0
    while grown < 2:
        before = n_slots(array)
        array.apply(EdgeBatch.of(rng.integers(0, 1 << 14, 1000), rng.integers(0, 1 << 14, 1000)))
        grown += n_slots(array) > before
        held = array.memory_bytes()
        assert held["slots"] == 8 * n_slots(array)
        most = max(most, (held["slots"] + held["leaves"]) / array.n_edges)
    # Right after growth: GROW_AT / GROWTH of the slots are full.
    assert 8 / 0.70 < most < (8 + 12 / LEAF_SLOTS) * GROWTH / GROW_AT + 0.1


def resident_bytes(begin: int, n_bytes: int) -> int:
    """Of so much memory from this address on; what is unmapped by now is not resident."""
    begin -= begin % mmap.PAGESIZE
    pages = np.zeros(-(-n_bytes // mmap.PAGESIZE), np.uint8)
    ctypes.CDLL(None).mincore(
        ctypes.c_void_p(begin), ctypes.c_size_t(n_bytes), pages.ctypes.data_as(ctypes.c_void_p)
    )
    return int(np.count_nonzero(pages & 1)) * mmap.PAGESIZE


def place_of(array: PackedMemoryArray) -> tuple[int, int]:
    """Where the slots of an array begin, and how many bytes they have."""
    return array.view().keys.ctypes.data, array.memory_bytes()["slots"]


@pytest.mark.sample(among="an array shrinks")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_shrinking_gives_memory_back() -> None:
    array = loaded(2_000_000, 1 << 14, seed=20)
    keys = array.export().keys
    place = _, held = place_of(array)
    before = resident_bytes(*place)
    array.apply(EdgeBatch(keys, (np.arange(keys.size) % 10 == 0).astype(np.uint8)))
    assert array.memory_bytes()["slots"] < held / 5
    assert before > 0.9 * held and resident_bytes(*place) < held / 2
    assert array.check() == []
    array.apply(EdgeBatch(keys, np.ones(keys.size, np.uint8)))
    assert array.check() == []


@pytest.mark.skipif(sys.platform != "linux", reason="address space is reserved on Linux only")
def test_address_space_is_not_reserved_where_it_is_limited_or_counts_as_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    accounting = tmp_path / "overcommit_memory"
    monkeypatch.setattr(address_space, "_OVERCOMMIT", accounting)
    for limit, mode, reserves in [(-1, "1", True), (-1, "0", True), (-1, "2", False), (1 << 50, "0", False)]:
        accounting.write_text(f"{mode}\n")
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, -1))
        assert (PackedMemoryArray(weighted=False)._contents.memory.reservation is not None) == reserves


@pytest.mark.skipif(sys.platform != "linux", reason="address space is reserved on Linux only")
def test_pages_of_new_leaves_come_ahead_of_their_use() -> None:
    array = loaded(2_000_000, 1 << 14, seed=28)
    rng = np.random.default_rng(29)
    while not array.migrating:
        array.apply(EdgeBatch.of(rng.integers(0, 1 << 14, 20_000), rng.integers(0, 1 << 14, 20_000)))
    begin, end = array._contents.slots.stretch_begin, array._contents.slots.stretch_end
    array._migration.pages.stop()
    array._contents.memory.release(begin, end)
    place = place_of(array)[0] + 8 * begin * LEAF_SLOTS, 8 * (end - begin) * LEAF_SLOTS
    assert resident_bytes(*place) < place[1] // 2
    assert array._contents.memory.populate(begin, end)
    assert resident_bytes(*place) > 0.9 * place[1]
    assert not array._contents.slots.counts[begin:end].any()
    array._contents.memory.release(begin, end)
    assert resident_bytes(*place) < place[1] // 2
    array._migration.pages.get(array._contents.memory, begin, end)
    array.apply(EdgeBatch.of(rng.integers(0, 1 << 14, 20_000), rng.integers(0, 1 << 14, 20_000)))
    array._migration.pages.stop()
    assert array.check() == []


def test_a_migration_waits_for_its_pages_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_memory.Pages, "done", property(lambda self: False))
    array = loaded(20_000, 1 << 10, seed=31)
    rng = np.random.default_rng(32)
    waited, begun_at = 0, 0
    while not array.migrating:
        array.apply(EdgeBatch.of(rng.integers(0, 1 << 10, 10), rng.integers(0, 1 << 10, 10)))
        begun_at = array.n_edges
    begin = array._contents.slots.stretch_begin
    while array.migrating and array._contents.slots.stretch_begin == begin:
        waited += 1
        array.apply(EdgeBatch.of(rng.integers(0, 1 << 10, 10), rng.integers(0, 1 << 10, 10)))
        assert array.check() == []
    assert waited > 10
    assert array.n_edges <= begun_at + begun_at // migration.PATIENCE + 10


@pytest.mark.parametrize("inserts", [1.0, 0.8, 0.5])
def test_a_batch_has_as_few_edges_to_move_as_the_room_allows(inserts: float) -> None:
    """As fast as the part that has not moved fills up, and to the end before it is full; some in any case."""
    array = loaded(60_000, 1 << 11, seed=41)
    rng = np.random.default_rng(42)

    def of(n: int, share: float) -> EdgeBatch:
        return EdgeBatch.of(rng.integers(0, 1 << 11, n), rng.integers(0, 1 << 22, n), rng.random(n) < share)

    while not array.migrating:
        array.apply(of(100, 1.0))
    moved, densest, n_updates = [], 0.0, 200
    while array.migrating:
        live = array.export().keys
        batch = of(n_updates, 1.0)
        gone = rng.random(n_updates) >= inserts
        batch.keys[gone], batch.ops[gone] = rng.choice(live, np.count_nonzero(gone), replace=False), 0
        moved.append(array.apply(batch).slots_moved)
        assert array.check() == []
        if array.migrating and array._contents.slots.stretch_begin > 64:
            slots = array._contents.slots
            densest = max(densest, array._migration.edges_left / (slots.stretch_begin * LEAF_SLOTS))
    assert densest < 0.86
    grown_by = max(2 * inserts - 1, 0.0)
    expected = max(migration.MIGRATED_LEAST, grown_by * GROW_AT / (migration.FULL_AT - GROW_AT))
    assert 0.5 * expected < np.median(moved) / n_updates < 1.5 * expected + 2


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_large_batch_moves_all_edges_when_the_array_grows(threads: int) -> None:
    """What it left behind was crowded, and taken for a hot spot, for which the stretch waited in vain."""
    with thresholds(divided=1000):
        array = PackedMemoryArray(weighted=True, crew=crew(threads))
        array.ensure_vertices(1 << 12)
        rng = np.random.default_rng(43)
        model = Columns(np.empty(0, np.uint64), np.empty(0))
        for _ in range(12):
            keys = pack(rng.integers(0, 1 << 12, 20_000), rng.integers(0, 1 << 22, 20_000))
            weights = rng.integers(1, 100, keys.size).astype(np.float32)
            array.apply(EdgeBatch(keys, np.ones(keys.size, np.uint8), weights))
            model.apply(keys, np.ones(keys.size, np.uint8), weights)
            large = keys.size * migration.LARGE_SHARE >= array.n_edges
            assert not (large and array.migrating)
            assert not array._migration.hot_spot.there
            assert array.check() == []
        edges = array.export()
        assert np.array_equal(edges.keys, model.keys) and np.array_equal(edges.weights, model.weights)


def test_a_large_batch_ends_a_migration() -> None:
    for n in (3000, 30_000):
        array = loaded(20_000, 1 << 10, seed=21)
        rng = np.random.default_rng(22)
        while not array.migrating:
            array.apply(EdgeBatch.of(rng.integers(0, 1 << 10, 50), rng.integers(0, 1 << 10, 50)))
        array.apply(EdgeBatch.of(np.full(n, 3), 2**20 + np.arange(n)))
        assert not array.migrating
        assert array.check() == []


def test_a_left_part_that_becomes_sparse_is_spread_at_once() -> None:
    array = loaded(20_000, 1 << 10, seed=23)
    rng = np.random.default_rng(24)
    with thresholds(migrated=1):
        while not array.migrating:
            array.apply(EdgeBatch.of(rng.integers(0, 1 << 10, 50), rng.integers(0, 1 << 10, 50)))
        for _ in range(60):
            if not array.migrating:
                break
            keys = array.export().keys[: array._migration.edges_left]
            array.apply(EdgeBatch(keys[np.arange(keys.size) % 8 == 0], np.zeros(keys[::8].size, np.uint8)))
            assert array.check() == []
    assert not array.migrating


def left(array: PackedMemoryArray) -> list[np.ndarray]:
    """Everything that a batch leaves in an array, slot by slot; what lies in gaps means nothing."""
    slots, rows = array._contents.slots, array._contents.rows
    live = np.flatnonzero(np.arange(slots.keys.size) % LEAF_SLOTS < np.repeat(slots.counts, LEAF_SLOTS))
    stretch = np.arange(slots.stretch_begin, slots.stretch_end)
    heads = np.delete(slots.heads, stretch) if array.migrating else slots.heads
    full = np.flatnonzero(rows.degrees)
    bounds = np.array(
        [slots.stretch_begin, slots.stretch_end, array._migration.edges_left if array.migrating else 0]
    )
    weights = slots.weights[live] if array.weighted else slots.weights
    return [slots.keys[live], weights, slots.counts, heads, rows.leaf[full], rows.degrees, bounds]


def reported(report: ChangeReport) -> list[np.ndarray]:
    parts = [report.inserted, report.overwritten, report.deleted]
    columns = [part.keys for part in parts] + [part.weights for part in parts]
    columns += [report.absent, report.overwritten_old, np.array([report.slots_moved])]
    return [column for column in columns if column is not None]


def assert_alike(arrays: list[PackedMemoryArray], what: Callable[[PackedMemoryArray], list[np.ndarray]]) -> None:
    first = what(arrays[0])
    for other in arrays[1:]:
        for one, two in zip(first, what(other), strict=True):
            assert one.tobytes() == two.tobytes()


@pytest.mark.sample(12)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", ["random", "hub", "one leaf", "ascending", "descending", "sliding window"])
@pytest.mark.parametrize("piece", [1, 60, 1000])
def test_any_number_of_threads_leaves_the_same_bits(shape: str, piece: int, weighted: bool) -> None:
    """Through growth, hot spots and shrinking, with batches that repeat keys, are in order, or name few leaves."""
    rng = np.random.default_rng(25)
    keys = np.unique(pack(rng.integers(0, 100, 9000), rng.integers(0, 2**31, 9000)))
    arrays = [PackedMemoryArray(weighted=weighted, crew=crew(threads)) for threads in THREADS]
    with thresholds(divided=piece, crowded=16):
        for array in arrays:
            array.ensure_vertices(100)
            array.load(EdgeList(keys, np.ones(keys.size, np.float32) if weighted else None))
        assert_alike(arrays, left)
        for step in range(30):
            if step < 20:
                new, _ = shapes(100)[shape](rng, step, 2000 if step % 3 else 300)
                batch = np.concatenate([new, new[:100], rng.choice(keys, 400)])
                ops = (
                    rng.integers(0, 2, batch.size).astype(np.uint8)
                    if step % 4 == 0
                    else np.ones(batch.size, np.uint8)
                )
            else:
                batch = rng.choice(arrays[0].export().keys, arrays[0].n_edges // 5)
                ops = np.zeros(batch.size, np.uint8)
            weights = rng.random(batch.size).astype(np.float32)
            order = np.argsort(batch, kind="stable") if step % 7 == 5 else rng.permutation(batch.size)
            updates = EdgeBatch(batch[order], ops[order], weights[order] if weighted else None)
            reports = [reported(array.apply(updates)) for array in arrays]
            for report in reports[1:]:
                assert all(one.tobytes() == two.tobytes() for one, two in zip(reports[0], report, strict=True))
            assert_alike(arrays, left)
            assert all(array.check() == [] for array in arrays)


def test_a_large_load_is_the_same_for_any_number_of_threads() -> None:
    """Several pieces of keys and leaves; a row that spans them."""
    rng = np.random.default_rng(26)
    src = np.concatenate([rng.integers(0, 5000, 200_000), np.full(200_000, 2500)])
    keys = np.unique(pack(src, rng.integers(0, 2**31, src.size)))
    weights = rng.random(keys.size).astype(np.float32)
    arrays = [PackedMemoryArray(weighted=True, crew=crew(threads)) for threads in THREADS]
    for array in arrays:
        array.ensure_vertices(5001)
        array.load(EdgeList(keys, weights))
        array.load(EdgeList(keys[::2], weights[::2]))
        array.load(EdgeList(keys, weights))
        assert array.check() == []
        assert np.array_equal(array.export().keys, keys) and np.array_equal(array.export().weights, weights)
        for bad, at in (
            (np.append(keys, keys[-1]), keys.size),
            (np.append(keys[:-1], pack(5001, 0)), keys.size - 1),
        ):
            with pytest.raises(ValueError, match=f"edge {at} of"):
                array.load(EdgeList(bad, np.ones(bad.size, np.float32)))
    assert_alike(arrays, left)


@nb.njit(nogil=True)
def planned(slots, edges_left, edges_wanted):  # type: ignore[no-untyped-def]
    return stretch.plan_left(slots, edges_left, edges_wanted)


def test_billions_of_edges_are_spread_into_new_leaves_by_moves() -> None:
    """As a batch has them spread that is large beside an array of a hundred million leaves: sizes multiplied by
    each other have more than 64 bits. (Leaves hold more than they can, so that so few have as many edges.)"""
    none, n_before, n_leaves, held = np.empty(0, np.uint64), 100_000, 120_000, 1 << 30
    counts = np.zeros(n_leaves, np.int32)
    counts[:n_before] = held
    slots = Slots(none, np.empty(0, np.float32), counts, none, none, n_before, n_leaves)
    edges = n_before * held
    move = planned(slots, edges, 20 * edges)
    assert (move.begin, move.end) == (n_before, n_leaves)
    assert move.edges == pytest.approx(edges * (n_leaves - n_before) / n_leaves)
    few = planned(slots, edges, edges // 100)
    assert few.end - few.begin == n_leaves // 100
    assert few.edges == pytest.approx(edges // 100)


# All or nothing.


def failing_allocations(monkeypatch: pytest.MonkeyPatch, at: int) -> list[int]:
    """Let the at-th allocation of the array module fail; returns a list that grows with each allocation."""
    calls: list[int] = []
    real_empty, real_zeros = np.empty, np.zeros

    def counted(make: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(*arguments: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == at:
                raise MemoryError
            return make(*arguments, **options)

        return allocate

    monkeypatch.setattr(module.np, "empty", counted(real_empty))
    monkeypatch.setattr(module.np, "zeros", counted(real_zeros))
    return calls


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("op", [0, 1])
@pytest.mark.parametrize("reserved", [True, False])
def test_out_of_memory_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, weighted: bool, op: int, reserved: bool
) -> None:
    if not reserved:
        monkeypatch.setattr(slot_memory, "reserve", lambda n_bytes: None)
    rng = np.random.default_rng(6)
    keys = np.unique(pack(rng.integers(0, 50, 900), rng.integers(0, 1000, 900)))
    weights = rng.random(keys.size).astype(np.float32)
    batch = EdgeBatch(
        keys[: keys.size * 9 // 10] if op == 0 else pack(rng.integers(0, 50, 900), rng.integers(0, 1000, 900)),
        np.full(keys.size * 9 // 10 if op == 0 else 900, op, np.uint8),
    )
    failures = 0
    for at in range(1, 100):
        array = PackedMemoryArray(weighted=weighted)
        array.ensure_vertices(50)
        array.load(EdgeList(keys, weights if weighted else None))
        degrees = array.view().degrees.copy()
        with monkeypatch.context() as patch:
            calls = failing_allocations(patch, at)
            try:
                array.apply(batch)
            except MemoryError:
                failed = True
            else:
                failed = False
        if not failed:
            assert len(calls) < at
            break
        failures += 1
        assert array.check() == []
        edges = array.export()
        assert np.array_equal(edges.keys, keys)
        assert edges.weights is None or np.array_equal(edges.weights, weights)
        assert np.array_equal(array.view().degrees, degrees)
        array.apply(batch)
        assert array.check() == []
    assert failures > (25 if not reserved else 20)


@pytest.mark.parametrize("reserved", [True, False])
def test_out_of_memory_while_loading_changes_nothing(monkeypatch: pytest.MonkeyPatch, reserved: bool) -> None:
    if not reserved:
        monkeypatch.setattr(slot_memory, "reserve", lambda n_bytes: None)
    array = loaded(900, 50, seed=26)
    before = array.export().keys
    more = loaded(1500, 50, seed=27).export()
    for at in range(1, 20):
        with monkeypatch.context() as patch:
            calls = failing_allocations(patch, at)
            try:
                array.load(more)
            except MemoryError:
                failed = True
            else:
                failed = False
        if not failed:
            assert len(calls) < at
            break
        assert array.check() == []
        assert np.array_equal(array.export().keys, before)
    assert np.array_equal(array.export().keys, more.keys)
    assert (at > 3) == (not reserved)


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_batch_is_whole_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "DIVIDED_MOVES_MIN", 1)
    monkeypatch.setattr(slot_memory, "_PIECE_LEAVES", 1)
    rng = np.random.default_rng(28)
    one = PackedMemoryArray(weighted=False)
    monkeypatch.setattr(module, "PIECE_UPDATES", 10)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        two = PackedMemoryArray(weighted=False, crew=Team(4).crew(4))
        for _ in range(40):
            batch = EdgeBatch(pack(rng.integers(0, 50, 400), rng.integers(0, 10_000, 400)), np.ones(400, np.uint8))
            for array in (one, two):
                array.ensure_vertices(50)
                array.apply(batch)
            assert two.check() == []
    assert np.array_equal(one.export().keys, two.export().keys)


def test_pages_come_when_they_are_touched_where_a_thread_finds_no_address_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*given: object, **named: object) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(slot_memory, "_PIECE_LEAVES", 1)
    array = loaded(10_000, 100, seed=50)
    pages, memory = slot_memory.Pages(), array._contents.memory
    asked: list[int] = []
    monkeypatch.setattr(slot_memory.SlotMemory, "populate", lambda self, first, last: asked.append(first))
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", refused)
        pages.get(memory, 0, array._contents.layout.n_leaves)
        assert pages.done
    pages.close()
    assert asked == []


def test_an_array_goes_on_when_its_team_has_ended() -> None:
    team = Team(3)
    array = PackedMemoryArray(weighted=False, crew=team.crew())
    array.ensure_vertices(100)
    dst = np.arange(20_000)
    array.apply(EdgeBatch.of(dst % 100, dst))
    team.close()
    array.close()
    array.close()
    array.apply(EdgeBatch.of(dst % 100, dst + 20_000))
    assert array.check() == []
    assert array.n_edges == 40_000


def test_a_row_that_does_not_exist_is_refused() -> None:
    array = PackedMemoryArray(weighted=False)
    array.ensure_vertices(3)
    array.apply(EdgeBatch.of([0], [1]))
    for row in (3, 2**32 - 1):
        with pytest.raises(ValueError, match=f"row {row} of 3"):
            array.apply(EdgeBatch.of([0, row], [2, 0]))
    assert as_dict(array.export()) == {(0, 1): 1.0}
    with pytest.raises(IndexError, match="vertex 3 of 3"):
        array.rows(np.array([3], np.uint32))


def test_load_refuses_what_is_not_an_edge_list() -> None:
    array = PackedMemoryArray(weighted=True)
    array.ensure_vertices(3)
    array.apply(EdgeBatch.of([0], [1], weights=[2.0]))
    one = np.ones(2, np.float32)
    for keys, weights in [
        (pack([1, 0], [0, 0]), one),
        (pack([1, 1], [0, 0]), one),
        (pack([1, 3], [0, 0]), one),
        (pack([1, 2], [0, 0]), None),
    ]:
        with pytest.raises(ValueError, match="edge"):
            array.load(EdgeList(keys, weights))
    assert as_dict(array.export()) == {(0, 1): 2.0}


def test_an_unweighted_array_holds_no_weights() -> None:
    array = loaded(1000, 100, seed=7)
    assert array.view().weights.size == 0
    assert array.rows(np.array([1], np.uint32)).weights is None
    with pytest.raises(LookupError, match="no weights"):
        array.weights_of(np.empty(0, np.uint64))


def test_missing_weights_mean_one() -> None:
    array = PackedMemoryArray(weighted=True)
    array.ensure_vertices(100)
    src = np.arange(100)
    array.apply(EdgeBatch.of(src[::-1], src))
    assert (array.export().weights == 1).all()


def test_columns_that_kernels_cannot_take_as_they_are() -> None:
    keys = np.repeat(pack(np.arange(50), np.arange(50)), 2)[::2]
    ops = np.ones(50, np.uint8)
    ops.flags.writeable = False
    array = PackedMemoryArray(weighted=False)
    array.ensure_vertices(50)
    array.apply(EdgeBatch(keys, ops))
    assert array.n_edges == 50
    assert array.has_edge(np.frombuffer(keys.tobytes(), np.uint64)).all()


def test_only_rows_whose_first_key_goes_are_looked_for_anew() -> None:
    array = loaded(20_000, 2_000, seed=3)
    rng = np.random.default_rng(3)
    for _ in range(20):
        there = array.export().keys
        plan = array.prepare(EdgeBatch(rng.permutation(there)[:200], np.zeros(200, np.uint8)))
        gone = array.export().keys[np.isin(there, array._work.updates.keys[:200])]
        first = there[np.unique(there >> np.uint64(32), return_index=True)[1]]
        task = array.task(plan)
        assert task is not None
        written = committing.commit(task, crew(1))
        begin, end = written.lists[0, committing.ROWS], written.lists[0, committing.ROWS_END]
        listed = array._work.pending.rows[begin:end].copy()
        array.committed(plan, written)
        assert listed.tolist() == (np.intersect1d(gone, first) >> np.uint64(32)).tolist()
        assert array.check() == []


# Memory.


def test_memory_per_edge_is_bounded_and_stated() -> None:
    array = loaded(500_000, 1 << 12, seed=8)
    held = array.memory_bytes()
    assert set(held) == {"slots", "leaves", "rows", "scratch"}
    assert 8 / ROOT_UPPER <= held["slots"] / array.n_edges <= 8 / 0.7
    assert held["scratch"] == 0 or held["scratch"] < 100_000
    keys = array.export().keys
    array.apply(EdgeBatch(keys[::2], np.zeros(keys[::2].size, np.uint8)))
    assert array.memory_bytes()["slots"] / array.n_edges <= 8 / ROOT_LOWER
    array.apply(EdgeBatch(keys, np.zeros(keys.size, np.uint8)))
    assert array.n_edges == 0
    assert array.memory_bytes()["slots"] == 8 * LEAF_SLOTS


def test_vertices_without_edges_cost_constant_time_each() -> None:
    array = PackedMemoryArray(weighted=False)
    moves = 0
    for n in range(1, 5000):
        before = array.view().degrees
        array.ensure_vertices(n)
        moves += array.view().degrees is not before
    assert array.n_vertices == 4999
    assert moves < 40


# The geometry.


@given(n_edges=st.integers(0, 10**10))
@settings(deadline=None)
def test_a_fresh_layout_is_within_its_own_bounds(n_edges: int) -> None:
    layout = Layout.holding(n_edges)
    assert layout.edges_min <= n_edges <= layout.edges_max
    assert layout.resized(n_edges) is layout
    assert Layout.holding(n_edges + 1).n_leaves >= layout.n_leaves


@given(n_leaves=st.integers(1, 10**8), share=st.floats(0, 3))
@settings(deadline=None)
def test_a_resized_layout_is_within_its_own_bounds(n_leaves: int, share: float) -> None:
    layout = Layout(n_leaves)
    n_edges = int(share * layout.n_slots)
    resized = layout.resized(n_edges)
    assert resized.edges_min <= n_edges <= resized.edges_max
    assert (resized.n_leaves > n_leaves) == (n_edges > layout.edges_max)
    assert (resized.n_leaves < n_leaves) == (n_edges < layout.edges_min)


@given(n_leaves=st.integers(1, 10**8))
@settings(deadline=None)
def test_bounds_tighten_from_leaf_to_root(n_leaves: int) -> None:
    layout = Layout(n_leaves)
    assert layout.lower.size == layout.upper.size == layout.height + 1
    assert (np.diff(layout.lower) > 0).all()
    assert (np.diff(layout.upper) < 0).all()
    assert 1 << layout.height >= n_leaves


def test_too_many_leaves_are_refused() -> None:
    with pytest.raises(MemoryError, match="at most"):
        Layout.holding(2**32 * LEAF_SLOTS)


def test_check_sees_that_redistributed_windows_are_even() -> None:
    array = loaded(20_000, 300, seed=30)
    seen = 0
    for step in range(200):
        array.apply(EdgeBatch.of(np.full(10, 77), 2**20 + 10 * step + np.arange(10)))
        if array._n_windows:
            seen += 1
            window = array._work.windows
            begin, end = int(window.begin[0]), int(window.end[0])
            if array._contents.slots.counts[begin + 1] <= LEAF_SLOTS - 2:
                array._contents.slots.counts[begin : begin + 2] += np.array([-2, 2], np.int32)
                assert any("evenly" in problem for problem in array.check())
                array._contents.slots.counts[begin : begin + 2] += np.array([2, -2], np.int32)
            assert array.check() == []
            if end - begin < array._contents.layout.n_leaves:
                array._contents.layout.upper[:] -= 1
                assert any("out of bounds" in problem for problem in array.check())
                array._contents.layout.upper[:] += 1
    assert seen > 5


# Walking rows in place.


@nb.njit(cache=False)
@spliced
def _walk(rows: RowView, u: int, neighbors: np.ndarray) -> int:
    n = 0
    for slot, stop in runs(rows, u):
        for i in range(slot, stop):
            neighbors[n] = rows.keys[i] & LOW
            n += 1
    return n


def test_kernels_walk_rows_in_place() -> None:
    array = loaded(20_000, 300, seed=10)
    rng = np.random.default_rng(11)
    keys = rng.permutation(array.export().keys)[:15_000]
    array.apply(EdgeBatch(keys, np.zeros(keys.size, np.uint8)))
    vertices = np.arange(300, dtype=np.uint32)
    rows = array.rows(vertices)
    neighbors = np.empty(300, np.uint32)
    for u in vertices.tolist():
        n = _walk(array.view(), u, neighbors)
        assert neighbors[:n].tolist() == rows.neighbors[rows.offsets[u] : rows.offsets[u + 1]].tolist()


# The check itself must be able to fail.


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda rows: rows.keys.__setitem__(slice(0, 2), rows.keys[[1, 0]]), "order"),
        (lambda rows: rows.counts.__setitem__(1, rows.counts[1] - 1), "add up"),
        (lambda rows: rows.counts.__setitem__(slice(0, 2), [32, 2 * rows.counts[0] - 32]), ""),
        (lambda rows: rows.degrees.__setitem__(5, rows.degrees[5] + 1), "degrees"),
        (lambda rows: rows.row_leaf.__setitem__(5, rows.row_leaf[5] + 1), "row 5"),
    ],
)
def test_check_notices_damage(damage: Callable[[RowView], None], problem: str) -> None:
    array = loaded(2000, 50, seed=12)
    assert array.check() == []
    damage(array.view())
    assert any(problem in found for found in array.check())
