"""Histograms: every value is in one bin, or said to be in none."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from test_server import Chain, serving
from test_subscribing import results

from graphtide.daemon import errors
from graphtide.daemon.client import Client
from graphtide.daemon.engine import topology as topology_module
from graphtide.daemon.engine.storage import Storage
from graphtide.daemon.engine.topology import EngineTopology
from graphtide.daemon.records.position import Position
from graphtide.daemon.records.stream import Source
from graphtide.daemon.records.topology import DegreeCounts, merged_degrees
from graphtide.daemon.serve import histograms
from graphtide.daemon.serve.histograms import Scale, histogram
from graphtide.daemon.state.requested import RequestedCheckpoints
from graphtide.gpma.edges import EdgeBatch, Op, pack
from graphtide.partition.existence import VertexOps
from graphtide.partition.graph import Graph

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


def test_whole_numbers_that_are_no_doubles_are_counted() -> None:
    found = histogram(np.array([2**60, 2**60 + 3, 2**60 + 1], np.uint64), 20, "linear")
    assert found.counts.sum() == 3 and (np.diff(found.edges) > 0).all()


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


def test_a_span_that_is_no_double_has_finite_edges() -> None:
    values = np.array([-1.7e308, -1e308, 0.0, 1.0, 1.7e308])
    found = histogram(values, 4, "linear")
    assert found.edges.tolist() == pytest.approx([-1.7e308, -0.85e308, 0, 0.85e308, 1.7e308])
    assert found.counts.tolist() == [2, 0, 2, 1] and found.outside == 0


def merged(*parts: DegreeCounts) -> dict[int, int]:
    degrees, counts = merged_degrees([(part.degrees, part.counts) for part in parts])
    assert (np.diff(degrees) > 0).all()
    return dict(zip(degrees.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize("directed", [True, False])
def test_degrees_of_the_vertices_there_are_are_counted(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Graph(directed=directed, weighted=False)) as graph:
        src, dst = np.array([0, 0, 1, 3, 4], np.uint32), np.array([1, 2, 2, 0, 0], np.uint32)
        graph.apply(EdgeBatch(pack(src, dst), np.full(5, Op.INSERT, np.uint8)), 7, None)
        gone = VertexOps(
            np.array([4, 6], np.uint32), np.full(2, Op.DELETE_VERTEX, np.uint8), np.zeros(2, np.int64)
        )
        graph.apply(EdgeBatch(np.empty(0, np.uint64), np.empty(0, np.uint8)), 7, gone)
        topology = EngineTopology(
            Storage(graph, Position(1)), cast(Source, None), cast(RequestedCheckpoints, None)
        )
        directions: tuple[Literal["out", "in"], ...] = ("out", "in")
        found = [topology.degree_counts(direction, 0, 7, 60.0) for direction in directions]
        # 0 -> 1, 0 -> 2, 1 -> 2 and 3 -> 0 are left; 5 has no edge
        expected = [{0: 2, 1: 2, 2: 1}, {0: 2, 1: 2, 2: 1}] if directed else [{0: 1, 1: 1, 2: 2, 3: 1}] * 2
        assert [dict(zip(f.degrees.tolist(), f.counts.tolist(), strict=True)) for f in found] == expected
        assert {one.n_vertices for one in found} == {7}
        # in pieces, by one question and by several
        monkeypatch.setattr(topology_module, "DEGREES_AT_ONCE", 2)
        assert merged(topology.degree_counts("out", 0, 2**32 - 1, 60.0)) == expected[0]
        parts = [topology.degree_counts("out", first, 3, 60.0) for first in (0, 3, 6, 9)]
        assert merged(*parts) == expected[0]
        with pytest.raises(TimeoutError, match="takes longer"):
            topology.degree_counts("out", 0, 7, 0.0)


def test_a_client_gets_the_degree_distribution(tmp_path: Path) -> None:
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path) as link, Client(link.addresses[0]) as client:
        found = client.degree_distribution()
        assert (found.degrees.tolist(), found.counts.tolist(), found.epoch) == ([0, 1], [2, 8], (1, 1))
        with pytest.raises(errors.RequestError, match="one of out, in"):
            client.degree_distribution("up")
