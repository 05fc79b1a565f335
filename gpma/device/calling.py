"""Calls of cooperative kernels that tell the host by words: launched and waited for in one compiled function.

After other work little of what a call takes is in the processor's caches: of a small refresh most of the time went
to Python's objects on the way to the driver and back. Here the driver is called, and the words are looked at (see
``waiting.py``), without the interpreter in between, and without its lock; and all that the compiled function needs
stands in one array, its *record*, so that it touches few lines of memory. Whoever has more to do as soon as the
words are there, such as to take over what a kernel listed, has it done in the same function (``Then``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from ..edges import HALF, LOW, Int, Keys
from ..intrinsics import load_word, load_word_acquire, uncounted, uncounted_inner
from . import waiting
from .driver import begin_of, failure
from .launching import (
    BLOCKS,
    FUNCTION,
    KERNEL,
    LAUNCH_WORDS,
    PARAMETERS,
    ROWS,
    STREAM,
    THREADS,
    Parameters,
    launch_recorded,
)
from .waiting import Told

# What a call is, in words: first what is launched; then what is to be done of it (LAUNCHES, WAITS), the number
# that its words will carry, where they are, how many, and how often to look at them.
_HOW, _NUMBER, _WORDS, _N_WORDS, _LOOKS = range(LAUNCH_WORDS, LAUNCH_WORDS + 5)
SAID: Final = LAUNCH_WORDS + 5
"""From here on, in a record: what the words say, and behind it what a ``Then`` has for its own."""
_LAUNCHES, _WAITS = 1, 2
_WORD_BYTES: Final = 8
# How a call may end, where it is not with a status of the driver, which are positive: it is done; the words are
# not there after so many looks; for a function that calls again as it was called last: that does not suit.
DONE: Final = 0
_UNTOLD: Final = -1
OTHERWISE: Final = -2


class Then(NamedTuple):
    """What is done in the call as soon as the words are there.

    ``carry_out``: a compiled function of a record that begins with ``carry_out``'s of this module, and returns
    what that does. ``n_more``: words of the record that are its own, behind what is said.
    """

    carry_out: Callable[[Keys], Int]
    n_more: int


class Caller:
    """Calls of kernels on one stream, one at a time, that tell their ends by so many words."""

    def __init__(self, n_words: int, stream: Any, then: Then | None = None) -> None:
        """Raises:
        MemoryError, RuntimeError: the device, as CuPy says it.
        """
        self._told = Told(n_words, stream)
        self._compiled, n_more = then or _NOTHING_MORE
        self.record: Keys = np.zeros(SAID + n_words + n_more, np.uint64)
        """What compiled functions carry calls out by."""
        self._fields = memoryview(self.record)
        self.said = self._fields[SAID:]
        """What the words of the last call that was waited for said, uint64 each; behind them what the ``Then`` has
        for its own."""
        self._fields[FUNCTION], self._fields[STREAM] = begin_of("cuLaunchCooperativeKernel"), stream.ptr
        self._fields[_WORDS], self._fields[_N_WORDS] = self._told.address, n_words
        self._fields[_LOOKS] = waiting.LOOKS_MAX
        self._is_over = True
        self._compiled(self.record)  # compiled, or loaded from the cache; it does nothing

    @property
    def address(self) -> int:
        """Where kernels find the words."""
        return self._told.address

    def next_number(self) -> int:
        """The number of what comes next (1 to 2^32 - 1), which the words will carry."""
        number: int = self._fields[_NUMBER] % 0xFFFF_FFFF + 1
        self._fields[_NUMBER] = number
        return number

    def aim(self, kernel: int, blocks: int, threads: int, parameters: Parameters) -> None:
        """Say what is launched from now on: a kernel, by the driver's handle, on so many blocks of threads."""
        fields = self._fields
        fields[KERNEL], fields[BLOCKS], fields[ROWS], fields[THREADS] = kernel, blocks, 1, threads
        fields[PARAMETERS] = parameters.address

    def launch(self) -> None:
        """Launch what was aimed at; waits for nothing.

        Raises:
            RuntimeError: the driver refuses it, or has failed before (as CuPy says it).
        """
        self._is_over = False
        self._fields[_HOW] = _LAUNCHES
        if status := self._compiled(self.record):
            self.see_to(status)

    def expect(self) -> None:
        """Others have launched what tells its end here."""
        self._is_over = False

    def call(self) -> None:
        """Launch what was aimed at, and wait until all words carry the last number, which none did before.

        Raises:
            RuntimeError: as ``launch`` and ``wait``.
        """
        self._is_over = False
        self._fields[_HOW] = _LAUNCHES | _WAITS
        if status := self._compiled(self.record):
            self.see_to(status)
        self._is_over = True

    def wait(self) -> None:
        """Wait until the words carry the last number; of what was called at once they do.

        Raises:
            RuntimeError: a kernel failed (as CuPy says it), or ended without a word (``DeviceFailed``).
        """
        if self._is_over:
            return
        self._fields[_HOW] = _WAITS
        if status := self._compiled(self.record):
            self.see_to(status)
        self._is_over = True

    def see_to(self, status: int) -> None:
        """See to a call that ``carry_out`` ended so, and not with DONE.

        Raises:
            RuntimeError: as ``launch`` and ``wait``.
        """
        while status:  # a ``Then`` may have made another call
            if status != _UNTOLD:
                raise failure(status)
            # The driver waits, and says whether a kernel failed.
            self._told.wait(self._fields[_NUMBER])
            self._fields[_HOW] = _WAITS
            status = self._compiled(self.record)


@uncounted
def carry_out(record: Keys) -> Int:
    """Launch a kernel, wait for its words, or both; what they say, their lower halves, is in the record then.

    DONE, or why it is not.
    """
    if record[_HOW] & _LAUNCHES:
        status = launch_recorded(record, np.int64(0))
        if status:
            return np.int64(status)
    if not waits(record):
        return np.int64(DONE)
    number, words, n_words = record[_NUMBER], record[_WORDS], np.int64(record[_N_WORDS])
    for _ in range(record[_LOOKS]):
        carry = 0
        while carry < n_words and load_word_acquire(_word(words, carry)) >> HALF == number:
            carry += 1
        if carry == n_words:
            for place in range(n_words):
                record[SAID + place] = load_word_acquire(_word(words, place)) & LOW
            return np.int64(DONE)
    return np.int64(_UNTOLD)


@uncounted_inner
def begin(record: Keys) -> Int:
    """Have ``carry_out`` launch, and wait; the number of the call, which its words will carry."""
    number = record[_NUMBER] % np.uint64(0xFFFF_FFFF) + np.uint64(1)
    record[_NUMBER], record[_HOW] = number, _LAUNCHES | _WAITS
    return number


@uncounted_inner
def wait_later(record: Keys) -> None:
    """Have ``carry_out`` launch what was begun, and not wait."""
    record[_HOW] = _LAUNCHES


@uncounted_inner
def wait_now(record: Keys) -> None:
    """Have ``carry_out`` wait for what was launched."""
    record[_HOW] = _WAITS


@uncounted_inner
def parameter(record: Keys, place: Int) -> Int:
    """The address of a structure that the kernel takes."""
    return load_word(record[PARAMETERS] + np.uint64(_WORD_BYTES) * np.uint64(place))


@uncounted_inner
def waits(record: Keys) -> Int:
    """Whether a call waits for its words."""
    return record[_HOW] & _WAITS


@uncounted_inner
def _word(words: Int, place: Int) -> Int:
    return words + np.uint64(_WORD_BYTES) * np.uint64(place)


_NOTHING_MORE: Final = Then(carry_out, 0)
