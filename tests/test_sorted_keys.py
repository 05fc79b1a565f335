"""Looking for a key among sorted ones, against ``np.searchsorted``."""

from __future__ import annotations

import numpy as np
import pytest

from graphtide.gpma.sorted_keys import first_at, first_behind

LARGEST = np.iinfo(np.uint64).max


@pytest.mark.parametrize("seed", range(3))
def test_keys_are_found_where_they_would_be_put(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.integers(0, 40, 50, dtype=np.uint64))
    keys[-3:] = LARGEST
    for key in [*map(np.uint64, range(41)), np.uint64(LARGEST)]:
        begin, end = sorted(rng.integers(0, keys.size + 1, 2))
        among = keys[begin:end]
        assert first_at(keys, begin, end, key) == begin + np.searchsorted(among, key)
        assert first_behind(keys, begin, end, key) == begin + np.searchsorted(among, key, side="right")


def test_among_none_it_is_the_end() -> None:
    keys = np.arange(5, dtype=np.uint64)
    for at in (np.int64(0), np.int64(3), np.int64(5)):
        assert first_at(keys, at, at, np.uint64(3)) == at
        assert first_behind(keys, at, at, np.uint64(3)) == at
