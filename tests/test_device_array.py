"""Packed arrays on the host, on the emulated device and on a real one: the same histories, the same answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import cuda_emulator
import numpy as np
import pytest
from conftest import needs_device
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from packed_array_machine import VERTICES, ArrayMachine, Leaves, assert_moved_leaves_are_within_bounds

from graphtide.gpma.edges import MAX_VERTICES, ChangeReport, EdgeBatch, EdgeList, SubCSR, pack
from graphtide.gpma.host.array import PackedMemoryArray
from graphtide.gpma.layout import LEAF_SLOTS

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def leaves_of(heads: Any, counts: Any, slots: int, layout: Any) -> Leaves:
    return Leaves(heads, counts, slots, layout.lower, layout.upper, layout.edges_min, layout.edges_max)


class HostSide:
    largest = 1500
    settings = settings(max_examples=40, stateful_step_count=12, deadline=None, suppress_health_check=QUIET)

    def array(self, *, weighted: bool) -> Any:
        return PackedMemoryArray(weighted=weighted)

    def apply(self, array: Any, batch: EdgeBatch) -> ChangeReport:
        return array.apply(batch)

    def load(self, array: Any, edges: EdgeList) -> None:
        array.load(edges)

    def load_unsorted(self, array: Any, keys: Any, weights: Any) -> None:
        last = np.unique(keys[::-1], return_index=True)[1]
        chosen = keys.size - 1 - last
        array.load(EdgeList(keys[chosen], None if weights is None else weights[chosen]))

    def export(self, array: Any) -> EdgeList:
        return array.export()

    def rows(self, array: Any, vertices: Any) -> SubCSR:
        return array.rows(vertices)

    def has_edge(self, array: Any, keys: Any) -> Any:
        return array.has_edge(keys)

    def weights_of(self, array: Any, keys: Any) -> Any:
        return array.weights_of(keys)

    def leaves(self, array: Any) -> Leaves | None:
        if array.migrating:
            return None
        slots, layout = array._contents.slots, array._contents.layout
        return leaves_of(slots.heads.copy(), slots.counts.copy(), LEAF_SLOTS, layout)


class DeviceSide:
    """A device, emulated or real, by its module ``cupy``."""

    def __init__(self, cupy: ModuleType, largest: int, options: settings) -> None:
        from graphtide.gpma.device.array import DevicePackedArray
        from graphtide.gpma.device.geometry import LEAF_SLOTS

        self.cupy, self.largest, self.settings = cupy, largest, options
        self.leaf_slots = LEAF_SLOTS
        self.array = DevicePackedArray
        self.n_applied = 0

    def apply(self, array: Any, batch: EdgeBatch) -> ChangeReport:
        self.n_applied += 1
        if self.n_applied % 2:  # batches come from the host, or lie on the device already
            columns = (batch.keys, batch.ops, batch.weights)
            batch = EdgeBatch(*(None if column is None else self.cupy.asarray(column) for column in columns))
        return array.apply(batch).sorted()

    def load(self, array: Any, edges: EdgeList) -> None:
        array.load(edges)

    def load_unsorted(self, array: Any, keys: Any, weights: Any) -> None:
        array.load_unsorted(keys, weights)

    def export(self, array: Any) -> EdgeList:
        edges = array.export()
        return EdgeList(self.host(edges.keys), self.host(edges.weights))

    def rows(self, array: Any, vertices: Any) -> SubCSR:
        rows = array.rows(vertices)
        columns = (rows.vertices, rows.offsets, rows.neighbors, rows.weights)
        return SubCSR(*(self.host(column) for column in columns))

    def has_edge(self, array: Any, keys: Any) -> Any:
        return self.host(array.has_edge(keys))

    def weights_of(self, array: Any, keys: Any) -> Any:
        return self.host(array.weights_of(keys))

    def leaves(self, array: Any) -> Leaves:
        slots, layout = array._slots, array._layout
        return leaves_of(self.host(slots.heads), self.host(slots.counts), self.leaf_slots, layout)

    def host(self, column: Any) -> Any:
        return None if column is None else self.cupy.asnumpy(column)


# (largest batch that one kernel applies, share of the edges from which a batch rebuilds the array): as they are,
# and so that small tests go every way.
WAYS = {"as it is": (None, None), "in place": (None, 1e9), "in place, large": (40, 1e9)}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called when the device's modules can be imported, makes the array go this way."""

    def go() -> None:
        from graphtide.gpma.device import array

        for name, value in zip(("SMALL_MAX", "REBUILD_SHARE"), WAYS[request.param], strict=True):
            assert hasattr(array, name)
            if value is not None:
                monkeypatch.setattr(array, name, value)

    return go


