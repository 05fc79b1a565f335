"""Scalars in the saved state of a program: one array that holds each number under its name.

It has no dimension and a field, float64, for each, so that a checkpoint keeps numbers to the last bit, in one file
that says which is which.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from .program import Column

SCALARS = "scalars"
"""The name of that array in a state."""


def packed(scalars: Mapping[str, float]) -> Column:
    """These scalars as an array, of at least one."""
    return np.array(tuple(scalars.values()), [(name, np.float64) for name in scalars])


def unpacked(state: Mapping[str, Column], names: Iterable[str]) -> dict[str, float]:
    """The scalars of these names in a state.

    Raises:
        KeyError: the state has no scalars.
        ValueError: they are not as ``packed`` makes them, or one is missing or not finite; the message names it.
    """
    saved = state[SCALARS]
    if saved.shape != () or saved.dtype.names is None:
        raise ValueError(f"the saved scalars have no names: {saved.dtype}{saved.shape}")
    found = {}
    for name in names:
        if name not in saved.dtype.names:
            raise ValueError(f"the saved scalar {name!r} is missing")
        if saved.dtype[name] != np.float64 or not math.isfinite(saved[name]):
            raise ValueError(f"the saved scalar {name!r} is no finite float64: {saved[name]!r}")
        found[name] = float(saved[name])
    return found
