"""How soon subscribers who are sent much are told of more: bounded together, and at common moments."""

from __future__ import annotations

import math
import weakref
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphtide.daemon.serve import pace
from graphtide.daemon.serve.pace import Pace, pause_after, until_all_go_on
from graphtide.daemon.serve.subscriptions import Subscription

MANY = 512 << 20


class Gone:
    """A subscription, as far as it is looked at."""


def some(count: int) -> list[Subscription]:
    return [cast(Subscription, object()) for _ in range(count)]


def test_a_pause_is_as_long_as_what_was_sent_and_bounded() -> None:
    second = pace.BYTES_PER_SECOND
    assert pause_after(0, 1, 0, MANY) == 0
    assert pause_after(second // 100, 1, second // 100, MANY) == pytest.approx(0.01)
    assert pause_after(100 * second, 1, second, MANY) == pace.PAUSE_SECONDS_MAX


def test_a_pause_is_as_long_as_what_all_were_sent_but_for_who_is_sent_little() -> None:
    second = MANY
    assert pause_after(second // 200, 100, second // 2, second) == pytest.approx(0.5)
    assert pause_after(second // 100_000, 100, second, second) == pytest.approx(0.001, rel=0.01)
    assert pause_after(second // 200, 10_000, second // 2, second) == pytest.approx(0.5)
    assert pause_after(second, 100, 100 * second, second) == pace.ALL_PAUSE_SECONDS_MAX


def test_all_are_sent_more_where_there_are_more_cores() -> None:
    assert [Pace(cores).all_bytes_per_second >> 20 for cores in (1, 2, 8, 100)] == [64, 128, 512, 512]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1e-5, 0.8)), min_size=1, max_size=5))
def test_those_who_pause_as_long_go_on_at_one_moment(pauses: list[tuple[float, float]]) -> None:
    for now, pause in pauses:
        wait = until_all_go_on(now, pause)
        step = pace.PAUSE_SECONDS_MAX * 2.0 ** math.ceil(math.log2(pause / pace.PAUSE_SECONDS_MAX))
        assert pause <= step * (1 + 1e-9) and step < 2 * pause * (1 + 1e-9) and step / 4 < wait <= 1.25 * step
        moment = (now + wait) / step
        assert moment == pytest.approx(round(moment), abs=1e-3)
        assert until_all_go_on(now, step) == wait, "whoever pauses a little longer goes on with it"
    assert until_all_go_on(5.0, 0.0) == 0


STEP = st.tuples(st.integers(0, 4), st.integers(0, 10**9), st.floats(0, 2 * pace.LATELY_SECONDS))


@given(st.lists(STEP, max_size=20))
def test_what_all_were_sent_lately_is_what_each_was_sent_last(steps: list[tuple[int, int, float]]) -> None:
    ours, clients, now = Pace(4), some(5), 0.0
    last: dict[int, tuple[int, float]] = {}
    for number, sent, later in steps:
        now += later
        ours.pause(clients[number], sent, now)
        last[number] = sent, now
        known = {id(clients[at]): each for at, each in last.items() if now - each[1] <= pace.LATELY_SECONDS}
        assert ours._sent == known and ours._bytes == sum(size for size, _ in known.values())


def test_whoever_has_gone_is_not_kept() -> None:
    ours, gone = Pace(4), cast(Subscription, Gone())
    ours.pause(gone, 1 << 20, 0.0)
    there = weakref.ref(gone)
    del gone
    assert there() is None


@pytest.mark.parametrize("cores", [1, 2, 8])
@pytest.mark.parametrize("count", [1, 10, 100, 400])
def test_all_together_are_sent_no_more_than_they_may_be_but_for_the_longest_pause(count: int, cores: int) -> None:
    ours, size, now = Pace(cores), 1 << 20, 0.0
    waiting = dict.fromkeys(some(count), 0.0)
    moments: list[float] = []
    for _ in range(20):
        now = min(waiting.values())  # and all have been sent it 10 ms later
        ready = [client for client, when in waiting.items() if when == now]
        moments.append(now)
        for client in ready:
            waiting[client] = round(now + 0.01 + ours.pause(client, size, now + 0.01), 6)
    assert len(set(waiting.values())) == 1, "they go on together"
    period = moments[-1] - moments[-2]
    assert period == pytest.approx(round(period / pace.PAUSE_SECONDS_MAX) * pace.PAUSE_SECONDS_MAX)
    rate = count * size / period
    assert rate <= ours.all_bytes_per_second or period == pytest.approx(pace.ALL_PAUSE_SECONDS_MAX)
