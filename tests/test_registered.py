"""What is registered with a device's driver of the host's memory: what kernels read, piece by piece, once."""

from __future__ import annotations

import gc
import mmap
from types import ModuleType
from typing import Any

import cuda_emulator
import numpy as np
import pytest

PAGE = mmap.PAGESIZE


@pytest.fixture
def memory() -> np.ndarray:
    """uint64[64 pages], from an address on where a piece may begin; 512 entries each."""
    room = np.frombuffer(mmap.mmap(-1, 80 * PAGE), np.uint64)
    first = -(room.ctypes.data // PAGE) % 16
    return room[512 * first : 512 * (first + 64)]


@pytest.fixture
def registered(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    from graphtide.gpma.device import registered as module

    monkeypatch.setattr(module, "PIECE_BYTES", 16 * PAGE)
    monkeypatch.setattr(module, "PART_BYTES", 2 * PAGE)
    made = module.Registered()
    yield made
    made.close()


def extent(column: np.ndarray, *parts: tuple[int, int]) -> Any:
    from graphtide.gpma.device.registered import Extent

    return Extent(column, parts or ((0, column.size),))


def pages(memory: np.ndarray) -> list[tuple[int, int]]:
    """What is registered, by pages of this memory."""
    origin = memory.ctypes.data
    return [((begin - origin) // PAGE, (end - origin) // PAGE) for begin, end in cuda_emulator.registered()]


def joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found = ranges[:1]
    for begin, end in ranges[1:]:
        if begin == found[-1][1]:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return found


def test_a_column_that_grows_is_registered_where_it_is_new(registered: Any, memory: np.ndarray) -> None:
    registered.cover([extent(memory[: 512 * 5])])
    assert pages(memory) == [(0, 5)]
    registered.cover([extent(memory[: 512 * 5 + 1])])
    assert pages(memory) == [(0, 5), (5, 6)]
    registered.cover([extent(memory[: 512 * 40])])
    assert (0, 5) in pages(memory) and (5, 6) in pages(memory)
    assert joined(pages(memory)) == [(0, 40)]
    assert registered.n_bytes == 40 * PAGE


def test_a_column_that_shrinks_keeps_what_is_left(registered: Any, memory: np.ndarray) -> None:
    registered.cover([extent(memory)])
    assert pages(memory) == [(0, 16), (16, 32), (32, 48), (48, 64)]
    registered.cover([extent(memory[: 512 * 40])])
    assert pages(memory) == [(0, 16), (16, 32), (32, 40)]


def test_parts_that_are_not_read_are_left_out(registered: Any, memory: np.ndarray) -> None:
    """As a stretch of leaves, which moves: by and by all are."""
    for at in range(20, 8, -1):
        registered.cover([extent(memory, (0, 512 * at), (512 * (at + 12), 512 * 64))])
        there = {page for begin, end in pages(memory) for page in range(begin, end)}
        # What was read before stays.
        assert there == {*range(20), *range((at + 12) // 2 * 2, 64)}
    registered.cover([extent(memory)])
    assert joined(pages(memory)) == [(0, 64)]


def test_columns_in_one_page_are_registered_together(registered: Any, memory: np.ndarray) -> None:
    columns = memory[3:40], memory[40:500], memory[500:600]
    registered.cover([extent(column) for column in columns])
    assert joined(pages(memory)) == [(0, 2)]
    registered.cover([extent(columns[0]), extent(columns[2])])
    assert joined(pages(memory)) == [(0, 2)]
    registered.cover([extent(columns[0])])
    assert joined(pages(memory)) == [(0, 1)]


def test_a_column_that_is_replaced_is_held_until_it_is_not_registered(registered: Any) -> None:
    import weakref

    class Owner(np.ndarray):
        """An array that can be watched."""

    column = np.zeros(1 << 16, np.uint32).view(Owner)
    gone = weakref.ref(column)
    registered.cover([extent(column)])
    place = column.ctypes.data
    del column
    gc.collect()
    assert gone() is not None
    other = np.zeros(1 << 17, np.uint32)
    registered.cover([extent(other)])
    gc.collect()
    assert gone() is None
    assert all(not begin <= place < end for begin, end in cuda_emulator.registered())


def test_pages_that_go_are_let_go(registered: Any, memory: np.ndarray) -> None:
    registered.cover([extent(memory)])
    origin = memory.ctypes.data
    registered.let_go([(origin + 20 * PAGE, origin + 30 * PAGE), (0, 0)])
    assert pages(memory) == [(0, 16), (32, 48), (48, 64)]
    registered.cover([extent(memory)])
    assert joined(pages(memory)) == [(0, 64)]


def test_nothing_is_left_when_nobody_holds_it(emulated_cupy: ModuleType, memory: np.ndarray) -> None:
    from graphtide.gpma.device.registered import Registered

    made = Registered()
    made.cover([extent(memory)])
    assert cuda_emulator.registered()
    made.close()
    made.close()
    assert not cuda_emulator.registered()
    made.cover([extent(memory)])
    del made
    gc.collect()
    assert not cuda_emulator.registered()


def test_a_refusal_says_what_for(
    registered: Any, memory: np.ndarray, emulated_cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = emulated_cupy.cuda.runtime
    register = runtime.hostRegister

    def refuse(*given: int) -> None:
        raise runtime.CUDARuntimeError("cudaErrorNotSupported: no")

    monkeypatch.setattr(runtime, "hostRegister", refuse)
    with pytest.raises(RuntimeError, match=r"does not let kernels read 65536 bytes .*NotSupported"):
        registered.cover([extent(memory[: 512 * 16])])
    monkeypatch.setattr(runtime, "hostRegister", register)
    registered.cover([extent(memory[: 512 * 16])])
    assert joined(pages(memory)) == [(0, 16)]


def test_a_device_that_knows_other_addresses_is_refused(
    emulated_cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphtide.gpma.device.registered import Registered

    monkeypatch.setattr(emulated_cupy.cuda.runtime, "deviceGetAttribute", lambda *asked: 0)
    with pytest.raises(RuntimeError, match="at the host's addresses"):
        Registered()


def test_a_lost_device_hinders_nobody(registered: Any, memory: np.ndarray) -> None:
    registered.cover([extent(memory)])
    origin = memory.ctypes.data
    with cuda_emulator.failing_card(0, quiet=False):
        registered.let_go([(origin, origin + PAGE)])
        registered.close()
    assert registered.n_bytes == 0
