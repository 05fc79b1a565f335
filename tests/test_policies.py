"""What policies think of rows, classes of rows, and how a graph is divided when it is loaded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from graphtide.partition.classes import CLASSES, DEVICE, NO_LIMIT, REST, RowAges, Stock, survey
from graphtide.partition.division import SPARE, SPARE_MIN, divide
from graphtide.partition.placement import HOST
from graphtide.partition.policies import DEFAULT, POLICIES, Classes, remote_bytes

NONE = np.empty(0, np.uint32)


def classes_of(degree: list[float], *, heat: float = 1.0, age: float = 0.0) -> Classes:
    k = len(degree)
    ones = np.ones(k, np.int64)
    return Classes(np.array(degree, float), ones, ones, np.full(k, heat), np.full(k, age))


def random_stock(seed: int, n: int = 3_000) -> Stock:
    rng = np.random.default_rng(seed)
    out, in_ = (rng.pareto(1.1, n).astype(np.uint32) for _ in range(2))
    return Stock(rng.integers(0, 2, n).astype(np.uint8), out, in_)


def lengths(stock: Stock) -> npt.NDArray[np.int64]:
    both = stock.out_degrees.astype(np.int64)
    return both + stock.in_degrees if stock.in_degrees.size else both


def test_what_short_rows_cost_over_the_bus() -> None:
    assert remote_bytes(np.array([1.0, 4, 16, 64, 1024])).round(1).tolist() == [17.4, 5.4, 2.4, 1.7, 1.4]


def test_each_policy_has_its_order() -> None:
    short, long = 0, 1
    by_degree = classes_of([2, 500])
    price = {name: policy(by_degree) for name, policy in POLICIES.items()}
    assert price["hash"][short] == price["hash"][long]
    assert price["hubs-on-device"][short] < price["hubs-on-device"][long]
    assert price["hubs-on-host"][short] > price["hubs-on-host"][long]
    assert price["recent"][short] == price["recent"][long]
    assert price["cost"][short] > price["cost"][long]
    by_age = classes_of([8, 8])._replace(age=np.array([0.0, 256.0]))
    assert POLICIES["recent"](by_age)[0] > POLICIES["recent"](by_age)[1]
    by_heat = classes_of([2, 500])._replace(heat=np.array([0.1, 10.0]))
    assert POLICIES["cost"](by_heat)[short] < POLICIES["cost"](by_heat)[long]
    assert DEFAULT in POLICIES


@pytest.mark.parametrize("policy", POLICIES)
def test_prices_are_numbers_for_empty_classes_too(policy: str) -> None:
    stock = Stock(np.zeros(4, np.uint8), np.array([0, 0, 3, 70], np.uint32), NONE)
    price = POLICIES[policy](survey(stock).classes())
    assert price.shape == (CLASSES,) and price.dtype == np.float64 and np.isfinite(price).all()


@pytest.mark.parametrize("in_rows", [True, False])
def test_a_survey_counts_what_there_is(in_rows: bool) -> None:
    stock = random_stock(1)
    stock = stock if in_rows else stock._replace(in_degrees=NONE)
    found = survey(stock)
    both = lengths(stock)
    for side in (HOST, DEVICE):
        mine = stock.owner == side
        assert found.edges[side].sum() == both[mine].sum() == found.movable[side].sum()
        rows = np.count_nonzero(stock.out_degrees[mine])
        rows += np.count_nonzero(stock.in_degrees[mine]) if in_rows else 0
        assert found.rows[side].sum() == rows
    old = np.flatnonzero(both)
    by_class = np.bincount(RowAges().classes(old.astype(np.uint32), both[old]), both[old], CLASSES)
    assert (by_class == found.edges.sum(axis=0)).all()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("wanted", [1, 500, 10_000, 1 << 40])
def test_the_cheapest_are_listed_until_it_is_enough(policy: str, wanted: int) -> None:
    """Each vertex once, of the side that was asked for, no more than it must be, and never a cheaper one left."""
    stock, ages = random_stock(2), RowAges()
    rng = np.random.default_rng(3)
    for _ in range(6):
        ages.changed(rng.integers(0, 3_000, 50).astype(np.uint32))
        for _ in range(40):
            ages.advance()
    found = ages.survey(stock, NO_LIMIT)
    price = POLICIES[policy](found.classes())
    listed = found.listed(DEVICE, price, wanted)
    both = lengths(stock)
    assert np.unique(listed.vertices).size == listed.vertices.size
    assert (stock.owner[listed.vertices] == DEVICE).all() and (listed.edges == both[listed.vertices]).all()
    there = int(both[stock.owner == DEVICE].sum())
    assert min(wanted, there) <= listed.edges.sum() < wanted + listed.edges[-1]
    of_listed = price[ages.classes(listed.vertices, listed.edges)]
    assert (np.diff(of_listed) >= 0).all()
    left = np.setdiff1d(np.flatnonzero((stock.owner == DEVICE) & (both > 0)), listed.vertices).astype(np.uint32)
    if left.size:
        assert price[ages.classes(left, both[left])].min() >= of_listed.max()


def test_rows_of_equal_prices_are_drawn_from_all() -> None:
    """Not those with the smallest ids, which are the oldest vertices."""
    stock = Stock(np.full(10_000, DEVICE, np.uint8), np.full(10_000, 3, np.uint32), NONE)
    listed = survey(stock).listed(DEVICE, np.ones(CLASSES), 15_000)
    assert listed.vertices.size == 5_000
    assert 2_300 < np.count_nonzero(listed.vertices < 5_000) < 2_700


def test_nothing_is_listed_where_nothing_is_wanted_or_there() -> None:
    nobody = survey(Stock(np.empty(0, np.uint8), NONE, NONE))
    assert nobody.listed(DEVICE, np.ones(CLASSES), 5).vertices.size == 0
    some = survey(random_stock(4))
    assert some.listed(HOST, np.ones(CLASSES), 0).vertices.size == 0
    assert some.listed(HOST, np.ones(CLASSES), -3).vertices.size == 0


def test_a_row_that_moved_rests() -> None:
    stock, ages = random_stock(5), RowAges()
    vertices = np.flatnonzero(lengths(stock))[:2].astype(np.uint32)
    before = ages.survey(stock, NO_LIMIT).movable.sum()
    ages.moved(vertices)
    resting = lengths(stock)[vertices].sum()
    for _ in range(REST):
        found = ages.survey(stock, NO_LIMIT)
        assert found.movable.sum() == before - resting and found.edges.sum() == before
        listed = found.listed(DEVICE, np.ones(CLASSES), 1 << 40), found.listed(HOST, np.ones(CLASSES), 1 << 40)
        assert not np.isin(vertices, np.concatenate([side.vertices for side in listed])).any()
        assert ages.survey(stock, NO_LIMIT, rested=False).movable.sum() == before
        ages.advance()
    assert ages.survey(stock, NO_LIMIT).movable.sum() == before


def test_a_row_that_moved_twice_rests_from_the_second_time_on() -> None:
    stock, ages = random_stock(5), RowAges()
    vertices = np.flatnonzero(lengths(stock))[:1].astype(np.uint32)
    before = ages.survey(stock, NO_LIMIT).movable.sum()
    ages.moved(vertices)
    for _ in range(REST // 2):
        ages.advance()
    ages.moved(vertices)
    for _ in range(REST - 1):
        ages.advance()
    assert ages.survey(stock, NO_LIMIT).movable.sum() < before
    ages.advance()
    assert ages.survey(stock, NO_LIMIT).movable.sum() == before


def test_long_rows_may_not_move() -> None:
    stock = Stock(np.zeros(3, np.uint8), np.array([5, 900, 6], np.uint32), NONE)
    listed = RowAges().survey(stock, 100).listed(HOST, np.ones(CLASSES), 1 << 40)
    assert sorted(listed.vertices) == [0, 2]


def test_classes_tell_ages_apart() -> None:
    """Also behind the point where clocks of 16 bits begin anew."""
    ages, vertices = RowAges(), np.arange(4, dtype=np.uint32)
    one = np.ones(4, np.int64)
    assert np.unique(ages.classes(vertices, one)).tolist() == [3]
    for _ in range(150_000):
        ages.advance()
    for vertex, epochs in ((0, 5_000), (1, 1_000), (2, 100), (3, 0)):
        ages.changed(vertices[vertex : vertex + 1])
        for _ in range(epochs):
            ages.advance()
    assert ages.classes(vertices, one).tolist() == [3, 2, 1, 0]


def test_heat_is_reads_an_edge() -> None:
    stock = Stock(np.array([0, 1, 0], np.uint8), np.array([2, 8, 300], np.uint32), NONE)
    found, ages = survey(stock), RowAges()
    c = ages.classes(np.arange(3, dtype=np.uint32), np.array([2, 8, 300])).astype(np.int64)
    reads = np.zeros(CLASSES)
    reads[c] = [20, 4, 300]
    classes = found.classes(reads)
    assert classes.heat[c].tolist() == [10, 0.5, 1]
    assert classes.degree[c].tolist() == [2, 8, 300] and classes.edges.sum() == 310 and classes.rows.sum() == 3
    unread = np.setdiff1d(np.arange(CLASSES), c)
    assert np.allclose(classes.heat[unread], 324 / 310)
    assert (found.classes().heat == 1).all() and (found.classes(np.zeros(CLASSES)).heat == 0).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_graph_is_the_devices_while_it_fits(policy: str) -> None:
    stock = random_stock(6)
    edges = int(lengths(stock).sum())

    def division(device_bytes: float) -> npt.NDArray[np.uint8]:
        return divide(stock.out_degrees, stock.in_degrees, 20, int(device_bytes), POLICIES[policy])

    assert (division(20 * edges / (1 - SPARE_MIN) + 1) == DEVICE).all()
    owner = division(20 * edges / 2)
    there = int(lengths(stock)[owner == DEVICE].sum())
    longest = int(lengths(stock).max())
    assert (1 - SPARE) * edges / 2 - longest <= there <= (1 - SPARE) * edges / 2
    assert (division(20 * edges / 2) == owner).all()
    gone = division(0)
    assert (gone[lengths(stock) > 0] == HOST).all()


def test_the_longest_rows_leave_first_by_cost() -> None:
    stock = random_stock(7)
    owner = divide(stock.out_degrees, NONE, 20, 10 * int(stock.out_degrees.sum()), POLICIES["cost"])
    kept, left = (stock.out_degrees[(owner == side) & (stock.out_degrees > 0)] for side in (DEVICE, HOST))
    assert 0 < left.size < kept.size and kept.max() < 2 * left.min()
