"""What connections cost the query server: its processor time for each one made, and for questions on an open one.

    python benchmarks/connections.py [--connections 500] [--rounds 9] [--json FILE]

A connection is made, asks its first question (``hello``) and is closed. The open one asks for one vertex's value,
for the best ten, and for something that is refused; over HTTP, too, as curl and Python's ``http.client`` would.
Time is that of all threads of the server's process, as the scheduler counts it; minima and medians over rounds.
Give the same command in two checkouts in turns to compare versions.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from report import machine, save, show

from graphtide.daemon.client.addresses import UnixAddress, parse_address
from graphtide.daemon.client.wire import encode_request
from graphtide.daemon.serve import shared_memory
from graphtide.daemon.serve.listening import Doors
from graphtide.daemon.serve.results import ProgramPublication, Publication
from graphtide.daemon.serve.supervisor import ServerLink
from graphtide.gpma.index.vertex_index import VertexIndex

VERTICES = 50
SOCKET = {
    "get": encode_request(2, "get", {"program": "rank", "vertices": [7]}),
    "top": encode_request(2, "top", {"program": "rank", "k": 10}),
    "refused": encode_request(2, "get", {"program": "rank"}),
}
_CURL = "Host: localhost:7421\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n"
_BODY = b'{"program": "rank", "vertices": [7]}'
HTTP = {
    "get": f"GET /v1/get?program=rank&vertices=7 HTTP/1.1\r\n{_CURL}\r\n".encode(),
    "get, by POST": (
        "POST /v1/get HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: identity\r\n"
        f"Content-Length: {len(_BODY)}\r\nContent-Type: application/json\r\n\r\n"
    ).encode()
    + _BODY,
    "top": f"GET /v1/top?program=rank&k=10 HTTP/1.1\r\n{_CURL}\r\n".encode(),
    "refused": f"GET /v1/get?program=rank HTTP/1.1\r\n{_CURL}\r\n".encode(),
}


def publication() -> Publication:
    """An epoch with the values of one program."""
    columns = {"estimate": np.ones(VERTICES)}
    rank = ProgramPublication("pagerank", columns, {"estimate": None}, {"norm": 1.0}, {"state": "fresh"}, None)
    return Publication((1, 1), VERTICES, {"t": {0: 1}}, {"rank": rank}, {}, np.ones(VERTICES, bool))


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def connected(address: str) -> socket.socket:
    place = parse_address(address)
    if isinstance(place, UnixAddress):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(place.path)
        return connection
    return socket.create_connection((place.host, place.port))


def connect(address: str) -> socket.socket:
    """A connection that has asked its first question."""
    connection = connected(address)
    ask(connection, encode_request(1, "hello", {}))
    return connection


def ask(connection: socket.socket, question: bytes) -> None:
    connection.sendall(question)
    connection.recv(1 << 16)


def measured(pid: int, rounds: int, times: int, work: Callable[[], Any]) -> tuple[float, float]:
    """Minimum and median microseconds of the process for each call of ``work``."""
    taken = []
    for _ in range(rounds):
        before = cpu_seconds(pid)
        for _ in range(times):
            work()
        time.sleep(0.02)  # what closed connections leave to do
        taken.append((cpu_seconds(pid) - before) / times * 1e6)
    return min(taken), float(np.median(taken))


def asked(
    pid: int, connection: socket.socket, name: str, questions: dict[str, bytes], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Rows about questions on an open connection."""
    rows = []
    for what, question in questions.items():
        ask(connection, question)
        work = partial(ask, connection, question)
        least, median = measured(pid, arguments.rounds, arguments.connections, work)
        rows.append({"what": f"{name}: {what}", "least us": least, "median us": median})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=500, help="of each round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    index = VertexIndex.create("int", shared_memory.allocate)
    index.insert(np.arange(VERTICES))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        nothing: Any = None  # nobody asks about edges
        graph = {"directed": True, "weighted": False, "vertex_ids": "int"}
        addresses = [f"unix:{folder}/s", "tcp://127.0.0.1:0"]
        http = f"unix:{folder}/http"
        doors = Doors(listen=addresses, http=[http])
        link = ServerLink(doors=doors, graph=graph, index=index, topology=nothing)
        link.start()
        try:
            link.publish(publication())
            link.wait_ready()
            assert link.pid is not None
            for address in link.addresses:
                n, name = arguments.connections, address.partition(":")[0]
                made = measured(link.pid, arguments.rounds, n, lambda a=address: connect(a).close())  # type: ignore[misc]
                rows.append({"what": f"a connection ({name})", "least us": made[0], "median us": made[1]})
                with connect(address) as open_one:
                    rows += asked(link.pid, open_one, f"a question ({name})", SOCKET, arguments)
            with connected(http) as open_one:
                rows += asked(link.pid, open_one, "a question (http)", HTTP, arguments)
        finally:
            link.stop()
    show("processor time of the query server", rows)
    save(arguments.json, {"machine": machine(), "parameters": vars(arguments) | {"json": None}, "rows": rows})


if __name__ == "__main__":
    main()
