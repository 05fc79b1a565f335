"""What compiled walks over binary records have in common: numbers, and what may be wrong with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...gpma.index.hashing import Bytes
from ...gpma.intrinsics import inner

GOOD, CUT, NUMBER = range(3)
"""What became of a number, or of a record; each walk has others of its own, from ``OTHERS`` on."""
OTHERS = 3

WHY = {CUT: "it ends too early", NUMBER: "a number of more than 64 bits"}


@inner
def varint(data: Bytes, at: Any, end: Any) -> tuple[Any, Any, Any]:
    """(the bits of a number in groups of seven, the lowest first; where it ends; status)."""
    bits, shift = np.uint64(0), np.uint64(0)
    while True:
        if at >= end:
            return np.int64(0), at, CUT
        byte = np.uint64(data[at])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.int64(0), at, NUMBER
        bits |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return np.int64(bits), at, GOOD
        shift += np.uint64(7)


@inner
def word(data: Bytes, at: Any, width: Any) -> Any:
    """The bits of a number of so many bytes, the lowest first."""
    bits = np.uint64(0)
    for place in range(width):
        bits |= np.uint64(data[at + place]) << np.uint64(8 * place)
    return np.int64(bits)
