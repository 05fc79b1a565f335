"""What stands in for the module ``cupy``: the part of its interface that the product and its tests use.

Arrays are as unforgiving as CuPy's: they never turn into NumPy arrays by themselves, and NumPy arrays are no
operands. Each lies at the end of a page behind which nothing can be touched, and starts out poisoned.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import random
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np

from .build import ERROR_BYTES, EmulatorError, Launch, build

PAGE_BYTES = 4096
POISON = 0xA5
MULTIPROCESSORS = 2
THREADS_PER_MULTIPROCESSOR = 2048
SHARED_BYTES, SHARED_BYTES_MAX = 48 << 10, 227 << 10

_random = random.Random(0)


def seed(value: int) -> None:
    """Repeat the same orders of threads and blocks from here on."""
    _random.seed(value)


# -- a card that fails -----------------------------------------------------------------------------------------


class _Fault:
    """The card's next failure, and whether it has come."""

    def __init__(self) -> None:
        self.calls_left: int | None = None
        self.quiet = self.broken = False


_fault = _Fault()


@contextlib.contextmanager
def failing_card(at: int, *, quiet: bool) -> Iterator[_Fault]:
    """Within it the card fails for good, at call ``at`` of those that put work on a stream or wait (0: the next).

    That call raises, and every later one. ``quiet``: a launch says nothing at first, as those do whose kernels
    fail; nothing is done any more, and the next call that waits raises. Yields what tells whether it is broken.
    """
    _fault.calls_left, _fault.quiet, _fault.broken = at, quiet, False
    try:
        yield _fault
    finally:
        _fault.calls_left, _fault.broken = None, False


def _fails(*, waits: bool) -> bool:
    """Whether a call does nothing, for the card is broken; or raises."""
    fault = _fault
    if fault.calls_left is None:
        return False
    if not fault.broken:
        fault.broken = fault.calls_left == 0
        fault.calls_left -= 1
    if fault.broken and (waits or not fault.quiet):
        raise CUDARuntimeError("cudaErrorIllegalAddress: the emulated card was made to fail")
    return fault.broken


class CUDARuntimeError(RuntimeError):
    """``cupy.cuda.runtime.CUDARuntimeError``, from where CuPy has it."""

    __module__ = "cupy_backends.cuda.api.runtime"


# -- memory ----------------------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_READ_WRITE, _PRIVATE_ANONYMOUS = 3, 0x22


class OutOfMemoryError(MemoryError):
    """``cupy.cuda.memory.OutOfMemoryError``."""


class MemoryPool:
    """Counts what lives; refuses what would pass the limit."""

    def __init__(self) -> None:
        self._used = 0
        self._limit = 0

    def used_bytes(self) -> int:
        return self._used

    total_bytes = used_bytes

    def free_bytes(self) -> int:
        return 0

    def n_free_blocks(self) -> int:
        return 0

    def free_all_blocks(self, stream: Any = None) -> None:
        pass

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        self._limit = size or 0

    def get_limit(self) -> int:
        return self._limit

    def malloc(self, size: int) -> MemoryPointer:
        return MemoryPointer(_memory(size), 0)


_pool = MemoryPool()
_allocators: list[Callable[[int], MemoryPointer]] = [_pool.malloc]
_failing_at: list[int] = []


def _set_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> None:
    _allocators[0] = allocator or _pool.malloc


@contextlib.contextmanager
def failing_allocation(at: int) -> Iterator[list[int]]:
    """Within it the allocation ``at`` (0: the next one) fails, CuPy's own ones counted too.

    Yields how many come before it; empty once it has failed.
    """
    _failing_at[:] = [at]
    try:
        yield _failing_at
    finally:
        _failing_at.clear()


