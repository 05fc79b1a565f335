"""The benchmark of answers: that its requests wait for no answer, whose delays it takes, and a small run."""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack
import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("asking")


@pytest.fixture
def serve(asking: ModuleType) -> ModuleType:
    return importlib.import_module("serve")


class Hoarding(threading.Thread):
    """A server that answers nothing before it has so many requests: then all, the last first, some by an error."""

    def __init__(self, path: Path, requests: int) -> None:
        super().__init__()
        self.asked: list[Any] = []
        self._requests = requests
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()

    def run(self) -> None:
        connection, _ = self._listener.accept()
        with self._listener, connection:
            unpacker = msgpack.Unpacker()
            while len(self.asked) < self._requests:
                unpacker.feed(connection.recv(1 << 16))
                self.asked += unpacker
            for _, msgid, *_ in reversed(self.asked):
                error = {"code": "internal"} if msgid % 10 == 0 else None
                connection.sendall(msgpack.packb([1, msgid, error, {}]))
            connection.recv(1)  # until it is closed


class Out:
    """The end of a pipe."""

    def send(self, what: Any) -> None:
        self.sent = what


def test_requests_are_sent_when_they_are_due_whether_answers_come_or_not(
    asking: ModuleType, tmp_path: Path
) -> None:
    hoarding, out = Hoarding(tmp_path / "s", 100), Out()
    hoarding.start()
    load = asking.Load("socket", f"unix:{tmp_path / 's'}", 2000.0, 0.1, (1, 1, 0, 0), np.arange(5), processes=2)
    asking.ask(load, 1, asking.time.monotonic(), out)
    hoarding.join()
    kinds, late, latency, failed = out.sent
    found = asking.Asked(kinds, late, latency, failed)
    assert kinds.size == 100 and {*kinds.tolist()} == {0, 1} and found.failed == 10 and not found.unanswered
    assert {method for _, _, method, _ in hoarding.asked} == {"get", "neighbors"}
    # The first was due first: all were answered once the last had been sent.
    assert (late >= 0).all() and latency[0] >= 0.099 - 1e-3 and latency.min() > 0
    every = found.percentiles()
    assert every["p50 ms"] <= every["p99 ms"] <= every["p99.9 ms"] == pytest.approx(latency.max() * 1e3)
    assert found.percentiles("top")["p50 ms"] != found.percentiles("top")["p50 ms"], "none was asked"


def test_what_is_never_answered_took_for_ever(asking: ModuleType) -> None:
    latency = np.array([0.001] * 98 + [np.nan] * 2)
    found = asking.Asked(np.zeros(100, np.int64), np.zeros(100), latency, 0)
    assert found.unanswered == 2 and found.percentiles()["p50 ms"] == 1.0
    assert found.percentiles()["p99 ms"] == np.inf


def test_delays_are_of_epochs_whose_publication_was_seen(serve: ModuleType) -> None:
    heard = np.array([[3, 10.5], [4, 11.0], [7, 12.25], [9, 20.0], [7, 12.5]])
    assert serve.delays_of({3: 10.0, 7: 12.0, 8: 13.0}, heard).tolist() == [0.5, 0.25, 0.5]
    assert serve.delays_of({}, heard).size == 0


def test_the_newest_epoch_that_a_message_tells_of(asking: ModuleType) -> None:
    wire = importlib.import_module("graphtide.daemon.client.wire")
    messages = [
        wire.encode_stamped_notification("changed", wire.encode_stamp((2, number), {"t": {0: 1}}), {"ids": b""})
        for number in (70_000, 5_000_000_000)
    ]
    assert [asking._newest(message) for message in messages] == [70_000, 5_000_000_000]
    assert asking._newest(b"".join(messages)) == 5_000_000_000
    assert asking._newest(b"\x93\x02") is None and asking._newest(messages[0][: -len(messages[0]) + 24]) is None


@pytest.mark.sample(among="a small run of a benchmark")
def test_a_small_run(tmp_path: Path, run_long: bool) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, BENCHMARKS / "serve.py", "--seconds", "0.3", "--scale", "8", "--edges", "1000"]
    command += ["--rate", "100", "--subscribers", "5", "--chosen", "10", "--subscriber-rate", "20000"]
    command += [
        "--turns",
        "1",
        "--hostile",
        "6",
        *([] if run_long else ["--only", "requests,subscribers,scrape,hostile"]),
    ]
    subprocess.run([*map(str, command), "--json", str(result)], check=True, timeout=300, stdout=subprocess.DEVNULL)
    saved = json.loads(result.read_text())
    assert [row["when"] for row in saved["peak"]] == ["before", "after"]
    peak = np.mean([row["updates/s"] for row in saved["peak"]])
    assert all(row["of peak"] == pytest.approx(row["updates/s"] / peak) for row in saved["requests"])
    all_kinds = [row for row in saved["requests"] if row["request"] == "all"]
    assert [(row["ingest"], row["door"]) for row in all_kinds] == [
        (ingest, door) for ingest in ("none", "half", "full") for door in ("socket", "http", "echo")
    ]
    assert all(row["failed"] == row["unanswered"] == 0 and row["p99.9 ms"] > 0 for row in all_kinds)
    nobody, five = saved["subscribers"]
    assert nobody["heard"] == 0 and five["heard"] > 0 and five["epochs"] > 0 and five["delay p50 ms"] >= 0
    hostile = {row["subscribers"]: row for row in saved["hostile"]}
    kinds = ["reading", "deaf", "storm"]
    assert list(hostile) == [name for kind in kinds for name in (f"none, in turns with {kind}", kind)]
    for kind in kinds:
        none, some = hostile[f"none, in turns with {kind}"], hostile[kind]
        assert none["updates/s"] > 0 and none["of without"] == 1 and none["subscribed"] == none["read MB"] == 0
        assert some["updates/s"] > 0 and some["engine s/M"] > 0 and some["waited s/M"] >= 0
        assert some["server cores"] >= 0 and some["server MiB"] > 1
        assert some["of without"] == pytest.approx(some["updates/s"] / none["updates/s"])
        by_fixed = [row["engine s/M"] / row["fixed ms"] for row in (some, none)]
        assert some["engine by fixed of without"] == pytest.approx(by_fixed[0] / by_fixed[1])
    assert hostile["reading"]["subscribed"] == hostile["deaf"]["subscribed"] == 6
    assert hostile["reading"]["read MB"] > 0 == hostile["deaf"]["read MB"] and hostile["storm"]["subscribed"] > 0
    assert all(row["scrapes"] > 0 and row["kilobytes"] > 1 for row in saved["scrape"])
    if run_long:
        assert [row["results to"] for row in saved["results"]] == ["none", "files"]
        assert saved["results"][1]["records"] > 0
