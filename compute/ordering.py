"""Lists that keep an order: of two items of one list it is known at once which comes first.

Each item has a label, which rises along its list. An item that is put between two others gets a label between
theirs; where there is none left, the list is labelled anew, which is rare enough to cost little in the mean
(Dietz, Sleator, "Two algorithms for maintaining order in a list", 1987; Bender et al., "Two simplified algorithms
for maintaining order in a list", 2002). Items are vertices, each in one list at most; lists have small numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..gpma.edges import NO_VERTEX, Int, Vertices
from ..gpma.intrinsics import uncounted, uncounted_inner
from ..gpma.vertex_columns import grown

GAP = 1 << 30
"""How far labels of neighbours in a list are apart at first: 2^32 items have room in 63 bits."""

LIMIT = 1 << 62
"""Labels are below this in size when a change is over; while it is made, they may be twice as large."""


class Order(NamedTuple):
    """By item: ``label`` int64, ``following`` and ``preceding`` uint32 (``NO_VERTEX`` at the ends).

    By list: ``first`` and ``last`` uint32 (``NO_VERTEX`` where it is empty), ``size`` int64. ``gap`` and
    ``limit``: as GAP and LIMIT.
    """

    label: npt.NDArray[np.int64]
    following: Vertices
    preceding: Vertices
    first: Vertices
    last: Vertices
    size: npt.NDArray[np.int64]
    gap: int
    limit: int


def no_order() -> Order:
    """One of no items and no lists."""
    none, labels = np.empty(0, np.uint32), np.empty(0, np.int64)
    return Order(labels, none, none, none, none, labels, GAP, LIMIT)


def with_room(order: Order, items: int, lists: int) -> Order:
    """The order with room for so many items, and lists, of which new ones are empty."""
    return order._replace(
        label=grown(order.label, items),
        following=grown(order.following, items),
        preceding=grown(order.preceding, items),
        first=grown(order.first, lists, int(NO_VERTEX)),
        last=grown(order.last, lists, int(NO_VERTEX)),
        size=grown(order.size, lists, 0),
    )


def clear(order: Order) -> None:
    """Empty all lists."""
    order.first[:] = order.last[:] = NO_VERTEX
    order.size[:] = 0


@uncounted_inner
def _join(order: Order, number: Int, before: Int, behind: Int) -> None:
    """Let one item come right behind another of a list, or begin it (``before``: NO_VERTEX), or end it."""
    if before == NO_VERTEX:
        order.first[number] = behind
    else:
        order.following[before] = behind
    if behind == NO_VERTEX:
        order.last[number] = before
    else:
        order.preceding[behind] = before


@uncounted
def push_back(order: Order, number: Int, v: Int) -> None:
    """Put an item behind all others of a list."""
    tail = order.last[number]
    order.label[v] = 0 if tail == NO_VERTEX else order.label[tail] + order.gap
    _join(order, number, tail, np.uint32(v))
    _join(order, number, np.uint32(v), NO_VERTEX)
    order.size[number] += 1


@uncounted
def push_front(order: Order, number: Int, v: Int) -> None:
    """Put an item before all others of a list."""
    head = order.first[number]
    order.label[v] = 0 if head == NO_VERTEX else order.label[head] - order.gap
    _join(order, number, NO_VERTEX, np.uint32(v))
    _join(order, number, np.uint32(v), head)
    order.size[number] += 1


@uncounted
def unlink(order: Order, number: Int, v: Int) -> None:
    """Take an item out of its list; it keeps its label."""
    _join(order, number, order.preceding[v], order.following[v])
    order.size[number] -= 1


@uncounted
def put_behind(order: Order, number: Int, at: Int, items: Vertices, n: Int) -> bool:
    """Put the first n of the items, in their order, right behind ``at``; whether the list was labelled anew."""
    behind = order.following[at]
    renewed = False
    step = np.int64(order.gap)
    if behind != NO_VERTEX:
        step = (order.label[behind] - order.label[at]) // (n + 1)
        if step < 1:
            label_anew(order, number, max(np.int64(order.gap), n + 1))
            step = (order.label[behind] - order.label[at]) // (n + 1)
            renewed = True
    before, label = np.uint32(at), order.label[at]
    for k in range(n):
        v = items[k]
        label += step
        order.label[v] = label
        _join(order, number, before, v)
        before = v
    _join(order, number, before, behind)
    order.size[number] += n
    return renewed


@uncounted
def label_anew(order: Order, number: Int, gap: Int) -> None:
    """Labels so far apart for all items of a list, around 0."""
    v, label = order.first[number], -(order.size[number] >> 1) * np.int64(gap)
    while v != NO_VERTEX:
        order.label[v] = label
        label += gap
        v = order.following[v]


@uncounted
def keep_within(order: Order, number: Int) -> bool:
    """Label a list anew that has come near what a label can hold; whether it was."""
    head, tail = order.first[number], order.last[number]
    if head == NO_VERTEX or (order.label[head] >= -order.limit and order.label[tail] <= order.limit):
        return False
    label_anew(order, number, order.gap)
    return True


def relinked(order: Order, number: Vertices) -> bool:
    """Make the lists of items by the list and the label that each has (NumPy); all of the order must be empty.

    Returns whether all labels of a list differ, without which it has no order.
    """
    label = order.label[: number.size]
    ranked = np.lexsort((label, number)).astype(np.uint32)
    of = number[ranked]
    joined = of[1:] == of[:-1]
    before, behind = ranked[:-1], ranked[1:]
    if (label[before] == label[behind])[joined].any():
        return False
    order.following[: number.size] = order.preceding[: number.size] = NO_VERTEX
    order.following[before[joined]] = behind[joined]
    order.preceding[behind[joined]] = before[joined]
    if of.size:
        begins, ends = np.flatnonzero(np.append(True, ~joined)), np.flatnonzero(np.append(~joined, True))
        order.first[of[begins]], order.last[of[ends]] = ranked[begins], ranked[ends]
        order.size[of[begins]] = ends - begins + 1
    return True