def _memory(n_bytes: int) -> np.ndarray:
    """uint8[n_bytes] on pages of its own that end with it."""
    if _failing_at:
        _failing_at[0] -= 1
        if _failing_at[0] < 0:
            _failing_at.clear()
            raise OutOfMemoryError("this allocation was made to fail")
    if _pool._limit and _pool._used + n_bytes > _pool._limit:
        raise OutOfMemoryError(f"out of memory allocating {n_bytes} bytes (allocated so far: {_pool._used} bytes)")
    room = -(-n_bytes // 16) * 16
    pages = -(-max(room, 1) // PAGE_BYTES) * PAGE_BYTES
    base = _libc.mmap(None, pages + PAGE_BYTES, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if base in (None, ctypes.c_void_p(-1).value):
        raise OutOfMemoryError(f"out of memory allocating {n_bytes} bytes")
    _libc.mprotect(base + pages, PAGE_BYTES, 0)
    ctypes.memset(base, POISON, pages)
    owner = (ctypes.c_ubyte * n_bytes).from_address(base + pages - room)
    _pool._used += n_bytes
    weakref.finalize(owner, _free, base, pages + PAGE_BYTES, n_bytes)
    return np.frombuffer(owner, np.uint8)


def _free(base: int, mapped: int, n_bytes: int) -> None:
    _libc.munmap(base, mapped)
    _pool._used -= n_bytes


class MemoryPointer:
    """An address inside an array."""

    def __init__(self, mem: np.ndarray, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ctypes.data + offset
        self.device_id = 0

    def __int__(self) -> int:
        _fails(waits=True)
        return self.ptr

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ctypes.data + offset)

    def copy_from_host_async(self, source: int, size: int, stream: Any = None) -> None:
        if not _fails(waits=False):
            ctypes.memmove(self.ptr, int(getattr(source, "value", source)), size)

    def copy_to_host_async(self, target: int, size: int, stream: Any = None) -> None:
        if not _fails(waits=False):
            ctypes.memmove(int(getattr(target, "value", target)), self.ptr, size)

    def copy_from_device_async(self, source: MemoryPointer, size: int, stream: Any = None) -> None:
        ctypes.memmove(self.ptr, source.ptr, size)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        ctypes.memset(self.ptr, value, size)

    copy_from_host, copy_to_host, copy_from_device = (
        copy_from_host_async,
        copy_to_host_async,
        copy_from_device_async,
    )
    copy_from_async, copy_from, memset = copy_from_device_async, copy_from_device_async, memset_async


# -- arrays ----------------------------------------------------------------------------------------------------


def _owned(values: Any) -> ndarray:
    """A new device array of these values."""
    values = np.asarray(values)
    made = empty(values.shape, values.dtype)
    made._values[...] = values
    return made


def _wrapped(result: Any) -> Any:
    """The result of a NumPy function as CuPy would return it."""
    if isinstance(result, tuple | list):
        return type(result)(map(_wrapped, result)) if type(result) in (tuple, list) else result
    if isinstance(result, np.ndarray):
        # A view into device memory stays one.
        is_view = result.base is not None and _is_device_memory(result)
        return ndarray._of(result) if is_view else _owned(result)
    return _owned(result) if isinstance(result, np.generic) else result


def _is_device_memory(values: np.ndarray) -> bool:
    base: Any = values
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return isinstance(base, memoryview | ctypes.Array)


def _plain(value: Any) -> Any:
    """An argument for NumPy; refuses arrays that live on the host, as CuPy does."""
    if isinstance(value, ndarray):
        return value._values
    if isinstance(value, np.ndarray) and value.ndim > 0:
        raise TypeError(f"Unsupported type {np.ndarray}")
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value))
    return value


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):
    """``cupy.ndarray``."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, shape: Any, dtype: Any = float, memptr: MemoryPointer | None = None) -> None:
        dtype = np.dtype(dtype)
        count = int(np.prod(shape))
        memptr = _allocators[0](count * dtype.itemsize) if memptr is None else memptr
        memory, offset = memptr.mem, memptr.ptr - memptr.mem.ctypes.data
        self._values = np.frombuffer(memory, np.uint8)[offset : offset + count * dtype.itemsize]
        self._values = self._values.view(dtype).reshape(shape)

    @classmethod
    def _of(cls, values: np.ndarray) -> ndarray:
        made = cls.__new__(cls)
        made._values = values
        return made

    @property
    def data(self) -> MemoryPointer:
        return MemoryPointer(self._values, 0)

    @property
    def device(self) -> Device:
        return Device(0)

    @property
    def T(self) -> ndarray:
        return ndarray._of(self._values.T)

    @property
    def base(self) -> Any:
        return self._values.base

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> np.ndarray:
        _fails(waits=True)
        if out is None:
            return self._values.copy()
        out[...] = self._values
        return out

    def set(self, values: np.ndarray, stream: Any = None) -> None:
        if values.dtype != self.dtype or values.shape != self.shape:
            raise ValueError("Shape or dtype mismatch")
        self._values[...] = values

    def view(self, dtype: Any = None) -> ndarray:
        return ndarray._of(self._values.view(dtype) if dtype is not None else self._values.view())

    def reshape(self, *shape: Any, **how: Any) -> ndarray:
        return _wrapped(self._values.reshape(*shape, **how))

    def ravel(self) -> ndarray:
        return _wrapped(self._values.reshape(-1))

    def argsort(self, axis: int = -1, kind: str | None = None) -> ndarray:
        return _owned(self._values.argsort(axis=axis, kind="stable"))

    def scatter_add(self, slices: Any, value: Any) -> None:
        np.add.at(self._values, _plain(slices), _plain(value))

    def item(self) -> Any:
        _fails(waits=True)
        return self._values.item()

    def tolist(self) -> Any:
        _fails(waits=True)
        return self._values.tolist()

    def fill(self, value: Any) -> None:
        self._values.fill(_plain(value))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_values":
            raise AttributeError(name)
        found = getattr(self._values, name)
        if not callable(found):
            return found
        return _device_function(found)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **how: Any) -> Any:
        how = {name: _plain(value) for name, value in how.items()}
        if out is None:
            return _wrapped(getattr(ufunc, method)(*map(_plain, inputs), **how))
        getattr(ufunc, method)(*map(_plain, inputs), out=tuple(map(_plain, out)), **how)
        return out[0] if len(out) == 1 else out

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Use `.get()`.")

    def __getitem__(self, index: Any) -> ndarray:
        values = self._values[_plain(index)]
        return (
            ndarray._of(values) if isinstance(values, np.ndarray) and _is_device_memory(values) else _owned(values)
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        self._values[_plain(index)] = _plain(value)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[ndarray]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        _fails(waits=True)
        return bool(self._values)

    def __int__(self) -> int:
        _fails(waits=True)
        return int(self._values)

    def __index__(self) -> int:
        return self._values.__index__()

    def __float__(self) -> float:
        return float(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


def _device_function(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **how: Any) -> Any:
        out = how.get("out")
        result = function(*map(_plain, arguments), **{name: _plain(value) for name, value in how.items()})
        return out if out is not None else _wrapped(result)

    return call


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return ndarray(shape, dtype)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    made = empty(shape, np.result_type(fill_value) if dtype is None else dtype)
    made._values[...] = _plain(fill_value)
    return made


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 1, dtype)


def empty_like(a: ndarray, dtype: Any = None) -> ndarray:
    return empty(a.shape, a.dtype if dtype is None else dtype)


def zeros_like(a: ndarray, dtype: Any = None) -> ndarray:
    return zeros(a.shape, a.dtype if dtype is None else dtype)


def array(values: Any, dtype: Any = None, copy: bool = True, **_: Any) -> ndarray:
    return _owned(np.array(values._values if isinstance(values, ndarray) else values, dtype))


def asarray(values: Any, dtype: Any = None, order: Any = None, *, blocking: bool = False) -> ndarray:
    if isinstance(values, ndarray) and (dtype is None or values.dtype == dtype):
        return values
    return array(values, dtype)


def asnumpy(
    values: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True
) -> np.ndarray:
    return values.get(out=out) if isinstance(values, ndarray) else np.asarray(values)


def argsort(a: ndarray, axis: int = -1, kind: str | None = None) -> ndarray:
    return a.argsort(axis)


def array_equal(a: ndarray, b: ndarray) -> ndarray:
    return _owned(np.array_equal(_plain(a), _plain(b)))


class RandomState:
    """``cupy.random.RandomState``."""

    def __init__(self, seed: int | None = None) -> None:
        self._state = np.random.RandomState(seed)

    def __getattr__(self, name: str) -> Any:
        return _device_function(getattr(self._state, name))


# -- streams, events, devices ----------------------------------------------------------------------------------


class Event:
    """``cupy.cuda.Event``: the time at which it was recorded, since nothing is ever under way."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.time = 0.0
        self.done = True

    def record(self, stream: Any = None) -> None:
        _fails(waits=False)
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        _fails(waits=True)


