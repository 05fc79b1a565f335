"""Launches and copies that compiled code carries out, and batches whose columns are arrays only when asked for."""

from __future__ import annotations

from types import ModuleType

import cuda_emulator
import numpy as np
import pytest

# Each launch writes which one it was, and how many there were before it.
CODE = r"""
struct Said { unsigned* log; unsigned* n; unsigned mark; unsigned unused; };
extern "C" __global__ void write(const __grid_constant__ Said said) { said.log[said.n[0]++] = said.mark; }
extern "C" __global__ void again(const __grid_constant__ Said said) { said.log[said.n[0]++] = said.mark + 100; }
"""
SAID = np.dtype([("log", np.uint64), ("n", np.uint64), ("mark", np.uint32), ("unused", np.uint32)])


def test_what_is_held_is_launched_in_its_order_when_it_begins(emulated_cupy: ModuleType) -> None:
    from graphtide.gpma.device.launching import Launcher

    module = emulated_cupy.RawModule(code=CODE)
    write, again = (module.get_function(name).kernel.ptr for name in ("write", "again"))
    log, n = emulated_cupy.zeros(8, np.uint32), emulated_cupy.zeros(1, np.uint32)
    said = np.array([(log.data.ptr, n.data.ptr, 1, 0)], SAID)
    launcher = Launcher(emulated_cupy.cuda.Stream(), (said,))
    launcher.start(write, 1, 1)
    assert log.tolist()[:2] == [1, 0]
    launcher.hold()
    for kernel in (again, write, again):
        launcher.start(kernel, 1, 1)
    said["mark"] = 2
    assert int(n[0]) == 1
    launcher.begin()
    assert log.tolist()[:5] == [1, 102, 2, 102, 0]
    launcher.start(write, 1, 1)
    assert int(n[0]) == 5


def test_nothing_is_launched_behind_what_the_driver_refuses(emulated_cupy: ModuleType) -> None:
    from graphtide.gpma.device.launching import Copier, Launcher

    module = emulated_cupy.RawModule(code=CODE)
    write = module.get_function("write").kernel.ptr
    log, n = emulated_cupy.zeros(8, np.uint32), emulated_cupy.zeros(1, np.uint32)
    stream = emulated_cupy.cuda.Stream()
    launcher = Launcher(stream, (np.array([(log.data.ptr, n.data.ptr, 1, 0)], SAID),))
    launcher.hold()
    for threads in (1, 4096, 1):
        launcher.start(write, 1, threads)
    with pytest.raises(cuda_emulator.EmulatorError, match="INVALID_VALUE"):
        launcher.begin()
    assert int(n[0]) == 1
    launcher.start(write, 1, 1)
    assert int(n[0]) == 2
    with cuda_emulator.failing_card(0, quiet=False), pytest.raises(RuntimeError):
        Copier(stream).copy(log.data.ptr, np.ones(8, np.uint32).ctypes.data, 32)


@pytest.mark.parametrize("weighted", [True, False])
def test_columns_of_a_batch_become_arrays_when_somebody_asks(emulated_cupy: ModuleType, weighted: bool) -> None:
    from graphtide.gpma.edges import EdgeList
    from graphtide.partition.device_side import DeviceSide

    side = DeviceSide(directed=True, weighted=weighted, in_edges=True, in_weights=True)
    side.ensure_vertices(200)
    there = np.arange(100, 200, dtype=np.uint64)
    loops = there << np.uint64(32) | there
    side.load(EdgeList(loops, np.ones(100, np.float32) if weighted else None))
    batch = side.columns(3, weighted=weighted)
    batch.keys[:], batch.ops[:] = [1 << 32 | 2, 3 << 32 | 1, 8 << 32 | 0], 1
    if batch.weights is not None:
        batch.weights[:] = [5, 6, 7]
    plan = side.prepare(batch)
    side.launch(plan)
    side.finish(plan)
    report = side.report
    assert len(report) == 3 and report.updates._columns is None
    assert report.addresses[1] == 0 or weighted
    asnumpy = emulated_cupy.asnumpy
    assert np.array_equal(asnumpy(report.keys), batch.keys) and np.array_equal(asnumpy(report.ops), batch.ops)
    assert (report.weights is None) != weighted
    if weighted:
        assert asnumpy(report.weights).tolist() == [5, 6, 7]
    turned = report.updates.turned()
    assert asnumpy(turned.keys).tolist() == [2 << 32 | 1, 1 << 32 | 3, 8]
    assert turned.addresses == report.updates.addresses and turned.is_turned
    assert asnumpy(side.in_rows.export().keys).tolist() == [8, 1 << 32 | 3, 2 << 32 | 1, *loops.tolist()]
