"""What tests of the HTTP door share: a server over a chain of 20 vertices, and two kinds of clients.

``shared`` and ``browser`` are fixtures for the modules that import them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from protocol_vectors import Engine
from test_server import serving

from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.serve.supervisor import ServerLink

LIMITS = LimitsConfig(
    http_body_bytes_max=200_000,
    vertices_max=20_000,
    connections_max=20,
    output_bytes_max=1_500_000,
    top_k_max=100,
    hello_seconds_max=60,
)
HTTP = "http://127.0.0.1:0"


def engine(kind: str) -> Engine:
    made = Engine(kind)
    made.grow(20)
    return made


def port(link: ServerLink) -> int:
    return int(link.http_addresses[0].rpartition(":")[2])


class Browser(http.client.HTTPConnection):
    """One connection to the door."""

    def __init__(self, link: ServerLink) -> None:
        super().__init__("127.0.0.1", port(link), timeout=60)

    def ask(
        self, verb: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, http.client.HTTPResponse]:
        """Status, what is in the JSON, and the rest."""
        kind = {"Content-Type": "application/json"} if body is not None else {}
        sent = json.dumps(body) if isinstance(body, dict) else body
        self.request(verb, path, sent, {**kind, **(headers or {})})
        response = self.getresponse()
        content = response.read()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(content) if is_json and content else content, response


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, ServerLink]]:
    """One server for the tests that leave it as it was."""
    made = engine("int")
    with serving(made, tmp_path_factory.mktemp("s"), LIMITS, http=[HTTP]) as link:
        yield made, link


@pytest.fixture
def browser(shared: tuple[Engine, ServerLink]) -> Iterator[Browser]:
    with contextlib.closing(Browser(shared[1])) as browser:
        yield browser


def talk(link: ServerLink, data: bytes, *, half_close: bool = False) -> bytes:
    """Send this, and everything that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port(link)), timeout=60) as connection:
        received = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(1 << 16):
                received += data
        return received


def turned_away(link: ServerLink, data: bytes) -> tuple[int, Any]:
    """Send this, which ends the connection: status, and what is in the JSON (of a HEAD: None)."""
    with socket.create_connection(("127.0.0.1", port(link)), timeout=60) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        with contextlib.closing(
            http.client.HTTPResponse(connection, method=data[:4].decode("latin-1"))
        ) as response:
            response.begin()
            assert response.headers["Connection"] == "close"
            return response.status, json.loads(response.read() or b"null")


def get(path: str, *headers: str, version: str = "1.1", verb: str = "GET") -> bytes:
    lines = [f"{verb} {path} HTTP/{version}", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    more = ("Content-Type: application/json", *headers)
    if not any(header.startswith("Transfer-Encoding") for header in headers):
        more = (*more, f"Content-Length: {len(body)}")
    return get(path, *more, verb="POST") + body