class Stream:
    """``cupy.cuda.Stream``; everything on it is done at once."""

    null: Stream
    _numbers = itertools.count(1)
    _current: list[Stream] = []  # noqa: RUF012

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        self.ptr = 0 if null else 0x1000 * next(self._numbers)
        self.done = True

    def __enter__(self) -> Stream:
        self._current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._current.pop()

    def use(self) -> Stream:
        self._current[-1] = self
        return self

    def synchronize(self) -> None:
        _fails(waits=True)

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        pass

    def launch_host_func(self, callback: Callable[[Any], None], arg: Any) -> None:
        callback(arg)


Stream.null = Stream(null=True)
Stream._current.append(Stream.null)


class Device:
    """``cupy.cuda.Device``: a small one."""

    compute_capability = "90"
    mem_info = (8 << 30, 8 << 30)
    attributes = {  # noqa: RUF012
        "MultiProcessorCount": MULTIPROCESSORS,
        "MaxThreadsPerMultiProcessor": THREADS_PER_MULTIPROCESSOR,
        "MaxThreadsPerBlock": 1024,
        "MaxSharedMemoryPerBlock": SHARED_BYTES,
        "MaxSharedMemoryPerBlockOptin": SHARED_BYTES_MAX,
        "MaxSharedMemoryPerMultiprocessor": 228 << 10,
        "CooperativeLaunch": 1,
        "L2CacheSize": 1 << 20,
        "WarpSize": 32,
    }

    def __init__(self, device: int | None = None) -> None:
        self.id = 0

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def use(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def alloc_pinned_memory(size: int) -> Any:
    """A buffer with the address ``ptr``; device and host know it by the same one."""
    kind = type("PinnedMemoryPointer", (ctypes.c_ubyte * size,), {"ptr": property(ctypes.addressof)})
    memory = kind()
    ctypes.memset(memory, POISON, size)
    return memory


def _alloc_for(memory: int, offset: int) -> Any:
    return alloc_pinned_memory(memory - offset)


def empty_pinned(shape: Any, dtype: Any = float) -> np.ndarray:
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    return np.frombuffer(alloc_pinned_memory(max(1, count * dtype.itemsize)), dtype, count).reshape(shape)


def zeros_pinned(shape: Any, dtype: Any = float) -> np.ndarray:
    made = empty_pinned(shape, dtype)
    made[...] = 0
    return made


# -- kernels ---------------------------------------------------------------------------------------------------


class RawModule:
    """``cupy.RawModule``."""

    def __init__(
        self,
        *,
        code: str,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        enable_cooperative_groups: bool = False,
        **_: Any,
    ) -> None:
        self._library = build(code, tuple(options))
        self._cooperative = enable_cooperative_groups

    def compile(self, log_stream: Any = None) -> None:
        pass

    def get_function(self, name: str) -> RawKernel:
        try:
            entry = self._library[f"emulated_{name}"]
        except AttributeError:
            raise RuntimeError(f"CUDA_ERROR_NOT_FOUND: named symbol not found: {name}") from None
        return RawKernel(name, entry, self._cooperative, self._library)


# There is one machine: kernels that several threads launch run one after another, as on one stream.
_one_at_a_time = threading.Lock()

# The modules whose kernels ran last keep the stacks of their threads.
MODULES_WITH_STACKS = 12
_recent: dict[ctypes.CDLL, None] = {}


def _keep_stacks(library: ctypes.CDLL) -> None:
    """This module's kernels ran last: another one may have to give its stacks back."""
    _recent.pop(library, None)
    _recent[library] = None
    if len(_recent) > MODULES_WITH_STACKS:
        oldest = next(iter(_recent))
        del _recent[oldest]
        oldest.emulated_give_back_stacks()


# What the driver knows kernels by.
_kernels: dict[int, RawKernel] = {}
_UNTOLD = 0xFFFF_FFFF


def _driver() -> dict[str, Any]:
    """The names of ``cupy.cuda.driver``."""

    def launch(cooperative: bool, kernel: int, *dims: int, shared: int, parameters: int) -> None:
        if _kernels[kernel]._cooperative != cooperative:
            raise EmulatorError(f"{_kernels[kernel].name} was compiled for the other way to launch")
        pointers = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        _kernels[kernel]._run(dims[:3], dims[3:], shared, pointers, None, _UNTOLD)

    def launch_kernel(kernel: int, *how: int) -> None:
        *dims, shared, _stream, parameters, _extra = how
        launch(False, kernel, *dims, shared=shared, parameters=parameters)

    def launch_cooperative_kernel(kernel: int, *how: int) -> None:
        *dims, shared, _stream, parameters = how
        launch(True, kernel, *dims, shared=shared, parameters=parameters)

    def active_blocks(kernel: int, threads: int, shared: int) -> int:
        return 2 if shared else 1  # as if registers of the array's kernels allowed two, and those of others one

    return {
        "launchKernel": launch_kernel,
        "launchCooperativeKernel": launch_cooperative_kernel,
        "occupancyMaxActiveBlocksPerMultiprocessor": active_blocks,
    }


# The product's module of the driver's functions, which this stands in for.
DRIVER = "graphtide.gpma.device.driver"
_WORDS = [ctypes.c_uint] * 7
_LAUNCHES = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *_WORDS, *[ctypes.c_void_p] * 3)
_COPIES = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_FAILED = 999


