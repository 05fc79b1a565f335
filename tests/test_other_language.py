"""A client in JavaScript, written from docs/protocol.md alone, against the real daemon.

``tests/javascript/ask.mjs`` is that client on standard input and output, so that what is asked and what must come
back stand here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import protocol_vectors
import pytest
from conftest import skip_or_fail
from protocol_vectors import meaning, shown
from running import Daemon
from test_protocol_vectors import plain
from test_server import Chain, serving
from waiting import until

from graphtide.daemon.errors import GraphtideError
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.serve.methods import METHODS
from graphtide.gpma.edges import Op

JAVASCRIPT = Path(__file__).parent / "javascript"
FIRST, LAST = -(2**63), 2**63 - 1
FAR = 2**53 + 1
"""No double is this integer."""


def node() -> str:
    """The path of Node."""
    path = shutil.which("node")
    if path is None:
        skip_or_fail("node not found (Debian: nodejs)")
    assert path is not None
    return path


class JavaScript:
    """The client in JavaScript: a process that is told requests, and tells what comes back."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [node(), JAVASCRIPT / "ask.mjs", address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _, _ = self._process.communicate(timeout=60)
        assert error is not None or self._process.returncode == 0

    def send(self, name: str, method: str, params: Mapping[str, Any]) -> None:
        """Ask; what comes back begins with this name."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, method, shown(params)]) + "\n")
        self._process.stdin.flush()

    def hear(self) -> list[Any]:
        """The next that comes back."""
        assert self._process.stdout is not None
        line: list[Any] = plain(json.loads(self._process.stdout.readline()))
        return line

    def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        """What an answer means."""
        self.send("asked", method, params)
        name, error, answer = self.hear()
        assert (name, error) == ("asked", None)
        return answer

    def refused(self, method: str, params: Mapping[str, Any]) -> Any:
        """The error that a request meets."""
        self.send("asked", method, params)
        name, error, answer = self.hear()
        assert name == "asked" and answer is None and error is not None
        return error


class Stream:
    """A file of the spool that grows."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        self._writer = SpoolWriter(daemon.spool, name=name)
        self._daemon = daemon

    def append(self, src: list[int], dst: list[int] | None, ops: Op = Op.INSERT) -> dict[str, int]:
        """Write a record; the offsets that cover it."""
        self._writer.append(encode_msgpack(src, dst, ops))
        self._writer.flush()
        return self.offsets()

    def offsets(self, more: int = 0) -> dict[str, int]:
        return {self._writer.path.name: self._writer.offset + more}

    def close(self) -> None:
        self._writer.close()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon over 1 -> 2 -> 3 -> LAST and FIRST -> FAR, and a hub, 10, with edges to 11, ..., 17."""
    node()
    settings = {
        "graph": {"weights": "non-negative"},
        "program": [
            {"name": "pagerank"},
            {"name": "components"},
            {"name": "bfs", "source": 1, "id": "hops"},
            {"name": "kcore"},
        ],
    }
    with Daemon(tmp_path_factory.mktemp("daemon"), settings) as running:
        running.start()
        stream = Stream(running, "a")
        offsets = stream.append([1, 2, 3, FIRST, *[10] * 7], [2, 3, LAST, FAR, *range(11, 18)])
        stream.close()
        with running.client() as client:
            client.wait(offsets, timeout_ms=60_000)
        yield running


@pytest.fixture(scope="module")
def asking(daemon: Daemon) -> Iterator[JavaScript]:
    """A client for all tests that wait for each answer."""
    with JavaScript(daemon.address) as client:
        yield client


@pytest.fixture
def js(daemon: Daemon) -> Iterator[JavaScript]:
    with JavaScript(daemon.address) as client:
        yield client


@pytest.fixture
def stream(daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Stream]:
    made = Stream(daemon, f"b-{request.node.name}")
    yield made
    made.close()


def test_every_example_is_read_and_written() -> None:
    page = json.loads(protocol_vectors.PAGE.read_text("utf-8"))
    done = subprocess.run(
        [node(), JAVASCRIPT / "vectors.mjs", protocol_vectors.PAGE], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    queries, subscriptions = page["queries"], page["subscriptions"]
    records = [record for record in page["records"] if "message" in record]
    notices = sum(len(example["means"]) for example in subscriptions)
    assert json.loads(done.stdout) == {
        "encoded": len(queries) + len(subscriptions) + len(records),
        "decoded": 2 * len(queries) + notices + len(subscriptions) + len(records),
        "meanings": sum("means" in example for example in queries) + notices,
    }


def test_hello_with_and_without_a_token(daemon: Daemon, tmp_path: Path) -> None:
    chain = Chain()
    chain.grow(20)
    with serving(chain, tmp_path, listen=["tcp://127.0.0.1:0"], tokens=["sesame-open"]) as link:
        with JavaScript(link.addresses[0]) as js:
            answer = js.ask("hello", {"versions": [1], "token": "sesame-open"})
            assert answer["version"] == 1 and answer["programs"]["hops"] == "bfs"
            assert js.ask("get", {"program": "hops", "vertices": [100, 102]})["values"] == [0, 2]
        for params in ({"versions": [1]}, {"versions": [1], "token": "sesame-opem"}):
            with JavaScript(link.addresses[0]) as js:
                assert js.refused("hello", params)["code"] == "unauthorized"
                assert js.hear()[0] == "end"
    with JavaScript(daemon.address) as js:
        assert js.ask("get", {"program": "hops", "vertices": [2]})["values"] == [1]
        assert js.ask("hello", {})["version"] == 1


ANSWERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "get",
        {"program": "hops", "vertices": [1, 3, LAST, 10, 99]},
        {"values": [0, 2, 3, None, None], "unknown": [99]},
    ),
    ("get", {"program": "hops", "vertices": np.array([2, LAST, FIRST, 98], "<i8").tobytes()}, {"unknown": [98]}),
    ("get", {"program": "components", "vertices": [FAR, FIRST, LAST]}, {"values": [FIRST, FIRST, 1]}),
    ("get", {"program": "hops", "vertices": [LAST], "parents": True}, {"parents": {"values": [3]}}),
    ("get", {"program": "hops", "vertices": []}, {"values": [], "unknown": []}),
    ("get", {"program": ["hops", "kcore"], "vertices": [2]}, {}),
    ("top", {"program": "hops", "k": 1}, {"ids": [LAST], "values": [3]}),
    ("top", {"program": "pagerank", "k": 3, "order": "asc"}, {}),
    ("path", {"program": "hops", "target": LAST}, {"vertices": [1, 2, 3, LAST], "value": 3, "weights": [1, 1, 1]}),
    ("component", {"vertex": FAR}, {"label": FIRST, "size": 2}),
    ("component", {"vertex": 10, "limit": 3}, {"label": 10, "size": 8, "members": [10, 11, 12]}),
    ("neighbors", {"vertex": LAST, "direction": "in"}, {"ids": [3], "cursor": None}),
    ("histogram", {"program": "hops", "bins": 4}, {"counts": [1, 1, 1, 1]}),
    ("histogram", {"program": "pagerank", "bins": 5, "scale": "log"}, {"outside": 0, "without_value": 0}),
    ("degree", {"vertices": [10, 99]}, {"out": [7, None], "in": [0, None], "unknown": [99]}),
    ("has_edge", {"src": [1, 2], "dst": [2, 1]}, {"exists": [True, False]}),
    ("degree_distribution", {"direction": "in"}, {}),
    ("khop", {"vertex": 1, "k": 2}, {"ids": [1, 2, 3], "distances": [0, 1, 2], "truncated": False}),
    ("khop", {"vertex": LAST, "k": 9, "direction": "in", "limit": 2}, {"ids": [LAST, 3], "truncated": True}),
    ("egonet", {"vertex": 2, "direction": "both"}, {"src": [1, 2], "dst": [2, 3], "size": 2, "truncated": False}),
    ("subgraph", {"vertices": [3, FIRST, LAST, FAR, 99]}, {"size": 2, "weights": [1, 1], "unknown": [99]}),
    ("cross_edges", {"src": [10, 1], "dst": [17, 2, 3], "limit": 1}, {"size": 2, "unknown": []}),
    (
        "compute",
        {"program": "bfs", "parameters": {"source": 2}, "vertices": [1, LAST, 99]},
        {"values": [None, 2, None], "unknown": [99], "error_bound": None},
    ),
    ("compute", {"program": "bfs", "parameters": {"source": 2}, "top": 1}, {"ids": [LAST], "values": [2]}),
    ("compute", {"program": "triangles"}, {"scalars": {"triangles": 0}}),
    ("placement", {}, {"sides": ["host"], "host_rows": "all", "device": None}),
    ("placement", {"vertices": [10, 99]}, {"owner": ["host", None], "degree": [7, None], "unknown": [99]}),
    ("programs", {}, {}),
    ("stats", {}, {"stage": "running"}),
]
CHANGING = {"checkpoint", "drop", "keep", "admin.device", "admin.freeze", "admin.rebalance"}
TIMES = {"seconds", "applied", "bus"}
"""Entries that tell how long something took."""


@pytest.mark.parametrize(
    ("method", "params", "expected"), ANSWERS, ids=[f"{c[0]}-{n}" for n, c in enumerate(ANSWERS)]
)
def test_an_answer_is_what_the_python_client_reads(
    daemon: Daemon, asking: JavaScript, method: str, params: dict[str, Any], expected: dict[str, Any]
) -> None:
    answer = asking.ask(method, params)
    assert len(answer.pop("epoch")) == 2 and answer.pop("offsets")
    assert {key: answer[key] for key in expected} == expected
    with daemon.client() as client:
        again = plain(meaning(client.call(method, params)))
    assert answer.keys() == again.keys()
    same = {"vertices", "edges", "programs"} if method == "stats" else answer.keys() - TIMES
    assert {key: answer[key] for key in same} == {key: again[key] for key in same}


def test_every_method_is_asked() -> None:
    asked = {method for method, _, _ in ANSWERS} | CHANGING
    assert asked | {"hello", "wait", "subscribe", "unsubscribe"} == METHODS.keys()


def test_a_program_is_kept_and_dropped(daemon: Daemon, asking: JavaScript) -> None:
    kept = asking.ask("keep", {"program": "bfs", "parameters": {"source": 2}, "id": "from2"})
    assert kept["id"] == "from2" and kept["state"] in ("computing", "fresh")

    def shown() -> dict[str, Any]:
        programs: dict[str, Any] = asking.ask("programs", {})["programs"]
        return programs["from2"]

    until(lambda: shown()["state"] == "fresh")
    assert shown()["kept"] and shown()["parameters"] == {"source": 2}
    with daemon.client() as client:
        found = client.get("from2", [1, 3, LAST])
        assert client.programs()["programs"]["from2"]["kept"]
    assert asking.ask("get", {"program": "from2", "vertices": [1, 3, LAST]})["values"] == [None, 1, 2]
    assert found.values.tolist() == [None, 1, 2]
    assert asking.ask("drop", {"program": "from2"})["state"] == "dropped"
    assert asking.refused("drop", {"program": "from2"})["code"] == "unknown-program"
    assert asking.refused("drop", {"program": "hops"})["code"] == "bad-request", "of the configuration"
    assert asking.refused("get", {"program": "from2", "vertices": [1]})["code"] == "unknown-program"


def test_a_checkpoint_is_made(daemon: Daemon, asking: JavaScript) -> None:
    answer = asking.ask("checkpoint", {})
    written = Path(answer["path"])
    assert written.is_dir() and written.parent == daemon.folder / "checkpoints"
    with daemon.client() as client:
        of_the_same = client.checkpoint(since=tuple(answer["epoch"]))
    assert (list(of_the_same.epoch), of_the_same.path) == (answer["epoch"], answer["path"])


@pytest.mark.parametrize("method", sorted(name for name in CHANGING if name.startswith("admin.")))
def test_what_administrators_ask_is_answered_alike(daemon: Daemon, asking: JavaScript, method: str) -> None:
    """Here are no rows that could move and no device: what cannot be done is refused with the same words."""
    asking.send("asked", method, {})
    _, error, answer = asking.hear()
    with daemon.client() as client:
        try:
            again, refusal = plain(meaning(client.call(method))), None
        except GraphtideError as caught:
            again, refusal = None, {"code": caught.code, "message": caught.message, "detail": caught.detail}
    if answer is not None:
        assert len(answer.pop("epoch")) == 2 and answer.pop("offsets")
    assert (error, answer) == (refusal, again)


def test_pages_follow_each_other(asking: JavaScript) -> None:
    seen: list[int] = []
    cursor: Any = None
    while True:
        page = asking.ask("neighbors", {"vertex": 10, "limit": 3, "cursor": cursor})
        seen += page["ids"]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == list(range(11, 18))


def test_an_answer_names_what_it_reflects(daemon: Daemon, asking: JavaScript, stream: Stream) -> None:
    before = asking.ask("wait", {"min_offsets": stream.append([20], [21])})
    after = asking.ask("wait", {"min_offsets": stream.append([21], [22])})
    assert after["epoch"] > before["epoch"] and stream.offsets().items() <= after["offsets"].items()
    answer = asking.ask("get", {"program": "components", "vertices": [22], "min_offsets": after["offsets"]})
    assert answer["values"] == [20] and answer["epoch"] >= after["epoch"]


REFUSED = [
    ("get", {"program": "hops"}, "bad-request"),
    ("get", {"program": "hops", "vertices": ["1"]}, "bad-request"),
    ("get", {"program": "hops", "vertices": [2**63]}, "bad-request"),
    ("get", {"program": "none", "vertices": [1]}, "unknown-program"),
    ("path", {"program": "hops", "target": 99}, "unknown-vertex"),
    ("top", {"program": "hops", "k": 10**6}, "limit-exceeded"),
    ("nonsense", {}, "not-supported"),
]


@pytest.mark.parametrize(("method", "params", "code"), REFUSED, ids=[f"{c[2]}-{n}" for n, c in enumerate(REFUSED)])
def test_an_error_has_its_code_and_the_connection_goes_on(
    asking: JavaScript, method: str, params: dict[str, Any], code: str
) -> None:
    assert asking.refused(method, params)["code"] == code
    assert asking.ask("get", {"program": "hops", "vertices": [2]})["values"] == [1]


def test_a_wait_that_takes_too_long_says_what_is_missing(asking: JavaScript, stream: Stream) -> None:
    (name, reached), *_ = stream.append([30], [31]).items()
    asking.ask("wait", {"min_offsets": {name: reached}})
    error = asking.refused("wait", {"min_offsets": {name: reached + 1}, "timeout_ms": 200})
    assert error["code"] == "timeout"
    assert error["detail"]["behind"] == {name: [reached, reached + 1]}


def test_answers_come_out_of_order(js: JavaScript, stream: Stream) -> None:
    record = stream.append([40], [41])
    length = next(iter(record.values()))
    js.send("last", "wait", {"min_offsets": stream.offsets(more=length), "timeout_ms": 60_000})
    names = [f"get-{n}" for n in range(20)]
    for name in names:
        js.send(name, "get", {"program": "hops", "vertices": [1, 2]})
    answers = [js.hear() for _ in names]
    assert sorted(name for name, _, _ in answers) == sorted(names)
    assert all(error is None and answer["values"] == [0, 1] for _, error, answer in answers)
    assert stream.append([41], [40]) == stream.offsets()
    name, error, answer = js.hear()
    assert (name, error) == ("last", None) and stream.offsets().items() <= answer["offsets"].items()


def test_a_subscription_tells_what_epochs_change(js: JavaScript, stream: Stream) -> None:
    """By deltas alone, the client comes to what ``get`` answers."""
    vertices = [50, 51, LAST]
    number = js.ask("subscribe", {"program": "hops", "vertices": vertices, "threshold": 0})["subscription"]
    known: dict[int, Any] = {}

    def follow(offsets: Mapping[str, int]) -> None:
        while True:
            name, content = js.hear()
            assert name == "changed" and content["subscription"] == number
            if content["since"] is None:
                known.clear()
            for gone in content["removed"]:
                del known[gone]
            known.update(zip(content["ids"], content["values"], strict=True))
            if not content["more"] and offsets.items() <= content["offsets"].items():
                return

    follow({})
    assert known == {LAST: 3}
    follow(stream.append([1, 50], [50, 51]))
    assert known == {50: 1, 51: 2, LAST: 3}
    follow(stream.append([50], [51], Op.DELETE))
    assert known == {50: 1, 51: None, LAST: 3}
    follow(stream.append([50], None, Op.DELETE_VERTEX))
    assert known == {51: None, LAST: 3}
    js.send("off", "unsubscribe", {"subscription": number})
    while (heard := js.hear())[0] == "changed":
        continue
    assert heard[:2] == ["off", None]
