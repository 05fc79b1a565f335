"""Looking for a key among sorted ones, in kernels, which count no references for it.

``np.searchsorted`` does the same, by four functions of Numba's own, or more, for each kind of key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .edges import Int
from .intrinsics import uncounted


@uncounted
def first_at(keys: npt.NDArray[Any], begin: Int, end: Int, key: Int) -> Int:
    """The first of the ascending keys[begin:end] that is not smaller; ``end`` if there is none."""
    low, high = np.int64(begin), np.int64(end)
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@uncounted
def first_behind(keys: npt.NDArray[Any], begin: Int, end: Int, key: Int) -> Int:
    """The first of the ascending keys[begin:end] that is larger; ``end`` if there is none."""
    low, high = np.int64(begin), np.int64(end)
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] <= key:
            low = middle + 1
        else:
            high = middle
    return low
