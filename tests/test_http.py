"""The HTTP door of the query server: the socket's answers as JSON, its limits, and what must not get through."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import protocol_vectors
import pytest
from conftest import skip_or_fail
from documented import Shell, replaced
from http_door import HTTP, LIMITS, Browser, engine
from http_door import browser as browser  # fixtures
from http_door import shared as shared
from protocol_vectors import Engine
from running import Daemon
from test_server import serving
from waiting import until

from graphtide.daemon.client import Client
from graphtide.daemon.client.wire import PIECE_ITEMS, encode_stamp, pack_bitmap, pack_column, unpack_bitmap
from graphtide.daemon.errors import GraphtideError, NotWritten
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.serve.http.answers import encode_answer
from graphtide.daemon.serve.http.arguments import from_json
from graphtide.daemon.serve.http.offered import NOT_HERE, READS
from graphtide.daemon.serve.http.routes import STATUSES, status_of
from graphtide.daemon.serve.methods import METHODS
from graphtide.daemon.serve.supervisor import ServerLink
from graphtide.daemon.tools.query import readable
from graphtide.ops.kafka import held_port

PAGE = json.loads(protocol_vectors.PAGE.read_text("utf-8"))


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


@pytest.mark.parametrize(
    ("path", "meant"), [("/v1/kop", "/v1/khop"), ("/get", "/v1/get"), ("/v1/x/toop", "/v1/top"), ("/zzzz", None)]
)
def test_a_mistyped_path_is_answered_with_the_nearest(browser: Browser, path: str, meant: str | None) -> None:
    status, answer, _ = browser.ask("GET", path)
    assert (status, answer["code"]) == (404, "not-supported")
    assert answer["message"].endswith(f"; did you mean {meant!r}?" if meant else ", wait")


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


def first_events(log: Path, n: int) -> list[tuple[str, Any]]:
    """What the first n events of a stream tell, once they are written there whole."""

    def events() -> list[tuple[str, Any]]:
        texts = [text for text in log.read_text("utf-8").split("\n\n")[:-1] if "data: " in text]
        fields = [dict(line.split(": ", 1) for line in text.splitlines()) for text in texts[:n]]
        return [(one["event"], json.loads(one["data"])) for one in fields] if len(texts) >= n else []

    return until(events)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, int]]:
    """A real daemon over 1 -> 2 -> 3 and 5 -> 1, with the settings of the page, and the port of its door."""
    text = (protocol_vectors.PAGE.parent / "http.md").read_text("utf-8")
    (door,) = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    with held_port() as port:
        settings = {**tomllib.loads(replaced(door, {7421: port})), "program": [{"name": "pagerank"}]}
        with Daemon(tmp_path_factory.mktemp("daemon"), settings) as daemon:
            daemon.start(ready_s=400)
            write(daemon, "first", [1, 2, 5], [2, 3, 1])
            yield daemon, port


def write(daemon: Daemon, name: str, src: list[int], dst: list[int]) -> None:
    """Insert edges, and wait until answers have them."""
    with SpoolWriter(daemon.spool, name=name) as writer:
        writer.append(encode_msgpack(src, dst))
        offsets = {writer.path.name: writer.offset}
    with daemon.client() as client:
        client.wait(offsets)


@pytest.mark.timeout(600)  # where no kernels are cached, the first start compiles them
def test_the_commands_of_the_page_are_answered_by_a_daemon(opened: tuple[Daemon, int], tmp_path: Path) -> None:
    """By the real curl; of the subscription, the first events."""
    if shutil.which("curl") is None:
        skip_or_fail("curl not found (Debian: curl)")
    daemon, port = opened
    with Shell("docs/http.md", __file__, tmp_path, ports={7421: port}) as shell:
        with daemon.client() as client:
            top, ranks = client.top("pagerank", k=5), client.get("pagerank", [1, 2, 3])
        told = json.loads(shell.run("curl 'localhost:7421/v1/top?"))
        assert (told["ids"], told["values"]) == (list(top.ids), top.values.tolist())
        assert told["ids"] == [3, 2, 1, 5], "each has the rank of those before it, and more"
        for beginning in ("curl 'localhost:7421/v1/get?", "curl localhost:7421/v1/get -H "):
            told = json.loads(shell.run(beginning))
            assert (told["values"], tuple(told["epoch"])) == (ranks.values.tolist(), ranks.epoch)
        shell.start("curl -N ", "events")
        (begun, _), (changed, first) = first_events(tmp_path / "events", 2)
        assert (begun, changed) == ("subscribed", "changed")
        assert dict(zip(first["ids"], first["values"], strict=True)) == dict(
            zip([1, 2, 3], ranks.values.tolist(), strict=True)
        )
        write(daemon, "second", [7], [1])
        _, _, (_, second) = first_events(tmp_path / "events", 3)
        assert second["since"] is not None and set(second["ids"]) <= {1, 2, 3}


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("khop", {"vertex": 1, "k": 2}),
    ("egonet", {"vertex": 2, "direction": "both"}),
    ("subgraph", {"vertices": [1, 2, 3, 99]}),
    ("cross_edges", {"src": [1, 5], "dst": [1, 2]}),
    ("degree_distribution", {}),
    ("histogram", {"program": "pagerank", "bins": 3}),
    ("placement", {"vertices": [1, 99]}),
    ("compute", {"program": "bfs", "parameters": {"source": 1}, "vertices": [1, 3, 5, 99]}),
    ("compute", {"program": "bfs", "parameters": {"source": 1}, "top": 2}),
    ("keep", {"program": "bfs", "parameters": {"source": 1}, "id": "hops"}),
    ("get", {"program": "hops", "vertices": [3, 5], "parents": True}),
    ("drop", {"program": "hops"}),
    ("get", {"program": "hops", "vertices": [3]}),
    ("checkpoint", {}),
]


def test_a_daemon_answers_at_its_door_as_over_its_socket(opened: tuple[Daemon, int]) -> None:
    daemon, port = opened
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)

    def post(method: str, params: Mapping[str, Any]) -> Any:
        connection.request("POST", f"/v1/{method}", json.dumps(params), {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())

    def ask(method: str, params: Mapping[str, Any]) -> Any:
        """Over the socket."""
        try:
            return as_json(client.call(method, params))
        except GraphtideError as error:
            return {"code": error.code, "message": error.message, "detail": error.detail}

    with contextlib.closing(connection), daemon.client() as client:
        for method, params in ASKED:
            told = post(method, params)
            if method == "drop":
                assert (told["id"], told["state"]) == ("hops", "dropped")
                assert ask(method, params)["code"] == "unknown-program"
                continue
            if method == "keep":
                until(lambda: post("programs", {})["programs"]["hops"]["state"] == "fresh")
                assert (told["id"], ask(method, params)["state"]) == ("hops", "fresh")
                continue
            if method == "checkpoint":
                params = {"since": told["epoch"]}
            again = ask(method, params)
            assert told.keys() == again.keys()
            for name in told.keys() - {"seconds", "applied", "bus"}:
                assert told[name] == again[name], (method, name)


def test_what_json_has_no_number_for_is_text() -> None:
    values = np.array([1.5, np.nan, np.inf, -np.inf])
    whole = np.array([2**53, 2**53 + 1, -(2**63), 7])
    answer = {
        "values": pack_column(values),
        "null": pack_bitmap(np.array([True, False, False, False])),
        "ids": pack_column(whole),
        "counts": pack_column(np.array([2**64 - 1, 1], np.uint64)),
        "label": 2**60,
        "value": float("inf"),
        "members": ["a", "\u2028"],
    }
    stamp = encode_stamp((1, 2**55), {"t": {0: 3}})
    assert json.loads(encode_answer(stamp, answer)) == {
        "epoch": [1, str(2**55)],
        "offsets": {"t": {"0": 3}},
        "values": [None, "NaN", "Infinity", "-Infinity"],
        "ids": [2**53, str(2**53 + 1), str(-(2**63)), 7],
        "counts": [str(2**64 - 1), 1],
        "label": str(2**60),
        "value": "Infinity",
        "members": ["a", "\u2028"],
    }
    long = np.arange(3 * PIECE_ITEMS // 2)
    names = [f"v{i}" for i in long]
    answer = {"ids": pack_column(long), "values": names, "null": pack_bitmap(long == PIECE_ITEMS)}
    read = json.loads(encode_answer(stamp, answer))
    assert read["ids"] == long.tolist()
    assert read["values"] == [
        *names[:PIECE_ITEMS],
        None,
        *names[PIECE_ITEMS + 1 :],
    ]


def test_names_that_users_gave_are_no_columns() -> None:
    """Topics, programs and files may be called as columns of answers are."""
    names = ("values", "null", "out", "in", "saturated", "parents", "results")
    values = {"values": pack_column(np.array([1, 2])), "null": pack_bitmap(np.array([False, True]))}
    stamp = encode_stamp((1, 1), {name: {"0": 3} for name in names})
    programs = {name: {"kind": "x"} for name in names}
    answer = {"programs": programs, "results": dict.fromkeys(names, values)}
    assert json.loads(encode_answer(stamp, answer)) == {
        "epoch": [1, 1],
        "offsets": {name: {"0": 3} for name in names},
        "programs": programs,
        "results": {name: {"values": [1, None]} for name in names},
    }


def test_ids_past_2_53_are_strings_of_digits_both_ways(browser: Browser) -> None:
    large = 2**53 + 1
    answer = browser.ask("POST", "/v1/get", {"program": "rank", "vertices": [100, str(large), -large]})[1]
    assert answer["values"] == [1.0, None, None] and answer["unknown"] == [str(large), str(-large)]
    assert browser.ask("GET", f"/v1/get?program=rank&vertices=100,{large},-{large}")[1] == answer
    detail = {"vertex": str(large), "parameter": "vertex"}
    assert browser.ask("GET", f"/v1/neighbors?vertex={large}")[:2] == (
        404,
        {"code": "unknown-vertex", "message": f"vertex {large} is unknown", "detail": detail},
    )


@pytest.mark.parametrize(("kind", "name"), [("bfs", "source"), ("ppr", "sources")])
@pytest.mark.parametrize("within", [False, True])
def test_sources_of_programs_are_ids_too(kind: str, name: str, within: bool) -> None:
    """Some of an answer's ids may be strings, so both stand in one list."""

    def read(ids: Any, vertex_ids: str) -> Any:
        own = {name: ids}
        body = json.dumps({"program": kind, **({"parameters": own} if within else own)}).encode()
        found = from_json("compute", body, vertex_ids)
        return (found["parameters"] if within else found)[name]

    large = 2**53 + 1
    assert read([str(large), 1], "int") == [large, 1] and read(str(-large), "int") == -large
    assert read(["a", 1], "int") == ["a", 1]  # which the program refuses
    assert read([str(large), "1"], "string") == [str(large), "1"]
    assert from_json("compute", b'{"program": ["bfs"], "source": "1"}', "int")["source"] == "1"


