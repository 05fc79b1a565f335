"""Where arrays on the device get their memory: CuPy's pool, and arrays that go when another one finds none."""

from __future__ import annotations

import weakref
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .module import import_cupy

# Whoever wants memory waits so long for one who is launching kernels that use a spare array.
_WAITS_S: Final = 1.0


class Spare:
    """An array whose owner can do without: it goes as soon as another array finds no memory, CuPy's own included.

    ``lock`` is held by whoever launches kernels that use ``array``, from looking at it until they are launched:
    what goes then is the system's only when they have ended. Its thread takes no memory of the device meanwhile.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        import_cupy().cuda.set_allocator(_malloc)
        self.lock = Lock()
        self.array: Any = None
        _SPARES.append(weakref.ref(self, _SPARES.remove))

    @property
    def nbytes(self) -> int:
        array = self.array
        return 0 if array is None else int(array.nbytes)

    def take(self, n: int, dtype: npt.DTypeLike) -> bool:
        """Have so many entries in the place of what there was; False: there is no memory, and nothing is there. No
        other spare array goes for that."""
        with self.lock:
            self.array = None
            n_bytes = n * np.dtype(dtype).itemsize
            try:
                try:
                    memory = memory_pool().malloc(n_bytes)
                except MemoryError:
                    release_blocks()
                    memory = memory_pool().malloc(n_bytes)
            except MemoryError:
                return False
            self.array = import_cupy().ndarray(n, np.dtype(dtype), memory)
            return True

    def give_back(self) -> None:
        """Have nothing from now on, unless kernels that use it are just being launched."""
        if self.array is not None and self.lock.acquire(timeout=_WAITS_S):
            self.array = None
            self.lock.release()


_SPARES: Final[list[weakref.ref[Spare]]] = []


def _malloc(n_bytes: int) -> Any:
    """As CuPy's pool, but for spare arrays, all of which go if need be."""
    try:
        return memory_pool().malloc(n_bytes)
    except MemoryError:
        spares = _spares()
        if not spares:
            raise
        for spare in spares:
            spare.give_back()
        # Another thread may have taken one away just now, for what it wants itself.
        release_blocks()
        return memory_pool().malloc(n_bytes)


def spare_bytes() -> int:
    """Of all spare arrays."""
    return sum(spare.nbytes for spare in _spares())


def _spares() -> list[Spare]:
    return [spare for known in _SPARES[:] if (spare := known()) is not None]


def free_bytes() -> int:
    """What arrays could still take, by the limit and by what other processes have left.

    Raises:
        RuntimeError: the device failed (as CuPy says it).
    """
    pool = memory_pool()
    used, limit = int(pool.used_bytes()), int(pool.get_limit())
    free = int(import_cupy().cuda.Device().mem_info[0]) + int(pool.total_bytes()) - used
    return min(free, limit - used) if limit else free


def release_blocks() -> None:
    """Give memory of the device back that no array has any more.

    Raises:
        RuntimeError: the device failed (as CuPy says it).
    """
    memory_pool().free_all_blocks()


def memory_pool() -> Any:
    """CuPy's, of the current device, from which all its arrays come."""
    return import_cupy().get_default_memory_pool()
