"""What epochs change, as server-sent events: snapshots, changes, merged ones for slow readers, and going on."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import h11
import pytest
from http_door import HTTP, LIMITS, engine, get, port, post
from protocol_vectors import Engine
from test_server import serving
from waiting import until

from graphtide.daemon.client import Client
from graphtide.daemon.serve.admission import Guest
from graphtide.daemon.serve.http.connection import HttpConnection
from graphtide.daemon.serve.serving import Serving
from graphtide.daemon.serve.supervisor import ServerLink


class Events:
    """A stream of events, read one by one."""

    def __init__(self, link: ServerLink, request: bytes, *, buffer_bytes: int | None = None) -> None:
        self._connection = socket.socket()
        if buffer_bytes is not None:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self._connection.settimeout(60)
        self._connection.connect(("127.0.0.1", port(link)))
        self._connection.sendall(request)
        self._file = self._connection.makefile("rb")
        self.head = b"".join(iter(self._file.readline, b"\r\n"))
        assert self.head.startswith(b"HTTP/1.1 200 "), self.head + self._file.read()
        assert b"Content-Type: text/event-stream\r\n" in self.head and b"no-store" in self.head
        self._text = b""
        assert self.next_block() == {"retry": "1000"}

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        self._connection.close()

    def next_block(self) -> dict[str, Any] | None:
        """The fields of the next event; None at the end."""
        while b"\n\n" not in self._text:
            size = int(self._file.readline().strip() or b"0", 16)
            if not size:
                return None
            self._text += self._file.read(size)
            self._file.readline()
        block, _, self._text = self._text.partition(b"\n\n")
        fields = dict(line.split(": ", 1) for line in block.decode().splitlines())
        return {name: json.loads(value) if name == "data" else value for name, value in fields.items()}

    def rest_of_line(self) -> bytes:
        """What comes up to the end of a line that is no part of an event."""
        return self._file.readline().strip()

    def next(self, event: str) -> dict[str, Any]:
        """The next event that tells something, which is of this name."""
        while True:
            found = self.next_block()
            assert found is not None
            data = found["data"]
            if found["event"] != "changed" or data["since"] is None or data["ids"] or data["removed"]:
                assert found["event"] == event
                return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Engine, ServerLink]]:
    made = engine("int")
    with serving(made, tmp_path, LIMITS, http=[HTTP]) as link:
        yield made, link


def test_a_snapshot_then_what_epochs_change(served: tuple[Engine, ServerLink]) -> None:
    made, link = served
    with Events(link, get("/v1/subscribe?program=rank&vertices=100,102,119,5")) as events:
        begun = events.next("subscribed")
        assert begun["data"] == {"epoch": [1, 1], "offsets": {"t": {"0": 10}}, "resumed": False}
        first = events.next("changed")
        assert first["id"] == "1.1"
        assert first["data"] == {
            "epoch": [1, 1],
            "offsets": {"t": {"0": 10}},
            "since": None,
            "ids": [100, 102, 119],
            "values": [1.0, 3.0, 20.0],
            "removed": [],
            "more": False,
        }
        link.publish(made.change())
        second = events.next("changed")
        assert second["id"] == "1.2" and second["data"]["since"] == [1, 1]
        assert second["data"]["ids"] == [100, 102] and second["data"]["values"] == [0.5, 1.5]
        assert second["data"]["removed"] == [119]
        with Client(link.addresses[0], timeout=60) as client:
            assert client.stats()["server"]["subscriptions"] == 1
    with Client(link.addresses[0], timeout=60) as client:
        until(lambda: client.stats()["server"]["subscriptions"] == 0)


def test_it_goes_on_from_the_event_that_was_heard_last(served: tuple[Engine, ServerLink]) -> None:
    made, link = served
    link.publish(made.change())
    path = "/v1/subscribe?program=rank&snapshot=false"
    with Events(link, get(path, "Last-Event-ID: 1.1")) as events:
        assert events.next("subscribed")["data"]["resumed"] is True
        told = events.next("changed")
        assert (told["id"], told["data"]["since"], told["data"]["removed"]) == ("1.2", [1, 1], [119])
    with Events(link, post("/v1/subscribe", b'{"program": "rank", "since": [1, 1]}')) as events:
        assert events.next("subscribed")["data"]["resumed"] is True
        assert events.next("changed")["data"] == told["data"]
    # From what is not known any more: all there is, though it was not wanted at first.
    with Events(link, get(path, "Last-Event-ID: 0.7")) as events:
        assert events.next("subscribed")["data"]["resumed"] is False
        snapshot = events.next("changed")["data"]
        assert snapshot["since"] is None and len(snapshot["ids"]) == 19


def test_values_that_are_null_and_what_is_wrong(served: tuple[Engine, ServerLink]) -> None:
    _, link = served
    with Events(link, get("/v1/subscribe?program=hops&vertices=119,101")) as events:
        events.next("subscribed")
        assert events.next("changed")["data"]["values"] in ([1, None], [None, 1])
    with socket.create_connection(("127.0.0.1", port(link)), timeout=60) as connection:
        connection.sendall(get("/v1/subscribe?program=none", "Connection: close"))
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert received.startswith(b"HTTP/1.1 404 ") and b"unknown-program" in received


def test_a_slow_reader_hears_of_many_epochs_at_once(tmp_path: Path) -> None:
    made = engine("int")
    made.grow(15_000)
    with (
        serving(made, tmp_path, LIMITS, http=[HTTP]) as link,
        Events(link, get("/v1/subscribe?program=rank"), buffer_bytes=4096) as events,
    ):
        events.next("subscribed")
        epochs = 200
        for _ in range(epochs):
            link.publish(made.publication())
        with Client(link.addresses[0], timeout=60) as client:
            client.wait({"t": {0: made.number * 10}}, timeout_ms=60_000)
            until(lambda: client.stats()["server"]["held_bytes"] <= 15_000 * 64)
            assert client.stats()["server"]["subscriptions"] == 1
        messages, known = 0, None
        while known != [1, made.number]:
            told = events.next("changed")
            assert ("id" in told) is not told["data"]["more"]
            if not told["data"]["more"]:
                assert told["data"]["since"] in (None, known)
                known = told["data"]["epoch"]
                messages += 1
        assert messages < epochs / 2


def test_a_stream_ends_with_the_token(tmp_path: Path) -> None:
    made = engine("int")
    with serving(made, tmp_path, LIMITS, http=[HTTP], tokens=["sesame-open"]) as link:
        asked = get("/v1/subscribe?program=rank", "Authorization: Bearer sesame-open")
        with Events(link, asked) as events:
            events.next("subscribed")
            events.next("changed")
            link.renew_access(["another-token"])
            ended = events.next("ended")
            assert ended["data"]["error"]["code"] == "unauthorized" and "id" not in ended
            assert events.next_block() is None


def test_a_stream_ends_with_its_program_and_what_came_behind_is_answered(
    served: tuple[Engine, ServerLink],
) -> None:
    made, link = served
    with Events(link, get("/v1/subscribe?program=rank") + get("/v1/hello")) as events:
        events.next("subscribed")
        events.next("changed")
        publication = made.publication()
        others = {id: program for id, program in publication.programs.items() if id != "rank"}
        link.publish(dataclasses.replace(publication, programs=others))
        assert events.next("ended")["data"]["error"]["code"] == "unknown-program"
        assert events.next_block() is None
        assert events.rest_of_line() == b""  # of the last chunk
        assert events.rest_of_line() == b"HTTP/1.1 200"


@pytest.mark.parametrize(("tls", "ahead_bytes"), [(None, 1000), (object(), 0)])
def test_what_many_are_sent_is_not_copied_for_each_and_goes_ahead_but_for_tls(
    tls: object, ahead_bytes: int
) -> None:
    """But for the length before each part."""
    written: list[Any] = []
    subscriptions = SimpleNamespace(has=lambda _: True)
    all_have = SimpleNamespace(limits=LIMITS, subscriptions=subscriptions, ahead_bytes=1000)
    connection = HttpConnection(cast(Serving, all_have), Guest("somewhere", lambda _: None), None)
    extra = {"ssl_object": tls}.get
    transport = SimpleNamespace(write=written.append, get_write_buffer_size=lambda: 0, get_extra_info=extra)
    connection._transport = cast(asyncio.Transport, transport)
    connection._http.receive_data(get("/v1/subscribe?program=rank"))
    connection._http.next_event()
    connection._http.send(h11.Response(status_code=200, headers=[]))
    message = bytes(range(250)) * 1000
    connection.push(message)
    assert b"".join(written) == b"%x\r\n%b\r\n" % (len(message), message)
    assert sum(len(part) for part in written if getattr(part, "obj", None) is message) == len(message)
    assert connection.ahead_bytes == ahead_bytes
