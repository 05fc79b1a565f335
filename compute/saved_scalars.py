"""Scalars in the saved state of a program: one array that holds each number under its name.

It has no dimension and a field, float64, for each, so that a checkpoint keeps numbers to the last bit, in one file
that says which is which. States of before (checkpoints up to format 3) have them by position.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

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


def named(state: Mapping[str, Column], names: Sequence[str]) -> dict[str, Column]:
    """A state whose scalars, if it has any, are known by position, with these names given to them in turn.

    Raises:
        ValueError: they are not as many.
    """
    renewed = dict(state)
    if SCALARS in state:
        saved = state[SCALARS]
        if saved.dtype != np.float64 or saved.shape != (len(names),):
            raise ValueError(f"the saved scalars: {saved.dtype}{saved.shape}, expected float64({len(names)},)")
        renewed[SCALARS] = packed(dict(zip(names, saved.tolist(), strict=True)))
    return renewed