def _product_driver() -> dict[str, Any]:
    """The names of ``DRIVER``: functions that compiled code calls by address, and what they could not raise."""
    raised: list[BaseException] = []
    driver = _driver()

    def telling(work: Callable[..., None]) -> Callable[..., int]:
        def told(*arguments: int) -> int:
            try:
                work(*arguments)
            except BaseException as error:
                raised.append(error)
                return _FAILED
            return 0

        return told

    def launch(kernel: int, *how: int) -> None:
        *dims, shared, stream, parameters, extra = how
        driver["launchKernel"](kernel, *dims, shared, stream or 0, parameters, extra)

    def launch_cooperative(kernel: int, *how: int) -> None:
        *dims, shared, stream, parameters, _beyond = how
        driver["launchCooperativeKernel"](kernel, *dims, shared, stream or 0, parameters)

    def copy(to: int, source: int, size: int, _stream: int) -> None:
        if not _fails(waits=False):
            ctypes.memmove(to, source, size)

    functions = {
        "cuLaunchKernel": _LAUNCHES(telling(launch)),
        "cuLaunchCooperativeKernel": _LAUNCHES(telling(launch_cooperative)),
        "cuMemcpyHtoDAsync_v2": _COPIES(telling(copy)),
    }

    def failure(status: int) -> BaseException:
        assert status == _FAILED and functions
        return raised.pop()

    return {"begin_of": lambda name: ctypes.cast(functions[name], ctypes.c_void_p).value, "failure": failure}


