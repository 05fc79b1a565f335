"""Histograms: every value is in one bin, or said to be in none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from test_subscribing import results

from graphtide.daemon import errors
from graphtide.daemon.client import Client
from graphtide.daemon.serve import histograms
from graphtide.daemon.serve.histograms import Scale, histogram

finite = st.floats(-1e300, 1e300) | st.sampled_from([0.0, 1.0, np.inf, -np.inf])
columns = npst.arrays(np.float64, st.integers(0, 50), elements=finite) | npst.arrays(
    np.uint32, st.integers(0, 50), elements=st.integers(0, 2**32 - 1)
)


@given(columns, st.integers(1, 30), st.sampled_from(["linear", "log"]))
def test_every_value_is_counted_once(values: Any, bins: int, scale: Scale) -> None:
    found = histogram(values, bins, scale)
    inside = [x for x in values.tolist() if np.isfinite(x) and (scale == "linear" or x > 0)]
    assert found.outside == values.size - len(inside) and found.counts.sum() == len(inside)
    if not inside:
        assert found.edges.size == found.counts.size == 0
        return
    assert found.edges.size == found.counts.size + 1 <= bins + 2 and (np.diff(found.edges) > 0).all()
    for i, count in enumerate(found.counts.tolist()):
        low, high, is_last = found.edges[i], found.edges[i + 1], i == found.counts.size - 1
        assert count == sum(low <= x < high or (is_last and x == high) for x in inside)


def test_whole_numbers_have_bins_of_their_own_where_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histograms, "PIECE", 2)
    found = histogram(np.array([3, 5, 3, 7, 3], np.uint32), 5, "linear")
    assert found.edges.tolist() == [3, 4, 5, 6, 7, 8] and found.counts.tolist() == [3, 0, 1, 0, 1]
    assert histogram(np.array([3, 5, 3, 7, 3], np.uint32), 4, "linear").counts.tolist() == [3, 0, 1, 1]
    log = histogram(np.array([1.0, 10.0, 99.0, 100.0, 0.0]), 2, "log")
    assert log.edges.tolist() == pytest.approx([1, 10, 100]) and log.counts.sum() == 4 and log.outside == 1


def test_a_client_gets_one_of_the_vertices_there_are(tmp_path: Path) -> None:
    with results(tmp_path) as (made, address), Client(address) as client:
        made.hops[9] = np.uint64(2**64 - 1)  # there is no path
        made.rank[:] = [1, 1, 1, 2, 2, 3, 10, 100, 1000, np.inf]
        made.alive[[0, 3]] = False
        made.publish(hops=[9], rank=range(10), moved=[0, 3])
        hops = client.histogram("hops")
        assert hops.edges.tolist() == [*range(1, 10)] and hops.counts.tolist() == [1, 1, 0, 1, 1, 1, 1, 1]
        assert (hops.outside, hops.without_value, hops.epoch) == (0, 1, (1, 2))
        rank = client.histogram("rank", 3, scale="log")
        assert rank.edges.tolist() == pytest.approx([1, 10, 100, 1000])
        assert (rank.counts.sum(), rank.outside, rank.without_value) == (7, 1, 0)
        with pytest.raises(errors.NotSupported, match="have no order"):
            client.histogram("parts")
        with pytest.raises(errors.RequestError, match="one of linear, log"):
            client.histogram("rank", scale="up")
        with pytest.raises(errors.LimitExceeded, match="at most 10000"):
            client.histogram("rank", 10_001)
