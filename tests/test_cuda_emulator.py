"""The emulated device shows what is wrong with a kernel, and nothing wrong with one that is right."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from cuda_emulator import EmulatorError
from cuda_emulator.build import TWINS, build, unread_alike

from graphtide.compute.device.functor import HEAD
from graphtide.gpma.device.module import FOLDER

SOURCE = f'#line 1 "self_test.cu"\n{(Path(cuda_emulator.__file__).parent / "self_test.cu").read_text()}'
THREADS = 64


def kernel(cupy: ModuleType, name: str, *, cooperative: bool = False, barrier: bool = True) -> Any:
    module = cupy.RawModule(
        code=SOURCE,
        options=("-std=c++17", f"-DBARRIER={int(barrier)}"),
        enable_cooperative_groups=cooperative,
    )
    return module.get_function(name)


def total(cupy: ModuleType, *, barrier: bool) -> bool:
    """Whether the kernel that sums 5,000 numbers in three blocks was right."""
    values = cupy.asarray(np.arange(5000, dtype=np.uint32))
    found = cupy.zeros(1, np.uint32)
    kernel(cupy, "total", barrier=barrier)((3,), (256,), (values, np.uint32(values.size), found))
    return int(found[0]) == sum(range(5000))


def reversed_by_warp(cupy: ModuleType, *, barrier: bool) -> bool:
    values = np.arange(THREADS, dtype=np.uint32)
    found = cupy.empty(THREADS, np.uint32)
    kernel(cupy, "reversed", barrier=barrier)(
        (1,), (THREADS,), (cupy.asarray(values), found), shared_mem=8 * THREADS
    )
    return bool(np.array_equal(found.get(), values ^ 31))


@pytest.mark.parametrize("right", [total, reversed_by_warp])
def test_a_missing_barrier_shows(emulated_cupy: ModuleType, right: Any) -> None:
    for seed in range(5):
        cuda_emulator.seed(seed)
        assert right(emulated_cupy, barrier=True)
        assert not right(emulated_cupy, barrier=False)


def test_collectives_match_a_model(emulated_cupy: ModuleType) -> None:
    x = np.random.default_rng(3).integers(0, 24, 96).astype(np.uint32)
    out = emulated_cupy.empty((11, x.size), np.uint32)
    kernel(emulated_cupy, "collectives")((1,), (x.size,), (emulated_cupy.asarray(x), out))
    lane = np.arange(16)
    for begin in range(0, x.size, 16):
        tile = x[begin : begin + 16]
        first = 1 << np.uint32(begin % 32)
        mask = [sum(1 << i for i in lane if tile[i] == y) for y in tile]
        expected = [
            np.full(16, tile[3]),
            tile[np.where(lane >= 2, lane - 2, lane)],
            tile[np.where(lane + 5 < 16, lane + 5, lane)],
            tile[lane ^ 6],
            np.full(16, sum(1 << i for i in lane if tile[i] & 1) * first),
            np.full(16, (tile == 7).any()),
            np.full(16, (tile < 20).all()),
            np.array(mask, np.uint64) * first,
            np.full(16, tile.sum()),
            np.full(16, tile.min()),
            np.full(16, tile.max()),
        ]
        assert np.array_equal(out.get()[:, begin : begin + 16], expected)


@pytest.mark.parametrize(("chosen", "there", "missing"), [(1, "chosen", "other"), (0, "other", "chosen")])
def test_kernels_that_a_condition_leaves_out_are_not_there(
    emulated_cupy: ModuleType, chosen: int, there: str, missing: str
) -> None:
    code = """#line 1 "choice.cu"
#if CHOSEN
extern "C" __global__ void chosen(unsigned* out) { *out = 1; }
#else
extern "C" __global__ void other(unsigned* out) { *out = 2; }
#endif
"""
    module = emulated_cupy.RawModule(code=code, options=("-std=c++17", f"-DCHOSEN={chosen}"))
    out = emulated_cupy.zeros(1, np.uint32)
    module.get_function(there)((1,), (1,), (out,))
    assert out.tolist() == [2 - chosen]
    with pytest.raises(RuntimeError, match="CUDA_ERROR_NOT_FOUND"):
        module.get_function(missing)


def test_modules_that_differ_in_what_they_do_not_read_are_one(emulated_cupy: ModuleType) -> None:
    code = """constexpr u32 READ = OF_READ;