class RawKernel:
    """A kernel: ``kernel(grid, block, arguments, shared_mem=0)``."""

    def __init__(self, name: str, entry: Any, cooperative: bool, library: ctypes.CDLL) -> None:
        self.name = name
        self._library = library
        self.max_dynamic_shared_size_bytes = SHARED_BYTES
        self.preferred_shared_memory_carveout = -1
        self.attributes = {"max_dynamic_shared_size_bytes": SHARED_BYTES, "num_regs": 32, "local_size_bytes": 0}
        self.num_regs = 32
        self.kernel = self
        self.ptr = id(self)
        _kernels[self.ptr] = self
        self._entry = entry
        self._cooperative = cooperative

    def compile(self, log_stream: Any = None) -> None:
        pass

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Any, *, shared_mem: int = 0, stream: Any = None
    ) -> None:
        grid, block = ((*dims, 1, 1)[:3] for dims in (grid, block))
        values = [_argument(value) for value in args]
        pointers = (ctypes.c_void_p * (len(values) + 1))(*[ctypes.addressof(value) for value in values])
        sizes = (ctypes.c_uint64 * (len(values) + 1))(*map(ctypes.sizeof, values))
        self._run(grid, block, shared_mem, pointers, sizes, len(values))

    def _run(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        shared_mem: int,
        pointers: Any,
        sizes: Any,
        n_values: int,
    ) -> None:
        threads = int(np.prod(block))
        if min(grid) < 1 or threads < 1 or threads > 1024:
            raise EmulatorError(f"CUDA_ERROR_INVALID_VALUE: {self.name} on {grid} blocks of {block} threads")
        if shared_mem > min(self.max_dynamic_shared_size_bytes, SHARED_BYTES_MAX):
            raise EmulatorError(f"CUDA_ERROR_INVALID_VALUE: {shared_mem} bytes of shared memory for {self.name}")
        fit = Device.attributes["MultiProcessorCount"] * (THREADS_PER_MULTIPROCESSOR // threads)
        if self._cooperative and int(np.prod(grid)) > fit:
            raise EmulatorError(f"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: {self.name} on {grid} blocks")
        if _fails(waits=False):
            return
        error = ctypes.create_string_buffer(ERROR_BYTES)
        launch = Launch(
            grid,
            block,
            shared_mem,
            _random.getrandbits(64),
            ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p)),
            ctypes.cast(sizes, ctypes.POINTER(ctypes.c_uint64)),
            n_values,
            int(self._cooperative),
            _random.choice((0, 4, 64)),
            ctypes.cast(error, ctypes.c_char_p),
            ERROR_BYTES,
        )
        with _one_at_a_time:
            failed = self._entry(ctypes.byref(launch))
            _keep_stacks(self._library)
        if failed:
            raise EmulatorError(error.value.decode(errors="replace"))


