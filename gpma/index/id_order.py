"""The order of vertices by their external ids, as kernels compare two of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..edges import Int, frozen
from ..intrinsics import address_of, uncounted
from .hashing import Bytes, Words, less_bytes
from .ids import IntColumn
from .kinds import LENGTH, LENGTH_BITS


class IdOrder(NamedTuple):
    """The external ids of vertices, read-only: ``numbers`` int64[n] where they are integers, else none.

    Else ``places`` uint64[n] and ``arena`` uint8[] have strings, as the index keeps them (``kinds.py``).
    """

    numbers: IntColumn
    places: Words
    arena: Bytes


def order_of(
    numbers: IntColumn | None = None, places: Words | None = None, arena: npt.NDArray[np.uint8] | None = None
) -> IdOrder:
    """The order by these ids, which are not copied: integers, or strings."""
    return IdOrder(
        frozen(np.empty(0, np.int64) if numbers is None else numbers),
        frozen(np.empty(0, np.uint64) if places is None else places),
        frozen(np.empty(0, np.uint8) if arena is None else arena),
    )


@uncounted
def comes_before(order: IdOrder, u: Int, v: Int) -> bool:
    """Whether the external id of u is smaller than that of v: integers by value, strings by bytes.

    What is no vertex may be asked about: then the dense ids are compared.
    """
    numbers, places = order.numbers, order.places
    last = max(u, v)
    if last < numbers.size:
        return bool(numbers[u] < numbers[v])
    if last >= places.size:
        return bool(u < v)
    start = address_of(order.arena)
    one, other = places[u], places[v]
    return bool(
        less_bytes(
            start + (one >> LENGTH_BITS),
            np.int64(one & LENGTH),
            start + (other >> LENGTH_BITS),
            np.int64(other & LENGTH),
        )
    )
