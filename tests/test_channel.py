"""A connection whose requests wait for the lane: answered as soon as that says something."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, cast

import msgpack
import pytest

from graphtide.compute.registry import KINDS
from graphtide.daemon.client.wire import encode_request, encode_stamp
from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.errors import Unavailable, UnknownVertex
from graphtide.daemon.serve import methods
from graphtide.daemon.serve.admission import Guest
from graphtide.daemon.serve.connection import Connection
from graphtide.daemon.serve.lane import Question
from graphtide.daemon.serve.serving import Reply, Serving, Soon

STAMP = encode_stamp((1, 2), {})
TURNS = 10
"""Of the event loop: more than a task takes here."""


class Transport:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def take(self) -> list[Any]:
        """What was written since, by msgid: results, or codes of errors."""
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(self.written)
        self.written = b""
        return [(msgid, error["code"] if error else result["from"]) for _, msgid, error, result in unpacker]


class Asked:
    """A connection, whose every request waits for a question of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, serving: Serving) -> None:
        self.questions: list[Question] = []
        self.later = 0
        monkeypatch.setattr(methods, "answer", self._answer)
        self.transport = Transport()
        guest = Guest("here", lambda error: None)
        serving.admission.enter(guest)
        self.connection = Connection(serving, guest)
        self.connection.connection_made(cast(asyncio.Transport, self.transport))

    def _answer(self, *_: Any) -> Soon:
        async def later() -> Reply:
            self.later += 1
            return Reply(STAMP, {"from": "elsewhere"})

        def at_once(found: Mapping[str, Any]) -> Reply:
            if isinstance(found["from"], Exception):
                raise found["from"]
            return Reply(STAMP, found)

        self.questions.append(Question())
        return Soon(self.questions[-1], at_once, later)

    def ask(self, *msgids: int) -> None:
        self.connection.data_received(b"".join(encode_request(msgid, "neighbors", {}) for msgid in msgids))


@contextlib.contextmanager
def serving_with(**limits: Any) -> Iterator[Serving]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    settings = {
        "limits": LimitsConfig(**limits).model_dump(),
        "access": {"tokens": [], "tls": None},
        "graph": {"vertex_ids": "int"},
        "version": "1",
        "restarts": 0,
    }
    with ours, theirs:
        loop = asyncio.get_running_loop()
        with contextlib.closing(
            Serving(control=ours, settings=settings, kinds=KINDS, methods=[], loop=loop)
        ) as serving:
            yield serving


def run(monkeypatch: pytest.MonkeyPatch, work: Callable[[Asked], Awaitable[None]], **limits: Any) -> None:
    async def go() -> None:
        with serving_with(**limits) as serving:
            await work(Asked(monkeypatch, serving))
            serving.connections.clear()

    asyncio.run(go())


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def test_an_answer_is_written_before_any_task_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(asked: Asked) -> None:
        asked.ask(1, 2)
        await turns()
        assert len(asked.connection.tasks) == 2 and asked.transport.take() == []
        asked.questions[1].tell({"from": "the lane"})
        assert asked.transport.take() == [(2, "the lane")], "at once, and the other one waits"
        asked.questions[0].tell({"from": "the lane, too"})
        assert asked.transport.take() == [(1, "the lane, too")]
        assert not asked.connection.tasks and not asked.later

    run(monkeypatch, work)


@pytest.mark.parametrize("found", [None, {"from": Unavailable("the index is not there")}])
def test_what_the_lane_does_not_answer_is_asked_elsewhere(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, Any] | None
) -> None:
    async def work(asked: Asked) -> None:
        asked.ask(7)
        asked.questions[0].tell(found)
        assert asked.transport.take() == [] and len(asked.connection.tasks) == 1
        await turns()
        assert asked.transport.take() == [(7, "elsewhere")] and asked.later == 1
        assert not asked.connection.tasks

    run(monkeypatch, work)


def test_an_answer_that_is_an_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(asked: Asked) -> None:
        asked.ask(1, 2)
        asked.questions[0].tell({"from": UnknownVertex("there is no vertex 5")})
        asked.questions[1].tell({"from": RuntimeError("this cannot be")})
        assert asked.transport.take() == [(1, "unknown-vertex"), (2, "internal")]
        assert not asked.connection.tasks and not asked.later

    run(monkeypatch, work)


def test_a_request_that_waits_for_the_lane_is_one_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(asked: Asked) -> None:
        asked.ask(1, 2, 3)
        assert len(asked.questions) == 2, "the third waits for one of them"
        asked.questions[1].tell({"from": "the lane"})
        assert asked.transport.take() == [(2, "the lane")] and len(asked.questions) == 3

    run(monkeypatch, work, requests_in_flight_max=2)


def test_whoever_hangs_up_is_asked_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(asked: Asked) -> None:
        asked.ask(1, 2)
        asked.connection.connection_lost(None)
        assert not asked.connection.tasks and all(question.cancelled() for question in asked.questions)
        for question in asked.questions:
            question.tell({"from": "the lane"})
        await turns()
        assert asked.transport.take() == [] and not asked.later

    run(monkeypatch, work)