constexpr u32 UNREAD = OF_UNREAD;  // no READ_TOO
#if defined(ALONE) && READ_TOO
u32 f() { return READ; }
#endif
"""
    names = "OF_READ", "OF_UNREAD", "ALONE", "READ_TOO", "NOWHERE"
    given = ("-std=c++17", *(f"-D{name}=7" for name in names))
    values = (7, 0, 0, 7, 0)
    assert unread_alike(code, given) == (
        "-std=c++17",
        *(f"-D{name}={v}" for name, v in zip(names, values, strict=True)),
    )
    with_barrier, other, without = (
        build(SOURCE, (f"-DBARRIER={barrier}", f"-DNOWHERE={nowhere}"))
        for barrier, nowhere in ((1, 1), (1, 2), (0, 2))
    )
    assert with_barrier is other is not without


def test_threads_and_blocks_run_in_an_order_drawn_from_the_seed(emulated_cupy: ModuleType) -> None:
    def ranks(seed: int) -> list[int]:
        cuda_emulator.seed(seed)
        found = emulated_cupy.empty(4 * THREADS, np.uint32)
        kernel(emulated_cupy, "ranks")((4,), (THREADS,), (emulated_cupy.zeros(1, np.uint32), found))
        return found.tolist()  # type: ignore[no-any-return]

    assert ranks(1) == ranks(1) != ranks(2)
    assert sorted(ranks(3)) == list(range(4 * THREADS)) != ranks(3)


def test_threads_of_a_block_learn_what_any_of_them_says(emulated_cupy: ModuleType) -> None:
    values = np.full(2 * THREADS, 9, np.uint32)
    values[[5, THREADS + 40]] = 1, 3
    found = emulated_cupy.empty((2, 4, THREADS), np.uint32)
    kernel(emulated_cupy, "any_of_block")((2,), (THREADS,), (emulated_cupy.asarray(values), found))
    has = np.array([[0, 1, 0, 0], [0, 0, 0, 1]], np.uint32)
    assert (found.get() == has[:, :, None]).all()


def test_a_grid_barrier_waits_for_all_blocks_and_needs_a_cooperative_launch(emulated_cupy: ModuleType) -> None:
    counts, seen = emulated_cupy.zeros(1, np.uint32), emulated_cupy.zeros(4, np.uint32)
    kernel(emulated_cupy, "by_grid", cooperative=True)((4,), (THREADS,), (counts, seen))
    assert seen.tolist() == [4 * THREADS] * 4
    with pytest.raises(EmulatorError, match="a grid barrier in a launch that is not cooperative"):
        kernel(emulated_cupy, "by_grid")((4,), (THREADS,), (counts, seen))
    with pytest.raises(EmulatorError, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
        kernel(emulated_cupy, "by_grid", cooperative=True)((5,), (1024,), (counts, seen))


def test_lanes_that_ended_are_not_waited_for(emulated_cupy: ModuleType) -> None:
    kernel(emulated_cupy, "half_of_a_warp")((1,), (THREADS,), ())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "waits_for_a_missing_lane",
            r"(?s)deadlock in kernel waits_for_a_missing_lane: nobody can run.*"
            r"block 0, warp 1, lanes 00000020 wait for __syncthreads at self_test.cu:\d+.*"
            r"block 0, warp 1, lanes ffffffdf wait for __ballot_sync with mask ffffffff",
        ),
        ("two_barriers", r"thread 32 \(warp 1, lane 0\) waits in another __syncthreads .*than thread 0"),
        ("outside_its_mask", r"is not in the mask of its own __ballot_sync \(self_test.cu:\d+\)"),
    ],
)
def test_waits_that_never_end_are_reported(emulated_cupy: ModuleType, name: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        kernel(emulated_cupy, name)((1,), (THREADS,), ())


def test_a_spin_loop_ends_when_another_thread_stores_and_is_a_deadlock_otherwise(
    emulated_cupy: ModuleType,
) -> None:
    flag = emulated_cupy.zeros(1, np.uint32)
    with pytest.raises(EmulatorError, match=r"(?s)deadlock in kernel spins.*wait for a spin loop at self_test"):
        kernel(emulated_cupy, "spins")((1,), (THREADS,), (flag,))
    kernel(emulated_cupy, "hands_over")((1,), (THREADS,), (flag,))


def test_accesses_out_of_bounds_are_errors(emulated_cupy: ModuleType) -> None:
    values = emulated_cupy.empty(100, np.uint32)
    kernel(emulated_cupy, "fills")((1,), (THREADS,), (values, np.uint32(100)))
    assert values.tolist() == list(range(100))
    with pytest.raises(EmulatorError, match=r"kernel fills, block 0, thread 36 .*: out of bounds\?"):
        kernel(emulated_cupy, "fills")((1,), (THREADS,), (values, np.uint32(101)))
    with pytest.raises(EmulatorError, match="wrote behind the end of 128 bytes of shared memory"):
        kernel(emulated_cupy, "fills_shared")((1,), (THREADS,), (np.uint32(33),))
    kernel(emulated_cupy, "fills_shared")((1,), (THREADS,), (np.uint32(32),))


def test_wrong_arguments_and_launches_are_refused(emulated_cupy: ModuleType) -> None:
    values = emulated_cupy.empty(100, np.uint32)
    fills = kernel(emulated_cupy, "fills")
    with pytest.raises(EmulatorError, match="takes 2 arguments, not 1"):
        fills((1,), (THREADS,), (values,))
    with pytest.raises(EmulatorError, match="argument 1 has 2 bytes, not 4"):
        fills((1,), (THREADS,), (values, np.uint16(100)))
    with pytest.raises(EmulatorError, match="INVALID_VALUE"):
        fills((0,), (THREADS,), (values, np.uint32(100)))
    with pytest.raises(EmulatorError, match="INVALID_VALUE"):
        fills((1,), (THREADS,), (values, np.uint32(100)), shared_mem=64 << 10)
    with pytest.raises(RuntimeError, match="not found: missing"):
        kernel(emulated_cupy, "missing")
    with pytest.raises(EmulatorError, match="g\\+\\+ refuses the source"):
        emulated_cupy.RawModule(code='extern "C" __global__ void wrong() { return 1; }')


def test_fresh_memory_is_not_zero(emulated_cupy: ModuleType) -> None:
    found = emulated_cupy.zeros(1, np.uint32)
    kernel(emulated_cupy, "shared_is_not_zero")((1,), (THREADS,), (found,))
    assert int(found[0]) == 0xA5A5A5A5
    assert emulated_cupy.empty(3, np.uint8).tolist() == [0xA5] * 3


def test_arrays_are_as_strict_as_those_of_cupy(emulated_cupy: ModuleType) -> None:
    cupy = emulated_cupy
    a = cupy.arange(10, dtype=np.uint32)
    assert isinstance(a, cupy.ndarray)
    assert (a[1:] + a[:-1]).tolist() == list(range(1, 18, 2))
    assert isinstance(a.sum(), cupy.ndarray)
    assert int(a[3]) == 3
    assert cupy.cumsum(a).dtype == np.uint64
    view = a[2:4]
    view[...] = 7
    assert a.tolist()[:5] == [0, 1, 7, 7, 4]
    for wrong in (lambda: a + np.arange(10), lambda: cupy.cumsum(np.arange(3)), lambda: np.asarray(a)):
        with pytest.raises(TypeError):
            wrong()
    pool = cupy.get_default_memory_pool()
    pool.set_limit(pool.used_bytes() + 1000)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.empty(1001, np.uint8)
    pool.set_limit(0)


def functions(path: Path) -> set[str]:
    """The names of the functions of a CUDA file that begin a line or follow a template's parameters."""
    text = re.sub(r"//.*|template <[^>]*>\s*", "", path.read_text())
    return set(re.findall(r"^\w[\w \*]*?\b(\w+)\([^;]*?\)\s*\{", text, re.MULTILINE))


@pytest.mark.parametrize("original", [FOLDER / "intrinsics.cuh", HEAD.with_name("ieee.cuh")], ids=lambda p: p.name)
def test_the_emulated_functions_are_those_of_the_product(original: Path) -> None:
    assert original.name in TWINS
    emulated = functions(Path(cuda_emulator.__file__).parent / original.name)
    assert emulated == functions(original) != set()