def test_host_histories_match_the_model() -> None:
    side = HostSide()
    run_state_machine_as_test(partial(ArrayMachine, side), settings=side.settings)


@pytest.mark.sample(1)
def test_emulated_histories_match_the_model(
    emulated_cupy: ModuleType, way: Callable[[], None], run_long: bool, seed: int
) -> None:
    way()
    cuda_emulator.seed(seed)
    options = settings(
        max_examples=1000 if run_long else 25,
        stateful_step_count=10,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],  # other orders of threads would fail when it shrinks
    )
    side = DeviceSide(emulated_cupy, 1500, options)
    run_state_machine_as_test(partial(ArrayMachine, side), settings=side.settings)


@pytest.mark.gpu
def test_device_histories_match_the_model(way: Callable[[], None]) -> None:
    cupy = needs_device()
    way()
    many = settings(max_examples=60, stateful_step_count=12, deadline=None, suppress_health_check=QUIET)
    side = DeviceSide(cupy, 10_000, many)
    run_state_machine_as_test(partial(ArrayMachine, side), settings=side.settings)


# Against NumPy, at sizes where windows nest several levels deep.


@dataclass
class Columns:
    """Sorted columns, changed by NumPy's own sorting and searching."""

    keys: Any
    weights: Any

    def apply(self, batch: EdgeBatch) -> None:
        first_from_behind = np.unique(batch.keys[::-1], return_index=True)[1]
        last = len(batch) - 1 - first_from_behind
        new = last[batch.ops[last] == 1]
        stay = ~np.isin(self.keys, batch.keys)
        keys = np.concatenate([self.keys[stay], batch.keys[new]])
        weights = np.concatenate([self.weights[stay], batch.weights[new]])
        order = np.argsort(keys)
        self.keys, self.weights = keys[order], weights[order]


