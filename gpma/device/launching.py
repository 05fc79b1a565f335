"""Putting work on a stream at the least cost: kernels and copies that wait for nothing.

The driver is called from compiled code. What a call says stands in one array, so that it touches few lines of
memory and few objects of Python: after other work none of them is in the processor's caches, and a launch by CuPy
then takes several times what the driver takes.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ..edges import Int, Keys
from ..intrinsics import uncounted, uncounted_inner

# What a launch is, in words: where the driver's function begins; of the kernel its handle, how many blocks to
# launch, in how many rows of so many, and threads of each, and the bytes of shared memory of a block; the stream;
# where the addresses of its parameters are.
FUNCTION, KERNEL, BLOCKS, ROWS, THREADS, SHARED, STREAM, PARAMETERS, LAUNCH_WORDS = range(9)
_LAUNCH: Final = struct.Struct(f"={LAUNCH_WORDS}Q")
# The most launches of one call.
_TOGETHER: Final = 8
# And a copy: from where on the host to where on the device, and how many bytes.
_TO, _FROM, _BYTES, _COPY_STREAM, COPY_WORDS = range(1, 6)


class Parameters:
    """The addresses of structures that a kernel takes, in the order of its parameters."""

    def __init__(self, structures: tuple[npt.NDArray[np.void], ...]) -> None:
        self._structures = structures  # they live as long as their addresses are here
        table = np.array([structure.ctypes.data for structure in structures], np.uint64)
        self.address: int = table.ctypes.data
        self.places = memoryview(table)


class Launcher:
    """Kernels that take one tuple of structures, launched on one stream."""

    def __init__(self, stream: Any, structures: tuple[npt.NDArray[np.void], ...]) -> None:
        self._parameters = Parameters(structures)
        self._stream = stream  # held
        self._where: tuple[int, int] = stream.ptr, self._parameters.address
        self._ordinary, self._cooperative = _begin_of("cuLaunchKernel"), _begin_of("cuLaunchCooperativeKernel")
        self._records: Keys = np.zeros(_TOGETHER * LAUNCH_WORDS, np.uint64)
        self._packed = memoryview(self._records.view(np.uint8))
        self._n, self._holds = 0, False
        _launch(self._records, 0)  # compiled, or loaded from the cache

    def start(self, kernel: int, blocks: int, threads: int) -> None:
        """Launch ``kernel``, a function of a RawModule's, by its address.

        Raises:
            RuntimeError: the driver refuses it, or has failed before (as CuPy says it).
        """
        self._start(self._ordinary, kernel, blocks, threads, 0)

    def start_cooperative(self, kernel: int, blocks: int, threads: int, shared_bytes: int) -> None:
        """Launch a kernel whose blocks wait for each other, compiled by ``load_cooperative``.

        Raises:
            RuntimeError: as ``start``.
        """
        self._start(self._cooperative, kernel, blocks, threads, shared_bytes)

    def hold(self) -> None:
        """Have the next launches, _TOGETHER at most, wait for ``begin``, which is one compiled call."""
        self._holds = True

    def begin(self) -> None:
        """Launch what is held.

        Raises:
            RuntimeError: as ``start``; what comes after it was not launched.
        """
        self._holds = False
        self._carry_out()

    def _carry_out(self) -> None:
        n, self._n = self._n, 0
        if status := _launch(self._records, n):
            raise _failure(status)

    def _start(self, function: int, kernel: int, blocks: int, threads: int, shared_bytes: int) -> None:
        said = function, kernel, blocks, 1, threads, shared_bytes
        _LAUNCH.pack_into(self._packed, _LAUNCH.size * self._n, *said, *self._where)
        self._n += 1
        if not self._holds:
            self._carry_out()


class Copier:
    """Copies from pinned memory of the host to the device, on one stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream  # held
        self.record: Keys = np.zeros(COPY_WORDS, np.uint64)
        """What ``copy_recorded`` goes by."""
        self._fields = memoryview(self.record)
        _copy(self.record)  # compiled, or loaded from the cache; it does nothing
        self._fields[FUNCTION], self._fields[_COPY_STREAM] = _begin_of("cuMemcpyHtoDAsync_v2"), stream.ptr

    def copy(self, to: int, from_: int, n_bytes: int) -> None:
        """Begin to copy so many bytes, one at least.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        fields = self._fields
        fields[_TO], fields[_FROM], fields[_BYTES] = to, from_, n_bytes
        if status := _copy(self.record):
            raise _failure(status)


# The driver is asked for when it is needed, as CuPy is.
def _begin_of(name: str) -> int:
    from .driver import begin_of

    return begin_of(name)


def _failure(status: int) -> Exception:
    from .driver import failure

    return failure(status)


_WORD: Final = ir.IntType(32)
_POINTER: Final = ir.PointerType(ir.IntType(8))


def _launching(typing_context: Any, record: Any, first: Any) -> Any:
    """launch_recorded(record, first): the status of the driver's function that launches what the record says, from
    word ``first`` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # Cooperative launches have no last parameter, and do not look at it.
        kind = ir.FunctionType(_WORD, [_POINTER, *[_WORD] * 7, *[_POINTER] * 3])
        field = _fields_of(context, builder, signature.args[0], *arguments)
        one = _WORD(1)
        function, kernel, stream, table = (
            builder.inttoptr(field(place), kind_of)
            for place, kind_of in (
                (FUNCTION, ir.PointerType(kind)),
                *((place, _POINTER) for place in (KERNEL, STREAM, PARAMETERS)),
            )
        )
        blocks, rows, threads, shared = (
            builder.trunc(field(place), _WORD) for place in (BLOCKS, ROWS, THREADS, SHARED)
        )
        nothing = ir.Constant(_POINTER, None)
        return builder.call(
            function, [kernel, blocks, rows, one, threads, one, one, shared, stream, table, nothing]
        )

    return types.int32(record, types.int64), generate


def _copying(typing_context: Any, record: Any) -> Any:
    """copy_said(record): the status of ``cuMemcpyHtoDAsync``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        long = ir.IntType(64)
        kind = ir.FunctionType(_WORD, [long, _POINTER, long, _POINTER])
        field = _fields_of(context, builder, signature.args[0], arguments[0], long(0))
        function = builder.inttoptr(field(FUNCTION), ir.PointerType(kind))
        from_, stream = (builder.inttoptr(field(place), _POINTER) for place in (_FROM, _COPY_STREAM))
        return builder.call(function, [field(_TO), from_, field(_BYTES), stream])

    return types.int32(record), generate


def _fields_of(context: Any, builder: Any, kind: Any, record: Any, first: Any) -> Any:
    data = builder.gep(context.make_array(kind)(context, builder, record).data, [first])
    return lambda place: builder.load(builder.gep(data, [ir.IntType(64)(place)]))


launch_recorded: Any = intrinsic(_launching)
_copy_said: Any = intrinsic(_copying)


@uncounted
def _launch(records: Keys, n: Int) -> Int:
    for k in range(n):
        status = launch_recorded(records, np.int64(k * LAUNCH_WORDS))
        if status:
            return np.int64(status)
    return np.int64(0)


@uncounted_inner
def copy_recorded(record: Keys, to: Int, from_: Int, n_bytes: Int) -> Int:
    """The status of the driver's function that begins to copy so many bytes, on the stream of a ``Copier``."""
    record[_TO], record[_FROM], record[_BYTES] = to, from_, n_bytes
    return np.int64(_copy_said(record))


@uncounted
def _copy(record: Keys) -> Int:
    return np.int64(_copy_said(record)) if record[FUNCTION] else np.int64(0)