def _argument(value: Any) -> Any:
    """The bytes of an argument, as CuPy passes them: Python's numbers in 8 bytes, NumPy's as they are."""
    if value is None or isinstance(value, ndarray | MemoryPointer):
        return ctypes.c_uint64(0 if value is None else value.data.ptr if isinstance(value, ndarray) else value.ptr)
    if isinstance(value, bool):
        return ctypes.c_bool(value)
    if isinstance(value, int):
        return (ctypes.c_uint64 if value >= 2**63 else ctypes.c_int64)(value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    if isinstance(value, np.generic | np.ndarray):
        content = value.tobytes()
        return (ctypes.c_ubyte * len(content)).from_buffer_copy(content)
    raise TypeError(f"Unsupported type {type(value)}")


# -- memory of the host that kernels read ----------------------------------------------------------------------

# What is registered: from one address to another.
_registered: dict[int, int] = {}


def registered() -> list[tuple[int, int]]:
    """The memory of the host that is registered, as (begin, end)."""
    return sorted(_registered.items())


def _host_register(pointer: int, size: int, flags: int) -> None:
    _fails(waits=False)
    if pointer % PAGE_BYTES or size % PAGE_BYTES or size <= 0:
        raise EmulatorError(f"{size} bytes from {pointer:#x} on are no whole pages")
    if any(begin < pointer + size and pointer < end for begin, end in _registered.items()):
        raise EmulatorError(f"cudaErrorHostMemoryAlreadyRegistered: {size} bytes from {pointer:#x} on")
    _registered[pointer] = pointer + size


def _host_unregister(pointer: int) -> None:
    if _registered.pop(pointer, None) is None:
        raise EmulatorError(f"cudaErrorHostMemoryNotRegistered: {pointer:#x}")
    _fails(waits=False)


# -- the module ------------------------------------------------------------------------------------------------


def _runtime() -> dict[str, Any]:
    """The names of ``cupy.cuda.runtime``."""

    def copy(target: int, source: int, size: int, kind: int = 4, stream: int = 0) -> None:
        ctypes.memmove(target, source, size)

    def fill(pointer: int, value: int, size: int, stream: int = 0) -> None:
        ctypes.memset(pointer, value, size)

    return {
        "CUDARuntimeError": CUDARuntimeError,
        "memcpyHostToHost": 0,
        "memcpyHostToDevice": 1,
        "memcpyDeviceToHost": 2,
        "memcpyDeviceToDevice": 3,
        "memcpyDefault": 4,
        "memcpy": copy,
        "memcpyAsync": copy,
        "memset": fill,
        "memsetAsync": fill,
        "deviceSynchronize": lambda: None,
        "streamSynchronize": lambda stream: None,
        "hostGetDevicePointer": lambda pointer, flags=0: pointer,
        "hostRegister": _host_register,
        "hostUnregister": _host_unregister,
        "deviceGetAttribute": lambda attribute, device: 1,
        "getDevice": lambda: 0,
        "setDevice": lambda device: None,
        "getDeviceCount": lambda: 1,
        "driverGetVersion": lambda: 0,
        "runtimeGetVersion": lambda: 0,
        "memGetInfo": lambda: Device.mem_info,
        "getDeviceProperties": lambda device: {"multiProcessorCount": MULTIPROCESSORS, "name": b"emulated"},
    }


def _module(name: str, names: dict[str, Any]) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)
    vars(made).update(names)
    return made


