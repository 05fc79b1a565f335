"""The driver's own functions for compiled code, which calls them by their addresses."""

from __future__ import annotations

import ctypes
from functools import cache

from .module import import_cupy


@cache
def begin_of(name: str) -> int:
    """Where a function of the driver begins (``cuLaunchKernel``, say).

    Raises:
        OSError: there is no driver; where CuPy has found a device there is one.
    """
    function = getattr(ctypes.CDLL("libcuda.so.1"), name)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def failure(status: int) -> Exception:
    """What CuPy raises where the driver says this."""
    error: Exception = import_cupy().cuda.driver.CUDADriverError(status)
    return error
