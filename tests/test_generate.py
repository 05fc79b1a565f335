"""The generator: distinct skewed pairs, deletions of what is there, a size that settles."""

from __future__ import annotations

import numpy as np
import pytest

from graphtide.daemon.tools.generate import Churn, distinct_rmat


def test_pairs_are_distinct_loopless_and_skewed() -> None:
    src, dst = distinct_rmat(10, 8_000, np.random.default_rng(1))
    assert len({*zip(src.tolist(), dst.tolist(), strict=True)}) == 8_000
    assert (src != dst).all()
    degrees = np.sort(np.bincount(src, minlength=1024))
    assert degrees[-10:].sum() > 8_000 / 10, "ten of a thousand vertices have more than a tenth of the edges"


def test_too_many_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        distinct_rmat(4, 100, np.random.default_rng(1))


def test_deletions_are_of_present_edges_and_a_fifth_of_the_updates() -> None:
    churn = Churn(scale=10, pool=6_000, seed=2)
    updates = churn.stream(60_000)
    assert len(updates) == 60_000
    assert 0.15 < (updates.ops == 0).mean() < 0.21
    present: set[tuple[int, int]] = set()
    in_vain = 0
    for s, d, op in zip(updates.src.tolist(), updates.dst.tolist(), updates.ops.tolist(), strict=True):
        if op:
            present.add((s, d))
        else:
            in_vain += (s, d) not in present
            present.discard((s, d))
    assert in_vain == 0
    assert len(present) == churn.present.sum()
    assert abs(len(present) - churn.settles_at) < 0.1 * churn.settles_at


def test_loading_is_remembered_and_a_seed_repeats() -> None:
    one, other = (Churn(scale=8, pool=1_000, seed=7) for _ in range(2))
    loaded = list(one.load(600, batch=250))
    assert [len(part) for part in loaded] == [250, 250, 100]
    assert one.present.sum() == 600
    list(other.load(600))
    np.testing.assert_array_equal(one.next(100).src, other.next(100).src)
