"""Lists that keep an order, against lists of Python, with room for labels and with hardly any."""

from __future__ import annotations

import numpy as np
import pytest

from graphtide.compute import ordering
from graphtide.compute.ordering import GAP, LIMIT, Order, no_order, with_room

ITEMS, LISTS = 60, 4


def check(order: Order, lists: list[list[int]]) -> None:
    for number, items in enumerate(lists):
        assert order.size[number] == len(items)
        labels = [int(order.label[v]) for v in items]
        assert labels == sorted(set(labels))
        none = ordering.NO_VERTEX
        expected = [none, *items, none]
        assert [order.first[number], order.last[number]] == [expected[1], expected[-2]]
        for before, v, behind in zip(expected, items, expected[2:], strict=False):
            assert (order.preceding[v], order.following[v]) == (before, behind)


@pytest.mark.parametrize(("gap", "limit"), [(GAP, LIMIT), (2, LIMIT), (2, 40), (1, 1 << 20)])
def test_any_moves(gap: int, limit: int) -> None:
    rng = np.random.default_rng(gap)
    order = with_room(no_order(), ITEMS, LISTS)._replace(gap=gap, limit=limit)
    lists: list[list[int]] = [[] for _ in range(LISTS)]
    loose = list(range(ITEMS))
    renewed = 0
    for _ in range(1_500):
        number = int(rng.integers(0, LISTS))
        items = lists[number]
        move = int(rng.integers(0, 4))
        if move == 0 and loose:
            v = loose.pop(int(rng.integers(0, len(loose))))
            ordering.push_front(order, number, v)
            items.insert(0, v)
        elif move == 1 and loose:
            v = loose.pop(int(rng.integers(0, len(loose))))
            ordering.push_back(order, number, v)
            items.append(v)
        elif move == 2 and items and loose:
            run = [loose.pop() for _ in range(int(rng.integers(1, min(len(loose), 5) + 1)))]
            at = int(rng.integers(0, len(items)))
            renewed += ordering.put_behind(order, number, items[at], np.array(run, np.uint32), len(run))
            items[at + 1 : at + 1] = run
        elif move == 3 and items:
            v = items.pop(int(rng.integers(0, len(items))))
            ordering.unlink(order, number, v)
            loose.append(v)
        renewed += ordering.keep_within(order, number)
        check(order, lists)
    assert renewed > 20 if gap < GAP else renewed == 0


def test_an_order_is_made_again_of_labels() -> None:
    rng = np.random.default_rng(3)
    order = with_room(no_order(), ITEMS, LISTS)
    lists: list[list[int]] = [[] for _ in range(LISTS)]
    number = np.full(ITEMS, 0, np.uint32)
    for v in rng.permutation(ITEMS).tolist():
        number[v] = rng.choice([0, 0, 3])
        ordering.push_front(order, int(number[v]), v)
        lists[number[v]].insert(0, v)
    other = with_room(no_order(), ITEMS, LISTS)
    other.label[:ITEMS] = order.label[:ITEMS]
    assert ordering.relinked(other, number)
    check(other, lists)
    ordering.clear(other)
    check(other, [[] for _ in range(LISTS)])
    other.label[lists[0][0]] = other.label[lists[0][1]]
    assert not ordering.relinked(other, number)
    assert ordering.relinked(with_room(no_order(), 0, 1), np.empty(0, np.uint32))


def test_what_is_put_at_one_place_is_rarely_labelled_anew() -> None:
    """A hundred thousand items, each right behind the first: thirty of them fit before labels are made anew."""
    n = 100_000
    order = with_room(no_order(), n, 1)
    ordering.push_back(order, 0, 0)
    renewed = sum(ordering.put_behind(order, 0, 0, np.array([v], np.uint32), 1) for v in range(1, n // 10))
    assert renewed <= n // 10 // 29
