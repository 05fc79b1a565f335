"""What must not get through the HTTP door: limits, tokens, TLS, and clients that mean no good."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate
from http_door import HTTP, LIMITS, Browser, engine, get, port, post, talk, turned_away
from http_door import browser as browser  # fixtures
from http_door import shared as shared
from protocol_vectors import Engine
from test_server import raw, serving
from waiting import until

from graphtide.daemon.client import Client
from graphtide.daemon.errors import ConfigError, Unavailable
from graphtide.daemon.serve.listening import TlsFiles
from graphtide.daemon.serve.supervisor import ServerLink

CLOSE = "Connection: close"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"\x94\x00\x00\xa5stats\x91\x80\r\n\r\n", 400, id="the socket's language"),
        pytest.param(b"GET /v1/stats HTTP/1.1\r\n\r\n", 400, id="no host"),
        pytest.param(b"GET /v1/stats HTTP/2.0\r\nHost: localhost\r\n\r\n", 505, id="another version"),
        pytest.param(b"GET /v1/stats HTTP/1.1\r\nHost : localhost\r\n\r\n", 400, id="a space before the colon"),
        pytest.param(get("/v1/stats", "A: " + "a" * (1 << 15)), 431, id="a huge header"),
        pytest.param(get("/" + "a" * (1 << 15)), 431, id="a huge path"),
        pytest.param(get("/v1/stats", *(f"a{i}: b" for i in range(4000))), 431, id="many headers"),
        pytest.param(get("http://localhost/v1/stats"), 400, id="no path"),
        pytest.param(get("localhost:443", verb="CONNECT"), 400, id="a proxy is wanted"),
        pytest.param(get("/v1/nothing"), 404, id="no method"),
        pytest.param(get("/v1/../v1/stats"), 404, id="dots"),
        pytest.param(get("/page/page.html"), 404, id="no file"),
        pytest.param(get("/%2e%2e/pyproject.toml"), 404, id="a file of the system"),
        pytest.param(get("/v1/stats", verb="PUT"), 405, id="another verb"),
        pytest.param(get("/v1/stats", verb="OPTIONS"), 405, id="whether pages elsewhere may ask"),
        pytest.param(get("/v1/subscribe?program=rank", verb="HEAD"), 405, id="only the head of a stream"),
        pytest.param(get("/", verb="POST"), 405, id="post to a file"),
        pytest.param(get("/v1/stats", "Content-Length: 5") + b"hello", 413, id="a body where none belongs"),
        pytest.param(post("/v1/get", b"{}", "Content-Length: 200001"), 400, id="two lengths"),
        pytest.param(
            post("/v1/get", b"2\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked", "Content-Length: 2"),
            400,
            id="a length and chunks",
        ),
        pytest.param(post("/v1/get", b"\x1f\x8b", "Content-Encoding: gzip", CLOSE), 415, id="compressed"),
        pytest.param(get("/v1/get?program=%ff", "Connection: close"), 400, id="no UTF-8"),
        pytest.param(
            get("/v1/get?" + "&".join(f"a{i}=1" for i in range(2000)), "Connection: close"),
            400,
            id="many parameters",
        ),
        pytest.param(get("/v1/stats", "Origin: http://elsewhere.example"), 403, id="a page elsewhere"),
        pytest.param(get("/v1/stats", "Origin: null"), 403, id="a page from nowhere"),
        pytest.param(get("/v1/subscribe?program=rank", "Last-Event-ID: now"), 400, id="no epoch"),
    ],
)
def test_strange_requests_are_turned_away(shared: tuple[Engine, ServerLink], sent: bytes, status: int) -> None:
    answered, error = turned_away(shared[1], sent)
    assert answered == status
    assert error is None if sent.startswith(b"HEAD") else error.keys() == {"code", "message", "detail"}


@pytest.mark.parametrize("more", [0, 1, 1000, 4096])
@pytest.mark.parametrize("before", [b"", get("/v1/stats", "X: " + "b" * 5000)], ids=["first", "second"])
def test_a_head_may_have_16_kib_and_no_byte_more(
    shared: tuple[Engine, ServerLink], before: bytes, more: int
) -> None:
    short = len(get("/v1/stats", CLOSE, "A: "))
    sent = get("/v1/stats", CLOSE, "A: " + "a" * ((1 << 14) + more - short))
    assert len(sent) == (1 << 14) + more
    *_, (status, answer) = answers(talk(shared[1], before + sent))
    assert (status, "code" in answer) == ((431, True) if more else (200, False))


def test_what_was_no_http_is_not_shown_as_python_would(shared: tuple[Engine, ServerLink]) -> None:
    for sent in (b"GET \xff HTTP/1.1\r\n\r\n", post("/v1/get", b"-1\r\n", "Transfer-Encoding: chunked")):
        _, error = turned_away(shared[1], sent)
        assert error is not None and error["message"].startswith("this is no HTTP: illegal ")
        assert "bytearray" not in error["message"]


def test_whoever_comes_to_the_wrong_door_hears_at_once_which_is_the_right_one(
    shared: tuple[Engine, ServerLink],
) -> None:
    """A client would wait for all of ``hello_seconds_max`` where nothing of it looked like the end of a line."""
    link = shared[1]
    with Client(f"tcp://127.0.0.1:{port(link)}") as client, pytest.raises(Unavailable, match=r"server\.listen"):
        client.stats()
    _, error = turned_away(link, b"\x94\x00\x00\xa5stats\x91\x80")
    assert error is not None and "the addresses of server.listen" in error["message"]
    for sent in (get("/v1/stats"), post("/v1/get", b"{}"), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
        with raw(link.addresses[0]) as connection, connection.socket.makefile("rb") as received:
            connection.send(sent)
            ((status, answer),) = answers(received.read())
        assert (status, answer["code"]) == (400, "bad-request")
        assert "the addresses of server.http" in answer["message"]


def test_a_connection_is_closed_once_it_was_turned_away(shared: tuple[Engine, ServerLink]) -> None:
    ((status, _),) = answers(talk(shared[1], get("/v1/nothing") + get("/v1/stats")))
    assert status == 404


def answers(received: bytes) -> list[tuple[int, Any]]:
    """The statuses and JSON of answers that follow each other, each with its length."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        headers = {
            line.partition(b":")[0].lower(): line.partition(b":")[2].strip() for line in head.split(b"\r\n")[1:]
        }
        length = int(headers[b"content-length"])
        found.append((int(head.split()[1]), json.loads(rest[:length])))
        received = rest[length:]
    return found


