"""A large batch in pieces, which threads draw from a cursor: what they find is put together in their order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PIECE = 8192
"""Updates of each kind that a thread takes at a time."""

_AT_ONCE = np.zeros(1, np.int64)


def pieces_of(n: int) -> npt.NDArray[np.int64]:
    """int64[1 + pieces], zeros, for so many updates: the cursor, and room for what is found of each piece.

    Of none where a thread would take them all: it is done at once then.
    """
    return _AT_ONCE if n <= PIECE else np.zeros(1 - (-n // PIECE), np.int64)
