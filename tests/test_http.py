"""The HTTP door of the query server: the socket's answers as JSON, its limits, and what must not get through."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any

import protocol_vectors
import pytest
from protocol_vectors import Engine
from test_server import serving

from graphtide.daemon.client import Client
from graphtide.daemon.client.wire import unpack_bitmap
from graphtide.daemon.config.settings import LimitsConfig
from graphtide.daemon.errors import GraphtideError
from graphtide.daemon.serve.handlers import METHODS
from graphtide.daemon.serve.http.offered import NOT_HERE, READS
from graphtide.daemon.serve.supervisor import ServerLink
from graphtide.daemon.tools.query import readable

LIMITS = LimitsConfig(
    http_body_bytes_max=200_000,
    vertices_max=20_000,
    connections_max=20,
    output_bytes_max=1_500_000,
    top_k_max=100,
    hello_seconds_max=60,
)
HTTP = "http://127.0.0.1:0"
PAGE = json.loads(protocol_vectors.PAGE.read_text("utf-8"))


def engine(kind: str) -> Engine:
    made = Engine(kind)
    made.grow(20)
    return made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, ServerLink]]:
    """One server for the tests that leave it as it was."""
    made = engine("int")
    with serving(made, tmp_path_factory.mktemp("s"), LIMITS, http=[HTTP]) as link:
        yield made, link


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


@pytest.fixture
def browser(shared: tuple[Engine, ServerLink]) -> Iterator[Browser]:
    with contextlib.closing(Browser(shared[1])) as browser:
        yield browser


# -- answers ------------------------------------------------------------------------------------------------


def as_json(answer: Mapping[str, Any]) -> Any:
    """What the socket answered, as the HTTP door should write it."""
    shown = readable(answer)
    if "saturated" in shown:
        shown["saturated"] = unpack_bitmap(answer["saturated"], len(shown["values"])).tolist()
    if "parents" in shown:
        shown["parents"] = shown["parents"]["values"]
    return json.loads(json.dumps(shown))  # the keys of maps become strings


def examples(kind: str) -> list[Any]:
    """Requests of the committed examples, each once, for graphs of such ids."""
    is_string = False
    found = []
    for example in PAGE["queries"]:
        is_string |= "string" in example["name"]
        method, params = example["request"][2], example["request"][3:]
        if example["response"][0] == 1 and is_string == (kind == "string") and len(example["request"]) == 4:
            found.append(pytest.param(method, params[0][0] if params[0] else {}, id=example["name"]))
    return found


def given(value: Any) -> Any:
    """Parameters of an example as JSON has them: columns of ids as arrays."""
    match value:
        case {"bin": str(digits)}:
            data = bytes.fromhex(digits)
            return [int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, len(data), 8)]
        case {"map": list(items)}:
            return {given(key): given(item) for key, item in items}
        case {"int": str(digits)}:
            return int(digits)
        case dict():
            return {key: given(item) for key, item in value.items()}
        case list():
            return [given(item) for item in value]
    return value


STREAMED = {"subscribe", *NOT_HERE}


def compare(link: ServerLink, browser: Browser, method: str, params: Mapping[str, Any]) -> None:
    """The door and the socket answer the same, errors too."""
    with Client(link.addresses[0], timeout=60) as client:
        try:
            expected = as_json(client.call(method, params))
        except GraphtideError as error:
            expected = {"code": error.code, "message": error.message, "detail": error.detail}
    status, answer, response = browser.ask("POST", f"/v1/{method}", dict(params))
    assert answer == json.loads(json.dumps(expected))
    assert (status == 200) == ("code" not in expected)
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(("method", "params"), examples("int"))
def test_the_door_answers_what_the_socket_does(
    shared: tuple[Engine, ServerLink], browser: Browser, method: str, params: Mapping[str, Any]
) -> None:
    if method in STREAMED or method not in METHODS:
        status, answer, _ = browser.ask("POST", f"/v1/{method}", {"subscription": 0})
        if method != "subscribe":
            assert status == 404 and answer["detail"]["methods"] == sorted(METHODS.keys() - NOT_HERE)
        return
    sent = given(params)
    sent.pop("token", None)
    if method == "stats":  # which shows connections
        assert browser.ask("POST", "/v1/stats", sent)[1]["vertices"] == 20
        return
    compare(shared[1], browser, method, sent)


def test_strings_are_answered_as_over_the_socket(tmp_path) -> None:
    with (
        serving(engine("string"), tmp_path, LIMITS, http=[HTTP]) as link,
        contextlib.closing(Browser(link)) as browser,
    ):
        for example in examples("string"):
            compare(link, browser, example.values[0], given(example.values[1]))
        by_query = browser.ask("GET", "/v1/get?program=hops&vertices=v0,v3&vertices=no")[1]
        assert by_query == browser.ask("POST", "/v1/get", {"program": "hops", "vertices": ["v0", "v3", "no"]})[1]


def test_every_method_is_offered_and_has_an_example() -> None:
    shown = {example.values[0] for example in examples("int")}
    assert METHODS.keys() - STREAMED <= shown
    assert METHODS.keys() >= READS


def test_what_is_simple_can_be_asked_by_an_address(browser: Browser) -> None:
    status, answer, _ = browser.ask("GET", "/v1/top?program=rank&k=2")
    assert status == 200 and answer == browser.ask("POST", "/v1/top", {"program": "rank", "k": 2})[1]
    assert answer["ids"] == [119, 118] and answer["epoch"] == [1, 1] and answer["offsets"] == {"t": {"0": 10}}
    assert browser.ask("GET", "/v1/get?program=rank&program=parts&vertices=100,101&parents=false")[1]["results"]
    assert browser.ask("GET", "/v1/neighbors?vertex=102")[1]["ids"] == [103]
    assert browser.ask("GET", '/v1/wait?min_offsets=%7B"t":%7B"0":10%7D%7D&timeout_ms=5')[0] == 200
    for path, parameter in (
        ("top?program=rank&k=two", "k"),
        ("top?program=rank&k=2&k=3", "k"),
        ("get?program=rank&vertices=one", "vertices"),
        ("get?program=rank&vertices=1&parents=yes", "parents"),
        ("wait?min_offsets=here", "min_offsets"),
    ):
        status, answer, _ = browser.ask("GET", f"/v1/{path}")
        assert (status, answer["code"], answer["detail"]["parameter"]) == (400, "bad-request", parameter)