def awkward_batch(rng: np.random.Generator, present: Any, n_vertices: int, largest: int, step: int) -> EdgeBatch:
    """A batch of one of the shapes that break packed arrays."""
    n = max(1, int(largest * rng.choice([0.0001, 0.001, 0.01, 0.1, 0.3, 1.0])))
    shape = rng.choice(["ascend", "descend", "hub", "present", "delete most", "anywhere", "one leaf"])
    src, dst = rng.integers(0, n_vertices, n), rng.integers(0, n_vertices, n)
    ops = rng.integers(0, 2, n).astype(np.uint8)
    if shape in ("ascend", "descend"):
        src[:] = n_vertices - 1 if shape == "ascend" else 0
        dst = 2**31 + (1 if shape == "ascend" else -1) * (largest * step + np.arange(n))
    elif shape == "hub":
        src[:], dst = n_vertices // 2, rng.integers(0, 2 * largest, n)
    elif shape == "one leaf":
        src[:], dst = n_vertices // 3, 2**30 + rng.permutation(n)
    keys = pack(src, dst)
    if shape in ("ascend", "descend", "one leaf"):
        ops[:] = 1
    if present.size and shape == "present":
        keys = rng.choice(present, n)
    elif present.size and shape == "delete most":
        keys = present[: present.size * 9 // 10 + 1]
        ops = np.zeros(keys.size, np.uint8)
    return EdgeBatch(keys, ops, rng.integers(1, 256, keys.size).astype(np.float32))


def long_history(side: DeviceSide, seed: int, largest: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    n_vertices = int(rng.choice([8, 100, largest]))
    array = side.array(weighted=True)
    array.ensure_vertices(n_vertices)
    model = Columns(np.empty(0, np.uint64), np.empty(0, np.float32))
    for step in range(steps):
        batch = awkward_batch(rng, model.keys, n_vertices, largest, step)
        before, keys_before = side.leaves(array), model.keys
        report = side.apply(array, batch)
        model.apply(batch)
        assert np.array_equal(report.inserted.keys, np.setdiff1d(model.keys, keys_before))
        assert np.array_equal(report.deleted.keys, np.setdiff1d(keys_before, model.keys))
        edges = side.export(array)
        assert np.array_equal(edges.keys, model.keys)
        assert np.array_equal(edges.weights, model.weights)
        assert array.check() == [], step
        assert_moved_leaves_are_within_bounds(before, side.leaves(array))


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", range(6))
def test_emulated_long_histories_match_numpy(
    emulated_cupy: ModuleType, way: Callable[[], None], seed: int, number: int
) -> None:
    way()
    cuda_emulator.seed(seed)
    long_history(DeviceSide(emulated_cupy, 0, settings()), seed + number, largest=6000, steps=20)


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(10))
def test_device_long_histories_match_numpy(way: Callable[[], None], seed: int, number: int) -> None:
    cupy = needs_device()
    way()
    long_history(DeviceSide(cupy, 0, settings()), seed + number, largest=100_000, steps=30)


def test_vertices_beyond_what_kernels_can_number_are_refused(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is room asked for beyond, where an array grows."""
    from graphtide.gpma.device import array as device_array
    from graphtide.gpma.device.state import RowIndex

    array = device_array.DevicePackedArray(weighted=False)
    array.ensure_vertices(7)
    most, asked = (1 << 32) - (1 << 20), []
    with pytest.raises(MemoryError, match=f"room for {most} vertices, not {MAX_VERTICES}"):
        array.ensure_vertices(MAX_VERTICES)
    assert array.n_vertices == 7

    def new_rows(n: int) -> RowIndex:
        asked.append(n)
        raise MemoryError

    monkeypatch.setattr(device_array, "new_rows", new_rows)
    monkeypatch.setattr(RowIndex, "room", 3 << 30)
    with pytest.raises(MemoryError):
        array.ensure_vertices((3 << 30) + 1)
    assert asked == [most]


# What the device tells of a batch.


def heavy_batches(side: DeviceSide, n_batches: int) -> Iterator[Any]:
    """An array of 5,000 edges, after each of some batches that fall into one leaf but for a few."""
    rng = np.random.default_rng(9)
    array = side.array(weighted=False)
    array.ensure_vertices(VERTICES)
    array.load(EdgeList(np.unique(pack(rng.integers(0, VERTICES, 5000), rng.integers(0, 2**31, 5000)))))
    for step in range(n_batches):
        n = 2100 if step % 10 == 9 else 5 + step % 60  # a tile can merge, a block can sort, neither can
        keys = pack(np.full(n, 20), 2**31 + 3000 * step + np.arange(n))
        few = pack(rng.integers(0, VERTICES, 4), 2**31 + 2**30 + step * 4 + np.arange(4))
        before = array.n_edges
        array.apply(EdgeBatch(np.concatenate([keys, few]), np.ones(n + 4, np.uint8)))
        assert array.n_edges == before + n + 4
        yield array


def test_no_status_can_be_taken_for_another(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is late on the emulated device: but a number that was told once must not be waited for again."""
    from graphtide.gpma.device import array as module
    from graphtide.gpma.device.update import UpdateKernels

    monkeypatch.setattr(module, "UNTRIED", 0)
    waited_for = []
    wait = UpdateKernels.wait

    def recorded(kernels: UpdateKernels) -> int:
        waited_for.append(kernels._sequence)
        return wait(kernels)

    monkeypatch.setattr(UpdateKernels, "wait", recorded)
    for array in heavy_batches(DeviceSide(emulated_cupy, 0, settings()), 30):
        assert array.check() == []
    assert len(waited_for) > 40  # more than one for a batch, by and by
    assert len(set(waited_for)) == len(waited_for)


@pytest.mark.gpu
def test_heavy_batches_lose_nothing() -> None:
    for step, array in enumerate(heavy_batches(DeviceSide(needs_device(), 0, settings()), 1000)):
        assert step % 50 or array.check() == []


# A plan, its launch and its end.


def batches(rng: np.random.Generator) -> dict[str, EdgeBatch]:
    """Batches for an array of 4,000 edges in 40 rows, by the way that they go."""

    def batch(src: Any, dst: Any, ops: Any = None) -> EdgeBatch:
        return EdgeBatch.of(src, dst, ops, rng.integers(1, 9, len(src)).astype(np.float32))

    def anywhere(n: int, ops: Any = None) -> EdgeBatch:
        return batch(rng.integers(0, VERTICES, n), rng.integers(0, 2**31, n), ops)

    return {
        "small": anywhere(40),
        "large": anywhere(300, rng.integers(0, 2, 300).astype(np.uint8)),
        "into one leaf": batch(np.full(100, 3), 2**31 + rng.permutation(100)),
        "large into one leaf": batch(np.full(300, 3), 2**31 + rng.permutation(300)),
        "growth": anywhere(3000),
        "shrink": batch(np.repeat(np.arange(VERTICES), 100), np.tile(np.arange(100), VERTICES), np.zeros(4000)),
    }


WAYS_OF_BATCHES = tuple(batches(np.random.default_rng(0)))


def test_waiting_lets_other_threads_run_python(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphtide.gpma.device import waiting

    monkeypatch.setattr(waiting, "LOOKS_MAX", 1 << 31)  # some seconds: then it would give up
    told = waiting.Told(3, emulated_cupy.cuda.Stream())
    waits = threading.Event()

    def tell() -> None:
        waits.wait()
        for word in (2, 0, 1):
            told.words[word] = 7 << 32 | 10 + word

    thread = threading.Thread(target=tell)
    thread.start()
    waits.set()
    told.wait(7)
    thread.join()
    assert [told.word(word) for word in range(3)] == [10, 11, 12]
    monkeypatch.setattr(waiting, "LOOKS_MAX", 100)
    with pytest.raises(RuntimeError, match="without telling"):
        told.wait(8)


def full_array(side: DeviceSide, stream: Any = None) -> Any:
    """An array of 4,000 edges in 40 rows."""
    array = side.array(weighted=True, stream=stream)
    array.ensure_vertices(VERTICES)
    keys = pack(np.repeat(np.arange(VERTICES), 100), np.tile(np.arange(100), VERTICES))
    array.load(EdgeList(keys, np.random.default_rng(5).integers(1, 9, keys.size).astype(np.float32)))
    return array


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", WAYS_OF_BATCHES)
def test_a_plan_changes_nothing_until_it_is_launched_which_takes_no_memory(
    emulated_cupy: ModuleType, way: Callable[[], None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    way()
    side = DeviceSide(emulated_cupy, 0, settings())
    array, expected = full_array(side), full_array(side)
    batch = batches(np.random.default_rng(5))[name]
    before = side.export(array)
    array.prepare(batch)
    array.ensure_vertices(2 * VERTICES)
    array.withdraw_vertices(VERTICES)
    assert array.check() == []
    assert np.array_equal(side.export(array).keys, before.keys)
    assert np.array_equal(side.export(array).weights, before.weights)
    plan = array.prepare(batch)
    waited = mock.Mock(wraps=array.kernels.wait)
    monkeypatch.setattr(array.kernels, "wait", waited)
    with cuda_emulator.failing_allocation(0):
        array.launch(plan)
    waited.assert_not_called()
    report = array.finish(plan).sorted()
    wanted = expected.apply(batch).sorted()
    for part in ("inserted", "overwritten", "deleted"):
        assert np.array_equal(getattr(report, part).keys, getattr(wanted, part).keys)
        assert np.array_equal(getattr(report, part).weights, getattr(wanted, part).weights)
    assert array.check() == []
    assert np.array_equal(side.export(array).keys, side.export(expected).keys)


def test_whoever_reads_behind_a_batch_knows_how_sparse_leaves_are(emulated_cupy: ModuleType) -> None:
    """Also where there was never the memory for a smaller array: long rows are looked for as far as that says."""
    from graphtide.gpma.device.geometry import LEAF_LEAST

    side = DeviceSide(emulated_cupy, 0, settings())
    array, rng = full_array(side), np.random.default_rng(5)
    keys = side.export(array).keys
    while keys.size > 500:
        goes = rng.permutation(keys.size) < keys.size * 3 // 10
        plan = array.prepare(EdgeBatch(keys[goes], np.zeros(np.count_nonzero(goes), np.uint8)))
        array.launch(plan)
        array.stream.synchronize()
        assert side.leaves(array).counts.min() >= array.kernels.state["leaf_least"][0]
        with cuda_emulator.failing_allocation(0):
            array.finish(plan)
        keys = keys[~goes]
    assert array.kernels.state["leaf_least"][0] < LEAF_LEAST
    assert array.check() == []


def test_a_batch_that_was_given_up_is_not_overwritten_while_it_is_copied(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = full_array(DeviceSide(emulated_cupy, 0, settings()))
    batch = batches(np.random.default_rng(5))["small"]
    waited = mock.Mock()
    monkeypatch.setattr(emulated_cupy.cuda.Stream, "synchronize", waited)
    array.apply(batch)
    array.prepare(batch)
    waited.assert_not_called()
    array.prepare(batch)
    waited.assert_called_once()
    array._staging.columns(3, weighted=True)
    assert waited.call_count == 2
    array._staging.columns(3, weighted=True)
    assert waited.call_count == 2, "nothing is being copied any more"


@pytest.mark.sample(1)
def test_arrays_that_share_a_stream_are_launched_before_either_has_ended(
    cupy: ModuleType, way: Callable[[], None]
) -> None:
    way()
    side = DeviceSide(cupy, 0, settings())
    stream = cupy.cuda.Stream(non_blocking=True)
    arrays = [full_array(side, stream) for _ in range(2)]
    alone = full_array(side)
    for batch in batches(np.random.default_rng(5)).values():
        plans = [array.prepare(batch) for array in arrays]
        for array, plan in zip(arrays, plans, strict=True):
            array.launch(plan)
        wanted = alone.apply(batch).sorted()
        for array, plan in zip(arrays, plans, strict=True):
            assert np.array_equal(array.finish(plan).sorted().inserted.keys, wanted.inserted.keys)
            assert array.check() == []
            assert np.array_equal(side.export(array).keys, side.export(alone).keys)


# All or nothing.


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", WAYS_OF_BATCHES)
def test_a_failed_allocation_changes_nothing(
    emulated_cupy: ModuleType, way: Callable[[], None], name: str
) -> None:
    way()
    side = DeviceSide(emulated_cupy, 0, settings())
    rng = np.random.default_rng(5)
    array = full_array(side)
    batch = batches(rng)[name]
    before = side.export(array)
    failures = 0
    while True:
        try:
            with cuda_emulator.failing_allocation(failures):
                report = array.apply(batch)
            break
        except MemoryError:
            failures += 1
        assert array.check() == []
        assert array.n_edges == len(before)
        assert np.array_equal(side.export(array).keys, before.keys)
        assert np.array_equal(side.export(array).weights, before.weights)
    assert failures > 0
    expected = PackedMemoryArray(weighted=True)
    expected.ensure_vertices(VERTICES)
    expected.load(before)
    wanted = expected.apply(batch)
    for part in ("inserted", "overwritten", "deleted"):
        assert np.array_equal(getattr(report.sorted(), part).keys, getattr(wanted, part).keys)
    assert array.check() == []
    assert np.array_equal(side.export(array).keys, expected.export().keys)
    assert np.array_equal(side.export(array).weights, expected.export().weights)


def test_a_batch_that_names_a_missing_row_changes_nothing(
    emulated_cupy: ModuleType, way: Callable[[], None]
) -> None:
    way()
    side = DeviceSide(emulated_cupy, 0, settings())
    array = side.array(weighted=True)
    array.ensure_vertices(VERTICES)
    rng = np.random.default_rng(6)
    for _ in range(3):
        side.apply(array, EdgeBatch.of(rng.integers(0, VERTICES, 300), rng.integers(0, 900, 300)))
    before = side.export(array)
    for n in (1, 100, 1000):
        src = rng.integers(0, VERTICES, n)
        src[n // 2] = VERTICES
        with pytest.raises(ValueError, match=f"row {VERTICES} of {VERTICES}"):
            side.apply(array, EdgeBatch.of(src, rng.integers(0, 900, n)))
        assert array.check() == []
        assert np.array_equal(side.export(array).keys, before.keys)
        assert np.array_equal(side.export(array).weights, before.weights)


@pytest.mark.gpu
def test_an_array_has_more_slots_than_32_bits_can_number() -> None:
    """2.25 G slots; everything is compared on the device, whose memory must be that of an H200."""
    cupy = needs_device()
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    if cupy.cuda.Device().mem_info[0] < 120e9:
        pytest.skip("takes 120 GB of device memory")
    from graphtide.gpma.device.array import DevicePackedArray

    n, in_row = 1_600_000_000, 16
    number = cupy.arange(n, dtype=np.uint64)
    keys = number >> np.uint64(4) << np.uint64(32) | (number & np.uint64(in_row - 1)) * np.uint64(4)
    del number
    array = DevicePackedArray(weighted=True)
    array.ensure_vertices(n // in_row)
    array.load(EdgeList(keys, cupy.ones(n, np.float32)))
    assert array._layout.n_slots > 1 << 31
    for size in (1000, 100_000, 3_000_000):  # the ways that a batch goes
        new = keys[cupy.unique(cupy.random.RandomState(size).randint(0, n, size))] + np.uint64(1)
        array.apply(EdgeBatch(new, cupy.ones(new.size, np.uint8), cupy.full(new.size, 2, np.float32)))
        assert array.n_edges == n + new.size
        assert bool((array.weights_of(new) == 2).all())
        assert not bool(array.has_edge(new + np.uint64(1)).any())
        assert bool((cupy.diff(array.export().keys.view(np.int64)) > 0).all())
        array.apply(EdgeBatch(new, cupy.zeros(new.size, np.uint8)))
        assert bool((array.export().keys == keys).all())
    last = np.uint64(n // in_row - 1)
    appended = last << np.uint64(32) | cupy.arange(1000, 300_000, dtype=np.uint64)  # wide windows at the end
    array.apply(EdgeBatch(appended, cupy.ones(appended.size, np.uint8)))
    exported = array.export().keys
    assert bool((exported[:n] == keys).all())
    assert bool((exported[n:] == appended).all())
    rows = array.rows(cupy.array([last - np.uint64(1), last], np.uint32))
    assert rows.offsets.tolist() == [0, in_row, 2 * in_row + appended.size]