# -- the description ------------------------------------------------------------------------------------------


def test_documents_name_each_code_of_an_error_and_its_status() -> None:
    docs = Path(__file__).parent.parent / "docs"
    rows = re.findall(r"^\| (\d{3}) \| ([^;|]*)", (docs / "http.md").read_text(), re.MULTILINE)
    named = {code: int(status) for status, codes in rows for code in re.findall(r"`([a-z-]+)`", codes)}
    assert named == {**STATUSES, "internal": 500}
    protocol = (docs / "protocol.md").read_text()
    said = re.search(r"The codes that requests meet are (.*?)\. Errors", protocol, re.DOTALL)
    assert said is not None and named.keys() <= set(re.findall(r"`([a-z-]+)`", said[1]))
    assert status_of(NotWritten("the disk is full")) == 503, "what may be tried again is no 500"


def test_the_description_is_the_committed_one_and_of_every_method(browser: Browser) -> None:
    status, described, _ = browser.ask("GET", "/v1/openapi.json")
    assert status == 200
    text = (protocol_vectors.PAGE.parent / "openapi.json").read_text("utf-8")
    assert described == json.loads(text), "python -m graphtide.daemon.serve.http.openapi > docs/openapi.json"
    assert described["paths"].keys() == {f"/v1/{name}" for name in METHODS.keys() - NOT_HERE}
    for path, verbs in described["paths"].items():
        assert ("get" in verbs) == (path.removeprefix("/v1/") in READS)
    operations = [verb["operationId"] for verbs in described["paths"].values() for verb in verbs.values()]
    assert len(operations) == len(set(operations))
    for reference in references(described):
        assert resolved(described, reference)