ASKED = {"program": "rank", "vertices": [100]}


def test_requests_may_follow_each_other_unanswered(shared: tuple[Engine, ServerLink]) -> None:
    several = [get(f"/v1/get?program=rank&vertices={vertex}") for vertex in range(100, 119)]
    found = answers(talk(shared[1], b"".join([*several, post("/v1/get", json.dumps(ASKED).encode(), CLOSE)])))
    assert [status for status, _ in found] == [200] * 20
    assert [answer["values"] for _, answer in found] == [[float(at)] for at in [*range(1, 20), 1]]


def test_a_body_may_come_in_chunks_and_a_byte_at_a_time(shared: tuple[Engine, ServerLink]) -> None:
    body = json.dumps(ASKED).encode()
    chunked = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    sent = post("/v1/get", chunked, "Transfer-Encoding: chunked", CLOSE)
    with socket.create_connection(("127.0.0.1", port(shared[1])), timeout=60) as connection:
        for byte in sent:
            connection.sendall(bytes([byte]))
        ((status, answer),) = answers(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
    assert (status, answer["values"]) == (200, [1.0])


def test_an_old_client_is_answered_and_closed(shared: tuple[Engine, ServerLink]) -> None:
    ((status, answer),) = answers(talk(shared[1], b"GET /v1/get?program=rank&vertices=100 HTTP/1.0\r\n\r\n"))
    assert (status, answer["values"]) == (200, [1.0])


def test_a_client_that_hangs_up_halfway_is_answered_no_more(shared: tuple[Engine, ServerLink]) -> None:
    assert talk(shared[1], get("/v1/stats")[:-2], half_close=True) == b""


def test_the_head_alone(browser: Browser) -> None:
    status, body, response = browser.ask("HEAD", "/v1/top?program=rank")
    length = len(json.dumps(browser.ask("GET", "/v1/top?program=rank")[1], separators=(",", ":"))) + 1
    assert (status, body) == (200, b"") and int(response.headers["Content-Length"]) == length


def test_every_answer_tells_browsers_what_not_to_do(browser: Browser) -> None:
    for path in ("/", "/page.js", "/v1/stats", "/v1/nothing"):
        headers = browser.ask("GET", path)[2].headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_forms_can_send_is_no_request(browser: Browser, kind: str) -> None:
    headers = {"Content-Type": kind} if kind else {}
    status, answer, response = browser.ask("POST", "/v1/get", b"{}", {"Content-Type": "text/plain", **headers})
    assert (status, answer["code"], response.headers["Accept"]) == (415, "bad-request", "application/json")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:80", 200),
        ("127.0.0.1:7421", 200),
        ("[::1]:7421", 200),
        ("Graph.Example:7421", 200),
        ("elsewhere.example", 421),
        ("127.0.0.1.elsewhere.example", 421),
        ("", 421),
    ],
)
def test_the_door_answers_to_its_own_names_only(named: ServerLink, host: str, status: int) -> None:
    with contextlib.closing(Browser(named)) as browser:
        assert browser.ask("GET", "/v1/stats", headers={"Host": host})[0] == status


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerLink]:
    """A door that has a name."""
    folder = tmp_path_factory.mktemp("s")
    with serving(engine("int"), folder, LIMITS, http=[HTTP], http_hosts=["graph.example"]) as link:
        yield link


