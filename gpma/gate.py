"""A gate for those who read arrays in compiled code: they hold it while they read, and whoever writes shuts it.

A kernel that looks a batch up before it writes shuts it by itself, in between, so that others read meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .intrinsics import address_of, inner, lock_to_write

Gate = npt.NDArray[np.int64]
"""int64[GATE_WORDS]: a lock of the C library (``pthread_rwlock_t``), and at ``IS_SHUT`` whether a writer has it,
which writers alone look at; or none, where nobody reads."""

GATE_WORDS, IS_SHUT = 16, 15
NO_GATE: Gate = np.empty(0, np.int64)


class BeforeWriting:
    """What comes before anything is written that others might be reading: nothing, as nobody does."""

    def __call__(self) -> None:
        """Return once nobody reads, and nobody may; harmless to repeat."""

    def but_for_gate(self) -> Gate:
        """The same, but for those who read through this gate: it is the caller's to shut."""
        return NO_GATE


NOBODY_READS = BeforeWriting()


@inner
def shut_gate(gate: Gate) -> None:
    """Wait until nobody reads, and let nobody in; harmless to repeat. The same thread opens it."""
    if gate.size > 0 and gate[IS_SHUT] == 0:
        begin: Any = np.int64(address_of(gate))
        lock_to_write(begin)
        gate[IS_SHUT] = 1
