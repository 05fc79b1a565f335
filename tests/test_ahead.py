"""Answers that are computed once for an epoch, and before anybody asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from graphtide.daemon.errors import Unavailable
from graphtide.daemon.serve import once
from graphtide.daemon.serve.once import AHEAD_UNASKED, OnceAnEpoch


class Epochs:
    """Epochs without results, of which answers are asked."""

    def __init__(self) -> None:
        self.answers = OnceAnEpoch[int](lambda: (1, self.number), self.begin)
        self.under_way: set[asyncio.Future[int]] = set()
        self.number = 1
        self.computed: list[tuple[Any, int]] = []
        self.fails = False

    def begin(self, work: Coroutine[Any, Any, int]) -> asyncio.Future[int]:
        future = asyncio.ensure_future(work)
        self.under_way.add(future)
        future.add_done_callback(self.ended)
        return future

    def ended(self, future: asyncio.Future[int]) -> None:
        self.under_way.discard(future)
        if not future.cancelled():
            future.exception()

    async def publish(self) -> None:
        self.number += 1
        self.answers.compute_ahead()
        while self.under_way:
            await asyncio.sleep(0)

    def work(self, key: Any) -> Callable[[], Coroutine[Any, Any, int]]:
        async def compute() -> int:
            number = self.number
            self.computed.append((key, number))
            await asyncio.sleep(0)
            if self.fails:
                raise Unavailable("epochs follow each other too fast")
            return number

        return compute

    async def ask(self, key: Any = "k", *, ahead: bool = True) -> int:
        return await self.answers.answer(key, self.work(key), ahead=ahead)


def test_what_was_asked_of_an_epoch_is_computed_for_the_next_one_and_no_further() -> None:
    async def go() -> None:
        epochs = Epochs()
        assert await asyncio.gather(epochs.ask(), epochs.ask(), epochs.ask("other", ahead=False)) == [1, 1, 1]
        await epochs.publish()
        assert epochs.computed == [("k", 1), ("other", 1), ("k", 2)]
        assert await epochs.ask() == 2 and len(epochs.computed) == 3
        await epochs.publish()
        assert epochs.computed[3:] == [("k", 3)], "as it was asked of the one before"
        for _ in range(AHEAD_UNASKED + 3):
            await epochs.publish()
        made = 4 + AHEAD_UNASKED
        assert len(epochs.computed) == made, "nobody asked any more"
        newest = epochs.number
        assert await epochs.ask() == newest and epochs.computed[made:] == [("k", newest)]
        epochs.answers.compute_ahead()
        assert len(epochs.computed) == made + 1, "it is the same epoch"
        for _ in range(AHEAD_UNASKED):
            await epochs.publish()
        assert await epochs.ask() == epochs.number, "which was computed by then"
        for _ in range(AHEAD_UNASKED + 3):
            await epochs.publish()
        assert len(epochs.computed) == made + 1 + 2 * AHEAD_UNASKED + 1

    asyncio.run(go())


def test_what_computed_an_answer_computes_the_next_one_whoever_has_asked_meanwhile() -> None:
    """As it may begin with what came of it."""

    async def go() -> None:
        epochs = Epochs()
        by: list[str] = []

        def work(name: str) -> Callable[[], Coroutine[Any, Any, int]]:
            async def compute() -> int:
                by.append(name)
                return 0

            return compute

        await epochs.answers.answer("k", work("first"), ahead=True)
        for _ in range(3):
            await epochs.publish()
            await epochs.answers.answer("k", work("later"), ahead=True)
        assert by == ["first"] * 4

    asyncio.run(go())


def test_few_are_computed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "AHEAD_MAX", 2)

    async def go() -> None:
        epochs = Epochs()
        for key in range(5):
            assert await epochs.ask(key) == 1
        await epochs.publish()
        assert len(epochs.computed) == 7 and not epochs.under_way
        for number in (2, 3):
            assert await epochs.ask("late") == number
            await epochs.publish()
            assert ("late", number + 1) in epochs.computed, "whoever is asked for goes first"
        for _ in range(5):
            await epochs.publish()
        made = len(epochs.computed)
        await epochs.publish()
        assert len(epochs.computed) == made, "what was left out then is not wanted for ever"

    asyncio.run(go())


def test_a_failure_ahead_is_nobodys() -> None:
    async def go() -> None:
        epochs = Epochs()
        await epochs.ask()
        epochs.fails = True
        await epochs.publish()
        assert epochs.computed[1:] == [("k", 2)]
        with pytest.raises(Unavailable):
            await epochs.ask()
        assert epochs.computed[2:] == [("k", 2)], "whoever asks tries again, and hears of its own failure"
        epochs.fails = False
        assert await epochs.ask() == 2

    asyncio.run(go())


def test_whoever_leaves_while_it_is_computed_ahead_leaves_it_to_others() -> None:
    async def go() -> None:
        epochs = Epochs()
        await epochs.ask()
        epochs.number += 1
        epochs.answers.compute_ahead()
        leaves, stays = asyncio.create_task(epochs.ask()), asyncio.create_task(epochs.ask())
        await asyncio.sleep(0)
        leaves.cancel()
        assert await stays == 2 and leaves.cancelled() and len(epochs.computed) == 2

    asyncio.run(go())