def _modules() -> dict[str, types.ModuleType]:
    memory = {
        "MemoryPool": MemoryPool,
        "MemoryPointer": MemoryPointer,
        "OutOfMemoryError": OutOfMemoryError,
        "alloc_pinned_memory": alloc_pinned_memory,
        "PinnedMemory": int,  # a size, until something points to it
        "PinnedMemoryPointer": _alloc_for,
        "alloc": lambda size: _allocators[0](size),
        "set_allocator": _set_allocator,
    }
    cuda = {
        **memory,
        "memory": _module("cupy.cuda.memory", memory),
        "runtime": _module("cupy.cuda.runtime", _runtime()),
        "driver": _module("cupy.cuda.driver", _driver()),
        "Stream": Stream,
        "Event": Event,
        "Device": Device,
        "get_current_stream": lambda: Stream._current[-1],
        "get_elapsed_time": lambda start, end: 1e3 * (end.time - start.time),
        "is_available": lambda: True,
    }
    cupy: dict[str, Any] = {
        "ndarray": ndarray,
        "RawModule": RawModule,
        "cuda": _module("cupy.cuda", cuda),
        "get_default_memory_pool": lambda: _pool,
        "get_default_pinned_memory_pool": lambda: _pool,
        "get_array_module": lambda *arrays: (
            sys.modules["cupy"] if any(isinstance(a, ndarray) for a in arrays) else np
        ),
        "random": _module("cupy.random", {"RandomState": RandomState}),
        "__version__": "emulated",
    }
    for function in (
        empty, full, zeros, ones, empty_like, zeros_like, array, asarray, asnumpy, argsort, array_equal
    ):  # fmt: skip
        cupy[function.__name__] = function
    cupy["ascontiguousarray"] = asarray
    module = _module("cupy", cupy)

    def other(name: str) -> Any:
        found = getattr(np, name)
        return _device_function(found) if callable(found) and not isinstance(found, type) else found

    module.__getattr__ = other  # type: ignore[method-assign]
    cupyx = {"empty_pinned": empty_pinned, "zeros_pinned": zeros_pinned, "scatter_add": ndarray.scatter_add}
    return {
        "cupy": module,
        "cupy.cuda": cupy["cuda"],
        "cupy.cuda.runtime": cuda["runtime"],
        "cupy.cuda.memory": cuda["memory"],
        "cupyx": _module("cupyx", cupyx),
        DRIVER: _module(DRIVER, _product_driver()),
    }


