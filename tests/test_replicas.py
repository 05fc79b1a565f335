"""Clients of several servers, which do as the test says: whom they ask, and how old an answer may be."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from test_client import CLOSE, Scripted, values_of

from graphtide.daemon.client import AsyncClient, Client, Result, wire
from graphtide.daemon.errors import TimedOut, Unavailable, UnknownProgram

Ask = Callable[..., Result]


class Replica(Scripted):
    """A server that has read up to ``offset``; it may hang up instead of its next answer, or say nothing."""

    def __init__(self, offset: int) -> None:
        super().__init__(self._answer)
        self.offset = offset
        self.hangs_up = False
        self.is_mute = False
        self.takes_subscriptions = True
        self.why_not = "unavailable"

    @property
    def asked(self) -> list[str]:
        return [method for _, method, _ in self.requests]

    def _answer(self, msgid: int, method: str, params: dict[str, Any]) -> list[Any]:
        if self.hangs_up:
            return [CLOSE]
        if self.is_mute:
            return []
        if method == "wait" and params["min_offsets"]["t"][0] > self.offset:
            return [[1, msgid, {"code": "timeout", "message": "behind", "detail": {}}, None]]
        if method == "get":
            return [[1, msgid, {"code": "unknown-program", "message": "none", "detail": {}}, None]]
        stamp = {"epoch": [1, self.offset], "offsets": {"t": {0: self.offset}}}
        if method != "subscribe":
            return [[1, msgid, None, stamp]]
        if not self.takes_subscriptions:
            return [[1, msgid, {"code": self.why_not, "message": "not yet", "detail": {}}, None]]
        ids = wire.pack_column(np.array([self.offset]))
        told = {**values_of([0.5]), "ids": ids, "removed": wire.pack_column(np.zeros(0, "<i8"))}
        begun = {**stamp, "subscription": 0, "resumed": False}
        return [
            [1, msgid, None, begun],
            [2, "changed", [{**stamp, **told, "subscription": 0, "since": None, "more": False}]],
        ]


@pytest.fixture(params=["blocking", "asynchronous"])
def client(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a client of these servers; what it is called with is a method and its arguments."""

    @contextlib.contextmanager
    def blocking(addresses: Sequence[str], timeout: float = 20) -> Iterator[Ask]:
        with Client(addresses, timeout=timeout) as made:
            yield lambda method, *given: getattr(made, method)(*given)

    @contextlib.contextmanager
    def asynchronous(addresses: Sequence[str], timeout: float = 20) -> Iterator[Ask]:
        with asyncio.Runner() as runner:
            made = AsyncClient(addresses, timeout=timeout)
            yield lambda method, *given: runner.run(getattr(made, method)(*given))
            runner.run(made.close())

    return {"blocking": blocking, "asynchronous": asynchronous}[request.param]


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """An address that nobody listens at, and nobody else can take."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{held.getsockname()[1]}"


def test_the_first_is_asked_as_long_as_it_answers(client: Callable[..., Any]) -> None:
    with Replica(5) as first, Replica(5) as second, client([first.address, second.address]) as ask:
        for _ in range(3):
            ask("stats")
        with pytest.raises(UnknownProgram):
            ask("get", "p", [1])
        assert first.asked == ["stats"] * 3 + ["get"] and second.asked == []


def test_the_next_is_asked_where_one_cannot_be_reached(client: Callable[..., Any]) -> None:
    with nobody() as none, Replica(5) as second, client([none, second.address]) as ask:
        assert ask("stats").offsets == {"t": {0: 5}}


def test_one_that_goes_away_costs_no_answer_and_the_next_must_have_caught_up(
    client: Callable[..., Any],
) -> None:
    with Replica(7) as first, Replica(9) as second, client([first.address, second.address]) as ask:
        assert ask("stats").offsets == {"t": {0: 7}}
        first.hangs_up = True
        assert ask("stats").offsets == {"t": {0: 9}}
        assert second.asked == ["wait", "stats"]
        assert second.requests[0][2]["min_offsets"] == {"t": {0: 7}}


def test_one_that_says_nothing_is_left(client: Callable[..., Any]) -> None:
    was_asked = False
    while not was_asked:  # where this machine stands still, no connection comes about in time
        with Replica(7) as first, Replica(9) as second, client([first.address, second.address], 0.5) as ask:
            first.is_mute = True
            assert answered(ask).offsets == {"t": {0: 9}}
            was_asked = first.asked[:1] == ["stats"]


def answered(ask: Ask) -> Result:
    """The first answer, however slow this machine is."""
    while True:
        with contextlib.suppress(TimedOut, Unavailable):
            return ask("stats")


def test_others_who_wait_for_one_that_says_nothing_ask_the_next() -> None:
    async def ask() -> None:
        with Replica(7) as first, Replica(9) as second:
            client = AsyncClient([first.address, second.address], timeout=60)
            first.is_mute = True
            waiting = asyncio.create_task(client.wait({"t": {0: 8}}, timeout_ms=300_000))
            changing = asyncio.create_task(client.drop("p"))
            try:
                while len(first.asked) < 2:
                    await asyncio.sleep(0.01)
                assert client._link is not None
                await client._leave(client._link)  # as a request does that had no answer in time
                assert (await waiting).offsets == {"t": {0: 9}}
                with pytest.raises(Unavailable, match="it said nothing for too long"):
                    await changing
            finally:
                for one in (waiting, changing):
                    one.cancel()
                await client.close()

    asyncio.run(asyncio.wait_for(ask(), 120))


def test_one_that_answers_others_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        with nobody() as none, Replica(7) as first:
            client = AsyncClient([first.address, none], timeout=60)
            try:
                await client.stats()
                link = client._link
                assert link is not None
                at_once = link.exchange

                async def exchange(method: str, params: Any) -> Any:
                    if method == "get":  # takes too long, while others are answered
                        await client.stats()
                        raise TimeoutError
                    return await at_once(method, params)

                monkeypatch.setattr(link, "exchange", exchange)
                with pytest.raises(TimedOut):
                    await client.get("p", [1])
                assert client._link is link
            finally:
                await client.close()

    asyncio.run(ask())


@pytest.mark.parametrize(
    "changing", [("keep", "bfs", {"source": 1}), ("drop", "bfs"), ("checkpoint",)], ids=lambda asked: asked[0]
)
def test_what_changes_something_is_asked_of_one_alone(
    client: Callable[..., Any], changing: tuple[Any, ...]
) -> None:
    """Whether the first has done it nobody knows."""
    with Replica(7) as first, Replica(9) as second, client([first.address, second.address]) as ask:
        ask("stats")
        first.hangs_up = True
        with pytest.raises(Unavailable, match="broke"):
            ask(*changing)
        assert second.asked == []


def test_no_answer_is_older_than_one_before_it(client: Callable[..., Any]) -> None:
    with Replica(7) as first, Replica(6) as behind, client([first.address, behind.address]) as ask:
        ask("stats")
        first.hangs_up = True
        with pytest.raises(Unavailable, match=r"no server can be spoken to: .*broke.*; .*behind"):
            ask("stats")
        assert "stats" not in behind.asked
        behind.offset = 8
        assert ask("stats").offsets == {"t": {0: 8}}


def test_epochs_of_one_are_not_those_of_another(client: Callable[..., Any]) -> None:
    """The second has a higher number of epochs for the same offsets, the third a lower one."""
    with Replica(7) as first, Replica(9) as second, client([first.address, second.address]) as ask:
        ask("stats")
        first.hangs_up = True
        ask("stats")
        second.hangs_up, first.hangs_up = True, False
        with pytest.raises(Unavailable):
            ask("stats")
        assert first.requests[-1][2]["min_offsets"] == {"t": {0: 9}}


def test_a_single_server_is_asked_as_ever(client: Callable[..., Any]) -> None:
    with Replica(7) as only, client([only.address]) as ask:
        ask("stats")
        only.hangs_up = True
        with pytest.raises(Unavailable):
            ask("stats")
        only.hangs_up, only.offset = False, 3
        assert ask("stats").offsets == {"t": {0: 3}} and "wait" not in only.asked


def test_where_nobody_listens_the_error_names_all(client: Callable[..., Any]) -> None:
    with nobody() as one, nobody() as other, client([one, other]) as ask, pytest.raises(Unavailable) as caught:
        ask("stats")
    assert one in str(caught.value) and other in str(caught.value)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_address_must_be_given(kind: Any) -> None:
    with pytest.raises(ValueError, match="needs the address"):
        kind([])
    with pytest.raises(ValueError, match="is no address"):
        kind(["unix:/tmp/s", "localhost"])


def test_a_subscription_that_moves_begins_anew_and_not_with_another_servers_epoch() -> None:
    with Replica(7) as first, Replica(9) as second:
        client = Client([first.address, second.address], timeout=60)
        with client.subscribe("p", reconnect=True) as changes:
            assert next(changes).ids.tolist() == [7]
            first.hangs_up = True
            first.hang_up()
            change = next(changes)
            assert change.ids.tolist() == [9] and change.since is None
        subscribed = second.requests[-1]
        assert subscribed[1] == "subscribe"
        assert subscribed[2] == {"program": "p", "min_offsets": {"t": {0: 7}}}


class Listener:
    """A client of either kind, with one subscription."""

    def __init__(self, kind: Any, addresses: Sequence[str]) -> None:
        self.runner = asyncio.Runner() if kind is AsyncClient else None
        self.client = kind(addresses, timeout=60)
        self.changes: Any = None

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        if self.runner is None:
            if self.changes is not None:
                self.changes.close()
            self.client.close()
            return
        with self.runner:
            self.runner.run(self.changes.aclose())
            self.runner.run(self.client.close())

    def ask(self) -> Any:
        asked = self.client.stats()
        return asked if self.runner is None else self.runner.run(asked)

    def subscribe(self, **given: Any) -> None:
        self.changes = self.client.subscribe("p", **given)

    def subscribe_and_hear(self) -> int:
        self.subscribe()
        return self.next()

    def next(self) -> int:
        change = next(self.changes) if self.runner is None else self.runner.run(anext(self.changes))
        return int(change.ids[0])


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_subscription_of_several_servers_outlives_one_of_them_unless_told_otherwise(kind: Any) -> None:
    for given in ({}, {"reconnect": False}):
        with (
            Replica(7) as first,
            Replica(9) as second,
            Listener(kind, [first.address, second.address]) as listener,
        ):
            listener.subscribe(**given)
            assert listener.next() == 7
            first.hangs_up = True
            first.hang_up()
            if given:
                with pytest.raises(Unavailable, match="broke"):
                    listener.next()
            else:
                assert listener.next() == 9


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_server_that_answers_and_takes_no_subscriptions_is_left_for_the_next(kind: Any) -> None:
    """One that has just begun, say."""
    with Replica(7) as first, Replica(9) as second, Listener(kind, [first.address, second.address]) as listener:
        first.takes_subscriptions = False
        listener.subscribe()
        assert listener.next() == 9
        second.takes_subscriptions, first.takes_subscriptions, first.offset = False, True, 11
        second.hang_up()
        assert listener.next() == 11


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_where_no_server_has_caught_up_in_time_the_error_is_that_of_time(kind: Any) -> None:
    with Replica(7) as first, Replica(9) as second, Listener(kind, [first.address, second.address]) as listener:
        for replica in (first, second):
            replica.takes_subscriptions, replica.why_not = False, "timeout"
        with pytest.raises(TimedOut, match="no server has answered in time: not yet; not yet"):
            listener.subscribe_and_hear()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_subscription_begins_where_its_client_is_and_with_nothing_older_than_what_it_saw(kind: Any) -> None:
    with Replica(7) as first, Replica(9) as second, Listener(kind, [first.address, second.address]) as listener:
        first.hello_error = {"code": "unavailable", "message": "not yet", "detail": {}}
        assert listener.ask().offsets == {"t": {0: 9}}
        first.hello_error = None
        listener.subscribe()
        assert listener.next() == 9
        assert "subscribe" not in first.asked
        assert [method for method in second.asked if method != "subscribe"][-1] == "wait"
        assert second.requests[-2][2]["min_offsets"] == {"t": {0: 9}}


def test_a_subscription_that_stays_goes_on_from_its_epoch() -> None:
    with Replica(7) as only, Client(only.address, timeout=60) as client:
        with client.subscribe("p", reconnect=True) as changes:
            next(changes)
            only.hang_up()
            next(changes)
        assert only.requests[-1][2] == {"program": "p", "since": [1, 7]}


def test_an_asynchronous_subscription_moves_too() -> None:
    async def follow(addresses: Sequence[str], first: Replica) -> list[int]:
        async with contextlib.aclosing(
            AsyncClient(addresses, timeout=60).subscribe("p", reconnect=True)
        ) as changes:
            seen = [(await anext(changes)).ids.tolist()[0]]
            first.hangs_up = True
            first.hang_up()
            return [*seen, (await anext(changes)).ids.tolist()[0]]

    with nobody() as none, Replica(7) as first, Replica(9) as second:
        assert asyncio.run(follow([none, first.address, second.address], first)) == [7, 9]
        assert second.requests[-1][2] == {"program": "p", "min_offsets": {"t": {0: 7}}}


def test_an_asynchronous_subscription_says_so_where_nobody_listens() -> None:
    async def follow(addresses: Sequence[str]) -> None:
        async with contextlib.aclosing(AsyncClient(addresses).subscribe("p", reconnect=True)) as changes:
            await anext(changes)

    with nobody() as one, nobody() as other, pytest.raises(Unavailable, match="no server can be spoken to"):
        asyncio.run(follow([one, other]))


def test_a_server_that_hangs_is_left_for_the_next(client: Callable[..., Any]) -> None:
    with Replica(7) as second, socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with client([hanging, second.address], 0.3) as ask:
            assert answered(ask).offsets == {"t": {0: 7}}
