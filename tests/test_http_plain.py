"""Requests that are read without h11: they mean what h11 says they mean, and are answered alike."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import h11
import pytest
from http_door import HTTP, LIMITS, Browser, engine, get, post, talk
from http_door import shared as shared  # a fixture
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_vectors import Engine
from test_server import serving
from waiting import until

from graphtide.daemon.client import Client
from graphtide.daemon.serve.http.plain import read_request
from graphtide.daemon.serve.http.routes import Head, Refused
from graphtide.daemon.serve.supervisor import ServerLink

PIECES = st.sampled_from(
    [
        *(
            b"GET",
            b"POST",
            b"HEAD",
            b"PUT",
            b" ",
            b"/",
            b"/v1/get?program=rank",
            b"/%41",
            b"HTTP/1.1",
            b"HTTP/1.0",
        ),
        *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b"\xff", b":", b"\t", b"a", b"{}", b"\r\nA: b", b"\r\n c"),
        *(b"Host: localhost", b"Host : x", b"host:\tx\t", b"Content-Length: 2", b"content-length: 02", b"\x0b"),
        *(b"Content-Length: +2", b"Content-Length: 2, 2", b"Transfer-Encoding: chunked", b"Connection: close"),
        *(b"Connection: keep-alive", b"Expect: 100-continue", b"Upgrade: h2c", b"Content-Type: application/json"),
    ]
)
LINES = st.lists(st.lists(PIECES, min_size=1, max_size=3).map(b"".join), max_size=4)


def read_by_h11(data: bytes) -> tuple[Head, bytes, int] | None:
    """The first request, if all of it has come and h11 would keep the connection open after it."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    body, head = b"", None
    with contextlib.suppress(h11.RemoteProtocolError, Refused):
        while True:
            event = connection.next_event()
            match event:
                case h11.Request():
                    head = Head.of(event)
                    assert event.http_version == b"1.1"
                case h11.Data():
                    body += event.data
                case h11.EndOfMessage():
                    assert head is not None
                    assert connection.their_state is h11.DONE  # not MUST_CLOSE
                    return head, body, len(data) - len(connection.trailing_data[0])
                case _:
                    return None
    return None


@settings(max_examples=1500, deadline=None)
@given(
    st.sampled_from([b"GET / HTTP/1.1", b"POST /v1/get HTTP/1.1", b"HEAD /?a HTTP/1.1"]) | PIECES, LINES, PIECES
)
def test_what_is_read_at_once_is_what_h11_reads(start: bytes, lines: list[bytes], rest: bytes) -> None:
    for host in ([b"Host: localhost"], []):
        data = b"\r\n".join([start, *host, *lines, b"", rest])
        found = read_request(bytearray(data))
        if found is not None:
            assert found == read_by_h11(data)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(get("/"), id="browsers"),
        pytest.param(get("/v1/get?program=rank&vertices=1", "User-Agent: curl/8.5.0", "Accept: */*"), id="curl"),
        pytest.param(get("/v1/stats", "Connection: keep-alive", "Accept-Encoding: gzip"), id="requests"),
        pytest.param(post("/v1/get", b'{"program": "rank", "vertices": [1]}'), id="a body"),
        pytest.param(get("/v1/stats", verb="HEAD"), id="the head alone"),
        pytest.param(get("/v1/get", "Authorization: Bearer a:b"), id="a colon in a value"),
    ],
)
def test_what_clients_write_is_read_at_once(sent: bytes) -> None:
    found = read_request(bytearray(sent + get("/")))
    assert found == read_by_h11(sent + get("/"))
    assert found is not None and found[2] == len(sent)
    for end in range(len(sent)):  # not before all of it has come
        assert read_request(bytearray(sent[:end])) is None


@pytest.mark.parametrize(
    "path", ["/", "/v1/get?program=rank&vertices=1", "/v1/get?program=none&vertices=1", "/v1/get", "/v1/top?k=2"]
)
@pytest.mark.parametrize("verb", ["GET", "HEAD"])
def test_answers_are_those_that_h11_writes(shared: tuple[Engine, ServerLink], path: str, verb: str) -> None:
    plain = get(path, verb=verb)
    by_h11 = get(path, "TE: trailers", verb=verb)
    assert read_request(bytearray(plain)) is not None and read_request(bytearray(by_h11)) is None
    last = get("/v1/nothing")  # is refused, which ends the connection
    answers = talk(shared[1], plain + by_h11 + plain + last)
    size = answers.rindex(b"HTTP/1.1 404 ") if path != "/v1/nothing" else len(answers)
    one = answers[: size // 3]
    assert one.startswith(b"HTTP/1.1 ") and answers[:size] == one * 3


def test_who_waits_is_told_why_the_connection_ends(tmp_path: Path) -> None:
    made = engine("int")
    with (
        serving(made, tmp_path, LIMITS, http=[HTTP], tokens=["sesame-open"]) as link,
        contextlib.closing(Browser(link)) as browser,
        Client(link.addresses[0], token="sesame-open") as client,
    ):
        its = {"Authorization": "Bearer sesame-open"}
        assert browser.ask("GET", "/v1/programs", headers=its)[0] == 200
        offsets = json.dumps(
            {topic: {p: n + 1 for p, n in parts.items()} for topic, parts in client.stats().offsets.items()}
        ).replace(" ", "")
        browser.request("GET", f"/v1/wait?min_offsets={offsets}&timeout_ms=50000", headers=its)
        until(lambda: link.waiting == 1)
        link.renew_access(["another-token"])
        response = browser.getresponse()
        assert response.status == 401 and response.headers["Connection"] == "close"
        assert json.loads(response.read())["code"] == "unauthorized"
