"""Scalars in saved states: by name, to the last bit, and refused by name."""

from __future__ import annotations

import re

import numpy as np
import pytest

from graphtide.compute.saved_scalars import SCALARS, packed, unpacked

NUMBERS = {"third": 1 / 3, "least": 5e-324, "nothing": -0.0, "largest": float(np.finfo(float).max)}


def test_scalars_come_back_bit_by_bit() -> None:
    found = unpacked({SCALARS: packed(NUMBERS)}, reversed(NUMBERS))
    assert {name: value.hex() for name, value in found.items()} == {
        name: value.hex() for name, value in NUMBERS.items()
    }
    assert unpacked({SCALARS: packed(NUMBERS)}, ["third"]) == {"third": 1 / 3}


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (packed({"a": 1.0}), "the saved scalar 'b' is missing"),
        (packed({"a": 1.0, "b": np.nan}), "the saved scalar 'b' is no finite float64"),
        (packed({"a": np.inf, "b": 1.0}), "the saved scalar 'a' is no finite float64"),
        (np.array((1.0, 1), [("a", np.float64), ("b", np.int64)]), "the saved scalar 'b' is no finite float64"),
        (np.array([1.0, 2.0]), "the saved scalars have no names: float64(2,)"),
        (np.array([(1.0, 2.0)], packed({"a": 1.0, "b": 2.0}).dtype), "the saved scalars have no names"),
    ],
)
def test_what_is_missing_or_no_number_is_told_by_name(saved: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        unpacked({SCALARS: saved}, ["a", "b"])
    with pytest.raises(KeyError, match=SCALARS):
        unpacked({}, ["a"])