def references(value: Any) -> Iterator[str]:
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from references(item)
    if isinstance(value, dict) and "$ref" in value:
        yield value["$ref"]


def resolved(document: Any, reference: str) -> Any:
    found = document
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


TYPES = {"integer": int, "number": int | float, "string": str, "null": type(None), "array": list, "object": dict}


def conforms(value: Any, schema: Mapping[str, Any], document: Any) -> bool:
    """Whether a value is what the part of JSON Schema that the description uses says."""
    if "$ref" in schema:
        return conforms(value, resolved(document, schema["$ref"]), document)
    if "anyOf" in schema:
        return any(conforms(value, one, document) for one in schema["anyOf"])
    kinds = [schema.get("type", [])] if isinstance(schema.get("type", []), str) else schema["type"]
    if kinds and not any(isinstance(value, TYPES.get(kind, bool)) for kind in kinds):
        return False
    if isinstance(value, list):
        return all(conforms(item, schema.get("items", {}), document) for item in value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        there = all(name in value for name in schema.get("required", ()))
        return there and all(conforms(value[name], known[name], document) for name in known if name in value)
    return True


def test_answers_and_parameters_are_as_described(browser: Browser) -> None:
    document = browser.ask("GET", "/v1/openapi.json")[1]
    kinds = document["components"]["schemas"]
    there: dict[str, set[str]] = {}
    for example in examples("int"):
        method, params = example.values[0], given(example.values[1])
        if method in STREAMED or method not in METHODS:
            continue
        params.pop("token", None)
        described = document["paths"][f"/v1/{method}"]["post"]
        status, answer, _ = browser.ask("POST", f"/v1/{method}", params)
        response = described["responses"][str(status)]
        response = resolved(document, response["$ref"]) if "$ref" in response else response
        schema = response["content"]["application/json"]["schema"]
        assert conforms(answer, schema, document), (method, answer)
        named = [one["$ref"].rpartition("/")[2] for one in schema.get("anyOf", [schema])]
        kind = next(name for name in named if answer.keys() <= kinds[name]["properties"].keys() or name == "Info")
        there.setdefault(kind, set()).update(answer)
        if status == 200 and method != "hello":
            body = described["requestBody"]["content"]["application/json"]["schema"]
            assert params.keys() <= body["properties"].keys() or "additionalProperties" in body
            assert conforms(params, body, document)
