"""How the time of runs divides: prices are found from what runs read and took."""

from __future__ import annotations

import numpy as np
import pytest

from graphtide.partition.run_costs import BUS_BYTE_S, RunCosts


def test_prices_are_those_that_runs_were_made_with(seed: int) -> None:
    rng = np.random.default_rng(seed)
    begin_s, edge_s, byte_s = 4e-4, 1.5e-9, 1.3e-10
    costs = RunCosts()
    predicted, measured, wanted = np.zeros(2), np.zeros(2), np.zeros(2)
    for k in range(600):
        edges, n_bytes = int(10 ** rng.uniform(2, 8)), int(10 ** rng.uniform(2, 9))
        parts = np.array([begin_s + edges * edge_s, n_bytes * byte_s])
        found = costs.see(float(parts.sum() * rng.normal(1, 0.05)), edges, n_bytes)
        assert sum(found.measured) == pytest.approx(parts.sum(), rel=0.3)
        if k >= 300:
            predicted, measured, wanted = predicted + found.predicted, measured + found.measured, wanted + parts
    assert predicted == pytest.approx(wanted, rel=0.15)
    assert measured == pytest.approx(wanted, rel=0.1)
    assert costs.bus_byte_s == pytest.approx(byte_s, rel=0.15)


def test_what_runs_say_nothing_about_stays_as_supposed() -> None:
    costs = RunCosts()
    for _ in range(500):
        found = costs.see(2e-3, 1_000_000, 0)
        assert found.measured.bus == 0 and found.measured.device == pytest.approx(2e-3)
    assert costs.bus_byte_s == pytest.approx(BUS_BYTE_S, rel=0.2)
    assert found.predicted.device == pytest.approx(2e-3, rel=0.1)


def test_runs_that_all_read_alike_are_divided_as_supposed_and_add_up() -> None:
    costs = RunCosts()
    for k in range(500):
        found = costs.see(1e-3 * (1 + k % 3), 1_000_000 * (1 + k % 3), 10_000_000 * (1 + k % 3))
        assert sum(found.measured) == pytest.approx(1e-3 * (1 + k % 3))
        assert min(found.measured) > 0
    assert sum(found.predicted) == pytest.approx(sum(found.measured), rel=0.1)


def test_a_run_that_took_no_time_teaches_nothing() -> None:
    costs = RunCosts()
    before = costs.bus_byte_s
    assert sum(costs.see(0.0, 10, 10).measured) == 0
    assert costs.bus_byte_s == before


def test_a_bus_that_becomes_slow_is_noticed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = RunCosts()
    for byte_s in (1e-10, 1e-9):
        for _ in range(400):
            edges, n_bytes = int(10 ** rng.uniform(5, 8)), int(10 ** rng.uniform(5, 8))
            costs.see(1e-4 + 1e-9 * edges + byte_s * n_bytes, edges, n_bytes)
        assert costs.bus_byte_s == pytest.approx(byte_s, rel=0.2)
