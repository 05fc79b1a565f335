"""Calls of cooperative kernels that tell the host by words: launched and waited for in one compiled function.

After other work little of what a call takes is in the processor's caches: of a small refresh most of the time went
to Python's objects on the way to the driver and back. Here the driver is called, and the words are looked at (see
``waiting.py``), without the interpreter in between, and without its lock.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ..edges import HALF, LOW, Int, Keys
from ..intrinsics import load_acquire, uncounted
from . import waiting
from .driver import cooperative_launch, failure
from .waiting import Told

# What a call is, in words: where the driver's function begins; of the kernel its handle, how many blocks to launch
# (0: none, it runs already), how many threads each has, the stream, where the addresses of its parameters are; the
# number that the words will carry, and how often to look for it (0: not to wait).
_FUNCTION, _KERNEL, _BLOCKS, _THREADS, _STREAM, _PARAMETERS, _NUMBER, _LOOKS = range(8)
# How a call may end, where it is not with a status of the driver, which are positive.
_DONE: Final = 0
_UNTOLD: Final = -1


class Parameters:
    """The addresses of structures that a kernel takes, in the order of its parameters."""

    def __init__(self, structures: tuple[npt.NDArray[np.void], ...]) -> None:
        self._structures = structures  # they live as long as their addresses are here
        table = np.array([structure.ctypes.data for structure in structures], np.uint64)
        self.address: int = table.ctypes.data
        self.places = memoryview(table)


class Caller:
    """Calls of kernels on one stream, one at a time, that tell their ends by so many words."""

    def __init__(self, n_words: int, stream: Any) -> None:
        """Raises:
        MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._told = Told(n_words, stream)
        self._words = self._told.words
        self._call: Keys = np.zeros(_LOOKS + 1, np.uint64)
        self._said: Keys = np.zeros(n_words, np.uint64)
        self._fields = memoryview(self._call)
        self._fields[_FUNCTION], self._fields[_STREAM] = cooperative_launch(), stream.ptr
        self._is_over = True
        _carry_out(self._call, self._words, self._said)  # compiled, or loaded from the cache

    @property
    def address(self) -> int:
        """Where kernels find the words."""
        return self._told.address

    def aim(self, kernel: int, blocks: int, threads: int, parameters: Parameters) -> None:
        """Say what comes next: a kernel, by the driver's handle, on so many blocks of so many threads."""
        fields = self._fields
        fields[_KERNEL], fields[_BLOCKS], fields[_THREADS] = kernel, blocks, threads
        fields[_PARAMETERS] = parameters.address

    def launch(self) -> None:
        """Launch what was aimed at; waits for nothing.

        Raises:
            RuntimeError: the driver refuses it, or has failed before (as CuPy says it).
        """
        self._fields[_LOOKS] = 0
        self._is_over = False
        self._carry_out()

    def expect(self) -> None:
        """Others have launched what tells its end here."""
        self._is_over = False

    def call(self, number: int) -> None:
        """Launch what was aimed at, and wait until all words carry this number, which none did before.

        Raises:
            RuntimeError: as ``launch`` and ``wait``.
        """
        fields = self._fields
        fields[_NUMBER], fields[_LOOKS] = number, waiting.LOOKS_MAX
        self._is_over = False
        self._carry_out()
        self._is_over = True

    def wait(self, number: int) -> list[int]:
        """The lower halves of the words, as soon as they carry this number; of what was called at once.

        Raises:
            RuntimeError: a kernel failed (as CuPy says it), or ended without a word (``DeviceFailed``).
        """
        if not self._is_over:
            self._fields[_BLOCKS] = 0
            self.call(number)
        said: list[int] = self._said.tolist()
        return said

    def _carry_out(self) -> None:
        status = _carry_out(self._call, self._words, self._said)
        if status == _DONE:
            return
        if status != _UNTOLD:
            raise failure(status)
        # The driver waits, and says whether a kernel failed.
        self._told.wait(self._fields[_NUMBER])
        self._fields[_BLOCKS] = 0
        _carry_out(self._call, self._words, self._said)


def _launch(
    typing_context: Any, function: Any, kernel: Any, blocks: Any, threads: Any, stream: Any, table: Any
) -> Any:
    """launch(function, kernel, blocks, threads, stream, table): the status that ``cuLaunchCooperativeKernel``
    returns, which begins at ``function``; all of them uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, pointer = ir.IntType(32), ir.PointerType(ir.IntType(8))
        kind = ir.FunctionType(word, [pointer, *[word] * 7, pointer, pointer])
        begin, kernel, blocks, threads, stream, table = arguments
        one, no_shared_bytes = word(1), word(0)
        sizes = [builder.trunc(blocks, word), one, one, builder.trunc(threads, word), one, one, no_shared_bytes]
        kernel, stream, table = (builder.inttoptr(address, pointer) for address in (kernel, stream, table))
        return builder.call(builder.inttoptr(begin, ir.PointerType(kind)), [kernel, *sizes, stream, table])

    return types.int32(*[types.uint64] * 6), generate


launch: Any = intrinsic(_launch)


@uncounted
def _carry_out(call: Keys, words: Keys, said: Keys) -> Int:
    """Launch a kernel, if any, and wait for its words, if it is to; then what they say is in ``said``."""
    if call[_BLOCKS]:
        status = launch(
            call[_FUNCTION], call[_KERNEL], call[_BLOCKS], call[_THREADS], call[_STREAM], call[_PARAMETERS]
        )
        if status:
            return np.int64(status)
    if call[_LOOKS] == 0:
        return _DONE
    number = call[_NUMBER]
    for _ in range(call[_LOOKS]):
        carry = 0
        while carry < words.size and load_acquire(words, carry) >> HALF == number:
            carry += 1
        if carry == words.size:
            for place in range(words.size):
                said[place] = words[place] & LOW
            return _DONE
    return _UNTOLD