# Where the product uses CuPy: modules, and packages with all that is in them.
USERS = (
    "graphtide.gpma.device",
    "graphtide.partition.device_side",
    "graphtide.compute.device.kernels",
    "graphtide.compute.device.path_runs",
    "graphtide.compute.device.paths",
    "graphtide.compute.device.count_runs",
    "graphtide.compute.device.counts",
    "graphtide.compute.device.forest_runs",
    "graphtide.compute.device.components",
    "graphtide.compute.device.packed_rows",
    "graphtide.compute.device.walk_runs",
    "graphtide.compute.device.push_runs",
    "graphtide.compute.device.walk",
    "graphtide.compute.device.pagerank",
    "graphtide.compute.device.ppr_numbers",
    "graphtide.compute.device.ppr_groups",
    "graphtide.compute.device.ppr_runs",
    "graphtide.compute.device.ppr",
    "graphtide.compute.device.tally_runs",
    "graphtide.compute.device.tally",
    "graphtide.compute.device.id_order",
    "graphtide.compute.device.cdlp_runs",
    "graphtide.compute.device.cdlp",
)


def _is_of_device(name: str) -> bool:
    """Whether a loaded module is CuPy or uses it."""
    is_cupy = name.split(".")[0] in ("cupy", "cupyx")
    return is_cupy or any(name == user or name.startswith(f"{user}.") for user in USERS)


def _taken_from_packages() -> dict[tuple[str, str], Any]:
    """The modules that use CuPy, by the package that has them as attributes; it has them no more."""
    taken = {}
    for user in USERS:
        package, _, name = user.rpartition(".")
        if package in sys.modules and name in vars(sys.modules[package]):
            taken[package, name] = vars(sys.modules[package]).pop(name)
    return taken


@contextlib.contextmanager
def emulated(seed: int = 0) -> Iterator[types.ModuleType]:
    """Within it ``import cupy`` gives the emulated device, and the product's device modules use it.

    They are imported afresh: keep nothing of them for after, nor arrays of another device for within. At the end
    nothing may be registered any more.
    """
    before = {name: module for name, module in sys.modules.items() if _is_of_device(name)}
    for name in before:
        del sys.modules[name]
    attributes = _taken_from_packages()
    _random.seed(seed)
    _pool.set_limit(0)
    _set_allocator(_pool.malloc)
    _registered.clear()
    modules = _modules()
    sys.modules.update(modules)
    try:
        yield modules["cupy"]
        if _registered:
            raise EmulatorError(f"memory of the host is still registered: {registered()}")
    finally:
        for name in [name for name in sys.modules if _is_of_device(name)]:
            del sys.modules[name]
        sys.modules.update(before)
        _taken_from_packages()
        for (package, name), module in attributes.items():
            vars(sys.modules[package])[name] = module