def test_a_page_of_this_server_may_ask(browser: Browser, shared: tuple[Engine, ServerLink]) -> None:
    own = f"127.0.0.1:{port(shared[1])}"
    assert browser.ask("POST", "/v1/get", ASKED, {"Origin": f"http://{own}"})[0] == 200


# -- bodies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{", id="cut off"),
        pytest.param(b"[1]", id="an array"),
        pytest.param(b'"get"', id="a string"),
        pytest.param(b"{'program': 'rank'}", id="no JSON"),
        pytest.param(b"\xff", id="no UTF-8"),
        pytest.param(b'{"vertices": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", id="nested deeply"),
        pytest.param(b'{"vertices": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"}", id="maps nested deeply"),
        pytest.param(b'{"vertices": ' + b'["1",' * 1000 + b"1" + b"]" * 1000 + b"}", id="digits nested deeply"),
        pytest.param(b'{"program": "rank", "vertices": [' + b"[]," * 15_000 + b"1]}", id="empty arrays"),
        pytest.param(b'{"program": "rank", "vertices": [1e400]}', id="a number too large"),
        pytest.param(b'{"program": "rank", "vertices": [1.5]}', id="no whole number"),
        pytest.param(b'{"program": "rank", "vertices": ["x"]}', id="no digits"),
        pytest.param(b'{"program": "rank", "vertices": ["99999999999999999999"]}', id="too many digits"),
        pytest.param(b'{"program": "rank", "vertices": [9223372036854775808]}', id="past 64 bits"),
        pytest.param(b'{"program": {"a": 1}, "vertices": [1]}', id="a map as a name"),
        pytest.param(b'{"program": "rank", "vertices": [1], "token": "a", "\\u0000": 1}', id="unknown parameters"),
    ],
)
def test_bad_bodies_are_refused_and_the_connection_goes_on(browser: Browser, body: bytes) -> None:
    status, answer, _ = browser.ask("POST", "/v1/get", body)
    assert (status, answer["code"]) == (400, "bad-request")
    before = browser.sock
    assert browser.ask("POST", "/v1/get", ASKED)[1]["values"] == [1.0]
    assert browser.sock is before


def test_of_two_equal_names_the_last_counts_as_over_the_socket(browser: Browser) -> None:
    status, answer, _ = browser.ask(
        "POST", "/v1/get", b'{"program":"none","vertices":[1],"program":"rank","vertices":[100]}'
    )
    assert (status, answer["values"]) == (200, [1.0])


def test_a_body_is_refused_before_it_comes_where_it_is_too_long(shared: tuple[Engine, ServerLink]) -> None:
    too_long = LIMITS.http_body_bytes_max + 1
    head = get("/v1/get", "Content-Type: application/json", f"Content-Length: {too_long}", verb="POST")
    status, answer = turned_away(shared[1], head)
    assert (status, answer["code"]) == (413, "limit-exceeded")
    assert answer["detail"] == {"http_body_bytes_max": LIMITS.http_body_bytes_max}


def test_a_body_in_chunks_is_refused_once_it_is_too_long(shared: tuple[Engine, ServerLink]) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    sent = post("/v1/get", chunk * 4, "Transfer-Encoding: chunked")  # and never ends
    status, answer = turned_away(shared[1], sent)
    assert (status, answer["code"]) == (413, "limit-exceeded")


def test_a_long_body_is_waited_for_and_answered(browser: Browser) -> None:
    asked = {"program": "rank", "vertices": [*range(100, 120), *range(1_000_000, 1_015_000)]}
    assert 1 << 16 < len(json.dumps(asked)) <= LIMITS.http_body_bytes_max
    status, answer, _ = browser.ask("POST", "/v1/get", asked, {"Expect": "100-continue"})
    assert status == 200 and answer["values"] == [*map(float, range(1, 21)), *[None] * 15_000]
    assert answer["unknown"] == list(range(1_000_000, 1_015_000))
    asked["vertices"].append("no number")
    status, answer, _ = browser.ask("POST", "/v1/get", asked)
    assert (status, answer["detail"]) == (400, {"parameter": "vertices"})
    until(lambda: browser.ask("GET", "/v1/stats")[1]["server"]["held_bytes"] == 0)


