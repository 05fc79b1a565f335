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


def test_divided_streams_share_the_pool() -> None:
    """Each has the pairs of its owner alone, in the vertices of the whole, and sends what one stream would."""
    churn, again = (Churn(scale=8, pool=1_000, seed=7) for _ in range(2))
    owners = churn.src % 3
    parts = churn.divided(owners, 3)
    pool = {*zip(churn.src.tolist(), churn.dst.tolist(), strict=True)}
    divided = [{*zip(part.src.tolist(), part.dst.tolist(), strict=True)} for part in parts]
    assert set.union(*divided) == pool and sum(map(len, divided)) == len(pool)
    assert len({part.next(100).weights.tobytes() for part in parts}) == 3, "their numbers are their own"
    for owner, (part, other) in enumerate(zip(parts, again.divided(owners, 3), strict=True)):
        other.next(100)
        updates = part.stream(2_000)
        assert (updates.src % 3 == owner).all() and (updates.ops == 0).any()
        np.testing.assert_array_equal(updates.src, other.stream(2_000).src)
    assert not churn.present.any()
