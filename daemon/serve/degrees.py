"""How many vertices have each degree, of graphs of any size: the engine is asked about a slice of them at a time.

Others have their turns in between, and of a client that has gone nothing more is asked. Where epochs follow each
other faster than slices, the whole is asked for at once in the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..records.topology import DEGREES_AT_ONCE, Counted, merged_degrees
from .asker import Asker
from .engine_calls import SLICE_VERTICES, SLICED_TRIES
from .serving import ALL_VERTICES, VERTICES_INLINE_MAX, Serving

ENTRIES_APART = 1 << 15
"""So many degrees of slices are kept apart before they are added up."""


@dataclass(frozen=True, slots=True)
class DegreesFound:
    """``counts[i]`` vertices have ``degrees[i]`` edges: int64[m] both, ``degrees`` in ascending order.

    ``stamp``: of what epoch.
    """

    stamp: bytes
    degrees: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


async def count_degrees(serving: Serving, asker: Asker, direction: str, deadline: float) -> DegreesFound:
    """Of all vertices of one epoch.

    Raises:
        Unavailable, TimedOut: as ``EngineCalls.call``.
    """
    found = None
    for size in (*[DEGREES_AT_ONCE] * SLICED_TRIES, ALL_VERTICES):
        found = await _by_slices(serving, asker, direction, size, deadline)
        if found is not None:
            break
    assert found is not None, "a whole is of one epoch"
    return found


async def _by_slices(
    serving: Serving, asker: Asker, direction: str, size: int, deadline: float
) -> DegreesFound | None:
    """None: the epoch moved on in between."""
    first, n, stamp, epoch = 0, 1, b"", None
    apart: list[Counted] = []
    while first < n:
        asked = {"direction": direction, "first": first, "limit": size}
        beside = size > DEGREES_AT_ONCE
        part = await serving.engine.call(asker, "degree_counts", asked, SLICE_VERTICES, deadline, beside=beside)
        if epoch is not None and part["epoch"] != epoch:
            return None
        epoch, stamp, n = part["epoch"], part["stamp"], part["n_vertices"]
        apart.append((np.frombuffer(part["degrees"], np.int64), np.frombuffer(part["counts"], np.int64)))
        first += size
        if sum(degrees.size for degrees, _ in apart[1:]) > ENTRIES_APART:
            apart = [await _merged(serving, asker, apart)]
    return DegreesFound(stamp, *await _merged(serving, asker, apart))


async def _merged(serving: Serving, asker: Asker, parts: list[Counted]) -> Counted:
    """At once, or by a thread."""
    if sum(degrees.size for degrees, _ in parts) <= VERTICES_INLINE_MAX:
        return merged_degrees(parts)
    return await serving.in_thread(asker, merged_degrees, parts)
