"""What subscribers cost the query server: processor time of each epoch, and how long it takes to reach them all.

    python benchmarks/subscribers.py [--subscribers 0,100,1000] [--chosen 100] [--ask own] [--door socket]
        [--vertices 1000000] [--changed 10000] [--epochs 50] [--json FILE]

Epochs with so many changed values are published one after the other, each as soon as all subscribers have the
last one: all of them chose a vertex that changes in each. Each chose vertices of its own, or all ``--ask`` for the
``same``, or for ``all`` vertices; over the socket, or as server-sent events over HTTP. Meanwhile another client
asks for a value again and again. Each subscriber has a connection of its own. Time of the server is that of all
threads of its process.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from connections import ask, connect, cpu_seconds
from report import machine, save, show

from graphtide.daemon.client.wire import encode_request
from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.serve import shared_memory
from graphtide.daemon.serve.listening import Doors
from graphtide.daemon.serve.publication import ProgramPublication, Publication
from graphtide.daemon.serve.supervisor import ServerLink
from graphtide.gpma.index.vertex_index import VertexIndex


class Stream:
    """Published epochs of one program, whose values change at random; vertex 0 changes in each."""

    def __init__(self, link: ServerLink, vertices: int, changed: int) -> None:
        self._link = link
        self._rng = np.random.default_rng(1)
        self._values = np.ones(vertices)
        self._changed = changed
        self.number = 0

    def publish(self) -> None:
        n = self._values.size
        chosen = np.unique(np.append(self._rng.integers(0, n, self._changed), 0)).astype(np.uint32)
        self._values[chosen] += 1
        first, self.number = self.number == 0, self.number + 1
        changed = {"estimate": None if first else chosen}
        rank = ProgramPublication(
            "pagerank", {"estimate": self._values}, changed, {"norm": 1.0}, {"state": "fresh"}
        )
        moved = None if first else np.empty(0, np.uint32)
        offsets = {"t": {0: self.number}}
        self._link.publish(Publication((1, self.number), n, offsets, {"rank": rank}, {}, np.ones(n, bool), moved))


class Asking(threading.Thread):
    """A client that asks for one value again and again; ``taken``: how long each answer took."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.taken: list[float] = []
        self._over = threading.Event()
        self._connection = connect(address)

    def run(self) -> None:
        question = encode_request(2, "get", {"program": "rank", "vertices": [7]})
        with self._connection:
            while not self._over.wait(0.001):
                started = time.perf_counter()
                ask(self._connection, question)
                self.taken.append(time.perf_counter() - started)

    def end(self) -> None:
        self._over.set()
        self.join()


def drained(poll: Any, connections: dict[int, socket.socket], number: int) -> None:
    """Return once every connection has told of this epoch; of what it says only that is looked at."""
    marks = f"[1,{number}]".encode(), b"\xa5epoch\x92\x01" + msgpack.packb(number)
    waiting, tails = set(connections), dict.fromkeys(connections, b"")
    while waiting:
        for fd, _ in poll.poll(60_000):
            data = tails[fd] + connections[fd].recv(1 << 20)
            tails[fd] = data[-64:]
            if any(mark in data for mark in marks):
                waiting.discard(fd)


def subscribed(link: ServerLink, door: str, given: dict[str, Any]) -> socket.socket:
    """A connection of its own, to which it was said that it is."""
    if door == "socket":
        connection = connect(link.addresses[0])
        ask(connection, encode_request(2, "subscribe", given))
        return connection
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(link.http_addresses[0].removeprefix("unix:"))
    if "vertices" in given:
        given = given | {"vertices": np.frombuffer(given["vertices"], "<i8").tolist()}
    body = json.dumps(given).encode()
    head = "POST /v1/subscribe HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = b""
    while b"event: subscribed" not in answer:
        answer += connection.recv(1 << 16)
    return connection


def measured(link: ServerLink, stream: Stream, subscribers: int, arguments: argparse.Namespace) -> dict[str, Any]:
    rng, pid = np.random.default_rng(2), link.pid
    assert pid is not None
    poll, connections = select.poll(), dict[int, socket.socket]()
    for _ in range(subscribers):
        given: dict[str, Any] = {"program": "rank", "snapshot": False}
        if arguments.ask != "all":
            rng = np.random.default_rng(2) if arguments.ask == "same" else rng
            chosen = np.append(rng.integers(1, arguments.vertices, arguments.chosen - 1), 0)
            given["vertices"] = chosen.astype("<i8").tobytes()
        connection = subscribed(link, arguments.door, given)
        connections[connection.fileno()] = connection
        poll.register(connection, select.POLLIN)
    asking = Asking(link.addresses[0])
    asking.start()
    delays, before = [], cpu_seconds(pid)
    for _ in range(arguments.epochs):
        started = time.perf_counter()
        stream.publish()
        drained(poll, connections, stream.number)
        delays.append(time.perf_counter() - started)
        time.sleep(0.01)
    spent = (cpu_seconds(pid) - before) / arguments.epochs
    asking.end()
    for connection in connections.values():
        connection.close()
    return {
        "subscribers": subscribers,
        "server ms": spent * 1e3,
        "all told p50 ms": float(np.median(delays)) * 1e3,
        "all told max ms": max(delays) * 1e3,
        "get p50 ms": float(np.median(asking.taken)) * 1e3,
        "get p99 ms": float(np.quantile(asking.taken, 0.99)) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscribers", default="0,100,1000", help="how many, several with commas between")
    parser.add_argument("--chosen", type=int, default=100, help="vertices of each")
    parser.add_argument("--ask", choices=["own", "same", "all"], default="own", help="which vertices they chose")
    parser.add_argument("--door", choices=["socket", "http"], default="socket")
    parser.add_argument("--vertices", type=int, default=1_000_000)
    parser.add_argument("--changed", type=int, default=10_000, help="values in each epoch")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    index = VertexIndex.create("int", shared_memory.allocate)
    index.insert(np.arange(arguments.vertices))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        nothing: Any = None  # nobody asks about edges
        link = ServerLink(
            doors=Doors(listen=[f"unix:{folder}/s"], http=[f"unix:{folder}/http"]),
            graph={"directed": True, "weighted": False, "vertex_ids": "int"},
            index=index,
            topology=nothing,
            limits=LimitsConfig(connections_max=4096, subscriptions_max=16_384),
        )
        stream = Stream(link, arguments.vertices, arguments.changed)
        link.start()
        try:
            stream.publish()
            link.wait_ready()
            rows = [measured(link, stream, int(n), arguments) for n in arguments.subscribers.split(",")]
        finally:
            link.stop()
    show("each epoch, with so many subscribers", rows)
    save(arguments.json, {"machine": machine(), "parameters": vars(arguments) | {"json": None}, "rows": rows})


if __name__ == "__main__":
    main()