def test_more_vertices_than_allowed_are_refused(browser: Browser) -> None:
    status, answer, _ = browser.ask("POST", "/v1/get", {"program": "rank", "vertices": [1] * 20_001})
    assert (status, answer["code"]) == (413, "limit-exceeded")


# -- tokens and TLS -------------------------------------------------------------------------------------------

TOKEN = "sesame-open"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_token_is_asked_for_with_every_request(tmp_path: Path) -> None:
    with serving(engine("int"), tmp_path, LIMITS, http=[HTTP], tokens=[TOKEN]) as link:
        for headers in ({}, bearer("sesame-opem"), {"Authorization": f"Basic {TOKEN}"}, bearer("")):
            with contextlib.closing(Browser(link)) as browser:
                assert browser.ask("GET", "/")[0] == 200  # where it can be entered
                status, answer, response = browser.ask("GET", "/v1/stats", headers=headers)
                assert (status, answer["code"]) == (401, "unauthorized")
                assert (
                    response.headers["WWW-Authenticate"] == "Bearer" and response.headers["Connection"] == "close"
                )
        until(lambda: link.refused()["token"] == 4)
        with contextlib.closing(Browser(link)) as browser:
            assert browser.ask("GET", "/v1/get?program=rank&vertices=100", headers=bearer(TOKEN))[1]["values"] == [
                1
            ]
            assert browser.ask("GET", "/v1/stats")[0] == 401
        with contextlib.closing(Browser(link)) as browser:
            assert browser.ask("POST", "/v1/get", ASKED, bearer(TOKEN))[0] == 200
            link.renew_access(["another-token"])
            until(lambda: gone(browser))
        with contextlib.closing(Browser(link)) as browser:
            assert browser.ask("GET", "/v1/stats", headers=bearer("another-token"))[0] == 200


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_a_token_may_have_letters_that_are_not_ascii(tmp_path: Path, coding: str) -> None:
    with (
        serving(engine("int"), tmp_path, LIMITS, http=[HTTP], tokens=["sésame"]) as link,
        contextlib.closing(Browser(link)) as browser,
    ):
        given = "sésame".encode(coding).decode("latin-1")  # as http.client writes it
        assert browser.ask("GET", "/v1/stats", headers=bearer(given))[0] == 200


def test_who_wants_to_change_something_presents_a_token_of_its_own(tmp_path: Path) -> None:
    with (
        serving(engine("int"), tmp_path, LIMITS, http=[HTTP], admin_tokens=["sesame-change"]) as link,
        contextlib.closing(Browser(link)) as browser,
    ):
        for headers in ({}, bearer("sesame-charge")):
            for path, body in (("/v1/keep", {"program": "pagerank"}), ("/v1/drop", {"program": "rank"})):
                status, answer, _ = browser.ask("POST", path, body, headers)
                assert (status, answer["code"]) == (401, "unauthorized") and "as bearer" in answer["message"]
        assert browser.ask("POST", "/v1/compute", {"program": "pagerank"})[0] == 200
        assert browser.ask("POST", "/v1/keep", {"program": "pagerank"}, bearer("sesame-change"))[0] == 200
        assert browser.ask("POST", "/v1/keep", {"program": "pagerank"})[0] == 401, "each request carries it"
        assert browser.ask("GET", "/v1/keep?program=pagerank", headers=bearer("sesame-change"))[0] == 405


def gone(browser: Browser) -> bool:
    """The server has closed the connection, without a word that would be taken for the next answer."""
    browser.sock.settimeout(0.01)
    with contextlib.suppress(TimeoutError):
        assert browser.sock.recv(1) == b""
        return True
    return False


def test_a_long_body_without_a_token_gets_no_memory(tmp_path: Path) -> None:
    with serving(engine("int"), tmp_path, LIMITS, http=[HTTP], tokens=[TOKEN]) as link:
        head = get("/v1/get", "Content-Type: application/json", "Content-Length: 100000", verb="POST")
        ((status, _),) = answers(talk(link, head))
        assert status == 401


