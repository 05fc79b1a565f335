"""A CUDA device for tests on a machine that has none.

``emulated()`` puts a module of the name ``cupy`` in place whose arrays are NumPy's and whose ``RawModule``
compiles CUDA C++ with g++ behind ``emulator.h``. Code under test imports CuPy and launches kernels as always::

    with cuda_emulator.emulated(seed=7):
        from graphtide.gpma.device.array import DevicePackedArray
        ...

What it shows: missing barriers (threads run in random order between waits, and at times one block after all the
others), collectives that cannot meet and other deadlocks, accesses outside of arrays (each ends at a page that
cannot be touched; fresh memory is poisoned), host arrays given to device functions, memory of the host that is
registered twice, or still at the end. What it does not show: speed,
races between plain loads and stores without a wait in between, streams (everything is synchronous), weak memory
order.
``CUDA_EMULATOR_FLAGS`` in the environment is passed to g++, ``-fsanitize=undefined -fno-sanitize-recover`` say.
"""

from __future__ import annotations

from .build import EmulatorError, compiler
from .cupy import emulated, failing_allocation, failing_card, registered, seed

__all__ = ["EmulatorError", "compiler", "emulated", "failing_allocation", "failing_card", "registered", "seed"]
