"""Room that is taken in turn, and places with a share for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from waiting import PATIENCE_S

from graphtide.daemon.serve.turns import Shares, Turns


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(bounded())


def test_those_who_ask_for_much_do_not_come_before_those_who_ask_for_little() -> None:
    turns, done = Turns(1), []

    async def work(asker: str, number: int) -> None:
        async with turns.turn(asker):
            await asyncio.sleep(0)
            done.append(asker + str(number))

    async def test() -> None:
        many = [asyncio.create_task(work("a", number)) for number in range(5)]
        await asyncio.sleep(0)
        few = [asyncio.create_task(work(asker, 0)) for asker in "bc"]
        await asyncio.gather(*many, *few)
        assert done == ["a0", "a1", "a2", "b0", "c0", "a3", "a4"]
        assert turns.used == 0 and not turns.is_short

    run(test)


def test_room_is_never_exceeded_and_more_than_all_of_it_is_all_of_it() -> None:
    turns = Turns(10)
    most = 0

    async def work(asker: int) -> None:
        nonlocal most
        async with turns.turn(asker % 4, 1 + asker % 13):
            most = max(most, turns.used)
            await asyncio.sleep(0)

    async def test() -> None:
        await asyncio.gather(*(work(asker) for asker in range(200)))
        assert most == 10 and turns.used == 0

    run(test)


@pytest.mark.parametrize("given", [False, True])
def test_who_stops_waiting_keeps_nothing_and_nobody(given: bool) -> None:
    async def test() -> None:
        turns = Turns(2)
        await turns.take("a", 2)
        leaving = [asyncio.create_task(turns.take("b", 2)) for _ in range(2)]
        staying = asyncio.create_task(turns.take("c", 1))
        await asyncio.sleep(0)
        if given:  # the turn is b's when b is cancelled, and has not heard of it yet
            turns.give_back(2)
        for task in leaving:
            task.cancel()
        if not given:
            turns.give_back(2)
        assert await staying == 1
        await asyncio.gather(*leaving, return_exceptions=True)
        assert all(task.cancelled() for task in leaving)
        turns.give_back(1)
        assert turns.used == 0 and not turns.is_short

    run(test)


def test_each_has_places_of_its_own_whatever_the_others_take() -> None:
    shares = Shares(40, 10)
    assert sum(shares.take("a") for _ in range(100)) == 22  # two of its own, and all that are common
    for asker in "bcdefghij":
        assert [shares.take(asker) for _ in range(3)] == [True, True, False]
    for _ in range(20):
        shares.give_back("a")
    assert sum(shares.take("b") for _ in range(100)) == 20
    assert not shares.take("a")


def test_each_has_at_least_one_place() -> None:
    shares = Shares(3, 10)
    assert [shares.take(asker) for asker in "aabb"] == [True, False, True, False]