def test_tls_is_where_it_is_asked_for(tmp_path: Path) -> None:
    own = certificate(tmp_path, "server")
    trust = ssl.create_default_context(cafile=own.certificate)
    doors = ["https://127.0.0.1:0", HTTP, f"unix:{tmp_path}/h"]
    with serving(engine("int"), tmp_path, LIMITS, http=doors, tls=TlsFiles(*own)) as link:
        kinds = [address.partition(":")[0] for address in link.http_addresses]
        assert kinds == ["https", "http", "unix"]
        secure, plain = (int(address.rpartition(":")[2]) for address in link.http_addresses[:2])
        with (
            socket.create_connection(("127.0.0.1", secure), timeout=60) as raw,
            trust.wrap_socket(raw, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(
                get("/v1/get?program=rank&vertices=100", CLOSE).replace(b"localhost", b"any.example")
            )
            received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        ((status, answer),) = answers(received)
        assert (status, answer["values"]) == (200, [1.0])
        for sent in (get("/v1/stats"), b"\x94\x00\x00\xa5stats\x91\x80"):
            with socket.create_connection(("127.0.0.1", secure), timeout=60) as raw:
                raw.sendall(sent)
                ((status, answer),) = answers(b"".join(iter(lambda: raw.recv(1 << 16), b"")))
            assert (status, answer["code"]) == (400, "bad-request") and "ask for https://" in answer["message"]
        with socket.create_connection(("127.0.0.1", plain), timeout=60) as raw:
            raw.sendall(get("/v1/stats", CLOSE))
            assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200")
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(f"{tmp_path}/h")
            raw.sendall(get("/v1/stats", CLOSE).replace(b"localhost", b"any.example"))
            assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200")
    assert not Path(f"{tmp_path}/h").exists()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("https://127.0.0.1:0", "needs TLS"),
        ("http://0.0.0.0:0", "beyond loopback"),
        ("tcp://127.0.0.1:0", "expected http://"),
        ("http://127.0.0.1:0/path", "expected http://"),
    ],
)
def test_doors_that_must_not_be_opened(tmp_path: Path, address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said), serving(engine("int"), tmp_path, LIMITS, http=[address]):
        pass


# -- places and time ------------------------------------------------------------------------------------------


def test_half_sent_requests_keep_nobody_out(tmp_path: Path) -> None:
    limits = LIMITS.model_copy(update={"strangers_max": 8})
    with serving(engine("int"), tmp_path, limits, http=[HTTP]) as link, contextlib.ExitStack() as stack:
        for _ in range(30):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port(link)), timeout=60))
            slow.sendall(b"GET /v1/stats HTTP/1.1\r\nHost: local")
        with contextlib.closing(Browser(link)) as browser:
            assert browser.ask("GET", "/v1/stats")[0] == 200
        with Client(link.addresses[0], timeout=60) as client:
            assert client.get("rank", [100]).values.tolist() == [1]
        until(lambda: link.refused()["crowded"] >= 22)


def test_who_says_nothing_in_time_is_told_so(tmp_path: Path) -> None:
    limits = LIMITS.model_copy(update={"hello_seconds_max": 1.0})
    with serving(engine("int"), tmp_path, limits, http=[HTTP]) as link:
        ((status, answer),) = answers(talk(link, b"GET /v1/stats HTTP/1.1\r\nHost: local"))
        assert (status, answer["code"]) == (408, "timeout")


def test_connections_over_both_doors_are_counted_together(tmp_path: Path) -> None:
    limits = LIMITS.model_copy(update={"connections_max": 2})
    with serving(engine("int"), tmp_path, limits, http=[HTTP]) as link, contextlib.ExitStack() as stack:
        stack.enter_context(Client(link.addresses[0], timeout=60)).stats()
        first = stack.enter_context(contextlib.closing(Browser(link)))
        assert first.ask("GET", "/v1/stats")[1]["server"]["connections"] == 2
        ((status, answer),) = answers(talk(link, get("/v1/stats")))
        assert (status, answer["code"]) == (503, "limit-exceeded")
        assert first.ask("GET", "/v1/stats")[0] == 200
        # The client of the socket said hello first.
        until(lambda: link.requests_by_door()["http"] >= 2 and link.requests_by_door()["socket"] >= 1)


def test_what_a_client_does_not_read_is_bounded_however_much_it_asks_for(tmp_path: Path) -> None:
    with (
        serving(engine("int"), tmp_path, LIMITS, http=[HTTP]) as link,
        socket.create_connection(("127.0.0.1", port(link)), timeout=60) as slow,
        contextlib.closing(Browser(link)) as browser,
    ):
        before = browser.ask("GET", "/v1/openapi.json")[2].headers["Content-Length"]
        asked = get("/v1/openapi.json") * 1000
        slow.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += slow.send(asked)
        answered = 0
        slow.settimeout(60)
        # It is let go on when it reads: all that it asked for is answered, one after the other.
        while answered < 200 * int(before):
            answered += len(slow.recv(1 << 16))
